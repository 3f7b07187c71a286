//go:build all

package e2e

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/sourceroute"
)

// TestSourceRoutedFabric runs a fabric of four spines whose hosts choose the paths of their probes. Every directed link has probes
// that cross it by choice, and faults of one direction of one link are named with their direction. A switch that does not know an
// identifier has a verdict of its own, and no link is blamed.
func TestSourceRoutedFabric(t *testing.T) {
	need(t)
	topo := loadTopology(t, "../../deploy/lab/srv6.yaml")
	d := startDemo(t, demo.Options{Name: "e2esrv6", Topology: topo, Fabric: demo.Namespaces, Seed: 1, Progress: testLog{t}})
	flowsAreChosen(t, d)
	const link, way = "leaf1:up2--spine2:dn1", "leaf1:up2->spine2:dn1"
	for _, f := range []lab.Fault{
		{Kind: lab.KindLoss, Loss: 0.1},
		{Kind: lab.KindDelay, Delay: 2 * time.Millisecond},
		{Kind: lab.KindBlackhole},
	} {
		f.At, f.Direction = link, way
		p := demo.PlannedFault{Fault: f, Element: link, Kind: fabric.KindLink, Direction: way, Params: map[string]any{},
			Scenarios: []fabric.Scenario{fabric.Corridor, fabric.HardFailure}}
		out, err := d.RunFault(t.Context(), p, 1, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if out.Verdict == nil || !out.ElementMatch || !out.DirectionMatch || len(out.FalseVerdicts) > 0 {
			t.Errorf("%s: %+v", f.Kind, out)
			continue
		}
		for _, e := range out.Verdict.Equivalent {
			if e.Kind != fabric.KindPort { // the ports at its ends are crossed by the same packets
				t.Errorf("%s: %s %s is listed as an equivalent", f.Kind, e.Kind, e.ID)
			}
		}
		t.Logf("%s: named after %.1f s", f.Kind, *out.SecondsToVerdict)
	}
	unknownIdentifierIsNamed(t, d)
}

// flowsAreChosen checks that every flow is bound to the path that its carrier takes by the routes of the kernels.
func flowsAreChosen(t *testing.T, d *demo.Demo) {
	t.Helper()
	s, g := d.Loop().Snapshot(), d.Graph()
	table, err := sourceroute.NewTable(g)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Edges {
		f, err := e.Obs.ParseFlow()
		if err != nil {
			t.Fatal(err)
		}
		if !e.Obs.Chosen || e.Obs.PathState != fabric.PathValid {
			t.Errorf("%s: chosen %t, %s", f, e.Obs.Chosen, e.Obs.PathState)
			continue
		}
		carrier, err := table.Carrier(e.Obs.Path)
		if err != nil {
			t.Fatal(err)
		}
		from, to := f.Endpoints()
		sport, dport := uint16(demo.SourcePort+f.Number), uint16(demo.StampPort)
		if f.Reply {
			sport, dport = dport, sport
		}
		p, err := d.Lab().CarrierPath(t.Context(), carrier, address(t, g, from), address(t, g, to), 17, sport, dport)
		if err != nil || p.CanonicalKey() != e.Obs.Path.CanonicalKey() {
			t.Errorf("%s is bound to %s, and the kernels forward %v by %s, %v", f, e.Obs.Path.CanonicalKey(), carrier, p.CanonicalKey(), err)
		}
	}
	c := s.Report.Paths
	if c.Mode != fabric.SRv6 || c.Links == nil || *c.Links < 1 || c.Chosen < len(s.Edges)*95/100 || s.Report.Coverage.Links < 1 {
		t.Errorf("%d flows; the report has paths %+v, coverage %+v", len(s.Edges), c, s.Report.Coverage)
	}
	t.Logf("%d of %d flows have chosen paths, which cross all links between switches", c.Chosen, len(s.Edges))
	resp, err := http.Get(d.URL() + "/api/v1/verdicts")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out struct {
		Paths fabric.PathChoice `json:"paths"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || out.Paths.Mode != fabric.SRv6 {
		t.Errorf("the API has paths %+v, %v", out.Paths, err)
	}
}

func address(t *testing.T, g *fabric.Graph, nic string) netip.Addr {
	t.Helper()
	a := g.ProbeAddress(nic)
	if !a.IsValid() {
		t.Fatalf("%s has no address", nic)
	}
	return a
}

// unknownIdentifierIsNamed makes a spine forget a leaf's identifier. The spine is named at once, nothing else is, and the probes
// that it refuses are not lost.
func unknownIdentifierIsNamed(t *testing.T, d *demo.Demo) {
	t.Helper()
	value := valuesOf(t, d)
	const lost, refused = `sum(fabric_probe_lost_total{direction="forward"})`, `sum(fabric_probe_refused_total)`
	lostBefore, refusedBefore := value(lost), value(refused)
	p := demo.PlannedFault{Fault: lab.Fault{Kind: lab.KindSIDUnknown, At: "spine2->leaf3"}, Element: "spine2", Kind: fabric.KindSwitch,
		Params: map[string]any{}, Scenarios: []fabric.Scenario{fabric.RoutingFault}}
	out, err := d.RunFault(t.Context(), p, 1, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case out.Verdict == nil || !out.ElementMatch || !out.ScenarioMatch || len(out.FalseVerdicts) > 0:
		t.Errorf("a switch that does not know an identifier: %+v", out)
	default:
		t.Logf("named after %.1f s: %s", *out.SecondsToVerdict, out.Verdict.Summary)
	}
	// A probe on its way when the first answer comes is lost by all that is known.
	l, r := value(lost)-lostBefore, value(refused)-refusedBefore
	if r < 100 || l > r/10 {
		t.Errorf("%g probes are lost and %g refused", l, r)
	}
	t.Logf("%g probes are lost and %g refused", l, r)
}
