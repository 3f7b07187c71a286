package probe

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
)

// Simulated is an engine without sockets. A simulated fabric states when its packets leave and arrive, and the engine keeps
// the same accounts of them as one with sockets. Times are nanoseconds since the base that it was started with.
type Simulated struct {
	*Engine
	suspendedAt int64 // time since which it does not run; -1: it runs
}

// SimFlow represents an edge of a simulated engine.
type SimFlow struct {
	Edge       fabric.Flow
	Cadence    time.Duration
	Phase      time.Duration // of its first probe
	SrcPort    uint16
	DstPort    uint16
	engine     *Simulated
	edge       *edge
	nic, far   *nic
	senderPeer *peer // the far end's record of the flow's NIC
}

// SimPacket represents a probe, and later its reply. The zero SimPacket is ready to use.
type SimPacket struct {
	flow     *SimFlow
	seq, tx  uint32
	user     int64
	reply    reply
	estimate stamp.ErrorEstimate
}

// StartSimulated makes an engine for a configuration, which never changes. base is the moment of its time 0, and walk
// returns the path of an edge through the fabric at once.
func StartSimulated(cfg *Config, bend *Bend, base time.Time, walk func(fabric.Flow) (hops []Hop, reached bool), log *slog.Logger) (*Simulated, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{log: log, base: base, wire: &wiring{bend: bend, virtual: new(atomic.Int64), ssids: map[uint16]bool{}}, cfg: cfg}
	for _, c := range cfg.NICs {
		n := &nic{cfg: c, node: cfg, bound: stamp.UnknownBound, log: log.With("nic", c.NIC), base: base, wire: e.wire, ssid: e.wire.randomSSID(),
			peers: map[netip.Addr]*peer{}, sessions: map[sessionKey]*session{}, kindWhy: "the NIC is simulated", forgers: []Forger{{From: otherForgers}}}
		n.stamps[0][kernelStamps], n.stamps[1][kernelStamps] = true, true
		n.setEstimate()
		n.applyPeers(cfg)
		n.maxSess = max(64, 4*len(cfg.Answers))
		e.nics = append(e.nics, n)
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.tracer = newTracer(cfg.Trace, e.allNICs, log)
	e.tracer.seek = func(_ context.Context, f traceFlow) (TracedPath, error) {
		p := TracedPath{Edge: f.edge, TracedAt: time.Now()}
		p.Hops, p.Reached = walk(f.edge)
		q := pathTrace{tracer: e.tracer, flow: f}
		q.concludeState(&p, false)
		return p, nil
	}
	e.planned.Store(unplanned)
	e.wg.Go(func() { e.tracer.run(e.ctx) })
	return &Simulated{Engine: e, suspendedAt: -1}, nil
}

// unplanned is the time of the next turn of an engine that is never late.
const unplanned = math.MaxInt64 / 2

// CreateFlows returns the engine's edges. It must be called once, before the first probe.
func (s *Simulated) CreateFlows() ([]*SimFlow, error) {
	var out []*SimFlow
	cfg := s.cfg
	for _, n := range s.nics {
		byNIC := make(map[string]*peer, len(n.peers))
		for _, p := range n.peers {
			byNIC[p.cfg.NIC] = p
		}
		for i := range cfg.Edges {
			c := cfg.Edges[i]
			p := byNIC[c.Dst]
			if c.Src != n.cfg.NIC {
				continue
			}
			if p == nil {
				return nil, fmt.Errorf("edge %v: the configuration has no peer %s", c.ID(), c.Dst)
			}
			e := &edge{flow: newFlow(c.Cadence, cfg.ReplyTimeout), cfg: c, id: c.ID(), peer: p,
				target: netip.AddrPortFrom(p.cfg.Address, cfg.Stamp.Port)}
			e.setClockSync(cfg.ClockSync, c.Cadence)
			n.mu.Lock()
			p.edges[c.Flow] = e
			n.edges = append(n.edges, e)
			n.mu.Unlock()
			out = append(out, &SimFlow{Edge: e.id, Cadence: c.Cadence, Phase: time.Duration(s.nextPhase() * float64(c.Cadence)),
				SrcPort: cfg.Stamp.SourcePort + uint16(c.Flow), DstPort: cfg.Stamp.Port, engine: s, edge: e, nic: n})
		}
	}
	return out, nil
}

// SetReflector sets the engine that answers a flow's probes. It returns false if that engine does not know the flow.
func (f *SimFlow) SetReflector(far *Simulated) bool {
	for _, n := range far.nics {
		if n.cfg.NIC != f.Edge.Dst {
			continue
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, p := range n.peers {
			if p.cfg.NIC == f.Edge.Src {
				f.far, f.senderPeer = n, p
				return true
			}
		}
	}
	return false
}

// wallTime returns the time that the engine's clock shows.
func (s *Simulated) wallTime(at int64) int64 { return s.wire.bend.BentTime(s.base.UnixNano() + at) }

// DuePackets returns the number of probes that are due together: one, or two for one with a twin.
func (f *SimFlow) DuePackets() int {
	if !f.engine.cfg.ClockSync {
		return 1
	}
	if f.edge.sinceTwin = (f.edge.sinceTwin + 1) % pairEvery; f.edge.sinceTwin == 0 {
		return 2
	}
	return 1
}

// SkipProbes counts probes that were not sent because their time had passed.
func (f *SimFlow) SkipProbes(probes int) {
	f.nic.mu.Lock()
	defer f.nic.mu.Unlock()
	f.nic.skipped += uint64(probes)
}

// SendProbe makes p a probe that the program sends at now and that the kernel stamps at stamped.
func (f *SimFlow) SendProbe(p *SimPacket, now, stamped int64) {
	f.nic.mu.Lock()
	defer f.nic.mu.Unlock()
	*p = SimPacket{flow: f, user: f.engine.wallTime(now)}
	p.seq, p.tx = f.edge.nextProbe(now, p.user)
	f.edge.txStamp(p.seq, kernelStamps, f.engine.wallTime(stamped))
	f.nic.kernelDelay.Observe(stamped - now)
}

// ReflectProbe makes the reply to a probe in place of it, at the engine far that SetReflector named. The far kernel
// stamped the probe at arrived. The program answers at now, and the kernel stamps the reply at stamped. It returns false if
// there is no answer.
func (s *Simulated) ReflectProbe(p *SimPacket, arrived, now, stamped int64, marked bool) bool {
	n, pr := p.flow.far, p.flow.senderPeer
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := pr.answers[p.flow.Edge.Number]
	sess := n.sessionFor(pr, asked, sessionKey{netip.AddrPortFrom(pr.cfg.Address, p.flow.SrcPort), p.flow.nic.ssid}, now)
	if sess == nil {
		n.dropped[dropSessions]++
		return false
	}
	before := sess.restarts
	came := sess.acceptProbe(p.seq, p.user, false)
	n.restarts += sess.restarts - before
	sess.lastSeen = now
	if asked != nil && came == arrivalNew {
		asked.received++
		asked.arrived = now
	}
	if !sess.bucket.takeToken(now) {
		n.dropped[dropRate]++
		return false
	}
	sess.tx++
	p.reply = reply{seq: sess.seq, senderSeq: p.seq, t2: s.wallTime(arrived), t3: s.wallTime(now)}
	a := &p.reply.answers
	a.Has = stamp.NewTypeSet(stamp.TypeTimestampInfo, stamp.TypeClassOfService, stamp.TypeDirectMeasurement, stamp.TypeFollowUp)
	a.TimestampInfo.MethodIn = kernelStamps.stampMethod()
	if marked {
		a.ClassOfService.ECN = ceMark
	}
	a.DirectMeasurement = stamp.DirectMeasurement{SenderTx: p.tx, ReflectorRx: sess.rx, ReflectorTx: sess.tx}
	a.FollowUp = sess.nextFollowUp()
	p.estimate = n.estimate
	n.kernelDelay.Observe(stamped - now)
	sess.addFollowUp(stamp.FollowUp{Seq: sess.seq, Timestamp: stamp.TimestampPTP(s.wallTime(stamped)), Method: kernelStamps.stampMethod()})
	sess.seq++
	return true
}

// AcceptReply processes a reply. The kernel of the sender's node stamped it at arrived, and the program reads it at now.
func (s *Simulated) AcceptReply(p *SimPacket, arrived, now int64, marked bool) {
	n, e := p.flow.nic, p.flow.edge
	n.mu.Lock()
	defer n.mu.Unlock()
	p.reply.t4[userStamps], p.reply.t4[kernelStamps] = s.wallTime(now), s.wallTime(arrived)
	if marked {
		p.reply.ecn = ceMark
	}
	e.peer.estimate = p.estimate
	if e.acceptReply(now, &p.reply) == outcomeUnsolicited {
		n.dropped[dropUnsolicited]++
	}
}

// AdvanceTo settles the accounts up to now, which is the engine's time from then on.
func (s *Simulated) AdvanceTo(now int64) {
	s.wire.virtual.Store(now)
	if s.suspendedAt < 0 {
		s.wire.turned.Store(time.Now().UnixNano())
	}
	for _, n := range s.nics {
		n.mu.Lock()
		if s.suspendedAt < 0 && now-n.settled >= int64(settleEvery) {
			n.settled = now
			for _, e := range n.edges {
				e.settleLoss()
			}
		}
		n.mu.Unlock()
	}
}

// SuspendAt states that the program gets no processor from now on.
func (s *Simulated) SuspendAt(now int64) {
	s.suspendedAt = now
	s.planned.Store(now)
}

// ResumeAt ends the suspension that SuspendAt began.
func (s *Simulated) ResumeAt(now int64) {
	if s.suspendedAt < 0 {
		return
	}
	s.planned.Store(unplanned)
	for _, n := range s.nics {
		n.mu.Lock()
		n.stalled += stallTime(now, s.suspendedAt)
		n.mu.Unlock()
	}
	s.suspendedAt = -1
}
