package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/plan"
)

func addPlanSimulate(parent *kingpin.CmdClause, commands map[string]command) {
	cmd := parent.Command("simulate", "Simulate jobs on a fabric that hashes at random, and write one JSON line per seed. Exit code 0: done, 1: bad input.")
	in := &planInput{}
	in.addFlags(cmd)
	cmd.Flag("jobs", "File of jobs (YAML).").Required().StringVar(&in.jobs)
	policy := cmd.Flag("policy", "How ports are chosen.").Default("planned").Enum("ecmp", "same-side", "planned")
	seeds := cmd.Flag("seeds", "Seeds of the fabric: a number or a range A..B.").Default("1..20").String()
	qps := cmd.Flag("qps", "Queue pairs of each connection of jobs that give no number. auto is 8 unless the policy is planned.").Default("8").String()
	ports := cmd.Flag("ports", "Source ports of each pair in the catalogue.").Default("64").Int()
	fail := cmd.Flag("fail", "Element that is lost, and the iteration: LINK@ITER.").String()
	iterations := cmd.Flag("iterations", "Number of iterations.").Default("400").Int()
	rebalance := cmd.Flag("rebalance", "Move queue pairs after the loss.").Bool()
	commands[cmd.FullCommand()] = func(ctx context.Context) error {
		first, last, err := parseSeeds(*seeds)
		if err != nil {
			return err
		}
		s := plan.Simulation{Policy: plan.Policy(*policy), Ports: *ports, Iterations: *iterations, Rebalance: *rebalance}
		if s.QPs, err = parseQPs(*qps); err != nil {
			return err
		}
		if err := checkPorts(*ports); err != nil {
			return err
		}
		if *fail != "" {
			link, at, ok := strings.Cut(*fail, "@")
			if s.FailAt, err = strconv.Atoi(at); !ok || err != nil || s.FailAt < 0 {
				return fmt.Errorf("flag --fail: %q: LINK@ITER is expected", *fail)
			}
			s.Fail = link
		}
		if s.Jobs, err = in.readJobs(); err != nil {
			return err
		}
		for s.Seed = first; ; s.Seed++ {
			if s.Network, err = in.network(ctx); err != nil {
				return err
			}
			o, err := s.Run()
			if err != nil {
				return err
			}
			if err := plainjson.NewEncoder(os.Stdout).Encode(o); err != nil {
				return fmt.Errorf("cannot write the outcome: %w", err)
			}
			if s.Seed == last {
				return nil
			}
		}
	}
}

// parseSeeds reads a number or a range A..B.
func parseSeeds(s string) (first, last uint64, err error) {
	a, b, ranged := strings.Cut(s, "..")
	if !ranged {
		b = a
	}
	first, err = strconv.ParseUint(a, 10, 64)
	if err == nil {
		last, err = strconv.ParseUint(b, 10, 64)
	}
	if err != nil || last < first {
		return 0, 0, fmt.Errorf("flag --seeds: %q: a number or a range A..B is expected", s)
	}
	return first, last, nil
}

// checkPorts returns an error for a number of ports that there are not.
func checkPorts(ports int) error {
	if most := 65536 - plan.FirstRoCEPort; ports < 1 || ports > most {
		return fmt.Errorf("flag --ports: %d: a whole number from 1 to %d is expected", ports, most)
	}
	return nil
}
