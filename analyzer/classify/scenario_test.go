package classify

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// stage is a fabric of two spines and three leaves with two nodes each, and one more
// node, m, with a NIC under leaf1 and one under leaf2.
type stage struct {
	t     *testing.T
	c     *Scene
	paths map[fabric.Flow]fabric.Path
}

func newStage(t *testing.T) *stage {
	t.Helper()
	var b strings.Builder
	b.WriteString("version: 1\nswitches: [{name: spine1, role: spine, plane: a}, {name: spine2, role: spine, plane: a}")
	for l := 1; l <= 3; l++ {
		fmt.Fprintf(&b, ", {name: leaf%d, role: leaf, plane: a}", l)
	}
	b.WriteString("]\nnodes:\n  - {name: m, nics: [{device: e1, plane: a}, {device: e2, plane: a}]}\n")
	for h := 1; h <= 6; h++ {
		fmt.Fprintf(&b, "  - {name: h%d, nics: [{device: e, plane: a}]}\n", h)
	}
	b.WriteString("links:\n  - {a: m/e1, b: \"leaf1:m\"}\n  - {a: m/e2, b: \"leaf2:m\"}\n")
	for h := 1; h <= 6; h++ {
		fmt.Fprintf(&b, "  - {a: h%d/e, b: \"leaf%d:d%d\"}\n", h, (h+1)/2, h)
	}
	for l := 1; l <= 3; l++ {
		for s := 1; s <= 2; s++ {
			fmt.Fprintf(&b, "  - {a: \"leaf%d:u%d\", b: \"spine%d:d%d\"}\n", l, s, s, l)
		}
	}
	topo, found := fabric.ParseTopology("t.yaml", []byte(b.String()))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return &stage{t: t, c: &Scene{Graph: fabric.NewGraph(topo), First: time.Unix(1000, 0).UTC()}, paths: map[fabric.Flow]fabric.Path{}}
}

// flow adds a healthy flow, from h1 to h3 "1 3", over the spine with its number's parity,
// and returns its finding.
func (s *stage) flow(src, dst string, n int, class string) *judge.Finding {
	s.t.Helper()
	e := fabric.Flow{Src: src, Dst: dst, Number: n}
	all := s.c.Graph.ShortestPaths(src, dst, 4)
	if len(all) == 0 {
		s.t.Fatalf("no way from %s to %s", src, dst)
	}
	s.c.Findings = append(s.c.Findings, judge.Finding{Flow: e, Condition: judge.Healthy, HasShift: true, Scale: 10_000,
		Obs: &fabric.Observation{Edge: e.String(), Src: src, Dst: dst, Class: class, Sent: 1000, Path: all[n%len(all)], PathState: fabric.PathValid}})
	return &s.c.Findings[len(s.c.Findings)-1]
}

// mesh adds a flow per spine between all NICs.
func (s *stage) mesh() {
	for _, a := range s.c.Graph.NICIDs() {
		for _, b := range s.c.Graph.NICIDs() {
			if a != b {
				s.flow(a, b, 0, "")
				s.flow(a, b, 1, "")
			}
		}
	}
}

// suspect makes the flows that pick takes late, and names an element for them; clean
// flows that cross it are contrary.
func (s *stage) suspect(el triangulate.Element, pick func(f *judge.Finding) bool) triangulate.Suspect {
	out := triangulate.Suspect{Element: el, Confidence: 0.99, AddedDelayNS: 100_000}
	for i := range s.c.Findings {
		f := &s.c.Findings[i]
		switch {
		case pick(f):
			f.Condition, f.Delayed, f.Shift = judge.Degraded, true, 100_000
			out.Explained = append(out.Explained, i)
		case crosses(f, el):
			out.Contrary = append(out.Contrary, i)
		}
	}
	return out
}

func crosses(f *judge.Finding, el triangulate.Element) bool {
	src, dst := f.Flow.Endpoints()
	for _, d := range f.Obs.Path.LinkDirections(src, dst) {
		switch {
		case el.OneWay() && d == el.Direction, !el.OneWay() && d.LinkID() == el.Name, d.From == el.Name || d.To == el.Name:
			return true
		}
	}
	return slices.ContainsFunc(f.Obs.Path, func(h fabric.Hop) bool { return h.Switch == el.Name })
}

// one returns the only verdict on some suspects.
func (s *stage) one(suspects ...triangulate.Suspect) fabric.Verdict {
	s.t.Helper()
	v := s.c.VerdictsFor(suspects)
	if len(v) != 1 {
		s.t.Fatalf("%d verdicts, one is expected: %+v", len(v), v)
	}
	return v[0]
}

func is(v fabric.Verdict, kind fabric.Kind, element string, scenario fabric.Scenario) bool {
	return v.Kind == kind && v.Element.ID == element && v.Scenario == scenario
}

func nicIn(s *stage, nic string) triangulate.Element {
	return triangulate.Element{Kind: fabric.KindNIC, Name: nic, Direction: fabric.Direction{From: s.c.Graph.PeerOf(nic), To: nic}}
}

func TestRule1AllNICsOfANodeAreTheHost(t *testing.T) {
	s := newStage(t)
	s.mesh()
	a := s.suspect(triangulate.Element{Kind: fabric.KindNIC, Name: "m/e1"}, func(f *judge.Finding) bool { return f.Flow.Src == "m/e1" || f.Flow.Dst == "m/e1" })
	b := s.suspect(triangulate.Element{Kind: fabric.KindNIC, Name: "m/e2"}, func(f *judge.Finding) bool { return f.Flow.Src == "m/e2" || f.Flow.Dst == "m/e2" })
	v := s.one(a, b)
	if !is(v, fabric.KindHost, "m", fabric.Host) || !strings.Contains(v.Summary, "The network is not at fault") {
		t.Errorf("%s %s %s: %s", v.Kind, v.Element.ID, v.Scenario, v.Summary)
	}
	whole := a
	whole.Element = triangulate.Element{Kind: fabric.KindHost, Name: "m"}
	if v := s.one(whole); !is(v, fabric.KindNIC, "m/e1", fabric.BadNIC) {
		t.Errorf("a host with flows of one NIC: %s %s", v.Kind, v.Element.ID)
	}
	if v := s.one(a); !is(v, fabric.KindNIC, "m/e1", fabric.BadNIC) {
		t.Errorf("one of its two NICs: %s %s", v.Kind, v.Element.ID)
	}
}

func TestRule1AStarvedNodeComesBeforeItsNIC(t *testing.T) {
	s := newStage(t)
	s.mesh()
	el := triangulate.Element{Kind: fabric.KindNIC, Name: "h1/e"}
	at := func(f *judge.Finding) bool { return f.Flow.Src == "h1/e" || f.Flow.Dst == "h1/e" }
	sus := s.suspect(el, at)
	for _, tt := range []struct {
		starved, of int
		kind        fabric.Kind
	}{{0, 4, fabric.KindNIC}, {2, 4, fabric.KindHost}, {1, 10, fabric.KindNIC}} {
		s.c.History = NewHistory(time.Second)
		for i := range tt.of {
			now := slices.Clone(s.c.Findings)
			for j := range now {
				now[j].HostSuspect = i < tt.starved && at(&now[j])
			}
			s.c.History.AddMoment(now)
		}
		if v := s.one(sus); v.Kind != tt.kind {
			t.Errorf("starved in %d of %d moments: %s", tt.starved, tt.of, v.Kind)
		}
		in := sus
		in.Direction = nicIn(s, el.Name).Direction
		if v := s.one(in); v.Kind != fabric.KindNIC {
			t.Errorf("bad one way only: %s", v.Kind)
		}
	}
}

func TestRule1AStarvedNodeWhoseFlowsAreLateIsNamed(t *testing.T) {
	s := newStage(t)
	s.mesh()
	for i := range s.c.Findings {
		if f := &s.c.Findings[i]; f.Flow.Src == "h1/e" || f.Flow.Dst == "h1/e" {
			f.HostSuspect, f.Condition = true, judge.Undecided
		}
	}
	if v := s.c.StarvedHostVerdicts(nil); len(v) != 0 {
		t.Errorf("starved, but nothing was late: %v", v)
	}
	for i := range s.c.Findings {
		if f := &s.c.Findings[i]; f.HostSuspect {
			f.Shift = 500_000
		}
	}
	for i := range s.c.Findings {
		s.c.Findings[i].Obs.Unread = s.c.Findings[i].HostSuspect
	}
	if v := s.c.StarvedHostVerdicts(nil); len(v) != 0 {
		t.Errorf("a flood of a NIC is taken for a starved host: %+v", v)
	}
	for i := range s.c.Findings {
		s.c.Findings[i].Obs.Unread = false
	}
	v := s.c.StarvedHostVerdicts(nil)
	if len(v) != 1 || !is(v[0], fabric.KindHost, "h1", fabric.Host) || v[0].Symptom.AddedDelayNS != 500_000 {
		t.Fatalf("%+v", v)
	}
	if v := s.c.StarvedHostVerdicts(v); len(v) != 0 {
		t.Errorf("named twice: %v", v)
	}
}

func TestRule2ASwitchAllOfWhoseLinksAreDeadIsDead(t *testing.T) {
	s := newStage(t)
	s.mesh()
	var dead []triangulate.Suspect
	for l := 1; l <= 3; l++ {
		d := fabric.Direction{From: fmt.Sprintf("leaf%d:u1", l), To: fmt.Sprintf("spine1:d%d", l)}
		sus := s.suspect(triangulate.Element{Kind: fabric.KindLink, Name: d.LinkID(), Direction: d}, func(f *judge.Finding) bool {
			return len(f.Obs.Path) == 3 && f.Obs.Path[1].Switch == "spine1" && f.Obs.Path[0].Switch == fabric.OwnerOf(d.From)
		})
		sus.LossRatio, sus.AddedDelayNS = 1, 0
		dead = append(dead, sus)
	}
	v := s.one(dead...)
	if !is(v, fabric.KindSwitch, "spine1", fabric.HardFailure) || v.Severity != fabric.SeverityCritical {
		t.Errorf("%s %s %s", v.Kind, v.Element.ID, v.Scenario)
	}
	if v := s.c.VerdictsFor(dead[:2]); len(v) != 2 || v[0].Kind != fabric.KindLink {
		t.Errorf("two of its three links: %d verdicts, the first on a %s", len(v), v[0].Kind)
	}
}

func TestRule3ALeafIsNamedOnlyByTwoOfItsNICs(t *testing.T) {
	leaf := triangulate.Element{Kind: fabric.KindSwitch, Name: "leaf1"}
	for _, tt := range []struct {
		name  string
		pick  func(e fabric.Flow) bool
		want  fabric.Element
		other bool // the leaf is still possible
	}{
		{"both NICs", func(e fabric.Flow) bool { return e.Src == "h1/e" || e.Src == "h2/e" }, fabric.Element{ID: "leaf1", Kind: fabric.KindSwitch}, false},
		{"one of them", func(e fabric.Flow) bool { return e.Src == "h1/e" }, fabric.Element{ID: "h1/e", Kind: fabric.KindNIC}, true},
		{"only between two", func(e fabric.Flow) bool { return e.Src == "h1/e" && e.Dst == "h2/e" }, fabric.Element{}, false},
	} {
		s := newStage(t)
		s.mesh()
		got := s.c.VerdictsFor([]triangulate.Suspect{s.suspect(leaf, func(f *judge.Finding) bool { return tt.pick(f.Flow) })})
		if tt.want.Kind == "" {
			if len(got) != 0 {
				t.Errorf("%s: %s %s, want no verdict, as the elements cannot be distinguished", tt.name, got[0].Kind, got[0].Element.ID)
			}
			continue
		}
		if len(got) != 1 || got[0].Element != tt.want || slices.Contains(got[0].Equivalent, fabric.Element{ID: "leaf1", Kind: fabric.KindSwitch}) != tt.other {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func TestRule4CleanLocalFlowsSpeakForTheUplinks(t *testing.T) {
	leaf := triangulate.Element{Kind: fabric.KindSwitch, Name: "leaf1"}
	under := func(e fabric.Flow) bool {
		return slices.Contains([]string{"h1/e", "h2/e", "m/e1"}, e.Src) && slices.Contains([]string{"h1/e", "h2/e", "m/e1"}, e.Dst)
	}
	touches := func(f *judge.Finding) bool {
		return slices.ContainsFunc(f.Obs.Path, func(h fabric.Hop) bool { return h.Switch == "leaf1" })
	}
	s := newStage(t)
	s.mesh()
	if v := s.one(s.suspect(leaf, func(f *judge.Finding) bool { return touches(f) && !under(f.Flow) })); !is(v, fabric.KindLeafUplinks, "leaf1", fabric.LeafUplinks) || len(v.Equivalent) != 0 {
		t.Errorf("local flows clean: %s %s, or %v", v.Kind, v.Scenario, v.Equivalent)
	}
	s = newStage(t)
	s.mesh()
	if v := s.one(s.suspect(leaf, touches)); !is(v, fabric.KindSwitch, "leaf1", fabric.SlowLeaf) || len(v.Equivalent) != 0 {
		t.Errorf("local flows late: %s %s, or %v", v.Kind, v.Scenario, v.Equivalent)
	}
	s = newStage(t)
	s.mesh()
	s.c.Findings = slices.DeleteFunc(s.c.Findings, func(f judge.Finding) bool { return len(f.Obs.Path) == 1 })
	if v := s.one(s.suspect(leaf, touches)); !is(v, fabric.KindSwitch, "leaf1", fabric.SlowLeaf) || !slices.Contains(v.Equivalent, fabric.Element{ID: "leaf1", Kind: fabric.KindLeafUplinks}) {
		t.Errorf("no local flows: %s %s, or %v", v.Kind, v.Scenario, v.Equivalent)
	}
}

func TestRule4UnusedUplinksSpeakForTheRest(t *testing.T) {
	for _, tt := range []struct {
		name   string
		unused bool
		pick   func(dst string) bool
		want   fabric.Kind
	}{
		{"all on one uplink", true, func(string) bool { return true }, fabric.KindLeafUplinks},
		{"a few on one uplink", true, func(dst string) bool { return dst == "h3/e" }, fabric.KindLink},
		{"both in use", false, func(string) bool { return true }, fabric.KindLink},
	} {
		s := newStage(t)
		for n := 0; n < 8; n += 2 { // over spine1
			for _, src := range []string{"h1/e", "h2/e"} {
				for _, dst := range []string{"h3/e", "h4/e", "h5/e", "h6/e"} {
					s.flow(src, dst, n, "")
					if !tt.unused {
						s.flow(src, dst, n+1, "")
					}
				}
			}
		}
		d := fabric.Direction{From: "leaf1:u1", To: "spine1:d1"}
		el := triangulate.Element{Kind: fabric.KindLink, Name: d.LinkID(), Direction: d}
		if v := s.one(s.suspect(el, func(f *judge.Finding) bool { return crosses(f, el) && tt.pick(f.Flow.Dst) })); v.Kind != tt.want {
			t.Errorf("%s: %s %s", tt.name, v.Kind, v.Element.ID)
		}
	}
}

// losing adds moments to the history in which the flows that pick selects lose this share
// of their packets.
func (s *stage) losing(pick func(*judge.Finding) bool, ratios ...float64) {
	s.c.History = NewHistory(2 * time.Second)
	for _, r := range ratios {
		now := slices.Clone(s.c.Findings)
		for i := range now {
			f := &now[i]
			o := *f.Obs
			f.Obs, f.Condition, f.Delayed = &o, judge.Healthy, false
			if pick(f) && r > 0 {
				o.Lost = uint64(r * float64(o.Sent))
				f.Lossy, f.Condition = true, judge.Degraded
			}
		}
		s.c.History.AddMoment(now)
	}
}

func TestRule5LossesThatComeAndGoAreAFlap(t *testing.T) {
	d := fabric.Direction{From: "leaf1:u1", To: "spine1:d1"}
	el := triangulate.Element{Kind: fabric.KindLink, Name: d.LinkID(), Direction: d}
	on := func(f *judge.Finding) bool { return crosses(f, el) }
	for _, tt := range []struct {
		name   string
		ratios []float64
		want   fabric.Scenario
		words  string
	}{
		{"down, up, down", []float64{0, 0, 1, 0, 1, 1}, fabric.Flap, "2 outages in the last 12 s, the longest of 4 s until the first clean packet. The latest outage continues."},
		{"part of each moment", []float64{0.2, 0, 0.2, 0, 0.3, 0}, fabric.Flap, "3 outages in the last 12 s, the longest of 2 s until the first clean packet. It works at the moment."},
		{"down for good", []float64{0, 0, 0, 1, 1, 1}, fabric.HardFailure, "This is a hard failure, not a slowdown."},
		{"down once", []float64{0, 0, 1, 1, 0, 0}, fabric.HardFailure, ""},
		{"another time, long ago", []float64{1, 0, 0, 0, 0, 0, 0, 0, 1, 1}, fabric.HardFailure, ""},
		{"a tenth, always", []float64{0.1, 0.09, 0.12, 0.1, 0.08, 0.11}, fabric.Corridor, ""},
	} {
		s := newStage(t)
		s.mesh()
		sus := s.suspect(el, on)
		for i := range s.c.Findings {
			s.c.Findings[i].Delayed = false
		}
		sus.AddedDelayNS, sus.LossRatio = 0, slices.Max(tt.ratios)
		s.losing(on, tt.ratios...)
		if v := s.one(sus); v.Scenario != tt.want || !strings.Contains(v.Summary, tt.words) {
			t.Errorf("%s: %s: %s", tt.name, v.Scenario, v.Summary)
		}
	}
}

func TestRule5AQueueThatOverflowsNowAndThenIsNoFlap(t *testing.T) {
	s := newStage(t)
	s.mesh()
	d := fabric.Direction{From: "leaf1:u1", To: "spine1:d1"}
	el := triangulate.Element{Kind: fabric.KindLink, Name: d.LinkID(), Direction: d}
	sus := s.suspect(el, func(f *judge.Finding) bool { return crosses(f, el) })
	sus.LossRatio = 0.2
	s.losing(func(f *judge.Finding) bool { return crosses(f, el) }, 0.2, 0, 0.2, 0, 0.2)
	if v := s.one(sus); v.Scenario != fabric.Corridor || !slices.Contains(v.Causes, "congestion") {
		t.Errorf("%s, causes %q", v.Scenario, v.Causes)
	}
}

func TestRule5AWayAroundCountsAsAway(t *testing.T) {
	s := newStage(t)
	f := s.flow("h1/e", "h3/e", 0, "")
	home, away := f.Obs.Path, s.c.Graph.ShortestPaths("h1/e", "h3/e", 4)[1]
	s.c.History = NewHistory(time.Second)
	for _, m := range []struct {
		p    fabric.Path
		lost uint64
	}{{home, 0}, {home, 500}, {away, 0}, {away, 0}, {home, 0}, {home, 0}, {home, 500}, {away, 0}} {
		now := *f
		o := *f.Obs
		o.Path, o.Lost = m.p, m.lost
		now.Obs = &o
		s.c.History.AddMoment([]judge.Finding{now})
	}
	if got, yes := s.c.History.comesAndGoes([]fabric.Flow{f.Flow}); !yes || got.times != 2 || got.longest != 3 {
		t.Errorf("%+v, %v", got, yes)
	}
}

// TestRule5ALateTraceIsNoFlap: routes avoid a dead link before anybody has traced them.
func TestRule5ALateTraceIsNoFlap(t *testing.T) {
	s := newStage(t)
	f := s.flow("h1/e", "h3/e", 0, "")
	home, away := f.Obs.Path, s.c.Graph.ShortestPaths("h1/e", "h3/e", 4)[1]
	s.c.History = NewHistory(time.Second)
	for _, m := range []struct {
		p    fabric.Path
		lost uint64
	}{{home, 0}, {home, 900}, {home, 1000}, {home, 0}, {home, 0}, {away, 0}, {away, 0}} {
		now := *f
		o := *f.Obs
		o.Path, o.Lost = m.p, m.lost
		now.Obs = &o
		s.c.History.AddMoment([]judge.Finding{now})
	}
	if got, yes := s.c.History.comesAndGoes([]fabric.Flow{f.Flow}); yes {
		t.Errorf("%+v", got)
	}
}

// TestRule5AnUnknownPathIsNotClean: a flow that leaves a lossy link again and again, as another fault moves it, is clean before its binding
// changes, and while its new path is not known yet. The link does not flap for that. Where no path was ever known, clean moments count.
func TestRule5AnUnknownPathIsNotClean(t *testing.T) {
	for _, known := range []bool{true, false} {
		s := newStage(t)
		f := s.flow("h1/e", "h3/e", 0, "")
		home := f.Obs.Path
		if !known {
			home = nil
		}
		s.c.History = NewHistory(time.Second)
		for _, m := range []struct {
			p    fabric.Path
			lost uint64
		}{{home, 200}, {home, 150}, {home, 0}, {nil, 0}, {nil, 0}, {home, 180}, {home, 0}, {home, 0}, {nil, 0}, {home, 200}, {home, 210}} {
			now := *f
			o := *f.Obs
			o.Path, o.Lost = m.p, m.lost
			now.Obs = &o
			s.c.History.AddMoment([]judge.Finding{now})
		}
		if got, yes := s.c.History.comesAndGoes([]fabric.Flow{f.Flow}); yes == known || !known && got.times != 3 {
			t.Errorf("with a known path: %t: %+v, %v", known, got, yes)
		}
	}
}

// TestRule5CleanByChanceIsNoFlap: of a tenth of the packets that is always lost, one moment in 200 has none.
func TestRule5CleanByChanceIsNoFlap(t *testing.T) {
	for _, tt := range []struct {
		sent  uint64
		clean int // moments in a row
		flaps bool
	}{{50, 1, false}, {50, 2, true}, {100, 1, true}} {
		s := newStage(t)
		f := s.flow("h1/e", "h3/e", 0, "")
		s.c.History = NewHistory(time.Second)
		add := func(lost uint64) {
			now := *f
			o := *f.Obs
			o.Sent, o.Lost = tt.sent, lost
			now.Obs = &o
			s.c.History.AddMoment([]judge.Finding{now})
		}
		for range 3 {
			add(tt.sent / 8)
			for range tt.clean {
				add(0)
			}
			add(tt.sent / 8)
		}
		if got, yes := s.c.History.comesAndGoes([]fabric.Flow{f.Flow}); yes != tt.flaps {
			t.Errorf("%d packets, %d clean moments: %+v, %v", tt.sent, tt.clean, got, yes)
		}
	}
}

func TestRule6HalfOrMoreLostIsAHardFailure(t *testing.T) {
	for loss, want := range map[float64]fabric.Scenario{0.49: fabric.BadNIC, 0.5: fabric.HardFailure} {
		s := newStage(t)
		s.mesh()
		sus := s.suspect(nicIn(s, "h1/e"), func(f *judge.Finding) bool { return f.Flow.Dst == "h1/e" })
		sus.LossRatio, sus.AddedDelayNS = loss, 0
		if v := s.one(sus); v.Scenario != want || (v.Severity == fabric.SeverityCritical) != (want == fabric.HardFailure) {
			t.Errorf("%g lost: %s, %s", loss, v.Scenario, v.Severity)
		}
	}
}

func TestRule7IncastVariesAsAQueueDoes(t *testing.T) {
	for _, tt := range []struct {
		name    string
		senders []string
		out     bool
		tail    int64
		ecn     float64
		loss    float64
		delay   int64
		want    fabric.Scenario
	}{
		{"the tail moves beyond the median", nil, false, 100_000, 0, 0, 100_000, fabric.Incast},
		{"marked", nil, false, 0, 0.3, 0, 100_000, fabric.Incast},
		{"late and lost", nil, false, 0, 0, 0.05, 100_000, fabric.Incast},
		{"a constant shift", nil, false, 5_000, 0, 0, 100_000, fabric.BadNIC},
		{"loss alone", nil, false, 0, 0, 0.05, 0, fabric.BadNIC},
		{"what it sends", nil, true, 100_000, 0.3, 0, 100_000, fabric.BadNIC},
		{"two senders", []string{"h3/e", "h4/e"}, false, 100_000, 0.3, 0, 100_000, fabric.BadNIC},
	} {
		s := newStage(t)
		s.mesh()
		el := nicIn(s, "h1/e")
		if tt.out {
			el.Direction = el.Direction.Reverse()
		}
		sus := s.suspect(el, func(f *judge.Finding) bool {
			return (f.Flow.Dst == "h1/e" && !tt.out || f.Flow.Src == "h1/e" && tt.out) && (tt.senders == nil || slices.Contains(tt.senders, f.Flow.Src))
		})
		sus.AddedDelayNS, sus.TailDelayNS, sus.ECNRatio, sus.LossRatio = tt.delay, tt.tail, tt.ecn, tt.loss
		if tt.delay == 0 {
			for i := range s.c.Findings {
				s.c.Findings[i].Delayed = false
			}
		}
		if v := s.one(sus); v.Scenario != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, v.Scenario, tt.want)
		}
	}
}

func TestRule8OneClassAtAnEgressIsItsQueue(t *testing.T) {
	d := fabric.Direction{From: "spine1:d2", To: "leaf2:u1"}
	link := triangulate.Element{Kind: fabric.KindLink, Name: d.LinkID(), Direction: d}
	for _, tt := range []struct {
		name, bad, other string
		el               triangulate.Element
		want             fabric.Element
		scenario         fabric.Scenario
	}{
		{"a queue among others", "tc3", "tc0", triangulate.Element{Kind: fabric.KindQueue, Name: "spine1:d2@tc3", Direction: d, Class: "tc3"}, fabric.Element{ID: "spine1:d2@tc3", Kind: fabric.KindQueue}, fabric.HOLSame},
		{"a link, one class of two", "tc3", "tc0", link, fabric.Element{ID: "spine1:d2@tc3", Kind: fabric.KindQueue}, fabric.HOLSame},
		{"a class without a name", "", "tc0", link, fabric.Element{ID: "spine1:d2", Kind: fabric.KindPort}, fabric.HOLSame},
		{"one class only", "tc3", "", link, fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}, fabric.Corridor},
	} {
		s := newStage(t)
		for _, src := range []string{"h1/e", "h2/e", "h5/e"} {
			for _, dst := range []string{"h3/e", "h4/e"} {
				s.flow(src, dst, 0, tt.bad)
				if tt.name != "one class only" {
					s.flow(src, dst, 2, tt.other)
				}
			}
		}
		v := s.one(s.suspect(tt.el, func(f *judge.Finding) bool { return crosses(f, link) && f.Obs.Class == tt.bad }))
		if v.Element != tt.want || v.Scenario != tt.scenario || v.Direction != d.String() || v.Class != tt.bad || v.Tier != 2 {
			t.Errorf("%s: %s %s %s, class %q, tier %d", tt.name, v.Kind, v.Element.ID, v.Scenario, v.Class, v.Tier)
		}
	}
}

func TestRule9WhatComesAtSeveralEgressesAtOnceBlocksAcrossPorts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		bad    []float64
		second []float64 // of the other egress
		want   int
		sc     fabric.Scenario
	}{
		{"the same moments", []float64{0, 1, 0, 0, 1, 0}, []float64{0, 1, 0, 0, 1, 0}, 1, fabric.HOLCross},
		{"other moments", []float64{0, 1, 0, 0, 1, 0}, []float64{1, 0, 0, 1, 0, 0}, 2, fabric.Corridor},
		{"more often alone", []float64{1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0}, []float64{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, 2, fabric.Corridor},
		{"all the time", []float64{1, 1, 1, 1, 1, 1}, []float64{1, 1, 1, 1, 1, 1}, 2, fabric.Corridor},
	} {
		s := newStage(t)
		s.mesh()
		at := func(port, to string) (triangulate.Element, func(*judge.Finding) bool) {
			d := fabric.Direction{From: port, To: to}
			el := triangulate.Element{Kind: fabric.KindLink, Name: d.LinkID(), Direction: d}
			return el, func(f *judge.Finding) bool { return crosses(f, el) }
		}
		a, onA := at("spine1:d2", "leaf2:u1")
		b, onB := at("spine1:d3", "leaf3:u1")
		suspects := []triangulate.Suspect{s.suspect(a, onA), s.suspect(b, onB)}
		s.c.History = NewHistory(2 * time.Second)
		for i := range tt.bad {
			now := slices.Clone(s.c.Findings)
			for j := range now {
				now[j].Condition = judge.Healthy
				if onA(&now[j]) && tt.bad[i] > 0 || onB(&now[j]) && tt.second[i] > 0 {
					now[j].Condition = judge.Degraded
				}
			}
			s.c.History.AddMoment(now)
		}
		v := s.c.VerdictsFor(suspects)
		if len(v) != tt.want || v[0].Scenario != tt.sc {
			t.Errorf("%s: %d verdicts, %s", tt.name, len(v), v[0].Scenario)
			continue
		}
		if tt.sc == fabric.HOLCross && (!is(v[0], fabric.KindSwitch, "spine1", tt.sc) || !strings.Contains(v[0].Summary, "Suspected") || !strings.Contains(v[0].Summary, "2 of its ports degraded at the same moments, 2 times in 12 s")) {
			t.Errorf("%s: %s", v[0].Element.ID, v[0].Summary)
		}
	}
}

func TestHistoryForgetsWhatIsTooLongAgo(t *testing.T) {
	s := newStage(t)
	f := s.flow("h1/e", "h3/e", 0, "")
	h := NewHistory(time.Second)
	h.AddMoment(s.c.Findings)
	for range 3 * Depth {
		h.AddMoment(nil)
	}
	f.Obs.Lost = 500
	h.AddMoment(s.c.Findings)
	if p := h.flows[f.Flow]; p.decided != 1 || p.clean != 0 || p.outage != 1 {
		t.Errorf("%+v", p)
	}
}

func TestCables(t *testing.T) {
	s := newStage(t)
	g := s.c.Graph
	// The cables of leaf1:u1 and leaf2:u2 are swapped: leaf1 is plugged into spine2:d2.
	real := fabric.NewGraph(g.Topo.WithSwappedCables("spine1:d1", "spine2:d2"))
	observe := func(g *fabric.Graph, at int) (obs []*fabric.Observation) {
		for _, e := range [][2]string{{"h1/e", "h3/e"}, {"h1/e", "h4/e"}, {"h2/e", "h3/e"}, {"h1/e", "h5/e"}, {"h5/e", "h3/e"}, {"h5/e", "h1/e"}} {
			for i, p := range g.ShortestPaths(e[0], e[1], 8) {
				obs = append(obs, &fabric.Observation{Edge: fabric.Flow{Src: e[0], Dst: e[1], Number: i}.String(), Src: e[0], Dst: e[1], Start: time.Unix(int64(at), 0), Path: p, PathState: fabric.PathValid})
			}
		}
		return obs
	}
	if c := CompareCabling(g, observe(g, 0)); len(c.Swaps) != 0 || len(c.OddPaths) != 0 || c.Graph != g {
		t.Errorf("as the topology says: %+v", c)
	}
	want := [2]string{"leaf1:u1--spine1:d1", "leaf2:u2--spine2:d2"}
	c := CompareCabling(g, append(observe(g, 0), observe(real, 10)...))
	if len(c.Swaps) != 1 || c.Swaps[0].Topology != want || c.Swaps[0].Fabric != [2]string{"leaf1:u1--spine2:d2", "leaf2:u2--spine1:d1"} || !c.Swaps[0].First.Equal(time.Unix(10, 0)) || c.Swaps[0].Flows < swapFlows {
		t.Fatalf("%+v", c.Swaps)
	}
	if c.Graph.PeerOf("leaf1:u1") != "spine2:d2" || len(c.OddPaths) == len(observe(real, 10)) {
		t.Errorf("leaf1:u1 leads to %s, %d odd paths", c.Graph.PeerOf("leaf1:u1"), len(c.OddPaths))
	}
	v := SwapVerdict(g, c.Swaps[0])
	if !is(v, fabric.KindLink, want[0], fabric.Miscabled) || v.Equivalent[0].ID != want[1] || !v.FirstSeen.Equal(time.Unix(10, 0)) {
		t.Errorf("%+v", v)
	}
	// One flow may have been traced across a change, and what is used as plugged is.
	if c := CompareCabling(g, observe(real, 10)[:2]); len(c.Swaps) != 0 {
		t.Errorf("few flows: %+v", c.Swaps)
	}
	if c := CompareCabling(g, append(observe(real, 0), observe(g, 10)...)); len(c.Swaps) != 0 || len(c.OddPaths) == 0 {
		t.Errorf("used as plugged since: %+v, %d odd paths", c.Swaps, len(c.OddPaths))
	}
}

func TestRule11AFewMarksAreNoFault(t *testing.T) {
	for marks, want := range map[float64]int{0.09: 0, 0.1: 1} {
		s := newStage(t)
		s.mesh()
		d := fabric.Direction{From: "leaf1:u1", To: "spine1:d1"}
		el := triangulate.Element{Kind: fabric.KindLink, Name: d.LinkID(), Direction: d}
		sus := s.suspect(el, func(f *judge.Finding) bool { return crosses(f, el) })
		sus.AddedDelayNS, sus.ECNRatio = 0, marks
		if v := s.c.VerdictsFor([]triangulate.Suspect{sus}); len(v) != want {
			t.Errorf("%g marked: %d verdicts", marks, len(v))
		}
		sus.AddedDelayNS = 50_000
		if v := s.one(sus); v.Scenario != fabric.Corridor {
			t.Errorf("%g marked, and late: %s", marks, v.Scenario)
		}
	}
}

func TestRule2ASlowSwitchIsNotEquallySlowEverywhere(t *testing.T) {
	s := newStage(t)
	s.mesh()
	spine := triangulate.Element{Kind: fabric.KindSwitch, Name: "spine1"}
	d := fabric.Direction{From: "spine1:d2", To: "leaf2:u1"}
	link := triangulate.Element{Kind: fabric.KindLink, Name: d.LinkID(), Direction: d}
	wide := s.suspect(spine, func(f *judge.Finding) bool { return crosses(f, spine) })
	for _, tt := range []struct {
		delay int64
		loss  float64
		want  int
	}{{60_000, 0, 1}, {400_000, 0, 2}, {60_000, 0.05, 2}} {
		more := triangulate.Suspect{Element: link, Confidence: 0.9, AddedDelayNS: tt.delay, LossRatio: tt.loss}
		for _, i := range wide.Explained {
			if crosses(&s.c.Findings[i], link) {
				more.Explained = append(more.Explained, i)
			}
		}
		if v := s.c.VerdictsFor([]triangulate.Suspect{wide, more}); len(v) != tt.want || !is(v[0], fabric.KindSwitch, "spine1", fabric.HotSpine) {
			t.Errorf("%d ns and %g lost more at one of its links: %d verdicts", tt.delay, tt.loss, len(v))
		}
	}
}

// TestHistoryIsBounded: flows that are not probed any more, and nodes that are well again,
// are forgotten.
func TestHistoryIsBounded(t *testing.T) {
	h := NewHistory(time.Second)
	for i := range 10 * Depth {
		e := fabric.Flow{Src: "a/e", Dst: "b/e", Number: i}
		starved := fabric.Flow{Src: fmt.Sprintf("h%d/e", i), Dst: "b/e"}
		var findings []judge.Finding
		for _, f := range []fabric.Flow{e, starved, {Src: starved.Src, Dst: "c/e"}} {
			findings = append(findings, judge.Finding{Flow: f, Obs: &fabric.Observation{Edge: f.String(), Sent: 100}, HostSuspect: f.Src == starved.Src})
		}
		h.AddMoment(findings)
	}
	if flows, nodes := len(h.flows), len(h.starved); flows > 3*2*Depth || nodes > 2*Depth || flows == 0 || nodes == 0 {
		t.Errorf("%d flows and %d nodes are remembered after %d moments", flows, nodes, 10*Depth)
	}
}

// TestASmallDelayIsInfo: what no single flow shows is reported with the severity info.
func TestASmallDelayIsInfo(t *testing.T) {
	for _, small := range []bool{false, true} {
		x := &suspicion{Suspect: triangulate.Suspect{Element: triangulate.Element{Kind: fabric.KindSwitch, Name: "spine1"}, Small: small, AddedDelayNS: 3000}, scenario: fabric.HotSpine}
		want := map[bool]string{false: fabric.SeverityCritical, true: fabric.SeverityInfo}[small]
		if got := severityOf(x); got != want {
			t.Errorf("small %v: %s, want %s", small, got, want)
		}
	}
}
