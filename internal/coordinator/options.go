package coordinator

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// Planner computes schedules. Both functions are pure.
type Planner struct {
	Make func(g *fabric.Graph, o schedule.Options) (*schedule.Schedule, error)
	// Rebalance proposes at most limit moves that bring links with fewer than k bound edges closer to
	// k. It returns none when nothing is left to try. If it is nil, source ports are never moved.
	Rebalance func(g *fabric.Graph, s *schedule.Schedule, bound []schedule.TracedPath, history []schedule.Move, k, limit int) []schedule.Move
}

// Clock provides the time: WallTime for people and files, and MonoTime, which never jumps, for all
// decisions.
type Clock interface {
	WallTime() time.Time
	MonoTime() time.Duration
}

type systemClock struct{ base time.Time }

func (systemClock) WallTime() time.Time       { return time.Now() }
func (c systemClock) MonoTime() time.Duration { return time.Since(c.base) }

// SystemClock returns the clock of the machine.
func SystemClock() Clock { return systemClock{time.Now()} }

// Class is a class of probes.
type Class struct {
	Name string
	DSCP uint8
	SL   uint8 // service level of RDMA datagrams
}

// Stamp has the format of probes on the wire, which is the same on all nodes.
type Stamp struct {
	Port, SourcePort uint16
	Classes          []Class
	Padding          int
}

// Options are the options of a coordinator. DefaultOptions has values for all but the files, the
// planner and the version.
type Options struct {
	TopologyFile string
	// AnyNode lets nodes connect that are not in the topology, whose file may be missing. They are not scheduled, and
	// Interfaces has what they report.
	AnyNode   bool
	StateFile string
	Version   string
	Planner   Planner
	Clock     Clock
	Schedule  schedule.Options // the coordinator sets Absent, Moves and Classes
	Stamp     Stamp

	// AskClients are the names in certificates whose clients may ask for temporary flows.
	AskClients []string
	// MaintenanceClients are the names in certificates whose clients may make and end maintenance windows.
	MaintenanceClients []string

	// AddressPrefixes are those of addresses that agents may report for NICs without one in the topology.
	AddressPrefixes []netip.Prefix

	TargetOptions
	ConnectionOptions
	AgentOptions
	PlanOptions
	KeyOptions
	LinkOptions
	ClockOptions
	HA HAOptions
	// UsedTokens is the record of used join tokens, which the two coordinators of a pair keep in common. Nil means that there
	// is none.
	UsedTokens TokenRecord
}

// TokenRecord is the record of used join tokens: lines of a file, of which none is ever removed.
type TokenRecord interface {
	// Since returns the lines behind the first ones.
	Since(first int) []string
	// Add adds lines of another record, but for those that it has.
	Add(lines []string, now time.Time) error
}

// HAOptions describe the other coordinator of the fleet. Without PeerAddress there is none.
type HAOptions struct {
	Mode           string   // ModeManual or ModeLease
	Peers          []string // names in the certificates of coordinators that may replicate, which gives them the fleet's secrets
	PeerAddress    string   // where the other coordinator accepts agents: host:port or unix:PATH, as agents have it
	PeerServerName string   // name in its certificate
	Identity       string   // name of this coordinator
	InitialLeader  string   // Identity of the coordinator that leads when neither has a state; if empty, a request decides
	Lease          Lease    // of ModeLease; nil otherwise
}

// Paired reports whether there is another coordinator.
func (o *HAOptions) Paired() bool { return o.PeerAddress != "" }

func (o *HAOptions) isInitial() bool { return o.Identity != "" && o.Identity == o.InitialLeader }

// validate returns an error that names the first flag that is invalid.
func (o *HAOptions) validate() error {
	switch {
	case !o.Paired() && (len(o.Peers) > 0 || o.InitialLeader != ""):
		return errors.New("ha.peer-address: missing, want the address of the other coordinator")
	case !o.Paired():
		return nil
	case len(o.Peers) == 0:
		return errors.New("ha.peers: missing, want the name in the certificate of the other coordinator")
	case o.PeerServerName == "":
		return errors.New("ha.peer-server-name: missing, want the name in the certificate of the other coordinator")
	case o.Mode != ModeManual && o.Mode != ModeLease:
		return fmt.Errorf("ha.mode: %q, want %s or %s", o.Mode, ModeManual, ModeLease)
	case o.Mode == ModeLease && o.Identity == "":
		return errors.New("ha.identity: missing, want a name that the other coordinator has not")
	}
	return nil
}

// TargetOptions say where agents may be scraped.
type TargetOptions struct {
	WebPrefixes []netip.Prefix // prefixes of addresses that agents may be scraped at, besides the one that they connect from
	WebPorts    PortRanges     // ports that agents may be scraped at; the first one replaces a port outside
	WebScheme   string         // scheme that agents are scraped with: http or https
}

// ConnectionOptions limit the connections of agents.
type ConnectionOptions struct {
	HandshakesPerAddress int    // maximum number of concurrent handshakes
	OpenFiles            uint64 // limit of open files of the process; 0 if it is not known
}

// AgentOptions say when agents count as present.
type AgentOptions struct {
	Heartbeat      time.Duration // time between two heartbeats of an agent
	AbsentAfter    time.Duration // silence after which a node leaves the schedule
	RegistrySettle time.Duration // time after a start without state until the registry counts as whole
}

// PlanOptions say when the schedule is computed and used.
type PlanOptions struct {
	Settle     time.Duration // time without a change before the schedule is computed again
	SettleMost time.Duration // maximum time before that while changes continue
	Changeover time.Duration // time between an assignment and its first probe on a new edge
}

// KeyOptions are the options of the keys of probes.
type KeyOptions struct {
	Keys        bool // probes are authenticated
	KeysGrace   time.Duration
	RotateEvery time.Duration // 0 means only by request
}

// LinkOptions say when source ports are moved.
type LinkOptions struct {
	LinkEdges      int           // bound edges wanted on every directed link; 0 means that source ports are never moved
	RebalanceEvery time.Duration // minimum time between rounds
}

// ClockOptions are the options of the clocks.
type ClockOptions struct {
	ClockEvery     time.Duration // time between the cycles that relate the clocks
	ClockAllowance time.Duration // allowance for asymmetry in the offset of two clocks; 0 means that the topology decides
	ClockReference string        // node whose system clock is the frame; if empty, the frame is relative
}

// DefaultAddressPrefixes are the private prefixes of RFC 1918, RFC 6598 and RFC 4193.
var DefaultAddressPrefixes = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"}

// DefaultOptions returns the defaults of the command's flags.
func DefaultOptions() Options {
	prefixes, err := ParsePrefixes(DefaultAddressPrefixes)
	if err != nil {
		panic(err) // the texts are constants
	}
	return Options{
		AddressPrefixes:   prefixes,
		Clock:             SystemClock(),
		Stamp:             Stamp{Port: 862, SourcePort: 49152, Classes: []Class{{}}},
		TargetOptions:     TargetOptions{WebPorts: PortRanges{{9868, 9868}}, WebScheme: "http"},
		ConnectionOptions: ConnectionOptions{HandshakesPerAddress: 64},
		AgentOptions:      AgentOptions{Heartbeat: 5 * time.Second, AbsentAfter: 5 * time.Minute, RegistrySettle: 30 * time.Second},
		PlanOptions:       PlanOptions{Settle: 2 * time.Second, SettleMost: 10 * time.Second, Changeover: 3 * time.Second},
		KeyOptions:        KeyOptions{Keys: true, KeysGrace: 10 * time.Minute, RotateEvery: 24 * time.Hour},
		LinkOptions:       LinkOptions{LinkEdges: 3, RebalanceEvery: 30 * time.Second},
		ClockOptions:      ClockOptions{ClockEvery: time.Second},
	}
}

// ParsePrefixes parses prefixes such as 10.0.0.0/8. It returns an error that names the first invalid
// one.
func ParsePrefixes(texts []string) (out []netip.Prefix, err error) {
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%q: want a prefix such as 10.0.0.0/8, without bits beyond its length", t)
		}
		out = append(out, p)
	}
	return out, nil
}

// Limits of the agents' probes.
const (
	maxClasses = 4
	maxPadding = 800
)

// Validate returns an error that names the first flag that is invalid.
func (o *Options) Validate() error {
	for _, f := range []struct {
		name string
		d    time.Duration
		low  time.Duration
	}{
		{"agent.heartbeat", o.Heartbeat, 100 * time.Millisecond}, {"agent.absent-after", o.AbsentAfter, 3 * o.Heartbeat},
		{"schedule.settle", o.Settle, 0}, {"schedule.settle-most", o.SettleMost, o.Settle}, {"registry.settle", o.RegistrySettle, 0},
		{"schedule.changeover", o.Changeover, 0}, {"schedule.rebalance-every", o.RebalanceEvery, 0},
		{"clock.every", o.ClockEvery, 100 * time.Millisecond}, {"clock.asymmetry-allowance", o.ClockAllowance, 0},
	} {
		if f.d < f.low || f.d > 365*24*time.Hour {
			return fmt.Errorf("%s: %v, want at least %v and at most a year", f.name, f.d, f.low)
		}
	}
	switch {
	case o.TopologyFile == "":
		return errors.New("topology.file: missing")
	case o.StateFile == "":
		return errors.New("state.file: missing")
	case o.Planner.Make == nil:
		return errors.New("a planner is missing")
	case o.Keys && o.KeysGrace < o.AbsentAfter:
		return fmt.Errorf("keys.grace: %v, want at least agent.absent-after (%v), so that a silent node that is still probed has time to fetch its keys", o.KeysGrace, o.AbsentAfter)
	case o.Keys && o.RotateEvery != 0 && o.RotateEvery < 3*o.KeysGrace:
		return fmt.Errorf("keys.rotate-every: %v, want 0 or at least three times keys.grace (%v)", o.RotateEvery, o.KeysGrace)
	case o.Stamp.Port == 0 || o.Stamp.SourcePort == 0:
		return errors.New("stamp.port, stamp.source-port: 0, want a port from 1")
	case len(o.WebPorts) == 0:
		return errors.New("agents.web-ports: none, want at least one range")
	case o.WebScheme != "http" && o.WebScheme != "https":
		return fmt.Errorf("agents.web-scheme: %q, want http or https", o.WebScheme)
	case o.HandshakesPerAddress < 1:
		return fmt.Errorf("agents.handshakes-per-address: %d, want at least 1", o.HandshakesPerAddress)
	case len(o.Stamp.Classes) == 0 || len(o.Stamp.Classes) > maxClasses:
		return fmt.Errorf("schedule.class: %d classes, want 1 to %d", len(o.Stamp.Classes), maxClasses)
	case o.Stamp.Padding < 0 || o.Stamp.Padding > maxPadding:
		return fmt.Errorf("stamp.padding: %d, want 0 to %d octets", o.Stamp.Padding, maxPadding)
	}
	last := int(o.Stamp.SourcePort) + len(o.Stamp.Classes)*schedule.FlowsPerClass - 1
	if last > 65535 {
		return fmt.Errorf("stamp.source-port: %d, want at most %d: %d classes have %d source ports each", o.Stamp.SourcePort, 65536-len(o.Stamp.Classes)*schedule.FlowsPerClass, len(o.Stamp.Classes), schedule.FlowsPerClass)
	}
	if p := int(o.Stamp.Port); p >= int(o.Stamp.SourcePort) && p <= last {
		return fmt.Errorf("stamp.port: %d is among the source ports from %d to %d, want one outside", p, o.Stamp.SourcePort, last)
	}
	if err := o.HA.validate(); err != nil {
		return err
	}
	names := map[string]bool{}
	for _, c := range o.Stamp.Classes {
		switch {
		case names[c.Name]:
			return fmt.Errorf("schedule.class: %q is given twice", c.Name)
		case c.DSCP > 63:
			return fmt.Errorf("schedule.class: DSCP %d of %q, want 0 to 63", c.DSCP, c.Name)
		}
		if c.SL > 15 {
			return fmt.Errorf("schedule.class: service level %d of %q, want 0 to 15", c.SL, c.Name)
		}
		if err := checkText("schedule.class", c.Name); err != nil {
			return err
		}
		names[c.Name] = true
	}
	return nil
}
