package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
)

// The kernel's numbers are from Linux, include/uapi/linux/rtnetlink.h and nexthop.h.
const (
	routeHeader   = 12 // size of a struct rtmsg in octets
	hopHeader     = 8  // of a struct rtnexthop
	nextHopHeader = 8  // of a struct nhmsg
	groupMember   = 8  // of a struct nexthop_grp

	attrNextHopID  = 30     // RTA_NH_ID
	attrTable      = 15     // RTA_TABLE
	attrID         = 1      // NHA_ID
	attrGroup      = 2      // NHA_GROUP
	attrBlackhole  = 4      // NHA_BLACKHOLE
	attrOutPort    = 5      // NHA_OIF
	flagDead       = 1      // RTNH_F_DEAD
	attrTypeMask   = 0x3fff // without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER
	typeProhibit   = 8      // RTN_PROHIBIT
	nothing        = 4      // size of an attribute's header
	maxGroupLevels = 4      // a group's members are no groups themselves, so this is ample
)

// route represents one route of the main table, as the kernel reports it.
type route struct {
	prefix   netip.Prefix
	priority uint32
	protocol uint8
	discards bool     // blackhole, unreachable or prohibit
	ports    []uint32 // numbers of the interfaces of next hops that are not dead
	nextHop  uint32   // identifier of a next hop or group, if the kernel reports no next hops with the route
}

// attributes calls f with each attribute of a message. It returns an error if the message is cut off.
func attributes(b []byte, f func(kind int, value []byte) error) error {
	for len(b) >= nothing {
		length := int(binary.NativeEndian.Uint16(b))
		if length < nothing || length > len(b) {
			return fmt.Errorf("attribute of %d octets: %d to %d are expected", length, nothing, len(b))
		}
		if err := f(int(binary.NativeEndian.Uint16(b[2:]))&attrTypeMask, b[nothing:length]); err != nil {
			return err
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return nil
}

// number returns the value of an attribute of four octets.
func number(name string, value []byte) (uint32, error) {
	if len(value) != 4 {
		return 0, fmt.Errorf("%s of %d octets: 4 are expected", name, len(value))
	}
	return binary.NativeEndian.Uint32(value), nil
}

// parseRoute parses the payload of an RTM_NEWROUTE or RTM_DELROUTE. ok is false for routes that say nothing of how packets
// of the fabric leave: those of other tables, for one type of service, of multicast, and copies for one destination.
func parseRoute(b []byte) (r route, ok bool, err error) {
	if len(b) < routeHeader {
		return r, false, fmt.Errorf("route of %d octets: %d or more are expected", len(b), routeHeader)
	}
	family, bits, source, tos, kind := b[0], int(b[1]), b[2], b[3], b[7]
	table, flags := uint32(b[4]), binary.NativeEndian.Uint32(b[8:])
	r.protocol = b[5]
	addr := netip.IPv4Unspecified()
	if family == syscall.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	out, multipath := uint32(0), []byte(nil)
	err = attributes(b[routeHeader:], func(kind int, value []byte) (err error) {
		switch kind {
		case syscall.RTA_DST:
			var valid bool
			if addr, valid = netip.AddrFromSlice(value); !valid {
				return fmt.Errorf("destination of %d octets: 4 or 16 are expected", len(value))
			}
		case syscall.RTA_OIF:
			out, err = number("interface", value)
		case syscall.RTA_PRIORITY:
			r.priority, err = number("priority", value)
		case attrTable:
			table, err = number("table", value)
		case attrNextHopID:
			r.nextHop, err = number("next hop", value)
		case syscall.RTA_MULTIPATH:
			multipath = value
		}
		return err
	})
	if err != nil {
		return r, false, err
	}
	if r.prefix = netip.PrefixFrom(addr, bits); !r.prefix.IsValid() {
		return r, false, fmt.Errorf("destination %s/%d: a prefix is expected", addr, bits)
	}
	if table != syscall.RT_TABLE_MAIN || source != 0 || tos != 0 || flags&syscall.RTM_F_CLONED != 0 || addr.IsMulticast() || addr.IsLinkLocalUnicast() {
		return r, false, nil
	}
	switch {
	case kind == syscall.RTN_BLACKHOLE || kind == syscall.RTN_UNREACHABLE || kind == typeProhibit:
		r.discards, r.nextHop = true, 0
		return r, true, nil
	case kind != syscall.RTN_UNICAST:
		return r, false, nil
	case multipath != nil:
		r.nextHop = 0
		r.ports, err = parseHops(multipath)
		return r, err == nil, err
	case out != 0:
		r.nextHop = 0
		if flags&flagDead == 0 {
			r.ports = []uint32{out}
		}
	}
	return r, true, nil
}

// parseHops parses an RTA_MULTIPATH, and returns the interfaces of the next hops that are not dead.
func parseHops(b []byte) (ports []uint32, err error) {
	for len(b) > 0 {
		if len(b) < hopHeader {
			return nil, fmt.Errorf("next hop of %d octets: %d or more are expected", len(b), hopHeader)
		}
		length := int(binary.NativeEndian.Uint16(b))
		if length < hopHeader || length > len(b) {
			return nil, fmt.Errorf("next hop of %d octets: %d to %d are expected", length, hopHeader, len(b))
		}
		if b[2]&flagDead == 0 {
			ports = append(ports, binary.NativeEndian.Uint32(b[4:]))
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return ports, nil
}

// nextHop represents a next hop, or a group of them.
type nextHop struct {
	id      uint32
	port    uint32 // number of the interface; 0 if it discards, is dead, or is a group
	discard bool
	members []uint32
}

// parseNextHop parses the payload of an RTM_NEWNEXTHOP.
func parseNextHop(b []byte) (n nextHop, err error) {
	if len(b) < nextHopHeader {
		return n, fmt.Errorf("next hop of %d octets: %d or more are expected", len(b), nextHopHeader)
	}
	flags := binary.NativeEndian.Uint32(b[4:])
	err = attributes(b[nextHopHeader:], func(kind int, value []byte) (err error) {
		switch kind {
		case attrID:
			n.id, err = number("identifier", value)
		case attrOutPort:
			n.port, err = number("interface", value)
		case attrBlackhole:
			n.discard = true
		case attrGroup:
			if len(value)%groupMember != 0 {
				return fmt.Errorf("group of %d octets: a multiple of %d is expected", len(value), groupMember)
			}
			for ; len(value) > 0; value = value[groupMember:] {
				n.members = append(n.members, binary.NativeEndian.Uint32(value))
			}
		}
		return err
	})
	if flags&flagDead != 0 {
		n.port = 0
	}
	return n, err
}

// resolve sets the ports of a route from the next hop or group that it names.
func (r *route) resolve(all map[uint32]nextHop) {
	id := r.nextHop
	if id == 0 {
		return
	}
	r.nextHop = 0
	var add func(id uint32, level int)
	add = func(id uint32, level int) {
		n := all[id]
		r.discards = r.discards || n.discard
		if n.port != 0 {
			r.ports = append(r.ports, n.port)
		}
		if level < maxGroupLevels {
			for _, m := range n.members {
				add(m, level+1)
			}
		}
	}
	add(id, 0)
}
