package ibfabric

// NewFabric returns the fabric of nodes that another source than a discovery or a text listed, without forwarding tables. The far
// ends of their ports are indices into nodes, which it takes over. found lists contradictions.
func NewFabric(nodes []Node) (f *Fabric, found []string) {
	f = &Fabric{Nodes: nodes}
	found = f.buildIndex()
	for i := f.Switches; i < len(f.Nodes); i++ {
		for p := range f.Nodes[i].Ports {
			if n := &f.Nodes[i]; n.Ports[p].GUID == n.GUID && p > 0 {
				f.byGUID[n.GUID] = End{int32(i), uint8(p)} // the source knows the port's, and not the node's
			}
		}
	}
	f.LFTs = make([][]uint8, f.Switches)
	return f, found
}

// ParseSpeed returns the speed of a name, as "HDR". It returns 0 for one that is unknown.
func ParseSpeed(name string) Speed {
	for i := range speeds {
		if i > 0 && speeds[i].name == name {
			return Speed(i)
		}
	}
	return 0
}
