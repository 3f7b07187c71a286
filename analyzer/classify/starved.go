package classify

import (
	"slices"

	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// What it takes to name a starved host by flows that its mark excludes from all other evidence.
const (
	minStarvedFlows = 2   // with a symptom that nothing else explains
	starvedFlows    = 0.5 // share of the flows that nothing else explains: a starved host delays all of its flows
	mostMoments     = 0.5 // share of the remembered moments in which the node was starved
)

// hostSymptoms are the flows of a starved node that no named element explains.
type hostSymptoms struct {
	node       string
	flows      int   // all of them
	late       []int // findings with a delay or a loss
	shifts     []int64
	sent, lost uint64
}

// StarvedHostVerdicts returns verdicts on nodes that were starved in most moments and whose flows are late or lossy. Such
// flows are evidence of nothing else. A mark by itself is no symptom: agents stall every day. Therefore a flow that
// may cross an element of the known verdicts does not count, and most of the others have to be late or lossy. Nodes
// are named one after the other, and the flows of one do not count for the next.
func (c *Scene) StarvedHostVerdicts(known []fabric.Verdict) []fabric.Verdict {
	named := slices.Clone(known)
	nodes := slices.DeleteFunc(starvedNodes(c.Findings), func(node string) bool {
		el := fabric.Element{ID: node, Kind: fabric.KindHost}
		return c.History != nil && c.History.StarvedShare(node) < mostMoments ||
			slices.ContainsFunc(named, func(v fabric.Verdict) bool { return v.Element == el })
	})
	var out []fabric.Verdict
	for len(nodes) > 0 {
		var worst hostSymptoms
		for _, node := range nodes {
			if h := c.symptomsOfHost(node, named); len(h.late) > len(worst.late) {
				worst = h
			}
		}
		if len(worst.late) < minStarvedFlows {
			break
		}
		nodes = slices.DeleteFunc(nodes, func(node string) bool { return node == worst.node })
		if float64(len(worst.late)) < starvedFlows*float64(worst.flows) {
			continue
		}
		v := c.starvedVerdict(worst)
		named, out = append(named, v), append(out, v)
	}
	return out
}

// symptomsOfHost returns what the marked flows of a node show that the named elements do not explain.
func (c *Scene) symptomsOfHost(node string, named []fabric.Verdict) hostSymptoms {
	return c.symptomsOf(node, func(f *judge.Finding) bool {
		return f.HostSuspect && (fabric.OwnerOf(f.Flow.Src) == node || fabric.OwnerOf(f.Flow.Dst) == node) && !isExplained(f, named)
	})
}

// otherNICsAreWell reports whether most flows of a node's other NICs were measured and are neither late nor lossy, marked
// or not: a host that is short of CPU is slow at all of its NICs.
func (c *Scene) otherNICsAreWell(node, nic string) bool {
	h := c.symptomsOf(node, func(f *judge.Finding) bool {
		other := func(end string) bool { return fabric.OwnerOf(end) == node && end != nic }
		return f.Obs.Sent > 0 && f.Flow.Src != nic && f.Flow.Dst != nic && (other(f.Flow.Src) || other(f.Flow.Dst))
	})
	return float64(len(h.late)) < starvedFlows*float64(h.flows)
}

// symptomsOf returns what the flows that are of interest show.
func (c *Scene) symptomsOf(node string, of func(*judge.Finding) bool) hostSymptoms {
	h := hostSymptoms{node: node}
	p := judge.DefaultParameters()
	for i := range c.Findings {
		f := &c.Findings[i]
		if f.Obs.Unread || !of(f) {
			continue
		}
		h.flows++
		// A clock that moved leaves the sum of both directions alone.
		late := f.HasShift && !f.ClockSuspect && f.Shift > f.Scale+judge.ClockBound(f.Obs) && (!f.HasSum || f.Sum > f.SumScale)
		lossy := judge.LossLLR(f.Obs.Lost, f.Obs.Sent, p.BaseLoss) >= p.LossEvidence
		if late {
			h.shifts = append(h.shifts, f.Shift)
		}
		if lossy {
			h.sent, h.lost = h.sent+f.Obs.Sent, h.lost+f.Obs.Lost
		}
		if late || lossy {
			h.late = append(h.late, i)
		}
	}
	return h
}

// isExplained reports whether packets of a flow meet an element of the verdicts, or may do so where the flow's path is
// not known.
func isExplained(f *judge.Finding, named []fabric.Verdict) bool {
	src, dst := f.Flow.Endpoints()
	crosses := func(el fabric.Element) bool {
		switch {
		case el.Kind == fabric.KindClock:
			return false // DistrustDelays has marked the flows of a clock that moved
		case len(f.Obs.Path) > 0:
			return el.CrossedBy(f.Obs.Path, src, dst)
		case len(f.Obs.Paths) > 0:
			return slices.ContainsFunc(f.Obs.Paths, func(p fabric.Path) bool { return el.CrossedBy(p, src, dst) })
		}
		return el.Kind != fabric.KindNIC && el.Kind != fabric.KindHost || el.CrossedBy(nil, src, dst)
	}
	return slices.ContainsFunc(named, func(v fabric.Verdict) bool {
		return crosses(v.Element) || slices.ContainsFunc(v.Equivalent, crosses)
	})
}

// starvedVerdict returns the verdict on a starved host.
func (c *Scene) starvedVerdict(h hostSymptoms) fabric.Verdict {
	s := triangulate.Suspect{Element: triangulate.Element{Kind: fabric.KindHost, Name: h.node}, Confidence: 0.9, Explained: h.late}
	if len(h.shifts) > 0 {
		slices.Sort(h.shifts)
		s.AddedDelayNS = h.shifts[len(h.shifts)/2]
	}
	if h.sent > 0 {
		s.LossRatio = float64(h.lost) / float64(h.sent)
	}
	x := c.newSuspicion(s)
	x.starved, x.scenario = true, fabric.Host
	return c.newVerdict(x, c.healthyNearby([]*suspicion{x})[0])
}
