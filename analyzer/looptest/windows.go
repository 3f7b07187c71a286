package looptest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// FindWindows implements evidence.WindowSource: the rig's nodes keep the windows of the last frame.
func (r *Rig) FindWindows(_ context.Context, node string, _ time.Time, q window.Query) (*window.Answer, error) {
	r.asked.Lock()
	defer r.asked.Unlock()
	r.WindowRequests++
	if r.Mute[node] {
		return nil, errors.New("connection refused")
	}
	a := &window.Answer{Node: node, EndAges: []int64{1.3e9}, NICs: map[string]window.Host{}, Received: map[string]float64{}}
	for _, nic := range r.World.Graph.NICIDs() {
		if fabric.OwnerOf(nic) == node {
			bound := int64(1000)
			a.NICs[nic] = window.Host{ClockUsable: r.States[nic] == "" || r.States[nic] == "holdover", ClockBoundNS: &bound}
		}
	}
	all := len(q.From)+len(q.To)+len(q.Flows)+len(q.Received) == 0
	for e, o := range r.frame {
		if e.Reply {
			continue
		}
		if fabric.OwnerOf(e.Src) == node && (all || slices.Contains(q.From, e.Src) || slices.Contains(q.To, e.Dst) || slices.Contains(q.Flows, e)) {
			a.Flows = append(a.Flows, r.windowsOf(e))
		}
		if slices.Contains(q.Received, e.Dst) && fabric.OwnerOf(e.Dst) == node {
			a.Received[e.String()] = float64(o.Sent-o.Lost) / 2
		}
	}
	if r.Garble != nil {
		r.Garble(node, a)
	}
	return a, nil
}

// windowsOf returns the newest window of a flow as its node has it.
func (r *Rig) windowsOf(e fabric.Flow) window.FlowWindows {
	back := e
	back.Reply = true
	forth, reply := r.frame[e], r.frame[back]
	number := func(v float64) *float64 { return &v }
	replies := float64(reply.Sent - reply.Lost)
	c := &window.Counts{Plane: forth.Plane, Tier: forth.Tier, Replies: number(replies), LastSent: number(float64(forth.Sent) / 2), LastReplies: number(replies / 2)}
	if r.Bursts {
		c.LastReplies = number(float64(forth.Sent)/2 - float64(r.Now.Unix()%2)*(float64(forth.Sent)-replies))
	}
	for d, o := range []*fabric.Observation{forth, reply} {
		lost := float64(o.Lost)
		if replies == 0 || d == window.Reverse && o.Lost == o.Sent {
			lost = 0 // nothing came to account for it
		}
		c.Sent[d], c.Lost[d] = number(float64(o.Sent)), number(lost)
		if o.OWD != nil {
			q := *o.OWD
			q.Mean, q.Min, q.Max, q.P90 = nil, nil, nil, nil
			c.Delays[d] = map[string]window.Distribution{"kernel": {Count: float64(o.Sent - o.Lost), Quantiles: q}}
		}
	}
	out := window.FlowWindows{Edge: e.String(), Condition: r.judges.conditionOf(r.frame, e), Windows: []*window.Counts{c}}
	for d, of := range []fabric.Flow{e, back} {
		if f := r.judges.flows[of]; f != nil && f.baseline != nil && f.baseline.P99 != nil {
			out.Baselines[d] = &window.Baseline{P50: *f.baseline.P50, P99: *f.baseline.P99, MAD: f.mad, Timestamp: "kernel"}
		}
	}
	return out
}
