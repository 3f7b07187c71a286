package probe

import (
	"sync/atomic"
	"time"
)

// Rules of life numbers. A life number only grows from one start of an agent to
// the next; authenticated packets carry those of both ends (stamp.Lives).
//
//  1. A packet of a life before the highest one known of its node is a replayed
//     one, and is dropped.
//  2. In one life a session never starts anew: sequence numbers and their window
//     decide alone, whatever the sender's clock does.
//  3. A higher life starts a session anew, unless its sequence numbers go on: the
//     agent was given another number while it ran. Packets that it sent before
//     are in the window as well.
//  4. A node that never sent a life is of an older version. Nothing is demanded of
//     its packets, and it is counted.
//  5. A node that did send one, or has one by the coordinator, must go on to: a
//     packet without is dropped as replayed. It may have been given an older
//     version, or may not be able to keep its number: that is believed after
//     unboundAfter without any packet with a life. Until then what is dropped is
//     no evidence, and no loss.
//     Lives count for the packet and the NIC only that they were written for: those
//     of another one are none.
//  6. A reply must carry the life that this node's probes carry, or carried before
//     while this process ran.

const (
	unboundAfter = time.Minute
	// silentAfter is after how long without a packet that carries a life one
	// without can be the node's own.
	silentAfter = time.Second
)

// nameHash stands for the name of a NIC in packets that carry its node's life.
func nameHash(nic string) uint64 {
	// FNV-1a of 64 bits, as hash/fnv has it, without its allocation.
	h := uint64(14695981039346656037)
	for i := range len(nic) {
		h = (h ^ uint64(nic[i])) * 1099511628211
	}
	return h
}

// peerLife is what is known of the lives of one node. All NICs of an engine
// share it.
type peerLife struct {
	known       atomic.Uint64 // the highest; 0: none
	lastCarried atomic.Int64  // when a packet last carried one, monotonic nanoseconds
}

// learnLife takes a life that the coordinator says the node has.
func (l *peerLife) learnLife(life uint64, mono int64) {
	for {
		known := l.known.Load()
		if life <= known {
			return
		}
		if l.known.CompareAndSwap(known, life) {
			l.lastCarried.Store(mono)
			return
		}
	}
}

// admission is what a packet's life says about it.
type admission uint8

const (
	admitted admission = iota
	replayed           // of an earlier life
	unproven           // without a life, where one is to be expected
)

// admitLife takes the life of an authentic packet; 0: it has none.
func (l *peerLife) admitLife(life uint64, mono int64) admission {
	known := l.known.Load()
	switch {
	case life == 0 && known != 0 && mono-l.lastCarried.Load() < int64(unboundAfter):
		return unproven
	case life == 0:
		return admitted
	case life < known:
		return replayed
	case life > known:
		l.learnLife(life, mono)
	}
	l.lastCarried.Store(mono)
	return admitted
}

// isSilent reports whether the node has sent no packet with a life lately, so that
// one without can be its own.
func (l *peerLife) isSilent(mono int64) bool { return mono-l.lastCarried.Load() >= int64(silentAfter) }

// ownLife is the engine's own: the number its packets carry, and the first one
// that they carried.
type ownLife struct{ first, now atomic.Uint64 }

// raiseTo gives the engine a higher life.
func (o *ownLife) raiseTo(life uint64) {
	if life <= o.now.Load() {
		return
	}
	o.first.CompareAndSwap(0, life)
	o.now.Store(life)
}

// mayBeOwn reports whether a reply to a probe of this process can carry a life.
func (o *ownLife) mayBeOwn(life uint64) bool {
	return life <= o.now.Load() && life >= o.first.Load()
}

// SetLife gives the engine its life number. A lower one than it has changes
// nothing.
func (e *Engine) SetLife(life uint64) { e.wire.life.raiseTo(life) }

// Life is the engine's life number; 0: it has none.
func (e *Engine) Life() uint64 { return e.wire.life.now.Load() }

// KnowLives takes the life numbers of nodes, as the coordinator has them.
func (e *Engine) KnowLives(lives map[string]uint64) {
	mono := e.monoTime()
	for node, life := range lives {
		e.wire.lifeOf(node).learnLife(life, mono)
	}
}

// lifeOf returns what is known of a node's lives. It stays the same value for as
// long as the engine lives, whatever becomes of the node's sessions and edges.
func (w *wiring) lifeOf(node string) *peerLife {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lives[node]
	if l == nil {
		if w.lives == nil {
			w.lives = map[string]*peerLife{}
		}
		l = &peerLife{}
		w.lives[node] = l
	}
	return l
}
