package evidence

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/window"
)

// Rules of queries in two steps:
//
//  11. The overview covers every NIC in every cycle. It has the series that its node reports of
//     it, and how many of its flows the node judges as not healthy (fabric_nic_flows).
//  12. It is of the present moment, and not of Lag ago, since it only selects the flows to query. A node
//     that misjudges its flows, or lies, changes which flows are queried, and no verdict.
//  13. If no node judges its flows, there is no overview. A NIC whose node does not, as that of an earlier
//     version, is not known to be healthy.
//  14. Normal values are left out of results, since each row costs both sides. A NIC without a
//     condition has no flows in it, if the number of its flows is known. A clock
//     without a state or count is locked and counted nothing, if its bound is present. A node
//     that responds without a stall has none.
//  15. The numbers of flows, the asymmetry of paths and the offsets of clocks seldom change. They are queried in one
//     cycle of ten, and in the next one after a clock counted something or is new. A clock with an
//     unknown asymmetry is treated as the worst one.

// OverviewQueries returns the queries of the overview by name, as WindowQueries does. "flows" is queried once. Queries
// about nodes and their clocks have their names in WindowQueries, and shorter results (rule 14).
func (s Settings) OverviewQueries() map[string]string {
	q := s.expandQueries(defaultOverviewQueries(), "")
	for name, query := range s.WindowQueries() {
		if isAboutFlows(name) {
			continue
		}
		switch name {
		case "stalled":
			query = "(" + query + ") > " + strconv.FormatFloat(s.stallLimit(), 'g', -1, 64)
		case "steps", "drifts":
			query = "(" + query + ") > 0"
		case "state":
			if s.Override[name] == "" {
				query = `max by (clock, state) (fabric_clock_state{state!="locked"}) == 1`
			}
		}
		q[name] = query
	}
	return q
}

// OverviewCache holds the seldom queried values between the overviews that query them (rule 15).
type OverviewCache struct {
	untilDue int // overviews until they do
	allowed  map[string]int64
	flows    map[string]int
	counted  float64 // steps and drifts of all clocks
}

// seldomEvery is the number of overviews from one query of these values to the next.
const seldomEvery = 10

// seldomQueries lists the names of the seldom queries.
var seldomQueries = []string{"allowed", "offset", "drift", "nicFlows"}

// updateClocks stores the values of this cycle, or fills in those of an earlier one.
func (r *OverviewCache) updateClocks(asked bool, each func(string, func(Sample)), clocks map[string]Clock) {
	first := r.allowed == nil
	if asked {
		r.untilDue, r.allowed = seldomEvery, map[string]int64{}
		each("allowed", func(v Sample) { r.allowed[v.Labels["clock"]] = int64(v.Value * 1e9) })
	}
	r.untilDue--
	worst := int64(0)
	for _, v := range r.allowed {
		worst = max(worst, v)
	}
	none, counted := 0.0, 0.0
	for nic, c := range clocks {
		if c.Bound == nil {
			continue
		}
		if c.State == "" {
			c.State = "locked"
		}
		for _, n := range []**float64{&c.Steps, &c.Drifts} {
			if *n == nil {
				*n = &none
			}
			counted += **n
		}
		allowed, known := r.allowed[nic]
		switch {
		case asked && !known:
			*c.Bound += worst
			r.allowed[nic] = worst
		case !asked && !known:
			*c.Bound += worst
			r.untilDue = 0
		case !asked:
			*c.Bound += allowed
		}
		clocks[nic] = c
	}
	if counted != r.counted && !first {
		r.untilDue = 0
	}
	r.counted = counted
}

func defaultOverviewQueries() map[string]string {
	return map[string]string{
		"flows":    `count(count by ($flow, direction) (fabric_probe_sent_total))`,
		"nicFlows": `sum by (nic) (max by (nic, condition) (fabric_nic_flows))`,
		"nicMoved": `max by (nic, condition) (fabric_nic_flows{condition!="healthy"}) > 0`,
	}
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
		name, directions = "nicFlows", window.Directions
	}
	answers, _, err := c.s.runQueries(ctx, c.db, c.timedQueries(map[string]string{name: c.s.OverviewQueries()[name]}))
	n := 0
	for _, v := range answers[name] {
		n += directions * int(v.Value)
	}
	return n, err
}

// ReadOverview runs the first step. If it sets MissingReason, there is no overview, and ReadAllFlows has to be
// used. r keeps the seldom queried values from one overview to the next.
func (c *Cycle) ReadOverview(ctx context.Context, r *OverviewCache) (Overview, error) {
	queries := c.s.OverviewQueries()
	delete(queries, "flows")
	asked := r.untilDue <= 0
	if !asked {
		for _, name := range seldomQueries {
			delete(queries, name)
		}
	}
	o := Overview{Unhealthy: map[string]map[window.Condition]int{}, window: c.emptyWindow()}
	answers, warnings, err := c.s.runQueries(ctx, c.db, c.timedQueries(queries))
	if err != nil {
		return o, err
	}
	o.window.Warnings = warnings
	each := eachNumber(answers)
	o.alive = c.s.gatherNodes(each, &o.window)
	if asked {
		r.flows = map[string]int{}
		each("nicFlows", func(v Sample) { r.flows[v.Labels["nic"]] = int(v.Value) })
	}
	r.updateClocks(asked, each, o.window.Clocks)
	o.Flows = r.flows
	each("nicMoved", func(v Sample) {
		nic := v.Labels["nic"]
		if o.Unhealthy[nic] == nil {
			o.Unhealthy[nic] = map[window.Condition]int{}
		}
		o.Unhealthy[nic][window.Condition(v.Labels["condition"])] = int(v.Value)
	})
	if len(o.Flows) == 0 {
		o.MissingReason = "no agent publishes fabric_nic_flows"
		r.untilDue = 0
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
type Selection struct{ Sources, Destinations map[string]bool }

// Contains reports whether a flow is queried.
func (s Selection) Contains(e fabric.Flow) bool { return s.Sources[e.Src] || s.Destinations[e.Dst] }

// labelMatchers select what a selection is made of.
func (s Selection) labelMatchers() (out []string) {
	for _, part := range []struct {
		label string
		nics  map[string]bool
	}{{"src", s.Sources}, {"dst", s.Destinations}} {
		var names []string
		for _, nic := range slices.Sorted(maps.Keys(part.nics)) {
			names = append(names, regexp.QuoteMeta(nic))
		}
		if len(names) > 0 {
			out = append(out, part.label+"=~"+strconv.Quote(strings.Join(names, "|")))
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
