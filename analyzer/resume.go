package analyzer

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// resumeWithin is how long after its start a loop takes up verdicts that were open when one
// before it ended, and no less than resumeCycles; a verdict that was published so long before
// the start was open then.
const (
	resumeWithin = time.Minute
	resumeCycles = 10
)

func (l *Loop) resumePeriod() time.Duration {
	return max(resumeWithin, resumeCycles*l.opts.cycleInterval())
}

// resumption is what was open when the loop began, by element.
type resumption struct {
	until    time.Time
	verdicts map[fabric.Element]evidence.PastVerdict
}

// recallVerdicts takes what was published of verdicts before the loop began. Rules:
//
//  1. Those that were cleared are history.
//  2. One that was open a minute ago, and is named again within the loop's first minute,
//     goes on with its identifier and its beginning.
//  3. One that is not named again then is history. It ended when it was published last:
//     what happened since, nobody watched.
func (l *Loop) recallVerdicts(ctx context.Context) {
	all, err := l.opts.RecallVerdicts(ctx)
	if err != nil {
		if ctx.Err() == nil {
			l.opts.Log.Error("the verdicts of before are not known", "err", err)
		}
		return
	}
	l.seedVerdicts(all, time.Now())
}

func (l *Loop) seedVerdicts(all []evidence.PastVerdict, now time.Time) {
	l.resumption = resumption{until: now.Add(l.resumePeriod()), verdicts: map[fabric.Element]evidence.PastVerdict{}}
	for _, v := range all {
		if v.Cleared.IsZero() && now.Sub(v.LastSeen) <= l.resumePeriod() {
			l.resumption.verdicts[v.Element] = v
			continue
		}
		l.pastIncidents = append(l.pastIncidents, recalledIncident(v, "the analyzer ended while it was open"))
	}
	slices.SortStableFunc(l.pastIncidents, func(a, b *Incident) int { return a.Cleared.Compare(*b.Cleared) })
	if len(all) > 0 {
		l.opts.Log.Info("verdicts are known from history", "closed", len(l.pastIncidents), "open", len(l.resumption.verdicts))
	}
}

// recalledIncident is the incident of a verdict that is over; why it ended is said where nobody
// cleared it.
func recalledIncident(v evidence.PastVerdict, why string) *Incident {
	end := v.Cleared
	if end.IsZero() {
		end = v.LastSeen
	} else {
		why = "cleared"
	}
	in := &Incident{OpenedAt: v.FirstSeen, LastSeen: end, Cleared: &end, Closed: why, Recalled: true}
	in.Verdict = fabric.Verdict{ID: classify.VerdictID(v.Element.Kind, v.Element.ID, v.FirstSeen), Element: v.Element, Scenario: v.Scenario, Severity: v.Severity,
		Plane: v.Plane, Class: v.Class, Symptom: v.Symptom, FirstSeen: v.FirstSeen, Equivalent: []fabric.Element{}, Causes: []string{}, Jobs: []string{}}
	if v.Direction != (fabric.Direction{}) {
		in.Direction = v.Direction.String()
	}
	return in
}

// resumedFirstSeen is the beginning of a verdict that opens now: that of the one that it goes on from,
// where it does.
func (l *Loop) resumedFirstSeen(v *fabric.Verdict, first, now time.Time) time.Time {
	if now.After(l.resumption.until) {
		return first
	}
	if was, ok := l.resumption.verdicts[v.Element]; ok {
		delete(l.resumption.verdicts, v.Element)
		return was.FirstSeen
	}
	return first
}

// endResume closes what was open before and is not named again.
func (l *Loop) endResume(now time.Time) {
	if len(l.resumption.verdicts) == 0 || !now.After(l.resumption.until) {
		return
	}
	for _, v := range l.resumption.verdicts {
		l.pastIncidents = append(l.pastIncidents, recalledIncident(v, "not seen again after the analyzer was restarted"))
	}
	l.resumption.verdicts = nil
	slices.SortStableFunc(l.pastIncidents, func(a, b *Incident) int {
		return cmp.Or(a.Cleared.Compare(*b.Cleared), cmp.Compare(a.ID, b.ID))
	})
}
