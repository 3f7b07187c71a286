package looptest

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// streamLag is by how much the moment that a cycle evaluates is earlier than the cycle (evidence.SettingsFor).
const streamLag = 1300 * time.Millisecond

// streamSpan is the span of a window, and streamKept for how long the packets of a flow are kept.
const (
	streamSpan = 2 * time.Second
	streamKept = 8 * time.Second
)

// Stream has every packet of a world, so that faults may begin within a second. Nodes are scraped once a second, each at a moment of its
// own, and each cycle has the last two seconds before the last scrape that is old enough. What is missing behind the last reply is
// lost by no counter yet, as with nodes.
type Stream struct {
	// Cadence is the time between two probes of a flow.
	Cadence time.Duration

	world   *worldtest.World
	random  *rand.Rand
	scrapes map[string]time.Duration // of the nodes, after each second
	first   map[fabric.Flow]time.Duration
	packets map[fabric.Flow][]packet
	made    time.Time // packets up to this moment are made
}

// packet is a probe and its reply. A packet that is not lost has its delay, by direction.
type packet struct {
	at    time.Time
	lost  [2]bool
	delay [2]int64
}

// NewStream returns the packets of a world from a moment on.
func NewStream(w *worldtest.World, cadence time.Duration, seed uint64, from time.Time) *Stream {
	s := &Stream{Cadence: cadence, world: w, random: rand.New(rand.NewPCG(seed, 11)), scrapes: map[string]time.Duration{}, first: map[fabric.Flow]time.Duration{},
		packets: map[fabric.Flow][]packet{}, made: from}
	for _, nic := range w.Graph.NICIDs() {
		s.scrapes[fabric.OwnerOf(nic)] = time.Duration(s.random.Float64() * float64(time.Second))
	}
	return s
}

// Advance makes the packets until a moment, by the faults that the world has now.
func (s *Stream) Advance(until time.Time) {
	for _, e := range s.world.Flows {
		if e.Reply {
			continue
		}
		if _, known := s.first[e]; !known {
			s.first[e] = time.Duration(s.random.Float64() * float64(s.Cadence))
		}
		back := e
		back.Reply = true
		all := s.packets[e]
		at := s.made.Truncate(s.Cadence).Add(s.first[e])
		for ; at.Before(until); at = at.Add(s.Cadence) {
			if at.Before(s.made) {
				continue
			}
			p := packet{at: at}
			for d, way := range []fabric.Flow{e, back} {
				p.delay[d], p.lost[d] = s.send(way)
				if p.lost[d] {
					break // a probe that is lost has no reply
				}
			}
			all = append(all, p)
		}
		old, _ := slices.BinarySearchFunc(all, until.Add(-streamKept), func(p packet, t time.Time) int { return p.at.Compare(t) })
		s.packets[e] = all[old:]
	}
	s.made = until
}

// send sends one packet of a flow. The noise of delays has an exponential tail.
func (s *Stream) send(e fabric.Flow) (delay int64, lost bool) {
	from, to := e.Endpoints()
	p := s.world.Paths[e]
	delay = int64(1500+1000*len(p)) + int64(s.random.ExpFloat64()*500) + s.world.FlowDelay[e] + s.world.Clock[to] - s.world.Clock[from]
	for _, d := range p.LinkDirections(from, to) {
		delay += s.world.Delay[d]
		lost = lost || s.world.Loss[d] > 0 && s.random.Float64() < s.world.Loss[d]
	}
	for _, h := range p {
		delay += s.world.Slow[h.Switch]
	}
	return delay, lost
}

// lastScrape returns the last scrape of a node that a cycle at a moment uses.
func (s *Stream) lastScrape(node string, now time.Time) time.Time {
	at := now.Truncate(time.Second).Add(-streamLag)
	end := at.Truncate(time.Second).Add(s.scrapes[node])
	if end.After(at) {
		end = end.Add(-time.Second)
	}
	return end
}

// roundTrips is what nodes counted of a flow: the replies in a window, and of its last second the probes, the replies, and the probes that
// the reflecting node had.
type roundTrips struct{ replies, lastSent, lastReplies, lastReceived float64 }

// windows returns what the nodes counted of all flows, for a cycle at a moment.
func (s *Stream) windows(now time.Time) (out []*fabric.Observation, trips map[fabric.Flow]roundTrips) {
	s.Advance(now)
	trips = map[fabric.Flow]roundTrips{}
	for _, e := range s.world.Flows {
		out = append(out, s.window(e, now))
		if !e.Reply {
			trips[e] = s.roundTripsOf(e, now)
		}
	}
	return out, trips
}

// between returns the packets of a flow from one moment to another.
func (s *Stream) between(e fabric.Flow, from, to time.Time) []packet {
	all := s.packets[e.ProbeFlow()]
	search := func(t time.Time) int {
		i, _ := slices.BinarySearchFunc(all, t, func(p packet, t time.Time) int { return p.at.Compare(t) })
		return i
	}
	return all[search(from):search(to)]
}

// window returns the window of a flow.
func (s *Stream) window(e fabric.Flow, now time.Time) *fabric.Observation {
	from, to := e.Endpoints()
	end := s.lastScrape(fabric.OwnerOf(e.Src), now)
	o := &fabric.Observation{Edge: e.String(), Src: from, Dst: to, Tier: s.world.Graph.PathTier(from, to), Plane: s.world.Graph.PlaneOf(from), Start: end.Add(-streamSpan),
		WindowNS: int64(streamSpan), Timestamp: "kernel", PathState: fabric.PathUnknown}
	d := 0
	if e.Reply {
		d = 1
	}
	all := s.between(e, end.Add(-streamSpan), end)
	known := 0 // packets before the last one that was answered
	for i := range all {
		if !all[i].lost[0] && !all[i].lost[1] {
			known = i + 1
		}
	}
	var delays []int64
	for i := range all {
		p := &all[i]
		if e.Reply && p.lost[0] {
			continue
		}
		if o.Sent++; p.lost[d] && i < known {
			o.Lost++
		}
		if !p.lost[0] && !p.lost[1] {
			delays = append(delays, p.delay[d])
		}
	}
	if len(delays) > 0 {
		slices.Sort(delays)
		at := func(q float64) *int64 { return &delays[int(math.Min(q*float64(len(delays)), float64(len(delays)-1)))] }
		o.OWD = &fabric.Quantiles{P50: at(0.5), P90: at(0.9), P99: at(0.99)}
	}
	return o
}

// roundTripsOf returns what the nodes counted of the probes of a flow and their replies.
func (s *Stream) roundTripsOf(e fabric.Flow, now time.Time) (out roundTrips) {
	end := s.lastScrape(fabric.OwnerOf(e.Src), now)
	all := s.between(e, end.Add(-streamSpan), end)
	for i := range all {
		p := &all[i]
		last, answered := !p.at.Before(end.Add(-time.Second)), !p.lost[0] && !p.lost[1]
		if answered {
			out.replies++
		}
		if last {
			out.lastSent++
		}
		if last && answered {
			out.lastReplies++
		}
	}
	end = s.lastScrape(fabric.OwnerOf(e.Dst), now)
	all = s.between(e, end.Add(-time.Second), end)
	for i := range all {
		if !all[i].lost[0] {
			out.lastReceived++
		}
	}
	return out
}
