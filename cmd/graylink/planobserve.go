package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
	"github.com/graylink/graylink/internal/queuepair"
)

// planObserve has the arguments of the command.
type planObserve struct {
	planInput
	lists  []string
	traced tracedCatalogue
	format string
}

func addPlanObserve(parent *kingpin.CmdClause, commands map[string]command) {
	cmd := parent.Command("observe", "Say which paths the queue pairs of running, unmodified jobs take, which full links hold the jobs back, and what a plan or another number of queue pairs would give. Exit code 0: done, 1: bad input, 3: lines could not be read.")
	o := &planObserve{}
	o.addFlags(cmd)
	cmd.Flag("jobs", "File of jobs (YAML).").Required().StringVar(&o.jobs)
	cmd.Flag("queue-pairs", "Lists of queue pairs, as GET /api/v1/queue-pairs of each agent with --rdma.queue-pairs answers; - is standard input. May be repeated.").Required().StringsVar(&o.lists)
	cmd.Flag("catalogue", "Catalogue of paths (JSON lines).").StringVar(&o.catalogue)
	cmd.Flag("analyzer", "Base URL of an analyzer, whose agents trace the ports of the queue pairs.").StringVar(&o.traced.analyzer)
	cmd.Flag("http.config", "File with the TLS and authentication settings for the analyzer (Prometheus' HTTP client configuration).").StringVar(&o.traced.httpConfig)
	cmd.Flag("dscp", "DSCP of the jobs' packets.").Default("26").IntVar(&o.traced.request.DSCP)
	cmd.Flag("adaptive-routing", "off: the NICs are known not to mark packets for adaptive routing. Without it, the agents have to know.").EnumVar(&o.traced.request.AdaptiveRouting, "off")
	cmd.Flag("format", "Output format.").Default("table").EnumVar(&o.format, "table", "json")
	commands[cmd.FullCommand()] = o.run
}

// run writes what the queue pairs do.
func (o *planObserve) run(ctx context.Context) error {
	if (o.catalogue == "") == (o.traced.analyzer == "") {
		return errors.New("one of the flags --catalogue and --analyzer is expected")
	}
	n, err := o.network(ctx)
	if err != nil {
		return err
	}
	jobs, err := o.readJobs()
	if err != nil {
		return err
	}
	nodes, err := o.readLists()
	if err != nil {
		return err
	}
	var c *plan.Catalogue
	if o.catalogue != "" {
		c, err = o.readCatalogue(n)
	} else {
		c, err = o.traceCatalogue(ctx, n, jobs, nodes)
	}
	if err != nil {
		return err
	}
	seen, err := plan.Observe(n, c, jobs, nodes, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", o.jobs, err)
	}
	if o.format == "json" {
		e := json.NewEncoder(os.Stdout)
		e.SetEscapeHTML(false)
		err = e.Encode(seen)
	} else {
		err = writeObservation(os.Stdout, seen)
	}
	if err != nil {
		return fmt.Errorf("cannot write what was observed: %w", err)
	}
	if o.badLines > 0 {
		return exitError{code: 3, err: fmt.Errorf("%d lines could not be read", o.badLines)}
	}
	return nil
}

// readLists reads the lists of queue pairs. Bad lines are reported on standard error and counted.
func (o *planObserve) readLists() (nodes []queuepair.Node, err error) {
	for _, name := range o.lists {
		f := os.Stdin
		if name != "-" {
			if f, err = os.Open(name); err != nil {
				return nil, fmt.Errorf("queue pairs: %w", err)
			}
		}
		list, err := queuepair.Read(name, f, func(err error) {
			o.badLines++
			fmt.Fprintln(os.Stderr, err)
		})
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		for _, x := range list {
			if slices.ContainsFunc(nodes, func(known queuepair.Node) bool { return known.Node == x.Node }) {
				return nil, fmt.Errorf("%s: node %q is in two lists", name, x.Node)
			}
			nodes = append(nodes, x)
		}
	}
	return nodes, nil
}

// traceCatalogue has an analyzer trace the ports of the queue pairs, and those that a plan for the jobs needs.
func (o *planObserve) traceCatalogue(ctx context.Context, n *plan.Network, jobs []plan.Job, nodes []queuepair.Node) (*plan.Catalogue, error) {
	c := plan.NewCatalogue(n)
	first, err := plan.Observe(n, c, jobs, nodes, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.jobs, err)
	}
	request, err := catalogue.RequestFor(n, jobs, first)
	if err != nil {
		return nil, err
	}
	request.DSCP, request.AdaptiveRouting = o.traced.request.DSCP, o.traced.request.AdaptiveRouting
	o.traced.request = request
	var lines bytes.Buffer
	if err := o.traced.fetch(ctx, &lines); err != nil {
		return nil, err
	}
	err = plan.ReadCatalogue(&lines, func(_ int, e *plan.Entry) error {
		c.Add(e)
		return nil
	}, func(e fabric.LineError) {
		o.badLines++
		fmt.Fprintf(os.Stderr, "%s:%d: %v\n", o.traced.analyzer, e.Line, e.Err)
	})
	return c, err
}

// writeObservation writes what was observed as text.
func writeObservation(w io.Writer, o *plan.Observation) error {
	out := bufio.NewWriter(w)
	gbps := func(v *float64) string {
		if v == nil {
			return "unknown"
		}
		return fmt.Sprintf("%.1f", *v)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "JOB\tQUEUE PAIRS\tPATHS KNOWN\tGB/S\tBY PLAN\tIDEAL")
	for i := range o.Jobs {
		j := &o.Jobs[i]
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%s\n", j.Job, j.QPs, j.Known, strings.TrimSuffix(j.RateText(), " Gb/s"), gbps(j.PlannedGbps), gbps(j.IdealGbps))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range o.Jobs {
		j := &o.Jobs[i]
		for _, text := range slices.Concat(j.Obstacles(), j.HurtTexts(), j.DrawTexts()) {
			fmt.Fprintln(out, text)
		}
	}
	fmt.Fprintln(out, "Not listed by any kernel: queue pairs made by DEVX. NVSHMEM's (IBGDA) all have source port 49152 and collide by design.")
	return out.Flush()
}
