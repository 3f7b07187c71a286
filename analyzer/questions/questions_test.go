package questions

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
	"github.com/graylink/graylink/internal/schedule/clos"
)

// clerk gives one answer to all questions.
type clerk struct {
	asked  []Question
	answer Answer
	err    error
}

func (c *clerk) Ask(_ context.Context, q Question) (Answer, error) {
	c.asked = append(c.asked, q)
	if q.isEmpty() {
		return Answer{}, nil
	}
	return c.answer, c.err
}

// office is a Desk with a clerk, and an incident on one of two links that the same flows cross.
type office struct {
	*Desk
	*clerk
	t    *testing.T
	g    *fabric.Graph
	now  time.Time
	open []*incident.Incident
}

func newOffice(t *testing.T) *office {
	g := fabric.NewGraph(clos.NewTopology(clos.Options{LeavesPerPod: 3, SpinesPerPod: 2, NICsPerLeaf: 2}))
	var links []fabric.DirectedElement
	for _, l := range g.Topo.Links {
		if !l.IsAccess() {
			links = append(links, fabric.DirectedElement{Element: fabric.Element{ID: l.ID(), Kind: fabric.KindLink}, Direction: fabric.Direction{From: l.A, To: l.B}})
		}
	}
	in := &incident.Incident{Open: true}
	in.ID, in.Element, in.Direction = "v1", links[0].Element, links[0].Direction.String()
	in.Edges = []string{g.NICIDs()[0] + ">" + g.NICIDs()[5] + "#64"}
	in.SameFlowEquivalents = links[3:4]
	c := &clerk{answer: Answer{Flows: []fabric.Flow{{Src: g.NICIDs()[0], Dst: g.NICIDs()[5], Number: 112}}}}
	return &office{Desk: NewDesk(c, slog.New(slog.DiscardHandler)), clerk: c, t: t, g: g, now: time.Unix(1000, 0), open: []*incident.Incident{in}}
}

// cycle lets a second pass.
func (o *office) cycle(candidates ...fabric.Candidate) {
	o.now = o.now.Add(time.Second)
	o.Review(o.now, o.g, o.open, candidates, nil)
	o.AnswerQueued(o.t.Context())
}

func TestRule1AnIncidentWithEquivalentsIsAskedAboutOnce(t *testing.T) {
	o := newOffice(t)
	for range 30 {
		o.cycle()
	}
	if len(o.asked) != 1 || o.asked[0].Incident != "v1" || o.asked[0].Class != 1 || len(o.asked[0].Wanted) == 0 {
		t.Fatalf("asked %+v", o.asked)
	}
	r := o.Records("v1")
	if len(r) != 1 || !slices.Equal(r[0].Flows, []string{o.answer.Flows[0].String()}) || len(r[0].Between) != 2 || len(r[0].Refused) != 0 {
		t.Errorf("records %+v", r)
	}
	if got := o.Sources(); !slices.Equal(got, []string{o.answer.Flows[0].Src}) {
		t.Errorf("sources %v", got)
	}
	found := func(c judge.Condition, path fabric.Path) []judge.Finding {
		return []judge.Finding{{Flow: o.answer.Flows[0], Condition: c, Obs: &fabric.Observation{Path: path}}}
	}
	path := fabric.Path{{Switch: "leaf1"}}
	if !o.HasEvidence("v1", found(judge.Healthy, path)) || o.HasEvidence("v1", found(judge.Undecided, path)) || o.HasEvidence("v1", found(judge.Healthy, nil)) || o.HasEvidence("v2", found(judge.Healthy, path)) {
		t.Error("evidence is that of a decided flow with a path, of this incident")
	}
}

func TestRule2CandidatesHaveToPersist(t *testing.T) {
	o := newOffice(t)
	in := o.open[0]
	o.open = nil
	c := fabric.Candidate{Element: in.Element, Direction: in.Direction, Probability: 0.3, Others: in.SameFlowEquivalents}
	unlikely := c
	unlikely.Probability = 0.1
	for _, with := range [][]fabric.Candidate{{c}, {c}, nil, {c}, {unlikely}, {c}, {c}} {
		o.cycle(with...)
	}
	if len(o.asked) != 0 {
		t.Fatalf("asked %+v", o.asked)
	}
	o.cycle(c)
	if len(o.asked) != 1 || !strings.HasPrefix(o.asked[0].Incident, "candidate link ") {
		t.Errorf("asked %+v", o.asked)
	}
}

func TestRule1ARivalIsASuspect(t *testing.T) {
	o := newOffice(t)
	in := o.open[0]
	other := in.SameFlowEquivalents[0]
	in.SameFlowEquivalents = nil
	o.cycle()
	if len(o.asked) != 0 {
		t.Fatalf("asked without a doubt: %+v", o.asked)
	}
	o.cycle(fabric.Candidate{Element: other.Element, Direction: other.Direction.String(), Probability: 0.4, Rivals: []fabric.Element{in.Element}})
	if len(o.asked) != 1 || o.asked[0].Incident != "v1" {
		t.Errorf("asked %+v", o.asked)
	}
}

func TestRule3AskedAgainWhenFlowsEndedAndAFewTimesOnly(t *testing.T) {
	o := newOffice(t)
	for range 400 {
		o.cycle()
	}
	if len(o.asked) != maxRounds || len(o.Records("v1")) != maxRounds {
		t.Errorf("asked %d times, %d records", len(o.asked), len(o.Records("v1")))
	}
}

func TestRule3ARefusalIsRecorded(t *testing.T) {
	o := newOffice(t)
	o.err, o.answer = errors.New("no coordinator"), Answer{}
	o.cycle()
	if r := o.Records("v1"); len(r) != 1 || !slices.Equal(r[0].Refused, []string{"no coordinator"}) || len(r[0].Flows) != 0 || r[0].String() != "no flows were granted: no coordinator" {
		t.Errorf("%+v", r)
	}
}

func TestRule4FlowsAreGivenBack(t *testing.T) {
	o := newOffice(t)
	o.cycle()
	o.open[0].SameFlowEquivalents = nil
	for range 5 {
		o.cycle()
	}
	if len(o.asked) != 2 || o.asked[1].Incident != "v1" || len(o.asked[1].Wanted) != 0 || len(o.Sources()) != 0 {
		t.Errorf("asked %+v, sources %v", o.asked, o.Sources())
	}
	if len(o.Records("v1")) != 1 {
		t.Error("what was asked is forgotten")
	}
	o.open = nil
	o.now = o.now.Add(forgetAfter)
	o.cycle()
	if len(o.Records("v1")) != 0 {
		t.Error("what was asked is never forgotten")
	}
}

// TestInheritedDeskContinues: after a reload, nothing is asked again, and what was queued is not waited for.
func TestInheritedDeskContinues(t *testing.T) {
	o := newOffice(t)
	o.Review(o.now, o.g, o.open, nil, nil) // queued, never answered
	next := NewDesk(o.clerk, slog.New(slog.DiscardHandler))
	next.InheritFrom(o.Desk)
	o.Desk = next
	for range 65 {
		o.cycle()
	}
	if len(o.asked) != 1 {
		t.Errorf("asked %d times, want once when a minute has passed", len(o.asked))
	}
}

func TestWithoutAnAskerNothingIsAsked(t *testing.T) {
	d := NewDesk(nil, nil)
	d.Review(time.Time{}, nil, nil, nil, nil)
	d.AnswerQueued(t.Context())
	d.InheritFrom(nil)
	d.Run(t.Context())
	if d != nil || d.Records("x") != nil || d.HasEvidence("x", nil) || d.Sources() != nil {
		t.Error("a Desk without an asker has something")
	}
}

// TestRunBesideReview asks while cycles review, as the loop does.
func TestRunBesideReview(t *testing.T) {
	o := newOffice(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { o.Run(ctx) })
	asked := func() bool { return len(o.Records("v1")) == 1 && len(o.Records("v1")[0].Flows) == 1 }
	for !asked() {
		o.Review(o.now, o.g, o.open, nil, nil)
		o.Sources()
		o.HasEvidence("v1", nil)
	}
	cancel()
	wg.Wait()
}
