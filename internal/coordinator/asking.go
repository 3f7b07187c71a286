package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// Limits of temporary flows and hop-limited probes, whatever the analyzers ask for.
const (
	askedPerIncident = 64   // from the first question of the incident to the last
	askedPerFleet    = 200  // at a time
	askedPerNIC      = 16   // at a time, from it and to it
	askedShare       = 0.01 // of the probes of the schedule
	askedFor         = time.Minute
	// askedCadence gives a window of two seconds enough probes for a distribution of delays.
	askedCadence = 160 * time.Millisecond
	// incidentMemory is how long an incident is remembered after its last question, and mostIncidents how many are.
	incidentMemory = time.Hour
	mostIncidents  = 1000
	mostWanted     = 64 // entries of a question
)

// askedFlows are the temporary flows and the hop-limited probes that analyzers asked for. It needs changeMu.
type askedFlows struct {
	flows     []askedFlow
	hops      []askedHop
	incidents map[string]*askedIncident
}

// askedFlow is one temporary flow.
type askedFlow struct {
	flow fabric.Flow
	grant
}

// grant is for which incident something was granted, and until when.
type grant struct {
	incident string
	ends     time.Duration
}

// askedIncident is what an incident has used of its budget.
type askedIncident struct {
	granted int
	lastAt  time.Duration
	askers  map[string]bool // that still need its flows
}

// Ask answers the question of an analyzer. It returns a gRPC status unless the client's certificate is for one of the
// names that may ask.
func (s *Server) Ask(ctx context.Context, q *agentapi.Question) (*agentapi.Answer, error) {
	id, err := s.clientIdentity(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(id.names, func(n string) bool { return slices.Contains(s.c.opts.AskClients, n) })
	if i < 0 {
		s.c.counters.addQuestion(questionDenied)
		return nil, status.Errorf(codes.PermissionDenied, "the certificate is for %q, and --ask.clients has none of these names", id.names)
	}
	if err := s.c.requireLeader(); err != nil {
		s.c.counters.addQuestion(questionRefused)
		return nil, err
	}
	if err := checkQuestion(q); err != nil {
		s.c.counters.addQuestion(questionMalformed)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return s.c.answerQuestion(id.names[i], q)
}

// checkQuestion returns an error that names the field if a question is invalid.
func checkQuestion(q *agentapi.Question) error {
	if err := checkText("question.incident", q.GetIncident()); err != nil {
		return err
	}
	if q.GetIncident() == "" {
		return fmt.Errorf("question.incident: empty")
	}
	if n := len(q.GetWanted()); n > mostWanted {
		return fmt.Errorf("question.wanted: %d, want at most %d", n, mostWanted)
	}
	for i, w := range q.GetWanted() {
		at := fmt.Sprintf("question.wanted[%d]", i)
		for _, f := range []struct{ field, nic string }{{at + ".src", w.GetSrc()}, {at + ".dst", w.GetDst()}} {
			if err := checkText(f.field, f.nic); err != nil {
				return err
			}
			if !fabric.IsNIC(f.nic) {
				return fmt.Errorf("%s: %q, want node/device", f.field, f.nic)
			}
		}
		if n := w.GetFlows(); n < 1 || n > fabric.TemporaryFlows {
			return fmt.Errorf("%s.flows: %d, want 1 to %d", at, n, fabric.TemporaryFlows)
		}
		if w.GetClass() >= maxClasses {
			return fmt.Errorf("%s.class: %d, want at most %d", at, w.GetClass(), maxClasses-1)
		}
	}
	return checkHopProbes(q.GetHops())
}

// answerQuestion grants what the limits allow, and hands out the plan with the new flows.
func (c *Coordinator) answerQuestion(asker string, q *agentapi.Question) (*agentapi.Answer, error) {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	c.mu.Lock()
	p := c.planning.plan
	c.mu.Unlock()
	if p == nil {
		c.counters.addQuestion(questionRefused)
		return nil, status.Error(codes.Unavailable, errNoPlan.Error())
	}
	mono := c.opts.Clock.MonoTime()
	changed, refused := c.asked.applyQuestion(p, c.paths.switchAt, asker, q, mono)
	if changed {
		if err := c.planAskedFlows(p); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	a := &agentapi.Answer{Refused: refused}
	for _, f := range c.asked.flows {
		if f.incident == q.GetIncident() {
			a.Flows = append(a.Flows, f.flow.String())
			a.EndsInNs = max(a.EndsInNs, uint64(f.ends-mono))
		}
	}
	for _, h := range c.asked.hops {
		if h.incident == q.GetIncident() {
			a.Hops = append(a.Hops, &agentapi.HopProbe{Flow: h.flow.String(), Hop: uint32(h.hop)})
			a.EndsInNs = max(a.EndsInNs, uint64(h.ends-mono))
		}
	}
	result := questionAnswered
	if wantsSomething(q) && len(a.Flows)+len(a.Hops) == 0 {
		result = questionRefused
	}
	c.counters.addQuestion(result)
	c.log.Info("answered a question", "asker", asker, "incident", q.GetIncident(), "flows", len(a.Flows), "hops", len(a.Hops), "refused", len(refused))
	return a, nil
}

// wantsSomething reports whether a question is not the end of an earlier one.
func wantsSomething(q *agentapi.Question) bool { return len(q.GetWanted())+len(q.GetHops()) > 0 }

// applyQuestion grants what the limits allow. It reports whether the grants changed, and why others were refused. switchAt
// returns the switch at a hop of a flow's path, or "".
func (a *askedFlows) applyQuestion(p *plan, switchAt func(f fabric.Flow, hop int) string, asker string, q *agentapi.Question, mono time.Duration) (changed bool, refused []string) {
	in := a.incidents[q.GetIncident()]
	if !wantsSomething(q) {
		if in == nil || !in.askers[asker] {
			return false, nil
		}
		if delete(in.askers, asker); len(in.askers) > 0 {
			return false, nil
		}
		return a.endGrants(func(g grant) bool { return g.incident == q.GetIncident() }), nil
	}
	if in == nil {
		if len(a.incidents) >= mostIncidents {
			return false, []string{fmt.Sprintf("%d other incidents were asked about in the last hour", len(a.incidents))}
		}
		if a.incidents == nil {
			a.incidents = map[string]*askedIncident{}
		}
		in = &askedIncident{askers: map[string]bool{}}
		a.incidents[q.GetIncident()] = in
	}
	in.lastAt = mono
	in.askers[asker] = true
	for _, w := range q.GetWanted() {
		for n := a.countFlows(q.GetIncident(), w); n < int(w.GetFlows()); n++ {
			flow, why := a.chooseFlow(p, in, w)
			if why != "" {
				refused = append(refused, fmt.Sprintf("%s>%s: %s", w.GetSrc(), w.GetDst(), why))
				break
			}
			a.flows = append(a.flows, askedFlow{flow: flow, grant: grant{incident: q.GetIncident(), ends: mono + askedFor}})
			in.granted++
			changed = true
		}
	}
	granted, refusedHops := a.grantHops(p, switchAt, in, q, mono)
	return changed || granted, append(refused, refusedHops...)
}

// countFlows returns how many flows of an incident there are between two NICs.
func (a *askedFlows) countFlows(incident string, w *agentapi.WantedFlows) (n int) {
	for i := range a.flows {
		if f := &a.flows[i]; f.incident == incident && f.flow.Src == w.GetSrc() && f.flow.Dst == w.GetDst() && f.flow.Number/fabric.FlowsPerClass == int(w.GetClass()) {
			n++
		}
	}
	return n
}

// chooseFlow returns a flow that the limits allow, or the reason why there is none.
func (a *askedFlows) chooseFlow(p *plan, in *askedIncident, w *agentapi.WantedFlows) (flow fabric.Flow, why string) {
	src, okS := p.index[w.GetSrc()]
	dst, okD := p.index[w.GetDst()]
	switch {
	case !okS || !okD:
		return flow, "the topology has no such NICs"
	case fabric.OwnerOf(w.GetSrc()) == fabric.OwnerOf(w.GetDst()):
		return flow, "both NICs are of one node"
	case int(w.GetClass()) >= len(p.settings.stamp.GetClasses()):
		return flow, fmt.Sprintf("there is no class %d of probes", w.GetClass())
	case !p.hasNode(fabric.OwnerOf(w.GetSrc())) || !p.hasNode(fabric.OwnerOf(w.GetDst())):
		return flow, "the schedule does not have both nodes"
	case !p.canProbe(&schedule.Edge{Src: src, Dst: dst}):
		return flow, "the NICs have no addresses of the same family"
	}
	if why := a.checkLimits(p, in, 1/askedCadence.Seconds(), w.GetSrc(), w.GetDst()); why != "" {
		return flow, why
	}
	used := map[int]bool{}
	for i := range a.flows {
		if f := a.flows[i].flow; f.Src == w.GetSrc() && f.Dst == w.GetDst() {
			used[f.Number] = true
		}
	}
	first := int(w.GetClass())*fabric.FlowsPerClass + fabric.ScheduledFlows
	for n := first; n < first+fabric.TemporaryFlows; n++ {
		if !used[n] {
			return fabric.Flow{Src: w.GetSrc(), Dst: w.GetDst(), Number: n}, ""
		}
	}
	return flow, "every temporary source port of the pair is in use"
}

// checkLimits returns why something more between NICs, with so many probes a second, exceeds a limit, or "".
func (a *askedFlows) checkLimits(p *plan, in *askedIncident, perSecond float64, nics ...string) (why string) {
	switch {
	case in.granted >= askedPerIncident:
		return fmt.Sprintf("the incident has had its %d flows", askedPerIncident)
	case len(a.flows)+len(a.hops) >= askedPerFleet:
		return fmt.Sprintf("the fleet has %d temporary flows, which is the limit", askedPerFleet)
	case float64(len(a.flows))/askedCadence.Seconds()+float64(len(a.hops))+perSecond > askedShare*p.edges.rate:
		return fmt.Sprintf("temporary flows may take %.3g %% of the probes, which %d flows do", 100*askedShare, len(a.flows)+len(a.hops))
	}
	for _, nic := range nics {
		n := 0
		for i := range a.flows {
			if f := a.flows[i].flow; f.Src == nic || f.Dst == nic {
				n++
			}
		}
		for i := range a.hops {
			if a.hops[i].flow.Src == nic {
				n++
			}
		}
		if n >= askedPerNIC {
			return fmt.Sprintf("one of the NICs has %d temporary flows, which is the limit", askedPerNIC)
		}
	}
	return ""
}

// endGrants removes flows and hop-limited probes, and reports whether there were any.
func (a *askedFlows) endGrants(over func(grant) bool) bool {
	before := len(a.flows) + len(a.hops)
	a.flows = slices.DeleteFunc(a.flows, func(f askedFlow) bool { return over(f.grant) })
	a.hops = slices.DeleteFunc(a.hops, func(h askedHop) bool { return over(h.grant) })
	return len(a.flows)+len(a.hops) < before
}

// expire removes what has ended and the incidents that are long over, and reports whether grants were removed.
func (a *askedFlows) expire(mono time.Duration) bool {
	maps.DeleteFunc(a.incidents, func(_ string, in *askedIncident) bool { return mono-in.lastAt >= incidentMemory })
	return a.endGrants(func(g grant) bool { return mono >= g.ends })
}

// addTo returns a plan with the temporary flows and hop-limited probes. Those whose ends it lacks are left out.
func (a *askedFlows) addTo(p *plan) (*plan, error) {
	var edges []schedule.Edge
	for i := range a.flows {
		f := a.flows[i].flow
		src, okS := p.index[f.Src]
		dst, okD := p.index[f.Dst]
		if !okS || !okD {
			continue
		}
		edges = append(edges, schedule.Edge{Src: src, Dst: dst, Flow: uint16(f.Number), Class: uint8(f.Number / fabric.FlowsPerClass), Tier: uint8(p.graph.PathTier(f.Src, f.Dst)), Cadence: askedCadence})
	}
	return p.withTemporary(edges, a.hopsByEdge(p))
}

// planAskedFlows hands out a plan with the present temporary flows. It needs changeMu.
func (c *Coordinator) planAskedFlows(p *plan) error {
	next, err := c.asked.addTo(p)
	if err != nil {
		c.log.Error("cannot plan temporary flows", "err", err)
		return err
	}
	c.paths.setPlan(next)
	c.usePlan(next)
	c.counters.add(func(n *counts) { n.asked, n.askedHops = len(c.asked.flows), len(c.asked.hops) })
	return nil
}

// endAskedFlows ends the temporary flows whose time is over. It needs changeMu.
func (c *Coordinator) endAskedFlows() {
	if !c.asked.expire(c.opts.Clock.MonoTime()) {
		return
	}
	c.mu.Lock()
	p := c.planning.plan
	c.mu.Unlock()
	if p != nil {
		_ = c.planAskedFlows(p) // logged; the next plan leaves them out
	}
}
