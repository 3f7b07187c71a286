package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/queuepair"
	"github.com/graylink/graylink/internal/roce"
	"github.com/graylink/graylink/internal/webaccess"
)

// agentLists are the lists of queue pairs that agents have, by node.
type agentLists struct {
	of   map[string]*queuepair.Node
	read atomic.Int32
}

// QueuePairs implements catalogue.Lister.
func (a *agentLists) QueuePairs(_ context.Context, node string) (*queuepair.Node, error) {
	a.read.Add(1)
	if l := a.of[node]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("agent of %q: 404 Not Found: 404 page not found", node)
}

// connect opens queue pairs between two NICs whose packets go by a spine.
func (a *agentLists) connect(h portHash, src, dst, spine string, count int) {
	add := func(nic string, local, remote uint32) {
		owner, device, _ := fabric.SplitNIC(nic)
		l := a.of[owner]
		if l == nil {
			l = &queuepair.Node{Node: owner, HostNamespace: true}
			a.of[owner] = l
		}
		l.QueuePairs = append(l.QueuePairs, queuepair.QueuePair{Device: device, Port: 1, Driver: "mlx5_core", Local: local, Remote: remote, Type: "rc", State: "rts", PID: 7, Process: "python"})
	}
	for l := uint32(1000 + 100_000*len(a.of)); count > 0; l++ {
		r := l + 7919
		if h.pathOf(src, dst, int(roce.ConnectedPort(0, l, r)))[1].Switch == spine {
			add(src, l, r)
			add(dst, r, l)
			count--
		}
	}
}

// TestObserve: two jobs have their queue pairs on one spine. The analyzer says what that costs, whose queue pairs are in the way, and what a
// plan would give. Without a list, a speed or a placement it says why the rate is not known.
func TestObserve(t *testing.T) {
	g := newFastClos(t, 2, 4, 2)
	r := looptest.NewRigOf(t, g, 5)
	now := func() time.Time { return r.Now }
	hash := portHash{g, now}
	placements, err := jobs.Parse(jobs.FormatPlacement, "f", []byte(`jobs: [{job: j1, collective: ring, order: [h1, h3]}, {job: j2, nodes: [h2, h4]}, {job: far, nodes: [h5, h7]}]`), time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	placements[0].Nodes = []string{"h1", "h3"}
	placements[0].Declared.Nodes = placements[0].Nodes
	register := jobs.NewRegister(g)
	register.ReplaceSource("f", placements)
	r.Configure(func(o *analyzer.LoopOptions) { o.Jobs = register })
	r.Learn()
	lists := &agentLists{of: map[string]*queuepair.Node{}}
	lists.connect(hash, "h1/eth1", "h3/eth1", "spine1", 4)
	lists.connect(hash, "h2/eth1", "h4/eth1", "spine1", 4)
	newServer := func() http.Handler {
		b := catalogue.NewBuilder(r.Loop.PathStore().Graph, hash, now)
		return NewMux(r.Loop, PageOptions{Policy: &webaccess.Policy{AdminAPI: true}, Catalogue: b, Observer: catalogue.NewObserver(b, lists, r.Loop.Snapshot)})
	}
	observeFrom := func(mux http.Handler, client, query string) (out catalogue.Running, code int, text string) {
		t.Helper()
		w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api/v1/observe?"+query, nil)
		req.RemoteAddr = client
		mux.ServeHTTP(w, req)
		if text = w.Body.String(); w.Code == http.StatusOK {
			if err := json.Unmarshal([]byte(text), &out); err != nil {
				t.Fatal(err)
			}
		}
		return out, w.Code, text
	}
	observe := func(mux http.Handler, query string) (catalogue.Running, int, string) {
		t.Helper()
		return observeFrom(mux, "127.0.0.1:40000", query)
	}
	mux := newServer()
	const elsewhere = "192.0.2.7:40000" // may not make agents send packets
	if got, code, text := observeFrom(mux, elsewhere, "job=j1"); code != http.StatusOK || got.Observed != nil || lists.read.Load() != 0 || got.AgeSeconds != nil || strings.Contains(text, `"at"`) ||
		!strings.Contains(text, "The queue pairs of j1 have not been observed: only loopback clients may send this request") {
		t.Errorf("a client elsewhere has a job observed: %d %s", code, text)
	}
	if _, code, text := observeFrom(mux, elsewhere, "job=none"); code != http.StatusNotFound {
		t.Errorf("a client elsewhere, of a job that does not run: %d %s", code, text)
	}
	got, code, text := observe(mux, "job=j1")
	j := got.Observed
	if code != http.StatusOK || j == nil || j.BusbwGbps == nil || j.PlannedGbps == nil {
		t.Fatalf("%d %s", code, text)
	}
	if j.Known != 8 || j.Assumed != "" || *j.BusbwGbps != 181 || *j.PlannedGbps != 362 || len(got.Reasons) != 0 || len(got.Missing) != 0 || len(got.Nodes) != 4 || len(got.QueuePairs) != 8 {
		t.Errorf("%s", text)
	}
	hurt := strings.Join(j.HurtTexts(), "\n")
	if !strings.Contains(hurt, "j1 is held back by leaf1:up1->spine1:dn1 (362 Gb/s), which is full with queue pairs: 4 of j1, 4 of j2.") {
		t.Errorf("%s", hurt)
	}
	if len(got.Others) != 1 || got.Others[0].Job != "j2" || got.Others[0].Assumed != "ring" || *got.Others[0].BusbwGbps != 181 {
		t.Errorf("other jobs: %+v", got.Others)
	}
	over := 0
	for _, l := range got.Links {
		if l.Now > 1.99 && l.Plan < 1.001 {
			over++
		}
	}
	if over != 4 { // both directions between each of the two leaves and the spine
		t.Errorf("%d links have to carry too much now and not by the plan: %+v", over, got.Links)
	}
	read := lists.read.Load()
	if _, _, again := observe(mux, "job=j1"); again != text || lists.read.Load() != read {
		t.Errorf("a fresh answer is not kept: %d lists were read again", lists.read.Load()-read)
	}
	r.Step()
	r.Now = r.Now.Add(time.Minute)
	if last, _, text := observeFrom(mux, elsewhere, "job=j1"); last.Observed == nil || last.Observed.Known != 8 || lists.read.Load() != read || last.AgeSeconds == nil || *last.AgeSeconds < 60 || !last.At.Equal(got.At) || last.Refused == "" {
		t.Errorf("a client elsewhere does not get the last answer with its age: %s", text)
	}
	if _, _, _ = observe(mux, "job=j1"); lists.read.Load() == read {
		t.Error("an old answer is served as a new one")
	}

	delete(lists.of, "h4")
	got, _, text = observe(newServer(), "job=j1")
	if j := got.Observed; j == nil || j.BusbwGbps != nil || j.AtMostGbps == nil || *j.AtMostGbps != 362 || len(got.Missing) != 1 || got.Missing[0].Node != "h4" || !strings.Contains(strings.Join(got.Reasons, " "), "The queue pairs of h4 were not read: agent of") {
		t.Errorf("without a list: %s", text)
	}
	if got, _, text := observe(newServer(), "job=far"); got.Observed == nil || got.Observed.BusbwGbps != nil || len(got.Missing) != 2 || !strings.Contains(text, "far has no connected queue pair in the lists.") {
		t.Errorf("without any list: %s", text)
	}
	lists.of["h1"].QueuePairs[0].Driver = "bnxt_re"
	if got, _, text := observe(newServer(), "job=j1"); got.Observed == nil || got.Observed.BusbwGbps != nil || !strings.Contains(text, "j1: 1 queue pair is of a driver whose source ports are not known.") {
		t.Errorf("another driver: %s", text)
	}
	for query, want := range map[string]int{"job=none": 404, "": 400, "job=j1&dscp=64": 400, "job=j1&adaptive_routing=on": 400} {
		if _, code, text := observe(mux, query); code != want {
			t.Errorf("%s: %d %s, want %d", query, code, text, want)
		}
	}
	g.Topo.Links[3].SpeedGbps = 0
	if got, _, text := observe(newServer(), "job=j1"); got.Observed != nil || !strings.Contains(text, "has no speed_gbps") {
		t.Errorf("without a speed: %s", text)
	}
}
