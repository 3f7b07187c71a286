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

func nicOf(h int) string { return fmt.Sprintf("h%d/mlx5_0", h) }

func wantFlows(incident string, flows ...*agentapi.WantedFlows) *agentapi.Question {
	return &agentapi.Question{Incident: incident, Wanted: flows}
}

func between(src, dst, flows int) *agentapi.WantedFlows {
	return &agentapi.WantedFlows{Src: nicOf(src), Dst: nicOf(dst), Flows: uint32(flows)}
}

func (f *fixture) ask(asker string, q *agentapi.Question) *agentapi.Answer {
	f.t.Helper()
	if err := checkQuestion(q); err != nil {
		f.t.Fatal(err)
	}
	a, err := f.answerQuestion(asker, q)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// temporaryFlows returns the temporary flows that assignments have: as edges of one end and answers of the other.
func temporaryFlows(t *testing.T, boxes ...inbox) (out []string) {
	t.Helper()
	sides := map[string]int{}
	for _, in := range boxes {
		a := in.assignment
		for _, e := range a.GetEdges() {
			if fabric.IsTemporaryFlow(int(e.GetFlow())) {
				f := fabric.Flow{Src: a.Nics[e.Nic].Nic, Dst: a.Peers[e.Peer].Nic, Number: int(e.Flow)}
				sides[f.String()] |= 1
				out = append(out, f.String())
			}
		}
		for _, e := range a.GetAnswers() {
			if fabric.IsTemporaryFlow(int(e.GetFlow())) {
				sides[(fabric.Flow{Src: a.Peers[e.Peer].Nic, Dst: a.Nics[e.Nic].Nic, Number: int(e.Flow)}).String()] |= 2
			}
		}
	}
	for f, s := range sides {
		if s != 3 {
			t.Errorf("%s is in the assignment of one end only", f)
		}
	}
	slices.Sort(out)
	return out
}

// TestRule16AQuestionReachesBothEndsAndEnds: the two nodes get the flows with keys, no other node gets a message, the
// schedule stays as it was, and after a minute the flows end.
func TestRule16AQuestionReachesBothEndsAndEnds(t *testing.T) {
	f := start(t, clos(8, 4), nil)
	sessions, _ := f.agents(32)
	before, _, _ := f.ScheduleOf("")
	a := f.ask("analyzer", wantFlows("i1", between(1, 20, 3)))
	if len(a.Flows) != 3 || len(a.Refused) != 0 || a.EndsInNs != uint64(askedFor) {
		t.Fatalf("answer %v", a)
	}
	changed := func() (boxes []inbox) {
		for _, s := range sessions {
			if in := f.receive(s); in.assignment != nil {
				if node := s.agent.node; node != "h1" && node != "h20" {
					t.Errorf("%s got an assignment", node)
				}
				boxes = append(boxes, in)
				f.beat(s, applied(in))
			}
		}
		return boxes
	}
	boxes := changed()
	if got := temporaryFlows(t, boxes...); !slices.Equal(got, a.Flows) || len(boxes) != 2 {
		t.Errorf("%d assignments with %v, want %v", len(boxes), got, a.Flows)
	}
	for _, in := range boxes {
		if !slices.ContainsFunc(in.keys.GetPeers(), func(p *agentapi.PeerKeys) bool { return p.Node == "h1" || p.Node == "h20" }) {
			t.Error("no keys of the other end")
		}
		for _, e := range in.assignment.Edges {
			if fabric.IsTemporaryFlow(int(e.Flow)) && time.Duration(e.CadenceNs) != askedCadence {
				t.Errorf("a cadence of %v", time.Duration(e.CadenceNs))
			}
		}
	}
	if after, _, _ := f.ScheduleOf(""); after.Hash != before.Hash || after.Edges != before.Edges {
		t.Errorf("schedule %+v, was %+v", after, before)
	}
	if s := f.Stats(); s.TemporaryFlows != 3 || s.Questions[questionAnswered] != 1 {
		t.Errorf("%d temporary flows, questions %v", s.TemporaryFlows, s.Questions)
	}
	// A schedule that is computed meanwhile keeps them.
	f.mu.Lock()
	f.markDirty(true, f.clock.MonoTime())
	f.mu.Unlock()
	f.run(3 * time.Second)
	if boxes := changed(); len(boxes) != 0 {
		t.Errorf("%d assignments changed with the schedule", len(boxes))
	}
	f.run(askedFor - 4*time.Second)
	if boxes := changed(); len(boxes) != 0 {
		t.Errorf("%d assignments changed before the end", len(boxes))
	}
	f.run(2 * time.Second)
	if boxes := changed(); len(boxes) != 2 || len(temporaryFlows(t, boxes...)) != 0 || f.Stats().TemporaryFlows != 0 {
		t.Errorf("after the end: %d assignments, %d flows", len(boxes), f.Stats().TemporaryFlows)
	}
}

// TestRule17EqualQuestionsAreOne: a second analyzer gets the flows that the first asked for, and they end when both need
// them no more.
func TestRule17EqualQuestionsAreOne(t *testing.T) {
	f := start(t, clos(8, 4), nil)
	f.agents(32)
	q := wantFlows("i1", between(1, 20, 3), between(2, 21, 2))
	a, b := f.ask("a", q), f.ask("b", q)
	if !slices.Equal(a.Flows, b.Flows) || len(a.Flows) != 5 {
		t.Fatalf("%v and %v", a.Flows, b.Flows)
	}
	if more := f.ask("b", wantFlows("i1", between(1, 20, 4))); len(more.Flows) != 6 {
		t.Errorf("%v", more.Flows)
	}
	if got := f.ask("stranger", wantFlows("i1")); len(got.Flows) != 6 {
		t.Errorf("another analyzer ended the flows of others: %v", got.Flows)
	}
	if got := f.ask("a", wantFlows("i1")); len(got.Flows) != 6 {
		t.Errorf("one of two ended the flows: %v", got.Flows)
	}
	if got := f.ask("b", wantFlows("i1")); len(got.Flows) != 0 || f.Stats().TemporaryFlows != 0 {
		t.Errorf("%v", got.Flows)
	}
}

// TestRule18LimitsHoldWhateverIsAsked asks at random for hours.
func TestRule18LimitsHoldWhateverIsAsked(t *testing.T) {
	f := start(t, clos(40, 8), func(o *Options) { o.AbsentAfter, o.KeysGrace, o.RotateEvery = 24*time.Hour, 24*time.Hour, 0 })
	f.agents(320)
	share := int(askedShare * f.planning.plan.edges.rate * askedCadence.Seconds())
	if share < 20 || share >= askedPerFleet {
		t.Fatalf("the share allows %d flows", share)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	granted := map[string]map[string]bool{}
	reached := map[string]int{}
	for range 4000 {
		f.clock.pass(time.Duration(rng.IntN(4000)) * time.Millisecond)
		f.Step()
		q := wantFlows(fmt.Sprintf("i%d", rng.IntN(40)))
		for range rng.IntN(6) {
			from := 1 + rng.IntN(320)
			if rng.IntN(2) == 0 {
				from = 7
			}
			q.Wanted = append(q.Wanted, between(from, 1+rng.IntN(320), 1+rng.IntN(16)))
		}
		a := f.ask(fmt.Sprintf("analyzer%d", rng.IntN(3)), q)
		for _, why := range a.Refused {
			_, why, _ = strings.Cut(why, ": ")
			reached[strings.Fields(why)[0]+" "+strings.Fields(why)[1]]++
		}
		perNIC, seen := map[string]int{}, map[string]bool{}
		for _, x := range f.asked.flows {
			perNIC[x.flow.Src]++
			perNIC[x.flow.Dst]++
			if seen[x.flow.String()] || !x.flow.IsTemporary() || fabric.OwnerOf(x.flow.Src) == fabric.OwnerOf(x.flow.Dst) {
				t.Fatalf("flow %s", x.flow)
			}
			seen[x.flow.String()] = true
			if left := x.ends - f.clock.MonoTime(); left <= 0 || left > askedFor {
				t.Fatalf("%s ends in %v", x.flow, left)
			}
			if granted[x.incident] == nil {
				granted[x.incident] = map[string]bool{}
			}
			granted[x.incident][fmt.Sprint(x.flow, x.ends)] = true
		}
		if len(f.asked.flows) > min(askedPerFleet, share) {
			t.Fatalf("%d flows, of %d that the share allows", len(f.asked.flows), share)
		}
		for nic, n := range perNIC {
			if n > askedPerNIC {
				t.Fatalf("%d flows at %s", n, nic)
			}
		}
		for incident, flows := range granted {
			if len(flows) > askedPerIncident {
				t.Fatalf("%s has had %d flows", incident, len(flows))
			}
		}
	}
	t.Logf("refused: %v", reached)
	for _, limit := range []string{"the incident", "temporary flows", "one of", "both NICs"} {
		if reached[limit] == 0 {
			t.Errorf("no question reached the limit %q", limit)
		}
	}
}

func TestRule18TheFleetsLimit(t *testing.T) {
	f := start(t, clos(64, 16), nil)
	f.agents(1024)
	for i := range 8 {
		q := wantFlows(fmt.Sprintf("i%d", i))
		for k := range 16 {
			q.Wanted = append(q.Wanted, between(1+i*16+k, 500+i*16+k, 4))
		}
		f.ask("a", q)
	}
	last := f.ask("a", wantFlows("more", between(900, 1000, 1)))
	if n := f.Stats().TemporaryFlows; n != askedPerFleet || len(last.Refused) != 1 || !strings.Contains(last.Refused[0], "200 temporary flows") {
		t.Errorf("%d flows, refused %v", n, last.Refused)
	}
}

func TestRule18WhatIsRefused(t *testing.T) {
	f := start(t, clos(8, 4), nil)
	if _, err := f.answerQuestion("a", wantFlows("i", between(1, 20, 1))); err == nil {
		t.Error("answered without a schedule")
	}
	f.agents(31) // without h32
	for _, tt := range []struct {
		w    *agentapi.WantedFlows
		text string
	}{
		{between(1, 99, 1), "the topology has no such NICs"},
		{between(1, 32, 1), "the schedule does not have both nodes"},
		{between(1, 1, 1), "both NICs are of one node"},
		{&agentapi.WantedFlows{Src: nicOf(1), Dst: nicOf(20), Flows: 1, Class: 2}, "there is no class 2"},
	} {
		if a := f.ask("a", wantFlows("i", tt.w)); len(a.Flows) != 0 || len(a.Refused) != 1 || !strings.Contains(a.Refused[0], tt.text) {
			t.Errorf("%v: %v, want %q", tt.w, a, tt.text)
		}
	}
	many := wantFlows("i")
	for range mostWanted + 1 {
		many.Wanted = append(many.Wanted, between(1, 2, 1))
	}
	for _, tt := range []struct {
		q    *agentapi.Question
		text string
	}{
		{wantFlows(""), "question.incident: empty"},
		{wantFlows("a\nb"), "question.incident: holds a control character"},
		{many, "question.wanted: 65, want at most 64"},
		{wantFlows("i", between(1, 2, 0)), "question.wanted[0].flows: 0, want 1 to 16"},
		{wantFlows("i", between(1, 2, 17)), "question.wanted[0].flows: 17, want 1 to 16"},
		{wantFlows("i", &agentapi.WantedFlows{Src: "h1", Dst: nicOf(2), Flows: 1}), `question.wanted[0].src: "h1", want node/device`},
		{wantFlows("i", &agentapi.WantedFlows{Src: nicOf(1), Dst: nicOf(2), Flows: 1, Class: 4}), "question.wanted[0].class: 4, want at most 3"},
	} {
		if err := checkQuestion(tt.q); err == nil || err.Error() != tt.text {
			t.Errorf("%v, want %q", err, tt.text)
		}
	}
}
