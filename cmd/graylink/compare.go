package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/compare"
)

// Exit codes of graylink compare, as in its help text.
const (
	compareWorse   = 2
	compareUnknown = 3
)

// compareTimeout bounds the time in which an analyzer answers, which is longer than it takes to make a comparison.
const compareTimeout = 45 * time.Second

// addCompare adds the command compare, which prints what became worse from one span to another.
func addCompare(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("compare", "Report what became worse from one span of time to another, of links, leaves and NICs: slower, lossier, marked more or less covered. "+
		"Exit code 0: nothing, 1: bad arguments, or the analyzer does not answer, 2: something, 3: nothing of what is known, and a part is not known.")
	from := cmd.Flag("from", "End of the earlier span: a time (RFC 3339), or how long ago it is, as 24h.").Required().String()
	to := cmd.Flag("to", "End of the later span. Without it, now.").String()
	span := cmd.Flag("span", "Length of each span, from 1m to 24h.").Default("10m").Duration()
	kind := cmd.Flag("kind", "Compare only these.").Enum(string(compare.Links), string(compare.Leaves), string(compare.NICs))
	limit := cmd.Flag("limit", "Largest number of entries of a list, up to 200.").Default("50").Int()
	base := cmd.Flag("analyzer", "Base URL of the analyzer.").Default("http://127.0.0.1:9872").String()
	httpConfig := cmd.Flag("http.config", "File with the TLS and authentication settings for the analyzer (Prometheus' HTTP client configuration).").String()
	format := cmd.Flag("format", "Output format.").Default("text").Enum("text", "json")
	commands[cmd.FullCommand()] = func(ctx context.Context) error {
		client, err := newAnalyzerClient(*httpConfig)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, compareTimeout)
		defer cancel()
		asked := url.Values{"from": {*from}, "to": {*to}, "span": {span.String()}, "kind": {*kind}, "limit": {strconv.Itoa(*limit)}}
		var c compare.Comparison
		raw, err := fetchFromAnalyzer(ctx, client, *base, "/api/v1/compare?"+asked.Encode(), &c)
		if err != nil {
			return err
		}
		if *format == "json" {
			_, err = os.Stdout.Write(raw)
		} else {
			err = printComparison(os.Stdout, &c)
		}
		switch {
		case err != nil:
			return fmt.Errorf("cannot write the answer: %w", err)
		case c.Worse():
			return exitError{code: compareWorse}
		case c.Unknown():
			return exitError{code: compareUnknown}
		}
		return nil
	}
}

// printComparison writes a comparison as text for a terminal.
func printComparison(w io.Writer, c *compare.Comparison) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\n  from %s\n  to   %s\n", c.Words(), c.From, c.To)
	for _, text := range c.Warnings {
		fmt.Fprintf(t, "Prometheus warns: %q\n", text)
	}
	for i := range c.Sections {
		s := &c.Sections[i]
		head := s.Kind.Words() + ", " + s.Quantity.Words()
		if text := s.Words(); text != "" {
			head += ": " + text
		}
		fmt.Fprintf(t, "\n%s\n", head)
		for j := range s.Changes {
			ch := &s.Changes[j]
			fmt.Fprintf(t, "  %s\t%s\t→ %s\tby at least %s\n", ch.Words(), s.Unit.Format(ch.Before.Median), s.Unit.Format(ch.After.Median), s.Unit.Format(ch.AtLeast))
		}
		if text := compare.LeftOutText(s.ChangesLeftOut); text != "" {
			fmt.Fprintf(t, "  %s\n", text)
		}
		for j := range s.Missing {
			fmt.Fprintf(t, "  %s\t%s\n", s.Missing[j].Words(), s.Quantity.MissingWords())
		}
		if text := compare.LeftOutText(s.MissingLeftOut); text != "" {
			fmt.Fprintf(t, "  %s\n", text)
		}
	}
	return t.Flush()
}
