package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/sim/collective"
)

func addCollectivesSimulate(parent *kingpin.CmdClause, commands map[string]command) {
	cmd := parent.Command("simulate", "Write the records of a simulated job with a known fault, as JSON lines on standard output. Exit code 0: done, 1: bad arguments.")
	names := []string{string(collective.None)}
	for _, k := range collective.Kinds() {
		names = append(names, string(k))
	}
	ranks := cmd.Flag("ranks", "Number of ranks: a power of two from 8 to 512.").Default("16").Int()
	fault := cmd.Flag("fault", "What is at fault: "+strings.Join(names, ", ")+".").Default(names[0]).Enum(names...)
	seed := cmd.Flag("seed", "Seed of all that is drawn.").Default("1").Uint64()
	steps := cmd.Flag("steps", "Steps of the job before the fault.").Default("45").Int()
	edges := cmd.Flag("edges", "Write records of transfers.").Default("true").Bool()
	truth := cmd.Flag("truth", "File to which what was wrong is written (JSON).").String()
	commands[cmd.FullCommand()] = func(context.Context) error {
		if *ranks < 8 || *ranks > 512 || *ranks&(*ranks-1) != 0 {
			return fmt.Errorf("flag --ranks: a power of two from 8 to 512 is expected, and not %d", *ranks)
		}
		dp, tp, pp := collective.Grid(*ranks, *seed)
		run, err := collective.Simulate(collective.Config{Seed: *seed, DP: dp, TP: tp, PP: pp, Steps: *steps, Fault: collective.Kind(*fault), NoEdges: !*edges})
		if err != nil {
			return err
		}
		if *truth != "" {
			if err := writeTruth(*truth, &run.Truth); err != nil {
				return fmt.Errorf("cannot write the truth: %w", err)
			}
		}
		out := bufio.NewWriterSize(os.Stdout, 1<<16)
		var line []byte
		for _, r := range run.Records {
			if line, err = ccl.AppendRecord(line[:0], r); err != nil {
				return err
			}
			if _, err = out.Write(line); err != nil {
				return fmt.Errorf("cannot write the records: %w", err)
			}
		}
		return out.Flush()
	}
}

// writeTruth writes what was wrong into a file.
func writeTruth(file string, t *collective.Truth) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := plainjson.NewEncoder(f).Encode(t); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
