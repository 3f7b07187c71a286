package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/sim/agents"
	"github.com/graylink/graylink/internal/sim/packets"
)

var silent = slog.New(slog.DiscardHandler)

// simulate starts every node's agent in a simulated fabric, as the demo does, but
// without those who read it.
func simulate(t testing.TB, topo *fabric.Topology) *agents.Fabric {
	t.Helper()
	topo, err := lab.WithAddresses(topo)
	if err != nil {
		t.Fatal(err)
	}
	g := fabric.NewGraph(topo)
	m := PlanMesh(g, 0)
	base := time.Now()
	f := agents.New(topo, base, packets.DefaultLoad, 1, silent)
	for i := range topo.Nodes {
		text, err := NodeConfig(g, m, &topo.Nodes[i])
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "node.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := probe.LoadConfig(file)
		if err != nil {
			t.Fatal(err)
		}
		cfg.ClockSync = true
		bend, err := bentclock.New(base, 0, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		e, err := f.Start(cfg, bend, silent)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := e.Apply(cfg); err == nil || !strings.Contains(err.Error(), "simulated") {
			t.Errorf("a simulated engine takes another configuration: %v", err)
		}
	}
	return f
}

// TestEveryPlannedFaultCanBeSimulated: whatever a seed chooses in the lab, the
// simulated fabric breaks as well, and heals.
func TestEveryPlannedFaultCanBeSimulated(t *testing.T) {
	topo := demoGraph(t).Topo
	f := simulate(t, topo)
	g := fabric.NewGraph(f.Topology())
	at := time.Duration(0)
	for _, kind := range lab.FaultKinds() {
		for seed := range uint64(10) {
			p, err := PlanFault(g, kind, seed, Params{Delay: 2 * time.Millisecond, Loss: 0.1, Step: time.Millisecond, DriftPPM: 50})
			if err != nil {
				t.Fatal(err)
			}
			id, err := f.AddFault(simulatedFault(p.Fault))
			if err != nil {
				t.Fatalf("%s, seed %d: %v", kind, seed, err)
			}
			at += 30 * time.Millisecond
			f.AdvanceTo(at)
			if err := f.ClearFault(id); err != nil {
				t.Fatalf("%s, seed %d: %v", kind, seed, err)
			}
		}
	}
	at += time.Second
	f.AdvanceTo(at)
	lost := f.PacketCounts().TotalLost()
	f.AdvanceTo(at + time.Second)
	if now := f.PacketCounts().TotalLost(); now != lost || lost == 0 {
		t.Errorf("%d packets lost by all faults, %d more after the last", lost, now-lost)
	}
}

// TestSimulatedSwitchTellsWhatItSees over a connection within the process, and
// nothing of this machine.
func TestSimulatedSwitchReportsSightings(t *testing.T) {
	s, err := newSimulated(Options{Topology: demoGraph(t).Topo, Progress: io.Discard, Log: silent})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.startSwitch("leaf1"); err != nil {
		t.Fatal(err)
	}
	if err := s.startSwitch("leaf9"); err == nil {
		t.Error("a switch that is none has an agent")
	}
	c := httpClient(s.dialAgent)
	defer c.CloseIdleConnections()
	get := func(url string) (status int, body []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if body, err = io.ReadAll(r.Body); err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, body
	}
	var report sighting.Report
	if status, body := get(SwitchURL("leaf1") + "/api/v1/sightings"); json.Unmarshal(body, &report) != nil {
		t.Fatalf("status %d: %s", status, body)
	}
	far := map[string]string{}
	for _, n := range report.Neighbours {
		far[n.Port] = n.System + ":" + n.SystemPort
	}
	if report.Switch != "leaf1" || report.Kind != sighting.KindSim || len(far) != 2 || far["up1"] != "spine1:dn1" || far["up2"] != "spine2:dn1" {
		t.Errorf("%+v", report)
	}
	if status, body := get(SwitchURL("leaf1") + "/api/v1/ports"); status != http.StatusNotFound {
		t.Errorf("ports of this machine: status %d, %s", status, body)
	}
	if conn, err := s.dialAgent(t.Context(), "tcp", "leaf2:"+switchPort); err == nil {
		conn.Close()
		t.Error("an agent that is none is reached")
	}
}

// BenchmarkSimulatedSecond measures the cost of a second of a simulated fabric, without its readers.
func BenchmarkSimulatedSecond(b *testing.B) {
	for _, leaves := range []int{1, 8, 16} {
		topo := clos.NewTopology(clos.Options{LeavesPerPod: leaves, SpinesPerPod: max(2, leaves/2), NICsPerLeaf: 8})
		b.Run(fmt.Sprintf("%dNICs", leaves*8), func(b *testing.B) {
			f := simulate(b, topo)
			at := time.Second
			f.AdvanceTo(at)
			b.ResetTimer()
			for range b.N {
				at += time.Second
				f.AdvanceTo(at)
			}
			b.ReportMetric(float64(f.PacketCounts().Sent)/at.Seconds(), "packets/s")
		})
	}
}
