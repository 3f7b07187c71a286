// Package ibfabric represents an InfiniBand subnet: its nodes, ports and LIDs, the
// forwarding tables that the subnet manager installed, and the paths of packets by
// them.
//
// Rules of a walk:
//
//  1. A switch forwards by its own table alone: the entry of the destination's LID is
//     the port that the packet leaves by, 0 is the switch's own port (IBA volume 1,
//     18.2.4.3).
//  2. A walk does not cross what is unknown: a table that was not read, a switch that
//     did not answer, or two ports with one LID end the walk with an error.
//  3. A packet that comes to a switch a second time is in an endless loop, because the
//     tables depend on nothing but the destination.
//  4. Where a switch may choose between ports (adaptive routing, for the service
//     levels it is on for) there is no single path: candidates are listed.
//  5. A router is the end of a subnet: what is beyond it has no LID here, and no path.
//     Multicast packets follow other tables, which are not read.
//
// A Fabric does not change; a new reading makes another Fabric.
package ibfabric

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibmad"
)

// The names of ibmad that are also used by this package.
type (
	GUID = ibmad.GUID
	LID  = ibmad.LID
)

// MaxLID is the highest LID of a port.
const MaxLID = ibmad.MaxUnicastLID

// ParseGUID reads a GUID in hexadecimal, with 0x or without, padded or not.
func ParseGUID(s string) (GUID, error) {
	digits := strings.TrimPrefix(strings.ToLower(s), "0x")
	n, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || digits == "" {
		return 0, fmt.Errorf("GUID %q: up to 16 hexadecimal digits are expected", s)
	}
	return GUID(n), nil
}

// Speed is the data rate of a lane; 0 means unknown.
type Speed uint8

// Speeds, slowest first.
const (
	SDR Speed = iota + 1
	DDR
	QDR
	FDR10
	FDR
	EDR
	HDR
	NDR
	XDR
)

var speeds = [...]struct {
	name string
	gbps float64 // nominal, of a lane: a link of four lanes of HDR is 200
}{{}, {"SDR", 2.5}, {"DDR", 5}, {"QDR", 10}, {"FDR10", 10}, {"FDR", 14}, {"EDR", 25}, {"HDR", 50}, {"NDR", 100}, {"XDR", 200}}

func (s Speed) String() string {
	if int(s) < len(speeds) {
		return speeds[s].name
	}
	return ""
}

// End identifies a port by the index of its node in Fabric.Nodes and its number. For the zero value of a far
// end, see Port.Linked.
type End struct {
	Node int32
	Port uint8
}

// Port represents a port of a node. Port 0 of a switch is its own; a CA has none.
type Port struct {
	GUID GUID // 0 means unknown; ports of a switch have that of its port 0
	Far  End
	LID  LID // the first of 1 << LMC; 0 if there is none
	LMC  uint8
	// State is 0 and Width (lanes) and Speed are 0 if unknown.
	State ibmad.PortState
	Width uint8
	Speed Speed
	// Linked means that the far end is known. A cable to a node that does not answer is not Linked.
	Linked bool
}

// RateGbps returns the rate of the port, or 0 if it is unknown.
func (p *Port) RateGbps() float64 {
	if int(p.Speed) >= len(speeds) {
		return 0
	}
	return float64(p.Width) * speeds[p.Speed].gbps
}

// Node represents a CA, a switch or a router.
type Node struct {
	GUID, System GUID
	Type         ibmad.NodeType
	Description  string
	Vendor       uint32
	Device       uint16
	// Enhanced means that the switch's port 0 is like the others.
	Enhanced bool
	// Ports lists ports by number; index 0 of a CA is not used.
	Ports []Port

	// Route is the directed route by which the node was discovered, from Fabric.From.
	Route ibmad.Path

	// name is that of the switch or of the CA's node; device is that of the CA.
	name, device string
}

// Unanswered represents a query that was not answered.
type Unanswered struct {
	// Near is the port that leads to the place without an answer or, for a node that answered other queries,
	// its own port that was queried.
	Near End
	// Query states what was queried along which directed route, and why it failed.
	Query string
	Route ibmad.Path
	Err   error
}

// Fabric holds what was read of a subnet.
type Fabric struct {
	// Nodes are sorted by type, switches first, and by GUID.
	Nodes []Node
	// Switches is the number of switches in Nodes.
	Switches   int
	Unanswered []Unanswered
	// From is the port that discovered the fabric; it is zero for a fabric read from a text.
	From End
	// LFTs are the forwarding tables of the switches: the port by LID, or ibmad.NoRoute. A nil table was not
	// read.
	LFTs [][]uint8
	// Adaptive describes where a switch may choose. It is nil, or nil for a switch, where no choice is known.
	Adaptive []*Adaptive

	byLID  []int32 // index of ends; 0 means none, <0 several
	ends   []End
	byGUID map[GUID]End // of nodes (port 0) and of ports
	byName map[string]int32
}

// Adaptive describes where a switch may choose between ports.
type Adaptive struct {
	// SLs has a bit for every service level with adaptive routing.
	SLs uint16
	// Private means that the switch has private forwarding tables, which packets of some ports and service levels follow instead. They
	// are not known, so that no walk crosses the switch.
	Private bool
	// Stale means that the groups may be those of other forwarding tables, so that no walk crosses the switch either.
	Stale bool

	groups [][]uint8 // of ports, sorted
	group  []uint16  // by LID: 1 and the place in groups, or 0
}

// NewAdaptive returns what a switch may choose: for each LID the ports.
func NewAdaptive(sls uint16, ports map[LID][]uint8) *Adaptive {
	a := &Adaptive{SLs: sls}
	for _, lid := range slices.Sorted(maps.Keys(ports)) {
		a.groups = append(a.groups, slices.Sorted(slices.Values(ports[lid])))
		a.setGroup(lid, len(a.groups)-1)
	}
	return a
}

// WithStaleChoices returns the fabric with all choices stale.
func (f *Fabric) WithStaleChoices() *Fabric {
	g := *f
	g.Adaptive = slices.Clone(f.Adaptive)
	for i, a := range g.Adaptive {
		if a != nil {
			b := *a
			b.Stale = true
			g.Adaptive[i] = &b
		}
	}
	return &g
}

// setGroup sets the place of a LID's group.
func (a *Adaptive) setGroup(lid LID, group int) {
	if grow := int(lid) + 1 - len(a.group); grow > 0 {
		a.group = append(a.group, make([]uint16, grow)...)
	}
	a.group[lid] = uint16(group + 1)
}

// PortsTo returns the ports to choose from for packets to a LID, or nil if there is no choice.
func (a *Adaptive) PortsTo(lid LID) []uint8 {
	if int(lid) >= len(a.group) || a.group[lid] == 0 {
		return nil
	}
	return a.groups[a.group[lid]-1]
}

// equal reports whether two switches may choose alike; both may be nil.
func (a *Adaptive) equal(b *Adaptive) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.SLs != b.SLs || a.Private != b.Private || a.Stale != b.Stale {
		return false
	}
	for lid := range LID(max(len(a.group), len(b.group))) {
		if !slices.Equal(a.PortsTo(lid), b.PortsTo(lid)) {
			return false
		}
	}
	return true
}

// buildIndex sorts and indexes the nodes, whose references to each other are adapted. found lists
// contradictions.
func (f *Fabric) buildIndex() (found []string) {
	order := make([]int32, len(f.Nodes))
	for i := range order {
		order[i] = int32(i)
	}
	rank := func(t ibmad.NodeType) int {
		if t == ibmad.NodeSwitch {
			return 0
		}
		return int(t)
	}
	slices.SortFunc(order, func(a, b int32) int {
		x, y := &f.Nodes[a], &f.Nodes[b]
		return cmp.Or(cmp.Compare(rank(x.Type), rank(y.Type)), cmp.Compare(x.GUID, y.GUID))
	})
	place := make([]int32, len(order))
	nodes := make([]Node, len(order))
	for to, from := range order {
		place[from] = int32(to)
		nodes[to] = f.Nodes[from]
	}
	f.Nodes = nodes
	f.byGUID = make(map[GUID]End, 2*len(nodes))
	f.byLID = make([]int32, int(MaxLID)+1)
	f.ends = []End{{}}
	for i := range nodes {
		n := &nodes[i]
		if n.Type == ibmad.NodeSwitch {
			f.Switches++
		}
		f.byGUID[n.GUID] = End{int32(i), 0}
		for p := range n.Ports {
			port := &n.Ports[p]
			if port.Linked {
				port.Far.Node = place[port.Far.Node]
			}
			if n.Type == ibmad.NodeSwitch && p > 0 {
				continue // the LID of a switch is that of its port 0
			}
			found = append(found, f.indexLIDs(End{int32(i), uint8(p)}, port)...)
		}
	}
	for i := range nodes {
		for p := range nodes[i].Ports {
			if g := nodes[i].Ports[p].GUID; g != 0 {
				if _, taken := f.byGUID[g]; !taken {
					f.byGUID[g] = End{int32(i), uint8(p)}
				}
			}
		}
	}
	for i := range f.Unanswered {
		f.Unanswered[i].Near.Node = place[f.Unanswered[i].Near.Node]
	}
	slices.SortFunc(f.Unanswered, func(a, b Unanswered) int {
		return cmp.Or(compareEnds(a.Near, b.Near), cmp.Compare(a.Query, b.Query))
	})
	f.From.Node = place[f.From.Node]
	f.nameNodes()
	return found
}

// indexLIDs adds the LIDs of a port to the index.
func (f *Fabric) indexLIDs(e End, p *Port) (found []string) {
	if p.LID == 0 {
		return nil
	}
	id := int32(len(f.ends))
	f.ends = append(f.ends, e)
	for l := int(p.LID); l < int(p.LID)+1<<p.LMC && l <= int(MaxLID); l++ {
		if other := f.byLID[l]; other != 0 {
			found = append(found, fmt.Sprintf("LID %d is claimed by port %d of %s and by another port", l, e.Port, f.Nodes[e.Node].GUID))
			f.byLID[l] = -1
			continue
		}
		f.byLID[l] = id
	}
	return found
}

// ByLID returns the port that has a LID. ok is false if none or several have it.
func (f *Fabric) ByLID(l LID) (e End, ok bool) {
	if l > MaxLID || f.byLID[l] <= 0 {
		return End{}, false
	}
	return f.ends[f.byLID[l]], true
}

// ByGUID returns the port that has a GUID, or the node with port 0.
func (f *Fabric) ByGUID(g GUID) (e End, ok bool) {
	e, ok = f.byGUID[g]
	return e, ok
}

// PortAt returns the port of an end, or nil if there is none.
func (f *Fabric) PortAt(e End) *Port {
	if int(e.Node) >= len(f.Nodes) || int(e.Port) >= len(f.Nodes[e.Node].Ports) {
		return nil
	}
	return &f.Nodes[e.Node].Ports[e.Port]
}

// FirstLID returns the first LID of a port; all ports of a switch have that of its port 0.
func (f *Fabric) FirstLID(e End) LID {
	n := &f.Nodes[e.Node]
	if n.Type == ibmad.NodeSwitch {
		e.Port = 0
	}
	if int(e.Port) >= len(n.Ports) {
		return 0
	}
	return n.Ports[e.Port].LID
}

// WithTables returns the fabric with other forwarding tables, by switch.
func (f *Fabric) WithTables(lfts [][]uint8) *Fabric {
	g := *f
	g.LFTs = lfts
	return &g
}

// NodeName returns the name of a switch, or of the NIC of a CA's first port.
func (f *Fabric) NodeName(node int32) string {
	if n := &f.Nodes[node]; n.Type == ibmad.NodeSwitch {
		return n.name
	}
	return f.EndName(End{node, 1})
}

// EndName returns the end's identifier in topology files: switch:port, or node/device of a CA's port 1 and
// node/device.2 of its second. A switch's port 0 has the switch's name.
func (f *Fabric) EndName(e End) string {
	n := &f.Nodes[e.Node]
	switch {
	case n.Type == ibmad.NodeSwitch && e.Port == 0:
		return n.name
	case n.Type == ibmad.NodeSwitch:
		return n.name + ":" + strconv.Itoa(int(e.Port))
	case e.Port > 1:
		return n.name + "/" + n.device + "." + strconv.Itoa(int(e.Port))
	}
	return n.name + "/" + n.device
}

// ByName returns the end of an identifier made by EndName.
func (f *Fabric) ByName(id string) (e End, ok bool) {
	owner, device, nic := fabric.SplitNIC(id)
	if sw, port, ok := fabric.SplitPort(id); ok {
		n, err := strconv.ParseUint(port, 10, 8)
		i, known := f.byName[sw]
		e = End{i, uint8(n)}
		return e, err == nil && known && f.PortAt(e) != nil
	}
	if !nic {
		i, ok := f.byName[id]
		return End{i, 0}, ok
	}
	if i, ok := f.byName[id]; ok {
		return End{i, 1}, true
	}
	base, port, cut := cutLast(device, ".")
	if i, ok := f.byName[owner+"/"+base]; ok && cut {
		n, err := strconv.ParseUint(port, 10, 8)
		e = End{i, uint8(n)}
		return e, err == nil && n > 1 && f.PortAt(e) != nil
	}
	return End{}, false
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// FindLID returns the LID for a user's text: a LID (7, 0x7, lid:7), a GUID (0x and more than four digits, or
// guid:...), or an identifier.
func (f *Fabric) FindLID(s string) (l LID, err error) {
	none := func(what string) (LID, error) { return 0, fmt.Errorf("%s: the fabric has no such %s", s, what) }
	if text, ok := strings.CutPrefix(s, "guid:"); ok || strings.HasPrefix(s, "0x") && len(s) > len("0xbfff") {
		g, err := ParseGUID(text)
		if err != nil {
			return 0, err
		}
		e, ok := f.ByGUID(g)
		if !ok {
			return none("GUID")
		}
		if f.Nodes[e.Node].Type != ibmad.NodeSwitch && e.Port == 0 {
			e.Port = 1
		}
		return f.requireLID(s, e)
	}
	if n, err := strconv.ParseUint(strings.TrimPrefix(s, "lid:"), 0, 16); err == nil {
		if _, ok := f.ByLID(LID(n)); !ok {
			return none("LID, or several ports have it")
		}
		return LID(n), nil
	}
	e, ok := f.ByName(s)
	if !ok {
		return none("node/device or switch")
	}
	return f.requireLID(s, e)
}

func (f *Fabric) requireLID(s string, e End) (LID, error) {
	l := f.FirstLID(e)
	if l == 0 {
		return 0, fmt.Errorf("%s: the port has no LID", s)
	}
	return l, nil
}
