package catalogue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
	"github.com/graylink/graylink/internal/queuepair"
)

// Lister lists the queue pairs of nodes. tracing.HTTPAgents implements it.
type Lister interface {
	QueuePairs(ctx context.Context, node string) (*queuepair.Node, error)
}

// Observer observes what the queue pairs of running jobs do: it reads the lists of the nodes of a job and of all jobs that share links with
// it, has the agents trace the source ports of these queue pairs, and keeps the answer for keepFor. One job is observed at a time.
type Observer struct {
	Builder  *Builder
	Lister   Lister
	Snapshot func() snapshot.Snapshot

	mu     sync.Mutex
	kept   map[Question]*Running
	turn   chan struct{} // holds an element while a job is observed
	wanted chan Question
}

// NewObserver returns an observer that has observed nothing yet.
func NewObserver(b *Builder, l Lister, s func() snapshot.Snapshot) *Observer {
	return &Observer{Builder: b, Lister: l, Snapshot: s, kept: map[Question]*Running{}, turn: make(chan struct{}, 1), wanted: make(chan Question, 1)}
}

// Bounds of an observation.
const (
	keepFor       = 30 * time.Second
	observeWithin = time.Minute
	readWithin    = 10 * time.Second // one list
	readAtOnce    = 8
	// maxNodes bounds the nodes of the jobs that share links, and maxListed their queue pairs.
	maxNodes  = 256
	maxListed = 1 << 17
	maxKept   = 64
	// observeSteps bounds the search for the plan that the queue pairs are compared with. It takes some half of a second.
	observeSteps = plan.DefaultSteps / 4
)

// Question is what is observed.
type Question struct {
	Job  string
	DSCP int
	// AdaptiveRouting "off" is the operator's statement that the NICs do not mark packets for adaptive routing.
	AdaptiveRouting string
}

// Missing is a node whose queue pairs were not read.
type Missing struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// Running is what the queue pairs of a job do.
type Running struct {
	Job string    `json:"job"`
	At  time.Time `json:"at,omitzero"`
	// Reasons say why no rate is known. It is empty if the rate is known.
	Reasons []string `json:"reasons"`
	// Nodes are those of the job and of the jobs that share links with it. Missing are those of them that were not read.
	Nodes   []string  `json:"nodes"`
	Missing []Missing `json:"missing"`
	// Observed is nil if the queue pairs could not be followed at all, and Others are the jobs that share links with the job.
	Observed   *plan.ObservedJob  `json:"observed,omitempty"`
	Others     []plan.ObservedJob `json:"others"`
	QueuePairs []plan.Observed    `json:"queue_pairs"`
	Links      []plan.LinkShare   `json:"links,omitempty"`

	// Refused says why nothing was observed anew for a client that may not make agents send packets. The answer is then the last one, which is
	// AgeSeconds old, or says that there is none.
	Refused    string   `json:"refused,omitempty"`
	AgeSeconds *float64 `json:"age_seconds,omitempty"`

	passing bool // the reason passes soon, so that the answer is not kept
}

// ErrNoJob is the error of a question about a job that does not run.
var ErrNoJob = errors.New("no such job runs now on a node of the topology")

// Kept returns the last answer to a question, or nil if there is none.
func (o *Observer) Kept(q Question) *Running {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept[q]
}

// Last returns the last answer to a question for a client that may not make agents send packets, for a reason. It returns ErrNoJob.
func (o *Observer) Last(q Question, reason string) (*Running, error) {
	s := o.Snapshot()
	p, ok := s.Placed.FindJob(q.Job)
	if !ok {
		return nil, ErrNoJob
	}
	q.Job = p.Job
	kept := o.Kept(q)
	if kept == nil {
		why := fmt.Sprintf("The queue pairs of %s have not been observed: %s.", q.Job, reason)
		return &Running{Job: q.Job, Reasons: []string{why}, Nodes: []string{}, Missing: []Missing{}, Others: []plan.ObservedJob{}, QueuePairs: []plan.Observed{}, Refused: reason}, nil
	}
	r := *kept
	age := max(0, o.Builder.now().Sub(r.At).Seconds())
	r.Refused, r.AgeSeconds = reason, &age
	return &r, nil
}

// Want has Run observe a job, unless its last answer is fresh or another job waits.
func (o *Observer) Want(q Question) {
	if r := o.Kept(q); r != nil && o.isFresh(r) {
		return
	}
	select {
	case o.wanted <- q:
	default:
	}
}

// Run observes the jobs that Want names, until ctx ends.
func (o *Observer) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-o.wanted:
			// What could not be observed is in the answer, and a job that ended is not asked for any longer.
			_, _ = o.Observe(ctx, q)
		}
	}
}

func (o *Observer) isFresh(r *Running) bool { return o.Builder.now().Sub(r.At) < keepFor }

// Observe returns the answer to a question: the last one if it is fresh, else a new one. It returns ErrNoJob, or the error of ctx.
func (o *Observer) Observe(ctx context.Context, q Question) (*Running, error) {
	s := o.Snapshot()
	p, ok := s.Placed.FindJob(q.Job)
	if !ok {
		return nil, ErrNoJob
	}
	q.Job = p.Job
	within, cancel := context.WithTimeout(ctx, observeWithin)
	defer cancel()
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-within.Done():
		return nil, within.Err()
	}
	if r := o.Kept(q); r != nil && o.isFresh(r) {
		return r, nil
	}
	r := o.observe(within, q, s.Placed)
	if err := ctx.Err(); err != nil {
		return nil, err // what the client did not wait for is not whole
	}
	if r.At = o.Builder.now().UTC(); !r.passing {
		o.keep(q, r)
	}
	return r, nil
}

// keep keeps an answer, and forgets the oldest ones beyond maxKept.
func (o *Observer) keep(q Question, r *Running) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept[q] = r
	for len(o.kept) > maxKept {
		oldest := q
		for k, x := range o.kept {
			if x.At.Before(o.kept[oldest].At) {
				oldest = k
			}
		}
		delete(o.kept, oldest)
	}
}

// observe makes an answer.
func (o *Observer) observe(ctx context.Context, q Question, placed *jobs.Map) *Running {
	r := &Running{Job: q.Job, Reasons: []string{}, Nodes: []string{}, Missing: []Missing{}, Others: []plan.ObservedJob{}, QueuePairs: []plan.Observed{}}
	because := func(err error) *Running {
		r.Reasons = append(r.Reasons, err.Error())
		return r
	}
	all, err := sharing(placed, q.Job)
	if err != nil {
		return because(err)
	}
	for i := range all {
		r.Nodes = append(r.Nodes, plan.NodesOf(&all[i])...)
	}
	slices.Sort(r.Nodes)
	if r.Nodes = slices.Compact(r.Nodes); len(r.Nodes) > maxNodes {
		return because(fmt.Errorf("the jobs that share links with it run on %d nodes, and %d at most are read", len(r.Nodes), maxNodes))
	}
	n, err := plan.NewNetwork(o.Builder.graph(), plan.DefaultGoodput)
	if err != nil {
		return because(err)
	}
	lists := o.read(ctx, r)
	if total := countListed(lists); total > maxListed {
		return because(fmt.Errorf("the nodes list %d queue pairs, and %d at most are followed", total, maxListed))
	}
	seen, why, err := o.follow(ctx, q, n, all, lists)
	if err != nil {
		r.passing = errors.Is(err, ErrBusy)
		return because(err)
	}
	r.fill(seen, why)
	return r
}

// fill takes what was observed. The reasons of the catalogue stand only where it matters.
func (r *Running) fill(seen *plan.Observation, why []string) {
	for i := range seen.Jobs {
		j := seen.Jobs[i]
		if j.Job == r.Job {
			r.Observed = &j
		} else {
			r.Others = append(r.Others, j)
		}
	}
	for _, x := range seen.QueuePairs {
		if x.Job == r.Job {
			r.QueuePairs = append(r.QueuePairs, x)
		}
	}
	r.Links = seen.Links
	if r.Observed == nil || r.Observed.BusbwGbps != nil {
		return
	}
	for _, m := range r.Missing {
		r.Reasons = append(r.Reasons, fmt.Sprintf("The queue pairs of %s were not read: %s.", m.Node, m.Reason))
	}
	r.Reasons = append(r.Reasons, r.Observed.Obstacles()...)
	for i := range r.Others {
		r.Reasons = append(r.Reasons, r.Others[i].Obstacles()...)
	}
	r.Reasons = append(r.Reasons, why...)
	if len(r.Reasons) == 0 {
		r.Reasons = append(r.Reasons, "No link limits the job.")
	}
}

// sharing returns a job, and all jobs that share links with it or with one of those, as the planner reads them.
func sharing(placed *jobs.Map, name string) ([]plan.Job, error) {
	names, taken := []string{name}, map[string]bool{name: true}
	for i := 0; i < len(names); i++ {
		own := placed.DirectionsOf(names[i])
		for _, other := range placed.JobNames() {
			if !taken[other] && overlaps(own, placed.DirectionsOf(other)) {
				taken[other] = true
				names = append(names, other)
			}
		}
	}
	slices.Sort(names[1:])
	var out []plan.Job
	for _, name := range names {
		p, _ := placed.FindJob(name)
		j := plan.Job{Nodes: p.Nodes, NICs: p.NICs}
		if p.Declared != nil {
			j = *p.Declared
		}
		j.Job, j.ID = p.Job, ""
		nodes := plan.NodesOf(&j)
		for _, nic := range placed.NICsOf(name) {
			if node := fabric.OwnerOf(nic); !slices.Contains(nodes, node) {
				return nil, fmt.Errorf("several jobs have the name %s, and no identifiers", name)
			}
		}
		out = append(out, j)
	}
	return out, nil
}

func overlaps(a, b map[fabric.Direction]bool) bool {
	if len(b) < len(a) {
		a, b = b, a
	}
	for d := range a {
		if b[d] {
			return true
		}
	}
	return false
}

func countListed(lists []queuepair.Node) (n int) {
	for i := range lists {
		n += len(lists[i].QueuePairs)
	}
	return n
}

// read returns the lists of the nodes, some at a time, and notes those that are missing.
func (o *Observer) read(ctx context.Context, r *Running) []queuepair.Node {
	lists, errs := make([]*queuepair.Node, len(r.Nodes)), make([]error, len(r.Nodes))
	slots := make(chan struct{}, readAtOnce)
	var wg sync.WaitGroup
	for i, node := range r.Nodes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, readWithin)
			defer cancel()
			lists[i], errs[i] = o.Lister.QueuePairs(ctx, node)
		})
	}
	wg.Wait()
	out := []queuepair.Node{}
	for i, node := range r.Nodes {
		if errs[i] != nil {
			r.Missing = append(r.Missing, Missing{Node: node, Reason: errs[i].Error()})
		} else {
			out = append(out, *lists[i])
		}
	}
	return out
}

// follow finds the paths of the queue pairs. It returns the reasons why paths of the catalogue are unknown as well.
func (o *Observer) follow(ctx context.Context, q Question, n *plan.Network, all []plan.Job, lists []queuepair.Node) (*plan.Observation, []string, error) {
	first, err := plan.Observe(n, plan.NewCatalogue(n), all, lists, observeSteps)
	if err != nil {
		return nil, nil, err
	}
	request, err := RequestFor(n, all, first)
	if err != nil || len(request.Ports) == 0 {
		return first, nil, err
	}
	request.DSCP, request.AdaptiveRouting = q.DSCP, q.AdaptiveRouting
	entries, err := o.Builder.Build(ctx, request, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("the source ports cannot be traced: %w", err)
	}
	c, why := plan.NewCatalogue(n), []string{}
	for i := range entries {
		c.Add(&entries[i])
		if text := reasonTexts[entries[i].Reason]; text != "" && !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	seen, err := plan.Observe(n, c, all, lists, observeSteps)
	return seen, why, err
}

// reasonTexts say why no port of a pair of NICs has a path.
var reasonTexts = map[plan.Reason]string{
	plan.Sprayed:         "Packets of one queue pair take several paths, or the NICs may mark them for adaptive routing. With adaptive_routing=off, they are known not to.",
	plan.HashBeyondTuple: "A switch hashes more than addresses and ports.",
}

// RequestFor returns the request for the paths of the ports of queue pairs, and for those that a plan for the jobs needs.
func RequestFor(n *plan.Network, all []plan.Job, seen *plan.Observation) (Request, error) {
	r := Request{QPs: 8}
	ports := map[Pair][]uint16{}
	for i := range seen.QueuePairs {
		if q := &seen.QueuePairs[i]; q.Unseen == plan.NoEntry {
			p := Pair{Src: q.Src, Dst: n.MembersOf(q.Dst)[0]}
			if !slices.Contains(ports[p], q.SPort) {
				ports[p] = append(ports[p], q.SPort)
			}
		}
	}
	for p, sports := range ports {
		for some := range slices.Chunk(sports, maxPorts) {
			r.Ports = append(r.Ports, PairPorts{Pair: p, SPorts: some})
		}
	}
	slices.SortFunc(r.Ports, func(a, b PairPorts) int {
		return cmp.Or(cmp.Compare(a.Src, b.Src), cmp.Compare(a.Dst, b.Dst), slices.Compare(a.SPorts, b.SPorts))
	})
	err := n.Pairs(all, func(src string, dst []string) error {
		r.Pairs = append(r.Pairs, Pair{Src: src, Dst: dst[0]})
		return nil
	})
	return r, err
}
