package paths

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// TestCorpus compares what the store, the tables of switches and the stitcher make of reports that are drawn. Times are
// whole seconds, so that many of them are equal.
func TestCorpus(t *testing.T) {
	var out strings.Builder
	defer func() { worldtest.CompareCorpus(t, out.String()) }()
	for n := range 40 {
		fmt.Fprintf(&out, "store %d\n", n)
		describeStore(t, &out, rand.New(rand.NewPCG(uint64(n), 1)))
	}
	for n := range 16 {
		fmt.Fprintf(&out, "tables %d\n", n)
		describeTables(t, &out, rand.New(rand.NewPCG(uint64(n), 2)))
	}
	for n := range 120 {
		describeStitched(&out, rand.New(rand.NewPCG(uint64(n), 3)))
	}
	for n := range 12 {
		fmt.Fprintf(&out, "cables %d\n", n)
		describeCables(t, &out, rand.New(rand.NewPCG(uint64(n), 4)))
	}
}

// seconds returns a time as seconds after sec(0), "-" for none.
func seconds(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%.4g", at.Sub(sec(0)).Seconds())
}

// spinesOf returns the second switch of every path, or the number of its hops where it has no three.
func spinesOf(all ...fabric.Path) string {
	var out []string
	for _, p := range all {
		if len(p) != 3 {
			out = append(out, fmt.Sprint(len(p)))
			continue
		}
		out = append(out, p[0].In+"."+strings.TrimPrefix(p[1].Switch, "a-p1-")+"."+p[2].Out)
	}
	return strings.Join(out, "+")
}

// describeBinding writes the initials of state and source, the path, its version, since when it was seen, confirmed and
// checked until when, candidates, the path before, and the number of notes.
func describeBinding(out io.Writer, b Binding) {
	fmt.Fprintf(out, "%.1s %s %.1s%d %s %s %s [%s] %s %d;", b.State, spinesOf(b.Path), b.Source, b.Version, seconds(b.Since), seconds(b.Confirmed), seconds(b.Checked), spinesOf(b.Candidates...), spinesOf(b.Before), len(b.Notes))
}

func describeStore(t *testing.T, out io.Writer, rng *rand.Rand) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 2 + rng.IntN(2), NICsPerLeaf: 2}))
	s := NewStore(g)
	if rng.IntN(4) == 0 {
		s.maxRoutes = 3
	}
	nics := g.NICIDs()
	flows := []fabric.Flow{{Src: nics[0], Dst: nics[2]}, {Src: nics[0], Dst: nics[2], Reply: true}, {Src: nics[3], Dst: nics[1], Number: 7}}
	switches := []string{}
	for i := range g.Topo.Switches {
		switches = append(switches, g.Topo.Switches[i].Name)
	}
	now := 10.0
	for range 40 {
		now += []float64{0, 1, 1, 2, 3, 9, 10, 11, 170, 181, 3590, 3601}[rng.IntN(12)] * float64(rng.IntN(2))
		f := flows[rng.IntN(len(flows))]
		src, dst := f.Endpoints()
		ways := g.ShortestPaths(src, dst, 8)
		way := ways[rng.IntN(len(ways))]
		at := now - float64(rng.IntN(3))
		switch rng.IntN(9) {
		case 0, 1:
			w := traced(at, resolved(way))
			w.repeated = rng.IntN(4) == 0
			applyReport(t, s, f, w)
		case 2:
			w := traced(at, lost(ways[:rng.IntN(len(ways)+1)]...))
			for range rng.IntN(7) {
				w.Notes = append(w.Notes, strings.Repeat("x", 150+rng.IntN(100)))
			}
			if w.split = rng.IntN(2) == 0; rng.IntN(2) == 0 {
				w.contradicts = func(p fabric.Path) bool { return p.CanonicalKey() != way.CanonicalKey() }
			}
			applyReport(t, s, f, w)
		case 3, 4:
			w := sighted(at, at-float64(rng.IntN(5)), way)
			if w.sightedHops = uint32(rng.IntN(8)); rng.IntN(3) == 0 {
				w.previousUntil = sec(at - float64(rng.IntN(6)))
			}
			applyReport(t, s, f, w)
		case 5, 6:
			for _, sw := range switches {
				if rng.IntN(4) > 0 {
					s.recordSwitchAnswer(sw, sec(now-float64(rng.IntN(3))), sec(now))
				}
			}
			s.setReportedUntil(sec(now - float64(rng.IntN(4))))
		case 7:
			w := pathReport{source: ByTables, at: sec(at), Resolved: resolved(way)}
			if rng.IntN(3) == 0 {
				w.Resolved, w.ended = lost(), true
			}
			applyReport(t, s, f, w)
		case 8:
			s.ExpireFlows(sec(now))
		}
		fmt.Fprintf(out, "  %g: ", now)
		b, ok := s.CurrentBinding(f)
		describeBinding(out, b)
		from := now - float64(rng.IntN(8))
		then, _ := s.BindingAt(f, sec(from), sec(from+float64(rng.IntN(9))))
		describeBinding(out, then)
		fmt.Fprintf(out, " %v map %d flows %d", ok, s.Version(), s.Len())
		for _, state := range states {
			fmt.Fprintf(out, " %d", s.StateCounts()[state])
		}
		fmt.Fprintf(out, " contested %d routes %d\n", len(s.contested), len(s.EveryNth(rng.IntN(7), 1+rng.IntN(3), anyTime)))
	}
	link, nic := g.Topo.Links[rng.IntN(len(g.Topo.Links))], nics[rng.IntN(len(nics))]
	for _, el := range []fabric.Element{{ID: link.ID(), Kind: fabric.KindLink}, {ID: link.B, Kind: fabric.KindPort}, {ID: nic, Kind: fabric.KindNIC}, {ID: fabric.OwnerOf(nic), Kind: fabric.KindHost}, {ID: switches[0], Kind: fabric.KindSwitch}} {
		fmt.Fprintf(out, "  %s %s: %v\n", el.Kind, el.ID, s.FlowsCrossing(el))
	}
	fmt.Fprintf(out, "  %v %v %v\n", s.FlowsBetween(nics[0], ""), s.FlowsBetween("", nics[2]), s.FlowsBetween("", ""))
}

func describeTables(t *testing.T, out io.Writer, rng *rand.Rand) {
	r := newRig(t)
	portsOf := map[string][]string{"leaf1": {"dn1", "up1", "up2", "dn2"}, "leaf2": {"up1", "up2", "dn1"}, "spine1": {"dn1", "dn2"}, "spine2": {"dn1", "dn2"}}
	at := 10.0
	r.begin(at)
	for range 30 {
		at += float64(rng.IntN(3))
		sw := four[rng.IntN(4)]
		var seen []string
		for n := range 3 {
			if rng.IntN(2) == 0 {
				continue
			}
			spine := 1 + (n+rng.IntN(5)/4)%2
			port := map[string]string{"leaf1": "dn1", "leaf2": fmt.Sprint("up", spine), "spine1": "dn1", "spine2": "dn1"}[sw]
			if rng.IntN(6) == 0 {
				port = portsOf[sw][rng.IntN(len(portsOf[sw]))]
			}
			if rng.IntN(4) == 0 {
				port += "<" + portsOf[sw][rng.IntN(len(portsOf[sw]))]
			}
			if sw == fmt.Sprint("spine", 3-spine) && rng.IntN(8) > 0 {
				continue
			}
			seen = append(seen, fmt.Sprintf("%d:%s", n, port))
		}
		var gone []int
		if rng.IntN(3) == 0 {
			gone = append(gone, rng.IntN(4))
		}
		if rng.IntN(9) == 0 {
			r.version[sw]++ // a report is missing
		}
		err := r.report(sw, at, rng.IntN(5) == 0, strings.Join(seen, " "), gone...)
		if rng.IntN(4) == 0 {
			r.s.Tick(sec(at + 1))
		}
		if rng.IntN(9) == 0 {
			r.s.RebindAll(sec(at + 1))
		}
		instance, since := r.s.NextQuery(sw)
		v := r.s.TableViews()[sw]
		fmt.Fprintf(out, "  %g %s %q gone %v: %v, next %q %d, %d flows at %s, foreign %d;", at, sw, seen, gone, err != nil, instance, since, v.Flows, seconds(v.AnsweredAt), v.Foreign)
		for n := range 3 {
			b, _ := r.s.store.CurrentBinding(flow(n))
			b.Version = 0 // of flows that one report changes, any may be the first
			fmt.Fprintf(out, " ")
			describeBinding(out, b)
		}
		b, _ := r.s.store.BindingAt(flow(0), sec(at-3), sec(at-1))
		b.Version = 0
		fmt.Fprintf(out, " then ")
		describeBinding(out, b)
		fmt.Fprintln(out)
	}
}

func describeStitched(out io.Writer, rng *rand.Rand) {
	g := fabric.NewGraph(clos.NewTopology([]clos.Options{{LeavesPerPod: 2, SpinesPerPod: 2, NICsPerLeaf: 2}, {Tiers: 3, Pods: 2, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 1}}[rng.IntN(2)]))
	nics := g.NICIDs()
	src, dst := nics[0], nics[1+rng.IntN(len(nics)-1)]
	ways := g.ShortestPaths(src, dst, 16)
	all := sightings(ways[rng.IntN(len(ways))])
	for i := range all {
		all[i].First = sec(float64(rng.IntN(9)))
	}
	if rng.IntN(3) == 0 { // the route changed
		old := sightings(ways[rng.IntN(len(ways))])
		for _, x := range old {
			i := slices.IndexFunc(all, func(y Sighting) bool { return y.Switch == x.Switch })
			switch {
			case i < 0:
				x.First = sec(1)
				all = append(all, x)
			case all[i].Port != x.Port:
				all[i].Older, all[i].OldLast, all[i].Balanced = []string{x.Port}, sec(float64(rng.IntN(9))), rng.IntN(5) == 0
			}
		}
	}
	silent := map[string]bool{}
	for range rng.IntN(3) {
		i := rng.IntN(len(all))
		silent[all[i].Switch] = rng.IntN(4) > 0
		if all = slices.Delete(all, i, i+1); len(all) == 0 {
			break
		}
	}
	if len(all) > 0 && rng.IntN(6) == 0 {
		x := &all[rng.IntN(len(all))]
		_, x.Port, _ = fabric.SplitPort(g.EndsOf(x.Switch)[rng.IntN(len(g.EndsOf(x.Switch)))])
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	r := NewStitcher(g).StitchPath(src, dst, all, func(sw string) bool { return silent[sw] })
	keys := []string{}
	for _, p := range r.Candidates {
		keys = append(keys, p.CanonicalKey())
	}
	fmt.Fprintf(out, "stitched %s %q candidates %q split %v since %s until %s hops %b mismatch %v notes %q\n", r.State, r.Path.CanonicalKey(), keys, r.Split, seconds(r.Since), seconds(r.PreviousUntil), r.SightedHops, r.Mismatch, r.Notes)
}

// describeCables swaps two cables, and writes what is found as flows show it, one after the other.
func describeCables(t *testing.T, out io.Writer, rng *rand.Rand) {
	believed := clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2})
	var cables []fabric.Link
	for _, l := range believed.Links {
		if !l.IsAccess() {
			cables = append(cables, l)
		}
	}
	i := rng.IntN(len(cables))
	j := (i + 1 + rng.IntN(len(cables)-1)) % len(cables)
	m := miswire(t, believed, swap{a: cables[i].B, aFar: cables[i].A, b: cables[j].A, bFar: cables[j].B}, rng.Uint64())
	m.route(2)
	edges := slices.SortedFunc(maps.Keys(m.truth), compareFlows)
	rng.Shuffle(len(edges), func(i, j int) { edges[i], edges[j] = edges[j], edges[i] })
	at := 0.0
	for n := range 2 * len(edges) {
		at++
		e := edges[n%len(edges)]
		all := sightings(m.truth[e])
		src, dst := e.Endpoints()
		m.s.applySightings(mustKey(t, m.s, e), m.st, m.st.StitchPath(src, dst, all, none), all, sec(at))
		standing, changed := m.s.CheckCables(sec(at))
		if !changed && int(at)%7 > 0 {
			continue
		}
		fmt.Fprintf(out, "  %g: %v; mismatches %d;", at, changed, len(m.s.cabling.mismatches))
		for _, x := range standing {
			fmt.Fprintf(out, " %v for %v by %d flows, LLDP %v, found %s", x.Fabric, x.Topology, x.Flows, x.LLDP, seconds(x.Found))
		}
		fmt.Fprintln(out)
		if changed {
			m.st = NewStitcher(m.s.Graph())
		}
	}
}
