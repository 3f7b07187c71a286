//go:build all

package demo

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/audit/gather"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/lab"
)

// auditDemo audits a demo's fabric.
func auditDemo(t *testing.T, d *Demo) audit.Report {
	t.Helper()
	e, err := gather.Collect(t.Context(), gather.Options{Graph: d.g, DB: d.db, Scrape: time.Second, Duration: 18 * time.Second, Settle: 30 * time.Second,
		Agents: tracing.HTTPAgents{Client: httpClient(d.site.dialAgent), URL: AgentURL}, SwitchAgents: d.newSightings(), Log: silent, Progress: func(format string, args ...any) { t.Logf(format, args...) }})
	if err != nil {
		t.Fatal(err)
	}
	c := audit.DefaultCriteria()
	c.Loss.MaxRatio = 1e-3 // what 18 seconds can bound
	scope, err := audit.ParseScope(d.g, "fabric")
	if err != nil {
		t.Fatal(err)
	}
	return audit.Run(e, c, scope)
}

// TestAuditNamesSimulatedFaults audits a simulated fabric without a fault, and with one of each kind at a time. Everything from
// the agents' samples on is what runs on a real fabric.
func TestAuditNamesSimulatedFaults(t *testing.T) {
	d, err := Start(t.Context(), Options{Name: "audit", Topology: demoGraph(t).Topo, Fabric: Simulated, Listen: "127.0.0.1:0", BendClocks: true, Seed: 1, Progress: testWriter{t}, Log: silent})
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	const link, other = "leaf2:up1--spine1:dn2", "leaf3:up2--spine2:dn3"
	for _, x := range []struct {
		fault *lab.Fault
		want  []string // CHECK ELEMENT, which must fail

	}{
		{},
		{&lab.Fault{Kind: lab.KindDelay, At: link, Delay: 60 * time.Microsecond}, []string{"A4 " + link, "A5 " + link}},
		{&lab.Fault{Kind: lab.KindLoss, At: link, Loss: 0.02}, []string{"A3 " + link}},
		{&lab.Fault{Kind: lab.KindMiscable, At: link + "," + other}, []string{"A2 " + link, "A2 " + other}},
		{&lab.Fault{Kind: lab.KindLinkDown, At: link}, []string{"A2 " + link}},
		{&lab.Fault{Kind: lab.KindClockStep, At: "h3/eth1", Step: time.Millisecond}, []string{"A11 h3/eth1"}},
	} {
		name := "clean"
		if x.fault != nil {
			name = x.fault.Kind
		}
		t.Run(name, func(t *testing.T) {
			if x.fault != nil {
				inject := func() {
					if _, err := d.site.AddFault(t.Context(), *x.fault); err != nil {
						t.Error(err)
					}
				}
				if x.fault.Kind == lab.KindClockStep { // a clock that stepped before the audit is as good as any
					timer := time.AfterFunc(12*time.Second, inject)
					defer timer.Stop()
				} else {
					inject()
				}
			}
			r := auditDemo(t, d)
			var failed []string
			for _, c := range r.Checks {
				for _, i := range c.Items {
					if i.Status == audit.Fail || i.Status == audit.Warn {
						failed = append(failed, c.ID+" "+i.Element)
					}
				}
			}
			slices.Sort(failed)
			failed = slices.Compact(failed)
			if !slices.Equal(failed, x.want) {
				var b bytes.Buffer
				if err := r.WriteMarkdown(&b); err != nil {
					t.Fatal(err)
				}
				t.Errorf("%v failed, want %v\n%s", failed, x.want, b.String())
			}
			if want := map[bool]audit.Status{true: audit.Fail, false: audit.Pass}[x.fault != nil]; r.Status != want {
				var b bytes.Buffer
				_ = r.WriteMarkdown(&b)
				t.Errorf("the audit is %s, want %s\n%s", r.Status, want, b.String())
			}
			if x.fault != nil {
				if err := d.site.ClearFault(t.Context(), ""); err != nil {
					t.Fatal(err)
				}
				if err := d.AwaitSteadyState(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// testWriter writes lines to the log of a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(string(bytes.TrimSpace(b)))
	return len(b), nil
}
