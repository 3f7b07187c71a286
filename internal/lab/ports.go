package lab

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// PortInterface is the kernel's interface of a linked port of a switch, or of a linked NIC of a node.
type PortInterface struct {
	End   string // switch:port or node/device
	Index int    // in the namespace of the element
	Name  string // of the interface
	Speed uint64 // bit/s of the link; 0: the topology does not give it
}

// InNamespace runs fn on a thread in the namespace of a switch or node. What fn opens belongs there, and can be used from
// outside afterwards.
func (l *Lab) InNamespace(element string, fn func() error) error { return l.runInNetns(element, fn) }

// InEachSwitch calls fn in the namespace of each switch, with its ports. It returns the first error.
func (l *Lab) InEachSwitch(fn func(name string, ports []PortInterface) error) error {
	for i := range l.x.Namespaces {
		ns := &l.x.Namespaces[i]
		if !ns.Switch {
			continue
		}
		ports, err := l.PortInterfaces(ns.Element)
		if err == nil {
			err = unix.InNetns(ns.Netns, func() error { return fn(ns.Element, ports) })
		}
		if err != nil {
			return fmt.Errorf("switch %s: %w", ns.Element, err)
		}
	}
	return nil
}

// PortInterfaces returns the interfaces of a switch or node.
func (l *Lab) PortInterfaces(element string) ([]PortInterface, error) {
	if _, err := l.NetnsOf(element); err != nil {
		return nil, err
	}
	ns := l.x.byElement[element]
	var ids map[string]int
	err := unix.InNetns(ns.Netns, func() error {
		return withHandle(func(h *netlink.Handle) (err error) {
			ids, err = interfaceIDs(h)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("interfaces of %s: %w", element, err)
	}
	var out []PortInterface
	for _, i := range ns.Interfaces {
		id, ok := ids[i.Name]
		if !ok {
			return nil, fmt.Errorf("interfaces of %s: %s, which is %s, is gone", element, i.Name, i.End)
		}
		p := PortInterface{End: i.End, Index: id, Name: i.Name}
		if link := l.x.graph.LinkAt(i.End); link != nil {
			p.Speed = uint64(link.SpeedGbps * 1e9)
		}
		out = append(out, p)
	}
	return out, nil
}

// DefaultMTU is that of a lab's links, and of the routes of its nodes.
const DefaultMTU = 1500

// resolveMTU completes a fault that makes the MTU of a link smaller.
func (x *index) resolveMTU(af *ActiveFault) error {
	id, _, directed, err := x.findLink(af.At)
	switch {
	case err != nil:
		return err
	case directed:
		return fmt.Errorf("%q is one direction: %s changes both ends of a link END--END", af.At, af.Kind)
	case af.MTU == 0:
		af.MTU = x.family().shortMTU
	case af.MTU < x.family().minMTU || af.MTU > DefaultMTU:
		return fmt.Errorf("MTU %d: want %d to %d octets, of which the first is the least that %s has", af.MTU, x.family().minMTU, DefaultMTU, x.family().title)
	}
	af.At, af.Mechanism, af.Exclusive = id, "interfaces", KindMTU+" "+id
	return nil
}

// setMTU sets the MTU of both ends of a link, and returns the one that the first end had.
func (x *index) setMTU(id string, mtu int) (was int, err error) {
	a, b, _ := fabric.SplitLink(id)
	for _, end := range []string{a, b} {
		err := x.onInterface(end, func(h *netlink.Handle, link netlink.Link) error {
			if end == a {
				was = link.Attrs().MTU
			}
			return h.LinkSetMTU(link, mtu)
		})
		if err != nil {
			return was, fmt.Errorf("MTU of %s: %w", end, err)
		}
	}
	return was, nil
}

// SetLinkMTU sets the MTU of all links. The routes of nodes keep DefaultMTU, so that a larger one leaves room for what
// switches and nodes add to packets.
func (l *Lab) SetLinkMTU(mtu int) error {
	var errs []error
	for i := range l.x.Namespaces {
		for _, port := range l.x.Namespaces[i].Interfaces {
			errs = append(errs, l.x.onInterface(port.End, func(h *netlink.Handle, link netlink.Link) error { return h.LinkSetMTU(link, mtu) }))
		}
	}
	return errors.Join(errs...)
}
