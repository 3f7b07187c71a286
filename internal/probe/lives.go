package probe

import (
	"sync"
	"sync/atomic"
	"time"
)

// Rules of life numbers. A life number grows from one start of an agent to the next. Authenticated packets carry the
// life numbers of both ends (stamp.Lives).
//
//  1. A packet of a life before the highest one known of its node is a replay, and is dropped.
//  2. Within one life a session never starts anew: only the sequence numbers and their window decide, whatever the
//     sender's clock does.
//  3. A higher life starts a session anew, unless its sequence numbers continue. In that case the agent was given
//     another number while it ran, and packets that it sent before are in the window as well.
//  4. A node that never sent a life has an older version. Its packets are accepted without one, and it is counted.
//  5. A node that did send one, or has one by the coordinator, must continue to do so: a packet without one is dropped
//     as a replay. The node may have been given an older version, or may not be able to keep its number. That is
//     assumed after unboundAfter without any packet with a life. Until then the dropped packets are neither evidence
//     nor loss. Lives are valid only for the packet and the NIC that they were written for. Those of another one are
//     ignored.
//  6. A reply must carry the life that this node's probes carry, or one that they carried earlier in this process.

const (
	unboundAfter = time.Minute
	// silentAfter is the time without a packet that carries a life after which a packet without one can be the node's
	// own.
	silentAfter = time.Second
)

// nameHash returns the hash that represents the name of a NIC in packets that carry its node's life.
func nameHash(nic string) uint64 {
	// This is FNV-1a of 64 bits like that of hash/fnv, without its allocation.
	h := uint64(14695981039346656037)
	for i := range len(nic) {
		h = (h ^ uint64(nic[i])) * 1099511628211
	}
	return h
}

// peerLife represents what is known of the lives of one node. All NICs of an engine share it.
type peerLife struct {
	known       atomic.Uint64 // the highest one; 0: none
	lastCarried atomic.Int64  // time of the last packet that carried one, monotonic nanoseconds
}

// learnLife records a life that the coordinator reports for the node.
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

// admission is the result of the check of a packet's life.
type admission uint8

const (
	admitted admission = iota
	replayed           // of an earlier life
	unproven           // without a life, although one is expected
)

// admitLife checks the life of an authentic packet, where 0 means that it has none, and records it.
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

// isSilent reports whether the node has sent no packet with a life recently, so that one without can be its own.
func (l *peerLife) isSilent(mono int64) bool { return mono-l.lastCarried.Load() >= int64(silentAfter) }

// ownLife represents the engine's own life: the number that its packets carry, and the first one that they carried.
type ownLife struct{ first, now atomic.Uint64 }

// raiseTo sets a higher life. A lower one changes nothing.
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

// nodeLives holds what an engine knows of lives: its own, and those of the nodes that it exchanges packets with.
type nodeLives struct {
	own ownLife

	mu    sync.Mutex
	peers map[string]*peerLife // by node
}

// lifeOf returns what is known of a node's lives. It returns the same value for as long as the engine exists, whatever
// happens to the node's sessions and edges.
func (l *nodeLives) lifeOf(node string) *peerLife {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[node]
	if p == nil {
		p = &peerLife{}
		l.peers[node] = p
	}
	return p
}

// SetLife gives the engine its life number. A number lower than the current one changes nothing.
func (e *Engine) SetLife(life uint64) { e.wire.lives.own.raiseTo(life) }

// Life returns the engine's life number, or 0 if it has none.
func (e *Engine) Life() uint64 { return e.wire.lives.own.now.Load() }

// KnowLives records the life numbers of nodes that the coordinator reports.
func (e *Engine) KnowLives(lives map[string]uint64) {
	mono := e.wire.monoTime()
	for node, life := range lives {
		e.wire.lives.lifeOf(node).learnLife(life, mono)
	}
}
