// Package publish publishes the analyzer's state as Prometheus series and through
// the HTTP API.
package publish

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/switchpoll"
	"github.com/graylink/graylink/internal/fabric"
)

// keepClearedSeries is the time for which the series of a cleared suspect stay at 0.
const keepClearedSeries = 5 * time.Minute

// maxMaintenance bounds the elements under maintenance that are published. More elements mean a fabric that
// is out of service, and the page and the API list all of them.
const maxMaintenance = 1000

// maxPathEdges bounds the edges whose path is published per verdict.
const maxPathEdges = 200

// Collector turns the analyzer's snapshot into series at each scrape.
type Collector struct {
	Snapshot func() snapshot.Snapshot
	Store    *paths.Store
	// Switches is tracing.Sources.SwitchStates, or nil if no switch reports sightings.
	Switches func() (map[string]paths.TableView, switchpoll.Counts)
	// URL is the address of the analyzer's page for browsers, to which alerts lead, or "" if it is not known.
	URL string
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	suspectScore = newDesc("fabric_suspect_score", "Confidence that the element is at fault, and 0 for five minutes after the verdict clears.", "element", "kind")
	suspectInfo  = newDesc("fabric_suspect_info", "The suspect's scenario, direction and place: 1 while the verdict is open, 0 after it clears.",
		"element", "kind", "scenario", "from", "to", "tier", "plane", "class", "severity")
	verdictInfo     = newDesc("fabric_verdict_info", "Identifier of the verdict on the element: 1 while the verdict is open, 0 after it clears.", "id", "element", "kind")
	suspectDelay    = newDesc("fabric_suspect_added_delay_seconds", "One-way delay that the element adds.", "element", "kind")
	suspectLoss     = newDesc("fabric_suspect_loss_ratio", "Share of packets that the element loses.", "element", "kind")
	suspectFirst    = newDesc("fabric_suspect_first_seen_timestamp_seconds", "Time at which the fault was first seen.", "element", "kind")
	suspectEnd      = newDesc("fabric_suspect_cleared_timestamp_seconds", "Time at which the verdict cleared. Absent while it is open.", "element", "kind")
	suspectEdges    = newDesc("fabric_suspect_edges", "Number of degraded flows that the element explains.", "element", "kind")
	suspectJobs     = newDesc("fabric_suspect_affected_jobs", "Number of jobs that may cross the element. Absent where no placement is known.", "element", "kind")
	suspectCause    = newDesc("fabric_suspect_cause_info", "Causes of the fault according to the suspect's own series and the probes.", "element", "kind", "cause")
	candidateChance = newDesc("fabric_candidate_probability", "Probability that an element without a verdict is at fault, for the likeliest.", "element", "kind")
	elementInfo     = newDesc("fabric_element_info", "Switches, ports and NICs of an element with an open verdict.", "element", "kind", "switch", "port", "nic")
	verdictState    = newDesc("fabric_verdict_state", "State of the scope: 1 for the present state, 0 for the others.", "scope", "state")
	coverage        = newDesc("fabric_evidence_coverage_ratio", "Share of link directions with fresh, path-bound evidence.", "scope")
	linkDelay       = newDesc("fabric_link_added_delay_seconds", "Delay that one direction of a link adds, as bounded by the probes that cross it.", "link", "from", "to")
	linkEdges       = newDesc("fabric_link_probe_edges", "Number of flows with fresh evidence that cross one direction of a link.", "link", "from", "to")
	pathVersion     = newDesc("fabric_path_map_version", "Version of all paths, which grows with each change.")
	pathEdges       = newDesc("fabric_path_edges", "Number of directed flows by the state of their path.", "state")
	edgePath        = newDesc("fabric_edge_path_info", "The path of a flow with an open verdict.", "src", "dst", "flow", "direction", "path")
	pathHop         = newDesc("fabric_path_hop_info", "The hops of a published path.", "path", "hop", "switch", "ingress", "egress", "link")
	lastCycle       = newDesc("graylink_analyzer_last_cycle_timestamp_seconds", "Time at which the last cycle ended.")
	maintenanceInfo = newDesc("fabric_maintenance_info", "Elements that are excluded because of maintenance, by source of the announcement.", "element", "source")
	partInfo        = newDesc("graylink_analyzer_part_info", "Pods that an analyzer is responsible for, and core for what is above all of them.", "part")
	urlInfo         = newDesc("graylink_analyzer_url_info", "Address of the analyzer's page for browsers, by --web.external-url.", "url")
	warnings        = newDesc("graylink_analyzer_evidence_warnings", "Number of incomplete query results and left-out queries in the last cycle.")
	baselines       = newDesc("graylink_analyzer_baselines", "Number of directed flows with a baseline.")
	pending         = newDesc("graylink_analyzer_pending_edges", "Number of flows that look degraded and wait for confirmation.")
	hostSuspect     = newDesc("graylink_analyzer_host_suspect", "1 for nodes whose probes are excluded because the node is starved or silent.", "node")
	swInfo          = newDesc("graylink_analyzer_switch_info", "How a switch observes the probes that cross it.", "switch", "kind")
	swAnswered      = newDesc("graylink_analyzer_switch_answered_timestamp_seconds", "Time of the last response of a switch with its sightings.", "switch")
	swFlows         = newDesc("graylink_analyzer_switch_flows", "Number of flows in a switch's table.", "switch")
	swDropped       = newDesc("graylink_analyzer_switch_dropped_total", "Sightings that a switch lost because a table or buffer was full.", "switch")
	swForeign       = newDesc("graylink_analyzer_switch_foreign_flows_total", "Flows that a switch reported and that belong to no edge.", "switch")
	swPulls         = newDesc("graylink_analyzer_switch_pulls_total", "Requests to switches, by result.", "result")
)

var states = []fabric.State{fabric.Innocent, fabric.Suspect, fabric.InsufficientEvidence}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{suspectScore, suspectInfo, verdictInfo, suspectFirst, suspectEnd, suspectDelay, suspectLoss, suspectEdges, suspectJobs, suspectCause, candidateChance, elementInfo, verdictState, coverage, linkDelay,
		linkEdges, pathVersion, pathEdges, edgePath, pathHop, lastCycle, maintenanceInfo, partInfo, urlInfo, warnings, baselines, pending, hostSuspect,
		swInfo, swAnswered, swFlows, swDropped, swForeign, swPulls} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.Snapshot()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.collectSuspects(s, gauge)
	c.collectSwitches(ch, gauge)
	if c.URL != "" {
		gauge(urlInfo, 1, strings.TrimSuffix(c.URL, "/"))
	}
	for _, state := range states {
		gauge(verdictState, oneIf(s.Report.State == state), "fabric", string(state))
	}
	if s.At.IsZero() {
		return
	}
	gauge(coverage, s.Report.Coverage.Links, "fabric")
	collectCandidates(s.Report.Candidates, gauge)
	for i := range s.Scopes {
		sc := &s.Scopes[i]
		if sc.Scope == "fabric" {
			continue
		}
		gauge(coverage, sc.Coverage.Links, sc.Scope)
		for _, state := range states {
			gauge(verdictState, oneIf(state == sc.State), sc.Scope, string(state))
		}
	}
	for _, l := range s.Links {
		gauge(linkEdges, float64(l.Edges), l.Link, l.From, l.To)
		if l.AddedDelayNS != nil {
			gauge(linkDelay, float64(*l.AddedDelayNS)/1e9, l.Link, l.From, l.To)
		}
	}
	if s.Shard != nil {
		for _, part := range s.Shard.Parts {
			gauge(partInfo, 1, part)
		}
	}
	gauge(pathVersion, float64(s.PathMap))
	for state, n := range s.Paths {
		gauge(pathEdges, float64(n), string(state))
	}
	gauge(lastCycle, unixSeconds(s.At))
	c.collectMaintenance(s, gauge)
	gauge(warnings, float64(len(s.Warnings)))
	gauge(baselines, float64(s.Baselines))
	gauge(pending, float64(s.Pending))
	for node := range s.Hosts {
		gauge(hostSuspect, 1, node)
	}
}

// collectCandidates publishes the probabilities of the candidates, of both directions of an element the larger one.
func collectCandidates(candidates []fabric.Candidate, gauge func(*prometheus.Desc, float64, ...string)) {
	most := map[fabric.Element]float64{}
	for _, c := range candidates {
		most[c.Element] = max(most[c.Element], c.Probability)
	}
	for e, p := range most {
		gauge(candidateChance, p, e.ID, string(e.Kind))
	}
}

// collectMaintenance publishes the windows that are in force, and not future ones.
func (c *Collector) collectMaintenance(s snapshot.Snapshot, gauge func(*prometheus.Desc, float64, ...string)) {
	type series struct{ element, source string }
	done := map[series]bool{}
	for i := range s.Maintenance {
		w := &s.Maintenance[i]
		k := series{w.Element, w.Source}
		if done[k] || len(done) == maxMaintenance || w.From.After(s.At) {
			continue
		}
		done[k] = true
		gauge(maintenanceInfo, 1, w.Element, w.Source)
	}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collectSwitches publishes the state of the switches that report sightings.
func (c *Collector) collectSwitches(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string)) {
	if c.Switches == nil {
		return
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	tables, pulls := c.Switches()
	for sw, t := range tables {
		gauge(swInfo, 1, sw, string(t.Kind))
		gauge(swAnswered, float64(t.AnsweredAt.UnixNano())/1e9, sw)
		gauge(swFlows, float64(t.Flows), sw)
		count(swDropped, t.Dropped+t.OverLimit, sw)
		count(swForeign, t.Foreign, sw)
	}
	count(swPulls, pulls.Pulls-pulls.Failures, "answered")
	count(swPulls, pulls.Failures, "failed")
}

// minOpenScore is the lowest score of an open verdict, since 0 means that it has cleared, and ends alerts.
const minOpenScore = 0.001

func (c *Collector) collectSuspects(s snapshot.Snapshot, gauge func(*prometheus.Desc, float64, ...string)) {
	done := map[fabric.Element]bool{}
	published := map[string]bool{}
	for i := range s.Incidents {
		in := &s.Incidents[i]
		if done[in.Element] || besideFault(s.Incidents, in) || !in.Open && (in.Cleared == nil || s.At.Sub(*in.Cleared) > keepClearedSeries) {
			continue
		}
		done[in.Element] = true
		on := oneIf(in.Open)
		name, kind := in.Element.ID, string(in.Kind)
		gauge(suspectScore, on*max(in.Confidence, minOpenScore), name, kind)
		gauge(verdictInfo, on, in.ID, name, kind)
		gauge(suspectFirst, unixSeconds(in.FirstSeen), name, kind)
		if in.Cleared != nil {
			gauge(suspectEnd, unixSeconds(*in.Cleared), name, kind)
		}
		gauge(suspectDelay, on*float64(in.Symptom.AddedDelayNS)/1e9, name, kind)
		gauge(suspectLoss, on*in.Symptom.LossRatio, name, kind)
		gauge(suspectEdges, on*float64(in.Evidence.ExplainedEdges), name, kind)
		var from, to string
		if d, err := fabric.ParseDirection(in.Direction); err == nil {
			from, to = d.From, d.To
		}
		gauge(suspectInfo, on, name, kind, string(in.Scenario), from, to, tierLabel(in.Tier), in.Plane, in.Class, in.Severity)
		if n := in.BlastRadius.Jobs; n != nil {
			gauge(suspectJobs, on*float64(*n), name, kind)
		}
		causes := map[string]bool{}
		for _, cause := range in.Causes {
			if !causes[cause] {
				gauge(suspectCause, on, name, kind, cause)
			}
			causes[cause] = true
		}
		if !in.Open {
			continue
		}
		for _, p := range elementLocations(in.Element) {
			gauge(elementInfo, 1, name, kind, p.sw, p.port, p.nic)
		}
		for j, id := range in.Edges {
			if j == maxPathEdges {
				break
			}
			c.collectPath(id, published, gauge)
		}
	}
}

// besideFault reports whether an incident is about routing at an element with an open incident of its own. The series have one
// incident of an element, and that of a part comes first.
func besideFault(all []incident.Incident, in *incident.Incident) bool {
	return in.Scenario.IsRouting() && slices.ContainsFunc(all, func(o incident.Incident) bool {
		return o.Open && o.Element == in.Element && (!o.Scenario.IsRouting() || in.Scenario == fabric.Convergence && o.Scenario != fabric.Convergence)
	})
}

func tierLabel(n int) string {
	if n == 0 {
		return ""
	}
	return formatInt(n)
}

type location struct{ sw, port, nic string }

// elementLocations returns the switches, ports and NICs of an element, under the names in the series of ports
// and NICs.
func elementLocations(e fabric.Element) (out []location) {
	end := func(id string) location {
		if sw, port, ok := fabric.SplitPort(id); ok {
			return location{sw: sw, port: port}
		}
		return location{nic: id}
	}
	for _, id := range e.Ends() {
		out = append(out, end(id))
	}
	switches := e.Waypoints()
	if e.Kind == fabric.KindSwitch || e.Kind == fabric.KindLeafUplinks {
		switches = []string{e.ID}
	}
	for _, sw := range switches {
		if p := (location{sw: sw}); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out // a host is not a part of the fabric
}

// collectPath publishes the bound path of an edge, each hop once.
func (c *Collector) collectPath(id string, published map[string]bool, gauge func(*prometheus.Desc, float64, ...string)) {
	e, err := fabric.ParseFlow(id)
	if err != nil {
		return
	}
	b, _ := c.Store.CurrentBinding(e)
	if len(b.Path) == 0 || published[id] {
		return
	}
	published[id] = true
	sum := sha256.Sum256([]byte(b.Path.CanonicalKey()))
	key := hex.EncodeToString(sum[:6])
	direction := "forward"
	if e.Reply {
		direction = "reverse"
	}
	gauge(edgePath, 1, e.Src, e.Dst, formatInt(e.Number), direction, key)
	if published["path "+key] {
		return
	}
	published["path "+key] = true
	g := c.Store.Graph()
	for i, h := range b.Path {
		out := h.Switch + ":" + h.Out
		link := ""
		if l := g.LinkAt(out); l != nil {
			link = l.ID()
		}
		gauge(pathHop, 1, key, formatInt(i+1), h.Switch, h.Switch+":"+h.In, out, link)
	}
}
