// Package questions asks the mesh for measurements that distinguish the suspects of an incident. It decides when to ask,
// and remembers what was asked and granted.
//
// Rules:
//
//  1. An incident is asked about while its flows cannot distinguish its element from others, or while a rival of it is a
//     candidate. Which flows are wanted, package asking decides. Where no flow can decide, and packets are lost, it is
//     hop-limited probes.
//  2. A candidate that no incident explains is asked about when several consecutive cycles have it, and it is likely
//     enough.
//  3. A question is asked again when its suspects changed, or when its flows have ended, at most maxRounds times. An
//     answer is awaited beside the cycle: a verdict is never later because of a question.
//  4. When nothing is left to distinguish, or the incident is over, the flows are given back.
//  5. What the flows and probes showed holds as long as the incident: an element that they excluded does not return when
//     they end. Package incident remembers it.
//  6. The counts of a hop-limited probe say nothing once its flow has taken another path, or another switch has answered.
package questions

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/asking"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

const (
	// maxRounds is how often the same incident is asked about.
	maxRounds = 3
	// askAgainAfter is when the flows of a question have ended, by the coordinator's limit.
	askAgainAfter = time.Minute
	// askDeadline bounds the time of one question, and queuedQuestions the number of waiting ones.
	askDeadline     = 3 * time.Second
	queuedQuestions = 64
	// A candidate is asked about from leastProbability on, when persistCycles consecutive cycles have it.
	leastProbability = 0.2
	persistCycles    = 3
	// forgetAfter is how long what was asked is remembered after the last cycle that had a reason to ask.
	forgetAfter = time.Hour
)

// Question requests temporary flows and hop-limited probes for an incident. Without either it gives back those that there
// are.
type Question struct {
	Incident string
	// Class is the index of the class of probes.
	Class  int
	Wanted []asking.Wanted
	Hops   []asking.HopProbe
}

func (q *Question) isEmpty() bool { return len(q.Wanted)+len(q.Hops) == 0 }

// Answer has the temporary flows and hop-limited probes that there are for an incident, and why others were not granted.
type Answer struct {
	Flows   []fabric.Flow
	Hops    []HopID
	Refused []string
}

// Asker asks the coordinator.
type Asker interface {
	Ask(ctx context.Context, q Question) (Answer, error)
}

// Desk decides what is asked, and keeps the answers. A nil Desk asks nothing. Its methods must not be called
// concurrently, except Run.
type Desk struct {
	asker   Asker
	log     *slog.Logger
	graph   *fabric.Graph
	planner *asking.Planner // of graph
	queue   chan Question
	seen    map[string]int // consecutive cycles in which a candidate was seen

	mu    sync.Mutex
	files map[string]*file // by incident
}

// file is what was asked about one incident.
type file struct {
	suspects string // the last that were asked about
	askedAt  time.Time
	neededAt time.Time // last cycle with a reason to ask
	rounds   int
	waiting  bool // a question is in the queue
	holds    bool // there may be flows
	records  []fabric.Asked
	flows    map[fabric.Flow]bool
	hops     hopFile
}

// NewDesk returns a Desk that has not asked anything. It returns nil if there is no asker.
func NewDesk(asker Asker, log *slog.Logger) *Desk {
	if asker == nil {
		return nil
	}
	return &Desk{asker: asker, log: log, queue: make(chan Question, queuedQuestions), seen: map[string]int{}, files: map[string]*file{}}
}

// InheritFrom takes over what another Desk has asked, which is not used any more.
func (d *Desk) InheritFrom(old *Desk) {
	if d == nil || old == nil {
		return
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	d.files = old.files
	for _, f := range d.files {
		f.waiting = false
	}
}

// subject is what a cycle cannot distinguish.
type subject struct {
	id       string
	class    int
	suspects []fabric.DirectedElement // the named one first
	loss     float64                  // ratio that the flows show; -1 for a candidate, whose loss is not known
}

// Review asks about the incidents and candidates of a cycle, and gives back the flows of those that need none.
func (d *Desk) Review(now time.Time, g *fabric.Graph, open []*incident.Incident, candidates []fabric.Candidate, findings []judge.Finding) {
	if d == nil {
		return
	}
	subjects := append(incidentSubjects(open, candidates), d.candidateSubjects(candidates, findings)...)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.graph != g {
		d.graph, d.planner = g, asking.NewPlanner(g)
	}
	d.discardMoved(findings)
	needed := map[string]bool{}
	for i := range subjects {
		needed[subjects[i].id] = true
		d.reviewSubject(now, &subjects[i], findings)
	}
	for id, f := range d.files {
		if needed[id] {
			continue
		}
		if f.holds && !f.waiting && d.enqueue(Question{Incident: id}) {
			f.waiting = true
		}
		if now.Sub(f.neededAt) > forgetAfter {
			delete(d.files, id)
		}
	}
}

// reviewSubject asks about a subject if that is due (rule 3).
func (d *Desk) reviewSubject(now time.Time, s *subject, findings []judge.Finding) {
	f := d.files[s.id]
	if f == nil {
		f = &file{flows: map[fabric.Flow]bool{}}
		d.files[s.id] = f
	}
	f.neededAt = now
	key := keyOf(s.suspects)
	if f.waiting || f.rounds >= maxRounds || key == f.suspects && now.Sub(f.askedAt) < askAgainAfter {
		return
	}
	fresh := key != f.suspects
	f.suspects, f.askedAt = key, now
	q := Question{Incident: s.id, Class: s.class, Wanted: d.planner.PlanFlows(s.suspects)}
	var why string
	q.Hops, why = d.planHops(s, len(q.Wanted) > 0, findings)
	if q.isEmpty() {
		if why != "" && fresh {
			f.addRecord(now, s, fabric.AskedHop)
			f.records[len(f.records)-1].Refused = []string{why}
		}
		return
	}
	if !d.enqueue(q) {
		return
	}
	f.rounds++
	f.waiting = true
	if len(q.Wanted) > 0 {
		f.addRecord(now, s, fabric.AskedFlow)
	}
	if len(q.Hops) > 0 {
		f.hops.plan(s, q.Hops)
		f.addRecord(now, s, fabric.AskedHop)
	}
}

// addRecord adds the record of a question.
func (f *file) addRecord(now time.Time, s *subject, asked string) {
	record := fabric.Asked{At: now, Asked: asked, Between: []fabric.Element{}, Flows: []string{}, Excluded: []fabric.Element{}}
	for _, x := range s.suspects {
		record.Between = append(record.Between, x.Element)
	}
	f.records = append(f.records, record)
}

// lastRecord returns the last record of what was asked for, or nil.
func (f *file) lastRecord(asked string) *fabric.Asked {
	for i := range slices.Backward(f.records) {
		if f.records[i].Asked == asked {
			return &f.records[i]
		}
	}
	return nil
}

func (d *Desk) enqueue(q Question) bool {
	select {
	case d.queue <- q:
		return true
	default: // the queue is full, so the next cycle tries again
		return false
	}
}

func keyOf(suspects []fabric.DirectedElement) string {
	names := make([]string, len(suspects))
	for i, s := range suspects {
		names[i] = string(s.Kind) + " " + s.ID + " " + s.Direction.String()
	}
	slices.Sort(names)
	return strings.Join(names, "\n")
}

// incidentSubjects returns the open incidents with elements that may be at fault instead (rule 1).
func incidentSubjects(open []*incident.Incident, candidates []fabric.Candidate) (out []subject) {
	for _, in := range open {
		if in.Kind == fabric.KindClock || in.Evidence.Reported {
			continue
		}
		named := fabric.DirectedElement{Element: in.Element}
		named.Direction, _ = fabric.ParseDirection(in.Direction)
		s := subject{id: in.ID, suspects: append([]fabric.DirectedElement{named}, in.SameFlowEquivalents...), class: classOf(in.Edges), loss: in.Symptom.LossRatio}
		for _, c := range candidates {
			if slices.Contains(c.Rivals, in.Element) && !in.IsExcluded(c.Element) {
				s.suspects = append(s.suspects, directed(c))
			}
		}
		if len(s.suspects) > 1 {
			out = append(out, s)
		}
	}
	return out
}

// candidateSubjects returns the candidates that are likely, and that no verdict rivals (rule 2).
func (d *Desk) candidateSubjects(candidates []fabric.Candidate, findings []judge.Finding) (out []subject) {
	seen := map[string]int{}
	for _, c := range candidates {
		if c.Probability < leastProbability || len(c.Others) == 0 {
			continue
		}
		id := "candidate " + string(c.Kind) + " " + cmp.Or(c.Direction, c.ID)
		seen[id] = d.seen[id] + 1
		if seen[id] >= persistCycles {
			out = append(out, subject{id: id, suspects: append([]fabric.DirectedElement{directed(c)}, c.Others...), class: classThrough(c, findings), loss: -1})
		}
	}
	d.seen = seen
	return out
}

func directed(c fabric.Candidate) fabric.DirectedElement {
	out := fabric.DirectedElement{Element: c.Element}
	out.Direction, _ = fabric.ParseDirection(c.Direction)
	return out
}

// classOf returns the class of the first of some flows.
func classOf(flows []string) int {
	for _, s := range flows {
		if f, err := fabric.ParseFlow(s); err == nil {
			return f.Number / fabric.FlowsPerClass
		}
	}
	return 0
}

// classThrough returns the class of the first flow that crosses a candidate.
func classThrough(c fabric.Candidate, findings []judge.Finding) int {
	for i := range findings {
		f := &findings[i]
		if src, dst := f.Flow.Endpoints(); c.CrossedBy(f.Obs.Path, src, dst) {
			return f.Flow.Number / fabric.FlowsPerClass
		}
	}
	return 0
}

// Records returns what was asked about an incident, the earliest first.
func (d *Desk) Records(id string) []fabric.Asked {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[id]
	if f == nil {
		return nil
	}
	if r := f.lastRecord(fabric.AskedHop); r != nil && len(f.hops.watched) > 0 {
		r.Hops, r.Excluded = f.hops.probes(), slices.Clone(f.hops.excluded)
	}
	return slices.Clone(f.records)
}

// HasEvidence reports whether a finding is of a flow that was asked for an incident, and decided.
func (d *Desk) HasEvidence(id string, findings []judge.Finding) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[id]
	if f == nil || len(f.flows) == 0 {
		return false
	}
	for i := range findings {
		if x := &findings[i]; x.Flow.IsTemporary() && x.Condition != judge.Undecided && len(x.Obs.Path) > 0 && f.flows[x.Flow.ProbeFlow()] {
			return true
		}
	}
	return false
}

// Sources returns the NICs from which there are temporary flows.
func (d *Desk) Sources() []string {
	return d.collectHeld(func(f *file, add func(string)) {
		for e := range f.flows {
			add(e.Src)
		}
	})
}

// collectHeld returns the names that files add of which something is granted, sorted.
func (d *Desk) collectHeld(from func(f *file, add func(string))) (names []string) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		if f.holds {
			from(f, func(name string) { names = append(names, name) })
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Run asks the questions of the cycles until ctx ends. Then it gives back nothing: flows end by themselves.
func (d *Desk) Run(ctx context.Context) {
	if d == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-d.queue:
			d.ask(ctx, q)
		}
	}
}

// AnswerQueued asks the questions that are queued now, for callers that do not use Run.
func (d *Desk) AnswerQueued(ctx context.Context) {
	if d == nil {
		return
	}
	for {
		select {
		case q := <-d.queue:
			d.ask(ctx, q)
		default:
			return
		}
	}
}

func (d *Desk) ask(ctx context.Context, q Question) {
	limited, cancel := context.WithTimeout(ctx, askDeadline)
	a, err := d.asker.Ask(limited, q)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("cannot ask for flows", "incident", q.Incident, "err", err)
		}
		a.Refused = append(a.Refused, err.Error())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[q.Incident]
	if f == nil {
		return
	}
	f.waiting, f.holds = false, len(a.Flows)+len(a.Hops) > 0
	if q.isEmpty() {
		return
	}
	clear(f.flows)
	for _, e := range a.Flows {
		f.flows[e] = true
	}
	if r := f.lastRecord(fabric.AskedFlow); r != nil && len(q.Wanted) > 0 {
		for _, e := range a.Flows {
			r.Flows = append(r.Flows, e.String())
		}
		r.Refused = a.Refused
	}
	if r := f.lastRecord(fabric.AskedHop); r != nil && len(q.Hops) > 0 {
		f.hops.takeGranted(a.Hops)
		if len(q.Wanted) == 0 {
			r.Refused = a.Refused
		}
	}
	d.log.Info("asked for flows", "incident", q.Incident, "flows", len(a.Flows), "hops", len(a.Hops), "refused", len(a.Refused))
}
