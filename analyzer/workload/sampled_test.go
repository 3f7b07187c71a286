package workload

import (
	"fmt"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/sim/collective"
)

// sampled returns what the agents of all nodes hand out of the records of a run, in the order in which it is handed out. Each agent
// has the records of its node, and knows the processes that they are of.
func sampled(t *testing.T, run collective.Run) (out []ccl.Record) {
	t.Helper()
	agents := map[string]*ccl.Sampler{}
	cursors := map[string]uint64{}
	processes := map[string]uint64{}
	places := map[string]string{} // of a rank of a communicator
	pull := func() {
		for host, s := range agents {
			for more := true; more; {
				recs, next, missed := s.After(cursors[host], 10_000)
				if missed {
					t.Fatal("records are missing")
				}
				more = len(recs) > 0
				out, cursors[host] = append(out, recs...), next
			}
		}
	}
	last := time.Time{}
	for _, r := range run.Records {
		at := time.Unix(0, max(TimeOf(r), last.UnixNano()))
		var host string
		switch r := r.(type) {
		case *ccl.Comm:
			for _, m := range r.Ranks {
				places[fmt.Sprint(r.Comm, m.Rank)] = fmt.Sprint(m.Host, "#", *m.GPU)
			}
			out = append(out, r)
			continue
		case *ccl.Op:
			place := places[fmt.Sprint(r.Comm, r.Rank)]
			if processes[place] == 0 {
				processes[place] = uint64(len(processes) + 1)
			}
			host, r.Process = r.Host, processes[place]
		case *ccl.Edge:
			host = r.Host
		case *ccl.Beat:
			host = r.Host
		}
		if agents[host] == nil {
			agents[host] = ccl.NewSampler(ccl.SamplerConfig{}, at)
		}
		agents[host].Add(at, r)
		if at.Sub(last) > 5*time.Second {
			pull()
			last = at
		}
	}
	for _, s := range agents {
		s.Advance(last.Add(20 * time.Second))
	}
	pull()
	return out
}

// TestSampledRecords has the faults of Show 1 in the records that agents hand out: at most four operations a second of each rank in
// a communicator.
func TestSampledRecords(t *testing.T) {
	total, kept := 0, 0
	var named, right, rooted, runs int
	for _, kind := range collective.Kinds() {
		s := &score{}
		for seed := range uint64((*seedsPerKind + 1) / 2) {
			c := config(kind, seed, min(*mostRanks, 16))
			if c.Steps > 10 { // a normal of sampled operations takes longer
				c.Steps, c.After = 250, 80
			}
			run, err := collective.Simulate(c)
			if err != nil {
				t.Fatal(err)
			}
			records := sampled(t, run)
			total, kept = total+len(run.Records), kept+len(records)
			s.add(fmt.Sprintf("%s seed %d %dx%dx%d", kind, seed, c.DP, c.TP, c.PP), run, Replay(records, Options{}, nil))
		}
		for _, w := range s.wrong {
			t.Log("  ", w)
		}
		named, right, rooted, runs = named+s.named, right+s.right, rooted+s.rooted, runs+s.runs
	}
	precision, recall, root := float64(right)/float64(max(1, named)), float64(right)/float64(runs), float64(rooted)/float64(max(1, right))
	t.Logf("%d of %d records: precision %.4f, recall %.4f, root %.4f", kept, total, precision, recall, root)
	if missed := runs - right; precision < 0.99 || missed > max(1, runs/50) || root < 0.97 {
		t.Errorf("precision %.4f, recall %.4f, root %.4f; at least 0.99, 0.98 (or one that is missed) and 0.97 are required", precision, recall, root)
	}
}
