package paths

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
	"github.com/graylink/graylink/internal/sighting"
)

// saw reads sightings: "leaf1:dn1" is a port, "leaf2:up2<up1" one that it came in by
// after another, "leaf2:up2~up1" one of two in turns.
func saw(s string) []Sighting {
	var out []Sighting
	for _, f := range strings.Fields(s) {
		sw, ports, _ := strings.Cut(f, ":")
		x := Sighting{Switch: sw, Port: ports, First: sec(5)}
		for _, mark := range []string{"<", "~"} {
			if now, before, ok := strings.Cut(ports, mark); ok {
				x.Port, x.Older, x.OldLast, x.Balanced = now, []string{before}, sec(4), mark == "~"
			}
		}
		out = append(out, x)
	}
	return out
}

const viaSpine2 = "leaf1[dn1>up2] spine2[dn1>dn2] leaf2[up2>dn1]"

func TestStitch(t *testing.T) {
	tests := []struct {
		name, seen, silent string
		state              fabric.PathState
		path               string
		cands              int
		split              bool
		odd                string
	}{
		{name: "every switch sees it", seen: "leaf2:up1 leaf1:dn1 spine1:dn1", state: fabric.PathValid, path: viaSpine1},
		{name: "no switch sees it", state: fabric.PathUnknown},
		{name: "a silent spine, given away by the port after it", seen: "leaf2:up2 leaf1:dn1", silent: "spine2", state: fabric.PathValid, path: viaSpine2},
		{name: "a silent first leaf", seen: "leaf2:up2 spine2:dn1", silent: "leaf1", state: fabric.PathValid, path: viaSpine2},
		{name: "a silent last leaf", seen: "leaf1:dn1 spine2:dn1", silent: "leaf2", state: fabric.PathValid, path: viaSpine2},
		{name: "both leaves silent", seen: "spine2:dn1", silent: "leaf1 leaf2", state: fabric.PathValid, path: viaSpine2},
		{name: "two silent in a row", seen: "leaf1:dn1", silent: "spine1 spine2 leaf2", state: fabric.PathUnknown, cands: 2},
		{name: "two silent in a row, one way", seen: "leaf2:up1", silent: "spine1 leaf1", state: fabric.PathUnknown, cands: 1},
		{name: "a spine that newer, and did not see it yet", seen: "leaf2:up2 leaf1:dn1", state: fabric.PathUnknown, cands: 1, odd: "leaf2:up2 leaf1"},
		{name: "the far leaf did not see it yet", seen: "leaf1:dn1 spine2:dn1", state: fabric.PathUnknown, cands: 1},
		{name: "route change: the old spine is explained", seen: "leaf1:dn1 spine1:dn1 spine2:dn1 leaf2:up2<up1", state: fabric.PathValid, path: viaSpine2},
		{name: "route change, the new spine is silent", seen: "leaf1:dn1 spine1:dn1 leaf2:up2<up1", silent: "spine2", state: fabric.PathUnknown},
		{name: "route change, a leaf is silent", seen: "spine1:dn1 spine2:dn1 leaf2:up2<up1", silent: "leaf1", state: fabric.PathUnknown, cands: 1},
		{name: "route change, the new spine lags", seen: "leaf1:dn1 spine1:dn1 leaf2:up2<up1", state: fabric.PathUnknown},
		{name: "route change before a silent leaf", seen: "leaf1:dn1 spine1:dn1 spine2:dn1", silent: "leaf2", state: fabric.PathUnknown, cands: 2},
		{name: "a copy beside the path", seen: "leaf1:dn1 spine1:dn1 spine2:dn1 leaf2:up1", state: fabric.PathUnknown, cands: 1},
		{name: "in turns by two ports", seen: "leaf1:dn1 spine1:dn1 spine2:dn1 leaf2:up1~up2", state: fabric.PathUnknown, cands: 2, split: true},
		{name: "a loop", seen: "leaf1:up1 spine1:dn1 leaf2:up1", state: fabric.PathUnknown},
		{name: "from another NIC's port", seen: "leaf1:dn2 spine1:dn1 leaf2:up1", state: fabric.PathUnknown, odd: "leaf1:dn2 h1/eth1"},
		{name: "an unknown port", seen: "leaf1:dn7", state: fabric.PathUnknown},
		{name: "an unknown port, before", seen: "leaf1:dn1<dn7", state: fabric.PathUnknown},
		{name: "an unknown switch", seen: "leaf9:dn1", state: fabric.PathUnknown},
		{name: "reported twice", seen: "leaf1:dn1 leaf1:dn1 spine1:dn1 leaf2:up1", state: fabric.PathUnknown},
		{name: "swapped cables of a leaf", seen: "leaf1:dn1 spine2:dn1 leaf2:up1", state: fabric.PathUnknown, odd: "leaf2:up1 spine2"},
		{name: "the same beside a silent spine", seen: "leaf1:dn1 spine2:dn1 leaf2:up1", silent: "spine1", state: fabric.PathUnknown},
		{name: "the same on the move", seen: "leaf1:dn1 spine2:dn1 leaf2:up1<up2", state: fabric.PathUnknown},
		{name: "swapped cables of two leaves at a spine", seen: "leaf1:dn1 spine1:dn2 leaf2:up1", state: fabric.PathUnknown, odd: "spine1:dn2 leaf1"},
	}
	for _, tt := range tests {
		st := NewStitcher(graph(t))
		r := st.StitchPath("h1/eth1", "h2/eth1", saw(tt.seen), func(sw string) bool { return slices.Contains(strings.Fields(tt.silent), sw) })
		odd := ""
		if r.Mismatch != nil {
			odd = r.Mismatch.At + " " + r.Mismatch.From
		}
		if r.State != tt.state || r.Path.CanonicalKey() != tt.path || len(r.Candidates) != tt.cands || r.Split != tt.split || odd != tt.odd {
			t.Errorf("%s: %s %q, %d candidates, split %v, odd %q; want %s %q, %d, %v, %q; notes %q", tt.name, r.State, r.Path.CanonicalKey(), len(r.Candidates), r.Split, odd,
				tt.state, tt.path, tt.cands, tt.split, tt.odd, r.Notes)
		}
		if (r.State == fabric.PathUnknown || tt.silent != "") && len(r.Notes) == 0 {
			t.Errorf("%s: nothing says why", tt.name)
		}
	}
}

// TestStitchTimes: since when, until when, and by which switches.
func TestStitchTimes(t *testing.T) {
	seen := saw("leaf1:dn1 spine1:dn1 spine2:dn1 leaf2:up2<up1")
	seen[2].First = sec(7)
	st := NewStitcher(graph(t))
	if r := st.StitchPath("h1/eth1", "h2/eth1", seen, none); !r.Since.Equal(sec(7)) || !r.PreviousUntil.Equal(sec(4)) || r.SightedHops != 7 {
		t.Errorf("since %s, old until %s, seen %b", r.Since, r.PreviousUntil, r.SightedHops)
	}
	r := st.StitchPath("h1/eth1", "h2/eth1", saw("leaf1:dn1 leaf2:up2"), all)
	if !r.PreviousUntil.IsZero() || r.SightedHops != 5 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "spine2") {
		t.Errorf("old until %s, seen %b, notes %q", r.PreviousUntil, r.SightedHops, r.Notes)
	}
}

func none(string) bool { return false }
func all(string) bool  { return true }

// fabrics are Clos fabrics of several shapes, small enough to search whole.
var fabrics = []clos.Options{
	{LeavesPerPod: 4, SpinesPerPod: 3, NICsPerLeaf: 2},
	{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2, Parallel: 2},
	{Tiers: 3, Pods: 3, LeavesPerPod: 3, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 2},
	{Tiers: 3, Pods: 2, LeavesPerPod: 2, SpinesPerPod: 3, CoresPerRow: 3, NICsPerLeaf: 1, Parallel: 2},
	{Planes: 2, LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 2, NICsPerNode: 4, RailOptimised: true, RailOnly: true},
}

// sightings of a path.
func sightings(p fabric.Path) []Sighting {
	var out []Sighting
	for _, h := range p {
		out = append(out, Sighting{Switch: h.Switch, Port: h.In, First: sec(5)})
	}
	return out
}

func holdsKey(all []fabric.Path, p fabric.Path) bool {
	return slices.ContainsFunc(all, func(c fabric.Path) bool { return c.CanonicalKey() == p.CanonicalKey() })
}

// TestStitchNeverWrong: with all switches reporting it is the truth; with any of them
// silent, or late, it is the truth or unknown, and candidates hold the truth.
// TestStitchPreviousUntil checks that the path before lasted until the first switch saw the flow come another way.
func TestStitchPreviousUntil(t *testing.T) {
	at := sightingsBySwitch{"a": {Older: []string{"1"}, OldLast: sec(4)}, "b": {Older: []string{"1"}, OldLast: sec(3)}, "c": {OldLast: sec(1)}, "d": {Older: []string{"1"}, OldLast: sec(5)}}
	for range 10 { // in any order
		if r := provenPath(nil, at, nil); !r.PreviousUntil.Equal(sec(3)) {
			t.Fatalf("until %v, want %v", r.PreviousUntil, sec(3))
		}
	}
	if r := provenPath(nil, sightingsBySwitch{"c": at["c"]}, nil); !r.PreviousUntil.IsZero() {
		t.Errorf("no switch saw another way, and the path before lasted until %v", r.PreviousUntil)
	}
}

func TestStitchNeverWrong(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	found, filled, unsure := 0, 0, 0
	var topologies []*fabric.Topology
	for _, o := range fabrics {
		topologies = append(topologies, clos.NewTopology(o))
	}
	for _, routing := range []fabric.Routing{fabric.Minimal, fabric.Adaptive} {
		topologies = append(topologies, dragonfly.NewTopology(dragonfly.Options{Groups: 4, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 1, GlobalPerPair: 2, Routing: routing}))
	}
	for o, topology := range topologies {
		g := fabric.NewGraph(topology)
		st := NewStitcher(g)
		nics := g.NICIDs()
		for range 4000 {
			src, dst := nics[rng.IntN(len(nics))], nics[rng.IntN(len(nics))]
			ways, _ := g.CandidatePaths(src, dst, 1024)
			if src == dst || len(ways) == 0 {
				continue
			}
			truth := ways[rng.IntN(len(ways))]
			full := sightings(truth)
			rng.Shuffle(len(full), func(i, j int) { full[i], full[j] = full[j], full[i] })
			if r := st.StitchPath(src, dst, full, none); r.Path.CanonicalKey() != truth.CanonicalKey() || len(r.Notes) != 0 {
				t.Fatalf("%+v: all of %s is seen: %s %s %q", o, truth.CanonicalKey(), r.State, r.Path.CanonicalKey(), r.Notes)
			}
			silent, late := map[string]bool{}, map[string]bool{}
			for i := range g.Topo.Switches {
				switch rng.IntN(6) {
				case 0, 1:
					silent[g.Topo.Switches[i].Name] = true
				case 2:
					late[g.Topo.Switches[i].Name] = true
				}
			}
			part := slices.DeleteFunc(slices.Clone(full), func(x Sighting) bool { return silent[x.Switch] || late[x.Switch] })
			r := st.StitchPath(src, dst, part, func(sw string) bool { return silent[sw] })
			switch {
			case r.State == fabric.PathValid && r.Path.CanonicalKey() != truth.CanonicalKey():
				t.Fatalf("%+v: %s is taken for %s; seen %+v, silent %v", o, truth.CanonicalKey(), r.Path.CanonicalKey(), part, silent)
			case r.State == fabric.PathValid && len(part) < len(full):
				filled++
				for _, h := range truth {
					if late[h.Switch] {
						t.Fatalf("%s did not see the flow and is on its path %s", h.Switch, r.Path.CanonicalKey())
					}
				}
			case r.State == fabric.PathValid:
				found++
			case len(r.Candidates) > 0 && !holdsKey(r.Candidates, truth):
				t.Fatalf("%+v: %s is not a candidate: %v; seen %+v", o, truth.CanonicalKey(), r.Candidates, part)
			default:
				unsure++
			}
		}
	}
	t.Logf("%d whole, %d filled, %d unknown", found, filled, unsure)
	if filled < 1000 || unsure < 1000 {
		t.Errorf("%d filled, %d unknown: the test tests little", filled, unsure)
	}
}

// TestStitchRouteChange: old and new at once are the new path, or unknown; the old
// one only where no switch newer of anything else.
func TestStitchRouteChange(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	changed := 0
	for _, o := range fabrics {
		g := fabric.NewGraph(clos.NewTopology(o))
		st := NewStitcher(g)
		nics := g.NICIDs()
		for range 3000 {
			src, dst := nics[rng.IntN(len(nics))], nics[rng.IntN(len(nics))]
			ways := g.ShortestPaths(src, dst, 64)
			if src == dst || len(ways) < 2 {
				continue
			}
			old, now := ways[rng.IntN(len(ways))], ways[rng.IntN(len(ways))]
			at := map[string]*Sighting{}
			for _, h := range old {
				at[h.Switch] = &Sighting{Switch: h.Switch, Port: h.In, First: sec(1)}
			}
			for _, h := range now {
				x := at[h.Switch]
				switch {
				case x == nil:
					at[h.Switch] = &Sighting{Switch: h.Switch, Port: h.In, First: sec(5)}
				case x.Port != h.In:
					*x = Sighting{Switch: h.Switch, Port: h.In, First: sec(5), Older: []string{x.Port}, OldLast: sec(4)}
				}
			}
			silence := rng.IntN(3)
			silent := map[string]bool{}
			var seen []Sighting
			newer := false // of anything but the old path
			for _, p := range []fabric.Path{old, now} {
				for _, h := range p {
					x := at[h.Switch]
					if x == nil {
						continue
					}
					delete(at, h.Switch)
					if rng.IntN(4) < silence {
						silent[h.Switch] = true
						continue
					}
					seen = append(seen, *x)
					newer = newer || len(x.Older) > 0 || !slices.ContainsFunc(old, func(h fabric.Hop) bool { return h.Switch == x.Switch && h.In == x.Port })
				}
			}
			r := st.StitchPath(src, dst, seen, func(sw string) bool { return silent[sw] })
			if silence == 0 && r.Path.CanonicalKey() != now.CanonicalKey() {
				t.Fatalf("%+v: from %s to %s: %s %s %q", o, old.CanonicalKey(), now.CanonicalKey(), r.State, r.Path.CanonicalKey(), r.Notes)
			}
			if r.State == fabric.PathValid && r.Path.CanonicalKey() != now.CanonicalKey() && (newer || r.Path.CanonicalKey() != old.CanonicalKey()) {
				t.Fatalf("%+v: from %s to %s is taken for %s; seen %+v silent %v", o, old.CanonicalKey(), now.CanonicalKey(), r.Path.CanonicalKey(), seen, silent)
			}
			changed++
		}
	}
	if changed < 5000 {
		t.Errorf("%d changes", changed)
	}
}

// FuzzStitch: whatever the sightings, a path is made of cables that exist, from end to end.
func FuzzStitch(f *testing.F) {
	f.Add([]byte{0, 0, 4, 8, 7, 9}, uint8(0))
	f.Add([]byte{1, 3, 250, 3, 9, 100}, uint8(255))
	g := graph(f)
	var ends []string
	for _, sw := range g.Topo.Switches {
		ends = append(append(ends, g.EndsOf(sw.Name)...), sw.Name+":zz")
	}
	ends = append(ends, "leaf9:dn1", ":", "spine1:")
	f.Fuzz(func(t *testing.T, picks []byte, mute uint8) {
		var seen []Sighting
		for i := 0; i+1 < len(picks); i += 2 {
			sw, port, _ := strings.Cut(ends[int(picks[i])%len(ends)], ":")
			x := Sighting{Switch: sw, Port: port, First: sec(float64(i))}
			if how := picks[i+1]; how > 64 {
				_, older, _ := strings.Cut(ends[int(how)%len(ends)], ":")
				x.Older, x.OldLast, x.Balanced = []string{older}, sec(1), how > 160
			}
			seen = append(seen, x)
		}
		st := NewStitcher(g)
		r := st.StitchPath("h1/eth1", "h2/eth1", seen, func(sw string) bool { return mute&(1<<st.index[sw]) != 0 })
		if (r.State == fabric.PathValid) != (len(r.Path) > 0) {
			t.Fatalf("state %s with path %q", r.State, r.Path.CanonicalKey())
		}
		if r.State != fabric.PathValid && len(r.Notes) == 0 {
			t.Fatal("nothing says why")
		}
		for _, p := range append([]fabric.Path{r.Path}, r.Candidates...) {
			dirs := p.LinkDirections("h1/eth1", "h2/eth1")
			if len(p) > 0 && len(dirs) != len(p)+1 {
				t.Fatalf("path %s has holes", p.CanonicalKey())
			}
			for _, d := range dirs {
				if g.PeerOf(d.From) != d.To {
					t.Fatalf("path %s crosses %s, which is no cable", p.CanonicalKey(), d)
				}
			}
		}
	})
}

func TestMapper(t *testing.T) {
	m := Mapper{SourcePort: 49152, StampPort: 862}
	g := graph(t)
	for _, tt := range []struct{ src, dst, want string }{
		{"10.0.1.2:49152", "10.0.2.2:862", "h1/eth1>h2/eth1#0"},
		{"10.0.1.2:49217", "10.0.2.2:862", "h1/eth1>h2/eth1#65"},
		{"[::ffff:10.0.1.2]:49153", "10.0.2.2:862", "h1/eth1>h2/eth1#1"},
		{"10.0.2.2:862", "10.0.1.2:49154", "h1/eth1>h2/eth1#2/r"},
		{"10.0.1.2:49151", "10.0.2.2:862", ""},
		{"10.0.1.2:49152", "10.0.2.2:863", ""},
		{"10.0.1.2:862", "10.0.2.2:862", ""},
		{"10.0.1.1:49152", "10.0.2.2:862", ""}, // a switch port
		{"10.0.1.2:49152", "10.9.9.9:862", ""},
		{"10.0.1.2:49152", "10.0.1.2:862", ""},
	} {
		e, err := m.ProbeFlow(g, sighting.Flow{Src: netip.MustParseAddrPort(tt.src), Dst: netip.MustParseAddrPort(tt.dst)})
		if got := e.String(); (err == nil) != (tt.want != "") || err == nil && got != tt.want {
			t.Errorf("%s to %s: %s, %v; want %q", tt.src, tt.dst, got, err, tt.want)
		}
	}
	if _, err := m.ProbeFlow(g, sighting.Flow{}); err == nil || !strings.Contains(fmt.Sprint(err), `"src"`) {
		t.Errorf("no addresses: %v", err)
	}
	both := Mapper{SourcePort: 800, StampPort: 862}
	if e, err := both.ProbeFlow(g, sighting.Flow{Src: netip.MustParseAddrPort("10.0.1.2:862"), Dst: netip.MustParseAddrPort("10.0.2.2:862")}); err == nil {
		t.Errorf("a packet that may be either is %s", e)
	}
}
