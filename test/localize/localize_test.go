package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sim/incident"
)

func truth(dirs ...string) *incident.Case {
	c := &incident.Case{}
	for _, d := range dirs {
		c.Truth.Faults = append(c.Truth.Faults, incident.Fault{Direction: d})
	}
	return c
}

func dirs(s ...string) []fabric.Direction {
	var out []fabric.Direction
	for _, x := range s {
		d, err := fabric.ParseDirection(x)
		if err != nil {
			panic(err)
		}
		out = append(out, d)
	}
	return out
}

// An answer that is too wide pays for each directed link that it accuses wrongly.
func TestGradeCountsDirectedLinks(t *testing.T) {
	const ab, ba, cd = "a:1->b:1", "b:1->a:1", "c:1->d:1"
	for _, c := range []struct {
		name                 string
		truth                *incident.Case
		answers              blames
		right, wrong, missed int
	}{
		{"nothing wrong, nothing named", truth(), nil, 0, 0, 0},
		{"nothing wrong, one named", truth(), blames{{dirs: dirs(ab)}}, 0, 1, 0},
		{"found", truth(ab), blames{{dirs: dirs(ab)}}, 1, 0, 0},
		{"the other way", truth(ab), blames{{dirs: dirs(ba)}}, 0, 1, 1},
		{"both ways for one", truth(ab), blames{{dirs: dirs(ab, ba)}}, 1, 1, 0},
		{"twice named is once", truth(ab), blames{{dirs: dirs(ab)}, {dirs: dirs(ab, ba)}}, 1, 1, 0},
		{"one of two", truth(ab, cd), blames{{dirs: dirs(cd)}}, 1, 0, 1},
	} {
		s := c.answers.gradeCase(c.truth)
		if s.right != c.right || s.wrong != c.wrong || s.missed != c.missed {
			t.Errorf("%s: %d right, %d wrong, %d missed; want %d, %d, %d", c.name, s.right, s.wrong, s.missed, c.right, c.wrong, c.missed)
		}
	}
}

func TestSumTakesMeansOverCases(t *testing.T) {
	got := sumScores("c", "m", []score{{}, {right: 1, wrong: 1}, {missed: 2}, {wrong: 1}})
	// Precision 1, 0.5, 1, 0; recall 1, 1, 0, 1.
	if got.Precision != 0.625 || got.Recall != 0.75 || math.Abs(got.F1-0.68182) > 1e-4 || got.Clean != 2 || got.Blamed != 1 {
		t.Errorf("%+v", got)
	}
}

func TestReliability(t *testing.T) {
	bins := reliabilityBins([]claim{{0.95, true}, {0.97, false}, {0.31, true}, {1, true}})
	if b := bins[9]; b.Count != 3 || math.Abs(b.Right-2.0/3) > 1e-9 {
		t.Errorf("bin of 0.9 and more: %+v", b)
	}
	// 3/4 of the answers are off by 0.9733-0.6667, 1/4 by 0.69.
	if e := calibrationError(bins); math.Abs(e-0.4025) > 1e-4 {
		t.Errorf("calibration error %.4f", e)
	}
}

// A switch accuses all that it has, a link without direction both of its own.
func TestAccused(t *testing.T) {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 2, SpinesPerPod: 2, NICsPerLeaf: 2}))
	up := fabric.Direction{From: "a-p1-leaf1:up1", To: g.PeerOf("a-p1-leaf1:up1")}
	for _, c := range []struct {
		kind fabric.Kind
		name string
		dir  fabric.Direction
		want int
	}{
		{fabric.KindLink, up.LinkID(), up, 1},
		{fabric.KindLink, up.LinkID(), fabric.Direction{}, 2},
		{fabric.KindNIC, "h1-1-1/eth1", fabric.Direction{}, 2},
		{fabric.KindSwitch, "a-p1-spine1", fabric.Direction{}, 4},
		{fabric.KindSwitch, "a-p1-leaf1", fabric.Direction{}, 8},
		{fabric.KindPair, "a-p1-leaf1->a-p1-leaf2", fabric.Direction{}, 4},
		{fabric.KindCorridor, "a-p1-leaf1->a-p1-spine1->a-p1-leaf2", fabric.Direction{}, 2},
		{fabric.KindLeafUplinks, "a-p1-leaf1", fabric.Direction{}, 4},
		{fabric.KindHost, "h1-1-1", fabric.Direction{}, 2},
	} {
		if got := accusedLinks(g, c.kind, c.name, c.dir); len(got) != c.want {
			t.Errorf("%s %s: %d directed links, want %d: %v", c.kind, c.name, len(got), c.want, got)
		}
	}
}

// Every method finds one link that drops a lot where much is measured. 007 names
// others besides: in a small fabric a single lost packet is a large share of the votes.
func TestMethodsFindOneBadLink(t *testing.T) {
	f := incident.NewFabric(clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 4, NICsPerLeaf: 4}))
	o := incident.ProbeDrops(incident.Known)
	o.MostFaults, o.Least, o.Most, o.Background = 1, 0.2, 0.2, 1e-6
	for seed := range uint64(6) {
		cs := o.MakeCase(f, seed)
		for _, m := range methods {
			if s := m.run(f.Graph, cs.Observations).gradeCase(cs); s.missed > 0 || s.wrong > 0 && m.name != "007" {
				t.Errorf("seed %d, %s: %d wrong, %d missed of %v", seed, m.name, s.wrong, s.missed, cs.Truth.Faults)
			}
		}
	}
}

// NetBouncer's success ratios are where its objective is least along each link.
func TestSuccessRatiosMinimise(t *testing.T) {
	f := incident.NewFabric(clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 3}))
	o := incident.ProbeDrops(incident.Known)
	o.LeastFaults, o.Least, o.Most = 3, 0.05, 0.1
	in := incidenceOf(o.MakeCase(f, 1).Observations)
	x := in.successRatios()
	objective := func() float64 {
		sum := 0.0
		for _, v := range x {
			sum += bouncerLambda * v * (1 - v)
		}
		for _, c := range in.flows {
			p := 1.0
			for _, l := range c.links {
				p *= x[l]
			}
			y := 1 - c.lost/c.sent
			sum += c.sent * (y - p) * (y - p)
		}
		return sum
	}
	least := objective()
	for l := range x {
		was := x[l]
		for _, v := range []float64{was - 3e-5, min(1, was+3e-5)} {
			x[l] = v
			if objective() < least-2e-4 { // the descent stops a little before the bottom
				t.Errorf("%s: %.6f is better than %.6f", in.dirs[l], v, was)
			}
		}
		x[l] = was
	}
}

func TestGradeVerdicts(t *testing.T) {
	link := incident.Fault{Element: fabric.Element{ID: "a:1--b:1", Kind: fabric.KindLink}, Direction: "a:1->b:1", Scenario: fabric.Corridor}
	nic := incident.Fault{Element: fabric.Element{ID: "h/e", Kind: fabric.KindNIC}, Scenario: fabric.BadNIC}
	host := incident.Fault{Element: fabric.Element{ID: "h", Kind: fabric.KindHost}, Scenario: fabric.Host}
	verdict := func(f incident.Fault, change func(*fabric.Verdict)) fabric.Verdict {
		v := fabric.Verdict{Element: f.Element, Direction: f.Direction, Scenario: f.Scenario, Confidence: 0.9}
		if change != nil {
			change(&v)
		}
		return v
	}
	cable := fabric.Element{ID: "h/e--a:2", Kind: fabric.KindAccessLink}
	for _, c := range []struct {
		name                              string
		faults                            []incident.Fault
		verdicts                          []fabric.Verdict
		right, wrong, missed, scene, ways int
		blamed                            int
	}{
		{"nothing", nil, nil, 0, 0, 0, 0, 0, 0},
		{"found", []incident.Fault{link}, []fabric.Verdict{verdict(link, nil)}, 1, 0, 0, 1, 1, 0},
		{"the other way", []incident.Fault{link}, []fabric.Verdict{verdict(link, func(v *fabric.Verdict) { v.Direction = "b:1->a:1" })}, 1, 0, 0, 1, 0, 0},
		{"another scenario", []incident.Fault{link}, []fabric.Verdict{verdict(link, func(v *fabric.Verdict) { v.Scenario = fabric.Flap })}, 1, 0, 0, 0, 1, 0},
		{"twice", []incident.Fault{link}, []fabric.Verdict{verdict(link, nil), verdict(link, nil)}, 1, 1, 0, 1, 1, 1},
		{"elsewhere", []incident.Fault{link}, []fabric.Verdict{verdict(nic, nil)}, 0, 1, 1, 0, 0, 1},
		{"its cable, which is listed", []incident.Fault{nic}, []fabric.Verdict{verdict(nic, func(v *fabric.Verdict) {
			v.Element, v.Equivalent = cable, []fabric.Element{nic.Element}
		})}, 1, 0, 0, 1, 1, 0},
		{"a switch that lists the NIC", []incident.Fault{nic}, []fabric.Verdict{verdict(nic, func(v *fabric.Verdict) {
			v.Element, v.Equivalent = fabric.Element{ID: "a", Kind: fabric.KindSwitch}, []fabric.Element{nic.Element}
		})}, 0, 1, 1, 0, 0, 1},
		{"the NIC of a starved host", []incident.Fault{host}, []fabric.Verdict{verdict(nic, nil)}, 0, 1, 1, 0, 0, 1},
		{"another starved host", []incident.Fault{host}, []fabric.Verdict{verdict(host, func(v *fabric.Verdict) { v.Element.ID = "k" })}, 0, 1, 1, 0, 0, 0},
	} {
		cs := &incident.Case{Truth: incident.Truth{Faults: c.faults}}
		s := report{Verdicts: c.verdicts}.gradeCase(cs)
		if got, want := [6]int{s.right, s.wrong, s.missed, s.sameScenario, s.sameDirection, s.blamed}, [6]int{c.right, c.wrong, c.missed, c.scene, c.ways, c.blamed}; got != want {
			t.Errorf("%s: right, wrong, missed, scenario, direction, blamed %v, want %v", c.name, got, want)
		}
	}
}

// A scenario's F1 counts its faults that were found as it, and what else was said to
// be it.
func TestMacroF1(t *testing.T) {
	c := confusion{{fabric.Flap, fabric.Flap}: 3, {fabric.Flap, none}: 1, {fabric.Incast, fabric.Flap}: 2, {none, fabric.Flap}: 2}
	// flap: 2*3 / (4 made + 7 said); incast: 0.
	if got, want := c.macroF1(), 6.0/11/2; math.Abs(got-want) > 1e-9 {
		t.Errorf("%.4f, want %.4f", got, want)
	}
}

func TestEstimatesAreComparedByDirectedLink(t *testing.T) {
	cs := &incident.Case{
		Topology: &fabric.Topology{Links: []fabric.Link{{A: "a:1", B: "b:1"}, {A: "a:2", B: "c:1"}, {A: "a:3", B: "d:1"}}},
		Truth:    incident.Truth{Faults: []incident.Fault{{Direction: "a:1->b:1", DelayNS: 10_000}, {Direction: "c:1->a:2", DelayNS: 1000}}},
	}
	s := estimates{{Direction: "a:1->b:1", AddedDelayNS: 10_900, Identifiable: true}, {Direction: "a:2->c:1", AddedDelayNS: 700, Identifiable: true},
		{Direction: "d:1->a:3", AddedDelayNS: 9000}}.gradeCase(cs)
	e := s.links
	if len(e.Slow) != 2 || e.Slow[0] != 900 || e.Slow[1] != 1000 || len(e.Clean) != 1 || e.Clean[0] != 700 || e.CleanLinks != 3 || e.Unidentified != 1 || e.shareWithin() != 0.5 {
		t.Errorf("%+v", e)
	}
	if q := quantileOf([]float64{5, 7}, 8, 0.95); q != 7 {
		t.Errorf("P95 of eight zeros, 5 and 7: %v", q)
	}
	if q := quantileOf([]float64{5, 7}, 8, 0.5); q != 0 {
		t.Errorf("median of eight zeros, 5 and 7: %v", q)
	}
}

// TestHealthyFabricHasNoSuspects checks that the shipped method names nothing in a fabric without faults.
func TestHealthyFabricHasNoSuspects(t *testing.T) {
	for _, name := range []string{"thin-k10-none-known", "scenario-duo-none"} {
		for _, c := range allCells() {
			if c.name != name {
				continue
			}
			f := incident.NewFabric(c.topo())
			for seed := range uint64(2) {
				cs := c.make(f, seed)
				if s := c.contestants[0].run(f.Graph, cs.Observations).gradeCase(cs); s.wrong > 0 {
					t.Errorf("%s seed %d: %d wrong answers", name, seed, s.wrong)
				}
			}
		}
	}
}

// TestMarksAndClassesAddNoVerdict checks cases in which a mark of an innocent node or a second class once added a false
// verdict: a host whose flows crossed the fault, and a queue of the port that was at fault as a whole.
func TestMarksAndClassesAddNoVerdict(t *testing.T) {
	seeds := map[string]uint64{"scenario-marked3-hot_spine": 101, "scenario-marked3-leaf_uplinks": 101, "scenario-marked3-hard_failure": 101,
		"scenario-marked3-hol_cross_port": 101, "scenario-marked3-clock": 101, "scenario-marked3-host": 101,
		"scenario-classes-incast": 101, "scenario-classes-bad_nic": 101, "scenario-classes-leaf_uplinks": 102, "scenario-classes-corridor": 103}
	for _, c := range allCells() {
		seed, wanted := seeds[c.name]
		if !wanted {
			continue
		}
		delete(seeds, c.name)
		f := incident.NewFabric(c.topo())
		cs := c.make(f, seed)
		if s := c.contestants[0].run(f.Graph, cs.Observations).gradeCase(cs); s.wrong > 0 || s.missed > 0 {
			t.Errorf("%s seed %d: %d wrong and %d missed", c.name, seed, s.wrong, s.missed)
		}
	}
	if len(seeds) > 0 {
		t.Errorf("no cells are named %v", slices.Sorted(maps.Keys(seeds)))
	}
}

// TestSmallDelays checks links that add less than single flows show, beside hosts that are busy, and fabrics in which
// only hosts are.
func TestSmallDelays(t *testing.T) {
	seeds := map[string][]uint64{"floor-quiet-3us": {101}, "floor-bursts-5us": {101}, "floor-bursts-12us": {101}, "floor-none-bursts": {101, 102}}
	for _, c := range allCells() {
		for _, seed := range seeds[c.name] {
			f := incident.NewFabric(c.topo())
			cs := c.make(f, seed)
			if s := c.contestants[0].run(f.Graph, cs.Observations).gradeCase(cs); s.wrong > 0 || s.missed > 0 || s.directionGraded != s.sameDirection {
				t.Errorf("%s seed %d: %d wrong and %d missed", c.name, seed, s.wrong, s.missed)
			}
		}
		delete(seeds, c.name)
	}
	if len(seeds) > 0 {
		t.Errorf("no cells are named %v", slices.Sorted(maps.Keys(seeds)))
	}
}

func TestCells(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allCells() {
		if seen[c.name] {
			t.Errorf("two cells are named %s", c.name)
		}
		seen[c.name] = true
	}
	for _, p := range append(strings.Split(defaultCells, ","), "scale-1m", "floor-kernel-30us", "scenario-stale-flap") {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(n string) bool { return matchesAny(p, n) }) {
			t.Errorf("no cell is named %s", p)
		}
	}
	for _, s := range []string{"", "1..", "3..2", "a..b", "-1..2"} {
		if _, _, err := seedRange(s); err == nil {
			t.Errorf("seeds %q: no error", s)
		}
	}
	if a, b, err := seedRange("7"); a != 7 || b != 7 || err != nil {
		t.Errorf("seeds 7: %d..%d, %v", a, b, err)
	}
}

// The plot is well-formed XML with a point for time and one for memory of each cell.
func TestGrowth(t *testing.T) {
	svg := drawGrowth([]total{{Cell: "scale-1k", Flows: 1000, MS: 2, MB: 1}, {Cell: "scale-1m", Flows: 1_000_000, MS: 800, MB: 2000}, {Cell: "thin-k10-known", Flows: 30_000}})
	if n := strings.Count(string(svg), "<circle"); n != 4 {
		t.Errorf("%d points, want 4", n)
	}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A case from files is graded as the case itself.
func TestCasesThroughFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := readCases(dir); err == nil || !strings.Contains(err.Error(), "truth.json") {
		t.Errorf("an empty directory: %v", err)
	}
	small := cell{"small", func() *fabric.Topology {
		return clos.NewTopology(clos.Options{LeavesPerPod: 4, SpinesPerPod: 2, NICsPerLeaf: 3})
	}, incident.Scenario{ID: fabric.BadNIC, Variant: "in-loss", Windows: 3, Probes: 100, Loss: [2]float64{0.2, 0.3}}.MakeCase, nil}
	if err := writeCases(dir, []cell{small}, 1, 3); err != nil {
		t.Fatal(err)
	}
	got, err := readCases(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Cases != 3 || got.Right != 3 || got.Wrong != 0 {
		t.Errorf("%+v", got)
	}
}

// TestUnnamedProbabilitiesHold compares what the probabilities of unnamed elements claim with how many of these are at
// fault, on other seeds than those of docs/localization.md.
func TestUnnamedProbabilitiesHold(t *testing.T) {
	f := incident.NewFabric(fatTree(10)())
	var claims []claim
	for seed := uint64(9101); seed < 9261; seed++ {
		cs := incident.ThinDrops(incident.Known).MakeCase(f, seed)
		claims = append(claims, claimUnnamed(f.Graph, cs.Observations).gradeCase(cs).claims...)
	}
	claimed, right := 0.0, 0.0
	for _, c := range claims {
		if claimed += c.confidence; c.right {
			right++
		}
	}
	n := float64(len(claims))
	t.Logf("%d claims, %.3f claimed, %.3f right", len(claims), claimed/n, right/n)
	if len(claims) < 20 || math.Abs(claimed-right)/n > 0.1 {
		t.Errorf("%d claims: %.3f are claimed to be right, and %.3f are", len(claims), claimed/n, right/n)
	}
}

// TestHeldOutSeeds grades seeds that no figure of docs/localization.md comes from, with floors just under what they
// showed. A change that moves one of them is measured by make bench-localize.
func TestHeldOutSeeds(t *testing.T) {
	cells := map[string]cell{}
	for _, c := range allCells() {
		cells[c.name] = c
	}
	gradeSeeds := func(c cell, first, n uint64) (scores []score) {
		f := incident.NewFabric(c.topo())
		for seed := first; seed < first+n; seed++ {
			cs := c.make(f, seed)
			scores = append(scores, c.contestants[0].run(f.Graph, cs.Observations).gradeCase(cs))
		}
		return scores
	}
	for _, tt := range []struct {
		name              string
		seeds             uint64
		precision, recall float64
	}{{"thin-k10-known", 20, 0.99, 0.91}, {"thin-k10-lossy-traced", 4, 0.99, 0.84}, {"probe-k10-known", 4, 1, 1}, {"thin-k10-bursts3", 10, 0.999, 0.65}, {"thin-k10-bursts10", 10, 0.999, 0.15}} {
		s := sumScores(tt.name, "graylink", gradeSeeds(cells[tt.name], 9001, tt.seeds))
		if s.Precision < tt.precision || s.Recall < tt.recall {
			t.Errorf("%s: precision %.4f and recall %.4f, at least %g and %g are expected", tt.name, s.Precision, s.Recall, tt.precision, tt.recall)
		}
	}
	// One seed of each scenario, each time another, and of several faults, marks and classes.
	seed := uint64(9001)
	for _, s := range append(incident.AllScenarios(), "several", "mixed2", "mixed5", "none") {
		for _, kind := range []string{"duo", "marked3", "classes"} {
			c, ok := cells[fmt.Sprintf("scenario-%s-%s", kind, s)]
			if !ok || kind != "duo" && seed%3 != 0 {
				continue
			}
			seed++
			if s := gradeSeeds(c, seed, 1)[0]; s.wrong > 0 || s.missed > 0 {
				t.Errorf("%s seed %d: %d wrong and %d missed", c.name, seed, s.wrong, s.missed)
			}
		}
	}
}
