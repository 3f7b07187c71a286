// Package clocksim simulates the clocks and the probes of a fleet, and compares the estimates of the clocks with the
// truth and with an oracle.
package clocksim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/clos"
	schedulereport "github.com/graylink/graylink/internal/schedule/report"
	"github.com/graylink/graylink/internal/sim"
)

// Settings say which simulations run.
type Settings struct {
	Options   sim.Options   // of every run; noise, load and seed are set for each
	Noise     sim.Noise     // without Table
	From, To  uint64        // seeds
	Allowance time.Duration // of the asymmetry between two clocks
	Table     bool          // both noises at several loads, as rows of Markdown
	JSON      bool          // an object for each run
}

// Run runs the simulations and writes the figures of each, or of each row. progress is called again and again
// during a run. Run returns context.Canceled if ctx ends.
func Run(ctx context.Context, out io.Writer, s Settings, progress func(o *sim.Options, done time.Duration)) error {
	fleet, err := newSimFleet(s.Options.Clocks)
	if err != nil {
		return err
	}
	cells := []cell{{s.Noise, s.Options.Load}}
	if s.Table {
		cells = nil
		for _, noise := range []sim.Noise{sim.Hardware, sim.Kernel} {
			for _, load := range []float64{0, 0.4, 0.8, 0.9} {
				cells = append(cells, cell{noise, load})
			}
		}
		if !s.JSON {
			fmt.Fprint(out, tableHead)
		}
	}
	for _, c := range cells {
		var runs []report
		for seed := s.From; seed <= s.To; seed++ {
			o := s.Options
			o.Edges, o.Noise, o.Load, o.Seed = fleet.edges, c.noise, c.load, seed
			if o.Link, err = fleet.chooseLink(seed); err != nil {
				return err
			}
			r, err := sim.Run(ctx, o, sim.NewFleet(o, s.Allowance), func(done time.Duration) { progress(&o, done) })
			if err != nil {
				return err
			}
			runs = append(runs, fleet.newReport(o, s.Allowance, r))
			if err := s.printRuns(out, runs, seed == s.To); err != nil {
				return fmt.Errorf("cannot write the figures: %w", err)
			}
		}
	}
	return nil
}

type cell struct {
	noise sim.Noise
	load  float64
}

// simFleet represents a fabric and its probe schedule.
type simFleet struct {
	graph *fabric.Graph
	sched *schedule.Schedule
	edges []sim.Edge
	tiers int
	peers schedulereport.Spread
}

// CheckClocks returns an error if there is no fabric for a number of clocks.
func CheckClocks(clocks int) error {
	if clocks >= 16 && clocks <= 128 && clocks%8 == 0 || clocks >= 256 && clocks <= 8192 && clocks%128 == 0 {
		return nil
	}
	return errors.New("a multiple of 8 from 16 to 128, or of 128 from 256 to 8192, is expected")
}

func newSimFleet(clocks int) (*simFleet, error) {
	if err := CheckClocks(clocks); err != nil {
		return nil, fmt.Errorf("%d clocks: %w", clocks, err)
	}
	// Flows are not what counts here: one path joins two clocks, and every clock
	// has 10 to 20 others.
	o := schedule.DefaultOptions()
	o.MinFlows = 0.01
	f := &simFleet{tiers: 2}
	c := clos.Options{LeavesPerPod: clocks / 8, SpinesPerPod: 4, NICsPerLeaf: 8}
	if clocks <= 128 {
		o.FanOut[1] = 6
	} else {
		f.tiers = 3
		c = clos.Options{Tiers: 3, Pods: clocks / 128, LeavesPerPod: 8, SpinesPerPod: 4, CoresPerRow: 4, NICsPerLeaf: 16}
	}
	f.graph = fabric.NewGraph(clos.NewTopology(c))
	var err error
	if f.sched, err = schedule.Make(f.graph, o); err != nil {
		return nil, err
	}
	peers := make([]map[int32]bool, clocks)
	for i := range peers {
		peers[i] = map[int32]bool{}
	}
	for _, e := range f.sched.Edges {
		f.edges = append(f.edges, sim.Edge{A: int(e.Src), B: int(e.Dst), Hops: 2*int(e.Tier) - 1})
		peers[e.Src][e.Dst], peers[e.Dst][e.Src] = true, true
	}
	counts := make([]int, clocks)
	for i := range peers {
		counts[i] = len(peers[i])
	}
	f.peers = schedulereport.SpreadOf(counts)
	return f, nil
}

// chooseLink lets a seed choose one direction of a link between switches, and which
// of the paths that may cross it do.
func (f *simFleet) chooseLink(seed uint64) ([]sim.EdgeDirection, error) {
	r := rand.New(rand.NewPCG(seed, 1))
	var links []*fabric.Link
	for i := range f.graph.Topo.Links {
		if l := &f.graph.Topo.Links[i]; !l.IsAccess() {
			links = append(links, l)
		}
	}
	l := links[r.IntN(len(links))]
	d := fabric.Direction{From: l.A, To: l.B}
	if r.IntN(2) == 1 {
		d = fabric.Direction{From: l.B, To: l.A}
	}
	crossing, err := f.sched.CrossingFlows(f.graph, d)
	if err != nil {
		return nil, err
	}
	index := map[fabric.Flow]int{}
	for i, e := range f.sched.Edges {
		index[f.sched.FlowID(e)] = i
	}
	var ways []sim.EdgeDirection
	for _, c := range crossing {
		if r.Float64() < c.Odds {
			id := c.Edge
			id.Reply = false
			ways = append(ways, sim.EdgeDirection{Edge: index[id], Reverse: c.Edge.Reply})
		}
	}
	if len(ways) == 0 { // the odds allow it; the likeliest path then does
		id := crossing[0].Edge
		id.Reply = false
		ways = []sim.EdgeDirection{{Edge: index[id], Reverse: crossing[0].Edge.Reply}}
	}
	return ways, nil
}
