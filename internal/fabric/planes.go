package fabric

import (
	"fmt"
	"slices"
	"strings"
)

// PlaneOf returns the plane of a NIC, which is that of its leaf unless it has one itself, or "".
func (g *Graph) PlaneOf(nic string) string {
	n := g.NIC(nic)
	if n == nil {
		return ""
	}
	if leaf, _ := g.LeafOf(n.ID()); n.Plane == "" && g.Switch(leaf) != nil {
		return g.Switch(leaf).Plane
	}
	return n.Plane
}

// OnlyPlanes returns the part of a topology that some planes are: their NICs, their switches, the switches without a plane
// that cables join to these, and the cables between them. Nodes stay, also without NICs. It fails for a plane without NICs,
// and if a cable leads to a NIC or a switch of no such plane, since what is measured in the planes would depend on the rest.
func (t *Topology) OnlyPlanes(planes []string) (*Topology, error) {
	g := NewGraph(t)
	kept := map[string]bool{} // NICs and switches
	var next []string
	keep := func(part string) {
		if !kept[part] {
			kept[part] = true
			next = append(next, part)
		}
	}
	found := map[string]bool{} // planes with NICs
	for _, nic := range g.NICIDs() {
		if p := g.PlaneOf(nic); slices.Contains(planes, p) {
			found[p] = true
			keep(nic)
		}
	}
	for _, p := range planes {
		if !found[p] {
			return nil, fmt.Errorf("plane %q has no NIC in the topology: one of %s is expected", p, strings.Join(t.planeNames(g), ", "))
		}
	}
	for i := range t.Switches {
		if slices.Contains(planes, t.Switches[i].Plane) {
			keep(t.Switches[i].Name)
		}
	}
	for len(next) > 0 {
		part := next[0]
		next = next[1:]
		ends := g.EndsOf(part)
		if IsNIC(part) {
			ends = []string{part}
		}
		for _, end := range ends {
			far := g.PeerOf(end)
			if far == "" {
				continue
			}
			if !g.isOfPlanes(partOf(far), planes) {
				return nil, fmt.Errorf("the cable %s leaves the planes %s: planes are exact parts only where no cable joins them to others", LinkID(end, far), strings.Join(planes, ", "))
			}
			keep(partOf(far))
		}
	}
	return t.only(kept), nil
}

// isOfPlanes reports whether a NIC is in one of some planes, or whether a switch is or has no plane.
func (g *Graph) isOfPlanes(part string, planes []string) bool {
	if IsNIC(part) {
		return slices.Contains(planes, g.PlaneOf(part))
	}
	s := g.Switch(part)
	return s == nil || s.Plane == "" || slices.Contains(planes, s.Plane)
}

// only returns the topology with some of its NICs and switches.
func (t *Topology) only(kept map[string]bool) *Topology {
	out := *t
	out.Switches = slices.DeleteFunc(slices.Clone(t.Switches), func(s Switch) bool { return !kept[s.Name] })
	out.Nodes = slices.Clone(t.Nodes)
	for i := range out.Nodes {
		n := &out.Nodes[i]
		n.NICs = slices.DeleteFunc(slices.Clone(n.NICs), func(nic NIC) bool { return !kept[nic.ID()] })
		n.Bonds = slices.Clone(n.Bonds)
		for j := range n.Bonds {
			n.Bonds[j].Members = slices.DeleteFunc(slices.Clone(n.Bonds[j].Members), func(device string) bool { return !kept[n.Name+"/"+device] })
		}
		n.Bonds = slices.DeleteFunc(n.Bonds, func(b Bond) bool { return len(b.Members) == 0 })
	}
	out.Links = slices.DeleteFunc(slices.Clone(t.Links), func(l Link) bool { return !kept[partOf(l.A)] || !kept[partOf(l.B)] })
	return &out
}

// planeNames returns the planes of the NICs, sorted and quoted.
func (t *Topology) planeNames(g *Graph) (out []string) {
	for _, nic := range g.NICIDs() {
		if name := fmt.Sprintf("%q", g.PlaneOf(nic)); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// partOf returns what an end of a cable belongs to: the NIC itself, or the switch of the port.
func partOf(end string) string {
	if IsNIC(end) {
		return end
	}
	return OwnerOf(end)
}
