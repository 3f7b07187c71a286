package window

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Limits of a query.
const (
	maxNames  = 1024 // NICs and flows
	maxWindow = 4096 // windows of an answer
)

// Query selects windows of a node, as the parameters of GET /api/v1/windows do. A flow is selected if its sender is in From, its
// receiver is in To, or it is in Flows; if all of these and Received are empty, every flow is.
type Query struct {
	From, To []string // NICs
	Flows    []fabric.Flow
	// Moved leaves out healthy flows, but for Contrast of them, which are spread over all.
	Moved    bool
	Contrast int
	// Age is how long ago the newest window ended: the one that ended nearest to that is the first.
	Age time.Duration
	// Windows is the number of windows of each flow, a second apart. 0 means one.
	Windows int
	// Received are NICs whose reflected probes are counted in the answer, for the last second of the newest window.
	Received []string
}

// Values returns the parameters of a query.
func (q *Query) Values() url.Values {
	v := url.Values{"from": q.From, "to": q.To, "received": q.Received}
	for _, e := range q.Flows {
		v.Add("edge", e.String())
	}
	if q.Moved {
		v.Set("moved", "true")
	}
	for name, n := range map[string]int{"contrast": q.Contrast, "windows": q.Windows} {
		if n != 0 {
			v.Set(name, strconv.Itoa(n))
		}
	}
	if q.Age != 0 {
		v.Set("age", q.Age.String())
	}
	return v
}

// ParseQuery reads the parameters of a query. The error names the parameter and what is expected.
func ParseQuery(v url.Values) (q Query, err error) {
	names := 0
	number := func(name, text string, most int) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > most {
			return 0, fmt.Errorf("parameter %q: %q: a number from 0 to %d is expected", name, text, most)
		}
		return n, nil
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if names += len(v[name]); names > maxNames {
			return q, fmt.Errorf("parameter %q: at most %d NICs and flows are expected", name, maxNames)
		}
		for _, text := range v[name] {
			var err error
			switch name {
			case "from", "to", "received":
				if !fabric.IsNIC(text) {
					err = fmt.Errorf("parameter %q: %q: a NIC, NODE/DEVICE, is expected", name, text)
				}
				to := map[string]*[]string{"from": &q.From, "to": &q.To, "received": &q.Received}[name]
				*to = append(*to, text)
			case "edge":
				e, wrong := fabric.ParseFlow(text)
				if wrong != nil {
					err = fmt.Errorf("parameter %q: %w", name, wrong)
				}
				q.Flows = append(q.Flows, e.ProbeFlow())
			case "moved":
				if q.Moved, err = strconv.ParseBool(text); err != nil {
					err = fmt.Errorf("parameter %q: %q: true or false is expected", name, text)
				}
			case "contrast":
				q.Contrast, err = number(name, text, maxWindow)
			case "windows":
				q.Windows, err = number(name, text, Seconds)
			case "age":
				if q.Age, err = time.ParseDuration(text); err != nil || q.Age < 0 || q.Age > Seconds*time.Second {
					err = fmt.Errorf("parameter %q: %q: a time from 0s to %ds is expected", name, text, Seconds)
				}
			default:
				err = fmt.Errorf("unknown parameter %q: one of age, contrast, edge, from, moved, received, to and windows is expected", name)
			}
			if err != nil {
				return q, err
			}
		}
	}
	return q, nil
}

// Answer holds the windows that a query selects.
type Answer struct {
	Node string `json:"node"`
	// EndAges are how long before the answer the windows of each flow ended, in nanoseconds, the newest first.
	EndAges []int64 `json:"end_ages_ns"`
	// Truncated means that there are more windows than one answer may have.
	Truncated bool            `json:"truncated,omitempty"`
	NICs      map[string]Host `json:"nics"`
	Flows     []FlowWindows   `json:"flows"`
	// Received has the probes of the newest window's last second that the NICs of the query reflected, by flow.
	Received map[string]float64 `json:"received,omitempty"`
}

// Host is what a node knows of one of its NICs, from the beginning of the newest window until the answer.
type Host struct {
	LateSeconds float64 `json:"late_seconds"` // by which the probe loop was late
	Unread      uint64  `json:"unread"`       // packets that were lost at the host
	// Flows is the number of flows that the NIC probes.
	Flows int `json:"flows"`
	// ClockUsable means that delays by the clock mean something, within the bound, if that is known.
	ClockUsable  bool   `json:"clock_usable"`
	ClockBoundNS *int64 `json:"clock_bound_ns,omitempty"`
}

// FlowWindows holds the windows of a flow that the node probes.
type FlowWindows struct {
	Edge      string    `json:"edge"`
	Condition Condition `json:"condition"`
	// Baselines are what the node has as normal, by direction.
	Baselines [Directions]*Baseline `json:"baselines"`
	// Windows are as EndAges. A window in which the flow was not there as a whole is nil.
	Windows []*Counts `json:"windows"`
}

// ErrNoWindow means that nothing was measured for long enough yet.
var ErrNoWindow = errors.New("no window has ended yet")

// FindWindows answers a query at a moment. It returns ErrNoWindow if no window ended near the moment that the query is
// about.
func (r *Recorder) FindWindows(q *Query, now time.Time) (*Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest, ok := r.nearestReading(now.Add(-q.Age))
	if !ok {
		return nil, ErrNoWindow
	}
	a := &Answer{NICs: map[string]Host{}, Flows: []FlowWindows{}}
	for n := newest; n > newest-max(1, q.Windows) && n > r.count-Seconds && n >= spanSeconds; n-- {
		a.EndAges = append(a.EndAges, int64(now.Sub(r.readings[n%Seconds].at)))
	}
	for name, k := range r.nics {
		late, unread := r.hostLosses(k, newest)
		h := Host{LateSeconds: late.Seconds(), Unread: unread, ClockUsable: k.ClockUsable}
		if k.ClockBound != nil {
			bound := int64(*k.ClockBound)
			h.ClockBoundNS = &bound
		}
		a.NICs[name] = h
	}
	for e := range r.flows {
		if h, ok := a.NICs[e.Src]; ok && !e.IsTemporary() {
			h.Flows++
			a.NICs[e.Src] = h
		}
	}
	selected := r.selectFlows(q)
	if most := maxWindow / len(a.EndAges); len(selected) > most {
		selected, a.Truncated = selected[:most], true
	}
	for _, e := range selected {
		a.Flows = append(a.Flows, r.windowsOf(e, newest, len(a.EndAges)))
	}
	for e, k := range r.received {
		if slices.Contains(q.Received, e.Dst) && newest >= k.first && newest > r.count-Seconds {
			if a.Received == nil {
				a.Received = map[string]float64{}
			}
			a.Received[e.String()] = float64(k.seconds[newest%Seconds]) * r.perSecond(newest)
		}
	}
	return a, nil
}

// nearestReading returns the reading nearest to a moment with which a window may end. It returns false if there is none
// within a second and a half.
func (r *Recorder) nearestReading(at time.Time) (n int, ok bool) {
	best := 3 * time.Second / 2
	for i := max(spanSeconds, r.count-Seconds); i < r.count; i++ {
		if d := r.readings[i%Seconds].at.Sub(at).Abs(); d <= best {
			n, best, ok = i, d, true
		}
	}
	return n, ok
}

// selectFlows returns the flows that a query selects, those that are not healthy first.
func (r *Recorder) selectFlows(q *Query) (out []fabric.Flow) {
	all := len(q.From)+len(q.To)+len(q.Flows)+len(q.Received) == 0
	var healthy []fabric.Flow
	for _, e := range r.flowsInOrder() {
		switch {
		case !all && !slices.Contains(q.From, e.Src) && !slices.Contains(q.To, e.Dst) && !slices.Contains(q.Flows, e):
		case r.flows[e].condition == Healthy:
			healthy = append(healthy, e)
		default:
			out = append(out, e)
		}
	}
	if !q.Moved {
		return append(out, healthy...)
	}
	for i := range min(q.Contrast, len(healthy)) {
		out = append(out, healthy[i*len(healthy)/min(q.Contrast, len(healthy))])
	}
	return out
}

// windowsOf returns the windows of a flow that end with a reading and with those before it.
func (r *Recorder) windowsOf(e fabric.Flow, newest, windows int) FlowWindows {
	f := r.flows[e]
	out := FlowWindows{Edge: e.String(), Condition: f.condition, Windows: make([]*Counts, windows)}
	for d := range Directions {
		out.Baselines[d] = f.normal[d].baseline
	}
	for i := range windows {
		if c, ok := r.countsOf(f, newest-i); ok {
			out.Windows[i] = &c
		}
	}
	return out
}
