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
)

// causeRequest represents a request for the causes of an incident.
type causeRequest struct {
	id string
	q  attribute.Request
}

// symptomOnset returns the earliest time at which the symptom of an incident may have begun. The windows that
// confirmed it precede the window that first named it.
func (l *Loop) symptomOnset(in *Incident) time.Time {
	return in.FirstSeen.Add(-l.opts.Settings.Delay - (confirmIn+2)*max(defaultCycle, l.opts.Settings.Scrape))
}

// requestCauses queues the requests that are due. Workers answer them beside the cycle.
func (l *Loop) requestCauses(now time.Time) {
	if l.opts.Causes == nil {
		return
	}
	l.workMu.Lock()
	defer l.workMu.Unlock()
	for _, in := range l.openIncidents {
		asked, before := l.causeRequestCycle[in.ID]
		if in.Kind == fabric.KindClock || before && (l.cycle-asked < causesEvery || now.Sub(in.OpenedAt) > causesWithin) {
			continue
		}
		since := l.symptomOnset(in)
		q := attribute.Request{Verdict: in.Verdict, Suggested: in.suggestedCauses, Since: since, SureSince: in.FirstSeen.Add(-l.opts.Settings.Delay), Now: now.Add(-l.opts.Settings.Lag), Flows: len(in.Edges)}
		for _, s := range in.Edges {
			if e, err := fabric.ParseFlow(s); err == nil {
				if b, ok := l.store.CurrentBinding(e); ok && b.State == fabric.PathValid && b.Since.After(since) {
					q.Rerouted++
				}
			}
		}
		select {
		case l.causeRequests <- causeRequest{in.ID, q}:
			l.causeRequestCycle[in.ID] = l.cycle
		default: // the queue is full, so the next cycle tries again
		}
	}
}

// causeWorker answers requests until ctx ends.
func (l *Loop) causeWorker(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-l.causeRequests:
			l.answerCauseRequest(ctx, a)
		}
	}
}

func (l *Loop) answerCauseRequest(ctx context.Context, a causeRequest) {
	actx, cancel := context.WithTimeout(ctx, causeDeadline)
	defer cancel()
	got, err := l.opts.Causes.Attribute(actx, l.opts.Graph, a.q)
	if err != nil {
		if ctx.Err() == nil {
			l.opts.Log.Warn("cannot query causes", "element", a.q.Verdict.Element.ID, "err", err)
		}
		return
	}
	l.workMu.Lock()
	l.causeAnswers[a.id] = got
	l.workMu.Unlock()
}

// applyCauses applies finished attributions to their incidents, also to incidents that have healed
// meanwhile. A found cause stays, even if its counter stops growing.
func (l *Loop) applyCauses() {
	l.workMu.Lock()
	defer l.workMu.Unlock()
	for _, in := range slices.Concat(l.openIncidents, l.pastIncidents) {
		a, ok := l.causeAnswers[in.ID]
		if !ok || in.telemetryCause != nil && in.telemetryCause.State == fabric.CauseFound && a.State != fabric.CauseFound {
			continue
		}
		in.telemetryCause = &a
		in.concludeCauses()
	}
	clear(l.causeAnswers)
	for id := range l.causeRequestCycle {
		if !slices.ContainsFunc(l.openIncidents, func(in *Incident) bool { return in.ID == id }) {
			delete(l.causeRequestCycle, id)
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
