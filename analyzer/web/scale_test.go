package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

// pageLimit is the most that the page may weigh on the largest fabric, in bytes.
const pageLimit = 1 << 19

// worst fills every list of the page, with more than it shows.
func worst(g *fabric.Graph) snapshot.Snapshot {
	s := healthy(g)
	for i := range 20 {
		l := g.Topo.Links[i*len(g.Topo.Links)/20]
		blame(&s, fabric.Direction{From: l.A, To: l.B}, 2_000_000, 0.01)
	}
	for i := range 100 {
		in := s.Incidents[i%20]
		in.Open, in.ID = false, fmt.Sprintf("past%d", i)
		s.Incidents = append(s.Incidents, in)
	}
	nics := g.NICIDs()
	for i := range 1000 {
		src, dst := nics[i%len(nics)], nics[(i*7919+1)%len(nics)]
		p := fabric.Path{}
		for j := range 5 {
			p = append(p, fabric.Hop{Switch: fmt.Sprintf("spine12-%d", j), In: "Ethernet1/12", Out: "Ethernet1/44"})
		}
		s.Edges = append(s.Edges, degradedEdge(src, dst, p))
	}
	s.Hosts = map[string]string{}
	for i := range 500 {
		s.Hosts[fmt.Sprintf("h%d", i)] = "does not answer"
	}
	return s
}

func TestSizeIsBounded(t *testing.T) {
	for _, c := range []struct {
		name string
		clos
		nics int
	}{
		{"three tiers", clos{pods: 32, leaves: 16, spines: 16, cores: 64, nodesPerLeaf: 32}, 16384},
		{"three tiers, no pods named", clos{pods: 32, leaves: 16, spines: 16, cores: 64, nodesPerLeaf: 32, noPods: true}, 16384},
		{"eight rails", clos{pods: 16, leaves: 32, spines: 16, cores: 64, nodesPerLeaf: 32, rails: 8}, 16384},
		{"two tiers", clos{pods: 1, leaves: 512, spines: 32, nodesPerLeaf: 32}, 16384},
		{"four planes", clos{planes: 4, pods: 16, leaves: 8, spines: 8, cores: 16, nodesPerLeaf: 32}, 16384},
		{"sixteen planes", clos{planes: 16, pods: 4, leaves: 8, spines: 8, cores: 4, nodesPerLeaf: 32}, 16384},
		{"256 pods", clos{pods: 256, leaves: 4, spines: 2, cores: 8, nodesPerLeaf: 16}, 16384},
		{"just small enough", clos{pods: 2, leaves: 16, spines: 8, cores: 8, nodesPerLeaf: 2}, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := c.graph(t)
			if n := len(g.NICIDs()); n != c.nics {
				t.Fatalf("the fabric has %d NICs, want %d", n, c.nics)
			}
			s := worst(g)
			for _, url := range []string{"/", "/?pod=p1", "/?src=" + g.NICIDs()[0] + "&dst=" + g.NICIDs()[1]} {
				body, all := page(t, handler(g, s), url)
				t.Logf("%s: %d bytes, %d strokes, %d boxes", url, len(body), len(with(all, "data-link", "")), len(with(all, "data-box", "")))
				if len(body) > pageLimit {
					t.Errorf("GET %s: %d bytes, want at most %d", url, len(body), pageLimit)
				}
				// Every pinned suspect keeps a stroke of its own.
				for _, in := range s.Incidents[:maxLabels] {
					d, err := fabric.ParseDirection(in.Direction)
					if err != nil {
						t.Fatal(err)
					}
					if e := strokeOf(t, all, d.From, d.To); e.attr["data-mark"] != "suspect" {
						t.Errorf("%s is not marked", in.Direction)
					}
				}
			}
		})
	}
}

func TestFoldedSaysSo(t *testing.T) {
	g := clos{pods: 32, leaves: 16, spines: 16, cores: 64, nodesPerLeaf: 32}.graph(t)
	s := healthy(g)
	blame(&s, fabric.Direction{From: "spine7-3:dn5", To: "leaf7-5:up3"}, 2_000_000, 0)
	*linkOf(&s, fabric.Direction{From: "spine9-1:dn2", To: "leaf9-2:up1"}) = snapshot.LinkView{}
	_, all := page(t, handler(g, s), "/")
	note := one(t, all, "data-folded", "true")
	contains(t, note.text, "1,086 switches are drawn as groups", "16,384 nodes are drawn as groups")
	one(t, all, "data-box", "spine7-3")
	one(t, all, "data-box", "leaf7-5")
	group := one(t, all, "data-box", "group leaf8-1 … leaf8-16")
	contains(t, group.text, "16 leaves: leaf8-1 … leaf8-16, pod p8")
	e := strokeOf(t, all, "group spine9-1 … spine9-16", "group leaf9-1 … leaf9-16")
	if e.attr["data-count"] != "256" || e.attr["data-state"] != "healthy" || !strings.Contains(e.attr["class"], "partial") {
		t.Errorf("a group with one silent link: count %q, state %q, class %q; want 256, healthy, partial", e.attr["data-count"], e.attr["data-state"], e.attr["class"])
	}
	contains(t, e.text, "256 links", "no evidence for 1 of them")

	_, all = page(t, handler(g, s), "/?pod=p3")
	for _, sw := range []string{"leaf3-1", "leaf3-16", "spine3-1", "spine3-16"} {
		one(t, all, "data-box", sw)
	}
	if len(with(all, "data-box", "leaf4-1")) != 0 {
		t.Error("pod p4 is unfolded, only p3 was asked")
	}
	contains(t, one(t, all, "data-folded", "true").text, "Pod p3 is unfolded")
	contains(t, one(t, all, "data-box", "group leaf30-1 … leaf32-16").text, "48 leaves", "pods p30 … p32")

	_, all = page(t, handler(g, s), "/?pod=p99")
	contains(t, one(t, all, "data-folded", "true").text, `no switch is in a pod "p99"`)
}

// The groups of a Dragonfly+ are drawn as pods are, with room for the links between them above, and the page stays small.
func TestDragonflyIsDrawn(t *testing.T) {
	g := fabric.NewGraph(dragonfly.NewTopology(dragonfly.Options{Groups: 16, LeavesPerGroup: 16, SpinesPerGroup: 16, NICsPerLeaf: 16, GlobalPerPair: 16}))
	s := healthy(g)
	body, all := page(t, handler(g, s), "/")
	if len(body) > pageLimit {
		t.Errorf("%d bytes, want at most %d", len(body), pageLimit)
	}
	contains(t, one(t, all, "data-box", "group a-g7-spine1 … a-g7-spine16").text, "16 spines", "group g7")
	if e := strokeOf(t, all, "group a-g1-spine1 … a-g1-spine16", "group a-g16-spine1 … a-g16-spine16"); e.attr["data-count"] != "16" {
		t.Errorf("%s links are drawn between two groups, want 16", e.attr["data-count"])
	}
	arches := 0
	for _, e := range with(all, "data-link", "") {
		var x1, y1, mx, my, x2, y2 float64
		if n, _ := fmt.Sscanf(e.attr["d"], "M%f %fQ%f %f %f %f", &x1, &y1, &mx, &my, &x2, &y2); n == 6 {
			if arches++; (y1+2*my+y2)/4 < 0 {
				t.Errorf("the highest point of a stroke is at %.1f: %s", (y1+2*my+y2)/4, e.attr["d"])
			}
		}
	}
	if arches != 16*15 {
		t.Errorf("%d strokes are between groups, want %d", arches, 16*15)
	}
	_, all = page(t, handler(g, s), "/?pod=g7")
	one(t, all, "data-box", "a-g7-spine16")
	one(t, all, "data-box", "a-g7-leaf1")
	if len(with(all, "data-box", "a-g8-leaf1")) != 0 {
		t.Error("group g8 is unfolded, only g7 was requested")
	}
}

// A fabric no larger than the limits is drawn whole.
func TestSmallIsDrawnWhole(t *testing.T) {
	g := clos{pods: 4, leaves: 8, spines: 4, cores: 8, nodesPerLeaf: 2}.graph(t)
	_, all := page(t, handler(g, healthy(g)), "/")
	if got, want := len(with(all, "data-link", "")), 2*len(g.Topo.Links); got != want {
		t.Errorf("%d strokes, want %d", got, want)
	}
	if n := len(with(all, "data-folded", "")); n != 0 {
		t.Error("something is folded")
	}
}

func TestOddFabrics(t *testing.T) {
	leaf := func(n string) fabric.Switch { return fabric.Switch{Name: n, Role: fabric.Leaf} }
	node := func(n string) fabric.Node {
		return fabric.Node{Name: n, NICs: []fabric.NIC{{Node: n, Device: "e"}}}
	}
	for _, c := range []struct {
		name    string
		topo    fabric.Topology
		strokes int
	}{
		{"nothing at all", fabric.Topology{}, 0},
		{"one leaf, no node", fabric.Topology{Switches: []fabric.Switch{leaf("l")}}, 0},
		{"parallel links", fabric.Topology{Switches: []fabric.Switch{leaf("l"), {Name: "s", Role: fabric.Spine}},
			Links: []fabric.Link{{A: "l:1", B: "s:1"}, {A: "l:2", B: "s:2"}}}, 4},
		{"a link within a tier", fabric.Topology{Switches: []fabric.Switch{leaf("l1"), leaf("l2")}, Links: []fabric.Link{{A: "l1:1", B: "l2:1"}}}, 2},
		{"a tier jump", fabric.Topology{Switches: []fabric.Switch{leaf("l"), {Name: "c", Role: fabric.Core}}, Links: []fabric.Link{{A: "c:1", B: "l:1"}}}, 2},
		{"a node on a spine", fabric.Topology{Switches: []fabric.Switch{{Name: "s", Role: fabric.Spine}}, Nodes: []fabric.Node{node("h")}, Links: []fabric.Link{{A: "s:1", B: "h/e"}}}, 2},
		{"a NIC without a link", fabric.Topology{Switches: []fabric.Switch{leaf("l")}, Nodes: []fabric.Node{node("h"), node("i")}, Links: []fabric.Link{{A: "l:1", B: "h/e"}}}, 2},
		{"an unknown role and tier", fabric.Topology{Switches: []fabric.Switch{{Name: "x", Role: "router"}, {Name: "y", Role: "router", Tier: 7}}, Links: []fabric.Link{{A: "x:1", B: "y:1"}}}, 2},
		{"a dangling link", fabric.Topology{Switches: []fabric.Switch{leaf("l")}, Links: []fabric.Link{{A: "l:1", B: "ghost:1"}}}, 0},
		{"names that are not ASCII", fabric.Topology{Switches: []fabric.Switch{leaf("葉%20ß")}, Nodes: []fabric.Node{node("узел")}, Links: []fabric.Link{{A: "葉%20ß:1/2.3", B: "узел/e"}}}, 2},
		{"uneven leaves", fabric.Topology{Switches: []fabric.Switch{leaf("l1"), leaf("l2")}, Nodes: []fabric.Node{node("a"), node("b"), node("c")},
			Links: []fabric.Link{{A: "a/e", B: "l1:1"}, {A: "b/e", B: "l1:2"}, {A: "c/e", B: "l2:1"}}}, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := fabric.NewGraph(&c.topo)
			body, all := page(t, handler(g, healthy(g)), "/")
			if n := len(with(all, "data-link", "")); n != c.strokes {
				t.Errorf("%d strokes, want %d", n, c.strokes)
			}
			for _, bad := range []string{"NaN", "Inf", `width="-`} {
				if strings.Contains(body, bad) {
					t.Errorf("%s in the page", bad)
				}
			}
		})
	}
}

// A very entangled fabric loses the least conspicuous strokes, never a suspect.
func TestEntangled(t *testing.T) {
	topo := &fabric.Topology{Switches: []fabric.Switch{{Name: "s", Role: fabric.Spine}}}
	for i := range 300 {
		topo.Links = append(topo.Links, fabric.Link{A: fmt.Sprintf("l%d:up", i), B: fmt.Sprintf("s:%d", i)})
		topo.Switches = append(topo.Switches, fabric.Switch{Name: fmt.Sprintf("l%d", i), Role: fabric.Leaf, Plane: fmt.Sprintf("p%d", i%300)})
		topo.Nodes = append(topo.Nodes, fabric.Node{Name: fmt.Sprintf("h%d", i)})
		for j := range 40 {
			dev := fmt.Sprintf("e%d", j)
			topo.Nodes[i].NICs = append(topo.Nodes[i].NICs, fabric.NIC{Node: topo.Nodes[i].Name, Device: dev})
			topo.Links = append(topo.Links, fabric.Link{A: topo.Nodes[i].Name + "/" + dev, B: fmt.Sprintf("l%d:%d", (i*31+j*17)%300, i*40+j)})
		}
	}
	g := fabric.NewGraph(topo)
	s := healthy(g)
	last := topo.Links[len(topo.Links)-1]
	blame(&s, fabric.Direction{From: last.A, To: last.B}, 50_000, 0)
	body, all := page(t, handler(g, s), "/")
	if len(body) > pageLimit {
		t.Errorf("%d bytes, want at most %d", len(body), pageLimit)
	}
	if e := strokeOf(t, all, last.A, last.B); e.attr["data-mark"] != "suspect" {
		t.Error("the suspect is not drawn as one")
	}
	contains(t, one(t, all, "data-folded", "true").text, "301 planes are drawn as one", "links between groups are not drawn")
}

func BenchmarkPage16384(b *testing.B) {
	g := clos{pods: 32, leaves: 16, spines: 16, cores: 64, nodesPerLeaf: 32}.graph(b)
	h := handler(g, worst(g))
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?fragment=main", nil))
		if w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}
