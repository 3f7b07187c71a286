package triangulate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/worldtest"
)

// TestCorpus compares what is named in the corpus, what is not, and the delays of all links together.
func TestCorpus(t *testing.T) {
	var out strings.Builder
	for n := range worldtest.CorpusSize {
		g, windows := worldtest.CorpusCase(t, n)
		e := NewEngine(g)
		for i, obs := range windows[:2] {
			r := e.Run(judge.FindingsOf(obs, judge.DefaultParameters()), DefaultParameters())
			fmt.Fprintf(&out, "%d.%d degraded %d unexplained %d", n, i, len(r.Degraded), len(r.Unexplained))
			crossed := 0
			for _, flows := range r.Crossed {
				crossed += flows
			}
			added, unidentifiable := int64(0), 0
			for _, l := range r.Links {
				if added += l.AddedDelayNS; !l.Identifiable {
					unidentifiable++
				}
			}
			fmt.Fprintf(&out, " crossed %d added %d unidentifiable %d\n", crossed, added, unidentifiable)
			for _, s := range r.Suspects {
				fmt.Fprintf(&out, "  %s %s %s %s gain %.2f confidence %.3f delay %d tail %d loss %.4f marks %.3f explained %d contrary %d small %v equivalent", s.Kind, s.Name, s.Direction, s.Class,
					s.Gain, s.Confidence, s.AddedDelayNS, s.TailDelayNS, s.LossRatio, s.ECNRatio, len(s.Explained), len(s.Contrary), s.Small)
				for _, q := range s.Equivalent {
					fmt.Fprintf(&out, " %s", q.Name)
				}
				out.WriteString("\n")
			}
			for _, u := range r.Unnamed {
				fmt.Fprintf(&out, "  unnamed %s %s %s %.3f explained %d equivalent %d rivals %d\n", u.Kind, u.Name, u.Direction, u.Probability, len(u.Explained), len(u.Equivalent), len(u.Rivals))
			}
		}
	}
	worldtest.CompareCorpus(t, out.String())
}
