package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/unix"
)

// bgpEntries returns the routes by BGP in the main table of the thread's namespace.
func bgpEntries(h *netlink.Handle, family *addressFamily) (map[netip.Prefix]netlink.Route, error) {
	list, err := h.RouteListFiltered(family.netlink, &netlink.Route{Protocol: rtprotBGP, Table: mainTable}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	out := map[netip.Prefix]netlink.Route{}
	for _, r := range list {
		out[family.prefixOf(r.Dst)] = r
	}
	return out, nil
}

// entryHops returns the next hops of a route, of which a blackhole has none.
func entryHops(r *netlink.Route) []*netlink.NexthopInfo {
	if r.Type == syscall.RTN_BLACKHOLE {
		return nil
	}
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via, Flags: r.Flags}}
}

// fewerHops returns the route that the kernel has in place of a route with more than n next hops: a blackhole if n is 0.
func fewerHops(r *netlink.Route, n int) *netlink.Route {
	out := &netlink.Route{Dst: r.Dst, Protocol: r.Protocol, Priority: r.Priority, Table: r.Table, Type: syscall.RTN_BLACKHOLE}
	if n == 0 {
		return out
	}
	out.Type = syscall.RTN_UNICAST
	var hops []*netlink.NexthopInfo
	for _, h := range entryHops(r) {
		hops = append(hops, &netlink.NexthopInfo{LinkIndex: h.LinkIndex, Hops: h.Hops, Gw: h.Gw, Via: h.Via, Flags: h.Flags & int(netlink.FLAG_ONLINK)})
	}
	slices.SortFunc(hops, func(a, b *netlink.NexthopInfo) int { return a.LinkIndex - b.LinkIndex })
	if hops = hops[:n]; n > 1 {
		out.MultiPath = hops
		return out
	}
	out.LinkIndex, out.Gw, out.Via, out.Flags = hops[0].LinkIndex, hops[0].Gw, hops[0].Via, hops[0].Flags
	return out
}

// holdEntries keeps the kernel's entries of a fault wrong in the process's namespace until ctx ends: FRR writes an entry again
// when its next hops change. It is the body of blackhole-fib's helper. FRR does not notice: it takes changes of routes by BGP
// for its own.
func holdEntries(ctx context.Context, f ActiveFault, started func() error) error {
	changes := make(chan netlink.RouteUpdate, 64)
	if err := netlink.RouteSubscribe(changes, ctx.Done()); err != nil {
		return fmt.Errorf("subscribing to changes of routes: %w", err)
	}
	return withHandle(func(h *netlink.Handle) error {
		if err := spoilEntries(h, f); err != nil {
			return err
		}
		if err := started(); err != nil {
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return nil
			case _, open := <-changes:
				if !open && ctx.Err() == nil {
					return errors.New("the kernel's messages on changes of routes have ended")
				}
			}
			if err := spoilEntries(h, f); err != nil {
				return err
			}
		}
	})
}

// spoilEntries leaves at most f.Paths next hops in each entry of the fault's prefixes.
func spoilEntries(h *netlink.Handle, f ActiveFault) error {
	entries, err := bgpEntries(h, ipv4Family)
	if err != nil {
		return err
	}
	for _, p := range f.Prefixes {
		r, ok := entries[p]
		if !ok || len(entryHops(&r)) <= f.Paths {
			continue
		}
		// FRR may take the route away meanwhile, or a port of it may go down: there is another change then.
		if err := h.RouteReplace(fewerHops(&r, f.Paths)); err != nil && !errors.Is(err, syscall.ENETDOWN) && !errors.Is(err, syscall.ENETUNREACH) {
			return fmt.Errorf("replacing the entry of %s: %w", p, err)
		}
	}
	return nil
}

// restoreWait bounds the time that FRR takes to install a route again.
const restoreWait = 20 * time.Second

// restoreEntries makes the kernel's entries of a fault's prefixes those that FRR selected. It removes what differs: zebra
// installs a route again that somebody else removed.
func (l *Lab) restoreEntries(ctx context.Context, f *ActiveFault) error {
	ctx, cancel := context.WithTimeoutCause(ctx, restoreWait, errors.New("FRR has not installed its routes again"))
	defer cancel()
	for {
		rib, err := selectedRoutes(ctx, l.root, l.name, f.routesAt())
		if err != nil {
			return err
		}
		differs := 0
		err = unix.InNetns(l.x.byElement[f.routesAt()].Netns, func() error {
			return withHandle(func(h *netlink.Handle) (err error) {
				differs, err = removeWrongEntries(h, f.Prefixes, rib)
				return err
			})
		})
		if err != nil || differs == 0 {
			return err
		}
		if sleepContext(ctx, convergencePoll) != nil {
			return fmt.Errorf("%w: %d entries of %s differ", context.Cause(ctx), differs, f.routesAt())
		}
	}
}

// removeWrongEntries removes the kernel's entries of prefixes whose ports are not those of rib. It returns how many
// prefixes differ.
func removeWrongEntries(h *netlink.Handle, prefixes []netip.Prefix, rib map[netip.Prefix][]string) (differs int, err error) {
	entries, err := bgpEntries(h, ipv4Family)
	if err != nil {
		return 0, err
	}
	ports, err := learnedRoutes(h, ipv4Family)
	if err != nil {
		return 0, err
	}
	for _, p := range prefixes {
		r, installed := entries[p]
		want, selected := rib[p]
		if installed == selected && slices.Equal(ports[p], want) {
			continue
		}
		differs++
		if !installed {
			continue
		}
		gone := &netlink.Route{Dst: r.Dst, Protocol: r.Protocol, Priority: r.Priority, Table: r.Table, Type: r.Type}
		if err := h.RouteDel(gone); err != nil && !errors.Is(err, syscall.ESRCH) {
			return differs, fmt.Errorf("removing the entry of %s: %w", p, err)
		}
	}
	return differs, nil
}
