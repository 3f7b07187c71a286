package classify

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

const (
	// starvedShare is the share of moments with a starved node from which the host is at
	// fault in the other moments, too.
	starvedShare = 0.25
	// manySenders is the number of sending nodes from which flows can be incast.
	manySenders = 3
	// tailOfQueue is how much more than the median the tail of a queue shifts, as a share of
	// the shift of the median. In a queue between empty and full the slowest hundredth waits
	// twice as long as the median, with a constant delay it waits no longer.
	tailOfQueue = 0.5
	// markedByQueue is the share of marked packets from which a queue is too full. Fewer
	// marks alone are normal congestion control.
	markedByQueue = 0.1
)

// suspicion represents a suspect with the common properties of its flows.
type suspicion struct {
	triangulate.Suspect
	scenario   fabric.Scenario
	recurrence recurrence // of a flap, or of flows that were bad together
	moments    int        // the number of remembered moments
	step       time.Duration
	edges      []fabric.Flow
	nics       map[string]bool // at the ends of the explained flows
	from, to   map[string]bool // nodes that send and receive them
	classes    map[string]bool
	delayed    int // explained flows that are late
	// local and localClean are the numbers of explained and clean flows that stay within the
	// element, if it is a leaf.
	local, localClean int
	// otherClass is the number of clean flows of other classes that cross the element.
	otherClass int
	starved    bool // a host that was short of CPU
	egresses   int
}

// newSuspicion returns the suspicion of a suspect, with the common properties of its flows.
func (c *Scene) newSuspicion(s triangulate.Suspect) *suspicion {
	x := &suspicion{Suspect: s, nics: map[string]bool{}, from: map[string]bool{}, to: map[string]bool{}, classes: map[string]bool{}}
	if c.History != nil {
		x.moments, x.step = min(c.History.moments, Depth), c.History.step
	}
	for _, i := range s.Explained {
		f := &c.Findings[i]
		src, dst := f.Flow.Endpoints()
		x.edges = append(x.edges, f.Flow)
		x.nics[src], x.nics[dst] = true, true
		x.from[fabric.OwnerOf(src)], x.to[fabric.OwnerOf(dst)] = true, true
		x.classes[f.Obs.Class] = true
		if f.Delayed {
			x.delayed++
		}
		if len(f.Obs.Path) == 1 {
			x.local++
		}
	}
	slices.SortFunc(x.edges, compareEdges)
	for _, i := range s.Contrary {
		o := c.Findings[i].Obs
		if len(o.Path) == 1 {
			x.localClean++
		}
		if !x.classes[o.Class] {
			x.otherClass++
		}
	}
	if x.Kind == fabric.KindLeafUplinks {
		for i := range c.Findings {
			if f := &c.Findings[i]; f.Condition == judge.Healthy && len(f.Obs.Path) == 1 && f.Obs.Path[0].Switch == x.Name {
				x.localClean++
			}
		}
	}
	return x
}

// joinSuspicions returns one suspicion on an element for several that are one fault.
func (c *Scene) joinSuspicions(el triangulate.Element, parts []*suspicion) *suspicion {
	all := triangulate.Suspect{Element: el}
	for _, p := range parts {
		all.Gain += p.Gain
		all.Confidence = max(all.Confidence, p.Confidence)
		all.AddedDelayNS = max(all.AddedDelayNS, p.AddedDelayNS)
		all.TailDelayNS = max(all.TailDelayNS, p.TailDelayNS)
		all.LossRatio = max(all.LossRatio, p.LossRatio)
		all.ECNRatio = max(all.ECNRatio, p.ECNRatio)
		all.Explained = append(all.Explained, p.Explained...)
		all.Contrary = append(all.Contrary, p.Contrary...)
	}
	slices.Sort(all.Explained)
	all.Explained = slices.Compact(all.Explained)
	slices.Sort(all.Contrary)
	all.Contrary = slices.Compact(all.Contrary)
	return c.newSuspicion(all)
}

// dropContained drops suspicions that are only a part of a wider one (rule 2): a link, NIC or
// queue at a suspected switch, a path through it, or an uplink of a suspected leaf. The wider one
// explains most of their flows, and they are no more severe.
func (c *Scene) dropContained(cases []*suspicion) []*suspicion {
	return slices.DeleteFunc(slices.Clone(cases), func(x *suspicion) bool {
		return slices.ContainsFunc(cases, func(wide *suspicion) bool { return wide != x && c.partOf(x, wide) && x.mildBeside(wide) })
	})
}

// partOf reports whether the element of a suspicion is at, or passes through, that of another one.
func (c *Scene) partOf(x, wide *suspicion) bool {
	switch wide.Kind {
	case fabric.KindSwitch:
		if slices.Contains(c.switchesAt(x), wide.Name) {
			return x.Kind != fabric.KindSwitch
		}
	case fabric.KindLeafUplinks:
		if x.Kind == fabric.KindLink || x.Kind == fabric.KindPort || x.Kind == fabric.KindQueue {
			return slices.Contains(c.switchesAt(x), wide.Name)
		}
	case fabric.KindHost:
		return x.Kind == fabric.KindNIC && fabric.OwnerOf(x.Name) == wide.Name
	default:
		return false
	}
	return slices.Contains(x.Named().Waypoints(), wide.Name)
}

// mildBeside reports whether a suspicion is no more severe than a wider one that explains nearly
// all of its flows.
func (x *suspicion) mildBeside(wide *suspicion) bool {
	if x.AddedDelayNS > wide.AddedDelayNS && x.AddedDelayNS > wide.TailDelayNS || x.LossRatio > 2*wide.LossRatio+cleanLoss {
		return false
	}
	common := 0
	for _, e := range x.edges {
		if _, yes := slices.BinarySearchFunc(wide.edges, e, compareEdges); yes {
			common++
		}
	}
	return common*5 >= len(x.edges)*4
}

func compareEdges(a, b fabric.Flow) int {
	if a.Reply != b.Reply {
		if b.Reply {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.Src, b.Src), cmp.Compare(a.Dst, b.Dst), cmp.Compare(a.Number, b.Number))
}

// replaceParts replaces some suspicions by one.
func replaceParts(cases []*suspicion, parts []*suspicion, one *suspicion) []*suspicion {
	at := slices.Index(cases, parts[0])
	cases[at] = one
	return slices.DeleteFunc(cases, func(x *suspicion) bool { return slices.Contains(parts[1:], x) })
}

// joinHosts applies rule 1: it replaces suspicions on the NICs of a node by one on its host.
func (c *Scene) joinHosts(cases []*suspicion) []*suspicion {
	byNode := map[string][]*suspicion{}
	var nodes []string
	for _, x := range cases {
		if x.Kind == fabric.KindHost {
			if nic, alone := c.onlyNIC(x); alone {
				x.Kind, x.Name = fabric.KindNIC, nic
			}
		}
		if x.Kind != fabric.KindNIC {
			continue
		}
		node := fabric.OwnerOf(x.Name)
		if byNode[node] == nil {
			nodes = append(nodes, node)
		}
		byNode[node] = append(byNode[node], x)
	}
	for _, node := range nodes {
		parts := byNode[node]
		// A host that is short of CPU is slow both ways.
		oneWay := len(parts) == 1 && parts[0].OneWay()
		short := !oneWay && c.History.StarvedShare(node) >= starvedShare && (len(parts) > 1 || !c.otherNICsAreWell(node, parts[0].Name))
		if !short && (len(parts) < 2 || len(parts) < len(c.Graph.EndsOf(node))) {
			continue
		}
		one := c.joinSuspicions(triangulate.Element{Kind: fabric.KindHost, Name: node}, parts)
		one.starved = short
		cases = replaceParts(cases, parts, one)
	}
	return cases
}

// onlyNIC returns the NIC of a node at which nearly all of its bad flows end. It reports false if
// there is none, or if the node has only one NIC.
func (c *Scene) onlyNIC(x *suspicion) (nic string, alone bool) {
	at := map[string]int{}
	for _, e := range x.edges {
		for _, end := range [2]string{e.Src, e.Dst} {
			if fabric.OwnerOf(end) == x.Name {
				at[end]++
			}
		}
	}
	for nic, n := range at {
		if n*10 >= len(x.edges)*9 && len(c.Graph.EndsOf(x.Name)) > 1 {
			return nic, true
		}
	}
	return "", false
}

// deadSwitches applies the first half of rule 2: it replaces suspicions on all links of a switch by one on the switch.
func (c *Scene) deadSwitches(cases []*suspicion) []*suspicion {
	bySwitch := map[string][]*suspicion{}
	var switches []string
	for _, x := range cases {
		if x.LossRatio < hardLoss || x.Kind != fabric.KindLink && x.Kind != fabric.KindNIC {
			continue
		}
		for _, sw := range c.switchesAt(x) {
			if bySwitch[sw] == nil {
				switches = append(switches, sw)
			}
			bySwitch[sw] = append(bySwitch[sw], x)
		}
	}
	for _, sw := range switches {
		parts := slices.DeleteFunc(slices.Clone(bySwitch[sw]), func(x *suspicion) bool { return !slices.Contains(cases, x) })
		if len(parts) < 2 || len(parts) < c.linksInUse(sw) {
			continue
		}
		// The switch may itself be a suspect, for what its links do not explain.
		for _, x := range cases {
			if x.Kind == fabric.KindSwitch && x.Name == sw {
				parts = append(parts, x)
			}
		}
		cases = replaceParts(cases, parts, c.joinSuspicions(triangulate.Element{Kind: fabric.KindSwitch, Name: sw}, parts))
	}
	return cases
}

// switchesAt returns the switches at the ends of a link, port or queue, the leaf of a NIC,
// or the switch itself.
func (c *Scene) switchesAt(x *suspicion) []string {
	switch x.Kind {
	case fabric.KindNIC:
		return c.leavesOf([]string{x.Name})
	case fabric.KindSwitch, fabric.KindLeafUplinks:
		return []string{x.Name}
	case fabric.KindPort, fabric.KindQueue:
		port := x.Named().Port()
		if far := c.Graph.PeerOf(port); far != "" && !fabric.IsNIC(far) {
			return []string{fabric.OwnerOf(port), fabric.OwnerOf(far)}
		}
		return []string{fabric.OwnerOf(port)}
	case fabric.KindLink:
		a, b, _ := fabric.SplitLink(x.Name)
		return []string{fabric.OwnerOf(a), fabric.OwnerOf(b)}
	}
	return nil
}

// linksInUse returns the number of links of a switch that flows with known paths cross.
func (c *Scene) linksInUse(sw string) int {
	used := map[string]bool{}
	for i := range c.Findings {
		f := &c.Findings[i]
		src, dst := f.Flow.Endpoints()
		for _, d := range f.Obs.Path.LinkDirections(src, dst) {
			if fabric.OwnerOf(d.From) == sw || fabric.OwnerOf(d.To) == sw {
				used[d.LinkID()] = true
			}
		}
	}
	return len(used)
}

// crossPort applies the second half of rule 2: it replaces suspicions on several egresses of one
// switch by one on the switch, if they are bad in the same moments and fine in between.
func (c *Scene) crossPort(cases []*suspicion) []*suspicion {
	bySwitch := map[string][]*suspicion{}
	var switches []string
	for _, x := range cases {
		if x.LossRatio >= hardLoss {
			continue
		}
		for _, sw := range c.switchesAt(x) {
			if bySwitch[sw] == nil {
				switches = append(switches, sw)
			}
			bySwitch[sw] = append(bySwitch[sw], x)
		}
	}
	slices.SortStableFunc(switches, func(a, b string) int { return len(bySwitch[b]) - len(bySwitch[a]) })
	for _, sw := range switches {
		parts := slices.DeleteFunc(bySwitch[sw], func(x *suspicion) bool { return !slices.Contains(cases, x) })
		if len(parts) < 2 {
			continue
		}
		one := c.joinSuspicions(triangulate.Element{Kind: fabric.KindSwitch, Name: sw}, parts)
		if c.blocksAcrossPorts(one) {
			cases = replaceParts(cases, parts, one)
		}
	}
	return cases
}

// uplinksLeft applies rule 4 outside a leaf: if no flow uses some of its uplinks, and most flows
// that leave or enter it are affected, the remaining uplinks are too few.
func (c *Scene) uplinksLeft(cases []*suspicion) []*suspicion {
	byLeaf := map[string][]*suspicion{}
	var leaves []string
	for _, x := range cases {
		at := c.switchesAt(x)
		switch {
		case x.LossRatio >= hardLoss:
			continue
		case x.Kind == fabric.KindPair || x.Kind == fabric.KindCorridor:
			at = x.Named().Waypoints()
		case x.Kind != fabric.KindLink && x.Kind != fabric.KindLeafUplinks:
			continue
		}
		for _, sw := range at {
			if c.Graph.SwitchTier(sw) != 1 {
				continue
			}
			if byLeaf[sw] == nil {
				leaves = append(leaves, sw)
			}
			byLeaf[sw] = append(byLeaf[sw], x)
		}
	}
	slices.SortStableFunc(leaves, func(a, b string) int { return len(byLeaf[b]) - len(byLeaf[a]) })
	for _, leaf := range leaves {
		parts := slices.DeleteFunc(byLeaf[leaf], func(x *suspicion) bool { return !slices.Contains(cases, x) })
		used, flows, all := c.uplinksInUse(leaf)
		if len(parts) == 0 || len(used) >= all || flows < flowsPerUplink*all {
			continue
		}
		if one := c.joinSuspicions(triangulate.Element{Kind: fabric.KindLeafUplinks, Name: leaf}, parts); len(one.edges)*2 > flows {
			cases = replaceParts(cases, parts, one)
		}
	}
	return cases
}

// flowsPerUplink is the number of flows per uplink from which it is not by chance that ECMP
// leaves one unused. So many flows leave a given uplink unused with a probability of 1 in 3,000.
const flowsPerUplink = 8

// uplinksInUse returns the uplinks of a leaf that flows use, the number of these flows, and the
// number of uplinks in the topology.
func (c *Scene) uplinksInUse(leaf string) (used map[string]bool, flows, all int) {
	used = map[string]bool{}
	for i := range c.Findings {
		p := c.Findings[i].Obs.Path
		if len(p) < 2 || p[0].Switch != leaf && p[len(p)-1].Switch != leaf {
			continue
		}
		end := p[0].Switch + ":" + p[0].Out
		if p[0].Switch != leaf {
			end = leaf + ":" + p[len(p)-1].In
		}
		used[fabric.LinkID(end, c.Graph.PeerOf(end))] = true
		flows++
	}
	return used, flows, len(c.Graph.Uplinks(leaf))
}

// blocksAcrossPorts reports whether rule 9 applies to a switch: its egresses are bad together, not
// for long, and seldom one alone.
func (c *Scene) blocksAcrossPorts(x *suspicion) bool {
	byPort := map[string][]fabric.Flow{}
	for _, i := range x.Explained {
		for _, h := range c.Findings[i].Obs.Path {
			if h.Switch == x.Name {
				byPort[h.Out] = append(byPort[h.Out], c.Findings[i].Flow)
			}
		}
	}
	s, bad, alone := c.History.badTogether(slices.Collect(maps.Values(byPort)))
	if s.times < 2 || bad*2 > x.moments || alone > bad {
		return false
	}
	x.recurrence, x.egresses = s, len(byPort)
	return true
}

// decideScenario sets the scenario of a suspicion, and may narrow its element. It returns false if
// the evidence does not support a verdict.
func (c *Scene) decideScenario(x *suspicion) bool {
	late := x.delayed*2 > len(x.Explained)
	if x.AddedDelayNS == 0 && x.TailDelayNS == 0 && x.LossRatio <= 0 && x.ECNRatio > 0 && x.ECNRatio < markedByQueue {
		return false
	}
	if x.LossRatio > 0 && !late && slices.Contains([]fabric.Kind{fabric.KindLink, fabric.KindNIC, fabric.KindSwitch, fabric.KindCorridor}, x.Kind) {
		if s, yes := c.History.comesAndGoes(x.edges); yes {
			x.scenario, x.recurrence = fabric.Flap, s
			return true
		}
	}
	switch x.Kind {
	case fabric.KindHost:
		x.scenario = fabric.Host
	case fabric.KindPair:
		x.scenario = fabric.PairOnly
	case fabric.KindLeafUplinks:
		x.scenario = fabric.LeafUplinks
	case fabric.KindSwitch:
		return c.decideSwitch(x)
	case fabric.KindNIC:
		switch {
		case x.LossRatio >= hardLoss:
			x.scenario = fabric.HardFailure
		case x.isIncast():
			x.scenario = fabric.Incast
		default:
			x.scenario = fabric.BadNIC
		}
	default:
		c.decideLink(x)
	}
	return true
}

func (c *Scene) decideSwitch(x *suspicion) bool {
	leaf := c.Graph.SwitchTier(x.Name) == 1
	if leaf {
		if nics := c.commonNICs(x); len(nics) == 1 {
			x.narrowToNIC(nics[0], c.Graph)
			return c.decideScenario(x)
		} else if len(nics) > 1 {
			return false
		}
	}
	switch {
	case x.LossRatio >= hardLoss:
		x.scenario = fabric.HardFailure
	case c.blocksAcrossPorts(x):
		x.scenario = fabric.HOLCross
	case leaf && x.local == 0 && x.localClean > 0:
		x.Kind, x.scenario = fabric.KindLeafUplinks, fabric.LeafUplinks
	case leaf:
		x.scenario = fabric.SlowLeaf
	default:
		x.scenario = fabric.HotSpine
	}
	return true
}

// commonNICs returns the leaf's NICs that are at an end of all its bad flows (rule 3).
func (c *Scene) commonNICs(x *suspicion) []string {
	at := map[string]int{}
	for _, e := range x.edges {
		for _, nic := range [2]string{e.Src, e.Dst} {
			if leaf, _ := c.Graph.LeafOf(nic); leaf == x.Name {
				at[nic]++
			}
		}
	}
	var out []string
	for nic, n := range at {
		if n == len(x.edges) {
			out = append(out, nic)
		}
	}
	return out
}

// narrowToNIC changes the element of a suspicion on a leaf to the NIC that all its bad flows have
// in common. The leaf becomes an equivalent.
func (x *suspicion) narrowToNIC(nic string, g *fabric.Graph) {
	x.Equivalent = append(x.Equivalent, triangulate.Element{Kind: x.Kind, Name: x.Name})
	in := 0
	for _, e := range x.edges {
		if _, to := e.Endpoints(); to == nic {
			in++
		}
	}
	x.Kind, x.Name = fabric.KindNIC, nic
	switch d := (fabric.Direction{From: g.PeerOf(nic), To: nic}); in {
	case len(x.edges):
		x.Direction = d
	case 0:
		x.Direction = d.Reverse()
	}
}

// decideLink sets the scenario of links, ports, queues and corridors (rules 6, 8 and 10).
func (c *Scene) decideLink(x *suspicion) {
	switch {
	case x.LossRatio >= hardLoss && x.Kind != fabric.KindQueue:
		x.scenario = fabric.HardFailure
	case x.Kind == fabric.KindQueue && x.otherClassAt(c):
		x.scenario = fabric.HOLSame
	case x.Kind == fabric.KindLink && x.OneWay() && len(x.classes) == 1 && x.otherClass > 0:
		x.scenario, x.Kind, x.Name = fabric.HOLSame, fabric.KindPort, x.Direction.From
		for class := range x.classes {
			if class != "" {
				x.Kind, x.Class, x.Name = fabric.KindQueue, class, x.Direction.From+"@"+class
			}
		}
	default:
		x.scenario = fabric.Corridor
	}
}

// otherClassAt reports whether clean flows of other classes leave by a queue's port.
func (x *suspicion) otherClassAt(c *Scene) bool {
	for i := range c.Findings {
		f := &c.Findings[i]
		if f.Condition != judge.Healthy || x.classes[f.Obs.Class] {
			continue
		}
		src, dst := f.Flow.Endpoints()
		if slices.Contains(f.Obs.Path.LinkDirections(src, dst), x.Direction) {
			return true
		}
	}
	return false
}

// isIncast reports whether a suspicion on a NIC is incast (rule 7).
func (x *suspicion) isIncast() bool {
	return x.OneWay() && x.Direction.To == x.Name && len(x.from) >= manySenders && x.variesLikeQueue()
}

// variesLikeQueue reports whether the added delay varies like that of a queue.
func (x *suspicion) variesLikeQueue() bool {
	late := x.AddedDelayNS > 0 && x.delayed > 0
	return x.ECNRatio >= markedByQueue || late && (float64(x.TailDelayNS) >= tailOfQueue*float64(x.AddedDelayNS) || x.LossRatio > 0 && x.LossRatio < hardLoss)
}

// parentSwitches returns the switches whose other flows are evidence about a suspicion, or nil for all of them.
func (c *Scene) parentSwitches(x *suspicion) []string {
	switch x.Kind {
	case fabric.KindNIC:
		return c.leavesOf([]string{x.Name})
	case fabric.KindHost:
		return c.leavesOf(c.Graph.EndsOf(x.Name))
	case fabric.KindPair, fabric.KindCorridor:
		return x.Named().Waypoints()
	case fabric.KindLeafUplinks:
		return []string{x.Name}
	case fabric.KindLink:
		return c.switchesAt(x)
	case fabric.KindPort, fabric.KindQueue:
		return []string{fabric.OwnerOf(x.Name)}
	}
	return nil // a switch is compared with all flows
}

func (c *Scene) leavesOf(nics []string) []string {
	var out []string
	for _, nic := range nics {
		if leaf, _ := c.Graph.LeafOf(nic); leaf != "" && !slices.Contains(out, leaf) {
			out = append(out, leaf)
		}
	}
	return out
}

// healthyNearby returns, for each suspicion, the number of healthy flows that cross its parent
// switches, but not its element.
func (c *Scene) healthyNearby(cases []*suspicion) []int {
	out := make([]int, len(cases))
	const allSwitches = ""
	at := map[string]uint64{}
	for i, x := range cases[:min(len(cases), 64)] {
		parents := c.parentSwitches(x)
		if parents == nil {
			parents = []string{allSwitches}
		}
		for _, sw := range parents {
			at[sw] |= 1 << i
		}
		out[i] = -len(x.Contrary)
		for _, e := range x.Explained {
			if c.Findings[e].Condition == judge.Healthy { // for a delay that no single flow shows
				out[i]--
			}
		}
	}
	if len(at) == 0 {
		return out
	}
	for i := range c.Findings {
		f := &c.Findings[i]
		if f.Condition != judge.Healthy || len(f.Obs.Path) == 0 {
			continue
		}
		near := at[allSwitches]
		for _, h := range f.Obs.Path {
			near |= at[h.Switch]
		}
		for j := 0; near != 0; j, near = j+1, near>>1 {
			out[j] += int(near & 1)
		}
	}
	for i := range out {
		out[i] = max(0, out[i])
	}
	return out
}

// tierAndPlane returns the tier and plane of an element. The plane of a link is that of its upper switch.
func tierAndPlane(g *fabric.Graph, name string, kind fabric.Kind) (tier int, plane string) {
	element := fabric.Element{ID: name, Kind: kind}
	var switches []string
	switch kind {
	case fabric.KindNIC:
		if n := g.NIC(name); n != nil {
			plane = n.Plane
		}
		return 1, plane
	case fabric.KindHost:
		return 1, ""
	case fabric.KindSwitch:
		switches = []string{name}
	case fabric.KindLeafUplinks:
		_, plane = tierAndPlane(g, name, fabric.KindSwitch)
		return 2, plane
	case fabric.KindPair, fabric.KindCorridor:
		switches = element.Waypoints()
		tier = 2
	case fabric.KindPort, fabric.KindQueue:
		switches = []string{fabric.OwnerOf(element.Port()), fabric.OwnerOf(g.PeerOf(element.Port()))}
	default:
		a, b, _ := fabric.SplitLink(name)
		switches = []string{fabric.OwnerOf(a), fabric.OwnerOf(b)}
	}
	for _, name := range switches {
		if sw := g.Switch(name); sw != nil {
			plane = sw.Plane
			tier = max(tier, g.SwitchTier(sw.Name))
		}
	}
	for _, end := range element.Ends() {
		if l := g.LinkAt(end); l != nil {
			tier = max(tier, g.LinkTier(l))
		}
	}
	return tier, plane
}

// structuralEquivalents returns the elements that no probe can distinguish from the element of a suspicion.
func structuralEquivalents(g *fabric.Graph, x *suspicion) []fabric.Element {
	switch x.Kind {
	case fabric.KindNIC:
		if l := g.LinkAt(x.Name); l != nil {
			return []fabric.Element{{ID: l.ID(), Kind: fabric.KindAccessLink}}
		}
	case fabric.KindLink:
		a, b, _ := fabric.SplitLink(x.Name)
		return []fabric.Element{{ID: a, Kind: fabric.KindPort}, {ID: b, Kind: fabric.KindPort}}
	case fabric.KindPort:
		if l := g.LinkAt(x.Name); l != nil {
			return []fabric.Element{{ID: l.ID(), Kind: fabric.KindLink}}
		}
	case fabric.KindSwitch:
		if x.scenario == fabric.SlowLeaf && x.local == 0 {
			return []fabric.Element{{ID: x.Name, Kind: fabric.KindLeafUplinks}}
		}
	case fabric.KindLeafUplinks:
		if x.local+x.localClean == 0 {
			return []fabric.Element{{ID: x.Name, Kind: fabric.KindSwitch}}
		}
	}
	return nil
}

// SpansWindows reports whether a scenario is one that a single window cannot show.
func SpansWindows(s fabric.Scenario) bool {
	return s == fabric.Flap || s == fabric.HOLCross || s == fabric.Host
}
