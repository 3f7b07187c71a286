package workload

import (
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// sends returns transfers of a communicator from h1 to h2, one each 100 ms, with their wire times in ms for each MiB.
func sends(comm string, first int64, n int, wire func(i int) int64) []ccl.Record {
	gpu, bytes := 0, uint64(1<<20)
	out := []ccl.Record{&ccl.Comm{Job: "t7", Comm: comm, NRanks: 2, Ranks: []ccl.Member{{Rank: 0, Host: "h1", NIC: "h1/eth1", GPU: &gpu}, {Rank: 1, Host: "h2", NIC: "h2/eth1", GPU: &gpu}}}}
	for i := range n {
		at := first + int64(i)*100_000_000
		out = append(out, &ccl.Edge{From: ccl.From{Job: "t7", Comm: comm, NRanks: 2, Host: "h1"}, Seq: uint64(i), Op: "AllReduce", Peer: 1, Direction: ccl.Send, Bytes: &bytes,
			StartNS: ccl.KnownNanos(at), EndNS: ccl.KnownNanos(at + 50_000_000), Wire: ccl.KnownNanos(wire(i) * 1_000_000), State: "completed"})
	}
	return out
}

// TestNormalPeer: a communicator that sends between the same NICs as it normally does, and did so lately, is a normal peer. One
// whose transfers take longer is not, and neither is one of another NIC or of long ago.
func TestNormalPeer(t *testing.T) {
	const first = 1_790_000_000_000_000_000
	steady := func(int) int64 { return 5 }
	slower := func(i int) int64 {
		if i >= 40 {
			return 20
		}
		return 5
	}
	from, to := Place{Host: "h1", NIC: "h1/eth1"}, Place{Host: "h2", NIC: "h2/eth1"}
	since := time.Unix(0, first)
	for _, c := range []struct {
		name     string
		from, to Place
		wire     func(int) int64
		since    time.Time
		want     bool
	}{
		{"as it normally does", from, to, steady, since, true},
		{"slower", from, to, slower, since, false},
		{"the other way", to, from, steady, since, false},
		{"another NIC", Place{Host: "h1", NIC: "h1/eth2"}, to, steady, since, false},
		{"an unknown NIC", Place{Host: "h1"}, Place{Host: "h2"}, steady, since, false},
		{"long ago", from, to, steady, since.Add(time.Minute), false},
	} {
		tr := New(Options{})
		for _, r := range sends("0x1", first, 60, c.wire) {
			tr.Add(r)
		}
		if got := tr.HasNormalPeer(c.from, c.to, c.since); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestForgetIdle: what no record came of for a long time is forgotten, and a job that goes on keeps the rest.
func TestForgetIdle(t *testing.T) {
	const first = 1_790_000_000_000_000_000
	tr := New(Options{})
	add := func(comm string) {
		for _, r := range sends(comm, first, 60, func(int) int64 { return 5 }) {
			tr.Add(r)
		}
	}
	add("0x1")
	add("0x2")
	for range forgetAfter + 1 {
		tr.Cycle(time.Unix(0, first), nil)
		if tr.cycle%forgetJobAfter == 0 {
			add("0x2")
		}
	}
	if open := tr.ForgetIdle(); len(open) != 0 || tr.comms != 1 || tr.cells != 1 || len(tr.jobs["t7"].cells) != 1 {
		t.Errorf("%v, %d communicators, %d connections", open, tr.comms, tr.cells)
	}
	for range forgetJobAfter + 1 {
		tr.Cycle(time.Unix(0, first), nil)
	}
	if tr.ForgetIdle(); tr.comms != 0 || tr.cells != 0 || len(tr.jobs) != 0 || len(tr.order) != 0 {
		t.Errorf("%d communicators, %d connections, %d jobs", tr.comms, tr.cells, len(tr.jobs))
	}
	add("0x1")
	if tr.comms != 1 {
		t.Errorf("%d communicators after a new beginning", tr.comms)
	}
}

// TestJobReports: a job has a report of its communicators and diagnoses alone, and what no placement explains has none.
func TestJobReports(t *testing.T) {
	slow := func(s, _ int) float64 {
		if s < 45 {
			return 17
		}
		return 27
	}
	var judged []Judged
	tr := New(Options{Judged: func(j Judged) { judged = append(judged, j) }, JobOf: func(hosts []string, _ time.Time) string {
		if slices.Contains(hosts, "h3") {
			return "large"
		}
		return "small"
	}})
	for _, r := range allReduces(60, 4, slow) {
		tr.Add(r)
	}
	for _, r := range allReduces(60, 2, func(int, int) float64 { return 17 }) {
		r.(*ccl.Op).Job, r.(*ccl.Op).Comm = "another", "0x2"
		tr.Add(r)
	}
	tr.Cycle(time.Unix(1_790_000_100, 0), nil)
	got := tr.JobReports(time.Unix(1_790_000_100, 0))
	if len(got) != 2 || got[0].Job != "large" || got[0].State != Suspect || len(got[0].Diagnoses) != 1 || got[0].Coverage.RanksSeen != 4 ||
		got[1].Job != "small" || got[1].State != Healthy || len(got[1].Diagnoses) != 0 || got[1].Coverage.Operations != 120 {
		t.Errorf("%+v", got)
	}
	if len(judged) != 120 || judged[0].Job != "large" || judged[0].Transfer != 17*time.Millisecond || judged[119].Job != "small" {
		t.Errorf("%d operations were judged: %+v", len(judged), judged)
	}
	if out := tr.TakeOutliers(); len(out) != 0 {
		t.Errorf("operations that took 1.6 times as long are reported: %+v", out)
	}
}
