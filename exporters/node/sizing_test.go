package node

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/nodeagent/health/healthtest"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sizing"
)

// scheduledNodes returns the nodes of a fabric, each with the flows that the schedule gives it, and the shape of the
// fabric.
func scheduledNodes(t *testing.T, o clos.Options) (map[string]*madeUp, sizing.Shape) {
	t.Helper()
	topo := clos.NewTopology(o)
	g := fabric.NewGraph(topo)
	s, err := schedule.Make(g, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stats := map[string]*probe.NICStats{}
	for _, id := range s.NICs {
		n := g.NIC(id)
		leaf, port := g.LeafOf(id)
		stats[id] = &probe.NICStats{NICConfig: probe.NICConfig{NIC: id, Leaf: leaf, LeafPort: port, Plane: n.Plane}, TxKind: "kernel", RxKind: "kernel",
			Unread: map[string]uint64{"socket_full": 0, "unverified": 0, "no_life": 0}, Forgers: []probe.Forger{{From: "other"}}}
	}
	for _, e := range s.Edges {
		flow := s.FlowID(e)
		from, to := stats[flow.Src], stats[flow.Dst]
		from.Edges = append(from.Edges, probe.EdgeStats{Edge: flow, Tier: int(e.Tier), Plane: from.Plane, Leaf: from.Leaf, PeerLeaf: to.Leaf})
		to.Received = append(to.Received, probe.ReceivedStats{Edge: flow, Tier: int(e.Tier), Plane: from.Plane})
	}
	nodes := map[string]*madeUp{}
	for _, id := range s.NICs {
		name := g.NIC(id).Node
		if nodes[name] == nil {
			nodes[name] = &madeUp{snap: &probe.Snapshot{}, cfg: &probe.Config{Node: name, ClockSync: true}}
		}
		nodes[name].snap.NICs = append(nodes[name].snap.NICs, *stats[id])
	}
	return nodes, sizing.ShapeOf(topo, g, s)
}

// countSeries returns the number of series whose name begins with a prefix. A native histogram is one series.
func countSeries(t *testing.T, g prometheus.Gatherer, prefix string) (n int) {
	for _, f := range gather(t, g) {
		if strings.HasPrefix(f.GetName(), prefix) {
			n += len(f.Metric)
		}
	}
	return n
}

// TestSizeOfScheduledFleets compares what graylink size predicts with the series that the collectors publish, of 128 NICs
// in two tiers, in three, in two planes, and with rails.
func TestSizeOfScheduledFleets(t *testing.T) {
	for name, o := range map[string]clos.Options{
		"two tiers":   {LeavesPerPod: 8, SpinesPerPod: 4, NICsPerLeaf: 16, NICsPerNode: 8},
		"three tiers": {Tiers: 3, Pods: 4, LeavesPerPod: 4, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 8, NICsPerNode: 8},
		"two planes":  {Planes: 2, LeavesPerPod: 4, SpinesPerPod: 4, NICsPerLeaf: 16, NICsPerNode: 8},
		"rails":       {LeavesPerPod: 8, SpinesPerPod: 4, NICsPerLeaf: 16, NICsPerNode: 8, RailOptimised: true},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, sh := scheduledNodes(t, o)
			if sh.NICs != 128 || sh.Nodes != len(nodes) {
				t.Fatalf("%d NICs of %d nodes, want 128 of %d", sh.NICs, sh.Nodes, len(nodes))
			}
			var nics, edges, pairs int
			for _, m := range nodes {
				ofMetrics, _, ofEdges := m.gatherers()
				from, clocks := m.sources(), fixedClocks{}
				for i := range m.snap.NICs {
					clocks[m.snap.NICs[i].NIC] = nodeagent.ClockView{Status: clocksync.Status{State: clocksync.Locked, Known: true, Counted: true}}
				}
				from.readState = func(f func(nodeagent.State)) {
					st := m.state()
					st.Clocks = clocks
					f(st)
				}
				ofNICs := newGatherer(from, nicsConstructors(), newRuns(), false)
				nics += countSeries(t, ofNICs, "")
				edges += countSeries(t, ofEdges, "")
				pairs += countSeries(t, ofMetrics, "fabric_leaf_pair_")
			}
			wantSums, _ := sizing.SeriesOfSums(sh.NICSums)
			wantNICs := sizing.SeriesOfNICs(sh.Nodes, sh.NICs) + wantSums
			wantEdges, _ := sizing.SeriesOfEdges(sh.NICs, sh.Flows, sh.Flows)
			wantPairs, _ := sizing.SeriesOfSums(sh.LeafPairs)
			for what, c := range map[string][2]float64{"/metrics/nics": {wantNICs, float64(nics)}, "/metrics/edges": {wantEdges, float64(edges)}, "fabric_leaf_pair_ of /metrics": {wantPairs, float64(pairs)}} {
				if c[0] != c[1] {
					t.Errorf("%s: %.0f series are predicted, and %.0f are published", what, c[0], c[1])
				}
			}
		})
	}
}

// TestSizeInOctets compares the predicted octets of /metrics/edges with a scrape as Prometheus negotiates it for native
// histograms, of 512 flows with an hour of probes. 10 % are allowed.
func TestSizeInOctets(t *testing.T) {
	m := fleetNode(16)
	_, _, edges := m.gatherers()
	p, err := sizing.Predict(sizing.Shape{Nodes: 1, NICs: 8, Flows: 512, NICSums: 8, NameOctets: 512 * len("gpu-node-0117/mlx5_0"+"gpu-node-0200/mlx5_0"+"roce")}, sizing.Options{Profile: sizing.Full, Scrape: 1e9})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range p.Jobs {
		if j.Name != sizing.JobEdges {
			continue
		}
		for coding, want := range map[string]float64{"identity": *j.Octets, "gzip": *j.GzipOctets} {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
			r.Header.Set("Accept-Encoding", coding)
			w := httptest.NewRecorder()
			promhttp.HandlerFor(edges, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(w, r)
			if got := float64(w.Body.Len()); math.Abs(want/got-1) > 0.1 {
				t.Errorf("%s: %.0f octets are predicted, and %.0f are served", coding, want, got)
			}
		}
	}
}

// TestSizeOfHealth compares the predicted series of a NIC's health, and of the node's other devices, with the golden file
// of a node of eight NICs.
func TestSizeOfHealth(t *testing.T) {
	text, err := os.ReadFile("testdata/nics-h100.metrics")
	if err != nil {
		t.Fatal(err)
	}
	ofNICs, ofOthers := 0, 0
	for _, line := range bytes.Split(text, []byte("\n")) {
		switch {
		case bytes.Contains(line, []byte(`nic="h1/mlx5_`)) && !bytes.Contains(line, []byte(`nic="h1/mlx5_bond`)):
			ofNICs++
		case bytes.Contains(line, []byte(`nic="`)):
			ofOthers++
		}
	}
	for _, c := range sizing.Constants() {
		switch {
		case c.Name == "health_per_nic" && float64(ofNICs) != 8*c.Value:
			t.Errorf("eight NICs have %d series, and %g each are predicted", ofNICs, c.Value)
		case c.Name == "health_of_other_devices" && float64(ofOthers) != c.Value:
			t.Errorf("other devices have %d series, and %g are predicted", ofOthers, c.Value)
		}
	}
}

// TestOctetsOfProfiles compares what Prometheus reads in a second of a node of 8 NICs with 15 flows each, with the intervals
// and parameters of the two files of deploy/prometheus. Profile fleet has a fifth of the octets at most.
func TestOctetsOfProfiles(t *testing.T) {
	m := fleetNode(16)
	for i := range m.snap.NICs {
		m.snap.NICs[i].Edges, m.snap.NICs[i].Received = m.snap.NICs[i].Edges[:15], m.snap.NICs[i].Received[:15]
	}
	scraped := scrapesOf(t, m)
	perSecond := func(file, coding string) (octets float64) {
		for _, j := range agentJobs(t, file) {
			octets += float64(len(scraped(j, coding))) / j.Every.Seconds()
		}
		return octets
	}
	for _, coding := range []string{"identity", "gzip"} {
		full, fleet := perSecond("prometheus.yml", coding), perSecond("prometheus-fleet.yml", coding)
		t.Logf("%s: %.1f kB/s of a node with profile full, %.1f with fleet: %.1f times less", coding, full/1e3, fleet/1e3, full/fleet)
		if fleet > full/5 {
			t.Errorf("%s: profile fleet has more than a fifth", coding)
		}
	}
}

// scrapeJob is a job of a file of Prometheus.
type scrapeJob struct {
	Name   string              `yaml:"job_name"`
	Every  time.Duration       `yaml:"scrape_interval"`
	Path   string              `yaml:"metrics_path"`
	Params map[string][]string `yaml:"params"`
}

// agentJobs returns the jobs of agents in a file of deploy/prometheus.
func agentJobs(t *testing.T, file string) []scrapeJob {
	t.Helper()
	text, err := os.ReadFile("../../deploy/prometheus/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Jobs []scrapeJob `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(config.Jobs, func(j scrapeJob) bool { return !strings.HasPrefix(j.Name, "graylink-node") })
}

// scrapesOf returns what the exporter of a node with the health of an H100 machine answers to a job, as Prometheus negotiates
// it for native histograms.
func scrapesOf(t *testing.T, m *madeUp) func(j scrapeJob, coding string) []byte {
	e := &Exporter{from: *m.sources(), runs: newRuns(), registry: processRegistry(), log: slog.New(slog.DiscardHandler)}
	e.from.health = healthtest.NewPatient(t, "h100", func(*health.Options) {}).Snapshot
	handlers := map[string]http.Handler{"/metrics": e.serveScrapes(metricsConstructors(), true, e.registry), "/metrics/nics": e.serveScrapes(nicsConstructors(), false, nil), "/metrics/edges": e.serveScrapes(edgesConstructors(), false, nil)}
	return func(j scrapeJob, coding string) []byte {
		t.Helper()
		path := cmp.Or(j.Path, "/metrics")
		r := httptest.NewRequest("GET", path+"?"+url.Values(j.Params).Encode(), nil)
		r.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
		r.Header.Set("Accept-Encoding", coding)
		w := httptest.NewRecorder()
		handlers[path].ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", j.Name, w.Code, w.Body)
		}
		return w.Body.Bytes()
	}
}

// TestOctetsOfJobs compares the predicted octets of each job of agents with a scrape of a node of 8 NICs with an hour of
// probes, of a few flows and of many, in both profiles. 10 % are allowed.
func TestOctetsOfJobs(t *testing.T) {
	for _, tt := range []struct{ nics, flows int }{{8, 15}, {8, 64}, {1, 64}} {
		m, flows := fleetNode(16), tt.flows
		m.snap.NICs = m.snap.NICs[:tt.nics]
		pairs := map[[3]string]bool{}
		for i := range m.snap.NICs {
			n := &m.snap.NICs[i]
			n.Unread, n.Forgers = map[string]uint64{"socket_full": 0, "unverified": 0, "no_life": 0}, []probe.Forger{{From: "other"}}
			n.Edges, n.Received = n.Edges[:flows], n.Received[:flows]
			for _, e := range n.Edges {
				pairs[[3]string{e.Leaf, e.PeerLeaf, fmt.Sprint(e.Tier)}] = true
			}
		}
		scraped := scrapesOf(t, m)
		sh := sizing.Shape{Nodes: 1, NICs: tt.nics, Flows: tt.nics * flows, NICSums: tt.nics, LeafPairs: len(pairs), NameOctets: tt.nics * flows * len("gpu-node-0117/mlx5_0"+"gpu-node-0200/mlx5_0"+"roce")}
		for profile, file := range map[string]string{sizing.Full: "prometheus.yml", sizing.Fleet: "prometheus-fleet.yml"} {
			p, err := sizing.Predict(sh, sizing.Options{Profile: profile, Scrape: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range agentJobs(t, file) {
				if j.Name == sizing.JobNode {
					continue // the node has no health: TestOctetsOfNodes
				}
				i := slices.IndexFunc(p.Jobs, func(p sizing.Job) bool { return p.Name == j.Name })
				for coding, want := range map[string]*float64{"identity": p.Jobs[i].Octets, "gzip": p.Jobs[i].GzipOctets} {
					if coding == "gzip" && tt.nics < 8 {
						continue // a few series compress less, and are predicted as those of eight NICs
					}
					got := float64(len(scraped(j, coding)))
					if want == nil {
						t.Errorf("%s, %s, %+v, %s: nothing is predicted, and %.0f octets are served for %.0f series", profile, j.Name, tt, coding, got, p.Jobs[i].Series)
					} else if math.Abs(*want/got-1) > 0.1 {
						t.Errorf("%s, %s, %+v, %s: %.0f octets are predicted, and %.0f are served", profile, j.Name, tt, coding, *want, got)
					}
				}
			}
		}
	}
}

// TestOctetsOfNodes compares the predicted octets of a series of /metrics, and of one of the health of NICs, with a scrape
// of a made-up node and with the golden file of a node of eight NICs. 10 % are allowed.
func TestOctetsOfNodes(t *testing.T) {
	i := slices.IndexFunc(agentJobs(t, "prometheus-fleet.yml"), func(j scrapeJob) bool { return j.Name == sizing.JobNode })
	job, scraped := agentJobs(t, "prometheus-fleet.yml")[i], scrapesOf(t, fleetNode(16))
	own := scraped(job, "identity")
	series := 0
	dec := expfmt.NewDecoder(bytes.NewReader(own), expfmt.NewFormat(expfmt.TypeProtoDelim))
	for f := new(dto.MetricFamily); dec.Decode(f) == nil; f = new(dto.MetricFamily) {
		series += len(f.Metric)
	}
	text, err := os.ReadFile("testdata/nics-h100.metrics")
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var health, healthGzip bytes.Buffer
	zip := gzip.NewWriter(&healthGzip)
	enc, ofHealth := expfmt.NewEncoder(io.MultiWriter(&health, zip), expfmt.NewFormat(expfmt.TypeProtoDelim)), 0
	for _, name := range sortedKeys(families) {
		ofHealth += len(families[name].Metric)
		if err := enc.Encode(families[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{
		"own_octets_per_series":         float64(len(own)) / float64(series),
		"own_gzip_octets_per_series":    float64(len(scraped(job, "gzip"))) / float64(series),
		"health_octets_per_series":      float64(health.Len()) / float64(ofHealth),
		"health_gzip_octets_per_series": float64(healthGzip.Len()) / float64(ofHealth),
	}
	for _, c := range sizing.Constants() {
		if v, known := got[c.Name]; known && math.Abs(c.Value/v-1) > 0.1 {
			t.Errorf("%s: %g is predicted, and %.1f are served", c.Name, c.Value, v)
		}
		delete(got, c.Name)
	}
	if len(got) > 0 {
		t.Errorf("%v is not predicted", got)
	}
}
