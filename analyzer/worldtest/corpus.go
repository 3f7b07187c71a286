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
	c := corpus{rng: rng, world: NewWorld(g, uint64(n))}
	for range rng.IntN(5) {
		c.addFault()
	}
	c.stamps = []string{"kernel", "kernel", "hardware", "user"}[rng.IntN(4)]
	c.classes = rng.IntN(2) > 0
	c.world.HiddenShare = []float64{0, 0.2, 0.6}[rng.IntN(3)]
	var windows [][]*fabric.Observation
	for window := range 4 {
		obs := c.world.Observe(window)
		for _, o := range obs {
			if err := c.varyObservation(o); err != nil {
				t.Fatal(err)
			}
			o.Start = time.Unix(int64(1000+2*window), 0).UTC()
		}
		windows = append(windows, obs)
	}
	return c.world.Graph, windows
}

// corpus holds a case while it is drawn: its world, and what the world does not know.
type corpus struct {
	rng             *rand.Rand
	world           *World
	marked, jittery fabric.Direction
	starved         string // a node
	stamps          string // their kind
	classes         bool   // some flows have a second class
}

func (c *corpus) drawDirection() fabric.Direction {
	l := &c.world.Graph.Topo.Links[c.rng.IntN(len(c.world.Graph.Topo.Links))]
	d := fabric.Direction{From: l.A, To: l.B}
	if c.rng.IntN(2) == 0 {
		return d.Reverse()
	}
	return d
}

// drawSize returns a number from least to most, which it does not include.
func (c *corpus) drawSize(least, most int64) int64 { return least + c.rng.Int64N(most-least) }

func (c *corpus) drawNIC() string {
	nics := c.world.Graph.NICIDs()
	return nics[c.rng.IntN(len(nics))]
}

// addFault adds one thing that is wrong.
func (c *corpus) addFault() {
	w := c.world
	switch c.rng.IntN(9) {
	case 0:
		w.Delay[c.drawDirection()] = c.drawSize(3e3, 60e3)
	case 1:
		w.Delay[c.drawDirection()] = c.drawSize(60e3, 3e6)
	case 2:
		w.Loss[c.drawDirection()] = []float64{0.005, 0.02, 0.2, 1}[c.rng.IntN(4)]
	case 3:
		w.Slow[w.Graph.Topo.Switches[c.rng.IntN(len(w.Graph.Topo.Switches))].Name] = c.drawSize(10e3, 500e3)
	case 4:
		w.Clock[c.drawNIC()] = c.drawSize(-300e3, 300e3)
	case 5:
		c.marked = c.drawDirection()
	case 6:
		c.jittery = c.drawDirection()
	case 7:
		by := c.drawSize(60e3, 900e3)
		for _, end := range w.Graph.EndsOf(fabric.OwnerOf(c.drawNIC())) {
			d := fabric.Direction{From: end, To: w.Graph.PeerOf(end)}
			w.Delay[d], w.Delay[d.Reverse()] = by, by
		}
	case 8:
		c.starved = fabric.OwnerOf(c.drawNIC())
	}
}

// varyObservation adds what the world does not have: stamps, classes, marks, tails of delays, suspicions, and paths that
// are known in part.
func (c *corpus) varyObservation(o *fabric.Observation) error {
	rng, w := c.rng, c.world
	e, err := o.ParseFlow()
	if err != nil {
		return err
	}
	o.Timestamp = c.stamps
	if rng.IntN(20) > 0 {
		bound := c.drawSize(0, 4e3)
		o.ClockErrorNS = &bound
	}
	if e.Number = 0; c.classes && len(e.Dst)%2 == 0 {
		o.Class = "tc3"
	}
	crosses := map[fabric.Direction]bool{}
	for _, d := range w.Paths[e].LinkDirections(o.Src, o.Dst) {
		crosses[d] = true
	}
	arrived := o.Sent - o.Lost
	ecn := uint64(rng.IntN(3))
	if crosses[c.marked] {
		ecn = arrived * uint64(20+rng.IntN(60)) / 100
	}
	if ecn = min(ecn, arrived); rng.IntN(10) > 0 {
		o.ECN = &ecn
	}
	if o.OWD != nil {
		p99, mean, p90 := *o.OWD.P99, *o.OWD.P50+c.drawSize(0, 500), *o.OWD.P50+c.drawSize(500, 1500)
		if crosses[c.jittery] {
			p99, p90 = p99+c.drawSize(100e3, 900e3), p90+c.drawSize(50e3, 90e3)
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
	if mad := c.drawSize(50, 400); rng.IntN(4) == 0 {
		o.BaselineMADNS = &mad
	}
	o.HostSuspect = fabric.OwnerOf(o.Src) == c.starved || fabric.OwnerOf(o.Dst) == c.starved
	o.ClockSuspect = rng.IntN(60) == 0
	if o.PathState == fabric.PathUnknown && rng.IntN(2) == 0 {
		o.Paths = w.Graph.ShortestPaths(o.Src, o.Dst, 4)
	}
	if o.Lost > 0 && rng.IntN(10) == 0 {
		o.LossScope = fabric.LossRoundTrip
	}
	return nil
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
