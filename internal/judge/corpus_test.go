package judge

import (
	"fmt"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
)

// TestCorpus compares the findings of the corpus, summed up by case and window.
func TestCorpus(t *testing.T) {
	var out strings.Builder
	for n := range worldtest.CorpusSize {
		_, windows := worldtest.CorpusCase(t, n)
		for i, obs := range windows[:2] {
			count := map[string]int64{}
			add := func(name string, yes bool, by int64) {
				if yes {
					count[name] += by
				}
			}
			for j, f := range FindingsOf(obs, DefaultParameters()) {
				at := int64(j + 1) // which finding it is counts as well
				add("healthy", f.Condition == Healthy, at)
				add("degraded", f.Condition == Degraded, at)
				add("delayed", f.Delayed, at)
				add("lossy", f.Lossy, at)
				add("hard", f.Hard, at)
				add("jittery", f.Jittery, at)
				add("marked", f.Marked, at)
				add("round", f.RoundTrip, at)
				add("clock", f.ClockSuspect, at)
				add("host", f.HostSuspect, at)
				add("shift", f.HasShift, f.Shift+3*f.Scale)
				add("sum", f.HasSum, f.Sum+3*f.SumScale)
				add("tail", f.HasTail, f.TailShift+3*f.TailScale)
			}
			fmt.Fprintf(&out, "%d.%d", n, i)
			for _, name := range []string{"healthy", "degraded", "delayed", "lossy", "hard", "jittery", "marked", "round", "clock", "host", "shift", "sum", "tail"} {
				if count[name] != 0 {
					fmt.Fprintf(&out, " %s %d", name, count[name])
				}
			}
			out.WriteString("\n")
		}
	}
	worldtest.CompareCorpus(t, out.String())
}
