package coordinator

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
)

// claim represents what one NIC uses of what agents report: an address, if the topology gives it none,
// and the GID of its queue pair. Of two claims of the same address the one with the lower order is
// older and wins.
type claim struct {
	address      netip.Addr // invalid if there is none
	addressOrder uint64
	gid          netip.Addr // invalid if there is none
	gidOrder     uint64
}

// Reasons why a reported address or GID is not used.
const (
	conflictTopology = "topology"         // the interface of a NIC lacks the address that the topology gives to the NIC
	conflictForeign  = "foreign"          // the topology gives it to another node or switch
	conflictClaimed  = "claimed"          // another NIC has it
	conflictPrefix   = "outside_prefixes" // it lies outside the prefixes for addresses of agents
)

// conflictReasons lists all reasons of conflicts.
var conflictReasons = []string{conflictTopology, conflictForeign, conflictClaimed, conflictPrefix}

// conflict is an address or a GID that was reported and is not used, with the reason.
type conflict struct{ reason, text string }

// interfaceReport is what the agent of a node reports of its interfaces.
type interfaceReport struct {
	interfaces []interfaceState
	order      uint64 // reports that came first have lower numbers; 0 means that it is from before the start
}

// interfaceOf returns the first interface that belongs to the NIC, and that has usable addresses, with
// these addresses: those that can be probed. If there is none, it returns the first InfiniBand port that
// belongs to the NIC and that is probed without addresses, or nil. An interface belongs to a NIC by its
// device or an alias, or by the GUID of its InfiniBand port. A port whose GUID another NIC of the node has
// is not that of a NIC with its name.
func (r *interfaceReport) interfaceOf(nic *fabric.NIC, guids map[string]string) (f *interfaceState, usable []netip.Addr) {
	var bare *interfaceState
	for i := range r.interfaces {
		f := &r.interfaces[i]
		owner := guids[f.portGUID()]
		if named := f.Name == nic.Device || slices.Contains(nic.Aliases, f.Name); owner != nic.ID() && (owner != "" || !named) {
			continue
		}
		usable := slices.DeleteFunc(slices.Clone(f.Addresses), func(a netip.Addr) bool { return !isProbeable(a) })
		if len(usable) > 0 {
			return f, usable
		}
		if bare == nil && f.Port != nil && (f.AwaitsRDMA || f.RDMA != nil) {
			bare = f
		}
	}
	return bare, nil
}

// guidsOf returns the NICs of a node by the GUIDs that they have as aliases, in lower case.
func guidsOf(g *fabric.Graph, node string) map[string]string {
	n := g.Node(node)
	if n == nil {
		return nil
	}
	out := map[string]string{}
	for i := range n.NICs {
		for _, alias := range n.NICs[i].Aliases {
			if guid, ok := strings.CutPrefix(alias, "guid:"); ok {
				out[strings.ToLower(guid)] = n.NICs[i].ID()
			}
		}
	}
	return out
}

// resolver finds the addresses and queue pairs of a plan's NICs.
type resolver struct {
	p            *plan
	in           *planInput
	owners       map[netip.Addr]string // node or switch by address that the topology gives to it
	nicByAddress map[netip.Addr]int32  // NIC by address that is in use and that the topology gives to it
	lastOrder    uint64                // the highest order of a claim

	reportedNICs []reportedNIC // NICs with a report, the oldest report first
}

// reportedNIC is a NIC whose interface an agent reports.
type reportedNIC struct {
	nic    int32
	order  uint64
	f      *interfaceState
	usable []netip.Addr
}

// resolveAddresses finds the address of every NIC. The topology's address wins; if the agent reports
// another one, that is a conflict. A NIC without an address in the topology gets the first one that its
// agent reports, that lies in the prefixes for agents, that the topology does not give to another
// owner, and that no other NIC has claimed before. The same holds for GIDs of queue pairs. A claim ends
// when the agent no longer reports what was claimed.
func (p *plan) resolveAddresses(in planInput) {
	r := &resolver{p: p, in: &in, owners: topologyOwners(p.graph), nicByAddress: map[netip.Addr]int32{}}
	for _, c := range in.claims {
		r.lastOrder = max(r.lastOrder, c.addressOrder, c.gidOrder)
	}
	p.claims = map[string]claim{}
	node, guids := "", map[string]string(nil)
	for i, id := range p.sched.NICs {
		nic := p.graph.NIC(id)
		if nic == nil {
			continue
		}
		rep := in.reported[nic.Node]
		if nic.Node != node {
			node, guids = nic.Node, guidsOf(p.graph, nic.Node)
		}
		f, usable := rep.interfaceOf(nic, guids)
		if f != nil {
			p.endpoints[i].iface, p.endpoints[i].hardware, p.endpoints[i].bare = f.Name, f.Hardware, len(usable) == 0
			r.reportedNICs = append(r.reportedNICs, reportedNIC{int32(i), rep.order, f, usable})
		}
		if !p.endpoints[i].bare {
			r.fromTopology(int32(i), nic, usable)
		}
	}
	slices.SortStableFunc(r.reportedNICs, func(a, b reportedNIC) int { return cmp.Compare(a.order, b.order) })
	r.fromReports()
	r.queuePairs()
}

// topologyOwners returns the node or switch of every address in the topology.
func topologyOwners(g *fabric.Graph) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for i := range g.Topo.Switches {
		for _, a := range g.Topo.Switches[i].Addresses {
			out[a.Unmap()] = g.Topo.Switches[i].Name
		}
	}
	for i := range g.Topo.Nodes {
		n := &g.Topo.Nodes[i]
		if a, err := netip.ParseAddr(n.Address); err == nil {
			out[a.Unmap()] = n.Name
		}
		for j := range n.NICs {
			for _, a := range n.NICs[j].Addresses {
				out[a.Unmap()] = n.Name
			}
		}
	}
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		if l.AAddress.IsValid() {
			out[l.AAddress.Addr().Unmap()] = fabric.OwnerOf(l.A)
		}
		if l.BAddress.IsValid() {
			out[l.BAddress.Addr().Unmap()] = fabric.OwnerOf(l.B)
		}
	}
	return out
}

// addressesOf returns the addresses that the topology gives to a NIC and that can be probed, in order
// of preference.
func addressesOf(g *fabric.Graph, nic *fabric.NIC) (out []netip.Addr) {
	all := slices.Clone(nic.Addresses)
	if l := g.LinkAt(nic.ID()); l != nil {
		own := l.AAddress
		if l.B == nic.ID() {
			own = l.BAddress
		}
		all = append(all, own.Addr())
	}
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return !isProbeable(a) })
}

func (r *resolver) addConflict(reason, format string, args ...any) {
	r.p.conflicts = append(r.p.conflicts, conflict{reason, fmt.Sprintf(format, args...)})
}

// fromTopology gives a NIC its address in the topology: if there are several, the first that its agent
// reports. If two NICs have the same address, the first by name gets it.
func (r *resolver) fromTopology(i int32, nic *fabric.NIC, usable []netip.Addr) {
	own := addressesOf(r.p.graph, nic)
	if len(own) == 0 {
		return
	}
	address := own[0]
	if k := slices.IndexFunc(own, func(a netip.Addr) bool { return slices.Contains(usable, a) }); k >= 0 {
		address = own[k]
	} else if len(usable) > 0 {
		r.addConflict(conflictTopology, "the topology gives %v to %s, and its agent reports %v", address, nic.ID(), usable[0])
	}
	if o, taken := r.nicByAddress[address]; taken {
		r.addConflict(conflictClaimed, "%v of %s is also claimed by %s", address, r.p.sched.NICs[o], nic.ID())
		return
	}
	r.nicByAddress[address] = i
	r.p.endpoints[i].addr = address
}

// refusalReason returns why a NIC may not have an address, independent of the claims of other NICs, and
// the owner of a foreign address. The reason is empty when the NIC may have it.
func (r *resolver) refusalReason(node string, a netip.Addr) (reason, owner string) {
	if owner := r.owners[a.Unmap()]; owner != "" && owner != node {
		return conflictForeign, owner
	}
	if !inPrefixes(r.in.prefixes, a) {
		return conflictPrefix, ""
	}
	return "", ""
}

func inPrefixes(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// fromReports gives addresses to NICs that have none in the topology: first to those that have a claim,
// then to the others, in the order of their reports.
func (r *resolver) fromReports() {
	p := r.p
	owner := make(map[netip.Addr]int32, len(r.reportedNICs))
	for a, i := range r.nicByAddress {
		owner[a] = i
	}
	without := slices.DeleteFunc(slices.Clone(r.reportedNICs), func(w reportedNIC) bool {
		return p.endpoints[w.nic].bare || len(addressesOf(p.graph, p.graph.NIC(p.sched.NICs[w.nic]))) > 0
	})
	take := func(w reportedNIC, a netip.Addr, order uint64) {
		owner[a], p.endpoints[w.nic].addr = w.nic, a
		id := p.sched.NICs[w.nic]
		c := p.claims[id]
		c.address, c.addressOrder = a, order
		p.claims[id] = c
	}
	holders := slices.Clone(without)
	slices.SortStableFunc(holders, func(a, b reportedNIC) int {
		return cmp.Compare(r.in.claims[p.sched.NICs[a.nic]].addressOrder, r.in.claims[p.sched.NICs[b.nic]].addressOrder)
	})
	for _, w := range holders {
		id := p.sched.NICs[w.nic]
		c := r.in.claims[id]
		reason, _ := r.refusalReason(fabric.OwnerOf(id), c.address)
		if _, taken := owner[c.address]; c.address.IsValid() && slices.Contains(w.usable, c.address) && reason == "" && !taken {
			take(w, c.address, c.addressOrder)
		}
	}
	for _, w := range without {
		id := p.sched.NICs[w.nic]
		var outside netip.Addr
		for _, a := range w.usable {
			if p.endpoints[w.nic].addr.IsValid() {
				break
			}
			reason, of := r.refusalReason(fabric.OwnerOf(id), a)
			o, taken := owner[a]
			switch {
			case reason == conflictForeign:
				r.addConflict(reason, "the topology gives %v to %s, and the agent of %s reports it", a, of, id)
			case reason == conflictPrefix:
				outside = a
			case taken:
				r.addConflict(conflictClaimed, "%v of %s is also claimed by %s", a, p.sched.NICs[o], id)
			default:
				r.lastOrder++
				take(w, a, r.lastOrder)
			}
		}
		if !p.endpoints[w.nic].addr.IsValid() && outside.IsValid() {
			r.addConflict(conflictPrefix, "%v of %s lies outside the prefixes for addresses of agents", outside, id)
		}
	}
}

// queuePairs gives NICs the queue pairs that agents report, unless another NIC has the GID.
func (r *resolver) queuePairs() {
	p := r.p
	with := slices.DeleteFunc(slices.Clone(r.reportedNICs), func(w reportedNIC) bool { return w.f.RDMA == nil })
	owner := make(map[netip.Addr]int32, len(with))
	take := func(w reportedNIC, order uint64) {
		q := w.f.RDMA
		owner[q.GID] = w.nic
		p.endpoints[w.nic].rdma = &agentapi.RDMA{Device: q.Device, Port: q.Port, Gid: q.GID.AsSlice(), Qpn: q.QPN, QKey: q.QKey, Lid: q.LID, Hardware: q.Hardware}
		id := p.sched.NICs[w.nic]
		c := p.claims[id]
		c.gid, c.gidOrder = q.GID, order
		p.claims[id] = c
	}
	held := func(w reportedNIC) claim { return r.in.claims[p.sched.NICs[w.nic]] }
	holders := slices.DeleteFunc(slices.Clone(with), func(w reportedNIC) bool { return held(w).gid != w.f.RDMA.GID })
	slices.SortStableFunc(holders, func(a, b reportedNIC) int { return cmp.Compare(held(a).gidOrder, held(b).gidOrder) })
	for _, w := range holders {
		_, taken := owner[w.f.RDMA.GID]
		if reason, _ := r.gidRefusalReason(w); reason == "" && !taken {
			take(w, held(w).gidOrder)
		}
	}
	for _, w := range with {
		if p.endpoints[w.nic].rdma != nil {
			continue
		}
		id, gid := p.sched.NICs[w.nic], agentapi.AddrFromBytes(w.f.RDMA.GID.AsSlice())
		reason, of := r.gidRefusalReason(w)
		o, taken := owner[w.f.RDMA.GID]
		switch {
		case reason == conflictForeign:
			r.addConflict(reason, "the topology gives %v to %s, and the agent of %s reports it as GID", gid, of, id)
		case reason == conflictPrefix:
			r.addConflict(reason, "GID %v of %s lies outside the prefixes for addresses of agents", gid, id)
		case taken:
			r.addConflict(conflictClaimed, "GID %v of %s is also claimed by %s", gid, p.sched.NICs[o], id)
		default:
			r.lastOrder++
			take(w, r.lastOrder)
		}
	}
}

// gidRefusalReason returns why a NIC may not have the GID that its agent reports, independent of the
// claims of other NICs. A GID of RoCE is an address (IB specification 1.4, annex A17.4.5): the NIC's
// own, or one that the NIC could have. A GID that is local to a link, or that is of InfiniBand, leads
// to no other host. The reason is empty when the NIC may have the GID.
func (r *resolver) gidRefusalReason(w reportedNIC) (reason, owner string) {
	q, id := w.f.RDMA, r.p.sched.NICs[w.nic]
	gid := q.GID.Unmap()
	reason, owner = r.refusalReason(fabric.OwnerOf(id), gid)
	local := gid.IsLinkLocalUnicast() || q.LID != 0 && gid.Is6()
	if reason == conflictPrefix && (local || gid == r.p.endpoints[w.nic].addr || r.owners[gid] == fabric.OwnerOf(id)) {
		return "", ""
	}
	return reason, owner
}
