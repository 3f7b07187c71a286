package collectives

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/follow"
	"github.com/graylink/graylink/internal/sim/collective"
)

// followers serves the pages of the real readers of nodes.
func followers(t *testing.T, r *rig, clock func() (time.Duration, bool)) map[string]*follow.Follower {
	t.Helper()
	nodes := map[string]*follow.Follower{}
	for _, name := range r.names {
		f, err := follow.New(follow.Config{Dir: t.TempDir(), Node: name}, r.now, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		f.UseClock(clock)
		nodes[name] = f
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		name, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
		after, err := strconv.ParseUint(req.URL.Query().Get("after"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		page := nodes[name].Page(after, pageRecords)
		_, _ = page.WriteTo(w) // the client may have gone
	}))
	t.Cleanup(server.Close)
	r.opts.Client, r.opts.URL = server.Client(), func(node string) string { return server.URL + "/" + node }
	return nodes
}

// TestPairsNeedBounds: a slow connection of a pipeline, of which only sends and receives are recorded, is found where the agents know
// the bounds of their clocks. Where they do not, nothing is said, although the lines of the users claim a bound.
func TestPairsNeedBounds(t *testing.T) {
	run, err := collective.Simulate(collective.Config{Seed: 1, DP: 2, TP: 1, PP: 4, Steps: 240, Fault: collective.SlowStage})
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range []bool{true, false} {
		r := newRig(t)
		nodes := followers(t, r, func() (time.Duration, bool) { return 50 * time.Microsecond, known })
		for i, rest := 0, 10; i < len(run.Records) || rest > 0; {
			for range 2 {
				r.now = r.now.Add(time.Second / 2)
				for _, f := range nodes {
					f.Poll(r.now)
				}
				for ; i < len(run.Records) && workload.TimeOf(run.Records[i]) <= r.now.UnixNano(); i++ {
					addPair(nodes, r.now, run.Records[i])
				}
			}
			if i == len(run.Records) {
				rest--
			}
			r.now = r.now.Add(-time.Second) // step adds it
			r.step()
		}
		s := r.State()
		if !known {
			if len(s.Report.Diagnoses) != 0 || s.Report.Coverage.Operations == 0 {
				t.Errorf("without bounds: %+v", s.Report)
			}
			continue
		}
		if len(s.Report.Diagnoses) != 1 {
			t.Fatalf("with bounds: %+v", s.Report)
		}
		d := s.Report.Diagnoses[0]
		if d.Syndrome != workload.CommSlow || d.Op != "Send" || !slices.Contains(d.Nodes, run.Truth.Place.Host) {
			t.Errorf("%+v; truth %+v", d, run.Truth)
		}
	}
}

// addPair gives a copy of a record to the agent of its node, unless it is of an operation of all ranks.
func addPair(nodes map[string]*follow.Follower, now time.Time, rec ccl.Record) {
	switch r := rec.(type) {
	case *ccl.Op:
		o := *r
		o.ClockError = ccl.KnownNanos(1) // as a user might write
		if o.Peer != nil {
			nodes[o.Host].Add(now, nil, &o)
		}
	case *ccl.Comm:
		for name, f := range nodes {
			part := *r
			part.Ranks = slices.DeleteFunc(slices.Clone(r.Ranks), func(m ccl.Member) bool { return m.Host != name })
			if len(part.Ranks) > 0 {
				f.Add(now, nil, &part)
			}
		}
	}
}
