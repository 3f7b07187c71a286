package ibfabric

import (
	"fmt"

	"github.com/graylink/graylink/internal/ibmad"
)

// AppendShortestGroups appends the text of a file ibdiagnet2.far, as ReadAdaptive reads it, by which switches choose between
// all active ports on shortest ways to each HCA. It serves fabrics without adaptive routing of their own, such as ibsim's.
func (f *Fabric) AppendShortestGroups(text []byte) []byte {
	active := func(p *Port) bool { return p.Linked && p.State == ibmad.PortActive }
	type destination struct {
		lid  LID
		leaf int32
	}
	var all []destination
	for i := f.Switches; i < len(f.Nodes); i++ {
		for p := range f.Nodes[i].Ports {
			if port := &f.Nodes[i].Ports[p]; active(port) && int(port.Far.Node) < f.Switches {
				all = append(all, destination{port.LID, port.Far.Node})
			}
		}
	}
	distances := map[int32][]int{}
	for _, d := range all {
		if distances[d.leaf] == nil {
			distances[d.leaf] = f.switchDistances(d.leaf, active)
		}
	}
	for i := range int32(f.Switches) {
		text = fmt.Appendf(text, "Switch %s %q\nGroups Definition:\n", f.Nodes[i].GUID, f.Nodes[i].Description)
		groups := map[string]int{}
		var states []byte
		for _, d := range all {
			dist := distances[d.leaf]
			ports := ""
			for p := range f.Nodes[i].Ports {
				port := &f.Nodes[i].Ports[p]
				if p > 0 && active(port) && int(port.Far.Node) < f.Switches && dist[i] > 0 && dist[port.Far.Node] == dist[i]-1 {
					ports += fmt.Sprintf("%d,", p)
				}
			}
			if ports == "" || int(d.lid) >= len(f.LFTs[i]) {
				continue
			}
			group, known := groups[ports]
			if !known {
				group = len(groups)
				groups[ports] = group
				text = fmt.Appendf(text, "%d 0 0 %s\n", group, ports)
			}
			states = fmt.Appendf(states, "%#x %d Free %d\n", d.lid, f.LFTs[i][d.lid], group)
		}
		text = append(fmt.Appendf(text, "LFT Definition:\nPLFT_NUM: 0, top: %#x\n", MaxLID), states...)
	}
	return text
}

// switchDistances returns the number of links from each switch to one, over ports for which usable returns true, or -1.
func (f *Fabric) switchDistances(to int32, usable func(*Port) bool) []int {
	dist := make([]int, f.Switches)
	for i := range dist {
		dist[i] = -1
	}
	dist[to] = 0
	for queue := []int32{to}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for p := range f.Nodes[at].Ports {
			port := &f.Nodes[at].Ports[p]
			if usable(port) && int(port.Far.Node) < f.Switches && dist[port.Far.Node] < 0 {
				dist[port.Far.Node] = dist[at] + 1
				queue = append(queue, port.Far.Node)
			}
		}
	}
	return dist
}
