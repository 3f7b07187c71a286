package matrix

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// pastSeries are what rules recorded of three of four leaves, one value a minute. leaf2 receives late in the last minutes, and the replies of leaf3
// to leaf1 get lost.
const pastSeries = `load 1m
	fabric:leafpair_owd_seconds:p50_2s{leaf="leaf1", peer_leaf="leaf2", side="source", class="a", tier="2", plane="a", timestamp="kernel"} 0.00001x60 0.00211x5
	fabric:leafpair_owd_seconds:p50_2s{leaf="leaf2", peer_leaf="leaf1", side="destination", class="a", tier="2", plane="a", timestamp="kernel"} 0.00001x60 0.00011x5
	fabric:leafpair_owd_seconds:p50_2s{leaf="leaf1", peer_leaf="leaf2", side="destination", class="a", tier="2", plane="a", timestamp="kernel"} 0.00001x65
	fabric:leafpair_owd_seconds:p50_2s{leaf="leaf1", peer_leaf="leaf3", side="source", class="csig", tier="2", plane="a", timestamp="kernel"} 1x65
	fabric:leafpair_owd_seconds:p50_2s{leaf="leaf9", peer_leaf="leaf3", side="source", class="a", tier="2", plane="a", timestamp="kernel"} 1x65
	fabric:leafpair_owd_seconds:p99_2s{leaf="leaf1", peer_leaf="leaf2", side="source", class="a", tier="2", plane="a", timestamp="kernel"} 0.005x65
	fabric:leafpair_probe_lost:ratio_2s{leaf="leaf1", peer_leaf="leaf3", side="destination", class="a", tier="2", plane="a"} 0.5x65
	fabric:leafpair_probe_sent:rate_2s{leaf="leaf1", peer_leaf="leaf3", side="destination", class="a", tier="2", plane="a"} 100x65
	fabric:leafpair_probe_lost:ratio_2s{leaf="leaf3", peer_leaf="leaf1", side="source", class="b", tier="2", plane="a"} 0x65
	fabric:leafpair_probe_sent:rate_2s{leaf="leaf3", peer_leaf="leaf1", side="source", class="b", tier="2", plane="a"} 300x65
	fabric:leafpair_probe_ecn_marked:ratio_2s{leaf="leaf1", peer_leaf="leaf2", side="source", class="a", tier="2", plane="a"} 0.05x65
`

// TestPastMoments compares past matrices with series that Prometheus' own engine evaluates.
func TestPastMoments(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 2)
	p := &Past{DB: evidencetest.NewQuerier(t, pastSeries), Graph: func() *fabric.Graph { return g }}
	end := time.Unix(65*60, 0)
	for _, tt := range []struct {
		name     string
		sel      Selection
		of       Quantity
		at       time.Time
		from, to int
		want     float64
		picture  string
	}{
		{"the largest shift of probes and replies", Selection{}, AddedDelay, end, 0, 1, 2.1e6, ".5..\n0...\n....\n....\n"},
		{"before", Selection{}, AddedDelay, end.Add(-10 * time.Minute), 0, 1, 0, ".0..\n0...\n....\n....\n"},
		{"replies alone", Selection{Direction: Replies}, AddedDelay, end, 0, 1, 1e5, ".2..\n0...\n....\n....\n"},
		{"the median", Selection{Direction: Probes}, MedianDelay, end, 0, 1, 2.11e6, ".7..\n....\n....\n....\n"},
		{"the tail", Selection{}, TailDelay, end, 0, 1, 5e6, ".7..\n....\n....\n....\n"},
		{"losses weigh by what was sent", Selection{}, LossRatio, end, 2, 0, 0.125, "....\n....\n7...\n....\n"},
		{"of one class", Selection{Class: "b"}, LossRatio, end, 2, 0, 0, "....\n....\n0...\n....\n"},
		{"marks", Selection{Plane: "a"}, MarkRatio, end, 0, 1, 0.05, ".6..\n....\n....\n....\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _, err := p.Grid(t.Context(), tt.sel, tt.of, tt.at)
			if err != nil {
				t.Fatal(err)
			}
			v, known := got.Cell(tt.from, tt.to).Value(tt.of)
			if diff := v - tt.want; !known || diff > 1e-4*tt.want+1e-6 || -diff > 1e-4*tt.want+1e-6 {
				t.Errorf("the cell is %g (known: %t), want %g", v, known, tt.want)
			}
			if p := picture(got, tt.of); p != tt.picture {
				t.Errorf("got\n%swant\n%s", p, tt.picture)
			}
		})
	}
}

// failing is a server with a problem.
type failing struct {
	err   error
	asked int
}

func (f *failing) QueryInstant(context.Context, string, time.Time) ([]evidence.Sample, error) {
	f.asked++
	return nil, f.err
}

// TestPastProblems: what cannot be shown is refused with a reason, and what may be incomplete is marked. An answer is kept.
func TestPastProblems(t *testing.T) {
	g := worldtest.NewClos(t, 2, 130, 1)
	small := worldtest.NewClos(t, 2, 4, 1)
	for _, tt := range []struct {
		graph *fabric.Graph
		sel   Selection
		of    Quantity
		err   error
		want  string
	}{
		{small, Selection{NICs: true}, LossRatio, nil, "leaf by leaf"},
		{small, Selection{}, DegradedShare, nil, "what was degraded is not known"},
		{small, Selection{Plane: "z"}, LossRatio, nil, `no NIC is in a plane "z"`},
		{g, Selection{}, LossRatio, nil, "130 leaves are too many"},
		{small, Selection{}, LossRatio, errors.New("connection refused"), "cannot read the past: connection refused"},
	} {
		p := &Past{DB: &failing{err: tt.err}, Graph: func() *fabric.Graph { return tt.graph }}
		if _, _, err := p.Grid(t.Context(), tt.sel, tt.of, begin()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v of %s: %v, want %q", tt.sel, tt.of, err, tt.want)
		}
	}
	db := &failing{err: &evidence.PartialError{Warnings: []string{"a store is away"}}}
	p := &Past{DB: db, Graph: func() *fabric.Graph { return small }}
	for range 3 {
		got, warning, err := p.Grid(t.Context(), Selection{}, MarkRatio, begin())
		if err != nil || warning != "a store is away" || picture(got, MarkRatio) != "....\n....\n....\n....\n" {
			t.Errorf("an incomplete answer: %q, %v", warning, err)
		}
	}
	if db.asked != 1 {
		t.Errorf("the server was asked %d times for the same, want once", db.asked)
	}
}
