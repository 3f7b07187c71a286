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
	cmd.Flag("topology", "Topology file (YAML), with the speed of every link, of a catalogue for trials.").StringVar(&c.topology)
	cmd.Flag("jobs", "File of jobs: the pairs of NICs that they use are written.").StringVar(&c.jobs)
	cmd.Flag("exclude", "Element that no path may have. The flag may be repeated.").StringsVar(&c.exclude)
	cmd.Flag("ports", "Source ports of each pair, from 49152 on.").Default("64").IntVar(&c.ports)
	cmd.Flag("synthetic", "Seed of a fabric that hashes at random, for trials.").IsSetByUser(&c.made).Uint64Var(&c.synthetic)
	c.traced.addFlags(cmd)
	commands[cmd.FullCommand()] = c.write
}

// catalogueArgs are the arguments of the command.
type catalogueArgs struct {
	planInput
	ports     int
	synthetic uint64
	made      bool // for trials, by the seed
	traced    tracedCatalogue
}

func (c *catalogueArgs) write(ctx context.Context) error {
	if c.traced.wanted() == c.made {
		return errors.New("one of the flags --analyzer, --lab and --synthetic is expected")
	}
	if !c.made {
		c.traced.request.Exclude = c.exclude
		return c.traced.write(ctx)
	}
	if c.topology == "" || c.jobs == "" {
		return errors.New("--synthetic needs --topology and --jobs")
	}
	c.goodput = plan.DefaultGoodput
	return c.writeSynthetic(ctx)
}

// writeSynthetic writes the catalogue of a fabric that hashes at random.
func (c *catalogueArgs) writeSynthetic(ctx context.Context) error {
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
