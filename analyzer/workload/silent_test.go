package workload

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// TestJobThatEnds: what a job waited for is over a minute after its last record, and not before.
func TestJobThatEnds(t *testing.T) {
	records := allReduces(60, 4, func(s, _ int) float64 {
		if s < 45 {
			return 17
		}
		return 27
	})
	tr := New(Options{})
	at := time.Time{}
	for _, r := range records {
		tr.Add(r)
		at = time.Unix(0, TimeOf(r))
	}
	isOpen := func() bool { return tr.Cycle(at, nil).Diagnoses[0].Open }
	for n := range silentAfter {
		if at = at.Add(time.Second); !isOpen() {
			t.Fatalf("the diagnosis is over after %d s", n)
		}
	}
	if at = at.Add(time.Second); isOpen() {
		t.Error("the diagnosis is open a minute after the last record")
	}
}

// TestFaultThatIsOver: after a fault, operations vary more than before, as what is normal was learned in a quiet time. Three of ten
// count then, which is too few for a diagnosis, and far from what the fault added: it is over.
func TestFaultThatIsOver(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	noise := make([]bool, 160)
	for s := range noise {
		noise[s] = rng.IntN(10) < 3
	}
	records := allReduces(len(noise), 4, func(s, _ int) float64 {
		switch {
		case s >= 45 && s < 60:
			return 200
		case s >= 60 && noise[s]:
			return 20
		}
		return 17
	})
	tr := New(Options{})
	at, opened, open := time.Time{}, false, false
	for _, r := range records {
		tr.Add(r)
		if now := time.Unix(0, TimeOf(r)); now.Sub(at) >= time.Second {
			at = now
			if d := tr.Cycle(at, nil).Diagnoses; len(d) > 0 {
				opened, open = true, d[0].Open
			}
		}
	}
	if !opened || open {
		t.Errorf("a diagnosis was made: %v; it is still open: %v", opened, open)
	}
}

// TestHangOfAJobWithoutBeats: a hang stands while there is silence, if the ranks never sent beats. It is over when beats cease.
func TestHangOfAJobWithoutBeats(t *testing.T) {
	for _, beats := range []bool{false, true} {
		at := int64(1_790_000_000_000_000_000)
		tr := New(Options{Until: time.Unix(0, at).Add(10 * time.Second)})
		for r := range 4 {
			from := ccl.From{Job: "t7", Comm: "0x1", Rank: r, NRanks: 4, Host: "h1"}
			if beats {
				for s := range int64(2) {
					tr.Add(&ccl.Beat{From: from, AtNS: ccl.KnownNanos(at + s*1e9)})
				}
			}
			tr.Add(&ccl.Op{From: from, Op: "AllReduce", StartNS: ccl.KnownNanos(at), State: ccl.Started})
		}
		var rep Report
		for s := range time.Duration(2 * silentAfter) {
			rep = tr.Cycle(time.Unix(0, at).Add(s*time.Second), nil)
		}
		if len(rep.Diagnoses) != 1 || rep.Diagnoses[0].Open == beats {
			t.Errorf("beats %v: %+v", beats, rep.Diagnoses)
		}
	}
}
