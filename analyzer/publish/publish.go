// Package publish makes the analyzer's state readable: Prometheus series and
// the HTTP API.
package publish

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/internal/fabric"
)

// afterglow is how long a suspect's series stay, at 0, after the all-clear.
const afterglow = 5 * time.Minute

// maxMaintenance bounds the elements under maintenance that are published: more than that
// is a fabric that is taken out of service, and the page and the API list them.
const maxMaintenance = 1000

// maxPathEdges bounds the edges whose path is published per verdict.
const maxPathEdges = 200

// Collector turns the analyzer's snapshot into series at each scrape.
type Collector struct {
	Snapshot func() analyzer.Snapshot
	Store    *paths.Store
	// Switches are Loop.Switches; nil where no switch tells.
	Switches func() (map[string]paths.TableView, paths.PullCounts)
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	suspectScore = desc("fabric_suspect_score", "Confidence that the element is at fault; 0 for five minutes after the all-clear.", "element", "kind")
	suspectInfo  = desc("fabric_suspect_info", "The suspect's scenario, direction and place; 0 after the all-clear.",
		"element", "kind", "scenario", "from", "to", "tier", "plane", "class", "severity")
	suspectDelay = desc("fabric_suspect_added_delay_seconds", "One-way delay that the element adds.", "element", "kind")
	suspectLoss  = desc("fabric_suspect_loss_ratio", "Share of packets that the element loses.", "element", "kind")
	suspectFirst = desc("fabric_suspect_first_seen_timestamp_seconds", "Since when the probes show it: with element and kind, what a verdict is known by.", "element", "kind")
	suspectEnd   = desc("fabric_suspect_cleared_timestamp_seconds", "When it was cleared; absent while it is open.", "element", "kind")
	suspectEdges = desc("fabric_suspect_edges", "Degraded edges that the element explains.", "element", "kind")
	suspectJobs  = desc("fabric_suspect_affected_jobs", "Jobs that may cross the element, since the verdict opened; absent where no placement is known.", "element", "kind")
	suspectCause = desc("fabric_suspect_cause_info", "What the suspect's own series say it is.", "element", "kind", "cause")
	elementInfo  = desc("fabric_element_info", "Where an element under a verdict is.", "element", "kind", "switch", "port", "nic")
	verdictState = desc("fabric_verdict_state", "1 for the state that holds for the scope.", "scope", "state")
	coverage     = desc("fabric_evidence_coverage_ratio", "Share of link directions with fresh, path-bound evidence.", "scope")
	linkDelay    = desc("fabric_link_added_delay_seconds", "Delay that one direction of a link adds, as the probes that cross it bound it.", "link", "from", "to")
	linkEdges    = desc("fabric_link_probe_edges", "Edges with fresh evidence that cross one direction of a link.", "link", "from", "to")
	pathVersion  = desc("fabric_path_map_version", "Counts the changes of any path.")
	pathEdges    = desc("fabric_path_edges", "Directed flows by the state of their path.", "state")
	edgePath     = desc("fabric_edge_path_info", "The path of an edge under a verdict.", "src", "dst", "flow", "direction", "path")
	pathHop      = desc("fabric_path_hop_info", "The hops of a published path.", "path", "hop", "switch", "ingress", "egress", "link")
	lastCycle    = desc("graylink_analyzer_last_cycle_timestamp_seconds", "When the last cycle ended.")
	atWork       = desc("fabric_maintenance_info", "Elements that take no part in the judgement because somebody works on them, by who announced it.", "element", "source")
	warnings     = desc("graylink_analyzer_evidence_warnings", "Answers of the last cycle that Prometheus calls incomplete, and questions that were left out.")
	baselines    = desc("graylink_analyzer_baselines", "Directed flows whose baseline is learnt.")
	pending      = desc("graylink_analyzer_pending_edges", "Edges that look degraded and wait for confirmation.")
	hostSuspect  = desc("graylink_analyzer_host_suspect", "1 for nodes whose probes are no evidence because the node is starved or silent.", "node")
	swInfo       = desc("graylink_analyzer_switch_info", "How a switch sees the probes that cross it.", "switch", "kind")
	swHeard      = desc("graylink_analyzer_switch_answered_timestamp_seconds", "When a switch last told what crosses it.", "switch")
	swFlows      = desc("graylink_analyzer_switch_flows", "Flows of a switch's table.", "switch")
	swDropped    = desc("graylink_analyzer_switch_dropped_total", "What a switch lost because something was full.", "switch")
	swForeign    = desc("graylink_analyzer_switch_foreign_flows_total", "Flows told of that belong to no edge.", "switch")
	swPulls      = desc("graylink_analyzer_switch_pulls_total", "Questions to switches.", "result")
)

var states = []fabric.State{fabric.Innocent, fabric.Suspect, fabric.InsufficientEvidence}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{suspectScore, suspectInfo, suspectFirst, suspectEnd, suspectDelay, suspectLoss, suspectEdges, suspectJobs, suspectCause, elementInfo, verdictState, coverage, linkDelay,
		linkEdges, pathVersion, pathEdges, edgePath, pathHop, lastCycle, atWork, warnings, baselines, pending, hostSuspect,
		swInfo, swHeard, swFlows, swDropped, swForeign, swPulls} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.Snapshot()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.suspects(s, gauge)
	c.switches(ch, gauge)
	for _, state := range states {
		gauge(verdictState, oneIf(s.Report.State == state), "fabric", string(state))
	}
	if s.At.IsZero() {
		return
	}
	gauge(coverage, s.Report.Coverage.Links, "fabric")
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
	gauge(pathVersion, float64(s.PathMap))
	for state, n := range s.Paths {
		gauge(pathEdges, float64(n), string(state))
	}
	gauge(lastCycle, seconds(s.At))
	c.maintenance(s, gauge)
	gauge(warnings, float64(len(s.Warnings)))
	gauge(baselines, float64(s.Baselines))
	gauge(pending, float64(s.Pending))
	for node := range s.Hosts {
		gauge(hostSuspect, 1, node)
	}
}

// maintenance publishes the windows that are in force, not those to come.
func (c *Collector) maintenance(s analyzer.Snapshot, gauge func(*prometheus.Desc, float64, ...string)) {
	type series struct{ element, source string }
	done := map[series]bool{}
	for i := range s.Maintenance {
		w := &s.Maintenance[i]
		k := series{w.Element, w.Source}
		if done[k] || len(done) == maxMaintenance || w.From.After(s.At) {
			continue
		}
		done[k] = true
		gauge(atWork, 1, w.Element, w.Source)
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// switches are the sources of sightings.
func (c *Collector) switches(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string)) {
	if c.Switches == nil {
		return
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	tables, pulls := c.Switches()
	for sw, t := range tables {
		gauge(swInfo, 1, sw, string(t.Kind))
		gauge(swHeard, float64(t.Heard.UnixNano())/1e9, sw)
		gauge(swFlows, float64(t.Flows), sw)
		count(swDropped, t.Dropped+t.Over, sw)
		count(swForeign, t.Foreign, sw)
	}
	count(swPulls, pulls.Pulls-pulls.Failures, "answered")
	count(swPulls, pulls.Failures, "failed")
}

// doubtful is the least score of what is open: 0 is an all-clear, and ends alerts.
const doubtful = 0.001

func (c *Collector) suspects(s analyzer.Snapshot, gauge func(*prometheus.Desc, float64, ...string)) {
	done := map[fabric.Element]bool{}
	published := map[string]bool{}
	for i := range s.Incidents {
		in := &s.Incidents[i]
		if done[in.Element] || !in.Open && (in.Cleared == nil || s.At.Sub(*in.Cleared) > afterglow) {
			continue
		}
		done[in.Element] = true
		on := oneIf(in.Open)
		name, kind := in.Element.Element, string(in.Kind)
		gauge(suspectScore, on*max(in.Confidence, doubtful), name, kind)
		gauge(suspectFirst, seconds(in.FirstSeen), name, kind)
		if in.Cleared != nil {
			gauge(suspectEnd, seconds(*in.Cleared), name, kind)
		}
		gauge(suspectDelay, on*float64(in.Symptom.AddedDelayNS)/1e9, name, kind)
		gauge(suspectLoss, on*in.Symptom.LossRatio, name, kind)
		gauge(suspectEdges, on*float64(in.Evidence.ExplainedEdges), name, kind)
		var from, to string
		if d, err := fabric.ParseDirection(in.Direction); err == nil {
			from, to = d.From, d.To
		}
		gauge(suspectInfo, on, name, kind, string(in.Scenario), from, to, tier(in.Tier), in.Plane, in.Class, in.Severity)
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
		for _, p := range places(in.Element) {
			gauge(elementInfo, 1, name, kind, p.sw, p.port, p.nic)
		}
		for j, id := range in.Edges {
			if j == maxPathEdges {
				break
			}
			c.path(id, published, gauge)
		}
	}
}

func tier(n int) string {
	if n == 0 {
		return ""
	}
	return itoa(n)
}

type where struct{ sw, port, nic string }

// places lists the switches, ports and NICs of an element, under the names that the
// series of ports and NICs have.
func places(e fabric.Element) (out []where) {
	end := func(id string) where {
		if sw, port, ok := fabric.SplitPort(id); ok {
			return where{sw: sw, port: port}
		}
		return where{nic: id}
	}
	switch e.Kind {
	case fabric.KindNIC, fabric.KindClock, fabric.KindPort:
		return []where{end(e.Element)}
	case fabric.KindQueue:
		port, _, _ := strings.Cut(e.Element, "@")
		return []where{end(port)}
	case fabric.KindLink, fabric.KindAccessLink:
		if a, b, ok := fabric.SplitLink(e.Element); ok {
			return []where{end(a), end(b)}
		}
	case fabric.KindSwitch, fabric.KindLeafUplinks, fabric.KindCorridor, fabric.KindPair:
		for _, sw := range strings.Split(e.Element, "->") {
			if p := (where{sw: sw}); !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out // a host is no place of the fabric
}

// path publishes the bound path of an edge, each hop once.
func (c *Collector) path(id string, published map[string]bool, gauge func(*prometheus.Desc, float64, ...string)) {
	e, err := fabric.ParseEdge(id)
	if err != nil {
		return
	}
	b, _ := c.Store.Bind(e)
	if len(b.Path) == 0 || published[id] {
		return
	}
	published[id] = true
	sum := sha256.Sum256([]byte(b.Path.Key()))
	key := hex.EncodeToString(sum[:6])
	direction := "forward"
	if e.Reply {
		direction = "reverse"
	}
	gauge(edgePath, 1, e.Src, e.Dst, itoa(e.Flow), direction, key)
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
		gauge(pathHop, 1, key, itoa(i+1), h.Switch, h.Switch+":"+h.In, out, link)
	}
}
