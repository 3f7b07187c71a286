package coordinator

import (
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
)

// hopsPerSwitch limits the hop-limited probes to one switch, from all nodes together. Each is one packet a second.
const hopsPerSwitch = 50

// askedHop is a hop-limited copy of a flow's packets, once a second. at is the switch that it ends at, by the coordinator's
// own knowledge of the path.
type askedHop struct {
	flow fabric.Flow
	hop  int
	at   string
	grant
}

// checkHopProbes returns an error that names the field if one of the probes of a question is invalid.
func checkHopProbes(hops []*agentapi.HopProbe) error {
	if n := len(hops); n > mostWanted {
		return fmt.Errorf("question.hops: %d, want at most %d", n, mostWanted)
	}
	for i, h := range hops {
		at := fmt.Sprintf("question.hops[%d]", i)
		if err := checkText(at+".flow", h.GetFlow()); err != nil {
			return err
		}
		if f, err := fabric.ParseFlow(h.GetFlow()); err != nil || f.Reply {
			return fmt.Errorf("%s.flow: %q, want src>dst#n", at, h.GetFlow())
		}
		if n := h.GetHop(); n < 1 || n > agentapi.MaxHops {
			return fmt.Errorf("%s.hop: %d, want 1 to %d", at, n, agentapi.MaxHops)
		}
	}
	return nil
}

// grantHops grants the hop-limited probes that the limits allow. It reports whether there are new ones, and why others were
// refused.
func (a *askedFlows) grantHops(p *plan, switchAt func(f fabric.Flow, hop int) string, in *askedIncident, q *agentapi.Question, mono time.Duration) (changed bool, refused []string) {
	for _, w := range q.GetHops() {
		flow, err := fabric.ParseFlow(w.GetFlow())
		if err != nil {
			continue // checkHopProbes has refused it
		}
		h := askedHop{flow: flow, hop: int(w.GetHop()), at: switchAt(flow, int(w.GetHop())), grant: grant{incident: q.GetIncident(), ends: mono + askedFor}}
		if a.hasHop(h) {
			continue
		}
		if why := a.checkHop(p, in, h); why != "" {
			refused = append(refused, fmt.Sprintf("%s, hop %d: %s", flow, h.hop, why))
			continue
		}
		a.hops = append(a.hops, h)
		in.granted++
		changed = true
	}
	return changed, refused
}

// hasHop reports whether an incident has a probe already.
func (a *askedFlows) hasHop(h askedHop) bool {
	return slices.ContainsFunc(a.hops, func(o askedHop) bool { return o.flow == h.flow && o.hop == h.hop && o.incident == h.incident })
}

// checkHop returns why a hop-limited probe is not granted, or "".
func (a *askedFlows) checkHop(p *plan, in *askedIncident, h askedHop) (why string) {
	src, okS := p.index[h.flow.Src]
	dst, okD := p.index[h.flow.Dst]
	switch {
	case !okS || !okD || p.findEdge(src, dst, h.flow.Number) < 0:
		return "the schedule does not have the flow"
	case !p.hasNode(fabric.OwnerOf(h.flow.Src)):
		return "the schedule does not have its node"
	case h.at == "":
		return "no trace shows a switch there"
	}
	toSwitch := 0
	for i := range a.hops {
		if a.hops[i].at != h.at {
			continue
		}
		if a.hops[i].flow.Src == h.flow.Src {
			return fmt.Sprintf("the NIC has a probe to %s already", h.at)
		}
		toSwitch++
	}
	if toSwitch >= hopsPerSwitch {
		return fmt.Sprintf("%s has to answer %d probes a second, which is the limit", h.at, hopsPerSwitch)
	}
	return a.checkLimits(p, in, 1, h.flow.Src)
}

// hopsByEdge returns the hop limits by edge, without those whose flow the plan lacks.
func (a *askedFlows) hopsByEdge(p *plan) map[uint64][]uint32 {
	if len(a.hops) == 0 {
		return nil
	}
	out := map[uint64][]uint32{}
	for i := range a.hops {
		h := &a.hops[i]
		src, okS := p.index[h.flow.Src]
		dst, okD := p.index[h.flow.Dst]
		if !okS || !okD {
			continue
		}
		k := edgeKey(src, dst, h.flow.Number, false)
		if !slices.Contains(out[k], uint32(h.hop)) {
			out[k] = append(out[k], uint32(h.hop))
			slices.Sort(out[k])
		}
	}
	return out
}

// switchAt returns the switch at a hop of the last known path of a flow's probes, or "". Hops count from 1.
func (s *pathStore) switchAt(f fabric.Flow, hop int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plan == nil {
		return ""
	}
	src, okS := s.plan.index[f.Src]
	dst, okD := s.plan.index[f.Dst]
	if !okS || !okD {
		return ""
	}
	crossed := s.edges[edgeKey(src, dst, f.Number, false)]
	if hop < 1 || hop >= len(crossed) {
		return ""
	}
	sw, _, _ := fabric.SplitPort(s.links[crossed[hop-1]].To)
	return sw
}
