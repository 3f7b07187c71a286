package ibsample

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
)

// Asker asks the fabric: an ibmad.Client.
type Asker interface {
	Walk(context.Context, []ibmad.Request, func(*ibmad.Result) []ibmad.Request) error
}

// kindOf is a word for why a query told nothing: a label of a series.
func kindOf(err error) string {
	var status *ibmad.StatusError
	switch {
	case errors.Is(err, ibmad.ErrTimeout):
		return "timeout"
	case errors.Is(err, ibmad.ErrSilent):
		return "silent"
	case errors.As(err, &status):
		return "refused"
	}
	return "send"
}

// cutShort is the kind of what a sweep did not get to.
const cutShort = "cut_short"

// Authority is a delegator, here or elsewhere.
type Authority interface {
	Report(context.Context, *Report) (Clock, error)
	Work(ctx context.Context, sampler, instance string, since uint64) (Assignment, error)
}

// Sampler reads what a delegator assigns to it.
type Sampler struct {
	name, instance string
	to             Authority
	fabric         Asker
	log            *slog.Logger

	mu      sync.Mutex
	work    Assignment
	have    chan struct{} // closed when there is an assignment
	contact time.Time     // with the delegator, the last
	clock   clock
	missed  uint64
}

// NewSampler makes one that is idle until Run.
func NewSampler(name string, to Authority, fabric Asker, log *slog.Logger) (*Sampler, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	return &Sampler{name: name, instance: hex.EncodeToString(id[:]), to: to, fabric: fabric, log: log.With("sampler", name), have: make(chan struct{})}, nil
}

// Run samples until the context ends.
func (s *Sampler) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.follow(ctx) })
	select {
	case <-ctx.Done():
		return
	case <-s.have:
	}
	done := make(chan *Report, 2)
	wg.Go(func() {
		for r := range done {
			if err := s.deliver(ctx, r); err != nil && ctx.Err() == nil {
				s.log.Warn("readings are not delivered", "tick", r.Tick, "readings", len(r.Readings), "err", err)
			}
		}
	})
	defer close(done)
	var last struct {
		tick     int64
		interval time.Duration
	}
	for {
		work, tick, ok := s.await(ctx)
		if !ok {
			return
		}
		if work.Interval == last.interval && tick > last.tick+1 {
			s.miss(uint64(tick - last.tick - 1))
		}
		last.tick, last.interval = tick, work.Interval
		r := s.begin(tick)
		wg.Go(func() { s.announce(ctx, r, work.Interval) })
		if !s.trusted() {
			continue
		}
		sweep := *r
		s.sweep(ctx, &work, &sweep)
		select {
		case done <- &sweep:
		default:
			s.log.Warn("readings are dropped: the delegator does not take them", "tick", tick)
		}
	}
}

// follow keeps the assignment up to date.
func (s *Sampler) follow(ctx context.Context) {
	since, failing := uint64(0), false
	for ctx.Err() == nil {
		a, err := s.to.Work(ctx, s.name, s.instance, since)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if !failing {
				s.log.Warn("the delegator is not reached", "err", err)
			}
			failing, since = true, 0
			select {
			case <-ctx.Done():
			case <-time.After(retryWork):
			}
			continue
		}
		if failing {
			s.log.Info("the delegator is reached again")
		}
		failing = false
		s.assign(a, since)
		since = a.Revision
	}
}

// retryWork is how long a sampler waits before it asks a delegator again that did
// not answer: shorter than half of any useful interval (rule 6).
const retryWork = 100 * time.Millisecond

func (s *Sampler) assign(a Assignment, since uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contact = time.Now()
	if a.Revision == since {
		return
	}
	// Neighbours on the list are ports of one switch, whose agent answers one
	// after the other: their turns are spread over the sweep.
	slices.SortStableFunc(a.Targets, func(x, y Target) int { return int(x.Port) - int(y.Port) })
	s.work = a
	if since == 0 {
		select {
		case <-s.have:
		default:
			close(s.have)
		}
	}
	s.log.Debug("assignment", "revision", a.Revision, "ports", len(a.Targets))
}

// await sleeps until the next tick.
func (s *Sampler) await(ctx context.Context) (Assignment, int64, bool) {
	s.mu.Lock()
	interval, offset := s.work.Interval, s.clock.offset()
	s.mu.Unlock()
	now := time.Now().Add(offset)
	tick := now.UnixNano()/int64(interval) + 1
	timer := time.NewTimer(time.Unix(0, tick*int64(interval)).Sub(now))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return Assignment{}, 0, false
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.work, tick, true
}

func (s *Sampler) miss(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed += n
}

func (s *Sampler) begin(tick int64) *Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now().Add(s.clock.offset())
	return &Report{Sampler: s.name, Instance: s.instance, Vocabulary: Vocabulary, Tick: tick, Began: began.UnixNano(), ClockError: s.clock.error(), Missed: s.missed}
}

// trusted is rule 8.
func (s *Sampler) trusted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.contact) < 2*s.work.Interval+s.work.Interval/2
}

// announce tells that a tick begins, and compares clocks by the way.
func (s *Sampler) announce(ctx context.Context, r *Report, interval time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	sent := time.Now()
	c, err := s.report(ctx, r)
	if err != nil {
		return // follow tells
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.add(sent.UnixNano(), c, time.Now().UnixNano())
}

// deliver reports readings, which are of no use two intervals later.
func (s *Sampler) deliver(ctx context.Context, r *Report) error {
	s.mu.Lock()
	interval := s.work.Interval
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*interval)
	defer cancel()
	_, err := s.report(ctx, r)
	return err
}

func (s *Sampler) report(ctx context.Context, r *Report) (Clock, error) {
	c, err := s.to.Report(ctx, r)
	if err == nil {
		s.mu.Lock()
		s.contact = time.Now()
		s.mu.Unlock()
	}
	return c, err
}

// sweepShare is the part of an interval that a sweep may take: the rest is for
// the report.
const sweepShare = 0.9

// sweep reads the assignment. It learns traits into the targets of the
// assignment, which are its own.
func (s *Sampler) sweep(ctx context.Context, work *Assignment, r *Report) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(float64(work.Interval)*sweepShare))
	defer cancel()
	s.mu.Lock()
	offset := s.clock.offset()
	s.mu.Unlock()
	r.Readings = Sweep(ctx, s.fabric, work.Targets, work.Metrics, offset)
	r.Done, r.Took = true, time.Since(began)
}

// port is a target during a sweep.
type port struct {
	*Target
	was     Traits
	reading *Reading
	left    []Ask // that were asked and not answered yet
}

// node is what a sweep knows of the agent that several targets have in common.
type node struct {
	ports    []int
	new      []int // of ports: those of which nothing is known yet
	learnt   int   // of new: those of which all is known that was asked for
	answered bool
	pending  int               // questions on their way
	probes   []ibmad.Attribute // queries that it may know or not, the first being asked
	probing  bool
}

// sweep is one reading of all ports.
type sweep struct {
	metrics  Selection
	offset   time.Duration
	began    time.Time
	end      time.Time // of the sweep; zero: never
	ports    []port
	nodes    map[uint64]*node
	readings []Reading
	plans    map[Traits][]Ask
}

// Sweep reads the counters of all targets once. Traits that are not known are
// asked for first and written into the targets. offset is added to times.
//
// A query that a node need not know is asked of one of its ports until that
// answers, or says that it does not know it, or passes it over while others are
// answered: of all its ports only then (rule 2).
func Sweep(ctx context.Context, fabric Asker, targets []Target, metrics Selection, offset time.Duration) []Reading {
	w := sweep{metrics: metrics, offset: offset, began: time.Now(), ports: make([]port, len(targets)), nodes: map[uint64]*node{}, plans: map[Traits][]Ask{},
		readings: make([]Reading, len(targets))}
	w.end, _ = ctx.Deadline()
	var first []ibmad.Request
	for i := range targets {
		t := &targets[i]
		w.readings[i].Key = t.Key
		w.ports[i] = port{Target: t, was: t.Traits, reading: &w.readings[i]}
		n := w.nodes[t.Node]
		if n == nil {
			n = &node{}
			w.nodes[t.Node] = n
		}
		n.ports = append(n.ports, i)
		switch {
		case t.Traits.Known:
			asks := w.ask(i, t.Traits.settled())
			n.pending += len(asks)
			first = append(first, asks...)
		case n.new == nil:
			n.pending++
			first = append(first, request(ibmad.GetClassPortInfo(ibmad.LID(t.LID)), i))
			fallthrough
		default:
			n.new = append(n.new, i)
		}
	}
	for _, n := range w.nodes {
		if n.new == nil {
			w.plausible(n)
			first = append(first, w.nextProbe(n)...)
		}
	}
	// What is not visited when the time is over stays on the lists of what is left.
	_ = fabric.Walk(ctx, first, w.visit)
	for i := range w.ports {
		p := &w.ports[i]
		for _, a := range p.left {
			p.fail(a.Attribute, cutShort)
		}
		if !p.Traits.Known && len(p.reading.Errors) == 0 {
			p.fail(ibmad.AttrClassPortInfo, cutShort)
		}
		if p.Traits != p.was {
			t := p.Traits
			p.reading.Traits = &t
		}
	}
	return w.readings
}

func request(r ibmad.Request, tag int) ibmad.Request {
	r.Tag = tag
	return r
}

func (p *port) fail(a ibmad.Attribute, kind string) {
	p.reading.Errors = append(p.reading.Errors, ReadError{a.String(), kind})
}

// plan is what of a port is wanted.
func (w *sweep) plan(i int) []Ask {
	t := w.ports[i].Traits
	asks, ok := w.plans[t]
	if !ok {
		asks = w.metrics.Asks(t)
		w.plans[t] = asks
	}
	return asks
}

// ask asks a port for those of the queries, a bit for each, that are wanted.
func (w *sweep) ask(i int, which uint16) (out []ibmad.Request) {
	p := &w.ports[i]
	for _, a := range w.plan(i) {
		if which&bit(a.Attribute) != 0 {
			p.left = append(p.left, a)
			out = append(out, request(ibmad.GetCounters(a.Attribute, ibmad.LID(p.LID), p.Port), i))
		}
	}
	return out
}

// plausible lists what a node need not know and is wanted of it.
func (w *sweep) plausible(n *node) {
	proven, absent := w.found(n)
	for _, a := range ibmad.CounterAttributes() {
		if (known|proven|absent)&bit(a) == 0 && slices.ContainsFunc(n.ports, func(i int) bool { return w.wants(i, a) }) {
			n.probes = append(n.probes, a)
		}
	}
}

func (w *sweep) wants(i int, a ibmad.Attribute) bool {
	return slices.ContainsFunc(w.plan(i), func(x Ask) bool { return x.Attribute == a })
}

// nextProbe asks a node for one of them when nothing else is on its way to it: a
// client takes a node for silent that answers none of what it is asked.
func (w *sweep) nextProbe(n *node) []ibmad.Request {
	if len(n.probes) == 0 || n.pending > 0 {
		return nil
	}
	i := n.ports[slices.IndexFunc(n.ports, func(i int) bool { return w.wants(i, n.probes[0]) })]
	n.probing = true
	n.pending++
	return w.ask(i, bit(n.probes[0]))
}

// found is what the ports of a node know, and what they do not.
func (w *sweep) found(n *node) (proven, absent uint16) {
	for _, i := range n.ports {
		proven |= w.ports[i].Traits.Proven
		absent |= w.ports[i].Traits.Absent
	}
	return proven, absent &^ proven
}

// mark sets bits in the traits of all ports of a node.
func (w *sweep) mark(n *node, proven, absent uint16) {
	for _, i := range n.ports {
		w.ports[i].Traits.Proven |= proven
		w.ports[i].Traits.Absent |= absent
	}
}

func (w *sweep) visit(r *ibmad.Result) []ibmad.Request {
	n := w.nodes[w.ports[r.Request.Tag].Node]
	next := w.take(n, r)
	n.pending += len(next) - 1
	return append(next, w.nextProbe(n)...)
}

func (w *sweep) take(n *node, r *ibmad.Result) []ibmad.Request {
	i := r.Request.Tag
	p := &w.ports[i]
	n.answered = n.answered || r.Err == nil
	switch r.Request.Attribute {
	case ibmad.AttrClassPortInfo:
		return w.learn(n, r)
	case ibmad.AttrPortInfo:
		// A subnet manager may keep PortInfo to itself (M_Key): the counters do
		// without.
		if r.Err == nil {
			var info ibmad.PortInfo
			info.Decode(r.Data())
			p.Traits.VLs, p.Traits.Lanes = dataVLs(info.OperationalVLs), uint8(info.Lanes())
			// A node that does not know the attribute may not answer at all.
			if p.Traits.FEC == FECUnknown && info.Capabilities&ibmad.CapCapabilityMask2 != 0 && info.Capabilities2&ibmad.Cap2PortInfoExtended != 0 {
				return []ibmad.Request{request(ibmad.GetPortInfoExtended(ibmad.To(ibmad.LID(p.LID)), p.Port), i)}
			}
		}
		return w.learnt(n, i)
	case ibmad.AttrPortInfoExtended:
		if r.Err == nil {
			var info ibmad.PortInfoExtended
			info.Decode(r.Data())
			if p.Traits.FEC = FECPerLane; info.FECMode.ReedSolomon() {
				p.Traits.FEC = FECReedSolomon
			}
		}
		return w.learnt(n, i)
	}
	at := slices.IndexFunc(p.left, func(a Ask) bool { return a.Attribute == r.Request.Attribute })
	ask := p.left[at]
	p.left = slices.Delete(p.left, at, at+1)
	if n.probing {
		return w.probed(n, p, ask, r)
	}
	switch {
	case errors.Is(r.Err, ibmad.ErrUnsupported):
		p.Traits.Absent |= bit(ask.Attribute)
	case r.Err != nil:
		p.fail(ask.Attribute, kindOf(r.Err))
	default:
		w.keep(p, ask, r)
	}
	return nil
}

func (w *sweep) keep(p *port, ask Ask, r *ibmad.Result) {
	a := Answer{At: r.Received.Add(w.offset).UnixNano(), IDs: ask.IDs, Raws: make([]uint64, len(ask.IDs))}
	for k, id := range ask.IDs {
		a.Raws[k] = Counters[id].Counter.Value(r.Data())
	}
	p.reading.Answers = append(p.reading.Answers, a)
}

// probed takes what became of a probe. That a node has no such counters is no
// error of a reading.
func (w *sweep) probed(n *node, p *port, ask Ask, r *ibmad.Result) (next []ibmad.Request) {
	n.probes, n.probing = n.probes[1:], false
	switch {
	case r.Err == nil:
		w.mark(n, bit(ask.Attribute), 0)
		w.keep(p, ask, r)
		for _, i := range n.ports {
			if &w.ports[i] != p {
				next = append(next, w.ask(i, bit(ask.Attribute))...)
			}
		}
	case errors.Is(r.Err, ibmad.ErrUnsupported):
		w.mark(n, 0, bit(ask.Attribute))
	case errors.Is(r.Err, ibmad.ErrTimeout) && n.answered:
		w.mark(n, 0, bit(ask.Attribute))
		// Waiting for what is never answered takes time that readings need: the next
		// sweep goes on.
		if !w.end.IsZero() && r.Received.Sub(w.began) > w.end.Sub(w.began)/probeShare {
			n.probes = nil
		}
	default:
		p.fail(ask.Attribute, kindOf(r.Err))
		n.probes = nil
	}
	return next
}

// probeShare is the part of a sweep within which a probe that was not answered is
// followed by another: a quarter.
const probeShare = 4

// learn takes what a node's performance agent can do.
func (w *sweep) learn(n *node, r *ibmad.Result) (next []ibmad.Request) {
	var info ibmad.ClassPortInfo
	if r.Err == nil {
		info.Decode(r.Data())
	}
	for _, i := range n.new {
		p := &w.ports[i]
		if r.Err != nil {
			p.fail(ibmad.AttrClassPortInfo, kindOf(r.Err))
			continue
		}
		// What the node's other ports proved holds for this one.
		proven, absent := w.found(n)
		p.Traits = Traits{Known: true, Can: info.Capabilities, Can2: info.Capabilities2, Proven: proven, Absent: absent}
		if info.Capabilities&ibmad.PMReedSolomonCounters == 0 {
			p.Traits.FEC = FECPerLane
		}
		if w.perPort() {
			next = append(next, request(ibmad.GetPortInfo(ibmad.To(ibmad.LID(p.LID)), p.Port), i))
		} else {
			next = append(next, w.learnt(n, i)...)
		}
	}
	return next
}

// perPort reports whether counters are wanted of which ports have a number that
// PortInfo tells.
func (w *sweep) perPort() bool {
	return slices.ContainsFunc(Counters, func(c Counter) bool {
		return w.metrics.has(&c) && (c.Index == ibmad.PerVL || c.Attribute == ibmad.AttrPortExtendedSpeeds)
	})
}

// learnt asks a port that all is known of now; with the last of a node it is known
// what to probe.
func (w *sweep) learnt(n *node, i int) []ibmad.Request {
	next := w.ask(i, w.ports[i].Traits.settled())
	if n.learnt++; n.learnt == len(n.new) {
		w.plausible(n)
	}
	return next
}

// dataVLs is a number of VLs from OperationalVLs (IBA volume 1, table 146).
func dataVLs(code uint8) uint8 {
	switch code {
	case 1, 2, 3, 4:
		return 1 << (code - 1)
	case 5:
		return 15
	}
	return 0
}

// clock compares this host's clock with the delegator's by the exchanges of
// reports.
type clock struct {
	exchanges [16]exchange
	n         int
}

type exchange struct{ offset, bound time.Duration }

func (c *clock) add(sent int64, answer Clock, back int64) {
	c.exchanges[c.n%len(c.exchanges)] = exchange{
		offset: time.Duration((answer.Received - sent + answer.Answered - back) / 2),
		bound:  time.Duration((back - sent - (answer.Answered - answer.Received)) / 2),
	}
	c.n++
}

func (c *clock) best() exchange {
	if c.n == 0 {
		return exchange{}
	}
	return slices.MinFunc(c.exchanges[:min(c.n, len(c.exchanges))], func(a, b exchange) int { return int(a.bound - b.bound) })
}

// offset is what to add to this host's clock: 0, unless the clocks are known to
// differ, since they are taken to be synchronised.
func (c *clock) offset() time.Duration {
	if b := c.best(); b.offset.Abs() > b.bound {
		return b.offset
	}
	return 0
}

func (c *clock) error() time.Duration { return c.best().bound }
