package fabricswitch

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/graylink/graylink/internal/fabric"
)

// Link is an interface of the switch, and what the kernel counts of it.
type Link struct {
	Number   uint32
	Name     string
	device   string // the kernel's name
	MAC      net.HardwareAddr
	MTU      int
	Up       bool // administratively
	Running  bool
	Changes  *uint32                   // of carrier
	Counters *netlink.LinkStatistics64 // nil: not told
}

// Linux, include/uapi/linux/if_link.h.
const iflaCarrierChanges = 35

// rtmGetLink and rtmNewLink: Linux, include/uapi/linux/rtnetlink.h.
const (
	rtmNewLink = 16
	rtmGetLink = 18
	dump       = 0x300
	linkHeader = 16 // octets of an ifinfomsg
)

// ListLinks lists the interfaces of the namespace, but for the loopback; by their
// aliases, where they have some, if asked.
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

// listAddresses are those of the interfaces, and of who was heard beyond them.
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

// queue is what waits at a port's way out.
type queue struct {
	octets, packets   uint32
	drops, overlimits uint32
}

// listQueues are the root queues of the interfaces; one that tells nothing has none.
func listQueues() (map[uint32]queue, error) {
	list, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	out := map[uint32]queue{}
	for _, q := range list {
		a := q.Attrs()
		if a.Parent != netlink.HANDLE_ROOT || a.Statistics == nil || a.Statistics.Queue == nil {
			continue
		}
		s := a.Statistics.Queue
		out[uint32(a.LinkIndex)] = queue{s.Backlog, s.Qlen, s.Drops, s.Overlimits}
	}
	return out, nil
}

// linkSpeeds are the negotiated rates of ports, bytes per second; ports without are
// absent.
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

// unknownSpeed is ethtool's SPEED_UNKNOWN, of 16 or 32 bits.
const unknownSpeed = 0xffff
