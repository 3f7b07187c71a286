package evidence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/promqltest"

	"github.com/graylink/graylink/internal/fabric"
)

// past returns half an hour of one flow, a scrape every ten seconds: its delay is about
// 4 us until a moment, then about 64 us; open says from when to when a verdict was
// open, and watched until when an analyzer was there.
func past(t *testing.T, slow int, open [2]int, watched int) (Querier, Settings) {
	t.Helper()
	const n = 180 // scrapes
	at := func(second int) int { return min(n, second/10) }
	hist := func(count, offset, times int) string {
		return fmt.Sprintf("{{schema:4 count:%d sum:1 offset:%d buckets:[%d]}}+{{schema:4 count:1000 sum:0.004 offset:%d buckets:[1000]}}x%d", count, offset, count, offset, times)
	}
	var b strings.Builder
	b.WriteString("load 10s\n")
	// Two series that follow each other: what one flow did before and after.
	name := `fabric_probe_owd_seconds{` + flowName + `, direction="forward", timestamp="kernel"`
	fmt.Fprintf(&b, "  %s} %s\n", name, hist(0, -286, max(0, at(slow)-1)))
	if at(slow) < n {
		fmt.Fprintf(&b, "  %s, instance=\"slow\"} _x%d %s\n", name, at(slow), hist(0, -222, n-at(slow)))
	}
	fmt.Fprintf(&b, "  fabric_probe_sent_total{%s, direction=\"forward\"} 0+1000x%d\n", flowName, n)
	if watched > 0 {
		fmt.Fprintf(&b, "  fabric_verdict_state{scope=\"fabric\", state=\"suspect\"}")
		for i := range at(watched) {
			v := 0
			if i >= at(open[0]) && i < at(open[1]) {
				v = 1
			}
			fmt.Fprintf(&b, " %d", v)
		}
		b.WriteString(" stale\n")
	}
	db := promqltest.LoadedStorage(t, b.String())
	t.Cleanup(func() { db.Close() })
	s := SettingsFor(10 * time.Second)
	s.Past = Past{Span: 5 * time.Minute, Windows: 10, Search: 30 * time.Minute}
	return loaded{promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery), db}, s
}

var flow = fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}

func recalled(t *testing.T, db Querier, s Settings, second int64) (h History, fast, slow int) {
	t.Helper()
	h, err := RecallHistory(t.Context(), db, s, time.Unix(second, 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range h.Flows[flow].P50 {
		if v < 10_000 {
			fast++
		} else {
			slow++
		}
	}
	return h, fast, slow
}

const never = 1 << 20

func TestRule7OnlyCalmTimesTeach(t *testing.T) {
	for name, tt := range map[string]struct {
		slow, from, to, watched int
		until                   int64 // the newest that may teach
	}{
		"nothing happened":                        {never, never, never, 1800, 1770},
		"the incident lasts longer than the span": {900, 910, never, 1800, 880},
		"the analyzer died in it":                 {900, 910, never, 1000, 880},
		"it began while no analyzer was there":    {900, never, never, 800, 780},
	} {
		db, s := past(t, tt.slow, [2]int{tt.from, tt.to}, tt.watched)
		h, fast, slow := recalled(t, db, s, 1800)
		if fast != s.Past.Windows || slow != 0 || len(h.Flows[flow].P99) != fast || h.AlwaysSuspect {
			t.Errorf("%s: %d windows from before and %d from within it", name, fast, slow)
		}
		if got := h.Until.Unix(); got > tt.until || got < tt.until-60 {
			t.Errorf("%s: until second %d, want %d or just before", name, got, tt.until)
		}
		if h.Expected != 1 {
			t.Errorf("%s: %d flows are expected, want 1", name, h.Expected)
		}
	}
	// What came and went within the span is left out of it.
	db, s := past(t, never, [2]int{1600, 1680}, 1800)
	if h, fast, _ := recalled(t, db, s, 1800); fast >= s.Past.Windows || fast < s.Past.Windows/2 || h.Until.Unix() < 1700 {
		t.Errorf("%d windows until %d, want those around the incident left out", fast, h.Until.Unix())
	}
}

func TestRule8NoAnalyzerRan(t *testing.T) {
	db, s := past(t, 1700, [2]int{never, never}, 0)
	h, fast, slow := recalled(t, db, s, 1800)
	if fast <= slow || slow == 0 || h.AlwaysSuspect {
		t.Errorf("%d windows from before and %d from within", fast, slow)
	}
	p := h.Flows[flow].P50
	if !slices.IsSorted(p) {
		t.Errorf("the windows %v are not the oldest first", p)
	}
}

func TestRule9SuspectAllTheTime(t *testing.T) {
	db, s := past(t, 10, [2]int{0, never}, 1800)
	if h, fast, slow := recalled(t, db, s, 1800); fast+slow != 0 || !h.AlwaysSuspect {
		t.Errorf("%d windows taught", fast+slow)
	}
}

func TestRule10AwayOrSlow(t *testing.T) {
	db, s := past(t, never, [2]int{never, never}, 1800)
	away := querier(func(context.Context, string, time.Time) ([]Sample, error) { return nil, errors.New("away") })
	if _, err := RecallHistory(t.Context(), away, s, time.Unix(1800, 0)); err == nil {
		t.Error("no error while the server is away")
	}
	n := 0
	slow := querier(func(ctx context.Context, q string, at time.Time) ([]Sample, error) {
		if n++; n > 20 {
			return nil, context.DeadlineExceeded
		}
		return db.QueryInstant(ctx, q, at)
	})
	if h, fast, _ := recalled(t, slow, s, 1800); fast != 4 || h.Expected != 1 {
		t.Errorf("%d windows, want the four that were answered", fast)
	}
}

// TestRecallHour reads the first half of an hour, which is what there is. The flow is slow from the 14th minute on.
func TestRecallHour(t *testing.T) {
	db, s := past(t, 840, [2]int{never, never}, 0)
	h, err := RecallHour(t.Context(), db, s, time.Unix(0, 0), 20*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	during, before := h.Flows[flow], h.Before[flow]
	if len(during.P50) != 3 || len(during.P99) != 3 || during.P50[0] > 10_000 || during.P50[1] < 10_000 || during.P50[2] < 10_000 || during.Timestamp != "kernel" {
		t.Errorf("in the hour: %+v", during)
	}
	if len(before.P50) != 1 || before.P50[0] > 10_000 {
		t.Errorf("before: %+v", before)
	}
	// Without the window before, the others are not read.
	n := 0
	empty := querier(func(context.Context, string, time.Time) ([]Sample, error) { n++; return nil, nil })
	if h, err := RecallHour(t.Context(), empty, s, time.Unix(0, 0), 0); err != nil || len(h.Flows) != 0 || n != 3 {
		t.Errorf("%d queries, %+v, error %v", n, h, err)
	}
	away := querier(func(context.Context, string, time.Time) ([]Sample, error) { return nil, errors.New("away") })
	if _, err := RecallHour(t.Context(), away, s, time.Unix(0, 0), 0); err == nil {
		t.Error("no error while the server is away")
	}
	broken := querier(func(ctx context.Context, q string, at time.Time) ([]Sample, error) {
		if n++; n > 10 {
			return nil, errors.New("away")
		}
		return db.QueryInstant(ctx, q, at)
	})
	if _, err := RecallHour(t.Context(), broken, s, time.Unix(0, 0), 20*time.Minute); err == nil {
		t.Error("no error although a part is missing")
	}
}
