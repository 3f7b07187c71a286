package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// TestLabJob runs a job of three ranks over a lab's fabric. A rank comes late, which shows in the duration of the operations, or
// what a NIC sends is delayed, which shows in the wire times of the connections that use it.
func TestLabJob(t *testing.T) {
	t.Parallel()
	const name = "e2ejob"
	l := fabricOf(t, name, "testdata/readme-fabric.yaml")
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		clean(t, name)
	})
	run := func(args ...string) map[int][]ccl.Record {
		t.Helper()
		stdout, stderr, code := graylink(t, append([]string{"lab", "job", "--name", name, "--size", "3MiB", "--operations", "10"}, args...)...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		out := map[int][]ccl.Record{}
		err := ccl.ReadRecords(strings.NewReader(stdout), func(_ int, r ccl.Record) error {
			switch r := r.(type) {
			case *ccl.Op:
				out[r.Rank] = append(out[r.Rank], r)
			case *ccl.Edge:
				out[r.Rank] = append(out[r.Rank], r)
			}
			return nil
		}, func(e fabric.LineError) { t.Error(e) })
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	median := func(records []ccl.Record, of func(ccl.Record) (int64, bool)) time.Duration {
		var all []int64
		for _, r := range records {
			if v, ok := of(r); ok {
				all = append(all, v)
			}
		}
		if len(all) != 10 {
			t.Errorf("%d values, want one of each operation", len(all))
			return 0
		}
		slices.Sort(all)
		return time.Duration(all[len(all)/2])
	}
	exec := func(r ccl.Record) (int64, bool) {
		o, ok := r.(*ccl.Op)
		if !ok || o.State != ccl.Completed {
			return 0, false
		}
		return o.Duration()
	}
	wire := func(r ccl.Record) (int64, bool) {
		e, ok := r.(*ccl.Edge)
		return wireOf(e), ok && e.Direction == ccl.Send && e.State == string(ccl.Completed)
	}

	late := run("--late", "1=300ms")
	for rank := range 3 {
		if got := median(late[rank], exec); got > 150*time.Millisecond != (rank != 1) {
			t.Errorf("with a late rank 1, operations of rank %d take %v", rank, got)
		}
	}
	if _, err := l.AddFault(t.Context(), lab.Fault{Kind: lab.KindNICSlow, At: "h2/eth1", Direction: lab.DirectionOut, Delay: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	// What rank 1 sends comes late, and so do its acknowledgements of what rank 0 sends. Rank 2 exchanges neither with it.
	slow := run()
	var wires []time.Duration
	for rank := range 3 {
		wires = append(wires, median(slow[rank], wire))
	}
	if wires[1] < 50*time.Millisecond || wires[0] < 50*time.Millisecond || wires[2] > wires[1]/2 {
		t.Errorf("wire times of the senders: %v", wires)
	}
}

// wireOf returns the wire time of a transfer.
func wireOf(e *ccl.Edge) int64 {
	if e == nil {
		return 0
	}
	return e.Wire.NS
}
