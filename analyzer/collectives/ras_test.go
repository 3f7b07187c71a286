package collectives

import (
	"fmt"
	"slices"
	"testing"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
)

// TestRanksOfPlacements: counts of the RAS service, which have no hosts, lead to the node of the rank that came no more, by the job
// on the node that answered and the ranks of its placement. Without ranks, or with another number of them, no node is named.
func TestRanksOfPlacements(t *testing.T) {
	for _, x := range []struct {
		ranks int
		want  []string
	}{{8, []string{"h6"}}, {0, []string{}}, {4, []string{}}} {
		r := newRig(t)
		p := jobs.Placement{Job: "train"}
		for h := 1; h <= hosts; h++ {
			p.Nodes = append(p.Nodes, fmt.Sprintf("h%d", h))
		}
		for i := range x.ranks {
			p.Ranks = append(p.Ranks, jobs.RankPlace{Node: fmt.Sprintf("h%d", i+1), GPU: new(0)})
		}
		r.jobs.ReplaceSource("test", []jobs.Placement{p})
		var s State
		for second := range 40 {
			for rank := range 8 {
				n := min(uint64(10*second), 206)
				if rank == 5 {
					n = min(n, 205)
				}
				r.agents.AddTo("h1", &ccl.Beat{From: ccl.From{Comm: "0x1", Rank: rank, NRanks: 8}, AtNS: ccl.KnownNanos(r.now.UnixNano()), Alive: new(true), Launched: map[string]uint64{"AllReduce": n}})
			}
			s = r.step()
		}
		if len(s.Report.Diagnoses) != 1 {
			t.Fatalf("%d ranks: %+v", x.ranks, s.Report)
		}
		d := s.Report.Diagnoses[0]
		if d.Syndrome != workload.NonCommHang || d.Pattern != workload.Absent || !slices.Equal(d.Ranks, []int{5}) || !slices.Equal(d.Nodes, x.want) || d.Job == "train" != (x.ranks == 8) {
			t.Errorf("%d ranks: %+v", x.ranks, d)
		}
	}
}
