// Package kubenode reports the state of a node's NICs to Kubernetes: by a condition of the Node, and by events about it.
//
// Rules:
//
//  1. The condition is True (bad, as those of node-problem-detector are) while a fatal finding is open. Else it is Unknown while the
//     devices cannot be read, and False otherwise. What cannot be read clears nothing: a finding stays open, and the condition True.
//  2. It is written when it changed, at most once a second, and every five minutes so that a reader sees that it is kept up to date.
//     lastTransitionTime changes with the status only, over restarts of the agent and absences of the API server, too.
//  3. When the API server is away, only the state at its return is written.
//  4. An event like another of the last ten minutes (type, reason, message, NIC) is a higher count of that one.
//  5. Each NIC has 25 event requests, and gets another one every five minutes: the API server stores every event, thousands of nodes
//     can have the same fault at once, and a link that flaps must not fill its store. Events beyond that are dropped and counted.
//  6. Requests that fail are repeated, ever more slowly up to a minute, not all nodes at once, and not before the time that the server requested.
//     Events older than an hour, which is how long the server keeps them, are dropped and counted.
//  7. Offer never waits. A full queue loses its oldest event, which is counted.
package kubenode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/pki"
)

// DefaultCondition is the default type of the condition.
const DefaultCondition = "NICProblem"

const (
	checkEvery     = 500 * time.Millisecond // half of what rule 2 promises
	patchEvery     = time.Second            // rule 2
	heartbeatEvery = 5 * time.Minute        // rule 2; as node-problem-detector and kubelet do
	unreadAfter    = 10 * time.Second       // ten polls: one that fails is no news
	aggregateFor   = 10 * time.Minute       // rule 4
	eventBurst     = 25                     // rule 5; this and the next as client-go's filter of events has them for an object
	refillEvery    = 5 * time.Minute        // rule 5
	maxEventAge    = time.Hour              // rule 6; --event-ttl of the API server
	firstBackoff   = time.Second
	maxBackoff     = time.Minute
	maxRetryAfter  = 10 * time.Minute // the longest wait that the server can request
	endTimeout     = 3 * time.Second  // for what waits when the process ends
	queueLength    = 1000             // events
)

// Config configures the Node that is written, and the source of its state.
type Config struct {
	// Node is the Node's name.
	Node string
	// Condition is the type of the condition. "" means DefaultCondition.
	Condition string
	// Kubeconfig is a file with the address and credentials of the API server. "" means the pod's service account.
	Kubeconfig string
	// State returns the present state. It is called twice a second and must not block.
	State func() State
	Log   *slog.Logger
}

// State holds what is known of the NICs.
type State struct {
	// Findings are those that are open.
	Findings []nichealth.Finding
	// Read is when the list of devices was last read; the zero time: never yet.
	Read time.Time
}

// reservedConditions are conditions that belong to Kubernetes' own parts.
var reservedConditions = []string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"}

var (
	// "Object Names and IDs" of Kubernetes' documentation: a DNS subdomain name.
	nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	// A qualified name, as labels have it.
	conditionType = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
)

// Validate returns an error that names the wrong field and what is expected.
func (c Config) Validate() error {
	switch {
	case len(c.Node) > 253 || !nodeName.MatchString(c.Node):
		return fmt.Errorf("node %q: want the name of a Node, of lower-case letters, digits, - and dots", c.Node)
	case c.Condition != "" && !conditionType.MatchString(c.Condition):
		return fmt.Errorf("condition %q: want a name of letters, digits, -, _ and dots, like %s", c.Condition, DefaultCondition)
	case slices.Contains(reservedConditions, c.Condition):
		return fmt.Errorf("condition %q belongs to Kubernetes, want another", c.Condition)
	case c.State == nil:
		return errors.New("state: want a function")
	}
	return nil
}

// Stats are counts, and what is written.
type Stats struct {
	// Requests by what they were about and what became of them.
	Requests map[Request]uint64
	// Dropped are events that were not written, by the reason.
	Dropped map[Drop]uint64
	// Queued are events that wait.
	Queued int
	// Written is when the server last took the condition; the zero time: never yet.
	Written time.Time
}

// Request is a kind of request and its result.
type Request struct{ Object, Result string }

// Objects and results of requests.
const (
	ObjectCondition = "condition"
	ObjectEvent     = "event"
	ResultOK        = "success"
	ResultRetry     = "retry"
	ResultRefused   = "refused"
)

// Drop is why an event was dropped.
type Drop string

// Reasons.
const (
	DropFull    Drop = "queue_full"
	DropLimited Drop = "rate_limited"
	DropOld     Drop = "too_old"
	DropRefused Drop = "refused"
	DropEnd     Drop = "shutdown"
)

// Reporter writes a Node's condition and events. Use New.
type Reporter struct {
	c       Config
	api     *kubeapi.Client
	log     *slog.Logger
	started time.Time
	changed chan struct{} // has an element when an event came: the condition may have changed

	mu     sync.Mutex
	events eventQueue
	stats  Stats
}

// New makes a reporter. It fails when it cannot be known how to reach an API server; whether there is one shows later.
func New(c Config) (*Reporter, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a, err := kubeapi.Open(c.Kubeconfig, program)
	if err != nil {
		return nil, err
	}
	return newReporter(c, a), nil
}

// program is the name by which the API server knows the writer.
const program = "graylink-node"

// Expiries implements pki.Source: it lists the certificates of the connections to the API server.
func (r *Reporter) Expiries() []pki.Expiry { return r.api.Expiries() }

func newReporter(c Config, a *kubeapi.Client) *Reporter {
	c.Condition = cmp.Or(c.Condition, DefaultCondition)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Reporter{c: c, api: a, log: c.Log, started: time.Now(), changed: make(chan struct{}, 1)}
	r.events = eventQueue{more: make(chan struct{}, 1), limits: map[string]*limiter{}, sent: map[eventKey]*writtenEvent{}}
	r.stats = Stats{Requests: map[Request]uint64{}, Dropped: map[Drop]uint64{}}
	for _, object := range []string{ObjectCondition, ObjectEvent} {
		for _, result := range []string{ResultOK, ResultRetry, ResultRefused} {
			r.stats.Requests[Request{object, result}] = 0
		}
	}
	for _, d := range []Drop{DropFull, DropLimited, DropOld, DropRefused, DropEnd} {
		r.stats.Dropped[d] = 0
	}
	return r
}

// Offer takes an event. It never waits.
func (r *Reporter) Offer(e nichealth.Event) {
	p := newPendingEvent(&e)
	r.mu.Lock()
	if r.events.addOrMerge(p) {
		r.stats.Dropped[DropFull]++
	}
	r.mu.Unlock()
	for _, c := range []chan struct{}{r.events.more, r.changed} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Run writes until ctx ends, and then tries what waits once more.
func (r *Reporter) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { r.keepCondition(ctx) })
	wg.Go(func() { r.sendEvents(ctx) })
	wg.Wait()
	r.api.CloseIdleConnections()
}

// Stats returns the counts up to now.
func (r *Reporter) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Stats{Requests: map[Request]uint64{}, Dropped: map[Drop]uint64{}, Queued: len(r.events.waiting), Written: r.stats.Written}
	for k, n := range r.stats.Requests {
		s.Requests[k] = n
	}
	for k, n := range r.stats.Dropped {
		s.Dropped[k] = n
	}
	return s
}

func (r *Reporter) countRequest(object, result string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Requests[Request{object, result}]++
}

func (r *Reporter) countDropped(why Drop, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Dropped[why] += uint64(n)
}

// backoff is how long to wait after a failure: rule 6.
type backoff struct{ last time.Duration }

func (b *backoff) waitAfter(err error) time.Duration {
	b.last = min(max(2*b.last, firstBackoff), maxBackoff)
	wait := b.last/2 + rand.N(b.last/2+1)
	var f *kubeapi.Failure
	if errors.As(err, &f) && f.RetryAfter > 0 {
		// Up to a tenth is added, since the server may have requested the same wait from all nodes.
		after := min(f.RetryAfter, maxRetryAfter)
		wait = max(wait, after+rand.N(after/10+1))
	}
	return wait
}

func (b *backoff) reset() { b.last = 0 }

// sleepContext waits for d, or until ctx ends.
func sleepContext(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
