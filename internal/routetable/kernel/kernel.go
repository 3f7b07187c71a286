// Package kernel reads by which ports the kernel of a switch sends: the main routing table of a network namespace, with
// its next-hop groups.
//
// The kernel notifies of most changes, but not of the IPv4 routes that it removes when a link goes down. Thus any change of
// a route, next hop, link or address is only a reason to read the whole table again.
package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/graylink/graylink/internal/routetable"
)

// The values are from Linux, include/uapi/linux/rtnetlink.h.
const (
	rtmNewNextHop = 104
	rtmDelNextHop = 105
	rtmGetNextHop = 106

	groupLink        = 1  // RTNLGRP_LINK
	groupIPv4Address = 5  // RTNLGRP_IPV4_IFADDR
	groupIPv4Route   = 7  // RTNLGRP_IPV4_ROUTE
	groupIPv6Address = 9  // RTNLGRP_IPV6_IFADDR
	groupIPv6Route   = 11 // RTNLGRP_IPV6_ROUTE
	groupNextHop     = 32 // RTNLGRP_NEXTHOP

	// maxTries is how often a table is read whose routes change meanwhile, before the last reading is taken.
	maxTries = 3
	// receiveBuffer is the size of the buffer of notifications in octets: about 10,000 of them.
	receiveBuffer = 4 << 20
)

// Reader reads the table of one network namespace.
type Reader struct {
	dump    *nl.SocketHandle
	changes *nl.NetlinkSocket

	mu       sync.Mutex
	overflow uint64
}

// Open opens a reader in the network namespace of the calling thread.
func Open() (*Reader, error) {
	changes, err := nl.Subscribe(syscall.NETLINK_ROUTE, groupLink, groupIPv4Address, groupIPv4Route, groupIPv6Address, groupIPv6Route, groupNextHop)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of routes: %w", err)
	}
	// More than the system's limit needs CAP_NET_ADMIN. A smaller buffer overflows earlier, which only costs a reading.
	if changes.SetReceiveBufferSize(receiveBuffer, true) != nil {
		_ = changes.SetReceiveBufferSize(receiveBuffer, false)
	}
	dump, err := nl.Subscribe(syscall.NETLINK_ROUTE)
	if err == nil {
		err = dump.SetReceiveTimeout(&nl.SocketTimeoutTv)
	}
	if err != nil {
		changes.Close()
		return nil, fmt.Errorf("open a socket for routes: %w", err)
	}
	return &Reader{dump: &nl.SocketHandle{Socket: dump}, changes: changes}, nil
}

// Close closes the reader. AwaitChange returns.
func (r *Reader) Close() {
	r.changes.Close()
	r.dump.Socket.Close()
}

// Overflows returns how often notifications were lost.
func (r *Reader) Overflows() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.overflow
}

// AwaitChange waits until the table may have changed. It returns an error only after Close, or if the socket fails.
func (r *Reader) AwaitChange() error {
	for {
		messages, _, err := r.changes.Receive()
		switch {
		case errors.Is(err, syscall.ENOBUFS):
			r.mu.Lock()
			r.overflow++
			r.mu.Unlock()
			return nil
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("receive changes of routes: %w", err)
		}
		if slices.ContainsFunc(messages, concernsRoutes) {
			return nil
		}
	}
}

// concernsRoutes reports whether a notification can mean that the table changed.
func concernsRoutes(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case syscall.RTM_NEWROUTE, syscall.RTM_DELROUTE:
		_, ok, err := parseRoute(m.Data)
		return ok || err != nil
	case syscall.RTM_NEWLINK, syscall.RTM_DELLINK, syscall.RTM_NEWADDR, syscall.RTM_DELADDR, rtmNewNextHop, rtmDelNextHop:
		return true
	}
	return false
}

// Entry is what the kernel does with packets to a prefix.
type Entry struct {
	Discards bool
	Ports    []uint32 // numbers of interfaces
	own      bool     // the kernel made the route itself
	priority uint32
}

// Table maps prefixes to what the kernel does with packets to them.
type Table map[netip.Prefix]*Entry

// Read reads the table.
func (r *Reader) Read() (Table, error) {
	for try := 1; ; try++ {
		t, err := r.readOnce()
		if errors.Is(err, netlink.ErrDumpInterrupted) && try < maxTries {
			continue
		}
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("read routes: %w", err)
		}
		return t, nil
	}
}

// readOnce reads the table. If it changed meanwhile, the error is netlink.ErrDumpInterrupted and the table is usable.
func (r *Reader) readOnce() (Table, error) {
	out := Table{}
	var unresolved []route
	var failed error
	interrupted := r.each(syscall.RTM_GETROUTE, syscall.RTM_NEWROUTE, routeHeader, func(m []byte) {
		x, ok, err := parseRoute(m)
		switch {
		case err != nil:
			failed = err
		case ok && x.nextHop != 0:
			unresolved = append(unresolved, x)
		case ok:
			out.add(&x)
		}
	})
	if failed != nil || interrupted != nil && !errors.Is(interrupted, netlink.ErrDumpInterrupted) {
		return nil, errors.Join(failed, interrupted)
	}
	// The kernel reports next hops with the routes unless net.ipv4.nexthop_compat_mode is 0.
	if len(unresolved) > 0 {
		hops := map[uint32]nextHop{}
		err := r.each(rtmGetNextHop, rtmNewNextHop, nextHopHeader, func(m []byte) {
			n, err := parseNextHop(m)
			if err != nil {
				failed = err
			}
			hops[n.id] = n
		})
		if failed != nil || err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, errors.Join(failed, err)
		}
		for i := range unresolved {
			unresolved[i].resolve(hops)
			out.add(&unresolved[i])
		}
		interrupted = errors.Join(interrupted, err)
	}
	return out, interrupted
}

// each calls f with the payload of each message of a dump.
func (r *Reader) each(get, answer, header int, f func([]byte)) error {
	req := nl.NewNetlinkRequest(get, syscall.NLM_F_DUMP)
	req.AddRawData(make([]byte, header)) // of no family, which means all
	req.Sockets = map[int]*nl.SocketHandle{syscall.NETLINK_ROUTE: r.dump}
	return req.ExecuteIter(syscall.NETLINK_ROUTE, uint16(answer), func(m []byte) bool {
		f(m)
		return true
	})
}

// add adds a route. Of several to a prefix the one with the lowest priority counts, and the first of several with the same,
// but IPv6 spreads packets over all of those. The kernel passes over a route whose next hops are all dead.
func (t Table) add(x *route) {
	old := t[x.prefix]
	switch {
	case !x.discards && len(x.ports) == 0:
	case old == nil || x.priority < old.priority:
		t[x.prefix] = &Entry{Discards: x.discards, Ports: x.ports, own: x.protocol == syscall.RTPROT_KERNEL, priority: x.priority}
	case x.priority == old.priority && x.prefix.Addr().Is6() && !x.discards && !old.Discards:
		old.Ports = append(old.Ports, x.ports...)
	}
}

// Routes returns the routes that leave by ports or discard packets, with the names of the ports. name returns "" for an
// interface that is no port. Routes by other interfaces only are left out, and so are those that the kernel has to discard
// what has no route.
func (t Table) Routes(name func(number uint32) string) routetable.Routes {
	out := make(routetable.Routes, len(t))
	for p, e := range t {
		ports := make([]string, 0, len(e.Ports))
		for _, n := range e.Ports {
			if s := name(n); s != "" {
				ports = append(ports, s)
			}
		}
		if len(ports) > 0 || e.Discards && !e.own {
			out[p] = ports
		}
	}
	return out
}

// Settle is how long a reader should wait after a change, for others that follow it.
const Settle = 20 * time.Millisecond
