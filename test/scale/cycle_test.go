//go:build scale

package scale

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

var cycleProfile = flag.String("scale.cycleprofile", "", "file for a profile of the measured cycles alone")

// processorSeconds returns what the process has used.
func processorSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// store answers the queries of a cycle about a fleet without a server.
type store struct {
	f       *Fleet
	names   map[string]string // by text of the query
	answers map[string][]evidence.Sample
}

func newStore(f *Fleet, s evidence.Settings) *store {
	c := &store{f: f, names: map[string]string{}, answers: map[string][]evidence.Sample{}}
	for name, q := range s.OverviewQueries() {
		c.names[q] = name
	}
	add := func(name, label, value string, v float64) {
		c.answers[name] = append(c.answers[name], evidence.Sample{Labels: map[string]string{label: value}, Value: v})
	}
	for _, name := range f.NodeNames() {
		add("nodeAge", "instance", name, 0.4)
		add("nodeBound", "instance", name, clockBoundNS*1e-9)
		add("nodeLosses", "instance", name, 0)
		for _, nic := range f.nodes[name].nics {
			add("age", "nic", nic, 0.4)
			add("clock", "clock", nic, clockBoundNS*1e-9)
		}
	}
	c.answers["judgedFlows"] = []evidence.Sample{{Value: float64(len(f.flows))}}
	c.answers["nodeChanges"] = []evidence.Sample{{Value: 0}}
	return c
}

var ofSomeNodes = regexp.MustCompile(`, instance=~"([^"]*)"`)

// QueryInstant implements evidence.Querier.
func (c *store) QueryInstant(_ context.Context, query string, _ time.Time) (out []evidence.Sample, err error) {
	asked := map[string]bool{}
	if m := ofSomeNodes.FindStringSubmatch(query); m != nil {
		for _, node := range strings.Split(strings.ReplaceAll(m[1], `\\`, ""), "|") {
			asked[node] = true
		}
		query = ofSomeNodes.ReplaceAllString(query, "")
	}
	name := c.names[query]
	switch name {
	case "nodeMoved", "nicMoved", "nicHealthy":
	default:
		return c.answers[name], nil
	}
	now := c.f.now()
	for _, node := range c.f.NodeNames() {
		if len(asked) > 0 && !asked[node] {
			continue
		}
		sent, all := c.f.sentBy(c.f.nodes[node]), 0
		for _, nic := range c.f.nodes[node].nics {
			healthy := sent[nic]
			for i, n := range c.f.unhealthy(nic, now) {
				healthy, all = healthy-n, all+n
				if name == "nicMoved" && n > 0 {
					out = append(out, evidence.Sample{Labels: map[string]string{"nic": nic, "condition": string(window.Conditions[i])}, Value: float64(n)})
				}
			}
			if name == "nicHealthy" {
				out = append(out, evidence.Sample{Labels: map[string]string{"nic": nic}, Value: float64(healthy)})
			}
		}
		if name == "nodeMoved" && all > 0 {
			out = append(out, evidence.Sample{Labels: map[string]string{"instance": node}, Value: float64(all)})
		}
	}
	return out, nil
}

// direct calls a handler in place of a network.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// fleetWindows reads windows in the time of a fleet.
type fleetWindows struct {
	*evidence.AgentWindows
	f *Fleet
}

// FindWindows implements evidence.WindowSource.
func (w fleetWindows) FindWindows(ctx context.Context, node string, at time.Time, q window.Query) (*window.Answer, error) {
	return w.AgentWindows.FindWindows(ctx, node, at.Add(-w.f.ahead), q)
}

// rig is an analyzer's loop over a fleet, in a time that advances with its cycles.
type rig struct {
	tb   testing.TB
	f    *Fleet
	loop *analyzer.Loop
	o    analyzer.LoopOptions

	cycles int
}

// newRig returns a rig whose network is innocent.
func newRig(tb testing.TB) *rig {
	f, err := newFleet()
	if err != nil {
		tb.Fatal(err)
	}
	client := &http.Client{Transport: direct{f.Handler("agents")}}
	url := func(node string) string { return "http://agents/" + node }
	settings := evidence.SettingsFor(*second)
	settings.Patience = 0
	settings.Windows = fleetWindows{&evidence.AgentWindows{Client: client, URL: url, Timeout: time.Minute}, f}
	r := &rig{tb: tb, f: f}
	r.o = analyzer.LoopOptions{Graph: f.graph, DB: newStore(f, settings), Settings: settings, Agents: tracing.HTTPAgents{Client: client, URL: url}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	r.o.TwoSteps = selection.Options{MinFlows: 5000, MaxFlows: 1 << 20, Round: 10 * *second}
	r.loop = analyzer.NewLoop(r.o)
	r.traceAll()
	for i := 0; r.loop.Snapshot().Report.State != fabric.Innocent; i++ {
		r.cycle()
		if i > 100 {
			tb.Fatalf("%+v", r.loop.Snapshot().Report.Coverage)
		}
	}
	old := r.loop
	r.o.TwoSteps = selection.DefaultOptions()
	r.o.TwoSteps.Round = time.Duration(f.DirectedFlows()) * *second / 1000
	r.loop = analyzer.NewLoop(r.o)
	r.loop.InheritFrom(old)
	r.traceAll()
	return r
}

// traceAll gives the loop the traces of all flows, as the nodes have them.
func (r *rig) traceAll() {
	r.tb.Helper()
	for _, node := range r.f.NodeNames() {
		traces, err := r.o.Agents.TracedPaths(r.tb.Context(), node, 0)
		if err != nil {
			r.tb.Fatal(err)
		}
		for _, trace := range traces {
			trace.TracedAt = r.f.now()
			if err := r.loop.PathStore().AddTrace(trace); err != nil {
				r.tb.Fatal(err)
			}
		}
	}
}

// cycle runs the next cycle, and returns how long it took. Its requests for traces are answered after that, and all flows are
// traced every two minutes.
func (r *rig) cycle() time.Duration {
	r.tb.Helper()
	r.f.ahead += *second
	began := time.Now()
	if err := r.loop.RunCycle(r.tb.Context(), r.f.now()); err != nil {
		r.tb.Fatal(err)
	}
	took := time.Since(began)
	r.f.ahead -= took // the fleet's time stands still during a cycle
	r.loop.AnswerQueued(r.tb.Context())
	if r.cycles++; r.cycles%120 == 0 {
		r.traceAll()
	}
	return took
}

// TestFaultsByCycles checks in how many cycles faults are named in a fabric of 16,384 NICs, one after the other and twenty at
// once, and that nothing besides is. It depends on no clock.
func TestFaultsByCycles(t *testing.T) {
	r := newRig(t)
	until := func(limit int, what string, ok func(snapshot.Snapshot) bool) {
		t.Helper()
		var longest time.Duration
		queried := 0
		for n := 1; ; n++ {
			longest = max(longest, r.cycle())
			s := r.loop.Snapshot()
			queried = max(queried, s.Queries.QueriedFlows)
			if ok(s) {
				t.Logf("%s: in cycle %d; at most %.2f s a cycle and %d flows", what, n, longest.Seconds(), queried)
				return
			}
			if n == limit {
				t.Fatalf("%s: not in %d cycles: %s, %+v, %+v, open %q, %q", what, limit, s.Report.State, s.Report.Coverage, *s.Queries, open(s), s.Warnings)
			}
		}
	}
	for _, c := range faultCases(r.f) {
		r.f.SetFaults(c.fault)
		until(10, fmt.Sprintf("%s over %d flows", c.name, r.f.FlowsOver(c.fault)), c.isNamed)
		r.cycle()
		if got := open(r.loop.Snapshot()); c.want != "" && !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: open %q, want %q", c.name, got, c.want)
		}
		r.f.SetFaults()
		until(60, "all clear after "+c.name, allClear)
	}
	twenty, want := twentyFaults(r.f)
	r.f.SetFaults(twenty...)
	twentyNamed := func(a snapshot.Snapshot) bool { return slices.Equal(open(a), want) }
	until(10, "twenty faults", twentyNamed)
	before := r.loop
	r.loop = analyzer.NewLoop(r.o) // it knows nothing
	r.traceAll()
	until(12, "twenty faults after a restart", twentyNamed)
	r.loop = before
	r.f.SetFaults()
	until(90, "all clear after twenty faults", allClear)
}

// BenchmarkCalmCycle measures a cycle over 16,384 NICs in which all is well, without Prometheus: what the analyzer does itself.
func BenchmarkCalmCycle(b *testing.B) {
	r := newRig(b)
	r.cycle()
	if *cycleProfile != "" {
		file, err := os.Create(*cycleProfile)
		if err != nil {
			b.Fatal(err)
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			b.Fatal(err)
		}
		defer pprof.StopCPUProfile()
	}
	b.ReportAllocs()
	before := processorSeconds(b)
	for b.Loop() {
		r.cycle()
	}
	b.ReportMetric((processorSeconds(b)-before)/float64(b.N), "cpu-s/op")
	if s := r.loop.Snapshot(); s.Report.State != fabric.Innocent {
		b.Errorf("%s, %+v, %+v", s.Report.State, s.Report.Coverage, *s.Queries)
	}
}
