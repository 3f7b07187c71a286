package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/sim/collective"
)

// allReduces returns all-reduces of a ring of ranks on a host each: exec gives the durations in ms. Between two of them the
// ranks that waited longest computed for 80 ms.
func allReduces(steps int, ranks int, exec func(step, rank int) float64) (out []ccl.Record) {
	end := int64(1_790_000_000_000_000_000)
	bytes := uint64(64 << 20)
	for s := range steps {
		longest := 0.0
		for r := range ranks {
			longest = max(longest, exec(s, r))
		}
		end += int64((80 + longest) * 1e6)
		for r := range ranks {
			ns := int64(exec(s, r) * 1e6)
			out = append(out, &ccl.Op{From: ccl.From{Job: "t7", Comm: "0x1", Rank: r, NRanks: ranks, Host: fmt.Sprintf("h%d", r+1)}, Seq: uint64(s), Op: "AllReduce",
				Algo: "RING", Proto: "SIMPLE", Bytes: &bytes, StartNS: ccl.KnownNanos(end - ns), EndNS: ccl.KnownNanos(end), ExecNS: ccl.KnownNanos(ns), Timing: "kernel_gpu", State: ccl.Completed})
		}
	}
	return out
}

// TestWatchdogTimes: durations that are bounds by a watchdog are compared with nothing, and neither slow nor normal. Those by events
// of the GPU are.
func TestWatchdogTimes(t *testing.T) {
	for timing, want := range map[string]State{ccl.TimingWatchdog: InsufficientState, ccl.TimingEnqueued: InsufficientState, ccl.TimingEvent: Suspect} {
		records := allReduces(60, 4, func(s, _ int) float64 {
			if s < 45 {
				return 17
			}
			return 27
		})
		for _, r := range records {
			r.(*ccl.Op).Timing = timing
		}
		if rep := Replay(records, Options{}, nil); rep.State != want {
			t.Errorf("%s: %s, %+v", timing, rep.State, rep.Diagnoses)
		}
	}
}

// TestPublishedOpenMPI has the durations that Open MPI's ring of four ranks showed: 17 ms; 19 in a late rank and 39 to 41 in
// the others; 27 in all with a slow NIC.
func TestPublishedOpenMPI(t *testing.T) {
	noise := func(s, r int) float64 { return float64((s*7+r*3)%5) * 0.1 }
	late := Replay(allReduces(60, 4, func(s, r int) float64 {
		if s < 45 {
			return 17 + noise(s, r)
		}
		if r == 2 {
			return 19
		}
		return []float64{39, 40, 0, 41}[r] + noise(s, r)
	}), Options{}, nil)
	if len(late.Diagnoses) != 1 || late.Diagnoses[0].Syndrome != NonCommSlow || !slices.Equal(late.Diagnoses[0].Ranks, []int{2}) || late.Diagnoses[0].Network.State != Innocent {
		t.Errorf("late rank: %+v", late.Diagnoses)
	}
	slow := Replay(allReduces(60, 4, func(s, r int) float64 {
		if s < 45 {
			return 17 + noise(s, r)
		}
		return 27 + noise(s, r)
	}), Options{}, nil)
	if len(slow.Diagnoses) != 1 || slow.Diagnoses[0].Syndrome != CommSlow || slow.Diagnoses[0].Pattern != Unlocated || slow.Diagnoses[0].Network.State != Insufficient {
		t.Errorf("slow NIC: %+v", slow.Diagnoses)
	}
	calm := Replay(allReduces(60, 4, func(s, r int) float64 { return 17 + noise(s, r) }), Options{}, nil)
	if len(calm.Diagnoses) != 0 || calm.State != Healthy {
		t.Errorf("nothing wrong: %s %+v", calm.State, calm.Diagnoses)
	}
	few := Replay(allReduces(20, 4, func(s, r int) float64 { return 17 + float64(s) }), Options{}, nil)
	if few.State != InsufficientState {
		t.Errorf("20 operations, which are no normal: %s", few.State)
	}
}

// TestRule1Undecided has operations that are not judged: too few ranks, mixed timing.
func TestRule1Undecided(t *testing.T) {
	slow := func(s, _ int) float64 {
		if s < 45 {
			return 17
		}
		return 27
	}
	var missing, mixed []ccl.Record
	for _, r := range allReduces(60, 4, slow) {
		if o := r.(*ccl.Op); o.Rank != 3 {
			missing = append(missing, o)
		}
	}
	for _, r := range allReduces(60, 4, slow) {
		if o := r.(*ccl.Op); o.Rank == 3 {
			o.Timing = "kernel_cpu"
		}
		mixed = append(mixed, r)
	}
	for name, recs := range map[string][]ccl.Record{"three of four ranks": missing, "mixed timing": mixed} {
		if rep := Replay(recs, Options{}, nil); rep.State != InsufficientState || len(rep.Diagnoses) != 0 {
			t.Errorf("%s: %s %+v", name, rep.State, rep.Diagnoses)
		}
	}
}

// TestRule1Rotating has another rank last in each operation, so no rank is at fault.
func TestRule1Rotating(t *testing.T) {
	rep := Replay(allReduces(80, 8, func(s, r int) float64 {
		if s < 45 || (s*5)%8 == r {
			return 17
		}
		return 40
	}), Options{}, nil)
	if len(rep.Diagnoses) != 0 {
		t.Errorf("%+v", rep.Diagnoses)
	}
}

// simulated returns a run of 16 ranks, and with which grid.
func simulated(t *testing.T, c collective.Config) collective.Run {
	t.Helper()
	run, err := collective.Simulate(c)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// TestShow10 has what may not be said: files that end, transfers without records, jobs without placements.
func TestShow10(t *testing.T) {
	run := simulated(t, collective.Config{Seed: 3, DP: 4, TP: 2, PP: 2, Steps: 8, Fault: collective.LostConnection})
	ends := slices.DeleteFunc(slices.Clone(run.Records), func(r ccl.Record) bool { _, beat := r.(*ccl.Beat); return beat })
	if rep := Replay(slices.Clone(ends), Options{}, nil); len(rep.Diagnoses) != 0 {
		t.Errorf("a file that ends is a hang: %+v", rep.Diagnoses)
	}
	at := run.Truth.BeganAt.Add(30 * time.Second)
	if rep := Replay(slices.Clone(ends), Options{Until: at}, nil); len(rep.Diagnoses) != 1 || rep.Diagnoses[0].Syndrome != CommHang {
		t.Errorf("open for 30 s at the time that was given: %+v", rep.Diagnoses)
	}
	run = simulated(t, collective.Config{Seed: 3, DP: 4, TP: 2, PP: 2, Steps: 8, Fault: collective.LostConnection, NoEdges: true})
	rep := Replay(run.Records, Options{}, nil)
	if len(rep.Diagnoses) != 1 || rep.Diagnoses[0].Pattern != Unlocated || rep.Diagnoses[0].Connection != nil || len(rep.Diagnoses[0].Isolate.Nodes) != 0 {
		t.Errorf("without records of transfers: %+v", rep.Diagnoses)
	}
	for _, d := range rep.Diagnoses {
		if d.Job != "" {
			t.Errorf("job %q is named without a placement", d.Job)
		}
	}
	named := Replay(run.Records, Options{JobOf: func(hosts []string, _ time.Time) string { return strings.Join(hosts[:1], "") }}, nil)
	if len(named.Diagnoses) != 1 || !strings.HasPrefix(named.Diagnoses[0].Job, "h") {
		t.Errorf("job by its placement: %+v", named.Diagnoses)
	}
}

// table is a fabric whose evidence is written down.
type table struct {
	from, to string
	evidence Evidence
	other    Evidence
}

func (f table) Connection(from, to Place, _, _ time.Time) Evidence {
	if from.Host == f.from && to.Host == f.to {
		return f.evidence
	}
	return f.other
}

// TestRule8 has what the network is blamed for.
func TestRule8(t *testing.T) {
	run := simulated(t, collective.Config{Seed: 3, DP: 4, TP: 1, PP: 1, Steps: 45, Fault: collective.SlowCell})
	from, to := run.Truth.Place.Host, run.Truth.Peer.Host
	verdict := []Verdict{{ID: "v1", Element: "leaf1:up1--spine1:dn1", Link: true}}
	clean := Evidence{CoverageKnown: true, Coverage: 0.95, PeerNormal: true}
	for name, c := range map[string]struct {
		fabric Fabric
		want   NetworkState
		reason string
	}{
		"verdict on a way":                  {table{from, to, Evidence{Verdicts: verdict, CoverageKnown: true, Coverage: 0.97}, Evidence{}}, Guilty, ""},
		"verdict on the other direction":    {table{to, from, Evidence{Verdicts: verdict}, Evidence{}}, Insufficient, "90 %"},
		"clean ways, normal peer":           {table{from, to, clean, clean}, Innocent, ""},
		"clean ways, no peer":               {table{from, to, Evidence{CoverageKnown: true, Coverage: 0.95}, clean}, Insufficient, "no other job"},
		"too few ways":                      {table{from, to, Evidence{CoverageKnown: true, Coverage: 0.89, PeerNormal: true}, clean}, Insufficient, "90 %"},
		"no fabric":                         {nil, Insufficient, "no evidence"},
		"no way from one host to the other": {table{from, to, Evidence{Reason: "no way"}, clean}, Insufficient, "no way"},
	} {
		rep := Replay(slices.Clone(run.Records), Options{}, c.fabric)
		if len(rep.Diagnoses) != 1 {
			t.Fatalf("%s: %d diagnoses", name, len(rep.Diagnoses))
		}
		n := rep.Diagnoses[0].Network
		if n.State != c.want || !strings.Contains(n.Reason, c.reason) || rep.Network != c.want {
			t.Errorf("%s: %+v, of all %s; want %s", name, n, rep.Network, c.want)
		}
		if (len(rep.Diagnoses[0].Isolate.Links) == 1) != (c.want == Guilty) {
			t.Errorf("%s: links to take out of use: %v", name, rep.Diagnoses[0].Isolate.Links)
		}
	}
}

// TestRule6HardFailure has a connection that hangs and whose link is known to be dead: two seconds are enough.
func TestRule6HardFailure(t *testing.T) {
	run := simulated(t, collective.Config{Seed: 3, DP: 4, TP: 1, PP: 1, Steps: 8, Fault: collective.LostConnection})
	f := table{run.Truth.Place.Host, run.Truth.Peer.Host, Evidence{Verdicts: []Verdict{{ID: "v1", Element: "x", HardFailure: true}}}, Evidence{}}
	with, without := Replay(slices.Clone(run.Records), Options{}, f), Replay(run.Records, Options{}, nil)
	if len(with.Diagnoses) != 1 || len(without.Diagnoses) != 1 {
		t.Fatalf("%d and %d diagnoses", len(with.Diagnoses), len(without.Diagnoses))
	}
	a, b := with.Diagnoses[0].DetectedAt.Sub(run.Truth.BeganAt), without.Diagnoses[0].DetectedAt.Sub(run.Truth.BeganAt)
	if a > 5*time.Second || b < 5*time.Second || with.Network != Guilty {
		t.Errorf("detected after %v with a hard failure and %v without; network %s", a, b, with.Network)
	}
}

// TestChain has late ranks whose wait goes on through three communicators: tensor-parallel, pipeline and data-parallel.
func TestChain(t *testing.T) {
	right := 0
	seeds := *seedsPerKind
	for seed := range uint64(seeds) {
		run := simulated(t, collective.Config{Seed: seed + 1000, DP: 2 + 2*int(seed%2), TP: 2, PP: 4, Steps: 45, Fault: collective.LateRank})
		rep := Replay(run.Records, Options{}, nil)
		if len(rep.Diagnoses) == 1 && rightRoot(keysOf(run), &rep.Diagnoses[0], run.Truth) && len(rep.Diagnoses[0].Consequences) >= 2 {
			right++
			continue
		}
		t.Logf("seed %d: truth %v, diagnoses %+v", seed, run.Truth.Place, rep.Diagnoses)
	}
	t.Logf("%d of %d first ranks of a chain are right", right, seeds)
	if right*100 < seeds*95 {
		t.Errorf("%d of %d; 95 %% are required", right, seeds)
	}
}
