//go:build beside

package demo

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

var (
	outageSpan  = flag.Duration("beside.outage", 2*time.Minute, "how long the server of TestPrometheusFails stands still, and is dead")
	troubleSpan = flag.Duration("beside.trouble", 30*time.Second, "how long it is slow, incomplete, or of another time")
)

// hostile stands before a Prometheus server and spoils its answers to instant queries.
type hostile struct {
	server string        // its base URL
	delay  atomic.Int64  // of every answer, nanoseconds
	ahead  atomic.Int64  // of its clock, nanoseconds
	hide   atomic.Uint32 // rowsHidden, flowsHidden or 0
}

// The kinds of data of which half is hidden: single rows, or all rows of some flows.
const (
	rowsHidden = 1 + iota
	flowsHidden
)

func (h *hostile) hidden(query string, row map[string]string) bool {
	var key string
	switch h.hide.Load() {
	case rowsHidden:
		key = query
		for _, k := range []string{"src", "dst", "flow", "direction", "nic", "clock", "state", "timestamp"} {
			key += "\x00" + row[k]
		}
	case flowsHidden:
		if row["src"] == "" {
			return false
		}
		key = row["src"] + "\x00" + row["dst"] + "\x00" + row["flow"]
	default:
		return false
	}
	sum := fnv.New32a()
	io.WriteString(sum, key)
	return sum.Sum32()&0x100 != 0
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case <-r.Context().Done():
		return
	case <-time.After(time.Duration(h.delay.Load())):
	}
	form, ahead := r.PostForm, time.Duration(h.ahead.Load()).Seconds()
	if at := form.Get("time"); at != "" {
		s, err := strconv.ParseFloat(at, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		form.Set("time", strconv.FormatFloat(s-ahead, 'f', 3, 64))
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, h.server+r.URL.Path, strings.NewReader(form.Encode()))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	type row struct {
		Metric map[string]string `json:"metric"`
		Value  [2]any            `json:"value"`
	}
	var a struct {
		Status string `json:"status"`
		Error  string `json:"error,omitempty"`
		Data   struct {
			Type   string `json:"resultType"`
			Result []row  `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	query := form.Get("query")
	a.Data.Result = slices.DeleteFunc(a.Data.Result, func(x row) bool { return h.hidden(query, x.Metric) })
	for i := range a.Data.Result {
		v := &a.Data.Result[i].Value
		v[0] = v[0].(float64) + ahead
		if query == "vector(time())" {
			now, err := strconv.ParseFloat(v[1].(string), 64)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			v[1] = strconv.FormatFloat(now+ahead, 'f', 3, 64)
		}
	}
	w.WriteHeader(resp.StatusCode)
	_ = json.NewEncoder(w).Encode(a)
}

// trouble is a way in which a Prometheus server fails.
type trouble struct {
	name       string
	span       time.Duration
	begin, end func()
	// all: every daemon uses the hostile server, else only one.
	all bool
	// state is that of who is hurt, while nothing else is wrong.
	state fabric.State
	blind bool // no evidence at all
}

// settles is how long a trouble may last before those it hurts say so: a question's timeout,
// the cycle before it, and a busy machine.
const settles = 15 * time.Second

// TestPrometheusFails checks that a real server may hang, die and come back, be slow, return half of its data, or be
// a minute ahead. While nothing is broken in the fabric, nothing is named, and a daemon without evidence reports
// this. An open verdict stays the same one until it is seen to be healed.
func TestPrometheusFails(t *testing.T) {
	h := &hostile{}
	front := httptest.NewServer(h)
	t.Cleanup(front.Close)
	b := newBeside(t, "fails", func(address string) map[string]daemon.Prometheus {
		h.server = (&url.URL{Scheme: "http", Host: address}).String()
		out := direct(address)
		out["hostile"] = daemon.Prometheus{Endpoint: daemon.Endpoint{URL: front.URL}, Backend: "http"}
		return out
	})
	b.wait(60*time.Second, "innocence", innocent)
	p, err := PlanFault(b.d.Graph(), "delay", 1, Params{Delay: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	set := func(v *atomic.Int64, d time.Duration) func() { return func() { v.Store(int64(d)) } }
	hide := func(what uint32) func() { return func() { h.hide.Store(what) } }
	for _, x := range []trouble{
		{name: "it is slow", span: *troubleSpan, begin: set(&h.delay, 40*time.Millisecond), end: set(&h.delay, 0), state: fabric.Innocent},
		{name: "it is too slow", span: *troubleSpan, begin: set(&h.delay, time.Second), end: set(&h.delay, 0), state: fabric.InsufficientEvidence, blind: true},
		{name: "half of the rows are missing", span: *troubleSpan, begin: hide(rowsHidden), end: hide(0), state: fabric.InsufficientEvidence},
		{name: "half of the flows are missing", span: *troubleSpan, begin: hide(flowsHidden), end: hide(0), state: fabric.InsufficientEvidence},
		// Its end is a clock that goes back: there is no evidence until it has caught up.
		{name: "its clock is a minute ahead", span: *troubleSpan, begin: set(&h.ahead, time.Minute), end: set(&h.ahead, 0), state: fabric.Innocent},
		{name: "it stands still", span: *outageSpan, begin: func() { b.server.signal(syscall.SIGSTOP) }, end: func() { b.server.signal(syscall.SIGCONT) }, all: true, state: fabric.InsufficientEvidence, blind: true},
		{name: "it dies and comes back", span: *outageSpan, begin: b.server.kill, end: b.server.start, all: true, state: fabric.InsufficientEvidence, blind: true},
	} {
		// After one that fails nothing is as the next one expects it.
		if !t.Run(x.name+", nothing is broken", func(t *testing.T) { b.in(t, func() { b.healthy(x) }) }) ||
			!t.Run(x.name+", a link is slow", func(t *testing.T) { b.in(t, func() { b.faulty(x, p) }) }) {
			return
		}
	}
}

// in runs a subtest.
func (b *beside) in(t *testing.T, run func()) {
	outer := b.t
	b.t, b.server.t = t, t
	defer func() { b.t, b.server.t = outer, outer }()
	began := time.Now()
	run()
	t.Logf("%.0f s", time.Since(began).Seconds())
}

// during looks at every daemon while a trouble lasts; last is the last look.
func (b *beside) during(x trouble, look func(name string, s snapshot.Snapshot, hurt, settled, last bool)) {
	b.t.Helper()
	began := time.Now()
	x.begin()
	for last := false; !last; time.Sleep(100 * time.Millisecond) {
		past := time.Since(began)
		last = past >= max(x.span, settles)
		for name, a := range b.daemons {
			look(name, a.CurrentLoop().Snapshot(), x.all || name == "hostile", past >= settles, last)
		}
	}
	x.end()
}

func (b *beside) known() map[string]int {
	out := map[string]int{}
	for name, a := range b.daemons {
		out[name] = len(a.CurrentLoop().Snapshot().Incidents)
	}
	return out
}

// again is how long after a trouble everything may take to be well: a clock that went back
// by a minute has to catch up.
const again = 3 * time.Minute

// see waits until every daemon has had more cycles with evidence than clear an incident, and
// looks at them meanwhile.
func (b *beside) see(look func(name string, s snapshot.Snapshot)) {
	b.t.Helper()
	const cycles = 8
	began, seen := time.Now(), map[string]uint64{}
	for name, a := range b.daemons {
		seen[name] = a.CurrentLoop().CycleCounts().Cycles
	}
	for name, a := range b.daemons {
		for ; a.CurrentLoop().CycleCounts().Cycles < seen[name]+cycles; time.Sleep(50 * time.Millisecond) {
			look(name, a.CurrentLoop().Snapshot())
			if time.Since(began) > again {
				b.t.Fatalf("%s: no %d cycles with evidence within %s: %q", name, cycles, again, a.CurrentLoop().Snapshot().CycleError)
			}
		}
	}
}

// healthy: nothing is named, and the state is what it should be.
func (b *beside) healthy(x trouble) {
	t := b.t
	before := b.known()
	b.during(x, func(name string, s snapshot.Snapshot, hurt, settled, last bool) {
		if len(s.Incidents) != before[name] || s.Report.State == fabric.Suspect {
			t.Fatalf("%s: %s, %+v", name, s.Report.State, s.Incidents[0].Verdict)
		}
		want := fabric.Innocent
		if hurt {
			want = x.state
		}
		// One cycle that fails, for whatever reason, is no harm.
		if settled && (s.Report.State != want && (want != fabric.Innocent || last)) {
			t.Errorf("%s: %s (%q), want %s", name, s.Report.State, s.CycleError, want)
		}
		if settled && hurt && x.blind && (s.Report.Coverage != (fabric.Coverage{}) || s.CycleError == "") {
			t.Errorf("%s is blind: coverage %+v, error %q", name, s.Report.Coverage, s.CycleError)
		}
		if last {
			t.Logf("%s: %s, coverage of flows %.2f, %q", name, s.Report.State, s.Report.Coverage.Edges, s.CycleError)
		}
	})
	b.see(func(string, snapshot.Snapshot) {})
	b.wait(again, "innocence", innocent)
	if now := b.known(); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("incidents: %v, before it %v", now, before)
	}
}

// faulty: the verdict that was open stays the only one, and is cleared when it is seen to be
// healed.
func (b *beside) faulty(x trouble, p PlannedFault) {
	t := b.t
	before := b.known()
	if _, err := b.d.site.AddFault(t.Context(), p.Fault); err != nil {
		t.Fatal(err)
	}
	open := func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 1 && p.NamedBy(&s.Report.Verdicts[0]) }
	b.wait(45*time.Second, "the verdict", open)
	id := map[string]string{}
	for name, a := range b.daemons {
		id[name] = a.CurrentLoop().Snapshot().Report.Verdicts[0].ID
	}
	same := func(name string, s snapshot.Snapshot) {
		if !open(s) || s.Report.Verdicts[0].ID != id[name] || s.Report.State != fabric.Suspect || len(s.Incidents) != before[name]+1 {
			t.Fatalf("%s: %s, %d incidents where %d were before the fault, open %+v; want that of %s only", name, s.Report.State, len(s.Incidents), before[name], s.Report.Verdicts, id[name])
		}
	}
	b.during(x, func(name string, s snapshot.Snapshot, hurt, settled, last bool) {
		same(name, s)
		if settled && hurt && x.blind && (s.Incidents[0].Held == "" || s.Report.Coverage != (fabric.Coverage{})) {
			t.Errorf("%s is blind: held %q, coverage %+v", name, s.Incidents[0].Held, s.Report.Coverage)
		}
		if last {
			t.Logf("%s: %s, coverage of flows %.2f, held %q", name, s.Report.State, s.Report.Coverage.Edges, s.Incidents[0].Held)
		}
	})
	b.see(same)
	if err := b.d.site.ClearFault(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	b.wait(again, "innocence", innocent)
	for name, n := range b.known() {
		if n != before[name]+1 {
			t.Errorf("%s: %d incidents, want %d and one more", name, n, before[name])
		}
	}
}
