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

// Limits of temporary flows, whatever the analyzers ask for.
const (
	askedPerIncident = 64   // flows, from the first question of the incident to the last
	askedPerFleet    = 200  // flows at a time
	askedPerNIC      = 16   // flows at a time, from it and to it
	askedShare       = 0.01 // of the probes of the schedule
	askedFor         = time.Minute
	// askedCadence gives a window of two seconds enough probes for a distribution of delays.
	askedCadence = 160 * time.Millisecond
	// incidentMemory is how long an incident is remembered after its last question, and mostIncidents how many are.
	incidentMemory = time.Hour
	mostIncidents  = 1000
	mostWanted     = 64 // entries of a question
)

// askedFlows are the temporary flows that analyzers asked for. It needs changeMu.
type askedFlows struct {
	flows     []askedFlow
	incidents map[string]*askedIncident
}

// askedFlow is one temporary flow.
type askedFlow struct {
	flow     fabric.Flow
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
	return nil
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
	changed, refused := c.asked.applyQuestion(p, asker, q, mono)
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
	result := questionAnswered
	if len(q.GetWanted()) > 0 && len(a.Flows) == 0 {
		result = questionRefused
	}
	c.counters.addQuestion(result)
	c.log.Info("answered a question", "asker", asker, "incident", q.GetIncident(), "flows", len(a.Flows), "refused", len(refused))
	return a, nil
}

// applyQuestion grants what the limits allow. It reports whether the flows changed, and why others were not granted.
func (a *askedFlows) applyQuestion(p *plan, asker string, q *agentapi.Question, mono time.Duration) (changed bool, refused []string) {
	in := a.incidents[q.GetIncident()]
	if len(q.GetWanted()) == 0 {
		if in == nil || !in.askers[asker] {
			return false, nil
		}
		if delete(in.askers, asker); len(in.askers) > 0 {
			return false, nil
		}
		return a.endFlows(func(f *askedFlow) bool { return f.incident == q.GetIncident() }), nil
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
			a.flows = append(a.flows, askedFlow{flow: flow, incident: q.GetIncident(), ends: mono + askedFor})
			in.granted++
			changed = true
		}
	}
	return changed, refused
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
	case in.granted >= askedPerIncident:
		return flow, fmt.Sprintf("the incident has had its %d flows", askedPerIncident)
	case len(a.flows) >= askedPerFleet:
		return flow, fmt.Sprintf("the fleet has %d temporary flows, which is the limit", askedPerFleet)
	case float64(len(a.flows)+1)/askedCadence.Seconds() > askedShare*p.edges.rate:
		return flow, fmt.Sprintf("temporary flows may take %.3g %% of the probes, which %d flows do", 100*askedShare, len(a.flows))
	}
	used := map[int]bool{}
	atSrc, atDst := 0, 0
	for i := range a.flows {
		f := a.flows[i].flow
		if f.Src == w.GetSrc() || f.Dst == w.GetSrc() {
			atSrc++
		}
		if f.Src == w.GetDst() || f.Dst == w.GetDst() {
			atDst++
		}
		if f.Src == w.GetSrc() && f.Dst == w.GetDst() {
			used[f.Number] = true
		}
	}
	if atSrc >= askedPerNIC || atDst >= askedPerNIC {
		return flow, fmt.Sprintf("one of the NICs has %d temporary flows, which is the limit", askedPerNIC)
	}
	first := int(w.GetClass())*fabric.FlowsPerClass + fabric.ScheduledFlows
	for n := first; n < first+fabric.TemporaryFlows; n++ {
		if !used[n] {
			return fabric.Flow{Src: w.GetSrc(), Dst: w.GetDst(), Number: n}, ""
		}
	}
	return flow, "every temporary source port of the pair is in use"
}

// endFlows removes flows, and reports whether there were any.
func (a *askedFlows) endFlows(over func(*askedFlow) bool) bool {
	before := len(a.flows)
	a.flows = slices.DeleteFunc(a.flows, func(f askedFlow) bool { return over(&f) })
	return len(a.flows) < before
}

// expire removes the flows that have ended and the incidents that are long over, and reports whether flows were removed.
func (a *askedFlows) expire(mono time.Duration) bool {
	maps.DeleteFunc(a.incidents, func(_ string, in *askedIncident) bool { return mono-in.lastAt >= incidentMemory })
	return a.endFlows(func(f *askedFlow) bool { return mono >= f.ends })
}

// addTo returns a plan with the temporary flows. Flows whose ends it lacks are left out.
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
	return p.withTemporary(edges)
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
	c.counters.add(func(n *counts) { n.asked = len(c.asked.flows) })
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
