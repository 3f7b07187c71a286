package paths

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sighting"
)

var ports = Mapper{SourcePort: 49152, StampPort: 862}

// wire returns the 5-tuple of a flow from h1 to h2.
func wire(n int) sighting.Flow {
	return sighting.Flow{Src: netip.AddrPortFrom(netip.MustParseAddr("10.0.1.2"), uint16(49152+n)), Dst: netip.MustParseAddrPort("10.0.2.2:862")}
}

func flow(n int) fabric.Flow { return fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1", Number: n} }

// rig plays four switches whose clocks are an hour behind and whose answers take a
// tenth of a second.
type rig struct {
	t *testing.T
	s *Sightings
	// version, by switch.
	version  map[string]uint64
	instance string
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, s: NewSightings(NewStore(graph(t)), ports), version: map[string]uint64{}, instance: "i"}
}

const behind = time.Hour

// seenBy reads "0:dn1" as flow 0 by port dn1 from a second before, "0:up2<up1" as
// one that came in by up1 until a tenth of a second before the first at up2.
func seenBy(at float64, what string) (out []sighting.FlowPorts) {
	clock := func(n float64) time.Time { return sec(n).Add(-behind) }
	for _, f := range strings.Fields(what) {
		var n int
		flow, port, _ := strings.Cut(f, ":")
		fmt.Sscan(flow, &n)
		now, before, moved := strings.Cut(port, "<")
		x := sighting.FlowPorts{Flow: wire(n), Ports: []sighting.Port{{Name: now, First: clock(at - 1), Last: clock(at), Count: 2}}}
		if moved {
			x.Ports = append(x.Ports, sighting.Port{Name: before, First: clock(at - 100), Last: clock(at - 1.1), Count: 9})
		}
		out = append(out, x)
	}
	return out
}

// report applies a report to a request that was sent at a time. whole replaces the table.
func (r *rig) report(sw string, at float64, whole bool, seen string, gone ...int) error {
	since := r.version[sw]
	r.version[sw]++
	rep := &sighting.Report{Switch: sw, Kind: sighting.KindEBPF, Instance: r.instance, Since: since, Version: r.version[sw], At: sec(at + 0.05).Add(-behind), Through: sec(at + 0.05).Add(-behind), Fresh: 3 * time.Second, Flows: seenBy(at, seen)}
	if whole {
		rep.Since = 0
	}
	for _, n := range gone {
		rep.Gone = append(rep.Gone, wire(n))
	}
	return r.s.ApplyReport(sw, rep, sec(at), sec(at+0.1))
}

func (r *rig) must(sw string, at float64, whole bool, seen string, gone ...int) {
	r.t.Helper()
	if err := r.report(sw, at, whole, seen, gone...); err != nil {
		r.t.Fatal(err)
	}
}

// quiet reports a second in which nothing changes.
func (r *rig) quiet(at float64, switches ...string) {
	r.t.Helper()
	for _, sw := range switches {
		r.must(sw, at, false, "")
	}
}

var four = []string{"leaf1", "leaf2", "spine1", "spine2"}

// begin reports flow 0 by spine1 and flow 1 by spine2.
func (r *rig) begin(at float64) {
	r.t.Helper()
	r.must("leaf1", at, true, "0:dn1 1:dn1")
	r.must("spine1", at, true, "0:dn1")
	r.must("spine2", at, true, "1:dn1")
	r.must("leaf2", at, true, "0:up1 1:up2")
}

func (r *rig) want(n int, state fabric.PathState, path fabric.Path) Binding {
	r.t.Helper()
	b, _ := r.s.store.CurrentBinding(flow(n))
	if b.State != state || b.Path.CanonicalKey() != path.CanonicalKey() {
		r.t.Errorf("flow %d: %s %q, want %s %q; notes %q", n, b.State, b.Path.CanonicalKey(), state, path.CanonicalKey(), b.Notes)
	}
	return b
}

func TestTablesRule1Versions(t *testing.T) {
	r := newRig(t)
	if i, v := r.s.NextQuery("leaf1"); i != "" || v != 0 {
		t.Errorf("an unknown switch is asked from %q %d", i, v)
	}
	if err := r.report("leaf1", 10, false, ""); err != nil {
		t.Fatal(err) // version 0 to 1 is the whole table
	}
	r.begin(20)
	if i, v := r.s.NextQuery("leaf2"); i != "i" || v != 1 {
		t.Errorf("leaf2 is asked from %q %d", i, v)
	}
	r.want(0, fabric.PathValid, by(1))
	r.instance = "other"
	if err := r.report("leaf2", 21, false, "", 0); err == nil {
		t.Error("a change of another instance is taken")
	}
	r.instance, r.version["leaf2"] = "i", 0
	r.must("leaf2", 21, true, "0:up1 1:up2")
	// A gap: not used, and the whole table is wanted.
	r.version["leaf2"] += 3
	if err := r.report("leaf2", 21, false, "", 0); err == nil || !strings.Contains(err.Error(), `"since"`) {
		t.Errorf("a gap: %v", err)
	}
	r.want(0, fabric.PathValid, by(1))
	if i, v := r.s.NextQuery("leaf2"); i != "" || v != 0 {
		t.Errorf("after a gap leaf2 is asked from %q %d", i, v)
	}
	// Another instance, which has seen flow 1 only.
	r.instance = "j"
	if err := r.report("leaf2", 22, false, "1:up2"); err == nil {
		t.Error("another instance's change is taken")
	}
	r.must("leaf2", 23, true, "1:up2")
	r.want(1, fabric.PathValid, by(2))
	r.want(0, fabric.PathStale, by(1))
	if v := r.s.TableViews()["leaf2"]; v.Flows != 1 || v.Instance != "j" || !v.AnsweredAt.Equal(sec(23.1)) {
		t.Errorf("%+v", v)
	}
}

func TestTablesRule2OnlyWhatIsNamed(t *testing.T) {
	r := newRig(t)
	r.begin(10)
	before := r.s.store.recordOf(flow(1)).checked
	r.must("leaf1", 11, false, "0:dn1")
	if r.s.store.recordOf(flow(1)).checked != before {
		t.Error("flow 1 was stitched anew")
	}
	r.must("leaf2", 12, false, "", 0, 5) // it never reported flow 5
	r.want(0, fabric.PathStale, by(1))
	for _, sw := range []string{"leaf1", "spine1"} {
		r.must(sw, 13, false, "", 0)
	}
	if len(r.s.flows) != 1 || r.s.TableViews()["leaf2"].Flows != 1 {
		t.Errorf("%d flows are kept, %+v", len(r.s.flows), r.s.TableViews())
	}
}

func TestTablesRule3Times(t *testing.T) {
	r := newRig(t)
	r.begin(10)
	for at := 11.0; at < 20; at++ {
		r.quiet(at, four...)
	}
	b := r.want(0, fabric.PathValid, by(1))
	// Seen first a second before 10, at the latest 50 ms later than that; every answer
	// is of packets up to Fresh before the question.
	if !b.Since.Equal(sec(9.05)) || !b.Confirmed.Equal(sec(16)) {
		t.Errorf("since %s, confirmed %s", b.Since.Sub(sec(0)), b.Confirmed.Sub(sec(0)))
	}
	// The route changes at 19.
	r.must("spine2", 20, false, "0:dn1")
	r.must("leaf2", 20, false, "0:up2<up1")
	r.must("spine1", 20, false, "")
	// A switch that has not reported the window's end may have seen it go elsewhere.
	ask(t, r.s.store, flow(0), asked{19.05, 19.5, fabric.PathStale, by(2), 0})
	r.quiet(20, "leaf1")
	b = r.want(0, fabric.PathValid, by(2))
	if !b.Since.Equal(sec(19.05)) {
		t.Errorf("since %s", b.Since.Sub(sec(0)))
	}
	ask(t, r.s.store, flow(0), asked{10, 18.85, fabric.PathValid, by(1), 0}, asked{10, 18.9, fabric.PathUnknown, nil, 2}, asked{19.05, 20, fabric.PathValid, by(2), 0})
	// An answer that does not change a thing does not wake the old path.
	r.must("spine1", 23, false, "", 0)
	r.must("leaf2", 23, false, "0:up2")
	r.want(0, fabric.PathValid, by(2))
	if len(r.s.flows[mustKey(t, r.s.store, flow(0))]) != 3 {
		t.Error("sightings of the old path are left")
	}
}

// A flow that is seen beside its path has left it, also if its packets are lost behind the switch that sees it: its windows are not bound
// to the path that it had. Where it was before and comes back to is bound again.
func TestLostFlowHasLeftItsPath(t *testing.T) {
	r := newRig(t)
	r.begin(10)
	for at := 11.0; at < 20; at++ {
		r.quiet(at, four...)
	}
	r.must("spine2", 20, false, "0:dn1") // since 19, and lost there
	r.must("leaf2", 20, false, "")
	r.must("spine1", 20, false, "")
	r.quiet(20, "leaf1")
	for _, gone := range []string{"", "leaf2", "spine1"} { // one after the other
		if gone != "" {
			r.must(gone, 21, false, "", 0)
		}
		if b := r.want(0, fabric.PathUnknown, nil); len(b.Candidates) != 1 || b.Candidates[0].CanonicalKey() != by(2).CanonicalKey() {
			t.Errorf("candidates %v, want the path by spine2", b.Candidates)
		}
	}
	r.quiet(21, "leaf1", "spine2")
	ask(t, r.s.store, flow(0), asked{10, 15.9, fabric.PathValid, by(1), 0}, asked{19.1, 20, fabric.PathUnknown, nil, 1}, asked{15, 20, fabric.PathUnknown, nil, 2})
	// It comes back.
	r.must("leaf2", 25, false, "0:up1")
	r.must("spine1", 25, false, "0:dn1")
	r.must("spine2", 25, false, "", 0)
	r.quiet(26, four...)
	r.want(0, fabric.PathValid, by(1))
	ask(t, r.s.store, flow(0), asked{10, 15.9, fabric.PathValid, by(1), 0}, asked{19.1, 20, fabric.PathUnknown, nil, 0}, asked{15, 25, fabric.PathUnknown, nil, 0}, asked{24.2, 25, fabric.PathValid, by(1), 0})
}

func TestTablesRule4Balanced(t *testing.T) {
	r := newRig(t)
	r.begin(10)
	r.must("spine2", 11, false, "0:dn1")
	both := seenBy(11, "0:up2<up1")
	both[0].Ports[1].Last = both[0].Ports[0].Last
	r.version["leaf2"]++
	err := r.s.ApplyReport("leaf2", &sighting.Report{Switch: "leaf2", Instance: "i", Since: 1, Version: 2, At: sec(11.05).Add(-behind), Through: sec(11.05).Add(-behind), Fresh: time.Second, Flows: both}, sec(11), sec(11.1))
	if err != nil {
		t.Fatal(err)
	}
	if b := r.want(0, fabric.PathUnknown, nil); len(b.Candidates) != 2 {
		t.Errorf("%d candidates", len(b.Candidates))
	}
	r.must("leaf2", 20, false, "0:up2")
	r.must("spine1", 20, false, "", 0)
	r.want(0, fabric.PathValid, by(2))
}

func TestTablesRule5SilentSwitches(t *testing.T) {
	r := newRig(t)
	r.begin(10)
	alive := []string{"leaf1", "leaf2", "spine2"}
	for at := 11.0; at <= 20; at++ {
		r.quiet(at, alive...)
		r.s.Tick(sec(at + 0.1))
	}
	r.want(0, fabric.PathValid, by(1))
	ask(t, r.s.store, flow(0), asked{21, 22, fabric.PathStale, by(1), 0})
	r.quiet(21, alive...)
	r.s.Tick(sec(21))
	// Without spine1 one way fits: it holds, and says why.
	b := r.want(0, fabric.PathValid, by(1))
	if len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "spine1") || r.s.TableViews()["spine1"].AnsweredAt != (time.Time{}) {
		t.Errorf("notes %q", b.Notes)
	}
	ask(t, r.s.store, flow(0), asked{20, 21, fabric.PathValid, by(1), 0}, asked{21, 22, fabric.PathStale, by(1), 0})
	// All of them: nothing is known but where it went.
	r.s.Tick(sec(40))
	r.want(0, fabric.PathStale, by(1))
	if len(r.s.flows) != 0 || len(r.s.tables) != 0 {
		t.Errorf("%d flows of %d switches are left", len(r.s.flows), len(r.s.tables))
	}
}

// TestTablesRule5SilentFromTheStart: nothing is filled in before all had time to report.
func TestTablesRule5SilentFromTheStart(t *testing.T) {
	r := newRig(t)
	r.must("leaf1", 10, true, "0:dn1")
	r.must("spine1", 10.5, true, "0:dn1")
	r.want(0, fabric.PathUnknown, nil)
	for at := 11.0; at <= 20; at++ {
		r.quiet(at, "leaf1", "spine1")
		r.s.Tick(sec(at))
		r.want(0, fabric.PathUnknown, nil)
	}
	r.s.Tick(sec(20.2))
	r.want(0, fabric.PathValid, by(1))
}

// TestSwitchesAnswerATrace checks that sightings replace a trace with another path.
func TestSwitchesAnswerATrace(t *testing.T) {
	r := newRig(t)
	r.begin(10)
	trace := func(at float64) {
		if err := r.s.store.AddTrace(fabric.Trace{Edge: flow(0).String(), State: fabric.PathValid, TracedAt: sec(at), Reached: true, Hops: hops("10.0.1.1 172.16.0.3 172.16.0.6")}); err != nil {
			t.Fatal(err)
		}
	}
	trace(11)
	r.want(0, fabric.PathValid, by(2))
	r.quiet(12, four...)
	r.s.Tick(sec(12.2))
	r.want(0, fabric.PathValid, by(2)) // they vouch for 9 so far
	r.quiet(15, four...)
	r.s.Tick(sec(15.2))
	if b := r.want(0, fabric.PathValid, by(1)); b.Source != BySightings || len(r.s.store.contested) != 0 {
		t.Errorf("by %s, %d contested", b.Source, len(r.s.store.contested))
	}
	// One that says that there is none.
	if err := r.s.store.AddTrace(fabric.Trace{Edge: flow(0).String(), State: fabric.PathUnknown, Balanced: true, TracedAt: sec(15.5), Hops: hops("10.0.1.1 172.16.0.3")}); err != nil {
		t.Fatal(err)
	}
	r.want(0, fabric.PathUnknown, nil)
	r.quiet(19, four...)
	r.s.Tick(sec(19.2))
	r.want(0, fabric.PathValid, by(1))
	// One that they bear out.
	trace(20)
	r.must("spine2", 21, false, "0:dn1")
	r.must("leaf2", 21, false, "0:up2<up1")
	if b := r.want(0, fabric.PathValid, by(2)); b.Source != BySightings || len(r.s.store.contested) != 0 {
		t.Errorf("by %s, %d contested", b.Source, len(r.s.store.contested))
	}
}

// TestSightingsByOtherCables: sightings are bound again when cables turn out to be
// swapped.
func TestSightingsByOtherCables(t *testing.T) {
	r := newRig(t)
	var down1, down2, up []string
	for n := range 3 {
		down1 = append(down1, fmt.Sprintf("%d:dn1", n))
		up = append(up, fmt.Sprintf("%d:up2", n))
	}
	for n := 3; n < 6; n++ {
		down2 = append(down2, fmt.Sprintf("%d:dn1", n))
		up = append(up, fmt.Sprintf("%d:up1", n))
	}
	r.must("leaf1", 10, true, strings.Join(append(slices.Clone(down1), down2...), " "))
	r.must("spine1", 10, true, strings.Join(down1, " "))
	r.must("spine2", 10, true, strings.Join(down2, " "))
	r.must("leaf2", 10, true, strings.Join(up, " "))
	r.want(0, fabric.PathUnknown, nil)
	r.quiet(15, four...)
	r.s.Tick(sec(20.2))
	r.want(0, fabric.PathUnknown, nil)
	found, changed := r.s.store.CheckCables(sec(31))
	if !changed || len(found) != 1 {
		t.Fatalf("%+v", found)
	}
	r.s.RebindAll(sec(31))
	want := by(1)
	want[2].In = "up2"
	r.want(0, fabric.PathValid, want)
}

// TestReportsThatCannotBe checks that invalid reports are refused whole, with the name of the field.
func TestReportsThatCannotBe(t *testing.T) {
	good := func() *sighting.Report {
		return &sighting.Report{Switch: "leaf1", Instance: "i", Version: 4, At: sec(10), Through: sec(10), Fresh: time.Second, Flows: seenBy(10, "0:dn1")}
	}
	for _, tt := range []struct {
		field  string
		break_ func(*sighting.Report)
	}{
		{"", func(*sighting.Report) {}},
		{`"switch"`, func(r *sighting.Report) { r.Switch = "leaf2" }},
		{`"instance"`, func(r *sighting.Report) { r.Instance = "" }},
		{`"instance"`, func(r *sighting.Report) { r.Instance = strings.Repeat("x", 1000) }},
		{`"version"`, func(r *sighting.Report) { r.Since = 5 }},
		{`"at"`, func(r *sighting.Report) { r.At = time.Time{} }},
		{`"fresh_ns"`, func(r *sighting.Report) { r.Fresh = 0 }},
		{`"fresh_ns"`, func(r *sighting.Report) { r.Fresh = 10*time.Minute + 1 }},
		{"", func(r *sighting.Report) { r.Fresh = 10 * time.Minute }},
		{`"seen[0].ports"`, func(r *sighting.Report) { r.Flows[0].Ports = nil }},
		{`"seen[0].ports"`, func(r *sighting.Report) { r.Flows[0].Ports = make([]sighting.Port, 17) }},
		{`"seen[0].ports[0].last"`, func(r *sighting.Report) { r.Flows[0].Ports[0].Last = sec(-9e6) }},
		{`"since"`, func(r *sighting.Report) { r.Since = 3 }},
	} {
		s := NewSightings(NewStore(graph(t)), ports)
		rep := good()
		tt.break_(rep)
		err := s.ApplyReport("leaf1", rep, sec(10), sec(10))
		if (err == nil) != (tt.field == "") || err != nil && !strings.Contains(err.Error(), tt.field) {
			t.Errorf("field %s: %v", tt.field, err)
		}
		if err != nil && len(s.flows)+len(s.tables) != 0 {
			t.Errorf("field %s: used all the same", tt.field)
		}
	}
	s := NewSightings(NewStore(graph(t)), ports)
	rep := good()
	rep.Switch = "leaf9"
	if err := s.ApplyReport("leaf9", rep, sec(10), sec(10)); err == nil {
		t.Error("the report of an unknown switch is accepted")
	}
}

// TestTablesAreBounded: in flows of a switch, in names of ports.
func TestTablesAreBounded(t *testing.T) {
	r := newRig(t)
	rep := &sighting.Report{Switch: "leaf1", Instance: "i", Version: 1, At: sec(10), Through: sec(10), Fresh: time.Second}
	nics := []string{"10.0.1.2", "10.0.2.2", "10.0.3.2"}
	for _, src := range nics {
		for _, dst := range nics {
			for n := range 16384 {
				if src != dst {
					rep.Flows = append(rep.Flows, sighting.FlowPorts{Flow: sighting.Flow{Src: netip.AddrPortFrom(netip.MustParseAddr(src), uint16(49152+n)), Dst: netip.AddrPortFrom(netip.MustParseAddr(dst), 862)},
						Ports: []sighting.Port{{Name: fmt.Sprint("p", n), First: sec(1), Last: sec(10)}}})
				}
			}
		}
	}
	rep.Flows = append(rep.Flows, sighting.FlowPorts{Flow: sighting.Flow{Src: netip.MustParseAddrPort("9.9.9.9:1"), Dst: netip.MustParseAddrPort("9.9.9.9:2")}, Ports: []sighting.Port{{Name: "dn1"}}})
	if err := r.s.ApplyReport("leaf1", rep, sec(10), sec(10)); err != nil {
		t.Fatal(err)
	}
	v := r.s.TableViews()["leaf1"]
	if v.Flows != maxFlows || v.OverLimit != 6*16384-maxFlows || v.Foreign != 1 || len(r.s.flows) != maxFlows || len(r.s.ports) != 1 {
		t.Errorf("%+v, %d flows, %d ports", v, len(r.s.flows), len(r.s.ports))
	}
}
