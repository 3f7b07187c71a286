package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/sizing"
)

// exitBeyondBudget is the exit code for a prediction of more samples than --budget-samples.
const exitBeyondBudget = 3

type sizeFlags struct {
	topology, format, tenant string
	budget                   float64
	distributors             int
	sizing.Options
}

func addSize(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("size", "Predict the series, samples and limits of a fleet, by the schedule of its topology. Exit code 0: done, 1: bad arguments or topology, 3: done, and beyond --budget-samples.")
	var f sizeFlags
	cmd.Flag("topology", "Topology file (YAML).").Required().StringVar(&f.topology)
	cmd.Flag("profile", "evidence.profile of the analyzer, with the scrape jobs that belong to it.").Default(sizing.Full).EnumVar(&f.Profile, sizing.Full, sizing.Fleet)
	cmd.Flag("scrape", "Interval of the jobs that the examples scrape every second.").Default("1s").DurationVar(&f.Scrape)
	cmd.Flag("scrape-edges", "Interval of /metrics/edges with profile fleet.").Default(sizing.EdgesOfFleet.String()).DurationVar(&f.Edges)
	cmd.Flag("budget-samples", "Samples per second that the server takes; 0 is no limit.").Default("0").Float64Var(&f.budget)
	cmd.Flag("tenant", "Tenant of --format mimir-overrides.").Default("anonymous").StringVar(&f.tenant)
	cmd.Flag("distributors", "Distributors of Mimir between which --format mimir-overrides divides the rate, where no load balancer spreads requests.").Default("1").IntVar(&f.distributors)
	cmd.Flag("format", "Output format: for people, JSON with all constants and their sources, Mimir's runtime overrides, or values of the Helm chart.").Default("text").EnumVar(&f.format, "text", "json", "mimir-overrides", "values")
	commands[cmd.FullCommand()] = func(context.Context) error { return runSize(os.Stdout, os.Stderr, f) }
}

func runSize(out, progress io.Writer, f sizeFlags) error {
	for name, every := range map[string]time.Duration{"--scrape": f.Scrape, "--scrape-edges": f.Edges} {
		if every <= 0 {
			return fmt.Errorf("%s %v: want a positive time", name, every)
		}
	}
	if !(f.budget >= 0) {
		return fmt.Errorf("--budget-samples %g: want a positive number, or 0 for no limit", f.budget)
	}
	if f.distributors < 1 {
		return fmt.Errorf("--distributors %d: want 1 or more", f.distributors)
	}
	var t *fabric.Topology
	var g *fabric.Graph
	var err error
	runWithProgress(progress, "reading the topology", func() { t, g, err = loadGraph(f.topology) })
	if err != nil {
		return err
	}
	var s *schedule.Schedule
	runWithProgress(progress, fmt.Sprintf("scheduling %d NICs", len(g.NICIDs())), func() { s, err = schedule.Make(g, schedule.Options{}) })
	if err != nil {
		return err
	}
	p, err := sizing.Predict(sizing.ShapeOf(t, g, s), f.Options)
	if err != nil {
		return err
	}
	switch f.format {
	case "json":
		err = plainjson.NewEncoder(out).Encode(p)
	case "mimir-overrides":
		_, err = io.WriteString(out, p.MimirOverrides(f.tenant, f.distributors))
	case "values":
		_, err = io.WriteString(out, p.Values())
	default:
		_, err = io.WriteString(out, p.Text())
	}
	if err != nil {
		return fmt.Errorf("cannot write the prediction: %w", err)
	}
	if f.budget > 0 && p.SamplesPerSecond > f.budget {
		return exitError{exitBeyondBudget, fmt.Errorf("%.0f samples/s are beyond the budget of %.0f", p.SamplesPerSecond, f.budget)}
	}
	return nil
}
