package tracing

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// TestTracesOfOthersAreRefused: a node that reports paths of flows that it does not send, or
// times that have not come, changes no path. Otherwise it could lay the flows that suffer
// over any link.
func TestTracesOfOthersAreRefused(t *testing.T) {
	at := time.Unix(100000, 0)
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 1)
	store := paths.NewStore(w.Graph)
	tracer := NewTracer(TracerOptions{Store: store, Log: slog.New(slog.DiscardHandler)})
	mine := fabric.Flow{Src: "h1/eth1", Dst: "h3/eth1"}
	reply := fabric.Flow{Src: "h3/eth1", Dst: "h1/eth1", Reply: true}
	other := fabric.Flow{Src: "h2/eth1", Dst: "h3/eth1"}
	tracer.acceptTraces("h1", []fabric.Trace{w.TraceOf(mine, at), w.TraceOf(reply, at)}, at)
	tracer.acceptTraces("h2", []fabric.Trace{w.TraceOf(other, at)}, at)
	before := map[fabric.Flow]fabric.Path{}
	for _, e := range []fabric.Flow{mine, reply, other} {
		b, ok := store.CurrentBinding(e)
		if !ok || b.State != fabric.PathValid {
			t.Fatalf("%s: the sender's own trace is not used: %+v", e, b)
		}
		before[e] = b.Path
	}

	// h1 lays the flows of h2, and the replies to its own probes, over other links.
	moved := func(e fabric.Flow) fabric.Trace {
		honest := w.Paths[e]
		i := slices.IndexFunc(w.Flows, func(o fabric.Flow) bool {
			a, b := e.Endpoints()
			c, d := o.Endpoints()
			return a == c && b == d && !slices.Equal(w.Paths[o], honest)
		})
		if i >= 0 {
			w.Paths[e] = w.Paths[w.Flows[i]]
		} else {
			w.Paths[e] = w.Graph.ShortestPaths(e.Src, e.Dst, 8)[0]
			if slices.Equal(w.Paths[e], honest) {
				w.Paths[e] = w.Graph.ShortestPaths(e.Src, e.Dst, 8)[1]
			}
		}
		lie := w.TraceOf(e, at)
		w.Paths[e] = honest
		return lie
	}
	lie := moved(other)
	lie.TracedAt = at.Add(500 * time.Millisecond)
	own := fabric.Flow{Src: "h3/eth1", Dst: "h2/eth1"}
	tracer.acceptTraces("h1", []fabric.Trace{lie, {Edge: own.String()}, {Edge: "h1/eth1>h3/eth1#0/r"}, {Edge: "nonsense"}}, at.Add(time.Second))
	if b, _ := store.CurrentBinding(other); !slices.Equal(b.Path, before[other]) {
		t.Errorf("the path of %s is %v, as h1 says", other, b.Path)
	}

	// Times ahead: what is within the clocks' difference is now, a day is refused.
	ahead := moved(mine)
	ahead.TracedAt = at.Add(24 * time.Hour)
	tracer.acceptTraces("h1", []fabric.Trace{ahead}, at)
	if b, _ := store.CurrentBinding(mine); !slices.Equal(b.Path, before[mine]) {
		t.Errorf("the path of %s is of tomorrow", mine)
	}
	near := w.TraceOf(mine, at)
	near.TracedAt = at.Add(maxTraceLead / 2)
	tracer.acceptTraces("h1", []fabric.Trace{near}, at.Add(time.Millisecond))
	if b, _ := store.CurrentBinding(mine); b.Checked.After(at.Add(time.Millisecond)) {
		t.Errorf("%s was checked at %s, which has not come", mine, b.Checked)
	}
	want := map[TraceRefusal]uint64{{"h1", foreignFlow}: 3, {"h1", unknownEdge}: 1, {"h1", futureTrace}: 1}
	got := tracer.RefusedTraces()
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%d refused for %v, want %d: %v", got[k], k, n, got)
		}
	}
	// What was true an hour later is not hidden by what was said before.
	later := w.TraceOf(mine, at)
	later.TracedAt = at.Add(time.Minute)
	tracer.acceptTraces("h1", []fabric.Trace{later}, at.Add(time.Minute))
	if b, _ := store.CurrentBinding(mine); !b.Checked.Equal(later.TracedAt) {
		t.Errorf("%s was last checked at %s, want %s", mine, b.Checked, later.TracedAt)
	}
}

// TestTimesOfNodesBecomeLocal: the times of a node whose clock is a minute ahead are moved by
// what its answer says, those of an agent that sends no time are left.
func TestTimesOfNodesBecomeLocal(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ahead time.Duration
		now   bool
		limit time.Duration
	}{{"a minute ahead", time.Minute, true, time.Second}, {"a minute behind", -time.Minute, true, time.Second},
		{"in step", 0, true, time.Second}, {"an older agent", 0, false, time.Second}} {
		traced := time.Now().Add(-10 * time.Second)
		agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			text := `{"node":"h1",`
			if tc.now {
				text += `"now":"` + time.Now().Add(tc.ahead).UTC().Format(time.RFC3339Nano) + `",`
			}
			text += `"paths":[{"edge":"h1/eth1>h2/eth1","traced_at":"` + traced.Add(tc.ahead).UTC().Format(time.RFC3339Nano) + `"}]}`
			if _, err := w.Write([]byte(text)); err != nil {
				t.Error(err)
			}
		}))
		got, err := HTTPAgents{Client: agent.Client(), URL: func(string) string { return agent.URL }}.TracedPaths(t.Context(), "h1", 0)
		agent.Close()
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %v, %v", tc.name, got, err)
		}
		if off := got[0].TracedAt.Sub(traced).Abs(); off > tc.limit {
			t.Errorf("%s: %s off", tc.name, off)
		}
	}
}

// An answer has a trace for each tuple of the request, in its order.
func TestTuplesAreTracedByTheirNode(t *testing.T) {
	tuples := []fabric.Tuple{{Src: "h1/eth1", Dst: "h2/eth1", Proto: "udp", DPort: 4791, SPort: 50000}, {Src: "h1/eth1", Dst: "h2/eth1", Proto: "udp", DPort: 4791, SPort: 50001, Variant: 1}}
	one := func(sport, variant int) string {
		return fmt.Sprintf(`{"tuple":{"src":"h1/eth1","dst":"h2/eth1","proto":"udp","dport":4791,"sport":%d,"dscp":0,"variant":%d},"marking":"none","trace":{"state":"valid","hops":[]}}`, sport, variant)
	}
	for _, x := range []struct{ traces, wrong string }{
		{one(50000, 0) + "," + one(50001, 1), ""},
		{one(50000, 0), "1 traces of 2 tuples"},
		{one(50001, 1) + "," + one(50000, 0), "trace 0 is of another tuple"},
	} {
		agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var body struct{ Tuples []fabric.Tuple }
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/api/v1/trace-tuples" || !slices.Equal(body.Tuples, tuples) {
				t.Errorf("%s %+v, %v", r.URL, body, err)
			}
			if _, err := w.Write([]byte(`{"node":"h1","traces":[` + x.traces + `]}`)); err != nil {
				t.Error(err)
			}
		}))
		got, err := HTTPAgents{Client: agent.Client(), URL: func(string) string { return agent.URL }}.TraceTuples(t.Context(), "h1", tuples)
		agent.Close()
		switch {
		case x.wrong == "" && (err != nil || len(got) != 2 || got[1].Tuple != tuples[1] || got[1].Marking != fabric.MarkingNone):
			t.Errorf("%+v, %v", got, err)
		case x.wrong != "" && (err == nil || !strings.Contains(err.Error(), x.wrong)):
			t.Errorf("%v, want %q", err, x.wrong)
		}
	}
}

// hungAgents answer for nodes that are not listed, and never for those that are.
type hungAgents struct {
	hung  map[string]bool
	mu    sync.Mutex
	asked map[string][]time.Time
}

func (a *hungAgents) TracedPaths(ctx context.Context, node string, _ time.Duration) ([]fabric.Trace, error) {
	a.mu.Lock()
	a.asked[node] = append(a.asked[node], time.Now())
	a.mu.Unlock()
	if a.hung[node] {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, nil
}

func (a *hungAgents) TraceFlows(context.Context, string, []string) ([]fabric.Trace, error) {
	return nil, nil
}

// TestHungAgentsStallNoOther: with most agents hung, each that answers is asked within the first
// second and every second, and those that hang are asked ever less often.
func TestHungAgentsStallNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &hungAgents{hung: map[string]bool{"h1": true, "h2": true, "h3": true}, asked: map[string][]time.Time{}}
		g := worldtest.NewClos(t, 2, 4, 2)
		tracer := NewTracer(TracerOptions{Agents: a, Store: paths.NewStore(g), Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		done := make(chan struct{})
		go func() { tracer.pollPaths(ctx); close(done) }()
		time.Sleep(time.Minute)
		cancel()
		<-done
		for i := range g.Topo.Nodes {
			node := g.Topo.Nodes[i].Name
			at := a.asked[node]
			if len(at) == 0 || at[0].Sub(began) > time.Second {
				t.Errorf("%s was asked at %v, began at %v", node, at, began)
				continue
			}
			if a.hung[node] {
				if len(at) > 6 {
					t.Errorf("%s hangs, and was asked %d times in a minute", node, len(at))
				}
				continue
			}
			for k := 1; k < len(at); k++ {
				if apart := at[k].Sub(at[k-1]); apart > pollPathsEvery+100*time.Millisecond {
					t.Errorf("%s was not asked for %s", node, apart)
				}
			}
		}
	})
}

// tracedAgents answer with one trace of a state, and keep what they were asked.
type tracedAgents struct {
	states map[string]fabric.PathState
	mu     sync.Mutex
	within map[string][]time.Duration
}

func (a *tracedAgents) TracedPaths(_ context.Context, node string, within time.Duration) ([]fabric.Trace, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.within[node] = append(a.within[node], within)
	if within > 0 && a.states[node] == fabric.PathValid {
		return nil, nil // nothing is new
	}
	return []fabric.Trace{{Edge: node + "/eth1>h8/eth1#0", State: a.states[node], TracedAt: time.Now()}}, nil
}

func (a *tracedAgents) TraceFlows(context.Context, string, []string) ([]fabric.Trace, error) {
	return nil, nil
}

// secondsAgents count the requests in each second.
type secondsAgents struct {
	began time.Time
	mu    sync.Mutex
	asked map[int]int
}

func (a *secondsAgents) TracedPaths(_ context.Context, node string, within time.Duration) ([]fabric.Trace, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[int(time.Since(a.began)/time.Second)]++
	if within > 0 {
		return nil, nil
	}
	return []fabric.Trace{{Edge: node + "/eth1>h8/eth1#0", State: fabric.PathValid, TracedAt: time.Now()}}, nil
}

func (a *secondsAgents) TraceFlows(context.Context, string, []string) ([]fabric.Trace, error) {
	return nil, nil
}

// pollForAMinute polls the nodes for a minute of a bubble's time.
func pollForAMinute(t *testing.T, tracer *Tracer) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { tracer.pollPaths(ctx); close(done) }()
	time.Sleep(time.Minute)
	cancel()
	<-done
}

// TestPollsAreSpread: nodes that settled in the same second are not polled in the same second again.
func TestPollsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := worldtest.NewClos(t, 10, 20, 10)
		a := &secondsAgents{began: time.Now(), asked: map[int]int{}}
		tracer := NewTracer(TracerOptions{Agents: a, Store: paths.NewStore(g), Log: slog.New(slog.DiscardHandler)})
		pollForAMinute(t, tracer)
		nodes := len(g.Topo.Nodes)
		for second := 20; second < 60; second++ {
			if n := a.asked[second]; n > nodes/10+1 || n < nodes/10-1 {
				t.Errorf("%d of %d nodes were polled in second %d", n, nodes, second)
			}
		}
	})
}

// TestNodesWithAllPathsAreAskedForWhatIsNew: every ten seconds, and nodes whose flows lack a path, or matter now, every
// second.
func TestNodesWithAllPathsAreAskedForWhatIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &tracedAgents{states: map[string]fabric.PathState{"h1": fabric.PathValid, "h2": fabric.PathUnknown, "h3": fabric.PathValid}, within: map[string][]time.Duration{}}
		tracer := NewTracer(TracerOptions{Agents: a, Store: paths.NewStore(worldtest.NewClos(t, 2, 4, 2)), Log: slog.New(slog.DiscardHandler)})
		tracer.setUrgent(nil, map[fabric.Flow]bool{{Src: "h3/eth1", Dst: "h1/eth1"}: true})
		pollForAMinute(t, tracer)
		for node, want := range map[string]struct {
			times  int
			within time.Duration
		}{"h1": {7, 12 * time.Second}, "h2": {60, 3 * time.Second}, "h3": {60, 3 * time.Second}} {
			asked := a.within[node]
			if len(asked) < want.times-1 || len(asked) > want.times+1 || asked[0] != 0 {
				t.Errorf("%s was asked %d times, want %d: %v", node, len(asked), want.times, asked)
				continue
			}
			for _, within := range asked[2:] { // the first two had something new
				if within < want.within-time.Second || within > want.within+time.Second {
					t.Errorf("%s was asked for the last %v, want %v", node, within, want.within)
				}
			}
		}
	})
}
