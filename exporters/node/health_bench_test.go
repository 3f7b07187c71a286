package node

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs/sysfs"

	"github.com/graylink/graylink/internal/fakesys"
	"github.com/graylink/graylink/internal/nichw"
	"github.com/graylink/graylink/internal/nodeagent/health/healthtest"
)

// BenchmarkHealth34 measures the cost of reading the 34 devices of a node with SR-IOV, and of the reads that
// node_exporter's collectors infiniband and netclass do of the same files (github.com/prometheus/procfs). The case
// publish measures the cost that a scrape of our series adds.
func BenchmarkHealth34(b *testing.B) {
	node, err := fakesys.FindProfile("sriov34")
	if err != nil {
		b.Fatal(err)
	}
	root := healthtest.MemoryDir(b)
	if err := fakesys.BuildTree(root, node); err != nil {
		b.Fatal(err)
	}
	tree, err := fakesys.Open(root)
	if err != nil {
		b.Fatal(err)
	}
	own := nichw.New(nichw.Options{Sys: tree.Path("sys"), Proc: tree.Path("proc")})
	at := time.Now()
	own.Poll(at, nichw.ReadAll)
	for _, parts := range []struct {
		name string
		nichw.Parts
	}{{"own/states", nichw.ReadStates}, {"own/counters", nichw.ReadStates | nichw.ReadCounters}, {"own/all", nichw.ReadAll}} {
		b.Run(parts.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if p := own.Poll(at, parts.Parts); len(p.Devices) != 34 || len(p.Errors) != 0 {
					b.Fatalf("%d devices, %v", len(p.Devices), p.Errors)
				}
			}
		})
	}
	b.Run("own/publish", func(b *testing.B) {
		p := newPatient(b, "sriov34", nil)
		p.PollFor(2 * time.Second)
		g := p.gatherer()
		b.ReportAllocs()
		for b.Loop() {
			if f, err := g.Gather(); err != nil || len(f) == 0 {
				b.Fatal(err)
			}
		}
	})
	fs, err := sysfs.NewFS(tree.Path("sys"))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("procfs/infiniband", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if d, err := fs.InfiniBandClass(); err != nil || len(d) != 34 {
				b.Fatalf("%d devices, %v", len(d), err)
			}
		}
	})
	b.Run("procfs/netclass", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			names, err := fs.NetClassDevices()
			if err != nil {
				b.Fatal(err)
			}
			for _, n := range names {
				if strings.HasPrefix(n, "bonding_") {
					continue
				}
				if _, err := fs.NetClassByIface(n); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
