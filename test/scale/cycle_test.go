//go:build scale

package scale

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/pprof"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/fabric"
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

// calmStore answers the queries of a cycle about a fleet in which all is well, without a server.
type calmStore struct {
	names   map[string]string // by text of the query
	answers map[string][]evidence.Sample
}

func newCalmStore(f *Fleet, s evidence.Settings) *calmStore {
	c := &calmStore{names: map[string]string{}, answers: map[string][]evidence.Sample{}}
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
		sent := f.sentBy(f.nodes[name])
		for _, nic := range f.nodes[name].nics {
			add("age", "nic", nic, 0.4)
			add("nicHealthy", "nic", nic, float64(sent[nic]))
			add("clock", "clock", nic, clockBoundNS*1e-9)
		}
	}
	c.answers["judgedFlows"] = []evidence.Sample{{Value: float64(len(f.flows))}}
	c.answers["nodeChanges"] = []evidence.Sample{{Value: 0}}
	return c
}

// QueryInstant implements evidence.Querier.
func (c *calmStore) QueryInstant(_ context.Context, query string, _ time.Time) ([]evidence.Sample, error) {
	return c.answers[c.names[query]], nil
}

// direct calls a handler in place of a network.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// BenchmarkCalmCycle measures a cycle over 16,384 NICs in which all is well, without Prometheus: what the analyzer does itself.
func BenchmarkCalmCycle(b *testing.B) {
	f, err := newFleet()
	if err != nil {
		b.Fatal(err)
	}
	client := &http.Client{Transport: direct{f.Handler("agents")}}
	url := func(node string) string { return "http://agents/" + node }
	settings := evidence.SettingsFor(*second)
	settings.Patience = 0
	settings.Windows = &evidence.AgentWindows{Client: client, URL: url, Timeout: time.Minute}
	o := analyzer.LoopOptions{Graph: f.graph, DB: newCalmStore(f, settings), Settings: settings, Agents: tracing.HTTPAgents{Client: client, URL: url}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	o.TwoSteps = selection.Options{MinFlows: 5000, MaxFlows: 1 << 20, Round: 10 * *second}
	l := analyzer.NewLoop(o)
	now := time.Now().Truncate(*second)
	cycle := func() {
		now = now.Add(*second)
		f.began = f.began.Add(-*second)
		if err := l.RunCycle(b.Context(), now); err != nil {
			b.Fatal(err)
		}
	}
	for i := 0; l.Snapshot().Report.State != fabric.Innocent; i++ {
		if cycle(); i > 200 {
			b.Fatalf("%+v", l.Snapshot().Report.Coverage)
		}
		l.AnswerQueued(b.Context())
	}
	old := l
	o.TwoSteps = selection.DefaultOptions()
	o.TwoSteps.Round = time.Duration(f.DirectedFlows()) * *second / 1000
	l = analyzer.NewLoop(o)
	l.InheritFrom(old)
	cycle()
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
		cycle()
	}
	b.ReportMetric((processorSeconds(b)-before)/float64(b.N), "cpu-s/op")
	if s := l.Snapshot(); len(s.Report.Verdicts) > 0 || s.Queries.CarriedFlows < f.DirectedFlows()*9/10 {
		b.Errorf("%s, %+v, %+v", s.Report.State, s.Report.Coverage, *s.Queries)
	}
}
