package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// Rules of windows that the agents keep (GET /api/v1/windows of graylink-node):
//
//  17. The windows of flows come from the node that probes them, and not from the Prometheus server. What nodes say of
//     their hosts and their clocks still comes from there, but a clock that the answer has is newer.
//  18. Every node is asked for the window that ended nearest to the moment of the cycle, so that all are of one second.
//  19. A node is believed about its own flows, NICs and received packets alone. An answer with values that cannot be
//     measured is refused as a whole.
//  20. A node that does not answer in time has no windows. Its flows are not queried flows of this cycle, and a warning
//     says how many nodes there are. The others are used.
//  21. What a silent flow lost is decided by the counter of the node that reflects it (rules of package window), which is
//     asked after the flow was seen to be silent. Without it, the loss is the round trip's.
//  22. What a node has as normal is used for a flow of which the analyzer knows nothing, as after a start, unless it may
//     be a fault that lasted.

// WindowSource is what the windows of flows are read from, in place of the Prometheus server.
type WindowSource interface {
	// FindWindows asks the node for windows. The query's Age is left to the implementation: the moment is at.
	FindWindows(ctx context.Context, node string, at time.Time, q window.Query) (*window.Answer, error)
}

// AgentWindows reads windows from the agents of the nodes.
type AgentWindows struct {
	Client *http.Client
	// URL returns the base URL of a node, without a path, or "" if it is unknown.
	URL func(node string) string
	// Timeout bounds the time of one answer.
	Timeout time.Duration
}

// maxWindowAnswer bounds the size of an answer in bytes.
const maxWindowAnswer = 16 << 20

// FindWindows implements WindowSource.
func (a *AgentWindows) FindWindows(ctx context.Context, node string, at time.Time, q window.Query) (*window.Answer, error) {
	base := a.URL(node)
	if base == "" {
		return nil, errors.New("its address is unknown")
	}
	to, err := url.JoinPath(base, "/api/v1/windows")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	q.Age = max(0, time.Since(at))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to+"?"+q.Values().Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := a.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, maxWindowAnswer)
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(body, 256))
		return nil, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	var out window.Answer
	if err := json.NewDecoder(body).Decode(&out); err != nil {
		return nil, fmt.Errorf("invalid answer: %w", err)
	}
	return &out, nil
}

// NodeBaseline is what a node has as normal for one direction of a flow.
type NodeBaseline struct {
	fabric.Quantiles
	MADNS     int64
	Timestamp string
}

// nodesAtOnce is the number of nodes that are asked at the same time.
const nodesAtOnce = 32

// askedWindows are the windows of one cycle.
type askedWindows struct {
	flows     map[flowKey]*window.Counts
	hosts     map[string]window.Host // by NIC
	baselines map[fabric.Flow]NodeBaseline
	received  map[string]float64 // by flow
	nodes     map[string]bool    // that were asked
	failed    map[string]error
}

func newAskedWindows() *askedWindows {
	return &askedWindows{flows: map[flowKey]*window.Counts{}, hosts: map[string]window.Host{}, baselines: map[fabric.Flow]NodeBaseline{}, received: map[string]float64{},
		nodes: map[string]bool{}, failed: map[string]error{}}
}

// ask asks each node its query, and adds the answers.
func (r *askedWindows) ask(ctx context.Context, c *Cycle, queries map[string]window.Query) {
	var mu sync.Mutex // guards r
	var wg sync.WaitGroup
	waiting := make(chan string)
	for range min(nodesAtOnce, len(queries)) {
		wg.Go(func() {
			for node := range waiting {
				a, err := c.s.Windows.FindWindows(ctx, node, c.at, queries[node])
				if err == nil {
					err = checkAnswer(node, a)
				}
				mu.Lock()
				if err == nil {
					err = r.addAnswer(a)
				}
				if r.nodes[node] = true; err != nil {
					r.failed[node] = err
				}
				mu.Unlock()
			}
		})
	}
	for node := range queries {
		waiting <- node
	}
	close(waiting)
	wg.Wait()
}

// maxNodeCount bounds what one flow can have sent in a window.
const maxNodeCount = 1e9

// checkAnswer returns an error if a node's answer has what it cannot have measured (rule 19).
func checkAnswer(node string, a *window.Answer) error {
	if len(a.EndAges) == 0 {
		return errors.New("the answer has no window")
	}
	for nic := range a.NICs {
		if fabric.OwnerOf(nic) != node {
			return fmt.Errorf("the answer is about NIC %q, which is not its own", nic)
		}
	}
	count := func(what string, v *float64) error {
		if v != nil && !(*v >= 0 && *v <= maxNodeCount) {
			return fmt.Errorf("%s of %v: 0 to %g is expected", what, *v, float64(maxNodeCount))
		}
		return nil
	}
	for i := range a.Flows {
		f := &a.Flows[i]
		e, err := fabric.ParseFlow(f.Edge)
		if err != nil {
			return err
		}
		if e.Reply || fabric.OwnerOf(e.Src) != node {
			return fmt.Errorf("the answer is about flow %q, which is not its own", f.Edge)
		}
		for _, w := range f.Windows {
			if w == nil {
				continue
			}
			for what, v := range map[string][]*float64{"sent": w.Sent[:], "lost": w.Lost[:], "ecn": w.ECN[:], "replies": {w.Replies, w.LastSent, w.LastReplies}} {
				for _, x := range v {
					if err := count(f.Edge+": "+what, x); err != nil {
						return err
					}
				}
			}
			if w.LastReceived != nil {
				return fmt.Errorf("%s: the answer has what another node counts", f.Edge)
			}
			for _, kinds := range w.Delays {
				for _, d := range kinds {
					if err := cmp.Or(count(f.Edge+": count", &d.Count), checkQuantiles(&d.Quantiles)); err != nil {
						return err
					}
				}
			}
		}
		for _, b := range f.Baselines {
			if b != nil && (max(b.P50, -b.P50) > maxNodeDelay || max(b.P99, -b.P99) > maxNodeDelay || b.MAD < 0 || b.MAD > maxNodeDelay) {
				return fmt.Errorf("%s: a baseline of %+v", f.Edge, *b)
			}
		}
	}
	for edge, v := range a.Received {
		e, err := fabric.ParseFlow(edge)
		if err != nil {
			return err
		}
		if fabric.OwnerOf(e.Dst) != node {
			return fmt.Errorf("the answer has received packets of flow %q, which is another node's", edge)
		}
		if err := count(edge+": received", &v); err != nil {
			return err
		}
	}
	return nil
}

// maxNodeDelay bounds delays either way, as fabric.Observation does. A clock may be that wrong.
const maxNodeDelay = 1 << 58

func checkQuantiles(q *fabric.Quantiles) error {
	for _, v := range []*int64{q.P50, q.P90, q.P99} {
		if v != nil && max(*v, -*v) > maxNodeDelay {
			return fmt.Errorf("a delay of %d ns: at most %d either way is expected", *v, int64(maxNodeDelay))
		}
	}
	return nil
}

// readWindows returns the counts of the selected flows as their nodes keep them, and of all flows of so many nodes if there
// is no selection.
func (c *Cycle) readWindows(ctx context.Context, only *Selection, nodes map[string]bool, w *Window) map[flowKey]*window.Counts {
	r := newAskedWindows()
	r.ask(ctx, c, firstQueries(only, nodes))
	if only != nil {
		r.ask(ctx, c, r.queriesForSenders(only))
	}
	flowsWithin(&c.s.Scope, r.flows)
	r.ask(ctx, c, r.queriesForReflectors())
	r.fillReceived()
	for nic, h := range r.hosts {
		if c.s.Scope.Has != nil && !c.s.Scope.Has(nic) {
			continue
		}
		clock := w.Clocks[nic]
		if !h.ClockUsable {
			clock.State = "lost"
		}
		if h.ClockBoundNS != nil {
			clock.Bound = h.ClockBoundNS
		}
		w.Clocks[nic] = clock
	}
	w.NodeBaselines = r.baselines
	w.Unanswered = map[string]bool{}
	for node := range r.failed {
		w.Unanswered[node] = true
	}
	if len(r.failed) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(r.failed)))
		w.Warnings = append(slices.Clone(w.Warnings), fmt.Sprintf("the windows of %d of %d nodes are missing or incomplete, of %s for one: %v", len(r.failed), len(r.nodes), first, r.failed[first]))
	}
	return r.flows
}

// ContrastFlows is the number of healthy flows that a node returns beside those that moved, of each NIC.
const ContrastFlows = 1

// firstQueries returns what each node is asked first: the flows from the selected sources, and who probes the selected
// destinations.
func firstQueries(only *Selection, nodes map[string]bool) map[string]window.Query {
	out := map[string]window.Query{}
	if only == nil {
		for node := range nodes {
			out[node] = window.Query{}
		}
		return out
	}
	from := func(nic string, moved bool) {
		q, again := out[fabric.OwnerOf(nic)]
		q.From = append(q.From, nic)
		q.Moved = moved && (q.Moved || !again) // a node with another NIC of which all flows are selected returns all
		q.Contrast = 0
		if q.Moved {
			q.Contrast = ContrastFlows * len(q.From)
		}
		out[fabric.OwnerOf(nic)] = q
	}
	for nic := range only.Sources {
		from(nic, false)
	}
	for nic := range only.Moved {
		from(nic, true)
	}
	for nic := range only.Destinations {
		q := out[fabric.OwnerOf(nic)]
		q.Received = append(q.Received, nic)
		out[fabric.OwnerOf(nic)] = q
	}
	return out
}

// queriesForSenders returns what the nodes are asked that probe the selected destinations.
func (r *askedWindows) queriesForSenders(only *Selection) map[string]window.Query {
	out := map[string]window.Query{}
	for edge := range r.received {
		e, err := fabric.ParseFlow(edge)
		if err != nil || !only.Destinations[e.Dst] || only.Sources[e.Src] {
			continue
		}
		q := out[fabric.OwnerOf(e.Src)]
		q.Flows = append(q.Flows, e)
		out[fabric.OwnerOf(e.Src)] = q
	}
	return out
}

// queriesForReflectors returns what the nodes are asked that reflect silent flows, and have not said yet what arrived
// (rule 21).
func (r *askedWindows) queriesForReflectors() map[string]window.Query {
	out := map[string]window.Query{}
	for k, counts := range r.flows {
		if _, known := r.received[k.edge.String()]; known || !counts.IsSilent() {
			continue
		}
		node := fabric.OwnerOf(k.edge.Dst)
		if q := out[node]; !slices.Contains(q.Received, k.edge.Dst) {
			q.Received = append(q.Received, k.edge.Dst)
			out[node] = q
		}
	}
	return out
}

// fillReceived sets what arrived of silent flows.
func (r *askedWindows) fillReceived() {
	for k, counts := range r.flows {
		if v, ok := r.received[k.edge.String()]; ok && counts.IsSilent() {
			counts.LastReceived = &v
		}
	}
}

// addAnswer adds the newest windows of a node. It returns an error if the answer is incomplete.
func (r *askedWindows) addAnswer(a *window.Answer) error {
	maps.Copy(r.hosts, a.NICs)
	maps.Copy(r.received, a.Received)
	for i := range a.Flows {
		f := &a.Flows[i]
		e, err := fabric.ParseFlow(f.Edge)
		if err != nil {
			return err
		}
		for d, b := range f.Baselines {
			if b != nil && !b.Replaced {
				e.Reply = d == window.Reverse
				r.baselines[e] = NodeBaseline{Quantiles: fabric.Quantiles{P50: &b.P50, P99: &b.P99}, MADNS: b.MAD, Timestamp: b.Timestamp}
			}
		}
		if len(f.Windows) > 0 && f.Windows[0] != nil {
			r.flows[flowKey{e.ProbeFlow(), f.Windows[0].Class}] = f.Windows[0]
		}
	}
	if a.Truncated {
		return errors.New("it has more windows than one answer may have")
	}
	return nil
}
