package window

import (
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Rules of a Recorder:
//
//  4. A window is made of whole seconds of the node. A second that the node missed is part of a longer one.
//  5. The condition of a flow is that of its worse direction, by the rules of package judge, against the flow's own
//     baseline. A flow is silent or lossy if its newest window shows it, and shifted if two of the last four do.
//  6. A window of a starved node, or by a clock that is not related to the others, is unjudged, and so is a flow without a
//     baseline.
//  7. Baselines learn from healthy windows alone. A flow that was shifted for ten minutes without a pause learns anew,
//     since its path may be another one. The analyzer has baselines of its own, so that this hides nothing from it.
//  8. What is lost of a silent flow is a round trip's here: the other direction needs the other node's counter.

// Seconds is the number of seconds that are kept.
const Seconds = 60

// Span is the length of a window.
const Span = 2 * time.Second

// spanSeconds is the number of seconds of a window.
const spanSeconds = int(Span / time.Second)

// Reading holds the counters of a node at one moment. They only grow, until a flow begins anew.
type Reading struct {
	At       time.Time
	NICs     []NICReading
	Flows    []FlowReading
	Received []ReceivedReading
}

// NICReading is what a node knows of one of its NICs.
type NICReading struct {
	NIC string
	// Late is the time by which the probe loop ran late, and Unread the number of packets that were lost at this host.
	Late   time.Duration
	Unread uint64
	// ClockUsable means that delays by the NIC's clock mean something, within a bound that is nil if it is not known.
	ClockUsable bool
	ClockBound  *time.Duration
}

// FlowReading holds the counters of a flow that the node probes. Pairs are by direction.
type FlowReading struct {
	Flow         fabric.Flow
	Class, Plane string
	Tier         int
	Sent         [Directions]uint64
	Lost, ECN    [Directions]uint64
	Replies      uint64
	Delays       [Directions][]Buckets // by kind, in the order of Kinds
	PeerBound    *time.Duration        // of the peer's clock; nil means not known
}

// ReceivedReading counts the probes of a flow that the node reflects.
type ReceivedReading struct {
	Flow     fabric.Flow
	Received uint64
}

// second is what was counted of a flow in one second.
type second struct {
	sent, lost, ecn [Directions]uint32
	replies         uint32
	delays          []delayCount
}

// flow is what is kept of one flow.
type flow struct {
	class, plane string
	tier         int
	peerBound    *time.Duration
	total        uint64 // probes sent until the last reading
	last         second // the counters at that reading, modulo 2^32
	seconds      [Seconds]second
	first        int // number of the first reading with counts
	seen         int // number of the last reading
	judged
}

// received is what is kept of a flow that the node reflects.
type received struct {
	last        uint64
	seconds     [Seconds]uint32
	first, seen int
}

// nic is what is kept of a NIC.
type nic struct {
	NICReading
	late   [Seconds]time.Duration
	unread [Seconds]uint64
	seen   int
}

// reading is a moment that was read.
type reading struct {
	at   time.Time
	span time.Duration // since the reading before
}

// Recorder keeps the last minute of a node's flows and judges its newest window. All its methods may be called
// concurrently.
type Recorder struct {
	mu       sync.Mutex
	count    int // number of readings; reading n is at n % Seconds
	readings [Seconds]reading
	flows    map[fabric.Flow]*flow
	received map[fabric.Flow]*received
	nics     map[string]*nic
	scratch  []delayCount
	learnt   map[fabric.Flow]Baseline // from before the node started, until the flow is seen
}

// NewRecorder returns a Recorder that has read nothing.
func NewRecorder() *Recorder {
	return &Recorder{flows: map[fabric.Flow]*flow{}, received: map[fabric.Flow]*received{}, nics: map[string]*nic{}, learnt: map[fabric.Flow]Baseline{}}
}

// AddReading adds the counters of one moment, judges the window that ends with it, and forgets the flows and NICs that it
// does not have. Readings are about a second apart.
func (r *Recorder) AddReading(now *Reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.count
	slot := n % Seconds
	r.readings[slot] = reading{at: now.At}
	if n > 0 {
		r.readings[slot].span = now.At.Sub(r.readings[(n-1)%Seconds].at)
	}
	for i := range now.NICs {
		r.addNIC(&now.NICs[i], n)
	}
	for i := range now.Flows {
		r.addFlow(&now.Flows[i], n)
	}
	for i := range now.Received {
		r.addReceived(&now.Received[i], n)
	}
	r.forget(n)
	r.count++
	r.judgeFlows()
}

func (r *Recorder) addNIC(now *NICReading, n int) {
	k := r.nics[now.NIC]
	if k == nil {
		k = &nic{NICReading: *now}
		r.nics[now.NIC] = k
	}
	k.late[n%Seconds], k.unread[n%Seconds] = max(0, now.Late-k.Late), growth(k.Unread, now.Unread)
	k.NICReading, k.seen = *now, n
}

// growth returns by how much a counter grew. It begins again from 0 after a restart.
func growth(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func (r *Recorder) addFlow(now *FlowReading, n int) {
	f := r.flows[now.Flow]
	if f == nil || now.Sent[Forward] < f.total {
		f = &flow{first: n + 1}
		f.recallBaselines(now.Flow, r.learnt)
		r.flows[now.Flow] = f
	}
	f.class, f.plane, f.tier, f.peerBound, f.seen, f.total = now.Class, now.Plane, now.Tier, now.PeerBound, n, now.Sent[Forward]
	counters := second{replies: uint32(now.Replies), delays: r.scratch[:0]}
	for d := range Directions {
		counters.sent[d], counters.lost[d], counters.ecn[d] = uint32(now.Sent[d]), uint32(now.Lost[d]), uint32(now.ECN[d])
		for kind := range now.Delays[d] {
			counters.delays = appendBuckets(counters.delays, d, kind, &now.Delays[d][kind])
		}
	}
	s := &f.seconds[n%Seconds]
	*s = second{delays: s.delays[:0]}
	if n >= f.first {
		for d := range Directions {
			s.sent[d], s.lost[d], s.ecn[d] = counters.sent[d]-f.last.sent[d], counters.lost[d]-f.last.lost[d], counters.ecn[d]-f.last.ecn[d]
		}
		s.replies = counters.replies - f.last.replies
		s.delays = appendGrowth(s.delays, f.last.delays, counters.delays)
	}
	r.scratch = f.last.delays
	f.last = counters
}

func (r *Recorder) addReceived(now *ReceivedReading, n int) {
	k := r.received[now.Flow]
	if k == nil || now.Received < k.last {
		k = &received{last: now.Received, first: n + 1}
		r.received[now.Flow] = k
	}
	k.seconds[n%Seconds] = uint32(now.Received - k.last)
	k.last, k.seen = now.Received, n
}

// forget drops what a reading does not have.
func (r *Recorder) forget(n int) {
	for name, k := range r.nics {
		if k.seen != n {
			delete(r.nics, name)
		}
	}
	for e, k := range r.received {
		if k.seen != n {
			delete(r.received, e)
		}
	}
	for e, f := range r.flows {
		if f.seen != n {
			delete(r.flows, e)
		}
	}
}

// countsOf returns what was counted of a flow over the window that ended with a reading. It returns false if the flow was
// not there for the whole window.
func (r *Recorder) countsOf(f *flow, n int) (c Counts, ok bool) {
	from := n - spanSeconds + 1
	if from < f.first || from < 1 || from < r.count-Seconds {
		return c, false
	}
	var sent, lost, ecn [Directions]float64
	var replies float64
	delays := r.scratch[:0]
	for k := from; k <= n; k++ {
		s := &f.seconds[k%Seconds]
		for d := range Directions {
			sent[d] += float64(s.sent[d])
			lost[d] += float64(s.lost[d])
			ecn[d] += float64(s.ecn[d])
		}
		replies += float64(s.replies)
		delays = append(delays, s.delays...)
	}
	delays = mergeBuckets(delays)
	r.scratch = delays
	c = Counts{Class: f.class, Plane: f.plane, Tier: f.tier, Replies: &replies}
	for d := range Directions {
		c.Sent[d], c.Lost[d], c.ECN[d] = &sent[d], &lost[d], &ecn[d]
	}
	for len(delays) > 0 {
		first := delays[0]
		end := slices.IndexFunc(delays, func(x delayCount) bool { return x.direction != first.direction || x.kind != first.kind })
		if end < 0 {
			end = len(delays)
		}
		if c.Delays[first.direction] == nil {
			c.Delays[first.direction] = map[string]Distribution{}
		}
		c.Delays[first.direction][Kinds[first.kind]] = distributionOf(delays[:end])
		delays = delays[end:]
	}
	last, perSecond := &f.seconds[n%Seconds], r.perSecond(n)
	lastSent, lastReplies := float64(last.sent[Forward])*perSecond, float64(last.replies)*perSecond
	c.LastSent, c.LastReplies = &lastSent, &lastReplies
	return c, true
}

// perSecond returns what makes a rate per second of a count since the reading before.
func (r *Recorder) perSecond(n int) float64 {
	if s := r.readings[n%Seconds].span; s > 0 {
		return float64(time.Second) / float64(s)
	}
	return 0
}
