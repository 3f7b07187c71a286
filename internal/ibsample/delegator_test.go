package ibsample

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func targetsOf(switches, ports int) []Target {
	var out []Target
	for _, k := range portsOf(switches, ports) {
		out = append(out, Target{Key: k, LID: uint16(k.Node), Element: fmt.Sprintf("sw%d:%d", k.Node, k.Port), Switch: true})
	}
	return out
}

var epoch = time.Unix(1_000_000, 0) // a tick of every whole interval

// begin reports that a sampler begins the tick of a time.
func begin(d *Delegator, name, instance string, now time.Time) {
	d.AcceptReport(&Report{Sampler: name, Instance: instance, Tick: d.tickOf(now), Began: now.UnixNano()}, now)
}

func members(d *Delegator) (names []string) {
	for _, s := range d.Status().Samplers {
		names = append(names, s.Name)
	}
	return names
}

func work(d *Delegator, name string, now time.Time) Assignment {
	a, _ := d.AssignmentFor(name, name, now)
	return a
}

func TestRule4JoiningGivesWork(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Second, Metrics: Selection{"PortXmitWait"}})
	d.SetTargets(targetsOf(3, 4))
	if a := work(d, "a", epoch); len(a.Targets) != 12 || a.Interval != time.Second || !slices.Equal(a.Metrics, Selection{"PortXmitWait"}) {
		t.Errorf("the first sampler has %d ports, %v", len(a.Targets), a)
	}
	before := work(d, "a", epoch).Revision
	if b := work(d, "b", epoch); len(b.Targets) != 6 {
		t.Errorf("the second has %d ports", len(b.Targets))
	}
	if a := work(d, "a", epoch); len(a.Targets) != 6 || a.Revision == before {
		t.Errorf("the first then has %d, revision %d after %d", len(a.Targets), a.Revision, before)
	}
	// Another instance of b takes its place and its ports.
	held := work(d, "b", epoch).Targets
	d.markWaiting("b", "b")
	again, _ := d.AssignmentFor("b", "second", epoch)
	if !slices.Equal(again.Targets, held) || len(members(d)) != 2 {
		t.Errorf("a new instance has other work, or is a third sampler: %v", members(d))
	}
	// The first one's broken connection then has no effect.
	d.endWaiting("b", "b", true, epoch)
	begin(d, "a", "a", epoch.Add(time.Second))
	begin(d, "b", "second", epoch.Add(time.Second))
	d.RemoveDead(epoch.Add(time.Second))
	if len(members(d)) != 2 {
		t.Errorf("samplers %v after an old instance's end", members(d))
	}
}

func TestRule6WhoDoesNotBeginATickIsDead(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Second})
	d.SetTargets(targetsOf(3, 4))
	for _, s := range []string{"a", "b"} {
		begin(d, s, s, epoch)
	}
	_, changed := d.revisionOf("a", "a", epoch)
	next := d.RemoveDead(epoch.Add(500 * time.Millisecond))
	if len(members(d)) != 2 || !next.Equal(epoch.Add(1500*time.Millisecond)) {
		t.Fatalf("samplers %v, look again at %v", members(d), next.Sub(epoch))
	}
	begin(d, "a", "a", epoch.Add(time.Second))
	d.RemoveDead(next.Add(-time.Millisecond))
	if len(members(d)) != 2 {
		t.Fatal("buried too early")
	}
	d.RemoveDead(next)
	if got := members(d); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("samplers %v, want b dead", got)
	}
	select {
	case <-changed:
	default:
		t.Error("the change is not announced")
	}
	if a := work(d, "a", next); len(a.Targets) != 12 {
		t.Errorf("the other has %d ports", len(a.Targets))
	}
	if s := d.Status(); s.Deaths != 1 {
		t.Errorf("%d deaths", s.Deaths)
	}
}

func TestRule6ABrokenConnectionIsNoticedBeforeTheTick(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Second})
	d.SetTargets(targetsOf(3, 4))
	for _, s := range []string{"a", "b"} {
		begin(d, s, s, epoch)
		d.markWaiting(s, s)
	}
	broke := epoch.Add(100 * time.Millisecond)
	d.endWaiting("b", "b", true, broke)
	d.endWaiting("a", "a", true, broke)
	next := d.RemoveDead(d.RemoveDead(broke))
	if !next.Equal(broke.Add(500 * time.Millisecond)) {
		t.Errorf("looks again after %v", next.Sub(broke))
	}
	d.markWaiting("a", "a")
	d.RemoveDead(next)
	if got := members(d); !slices.Equal(got, []string{"a"}) {
		t.Errorf("samplers %v, want a, which came back, and not b", got)
	}
}

func TestRule7TheDeadMayComeBack(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Second})
	d.SetTargets(targetsOf(2, 4))
	begin(d, "a", "a", epoch)
	begin(d, "b", "b", epoch)
	begin(d, "a", "a", epoch.Add(time.Second))
	d.RemoveDead(epoch.Add(1500 * time.Millisecond))
	if len(members(d)) != 1 {
		t.Fatal(members(d))
	}
	begin(d, "b", "b", epoch.Add(2*time.Second))
	if b := work(d, "b", epoch.Add(2*time.Second)); len(b.Targets) != 4 {
		t.Errorf("it has %d ports", len(b.Targets))
	}
}

func TestRule5PinsHoldWhileTheirSamplerLives(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Second, Pins: []Pin{{"b", "sw2"}, {"b", "sw1:1"}}})
	d.SetTargets(targetsOf(4, 4))
	begin(d, "a", "a", epoch)
	begin(d, "b", "b", epoch)
	holder := func(k Key) string { return d.Status().Plan[k][0] }
	for _, k := range []Key{{2, 1}, {2, 2}, {2, 3}, {2, 4}, {1, 1}} {
		if holder(k) != "b" {
			t.Errorf("%v goes to %s", k, holder(k))
		}
	}
	begin(d, "a", "a", epoch.Add(time.Second))
	d.RemoveDead(epoch.Add(1500 * time.Millisecond))
	if holder(Key{2, 1}) != "a" {
		t.Error("a pinned port of a dead sampler is not read")
	}
	begin(d, "b", "b", epoch.Add(2*time.Second))
	if holder(Key{2, 1}) != "b" {
		t.Error("a pinned port does not come back")
	}
}

func TestTraitsAreHandedOn(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Second})
	targets := targetsOf(1, 2)
	d.SetTargets(targets)
	begin(d, "a", "a", epoch)
	known := Traits{Known: true, VLs: 4}
	d.AcceptReport(&Report{Sampler: "a", Instance: "a", Tick: d.tickOf(epoch), Done: true, Readings: []Reading{{Key: Key{1, 1}, Traits: &known}, {Key: Key{1, 2}, Traits: &known}}}, epoch)
	d.SetTargets(targets)
	if got := work(d, "b", epoch).Targets; got[0].Traits != known {
		t.Errorf("traits %+v, want %+v", got[0].Traits, known)
	}
	targets[0].Remote = "h9/mlx5_0"
	d.SetTargets(targets)
	for _, target := range d.Status().Targets {
		if target.Traits.Known {
			t.Error("traits outlive a change of the fabric")
		}
	}
}

func TestReportsOfFarTicksAreNotTaken(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Second})
	d.SetTargets(targetsOf(1, 1))
	reading := []Reading{{Key: Key{1, 1}, Answers: []Answer{{At: 1, IDs: []ID{1}, Raws: []uint64{1}}}}}
	for _, off := range []int64{-6, 6, 1 << 62, -1 << 62} {
		d.AcceptReport(&Report{Sampler: "a", Instance: "a", Tick: d.tickOf(epoch) + off, Done: true, Readings: reading}, epoch)
	}
	if s := d.Store.Snapshot(epoch); s.Accepted != 0 || d.Status().OffClockReports != 4 || len(members(d)) != 1 {
		t.Errorf("%d readings kept, %d reports astray", s.Accepted, d.Status().OffClockReports)
	}
}

func TestQuantilesOfSkews(t *testing.T) {
	d := NewDelegator(Options{Interval: time.Second})
	for _, skew := range []time.Duration{0, -50 * time.Microsecond, 100 * time.Microsecond, 3 * time.Millisecond, time.Minute} {
		d.AcceptReport(&Report{Sampler: "a", Instance: "a", Tick: 7, Began: 7*second + int64(skew)}, time.Unix(7, 0))
	}
	if s := d.Store.Snapshot(time.Unix(7, 0)); s.Starts != 5 || s.SkewMax != time.Minute || s.SkewP99 != time.Minute {
		t.Errorf("%d starts, p99 %v, at most %v", s.Starts, s.SkewP99, s.SkewMax)
	}
	for range 200 {
		d.AcceptReport(&Report{Sampler: "a", Instance: "a", Tick: 7, Began: 7*second - 1000}, time.Unix(7, 0))
	}
	for range 100 {
		d.AcceptReport(&Report{Sampler: "a", Instance: "a", Tick: 7, Began: 7 * second}, time.Unix(7, 0))
	}
	if s := d.Store.Snapshot(time.Unix(7, 0)); s.SkewP99 != 50*time.Microsecond {
		t.Errorf("p99 %v of 305 starts, want the 302nd", s.SkewP99)
	}
}
