package scale

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// Handler returns the HTTP API of all agents, each below /NODE, and the targets of Prometheus at /targets, for the address
// at which it listens. What real agents publish at /metrics?collect[]=nic_sums&collect[]=leaves is at /metrics/sums.
func (f *Fleet) Handler(address string) http.Handler {
	serve := map[string]func(*node, http.ResponseWriter, *http.Request){
		"metrics": f.serveMetrics, "metrics/nics": f.serveNICs, "metrics/sums": f.serveSums, "api/v1/windows": f.serveWindows, "api/v1/paths": f.servePaths,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		n, answer := f.nodes[name], serve[path]
		switch {
		case r.URL.Path == "/targets":
			f.serveTargets(w, address)
		case r.Method != http.MethodGet || n == nil || answer == nil:
			http.NotFound(w, r)
		default:
			answer(n, w, r)
		}
	})
}

// serveTargets answers as Prometheus' discovery by HTTP wants it: the label node has the name of each agent.
func (f *Fleet) serveTargets(w http.ResponseWriter, address string) {
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var out []group
	for _, name := range f.NodeNames() {
		out = append(out, group{[]string{address}, map[string]string{"node": name}})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client may be gone
}

// exposition collects the families of a scrape.
type exposition struct{ families []*dto.MetricFamily }

func (x *exposition) family(name string, kind dto.MetricType) *dto.MetricFamily {
	f := &dto.MetricFamily{Name: &name, Type: &kind}
	x.families = append(x.families, f)
	return f
}

func metric(f *dto.MetricFamily, v float64, labels ...string) {
	m := &dto.Metric{}
	for i := 0; i < len(labels); i += 2 {
		m.Label = append(m.Label, &dto.LabelPair{Name: &labels[i], Value: &labels[i+1]})
	}
	if f.GetType() == dto.MetricType_COUNTER {
		m.Counter = &dto.Counter{Value: &v}
	} else {
		m.Gauge = &dto.Gauge{Value: &v}
	}
	f.Metric = append(f.Metric, m)
}

// write writes a scrape, and counts it.
func (f *Fleet) write(w http.ResponseWriter, r *http.Request, x *exposition) {
	format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultAcceptedFormats()...)
	w.Header().Set("Content-Type", string(format))
	out := &countingWriter{w: w}
	enc := expfmt.NewEncoder(out, format)
	samples := 0
	for _, m := range x.families {
		samples += len(m.Metric)
		if err := enc.Encode(m); err != nil {
			return // the server went away
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.served.scrapes++
	f.served.samples += uint64(samples)
	f.served.octets += out.n
}

type countingWriter struct {
	w io.Writer
	n uint64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += uint64(n)
	return n, err
}

// serveNICs writes the series of /metrics/nics without sums over flows.
func (f *Fleet) serveNICs(n *node, w http.ResponseWriter, r *http.Request) {
	now := f.now()
	var x exposition
	unhealthy := 0
	for _, nic := range n.nics {
		for _, count := range f.unhealthy(nic, now) {
			unhealthy += count
		}
	}
	metric(x.family("graylink_node_unhealthy_flows", dto.MetricType_GAUGE), float64(unhealthy))
	metric(x.family("graylink_node_loop_late_seconds_total", dto.MetricType_COUNTER), 0)
	metric(x.family("graylink_node_host_losses_total", dto.MetricType_COUNTER), 0)
	metric(x.family("graylink_node_unlocked_clocks", dto.MetricType_GAUGE), 0)
	metric(x.family("graylink_node_clock_changes_total", dto.MetricType_COUNTER), 0)
	metric(x.family("graylink_node_clock_error_bound_seconds", dto.MetricType_GAUGE), clockBoundNS*1e-9)
	flows := x.family("fabric_nic_flows", dto.MetricType_GAUGE)
	stalled := x.family("graylink_node_stalled_seconds_total", dto.MetricType_COUNTER)
	unread := x.family("fabric_nic_unread_packets_total", dto.MetricType_COUNTER)
	forged := x.family("fabric_nic_forged_packets_total", dto.MetricType_COUNTER)
	own := f.sentBy(n)
	for _, nic := range n.nics {
		bad := f.unhealthy(nic, now)
		left := own[nic]
		for _, count := range bad {
			left -= count
		}
		bad[slices.Index(window.Conditions, window.Healthy)] = left
		for i, condition := range window.Conditions {
			metric(flows, float64(bad[i]), "condition", string(condition), "nic", nic)
		}
		metric(stalled, 0, "nic", nic)
		metric(forged, 0, "from", "other", "nic", nic)
		for _, reason := range []string{"no_life", "socket_full", "unverified"} {
			metric(unread, 0, "nic", nic, "reason", reason)
		}
	}
	f.write(w, r, &x)
}

// sentBy returns how many flows each NIC of a node probes.
func (f *Fleet) sentBy(n *node) map[string]int {
	out := map[string]int{}
	for _, i := range n.sent {
		out[f.flows[i].id.Src]++
	}
	return out
}

// sums holds the families of sums over flows.
type sums struct{ delays, marked, lost, sent *dto.MetricFamily }

func newSums(x *exposition, of string) sums {
	return sums{delays: x.family(of+"_owd_seconds", dto.MetricType_HISTOGRAM), marked: x.family(of+"_probe_ecn_marked_total", dto.MetricType_COUNTER),
		lost: x.family(of+"_probe_lost_total", dto.MetricType_COUNTER), sent: x.family(of+"_probe_sent_total", dto.MetricType_COUNTER)}
}

// add adds the sum over flows that sent so many probes without a loss.
func (s sums) add(total float64, labels ...string) {
	metric(s.sent, total, labels...)
	metric(s.lost, 0, labels...)
	metric(s.marked, 0, labels...)
	m := &dto.Metric{Histogram: &dto.Histogram{Schema: proto.Int32(4), ZeroThreshold: proto.Float64(1e-9), ZeroCount: proto.Uint64(0), SampleSum: proto.Float64(5e-6 * total),
		PositiveSpan: []*dto.BucketSpan{{Offset: proto.Int32(-290), Length: proto.Uint32(20)}}}}
	before, all := int64(0), uint64(0)
	for b := range int64(20) {
		count := int64(total) * (b%7 + 1) / 80
		m.Histogram.PositiveDelta = append(m.Histogram.PositiveDelta, count-before)
		before = count
		all += uint64(count)
	}
	m.Histogram.SampleCount = &all
	labels = append(slices.Clone(labels), "timestamp", "kernel")
	for i := 0; i < len(labels); i += 2 {
		m.Label = append(m.Label, &dto.LabelPair{Name: &labels[i], Value: &labels[i+1]})
	}
	s.delays.Metric = append(s.delays.Metric, m)
}

// serveSums writes the sums per NIC and per pair of leaves.
func (f *Fleet) serveSums(n *node, w http.ResponseWriter, r *http.Request) {
	f.write(w, r, f.sumsOf(n))
}

// sumsOf returns the sums per NIC and per pair of leaves of a node. They do not show the faults.
func (f *Fleet) sumsOf(n *node) *exposition {
	type pair struct{ leaf, peer, plane, tier string }
	x := &exposition{}
	ofNICs, ofPairs := newSums(x, "fabric_nic"), newSums(x, "fabric_leaf_pair")
	each := probesPerSecond * f.now().Sub(f.began).Seconds() / f.second.Seconds()
	own, pairs := f.sentBy(n), map[pair]float64{}
	for _, i := range n.sent {
		id := f.flows[i].id
		leaf, _ := f.graph.LeafOf(id.Src)
		peer, _ := f.graph.LeafOf(id.Dst)
		pairs[pair{leaf, peer, f.graph.NIC(id.Src).Plane, strconv.Itoa(f.flows[i].tier)}]++
	}
	for _, nic := range n.nics {
		leaf, _ := f.graph.LeafOf(nic)
		for side, count := range map[string]int{"source": own[nic], "destination": len(n.received[nic])} {
			ofNICs.add(each*float64(count), "class", "", "leaf", leaf, "nic", nic, "plane", f.graph.NIC(nic).Plane, "side", side)
		}
	}
	for p, count := range pairs {
		for _, side := range []string{"source", "destination"} {
			ofPairs.add(each*count, "class", "", "leaf", p.leaf, "peer_leaf", p.peer, "plane", p.plane, "side", side, "tier", p.tier)
		}
	}
	return x
}

// clockBoundNS is the error bound of all clocks.
const clockBoundNS = 1500

// serveMetrics writes the clocks of /metrics. The rest of it is not read by an analyzer.
func (f *Fleet) serveMetrics(n *node, w http.ResponseWriter, r *http.Request) {
	var x exposition
	for name, v := range map[string]float64{"error_bound_seconds": clockBoundNS * 1e-9, "asymmetry_allowance_seconds": 1e-7, "offset_seconds": 1e-9, "drift_ratio": 1e-9} {
		family := x.family("fabric_clock_"+name, dto.MetricType_GAUGE)
		for _, nic := range n.nics {
			metric(family, v, "clock", nic)
		}
	}
	for _, name := range []string{"steps_total", "drift_changes_total"} {
		family := x.family("fabric_clock_"+name, dto.MetricType_COUNTER)
		for _, nic := range n.nics {
			metric(family, 0, "clock", nic)
		}
	}
	state := x.family("fabric_clock_state", dto.MetricType_GAUGE)
	for _, nic := range n.nics {
		for i, s := range []string{"locked", "converging", "holdover", "lost"} {
			metric(state, float64(max(0, 1-i)), "clock", nic, "state", s)
		}
	}
	f.write(w, r, &x)
}

// serveWindows answers GET /api/v1/windows.
func (f *Fleet) serveWindows(n *node, w http.ResponseWriter, r *http.Request) {
	q, err := window.ParseQuery(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	now := f.now()
	newest := now.Add(-q.Age).Round(f.second / 10)
	a := window.Answer{Node: n.name, NICs: map[string]window.Host{}, Flows: []window.FlowWindows{}}
	for i := range max(1, q.Windows) {
		a.EndAges = append(a.EndAges, int64(now.Sub(newest.Add(-time.Duration(i)*f.second))))
	}
	for _, nic := range n.nics {
		bound := int64(clockBoundNS)
		a.NICs[nic] = window.Host{ClockUsable: true, ClockBoundNS: &bound}
	}
	all := len(q.From)+len(q.To)+len(q.Flows)+len(q.Received) == 0
	contrast := q.Contrast
	for _, i := range n.sent {
		id := f.flows[i].id
		h := a.NICs[id.Src]
		h.Flows++
		a.NICs[id.Src] = h
		if !all && !slices.Contains(q.From, id.Src) && !slices.Contains(q.To, id.Dst) && !slices.Contains(q.Flows, id) {
			continue
		}
		x := window.FlowWindows{Edge: id.String(), Condition: f.conditionAt(i, now), Baselines: f.baselines(i)}
		if q.Moved && x.Condition == window.Healthy {
			if contrast == 0 {
				continue
			}
			contrast--
		}
		for k := range a.EndAges {
			x.Windows = append(x.Windows, f.countsOf(i, newest.Add(-time.Duration(k)*f.second)))
		}
		a.Flows = append(a.Flows, x)
	}
	for _, nic := range q.Received {
		for _, i := range n.received[nic] {
			if a.Received == nil {
				a.Received = map[string]float64{}
			}
			both, share := f.effectAt(i, newest, f.second)
			a.Received[f.flows[i].id.String()] = probesPerSecond * (1 - share*(1-both[window.Forward].survive))
		}
	}
	out := &countingWriter{w: w}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(&a) // the client may be gone
	f.mu.Lock()
	defer f.mu.Unlock()
	f.served.windows++
	f.served.windowOctets += out.n
}

// retraceEvery is how often a flow is traced.
const retraceEvery = 80 * time.Second

// servePaths answers GET /api/v1/paths: the trace of every flow that the node probes, and of its replies.
func (f *Fleet) servePaths(n *node, w http.ResponseWriter, r *http.Request) {
	type answer struct {
		Node  string         `json:"node"`
		Now   time.Time      `json:"now"`
		Paths []fabric.Trace `json:"paths"`
	}
	a := answer{Node: n.name, Now: time.Now().UTC(), Paths: []fabric.Trace{}}
	within, _ := time.ParseDuration(r.URL.Query().Get("within"))
	now := time.Now()
	trace := func(i, d int) {
		x := &f.flows[i]
		id := x.id
		id.Reply = d == window.Reverse
		since := (now.Sub(f.began) + time.Duration(hash(id.String(), 3)%uint64(retraceEvery))) % retraceEvery
		at := now.Add(-min(since, now.Sub(f.began)))
		if within > 0 && now.Sub(at) > within {
			return
		}
		t := fabric.Trace{Edge: id.String(), State: fabric.PathValid, TracedAt: at.UTC(), Reached: d == window.Forward, Notes: []string{}}
		for k, to := range x.links[d][:len(x.path[d])] {
			l := f.graph.LinkAt(to.To)
			hop := fabric.RawHop{TTL: k + 1, Address: l.BAddress.Addr()}
			if l.A == to.To {
				hop.Address = l.AAddress.Addr()
			}
			t.Hops = append(t.Hops, hop)
		}
		a.Paths = append(a.Paths, t)
	}
	for _, i := range n.sent {
		trace(i, window.Forward)
	}
	for _, nic := range n.nics {
		for _, i := range n.received[nic] {
			trace(i, window.Reverse)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&a) // the client may be gone
}

// String says how much was served.
func (f *Fleet) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &f.served
	var b strings.Builder
	fmt.Fprintf(&b, "%d scrapes with %d samples and %.1f MB, %d answers of windows with %.1f MB", s.scrapes, s.samples, float64(s.octets)/1e6, s.windows, float64(s.windowOctets)/1e6)
	return b.String()
}
