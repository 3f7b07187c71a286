package fabric

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The beginnings of aliases that are a GUID and a LID.
const (
	guidAlias = "guid:"
	lidAlias  = "lid:"
)

// MergeNodes adds what nodes report of their NICs to a topology that was read from an InfiniBand subnet, whose NICs have their GUIDs as aliases. A
// NIC is that of the subnet which has its GUID. If the node does not know the GUID, it is the one whose host and device have its names; the host's may
// be without a domain. The merged NIC is on the node that reports it, has the node's name for it as an alias, and has its addresses, plane, rail and
// side. What contradicts is a finding, and the NIC is left as it is in the subnet.
func MergeNodes(t *Topology, nodes []NodeView) Problems {
	m := &merger{t: t, byGUID: map[string]nicPlace{}, taken: map[nicPlace]string{}, hosts: map[string][]int{}}
	for i, n := range t.Nodes {
		short, _, _ := strings.Cut(n.Name, ".")
		m.hosts[short] = append(m.hosts[short], i)
		for k, nic := range n.NICs {
			if guid := guidOf(&nic); guid != "" {
				m.byGUID[guid] = nicPlace{i, k}
			}
		}
	}
	sorted := slices.Clone(nodes)
	slices.SortStableFunc(sorted, func(a, b NodeView) int { return cmp.Compare(a.Node, b.Node) })
	for _, n := range sorted {
		for i := range n.NICs {
			m.addNIC(n.Node, &n.NICs[i])
		}
	}
	m.move()
	return m.problems
}

// nicPlace is the place of a node in a topology, and of a NIC in the node.
type nicPlace struct{ node, nic int }

// merger merges reports of nodes into a topology.
type merger struct {
	t        *Topology
	byGUID   map[string]nicPlace
	hosts    map[string][]int // nodes by their names without a domain
	taken    map[nicPlace]string
	problems Problems
}

func (m *merger) errorf(field, format string, args ...any) {
	m.problems = append(m.problems, Problem{File: discovered, Field: field, Message: fmt.Sprintf(format, args...)})
}

func (m *merger) warnf(field, format string, args ...any) {
	m.problems = append(m.problems, Problem{File: discovered, Field: field, Message: fmt.Sprintf(format, args...), Warning: true})
}

// guidOf returns the GUID of a NIC in lower case, or nothing if it has none.
func guidOf(n *NIC) string {
	for _, a := range n.Aliases {
		if guid, ok := strings.CutPrefix(a, guidAlias); ok {
			return strings.ToLower(guid)
		}
	}
	return ""
}

// addNIC finds the NIC of a report, and adds the report to it.
func (m *merger) addNIC(node string, v *NICView) {
	_, device, ok := SplitNIC(v.NIC)
	if !ok {
		m.errorf(v.NIC, "is no NIC of %s: node/device is expected", node)
		return
	}
	guid := strings.ToLower(v.GUID)
	named, hasName := m.byName(node, device)
	at, found := named, hasName
	if guid != "" {
		at, found = m.byGUID[guid]
	} else if !found && v.RDMADevice != "" {
		at, found = m.byName(node, v.RDMADevice)
	}
	switch {
	case found && hasName && named != at:
		m.errorf(v.NIC, "has the name of %s in the subnet, and the GUID of %s: it is not merged", m.t.Nodes[named.node].NICs[named.nic].ID(), m.t.Nodes[at.node].NICs[at.nic].ID())
		return
	case !found && guid == "":
		return // a NIC of another fabric
	case !found && hasName && m.guidAt(named) != "":
		m.errorf(v.NIC, "has GUID %s, and %s of the subnet has %s: they are not merged", guid, m.t.Nodes[named.node].NICs[named.nic].ID(), m.guidAt(named))
		return
	case !found && !hasName:
		m.warnf(v.NIC, "no port of the subnet has its GUID %s", guid)
		return
	case !found:
		at = named // the subnet does not say which GUID it has
	}
	nic := &m.t.Nodes[at.node].NICs[at.nic]
	if other := m.taken[at]; other != "" {
		m.errorf(v.NIC, "is %s of the subnet, which is %s already: it is not merged", nic.ID(), other)
		return
	}
	if !sameHost(node, nic.Node) {
		m.warnf(v.NIC, "the subnet names its host %s: GUID %s is believed", nic.Node, guid)
	}
	m.taken[at] = v.NIC
	if device != nic.Device && !slices.Contains(nic.Aliases, device) {
		nic.Aliases = append(nic.Aliases, device)
	}
	if len(v.Addresses) > 0 {
		nic.Addresses = slices.Clone(v.Addresses)
	}
	nic.Plane, nic.Side = cmp.Or(v.Plane, nic.Plane), cmp.Or(v.Side, nic.Side)
	if v.Rail != nil {
		nic.Rail = v.Rail
	}
}

func (m *merger) guidAt(at nicPlace) string { return guidOf(&m.t.Nodes[at.node].NICs[at.nic]) }

// sameHost reports whether two names are one, or one is the other with a domain.
func sameHost(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+".") || strings.HasPrefix(b, a+".")
}

// byName returns the NIC of the subnet whose host and device have these names. It returns false if there is none, or several, as of an HCA with two
// ports.
func (m *merger) byName(node, device string) (at nicPlace, ok bool) {
	short, _, _ := strings.Cut(node, ".")
	for _, i := range m.hosts[short] {
		if !sameHost(node, m.t.Nodes[i].Name) {
			continue
		}
		for k, n := range m.t.Nodes[i].NICs {
			if n.Device != device && !strings.HasPrefix(n.Device, device+".") {
				continue
			}
			if ok {
				return nicPlace{}, false
			}
			at, ok = nicPlace{i, k}, true
		}
	}
	return at, ok
}

// move puts merged NICs on the nodes that report them. Nodes without NICs are left out then.
func (m *merger) move() {
	renamed := map[string]string{}
	byName := map[string]int{}
	out := make([]Node, len(m.t.Nodes))
	for i, n := range m.t.Nodes {
		byName[n.Name] = i
		out[i] = n
		out[i].NICs = nil
	}
	for i, n := range m.t.Nodes {
		for k, nic := range n.NICs {
			to, before := i, nic.ID()
			if reported := m.taken[nicPlace{i, k}]; reported != "" {
				node := OwnerOf(reported)
				if at, known := byName[node]; known {
					to = at
				} else {
					to = len(out)
					byName[node] = to
					out = append(out, Node{Name: node})
				}
			}
			if slices.ContainsFunc(out[to].NICs, func(other NIC) bool { return other.Device == nic.Device }) {
				m.errorf(before, "%s has two NICs %s: this one stays where the subnet has it", out[to].Name, nic.Device)
				to = i
			}
			if nic.Node = out[to].Name; nic.ID() != before {
				renamed[before] = nic.ID()
			}
			out[to].NICs = append(out[to].NICs, nic)
		}
	}
	m.t.Nodes = slices.DeleteFunc(out, func(n Node) bool { return len(n.NICs) == 0 })
	slices.SortFunc(m.t.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range m.t.Links {
		l := &m.t.Links[i]
		l.A, l.B = cmp.Or(renamed[l.A], l.A), cmp.Or(renamed[l.B], l.B)
	}
}

// SetPlane sets the plane of all switches and NICs, unless it is empty.
func (t *Topology) SetPlane(plane string) {
	if plane == "" {
		return
	}
	for i := range t.Switches {
		t.Switches[i].Plane = plane
	}
	for i := range t.Nodes {
		for k := range t.Nodes[i].NICs {
			t.Nodes[i].NICs[k].Plane = plane
		}
	}
}

// JoinTopologies returns the topology of several InfiniBand subnets. Nodes of one name are one node. With more than one subnet, NICs have no LIDs as
// aliases, since these are different ports in each.
func JoinTopologies(subnets []*Topology) *Topology {
	if len(subnets) == 1 {
		return subnets[0]
	}
	out := &Topology{Version: 1}
	at := map[string]int{}
	for _, t := range subnets {
		out.Switches, out.Links = append(out.Switches, t.Switches...), append(out.Links, t.Links...)
		for _, n := range t.Nodes {
			i, known := at[n.Name]
			if !known {
				i = len(out.Nodes)
				at[n.Name] = i
				out.Nodes = append(out.Nodes, Node{Name: n.Name})
			}
			for _, nic := range n.NICs {
				nic.Aliases = slices.DeleteFunc(slices.Clone(nic.Aliases), func(a string) bool { return strings.HasPrefix(a, lidAlias) })
				out.Nodes[i].NICs = append(out.Nodes[i].NICs, nic)
			}
		}
	}
	slices.SortFunc(out.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// FindRails sets the rails of NICs that have GUIDs, if no NIC has a rail: the place of the NIC's GUID among those of its node. It does so only if the
// cables confirm it: each leaf has NICs of one place, and all nodes have the same number of NICs, two or more. It returns the number of rails.
func (t *Topology) FindRails() int {
	place := map[string]int{}
	rails := 0
	for i := range t.Nodes {
		n := &t.Nodes[i]
		order := make([]int, len(n.NICs))
		guids := make([]uint64, len(n.NICs))
		for k := range n.NICs {
			guid, err := strconv.ParseUint(strings.TrimPrefix(guidOf(&n.NICs[k]), "0x"), 16, 64)
			if err != nil || n.NICs[k].Rail != nil {
				return 0
			}
			order[k], guids[k] = k, guid
		}
		if rails == 0 {
			rails = len(order)
		}
		if len(order) != rails || rails < 2 {
			return 0
		}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(guids[a], guids[b]) })
		for p, k := range order {
			place[n.NICs[k].ID()] = p
		}
	}
	ofLeaf := map[string]int{}
	for _, l := range t.Links {
		for _, ends := range [2][2]string{{l.A, l.B}, {l.B, l.A}} {
			p, isNIC := place[ends[0]]
			if !isNIC {
				continue
			}
			leaf := OwnerOf(ends[1])
			if other, known := ofLeaf[leaf]; known && other != p {
				return 0
			}
			ofLeaf[leaf] = p
		}
	}
	if len(ofLeaf) < rails || rails > math.MaxUint16 {
		return 0
	}
	for i := range t.Nodes {
		for k := range t.Nodes[i].NICs {
			rail := place[t.Nodes[i].NICs[k].ID()]
			t.Nodes[i].NICs[k].Rail = &rail
		}
	}
	return rails
}
