package ibfabric

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/graylink/graylink/internal/ibmad"
)

// encodedFabric is the form of a Fabric between two processes. Directed routes are left out: they are those of the device
// that discovered the fabric, and of no use elsewhere.
type encodedFabric struct {
	Nodes      []encodedNode       `json:"nodes"`
	Unanswered []encodedUnanswered `json:"unanswered,omitempty"`
	From       End                 `json:"from"`
	// LFTs has a table for each switch: null was not read.
	LFTs [][]byte `json:"lfts"`
}

type encodedNode struct {
	GUID        GUID           `json:"guid"`
	System      GUID           `json:"system,omitempty"`
	Type        ibmad.NodeType `json:"type"`
	Description string         `json:"description,omitempty"`
	Vendor      uint32         `json:"vendor,omitempty"`
	Device      uint16         `json:"device,omitempty"`
	Enhanced    bool           `json:"enhanced,omitempty"`
	Ports       []encodedPort  `json:"ports"`
}

// encodedPort has an absent far end where none is known.
type encodedPort struct {
	GUID  GUID            `json:"guid,omitempty"`
	LID   LID             `json:"lid,omitempty"`
	LMC   uint8           `json:"lmc,omitempty"`
	State ibmad.PortState `json:"state,omitempty"`
	Width uint8           `json:"width,omitempty"`
	Speed Speed           `json:"speed,omitempty"`
	Far   *End            `json:"far,omitempty"`
}

type encodedUnanswered struct {
	Near  End    `json:"near"`
	Query string `json:"query"`
	Error string `json:"error"`
}

// EncodeFabric returns a fabric as JSON, which DecodeFabric reads.
func EncodeFabric(f *Fabric) ([]byte, error) {
	out := encodedFabric{Nodes: make([]encodedNode, len(f.Nodes)), From: f.From, LFTs: f.LFTs}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		x := encodedNode{GUID: n.GUID, System: n.System, Type: n.Type, Description: n.Description, Vendor: n.Vendor, Device: n.Device, Enhanced: n.Enhanced, Ports: make([]encodedPort, len(n.Ports))}
		for p := range n.Ports {
			port := &n.Ports[p]
			x.Ports[p] = encodedPort{GUID: port.GUID, LID: port.LID, LMC: port.LMC, State: port.State, Width: port.Width, Speed: port.Speed}
			if port.Linked {
				x.Ports[p].Far = &port.Far
			}
		}
		out.Nodes[i] = x
	}
	for _, u := range f.Unanswered {
		out.Unanswered = append(out.Unanswered, encodedUnanswered{Near: u.Near, Query: u.Query, Error: u.Err.Error()})
	}
	return json.Marshal(out)
}

// DecodeFabric reads what EncodeFabric wrote. found lists contradictions. An error names the field and what is expected.
func DecodeFabric(text []byte) (f *Fabric, found []string, err error) {
	var in encodedFabric
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, nil, fmt.Errorf("fabric: %w", err)
	}
	if n := len(in.Nodes); n == 0 || n > maxNodes {
		return nil, nil, fmt.Errorf("fabric: nodes: %d: 1 to %d are expected", n, maxNodes)
	}
	f = &Fabric{Nodes: make([]Node, len(in.Nodes)), From: in.From}
	switches := 0
	for i := range in.Nodes {
		n := &in.Nodes[i]
		if n.Type == ibmad.NodeSwitch {
			if switches++; switches != i+1 {
				return nil, nil, fmt.Errorf("fabric: nodes[%d]: switches are expected first", i)
			}
		}
		if f.Nodes[i], err = n.decode(in.Nodes); err != nil {
			return nil, nil, fmt.Errorf("fabric: nodes[%d]: %w", i, err)
		}
		if i > 0 && in.Nodes[i-1].Type == n.Type && in.Nodes[i-1].GUID >= n.GUID {
			return nil, nil, fmt.Errorf("fabric: nodes[%d]: guid: nodes of a type are expected in the order of their GUIDs, each once", i)
		}
	}
	exists := func(e End) bool {
		return e.Node >= 0 && int(e.Node) < len(f.Nodes) && int(e.Port) < max(1, len(f.Nodes[e.Node].Ports))
	}
	if !exists(in.From) {
		return nil, nil, fmt.Errorf("fabric: from: there is no port %d of node %d", in.From.Port, in.From.Node)
	}
	for i, u := range in.Unanswered {
		if !exists(u.Near) {
			return nil, nil, fmt.Errorf("fabric: unanswered[%d]: near: there is no port %d of node %d", i, u.Near.Port, u.Near.Node)
		}
		f.Unanswered = append(f.Unanswered, Unanswered{Near: u.Near, Query: u.Query, Err: errors.New(u.Error)})
	}
	if len(in.LFTs) != switches {
		return nil, nil, fmt.Errorf("fabric: lfts: %d tables: one for each of the %d switches is expected", len(in.LFTs), switches)
	}
	f.LFTs = make([][]uint8, switches)
	for i, table := range in.LFTs {
		if len(table) > int(MaxLID)+1 {
			return nil, nil, fmt.Errorf("fabric: lfts[%d]: %d entries: at most %d are expected", i, len(table), int(MaxLID)+1)
		}
		f.LFTs[i] = table
	}
	return f, f.buildIndex(), nil
}

// decode returns the node, whose far ends have to be among all nodes.
func (n *encodedNode) decode(all []encodedNode) (Node, error) {
	out := Node{GUID: n.GUID, System: n.System, Type: n.Type, Description: n.Description, Vendor: n.Vendor, Device: n.Device, Enhanced: n.Enhanced}
	if n.Type < ibmad.NodeHCA || n.Type > ibmad.NodeRouter {
		return out, fmt.Errorf("type: %d: %d to %d is expected", n.Type, ibmad.NodeHCA, ibmad.NodeRouter)
	}
	if len(n.Ports) == 0 || len(n.Ports) > 256 {
		return out, fmt.Errorf("ports: %d: 1 to 256 are expected, with port 0", len(n.Ports))
	}
	out.Ports = make([]Port, len(n.Ports))
	for p := range n.Ports {
		port := &n.Ports[p]
		if port.LMC > 7 {
			return out, fmt.Errorf("ports[%d]: lmc: %d: 0 to 7 is expected", p, port.LMC)
		}
		if port.LID > MaxLID {
			return out, fmt.Errorf("ports[%d]: lid: %d: at most %d is expected", p, port.LID, MaxLID)
		}
		if int(port.Speed) >= len(speeds) {
			return out, fmt.Errorf("ports[%d]: speed: %d: at most %d is expected", p, port.Speed, len(speeds)-1)
		}
		x := Port{GUID: port.GUID, LID: port.LID, LMC: port.LMC, State: port.State, Width: port.Width, Speed: port.Speed}
		if far := port.Far; far != nil {
			if far.Node < 0 || int(far.Node) >= len(all) || int(far.Port) >= len(all[far.Node].Ports) {
				return out, fmt.Errorf("ports[%d]: far: there is no port %d of node %d", p, far.Port, far.Node)
			}
			x.Far, x.Linked = *far, true
		}
		out.Ports[p] = x
	}
	return out, nil
}
