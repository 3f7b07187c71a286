package compare

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/testneeds"
)

// The tests compare two spans of ten minutes, an hour apart. Series have a value every ten seconds.
const (
	step, span  = 10 * time.Second, 10 * time.Minute
	perSpan     = int(span / step)
	betweenThem = int(time.Hour/step) - perSpan
)

// moments returns the ends of the spans in the series.
func moments() (from, to time.Time) {
	from = time.Unix(0, 0).Add(time.Duration(perSpan) * step).UTC()
	return from, from.Add(time.Hour)
}

// history makes the series of both spans.
type history struct {
	rng  *rand.Rand
	text strings.Builder
	// change changes a value of the later span. Nil means that nothing changes. A result of false means that there is no value.
	change func(series string, v float64) (float64, bool)
}

// add adds a series with a value for each step.
func (h *history) add(series string, value func() float64) {
	h.text.WriteString("\n\t" + series)
	for later := range 2 {
		for range perSpan + 1 {
			v, ok := value(), true
			if later == 1 && h.change != nil {
				v, ok = h.change(series, v)
			}
			if ok {
				fmt.Fprintf(&h.text, " %g", v)
			} else {
				h.text.WriteString(" stale")
			}
		}
		if later == 0 {
			fmt.Fprintf(&h.text, " stale _x%d", betweenThem-2)
		}
	}
}

// addFabric adds what rules and an analyzer publish of a fabric, with noise: delays that vary by a quarter and now and then by much
// more, rare losses and marks, and probes that are sent a little unevenly.
func (h *history) addFabric(g *fabric.Graph) {
	const perSecond = 100
	share := func(p float64) func() float64 {
		return func() (n float64) {
			for range 2 * perSecond {
				if h.rng.Float64() < p {
					n++
				}
			}
			return n / 2
		}
	}
	sometimes := func(usual, spread, jump float64) func() float64 {
		return func() float64 {
			v := usual * (1 + spread*h.rng.NormFloat64())
			if h.rng.Float64() < 0.05 {
				v *= jump
			}
			return v
		}
	}
	for _, node := range g.Topo.Nodes {
		for i := range node.NICs {
			nic := node.NICs[i].ID()
			leaf, _ := g.LeafOf(nic)
			for _, side := range []string{"source", "destination"} {
				labels := fmt.Sprintf(`nic=%q, leaf=%q, side=%q, class="a", plane="a"`, nic, leaf, side)
				h.add(`fabric:nic_owd_seconds:p50_2s{`+labels+`, timestamp="kernel"}`, sometimes(1e-5*(1+h.rng.Float64()), 0.25, 3))
				h.add(`fabric:nic_owd_seconds:p99_2s{`+labels+`, timestamp="kernel"}`, sometimes(5e-5, 0.4, 10))
				h.add(`fabric:nic_probe_sent:rate_2s{`+labels+`}`, sometimes(perSecond, 0.01, 1))
				h.add(`fabric:nic_probe_lost:rate_2s{`+labels+`}`, share(2e-4))
				h.add(`fabric:nic_probe_ecn_marked:rate_2s{`+labels+`}`, share(0.02))
			}
		}
	}
	h.add(`graylink_analyzer_last_cycle_timestamp_seconds{job="graylink-analyzer", instance="a"}`, func() float64 { return 1 })
	for _, d := range g.LinkDirections() {
		labels := fmt.Sprintf(`link=%q, from=%q, to=%q, job="graylink-analyzer", instance="a"`, d.LinkID(), d.From, d.To)
		h.add(`fabric_link_probe_edges{`+labels+`}`, func() float64 { return 8 + float64(h.rng.IntN(3)) })
		h.add(`fabric_link_probe_edges{`+strings.ReplaceAll(labels, "analyzer", "coordinator")+`}`, func() float64 { return 30 })
		h.add(`fabric_link_added_delay_seconds{`+labels+`}`, func() float64 { return float64(h.rng.IntN(20)/19) * 2e-5 })
	}
}

func newHistory(seed uint64, change func(string, float64) (float64, bool)) *history {
	h := &history{rng: rand.New(rand.NewPCG(seed, 1)), change: change}
	h.text.WriteString("load 10s")
	return h
}

// compareHistory compares the spans of a history. It returns what is listed, as "kind quantity element side".
func compareHistory(t *testing.T, g *fabric.Graph, h *history, r Request) (*Comparison, []string) {
	t.Helper()
	c := New(evidencetest.NewQuerier(t, h.text.String()), func() *fabric.Graph { return g })
	r.From, r.To = moments()
	r.Span, r.Limit = span, cmp.Or(r.Limit, defaultLimit)
	got, err := c.Compare(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, s := range got.Sections {
		if s.Error != "" {
			t.Fatalf("%s of %s: %s", s.Quantity, s.Kind, s.Error)
		}
		name := func(p Place, what string) string {
			return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", s.Kind, what, cmp.Or(p.Direction, p.Element), p.Side))
		}
		for _, ch := range s.Changes {
			list = append(list, name(ch.Place, string(s.Quantity)))
		}
		for _, p := range s.Missing {
			list = append(list, name(p, "no "+string(s.Quantity)))
		}
	}
	slices.Sort(list)
	return got, list
}

// TestChangesAreNamed makes known changes in the later span of series with noise. Each change is named, and nothing else is.
func TestChangesAreNamed(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 3)
	const link, direction = `link="leaf1:up1--spine1:dn1", from="leaf1:up1"`, "leaf1:up1->spine1:dn1"
	has := func(series string, parts ...string) bool {
		return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(series, p) })
	}
	for _, tt := range []struct {
		name   string
		change func(series string, v float64) (float64, bool)
		more   string // series besides those of a healthy fabric
		want   []string
	}{
		{"nothing", nil, "", []string{}},
		{"a NIC receives late", func(s string, v float64) (float64, bool) {
			if has(s, "p50", `nic="h1/eth1"`, "destination") {
				v += 5e-5
			}
			return v, true
		}, "", []string{"nic median_delay h1/eth1 destination"}},
		{"a tail", func(s string, v float64) (float64, bool) {
			if has(s, "p99", `nic="h1/eth1"`, "source") {
				v += 5e-4
			}
			return v, true
		}, "", []string{"nic p99_delay h1/eth1 source"}},
		{"a leaf sends late", func(s string, v float64) (float64, bool) {
			if has(s, "p50", `leaf="leaf2"`, "source") {
				v += 1e-4
			}
			return v, true
		}, "", []string{"leaf median_delay leaf2 source", "nic median_delay h4/eth1 source", "nic median_delay h5/eth1 source", "nic median_delay h6/eth1 source"}},
		{"a NIC loses, and another one has marks", func(s string, v float64) (float64, bool) {
			switch {
			case has(s, "lost", `nic="h7/eth1"`, "source"):
				v += 2
			case has(s, "ecn", `nic="h8/eth1"`, "destination"):
				v += 30
			}
			return v, true
		}, "", []string{"leaf loss leaf3 source", "leaf marks leaf3 destination", "nic loss h7/eth1 source", "nic marks h8/eth1 destination"}},
		{"an agent is away", func(s string, v float64) (float64, bool) { return v, !has(s, `nic="h2/eth1"`) }, "",
			[]string{"leaf coverage leaf1 destination", "leaf coverage leaf1 source", "nic no coverage h2/eth1 destination", "nic no coverage h2/eth1 source"}},
		{"an agent is away most of the time", mostlyAway(`nic="h2/eth1"`), "", []string{"leaf coverage leaf1 destination", "leaf coverage leaf1 source",
			"nic no coverage h2/eth1 destination", "nic no coverage h2/eth1 source"}},
		{"a clock is lost", func(s string, v float64) (float64, bool) { return v, !has(s, "owd", `nic="h2/eth1"`) }, "",
			[]string{"nic no median_delay h2/eth1 destination", "nic no median_delay h2/eth1 source"}},
		{"a delay is not a number", func(s string, v float64) (float64, bool) {
			if has(s, "p50", `nic="h2/eth1"`, "source") {
				v -= 2 * v * v / (v - v)
			}
			return v, true
		}, "", []string{"nic no median_delay h2/eth1 source"}},
		{"a link adds delay, and another one has fewer flows", func(s string, v float64) (float64, bool) {
			switch {
			case has(s, "added", link):
				v += 1e-3
			case has(s, "edges", `from="spine2:dn2"`):
				v = 0
			}
			return v, true
		}, "", []string{"link added_delay " + direction, "link coverage spine2:dn2->leaf2:up2"}},
		{"no flow crosses a link as the analyzer sees it", func(s string, v float64) (float64, bool) {
			return v, !has(s, "analyzer", `from="spine2:dn2"`)
		}, "", []string{"link no coverage spine2:dn2->leaf2:up2"}},
		{"a direction of a link loses by a verdict", func(s string, v float64) (float64, bool) { return v, true },
			suspect("leaf1:up1--spine1:dn1", `from="leaf1:up1", to="spine1:dn1", `, 0.25), []string{"link loss " + direction}},
		{"both directions lose by a verdict", func(s string, v float64) (float64, bool) { return v, true },
			suspect("leaf1:up1--spine1:dn1", "", 0.25), []string{"link loss " + direction, "link loss spine1:dn1->leaf1:up1"}},
		{"a link that the topology does not have", nil, suspect("leaf9:up1--spine1:dn9", `from="leaf9:up1", to="spine1:dn9", `, 0.25), []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHistory(7, tt.change)
			h.addFabric(g)
			h.text.WriteString(tt.more)
			if _, got := compareHistory(t, g, h, Request{}); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// mostlyAway returns a change by which the series of an element have values in the first minute of the later span only.
func mostlyAway(element string) func(string, float64) (float64, bool) {
	seen := map[string]int{}
	return func(series string, v float64) (float64, bool) {
		if !strings.Contains(series, element) {
			return v, true
		}
		seen[series]++
		return v, seen[series] <= perSpan/10
	}
}

// suspect returns the series of an open verdict in the later span.
func suspect(link, direction string, loss float64) string {
	before, during := fmt.Sprintf("_x%d", perSpan+betweenThem), fmt.Sprintf("x%d", perSpan)
	labels := fmt.Sprintf(`element=%q, kind="link", job="graylink-analyzer", instance="a"`, link)
	return fmt.Sprintf("\n\tfabric_suspect_loss_ratio{%s} %s %g%s\n\tfabric_suspect_info{%s, %sscenario=\"corridor\"} %s 1%s", labels, before, loss, during, labels, direction, before, during)
}

// TestNoiseIsNotListed: of noise alone nothing is listed, in fifty histories.
func TestNoiseIsNotListed(t *testing.T) {
	g := worldtest.NewClos(t, 2, 3, 2)
	for seed := range uint64(50) {
		h := newHistory(seed, nil)
		h.addFabric(g)
		if c, got := compareHistory(t, g, h, Request{}); len(got) > 0 || c.Worse() || c.Unknown() {
			t.Errorf("seed %d: %q", seed, got)
		}
	}
}

// TestValuesOfChange compares the values of a change, in the unit of the section, with those of the series.
func TestValuesOfChange(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 3)
	h := newHistory(1, nil)
	labels := `{nic="h1/eth1", leaf="leaf1", side="source", class="a", plane="a"}`
	ramp := func(series, before, after string) {
		fmt.Fprintf(&h.text, "\n\t%s%s %s stale _x%d %s", series, labels, before, betweenThem-2, after)
	}
	ramp("fabric:nic_owd_seconds:p50_2s", "0.001x60", "0.002+0.0001x60")
	ramp("fabric:nic_probe_sent:rate_2s", "100x60", "100x60")
	ramp("fabric:nic_probe_lost:rate_2s", "0x60", "25x60")
	c, got := compareHistory(t, g, h, Request{Kind: NICs})
	if want := []string{"nic loss h1/eth1 source", "nic median_delay h1/eth1 source"}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if got < 0.98*want || got > 1.02*want {
			t.Errorf("%s: %g, want %g", what, got, want)
		}
	}
	delay, loss := c.Sections[0].Changes[0], c.Sections[2].Changes[0]
	near("the median before", delay.Before.Median, 1e6)
	// The 19 windows are 30 s apart: the first one after a minute, at 2.6 ms, and the last one at the end, at 8 ms.
	near("the median after", delay.After.Median, 5.3e6)
	near("the low end", delay.After.Low, 3.14e6)
	near("the high end", delay.After.High, 7.46e6)
	near("the size", delay.AtLeast, delay.After.Low-1e6)
	near("the loss", loss.AtLeast, 0.25)
	if loss.Before != (Spread{}) || c.Sections[0].Unit != Nanoseconds || c.Sections[2].Unit != Ratio || c.Sections[0].Compared != 1 {
		t.Errorf("got %+v", c.Sections)
	}
}

// TestExchangedMoments: with the later span first, what became better is listed.
func TestExchangedMoments(t *testing.T) {
	g := worldtest.NewClos(t, 2, 3, 2)
	h := newHistory(3, func(s string, v float64) (float64, bool) {
		if strings.Contains(s, "p50") && strings.Contains(s, `nic="h1/eth1", leaf="leaf1", side="source"`) {
			v /= 20
		}
		return v, true
	})
	h.addFabric(g)
	c := New(evidencetest.NewQuerier(t, h.text.String()), func() *fabric.Graph { return g })
	r := Request{Span: span, Limit: defaultLimit, Kind: NICs}
	r.To, r.From = moments()
	got, err := c.Compare(t.Context(), r)
	if err != nil || len(got.Sections[0].Changes) != 1 || got.Sections[0].Changes[0].Element != "h1/eth1" || got.Sections[0].Compared != 12 {
		t.Errorf("%v: %+v", err, got)
	}
}

// TestListsAreBounded: the largest changes are listed, and the others are counted.
func TestListsAreBounded(t *testing.T) {
	g := worldtest.NewClos(t, 2, 4, 3)
	h := newHistory(1, func(s string, v float64) (float64, bool) {
		var n float64
		if _, rest, ok := strings.Cut(s, `nic="h`); ok && strings.Contains(s, "p50") {
			fmt.Sscanf(rest, "%f/", &n)
		}
		return v + n*1e-3, !strings.Contains(s, "sent")
	})
	h.addFabric(g)
	c, got := compareHistory(t, g, h, Request{Kind: NICs, Limit: 2})
	want := []string{"nic median_delay h12/eth1 destination", "nic median_delay h12/eth1 source", "nic no coverage h1/eth1 destination", "nic no coverage h1/eth1 source"}
	if s := c.Sections[0]; !slices.Equal(got[:2], want[:2]) || s.ChangesLeftOut != 22 || s.Compared != 24 {
		t.Errorf("got %q, %d left out of %d", got, s.ChangesLeftOut, s.Compared)
	}
	if s := c.Sections[4]; len(s.Missing) != 2 || s.MissingLeftOut != 22 || s.Compared != 0 {
		t.Errorf("missing: %v, %d left out of %d", s.Missing, s.MissingLeftOut, s.Compared)
	}
}

// TestEmptyHistoryIsUnknown: where nothing is known, nothing is called unchanged.
func TestEmptyHistoryIsUnknown(t *testing.T) {
	c, got := compareHistory(t, worldtest.NewClos(t, 2, 4, 3), newHistory(1, nil), Request{})
	if len(got) > 0 || !c.Unknown() || len(c.Sections) != 13 {
		t.Errorf("got %+v", c)
	}
}

// TestExpressionsOfOldestPrometheus has promtool of the oldest Prometheus that is supported read all expressions.
func TestExpressionsOfOldestPrometheus(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		testneeds.Missing(t, "promtool (Debian package prometheus)")
	}
	from, to := moments()
	rules := []map[string]string{}
	for _, r := range []Request{{From: from, To: to, Span: span}, {From: to, To: from, Span: span}} {
		b := builder{graph: worldtest.NewTwoPlanes(t), request: r}
		for _, m := range measures() {
			q := b.newQueries(&m)
			details := q.details([]Place{{Element: "a/b"}, {Element: `c"d`}})
			for _, text := range []string{q.changed(), q.missing(), q.compared(), details[0], details[1]} {
				rules = append(rules, map[string]string{"record": "a:b:c", "expr": text})
			}
		}
	}
	text, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "all", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "rules", "--lint=none", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %.2000s", err, out)
	}
}

// failing is a server with a problem.
type failing struct {
	err   error
	asked chan string
}

func (f failing) QueryInstant(ctx context.Context, query string, _ time.Time) ([]evidence.Sample, error) {
	if f.asked != nil {
		f.asked <- query
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, f.err
}

// TestProblemsOfServer: a section that cannot be read says so, warnings are passed on, and who waits for too long is refused.
func TestProblemsOfServer(t *testing.T) {
	graph := worldtest.NewClos(t, 2, 4, 3)
	of := func() *fabric.Graph { return graph }
	from, to := moments()
	r := Request{From: from, To: to, Span: span, Limit: 5, Kind: Leaves}
	c, err := New(failing{err: errors.New("connection refused")}, of).Compare(t.Context(), r)
	if err != nil || !c.Unknown() || c.Worse() || c.Sections[0].Error != "cannot read the past: connection refused" {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = New(failing{err: &evidence.PartialError{Warnings: []string{"a store is away"}}}, of).Compare(t.Context(), r)
	if err != nil || !slices.Equal(c.Warnings, []string{"a store is away"}) {
		t.Errorf("%+v, %v", c, err)
	}
	slow := New(failing{asked: make(chan string)}, of)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = slow.Compare(ctx, r)
	}()
	<-slow.db.(failing).asked
	second, stop := context.WithCancel(t.Context())
	stop()
	if _, err := slow.Compare(second, r); err == nil || !strings.Contains(err.Error(), "other comparisons") {
		t.Errorf("a second one beside: %v", err)
	}
	cancel()
	for {
		select {
		case <-slow.db.(failing).asked:
			continue
		case <-ended:
		}
		break
	}
}

// TestComparisonsAreKept: those who ask for the same get the same result, until the graph changes or others were asked for. Errors are not kept.
func TestComparisonsAreKept(t *testing.T) {
	graph := worldtest.NewClos(t, 2, 4, 3)
	from, to := moments()
	c := New(failing{}, func() *fabric.Graph { return graph })
	compare := func(limit int) *Comparison {
		got, err := c.Compare(t.Context(), Request{From: from, To: to, Span: span, Limit: limit})
		if err != nil {
			t.Error(err)
		}
		return got
	}
	first := compare(1)
	var all sync.WaitGroup
	for i := range 2 * keptComparisons {
		all.Go(func() {
			if limit := 1 + i%keptComparisons; limit == 1 && compare(limit) != first || limit > 1 && compare(limit) == first {
				t.Errorf("limit %d: not the comparison that was asked for", limit)
			}
		})
	}
	all.Wait()
	compare(keptComparisons + 1)
	if len(c.kept) != keptComparisons || compare(1) == first {
		t.Errorf("%d comparisons are kept, want the last %d", len(c.kept), keptComparisons)
	}
	before := compare(2)
	graph = worldtest.NewClos(t, 2, 4, 3)
	if compare(2) == before {
		t.Error("a comparison by another graph is shown")
	}
	c.db = failing{err: errors.New("connection refused")}
	if unread := compare(99); compare(99) == unread {
		t.Error("a comparison with errors is kept")
	}
}

// TestParseRequest compares requests with their parameters.
func TestParseRequest(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		query string
		want  Request
		err   string
	}{
		{"from=24h", Request{From: now.Add(-24 * time.Hour), To: now, Span: defaultSpan, Limit: defaultLimit}, ""},
		{"from=2026-11-28T10:00:00Z&to=1h&span=1h&kind=nic&limit=200", Request{From: now.Add(-26 * time.Hour), To: now.Add(-time.Hour), Span: time.Hour, Kind: NICs, Limit: 200}, ""},
		{"from=1h&to=2h", Request{From: now.Add(-time.Hour), To: now.Add(-2 * time.Hour), Span: defaultSpan, Limit: defaultLimit}, ""},
		{"", Request{}, `from: ""; expected a past time`},
		{"from=2027-01-01T00:00:00Z", Request{}, "from: "},
		{"from=1h&to=then", Request{}, `to: "then"; expected a past time`},
		{"from=1h&span=1s", Request{}, "span: "},
		{"from=1h&span=2h", Request{}, "overlap"},
		{"from=48h&span=25h", Request{}, "span: "},
		{"from=1h&limit=0", Request{}, "limit: "},
		{"from=1h&limit=201", Request{}, "limit: "},
		{"from=1h&kind=spine", Request{}, "kind: "},
	} {
		v, err := url.ParseQuery(tt.query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseRequest(v, now)
		if tt.err == "" && (err != nil || got != tt.want) || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: %+v, %v; want %+v %s", tt.query, got, err, tt.want, tt.err)
		}
	}
}
