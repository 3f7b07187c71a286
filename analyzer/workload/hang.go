package workload

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// hung is an operation that is open for too long.
type hung struct {
	comm     *comm
	op       string
	seq      uint64
	began    int64
	age      int64
	phase    string
	launched []int // ranks in it
	absent   []int // ranks that did not come
	odd      []int // ranks that launched another operation instead
	byCounts bool  // no record of an operation says so
	vague    bool  // the absent ranks may wait in another communicator
}

// limit returns how long an operation may be open.
func (c *comm) limit() int64 {
	return min(int64(hangAtMost), max(int64(hangAfter), stallFactor*max(c.stalls[0], c.stalls[1])))
}

// ageOf returns how long an operation of a rank is known to be open, by the clock of its host alone.
func (t *Tracker) ageOf(c *comm, rank int, op string, seq uint64, start int64) int64 {
	age := int64(0)
	if b := c.beats[rank]; b != nil && b.completed[op] <= seq {
		age = b.at - start
	}
	if !t.opt.Until.IsZero() {
		age = max(age, t.opt.Until.UnixNano()-start)
	}
	if p := c.members[rank]; p != nil && age > 0 {
		for i := range p.spans {
			if p.spans[i].start > start+age/2 {
				return 0 // the process has gone on
			}
		}
	}
	return age
}

// came says whether a rank launched or finished an operation by what it counted, or by a later operation of the kind that it came to.
// Records of single operations may not have been handed out.
func (c *comm) came(rank int, op string, seq uint64) bool {
	if b := c.beats[rank]; b != nil && (b.launched[op] > seq || b.completed[op] > seq) {
		return true
	}
	for key, x := range c.pending {
		if key.op == op && key.seq > seq && x.state[rank] != unseen {
			return true
		}
	}
	return false
}

// hungOps returns all operations of a job that are open longer than least allows, by the limit of their communicator.
func (t *Tracker) hungOps(j *job, least func(*comm) int64) (out []hung) {
	for _, c := range j.order {
		for _, key := range c.order {
			x := c.pending[key]
			h := hung{comm: c, op: key.op, seq: key.seq, phase: "run"}
			for r, st := range x.state {
				switch {
				case st == launched && (c.beats[r] == nil || c.beats[r].completed[key.op] <= key.seq):
					h.launched = append(h.launched, r)
					if h.began == 0 || x.start[r] < h.began {
						h.began = x.start[r]
					}
					h.age = max(h.age, t.ageOf(c, r, key.op, key.seq, x.start[r]))
				case st == unseen && !c.came(r, key.op, key.seq):
					h.absent = append(h.absent, r)
				}
			}
			if len(h.launched) == 0 || h.age <= least(c) {
				continue
			}
			if !c.finished && slices.ContainsFunc(h.absent, func(r int) bool { return !c.seen[r] }) {
				h.phase = "init"
				h.absent = slices.DeleteFunc(h.absent, func(r int) bool { return c.seen[r] })
			}
			for r := range x.bytesR {
				if x.state[r] == launched {
					h.odd = append(h.odd, r)
				}
			}
			if 2*len(h.odd) > len(h.launched) { // the first to come was the odd one
				h.odd = slices.DeleteFunc(slices.Clone(h.launched), func(r int) bool { return slices.Contains(h.odd, r) })
			}
			out = append(out, h)
		}
		out = append(out, t.hungPairs(c, least(c))...)
	}
	out = append(out, j.hungCounts(least)...)
	for i := range out {
		out[i].findOdd()
	}
	return out
}

// findOdd finds ranks that are in another operation of the same communicator instead of this one: no rank has finished it, and none
// of those in this operation has come to it. Where one has, the others are only behind.
func (h *hung) findOdd() {
	c := h.comm
	if pairwise(h.op) {
		return
	}
	for _, key := range c.order {
		if key == (opKey{h.op, h.seq}) {
			continue
		}
		in := c.ranksIn(key)
		if len(in) == 0 || 2*len(in) > len(h.launched)+len(in) || slices.ContainsFunc(h.launched, func(r int) bool { return slices.Contains(in, r) || c.came(r, key.op, key.seq) }) {
			continue
		}
		for _, r := range in {
			if slices.Contains(h.absent, r) {
				h.odd = append(h.odd, r)
			}
		}
	}
	slices.Sort(h.odd)
}

// ranksIn returns the ranks that are in an operation which no rank has finished, as records or counts say.
func (c *comm) ranksIn(key opKey) (in []int) {
	for r, st := range c.pending[key].state {
		if st == finished || c.beats[r] != nil && c.beats[r].completed[key.op] > key.seq {
			return nil
		}
		if st == launched {
			in = append(in, r)
		}
	}
	return in
}

// hungPairs returns operations between two ranks that are open for too long.
func (t *Tracker) hungPairs(c *comm, limit int64) (out []hung) {
	for k, o := range c.p2p {
		age := t.ageOf(c, k.rank, k.op, k.seq, o.start)
		if age <= limit || t.moreDone(c, k) {
			continue
		}
		h := hung{comm: c, op: k.op, seq: k.seq, began: o.start, age: age, phase: "run", launched: []int{k.rank}}
		with := false
		for q, p := range c.p2p {
			with = with || q.rank == o.peer && p.peer == k.rank && q.op != k.op
		}
		if with {
			h.launched = append(h.launched, o.peer)
		} else {
			h.absent = []int{o.peer}
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b hung) int {
		return cmp.Or(cmp.Compare(a.began, b.began), cmp.Compare(a.op, b.op), cmp.Compare(a.launched[0], b.launched[0]))
	})
	return out
}

// moreDone says whether a rank has counted an operation between two ranks as completed.
func (t *Tracker) moreDone(c *comm, k p2pKey) bool {
	b := c.beats[k.rank]
	return b != nil && b.completed[k.op] > k.seq
}

// inOpen returns the processes that are in an open operation.
func (j *job) inOpen() map[*process]bool {
	in := map[*process]bool{}
	for _, c := range j.order {
		for _, key := range c.order {
			for r, st := range c.pending[key].state {
				if st == launched && c.members[r] != nil {
					in[c.members[r]] = true
				}
			}
		}
		for k := range c.p2p {
			if c.members[k.rank] != nil {
				in[c.members[k.rank]] = true
			}
		}
		for r, b := range c.beats { // what was launched by the counts, where the record of it was lost
			if c.members[r] == nil || b.at < c.members[r].lastEnd() {
				continue
			}
			for op, n := range b.launched {
				if n > b.completed[op] && len(b.completed) > 0 {
					in[c.members[r]] = true
				}
			}
		}
	}
	return in
}

// lastEnd returns when the last operation of a process ended.
func (p *process) lastEnd() (end int64) {
	for i := range p.spans {
		end = max(end, p.spans[i].end)
	}
	return end
}

// site is where the graph of waits ends.
type site struct {
	from, to int // ranks; to is -1 for a rank's own GPU
	found    bool
}

// sink follows the open transfers of an operation to what they wait for.
func (h *hung) sink() site {
	var edges []*ccl.Edge
	holds := map[[2]int]map[ccl.Direction]ccl.Hold{} // by the connection
	waits := map[[2]int]bool{}                       // a rank on a channel is held by wire or peer
	ch := func(e *ccl.Edge) int {
		if e.Channel != nil {
			return *e.Channel
		}
		return -1
	}
	for _, e := range h.comm.edges {
		if e.Seq != h.seq && !pairwise(h.op) || e.Op != "" && e.Op != h.op && !pairwise(h.op) || pairwise(h.op) && !slices.Contains(h.launched, e.Rank) {
			continue
		}
		edges = append(edges, e)
		way := [2]int{e.Rank, e.Peer}
		if e.Direction == ccl.Recv {
			way = [2]int{e.Peer, e.Rank}
		}
		if holds[way] == nil {
			holds[way] = map[ccl.Direction]ccl.Hold{}
		}
		holds[way][e.Direction] = e.Held
		if e.Held == ccl.HeldByWire || e.Held == ccl.HeldByPeer {
			waits[[2]int{e.Rank, ch(e)}] = true
		}
	}
	slices.SortFunc(edges, func(a, b *ccl.Edge) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Direction, b.Direction))
	})
	votes := map[site]int{}
	for way, by := range holds {
		s, r := by[ccl.Send], by[ccl.Recv]
		switch {
		case s == ccl.HeldByWire && (r == ccl.HeldByWire || r == ""):
			votes[site{way[0], way[1], true}] += 100
		case s == ccl.HeldByPeer && r == ccl.HeldByWire:
			votes[site{way[1], way[0], true}] += 100
		}
	}
	for _, e := range edges {
		own := site{e.Rank, -1, true}
		switch {
		case e.Held == ccl.HeldByFlush:
			votes[own] += 3
		case e.Held == ccl.HeldByGPU && !waits[[2]int{e.Rank, ch(e)}]:
			votes[own] += 2
		}
	}
	if len(votes) == 0 {
		// In a tree all wait for each other. Only a GPU that does not take what has arrived is first.
		for _, e := range edges {
			if e.Held == ccl.HeldByGPU && e.Direction == ccl.Recv {
				votes[site{e.Rank, -1, true}]++
			}
		}
	}
	best, most := site{}, 0
	for s, n := range votes {
		if n > most || n == most && (s.from < best.from || s.from == best.from && s.to < best.to) {
			best, most = s, n
		}
	}
	return best
}

// diagnoseHang finds the root of the operations of a job that hang. Others are its consequences.
func (t *Tracker) diagnoseHang(j *job, fabric Fabric) []*finding {
	ops := t.hungOps(j, (*comm).limit)
	if len(ops) == 0 && fabric != nil {
		for _, h := range t.hungOps(j, func(c *comm) int64 { return min(c.limit(), int64(hangFailure)) }) {
			if s := h.sink(); len(h.absent) == 0 && s.found && s.to >= 0 && t.hardFailure(fabric, h.comm, s, h.began) {
				ops = append(ops, h)
			}
		}
	}
	if len(ops) == 0 {
		return nil
	}
	in := j.inOpen()
	for i := range ops {
		if h := &ops[i]; h.byCounts {
			for _, r := range h.launched {
				if p := h.comm.members[r]; p != nil {
					in[p] = true
				}
			}
		}
	}
	var roots, vague []*finding
	found := map[string]*finding{}
	add := func(to *[]*finding, f *finding) {
		if old := found[f.key]; old != nil {
			for _, r := range f.ranks {
				if old.comm == f.comm && !slices.Contains(old.ranks, r) {
					old.ranks = append(old.ranks, r)
				}
			}
			return
		}
		found[f.key] = f
		*to = append(*to, f)
	}
	slices.SortStableFunc(ops, func(a, b hung) int { return cmp.Compare(b2i(pairwise(a.op)), b2i(pairwise(b.op))) })
	for i := range ops {
		h := &ops[i]
		f := &finding{comm: h.comm, op: h.op, first: h.seq, last: h.seq, began: h.began, phase: h.phase, confidence: 0.99, syndrome: NonCommHang}
		if len(h.odd) > 0 {
			f.pattern, f.ranks, f.key = Mismatch, h.odd, "mismatch/"+h.comm.id
			add(&roots, f)
			continue
		}
		if len(h.absent) > 0 {
			f.ranks = slices.DeleteFunc(slices.Clone(h.absent), func(r int) bool { return h.comm.members[r] != nil && in[h.comm.members[r]] })
			if len(f.ranks) == 0 {
				continue // they wait elsewhere
			}
			f.pattern, f.key = Absent, "absent"
			if h.vague {
				f.confidence = 0.9
			}
			for _, r := range f.ranks[:1] {
				if p := h.comm.members[r]; p != nil {
					f.key += "/" + p.place.Host
				}
			}
			add(&roots, f)
			continue
		}
		switch s := h.sink(); {
		case s.found && s.to >= 0:
			f.syndrome, f.pattern, f.ranks, f.connection = CommHang, Cell, []int{s.from, s.to}, &Connection{s.from, s.to}
			f.key = "cell/" + h.comm.id + "/" + strconv.Itoa(s.from) + ">" + strconv.Itoa(s.to)
			add(&roots, f)
		case s.found:
			f.pattern, f.ranks = Chain, []int{s.from}
			f.key = "gpu/" + h.comm.id + "/" + strconv.Itoa(s.from)
			add(&roots, f)
		default:
			f.syndrome, f.pattern, f.confidence, f.ranks, f.key = CommHang, Unlocated, 0.9, h.launched, "unlocated"
			add(&vague, f)
		}
	}
	if len(roots) == 0 {
		roots = vague
	}
	for _, f := range roots {
		for i := range ops {
			if ops[i].comm != f.comm {
				f.touch(ops[i].comm, f.syndrome)
			}
		}
	}
	return roots
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// hardFailure says whether the fabric knows of a failure on the ways of a connection.
func (t *Tracker) hardFailure(f Fabric, c *comm, s site, began int64) bool {
	a, b := c.members[s.from], c.members[s.to]
	if a == nil || b == nil {
		return false
	}
	e := f.Connection(a.place, b.place, time.Unix(0, began).Add(-fabricWithin), time.Unix(0, t.now))
	return slices.ContainsFunc(e.Verdicts, func(v Verdict) bool { return v.HardFailure })
}
