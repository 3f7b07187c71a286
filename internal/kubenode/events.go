package kubenode

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/graylink/graylink/internal/nichealth"
)

// Types of events.
const (
	typeNormal  = "Normal"
	typeWarning = "Warning"
)

// namespace is where events about Nodes are, which have none themselves.
const namespace = "default"

// event is an Event of core/v1.
type event struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Metadata   metadata  `json:"metadata"`
	About      reference `json:"involvedObject"`
	Reason     string    `json:"reason"`
	Message    string    `json:"message"`
	Source     source    `json:"source"`
	First      string    `json:"firstTimestamp"`
	Last       string    `json:"lastTimestamp"`
	Count      int       `json:"count"`
	Type       string    `json:"type"`
	Component  string    `json:"reportingComponent"`
	Instance   string    `json:"reportingInstance"`
}

type metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

type reference struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// UID is the Node's name, as in kubelet's own events: by it `kubectl describe node` finds them.
	UID string `json:"uid"`
}

type source struct {
	Component string `json:"component"`
	Host      string `json:"host"`
}

// again is the patch of an event that happened again.
type again struct {
	Count int    `json:"count"`
	Last  string `json:"lastTimestamp"`
}

// eventKey is what events have in common that are one: rule 4.
type eventKey struct{ kind, reason, message, nic string }

// pending is an event that waits, perhaps several times.
type pending struct {
	eventKey
	first, last time.Time
	count       int
	allowed     bool // by the limit: it is asked once
	sending     bool
	name        string // of the object; given once, so that a repeated request is seen to be one
	tried       bool   // to write it under that name
}

func newPending(e *nichealth.Event) *pending {
	p := &pending{first: e.GeneratedTimestamp, last: e.GeneratedTimestamp, count: 1}
	code := ""
	if len(e.ErrorCode) > 0 {
		code = e.ErrorCode[0]
	}
	p.kind, p.reason, p.message = typeWarning, reason(code), bounded(e.Message)
	if e.IsHealthy {
		p.kind, p.reason = typeNormal, p.reason+"Cleared"
	}
	if len(e.EntitiesImpacted) > 0 {
		p.nic = e.EntitiesImpacted[0].Value
		if e.EntitiesImpacted[0].Type == nichealth.EntityPort {
			p.nic, _, _ = strings.Cut(p.nic, "_port")
		}
	}
	return p
}

// written is an event that the server has.
type written struct {
	name  string
	first time.Time
	last  time.Time
	count int
}

// limiter is rule 5 for one NIC.
type limiter = rate.Limiter

// queue are the events that wait, and what is known of those before. The reporter's mutex guards it, but for sent and named, which are
// the sending goroutine's.
type queue struct {
	waiting []*pending
	more    chan struct{} // has an element when the queue may have grown
	limits  map[string]*limiter
	sent    map[eventKey]*written
	named   int64 // what the name of the last event was made of, Unix nanoseconds
}

// add queues p, or counts it with one that waits. full: the oldest was lost for it.
func (q *queue) add(p *pending) (full bool) {
	for _, w := range q.waiting {
		if w.eventKey == p.eventKey && !w.sending && p.last.Sub(w.last) <= aggregateFor {
			w.count++
			w.last = p.last
			return false
		}
	}
	q.waiting = append(q.waiting, p)
	if len(q.waiting) <= queueLength {
		return false
	}
	first := 0
	if q.waiting[0].sending {
		first = 1 // what becomes of the one on its way is counted there
	}
	q.waiting = slices.Delete(slices.Clone(q.waiting), first, first+1)
	return true
}

// next is the event to send now, nil if none is; the others before it are dropped by rules 5 and 6.
func (r *Reporter) next(now time.Time) *pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := &r.events
	for len(q.waiting) > 0 {
		p := q.waiting[0]
		switch {
		case now.Sub(p.last) > oldest:
			r.stats.Dropped[DropOld] += uint64(p.count)
		case p.allowed || q.limit(p.nic).AllowN(now, 1):
			p.allowed, p.sending = true, true
			return p
		default:
			r.stats.Dropped[DropLimited] += uint64(p.count)
		}
		q.waiting = append(q.waiting[:0:0], q.waiting[1:]...)
	}
	return nil
}

func (q *queue) limit(nic string) *limiter {
	l := q.limits[nic]
	if l == nil {
		l = rate.NewLimiter(rate.Every(refill), burst)
		q.limits[nic] = l
	}
	return l
}

// settle takes p out of the queue, unless it was lost meanwhile.
func (r *Reporter) settle(p *pending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events.waiting = slices.DeleteFunc(r.events.waiting, func(w *pending) bool { return w == p })
}

// sendEvents sends until ctx ends, and then what waits, as far as the first attempt of each goes.
func (r *Reporter) sendEvents(ctx context.Context) {
	var wait backoff
	failed := false
	for ctx.Err() == nil {
		p := r.next(time.Now())
		if p == nil {
			select {
			case <-ctx.Done():
			case <-r.events.more:
			}
			continue
		}
		err := r.send(ctx, p)
		switch {
		case err == nil:
			r.settle(p)
			wait.reset()
			if failed {
				r.log.Info("Kubernetes takes events again")
			}
			failed = false
		case ctx.Err() != nil:
		case isRefused(err):
			r.settle(p)
			r.drop(DropRefused, p.count)
			r.log.Error("Kubernetes refuses an event", "reason", p.reason, "err", err)
		default:
			if !failed {
				r.log.Warn("Kubernetes does not take events; they will be tried again", "err", err)
			}
			failed = true
			pause(ctx, wait.after(err))
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	for p := r.next(time.Now()); p != nil && r.send(last, p) == nil; p = r.next(time.Now()) {
		r.settle(p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.events.waiting {
		r.stats.Dropped[DropEnd] += uint64(p.count)
	}
	r.events.waiting = nil
}

func isRefused(err error) bool {
	var f *failure
	return errors.As(err, &f) && refused(f)
}

// send writes an event: as a higher count of one before, or as a new one.
func (r *Reporter) send(ctx context.Context, p *pending) error {
	sent := r.events.sent
	for k, w := range sent {
		if p.last.Sub(w.last) > aggregateFor {
			delete(sent, k)
		}
	}
	first, count := p.first, p.count
	if w := sent[p.eventKey]; w != nil {
		first, count = w.first, count+w.count
		err := r.request(ctx, http.MethodPatch, typePatch, again{Count: count, Last: stamp(p.last)}, w.name)
		if err == nil {
			w.count, w.last = count, p.last
			return nil
		}
		if !hasCode(err, http.StatusNotFound) {
			return err
		}
		delete(sent, p.eventKey) // the server forgot it: it is new, with the old count
		p.first, p.count = first, count
	}
	if p.name == "" {
		// As client-go names events, and never one name twice.
		r.events.named = max(r.events.named+1, time.Now().UnixNano())
		p.name = fmt.Sprintf("%s.%x", r.c.Node, r.events.named)
	}
	repeated := p.tried
	p.tried = true
	err := r.request(ctx, http.MethodPost, typeJSON, event{
		APIVersion: "v1", Kind: "Event", Metadata: metadata{p.name, namespace}, About: reference{"Node", r.c.Node, r.c.Node},
		Reason: p.reason, Message: p.message, Source: source{nichealth.Agent, r.c.Node}, First: stamp(first), Last: stamp(p.last), Count: count, Type: p.kind,
		Component: nichealth.Agent, Instance: r.c.Node,
	})
	if hasCode(err, http.StatusConflict) {
		if !repeated {
			p.name, p.tried = "", false // another one has it
			return err
		}
		err = nil // it is ours: an answer was lost
	}
	if err != nil {
		return err
	}
	sent[p.eventKey] = &written{name: p.name, first: first, last: p.last, count: count}
	return nil
}

func hasCode(err error, code int) bool {
	var f *failure
	return errors.As(err, &f) && f.code == code
}

// request counts.
func (r *Reporter) request(ctx context.Context, method, contentType string, body any, name ...string) error {
	err := r.api.do(ctx, method, contentType, body, nil, append([]string{"api", "v1", "namespaces", namespace, "events"}, name...)...)
	switch {
	case err == nil:
		r.count(ObjectEvent, ResultOK)
	case ctx.Err() != nil:
	case isRefused(err):
		r.count(ObjectEvent, ResultRefused)
	default:
		r.count(ObjectEvent, ResultRetry)
	}
	return err
}
