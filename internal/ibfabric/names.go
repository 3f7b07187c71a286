package ibfabric

import (
	"strings"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibmad"
)

// unnamed is the device of a CA without a name in its description.
const unnamed = "hca"

// nameNodes names the nodes by their descriptions. A switch has its whole description. A CA's is "host device"
// as the kernel's drivers and rdma-core write it; otherwise the whole text names the host. Where several nodes
// have one name, the GUID is appended for all of them, so that no name depends on the order of reading.
func (f *Fabric) nameNodes() {
	count := map[string]int{}
	full := func(n *Node) string {
		if n.Type == ibmad.NodeSwitch {
			return n.name
		}
		return n.name + "/" + n.device
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		text := strings.TrimRight(n.Description, " \x00")
		if n.Type != ibmad.NodeSwitch {
			n.device = unnamed
			if parts := strings.Fields(text); len(parts) == 2 {
				text, n.device = parts[0], fabric.EncodeDevice(parts[1])
			}
		}
		if n.name = fabric.EncodeName(text); n.name == "" {
			n.name = n.GUID.String()
		}
		count[full(n)]++
	}
	hosts := map[string]bool{}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if count[full(n)] > 1 {
			if n.Type == ibmad.NodeSwitch {
				n.name += "_" + n.GUID.String()
			} else {
				n.device += "_" + n.GUID.String()
			}
		}
		if n.Type != ibmad.NodeSwitch {
			hosts[n.name] = true
		}
	}
	f.byName = make(map[string]int32, len(f.Nodes))
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if n.Type == ibmad.NodeSwitch && hosts[n.name] {
			n.name += "_" + n.GUID.String() // a name belongs to one switch or node only
		}
		f.byName[full(n)] = int32(i)
	}
}
