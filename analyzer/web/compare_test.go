package web

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/compare"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// worseComparison returns a comparison with an entry of each kind. A name and a warning are hostile.
func worseComparison() *compare.Comparison {
	at := time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)
	spread := func(v float64) compare.Spread { return compare.Spread{Low: 0.9 * v, Median: v, High: 1.1 * v} }
	return &compare.Comparison{From: compare.Span{Start: at.Add(-10 * time.Minute), End: at}, To: compare.Span{Start: noon().Add(-10 * time.Minute), End: noon()},
		Warnings: []string{"<script>alert(1)</script>"},
		Sections: []compare.Section{
			{Kind: compare.Links, Quantity: compare.AddedDelay, Unit: compare.Nanoseconds, Compared: 40,
				Changes: []compare.Change{{Place: compare.Place{Element: "leaf1:up1--spine1:dn1", Direction: "leaf1:up1->spine1:dn1"}, AtLeast: 1.8e6, Before: spread(0), After: spread(2e6)}}},
			{Kind: compare.Links, Quantity: compare.LossRatio, Unit: compare.Ratio, Compared: 40},
			{Kind: compare.Links, Quantity: compare.Coverage, Unit: compare.Flows, Error: "the server does not answer"},
			{Kind: compare.Leaves, Quantity: compare.MarkRatio, Unit: compare.Ratio},
			{Kind: compare.NICs, Quantity: compare.LossRatio, Unit: compare.Ratio, Compared: 16, ChangesLeftOut: 7,
				Changes: []compare.Change{{Place: compare.Place{Element: `<img src=x onerror=alert(1)>"'`, Side: "source", Class: "a"}, AtLeast: 0.24, Before: spread(0), After: spread(0.25)}}},
			{Kind: compare.NICs, Quantity: compare.Coverage, Unit: compare.ProbesPerSecond, Compared: 15, MissingLeftOut: 3,
				Missing: []compare.Place{{Element: "h2/eth1", Side: "destination"}}},
		}}
}

// compareHandler returns a handler whose comparisons have a result, and the requests that it gets.
func compareHandler(t *testing.T, result *compare.Comparison, err error) (*Handler, *[]compare.Request) {
	t.Helper()
	var asked []compare.Request
	g := loadDemo(t)
	h := handler(g, healthy(g))
	h.Matrix, h.Past = matrix.NewStore(), &matrix.Past{}
	h.Compare = func(_ context.Context, r compare.Request) (*compare.Comparison, error) {
		asked = append(asked, r)
		return result, err
	}
	return h, &asked
}

// TestComparePage: the page lists what became worse, what is missing and what is not known, and leads to the matrix of both moments.
func TestComparePage(t *testing.T) {
	h, asked := compareHandler(t, worseComparison(), nil)
	text, all := page(t, h, "/compare")
	if len(*asked) != 0 || len(with(all, "id", "comparison")) != 0 {
		t.Errorf("something was compared before a moment was chosen: %v", *asked)
	}
	contains(t, text, `aria-current="page">compare</a>`, `<a href="matrix">matrix</a>`)

	text, all = page(t, h, "/compare?from=2026-11-19T12:00:00Z&to=&span=10m&kind=nic")
	if r := (*asked)[0]; !r.To.Equal(noon()) || r.Span != 10*time.Minute || r.Kind != compare.NICs {
		t.Errorf("asked %+v", r)
	}
	contains(t, one(t, all, "id", "comparison").text, "13 values became worse", "2 of 6 comparisons are not known", "2026-11-19 11:50:00 to 12:00:00 UTC")
	contains(t, one(t, all, "data-change", "leaf1:up1 → spine1:dn1").text, "2 ms (1.8 ms to 2.2 ms)", "0 ns")
	contains(t, one(t, all, "data-change", `<img src=x onerror=alert(1)>"', packets from it, class a`).text, "25 %", "24 %")
	contains(t, one(t, all, "data-missing", "nic-coverage").text, "h2/eth1, packets to it", "3 more are left out.")
	contains(t, text, "None of 40.", "Unknown: the server does not answer.", "Unknown: nothing has values in both spans.", "7 more are left out.",
		`href="matrix?at=2026-11-19T12%3A00%3A00Z&amp;of=median"`, `href="matrix?at=2026-11-20T12%3A00%3A00Z&amp;of=median"`,
		`href="compare?from=2026-11-20T12%3A00%3A00Z&amp;kind=nic&amp;span=10m0s&amp;to=2026-11-19T12%3A00%3A00Z"`)
	if os.Getenv("GRAYLINK_SCREENSHOTS") != "" {
		const url = "/compare?from=24h&span=10m"
		shoot(t, h, "compare", url, false)
		shoot(t, h, "compare-dark", url, true)
	}
	if strings.Contains(text, "<script>alert") || strings.Contains(text, "<img") {
		t.Error("a name is markup")
	}
	if _, again := page(t, h, "/"); len(with(again, "href", "compare")) != 1 {
		t.Error("the first page has no link to the page of comparisons")
	}
	if _, again := page(t, h, "/matrix"); len(with(again, "href", "compare")) != 1 {
		t.Error("the page of the matrix has no link to the page of comparisons")
	}
}

// TestCompareRequests: wrong requests are refused with a reason, and so is everything where the past is not known.
func TestCompareRequests(t *testing.T) {
	h, _ := compareHandler(t, nil, errors.New("other comparisons are being made"))
	for url, want := range map[string]string{"/compare?from=then": "a past time", "/compare?from=1h&kind=<b>": "expected one of", "/compare?from=1h": "other comparisons"} {
		got := get(t, h, url)
		if got.Code != http.StatusBadRequest || !strings.Contains(got.Body.String(), want) || strings.Contains(got.Body.String(), "<b>") {
			t.Errorf("GET %s: status %d, want 400 with %q: %.300s", url, got.Code, want, got.Body)
		}
	}
	h.Compare = nil
	if got := get(t, h, "/compare"); got.Code != http.StatusNotFound {
		t.Errorf("without a past: status %d, want 404", got.Code)
	}
}

// TestCompareBySeries: the page compares by the series of a Prometheus.
func TestCompareBySeries(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 2)
	series := evidencetest.NewQuerier(t, `load 10s
		fabric:nic_owd_seconds:p50_2s{nic="h1/eth1", leaf="leaf1", side="destination", class="a", plane="a", timestamp="kernel"} 0.00001x60 0.00201x60
		fabric:nic_probe_sent:rate_2s{nic="h2/eth1", leaf="leaf1", side="source", class="a", plane="a"} 100x60 stale
		fabric:nic_probe_sent:rate_2s{nic="h1/eth1", leaf="leaf1", side="source", class="a", plane="a"} 100x120`)
	h := handler(g, healthy(g))
	h.Compare = compare.New(series, func() *fabric.Graph { return g }).Compare
	h.Now = func() time.Time { return time.Unix(1210, 0) }
	const url = "/compare?from=1970-01-01T00:10:00Z&to=1970-01-01T00:20:10Z"
	text, all := page(t, h, url)
	contains(t, one(t, all, "data-change", "h1/eth1, packets to it, class a").text, "10 µs", "2.01 ms")
	contains(t, one(t, all, "data-missing", "nic-coverage").text, "h2/eth1, packets from it, class a")
	contains(t, text, "Unknown: nothing has values in both spans.")
}
