package classify

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// TestStarvedHostsAreNamedByUnexplainedFlows has both sides of every limit. Flows of h1, which is marked, go to h3 to h6
// over either spine: those with an even number over one, the others over the other.
func TestStarvedHostsAreNamedByUnexplainedFlows(t *testing.T) {
	late := func(f *judge.Finding) { f.Shift = 500_000 }
	overFirst := func(f *judge.Finding) bool { return f.Flow.Number == 0 }
	probe := newStage(t)
	spine := probe.flow("h1/e", "h3/e", 0, "").Obs.Path[1].Switch
	named := func(kind fabric.Kind, id string) []fabric.Verdict {
		return []fabric.Verdict{{Element: fabric.Element{ID: id, Kind: kind}}}
	}
	for _, tc := range []struct {
		name  string
		alter func(i int, f *judge.Finding)
		known []fabric.Verdict
		want  string
	}{
		{"nothing is late", func(int, *judge.Finding) {}, nil, ""},
		{"all flows are late", func(_ int, f *judge.Finding) { late(f) }, nil, "h1"},
		{"all flows lose", func(_ int, f *judge.Finding) { f.Obs.Lost = 100 }, nil, "h1"},
		{"half of them are late", func(i int, f *judge.Finding) {
			if i < 4 {
				late(f)
			}
		}, nil, "h1"},
		{"less than half of them are late", func(i int, f *judge.Finding) {
			if i < 3 {
				late(f)
			}
		}, nil, ""},
		{"a spine that is named explains the late ones", func(_ int, f *judge.Finding) {
			if overFirst(f) {
				late(f)
			}
		}, named(fabric.KindSwitch, spine), ""},
		{"a spine that is listed as equivalent explains them", func(_ int, f *judge.Finding) {
			if overFirst(f) {
				late(f)
			}
		}, []fabric.Verdict{{Element: fabric.Element{ID: "leaf3", Kind: fabric.KindPair}, Equivalent: []fabric.Element{{ID: spine, Kind: fabric.KindSwitch}}}}, ""},
		{"flows that avoid the spine are late as well", func(_ int, f *judge.Finding) { late(f) }, named(fabric.KindSwitch, spine), "h1"},
		{"their paths may cross the spine", func(_ int, f *judge.Finding) {
			late(f)
			f.Obs.Paths, f.Obs.Path = []fabric.Path{f.Obs.Path, probe.c.Findings[0].Obs.Path}, nil
		}, named(fabric.KindSwitch, spine), ""},
		{"their paths are not known", func(_ int, f *judge.Finding) { late(f); f.Obs.Path = nil }, named(fabric.KindSwitch, spine), ""},
		{"their paths are not known, and a NIC elsewhere is named", func(_ int, f *judge.Finding) { late(f); f.Obs.Path = nil }, named(fabric.KindNIC, "h2/e"), "h1"},
		{"their clock moved", func(_ int, f *judge.Finding) { late(f); f.ClockSuspect = true }, nil, ""},
		{"the sum of both directions did not move", func(_ int, f *judge.Finding) { late(f); f.Sum, f.SumScale, f.HasSum = 10_000, 10_000, true }, nil, ""},
		{"the sum of both directions moved", func(_ int, f *judge.Finding) { late(f); f.Sum, f.SumScale, f.HasSum = 10_001, 10_000, true }, nil, "h1"},
		{"another clock moved", func(_ int, f *judge.Finding) { late(f) }, named(fabric.KindClock, "h1/e"), "h1"},
		{"the host is named already", func(_ int, f *judge.Finding) { late(f) }, named(fabric.KindHost, "h1"), ""},
		{"its NIC dropped what it did not read", func(_ int, f *judge.Finding) { late(f); f.Obs.Unread = true }, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t)
			for n := range 2 {
				for _, to := range []string{"h3/e", "h4/e", "h5/e", "h6/e"} {
					s.flow("h1/e", to, n, "").HostSuspect = true
				}
			}
			for i := range s.c.Findings {
				tc.alter(i, &s.c.Findings[i])
			}
			if got := hostsOf(s.c.StarvedHostVerdicts(tc.known)); got != tc.want {
				t.Errorf("named %q, want %q", got, tc.want)
			}
		})
	}
}

func hostsOf(verdicts []fabric.Verdict) string {
	var names []string
	for i := range verdicts {
		names = append(names, verdicts[i].Element.ID)
	}
	return strings.Join(names, " ")
}

func TestOneFlowNamesNoStarvedHost(t *testing.T) {
	for flows, want := range map[int]string{1: "", 2: "h1"} {
		s := newStage(t)
		for n := range flows {
			f := s.flow("h1/e", "h3/e", n, "")
			f.HostSuspect, f.Shift = true, 500_000
		}
		if got := hostsOf(s.c.StarvedHostVerdicts(nil)); got != want {
			t.Errorf("%d late flows: named %q, want %q", flows, got, want)
		}
	}
}

func TestFlowsOfAStarvedHostDoNotCountForTheNext(t *testing.T) {
	s := newStage(t)
	for n := range 2 {
		for _, to := range []string{"h2/e", "h3/e", "h4/e", "h5/e"} {
			f := s.flow("h1/e", to, n, "")
			f.HostSuspect, f.Shift = true, 500_000
		}
		s.flow("h2/e", "h6/e", n, "").HostSuspect = true
	}
	if got := hostsOf(s.c.StarvedHostVerdicts(nil)); got != "h1" {
		t.Errorf("named %q, want h1: what h2 shows is of the flows between the two", got)
	}
}

// TestAStarvedHostIsSlowAtAllOfItsNICs has a node that was marked in every moment, and of whose two NICs one is bad.
func TestAStarvedHostIsSlowAtAllOfItsNICs(t *testing.T) {
	for _, tc := range []struct {
		name  string
		other func(i int, f *judge.Finding) // flows of the other NIC, of which there are eight
		want  fabric.Kind
	}{
		{"nothing is wrong at the other", func(int, *judge.Finding) {}, fabric.KindNIC},
		{"the other is marked, and well", func(_ int, f *judge.Finding) { f.HostSuspect = true }, fabric.KindNIC},
		{"less than half of its flows are late", func(i int, f *judge.Finding) {
			if i < 3 {
				f.Shift = 500_000
			}
		}, fabric.KindNIC},
		{"half of its flows are late", func(i int, f *judge.Finding) {
			if i < 4 {
				f.Shift = 500_000
			}
		}, fabric.KindHost},
		{"half of its flows lose packets", func(i int, f *judge.Finding) {
			if i < 4 {
				f.Obs.Lost = 50
			}
		}, fabric.KindHost},
		{"the other was not measured", func(_ int, f *judge.Finding) { f.Obs.Sent = 0 }, fabric.KindHost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStage(t)
			for _, nic := range []string{"m/e1", "m/e2"} {
				for n := range 2 {
					for _, to := range []string{"h3/e", "h4/e", "h5/e", "h6/e"} {
						s.flow(nic, to, n, "")
					}
				}
			}
			i := 0
			for j := range s.c.Findings {
				if f := &s.c.Findings[j]; f.Flow.Src == "m/e2" {
					tc.other(i, f)
					i++
				}
			}
			s.c.History = NewHistory(time.Second)
			marked := slices.Clone(s.c.Findings)
			for j := range marked {
				marked[j].HostSuspect = true
			}
			s.c.History.AddMoment(marked)
			bad := s.suspect(triangulate.Element{Kind: fabric.KindNIC, Name: "m/e1"}, func(f *judge.Finding) bool { return f.Flow.Src == "m/e1" })
			if v := s.one(bad); v.Kind != tc.want {
				t.Errorf("%s %s is named, want a %s", v.Kind, v.Element.ID, tc.want)
			}
		})
	}
}
