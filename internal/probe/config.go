package probe

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
)

// Config represents the configuration of one node, from a file or from an assignment of a coordinator.
type Config struct {
	Node         string
	Cadence      time.Duration // of the file: interval between probes of one edge
	ReplyTimeout time.Duration
	Stamp        StampConfig
	ErrorBound   *time.Duration // error bound of the node's clock; nil: not known
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
	RDMA       *RDMAConfig // its port; peers that also have one are probed by RDMA; nil: none are
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
	maxPadding  = 800     // octets; with it the longest probe fits unix.MaxDatagram
	maxProbesPS = 100_000 // per node, probes per second
	maxSSID     = ssidMask
	minSecret   = 16 // octets
)

// filePeer represents a peer in a file.
type filePeer struct {
	PeerConfig
	tier, flows int
	from        []string // own NICs that probe it; empty means all
	probe       bool     // false if its probes are answered, but it is not probed
}

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

// loadKeys reads a file of keys, with one "NUMBER SECRET" per line and the secret in hex. The first key sends.
func loadKeys(path string) ([]Key, []byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read keys: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, nil, fmt.Errorf("%s: mode %v lets other users read the keys, want 0600", path, info.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read keys: %w", err)
	}
	keys, err := parseKeys(b)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, b, nil
}

// maxKeys limits the number of keys that a packet is tried with.
const maxKeys = 4

func parseKeys(b []byte) ([]Key, error) {
	var keys []Key
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		// An error never repeats text that may be a secret.
		number, secret, _ := strings.Cut(line, " ")
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("line %d: want a number, a space and the secret in hex", i+1)
		}
		raw, err := hex.DecodeString(strings.TrimSpace(secret))
		if err != nil || len(raw) < minSecret {
			return nil, fmt.Errorf("line %d: key %d: want a secret of at least %d octets in hex", i+1, id, minSecret)
		}
		if slices.ContainsFunc(keys, func(k Key) bool { return k.ID == uint32(id) }) {
			return nil, fmt.Errorf("line %d: key %d is listed twice", i+1, id)
		}
		keys = append(keys, Key{ID: uint32(id), Secret: raw})
	}
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("%d keys, want 1 to %d", len(keys), maxKeys)
	}
	return keys, nil
}

// ParseConfig parses and checks a configuration. The error names the line, the field and the expected value.
func ParseConfig(b []byte) (*Config, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("not YAML: %w", err)
	}
	if len(doc.Content) != 1 {
		return nil, errors.New("line 1: the file is empty: want node, nics and peers")
	}
	c := defaultConfig()
	if err := c.readRoot(doc.Content[0]); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	c.Hash = hex.EncodeToString(sum[:8])
	return &c, nil
}

// fields parses a mapping, with one function per known key.
type fields map[string]func(*yaml.Node) error

func badField(n *yaml.Node, field, format string, args ...any) error {
	return fmt.Errorf("line %d: field %q: %s", n.Line, field, fmt.Sprintf(format, args...))
}

func (fs fields) readMapping(n *yaml.Node, at string) error {
	if n.Kind != yaml.MappingNode {
		return badField(n, at, "want a mapping")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := joinField(at, key.Value)
		read := fs[key.Value]
		switch {
		case read == nil:
			known := make([]string, 0, len(fs))
			for k := range fs {
				known = append(known, k)
			}
			slices.Sort(known)
			return badField(key, name, "unknown; want one of %s", strings.Join(known, ", "))
		case seen[key.Value]:
			return badField(key, name, "given twice")
		}
		seen[key.Value] = true
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if err := read(value); err != nil {
			return err
		}
	}
	return nil
}

func joinField(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

func scalarField[T any](field, want string, dst *T) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Decode(dst) != nil {
			return badField(n, field, "%q, want %s", n.Value, want)
		}
		return nil
	}
}

func stringField(field string, dst *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return badField(n, field, "%q, want a string", n.Value)
		}
		*dst = n.Value
		return nil
	}
}

func integerField[T int | uint8 | uint16](field string, lo, hi int, dst *T) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		var v int
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Decode(&v) != nil || v < lo || v > hi {
			return badField(n, field, "%q, want a whole number from %d to %d", n.Value, lo, hi)
		}
		*dst = T(v)
		return nil
	}
}

func durationField(field string, lo, hi time.Duration, dst *time.Duration) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		v, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < lo || v > hi {
			return badField(n, field, "%q, want a duration from %v to %v, such as 10ms", n.Value, lo, hi)
		}
		*dst = v
		return nil
	}
}

func nicField(field string, dst *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		node, device, ok := fabric.SplitNIC(n.Value)
		if n.Kind != yaml.ScalarNode || !ok || fabric.CheckName(node) != nil || fabric.CheckDevice(device) != nil {
			return badField(n, field, "%q, want a NIC as node/device", n.Value)
		}
		*dst = n.Value
		return nil
	}
}

func addressField(field string, dst *netip.Addr) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		a, err := netip.ParseAddr(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || CheckAddress(a) != nil {
			return badField(n, field, "%q, want an IPv4 or IPv6 unicast address", n.Value)
		}
		*dst = a
		return nil
	}
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

func listField(field string, each func(*yaml.Node, string) error) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.SequenceNode {
			return badField(n, field, "want a list")
		}
		for i, item := range n.Content {
			if item.Kind == yaml.AliasNode {
				item = item.Alias
			}
			if err := each(item, fmt.Sprintf("%s[%d]", field, i)); err != nil {
				return err
			}
		}
		return nil
	}
}

func (c *Config) readRoot(root *yaml.Node) error {
	own := map[string]bool{}
	addresses := map[netip.Addr]string{}
	claim := func(n *yaml.Node, at, nic string, a netip.Addr) error {
		if other, taken := addresses[a]; taken {
			return badField(n, at+".address", "%v is also that of %s, want one NIC per address", a, other)
		}
		addresses[a] = nic
		return nil
	}
	var peersNode *yaml.Node
	var peers []filePeer
	single := ClassConfig{}
	err := fields{
		"node": func(n *yaml.Node) error {
			if err := fabric.CheckName(n.Value); err != nil {
				return badField(n, "node", "%v", err)
			}
			c.Node = n.Value
			return nil
		},
		"cadence":       durationField("cadence", minCadence, maxCadence, &c.Cadence),
		"reply_timeout": durationField("reply_timeout", 10*time.Millisecond, time.Minute, &c.ReplyTimeout),
		"stamp": func(n *yaml.Node) error {
			return fields{
				"port":        integerField("stamp.port", 1, 65535, &c.Stamp.Port),
				"source_port": integerField("stamp.source_port", 1, 65535-maxFlows, &c.Stamp.SourcePort),
				"dscp":        integerField("stamp.dscp", 0, 63, &single.DSCP),
				"class":       stringField("stamp.class", &single.Name),
				"padding":     integerField("stamp.padding", 0, maxPadding, &c.Stamp.Padding),
				"classes": func(n *yaml.Node) error {
					c.Stamp.Classes = nil
					return listField("stamp.classes", func(n *yaml.Node, at string) error {
						var v ClassConfig
						if err := (fields{"name": stringField(at+".name", &v.Name), "dscp": integerField(at+".dscp", 0, 63, &v.DSCP), "sl": integerField(at+".sl", 0, 15, &v.SL)}).readMapping(n, at); err != nil {
							return err
						}
						if slices.ContainsFunc(c.Stamp.Classes, func(o ClassConfig) bool { return o.Name == v.Name }) {
							return badField(n, at+".name", "%q is listed twice", v.Name)
						}
						c.Stamp.Classes = append(c.Stamp.Classes, v)
						if len(c.Stamp.Classes) > maxClasses {
							return badField(n, at, "one class too many, want at most %d", maxClasses)
						}
						return nil
					})(n)
				},
			}.readMapping(n, "stamp")
		},
		"authentication": func(n *yaml.Node) error {
			return fields{"key_file": stringField("authentication.key_file", &c.KeyFile)}.readMapping(n, "authentication")
		},
		"clock": func(n *yaml.Node) error {
			return fields{"error_bound": func(n *yaml.Node) error {
				c.ErrorBound = new(time.Duration)
				return durationField("clock.error_bound", 0, time.Hour, c.ErrorBound)(n)
			}}.readMapping(n, "clock")
		},
		"nics": listField("nics", func(n *yaml.Node, at string) error {
			var v NICConfig
			port := func(n *yaml.Node) error {
				v.RDMA = &RDMAConfig{}
				return v.RDMA.readBlock(n, at+".rdma")
			}
			rail := func(n *yaml.Node) error {
				v.Rail = new(int)
				return integerField(at+".rail", 0, 1<<20, v.Rail)(n)
			}
			if err := (fields{"nic": nicField(at+".nic", &v.NIC), "address": addressField(at+".address", &v.Address),
				"leaf": stringField(at+".leaf", &v.Leaf), "leaf_port": stringField(at+".leaf_port", &v.LeafPort),
				"plane": stringField(at+".plane", &v.Plane), "rail": rail, "pod": stringField(at+".pod", &v.Pod),
				"side": stringField(at+".side", &v.Side), "device": stringField(at+".device", &v.Device),
				"ssid": integerField(at+".ssid", 1, maxSSID, &v.SSID), "timestamps": timestampsField(at+".timestamps", &v.Timestamps), "rdma": port}).readMapping(n, at); err != nil {
				return err
			}
			switch {
			case v.NIC == "":
				return badField(n, at+".nic", "missing, want a NIC as node/device")
			case !v.Address.IsValid() && v.Device == "" && v.RDMA == nil:
				return badField(n, at+".address", "missing, want an IPv4 or IPv6 unicast address, the device that has one, or rdma")
			case own[v.NIC]:
				return badField(n, at+".nic", "%q is listed twice", v.NIC)
			}
			own[v.NIC] = true
			c.NICs = append(c.NICs, v)
			if !v.Address.IsValid() {
				return nil
			}
			return claim(n, at, v.NIC, v.Address)
		}),
		"peers": func(n *yaml.Node) error { peersNode = n; return nil },
		"trace": func(n *yaml.Node) error {
			return fields{
				"packets_per_second": integerField("trace.packets_per_second", 1, 100_000, &c.Trace.PacketsPerSecond),
				"packets_per_switch": integerField("trace.packets_per_switch", 1, 10_000, &c.Trace.PacketsPerSwitch),
				"concurrency":        integerField("trace.concurrency", 1, 1024, &c.Trace.Concurrency),
			}.readMapping(n, "trace")
		},
	}.readMapping(root, "")
	if err != nil {
		return err
	}
	if single != (ClassConfig{}) {
		if len(c.Stamp.Classes) != 1 || c.Stamp.Classes[0] != (ClassConfig{}) {
			return badField(root, "stamp.classes", "given beside class or dscp, want one of both")
		}
		c.Stamp.Classes[0] = single
	}
	if len(c.Stamp.Classes) == 0 {
		return badField(root, "stamp.classes", "empty, want at least one class")
	}
	if peersNode != nil {
		if peers, err = readPeers(peersNode, own, claim); err != nil {
			return err
		}
	}
	c.connectPeers(peers)
	return c.checkComplete(root)
}

// canReach reports whether a NIC and a peer can send to each other, as far as that is known: both by RDMA, or by addresses
// of one family. The address of a NIC that names a device is not known yet.
func canReach(n *NICConfig, p *PeerConfig) bool {
	if n.RDMA != nil && p.RDMA != nil {
		return true
	}
	if !p.Address.IsValid() || !n.Address.IsValid() && n.Device == "" {
		return false
	}
	return !n.Address.IsValid() || n.Address.Is4() == p.Address.Is4()
}

// connectPeers makes edges from the peers of a file.
func (c *Config) connectPeers(peers []filePeer) {
	for i := range peers {
		p := &peers[i]
		c.Peers = append(c.Peers, p.PeerConfig)
		for _, nic := range c.NICs {
			if !canReach(&nic, &p.PeerConfig) {
				continue // neither can reach the other
			}
			for class := range c.Stamp.Classes {
				for f := range p.flows {
					flow := class*FlowsPerClass + f
					if p.probe && (len(p.from) == 0 || slices.Contains(p.from, nic.NIC)) {
						c.Edges = append(c.Edges, EdgeConfig{Src: nic.NIC, Dst: p.NIC, Flow: flow, Tier: p.tier, Cadence: c.Cadence})
					}
					c.Answers = append(c.Answers, EdgeConfig{Src: p.NIC, Dst: nic.NIC, Flow: flow, Tier: p.tier, Cadence: c.Cadence})
				}
			}
		}
	}
}

// numberField returns a parser for a whole number, in decimal or in hexadecimal after 0x.
func numberField(field string, lo, hi uint32, dst *uint32) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		v, err := strconv.ParseUint(n.Value, 0, 32)
		if n.Kind != yaml.ScalarNode || err != nil || uint32(v) < lo || uint32(v) > hi {
			return badField(n, field, "%q, want a whole number from %d to %#x", n.Value, lo, hi)
		}
		*dst = uint32(v)
		return nil
	}
}

func gidField(field string, dst *netip.Addr) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		a, err := netip.ParseAddr(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			return badField(n, field, "%q, want a GID: an IPv6 address, or an IPv4 one as ::ffff:192.0.2.1", n.Value)
		}
		*dst = a
		return nil
	}
}

// Limits of the keys of the rdma blocks.
const (
	maxLID  = 0xbfff           // of unicast: IBTA 4.1.3
	maxBusy = time.Millisecond // longest polling without sleep
)

// readBlock parses the rdma block of a NIC.
func (c *RDMAConfig) readBlock(n *yaml.Node, at string) error {
	c.Port, c.PKey = 1, rdma.DefaultPKey
	pkey, index := uint32(c.PKey), -1
	if err := (fields{"device": stringField(at+".device", &c.Device), "port": integerField(at+".port", 1, 255, &c.Port), "gid": gidField(at+".gid", &c.GID),
		"gid_index": integerField(at+".gid_index", 0, rdma.MaxGIDIndex, &index), "pkey": numberField(at+".pkey", 1, 0xffff, &pkey), "qkey": numberField(at+".qkey", 1, rdma.MaxQKey, &c.QKey),
		"busy_poll": durationField(at+".busy_poll", 0, maxBusy, &c.BusyPoll)}).readMapping(n, at); err != nil {
		return err
	}
	c.PKey = uint16(pkey)
	if index >= 0 {
		c.GIDIndex = &index
	}
	switch {
	case c.Device == "":
		return badField(n, at+".device", "missing, want the name of an RDMA device, such as mlx5_0")
	case c.QKey == 0:
		return badField(n, at+".qkey", "missing, want a number from 1 to %#x that the peers have as well", rdma.MaxQKey)
	}
	return nil
}

func timestampsField(field string, dst *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		switch n.Value {
		case "auto":
			*dst = TimestampsAuto
		case TimestampsKernel:
			*dst = TimestampsKernel
		default:
			return badField(n, field, "%q, want auto or kernel", n.Value)
		}
		return nil
	}
}

func readPeers(n *yaml.Node, own map[string]bool, claim func(*yaml.Node, string, string, netip.Addr) error) (peers []filePeer, err error) {
	known, gids := map[string]bool{}, map[netip.Addr]string{}
	err = listField("peers", func(n *yaml.Node, at string) error {
		v := filePeer{flows: 1, probe: true}
		var pair RDMAPeer
		from := listField(at+".from", func(n *yaml.Node, at string) error {
			var id string
			if err := nicField(at, &id)(n); err != nil {
				return err
			}
			if !own[id] {
				return badField(n, at, "%q, want a NIC of this node's nics", id)
			}
			v.from = append(v.from, id)
			return nil
		})
		if err := (fields{"nic": nicField(at+".nic", &v.NIC), "address": addressField(at+".address", &v.Address),
			"leaf": stringField(at+".leaf", &v.Leaf), "tier": integerField(at+".tier", 0, 9, &v.tier),
			"plane": stringField(at+".plane", &v.Plane), "flows": integerField(at+".flows", 1, FlowsPerClass, &v.flows),
			"ssid": integerField(at+".ssid", 1, maxSSID, &v.SSID), "hardware": scalarField(at+".hardware", "true or false", &v.Hardware),
			"from": from, "probe": scalarField(at+".probe", "true or false", &v.probe),
			"gid": gidField(at+".gid", &pair.GID), "qpn": numberField(at+".qpn", 2, maxQPN, &pair.QPN), "qkey": numberField(at+".qkey", 1, rdma.MaxQKey, &pair.QKey),
			"lid": integerField(at+".lid", 1, maxLID, &pair.LID)}).readMapping(n, at); err != nil {
			return err
		}
		if pair != (RDMAPeer{}) {
			for _, f := range []struct {
				key  string
				have bool
			}{{"gid", pair.GID.IsValid()}, {"qpn", pair.QPN != 0}, {"qkey", pair.QKey != 0}} {
				if !f.have {
					return badField(n, at+"."+f.key, "missing, want it beside the peer's other keys of RDMA")
				}
			}
			pair.Hardware = v.Hardware
			v.RDMA = &pair
		}
		switch {
		case v.NIC == "":
			return badField(n, at+".nic", "missing, want a NIC as node/device")
		case !v.Address.IsValid() && v.RDMA == nil:
			return badField(n, at+".address", "missing, want an IPv4 or IPv6 unicast address, or gid, qpn and qkey")
		case own[v.NIC]:
			return badField(n, at+".nic", "%q is a NIC of this node, want one of another", v.NIC)
		case known[v.NIC]:
			return badField(n, at+".nic", "%q is listed twice", v.NIC)
		}
		known[v.NIC] = true
		peers = append(peers, v)
		if v.RDMA != nil {
			if other, taken := gids[rdma.CanonicalGID(v.RDMA.GID)]; taken {
				return badField(n, at+".gid", "%v is also that of %s, want one NIC per GID", v.RDMA.GID, other)
			}
			gids[rdma.CanonicalGID(v.RDMA.GID)] = v.NIC
		}
		if !v.Address.IsValid() {
			return nil
		}
		return claim(n, at, v.NIC, v.Address)
	})(n)
	return peers, err
}

func (c *Config) checkComplete(root *yaml.Node) error {
	switch {
	case c.Node == "":
		return badField(root, "node", "missing, want the node's name")
	case len(c.NICs) == 0:
		return badField(root, "nics", "missing, want at least one NIC of this node")
	case c.ReplyTimeout < c.Cadence:
		return badField(root, "reply_timeout", "%v is shorter than the cadence %v, want at least that", c.ReplyTimeout, c.Cadence)
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("line %d: %w", root.Line, err)
	}
	return nil
}

// Validate returns the reason why a configuration cannot be run, or nil. It checks configurations of files and assignments
// in the same way.
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
