package window

import (
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// histogram is a native histogram of schema 4, made by the definition of its buckets.
type histogram struct {
	zero               uint64
	positive, negative map[int]uint64
}

func (h *histogram) observe(ns float64) {
	if h.positive == nil {
		h.positive, h.negative = map[int]uint64{}, map[int]uint64{}
	}
	index := func(v float64) int { return int(math.Ceil(16 * math.Log2(v/1e9))) }
	switch {
	case ns > 1:
		h.positive[index(ns)]++
	case ns < -1:
		h.negative[index(-ns)]++
	default:
		h.zero++
	}
}

func (h *histogram) buckets() Buckets {
	in := func(m map[int]uint64) func(func(int, uint64) bool) {
		return func(yield func(int, uint64) bool) {
			for _, i := range slices.Sorted(maps.Keys(m)) {
				if !yield(i, m[i]) {
					return
				}
			}
		}
	}
	return Buckets{Zero: h.zero, Positive: in(h.positive), Negative: in(h.negative)}
}

// TestQuantilesAreThoseOfTheSamples checks quantiles of what came between two readings, within the width of a bucket.
func TestQuantilesAreThoseOfTheSamples(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() float64{
		"lognormal":    func() float64 { return 5e3 * math.Exp(0.5*rng.NormFloat64()) },
		"around zero":  func() float64 { return 2e3 * rng.NormFloat64() },
		"a clock off":  func() float64 { return -1e6 + 5e3*math.Exp(0.5*rng.NormFloat64()) },
		"one value":    func() float64 { return 5000 },
		"two clusters": func() float64 { return []float64{4e3, 2e6}[rng.IntN(3)/2] + 100*rng.NormFloat64() },
	} {
		var h histogram
		for range 300 { // before the window
			h.observe(draw())
		}
		b := h.buckets()
		old := appendBuckets(nil, Forward, 1, &b)
		var samples []float64
		for range 200 {
			samples = append(samples, draw())
			h.observe(samples[len(samples)-1])
		}
		b = h.buckets()
		now := appendBuckets(nil, Forward, 1, &b)
		if !slices.IsSortedFunc(now, delayCount.compare) {
			t.Errorf("%s: the buckets are not in order", name)
		}
		d := distributionOf(appendGrowth(nil, old, now))
		slices.Sort(samples)
		if d.Count != 200 {
			t.Errorf("%s: %v samples", name, d.Count)
		}
		for q, got := range map[float64]*int64{0.5: d.P50, 0.9: d.P90, 0.99: d.P99} {
			// The rank lies between two samples, and each may be anywhere in its bucket.
			i := int(q * 200)
			low, high := samples[i-1], samples[min(i, 199)]
			slack := func(v float64) float64 { return 2 + math.Abs(v)*(math.Exp2(1.0/16)-1) }
			if v := float64(*got); v < low-slack(low) || v > high+slack(high) {
				t.Errorf("%s: q%v is %v, samples say %v to %v", name, q, v, low, high)
			}
		}
	}
}

// node is a node with two flows, whose counters grow second by second.
type node struct {
	t        *testing.T
	r        *Recorder
	at       time.Time
	late     time.Duration
	unread   uint64
	usable   bool
	peers    []fabric.Flow
	readings map[fabric.Flow]*FlowReading
	delays   map[fabric.Flow]*[Directions]histogram
	rng      *rand.Rand
	received uint64
}

func newNode(t *testing.T) *node {
	n := &node{t: t, r: NewRecorder(), at: time.Unix(1000, 0), usable: true, readings: map[fabric.Flow]*FlowReading{}, delays: map[fabric.Flow]*[Directions]histogram{}, rng: rand.New(rand.NewPCG(3, 4))}
	for _, peer := range []string{"h2/eth1", "h3/eth1"} {
		e := fabric.Flow{Src: "h1/eth1", Dst: peer}
		n.peers = append(n.peers, e)
		n.readings[e], n.delays[e] = &FlowReading{Flow: e, Plane: "a", Tier: 2}, &[Directions]histogram{}
	}
	return n
}

// fault is what happens to the first flow.
type fault struct {
	delay, reverseDelay float64 // nanoseconds
	lost                uint64  // probes of 100 a second
	silent              bool
}

// second lets a second pass.
func (n *node) second(f fault) {
	n.at = n.at.Add(time.Second)
	n.received += 100
	r := &Reading{At: n.at, NICs: []NICReading{{NIC: "h1/eth1", Late: n.late, Unread: n.unread, ClockUsable: n.usable}},
		Received: []ReceivedReading{{Flow: fabric.Flow{Src: "h2/eth1", Dst: "h1/eth1"}, Received: n.received}}}
	for i, e := range n.peers {
		c, h := n.readings[e], n.delays[e]
		if i > 0 {
			f = fault{}
		}
		c.Sent[Forward] += 100
		if !f.silent {
			back := 100 - f.lost
			c.Lost[Forward] += f.lost
			c.Sent[Reverse] += back
			c.Replies += back
			for range back {
				h[Forward].observe(5e3 + f.delay + 200*n.rng.NormFloat64())
				h[Reverse].observe(6e3 + f.reverseDelay + 200*n.rng.NormFloat64())
			}
		}
		reading := *c
		for d := range Directions {
			reading.Delays[d] = []Buckets{{}, h[d].buckets(), {}}
		}
		r.Flows = append(r.Flows, reading)
	}
	n.r.AddReading(r)
}

func (n *node) seconds(count int, f fault) {
	for range count {
		n.second(f)
	}
}

func (n *node) want(what string, conditions map[Condition]int) {
	n.t.Helper()
	got := maps.Clone(n.r.CountConditions()["h1/eth1"])
	maps.DeleteFunc(got, func(_ Condition, count int) bool { return count == 0 })
	if !maps.Equal(got, conditions) {
		n.t.Errorf("%s: %v, want %v", what, got, conditions)
	}
}

func TestRule5ConditionsOfFlows(t *testing.T) {
	for _, tt := range []struct {
		what  string
		f     fault
		after int // seconds
		want  Condition
	}{
		{"nothing", fault{}, 5, Healthy},
		{"one slow window", fault{delay: 1e6}, 1, Healthy},
		{"slow probes", fault{delay: 1e6}, 3, Shifted},
		{"slow replies", fault{reverseDelay: 1e6}, 3, Shifted},
		{"loss", fault{lost: 20}, 2, Lossy},
		{"no reply", fault{silent: true}, 1, Silent},
	} {
		n := newNode(t)
		n.seconds(20, fault{})
		n.want("before "+tt.what, map[Condition]int{Healthy: 2})
		n.seconds(tt.after, tt.f)
		want := map[Condition]int{Healthy: 1}
		want[tt.want]++
		n.want(tt.what, want)
		n.seconds(8, fault{})
		n.want("after "+tt.what, map[Condition]int{Healthy: 2})
	}
}

func TestRule6WhatIsNotJudged(t *testing.T) {
	n := newNode(t)
	n.want("no reading", map[Condition]int{})
	n.seconds(6, fault{})
	n.want("no baseline", map[Condition]int{Unjudged: 2})
	n.seconds(14, fault{})
	n.late += time.Second
	n.second(fault{delay: 1e6})
	n.want("starved", map[Condition]int{Unjudged: 2})
	n.seconds(8, fault{})
	n.want("no longer", map[Condition]int{Healthy: 2})
	n.unread += 5
	n.second(fault{lost: 50})
	n.want("packets unread", map[Condition]int{Unjudged: 2})
	n.seconds(8, fault{})
	n.usable = false
	n.seconds(2, fault{delay: 1e6, reverseDelay: -1e6})
	n.want("a clock that is not related", map[Condition]int{Unjudged: 2})
}

func TestRule7BaselinesLearnFromHealthyWindows(t *testing.T) {
	n := newNode(t)
	n.seconds(20, fault{})
	n.seconds(forgetAfter-60, fault{delay: 1e6})
	n.want("slow for minutes", map[Condition]int{Shifted: 1, Healthy: 1})
	if b := n.r.Baselines()[n.peers[0]]; b.P50 > 6000 {
		t.Errorf("a fault became normal: %+v", b)
	}
	n.seconds(100, fault{delay: 1e6})
	n.want("slow for longer than ten minutes", map[Condition]int{Healthy: 2})
	for i, e := range n.peers {
		if b := n.r.Baselines()[e]; b.Replaced != (i == 0) {
			t.Errorf("%s: %+v", e, b)
		}
	}
	again := newNode(t)
	again.r.Recall(n.r.Baselines())
	again.seconds(4, fault{delay: 1e6})
	again.want("recalled", map[Condition]int{Healthy: 2})
}

func TestFlowsThatBeginAnew(t *testing.T) {
	n := newNode(t)
	n.seconds(20, fault{})
	*n.readings[n.peers[0]], *n.delays[n.peers[0]] = FlowReading{Flow: n.peers[0]}, [Directions]histogram{}
	n.seconds(2, fault{})
	n.want("new counters", map[Condition]int{Unjudged: 1, Healthy: 1})
	n.peers = n.peers[1:]
	n.second(fault{})
	n.want("a flow left", map[Condition]int{Healthy: 1})
}

// find answers a query.
func (n *node) find(q Query, ago time.Duration) *Answer {
	n.t.Helper()
	a, err := n.r.FindWindows(&q, n.at.Add(ago))
	if err != nil {
		n.t.Fatal(err)
	}
	return a
}

func edges(a *Answer) (out []string) {
	for _, f := range a.Flows {
		out = append(out, f.Edge)
	}
	return out
}

func TestQueries(t *testing.T) {
	n := newNode(t)
	if _, err := n.r.FindWindows(&Query{}, n.at); !errors.Is(err, ErrNoWindow) {
		t.Errorf("before the first second: %v", err)
	}
	n.seconds(100, fault{})
	n.seconds(3, fault{delay: 1e6})
	one, two := n.peers[0].String(), n.peers[1].String()
	for _, tt := range []struct {
		what string
		q    Query
		want []string
	}{
		{"all", Query{}, []string{one, two}},
		{"from a NIC", Query{From: []string{"h1/eth1"}}, []string{one, two}},
		{"from another NIC", Query{From: []string{"h9/eth1"}}, nil},
		{"to a NIC", Query{To: []string{"h3/eth1"}}, []string{two}},
		{"a flow", Query{Flows: n.peers[:1]}, []string{one}},
		{"moved", Query{Moved: true}, []string{one}},
		{"moved with contrast", Query{Moved: true, Contrast: 3}, []string{one, two}},
	} {
		if got := edges(n.find(tt.q, 0)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, got, tt.want)
		}
	}
	a := n.find(Query{Windows: 3, Age: 1300 * time.Millisecond, Received: []string{"h1/eth1"}, Flows: n.peers[:1]}, 200*time.Millisecond)
	if want := []int64{1.2e9, 2.2e9, 3.2e9}; !slices.Equal(a.EndAges, want) {
		t.Errorf("the windows ended %v ns ago, want %v", a.EndAges, want)
	}
	f := a.Flows[0]
	if f.Condition != Shifted || f.Baselines[Forward].P50 > 6000 || *f.Windows[0].Sent[Forward] != 200 || *f.Windows[0].LastReplies != 100 {
		t.Errorf("%+v", f)
	}
	// The newest window is slow as a whole, the second by half, and the third is from before.
	for i, slow := range []bool{true, true, false} {
		if p99 := *f.Windows[i].Delays[Forward]["kernel"].P99; (p99 > 1e6) != slow {
			t.Errorf("window %d: p99 %d ns", i, p99)
		}
	}
	if got := a.Received["h2/eth1>h1/eth1#0"]; got != 100 {
		t.Errorf("%v probes were received", a.Received)
	}
	if h := a.NICs["h1/eth1"]; h.Flows != 2 || !h.ClockUsable || h.Unread != 0 {
		t.Errorf("%+v", h)
	}
	if all := n.find(Query{Windows: Seconds}, 0); len(all.EndAges) != Seconds-1 || all.Flows[0].Windows[len(all.EndAges)-1] == nil {
		t.Errorf("%d windows", len(all.EndAges))
	}
	if _, err := n.r.FindWindows(&Query{}, n.at.Add(5*time.Second)); !errors.Is(err, ErrNoWindow) {
		t.Errorf("after a standstill: %v", err)
	}
}

// TestRules1To3OfSilence checks what is lost where no reply comes.
func TestRules1To3OfSilence(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	e := fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}
	for _, tt := range []struct {
		what             string
		received         *float64
		forward, reverse *fabric.Count
		scope            string
	}{
		{"the other counter is not known", nil, &fabric.Count{Sent: 100, Lost: 100}, nil, fabric.LossRoundTrip},
		{"none arrive", f(0), &fabric.Count{Sent: 100, Lost: 100}, nil, ""},
		{"all arrive", f(98), &fabric.Count{Sent: MinDelays}, &fabric.Count{Sent: 98, Lost: 98}, ""},
		{"half arrive", f(60), nil, nil, ""},
	} {
		c := Counts{LastSent: f(100), LastReplies: f(0), LastReceived: tt.received, Sent: [2]*float64{f(200), f(0)}, Lost: [2]*float64{f(0), f(0)}}
		for d, want := range []*fabric.Count{tt.forward, tt.reverse} {
			o := c.Observation(e, d == Reverse, time.Unix(10, 0), Span)
			switch {
			case (o == nil) != (want == nil):
				t.Errorf("%s: %+v, want %+v", tt.what, o, want)
			case o != nil && (o.Sent != want.Sent || o.Lost != want.Lost || d == Forward && o.LossScope != tt.scope):
				t.Errorf("%s: %d of %d lost, scope %q; want %+v", tt.what, o.Lost, o.Sent, o.LossScope, *want)
			}
		}
	}
}

func TestParametersOfQueries(t *testing.T) {
	q := Query{From: []string{"h1/eth1"}, To: []string{"h2/eth1"}, Received: []string{"h1/eth1"}, Flows: []fabric.Flow{{Src: "h1/eth1", Dst: "h3/eth1", Number: 2}}, Moved: true, Contrast: 4, Windows: 3, Age: 1300 * time.Millisecond}
	if got, err := ParseQuery(q.Values()); err != nil || !reflect.DeepEqual(got, q) {
		t.Errorf("%+v, %v; want %+v", got, err, q)
	}
	for text, want := range map[string]string{
		"from=h1":       `parameter "from": "h1": a NIC, NODE/DEVICE, is expected`,
		"edge=h1/eth1":  `parameter "edge": `,
		"moved=perhaps": `parameter "moved": "perhaps": true or false is expected`,
		"contrast=-1":   `parameter "contrast": "-1": a number from 0 to 4096 is expected`,
		"windows=61":    `parameter "windows": "61": a number from 0 to 60 is expected`,
		"age=2h":        `parameter "age": "2h": a time from 0s to 60s is expected`,
		"nic=h1/eth1":   `unknown parameter "nic"`,
		strings.Repeat("to=h1/eth1&", maxNames+1): `at most 1024 NICs and flows are expected`,
	} {
		v, err := url.ParseQuery(strings.TrimSuffix(text, "&"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseQuery(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add("from=h1/eth1&age=1.3s&windows=4&moved=true&edge=h1/eth1>h2/eth1%231")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q, err := ParseQuery(v)
		if err != nil {
			return
		}
		again, err := ParseQuery(q.Values())
		if err != nil || len(again.From) != len(q.From) || again.Age != q.Age || again.Windows != q.Windows {
			t.Errorf("%+v became %+v: %v", q, again, err)
		}
	})
}

// BenchmarkReading measures a second of a node of 8 NICs with 13 flows each.
func BenchmarkReading(b *testing.B) {
	r, rng := NewRecorder(), rand.New(rand.NewPCG(1, 1))
	reading := &Reading{}
	hist := map[fabric.Flow]*[Directions]histogram{}
	for i := range 104 {
		e := fabric.Flow{Src: "h1/eth" + string(rune('a'+i/13)), Dst: "h2/eth1", Number: i}
		hist[e] = &[Directions]histogram{}
		reading.Flows = append(reading.Flows, FlowReading{Flow: e})
		if i%13 == 0 {
			reading.NICs = append(reading.NICs, NICReading{NIC: e.Src, ClockUsable: true})
		}
	}
	var seconds []*Reading
	for s := range 70 {
		reading.At = time.Unix(int64(s), 0)
		next := *reading
		next.Flows = slices.Clone(reading.Flows)
		for i := range next.Flows {
			f := &next.Flows[i]
			f.Sent, f.Replies = [2]uint64{uint64(100 * s), uint64(100 * s)}, uint64(100*s)
			for d := range Directions {
				h := &hist[f.Flow][d]
				for range 100 {
					h.observe(5e3 * math.Exp(0.2*rng.NormFloat64()))
				}
				frozen := histogram{h.zero, maps.Clone(h.positive), nil}
				f.Delays[d] = []Buckets{{}, frozen.buckets(), {}}
			}
		}
		seconds = append(seconds, &next)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%len(seconds) == 0 {
			r = NewRecorder()
		}
		r.AddReading(seconds[i%len(seconds)])
	}
}

// TestFlowsWithSignals: a flow of probes that carry in-band signals has no condition, moves no NIC, and no baseline is learnt of it.
func TestFlowsWithSignals(t *testing.T) {
	for _, f := range []fault{{}, {silent: true}, {lost: 50}, {delay: 1e6}} {
		n := newNode(t)
		n.readings[n.peers[0]].Class = fabric.ClassCSIG
		n.seconds(20, fault{})
		n.seconds(5, f)
		n.want("one of two flows", map[Condition]int{Healthy: 1})
		if moved, learnt := n.r.MovedFlows(), n.r.Baselines(); len(moved) != 0 || len(learnt) != int(Directions) {
			t.Errorf("%+v: %v moved, and %v was learnt", f, moved, learnt)
		}
	}
}
