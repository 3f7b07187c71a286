// Package workload says which rank a job waits for, and whether the network is to blame, from records of collective
// operations (internal/ccl) and what the analyzer knows of the fabric. It is pure: it reads no file and no clock.
package workload

import "time"

// Syndrome is what is wrong with a communicator.
type Syndrome string

// The syndromes. Slow ones go on, hanging ones do not.
const (
	CommSlow    Syndrome = "comm_slow"     // data moves slowly between ranks
	NonCommSlow Syndrome = "non_comm_slow" // a rank comes late to the operation
	CommHang    Syndrome = "comm_hang"     // all ranks launched the operation, and it does not end
	NonCommHang Syndrome = "non_comm_hang" // a rank never came, or its own GPU does not produce
)

// Pattern is which part of a communicator a diagnosis names.
type Pattern string

// The patterns of the delay matrix, whose rows are senders and whose columns are receivers, and of waits.
const (
	Cell      Pattern = "cell"      // the connection from one rank to another
	Row       Pattern = "row"       // all that a rank sends
	Column    Pattern = "column"    // all that a rank receives
	NodeOut   Pattern = "node_out"  // all that the ranks of a node send
	NodeIn    Pattern = "node_in"   // all that the ranks of a node receive
	Chain     Pattern = "chain"     // a rank at the end of a chain of waits
	Absent    Pattern = "absent"    // a rank that did not launch the operation
	Mismatch  Pattern = "mismatch"  // ranks that launched different operations
	Unlocated Pattern = "unlocated" // the records do not say where
)

// NetworkState says whether the network is to blame.
type NetworkState string

// What can be said of the network. Without evidence it is neither guilty nor innocent.
const (
	Guilty       NetworkState = "guilty"
	Innocent     NetworkState = "innocent"
	Insufficient NetworkState = "insufficient_evidence"
)

// State is the result for all records.
type State string

// The results.
const (
	Suspect           State = "suspect"
	Healthy           State = "healthy"
	InsufficientState State = "insufficient_evidence"
)

// Connection is the way from a rank to another one.
type Connection struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// Equivalent is what the records cannot distinguish from what a diagnosis names.
type Equivalent struct {
	Pattern Pattern `json:"pattern"`
	Ranks   []int   `json:"ranks"`
}

// Effect is how much an operation takes longer: AddedNS at the median, and the ratio to what is normal. Both are absent for
// operations that hang.
type Effect struct {
	AddedNS int64   `json:"added_ns"`
	Ratio   float64 `json:"ratio"`
}

// Consequence is another communicator that waits for the same fault.
type Consequence struct {
	Comm     string   `json:"comm"`
	CommName string   `json:"comm_name,omitempty"`
	Syndrome Syndrome `json:"syndrome"`
}

// Network is what the fabric's evidence says of a diagnosis.
type Network struct {
	State    NetworkState `json:"state"`
	Element  string       `json:"element,omitempty"`  // identifier of the guilty element
	Verdicts []string     `json:"verdicts"`           // identifiers of the verdicts it rests on
	Coverage *float64     `json:"coverage,omitempty"` // share of the ways that clean probes cover; nil: unknown
	Reason   string       `json:"reason"`             // why there is not enough evidence
}

// Isolate lists what to take out of use.
type Isolate struct {
	Nodes []string `json:"nodes"`
	Links []string `json:"links"`
}

// Diagnosis is one fault of one job.
type Diagnosis struct {
	ID                string        `json:"id"`
	Job               string        `json:"job"`
	Comm              string        `json:"comm"`
	CommName          string        `json:"comm_name,omitempty"`
	Syndrome          Syndrome      `json:"syndrome"`
	Pattern           Pattern       `json:"pattern"`
	Phase             string        `json:"phase"` // init: before the first operation; run
	Ranks             []int         `json:"ranks"`
	Nodes             []string      `json:"nodes"`
	Connection        *Connection   `json:"connection,omitempty"`
	Equivalent        []Equivalent  `json:"equivalent"`
	Op                string        `json:"op"`
	FirstSeq          uint64        `json:"first_seq"`
	LastSeq           uint64        `json:"last_seq"`
	BeganAt           time.Time     `json:"began_at"`
	DetectedAt        time.Time     `json:"detected_at"` // by the records' times: when an analyzer beside the job would have said it
	Open              bool          `json:"open"`
	Effect            *Effect       `json:"effect,omitempty"`
	Confidence        float64       `json:"confidence"`
	Consequences      []Consequence `json:"consequences"`
	Network           Network       `json:"network"`
	Isolate           Isolate       `json:"isolate"`
	Summary           string        `json:"summary"`
	RecommendedAction string        `json:"recommended_action"`
	// Account is the user who wrote all records of the diagnosis, as the agents say. Empty: unknown, or several.
	Account string `json:"account,omitempty"`
	// ReturnVerdicts are the fabric's verdicts on the ways of the acknowledgements. They alone make nothing guilty.
	ReturnVerdicts []string `json:"-"`
}

// Coverage is how much of the communicators the records speak of.
type Coverage struct {
	Communicators int      `json:"communicators"`
	RanksSeen     int      `json:"ranks_seen"`
	RanksExpected int      `json:"ranks_expected"`
	Operations    uint64   `json:"operations"`
	Dropped       uint64   `json:"dropped"`
	Unseen        []string `json:"unseen,omitempty"` // kinds of traffic that no record speaks of, in words
}

// RecordCounts is how the reading of the records went.
type RecordCounts struct {
	Read       uint64 `json:"read"`
	Unreadable uint64 `json:"unreadable"`
	Duplicate  uint64 `json:"duplicate"`
}

// MatrixCell is the delay of a connection, in nanoseconds of the sender's wire time for each MiB.
type MatrixCell struct {
	Comm           string   `json:"comm"`
	From           int      `json:"from"`
	To             int      `json:"to"`
	WireNSPerMiB   float64  `json:"wire_ns_per_mib"`
	NormalNSPerMiB *float64 `json:"normal_ns_per_mib,omitempty"` // nil: unknown
}

// Report is the answer to which rank a job waits for.
type Report struct {
	State     State        `json:"state"`
	Network   NetworkState `json:"network"`
	Diagnoses []Diagnosis  `json:"diagnoses"`
	Coverage  Coverage     `json:"coverage"`
	Records   RecordCounts `json:"records"`
	Matrix    []MatrixCell `json:"matrix,omitempty"`
}
