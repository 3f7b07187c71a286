package web

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// noon returns the time of every cycle in these tests.
func noon() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

func ns(v int64) *int64 { return &v }

func loadDemo(t testing.TB) *fabric.Graph {
	t.Helper()
	topo, found := fabric.LoadTopology("../../deploy/lab/demo.yaml")
	if err := found.Err(); err != nil {
		t.Fatalf("the demo's topology: %v", err)
	}
	return fabric.NewGraph(topo)
}

// clos is a generated fabric: pods of leaves and spines, cores above when there
// are several pods, nodes with one NIC to each leaf of their rail group.
type clos struct {
	planes, pods, leaves, spines, cores int // leaves and spines per pod and plane
	nodesPerLeaf                        int
	rails                               int // NICs of a node, each to a leaf of its own; 0 is 1
	noPods                              bool
}

func (c clos) graph(t testing.TB) *fabric.Graph {
	t.Helper()
	topo := &fabric.Topology{Version: 1}
	rails := max(c.rails, 1)
	link := func(a, b string) { topo.Links = append(topo.Links, fabric.Link{A: a, B: b}) }
	podName := func(p int) string {
		if c.noPods {
			return ""
		}
		return fmt.Sprintf("p%d", p+1)
	}
	nodes := map[string]int{}
	for pl := range max(c.planes, 1) {
		plane := ""
		if c.planes > 1 {
			plane = string(rune('a' + pl))
		}
		for k := range c.cores {
			topo.Switches = append(topo.Switches, fabric.Switch{Name: fmt.Sprintf("core%s%d", plane, k+1), Role: fabric.Core, Plane: plane})
		}
		for p := range c.pods {
			for s := range c.spines {
				spine := fmt.Sprintf("spine%s%d-%d", plane, p+1, s+1)
				topo.Switches = append(topo.Switches, fabric.Switch{Name: spine, Role: fabric.Spine, Pod: podName(p), Plane: plane})
				for k := range c.cores {
					link(fmt.Sprintf("%s:up%d", spine, k+1), fmt.Sprintf("core%s%d:dn%d", plane, k+1, p*c.spines+s+1))
				}
			}
			for l := range c.leaves {
				leaf := fmt.Sprintf("leaf%s%d-%d", plane, p+1, l+1)
				topo.Switches = append(topo.Switches, fabric.Switch{Name: leaf, Role: fabric.Leaf, Pod: podName(p), Plane: plane})
				for s := range c.spines {
					link(fmt.Sprintf("%s:up%d", leaf, s+1), fmt.Sprintf("spine%s%d-%d:dn%d", plane, p+1, s+1, l+1))
				}
				for n := range c.nodesPerLeaf {
					// Leaves of one rail group share their nodes.
					name := fmt.Sprintf("h%d-%d-%d", p+1, l/rails+1, n+1)
					i, ok := nodes[name]
					if !ok {
						i = len(topo.Nodes)
						nodes[name] = i
						topo.Nodes = append(topo.Nodes, fabric.Node{Name: name})
					}
					dev := fmt.Sprintf("eth%d", len(topo.Nodes[i].NICs)+1)
					topo.Nodes[i].NICs = append(topo.Nodes[i].NICs, fabric.NIC{Node: name, Device: dev, Plane: plane})
					link(name+"/"+dev, fmt.Sprintf("%s:dn%d", leaf, n+1))
				}
			}
		}
	}
	return fabric.NewGraph(topo)
}

// healthy returns a snapshot in which every link is crossed and clean.
func healthy(g *fabric.Graph) snapshot.Snapshot {
	s := snapshot.Snapshot{At: noon(), Expected: 112, Baselines: 112,
		Report: fabric.Report{State: fabric.Innocent, Coverage: fabric.Coverage{Links: 1, Edges: 1}, Edges: fabric.EdgeCounts{Total: 112}}}
	for _, l := range g.Topo.Links {
		for _, d := range []fabric.Direction{{From: l.A, To: l.B}, {From: l.B, To: l.A}} {
			s.Links = append(s.Links, snapshot.LinkView{Link: l.ID(), From: d.From, To: d.To, Edges: 7, AddedDelayNS: ns(0)})
		}
	}
	return s
}

func linkOf(s *snapshot.Snapshot, d fabric.Direction) *snapshot.LinkView {
	for i := range s.Links {
		if s.Links[i].From == d.From && s.Links[i].To == d.To {
			return &s.Links[i]
		}
	}
	return nil
}

// blame opens an incident for one direction of a link.
func blame(s *snapshot.Snapshot, d fabric.Direction, added int64, loss float64) *incident.Incident {
	s.Report.State = fabric.Suspect
	if v := linkOf(s, d); v != nil {
		v.AddedDelayNS, v.LossRatio, v.Degraded = ns(added), loss, 6
	}
	in := incident.Incident{Open: true, OpenedAt: noon().Add(-40 * time.Second), LastSeen: noon(), Verdict: fabric.Verdict{
		ID: fmt.Sprintf("id%d", len(s.Incidents)), Element: fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}, Direction: d.String(), Confidence: 0.998,
		Symptom: fabric.Symptom{AddedDelayNS: added, LossRatio: loss}, Scenario: fabric.Corridor, Tier: 2, Plane: "a",
		Severity: fabric.SeverityWarning, Evidence: fabric.EvidenceCount{DegradedEdges: 6, ExplainedEdges: 6, HealthyEdgesThroughParent: 41},
		Equivalent:  []fabric.Element{{ID: d.From, Kind: fabric.KindPort}, {ID: d.To, Kind: fabric.KindPort}},
		BlastRadius: fabric.BlastRadius{NICs: 7, Edges: 6}, Action: "Check the queues, error counters and optics of both ports.",
		FirstSeen: noon().Add(-44 * time.Second), Summary: "Link " + d.LinkID() + " delays what crosses it."}}
	s.Incidents = append(s.Incidents, in)
	return &s.Incidents[len(s.Incidents)-1]
}

// degradedEdge returns a flow whose median is above its baseline.
func degradedEdge(src, dst string, p fabric.Path) snapshot.EdgeView {
	return snapshot.EdgeView{Condition: snapshot.Degraded, Flow: fabric.Flow{Src: src, Dst: dst}, Obs: fabric.Observation{Edge: fabric.Flow{Src: src, Dst: dst}.String(), Src: src, Dst: dst,
		Sent: 200, Lost: 3, OWD: &fabric.Quantiles{P50: ns(2_005_000), P99: ns(2_300_000)},
		Baseline: &fabric.Quantiles{P50: ns(4_900), P99: ns(8_800)}, Path: p, PathState: fabric.PathValid}}
}

// demoFault returns the demo's fabric with 2 ms on the way down from spine1 to leaf1.
func demoFault(t testing.TB) (*fabric.Graph, snapshot.Snapshot) {
	t.Helper()
	g := loadDemo(t)
	s := healthy(g)
	blame(&s, fabric.Direction{From: "spine1:dn1", To: "leaf1:up1"}, 2_000_000, 0)
	s.Report.Edges.Degraded = 6
	for _, src := range []string{"h3/eth1", "h5/eth1", "h7/eth1"} {
		for _, p := range g.ShortestPaths(src, "h1/eth1", 2)[:1] {
			s.Edges = append(s.Edges, degradedEdge(src, "h1/eth1", p))
		}
	}
	return g, s
}

func handler(g *fabric.Graph, s snapshot.Snapshot) *Handler {
	return &Handler{Snapshot: func() snapshot.Snapshot { return s }, Store: paths.NewStore(g), Title: "Graylink demo",
		Now: func() time.Time { return noon().Add(800 * time.Millisecond) }}
}

// traced binds a flow in the store to the first shortest path, as a trace
// whose every hop answers from its ingress port would.
func traced(t testing.TB, g *fabric.Graph, store *paths.Store, edge string) fabric.Path {
	t.Helper()
	e, err := fabric.ParseFlow(edge)
	if err != nil {
		t.Fatal(err)
	}
	src, dst := e.Endpoints()
	p := g.ShortestPaths(src, dst, 1)[0]
	tr := fabric.Trace{Edge: edge, State: fabric.PathValid, TracedAt: noon().Add(-3 * time.Second), Reached: true}
	for i, h := range p {
		tr.Hops = append(tr.Hops, fabric.RawHop{TTL: i + 1, Address: addressOf(t, g, h.Switch+":"+h.In)})
	}
	if err := store.AddTrace(tr); err != nil {
		t.Fatal(err)
	}
	if b, ok := store.CurrentBinding(e); !ok || b.State != fabric.PathValid {
		t.Fatalf("trace of %s: bound %v, state %s; want a valid path", edge, ok, b.State)
	}
	return p
}

func addressOf(t testing.TB, g *fabric.Graph, end string) netip.Addr {
	t.Helper()
	l := g.LinkAt(end)
	if l == nil {
		t.Fatalf("no link at %s", end)
	}
	if l.A == end {
		return l.AAddress.Addr()
	}
	return l.BAddress.Addr()
}

func contains(t testing.TB, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("the page lacks %q", w)
		}
	}
}
