package looptest

import (
	"context"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/questions"
	"github.com/graylink/graylink/internal/fabric"
)

// Times of temporary flows: their first probe is sent after the changeover, and they end after a minute.
const (
	changeover = 4 * time.Second
	grantedFor = time.Minute
)

// Mesh grants temporary flows as a coordinator does. The path of each flow is one of the shortest, at random.
type Mesh struct {
	// Limit is how many flows an incident gets.
	Limit int
	// Refuse is the reason why nothing is granted, or "".
	Refuse string
	// Policed is the share of the answers to hop-limited probes that switches do not send.
	Policed float64
	// Questions has all that was asked.
	Questions []questions.Question

	now     time.Time
	granted []grant
	hops    []hopGrant
}

type grant struct {
	flow     fabric.Flow
	incident string
	at       time.Time
	probing  bool
}

// Ask implements questions.Asker.
func (m *Mesh) Ask(_ context.Context, q questions.Question) (questions.Answer, error) {
	m.Questions = append(m.Questions, q)
	if len(q.Wanted)+len(q.Hops) == 0 {
		m.endHops(q.Incident)
		for i := range m.granted {
			if g := &m.granted[i]; g.incident == q.Incident {
				g.at = m.now.Add(-grantedFor)
			}
		}
		return questions.Answer{}, nil
	}
	var a questions.Answer
	if m.Refuse != "" {
		a.Refused = append(a.Refused, m.Refuse)
		return a, nil
	}
	for _, w := range q.Wanted {
		for n := range w.Flows {
			if len(a.Flows) >= m.Limit {
				a.Refused = append(a.Refused, "the limit of the test")
				break
			}
			f := fabric.Flow{Src: w.Src, Dst: w.Dst, Number: q.Class*fabric.FlowsPerClass + fabric.ScheduledFlows + n}
			if !slices.ContainsFunc(m.granted, func(g grant) bool { return g.flow == f }) {
				m.granted = append(m.granted, grant{flow: f, incident: q.Incident, at: m.now})
			}
			a.Flows = append(a.Flows, f)
		}
	}
	a.Hops = m.grantHops(q)
	return a, nil
}

// Flows returns how many temporary flows are probed now.
func (m *Mesh) Flows() (n int) {
	for _, g := range m.granted {
		if g.probing {
			n++
		}
	}
	return n
}

// applyGrants begins and ends flows in the world of a rig.
func (m *Mesh) applyGrants(r *Rig) {
	m.now = r.Now
	m.probeHops(r)
	w := r.World
	m.granted = slices.DeleteFunc(m.granted, func(g grant) bool {
		if r.Now.Sub(g.at) < grantedFor {
			return false
		}
		w.Flows = slices.DeleteFunc(w.Flows, func(f fabric.Flow) bool { return f.ProbeFlow() == g.flow })
		return true
	})
	for i := range m.granted {
		g := &m.granted[i]
		if g.probing || r.Now.Sub(g.at) < changeover {
			continue
		}
		g.probing = true
		for _, f := range []fabric.Flow{g.flow, {Src: g.flow.Src, Dst: g.flow.Dst, Number: g.flow.Number, Reply: true}} {
			from, to := f.Endpoints()
			all := w.Graph.ShortestPaths(from, to, 64)
			w.Paths[f] = all[w.Random.IntN(len(all))]
			w.Flows = append(w.Flows, f)
		}
	}
}
