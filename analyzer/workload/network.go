package workload

import (
	"slices"
	"time"
)

// Verdict is one of the fabric about an element on a way of a connection, in its direction.
type Verdict struct {
	ID          string
	Element     string // identifier of internal/fabric
	Link        bool
	HardFailure bool
}

// Evidence is what the fabric knows of a connection.
type Evidence struct {
	Verdicts      []Verdict
	Coverage      float64 // share of its candidate ways that clean probes cover
	CoverageKnown bool
	PeerNormal    bool   // another job that uses these ways runs as it usually does
	Reason        string // why nothing is known; empty: something is
}

// Fabric answers what the probes of the fabric say of a connection between two ranks over a span of time.
type Fabric interface {
	Connection(from, to Place, since, until time.Time) Evidence
}

// nothing is the evidence without a fabric.
const nothing = "no evidence of the fabric was given"

// blame says whether the network is to blame for a finding.
func (t *Tracker) blame(d *Diagnosis, f *finding, fabric Fabric) {
	n := &d.Network
	*n = Network{State: Insufficient, Verdicts: []string{}}
	if f.syndrome == NonCommSlow || f.syndrome == NonCommHang {
		n.State, n.Reason = Innocent, "the ranks wait for a rank and not for data"
		return
	}
	if fabric == nil {
		n.Reason = nothing
		return
	}
	if len(f.connections) == 0 {
		n.Reason = "the records do not say which connection is slow"
		return
	}
	least, known, peer := 1.0, true, true
	for _, p := range f.connections {
		e := fabric.Connection(p.from.place, p.to.place, d.BeganAt.Add(-fabricWithin), d.BeganAt.Add(fabricWithin))
		d.accuse(e.Verdicts)
		known, peer = known && e.CoverageKnown, peer && e.PeerNormal
		least = min(least, e.Coverage)
		if e.Reason != "" {
			n.Reason = e.Reason
		}
	}
	if known {
		n.Coverage = &least
	}
	// A sender's time on the wire ends with the acknowledgement, which comes back another way.
	d.ReturnVerdicts = nil
	for _, p := range f.connections {
		for _, v := range fabric.Connection(p.to.place, p.from.place, d.BeganAt.Add(-fabricWithin), d.BeganAt.Add(fabricWithin)).Verdicts {
			d.ReturnVerdicts = append(d.ReturnVerdicts, v.ID)
		}
	}
	switch {
	case n.State == Guilty:
		n.Reason = ""
	case known && least >= leastRanks && peer:
		n.State, n.Reason = Innocent, ""
	case n.Reason != "":
	case !known || least < leastRanks:
		n.Reason = "clean probes do not cover 90 % of the ways of the connection"
	default:
		n.Reason = "clean probes cover the ways, but no other job that uses them is known to run normally"
	}
}

// accuse makes the network guilty by verdicts. The first element stands for all.
func (d *Diagnosis) accuse(verdicts []Verdict) {
	n := &d.Network
	for _, v := range verdicts {
		if slices.Contains(n.Verdicts, v.ID) {
			continue
		}
		n.State, n.Verdicts = Guilty, append(n.Verdicts, v.ID)
		if n.Element == "" {
			n.Element = v.Element
		}
		if v.Link && !slices.Contains(d.Isolate.Links, v.Element) {
			d.Isolate.Links = append(d.Isolate.Links, v.Element)
		}
	}
}
