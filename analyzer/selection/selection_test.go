package selection

import (
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/window"
)

// newRecordedPlanner returns a planner that has recorded a cycle in which every flow of a fabric was queried and
// healthy, and the moment of the next cycle, which queries the flows from h1 only.
func newRecordedPlanner(t *testing.T) (*Planner, *Moment) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 1)
	p := NewPlanner(Options{MinFlows: 1, MaxFlows: 1000, Round: 10 * time.Second}, nil)
	m := &Moment{Now: time.Unix(1000, 0), Cycle: 1, Baselines: baseline.NewBook(), Excluder: maintenance.NewExcluder(), Graph: w.Graph}
	m.Raw = judge.FindingsOf(w.Observe(0), judge.DefaultParameters())
	m.Findings = m.Raw
	p.AddFlowCount(len(m.Raw), len(m.Raw))
	p.RecordFlows(m)
	if p.CarryForward(m) != nil {
		t.Fatal("flows are carried, though all were queried")
	}
	p.current, p.previous = &queried{selection: evidence.Selection{Sources: map[string]bool{"h1/eth1": true}}}, p.current
	for _, s := range p.sortedNICs {
		s.judged = true
	}
	p.nicFor("h1/eth1").queriedFrom = 2
	return p, &Moment{Now: m.Now.Add(time.Second), Cycle: 2, Baselines: m.Baselines, Excluder: m.Excluder, Graph: m.Graph}
}

// TestRule8WhichFlowsAreCarried checks that flows are not carried if they are queried, if their NIC moved, if they were
// queried too long ago, or if they were not healthy then.
func TestRule8WhichFlowsAreCarried(t *testing.T) {
	const all, queried = 8 * 7 * 2, 7 * 2
	other := fabric.Flow{Src: "h2/eth1", Dst: "h5/eth1"}
	for name, tt := range map[string]struct {
		change func(p *Planner, m *Moment)
		want   int
	}{
		"all healthy":      {func(*Planner, *Moment) {}, all - queried},
		"one was not":      {func(p *Planner, _ *Moment) { p.states[other].wasHealthy = false }, all - queried - 1},
		"one is forgotten": {func(p *Planner, _ *Moment) { p.ForgetFlow(other) }, all - queried - 1},
		"a NIC moved":      {func(p *Planner, m *Moment) { p.nics["h2/eth1"].lastMoved = m.Cycle }, all - queried - (2*7-1)*2},
		"it moved before":  {func(p *Planner, m *Moment) { p.nics["h2/eth1"].lastMoved = m.Cycle - 1 }, all - queried},
		"it is absent":     {func(p *Planner, _ *Moment) { p.nics["h2/eth1"].absent = true }, all - queried - (2*7-1)*2},
		"a round ago":      {func(p *Planner, m *Moment) { m.Now = m.Now.Add(p.opts.Round) }, 0},
		"not judged":       {func(p *Planner, _ *Moment) { p.nics["h2/eth1"].judged = false }, all - queried - 7*2},
	} {
		p, m := newRecordedPlanner(t)
		tt.change(p, m)
		carried := p.CarryForward(m)
		if flows, usable, excluded := carried.FlowTotals(); flows != tt.want || usable != tt.want || excluded != 0 {
			t.Errorf("%s: %d flows are carried, %d of them with a path, %d excluded; want %d", name, flows, usable, excluded, tt.want)
		}
		if yes, _ := p.IsCarried(fabric.Flow{Src: "h1/eth1", Dst: "h2/eth1"}); yes {
			t.Errorf("%s: a flow is carried that was queried", name)
		}
	}
}

// TestUnrecordedFlowsAreKnown checks that flows of which only history says what is normal are yielded like the others, and not
// carried, and that a flow that gets a baseline later counts from then on.
func TestUnrecordedFlowsAreKnown(t *testing.T) {
	p, m := newRecordedPlanner(t)
	median, tail := int64(5000), int64(9000)
	normal := &fabric.Quantiles{P50: &median, P99: &tail}
	recalled, later := fabric.Flow{Src: "h1/eth1", Dst: "h9/eth1"}, fabric.Flow{Src: "h2/eth1", Dst: "h5/eth1"}
	m.Baselines.AdoptBaseline(recalled, normal, 100)
	m.Baselines.AdoptBaseline(later, normal, 100)
	if p.HasAllOf(m.Baselines) {
		t.Error("the planner has flows that were never recorded")
	}
	p.CarryForward(m)
	if !p.HasAllOf(m.Baselines) {
		t.Error("the planner lacks flows with a baseline")
	}
	learnt := map[fabric.Flow]FlowView{}
	for v := range p.EachFlow(m.Cycle) {
		if v.Learnt {
			learnt[*v.Flow] = *v
		}
	}
	if len(learnt) != 2 || learnt[recalled].Carried || learnt[recalled].Queried || !learnt[later].Carried {
		t.Errorf("flows with a baseline: %+v", learnt)
	}
}

// TestRule7RoundLength checks that a round takes a minute, or as long as keeps a calm cycle's work the same.
func TestRule7RoundLength(t *testing.T) {
	for _, tt := range []struct {
		set   time.Duration
		flows int
		want  time.Duration
	}{{0, 0, time.Minute}, {0, 60000, time.Minute}, {0, 100000, 100 * time.Second}, {30 * time.Second, 100000, 30 * time.Second}, {5 * time.Minute, 10, 5 * time.Minute}} {
		if got := (Options{Round: tt.set}).roundDuration(tt.flows); got != tt.want {
			t.Errorf("%s set, %d flows: %s, want %s", tt.set, tt.flows, got, tt.want)
		}
	}
}

// TestRule10ExtentOfWhatMoved checks what counts of a NIC's twelve flows say.
func TestRule10ExtentOfWhatMoved(t *testing.T) {
	for _, tt := range []struct {
		unhealthy map[window.Condition]int
		want      extent
	}{
		{nil, extentNone},
		{map[window.Condition]int{window.Unjudged: 12}, extentNone},
		{map[window.Condition]int{window.Shifted: 1}, extentPartial},
		{map[window.Condition]int{window.Lossy: 2, window.Shifted: 2}, extentPartial},
		{map[window.Condition]int{window.Lossy: 2, window.Shifted: 2, window.Silent: 1}, extentMost},
	} {
		if got := movedExtent(tt.unhealthy, 12); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.unhealthy, got, tt.want)
		}
	}
}

// TestRule13NICsOfOtherPods: a NIC of another pod that moved is queried once in a while, and always while flows between the
// pods are degraded. It is never queried because of its turn.
func TestRule13NICsOfOtherPods(t *testing.T) {
	g := worldtest.NewPods(t, 3, 1)
	part, err := fabric.NewPart(g, []string{"p1"}, false)
	if err != nil {
		t.Fatal(err)
	}
	const own, other = "h111/eth1", "h211/eth1"
	p := NewPlanner(Options{MinFlows: 1, MaxFlows: 1000, Round: 10 * time.Second, OwnRounds: true}, part)
	for _, nic := range g.NICIDs() {
		s := p.nicFor(nic)
		s.counted, s.judged, s.sourceFlows = true, true, 10
	}
	m := &Moment{Baselines: baseline.NewBook(), Excluder: maintenance.NewExcluder(), Graph: g}
	record := func(cycle int, degraded string) {
		m.Cycle, m.Now = cycle, time.Unix(int64(1000+cycle), 0)
		m.Raw = nil
		if degraded != "" {
			f, err := fabric.ParseFlow(degraded)
			if err != nil {
				t.Fatal(err)
			}
			m.Raw = []judge.Finding{{Flow: f, Condition: judge.Degraded, Obs: &fabric.Observation{}}}
		}
		p.AddFlowCount(60, 20)
		p.RecordFlows(m)
	}
	queried := map[string][]int{}
	step := func(cycle int, degraded string) {
		p.nics[other].lastMoved, p.nics[other].movedExtent = cycle, extentPartial
		sel, _ := p.selectFlows(&Request{Graph: g, Cycle: cycle, Now: time.Unix(int64(1000+cycle), 0)})
		for nic := range sel.Sources {
			queried[nic] = append(queried[nic], cycle)
			p.nics[nic].queriedFrom, p.nics[nic].queriedAt = cycle, time.Unix(int64(1000+cycle), 0)
		}
		p.current, p.lastQuery = newQueried(sel, nil), time.Unix(int64(1000+cycle), 0)
		record(cycle, degraded)
	}
	for cycle := 20; cycle < 50; cycle++ {
		step(cycle, "h211/eth1>h311/eth1") // it does not concern p1
	}
	if got := queried[other]; !slices.Equal(got, []int{20, 33, 46}) {
		t.Errorf("a NIC of another pod that moves is queried in cycles %v", got)
	}
	clear(queried)
	for cycle := 50; cycle < 56; cycle++ {
		step(cycle, "h111/eth1>h211/eth1")
	}
	if got := queried[other]; !slices.Equal(got, []int{51, 52, 53, 54, 55}) {
		t.Errorf("while flows between the pods are degraded, it is queried in cycles %v", got)
	}
	for _, nic := range []string{"h221/eth1", "h311/eth1"} {
		if got := queried[nic]; got != nil {
			t.Errorf("%s, which did not move, is queried in cycles %v", nic, got)
		}
	}
	if len(queried[own]) == 0 {
		t.Error("no NIC of the pod had its turn")
	}
}
