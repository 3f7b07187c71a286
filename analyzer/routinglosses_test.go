package analyzer

import (
	"math"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
)

// TestLossCounts reads by Prometheus' engine what flows lost. The scrapes of one come at irregular times, and counters of another begin again.
func TestLossCounts(t *testing.T) {
	db := evidencetest.NewQuerier(t, `load 1s
		fabric_probe_sent_total{src="h1/eth1",dst="h3/eth1",flow="0",class="roce",direction="forward"} 1000+100x110
		fabric_probe_sent_total{src="h1/eth1",dst="h3/eth1",flow="0",class="roce",direction="reverse"} 990+100x110
		fabric_probe_sent_total{src="h1/eth1",dst="h3/eth1",flow="0",class="csig",direction="forward"} 7+1x110
		fabric_probe_acked_total{src="h1/eth1",dst="h3/eth1",flow="0",class="roce"} 999+100x79 8899 8899 8899 8962+100x27
		fabric_probe_late_total{src="h1/eth1",dst="h3/eth1",flow="0",class="roce"} 0x83 2x27
		fabric_probe_sent_total{src="h1/eth1",dst="h3/eth1",flow="1",class="roce",direction="forward"} _x76 50+50x34
		fabric_probe_acked_total{src="h1/eth1",dst="h3/eth1",flow="1",class="roce"} _x76 50+50x5 300 300 375+50x26
		fabric_probe_sent_total{src="h1/eth1",dst="h4/eth1",flow="0",class="roce",direction="forward"} 1000+100x80 0+100x30
		fabric_probe_acked_total{src="h1/eth1",dst="h4/eth1",flow="0",class="roce"} 1000+100x80 0+100x30
	`)
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var spans []routing.LossSpan
	for _, f := range []fabric.Flow{{Src: "h1/eth1", Dst: "h3/eth1"}, {Src: "h1/eth1", Dst: "h3/eth1", Number: 1}, {Src: "h1/eth1", Dst: "h4/eth1"}, {Src: "h2/eth1", Dst: "h4/eth1"}} {
		spans = append(spans, routing.LossSpan{Flow: f, From: at(78), To: at(90)})
	}
	got, err := countLosses(t.Context(), db, spans)
	if err != nil {
		t.Fatal(err)
	}
	// Of the first, 337 probes less 2 late answers; of the second, 75 while it is counted for 12 s.
	want := []routing.LossCount{{LossSpan: spans[0], Unanswered: 335, PerSecond: 100}, {LossSpan: spans[1], Unanswered: 75, PerSecond: 50}}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i].LossSpan != want[i].LossSpan || math.Abs(got[i].Unanswered-want[i].Unanswered) > 1 || math.Abs(got[i].PerSecond-want[i].PerSecond) > 0.5 {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	for s := range 2 * mostLossSpans {
		spans = append(spans, routing.LossSpan{Flow: spans[0].Flow, From: at(60 + s), To: at(100)})
	}
	if got, err = countLosses(t.Context(), db, spans); err != nil || len(got) > 2+mostLossSpans {
		t.Errorf("%d counts, %v", len(got), err)
	}
}
