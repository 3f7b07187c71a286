// Package collectivejob is a small job whose ranks exchange data over TCP as a collective library does, so that the reading
// and the diagnosis of collective operations can be tested on real packets. It moves octets and computes nothing.
//
//  1. A rank launches an operation when its computing is over. Until then it grants no credits for the operation, so that
//     its senders wait for it, as NCCL's do for a receiver whose kernel has not started.
//  2. In a ring, a rank sends to the next and receives from the one before. Of the 2(n-1) steps of an all-reduce, a chunk of
//     a step can be sent when the one of the step before was received. In an all-to-all every rank sends to every other.
//  3. A receiver acknowledges a chunk when it has arrived, and grants a credit when it has been consumed. Each chunk of a
//     sender waits for its own data (gpu), then for a credit (peer), then for its acknowledgement (wire). A receiver waits for
//     the chunks that it granted (wire). A transfer has the sums over its chunks, which overlap, as the steps of NCCL's do.
//  4. A rank reports operations and transfers when they are over, and every second that it lives and what it is held by.
package collectivejob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// Names of operations, as NCCL has them.
const (
	AllReduce = "AllReduce"
	AllToAll  = "AllToAll"
)

// Rank is a process of a job.
type Rank struct {
	Host    string         `json:"host"`
	NIC     string         `json:"nic"`     // identifier of internal/fabric
	Address netip.AddrPort `json:"address"` // at which it receives
}

// Options configure one rank.
type Options struct {
	Job    string `json:"job"`
	Comm   string `json:"comm"`
	Number int    `json:"rank"`
	Ranks  []Rank `json:"ranks"`
	Op     string `json:"op"`
	// Bytes is what each rank contributes to an operation.
	Bytes int `json:"bytes"`
	// Chunk is the size of the pieces in which data are sent, and Slots how many of them a receiver has room for. 0: as in NCCL's
	// Simple protocol, 128 KiB and 8.
	Chunk int `json:"chunk"`
	Slots int `json:"slots"`
	// Compute is the time between two operations, and Late what this rank needs besides from the operation LateFrom on.
	Compute  time.Duration `json:"compute_ns"`
	Late     time.Duration `json:"late_ns"`
	LateFrom int           `json:"late_from"`
	// LateBesides returns what this rank needs besides all of that before the next operation. Nil is nothing.
	LateBesides func() time.Duration `json:"-"`
	// Operations ends the job after so many. 0: it goes on.
	Operations int `json:"operations"`
	// StopBefore makes the rank live on without launching the operation of this number. 0: it never does.
	StopBefore int `json:"stop_before"`
	// Patience bounds the time in which all ranks have to be connected.
	Patience time.Duration `json:"patience_ns"`
}

// Validate returns an error that names the first field that cannot be used.
func (o *Options) Validate() error {
	switch n := len(o.Ranks); {
	case o.Comm == "":
		return errors.New("comm: the identifier of a communicator is required")
	case n < 2 || n > ccl.MaxRanks:
		return fmt.Errorf("ranks: 2 to %d are expected, and not %d", ccl.MaxRanks, n)
	case o.Number < 0 || o.Number >= n:
		return fmt.Errorf("rank: 0 to %d is expected, and not %d", n-1, o.Number)
	case o.Op != AllReduce && o.Op != AllToAll:
		return fmt.Errorf("op: %s or %s is expected, and not %q", AllReduce, AllToAll, o.Op)
	case o.Bytes < n:
		return fmt.Errorf("bytes: at least one for each of %d ranks is expected, and not %d", n, o.Bytes)
	case o.Chunk < 0 || o.Chunk > maxChunk:
		return fmt.Errorf("chunk: 0 to %d is expected, and not %d", maxChunk, o.Chunk)
	case o.Slots < 0 || o.Slots > maxSlots:
		return fmt.Errorf("slots: 0 to %d is expected, and not %d", maxSlots, o.Slots)
	case o.Compute < 0 || o.Late < 0 || o.LateFrom < 0:
		return errors.New("compute_ns, late_ns and late_from: not less than 0 is expected")
	case o.Operations < 0 || o.StopBefore < 0:
		return errors.New("operations and stop_before: not less than 0 is expected")
	case o.Patience <= 0:
		return errors.New("patience_ns: more than 0 is expected")
	}
	return nil
}

// The defaults of Chunk and Slots, and their limits.
const (
	chunkBytes = 128 << 10
	slots      = 8
	maxChunk   = 16 << 20
	maxSlots   = 1024
)

// chunks returns how many chunks a peer is sent in an operation, how many of them can be sent at once, and their size.
func (o *Options) chunks() (all, first, size int) {
	n := len(o.Ranks)
	part := o.Bytes / n
	chunk := cmp.Or(o.Chunk, chunkBytes)
	first = (part + chunk - 1) / chunk
	size = (part + first - 1) / first
	if o.Op == AllToAll {
		return first, first, size
	}
	return 2 * (n - 1) * first, first, size
}

// peers returns the ranks that this one sends to and those it receives from.
func (o *Options) peers() (to, from []int) {
	n := len(o.Ranks)
	if o.Op == AllReduce {
		return []int{(o.Number + 1) % n}, []int{(o.Number + n - 1) % n}
	}
	for i := 1; i < n; i++ {
		to, from = append(to, (o.Number+i)%n), append(from, (o.Number+n-i)%n)
	}
	return to, from
}

// algorithm returns the operation's algorithm as NCCL names it.
func (o *Options) algorithm() string {
	if o.Op == AllReduce {
		return "RING"
	}
	return ""
}

// Communicator returns the record of the job's communicator.
func (o *Options) Communicator() *ccl.Comm {
	c := &ccl.Comm{Job: o.Job, Comm: o.Comm, NRanks: len(o.Ranks)}
	for i, r := range o.Ranks {
		c.Ranks = append(c.Ranks, ccl.Member{Rank: i, Host: r.Host, NIC: r.NIC})
	}
	return c
}

// reportEvery is the time between two beats.
const reportEvery = time.Second

// worker is a rank at work.
type worker struct {
	o      *Options
	from   ccl.From
	report func(ccl.Record)

	sends    []*sender
	receives []*receiver

	mu        sync.Mutex // guards what follows
	launched  uint64
	completed uint64
	current   *ccl.Op // nil between operations
}

// Run runs a rank until the job's operations are over or the context ends, which is no error. It hands each record to report,
// one at a time. Errors are those of connections: another rank went away, or did not come in time.
func Run(ctx context.Context, o Options, report func(ccl.Record)) error {
	if err := o.Validate(); err != nil {
		return err
	}
	var reporting sync.Mutex
	w := &worker{o: &o, from: ccl.From{Job: o.Job, Comm: o.Comm, Rank: o.Number, NRanks: len(o.Ranks), Host: o.Ranks[o.Number].Host}}
	w.report = func(r ccl.Record) {
		reporting.Lock()
		defer reporting.Unlock()
		report(r)
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.connect(running); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer w.close()
	defer cancel()
	wg.Go(func() { w.beat(running) })
	for seq := 0; o.Operations == 0 || seq < o.Operations; seq++ {
		computing := o.Compute
		if seq >= o.LateFrom {
			computing += o.Late
		}
		if o.LateBesides != nil {
			computing += o.LateBesides()
		}
		if err := pause(running, computing); err != nil {
			return nil
		}
		if o.StopBefore > 0 && seq == o.StopBefore {
			<-running.Done()
			return nil
		}
		if err := w.runOperation(running, uint64(seq)); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("rank %d, operation %d: %w", o.Number, seq, err)
		}
	}
	return nil
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// runOperation runs one operation.
func (w *worker) runOperation(ctx context.Context, seq uint64) error {
	began := time.Now()
	size := uint64(w.o.Bytes)
	op := &ccl.Op{From: w.from, Seq: seq, Op: w.o.Op, Algo: w.o.algorithm(), Proto: "SIMPLE", Bytes: &size, StartNS: ccl.KnownNanos(began.UnixNano()), Timing: "collective_cpu", State: ccl.Started}
	w.mu.Lock()
	w.launched, w.current = w.launched+1, op
	w.mu.Unlock()
	all, first, chunk := w.o.chunks()
	arrived := func() {}
	if w.o.Op == AllReduce { // what arrived in a step is sent in the next one
		arrived = w.sends[0].addReady
	}
	parts := len(w.sends) + len(w.receives)
	errs := make(chan error, parts)
	operation, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, s := range w.sends {
		s.start(seq, all, first, chunk)
		go func() { errs <- s.run(operation) }()
	}
	for _, r := range w.receives {
		go func() { errs <- r.run(operation, seq, all, chunk, arrived) }()
	}
	var failed error
	for range parts {
		if err := <-errs; err != nil && failed == nil {
			failed = err
			w.interrupt()
			cancel()
		}
	}
	if failed != nil {
		return failed
	}
	ended := time.Now()
	done := *op
	done.State, done.EndNS, done.ExecNS = ccl.Completed, ccl.KnownNanos(began.UnixNano()+int64(ended.Sub(began))), ccl.KnownNanos(int64(ended.Sub(began)))
	w.mu.Lock()
	w.completed, w.current = w.completed+1, nil
	w.mu.Unlock()
	w.reportTransfers(seq)
	w.report(&done)
	return nil
}

// reportTransfers reports the transfers of an operation, as far as they have begun.
func (w *worker) reportTransfers(seq uint64) {
	add := func(e *ccl.Edge) {
		if e != nil {
			w.report(e)
		}
	}
	for _, s := range w.sends {
		add(s.edge(w.from, w.o.Op, seq, s.peer, ccl.Send))
	}
	for _, r := range w.receives {
		add(r.edge(w.from, w.o.Op, seq, r.peer, ccl.Recv))
	}
}

// beat reports every second that the rank lives, and the operation that is not over.
func (w *worker) beat(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		now := time.Now()
		alive := true
		w.mu.Lock()
		b := &ccl.Beat{From: w.from, AtNS: ccl.KnownNanos(now.UnixNano()), Alive: &alive, Launched: map[string]uint64{w.o.Op: w.launched}, Completed: map[string]uint64{w.o.Op: w.completed}}
		current := w.current
		w.mu.Unlock()
		w.report(b)
		if current != nil && now.UnixNano()-current.StartNS.NS >= int64(reportEvery) {
			open := *current
			w.report(&open)
			w.reportTransfers(open.Seq)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
