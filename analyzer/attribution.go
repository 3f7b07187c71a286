package analyzer

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/attribute"
	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/internal/fabric"
)

// Causes says why an element is at fault; attribute.Asker does.
type Causes interface {
	Ask(ctx context.Context, g *fabric.Graph, q attribute.Question) (fabric.Attribution, error)
}

// An open incident's element is asked about when it opens and every causesEvery cycles for
// causesWithin: what its ports counted until then does not become clearer. An answer is
// waited for causeDeadline.
const (
	causesEvery   = 5
	causesWithin  = 5 * time.Minute
	causeDeadline = 3 * time.Second
)

// causeAsk is a question about an incident.
type causeAsk struct {
	id string
	q  attribute.Question
}

// onset is when the symptom of an incident may have begun: before the window that named it
// first came those that confirmed it.
func (l *Loop) onset(in *Incident) time.Time {
	return in.FirstSeen.Add(-l.o.Settings.Delay - (confirmIn+2)*max(cycle, l.o.Settings.Scrape))
}

// askCauses hands over the questions that are due. They are answered beside the cycle.
func (l *Loop) askCauses(now time.Time) {
	if l.o.Causes == nil {
		return
	}
	l.workMu.Lock()
	defer l.workMu.Unlock()
	for _, in := range l.open {
		asked, before := l.asked[in.ID]
		if in.Kind == fabric.KindClock || before && (l.cycle-asked < causesEvery || now.Sub(in.OpenedAt) > causesWithin) {
			continue
		}
		since := l.onset(in)
		q := attribute.Question{Verdict: in.Verdict, Suggested: in.suggested, Since: since, Sure: in.FirstSeen.Add(-l.o.Settings.Delay), Now: now.Add(-l.o.Settings.Lag), Flows: len(in.Edges)}
		for _, s := range in.Edges {
			if e, err := fabric.ParseEdge(s); err == nil {
				if b, ok := l.store.Bind(e); ok && b.State == fabric.PathValid && b.Since.After(since) {
					q.Rerouted++
				}
			}
		}
		select {
		case l.causeAsks <- causeAsk{in.ID, q}:
			l.asked[in.ID] = l.cycle
		default: // many incidents at once: the next cycle asks again
		}
	}
}

// causeWorker answers questions until ctx ends.
func (l *Loop) causeWorker(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-l.causeAsks:
			l.answer(ctx, a)
		}
	}
}

func (l *Loop) answer(ctx context.Context, a causeAsk) {
	actx, cancel := context.WithTimeout(ctx, causeDeadline)
	defer cancel()
	got, err := l.o.Causes.Ask(actx, l.o.Graph, a.q)
	if err != nil {
		if ctx.Err() == nil {
			l.o.Log.Warn("causes not asked", "element", a.q.Verdict.Element.Element, "err", err)
		}
		return
	}
	l.workMu.Lock()
	l.answers[a.id] = got
	l.workMu.Unlock()
}

// takeCauses gives the answers that came to their incidents, also to those that have healed
// meanwhile. What was found stays found: a counter that stands still again was still the cause.
func (l *Loop) takeCauses() {
	l.workMu.Lock()
	defer l.workMu.Unlock()
	for _, in := range slices.Concat(l.open, l.past) {
		a, ok := l.answers[in.ID]
		if !ok || in.answer != nil && in.answer.State == fabric.CauseFound && a.State != fabric.CauseFound {
			continue
		}
		in.answer = &a
		in.conclude()
	}
	clear(l.answers)
	for id := range l.asked {
		if !slices.ContainsFunc(l.open, func(in *Incident) bool { return in.ID == id }) {
			delete(l.asked, id)
		}
	}
}

// adopt takes a verdict into an incident, with what is known of its causes.
func (in *Incident) adopt(v fabric.Verdict) {
	v.Runbook = runbook(&v)
	in.suggested, in.severity, in.Verdict = v.Causes, v.Severity, v
	in.conclude()
}

// conclude sets the causes by what the probes suggest and the element's series say.
func (in *Incident) conclude() {
	attribute.Conclude(&in.Verdict, in.suggested, in.answer)
	if text, ok := attribute.Blocking(in.answer); ok && in.Scenario == fabric.HOLCross {
		in.Summary = strings.Replace(in.Summary, classify.SuspectedBlocking, "Head-of-line blocking, "+text, 1)
	}
}
