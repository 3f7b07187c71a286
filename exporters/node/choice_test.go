package node

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// countSeries returns the number of series of a scrape.
func (e *Exporter) countSeries(t *testing.T, path, query string, paths map[string]http.Handler) (n int) {
	t.Helper()
	w := httptest.NewRecorder()
	paths[path].ServeHTTP(w, httptest.NewRequest(http.MethodGet, path+"?"+query, nil))
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

// TestChosenCollectors checks which families a scrape has that chooses collectors by name, and what is refused.
func TestChosenCollectors(t *testing.T) {
	own := prometheus.NewRegistry()
	own.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_of_the_process"}))
	e := &Exporter{from: *smallNode().sources(), runs: newRuns(), registry: own, log: slog.New(slog.DiscardHandler)}
	paths := map[string]http.Handler{
		"/metrics":       e.serveScrapes(metricsConstructors(), true, e.registry),
		"/metrics/nics":  e.serveScrapes(nicsConstructors(), false, nil),
		"/metrics/edges": e.serveScrapes(edgesConstructors(), false, nil),
	}
	scrape := func(path, query string) (families []string, code int, text string) {
		w := httptest.NewRecorder()
		paths[path].ServeHTTP(w, httptest.NewRequest(http.MethodGet, path+"?"+query, nil))
		body, _ := io.ReadAll(w.Result().Body)
		if w.Code != http.StatusOK {
			return nil, w.Code, string(body)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		found, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
		if err != nil {
			t.Fatalf("%s?%s: %v", path, query, err)
		}
		for name := range found {
			families = append(families, name)
		}
		slices.Sort(families)
		return families, w.Code, ""
	}
	all := func(path string) []string { families, _, _ := scrape(path, ""); return families }
	without := func(families []string, prefix string) []string {
		return slices.DeleteFunc(slices.Clone(families), func(name string) bool { return strings.HasPrefix(name, prefix) })
	}

	sums := []string{"fabric_leaf_pair_owd_seconds", "fabric_leaf_pair_probe_ecn_marked_total", "fabric_leaf_pair_probe_lost_total", "fabric_leaf_pair_probe_sent_total",
		"fabric_nic_owd_seconds", "fabric_nic_probe_ecn_marked_total", "fabric_nic_probe_lost_total", "fabric_nic_probe_sent_total"}
	for path := range paths { // collectors of any path
		if got, _, _ := scrape(path, "collect[]=nic_sums&collect[]=leaves"); !slices.Equal(got, sums) {
			t.Errorf("%s: the sums are %q, want %q", path, got, sums)
		}
	}
	if got, want := all("/metrics"), "go_of_the_process"; !slices.Contains(got, want) {
		t.Errorf("/metrics lacks %s", want)
	}
	if got, _, _ := scrape("/metrics", "exclude[]=leaves"); !slices.Equal(got, without(all("/metrics"), "fabric_leaf_pair_")) {
		t.Errorf("/metrics without pairs of leaves: %q", got)
	}
	kept := without(without(all("/metrics/nics"), "fabric_nic_owd"), "fabric_nic_probe_")
	if got, _, _ := scrape("/metrics/nics", "collect[]=node_summary&collect[]=nic_flows&collect[]=host_losses"); !slices.Equal(got, kept) || len(got) < 5 {
		t.Errorf("/metrics/nics without sums: %q, want %q", got, kept)
	}
	whole, part := e.countSeries(t, "/metrics/nics", "", paths), 0
	for _, plane := range []string{"a", ""} { // the second NIC has none
		n := e.countSeries(t, "/metrics/nics", "plane="+plane, paths)
		if part += n; n == 0 {
			t.Errorf("no series of plane %q", plane)
		}
	}
	if none := e.countSeries(t, "/metrics/nics", "plane=c", paths); part-2*none != whole-none {
		t.Errorf("%d series of both planes, %d of none, %d of all", part, none, whole)
	}
	for query, want := range map[string]string{
		"collect[]=leafs":                         `collector "leafs" does not exist: one of chrony, clocks, collectives, config,`,
		"exclude[]=":                              `collector "" does not exist`,
		"collect[]=leaves&exclude[]=leaves":       `one of them is expected`,
		"exclude[]=leaves&exclude[]=node_summery": `collector "node_summery" does not exist`,
	} {
		if _, code, text := scrape("/metrics", query); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d, %s", query, code, text)
		}
	}
}
