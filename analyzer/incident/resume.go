package incident

import (
	"cmp"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// resumeWithin is the time after its start in which a loop resumes verdicts that were open when its predecessor
// ended. It lasts at least resumeCycles. A verdict that was published within this time before the start was
// open.
const (
	resumeWithin = time.Minute
	resumeCycles = 10
)

func (t *Tracker) resumePeriod() time.Duration {
	return max(resumeWithin, resumeCycles*t.opts.Settings.CycleInterval())
}

// resumption holds the verdicts that were open when the loop started, by element.
type resumption struct {
	until    time.Time
	verdicts map[fabric.Element]evidence.PastVerdict
}

// SeedVerdicts takes over the verdicts that were published before the loop started at the moment now. Rules:
//
//  1. A cleared verdict is history.
//  2. A verdict that was open a minute ago, and is named again within the loop's first minute,
//     continues with its identifier and its start. If it had been narrowed, or the evidence does not
//     distinguish its element from another one, it continues also where the other element is named.
//  3. A verdict that is not named again is history. It ended when it was last published,
//     since no analyzer ran after that.
func (t *Tracker) SeedVerdicts(all []evidence.PastVerdict, now time.Time) {
	t.resumption = resumption{until: now.Add(t.resumePeriod()), verdicts: map[fabric.Element]evidence.PastVerdict{}}
	for _, v := range all {
		if v.Cleared.IsZero() && now.Sub(v.LastSeen) <= t.resumePeriod() {
			t.resumption.verdicts[v.Element] = v
			continue
		}
		t.past = append(t.past, recalledIncident(v, "the analyzer stopped while it was open"))
	}
	slices.SortStableFunc(t.past, func(a, b *Incident) int { return a.Cleared.Compare(*b.Cleared) })
	if len(all) > 0 {
		t.opts.Log.Info("read verdicts from history", "closed", len(t.past), "open", len(t.resumption.verdicts))
	}
}

// recalledIncident returns the closed incident of an earlier verdict. why is the reason for its end, unless it was
// cleared.
func recalledIncident(v evidence.PastVerdict, why string) *Incident {
	end := v.Cleared
	if end.IsZero() {
		end = v.LastSeen
	} else {
		why = "cleared"
	}
	in := &Incident{OpenedAt: v.FirstSeen, LastSeen: end, Cleared: &end, Closed: why, Recalled: true}
	in.Verdict = fabric.Verdict{Element: v.Element, Scenario: v.Scenario, Severity: v.Severity,
		Plane: v.Plane, Class: v.Class, Symptom: v.Symptom, FirstSeen: v.FirstSeen, Equivalent: []fabric.Element{}, Causes: []string{}, Jobs: []string{}}
	in.ID = publishedID(&v)
	if v.Direction != (fabric.Direction{}) {
		in.Direction = v.Direction.String()
	}
	return in
}

// publishedID returns the identifier of an earlier verdict. Analyzers that did not publish it derived it from the element.
func publishedID(v *evidence.PastVerdict) string {
	return cmp.Or(v.ID, classify.IDOf(&fabric.Verdict{Element: v.Element, Scenario: v.Scenario, FirstSeen: v.FirstSeen}))
}

// takeResumed returns the earlier verdict that a verdict which opens now continues, and removes it from those that wait to be named
// again. It returns nil if there is none.
func (t *Tracker) takeResumed(v *fabric.Verdict, now time.Time) *evidence.PastVerdict {
	if now.After(t.resumption.until) {
		return nil
	}
	var found *evidence.PastVerdict
	for _, was := range t.resumption.verdicts {
		if continues(v, &was) && (found == nil || was.Element == v.Element || found.Element != v.Element && was.FirstSeen.Before(found.FirstSeen)) {
			found = &was
		}
	}
	if found != nil {
		delete(t.resumption.verdicts, found.Element)
	}
	return found
}

// continues reports whether a verdict that opens now is about the fault of an earlier one, as openFor does of open incidents.
func continues(v *fabric.Verdict, was *evidence.PastVerdict) bool {
	own, k := keyOf(&fabric.Verdict{Element: was.Element, Scenario: was.Scenario}), keyOf(v)
	if own == k {
		return true
	}
	alike := slices.Contains(was.Earlier, v.Element) || slices.Contains(v.Equivalent, was.Element)
	return alike && !own.routing && !k.routing
}

// endResume closes earlier verdicts that are not named again in time.
func (t *Tracker) endResume(now time.Time) {
	if len(t.resumption.verdicts) == 0 || !now.After(t.resumption.until) {
		return
	}
	for _, v := range t.resumption.verdicts {
		t.past = append(t.past, recalledIncident(v, "not seen again after the analyzer was restarted"))
	}
	t.resumption.verdicts = nil
	slices.SortStableFunc(t.past, func(a, b *Incident) int {
		return cmp.Or(a.Cleared.Compare(*b.Cleared), cmp.Compare(a.ID, b.ID))
	})
}
