package node

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "rewrite the golden files of testdata")

// expositions returns the node's own expositions, each with its reference.
func expositions(m *madeUp) []struct {
	path      string
	own       prometheus.Gatherer
	reference prometheus.Collector
} {
	metrics, nics, edges := m.gatherers()
	return []struct {
		path      string
		own       prometheus.Gatherer
		reference prometheus.Collector
	}{
		{"metrics", metrics, newReference(m.state(), metricsReference())},
		{"metrics-nics", nics, newReference(m.state(), nicsReference())},
		{"metrics-edges", edges, newReference(m.state(), edgesReference())},
	}
}

func gather(tb testing.TB, g prometheus.Gatherer) []*dto.MetricFamily {
	tb.Helper()
	families, err := g.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	return families
}

// TestExpositionIsWhatClientGolangWouldGive compares every message with the message of a registry that checks its
// input.
func TestExpositionIsWhatClientGolangWouldGive(t *testing.T) {
	for name, m := range map[string]*madeUp{"small": smallNode(), "filled": filledNode(), "fleet": fleetNode(16)} {
		if testing.Short() && name == "fleet" {
			continue // under the race detector; make test runs all without it
		}
		for _, e := range expositions(m) {
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(e.reference)
			want, got := gather(t, registry), gather(t, e.own)
			byName := map[string]*dto.MetricFamily{}
			for _, g := range got {
				byName[g.GetName()] = g
			}
			for _, w := range want {
				g := byName[w.GetName()]
				delete(byName, w.GetName())
				if g == nil {
					t.Errorf("%s, %s: no %s", name, e.path, w.GetName())
					continue
				}
				slices.SortFunc(g.Metric, func(a, b *dto.Metric) int { return strings.Compare(series(a), series(b)) })
				slices.SortFunc(w.Metric, func(a, b *dto.Metric) int { return strings.Compare(series(a), series(b)) })
				if w.Help = g.Help; !proto.Equal(w, g) {
					t.Errorf("%s, %s: %s differs:\n%s\nwant\n%s", name, e.path, w.GetName(), dump(g), dump(w))
				}
			}
			for left := range byName {
				t.Errorf("%s, %s: %s is not in the reference", name, e.path, left)
			}
		}
	}
}

func series(m *dto.Metric) string {
	var b strings.Builder
	for i, l := range m.GetLabel() {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s=%q", l.GetName(), l.GetValue())
	}
	return b.String()
}

// dump formats a family as a reader of the protobuf exposition sees it.
func dump(f *dto.MetricFamily) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\n", f.GetName(), f.GetType(), f.GetHelp())
	for _, m := range f.GetMetric() {
		fmt.Fprintf(&b, "  {%s}", series(m))
		switch {
		case m.Counter != nil:
			fmt.Fprintf(&b, " %v\n", m.GetCounter().GetValue())
		case m.Gauge != nil:
			fmt.Fprintf(&b, " %v\n", m.GetGauge().GetValue())
		default:
			h := m.GetHistogram()
			fmt.Fprintf(&b, " count %d sum %v schema %d zero %d within %v since %v\n", h.GetSampleCount(), h.GetSampleSum(),
				h.GetSchema(), h.GetZeroCount(), h.GetZeroThreshold(), h.GetCreatedTimestamp().AsTime().Format(time.RFC3339))
			for _, side := range []struct {
				name   string
				runs   []*dto.BucketSpan
				deltas []int64
			}{{"negative", h.GetNegativeSpan(), h.GetNegativeDelta()}, {"positive", h.GetPositiveSpan(), h.GetPositiveDelta()}} {
				if len(side.runs) == 0 {
					continue
				}
				fmt.Fprintf(&b, "    %s", side.name)
				for _, r := range side.runs {
					fmt.Fprintf(&b, " %+d:%d", r.GetOffset(), r.GetLength())
				}
				fmt.Fprintf(&b, " %v\n", side.deltas)
			}
		}
	}
	return b.String()
}

func encode(tb testing.TB, g prometheus.Gatherer, format expfmt.Format) []byte {
	tb.Helper()
	var b bytes.Buffer
	e := expfmt.NewEncoder(&b, format)
	for _, f := range gather(tb, g) {
		if err := e.Encode(f); err != nil {
			tb.Fatal(err)
		}
	}
	return b.Bytes()
}

func decode(tb testing.TB, b []byte) (families []*dto.MetricFamily) {
	tb.Helper()
	format := expfmt.NewFormat(expfmt.TypeProtoDelim)
	for dec := expfmt.NewDecoder(bytes.NewReader(b), format); ; {
		f := &dto.MetricFamily{}
		switch err := dec.Decode(f); err {
		case nil:
			families = append(families, f)
		case io.EOF:
			return families
		default:
			tb.Fatal(err)
		}
	}
}

// TestGolden compares the whole exposition, as text and as decoded from
// protobuf, with files. -update writes them.
func TestGolden(t *testing.T) {
	for _, e := range expositions(smallNode()) {
		var decoded strings.Builder
		for _, f := range decode(t, encode(t, e.own, expfmt.NewFormat(expfmt.TypeProtoDelim))) {
			decoded.WriteString(dump(f))
		}
		for file, got := range map[string]string{
			e.path + ".txt":      string(encode(t, e.own, expfmt.NewFormat(expfmt.TypeTextPlain))),
			e.path + ".protobuf": decoded.String(),
		} {
			file = filepath.Join("testdata", file)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s is out of date (go test -update, then read the difference); now:\n%s", file, got)
			}
		}
	}
}

// TestLint checks the expositions as "promtool check metrics" does.
func TestLint(t *testing.T) {
	for _, e := range expositions(smallNode()) {
		problems, err := testutil.GatherAndLint(e.own)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", e.path, p.Metric, p.Text)
		}
	}
}

// TestScrapeFitsTheBudget checks that a scrape of /metrics on a node of 8 NICs x 64 edges is smaller than 1 MB. Only
// protobuf carries native histograms. Text is longer and has none, and stays within the limit unless all peers are
// under leaves of their own.
func TestScrapeFitsTheBudget(t *testing.T) {
	for _, tc := range []struct {
		leaves int
		format expfmt.FormatType
	}{{16, expfmt.TypeProtoDelim}, {64, expfmt.TypeProtoDelim}, {16, expfmt.TypeTextPlain}} {
		if testing.Short() && tc.leaves > 16 {
			continue // under the race detector; make test runs all without it
		}
		g, _, _ := fleetNode(tc.leaves).gatherers()
		if n := len(encode(t, g, expfmt.NewFormat(tc.format))); n >= 1e6 {
			t.Errorf("%d leaves, format %v: %d bytes, want less than 1 MB", tc.leaves, tc.format, n)
		}
	}
}
