package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/report"
)

// slowAfter is how long work may take before its progress is reported, and the interval of further reports.
const slowAfter = 2 * time.Second

type scheduleFlags struct {
	topology, explain, format string
	fanOut                    string
	edges, links              bool
	absent                    []string
	options                   schedule.Options
}

func addSchedule(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("schedule", "Print the probe schedule for a topology, and its expected coverage. Exit code 0: done (findings do not count), 1: bad arguments or topology, or nothing to explain by that name.")
	d := schedule.DefaultOptions()
	var f scheduleFlags
	cmd.Flag("topology", "Topology file (YAML).").Required().StringVar(&f.topology)
	cmd.Flag("explain", "Explain one edge (h1/eth1>h4/eth1#0), link (leaf1:up1--spine1:dn1) or direction of a link (FROM->TO).").StringVar(&f.explain)
	cmd.Flag("edges", "Also print all edges.").BoolVar(&f.edges)
	cmd.Flag("links", "Also print the expected flows over every directed link.").BoolVar(&f.links)
	cmd.Flag("fan-out", "Minimum number of peers of a NIC: under its leaf, in its pod, across pods.").Default(fmt.Sprintf("%d,%d,%d", d.FanOut[0], d.FanOut[1], d.FanOut[2])).StringVar(&f.fanOut)
	cmd.Flag("budget", "Maximum number of probes per second from one node.").Default(fmt.Sprint(d.Budget)).Float64Var(&f.options.Budget)
	cmd.Flag("cadence", "Time between the probes of an edge; far tiers get a multiple if the budget requires it.").Default(d.Cadence.String()).DurationVar(&f.options.Cadence)
	cmd.Flag("min-peers", "Minimum number of distinct peers that every NIC probes and is probed by.").Default(fmt.Sprint(d.MinPeers)).IntVar(&f.options.MinPeers)
	cmd.Flag("min-flows", "Minimum number of flows expected over every directed link between switches, in every class.").Default(fmt.Sprint(d.MinFlows)).Float64Var(&f.options.MinFlows)
	cmd.Flag("class", "Name of a class to probe; repeat it for several.").StringsVar(&f.options.Classes)
	cmd.Flag("absent", "Node without an agent; repeat it for several.").StringsVar(&f.absent)
	cmd.Flag("format", "Output format.").Default("text").EnumVar(&f.format, "text", "json")
	commands[cmd.FullCommand()] = func(context.Context) error { return runSchedule(os.Stdout, os.Stderr, f) }
}

func runSchedule(out, progress io.Writer, f scheduleFlags) error {
	if err := f.parseAndCheck(); err != nil {
		return err
	}
	var g *fabric.Graph
	var err error
	runWithProgress(progress, "reading the topology", func() { _, g, err = loadGraph(f.topology) })
	if err != nil {
		return err
	}
	f.options.Absent = map[string]bool{}
	for _, node := range f.absent {
		if len(g.EndsOf(node)) == 0 || g.Switch(node) != nil {
			return fmt.Errorf("--absent %s: the topology has no such node with a link", node)
		}
		f.options.Absent[node] = true
	}
	var s *schedule.Schedule
	runWithProgress(progress, fmt.Sprintf("scheduling %d NICs", len(g.NICIDs())), func() { s, err = schedule.Make(g, f.options) })
	if err != nil {
		return err
	}
	var text string
	var value any
	if f.explain != "" {
		runWithProgress(progress, "explaining "+f.explain, func() { value, text, err = report.Explain(g, s, f.explain, f.edges || f.format == "json") })
		if err != nil {
			return fmt.Errorf("--explain %s: %w", f.explain, err)
		}
	} else {
		var cov schedule.Coverage
		runWithProgress(progress, "summing the expected flows up", func() { cov = s.ExpectedFlows(g) })
		r := report.New(g, s, cov, report.Options{Edges: f.edges, Links: f.links})
		value, text = r, r.Text()
	}
	if f.format == "json" {
		enc := plainjson.NewEncoder(out)
		err = enc.Encode(value)
	} else {
		_, err = io.WriteString(out, text)
	}
	if err != nil {
		return fmt.Errorf("cannot write the schedule: %w", err)
	}
	return nil
}

// parseAndCheck parses the flags that hold more than one value, and refuses zeros, which the schedule would take for
// its defaults.
func (f *scheduleFlags) parseAndCheck() error {
	parts := strings.Split(f.fanOut, ",")
	if len(parts) != len(f.options.FanOut) {
		return fmt.Errorf("--fan-out %s: want three numbers separated by commas", f.fanOut)
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 1 {
			return fmt.Errorf("--fan-out %s: %q: want a positive number", f.fanOut, p)
		}
		f.options.FanOut[i] = n
	}
	for flag, positive := range map[string]bool{"--budget": f.options.Budget > 0, "--cadence": f.options.Cadence > 0, "--min-peers": f.options.MinPeers > 0, "--min-flows": f.options.MinFlows > 0} {
		if !positive {
			return fmt.Errorf("%s: want a positive value", flag)
		}
	}
	return nil
}

// runWithProgress runs work and reports its progress on w while it takes long.
func runWithProgress(w io.Writer, what string, work func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() {
		defer close(gone)
		tick := time.NewTicker(slowAfter)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Fprintf(w, "graylink: %s: %.0f s\n", what, time.Since(start).Seconds())
			}
		}
	}()
	work()
	close(done)
	<-gone
}
