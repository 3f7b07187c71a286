package ibfabric

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// FabricReport is the published form of a discovery.
type FabricReport struct {
	Nodes  []NodeReport       `json:"nodes"`
	Ports  []Connection       `json:"ports"`
	Silent []UnansweredReport `json:"silent"`
	Notes  []string           `json:"notes"`
}

// NodeReport is a node of a FabricReport.
type NodeReport struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	GUID        string `json:"guid"`
	System      string `json:"system_guid"`
	LID         LID    `json:"lid,omitempty"`
	Vendor      string `json:"vendor_id,omitempty"`
	Device      uint16 `json:"device_id,omitempty"`
	Ports       int    `json:"ports"`
	Description string `json:"description"`
}

// UnansweredReport is a question that was not answered.
type UnansweredReport struct {
	Near  string `json:"near"`
	Route string `json:"route"`
	Query string `json:"asked"`
	Error string `json:"error"`
}

// Describe returns the published form of a discovery with its findings.
func (f *Fabric) Describe(found []string) FabricReport {
	out := FabricReport{Nodes: []NodeReport{}, Ports: f.ListConnections(), Silent: []UnansweredReport{}, Notes: append([]string{}, found...)}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		x := NodeReport{Name: f.NodeName(int32(i)), Type: n.Type.String(), GUID: n.GUID.String(), System: n.System.String(), LID: f.FirstLID(End{Node: int32(i), Port: 1}),
			Device: n.Device, Ports: max(len(n.Ports)-1, 0), Description: n.Description}
		if n.Vendor != 0 {
			x.Vendor = fmt.Sprintf("%#06x", n.Vendor)
		}
		out.Nodes = append(out.Nodes, x)
	}
	for _, q := range f.Unanswered {
		out.Silent = append(out.Silent, UnansweredReport{Near: f.EndName(q.Near), Route: q.Route.String(), Query: q.Query, Error: q.Err.Error()})
	}
	return out
}

// WriteText writes the report on a fabric for a terminal. took is 0 if the fabric was not read now.
func (r *FabricReport) WriteText(w io.Writer, f *Fabric, took time.Duration) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "port\tLID\tpeer\tLID\trate\n")
	for _, l := range f.ListCables() {
		rate := "*"
		if p := f.PortAt(l.A); p.Width > 0 && p.Speed > 0 {
			rate = fmt.Sprintf("%dx %s", p.Width, p.Speed)
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%d\t%s\n", fabric.DecodeName(f.EndName(l.A)), f.FirstLID(l.A), fabric.DecodeName(f.EndName(l.B)), f.FirstLID(l.B), rate)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, q := range r.Silent {
		fmt.Fprintf(w, "does not answer: %s near %s, route %s: %s\n", q.Query, fabric.DecodeName(q.Near), q.Route, q.Error)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	fmt.Fprintf(w, "%d switches, %d other nodes, %d cables", f.Switches, len(f.Nodes)-f.Switches, len(f.ListCables()))
	if took > 0 {
		fmt.Fprintf(w, ", read in %s", took.Round(time.Millisecond))
	}
	_, err := fmt.Fprintln(w)
	return err
}
