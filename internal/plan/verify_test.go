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

// verifier has the plans of tests computed again by test/plancheck, which shares no code with this package: the rates of all plans, and the fractional
// optimum where its dense linear program is small enough.
type verifier struct {
	cells              int // of the largest program
	plans, ideals, big int
}

// String returns what was computed again.
func (v *verifier) String() string {
	return fmt.Sprintf("the rates of %d plans and the optimum of %d computed again; %d programs are too large", v.plans, v.ideals, v.big)
}

// check compares one plan. whole states that the plan has all queue pairs, so that the optimum is that of the assignments' connections.
func (v *verifier) check(t *testing.T, name string, n *Network, p *Plan, whole bool) {
	t.Helper()
	topology, err := yaml.Marshal(n.Graph.Topo)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := p.Write(&text); err != nil {
		t.Fatal(err)
	}
	v.plans++
	if err := plancheck.Check(topology, text.Bytes()); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if !whole {
		return
	}
	excluded := map[string]bool{}
	for l := range n.links {
		excluded[n.links[l].name] = n.excluded[l]
	}
	want, err := plancheck.IdealRates(topology, text.Bytes(), func(d string) bool { return excluded[d] }, v.cells)
	if errors.Is(err, plancheck.ErrTooLarge) {
		v.big++
		return
	}
	if err != nil {
		t.Errorf("%s: the optimum by a library: %v", name, err)
		return
	}
	v.ideals++
	for _, j := range p.Jobs {
		if j.IdealGbps == nil || math.Abs(*j.IdealGbps-want[j.Job]) > plancheck.Tolerance*want[j.Job] {
			t.Errorf("%s: job %s has an ideal of %.3f Gb/s, and a library's program gives %.3f", name, j.Job, deref(j.IdealGbps), want[j.Job])
		}
	}
}
