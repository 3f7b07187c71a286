// Package report makes the report of one verdict: what happened, when, who was affected, the evidence, causes and actions. The page of a
// verdict, its file for a ticket, Markdown and JSON all show the same Report.
//
// Rules:
//
//  1. A value that is not known is absent, and where it would stand is the reason. A query that fails takes nothing else with it.
//  2. Each number that was read from Prometheus names its query.
//  3. The queries for one report are bounded in their number, in their time and in the flows that they select. Lists are bounded, and
//     what is left out is counted.
//  4. A report is of the verdict's own time: from some minutes before it until some minutes after it, so that the report of a closed
//     verdict stays the same for as long as Prometheus keeps the data. It is kept once that time is over. A report of an open verdict is
//     kept for some seconds, so that many viewers cost as much as one.
//  5. What a report has of the configuration is listed in Settings. It has no address, file or credential.
package report

import (
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
)

// format is the version of the JSON form. It changes when a key is renamed or removed.
const format = 1

// Report is what is known of one verdict.
type Report struct {
	// Format is the version of this form.
	Format int `json:"report_format"`
	// Verdict is the verdict with its incident, as /api/v1/verdicts/ID has it.
	Verdict incident.Incident `json:"verdict"`
	Span    Span              `json:"span"`
	// Grain says what the delays are of: single flows, or all flows between two leaves where Prometheus has no more.
	Grain string `json:"grain"`
	// Delays are the distributions of the one-way delay of the affected flows.
	Delays []Distribution `json:"delays"`
	// Affected are the most affected flows, and Healthy flows near them that are healthy.
	Affected []Flow `json:"affected_flows"`
	Healthy  []Flow `json:"healthy_flows"`
	// AffectedTotal and HealthyTotal count also the flows that are left out.
	AffectedTotal int `json:"affected_flows_total"`
	HealthyTotal  int `json:"healthy_flows_total"`
	// Lines are how delay and loss went.
	Lines []Line `json:"lines"`
	// Causes are the causes that were found, with the series that show them.
	Causes []Cause `json:"causes"`
	// Queries are those that were asked, and those that answer the verdict's own numbers.
	Queries []Query `json:"queries"`
	// Unknown has the reasons why parts of the report are missing.
	Unknown  []string `json:"unknown"`
	Settings Settings `json:"settings"`
	// Complete means that the verdict is closed, and that all of the span was over when Prometheus was asked.
	Complete bool `json:"complete"`
}

// Span is the time of a report.
type Span struct {
	// From and Until are the ends of the time lines, StepSeconds apart.
	From        time.Time `json:"from"`
	Until       time.Time `json:"until"`
	StepSeconds float64   `json:"step_seconds"`
	// Began and Ended are those of the incident. Ended is the last moment that was asked about while it is open.
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
}

// What the delays of a report are of.
const (
	grainFlows    = "flow"
	grainLeaves   = "leaf pair"
	grainRecorded = "leaf pair, recorded"
)

// Distribution is how long packets of the affected flows took.
type Distribution struct {
	// When is before or during.
	When  string    `json:"when"`
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	Query string    `json:"query"`
	// Count is the number of packets, as far as Prometheus' extrapolation has it.
	Count float64 `json:"count"`
	// P50NS, P90NS and P99NS are quantiles, as Prometheus' histogram_quantile has them.
	P50NS *float64 `json:"p50_ns,omitempty"`
	P90NS *float64 `json:"p90_ns,omitempty"`
	P99NS *float64 `json:"p99_ns,omitempty"`
	// Buckets are the buckets of the histogram. They are empty if there are only recorded quantiles.
	Buckets []Bucket `json:"buckets"`
	// Unknown is the reason why there is no distribution.
	Unknown string `json:"unknown,omitempty"`
}

// Bucket is the number of packets whose delay was above FromNS, and ToNS at most.
type Bucket struct {
	FromNS float64 `json:"from_ns"`
	ToNS   float64 `json:"to_ns"`
	Count  float64 `json:"count"`
}

// Flow is one directed flow, as it was when the verdict opened or was narrowed last.
type Flow struct {
	Flow string `json:"flow"`
	Src  string `json:"src"`
	Dst  string `json:"dst"`
	// What was measured then. It is absent where nothing was, or where it is not kept any more.
	P50NS         *int64   `json:"p50_ns,omitempty"`
	P99NS         *int64   `json:"p99_ns,omitempty"`
	BaselineP50NS *int64   `json:"baseline_p50_ns,omitempty"`
	BaselineP99NS *int64   `json:"baseline_p99_ns,omitempty"`
	LossRatio     *float64 `json:"loss_ratio,omitempty"`
	// Before and During are medians of the time lines.
	Before Medians `json:"before"`
	During Medians `json:"during"`
	// Near says what a healthy flow has in common with the affected ones.
	Near string `json:"near,omitempty"`
	// Path are the hops, from the sending NIC on. It is empty if the path is not known.
	Path      []Hop            `json:"path"`
	PathState fabric.PathState `json:"path_state"`
	leaves    [2]string        // of its ends
	id        fabric.Flow
}

// Medians are those of the moments of a time line within a span.
type Medians struct {
	P50NS     *float64 `json:"p50_ns,omitempty"`
	P99NS     *float64 `json:"p99_ns,omitempty"`
	LossRatio *float64 `json:"loss_ratio,omitempty"`
}

// Hop is one directed link of a path.
type Hop struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Named is true if the verdict's element has this direction of the link.
	Named bool `json:"named"`
	// AddedDelayNS is what this direction adds. It is absent if it is not known. Bound is true if it adds that at most, since a flow
	// that crosses it is no later than that.
	AddedDelayNS *int64 `json:"added_delay_ns,omitempty"`
	Bound        bool   `json:"bound,omitempty"`
	// Flows is the number of flows with evidence that crossed it when the verdict opened, and Degraded how many of them were degraded.
	// They are absent if that is not kept any more.
	Flows    *int `json:"flows,omitempty"`
	Degraded *int `json:"degraded_flows,omitempty"`
}

// Line is how one value of one flow, or pair of leaves, went.
type Line struct {
	// Of is the flow, or the pair of leaves.
	Of       string `json:"of"`
	Affected bool   `json:"affected"`
	// Value is p50, p99 or loss.
	Value string `json:"value"`
	Query string `json:"query"`
	// Points are delays in nanoseconds, or ratios of loss.
	Points []Point `json:"points"`
	key    string  // the selector of its series
}

// Point is a value at a moment, in seconds after the beginning of the span.
type Point struct {
	Seconds float64 `json:"s"`
	Value   float64 `json:"v"`
}

// Cause is one cause of the verdict, with the series that can show it.
type Cause struct {
	fabric.Cause
	Query   string   `json:"query"`
	Series  []Series `json:"series"`
	LeftOut int      `json:"series_left_out"`
	// Unknown is the reason why there are no series.
	Unknown string `json:"unknown,omitempty"`
}

// Series is how a series of a cause went.
type Series struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Query is a query to Prometheus.
type Query struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Expr string `json:"expr"`
	// At is the moment of the query, or the end of its span. From and StepSeconds are set for a span.
	At          time.Time `json:"at"`
	From        time.Time `json:"from,omitzero"`
	StepSeconds float64   `json:"step_seconds,omitempty"`
	// Asked is false for a query that the report does not need an answer of.
	Asked bool `json:"asked"`
	// Problem is the reason why it has no answer, and Warnings are what Prometheus says of an answer that may be incomplete.
	Problem  string   `json:"problem,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Settings are the settings that a report has, with the version of the program.
type Settings struct {
	Version string `json:"version"`
	// ConfigHash identifies the configuration, as graylink_config_hash_info does.
	ConfigHash string `json:"config_hash,omitempty"`
	// Shard is the part of the fabric that the analyzer is responsible for. It is absent if that is all of it.
	Shard    string   `json:"shard,omitempty"`
	Topology Topology `json:"topology"`
	// The times of the queries.
	ScrapeSeconds      float64 `json:"scrape_interval_seconds"`
	LagSeconds         float64 `json:"lag_seconds"`
	DelayWindowSeconds float64 `json:"delay_window_seconds"`
	HardWindowSeconds  float64 `json:"hard_window_seconds"`
	// Thresholds are the parameters by which a flow is judged.
	Thresholds []Threshold `json:"thresholds"`
}

// Topology identifies the topology.
type Topology struct {
	Nodes    int    `json:"nodes"`
	NICs     int    `json:"nics"`
	Switches int    `json:"switches"`
	Links    int    `json:"links"`
	Hash     string `json:"hash"`
}

// Threshold is one parameter of the judgement of flows.
type Threshold struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}
