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

// account adds up what one side of a transfer waits for.
type account struct {
	mu    sync.Mutex // guards all
	seq   uint64
	began time.Time
	ended time.Time // zero: not over
	held  ccl.Hold
	since time.Time
	waits map[ccl.Hold]time.Duration
	bytes uint64
}

// begin forgets the operation before.
func (a *account) begin(seq uint64, held ccl.Hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.seq, a.began, a.ended, a.held, a.since, a.waits, a.bytes = seq, now, time.Time{}, held, now, map[ccl.Hold]time.Duration{}, 0
}

// hold says what the side waits for from now on.
func (a *account) hold(held ccl.Hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == held {
		return
	}
	now := time.Now()
	a.waits[a.held] += now.Sub(a.since)
	a.held, a.since = held, now
}

// add counts octets that were moved.
func (a *account) add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes += uint64(n)
}

// end ends the transfer.
func (a *account) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = time.Now()
	a.waits[a.held] += a.ended.Sub(a.since)
}

// edge returns the record of the transfer. It is nil if the side has not begun the operation.
func (a *account) edge(from ccl.From, op string, seq uint64, peer int, direction ccl.Direction) *ccl.Edge {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.began.IsZero() || a.seq != seq {
		return nil
	}
	channel, bytes := 0, a.bytes
	e := &ccl.Edge{From: from, Seq: seq, Op: op, Peer: peer, Direction: direction, Channel: &channel, Bytes: &bytes, StartNS: ccl.KnownNanos(a.began.UnixNano())}
	wait := func(h ccl.Hold) ccl.Nanos { return ccl.KnownNanos(int64(a.waits[h])) }
	e.GPUWait, e.PeerWait, e.Wire, e.Flush = wait(ccl.HeldByGPU), wait(ccl.HeldByPeer), wait(ccl.HeldByWire), wait(ccl.HeldByFlush)
	if a.ended.IsZero() {
		e.State, e.Held, e.Since = ccl.Open, a.held, ccl.KnownNanos(a.since.UnixNano())
	} else {
		e.State, e.EndNS = string(ccl.Completed), ccl.KnownNanos(a.began.UnixNano()+int64(a.ended.Sub(a.began)))
	}
	return e
}

// sender is the connection to a rank that this one sends to.
type sender struct {
	account
	peer    int
	conn    net.Conn
	acks    chan struct{}
	credits chan struct{}
	gone    chan struct{} // closed when the connection has ended
	err     error         // why, once gone is closed
	flying  int           // chunks that have not arrived
}

func newSender(peer int, conn net.Conn) *sender {
	// No more than all slots are unused or unacknowledged at any time.
	return &sender{peer: peer, conn: conn, acks: make(chan struct{}, slots), credits: make(chan struct{}, slots), gone: make(chan struct{})}
}

// readControl reads what the receiver writes, until the connection ends.
func (s *sender) readControl() {
	defer close(s.gone)
	r := bufio.NewReader(s.conn)
	for {
		b, err := r.ReadByte()
		if err != nil {
			s.err = err
			return
		}
		to := s.acks
		if b == creditByte {
			to = s.credits
		}
		select {
		case to <- struct{}{}:
		default:
			s.err = fmt.Errorf("rank %d grants more than %d slots", s.peer, slots)
			return
		}
	}
}

// await waits for a token, or without tokens until all chunks have arrived. held says what for, which changes when chunks
// arrive.
func (s *sender) await(ctx context.Context, tokens <-chan struct{}, held func() ccl.Hold) error {
	for tokens != nil || s.flying > 0 {
		select {
		case <-tokens:
			return nil
		default:
		}
		s.hold(held())
		select {
		case <-tokens:
			return nil
		case <-s.acks:
			s.flying--
		case <-ctx.Done():
			return ctx.Err()
		case <-s.gone:
			select { // what was read before that
			case <-tokens:
				return nil
			case <-s.acks:
				s.flying--
			default:
				return s.err
			}
		}
	}
	return nil
}

// countArrived counts the acknowledgements that were read. An acknowledgement is read before the credit that came with it, so
// that after a credit was taken no more than slots are on their way.
func (s *sender) countArrived() {
	for {
		select {
		case <-s.acks:
			s.flying--
		default:
			return
		}
	}
}

// run sends the chunks of an operation. A chunk takes a token of ready.
func (s *sender) run(ctx context.Context, seq uint64, all, size int, ready <-chan struct{}) error {
	s.begin(seq, ccl.HeldByGPU)
	s.flying = 0
	frame := make([]byte, headerBytes+size)
	binary.BigEndian.PutUint64(frame, seq)
	forData := func() ccl.Hold { return ccl.HeldByGPU }
	forCredit := func() ccl.Hold {
		if s.flying > 0 {
			return ccl.HeldByWire
		}
		return ccl.HeldByPeer
	}
	for range all {
		if err := s.await(ctx, ready, forData); err != nil {
			return err
		}
		if err := s.await(ctx, s.credits, forCredit); err != nil {
			return err
		}
		s.countArrived()
		s.hold(ccl.HeldByWire)
		if _, err := s.conn.Write(frame); err != nil {
			return err
		}
		s.add(size)
		s.flying++
	}
	if err := s.await(ctx, nil, func() ccl.Hold { return ccl.HeldByWire }); err != nil {
		return err
	}
	s.end()
	return nil
}

// receiver is the connection from a rank that sends to this one.
type receiver struct {
	account
	peer   int
	conn   net.Conn
	stream *bufio.Reader
}

// run receives the chunks of an operation. Each adds a token to ready, where there is room: a full one has all that can be
// needed.
func (r *receiver) run(ctx context.Context, seq uint64, all, size int, ready chan<- struct{}) error {
	r.begin(seq, ccl.HeldByWire)
	granted := min(slots, all)
	control := make([]byte, 0, slots)
	for range granted {
		control = append(control, creditByte)
	}
	if _, err := r.conn.Write(control); err != nil {
		return err
	}
	frame := make([]byte, headerBytes+size)
	for range all {
		if _, err := io.ReadFull(r.stream, frame); err != nil {
			return errors.Join(ctx.Err(), err)
		}
		if got := binary.BigEndian.Uint64(frame); got != seq {
			return fmt.Errorf("rank %d sends operation %d in place of %d", r.peer, got, seq)
		}
		r.add(size)
		control = append(control[:0], ackByte)
		if granted < all {
			control, granted = append(control, creditByte), granted+1
		}
		select {
		case ready <- struct{}{}:
		default:
		}
		if _, err := r.conn.Write(control); err != nil {
			return err
		}
	}
	r.end()
	return nil
}
