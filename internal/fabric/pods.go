package fabric

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Part is the part of a fabric that some pods are, or groups of a Dragonfly+, perhaps with what is above all pods. It owns
// elements and flows, so that every element and every flow has exactly one owner among parts that have all pods together:
//
//   - An element belongs to the pod of its switches and NICs, and of the far ends of their cables where it is a port or a
//     NIC. If these are in several pods, it belongs to the first of them by name. All flows that cross an element of a pod
//     begin or end in the pod, unless they detour.
//   - An element of no pod, such as a core switch, belongs to what is above the pods.
//   - A flow belongs to the pod of the NIC that probes.
//
// A nil *Part is the whole fabric.
type Part struct {
	graph *Graph
	pods  map[string]bool
	podOf map[string]string  // by NIC
	ways  map[Direction]bool // whether the links of the topology belong to it
	core  bool
}

// corePart is the name of what is above all pods. No switch has it as the name of its pod.
const corePart = ""

// CoreName stands for what is above all pods in the names of parts.
const CoreName = "core"

// ErrNoCore is the error of a part that shall have what is above all pods, where there is nothing.
var ErrNoCore = errors.New("every switch has a pod or a group, so that nothing is above them")

// NewPart returns the part of a fabric that has some pods and, with core, what is above all of them. It fails for a pod that
// the topology does not have, if nothing joins pods, if a leaf is in no pod, and for a core where every switch has a pod.
func NewPart(g *Graph, pods []string, core bool) (*Part, error) {
	p := &Part{graph: g, pods: map[string]bool{}, podOf: map[string]string{}, ways: make(map[Direction]bool, 2*len(g.Topo.Links)), core: core}
	known := g.podNames()
	for _, pod := range pods {
		if pod == CoreName {
			return nil, fmt.Errorf("%q is the name of what is above all pods: another name of the pod is expected", pod)
		}
		if !slices.Contains(known, pod) {
			return nil, fmt.Errorf("no switch has the pod or group %q: one of %s is expected", pod, quotedNames(known))
		}
		p.pods[pod] = true
	}
	if g.tiers < 3 {
		return nil, fmt.Errorf("the topology has %d tiers: pods are parts of a fabric with a tier above them, or groups of a Dragonfly+", g.tiers)
	}
	for _, nic := range g.NICIDs() {
		p.podOf[nic] = g.PodOf(nic)
		if leaf, _ := g.LeafOf(nic); leaf != "" && p.podOf[nic] == "" {
			return nil, fmt.Errorf("a pod is expected for each leaf: %q has none, so that no analyzer would be responsible for it", leaf)
		}
	}
	if core && !g.hasCore() {
		return nil, ErrNoCore
	}
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		d := Direction{From: l.A, To: l.B}
		p.ways[d] = p.Owns(Element{Kind: KindLink, ID: l.ID()})
		p.ways[d.Reverse()] = p.ways[d]
	}
	return p, nil
}

// Names returns the names of what the part has, and of what the whole fabric has, sorted: a pod or CoreName, with its plane
// before it and a slash if it has one. A nil part has no names.
func (p *Part) Names() (own, all []string) {
	if p == nil {
		return nil, nil
	}
	for i := range p.graph.Topo.Switches {
		s := &p.graph.Topo.Switches[i]
		pod := s.PodName()
		name := pod
		if pod == corePart {
			name = CoreName
		}
		if s.Plane != "" {
			name = s.Plane + "/" + name
		}
		if slices.Contains(all, name) {
			continue
		}
		all = append(all, name)
		if p.pods[pod] || pod == corePart && p.core {
			own = append(own, name)
		}
	}
	slices.Sort(own)
	slices.Sort(all)
	return own, all
}

// podNames returns the names of the pods and groups, sorted.
func (g *Graph) podNames() []string {
	names := map[string]bool{}
	for i := range g.Topo.Switches {
		if pod := g.Topo.Switches[i].PodName(); pod != "" {
			names[pod] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// hasCore reports whether a switch is in no pod.
func (g *Graph) hasCore() bool {
	return slices.ContainsFunc(g.Topo.Switches, func(s Switch) bool { return s.PodName() == "" })
}

func quotedNames(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(quoted, ", ")
}

// PodOf returns the pod or group of a NIC, which is that of its leaf, or of the switch of a port, or "".
func (g *Graph) PodOf(end string) string {
	owner := OwnerOf(end)
	if IsNIC(end) {
		owner, _ = g.LeafOf(end)
	}
	return g.podOfSwitch(owner)
}

func (g *Graph) podOfSwitch(name string) string {
	if s := g.Switch(name); s != nil {
		return s.PodName()
	}
	return ""
}

// ownerOf returns the pod that an element belongs to, or corePart.
func (g *Graph) ownerOf(e Element) string {
	var ends, pods []string
	switch e.Kind {
	case KindNIC, KindClock, KindPort, KindQueue, KindLink, KindAccessLink:
		for _, end := range e.Ends() {
			ends = append(ends, end, g.PeerOf(end))
		}
	case KindHost:
		ends = g.EndsOf(e.ID)
	case KindPair, KindCorridor:
		for _, sw := range e.Waypoints() {
			pods = append(pods, g.podOfSwitch(sw))
		}
	default:
		pods = []string{g.podOfSwitch(e.ID)}
	}
	for _, end := range ends {
		if end != "" {
			pods = append(pods, g.PodOf(end))
		}
	}
	pods = slices.DeleteFunc(pods, func(pod string) bool { return pod == "" })
	if len(pods) == 0 {
		return corePart
	}
	return slices.Min(pods)
}

// Owns reports whether an element belongs to the part.
func (p *Part) Owns(e Element) bool {
	if p == nil {
		return true
	}
	pod := p.graph.ownerOf(e)
	return p.pods[pod] || pod == corePart && p.core
}

// OwnsDirection reports whether the link of a direction belongs to the part.
func (p *Part) OwnsDirection(d Direction) bool {
	if p == nil {
		return true
	}
	owned, known := p.ways[d]
	return owned || !known && p.Owns(Element{Kind: KindLink, ID: d.LinkID()})
}

// HasNIC reports whether a NIC is in a pod of the part.
func (p *Part) HasNIC(nic string) bool { return p == nil || p.pods[p.podOf[nic]] }

// HasPod reports whether a pod or group is in the part.
func (p *Part) HasPod(pod string) bool { return p == nil || p.pods[pod] }

// OwnsFlow reports whether a flow belongs to the part: whether its NIC that probes does.
func (p *Part) OwnsFlow(f Flow) bool { return p == nil || p.HasNIC(f.Src) }

// Concerns reports whether a flow may cross elements of the part: it begins or ends in a pod of it, or leaves a pod where the
// part has what is above them.
func (p *Part) Concerns(f Flow) bool {
	return p == nil || p.HasNIC(f.Src) || p.HasNIC(f.Dst) || p.core && p.podOf[f.Src] != p.podOf[f.Dst]
}
