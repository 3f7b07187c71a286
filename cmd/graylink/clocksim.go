package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sim"
)

// instant names the time at which errors are evaluated.
const instant = "end of each window of 1 s, once it is solved"

type clocksimFlags struct {
	noise, format, seeds string
	seed                 uint64
	table                bool
	allowance            time.Duration
	options              sim.Options
}

func addClocksim(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("clocksim", "Simulate the clocks and probes of a fleet, estimate the clocks, and compare the estimates with the truth and with an oracle. Exit code 0: done, whatever the figures; 1: bad arguments, or interrupted.")
	var f clocksimFlags
	o := &f.options
	cmd.Flag("noise", "Stamps: hardware or kernel.").Default("hardware").EnumVar(&f.noise, string(sim.Hardware), string(sim.Kernel))
	cmd.Flag("load", "Share of time that a queue is busy.").Default("0.8").Float64Var(&o.Load)
	cmd.Flag("clocks", "Number of clocks: a multiple of 8 up to 128 for two tiers (leaves of 8), of 128 up to 8192 for three (pods of 8 leaves of 16).").Default("64").IntVar(&o.Clocks)
	cmd.Flag("seed", "Seed of everything that is random.").Default("1").Uint64Var(&f.seed)
	cmd.Flag("seeds", "A..B: a run with each of these seeds.").StringVar(&f.seeds)
	cmd.Flag("scenario", "Scenario of the fault, at half time unless its name says otherwise: "+strings.Join(sim.ScenarioNames(), ", ")+". coordinator-dead lasts 10 minutes longer.").Default("none").EnumVar(&o.Scenario, sim.ScenarioNames()...)
	cmd.Flag("duration", "Simulated time.").Default("60s").DurationVar(&o.Duration)
	cmd.Flag("warm-up", "Time at the start that percentiles exclude. Coverage excludes nothing.").Default("20s").DurationVar(&o.WarmUp)
	cmd.Flag("allowance", "Asymmetry allowance between two clocks; half of it counts for each clock.").Default("100ns").DurationVar(&f.allowance)
	cmd.Flag("cadence", "Time between the probes of an edge.").Default("10ms").DurationVar(&o.Cadence)
	cmd.Flag("pair-every", "One in how many probes is a coded pair.").Default("5").IntVar(&o.PairEvery)
	cmd.Flag("pair-gap", "Time between the two probes of a pair.").Default("5us").DurationVar(&o.PairGap)
	cmd.Flag("table", "Run both noises at loads 0, 0.4, 0.8 and 0.9 and print rows of Markdown.").BoolVar(&f.table)
	cmd.Flag("format", "json prints one object per run on standard output.").Default("text").EnumVar(&f.format, "text", "json")
	commands[cmd.FullCommand()] = func(ctx context.Context) error { return runClocksim(ctx, os.Stdout, os.Stderr, f) }
}

func runClocksim(ctx context.Context, out, progress io.Writer, f clocksimFlags) error {
	from, to := f.seed, f.seed
	if f.seeds != "" {
		var err error
		if from, to, err = demo.ParseSeeds(f.seeds); err != nil {
			return fmt.Errorf("--seeds: %w", err)
		}
	}
	if f.allowance < 0 {
		return fmt.Errorf("--allowance %v: a time of zero or more is expected", f.allowance)
	}
	fleet, err := newSimFleet(f.options.Clocks)
	if err != nil {
		return err
	}
	f.options.Edges = fleet.edges
	cells := []cell{{sim.Noise(f.noise), f.options.Load}}
	if f.table {
		cells = nil
		for _, noise := range []sim.Noise{sim.Hardware, sim.Kernel} {
			for _, load := range []float64{0, 0.4, 0.8, 0.9} {
				cells = append(cells, cell{noise, load})
			}
		}
		if f.format == "text" {
			fmt.Fprint(out, tableHead)
		}
	}
	started := time.Now()
	for _, c := range cells {
		var runs []simReport
		for seed := from; seed <= to; seed++ {
			o := f.options
			o.Noise, o.Load, o.Seed = c.noise, c.load, seed
			if o.Link, err = fleet.chooseLink(seed); err != nil {
				return err
			}
			est := sim.NewFleet(o, f.allowance)
			r, err := sim.Run(ctx, o, est, func(done time.Duration) {
				if time.Since(started) > slowAfter {
					started = time.Now()
					fmt.Fprintf(progress, "graylink: %s, load %g, seed %d: %v simulated\n", c.noise, c.load, seed, done)
				}
			})
			if errors.Is(err, context.Canceled) {
				return errors.New("interrupted")
			} else if err != nil {
				return err
			}
			runs = append(runs, fleet.newReport(o, f.allowance, r))
			if err := f.printRuns(out, runs, seed == to); err != nil {
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
	peers spread
}

func newSimFleet(clocks int) (*simFleet, error) {
	// Flows are not what counts here: one path joins two clocks, and every clock
	// has 10 to 20 others.
	o := schedule.DefaultOptions()
	o.MinFlows = 0.01
	f := &simFleet{tiers: 2}
	c := clos.Options{LeavesPerPod: clocks / 8, SpinesPerPod: 4, NICsPerLeaf: 8}
	switch {
	case clocks >= 16 && clocks <= 128 && clocks%8 == 0:
		o.FanOut[1] = 6
	case clocks >= 256 && clocks <= 8192 && clocks%128 == 0:
		f.tiers = 3
		c = clos.Options{Tiers: 3, Pods: clocks / 128, LeavesPerPod: 8, SpinesPerPod: 4, CoresPerRow: 4, NICsPerLeaf: 16}
	default:
		return nil, fmt.Errorf("--clocks %d: a multiple of 8 from 16 to 128, or of 128 from 256 to 8192, is expected", clocks)
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
	f.peers = spreadOf(counts)
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

// simReport holds the printed figures of one run.
type simReport struct {
	Noise       sim.Noise `json:"noise"`
	Load        float64   `json:"load"`
	Clocks      int       `json:"clocks"`
	Tiers       int       `json:"tiers"`
	Edges       int       `json:"edges"`
	Peers       spread    `json:"peers"`
	Seed        uint64    `json:"seed"`
	Scenario    string    `json:"scenario"`
	DurationNS  int64     `json:"duration_ns"`
	WarmUpNS    int64     `json:"warm_up_ns"`
	CadenceNS   int64     `json:"cadence_ns"`
	PairEvery   int       `json:"pair_every"`
	PairGapNS   int64     `json:"pair_gap_ns"`
	GuardNS     int64     `json:"guard_ns"`
	Instant     string    `json:"instant"`
	AllowanceNS int64     `json:"allowance_ns"`
	*sim.Result
	// Both are absent when the oracle saw nothing.
	Ratio   *float64 `json:"p99_to_oracle"`
	ToBound *float64 `json:"p99_to_cramer_rao"`
}

func (f *simFleet) newReport(o sim.Options, allowance time.Duration, r *sim.Result) simReport {
	kind := clocksync.Kernel
	if o.Noise == sim.Hardware {
		kind = clocksync.Hardware
	}
	return simReport{o.Noise, o.Load, o.Clocks, f.tiers, len(f.edges), f.peers, o.Seed, o.Scenario, int64(o.Duration), int64(o.WarmUp), int64(o.Cadence),
		o.PairEvery, int64(o.PairGap), kind.GapGuard(), instant, int64(allowance), r, roundedRatio(r.Error.P99, r.Oracle.P99), roundedRatio(r.Error.P99, r.CramerRao.P99)}
}

// roundedRatio returns x/to rounded to hundredths, and nil if a figure is missing.
func roundedRatio(x, to float64) *float64 {
	if to == 0 {
		return nil
	}
	q := math.Round(x/to*100) / 100
	return &q
}

// printRuns writes the last of a cell's runs or, in a table, all once they are complete.
func (f *clocksimFlags) printRuns(out io.Writer, runs []simReport, complete bool) error {
	last := runs[len(runs)-1]
	var text string
	switch {
	case f.format == "json":
		enc := plainjson.NewEncoder(out)
		return enc.Encode(last)
	case !f.table:
		text = last.formatText()
		if !complete {
			text += "\n"
		}
	case complete:
		text = tableRow(runs)
	}
	_, err := io.WriteString(out, text)
	return err
}

const tableHead = "| noise | load | error p50 / p99 / max, ns | oracle p50 / p99, ns | p99 to oracle | Cramer-Rao p50 / p99, ns | p99 to it | bound p50 / p99, ns | in use p99, ns | coverage | in use | lock, s |\n" +
	"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"

// tableRow sums the runs of one cell up: means of percentiles and ratios of the
// means, the worst maximum, the worst coverage, the slowest lock.
func tableRow(runs []simReport) string {
	n := float64(len(runs))
	mean := func(of func(*sim.Result) float64) float64 {
		sum := 0.0
		for i := range runs {
			sum += of(runs[i].Result)
		}
		return sum / n
	}
	worst := func(of func(*sim.Result) float64) float64 {
		x := math.Inf(1)
		for i := range runs {
			x = min(x, of(runs[i].Result))
		}
		return x
	}
	lock := "-"
	if slow := -worst(func(r *sim.Result) float64 { return -secondsOr(r.SecondsToLock, math.Inf(1)) }); !math.IsInf(slow, 1) {
		lock = fmt.Sprintf("%.0f", slow)
	}
	p99, oracle := mean(func(r *sim.Result) float64 { return r.Error.P99 }), mean(func(r *sim.Result) float64 { return r.Oracle.P99 })
	least := mean(func(r *sim.Result) float64 { return r.CramerRao.P99 })
	return fmt.Sprintf("| %s | %g | %.1f / %.1f / %.1f | %.1f / %.1f | %.2f | %.1f / %.1f | %.2f | %.1f / %.1f | %.1f | %.5f | %.5f | %s |\n", runs[0].Noise, runs[0].Load,
		mean(func(r *sim.Result) float64 { return r.Error.P50 }), p99, -worst(func(r *sim.Result) float64 { return -r.Error.Max }),
		mean(func(r *sim.Result) float64 { return r.Oracle.P50 }), oracle, p99/oracle,
		mean(func(r *sim.Result) float64 { return r.CramerRao.P50 }), least, p99/least,
		mean(func(r *sim.Result) float64 { return r.Bound.P50 }), mean(func(r *sim.Result) float64 { return r.Bound.P99 }),
		mean(func(r *sim.Result) float64 { return r.InUse.Error.P99 }),
		worst(func(r *sim.Result) float64 { return r.Coverage }), worst(func(r *sim.Result) float64 { return r.InUse.Coverage }), lock)
}

func secondsOr(s *float64, otherwise float64) float64 {
	if s == nil {
		return otherwise
	}
	return *s
}

func (r simReport) formatText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s stamps, queues busy %g of the time, scenario %s, seed %d\n", r.Noise, r.Load, r.Scenario, r.Seed)
	fmt.Fprintf(&b, "fleet       %d clocks in %d tiers, %d edges, %d to %d peers a clock, %.1f on average\n", r.Clocks, r.Tiers, r.Edges, r.Peers.Min, r.Peers.Max, r.Peers.Mean)
	fmt.Fprintf(&b, "probes      every %v, one in %d a coded pair with a gap of %v (guard %v); %.0f a second answered, %.0f pairs a second\n",
		time.Duration(r.CadenceNS), r.PairEvery, time.Duration(r.PairGapNS), time.Duration(r.GuardNS), r.ProbesPerSecond, r.PairsPerSecond)
	fmt.Fprintf(&b, "evaluated   %d windows, at the %s\n\n", r.Windows, instant)
	times := func(ratio *float64, whose string) string {
		if ratio == nil {
			return ""
		}
		return fmt.Sprintf("p99 is %.2f times %s", *ratio, whose)
	}
	writeTable(&b, func(tw io.Writer) {
		fmt.Fprintln(tw, "\tp50\tp99\tmax\t")
		fmt.Fprintf(tw, "error\t%s\t%s\t%s\t\n", formatNanoseconds(r.Error.P50), formatNanoseconds(r.Error.P99), formatNanoseconds(r.Error.Max))
		fmt.Fprintf(tw, "oracle\t%s\t%s\t\t%s\n", formatNanoseconds(r.Oracle.P50), formatNanoseconds(r.Oracle.P99), times(r.Ratio, "the oracle's"))
		fmt.Fprintf(tw, "Cramer-Rao\t%s\t%s\t\t%s\n", formatNanoseconds(r.CramerRao.P50), formatNanoseconds(r.CramerRao.P99), times(r.ToBound, "what no unbiased estimator of one window is below"))
		fmt.Fprintf(tw, "bound\t%s\t%s\t\tstatistical part; the allowance is %v between two clocks\n", formatNanoseconds(r.Bound.P50), formatNanoseconds(r.Bound.P99), time.Duration(r.AllowanceNS))
		fmt.Fprintf(tw, "in use\t%s\t%s\t%s\t1 s later with the same maps: %.5f of %d within the bound\n", formatNanoseconds(r.InUse.Error.P50), formatNanoseconds(r.InUse.Error.P99), formatNanoseconds(r.InUse.Error.Max), r.InUse.Coverage, r.InUse.Claims)
		if h := r.Held; h != nil {
			fmt.Fprintf(tw, "predicted\t%s\t%s\t%s\tnothing measured in the window: %.5f of %d within the bound\n", formatNanoseconds(h.Error.P50), formatNanoseconds(h.Error.P99), formatNanoseconds(h.Error.Max), h.Coverage, h.Claims)
		}
	})
	fmt.Fprintf(&b, "\ncoverage    %.5f of all claims within bound and allowance\n", r.Coverage)
	b.WriteString("locked      ")
	if r.SecondsToLock == nil {
		b.WriteString("never all at once")
	} else {
		fmt.Fprintf(&b, "all after %.0f s", *r.SecondsToLock)
	}
	if r.SecondsToRelock != nil {
		fmt.Fprintf(&b, ", and for good %.1f s after the event", *r.SecondsToRelock)
	}
	b.WriteString("\nat the end  ")
	var names []string
	for name, n := range r.FinalStates {
		if n > 0 {
			names = append(names, fmt.Sprintf("%d %s", n, name))
		}
	}
	slices.Sort(names)
	fmt.Fprintf(&b, "%s; %d steps and %d changes of drift were counted\n", strings.Join(names, ", "), r.Steps, r.Drifts)
	return b.String()
}

// formatNanoseconds writes nanoseconds for people.
func formatNanoseconds(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.3f ms", x/1e6)
	case x >= 1e4:
		return fmt.Sprintf("%.2f us", x/1e3)
	}
	return fmt.Sprintf("%.1f ns", x)
}
