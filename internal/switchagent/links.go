package switchagent

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/graylink/graylink/internal/fabric"
)

// Link represents an interface of the switch with the kernel's counters of it.
type Link struct {
	Number   uint32
	Name     string
	device   string // the kernel's name
	MAC      net.HardwareAddr
	MTU      int
	Up       bool // configured to be up
	Running  bool
	Changes  *uint32                   // changes of the carrier
	Counters *netlink.LinkStatistics64 // nil means that the kernel reported none
}

// Linux, include/uapi/linux/if_link.h.
const iflaCarrierChanges = 35

// The values rtmGetLink and rtmNewLink are from Linux, include/uapi/linux/rtnetlink.h.
const (
	rtmNewLink = 16
	rtmGetLink = 18
	dump       = 0x300
	linkHeader = 16 // size of an ifinfomsg in octets
)

// ListLinks lists the interfaces of the network namespace except for the loopback. If aliases is true, interfaces that
// have an alias are named by it.
func ListLinks(aliases bool) ([]Link, error) {
	req := nl.NewNetlinkRequest(rtmGetLink, dump)
	req.AddData(nl.NewIfInfomsg(0))
	messages, err := req.Execute(0, rtmNewLink)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []Link
	for _, m := range messages {
		l, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 {
			continue
		}
		device := a.Name
		if aliases && a.Alias != "" {
			a.Name = a.Alias
		}
		link := Link{Number: uint32(a.Index), Name: a.Name, device: device, MAC: a.HardwareAddr, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0,
			Running: a.OperState == netlink.OperUp, Counters: (*netlink.LinkStatistics64)(a.Statistics)}
		if attrs, err := nl.ParseRouteAttr(m[linkHeader:]); err == nil {
			for _, at := range attrs {
				if at.Attr.Type == iflaCarrierChanges && len(at.Value) == 4 {
					n := nl.NativeEndian().Uint32(at.Value)
					link.Changes = &n
				}
			}
		}
		out = append(out, link)
	}
	return out, nil
}

// listAddresses returns the addresses of the interfaces, and those of the neighbours beyond them, by interface number.
func listAddresses() (own map[uint32][]netip.Prefix, beyond map[uint32][]fabric.LearnedAddress, err error) {
	own, beyond = map[uint32][]netip.Prefix{}, map[uint32][]fabric.LearnedAddress{}
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !a.IP.IsLinkLocalUnicast() {
			ones, _ := a.Mask.Size()
			own[uint32(a.LinkIndex)] = append(own[uint32(a.LinkIndex)], netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	neighbours, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbours {
		if ip, ok := netip.AddrFromSlice(n.IP); ok && n.HardwareAddr != nil && !n.IP.IsLinkLocalUnicast() && !n.IP.IsMulticast() && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE|netlink.NUD_NOARP) == 0 {
			beyond[uint32(n.LinkIndex)] = append(beyond[uint32(n.LinkIndex)], fabric.LearnedAddress{Address: ip.Unmap(), MAC: n.HardwareAddr.String()})
		}
	}
	return own, beyond, nil
}

// Queue represents the queue of packets that a port is to send.
type Queue struct {
	Octets, Packets   uint32
	Drops, Overlimits uint32
}

// listQueues returns the root queues of the interfaces by interface number. An interface that reports no queue has
// none.
func listQueues() (map[uint32]Queue, error) {
	list, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	out := map[uint32]Queue{}
	for _, q := range list {
		a := q.Attrs()
		if a.Parent != netlink.HANDLE_ROOT || a.Statistics == nil || a.Statistics.Queue == nil {
			continue
		}
		s := a.Statistics.Queue
		out[uint32(a.LinkIndex)] = Queue{s.Backlog, s.Qlen, s.Drops, s.Overlimits}
	}
	return out, nil
}

// linkSpeeds returns the negotiated rates of ports in bytes per second. Ports whose rate is not known are absent.
func linkSpeeds(links []Link) map[string]float64 {
	out := map[string]float64{}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return out
	}
	defer e.Close()
	for _, l := range links {
		if s, err := e.CmdGetMapped(l.device); err == nil && l.Running {
			if v, ok := s["speed"]; ok && v > 0 && v < unknownSpeed {
				out[l.Name] = float64(v) * 1e6 / 8
			}
		}
	}
	return out
}

// unknownSpeed is ethtool's SPEED_UNKNOWN in its lower 16 bits. Drivers report it in 16 or 32 bits.
const unknownSpeed = 0xffff
