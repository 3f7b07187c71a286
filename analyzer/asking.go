package analyzer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// TwoSteps say from when on, and how, flows are asked about only where there is a reason to
// (rules 7 to 12).
type TwoSteps struct {
	// From is the number of directed flows from which on; 0: never.
	From int
	// Most is how many directed flows one cycle asks about, about.
	Most int
	// Round is the time in which every flow is asked about; 0: a minute, or a millisecond for
	// each flow where that is longer, so that a calm cycle of a second asks about a
	// thousand.
	Round time.Duration
}

// round is the time of a round over so many flows.
func (o TwoSteps) round(flows int) time.Duration {
	if o.Round > 0 {
		return o.Round
	}
	return max(time.Minute, time.Duration(flows)*time.Millisecond)
}

// most is how many directed flows there are to ask about.
func (l *Loop) most() int { return slices.Max(append(l.flows, 0)) }

// DefaultTwoSteps suit a Prometheus with two cores.
func DefaultTwoSteps() TwoSteps { return TwoSteps{From: 5000, Most: 5000} }

// Asking is what the last cycle asked about.
type Asking struct {
	// TwoSteps: not every flow. Missing says why every one, though there are many.
	TwoSteps bool   `json:"two_steps"`
	Missing  string `json:"missing,omitempty"`
	// Edges were asked about; Vouched were not, and count by their last condition.
	Edges   int `json:"edges"`
	Vouched int `json:"vouched_edges"`
	// Moved are the NICs that do not look as they used to, LeftOut those of them, and of the
	// ones with flows in trouble, that there was no room for.
	Moved   int `json:"moved_nics"`
	LeftOut int `json:"left_out_nics"`
	// Late: there is no room to ask about every flow within a round.
	Late bool `json:"late,omitempty"`
}

const (
	// askOn is for how many cycles a NIC is asked about after the last sign of trouble:
	// what clears an incident must be seen, also of one that comes and goes.
	askOn = timelyClearAfter + confirmIn
	// enough flows that should be clean cross an element in question, and so many must
	// tell of an incident that clears when not all that showed it are asked.
	enough = 16
	// mostCompared bounds the NICs that are asked about for comparison only, mostPlaces
	// the elements in question, wholeNICs the moved NICs of which the flows to them are
	// asked about, too.
	mostCompared, mostPlaces, wholeNICs = 64, 24, 8
	// A share of what a cycle may ask is kept for comparison.
	keptForComparison = 5 // a fifth
	// settledAfter cycles in which a NIC looked other than before while all flows from it
	// were healthy, that is how it looks.
	settledAfter = 30
	// learnTries is for how many cycles the baselines of a NIC's flows are waited for.
	learnTries = 3 * (learnWindows + warmUp)
	// groupWindows is how many values of a group are remembered, one in every groupEvery
	// cycles.
	groupWindows, groupEvery = 60, 5
)

// nicState is what is known of a NIC as a whole. Cycles count from 1; 0: never.
type nicState struct {
	name     string
	groups   []*group
	at       time.Time // when the flows from it were asked about last
	from, to int       // in which cycle the flows from it, and to it, were
	flows    int       // directed flows from it that were counted then
	moved    int       // when it last looked other than it used to
	how      extent    // in that cycle
	trouble  int       // when a flow from it was degraded last
	compare  int       // until when it is asked about for comparison
	calm     int       // cycles running in which it moved and all flows from it were healthy
	tries    int       // cycles in which flows from it had no baseline; -1: all have
}

// extent is how much of a NIC's traffic moved.
type extent int

const (
	still  extent = iota
	tail          // nothing but the 99th percentile
	partly        // some of its flows are affected
	wholly        // most of them are
)

// group is a recorded series of a NIC and what is normal of it.
type group struct {
	key      evidence.Group
	nic      *nicState
	ring     []float32
	med, mad float64
	known    bool // med and mad are
	value    float64
	seen     int // in which cycle
	away     int // cycles running in which it was off
}

// flowState is what is known of a flow between the cycles that ask about it.
type flowState struct {
	edge     fabric.Edge
	m        *memory
	src, dst *nicState
	ways     []int32 // places that its path crosses
	healthy  bool    // when it was asked about
	cycle    int
	at       time.Time
	vouched  bool // in this cycle
}

// asking plans what to ask about.
type asking struct {
	size   int // directed flows at the first count; 0: nobody has counted
	state  Asking
	nics   map[string]*nicState
	order  []*nicState
	groups map[evidence.Group]*group
	flows  []*flowState
	sel    *evidence.Selection // of this cycle; nil: everything
	before *evidence.Selection // of the cycle before
	last   time.Time
	seldom evidence.Seldom

	placeID map[fabric.Direction]int32 // a switch is a direction without To
	places  []fabric.Direction
}

func newAsking() *asking {
	return &asking{nics: map[string]*nicState{}, groups: map[evidence.Group]*group{}, placeID: map[fabric.Direction]int32{}}
}

// vouched are the flows that were not asked about in a cycle and are known to be healthy
// (rule 8).
type vouched struct {
	flows, usable int
	aside         int     // not asked about, and under maintenance
	crossed       []int32 // flows by place
	a             *asking
}

// crosses is how many of them cross a direction.
func (v *vouched) crosses(d fabric.Direction) int {
	if v == nil {
		return 0
	}
	if id, ok := v.a.placeID[d]; ok && int(id) < len(v.crossed) {
		return int(v.crossed[id])
	}
	return 0
}

func (v *vouched) total() (flows, usable, aside int) {
	if v == nil {
		return 0, 0, 0
	}
	return v.flows, v.usable, v.aside
}

// ask gets the evidence of a cycle, in one step or in two.
func (l *Loop) ask(ctx context.Context, now time.Time) (evidence.Window, error) {
	o, a := l.o.TwoSteps, l.asking
	if o.From == 0 {
		return evidence.Ask(ctx, l.o.DB, l.o.Settings, now)
	}
	ctx, cancel := l.o.Settings.Patiently(ctx)
	defer cancel()
	c, err := evidence.Begin(ctx, l.o.DB, l.o.Settings, now)
	if err != nil {
		return evidence.Window{}, err
	}
	if a.size == 0 && len(l.flows) == 0 {
		if a.size, err = c.Count(ctx); err != nil {
			return evidence.Window{}, err
		}
		l.flows = append(l.flows, a.size)
	}
	state := Asking{}
	if l.most() >= o.From {
		overview, err := c.Overview(ctx, &a.seldom)
		if err != nil {
			return evidence.Window{}, err
		}
		if state.Missing = overview.Missing; state.Missing == "" {
			return l.askTwice(ctx, c, &overview, now)
		}
	}
	w, err := c.Everything(ctx)
	if err != nil {
		return w, err
	}
	if state.Missing != "" {
		w.Warnings = append(slices.Clone(w.Warnings), "every flow is asked about: "+state.Missing)
	}
	state.Edges = w.Flows
	a.state, a.before, a.sel, a.last = state, a.sel, nil, now
	return w, nil
}

// askTwice asks about the flows that an overview and what is known give reason to ask about.
func (l *Loop) askTwice(ctx context.Context, c *evidence.Cycle, overview *evidence.Overview, now time.Time) (evidence.Window, error) {
	a, cycle := l.asking, l.cycle+1
	a.look(overview, cycle, len(l.open) > 0)
	sel, state := a.choose(l, cycle, now)
	w, err := c.Flows(ctx, overview, sel)
	if err != nil {
		return w, err
	}
	state.TwoSteps, state.Edges = true, w.Flows
	for nic := range sel.Sources {
		s := a.nic(nic)
		s.at, s.from, s.flows = now, cycle, w.BySource[nic]
	}
	for nic := range sel.Destinations {
		a.nic(nic).to = cycle
	}
	w.Flows = 0
	for _, s := range a.order {
		w.Flows += s.flows
	}
	if state.LeftOut > 0 {
		w.Warnings = append(slices.Clone(w.Warnings), fmt.Sprintf("%d NICs that moved, or whose flows are in trouble, are not asked about: a cycle has room for %d flows", state.LeftOut, l.o.TwoSteps.Most))
	}
	if state.Late {
		w.Warnings = append(slices.Clone(w.Warnings), fmt.Sprintf("a round over all flows takes longer than %s: half of a cycle's %d flows do not suffice", l.o.TwoSteps.round(l.most()), l.o.TwoSteps.Most))
	}
	a.state, a.before, a.sel, a.last = state, a.sel, &sel, now
	if a.before == nil {
		a.before = &evidence.Selection{}
	}
	return w, nil
}

func (a *asking) nic(name string) *nicState {
	s := a.nics[name]
	if s == nil {
		s = &nicState{name: name}
		a.nics[name] = s
		i, _ := slices.BinarySearchFunc(a.order, name, func(s *nicState, name string) int { return cmp.Compare(s.name, name) })
		a.order = slices.Insert(a.order, i, s)
	}
	return s
}

// look takes an overview: which NICs moved. What is normal is not learnt while frozen.
func (a *asking) look(o *evidence.Overview, cycle int, frozen bool) {
	for key, v := range o.Values {
		g := a.groups[key]
		if g == nil {
			g = &group{key: key, nic: a.nic(key.NIC), known: key.Metric == evidence.Lost || key.Metric == evidence.Marked}
			a.groups[key] = g
			g.nic.groups = append(g.nic.groups, g)
		}
		g.value, g.seen = v, cycle
	}
	for i, s := range a.order {
		how := still
		s.groups = slices.DeleteFunc(s.groups, func(g *group) bool {
			if cycle-g.seen > expectFor {
				delete(a.groups, g.key)
				return true
			}
			off, told := g.look(cycle)
			if off {
				how = max(how, g.extent(cycle))
			}
			if told && (!g.known || !off && !frozen) {
				g.learn(cycle + i)
			}
			return false
		})
		if o.Hosts()[fabric.OwnerOf(s.name)] != "" || o.Unread(s.name) || !o.Alive(s.name) || !o.Related(s.name) {
			how = max(how, tail)
		}
		if how != still {
			s.moved, s.how = cycle, how
		}
	}
}

// look reports whether a group is off what is normal, and notes for how long. One that is
// told no more is.
func (g *group) look(cycle int) (off, told bool) {
	told = g.seen == cycle
	if !told && (g.key.Metric == evidence.Lost || g.key.Metric == evidence.Marked) {
		g.value, told = 0, true
	}
	off = g.known && (!told || g.off())
	if off {
		g.away++
	} else {
		g.away = 0
	}
	return off, told
}

// What a ratio must differ by at least.
const (
	leastLost, leastMarked, leastAnswered = 5e-4, 5e-3, 0.01
	// groupMADs is how many median absolute deviations a value may be off.
	groupMADs = 8
	// bucket is the width of a bucket of a native histogram of schema 4.
	bucket = 0.045
)

func (g *group) off() bool {
	by, noise := g.value-g.med, groupMADs*g.mad
	floor := judge.Defaults().FloorKernel.Seconds()
	switch g.key.Timestamp {
	case "hardware":
		floor = judge.Defaults().FloorHardware.Seconds()
	case "user":
		floor = judge.Defaults().FloorUser.Seconds()
	}
	switch g.key.Metric {
	case evidence.MedianDelay:
		return math.Abs(by) > max(floor, noise, bucket*math.Abs(g.med))
	case evidence.TailDelay:
		return by > max(2*floor, noise, 2*bucket*math.Abs(g.med))
	case evidence.Lost:
		return by > max(leastLost, noise)
	case evidence.Marked:
		return by > max(leastMarked, noise)
	}
	return -by > max(leastAnswered, noise)
}

// extent says what it means that a group is off. A tail moves in one window by chance.
func (g *group) extent(cycle int) extent {
	const most = 0.4 // of the packets
	switch g.key.Metric {
	case evidence.TailDelay:
		if g.away < 2 {
			return still
		}
		return tail
	case evidence.MedianDelay:
		return wholly
	}
	if g.seen != cycle && g.key.Metric == evidence.Answered || math.Abs(g.value-g.med) > most {
		return wholly
	}
	return partly
}

// learn takes the value for a normal one. Which cycles count differs from NIC to NIC, so that
// no cycle has all the work.
func (g *group) learn(turn int) {
	if len(g.ring) >= learnWindows && turn%groupEvery != 0 {
		return
	}
	if g.ring = append(g.ring, float32(g.value)); len(g.ring) > groupWindows {
		g.ring = g.ring[1:]
	}
	if len(g.ring) < learnWindows && g.key.Metric != evidence.Lost && g.key.Metric != evidence.Marked {
		return
	}
	ring := slices.Clone(g.ring)
	slices.Sort(ring)
	med := ring[len(ring)/2]
	for i, v := range ring {
		ring[i] = max(v-med, med-v)
	}
	slices.Sort(ring)
	g.med, g.mad, g.known = float64(med), float64(ring[len(ring)/2]), true
}

// sure reports whether the aggregates of a NIC can tell that it moved.
func (s *nicState) sure() bool {
	for _, g := range s.groups {
		if !g.known {
			return false
		}
	}
	return true
}

// plan is a selection in the making.
type plan struct {
	sel     evidence.Selection
	room    int // directed flows
	average int
	left    int // NICs there was no room for
}

// add asks about the flows from a NIC, if there is room that is not kept.
func (p *plan) add(s *nicState, kept int) bool {
	if p.sel.Sources[s.name] {
		return true
	}
	cost := s.flows
	if s.from == 0 {
		cost = p.average
	}
	if p.room-cost < kept {
		return false
	}
	p.room -= cost
	p.sel.Sources[s.name] = true
	return true
}

// addTo asks about the flows to a NIC: about as many as from it.
func (p *plan) addTo(s *nicState, kept int) {
	if cost := max(s.flows, p.average); !p.sel.Destinations[s.name] && p.room-cost >= kept {
		p.room -= cost
		p.sel.Destinations[s.name] = true
	}
}

// choose says whom to ask (rule 7), those first that must not be left out.
func (a *asking) choose(l *Loop, cycle int, now time.Time) (evidence.Selection, Asking) {
	o := l.o.TwoSteps
	p := &plan{sel: evidence.Selection{Sources: map[string]bool{}, Destinations: map[string]bool{}}, room: o.Most, average: 1}
	if len(a.order) > 0 {
		p.average = max(1, l.most()/len(a.order))
	}
	state := Asking{Late: a.turns(p, o.Most/2, o.round(l.most()), now)}
	kept := p.room / keptForComparison
	sources, destinations := a.restless(l, cycle)
	for _, s := range sources {
		if s.moved == cycle {
			state.Moved++
		}
		if !p.add(s, kept) {
			p.left++
		}
		if slices.Contains(destinations, s) {
			p.addTo(s, kept)
		}
	}
	compared := 0
	for _, s := range a.order {
		if s.compare >= cycle && compared < mostCompared && !p.sel.Sources[s.name] && p.add(s, 0) {
			compared++
		}
	}
	for _, s := range a.order {
		if s.from == 0 || s.tries >= 0 && s.tries < learnTries {
			p.add(s, 0)
		}
	}
	state.LeftOut = p.left
	return p.sel, state
}

// turns are the NICs that were not asked about for longest: as many as it takes to get round
// in time, in half of the room. It reports whether that is too few.
func (a *asking) turns(p *plan, kept int, round time.Duration, now time.Time) (late bool) {
	const ahead = 0.9 // of the round, so that a late cycle leaves nobody out
	n := len(a.order)
	if !a.last.IsZero() {
		n = int(math.Ceil(float64(n) * now.Sub(a.last).Seconds() / (ahead * round.Seconds())))
	}
	oldest := slices.Clone(a.order)
	slices.SortStableFunc(oldest, func(a, b *nicState) int { return a.at.Compare(b.at) })
	for _, s := range oldest[:min(n, len(oldest))] {
		if !p.add(s, kept) {
			return s.from > 0 && now.Sub(s.at) >= round
		}
	}
	return false
}

// restless are the NICs that moved or had flows in trouble not long ago, and those of which
// flows show what is open or may become so; the flows to the destinations do. Those come first
// of which most flows are affected, and those of which only the tail moved come last. Of their
// likes the ones in trouble come first, as before, and of every leaf one before any has two, so
// that what there is room for shows all of the fabric.
func (a *asking) restless(l *Loop, cycle int) (sources, destinations []*nicState) {
	shows, to := map[*nicState]bool{}, map[*nicState]bool{}
	take := func(v *fabric.Verdict) {
		if s := a.nics[v.Element.Element]; s != nil {
			shows[s], to[s] = true, true
			return // every flow that shows it is from it or to it
		}
		for _, name := range v.Edges {
			if e, err := fabric.ParseEdge(name); err == nil && a.nics[e.Src] != nil {
				shows[a.nics[e.Src]] = true
			}
		}
	}
	for _, in := range l.open {
		take(&in.Verdict)
	}
	for _, c := range l.cand {
		take(&c.verdict)
	}
	type placed struct {
		*nicState
		named, shows bool
		how          extent
		turn         int
	}
	var all []placed
	turns := map[string]int{}
	for _, s := range a.order {
		p := placed{nicState: s, named: to[s], shows: shows[s] || s.trouble > 0 && cycle-s.trouble <= askOn}
		if s.moved > 0 && cycle-s.moved <= askOn {
			p.how = s.how
		}
		if p.shows {
			p.how = max(p.how, partly)
		}
		if p.how == still {
			continue
		}
		like := fmt.Sprint(fabric.OwnerOf(l.o.Graph.Peer(s.name)), p.how, p.shows)
		p.turn = turns[like]
		turns[like]++
		all = append(all, p)
		if s.moved > 0 && p.how == wholly {
			destinations = append(destinations, s)
		}
	}
	first := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(first(a.named, b.named), cmp.Compare(b.how, a.how), first(a.shows, b.shows), cmp.Compare(a.turn, b.turn))
	})
	for _, p := range all {
		sources = append(sources, p.nicState)
	}
	if len(destinations) > wholeNICs {
		destinations = nil
	}
	for _, s := range slices.SortedFunc(maps.Keys(to), func(a, b *nicState) int { return cmp.Compare(a.name, b.name) }) {
		if !slices.Contains(destinations, s) {
			destinations = append(destinations, s)
		}
	}
	return sources, destinations
}

// askedBefore reports whether the cycle before asked about a flow, too.
func (a *asking) askedBefore(e fabric.Edge) bool { return a.before == nil || a.before.Has(e) }

// asked reports whether this cycle asks about a flow.
func (a *asking) asked(e fabric.Edge) bool { return a.sel == nil || a.sel.Has(e) }

// note keeps what the flows that were asked about told.
func (l *Loop) note(raw, findings []judge.Finding, at time.Time) {
	a := l.asking
	if l.o.TwoSteps.From == 0 || l.most() < l.o.TwoSteps.From {
		return
	}
	sick, unlearnt := map[*nicState]bool{}, map[*nicState]bool{}
	for i := range raw {
		f := &raw[i]
		m := l.memory(f.Edge)
		if m.flow == nil {
			m.flow = &flowState{edge: f.Edge, m: m, src: a.nic(f.Edge.Src), dst: a.nic(f.Edge.Dst)}
			a.flows = append(a.flows, m.flow)
		}
		s := m.flow
		s.cycle, s.at, s.healthy = l.cycle, at, false
		if len(f.Obs.Path) > 0 {
			s.ways = a.ways(s.ways[:0], f.Obs.Path, f.Edge)
		} else {
			s.ways = nil
		}
		if f.Condition == judge.Degraded && (a.sel == nil || !a.sel.Destinations[f.Edge.Dst]) {
			s.src.trouble = l.cycle
		}
		if f.Condition != judge.Healthy {
			sick[s.src] = true
		}
		if m.base == nil && !l.aside.flow(f.Edge) {
			unlearnt[s.src] = true
		}
	}
	for i := range findings {
		if f := &findings[i]; f.Condition == judge.Healthy {
			l.memory(f.Edge).flow.healthy = true
		}
	}
	for _, s := range a.order {
		if a.sel == nil {
			s.at, s.from = at, l.cycle
		}
		if s.from != l.cycle {
			continue
		}
		switch {
		case unlearnt[s] && s.tries < 0:
			s.tries = 0
		case unlearnt[s]:
			s.tries++
		default:
			s.tries = -1
		}
		if s.moved != l.cycle || sick[s] {
			s.calm = 0
			continue
		}
		if s.calm++; s.calm >= settledAfter {
			s.calm = 0
			s.groups = slices.DeleteFunc(s.groups, func(g *group) bool {
				if g.seen != l.cycle && g.away > 0 {
					delete(a.groups, g.key) // what it told of, it does no more
					return true
				}
				if g.away > 0 {
					g.ring, g.med, g.mad, g.known = []float32{float32(g.value)}, g.value, 0, true
				}
				return false
			})
		}
	}
}

// ways appends the places that a path crosses.
func (a *asking) ways(out []int32, p fabric.Path, e fabric.Edge) []int32 {
	src, dst := e.Ends()
	for _, d := range p.Directions(src, dst) {
		out = append(out, a.place(d))
	}
	for _, h := range p {
		out = append(out, a.place(fabric.Direction{From: h.Switch}))
	}
	return out
}

func (a *asking) place(d fabric.Direction) int32 {
	id, ok := a.placeID[d]
	if !ok {
		id = int32(len(a.places))
		a.placeID[d] = id
		a.places = append(a.places, d)
	}
	return id
}

// vouch counts the flows that were not asked about and are known to be healthy, and chooses
// from the others, and from them, whom to ask for comparison in the next cycles.
func (l *Loop) vouch(findings []judge.Finding, now time.Time) *vouched {
	a := l.asking
	if a.sel == nil {
		for _, s := range a.flows {
			s.vouched = false
		}
		return nil
	}
	v := &vouched{crossed: make([]int32, len(a.places)), a: a}
	aside := make([]bool, len(a.places))
	for i, d := range a.places {
		aside[i] = len(l.aside.windows) > 0 && d.To != "" && l.aside.direction(d)
	}
	round := l.o.TwoSteps.round(l.most())
	sure := map[*nicState]bool{}
	for _, s := range a.order {
		sure[s] = s.sure()
	}
	q := l.inQuestion(findings)
	kept := a.flows[:0]
	for _, s := range a.flows {
		if s.m.flow != s {
			continue // forgotten
		}
		kept = append(kept, s)
		s.vouched = false
		if s.src.from == l.cycle || s.dst.to == l.cycle {
			continue
		}
		if slices.ContainsFunc(s.ways, func(p int32) bool { return aside[p] }) {
			v.aside++
			l.setFlowAside(s)
			continue
		}
		q.offer(s)
		if !s.healthy || now.Sub(s.at) > round || s.src.moved > s.cycle || s.dst.moved > s.cycle || !sure[s.src] || !sure[s.dst] {
			continue
		}
		s.vouched = true
		v.flows++
		if len(s.ways) > 0 {
			v.usable++
		}
		for _, p := range s.ways {
			v.crossed[p]++
		}
	}
	clear(a.flows[len(kept):])
	a.flows = kept
	q.choose(l.cycle)
	a.state.Vouched = v.flows
	return v
}

// setFlowAside is setAside for a flow that was not asked about.
func (l *Loop) setFlowAside(s *flowState) {
	l.aside.flows[s.edge] = true
	for i := range l.aside.windows {
		w := &l.aside.windows[i]
		for _, p := range s.ways {
			if d := l.asking.places[p]; d.To != "" && w.Touches(d) {
				l.touch(w, s.edge)
				break
			}
		}
	}
}

// question is an element about which there is doubt, and who could tell: flows that cross it,
// or some of what looks alike and not all of it.
type question struct {
	places []int32
	alike  bool
	need   int
	found  []*flowState
}

type questions struct {
	all []*question
	at  map[int32][]int // questions, by place
	n   []int           // scratch: places of a question that a flow crosses
}

// inQuestion are the elements that most degraded flows cross, and those that verdicts name and
// cannot tell from others.
func (l *Loop) inQuestion(findings []judge.Finding) *questions {
	a := l.asking
	q := &questions{at: map[int32][]int{}}
	bad, good := map[int32]int{}, map[int32]int{}
	degraded := 0
	for i := range findings {
		f := &findings[i]
		s := l.memory(f.Edge).flow
		if s == nil || f.Condition == judge.Undecided {
			continue
		}
		count := good
		if f.Condition == judge.Degraded {
			count = bad
			degraded++
		}
		for _, p := range s.ways {
			count[p]++
		}
	}
	suspects := slices.SortedFunc(maps.Keys(bad), func(a, b int32) int { return cmp.Or(bad[b]-bad[a], int(a-b)) })
	for _, p := range suspects[:min(len(suspects), mostPlaces)] {
		if bad[p] >= 2 && bad[p]*keptForComparison >= degraded && good[p] < enough {
			q.add(&question{places: []int32{p}, need: enough - good[p]})
		}
	}
	either := func(v *fabric.Verdict) {
		if len(v.Alike) == 0 {
			return
		}
		x := &question{alike: true, need: enough}
		named := fabric.Place{Element: v.Element}
		named.Direction, _ = fabric.ParseDirection(v.Direction)
		for _, p := range append([]fabric.Place{named}, v.Alike...) {
			x.places = append(x.places, a.placesOf(l.store.Graph(), p)...)
		}
		if len(x.places) > 1 {
			q.add(x)
		}
	}
	for _, in := range l.open {
		either(&in.Verdict)
	}
	for _, c := range l.cand {
		either(&c.verdict)
	}
	return q
}

// placesOf are the places of an element, as far as there are any.
func (a *asking) placesOf(g *fabric.Graph, p fabric.Place) []int32 {
	el, kind := p.Element.Element, p.Kind
	switch {
	case p.Direction != (fabric.Direction{}):
		return []int32{a.place(p.Direction)}
	case kind == fabric.KindSwitch:
		return []int32{a.place(fabric.Direction{From: el})}
	case kind == fabric.KindNIC && g.Peer(el) != "":
		return []int32{a.place(fabric.Direction{From: el, To: g.Peer(el)}), a.place(fabric.Direction{From: g.Peer(el), To: el})}
	}
	if x, y, ok := fabric.SplitLink(el); ok {
		return []int32{a.place(fabric.Direction{From: x, To: y}), a.place(fabric.Direction{From: y, To: x})}
	}
	return nil
}

func (q *questions) add(x *question) {
	for _, p := range x.places {
		q.at[p] = append(q.at[p], len(q.all))
	}
	q.all, q.n = append(q.all, x), append(q.n, 0)
}

// offer takes a flow that could be asked about.
func (q *questions) offer(s *flowState) {
	if len(q.all) == 0 {
		return
	}
	clear(q.n)
	for _, p := range s.ways {
		for _, i := range q.at[p] {
			q.n[i]++
		}
	}
	const choice = 4 // times what is needed
	for i, x := range q.all {
		if q.n[i] > 0 && (!x.alike || q.n[i] < len(x.places)) && len(x.found) < choice*x.need {
			x.found = append(x.found, s)
		}
	}
}

// choose asks for comparison about those that bring most, one question after the other.
func (q *questions) choose(cycle int) {
	for _, x := range q.all {
		brings := map[*nicState]int{}
		need := x.need
		for _, s := range x.found {
			if s.src.compare > cycle {
				need-- // it comes in any case
			}
			brings[s.src]++
		}
		sources := slices.SortedFunc(maps.Keys(brings), func(a, b *nicState) int {
			return cmp.Or(brings[b]-brings[a], cmp.Compare(a.name, b.name))
		})
		for _, s := range sources {
			if need <= 0 {
				break
			}
			if s.compare <= cycle {
				need -= brings[s]
				s.compare = cycle + askOn
			}
		}
	}
}
