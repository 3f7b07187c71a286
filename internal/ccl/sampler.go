package ccl

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"
)

// SamplerConfig bounds what a sampler holds and hands out. Zero values stand for the defaults.
type SamplerConfig struct {
	Keep      time.Duration // how long records are held; 60 s
	PerSecond int           // completed operations of a rank in a communicator that are handed out; 4
	MaxOps    int           // completed operations that are held, at 72 bytes each; 524,288
	MaxEdges  int           // sums of transfers that are held, at some 300 bytes each; 65,536
}

// Limits of a sampler.
const (
	sampleWindow = 10 * time.Second // over which rates are measured
	settleTime   = 2 * time.Second  // in which the transfers of an operation are expected to end
	maxPublished = 1 << 16          // records that wait to be fetched
	maxContexts  = 1 << 16          // combinations of rank, operation, algorithm and protocol
	seenNumbers  = 1 << 12          // numbers of a kind of operation below the highest that are known to be read
	maxShift     = 40
)

// Sampler holds what the ranks of a node recorded in the last minute, and hands out a part that is the same in all ranks of
// a communicator, although they do not talk to each other. Its rules:
//
//  1. Handed out are completed operations whose number is a multiple of 2^s. s is the smallest with which a rank has at most
//     PerSecond of them in a second, by the rate of the last 10 s. Two ranks with another s have the multiples of the
//     greater power in common.
//  2. Open operations, beats and communicators are always handed out.
//  3. Transfers are added up over channels, and handed out with their operation.
//  4. All records of an operation can be found by its name while they are held.
//  5. An operation that was completed twice is taken once; the first stands.
//  6. An operation of a known process is handed out when its other operations of that time are expected to be read, with the
//     time that the process was in none before it.
//
// A sampler is not for concurrent use. Times are those of the caller, which must not go back.
type Sampler struct {
	config    SamplerConfig
	contexts  map[opContext]uint32
	named     []opContext // by number
	ops       ring[packedOp]
	edges     map[edgeKey]*edgeSum
	order     ring[edgeKey] // of edges, by their first part
	settled   int           // of order, from its beginning, that were judged
	awaiting  ring[awaitingOp]
	processes processes
	published ring[publishedRecord]
	next      uint64 // cursor of the next record that is published
	rates     map[memberKey]*memberRate
	comms     map[string]*heldComm
	seen      map[seenKey]*seenWindow
	stats     SamplerStats
	now       int64
}

// SamplerStats says what a sampler holds and what it could not.
type SamplerStats struct {
	Ops, Edges int    // that are held
	Published  uint64 // records that were handed out or wait to be
	Duplicates uint64 // operations that were completed twice
	Evicted    uint64 // records that were held for a shorter time than Keep
	Late       uint64 // parts of transfers that came after the transfer was handed out
}

// opContext is what many operations have in common.
type opContext struct {
	From
	Op, Algo, Proto, Timing string
}

// packedOp is a completed operation in 72 bytes and without pointers. other is the peer or the root.
type packedOp struct {
	seq, bytes       uint64
	start, end, exec int64
	at, clock        int64
	context          uint32
	other            int32
	has              packedFields
}

// packedFields says which fields an operation has.
type packedFields uint8

const (
	hasBytes packedFields = 1 << iota
	hasStart
	hasEnd
	hasExec
	hasClock
	hasPeer
	hasRoot
)

// memberKey is a rank of a communicator.
type memberKey struct {
	comm string
	rank int
}

// seenKey is a kind of operation of a rank.
type seenKey struct {
	memberKey
	op string
}

// edgeKey names a sum of transfers.
type edgeKey struct {
	memberKey
	seq       uint64
	op        string
	peer      int
	direction Direction
}

// edgeSum is the sum of an operation's transfers between two ranks.
type edgeSum struct {
	edge      Edge
	at        int64 // of the first part
	published bool
}

// publishedRecord is a record that is handed out, with its cursor and time.
type publishedRecord struct {
	cursor uint64
	at     int64
	rec    Record
}

// heldComm is a communicator with all ranks of the node.
type heldComm struct {
	rec       *Comm
	published bool  // and still among the records that can be fetched
	used      int64 // when a record of it came last
}

// memberRate is how many operations a rank has in a communicator, and which of them are handed out.
type memberRate struct {
	window           int64 // number of the window
	since            int64 // ns: when its first operation was read
	total, published int   // in the window
	shift            int
}

// seenWindow knows which numbers were completed, from the highest down.
type seenWindow struct {
	highest uint64
	bits    [seenNumbers / 64]uint64
}

// add notes a number. It is false if the number was noted before, or is too far below the highest one to be known.
func (w *seenWindow) add(seq uint64, first bool) bool {
	switch {
	case first || seq >= w.highest+seenNumbers:
		w.bits, w.highest = [seenNumbers / 64]uint64{}, seq
	case seq > w.highest:
		for n := w.highest + 1; n <= seq; n++ {
			w.bits[n/64%(seenNumbers/64)] &^= 1 << (n % 64)
		}
		w.highest = seq
	case w.highest-seq >= seenNumbers:
		return false
	}
	word, bit := &w.bits[seq/64%(seenNumbers/64)], uint64(1)<<(seq%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// ring is a queue of any length, in pieces that are freed when they are empty.
type ring[T any] struct {
	chunks [][]T
	first  int // of the first piece
	n      int
}

const ringChunk = 1 << 10

func (r *ring[T]) at(i int) *T {
	i += r.first
	return &r.chunks[i/ringChunk][i%ringChunk]
}

func (r *ring[T]) push(v T) {
	if r.first+r.n == len(r.chunks)*ringChunk {
		r.chunks = append(r.chunks, make([]T, ringChunk))
	}
	r.n++
	*r.at(r.n - 1) = v
}

// pop removes the oldest item.
func (r *ring[T]) pop() {
	var none T
	*r.at(0) = none
	r.first++
	r.n--
	if r.first == ringChunk {
		r.chunks = append(r.chunks[:0], r.chunks[1:]...)
		r.first = 0
	}
}

// NewSampler returns an empty sampler. now is the beginning of its cursors, so that a sampler that is started later
// continues them.
func NewSampler(c SamplerConfig, now time.Time) *Sampler {
	def := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	if c.Keep == 0 {
		c.Keep = time.Minute
	}
	def(&c.PerSecond, 4)
	def(&c.MaxOps, 1<<19)
	def(&c.MaxEdges, 1<<16)
	return &Sampler{config: c, contexts: map[opContext]uint32{}, edges: map[edgeKey]*edgeSum{}, next: uint64(now.UnixNano()), rates: map[memberKey]*memberRate{},
		comms: map[string]*heldComm{}, seen: map[seenKey]*seenWindow{}, now: now.UnixNano()}
}

// Stats returns what the sampler holds.
func (s *Sampler) Stats() SamplerStats {
	st := s.stats
	st.Ops, st.Edges = s.ops.n, len(s.edges)
	return st
}

// Add takes a record that was read at a time. The record must be valid (Check) and must not be changed afterwards. Add
// returns false for an operation that was completed before.
func (s *Sampler) Add(now time.Time, rec Record) (taken bool) {
	s.Advance(now)
	switch r := rec.(type) {
	case *Comm:
		s.addComm(r)
	case *Beat:
		s.useComm(r.Comm)
		s.publish(r)
	case *Edge:
		s.useComm(r.Comm)
		s.addEdge(r)
	case *Op:
		s.useComm(r.Comm)
		if r.State == Completed {
			return s.addOp(r)
		}
		s.publish(r)
	}
	return true
}

// Advance forgets what is older than Keep, and hands out transfers that have settled.
func (s *Sampler) Advance(now time.Time) {
	s.now = max(s.now, now.UnixNano())
	oldest := s.now - int64(s.config.Keep)
	for s.ops.n > 0 && s.ops.at(0).at < oldest {
		s.ops.pop()
	}
	for ; s.settled < s.order.n; s.settled++ {
		e := s.edges[*s.order.at(s.settled)]
		if e.at > s.now-int64(settleTime) {
			break
		}
		s.settle(e)
	}
	for s.awaiting.n > 0 && s.awaiting.at(0).at <= s.now-int64(settleTime) {
		o := s.awaiting.at(0).op
		o.GapNS = s.processes.gap(o.Process, o.StartNS.NS)
		s.publish(o)
		s.awaiting.pop()
	}
	for s.order.n > 0 && s.edges[*s.order.at(0)].at < oldest {
		s.popEdge()
	}
	for s.published.n > 0 && s.published.at(0).at < oldest {
		s.unpublish()
	}
}

// unpublish forgets the oldest record that is handed out.
func (s *Sampler) unpublish() {
	if c, ok := s.published.at(0).rec.(*Comm); ok && s.comms[c.Comm] != nil && s.comms[c.Comm].rec == c {
		s.comms[c.Comm].published = false
	}
	s.published.pop()
}

// addComm takes a communicator, or another rank of it.
func (s *Sampler) addComm(c *Comm) {
	held := s.comms[c.Comm]
	switch {
	case held == nil && len(s.comms) >= MaxComms && !s.dropIdleComm():
		s.publish(c)
		return
	case held == nil:
		held = &heldComm{rec: c}
		s.comms[c.Comm] = held
	case held.rec.NRanks == c.NRanks:
		merged := *held.rec
		merged.Ranks = slices.Clone(merged.Ranks)
		for _, m := range c.Ranks {
			if !slices.ContainsFunc(merged.Ranks, func(have Member) bool { return have.Rank == m.Rank }) {
				merged.Ranks = append(merged.Ranks, m)
			}
		}
		if merged.Account != c.Account {
			merged.Account = "" // of several
		}
		held.rec = &merged
	}
	held.published = false
	s.useComm(c.Comm)
}

// useComm notes that a communicator is in use, and hands it out if that was too long ago to be fetched.
func (s *Sampler) useComm(comm string) {
	held := s.comms[comm]
	if held == nil {
		return
	}
	held.used = s.now
	if !held.published {
		held.published = true
		s.publish(held.rec)
	}
}

// dropIdleComm forgets the communicator that was used least recently, if that is longer ago than Keep.
func (s *Sampler) dropIdleComm() bool {
	oldest, at := "", s.now-int64(s.config.Keep)
	for name, c := range s.comms {
		if c.used < at {
			oldest, at = name, c.used
		}
	}
	delete(s.comms, oldest)
	return oldest != ""
}

// publish queues a record to be handed out.
func (s *Sampler) publish(rec Record) {
	if s.published.n == maxPublished {
		s.unpublish()
		s.stats.Evicted++
	}
	s.next++
	s.stats.Published++
	s.published.push(publishedRecord{s.next, s.now, rec})
}

// budget returns how many operations of a rank in a communicator are handed out in a window.
func (s *Sampler) budget() int { return s.config.PerSecond * int(sampleWindow/time.Second) }

// powerFor returns the power with which no more than the budget are handed out of so many operations.
func (s *Sampler) powerFor(operations int) int {
	return min(bits.Len(uint(max(0, operations-1)/s.budget())), maxShift)
}

// rate returns the rate of a rank in a communicator, in the current window.
func (s *Sampler) rate(key memberKey) *memberRate {
	r := s.rates[key]
	window := s.now / int64(sampleWindow)
	if r == nil {
		if len(s.rates) >= 4*MaxComms {
			s.dropIdleRates(window)
		}
		r = &memberRate{window: window, since: s.now}
		s.rates[key] = r
	}
	if r.window != window {
		// The power rises at once and falls by one, and only when the rate is far below, so that it does not flap: ranks
		// that measure a little more and a little less stay within one power.
		needed, shift := s.powerFor(r.total), r.shift
		if needed < shift-1 || r.total*4 < s.budget() {
			shift--
		}
		*r = memberRate{window: window, since: s.now, shift: max(needed, shift, 0)}
	}
	return r
}

// dropIdleRates forgets ranks without operations in the last two windows, or all.
func (s *Sampler) dropIdleRates(window int64) {
	maps.DeleteFunc(s.rates, func(_ memberKey, r *memberRate) bool { return r.window < window-1 })
	if len(s.rates) >= 4*MaxComms {
		clear(s.rates)
	}
}

// addOp takes a completed operation. It returns false if it was completed before.
func (s *Sampler) addOp(o *Op) bool {
	key := memberKey{o.Comm, o.Rank}
	if !s.firstTime(seenKey{key, o.Op}, o.Seq) {
		s.stats.Duplicates++
		return false
	}
	if s.ops.n == s.config.MaxOps {
		s.ops.pop()
		s.stats.Evicted++
	}
	s.ops.push(s.pack(o))
	begun, ended := o.Span()
	if ended.Known && o.Process != 0 {
		s.processes.add(o.Process, begun.NS, ended.NS)
	}
	r := s.rate(key)
	r.total++
	if o.Seq&(1<<r.shift-1) != 0 {
		return true
	}
	if o.Process != 0 && o.StartNS.Known {
		s.awaiting.push(awaitingOp{o, s.now})
	} else {
		s.publish(o)
	}
	// A window that began with too low a power ends with the one of its rate so far.
	if r.published++; r.published >= s.budget() {
		expected := float64(r.total) * float64(sampleWindow) / float64(max(s.now-r.since, int64(time.Second)))
		r.shift = max(r.shift, s.powerFor(int(expected)))
	}
	return true
}

// firstTime says whether an operation was not completed before.
func (s *Sampler) firstTime(key seenKey, seq uint64) bool {
	w := s.seen[key]
	first := w == nil
	if first {
		if len(s.seen) >= 8*MaxComms {
			clear(s.seen)
		}
		w = &seenWindow{}
		s.seen[key] = w
	}
	return w.add(seq, first)
}

// pack stores an operation without pointers.
func (s *Sampler) pack(o *Op) packedOp {
	p := packedOp{seq: o.Seq, at: s.now, start: o.StartNS.NS, end: o.EndNS.NS, exec: o.ExecNS.NS, clock: o.ClockError.NS, context: s.context(o)}
	for _, f := range []struct {
		field packedFields
		known bool
	}{{hasBytes, o.Bytes != nil}, {hasStart, o.StartNS.Known}, {hasEnd, o.EndNS.Known}, {hasExec, o.ExecNS.Known}, {hasClock, o.ClockError.Known}, {hasPeer, o.Peer != nil}, {hasRoot, o.Peer == nil && o.Root != nil}} {
		if f.known {
			p.has |= f.field
		}
	}
	if o.Bytes != nil {
		p.bytes = *o.Bytes
	}
	if other := cmp.Or(o.Peer, o.Root); other != nil {
		p.other = int32(*other)
	}
	return p
}

// context returns the number of what an operation has in common with others.
func (s *Sampler) context(o *Op) uint32 {
	c := opContext{o.From, o.Op, o.Algo, o.Proto, o.Timing}
	n, known := s.contexts[c]
	if !known {
		if len(s.named) == maxContexts {
			s.dropContexts()
		}
		n = uint32(len(s.named))
		s.contexts[c], s.named = n, append(s.named, c)
	}
	return n
}

// dropContexts forgets contexts of which no operation is held; if all are in use, the older half of the operations goes.
func (s *Sampler) dropContexts() {
	for used := 2 * maxContexts; used > maxContexts/2; {
		if used <= maxContexts {
			for range (s.ops.n + 1) / 2 {
				s.ops.pop()
				s.stats.Evicted++
			}
		}
		kept := map[uint32]bool{}
		for i := range s.ops.n {
			kept[s.ops.at(i).context] = true
		}
		used = len(kept)
	}
	old := s.named
	s.named = nil
	clear(s.contexts)
	for i := range s.ops.n {
		p := s.ops.at(i)
		c := old[p.context]
		n, known := s.contexts[c]
		if !known {
			n = uint32(len(s.named))
			s.contexts[c], s.named = n, append(s.named, c)
		}
		p.context = n
	}
}

// unpack returns the operation that was packed.
func (s *Sampler) unpack(p *packedOp) *Op {
	c := &s.named[p.context]
	has := func(f packedFields) bool { return p.has&f != 0 }
	o := &Op{From: c.From, Seq: p.seq, Op: c.Op, Algo: c.Algo, Proto: c.Proto, Timing: c.Timing, State: Completed,
		StartNS: Nanos{p.start, has(hasStart)}, EndNS: Nanos{p.end, has(hasEnd)}, ExecNS: Nanos{p.exec, has(hasExec)}, ClockError: Nanos{p.clock, has(hasClock)}}
	if has(hasBytes) {
		o.Bytes = new(p.bytes)
	}
	if has(hasPeer) {
		o.Peer = new(int(p.other))
	}
	if has(hasRoot) {
		o.Root = new(int(p.other))
	}
	return o
}

// addEdge adds a transfer to the sum of its operation, peer and direction. An open transfer is handed out at once.
func (s *Sampler) addEdge(e *Edge) {
	if e.State == Open {
		s.publish(e)
		return
	}
	key := edgeKey{memberKey{e.Comm, e.Rank}, e.Seq, e.Op, e.Peer, e.Direction}
	sum := s.edges[key]
	if sum == nil {
		if s.order.n == s.config.MaxEdges {
			s.popEdge()
			s.stats.Evicted++
		}
		sum = &edgeSum{edge: *e, at: s.now}
		sum.edge.Channel = nil
		if e.Bytes != nil {
			sum.edge.Bytes = new(*e.Bytes)
		}
		s.edges[key] = sum
		s.order.push(key)
		return
	}
	if sum.published {
		s.stats.Late++
	}
	sum.add(e)
}

// add adds a transfer. A value that one of the transfers does not have is unknown: the sum would be too small.
func (m *edgeSum) add(e *Edge) {
	sum := &m.edge
	for _, x := range []struct{ to, from *Nanos }{{&sum.GPUWait, &e.GPUWait}, {&sum.PeerWait, &e.PeerWait}, {&sum.Wire, &e.Wire}, {&sum.Flush, &e.Flush}} {
		if *x.to = (Nanos{x.to.NS + x.from.NS, x.to.Known && x.from.Known}); !x.to.Known {
			*x.to = Nanos{}
		}
	}
	if sum.Bytes != nil && e.Bytes != nil {
		*sum.Bytes += *e.Bytes
	} else {
		sum.Bytes = nil
	}
	whole := span{sum.StartNS, sum.EndNS}
	whole.begin(e.StartNS)
	whole.end(e.EndNS)
	sum.StartNS, sum.EndNS = whole.start, whole.stop
	if e.ClockError.Known && sum.ClockError.Known {
		sum.ClockError.NS = max(sum.ClockError.NS, e.ClockError.NS)
	} else {
		sum.ClockError = Nanos{}
	}
}

// settle hands a sum out if its operation is one that is handed out.
func (s *Sampler) settle(e *edgeSum) {
	if e.edge.Seq&(1<<s.rate(memberKey{e.edge.Comm, e.edge.Rank}).shift-1) != 0 {
		return
	}
	e.published = true
	published := e.edge
	if published.Bytes != nil {
		published.Bytes = new(*published.Bytes)
	}
	s.publish(&published)
}

// popEdge forgets the oldest sum.
func (s *Sampler) popEdge() {
	delete(s.edges, *s.order.at(0))
	s.order.pop()
	s.settled = max(0, s.settled-1)
}

// After returns the records that were handed out after a cursor, at most limit of them, and the cursor of the last one. 0
// begins with the oldest. missed is true if records after the cursor are no longer held, or the cursor is of no record.
func (s *Sampler) After(cursor uint64, limit int) (recs []Record, next uint64, missed bool) {
	oldest := s.next - uint64(s.published.n) + 1
	if cursor > s.next || cursor+1 < oldest {
		missed = cursor != 0
		cursor = oldest - 1
	}
	begin := int(cursor + 1 - oldest)
	for i := begin; i < s.published.n && len(recs) < limit; i++ {
		recs = append(recs, s.published.at(i).rec)
	}
	return recs, cursor + uint64(len(recs)), missed
}

// Find returns all that is held of a completed operation: what each rank of the node recorded, and the sums of its
// transfers. Transfers whose operation is unknown are those of all kinds with this number.
func (s *Sampler) Find(comm, op string, seq uint64) []Record {
	var out []Record
	for i := range s.ops.n {
		if p := s.ops.at(i); p.seq == seq {
			if c := &s.named[p.context]; c.Comm == comm && c.Op == op {
				out = append(out, s.unpack(p))
			}
		}
	}
	var edges []*Edge
	for i := range s.order.n {
		if key := s.order.at(i); key.seq == seq && key.comm == comm && (key.op == op || key.op == "") {
			e := s.edges[*key].edge
			if e.Bytes != nil {
				e.Bytes = new(*e.Bytes)
			}
			edges = append(edges, &e)
		}
	}
	slices.SortStableFunc(edges, func(a, b *Edge) int { return a.Rank - b.Rank })
	for _, e := range edges {
		out = append(out, e)
	}
	return out
}
