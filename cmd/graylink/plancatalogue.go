package main

import (
	"context"
	"errors"

	"github.com/alecthomas/kingpin/v2"
)

// addPlanCatalogue adds the command that writes catalogues. Each source of entries has one flag, and exactly one is given.
func addPlanCatalogue(parent *kingpin.CmdClause, commands map[string]command) {
	cmd := parent.Command("catalogue", "Write a catalogue: which path the packets of each source port take, as JSON lines. Exit code 0: done, 1: bad arguments.")
	c := catalogueArgs{}
	cmd.Flag("topology", "Topology file (YAML).").StringVar(&c.topology)
	cmd.Flag("jobs", "File of jobs: only pairs of NICs that they use are written.").StringVar(&c.jobs)
	cmd.Flag("ports", "Source ports of each pair, from 49152 on.").Default("64").IntVar(&c.ports)
	cmd.Flag("synthetic", "Seed of a fabric that hashes at random, for trials.").Uint64Var(&c.synthetic)
	c.traced.addFlags(cmd)
	commands[cmd.FullCommand()] = c.write
}

// catalogueArgs are the arguments of the command.
type catalogueArgs struct {
	topology, jobs string
	ports          int
	synthetic      uint64
	traced         tracedCatalogue
}

func (c *catalogueArgs) write(ctx context.Context) error {
	if c.traced.wanted() {
		return c.traced.write(ctx)
	}
	return errors.New("flag --synthetic: a seed is expected")
}
