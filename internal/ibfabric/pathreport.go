package ibfabric

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibmad"
)

// HopReport is a hop of a PathReport.
type HopReport struct {
	Switch string `json:"switch"`
	In     string `json:"in"`
	Out    string `json:"out"`
	LID    LID    `json:"lid,omitempty"`
	VL     *uint8 `json:"vl,omitempty"` // by which it leaves the switch
}

// PathReport is the published form of a path by the forwarding tables.
type PathReport struct {
	Edge       string           `json:"edge"`
	State      fabric.PathState `json:"state"`
	SrcLID     LID              `json:"src_lid"`
	DstLID     LID              `json:"dst_lid"`
	SL         *uint8           `json:"sl,omitempty"`
	Hops       []HopReport      `json:"hops"`
	Candidates [][]HopReport    `json:"candidates,omitempty"`
	Notes      []string         `json:"notes"`
}

// maxCandidates bounds the candidates that are listed.
const maxCandidates = 32

// FindPath walks the forwarding tables between two ends, which FindLID accepts. It also returns the hops.
func (f *Fabric) FindPath(src, dst string, sl uint8) (*PathReport, []Hop, error) {
	srcLID, err := f.FindLID(src)
	if err != nil {
		return nil, nil, err
	}
	dstLID, err := f.FindLID(dst)
	if err != nil {
		return nil, nil, err
	}
	from, _ := f.ByLID(srcLID)
	to, _ := f.ByLID(dstLID)
	out := &PathReport{Edge: f.EndName(from) + ">" + f.EndName(to) + "#0", State: fabric.PathValid, SrcLID: srcLID, DstLID: dstLID, Notes: []string{}}
	hops, failed := f.Walk(srcLID, dstLID)
	all, whole, lost := f.CandidateWalks(srcLID, dstLID, sl, maxCandidates)
	out.Hops = nameHops(f, hops)
	switch {
	case failed != nil:
		out.State = fabric.PathUnknown
		out.Notes = append(out.Notes, failed.Error())
	case lost != nil:
		out.State, out.Hops = fabric.PathUnknown, []HopReport{}
		out.Notes = append(out.Notes, "adaptive routing: "+lost.Error())
	case len(all) > 1:
		out.State, out.Hops = fabric.PathUnknown, []HopReport{}
		for _, hops := range all {
			out.Candidates = append(out.Candidates, nameHops(f, hops))
		}
		out.Notes = append(out.Notes, "adaptive routing: switches may choose between ports")
		if !whole {
			out.Notes = append(out.Notes, fmt.Sprintf("only %d candidates are listed", maxCandidates))
		}
	}
	return out, hops, nil
}

func nameHops(f *Fabric, hops []Hop) []HopReport {
	out := make([]HopReport, len(hops))
	for i, h := range hops {
		out[i] = HopReport{Switch: f.NodeName(h.Switch), In: strconv.Itoa(int(h.In)), Out: strconv.Itoa(int(h.Out)), LID: f.FirstLID(End{Node: h.Switch})}
	}
	return out
}

// ReadPath reads a fabric twice and walks its forwarding tables between two ends. The path is valid if both readings
// agree; then its virtual lanes are read as well.
func ReadPath(ctx context.Context, client *ibmad.Client, src, dst string, sl uint8) (*PathReport, error) {
	w := Watch{Client: client, Now: time.Now, MaxGap: time.Minute, CableInterval: time.Minute}
	first, err := w.Read(ctx)
	if err != nil {
		return nil, err
	}
	second, err := w.Read(ctx)
	if err != nil {
		return nil, err
	}
	out, hops, err := second.Fabric.FindPath(src, dst, sl)
	if err != nil {
		return nil, err
	}
	if first.Fabric != second.Fabric {
		before, _, err := first.Fabric.FindPath(src, dst, sl)
		if err != nil || describeHops(before.Hops) != describeHops(out.Hops) {
			out.markChanged()
		}
	}
	if out.State == fabric.PathValid {
		lanes, err := ReadVirtualLanes(ctx, client, second.Fabric, hops, sl)
		if err != nil {
			out.Notes = append(out.Notes, "virtual lanes: "+err.Error())
			return out, nil
		}
		out.SL = &sl
		for i := range lanes {
			out.Hops[i].VL = &lanes[i]
		}
	}
	return out, nil
}

// markChanged notes that an earlier reading has another path, so that this one is stale.
func (p *PathReport) markChanged() {
	p.Notes = append(p.Notes, "the tables change: two readings differ on this path")
	if p.State == fabric.PathValid {
		p.State = fabric.PathStale
	}
}

func describeHops(hops []HopReport) string {
	s := ""
	for _, h := range hops {
		s += h.Switch + "[" + h.In + ">" + h.Out + "]"
	}
	return s
}

// WriteText writes the path for a terminal.
func (p *PathReport) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "path of %s, LID %d to LID %d: %s\n", fabric.DecodeName(p.Edge), p.SrcLID, p.DstLID, p.State)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "hop\tswitch\tLID\tin\tout\tVL\n")
	list := func(hops []HopReport) {
		for i, h := range hops {
			vl := "*"
			if h.VL != nil {
				vl = strconv.Itoa(int(*h.VL))
			}
			fmt.Fprintf(tw, "%3d\t%s\t%d\t%s\t%s\t%s\n", i+1, fabric.DecodeName(h.Switch), h.LID, h.In, h.Out, vl)
		}
	}
	list(p.Hops)
	for i, hops := range p.Candidates {
		fmt.Fprintf(tw, "candidate %d\n", i+1)
		list(hops)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, n := range p.Notes {
		fmt.Fprintf(w, "  note: %s\n", n)
	}
	return nil
}
