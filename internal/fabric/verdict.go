package fabric

import (
	"fmt"
	"strings"
	"time"
)

// State is the answer for a scope. Silence is never innocence: without enough
// fresh healthy evidence the answer is InsufficientEvidence.
type State string

// States of a report.
const (
	Suspect              State = "suspect"
	Innocent             State = "innocent"
	InsufficientEvidence State = "insufficient_evidence"
)

// Kind is the kind of element that a verdict names.
type Kind string

// Kinds of elements.
const (
	KindNIC         Kind = "nic"
	KindAccessLink  Kind = "access_link"
	KindLink        Kind = "link"
	KindPort        Kind = "port"
	KindQueue       Kind = "queue"
	KindSwitch      Kind = "switch"
	KindCorridor    Kind = "corridor"
	KindPair        Kind = "pair"
	KindLeafUplinks Kind = "leaf_uplinks"
	KindHost        Kind = "host"
	KindClock       Kind = "clock"
)

// Scenario is an id of the project's table of failure scenarios.
type Scenario string

// Scenarios of the analyzer.
const (
	HotSpine     Scenario = "hot_spine"
	SlowLeaf     Scenario = "slow_leaf"
	Corridor     Scenario = "corridor"
	LeafUplinks  Scenario = "leaf_uplinks"
	BadNIC       Scenario = "bad_nic"
	PairOnly     Scenario = "pair"
	Flap         Scenario = "flap"
	HardFailure  Scenario = "hard_failure"
	Host         Scenario = "host"
	HOLSame      Scenario = "hol_same_egress"
	HOLCross     Scenario = "hol_cross_port"
	Incast       Scenario = "incast"
	Miscabled    Scenario = "miscabled"
	ClockTrouble Scenario = "clock"
	// Scenarios of routing, which blame no part.
	RoutingFault Scenario = "routing"
	Polarization Scenario = "polarization"
	Convergence  Scenario = "convergence"
	FIBMismatch  Scenario = "fib_mismatch"
)

// IsRouting reports whether a scenario is about routing, and not about a part of the fabric.
func (s Scenario) IsRouting() bool {
	return s == RoutingFault || s == Polarization || s == Convergence || s == FIBMismatch
}

// Severities of a verdict.
const (
	SeverityInfo     = "info"
	SeverityWarning  = "warning"
	SeverityCritical = "critical"
)

// Element names something that can be at fault.
type Element struct {
	ID   string `json:"element"`
	Kind Kind   `json:"kind"`
}

// Symptom is how bad it is: added one-way delay in nanoseconds and the shares
// of packets lost and marked.
type Symptom struct {
	AddedDelayNS int64   `json:"added_delay_ns"`
	LossRatio    float64 `json:"loss_ratio"`
	ECNRatio     float64 `json:"ecn_ratio"`
}

// EvidenceCount counts the edges for and against a verdict.
type EvidenceCount struct {
	DegradedEdges             int `json:"degraded_edges"`
	ExplainedEdges            int `json:"explained_edges"`
	HealthyEdgesThroughParent int `json:"healthy_edges_through_parent"`
	ContraryEdges             int `json:"contrary_edges,omitempty"` // clean, though they cross the element
	// Reported is set if readings of the fabric's own state show the fault, or the ways that packets take. No flow needs to be
	// degraded then.
	Reported bool `json:"reported,omitempty"`
	// Asked is what was asked for to distinguish the element from others.
	Asked []Asked `json:"asked,omitempty"`
}

// Asked is one question to the mesh: which elements it should distinguish, which flows were measured for it, and which
// elements they excluded.
type Asked struct {
	At      time.Time `json:"at"`
	Between []Element `json:"between"`
	// Asked says for what was asked: AskedFlow or AskedHop.
	Asked string   `json:"asked"`
	Flows []string `json:"flows"`
	// Hops are the hop-limited probes, with what they have counted.
	Hops []AskedHopProbe `json:"hops,omitempty"`
	// Refused has the reasons why others were not granted, or could not be asked for.
	Refused  []string  `json:"refused,omitempty"`
	Excluded []Element `json:"excluded"`
}

// What is asked for.
const (
	AskedFlow = "flow"
	AskedHop  = "hop"
)

// AskedHopProbe is a hop-limited probe that was asked for: copies of a flow's packets that end at a hop of its path.
type AskedHopProbe struct {
	Flow     string `json:"flow"`
	Hop      int    `json:"hop"`
	Switch   string `json:"switch"` // that is expected to answer
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"`
	// Discarded is the reason why the counts say nothing, or "".
	Discarded string `json:"discarded,omitempty"`
}

// BlastRadius counts what a fault affects. Jobs is nil if no placement is known.
type BlastRadius struct {
	NICs  int  `json:"nics"`
	Edges int  `json:"edges"`
	Jobs  *int `json:"jobs,omitempty"`
}

// Causes of a verdict.
const (
	CauseCongestion = "congestion"
	CauseStall      = "pause_stall"
	CauseDrops      = "drops"
	CausePhysical   = "physical_errors"
	CauseFlap       = "link_flap"
	CauseDown       = "link_down"
	CauseDownshift  = "link_downshift"
	CauseCapacity   = "capacity_loss"
	CauseAdmin      = "admin_down"
	CauseMTU        = "mtu_mismatch"
	CauseRouting    = "routing_change"
	CauseHost       = "host"
	CauseMiscabled  = "miscabled"
	CauseNIC        = "nic_fault" // the NIC itself: gone, firmware or PCIe
	CauseOptics     = "optics"
	CauseControl    = "control_plane" // a switch's processor, or what guards it
)

// String describes what was asked and what it showed.
func (a *Asked) String() string {
	s := fmt.Sprintf("%d more flows were measured", len(a.Flows))
	n := len(a.Flows)
	if a.Asked == AskedHop {
		n = len(a.Hops)
		s = fmt.Sprintf("%d hop-limited probes were sent again and again, to see which part of a path loses packets", n)
	}
	switch {
	case n == 0 && len(a.Refused) > 0 && a.Asked == AskedHop:
		return "nothing more was measured: " + a.Refused[0]
	case n == 0 && len(a.Refused) > 0:
		return "no flows were granted: " + a.Refused[0]
	case n == 0:
		return "the answer is awaited"
	case len(a.Excluded) == 0:
		return s + ". They exclude nothing so far"
	}
	var names []string
	for _, e := range a.Excluded {
		names = append(names, e.ID)
	}
	return s + ". They exclude " + strings.Join(names, ", ")
}

// Attribution holds the cause of a fault, as the series of the element show it.
type Attribution struct {
	State AttributionState `json:"state"`
	// Agrees is absent if the series neither confirm nor contradict the probes.
	Agrees *bool `json:"agrees,omitempty"`
	// Summary is all of it in plain words.
	Summary string  `json:"summary"`
	Causes  []Cause `json:"causes"` // strongest first
	// Against lists, in words, readings that contradict what the probes alone suggest.
	Against []string `json:"against,omitempty"`
	// Signals is what in-band signals say. It is nil if nothing reads them.
	Signals *SignalReading `json:"signals,omitempty"`
	From    time.Time      `json:"from"` // of the incident's readings
	Until   time.Time      `json:"until"`
}

// AttributionState states whether there was anything to read, and whether it showed a cause.
type AttributionState string

// States of an attribution.
const (
	CauseFound   AttributionState = "found"
	NoCauseFound AttributionState = "none"
	NoCauseData  AttributionState = "no_data"
)

// Cause is a row of the table of causes that a reading meets.
type Cause struct {
	Cause string `json:"cause"`
	// Element is the port, NIC or node that was read.
	Element string `json:"element"`
	// Peer is the other end of the element's cable, for causes that concern both ends.
	Peer string `json:"peer,omitempty"`
	// Weight is how far the reading points to the cause, 0 to 1.
	Weight float64 `json:"weight"`
	Text   string  `json:"text"` // the reading before and during the incident
}

// Verdict names the narrowest element that explains a symptom.
type Verdict struct {
	ID string `json:"id"`
	Element
	Direction   string        `json:"direction,omitempty"`
	Prefix      string        `json:"prefix,omitempty"` // the leaf or prefix that a verdict on routing is about
	Confidence  float64       `json:"confidence"`
	Symptom     Symptom       `json:"symptom"`
	Scenario    Scenario      `json:"scenario"`
	Tier        int           `json:"tier,omitempty"`
	Plane       string        `json:"plane"`
	Class       string        `json:"class"`
	Severity    string        `json:"severity"`
	Evidence    EvidenceCount `json:"evidence"`
	Equivalent  []Element     `json:"equivalent"`
	Causes      []string      `json:"causes"`
	Jobs        []string      `json:"jobs"`
	BlastRadius BlastRadius   `json:"blast_radius"`
	Action      string        `json:"recommended_action"`
	FirstSeen   time.Time     `json:"first_seen"`
	Summary     string        `json:"summary"`
	// Runbook is the page of what to do step by step, in the project's tree.
	Runbook string `json:"runbook,omitempty"`
	// Attribution is nil while no cause has been looked for.
	Attribution *Attribution `json:"attribution,omitempty"`
	// WouldSplit are measurements that would distinguish the element from its equivalents, if some would.
	WouldSplit []Measurement `json:"would_split,omitempty"`
	// Failovers are the durations that a verdict of scenario Convergence is about, the longest first.
	Failovers []Failover `json:"failovers,omitempty"`

	// Shares is how much of the affected flows crosses the element, if the packets of some of them take several paths in turn.
	Shares *PathShares `json:"shares,omitempty"`

	// Edges are those the verdict explains; not part of the file format.
	Edges []string `json:"-"`
	// SameFlowEquivalents are the equivalents that the same flows cross, by chance of which flows decide at this
	// moment or by the topology. They are not part of the file format.
	SameFlowEquivalents []DirectedElement `json:"-"`
}

// PathShares is the share of the packets of flows, and so of their paths, that crosses an element: the least and the largest one of those
// flows that cross it with some of their packets.
type PathShares struct {
	SprayedEdges int     `json:"sprayed_edges"`
	Least        float64 `json:"least"`
	Most         float64 `json:"most"`
}

// Failover is how long routing took to avoid a direction of a link: for that long its packets were lost.
type Failover struct {
	// Direction is FROM->TO, or absent if the flows that show it lost packets in both.
	Direction string `json:"direction,omitempty"`
	LossNS    int64  `json:"loss_ns"`
	Flows     int    `json:"flows"`
}

// DirectedElement is an element, or one direction of it if Direction is set.
type DirectedElement struct {
	Element
	Direction Direction
}

// LinkDelay is the delay that one direction of a link adds.
type LinkDelay struct {
	Link         string `json:"link"`
	Direction    string `json:"direction"`
	AddedDelayNS int64  `json:"added_delay_ns"`
	Identifiable bool   `json:"identifiable"`
}

// LinkShare is what decided flows send across one direction of a link, where the packets of some flows take several paths in turn.
type LinkShare struct {
	Direction string `json:"direction"`
	// SprayedEdges is the number of flows whose packets take several paths, some of which cross it. Share is the mean share of their
	// packets that do, and 0 if there are none.
	SprayedEdges int     `json:"sprayed_edges"`
	Share        float64 `json:"share"`
	// ProbesPerSecond is the number of probes and replies of all flows that are expected to cross it.
	ProbesPerSecond float64 `json:"probes_per_second"`
}

// Coverage is the share of links and edges with fresh, bound evidence.
type Coverage struct {
	Links float64 `json:"links"`
	Edges float64 `json:"edges"`
}

// PathChoice states who chooses the paths of the flows of a report, and what is known of the links by chosen paths.
type PathChoice struct {
	// Mode is srv6 if hosts choose the path of some flow, spray if switches choose that of each packet, and otherwise ecmp. It is
	// empty if no flow has a path.
	Mode Forwarding `json:"mode,omitempty"`
	// Chosen is the number of directed flows whose path their sender chose.
	Chosen int `json:"chosen,omitempty"`
	// Links is the share of the directed links between switches that decided flows of chosen paths cross. It is absent if there are
	// none.
	Links *float64 `json:"links,omitempty"`
	// Sprayed is the number of directed flows whose packets take several paths in turn.
	Sprayed int `json:"sprayed,omitempty"`
	// LeastProbesPerSecond is the least number of packets that are expected to cross a directed link between switches that decided flows
	// cross. It is absent if no flow is sprayed.
	LeastProbesPerSecond *float64 `json:"least_probes_per_second,omitempty"`
}

// EdgeCounts sorts the edges of a report.
type EdgeCounts struct {
	Total        int `json:"total"`
	Degraded     int `json:"degraded"`
	UnknownPath  int `json:"unknown_path"`
	ClockSuspect int `json:"clock_suspect"`
	HostSuspect  int `json:"host_suspect"`
	Unread       int `json:"unread"` // of HostSuspect: a NIC dropped packets before it read or verified them
	Duplicates   int `json:"duplicates,omitempty"`
}

// Candidate is an element that may be at fault, by evidence that is not enough for a verdict.
type Candidate struct {
	Element
	Direction string `json:"direction,omitempty"`
	// Probability that the element is at fault, beside those of the verdicts.
	Probability float64 `json:"probability"`
	Edges       int     `json:"explained_edges"`
	// Equivalent are elements that the same flows cross.
	Equivalent []Element `json:"equivalent"`
	// Rivals are other elements that would explain some of these flows and are at least as likely.
	Rivals []Element `json:"rivals"`
	// WouldSplit are measurements that would distinguish the element from its equivalents and rivals, if some would.
	WouldSplit []Measurement `json:"would_split"`

	// Others are the rivals and then the equivalents, with their directions. They are not part of the file format.
	Others []DirectedElement `json:"-"`
}

// Measurement is a probe that meets one of two elements and not the other: a flow from one NIC to another by a path, or
// a hop-limited probe of such a flow that a switch on the way answers.
type Measurement struct {
	// Meets is the element that the probe meets, and Avoids the one that it does not.
	Meets  Element `json:"meets"`
	Avoids Element `json:"avoids"`
	Src    string  `json:"src"`
	Dst    string  `json:"dst"`
	Path   Path    `json:"path"`
	// EndsAt is the switch that answers a hop-limited probe, and "" for a flow.
	EndsAt string `json:"ends_at,omitempty"`
}

// String describes the probe, and what it would show.
func (m *Measurement) String() string {
	var way []string
	for _, h := range m.Path {
		way = append(way, h.Switch)
	}
	probe := fmt.Sprintf("a flow from %s to %s by %s", m.Src, m.Dst, strings.Join(way, ", "))
	if m.EndsAt != "" {
		probe = fmt.Sprintf("a hop-limited probe from %s toward %s that ends at %s", m.Src, m.Dst, m.EndsAt)
	}
	return fmt.Sprintf("%s crosses %s and avoids %s", probe, m.Meets.ID, m.Avoids.ID)
}

// Report is the outcome of one inference.
type Report struct {
	State      State       `json:"state"`
	Verdicts   []Verdict   `json:"verdicts"`
	Candidates []Candidate `json:"candidates"` // the likeliest first
	LinkDelays []LinkDelay `json:"link_delays"`
	Coverage   Coverage    `json:"coverage"`
	Edges      EdgeCounts  `json:"edges"`
	Paths      PathChoice  `json:"paths"`
	// LinkShares are those of the directed links that decided flows cross, sorted. There are none if no flow is sprayed.
	LinkShares []LinkShare `json:"link_shares,omitempty"`
}
