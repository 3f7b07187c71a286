package publish

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// steadyFlows are flows that are all expected and queried.
type steadyFlows struct{}

func (steadyFlows) FlowsCrossing(fabric.Element) []fabric.Flow { return nil }
func (steadyFlows) HasBaseline(fabric.Flow) bool               { return true }
func (steadyFlows) IsExpected(fabric.Flow) bool                { return true }
func (steadyFlows) QueriesAll() bool                           { return true }
func (steadyFlows) IsQueried(fabric.Flow) bool                 { return true }
func (steadyFlows) CurrentPath(fabric.Flow) (fabric.Path, time.Time, bool) {
	return nil, time.Time{}, false
}

// scraper keeps the series of a collector as a Prometheus that scrapes it does.
type scraper struct {
	t      *testing.T
	times  int
	series map[string][]string
}

// scrape adds one sample of each series.
func (s *scraper) scrape(c prometheus.Collector) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := `job="graylink-analyzer", instance="a"`
			for _, l := range m.GetLabel() {
				labels += fmt.Sprintf(", %s=%q", l.GetName(), l.GetValue())
			}
			name := f.GetName() + "{" + labels + "}"
			seen[name] = true
			if s.series[name] == nil && s.times > 0 {
				s.series[name] = []string{fmt.Sprintf("_x%d", s.times)}
			}
			s.series[name] = append(s.series[name], fmt.Sprintf("%.3f", m.GetGauge().GetValue()))
		}
	}
	for name := range s.series {
		if !seen[name] {
			s.series[name] = append(s.series[name], "stale")
		}
	}
	s.times++
}

// load returns the series as promqltest has them, a sample every step.
func (s *scraper) load(step time.Duration) string {
	text := "load " + step.String()
	for name, values := range s.series {
		text += "\n\t" + name + " " + strings.Join(values, " ")
	}
	return text
}

// restart is an analyzer that is started again: one tracker that publishes, and a second one that reads what was published.
type restart struct {
	t       *testing.T
	graph   *fabric.Graph
	tracker *incident.Tracker
	cycle   int
	scraper scraper
}

const restartStep = 5 * time.Second

func (r *restart) now() time.Time { return time.Unix(0, 0).Add(time.Duration(r.cycle) * restartStep) }

// start starts an analyzer, with the verdicts that others published.
func (r *restart) start() {
	r.t.Helper()
	r.tracker = incident.NewTracker(incident.Options{Graph: r.graph, Settings: evidence.SettingsFor(restartStep), Log: slog.New(slog.DiscardHandler)})
	s := evidence.SettingsFor(restartStep)
	s.Past.Search = time.Hour
	past, err := evidence.RecallVerdicts(r.t.Context(), evidencetest.NewQuerier(r.t, r.scraper.load(restartStep)), s, r.now())
	if err != nil {
		r.t.Fatal(err)
	}
	r.tracker.SeedVerdicts(past, r.now())
}

// name runs cycles in which an element is named, with an equivalent unless that is zero, and returns the incidents.
func (r *restart) name(cycles int, e, equivalent fabric.Element) []incident.Incident {
	for range cycles {
		v := fabric.Verdict{Element: e, Confidence: 0.9, Scenario: fabric.Corridor, Severity: fabric.SeverityWarning, FirstSeen: r.now(), Evidence: fabric.EvidenceCount{DegradedEdges: 4, ExplainedEdges: 4}}
		if equivalent.ID != "" {
			v.Equivalent, v.SameFlowEquivalents = []fabric.Element{equivalent}, []fabric.DirectedElement{{Element: equivalent}}
		}
		m := incident.Moment{Now: r.now(), Cycle: r.cycle, Flows: steadyFlows{}}
		m.Report.Verdicts = []fabric.Verdict{v}
		r.tracker.TrackVerdicts(&m)
		snap := snapshot.Snapshot{At: r.now(), Incidents: r.tracker.ListIncidents()}
		r.scraper.scrape(&Collector{Snapshot: func() snapshot.Snapshot { return snap }, Store: paths.NewStore(r.graph)})
		r.cycle++
	}
	return r.tracker.ListIncidents()
}

// TestIdentifierSurvivesNarrowingAndRestart narrows a verdict, starts another analyzer by what was published, and names the fault again:
// as it was named last, as it was before, or as something that the evidence does not distinguish from that.
func TestIdentifierSurvivesNarrowingAndRestart(t *testing.T) {
	wide, narrow := fabric.Element{ID: "leaf1:up1--spine1:dn1", Kind: fabric.KindLink}, fabric.Element{ID: "spine1:dn1", Kind: fabric.KindPort}
	other, none := fabric.Element{ID: "leaf1:up1", Kind: fabric.KindPort}, fabric.Element{}
	for _, tt := range []struct {
		name             string
		again, alike     fabric.Element
		narrowedAfter    int // cycles from the narrowing to the end of the first analyzer
		want             bool
		closed, restarts int
	}{
		{"as it was named last", narrow, none, 20, true, 0, 1},
		{"shortly after it was narrowed", narrow, none, 1, true, 0, 1},
		{"as it was named first", wide, narrow, 20, true, 0, 1},
		{"as it was named first, without the equivalent", wide, none, 20, true, 0, 1},
		{"as a third element", other, narrow, 20, true, 0, 1},
		{"twice", narrow, none, 20, true, 0, 2},
		{"another fault", fabric.Element{ID: "leaf3:up1--spine2:dn3", Kind: fabric.KindLink}, none, 20, false, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &restart{t: t, graph: worldtest.NewClos(t, 2, 4, 2), cycle: 12, scraper: scraper{t: t, times: 12, series: map[string][]string{}}}
			r.start()
			before := r.name(30, wide, narrow)
			narrowed := r.name(tt.narrowedAfter, narrow, none)
			if len(before) != 1 || len(narrowed) != 1 || before[0].Element != wide || narrowed[0].Element != narrow || narrowed[0].ID != before[0].ID {
				t.Fatalf("before the start: %+v, %+v", before, narrowed)
			}
			var after []incident.Incident
			for range tt.restarts {
				r.start()
				after = r.name(5, tt.again, tt.alike)
			}
			if len(after) != 1 || after[0].Element != tt.again || (after[0].ID == before[0].ID) != tt.want || after[0].FirstSeen.Equal(before[0].FirstSeen) != tt.want {
				t.Errorf("after the start: %+v, want the identifier %s (%t)", after, before[0].ID, tt.want)
			}
		})
	}
}
