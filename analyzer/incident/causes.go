package incident

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/attribute"
	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/internal/fabric"
)

// Causes finds why an element is at fault. attribute.Attributor implements it.
type Causes interface {
	Attribute(ctx context.Context, g *fabric.Graph, q attribute.Request) (fabric.Attribution, error)
}

// The causes of an incident are queried when it opens, and every causesEvery cycles for causesWithin. Later
// counters add nothing. A query may take causeDeadline.
const (
	causesEvery   = 5
	causesWithin  = 5 * time.Minute
	causeDeadline = 3 * time.Second
	// comparedBefore is longer than the time before an incident with which the series are compared.
	comparedBefore = 2 * time.Minute
)

// causeRequest represents a request for the causes of an incident.
type causeRequest struct {
	id string
	q  attribute.Request
}

// causeQueue holds the requests for causes, which a worker answers beside the cycle, and the answers.
type causeQueue struct {
	requests chan causeRequest
	// requestedIn is the cycle of the last request, by incident. Only the cycle uses it.
	requestedIn map[string]int

	mu      sync.Mutex
	answers map[string]fabric.Attribution // by incident
}

func newCauseQueue() *causeQueue {
	return &causeQueue{requests: make(chan causeRequest, 64), requestedIn: map[string]int{}, answers: map[string]fabric.Attribution{}}
}

// symptomOnset returns the earliest time at which the symptom of an incident may have begun. The windows that
// confirmed it precede the window that first named it.
func (t *Tracker) symptomOnset(in *Incident) time.Time {
	s := &t.opts.Settings
	return in.FirstSeen.Add(-s.Delay - (baseline.ConfirmWindows+2)*max(time.Second, s.Scrape))
}

// RequestCauses queues the requests that are due. Run answers them.
func (t *Tracker) RequestCauses(m *Moment) {
	if t.opts.Causes == nil {
		return
	}
	for _, in := range t.open {
		requested, before := t.causes.requestedIn[in.ID]
		if in.foreign || in.Kind == fabric.KindClock || in.Scenario.IsRouting() || before && (m.Cycle-requested < causesEvery || m.Now.Sub(in.OpenedAt) > causesWithin) {
			continue
		}
		since := t.symptomOnset(in)
		q := attribute.Request{Verdict: in.Verdict, Suggested: in.suggestedCauses, Since: since, Quiet: t.lastNamedBefore(in, since), SureSince: in.FirstSeen.Add(-t.opts.Settings.Delay), Now: m.Now.Add(-t.opts.Settings.CurrentLag()), Flows: len(in.Edges)}
		for _, s := range in.Edges {
			if e, err := fabric.ParseFlow(s); err == nil {
				if _, at, valid := m.Flows.CurrentPath(e); valid && at.After(since) {
					q.Rerouted++
				}
			}
		}
		q.Crossing = crossingSince(m.Flows, q.SureSince)
		select {
		case t.causes.requests <- causeRequest{in.ID, q}:
			t.causes.requestedIn[in.ID] = m.Cycle
		default: // the queue is full, so the next cycle tries again
		}
	}
}

// crossingSince returns a function that lists the flows which cross an element by paths that they have had since a time.
func crossingSince(all Flows, since time.Time) func(fabric.Element) []attribute.CrossingFlow {
	return func(e fabric.Element) (out []attribute.CrossingFlow) {
		for _, f := range all.FlowsCrossing(e) {
			if p, at, valid := all.CurrentPath(f); valid && !at.After(since) {
				out = append(out, attribute.CrossingFlow{Flow: f, Path: p})
			}
		}
		return out
	}
}

// lastNamedBefore returns when an earlier incident was last named that is on an element of an incident, or on one of its equivalents. It
// is zero if none ended within comparedBefore of a moment.
func (t *Tracker) lastNamedBefore(in *Incident, since time.Time) (last time.Time) {
	for _, old := range slices.Backward(t.past) {
		if old.Cleared.Before(since.Add(-comparedBefore)) {
			break
		}
		if old.LastSeen.After(last) && old.sharesElement(in) {
			last = old.LastSeen
		}
	}
	return last
}

// sharesElement reports whether two incidents have an element in common, named or equivalent.
func (in *Incident) sharesElement(o *Incident) bool {
	mine, others := append(slices.Clone(in.Equivalent), in.Element), append(slices.Clone(o.Equivalent), o.Element)
	return slices.ContainsFunc(mine, func(e fabric.Element) bool { return slices.Contains(others, e) })
}

// Run answers requests for causes until ctx ends. It may run beside the other methods.
func (t *Tracker) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-t.causes.requests:
			t.answerRequest(ctx, a)
		}
	}
}

// AnswerQueued answers the requests that are queued now, for callers that do not use Run.
func (t *Tracker) AnswerQueued(ctx context.Context) {
	for {
		select {
		case a := <-t.causes.requests:
			t.answerRequest(ctx, a)
		default:
			return
		}
	}
}

func (t *Tracker) answerRequest(ctx context.Context, a causeRequest) {
	actx, cancel := context.WithTimeout(ctx, causeDeadline)
	defer cancel()
	got, err := t.opts.Causes.Attribute(actx, t.opts.Graph, a.q)
	if err != nil {
		if ctx.Err() == nil {
			t.opts.Log.Warn("cannot query causes", "element", a.q.Verdict.Element.ID, "err", err)
		}
		return
	}
	t.causes.mu.Lock()
	t.causes.answers[a.id] = got
	t.causes.mu.Unlock()
}

// ApplyCauses applies finished attributions to their incidents, also to incidents that have healed
// meanwhile. A found cause stays, even if its counter stops growing.
func (t *Tracker) ApplyCauses() {
	q := t.causes
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, in := range slices.Concat(t.open, t.past) {
		a, ok := q.answers[in.ID]
		if !ok || in.telemetryCause != nil && in.telemetryCause.State == fabric.CauseFound && a.State != fabric.CauseFound {
			continue
		}
		in.telemetryCause = &a
		in.concludeCauses()
	}
	clear(q.answers)
	for id := range q.requestedIn {
		if !slices.ContainsFunc(t.open, func(in *Incident) bool { return in.ID == id }) {
			delete(q.requestedIn, id)
		}
	}
}

// adoptVerdict replaces the verdict of an incident, and applies the known causes to it.
func (in *Incident) adoptVerdict(v fabric.Verdict) {
	v.Runbook = runbookFor(&v)
	in.suggestedCauses, in.symptomSeverity, in.Verdict = v.Causes, v.Severity, v
	in.concludeCauses()
}

// concludeCauses sets the causes from the probes and from the element's series.
func (in *Incident) concludeCauses() {
	attribute.ApplyAttribution(&in.Verdict, in.suggestedCauses, in.telemetryCause)
	if text, ok := attribute.BlockingEvidence(in.telemetryCause); ok && in.Scenario == fabric.HOLCross {
		in.Summary = strings.Replace(in.Summary, classify.SuspectedBlocking, "Head-of-line blocking, "+text, 1)
	}
}
