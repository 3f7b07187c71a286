package ibfabric

import "github.com/graylink/graylink/internal/ibmad"

// NodeAt returns the node that answers at an address: that of a LID, or the end of a directed route from Fabric.From. It returns
// false if the fabric does not know it.
func (f *Fabric) NodeAt(a ibmad.Address) (node int32, ok bool) {
	if a.LID != 0 {
		e, ok := f.ByLID(a.LID)
		return e.Node, ok
	}
	at := f.From.Node
	for _, port := range a.Path.EgressPorts() {
		p := f.PortAt(End{at, port})
		if p == nil || !p.Linked {
			return 0, false
		}
		at = p.Far.Node
	}
	return at, true
}
