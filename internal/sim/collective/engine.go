package collective

import (
	"math/bits"
)

// Speeds of the connections, and how many buffers each has.
const (
	networkLatency = 12_000 // ns
	networkSpeed   = 45.0   // bytes/ns
	nodeLatency    = 3_000
	nodeSpeed      = 300.0
	gpuSpeed       = 600.0 // reduces and copies
	flushNS        = 2_000
	buffers        = 8 // NCCL_STEPS
)

// hold is what a side of a transfer waits for when it hangs.
type hold struct {
	by    string // gpu, peer, wire; empty: it does not hang
	since int64
}

// transfer is what goes from one rank to another within an operation, and what both sides waited for.
type transfer struct {
	channel                int
	from, to               int // ranks of the communicator
	bytes                  uint64
	begin, end             int64
	sendGPU, peer, wire    int64
	recvWire, flush, gpu   int64
	sendHold, recvHold     hold
	posted                 int64 // of the last chunk
	consumed               []int64
	sendReady, receiveFrom int64 // since when the sender, and the receiver, wait for the next chunk
	hurt                   bool  // a fault made it slower
}

// running is an operation while its transfers step on.
type running struct {
	w       *world
	o       *pending
	at      map[[3]int]*transfer
	channel int         // each tree has a channel of its own
	edges   []*transfer // in the order in which they began
	speed   map[int]int64
	burst   int // rank whose sends are slow; -1: none
}

// edge returns the transfer between two ranks.
func (u *running) edge(from, to int) *transfer {
	k := [3]int{from, to, u.channel}
	t := u.at[k]
	if t == nil {
		t = &transfer{channel: u.channel, from: from, to: to, sendReady: u.o.start[from], receiveFrom: u.o.start[to], begin: u.o.start[from]}
		u.at[k] = t
		u.edges = append(u.edges, t)
	}
	return t
}

// plus adds a duration to a time that may be never.
func plus(t, d int64) int64 {
	if t >= never {
		return never
	}
	return t + d
}

// wireTime returns how long a chunk is on the way, which is for ever on a connection that is lost.
func (u *running) wireTime(from, to int, bytes uint64, at int64) (int64, bool) {
	w, g := u.w, u.o.group
	a, b := g.ranks[from], g.ranks[to]
	latency, speed := float64(networkLatency), networkSpeed
	inNode := w.procs[a].host == w.procs[b].host
	if inNode {
		latency, speed = nodeLatency, nodeSpeed
	}
	ns := (latency + float64(bytes)/speed) * (1 + 0.02*w.rng.ExpFloat64())
	if u.burst == from {
		ns *= 4
	}
	if at < w.faultAt || inNode {
		return int64(ns), false
	}
	hit := false
	switch w.Fault {
	case SlowCell, LostConnection, SlowStage:
		hit = a == w.from && b == w.to
	case SlowRow:
		hit = a == w.from
	case SlowColumn:
		hit = b == w.to
	case SlowNodeOut:
		hit = w.procs[a].host == w.procs[w.from].host
	case SlowNodeIn:
		hit = w.procs[b].host == w.procs[w.to].host
	}
	if hit && w.Fault == LostConnection {
		w.hung = min(w.hung, at)
		return never, true
	}
	if hit {
		ns *= w.truth.Factor
	}
	return int64(ns), hit
}

// gpuTime returns how long a GPU reduces or copies a chunk, which is for ever if it is stuck.
func (u *running) gpuTime(rank int, bytes uint64, at int64) int64 {
	w := u.w
	if w.Fault == StuckGPU && u.o.group == w.victim && u.o.group.ranks[rank] == w.from && at >= w.faultAt && at < never && u.stuckAfter(rank) {
		w.hung = min(w.hung, at)
		return never
	}
	return int64(float64(bytes) / gpuSpeed)
}

// stuckAfter counts the chunks of the GPU that is going to stop within the operation: it stops after some.
func (u *running) stuckAfter(rank int) bool {
	u.speed[rank]++
	return u.speed[rank] > 3
}

// send steps a chunk from one rank to another: the sender's GPU has produced it at produced. It returns when the receiver's GPU has it.
func (u *running) send(from, to int, bytes uint64, produced int64) int64 {
	t := u.edge(from, to)
	k := len(t.consumed)
	t.bytes += bytes
	credit := u.o.start[to]
	if k >= buffers {
		credit = t.consumed[k-buffers]
	}
	// The sender.
	if t.sendHold.by == "" {
		switch {
		case produced >= never:
			t.sendHold = hold{"gpu", t.sendReady}
		case credit >= never:
			t.sendHold = hold{"peer", max(t.sendReady, produced)}
		}
	}
	posted := max(produced, credit, t.posted)
	if posted < never {
		t.sendGPU += max(0, produced-t.sendReady)
		t.peer += max(0, credit-max(produced, t.sendReady))
	}
	ns, hurt := u.wireTime(from, to, bytes, posted)
	arrived := plus(posted, ns)
	if arrived >= never {
		arrived = never
		if t.sendHold.by == "" {
			t.sendHold = hold{"wire", posted}
		}
	} else {
		t.wire += ns
		t.hurt = t.hurt || hurt
		t.sendReady = arrived
	}
	t.posted = arrived // one chunk of a connection is on the wire at a time
	// The receiver.
	if u.o.start[to] >= never {
		t.consumed = append(t.consumed, never)
		return never
	}
	if arrived >= never {
		if t.recvHold.by == "" {
			t.recvHold = hold{"wire", t.receiveFrom}
		}
		t.consumed = append(t.consumed, never)
		return never
	}
	t.recvWire += max(0, arrived-t.receiveFrom)
	flushed := plus(arrived, flushNS)
	t.flush += flushNS
	busy := flushed
	if k > 0 {
		busy = max(busy, t.consumed[k-1])
	}
	done := plus(busy, u.gpuTime(to, bytes, busy))
	if done >= never {
		done = never
		if t.recvHold.by == "" {
			t.recvHold = hold{"gpu", flushed}
		}
	} else {
		t.gpu += done - flushed
		t.end, t.receiveFrom = done, done
	}
	t.consumed = append(t.consumed, done)
	return done
}

// ring steps chunks around: each rank sends its own chunk, and in every later step what it has received in the one before.
func (u *running) ring(steps int, bytes uint64) []int64 {
	n := len(u.o.start)
	have := make([]int64, n) // when a rank's GPU has what it sends in the next step
	end := make([]int64, n)
	for i := range n {
		have[i] = plus(u.o.start[i], u.gpuTime(i, bytes, u.o.start[i]))
	}
	for range steps {
		next := make([]int64, n)
		for i := range n {
			next[(i+1)%n] = u.send(i, (i+1)%n, bytes, have[i])
		}
		have = next
		for i := range n {
			end[i] = max(end[i], have[i])
		}
	}
	return end
}

// tree reduces chunks up a binary tree and sends the sum down again. Two trees have half of the data each.
func (u *running) tree(bytes uint64, shift int) []int64 {
	n := len(u.o.start)
	const chunks = 8
	end := make([]int64, n)
	at := func(i int) int { return (i + shift) % n }
	for range chunks {
		size := bytes/chunks + 1
		up := make([]int64, n)
		for i := n - 1; i >= 0; i-- {
			r := at(i)
			up[i] = max(up[i], plus(u.o.start[r], u.gpuTime(r, size, u.o.start[r])))
			if i > 0 {
				parent := (i - 1) / 2
				up[parent] = max(up[parent], u.send(r, at(parent), size, up[i]))
			}
		}
		down := make([]int64, n)
		down[0] = up[0]
		for i := range n {
			for _, c := range []int{2*i + 1, 2*i + 2} {
				if c < n {
					down[c] = u.send(at(i), at(c), size, down[i])
				}
			}
			end[at(i)] = max(end[at(i)], down[i])
		}
	}
	return end
}

// allToAll sends to each other rank in turn: in step k to the k-th after this one.
func (u *running) allToAll(bytes uint64) []int64 {
	n := len(u.o.start)
	end := make([]int64, n)
	out := make([]int64, n) // when the NIC is free to send
	in := make([]int64, n)  // and to receive
	for i := range n {
		out[i] = plus(u.o.start[i], u.gpuTime(i, bytes, u.o.start[i]))
	}
	for k := 1; k < n; k++ {
		for i := range n {
			to := (i + k) % n
			ready := out[i]
			if in[to] < never {
				ready = max(ready, in[to])
			}
			if t := u.edge(i, to); len(t.consumed) == 0 && out[i] < never {
				t.sendReady, t.receiveFrom = out[i], max(u.o.start[to], in[to])
			}
			got := u.send(i, to, bytes, ready)
			if got >= never {
				// A connection that hangs does not hold the others up: each has buffers of its own.
				end[i], end[to] = never, never
				continue
			}
			sent := u.edge(i, to).posted
			out[i], in[to] = sent, sent
			end[i], end[to] = max(end[i], got), max(end[to], got)
		}
	}
	for i := range n {
		end[i] = max(end[i], u.o.start[i])
	}
	return end
}

// point sends chunks from one rank to another.
func (u *running) point(from, to int, bytes uint64) []int64 {
	end := make([]int64, len(u.o.start))
	const chunks = 8
	for range chunks {
		end[to] = u.send(from, to, bytes/chunks, plus(u.o.start[from], 0))
		end[from] = end[to]
	}
	return end
}

// broadcast sends chunks from a root along the ring.
func (u *running) broadcast(root int, bytes uint64) []int64 {
	n := len(u.o.start)
	end := make([]int64, n)
	const chunks = 8
	for range chunks {
		got := u.o.start[root]
		for k := range n - 1 {
			from, to := (root+k)%n, (root+k+1)%n
			got = u.send(from, to, bytes/chunks, max(got, u.o.start[from]))
			end[to], end[from] = max(end[to], got), max(end[from], u.edge(from, to).posted)
		}
	}
	return end
}

// step runs an operation and returns when it ends in each rank.
func (u *running) step(a *action, me int) []int64 {
	n := uint64(len(u.o.start))
	switch {
	case a.op == "Send":
		return u.point(me, a.peer, a.bytes)
	case a.op == "Recv":
		return u.point(a.peer, me, a.bytes)
	case a.op == "Broadcast":
		return u.broadcast(a.peer, a.bytes)
	case a.op == "AllToAll":
		return u.allToAll(a.bytes / n)
	case a.op == "AllReduce" && a.algo == "TREE":
		end := u.tree(a.bytes/2, 0)
		u.channel = 1
		other := u.tree(a.bytes/2, bits.Len(uint(n)))
		for i := range end {
			end[i] = max(end[i], other[i])
		}
		return end
	case a.op == "AllReduce":
		return u.ring(int(2*(n-1)), a.bytes/n)
	}
	return u.ring(int(n-1), a.bytes/n)
}
