package analyzer

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sourceroute"
	"github.com/graylink/graylink/internal/srv6"
)

// resolveRefusals returns what switches say of identifiers that they do not know, in the topology's terms, each once. Answers from
// addresses that the topology does not have are left out.
func resolveRefusals(g *fabric.Graph, all []evidence.Refusal) (out []routing.Refusal) {
	if len(all) == 0 {
		return nil
	}
	table, err := sourceroute.NewTable(g)
	if err != nil {
		return nil
	}
	for i := range all {
		r := &all[i]
		sw := switchAt(g, r.From)
		if sw == "" {
			continue
		}
		if i := slices.IndexFunc(out, func(o routing.Refusal) bool { return o.Switch == sw && o.SID == r.SID.String() }); i >= 0 {
			out[i].NICs++
			continue
		}
		x := routing.Refusal{Switch: sw, SID: r.SID.String(), Prefix: table.Block().AdjacencyPrefix(r.SID).String(), NICs: 1}
		switch {
		case r.SID == srv6.Decapsulate:
			x.Last = true
		case r.SID.IsAdjacency():
			_, x.Port, _ = fabric.SplitPort(table.PortOf(sw, r.SID))
		default:
			x.Next = table.SwitchOf(r.SID)
		}
		out = append(out, x)
	}
	for i := range out {
		r := &out[i]
		r.Mutual = r.Neighbour(g) != "" && slices.ContainsFunc(out, func(o routing.Refusal) bool { return o.Switch == r.Neighbour(g) && o.Neighbour(g) == r.Switch })
	}
	slices.SortFunc(out, func(a, b routing.Refusal) int {
		return cmp.Or(cmp.Compare(a.Switch, b.Switch), cmp.Compare(a.SID, b.SID))
	})
	return out
}

// switchAt returns the switch that has an address, or "".
func switchAt(g *fabric.Graph, a netip.Addr) string {
	end, _ := fabric.IngressPort(g, fabric.RawHop{Address: a})
	if end == "" || fabric.IsNIC(end) {
		return ""
	}
	return fabric.OwnerOf(end)
}

// markRefused marks the observations of flows whose packets a switch alone refuses: nothing that is missing of them was lost by a part.
func markRefused(obs []*fabric.Observation, refusals []routing.Refusal) {
	if len(refusals) == 0 {
		return
	}
	for _, o := range obs {
		o.Refused = o.Chosen && slices.ContainsFunc(refusals, func(r routing.Refusal) bool { return !r.Mutual && r.Meets(o.Path) })
	}
}

// straysOf returns the flows that do not take their chosen path, in the terms of the faults of routing. Those whose packets come to another leaf
// first say nothing of a switch.
func straysOf(all []paths.Stray) (out []routing.Stray) {
	for i := range all {
		if s := &all[i]; s.Hop > 0 {
			out = append(out, routing.Stray{Flow: s.Flow, Switch: s.Path[s.Hop-1].Switch, Next: s.Path[s.Hop].Switch, Seen: fabric.OwnerOf(s.End)})
		}
	}
	return out
}
