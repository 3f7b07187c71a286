package ufm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/graylink/graylink/internal/fabric"
)

// Inventory holds what UFM reports of the fabric's nodes, ports and cables.
type Inventory struct {
	Systems []System
	Ports   []PortInfo
	Links   []LinkInfo

	portByKey      map[endKey]*inventoryPort
	portOrder      []*inventoryPort
	peers          map[*inventoryPort]*inventoryPort // by the cables
	contradictions []string                          // texts
}

type endKey struct {
	guid   GUID
	number int
}

// inventoryPort represents a port with its names.
type inventoryPort struct {
	key      endKey
	info     *PortInfo
	isSwitch bool
	name     string // of the switch or the node
	device   string // of the NIC, without the port's number
}

// FinishSaved ends the reading of saved documents. It returns an error unless all three were read.
func (v *Inventory) FinishSaved() error {
	switch {
	case len(v.Systems) == 0:
		return errorf(KindMalformed, "a document of resources/systems is expected, with the types of nodes")
	case len(v.Ports) == 0:
		return errorf(KindMalformed, "a document of resources/ports is expected")
	case len(v.Links) == 0:
		return errorf(KindMalformed, "a document of resources/links is expected")
	}
	return v.indexPorts()
}

// ReadSaved adds a saved document of resources/systems, ports or links. It recognizes the document by its
// elements.
func (v *Inventory) ReadSaved(r io.Reader) error {
	var all []json.RawMessage
	if err := decodeList(r, func(e json.RawMessage) { all = append(all, e) }); err != nil {
		return err
	}
	if len(all) == 0 {
		return errorf(KindMalformed, "the list is empty")
	}
	for i, e := range all {
		var has struct {
			Source jsonText `json:"source_guid"`
			Number jsonText `json:"number"`
			System jsonText `json:"system_guid"`
			Own    jsonText `json:"guid"`
		}
		err := json.Unmarshal(e, &has)
		switch {
		case err != nil:
		case has.Source != "":
			v.Links = append(v.Links, LinkInfo{})
			err = json.Unmarshal(e, &v.Links[len(v.Links)-1])
		case has.Number != "" && has.Own != "":
			v.Ports = append(v.Ports, PortInfo{})
			err = json.Unmarshal(e, &v.Ports[len(v.Ports)-1])
		case has.System != "":
			v.Systems = append(v.Systems, System{})
			err = json.Unmarshal(e, &v.Systems[len(v.Systems)-1])
		default:
			err = errors.New("a system (system_guid), a port (guid, number) or a link (source_guid, destination_guid) is expected")
		}
		if err != nil {
			return errorf(KindMalformed, "element %d: %w", i+1, err)
		}
	}
	return nil
}

// nodeKind interprets a type of systems ("switch", "host"), of labels ("switch", "HCA") or the number of
// InfiniBand's NodeInfo (1 CA, 2 switch).
func nodeKind(s string) (sw, known bool) {
	switch strings.ToLower(s) {
	case "switch", "2":
		return true, true
	case "host", "hca", "ca", "gateway", "router", "1", "3", "computer", "gpu":
		return false, true
	}
	return false, false
}

// hostDevice returns a CA's node and device from its description, which is "host device" as drivers write it.
// Otherwise the whole text names the node, as in internal/ibfabric.
func hostDevice(description string) (host, device string) {
	if parts := strings.Fields(description); len(parts) == 2 {
		return fabric.EncodeName(parts[0]), fabric.EncodeDevice(parts[1])
	}
	return fabric.EncodeName(strings.TrimSpace(description)), "hca"
}

// nodeDescription returns a node's description without the port's number at its end.
func nodeDescription(p *PortInfo) string {
	d := strings.TrimSpace(string(p.Description))
	if d = strings.TrimSuffix(d, ":"+string(p.Number)); d == "" || strings.EqualFold(d, "N/A") {
		d = strings.TrimSpace(string(p.System))
	}
	return d
}

// indexPorts names all ports. It returns an error when a GUID cannot be read.
func (v *Inventory) indexPorts() error {
	kinds := map[GUID]bool{}
	for i, s := range v.Systems {
		for _, t := range []jsonText{s.GUID, s.Own} {
			if t == "" {
				continue
			}
			g, err := ParseGUID(string(t))
			if err != nil {
				return errorf(KindMalformed, "system %d: %w", i+1, err)
			}
			if sw, known := nodeKind(string(s.Type)); known {
				kinds[g] = sw
			}
		}
	}
	v.portByKey, v.portOrder, v.contradictions = map[endKey]*inventoryPort{}, nil, nil
	owners := map[string]map[GUID]bool{} // by name
	for i := range v.Ports {
		p := &v.Ports[i]
		g, err := ParseGUID(string(p.GUID))
		if err != nil {
			return errorf(KindMalformed, "port %d: guid: %w", i+1, err)
		}
		n, err := strconv.ParseUint(string(p.Number), 10, 16)
		if err != nil {
			return errorf(KindMalformed, "port %d: number: %q: a number is expected", i+1, string(p.Number))
		}
		e := &inventoryPort{key: endKey{g, int(n)}, info: p}
		system, err := ParseGUID(string(p.SystemID))
		sw, known := kinds[system]
		if err != nil || !known {
			sw, known = kinds[g]
		}
		if !known {
			v.contradictions = append(v.contradictions, fmt.Sprintf("%s: port %d of %v: its system %q is not in the list of systems, or has no type: it is left out", string(p.Name), n, g, string(p.SystemID)))
			continue
		}
		if _, twice := v.portByKey[e.key]; twice {
			v.contradictions = append(v.contradictions, fmt.Sprintf("port %d of %v is there twice", n, g))
			continue
		}
		if e.isSwitch = sw; sw {
			e.name = fabric.EncodeName(nodeDescription(p))
		} else {
			e.name, e.device = hostDevice(nodeDescription(p))
		}
		if e.name == "" {
			e.name = g.String()
		}
		v.portByKey[e.key] = e
		v.portOrder = append(v.portOrder, e)
		id := e.uniqueName()
		if owners[id] == nil {
			owners[id] = map[GUID]bool{}
		}
		owners[id][g] = true
	}
	hosts := map[string]bool{}
	for _, e := range v.portOrder {
		if len(owners[e.uniqueName()]) > 1 {
			if e.isSwitch {
				e.name += "_" + e.key.guid.String()
			} else {
				e.device += "_" + e.key.guid.String()
			}
		}
		if !e.isSwitch {
			hosts[e.name] = true
		}
	}
	for _, e := range v.portOrder {
		if e.isSwitch && hosts[e.name] {
			e.name += "_" + e.key.guid.String() // a name belongs to one switch or node only
		}
	}
	v.peers = map[*inventoryPort]*inventoryPort{}
	for _, l := range v.Links { // BuildTopology reports what is wrong with them
		a, err1 := v.linkEnd(l.SourceGUID, l.SourcePort)
		b, err2 := v.linkEnd(l.DestinationGUID, l.DestinationPort)
		if err1 == nil && err2 == nil && a != b && v.peers[a] == nil && v.peers[b] == nil {
			v.peers[a], v.peers[b] = b, a
		}
	}
	return nil
}

// uniqueName returns a name that no other GUID has.
func (e *inventoryPort) uniqueName() string {
	if e.isSwitch {
		return e.name
	}
	return e.name + "/" + e.device + "." + strconv.Itoa(e.key.number)
}

// portName returns the port's name. Ports of a NIC beyond the first have their number appended, as in
// internal/ibfabric.
func (e *inventoryPort) portName() Name {
	if e.isSwitch {
		return Name{Switch: e.name, Port: strconv.Itoa(e.key.number)}
	}
	nic := e.name + "/" + e.device
	if e.key.number > 1 {
		nic += "." + strconv.Itoa(e.key.number)
	}
	return Name{NIC: nic}
}

// ID returns the port's identifier (internal/fabric).
func (n Name) ID() string {
	if n.NIC != "" {
		return n.NIC
	}
	return n.Switch + ":" + n.Port
}

// NameOf returns a port's name from the inventory, or else from what telemetry says of its node. It returns
// false if neither names it.
func (v *Inventory) NameOf(id Identity) (Name, bool) {
	if v != nil {
		for _, g := range []GUID{id.Port, id.Node} {
			if e := v.portByKey[endKey{g, id.Number}]; e != nil && g != 0 {
				return e.portName(), true
			}
		}
	}
	sw, known := nodeKind(id.Type)
	if !known || id.Description == "" {
		return Name{}, false
	}
	if sw {
		return Name{Switch: fabric.EncodeName(id.Description), Port: strconv.Itoa(id.Number)}, true
	}
	host, device := hostDevice(id.Description)
	return (&inventoryPort{key: endKey{id.Port, id.Number}, name: host, device: device}).portName(), true
}

// Contradictions returns the contradictions found in the inventory.
func (v *Inventory) Contradictions() []string { return v.contradictions }

// PortState represents what the inventory says of a port's link. Unknown rates and lanes are 0.
type PortState struct {
	Name Name
	Up   bool
	// Gbps and Lanes are the negotiated rate and width.
	Gbps  float64
	Lanes int
	// ExpectedGbps and ExpectedLanes are the highest values that both ends are enabled for.
	ExpectedGbps  float64
	ExpectedLanes int
}

// PortStates returns the states of all ports but the management ports of switches, in the order of the
// document. Ports in an unknown state are left out.
func (v *Inventory) PortStates() []PortState {
	var out []PortState
	for _, e := range v.portOrder {
		if e.isSwitch && e.key.number == 0 {
			continue
		}
		s := PortState{Name: e.portName()}
		switch strings.ToLower(string(e.info.State)) {
		case "active":
			s.Up, s.Gbps, s.Lanes = true, LinkGbps(string(e.info.Speed), string(e.info.Width)), laneCount(string(e.info.Width))
		case "down", "initialize", "init", "initializing", "armed", "active_defer":
		default:
			continue
		}
		if o := v.peers[e]; o != nil {
			s.ExpectedLanes = int(largestCommon(e.info.EnabledWidth, o.info.EnabledWidth, func(s string) float64 { return float64(laneCount(s)) }))
			s.ExpectedGbps = largestCommon(e.info.EnabledSpeed, o.info.EnabledSpeed, laneRate) * float64(s.ExpectedLanes)
		}
		out = append(out, s)
	}
	return out
}

// largestCommon returns the largest value that two lists have in common. It returns 0 if there is none, or a
// list is unknown.
func largestCommon(a, b jsonText, value func(string) float64) (best float64) {
	in := map[float64]bool{}
	for s := range strings.SplitSeq(string(a), ",") {
		in[value(s)] = true
	}
	for s := range strings.SplitSeq(string(b), ",") {
		if x := value(s); in[x] {
			best = max(best, x)
		}
	}
	return best
}

// Neighbor represents the other end of a switch port's cable.
type Neighbor struct {
	Port Name
	// Remote is the switch or node. RemotePort is its port: a number, or a NIC's device.
	Remote, RemotePort string
	// GUID identifies the remote node or port, as in UFM's list of ports.
	GUID GUID
}

// SwitchNeighbors returns the neighbors of all cabled switch ports, in the order of the document.
func (v *Inventory) SwitchNeighbors() []Neighbor {
	var out []Neighbor
	for _, e := range v.portOrder {
		o := v.peers[e]
		if o == nil || !e.isSwitch {
			continue
		}
		n := Neighbor{Port: e.portName(), Remote: o.name, GUID: o.key.guid}
		if name := o.portName(); o.isSwitch {
			n.RemotePort = name.Port
		} else {
			_, n.RemotePort, _ = fabric.SplitNIC(name.NIC)
		}
		out = append(out, n)
	}
	return out
}

// ActivePortCount returns the number of ports that telemetry should report: those whose link is up, without the
// management ports of switches.
func (v *Inventory) ActivePortCount() (n int) {
	for _, s := range v.PortStates() {
		if s.Up {
			n++
		}
	}
	return n
}

// laneGbps are the nominal rates of a lane in Gbit/s, as in internal/ibfabric: a link of four lanes of HDR has
// 200.
var laneGbps = map[string]float64{"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}

// laneRate returns the rate of a lane in Gbit/s by its speed ("NDR", "IB-NDR"), or 0 if the speed is unknown.
func laneRate(speed string) float64 { return laneGbps[speedName(speed)] }

// laneCount returns the number of lanes of a width ("4x", "IB_4x"), or 0 if the width is unknown.
func laneCount(width string) int {
	width = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(width)), "ib_")
	digits, is := strings.CutSuffix(width, "x")
	n, err := strconv.ParseUint(digits, 10, 8)
	if err != nil || !is || n > 12 {
		return 0
	}
	return int(n)
}

// LinkGbps returns the rate of a speed and a width in Gbit/s, or 0 if one of them is unknown.
func LinkGbps(speed, lanes string) float64 { return laneRate(speed) * float64(laneCount(lanes)) }

// Directory holds the current inventory. It may be used by many goroutines.
type Directory struct {
	current atomic.Pointer[Inventory]
	version atomic.Uint64
}

// SetInventory replaces the inventory.
func (d *Directory) SetInventory(v *Inventory) {
	d.current.Store(v)
	d.version.Add(1)
}

// CurrentInventory returns the inventory, or nil before the first one.
func (d *Directory) CurrentInventory() *Inventory { return d.current.Load() }

// NameOf returns a port's name by the current inventory.
func (d *Directory) NameOf(id Identity) (Name, bool) { return d.current.Load().NameOf(id) }

// Version returns a number that changes with SetInventory.
func (d *Directory) Version() uint64 { return d.version.Load() }

var roles = []fabric.Role{fabric.Leaf, fabric.Spine, fabric.Core}

// BuildTopology returns the inventory as a topology file. A switch's role follows from its distance to the
// nearest NIC. NICs have their GUIDs and LIDs as aliases. found lists the inventory's contradictions, left what
// a topology file cannot express.
func (v *Inventory) BuildTopology() (t *fabric.Topology, found, left []string) {
	t = &fabric.Topology{Version: 1}
	found = slices.Clone(v.contradictions)
	var cables [][2]*inventoryPort
	used := map[endKey]bool{}
	for i, l := range v.Links {
		a, err1 := v.linkEnd(l.SourceGUID, l.SourcePort)
		b, err2 := v.linkEnd(l.DestinationGUID, l.DestinationPort)
		if err1 != nil || err2 != nil {
			for _, err := range []error{err1, err2} {
				if err != nil {
					found = append(found, fmt.Sprintf("link %d: %v: it is left out", i+1, err))
				}
			}
			continue
		}
		switch {
		case used[a.key] || used[b.key]:
			if !slices.ContainsFunc(cables, func(c [2]*inventoryPort) bool { return c == [2]*inventoryPort{a, b} || c == [2]*inventoryPort{b, a} }) {
				found = append(found, fmt.Sprintf("link %d: %s--%s: an end has another cable already: it is left out", i+1, a.portName().ID(), b.portName().ID()))
			}
			continue
		case !a.isSwitch && !b.isSwitch:
			left = append(left, fmt.Sprintf("%s and %s are joined by a cable without a switch: it is left out", a.portName().ID(), b.portName().ID()))
			continue
		case a.isSwitch && b.isSwitch && a.name == b.name:
			left = append(left, fmt.Sprintf("%s and %s are joined by a cable: it is left out", a.portName().ID(), b.portName().ID()))
			continue
		}
		used[a.key], used[b.key] = true, true
		cables = append(cables, [2]*inventoryPort{a, b})
	}
	tier := switchTiers(cables)
	names := map[string]bool{}
	for _, e := range v.portOrder {
		if !e.isSwitch || names[e.name] {
			continue
		}
		names[e.name] = true
		switch d := tier[e.name]; {
		case d == 0:
			left = append(left, fmt.Sprintf("%s: no cable leads from it to a NIC: it is left out", e.name))
		case d > len(roles):
			left = append(left, fmt.Sprintf("%s: it is %d links from the nearest NIC, and there are %d tiers: it is left out", e.name, d, len(roles)))
		default:
			t.Switches = append(t.Switches, fabric.Switch{Name: e.name, Role: roles[d-1]})
		}
	}
	hosts := map[string][]fabric.NIC{}
	for _, e := range v.portOrder {
		if e.isSwitch {
			continue
		}
		_, device, _ := fabric.SplitNIC(e.portName().NIC)
		nic := fabric.NIC{Node: e.name, Device: device, Aliases: []string{"guid:" + e.key.guid.String()}}
		if lid, err := strconv.ParseUint(string(e.info.LID), 10, 16); err == nil && lid > 0 {
			nic.Aliases = append(nic.Aliases, fmt.Sprintf("lid:%d", lid))
		}
		hosts[e.name] = append(hosts[e.name], nic)
	}
	for name, nics := range hosts {
		t.Nodes = append(t.Nodes, fabric.Node{Name: name, NICs: nics})
	}
	slices.SortFunc(t.Nodes, func(a, b fabric.Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Switches, func(a, b fabric.Switch) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range cables {
		a, b := c[0], c[1]
		in := func(e *inventoryPort) bool { return !e.isSwitch || tier[e.name] > 0 && tier[e.name] <= len(roles) }
		if !in(a) || !in(b) {
			continue
		}
		if a.isSwitch && !b.isSwitch {
			a, b = b, a
		}
		t.Links = append(t.Links, fabric.Link{A: a.portName().ID(), B: b.portName().ID(), SpeedGbps: LinkGbps(string(a.info.Speed), string(a.info.Width))})
	}
	slices.SortFunc(t.Links, func(x, y fabric.Link) int { return strings.Compare(x.A+x.B, y.A+y.B) })
	return t, found, left
}

func (v *Inventory) linkEnd(guid, port jsonText) (*inventoryPort, error) {
	g, err := ParseGUID(string(guid))
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(string(port), 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q of %v: a number is expected", string(port), g)
	}
	e := v.portByKey[endKey{g, int(n)}]
	if e == nil {
		return nil, fmt.Errorf("port %d of %v is not in the list of ports", n, g)
	}
	return e, nil
}

// switchTiers returns the distances of switches to the nearest NIC, in links, by name.
func switchTiers(cables [][2]*inventoryPort) map[string]int {
	tier, next := map[string]int{}, map[string][]string{}
	var queue []string
	for _, c := range cables {
		a, b := c[0], c[1]
		switch {
		case a.isSwitch && b.isSwitch:
			next[a.name], next[b.name] = append(next[a.name], b.name), append(next[b.name], a.name)
			continue
		case b.isSwitch:
			a = b
		}
		if tier[a.name] == 0 {
			tier[a.name] = 1
			queue = append(queue, a.name)
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, n := range next[at] {
			if tier[n] == 0 {
				tier[n] = tier[at] + 1
				queue = append(queue, n)
			}
		}
	}
	return tier
}
