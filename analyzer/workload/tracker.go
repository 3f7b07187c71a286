package workload

import (
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// The parameters of all diagnoses. docs/collectives-diagnosis.md has the reasons.
const (
	normalOps    = 32                // operations that make a normal
	historySize  = 64 + recent       // operations of a communicator that are remembered
	rankHistory  = 32 + recent       // the same for one rank
	rankNormal   = 12                // values that make a normal of one rank
	counting     = 5                 // of the recent operations have to count
	spread       = 8                 // median absolute deviations
	floorGPU     = int64(20_000)     // ns: what always may vary
	floorCPU     = int64(200_000)    // ns, where the processor measured
	hangAfter    = 5 * time.Second   // without former stalls
	hangFailure  = 2 * time.Second   // on a connection with a hard failure
	hangAtMost   = 600 * time.Second // whatever the stalls were
	stallFactor  = 3                 // times the longest finished stall
	stallMemory  = time.Hour         // in which stalls are remembered
	keptSpans    = 96                // operations of a process that are remembered
	droppedSpans = 4                 // the oldest of them, which are forgotten together
	keptOps      = 64                // operations of a communicator that are open or were finished last
	maxComms     = 4096              // communicators of all jobs
	maxCells     = 1 << 18           // of all delay matrices
	fabricWithin = 10 * time.Second  // between the beginning of a diagnosis and a verdict on its ways
	leastRanks   = 0.9               // share of ranks without which an operation is not judged
	contrary     = 0.1               // share of clean cells that a pattern may have
	lateShare    = 8                 // a transfer counts if it is longer by this part of the waiting
	judgedOps    = 128               // operations among which those that count are sought
	maxPlaces    = 8                 // operations of one kind in a step of a job
	maxHeld      = 512               // operations that count without a diagnosis before they are the new normal
	maxClosed    = 64                // diagnoses that are over and still reported
)

// Options of a tracker. The zero value is right for records that still arrive.
type Options struct {
	// PlaceOf returns where a rank of a communicator of all ranks of a job runs, by the scheduler. job is what the records say of it,
	// and hosts are the nodes of other ranks, or the one that the record came from. Nil: that is unknown. It serves records that do
	// not say it themselves.
	PlaceOf func(job string, hosts []string, at time.Time, ranks, rank int) (Place, bool)
	Until   time.Time // records are known to be complete up to here; zero: only beats say so
	// JobOf returns the job that the scheduler placed on all of some nodes at a time; empty: none. Without it no job is named, since
	// what a record says of its job is written by the users of the nodes.
	JobOf  func(hosts []string, at time.Time) string
	Matrix bool // the report has the delay matrix
	// Judged is called for each operation that was compared with what is normal. It may be nil.
	Judged func(Judged)
}

// Place is where a rank runs.
type Place struct {
	Host string
	NIC  string // empty: unknown
	GPU  *int   // number within the host; nil: unknown
}

// process is a rank by what it is in all of its communicators.
type process struct {
	key   string
	place Place
	spans []span
	gaps  map[[2]*series]*history
	execs map[*series]*history
}

// span is an operation of one process.
type span struct {
	s            *series
	seq          uint64
	start, end   int64
	gap          int64 // since its last operation; below zero: unknown
	after        *series
	rank         int
	peer         int
	gapOver      int64 // beyond what is normal
	execOver     int64
	gapOK, exeOK bool
}

// shape is what operations have to have in common to be compared.
type shape struct {
	op, algo, proto string
	log2            int
	peer            int // of Send and Recv; otherwise -1
	from            int // root of rooted operations, and sender where both sides of an operation are known; otherwise -1
}

// series is the operations of one shape in one communicator.
type series struct {
	comm      *comm
	shape     shape
	transfer  history       // ns
	wait      history       // ns
	period    history       // ns from one start to the next
	lastStart map[int]int64 // by rank, of the operation lastSeq
	lastSeq   uint64
	seqs      []uint64  // of the operations that were judged last
	results   []*result // those of them that count
	held      int       // operations that were not added to what is normal, as they count
	judged    bool
}

// result is what one finished operation says.
type result struct {
	s            *series
	seq          uint64
	transfer     int64
	wait         int64
	transferOver int64 // beyond what is normal; only where it counts
	waitOver     int64
	normal       int64
	late         []int
	end          int64 // when the last rank left, by the clocks of hosts
	cause        cause
}

// opKey is an operation within its communicator.
type opKey struct {
	op  string
	seq uint64
}

// operation is one that not all ranks have reported.
type operation struct {
	s       *series
	key     opKey
	bytes   uint64
	exec    []int64 // ns by rank; -1: unknown
	start   []int64
	state   []byte // by rank
	done    int
	timing  string
	mixed   bool
	root    int            // -1: unknown
	clock   int64          // ns: largest bound of the clocks
	noClock bool           // the clock of a rank has no bound
	bytesR  map[int]uint64 // of ranks whose size is another one
	last    int64
}

// States of a rank in an operation.
const (
	unseen byte = iota
	launched
	finished
)

// rankBeat is the latest beat of a rank of a communicator.
type rankBeat struct {
	first, at           int64
	changed             int64 // when launched changed last
	launched, completed map[string]uint64
}

type comm struct {
	job      *job
	id, name string
	n        int
	members  []*process
	seen     []bool // ranks that records speak of
	series   map[shape]*series
	pending  map[opKey]*operation
	order    []opKey
	results  map[opKey]*result
	recent   []opKey
	p2p      map[p2pKey]*openP2P
	pairs    map[connKey]*connection
	beats    map[int]*rankBeat
	edges    map[edgeKey]*ccl.Edge
	stalls   [2]int64 // ns: the longest of this and the former half of an hour
	stallAt  int64
	finished bool // an operation was completed
	account  writers
	unplaced uint64       // number after that of the cycle in which the scheduler did not know the ranks
	placed   map[int]bool // ranks whose place is that of the scheduler and of no record
	first    int64
	ops      uint64 // that were completed
	cycle    uint64 // in which a record of it came last
	// hostNames are the nodes of the ranks that were known when hostsOf of them were.
	hostNames []string
	hostsOf   int
	observe   func(*comm, *result)
}

type p2pKey struct {
	rank int
	op   string
	seq  uint64
}

type openP2P struct {
	start int64
	peer  int
}

type edgeKey struct {
	rank, peer int
	dir        ccl.Direction
	channel    int
	op         string
}

type job struct {
	name   string
	comms  map[string]*comm
	order  []*comm
	procs  map[string]*process
	cells  map[cellKey]*cellSeries
	open   map[string]*standing
	closed []Diagnosis
	frozen bool
}

// Tracker finds out what a job waits for, from records in the order in which they are read. It is not safe for concurrent use.
type Tracker struct {
	opt     Options
	jobs    map[string]*job
	order   []*job
	read    uint64
	double  uint64
	dropped uint64
	ops     uint64
	comms   int
	cells   int
	now     int64
	cycle   uint64 // number of calls of Cycle
	// outliers are operations that took one rank much longer than normal, since TakeOutliers was called.
	outliers []Outlier
}

// New returns a tracker without records.
func New(o Options) *Tracker { return &Tracker{opt: o, jobs: map[string]*job{}} }

// writers are the accounts that wrote records.
type writers struct {
	name  string // of all of them
	mixed bool   // a record has another account, or none
}

// add notes the account of a record; empty: unknown.
func (w *writers) add(account string) {
	w.mixed = w.mixed || account == "" || w.name != "" && w.name != account
	w.name = account
}

// Add takes one record. What is beyond the limits is dropped, and the report counts it.
func (t *Tracker) Add(rec ccl.Record) {
	t.read++
	switch r := rec.(type) {
	case *ccl.Comm:
		if c := t.comm(r.Job, r.Comm, r.NRanks); c != nil {
			c.account.add(r.Account)
			t.addMembers(c, r)
		}
	case *ccl.Op:
		if c := t.comm(r.Job, r.Comm, r.NRanks); c != nil {
			c.account.add(r.Account)
			t.addOp(c, r)
		}
	case *ccl.Edge:
		if c := t.comm(r.Job, r.Comm, r.NRanks); c != nil {
			c.account.add(r.Account)
			t.addEdge(c, r)
		}
	case *ccl.Beat:
		if c := t.comm(r.Job, r.Comm, r.NRanks); c != nil {
			c.account.add(r.Account)
			t.addBeat(c, r)
		}
	}
}

// comm returns a communicator, or nil beyond the limit and for a rank that contradicts its size.
func (t *Tracker) comm(jobName, id string, n int) *comm {
	j := t.jobs[jobName]
	if j == nil {
		if t.comms >= maxComms {
			t.dropped++
			return nil
		}
		j = &job{name: jobName, comms: map[string]*comm{}, procs: map[string]*process{}, cells: map[cellKey]*cellSeries{}, open: map[string]*standing{}}
		t.jobs[jobName], t.order = j, append(t.order, j)
	}
	c := j.comms[id]
	if c == nil {
		if t.comms >= maxComms {
			t.dropped++
			return nil
		}
		t.comms++
		c = &comm{job: j, id: id, n: n, members: make([]*process, n), seen: make([]bool, n), series: map[shape]*series{}, pending: map[opKey]*operation{},
			results: map[opKey]*result{}, p2p: map[p2pKey]*openP2P{}, pairs: map[connKey]*connection{}, beats: map[int]*rankBeat{}, edges: map[edgeKey]*ccl.Edge{}}
		c.observe = t.observe
		j.comms[id], j.order = c, append(j.order, c)
	}
	c.cycle = t.cycle
	if c.n != n {
		t.dropped++
		return nil
	}
	return c
}

// addMembers notes where the ranks of a communicator run.
func (t *Tracker) addMembers(c *comm, r *ccl.Comm) {
	if r.Name != "" {
		c.name = r.Name
	}
	for _, m := range r.Ranks {
		if c.members[m.Rank] != nil && !c.placed[m.Rank] {
			continue
		}
		c.setMember(m.Rank, Place{m.Host, m.NIC, m.GPU}, false)
	}
}

// setMember sets where a rank runs. placed says that it is by the scheduler and not by a record.
func (c *comm) setMember(rank int, at Place, placed bool) {
	key := ""
	switch {
	case at.GPU != nil:
		key = at.Host + "#" + strconv.Itoa(*at.GPU)
	case at.NIC != "":
		key = at.Host + "@" + at.NIC
	}
	c.members[rank], c.hostsOf = c.process(key, rank, at), -1
	if placed && c.placed == nil {
		c.placed = map[int]bool{}
	}
	if c.placed != nil {
		c.placed[rank] = placed
	}
}

// process returns the process with a key. Without a key it is one of this communicator alone.
func (c *comm) process(key string, rank int, p Place) *process {
	if key == "" {
		key = p.Host + "/" + c.id + "/" + strconv.Itoa(rank)
	}
	q := c.job.procs[key]
	if q == nil {
		q = &process{key: key, place: p, gaps: map[[2]*series]*history{}, execs: map[*series]*history{}}
		c.job.procs[key] = q
	}
	return q
}

// member returns the process of a rank. host is its node by a record, or empty, and from is the node that the record came from.
func (t *Tracker) member(c *comm, rank int, host, from string) *process {
	if p := c.members[rank]; p != nil && (host == "" || !c.placed[rank] || host == p.place.Host) {
		return p
	}
	place, placed := Place{Host: host}, false
	if t.opt.PlaceOf != nil && c.unplaced != t.cycle+1 {
		hosts := c.hosts()
		if len(hosts) == 0 && from != "" {
			hosts = []string{from}
		}
		if q, ok := t.opt.PlaceOf(c.job.name, hosts, time.Unix(0, t.now), c.n, rank); ok && (host == "" || host == q.Host) {
			place, placed = q, true
		} else if !ok {
			c.unplaced = t.cycle + 1
		}
	}
	if place.Host == "" {
		return c.process("", rank, place)
	}
	c.setMember(rank, place, placed)
	return c.members[rank]
}

func shapeOf(o *ccl.Op) shape {
	s := shape{op: o.Op, algo: o.Algo, proto: o.Proto, log2: -1, peer: -1, from: -1}
	if o.Bytes != nil {
		s.log2 = bits.Len64(*o.Bytes)
	}
	if o.Peer != nil {
		s.peer = *o.Peer
	}
	if o.Root != nil && rooted(o.Op) {
		s.from = *o.Root
	}
	return s
}

func (c *comm) seriesOf(sh shape) *series {
	s := c.series[sh]
	if s == nil {
		s = &series{comm: c, shape: sh, transfer: history{size: historySize}, wait: history{size: historySize}, period: history{size: historySize}, lastStart: map[int]int64{}}
		c.series[sh] = s
	}
	return s
}

// pairwise says whether an operation is between two ranks.
func pairwise(op string) bool { return op == "Send" || op == "Recv" }

// symmetric says whether all ranks leave an operation together.
func symmetric(op string) bool {
	return slices.Contains([]string{"AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Barrier"}, op)
}

func (t *Tracker) addOp(c *comm, o *ccl.Op) {
	p := t.member(c, o.Rank, o.Host, o.Host)
	c.seen[o.Rank] = true
	key := opKey{o.Op, o.Seq}
	start := o.StartNS.NS
	if !o.StartNS.Known && o.EndNS.Known && o.ExecNS.Known {
		start = o.EndNS.NS - o.ExecNS.NS
	}
	exec, completed := o.Duration()
	t.now = max(t.now, start+exec)
	if c.first == 0 {
		c.first = start
	}
	s := c.seriesOf(shapeOf(o))
	if pairwise(o.Op) {
		t.addPair(c, o, p, s, start, exec, completed)
		return
	}
	if c.results[key] != nil {
		if completed {
			t.double++
		}
		return
	}
	x := c.pending[key]
	if x == nil {
		if len(c.order) > 0 && len(c.recent) == keptOps && o.Seq+4*keptOps < c.newest(o.Op) {
			t.double++ // long forgotten
			return
		}
		x = &operation{s: s, key: key, exec: make([]int64, c.n), start: make([]int64, c.n), state: make([]byte, c.n), timing: o.Timing, root: s.shape.from}
		if o.Bytes != nil {
			x.bytes = *o.Bytes
		}
		c.pending[key], c.order = x, append(c.order, key)
		t.forget(c)
	}
	if x.state[o.Rank] == finished || x.state[o.Rank] == launched && !completed {
		t.double++
		return
	}
	if o.Bytes != nil && *o.Bytes != x.bytes {
		if x.bytesR == nil {
			x.bytesR = map[int]uint64{}
		}
		x.bytesR[o.Rank] = *o.Bytes
	}
	x.mixed = x.mixed || o.Timing != x.timing || rooted(o.Op) && s.shape.from != x.root
	x.start[o.Rank] = start
	if !completed {
		x.state[o.Rank] = launched
		return
	}
	t.ops++
	c.ops++
	x.state[o.Rank], x.exec[o.Rank] = finished, exec
	x.last = max(x.last, start+exec)
	x.noClock = x.noClock || !o.ClockError.Known || !o.StartNS.Known && !o.EndNS.Known
	x.clock = max(x.clock, o.ClockError.NS)
	x.done++
	c.finished = true
	c.noteStall(exec, start+exec)
	p.addSpan(span{s: s, seq: o.Seq, start: start, end: start + exec, rank: o.Rank, peer: -1}, o.GapNS, c.job.frozen)
	if last := &p.spans[len(p.spans)-1]; last.exeOK && 2*last.execOver > exec {
		t.addOutlier(c, o)
	}
	if x.done == c.n {
		c.remove(key)
		c.judge(x)
	}
	if x.done == c.n || x.done == c.enough() {
		c.judgeIncomplete(o.Op, o.Seq)
	}
}

// enough returns how many ranks an operation needs to be judged.
func (c *comm) enough() int { return int(math.Ceil(leastRanks * float64(c.n))) }

// judgeIncomplete judges operations that most ranks left two operations ago. The records of the others were lost.
func (c *comm) judgeIncomplete(op string, seq uint64) {
	for _, key := range slices.Clone(c.order) {
		if x := c.pending[key]; key.op == op && key.seq+2 <= seq && x.done >= c.enough() {
			c.remove(key)
			c.judge(x)
		}
	}
}

// newest returns the highest number of a kind of operation that was finished last.
func (c *comm) newest(op string) (n uint64) {
	for _, k := range c.recent {
		if k.op == op {
			n = max(n, k.seq)
		}
	}
	return n
}

// addPair takes an operation between two ranks.
func (t *Tracker) addPair(c *comm, o *ccl.Op, p *process, s *series, start, exec int64, completed bool) {
	key := p2pKey{o.Rank, o.Op, o.Seq}
	for i := range p.spans {
		if sp := &p.spans[i]; sp.s == s && sp.seq == o.Seq {
			t.double++
			return
		}
	}
	if !completed {
		if o.Peer != nil && len(c.p2p) < keptOps*c.n {
			c.p2p[key] = &openP2P{start, *o.Peer}
		}
		return
	}
	delete(c.p2p, key)
	t.ops++
	c.ops++
	c.finished = true
	c.noteStall(exec, start+exec)
	p.addSpan(span{s: s, seq: o.Seq, start: start, end: start + exec, rank: o.Rank, peer: s.shape.peer}, o.GapNS, c.job.frozen)
	t.addHalf(c, o, start, exec)
}

// noteStall remembers the longest operation of the last half hour to hour.
func (c *comm) noteStall(exec, at int64) {
	if at-c.stallAt > int64(stallMemory)/2 {
		c.stalls, c.stallAt = [2]int64{0, c.stalls[0]}, at
	}
	c.stalls[0] = max(c.stalls[0], exec)
}

// forget judges the oldest operations as they are when there are too many.
func (t *Tracker) forget(c *comm) {
	for len(c.order) > keptOps {
		key := c.order[0]
		c.order = c.order[1:]
		if x := c.pending[key]; x != nil {
			delete(c.pending, key)
			c.judge(x)
		}
	}
}

// remove takes an operation off those that are open.
func (c *comm) remove(key opKey) {
	delete(c.pending, key)
	if i := slices.Index(c.order, key); i >= 0 {
		c.order = slices.Delete(c.order, i, i+1)
	}
}

// addSpan notes an operation of a process, how long it had not been in one before (as the agent measured it, or by the operations that
// are known), and by how much both are beyond normal.
func (p *process) addSpan(s span, measured ccl.Nanos, frozen bool) {
	s.gap = -1
	last := int64(0)
	if measured.Known { // by the agent, which saw all operations
		s.after, last = s.s, s.start-measured.NS
	} else {
		for i := range p.spans {
			if q := &p.spans[i]; q.end <= s.start && q.end > last {
				last, s.after = q.end, q.s
			}
		}
	}
	if s.after != nil {
		s.gap = s.start - last
		k := [2]*series{s.after, s.s}
		h := p.gaps[k]
		if h == nil {
			h = &history{size: rankHistory}
			p.gaps[k] = h
		}
		if m, _, ok := h.normal(rankNormal); ok {
			s.gapOver, s.gapOK = s.gap-m, true
		}
		if !frozen {
			h.push(s.gap)
		}
	}
	h := p.execs[s.s]
	if h == nil {
		h = &history{size: rankHistory}
		p.execs[s.s] = h
	}
	if m, _, ok := h.normal(rankNormal); ok {
		s.execOver, s.exeOK = s.end-s.start-m, true
	}
	if !frozen {
		h.push(s.end - s.start)
	}
	switch n := len(p.spans); {
	case n == keptSpans+droppedSpans:
		p.spans = slices.Delete(p.spans, 0, droppedSpans)
	case n == cap(p.spans):
		p.spans = append(make([]span, 0, min(max(2*n, 8), keptSpans+droppedSpans)), p.spans...)
	}
	p.spans = append(p.spans, s)
}

func (t *Tracker) addEdge(c *comm, e *ccl.Edge) {
	c.seen[e.Rank] = true
	t.member(c, e.Rank, e.Host, e.Host)
	ch := -1
	if e.Channel != nil {
		ch = *e.Channel
	}
	k := edgeKey{e.Rank, e.Peer, e.Direction, ch, e.Op}
	if e.State == ccl.Open {
		if len(c.edges) < 16*keptOps*c.n {
			c.edges[k] = e
		}
		return
	}
	if old := c.edges[k]; old != nil && old.Seq <= e.Seq {
		delete(c.edges, k)
	}
	t.addCell(c, e)
}

func (t *Tracker) addBeat(c *comm, b *ccl.Beat) {
	t.now = max(t.now, b.AtNS.NS)
	t.member(c, b.Rank, b.Host, b.Via)
	if b.Alive != nil && !*b.Alive {
		return // it says what the rank is no longer, and its last counts stand
	}
	c.seen[b.Rank] = true
	old := c.beats[b.Rank]
	if old == nil {
		c.beats[b.Rank] = &rankBeat{b.AtNS.NS, b.AtNS.NS, b.AtNS.NS, b.Launched, b.Completed}
		return
	}
	if b.AtNS.NS > old.at {
		if !maps.Equal(b.Launched, old.launched) {
			if c.ops == 0 { // nothing else shows how long operations take
				c.noteStall(b.AtNS.NS-old.changed, b.AtNS.NS)
			}
			old.changed = b.AtNS.NS
		}
		old.at, old.launched, old.completed = b.AtNS.NS, b.Launched, b.Completed
	}
}
