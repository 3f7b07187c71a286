package ibfabric

import (
	"fmt"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibmad"
)

// roles lists the roles of switches by their distance to the CAs.
var roles = []fabric.Role{fabric.Leaf, fabric.Spine, fabric.Core}

// isAggregationNode reports whether a CA is part of a switch: the aggregation node that SHARP adds to every
// switch is at an inner port and sends no traffic of hosts.
func isAggregationNode(n *Node) bool {
	return n.Type == ibmad.NodeHCA && strings.Contains(n.Description, "Aggregation Node")
}

// switchTiers returns the distances of switches to the nearest CA, in links, or 0 if there is no path.
func (f *Fabric) switchTiers() []int {
	tier := make([]int, f.Switches)
	var queue []int32
	for i := range tier {
		for _, p := range f.Nodes[i].Ports {
			if p.Linked && int(p.Far.Node) >= f.Switches && !isAggregationNode(&f.Nodes[p.Far.Node]) {
				tier[i] = 1
			}
		}
		if tier[i] == 1 {
			queue = append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, p := range f.Nodes[at].Ports {
			if next := p.Far.Node; p.Linked && int(next) < f.Switches && tier[next] == 0 {
				tier[next] = tier[at] + 1
				queue = append(queue, next)
			}
		}
	}
	return tier
}

// BuildTopology returns the fabric as a topology file. NICs have their GUIDs and LIDs as aliases (guid:0x...,
// lid:5), for each LID that an LMC adds. found lists what a topology file cannot express.
func (f *Fabric) BuildTopology() (t *fabric.Topology, found []string) {
	t = &fabric.Topology{Version: 1}
	tier := f.switchTiers()
	in := make([]bool, len(f.Nodes))
	for i := range tier {
		switch {
		case tier[i] == 0:
			found = append(found, fmt.Sprintf("%s: no cable leads from it to a CA: it is left out", f.Nodes[i].name))
		case tier[i] > len(roles):
			found = append(found, fmt.Sprintf("%s: it is %d links from the nearest CA, and there are %d tiers: it is left out", f.Nodes[i].name, tier[i], len(roles)))
		default:
			in[i] = true
			t.Switches = append(t.Switches, fabric.Switch{Name: f.Nodes[i].name, Role: roles[tier[i]-1]})
		}
	}
	hosts := map[string][]fabric.NIC{}
	for i := f.Switches; i < len(f.Nodes); i++ {
		n := &f.Nodes[i]
		if isAggregationNode(n) {
			continue
		}
		in[i] = true
		for p := 1; p < len(n.Ports); p++ {
			e := End{int32(i), uint8(p)}
			if n.Ports[p] == (Port{}) {
				continue // the text does not list it
			}
			if !n.Ports[p].Linked {
				found = append(found, fmt.Sprintf("%s: it has no cable", f.EndName(e)))
			}
			_, device, _ := fabric.SplitNIC(f.EndName(e))
			hosts[n.name] = append(hosts[n.name], fabric.NIC{Node: n.name, Device: device, Aliases: f.portAliases(e)})
		}
	}
	for name, nics := range hosts {
		t.Nodes = append(t.Nodes, fabric.Node{Name: name, NICs: nics})
	}
	slices.SortFunc(t.Nodes, func(a, b fabric.Node) int { return strings.Compare(a.Name, b.Name) })
	for _, l := range f.ListCables() {
		a, b := l.A, l.B
		switch {
		case !in[a.Node] || !in[b.Node]:
		case int(a.Node) >= f.Switches && int(b.Node) >= f.Switches:
			found = append(found, fmt.Sprintf("%s and %s are joined by a cable without a switch: it is left out", f.EndName(a), f.EndName(b)))
		case a.Node == b.Node:
			found = append(found, fmt.Sprintf("%s and %s are joined by a cable: it is left out", f.EndName(a), f.EndName(b)))
		default:
			t.Links = append(t.Links, fabric.Link{A: f.EndName(a), B: f.EndName(b), SpeedGbps: f.PortAt(a).RateGbps()})
		}
	}
	return t, found
}

// portAliases returns the GUID and the LIDs that no other port has.
func (f *Fabric) portAliases(e End) []string {
	p := f.PortAt(e)
	var out []string
	if owner, ok := f.ByGUID(p.GUID); ok && (owner == e || owner == End{e.Node, 0} && e.Port == 1) {
		out = append(out, "guid:"+p.GUID.String())
	}
	for i := range LID(1) << p.LMC {
		if owner, ok := f.ByLID(p.LID + i); p.LID != 0 && ok && owner == e {
			out = append(out, fmt.Sprintf("lid:%d", p.LID+i))
		}
	}
	return out
}

// Cable represents a cable between two ports.
type Cable struct{ A, B End }

// ListCables returns the cables, each once: with a CA's end first, otherwise the lower.
func (f *Fabric) ListCables() []Cable {
	var out []Cable
	for i := range f.Nodes {
		for p := range f.Nodes[i].Ports {
			port, near := &f.Nodes[i].Ports[p], End{int32(i), uint8(p)}
			if !port.Linked || port.Far.Node < near.Node || port.Far.Node == near.Node && port.Far.Port < near.Port {
				continue
			}
			if int(port.Far.Node) >= f.Switches {
				out = append(out, Cable{port.Far, near})
			} else {
				out = append(out, Cable{near, port.Far})
			}
		}
	}
	slices.SortFunc(out, func(x, y Cable) int {
		a, b := int(x.A.Node) < f.Switches, int(y.A.Node) < f.Switches
		if a != b {
			if a {
				return 1
			}
			return -1
		}
		return compareEnds(x.A, y.A)
	})
	return out
}

func compareEnds(a, b End) int {
	if a.Node != b.Node {
		return int(a.Node) - int(b.Node)
	}
	return int(a.Port) - int(b.Port)
}

// Connection describes one end of a cable for people and other programs: LID and port, the LID and port at the
// far end, and the node there.
type Connection struct {
	End         string  `json:"end"`
	GUID        string  `json:"guid"`
	LID         LID     `json:"lid,omitempty"`
	Port        uint8   `json:"port"`
	Peer        string  `json:"peer"`
	PeerGUID    string  `json:"peer_guid"`
	PeerLID     LID     `json:"peer_lid,omitempty"`
	PeerPort    uint8   `json:"peer_port"`
	Vendor      uint32  `json:"vendor,omitempty"`
	Device      uint16  `json:"device,omitempty"`
	Width       uint8   `json:"width,omitempty"`
	Speed       string  `json:"speed,omitempty"`
	GbitPerS    float64 `json:"gbps,omitempty"`
	Description string  `json:"description"`
}

// ListConnections returns the ports that have a cable, switches first.
func (f *Fabric) ListConnections() []Connection {
	var out []Connection
	for i := range f.Nodes {
		n := &f.Nodes[i]
		for p := range n.Ports {
			port, e := &n.Ports[p], End{int32(i), uint8(p)}
			if !port.Linked {
				continue
			}
			out = append(out, Connection{
				End: f.EndName(e), GUID: n.GUID.String(), LID: f.FirstLID(e), Port: e.Port,
				Peer: f.EndName(port.Far), PeerGUID: f.Nodes[port.Far.Node].GUID.String(), PeerLID: f.FirstLID(port.Far), PeerPort: port.Far.Port,
				Vendor: n.Vendor, Device: n.Device, Width: port.Width, Speed: port.Speed.String(), GbitPerS: port.RateGbps(), Description: n.Description,
			})
		}
	}
	return out
}
