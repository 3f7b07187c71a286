// Command localize measures how well faults are found: generated cases with the
// truth known, through what ships and through the methods of three papers.
// docs/localization.md says what the cells are and how answers are counted.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sim/incident"
)

// defaultCells are those of the targets, about an hour on two cores.
const defaultCells = "thin-k1?-known,thin-k1?-lossy-traced,thin-k1?-half,thin-k1?-none*,probe-k10-known,probe-k10-lossy-traced,probe-k10-half,probe-k10-none*," +
	"scenario-duo-*,tomography-*"

func main() {
	app := kingpin.New("localize", "Measures how well faults are found, beside published methods.")
	which := app.Flag("cells", "Cells to run, shell patterns separated by commas.").Default(defaultCells).String()
	seeds := app.Flag("seeds", "First and last seed.").Default("1..100").String()
	only := app.Flag("methods", "Methods to run, separated by commas; empty: all.").String()
	workers := app.Flag("workers", "Cases made at a time.").Default("2").Int()
	format := app.Flag("format", "text or json.").Default("text").Enum("text", "json")
	list := app.Flag("list", "Print the names of the cells and stop.").Bool()
	detail := app.Flag("detail", "Print every case in which an answer was wrong or missing on standard error.").Bool()
	plot := app.Flag("plot", "Draw what the scale cells took into this SVG file.").String()
	out := app.Flag("write", "Write the cases as files into directories under this one, and run no method.").String()
	in := app.Flag("read", "Grade the verdicts on the cases in the directories under this one, instead of cells.").String()
	kingpin.MustParse(app.Parse(os.Args[1:]))
	if *in != "" {
		t, err := readCases(*in)
		app.FatalIfError(err, "--read")
		app.FatalIfError(writeTable(os.Stdout, []total{t}), "")
		return
	}
	var use []cell
	for _, c := range allCells() {
		if matchesAny(*which, c.name) {
			use = append(use, c)
		}
	}
	if len(use) == 0 {
		app.Fatalf("--cells: none is named %q; --list prints all", *which)
	}
	if *list {
		for _, c := range allCells() {
			fmt.Println(c.name)
		}
		return
	}
	first, last, err := seedRange(*seeds)
	app.FatalIfError(err, "--seeds")
	if *out != "" {
		app.FatalIfError(writeCases(*out, use, first, last), "--write")
		return
	}
	b := bench{first: first, last: last, workers: max(1, *workers), log: os.Stderr, detail: *detail}
	if *only != "" {
		b.only = strings.Split(*only, ",")
	}
	var table []total
	for _, c := range use {
		table = append(table, b.runCell(c)...)
	}
	if *plot != "" {
		app.FatalIfError(os.WriteFile(*plot, drawGrowth(table), 0o644), "--plot")
	}
	if *format == "json" {
		for _, t := range table {
			app.FatalIfError(json.NewEncoder(os.Stdout).Encode(t), "")
		}
		return
	}
	app.FatalIfError(writeTable(os.Stdout, table), "")
}

func matchesAny(patterns, name string) bool {
	for _, p := range strings.Split(patterns, ",") {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return false
}

func seedRange(s string) (first, last uint64, err error) {
	a, b, ok := strings.Cut(s, "..")
	if !ok {
		b = a
	}
	first, err1 := strconv.ParseUint(a, 10, 63)
	last, err2 := strconv.ParseUint(b, 10, 63)
	if err1 != nil || err2 != nil || last < first {
		return 0, 0, fmt.Errorf("%q: FIRST..LAST is expected", s)
	}
	return first, last, nil
}

func writeCases(dir string, use []cell, first, last uint64) error {
	for _, c := range use {
		f := incident.NewFabric(c.topo())
		for seed := first; seed <= last; seed++ {
			if err := c.make(f, seed).Write(filepath.Join(dir, fmt.Sprintf("%s-%d", c.name, seed))); err != nil {
				return err
			}
		}
	}
	return nil
}

// readCases grades the verdicts on cases that writeCases or a person wrote.
func readCases(dir string) (total, error) {
	cases, err := filepath.Glob(filepath.Join(dir, "*", incident.TruthFile))
	if err != nil {
		return total{}, err
	}
	if len(cases) == 0 {
		return total{}, fmt.Errorf("%s: no directory under it holds a %s", dir, incident.TruthFile)
	}
	var scores []score
	for _, name := range cases {
		c, err := incident.ReadCase(filepath.Dir(name))
		if err != nil {
			return total{}, err
		}
		start := time.Now()
		a := runVerdicts(fabric.NewGraph(c.Topology), c.Observations)
		s := a.gradeCase(c)
		s.ms = float64(time.Since(start).Microseconds()) / 1000
		scores = append(scores, s)
	}
	return sumScores("files", "graylink", scores), nil
}

// writeTable prints the table, then what was named for what, how far confidences can be
// believed, and the errors of delays, of the cells that have these.
func writeTable(w io.Writer, table []total) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "cell\tmethod\tcases\tprecision\trecall\tF1\twrong\tmissed\tclean blamed\tscenario\tdirection\tcalibration\tms\tMB")
	mixed := confusion{}
	claims := map[string][]claim{}
	for _, t := range table {
		opt := func(v float64) string {
			if v < 0 {
				return "-"
			}
			return fmt.Sprintf("%.3f", v)
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%.4f\t%.4f\t%.4f\t%d\t%d\t%d/%d\t%s\t%s\t%s\t%.1f\t%.0f\n", t.Cell, t.Method, t.Cases, t.Precision, t.Recall, t.F1,
			t.Wrong, t.Missed, t.Blamed, t.Clean, opt(t.Scenario), opt(t.Direction), opt(t.Calibration), t.MS, t.MB)
		family, _, _ := strings.Cut(t.Cell, "-")
		for k, n := range t.confusion {
			if family == "scenario" {
				mixed[k] += n
			}
		}
		claims[family] = append(claims[family], t.claims...)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(mixed) > 0 {
		fmt.Fprintln(w)
		if err := mixed.write(w); err != nil {
			return err
		}
	}
	for _, family := range []string{"thin", "probe", "scenario", "floor"} {
		if len(claims[family]) == 0 {
			continue
		}
		fmt.Fprintf(w, "\nconfidence of graylink's answers to the cells %s-*, and how many are right; expected error %.4f\n", family, calibrationError(reliabilityBins(claims[family])))
		for _, b := range reliabilityBins(claims[family]) {
			fmt.Fprintf(w, "  %.1f to %.1f: %6d answers, mean confidence %.3f, right %.3f\n", b.From, b.From+0.1, b.Count, b.Claims, b.Right)
		}
	}
	for _, t := range table {
		if t.Tomography != nil {
			fmt.Fprintf(w, "\n%s\n", t.Cell)
			t.Tomography.write(w)
		}
	}
	return nil
}
