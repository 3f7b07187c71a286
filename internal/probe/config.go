package probe

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
)

// Config is the configuration of one node.
type Config struct {
	Node         string
	Cadence      time.Duration // between probes of one flow
	ReplyTimeout time.Duration
	Stamp        StampConfig
	ErrorBound   *time.Duration // of the node's clock; nil: not stated
	NICs         []NICConfig
	Peers        []PeerConfig
	Trace        TraceConfig
	Hash         string // first eight octets of the file's SHA-256, in hex
}

// StampConfig is how probes look on the wire.
type StampConfig struct {
	Port       uint16 // of the reflectors
	SourcePort uint16 // of flow 0; flow n has the n-th after it
	DSCP       uint8
	Class      string
}

// NICConfig is a NIC of this node.
type NICConfig struct {
	NIC      string
	Address  netip.Addr
	Leaf     string
	LeafPort string
	Plane    string
	Rail     *int
	Pod      string
	Side     string
}

// PeerConfig is a NIC of another node.
type PeerConfig struct {
	NIC     string
	Address netip.Addr
	Leaf    string
	Tier    int
	Plane   string
	Flows   int
	From    []string // own NICs that probe it; empty: all
	Probe   bool     // false: its probes are answered, but it is not probed
}

// TraceConfig bounds path tracing.
type TraceConfig struct {
	PacketsPerSecond int
	Concurrency      int // flows traced at the same time
}

// Limits of the configuration.
const (
	minCadence  = time.Millisecond
	maxFlows    = 256
	maxProbesPS = 100_000 // per node, probes per second
)

func defaultConfig() Config {
	return Config{Cadence: 10 * time.Millisecond, ReplyTimeout: time.Second,
		Stamp: StampConfig{Port: 862, SourcePort: 49152},
		Trace: TraceConfig{PacketsPerSecond: 200, Concurrency: 16}}
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
	return c, nil
}

// ParseConfig reads and checks a configuration. The error names the line, the
// field and what was expected.
func ParseConfig(b []byte) (*Config, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("not YAML: %w", err)
	}
	if len(doc.Content) != 1 {
		return nil, errors.New("line 1: the file is empty: want node, nics and peers")
	}
	c := defaultConfig()
	if err := c.read(doc.Content[0]); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	c.Hash = hex.EncodeToString(sum[:8])
	return &c, nil
}

// fields reads a mapping: one function per known key.
type fields map[string]func(*yaml.Node) error

func badField(n *yaml.Node, field, format string, args ...any) error {
	return fmt.Errorf("line %d: field %q: %s", n.Line, field, fmt.Sprintf(format, args...))
}

func (fs fields) read(n *yaml.Node, at string) error {
	if n.Kind != yaml.MappingNode {
		return badField(n, at, "want a mapping")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := join(at, key.Value)
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

func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

func scalar[T any](field, want string, dst *T) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Decode(dst) != nil {
			return badField(n, field, "%q, want %s", n.Value, want)
		}
		return nil
	}
}

func text(field string, dst *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return badField(n, field, "%q, want a string", n.Value)
		}
		*dst = n.Value
		return nil
	}
}

func integer[T int | uint8 | uint16](field string, lo, hi int, dst *T) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		var v int
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Decode(&v) != nil || v < lo || v > hi {
			return badField(n, field, "%q, want a whole number from %d to %d", n.Value, lo, hi)
		}
		*dst = T(v)
		return nil
	}
}

func duration(field string, lo, hi time.Duration, dst *time.Duration) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		v, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || v < lo || v > hi {
			return badField(n, field, "%q, want a duration from %v to %v, such as 10ms", n.Value, lo, hi)
		}
		*dst = v
		return nil
	}
}

func nicID(field string, dst *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		node, device, ok := fabric.SplitNIC(n.Value)
		if n.Kind != yaml.ScalarNode || !ok || fabric.CheckName(node) != nil || fabric.CheckDevice(device) != nil {
			return badField(n, field, "%q, want a NIC as node/device", n.Value)
		}
		*dst = n.Value
		return nil
	}
}

func address(field string, dst *netip.Addr) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		a, err := netip.ParseAddr(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || !a.Is4() || a.IsUnspecified() || a.IsMulticast() {
			return badField(n, field, "%q, want an IPv4 unicast address", n.Value)
		}
		*dst = a
		return nil
	}
}

func list(field string, each func(*yaml.Node, string) error) func(*yaml.Node) error {
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

func (c *Config) read(root *yaml.Node) error {
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
	err := fields{
		"node": func(n *yaml.Node) error {
			if err := fabric.CheckName(n.Value); err != nil {
				return badField(n, "node", "%v", err)
			}
			c.Node = n.Value
			return nil
		},
		"cadence":       duration("cadence", minCadence, time.Minute, &c.Cadence),
		"reply_timeout": duration("reply_timeout", 10*time.Millisecond, time.Minute, &c.ReplyTimeout),
		"stamp": func(n *yaml.Node) error {
			return fields{
				"port":        integer("stamp.port", 1, 65535, &c.Stamp.Port),
				"source_port": integer("stamp.source_port", 1, 65535-maxFlows, &c.Stamp.SourcePort),
				"dscp":        integer("stamp.dscp", 0, 63, &c.Stamp.DSCP),
				"class":       text("stamp.class", &c.Stamp.Class),
			}.read(n, "stamp")
		},
		"clock": func(n *yaml.Node) error {
			return fields{"error_bound": func(n *yaml.Node) error {
				c.ErrorBound = new(time.Duration)
				return duration("clock.error_bound", 0, time.Hour, c.ErrorBound)(n)
			}}.read(n, "clock")
		},
		"nics": list("nics", func(n *yaml.Node, at string) error {
			var v NICConfig
			rail := func(n *yaml.Node) error {
				v.Rail = new(int)
				return integer(at+".rail", 0, 1<<20, v.Rail)(n)
			}
			if err := (fields{"nic": nicID(at+".nic", &v.NIC), "address": address(at+".address", &v.Address),
				"leaf": text(at+".leaf", &v.Leaf), "leaf_port": text(at+".leaf_port", &v.LeafPort),
				"plane": text(at+".plane", &v.Plane), "rail": rail, "pod": text(at+".pod", &v.Pod),
				"side": text(at+".side", &v.Side)}).read(n, at); err != nil {
				return err
			}
			switch {
			case v.NIC == "":
				return badField(n, at+".nic", "missing, want a NIC as node/device")
			case !v.Address.IsValid():
				return badField(n, at+".address", "missing, want an IPv4 unicast address")
			case own[v.NIC]:
				return badField(n, at+".nic", "%q is listed twice", v.NIC)
			}
			own[v.NIC] = true
			c.NICs = append(c.NICs, v)
			return claim(n, at, v.NIC, v.Address)
		}),
		"peers": func(n *yaml.Node) error { peersNode = n; return nil },
		"trace": func(n *yaml.Node) error {
			return fields{
				"packets_per_second": integer("trace.packets_per_second", 1, 100_000, &c.Trace.PacketsPerSecond),
				"concurrency":        integer("trace.concurrency", 1, 1024, &c.Trace.Concurrency),
			}.read(n, "trace")
		},
	}.read(root, "")
	if err != nil {
		return err
	}
	if peersNode != nil {
		if err := c.readPeers(peersNode, own, claim); err != nil {
			return err
		}
	}
	return c.check(root)
}

func (c *Config) readPeers(n *yaml.Node, own map[string]bool, claim func(*yaml.Node, string, string, netip.Addr) error) error {
	known := map[string]bool{}
	return list("peers", func(n *yaml.Node, at string) error {
		v := PeerConfig{Flows: 1, Probe: true}
		from := list(at+".from", func(n *yaml.Node, at string) error {
			var id string
			if err := nicID(at, &id)(n); err != nil {
				return err
			}
			if !own[id] {
				return badField(n, at, "%q, want a NIC of this node's nics", id)
			}
			v.From = append(v.From, id)
			return nil
		})
		if err := (fields{"nic": nicID(at+".nic", &v.NIC), "address": address(at+".address", &v.Address),
			"leaf": text(at+".leaf", &v.Leaf), "tier": integer(at+".tier", 0, 9, &v.Tier),
			"plane": text(at+".plane", &v.Plane), "flows": integer(at+".flows", 1, maxFlows, &v.Flows),
			"from": from, "probe": scalar(at+".probe", "true or false", &v.Probe)}).read(n, at); err != nil {
			return err
		}
		switch {
		case v.NIC == "":
			return badField(n, at+".nic", "missing, want a NIC as node/device")
		case !v.Address.IsValid():
			return badField(n, at+".address", "missing, want an IPv4 unicast address")
		case own[v.NIC]:
			return badField(n, at+".nic", "%q is a NIC of this node, want one of another", v.NIC)
		case known[v.NIC]:
			return badField(n, at+".nic", "%q is listed twice", v.NIC)
		}
		known[v.NIC] = true
		c.Peers = append(c.Peers, v)
		return claim(n, at, v.NIC, v.Address)
	})(n)
}

func (c *Config) check(root *yaml.Node) error {
	switch {
	case c.Node == "":
		return badField(root, "node", "missing, want the node's name")
	case len(c.NICs) == 0:
		return badField(root, "nics", "missing, want at least one NIC of this node")
	case int(c.Stamp.Port) >= int(c.Stamp.SourcePort) && int(c.Stamp.Port) < int(c.Stamp.SourcePort)+maxFlows:
		return badField(root, "stamp.port", "%d is among the source ports from %d to %d, want one outside", c.Stamp.Port, c.Stamp.SourcePort, int(c.Stamp.SourcePort)+maxFlows-1)
	case c.ReplyTimeout < c.Cadence:
		return badField(root, "reply_timeout", "%v is shorter than the cadence %v, want at least that", c.ReplyTimeout, c.Cadence)
	}
	edges := 0
	for i := range c.NICs {
		for j := range c.Peers {
			if c.Peers[j].probedFrom(c.NICs[i].NIC) {
				edges += c.Peers[j].Flows
			}
		}
		if node, _, _ := fabric.SplitNIC(c.NICs[i].NIC); node != c.Node {
			return badField(root, fmt.Sprintf("nics[%d].nic", i), "%q, want a NIC of node %s", c.NICs[i].NIC, c.Node)
		}
	}
	if rate := float64(edges) / c.Cadence.Seconds(); rate > maxProbesPS {
		return badField(root, "cadence", "%d flows every %v are %.0f probes per second, want at most %d", edges, c.Cadence, rate, maxProbesPS)
	}
	return nil
}

// probedFrom reports whether the node's NIC id probes the peer.
func (p *PeerConfig) probedFrom(id string) bool {
	return p.Probe && (len(p.From) == 0 || slices.Contains(p.From, id))
}
