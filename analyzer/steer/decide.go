package steer

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
)

// Limits of what is done. They are not configurable: a site that wants less leaves steering off or in dry run.
const (
	minConfidence = 0.99             // of a diagnosis, in two consecutive cycles
	minSlow       = time.Minute      // for which a job is slow before anything is done; a hang waits for its own time
	perJob        = 10 * time.Minute // at most one diagnosis of a job is acted on in it
	perHour       = 2                // nodes of all jobs together
	dayShare      = 16               // one of so many nodes of a job a day, which is 6.25 %, and at least one node
	atOnce        = 4                // if more nodes are diagnosed at once, nothing is done
	hour          = time.Hour
	day           = 24 * time.Hour
	witnessAge    = 5 * time.Minute  // age of the oldest second witness that counts
	resumeWithin  = 10 * time.Minute // an action that a crash interrupted is continued for so long
)

// Result is what a decision says of a node.
type Result string

// The results of a decision.
const (
	Act    Result = "act"
	DryRun Result = "dry_run" // act, if the mode were act
	Refuse Result = "refused"
)

// Reason is why a decision refuses to act.
type Reason string

// The reasons to refuse, in the order in which they are checked. A decision has the first one that holds.
const (
	NotOpen            Reason = "not_open"            // the diagnosis is of the past
	NetworkGuilty      Reason = "network_guilty"      // the network is at fault; links are proposed and never shut
	NetworkUnknown     Reason = "network_unknown"     // the diagnosis does not say whether the network is at fault
	NoNode             Reason = "no_node"             // the diagnosis names no node to isolate
	AlreadyActed       Reason = "already_acted"       // something was done for this diagnosis before
	UnknownSyndrome    Reason = "unknown_syndrome"    // neither slow nor a hang
	TooShort           Reason = "too_short"           // slow for less than a minute
	LowConfidence      Reason = "low_confidence"      // less than 0.99
	NotConfirmed       Reason = "not_confirmed"       // not in the cycle before, or not of that node or with less confidence
	PlacementUnknown   Reason = "placement_unknown"   // no scheduler's placements are known
	JobUnknown         Reason = "job_unknown"         // the scheduler does not run that job now
	NotInPlacement     Reason = "not_in_placement"    // the scheduler runs the job on other nodes
	NodeUnknown        Reason = "node_unknown"        // the topology does not have the node, so that its maintenance is unknown
	TooManyNodes       Reason = "too_many_nodes"      // more than four nodes at once
	MaintenanceUnknown Reason = "maintenance_unknown" // a source of windows cannot be read
	InMaintenance      Reason = "maintenance"         // the node, its NICs, their cables or their switches are worked on
	NoWitness          Reason = "no_second_witness"   // nothing but records that the user of the job can write
	NodeActed          Reason = "node_acted"          // the node was acted on within a day, and people decide now
	JobLimit           Reason = "job_limit"           // one diagnosis of a job in ten minutes
	HourLimit          Reason = "hour_limit"          // two nodes an hour
	DayLimit           Reason = "day_limit"           // 6.25 % of the nodes of a job a day
	NotLeader          Reason = "not_leader"          // another analyzer acts
	LeaderUnknown      Reason = "leader_unknown"      // which analyzer acts cannot be read
	AuditUnavailable   Reason = "audit_unavailable"   // the decision cannot be written to the audit log
)

// Reasons lists all reasons to refuse.
func Reasons() []Reason {
	return []Reason{NotOpen, NetworkGuilty, NetworkUnknown, NoNode, AlreadyActed, UnknownSyndrome, TooShort, LowConfidence, NotConfirmed,
		PlacementUnknown, JobUnknown, NotInPlacement, NodeUnknown, TooManyNodes, MaintenanceUnknown, InMaintenance, NoWitness, NodeActed, JobLimit,
		HourLimit, DayLimit, NotLeader, LeaderUnknown, AuditUnavailable}
}

// WitnessKind is a source of evidence that users of jobs cannot write.
type WitnessKind string

// The kinds of second witnesses.
const (
	SilentAgent   WitnessKind = "silent_agent"    // the node's agent does not answer
	NICFinding    WitnessKind = "nic_finding"     // the state machine of NICs found a fault of the node
	KernelFinding WitnessKind = "kernel_finding"  // the node's kernel logged a fault
	TrustedRecord WitnessKind = "trusted_account" // the records are of an account that the site trusts
)

// Witness is evidence against a node besides the records of a job. Whoever makes one answers for its not being what the job's
// user can write.
type Witness struct {
	Node string
	Kind WitnessKind
	At   time.Time // of the newest evidence
}

// Surroundings is what is known at the time of a decision, besides the diagnoses.
type Surroundings struct {
	Graph *fabric.Graph
	// Jobs are the placements of the scheduler. Nil means that none are known.
	Jobs *jobs.Map
	// Maintenance lists the windows in force, and Sources says which sources of windows could be read.
	Maintenance []maintenance.Window
	Sources     []maintenance.SourceState
	Witnesses   []Witness
	// Accounts has the account that runs the processes whose records a diagnosis rests on, by job, as the kernels of the nodes
	// report it. A job without an entry has records of an unknown account, or of several.
	Accounts map[string]string
}

// Action is something that was begun for one node of a diagnosis.
type Action struct {
	At   time.Time `json:"at"`
	ID   string    `json:"id"` // of the diagnosis
	Job  string    `json:"job"`
	Node string    `json:"node"` // as the topology has it
	Done bool      `json:"done,omitempty"`
}

// Decision says what is done about one node of a diagnosis, and why not.
type Decision struct {
	ID   string
	Job  string
	Node string // as the topology has it; empty if the diagnosis names none
	// Target is the node's name at the scheduler.
	Target  string
	Result  Result
	Reason  Reason      // of a refusal
	Witness WitnessKind // the second witness; empty if there is none
	Links   []string    // proposed to people, and never shut
	Resumed bool        // an earlier process began it and did not write how it ended
}

// Cycle is what was diagnosed at one time.
type Cycle struct {
	At        time.Time
	Diagnoses []workload.Diagnosis
}

// Decide returns one decision for each node that a diagnosis of this cycle isolates, and one for each diagnosis that isolates
// none. It is pure. Decisions to act have the result Act, whatever the mode is. history holds what was done before, in any
// order. trusted lists the accounts that the site trusts.
func Decide(now, before Cycle, s Surroundings, history []Action, trusted []string) []Decision {
	d := decider{now: now, before: before, s: s, history: slices.Clone(history), trusted: trusted}
	// A list that has one identifier twice contradicts itself. The first one stands.
	seen := map[string]bool{}
	ordered := slices.DeleteFunc(slices.Clone(now.Diagnoses), func(x workload.Diagnosis) bool {
		twice := seen[x.ID]
		seen[x.ID] = true
		return twice
	})
	slices.SortStableFunc(ordered, func(a, b workload.Diagnosis) int {
		return cmp.Or(a.BeganAt.Compare(b.BeganAt), cmp.Compare(a.ID, b.ID))
	})
	d.countNodes(ordered)
	var out []Decision
	for i := range ordered {
		out = append(out, d.decideDiagnosis(&ordered[i])...)
	}
	return out
}

// decider holds what the decisions of one cycle have in common.
type decider struct {
	now, before Cycle
	s           Surroundings
	history     []Action // with the actions of this cycle
	trusted     []string
	nodes       int // different nodes that are diagnosed in this cycle
}

// countNodes counts the nodes of the diagnoses that would be acted on if there were no limits, maintenance and witnesses.
func (d *decider) countNodes(all []workload.Diagnosis) {
	nodes := map[string]bool{}
	for i := range all {
		x := &all[i]
		for _, node := range x.Isolate.Nodes {
			if d.checkDiagnosis(x) != "" || d.checkNode(x, node) != "" {
				continue
			}
			if _, reason := d.place(x.Job, node); reason == "" {
				nodes[node] = true
			}
		}
	}
	d.nodes = len(nodes)
}

// decideDiagnosis returns the decisions for the nodes of a diagnosis.
func (d *decider) decideDiagnosis(x *workload.Diagnosis) []Decision {
	base := Decision{ID: x.ID, Job: x.Job, Links: x.Isolate.Links, Result: Refuse}
	if len(x.Isolate.Nodes) == 0 {
		base.Reason = cmp.Or(d.checkDiagnosis(x), NoNode)
		return []Decision{base}
	}
	var out []Decision
	began := d.history // a diagnosis with several nodes is one action of its job
	for _, node := range slices.Compact(slices.Sorted(slices.Values(x.Isolate.Nodes))) {
		one := base
		one.Node = node
		switch one.Reason = d.refusal(x, &one, began); {
		case one.Reason != "":
			one.Resumed = false
		case one.Resumed:
			one.Result = Act
		default:
			one.Result = Act
			d.history = append(d.history, Action{At: d.now.At, ID: x.ID, Job: x.Job, Node: node})
		}
		out = append(out, one)
	}
	return out
}

// refusal returns why nothing is done about a node, or "". It fills in the target, the witness and whether the action is
// resumed. began is the history before this diagnosis.
func (d *decider) refusal(x *workload.Diagnosis, one *Decision, began []Action) (reason Reason) {
	if reason = d.checkDiagnosis(x); reason != "" {
		return reason
	}
	if slices.ContainsFunc(began, func(a Action) bool { return a.ID == x.ID }) {
		one.Resumed = slices.ContainsFunc(began, func(a Action) bool {
			return a.ID == x.ID && a.Node == one.Node && !a.Done && d.isWithin(a.At, resumeWithin)
		})
		if !one.Resumed {
			return AlreadyActed
		}
	}
	if reason = d.checkNode(x, one.Node); reason != "" {
		return reason
	}
	if one.Target, reason = d.place(x.Job, one.Node); reason != "" {
		return reason
	}
	if d.s.Graph == nil || len(d.s.Graph.EndsOf(one.Node)) == 0 || d.s.Graph.Switch(one.Node) != nil {
		return NodeUnknown
	}
	if d.nodes > atOnce {
		return TooManyNodes
	}
	if reason = d.checkMaintenance(one.Node); reason != "" {
		return reason
	}
	if one.Witness = d.findWitness(x.Job, one.Node); one.Witness == "" {
		return NoWitness
	}
	if one.Resumed {
		return "" // the limits have counted it
	}
	return d.checkLimits(x, one.Node)
}

// checkDiagnosis returns why nothing is done about any node of a diagnosis, or "".
func (d *decider) checkDiagnosis(x *workload.Diagnosis) Reason {
	switch {
	case !x.Open:
		return NotOpen
	case x.Network.State == workload.Guilty:
		return NetworkGuilty
	case x.Network.State != workload.Innocent && x.Network.State != workload.Insufficient:
		return NetworkUnknown
	}
	return ""
}

// checkNode returns why a diagnosis is not strong enough against a node, or "".
func (d *decider) checkNode(x *workload.Diagnosis, node string) Reason {
	switch x.Syndrome {
	case workload.CommHang, workload.NonCommHang:
	case workload.CommSlow, workload.NonCommSlow:
		if x.BeganAt.IsZero() || d.now.At.Sub(x.BeganAt) < minSlow {
			return TooShort
		}
	default:
		return UnknownSyndrome
	}
	if !(x.Confidence >= minConfidence && x.Confidence <= 1) {
		return LowConfidence
	}
	confirmed := d.before.At.Before(d.now.At) && slices.ContainsFunc(d.before.Diagnoses, func(b workload.Diagnosis) bool {
		return b.ID == x.ID && b.Job == x.Job && b.Open && b.Confidence >= minConfidence && b.Confidence <= 1 &&
			b.Network.State != workload.Guilty && slices.Contains(b.Isolate.Nodes, node)
	})
	if !confirmed {
		return NotConfirmed
	}
	return ""
}

// place returns the name that the scheduler has for a node of a job, or why there is none.
func (d *decider) place(job, node string) (target string, reason Reason) {
	if d.s.Jobs == nil {
		return "", PlacementUnknown
	}
	p, ok := d.s.Jobs.FindJob(job)
	if !ok {
		return "", JobUnknown
	}
	for _, name := range p.Hosts() {
		if short, _, _ := strings.Cut(name, "."); name == node || short == node {
			return name, ""
		}
	}
	return "", NotInPlacement
}

// checkMaintenance returns why the maintenance of a node or of what it is connected to forbids an action, or "".
func (d *decider) checkMaintenance(node string) Reason {
	if slices.ContainsFunc(d.s.Sources, func(s maintenance.SourceState) bool { return !s.Up }) {
		return MaintenanceUnknown
	}
	for i := range d.s.Maintenance {
		w := &d.s.Maintenance[i]
		for _, nic := range d.s.Graph.EndsOf(node) {
			if w.TouchesDirection(fabric.Direction{From: nic, To: d.s.Graph.PeerOf(nic)}) {
				return InMaintenance
			}
		}
	}
	return ""
}

// findWitness returns the kind of a second witness against a node, or "".
func (d *decider) findWitness(job, node string) WitnessKind {
	for _, w := range d.s.Witnesses {
		switch w.Kind {
		case SilentAgent, NICFinding, KernelFinding:
			if age := d.now.At.Sub(w.At); w.Node == node && age >= 0 && age <= witnessAge {
				return w.Kind
			}
		}
	}
	if account, ok := d.s.Accounts[job]; ok && account != "" && slices.Contains(d.trusted, account) {
		return TrustedRecord
	}
	return ""
}

// isWithin reports whether a time is less than a span ago. A time of the future is: the clock was set back, and nothing is
// known of how long ago it was.
func (d *decider) isWithin(at time.Time, span time.Duration) bool { return d.now.At.Sub(at) < span }

// checkLimits returns the limit that an action on a node would exceed, or "".
func (d *decider) checkLimits(x *workload.Diagnosis, node string) Reason {
	inHour, ofJob := 0, 0
	nodeActed, jobActed := false, false
	for _, a := range d.history {
		today := d.isWithin(a.At, day)
		nodeActed = nodeActed || today && a.Node == node
		jobActed = jobActed || a.Job == x.Job && a.ID != x.ID && d.isWithin(a.At, perJob)
		if d.isWithin(a.At, hour) {
			inHour++
		}
		if today && a.Job == x.Job {
			ofJob++
		}
	}
	p, _ := d.s.Jobs.FindJob(x.Job)
	switch {
	case nodeActed:
		return NodeActed
	case jobActed:
		return JobLimit
	case inHour >= perHour:
		return HourLimit
	case ofJob >= max(1, len(p.Hosts())/dayShare):
		return DayLimit
	}
	return ""
}
