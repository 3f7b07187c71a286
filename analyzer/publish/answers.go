package publish

import (
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/scope"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
)

// VerdictsAnswer is the answer of /api/v1/verdicts: the state of the fabric after the last cycle, with all verdicts.
type VerdictsAnswer struct {
	State fabric.State `json:"state"`
	// FabricState is the state of all shards together. It is absent where one analyzer has the whole fabric.
	FabricState fabric.State      `json:"fabric_state,omitempty"`
	Shard       *snapshot.Shard   `json:"shard,omitempty"`
	At          time.Time         `json:"at"`
	Coverage    fabric.Coverage   `json:"coverage"`
	Edges       fabric.EdgeCounts `json:"edges"`
	Paths       fabric.PathChoice `json:"paths"`
	// Hosts has the reason why the probes of a node are no evidence, by node.
	Hosts  map[string]string `json:"hosts,omitempty"`
	Floods []evidence.Flood  `json:"floods,omitempty"`
	// Signals is what is wrong with in-band signals.
	Signals []signals.Finding `json:"signals,omitempty"`
	// Findings are the floods and what is wrong with in-band signals, in words.
	Findings    []string             `json:"findings,omitempty"`
	Scopes      []scope.Scope        `json:"scopes"`
	Asking      *selection.Stats     `json:"asking,omitempty"`
	Maintenance []maintenance.Window `json:"maintenance,omitempty"`
	// Warnings has the warnings of Prometheus about incomplete answers.
	Warnings []string `json:"warnings,omitempty"`
	// Verdicts are the open verdicts and those that are kept, the newest first.
	Verdicts []incident.Incident `json:"verdicts"`
	// Candidates are elements that may be at fault, by evidence that is not enough for a verdict.
	Candidates []fabric.Candidate `json:"candidates"`
}

// JobsAnswer is the answer of /api/v1/jobs: the running jobs.
type JobsAnswer struct {
	At   time.Time  `json:"at"`
	Jobs []JobState `json:"jobs"`
}

// JobState is the state of the network for one job.
type JobState struct {
	Job   string       `json:"job"`
	State fabric.State `json:"state"`
	Why   string       `json:"why"`
}

// JobAnswer is the answer of /api/v1/jobs/NAME: whether the network is to blame for what a job suffers, with the evidence.
type JobAnswer struct {
	At time.Time `json:"at"`
	snapshot.JobView
	// Collectives is the report on the job's operations. It is absent if they are not followed.
	Collectives *workload.Report `json:"collectives,omitempty"`
}

// PathsAnswer is the answer of /api/v1/paths: the paths of flows.
type PathsAnswer struct {
	// Version counts the changes of all paths.
	Version uint64 `json:"version"`
	// At is the moment of the request. It is absent for the present.
	At    time.Time   `json:"at,omitzero"`
	Paths []BoundPath `json:"paths"`
}

// BoundPath represents one flow of /api/v1/paths.
type BoundPath struct {
	Edge       string           `json:"edge"`
	State      fabric.PathState `json:"state"`
	Path       fabric.Path      `json:"path,omitempty"`
	Candidates []fabric.Path    `json:"candidates,omitempty"`
	// Sprayed is true if its packets take all candidates in turn.
	Sprayed   bool         `json:"sprayed,omitempty"`
	Source    paths.Source `json:"source,omitempty"`
	Version   uint64       `json:"version,omitempty"`
	Since     time.Time    `json:"since,omitzero"`
	Confirmed time.Time    `json:"confirmed,omitzero"`
	Checked   time.Time    `json:"checked"`
	Notes     []string     `json:"notes,omitempty"`
}

// LinksAnswer is the answer of /api/v1/links: each direction of every link.
type LinksAnswer struct {
	At    time.Time           `json:"at"`
	Links []snapshot.LinkView `json:"links"`
}

// CollectivesAnswer is the answer of /api/v1/collectives: what jobs wait for.
type CollectivesAnswer struct {
	At time.Time `json:"at"`
	workload.Report
}
