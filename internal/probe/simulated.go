package probe

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// Simulated drives an engine without sockets. A simulated fabric states when its packets leave and arrive, and the
// engine keeps the same accounts of them as one with sockets. Times are nanoseconds since the start of the engine's
// clock.
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

// SimulatedDeps returns the dependencies of an engine for DriveSimulated. path returns the path of an edge through the
// fabric at once, or that of its packets with in-band signals.
func SimulatedDeps(clock Clock, path func(f fabric.Flow, tagged bool) (hops []Hop, reached bool)) Deps {
	return Deps{Clock: clock, Network: noNetwork{}, Device: noDevice{}, KnownPath: path, Frozen: errors.New("cannot change the configuration of a simulated engine")}
}

// noNetwork is a network whose sockets carry nothing, because the packets are simulated.
type noNetwork struct{}

// OpenPoller returns a poller without events. It implements Network.
func (noNetwork) OpenPoller() (Poller, error) { return noPoller{}, nil }

// OpenUDP returns an endpoint that carries nothing. It implements Network.
func (noNetwork) OpenUDP(at netip.AddrPort, _ unix.UDPOptions) (Endpoint, error) {
	return noEndpoint{at}, nil
}

// OpenOuter fails, since simulated switches choose the paths. It implements Network.
func (noNetwork) OpenOuter(netip.Addr, unix.UDPOptions) (Endpoint, error) { return nil, errSimulated }

// NewTransport returns nil, since nothing is sent or received over the endpoints. It implements Network.
func (noNetwork) NewTransport() Transport { return nil }

type noPoller struct{}

func (noPoller) Add(int, int32) error            { return nil }
func (noPoller) Wait(time.Duration) (int, error) { return 0, nil }
func (noPoller) EventAt(int) (int32, bool, bool) { return -1, false, false }
func (noPoller) Wake() error                     { return nil }
func (noPoller) Close() error                    { return nil }

type noEndpoint struct{ at netip.AddrPort }

func (e noEndpoint) LocalAddr() netip.AddrPort { return e.at }
func (noEndpoint) FD() int                     { return -1 }
func (noEndpoint) Drops() uint64               { return 0 }
func (noEndpoint) Close() error                { return nil }

// noDevice is a host whose NICs do not stamp.
type noDevice struct{ StampDevice }

// InterfaceName returns the reason why the NICs do not stamp. It implements StampDevice.
func (noDevice) InterfaceName(netip.Addr) (string, error) { return "", errSimulated }

// Capabilities does the same. It implements StampDevice.
func (noDevice) Capabilities(string) (unix.StampCaps, error) { return unix.StampCaps{}, errSimulated }

var errSimulated = errNoHardware{"the NIC is simulated"}

// DriveSimulated begins to trace the flows of an engine that has SimulatedDeps, and returns what drives the engine in
// place of Start.
func DriveSimulated(e *Engine) *Simulated {
	for _, n := range e.nics {
		n.ports.stamped[0][kernelStamps], n.ports.stamped[1][kernelStamps] = true, true
	}
	e.turns.planned.Store(unplanned)
	e.startTracing()
	return &Simulated{Engine: e, suspendedAt: -1}
}

// unplanned is the time of the next turn of an engine that is never late.
const unplanned = math.MaxInt64 / 2

// ListFlows returns the engine's edges. It must be called before the first probe.
func (s *Simulated) ListFlows() ([]*SimFlow, error) {
	var out []*SimFlow
	cfg := s.cfg
	for _, n := range s.nics {
		n.mu.Lock()
		for _, e := range n.sender.edges {
			out = append(out, &SimFlow{Edge: e.id, Cadence: e.cfg.Cadence, Phase: time.Duration(e.next),
				SrcPort: e.sock.port, DstPort: cfg.Stamp.Port, engine: s, edge: e, nic: n})
		}
		n.mu.Unlock()
	}
	if len(out) == len(cfg.Edges) {
		return out, nil
	}
	missing := slices.IndexFunc(cfg.Edges, func(c EdgeConfig) bool {
		return !slices.ContainsFunc(out, func(f *SimFlow) bool { return f.Edge == c.ID() })
	})
	return nil, fmt.Errorf("edge %v: the configuration has no peer %s", cfg.Edges[missing].ID(), cfg.Edges[missing].Dst)
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
func (s *Simulated) wallTime(at int64) int64 { return s.wire.NodeTime(s.wire.base.UnixNano() + at) }

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
	f.nic.sender.skipped += uint64(probes)
}

// SendProbe makes p a probe that the program sends at now and that the kernel stamps at stamped. It returns the probe's
// tag, which is the zero tag if it has none.
func (f *SimFlow) SendProbe(p *SimPacket, now, stamped int64) csig.Tag {
	f.nic.mu.Lock()
	defer f.nic.mu.Unlock()
	*p = SimPacket{flow: f, user: f.engine.wallTime(now)}
	p.seq, p.tx = f.edge.nextProbe(now, p.user)
	f.edge.txStamp(p.seq, kernelStamps, f.engine.wallTime(stamped))
	f.nic.out.kernelDelay.Observe(stamped - now)
	return f.nic.signals.probeTag(f.edge, p.seq)
}

// ReflectProbe makes the reply to a probe in place of it, at the engine far that SetReflector named. The far kernel
// stamped the probe at arrived. The program answers at now, and the kernel stamps the reply at stamped. tag is the one
// with which the probe arrived, and becomes that of the reply. It returns false if there is no answer.
func (s *Simulated) ReflectProbe(p *SimPacket, arrived, now, stamped int64, marked bool, tag *csig.Tag) bool {
	n, pr := p.flow.far, p.flow.senderPeer
	n.mu.Lock()
	defer n.mu.Unlock()
	sess := n.reflector.countProbe(sessionProbe{peer: pr, key: sessionKey{netip.AddrPortFrom(pr.cfg.Address, p.flow.SrcPort), p.flow.nic.ssid},
		flow: p.flow.Edge.Number, seq: p.seq, sentAt: p.user, mono: now})
	if sess == nil {
		return false
	}
	seq := sess.nextReply()
	p.reply = reply{seq: seq, senderSeq: p.seq, t2: s.wallTime(arrived), t3: s.wallTime(now)}
	a := &p.reply.answers
	a.Has = stamp.NewTypeSet(stamp.TypeTimestampInfo, stamp.TypeClassOfService, stamp.TypeDirectMeasurement, stamp.TypeFollowUp)
	a.TimestampInfo.MethodIn = kernelStamps.stampMethod()
	if marked {
		a.ClassOfService.ECN = ceMark
	}
	a.DirectMeasurement = stamp.DirectMeasurement{SenderTx: p.tx, ReflectorRx: sess.rx, ReflectorTx: sess.tx}
	a.FollowUp = sess.follows.nextFollowUp()
	n.signals.reflectSimulated(a, sess, tag)
	p.estimate = n.estimate
	n.out.kernelDelay.Observe(stamped - now)
	sess.follows.addFollowUp(stamp.FollowUp{Seq: seq, Timestamp: stamp.TimestampPTP(s.wallTime(stamped)), Method: kernelStamps.stampMethod()})
	return true
}

// AcceptReply processes a reply. The kernel of the sender's node stamped it at arrived, and the program reads it at
// now. It arrived with a tag, or with the zero tag, which is none.
func (s *Simulated) AcceptReply(p *SimPacket, arrived, now int64, marked bool, tag csig.Tag) {
	n, e := p.flow.nic, p.flow.edge
	n.mu.Lock()
	defer n.mu.Unlock()
	p.reply.t4[userStamps], p.reply.t4[kernelStamps] = s.wallTime(now), s.wallTime(arrived)
	if marked {
		p.reply.ecn = ceMark
	}
	n.sender.acceptReply(e, now, p.estimate, &p.reply, csig.ArrivedSignal{Tag: tag}, tag.Format != csig.None)
}

// AdvanceTo settles the accounts up to now, which the engine's clock shows already.
func (s *Simulated) AdvanceTo(now int64) {
	for _, n := range s.nics {
		n.mu.Lock()
		if s.suspendedAt < 0 {
			n.sender.settleIfDue(now)
		}
		n.mu.Unlock()
	}
}

// SuspendAt states that the program gets no processor from now on.
func (s *Simulated) SuspendAt(now int64) {
	s.suspendedAt = now
	s.turns.planned.Store(now)
}

// ResumeAt ends the suspension that SuspendAt began.
func (s *Simulated) ResumeAt(now int64) {
	if s.suspendedAt < 0 {
		return
	}
	s.turns.planned.Store(unplanned)
	for _, n := range s.nics {
		n.mu.Lock()
		n.stalled += stallTime(now, s.suspendedAt)
		n.mu.Unlock()
	}
	s.suspendedAt = -1
}
