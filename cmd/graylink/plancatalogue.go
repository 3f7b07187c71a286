package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/plan"
)

// addPlanCatalogue adds the command that writes catalogues.
func addPlanCatalogue(parent *kingpin.CmdClause, commands map[string]command) {
	cmd := parent.Command("catalogue", "Write a catalogue: which path the packets of each source port take, as JSON lines. Exit code 0: done, 1: bad input.")
	c := catalogueArgs{}
	c.addFlags(cmd)
	cmd.Flag("jobs", "File of jobs: the pairs of NICs that they use are written.").Required().StringVar(&c.jobs)
	cmd.Flag("ports", "Source ports of each pair, from 49152 on.").Default("64").IntVar(&c.ports)
	cmd.Flag("synthetic", "Seed of a fabric that hashes at random, for trials.").Required().Uint64Var(&c.synthetic)
	commands[cmd.FullCommand()] = c.write
}

// catalogueArgs are the arguments of the command.
type catalogueArgs struct {
	planInput
	ports     int
	synthetic uint64
}

// write writes the catalogue of a synthetic fabric.
func (c *catalogueArgs) write(ctx context.Context) error {
	if err := checkPorts(c.ports); err != nil {
		return err
	}
	n, err := c.network(ctx)
	if err != nil {
		return err
	}
	jobs, err := c.readJobs()
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	hash := plan.NewHash(n, c.synthetic)
	var line []byte
	err = n.Pairs(jobs, func(src string, dst []string) error {
		for i := range c.ports {
			e, ok := hash.Entry(src, dst, uint16(plan.FirstRoCEPort+i))
			if !ok {
				continue
			}
			var err error
			if line, err = plan.AppendEntry(line[:0], &e); err != nil {
				return err
			}
			if _, err = out.Write(line); err != nil {
				return fmt.Errorf("cannot write the catalogue: %w", err)
			}
		}
		return nil
	})
	return errors.Join(err, out.Flush())
}
