package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"sort"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Status describes the state of a lab at one moment.
type Status struct {
	Name       string            `json:"name"`
	Phase      string            `json:"phase"`
	Created    time.Time         `json:"created"`
	Routing    string            `json:"routing"`         // one of RoutingKinds
	Family     string            `json:"family"`          // one of Families
	Forwarding string            `json:"forwarding"`      // one of fabric.ForwardingKinds
	Spray      string            `json:"spray,omitempty"` // one of SprayKinds, where switches spray
	OwnerPID   int               `json:"owner_pid,omitempty"`
	OwnerAlive bool              `json:"owner_alive,omitempty"`
	Namespaces []NamespaceStatus `json:"namespaces"`
	Faults     []FaultStatus     `json:"faults"`
}

// FaultStatus is a fault and whether it still does what it should.
type FaultStatus struct {
	ActiveFault
	// HelperAlive is nil for a fault without a helper. The helper of
	// link-down ends when its withdrawal is done; with RoutingFRR it has none.
	HelperAlive *bool `json:"helper_alive,omitempty"`
}

// NamespaceStatus is the state of one switch or node.
type NamespaceStatus struct {
	Element    string            `json:"element"`
	Kind       string            `json:"kind"` // switch or node
	Netns      string            `json:"netns"`
	Locator    string            `json:"locator,omitempty"` // of a switch, where hosts choose paths by SRv6
	Exists     bool              `json:"exists"`
	LinksUp    int               `json:"links_up"`
	LinksDown  int               `json:"links_down"`
	Routes     int               `json:"routes"`      // routes in force that the lab or its FRR installed
	RoutesWant int               `json:"routes_want"` // those of the whole fabric
	Processes  []int             `json:"processes"`
	Interfaces []InterfaceStatus `json:"interfaces"`
}

// InterfaceStatus is the state of one linked port.
type InterfaceStatus struct {
	End       string       `json:"end"`
	Interface string       `json:"interface"` // the kernel's name for the port
	Address   netip.Prefix `json:"address"`
	Peer      string       `json:"peer"`
	Up        bool         `json:"up"` // administratively up, with carrier
}

// StatusOf reports on a lab in any phase, also a half-built one. errors.Is
// ErrNotExist holds when there is none of the name.
func StatusOf(ctx context.Context, name string) (*Status, error) {
	if name == "" {
		name = DefaultName
	}
	st, err := loadState(stateDir(), name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoLab(name)
	}
	if err != nil {
		return nil, err
	}
	return st.currentStatus(ctx)
}

// Status reports on the lab.
func (l *Lab) Status(ctx context.Context) (*Status, error) {
	st, err := loadState(l.root, l.name)
	if err != nil {
		return nil, fmt.Errorf("lab %q: %w", l.name, err)
	}
	return st.currentStatus(ctx)
}

func (st *state) currentStatus(ctx context.Context) (*Status, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	x := st.Layout.buildIndex()
	s := &Status{Name: st.Name, Phase: st.Phase, Created: st.Created, Routing: RoutingStatic, Family: x.family().name, Faults: []FaultStatus{}}
	if x.Routing != "" {
		s.Routing = x.Routing
	}
	if s.Forwarding, s.Spray = string(x.Topology.Forwarding), x.Spray; s.Forwarding == "" {
		s.Forwarding = string(fabric.ECMP)
	}
	for _, f := range st.Faults {
		fs := FaultStatus{ActiveFault: f}
		if f.Helper.PID != 0 {
			alive := f.Helper.isAlive()
			fs.HelperAlive = &alive
		}
		s.Faults = append(s.Faults, fs)
	}
	if st.Owner != nil {
		s.OwnerPID, s.OwnerAlive = st.Owner.PID, st.Owner.isAlive()
	}
	ids := map[unix.NetnsID]bool{}
	for _, id := range st.NetnsIDs {
		ids[id] = true
	}
	procs, err := unix.NetnsProcesses(ids)
	if err != nil {
		return nil, fmt.Errorf("finding the lab's processes: %w", err)
	}
	want := x.allRoutes(routeState{})
	for _, ns := range x.Namespaces {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		out := NamespaceStatus{Element: ns.Element, Kind: "node", Netns: ns.Netns, RoutesWant: len(want[ns.Element]),
			Processes: append([]int{}, procs[st.NetnsIDs[ns.Element]]...), Interfaces: []InterfaceStatus{}}
		if ns.Switch {
			out.Kind = "switch"
			if l := x.graph.Switch(ns.Element).Locator; !l.IsZero() {
				out.Locator = l.String()
			}
		}
		sort.Ints(out.Processes)
		if _, err := unix.NetnsIDOf(unix.NetnsPath(ns.Netns)); err == nil && st.ownsNamespace(ns) {
			out.Exists = true
			if err := unix.InNetns(ns.Netns, func() error { return out.readNamespace(ns, x.family()) }); err != nil {
				return nil, fmt.Errorf("%s: %w", ns.Element, err)
			}
		}
		s.Namespaces = append(s.Namespaces, out)
	}
	return s, nil
}

func (s *NamespaceStatus) readNamespace(ns Namespace, family *addressFamily) error {
	return withHandle(func(h *netlink.Handle) error {
		links, err := h.LinkList()
		if err != nil {
			return fmt.Errorf("listing interfaces: %w", err)
		}
		up := map[string]bool{}
		for _, l := range links {
			up[l.Attrs().Name] = l.Attrs().RawFlags&iffUp != 0 && l.Attrs().RawFlags&iffLowerUp != 0
		}
		for _, i := range ns.Interfaces {
			if up[i.Name] {
				s.LinksUp++
			} else {
				s.LinksDown++
			}
			s.Interfaces = append(s.Interfaces, InterfaceStatus{End: i.End, Interface: i.Name, Address: i.Address, Peer: i.Peer, Up: up[i.Name]})
		}
		routes, err := staticRoutes(h, family)
		if err != nil {
			return err
		}
		learned, err := learnedRoutes(h, family)
		s.Routes = len(routes) + len(learned)
		return err
	})
}

// IFF_UP and IFF_LOWER_UP of netdevice(7).
const (
	iffUp      = 0x1
	iffLowerUp = 0x10000
)
