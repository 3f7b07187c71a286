package evidence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// recorded is a node's recorder as a WindowSource, without HTTP.
type recorded struct{ *window.Recorder }

func (r recorded) FindWindows(_ context.Context, node string, at time.Time, q window.Query) (*window.Answer, error) {
	if node != "h1" {
		return nil, errors.New("connection refused")
	}
	return r.Recorder.FindWindows(&q, at)
}

// TestWindowsOfNodesAreThoseOfPrometheus compares what a node keeps of a flow with what Prometheus' engine finds in the
// scrapes of the same counters.
func TestWindowsOfNodesAreThoseOfPrometheus(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const first, buckets = -290, 24
	s, r := healthy(), window.NewRecorder()
	s.sent, s.sentRev, s.acked, s.late, s.lostFwd, s.lostRev, s.owdFwd, s.owdRev = "", "", "", "", "", "", "", ""
	var sent, lost, total uint64
	counts := [window.Directions][buckets]uint64{}
	for at := range 25 {
		if at > 0 {
			gone := uint64(rng.IntN(20))
			sent, lost = sent+100, lost+gone
			for d := range counts {
				for range 100 - gone {
					counts[d][min(buckets-1, int(3*math.Abs(rng.NormFloat64())*float64(1+d)))]++
				}
			}
			total += 100 - gone
		}
		back := sent - lost
		for to, v := range map[*string]uint64{&s.sent: sent, &s.sentRev: back, &s.acked: back, &s.late: 0, &s.lostFwd: lost, &s.lostRev: 0} {
			*to += fmt.Sprintf(" %d", v)
		}
		reading := &window.Reading{At: time.Unix(int64(at), 0), NICs: []window.NICReading{{NIC: "h1/eth1", ClockUsable: true}}}
		f := window.FlowReading{Flow: fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}, Plane: "a", Tier: 2, Sent: [2]uint64{sent, back}, Lost: [2]uint64{lost, 0}, Replies: back}
		for d, to := range []*string{&s.owdFwd, &s.owdRev} {
			*to += fmt.Sprintf(" {{schema:4 count:%d sum:1 offset:%d buckets:%v}}", total, first, counts[d])
			frozen := counts[d]
			f.Delays[d] = []window.Buckets{{}, {Positive: func(yield func(int, uint64) bool) {
				for i, n := range frozen {
					if n > 0 && !yield(first+i, n) {
						return
					}
				}
			}}, {}}
		}
		reading.Flows = []window.FlowReading{f}
		r.AddReading(reading)
	}
	db := s.load(t)
	for at := int64(6); at < 24; at++ {
		settings := DefaultSettings()
		settings.Lag = time.Second
		now := time.Unix(at, 0)
		theirs, err := ReadWindow(t.Context(), db, settings, now)
		if err != nil {
			t.Fatal(err)
		}
		settings.Windows = recorded{r}
		own, err := ReadWindow(t.Context(), db, settings, now)
		if err != nil {
			t.Fatal(err)
		}
		if len(own.Observations) != 2 || len(theirs.Observations) != 2 || own.Flows != theirs.Flows {
			t.Fatalf("%d s: %d observations, Prometheus has %d", at, len(own.Observations), len(theirs.Observations))
		}
		for _, o := range own.Observations {
			i := slices.IndexFunc(theirs.Observations, func(p *fabric.Observation) bool { return p.Edge == o.Edge })
			p := theirs.Observations[i]
			if o.Sent != p.Sent || o.Lost != p.Lost || o.Timestamp != p.Timestamp || o.Tier != p.Tier || !o.Start.Equal(p.Start) || *o.ECN != 0 {
				t.Errorf("%d s: %s: %d of %d lost, Prometheus has %d of %d", at, o.Edge, o.Lost, o.Sent, p.Lost, p.Sent)
			}
			for q, pair := range map[string][2]*int64{"p50": {o.OWD.P50, p.OWD.P50}, "p90": {o.OWD.P90, p.OWD.P90}, "p99": {o.OWD.P99, p.OWD.P99}} {
				if have, want := float64(*pair[0]), float64(*pair[1]); math.Abs(have-want) > 1e-3*want {
					t.Errorf("%d s: %s: %s is %v ns, Prometheus has %v ns", at, o.Edge, q, have, want)
				}
			}
		}
		if warned := len(own.Warnings) == 1 && strings.HasPrefix(own.Warnings[0], "the windows of 1 of 2 nodes are missing or incomplete, of h2 for one: connection refused"); !warned {
			t.Errorf("%d s: %q", at, own.Warnings)
		}
	}
}

// TestRule19WhatANodeCannotHaveMeasured checks that such an answer is refused as a whole, and that the reason is named.
func TestRule19WhatANodeCannotHaveMeasured(t *testing.T) {
	number := func(v float64) *float64 { return &v }
	delay := func(v int64) *int64 { return &v }
	for want, spoil := range map[string]func(a *window.Answer){
		"":                           func(*window.Answer) {},
		"the answer has no window":   func(a *window.Answer) { a.EndAges = nil },
		`NIC "h2/eth1", which is no`: func(a *window.Answer) { a.NICs["h2/eth1"] = window.Host{} },
		"which is not its own":       func(a *window.Answer) { a.Flows[0].Edge = "h2/eth1>h1/eth1#0" },
		"/r":                         func(a *window.Answer) { a.Flows[0].Edge += "/r" },
		"sent of -1":                 func(a *window.Answer) { a.Flows[0].Windows[0].Sent[0] = number(-1) },
		"lost of 1e+12":              func(a *window.Answer) { a.Flows[0].Windows[0].Lost[1] = number(1e12) },
		"what another node counts":   func(a *window.Answer) { a.Flows[0].Windows[0].LastReceived = number(5) },
		"a delay of": func(a *window.Answer) {
			a.Flows[0].Windows[0].Delays[0]["kernel"] = window.Distribution{Count: 100, Quantiles: fabric.Quantiles{P50: delay(math.MaxInt64)}}
		},
		"a baseline of":     func(a *window.Answer) { a.Flows[0].Baselines[1] = &window.Baseline{MAD: -1} },
		"is another node's": func(a *window.Answer) { a.Received = map[string]float64{"h1/eth1>h2/eth1#0": 1} },
		"received of -1":    func(a *window.Answer) { a.Received = map[string]float64{"h2/eth1>h1/eth1#0": -1} },
	} {
		a := &window.Answer{Node: "h1", EndAges: []int64{0}, NICs: map[string]window.Host{"h1/eth1": {}}, Flows: []window.FlowWindows{{Edge: "h1/eth1>h2/eth1#0", Windows: []*window.Counts{
			{Sent: [2]*float64{number(200), number(200)}, Delays: [2]map[string]window.Distribution{{"kernel": {}}, nil}}, nil}}}}
		spoil(a)
		if err := checkAnswer("h1", a); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestAgentWindows checks how agents are asked, and what an answer costs at most.
func TestAgentWindows(t *testing.T) {
	var asked window.Query
	reply := func(w http.ResponseWriter, r *http.Request) {
		var err error
		if asked, err = window.ParseQuery(r.URL.Query()); err != nil || r.URL.Path != "/api/v1/windows" {
			t.Errorf("%s: %v", r.URL, err)
		}
		_ = json.NewEncoder(w).Encode(&window.Answer{Node: "h1"})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reply(w, r) }))
	defer server.Close()
	a := &AgentWindows{Client: server.Client(), URL: func(node string) string {
		if node == "h1" {
			return server.URL
		}
		return ""
	}, Timeout: 5 * time.Second}
	find := func(node string) error {
		_, err := a.FindWindows(t.Context(), node, time.Now().Add(-1300*time.Millisecond), window.Query{From: []string{"h1/eth1"}})
		return err
	}
	if err := find("h1"); err != nil || !slices.Equal(asked.From, []string{"h1/eth1"}) || asked.Age < 1300*time.Millisecond {
		t.Errorf("%v, asked %+v", err, asked)
	}
	if err := find("h2"); err == nil || err.Error() != "its address is unknown" {
		t.Error(err)
	}
	reply = func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no window has ended yet", http.StatusServiceUnavailable)
	}
	if err := find("h1"); err == nil || err.Error() != "503 Service Unavailable: no window has ended yet" {
		t.Error(err)
	}
	reply = func(w http.ResponseWriter, _ *http.Request) {
		for range maxWindowAnswer >> 20 {
			_, _ = w.Write([]byte(strings.Repeat(" ", 1<<20)))
		}
		_, _ = w.Write([]byte("{}"))
	}
	if err := find("h1"); err == nil || !strings.Contains(err.Error(), "invalid answer") {
		t.Errorf("an answer that is too large: %v", err)
	}
	hang := make(chan struct{})
	defer close(hang)
	reply = func(http.ResponseWriter, *http.Request) { <-hang }
	a.Timeout = 50 * time.Millisecond
	if err := find("h1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an agent that hangs: %v", err)
	}
}

// FuzzAnswer checks that no answer of a node makes the analyzer fail, and that what is accepted is about the node's own flows.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"end_ages_ns":[1],"nics":{"h1/eth1":{"clock_usable":true}},"flows":[{"edge":"h1/eth1>h2/eth1#0","baselines":[{"p50":1},null],"windows":[{"sent":[200,1],"lost":[0,null],"last_sent":100,"last_replies":0,"delays":[{"kernel":{"count":20,"p50":5}},null]}]}],"received":{"h2/eth1>h1/eth1#0":3}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var a window.Answer
		if json.Unmarshal(text, &a) != nil || checkAnswer("h1", &a) != nil {
			return
		}
		r := newAskedWindows()
		if err := r.addAnswer(&a); err != nil && !a.Truncated {
			t.Fatal(err)
		}
		r.queriesForReflectors()
		r.fillReceived()
		for k, c := range r.flows {
			if fabric.OwnerOf(k.edge.Src) != "h1" {
				t.Errorf("%s is not the node's", k.edge)
			}
			for _, reply := range []bool{false, true} {
				if o := c.Observation(k.edge, reply, time.Unix(1000, 0), window.Span); o != nil && o.Lost > o.Sent {
					t.Errorf("%d of %d lost", o.Lost, o.Sent)
				}
			}
		}
	})
}

// TestAllWindowsOfAFewNodes checks that a cycle without an overview asks all of a small fleet, and none of a large one.
func TestAllWindowsOfAFewNodes(t *testing.T) {
	for nodes, want := range map[int]string{manyNodes: "", manyNodes + 1: "nodes that publish fabric_nic_flows are expected where there are more than 256"} {
		s := healthy()
		for i := range nodes - 2 { // healthy has two
			s.more += fmt.Sprintf("  graylink_node_stalled_seconds_total{nic=\"n%d/eth1\"} 0x30\n", i)
		}
		settings := DefaultSettings()
		asked := askedNodes{}
		settings.Windows = &asked
		c, err := BeginCycle(t.Context(), s.load(t), settings, time.Unix(20, 0))
		if err != nil {
			t.Fatal(err)
		}
		w, err := c.ReadAllFlows(t.Context())
		if got := asked.n.Load(); want == "" && (err != nil || got != int64(nodes)) || want != "" && (err == nil || !strings.Contains(err.Error(), want) || got > 0) {
			t.Errorf("%d nodes: %d are asked, %v, %d flows", nodes, got, err, w.Flows)
		}
	}
}

// askedNodes counts the requests for windows, which no node answers.
type askedNodes struct{ n atomic.Int64 }

func (a *askedNodes) FindWindows(context.Context, string, time.Time, window.Query) (*window.Answer, error) {
	a.n.Add(1)
	return nil, errors.New("no answer")
}
