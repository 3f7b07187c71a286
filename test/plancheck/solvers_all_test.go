//go:build all

package plancheck

import (
	"math"
	"testing"
)

// TestSolversAgree compares gonum's optimum over paths with clp's over aggregated flows.
func TestSolversAgree(t *testing.T) {
	for _, without := range []string{"", "l1:s1->s1:l1", "s2:l2->l2:s2"} {
		text := planOf(t, []byte(small), smallJobs, 16)
		excluded := func(d string) bool { return d == without }
		byPaths, err := IdealRates([]byte(small), text, excluded, Dense{Cells: 1e6})
		if err != nil {
			t.Fatal(err)
		}
		clp := RequireCLP(t)
		byFlows, err := IdealRates([]byte(small), text, excluded, clp)
		if err != nil {
			t.Fatal(err)
		}
		for job, want := range byPaths {
			if math.Abs(byFlows[job]-want) > 1e-5*want {
				t.Errorf("without %q: job %s has %.4f by clp and %.4f by gonum", without, job, byFlows[job], want)
			}
		}
		t.Logf("without %q: %v; %v", without, byFlows, clp)
	}
}
