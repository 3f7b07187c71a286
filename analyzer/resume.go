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

func (l *Loop) resumable() time.Duration { return max(resumeWithin, resumeCycles*l.o.every()) }

// resume is what was open when the loop began, by element.
type resume struct {
	until time.Time
	of    map[fabric.Element]evidence.PastVerdict
}

// recallVerdicts takes what was published of verdicts before the loop began. Rules:
//
//  1. Those that were cleared are history.
//  2. One that was open a minute ago, and is named again within the loop's first minute,
//     goes on with its identifier and its beginning.
//  3. One that is not named again then is history. It ended when it was published last:
//     what happened since, nobody watched.
func (l *Loop) recallVerdicts(ctx context.Context) {
	all, err := l.o.RecallVerdicts(ctx)
	if err != nil {
		if ctx.Err() == nil {
			l.o.Log.Error("the verdicts of before are not known", "err", err)
		}
		return
	}
	l.seedVerdicts(all, time.Now())
}

func (l *Loop) seedVerdicts(all []evidence.PastVerdict, now time.Time) {
	l.resume = resume{until: now.Add(l.resumable()), of: map[fabric.Element]evidence.PastVerdict{}}
	for _, v := range all {
		if v.Cleared.IsZero() && now.Sub(v.LastSeen) <= l.resumable() {
			l.resume.of[v.Element] = v
			continue
		}
		l.past = append(l.past, recalled(v, "the analyzer ended while it was open"))
	}
	slices.SortStableFunc(l.past, func(a, b *Incident) int { return a.Cleared.Compare(*b.Cleared) })
	if len(all) > 0 {
		l.o.Log.Info("verdicts are known from history", "closed", len(l.past), "open", len(l.resume.of))
	}
}

// recalled is the incident of a verdict that is over; why it ended is said where nobody
// cleared it.
func recalled(v evidence.PastVerdict, why string) *Incident {
	end := v.Cleared
	if end.IsZero() {
		end = v.LastSeen
	} else {
		why = "cleared"
	}
	in := &Incident{OpenedAt: v.FirstSeen, LastSeen: end, Cleared: &end, Closed: why, Recalled: true}
	in.Verdict = fabric.Verdict{ID: classify.ID(v.Element.Kind, v.Element.Element, v.FirstSeen), Element: v.Element, Scenario: v.Scenario, Severity: v.Severity,
		Plane: v.Plane, Class: v.Class, Symptom: v.Symptom, FirstSeen: v.FirstSeen, Equivalent: []fabric.Element{}, Causes: []string{}, Jobs: []string{}}
	if v.Direction != (fabric.Direction{}) {
		in.Direction = v.Direction.String()
	}
	return in
}

// since is the beginning of a verdict that opens now: that of the one that it goes on from,
// where it does.
func (l *Loop) since(v *fabric.Verdict, first, now time.Time) time.Time {
	if now.After(l.resume.until) {
		return first
	}
	if was, ok := l.resume.of[v.Element]; ok {
		delete(l.resume.of, v.Element)
		return was.FirstSeen
	}
	return first
}

// endResume closes what was open before and is not named again.
func (l *Loop) endResume(now time.Time) {
	if len(l.resume.of) == 0 || !now.After(l.resume.until) {
		return
	}
	for _, v := range l.resume.of {
		l.past = append(l.past, recalled(v, "not seen again after the analyzer was restarted"))
	}
	l.resume.of = nil
	slices.SortStableFunc(l.past, func(a, b *Incident) int {
		return cmp.Or(a.Cleared.Compare(*b.Cleared), cmp.Compare(a.ID, b.ID))
	})
}
