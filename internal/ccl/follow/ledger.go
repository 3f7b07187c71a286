package follow

import (
	"maps"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// ledger counts operations by job, communicator and kind, and times open ones. Users choose the names, so the numbers of all
// of them are bounded.
type ledger struct {
	comms   map[string]*comm
	pairs   map[pairKey]*pair
	other   *pair // stands for all pairs beyond maxPairs
	beyond  *comm // stands for all communicators beyond ccl.MaxComms
	open    int   // operations in all communicators
	members int   // ranks of all communicators that are known to run here
	trimmed time.Time
	foreign uint64 // records of communicators that belong to another user
}

// comm is a communicator.
type comm struct {
	job, name string
	owner     *uint32      // user whose files have it; nil if none has
	used      time.Time    // when a record of it came last
	ranks     map[int]bool // that run on this node, by files
	open      map[openKey]openOp
	pair      *pair // nil before an operation is counted
}

// pairKey names a job and a communicator.
type pairKey struct{ job, comm string }

// pair is a job and a communicator that have series.
type pair struct {
	pairKey
	completed map[string]uint64 // operations by kind
	used      time.Time
	dropped   bool // it has no series any more
}

// openKey names an open operation of a communicator.
type openKey struct {
	rank int
	op   string
	seq  uint64
}

// openOp is since when an operation is open, and when a record said so last.
type openOp struct{ since, seen time.Time }

// otherName stands for names beyond the bounds.
const otherName = "other"

func newLedger() ledger {
	return ledger{comms: map[string]*comm{}, pairs: map[pairKey]*pair{}, other: newPair(pairKey{otherName, otherName}), beyond: &comm{job: otherName, name: otherName}}
}

func newPair(key pairKey) *pair { return &pair{pairKey: key, completed: map[string]uint64{}} }

// claim returns the communicator of a record. It returns nil and counts the record if the communicator belongs to another
// user.
func (l *ledger) claim(now time.Time, owner *uint32, rec ccl.Record) *comm {
	job, name, title := "", "", ""
	var members []ccl.Member
	switch r := rec.(type) {
	case *ccl.Comm:
		job, name, title, members = r.Job, r.Comm, r.Name, r.Ranks
	case *ccl.Op:
		job, name = r.Job, r.Comm
	case *ccl.Edge:
		job, name = r.Job, r.Comm
	case *ccl.Beat:
		job, name = r.Job, r.Comm
	}
	c := l.comms[name]
	if c == nil {
		if c = l.newComm(now, job, name); c == l.beyond {
			return c
		}
	}
	if owner != nil && !strings.HasPrefix(name, ccl.FlightPrefix) {
		if c.owner != nil && *c.owner != *owner && now.Sub(c.used) < claimKeep {
			l.foreign++
			return nil
		}
		c.owner = owner
	}
	c.used = now
	if title != "" && title != c.name {
		c.name, c.pair = title, nil
	}
	if owner != nil {
		for _, m := range members {
			if !c.ranks[m.Rank] && l.members < ccl.MaxRanks {
				l.members++
				c.ranks[m.Rank] = true
			}
		}
	}
	return c
}

// newComm returns a communicator that was not known. If there are too many, those that were not used lately are forgotten.
func (l *ledger) newComm(now time.Time, job, name string) *comm {
	c := &comm{job: job, name: name, used: now, ranks: map[int]bool{}, open: map[openKey]openOp{}}
	if len(l.comms) >= ccl.MaxComms && now.Sub(l.trimmed) >= time.Second {
		l.trimmed = now
		maps.DeleteFunc(l.comms, func(_ string, c *comm) bool {
			if now.Sub(c.used) < openKeep {
				return false
			}
			l.open, l.members = l.open-len(c.open), l.members-len(c.ranks)
			return true
		})
	}
	if len(l.comms) >= ccl.MaxComms {
		return l.beyond
	}
	l.comms[name] = c
	return c
}

// isElsewhere reports whether a rank runs on another node. It is false if that is unknown.
func (l *ledger) isElsewhere(comm string, rank int) bool {
	c := l.comms[comm]
	return c != nil && len(c.ranks) > 0 && !c.ranks[rank]
}

// count counts a record that the sampler has taken.
func (l *ledger) count(now time.Time, c *comm, rec ccl.Record) {
	switch r := rec.(type) {
	case *ccl.Op:
		if r.State != ccl.Completed {
			l.setOpen(c, openKey{r.Rank, r.Op, r.Seq}, sinceOf(r.StartNS, now), now)
			return
		}
		if len(c.open) > 0 {
			l.endOpen(c, r.Rank, r.Op, r.Seq, r.Seq)
		}
		l.complete(now, c, r.Op)
	case *ccl.Beat:
		l.countBeat(now, c, r)
	}
}

// sinceOf returns when an operation began, which is not after now. If that is unknown, it is now.
func sinceOf(start ccl.Nanos, now time.Time) time.Time {
	if t := time.Unix(0, start.NS); start.Known && t.Before(now) {
		return t
	}
	return now
}

// countBeat takes what a beat says of operations: those below the number of completed ones have ended, and if the rank has
// launched more than it has completed, the next one is open.
func (l *ledger) countBeat(now time.Time, c *comm, b *ccl.Beat) {
	for op, n := range b.Completed {
		if n > 0 && len(c.open) > 0 {
			l.endOpen(c, b.Rank, op, 0, n-1)
		}
	}
	if b.Completed == nil {
		return
	}
	for op, n := range b.Launched {
		if done := b.Completed[op]; n > done {
			l.setOpen(c, openKey{b.Rank, op, done}, sinceOf(b.AtNS, now), now)
		}
	}
}

// setOpen notes an open operation.
func (l *ledger) setOpen(c *comm, key openKey, since, now time.Time) {
	was, known := c.open[key]
	switch {
	case known && was.since.Before(since):
		since = was.since
	case !known && (l.open >= maxOpen || c == l.beyond):
		return
	case !known:
		l.open++
	}
	c.open[key] = openOp{since, now}
}

// endOpen ends the open operations of a rank and a kind whose numbers are from first to last.
func (l *ledger) endOpen(c *comm, rank int, op string, first, last uint64) {
	before := len(c.open)
	if first == last {
		delete(c.open, openKey{rank, op, first})
		l.open -= before - len(c.open)
		return
	}
	maps.DeleteFunc(c.open, func(k openKey, _ openOp) bool {
		return k.rank == rank && k.op == op && k.seq >= first && k.seq <= last
	})
	l.open -= before - len(c.open)
}

// complete counts a completed operation.
func (l *ledger) complete(now time.Time, c *comm, op string) {
	p := l.pairOf(now, c)
	if _, known := p.completed[op]; !known && len(p.completed) >= maxKinds-1 {
		op = otherName
	}
	p.completed[op]++
	p.used = now
}

// pairOf returns the pair of a communicator.
func (l *ledger) pairOf(now time.Time, c *comm) *pair {
	if c == l.beyond {
		return l.other
	}
	if c.pair == nil || c.pair.dropped || c.pair == l.other {
		c.pair = l.findPair(now, pairKey{c.job, c.name})
	}
	return c.pair
}

// findPair returns a pair. If there are too many, it returns the one that stands for all others.
func (l *ledger) findPair(now time.Time, key pairKey) *pair {
	if p := l.pairs[key]; p != nil {
		return p
	}
	if len(l.pairs) >= maxPairs-1 || key == l.other.pairKey {
		return l.other
	}
	p := newPair(key)
	p.used = now
	l.pairs[key] = p
	return p
}

// expire forgets open operations that no record has confirmed lately, and pairs that were not used for long.
func (l *ledger) expire(now time.Time) {
	l.open = 0
	for _, c := range l.comms {
		if len(c.open) > 0 {
			maps.DeleteFunc(c.open, func(_ openKey, o openOp) bool { return now.Sub(o.seen) > openKeep })
			l.open += len(c.open)
		}
	}
	maps.DeleteFunc(l.pairs, func(_ pairKey, p *pair) bool {
		p.dropped = now.Sub(p.used) > pairKeep
		return p.dropped
	})
}

// openSeconds returns for how long the oldest open operation of each pair is open.
func (l *ledger) openSeconds(now time.Time) map[pairKey]float64 {
	out := map[pairKey]float64{}
	for _, c := range l.comms {
		for _, o := range c.open {
			p := l.pairOf(now, c)
			p.used = now
			out[p.pairKey] = max(out[p.pairKey], now.Sub(o.since).Seconds(), 0)
		}
	}
	return out
}
