package ibfabric

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/graylink/graylink/internal/ibmad"
)

// maxNodes and maxPorts bound what a fabric may report of itself.
const maxNodes = int(MaxLID)

// ErrTooLarge means that the fabric reports more nodes or ports than a subnet can have.
var ErrTooLarge = errors.New("more nodes or ports than a subnet can have")

// Discover reads the nodes, ports and cables of the subnet that a client is attached
// to: from the client's own port outwards along directed routes, with all queries of a
// round at a time. It does not read forwarding tables, which ReadTables does.
//
// Nodes that do not answer are in Fabric.Silent, and what is beyond them is missing. found
// lists contradictions, which may occur while the fabric changes. The error is
// the client's, the context's, ErrTooLarge, or that of the client's own port.
func Discover(ctx context.Context, c *ibmad.Client) (f *Fabric, found []string, err error) {
	d := &discovery{f: &Fabric{}, index: map[GUID]int32{}}
	var first []ibmad.Request
	first = d.addRequest(first, ibmad.GetNodeInfo(ibmad.Address{}), requestInfo{})
	walking, stop := context.WithCancel(ctx)
	defer stop()
	err = c.DoAll(walking, first, func(r *ibmad.Result) []ibmad.Request {
		next := d.handleResult(r)
		if d.fatal != nil {
			stop() // queries on their way are no longer needed
			return nil
		}
		return next
	})
	switch {
	case d.fatal != nil:
		return nil, nil, d.fatal
	case err != nil:
		return nil, nil, err
	}
	return d.f, append(d.found, d.f.buildIndex()...), nil
}

// discovery is a discovery in progress.
type discovery struct {
	f            *Fabric
	index        map[GUID]int32
	requestInfos []requestInfo
	ports        int
	found        []string
	fatal        error
}

// requestInfo identifies the subject of an answer: the port that leads to the place, for NodeInfo, or the
// node's own.
type requestInfo struct {
	end   End
	first bool // the client's own node
}

func (d *discovery) addRequest(to []ibmad.Request, r ibmad.Request, q requestInfo) []ibmad.Request {
	r.Tag = len(d.requestInfos)
	d.requestInfos = append(d.requestInfos, q)
	return append(to, r)
}

func (d *discovery) handleResult(r *ibmad.Result) []ibmad.Request {
	q := d.requestInfos[r.Request.Tag]
	q.first = r.Request.Tag == 0
	if r.Err != nil {
		if q.first {
			d.fatal = fmt.Errorf("the own port: %w", r.Err)
			return nil
		}
		if r.Request.Attribute == ibmad.AttrMellanoxPortInfo && errors.Is(r.Err, ibmad.ErrUnsupported) {
			return nil // such a device has no FDR10
		}
		if port := d.f.PortAt(q.end); r.Request.Attribute == ibmad.AttrNodeInfo && port.Linked {
			return nil // its cable was found from the far end
		}
		d.f.Unanswered = append(d.f.Unanswered, Unanswered{Near: q.end, Query: r.Request.Attribute.String(), Route: r.Request.To.Path, Err: r.Err})
		return nil
	}
	switch r.Request.Attribute {
	case ibmad.AttrNodeInfo:
		var info ibmad.NodeInfo
		info.Decode(r.Data())
		return d.handleNode(r.Request.To.Path, &info, q)
	case ibmad.AttrNodeDescription:
		var text ibmad.NodeDescription
		text.Decode(r.Data())
		d.f.Nodes[q.end.Node].Description = string(text)
	case ibmad.AttrSwitchInfo:
		var info ibmad.SwitchInfo
		info.Decode(r.Data())
		d.f.Nodes[q.end.Node].Enhanced = info.EnhancedPort0
	case ibmad.AttrPortInfo:
		var info ibmad.PortInfo
		info.Decode(r.Data())
		return d.handlePort(q.end, &info)
	case ibmad.AttrMellanoxPortInfo:
		var info ibmad.MellanoxPortInfo
		info.Decode(r.Data())
		if info.SpeedActive&ibmad.MellanoxFDR10 != 0 {
			d.f.PortAt(q.end).Speed = FDR10
		}
	}
	return nil
}

// handleNode handles the node at the end of a route: a new one, or another cable to a known one.
func (d *discovery) handleNode(route ibmad.Path, info *ibmad.NodeInfo, q requestInfo) (next []ibmad.Request) {
	i, known := d.index[info.GUID]
	if !known {
		if len(d.f.Nodes) >= maxNodes || d.ports+int(info.Ports) > maxPorts {
			d.fatal = ErrTooLarge
			return nil
		}
		i = int32(len(d.f.Nodes))
		d.index[info.GUID] = i
		d.ports += int(info.Ports) + 1
		n := Node{GUID: info.GUID, System: info.SystemGUID, Type: info.Type, Vendor: info.VendorID, Device: info.DeviceID, Route: route, Ports: make([]Port, int(info.Ports)+1)}
		d.f.Nodes = append(d.f.Nodes, n)
		to := ibmad.AlongRoute(route)
		next = d.addRequest(next, ibmad.GetNodeDescription(to), requestInfo{end: End{Node: i}})
		if info.Type == ibmad.NodeSwitch {
			next = d.addRequest(next, ibmad.GetSwitchInfo(to), requestInfo{end: End{Node: i}})
			for p := range min(len(n.Ports), ibmad.NoRoute) {
				next = d.addRequest(next, ibmad.GetPortInfo(to, uint8(p)), requestInfo{end: End{i, uint8(p)}})
			}
		}
	}
	here := End{i, info.LocalPort}
	port := d.f.PortAt(here)
	if port == nil {
		d.found = append(d.found, fmt.Sprintf("%s answers from port %d and has %d ports", info.GUID, info.LocalPort, len(d.f.Nodes[i].Ports)-1))
		return next
	}
	if info.Type != ibmad.NodeSwitch {
		// Other ports of a CA may be in other subnets: only those that are reached count.
		port.GUID = info.PortGUID
		if !port.Linked {
			next = d.addRequest(next, ibmad.GetPortInfo(ibmad.AlongRoute(route), info.LocalPort), requestInfo{end: here})
		}
	} else {
		d.f.Nodes[i].Ports[0].GUID = info.PortGUID
	}
	if q.first {
		d.f.From = here
		return next
	}
	d.connectPorts(q.end, here)
	return next
}

// connectPorts adds a cable.
func (d *discovery) connectPorts(a, b End) {
	for _, x := range [2][2]End{{a, b}, {b, a}} {
		if p := d.f.PortAt(x[0]); p.Linked && p.Far != x[1] {
			d.found = append(d.found, fmt.Sprintf("port %d of %s is connected to two places: the fabric is changing", x[0].Port, d.f.Nodes[x[0].Node].GUID))
			return
		}
	}
	pa, pb := d.f.PortAt(a), d.f.PortAt(b)
	pa.Far, pa.Linked, pb.Far, pb.Linked = b, true, a, true
}

// handlePort handles the state of a port, and returns the query for the far end of its cable, and for its speed where that may be FDR10.
func (d *discovery) handlePort(at End, info *ibmad.PortInfo) (next []ibmad.Request) {
	n := &d.f.Nodes[at.Node]
	p := &n.Ports[at.Port]
	p.State, p.Width, p.Speed = info.State, uint8(info.ActiveLanes()), speedOf(info)
	if n.Type != ibmad.NodeSwitch || at.Port == 0 {
		p.LID, p.LMC = info.LID, info.LMC
		if p.LID > MaxLID {
			d.found = append(d.found, fmt.Sprintf("port %d of %s reports LID %d", at.Port, n.GUID, p.LID))
			p.LID = 0
		}
	}
	// A CA does not forward directed routes, but the client's own port begins them.
	own := at == d.f.From
	up := info.State > ibmad.PortDown && info.PhysState == ibmad.PhysLinkUp
	if up && p.Speed == QDR && ibmad.HasMellanoxPortInfo(n.Vendor, n.Device) {
		next = d.addRequest(next, ibmad.GetMellanoxPortInfo(ibmad.AlongRoute(n.Route), at.Port), requestInfo{end: at})
	}
	if p.Linked || !up || at.Port == 0 || n.Type != ibmad.NodeSwitch && !own {
		return next
	}
	to, err := n.Route.AppendHop(at.Port)
	if err != nil {
		d.f.Unanswered = append(d.f.Unanswered, Unanswered{Near: at, Query: ibmad.AttrNodeInfo.String(), Route: n.Route, Err: err})
		return next
	}
	return d.addRequest(next, ibmad.GetNodeInfo(ibmad.AlongRoute(to)), requestInfo{end: at})
}

// speedOf returns the active speed, from the last of PortInfo's fields for it that has one. A port at FDR10 says QDR.
func speedOf(p *ibmad.PortInfo) Speed {
	if p.SpeedExt2Active == ibmad.SpeedExt2XDR {
		return XDR
	}
	if p.SpeedExt2Active != 0 {
		return 0
	}
	switch p.SpeedExtActive {
	case 1:
		return FDR
	case 2:
		return EDR
	case 4:
		return HDR
	case 8:
		return NDR
	}
	switch p.SpeedActive {
	case 1:
		return SDR
	case 2:
		return DDR
	case 4:
		return QDR
	}
	return 0
}

// Tables holds a reading of all forwarding tables.
type Tables struct {
	// LFTs are the tables by switch; nil means that the table was not read.
	LFTs [][]uint8
	// Changed lists the switches that report a change of a port's state that the subnet manager has not seen
	// yet.
	Changed    []int32
	Unanswered []Unanswered
}

// ReadTables reads the forwarding tables of a discovered fabric, up to each switch's
// highest LID with an entry, along the directed routes of its discovery. The error is
// the client's or the context's.
func ReadTables(ctx context.Context, c *ibmad.Client, f *Fabric) (*Tables, error) {
	t := &Tables{LFTs: make([][]uint8, f.Switches)}
	first := make([]ibmad.Request, f.Switches)
	for i := range first {
		first[i] = ibmad.GetSwitchInfo(ibmad.AlongRoute(f.Nodes[i].Route))
		first[i].Tag = i
	}
	err := c.DoAll(ctx, first, func(r *ibmad.Result) (next []ibmad.Request) {
		i := int32(r.Request.Tag)
		if r.Err != nil {
			t.LFTs[i] = nil
			t.Unanswered = append(t.Unanswered, Unanswered{Near: End{i, 0}, Query: r.Request.Attribute.String(), Route: r.Request.To.Path, Err: r.Err})
			return nil
		}
		if r.Request.Attribute == ibmad.AttrForwardingTable {
			if lft := t.LFTs[i]; lft != nil {
				var block ibmad.ForwardingBlock
				block.Decode(r.Data())
				copy(lft[min(int(r.Request.Modifier)*len(block), len(lft)):], block[:])
			}
			return nil
		}
		var info ibmad.SwitchInfo
		info.Decode(r.Data())
		if info.StateChange {
			t.Changed = append(t.Changed, i)
		}
		top := min(info.LinearTop, MaxLID)
		t.LFTs[i] = slices.Repeat([]uint8{ibmad.NoRoute}, int(top)+1)
		for b := range top/BlockLen + 1 {
			ask := ibmad.GetForwardingBlock(r.Request.To, uint16(b))
			ask.Tag = int(i)
			next = append(next, ask)
		}
		return next
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(t.Changed)
	return t, nil
}

// BlockLen is the number of entries that one datagram carries.
const BlockLen = LID(len(ibmad.ForwardingBlock{}))

// ReadVirtualLanes returns the virtual lanes of a walk's packets of a service level: the lane by which they
// leave each switch, or 15 where they are dropped. They are read hop by hop, so that only the tables of the
// walk are read.
func ReadVirtualLanes(ctx context.Context, c *ibmad.Client, f *Fabric, hops []Hop, sl uint8) ([]uint8, error) {
	lanes := make([]uint8, len(hops))
	var asked []ibmad.Request
	for i, h := range hops {
		r := ibmad.GetSLtoVL(ibmad.AlongRoute(f.Nodes[h.Switch].Route), h.In, h.Out)
		r.Tag = i
		asked = append(asked, r)
	}
	var failed error
	err := c.DoAll(ctx, asked, func(r *ibmad.Result) []ibmad.Request {
		if r.Err != nil {
			failed = r.Err
			return nil
		}
		var vls ibmad.SLtoVL
		vls.Decode(r.Data())
		lanes[r.Request.Tag] = vls[sl&15]
		return nil
	})
	if err == nil {
		err = failed
	}
	return lanes, err
}
