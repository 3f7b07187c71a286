package audit

import (
	"fmt"
	"math"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// checkLoss makes check A3: the loss of every link direction, by class, with the upper bound of its confidence interval. Probes are pooled
// over the flows whose path is known.
func checkLoss(st *study) Check {
	c := Check{ID: "A3", Title: "Loss", Status: Pass, Unit: "share of probes", Bound: &st.c.Loss.MaxRatio, Of: "link directions and classes"}
	conf := st.c.Loss.Confidence
	var least uint64 = math.MaxUint64
	for _, class := range st.classes() {
		p := st.poolLosses(class)
		p.nameCulprits()
		for d := range int32(len(st.directions)) {
			if !st.inScope(d) || p.all[d] == 0 && p.culprits[d] == nil {
				continue
			}
			c.Population++
			if k := p.culprits[d]; k != nil {
				c.noteValue(k.ratio())
				c.addItem(st.lossItem(d, class, k))
				continue
			}
			sent, lost := p.sent[d], p.lost[d]
			upper := UpperBound(lost, sent, conf)
			if sent > 0 {
				c.noteValue(upper)
				least = min(least, sent)
			}
			if upper <= st.c.Loss.MaxRatio {
				continue
			}
			i := st.newItem(d, Unknown)
			i.Class, i.Value, i.Bound, i.Population = class, &upper, &st.c.Loss.MaxRatio, int(sent)
			switch {
			case sent == 0:
				i.Value = nil
				i.Text = "All flows that cross it also cross a direction that fails."
			case lost == 0:
				i.Text = fmt.Sprintf("0 of %d probes were lost, which bounds the loss at %s; %.0f probes are needed for %s.", sent, formatShare(upper), probesFor(st.c.Loss.MaxRatio, conf), formatShare(st.c.Loss.MaxRatio))
			default:
				i.Text = fmt.Sprintf("%d of %d probes were lost, which bounds the loss at %s; that decides neither way.", lost, sent, formatShare(upper))
			}
			c.addItem(i)
		}
		if p.unplaced > 0 {
			c.addItem(Item{Element: "flows without a known path or direction of loss", Kind: "flows", Status: Unknown, Class: class, Population: p.unplacedFlows,
				Text: fmt.Sprintf("%d probes of %d flows were lost, and it is not known on which path or in which direction.", p.unplaced, p.unplacedFlows)})
		}
	}
	if c.Population > 0 {
		c.Text = fmt.Sprintf("Upper bounds of %g %% confidence, one-sided; the direction with fewest probes has %d.", conf*100, least)
		if least == math.MaxUint64 {
			c.Text = "No direction is without a fault."
		}
	}
	return c
}

// lossPool has the probes of one class by direction.
type lossPool struct {
	st         *study
	sent, lost []uint64 // without the flows of culprits
	all        []uint64 // sent
	flows      []int    // records that are left
	records    []int
	total      pooled
	culprits   map[int32]*lossCulprit
	// unplaced are the lost probes of flows without a known path, and those that were lost in an unknown direction.
	unplaced      uint64
	unplacedFlows int
}

type pooled struct{ sent, lost uint64 }

func (p pooled) ratio() float64 { return float64(p.lost) / float64(max(p.sent, 1)) }

// lossCulprit is a direction that loses packets.
type lossCulprit struct {
	pooled
	lower      float64
	equivalent []int32
}

// poolLosses pools the probes of one class.
func (st *study) poolLosses(class string) *lossPool {
	n := len(st.directions)
	p := &lossPool{st: st, sent: make([]uint64, n), lost: make([]uint64, n), all: make([]uint64, n), flows: make([]int, n), culprits: map[int32]*lossCulprit{}}
	for i := range st.e.Flows {
		f := &st.e.Flows[i]
		if f.Class != class {
			continue
		}
		unplaced := f.RoundTrip
		if st.crosses[i] == nil {
			unplaced += f.Lost
		}
		if unplaced > 0 && !st.isExplainedByWiring(f) {
			p.unplaced += unplaced
			p.unplacedFlows++
		}
		if st.crosses[i] == nil {
			continue
		}
		if f.Sent == 0 {
			continue
		}
		p.records = append(p.records, i)
		p.total.sent += f.Sent
		p.total.lost += f.Lost
		for _, d := range st.crosses[i] {
			p.sent[d] += f.Sent
			p.lost[d] += f.Lost
			p.all[d] += f.Sent
			p.flows[d]++
		}
	}
	return p
}

// isExplainedByWiring reports whether a flow begins or ends at a NIC whose cable is missing.
func (st *study) isExplainedByWiring(f *FlowRecord) bool {
	for _, nic := range []string{f.Src, f.Dst} {
		if port := st.e.Graph.PeerOf(nic); port != "" && st.miswired[fabric.LinkID(nic, port)] {
			return true
		}
	}
	return false
}

// nameCulprits names the directions whose loss is surely above the criterion, the one that explains most first, and takes the
// probes of their flows from the others. The confidence is that of all directions together.
func (p *lossPool) nameCulprits() {
	sure := 1 - (1-p.st.c.Loss.Confidence)/float64(max(1, len(p.sent)))
	for {
		best, gain := int32(-1), 0.0
		for d := range int32(len(p.sent)) {
			if p.lost[d] == 0 || p.culprits[d] != nil || LowerBound(p.lost[d], p.sent[d], sure) <= p.st.c.Loss.MaxRatio {
				continue
			}
			in := pooled{p.sent[d], p.lost[d]}
			out := pooled{p.total.sent - in.sent, p.total.lost - in.lost}
			if out.sent > 0 && in.ratio() <= out.ratio() {
				continue
			}
			if g := likelihood(in) + likelihood(out) - likelihood(p.total); best < 0 || g > gain {
				best, gain = d, g
			}
		}
		if best < 0 {
			return
		}
		k := &lossCulprit{pooled: pooled{p.sent[best], p.lost[best]}, lower: LowerBound(p.lost[best], p.sent[best], p.st.c.Loss.Confidence), equivalent: p.equivalents(best)}
		p.culprits[best] = k
		p.removeFlowsOf(best)
	}
}

// likelihood returns the largest logarithm of the likelihood of a loss.
func likelihood(p pooled) float64 {
	if p.sent == 0 || p.lost == 0 || p.lost >= p.sent {
		return 0
	}
	n, k := float64(p.sent), float64(p.lost)
	return k*math.Log(k/n) + (n-k)*math.Log1p(-k/n)
}

// equivalents returns the other directions that exactly the same flows cross.
func (p *lossPool) equivalents(of int32) (out []int32) {
	for d := range int32(len(p.sent)) {
		if d == of || p.flows[d] != p.flows[of] || p.sent[d] != p.sent[of] || p.lost[d] != p.lost[of] {
			continue
		}
		if !slices.ContainsFunc(p.records, func(i int) bool {
			return slices.Contains(p.st.crosses[i], d) != slices.Contains(p.st.crosses[i], of)
		}) {
			out = append(out, d)
		}
	}
	return out
}

// removeFlowsOf takes the flows that cross a direction from the pools of all.
func (p *lossPool) removeFlowsOf(direction int32) {
	p.records = slices.DeleteFunc(p.records, func(i int) bool {
		crosses, f := p.st.crosses[i], &p.st.e.Flows[i]
		if !slices.Contains(crosses, direction) {
			return false
		}
		for _, d := range crosses {
			p.sent[d] -= f.Sent
			p.lost[d] -= f.Lost
			p.flows[d]--
		}
		p.total.sent -= f.Sent
		p.total.lost -= f.Lost
		return true
	})
}

// lossItem returns the item of a direction that loses packets.
func (st *study) lossItem(d int32, class string, k *lossCulprit) Item {
	i := st.newItem(d, Fail)
	ratio := k.ratio()
	i.Class, i.Value, i.Bound, i.Population, i.Equivalent = class, &ratio, &st.c.Loss.MaxRatio, int(k.sent), st.linkIDs(k.equivalent)
	i.Text = fmt.Sprintf("%d of %d probes were lost (%s), surely more than %s.", k.lost, k.sent, formatShare(ratio), formatShare(k.lower))
	return i
}
