package follow

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// TestClockError: a record has the largest bound of the node's clock since it began, whatever its line says, and none if the node did not
// know its clock at any time since then.
func TestClockError(t *testing.T) {
	f := newFollowed(t, Config{Dir: t.TempDir()})
	bound, known := time.Duration(0), true
	seq := uint64(0)
	// errorOf returns the clock errors of an operation and of a transfer that began some time ago.
	errorOf := func(age time.Duration) (op, edge ccl.Nanos) {
		seq++
		start := ccl.KnownNanos(f.now.Add(-age).UnixNano())
		from := ccl.From{Comm: "c", Rank: 1, NRanks: 4, Host: "h3"}
		o := &ccl.Op{From: from, Seq: seq, Op: "Send", StartNS: start, ExecNS: ccl.KnownNanos(5), State: ccl.Completed, ClockError: ccl.KnownNanos(1)}
		e := &ccl.Edge{From: from, Seq: seq, Peer: 2, Direction: ccl.Send, State: ccl.Open, Held: ccl.HeldByWire, Since: start, ClockError: ccl.KnownNanos(1)}
		f.Add(f.now, nil, o)
		f.Add(f.now, nil, e)
		for _, rec := range f.Page(0, ccl.MaxPage).Records {
			switch r := rec.(type) {
			case *ccl.Op:
				op = r.ClockError
			case *ccl.Edge:
				edge = r.ClockError
			}
		}
		return op, edge
	}
	expect := func(what string, age time.Duration, want ccl.Nanos) {
		t.Helper()
		if op, edge := errorOf(age); op != want || edge != want {
			t.Errorf("%s: the operation has %+v and the transfer %+v, want %+v", what, op, edge, want)
		}
	}
	f.poll(4)
	expect("without a source of bounds", time.Second, ccl.Nanos{})
	f.UseClock(func() (time.Duration, bool) { return bound, known })
	bound = 300
	f.poll(1)
	expect("a record that is older than the first bound", time.Second, ccl.Nanos{})
	f.poll(9)
	expect("a clock that is known", time.Second, ccl.KnownNanos(300))
	bound = 200
	f.poll(4)
	expect("a bound that was larger", 2*time.Second, ccl.KnownNanos(300))
	expect("a bound that was larger before the record began", 0, ccl.KnownNanos(200))
	known = false
	f.poll(1)
	expect("a clock that is not known", 0, ccl.Nanos{})
	known = true
	f.poll(6)
	expect("a clock that is known again", time.Second, ccl.KnownNanos(200))
	expect("a clock that was unknown meanwhile", 3*time.Second, ccl.Nanos{})
	f.poll(140)
	expect("a record of before the bounds that are remembered", 61*time.Second, ccl.Nanos{})
	expect("a record of the last minute", 59*time.Second, ccl.KnownNanos(200))
	expect("a record of the future", -2*time.Second, ccl.Nanos{})
	if n := len(f.clock.kept); n > 125 {
		t.Errorf("%d bounds are remembered", n)
	}
}
