package sourceroute

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/srv6"
)

// newFabric returns a fabric whose switches have locators.
func newFabric(t testing.TB, o clos.Options) *fabric.Topology {
	t.Helper()
	topo := clos.NewTopology(o)
	topo.Forwarding = fabric.SRv6
	for i := range topo.Switches {
		l, err := fabric.ParseLocator(fmt.Sprintf("fcbb:bb00:%x::/48", i+1))
		if err != nil {
			t.Fatal(err)
		}
		topo.Switches[i].Locator = l
	}
	return topo
}

func newTable(t testing.TB, topo *fabric.Topology) *Table {
	t.Helper()
	table, err := NewTable(fabric.NewGraph(topo))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// flowsOf returns the probes of the schedule, as a coordinator has them.
func flowsOf(t testing.TB, topo *fabric.Topology, absent ...string) []fabric.Flow {
	t.Helper()
	return flowsWith(t, topo, 8, absent...)
}

// flowsWith returns the same for a least number of flows that ECMP is expected to send over each link.
func flowsWith(t testing.TB, topo *fabric.Topology, least float64, absent ...string) (out []fabric.Flow) {
	t.Helper()
	away := map[string]bool{}
	for _, n := range absent {
		away[n] = true
	}
	s, err := schedule.Make(fabric.NewGraph(topo), schedule.Options{Absent: away, MinFlows: least})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Edges {
		out = append(out, s.FlowID(e))
	}
	return out
}

var fabrics = []struct {
	name string
	o    clos.Options
}{
	{"two tiers", clos.Options{LeavesPerPod: 4, SpinesPerPod: 4, NICsPerLeaf: 2, NICsPerNode: 1}},
	{"two tiers of 16 spines", clos.Options{LeavesPerPod: 8, SpinesPerPod: 16, NICsPerLeaf: 8, NICsPerNode: 1}},
	{"two planes", clos.Options{Planes: 2, LeavesPerPod: 4, SpinesPerPod: 4, NICsPerLeaf: 4, NICsPerNode: 2}},
	{"parallel links", clos.Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 4, NICsPerNode: 1, Parallel: 3}},
	{"three tiers", clos.Options{Tiers: 3, Pods: 3, LeavesPerPod: 3, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 4, NICsPerNode: 1}},
	{"three tiers, planes", clos.Options{Tiers: 3, Planes: 2, Pods: 2, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 3, NICsPerLeaf: 4,
		NICsPerNode: 2}},
	{"three tiers, parallel links", clos.Options{Tiers: 3, Pods: 2, LeavesPerPod: 2, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 4,
		NICsPerNode: 1, Parallel: 2}},
}

// crossings counts the flows and pairs over each directed link between switches by what the carriers say, which are followed
// switch by switch.
func crossings(t *testing.T, table *Table, p *Plan) (flows map[fabric.Direction]int, pairs map[fabric.Direction]map[string]bool) {
	t.Helper()
	flows, pairs = map[fabric.Direction]int{}, map[fabric.Direction]map[string]bool{}
	for _, c := range p.Choices {
		if c.Probe == nil {
			t.Fatalf("%v has no path: %s", c.Flow, c.Why)
		}
		ends := []string{c.Flow.Src, c.Flow.Dst}
		slices.Sort(ends)
		for _, way := range []struct {
			src, dst string
			carrier  netip.Addr
		}{{c.Flow.Src, c.Flow.Dst, c.ProbeCarrier}, {c.Flow.Dst, c.Flow.Src, c.ReplyCarrier}} {
			path, err := table.Path(way.src, way.dst, way.carrier)
			if err != nil {
				t.Fatalf("%v: %v", c.Flow, err)
			}
			for _, d := range path.LinkDirections(way.src, way.dst) {
				if fabric.IsNIC(d.From) || fabric.IsNIC(d.To) {
					continue
				}
				flows[d]++
				if pairs[d] == nil {
					pairs[d] = map[string]bool{}
				}
				pairs[d][strings.Join(ends, " ")] = true
			}
		}
	}
	return flows, pairs
}

func TestEveryDirectedLinkHasFlows(t *testing.T) {
	for _, f := range fabrics {
		for _, least := range []float64{8, 2} {
			t.Run(fmt.Sprintf("%s, %g flows", f.name, least), func(t *testing.T) { checkEveryLink(t, newFabric(t, f.o), least) })
		}
	}
}

func checkEveryLink(t *testing.T, topo *fabric.Topology, least float64) {
	table := newTable(t, topo)
	p := table.Choose(flowsWith(t, topo, least))
	flows, pairs := crossings(t, table, p)
	for _, d := range table.g.LinkDirections() {
		if fabric.IsNIC(d.From) || fabric.IsNIC(d.To) {
			continue
		}
		if flows[d] < MinFlows || len(pairs[d]) < 2 {
			t.Errorf("%v is crossed by %d flows of %d pairs", d, flows[d], len(pairs[d]))
		}
	}
	for _, l := range p.Links {
		if l.Flows != flows[l.Direction] || l.Pairs != len(pairs[l.Direction]) {
			t.Errorf("the plan has %d flows of %d pairs over %v, and the carriers %d of %d", l.Flows, l.Pairs, l.Direction,
				flows[l.Direction], len(pairs[l.Direction]))
		}
	}
	if len(p.Uncovered) > 0 {
		t.Errorf("without flows: %v", p.Uncovered)
	}
	enough, bound := len(p.Sufficient()), p.LowerBound(table.g)
	t.Logf("%d directed links, %d flows, of which %d suffice; lower bound %d", len(p.Links), len(p.Choices), enough, bound)
	if enough < bound || float64(enough) > 1.5*float64(bound)+1 {
		t.Errorf("%d of the flows suffice, and the lower bound is %d", enough, bound)
	}
}

func TestRepliesReturn(t *testing.T) {
	topo := newFabric(t, fabrics[3].o)
	table := newTable(t, topo)
	for _, c := range table.Choose(flowsOf(t, topo)).Choices {
		there, _ := table.Path(c.Flow.Src, c.Flow.Dst, c.ProbeCarrier)
		back, _ := table.Path(c.Flow.Dst, c.Flow.Src, c.ReplyCarrier)
		if !reflect.DeepEqual(there, c.Probe) || !reflect.DeepEqual(back, c.Reply) || !reflect.DeepEqual(back.Reverse(), there) {
			t.Fatalf("%v: there %v, back %v; planned %v, %v", c.Flow, there, back, c.Probe, c.Reply)
		}
	}
}

func TestLoadsAreEven(t *testing.T) {
	for _, f := range fabrics {
		topo := newFabric(t, f.o)
		table := newTable(t, topo)
		flows := flowsOf(t, topo)
		even := map[fabric.Direction]float64{}
		for _, x := range flows {
			for _, ends := range [][2]string{{x.Src, x.Dst}, {x.Dst, x.Src}} {
				all := table.g.ShortestPaths(ends[0], ends[1], 1024)
				for _, p := range all {
					for _, d := range p.LinkDirections(ends[0], ends[1]) {
						even[d] += 1 / float64(len(all))
					}
				}
			}
		}
		for _, l := range table.Choose(flows).Links {
			if limit := int(math.Ceil(1.25*even[l.Direction] - 1e-9)); l.Flows > limit {
				t.Errorf("%s: %v is crossed by %d flows, want at most %d", f.name, l.Direction, l.Flows, limit)
			}
		}
	}
}

func TestOrderDoesNotMatter(t *testing.T) {
	topo := newFabric(t, fabrics[4].o)
	table := newTable(t, topo)
	flows := flowsOf(t, topo)
	want := map[fabric.Flow]Choice{}
	for _, c := range table.Choose(flows).Choices {
		want[c.Flow] = c
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 3 {
		r.Shuffle(len(flows), func(i, j int) { flows[i], flows[j] = flows[j], flows[i] })
		for i, c := range table.Choose(flows).Choices {
			if c.Flow != flows[i] || !reflect.DeepEqual(c, want[c.Flow]) {
				t.Fatalf("%v: got %+v, want %+v", flows[i], c, want[flows[i]])
			}
		}
	}
}

func TestFewPathsChange(t *testing.T) {
	for _, f := range fabrics[1:] {
		topo := newFabric(t, f.o)
		table := newTable(t, topo)
		all := flowsOf(t, topo)
		before := map[fabric.Flow]Choice{}
		for _, c := range table.Choose(all).Choices {
			before[c.Flow] = c
		}
		worst := 0.0
		for i := range 8 {
			gone := topo.Nodes[i*len(topo.Nodes)/8].Name
			var left []fabric.Flow
			for _, x := range all {
				if fabric.OwnerOf(x.Src) != gone && fabric.OwnerOf(x.Dst) != gone {
					left = append(left, x)
				}
			}
			changed := 0
			for _, c := range table.Choose(left).Choices {
				if c.ProbeCarrier != before[c.Flow].ProbeCarrier {
					changed++
				}
			}
			worst = max(worst, float64(changed)/float64(len(all)-len(left)))
		}
		t.Logf("%s: %.2f flows change for each one that ends", f.name, worst)
		if worst > 1.5 {
			t.Errorf("%s: %.2f flows change for each one that ends", f.name, worst)
		}
	}
}

// The leaf without an agent is reached by detours of flows between other leaves.
func TestDetoursReachLeavesWithoutAgents(t *testing.T) {
	topo := newFabric(t, clos.Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 4, NICsPerNode: 1})
	table := newTable(t, topo)
	leaf, _ := table.g.LeafOf(topo.Nodes[0].NICs[0].ID())
	var absent []string
	for _, id := range table.g.NICIDs() {
		if l, _ := table.g.LeafOf(id); l == leaf {
			absent = append(absent, fabric.OwnerOf(id))
		}
	}
	p := table.Choose(flowsOf(t, topo, absent...))
	flows, _ := crossings(t, table, p)
	for d, n := range flows {
		if n < MinFlows {
			t.Errorf("%v is crossed by %d flows", d, n)
		}
	}
	if len(p.Uncovered) > 0 || len(flows) != len(p.Links) {
		t.Errorf("%d of %d links have flows, uncovered %v", len(flows), len(p.Links), p.Uncovered)
	}
	detours := 0
	for _, c := range p.Choices {
		if c.Detour {
			detours++
		}
	}
	if detours == 0 || detours > 4 {
		t.Errorf("%d flows take detours, want few", detours)
	}
}

func TestUncoveredLinksHaveReasons(t *testing.T) {
	three := newFabric(t, fabrics[4].o)
	two := newFabric(t, fabrics[0].o)
	for _, test := range []struct {
		name    string
		topo    *fabric.Topology
		without string
		flows   []fabric.Flow
		want    string
	}{
		{"no locator", two, two.Switches[0].Name, flowsOf(t, two), "has no locator"},
		{"one flow", two, "", flowsOf(t, two)[:1], "1 flows in all"},
		{"no flow", two, "", nil, "no probed pair"},
		// From one leaf to another pod's leaf and back are seven switches.
		{"too far", three, "", []fabric.Flow{{Src: nicAt(three, 0), Dst: nicAt(three, 1)}}, "more than 6 identifiers"},
	} {
		topo := *test.topo
		topo.Switches = slices.Clone(topo.Switches)
		for i := range topo.Switches {
			if topo.Switches[i].Name == test.without {
				topo.Switches[i].Locator = fabric.Locator{}
			}
		}
		table := newTable(t, &topo)
		p := table.Choose(test.flows)
		if !slices.ContainsFunc(p.Uncovered, func(u Uncovered) bool { return strings.Contains(u.Why, test.want) }) {
			t.Errorf("%s: got %v, want a reason with %q", test.name, p.Uncovered, test.want)
		}
	}
}

// nicAt returns the i-th NIC under the first leaf.
func nicAt(topo *fabric.Topology, i int) string {
	g := fabric.NewGraph(topo)
	first, _ := g.LeafOf(g.NICIDs()[0])
	for _, id := range g.NICIDs() {
		if leaf, _ := g.LeafOf(id); leaf == first {
			if i == 0 {
				return id
			}
			i--
		}
	}
	return ""
}

func TestTablesOfStrangeLocatorsAreRefused(t *testing.T) {
	for _, locator := range []string{"fdbb:bb00:1::/48", "fcbb:bb00:2::/48"} {
		topo := newFabric(t, fabrics[0].o)
		topo.Switches[0].Locator = fabric.Locator{Prefix: netip.MustParsePrefix(locator)}
		if _, err := NewTable(fabric.NewGraph(topo)); err == nil {
			t.Errorf("locator %s was accepted", locator)
		}
	}
	if _, err := NewTable(fabric.NewGraph(clos.NewTopology(fabrics[0].o))); !errors.Is(err, ErrNotSourceRouted) {
		t.Errorf("without locators: %v", err)
	}
}

func TestCarriersOfOtherFabricsAreRefused(t *testing.T) {
	topo := newFabric(t, fabrics[3].o)
	table := newTable(t, topo)
	src, dst := table.g.NICIDs()[0], table.g.NICIDs()[len(table.g.NICIDs())-1]
	p := table.g.ShortestPaths(src, dst, 1)[0]
	good, err := table.Carrier(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Path(src, dst, good); err != nil {
		t.Fatal(err)
	}
	_, sids, _ := srv6.DecodeCarrier(good)
	encode := func(b srv6.Block, sids ...srv6.SID) netip.Addr {
		a, err := srv6.EncodeCarrier(b, sids...)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	changed := func(i int, s srv6.SID) netip.Addr {
		x := slices.Clone(sids)
		x[i] = s
		return encode(table.Block(), x...)
	}
	for name, a := range map[string]netip.Addr{
		"other block":       encode(srv6.Block{0xfd}, sids...),
		"unknown switch":    changed(len(sids)-2, 0x999),
		"unknown link":      changed(0, 0xffff),
		"a NIC's port":      changed(0, 0xf000),
		"no end":            encode(table.Block(), sids[:len(sids)-1]...),
		"ends at once":      encode(table.Block(), srv6.Decapsulate),
		"not a carrier":     table.g.ProbeAddress(src),
		"which of 3 links":  encode(table.Block(), table.sids[p[0].Switch], table.sids[p[1].Switch], table.sids[p[2].Switch], srv6.Decapsulate),
		"ends at its start": encode(table.Block(), table.sids[p[0].Switch], srv6.Decapsulate),
	} {
		if got, err := table.Path(src, dst, a); err == nil {
			t.Errorf("%s: %v became %v", name, a, got)
		}
	}
	long := fabric.Path{}
	for range 4 {
		long = append(long, p...)
	}
	if _, err := table.Carrier(long); !errors.Is(err, srv6.ErrTooLong) {
		t.Errorf("a path of %d switches: %v", len(long), err)
	}
}

func BenchmarkChoose(b *testing.B) {
	for _, o := range []clos.Options{
		{LeavesPerPod: 32, SpinesPerPod: 64, NICsPerLeaf: 32, NICsPerNode: 1},
		{Tiers: 3, Pods: 8, LeavesPerPod: 8, SpinesPerPod: 4, CoresPerRow: 4, NICsPerLeaf: 16, NICsPerNode: 1},
	} {
		topo := newFabric(b, o)
		table, flows := newTable(b, topo), flowsOf(b, topo)
		b.Run(fmt.Sprintf("%d NICs, %d flows", len(table.g.NICIDs()), len(flows)), func(b *testing.B) {
			for b.Loop() {
				table.Choose(flows)
			}
		})
	}
}

// TestNthWays checks that numbers take the shortest paths between two NICs in turn.
func TestNthWays(t *testing.T) {
	for _, f := range fabrics {
		topo := newFabric(t, f.o)
		table := newTable(t, topo)
		all := table.g.NICIDs()
		src, dst := all[0], ""
		for _, id := range all { // the last one of the same plane
			if table.g.PlaneOf(id) == table.g.PlaneOf(src) {
				dst = id
			}
		}
		paths := table.g.ShortestPaths(src, dst, maxPaths)
		for n := range 2*len(paths) + 1 {
			there, back, err := table.NthWay(src, dst, n)
			if err != nil {
				t.Fatalf("%s: %v", f.name, err)
			}
			p, err := table.Path(src, dst, there)
			if err != nil || p.CanonicalKey() != paths[n%len(paths)].CanonicalKey() {
				t.Errorf("%s: way %d is %s, %v, want %s", f.name, n, p.CanonicalKey(), err, paths[n%len(paths)].CanonicalKey())
			}
			q, err := table.Path(dst, src, back)
			if err != nil || q.Reverse().CanonicalKey() != p.CanonicalKey() {
				t.Errorf("%s: the way back of %d is %s, %v", f.name, n, q.CanonicalKey(), err)
			}
		}
		if _, _, err := table.NthWay(src, "h0/eth9", 0); err == nil {
			t.Errorf("%s: a NIC that the fabric does not have has a way", f.name)
		}
	}
}
