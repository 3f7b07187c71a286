package probe

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
)

// In-band signals (CSIG, docs/csig.md). Flows of class fabric.ClassCSIG have them. The rules, which the tests are named after:
//
//  1. Probes with an odd sequence number carry a tag, and the others none: both take the same path.
//  2. A reply carries a tag if and only if its request arrived with one.
//  3. The request's tag comes back in a TLV of the reply, as the reflector saw it. A reflector without signals brings none back, and
//     its replies count like any.
//  4. A path that plain probes come back over and tagged ones do not is not supported. Nothing is tagged there, except that it is tried
//     again every trialPause. The switch that drops tagged packets is looked for first (tagdrops.go).
//  5. Only tags of packets that count are used.

// Signals says how an engine handles in-band signals.
type Signals struct {
	Profile *csig.Profile
	// Format is that of the tags of probes, and Kinds are their signals, in turns. With csig.None nothing is tagged.
	Format csig.Format
	Kinds  []csig.Signal
	// Flows is the number of flows of a NIC that are observed, in both directions together; 0 stands for observe.DefaultFlows.
	Flows int
	// OpenPort opens what tags and reads the packets of a NIC. A simulated engine does not use it, since its packets have their tags.
	OpenPort func(at netip.Addr, o SignalPortOptions) (SignalPort, error)
}

// SignalPortOptions describe the packets of a NIC to what tags them.
type SignalPortOptions struct {
	StampPort     uint16 // of the reflectors
	Authenticated bool   // packets are authenticated (RFC 8972 section 3)
}

// tagOf returns the tag with which a probe of a flow with signals leaves: none if its sequence number is even.
func (s *Signals) tagOf(seq uint32) csig.Tag {
	if s.Format == csig.None || seq&1 == 0 {
		return csig.Tag{}
	}
	return csig.NewTag(s.Format, s.Kinds[int(seq>>1)%len(s.Kinds)])
}

// SignalPort puts in-band signals into the packets of a NIC, and returns those with which packets arrived.
type SignalPort interface {
	// TagFlows replaces the flows of which every probe with an odd sequence number is sent with a tag.
	TagFlows(flows []csig.TaggedFlow) error
	// ReadTags takes in the tags that have arrived since. It is called after packets were read from sockets and before ArrivedTag.
	ReadTags() error
	// ArrivedTag returns, once, the tag with which a packet arrived that was read from a socket. ok is false if it had none. seq is
	// the number in the packet's first four octets.
	ArrivedTag(from, to netip.AddrPort, seq uint32) (s csig.ArrivedSignal, ok bool)
	Close() error
}

// Lengths of trials of paths: replies to plain probes in one, and the pause after one that failed.
const (
	trialReplies = 20
	trialPause   = int64(300e9) // monotonic nanoseconds
)

// signalTrial decides whether a path carries tags.
type signalTrial struct {
	supported     observe.Support // as the last trial that ended says
	plain, tagged int             // replies since the trial began
	pausedUntil   int64           // nothing is tagged before, monotonic nanoseconds; 0: there is no pause
	// locating states that the switch that drops tagged packets is looked for. Probes are tagged as long.
	locating  bool
	looks     int        // for it, so far
	droppedAt netip.Addr // of that switch; invalid if it is not known
}

// isTagged reports whether probes carry tags.
func (t *signalTrial) isTagged() bool { return t.pausedUntil == 0 || t.locating }

// countReply counts a reply that arrived at a time, and reports whether a pause begins with it.
func (t *signalTrial) countReply(tagged bool, mono int64) (pause bool) {
	switch {
	case t.pausedUntil != 0:
		return false
	case tagged:
		t.tagged++
		return false
	}
	if t.plain++; t.plain < trialReplies {
		return false
	}
	t.droppedAt = netip.Addr{}
	if t.supported = observe.Supported; t.tagged == 0 {
		t.supported = observe.Unsupported
		t.pausedUntil, t.locating, t.looks = mono+trialPause, true, 0
	}
	t.plain, t.tagged = 0, 0
	return t.pausedUntil != 0
}

// endPause reports whether the pause of a path is over, and begins another trial then.
func (t *signalTrial) endPause(mono int64) bool {
	if t.pausedUntil == 0 || mono < t.pausedUntil {
		return false
	}
	t.pausedUntil, t.locating = 0, false
	return true
}

// edgeSignals is what the in-band signals of an edge said in both directions.
type edgeSignals struct {
	trial signalTrial
	flows [directions]*observe.Flow // nil if there are too many
}

// nicSignals has the in-band signals of a NIC. A nil one handles none.
type nicSignals struct {
	*Signals
	self     *identity
	port     SignalPort // nil in a simulated fabric, or while the NIC has no UDP
	observer *observe.Observer
	// authenticated is what the port was opened with.
	authenticated bool
}

// newNICSignals returns the signals of a NIC, or nil if the engine handles none.
func newNICSignals(s *Signals, self *identity) *nicSignals {
	if s == nil {
		return nil
	}
	return &nicSignals{Signals: s, self: self, observer: observe.New(s.Profile, observe.Options{Flows: s.Flows})}
}

// openPort opens the port of the NIC's address.
func (x *nicSignals) openPort() (err error) {
	if x == nil || x.OpenPort == nil || !x.self.cfg.Address.IsValid() {
		return nil
	}
	x.authenticated = x.hasKeys()
	x.port, err = x.OpenPort(x.self.cfg.Address, SignalPortOptions{StampPort: x.self.node.Stamp.Port, Authenticated: x.authenticated})
	return err
}

// hasKeys reports whether the node shares keys with its peers, which has all packets authenticated.
func (x *nicSignals) hasKeys() bool {
	return slices.ContainsFunc(x.self.node.Peers, func(p PeerConfig) bool { return len(p.Keys) > 0 })
}

// applyConfig opens the port again if packets are authenticated by now, or no longer.
func (x *nicSignals) applyConfig() error {
	if x == nil || x.port == nil || x.authenticated == x.hasKeys() {
		return nil
	}
	return errors.Join(x.closePort(), x.openPort())
}

// closePort closes the port.
func (x *nicSignals) closePort() error {
	if x == nil || x.port == nil {
		return nil
	}
	p := x.port
	x.port = nil
	return p.Close()
}

// readsTags reports whether the NIC sees the tags of packets with sockets.
func (x *nicSignals) readsTags() bool { return x != nil && x.port != nil }

// tagEdges tags the probes of the edges whose paths carry tags or are tried.
func (x *nicSignals) tagEdges(edges []*edge) error {
	if x == nil || x.port == nil || x.Format == csig.None {
		return nil
	}
	var flows []csig.TaggedFlow
	for _, e := range edges {
		if e.signals != nil && !e.sock.rdma && e.signals.trial.isTagged() {
			flows = append(flows, csig.TaggedFlow{From: netip.AddrPortFrom(x.self.cfg.Address, e.sock.port), To: e.target})
		}
	}
	return x.port.TagFlows(flows)
}

// applyEdge gives an edge its signals, or takes them.
func (x *nicSignals) applyEdge(e *edge) {
	wanted := x != nil && x.self.node.Stamp.ClassOf(e.cfg.Flow).Name == fabric.ClassCSIG
	switch {
	case wanted && e.signals == nil:
		e.signals = &edgeSignals{flows: [directions]*observe.Flow{x.observer.NewFlow(), x.observer.NewFlow()}}
	case !wanted && e.signals != nil:
		x.releaseEdge(e)
	}
}

// releaseEdge ends the observation of an edge.
func (x *nicSignals) releaseEdge(e *edge) {
	if e.signals == nil {
		return
	}
	for _, f := range e.signals.flows {
		if f != nil {
			f.Close()
		}
	}
	e.signals = nil
}

// readTags takes in the tags of the packets that were just read.
func (x *nicSignals) readTags() error {
	if x == nil || x.port == nil {
		return nil
	}
	return x.port.ReadTags()
}

// arrivedTag returns the tag of a packet that was read at a port of the NIC.
func (x *nicSignals) arrivedTag(g *arrivedPacket, port uint16) (s csig.ArrivedSignal, ok bool) {
	if x == nil || x.port == nil || len(g.Data) < 4 {
		return csig.ArrivedSignal{}, false
	}
	return x.port.ArrivedTag(g.From, netip.AddrPortFrom(x.self.cfg.Address, port), stamp.PeekSeq(g.Data))
}

// dropStranger counts the tag of a packet that is no registered sender's.
func (x *nicSignals) dropStranger(g *arrivedPacket, port uint16) {
	if _, ok := x.arrivedTag(g, port); ok {
		x.observer.Drop(observe.Stranger)
	}
}

// putRequestSignal fills in what a reply brings back: the tag with which its request arrived.
func (s *session) putRequestSignal(v *stamp.Signal, a csig.ArrivedSignal, ok bool) {
	if ok {
		s.tagged++
		v.EtherType, v.Malformed = a.EtherType, a.Malformed
		if v.Format = uint8(a.Tag.Format); v.Format != 0 {
			a.Tag.PutValue(v.Value[:])
		}
	}
	v.Seen = s.tagged
}

// requestTag returns the tag that a reply brings back. ok is false if the request had none.
func requestTag(r *reply) (s csig.ArrivedSignal, ok bool) {
	v := &r.answers.Signal
	if !r.answers.HasSignal || v.Format == 0 && !v.Malformed {
		return csig.ArrivedSignal{}, false
	}
	s = csig.ArrivedSignal{EtherType: v.EtherType, Malformed: v.Malformed}
	if f := csig.Format(v.Format); f != csig.None {
		s.Tag.ParseValue(f, v.Value[:])
	}
	return s, true
}

// addReply uses the signals of a reply that counts: the request's, which it brings back, and its own. It reports whether the edge is no
// longer tagged, because its path does not carry tags.
func (x *nicSignals) addReply(e *edge, r *reply, own csig.ArrivedSignal, hasOwn bool, mono int64) (pause bool) {
	if x == nil || e.signals == nil {
		return false
	}
	if a, ok := requestTag(r); ok {
		x.addTag(e.signals.flows[forward], &a, mono)
	}
	if hasOwn {
		x.addTag(e.signals.flows[reverse], &own, mono)
	}
	return x.Format != csig.None && e.signals.trial.countReply(r.senderSeq&1 == 1, mono)
}

// addTag adds a tag to what is known of a flow.
func (x *nicSignals) addTag(f *observe.Flow, a *csig.ArrivedSignal, mono int64) {
	if a.Malformed {
		x.observer.Drop(observe.Malformed)
		return
	}
	f.Add(&a.Tag, mono)
}

// probeTag returns the tag with which a simulated probe of an edge leaves, or the zero tag.
func (x *nicSignals) probeTag(e *edge, seq uint32) csig.Tag {
	if x == nil || e.signals == nil || !e.signals.trial.isTagged() {
		return csig.Tag{}
	}
	return x.tagOf(seq)
}

// reflectSimulated puts the tag with which a simulated probe arrived into the reply's answers, and makes it that of the reply.
func (x *nicSignals) reflectSimulated(a *stamp.Answers, s *session, tag *csig.Tag) {
	if x == nil {
		*tag = csig.Tag{}
		return
	}
	arrived := csig.ArrivedSignal{Tag: *tag, EtherType: x.Profile.EtherTypes.Of(tag.Format)}
	s.putRequestSignal(&a.Signal, arrived, tag.Format != csig.None)
	if a.HasSignal = true; tag.Format != csig.None {
		*tag = csig.NewTag(tag.Format, tag.Signal)
	}
}

// SignalStats returns what in-band signals have said so far, or nil if the engine handles none.
func (e *Engine) SignalStats() *observe.Stats {
	if e.wire.deps.Signals == nil {
		return nil
	}
	s := &observe.Stats{ProfileHash: e.profileHash}
	for _, n := range e.allNICs() {
		n.copySignals(s)
	}
	slices.Sort(s.DownPorts)
	s.DownPorts = slices.Compact(s.DownPorts)
	return s
}

// SignalProfile returns the profile by which in-band signals are read, or nil if the engine handles none.
func (e *Engine) SignalProfile() *csig.Profile {
	if e.wire.deps.Signals == nil {
		return nil
	}
	return e.wire.deps.Signals.Profile
}

// copySignals adds what the in-band signals of the NIC's packets said.
func (n *nic) copySignals(s *observe.Stats) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.wire.monoTime()
	s.NICs = append(s.NICs, observe.NICStats{NIC: n.cfg.NIC, Dropped: n.signals.observer.Dropped})
	s.DownPorts = append(s.DownPorts, n.signals.observer.DownPorts(now)...)
	for _, e := range n.sender.edges {
		if e.signals == nil {
			continue
		}
		f := observe.FlowStats{Src: e.id.Src, Dst: e.id.Dst, Number: e.id.Number, Supported: e.signals.trial.supported, DroppedAt: e.signals.trial.droppedAt}
		for d := range directions {
			f.Directions[d].Fill(e.signals.flows[d], now)
		}
		s.Flows = append(s.Flows, f)
	}
}
