package ibsample

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func portsOf(switches, ports int) []Key {
	var out []Key
	for s := range switches {
		for p := range ports {
			out = append(out, Key{uint64(s + 1), uint8(p + 1)})
		}
	}
	return out
}

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("s%02d", i)
	}
	return out
}

// shares counts the ports of each sampler that are not pinned to it.
func shares(plan Plan, samplers []string, pins map[Key]string) map[string]int {
	out := map[string]int{}
	for _, s := range samplers {
		out[s] = 0
	}
	for p, holders := range plan {
		for _, h := range holders {
			if pins[p] != h {
				out[h]++
			}
		}
	}
	return out
}

func spread(load map[string]int) int {
	low, high := 1<<30, 0
	for _, n := range load {
		low, high = min(low, n), max(high, n)
	}
	return high - low
}

// checkPlan checks that a plan follows rule 5.
func checkPlan(t *testing.T, ports []Key, samplers []string, pins map[Key]string, redundancy int, plan Plan) {
	t.Helper()
	want := min(max(redundancy, 1), len(samplers))
	if len(plan) != len(ports) {
		t.Fatalf("%d of %d ports are assigned", len(plan), len(ports))
	}
	for _, p := range ports {
		holders := plan[p]
		if len(holders) != want || len(slices.Compact(slices.Sorted(slices.Values(holders)))) != want {
			t.Fatalf("port %v: %v, want %d different samplers", p, holders, want)
		}
		if pin, ok := pins[p]; ok && slices.Contains(samplers, pin) && !slices.Contains(holders, pin) {
			t.Fatalf("port %v is pinned to %s and goes to %v", p, pin, holders)
		}
	}
	if load := shares(plan, samplers, pins); spread(load) > 1 {
		t.Fatalf("shares %v are not within one port of even", load)
	}
}

func moved(before, after Plan) (n int) {
	for p, holders := range after {
		for _, h := range holders {
			if !slices.Contains(before[p], h) {
				n++
			}
		}
	}
	return n
}

func TestRule5PortsAreDividedWithinOneOfEven(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		ports := portsOf(1+r.IntN(12), 1+r.IntN(36))
		samplers := names(1 + r.IntN(9))
		redundancy := r.IntN(4)
		pins := map[Key]string{}
		for range r.IntN(len(ports)/3 + 1) {
			// Some are pinned to a sampler that is not there.
			pins[ports[r.IntN(len(ports))]] = names(10)[r.IntN(10)]
		}
		if redundancy > 1 {
			pins = nil // if every port were pinned to one of two samplers, the other would have all shares
		}
		plan := AssignPorts(ports, samplers, pins, redundancy, nil)
		checkPlan(t, ports, samplers, pins, redundancy, plan)
		for range 12 {
			before := plan
			was := slices.Clone(samplers)
			if i := r.IntN(len(samplers)); r.IntN(2) == 0 && len(samplers) > 1 {
				samplers = slices.Delete(slices.Clone(samplers), i, i+1)
			} else if next := names(20)[r.IntN(20)]; !slices.Contains(samplers, next) {
				samplers = append(slices.Clone(samplers), next)
			}
			plan = AssignPorts(ports, samplers, pins, redundancy, before)
			checkPlan(t, ports, samplers, pins, redundancy, plan)
			if slices.Equal(was, samplers) && moved(before, plan) != 0 {
				t.Fatalf("seed %d: nothing changed and %d ports moved", seed, moved(before, plan))
			}
		}
	}
}

func TestRule5FewPortsChangeHands(t *testing.T) {
	ports := portsOf(54, 36)
	for _, redundancy := range []int{1, 2} {
		plan := AssignPorts(ports, names(4), nil, redundancy, nil)
		dead := names(4)[1:]
		after := AssignPorts(ports, dead, nil, redundancy, plan)
		if got, want := moved(plan, after), len(ports)*redundancy/4; got != want {
			t.Errorf("redundancy %d: one of four dies and %d shares move, want its own %d", redundancy, got, want)
		}
		again := AssignPorts(ports, names(4), nil, redundancy, after)
		if got, want := moved(after, again), len(ports)*redundancy/4; got != want {
			t.Errorf("redundancy %d: a fourth joins and %d shares move, want its own %d", redundancy, got, want)
		}
	}
}

// The ports of one switch go to one sampler only.
func TestRule5SwitchesAreSplitLittle(t *testing.T) {
	plan := AssignPorts(portsOf(54, 36), names(4), nil, 1, nil)
	of := map[uint64]map[string]bool{}
	for p, holders := range plan {
		if of[p.Node] == nil {
			of[p.Node] = map[string]bool{}
		}
		of[p.Node][holders[0]] = true
	}
	split := 0
	for _, s := range of {
		if len(s) > 1 {
			split++
		}
	}
	if split > 3 {
		t.Errorf("%d of 54 switches are asked by several of four samplers", split)
	}
}

func BenchmarkAssign(b *testing.B) {
	ports := portsOf(1100, 36)
	plan := AssignPorts(ports, names(16), nil, 1, nil)
	b.ReportAllocs()
	for b.Loop() {
		AssignPorts(ports, names(15), nil, 1, plan)
	}
}
