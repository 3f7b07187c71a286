package plan

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/test/plancheck"
)

// verifier has the plans of tests computed again by test/plancheck, which shares no code with this package: the rates of all plans, and fractional
// optima where the solver can.
type verifier struct {
	solver             plancheck.Solver
	plans, ideals, big int
	worst              float64 // relative difference of an optimum
}

// String returns what was computed again.
func (v *verifier) String() string {
	return fmt.Sprintf("the rates of %d plans and the optimum of %d computed again, with differences up to %.1e; %d programs are too large; %v", v.plans, v.ideals, v.worst, v.big, v.solver)
}

// check compares one plan. whole states that the plan has all queue pairs, so that the optimum is that of the assignments' connections.
func (v *verifier) check(t *testing.T, name string, n *Network, p *Plan, whole bool) {
	t.Helper()
	topology, text := textsOf(t, n, p)
	v.plans++
	if err := plancheck.Check(topology, text); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if !whole {
		return
	}
	want, err := plancheck.IdealRates(topology, text, excludedOf(n), v.solver)
	got := map[string]float64{}
	for _, j := range p.Jobs {
		if j.IdealGbps == nil {
			t.Errorf("%s: job %s has no ideal", name, j.Job)
			return
		}
		got[j.Job] = *j.IdealGbps
	}
	v.compare(t, name, got, want, err)
}

// checkAttainable compares the optimum over the paths of a catalogue, of the jobs that have paths.
func (v *verifier) checkAttainable(t *testing.T, name string, n *Network, catalogue []byte, p *Plan, got map[string]float64) {
	t.Helper()
	topology, text := textsOf(t, n, p)
	want, err := plancheck.AttainableRates(topology, text, catalogue, excludedOf(n), v.solver)
	v.compare(t, name, got, want, err)
}

// compare compares optima with those of the solver, or counts a program that is too large for it.
func (v *verifier) compare(t *testing.T, name string, got, want map[string]float64, err error) {
	t.Helper()
	if errors.Is(err, plancheck.ErrTooLarge) {
		v.big++
		return
	}
	if err != nil {
		t.Errorf("%s: the optimum by a solver: %v", name, err)
		return
	}
	v.ideals++
	if len(got) != len(want) {
		t.Errorf("%s: %d jobs have an optimum, want %d", name, len(got), len(want))
	}
	for job, rate := range want {
		difference := math.Abs(got[job]-rate) / rate
		v.worst = max(v.worst, difference)
		if !(difference <= plancheck.Tolerance) {
			t.Errorf("%s: job %s has an optimum of %.3f Gb/s, and the solver's program gives %.3f", name, job, got[job], rate)
		}
	}
}

// textsOf returns the files of a topology and of a plan.
func textsOf(t *testing.T, n *Network, p *Plan) (topology, plan []byte) {
	t.Helper()
	topology, err := yaml.Marshal(n.Graph.Topo)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := p.Write(&text); err != nil {
		t.Fatal(err)
	}
	return topology, text.Bytes()
}

// excludedOf returns which directions are excluded.
func excludedOf(n *Network) func(direction string) bool {
	excluded := map[string]bool{}
	for l := range n.links {
		excluded[n.links[l].name] = n.excluded[l]
	}
	return func(d string) bool { return excluded[d] }
}
