// Package plan assigns source ports to the queue pairs of jobs, so that a fabric which hashes them is filled evenly. It is
// pure: it reads what it is given, and it has no clock. Rules:
//
//  1. A connection of a job has Q queue pairs, and each carries 1/Q of what the connection carries, which is the job's
//     rate R. (In an all-to-all of n, a connection carries R/(n-1).)
//  2. The capacity of a link's direction is its speed_gbps times goodput_ratio.
//  3. All rates are raised together until a link is full or a rate is its job's demand. The jobs on the link are frozen at
//     this rate, and the others go on.
//  4. Only valid entries of the catalogue are used, whose packets arrive on the side that they left by.
//  5. The worst rates count first (lexicographic max-min), then the utilisation of the fullest links, then the number of
//     queue pairs that a previous plan had elsewhere.
//  6. The same input gives the same plan, octet by octet.
package plan

import (
	"fmt"
	"io"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
)

// Reason states why a queue pair has no port.
type Reason string

// Reasons.
const (
	NoValidPath     Reason = "no_valid_path"     // no valid entry avoids what is excluded
	SameSide        Reason = "same_side"         // all valid entries change sides
	HashBeyondTuple Reason = "hash_beyond_tuple" // the fabric hashes more than addresses and ports
	Sprayed         Reason = "sprayed"           // the fabric spreads the packets of a queue pair, or may
)

// Version is the version of the format of plans.
const Version = 1

// DefaultGoodput is the share of a link's speed that payload reaches: 362 of 400 Gb/s in C4's measurements.
const DefaultGoodput = 0.905

// Plan is the content of a plan.
type Plan struct {
	Version     int          `json:"version"`
	Model       Model        `json:"model"`
	Excluded    []Exclusion  `json:"excluded"`
	Assignments []Assignment `json:"assignments"`
	Links       []LinkLoad   `json:"links"`
	Jobs        []JobRate    `json:"jobs"`
	Unplaced    []Unplaced   `json:"unplaced"`
	Spare       Spare        `json:"spare"`
}

// Model holds the parameters of the model.
type Model struct {
	GoodputRatio float64 `json:"goodput_ratio"`
}

// Exclusion is an element that the plan avoids.
type Exclusion struct {
	Element string `json:"element"`
	Reason  string `json:"reason"`
}

// Assignment is the port of one queue pair.
type Assignment struct {
	Job string `json:"job"`
	// Src and Dst are the NICs that send and receive; of a bond, its members.
	Src string `json:"src"`
	Dst string `json:"dst"`
	// QP is the number of the queue pair in its connection, from 0 on.
	QP    int    `json:"qp"`
	SPort uint16 `json:"sport"`
	// FlowLabel is a label of which the kernel's rule makes the port.
	FlowLabel uint32 `json:"flow_label"`
	// LagPort is the number of the bond's member that sends, from 1 on. It is absent where there is no bond.
	LagPort int     `json:"lag_port,omitempty"`
	Weight  float64 `json:"weight"`
	// Links are the directions of links that the packets cross, as from->to.
	Links []string `json:"links"`
}

// LinkLoad is what a plan puts on a direction of a link, if it puts something there.
type LinkLoad struct {
	From         string  `json:"from"`
	To           string  `json:"to"`
	CapacityGbps float64 `json:"capacity_gbps"`
	PlannedGbps  float64 `json:"planned_gbps"`
	QPs          int     `json:"qps"`
}

// JobRate is the rate of a job by the model. Values that are not known are absent.
type JobRate struct {
	Job        string   `json:"job"`
	BusbwGbps  *float64 `json:"busbw_gbps,omitempty"`
	IdealGbps  *float64 `json:"ideal_gbps,omitempty"`
	Ratio      *float64 `json:"ratio,omitempty"`
	DemandGbps *float64 `json:"demand_gbps,omitempty"`
}

// Unplaced is a queue pair without a port.
type Unplaced struct {
	Job    string `json:"job"`
	Src    string `json:"src"` // NIC or bond
	Dst    string `json:"dst"`
	QP     int    `json:"qp"`
	Reason Reason `json:"reason"`
}

// Spare lists the nodes of the topology that no job of the plan uses.
type Spare struct {
	Nodes []string `json:"nodes"`
}

// FlowLabel returns a flow label of which the kernel's rule makes a source port from 49152 on. 0 is no label, so that
// 49152 has one with a bit above.
func FlowLabel(sport uint16) uint32 {
	if label := uint32(sport) & 0x3fff; label != 0 {
		return label
	}
	return 0x4001
}

// maxPlan bounds the size of a plan that is read, in bytes.
const maxPlan = 1 << 30

// Write writes the plan as JSON: one assignment, link or job per line, so that plans can be compared by lines.
func (p *Plan) Write(w io.Writer) error {
	out := errWriter{w: w}
	out.print("{\"version\":%d,\"model\":", p.Version)
	out.value(p.Model)
	writeList(&out, "excluded", p.Excluded)
	writeList(&out, "assignments", p.Assignments)
	writeList(&out, "links", p.Links)
	writeList(&out, "jobs", p.Jobs)
	writeList(&out, "unplaced", p.Unplaced)
	out.print(",\n\"spare\":")
	out.value(p.Spare)
	out.print("}\n")
	return out.err
}

// errWriter writes until the first error.
type errWriter struct {
	w   io.Writer
	err error
}

func (w *errWriter) print(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}

func (w *errWriter) value(v any) {
	if w.err != nil {
		return
	}
	var b trimmed
	if w.err = plainjson.NewEncoder(&b).Encode(v); w.err == nil {
		_, w.err = w.w.Write(b)
	}
}

// trimmed collects what is written, without line breaks at the end of a write.
type trimmed []byte

func (t *trimmed) Write(b []byte) (int, error) {
	n := len(b)
	if n > 0 && b[n-1] == '\n' {
		b = b[:n-1]
	}
	*t = append(*t, b...)
	return n, nil
}

func writeList[T any](w *errWriter, key string, items []T) {
	w.print(",\n%q:[", key)
	for i := range items {
		if i > 0 {
			w.print(",")
		}
		w.print("\n")
		w.value(items[i])
	}
	w.print("]")
}

// Read reads a plan. An error names the field that is wrong.
func Read(r io.Reader) (*Plan, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxPlan+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxPlan {
		return nil, fmt.Errorf("more than %d bytes", maxPlan)
	}
	p := &Plan{}
	if err := jsonv2.Unmarshal(b, p); err != nil {
		return nil, fabric.DescribeJSONError(err)
	}
	if p.Version != Version {
		return nil, fmt.Errorf("field %q: %d is expected: this is the only version of the format", "version", Version)
	}
	if !(p.Model.GoodputRatio > 0 && p.Model.GoodputRatio <= 1) {
		return nil, fmt.Errorf("field %q: a number above 0, up to 1, is expected", "model.goodput_ratio")
	}
	for i := range p.Assignments {
		if err := p.Assignments[i].check(); err != nil {
			return nil, fmt.Errorf("assignments[%d]: %w", i, err)
		}
	}
	return p, nil
}

// check returns an error that names the field which is wrong.
func (a *Assignment) check() error {
	switch {
	case a.Job == "":
		return fmt.Errorf("field %q: a name is expected", "job")
	case !fabric.IsNIC(a.Src):
		return fmt.Errorf("field %q: %q: a NIC is expected (node/device)", "src", truncate(a.Src))
	case !fabric.IsNIC(a.Dst):
		return fmt.Errorf("field %q: %q: a NIC is expected (node/device)", "dst", truncate(a.Dst))
	case a.QP < 0 || a.QP >= maxQPs:
		return fmt.Errorf("field %q: a number from 0 to %d is expected", "qp", maxQPs-1)
	case a.SPort < FirstRoCEPort:
		return fmt.Errorf("field %q: %d: a port from %d to 65535 is expected", "sport", a.SPort, FirstRoCEPort)
	case !(a.Weight > 0 && a.Weight <= 1):
		return fmt.Errorf("field %q: a number above 0, up to 1, is expected", "weight")
	case len(a.Links) < 2:
		return fmt.Errorf("field %q: at least two directions of links are expected", "links")
	}
	for _, l := range a.Links {
		if _, err := fabric.ParseDirection(l); err != nil {
			return fmt.Errorf("field %q: %w", "links", err)
		}
	}
	return nil
}
