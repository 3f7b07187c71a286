package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Congestion in the lab is real: a port is shaped to a rate, and hosts send more
// than that through it. What waits, waits in the kernel's queue.
const (
	// shapedRate is the port's, octets per second: 20 Mbit/s. Probes need a
	// twentieth of that.
	shapedRate = 20_000_000 / 8
	// shapedBurst lets a full-sized packet pass, octets.
	shapedBurst = 3200
	// crossLoad is the load of the hosts' traffic, relative to the rate: the queue is full nearly all of the time,
	// and one packet in twenty is lost.
	crossLoad = 1.05
	// crossPacket is the size of cross traffic's packets on the wire, octets.
	crossPacket = 1442
	// crossFlows are as many flows as share a congested port, if as many can be found.
	crossFlows = 8
	// crossTries bounds the search for flows that ECMP sends through the port.
	crossTries = 4000
	// crossPort is where cross traffic goes: discard, RFC 863.
	crossPort = 9
	// crossTick is how often it is sent.
	crossTick = time.Millisecond
)

// resolveCongest finds the port that leaves a switch; resolveIncast that towards a NIC.
func (x *index) resolveCongest(af *ActiveFault) error {
	if _, _, ok := fabric.SplitPort(af.At); !ok || x.byEnd[af.At] == nil {
		return fmt.Errorf("%q is not a port of a switch of the lab: %s fills the queue of one", af.At, af.Kind)
	}
	if x.spraysTo(af.At) {
		return fmt.Errorf("%s at %q: hosts cannot fill this port, because switches spray packets over all ports to their destinations", af.Kind, af.At)
	}
	af.setShaping(af.At, x.byEnd[af.At].Peer)
	return nil
}

func (x *index) resolveIncast(af *ActiveFault) error {
	nic := x.graph.NIC(af.At)
	if nic == nil || x.graph.PeerOf(nic.ID()) == "" {
		return fmt.Errorf("%q is not a NIC of the lab with a link: %s is at a NIC", af.At, af.Kind)
	}
	af.At = nic.ID()
	af.setShaping(x.graph.PeerOf(af.At), af.At)
	return nil
}

func (af *ActiveFault) setShaping(from, to string) {
	af.Mechanism, af.ShapedAt, af.Home = "traffic", from, fabric.OwnerOf(from)
	af.Direction = fabric.Direction{From: from, To: to}.String()
	af.Exclusive = "delay " + from
}

// setShaper gives a port a rate, and a queue that takes so long to leave when it
// is full; 0 takes both away.
func (x *index) setShaper(end string, full time.Duration) error {
	return x.onInterface(end, func(h *netlink.Handle, l netlink.Link) error {
		attrs := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		if full == 0 {
			err := h.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
			if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EINVAL) {
				return nil
			}
			return err
		}
		limit := max(uint32(full.Seconds()*shapedRate), 2*crossPacket)
		return h.QdiscReplace(&netlink.Tbf{QdiscAttrs: attrs, Rate: shapedRate, Limit: limit, Buffer: uint32(netlink.TickInUsec() * shapedBurst * 1e6 / shapedRate)})
	})
}

// crossFlow is a flow of cross traffic.
type crossFlow struct {
	node  string
	from  netip.AddrPort
	to    netip.Addr
	owner string // of to
}

// crossFlows finds flows whose packets cross one direction of a link, of as many
// hosts as there are.
func (x *index) crossFlows(ctx context.Context, d fabric.Direction) ([]crossFlow, error) {
	rng := rand.New(rand.NewPCG(1, 1))
	nics := x.graph.NICIDs()
	var out []crossFlow
	load := map[string]int{} // flows of a host
	walk := &Walk{x: x, ids: map[string]map[string]int{}}
	for try := 0; try < crossTries && len(out) < crossFlows; try++ {
		src, dst := nics[rng.IntN(len(nics))], nics[rng.IntN(len(nics))]
		if fabric.IsNIC(d.To) {
			dst = d.To
		}
		owner := fabric.OwnerOf(src)
		// One flow of each host first, then two.
		if owner == fabric.OwnerOf(dst) || load[owner] > try/(crossTries/4) {
			continue
		}
		f := crossFlow{node: owner, from: netip.AddrPortFrom(x.graph.ProbeAddress(src), uint16(30000+rng.IntN(2000))), to: x.graph.ProbeAddress(dst), owner: fabric.OwnerOf(dst)}
		p, err := walk.kernelPath(ctx, f.from.Addr(), f.to, syscall.IPPROTO_UDP, f.from.Port(), crossPort)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			continue // planes are not joined
		}
		for _, on := range p.LinkDirections(src, dst) {
			if on == d {
				out = append(out, f)
				load[owner]++
				break
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no flow between two hosts crosses %s", d)
	}
	return out, nil
}

// crossTraffic sends from hosts through a port, a little more than it lets pass,
// until ctx ends. It is the body of the helper of congest and incast.
func crossTraffic(ctx context.Context, x *index, d fabric.Direction, started func() error) error {
	flows, err := x.crossFlows(ctx, d)
	if err != nil {
		return err
	}
	type sender struct {
		conn *net.UDPConn
		to   netip.AddrPort
	}
	var senders []sender
	sinks := map[netip.Addr]bool{}
	listen := func(node string, at netip.AddrPort) (*net.UDPConn, error) {
		var c *net.UDPConn
		err := unix.InNetns(x.byElement[node].Netns, func() (err error) {
			c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			return err
		})
		return c, err
	}
	for _, f := range flows {
		c, err := listen(f.node, f.from)
		if err != nil {
			return fmt.Errorf("cross traffic from %s: %w", f.from, err)
		}
		defer c.Close()
		senders = append(senders, sender{c, netip.AddrPortFrom(f.to, crossPort)})
		if !sinks[f.to] {
			// A socket receives the traffic, though nothing reads it. Without it, every packet would be answered with
			// an error that the port is closed.
			sinks[f.to] = true
			sink, err := listen(f.owner, netip.AddrPortFrom(f.to, crossPort))
			if err != nil {
				return fmt.Errorf("cross traffic to %s: %w", f.to, err)
			}
			defer sink.Close()
		}
	}
	if err := started(); err != nil {
		return err
	}
	payload := make([]byte, crossPacket-x.family().headerLen)
	tick := time.NewTicker(crossTick)
	defer tick.Stop()
	sent, began := 0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			due := int(now.Sub(began).Seconds() * crossLoad * shapedRate / crossPacket)
			if due-sent > crossFlows*10 {
				sent = due - crossFlows*10 // what a stalled sender missed is not made up for
			}
			for ; sent < due; sent++ {
				s := &senders[sent%len(senders)]
				// A route may be missing for a moment: the packet is not sent.
				_, _ = s.conn.WriteToUDPAddrPort(payload, s.to)
			}
		}
	}
}
