package collective

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// Sizes of the operations and times of the computing between them.
const (
	computeNS   = 12_000_000 // of a forward pass of one micro-batch
	tensorBytes = 16 << 20
	stageBytes  = 8 << 20
	gradBytes   = 256 << 20
	expertBytes = 64 << 20
	normBytes   = 64 << 10
	microbatch  = 2
)

// build makes the ranks, their communicators and what each is going to do.
func (w *world) build(incarnation int, start int64) {
	n := w.DP * w.TP * w.PP
	if w.procs == nil {
		for r := range n {
			node := r / w.TP
			p := &process{host: fmt.Sprintf("h%d", node+1), gpu: r % w.TP}
			if r%w.TP > 0 {
				p.shift = w.procs[r-1].shift
			} else if w.Nuisances.ClockShift {
				p.shift = w.rng.Int64N(1_000_000_000) - 500_000_000
			}
			w.procs = append(w.procs, p)
		}
	}
	for _, p := range w.procs {
		p.program, p.next, p.events, p.stopped, p.begun = nil, 0, nil, false, nil
		p.ready = start + w.rng.Int64N(300_000_000)
	}
	w.waiting, w.groups = map[string]*pending{}, nil
	at := func(dp, pp, tp int) int { return (dp*w.PP+pp)*w.TP + tp }
	add := func(name string, inNode bool, ranks []int) *group {
		g := &group{id: fmt.Sprintf("0x%x", 0x7f00+incarnation<<14+len(w.groups)), name: name, ranks: ranks, inNode: inNode, index: map[int]int{}}
		g.seq = make([]map[string]uint64, len(ranks))
		for i, r := range ranks {
			g.seq[i] = map[string]uint64{}
			g.index[r] = i
		}
		w.groups = append(w.groups, g)
		return g
	}
	data, tensor, stage := make([]*group, n), make([]*group, n), make([]*group, n)
	all := make([]int, n)
	for r := range n {
		all[r] = r
	}
	share := func(of []*group, name string, inNode bool, outer, inner, size int, rank func(o, i, k int) int) {
		for o := range outer {
			for i := range inner {
				ranks := make([]int, size)
				for k := range size {
					ranks[k] = rank(o, i, k)
				}
				g := add(fmt.Sprintf("%s %d", name, o*inner+i), inNode, ranks)
				for _, r := range ranks {
					of[r] = g
				}
			}
		}
	}
	share(data, "DP", false, w.PP, w.TP, w.DP, func(pp, tp, dp int) int { return at(dp, pp, tp) })
	if w.TP > 1 {
		share(tensor, "TP", true, w.DP, w.PP, w.TP, func(dp, pp, tp int) int { return at(dp, pp, tp) })
	}
	if w.PP > 1 {
		share(stage, "PP", false, w.DP, w.TP, w.PP, func(dp, tp, pp int) int { return at(dp, pp, tp) })
	}
	var world *group
	if w.TP*w.PP > 1 {
		world = add("world", false, all)
	}
	w.chooseVictims(data, incarnation)
	experts, algo := w.Seed%2 == 0 && w.DP <= 16, []string{"RING", "TREE"}[w.Seed/2%2]
	steps := w.Steps + cmp.Or(w.After, 20)
	if incarnation == 0 && w.Nuisances.Restart {
		steps = w.Steps / 2
	}
	for r, p := range w.procs {
		w.program(p, r, steps, data[r], tensor[r], stage[r], world, experts, algo)
	}
	if w.Fault == NeverCame {
		w.procs[w.from].stopped = true
	}
	w.recordComms(start)
}

// chooseVictims draws the ranks at fault. A connection at fault is one that the rings use.
func (w *world) chooseVictims(data []*group, incarnation int) {
	if incarnation > 0 || w.Fault == None {
		return
	}
	w.from = w.rng.IntN(len(w.procs))
	w.victim = data[w.from]
	i := slices.Index(w.victim.ranks, w.from)
	w.to = w.victim.ranks[(i+1)%len(w.victim.ranks)]
	if w.Seed%3 == 0 && w.Seed/2%2 == 1 { // the gradients go by trees
		w.to = w.victim.ranks[max(1-i, (i-1)/2)]
	}
	place := func(r int) *Place { return &Place{r, w.procs[r].host, w.procs[r].gpu} }
	t := &w.truth
	switch w.Fault {
	case SlowStage:
		w.from -= w.from / w.TP % w.PP * w.TP // the first stage
		w.to = w.from + w.TP
		t.Place, t.Peer = place(w.from), place(w.to)
	case SlowCell, LostConnection:
		t.Place, t.Peer = place(w.from), place(w.to)
	case SlowColumn:
		t.Peer = place(w.to)
	case SlowNodeOut:
		t.Host = w.procs[w.from].host
	case SlowNodeIn:
		t.Host = w.procs[w.to].host
	default:
		t.Place = place(w.from)
	}
	t.Factor = 1.6 + 2.4*w.rng.Float64()
}

// program writes down what a rank does in all steps.
func (w *world) program(p *process, r, steps int, data, tensor, stage, world *group, experts bool, algo string) {
	n, pp := len(w.procs), r/w.TP%w.PP
	compute := func(factor float64) int64 {
		return int64(computeNS * factor * (1 + 0.01*w.rng.NormFloat64()))
	}
	for s := range steps {
		extra := int64(0)
		if k := s / 15; w.Nuisances.Checkpoints && s%15 == 14 && (k%2 == 0 || r == 0) {
			extra += 1_000_000_000
		}
		if w.Nuisances.Imbalance && (s*7919+int(w.Seed))%n == r {
			extra += 30_000_000
		}
		do := func(before int64, g *group, op, algo string, bytes uint64, peer int) {
			unseen := w.Nuisances.Unseen && g.inNode
			p.program = append(p.program, action{before + extra, g, op, algo, bytes, peer, s, unseen})
			extra = 0
		}
		pass := func(factor float64, recvFrom, sendTo int) {
			if recvFrom >= 0 && recvFrom < w.PP {
				do(200_000, stage, "Recv", "", stageBytes, recvFrom)
			}
			before := compute(factor)
			if tensor != nil {
				do(before, tensor, "AllReduce", "RING", tensorBytes, 0)
				before = compute(factor / 4)
			}
			if sendTo >= 0 && sendTo < w.PP {
				do(before, stage, "Send", "", stageBytes, sendTo)
				before = 0
			}
			extra += before
		}
		if w.Fault == LateRoot {
			do(200_000, data, "Broadcast", "RING", stageBytes, w.victim.index[w.from])
		}
		for range microbatch {
			pass(1, pp-1, pp+1)
			if experts {
				do(compute(0.1), data, "AllToAll", "", expertBytes, 0)
			}
		}
		for range microbatch {
			pass(2, pp+1, pp-1)
		}
		if w.Seed%3 == 0 {
			do(compute(0.1), data, "AllReduce", algo, gradBytes, 0)
		} else {
			do(compute(0.1), data, "ReduceScatter", "RING", gradBytes, 0)
			do(compute(0.2), data, "AllGather", "RING", gradBytes, 0)
		}
		if world != nil {
			do(compute(0.05), world, "AllReduce", "TREE", normBytes, 0)
		}
	}
}

// recordComms writes the records of the communicators.
func (w *world) recordComms(at int64) {
	for _, g := range w.groups {
		c := &ccl.Comm{Job: "t7", Comm: g.id, Name: g.name, NRanks: len(g.ranks)}
		for i, r := range g.ranks {
			p := w.procs[r]
			c.Ranks = append(c.Ranks, ccl.Member{Rank: i, Host: p.host, NIC: fmt.Sprintf("%s/eth%d", p.host, p.gpu+1), GPU: &p.gpu})
		}
		w.records = append(w.records, timed{at - 1_000_000_000, c})
	}
}

// run lets all ranks go on until each is done or hangs.
func (w *world) run() {
	w.queue = nil
	for r := range w.procs {
		w.queue = append(w.queue, r)
	}
	for {
		for len(w.queue) > 0 {
			r := w.queue[0]
			w.queue = w.queue[1:]
			w.launch(r)
		}
		// What is left waits for a rank that never comes.
		keys := make([]string, 0, len(w.waiting))
		for k := range w.waiting {
			keys = append(keys, k)
		}
		if len(keys) == 0 {
			return
		}
		slices.Sort(keys)
		for _, k := range keys {
			p := w.waiting[k]
			delete(w.waiting, k)
			w.evaluate(p)
		}
	}
}

// launch lets a rank compute and launch its next operation.
func (w *world) launch(r int) {
	p := w.procs[r]
	if p.stopped || p.next == len(p.program) || p.ready >= never {
		return
	}
	a := &p.program[p.next]
	faulty := a.step >= w.Steps && w.Fault != None
	begin := p.ready
	if faulty && r == w.from {
		w.beginFault(begin, a)
		if w.Fault == StoppedRank {
			p.stopped = true
			w.hung = min(w.hung, begin)
			return
		}
		if (w.Fault == LateRank || w.Fault == LateRoot) && (p.next == 0 || p.program[p.next-1].step != a.step) {
			begin += w.lateNS
		}
	}
	p.next++
	g := a.group
	me := g.index[r]
	start := begin + a.compute
	if w.Fault == MismatchedCall && faulty && r == w.from && g == w.victim {
		b := *a
		if w.Seed%2 == 0 {
			b.bytes /= 4
		} else {
			b.op = "Broadcast"
		}
		a = &b
	}
	key := g.id
	size := len(g.ranks)
	if a.op == "Send" || a.op == "Recv" {
		lo, hi := min(me, a.peer), max(me, a.peer)
		way := (a.op == "Send") == (me < a.peer)
		key = fmt.Sprintf("%s/%d-%d/%v", g.id, lo, hi, way)
		size = 2
	}
	key = fmt.Sprintf("%s/%d", key, p.ordinal(key))
	o := w.waiting[key]
	if o == nil {
		o = &pending{group: g, act: make([]*action, len(g.ranks)), start: make([]int64, len(g.ranks)), missed: size}
		for i := range o.start {
			o.start[i] = never
		}
		w.waiting[key] = o
	}
	o.act[me], o.start[me] = a, start
	if o.missed--; o.missed == 0 {
		delete(w.waiting, key)
		w.evaluate(o)
	}
}

// ordinal counts the operations that a rank has begun, by what they have in common in all of their ranks.
func (p *process) ordinal(of string) int {
	if p.begun == nil {
		p.begun = map[string]int{}
	}
	p.begun[of]++
	return p.begun[of]
}

// beginFault notes when the fault began.
func (w *world) beginFault(at int64, a *action) {
	if w.faultAt < never {
		return
	}
	w.faultAt = at
	w.truth.BeganAt = time.Unix(0, at).UTC()
	w.truth.StepNS = (at - w.base) / int64(max(1, a.step))
	if w.Fault == LateRank || w.Fault == LateRoot {
		w.lateNS = int64(float64(w.truth.StepNS) * (0.2 + 0.4*w.rng.Float64()))
		w.truth.AddedNS = w.lateNS
	}
}

// sorted returns the records in the order of their times.
func (w *world) sorted() []ccl.Record {
	if w.Nuisances.Losses {
		kept := w.records[:0:0]
		for _, t := range w.records {
			if _, ok := t.rec.(*ccl.Comm); !ok {
				switch x := w.rng.Float64(); {
				case x < 0.02:
					continue
				case x < 0.04:
					t.at += w.rng.Int64N(300_000_000)
				case x < 0.05:
					kept = append(kept, t)
				}
			}
			kept = append(kept, t)
		}
		w.records = kept
	}
	slices.SortStableFunc(w.records, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
	out := make([]ccl.Record, len(w.records))
	for i, t := range w.records {
		out[i] = t.rec
	}
	return out
}
