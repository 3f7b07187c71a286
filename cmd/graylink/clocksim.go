package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/sim"
	"github.com/graylink/graylink/internal/sim/clocksim"
)

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
	s := clocksim.Settings{Options: f.options, Noise: sim.Noise(f.noise), From: f.seed, To: f.seed, Allowance: f.allowance, Table: f.table, JSON: f.format == "json"}
	if f.seeds != "" {
		var err error
		if s.From, s.To, err = demo.ParseSeeds(f.seeds); err != nil {
			return fmt.Errorf("--seeds: %w", err)
		}
	}
	if f.allowance < 0 {
		return fmt.Errorf("--allowance %v: a time of zero or more is expected", f.allowance)
	}
	if err := clocksim.CheckClocks(f.options.Clocks); err != nil {
		return fmt.Errorf("--clocks %d: %w", f.options.Clocks, err)
	}
	reported := time.Now()
	err := clocksim.Run(ctx, out, s, func(o *sim.Options, done time.Duration) {
		if time.Since(reported) > slowAfter {
			reported = time.Now()
			fmt.Fprintf(progress, "graylink: %s, load %g, seed %d: %v simulated\n", o.Noise, o.Load, o.Seed, done)
		}
	})
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	return err
}
