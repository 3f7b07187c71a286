package baseline

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// maxRoutes is the number of earlier routes of a flow whose baselines are remembered.
const maxRoutes = 4

// routeSeed makes the keys of paths. They are never stored.
var routeSeed = maphash.MakeSeed()

// routeBaseline is what was learnt of a flow on an earlier route.
type routeBaseline struct {
	key      uint64
	p50, p99 []int64
	baseline *fabric.Quantiles
	mad      int64
}

// keyOf returns a key of a path. It is never 0.
func keyOf(p fabric.Path) uint64 {
	var h maphash.Hash
	h.SetSeed(routeSeed)
	for i := range p {
		for _, s := range []string{p[i].Switch, p[i].In, p[i].Out} {
			h.WriteString(s)
			h.WriteByte(0)
		}
	}
	return h.Sum64() | 1
}

// FollowRoute states the path of a flow. If it is another one than before, the baseline becomes that of the new path
// (rule 6).
func (b *Book) FollowRoute(f fabric.Flow, p fabric.Path) {
	r := b.records[f]
	if r == nil || len(p) == 0 || len(p) == len(r.route) && &p[0] == &r.route[0] {
		return
	}
	was, wasKey, key := r.ports, r.routeKey, keyOf(p)
	changed := wasKey != 0 && wasKey != key && r.baseline != nil
	var usual *usualDelays
	if changed {
		usual = b.currentUsual() // with the flow on its earlier path
	}
	r.route, r.routeKey = p, key
	if wasKey == 0 {
		r.hours.adoptRoute(uint32(key)) //nolint:gosec // the low half
	}
	if wasKey != key {
		r.ports = b.ports.numberPorts(p)
	}
	if !changed {
		return
	}
	if !r.estimated {
		r.earlier = append(r.earlier, routeBaseline{wasKey, r.p50, r.p99, r.baseline, r.baselineMAD})
		r.earlier = r.earlier[max(0, len(r.earlier)-maxRoutes):]
	}
	if i := slices.IndexFunc(r.earlier, func(e routeBaseline) bool { return e.key == r.routeKey }); i >= 0 {
		e := r.earlier[i]
		r.earlier = slices.Delete(r.earlier, i, i+1)
		r.p50, r.p99, r.baseline, r.baselineMAD, r.estimated = e.p50, e.p99, e.baseline, e.mad, false
		return
	}
	more, spread, known := usual.exchangePaths(was, r.ports)
	r.p50, r.p99 = nil, nil
	if !known {
		r.baseline, r.baselineMAD, r.estimated, r.windowCount = nil, 0, false, 0
		b.countChange(true, r)
		return
	}
	p50 := *r.baseline.P50 + more
	base := &fabric.Quantiles{P50: &p50}
	if r.baseline.P99 != nil {
		p99 := *r.baseline.P99 + more
		base.P99 = &p99
	}
	r.baseline, r.baselineMAD, r.estimated = base, max(r.baselineMAD, spread), true
}

// portNumbers numbers the ports by which paths leave their switches, so that what is usual at all ports is found without
// comparing names.
type portNumbers map[fabric.Hop]int32

// numberPorts returns the numbers of the ports by which a path leaves its switches, but for the port to the receiver. New
// ports get numbers.
func (n portNumbers) numberPorts(p fabric.Path) []int32 {
	out := make([]int32, len(p)-1)
	for i, h := range p[:len(p)-1] {
		at := fabric.Hop{Switch: h.Switch, Out: h.Out}
		number, ok := n[at]
		if !ok {
			number = int32(len(n)) //nolint:gosec // ports of a fabric
			n[at] = number
		}
		out[i] = number
	}
	return out
}

// usualDelays are what is usual by all flows that learnt on their path: the median baseline on paths of so many hops,
// and by how much that of flows that leave a switch by a port differs from it.
type usualDelays struct {
	cycle  int // it was learnt after
	byHops map[int]int64
	byPort []usualExcess // by number
	spread int64         // median absolute deviation of what this does not explain
	tail   int64         // median distance of the 99th percentile from the median
}

type usualExcess struct {
	by    int64
	known bool
}

// currentUsual returns what is usual, by the baselines of at most recomputeEvery cycles ago. All flows are read for it.
func (b *Book) currentUsual() *usualDelays {
	if b.usual == nil || b.cycle-b.usual.cycle >= recomputeEvery {
		b.usual = b.learnUsual(time.Time{})
	}
	return b.usual
}

// hourlyUsual returns what is usual at a moment, with the hour of the day if any flow is usually slower then.
func (b *Book) hourlyUsual(at time.Time) *usualDelays {
	if b.hourly == nil || b.cycle-b.hourly.cycle >= recomputeEvery {
		b.hourly = b.currentUsual()
		for _, r := range b.records {
			if r.usualAt(at).known {
				b.hourly = b.learnUsual(at)
				break
			}
		}
	}
	return b.hourly
}

// learnUsual returns what is usual at a moment, or without the hour of the day for the zero time.
func (b *Book) learnUsual(at time.Time) *usualDelays {
	u := &usualDelays{cycle: b.cycle, byHops: map[int]int64{}, byPort: make([]usualExcess, len(b.ports))}
	learnt := make([]*record, 0, len(b.records))
	byHops := map[int][]int64{}
	for _, r := range b.records {
		if r.learntOnRoute() {
			learnt = append(learnt, r)
			p50, _ := r.delaysAt(at)
			byHops[len(r.route)] = append(byHops[len(r.route)], p50)
		}
	}
	for hops, all := range byHops {
		u.byHops[hops], _ = judge.MedianMAD(all)
	}
	byPort := make([][]int64, len(b.ports))
	for _, r := range learnt {
		p50, _ := r.delaysAt(at)
		more := p50 - u.byHops[len(r.route)]
		for _, port := range r.ports {
			byPort[port] = append(byPort[port], more)
		}
	}
	for port, all := range byPort {
		by, _ := judge.MedianMAD(all)
		u.byPort[port] = usualExcess{by, len(all) > 0}
	}
	left, tails := make([]int64, 0, len(learnt)), make([]int64, 0, len(learnt))
	for _, r := range learnt {
		usual, _ := u.delayOf(r.ports)
		p50, p99 := r.delaysAt(at)
		left = append(left, p50-usual)
		if r.baseline.P99 != nil {
			tails = append(tails, p99-p50)
		}
	}
	_, u.spread = judge.MedianMAD(left)
	u.tail, _ = judge.MedianMAD(tails)
	return u
}

// EstimateOnRoute returns what is usual on a path at a moment, for a flow without windows of its own, and the median absolute
// deviation of such estimates in nanoseconds. It returns nil if no flow has learnt at one of the path's ports.
func (b *Book) EstimateOnRoute(p fabric.Path, at time.Time) (base *fabric.Quantiles, madNS int64) {
	if len(p) == 0 {
		return nil, 0
	}
	usual := b.hourlyUsual(at)
	p50, known := usual.delayOf(b.ports.numberPorts(p))
	if !known {
		return nil, 0
	}
	p99 := p50 + usual.tail
	return &fabric.Quantiles{P50: &p50, P99: &p99}, usual.spread
}

// learntOnRoute reports whether a flow has a baseline that was measured on its path.
func (r *record) learntOnRoute() bool { return r.baseline != nil && !r.estimated && len(r.route) > 0 }

// hopsOf returns the number of hops of a path, by its numbered ports.
func hopsOf(ports []int32) int { return len(ports) + 1 }

// delayOf returns the usual delay of a path, by its numbered ports, and whether every port of it is known. The excess of ports counts once:
// flows that cross one long cable cross others behind it, which look as long.
func (u *usualDelays) delayOf(ports []int32) (int64, bool) {
	usual, known := u.byHops[hopsOf(ports)]
	most := int64(0)
	for _, port := range ports {
		var e usualExcess // of a port that is newer than u: unknown
		if int(port) < len(u.byPort) {
			e = u.byPort[port]
		}
		if known = known && e.known; max(e.by, -e.by) > max(most, -most) {
			most = e.by
		}
	}
	return usual + most, known
}

// exchangePaths returns by how much a flow's delay usually differs on another path, and the spread of such estimates.
// Where it knows only the lengths of the paths, it compares these. It reports false if no flow takes a path of that length.
func (u *usualDelays) exchangePaths(was, is []int32) (more, spread int64, known bool) {
	before, allBefore := u.delayOf(was)
	after, allAfter := u.delayOf(is)
	if allBefore && allAfter {
		return after - before, u.spread, true
	}
	if len(was) == len(is) {
		return 0, u.spread, true
	}
	before, lengthBefore := u.byHops[hopsOf(was)]
	after, lengthAfter := u.byHops[hopsOf(is)]
	return after - before, u.spread, lengthBefore && lengthAfter
}
