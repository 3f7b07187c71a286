package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// maxHops ends the walk of a forwarding loop.
const maxHops = 32

// KernelPath queries each switch's kernel in turn for the route of UDP packets with the given addresses and ports. It
// returns the path that ECMP really chooses. proto is the IP protocol's number, 17 for UDP.
func (l *Lab) KernelPath(ctx context.Context, src, dst netip.Addr, proto uint8, sport, dport uint16) (fabric.Path, error) {
	w, err := l.NewWalk()
	if err != nil {
		return nil, err
	}
	return w.KernelPath(ctx, src, dst, proto, sport, dport)
}

// Walk finds many paths. It remembers the interfaces, which do not change meanwhile.
type Walk struct {
	name string
	x    *index
	ids  map[string]map[string]int // of an element's interfaces
}

// NewWalk returns a Walk of the lab.
func (l *Lab) NewWalk() (*Walk, error) {
	x, err := l.currentFabric()
	if err != nil {
		return nil, err
	}
	return &Walk{l.name, x, map[string]map[string]int{}}, nil
}

// KernelPath returns the same as that of the Lab. It fails in a lab that sprays.
func (w *Walk) KernelPath(ctx context.Context, src, dst netip.Addr, proto uint8, sport, dport uint16) (fabric.Path, error) {
	x := w.x
	if x.Spray != "" {
		return nil, errSprayed
	}
	if x.ownerOf(src) == "" || x.ownerOf(dst) == "" {
		return nil, fmt.Errorf("kernel path %s to %s: both have to be addresses of NICs of lab %q", src, dst, w.name)
	}
	return w.kernelPath(ctx, src, dst, proto, sport, dport)
}

func (w *Walk) kernelPath(ctx context.Context, src, dst netip.Addr, proto uint8, sport, dport uint16) (fabric.Path, error) {
	x := w.x
	start, goal := x.ownerOf(src), x.ownerOf(dst)
	if start == goal {
		return nil, fmt.Errorf("kernel path %s to %s: both are addresses of node %q, which does not ask the fabric", src, dst, start)
	}
	q := routeQuery{src: src, dst: dst, proto: proto, sport: sport, dport: dport}
	var path fabric.Path
	at, in := start, ""
	for n := 0; n <= maxHops; n++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		answer, err := w.lookUp(at, in, q)
		if err == nil && answer.segment != nil {
			err = fmt.Errorf("%s is a carrier: Lab.CarrierPath finds the path of what is inside", dst)
		}
		if err != nil {
			return path, fmt.Errorf("kernel path %s to %s at %s: %w", src, dst, at, err)
		}
		out := answer.end
		if at != start {
			path = append(path, fabric.Hop{Switch: at, In: portOf(in), Out: portOf(out)})
		}
		in = x.byEnd[out].Peer
		at = fabric.OwnerOf(in)
		if ns := x.byElement[at]; !ns.Switch {
			if at != goal {
				return path, fmt.Errorf("kernel path %s to %s: ends at node %q, want %q", src, dst, at, goal)
			}
			return path, nil
		}
	}
	return path, fmt.Errorf("kernel path %s to %s: a loop, more than %d switches", src, dst, maxHops)
}

func portOf(end string) string { return end[len(fabric.OwnerOf(end))+1:] }

// ownerOf returns the node that has an address.
func (x *index) ownerOf(a netip.Addr) string {
	for _, ns := range x.Namespaces {
		if ns.Switch {
			continue
		}
		for _, i := range ns.Interfaces {
			for _, own := range i.ownAddrs() {
				if own == a {
					return ns.Element
				}
			}
		}
	}
	return ""
}

// routeQuery holds what the kernel's choice of a next hop depends on.
type routeQuery struct {
	src, dst     netip.Addr
	proto        uint8
	sport, dport uint16
}

// lookUp queries an element's kernel for the route of packets that came in by an end, or that start here if in is empty.
func (w *Walk) lookUp(element, in string, q routeQuery) (answer routeAnswer, err error) {
	x := w.x
	ns := x.byElement[element]
	err = unix.InNetns(ns.Netns, func() error {
		ids := w.ids[element]
		if ids == nil {
			err := withHandle(func(h *netlink.Handle) (err error) {
				ids, err = interfaceIDs(h)
				return err
			})
			if err != nil {
				return err
			}
			w.ids[element] = ids
		}
		iif := 0
		if in != "" {
			iif = ids[x.byEnd[in].Name]
		}
		if answer, err = q.requestRoute(iif); err != nil || answer.segment != nil {
			return err
		}
		for _, i := range ns.Interfaces {
			if ids[i.Name] == answer.oif {
				answer.end = i.End
				return nil
			}
		}
		return fmt.Errorf("the kernel answers interface %d, which is not a link of %s", answer.oif, element)
	})
	return answer, err
}

// routeAnswer is what the kernel answers to a query for a route.
type routeAnswer struct {
	oif     int      // the interface, of a packet that leaves
	end     string   // the port or NIC that the interface is
	segment *segment // what the switch does with the packet, if the destination is an identifier of its own
}

// requestRoute sends RTM_GETROUTE (rtnetlink(7)) with the flow's transport header.
func (q routeQuery) requestRoute(iif int) (answer routeAnswer, err error) {
	req := nl.NewNetlinkRequest(syscall.RTM_GETROUTE, syscall.NLM_F_REQUEST)
	msg := &nl.RtMsg{}
	msg.Family, msg.Dst_len, msg.Src_len = uint8(familyOf(q.dst).netlink), uint8(q.dst.BitLen()), uint8(q.src.BitLen())
	req.AddData(msg)
	attr := func(kind int, value []byte) { req.AddData(nl.NewRtAttr(kind, value)) }
	attr(syscall.RTA_DST, q.dst.AsSlice())
	attr(syscall.RTA_SRC, q.src.AsSlice())
	if iif != 0 {
		attr(syscall.RTA_IIF, binary.NativeEndian.AppendUint32(nil, uint32(iif)))
	}
	// The kernel refuses others than TCP, UDP and ICMP here: rtm_getroute_parse_ip_proto of net/ipv4/fib_frontend.c.
	if q.proto != syscall.IPPROTO_IPV6 {
		attr(unix.RTA_IP_PROTO, []byte{q.proto})
		attr(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, q.sport))
		attr(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, q.dport))
	}
	answers, err := req.Execute(syscall.NETLINK_ROUTE, syscall.RTM_NEWROUTE)
	if err != nil {
		return answer, fmt.Errorf("asking for the route: %w", err)
	}
	for _, a := range answers {
		attrs, err := nl.ParseRouteAttr(a[min(len(a), syscall.SizeofRtMsg):])
		if err != nil {
			return answer, fmt.Errorf("reading the kernel's route: %w", err)
		}
		var encap []byte
		isSegment := false
		for _, at := range attrs {
			switch kind := at.Attr.Type & attrKindMask; {
			case kind == syscall.RTA_OIF && len(at.Value) >= 4:
				answer.oif = int(binary.NativeEndian.Uint32(at.Value))
			case kind == attrEncap:
				encap = at.Value
			case kind == attrEncapType && len(at.Value) >= 2:
				isSegment = binary.NativeEndian.Uint16(at.Value) == encapSegment
			}
		}
		if isSegment {
			answer.segment = &segment{}
			if err := answer.segment.Decode(encap); err != nil {
				return answer, fmt.Errorf("reading the kernel's route: %w", err)
			}
		}
		if answer.oif != 0 {
			return answer, nil
		}
	}
	return answer, fmt.Errorf("the kernel's route names no interface")
}
