package workload

import (
	"hash/fnv"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/sim/collective"
)

// pairsOnly returns the operations between two ranks, and the communicators.
func pairsOnly(records []ccl.Record) []ccl.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r ccl.Record) bool {
		switch r := r.(type) {
		case *ccl.Comm:
			return false
		case *ccl.Op:
			return !pairwise(r.Op)
		}
		return true
	})
}

// unjudged returns the records with other operations than those between two ranks measured by a watchdog: they say when a rank was in an
// operation, and are compared with nothing.
func unjudged(records []ccl.Record) (out []ccl.Record) {
	for _, r := range records {
		if o, ok := r.(*ccl.Op); ok && !pairwise(o.Op) {
			c := *o
			c.Timing = ccl.TimingWatchdog
			r = &c
		}
		if _, edge := r.(*ccl.Edge); !edge {
			out = append(out, r)
		}
	}
	return out
}

// withClocks returns the records with other clocks: each host's clock is shifted by up to most, and bound is its bound (below zero: none).
func withClocks(records []ccl.Record, seed uint64, most, bound int64) (out []ccl.Record) {
	for _, r := range records {
		o, ok := r.(*ccl.Op)
		if !ok {
			out = append(out, r)
			continue
		}
		h := fnv.New64a()
		h.Write([]byte{byte(seed)})
		h.Write([]byte(o.Host))
		shift := int64(h.Sum64()%uint64(2*most+1)) - most
		c := *o
		c.StartNS.NS += shift
		if c.EndNS.Known {
			c.EndNS.NS += shift
		}
		c.ClockError = ccl.Nanos{}
		if bound >= 0 {
			c.ClockError = ccl.KnownNanos(bound)
		}
		out = append(out, &c)
	}
	return out
}

// TestSlowStage has a slow connection of a pipeline, of which only sends and receives are recorded: it is named where the clocks have
// bounds, whatever the clocks are within them, and nothing is said without bounds.
func TestSlowStage(t *testing.T) {
	for _, seed := range []uint64{0, 1, 3} {
		run := simulated(t, collective.Config{Seed: seed, DP: 2, TP: 1, PP: 4, Steps: 45, Fault: collective.SlowStage})
		pairs, keys := pairsOnly(run.Records), keysOf(run)
		var first []Diagnosis
		for _, clocks := range []uint64{0, 1, 2} {
			rep := Replay(withClocks(pairs, clocks, 50_000, 50_000), Options{}, nil)
			if len(rep.Diagnoses) != 1 {
				t.Fatalf("seed %d: %+v", seed, rep.Diagnoses)
			}
			d := &rep.Diagnoses[0]
			if d.Syndrome != CommSlow || d.Op != "Send" || d.Effect == nil || d.Effect.Ratio < 1.3 || !hasCell(keys, d, run.Truth) {
				t.Errorf("seed %d: %+v; truth %v %v", seed, d, run.Truth.Place, run.Truth.Peer)
			}
			if first == nil {
				first = rep.Diagnoses
			}
			if first[0].ID != d.ID || first[0].Pattern != d.Pattern || first[0].DetectedAt.Sub(d.DetectedAt).Abs() > 1_000_000_000 {
				t.Errorf("seed %d: with other clocks %+v, and before %+v", seed, d, first[0])
			}
		}
		if rep := Replay(withClocks(pairs, 1, 50_000, -1), Options{}, nil); len(rep.Diagnoses) != 0 || rep.State != InsufficientState {
			t.Errorf("seed %d, without bounds: %s %+v", seed, rep.State, rep.Diagnoses)
		}
		// Bounds as large as the transfers say nothing.
		if rep := Replay(withClocks(pairs, 1, 50_000, 500_000_000), Options{}, nil); len(rep.Diagnoses) != 0 {
			t.Errorf("seed %d, with bounds of 500 ms: %+v", seed, rep.Diagnoses)
		}
	}
}

// hasCell reports whether a diagnosis, or what it lists as equivalent, names the connection at fault.
func hasCell(keys map[string][]string, d *Diagnosis, tr collective.Truth) bool {
	want := []string{key(tr.Place), key(tr.Peer)}
	at := func(ranks []int) (out []string) {
		for _, r := range ranks {
			out = append(out, keys[d.Comm][r])
		}
		return out
	}
	return d.Pattern == Cell && slices.Equal(at(d.Ranks), want) ||
		slices.ContainsFunc(d.Equivalent, func(e Equivalent) bool { return e.Pattern == Cell && slices.Equal(at(e.Ranks), want) })
}

// TestLateStage has a stage of a pipeline that comes late, of which only sends and receives are compared with what is normal.
func TestLateStage(t *testing.T) {
	found := 0
	for seed := range uint64(4) {
		run := simulated(t, collective.Config{Seed: seed, DP: 2, TP: 1, PP: 4, Steps: 45, Fault: collective.LateRank})
		pairs, keys := unjudged(run.Records), keysOf(run)
		for _, clocks := range []uint64{0, 1} {
			rep := Replay(withClocks(pairs, clocks, 50_000, 50_000), Options{}, nil)
			if len(rep.Diagnoses) != 1 {
				if len(rep.Diagnoses) > 1 {
					t.Errorf("seed %d: %+v; truth %v", seed, rep.Diagnoses, run.Truth.Place)
				}
				continue
			}
			found++
			d := &rep.Diagnoses[0]
			if d.Syndrome != NonCommSlow || d.Network.State != Innocent || len(d.Ranks) != 1 || keys[d.Comm][d.Ranks[0]] != key(run.Truth.Place) {
				t.Errorf("seed %d: %+v; truth %v", seed, d, run.Truth.Place)
			}
		}
		if rep := Replay(withClocks(pairs, 1, 50_000, -1), Options{}, nil); len(rep.Diagnoses) != 0 {
			t.Errorf("seed %d, without bounds: %+v", seed, rep.Diagnoses)
		}
	}
	if found < 4 {
		t.Errorf("%d of 8 runs have a diagnosis", found)
	}
}

// TestLateRoot has a rank that comes late to its own broadcast, whose records alone are read.
func TestLateRoot(t *testing.T) {
	for seed := range uint64(2) {
		run := simulated(t, collective.Config{Seed: seed, DP: 8, TP: 1, PP: 1, Steps: 45, Fault: collective.LateRoot})
		roots := slices.DeleteFunc(slices.Clone(run.Records), func(r ccl.Record) bool { o, ok := r.(*ccl.Op); return ok && o.Op != "Broadcast" })
		for _, clocks := range []uint64{0, 1} {
			rep := Replay(withClocks(roots, clocks, 50_000, 50_000), Options{}, nil)
			if len(rep.Diagnoses) != 1 {
				t.Errorf("seed %d: %+v; truth %v", seed, rep.Diagnoses, run.Truth.Place)
				continue
			}
			d := &rep.Diagnoses[0]
			if d.Syndrome != NonCommSlow || d.Op != "Broadcast" || len(d.Ranks) != 1 || keysOf(run)[d.Comm][d.Ranks[0]] != key(run.Truth.Place) {
				t.Errorf("seed %d: %+v; truth %v", seed, d, run.Truth.Place)
			}
		}
		if rep := Replay(withClocks(roots, 1, 50_000, -1), Options{}, nil); len(rep.Diagnoses) != 0 {
			t.Errorf("seed %d, without bounds: %+v", seed, rep.Diagnoses)
		}
	}
}

// TestReduceWaitsForTheLast has a reduce whose root waits for one of the others, which its clock shows.
func TestReduceWaitsForTheLast(t *testing.T) {
	var records []ccl.Record
	bytes, root, last := uint64(1<<20), 0, [4]int64{}
	for s := range 60 {
		begin := int64(1_790_000_000_000_000_000) + int64(s)*100_000_000 + int64(max(0, s-45))*40_000_000 // other operations hold all ranks
		for r := range 4 {
			start := begin + int64((s*7+r*3)%5)*10_000
			if s >= 45 && r == 2 {
				start += 40_000_000
			}
			end := start + 5_000_000
			if r == root && s >= 45 {
				end += 40_000_000
			}
			o := &ccl.Op{From: ccl.From{Job: "t7", Comm: "0x1", Rank: r, NRanks: 4, Host: string(rune('a' + r))}, Seq: uint64(s), Op: "Reduce", Bytes: &bytes, Root: &root,
				StartNS: ccl.KnownNanos(start), EndNS: ccl.KnownNanos(end), ExecNS: ccl.KnownNanos(end - start), Timing: ccl.TimingKernelGPU, State: ccl.Completed, ClockError: ccl.KnownNanos(1000)}
			if last[r] > 0 {
				o.GapNS = ccl.KnownNanos(start - last[r])
			}
			last[r] = end
			records = append(records, o)
		}
	}
	rep := Replay(records, Options{}, nil)
	if len(rep.Diagnoses) != 1 || rep.Diagnoses[0].Syndrome != NonCommSlow || !slices.Equal(rep.Diagnoses[0].Ranks, []int{2}) {
		t.Errorf("%+v", rep.Diagnoses)
	}
}

// TestWaitsThatRecur has a receiver that waits 15 ms for its sender at one place of each step and not at the other ones, and a record that
// is lost now and then: that is its rhythm. Once it waits everywhere its sender is late.
func TestWaitsThatRecur(t *testing.T) {
	const steps, period, wait = 60, 200_000_000, 15_000_000
	for _, places := range []int{2, 3, 8} {
		for _, late := range []bool{false, true} {
			var records []ccl.Record
			bytes, last := uint64(1<<20), [2]int64{}
			for s := range steps * places {
				begin := int64(1_790_000_000_000_000_000) + int64(s)*period/int64(places) + int64((s*7)%5)*10_000
				came := begin
				if s%places == 0 {
					came += wait
				}
				if late && s >= 45*places {
					came += 4 * wait / int64(places)
				}
				for r := range 2 {
					peer, op, start := 1-r, "Send", came
					if r == 1 {
						op, start = "Recv", begin
					}
					o := &ccl.Op{From: ccl.From{Job: "t8", Comm: "0x1", Rank: r, NRanks: 2, Host: string(rune('a' + r))}, Seq: uint64(s), Op: op, Peer: &peer, Bytes: &bytes,
						StartNS: ccl.KnownNanos(start), EndNS: ccl.KnownNanos(came + 1_000_000), ExecNS: ccl.KnownNanos(came + 1_000_000 - start),
						Timing: ccl.TimingKernelGPU, State: ccl.Completed, ClockError: ccl.KnownNanos(1000)}
					if last[r] > 0 {
						o.GapNS = ccl.KnownNanos(start - last[r])
					}
					last[r] = came + 1_000_000
					if s%43 != 20 || r == 1 {
						records = append(records, o)
					}
				}
			}
			rep := Replay(records, Options{}, nil)
			if got := len(rep.Diagnoses); got > 1 || (got == 1) != late {
				t.Errorf("%d places, late %v: %d diagnoses: %+v", places, late, got, rep.Diagnoses)
			}
		}
	}
}

// TestWhatCountsInEveryOtherStep has operations that count in every other step, as where ranks are late in turn, and one more: that is
// no fault. Five of eight in both halves are one, and so are those of which records have one half only, as where they are sampled.
func TestWhatCountsInEveryOtherStep(t *testing.T) {
	for _, tc := range []struct {
		name    string
		judged  func(seq uint64) bool
		counts  []uint64
		counted int
	}{
		{"every other step", func(seq uint64) bool { return true }, []uint64{70, 86, 102, 118, 126}, 0},
		{"a record of the other half is lost", func(seq uint64) bool { return seq != 78 }, []uint64{54, 70, 86, 102, 118}, 0},
		{"five steps", func(seq uint64) bool { return true }, []uint64{94, 102, 110, 118, 126}, 5},
		{"five of eight steps", func(seq uint64) bool { return true }, []uint64{70, 86, 94, 102, 126}, 5},
		{"each eighth operation is handed out", func(seq uint64) bool { return seq%16 == 6 }, []uint64{54, 70, 86, 102, 118}, 5},
	} {
		s := &series{}
		for seq := range uint64(128) {
			if tc.judged(seq) {
				s.seqs = append(s.seqs, seq)
			}
		}
		for _, seq := range tc.counts {
			s.results = append(s.results, &result{seq: seq, waitOver: 1})
		}
		if got := len(s.counting(counting, func(r *result) bool { return r.waitOver > 0 })); got != tc.counted {
			t.Errorf("%s: %d results count, and not %d", tc.name, got, tc.counted)
		}
	}
}
