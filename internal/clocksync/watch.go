package clocksync

import "math"

// Watch detects a move of one of an edge's clocks at once, long before a window has ended. Its rules,
// which the tests are named after:
//
//  1. A clock that moves shifts both directions by opposite amounts and does not change the round
//     trip. A change of the round trip belongs to the path.
//  2. A move is accepted when watchRun exchanges in a row, or nearly so, agree.
//  3. A difference within the relation's bound and the least jump that counts is no move.
//  4. The usual values of the path are learnt, of the round trip and of the difference alike, so that
//     a delay that comes or goes in one direction never looks like a clock.
//  5. A move is reported only after learning. Learning restarts with a relation that contradicts the
//     one before.
//
// Nothing is allocated, and every exchange takes the same few operations.
type Watch struct {
	probeDelay   int64 // delay of the last probe
	probePending bool  // no reply has been compared with it yet
	sum, apart   float64
	learnt       int
	run          int
	by           float64
}

const (
	watchRun   = 8
	watchLearn = 64
	// watchMemory is the number of exchanges over which usual values are forgotten.
	watchMemory = 256
)

// AddProbe adds the delay, ns, of a probe by the current relation.
func (w *Watch) AddProbe(delay int64) { w.probeDelay, w.probePending = delay, true }

// AddReply adds the delay, ns, of a reply by the current relation, whose bound is given.
func (w *Watch) AddReply(k Kind, delay, bound int64) {
	if !w.probePending {
		return
	}
	w.probePending = false
	sum, apart := float64(w.probeDelay+delay)-w.sum, float64(w.probeDelay-delay)/2-w.apart
	memory := float64(watchMemory)
	if w.learnt < watchLearn {
		w.learnt++
		memory = float64(w.learnt)
	} else if limit := k.minJump() + float64(bound); math.Abs(apart) <= limit {
		w.run = 0
	} else if math.Abs(sum) > math.Abs(apart)/2 {
		w.run = max(0, w.run-1)
	} else {
		if math.Abs(apart-w.by) > math.Abs(apart)/2 {
			w.run = 0
		}
		w.run, w.by = w.run+1, apart
		return // the exchange is not usual
	}
	w.sum += sum / memory
	w.apart += apart / memory
}

// ChangeRelation switches to another relation, which puts the far clock ahead by change, ns.
func (w *Watch) ChangeRelation(k Kind, change, bound int64) {
	if math.Abs(float64(change)) > k.minJump()+float64(bound) {
		*w = Watch{}
		return
	}
	w.run, w.probePending = 0, false
}

// MovedBy returns how far, ns, the far clock is ahead of the relation, and whether it certainly moved.
// ok is false without enough exchanges.
func (w *Watch) MovedBy() (by float64, moved, ok bool) {
	return w.by, w.run >= watchRun, w.learnt == watchLearn
}
