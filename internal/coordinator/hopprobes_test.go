package coordinator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
)

func wantHops(incident string, hops ...*agentapi.HopProbe) *agentapi.Question {
	return &agentapi.Question{Incident: incident, Hops: hops}
}

func atHop(flow string, hop int) *agentapi.HopProbe {
	return &agentapi.HopProbe{Flow: flow, Hop: uint32(hop)}
}

// traceAll reports a trace of every flow of the schedule, by spine 1, and returns the flows.
func (f *fixture) traceAll(sessions []*session) (flows []string) {
	f.t.Helper()
	p := f.planning.plan
	leafOf := func(nic string) int {
		leaf, _ := p.graph.LeafOf(nic)
		n := 0
		fmt.Sscanf(leaf, "leaf%d", &n)
		return n
	}
	for _, s := range sessions {
		var traces []*agentapi.Trace
		for _, nic := range p.nics[s.agent.node] {
			for _, e := range p.outgoing(nic) {
				src, dst := p.sched.NICs[e.Src], p.sched.NICs[e.Dst]
				if leafOf(src) == leafOf(dst) {
					continue
				}
				name := fabric.Flow{Src: src, Dst: dst, Number: int(e.Flow)}.String()
				flows = append(flows, name)
				traces = append(traces, traced(name, leafOf(src), 1, leafOf(dst)))
			}
		}
		if err := f.handleMessage(s, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Paths{Paths: &agentapi.PathReport{Traces: traces}}}); err != nil {
			f.t.Fatal(err)
		}
	}
	slices.Sort(flows)
	return flows
}

// TestRule16HopLimitsReachTheSenderAndEnd: only the node that sends the flow gets them, as part of its edge. They end when no
// analyzer needs them, or after a minute.
func TestRule16HopLimitsReachTheSenderAndEnd(t *testing.T) {
	f := start(t, clos(8, 4), nil)
	sessions, _ := f.agents(32)
	flows := f.traceAll(sessions)
	for _, end := range []func(){
		func() { f.ask("a", wantHops("i1")) },
		func() { f.run(askedFor + time.Second) },
	} {
		a := f.ask("a", wantHops("i1", atHop(flows[0], 2)))
		if len(a.Hops) != 1 || a.Hops[0].Flow != flows[0] || a.Hops[0].Hop != 2 || len(a.Refused) != 0 || a.EndsInNs != uint64(askedFor) {
			t.Fatalf("answer %v", a)
		}
		if again := f.ask("b", wantHops("i1", atHop(flows[0], 2))); len(again.Hops) != 1 || f.Stats().HopProbes != 1 {
			t.Fatalf("an equal question: %v", again)
		}
		f.ask("b", wantHops("i1"))
		want := strings.Split(flows[0], "/")[0]
		limits := func() (n int) {
			for _, s := range sessions {
				in := f.receive(s)
				if in.assignment == nil {
					continue
				}
				if s.agent.node != want {
					t.Errorf("%s got an assignment", s.agent.node)
				}
				f.beat(s, applied(in))
				for _, e := range in.assignment.Edges {
					if n += len(e.Hops); len(e.Hops) > 0 && !slices.Equal(e.Hops, []uint32{2}) {
						t.Errorf("hop limits %v", e.Hops)
					}
				}
			}
			return n
		}
		if n := limits(); n != 1 {
			t.Errorf("%d hop limits in assignments", n)
		}
		end()
		if n := limits(); n != 0 || f.Stats().HopProbes != 0 {
			t.Errorf("after the end: %d hop limits, %d probes", n, f.Stats().HopProbes)
		}
	}
}

func TestRule18WhichHopsAreRefused(t *testing.T) {
	f := start(t, clos(8, 4), nil)
	sessions, _ := f.agents(32)
	p := f.planning.plan
	e := p.outgoing(0)[0]
	first := fabric.Flow{Src: p.sched.NICs[e.Src], Dst: p.sched.NICs[e.Dst], Number: int(e.Flow)}
	untraced := f.ask("a", wantHops("i0", atHop(first.String(), 1)))
	if len(untraced.Refused) != 1 || !strings.Contains(untraced.Refused[0], "no trace shows a switch there") {
		t.Errorf("%v", untraced.Refused)
	}
	flows := f.traceAll(sessions)
	if a := f.ask("a", wantHops("i1", atHop(flows[0], 1))); len(a.Hops) != 1 {
		t.Fatal(a)
	}
	for _, tt := range []struct {
		h    *agentapi.HopProbe
		text string
	}{
		{atHop("h1/mlx5_0>h9/mlx5_0#15", 1), "the schedule does not have the flow"},
		{atHop("h1/mlx5_0>h99/mlx5_0#0", 1), "the schedule does not have the flow"},
		{atHop(flows[0], 4), "no trace shows a switch there"},
		{atHop(flows[1], 1), "the NIC has a probe to leaf1 already"},
	} {
		if a := f.ask("a", wantHops("i2", tt.h)); len(a.Hops) != 0 || len(a.Refused) != 1 || !strings.Contains(a.Refused[0], tt.text) {
			t.Errorf("%v: %v, want %q", tt.h, a, tt.text)
		}
	}
	many := wantHops("i")
	for range mostWanted + 1 {
		many.Hops = append(many.Hops, atHop(flows[0], 1))
	}
	for _, tt := range []struct {
		q    *agentapi.Question
		text string
	}{
		{many, "question.hops: 65, want at most 64"},
		{wantHops("i", atHop("h1", 1)), `question.hops[0].flow: "h1", want src>dst#n`},
		{wantHops("i", atHop("h1/a>h2/a#0/r", 1)), `question.hops[0].flow: "h1/a>h2/a#0/r", want src>dst#n`},
		{wantHops("i", atHop("h1/a>h2/a#0", 0)), "question.hops[0].hop: 0, want 1 to 32"},
		{wantHops("i", atHop("h1/a>h2/a#0", 33)), "question.hops[0].hop: 33, want 1 to 32"},
		{wantHops("i", atHop("h1/a>h2/a\n#0", 3)), "question.hops[0].flow: holds a control character"},
	} {
		if err := checkQuestion(tt.q); err == nil || err.Error() != tt.text {
			t.Errorf("%v, want %q", err, tt.text)
		}
	}
}

// TestRule18HopLimitsHoldWhateverIsAsked asks at random for hours, for flows and for hop-limited probes.
func TestRule18HopLimitsHoldWhateverIsAsked(t *testing.T) {
	f := start(t, clos(24, 4), func(o *Options) { o.AbsentAfter, o.KeysGrace, o.RotateEvery = 24*time.Hour, 24*time.Hour, 0 })
	sessions, _ := f.agents(96)
	flows := f.traceAll(sessions)
	rng := rand.New(rand.NewPCG(7, 8))
	reached := map[string]int{}
	granted := map[string]map[string]bool{}
	most := 0
	for range 900 {
		f.clock.pass(time.Duration(rng.IntN(3000)) * time.Millisecond)
		f.Step()
		q := wantHops(fmt.Sprintf("i%d", rng.IntN(60)))
		for range rng.IntN(24) {
			q.Hops = append(q.Hops, atHop(flows[rng.IntN(len(flows))], 1+rng.IntN(3)))
		}
		if rng.IntN(4) == 0 {
			q.Wanted = append(q.Wanted, between(1+rng.IntN(96), 1+rng.IntN(96), 1+rng.IntN(16)))
		}
		for _, why := range f.ask("a", q).Refused {
			_, why, _ = strings.Cut(why, ": ")
			reached[strings.Fields(why)[0]]++
		}
		perSwitch, perPair, perNIC := map[string]int{}, map[string]int{}, map[string]int{}
		for _, h := range f.asked.hops {
			perSwitch[h.at]++
			perPair[h.at+" "+h.flow.Src]++
			perNIC[h.flow.Src]++
			if granted[h.incident] == nil {
				granted[h.incident] = map[string]bool{}
			}
			granted[h.incident][fmt.Sprint(h.flow, h.hop, h.ends)] = true
		}
		for _, x := range f.asked.flows {
			perNIC[x.flow.Src]++
			perNIC[x.flow.Dst]++
		}
		for sw, n := range perSwitch {
			if most = max(most, n); n > hopsPerSwitch {
				t.Fatalf("%d probes a second to %s", n, sw)
			}
		}
		for pair, n := range perPair {
			if n > 1 {
				t.Fatalf("%d probes of %s", n, pair)
			}
		}
		for nic, n := range perNIC {
			if n > askedPerNIC {
				t.Fatalf("%d at %s", n, nic)
			}
		}
		if n := len(f.asked.hops) + len(f.asked.flows); n > askedPerFleet {
			t.Fatalf("%d in the fleet", n)
		}
		rate := float64(len(f.asked.hops)) + float64(len(f.asked.flows))/askedCadence.Seconds()
		if rate > askedShare*f.planning.plan.edges.rate {
			t.Fatalf("%.1f packets a second, of %.1f probes", rate, f.planning.plan.edges.rate)
		}
		for incident, all := range granted {
			if len(all) > askedPerIncident {
				t.Fatalf("%s has had %d", incident, len(all))
			}
		}
	}
	t.Logf("at most %d probes to a switch; refused: %v", most, reached)
	if most != hopsPerSwitch || reached["spine1"] == 0 || reached["the"] == 0 {
		t.Errorf("at most %d probes to a switch, refused %v: a limit was not reached", most, reached)
	}
}
