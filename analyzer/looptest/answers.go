package looptest

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// someNodes matches what restricts a query to the NICs of some nodes.
var someNodes = regexp.MustCompile(`, instance=~"[^"]*"`)

// answerQuery answers one of the loop's queries from what the world showed last.
func (r *Rig) answerQuery(query string) []evidence.Sample {
	var out []evidence.Sample
	query, inPlanes := r.withoutPlanes(query)
	query, only := unrestricted(r.t, someNodes.ReplaceAllString(query, ""))
	name := r.names[query]
	if name == "" {
		r.t.Errorf("unknown query %s", query)
	}
	if r.Asked != nil {
		r.Asked(name, only)
	}
	out = append(out, r.overviewOf(name, inPlanes)...)
	out = append(out, r.nicSamples(name)...)
	out = append(out, r.nodeSamples(name)...)
	for e, o := range r.frame {
		if only(e) && inPlanes(e.Src) && (r.Prometheus.Hidden == nil || !r.Prometheus.Hidden(e)) {
			out = append(out, r.flowSamples(name, e, o)...)
		}
	}
	return out
}

// nicSamples returns what the nodes publish of their NICs.
func (r *Rig) nicSamples(name string) (out []evidence.Sample) {
	for _, nic := range r.World.Graph.NICIDs() {
		node := fabric.OwnerOf(nic)
		switch name {
		case "age":
			age := 0.4
			if r.Silent[node] {
				age = 5
			}
			out = append(out, evidence.Sample{Labels: map[string]string{"nic": nic}, Value: age})
		case "stalled":
			v := 0.0
			if r.Late[node] {
				v = 2
			}
			out = append(out, evidence.Sample{Labels: map[string]string{"nic": nic}, Value: v})
		case "clock":
			out = append(out, evidence.Sample{Labels: map[string]string{"clock": nic}, Value: 1e-6})
		case "steps":
			if v, ok := r.Steps[nic]; ok {
				out = append(out, evidence.Sample{Labels: map[string]string{"clock": nic}, Value: v})
			}
		case "state":
			if v, ok := r.States[nic]; ok {
				out = append(out, evidence.Sample{Labels: map[string]string{"clock": nic, "state": v}, Value: 1})
			}
		}
	}
	return out
}

// nodeSamples returns what the nodes publish of themselves.
func (r *Rig) nodeSamples(name string) (out []evidence.Sample) {
	if name == "nodeChanges" {
		sum := 0.0
		for _, v := range r.Steps {
			sum += v
		}
		return []evidence.Sample{{Value: sum}}
	}
	for _, nic := range r.World.Graph.NICIDs() { // a node has one
		put := func(v float64) {
			out = append(out, evidence.Sample{Labels: map[string]string{"instance": fabric.OwnerOf(nic)}, Value: v})
		}
		node := fabric.OwnerOf(nic)
		switch name {
		case "nodeAge":
			if r.Silent[node] {
				put(5)
			} else {
				put(0.4)
			}
		case "nodeStalled":
			if r.Late[node] {
				put(2)
			}
		case "nodeMoved":
			if counts := r.publishedConditions(nic); sumOf(counts) > counts[window.Healthy] {
				put(float64(sumOf(counts) - counts[window.Healthy]))
			}
		case "nodeUnlocked":
			if r.States[nic] != "" && r.States[nic] != "locked" {
				put(1)
			}
		case "nodeBound":
			put(1e-6)
		}
	}
	return out
}

// publishedConditions returns what the node of a NIC says of its flows, or nil if it does not judge them.
func (r *Rig) publishedConditions(nic string) map[window.Condition]int {
	if r.Unjudging != nil && r.Unjudging(nic) {
		return nil
	}
	counts := r.judges.countConditions(r.frame, nic)
	for wrong, c := range map[window.Condition]bool{window.Healthy: r.Lying[nic], window.Shifted: r.Crying[nic]} {
		if c {
			counts = map[window.Condition]int{wrong: sumOf(counts)}
		}
	}
	return counts
}

// flowSamples returns what the nodes publish of a flow.
func (r *Rig) flowSamples(name string, e fabric.Flow, o *fabric.Observation) (out []evidence.Sample) {
	put := func(v float64) {
		labels := map[string]string{"src": e.Src, "dst": e.Dst, "flow": strconv.Itoa(e.Number), "tier": strconv.Itoa(o.Tier), "plane": o.Plane, "direction": "forward", "timestamp": "kernel"}
		if e.Reply {
			labels["direction"] = "reverse"
		}
		out = append(out, evidence.Sample{Labels: labels, Value: v})
	}
	back := r.frame[fabric.Flow{Src: e.Src, Dst: e.Dst, Number: e.Number, Reply: true}]
	got, returned := float64(o.Sent-o.Lost), 0.0
	if !e.Reply {
		returned = float64(back.Sent - back.Lost)
	}
	last := roundTrips{lastSent: float64(o.Sent) / 2, lastReceived: got / 2, lastReplies: returned / 2}
	if r.Bursts {
		last.lastReplies = float64(o.Sent)/2 - float64(r.Now.Unix()%2)*(float64(o.Sent)-returned)
	}
	if r.trips != nil {
		last = r.trips[e.ProbeFlow()]
		returned = last.replies
	}
	blackout := !e.Reply && returned == 0
	switch name {
	case "sent":
		put(float64(o.Sent))
	case "lost":
		if !e.Reply && blackout || e.Reply && o.Lost == o.Sent {
			put(0) // nothing came to account for it
		} else {
			put(float64(o.Lost))
		}
	case "back":
		if !e.Reply {
			put(returned)
		}
	case "hardSent":
		if !e.Reply {
			put(last.lastSent)
		}
	case "hardGot":
		if !e.Reply {
			put(last.lastReceived)
		}
	case "hardBack":
		if !e.Reply {
			put(last.lastReplies)
		}
	case "count":
		if o.OWD != nil {
			put(float64(o.Sent - o.Lost))
		}
	case "p50":
		if o.OWD != nil {
			put(float64(*o.OWD.P50) / 1e9)
		}
	case "p90":
		if o.OWD != nil && o.OWD.P90 != nil {
			put(float64(*o.OWD.P90) / 1e9)
		}
	case "p99":
		if o.OWD != nil {
			put(float64(*o.OWD.P99) / 1e9)
		}
	}
	return out
}

var restriction = regexp.MustCompile(`\{(src|dst)=~("(?:[^"\\]|\\.)*")\}|, (src|dst)=~("(?:[^"\\]|\\.)*")`)

// unrestricted returns a query without its restriction to flows, and the flows that it selects.
func unrestricted(t *testing.T, query string) (string, func(fabric.Flow) bool) {
	m := restriction.FindStringSubmatch(query)
	if m == nil {
		return query, func(fabric.Flow) bool { return true }
	}
	text, err := strconv.Unquote(m[2] + m[4])
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("^(?:" + text + ")$")
	return restriction.ReplaceAllString(query, ""), func(e fabric.Flow) bool {
		if m[1]+m[3] == "dst" {
			return names.MatchString(e.Dst)
		}
		return names.MatchString(e.Src)
	}
}

var planes = regexp.MustCompile(`\{plane=~("[^"]*")\}|, plane=~("[^"]*")|plane=~("[^"]*"), `)

// withoutPlanes returns a query without its restriction to planes, and whether a NIC is in these.
func (r *Rig) withoutPlanes(query string) (string, func(nic string) bool) {
	m := planes.FindStringSubmatch(query)
	if m == nil {
		return query, func(string) bool { return true }
	}
	text, err := strconv.Unquote(m[1] + m[2] + m[3])
	if err != nil {
		r.t.Fatal(err)
	}
	names := regexp.MustCompile("^(?:" + text + ")$")
	return planes.ReplaceAllString(query, ""), func(nic string) bool { return names.MatchString(r.World.Graph.PlaneOf(nic)) }
}

// overviewOf returns what the nodes publish of the conditions of their flows.
func (r *Rig) overviewOf(name string, inPlanes func(nic string) bool) (out []evidence.Sample) {
	if name == "flows" {
		n := 0
		for e := range r.frame {
			if inPlanes(e.Src) {
				n++
			}
		}
		return []evidence.Sample{{Value: float64(n)}}
	}
	judged := 0
	for _, nic := range r.World.Graph.NICIDs() {
		counts := r.publishedConditions(nic)
		if counts == nil || !inPlanes(nic) {
			continue
		}
		switch name {
		case "judgedFlows":
			judged += sumOf(counts)
		case "nicHealthy":
			out = append(out, evidence.Sample{Labels: map[string]string{"nic": nic}, Value: float64(counts[window.Healthy])})
		case "nicMoved":
			for c, n := range counts {
				if c != window.Healthy {
					out = append(out, evidence.Sample{Labels: map[string]string{"nic": nic, "condition": string(c)}, Value: float64(n)})
				}
			}
		}
	}
	if name == "judgedFlows" {
		out = append(out, evidence.Sample{Value: float64(judged)})
	}
	return out
}

func sumOf(counts map[window.Condition]int) (sum int) {
	for _, n := range counts {
		sum += n
	}
	return sum
}
