package worldtest

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// CorpusSize is the number of cases that CorpusCase makes.
const CorpusSize = 120

// CorpusCase returns a small fabric, and four windows of its flows in which up to four things are wrong. What is drawn
// touches every field of an observation, so that a change of what is made of them shows in some case.
func CorpusCase(t testing.TB, n int) (*fabric.Graph, [][]*fabric.Observation) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(n), 0x636f_7270))
	g := NewClos(t, 1+rng.IntN(3), 2+rng.IntN(2), 1+rng.IntN(2))
	if n%2 == 1 { // nodes with two NICs
		g = fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 1 + rng.IntN(3), NICsPerLeaf: 4, NICsPerNode: 2}))
	}
	w := NewWorld(g, uint64(n))
	nics, links := w.Graph.NICIDs(), w.Graph.Topo.Links
	someDirection := func() fabric.Direction {
		l := &links[rng.IntN(len(links))]
		d := fabric.Direction{From: l.A, To: l.B}
		if rng.IntN(2) == 0 {
			return d.Reverse()
		}
		return d
	}
	size := func(least, most int64) int64 { return least + rng.Int64N(most-least) }
	marked, jittery, starved := fabric.Direction{}, fabric.Direction{}, ""
	for range rng.IntN(5) {
		switch rng.IntN(9) {
		case 0:
			w.Delay[someDirection()] = size(3e3, 60e3)
		case 1:
			w.Delay[someDirection()] = size(60e3, 3e6)
		case 2:
			w.Loss[someDirection()] = []float64{0.005, 0.02, 0.2, 1}[rng.IntN(4)]
		case 3:
			w.Slow[w.Graph.Topo.Switches[rng.IntN(len(w.Graph.Topo.Switches))].Name] = size(10e3, 500e3)
		case 4:
			w.Clock[nics[rng.IntN(len(nics))]] = size(-300e3, 300e3)
		case 5:
			marked = someDirection()
		case 6:
			jittery = someDirection()
		case 7:
			by := size(60e3, 900e3)
			node := fabric.OwnerOf(nics[rng.IntN(len(nics))])
			for _, end := range w.Graph.EndsOf(node) {
				d := fabric.Direction{From: end, To: w.Graph.PeerOf(end)}
				w.Delay[d], w.Delay[d.Reverse()] = by, by
			}
		case 8:
			starved = fabric.OwnerOf(nics[rng.IntN(len(nics))])
		}
	}
	kind := []string{"kernel", "kernel", "hardware", "user"}[rng.IntN(4)]
	classes := rng.IntN(2)
	w.HiddenShare = []float64{0, 0.2, 0.6}[rng.IntN(3)]
	var windows [][]*fabric.Observation
	for window := range 4 {
		obs := w.Observe(window)
		for _, o := range obs {
			e, err := o.ParseFlow()
			if err != nil {
				t.Fatal(err)
			}
			o.Timestamp = kind
			if rng.IntN(20) > 0 {
				bound := size(0, 4e3)
				o.ClockErrorNS = &bound
			}
			if e.Number = 0; classes > 0 && len(e.Dst)%2 == 0 {
				o.Class = "tc3"
			}
			crosses := map[fabric.Direction]bool{}
			for _, d := range w.Paths[e].LinkDirections(o.Src, o.Dst) {
				crosses[d] = true
			}
			arrived := o.Sent - o.Lost
			ecn := uint64(rng.IntN(3))
			if crosses[marked] {
				ecn = arrived * uint64(20+rng.IntN(60)) / 100
			}
			if ecn = min(ecn, arrived); rng.IntN(10) > 0 {
				o.ECN = &ecn
			}
			if o.OWD != nil {
				p99, mean, p90 := *o.OWD.P99, *o.OWD.P50+size(0, 500), *o.OWD.P50+size(500, 1500)
				if crosses[jittery] {
					p99, p90 = p99+size(100e3, 900e3), p90+size(50e3, 90e3)
				}
				o.OWD.P99 = &p99
				switch rng.IntN(6) {
				case 0:
					o.OWD.Mean = &mean
				case 1:
					o.OWD.P90 = &p90
				case 2:
					o.OWD.P99 = nil
				}
			}
			if mad := size(50, 400); rng.IntN(4) == 0 {
				o.BaselineMADNS = &mad
			}
			o.HostSuspect = fabric.OwnerOf(o.Src) == starved || fabric.OwnerOf(o.Dst) == starved
			o.ClockSuspect = rng.IntN(60) == 0
			if o.PathState == fabric.PathUnknown && rng.IntN(2) == 0 {
				o.Paths = w.Graph.ShortestPaths(o.Src, o.Dst, 4)
			}
			if o.Lost > 0 && rng.IntN(10) == 0 {
				o.LossScope = fabric.LossRoundTrip
			}
			o.Start = time.Unix(int64(1000+2*window), 0).UTC()
		}
		windows = append(windows, obs)
	}
	return w.Graph, windows
}

var updateCorpus = flag.Bool("corpus.update", false, "rewrite what packages make of the corpus")

// CompareCorpus compares what a package makes of the corpus with testdata/corpus.txt. The test's flag -corpus.update writes
// the file; the difference in git is then the change of behaviour.
func CompareCorpus(t *testing.T, got string) {
	t.Helper()
	file := filepath.Join("testdata", "corpus.txt")
	if *updateCorpus {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	old, now := strings.Split(string(want), "\n"), strings.Split(got, "\n")
	for i := range max(len(old), len(now)) {
		line := func(all []string) string {
			if i < len(all) {
				return all[i]
			}
			return "(the end)"
		}
		if line(old) != line(now) {
			t.Fatalf("%s, line %d:\n%s\nis now\n%s\nIf that is meant, run the test with -corpus.update.", file, i+1, line(old), line(now))
		}
	}
}
