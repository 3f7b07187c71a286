package localize

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// TestMerger: reports of windows, each of them the verdicts named in it.
func TestMerger(t *testing.T) {
	link := func(name string, delay int64, edges ...string) fabric.Verdict {
		return fabric.Verdict{Element: fabric.Element{ID: name, Kind: fabric.KindLink}, Scenario: fabric.Corridor, Confidence: 0.9,
			Symptom: fabric.Symptom{AddedDelayNS: delay}, Evidence: fabric.EvidenceCount{ExplainedEdges: len(edges)}, Edges: edges}
	}
	blocking := fabric.Verdict{Element: fabric.Element{ID: "s1", Kind: fabric.KindSwitch}, Scenario: fabric.HOLCross, Confidence: 0.9, Edges: []string{"y", "z"},
		Symptom: fabric.Symptom{AddedDelayNS: 1}, Evidence: fabric.EvidenceCount{ExplainedEdges: 2}}
	a, b := "l1:u--s1:d", "l2:u--s1:e"
	for _, tt := range []struct {
		name    string
		windows [][]fabric.Verdict
		want    []string
	}{
		{"the same element", [][]fabric.Verdict{{link(a, 5, "x")}, {link(a, 5, "x", "y")}}, []string{a}},
		{"another name for the same flows", [][]fabric.Verdict{{link(a, 5, "x")}, {link(b, 5, "x", "y")}, {link(b, 5, "x", "y")}}, []string{b}},
		{"two faults beside each other", [][]fabric.Verdict{{link(a, 5, "x", "y"), link(b, 5, "y", "z")}, {link(a, 5, "x", "y"), link(b, 5, "y", "z")}}, []string{a, b}},
		{"two faults one after the other", [][]fabric.Verdict{{link(a, 5, "x", "y", "z")}, {link(b, 5, "z", "u", "v")}}, []string{a, b}},
		{"links of a switch that blocks, before that is known", [][]fabric.Verdict{{link(a, 5, "x"), link(b, 5, "u")}, {}, {blocking}}, []string{"s1"}},
		{"the same element twice in a window", [][]fabric.Verdict{{link(a, 5, "x", "y"), link(a, 5, "u")}, {link(a, 5, "x", "y")}}, []string{a}},
		{"a tail in one window of three", [][]fabric.Verdict{{link(a, 0, "x")}, {}, {}}, nil},
		{"a tail in one window of two", [][]fabric.Verdict{{link(a, 0, "x")}, {}}, []string{a}},
		{"a tail in two windows of three", [][]fabric.Verdict{{link(a, 0, "x")}, {link(a, 0, "x")}, {}}, []string{a}},
	} {
		m := newMerger()
		for i, verdicts := range tt.windows {
			rep := fabric.Report{State: fabric.Innocent}
			for _, v := range verdicts {
				v.FirstSeen = time.Unix(int64(i), 0)
				rep.State, rep.Verdicts = fabric.Suspect, append(rep.Verdicts, v)
			}
			m.addWindow(rep)
		}
		rep := m.mergedReport()
		var got []string
		for _, v := range rep.Verdicts {
			got = append(got, v.Element.ID)
			if v.FirstSeen.Unix() != 0 && tt.name != "two faults one after the other" {
				t.Errorf("%s: %s since window %d", tt.name, v.Element.ID, v.FirstSeen.Unix())
			}
		}
		if len(got) != len(tt.want) || len(got) > 0 && (got[0] != tt.want[0] || got[len(got)-1] != tt.want[len(got)-1]) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if (rep.State == fabric.Suspect) != (len(got) > 0) || rep.State == fabric.Innocent {
			t.Errorf("%s: %s with %d verdicts", tt.name, rep.State, len(got))
		}
	}
}

// TestMergerOfCandidates: a probability is the mean over all windows, and what a verdict names is no candidate.
func TestMergerOfCandidates(t *testing.T) {
	candidate := func(name string, p float64, flows int) fabric.Candidate {
		return fabric.Candidate{Element: fabric.Element{ID: name, Kind: fabric.KindLink}, Probability: p, Edges: flows}
	}
	named := fabric.Verdict{Element: fabric.Element{ID: "named", Kind: fabric.KindLink}, Equivalent: []fabric.Element{{ID: "alike", Kind: fabric.KindLink}}, Symptom: fabric.Symptom{AddedDelayNS: 5}, Edges: []string{"x"}}
	m := newMerger()
	m.addWindow(fabric.Report{Candidates: []fabric.Candidate{candidate("once", 0.1, 2), candidate("twice", 0.2, 5), candidate("named", 0.9, 2), candidate("alike", 0.9, 2)}})
	m.addWindow(fabric.Report{Candidates: []fabric.Candidate{candidate("twice", 0.5, 3)}, Verdicts: []fabric.Verdict{named}})
	m.addWindow(fabric.Report{Candidates: []fabric.Candidate{candidate("rare", 0.3, 1)}})
	got := m.mergedReport().Candidates
	want := []fabric.Candidate{candidate("twice", 0.233, 5), candidate("rare", 0.1, 1)}
	if len(got) != 2 || got[0].Element != want[0].Element || got[0].Probability != want[0].Probability || got[0].Edges != 5 || got[1].Element != want[1].Element || got[1].Probability != want[1].Probability {
		t.Errorf("%+v", got)
	}
}
