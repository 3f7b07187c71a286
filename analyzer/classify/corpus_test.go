package classify

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/analyzer/worldtest"
)

// TestCorpus compares the verdicts on the corpus, with their words.
func TestCorpus(t *testing.T) {
	var out strings.Builder
	for n := range worldtest.CorpusSize {
		g, windows := worldtest.CorpusCase(t, n)
		e, history := triangulate.NewEngine(g), NewHistory(2*time.Second)
		for i, obs := range windows {
			findings := judge.FindingsOf(obs, judge.DefaultParameters())
			history.AddMoment(findings)
			scene := &Scene{Graph: g, Findings: findings, History: history, First: obs[0].Start}
			verdicts := scene.VerdictsFor(e.Run(findings, triangulate.DefaultParameters()).Suspects)
			for _, v := range append(verdicts, scene.StarvedHostVerdicts(verdicts)...) {
				fmt.Fprintf(&out, "%d.%d %s %s %s %s %s tier %d class %q %+v %v %v %+v\n    %s\n    %s\n", n, i, v.Kind, v.Element.ID, v.Direction, v.Scenario, v.Severity, v.Tier, v.Class, v.Evidence, v.Causes,
					v.Equivalent, v.BlastRadius, v.Summary, v.Action)
			}
		}
	}
	worldtest.CompareCorpus(t, out.String())
}
