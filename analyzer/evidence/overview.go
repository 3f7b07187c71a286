package evidence

import (
	"context"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Rules of queries in two steps:
//
//  11. The overview covers every NIC in every cycle. It has the series that its node reports of
//     it, and the recorded aggregates of all its probes (rules/aggregates.rules.yaml).
//  12. It is of the present moment, and not of Lag ago, since it only selects the flows to query.
//  13. If recording rules are missing, or their newest result is old, there is no overview. A NIC
//     without new results is not healthy because of that.
//  14. Normal values are left out of results, since each row costs both sides. A NIC without a
//     ratio has lost or marked no packets, if its delays are present and the rule works. A clock
//     without a state or count is locked and counted nothing, if its bound is present. A node
//     that responds without a stall has none.
//  15. The asymmetry of paths and the offsets of clocks seldom change. They are queried in one
//     cycle of ten, and in the next one after a clock counted something or is new. A clock with an
//     unknown asymmetry is treated as the worst one.

// Metric is what a recorded series is about.
type Metric uint8

// Metrics of the overview.
const (
	MedianDelay Metric = iota // seconds
	TailDelay                 // seconds, the 99th percentile
	Lost                      // ratio
	Marked                    // ratio
	Answered                  // ratio
)

// recorded are the series of the overview, by the names of their questions.
var recorded = map[string]struct {
	metric Metric
	series string
	only   string // which of its values are in the result
}{
	"nicP50":      {MedianDelay, "fabric:nic_owd_seconds:p50_2s", ""},
	"nicP99":      {TailDelay, "fabric:nic_owd_seconds:p99_2s", ""},
	"nicLost":     {Lost, "fabric:nic_probe_lost:ratio_2s", " > 0"},
	"nicMarked":   {Marked, "fabric:nic_probe_ecn_marked:ratio_2s", " > 0"},
	"nicAnswered": {Answered, "fabric:nic_probe_answered:ratio_2s", ""},
}

// OverviewQueries returns the queries of the overview by name, as WindowQueries does. "nicRules" returns the
// time of the newest result of each recorded series, by the label rule. "flows" is queried once. Queries about
// nodes and their clocks have their names in WindowQueries, and shorter results (rule 14).
func (s Settings) OverviewQueries() map[string]string {
	q := s.expandQueries(defaultOverviewQueries(), "")
	for name, query := range s.WindowQueries() {
		if strings.Contains(defaultWindowQueries()[name], "$only") {
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
	untilDue        int // overviews until they do
	rulesTrustedFor int // overviews for which the rules are taken to be at work
	allowed         map[string]int64
	counted         float64 // steps and drifts of all clocks
}

// seldomEvery is the number of overviews from one query of these values to the next.
const seldomEvery = 10

// rulesEvery is the number of overviews from one check of the recording rules to the next.
const rulesEvery = 3

// seldomQueries lists the names of the seldom queries.
var seldomQueries = []string{"allowed", "offset", "drift"}

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
	q := map[string]string{"flows": `count(count by ($flow, direction) (fabric_probe_sent_total))`}
	var newest []string
	for _, name := range slices.Sorted(maps.Keys(recorded)) {
		r := recorded[name]
		q[name] = r.series + r.only
		newest = append(newest, fmt.Sprintf("label_replace(max(timestamp(%s)), %q, %q, %q, %q)", r.series, "rule", name, "", ""))
	}
	q["nicRules"] = strings.Join(newest, " or ")
	return q
}

// NICSeries names one recorded series of a NIC.
type NICSeries struct {
	Metric                                   Metric
	NIC, Side, Class, Tier, Plane, Timestamp string
}

// Overview is what every NIC says of itself at a moment.
type Overview struct {
	// Values are what the rules made of the NICs' probes; of Lost and Marked only what is
	// more than 0.
	Values map[NICSeries]float64
	// MissingReason says why there is no overview; "": there is.
	MissingReason string

	alive  map[string]bool
	window Window // hosts, clocks and warnings
}

// lateRules is how old the newest result of a rule may be, in scrapes beyond Lag.
const lateRules = 5

// CountFlows asks how many directed flows are counted.
func (c *Cycle) CountFlows(ctx context.Context) (int, error) {
	answers, _, err := c.s.runQueries(ctx, c.db, c.timedQueries(map[string]string{"flows": c.s.OverviewQueries()["flows"]}))
	n := 0
	for _, v := range answers["flows"] {
		n = int(v.Value)
	}
	return n, err
}

// ReadOverview runs the first step. If it sets MissingReason, there is no overview, and ReadAllFlows has to be
// used. r keeps the seldom queried values from one overview to the next.
func (c *Cycle) ReadOverview(ctx context.Context, r *OverviewCache) (Overview, error) {
	queries := c.s.OverviewQueries()
	delete(queries, "flows")
	if r.rulesTrustedFor > 0 {
		delete(queries, "nicRules")
	}
	asked := r.untilDue <= 0
	if !asked {
		for _, name := range seldomQueries {
			delete(queries, name)
		}
	}
	o := Overview{Values: map[NICSeries]float64{}, window: c.emptyWindow()}
	answers, warnings, err := c.s.runQueries(ctx, c.db, c.timedQueries(queries))
	if err != nil {
		return o, err
	}
	o.window.Warnings = warnings
	each := eachNumber(answers)
	o.alive = c.s.gatherNodes(each, &o.window)
	r.updateClocks(asked, each, o.window.Clocks)
	for name, r := range recorded {
		each(name, func(v Sample) {
			if !math.IsInf(v.Value, 0) {
				l := v.Labels
				o.Values[NICSeries{r.metric, l["nic"], l["side"], l["class"], l["tier"], l["plane"], l["timestamp"]}] = v.Value
			}
		})
	}
	if r.rulesTrustedFor--; r.rulesTrustedFor < 0 {
		if o.MissingReason = c.s.checkRules(answers["nicRules"], c.now.Add(c.offset)); o.MissingReason == "" {
			r.rulesTrustedFor = rulesEvery - 1
		}
	}
	return o, nil
}

// checkRules says what is wrong with the recording rules, by when each had its newest result.
func (s Settings) checkRules(newest []Sample, now time.Time) string {
	at := map[string]time.Time{}
	for _, v := range newest {
		at[v.Labels["rule"]] = time.UnixMilli(int64(v.Value * 1e3))
	}
	for _, name := range slices.Sorted(maps.Keys(recorded)) {
		t, ok := at[name]
		switch old := now.Sub(t); {
		case !ok:
			return "nothing records " + recorded[name].series
		case old > s.Lag+lateRules*s.Scrape:
			return fmt.Sprintf("%s was recorded %s ago", recorded[name].series, old.Round(time.Second))
		}
	}
	return ""
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
	answers := map[string][]Sample{}
	for _, matcher := range only.labelMatchers() {
		queries := map[string]string{}
		for name, q := range c.s.expandQueries(defaultWindowQueries(), matcher) {
			if strings.Contains(defaultWindowQueries()[name], "$only") {
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
