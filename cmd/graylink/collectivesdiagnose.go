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

	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/localize"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/plainjson"
)

// diagnoser has the arguments of collectives diagnose.
type diagnoser struct {
	records, topology, placement, observations string
	format, at                                 string
	matrix                                     bool
	bad                                        int // lines that could not be read
}

func addCollectivesDiagnose(parent *kingpin.CmdClause, commands map[string]command) {
	cmd := parent.Command("diagnose", "Name the rank or connection that a job waits for, from records of its collective operations. Needs no server. Exit code 0: done, 1: bad arguments or files, 3: done, but some lines could not be read.")
	d := &diagnoser{}
	cmd.Flag("records", "File of records (JSON lines), as collectives convert writes it; - is standard input.").Required().StringVar(&d.records)
	cmd.Flag("topology", "Topology file (YAML), for the ways of a connection through the fabric.").StringVar(&d.topology)
	cmd.Flag("placement", "Placement file (YAML) that says which job runs on which nodes. Without it no job is named.").StringVar(&d.placement)
	cmd.Flag("observations", "Observation file (JSON lines) of probes in the same time, which say whether the network is to blame. Needs --topology.").StringVar(&d.observations)
	cmd.Flag("at", "Time up to which the records are complete (RFC 3339): what is open for too long at this time hangs. Without it, only beats say so.").StringVar(&d.at)
	cmd.Flag("matrix", "Add the delay matrix to the report.").BoolVar(&d.matrix)
	cmd.Flag("format", "Output format.").Default("text").EnumVar(&d.format, "text", "json")
	commands[cmd.FullCommand()] = func(context.Context) error { return d.run(os.Stdout) }
}

// run reads the files, and writes the report. The error has exit code 3 if some lines could not be read.
func (d *diagnoser) run(out io.Writer) error {
	o := workload.Options{Matrix: d.matrix}
	if d.at != "" {
		at, err := time.Parse(time.RFC3339, d.at)
		if err != nil {
			return fmt.Errorf("flag --at: a time such as 2026-09-21T14:13:41Z is expected, and not %q", d.at)
		}
		o.Until = at
	}
	var g *fabric.Graph
	if d.topology != "" {
		var err error
		if _, g, err = loadGraph(d.topology); err != nil {
			return err
		}
	}
	if d.observations != "" && g == nil {
		return errors.New("flag --observations needs --topology")
	}
	if d.placement != "" {
		b, err := os.ReadFile(d.placement)
		if err != nil {
			return fmt.Errorf("placement: %w", err)
		}
		p, err := jobs.Parse(jobs.FormatPlacement, d.placement, b, time.UTC)
		if err != nil {
			return err
		}
		o.JobOf = func(hosts []string, at time.Time) string { return jobs.JobOn(p, hosts, at) }
		o.PlaceOf = func(job string, hosts []string, at time.Time, ranks, rank int) (workload.Place, bool) {
			q, ok := jobs.PlaceOf(p, job, hosts, at, ranks, rank)
			return workload.Place{Host: q.Node, NIC: q.NIC, GPU: q.GPU}, ok
		}
	}
	var f workload.Fabric
	if d.observations != "" {
		var err error
		if f, err = d.probed(g); err != nil {
			return err
		}
	}
	records, unreadable, err := d.read()
	if err != nil {
		return err
	}
	rep := workload.Replay(records, o, f)
	rep.Records.Unreadable = unreadable
	if d.format == "json" {
		err = plainjson.NewEncoder(out).Encode(rep)
	} else {
		_, err = io.WriteString(out, workloadText(&rep))
	}
	if err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	if d.bad > 0 {
		return exitError{code: 3, err: fmt.Errorf("%d lines could not be read", d.bad)}
	}
	return nil
}

// maxRecords bounds the records in memory, at some 500 octets each.
const maxRecords = 20_000_000

// read reads the records.
func (d *diagnoser) read() (out []ccl.Record, unreadable uint64, err error) {
	in := os.Stdin
	if d.records != "-" {
		if in, err = os.Open(d.records); err != nil {
			return nil, 0, fmt.Errorf("records: %w", err)
		}
		defer in.Close()
	}
	c := &lineErrors{w: os.Stderr, file: d.records}
	report := newProgress(os.Stderr)
	err = ccl.ReadRecords(in, func(line int, r ccl.Record) error {
		if len(out) == maxRecords {
			return fmt.Errorf("line %d: more than %d records", line, maxRecords)
		}
		ccl.SetAccount(r, "") // a file may say any
		out = append(out, r)
		report.countLine(line)
		return nil
	}, func(e fabric.LineError) { c.addBadLine(e.Line, e.Err) })
	if err != nil {
		return nil, 0, fmt.Errorf("cannot read records from %s: %w", d.records, err)
	}
	d.bad += c.n
	return out, uint64(c.n), nil
}

// probed returns what the observations say of the fabric.
func (d *diagnoser) probed(g *fabric.Graph) (*collectives.Ways, error) {
	in, err := os.Open(d.observations)
	if err != nil {
		return nil, fmt.Errorf("observations: %w", err)
	}
	defer in.Close()
	c := &lineErrors{w: os.Stderr, file: d.observations}
	obs, lines, err := readObservations(in, g, c, newProgress(os.Stderr))
	if err != nil {
		return nil, fmt.Errorf("cannot read observations from %s: %w", d.observations, err)
	}
	findings := judge.FindingsOf(obs, judge.DefaultParameters())
	rep, wrong, err := localize.Localizer{Graph: g, Window: 10 * time.Second}.Run(obs)
	if err != nil {
		return nil, err
	}
	for _, w := range wrong {
		c.addBadLine(lines[w.Observation], w.Err)
	}
	d.bad += c.n
	return collectives.WaysOfFindings(g, rep.Verdicts, findings), nil
}

// workloadText returns a report as text for a terminal.
func workloadText(r *workload.Report) string {
	var b strings.Builder
	switch r.State {
	case workload.Healthy:
		fmt.Fprintf(&b, "No rank and no connection is waited for: %d operations of %d communicators.\n", r.Coverage.Operations, r.Coverage.Communicators)
	case workload.InsufficientState:
		fmt.Fprintf(&b, "Insufficient evidence: %d operations of %d communicators, and no normal to compare them with.\n", r.Coverage.Operations, r.Coverage.Communicators)
	}
	for i := range r.Diagnoses {
		d := &r.Diagnoses[i]
		fmt.Fprintf(&b, "SUSPECT  %s  (%s, confidence %.3f)\n  what       %s\n", d.Syndrome, d.Pattern, d.Confidence, d.Summary)
		for _, e := range d.Equivalent {
			fmt.Fprintf(&b, "  or         %s of ranks %s\n", e.Pattern, strings.Trim(fmt.Sprint(e.Ranks), "[]"))
		}
		fmt.Fprintf(&b, "  since      %s, detected %s\n", d.BeganAt.Format(time.RFC3339Nano), d.DetectedAt.Format(time.RFC3339Nano))
		if d.Job != "" {
			fmt.Fprintf(&b, "  job        %s\n", d.Job)
		}
		fmt.Fprintf(&b, "  network    %s", d.Network.State)
		if d.Network.Element != "" {
			fmt.Fprintf(&b, ": %s", d.Network.Element)
		}
		if d.Network.Reason != "" {
			fmt.Fprintf(&b, ": %s", d.Network.Reason)
		}
		fmt.Fprintf(&b, "\n  touches    %d further communicators\n  do         %s\n", len(d.Consequences), d.RecommendedAction)
	}
	for _, u := range r.Coverage.Unseen {
		fmt.Fprintf(&b, "Unseen: %s\n", u)
	}
	for _, c := range r.Matrix {
		normal := "unknown"
		if c.NormalNSPerMiB != nil {
			normal = fmt.Sprintf("%.0f", *c.NormalNSPerMiB)
		}
		fmt.Fprintf(&b, "%s %d>%d: %.0f ns/MiB, normally %s\n", c.Comm, c.From, c.To, c.WireNSPerMiB, normal)
	}
	return b.String()
}
