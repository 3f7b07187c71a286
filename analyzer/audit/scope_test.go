package audit

import (
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// TestMaintenanceScopeIsWhatAWindowCovers compares the links, NICs and switches of scopes with those of the windows' elements.
func TestMaintenanceScopeIsWhatAWindowCovers(t *testing.T) {
	g := newSite(1, 2, 2, 2).g
	nic := g.NICIDs()[0]
	port := g.PeerOf(nic)
	leaf := fabric.OwnerOf(port)
	cable := fabric.LinkID(nic, port)
	uplinks := []string{}
	for _, end := range g.EndsOf(leaf) {
		uplinks = append(uplinks, fabric.LinkID(end, g.PeerOf(end)))
	}
	for _, tc := range []struct {
		element  string
		links    []string
		nics     []string
		switches []string
	}{
		{nic, []string{cable}, []string{nic}, nil},
		{fabric.OwnerOf(nic), linksOf(g, func(end string) bool { return fabric.OwnerOf(end) == fabric.OwnerOf(nic) }), nicsOf(g, fabric.OwnerOf(nic)), nil},
		{leaf, uplinks, nil, []string{leaf}},
		{port, []string{cable}, nil, nil},
		{cable, []string{cable}, []string{nic}, nil},
	} {
		s, err := MaintenanceScope(g, "m1", tc.element)
		if err != nil || s.String() != "maintenance:m1" {
			t.Fatalf("%s: %v, %s", tc.element, err, s)
		}
		var links, nics, switches []string
		for i := range g.Topo.Links {
			if id := g.Topo.Links[i].ID(); s.hasLink(id) {
				links = append(links, id)
			}
		}
		for _, n := range g.NICIDs() {
			if s.hasNIC(n) {
				nics = append(nics, n)
			}
		}
		for i := range g.Topo.Switches {
			if name := g.Topo.Switches[i].Name; s.hasSwitch(name) {
				switches = append(switches, name)
			}
		}
		slices.Sort(links)
		slices.Sort(tc.links)
		if !slices.Equal(links, tc.links) || !slices.Equal(nics, tc.nics) || !slices.Equal(switches, tc.switches) {
			t.Errorf("%s: links %v, want %v; NICs %v, want %v; switches %v, want %v", tc.element, links, tc.links, nics, tc.nics, switches, tc.switches)
		}
	}
	for _, bad := range []string{"", "nowhere", "h1/none", nic + "--" + nic, leaf + ":none"} {
		if _, err := MaintenanceScope(g, "m1", bad); err == nil {
			t.Errorf("%q is taken for an element", bad)
		}
	}
	if id, named := MaintenanceWindow("maintenance:coordinator:7"); !named || id != "coordinator:7" {
		t.Errorf("%q, %t", id, named)
	}
	if _, named := MaintenanceWindow("fabric"); named {
		t.Error("fabric names a window")
	}
}

func linksOf(g *fabric.Graph, owns func(end string) bool) (out []string) {
	for i := range g.Topo.Links {
		if l := &g.Topo.Links[i]; owns(l.A) || owns(l.B) {
			out = append(out, l.ID())
		}
	}
	return out
}

func nicsOf(g *fabric.Graph, node string) (out []string) {
	for _, n := range g.NICIDs() {
		if fabric.OwnerOf(n) == node {
			out = append(out, n)
		}
	}
	return out
}
