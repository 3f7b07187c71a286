package fabric

import (
	"slices"
	"strings"
)

// An element's identifier says where it is in the fabric. What follows is the only place that takes these
// identifiers apart:
//
//	NIC, clock           node/device
//	host                 node
//	link, access link    end--end
//	port                 switch:port      packets that leave by it
//	queue                switch:port@class
//	switch, leaf uplinks switch
//	pair                 leaf->leaf       from the first to the second
//	corridor             switch->switch->switch

// Port returns the port of a port or queue, and "" for any other element.
func (e Element) Port() string {
	if e.Kind != KindPort && e.Kind != KindQueue {
		return ""
	}
	port, _, _ := strings.Cut(e.ID, "@")
	return port
}

// LinkEnds returns the two ends of a link or access link; ok is false for any other element.
func (e Element) LinkEnds() (a, b string, ok bool) {
	if e.Kind != KindLink && e.Kind != KindAccessLink {
		return "", "", false
	}
	return SplitLink(e.ID)
}

// Waypoints returns the switches of a pair or corridor in the order that packets cross them, and nil for any
// other element.
func (e Element) Waypoints() []string {
	if e.Kind != KindPair && e.Kind != KindCorridor {
		return nil
	}
	return strings.Split(e.ID, "->")
}

// Ends returns the ports and NICs that the identifier of an element names: both ends of a link, the port of a queue.
// It returns nil for hosts, switches and what is made of switches.
func (e Element) Ends() []string {
	switch e.Kind {
	case KindNIC, KindClock:
		return []string{e.ID}
	case KindPort, KindQueue:
		return []string{e.Port()}
	case KindLink, KindAccessLink:
		if a, b, ok := e.LinkEnds(); ok {
			return []string{a, b}
		}
	}
	return nil
}

// Uplinks returns the ports of a switch that lead to a switch of a higher tier, in the order of EndsOf.
func (g *Graph) Uplinks(sw string) []string {
	own := g.SwitchTier(sw)
	var out []string
	for _, end := range g.EndsOf(sw) {
		if peer := g.PeerOf(end); peer != "" && !IsNIC(peer) && g.SwitchTier(OwnerOf(peer)) > own {
			out = append(out, end)
		}
	}
	return out
}

// LinksBetween returns the directions of all links that lead from one switch to another.
func (g *Graph) LinksBetween(from, to string) []Direction {
	var out []Direction
	for _, end := range g.EndsOf(from) {
		if peer := g.PeerOf(end); peer != "" && !IsNIC(peer) && OwnerOf(peer) == to {
			out = append(out, Direction{From: end, To: peer})
		}
	}
	return out
}

// Footprint returns the directions of links in which packets meet an element: both directions of a link, the way
// out of a port or queue, all links at a switch or host, the uplinks of a leaf, and the links from one switch to the
// next along a corridor. A pair has none, since packets between two leaves have no link in common, and neither has a
// clock. A direction whose far end the topology does not have is left out.
func (e Element) Footprint(g *Graph) []Direction {
	var out []Direction
	oneWay := func(from, to string) {
		if from != "" && to != "" {
			out = append(out, Direction{From: from, To: to})
		}
	}
	bothWays := func(a, b string) { oneWay(a, b); oneWay(b, a) }
	switch e.Kind {
	case KindLink, KindAccessLink:
		if a, b, ok := e.LinkEnds(); ok && g.PeerOf(a) == b {
			bothWays(a, b)
		}
	case KindNIC:
		bothWays(e.ID, g.PeerOf(e.ID))
	case KindPort, KindQueue:
		oneWay(e.Port(), g.PeerOf(e.Port()))
	case KindSwitch, KindHost:
		for _, end := range g.EndsOf(e.ID) {
			bothWays(end, g.PeerOf(end))
		}
	case KindLeafUplinks:
		for _, end := range g.Uplinks(e.ID) {
			bothWays(end, g.PeerOf(end))
		}
	case KindCorridor:
		way := e.Waypoints()
		for i := 1; i < len(way); i++ {
			out = append(out, g.LinksBetween(way[i-1], way[i])...)
		}
	}
	return out
}

// CrossedBy reports whether packets from one NIC to another by a path meet an element. No packet crosses a clock.
func (e Element) CrossedBy(p Path, src, dst string) bool {
	switch e.Kind {
	case KindNIC:
		return src == e.ID || dst == e.ID
	case KindHost:
		return OwnerOf(src) == e.ID || OwnerOf(dst) == e.ID
	case KindPort, KindQueue:
		port := e.Port()
		return slices.ContainsFunc(p, func(h Hop) bool { return h.Switch+":"+h.Out == port })
	case KindPair:
		way := e.Waypoints()
		return len(p) > 0 && len(way) == 2 && p[0].Switch == way[0] && p[len(p)-1].Switch == way[1]
	case KindCorridor:
		way := e.Waypoints()
		for i := 0; i+len(way) <= len(p); i++ {
			if slices.EqualFunc(p[i:i+len(way)], way, func(h Hop, sw string) bool { return h.Switch == sw }) {
				return true
			}
		}
		return false
	case KindLeafUplinks:
		return len(p) > 1 && (p[0].Switch == e.ID || p[len(p)-1].Switch == e.ID)
	case KindSwitch:
		return slices.ContainsFunc(p, func(h Hop) bool { return h.Switch == e.ID })
	case KindLink, KindAccessLink:
		return slices.ContainsFunc(p.LinkDirections(src, dst), func(d Direction) bool { return d.LinkID() == e.ID })
	}
	return false
}
