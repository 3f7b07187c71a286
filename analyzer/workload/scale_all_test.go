//go:build all

package workload

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// TestShow8Scale has 10,240 ranks in 4,096 communicators: a cycle within 2 s and 1 GB of memory.
func TestShow8Scale(t *testing.T) {
	const comms, size, procs, steps = 4096, 10, 10240, 48
	tr := New(Options{})
	gpu := make([]int, 8)
	for i := range gpu {
		gpu[i] = i
	}
	bytes := uint64(64 << 20)
	for s := range steps {
		for c := range comms {
			id := fmt.Sprintf("0x%x", c)
			if s == 0 {
				m := &ccl.Comm{Job: "t7", Comm: id, NRanks: size}
				for r := range size {
					p := (c*size + r) % procs
					m.Ranks = append(m.Ranks, ccl.Member{Rank: r, Host: fmt.Sprintf("h%d", p/8), GPU: &gpu[p%8]})
				}
				tr.Add(m)
			}
			end := int64(1_790_000_000_000_000_000 + s*1_000_000_000 + (c*size/procs)*100_000_000)
			for r := range size {
				ns := int64(17_000_000 + (s*7+r*3)%5*100_000)
				from := ccl.From{Job: "t7", Comm: id, Rank: r, NRanks: size, Host: "h"}
				tr.Add(&ccl.Op{From: from, Seq: uint64(s), Op: "AllReduce", Bytes: &bytes, StartNS: ccl.KnownNanos(end - ns), EndNS: ccl.KnownNanos(end), ExecNS: ccl.KnownNanos(ns), Timing: "kernel_gpu", State: ccl.Completed})
				tr.Add(&ccl.Edge{From: from, Seq: uint64(s), Op: "AllReduce", Peer: (r + 1) % size, Direction: ccl.Send, Bytes: &bytes, EndNS: ccl.KnownNanos(end), Wire: ccl.KnownNanos(ns), State: "completed"})
			}
		}
	}
	start := time.Now()
	rep := tr.Cycle(time.Unix(1_790_000_060, 0), nil)
	took := time.Since(start)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("cycle %v, heap %d MiB, %d operations", took, m.HeapAlloc>>20, rep.Coverage.Operations)
	runtime.KeepAlive(tr)
	if len(rep.Diagnoses) != 0 || rep.State != Healthy || rep.Coverage.Dropped != 0 {
		t.Errorf("%s, %d diagnoses, %d dropped", rep.State, len(rep.Diagnoses), rep.Coverage.Dropped)
	}
	if took > 2*time.Second || m.HeapAlloc > 1<<30 {
		t.Errorf("a cycle took %v and %d MiB", took, m.HeapAlloc>>20)
	}
}
