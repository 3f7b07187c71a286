package web

import (
	"fmt"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// Beyond these limits a fabric is folded into groups. A person cannot distinguish that many
// boxes, and a browser need not draw them every two seconds.
const (
	maxNodes    = 64
	maxSwitches = 64
	maxLinks    = 600 // of which switch to switch:
	maxTrunks   = 512
	// groupsPerRow and groupsOnTop bound the groups of a tier; the top tier
	// reaches everything below it, so that its groups multiply the strokes.
	// The groups of a Dragonfly+ reach each other. While a pod is unfolded the others make room for it.
	groupsPerRow, groupsOnTop, groupsInMesh, groupsBesidePod = 32, 8, 16, 8
	maxPlanes                                                = 8
)

// box is a rectangle of the drawing: a switch, a node, or a group of either.
type box struct {
	id      string
	plane   string
	pod     string   // of a group of one pod
	pods    []string // of a group of several
	tier    int      // 0 for nodes
	group   bool
	members []string
	nics    int
	tabs    []*tab // the NICs of a node that stands alone

	x, y, w, h float64
}

// tab is a NIC on the upper edge of its node.
type tab struct {
	id      string
	x, y, w float64
}

// folded maps every switch and node to its box.
type folded struct {
	of     map[string]*box
	boxes  []*box
	planes []string
	notes  []string // about elements that are not drawn individually
	pod    string   // the pod that is unfolded
	top    int      // highest tier
}

// foldFabric sorts the fabric into boxes. The pinned owners, and those of the requested
// pod, have boxes of their own whatever the size of the fabric.
func foldFabric(g *fabric.Graph, pinned map[string]bool, pod string) folded {
	f := folded{of: map[string]*box{}}
	t := g.Topo
	trunks, planes := 0, map[string]bool{}
	for i := range t.Links {
		if !t.Links[i].IsAccess() {
			trunks++
		}
	}
	for i := range t.Switches {
		planes[t.Switches[i].Plane] = true
	}
	onePlane := len(planes) > maxPlanes
	if onePlane {
		f.notes = append(f.notes, pluralCount(len(planes), "plane is", "planes are")+" drawn as one")
		planes = map[string]bool{"": true}
	}
	for p := range planes {
		f.planes = append(f.planes, p)
	}
	slices.SortFunc(f.planes, fabric.CompareNatural)

	foldSwitches := len(t.Switches) > maxSwitches || trunks > maxTrunks
	foldNodes := len(t.Nodes) > maxNodes || len(t.Links) > maxLinks
	if pod != "" && (foldSwitches || foldNodes) && !slices.ContainsFunc(t.Switches, func(s fabric.Switch) bool { return s.PodName() == pod }) {
		f.notes = append(f.notes, fmt.Sprintf("no switch is in a pod %q", shortenMiddle(pod, 60)))
		pod = ""
	}
	f.pod = pod
	alone := f.pinOwners(g, pinned, pod)
	perRow := groupsPerRow
	if pod != "" {
		perRow = groupsBesidePod
	}
	f.addSwitches(g, onePlane, foldSwitches, perRow, alone)
	f.addNodes(g, foldNodes, alone)
	return f
}

// pinOwners adds to the pinned owners the switches of the requested pod and, when they
// are few, its nodes.
func (f *folded) pinOwners(g *fabric.Graph, pinned map[string]bool, pod string) map[string]bool {
	alone := map[string]bool{}
	for o := range pinned {
		alone[o] = true
	}
	if pod == "" {
		return alone
	}
	var inPod []string
	for i := range g.Topo.Switches {
		if s := &g.Topo.Switches[i]; s.PodName() == pod {
			inPod = append(inPod, s.Name)
		}
	}
	if len(inPod) > maxSwitches {
		f.notes = append(f.notes, fmt.Sprintf("pod %s has %s switches, too many to draw individually", pod, formatCount(len(inPod))))
		return alone
	}
	nodes := map[string]bool{}
	for _, s := range inPod {
		alone[s] = true
		for _, end := range g.EndsOf(s) {
			if node, _, ok := fabric.SplitNIC(g.PeerOf(end)); ok {
				nodes[node] = true
			}
		}
	}
	if len(nodes) <= maxNodes {
		for n := range nodes {
			alone[n] = true
		}
	}
	return alone
}

// rowKey represents the plane and tier that the switches of a group share.
type rowKey struct {
	plane string
	tier  int
}

func (f *folded) addSwitches(g *fabric.Graph, onePlane, foldAll bool, perRow int, alone map[string]bool) {
	rows := map[rowKey]map[string][]string{} // group name -> switches
	top := 0
	meshed := false // it is a Dragonfly+
	for i := range g.Topo.Switches {
		s := &g.Topo.Switches[i]
		k := rowKey{s.Plane, g.SwitchTier(s.Name)}
		if onePlane {
			k.plane = ""
		}
		top = max(top, k.tier)
		meshed = meshed || s.Group != ""
		if !foldAll || alone[s.Name] {
			f.addBox(&box{id: s.Name, plane: k.plane, tier: k.tier, members: []string{s.Name}, pod: s.PodName()})
			continue
		}
		if rows[k] == nil {
			rows[k] = map[string][]string{}
		}
		name := "pod " + s.PodName()
		if s.PodName() == "" {
			name = s.Name
		}
		rows[k][name] = append(rows[k][name], s.Name)
	}
	total := 0
	for k, groups := range rows {
		limit := perRow
		if k.tier == top {
			limit = groupsOnTop
			if meshed && perRow == groupsPerRow {
				limit = groupsInMesh
			}
		}
		if len(groups) == 1 {
			groups = splitIntoSingles(groups)
		}
		limit = max(2, limit/len(f.planes))
		for _, part := range chunkGroups(groups, limit) {
			b := &box{plane: k.plane, tier: k.tier, group: true}
			for _, name := range part {
				b.members = append(b.members, groups[name]...)
				b.pods = append(b.pods, g.Switch(groups[name][0]).PodName())
			}
			slices.SortFunc(b.members, fabric.CompareNatural)
			if len(b.members) == 1 {
				b.group, b.id = false, b.members[0]
			} else {
				b.id = "group " + b.members[0] + " … " + b.members[len(b.members)-1]
				total += len(b.members)
			}
			if len(part) == 1 {
				b.pod = g.Switch(b.members[0]).PodName()
			}
			f.addBox(b)
		}
	}
	if total > 0 {
		f.notes = append(f.notes, formatCount(total)+" switches are drawn as groups, by plane, tier and pod")
	}
}

func (f *folded) addNodes(g *fabric.Graph, foldAll bool, alone map[string]bool) {
	groups := map[string][]string{}
	first := map[string]*box{}
	nics := map[string]int{}
	for i := range g.Topo.Nodes {
		n := &g.Topo.Nodes[i]
		nics[n.Name] = len(n.NICs)
		if !foldAll || alone[n.Name] {
			b := &box{id: n.Name, members: []string{n.Name}, nics: len(n.NICs)}
			for j := range n.NICs {
				b.tabs = append(b.tabs, &tab{id: n.NICs[j].ID()})
			}
			f.addBox(b)
			continue
		}
		var leaves []string
		for j := range n.NICs {
			if leaf, _ := g.LeafOf(n.NICs[j].ID()); f.of[leaf] != nil {
				leaves = append(leaves, f.of[leaf].id)
			}
		}
		slices.SortFunc(leaves, fabric.CompareNatural)
		key := strings.Join(slices.Compact(leaves), " ")
		if first[key] == nil && len(leaves) > 0 {
			first[key] = f.of[firstMember(f, leaves[0])]
		}
		groups[key] = append(groups[key], n.Name)
	}
	total := 0
	for _, part := range chunkGroups(groups, maxNodes) {
		b := &box{group: true}
		for _, key := range part {
			b.members = append(b.members, groups[key]...)
		}
		slices.SortFunc(b.members, fabric.CompareNatural)
		for _, m := range b.members {
			b.nics += nics[m]
		}
		if under := first[part[0]]; under != nil && len(part) == 1 {
			b.pod = under.pod
		}
		b.id = "group " + b.members[0] + " … " + b.members[len(b.members)-1]
		total += len(b.members)
		f.addBox(b)
	}
	if total > 0 {
		f.notes = append(f.notes, formatCount(total)+" nodes are drawn as groups, by the leaves they are plugged into")
	}
}

// splitIntoSingles gives every switch a group of its own. One pod that holds all of them
// does not show where they are.
func splitIntoSingles(groups map[string][]string) map[string][]string {
	out := map[string][]string{}
	for _, members := range groups {
		for _, m := range members {
			out[m] = []string{m}
		}
	}
	return out
}

// firstMember finds a switch of the box with the given id.
func firstMember(f *folded, id string) string {
	for _, b := range f.boxes {
		if b.id == id {
			return b.members[0]
		}
	}
	return ""
}

// joinsTop reports whether a link joins two boxes of the highest tier.
func (f *folded) joinsTop(g *fabric.Graph) bool {
	return slices.ContainsFunc(g.Topo.Links, func(l fabric.Link) bool {
		a, b := f.of[fabric.OwnerOf(l.A)], f.of[fabric.OwnerOf(l.B)]
		return a != nil && b != nil && a != b && a.tier == f.top && b.tier == f.top
	})
}

func (f *folded) addBox(b *box) {
	f.boxes = append(f.boxes, b)
	f.top = max(f.top, b.tier)
	for _, m := range b.members {
		f.of[m] = b
	}
}

// chunkGroups sorts the names of groups and joins neighbours until there are at most
// limit parts.
func chunkGroups(groups map[string][]string, limit int) [][]string {
	names := make([]string, 0, len(groups))
	for n := range groups {
		names = append(names, n)
	}
	slices.SortFunc(names, fabric.CompareNatural)
	size := max(1, (len(names)+limit-1)/limit)
	return slices.Collect(slices.Chunk(names, size))
}
