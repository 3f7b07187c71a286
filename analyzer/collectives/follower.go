// Package collectives follows the jobs of a fabric: it reads the records of collective operations from the agents of all nodes,
// finds out what each job waits for (package workload), and whether the network is to blame by what the analyzer knows of it.
// Rules, after which tests are named:
//
//  1. The host of a record is the node that answered. What a record says of another host is counted and changes nothing.
//  2. A job is named by the scheduler's placements only.
//  3. Records are taken in the order of their times, after a wait for those of other nodes. What waits is bounded, and what is
//     beyond it is counted.
//  4. A node that does not answer changes nothing for the others, and is read less often. One without collectives is no error.
//  5. Nothing is concluded from the records of some nodes while others are still to be read, for some seconds at most: a rank
//     whose records were not read yet looks like one that did not come.
//  6. After a node has lost records, or was restarted, the next ones are read, and the loss is counted.
package collectives

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
)

// Bounds of the requests to nodes.
const (
	pullEvery   = time.Second
	absentEvery = 30 * time.Second // to a node without collectives
	maxBackoff  = 30 * time.Second
	pullTimeout = 5 * time.Second
	pageRecords = 10_000   // of an answer
	maxPage     = 16 << 20 // octets of an answer
	pagesAtOnce = 4        // that are read from a node before the others have their turn
	leastPulls  = 16       // requests at the same time; of many nodes one in 64
	asksAtOnce  = 64       // questions for single operations that wait
	silentAfter = 30 * time.Second
	catchUp     = 10 * time.Second // for which diagnoses wait for nodes that are still to be read
)

// Options are what a Follower needs.
type Options struct {
	Graph  *fabric.Graph
	Client *http.Client
	// URL returns the base URL of a node, without a path, or "" if it is unknown.
	URL func(node string) string
	// Snapshot returns what the analyzer knows of the fabric.
	Snapshot func() snapshot.Snapshot
	// Jobs has the placements of jobs. Nil means that they are unknown, so that no job is named.
	Jobs *jobs.Register
	// Judged is called for each operation that was compared with what is normal. It may be nil.
	Judged func(workload.Judged)
	Log    *slog.Logger
	// Now returns the time. Nil means time.Now.
	Now func() time.Time
}

// DropReason is why records are missing.
type DropReason string

// The reasons.
const (
	DropQueueFull   DropReason = "queue_full"   // too many records waited
	DropForeignHost DropReason = "foreign_host" // a record named another host than the node that answered; the name is dropped
	DropUnreadable  DropReason = "unreadable"   // a line is no record
	DropMissed      DropReason = "missed"       // answers before which a node had lost records
)

// DropReasons lists all reasons.
func DropReasons() []DropReason {
	return []DropReason{DropQueueFull, DropForeignHost, DropUnreadable, DropMissed}
}

// Counts are the counters of a Follower.
type Counts struct {
	Nodes, Unread int // that answer; that did not answer the last request
	Records       uint64
	Dropped       map[DropReason]uint64
}

// State is what a Follower found in its last cycle.
type State struct {
	At     time.Time
	Report workload.Report
	Jobs   []workload.JobReport
}

// nodeStatus is how the last request to a node ended.
type nodeStatus int

const (
	notAsked nodeStatus = iota
	answers
	absent // its agent has no collectives
	unread
)

// node is what is known of the agent of a node.
type node struct {
	cursor   uint64
	began    bool // the cursor is one of the node
	status   nodeStatus
	failures int
	answered time.Time // last
	more     bool      // the last answer was not all that the node had
}

// Follower reads the records of all nodes, and diagnoses what jobs wait for.
type Follower struct {
	opts  Options
	names []string
	turns chan struct{}
	asks  chan workload.Outlier
	page  int // records of an answer

	readers sync.Pool // of *bufio.Reader, for answers

	mu     sync.Mutex
	nodes  map[string]*node
	queue  queue
	counts Counts
	state  State

	cycling sync.Mutex // held while the fields below are used
	tracker *workload.Tracker
	clean   *cleanLog
	seen    time.Time // of the last snapshot whose clean probes were noted
	placed  *jobs.Map // at the time of the cycle; nil: no placements are known
	held    time.Time // since when diagnoses wait for nodes; zero: they do not
}

// New returns a Follower that has read nothing.
func New(o Options) *Follower {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	f := &Follower{opts: o, nodes: map[string]*node{}, queue: queue{most: maxWaiting}, counts: Counts{Dropped: map[DropReason]uint64{}}, clean: newCleanLog(o.Graph), asks: make(chan workload.Outlier, asksAtOnce), page: pageRecords}
	for i := range o.Graph.Topo.Nodes {
		name := o.Graph.Topo.Nodes[i].Name
		f.names = append(f.names, name)
		f.nodes[name] = &node{}
	}
	f.turns = make(chan struct{}, max(leastPulls, len(f.names)/64))
	for _, r := range DropReasons() {
		f.counts.Dropped[r] = 0
	}
	f.tracker = workload.New(f.trackerOptions())
	f.state.Report = f.tracker.Cycle(time.Time{}, nil)
	return f
}

func (f *Follower) trackerOptions() workload.Options {
	return workload.Options{Judged: f.opts.Judged, JobOf: func(hosts []string, _ time.Time) string { return f.placed.JobOn(hosts) },
		PlaceOf: func(_ string, hosts []string, _ time.Time, ranks, rank int) (workload.Place, bool) {
			p, ok := f.placed.PlaceOf(hosts, ranks, rank)
			return workload.Place{Host: p.Node, NIC: p.NIC, GPU: p.GPU}, ok
		}}
}

// InheritFrom takes over what a stopped Follower knows: its diagnoses, and how far it has read each node. It is called before Run.
func (f *Follower) InheritFrom(old *Follower) {
	if f == nil || old == nil {
		return
	}
	f.tracker, f.queue, f.counts, f.state = old.tracker, old.queue, old.counts, old.state
	f.tracker.SetOptions(f.trackerOptions())
	for name, n := range old.nodes {
		if f.nodes[name] != nil {
			f.nodes[name] = n
		}
	}
}

// Run reads all nodes and diagnoses once a second until ctx ends. It calls after with each state.
func (f *Follower) Run(ctx context.Context, after func(State)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, name := range f.names {
		first := pullEvery * time.Duration(i) / time.Duration(len(f.names))
		wg.Go(func() { f.followNode(ctx, name, first) })
	}
	wg.Go(func() { f.answerAsks(ctx) })
	tick := time.NewTicker(pullEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			after(f.Cycle(f.opts.Now()))
		}
	}
}

// State returns what was found last.
func (f *Follower) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// Counts returns the counters.
func (f *Follower) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := Counts{Records: f.counts.Records, Dropped: map[DropReason]uint64{}}
	for r, n := range f.counts.Dropped {
		c.Dropped[r] = n
	}
	for _, n := range f.nodes {
		switch n.status {
		case answers:
			c.Nodes++
		case unread:
			c.Unread++
		}
	}
	return c
}

// Silent returns the nodes whose agents answered before, have not done so for a while, and did not answer the last request. It
// returns none if less than half of the nodes answer: then the fault may be the analyzer's.
func (f *Follower) Silent(now time.Time) (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.names {
		if n := f.nodes[name]; n.status == unread && n.began && now.Sub(n.answered) >= silentAfter {
			out = append(out, name)
		}
	}
	answering := 0
	for _, n := range f.nodes {
		if n.status == answers || n.status == absent {
			answering++
		}
	}
	if 2*answering < len(f.nodes) {
		return nil
	}
	return out
}

// Cycle takes the records that have waited for long enough, and diagnoses. It returns what it found.
func (f *Follower) Cycle(now time.Time) State {
	f.cycling.Lock()
	defer f.cycling.Unlock()
	ways := f.ways()
	if f.waitsForNodes(now) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.state.At = now
		return f.state
	}
	f.mu.Lock()
	due := f.queue.take(now)
	f.mu.Unlock()
	f.placed = f.opts.Jobs.MapAt(now)
	for i := range due {
		f.tracker.Add(due[i].rec)
		due[i].rec = nil // it need not stay until the last one is taken
	}
	s := State{At: now, Report: f.tracker.Cycle(now, ways)}
	for _, d := range f.tracker.ForgetIdle() {
		f.opts.Log.Info("no more records of a job with an open diagnosis", "job", d.Job, "diagnosis", d.ID, "syndrome", d.Syndrome)
	}
	s.Jobs = f.tracker.JobReports(now)
	f.queueAsks()
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Report.Records.Unreadable = f.counts.Dropped[DropUnreadable]
	s.Report.Coverage.Dropped += f.counts.Dropped[DropQueueFull]
	f.state = s
	return s
}

// waitsForNodes reports whether some nodes were not asked yet, or have more than they answered, and diagnoses wait for them.
func (f *Follower) waitsForNodes(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	behind := false
	for _, n := range f.nodes {
		behind = behind || n.status == notAsked || n.more
	}
	switch {
	case !behind:
		f.held = time.Time{}
	case f.held.IsZero():
		f.held = now
	}
	return behind && now.Sub(f.held) < catchUp
}

// ways returns what the analyzer knows of the fabric now.
func (f *Follower) ways() *Ways {
	snap := f.opts.Snapshot()
	if snap.At.After(f.seen) {
		var clean []fabric.Direction
		for i := range snap.Links {
			if l := &snap.Links[i]; l.Edges > l.Degraded {
				clean = append(clean, fabric.Direction{From: l.From, To: l.To})
			}
		}
		f.seen = snap.At
		f.clean.add(snap.At, clean)
	}
	w := &Ways{Graph: f.opts.Graph, Clean: f.clean.between, HasNormalPeer: f.tracker.HasNormalPeer}
	for i := range snap.Incidents {
		in := &snap.Incidents[i]
		if !incident.BlamesNetwork(&in.Verdict) {
			continue
		}
		v := TimedVerdict{in.Verdict, in.LastSeen}
		if in.Open {
			v.LastSeen = snap.At
		}
		w.Verdicts = append(w.Verdicts, v)
	}
	return w
}

// queueAsks asks for operations that took a rank much longer than normal: at most one a cycle for each communicator, and none
// while too many wait.
func (f *Follower) queueAsks() {
	asked := map[string]bool{}
	for _, o := range f.tracker.TakeOutliers() {
		if asked[o.Comm] {
			continue
		}
		asked[o.Comm] = true
		select {
		case f.asks <- o:
		default:
		}
	}
}

// answerAsks reads single operations from the nodes of their communicators.
func (f *Follower) answerAsks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-f.asks:
			f.askFor(ctx, o)
		}
	}
}

// askFor reads all that the nodes of a communicator hold of an operation.
func (f *Follower) askFor(ctx context.Context, o workload.Outlier) {
	var wg sync.WaitGroup
	for _, host := range o.Hosts {
		f.mu.Lock()
		n := f.nodes[host]
		ask := n != nil && n.status == answers
		f.mu.Unlock()
		if !ask {
			continue
		}
		select {
		case <-ctx.Done():
		case f.turns <- struct{}{}:
			wg.Go(func() {
				defer func() { <-f.turns }()
				p, err := f.fetch(ctx, host, url.Values{"comm": {o.Comm}, "op": {o.Op}, "seq": {strconv.FormatUint(o.Seq, 10)}})
				if err != nil {
					f.opts.Log.Debug("cannot read an operation of a node", "node", host, "err", err)
					return
				}
				f.accept(host, p.Records)
			})
		}
	}
	wg.Wait()
}

// followNode reads one node until ctx ends, from first on.
func (f *Follower) followNode(ctx context.Context, name string, first time.Duration) {
	wait := time.NewTimer(first)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		select {
		case <-ctx.Done():
			return
		case f.turns <- struct{}{}:
		}
		again := f.Pull(ctx, name)
		<-f.turns
		wait.Reset(again)
	}
}

// Pull reads what is new of a node, and returns after which time it is to be read again.
func (f *Follower) Pull(ctx context.Context, name string) (again time.Duration) {
	f.mu.Lock()
	n := f.nodes[name]
	f.mu.Unlock()
	more, err := true, error(nil)
	for range pagesAtOnce {
		if more, err = f.pullPage(ctx, name, n); err != nil || !more {
			break
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n.more = err == nil && more
	switch {
	case ctx.Err() != nil:
		return pullEvery
	case errors.Is(err, errAbsent):
		n.status, n.failures, n.answered = absent, 0, f.opts.Now()
		return absentEvery
	case err != nil:
		if n.failures == 0 {
			f.opts.Log.Warn("cannot read the collectives of a node", "node", name, "err", err)
		}
		n.status = unread
		n.failures++
		return min(pullEvery<<min(n.failures, 10), maxBackoff)
	}
	n.status, n.failures, n.answered = answers, 0, f.opts.Now()
	return pullEvery
}

// pullPage reads the next page of a node. It reports whether there are more.
func (f *Follower) pullPage(ctx context.Context, name string, n *node) (more bool, err error) {
	f.mu.Lock()
	after, began := n.cursor, n.began
	f.mu.Unlock()
	p, err := f.fetch(ctx, name, url.Values{"after": {strconv.FormatUint(after, 10)}, "limit": {strconv.Itoa(f.page)}})
	if err != nil {
		return false, err
	}
	f.mu.Lock()
	n.cursor, n.began = p.Cursor, true
	if p.Missed && began {
		f.counts.Dropped[DropMissed]++
	}
	f.mu.Unlock()
	f.accept(name, p.Records)
	return p.More, nil
}

// accept takes the records of a node.
func (f *Follower) accept(name string, recs []ccl.Record) {
	foreign := ownRecords(name, recs)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.Records += uint64(len(recs))
	f.counts.Dropped[DropForeignHost] += uint64(foreign)
	f.counts.Dropped[DropQueueFull] += uint64(f.queue.add(recs, f.opts.Now()))
}

// errAbsent is the error of an agent that has no collectives.
var errAbsent = errors.New("the agent has no collectives")

// fetch requests records of a node.
func (f *Follower) fetch(ctx context.Context, name string, query url.Values) (*ccl.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	base := f.opts.URL(name)
	if base == "" {
		return nil, errors.New("the address of the agent is unknown")
	}
	at, err := url.JoinPath(base, "/api/v1/collectives")
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := f.opts.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, errAbsent
	default:
		msg, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return nil, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(msg)))
	}
	body := &io.LimitedReader{R: resp.Body, N: maxPage + 1}
	lines, reused := f.readers.Get().(*bufio.Reader)
	if !reused {
		lines = bufio.NewReaderSize(nil, 64<<10)
	}
	lines.Reset(body)
	defer f.readers.Put(lines)
	unreadable := uint64(0)
	p, err := ccl.ReadPage(lines, func(e fabric.LineError) {
		if unreadable == 0 {
			f.opts.Log.Debug("a line of a node is no record", "node", name, "line", e.Line, "err", e.Err)
		}
		unreadable++
	})
	switch {
	case err != nil:
		return nil, err
	case body.N <= 0:
		return nil, fmt.Errorf("an answer of more than %d octets", maxPage)
	case p.Node != name:
		return nil, fmt.Errorf("the answer is of node %q", p.Node)
	}
	f.mu.Lock()
	f.counts.Dropped[DropUnreadable] += unreadable
	f.mu.Unlock()
	return p, nil
}

// JobReport returns the report on a job.
func (s *State) JobReport(job string) (workload.Report, bool) {
	i := slices.IndexFunc(s.Jobs, func(r workload.JobReport) bool { return r.Job == job })
	if i < 0 {
		return workload.Report{}, false
	}
	return s.Jobs[i].Report, true
}
