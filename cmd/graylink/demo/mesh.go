package demo

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sort"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/sourceroute"
)

// Times of the mesh that the demo runs: every pair of NICs is probed once in pairCadence by default, and its flows
// take turns.
const (
	pairCadence  = 10 * time.Millisecond
	replyTimeout = time.Second
)

// StampPort is the reflectors' port, SourcePort that of flow 0.
const (
	StampPort  = 862
	SourcePort = 49152
)

// fullMesh is the number of NICs up to which every NIC probes every other;
// beyond it each probes fanOut others, spread over leaves.
const (
	fullMesh = 10
	fanOut   = 7
)

// wantFlows is the number of flows that should be expected on every direction of every fabric link, so that ECMP's
// hash leaves no link with too few flows to distinguish it from its neighbours. maxFlows bounds the flows per pair.
const (
	wantFlows = 12
	maxFlows  = 8
)

// Mesh represents the probes between NICs.
type Mesh struct {
	Flows int
	// PairCadence is the time between two probes of a pair of NICs.
	PairCadence time.Duration
	// Signals adds as many flows of class fabric.ClassCSIG, whose probes carry in-band signals.
	Signals bool
	// Peers lists, for every NIC, the NICs it probes.
	Peers map[string][]string
	// Ways are the paths of the flows, in a fabric whose hosts choose them. Nil means that switches choose.
	Ways *sourceroute.Plan
}

// chooseWays chooses the paths of all flows, if the fabric lets hosts choose.
func (m *Mesh) chooseWays(g *fabric.Graph) error {
	table, err := sourceroute.NewTable(g)
	if errors.Is(err, sourceroute.ErrNotSourceRouted) {
		return nil
	}
	if err != nil {
		return err
	}
	var flows []fabric.Flow
	for _, src := range slices.Sorted(maps.Keys(m.Peers)) {
		for _, dst := range m.Peers[src] {
			for n := range m.Flows {
				flows = append(flows, fabric.Flow{Src: src, Dst: dst, Number: n})
			}
		}
	}
	m.Ways = table.Choose(flows)
	return nil
}

// carriersOf returns the destinations by which a node sends probes and replies, by flow.
func (m *Mesh) carriersOf(node string) map[string]netip.Addr {
	if m.Ways == nil {
		return nil
	}
	out := map[string]netip.Addr{}
	for i := range m.Ways.Choices {
		c := &m.Ways.Choices[i]
		reply := c.Flow
		reply.Reply = true
		if c.ProbeCarrier.IsValid() && fabric.OwnerOf(c.Flow.Src) == node {
			out[c.Flow.String()] = c.ProbeCarrier
		}
		if c.ReplyCarrier.IsValid() && fabric.OwnerOf(c.Flow.Dst) == node {
			out[reply.String()] = c.ReplyCarrier
		}
	}
	return out
}

// DirectedFlows returns the number of directed flows, probes and replies, without those of in-band signals.
func (m Mesh) DirectedFlows() int {
	n := 0
	for _, p := range m.Peers {
		n += 2 * len(p) * m.Flows
	}
	return n
}

// nodeNames lists the nodes that take part, sorted.
func (m Mesh) nodeNames() []string {
	names := map[string]bool{}
	for src, peers := range m.Peers {
		for _, nic := range append([]string{src}, peers...) {
			names[fabric.OwnerOf(nic)] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// FlowCadence returns the time between two probes of one flow.
func (m Mesh) FlowCadence() time.Duration { return m.PairCadence * time.Duration(m.Flows) }

// chooseFlows returns the least number of flows per pair with which every fabric link is expected to carry wantFlows
// in each direction.
func chooseFlows(g *fabric.Graph, m Mesh) int {
	expected := map[fabric.Direction]float64{}
	for src, peers := range m.Peers {
		for _, dst := range peers {
			for _, ends := range [][2]string{{src, dst}, {dst, src}} {
				all := g.ShortestPaths(ends[0], ends[1], 64)
				for _, p := range all {
					for _, d := range p.LinkDirections(ends[0], ends[1]) {
						expected[d] += 1 / float64(len(all))
					}
				}
			}
		}
	}
	flows := 1
	for d, n := range expected {
		if !fabric.IsNIC(d.From) && !fabric.IsNIC(d.To) {
			flows = max(flows, int(math.Ceil(wantFlows/n-1e-9)))
		}
	}
	return min(flows, maxFlows)
}

// PlanMesh connects the NICs of every plane with each other: all of them in a
// small fabric; in a larger one the neighbour on the own leaf and then the
// others, an even stride apart, so that every leaf pair is met. With 0 flows
// per pair their number is chosen for coverage.
func PlanMesh(g *fabric.Graph, flows int) Mesh {
	m := Mesh{Flows: flows, PairCadence: pairCadence, Peers: map[string][]string{}}
	planes := map[string][]string{}
	for _, id := range g.NICIDs() {
		if leaf, _ := g.LeafOf(id); leaf != "" {
			n := g.NIC(id)
			planes[n.Plane] = append(planes[n.Plane], id)
		}
	}
	for _, nics := range planes {
		sort.SliceStable(nics, func(i, j int) bool {
			a, _ := g.LeafOf(nics[i])
			b, _ := g.LeafOf(nics[j])
			return a < b
		})
		for i, src := range nics {
			var peers []string
			n := len(nics)
			if n <= fullMesh {
				for j, dst := range nics {
					if j != i {
						peers = append(peers, dst)
					}
				}
			} else {
				for k := 0; k < fanOut; k++ {
					step := 1 + k*(n-1)/fanOut
					peers = append(peers, nics[(i+step)%n])
				}
			}
			for _, dst := range peers {
				if fabric.OwnerOf(dst) != fabric.OwnerOf(src) && g.PathTier(src, dst) > 0 {
					m.Peers[src] = append(m.Peers[src], dst)
				}
			}
		}
	}
	if m.Flows == 0 {
		m.Flows = chooseFlows(g, m)
	}
	return m
}

// NodeConfig returns the configuration file of one node's agent: the NICs that its NICs probe, and those whose probes
// they answer.
func NodeConfig(g *fabric.Graph, m Mesh, node *fabric.Node) ([]byte, error) {
	c := probe.File{Node: node.Name, Cadence: m.FlowCadence(), ReplyTimeout: replyTimeout, Stamp: &probe.FileStamp{Port: StampPort, SourcePort: SourcePort}}
	if m.Signals {
		c.Stamp.Classes = []probe.FileClass{{}, {Name: fabric.ClassCSIG}}
	}
	own := map[string]bool{}
	for i := range node.NICs {
		n := &node.NICs[i]
		leaf, port := g.LeafOf(n.ID())
		if leaf == "" {
			continue
		}
		own[n.ID()] = true
		address := g.ProbeAddress(n.ID())
		c.NICs = append(c.NICs, probe.FileNIC{NIC: n.ID(), Address: &address, Leaf: leaf, LeafPort: port, Plane: n.Plane, Rail: n.Rail, Pod: g.Switch(leaf).PodName(), Side: n.Side})
	}
	from := map[string][]string{}
	asked := map[string]bool{}
	for src, peers := range m.Peers {
		for _, dst := range peers {
			if own[src] {
				from[dst] = append(from[dst], src)
			}
			if own[dst] {
				asked[src] = true
			}
		}
	}
	for _, peer := range g.NICIDs() {
		if len(from[peer]) == 0 && !asked[peer] {
			continue
		}
		leaf, _ := g.LeafOf(peer)
		address := g.ProbeAddress(peer)
		p := probe.FilePeer{NIC: peer, Address: &address, Leaf: leaf, Plane: g.NIC(peer).Plane, Flows: m.Flows, From: from[peer]}
		sort.Strings(p.From)
		for _, nic := range c.NICs {
			p.Tier = max(p.Tier, g.PathTier(nic.NIC, peer))
		}
		if len(p.From) == 0 {
			no := false
			p.Probe = &no
		}
		c.Peers = append(c.Peers, p)
	}
	c.Carriers = m.carriersOf(node.Name)
	out, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("configuration of node %q: %w", node.Name, err)
	}
	return out, nil
}
