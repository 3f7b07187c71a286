package compare

import (
	"fmt"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
)

// Words returns what a kind is called.
func (k Kind) Words() string {
	return map[Kind]string{Links: "links", Leaves: "leaves", NICs: "NICs"}[k]
}

// Words returns what a change of a quantity for the worse is called.
func (q Quantity) Words() string {
	return map[Quantity]string{AddedDelay: "slower (added delay)", MedianDelay: "slower (median)", TailDelay: "slower (99th percentile)", LossRatio: "lossier",
		MarkRatio: "marked more", Coverage: "less covered"}[q]
}

// MissingWords returns what is said of series that a section misses.
func (q Quantity) MissingWords() string {
	if q == Coverage {
		return "not covered any more"
	}
	return "delay not known any more"
}

// Format writes a value with its unit.
func (u Unit) Format(v float64) string {
	switch u {
	case Nanoseconds:
		return classify.FormatDelay(int64(v))
	case Ratio:
		return fmt.Sprintf("%.3g %%", v*100)
	case Flows:
		return fmt.Sprintf("%.3g flows", v)
	}
	return fmt.Sprintf("%.3g probes/s", v)
}

// Words returns the name of a place with its direction, and the class of its packets if it has one.
func (p *Place) Words() string {
	s := p.Element
	switch {
	case p.Direction != "":
		s = strings.Replace(p.Direction, "->", " → ", 1)
	case p.Side == "source":
		s += ", packets from it"
	case p.Side == "destination":
		s += ", packets to it"
	}
	if p.Class != "" {
		s += ", class " + p.Class
	}
	return s
}

// Words returns what a section says where it lists nothing, or "".
func (s *Section) Words() string {
	switch {
	case s.Error != "":
		return "Unknown: " + s.Error + "."
	case s.Compared == 0 && len(s.Changes)+len(s.Missing) == 0:
		return "Unknown: nothing has values in both spans."
	case len(s.Changes)+len(s.Missing) == 0:
		return fmt.Sprintf("None of %d.", s.Compared)
	}
	return ""
}

// Words returns the verdict of a comparison in a sentence.
func (c *Comparison) Words() string {
	worse, unknown := 0, 0
	for i := range c.Sections {
		s := &c.Sections[i]
		worse += len(s.Changes) + s.ChangesLeftOut + len(s.Missing) + s.MissingLeftOut
		if s.Error != "" || s.Compared == 0 && len(s.Changes)+len(s.Missing) == 0 {
			unknown++
		}
	}
	text := "Nothing became worse by more than it varies."
	switch {
	case worse == 1:
		text = "One value became worse by more than it varies."
	case worse > 0:
		text = fmt.Sprintf("%d values became worse by more than they vary.", worse)
	case unknown == len(c.Sections):
		return "Nothing is known of both spans."
	}
	if unknown > 0 {
		text += fmt.Sprintf(" %d of %d comparisons are not known.", unknown, len(c.Sections))
	}
	return text
}

// String writes a span with its date.
func (s Span) String() string {
	const layout = "2006-01-02 15:04:05"
	end := layout
	if s.Start.Format(time.DateOnly) == s.End.Format(time.DateOnly) {
		end = time.TimeOnly
	}
	return s.Start.UTC().Format(layout) + " to " + s.End.UTC().Format(end) + " UTC"
}

// LeftOutText says how many entries of a list were left out, or "".
func LeftOutText(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("%d more are left out.", n)
}
