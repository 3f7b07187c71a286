// Package evidence queries the measurements of the probes with PromQL, and returns one
// observation per directed flow.
//
// Every query is for a moment a little in the past (Settings.Lag), so that a later scrape of each
// node must exist. The last numbers of a node that has stopped responding are thus not used.
// Counters on both sides give the direction of a loss. If replies arrive, they carry exact counts.
// If none arrives, the counters of the reflecting node decide.
//
// Prometheus may run on another machine, and fail. Rules:
//
//  1. A cycle needs the results of all its queries. If one fails, the cycle has no evidence.
//  2. The queries of one cycle take at most Settings.Patience. The next cycle queries its own
//     moment, and not the missed one.
//  3. Absent values stay absent. A flow without a series has no measurement of what that series
//     contains.
//  4. A result that the server marks as incomplete is used as far as it goes, and Window.Warnings
//     has a warning.
//  5. Queries use the server's clock, which is measured in every cycle. Observations have their
//     times by this machine's clock. An offset beyond a second is logged. After a clock went
//     back there is no evidence until it has caught up, since its samples of a moment may belong
//     to an earlier moment with the same time.
//  6. A response is read up to a bound. An error names the query and the server, and never
//     credentials.
//  7. While no reply arrives at all, the counters of both nodes decide, by the rules of package window.
//  16. If a NIC dropped packets before it read or verified them (because of a flood, or a host
//     without CPU time), the window of its flows is excluded, since packets that count as lost
//     may have arrived.
//  23. Flows that carry in-band signals (fabric.ClassCSIG) are no evidence. They are not observed, and no flow is expected
//     because of them.
//  24. A node whose agent started during the window, or after it, is no evidence: what is lost until then is not the
//     fabric's, and the agent answers before the windows of that time are judged. Agents of earlier versions do not say
//     when they started. A node that misses a scrape of the window is no evidence either.
package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
	"github.com/graylink/graylink/internal/window"
)

// Sample is one element of an instant vector.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Querier is a PromQL backend. With a *PartialError the samples are valid, and others
// may be missing.
type Querier interface {
	QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error)
}

// Clocked is a Querier whose moments are those of another machine's clock.
type Clocked interface {
	// ClockOffset returns how far that clock is ahead of this machine's now.
	ClockOffset(ctx context.Context) (time.Duration, error)
}

// Sharing is a Querier that can read for several questions of one moment at once.
type Sharing interface {
	SharedQuerier() Querier
}

// PartialError represents the warnings of a server about a result that may be incomplete.
type PartialError struct{ Warnings []string }

func (p *PartialError) Error() string {
	return "incomplete result: " + strings.Join(p.Warnings, "; ")
}

// Settings configures the times of the queries.
type Settings struct {
	// Scrape is the scrape interval of the per-edge series.
	Scrape time.Duration
	// Lag is how far in the past a window ends, or the least time if Arrival measures it.
	Lag time.Duration
	// Arrival measures how late samples arrive. Nil means that Lag does not change.
	Arrival *LagMeter
	// Delay is the window of delays and partial loss; Hard that of total loss.
	Delay, Hard time.Duration
	// Stall is the share of the window that a node's probe loop may have been
	// late before its flows are no evidence.
	Stall float64
	// Patience bounds the time of all queries of one cycle. 0 means no bound.
	Patience time.Duration
	// Parallel is the number of concurrent queries. 0 means one.
	Parallel int
	// Past configures the history that RecallHistory reads.
	Past Past
	// Scope is the part of the fabric that is queried. The zero value is the whole.
	Scope Scope
	// Windows is what the windows of flows are read from, in place of the server. It may be nil.
	Windows WindowSource
	// Override replaces queries, by name.
	Override map[string]string
	// Observe is called with the duration and the error of each query. It may be nil.
	// Several goroutines call it if Parallel is above 1.
	Observe func(query string, took time.Duration, err error)
}

// defaultCycle is the time between two cycles, unless the settings have a scrape interval.
const defaultCycle = time.Second

// CycleInterval returns the time between two cycles: the scrape interval, or one second.
func (s *Settings) CycleInterval() time.Duration { return cmp.Or(s.Scrape, defaultCycle) }

// SettingsFor returns the settings for a scrape interval. Windows are multiples of it.
func SettingsFor(scrape time.Duration) Settings {
	return Settings{Scrape: scrape, Lag: scrape + max(300*time.Millisecond, scrape/10), Delay: 2 * scrape, Hard: scrape, Stall: 0.075, Patience: max(5*time.Second, scrape), Past: defaultPast}
}

// DefaultSettings fits a one-second scrape.
func DefaultSettings() Settings { return SettingsFor(time.Second) }

// PromDuration writes a duration as PromQL has it, in milliseconds. It is never 0, of which PromQL has no range.
func PromDuration(d time.Duration) string {
	return strconv.FormatInt(max(d.Milliseconds(), 1), 10) + "ms"
}

// AnyOf returns a quoted regular expression that matches some names.
func AnyOf(names []string) string {
	patterns := make([]string, len(names))
	for i, n := range names {
		patterns[i] = regexp.QuoteMeta(n)
	}
	return strconv.Quote(strings.Join(patterns, "|"))
}

// rangeSelector returns the range that holds the scrapes of a window. It is one interval longer,
// since n intervals lie between n+1 scrapes.
func (s Settings) rangeSelector(window time.Duration) string {
	return "[" + PromDuration(window+s.Scrape) + "]"
}

const flowLabels = "src, dst, flow, class, tier, plane"

// WindowQueries lists the questions by name, as PromQL: the overridden ones as they are
// asked instead. All of them hold for Prometheus 2.42 and later. In questions as they
// are written $delay, $hard, $stall and $seen stand for range selectors, $flow for the
// labels of a flow, $seconds for the length of the delay window $scrapes for its scrapes and $young for the age of an
// agent that started during it, or after it; $only for matchers
// of the queried flows, if not all flows are queried, or of the planes of the scope.
func (s Settings) WindowQueries() map[string]string {
	return s.expandQueries(defaultWindowQueries(), "")
}

// expandQueries returns the queries about the flows that a matcher selects, or about all flows for "".
func (s Settings) expandQueries(q map[string]string, only string) map[string]string {
	r := s.placeholderReplacer(only)
	for name := range q {
		if other, ok := s.Override[name]; ok {
			q[name] = other
		}
		q[name] = r.Replace(q[name])
	}
	return q
}

func (s Settings) placeholderReplacer(only string) *strings.Replacer {
	if planes := s.Scope.planeMatcher(); planes != "" {
		only = strings.TrimSuffix(planes+", "+only, ", ")
	}
	pairs := []string{"$only", only}
	if only == "" {
		pairs = []string{"{$only}", "", ", $only", "", "$only, ", "", "$only", ""}
	}
	return strings.NewReplacer(append(pairs, "$late", strconv.FormatFloat(s.stallLimit(), 'g', -1, 64), "$search", "["+PromDuration(s.Past.Search)+":30s]", "$calm", "["+PromDuration(2*calmAround)+":10s]",
		"$seen", "["+PromDuration(s.Delay+s.Scrape+s.Scrape/2)+"]", "$young", strconv.FormatFloat((s.Delay+s.Lag+2*s.Scrape).Seconds(), 'g', -1, 64), "$scrapes", strconv.FormatInt(int64(s.Delay/s.Scrape)+1, 10),
		"$delay", s.rangeSelector(s.Delay), "$hard", s.rangeSelector(s.Hard), "$stall", s.rangeSelector(s.Delay+s.Lag), "$flow", flowLabels,
		"$seconds", strconv.FormatFloat(s.Delay.Seconds(), 'g', -1, 64))...)
}

// defaultWindowQueries returns the default queries. They query only the quantiles that the inference reads, since each one
// costs as much as all counters together.
func defaultWindowQueries() map[string]string {
	q := map[string]string{
		"stalled":  `max by (nic) (increase(graylink_node_stalled_seconds_total$stall))`,
		"unread":   `max by (nic) (increase(fabric_nic_unread_packets_total{nic!=""}$stall)) > 0`,
		"forged":   `max by (nic, from) (rate(fabric_nic_forged_packets_total{nic!=""}$stall)) > 0`,
		"refused":  `max by (nic, from, sid) (max_over_time(fabric_nic_refused_flows{nic!=""}$stall)) > 0`,
		"unseen":   `max by (nic) (count_over_time(graylink_node_stalled_seconds_total$seen)) < $scrapes`,
		"started":  `max by (instance) (graylink_node_uptime_seconds) < $young`,
		"age":      `time() - max by (nic) (timestamp(graylink_node_stalled_seconds_total))`,
		"clock":    `max by (clock) (fabric_clock_error_bound_seconds)`,
		"allowed":  `max by (clock) (fabric_clock_asymmetry_allowance_seconds)`,
		"state":    `max by (clock, state) (fabric_clock_state) == 1`,
		"steps":    `max by (clock) (fabric_clock_steps_total)`,
		"drifts":   `max by (clock) (fabric_clock_drift_changes_total)`,
		"offset":   `max by (clock) (fabric_clock_offset_seconds)`,
		"drift":    `max by (clock) (fabric_clock_drift_ratio)`,
		"sent":     `sum by ($flow, direction) (rate(fabric_probe_sent_total{$only}$delay)) * $seconds`,
		"lost":     `sum by ($flow, direction) (rate(fabric_probe_lost_total{$only}$delay)) * $seconds`,
		"back":     `(sum by ($flow) (rate(fabric_probe_acked_total{$only}$delay)) + sum by ($flow) (rate(fabric_probe_late_total{$only}$delay))) * $seconds`,
		"ecn":      `sum by ($flow, direction) (rate(fabric_probe_ecn_marked_total{$only}$delay)) * $seconds`,
		"hardSent": `sum by ($flow) (irate(fabric_probe_sent_total{direction="forward", $only}$hard))`,
		"hardGot":  `sum by ($flow) (irate(fabric_probe_received_total{$only}$hard))`,
		"hardBack": `sum by ($flow) (irate(fabric_probe_acked_total{$only}$hard)) + sum by ($flow) (irate(fabric_probe_late_total{$only}$hard))`,
		"count":    `sum by ($flow, direction, timestamp) (histogram_count(rate(fabric_probe_owd_seconds{$only}$delay))) * $seconds`,
	}
	for name, phi := range map[string]string{"p50": "0.5", "p90": "0.9", "p99": "0.99"} {
		q[name] = `histogram_quantile(` + phi + `, sum by ($flow, direction, timestamp) (rate(fabric_probe_owd_seconds{$only}$delay)))`
	}
	return q
}

// CheckOverride returns an error if a query cannot replace the one with a name.
func (s Settings) CheckOverride(name, query string) error {
	known := defaultWindowQueries()
	maps.Copy(known, defaultHistoryQueries())
	maps.Copy(known, defaultOverviewQueries())
	if known[name] == "" {
		return fmt.Errorf("unknown query: want one of %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	if _, err := parser.NewParser(parser.Options{}).ParseExpr(s.placeholderReplacer("").Replace(query)); err != nil {
		return fmt.Errorf("invalid PromQL: %w", err)
	}
	return nil
}

// Window represents the evidence of one moment: the span over which samples are summed up, and its observations.
type Window struct {
	At           time.Time
	Observations []*fabric.Observation
	// Hosts are nodes that were starved or did not answer, with the reason.
	Hosts map[string]string
	// Unread are the NICs that dropped packets before they read or verified them:
	// what is lost on the flows that end there may have arrived.
	Unread map[string]bool
	// Floods are the NICs that get many packets with a forged HMAC.
	Floods []Flood
	// Refusals are the answers of switches that they do not know an identifier of a chosen path.
	Refusals []Refusal
	// Clocks has the states of the NICs' clocks, as their nodes report them.
	Clocks map[string]Clock
	// Sent is the number of probes per second asked of the whole fabric.
	Sent float64
	// Flows is the number of directed flows that are counted at all, BySource by the NIC that
	// probes, and OwnFlows of those among them that the scope is responsible for. Temporary flows are not counted.
	Flows    int
	OwnFlows int
	BySource map[string]int
	// ClockOffset is how far the server's clock is ahead of this machine's.
	ClockOffset time.Duration
	// Lag is how far in the past the window ended.
	Lag time.Duration
	// NodeBaselines are what nodes have as normal for flows, if the windows came from the nodes.
	NodeBaselines map[fabric.Flow]NodeBaseline
	// Unanswered are nodes that were asked for windows and did not answer.
	Unanswered map[string]bool
	// Warnings are the questions whose answer the server calls incomplete, with what
	// it says.
	Warnings []string
}

// Refusal is the answer of a switch to packets of a NIC, that it does not know an identifier of their path.
type Refusal struct {
	NIC  string
	From netip.Addr // the switch's address
	SID  srv6.SID
}

// Flood is a NIC that gets packets with a forged HMAC from one source address.
type Flood struct {
	NIC       string  `json:"nic"`
	From      string  `json:"from"`
	PerSecond float64 `json:"packets_per_second"`
	// Unread: more than the NIC could read or verify, so that its flows are no
	// evidence.
	Unread bool `json:"unread"`
}

// String names the finding.
func (f Flood) String() string {
	s := fmt.Sprintf("NIC %s is flooded by packets with forged HMAC from %s (%.0f a second)", f.NIC, f.From, f.PerSecond)
	if f.Unread {
		s += "; its flows are no evidence"
	}
	return s
}

// floodFrom is how many forged packets a second make a flood. Fewer happen while
// keys are being replaced.
const floodFrom = 100

// Clock represents the clock of a NIC, as its node reports it. Nil means that a value is absent.
type Clock struct {
	State         string
	Bound         *int64   // of its error, with what its paths may differ by; nanoseconds
	Steps, Drifts *float64 // counted
	Offset        *float64 // seconds to the frame
	Drift         *float64 // what the clock gains on the frame
}

// delaysUsable reports whether delays by the clock mean something. In holdover they
// do: the bound says how far. A clock without a state has no frame to be in.
func (c Clock) delaysUsable() bool { return c.State != "converging" && c.State != "lost" }

type flowKey struct {
	edge  fabric.Flow
	class string
}

// timedQuery is one of the questions of a moment.
type timedQuery struct {
	name, query string
	at          time.Time
}

// runQueries asks all questions, Parallel at a time, and gives up at the first that fails.
func (s Settings) runQueries(ctx context.Context, db Querier, questions []timedQuery) (answers map[string][]Sample, warnings []string, err error) {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	if s, ok := db.(Sharing); ok {
		db = s.SharedQuerier()
	}
	var mu sync.Mutex
	answers = make(map[string][]Sample, len(questions))
	one := func(q timedQuery) {
		began := time.Now()
		v, failed := db.QueryInstant(ctx, q.query, q.at)
		if s.Observe != nil {
			s.Observe(q.name, time.Since(began), failed)
		}
		mu.Lock()
		defer mu.Unlock()
		var partial *PartialError
		switch {
		case errors.As(failed, &partial):
			warnings = append(warnings, q.name+": "+strings.Join(partial.Warnings, "; "))
		case failed != nil:
			if err == nil { // those after it failed because of it
				err = fmt.Errorf("query %q: %w", q.name, failed)
			}
			giveUp()
			return
		}
		answers[q.name] = append(answers[q.name], s.Scope.samplesWithin(v)...)
	}
	waiting := make(chan timedQuery)
	var wg sync.WaitGroup
	for range max(1, s.Parallel) {
		wg.Go(func() {
			for q := range waiting {
				one(q)
			}
		})
	}
	for _, q := range questions {
		if ctx.Err() != nil {
			break
		}
		waiting <- q
	}
	close(waiting)
	wg.Wait()
	slices.Sort(warnings)
	if err == nil {
		err = ctx.Err()
	}
	return answers, warnings, err
}

// eachNumber goes through what was answered to a question.
func eachNumber(answers map[string][]Sample) (each func(name string, take func(Sample))) {
	return func(name string, take func(Sample)) {
		for _, v := range answers[name] {
			if !math.IsNaN(v.Value) {
				take(v)
			}
		}
	}
}

// ReadWindow evaluates the questions for the window that ends Lag before now.
func ReadWindow(ctx context.Context, db Querier, s Settings, now time.Time) (Window, error) {
	ctx, cancel := s.WithPatience(ctx)
	defer cancel()
	c, err := BeginCycle(ctx, db, s, now)
	if err != nil {
		return c.emptyWindow(), err
	}
	return c.ReadAllFlows(ctx)
}

// WithPatience returns a context that bounds the queries of one cycle.
func (s Settings) WithPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.Patience > 0 {
		return context.WithTimeout(ctx, s.Patience)
	}
	return context.WithCancel(ctx)
}

// Cycle asks what one moment's inference needs: everything at once, or in two steps, first
// what every NIC says of itself and then the flows that this gives reason to look at.
type Cycle struct {
	s       Settings
	db      Querier
	now, at time.Time
	offset  time.Duration
}

// BeginCycle measures the server's clock. The context bounds what it asks, as that of every
// later question bounds those. It fails with ErrSameWindow if the window was evaluated before.
func BeginCycle(ctx context.Context, db Querier, s Settings, now time.Time) (*Cycle, error) {
	s.Lag = s.CurrentLag()
	c := &Cycle{s: s, db: db, now: now, at: now.Add(-s.Lag)}
	if s.Arrival != nil {
		if err := s.Arrival.beginWindow(c.at); err != nil {
			return c, err
		}
	}
	if clock, ok := db.(Clocked); ok {
		var err error
		if c.offset, err = clock.ClockOffset(ctx); err != nil {
			return c, fmt.Errorf("cannot read the server's time: %w", err)
		}
	}
	return c, nil
}

func (c *Cycle) emptyWindow() Window {
	return Window{At: c.at, Hosts: map[string]string{}, Unread: map[string]bool{}, Clocks: map[string]Clock{}, ClockOffset: c.offset, Lag: c.s.Lag}
}

// presentQueries are of the present moment, and not of the end of the window: a node reports a stall after it, and what
// selects the flows to query may be newer.
var presentQueries = map[string]bool{"age": true, "started": true, "nodeStarted": true, "stalled": true, "unread": true, "forged": true, "refused": true, "flows": true, "judgedFlows": true, "nicHealthy": true, "nicMoved": true, "nodeAge": true, "nodeMoved": true, "nodeStalled": true, "nodeLosses": true}

// timedQuery returns a query with its moment by the server's clock.
func (c *Cycle) timedQuery(name, query string) timedQuery {
	when := c.at
	if presentQueries[name] {
		when = c.now
	}
	return timedQuery{name, query, when.Add(c.offset)}
}

// timedQueries returns some queries, each with its moment by the server's clock.
func (c *Cycle) timedQueries(queries map[string]string) (out []timedQuery) {
	for name, query := range queries {
		out = append(out, c.timedQuery(name, query))
	}
	return out
}

// ReadAllFlows queries every flow. It fails if a query fails, and if the windows of too many nodes would have to be asked for.
func (c *Cycle) ReadAllFlows(ctx context.Context) (Window, error) {
	w := c.emptyWindow()
	queries := c.s.WindowQueries()
	if c.s.Windows != nil {
		maps.DeleteFunc(queries, func(name, _ string) bool { return isAboutFlows(name) })
	}
	answers, warnings, err := c.s.runQueries(ctx, c.db, c.timedQueries(queries))
	if err != nil {
		return w, err
	}
	w.Warnings = warnings
	each := eachNumber(answers)
	c.s.Arrival.addAges(c.now, agesOfNodes(each, "age"))
	alive := c.s.gatherNodes(each, &w)
	flows := gatherFlows(each)
	if c.s.Windows != nil {
		nodes := map[string]bool{}
		for nic := range alive {
			nodes[fabric.OwnerOf(nic)] = true
		}
		if len(nodes) > manyNodes {
			return w, fmt.Errorf("a cycle cannot ask all of %d nodes for the windows of their flows: nodes that publish fabric_nic_flows are expected where there are more than %d", len(nodes), manyNodes)
		}
		flows = c.readWindows(ctx, nil, nodes, &w)
	}
	c.s.gatherObservations(flows, alive, nil, &w)
	return w, nil
}

// isAboutFlows reports whether a query of WindowQueries is about single flows.
func isAboutFlows(name string) bool { return strings.Contains(defaultWindowQueries()[name], "$only") }

// stallLimit returns for how many seconds of a window a node's probe loop may be late.
func (s Settings) stallLimit() float64 { return s.Stall * (s.Delay + s.Lag).Seconds() }

// agesOfNodes returns how old the newest sample of each node is, or of each NIC, by the answers to a query.
func agesOfNodes(each func(string, func(Sample)), query string) (seconds []float64) {
	each(query, func(v Sample) { seconds = append(seconds, v.Value) })
	return seconds
}

// gatherNodes takes what nodes say of themselves and of their clocks; alive are the NICs whose
// agent answers.
func (s Settings) gatherNodes(each func(string, func(Sample)), w *Window) (alive map[string]bool) {
	alive = map[string]bool{}
	each("age", func(v Sample) {
		if v.Value <= s.Lag.Seconds() {
			alive[v.Labels["nic"]] = true
		}
	})
	s.gatherHosts(each, w)
	gatherClocks(each, w.Clocks)
	return alive
}

// awayForAWhile is why a node is no evidence whose agent ended and started again (rule 24).
const awayForAWhile = "its agent did not answer for a part of the window"

// gatherHosts takes what nodes say of their hosts.
func (s Settings) gatherHosts(each func(string, func(Sample)), w *Window) {
	for _, name := range []string{"stalled", "nodeStalled"} {
		each(name, func(v Sample) {
			node := v.Labels["instance"]
			if name == "stalled" {
				node = fabric.OwnerOf(v.Labels["nic"])
			}
			if v.Value > s.stallLimit() {
				w.Hosts[node] = fmt.Sprintf("its probe loop was late by %.2f s", v.Value)
			}
		})
	}
	for _, name := range []string{"started", "nodeStarted", "unseen", "nodeUnseen"} {
		each(name, func(v Sample) {
			node := v.Labels["instance"]
			if name == "unseen" {
				node = fabric.OwnerOf(v.Labels["nic"])
			}
			if w.Hosts[node] == "" {
				w.Hosts[node] = awayForAWhile
			}
		})
	}
	each("unread", func(v Sample) { w.Unread[v.Labels["nic"]] = true })
	each("forged", func(v Sample) {
		if v.Value >= floodFrom {
			w.Floods = append(w.Floods, Flood{NIC: v.Labels["nic"], From: v.Labels["from"], PerSecond: v.Value, Unread: w.Unread[v.Labels["nic"]]})
		}
	})
	each("refused", func(v Sample) {
		from, err := netip.ParseAddr(v.Labels["from"])
		sid, wrong := strconv.ParseUint(v.Labels["sid"], 16, 16)
		if err == nil && wrong == nil {
			w.Refusals = append(w.Refusals, Refusal{NIC: v.Labels["nic"], From: from, SID: srv6.SID(sid)})
		}
	})
	slices.SortFunc(w.Floods, func(a, b Flood) int { return cmp.Or(cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.From, b.From)) })
}

// gatherObservations returns the observations of flows. Results of a configured query about flows that are not in
// only are dropped. Nil means all flows. Flows that carry in-band signals are neither observed nor counted (rule 23).
func (s Settings) gatherObservations(flows map[flowKey]*window.Counts, alive map[string]bool, only func(fabric.Flow) bool, w *Window) {
	maps.DeleteFunc(flows, func(k flowKey, _ *window.Counts) bool {
		return k.class == fabric.ClassCSIG || only != nil && !only(k.edge)
	})
	w.BySource = map[string]int{}
	for k, c := range flows {
		if !k.edge.IsTemporary() {
			w.Flows += c.CountedDirections()
			w.BySource[k.edge.Src] += c.CountedDirections()
			if s.Scope.Part.OwnsFlow(k.edge) {
				w.OwnFlows += c.CountedDirections()
			}
		}
		for _, nic := range []string{k.edge.Src, k.edge.Dst} {
			if node := fabric.OwnerOf(nic); !alive[nic] && (w.Hosts[node] == "" || w.Hosts[node] == awayForAWhile) {
				w.Hosts[node] = "its agent does not answer"
			}
		}
		if c.LastSent != nil {
			w.Sent += *c.LastSent
		}
	}
	for k, c := range flows {
		for _, reply := range []bool{false, true} {
			if o := c.Observation(k.edge, reply, w.At, s.Delay); o != nil {
				addClocks(o, w.Clocks)
				o.Unread = w.Unread[o.Src] || w.Unread[o.Dst]
				o.HostSuspect = o.Unread || w.Hosts[fabric.OwnerOf(o.Src)] != "" || w.Hosts[fabric.OwnerOf(o.Dst)] != ""
				w.Observations = append(w.Observations, o)
			}
		}
	}
}

func gatherClocks(each func(string, func(Sample)), clocks map[string]Clock) {
	for _, q := range []struct {
		name string
		set  func(*Clock, Sample)
	}{
		{"clock", func(c *Clock, v Sample) { c.Bound = new(int64); *c.Bound = int64(v.Value * 1e9) }},
		{"allowed", func(c *Clock, v Sample) {
			if c.Bound != nil {
				*c.Bound += int64(v.Value * 1e9)
			}
		}},
		{"state", func(c *Clock, v Sample) { c.State = v.Labels["state"] }},
		{"steps", func(c *Clock, v Sample) { c.Steps = &v.Value }},
		{"drifts", func(c *Clock, v Sample) { c.Drifts = &v.Value }},
		{"offset", func(c *Clock, v Sample) { c.Offset = &v.Value }},
		{"drift", func(c *Clock, v Sample) { c.Drift = &v.Value }},
	} {
		each(q.name, func(v Sample) {
			c := clocks[v.Labels["clock"]]
			q.set(&c, v)
			clocks[v.Labels["clock"]] = c
		})
	}
}

// directions are the values of the label direction, as window.Counts has them.
var directions = [window.Directions]string{"forward", "reverse"}

// gatherFlows returns the counts of flows.
func gatherFlows(each func(string, func(Sample))) map[flowKey]*window.Counts {
	flows := map[flowKey]*window.Counts{}
	of := func(l map[string]string) *window.Counts {
		n, _ := strconv.Atoi(l["flow"])
		k := flowKey{fabric.Flow{Src: l["src"], Dst: l["dst"], Number: n}, l["class"]}
		c := flows[k]
		if c == nil {
			c = &window.Counts{Class: l["class"], Plane: l["plane"]}
			c.Tier, _ = strconv.Atoi(l["tier"])
			flows[k] = c
		}
		return c
	}
	for name, pick := range map[string]func(*window.Counts) *[window.Directions]*float64{
		"sent": func(c *window.Counts) *[window.Directions]*float64 { return &c.Sent },
		"lost": func(c *window.Counts) *[window.Directions]*float64 { return &c.Lost },
		"ecn":  func(c *window.Counts) *[window.Directions]*float64 { return &c.ECN },
	} {
		each(name, func(v Sample) {
			if d := slices.Index(directions[:], v.Labels["direction"]); d >= 0 {
				pick(of(v.Labels))[d] = &v.Value
			}
		})
	}
	for name, pick := range map[string]func(*window.Counts) **float64{
		"hardSent": func(c *window.Counts) **float64 { return &c.LastSent },
		"hardGot":  func(c *window.Counts) **float64 { return &c.LastReceived },
		"hardBack": func(c *window.Counts) **float64 { return &c.LastReplies },
		"back":     func(c *window.Counts) **float64 { return &c.Replies },
	} {
		each(name, func(v Sample) { *pick(of(v.Labels)) = &v.Value })
	}
	change := func(l map[string]string, set func(*window.Distribution)) {
		d := slices.Index(directions[:], l["direction"])
		if d < 0 {
			return
		}
		c := of(l)
		if c.Delays[d] == nil {
			c.Delays[d] = map[string]window.Distribution{}
		}
		dist := c.Delays[d][l["timestamp"]]
		set(&dist)
		c.Delays[d][l["timestamp"]] = dist
	}
	each("count", func(v Sample) { change(v.Labels, func(d *window.Distribution) { d.Count = v.Value }) })
	for name, quantile := range map[string]func(*window.Distribution) **int64{
		"p50": func(d *window.Distribution) **int64 { return &d.P50 },
		"p90": func(d *window.Distribution) **int64 { return &d.P90 },
		"p99": func(d *window.Distribution) **int64 { return &d.P99 },
	} {
		each(name, func(v Sample) {
			if !math.IsInf(v.Value, 0) {
				ns := int64(v.Value * 1e9)
				change(v.Labels, func(d *window.Distribution) { *quantile(d) = &ns })
			}
		})
	}
	return flows
}

// addClocks fills in what the clocks of both ends do to an observation.
func addClocks(o *fabric.Observation, clocks map[string]Clock) {
	a, b := clocks[o.Src], clocks[o.Dst]
	if a.Bound != nil && b.Bound != nil {
		bound := *a.Bound + *b.Bound
		o.ClockErrorNS = &bound
	}
	o.ClockSuspect = !a.delaysUsable() || !b.delaysUsable()
}
