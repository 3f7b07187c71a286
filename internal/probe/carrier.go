package probe

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
	"github.com/graylink/graylink/internal/unix"
)

// Flows whose path is chosen (docs/adr/0033-source-routing.md). The rules:
//
//  1. A flow with a carrier sends each packet within a packet to the carrier, from one socket per NIC. The path of a reply is that
//     of the responder's own configuration, and its destination is the prober that the probe authenticated: nothing in a probe
//     chooses it. What a trace sends takes the same path (see chosentrace.go).
//  2. If the socket cannot be opened, the packets take the paths that switches choose. The flow has no chosen path then, and is
//     traced.
//  3. A switch that does not know an identifier answers with ICMPv6 "destination unreachable". Until refusedFor after the last such
//     answer, all flows are refused that come to that switch by the same identifiers and want the same: switches limit how often
//     they answer. Refused probes count as such, and what is missing of a flow while it is refused is not lost.

// refusedFor is the time that a refusal holds. Linux answers each sender once a second (net.ipv6.icmp.ratelimit).
const refusedFor = 3 * time.Second

// maxRefusals bounds the refusals that are known at a time. Of more, the oldest are forgotten.
const maxRefusals = 64

// maxCarried is the longest payload by UDP of a packet within a packet.
const maxCarried = unix.MaxDatagram - srv6.InnerHeaders

// outgoing represents a packet that is being written.
type outgoing struct {
	from    *socket // of the flow
	via     *socket // that sends it
	carrier netip.Addr
	packet  []byte // memory for all of it
	payload []byte // memory for its payload by UDP
}

// beginPacket returns the memory for the next packet of a flow over s, by a carrier if that is valid and can be used.
func (o *outbox) beginPacket(s *socket, carrier netip.Addr) (g outgoing, err error) {
	g = outgoing{from: s, via: s}
	if carrier.IsValid() && !s.rdma && o.ports.udp.outer != nil {
		g.via, g.carrier = o.ports.udp.outer, carrier
	}
	if g.packet, err = o.outBuffer(g.via); err != nil {
		return g, err
	}
	g.payload = g.packet
	if g.via != s {
		g.payload = g.packet[srv6.InnerHeaders:]
	}
	return g, nil
}

// commitPacket queues a packet with n octets of payload, and returns its number.
func (g *outgoing) commitPacket(n int, dst netip.AddrPort, tos uint8) (id uint32) {
	return g.commitLimited(n, dst, tos, 0)
}

// commitLimited queues a packet with a hop limit, or with that of the system if it is 0. By a carrier, the limit is that of the
// outer header, and that of the packet inside is used up at the switch that takes the outer header off.
func (g *outgoing) commitLimited(n int, dst netip.AddrPort, tos, ttl uint8) (id uint32) {
	if g.via == g.from {
		return g.via.link.Commit(g.via.Endpoint, n, dst, tos, ttl)
	}
	n += srv6.InnerHeaders
	srv6.PutInner(g.packet[:n], g.from.LocalAddr(), dst, tos)
	if ttl > 0 {
		srv6.LimitInner(g.packet, 1)
	}
	return g.via.link.Commit(g.via.Endpoint, n, netip.AddrPortFrom(g.carrier, 0), tos, ttl)
}

// carriedRate returns the packets per second of the NIC whose path is chosen.
func (i *identity) carriedRate() (perSecond float64) {
	for _, list := range [][]EdgeConfig{i.node.Edges, i.node.Answers} {
		for k := range list {
			if e := &list[k]; e.Carrier.IsValid() && (e.Src == i.cfg.NIC || e.Dst == i.cfg.NIC) {
				perSecond += 1 / e.Cadence.Seconds()
			}
		}
	}
	return perSecond
}

// applyCarriers opens the socket for packets whose path is chosen if the configuration has some, and closes it if it has none.
func (p *ports) applyCarriers() {
	rate := p.self.carriedRate()
	switch {
	case rate == 0 && p.udp.outer != nil:
		if err := p.closeSocket(p.udp.outer); err != nil {
			p.log.Warn("cannot close the socket of chosen paths", "err", err)
		}
		p.udp.outer = nil
	case rate > 0 && p.udp.outer == nil && p.udp.reflector != nil:
		if err := p.openOuter(); err != nil {
			p.log.Warn("cannot choose the paths of packets; switches choose them", "err", err)
		}
	}
	if p.udp.outer != nil {
		p.udp.outer.reserveRefs(int(2 * rate))
	}
}

// openOuter opens the socket for packets whose path is chosen.
func (p *ports) openOuter() error {
	u, err := p.wire.deps.Network.OpenOuter(p.self.cfg.Address, unix.UDPOptions{Hardware: p.udp.clock != nil})
	if err != nil {
		return err
	}
	s := &socket{Endpoint: u, link: p.udp.link, name: "carrier", refs: make([]sentRef, smallestRefs)}
	s.refsOwner = s
	if err := p.wire.poll.addSocket(s, p.reader); err != nil {
		_ = u.Close() // the first error says more
		return err
	}
	p.udp.outer = s
	return nil
}

// choosesPath returns the carrier that packets with it in their configuration are sent by. It is invalid if switches choose.
func (p *ports) choosesPath(carrier netip.Addr) netip.Addr {
	if p.udp.outer == nil {
		return netip.Addr{}
	}
	return carrier
}

// refusal represents what a switch answered that does not know an identifier.
type refusal struct {
	way  []srv6.SID // the identifiers of a carrier up to the one that is not known
	from netip.Addr // the switch's address
	at   int64      // time of the last answer, monotonic nanoseconds
}

// RefusalCount counts the answers of one switch about one identifier, and the flows that it refuses now.
type RefusalCount struct {
	From    netip.Addr
	SID     srv6.SID
	Answers uint64
	Flows   int
}

// refusals are the refusals that a NIC knows.
type refusals struct {
	now    []refusal
	counts []RefusalCount
}

// hear records that a switch refused a packet by a carrier, of which rest was left. It returns false if rest is no part of it.
func (r *refusals) hear(carrier, rest, from netip.Addr, mono int64) bool {
	block, all, err := srv6.DecodeCarrier(carrier)
	if err != nil {
		return false
	}
	of, left, err := srv6.DecodeCarrier(rest)
	if err != nil || of != block || len(left) > len(all) || !slices.Equal(left, all[len(all)-len(left):]) {
		return false
	}
	way := all[:len(all)-len(left)+1]
	r.countAnswer(from, left[0])
	r.now = slices.DeleteFunc(r.now, func(o refusal) bool { return mono-o.at >= int64(refusedFor) })
	if i := slices.IndexFunc(r.now, func(o refusal) bool { return o.from == from && slices.Equal(o.way, way) }); i >= 0 {
		r.now[i].at = mono
		return true
	}
	if len(r.now) == maxRefusals {
		r.now = slices.Delete(r.now, 0, 1)
	}
	r.now = append(r.now, refusal{way: way, from: from, at: mono})
	return true
}

// countAnswer counts an answer, unless there are too many switches and identifiers.
func (r *refusals) countAnswer(from netip.Addr, sid srv6.SID) {
	i := slices.IndexFunc(r.counts, func(c RefusalCount) bool { return c.From == from && c.SID == sid })
	switch {
	case i >= 0:
		r.counts[i].Answers++
	case len(r.counts) < maxRefusals:
		r.counts = append(r.counts, RefusalCount{From: from, SID: sid, Answers: 1})
	}
}

// of returns the refusal that holds for packets by a carrier, or nil.
func (r *refusals) of(carrier netip.Addr, mono int64) *refusal {
	for i := range r.now {
		o := &r.now[i]
		if mono-o.at < int64(refusedFor) && o.isWayOf(carrier) {
			return o
		}
	}
	return nil
}

// isWayOf reports whether a carrier begins with the identifiers of the refusal.
func (r *refusal) isWayOf(carrier netip.Addr) bool {
	octets := carrier.As16()
	for i, s := range r.way {
		at := (srv6.BlockBits + i*srv6.SIDBits) / 8
		if binary.BigEndian.Uint16(octets[at:]) != uint16(s) {
			return false
		}
	}
	return true
}

// report returns the refusal in the terms of the API.
func (r *refusal) report(w *timeline) *fabric.Refusal {
	if r == nil {
		return nil
	}
	return &fabric.Refusal{From: r.from, SID: uint16(r.way[len(r.way)-1]), At: w.base.Add(time.Duration(r.at))}
}

// copyRefusals copies the counts of refusals.
func (n *nic) copyRefusals(s *NICStats) {
	s.Refusals = slices.Clone(n.refusals.counts)
	if len(s.Refusals) == 0 {
		return
	}
	now := n.wire.monoTime()
	add := func(carrier netip.Addr) {
		if !carrier.IsValid() {
			return
		}
		if r := n.refusals.of(carrier, now); r != nil {
			sid := r.way[len(r.way)-1]
			if i := slices.IndexFunc(s.Refusals, func(c RefusalCount) bool { return c.From == r.from && c.SID == sid }); i >= 0 {
				s.Refusals[i].Flows++
			}
		}
	}
	for _, e := range n.sender.edges {
		add(e.cfg.Carrier)
	}
	for _, p := range n.peers {
		for _, a := range p.answers {
			add(a.cfg.Carrier)
		}
	}
}

// handleRefusal processes an ICMP error about a packet whose path was chosen. It returns false if the error is another one.
func (n *nic) handleRefusal(r *unix.Report) bool {
	if r.Kind != unix.ReportICMP6 || r.Type != icmp6Unreachable {
		return false
	}
	src, dst, ok := srv6.QuotedInner(r.Data)
	if !ok || src.Addr() != n.cfg.Address {
		return false
	}
	p := n.peers[dst.Addr()]
	if p == nil {
		return false
	}
	if src.Port() == n.node.Stamp.Port {
		a := p.answers[n.identity.flowOf(dst.Port())]
		return a != nil && n.refusals.hear(a.cfg.Carrier, r.Dst.Addr(), r.Offender, n.wire.monoTime())
	}
	e := p.edges[n.identity.flowOf(src.Port())]
	if e == nil || len(r.Data) < srv6.InnerHeaders+4 {
		return false
	}
	// Only who has seen a probe can quote one that waits for its answer.
	slot := e.slotOf(binary.BigEndian.Uint32(r.Data[srv6.InnerHeaders:]))
	return slot != nil && slot.state == slotWaiting && n.refusals.hear(e.cfg.Carrier, r.Dst.Addr(), r.Offender, n.wire.monoTime())
}

// refusalOf returns the refusal that holds for packets by a carrier, or nil. The caller holds mu.
func (n *nic) refusalOf(carrier netip.Addr, now int64) *fabric.Refusal {
	if !carrier.IsValid() {
		return nil
	}
	return n.refusals.of(carrier, now).report(&n.wire.timeline)
}

// settleRefusals sets which edges are refused now.
func (sd *sender) settleRefusals(now int64) {
	if len(sd.refusals.now) == 0 && !sd.anyRefused {
		return
	}
	sd.anyRefused = false
	for _, e := range sd.edges {
		was := e.refused
		e.refused = e.cfg.Carrier.IsValid() && sd.refusals.of(e.cfg.Carrier, now) != nil
		// An account that waits for a reply goes on with the first one: it may be to a probe of before this moment.
		if (e.refused || was) && !e.losses.interrupted {
			e.losses.interrupt(e.seq)
		}
		sd.anyRefused = sd.anyRefused || e.refused
	}
}
