package baseline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// pathBy returns a path from port a of the first switch to port z of the last one.
func pathBy(a, z string, switches ...string) fabric.Path {
	var p fabric.Path
	for i, sw := range switches {
		h := fabric.Hop{Switch: sw, In: a, Out: z}
		if i > 0 {
			h.In = "from " + switches[i-1]
		}
		if i < len(switches)-1 {
			h.Out = "to " + switches[i+1]
		}
		p = append(p, h)
	}
	return p
}

// routeBook is a Book whose flows are measured by healthy windows.
type routeBook struct {
	*Book
	cycle int
}

func (b *routeBook) measure(p50 int64, p fabric.Path, windows int, flows ...fabric.Flow) {
	for range windows {
		b.cycle++
		var all []judge.Finding
		for _, f := range flows {
			b.FollowRoute(f, p)
			p99 := 2 * p50
			all = append(all, judge.Finding{Flow: f, Condition: judge.Healthy, Obs: &fabric.Observation{Edge: f.String(), Sent: 100, Path: p, OWD: &fabric.Quantiles{P50: &p50, P99: &p99}}})
		}
		out, _ := b.ConfirmFindings(all, b.cycle, always)
		b.LearnWindows(out, Learning{Cycle: b.cycle})
	}
}

func (b *routeBook) wantBaseline(t *testing.T, what string, f fabric.Flow, p50 int64) {
	t.Helper()
	got := int64(0) // none
	if base, _ := b.BaselineOf(f); base != nil {
		got = *base.P50
	}
	if got != p50 {
		t.Errorf("%s: baseline %d, want %d", what, got, p50)
	}
}

// TestRule6ABaselineBelongsToAPath walks through the cases of the rule.
func TestRule6ABaselineBelongsToAPath(t *testing.T) {
	b := &routeBook{Book: NewBook()}
	f, other := fabric.Flow{Src: "h1/e", Dst: "h2/e"}, fabric.Flow{Src: "h3/e", Dst: "h4/e"}
	near, far, alike, long := pathBy("1", "2", "l1", "s1", "l2"), pathBy("1", "2", "l1", "s2", "l2"), pathBy("1", "2", "l1", "s3", "l2"), pathBy("1", "2", "l1", "s1", "l3", "s2", "l2")
	const learn = LearnWindows + WarmUp
	b.measure(5000, near, learn, f)
	b.measure(60_000, pathBy("3", "4", "l1", "s2", "l2"), learn, other)
	b.wantBaseline(t, "learnt", f, 5000)
	b.FollowRoute(f, append(fabric.Path{}, near...))
	b.wantBaseline(t, "the same path, kept elsewhere", f, 5000)
	b.FollowRoute(f, far)
	b.wantBaseline(t, "the way of another flow", f, 60_000)
	b.FollowRoute(f, near)
	b.wantBaseline(t, "back again", f, 5000)
	b.FollowRoute(f, alike)
	b.wantBaseline(t, "as many hops", f, 5000)
	b.measure(9000, alike, LearnWindows+recomputeEvery, f)
	b.wantBaseline(t, "relearnt there", f, 9000)
	b.FollowRoute(f, near)
	b.wantBaseline(t, "back once more", f, 5000)
	b.FollowRoute(f, alike)
	b.wantBaseline(t, "where it learnt", f, 9000)
	b.FollowRoute(f, long)
	b.wantBaseline(t, "more hops, and no other flow", f, 0)
	b.measure(20_000, long, learn, f)
	b.wantBaseline(t, "learnt anew", f, 20_000)
	b.FollowRoute(other, long)
	b.wantBaseline(t, "the way of another flow", other, 20_000)
}

// TestEstimatesAreNotPassedOn: what a flow took over from others is the baseline of no third one, and is not remembered.
func TestEstimatesAreNotPassedOn(t *testing.T) {
	b := &routeBook{Book: NewBook()}
	flow := func(n int) fabric.Flow { return fabric.Flow{Src: fmt.Sprintf("h%d/e", n), Dst: "h9/e"} }
	way, alike, short := pathBy("1", "9", "l1", "s1", "l2"), pathBy("1", "9", "l1", "s2", "l2"), pathBy("1", "9", "l1")
	b.measure(5000, way, LearnWindows+WarmUp, flow(1), flow(2))
	b.measure(3000, short, LearnWindows+WarmUp, flow(3))
	for n := range 2 {
		b.FollowRoute(flow(n+1), alike)
		b.wantBaseline(t, "kept on as many hops", flow(n+1), 5000)
	}
	b.measure(9000, nil, recomputeEvery) // what was usual before is forgotten
	b.FollowRoute(flow(3), pathBy("3", "9", "l1", "s2", "l2"))
	b.wantBaseline(t, "only estimates are there", flow(3), 0)
	b.FollowRoute(flow(1), short)
	b.FollowRoute(flow(1), alike)
	b.wantBaseline(t, "an estimate is not remembered", flow(1), 0)
	b.FollowRoute(flow(2), way)
	b.wantBaseline(t, "what was learnt is", flow(2), 5000)
}

// TestEarlierRoutesAreBounded: the latest are remembered.
func TestEarlierRoutesAreBounded(t *testing.T) {
	b := &routeBook{Book: NewBook()}
	f := fabric.Flow{Src: "h1/e", Dst: "h2/e"}
	way := func(n int) fabric.Path { return pathBy("1", "2", "l1", fmt.Sprint("s", n), "l2") }
	for n := range maxRoutes + 3 {
		b.measure(int64(1000*(n+1)), way(n), LearnWindows+recomputeEvery, f)
	}
	if n := len(b.records[f].earlier); n != maxRoutes {
		t.Errorf("%d earlier routes, want %d", n, maxRoutes)
	}
	b.FollowRoute(f, way(maxRoutes))
	b.wantBaseline(t, "a late one", f, 1000*(maxRoutes+1))
	b.FollowRoute(f, way(0))
	b.wantBaseline(t, "the first is forgotten, and as many hops keep the present one", f, 1000*(maxRoutes+1))
}

// TestRule7WhatIsUsualOnAPath: the estimate for a flow without windows has the port that takes longer, and is absent where
// no flow has learnt at a port.
func TestRule7WhatIsUsualOnAPath(t *testing.T) {
	b := NewBook()
	path := func(spine, leaf string) fabric.Path {
		return fabric.Path{{Switch: "leaf1", In: "dn1", Out: spine}, {Switch: spine, In: "dn1", Out: leaf}, {Switch: leaf, In: spine, Out: "dn1"}}
	}
	n := 0
	for _, spine := range []string{"spine1", "spine2", "spine3"} {
		for _, leaf := range []string{"leaf2", "leaf3", "leaf4"} {
			f := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1", Number: n}
			n++
			delay := int64(5000)
			if spine == "spine3" {
				delay = 25_000 // a long cable
			}
			b.FollowRoute(f, path(spine, leaf)) // not remembered yet
			b.SeedFlow(f, slices.Repeat([]int64{delay}, LearnWindows), slices.Repeat([]int64{delay + 4000}, LearnWindows))
			b.FollowRoute(f, path(spine, leaf))
		}
	}
	for _, tt := range []struct {
		p    fabric.Path
		want int64
	}{{path("spine1", "leaf3"), 5000}, {path("spine3", "leaf3"), 25_000}} {
		base, mad := b.EstimateOnRoute(tt.p, time.Time{})
		if base == nil || *base.P50 != tt.want || *base.P99 != tt.want+4000 || mad != 0 {
			t.Errorf("%v: %+v, MAD %d, want %d", tt.p, base, mad, tt.want)
		}
	}
	for _, p := range []fabric.Path{path("spine4", "leaf3"), path("spine1", "leaf5"), nil} {
		if base, _ := b.EstimateOnRoute(p, time.Time{}); base != nil {
			t.Errorf("%v: %d, want nothing", p, *base.P50)
		}
	}
	temporary := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1", Number: 48}
	p50 := int64(5000)
	for cycle := 1; cycle < 30; cycle++ {
		found := []judge.Finding{{Flow: temporary, Condition: judge.Healthy, Obs: &fabric.Observation{OWD: &fabric.Quantiles{P50: &p50}, Path: path("spine1", "leaf2")}}}
		out, _ := b.ConfirmFindings(found, cycle, func(fabric.Flow) bool { return true })
		if want := cycle >= ConfirmedBy; (out[0].Condition == judge.Healthy) != want {
			t.Errorf("cycle %d: condition %v", cycle, out[0].Condition)
		}
		b.LearnWindows(found, Learning{Cycle: cycle})
	}
	if b.HasBaseline(temporary) || b.IsExpected(temporary, 30) {
		t.Error("a temporary flow has learnt, or is expected")
	}
	for f := range b.ExpectedFlows(30) {
		if f.IsTemporary() {
			t.Error("a temporary flow is expected")
		}
	}
}
