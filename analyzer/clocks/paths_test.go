package clocks

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// addNoise returns ways with the deviation sd of every direction beside those that are given.
func addNoise(r *rand.Rand, nics []string, way map[[2]string]int64, sd float64) map[[2]string]int64 {
	out := map[[2]string]int64{}
	for _, a := range nics {
		for _, b := range nics {
			if a != b {
				out[[2]string{a, b}] = way[[2]string{a, b}] + int64(sd*r.NormFloat64())
			}
		}
	}
	return out
}

// noisyMesh returns a mesh of which every window of every flow has noise of its own.
func noisyMesh(r *rand.Rand, nics []string, clock map[string]int64, way map[[2]string]int64, sd float64) []judge.Finding {
	var out []judge.Finding
	for i := range nics {
		for j := range nics {
			if i < j {
				two := []string{nics[i], nics[j]}
				out = append(out, mesh(two, clock, addNoise(r, two, way, sd))...)
			}
		}
	}
	return out
}

// slowWays returns a delay of one direction of a NIC, of a leaf of two NICs, or of some flows of a NIC.
func slowWays(r *rand.Rand, nics []string, by int64) map[[2]string]int64 {
	out := map[[2]string]int64{}
	kind, receive, share := r.IntN(3), r.IntN(2) == 0, 0.3+0.7*r.Float64()
	for i, far := range nics {
		for _, near := range nics[:2] {
			if i < 2 || kind != 1 && near != nics[0] || kind == 2 && r.Float64() > share {
				continue
			}
			if receive {
				out[[2]string{far, near}] = by
			} else {
				out[[2]string{near, far}] = by
			}
		}
	}
	return out
}

// TestRule1APathIsNoClock: shifts of one direction by 1 to 200 us, with noise of up to a third of the floor.
func TestRule1APathIsNoClock(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 24))
	wrong := 0
	for range propertyCases {
		nics, by, sd := nodes(4+r.IntN(6)), 1000+r.Int64N(199_000), 3500*r.Float64()
		if got := FindSuspects(noisyMesh(r, nics, nil, slowWays(r, nics, by), sd)); len(got) > 0 {
			wrong++
			t.Logf("%d ns one way with noise of %.0f ns: named %q", by, sd, names(got))
		}
	}
	if wrong*1000 > propertyCases {
		t.Errorf("%d of %d paths were taken for clocks", wrong, propertyCases)
	}
}

// TestRule1AClockIsNoPath: steps of clocks by 1 to 200 us move no direction as a delay of the fabric would. A
// step of more than twice the limit is named, too.
func TestRule1AClockIsNoPath(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 24))
	wrong, missed := 0, 0
	for range propertyCases {
		nics, by, sd := nodes(4+r.IntN(6)), 1000+r.Int64N(199_000), 3500*r.Float64()
		f := noisyMesh(r, nics, map[string]int64{nics[1]: by}, nil, sd)
		for i := range f {
			if f[i].Delayed {
				wrong++
				break
			}
		}
		if got := FindSuspects(f); by > 25_000 && names(got) != nics[1] {
			missed++
			t.Logf("a step of %d ns with noise of %.0f ns: named %q", by, sd, names(got))
		}
	}
	if wrong*1000 > propertyCases || missed*1000 > propertyCases {
		t.Errorf("of %d clocks %d were taken for paths, %d were not named", propertyCases, wrong, missed)
	}
}

// TestRule1WhereAPathBecomesAClock: one direction moved by 100 us, the other by a share of it the other way.
// The likelihoods are equal at a share of 0.414.
func TestRule1WhereAPathBecomesAClock(t *testing.T) {
	for share, want := range map[float64]bool{0.40: false, 0.43: true} {
		p := pair{sum: 100e3 * (1 - share), offset: 100e3 * (1 + share) / 2, limit: 12e3}
		if got := p.clockVote() > 0; got != want {
			t.Errorf("share %g: a clock is likelier: %v, want %v", share, got, want)
		}
	}
	for _, p := range []pair{{offset: 1e6, limit: 1e4}, {sum: 1e6, offset: 5e5, limit: 1e4}} {
		if v := p.clockVote(); v != maxVote && v != -maxVote {
			t.Errorf("%+v votes %g, want the limit", p, v)
		}
	}
}

// TestRule2WhatAnOffsetMayLeaveOver: the offset is 100 us, the limit of a flow 12 us, and a quarter of the offset is
// allowed beside it.
func TestRule2WhatAnOffsetMayLeaveOver(t *testing.T) {
	for _, c := range []struct {
		off  int64
		want int // explained findings
	}{{36_900, 6}, {37_100, 4}} {
		var pairs []*pair
		for i, o := range []int64{100_000, 100_000, 100_000 + c.off} {
			pairs = append(pairs, &pair{nics: [2]string{fmt.Sprintf("h%d/eth1", i+2), "h1/eth1"}, offset: float64(o), limit: 12e3, findings: [2]int{2 * i, 2*i + 1}})
		}
		s, gain := evaluateMove("h1/eth1", pairs)
		if len(s.Explained) != c.want || gain != c.want/2 || s.Peers != c.want/2 || fabric.OwnerOf(s.NIC) != "h1" {
			t.Errorf("%d ns over: %+v, gain %d", c.off, s, gain)
		}
	}
}

// TestRule3WhatIsSetRightLeavesNothing: the offset is 100 us and a flow may be off by 37 us beside it.
func TestRule3WhatIsSetRightLeavesNothing(t *testing.T) {
	for off, want := range map[float64]float64{36_900: 0, -36_900: 0, 37_100: 37_100} {
		last := &pair{nics: [2]string{"h4/eth1", "h1/eth1"}, offset: 100e3 + off, limit: 12e3}
		pairs := []*pair{last}
		for _, far := range []string{"h2/eth1", "h3/eth1"} {
			pairs = append(pairs, &pair{nics: [2]string{far, "h1/eth1"}, offset: 100e3, limit: 12e3})
		}
		if off < 0 { // the median stays
			pairs = append(pairs, &pair{nics: [2]string{"h5/eth1", "h1/eth1"}, offset: 100e3, limit: 12e3})
		}
		if s, ok := extractBest(pairs); !ok || s.NIC != "h1/eth1" || last.offset != want {
			t.Errorf("%g ns beside the offset: %+v, %g ns are left, want %g", off, s, last.offset, want)
		}
	}
}
