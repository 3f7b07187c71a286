package classify

import (
	"cmp"
	"hash/maphash"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Depth is the number of moments that a History keeps.
const Depth = 64

// Loss ratios that classify a flow in one moment.
const (
	// outLoss is the loss ratio from which a moment is an outage. hardLoss is the one from
	// which a fault is a failure and not a degradation.
	outLoss, hardLoss = 0.1, 0.5
	// cleanLoss is the ratio up to which a moment is clean, and cleanSent the number of packets
	// that it needs: if one packet in ten is always lost, all of 50 packets arrive once
	// in 200 moments. So an outage ends with two such moments in a row, or one of ampleSent packets.
	// hardClean packets are enough where half or more were lost before.
	cleanLoss            = 0.005
	cleanSent, ampleSent = 50, 100
	hardClean            = 8
	// After forgetAfter moments without trouble, earlier trouble belongs to another fault.
	forgetAfter = 6
)

// History represents the conditions of the flows over the last moments, which are the windows
// of a file or the cycles of the live analyzer. It takes about 80 octets for each flow.
type History struct {
	moments int
	flows   map[fabric.Flow]*flowHistory
	starved map[string]mask // nodes
	seed    maphash.Seed
	step    time.Duration
}

// mask has a bit for each moment. The latest is bit 0.
type mask uint64

// flowHistory represents the history of one flow. Its masks were last advanced at moment last.
type flowHistory struct {
	last                                                  int
	decided, bad, outage, hard, clean, lossless, rerouted mask
	// astray has the moments in which its path was unknown after an outage on a known one: it may have left that path.
	astray mask
	// ample has the clean moments of many packets.
	ample       mask
	outageRoute uint64 // its route in its latest outage, or 0
}

// NewHistory returns an empty history whose moments are step apart.
func NewHistory(step time.Duration) *History {
	return &History{flows: map[fabric.Flow]*flowHistory{}, starved: map[string]mask{}, seed: maphash.MakeSeed(), step: step}
}

// AddMoment adds the findings of one more moment, each judged without the others.
func (h *History) AddMoment(findings []judge.Finding) {
	h.moments++
	for i := range findings {
		f := &findings[i]
		p := h.flows[f.Flow]
		if p == nil {
			p = &flowHistory{last: h.moments}
			h.flows[f.Flow] = p
		}
		p.advanceTo(h.moments)
		p.addFinding(f, h.routeHash(f.Obs.Path))
	}
	for node := range h.starved {
		h.starved[node] <<= 1
	}
	for _, node := range starvedNodes(findings) {
		h.starved[node] |= 1
	}
	if h.moments%Depth == 0 {
		h.dropForgotten()
	}
}

// dropForgotten drops the flows and nodes without a remembered moment, since a fleet's schedule changes.
func (h *History) dropForgotten() {
	maps.DeleteFunc(h.flows, func(_ fabric.Flow, p *flowHistory) bool { return h.moments-p.last >= Depth })
	maps.DeleteFunc(h.starved, func(_ string, m mask) bool { return m == 0 })
}

// advanceTo advances the masks to a moment.
func (p *flowHistory) advanceTo(to int) {
	by := to - p.last
	p.last = to
	for _, m := range []*mask{&p.decided, &p.bad, &p.outage, &p.hard, &p.clean, &p.lossless, &p.rerouted, &p.astray, &p.ample} {
		*m <<= by
	}
}

// lateBinding is the number of moments for which a flow may be bound to a path that it has left.
const lateBinding = 3

// elsewhere returns the moments in which the flow may not have taken the path of its outages: its path was another one or not known, or
// became so shortly after a moment without outage. Clean moments then say nothing of the path of the outages.
func (p *flowHistory) elsewhere() mask {
	out := p.rerouted | p.astray
	for range lateBinding {
		out |= out << 1 &^ (p.outage | p.hard)
	}
	return out
}

func (p *flowHistory) addFinding(f *judge.Finding, route uint64) {
	if f.HostSuspect {
		return
	}
	if f.Condition != judge.Undecided {
		p.decided |= 1
	}
	if f.Condition == judge.Degraded {
		p.bad |= 1
	}
	sent, lost := f.Obs.Sent, f.Obs.Lost
	if f.Obs.LastSecond != nil {
		sent, lost = f.Obs.LastSecond.Sent, f.Obs.LastSecond.Lost
	}
	if ratio := float64(lost) / float64(max(sent, 1)); sent > 0 {
		if ratio >= outLoss && lost >= judge.DefaultParameters().MinLost {
			p.outage |= 1
		}
		if ratio >= hardLoss && lost >= judge.DefaultParameters().MinLost {
			p.hard |= 1
		}
		if ratio <= cleanLoss && sent >= cleanSent {
			p.clean |= 1
			if sent >= ampleSent {
				p.ample |= 1
			}
		}
		if lost == 0 && sent >= hardClean {
			p.lossless |= 1
		}
	}
	switch {
	case route == 0:
		if p.outageRoute != 0 {
			p.astray |= 1
		}
	case (p.outage|p.hard)&1 != 0:
		p.outageRoute = route
	case p.outageRoute != 0 && p.outageRoute != route:
		p.rerouted |= 1
	}
}

// routeHash returns a fingerprint of a path, or 0 if the path is unknown.
func (h *History) routeHash(p fabric.Path) uint64 {
	if len(p) == 0 {
		return 0
	}
	var m maphash.Hash
	m.SetSeed(h.seed)
	for _, hop := range p {
		m.WriteString(hop.Switch)
		m.WriteByte(0)
		m.WriteString(hop.In)
		m.WriteByte(0)
		m.WriteString(hop.Out)
		m.WriteByte(0)
	}
	return m.Sum64() | 1
}

// starvedNodes returns the nodes whose flows are excluded as evidence in a moment: nearly all
// flows of such a node are excluded. The node with the most flows comes first. A flooded NIC
// does not make its host starved.
func starvedNodes(findings []judge.Finding) []string {
	excludedFlows := map[string][]int{}
	for i := range findings {
		if f := &findings[i]; f.HostSuspect && !f.Obs.Unread {
			for _, node := range [2]string{fabric.OwnerOf(f.Flow.Src), fabric.OwnerOf(f.Flow.Dst)} {
				excludedFlows[node] = append(excludedFlows[node], i)
			}
		}
	}
	if len(excludedFlows) == 0 {
		return nil
	}
	all := map[string]int{}
	for i := range findings {
		for _, node := range [2]string{fabric.OwnerOf(findings[i].Flow.Src), fabric.OwnerOf(findings[i].Flow.Dst)} {
			if excludedFlows[node] != nil {
				all[node]++
			}
		}
	}
	var out []string
	explained := map[int]bool{}
	nodes := slices.SortedFunc(maps.Keys(excludedFlows), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(excludedFlows[b]), len(excludedFlows[a])), cmp.Compare(a, b))
	})
	for _, node := range nodes {
		fresh := 0
		for _, i := range excludedFlows[node] {
			if !explained[i] {
				fresh++
			}
		}
		if fresh < 2 || len(excludedFlows[node])*5 < all[node]*4 {
			continue
		}
		for _, i := range excludedFlows[node] {
			explained[i] = true
		}
		out = append(out, node)
	}
	return out
}

// StarvedShare returns the share of the remembered moments in which a node was starved, from 0
// to 1.
func (h *History) StarvedShare(node string) float64 {
	if h == nil || h.moments == 0 {
		return 0
	}
	return float64(bits.OnesCount64(uint64(h.starved[node]))) / float64(min(h.moments, Depth))
}

// recurrence describes how a condition comes and goes, in moments.
type recurrence struct {
	times   int // how often it began
	longest int // its longest duration
	lasts   bool
}

// recurrenceOf returns how the bad moments of a mask recur between good ones. Moments that are
// neither belong to the moments around them. Those of goingOn prolong a bad time, but begin
// none, since a path may be learnt long after it changed. Moments before forgetAfter calm
// moments do not count. Good moments are calm.
func recurrenceOf(bad, goingOn, good, calm mask) recurrence {
	var s recurrence
	run, quiet := 0, 0
	for i := Depth - 1; i >= 0; i-- {
		switch bit := mask(1) << i; {
		case bad&bit != 0:
			if run == 0 {
				s.times++
			}
			run++
			quiet = 0
			s.longest = max(s.longest, run)
		case goingOn&bit != 0 && run > 0:
			run++
			s.longest = max(s.longest, run)
		case calm&bit != 0:
			if quiet++; quiet == forgetAfter {
				s = recurrence{}
			}
			if good&bit != 0 || quiet >= forgetAfter {
				run = 0
			}
		}
	}
	s.lasts = run > 0
	return s
}

// comesAndGoes returns how often the path of some flows had an outage, or was avoided after one,
// with clean moments in between. It returns the recurrence of the flow with the most outages,
// and reports whether at least a third of the flows had two or more.
func (h *History) comesAndGoes(edges []fabric.Flow) (s recurrence, yes bool) {
	if h == nil {
		return s, false
	}
	var all []recurrence
	for _, e := range edges {
		p := h.flows[e]
		if p == nil {
			continue
		}
		p.advanceTo(h.moments)
		elsewhere := p.elsewhere()
		clean := p.clean &^ elsewhere
		one := recurrenceOf(p.outage, p.rerouted, clean&(p.ample|clean<<1|clean>>1), p.clean&^p.rerouted)
		if hard := recurrenceOf(p.hard, p.rerouted, p.lossless&^elsewhere, p.lossless&^p.rerouted); hard.times > one.times {
			one = hard
		}
		if one.times >= 2 {
			all = append(all, one)
		}
	}
	if len(all) == 0 || len(all)*3 < len(edges) {
		return s, false
	}
	for _, one := range all {
		if one.times > s.times {
			s = one
		}
	}
	return s, true
}

// badTogether returns how some groups of flows were bad at once, which means that most flows of
// two or more groups were bad in a moment. It also returns the number of such moments, and the
// number of moments in which only one group was bad.
func (h *History) badTogether(groups [][]fabric.Flow) (s recurrence, moments, alone int) {
	if h == nil {
		return s, 0, 0
	}
	var decided, bad, groupsBad [Depth]int
	for _, edges := range groups {
		var groupDecided, groupBad [Depth]int
		for _, e := range edges {
			p := h.flows[e]
			if p == nil {
				continue
			}
			p.advanceTo(h.moments)
			for i := range Depth {
				groupDecided[i] += int(p.decided >> i & 1)
				groupBad[i] += int(p.bad >> i & 1)
			}
		}
		for i := range Depth {
			decided[i] += groupDecided[i]
			bad[i] += groupBad[i]
			if groupBad[i] > 0 && groupBad[i]*2 >= groupDecided[i] {
				groupsBad[i]++
			}
		}
	}
	var up, quiet mask
	for i := range Depth {
		switch {
		case groupsBad[i] >= 2:
			up |= 1 << i
		case groupsBad[i] == 1:
			alone++
		case bad[i]*5 <= decided[i] && decided[i] > 0:
			quiet |= 1 << i
		}
	}
	return recurrenceOf(up, 0, quiet, quiet), bits.OnesCount64(uint64(up)), alone
}
