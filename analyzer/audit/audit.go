// Package audit decides by evidence whether a fabric can be accepted. It is pure: others collect the evidence, and all times
// are passed in.
//
// Rules:
//
//  1. A check has a status. Unknown means that the evidence does not suffice, and it is never a pass.
//  2. A link direction is judged by the flows that cross it by a known path. Their loss is an upper bound of its own loss.
//  3. The direction that explains most bad flows is named first. Its flows are then no evidence about other directions, so
//     that a fault is named once. A direction without other flows is unknown.
//  4. Delays are compared among paths with the same tiers and speeds. Kinds with too few members are unknown.
//  5. Windows of flows at a host that was starved, or whose agent did not answer, are excluded. They make checks unknown,
//     and never fail.
//  6. A check without any readings is not measured. Whether that matters is decided by Criteria.Required.
package audit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Status is the outcome of a check or of one of its items.
type Status string

// Outcomes, from the best to the worst.
const (
	Pass    Status = "pass"
	Warn    Status = "warn"
	Unknown Status = "unknown"
	Fail    Status = "fail"
)

var severity = map[Status]int{Pass: 0, Warn: 1, Unknown: 2, Fail: 3}

// worse returns the worse of two outcomes.
func worse(a, b Status) Status {
	if severity[b] > severity[a] {
		return b
	}
	return a
}

// Item is what a check found about one element that did not pass.
type Item struct {
	Element string `json:"element"`
	Kind    string `json:"kind"` // of the element, or of the links it was compared with
	Status  Status `json:"status" schema:"enum=pass|warn|unknown|fail"`
	// Direction is set if the item is about one direction of a link.
	Direction string   `json:"direction,omitempty"`
	Class     string   `json:"class,omitempty"`
	Value     *float64 `json:"value,omitempty"`
	Bound     *float64 `json:"bound,omitempty"`
	// Population is the number of flows, probes or members that the item was judged by.
	Population int    `json:"population"`
	Text       string `json:"text"`
	// Equivalent are elements that the evidence cannot distinguish from this one.
	Equivalent []string `json:"equivalent,omitempty"`
}

// Check is the outcome of one check. The value is the worst of all elements, and the bound is the criterion.
type Check struct {
	ID       string   `json:"id"`
	Title    string   `json:"title"`
	Status   Status   `json:"status" schema:"enum=pass|warn|unknown|fail"`
	Required bool     `json:"required"`
	Value    *float64 `json:"value,omitempty"`
	Bound    *float64 `json:"bound,omitempty"`
	Unit     string   `json:"unit,omitempty"`
	// Population is the number of elements that were judged, and Of says what they are.
	Population int    `json:"population"`
	Of         string `json:"population_of"`
	Text       string `json:"text"`
	// Items are the elements that did not pass, worst first. Omitted is the number of further ones.
	Items   []Item `json:"items"`
	Omitted int    `json:"omitted_items,omitempty"`
}

// maxItems bounds the listed items of a check.
const maxItems = 1000

// addItem adds what was found about an element.
func (c *Check) addItem(i Item) {
	c.Status = worse(c.Status, i.Status)
	c.Items = append(c.Items, i)
}

// noteValue keeps the largest value.
func (c *Check) noteValue(v float64) {
	if c.Value == nil || v > *c.Value {
		c.Value = &v
	}
}

// finish sorts the items, and drops those beyond the limit.
func (c *Check) finish() {
	slices.SortStableFunc(c.Items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(severity[b.Status], severity[a.Status]), cmp.Compare(a.Element, b.Element),
			cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Class, b.Class))
	})
	if n := len(c.Items) - maxItems; n > 0 {
		c.Items, c.Omitted = c.Items[:maxItems], n
	}
	if c.Items == nil {
		c.Items = []Item{}
	}
}

// Report is the outcome of an audit: the file audit.json.
type Report struct {
	Version  int       `json:"version"` // of the format
	Program  string    `json:"program"` // that wrote it, with its version
	Scope    string    `json:"scope"`
	Start    time.Time `json:"start"`
	End      time.Time `json:"end"`
	Windows  int       `json:"windows"`        // of evidence
	Missed   int       `json:"missed_windows"` // that could not be read
	Flows    int       `json:"flows"`          // directed, with any evidence
	Probes   uint64    `json:"probes"`         // that were counted, in both directions
	Status   Status    `json:"status" schema:"enum=pass|warn|unknown|fail"`
	Checks   []Check   `json:"checks"`
	Criteria Criteria  `json:"criteria"`
	// Refused has the agents that did not let the audit request traces or padded probes, with the error of each.
	Refused map[string]string `json:"refused,omitempty"`
	// LoadFrom says what load the fabric had during the audit. It is empty if it was to be idle.
	LoadFrom string `json:"load_from,omitempty"`
	// Compared says what changed since an earlier audit. It is nil if none was named.
	Compared *Comparison `json:"compared,omitempty"`
}

// FormatVersion is the version of the format of audit.json.
const FormatVersion = 1

// constructors are the checks that there are, in the order of reports. The check of the wiring comes before those that use what it
// finds.
var constructors = []func(*study) Check{
	checkCoverage, checkWiring, checkLoss, checkDelay, checkAsymmetry, checkIdle, checkECMP, checkOptics, checkPorts, checkPathMTU, checkDrift, checkClocks,
	checkNICs, checkHosts, checkBandwidth,
}

// ListChecks returns the identifiers of the checks that there are.
func ListChecks() []string {
	return []string{"A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "A9-mtu", "A10", "A11", "A12", "A13", "A14"}
}

// Run judges the evidence by the criteria.
func Run(e *Evidence, c Criteria, s Scope) Report {
	r := Report{Version: FormatVersion, Scope: s.String(), Start: e.Start, End: e.End, Windows: e.Windows, Missed: e.Missed,
		Status: Pass, Criteria: c, Refused: e.Refused, LoadFrom: e.LoadFrom}
	flows := map[fabric.Flow]bool{}
	for i := range e.Flows {
		flows[e.Flows[i].Flow] = true
		r.Probes += e.Flows[i].Sent
	}
	r.Flows = len(flows)
	st := newStudy(e, c, s)
	for _, check := range constructors {
		k := check(st)
		k.Required = slices.Contains(c.Required, k.ID)
		if k.Population == 0 && k.Text == "" {
			k.Status = worse(k.Status, Unknown)
			k.Text = "Not measured: there is no evidence of any " + k.Of + "."
		}
		k.finish()
		if k.Required || k.Status == Fail || k.Status == Warn {
			r.Status = worse(r.Status, k.Status)
		}
		r.Checks = append(r.Checks, k)
	}
	return r
}

// ExitCode returns the exit code of the command for the outcome.
func (r *Report) ExitCode() int {
	switch r.Status {
	case Fail:
		return 2
	case Unknown:
		return 3
	}
	return 0
}

// Evidence is what was collected during an audit.
type Evidence struct {
	// Graph is the fabric as it is planned.
	Graph      *fabric.Graph
	Start, End time.Time
	// Windows is the number of windows that were read, and Missed of those that could not be read.
	Windows, Missed int
	// Refused has the agents that did not let the audit request traces or padded probes, with the error of each.
	Refused map[string]string
	// PathMTU is what long packets showed, or nil if none were sent.
	PathMTU    *PathMTUEvidence
	Flows      []FlowRecord
	Clocks     map[string]ClockRecord // by NIC
	Hosts      map[string]HostRecord  // by node
	Swaps      []Swap
	Neighbours []Neighbour
	// Ports are the readings of switch ports and NICs. NICs are those of the health of NICs.
	Ports map[string]PortReading
	NICs  map[string]NICReading
	// Modules are the readings of modules by port or NIC, and Configured the settings by element.
	Modules    map[string]ModuleReading
	Configured map[string]Configured
	// LoadFrom says whose load the fabric had. It is empty if it was to be idle.
	LoadFrom string
	// Runs are the tests of bandwidth that the site ran.
	Runs []BandwidthRun
	// Unanswered are the NICs whose agents answered, and to which and from which no probe came through.
	Unanswered map[string]uint64 // probes sent, by NIC
}

// FlowRecord sums up the windows of one directed flow in which it had one path. Windows that are no evidence are left out.
type FlowRecord struct {
	Flow     fabric.Flow
	Src, Dst string // in the order in which the packets travel
	Class    string
	// Timestamp is the kind of timestamps of the delays.
	Timestamp string
	// Path is nil if it is not known, or if the packets take several.
	Path    fabric.Path
	Windows int
	// Confirmed is the number of the windows in which the flow had the path for sure. In the others, it had it before.
	Confirmed  int
	Sent, Lost uint64
	// RoundTrip is the number of lost packets of which the direction is not known. They are neither in Sent nor in Lost.
	RoundTrip uint64
	// Marked is the number of packets that were marked congestion experienced, of MarkedOf for which that is known.
	Marked, MarkedOf uint64
	// Medians and Tails are the p50 and p99 of the windows in nanoseconds.
	Medians, Tails []int64
	// ClockErrorNS is the largest bound of the error of the delays, or nil if a clock has none.
	ClockErrorNS *int64
	// clockless is set if a window had delays without a bound of their error.
	clockless bool
}

// ClockRecord is what was seen of the clock of a NIC.
type ClockRecord struct {
	Windows, Locked int
	// WorstBoundNS is the largest bound of its error, or nil if it never had one.
	WorstBoundNS *int64
	Steps        float64 // during the audit
	State        string  // the last one that was not locked
}

// HostRecord is what was seen of a node.
type HostRecord struct {
	Windows, Excluded int
	Reason            string // of the last window that was excluded
}

// Swap is two cables that are plugged into each other's ports.
type Swap struct {
	Planned, Found [2]string
	Flows          int
	LLDP           bool
}

// Neighbour is the far end of a cable, as LLDP reports it at a switch port.
type Neighbour struct{ Port, Far string }

// formatShare returns a small share as text.
func formatShare(v float64) string { return fmt.Sprintf("%.2g", v) }

// formatNS returns a time in nanoseconds as text.
func formatNS(ns float64) string { return time.Duration(ns).Round(10 * time.Nanosecond).String() }
