package clocksync

import "math"

// Watch sees at once when one of an edge's clocks moves, long before a window has
// ended. Its rules, which the tests are named after:
//
//  1. A clock that moves shifts both directions by opposite amounts and leaves the
//     round trip alone. What moves that is the path's.
//  2. It is believed when watchRun exchanges in a row, or nearly so, show the same.
//  3. What the relation's bound and the least jump that counts explain is nothing.
//  4. What is usual on the path is learnt, of the round trip and of the difference
//     alike: so a delay that comes or goes one way never looks like a clock.
//  5. Nothing is said before that is learnt, and it is learnt anew with a relation
//     that contradicts the one before.
//
// Nothing is allocated, and an exchange takes the same few operations always.
type Watch struct {
	probeDelay   int64 // delay of the last probe
	probePending bool  // no reply was compared with it yet
	sum, apart   float64
	learnt       int
	run          int
	by           float64
}

const (
	watchRun   = 8
	watchLearn = 64
	// watchMemory is over how many exchanges what is usual is forgotten.
	watchMemory = 256
)

// AddProbe takes the delay, ns, of a probe, by the relation in force.
func (w *Watch) AddProbe(delay int64) { w.probeDelay, w.probePending = delay, true }

// AddReply takes the delay, ns, of a reply by the relation in force, whose bound is
// given.
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
		return // whatever it is, it is not usual
	}
	w.sum += sum / memory
	w.apart += apart / memory
}

// ChangeRelation is another relation, which puts the far clock so many ns further ahead.
func (w *Watch) ChangeRelation(k Kind, change, bound int64) {
	if math.Abs(float64(change)) > k.minJump()+float64(bound) {
		*w = Watch{}
		return
	}
	w.run, w.probePending = 0, false
}

// MovedBy reports whether there is enough to go by; by is by how much, ns, the far
// clock is ahead of the relation, moved whether that is beyond doubt.
func (w *Watch) MovedBy() (by float64, moved, ok bool) {
	return w.by, w.run >= watchRun, w.learnt == watchLearn
}
