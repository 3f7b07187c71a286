package clocksync

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// slowUplink makes one of a leaf's two uplinks slower: half of what two of eight nodes send to the others, as probes or
// replies, takes as much longer as the returned value says.
func slowUplink(l *smallLab, seed uint64) (by *int64) {
	by = new(int64)
	r := rand.New(rand.NewPCG(seed, 29))
	over := map[*labEdge][2]bool{}
	for i, n := range l.nodes {
		for _, e := range n.edges {
			to := slices.Index(l.nodes, e.to)
			over[e] = [2]bool{i < 2 && to >= 2 && r.IntN(2) == 0, to < 2 && i >= 2 && r.IntN(2) == 0}
		}
	}
	l.slow = func(e *labEdge, direction int) int64 {
		if over[e][direction] {
			return *by
		}
		return 0
	}
	return by
}

// TestRule13ASlowPathFromTheBeginning has an uplink that is slow before any clock is known, gets a little slower for some
// seconds twice, and heals. Half of the estimates of the two clocks behind it are wrong by half of the delay, and no pair
// can know that. No claim may be wrong, and no clock steps.
func TestRule13ASlowPathFromTheBeginning(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for _, tc := range []struct {
		kind  Kind
		delay int64 // ns
	}{{Kernel, 500e3}, {Kernel, 40e3}, {Hardware, 500e3}, {Hardware, 40e3}, {Hardware, 4e3}} {
		claims, outside, holes := 0, 0, 0
		for seed := range seeds {
			l := newSmallLab(8, 7, 2, tc.kind, 0.2, seed)
			by := slowUplink(l, seed)
			worst := 0.0
			l.solved = func() {
				if l.t < 10e9 {
					return
				}
				errs := l.errors()
				for i, n := range l.nodes {
					m := l.mapOf(n)
					if claims++; m.State != Locked && m.State != Holdover {
						holes++
						continue
					}
					if over := math.Abs(errs[i]) - BoundSigmas*m.Sigma - float64(m.Allowance); over > 0 {
						outside++
						worst = max(worst, over)
					}
				}
			}
			for _, tenths := range []int64{10, 11, 10, 12, 10, 0} {
				*by = tc.delay * tenths / 10
				l.run(15e9)
			}
			steps := 0
			for _, m := range l.maps() {
				steps += int(m.Steps)
			}
			if worst > 0 || steps > 0 {
				t.Errorf("kind %d, %d ns, seed %d: a claim is outside of its bound by %.0f ns, %d steps", tc.kind, tc.delay, seed, worst, steps)
			}
		}
		t.Logf("kind %d, %d ns: %d maps, %d claim nothing, %d are outside of their bounds", tc.kind, tc.delay, claims, holes, outside)
	}
}

// TestRule13ANICThatIsSlowFromTheBeginning has a NIC all of whose packets leave late before any clock is known. Its clock
// seems to be off by half of that, to all pairs alike.
func TestRule13ANICThatIsSlowFromTheBeginning(t *testing.T) {
	for _, k := range []Kind{Kernel, Hardware} {
		for _, delay := range []int64{50e3, 2e6} {
			l := newSmallLab(8, 7, 2, k, 0.2, 1)
			l.late = map[*labNode]int64{l.nodes[0]: delay}
			l.solved = func() {
				if l.t < 10e9 {
					return
				}
				for i, e := range l.errors() {
					m := l.mapOf(l.nodes[i])
					if bound := BoundSigmas*m.Sigma + float64(m.Allowance); math.Abs(e) > bound {
						t.Fatalf("kind %d, %d ns: clock %d is off by %.0f ns, and claims %.0f", k, delay, i, e, bound)
					}
					if bound := 0.1*float64(delay) + 3000; i > 0 && BoundSigmas*m.Sigma > bound {
						t.Fatalf("kind %d, %d ns: the bound of clock %d is %.0f ns, want at most %.0f", k, delay, i, BoundSigmas*m.Sigma, bound)
					}
				}
			}
			l.run(20e9)
		}
	}
}

// errors returns how far each clock's map is off at the present time, ns, relative to the median of all.
func (l *smallLab) errors() []float64 {
	out := make([]float64, len(l.nodes))
	first := int64(0)
	for i, n := range l.nodes {
		m := l.mapOf(n)
		at := m.FrameTime(n.read(l.t))
		if i == 0 {
			first = at
		}
		out[i] = float64(at - first)
	}
	sorted := slices.Sorted(slices.Values(out))
	median := (sorted[len(sorted)/2-1] + sorted[len(sorted)/2]) / 2
	for i := range out {
		out[i] -= median
	}
	return out
}
