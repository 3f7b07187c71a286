package workload

import "slices"

// cause is why the last ranks came late to an operation.
type cause struct {
	proc     *process // that came late by itself; nil: none found
	comm     *comm    // in which it was waited for
	rank     int      // its rank there
	transfer *series  // whose transfer was slow; nil: none found
}

// judge compares an operation with what is normal. It does nothing where too few ranks are known or they measured differently, and
// where a watchdog saw the operation from time to time: such durations are bounds.
func (c *comm) judge(x *operation) {
	if x.mixed || bounded(x.timing) || float64(x.done) < leastRanks*float64(c.n) || c.n < 2 {
		return
	}
	if rooted(x.key.op) {
		c.judgeRooted(x)
	}
	if !symmetric(x.key.op) {
		return
	}
	r := &result{s: x.s, seq: x.key.seq, end: x.last, transfer: -1}
	waits := make([]int64, 0, x.done)
	longest := int64(0)
	for i, st := range x.state {
		if st == finished {
			longest = max(longest, x.exec[i])
			if r.transfer < 0 || x.exec[i] < r.transfer {
				r.transfer = x.exec[i]
			}
		}
	}
	for i, st := range x.state {
		if st == finished {
			waits = append(waits, x.exec[i]-r.transfer)
		}
	}
	r.wait = middle(waits)
	for i, st := range x.state {
		if st == finished && 2*(x.exec[i]-r.transfer) < r.wait {
			r.late = append(r.late, i)
		}
	}
	if x.key.op == "AllToAll" {
		r.transfer = longest // a slow connection delays its two ranks alone
	}
	c.settle(x, r, floorOf(x.timing))
}

// settle compares a result with what is normal, and remembers it.
func (c *comm) settle(x *operation, r *result, floor int64) {
	x.s.judgeResult(x, r, floor)
	c.observe(c, r)
	c.results[x.key], c.recent = r, append(c.recent, x.key)
	if len(c.recent) > keptOps {
		delete(c.results, c.recent[0])
		c.recent = c.recent[1:]
	}
}

// judgeResult says whether transfer and waiting count, and follows a late rank to what made it late.
func (s *series) judgeResult(x *operation, r *result, floor int64) {
	first := slices.Index(x.state, finished)
	period := int64(0)
	if before, ok := s.lastStart[first]; ok && x.key.seq > s.lastSeq {
		period = (x.start[first] - before) / int64(x.key.seq-s.lastSeq) // numbers between them may have been handed out by no node
	}
	s.lastStart, s.lastSeq = map[int]int64{}, x.key.seq
	for i, st := range x.state {
		if st == finished {
			s.lastStart[i] = x.start[i]
			if i > first+4 {
				break // some are enough if the first rank's record is lost
			}
		}
	}
	normalPeriod, _, known := s.period.normal(normalOps / 2)
	tn, tm, ok := s.transfer.normal(normalOps)
	if ok {
		s.judged, r.normal = true, tn
		least := max(spread*tm, tn/10, floor)
		if x.key.op != "AllToAll" {
			least = max(least, r.wait/lateShare) // who comes last changes the transfer a little
		}
		if over := r.transfer - tn; over > least {
			r.transferOver = over
		}
	}
	wn, wm, ok := s.wait.normal(normalOps)
	if ok && known {
		if over := r.wait - wn; over > max(spread*wm, normalPeriod/10, floor) {
			r.waitOver = over
			r.cause = s.causeOf(r, normalPeriod)
		}
	}
	if !s.keep(r) {
		return
	}
	s.transfer.push(r.transfer)
	s.wait.push(r.wait)
	if period > 0 {
		s.period.push(period)
	}
}

// keep remembers a result that counts, and says whether its values are a part of what is normal.
func (s *series) keep(r *result) bool {
	if s.seqs = append(s.seqs, r.seq); len(s.seqs) > judgedOps {
		s.seqs = s.seqs[1:]
	}
	for len(s.results) > 0 && !slices.Contains(s.seqs, s.results[0].seq) {
		s.results = s.results[1:]
	}
	counts := r.transferOver > 0 || r.waitOver > 0
	if counts {
		s.results = append(s.results, r)
		s.held++
	}
	if s.comm.job.frozen || counts && s.held < maxHeld {
		return false
	}
	if !counts {
		s.held = 0
	}
	return true
}

// counting returns the results that count among the latest of one place in the step of a job, where there are least or more. A
// step has several operations of a kind, and a fault may be at one of them only: places are numbers modulo what a step has. What
// happens in every other step is the rhythm of the job, such as ranks that are late in turn: both halves have to count.
func (s *series) counting(least int, holds func(*result) bool) []*result {
	by := map[uint64]*result{}
	for _, r := range s.results {
		if holds(r) {
			by[r.seq] = r
		}
	}
	if len(by) < least {
		return nil
	}
	for m := uint64(1); m <= maxPlaces; m++ {
		for place := range m {
			var out []*result
			var seen, counted [2]int // of even and odd steps
			for i := len(s.seqs) - 1; i >= 0 && seen[0]+seen[1] < recent; i-- {
				if s.seqs[i]%m == place {
					half := s.seqs[i] / m & 1
					seen[half]++
					if r := by[s.seqs[i]]; r != nil {
						out = append(out, r)
						counted[half]++
					}
				}
			}
			if len(out) >= least && counted[0] >= min(least/2, seen[0]) && counted[1] >= min(least/2, seen[1]) {
				slices.Reverse(out)
				return out
			}
		}
	}
	return nil
}

// deepest bounds how many operations a search for a cause goes back.
const deepest = 8

// visit is an operation of a rank that a search for a cause came to.
type visit struct {
	s    *series
	seq  uint64
	rank int
}

// search is a search for what made ranks late. Many of them may have waited for the same ranks in the same operations before, so that
// the ways back are many more than the operations: each is followed once, or again if a shorter way leads to it.
type search struct {
	period, over int64 // what a step normally takes, and how late the ranks are, in ns
	tried        map[visit]int
}

// newSearch returns a search that has not come to any operation.
func newSearch(period, over int64) *search {
	return &search{period: period, over: over, tried: map[visit]int{}}
}

// causeOf finds what made the last ranks late to an operation.
func (s *series) causeOf(r *result, period int64) cause {
	w := newSearch(period, r.waitOver)
	for _, l := range r.late {
		if k := w.follow(s.comm, l, r.seq, s, 0); k.found() {
			return k
		}
	}
	return cause{}
}

// found says whether there is a cause.
func (k *cause) found() bool { return k.proc != nil || k.transfer != nil }

// follow finds what made a rank late to an operation: its own work, or another operation in which it waited. The times it
// compares are those of one process each.
func (w *search) follow(c *comm, rank int, seq uint64, s *series, depth int) cause {
	p := c.members[rank]
	if p == nil || depth > deepest {
		return cause{}
	}
	at := visit{s, seq, rank}
	if before, again := w.tried[at]; again && before <= depth {
		return cause{} // it had none
	}
	w.tried[at] = depth
	for i := range p.spans {
		if sp := &p.spans[i]; sp.s == s && sp.seq == seq {
			return w.explain(c, rank, p, sp.start, depth)
		}
	}
	return cause{}
}

// explain finds what made a process late at a time, in the step before it, which is longer than normal by what it is late.
func (w *search) explain(c *comm, rank int, p *process, at int64, depth int) cause {
	var gap, exec *span
	for i := range p.spans {
		sp := &p.spans[i]
		if sp.start > at || sp.start <= at-w.period-w.over {
			continue
		}
		if sp.gapOK && (gap == nil || sp.gapOver > gap.gapOver) {
			gap = sp
		}
		if sp.start < at && sp.exeOK && (exec == nil || sp.execOver > exec.execOver) {
			exec = sp
		}
	}
	if gap != nil && 2*gap.gapOver >= w.over && (exec == nil || gap.gapOver >= exec.execOver/2) {
		return cause{proc: p, comm: c, rank: rank}
	}
	if exec == nil || 2*exec.execOver < w.over || depth > deepest {
		return cause{}
	}
	y := exec.s
	if exec.peer >= 0 {
		return w.explainPair(y.comm, exec, depth)
	}
	r := y.comm.results[opKey{y.shape.op, exec.seq}]
	if r == nil {
		return cause{}
	}
	if 2*r.transferOver >= w.over && y.shape.op != "AllToAll" {
		return cause{transfer: y}
	}
	for _, l := range r.late {
		if l != exec.rank {
			if k := w.follow(y.comm, l, exec.seq, y, depth+1); k.found() {
				return k
			}
		}
	}
	return cause{}
}

// explainPair follows a wait for a peer: it came late, or the transfer was slow for both.
func (w *search) explainPair(c *comm, e *span, depth int) cause {
	other := c.members[e.peer]
	if other == nil {
		return cause{}
	}
	op := map[string]string{"Send": "Recv", "Recv": "Send"}[e.s.shape.op]
	for i := len(other.spans) - 1; i >= 0; i-- {
		sp := &other.spans[i]
		if sp.s.comm != c || sp.s.shape.op != op || sp.peer != e.rank {
			continue
		}
		if sp.exeOK && 2*sp.execOver >= w.over {
			return cause{transfer: e.s}
		}
		return w.explain(c, e.peer, other, sp.start, depth+1)
	}
	return cause{}
}
