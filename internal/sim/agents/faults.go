package agents

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sim/packets"
)

// Fault is a request to break something: the contract's, as internal/lab has it.
type Fault struct {
	Kind      string
	At        string
	Direction string
	Delay     time.Duration
	Loss      float64
	Step      time.Duration
	DriftPPM  float64
}

// Defaults of faults, and how their parts follow
// each other: as internal/lab has them.
const (
	defaultDelay    = 2 * time.Millisecond
	defaultLoss     = 0.1
	defaultStep     = time.Millisecond
	defaultDriftPPM = 50

	// WithdrawAfter is how long the other switches keep routes over a link that
	// is down.
	WithdrawAfter = 3 * time.Second

	flapDown, flapUp    = 400 * time.Millisecond, 1600 * time.Millisecond
	stallStop, stallRun = 400 * time.Millisecond, 100 * time.Millisecond

	shapedRate  = 20e6 / 8 // octets a second of a port that is shaped: 20 Mbit/s
	crossLoad   = 1.05     // of that, which cross traffic is
	crossOctets = 1442
	crossFlows  = 8
	crossTries  = 4000
)

// activeFault is a fault that is in force.
type activeFault struct {
	id      string
	undo    func() error
	cleared bool // nothing that it scheduled acts any more
}

// step is a part of a fault that comes later.
type step struct {
	fault *activeFault
	do    func(now int64)
}

// ActAt implements packets.Actor.
func (s *step) ActAt(now int64) {
	if !s.fault.cleared {
		s.do(now)
	}
}

func (f *Fabric) scheduleAfter(a *activeFault, wait time.Duration, do func(now int64)) {
	f.net.ScheduleAt(f.net.Now()+int64(wait), &step{a, do})
}

// AddFault breaks something and returns the fault's identifier.
func (f *Fabric) AddFault(fault Fault) (id string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &activeFault{}
	if err := f.beginFault(a, fault); err != nil {
		return "", fmt.Errorf("%s at %s: %w", fault.Kind, fault.At, err)
	}
	f.last++
	a.id = "f" + strconv.Itoa(f.last)
	f.faults = append(f.faults, a)
	return a.id, nil
}

// ClearFault undoes one fault, or all when id is empty.
func (f *Fabric) ClearFault(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	found := id == ""
	f.faults = slices.DeleteFunc(f.faults, func(a *activeFault) bool {
		if id != "" && a.id != id {
			return false
		}
		found = true
		a.cleared = true
		errs = append(errs, a.undo())
		return true
	})
	if !found {
		errs = append(errs, fmt.Errorf("there is no fault %q", id))
	}
	return errors.Join(errs...)
}

func (f *Fabric) beginFault(a *activeFault, fault Fault) error {
	delay := int64(fault.Delay)
	if delay == 0 {
		delay = int64(defaultDelay)
	}
	if delay < 0 {
		return fmt.Errorf("delay %s: more than 0 is expected", fault.Delay)
	}
	switch fault.Kind {
	case "delay", "loss", "ecn", "blackhole":
		d, err := f.findDirection(fault.At, fault.Direction)
		if err != nil {
			return err
		}
		return f.beginDirected(a, fault, d.From, delay)
	case "nic-slow":
		return f.slowNIC(a, fault, delay)
	case "switch-slow":
		a.undo = func() error { return f.net.SlowSwitch(fault.At, -delay) }
		return f.net.SlowSwitch(fault.At, delay)
	case "mute":
		a.undo = func() error { return f.net.MuteSwitch(fault.At, false) }
		return f.net.MuteSwitch(fault.At, true)
	case "congest":
		return f.congestPort(a, fault.At, delay, 1)
	case "incast":
		port := f.graph.PeerOf(fault.At)
		if f.graph.NIC(fault.At) == nil || port == "" {
			return errors.New("a NIC with a link is expected")
		}
		return f.congestPort(a, port, delay, crossFlows)
	case "link-down", "flap":
		link, _, err := f.findCable(fault.At)
		if err != nil {
			return err
		}
		a.undo = func() error { f.net.SetLink(link, false, false); return nil }
		if fault.Kind == "flap" {
			f.toggleLink(a, link, true)
			return nil
		}
		f.net.SetLink(link, true, false)
		f.scheduleAfter(a, WithdrawAfter, func(int64) { f.net.SetLink(link, true, true) })
		return nil
	case "miscable":
		return f.swapCables(a, fault.At)
	case "host-stall":
		n := f.agents[fault.At]
		if n == nil {
			return errors.New("a node with an agent is expected")
		}
		a.undo = func() error { n.wakeUp(f.net.Now()); return nil }
		f.stallNode(a, n)
		return nil
	case "clock-step", "clock-drift":
		return f.bendClock(a, fault)
	}
	return errors.New("the simulated fabric has no such fault")
}

// findCable finds the link that at names, in either order of its ends, and the
// direction from the end that is named first.
func (f *Fabric) findCable(at string) (link string, first fabric.Direction, err error) {
	a, b, ok := fabric.SplitLink(at)
	if !ok {
		if a, b, ok = strings.Cut(at, "->"); !ok {
			return "", first, fmt.Errorf("%q is no link: END--END or FROM->TO is expected", at)
		}
	}
	if f.graph.LinkAt(a) == nil || f.graph.PeerOf(a) != b {
		return "", first, fmt.Errorf("the fabric has no link between %q and %q", a, b)
	}
	return fabric.LinkID(a, b), fabric.Direction{From: a, To: b}, nil
}

func (f *Fabric) findDirection(at, way string) (fabric.Direction, error) {
	link, d, err := f.findCable(at)
	if err != nil || way == "" {
		return d, err
	}
	want, err := fabric.ParseDirection(way)
	if err == nil && want.LinkID() != link {
		err = fmt.Errorf("direction %q is none of %q", way, at)
	}
	return want, err
}

func (f *Fabric) beginDirected(a *activeFault, fault Fault, end string, delay int64) error {
	switch fault.Kind {
	case "delay":
		a.undo = func() error { return f.net.AddDelay(end, -delay) }
		return f.net.AddDelay(end, delay)
	case "ecn":
		a.undo = func() error { return f.net.MarkAll(end, false) }
		return f.net.MarkAll(end, true)
	}
	part := fault.Loss
	switch {
	case fault.Kind == "blackhole":
		part = 1
	case part == 0:
		part = defaultLoss
	case !(part > 0 && part <= 1):
		return fmt.Errorf("loss %v: a ratio above 0 and up to 1 is expected", part)
	}
	a.undo = func() error { return f.net.SetLoss(end, 0) }
	return f.net.SetLoss(end, part)
}

// slowNIC delays what comes to a NIC at the port that faces it, what it sends
// beyond its transmit stamp.
func (f *Fabric) slowNIC(a *activeFault, fault Fault, delay int64) error {
	port := f.graph.PeerOf(fault.At)
	if f.graph.NIC(fault.At) == nil || port == "" {
		return errors.New("a NIC with a link is expected")
	}
	var ends []string
	switch fault.Direction {
	case "in":
		ends = []string{port}
	case "out":
		ends = []string{fault.At}
	case "", "both":
		ends = []string{port, fault.At}
	default:
		return fmt.Errorf("direction %q: in, out or both is expected", fault.Direction)
	}
	by := func(ns int64) error {
		var errs []error
		for _, e := range ends {
			errs = append(errs, f.net.AddDelay(e, ns))
		}
		return errors.Join(errs...)
	}
	a.undo = func() error { return by(-delay) }
	return by(delay)
}

// congestPort shapes a port, with a queue of the given delay, and lets hosts send more
// through it than it lets pass, so many of them at the same moment.
func (f *Fabric) congestPort(a *activeFault, end string, full int64, together int) error {
	if f.topo.Sprays() && !fabric.IsNIC(f.graph.PeerOf(end)) {
		return fmt.Errorf("hosts cannot fill %s, because switches spray packets over all ports to their destinations", end)
	}
	if err := f.net.ShapePort(end, shapedRate, full); err != nil {
		return err
	}
	s := &stream{f: f, fault: a, flows: f.crossingFlows(end), together: together}
	if len(s.flows) == 0 {
		return errors.Join(fmt.Errorf("no flow between two hosts leaves %s", end), f.net.ShapePort(end, 0, 0))
	}
	a.undo = func() error { return f.net.ShapePort(end, 0, 0) }
	f.net.ScheduleAt(f.net.Now(), s)
	return nil
}

// stream is cross traffic of hosts.
type stream struct {
	f        *Fabric
	fault    *activeFault
	flows    []crossFlow
	together int
	sent     int
}

type crossFlow struct {
	src, dst int32
	hash     uint64
}

// crossingFlows finds flows that leave an end, of different hosts where there are
// enough.
func (f *Fabric) crossingFlows(end string) (out []crossFlow) {
	rng := rand.New(rand.NewPCG(1, 1))
	nics := f.graph.NICIDs()
	load := map[string]int{}
	for try := 0; try < crossTries && len(out) < crossFlows; try++ {
		src, dst := nics[rng.IntN(len(nics))], nics[rng.IntN(len(nics))]
		if peer := f.graph.PeerOf(end); fabric.IsNIC(peer) {
			dst = peer
		}
		owner := fabric.OwnerOf(src)
		if owner == fabric.OwnerOf(dst) || load[owner] > try/(crossTries/4) {
			continue
		}
		c := crossFlow{hash: rng.Uint64()}
		c.src, _ = f.net.NICNumber(src)
		c.dst, _ = f.net.NICNumber(dst)
		if f.net.FlowCrosses(c.src, c.dst, c.hash, end) {
			out = append(out, c)
			load[owner]++
		}
	}
	return out
}

// ActAt sends what is due.
func (s *stream) ActAt(now int64) {
	if s.fault.cleared {
		return
	}
	for range s.together {
		c := s.flows[s.sent%len(s.flows)]
		s.sent++
		s.f.net.Send(&packets.Packet{From: c.src, To: c.dst, Flow: c.hash, Octets: crossOctets, ECNCapable: true, Receiver: ignored{}})
	}
	every := float64(s.together) * crossOctets / (crossLoad * shapedRate)
	s.f.net.ScheduleAt(now+int64(s.f.rng.ExpFloat64()*every*1e9), s)
}

// ignored takes packets for which no flight waits.
type ignored struct{}

func (ignored) PacketArrived(*packets.Packet)            {}
func (ignored) PacketLost(*packets.Packet, packets.Loss) {}

// toggleLink takes a link down for less than the other switches wait, and up again.
func (f *Fabric) toggleLink(a *activeFault, link string, down bool) {
	f.net.SetLink(link, down, false)
	pause := flapUp
	if down {
		pause = flapDown
	}
	f.scheduleAfter(a, pause, func(int64) { f.toggleLink(a, link, !down) })
}

func (f *Fabric) swapCables(a *activeFault, at string) error {
	one, two, ok := strings.Cut(at, ",")
	if !ok {
		return errors.New("LINK,LINK is expected")
	}
	var ids [2]string
	for i, s := range []string{one, two} {
		id, d, err := f.findCable(s)
		if err != nil {
			return err
		}
		if fabric.IsNIC(d.From) || fabric.IsNIC(d.To) {
			return fmt.Errorf("%q is an access link: cables between switches are expected", s)
		}
		ids[i] = id
	}
	if ids[0] == ids[1] {
		return errors.New("two different cables are expected")
	}
	f.net.SwapCables(ids[0], ids[1])
	a.undo = func() error { f.net.SwapCables(ids[0], ids[1]); return nil }
	return nil
}

// stallNode starves a node's program: it runs for a part of the time.
func (f *Fabric) stallNode(a *activeFault, n *agent) {
	now := f.net.Now()
	n.asleep, n.asleepUntil = true, now+int64(stallStop)
	n.engine.SuspendAt(now)
	f.scheduleAfter(a, stallStop, func(now int64) {
		n.wakeUp(now)
		f.scheduleAfter(a, stallRun, func(int64) { f.stallNode(a, n) })
	})
}

func (n *agent) wakeUp(now int64) {
	n.asleep = false
	n.engine.ResumeAt(now)
}

// bendClock makes a node's clock wrong, beyond what it was already.
func (f *Fabric) bendClock(a *activeFault, fault Fault) error {
	n := f.agents[fabric.OwnerOf(fault.At)]
	if f.graph.NIC(fault.At) == nil || n == nil || n.clock.bend == nil {
		return errors.New("a NIC of a node with an agent is expected")
	}
	ask := func(step time.Duration, ppm float64) {
		n.clock.bend.SetError(step, ppm, f.base.UnixNano()+f.net.Now())
	}
	a.undo = func() error { ask(0, 0); return nil }
	switch {
	case fault.Kind == "clock-drift" && fault.DriftPPM == 0:
		ask(0, defaultDriftPPM)
	case fault.Kind == "clock-drift":
		ask(0, fault.DriftPPM)
	case fault.Step == 0:
		ask(defaultStep, 0)
	default:
		ask(fault.Step, 0)
	}
	return nil
}
