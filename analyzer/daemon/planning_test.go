package daemon

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
	"github.com/graylink/graylink/internal/webaccess"
)

// newFastClos returns a fabric of spines, leaves and hosts whose links have speeds.
func newFastClos(t *testing.T, spines, leaves, hosts int) *fabric.Graph {
	t.Helper()
	topo := worldtest.NewClos(t, spines, leaves, hosts).Topo
	for i := range topo.Links {
		topo.Links[i].SpeedGbps = 400
	}
	return fabric.NewGraph(topo)
}

// portHash traces tuples on a fabric whose leaves choose a path by the source port alone.
type portHash struct {
	g   *fabric.Graph
	now func() time.Time
}

// pathOf returns the path of a source port.
func (h portHash) pathOf(src, dst string, sport int) fabric.Path {
	all := h.g.ShortestPaths(src, dst, 16)
	return all[int(uint32(sport)*2654435761>>16)%len(all)]
}

// TraceTuples implements catalogue.Tracer.
func (h portHash) TraceTuples(_ context.Context, node string, tuples []fabric.Tuple) ([]fabric.TupleTrace, error) {
	var out []fabric.TupleTrace
	for _, t := range tuples {
		if fabric.OwnerOf(t.Src) != node {
			return nil, fmt.Errorf("%s is no NIC of %s", t.Src, node)
		}
		tr := fabric.Trace{State: fabric.PathValid, TracedAt: h.now()}
		for i, d := range h.pathOf(t.Src, t.Dst, t.SPort).LinkDirections(t.Src, t.Dst) {
			l := h.g.LinkAt(d.To)
			a := l.AAddress
			if l.B == d.To {
				a = l.BAddress
			}
			if !fabric.IsNIC(d.To) {
				tr.Hops = append(tr.Hops, fabric.RawHop{TTL: i + 1, Address: a.Addr()})
			}
		}
		out = append(out, fabric.TupleTrace{Tuple: t, Marking: fabric.MarkingNone, Trace: tr})
	}
	return out, nil
}

// postJSON sends a request from this host.
func postJSON(mux http.Handler, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.RemoteAddr, r.Host = here, "127.0.0.1"
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w
}

// TestTheNextPlanAvoidsAVerdict: a link becomes slow while the loop runs. The first plan after the cycle that names it has no queue pair
// on the link, in either direction, and a plan after the verdict has ended uses it again.
func TestTheNextPlanAvoidsAVerdict(t *testing.T) {
	g := newFastClos(t, 2, 4, 2)
	r := looptest.NewRigOf(t, g, 5)
	r.Learn()
	now := func() time.Time { return r.Now }
	mux := NewMux(r.Loop, PageOptions{Policy: &webaccess.Policy{AdminAPI: true}, Catalogue: catalogue.NewBuilder(r.Loop.PathStore().Graph, portHash{g, now}, now)})
	bad := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	planned := func() (qps int, excluded []plan.Exclusion) {
		t.Helper()
		w := postJSON(mux, "/api/v1/plan?qps=8", `{"jobs":[{"job":"j1","order":["h1","h3","h5"]}]}`)
		p, err := plan.Read(w.Body)
		if w.Code != http.StatusOK || err != nil || len(p.Assignments) != 24 || len(p.Unplaced) != 0 {
			t.Fatalf("%d %+v %v", w.Code, p, err)
		}
		for i := range p.Assignments {
			if l := p.Assignments[i].Links; slices.Contains(l, bad.String()) || slices.Contains(l, bad.Reverse().String()) {
				qps++
			}
		}
		return qps, p.Excluded
	}
	if n, x := planned(); n == 0 || len(x) != 0 {
		t.Fatalf("while nothing is wrong: %d queue pairs on %s, excluded %v", n, bad, x)
	}
	r.World.Delay[bad] = 2e6
	open := func(s snapshot.Snapshot) bool {
		return len(s.Report.Verdicts) == 1 && s.Report.Verdicts[0].Element.ID == bad.LinkID()
	}
	r.Until(10, "a verdict on the link", open)
	began := time.Now()
	n, x := planned()
	t.Logf("the plan came %v after the verdict", time.Since(began))
	if n != 0 || len(x) != 1 || x[0].Element != bad.LinkID() || !strings.HasPrefix(x[0].Reason, "verdict ") {
		t.Errorf("with an open verdict: %d queue pairs on %s, excluded %v", n, bad, x)
	}
	clear(r.World.Delay)
	r.Until(60, "the end of the verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 && !s.Incidents[0].Open })
	if n, x := planned(); n == 0 || len(x) != 0 {
		t.Errorf("after the verdict: %d queue pairs on %s, excluded %v", n, bad, x)
	}
}
