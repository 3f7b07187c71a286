// Package snapshot is the state of the analyzer after a cycle, as the page, the API and the series show it.
package snapshot

import (
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/internal/fabric"
)

// LinkView represents one direction of a link, as the probes measure it now.
type LinkView struct {
	Link         string  `json:"link"`
	From         string  `json:"from"`
	To           string  `json:"to"`
	Edges        int     `json:"edges"`
	Degraded     int     `json:"degraded_edges"`
	AddedDelayNS *int64  `json:"added_delay_ns,omitempty"`
	LossRatio    float64 `json:"loss_ratio"`
	// Shares is nil if no flow is sprayed.
	Shares *fabric.LinkShare `json:"shares,omitempty"`
}

// EdgeView represents one directed flow in its latest window.
type EdgeView struct {
	Flow      fabric.Flow        `json:"-"`
	Obs       fabric.Observation `json:"observation"`
	Condition Condition          `json:"condition"`
}

// Condition is what a cycle thinks of a flow.
type Condition string

// Conditions of a flow. The first three are evidence.
const (
	Undecided    Condition = "undecided"
	Healthy      Condition = "healthy"
	Degraded     Condition = "degraded"
	ClockSuspect Condition = "clock_suspect"
	HostSuspect  Condition = "host_suspect"
	Unread       Condition = "unread"
	Maintenance  Condition = "maintenance"
)

// Snapshot represents the state of the analyzer after a cycle.
type Snapshot struct {
	At time.Time `json:"at"`
	// Every is the time between two cycles, or 0 if it is unknown.
	Every     time.Duration       `json:"-"`
	Report    fabric.Report       `json:"report"`
	Incidents []incident.Incident `json:"incidents"` // newest first
	Links     []LinkView          `json:"links"`
	Edges     []EdgeView          `json:"-"`
	// FreshFor is how long what was read of a flow counts that was not read again.
	FreshFor   time.Duration            `json:"-"`
	Paths      map[fabric.PathState]int `json:"paths"`
	PathMap    uint64                   `json:"path_map_version"`
	Hosts      map[string]string        `json:"hosts,omitempty"`
	Floods     []evidence.Flood         `json:"floods,omitempty"`  // of packets with a forged HMAC
	Signals    []signals.Finding        `json:"signals,omitempty"` // what is wrong with in-band signals
	Baselines  int                      `json:"baselines"`
	Expected   int                      `json:"expected_edges"`
	Pending    int                      `json:"pending_edges"`
	CycleError string                   `json:"cycle_error,omitempty"`
	// Maintenance lists the present and future maintenance windows.
	Maintenance []maintenance.Window `json:"maintenance,omitempty"`
	// MaintenanceSources says which sources of windows could be read.
	MaintenanceSources []maintenance.SourceState `json:"maintenance_sources,omitempty"`
	// Queries describes which flows this cycle queried. Nil means that every cycle queries all flows.
	Queries *selection.Stats `json:"asking,omitempty"`
	// Shard is the part of the fabric that all of this is about, and what is known of the others. Nil means that it is
	// about the whole fabric.
	Shard *Shard `json:"shard,omitempty"`
	// Scopes has the states of the whole fabric, of its parts and of jobs, in this order.
	Scopes []scope.Scope `json:"scopes"`
	// Warnings has the warnings of Prometheus about incomplete responses.
	Warnings []string `json:"warnings,omitempty"`
	// ClockOffsetNS is how far the clock of Prometheus is ahead of the analyzer's, in nanoseconds.
	ClockOffsetNS int64 `json:"prometheus_clock_offset_ns"`
	// LagNS is how far in the past the window of the cycle ended, in nanoseconds.
	LagNS int64 `json:"lag_ns"`

	// Placed has the placements of jobs. Nil means that they are unknown.
	Placed *jobs.Map `json:"-"`
}
