package workload

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// counted is a communicator of which only counts are known.
type counted struct {
	name  string
	ranks int
	// launched returns how many operations a rank has launched at a second.
	launched func(second, rank int) uint64
}

// countsOf returns the beats of communicators every two seconds, as the RAS service gives them: without hosts.
func countsOf(seconds int, comms ...counted) (out []ccl.Record) {
	for s := 0; s < seconds; s += 2 {
		for _, c := range comms {
			for r := range c.ranks {
				out = append(out, &ccl.Beat{From: ccl.From{Job: "t7", Comm: c.name, Rank: r, NRanks: c.ranks}, AtNS: ccl.KnownNanos(1_790_000_000_000_000_000 + int64(s)*1e9),
					Alive: new(true), Launched: map[string]uint64{"AllReduce": c.launched(s, r), "Send": uint64(7 * r)}})
			}
		}
	}
	return out
}

// stopsAt returns counts of ranks that launch ten operations a second, and of which one stops after a number.
func stopsAt(absent int, count uint64) func(int, int) uint64 {
	return func(second, rank int) uint64 {
		if rank == absent {
			return min(count, uint64(10*second))
		}
		return min(count+1, uint64(10*second))
	}
}

// placedOn has the ranks of a job of eight on h1 to h8.
func placedOn(_ string, _ []string, _ time.Time, ranks, rank int) (Place, bool) {
	return Place{Host: fmt.Sprintf("h%d", rank+1), GPU: new(0)}, ranks == 8
}

func TestHangByCounts(t *testing.T) {
	world := counted{"0x1", 8, stopsAt(5, 205)}
	rep := Replay(countsOf(40, world), Options{PlaceOf: placedOn}, nil)
	if len(rep.Diagnoses) != 1 {
		t.Fatalf("%+v", rep.Diagnoses)
	}
	d := rep.Diagnoses[0]
	if d.Syndrome != NonCommHang || d.Pattern != Absent || d.Op != "AllReduce" || d.FirstSeq != 205 || d.Phase != "run" || !d.Open || d.Confidence != 0.99 ||
		!slices.Equal(d.Ranks, []int{5}) || !slices.Equal(d.Nodes, []string{"h6"}) || !slices.Equal(d.Isolate.Nodes, []string{"h6"}) {
		t.Errorf("%+v", d)
	}
	// The counts stand since second 22, and the service is asked every two seconds.
	if after := d.DetectedAt.Sub(time.Unix(1_790_000_022, 0)); after < hangAfter || after > hangAfter+4*time.Second {
		t.Errorf("detected %v after the counts stood", after)
	}
	// Without the scheduler the rank is known, and its node is not.
	if rep := Replay(countsOf(40, world), Options{}, nil); len(rep.Diagnoses) != 1 || !slices.Equal(rep.Diagnoses[0].Ranks, []int{5}) || len(rep.Diagnoses[0].Nodes) != 0 {
		t.Errorf("%+v", rep.Diagnoses)
	}
}

func TestNoHangByCounts(t *testing.T) {
	for what, launched := range map[string]func(int, int) uint64{
		"all have launched the same": stopsAt(-1, 205),
		"a rank that is behind goes on": func(second, rank int) uint64 {
			if rank == 5 {
				return uint64(second)
			}
			return min(201, uint64(10*second))
		},
		"the others go on": func(second, rank int) uint64 {
			if rank == 5 {
				return min(20, uint64(second))
			}
			return uint64(10 * second)
		},
		"half of the ranks are behind": func(second, rank int) uint64 { return min(200+uint64(rank%2), uint64(10*second)) },
		"it stands for less than 5 s": func(second, rank int) uint64 {
			if n := stopsAt(5, 205)(second, rank); second < 26 {
				return n
			}
			return uint64(10 * second)
		},
	} {
		if rep := Replay(countsOf(40, counted{"0x1", 8, launched}), Options{PlaceOf: placedOn}, nil); len(rep.Diagnoses) != 0 {
			t.Errorf("%s: %+v", what, rep.Diagnoses)
		}
	}
}

// TestStallsByCounts: a job that once stood for long and went on hangs only after three times as long.
func TestStallsByCounts(t *testing.T) {
	stood := func(second, rank int) uint64 {
		if second < 30 {
			return stopsAt(-1, 100)(second, rank) // from second 10 on
		}
		return 100 + stopsAt(5, 50)(second-30, rank)
	}
	if rep := Replay(countsOf(80, counted{"0x1", 8, stood}), Options{}, nil); len(rep.Diagnoses) != 0 {
		t.Errorf("%+v", rep.Diagnoses)
	}
	if rep := Replay(countsOf(130, counted{"0x1", 8, stood}), Options{}, nil); len(rep.Diagnoses) != 1 {
		t.Errorf("%+v", rep.Diagnoses)
	}
}

// TestSeveralHangByCounts: of several communicators whose ranks are not known to be the same processes, the largest one is named with
// less confidence.
func TestSeveralHangByCounts(t *testing.T) {
	rep := Replay(countsOf(40, counted{"0x2", 4, stopsAt(1, 105)}, counted{"0x1", 8, stopsAt(5, 205)}), Options{PlaceOf: placedOn}, nil)
	if len(rep.Diagnoses) == 0 {
		t.Fatal("no diagnosis")
	}
	open := slices.DeleteFunc(rep.Diagnoses, func(d Diagnosis) bool { return !d.Open })
	if len(open) != 1 || open[0].Comm != "0x1" || open[0].Confidence != 0.9 || !slices.Equal(open[0].Ranks, []int{5}) {
		t.Errorf("%+v", open)
	}
}

// TestPlacedRanks: what a record says of its host stands against the scheduler.
func TestPlacedRanks(t *testing.T) {
	tr := New(Options{PlaceOf: placedOn})
	for _, r := range countsOf(2, counted{"0x1", 8, stopsAt(5, 205)}) {
		tr.Add(r)
	}
	c := tr.jobs["t7"].comms["0x1"]
	if got := c.members[5].place; got.Host != "h6" || got.GPU == nil || *got.GPU != 0 || len(c.hosts()) != 8 {
		t.Errorf("%+v %v", got, c.hosts())
	}
	tr.Add(&ccl.Comm{Job: "t7", Comm: "0x1", NRanks: 8, Ranks: []ccl.Member{{Rank: 5, Host: "h9"}}})
	tr.Add(&ccl.Beat{From: ccl.From{Job: "t7", Comm: "0x1", Rank: 4, NRanks: 8, Host: "h10"}, AtNS: ccl.KnownNanos(1_790_000_002_000_000_000)})
	if got := c.hosts(); c.members[5].place.Host != "h9" || c.members[4].place.Host != "h10" || !slices.Contains(got, "h9") || slices.Contains(got, "h6") {
		t.Errorf("%+v %v", c.members[5].place, got)
	}
}
