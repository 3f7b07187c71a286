package evidence

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// Rules of queries in two steps:
//
//  11. The overview covers every NIC in every cycle. It has a few series that each node publishes of
//     itself (graylink_node_unhealthy_flows and others), and of the nodes where something is not
//     normal what they publish of their NICs and clocks.
//  12. It is of the present moment, and not of Lag ago, since it only selects the flows to query. A node
//     that misjudges its flows, or lies, changes which flows are queried, and no verdict.
//  13. If no node judges its flows, there is no overview. A NIC whose node does not, as that of an earlier
//     version, is not known to be healthy.
//  14. Normal values are left out of results, since each row costs both sides. A NIC without a
//     condition has no flows in it, if the number of its flows is known. A clock
//     without a state is locked, if its bound is present. A node that responds without a stall has none.
//     Dropped packets are queried of the nodes that do not say that they dropped none, by NIC.
//  15. The numbers of flows, and the values of clocks, seldom change. Each is queried in one cycle of
//     ten, in turn, and all in the next one after a clock counted something, or there are other nodes. In between,
//     a clock counts with what the largest bound of its node's clocks has grown by, and a node of an
//     earlier version, which publishes nothing of itself, with whether it answered then. A clock with
//     an unknown asymmetry is treated as the worst one.

// OverviewQueries returns the queries of the overview by name, as WindowQueries does. "flows" is queried once. Queries
// about NICs and clocks have their names in WindowQueries, and shorter results (rule 14).
func (s Settings) OverviewQueries() map[string]string {
	q := s.expandQueries(defaultOverviewQueries(), "")
	for name, query := range s.WindowQueries() {
		switch name {
		case "age", "unread", "forged", "refused", "clock", "allowed", "offset", "drift", "steps", "drifts":
			q[name] = query
		}
	}
	return q
}

// OverviewCache holds the seldom queried values between the overviews that query them (rule 15).
type OverviewCache struct {
	skipWhole bool // the next overview does not query all of them
	turn      int  // overviews since all were queried
	kept      map[string][]Sample
	flows     map[string]int
	owners    map[string]bool  // nodes of the NICs
	nics      map[string]bool  // whose node publishes something; false: not of late
	clocks    map[string]Clock // without their states
	widest    map[string]int64 // the largest bound of a node's clocks, by node
	nodes     int              // that answer, and those with clocks
	// publishing are the nodes that have published something of themselves, which those of earlier versions do not.
	publishing map[string]bool
	changes    float64 // steps and drifts of all clocks
}

// seldomEvery is the number of overviews from one query of these values to the next.
const seldomEvery = 10

// Queries that are not part of every overview: those whose turn it is in one of seldomEvery, those about nodes where
// something is not normal, and those after a clock counted something.
var (
	seldomQueries  = [][]string{{"age"}, {"nicHealthy"}, {"clock"}, {"allowed"}, {"offset", "drift"}, {"steps", "drifts"}}
	detailQueries  = []string{"nicMoved", "state", "stalled", "unread", "forged"}
	changesQueries = []string{"steps", "drifts"}
	lossQueries    = []string{"unread", "forged"}
)

// dueQueries returns the seldom queries of this overview: those whose turn it is, or all.
func (r *OverviewCache) dueQueries() (names []string, whole bool) {
	if whole = !r.skipWhole; whole {
		r.turn, r.skipWhole = 0, true
		return slices.Concat(seldomQueries...), true
	}
	r.turn++
	if i := (r.turn - 1) % seldomEvery; i < len(seldomQueries) {
		return seldomQueries[i], false
	}
	return nil, false
}

// keepSeldom stores the seldom queried values that the answers have.
func (r *OverviewCache) keepSeldom(answers map[string][]Sample, lag time.Duration) {
	if r.kept == nil {
		r.kept = map[string][]Sample{}
	}
	some := false
	for _, name := range slices.Concat(seldomQueries...) {
		if answer, queried := answers[name]; queried {
			r.kept[name], some = answer, true
		}
	}
	if !some {
		return
	}
	each := eachNumber(r.kept)
	r.owners, r.nics, r.clocks, r.widest = map[string]bool{}, map[string]bool{}, map[string]Clock{}, map[string]int64{}
	each("age", func(v Sample) {
		nic := v.Labels["nic"]
		r.nics[nic], r.owners[fabric.OwnerOf(nic)] = v.Value <= lag.Seconds(), true
	})
	gatherClocks(func(name string, take func(Sample)) {
		if name != "allowed" && name != "state" {
			each(name, take)
		}
	}, r.clocks)
	allowed, worst := map[string]int64{}, int64(0)
	each("allowed", func(v Sample) {
		allowed[v.Labels["clock"]] = int64(v.Value * 1e9)
		worst = max(worst, allowed[v.Labels["clock"]])
	})
	for nic, c := range r.clocks {
		if c.Bound == nil {
			continue
		}
		node := fabric.OwnerOf(nic)
		r.widest[node] = max(r.widest[node], *c.Bound)
		if own, known := allowed[nic]; known {
			*c.Bound += own
		} else {
			*c.Bound += worst
		}
		none := 0.0
		for _, n := range []**float64{&c.Steps, &c.Drifts} {
			if *n == nil {
				*n = &none
			}
		}
		r.clocks[nic] = c
	}
}

// fillClocks sets the clocks from the kept values, with what the nodes say now. bounds means that these are of now, and
// offsets means that those are.
func (r *OverviewCache) fillClocks(each func(string, func(Sample)), bounds, offsets bool, clocks map[string]Clock) {
	grown := map[string]int64{} // by which the largest bound of a node has
	each("nodeBound", func(v Sample) {
		node := v.Labels["instance"]
		if more := int64(v.Value*1e9) - r.widest[node]; more > 0 && !bounds {
			grown[node] = more
		}
	})
	for nic, c := range r.clocks {
		if c.Bound != nil {
			c.State = "locked"
		}
		if more := grown[fabric.OwnerOf(nic)]; more > 0 && c.Bound != nil {
			bound := *c.Bound + more
			c.Bound = &bound
		}
		if !offsets {
			c.Offset, c.Drift = nil, nil
		}
		clocks[nic] = c
	}
	each("state", func(v Sample) {
		c := clocks[v.Labels["clock"]]
		c.State = v.Labels["state"]
		clocks[v.Labels["clock"]] = c
	})
}

func defaultOverviewQueries() map[string]string {
	return map[string]string{
		"flows":        `count(count by ($flow, direction) (fabric_probe_sent_total{class!="csig", $only}))`,
		"judgedFlows":  `sum(max by (nic, condition) (fabric_nic_flows{$only}))`,
		"nicHealthy":   `max by (nic) (fabric_nic_flows{condition="healthy", $only})`,
		"nicMoved":     `max by (nic, condition) (fabric_nic_flows{condition!="healthy", nic!="", $only} > 0)`,
		"state":        `max by (clock, state) (fabric_clock_state{state!="locked", clock!=""} == 1)`,
		"stalled":      `max by (nic) (increase(graylink_node_stalled_seconds_total$stall) > $late)`,
		"nodeAge":      `time() - max by (instance) (timestamp(graylink_node_unhealthy_flows))`,
		"nodeMoved":    `max by (instance) (graylink_node_unhealthy_flows > 0)`,
		"nodeLosses":   `max by (instance) (increase(graylink_node_host_losses_total$stall))`,
		"nodeStalled":  `max by (instance) (increase(graylink_node_loop_late_seconds_total$stall) > $late)`,
		"nodeStarted":  `max by (instance) (graylink_node_uptime_seconds) < $young`,
		"nodeUnseen":   `max by (instance) (count_over_time(graylink_node_unhealthy_flows$seen)) < $scrapes`,
		"nodeUnlocked": `max by (instance) (graylink_node_unlocked_clocks > 0)`,
		"nodeBound":    `max by (instance) (graylink_node_clock_error_bound_seconds)`,
		"nodeChanges":  `sum(max by (instance) (graylink_node_clock_changes_total))`,
	}
}

// manyNodes is the number of nodes above which the windows of all nodes are not asked for in one cycle, since most would not
// come in time.
const manyNodes = 256

// nodesInQuery is the number of nodes that one query names. Prometheus looks up as many alternatives in its index, and compares
// more of them with every series.
const nodesInQuery = 256

// ofNodes returns queries about the NICs of some nodes, by a query about all NICs, of all nodes. A query without a condition on
// the label stays as it is.
func ofNodes(query, label string, nodes []string, all int) (out []string) {
	condition := label + `!=""`
	if 2*len(nodes) > all || !strings.Contains(query, condition) {
		return []string{query}
	}
	quoted := make([]string, len(nodes))
	for i, n := range nodes {
		quoted[i] = regexp.QuoteMeta(n)
	}
	slices.Sort(quoted)
	for some := range slices.Chunk(quoted, nodesInQuery) {
		out = append(out, strings.Replace(query, condition, condition+", instance=~"+strconv.Quote(strings.Join(some, "|")), 1))
	}
	return out
}

// Overview is what every NIC says of itself at a moment.
type Overview struct {
	// Flows is the number of flows that a NIC probes, if its node judges them.
	Flows map[string]int
	// Unhealthy has how many of them are not healthy, by NIC and condition.
	Unhealthy map[string]map[window.Condition]int
	// MissingReason says why there is no overview; "": there is.
	MissingReason string

	alive  map[string]bool
	window Window // hosts, clocks and warnings
}

// CountFlows asks how many directed flows are counted.
func (c *Cycle) CountFlows(ctx context.Context) (int, error) {
	name, directions := "flows", 1
	if c.s.Windows != nil { // the server may not have the flows
		name, directions = "judgedFlows", window.Directions
	}
	answers, _, err := c.s.runQueries(ctx, c.db, c.timedQueries(map[string]string{name: c.s.OverviewQueries()[name]}))
	n := 0
	for _, v := range answers[name] {
		n += directions * int(v.Value)
	}
	return n, err
}

// detailsFor returns the queries that the answers of the overview give reason for, of all its queries: about nodes where
// something is not normal, and about clocks that counted something. Answers about nodes that it cannot name are dropped.
func (r *OverviewCache) detailsFor(all map[string]string, answers map[string][]Sample, whole bool) map[string][]string {
	each, more := eachNumber(answers), map[string][]string{}
	for name, from := range map[string]struct{ nodes, label string }{"nicMoved": {"nodeMoved", "nic"}, "state": {"nodeUnlocked", "clock"}, "stalled": {"nodeStalled", "nic"}} {
		var nodes []string
		named := true // by the node's name, as the labels of its NICs; not if series were pushed
		each(from.nodes, func(v Sample) {
			nodes = append(nodes, v.Labels["instance"])
			named = named && r.owners[v.Labels["instance"]]
		})
		switch {
		case len(nodes) == 0 || named && name == "stalled":
		case named:
			more[name] = ofNodes(all[name], from.label, nodes, len(r.owners))
		default:
			more[name] = []string{all[name]}
			if name == "stalled" {
				delete(answers, from.nodes)
			}
		}
	}
	if nodes, named := r.nodesThatLose(each); len(nodes) > 0 || !named {
		for _, name := range lossQueries {
			more[name] = []string{all[name]}
			if named {
				more[name] = ofNodes(all[name], "nic", nodes, len(r.owners))
			}
		}
	}
	changes := 0.0
	each("nodeChanges", func(v Sample) { changes = v.Value })
	if changes != r.changes && !whole {
		for _, name := range changesQueries {
			more[name] = []string{all[name]}
		}
		r.skipWhole = false
	}
	r.changes = changes
	return more
}

// nodesThatLose returns the nodes that do not say that they dropped no packets, which those of earlier versions do not. named
// means that nodes say so by their own names.
func (r *OverviewCache) nodesThatLose(each func(string, func(Sample))) (nodes []string, named bool) {
	none := map[string]bool{}
	named = len(r.owners) > 0
	each("nodeLosses", func(v Sample) {
		node := v.Labels["instance"]
		named = named && r.owners[node]
		none[node] = v.Value == 0
	})
	for node := range r.owners {
		if !none[node] {
			nodes = append(nodes, node)
		}
	}
	return nodes, named
}

// ReadOverview runs the first step. If it sets MissingReason, there is no overview, and ReadAllFlows has to be
// used. r keeps the seldom queried values from one overview to the next.
func (c *Cycle) ReadOverview(ctx context.Context, r *OverviewCache) (o Overview, err error) {
	defer func() {
		if err != nil {
			r.skipWhole = false
		}
	}()
	all := c.s.OverviewQueries()
	queries := maps.Clone(all)
	due, whole := r.dueQueries()
	for _, name := range slices.Concat(append(seldomQueries, detailQueries, []string{"flows", "judgedFlows"})...) {
		if !slices.Contains(due, name) {
			delete(queries, name)
		}
	}
	o = Overview{Unhealthy: map[string]map[window.Condition]int{}, window: c.emptyWindow()}
	answers, warnings, err := c.s.runQueries(ctx, c.db, c.timedQueries(queries))
	if err != nil {
		return o, err
	}
	each := eachNumber(answers)
	if r.publishing == nil {
		r.publishing = map[string]bool{}
	}
	more := r.detailsFor(all, answers, whole)
	if len(more) > 0 {
		var queries []timedQuery
		for name, some := range more {
			for _, query := range some {
				queries = append(queries, c.timedQuery(name, query))
			}
		}
		details, also, err := c.s.runQueries(ctx, c.db, queries)
		if err != nil {
			return o, err
		}
		maps.Copy(answers, details)
		warnings = append(warnings, also...)
	}
	o.window.Warnings = warnings
	c.s.gatherHosts(each, &o.window)
	r.keepSeldom(answers, c.s.Lag)
	_, bounds := answers["clock"]
	_, offsets := answers["offset"]
	r.fillClocks(each, bounds, offsets, o.window.Clocks)
	answering := map[string]bool{}
	c.s.Arrival.addAges(c.now, agesOfNodes(each, "nodeAge"))
	each("nodeAge", func(v Sample) {
		r.publishing[v.Labels["instance"]] = true
		answering[v.Labels["instance"]] = v.Value <= c.s.Lag.Seconds()
	})
	// Those with clocks are of the moment of the window.
	if nodes := len(answering) + len(answers["nodeBound"]); nodes != r.nodes {
		r.nodes = nodes
		r.skipWhole = whole
	}
	o.alive = make(map[string]bool, len(r.nics))
	for nic, answered := range r.nics {
		node := fabric.OwnerOf(nic)
		if answering[node] || answered && !r.publishing[node] {
			o.alive[nic] = true
		}
	}
	each("nicMoved", func(v Sample) {
		nic := v.Labels["nic"]
		if o.Unhealthy[nic] == nil {
			o.Unhealthy[nic] = map[window.Condition]int{}
		}
		o.Unhealthy[nic][window.Condition(v.Labels["condition"])] = int(v.Value)
	})
	if healthy, queried := answers["nicHealthy"]; queried {
		r.flows = make(map[string]int, len(healthy))
		each("nicHealthy", func(v Sample) { r.flows[v.Labels["nic"]] = int(v.Value) })
		each("nicMoved", func(v Sample) { r.flows[v.Labels["nic"]] += int(v.Value) })
	}
	o.Flows = r.flows
	if len(o.Flows) == 0 {
		o.MissingReason = "no agent publishes fabric_nic_flows"
		r.skipWhole = false
	}
	return o, nil
}

// StarvedHosts returns the nodes that are starved, with the reason.
func (o *Overview) StarvedHosts() map[string]string { return o.window.Hosts }

// DropsUnread reports whether a NIC dropped packets before it read or verified them.
func (o *Overview) DropsUnread(nic string) bool { return o.window.Unread[nic] }

// AgentAnswers reports whether the agent of a NIC answers.
func (o *Overview) AgentAnswers(nic string) bool { return o.alive[nic] }

// ClockUsable reports whether delays by the clock of a NIC mean something.
func (o *Overview) ClockUsable(nic string) bool { return o.window.Clocks[nic].delaysUsable() }

// Selection represents the queried flows: those from some NICs and those to some, in both
// directions each.
type Selection struct {
	Sources, Destinations map[string]bool
	// Moved are NICs whose node returns the flows that it does not judge as healthy, and a few others. It needs
	// Settings.Windows.
	Moved map[string]bool
}

// Contains reports whether a flow may be among the queried ones. Of the flows from Moved, the node selects them.
func (s Selection) Contains(e fabric.Flow) bool {
	return s.Sources[e.Src] || s.Destinations[e.Dst] || s.Moved[e.Src]
}

// labelMatchers select what a selection is made of.
func (s Selection) labelMatchers() (out []string) {
	for _, part := range []struct {
		label string
		nics  map[string]bool
	}{{"src", s.Sources}, {"dst", s.Destinations}} {
		if len(part.nics) > 0 {
			out = append(out, part.label+"=~"+AnyOf(slices.Sorted(maps.Keys(part.nics))))
		}
	}
	return out
}

// ReadFlows runs the second step: it queries selected flows, after an overview. It fails if a query fails.
func (c *Cycle) ReadFlows(ctx context.Context, o *Overview, only Selection) (Window, error) {
	w := o.window
	w.Hosts = maps.Clone(w.Hosts)
	if c.s.Windows != nil {
		c.s.gatherObservations(c.readWindows(ctx, &only, nil, &w), o.alive, only.Contains, &w)
		return w, nil
	}
	answers := map[string][]Sample{}
	for _, matcher := range only.labelMatchers() {
		queries := map[string]string{}
		for name, q := range c.s.expandQueries(defaultWindowQueries(), matcher) {
			if isAboutFlows(name) {
				queries[name] = q
			}
		}
		some, warnings, err := c.s.runQueries(ctx, c.db, c.timedQueries(queries))
		if err != nil {
			return w, err
		}
		for name, v := range some {
			answers[name] = append(answers[name], v...)
		}
		w.Warnings = append(slices.Clone(w.Warnings), warnings...)
	}
	c.s.gatherObservations(gatherFlows(eachNumber(answers)), o.alive, only.Contains, &w)
	return w, nil
}
