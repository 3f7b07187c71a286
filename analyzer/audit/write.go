package audit

import (
	"embed"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// FormatValue writes a value of a check with its unit. A missing value is "unknown".
func (c *Check) FormatValue(v *float64) string {
	switch {
	case v == nil:
		return "unknown"
	case c.Unit == "seconds":
		return formatNS(*v * second)
	case *v == math.Trunc(*v) && math.Abs(*v) < 1e6:
		return fmt.Sprintf("%.0f", *v)
	}
	return fmt.Sprintf("%.3g", *v)
}

// Result says in a sentence what the outcome is.
func (r *Report) Result() string {
	var without []string
	for i := range r.Checks {
		if c := &r.Checks[i]; !c.Required && c.Status == Unknown {
			without = append(without, c.ID)
		}
	}
	more := ""
	if len(without) > 0 {
		more = " Unknown and not required: " + strings.Join(without, ", ") + "."
	}
	switch r.Status {
	case Fail:
		return "The audit failed." + more
	case Unknown:
		return "The evidence does not suffice." + more
	case Warn:
		return "The audit passed with warnings." + more
	}
	return "The audit passed." + more
}

// maxNamedRefusals is the number of agents that the text about refusals names.
const maxNamedRefusals = 8

// RefusalText says in a sentence which agents refused the audit's requests. It is empty if none did.
func (r *Report) RefusalText() string {
	if len(r.Refused) == 0 {
		return ""
	}
	names := slices.Sorted(maps.Keys(r.Refused))
	why, more := r.Refused[names[0]], ""
	if n := len(names) - maxNamedRefusals; n > 0 {
		names, more = names[:maxNamedRefusals], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("Agents that refused the audit's requests: %s%s. What only they could show is unknown. The first one answered: %s",
		strings.Join(names, ", "), more, why)
}

// summary describes when and by what the audit was made.
func (r *Report) summary() string {
	s := fmt.Sprintf("Scope %s, %s to %s: %d windows (%d could not be read), %d directed flows, %d packets counted.",
		r.Scope, r.Start.UTC().Format(time.RFC3339), r.End.UTC().Format(time.RFC3339), r.Windows, r.Missed, r.Flows, r.Probes)
	if r.LoadFrom != "" {
		s += " The fabric was under load: " + r.LoadFrom + "."
	}
	return strings.TrimSpace(s + " " + r.RefusalText())
}

// escapeCell keeps a text within a cell of a Markdown table.
func escapeCell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;", ">", "&gt;").Replace(s)
}

// WriteMarkdown writes the report as Markdown.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Audit: %s\n\n%s\n\n%s\n\n", r.Status, r.Result(), escapeCell(r.summary()))
	b.WriteString("| check | status | value | criterion | population | |\n| --- | --- | --- | --- | --- | --- |\n")
	for i := range r.Checks {
		c := &r.Checks[i]
		fmt.Fprintf(&b, "| %s %s | %s | %s | %s | %d %s | %s |\n", c.ID, escapeCell(c.Title), c.Status, c.FormatValue(c.Value), c.FormatValue(c.Bound), c.Population, c.Of, escapeCell(c.Text))
	}
	for i := range r.Checks {
		c := &r.Checks[i]
		if len(c.Items) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s %s\n\n| status | element | direction | value | population | |\n| --- | --- | --- | --- | --- | --- |\n", c.ID, c.Title)
		for j := range c.Items {
			x := &c.Items[j]
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %d | %s |\n", x.Status, escapeCell(x.Element), escapeCell(x.Direction), c.FormatValue(x.Value), x.Population, escapeCell(x.FullText()))
		}
		if c.Omitted > 0 {
			fmt.Fprintf(&b, "\n%d further elements are not listed.\n", c.Omitted)
		}
	}
	if k := r.Compared; k != nil {
		fmt.Fprintf(&b, "\n## Since the earlier audit\n\n%s\n\n", k.Describe())
		for _, x := range k.Changes {
			fmt.Fprintf(&b, "- %s %s: %s before, %s now\n", x.Check, escapeCell(x.Element), x.Before, x.After)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// FullText returns the text of an item with its class, and with the elements that it cannot be distinguished from.
func (i *Item) FullText() string {
	s := i.Text
	if i.Class != "" {
		s += " Class " + i.Class + "."
	}
	if len(i.Equivalent) > 0 {
		s += " The same flows cross " + strings.Join(i.Equivalent, ", ") + "."
	}
	return s
}

// Describe says in a sentence how two audits differ.
func (c *Comparison) Describe() string {
	s := fmt.Sprintf("Before: %s. Now: %s. Elements that changed: %d.", c.Before, c.After, len(c.Changes))
	if c.Incomplete {
		s += " One of the audits does not list all elements, so further changes may be missing."
	}
	return s
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     float64     `xml:"time,attr"`
	Stamp    string      `xml:"timestamp,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Failure *junitMessage `xml:"failure,omitempty"`
	Error   *junitMessage `xml:"error,omitempty"`
	Skipped *junitMessage `xml:"skipped,omitempty"`
	Output  string        `xml:"system-out,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the report in the format of JUnit. A required check that is unknown is an error, another one is skipped.
func (r *Report) WriteJUnit(w io.Writer) error {
	s := junitSuite{Name: "graylink audit " + r.Scope, Tests: len(r.Checks), Time: r.End.Sub(r.Start).Seconds(), Stamp: r.Start.UTC().Format(time.RFC3339)}
	for i := range r.Checks {
		c := &r.Checks[i]
		k := junitCase{Class: "graylink.audit", Name: c.ID + " " + c.Title}
		var lines []string
		for j := range c.Items {
			x := &c.Items[j]
			lines = append(lines, strings.Join([]string{string(x.Status), x.Element, x.Direction, x.FullText()}, " "))
		}
		m := &junitMessage{Message: c.Text, Text: strings.Join(lines, "\n")}
		switch {
		case c.Status == Fail:
			k.Failure = m
			s.Failures++
		case c.Status == Unknown && c.Required:
			k.Error = m
			s.Errors++
		case c.Status == Unknown:
			k.Skipped = m
			s.Skipped++
		default:
			k.Output = strings.TrimSpace(c.Text + "\n" + m.Text)
		}
		s.Cases = append(s.Cases, k)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// maxOpenItems is the number of items up to which those of a failed check are shown at once.
const maxOpenItems = 30

// IsOpen reports whether the page shows the items of a check before somebody opens them.
func (c *Check) IsOpen() bool { return c.Status == Fail && len(c.Items) <= maxOpenItems }

// HasDirections reports whether any item is about one direction of a link.
func (c *Check) HasDirections() bool {
	return slices.ContainsFunc(c.Items, func(i Item) bool { return i.Direction != "" })
}

// Arrow returns the direction of an item as the page shows it, so that lines break at the arrow.
func (i *Item) Arrow() string { return strings.Replace(i.Direction, "->", " → ", 1) }

//go:embed page.html
var pageFiles embed.FS

var page = template.Must(template.ParseFS(pageFiles, "page.html"))

// WriteHTML writes the report as one file that needs no other.
func (r *Report) WriteHTML(w io.Writer) error {
	return page.Execute(w, struct {
		*Report
		Summary string
	}{r, r.summary()})
}
