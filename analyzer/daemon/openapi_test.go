package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/audit/latest"
	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/queuepair"
	"github.com/graylink/graylink/internal/webaccess"
	"github.com/graylink/graylink/schema/openapi"
	"github.com/graylink/graylink/schema/openapi/openapitest"
)

// described sends requests to an analyzer, and checks that each answer is as described.
type described struct {
	*openapitest.Checker
	t   *testing.T
	mux http.Handler
}

// send sends a request, wants a status, and returns the answer.
func (d *described) send(method, target, body string, want int) string {
	d.t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.RemoteAddr = here
	switch {
	case body == "":
	case strings.HasPrefix(target, "/api/v1/plan"):
		r.Header.Set("Content-Type", "application/yaml")
	default:
		r.Header.Set("Content-Type", "application/json")
	}
	rec := d.Serve(d.t, d.mux, r)
	if rec.Code != want {
		d.t.Errorf("%s %s: %d, want %d: %.500s", method, target, rec.Code, want, rec.Body)
	}
	return rec.Body.String()
}

// pastSeries are what rules recorded of two NICs in ten minutes, and in the next ten minutes: the first one receives late, and the second
// one is away.
const pastSeries = `load 10s
	fabric:nic_owd_seconds:p50_2s{nic="h1/eth1", leaf="leaf1", side="destination", class="a", plane="a", timestamp="kernel"} 0.00001x60 0.00201x60
	fabric:nic_probe_sent:rate_2s{nic="h1/eth1", leaf="leaf1", side="source", class="a", plane="a"} 100x120
	fabric:nic_probe_sent:rate_2s{nic="h2/eth1", leaf="leaf1", side="source", class="a", plane="a"} 100x60 stale
	fabric:nic_probe_sent:rate_2s{nic="h2/eth1", leaf="leaf1", side="destination", class="a", plane="a"} 100x60 stale`

// pastSpans compares these spans.
const pastSpans = "/api/v1/compare?from=1970-01-01T00:10:00Z&to=1970-01-01T00:20:10Z"

// withPast answers queries about spans from series, and all others as a rig does.
type withPast struct {
	evidence.Querier
	past evidence.Querier
}

func (w withPast) QueryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	if slices.ContainsFunc([]string{"fabric:", "fabric_link_", "_over_time((", "_over_time(0"}, func(part string) bool { return strings.Contains(query, part) }) {
		return w.past.QueryInstant(ctx, query, at)
	}
	return w.Querier.QueryInstant(ctx, query, at)
}

// newDescribedRig returns a rig with jobs whose queue pairs are on one spine, and the analyzer's handlers for it.
func newDescribedRig(t *testing.T) (*looptest.Rig, *described) {
	g := newFastClos(t, 2, 4, 2)
	r := looptest.NewRigOf(t, g, 5)
	now := func() time.Time { return r.Now }
	placements, err := jobs.Parse(jobs.FormatPlacement, "f", []byte(`jobs: [{job: ml/j1, nodes: [h1, h3]}, {job: j2, nodes: [h2, h4]}]`), time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	register := jobs.NewRegister(g)
	register.ReplaceSource("f", placements)
	r.Configure(func(o *analyzer.LoopOptions) {
		o.Jobs, o.Maintenance = register, maintenance.NewRegister(g)
		o.DB = withPast{o.DB, evidencetest.NewQuerier(t, pastSeries)}
	})
	r.Learn()
	hash := portHash{g, now}
	lists := &agentLists{of: map[string]*queuepair.Node{}}
	lists.connect(hash, "h1/eth1", "h3/eth1", "spine1", 2)
	b := catalogue.NewBuilder(r.Loop.PathStore().Graph, hash, now)
	mux := NewMux(r.Loop, PageOptions{Policy: &webaccess.Policy{AdminAPI: true}, Catalogue: b, Observer: catalogue.NewObserver(b, lists, r.Loop.Snapshot),
		Audit: latest.Open("../../schema/testdata/audit-report.json")})
	return r, &described{openapitest.New(t), t, mux}
}

// TestAnswersAreAsDescribed sends every request of the OpenAPI description to the handlers of an analyzer, in a healthy fabric, with an
// open verdict and after it closed, and compares the answers with the description. That of collectives is in TestSteerByRecords.
func TestAnswersAreAsDescribed(t *testing.T) {
	r, d := newDescribedRig(t)
	if got := d.send("GET", "/api/v1/openapi.json", "", 200); got != string(openapi.Analyzer()) {
		t.Error("the analyzer serves another description")
	}
	d.send("GET", "/api/v1/verdicts", "", 200)
	bad := fabric.Direction{From: "leaf1:up1", To: "spine1:dn1"}
	r.World.Delay[bad] = 2e6
	r.Until(10, "a verdict", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) > 0 })
	var all struct{ Verdicts []struct{ ID string } }
	if err := json.Unmarshal([]byte(d.send("GET", "/api/v1/verdicts", "", 200)), &all); err != nil || len(all.Verdicts) != 1 {
		t.Fatalf("%+v %v", all, err)
	}
	if got := d.send("GET", pastSpans, "", 200); !strings.Contains(got, `"element":"h1/eth1","side":"destination"`) || !strings.Contains(got, `"missing":[{"element":"h2/eth1"`) {
		t.Errorf("the comparison: %s", got)
	}
	verdict := "/api/v1/verdicts/" + all.Verdicts[0].ID
	for target, status := range map[string]int{
		verdict + "/report": 200, verdict + "/report?format=html": 200, verdict + "/report?format=markdown": 200, verdict + "/report?format=pdf": 400, "/api/v1/verdicts/none/report": 404,
		verdict: 200, verdict + "/observations": 200, "/api/v1/verdicts?job=j2": 200, "/api/v1/verdicts/none": 404, "/api/v1/verdicts/none/observations": 404,
		"/api/v1/paths": 200, "/api/v1/paths?src=h1%2Feth1&dst=h3%2Feth1&at=" + r.Now.Format(time.RFC3339): 200, "/api/v1/paths?src=h1": 400, "/api/v1/paths?at=then": 400, "/api/v1/paths?at=1s": 200,
		"/api/v1/matrix": 200, "/api/v1/matrix?of=p99&by=nic&plane=a&class=&direction=forward&row=h1%2Feth1&column=h3%2Feth1": 200, "/api/v1/matrix?of=color": 400, "/api/v1/matrix?row=leaf9": 400,
		"/api/v1/matrix?of=loss&at=1s": 200,
		"/api/v1/compare":              400, "/api/v1/compare?from=1m": 400, pastSpans + "&limit=1": 200, pastSpans + "&span=1m&kind=leaf": 200,
		"/api/v1/links": 200, "/api/v1/observations": 200, "/api/v1/jobs": 200, "/api/v1/jobs/ml%2Fj1": 200, "/api/v1/jobs/none": 404, "/api/v1/collectives": 404, "/api/v1/audit": 200,
		"/api/v1/observe?job=ml%2Fj1&dscp=26&adaptive_routing=off": 200, "/api/v1/observe": 400, "/api/v1/observe?job=none": 404, "/api/v1/catalogue?src=none": 404, "/api/v1/plan": 404,
	} {
		d.send("GET", target, "", status)
	}
	if got := d.send("POST", "/api/v1/catalogue", `{"pairs":[{"src":"h1/eth1","dst":"h3/eth1"}],"dscp":26,"qps":2}`, 200); strings.Count(got, "\n") == 0 {
		t.Error("no catalogue")
	}
	d.send("POST", "/api/v1/catalogue", `{"pears":[]}`, 400)
	d.send("GET", "/api/v1/catalogue?src=h1%2Feth1", "", 200)
	d.send("POST", "/api/v1/plan?qps=4&dscp=26&adaptive_routing=off&exclude=spine2", `{"jobs":[{"job":"j1","order":["h1","h3"]}]}`, 200)
	d.send("POST", "/api/v1/plan", "jobs: []", 400)
	d.send("GET", "/api/v1/plan?job=j1", "", 200)
	var window struct{ ID string }
	if err := json.Unmarshal([]byte(d.send("POST", "/api/v1/maintenance", `{"element":"spine2","duration":"1h","by":"ann","reason":"fans"}`, 201)), &window); err != nil {
		t.Fatal(err)
	}
	d.send("POST", "/api/v1/maintenance", `{"element":"nothing","duration":"1h","by":"ann"}`, 400)
	d.send("GET", "/api/v1/maintenance", "", 200)
	d.send("DELETE", "/api/v1/maintenance/"+window.ID, "", 204)
	d.send("DELETE", "/api/v1/maintenance/"+window.ID, "", 404)
	clear(r.World.Delay)
	r.Until(60, "the end of the verdict", func(s snapshot.Snapshot) bool { return !s.Incidents[0].Open })
	for _, target := range []string{verdict, "/api/v1/verdicts", "/api/v1/jobs/j2", "/api/v1/links"} {
		d.send("GET", target, "", 200)
	}
	elsewhere := httptest.NewRequest(http.MethodDelete, "/api/v1/maintenance/x", nil)
	elsewhere.RemoteAddr = there
	if rec := d.Serve(t, d.mux, elsewhere); rec.Code != http.StatusForbidden {
		t.Errorf("a client elsewhere: %d", rec.Code)
	}
	d.checkAllSeen("GET /api/v1/collectives")
}

// checkAllSeen reports requests of the description that no answer of success was checked of, but for those that another test has.
func (d *described) checkAllSeen(others ...string) {
	d.t.Helper()
	var v struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(openapi.Analyzer(), &v); err != nil {
		d.t.Fatal(err)
	}
	for path, calls := range v.Paths {
		for method := range calls {
			name, n := strings.ToUpper(method)+" "+path, 0
			for _, status := range []string{" 200", " 201", " 204"} {
				n += d.Seen[name+status]
			}
			if n == 0 && !slices.Contains(others, name) {
				d.t.Errorf("no answer to %s was checked", name)
			}
		}
	}
}
