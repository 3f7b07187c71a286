package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/internal/fabric"
)

func addLocalize(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("localize", "Name the element that explains a file of observations. Needs no server. Exit code 0: done, 1: bad arguments or topology, 3: done, but some lines could not be read.")
	topo := cmd.Flag("topology", "Topology file (YAML).").Required().String()
	file := cmd.Flag("observations", "Observation file (JSON lines); - is standard input.").Required().String()
	format := cmd.Flag("format", "Output format.").Default("text").Enum("text", "json")
	window := cmd.Flag("window", "Observations are judged together in windows of this length.").Default("10s").Duration()
	commands[cmd.FullCommand()] = func(context.Context) error {
		_, g, err := loadGraph(*topo)
		if err != nil {
			return err
		}
		in := os.Stdin
		if *file != "-" {
			if in, err = os.Open(*file); err != nil {
				return fmt.Errorf("observations: %w", err)
			}
			defer in.Close()
		}
		var obs []*fabric.Observation
		bad := 0
		report := func(e fabric.LineError) {
			bad++
			fmt.Fprintf(os.Stderr, "%s:%d: error: %v; the line is skipped\n", *file, e.Line, e.Err)
		}
		err = fabric.ReadObservations(in, func(line int, o *fabric.Observation) error {
			if err := analyzer.CheckObservation(g, o); err != nil {
				report(fabric.LineError{Line: line, Err: err})
				return nil
			}
			obs = append(obs, o)
			return nil
		}, report)
		if err != nil {
			return fmt.Errorf("observations: reading %s: %w", *file, err)
		}
		rep, err := analyzer.Localize(g, obs, *window)
		if err != nil {
			return err
		}
		if *format == "json" {
			err = json.NewEncoder(os.Stdout).Encode(rep)
		} else {
			err = printReport(os.Stdout, rep)
		}
		if err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
		if bad > 0 {
			return exitError{code: 3, err: fmt.Errorf("%s: %d lines could not be read", *file, bad)}
		}
		return nil
	}
}

func printReport(w io.Writer, rep fabric.Report) error {
	text := ""
	switch rep.State {
	case fabric.Innocent:
		text = fmt.Sprintf("The network is innocent: %d flows over %.0f %% of all link directions are at their baseline.\n", rep.Edges.Total, rep.Coverage.Links*100)
	case fabric.InsufficientEvidence:
		text = fmt.Sprintf("Insufficient evidence: usable flows cover %.0f %% of the link directions and %.0f %% of the flows; %d flows are degraded and nothing explains them.\n",
			rep.Coverage.Links*100, rep.Coverage.Edges*100, rep.Edges.Degraded)
	}
	for _, v := range rep.Verdicts {
		text += verdictText(v)
	}
	_, err := io.WriteString(w, text)
	return err
}

// verdictText is a verdict in plain words, for a terminal.
func verdictText(v fabric.Verdict) string {
	s := fmt.Sprintf("SUSPECT  %s  (%s, %s, %s, confidence %.3f)\n", v.Element.Element, v.Kind, v.Scenario, v.Severity, v.Confidence)
	if v.Direction != "" {
		s += fmt.Sprintf("  direction  %s\n", v.Direction)
	}
	s += fmt.Sprintf("  what       %s\n", v.Summary)
	s += fmt.Sprintf("  touches    %d NICs, %d flows\n", v.BlastRadius.NICs, v.BlastRadius.Edges)
	for i, e := range v.Equivalent {
		if i == 0 {
			s += "  or         "
		} else {
			s += ", "
		}
		s += fmt.Sprintf("%s (%s)", e.Element, e.Kind)
	}
	if len(v.Equivalent) > 0 {
		s += ": no probe can tell these apart\n"
	}
	return s + fmt.Sprintf("  do         %s\n", v.Action)
}
