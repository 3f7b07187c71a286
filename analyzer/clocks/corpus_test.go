package clocks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/judge"
)

// TestCorpus compares the clocks that are named in the corpus, window by window.
func TestCorpus(t *testing.T) {
	var out strings.Builder
	for n := range worldtest.CorpusSize {
		_, windows := worldtest.CorpusCase(t, n)
		w := NewWatch()
		for i, obs := range windows {
			for _, s := range w.AddWindow(obs[0].Start, judge.FindingsOf(obs, judge.DefaultParameters()), nil) {
				fmt.Fprintf(&out, "%d.%d %s %v offset %v peers %d contrary %d explained %d dragged %v\n", n, i, s.NIC, s.Others, value(s.Offset), s.Peers, s.Contrary, len(s.Explained), s.Dragged)
			}
		}
	}
	worldtest.CompareCorpus(t, out.String())
}

func value(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}
