package incident

import (
	"fmt"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// TestLastingVerdictsOpenAtOnce checks when an element of chosen paths has a verdict in the first cycle that names it.
func TestLastingVerdictsOpenAtOnce(t *testing.T) {
	link, other := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}, "leaf1:up2"
	for name, tt := range map[string]struct {
		lasting, passing int  // flows that are degraded, and show that this lasts or do not
		waiting, beside  int  // flows that wait for confirmation, and cross the link or another one
		switches         bool // choose the paths
		contrary         int
		want             bool
	}{
		"all last":                     {lasting: 6, want: true},
		"two thirds last":              {lasting: 4, passing: 2, want: true},
		"less last":                    {lasting: 3, passing: 3},
		"a healthy flow":               {lasting: 6, contrary: 1},
		"switches choose":              {lasting: 6, switches: true},
		"others wait on the link":      {lasting: 6, waiting: 6, want: true},
		"others wait beside":           {lasting: 6, beside: 6},
		"others wait, switches choose": {lasting: 6, waiting: 6, switches: true},
	} {
		v := fabric.Verdict{Element: fabric.Element{ID: link.LinkID(), Kind: fabric.KindLink}, Direction: link.String()}
		v.Evidence.ContraryEdges, v.Evidence.DegradedEdges = tt.contrary, tt.lasting+tt.passing
		m := &Moment{Pending: tt.waiting + tt.beside, Degraded: tt.lasting + tt.passing}
		add := func(n int, out string, c judge.Condition, lasting bool) {
			for range n {
				e := fabric.Flow{Src: "h1/eth1", Dst: "h3/eth1", Number: len(m.Findings)}
				o := &fabric.Observation{Edge: e.String(), Src: e.Src, Dst: e.Dst, Chosen: !tt.switches,
					Path: fabric.Path{{Switch: "leaf1", In: "dn1", Out: out}, {Switch: "spine" + out[len(out)-1:], In: "dn1", Out: "dn2"}, {Switch: "leaf2", In: "up1", Out: "dn1"}}}
				m.Findings = append(m.Findings, judge.Finding{Flow: e, Obs: o, Condition: c, Delayed: true, Lasting: lasting})
				if c == judge.Degraded {
					v.Edges = append(v.Edges, o.Edge)
				}
			}
		}
		_, out, _ := fabric.SplitPort(link.From)
		_, elsewhere, _ := fabric.SplitPort(other)
		add(tt.lasting, out, judge.Degraded, true)
		add(tt.passing, out, judge.Degraded, false)
		add(tt.waiting, out, judge.Undecided, false)
		add(tt.beside, elsewhere, judge.Undecided, false)
		c := &pendingSuspect{verdict: v, namedCycles: 1}
		if got := c.isDue(m); got != tt.want {
			t.Errorf("%s: due %t, want %t; %s", name, got, tt.want, fmt.Sprint(m.pendingBeside(&v)))
		}
	}
}
