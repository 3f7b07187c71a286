package probe

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/srv6"
)

// Config represents the configuration of one node, from a file or from an assignment of a coordinator.
type Config struct {
	Node         string
	Cadence      time.Duration // of the file: interval between probes of one edge
	ReplyTimeout time.Duration
	Stamp        StampConfig
	ErrorBound   *time.Duration // error bound of the node's clock; nil means not known
	ClockSync    bool           // relate clocks by the exchanges, and measure delays by the relations
	NICs         []NICConfig
	Peers        []PeerConfig
	Edges        []EdgeConfig // from own NICs to peers
	Answers      []EdgeConfig // from peers to own NICs: the probes that this node answers
	Trace        TraceConfig
	Life         uint64 // number of this life of the program, which grows with every start; 0: none
	KeyFile      string // empty if the mesh is not authenticated, or if a coordinator has the keys
	Hash         string // first eight octets of the SHA-256 of the configuration's source, in hex
}

// FlowsPerClass is the same as fabric.FlowsPerClass.
const FlowsPerClass = fabric.FlowsPerClass

// StampConfig holds the format of probes.
type StampConfig struct {
	Port       uint16 // of the reflectors
	SourcePort uint16 // of flow 0; flow n has the n-th port after it
	Classes    []ClassConfig
	Padding    int // octets of Extra Padding in every probe: RFC 8972 4.1
}

// ClassConfig represents a class of traffic that probes have the marking of.
type ClassConfig struct {
	Name string
	DSCP uint8
	SL   uint8 // service level of probes by RDMA: 0 to 15
}

// ClassOf returns the class that a flow number belongs to.
func (s *StampConfig) ClassOf(flow int) ClassConfig {
	if c := flow / FlowsPerClass; c < len(s.Classes) {
		return s.Classes[c]
	}
	return ClassConfig{}
}

// NICConfig represents a NIC of this node.
type NICConfig struct {
	NIC        string
	Address    netip.Addr
	Device     string // of the operating system; its address is used if Address is absent
	Leaf       string
	LeafPort   string
	Plane      string
	Rail       *int
	Pod        string
	Side       string
	SSID       uint16      // STAMP Session Identifier of its probes; 0: chosen at random
	Timestamps string      // TimestampsAuto, TimestampsKernel
	RDMA       *RDMAConfig // its port; peers that also have one are probed by RDMA; nil means none are
}

// Values of NICConfig.Timestamps.
const (
	TimestampsAuto   = ""       // the NIC's stamps if it stamps every packet, else the kernel's
	TimestampsKernel = "kernel" // the kernel's
)

// PeerConfig represents a NIC of another node.
type PeerConfig struct {
	NIC      string
	Address  netip.Addr
	Leaf     string
	Plane    string
	SSID     uint16    // its probes' STAMP Session Identifier; 0: any
	Hardware bool      // it stamps in hardware, and this node does so too if it can
	Keys     []Key     // shared with its node: the first one sends, all are accepted; none: not authenticated
	RDMA     *RDMAPeer // nil if it is probed by UDP
}

// Key represents a secret that is shared with a peer's node.
type Key struct {
	ID     uint32
	Secret []byte
}

// EdgeConfig represents one flow of probes.
type EdgeConfig struct {
	Src, Dst string
	Flow     int // its source port is Stamp.SourcePort+Flow
	Tier     int
	Cadence  time.Duration
	// Carrier lists the path of what this node sends of the flow: probes of own edges, replies of answers. It is invalid if
	// switches choose the path.
	Carrier netip.Addr
	Hops    []int // hop limits of the copies that are sent besides, once every hopProbeEvery (see hopprobes.go)
}

// ID returns the edge's published identifier.
func (e *EdgeConfig) ID() fabric.Flow { return fabric.Flow{Src: e.Src, Dst: e.Dst, Number: e.Flow} }

// TraceConfig holds the limits of path tracing.
type TraceConfig struct {
	PacketsPerSecond int
	PacketsPerSwitch int // per second that one switch has to answer for this node
	Concurrency      int // flows that are traced at the same time
}

// Limits of the configuration.
const (
	minCadence  = time.Millisecond
	maxCadence  = time.Minute
	maxClasses  = 4
	maxFlows    = maxClasses * FlowsPerClass
	maxPadding  = 800     // octets; with it the longest probe is not longer than maxProbe
	maxProbe    = 1024    // octets of UDP payload
	maxProbesPS = 100_000 // per node, probes per second
	maxSSID     = ssidMask
	minSecret   = 16 // octets
)

func defaultConfig() Config {
	return Config{Cadence: 10 * time.Millisecond, ReplyTimeout: time.Second,
		Stamp: StampConfig{Port: 862, SourcePort: 49152, Classes: []ClassConfig{{}}},
		Trace: TraceConfig{PacketsPerSecond: 1000, PacketsPerSwitch: 50, Concurrency: 32}}
}

// LoadConfig reads and checks a configuration file.
func LoadConfig(path string) (*Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	c, err := ParseConfig(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if c.KeyFile == "" {
		return c, nil
	}
	keys, raw, err := loadKeys(c.KeyFile)
	if err != nil {
		return nil, err
	}
	for i := range c.Peers {
		c.Peers[i].Keys = keys
	}
	sum := sha256.Sum256(append(b, raw...))
	c.Hash = hex.EncodeToString(sum[:8])
	return c, nil
}

// CheckAddress returns the reason why a NIC cannot be probed at a, or nil.
func CheckAddress(a netip.Addr) error {
	switch {
	case !a.IsValid(), a.IsUnspecified(), a.IsMulticast(), a.Is4In6():
		return fmt.Errorf("%v is not a unicast address", a)
	case a.IsLinkLocalUnicast(), a.Zone() != "":
		return fmt.Errorf("%v is valid on one link only", a)
	}
	return nil
}

func isCarrier(a netip.Addr) bool {
	_, _, err := srv6.DecodeCarrier(a)
	return err == nil
}

// Validate returns the reason why a configuration cannot be run, or nil. It checks configurations of files and
// assignments in the same way.
func (c *Config) Validate() error {
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("field %q: %s", field, fmt.Sprintf(format, args...))
	}
	span := max(1, len(c.Stamp.Classes)) * FlowsPerClass
	switch last := int(c.Stamp.SourcePort) + span - 1; {
	case len(c.Stamp.Classes) > maxClasses:
		return bad("stamp.classes", "%d, want at most %d", len(c.Stamp.Classes), maxClasses)
	case last > 65535:
		return bad("stamp.source_port", "%d, want at most %d: every class has %d ports", c.Stamp.SourcePort, 65536-span, FlowsPerClass)
	case c.Stamp.Port >= c.Stamp.SourcePort && int(c.Stamp.Port) <= last:
		return bad("stamp.port", "%d is among the source ports from %d to %d, want one outside", c.Stamp.Port, c.Stamp.SourcePort, last)
	case c.Stamp.Padding < 0 || c.Stamp.Padding > maxPadding:
		return bad("stamp.padding", "%d, want 0 to %d", c.Stamp.Padding, maxPadding)
	}
	nics, peers := map[string]bool{}, map[string]bool{}
	family := map[string]int{} // bits of the address, where it is known
	pairs := map[string]bool{} // those with a queue pair
	for i := range c.NICs {
		n := &c.NICs[i]
		if node, _, _ := fabric.SplitNIC(n.NIC); node != c.Node {
			return bad(fmt.Sprintf("nics[%d].nic", i), "%q, want a NIC of node %s", n.NIC, c.Node)
		}
		if n.RDMA != nil {
			o := n.RDMA.portOptions()
			if err := o.Validate(); err != nil {
				return bad(fmt.Sprintf("nics[%d].rdma", i), "%v", err)
			}
			pairs[n.NIC] = true
		}
		nics[n.NIC], family[n.NIC] = true, n.Address.BitLen()
	}
	for i := range c.Peers {
		p := &c.Peers[i]
		if p.RDMA != nil {
			if err := p.RDMA.Validate(); err != nil {
				return bad(fmt.Sprintf("peers[%d].rdma", i), "%v", err)
			}
		}
		if p.Address.IsValid() || p.RDMA == nil {
			if err := CheckAddress(p.Address); err != nil {
				return bad(fmt.Sprintf("peers[%d].address", i), "%v", err)
			}
		}
		if len(p.Keys) > maxKeys {
			return bad(fmt.Sprintf("peers[%d].keys", i), "%d keys, want at most %d", len(p.Keys), maxKeys)
		}
		peers[p.NIC], family[p.NIC] = true, p.Address.BitLen()
		pairs[p.NIC] = p.RDMA != nil
	}
	for _, l := range []struct {
		name   string
		edges  []EdgeConfig
		src    map[string]bool
		dst    map[string]bool
		budget bool
	}{{"edges", c.Edges, nics, peers, true}, {"answers", c.Answers, peers, nics, false}} {
		rate := 0.0
		seen := make(map[fabric.Flow]bool, len(l.edges))
		for i := range l.edges {
			e := &l.edges[i]
			switch at := fmt.Sprintf("%s[%d]", l.name, i); {
			case !l.src[e.Src] || !l.dst[e.Dst]:
				return bad(at, "%v, want one between a NIC of this node and a peer", e.ID())
			case seen[e.ID()]:
				return bad(at, "%v is listed twice", e.ID())
			case (!pairs[e.Src] || !pairs[e.Dst]) && family[e.Src] != 0 && family[e.Dst] != 0 && family[e.Src] != family[e.Dst]:
				return bad(at, "%v, want both ends of one address family", e.ID())
			case e.Flow < 0 || e.Flow >= span:
				return bad(at, "%v, want a flow number from 0 to %d", e.ID(), span-1)
			case e.Carrier.IsValid() && !isCarrier(e.Carrier):
				return bad(at, "%v has carrier %v, want one in which each identifier up to the end is not zero", e.ID(), e.Carrier)
			case e.Carrier.IsValid() && (family[e.Src] == 32 || family[e.Dst] == 32 || pairs[e.Src] && pairs[e.Dst]):
				return bad(at, "%v has a carrier, want both ends with UDP and IPv6", e.ID())
			case e.Cadence < minCadence || e.Cadence > maxCadence:
				return bad(at, "%v has a cadence of %v, want %v to %v", e.ID(), e.Cadence, minCadence, maxCadence)
			}
			seen[e.ID()] = true
			rate += 1 / e.Cadence.Seconds()
		}
		if l.budget && rate > maxProbesPS {
			return bad("cadence", "%d edges are %.0f probes per second, want at most %d", len(l.edges), rate, maxProbesPS)
		}
	}
	return nil
}
