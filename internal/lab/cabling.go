package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Swapped cables: the ports keep their names and addresses, and routing follows
// what is plugged in, as routing daemons on unnumbered ports do. The topology says
// otherwise, and goes on saying it.

// splitPair reads "LINK,LINK".
func splitPair(at string) (first, second string, ok bool) { return strings.Cut(at, ",") }

// resolveMiscable finds the two links of "LINK,LINK".
func (x *index) resolveMiscable(af *ActiveFault) error {
	one, two, ok := splitPair(af.At)
	if !ok {
		return fmt.Errorf("%q: %s swaps two cables: want LINK,LINK", af.At, af.Kind)
	}
	var ids []string
	for _, at := range []string{one, two} {
		id, dir, directed, err := x.findLink(at)
		if err != nil {
			return err
		}
		if directed || fabric.IsNIC(dir.From) || fabric.IsNIC(dir.To) {
			return fmt.Errorf("%q is no link between switches: %s swaps cables between switches", at, af.Kind)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	a, b := x.orderedEnds(ids[0]), x.orderedEnds(ids[1])
	if ids[0] == ids[1] || a.low == b.low && a.high == b.high {
		return fmt.Errorf("%q: swapping these two cables changes nothing", af.At)
	}
	for _, l := range x.withSwappedCables(ids[0], ids[1]).Topology.Links {
		if fabric.OwnerOf(l.A) == fabric.OwnerOf(l.B) {
			return fmt.Errorf("%q: swapped, %s would be plugged into itself", af.At, fabric.OwnerOf(l.A))
		}
	}
	af.At, af.Mechanism, af.Exclusive = ids[0]+","+ids[1], "cables", KindMiscable
	return nil
}

// tierEnds is a link between switches by the tiers of its ends.
type tierEnds struct{ low, high string }

func (x *index) orderedEnds(link string) tierEnds {
	a, b, _ := fabric.SplitLink(link)
	if x.graph.SwitchTier(fabric.OwnerOf(a)) > x.graph.SwitchTier(fabric.OwnerOf(b)) {
		a, b = b, a
	}
	return tierEnds{a, b}
}

// withSwappedCables returns the layout with the upper ends of two cables exchanged.
func (x *index) withSwappedCables(one, two string) *index {
	a, b := x.orderedEnds(one), x.orderedEnds(two)
	other := map[string]string{a.low: b.high, b.high: a.low, b.low: a.high, a.high: b.low}
	t := *x.Topology
	t.Links = slices.Clone(t.Links)
	for i := range t.Links {
		l := &t.Links[i]
		if l.A == a.low || l.A == b.low {
			l.B, l.BAddress = other[l.A], x.byEnd[other[l.A]].Address
		} else if l.B == a.low || l.B == b.low {
			l.A, l.AAddress = other[l.B], x.byEnd[other[l.B]].Address
		}
	}
	out := &Layout{Topology: &t, Routing: x.Routing, Family: x.Family, Spray: x.Spray}
	for _, ns := range x.Namespaces {
		ns.Interfaces = slices.Clone(ns.Interfaces)
		for i := range ns.Interfaces {
			in := &ns.Interfaces[i]
			if peer, ok := other[in.End]; ok {
				far := x.byEnd[peer]
				in.Peer, in.PeerMAC, in.PeerAdr = peer, far.MAC, far.Address.Addr()
			}
		}
		out.Namespaces = append(out.Namespaces, ns)
	}
	return out.buildIndex()
}

// currentFabric returns the lab's layout as its cables are plugged now.
func (st *state) currentFabric() *index {
	x := st.Layout.buildIndex()
	for _, f := range st.Faults {
		if f.Kind == KindMiscable {
			if one, two, ok := splitPair(f.At); ok {
				x = x.withSwappedCables(one, two)
			}
		}
	}
	return x
}

// currentFabric returns the lab's layout as its cables are plugged now.
func (l *Lab) currentFabric() (*index, error) {
	file, err := os.Stat(filepath.Join(labDir(l.root, l.name), "state.json"))
	if err != nil {
		return nil, errNoLab(l.name)
	}
	l.cached.Lock()
	defer l.cached.Unlock()
	if l.cached.x == nil || !file.ModTime().Equal(l.cached.at) {
		st, err := loadState(l.root, l.name)
		if err != nil {
			return nil, fmt.Errorf("lab %q: %w", l.name, err)
		}
		l.cached.x, l.cached.at = st.currentFabric(), file.ModTime()
	}
	return l.cached.x, nil
}

// replugCables takes cables out and plugs them as x has them. As in maintenance, routes
// leave the cables before, and come back after.
func (x *index) replugCables(ctx context.Context, st *state, before *index, links []string) error {
	rs := st.routeState()
	for _, link := range links {
		rs.withdrawn[link] = true
	}
	if err := before.syncRoutes(ctx, rs); err != nil {
		return err
	}
	var touched []Namespace
	for _, link := range links {
		a, b, _ := fabric.SplitLink(link)
		for _, end := range []string{a, b} {
			ns := x.byElement[fabric.OwnerOf(end)]
			if !slices.ContainsFunc(touched, func(o Namespace) bool { return o.Element == ns.Element }) {
				touched = append(touched, *ns)
			}
			err := unix.InNetns(ns.Netns, func() error {
				return withHandle(func(h *netlink.Handle) error {
					l, err := h.LinkByName(x.byEnd[end].Name)
					if errors.As(err, &netlink.LinkNotFoundError{}) {
						return nil // its other end is gone, and it with that
					}
					if err != nil {
						return err
					}
					return h.LinkDel(l)
				})
			})
			if err != nil {
				return fmt.Errorf("taking out the cable of %s: %w", end, err)
			}
		}
	}
	for _, ns := range touched {
		err := unix.InNetns(ns.Netns, func() error {
			return withHandle(func(h *netlink.Handle) error {
				for _, i := range ns.Interfaces {
					if _, err := h.LinkByName(i.Name); err == nil {
						continue
					}
					if err := x.makeVeth(h, i); err != nil && !errors.Is(err, syscall.EEXIST) {
						return fmt.Errorf("plugging in the cable of %s: %w", i.End, err)
					}
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	program, err := x.newHashProgram()
	if err != nil {
		return err
	}
	defer program.Close()
	for _, ns := range touched {
		err := unix.InNetns(ns.Netns, func() error {
			return withHandle(func(h *netlink.Handle) error {
				for n, i := range ns.Interfaces {
					l, err := h.LinkByName(i.Name)
					if err != nil {
						return err
					}
					if l.Attrs().Group == linkGroup {
						continue
					}
					if err := configureInterface(h, &ns, n, i, program); err != nil {
						return fmt.Errorf("interface %s of %s: %w", i.Name, i.End, err)
					}
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	if err := x.syncRoutes(ctx, st.routeState()); err != nil {
		return err
	}
	return x.awaitStableRoutes(ctx, touched)
}

// pluggedBy returns the links that swapping the cables of two links makes.
func (x *index) pluggedBy(at string) []string {
	one, two, _ := splitPair(at)
	a, b := x.orderedEnds(one), x.orderedEnds(two)
	return []string{fabric.LinkID(a.low, b.high), fabric.LinkID(b.low, a.high)}
}
