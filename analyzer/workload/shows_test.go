package workload

import (
	"flag"
	"fmt"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/sim/collective"
)

// The whole of Show 1 takes hours: go test ./analyzer/workload -run Show -v -timeout 8h -show.seeds 100 -show.ranks 512
var (
	seedsPerKind = flag.Int("show.seeds", defaultSeeds, "seeds of each kind of fault")
	mostRanks    = flag.Int("show.ranks", defaultRanks, "most ranks of a job")
	calmSeeds    = flag.Int("show.calm", defaultCalm, "jobs without a fault")
)

// want is what a fault has to be called.
var want = map[collective.Kind]struct {
	syndrome Syndrome
	patterns []Pattern
}{
	collective.SlowCell:       {CommSlow, []Pattern{Cell}},
	collective.SlowRow:        {CommSlow, []Pattern{Row}},
	collective.SlowColumn:     {CommSlow, []Pattern{Column}},
	collective.SlowNodeOut:    {CommSlow, []Pattern{NodeOut}},
	collective.SlowNodeIn:     {CommSlow, []Pattern{NodeIn}},
	collective.LateRank:       {NonCommSlow, []Pattern{Chain}},
	collective.StoppedRank:    {NonCommHang, []Pattern{Absent}},
	collective.LostConnection: {CommHang, []Pattern{Cell}},
	collective.MismatchedCall: {NonCommHang, []Pattern{Mismatch}},
	collective.StuckGPU:       {NonCommHang, []Pattern{Chain}},
	collective.NeverCame:      {NonCommHang, []Pattern{Absent}},
}

// score is how the diagnoses of many runs compare with the truth.
type score struct {
	runs, named, right, rooted, false_ int
	tardy                              int // beyond what Show 3 allows
	delays                             []time.Duration
	wrong                              []string
}

func key(p *collective.Place) string { return fmt.Sprintf("%s#%d", p.Host, p.GPU) }

// rightRoot says whether a diagnosis, or what it lists as equivalent, names what was at fault.
func rightRoot(keys map[string][]string, d *Diagnosis, tr collective.Truth) bool {
	of := func(ranks []int) (out []string) {
		for _, r := range ranks {
			out = append(out, keys[d.Comm][r])
		}
		return out
	}
	matches := func(p Pattern, ranks []int) bool {
		if !slices.Contains(want[tr.Fault].patterns, p) {
			return false
		}
		at := of(ranks)
		switch tr.Fault {
		case collective.SlowCell, collective.LostConnection:
			return slices.Equal(at, []string{key(tr.Place), key(tr.Peer)})
		case collective.SlowColumn:
			return slices.Equal(at, []string{key(tr.Peer)})
		case collective.SlowNodeOut, collective.SlowNodeIn:
			return len(ranks) > 0 && !slices.ContainsFunc(at, func(k string) bool { return k[:len(tr.Host)+1] != tr.Host+"#" })
		}
		return slices.Equal(at, []string{key(tr.Place)})
	}
	if matches(d.Pattern, d.Ranks) {
		return true
	}
	for _, e := range d.Equivalent {
		if matches(e.Pattern, e.Ranks) {
			return true
		}
	}
	return false
}

// keysOf returns the places of all ranks by communicator.
func keysOf(run collective.Run) map[string][]string {
	t := New(Options{})
	out := map[string][]string{}
	for _, r := range run.Records {
		t.Add(r)
		if len(out) > 0 && len(t.jobs["t7"].comms) == len(out) && t.read > 4096 {
			break
		}
		for id, c := range t.jobs["t7"].comms {
			if out[id] == nil && c.members[0] != nil {
				for _, p := range c.members {
					out[id] = append(out[id], p.key)
				}
			}
		}
	}
	return out
}

// add scores a run.
func (s *score) add(name string, run collective.Run, rep Report) {
	s.runs++
	tr := run.Truth
	if tr.Fault == collective.None {
		s.false_ += len(rep.Diagnoses)
		for _, d := range rep.Diagnoses {
			s.wrong = append(s.wrong, fmt.Sprintf("%s: %s %s %s", name, d.Syndrome, d.Pattern, d.Summary))
		}
		return
	}
	s.named += len(rep.Diagnoses)
	found := false
	for i := range rep.Diagnoses {
		d := &rep.Diagnoses[i]
		if d.Syndrome != want[tr.Fault].syndrome || found {
			s.wrong = append(s.wrong, fmt.Sprintf("%s: besides: %s %s %s", name, d.Syndrome, d.Pattern, d.Summary))
			continue
		}
		found = true
		s.right++
		after := d.DetectedAt.Sub(tr.BeganAt)
		s.delays = append(s.delays, after)
		if after > allowed(tr) {
			s.tardy++
			s.wrong = append(s.wrong, fmt.Sprintf("%s: detected after %v, allowed are %v", name, after, allowed(tr)))
		}
		if rightRoot(keysOf(run), d, tr) {
			s.rooted++
		} else {
			s.wrong = append(s.wrong, fmt.Sprintf("%s: root: %s %s %s; truth %v %v %s", name, d.Syndrome, d.Pattern, d.Summary, tr.Place, tr.Peer, tr.Host))
		}
	}
	if !found {
		s.wrong = append(s.wrong, name+": not found")
	}
}

// allowed returns within which time Show 3 wants a fault to be detected. The gradients of a step are one operation that is kept.
func allowed(tr collective.Truth) time.Duration {
	if s := want[tr.Fault].syndrome; s == CommHang || s == NonCommHang {
		return 10 * time.Second
	}
	slowest := time.Duration(float64(tr.StepNS)*max(1, tr.Factor)) + time.Duration(tr.AddedNS)
	return max(3*time.Second, 5*slowest) + 2*time.Second
}

// config returns the job of a seed. Its steps before a hang are fewer, as no normal is needed.
func config(kind collective.Kind, seed uint64, most int) collective.Config {
	ranks := 8 << (seed % 7)
	for ranks > most {
		ranks /= 4
	}
	dp, tp, pp := collective.Grid(max(8, ranks), seed)
	c := collective.Config{Seed: seed, DP: dp, TP: tp, PP: pp, Steps: 45, Fault: kind}
	switch kind {
	case collective.StoppedRank, collective.LostConnection, collective.MismatchedCall, collective.StuckGPU:
		c.Steps = 8
	case collective.NeverCame:
		c.Steps = 1
	}
	return c
}

// measure runs seeds of a kind and returns the score.
func measure(t *testing.T, kind collective.Kind, seeds, most int) *score {
	t.Helper()
	s := &score{}
	for seed := range uint64(seeds) {
		c := config(kind, seed, most)
		run, err := collective.Simulate(c)
		if err != nil {
			t.Fatal(err)
		}
		s.add(fmt.Sprintf("%s seed %d %dx%dx%d", kind, seed, c.DP, c.TP, c.PP), run, Replay(run.Records, Options{}, nil))
	}
	sort.Slice(s.delays, func(i, j int) bool { return s.delays[i] < s.delays[j] })
	return s
}

// TestShow1 measures precision, recall and roots for each kind of fault.
func TestShow1(t *testing.T) {
	var named, right, rooted, runs, tardy int
	for _, k := range collective.Kinds() {
		s := measure(t, k, *seedsPerKind, *mostRanks)
		named, right, rooted, runs = named+s.named, right+s.right, rooted+s.rooted, runs+s.runs
		tardy += s.tardy
		worst := time.Duration(0)
		if n := len(s.delays); n > 0 {
			worst = s.delays[n-1]
		}
		t.Logf("%-16s runs %3d  diagnoses %3d  right syndrome %3d  right root %3d  detected after at most %v", k, s.runs, s.named, s.right, s.rooted, worst)
		for _, w := range s.wrong {
			t.Log("  ", w)
		}
	}
	precision, recall, root := float64(right)/float64(max(1, named)), float64(right)/float64(runs), float64(rooted)/float64(max(1, right))
	if 100*tardy > runs {
		t.Errorf("%d of %d faults were detected later than Show 3 allows", tardy, runs)
	}
	t.Logf("precision %.4f, recall %.4f, root %.4f", precision, recall, root)
	if precision < 0.99 || recall < 0.98 || root < 0.97 {
		t.Errorf("precision %.4f, recall %.4f, root %.4f; at least 0.99, 0.98 and 0.97 are required", precision, recall, root)
	}
}

// nuisances returns the disturbances of healthy jobs by the bits of a seed.
func nuisances(seed uint64, shift bool) collective.Nuisances {
	b := func(i int) bool { return seed>>i&1 == 1 }
	return collective.Nuisances{Checkpoints: b(0), Imbalance: b(1), Bursts: b(2), Restart: b(3), Losses: b(4), Graphs: seed%7 == 5, Unseen: seed%5 == 3, ClockShift: shift}
}

// TestShow2 has jobs without a fault, of which no diagnosis may be made.
func TestShow2(t *testing.T) {
	for _, shift := range []bool{false, true} {
		s := &score{}
		for seed := range uint64(*calmSeeds) {
			c := config(collective.None, seed, *mostRanks/2)
			c.Nuisances = nuisances(seed, shift)
			run, err := collective.Simulate(c)
			if err != nil {
				t.Fatal(err)
			}
			rep := Replay(run.Records, Options{}, nil)
			s.add(fmt.Sprintf("seed %d %dx%dx%d %+v", seed, c.DP, c.TP, c.PP, c.Nuisances), run, rep)
			if c.Nuisances.Unseen && c.TP > 1 && len(rep.Coverage.Unseen) == 0 {
				t.Errorf("seed %d: the coverage does not say what is unseen", seed)
			}
		}
		for _, w := range s.wrong {
			t.Error(w)
		}
		t.Logf("clocks shifted %v: %d runs, %d diagnoses", shift, s.runs, s.false_)
	}
}
