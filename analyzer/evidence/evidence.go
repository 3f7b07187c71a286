// Package evidence asks PromQL for what the probes saw and shapes the answer
// into one observation per directed flow.
//
// Every question is asked for a moment a little in the past (Settings.Lag), so
// that for each node a scrape from after that moment must exist: a node that
// stopped answering is known to have stopped before its last numbers are
// believed. Loss has its direction from counters on both sides: when replies
// arrive, from the exact counts that the replies carry; when none does, from
// what the reflecting node says it received.
package evidence

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Sample is one element of an instant vector.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Querier is a PromQL backend.
type Querier interface {
	Instant(ctx context.Context, query string, at time.Time) ([]Sample, error)
}

// Settings are the times of the questions.
type Settings struct {
	// Scrape is the scrape interval of the per-edge series.
	Scrape time.Duration
	// Lag is how far in the past a window ends.
	Lag time.Duration
	// Delay is the window of delays and partial loss; Hard that of total loss.
	Delay, Hard time.Duration
	// Stall is the share of the window that a node's probe loop may have been
	// late before its flows are no evidence.
	Stall float64
}

// DefaultSettings fits a one-second scrape.
func DefaultSettings() Settings {
	return Settings{Scrape: time.Second, Lag: 1300 * time.Millisecond, Delay: 2 * time.Second, Hard: time.Second, Stall: 0.15}
}

// selector is the range that holds the scrapes of a window: one interval more,
// since n intervals lie between n+1 scrapes.
func (s Settings) selector(window time.Duration) string {
	return "[" + strconv.FormatInt((window+s.Scrape).Milliseconds(), 10) + "ms]"
}

const flowLabels = "src, dst, flow, class, tier, plane"

// Queries lists the questions by name, as PromQL. $delay and $hard stand for
// range selectors and $flow for the labels of a flow.
func (s Settings) Queries() map[string]string {
	r := strings.NewReplacer("$delay", s.selector(s.Delay), "$hard", s.selector(s.Hard), "$stall", s.selector(s.Delay+s.Lag), "$flow", flowLabels,
		"$seconds", strconv.FormatFloat(s.Delay.Seconds(), 'g', -1, 64))
	q := map[string]string{
		"stalled":  `sum by (nic) (increase(graylink_node_stalled_seconds_total$stall))`,
		"age":      `time() - max by (nic) (timestamp(graylink_node_stalled_seconds_total))`,
		"clock":    `max by (clock) (fabric_clock_error_bound_seconds)`,
		"allowed":  `max by (clock) (fabric_clock_asymmetry_allowance_seconds)`,
		"state":    `max by (clock, state) (fabric_clock_state) == 1`,
		"steps":    `max by (clock) (fabric_clock_steps_total)`,
		"drifts":   `max by (clock) (fabric_clock_drift_changes_total)`,
		"offset":   `max by (clock) (fabric_clock_offset_seconds)`,
		"drift":    `max by (clock) (fabric_clock_drift_ratio)`,
		"sent":     `sum by ($flow, direction) (rate(fabric_probe_sent_total$delay)) * $seconds`,
		"lost":     `sum by ($flow, direction) (rate(fabric_probe_lost_total$delay)) * $seconds`,
		"back":     `(sum by ($flow) (rate(fabric_probe_acked_total$delay)) + sum by ($flow) (rate(fabric_probe_late_total$delay))) * $seconds`,
		"ecn":      `sum by ($flow, direction) (rate(fabric_probe_ecn_marked_total$delay)) * $seconds`,
		"hardSent": `sum by ($flow) (irate(fabric_probe_sent_total{direction="forward"}$hard))`,
		"hardGot":  `sum by ($flow) (irate(fabric_probe_received_total$hard))`,
		"hardBack": `sum by ($flow) (irate(fabric_probe_acked_total$hard)) + sum by ($flow) (irate(fabric_probe_late_total$hard))`,
		"count":    `sum by ($flow, direction, timestamp) (histogram_count(rate(fabric_probe_owd_seconds$delay))) * $seconds`,
		"mean":     `histogram_avg(sum by ($flow, direction, timestamp) (rate(fabric_probe_owd_seconds$delay)))`,
	}
	for name, phi := range map[string]string{"min": "0", "p50": "0.5", "p90": "0.9", "p99": "0.99", "max": "1"} {
		q[name] = `histogram_quantile(` + phi + `, sum by ($flow, direction, timestamp) (rate(fabric_probe_owd_seconds$delay)))`
	}
	for name := range q {
		q[name] = r.Replace(q[name])
	}
	return q
}

// minDelayCount is the least number of delays that make a distribution.
const minDelayCount = 10

// minHardSent is the least number of probes that make a total loss.
const minHardSent = 3

// Window is the evidence of one moment.
type Window struct {
	At           time.Time
	Observations []*fabric.Observation
	// Hosts are nodes that were starved or did not answer, with the reason.
	Hosts map[string]string
	// Clocks are what the nodes say of their NICs' clocks.
	Clocks map[string]Clock
	// Sent is the number of probes per second asked of the whole fabric.
	Sent float64
}

// Clock is what a node says of the clock of one of its NICs; nil: nothing.
type Clock struct {
	State         string
	Bound         *int64   // of its error, with what its paths may differ by; nanoseconds
	Steps, Drifts *float64 // counted
	Offset        *float64 // seconds to the frame
	Drift         *float64 // what the clock gains on the frame
}

// related reports whether delays by the clock mean something. In holdover they
// do: the bound says how far. A clock without a state has no frame to be in.
func (c Clock) related() bool { return c.State != "converging" && c.State != "lost" }

type flowKey struct {
	edge  fabric.Edge
	class string
}

type flowData struct {
	tier                      int
	plane                     string
	sent, lost, ecn           map[string]float64 // by direction
	hardSent, hardGot, hardIn *float64
	back                      *float64                    // replies over the delay window
	owd                       map[string]map[string]*dist // direction, timestamp kind
}

type dist struct {
	count float64
	q     fabric.Quantiles
}

// Ask evaluates the questions for the window that ends Lag before now.
func Ask(ctx context.Context, db Querier, s Settings, g *fabric.Graph, now time.Time) (Window, error) {
	at := now.Add(-s.Lag)
	w := Window{At: at, Hosts: map[string]string{}, Clocks: map[string]Clock{}}
	queries := s.Queries()
	ask := func(name string, when time.Time, each func(Sample)) error {
		v, err := db.Instant(ctx, queries[name], when)
		if err != nil {
			return err
		}
		for _, smp := range v {
			if !math.IsNaN(smp.Value) {
				each(smp)
			}
		}
		return nil
	}
	alive := map[string]bool{}
	if err := ask("age", now, func(v Sample) {
		if v.Value <= s.Lag.Seconds() {
			alive[v.Labels["nic"]] = true
		}
	}); err != nil {
		return w, err
	}
	if err := ask("stalled", now, func(v Sample) {
		if v.Value > s.Stall*(s.Delay+s.Lag).Seconds() {
			w.Hosts[fabric.OwnerOf(v.Labels["nic"])] = fmt.Sprintf("its probe loop was late by %.2f s", v.Value)
		}
	}); err != nil {
		return w, err
	}
	if err := askClocks(ask, at, w.Clocks); err != nil {
		return w, err
	}
	flows, err := gather(ask, at)
	if err != nil {
		return w, err
	}
	for k, d := range flows {
		for _, nic := range []string{k.edge.Src, k.edge.Dst} {
			if node := fabric.OwnerOf(nic); !alive[nic] && w.Hosts[node] == "" {
				w.Hosts[node] = "its agent does not answer"
			}
		}
		if d.hardSent != nil {
			w.Sent += *d.hardSent
		}
	}
	for k, d := range flows {
		for _, reply := range []bool{false, true} {
			if o := observe(k, d, reply, s, at, w.Clocks); o != nil {
				o.HostSuspect = w.Hosts[fabric.OwnerOf(o.Src)] != "" || w.Hosts[fabric.OwnerOf(o.Dst)] != ""
				w.Observations = append(w.Observations, o)
			}
		}
	}
	return w, nil
}

func askClocks(ask func(string, time.Time, func(Sample)) error, at time.Time, clocks map[string]Clock) error {
	for _, q := range []struct {
		name string
		set  func(*Clock, Sample)
	}{
		{"clock", func(c *Clock, v Sample) { c.Bound = new(int64); *c.Bound = int64(v.Value * 1e9) }},
		{"allowed", func(c *Clock, v Sample) {
			if c.Bound != nil {
				*c.Bound += int64(v.Value * 1e9)
			}
		}},
		{"state", func(c *Clock, v Sample) { c.State = v.Labels["state"] }},
		{"steps", func(c *Clock, v Sample) { c.Steps = &v.Value }},
		{"drifts", func(c *Clock, v Sample) { c.Drifts = &v.Value }},
		{"offset", func(c *Clock, v Sample) { c.Offset = &v.Value }},
		{"drift", func(c *Clock, v Sample) { c.Drift = &v.Value }},
	} {
		if err := ask(q.name, at, func(v Sample) {
			c := clocks[v.Labels["clock"]]
			q.set(&c, v)
			clocks[v.Labels["clock"]] = c
		}); err != nil {
			return err
		}
	}
	return nil
}

func gather(ask func(string, time.Time, func(Sample)) error, at time.Time) (map[flowKey]*flowData, error) {
	flows := map[flowKey]*flowData{}
	of := func(l map[string]string) *flowData {
		n, _ := strconv.Atoi(l["flow"])
		k := flowKey{fabric.Edge{Src: l["src"], Dst: l["dst"], Flow: n}, l["class"]}
		d := flows[k]
		if d == nil {
			d = &flowData{plane: l["plane"], sent: map[string]float64{}, lost: map[string]float64{}, ecn: map[string]float64{},
				owd: map[string]map[string]*dist{}}
			d.tier, _ = strconv.Atoi(l["tier"])
			flows[k] = d
		}
		return d
	}
	for name, pick := range map[string]func(*flowData) map[string]float64{
		"sent": func(d *flowData) map[string]float64 { return d.sent },
		"lost": func(d *flowData) map[string]float64 { return d.lost },
		"ecn":  func(d *flowData) map[string]float64 { return d.ecn },
	} {
		if err := ask(name, at, func(v Sample) { pick(of(v.Labels))[v.Labels["direction"]] = v.Value }); err != nil {
			return nil, err
		}
	}
	for name, pick := range map[string]func(*flowData) **float64{
		"hardSent": func(d *flowData) **float64 { return &d.hardSent },
		"hardGot":  func(d *flowData) **float64 { return &d.hardGot },
		"hardBack": func(d *flowData) **float64 { return &d.hardIn },
		"back":     func(d *flowData) **float64 { return &d.back },
	} {
		if err := ask(name, at, func(v Sample) { x := v.Value; *pick(of(v.Labels)) = &x }); err != nil {
			return nil, err
		}
	}
	distOf := func(l map[string]string) *dist {
		d := of(l)
		if d.owd[l["direction"]] == nil {
			d.owd[l["direction"]] = map[string]*dist{}
		}
		byKind := d.owd[l["direction"]]
		if byKind[l["timestamp"]] == nil {
			byKind[l["timestamp"]] = &dist{}
		}
		return byKind[l["timestamp"]]
	}
	if err := ask("count", at, func(v Sample) { distOf(v.Labels).count = v.Value }); err != nil {
		return nil, err
	}
	for name, set := range map[string]func(*fabric.Quantiles, *int64){
		"min":  func(q *fabric.Quantiles, v *int64) { q.Min = v },
		"mean": func(q *fabric.Quantiles, v *int64) { q.Mean = v },
		"p50":  func(q *fabric.Quantiles, v *int64) { q.P50 = v },
		"p90":  func(q *fabric.Quantiles, v *int64) { q.P90 = v },
		"p99":  func(q *fabric.Quantiles, v *int64) { q.P99 = v },
		"max":  func(q *fabric.Quantiles, v *int64) { q.Max = v },
	} {
		if err := ask(name, at, func(v Sample) {
			if !math.IsInf(v.Value, 0) {
				ns := int64(v.Value * 1e9)
				set(&distOf(v.Labels).q, &ns)
			}
		}); err != nil {
			return nil, err
		}
	}
	return flows, nil
}

// observe shapes one direction of a flow; nil when nothing was measured.
func observe(k flowKey, d *flowData, reply bool, s Settings, at time.Time, clocks map[string]Clock) *fabric.Observation {
	e := k.edge
	e.Reply = reply
	direction := "forward"
	if reply {
		direction = "reverse"
	}
	o := &fabric.Observation{Edge: e.String(), Tier: d.tier, Plane: d.plane, Class: k.class, Start: at.Add(-s.Delay), WindowNS: int64(s.Delay), PathState: fabric.PathUnknown}
	o.Src, o.Dst = e.Ends()
	counted := d.count(o, direction)
	delays := d.delays(o, direction)
	if !counted && !delays {
		return nil
	}
	a, b := clocks[o.Src], clocks[o.Dst]
	if a.Bound != nil && b.Bound != nil {
		bound := *a.Bound + *b.Bound
		o.ClockErrorNS = &bound
	}
	o.ClockSuspect = !a.related() || !b.related()
	return o
}

// count fills in what was sent and lost. While no reply at all arrives the
// replies' own counts say nothing, and the reflecting node's counter decides.
func (d *flowData) count(o *fabric.Observation, direction string) bool {
	if d.hardSent != nil && *d.hardSent >= minHardSent && d.hardIn != nil && *d.hardIn == 0 {
		sent := math.Round(*d.hardSent)
		switch {
		case d.hardGot == nil && direction != "forward":
			return false
		case d.hardGot == nil:
			o.Sent, o.Lost, o.LossScope = uint64(sent), uint64(sent), fabric.LossRoundTrip
			return true
		case direction == "forward":
			o.Sent, o.Lost = uint64(sent), uint64(math.Max(0, sent-math.Round(*d.hardGot)))
			return true
		}
		o.Sent = uint64(math.Round(*d.hardGot))
		o.Lost = o.Sent
		return o.Sent >= minHardSent
	}
	sent, ok := d.sent[direction]
	lost, okLost := d.lost[direction]
	if !ok || !okLost || sent < 1 {
		return false
	}
	// The first reply after a silence accounts for all that was lost in it. That
	// is old news: no more can have been lost in a window than went unanswered.
	if probes, ok := d.sent["forward"]; ok && d.back != nil {
		lost = math.Min(lost, math.Max(0, probes-*d.back))
	}
	o.Sent = uint64(math.Round(sent))
	o.Lost = min(uint64(math.Round(math.Max(0, lost))), o.Sent)
	if ecn, ok := d.ecn[direction]; ok {
		n := min(uint64(math.Round(math.Max(0, ecn))), o.Sent)
		o.ECN = &n
	}
	return true
}

// delays fills in the delays of the best kind of timestamp that has enough.
func (d *flowData) delays(o *fabric.Observation, direction string) bool {
	for _, kind := range []string{"hardware", "kernel", "user"} {
		if x := d.owd[direction][kind]; x != nil && x.count >= minDelayCount && x.q.P50 != nil {
			q := x.q
			o.OWD, o.Timestamp = &q, kind
			return true
		}
	}
	return false
}
