package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/localize"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
)

func addLocalize(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("localize", "Name the element that explains a file of observations, or the fault of routing that its paths show. Faults that need history or reports of switches are not found. Needs no server. Exit code 0: done, 1: bad arguments or topology, 3: done, but some lines could not be read.")
	topo := cmd.Flag("topology", "Topology file (YAML).").Required().String()
	file := cmd.Flag("observations", "Observation file (JSON lines); - is standard input.").Required().String()
	format := cmd.Flag("format", "Output format.").Default("text").Enum("text", "json")
	stats := cmd.Flag("stats", "Print the time that reading, binding and inference took, on standard error.").Bool()
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
		watch := newStopwatch("reading")
		c := &lineErrors{w: os.Stderr, file: *file}
		report := newProgress(os.Stderr)
		obs, lines, err := readObservations(in, g, c, report)
		if err != nil {
			return fmt.Errorf("cannot read observations from %s: %w", *file, err)
		}
		rep, wrong, err := localize.Localizer{Graph: g, Window: *window, Progress: func(done, of int) {
			report.printIfDue("%d of %d windows explained", done, of)
		}, EnterPhase: func(p triangulate.Phase) { watch.enterPhase(string(p)) }}.Run(obs)
		if err != nil {
			return err
		}
		if *stats {
			fmt.Fprintf(os.Stderr, "%d observations: %s\n", len(obs), watch.stopAndDescribe())
		}
		for _, w := range wrong {
			c.addBadLine(lines[w.Observation], w.Err)
		}
		if *format == "json" {
			err = plainjson.NewEncoder(os.Stdout).Encode(rep)
		} else {
			err = printReport(os.Stdout, rep)
		}
		if err != nil {
			return fmt.Errorf("cannot write the report: %w", err)
		}
		if c.n > 0 {
			return exitError{code: 3, err: fmt.Errorf("%s: %d lines could not be read", *file, c.n)}
		}
		return nil
	}
}

// maxObservations bounds the number of observations in memory, at some 500 octets each.
const maxObservations = 5_000_000

// readObservations reads the observations whose elements the topology has, with their line numbers.
func readObservations(in io.Reader, g *fabric.Graph, c *lineErrors, report *progress) (obs []*fabric.Observation, lines []int, err error) {
	err = fabric.ReadObservations(in, func(line int, o *fabric.Observation) error {
		if err := localize.CheckObservation(g, o); err != nil {
			c.addBadLine(line, err)
			return nil
		}
		if len(obs) == maxObservations {
			return fmt.Errorf("line %d: more than %d observations", line, maxObservations)
		}
		obs, lines = append(obs, o), append(lines, line)
		report.countLine(line)
		return nil
	}, func(e fabric.LineError) {
		c.addBadLine(e.Line, e.Err)
		report.countLine(e.Line)
	})
	return obs, lines, err
}

// lineErrors reports bad lines: the first ones in full, and the number of all.
type lineErrors struct {
	w    io.Writer
	file string
	n    int
}

const (
	maxLineErrors   = 20
	maxLineErrorLen = 400
)

// addBadLine reports a line, or a part of a file without lines if line is 0.
func (c *lineErrors) addBadLine(line int, err error) {
	if c.n++; c.n > maxLineErrors+1 {
		return
	}
	if c.n == maxLineErrors+1 {
		fmt.Fprintf(c.w, "%s: further bad lines are skipped and not listed\n", c.file)
		return
	}
	text := err.Error()
	if len(text) > maxLineErrorLen {
		text = strings.ToValidUTF8(text[:maxLineErrorLen], "") + "..."
	}
	if line == 0 {
		fmt.Fprintf(c.w, "%s: error: %s; it is skipped\n", c.file, text)
		return
	}
	fmt.Fprintf(c.w, "%s:%d: error: %s; the line is skipped\n", c.file, line, text)
}

// progress reports the progress of work that takes more than two seconds, every two seconds.
type progress struct {
	w    io.Writer
	last time.Time
}

const progressEvery = 2 * time.Second

func newProgress(w io.Writer) *progress { return &progress{w, time.Now()} }

func (p *progress) countLine(n int) {
	if n%1000 == 0 {
		p.printIfDue("%d lines read", n)
	}
}

func (p *progress) printIfDue(format string, args ...any) {
	if now := time.Now(); now.Sub(p.last) >= progressEvery {
		p.last = now
		fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// stopwatch measures how long the phases of a work take together, however often each is entered.
type stopwatch struct {
	phases []string // in the order in which they were entered first
	taken  map[string]time.Duration
	phase  string // that runs
	since  time.Time
}

func newStopwatch(phase string) *stopwatch {
	return &stopwatch{phases: []string{phase}, taken: map[string]time.Duration{phase: 0}, phase: phase, since: time.Now()}
}

// enterPhase ends the phase that runs and begins another.
func (w *stopwatch) enterPhase(phase string) {
	now := time.Now()
	w.taken[w.phase] += now.Sub(w.since)
	if _, known := w.taken[phase]; !known {
		w.phases, w.taken[phase] = append(w.phases, phase), 0
	}
	w.phase, w.since = phase, now
}

// stopAndDescribe ends the phase that runs, and returns what each took.
func (w *stopwatch) stopAndDescribe() string {
	w.enterPhase(w.phase)
	var out []string
	for _, p := range w.phases {
		out = append(out, fmt.Sprintf("%s %.3f s", p, w.taken[p].Seconds()))
	}
	return strings.Join(out, ", ")
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
	text += modeText(&rep)
	for _, v := range rep.Verdicts {
		text += verdictText(v)
	}
	text += candidatesText(rep.Candidates)
	_, err := io.WriteString(w, text)
	return err
}

// modeText says that packets are sprayed, and how many of them each link gets. It is empty if none are.
func modeText(rep *fabric.Report) string {
	if rep.Paths.Sprayed == 0 {
		return ""
	}
	s := fmt.Sprintf("Switches choose the path of each packet of %d flows", rep.Paths.Sprayed)
	if least := rep.Paths.LeastProbesPerSecond; least != nil {
		s += fmt.Sprintf(": every direction of a link between switches that is covered has %s probes a second or more", strconv.FormatFloat(math.Round(*least*10)/10, 'f', -1, 64))
	}
	return s + ".\n"
}

// candidatesText returns the elements that may be at fault besides, as text for a terminal.
func candidatesText(candidates []fabric.Candidate) string {
	if len(candidates) == 0 {
		return ""
	}
	s := "Not enough evidence for a verdict:\n"
	for i := range candidates {
		c := &candidates[i]
		at := c.ID
		if c.Direction != "" {
			at = c.Direction
		}
		s += fmt.Sprintf("  %s  (%s, probability %.2f, %d flows)\n", at, c.Kind, c.Probability, c.Edges)
		for j := range c.WouldSplit {
			s += fmt.Sprintf("    more would be known if %s\n", &c.WouldSplit[j])
		}
	}
	return s
}

// verdictText returns a verdict as text for a terminal.
func verdictText(v fabric.Verdict) string {
	s := fmt.Sprintf("SUSPECT  %s  (%s, %s, %s, confidence %.3f)\n", v.Element.ID, v.Kind, v.Scenario, v.Severity, v.Confidence)
	if v.Direction != "" {
		s += fmt.Sprintf("  direction  %s\n", v.Direction)
	}
	if v.Prefix != "" {
		s += fmt.Sprintf("  prefix     %s\n", v.Prefix)
	}
	s += fmt.Sprintf("  what       %s\n", v.Summary)
	if v.Attribution != nil {
		s += fmt.Sprintf("  why        %s\n", v.Attribution.Summary)
	}
	if v.BlastRadius.NICs > 0 {
		s += fmt.Sprintf("  touches    %d NICs, %d flows\n", v.BlastRadius.NICs, v.BlastRadius.Edges)
	}
	label, why := "or", ": no probe can distinguish these"
	if len(v.WouldSplit) > 0 {
		why = ": the flows so far do not distinguish these"
	}
	switch v.Scenario {
	case fabric.ClockTrouble:
		label, why = "also", ": the same clock"
	case fabric.Miscabled:
		label, why = "and", ""
	case fabric.Polarization:
		label, why = "also", ": the same hash, and the leaves whose flows crowd"
	}
	for i, e := range v.Equivalent {
		if i == 0 {
			s += fmt.Sprintf("  %-10s ", label)
		} else {
			s += ", "
		}
		s += fmt.Sprintf("%s (%s)", e.ID, e.Kind)
	}
	if len(v.Equivalent) > 0 {
		s += why + "\n"
	}
	for i := range v.WouldSplit {
		s += fmt.Sprintf("  but        %s\n", &v.WouldSplit[i])
	}
	for i := range v.Evidence.Asked {
		s += fmt.Sprintf("  asked      %s\n", &v.Evidence.Asked[i])
	}
	return s + fmt.Sprintf("  do         %s\n", v.Action)
}
