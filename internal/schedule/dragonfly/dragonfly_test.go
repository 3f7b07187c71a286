package dragonfly

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
)

// TestDragonfly checks that topologies pass the check of topology files without a warning, and have the requested measures.
func TestDragonfly(t *testing.T) {
	tests := map[string]struct {
		o                            Options
		switches, nodes, nics, links int
	}{
		"one group":     {Options{LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 2}, 4, 4, 4, 4 + 4},
		"three groups":  {Options{Groups: 3, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 4, NICsPerNode: 2, GlobalPerPair: 2, Parallel: 2}, 12, 12, 24, 24 + 3*8 + 6},
		"two planes":    {Options{Planes: 2, Groups: 4, LeavesPerGroup: 2, SpinesPerGroup: 3, NICsPerLeaf: 4, NICsPerNode: 2}, 2 * 20, 32, 64, 64 + 2*(4*6+6)},
		"rails":         {Options{Groups: 3, LeavesPerGroup: 4, SpinesPerGroup: 2, NICsPerLeaf: 3, NICsPerNode: 2, RailOptimised: true}, 18, 18, 36, 36 + 24 + 3},
		"adaptive":      {Options{Groups: 4, LeavesPerGroup: 2, SpinesPerGroup: 3, NICsPerLeaf: 1, Routing: fabric.Adaptive}, 20, 8, 8, 8 + 4*6 + 6},
		"balanced of 8": {Balanced(8, 17), 17 * 8, 272, 272, 272 + 17*16 + 17*16/2},
	}
	for name, tt := range tests {
		topo := NewTopology(tt.o)
		nics := 0
		for _, n := range topo.Nodes {
			nics += len(n.NICs)
		}
		if len(topo.Switches) != tt.switches || len(topo.Nodes) != tt.nodes || nics != tt.nics || len(topo.Links) != tt.links {
			t.Errorf("%s: %d switches, %d nodes, %d NICs, %d links", name, len(topo.Switches), len(topo.Nodes), nics, len(topo.Links))
		}
		text, err := yaml.Marshal(topo)
		if err != nil {
			t.Fatal(err)
		}
		read, found := fabric.ParseTopology(name, text)
		if len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
		// The groups of one plane can be found without their names.
		if tt.o.Planes < 2 && tt.o.Groups > 1 {
			want := map[string]string{}
			for i := range read.Switches {
				want[read.Switches[i].Name], read.Switches[i].Group = read.Switches[i].Group, ""
			}
			if n := read.FindGroups(); n != tt.o.Groups {
				t.Errorf("%s: %d groups were found", name, n)
			}
			for _, s := range read.Switches {
				if s.Group != want[s.Name] || s.PodName() != s.Group {
					t.Errorf("%s: %s was found to be in group %s, and is in %s", name, s.Name, s.Group, want[s.Name])
				}
			}
		}
	}
}

// TestLargest compares the largest fabric of switches of k ports with the numbers of Shpiner et al. 2017, section III:
// (k/2)^2+1 groups, k^4/16 + k^2/4 hosts, and leaves at most three links apart.
func TestLargest(t *testing.T) {
	for _, k := range []int{2, 4, 8} {
		topo := NewTopology(Balanced(k, k*k/4+1))
		g := fabric.NewGraph(topo)
		if got, want := len(topo.Nodes), (k*k*k*k+4*k*k)/16; got != want {
			t.Errorf("%d ports: %d hosts, want %d", k, got, want)
		}
		for _, s := range topo.Switches {
			if n := len(g.EndsOf(s.Name)); n != k {
				t.Errorf("%d ports: %s has %d", k, s.Name, n)
			}
		}
		for _, s := range topo.Switches {
			if s.Role != fabric.Leaf {
				continue
			}
			for other, d := range g.SwitchDistances(s.Name) {
				if o := g.Switch(other); o.Role == fabric.Leaf && other != s.Name && d != map[bool]int{true: 2, false: 3}[o.Group == s.Group] {
					t.Errorf("%d ports: %s and %s are %d links apart", k, s.Name, other, d)
				}
			}
		}
	}
}

// simplePaths lists all walks of at most most links from one switch to another that visit no switch twice.
func simplePaths(g *fabric.Graph, from, to string, most int) (out [][]string) {
	var walk func(way []string)
	walk = func(way []string) {
		at := way[len(way)-1]
		if at == to {
			out = append(out, slices.Clone(way))
			return
		}
		if len(way) > most {
			return
		}
		for _, end := range g.EndsOf(at) {
			if next, _, ok := fabric.SplitPort(g.PeerOf(end)); ok && !slices.Contains(way, next) {
				walk(append(way, next))
			}
		}
	}
	walk([]string{from})
	return out
}

// shapeOfWay writes the switches of a way as roles and group changes, such as "LS.SL" for leaf, spine, global link, spine,
// leaf.
func shapeOfWay(g *fabric.Graph, way []string) string {
	shape := ""
	for i, name := range way {
		s := g.Switch(name)
		if i > 0 && g.Switch(way[i-1]).Group != s.Group {
			shape += "."
		}
		shape += map[fabric.Role]string{fabric.Leaf: "L", fabric.Spine: "S"}[s.Role]
	}
	return shape
}

// TestCandidatePaths compares the candidate paths with all simple paths of the graph, of which those have the shapes that
// Shpiner et al. route by: minimal, over one spine of a third group, and over two of its spines and a leaf.
func TestCandidatePaths(t *testing.T) {
	for name, o := range map[string]Options{
		"one link a pair": {Groups: 4, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 1},
		"two links":       {Groups: 3, LeavesPerGroup: 3, SpinesPerGroup: 2, NICsPerLeaf: 1, GlobalPerPair: 2},
		"parallel":        {Groups: 3, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 1, Parallel: 2},
	} {
		for _, routing := range []fabric.Routing{"", fabric.Minimal, fabric.Adaptive} {
			o.Routing = routing
			g := fabric.NewGraph(NewTopology(o))
			for _, dst := range []string{"h1-2-1/eth1", "h2-1-1/eth1", "h3-2-1/eth1"} {
				src := "h1-1-1/eth1"
				got := map[string]bool{}
				paths, all := g.CandidatePaths(src, dst, 1<<20)
				for _, p := range paths {
					var way []string
					for _, h := range p {
						way = append(way, h.Switch)
					}
					for _, d := range p.LinkDirections(src, dst) {
						if g.PeerOf(d.From) != d.To {
							t.Errorf("%s: %s is no link of %v", name, d, way)
						}
					}
					if len(p.LinkDirections(src, dst)) != len(p)+1 || got[p.CanonicalKey()] {
						t.Errorf("%s: path with holes, or twice: %v", name, p)
					}
					got[p.CanonicalKey()] = true
				}
				a, _ := g.LeafOf(src)
				b, _ := g.LeafOf(dst)
				shapes := []string{"LSL"}
				if g.Switch(a).Group != g.Switch(b).Group {
					if shapes = []string{"LS.SL"}; routing == fabric.Adaptive {
						shapes = append(shapes, "LS.S.SL", "LS.SLS.SL")
					}
				}
				want := 0
				for _, way := range simplePaths(g, a, b, 6) {
					if slices.Contains(shapes, shapeOfWay(g, way)) {
						want++ // simplePaths walks every parallel link
					}
				}
				if !all || len(paths) != want || want == 0 {
					t.Errorf("%s, routing %q, to %s: %d candidates, want %d", name, routing, dst, len(paths), want)
				}
				if more, all := g.CandidatePaths(src, dst, want-1); all || more != nil {
					t.Errorf("%s: %d paths are listed where %d are allowed", name, len(more), want-1)
				}
			}
		}
	}
}

// TestNumberOfPaths compares the number of minimal paths with the product of the links: a pair of leaves of one group has
// one path for each spine, and of two groups one for each global link.
func TestNumberOfPaths(t *testing.T) {
	o := Options{Groups: 16, LeavesPerGroup: 4, SpinesPerGroup: 8, NICsPerLeaf: 1, GlobalPerPair: 3}
	g := fabric.NewGraph(NewTopology(o))
	count := map[string]int{}
	for _, dst := range g.NICIDs() {
		if dst != "h5-1-1/eth1" {
			count[fmt.Sprint(g.PathTier("h5-1-1/eth1", dst), len(g.ShortestPaths("h5-1-1/eth1", dst, 1000)))]++
		}
	}
	if want := map[string]int{"2 8": 3, "3 3": 60}; !maps.Equal(count, want) {
		t.Errorf("tiers and numbers of paths %v, want %v", count, want)
	}
}

// TestGroupsWithoutGlobalLink checks that packets between two groups without a global link go by a third one, whatever the
// routing, and that no path is listed twice.
func TestGroupsWithoutGlobalLink(t *testing.T) {
	for _, routing := range []fabric.Routing{fabric.Minimal, fabric.Adaptive} {
		topo := NewTopology(Options{Groups: 4, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 1, GlobalPerPair: 2, Routing: routing})
		g := fabric.NewGraph(topo)
		topo.Links = slices.DeleteFunc(topo.Links, func(l fabric.Link) bool {
			a, b := g.Switch(fabric.OwnerOf(l.A)), g.Switch(fabric.OwnerOf(l.B))
			return a != nil && b != nil && a.Group == "g1" && b.Group == "g2"
		})
		g = fabric.NewGraph(topo)
		paths, all := g.CandidatePaths("h1-1-1/eth1", "h2-1-1/eth1", 1<<20)
		seen := map[string]bool{}
		lengths := map[int]bool{}
		for _, p := range paths {
			seen[p.CanonicalKey()] = true
			lengths[len(p)] = true
		}
		if !all || len(seen) != len(paths) || !lengths[5] || lengths[4] || lengths[7] != (routing == fabric.Adaptive) || g.PathTier("h1-1-1/eth1", "h2-1-1/eth1") != 3 {
			t.Errorf("%s: %d paths, %d of them different, of these numbers of switches: %v", routing, len(paths), len(seen), lengths)
		}
	}
}

// TestTracesOfCandidates binds a trace of every candidate path, with every hop silent in turn, and with hops that answer by an
// address of their switch only. A trace is bound to the path that it took, or to none, with this path among its candidates.
func TestTracesOfCandidates(t *testing.T) {
	topo := NewTopology(Options{Groups: 4, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 1, GlobalPerPair: 3, Routing: fabric.Adaptive})
	address := map[string]netip.Addr{}
	for i := range topo.Switches {
		s := &topo.Switches[i]
		address[s.Name] = netip.AddrFrom4([4]byte{10, 255, 0, byte(i)})
		s.Addresses = []netip.Addr{address[s.Name]}
	}
	for i := range topo.Links {
		l := &topo.Links[i]
		l.AAddress = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 31)
		l.BAddress = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 1}), 31)
		address[l.A], address[l.B] = l.AAddress.Addr(), l.BAddress.Addr()
	}
	g := fabric.NewGraph(topo)
	src, dst := "h1-1-1/eth1", "h3-2-1/eth1"
	paths, _ := g.CandidatePaths(src, dst, 1000)
	bound, unknown := 0, 0
	for _, p := range paths {
		for silent := -1; silent < len(p); silent++ {
			for _, bySwitch := range []bool{false, true} {
				tr := fabric.Trace{State: fabric.PathValid, Reached: true}
				for i, h := range p {
					hop := fabric.RawHop{TTL: i + 1, Address: address[h.Switch+":"+h.In]}
					if bySwitch {
						hop.Address = address[h.Switch]
					}
					if i == silent {
						hop.Address = netip.Addr{}
					}
					tr.Hops = append(tr.Hops, hop)
				}
				r := fabric.ResolveTrace(g, src, dst, tr)
				among := slices.ContainsFunc(r.Candidates, func(c fabric.Path) bool { return c.CanonicalKey() == p.CanonicalKey() })
				switch {
				case r.State == fabric.PathValid && r.Path.CanonicalKey() == p.CanonicalKey():
					bound++
				case r.State == fabric.PathUnknown && among && (silent >= 0 || bySwitch): // two links may join two spines
					unknown++
				default:
					t.Errorf("hop %d of %s is silent: %s %s, %d candidates, %q", silent, p.CanonicalKey(), r.State, r.Path.CanonicalKey(), len(r.Candidates), r.Notes)
				}
			}
		}
	}
	t.Logf("%d paths: %d traces bound, %d unknown", len(paths), bound, unknown)
	if len(paths) < 20 || bound < 100 || unknown == 0 {
		t.Errorf("%d paths, %d traces bound, %d unknown: the test tests little", len(paths), bound, unknown)
	}
}

// TestSearchIsBounded checks that a search that finds nothing in a large fabric ends, and says that it is not complete.
func TestSearchIsBounded(t *testing.T) {
	g := fabric.NewGraph(NewTopology(Options{Groups: 12, LeavesPerGroup: 12, SpinesPerGroup: 12, NICsPerLeaf: 1, GlobalPerPair: 18, Routing: fabric.Adaptive}))
	last, _ := g.LeafOf("h2-1-1/eth1")
	tried := 0
	paths, all := g.FittingPaths("h1-1-1/eth1", "h2-1-1/eth1", 64, func(_ int, sw, _ string) bool {
		tried++
		return sw != last
	})
	if all || paths != nil || tried > 1<<16 {
		t.Errorf("%d paths, all: %v, %d hops tried", len(paths), all, tried)
	}
}

// TestGroupsAsParts: groups are parts of a fabric as pods are. Every link belongs to one of two that have all groups together,
// and minimal paths cross links of a group only if they begin or end there.
func TestGroupsAsParts(t *testing.T) {
	g := fabric.NewGraph(NewTopology(Options{Groups: 3, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 1, GlobalPerPair: 2}))
	parts := map[string]*fabric.Part{}
	for i := range g.Topo.Switches {
		group := g.Topo.Switches[i].Group
		part, err := fabric.NewPart(g, []string{group}, false)
		if err != nil {
			t.Fatal(err)
		}
		parts[group] = part
	}
	global := 0
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		owners := 0
		for _, p := range parts {
			if p.OwnsDirection(fabric.Direction{From: l.A, To: l.B}) {
				owners++
			}
		}
		if owners != 1 {
			t.Errorf("%s has %d owners", l.ID(), owners)
		}
		if g.IsGlobal(l) {
			global++
		}
	}
	if global != 6 || len(parts) != 3 {
		t.Errorf("%d global links and %d groups", global, len(parts))
	}
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			for _, path := range g.ShortestPaths(src, dst, 64) {
				for _, d := range path.LinkDirections(src, dst) {
					for group, p := range parts {
						if p.OwnsDirection(d) && !p.Concerns(fabric.Flow{Src: src, Dst: dst}) {
							t.Fatalf("%s>%s crosses %s of group %s", src, dst, d, group)
						}
					}
				}
			}
		}
	}
	if _, err := fabric.NewPart(g, []string{g.Topo.Switches[0].Group}, true); !errors.Is(err, fabric.ErrNoCore) {
		t.Errorf("a core of a Dragonfly+: %v", err)
	}
}
