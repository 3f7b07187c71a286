package coordinator

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/sourceroute"
)

// carriers are the chosen paths of the edges of a plan.
type carriers struct {
	table *sourceroute.Table
	// ways are the destinations that list the paths of the probes of an edge and of the replies, by the key of the edge. temporary are
	// those of temporary flows.
	ways, temporary map[uint64][2]netip.Addr
	// uncovered are the links that fewer flows cross than needed, with the reasons.
	uncovered []sourceroute.Uncovered
}

// chooseCarriers chooses the paths of the edges that can be probed, if the fabric lets hosts choose. It returns nil otherwise.
func (p *plan) chooseCarriers() (*carriers, error) {
	table, err := sourceroute.NewTable(p.graph)
	switch {
	case errors.Is(err, sourceroute.ErrNotSourceRouted):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("locators of the topology: %w", err)
	}
	var flows []fabric.Flow
	var keys []uint64
	for i := range p.sched.Edges {
		e := &p.sched.Edges[i]
		byRDMA := p.endpoints[e.Src].rdma != nil && p.endpoints[e.Dst].rdma != nil
		if p.canProbe(e) && p.endpoints[e.Src].addr.Is6() && !byRDMA {
			flows = append(flows, p.sched.FlowID(*e))
			keys = append(keys, edgeKey(e.Src, e.Dst, int(e.Flow), false))
		}
	}
	chosen := table.Choose(flows)
	out := &carriers{table: table, ways: make(map[uint64][2]netip.Addr, len(flows)), uncovered: chosen.Uncovered}
	for i, c := range chosen.Choices {
		if c.ProbeCarrier.IsValid() {
			out.ways[keys[i]] = [2]netip.Addr{c.ProbeCarrier, c.ReplyCarrier}
		}
	}
	return out, nil
}

// withTemporary returns the carriers with those of temporary flows. The flows between two NICs take their shortest paths in turn, so that
// a few of them cross every element that lies between the two on some path.
func (c *carriers) withTemporary(p *plan, flows []schedule.Edge) *carriers {
	if c == nil {
		return nil
	}
	out := *c
	out.temporary = map[uint64][2]netip.Addr{}
	for i := range flows {
		e := &flows[i]
		byRDMA := p.endpoints[e.Src].rdma != nil && p.endpoints[e.Dst].rdma != nil
		if !p.canProbe(e) || !p.endpoints[e.Src].addr.Is6() || byRDMA {
			continue
		}
		f := p.base.FlowID(*e)
		if probe, reply, err := c.table.NthWay(f.Src, f.Dst, int(e.Flow)%fabric.FlowsPerClass-fabric.ScheduledFlows); err == nil {
			out.temporary[edgeKey(e.Src, e.Dst, int(e.Flow), false)] = [2]netip.Addr{probe, reply}
		}
	}
	return &out
}

// wayOf returns the destinations of an edge's probes and of the replies as octets, none if switches choose the path.
func (c *carriers) wayOf(src, dst int32, flow int) (probe, reply []byte) {
	if c == nil {
		return nil, nil
	}
	from := c.ways
	if fabric.IsTemporaryFlow(flow) {
		from = c.temporary
	}
	way, ok := from[edgeKey(src, dst, flow, false)]
	if !ok {
		return nil, nil
	}
	return way[0].AsSlice(), way[1].AsSlice()
}

// resolveTrace returns the path of a trace: the one that the agent chose, as it says, or that of the switches that answered.
func (p *plan) resolveTrace(from, to string, t fabric.Trace) fabric.Resolved {
	if t.Carrier.IsValid() && p.carriers != nil {
		return p.carriers.table.Resolve(from, to, t)
	}
	return fabric.ResolveTrace(p.graph, from, to, t)
}
