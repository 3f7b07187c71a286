package collective

import (
	"slices"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// evaluate runs an operation, lets its ranks go on, and writes its records.
func (w *world) evaluate(o *pending) {
	u := &running{w: w, o: o, at: map[[3]int]*transfer{}, speed: map[int]int64{}, burst: -1}
	if w.Nuisances.Bursts && w.rng.IntN(40) == 0 {
		u.burst = w.rng.IntN(len(o.start))
	}
	first, same := -1, true
	for i, a := range o.act {
		if a == nil {
			continue
		}
		if first < 0 {
			first = i
		}
		b := o.act[first]
		pair := a.op == "Send" || a.op == "Recv"
		same = same && (pair || a.op == b.op && a.bytes == b.bytes)
	}
	end := make([]int64, len(o.start))
	if same {
		end = u.step(o.act[first], first)
	} else {
		for i := range end {
			end[i] = never
			if o.act[i] != nil {
				w.hung = min(w.hung, o.start[i])
			}
		}
	}
	seqs := make([]uint64, len(o.start))
	for i, a := range o.act {
		if a == nil {
			continue
		}
		p := w.procs[o.group.ranks[i]]
		seqs[i] = w.number(o.group, i, a)
		w.recordOp(u, i, a, seqs[i], end[i])
		if !a.unrecorded && !(w.Nuisances.Graphs) {
			p.events = append(p.events, event{o.group, a.op, o.start[i], end[i]})
		}
		p.ready = end[i]
		if end[i] < never {
			w.queue = append(w.queue, o.group.ranks[i])
		}
	}
	if w.NoEdges || !same {
		return
	}
	for _, t := range u.edges {
		if o.group.inNode || o.act[t.from] == nil && o.act[t.to] == nil || w.sameHost(o.group, t) {
			continue
		}
		w.recordEdges(o, t, seqs)
	}
}

// sameHost says whether a transfer stays within a node, where no proxy has a part in it.
func (w *world) sameHost(g *group, t *transfer) bool {
	return w.procs[g.ranks[t.from]].host == w.procs[g.ranks[t.to]].host
}

// number counts the operations of a kind in a communicator. In graphs the number is that of the capture.
func (w *world) number(g *group, rank int, a *action) uint64 {
	n := g.seq[rank][a.op]
	if !w.Nuisances.Graphs || a.step < 2 {
		g.seq[rank][a.op]++
	}
	return n
}

func (w *world) from1(g *group, rank int) ccl.From {
	return ccl.From{Job: "t7", Comm: g.id, Rank: rank, NRanks: len(g.ranks), Host: w.procs[g.ranks[rank]].host}
}

// clockError is the bound that hosts give where their clocks are right.
const clockError = 2_000

// recordOp writes an operation of a rank: when it ends, or as open.
func (w *world) recordOp(u *running, rank int, a *action, seq uint64, end int64) {
	if a.unrecorded {
		return
	}
	p := w.procs[u.o.group.ranks[rank]]
	start := u.o.start[rank]
	op := &ccl.Op{From: w.from1(u.o.group, rank), Seq: seq, Op: a.op, Algo: a.algo, Proto: "SIMPLE", Bytes: &a.bytes, StartNS: ccl.KnownNanos(start + p.shift), Timing: "kernel_gpu"}
	if a.op == "Send" || a.op == "Recv" {
		op.Peer = &a.peer
	}
	if a.op == "Broadcast" && w.Fault == LateRoot {
		op.Root = &a.peer
	}
	if !w.Nuisances.ClockShift {
		op.ClockError = ccl.KnownNanos(clockError)
	}
	at := end
	if end < never {
		op.State, op.EndNS, op.ExecNS = ccl.Completed, ccl.KnownNanos(end+p.shift), ccl.KnownNanos(end-start)
	} else {
		op.State, at = ccl.Started, start
	}
	w.records = append(w.records, timed{at + p.shift, op})
}

// recordEdges writes both sides of a transfer.
func (w *world) recordEdges(o *pending, t *transfer, seqs []uint64) {
	lost := t.consumed[len(t.consumed)-1] >= never
	for _, d := range []ccl.Direction{ccl.Send, ccl.Recv} {
		me, peer, h := t.from, t.to, t.sendHold
		if d == ccl.Recv {
			me, peer, h = t.to, t.from, t.recvHold
		}
		if o.act[me] == nil {
			continue
		}
		shift := w.procs[o.group.ranks[me]].shift
		bytes, ch := t.bytes, t.channel
		e := &ccl.Edge{From: w.from1(o.group, me), Seq: seqs[me], Op: o.act[me].op, Peer: peer, Direction: d, Channel: &ch, Bytes: &bytes, StartNS: ccl.KnownNanos(o.start[me] + shift)}
		if d == ccl.Send {
			e.GPUWait, e.PeerWait, e.Wire, e.Flush = ccl.KnownNanos(t.sendGPU), ccl.KnownNanos(t.peer), ccl.KnownNanos(t.wire), ccl.KnownNanos(0)
		} else {
			e.GPUWait, e.PeerWait, e.Wire, e.Flush = ccl.KnownNanos(t.gpu), ccl.KnownNanos(0), ccl.KnownNanos(t.recvWire), ccl.KnownNanos(t.flush)
		}
		at := t.end
		switch {
		case !lost:
			e.State, e.EndNS = string(ccl.Completed), ccl.KnownNanos(max(t.end, o.start[me])+shift)
		case h.by == "":
			continue // this side has done its part
		default:
			e.State, e.Held, e.Since = ccl.Open, ccl.Hold(h.by), ccl.KnownNanos(h.since+shift)
			at = max(h.since, o.start[me]) + 1_000_000_000 // open transfers are seen by a sampler
		}
		w.records = append(w.records, timed{at + shift, e})
	}
}

// Beats are every two seconds, and those of a job that hangs go on for watched.
const (
	beatEvery = 2_000_000_000
	watched   = 20_000_000_000
)

// finish writes the beats, and returns when the job is over. A job that starts again leaves its last operations open.
func (w *world) finish(again bool) int64 {
	last := int64(0)
	for _, p := range w.procs {
		for _, e := range p.events {
			if e.end < never {
				last = max(last, e.end)
			}
		}
		if p.ready < never {
			last = max(last, p.ready)
		}
	}
	if w.Fault == NeverCame {
		w.hung = w.base
		w.truth.BeganAt = time.Unix(0, w.base).UTC()
	}
	hanging := w.hung < never
	if hanging {
		last = max(last, w.hung) + watched
		w.truth.BeganAt = time.Unix(0, w.hung).UTC()
	}
	if again {
		w.leaveOpen(last)
	}
	for r, p := range w.procs {
		w.recordBeats(r, p, last)
	}
	return last + 8_000_000_000
}

// leaveOpen makes operations that were launched when the job was killed.
func (w *world) leaveOpen(at int64) {
	for i := range min(4, len(w.procs)) {
		p := w.procs[i]
		g := p.program[len(p.program)-1].group
		a := action{group: g, op: "AllReduce", algo: "TREE", bytes: normBytes}
		rank := g.index[i]
		o := &pending{group: g, start: make([]int64, len(g.ranks))}
		o.start[rank] = at
		w.recordOp(&running{w: w, o: o}, rank, &a, w.number(g, rank, &a), never)
	}
}

// recordBeats writes what was launched and completed at each beat of a rank.
func (w *world) recordBeats(r int, p *process, last int64) {
	if p.stopped && w.Fault == NeverCame {
		return
	}
	groups := []*group{}
	for i := range p.program {
		if a := &p.program[i]; !a.unrecorded && !slices.Contains(groups, a.group) {
			groups = append(groups, a.group)
		}
		if i > 60 {
			break
		}
	}
	for _, g := range groups {
		launched, completed := map[string]uint64{}, map[string]uint64{}
		events := make([]event, 0, len(p.events))
		for _, e := range p.events {
			if e.group == g {
				events = append(events, e)
			}
		}
		i, j := 0, 0
		for at := w.base + int64(r%7)*100_000_000; at <= last; at += beatEvery {
			if len(p.events) > 0 && at < p.events[0].start-beatEvery {
				continue
			}
			if p.stopped && w.hung < at {
				break // the process no longer answers
			}
			for ; i < len(events) && events[i].start <= at; i++ {
				launched[events[i].op]++
			}
			for ; j < len(events) && events[j].end <= at; j++ {
				completed[events[j].op]++
			}
			alive := true
			b := &ccl.Beat{From: w.from1(g, g.index[r]), AtNS: ccl.KnownNanos(at + p.shift), Alive: &alive, Launched: clone(launched), Completed: clone(completed)}
			w.records = append(w.records, timed{at + p.shift, b})
		}
	}
}

func clone(m map[string]uint64) map[string]uint64 {
	out := make(map[string]uint64, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
