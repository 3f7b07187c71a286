package collectivejob

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// What a receiver writes to a sender.
const (
	ackByte    = 'a' // a chunk has arrived
	creditByte = 'c' // there is room for a chunk
)

// headerBytes is the size of what precedes a chunk: the number of its operation.
const headerBytes = 8

// holds is how many chunks wait for what.
type holds struct{ gpu, peer, wire int }

// first returns what the oldest chunk waits for. Chunks leave in order, so those on the wire are the oldest.
func (h holds) first() ccl.Hold {
	switch {
	case h.wire > 0:
		return ccl.HeldByWire
	case h.peer > 0:
		return ccl.HeldByPeer
	}
	return ccl.HeldByGPU
}

// account adds up what the chunks of one side of a transfer wait for. Chunks that wait at the same time count each.
type account struct {
	mu     sync.Mutex // guards all, and the counters of sender
	seq    uint64
	began  time.Time
	ended  time.Time // zero: not over
	at     time.Time // up to which the sums are
	since  time.Time // the oldest chunk waits for what it waits for since then
	chunks holds
	sums   struct{ gpu, peer, wire time.Duration }
	bytes  uint64
}

// begin forgets the operation before. mu is held.
func (a *account) begin(seq uint64, chunks holds) {
	now := time.Now()
	a.seq, a.began, a.ended, a.at, a.since, a.chunks, a.bytes = seq, now, time.Time{}, now, now, chunks, 0
	a.sums.gpu, a.sums.peer, a.sums.wire = 0, 0, 0
}

// advance adds up the waits until now, and notes what the chunks wait for from now on, and the octets that arrived. mu is held.
func (a *account) advance(to holds, arrived int) {
	now := time.Now()
	d := now.Sub(a.at)
	a.sums.gpu += time.Duration(a.chunks.gpu) * d
	a.sums.peer += time.Duration(a.chunks.peer) * d
	a.sums.wire += time.Duration(a.chunks.wire) * d
	if arrived > 0 || a.chunks.first() != to.first() {
		a.since = now
	}
	a.at, a.chunks, a.bytes = now, to, a.bytes+uint64(arrived)
}

// edge returns the record of the transfer. It is nil if the side has not begun the operation.
func (a *account) edge(from ccl.From, op string, seq uint64, peer int, direction ccl.Direction) *ccl.Edge {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.began.IsZero() || a.seq != seq {
		return nil
	}
	if a.ended.IsZero() {
		a.advance(a.chunks, 0)
	}
	channel, bytes := 0, a.bytes
	return a.times(&ccl.Edge{From: from, Seq: seq, Op: op, Peer: peer, Direction: direction, Channel: &channel, Bytes: &bytes,
		StartNS: ccl.KnownNanos(a.began.UnixNano()), GPUWait: ccl.KnownNanos(int64(a.sums.gpu)), PeerWait: ccl.KnownNanos(int64(a.sums.peer)),
		Wire: ccl.KnownNanos(int64(a.sums.wire)), Flush: ccl.KnownNanos(0)})
}

// times sets when the transfer ended, or what it waits for.
func (a *account) times(e *ccl.Edge) *ccl.Edge {
	if a.ended.IsZero() {
		e.State, e.Held, e.Since = ccl.Open, a.chunks.first(), ccl.KnownNanos(a.since.UnixNano())
		return e
	}
	e.State, e.EndNS = string(ccl.Completed), ccl.KnownNanos(a.began.UnixNano()+int64(a.ended.Sub(a.began)))
	return e
}

// sender is the connection to a rank that this one sends to. Its counters are of chunks of the current operation: slots bound
// how many are posted and have not arrived, as in NCCL, where a step is posted when its buffer is free.
type sender struct {
	account
	peer  int
	conn  net.Conn
	slots int
	wake  chan struct{} // a counter has changed
	gone  chan struct{} // closed when the connection has ended
	err   error         // why, once gone is closed

	all, ready, credits, sent, arrived int
	size                               int // octets of a chunk
}

func newSender(peer int, conn net.Conn, slots int) *sender {
	return &sender{peer: peer, conn: conn, slots: slots, wake: make(chan struct{}, 1), gone: make(chan struct{})}
}

// holds returns what the posted chunks wait for. A chunk that has its data and a credit waits for the socket, which is the wire.
func (s *sender) holds() holds {
	posted := min(s.arrived+s.slots, s.all)
	filled := max(min(s.ready, posted), s.sent)
	leaving := min(filled, s.credits)
	return holds{gpu: posted - filled, peer: filled - max(leaving, s.sent), wire: max(leaving, s.sent) - s.arrived}
}

// change changes a counter, and wakes the one who sends.
func (s *sender) change(counter *int, by, octets int) {
	s.mu.Lock()
	*counter += by
	s.advance(s.holds(), octets)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// addReady notes that the data of another chunk are there.
func (s *sender) addReady() { s.change(&s.ready, 1, 0) }

// readControl reads what the receiver writes, until the connection ends.
func (s *sender) readControl() {
	defer close(s.gone)
	r := bufio.NewReader(s.conn)
	for {
		b, err := r.ReadByte()
		switch {
		case err != nil:
			s.err = err
			return
		case b == creditByte:
			s.change(&s.credits, 1, 0)
		default:
			s.change(&s.arrived, 1, s.size)
		}
	}
}

// next waits until a chunk can be sent, or with none left until all have arrived. It is false when that is so.
func (s *sender) next(ctx context.Context) (bool, error) {
	for {
		s.mu.Lock()
		send := s.sent < min(s.ready, s.credits, s.all)
		over := s.arrived == s.all
		wrong := s.arrived > s.sent || s.credits > s.all+s.slots // the receiver may have begun the next operation
		if over {
			s.ended = s.at
		}
		s.mu.Unlock()
		switch {
		case wrong:
			return false, fmt.Errorf("rank %d acknowledges or grants more than there is", s.peer)
		case over || send:
			return send, nil
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return false, ctx.Err()
		case <-s.gone:
			s.mu.Lock()
			over = s.arrived == s.all
			s.mu.Unlock()
			if !over {
				return false, s.err
			}
		}
	}
}

// start begins an operation of so many chunks, of which the first ones can be sent at once. Credits of it may have come before.
func (s *sender) start(seq uint64, all, first, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all, s.ready, s.sent, s.arrived, s.size = all, first, 0, 0, size
	s.begin(seq, s.holds())
}

// run sends the chunks of an operation that was started.
func (s *sender) run(ctx context.Context) error {
	frame := make([]byte, headerBytes+s.size)
	binary.BigEndian.PutUint64(frame, s.seq)
	for {
		send, err := s.next(ctx)
		if err != nil {
			return err
		}
		if !send {
			break
		}
		// Counted before it is written: its acknowledgement may be read before Write returns.
		s.change(&s.sent, 1, 0)
		if _, err := s.conn.Write(frame); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.credits -= s.all
	s.mu.Unlock()
	return nil
}

// receiver is the connection from a rank that sends to this one.
type receiver struct {
	account
	peer   int
	conn   net.Conn
	stream *bufio.Reader
	slots  int
}

// run receives the chunks of an operation, and reports each to arrived.
func (r *receiver) run(ctx context.Context, seq uint64, all, size int, arrived func()) error {
	granted := min(r.slots, all)
	r.mu.Lock()
	r.begin(seq, holds{wire: granted})
	r.mu.Unlock()
	control := make([]byte, 0, r.slots)
	for range granted {
		control = append(control, creditByte)
	}
	if _, err := r.conn.Write(control); err != nil {
		return err
	}
	frame := make([]byte, headerBytes+size)
	for received := 1; received <= all; received++ {
		if _, err := io.ReadFull(r.stream, frame); err != nil {
			return errors.Join(ctx.Err(), err)
		}
		if got := binary.BigEndian.Uint64(frame); got != seq {
			return fmt.Errorf("rank %d sends operation %d in place of %d", r.peer, got, seq)
		}
		control = append(control[:0], ackByte)
		if granted < all {
			control, granted = append(control, creditByte), granted+1
		}
		r.mu.Lock()
		r.advance(holds{wire: granted - received}, size)
		if received == all {
			r.ended = r.at
		}
		r.mu.Unlock()
		arrived()
		if _, err := r.conn.Write(control); err != nil {
			return err
		}
	}
	return nil
}
