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

// Rules of asking in two steps:
//
//  11. The overview is of every NIC in every cycle: what its node says of it, and what
//     recording rules (rules/aggregates.rules.yaml) make of all its probes.
//  12. It is asked of the present moment, and not of Lag ago: it decides whom to ask, and nothing else.
//  13. Rules that are missing, or whose newest result is old, make no overview: a NIC of which
//     nothing new is said is not quiet.
//  14. What is as it usually is is not told, each row being paid for by both sides. A NIC without
//     a ratio has none lost or marked where its delays are told, and the rule is at work; a
//     clock without a state, or a count, is locked, and counted nothing, where its bound is
//     told; a node that answers without a stall has none.
//  15. What seldom changes, what paths may differ by and where clocks are, is asked about in one
//     cycle of ten, and in the next one after a clock counted something or is new. A clock
//     of which it is not known what its paths may differ by is taken for the worst.

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
	only   string // what of it is told
}{
	"nicP50":      {MedianDelay, "fabric:nic_owd_seconds:p50_2s", ""},
	"nicP99":      {TailDelay, "fabric:nic_owd_seconds:p99_2s", ""},
	"nicLost":     {Lost, "fabric:nic_probe_lost:ratio_2s", " > 0"},
	"nicMarked":   {Marked, "fabric:nic_probe_ecn_marked:ratio_2s", " > 0"},
	"nicAnswered": {Answered, "fabric:nic_probe_answered:ratio_2s", ""},
}

// OverviewQueries lists the questions of the overview by name, as Queries does. "nicRules" tells
// by the label rule when each of those with a recorded series had its newest result, "flows" is
// asked once. What nodes say of themselves and of their clocks has the names that it has in
// Queries, and is asked in fewer words (rule 14).
func (s Settings) OverviewQueries() map[string]string {
	q := s.written(defaultOverviewQueries(), "")
	for name, query := range s.Queries() {
		if strings.Contains(defaultQueries()[name], "$only") {
			continue
		}
		switch name {
		case "stalled":
			query = "(" + query + ") > " + strconv.FormatFloat(s.stalled(), 'g', -1, 64)
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

// Seldom is what an overview asks about seldom, between those that do (rule 15).
type Seldom struct {
	due     int // overviews until they do
	fine    int // overviews for which the rules are taken to be at work
	allowed map[string]int64
	counted float64 // steps and drifts of all clocks
}

// seldomEvery is in one of how many overviews it is asked about.
const seldomEvery = 10

// rulesEvery is in one of how many overviews it is asked whether the rules are at work.
const rulesEvery = 3

// seldomAsked are the names of those questions.
var seldomAsked = []string{"allowed", "offset", "drift"}

// take keeps what was told, or puts in what was told before.
func (r *Seldom) take(asked bool, each func(string, func(Sample)), clocks map[string]Clock) {
	first := r.allowed == nil
	if asked {
		r.due, r.allowed = seldomEvery, map[string]int64{}
		each("allowed", func(v Sample) { r.allowed[v.Labels["clock"]] = int64(v.Value * 1e9) })
	}
	r.due--
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
			r.due = 0
		case !asked:
			*c.Bound += allowed
		}
		clocks[nic] = c
	}
	if counted != r.counted && !first {
		r.due = 0
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

// Group names one recorded series of a NIC.
type Group struct {
	Metric                                   Metric
	NIC, Side, Class, Tier, Plane, Timestamp string
}

// Overview is what every NIC says of itself at a moment.
type Overview struct {
	// Values are what the rules made of the NICs' probes; of Lost and Marked only what is
	// more than 0.
	Values map[Group]float64
	// Missing says why there is no overview; "": there is.
	Missing string

	alive map[string]bool
	said  Window // hosts, clocks and warnings
}

// lateRules is how old the newest result of a rule may be, in scrapes beyond Lag.
const lateRules = 5

// Count asks how many directed flows are counted.
func (c *Cycle) Count(ctx context.Context) (int, error) {
	answers, _, err := c.s.fetch(ctx, c.db, c.questions(map[string]string{"flows": c.s.OverviewQueries()["flows"]}))
	n := 0
	for _, v := range answers["flows"] {
		n = int(v.Value)
	}
	return n, err
}

// Overview is the first step. Where Missing says that there is none, Everything is what can be
// asked. What seldom is asked about is kept in r from one overview to the next.
func (c *Cycle) Overview(ctx context.Context, r *Seldom) (Overview, error) {
	queries := c.s.OverviewQueries()
	delete(queries, "flows")
	if r.fine > 0 {
		delete(queries, "nicRules")
	}
	asked := r.due <= 0
	if !asked {
		for _, name := range seldomAsked {
			delete(queries, name)
		}
	}
	o := Overview{Values: map[Group]float64{}, said: c.window()}
	answers, warnings, err := c.s.fetch(ctx, c.db, c.questions(queries))
	if err != nil {
		return o, err
	}
	o.said.Warnings = warnings
	each := numbers(answers)
	o.alive = c.s.nodes(each, &o.said)
	r.take(asked, each, o.said.Clocks)
	for name, r := range recorded {
		each(name, func(v Sample) {
			if !math.IsInf(v.Value, 0) {
				l := v.Labels
				o.Values[Group{r.metric, l["nic"], l["side"], l["class"], l["tier"], l["plane"], l["timestamp"]}] = v.Value
			}
		})
	}
	if r.fine--; r.fine < 0 {
		if o.Missing = c.s.missing(answers["nicRules"], c.now.Add(c.offset)); o.Missing == "" {
			r.fine = rulesEvery - 1
		}
	}
	return o, nil
}

// missing says what is wrong with the recording rules, by when each had its newest result.
func (s Settings) missing(newest []Sample, now time.Time) string {
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

// Hosts are the nodes that are starved, with the reason.
func (o *Overview) Hosts() map[string]string { return o.said.Hosts }

// Unread reports whether a NIC dropped packets before it read or verified them.
func (o *Overview) Unread(nic string) bool { return o.said.Unread[nic] }

// Alive reports whether the agent of a NIC answers.
func (o *Overview) Alive(nic string) bool { return o.alive[nic] }

// Related reports whether delays by the clock of a NIC mean something.
func (o *Overview) Related(nic string) bool { return o.said.Clocks[nic].related() }

// Selection says which flows are asked about: those from some NICs and those to some, in both
// directions each.
type Selection struct{ Sources, Destinations map[string]bool }

// Has reports whether a flow is asked about.
func (s Selection) Has(e fabric.Edge) bool { return s.Sources[e.Src] || s.Destinations[e.Dst] }

// matchers select what a selection is made of.
func (s Selection) matchers() (out []string) {
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

// Flows is the second step: it asks about some flows, after an overview.
func (c *Cycle) Flows(ctx context.Context, o *Overview, only Selection) (Window, error) {
	w := o.said
	w.Hosts = maps.Clone(w.Hosts)
	answers := map[string][]Sample{}
	for _, matcher := range only.matchers() {
		queries := map[string]string{}
		for name, q := range c.s.written(defaultQueries(), matcher) {
			if strings.Contains(defaultQueries()[name], "$only") {
				queries[name] = q
			}
		}
		some, warnings, err := c.s.fetch(ctx, c.db, c.questions(queries))
		if err != nil {
			return w, err
		}
		for name, v := range some {
			answers[name] = append(answers[name], v...)
		}
		w.Warnings = append(slices.Clone(w.Warnings), warnings...)
	}
	c.s.flows(numbers(answers), o.alive, only.Has, &w)
	return w, nil
}
