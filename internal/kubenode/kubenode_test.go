package kubenode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gopkg.in/yaml.v3"
	"k8s.io/client-go/rest"

	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/nichealth"
)

// server is an API server, as far as Nodes' status and events go: by the API's reference it merges conditions by their type, and knows events
// by their names.
type server struct {
	mu         sync.Mutex
	token      string // that it accepts; "" means any
	conditions []map[string]any
	events     map[string]map[string]any
	requests   []request
	fail       []func(w http.ResponseWriter) bool // of the requests to come; true: it was answered
	lost       int                                // answers to come that are lost after the request was done
	now        func() time.Time
}

type request struct {
	at         time.Time
	what, body string
}

func newServer() *server {
	return &server{events: map[string]map[string]any{}, now: time.Now, conditions: []map[string]any{
		{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}}}
}

func (s *server) answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func (s *server) status(w http.ResponseWriter, code int, reason string) {
	s.answer(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "code": code})
}

func failing(code int, header ...string) func(http.ResponseWriter) bool {
	return func(w http.ResponseWriter) bool {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		(&server{}).status(w, code, fmt.Sprintf("made up %d", code))
		return true
	}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		s.status(w, http.StatusBadRequest, err.Error())
		return
	}
	s.requests = append(s.requests, request{s.now(), r.Method + " " + r.URL.Path, string(b)})
	if s.token != "" && r.Header.Get("Authorization") != "Bearer "+s.token {
		s.status(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	if len(s.fail) > 0 {
		f := s.fail[0]
		s.fail = s.fail[1:]
		if f != nil && f(w) {
			return
		}
	}
	if s.lost > 0 {
		s.lost--
		s.do(httptest.NewRecorder(), r, b)
		panic(http.ErrAbortHandler)
	}
	s.do(w, r, b)
}

const eventsPath = "/api/v1/namespaces/default/events"

func (s *server) do(w http.ResponseWriter, r *http.Request, b []byte) {
	var body map[string]any
	if err := json.Unmarshal(b, &body); err != nil {
		s.status(w, http.StatusBadRequest, err.Error())
		return
	}
	name, isEvent := strings.CutPrefix(r.URL.Path, eventsPath+"/")
	patch := r.Method == http.MethodPatch
	if patch && r.Header.Get("Content-Type") != "application/strategic-merge-patch+json" {
		s.status(w, http.StatusUnsupportedMediaType, "the body of the request was in an unknown format")
		return
	}
	switch {
	case patch && r.URL.Path == "/api/v1/nodes/n1/status":
		status, _ := body["status"].(map[string]any)
		patches, _ := status["conditions"].([]any)
		for _, p := range patches {
			s.merge(p.(map[string]any))
		}
		s.answer(w, 200, map[string]any{"kind": "Node", "metadata": map[string]any{"name": "n1"}, "status": map[string]any{"conditions": s.conditions}})
	case patch && isEvent:
		if s.events[name] == nil {
			s.status(w, http.StatusNotFound, "events not found")
			return
		}
		maps.Copy(s.events[name], body)
		s.answer(w, 200, s.events[name])
	case r.Method == http.MethodPost && r.URL.Path == eventsPath:
		meta, _ := body["metadata"].(map[string]any)
		about, _ := body["involvedObject"].(map[string]any)
		name, _ := meta["name"].(string)
		switch {
		case name == "" || meta["namespace"] != "default" || about["kind"] != "Node" || body["reason"] == "":
			s.status(w, http.StatusUnprocessableEntity, "Event is invalid")
		case s.events[name] != nil:
			s.status(w, http.StatusConflict, "events already exists")
		default:
			s.events[name] = body
			s.answer(w, 201, body)
		}
	default:
		s.status(w, http.StatusForbidden, r.Method+" "+r.URL.Path+" is forbidden")
	}
}

// merge applies a strategic merge: the key of conditions is their type.
func (s *server) merge(p map[string]any) {
	for _, c := range s.conditions {
		if c["type"] == p["type"] {
			maps.Copy(c, p)
			return
		}
	}
	s.conditions = append(s.conditions, p)
}

// condition returns "status reason message", and the times.
func (s *server) condition(t string) (text, transition, heartbeat string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conditions {
		if c["type"] == t {
			transition, _ = c["lastTransitionTime"].(string)
			heartbeat, _ = c["lastHeartbeatTime"].(string)
			return fmt.Sprintf("%v %v %v", c["status"], c["reason"], c["message"]), transition, heartbeat
		}
	}
	return "none", "", ""
}

func (s *server) count(prefix string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if strings.HasPrefix(r.what, prefix) {
			n++
		}
	}
	return n
}

func (s *server) next(fs ...func(http.ResponseWriter) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = append(s.fail, fs...)
}

// away makes every request fail, or ends that.
type away struct {
	http.RoundTripper
	mu   sync.Mutex
	gone bool
}

func (a *away) is(gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = gone
}

// RoundTrip calls a server without a network, so that the test controls the time.
func (a *away) RoundTrip(q *http.Request) (r *http.Response, err error) {
	a.mu.Lock()
	gone := a.gone
	a.mu.Unlock()
	if gone {
		return nil, errors.New("connection refused")
	}
	defer func() {
		if recover() != nil {
			err = io.ErrUnexpectedEOF
		}
	}()
	return a.RoundTripper.RoundTrip(q)
}

type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(q *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, q)
	return w.Result(), nil
}

// nics hold the state that State returns.
type nics struct {
	mu     sync.Mutex
	open   []nichealth.Finding
	unread time.Time // since when devices cannot be read; zero: they can
	never  bool
}

func (n *nics) state() State {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := State{Findings: n.open, Read: n.unread}
	if n.unread.IsZero() && !n.never {
		s.Read = time.Now()
	}
	return s
}

func (n *nics) set(open ...nichealth.Finding) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open = open
}

func (n *nics) readable(yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unread = time.Time{}
	if !yes {
		n.unread = time.Now()
	}
}

func (n *nics) polled(yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.never = !yes
}

func fatal(device, code string) nichealth.Finding {
	return nichealth.Finding{Entity: nichealth.PortEntity(device, 1), Code: code, Fatal: true}
}

func warning(device, code string) nichealth.Finding {
	return nichealth.Finding{Entity: nichealth.PortEntity(device, 1), Code: code}
}

type bench struct {
	*testing.T
	s *server
	n *nics
	a *away
	r *Reporter
}

// at runs f in time of its own, with a reporter that runs.
func at(t *testing.T, s *server, f func(b *bench)) {
	t.Helper()
	from(t, s, &nics{}, f)
}

// from runs f with the time at, of NICs that have a state at the start.
func from(t *testing.T, s *server, n *nics, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, s: s, n: n, a: &away{RoundTripper: inProcess{s}}}
		a, err := kubeapi.New(&rest.Config{Host: "https://api", Transport: b.a}, program)
		if err != nil {
			t.Fatal(err)
		}
		b.r = newReporter(Config{Node: "n1", State: b.n.state}, a)
		ctx, cancel := contextOf(t)
		done := make(chan struct{})
		go func() { b.r.Run(ctx); close(done) }()
		f(b)
		cancel()
		<-done
	})
}

func (b *bench) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) is(want string) (transition, heartbeat string) {
	b.Helper()
	got, transition, heartbeat := b.s.condition(DefaultCondition)
	if !strings.HasPrefix(got, want) {
		b.Errorf("condition %q, want %q", got, want)
	}
	return transition, heartbeat
}

const healthy = "False NICsHealthy No NIC of this node has a fatal finding."

func TestRule1TheConditionSaysWhatHolds(t *testing.T) {
	from(t, newServer(), &nics{never: true}, func(b *bench) {
		b.wait(5 * time.Second)
		b.is("none") // before the first poll nothing is known
		b.n.polled(true)
		b.wait(time.Second)
		b.is(healthy)
		if ready, _, _ := b.s.condition("Ready"); !strings.HasPrefix(ready, "True KubeletReady") {
			b.Errorf("another condition was changed: %s", ready)
		}
		b.n.set(warning("mlx5_0", "symbol_error"))
		b.wait(time.Second)
		b.is(healthy)
		b.n.set(fatal("mlx5_1", "rate_below_expected"), fatal("mlx5_0", "link_downed"), fatal("mlx5_0", "state_down"), warning("mlx5_2", "state_init"))
		b.wait(time.Second)
		b.is("True StateDown mlx5_0_port1: state_down, link_downed; mlx5_1_port1: rate_below_expected")
		b.n.readable(false)
		b.wait(time.Minute)
		b.is("True StateDown") // what cannot be read clears nothing
		b.n.set()
		b.wait(time.Second)
		b.is("Unknown NICsNotReadable")
		b.n.readable(true)
		b.wait(time.Second)
		b.is(healthy)
		b.n.readable(false)
		b.wait(9 * time.Second)
		b.is(healthy) // a few polls that fail are no news
		b.wait(3 * time.Second)
		b.is("Unknown NICsNotReadable")
	})
}

func TestRule1ADeviceThatIsNeverReadIsUnknown(t *testing.T) {
	from(t, newServer(), &nics{never: true}, func(b *bench) {
		b.wait(12 * time.Second)
		b.is("Unknown NICsNotReadable")
	})
}

func TestRule2TransitionsAndHeartbeats(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		b.wait(time.Second)
		began, beat := b.is(healthy)
		before := b.s.count("PATCH")
		b.wait(16 * time.Minute)
		transition, last := b.is(healthy)
		if n := b.s.count("PATCH") - before; n != 3 {
			b.Errorf("%d patches in 16 minutes, want 3 heartbeats", n)
		}
		if transition != began || last <= beat {
			b.Errorf("transition %s, then %s; heartbeat %s, then %s", began, transition, beat, last)
		}
		b.n.set(fatal("mlx5_0", "state_down"))
		b.wait(time.Second)
		down, _ := b.is("True StateDown")
		if down <= began {
			b.Errorf("transition %s after a change at %s", down, formatTime(time.Now()))
		}
		b.wait(time.Minute)
		b.n.set(fatal("mlx5_0", "state_down"), fatal("mlx5_1", "device_disappeared"))
		b.wait(time.Second)
		if now, _ := b.is("True DeviceDisappeared"); now != down {
			b.Errorf("transition %s changed to %s with the reason", down, now)
		}
	})
}

func TestRule2OnePatchASecond(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		for i := range 100 {
			b.n.set(fatal(fmt.Sprintf("mlx5_%d", i), "state_down"))
			b.r.Offer(nichealth.Event{Message: "x", GeneratedTimestamp: time.Now()})
			b.wait(100 * time.Millisecond)
		}
		b.wait(time.Second)
		b.is("True StateDown mlx5_99_port1: state_down")
		var last time.Time
		for _, r := range b.s.requests {
			if r.what == "PATCH /api/v1/nodes/n1/status" && r.body != "{}" {
				if d := r.at.Sub(last); d < time.Second {
					b.Errorf("%v between two patches", d)
				}
				last = r.at
			}
		}
		if n := b.s.count("PATCH /api/v1/nodes"); n < 8 || n > 13 {
			b.Errorf("%d patches in 11 s", n)
		}
	})
}

// TestRule2TheTransitionOutlastsARestart: what another run of the agent wrote.
func TestRule2TheTransitionOutlastsARestart(t *testing.T) {
	for status, same := range map[string]bool{"False": true, "True": false, "Unknown": false} {
		s := newServer()
		s.conditions = append(s.conditions, map[string]any{"type": "NICProblem", "status": status, "reason": "X", "message": "x", "lastTransitionTime": "1999-01-01T00:00:00Z"})
		at(t, s, func(b *bench) {
			b.wait(time.Second)
			if transition, _ := b.is(healthy); (transition == "1999-01-01T00:00:00Z") != same {
				b.Errorf("transition %s, where the status was %s before", transition, status)
			}
		})
	}
}

func TestRule3TheLastStateWins(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		b.wait(time.Second)
		began, _ := b.is(healthy)
		b.a.is(true)
		for i := range 20 {
			b.n.set(fatal("mlx5_0", fmt.Sprintf("code_%d", i)))
			b.wait(time.Minute)
		}
		b.n.set()
		b.wait(10 * time.Second)
		before := len(b.s.requests)
		b.a.is(false)
		b.wait(61 * time.Second)
		if transition, _ := b.is(healthy); transition != began {
			b.Errorf("transition %s, want %s: the server never saw another status", transition, began)
		}
		if n := len(b.s.requests) - before; n != 2 {
			b.Errorf("%d requests after the server came back, want 2", n)
		}
	})
}

func TestRule6FailuresAreRepeatedEverMoreSlowly(t *testing.T) {
	s := newServer()
	for _, code := range []int{429, 500, 409, 401, 403, 503, 504, 404, 500, 500} {
		s.fail = append(s.fail, failing(code))
	}
	at(t, s, func(b *bench) {
		b.wait(10 * time.Minute)
		b.is(healthy)
		for i := range 10 {
			want := min(time.Second<<i, time.Minute)
			if d := s.requests[i+1].at.Sub(s.requests[i].at); d < want/2 || d > want+checkEvery {
				b.Errorf("wait %d: %v, want %v to %v", i, d, want/2, want)
			}
		}
		st := b.r.Stats()
		if st.Requests[Request{ObjectCondition, ResultRetry}] != 9 || st.Requests[Request{ObjectCondition, ResultRefused}] != 1 || st.Written.IsZero() {
			b.Errorf("%+v", st)
		}
	})
}

func TestRule6TheServerSaysWhen(t *testing.T) {
	for _, object := range []string{"nodes", "namespaces"} {
		s := newServer()
		at(t, s, func(b *bench) {
			b.wait(time.Second)
			before := b.s.count("")
			b.s.next(failing(429, "Retry-After", "77"), failing(503, "Retry-After", "999999"))
			if object == "nodes" {
				b.n.set(fatal("mlx5_0", "state_down"))
			} else {
				b.r.Offer(down(0))
			}
			b.wait(30 * time.Minute)
			var ats []time.Time
			for _, r := range b.s.requests[before:] {
				if strings.Contains(r.what, object) {
					ats = append(ats, r.at)
				}
			}
			if len(ats) < 3 {
				b.Fatalf("%d requests", len(ats))
			}
			if d := ats[1].Sub(ats[0]); d < 77*time.Second || d > 86*time.Second {
				b.Errorf("%v after 429 with Retry-After 77", d)
			}
			if d := ats[2].Sub(ats[1]); d < maxRetryAfter || d > maxRetryAfter*11/10+time.Second {
				b.Errorf("%v after 503 with a very long Retry-After", d)
			}
		})
	}
}

func down(nic int) nichealth.Event {
	return nichealth.Event{Agent: nichealth.Agent, IsFatal: true, Message: "Port: state DOWN", ErrorCode: []string{"state_down"},
		EntitiesImpacted: []nichealth.Entity{nichealth.PortEntity(fmt.Sprintf("mlx5_%d", nic), 1)}, NodeName: "h1", GeneratedTimestamp: time.Now()}
}

// list returns the server's events: "type reason xCOUNT".
func (s *server) list() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		out = append(out, fmt.Sprintf("%v %v x%v", e["type"], e["reason"], e["count"]))
	}
	return out
}

func TestEvents(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		b.r.Offer(down(0))
		b.wait(time.Second)
		for name, e := range b.s.events {
			want := map[string]any{"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"name": name, "namespace": "default"},
				"involvedObject": map[string]any{"kind": "Node", "name": "n1", "uid": "n1"}, "reason": "StateDown", "message": "Port: state DOWN",
				"source": map[string]any{"component": "graylink-node", "host": "n1"}, "firstTimestamp": e["firstTimestamp"], "lastTimestamp": e["firstTimestamp"], "count": 1.0, "type": "Warning",
				"reportingComponent": "graylink-node", "reportingInstance": "n1"}
			if fmt.Sprint(e) != fmt.Sprint(want) || !regexp.MustCompile(`^n1\.[0-9a-f]+$`).MatchString(name) {
				b.Errorf("%s: %v, want %v", name, e, want)
			}
		}
		over := down(0)
		over.IsFatal, over.IsHealthy, over.Message = false, true, "over"
		b.r.Offer(over)
		b.wait(time.Second)
		if got := b.s.list(); len(got) != 2 || !strings.Contains(strings.Join(got, ","), "Normal StateDownCleared x1") {
			b.Errorf("%v", got)
		}
	})
}

func TestRule4LikeEventsAreCounted(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		for range 3 {
			b.r.Offer(down(0))
			b.wait(9 * time.Minute)
		}
		b.r.Offer(down(1)) // of another NIC
		b.wait(time.Second)
		if got := strings.Join(b.s.list(), ","); got != "Warning StateDown x3,Warning StateDown x1" && got != "Warning StateDown x1,Warning StateDown x3" {
			b.Errorf("%s", got)
		}
		b.wait(11 * time.Minute)
		b.r.Offer(down(0))
		b.wait(time.Second)
		if got := b.s.list(); len(got) != 3 {
			b.Errorf("%v, want another event after more than ten minutes", got)
		}
		b.s.mu.Lock()
		clear(b.s.events) // they are kept for an hour only
		b.s.mu.Unlock()
		b.r.Offer(down(0))
		b.wait(time.Second)
		if got := strings.Join(b.s.list(), ","); got != "Warning StateDown x2" {
			b.Errorf("%s, want the event anew with its count", got)
		}
	})
}

func TestRule4LikeEventsThatWaitAreOne(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		b.a.is(true)
		for range 12 {
			b.r.Offer(down(0))
			b.wait(time.Second)
		}
		b.a.is(false)
		b.wait(2 * time.Minute)
		if got := strings.Join(b.s.list(), ","); got != "Warning StateDown x12" || b.s.count("POST") != 1 || b.s.count("PATCH "+eventsPath) != 1 {
			b.Errorf("%s with %d posts", got, b.s.count("POST"))
		}
	})
}

func TestRule5EveryNICHasItsLimit(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		for i := range 60 {
			e := down(0)
			e.Message = fmt.Sprint(i)
			b.r.Offer(e)
		}
		b.wait(time.Second)
		b.r.Offer(down(1))
		b.wait(time.Second)
		if n := b.s.count("POST"); n != eventBurst+1 || b.r.Stats().Dropped[DropLimited] != 60-eventBurst {
			b.Errorf("%d events, %+v; want %d of one NIC and one of the other", n, b.r.Stats(), eventBurst)
		}
		b.wait(15 * time.Minute)
		for i := range 10 {
			e := down(0)
			e.Message = fmt.Sprint("again ", i)
			b.r.Offer(e)
		}
		b.wait(time.Second)
		if n := b.s.count("POST"); n != eventBurst+4 {
			b.Errorf("%d events, want three more after 15 minutes", n-eventBurst-1)
		}
	})
}

func TestRule6EventsThatFail(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		b.wait(time.Second)
		b.s.next(failing(409) /* another has the name */, nil, failing(422), failing(500))
		for i := range 3 {
			b.r.Offer(down(i))
			b.wait(10 * time.Second)
		}
		st := b.r.Stats()
		if st.Requests[Request{ObjectEvent, ResultOK}] != 2 || st.Requests[Request{ObjectEvent, ResultRefused}] != 1 || st.Requests[Request{ObjectEvent, ResultRetry}] != 2 || st.Dropped[DropRefused] != 1 || st.Queued != 0 {
			b.Errorf("%+v", st)
		}
	})
}

// TestRule6ALostAnswerMakesNoSecondEvent checks that an event whose response was lost is not made twice.
func TestRule6ALostAnswerMakesNoSecondEvent(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		b.wait(time.Second)
		b.s.mu.Lock()
		b.s.lost = 1
		b.s.mu.Unlock()
		b.r.Offer(down(0))
		b.wait(10 * time.Second)
		if got := strings.Join(b.s.list(), ","); got != "Warning StateDown x1" || b.s.count("POST") != 2 || b.r.Stats().Queued != 0 {
			b.Errorf("%s, %d posts, %d wait", got, b.s.count("POST"), b.r.Stats().Queued)
		}
	})
}

func TestRule6OldEventsAreDropped(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		b.a.is(true)
		b.r.Offer(down(0))
		b.wait(61 * time.Minute)
		b.r.Offer(down(1))
		b.a.is(false)
		b.wait(2 * time.Minute)
		if got := b.s.list(); len(got) != 1 || b.r.Stats().Dropped[DropOld] != 1 {
			b.Errorf("%v, %+v", got, b.r.Stats())
		}
	})
}

func TestRule7AFullQueueLosesItsOldest(t *testing.T) {
	at(t, newServer(), func(b *bench) {
		b.a.is(true)
		for i := range queueLength + 5 {
			b.r.Offer(down(i))
			if i == 0 {
				b.wait(time.Second) // it is on its way
			}
		}
		if st := b.r.Stats(); st.Queued != queueLength || st.Dropped[DropFull] != 5 || b.r.events.waiting[0].nic != "mlx5_0" || b.r.events.waiting[1].nic != "mlx5_6" {
			b.Errorf("%+v", st)
		}
		b.a.is(false)
		b.wait(2 * time.Minute)
		if st := b.r.Stats(); st.Queued != 0 || len(b.s.list()) != queueLength {
			b.Errorf("%d events came, %d wait", len(b.s.list()), st.Queued)
		}
	})
}

func TestTheEndSendsWhatWaits(t *testing.T) {
	for _, gone := range []bool{false, true} {
		s := newServer()
		var r *Reporter
		at(t, s, func(b *bench) {
			r = b.r
			b.wait(time.Second)
			b.a.is(true)
			b.r.Offer(down(0))
			b.wait(time.Second)
			b.r.Offer(down(1))
			b.a.is(gone)
		})
		want := map[bool][2]int{false: {2, 0}, true: {0, 2}}[gone]
		if st := r.Stats(); len(s.list()) != want[0] || st.Dropped[DropEnd] != uint64(want[1]) || st.Queued != 0 {
			t.Errorf("server gone %v: %d events, %+v", gone, len(s.list()), st)
		}
	}
}

func TestReasons(t *testing.T) {
	valid := regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`) // NodeCondition's reason
	for code, want := range map[string]string{"state_down": "StateDown", "gid_ipv4_missing": "GidIpv4Missing", "": "NICProblem", "42": "NICProblem", "1up": "Up", "Strange code-é": "StrangeCode",
		strings.Repeat("x", 500): "X" + strings.Repeat("x", 99)} {
		if got := reasonOf(code); got != want || !valid.MatchString(got) {
			t.Errorf("%q: %q, want %q", code, got, want)
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	var fs []nichealth.Finding
	for i := range 200 {
		fs = append(fs, fatal(fmt.Sprintf("mlx5_%03d", i), "state_down"), fatal(fmt.Sprintf("mlx5_%03d", i), "state_down"))
	}
	got := describeFindings(fs)
	if len(got) > kubeapi.MaxMessage || len(got) < 900 || !strings.HasPrefix(got, "mlx5_000_port1: state_down; mlx5_001_port1") || !regexp.MustCompile(`; and 1[0-9][0-9] more$`).MatchString(got) {
		t.Errorf("%d octets: %s", len(got), got)
	}
	if got := describeFindings([]nichealth.Finding{fatal(strings.Repeat("é", 2000), "x")}); len(got) > kubeapi.MaxMessage || !strings.HasSuffix(got, "é...") {
		t.Errorf("%d octets: %s", len(got), got)
	}
	if got := kubeapi.Truncate("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("%q", got)
	}
}

func TestConfigsThatCannotBeUsed(t *testing.T) {
	state := func() State { return State{} }
	for want, c := range map[string]Config{
		`node "": want`:                   {State: state},
		`node "H1": want`:                 {Node: "H1", State: state},
		`node "a/../b": want`:             {Node: "a/../b", State: state},
		`condition "a b": want`:           {Node: "n1", Condition: "a b", State: state},
		`condition "Ready" belongs`:       {Node: "n1", Condition: "Ready", State: state},
		`state: want`:                     {Node: "n1"},
		"/nowhere/config":                 {Node: "n1", Kubeconfig: "/nowhere/config", State: state},
		"how to reach Kubernetes: unable": {Node: "n1", State: state}, // not in a cluster
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", "")
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	if err := (Config{Node: "n1.example.com", Condition: "example.com/NICProblem", State: state}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestTheManifestGivesTheRightsThatAreUsed, and no others.
func TestTheManifestGivesTheRightsThatAreUsed(t *testing.T) {
	s := newServer()
	at(t, s, func(b *bench) {
		for range 2 {
			b.r.Offer(down(0))
			b.wait(2 * time.Second)
		}
		b.is(healthy)
	})
	used := map[string]bool{}
	verbs := map[string]string{"PATCH": "patch", "POST": "create"}
	for _, r := range s.requests {
		method, path, _ := strings.Cut(r.what, " ")
		switch {
		case path == "/api/v1/nodes/n1/status":
			used["ClusterRole  nodes/status "+verbs[method]] = true
		case strings.HasPrefix(path, eventsPath):
			used["Role default events "+verbs[method]] = true
		default:
			t.Errorf("a request for %s", r.what)
		}
	}
	file, err := os.Open("../../deploy/kubernetes/node-condition-rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	given := map[string]bool{}
	for d := yaml.NewDecoder(file); ; {
		var object struct {
			Kind     string
			Metadata struct{ Namespace string }
			Rules    []struct {
				APIGroups        []string `yaml:"apiGroups"`
				Resources, Verbs []string
			}
		}
		if err := d.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, rule := range object.Rules {
			if len(rule.APIGroups) != 1 || rule.APIGroups[0] != "" {
				t.Errorf("API groups %q, want the core's", rule.APIGroups)
			}
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					given[object.Kind+" "+object.Metadata.Namespace+" "+resource+" "+verb] = true
				}
			}
		}
	}
	if !maps.Equal(used, given) || len(used) != 3 {
		t.Errorf("used %v, given %v", used, given)
	}
}
