package matrix

import (
	"fmt"
	"image"
	"image/png"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// fleet returns a fabric of 512 leaves with 32 NICs each, and a snapshot of a million directed flows that are spread over all
// pairs of leaves.
func fleet(flows int) (*fabric.Graph, *snapshot.Snapshot) {
	topo := &fabric.Topology{Version: 1}
	for l := range 512 {
		leaf := fmt.Sprintf("leaf%d", l+1)
		topo.Switches = append(topo.Switches, fabric.Switch{Name: leaf, Role: fabric.Leaf, Pod: fmt.Sprintf("p%d", l/16+1)})
		for n := range 32 {
			node := fmt.Sprintf("h%d", l*32+n+1)
			topo.Nodes = append(topo.Nodes, fabric.Node{Name: node, NICs: []fabric.NIC{{Node: node, Device: "eth1"}}})
			topo.Links = append(topo.Links, fabric.Link{A: node + "/eth1", B: fmt.Sprintf("%s:dn%d", leaf, n+1)})
		}
	}
	g := fabric.NewGraph(topo)
	ids := g.NICIDs()
	r := rand.New(rand.NewPCG(1, 2))
	snap := &snapshot.Snapshot{At: begin(), FreshFor: time.Minute, Hosts: map[string]string{}}
	base, p50, p99 := int64(8_000), int64(9_000), int64(14_000)
	for i := range flows {
		src := ids[i%len(ids)]
		dst := ids[r.IntN(len(ids))]
		f := fabric.Flow{Src: src, Dst: dst, Number: i / len(ids) % fabric.ScheduledFlows}
		condition := snapshot.Healthy
		if r.IntN(100) == 0 {
			condition = snapshot.Degraded
		}
		snap.Edges = append(snap.Edges, snapshot.EdgeView{Flow: f, Condition: condition, Obs: fabric.Observation{Src: src, Dst: dst, Class: "default", Sent: 200, Lost: uint64(r.IntN(2)),
			OWD: &fabric.Quantiles{P50: &p50, P99: &p99}, Baseline: &fabric.Quantiles{P50: &base}}})
	}
	return g, snap
}

// BenchmarkMillionFlows measures what the matrix of 16,384 NICs and a million flows costs: to take over the windows that a cycle read
// (20,000 of them), to sum all flows up, and to draw a picture of 1,024 pixels, in bytes of PNG as well.
func BenchmarkMillionFlows(b *testing.B) {
	g, snap := fleet(1 << 20)
	s := NewStore()
	s.Record(g, snap)
	grid, err := s.Grid(Selection{}, snap.At)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("record", func(b *testing.B) {
		read := *snap
		read.Edges = snap.Edges[:20_000]
		b.ReportAllocs()
		for b.Loop() {
			s.Record(g, &read)
		}
	})
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			s.order = nil
			if _, err := s.buildGrid(Selection{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("grid", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.buildGrid(Selection{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("picture", func(b *testing.B) {
		var size counter
		for b.Loop() {
			size = 0
			encoder := png.Encoder{CompressionLevel: png.BestSpeed}
			if err := encoder.Encode(&size, grid.Draw(DegradedShare, 2, image.Rect(0, 0, 1024, 1024))); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(size), "bytes")
	})
	b.Run("tile", func(b *testing.B) {
		for b.Loop() {
			encoder := png.Encoder{CompressionLevel: png.BestSpeed}
			if err := encoder.Encode(io.Discard, grid.Draw(DegradedShare, 2, image.Rect(512, 512, 1024, 1024))); err != nil {
				b.Fatal(err)
			}
		}
	})
}

type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }
