package workload

import (
	"maps"
	"slices"
)

// hungCounts returns the communicators in which some ranks have launched fewer operations of a kind than the others, and all stand still.
// Only counts speak of these communicators, such as those of NCCL's RAS service. If it is unknown which ranks of several of them are one
// process, the largest one is returned: the others may wait for it.
func (j *job) hungCounts(least func(*comm) int64) (out []hung) {
	known := true // each rank is known in all of its communicators
	for _, c := range j.order {
		if c.ops > 0 || len(c.pending) > 0 || len(c.p2p) > 0 {
			continue
		}
		h, ok := c.standsStill()
		if !ok || h.age <= least(c) {
			continue
		}
		out = append(out, h)
		for r := range c.beats {
			p := c.members[r]
			known = known && p != nil && (p.place.GPU != nil || p.place.NIC != "")
		}
	}
	if len(out) < 2 || known {
		return out
	}
	largest := 0
	for i := range out {
		if out[i].comm.n > out[largest].comm.n {
			largest = i
		}
	}
	out[largest].vague = true
	return out[largest : largest+1]
}

// standsStill returns the kind of operation of which at most a quarter of the ranks have launched fewer than all others. It is false if
// there is none, or too few ranks have counts. The age is for how long the others are known to have launched nothing more.
func (c *comm) standsStill() (h hung, ok bool) {
	var ranks []int
	kinds := map[string]bool{}
	latest := int64(0)
	for r, b := range c.beats {
		if len(b.launched) > 0 {
			ranks = append(ranks, r)
			latest = max(latest, b.at)
			for op := range b.launched {
				kinds[op] = true
			}
		}
	}
	if len(ranks) < max(2, c.enough()) {
		return hung{}, false
	}
	slices.Sort(ranks)
	for _, op := range slices.Sorted(maps.Keys(kinds)) {
		if !symmetric(op) && !rooted(op) {
			continue // ranks have different numbers of them
		}
		x := hung{comm: c, op: op, seq: c.beats[ranks[0]].launched[op], phase: "run", byCounts: true}
		for _, r := range ranks {
			x.seq = min(x.seq, c.beats[r].launched[op])
		}
		for _, r := range ranks {
			b := c.beats[r]
			stood := b.at - b.changed
			if b.launched[op] == x.seq {
				x.absent = append(x.absent, r)
				stood = latest - b.changed // also if it does not answer any more
			} else {
				x.launched = append(x.launched, r)
				if x.began == 0 || b.changed < x.began {
					x.began = b.changed
				}
			}
			if r == ranks[0] || stood < x.age {
				x.age = stood
			}
		}
		if len(x.launched) > 0 && len(x.absent) <= max(1, c.n/4) && (!ok || x.began < h.began) {
			h, ok = x, true
		}
	}
	return h, ok
}
