package ibmad

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrDropped means that a transport could not take a datagram at the moment.
var ErrDropped = errors.New("transport is full")

// Config configures a Client. Fields that are zero get the named defaults.
type Config struct {
	// MaxInFlight is the largest number of requests on their way. The default is the transport's own, which is
	// also the limit.
	MaxInFlight int
	// PerDestination is the largest number of them to one destination; 4 by default.
	PerDestination int
	// Timeout is how long each attempt waits for its answer; 200 ms by default.
	Timeout time.Duration
	// Retries is the number of further attempts; 2 by default. Negative means none.
	Retries int
	// MKey goes with every subnet management request.
	MKey MKey
}

func (c Config) withDefaults(t Transport) Config {
	if limit := min(t.MaxInFlight(), maxSlots); c.MaxInFlight <= 0 || c.MaxInFlight > limit {
		c.MaxInFlight = limit
	}
	if c.PerDestination <= 0 {
		c.PerDestination = 4
	}
	if c.Timeout <= 0 {
		c.Timeout = 200 * time.Millisecond
	}
	if c.Retries == 0 {
		c.Retries = 2
	}
	c.Retries = max(c.Retries, 0)
	return c
}

// Result is the outcome of one request.
type Result struct {
	Request Request
	// MAD is the answer. Its attribute is valid only when Err is nil.
	MAD MAD
	// Err is nil, a *StatusError, or one for which errors.Is holds with ErrTimeout,
	// ErrSilent, ErrClosed or the context's error.
	Err error
	// Sent is when the first attempt was sent, Received when its outcome was known. Both are zero when nothing
	// was sent.
	Sent, Received time.Time
	Attempts       int
}

// Data returns the attribute of the answer.
func (r *Result) Data() *Data { return r.MAD.Data() }

// Stats counts since the client was created.
type Stats struct {
	Sent      uint64 // datagrams, further attempts included
	Answered  uint64 // requests
	Refused   uint64 // of them, with a status other than success
	Lost      uint64 // attempts that timed out or came back
	TimedOut  uint64 // requests whose last attempt was lost
	Recovered uint64 // requests answered after a loss: the fabric dropped a datagram
	// RecoveredSubnet counts those of them that went by VL15 all the way.
	RecoveredSubnet uint64
	Skipped         uint64 // requests not sent because their destination is silent
	Late            uint64 // answers to no request on its way
	Foreign         uint64 // answers that do not fit their request
	Busy            uint64 // answers that request to be asked again
	Dropped         uint64 // datagrams the transport could not take
}

// Client sends requests over one transport. Its methods may be called by many goroutines at once. The rules are
// in the package comment.
type Client struct {
	transport    Transport
	config       Config
	receiverDone chan struct{} // closed when the receiving goroutine has ended

	mu           sync.Mutex
	slots        []slot
	free         []uint16
	destinations map[Address]*destination
	readyQueue   fifo[*destination] // those that may send, in turn
	deadlines    fifo[deadline]
	timer        *time.Timer
	closed       bool
	sequence     uint32
	stats        Stats
	sentTo       map[Address]uint64 // datagrams since TakeSent, further attempts included
}

// A transaction id's lower half is a sequence number and a slot.
const (
	slotBits = 12
	maxSlots = 1 << slotBits
	seqMask  = 1<<(32-slotBits) - 1
)

// call represents one request and its outcome so far.
type call struct {
	Result
	batch          *batch
	answeredBefore uint64 // of the destination, when the call was first sent
}

// slot represents a request on its way.
type slot struct {
	call        *call
	firstSeq    uint32 // sequence number of the first attempt
	lastSeq     uint32 // and of the last one
	destination *destination
}

type deadline struct {
	when time.Time
	slot uint16
	seq  uint32
}

// destination is an address with requests that are queued or on their way.
type destination struct {
	address      Address
	queue        fifo[*call]
	inFlight     int
	answered     uint64
	inReadyQueue bool
}

// batch gathers the results of one DoAll.
type batch struct {
	mu        sync.Mutex
	done      []*call
	wake      chan struct{} // holds one token while done is not empty
	abandoned bool          // the caller has stopped waiting; under Client.mu
	pending   int           // belongs to the calling goroutine
}

// NewClient starts a client on a transport, which it then owns.
func NewClient(t Transport, config Config) *Client {
	c := &Client{
		transport: t, config: config.withDefaults(t), receiverDone: make(chan struct{}),
		destinations: make(map[Address]*destination), sentTo: make(map[Address]uint64),
		// A simulator may still answer the previous client of its place.
		sequence: rand.Uint32() & seqMask,
	}
	c.slots = make([]slot, c.config.MaxInFlight)
	for i := range c.slots {
		c.free = append(c.free, uint16(i))
	}
	c.timer = time.AfterFunc(time.Hour, c.expireAttempts)
	c.timer.Stop()
	go c.receiveLoop()
	return c
}

// Close fails the requests on their way, closes the transport and waits for the receiving goroutine.
func (c *Client) Close() error {
	c.failAll()
	err := c.transport.Close()
	<-c.receiverDone
	return err
}

// Stats returns the counts so far.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// TakeSent returns how many datagrams were sent to each address since it was last called.
func (c *Client) TakeSent() map[Address]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.sentTo
	c.sentTo = make(map[Address]uint64, len(out))
	return out
}

// Config returns the configuration with its defaults filled in.
func (c *Client) Config() Config { return c.config }

// Do sends one request and waits for its outcome. The Result's Err is also returned as the error.
func (c *Client) Do(ctx context.Context, r Request) (Result, error) {
	var result Result
	err := c.DoAll(ctx, []Request{r}, func(r *Result) []Request {
		result = *r
		return nil
	})
	if err != nil {
		return Result{Request: r, Err: err}, err
	}
	return result, result.Err
}

// DoAll sends all the requests, and those that visit returns, and returns when each has been visited once.
// visit is called by the calling goroutine, one result at a time, in the order of the outcomes; the Result is
// valid only during the call. The error is the context's or ErrClosed; results that were not visited by then
// never will be.
func (c *Client) DoAll(ctx context.Context, requests []Request, visit func(*Result) []Request) error {
	b := &batch{wake: make(chan struct{}, 1)}
	if err := c.queueRequests(b, requests); err != nil {
		return err
	}
	var done []*call
	for b.pending > 0 {
		select {
		case <-ctx.Done():
			c.abandonBatch(b)
			return ctx.Err()
		case <-b.wake:
		}
		b.mu.Lock()
		done, b.done = b.done, done[:0]
		b.mu.Unlock()
		for _, call := range done {
			b.pending--
			if errors.Is(call.Err, ErrClosed) {
				c.abandonBatch(b)
				return ErrClosed
			}
			if more := visit(&call.Result); len(more) > 0 {
				if err := c.queueRequests(b, more); err != nil {
					c.abandonBatch(b)
					return err
				}
			}
		}
	}
	return nil
}

// queueRequests adds requests to the queues of their destinations.
func (c *Client) queueRequests(b *batch, requests []Request) error {
	calls := make([]call, len(requests))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	b.pending += len(requests)
	for i := range calls {
		calls[i].Request, calls[i].batch = requests[i], b
		d := c.destinations[requests[i].To]
		if d == nil {
			d = &destination{address: requests[i].To}
			c.destinations[d.address] = d
		}
		d.queue.push(&calls[i])
		c.enqueueDestination(d)
	}
	c.sendQueued()
	return nil
}

// enqueueDestination queues a destination if it may send (rules 1 and 2), or forgets it.
func (c *Client) enqueueDestination(d *destination) {
	limit := c.config.PerDestination
	if d.answered == 0 {
		limit = 1
	}
	switch {
	case d.inReadyQueue:
	case d.queue.len() > 0 && d.inFlight < limit:
		d.inReadyQueue = true
		c.readyQueue.push(d)
	case d.queue.len() == 0 && d.inFlight == 0:
		delete(c.destinations, d.address)
	}
}

// sendQueued sends while there are requests and room for them (rule 3).
func (c *Client) sendQueued() {
	for c.readyQueue.len() > 0 && len(c.free) > 0 {
		d := c.readyQueue.pop()
		d.inReadyQueue = false
		// A destination that became silent while it waited has nothing left.
		if d.queue.len() > 0 {
			if call := d.queue.pop(); !call.batch.abandoned {
				c.startCall(d, call)
			}
		}
		c.enqueueDestination(d)
	}
}

func (c *Client) startCall(d *destination, call *call) {
	i := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	d.inFlight++
	call.answeredBefore = d.answered
	c.slots[i] = slot{call: call, destination: d, firstSeq: c.sequence}
	c.sendAttempt(i)
}

// sendAttempt sends the request of a slot once more.
func (c *Client) sendAttempt(i uint16) {
	s := &c.slots[i]
	s.lastSeq = c.sequence
	c.sequence = (c.sequence + 1) & seqMask
	s.call.Attempts++
	var m MAD
	if err := s.call.Request.Encode(&m, uint64(s.lastSeq)<<slotBits|uint64(i), c.config.MKey); err != nil {
		c.finishCall(i, err)
		return
	}
	now := time.Now()
	if s.call.Attempts == 1 {
		s.call.Sent = now
	}
	c.stats.Sent++
	c.sentTo[s.call.Request.To]++
	if err := c.transport.Send(&m, s.call.Request.To, c.config.Timeout); errors.Is(err, ErrDropped) {
		c.stats.Dropped++
	} else if err != nil {
		c.finishCall(i, fmt.Errorf("send %v: %w", s.call.Request, err))
		return
	}
	if c.deadlines.len() == 0 {
		c.timer.Reset(c.config.Timeout)
	}
	c.deadlines.push(deadline{when: now.Add(c.config.Timeout), slot: i, seq: s.lastSeq})
}

// expireAttempts handles the attempts whose time is over as lost.
func (c *Client) expireAttempts() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now := time.Now()
	for c.deadlines.len() > 0 {
		d := c.deadlines.front()
		if s := &c.slots[d.slot]; s.call != nil && s.lastSeq == d.seq {
			if d.when.After(now) {
				c.timer.Reset(d.when.Sub(now))
				break
			}
			c.deadlines.pop()
			c.handleLoss(d.slot)
			continue
		}
		c.deadlines.pop()
	}
	c.sendQueued()
}

// handleLoss repeats a lost attempt, or gives up (rules 4 and 5).
func (c *Client) handleLoss(i uint16) {
	s := &c.slots[i]
	c.stats.Lost++
	if s.call.Attempts <= c.config.Retries {
		c.sendAttempt(i)
		return
	}
	c.stats.TimedOut++
	d, silent := s.destination, s.destination.answered == s.call.answeredBefore
	c.finishCall(i, fmt.Errorf("%v: %w in %d attempts of %v", s.call.Request, ErrTimeout, s.call.Attempts, c.config.Timeout))
	if !silent {
		return
	}
	for d.queue.len() > 0 {
		call := d.queue.pop()
		c.stats.Skipped++
		call.Err = fmt.Errorf("%v: %w", call.Request, ErrSilent)
		call.batch.deliverResult(call)
	}
	c.enqueueDestination(d)
}

// finishCall ends the request of a slot and frees the slot.
func (c *Client) finishCall(i uint16, err error) {
	s := &c.slots[i]
	call, d := s.call, s.destination
	*s = slot{}
	c.free = append(c.free, i)
	d.inFlight--
	call.Err, call.Received = err, time.Now()
	if !call.batch.abandoned {
		call.batch.deliverResult(call)
	}
	c.enqueueDestination(d)
}

// deliverResult passes a result to the calling goroutine.
func (b *batch) deliverResult(c *call) {
	b.mu.Lock()
	b.done = append(b.done, c)
	first := len(b.done) == 1
	b.mu.Unlock()
	if first {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// abandonBatch forgets a batch: queued requests are dropped when their turn comes, and those on their way free
// their slots.
func (c *Client) abandonBatch(b *batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b.abandoned = true
	for i := range c.slots {
		if s := &c.slots[i]; s.call != nil && s.call.batch == b {
			c.finishCall(uint16(i), context.Canceled)
		}
	}
	c.sendQueued()
}

// receiveLoop matches answers with requests until the transport is closed.
func (c *Client) receiveLoop() {
	defer close(c.receiverDone)
	var m MAD
	for {
		lost, err := c.transport.Receive(&m)
		if err != nil {
			c.failAll()
			return
		}
		c.mu.Lock()
		c.handleDatagram(&m, lost)
		c.sendQueued()
		c.mu.Unlock()
	}
}

func (c *Client) handleDatagram(m *MAD, lost bool) {
	id := uint32(m.TransactionID())
	i, seq := uint16(id&(maxSlots-1)), id>>slotBits
	if !lost && !m.IsResponse() {
		c.stats.Foreign++
		return
	}
	if int(i) >= len(c.slots) || c.slots[i].call == nil || (seq-c.slots[i].firstSeq)&seqMask > (c.slots[i].lastSeq-c.slots[i].firstSeq)&seqMask {
		if !lost {
			c.stats.Late++
		}
		return
	}
	s := &c.slots[i]
	if lost {
		if seq == s.lastSeq {
			c.handleLoss(i)
		}
		return
	}
	if m.Attribute() != s.call.Request.Attribute || m.AttributeModifier() != s.call.Request.Modifier {
		c.stats.Foreign++
		return
	}
	status := m.Status()
	if status.isBusy() {
		c.stats.Busy++
		return
	}
	c.stats.Answered++
	if s.call.Attempts > 1 {
		c.stats.Recovered++
		if !s.call.Request.Attribute.isPerformance() {
			c.stats.RecoveredSubnet++
		}
	}
	s.destination.answered++
	s.call.MAD = *m
	if status != 0 {
		c.stats.Refused++
		c.finishCall(i, &StatusError{Request: s.call.Request, Status: status})
		return
	}
	c.finishCall(i, nil)
}

// failAll ends everything on its way or queued, for good (rule 9).
func (c *Client) failAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.timer.Stop()
	c.readyQueue = fifo[*destination]{}
	for i := range c.slots {
		if c.slots[i].call != nil {
			c.finishCall(uint16(i), ErrClosed)
		}
	}
	for _, d := range c.destinations {
		for d.queue.len() > 0 {
			call := d.queue.pop()
			call.Err = ErrClosed
			call.batch.deliverResult(call)
		}
	}
}

// fifo is a queue that keeps the memory of its largest length.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }
func (f *fifo[T]) front() T { return f.items[f.head] }
func (f *fifo[T]) push(t T) {
	if f.head > 0 && f.head >= len(f.items)/2 && len(f.items) == cap(f.items) {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, t)
}

func (f *fifo[T]) pop() T {
	var zero T
	t := f.items[f.head]
	f.items[f.head] = zero
	f.head++
	if f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	}
	return t
}
