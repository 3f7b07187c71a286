package kubenode

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/graylink/graylink/internal/kubeapi"
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

// eventUpdate is the patch of an event that happened again.
type eventUpdate struct {
	Count int    `json:"count"`
	Last  string `json:"lastTimestamp"`
}

// eventKey holds the fields in which two events must agree to be counted as one: rule 4.
type eventKey struct{ kind, reason, message, nic string }

// pendingEvent is an event that waits, perhaps several times.
type pendingEvent struct {
	eventKey
	first, last time.Time
	count       int
	allowed     bool // by the limit, which is checked once
	sending     bool
	name        string // of the object; given once, so that a repeated request is seen to be one
	tried       bool   // to write it under that name
}

func newPendingEvent(e *nichealth.Event) *pendingEvent {
	p := &pendingEvent{first: e.GeneratedTimestamp, last: e.GeneratedTimestamp, count: 1}
	code := ""
	if len(e.ErrorCode) > 0 {
		code = e.ErrorCode[0]
	}
	p.kind, p.reason, p.message = typeWarning, reasonOf(code), kubeapi.Truncate(e.Message)
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

// writtenEvent is an event that the server has.
type writtenEvent struct {
	name  string
	first time.Time
	last  time.Time
	count int
}

// limiter is rule 5 for one NIC.
type limiter = rate.Limiter

// eventQueue are the events that wait, and what is known of those before. The reporter's mutex guards it, but for sent and named, which are
// the sending goroutine's.
type eventQueue struct {
	waiting      []*pendingEvent
	more         chan struct{} // has an element when the queue may have grown
	limits       map[string]*limiter
	sent         map[eventKey]*writtenEvent
	lastNameTime int64 // what the name of the last event was made of, Unix nanoseconds
}

// addOrMerge queues p, or counts it with one that waits. full: the oldest was lost for it.
func (q *eventQueue) addOrMerge(p *pendingEvent) (full bool) {
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

// nextEvent returns the event to send now, and nil if there is none. The events before it are dropped by rules 5 and
// 6.
func (r *Reporter) nextEvent(now time.Time) *pendingEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := &r.events
	for len(q.waiting) > 0 {
		p := q.waiting[0]
		switch {
		case now.Sub(p.last) > maxEventAge:
			r.stats.Dropped[DropOld] += uint64(p.count)
		case p.allowed || q.limiterFor(p.nic).AllowN(now, 1):
			p.allowed, p.sending = true, true
			return p
		default:
			r.stats.Dropped[DropLimited] += uint64(p.count)
		}
		q.waiting = append(q.waiting[:0:0], q.waiting[1:]...)
	}
	return nil
}

func (q *eventQueue) limiterFor(nic string) *limiter {
	l := q.limits[nic]
	if l == nil {
		l = rate.NewLimiter(rate.Every(refillEvery), eventBurst)
		q.limits[nic] = l
	}
	return l
}

// removeEvent takes p out of the queue, unless it was lost meanwhile.
func (r *Reporter) removeEvent(p *pendingEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events.waiting = slices.DeleteFunc(r.events.waiting, func(w *pendingEvent) bool { return w == p })
}

// sendEvents sends until ctx ends, and then what waits, as far as the first attempt of each goes.
func (r *Reporter) sendEvents(ctx context.Context) {
	var wait backoff
	failed := false
	for ctx.Err() == nil {
		p := r.nextEvent(time.Now())
		if p == nil {
			select {
			case <-ctx.Done():
			case <-r.events.more:
			}
			continue
		}
		err := r.sendEvent(ctx, p)
		switch {
		case err == nil:
			r.removeEvent(p)
			wait.reset()
			if failed {
				r.log.Info("sending events to Kubernetes works again")
			}
			failed = false
		case ctx.Err() != nil:
		case kubeapi.IsPermanent(err):
			r.removeEvent(p)
			r.countDropped(DropRefused, p.count)
			r.log.Error("Kubernetes refused an event", "reason", p.reason, "err", err)
		default:
			if !failed {
				r.log.Warn("cannot send events to Kubernetes; will retry", "err", err)
			}
			failed = true
			sleepContext(ctx, wait.waitAfter(err))
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	for p := r.nextEvent(time.Now()); p != nil && r.sendEvent(last, p) == nil; p = r.nextEvent(time.Now()) {
		r.removeEvent(p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.events.waiting {
		r.stats.Dropped[DropEnd] += uint64(p.count)
	}
	r.events.waiting = nil
}

// sendEvent writes an event: as a higher count of one before, or as a new one.
func (r *Reporter) sendEvent(ctx context.Context, p *pendingEvent) error {
	sent := r.events.sent
	for k, w := range sent {
		if p.last.Sub(w.last) > aggregateFor {
			delete(sent, k)
		}
	}
	first, count := p.first, p.count
	if w := sent[p.eventKey]; w != nil {
		first, count = w.first, count+w.count
		err := r.requestCounted(ctx, http.MethodPatch, kubeapi.TypePatch, eventUpdate{Count: count, Last: formatTime(p.last)}, w.name)
		if err == nil {
			w.count, w.last = count, p.last
			return nil
		}
		if !kubeapi.HasCode(err, http.StatusNotFound) {
			return err
		}
		delete(sent, p.eventKey) // the server forgot it: it is new, with the old count
		p.first, p.count = first, count
	}
	if p.name == "" {
		// As client-go names events, and never one name twice.
		r.events.lastNameTime = max(r.events.lastNameTime+1, time.Now().UnixNano())
		p.name = fmt.Sprintf("%s.%x", r.c.Node, r.events.lastNameTime)
	}
	repeated := p.tried
	p.tried = true
	err := r.requestCounted(ctx, http.MethodPost, kubeapi.TypeJSON, event{
		APIVersion: "v1", Kind: "Event", Metadata: metadata{p.name, namespace}, About: reference{"Node", r.c.Node, r.c.Node},
		Reason: p.reason, Message: p.message, Source: source{nichealth.Agent, r.c.Node}, First: formatTime(first), Last: formatTime(p.last), Count: count, Type: p.kind,
		Component: nichealth.Agent, Instance: r.c.Node,
	})
	if kubeapi.HasCode(err, http.StatusConflict) {
		if !repeated {
			p.name, p.tried = "", false // another one has it
			return err
		}
		err = nil // it is ours: an answer was lost
	}
	if err != nil {
		return err
	}
	sent[p.eventKey] = &writtenEvent{name: p.name, first: first, last: p.last, count: count}
	return nil
}

// requestCounted counts.
func (r *Reporter) requestCounted(ctx context.Context, method, contentType string, body any, name ...string) error {
	err := r.api.SendRequest(ctx, method, contentType, body, nil, append([]string{"api", "v1", "namespaces", namespace, "events"}, name...)...)
	switch {
	case err == nil:
		r.countRequest(ObjectEvent, ResultOK)
	case ctx.Err() != nil:
	case kubeapi.IsPermanent(err):
		r.countRequest(ObjectEvent, ResultRefused)
	default:
		r.countRequest(ObjectEvent, ResultRetry)
	}
	return err
}
