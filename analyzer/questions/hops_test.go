package questions

import (
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// coreAddress returns the address from which the core switch answers what comes from a pod.
func (h *hopOffice) coreAddress(pod byte) netip.Addr {
	return h.g.LinkAt("c1:dn" + string(pod)).BAddress.Addr()
}

// hopOffice is a Desk with a clerk that grants all hop-limited probes, and an incident with losses on one of the two links of
// the core switch.
type hopOffice struct {
	*office
	findings []judge.Finding
}

func newHopOffice(t *testing.T, loss float64) *hopOffice {
	g := worldtest.NewTwoPods(t)
	named := fabric.DirectedElement{Element: fabric.Element{ID: "c1:dn1--p1s1:up1", Kind: fabric.KindLink}, Direction: fabric.Direction{From: "p1s1:up1", To: "c1:dn1"}}
	other := fabric.DirectedElement{Element: fabric.Element{ID: "c1:dn2--p2s1:up1", Kind: fabric.KindLink}, Direction: fabric.Direction{From: "c1:dn2", To: "p2s1:up1"}}
	in := &incident.Incident{Open: true}
	in.ID, in.Element, in.Direction, in.Symptom.LossRatio = "v1", named.Element, named.Direction.String(), loss
	in.SameFlowEquivalents = []fabric.DirectedElement{other}
	h := &hopOffice{office: &office{clerk: &clerk{}, t: t, g: g, now: time.Unix(1000, 0), open: []*incident.Incident{in}}}
	h.Desk = NewDesk(h, slog.New(slog.DiscardHandler))
	for _, src := range g.NICIDs() {
		for _, dst := range g.NICIDs() {
			if paths := g.ShortestPaths(src, dst, 2); src != dst && src[1] != dst[1] {
				h.findings = append(h.findings, judge.Finding{Flow: fabric.Flow{Src: src, Dst: dst}, Obs: &fabric.Observation{Path: paths[0], PathState: fabric.PathValid}})
			}
		}
	}
	for _, f := range h.findings {
		for _, hop := range []int{1, 2, 3} {
			h.answer.Hops = append(h.answer.Hops, HopID{f.Flow, hop})
		}
	}
	return h
}

func (h *hopOffice) cycle() {
	h.now = h.now.Add(time.Second)
	h.Review(h.now, h.g, h.open, nil, h.findings)
	h.AnswerQueued(h.t.Context())
}

// count reports what every granted probe has counted: of so many, answered says how many by the pod of its sender.
func (h *hopOffice) count(sent uint64, answered func(pod byte) uint64) {
	for _, p := range h.asked[len(h.asked)-1].Hops {
		pod := p.Flow.Src[1]
		h.RecordHops(p.Flow, []fabric.HopCount{{TTL: p.Hop, Sent: sent, Answered: map[netip.Addr]uint64{h.coreAddress(pod): answered(pod)}}})
	}
}

func TestRule1HopLimitedProbesExcludeTheOther(t *testing.T) {
	h := newHopOffice(t, 0.9)
	h.cycle()
	if len(h.asked) != 1 || len(h.asked[0].Wanted) != 0 || len(h.asked[0].Hops) != 8 {
		t.Fatalf("asked %+v", h.asked)
	}
	if got := h.HopNodes(); len(got) != 8 {
		t.Errorf("nodes %v", got)
	}
	// Undecided while nothing was answered, decided when the probes of pod 2 are, which avoid the named link.
	h.count(5, func(byte) uint64 { return 0 })
	if got := h.ExcludedByHops("v1"); len(got) != 0 {
		t.Fatalf("excluded %v without an answer", got)
	}
	h.count(10, func(pod byte) uint64 { return uint64(pod-'1') * 8 })
	want := []fabric.Element{h.open[0].SameFlowEquivalents[0].Element}
	if got := h.ExcludedByHops("v1"); !slices.Equal(got, want) {
		t.Fatalf("excluded %v, want %v", got, want)
	}
	r := h.Records("v1")
	if len(r) != 1 || r[0].Asked != fabric.AskedHop || len(r[0].Hops) != 8 || !slices.Equal(r[0].Excluded, want) || r[0].Hops[7].Sent != 10 || r[0].Hops[7].Answered != 8 {
		t.Fatalf("records %+v", r)
	}
	if s := r[0].String(); s != "8 hop-limited probes were sent again and again, to see which part of a path loses packets. They exclude c1:dn2--p2s1:up1" {
		t.Error(s)
	}
	// What is settled needs no probes any more.
	h.open[0].SameFlowEquivalents = nil
	h.cycle()
	if last := h.asked[len(h.asked)-1]; len(h.asked) != 2 || !last.isEmpty() || len(h.HopNodes()) != 0 {
		t.Errorf("asked %+v", last)
	}
}

// TestRule6CountsOfAnotherPathSayNothing: an answer of another switch, or a flow that took another path.
func TestRule6CountsOfAnotherPathSayNothing(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		spoil        func(*hopOffice)
	}{
		{"another switch", "172.16.2.0 answered, want c1", func(h *hopOffice) {
			for _, p := range h.asked[0].Hops {
				h.RecordHops(p.Flow, []fabric.HopCount{{TTL: p.Hop, Sent: 1, Answered: map[netip.Addr]uint64{netip.MustParseAddr("172.16.2.0"): 1}}})
			}
		}},
		{"an unknown address", "10.9.9.9 answered, want c1", func(h *hopOffice) {
			for _, p := range h.asked[0].Hops {
				h.RecordHops(p.Flow, []fabric.HopCount{{TTL: p.Hop, Sent: 1, Answered: map[netip.Addr]uint64{netip.MustParseAddr("10.9.9.9"): 1}}})
			}
		}},
		{"another path", "the flow has taken another path", func(h *hopOffice) {
			for i := range h.findings {
				path := slices.Clone(h.findings[i].Obs.Path)
				path[1].In = "dn9"
				h.findings[i].Obs = &fabric.Observation{Path: path, PathState: fabric.PathValid}
			}
			h.cycle()
		}},
	} {
		h := newHopOffice(t, 0.9)
		h.cycle()
		tt.spoil(h)
		h.count(10, func(pod byte) uint64 { return uint64(pod-'1') * 8 })
		if got := h.ExcludedByHops("v1"); len(got) != 0 {
			t.Errorf("%s: excluded %v", tt.name, got)
		}
		if r := h.Records("v1"); len(r) == 0 || len(r[0].Hops) != 8 || r[0].Hops[0].Discarded != tt.reason {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
	// A path that is not known for a moment is no other path.
	h := newHopOffice(t, 0.9)
	h.cycle()
	for i := range h.findings {
		h.findings[i].Obs = &fabric.Observation{PathState: fabric.PathUnknown}
	}
	h.cycle()
	h.count(10, func(pod byte) uint64 { return uint64(pod-'1') * 8 })
	if got := h.ExcludedByHops("v1"); len(got) != 1 {
		t.Errorf("excluded %v", got)
	}
}

// TestCountsOfGrantsAddUp: an agent counts anew with each grant.
func TestCountsOfGrantsAddUp(t *testing.T) {
	h := newHopOffice(t, 0.9)
	h.cycle()
	all := func(byte) uint64 { return 3 }
	h.count(4, all)
	h.count(6, all)
	h.count(4, all)
	if r := h.Records("v1"); r[0].Hops[0].Sent != 10 || r[0].Hops[0].Answered != 6 {
		t.Errorf("%+v", r[0].Hops[0])
	}
}

// TestReasonsWhyNoHopsAreAsked checks that the reason is part of the record, once for each set of suspects.
func TestReasonsWhyNoHopsAreAsked(t *testing.T) {
	for _, tt := range []struct {
		loss   float64
		hidden bool
		reason string
	}{
		{0.09, false, "hop-limited probes show losses from 10 % on only"},
		{0, false, "hop-limited probes show losses from 10 % on only"},
		{0.5, true, "no switch at which a hop-limited probe could end"},
	} {
		h := newHopOffice(t, tt.loss)
		if tt.hidden { // a tunnel hides the switches in the middle
			for i := range h.findings {
				path := h.findings[i].Obs.Path
				h.findings[i].Obs = &fabric.Observation{Path: fabric.Path{path[0], path[len(path)-1]}, PathState: fabric.PathValid}
			}
		}
		for range 70 {
			h.cycle()
		}
		r := h.Records("v1")
		if len(h.asked) != 0 || len(r) != 1 || len(r[0].Refused) != 1 || !strings.Contains(r[0].Refused[0], tt.reason) || !strings.HasPrefix(r[0].String(), "nothing more was measured: ") {
			t.Errorf("loss %g: asked %+v, records %+v", tt.loss, h.asked, r)
		}
	}
}

// TestTheTruthIsNotExcluded draws what either link would lose and what the switch answers.
func TestTheTruthIsNotExcluded(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	decided := 0
	for range 100 {
		loss := 0.2 + 0.8*rng.Float64()
		h := newHopOffice(t, loss)
		h.cycle()
		truth := byte('1' + rng.IntN(2))
		share := 0.4 + 0.6*rng.Float64()
		counts := map[fabric.Flow]*fabric.HopCount{}
		for second := uint64(1); second <= 55; second++ {
			for _, p := range h.asked[0].Hops {
				c := counts[p.Flow]
				if c == nil {
					c = &fabric.HopCount{TTL: p.Hop, Answered: map[netip.Addr]uint64{}}
					counts[p.Flow] = c
				}
				c.Sent++
				if rng.Float64() < share && (p.Flow.Src[1] != truth || rng.Float64() >= loss) {
					c.Answered[h.coreAddress(p.Flow.Src[1])]++
				}
				h.RecordHops(p.Flow, []fabric.HopCount{*c})
			}
			h.ExcludedByHops("v1")
		}
		for _, e := range h.ExcludedByHops("v1") {
			if decided++; strings.Contains(e.ID, "dn"+string(truth)) {
				t.Errorf("loss %.2f, %.2f answered: %s is at fault and excluded", loss, share, e.ID)
			}
		}
	}
	t.Logf("%d of 100 decided", decided)
	if decided < 70 {
		t.Errorf("only %d of 100 decided", decided)
	}
}
