package analyzer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/internal/fabric"
)

// TestASlowHourOfEveryDay: spine1 is slow from 02:00 to 02:08 of each day. In the first week it is a suspect at that hour,
// in the second week it is not. A fault that adds more in the same hour is named, as is one that adds less at another.
func TestASlowHourOfEveryDay(t *testing.T) {
	r := looptest.NewRig(t, 1)
	const batch = 300_000
	fault := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	dayStart := func(day int) time.Time { return time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC).AddDate(0, 0, day) }
	// pass runs two cycles a minute up to a minute of the day, and returns what was suspect, and how many flows were
	// degraded.
	pass := func(day, until int) (named map[string]bool, degraded int) {
		named = map[string]bool{}
		for r.Now.Before(dayStart(day).Add(time.Duration(until) * time.Minute)) {
			r.Now = r.Now.Add(29 * time.Second)
			r.World.Slow["spine1"] = 0
			if r.Now.Hour() == 2 && r.Now.Minute() < 8 {
				r.World.Slow["spine1"] = batch
			}
			s := r.Step()
			degraded += s.Report.Edges.Degraded
			for _, v := range looptest.OpenVerdicts(s) {
				named[v] = true
			}
		}
		return named, degraded
	}
	wantOnly := func(what string, named map[string]bool, element string) {
		t.Helper()
		for v := range named {
			if !strings.HasPrefix(v, element+" ") {
				t.Errorf("%s: %s is suspect", what, v)
			}
		}
		if len(named) == 0 {
			t.Errorf("%s: nothing is suspect", what)
		}
	}
	beginDay := func(day int) {
		r.Now = dayStart(day).Add(115 * time.Minute)
		r.TraceAll()
	}
	r.Now = dayStart(0).Add(114 * time.Minute)
	r.Learn()
	for day := range 14 {
		beginDay(day)
		named, degraded := pass(day, 130)
		if day < 7 {
			wantOnly("the first week", named, "spine1")
		} else if len(named) > 0 || degraded > 0 {
			t.Errorf("day %d: %v, %d flows", day+1, named, degraded)
		}
		r.Now = dayStart(day).Add(180 * time.Minute)
		if named, _ := pass(day, 184); len(named) > 0 {
			t.Errorf("day %d, after the job: %v", day+1, named)
		}
	}
	beginDay(14)
	named, degraded := pass(14, 122)
	if len(named) > 0 || degraded > 0 {
		t.Errorf("the fifteenth day: %v, %d flows", named, degraded)
	}
	r.World.Delay[fault] = 2 * batch
	named, _ = pass(14, 126)
	wantOnly("a fault in the slow hour", named, fault.LinkID())
	delete(r.World.Delay, fault)
	pass(14, 130)
	r.Now = dayStart(14).Add(180 * time.Minute)
	pass(14, 186)
	r.World.Delay[fault] = batch / 2
	named, _ = pass(14, 190)
	wantOnly("a smaller fault at another hour", named, fault.LinkID())
}

// TestASlowHourIsRecalled: an analyzer that was started again knows the hour from history.
func TestASlowHourIsRecalled(t *testing.T) {
	const batch = 300_000
	for days, want := range map[int]bool{6: true, 7: false} {
		r := looptest.NewRig(t, 1)
		today := time.Date(2026, 3, 9, 0, 0, 0, 0, time.UTC)
		r.Now = today.Add(114 * time.Minute)
		r.Learn()
		flows := r.Step().Edges
		for ago := days; ago > 0; ago-- {
			h := &evidence.PastHour{Start: today.AddDate(0, 0, -ago).Add(2 * time.Hour), Flows: map[fabric.Flow]evidence.Delays{}, Before: map[fabric.Flow]evidence.Delays{}}
			for _, v := range flows {
				e, err := v.Obs.ParseFlow()
				if err != nil {
					t.Fatal(err)
				}
				p50, p99 := *v.Obs.Baseline.P50, *v.Obs.Baseline.P99
				h.Before[e] = evidence.Delays{P50: []int64{p50}, P99: []int64{p99}, Timestamp: "kernel"}
				for _, hop := range r.World.Paths[e] {
					if hop.Switch == "spine1" {
						p50, p99 = p50+batch, p99+batch
					}
				}
				h.Flows[e] = evidence.Delays{P50: []int64{p50, p50}, P99: []int64{p99, p99}, Timestamp: "kernel"}
			}
			r.Loop.SeedPastHour(h)
		}
		r.Now = today.Add(121 * time.Minute)
		r.World.Slow["spine1"] = batch
		suspect := false
		for range 20 {
			suspect = len(r.Step().Report.Verdicts) > 0 || suspect
		}
		if suspect != want {
			t.Errorf("%d days of history: suspect %v, want %v", days, suspect, want)
		}
	}
}
