package web

import (
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/workload"
)

// waitingJobs returns a state with a job that waits for a link, one that waits for a rank, one that runs as usual and one of which
// too little is known.
func waitingJobs(name string) collectives.State {
	return collectives.State{
		Report: workload.Report{Diagnoses: []workload.Diagnosis{
			{Job: name, Open: true, Syndrome: workload.CommSlow, Effect: &workload.Effect{Ratio: 1.57}, Summary: "AllReduce of DP 0 moves data slowly.",
				Network: workload.Network{State: workload.Guilty, Element: "leaf1:up1--spine1:dn1"}, Isolate: workload.Isolate{Links: []string{"leaf1:up1--spine1:dn1"}}},
			{Job: "eval", Open: true, Syndrome: workload.NonCommHang, Ranks: []int{2}, Nodes: []string{"h3"}, Network: workload.Network{State: workload.Innocent}, Summary: "AllReduce 1407 of DP 0 hangs."},
			{Job: "quiet", Syndrome: workload.CommSlow},
		}},
		Jobs: []workload.JobReport{{Job: "quiet", Report: workload.Report{State: workload.Healthy}}, {Job: "eval", Report: workload.Report{State: workload.Suspect}}, {Job: "young", Report: workload.Report{State: workload.InsufficientState}}},
	}
}

// TestWhatJobsWaitFor: the page has the panel if collectives are followed, with jobs that wait first, and names of users are text.
func TestWhatJobsWaitFor(t *testing.T) {
	h := handler(demoFault(t))
	body, _ := page(t, h, "/")
	if strings.Contains(body, "What jobs wait for (") {
		t.Error("the panel is there although collectives are not followed")
	}
	h.Collectives = func() collectives.State { return waitingJobs("train<script>") }
	body, all := page(t, h, "/")
	contains(t, body, "What jobs wait for (4)", "The job waits 1.6 times as long. AllReduce of DP 0 moves data slowly.", "network guilty, link leaf1:up1--spine1:dn1", "network innocent, rank 2 on h3", "It waits for no rank and no connection.", "Too few of its operations")
	noForeignScript(t, all)
	rows := strings.Split(body, "<tr data-waits=")
	if len(rows) != 5 || !strings.Contains(rows[1], "eval") || !strings.Contains(rows[2], "train&lt;script") || !strings.Contains(rows[3], "young") || !strings.Contains(rows[4], "quiet") {
		t.Errorf("the rows: %q", rows[1:])
	}
	many := collectives.State{}
	for range maxRows + 5 {
		many.Jobs = append(many.Jobs, workload.JobReport{Job: "j"})
	}
	if shown, n := waitRows(&many); len(shown) != maxRows || n != maxRows+5 {
		t.Errorf("%d of %d rows", len(shown), n)
	}
}
