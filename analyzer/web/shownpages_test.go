package web

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/audit/latest"
	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibsubnet"
	"github.com/graylink/graylink/internal/plan"
)

// shownPages returns the pages that the tests of a browser open. A new page is a line here. Names that a page has beside those of the demo's
// fabric are what make is called with.
func shownPages() []shownPage {
	const lookup = "/?src=h3/eth1&dst=h1/eth1"
	return []shownPage{
		{"healthy", "/", innocentHandler},
		{"verdicts", "/", crowdedHandler},
		{"stale", "/", func(t *testing.T, name string) *Handler {
			h := crowdedHandler(t, name)
			h.Now = func() time.Time { return noon().Add(90 * time.Second) }
			return h
		}},
		{"insufficient", "/", func(t *testing.T, name string) *Handler {
			g := loadDemo(t)
			s := healthy(g)
			s.Report.State, s.Baselines, s.Hosts = fabric.InsufficientEvidence, 40, map[string]string{name: "does not answer"}
			return handler(g, s)
		}},
		{"pods", "/?pod=p2", podsHandler},
		{"lookup", lookup, crowdedHandler},
		{"lookup-refused", "/?src=h3&dst=nowhere", crowdedHandler},
		{"job", "/?job=" + url.QueryEscape(plainName), crowdedHandler},
		{"matrix", "/matrix", worldHandler},
		{"matrix-nics", "/matrix?by=nic&of=shift&zoom=8", worldHandler},
		{"matrix-cell", "/matrix?row=leaf2&column=leaf1", worldHandler},
		{"matrix-refused", "/matrix?of=color", worldHandler},
		{"compare", "/compare", comparedHandler},
		{"compared", "/compare?from=24h", comparedHandler},
		{"verdict", "/verdicts/id0", namedReport},
		{"verdict-closed", "/verdicts/closed1", func(t *testing.T, _ string) *Handler { return reportedFault(t) }},
		{"verdict-unknown", "/verdicts/id9", namedReport},
	}
}

// plainName is a name that has nothing special.
const plainName = "train-7"

// comparedHandler returns a handler whose comparisons have an entry of each kind.
func comparedHandler(t *testing.T, name string) *Handler {
	c := worseComparison()
	c.Sections[0].Changes[0].Element, c.Warnings = name, []string{name}
	h, _ := compareHandler(t, c, nil)
	return h
}

// namedReport returns a handler of a verdict with a name in every place but its identifier, which is id0.
func namedReport(t *testing.T, name string) *Handler {
	h := hostileReport(t, name)
	of := h.Snapshot
	h.Snapshot = func() snapshot.Snapshot {
		s := of()
		s.Incidents = slices.Clone(s.Incidents)
		s.Incidents[0].ID = "id0"
		return s
	}
	h.Reports.Snapshot = h.Snapshot
	return h
}

func innocentHandler(t *testing.T, _ string) *Handler {
	g := loadDemo(t)
	return handler(g, healthy(g))
}

// podsHandler returns a handler of a fabric that is drawn in groups.
func podsHandler(t *testing.T, _ string) *Handler {
	g := clos{pods: 8, leaves: 8, spines: 8, cores: 16, nodesPerLeaf: 16}.graph(t)
	s := healthy(g)
	blame(&s, fabric.Direction{From: "spine2-3:up3", To: "core3:dn11"}, 350_000, 0.01)
	return handler(g, s)
}

// worldHandler returns a handler of a fabric with a bad NIC, and the matrix of it.
func worldHandler(t *testing.T, name string) *Handler {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3)
	slow := fabric.Direction{From: "h3/eth1", To: "leaf2:dn1"}
	w.Delay[slow] = 2_000_000
	h := matrixHandler(w, slow)
	h.Title = name
	return h
}

// crowdedHandler returns a handler of the demo's fabric with a fault, whose page has every panel. A name stands wherever one that is not of
// the topology can stand.
func crowdedHandler(t *testing.T, name string) *Handler {
	g, s := demoFault(t)
	full := &s.Incidents[0]
	full.Jobs, full.Causes, full.Action, full.Prefix = []string{name, "eval"}, []string{name}, "Look at "+name, name
	full.Evidence.Asked = nil
	full.Attribution = &fabric.Attribution{State: fabric.NoCauseData, Summary: name, Signals: &fabric.SignalReading{Says: fabric.SignalsSilent, Text: name}}
	held := blame(&s, fabric.Direction{From: "leaf4:up2", To: "spine2:dn4"}, 0, 0.02)
	held.Held, held.Summary = name, name
	for i := range 3 {
		past(&s, fabric.Direction{From: "leaf2:up1", To: "spine1:dn2"}, time.Duration(40-10*i)*time.Minute, 2*time.Minute)
		s.Incidents[len(s.Incidents)-1].Closed = name
	}
	s.Incidents = append(s.Incidents, incident.Incident{Open: true, Verdict: fabric.Verdict{ID: "note", Element: fabric.Element{ID: name, Kind: fabric.KindSwitch}, Scenario: fabric.RoutingFault,
		Severity: fabric.SeverityInfo, Summary: name, FirstSeen: noon()}})
	s.Report.Candidates = demoCandidates()
	s.Hosts, s.CycleError = map[string]string{name: name}, name
	s.Floods = []evidence.Flood{{NIC: name, From: "10.0.1.2", PerSecond: 5000}}
	s.Signals = []signals.Finding{{Kind: signals.ForeignLocators, Element: name, Text: name}}
	s.Maintenance = []maintenance.Window{{Element: name, By: name, Reason: name, From: noon().Add(-time.Minute), Until: noon().Add(time.Hour), Source: name}}
	s.MaintenanceSources = []maintenance.SourceState{{Source: name, Error: name}}
	s.Scopes = []scope.Scope{{Scope: "fabric", State: fabric.Suspect}, {Scope: scope.JobPrefix + name, State: fabric.Suspect, Why: name}, {Scope: "plane/a", State: fabric.Innocent}}
	s.Shard = &snapshot.Shard{Own: "a", Known: true, Others: append(otherShards(), evidence.Shard{Name: name, State: fabric.Innocent})}
	register := jobs.NewRegister(g)
	register.ReplaceSource("f", []jobs.Placement{{Job: name, Nodes: []string{"h1", "h3"}}, {Job: "eval", Nodes: []string{"h2", "h4"}}})
	s.Placed = register.MapAt(noon())
	h := handler(g, s)
	h.Title, h.Prometheus = name, "http://prometheus.example"
	for _, flow := range []string{"h3/eth1>h1/eth1#0", "h3/eth1>h1/eth1#0/r"} {
		traced(t, g, h.Store, flow)
	}
	h.Bottlenecks = func(context.Context, time.Time, string, string) (map[fabric.Flow]signals.Bottlenecks, bool, error) {
		return nil, true, nil
	}
	h.Collectives = func() collectives.State { return waitingJobs(name) }
	h.Subnets = func() []ibsubnet.View {
		return append(someSubnets(noon()), ibsubnet.View{Subnet: name, Origin: name, Err: name})
	}
	h.Audit = func(time.Time) latest.View { return latest.View{Report: auditReport(name), Problem: name} }
	rate := 206.9
	h.Observer = &keptAnswers{of: map[string]*catalogue.Running{name: {Job: name, At: noon().Add(-12 * time.Second), Reasons: []string{name},
		Observed: &plan.ObservedJob{Job: name, QPs: 64, Known: 64, BusbwGbps: &rate, HurtBy: []plan.Collision{{Link: name, CapacityGbps: 362, QPs: map[string]int{name: 9}}}},
		Links:    []plan.LinkShare{{Link: name, Now: 1.5, Plan: 1}, {Link: "leaf1:up2->spine2:dn1", Now: 0.5, Plan: 1}}}}}
	h.MayObserve = func(*http.Request) error { return nil }
	return h
}
