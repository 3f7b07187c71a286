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

// Querier sends queries to the fabric: an ibmad.Client.
type Querier interface {
	DoAll(context.Context, []ibmad.Request, func(*ibmad.Result) []ibmad.Request) error
}

// kindOf returns the kind of a failed query: a label value of series.
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

// cutShort is the kind of the queries that a sweep had no time for.
const cutShort = "cut_short"

// Authority is a delegator in this process or another.
type Authority interface {
	SendReport(context.Context, *Report) (Clock, error)
	FetchAssignment(ctx context.Context, sampler, instance string, since uint64) (Assignment, error)
}

// Sampler reads what a delegator assigns to it.
type Sampler struct {
	name, instance string
	authority      Authority
	fabric         Querier
	log            *slog.Logger

	mu          sync.Mutex
	assignment  Assignment
	assigned    chan struct{} // closed when there is an assignment
	lastContact time.Time     // when the delegator was last reached
	clock       clock
	missed      uint64
}

// NewSampler returns a sampler that is idle until Run.
func NewSampler(name string, to Authority, fabric Querier, log *slog.Logger) (*Sampler, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	return &Sampler{name: name, instance: hex.EncodeToString(id[:]), authority: to, fabric: fabric, log: log.With("sampler", name), assigned: make(chan struct{})}, nil
}

// Run samples until the context ends.
func (s *Sampler) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.followAssignment(ctx) })
	select {
	case <-ctx.Done():
		return
	case <-s.assigned:
	}
	done := make(chan *Report, 2)
	wg.Go(func() {
		for r := range done {
			if err := s.deliverReadings(ctx, r); err != nil && ctx.Err() == nil {
				s.log.Warn("cannot deliver readings", "tick", r.Tick, "readings", len(r.Readings), "err", err)
			}
		}
	})
	defer close(done)
	var last struct {
		tick     int64
		interval time.Duration
	}
	for {
		work, tick, ok := s.awaitTick(ctx)
		if !ok {
			return
		}
		if work.Interval == last.interval && tick > last.tick+1 {
			s.addMissed(uint64(tick - last.tick - 1))
		}
		last.tick, last.interval = tick, work.Interval
		r := s.newReport(tick)
		wg.Go(func() { s.announceTick(ctx, r, work.Interval) })
		if !s.inContact() {
			continue
		}
		sweep := *r
		s.runSweep(ctx, &work, &sweep)
		select {
		case done <- &sweep:
		default:
			s.log.Warn("cannot deliver readings: earlier ones are still waiting", "tick", tick)
		}
	}
}

// followAssignment keeps the assignment up to date until the context ends.
func (s *Sampler) followAssignment(ctx context.Context) {
	since, failing := uint64(0), false
	for ctx.Err() == nil {
		a, err := s.authority.FetchAssignment(ctx, s.name, s.instance, since)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if !failing {
				s.log.Warn("cannot reach the delegator", "err", err)
			}
			failing, since = true, 0
			select {
			case <-ctx.Done():
			case <-time.After(retryWork):
			}
			continue
		}
		if failing {
			s.log.Info("delegator is reachable again")
		}
		failing = false
		s.applyAssignment(a, since)
		since = a.Revision
	}
}

// retryWork is how long a sampler waits before it repeats a request that the delegator did not answer: shorter
// than half of any useful interval (rule 6).
const retryWork = 100 * time.Millisecond

func (s *Sampler) applyAssignment(a Assignment, since uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastContact = time.Now()
	if a.Revision == since {
		return
	}
	// Neighbours in the list are ports of one switch, whose agent answers them one after the other, so they are
	// spread over the sweep.
	slices.SortStableFunc(a.Targets, func(x, y Target) int { return int(x.Port) - int(y.Port) })
	s.assignment = a
	if since == 0 {
		select {
		case <-s.assigned:
		default:
			close(s.assigned)
		}
	}
	s.log.Debug("assignment", "revision", a.Revision, "ports", len(a.Targets))
}

// awaitTick sleeps until the next tick and returns the assignment and the tick. It returns false when the
// context ends.
func (s *Sampler) awaitTick(ctx context.Context) (Assignment, int64, bool) {
	s.mu.Lock()
	interval, offset := s.assignment.Interval, s.clock.delegatorOffset()
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
	return s.assignment, tick, true
}

func (s *Sampler) addMissed(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed += n
}

func (s *Sampler) newReport(tick int64) *Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now().Add(s.clock.delegatorOffset())
	return &Report{Sampler: s.name, Instance: s.instance, Vocabulary: Vocabulary, Tick: tick, Began: began.UnixNano(), ClockError: s.clock.errorBound(), Missed: s.missed}
}

// inContact reports whether the delegator was reached recently enough to sample (rule 8).
func (s *Sampler) inContact() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.lastContact) < 2*s.assignment.Interval+s.assignment.Interval/2
}

// announceTick reports to the delegator that a tick begins, and compares the clocks with its answer.
func (s *Sampler) announceTick(ctx context.Context, r *Report, interval time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	sent := time.Now()
	c, err := s.sendReport(ctx, r)
	if err != nil {
		return // followAssignment logs it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.addExchange(sent.UnixNano(), c, time.Now().UnixNano())
}

// deliverReadings sends readings to the delegator, for up to two intervals, after which they have no use.
func (s *Sampler) deliverReadings(ctx context.Context, r *Report) error {
	s.mu.Lock()
	interval := s.assignment.Interval
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*interval)
	defer cancel()
	_, err := s.sendReport(ctx, r)
	return err
}

func (s *Sampler) sendReport(ctx context.Context, r *Report) (Clock, error) {
	c, err := s.authority.SendReport(ctx, r)
	if err == nil {
		s.mu.Lock()
		s.lastContact = time.Now()
		s.mu.Unlock()
	}
	return c, err
}

// sweepShare is the part of an interval that a sweep may take. The rest is for the report.
const sweepShare = 0.9

// runSweep reads the ports of the assignment. It writes the traits that it determines into the assignment's
// targets, which belong to it.
func (s *Sampler) runSweep(ctx context.Context, work *Assignment, r *Report) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(float64(work.Interval)*sweepShare))
	defer cancel()
	s.mu.Lock()
	offset := s.clock.delegatorOffset()
	s.mu.Unlock()
	r.Readings = SweepTargets(ctx, s.fabric, work.Targets, work.Metrics, offset)
	r.Done, r.Took = true, time.Since(began)
}

// port is a target during a sweep.
type port struct {
	*Target
	traitsBefore   Traits
	reading        *Reading
	pendingQueries []Query // sent and not answered yet
}

// node holds what a sweep knows of the agent that several targets share.
type node struct {
	ports       []int
	newPorts    []int // indices of ports without known traits
	learntPorts int   // how many of newPorts have all requested traits
	answered    bool
	pending     int               // queries on their way
	probes      []ibmad.Attribute // optional queries to try; the first one is on its way
	probing     bool
}

// sweep represents one reading of all ports.
type sweep struct {
	metrics  Selection
	offset   time.Duration
	began    time.Time
	end      time.Time // end of the sweep; zero means none
	ports    []port
	nodes    map[uint64]*node
	readings []Reading
	plans    map[Traits][]Query
}

// SweepTargets reads the counters of all targets once. Unknown traits are
// determined first and written into the targets. offset is added to times.
//
// An optional query is sent to one port of a node until that
// answers, or refuses it, or leaves it unanswered while it answers
// others. Only then is it sent to all ports of the node (rule 2).
func SweepTargets(ctx context.Context, fabric Querier, targets []Target, metrics Selection, offset time.Duration) []Reading {
	w := sweep{metrics: metrics, offset: offset, began: time.Now(), ports: make([]port, len(targets)), nodes: map[uint64]*node{}, plans: map[Traits][]Query{},
		readings: make([]Reading, len(targets))}
	w.end, _ = ctx.Deadline()
	var first []ibmad.Request
	for i := range targets {
		t := &targets[i]
		w.readings[i].Key = t.Key
		w.ports[i] = port{Target: t, traitsBefore: t.Traits, reading: &w.readings[i]}
		n := w.nodes[t.Node]
		if n == nil {
			n = &node{}
			w.nodes[t.Node] = n
		}
		n.ports = append(n.ports, i)
		switch {
		case t.Traits.Known:
			asks := w.queryPort(i, t.Traits.provenQueries())
			n.pending += len(asks)
			first = append(first, asks...)
		case n.newPorts == nil:
			n.pending++
			first = append(first, taggedRequest(ibmad.GetClassPortInfo(ibmad.LID(t.LID)), i))
			fallthrough
		default:
			n.newPorts = append(n.newPorts, i)
		}
	}
	for _, n := range w.nodes {
		if n.newPorts == nil {
			w.listProbes(n)
			first = append(first, w.nextProbe(n)...)
		}
	}
	// Results that are not visited in time remain on the lists of unfinished work.
	_ = fabric.DoAll(ctx, first, w.visitResult)
	for i := range w.ports {
		p := &w.ports[i]
		for _, a := range p.pendingQueries {
			p.recordError(a.Attribute, cutShort)
		}
		if !p.Traits.Known && len(p.reading.Errors) == 0 {
			p.recordError(ibmad.AttrClassPortInfo, cutShort)
		}
		if p.Traits != p.traitsBefore {
			t := p.Traits
			p.reading.Traits = &t
		}
	}
	return w.readings
}

func taggedRequest(r ibmad.Request, tag int) ibmad.Request {
	r.Tag = tag
	return r
}

func (p *port) recordError(a ibmad.Attribute, kind string) {
	p.reading.Errors = append(p.reading.Errors, ReadError{a.String(), kind})
}

// wantedQueries returns the queries of a port that are wanted.
func (w *sweep) wantedQueries(i int) []Query {
	t := w.ports[i].Traits
	asks, ok := w.plans[t]
	if !ok {
		asks = w.metrics.QueriesFor(t)
		w.plans[t] = asks
	}
	return asks
}

// queryPort returns the requests to a port for those of the queries, a bit for each, that are wanted.
func (w *sweep) queryPort(i int, which uint16) (out []ibmad.Request) {
	p := &w.ports[i]
	for _, a := range w.wantedQueries(i) {
		if which&attributeBit(a.Attribute) != 0 {
			p.pendingQueries = append(p.pendingQueries, a)
			out = append(out, taggedRequest(ibmad.GetCounters(a.Attribute, ibmad.LID(p.LID), p.Port), i))
		}
	}
	return out
}

// listProbes lists the wanted queries that a node need not support.
func (w *sweep) listProbes(n *node) {
	proven, absent := w.knownQueries(n)
	for _, a := range ibmad.CounterAttributes() {
		if (mandatoryQueries|proven|absent)&attributeBit(a) == 0 && slices.ContainsFunc(n.ports, func(i int) bool { return w.wantsAttribute(i, a) }) {
			n.probes = append(n.probes, a)
		}
	}
}

func (w *sweep) wantsAttribute(i int, a ibmad.Attribute) bool {
	return slices.ContainsFunc(w.wantedQueries(i), func(x Query) bool { return x.Attribute == a })
}

// nextProbe returns the next of them when nothing else is on its way to the node: a client considers a node
// silent that answers none of its requests.
func (w *sweep) nextProbe(n *node) []ibmad.Request {
	if len(n.probes) == 0 || n.pending > 0 {
		return nil
	}
	i := n.ports[slices.IndexFunc(n.ports, func(i int) bool { return w.wantsAttribute(i, n.probes[0]) })]
	n.probing = true
	n.pending++
	return w.queryPort(i, attributeBit(n.probes[0]))
}

// knownQueries returns the queries that the ports of a node support, and those that they do not.
func (w *sweep) knownQueries(n *node) (proven, absent uint16) {
	for _, i := range n.ports {
		proven |= w.ports[i].Traits.Proven
		absent |= w.ports[i].Traits.Absent
	}
	return proven, absent &^ proven
}

// markQueries sets bits in the traits of all ports of a node.
func (w *sweep) markQueries(n *node, proven, absent uint16) {
	for _, i := range n.ports {
		w.ports[i].Traits.Proven |= proven
		w.ports[i].Traits.Absent |= absent
	}
}

func (w *sweep) visitResult(r *ibmad.Result) []ibmad.Request {
	n := w.nodes[w.ports[r.Request.Tag].Node]
	next := w.handleResult(n, r)
	n.pending += len(next) - 1
	return append(next, w.nextProbe(n)...)
}

func (w *sweep) handleResult(n *node, r *ibmad.Result) []ibmad.Request {
	i := r.Request.Tag
	p := &w.ports[i]
	n.answered = n.answered || r.Err == nil
	switch r.Request.Attribute {
	case ibmad.AttrClassPortInfo:
		return w.learnCapabilities(n, r)
	case ibmad.AttrPortInfo:
		// A subnet manager may reserve PortInfo for itself (M_Key). The counters are read without it.
		if r.Err == nil {
			var info ibmad.PortInfo
			info.Decode(r.Data())
			p.Traits.VLs, p.Traits.Lanes = dataVLs(info.OperationalVLs), uint8(info.ActiveLanes())
			// A node that does not support the attribute may not answer at all.
			if p.Traits.FEC == FECUnknown && info.Capabilities&ibmad.CapCapabilityMask2 != 0 && info.Capabilities2&ibmad.Cap2PortInfoExtended != 0 {
				return []ibmad.Request{taggedRequest(ibmad.GetPortInfoExtended(ibmad.ToLID(ibmad.LID(p.LID)), p.Port), i)}
			}
		}
		return w.finishLearning(n, i)
	case ibmad.AttrPortInfoExtended:
		if r.Err == nil {
			var info ibmad.PortInfoExtended
			info.Decode(r.Data())
			if p.Traits.FEC = FECPerLane; info.FECMode.ReedSolomon() {
				p.Traits.FEC = FECReedSolomon
			}
		}
		return w.finishLearning(n, i)
	}
	at := slices.IndexFunc(p.pendingQueries, func(a Query) bool { return a.Attribute == r.Request.Attribute })
	ask := p.pendingQueries[at]
	p.pendingQueries = slices.Delete(p.pendingQueries, at, at+1)
	if n.probing {
		return w.handleProbe(n, p, ask, r)
	}
	switch {
	case errors.Is(r.Err, ibmad.ErrUnsupported):
		p.Traits.Absent |= attributeBit(ask.Attribute)
	case r.Err != nil:
		p.recordError(ask.Attribute, kindOf(r.Err))
	default:
		w.recordAnswer(p, ask, r)
	}
	return nil
}

func (w *sweep) recordAnswer(p *port, ask Query, r *ibmad.Result) {
	a := Answer{At: r.Received.Add(w.offset).UnixNano(), IDs: ask.IDs, Raws: make([]uint64, len(ask.IDs))}
	for k, id := range ask.IDs {
		a.Raws[k] = Counters[id].DecodeValue(r.Data())
	}
	p.reading.Answers = append(p.reading.Answers, a)
}

// handleProbe handles the result of a probe. A node that lacks such counters is not an error of a reading.
func (w *sweep) handleProbe(n *node, p *port, ask Query, r *ibmad.Result) (next []ibmad.Request) {
	n.probes, n.probing = n.probes[1:], false
	switch {
	case r.Err == nil:
		w.markQueries(n, attributeBit(ask.Attribute), 0)
		w.recordAnswer(p, ask, r)
		for _, i := range n.ports {
			if &w.ports[i] != p {
				next = append(next, w.queryPort(i, attributeBit(ask.Attribute))...)
			}
		}
	case errors.Is(r.Err, ibmad.ErrUnsupported):
		w.markQueries(n, 0, attributeBit(ask.Attribute))
	case errors.Is(r.Err, ibmad.ErrTimeout) && n.answered:
		w.markQueries(n, 0, attributeBit(ask.Attribute))
		// Waiting for queries that are never answered takes time that readings need: the next sweep continues.
		if !w.end.IsZero() && r.Received.Sub(w.began) > w.end.Sub(w.began)/probeShare {
			n.probes = nil
		}
	default:
		p.recordError(ask.Attribute, kindOf(r.Err))
		n.probes = nil
	}
	return next
}

// probeShare is the part of a sweep within which an unanswered probe is followed by another: a quarter.
const probeShare = 4

// learnCapabilities handles a node's ClassPortInfo, its capabilities.
func (w *sweep) learnCapabilities(n *node, r *ibmad.Result) (next []ibmad.Request) {
	var info ibmad.ClassPortInfo
	if r.Err == nil {
		info.Decode(r.Data())
	}
	for _, i := range n.newPorts {
		p := &w.ports[i]
		if r.Err != nil {
			p.recordError(ibmad.AttrClassPortInfo, kindOf(r.Err))
			continue
		}
		// What other ports of the node have proven holds for this one.
		proven, absent := w.knownQueries(n)
		p.Traits = Traits{Known: true, Capabilities: info.Capabilities, Capabilities2: info.Capabilities2, Proven: proven, Absent: absent}
		if info.Capabilities&ibmad.PMReedSolomonCounters == 0 {
			p.Traits.FEC = FECPerLane
		}
		if w.perPort() {
			next = append(next, taggedRequest(ibmad.GetPortInfo(ibmad.ToLID(ibmad.LID(p.LID)), p.Port), i))
		} else {
			next = append(next, w.finishLearning(n, i)...)
		}
	}
	return next
}

// perPort reports whether counters are wanted whose number per port is in PortInfo.
func (w *sweep) perPort() bool {
	return slices.ContainsFunc(Counters, func(c Counter) bool {
		return w.metrics.selectsCounter(&c) && (c.Index == ibmad.PerVL || c.Attribute == ibmad.AttrPortExtendedSpeeds)
	})
}

// finishLearning returns the requests for a port whose traits are complete. With the last port of a node, the
// probes are known too.
func (w *sweep) finishLearning(n *node, i int) []ibmad.Request {
	next := w.queryPort(i, w.ports[i].Traits.provenQueries())
	if n.learntPorts++; n.learntPorts == len(n.newPorts) {
		w.listProbes(n)
	}
	return next
}

// dataVLs returns the number of data VLs of an OperationalVLs code (IBA volume 1, table 146).
func dataVLs(code uint8) uint8 {
	switch code {
	case 1, 2, 3, 4:
		return 1 << (code - 1)
	case 5:
		return 15
	}
	return 0
}

// clock estimates the offset between this host's clock and the delegator's from the exchanges of reports.
type clock struct {
	exchanges [16]exchange
	n         int
}

type exchange struct{ offset, bound time.Duration }

func (c *clock) addExchange(sent int64, answer Clock, back int64) {
	c.exchanges[c.n%len(c.exchanges)] = exchange{
		offset: time.Duration((answer.Received - sent + answer.Answered - back) / 2),
		bound:  time.Duration((back - sent - (answer.Answered - answer.Received)) / 2),
	}
	c.n++
}

func (c *clock) bestExchange() exchange {
	if c.n == 0 {
		return exchange{}
	}
	return slices.MinFunc(c.exchanges[:min(c.n, len(c.exchanges))], func(a, b exchange) int { return int(a.bound - b.bound) })
}

// delegatorOffset returns what to add to this host's clock: 0 unless the clocks are known to differ, because
// they are expected to be synchronised.
func (c *clock) delegatorOffset() time.Duration {
	if b := c.bestExchange(); b.offset.Abs() > b.bound {
		return b.offset
	}
	return 0
}

func (c *clock) errorBound() time.Duration { return c.bestExchange().bound }
