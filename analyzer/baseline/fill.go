package baseline

import (
	"slices"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// minOwnWindows is the number of other windows of a flow that a baseline of its own needs.
const minOwnWindows = 3

// minComparable is the number of comparable flows that a baseline for a flow without one needs.
const minComparable = 4

// FillMissing sets the baseline of observations that have none. It takes the other windows of the flow, if they
// agree with comparable flows, otherwise comparable flows (same tier, hop count, plane, class and timestamp
// kind).
func FillMissing(obs []*fabric.Observation) {
	if !slices.ContainsFunc(obs, func(o *fabric.Observation) bool { return o.Baseline == nil && o.OWD != nil }) {
		return
	}
	type alike struct {
		tier, hops              int
		plane, class, timestamp string
	}
	own := map[string][]*fabric.Observation{}
	groups := map[alike][]*fabric.Observation{}
	group := func(o *fabric.Observation) alike {
		return alike{o.Tier, hopCount(o), o.Plane, o.Class, o.Timestamp}
	}
	for _, o := range obs {
		if o.OWD == nil || o.OWD.P50 == nil || o.HostSuspect {
			continue
		}
		own[o.Edge] = append(own[o.Edge], o)
		groups[group(o)] = append(groups[group(o)], o)
	}
	groupBase := map[alike]baselineStats{}
	for k, l := range groups {
		groupBase[k] = baselineOf(l, nil)
	}
	for _, o := range obs {
		if o.Baseline != nil {
			continue
		}
		peers, havePeers := groupBase[group(o)]
		havePeers = havePeers && peers.n >= minComparable
		mine := baselineOf(own[o.Edge], o)
		use := peers
		switch {
		case mine.n >= minOwnWindows && havePeers && mine.p50 <= peers.p50+peers.shiftLimit():
			use = mine
		case mine.n >= minOwnWindows && !havePeers:
			use = mine
		case !havePeers:
			continue
		}
		o.Baseline = &fabric.Quantiles{P50: &use.p50}
		if use.hasP99 {
			o.Baseline.P99 = &use.p99
		}
		o.BaselineMADNS = &use.mad
	}
}

func hopCount(o *fabric.Observation) int {
	if len(o.Path) > 0 {
		return len(o.Path)
	}
	if len(o.Paths) > 0 {
		return len(o.Paths[0])
	}
	return 0
}

type baselineStats struct {
	n             int
	p50, p99, mad int64
	hasP99        bool
}

func (b baselineStats) shiftLimit() int64 {
	s := max(int64(judge.DefaultParameters().FloorKernel), int64(judge.DefaultParameters().ShiftMADs*float64(b.mad)))
	return s
}

// baselineOf returns the median and MAD of the medians of windows, except that of skip.
func baselineOf(obs []*fabric.Observation, skip *fabric.Observation) baselineStats {
	var p50, p99 []int64
	for _, o := range obs {
		if o == skip {
			continue
		}
		p50 = append(p50, *o.OWD.P50)
		if o.OWD.P99 != nil {
			p99 = append(p99, *o.OWD.P99)
		}
	}
	b := baselineStats{n: len(p50)}
	if b.n == 0 {
		return b
	}
	b.p50, b.mad = judge.MedianMAD(p50)
	if len(p99) > 0 {
		b.p99, _ = judge.MedianMAD(p99)
		b.hasP99 = true
	}
	return b
}
