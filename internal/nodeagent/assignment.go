package nodeagent

import (
	"encoding/hex"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
)

// Defaults of a node without a configuration file.
const (
	fleetReplyTimeout   = time.Second
	fleetTracePackets   = 1000 // per second
	fleetTracePerSwitch = 50
	fleetTracesAtOnce   = 32
)

// fleetConfig returns the engine's configuration for an assignment of the coordinator. If the mesh is authenticated, a
// peer without keys is left out, and so are its edges. Temporary flows and hop-limited probes beyond the node's own limits
// are left out.
func fleetConfig(a *agentapi.Assignment, keys *agentapi.Keys, o *FleetOptions) *probe.Config {
	c := &probe.Config{Node: a.GetNode(), Cadence: time.Duration(a.GetCadenceNs()), ReplyTimeout: fleetReplyTimeout, ErrorBound: o.Clock.ErrorBound, ClockSync: o.Clock.Sync,
		Stamp: probe.StampConfig{Port: uint16(a.GetStamp().GetPort()), SourcePort: uint16(a.GetStamp().GetSourcePort()), Padding: int(a.GetStamp().GetPadding())},
		Trace: probe.TraceConfig{PacketsPerSecond: fleetTracePackets, PacketsPerSwitch: fleetTracePerSwitch, Concurrency: fleetTracesAtOnce},
		Hash:  hex.EncodeToString(a.GetHash()[:min(8, len(a.GetHash()))])}
	for _, k := range a.GetStamp().GetClasses() {
		c.Stamp.Classes = append(c.Stamp.Classes, probe.ClassConfig{Name: k.GetName(), DSCP: uint8(k.GetDscp()), SL: uint8(k.GetSl())})
	}
	if len(c.Stamp.Classes) == 0 {
		c.Stamp.Classes = []probe.ClassConfig{{}}
	}
	for _, n := range a.GetNics() {
		v := probe.NICConfig{NIC: n.GetNic(), Address: agentapi.AddrFromBytes(n.GetAddress()), Device: n.GetDevice(), Leaf: n.GetLeaf(), LeafPort: n.GetLeafPort(),
			Plane: n.GetPlane(), Pod: n.GetPod(), Side: n.GetSide(), SSID: uint16(n.GetSsid()), Timestamps: o.Timestamps}
		if n.Rail != nil && n.GetRail() <= math.MaxInt32 {
			rail := int(n.GetRail())
			v.Rail = &rail
		}
		c.NICs = append(c.NICs, v)
	}
	shared := map[string][]probe.Key{}
	for _, p := range keys.GetPeers() {
		for _, k := range p.GetKeys() {
			shared[p.GetNode()] = append(shared[p.GetNode()], probe.Key{ID: k.GetId(), Secret: k.GetSecret()})
		}
	}
	usable := make([]bool, len(a.GetPeers()))
	for i, p := range a.GetPeers() {
		v := probe.PeerConfig{NIC: p.GetNic(), Address: agentapi.AddrFromBytes(p.GetAddress()), Leaf: p.GetLeaf(), Plane: p.GetPlane(), SSID: uint16(p.GetSsid()), Hardware: p.GetHardware()}
		if r := p.GetRdma(); r != nil && len(r.GetGid()) == 16 {
			v.RDMA = &probe.RDMAPeer{GID: netip.AddrFrom16([16]byte(r.GetGid())), QPN: r.GetQpn(), QKey: r.GetQKey(), LID: uint16(r.GetLid()), Hardware: r.GetHardware()}
		}
		if a.GetAuthenticated() {
			if v.Keys = shared[fabric.OwnerOf(p.GetNic())]; len(v.Keys) == 0 {
				continue
			}
		}
		usable[i] = true
		c.Peers = append(c.Peers, v)
	}
	own, answered := newTemporaryBudget(), newTemporaryBudget()
	for _, e := range a.GetEdges() {
		if usable[e.GetPeer()] && own.admits(e) {
			c.Edges = append(c.Edges, probe.EdgeConfig{Src: a.Nics[e.GetNic()].GetNic(), Dst: a.Peers[e.GetPeer()].GetNic(),
				Flow: int(e.GetFlow()), Tier: int(e.GetTier()), Cadence: time.Duration(e.GetCadenceNs()), Hops: own.admitHops(e), Carrier: carrierOf(e)})
		}
	}
	for _, e := range a.GetAnswers() {
		if usable[e.GetPeer()] && answered.admits(e) {
			c.Answers = append(c.Answers, probe.EdgeConfig{Src: a.Peers[e.GetPeer()].GetNic(), Dst: a.Nics[e.GetNic()].GetNic(),
				Flow: int(e.GetFlow()), Tier: int(e.GetTier()), Cadence: time.Duration(e.GetCadenceNs()), Carrier: carrierOf(e)})
		}
	}
	return c
}

// carrierOf returns the address that lists the path of what the node sends of an edge. It is invalid if switches choose.
func carrierOf(e *agentapi.Edge) netip.Addr {
	if len(e.GetCarrier()) != net.IPv6len {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(e.GetCarrier()))
}

// Limits of temporary flows and hop-limited probes, whatever the coordinator grants.
const (
	maxTemporaryFlows   = 16 // of a NIC
	minTemporaryCadence = 100 * time.Millisecond
	maxHopProbes        = 16 // of a NIC
)

// temporaryBudget counts the temporary flows and the hop-limited probes of NICs.
type temporaryBudget struct{ flows, hops map[uint32]int }

func newTemporaryBudget() temporaryBudget {
	return temporaryBudget{flows: map[uint32]int{}, hops: map[uint32]int{}}
}

// admitHops returns the hop limits of an edge that are within the node's own limits.
func (b temporaryBudget) admitHops(e *agentapi.Edge) (hops []int) {
	for _, h := range e.GetHops() {
		if h < 1 || h > agentapi.MaxHops || b.hops[e.GetNic()] >= maxHopProbes || slices.Contains(hops, int(h)) {
			continue
		}
		b.hops[e.GetNic()]++
		hops = append(hops, int(h))
	}
	return hops
}

// admits reports whether an edge is within the node's own limits.
func (b temporaryBudget) admits(e *agentapi.Edge) bool {
	if !fabric.IsTemporaryFlow(int(e.GetFlow())) {
		return true
	}
	if b.flows[e.GetNic()] >= maxTemporaryFlows || time.Duration(e.GetCadenceNs()) < minTemporaryCadence {
		return false
	}
	b.flows[e.GetNic()]++
	return true
}
