package scale

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/window"
)

// TestFleetAnswers checks on a small fleet that traces are those of the paths, and that windows and series show what a
// fault does to the flows that cross it, and to no other.
func TestFleetAnswers(t *testing.T) {
	f, err := NewFleet(Options{Second: 50 * time.Millisecond, Topology: clos.NewTopology(clos.Options{Tiers: 2, Planes: 2, LeavesPerPod: 4, SpinesPerPod: 4, NICsPerLeaf: 4, NICsPerNode: 2})})
	if err != nil {
		t.Fatal(err)
	}
	handler := f.Handler("127.0.0.1:1")
	get := func(path string) *httptest.ResponseRecorder {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK {
			t.Fatalf("%s: %d", path, w.Code)
		}
		return w
	}
	x := &f.flows[len(f.flows)/2]
	bad := x.links[window.Forward][1] // from the leaf of its source
	crossed := f.FlowsOver(Fault{Links: []fabric.Direction{bad}, DelayNS: 1e6})
	if crossed == 0 || crossed == f.DirectedFlows() {
		t.Fatalf("%d of %d flows cross %v", crossed, f.DirectedFlows(), bad)
	}
	f.SetFaults(Fault{Links: []fabric.Direction{bad}, DelayNS: 1e6})
	f.since = f.since.Add(-time.Hour)
	slow, moved := 0, 0.0
	for _, name := range f.NodeNames() {
		var traced struct{ Paths []fabric.Trace }
		if err := json.Unmarshal(get("/"+name+"/api/v1/paths").Body.Bytes(), &traced); err != nil {
			t.Fatal(err)
		}
		for _, trace := range traced.Paths {
			e, err := fabric.ParseFlow(trace.Edge)
			if err != nil {
				t.Fatal(err)
			}
			src, dst := e.Endpoints()
			r := fabric.ResolveTrace(f.graph, src, dst, trace)
			if r.State != fabric.PathValid {
				t.Fatalf("%s: %+v", trace.Edge, r)
			}
		}
		var a window.Answer
		if err := json.Unmarshal(get("/"+name+"/api/v1/windows").Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		for i := range a.Flows {
			for d, c := range a.Flows[i].Windows[0].Delays {
				if *c["kernel"].P50 > a.Flows[i].Baselines[d].P50+500e3 {
					slow++
				}
			}
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(get("/" + name + "/metrics/nics").Body)
		if err != nil {
			t.Fatal(err)
		}
		moved += families["graylink_node_unhealthy_flows"].Metric[0].GetGauge().GetValue()
	}
	if slow != crossed || int(moved) != crossed { // a link is crossed by one direction of a flow at most
		t.Errorf("windows show %d slow flows, series %v, want %d", slow, moved, crossed)
	}
}
