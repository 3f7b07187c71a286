package workload

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// TestRanksThatAreBehind has a ring whose connection from rank 3 to rank 4 is dead in an all-reduce. The first ranks have finished
// it, without a record of that, and wait in the following all-to-all. The connection is the root, and no rank called another
// operation than the others. Where those ranks never came to the all-reduce, it is a mismatch.
func TestRanksThatAreBehind(t *testing.T) {
	for _, x := range []struct {
		came bool
		want Pattern
	}{{true, Cell}, {false, Mismatch}} {
		at := int64(1_790_000_000_000_000_000)
		tr := New(Options{Until: time.Unix(0, at).Add(10 * time.Second)})
		from := func(r int) ccl.From {
			return ccl.From{Job: "t7", Comm: "0x1", Rank: r, NRanks: 8, Host: "h" + string(rune('1'+r))}
		}
		for r := range 8 {
			behind := r >= 3 && r <= 5
			op, launched := "AllToAll", map[string]uint64{"AllReduce": 40, "AllToAll": 41}
			if behind {
				op, launched = "AllReduce", map[string]uint64{"AllReduce": 41, "AllToAll": 40}
			}
			completed := map[string]uint64{"AllReduce": 40, "AllToAll": 40}
			if x.came && !behind {
				launched["AllReduce"], completed["AllReduce"] = 41, 41
			}
			tr.Add(&ccl.Op{From: from(r), Op: op, Seq: 40, StartNS: ccl.KnownNanos(at), State: ccl.Started})
			for s := range int64(8) {
				tr.Add(&ccl.Beat{From: from(r), AtNS: ccl.KnownNanos(at + s*1e9), Launched: launched, Completed: completed})
			}
		}
		for _, e := range []ccl.Edge{{From: from(3), Peer: 4, Direction: ccl.Send}, {From: from(4), Peer: 3, Direction: ccl.Recv}} {
			e.Op, e.Seq, e.State, e.Held, e.StartNS = "AllReduce", 40, ccl.Open, ccl.HeldByWire, ccl.KnownNanos(at)
			tr.Add(&e)
		}
		var rep Report
		for s := range time.Duration(10) {
			rep = tr.Cycle(time.Unix(0, at).Add(s*time.Second), nil)
		}
		if len(rep.Diagnoses) != 1 || rep.Diagnoses[0].Pattern != x.want {
			t.Errorf("the first ranks came to the all-reduce %v: %+v, want one diagnosis with the pattern %s", x.came, rep.Diagnoses, x.want)
		}
	}
}
