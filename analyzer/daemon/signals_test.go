package daemon

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/worldtest"
)

// twoProfiles is a Querier of a domain of in-band signals whose nodes have two profiles, and nothing else.
type twoProfiles struct{}

// QueryInstant implements evidence.Querier.
func (twoProfiles) QueryInstant(_ context.Context, query string, _ time.Time) ([]evidence.Sample, error) {
	if !strings.Contains(query, "graylink_csig_profile_info") {
		return nil, nil
	}
	return []evidence.Sample{{Labels: map[string]string{"hash": "aa", "instance": "h1"}, Value: 7}, {Labels: map[string]string{"hash": "bb", "instance": "h2"}, Value: 1}}, nil
}

// TestFindingOfSignalsIsPublished: what is wrong with in-band signals is a series, and is none before it is found.
func TestFindingOfSignalsIsPublished(t *testing.T) {
	l := analyzer.NewLoop(analyzer.LoopOptions{Graph: worldtest.NewClos(t, 2, 2, 1), DB: twoProfiles{}, Settings: evidence.DefaultSettings(), Signals: true})
	count := func() int {
		if err := l.RunCycle(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		return testutil.CollectAndCount(loopHealth{l}, "graylink_analyzer_csig_finding")
	}
	if n := count(); n != 0 {
		t.Errorf("%d findings before a check", n)
	}
	if err := l.CheckSignals(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1 {
		t.Errorf("%d findings after a check", n)
	}
	if l.SignalReader() == nil {
		t.Error("nothing reads bottlenecks")
	}
}
