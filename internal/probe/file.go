package probe

import (
	"net/netip"
	"time"

	"github.com/graylink/graylink/internal/rdma"
)

// File is the content of a configuration file, for programs that write one. ParseConfig reads it key by key, since its
// errors have their lines.
type File struct {
	// Node is the name of this node.
	Node string `yaml:"node" schema:"required,form=name"`
	// Cadence is the time between two probes of one flow: 1ms to 1m.
	Cadence time.Duration `yaml:"cadence,omitempty"`
	// ReplyTimeout is the time after which a reply is late: 10ms to 1m, and at least the cadence.
	ReplyTimeout time.Duration `yaml:"reply_timeout,omitempty"`
	// Stamp is the format of probes, which all nodes of a mesh share.
	Stamp *FileStamp `yaml:"stamp,omitempty"`
	// Authentication configures the authentication of probes. Without it, nothing is authenticated.
	Authentication *FileAuthentication `yaml:"authentication,omitempty"`
	// Clock describes the node's clock.
	Clock *FileClock `yaml:"clock,omitempty"`
	// NICs are the NICs of this node.
	NICs []FileNIC `yaml:"nics" schema:"required,minItems=1"`
	// Peers are the NICs of other nodes.
	Peers []FilePeer `yaml:"peers,omitempty"`
	// Carriers are the destinations that list the paths which this node chooses, by flow: of its probes (h1/eth1>h2/eth1#0), and of
	// the replies that it sends (h2/eth1>h1/eth1#0/r).
	Carriers map[string]netip.Addr `yaml:"carriers,omitempty"`
	// Trace bounds the tracing of paths.
	Trace *FileTrace `yaml:"trace,omitempty"`
}

// FileStamp is the format of probes.
type FileStamp struct {
	// Port is the UDP port of the reflectors.
	Port uint16 `yaml:"port,omitempty" schema:"min=1,max=65535"`
	// SourcePort is the UDP source port of flow 0. Flow n has the n-th port after it, and each class has 64 of them.
	SourcePort uint16 `yaml:"source_port,omitempty" schema:"min=1,max=65279"`
	// Padding is the number of octets by which probes are longer.
	Padding int `yaml:"padding,omitempty" schema:"min=0,max=800"`
	// Class is the name of the only class, instead of classes.
	Class string `yaml:"class,omitempty"`
	// DSCP is that of the only class, instead of classes.
	DSCP uint8 `yaml:"dscp,omitempty" schema:"min=0,max=63"`
	// Classes are the classes of traffic, each of which is probed by itself.
	Classes []FileClass `yaml:"classes,omitempty" schema:"minItems=1,maxItems=4"`
}

// FileClass is a class of traffic.
type FileClass struct {
	// Name is the name of the class, the value of the label class.
	Name string `yaml:"name"`
	// DSCP is the marking of probes by UDP and RoCE.
	DSCP uint8 `yaml:"dscp,omitempty" schema:"min=0,max=63"`
	// SL is the service level of probes by RDMA.
	SL uint8 `yaml:"sl,omitempty" schema:"min=0,max=15"`
}

// FileAuthentication names the secrets that nodes share.
type FileAuthentication struct {
	// KeyFile is a file with one "NUMBER SECRET" per line, which only its owner may read.
	KeyFile string `yaml:"key_file"`
}

// FileClock describes the node's clock.
type FileClock struct {
	// ErrorBound is the bound of the clock's error, up to 1h. Without it, the bound is not known.
	ErrorBound *time.Duration `yaml:"error_bound,omitempty"`
}

// FileNIC is a NIC of this node. It has an address, or a device that has one, or a port of RDMA.
type FileNIC struct {
	// NIC is the identifier of the NIC, node/device.
	NIC string `yaml:"nic" schema:"required,form=nic"`
	// Address is the address that it is probed at.
	Address *netip.Addr `yaml:"address,omitempty"`
	// Device is the network interface whose address is used where address is absent.
	Device string `yaml:"device,omitempty"`
	// Leaf is the switch that it is plugged into.
	Leaf string `yaml:"leaf,omitempty"`
	// LeafPort is the port of that switch.
	LeafPort string `yaml:"leaf_port,omitempty"`
	// Plane is the NIC's plane.
	Plane string `yaml:"plane,omitempty"`
	// Rail is the number of the NIC's position on its node.
	Rail *int `yaml:"rail,omitempty" schema:"min=0,max=1048576"`
	// Pod is the NIC's pod.
	Pod string `yaml:"pod,omitempty"`
	// Side is a label of the NIC in series.
	Side string `yaml:"side,omitempty"`
	// SSID is the STAMP Session Identifier of its probes. The default is chosen at random.
	SSID uint16 `yaml:"ssid,omitempty" schema:"min=1,max=16383"`
	// Timestamps selects the NIC's own stamps if it has them (auto), or the kernel's.
	Timestamps string `yaml:"timestamps,omitempty" schema:"enum=auto|kernel"`
	// RDMA is the port by which peers that also have one are probed.
	RDMA *FileRDMA `yaml:"rdma,omitempty"`
}

// FileRDMA is a port of an RDMA device.
type FileRDMA struct {
	// Device is the RDMA device.
	Device string `yaml:"device" schema:"required"`
	// Port is the number of the device's port.
	Port uint8 `yaml:"port,omitempty" schema:"min=1,max=255"`
	// GID is the port's GID: an IPv6 address.
	GID *netip.Addr `yaml:"gid,omitempty"`
	// GIDIndex is the index of the GID in the port's table.
	GIDIndex *int `yaml:"gid_index,omitempty" schema:"min=0,max=255"`
	// PKey is the partition key, which the port's table has to have.
	PKey uint16 `yaml:"pkey,omitempty" schema:"min=1,max=65535"`
	// PKeyIndex is the index of the partition key in the port's table, instead of pkey.
	PKeyIndex *int `yaml:"pkey_index,omitempty" schema:"min=0,max=65535"`
	// QKey is the queue key, which the peers have as well.
	QKey uint32 `yaml:"qkey" schema:"required,min=1,max=2147483647"`
	// BusyPoll is how long a reader polls before it sleeps, up to 1ms.
	BusyPoll time.Duration `yaml:"busy_poll,omitempty"`
}

// FilePeer is a NIC of another node. It has an address, or the keys of RDMA.
type FilePeer struct {
	// NIC is the identifier of the NIC, node/device.
	NIC string `yaml:"nic" schema:"required,form=nic"`
	// Address is the address that it is probed at.
	Address *netip.Addr `yaml:"address,omitempty"`
	// Leaf is the switch that it is plugged into.
	Leaf string `yaml:"leaf,omitempty"`
	// Tier is the highest tier on the paths to it, a label of series.
	Tier int `yaml:"tier,omitempty" schema:"min=0,max=9"`
	// Plane is the NIC's plane.
	Plane string `yaml:"plane,omitempty"`
	// Flows is the number of flows to it.
	Flows int `yaml:"flows,omitempty" schema:"min=1,max=48"`
	// SSID is the STAMP Session Identifier that its probes must have. Without it, any is accepted.
	SSID uint16 `yaml:"ssid,omitempty" schema:"min=1,max=16383"`
	// Hardware states that it stamps in hardware.
	Hardware bool `yaml:"hardware,omitempty"`
	// From are the own NICs that probe it. Without it, all do.
	From []string `yaml:"from,omitempty" schema:"form=nic"`
	// Probe is false if its probes are answered, but it is not probed.
	Probe *bool `yaml:"probe,omitempty"`
	// GID is the GID of its port, for probes by RDMA.
	GID *netip.Addr `yaml:"gid,omitempty"`
	// QPN is the number of its queue pair.
	QPN uint32 `yaml:"qpn,omitempty" schema:"min=2,max=16777215"`
	// QKey is the key of its queue pair.
	QKey uint32 `yaml:"qkey,omitempty" schema:"min=1,max=2147483647"`
	// LID is the LID of its port on InfiniBand.
	LID uint16 `yaml:"lid,omitempty" schema:"min=1,max=49151"`
}

// FileTrace bounds the tracing of paths.
type FileTrace struct {
	// PacketsPerSecond bounds the packets of all traces together.
	PacketsPerSecond int `yaml:"packets_per_second,omitempty" schema:"min=1,max=100000"`
	// PacketsPerSwitch bounds the packets per second that one switch has to answer for this node.
	PacketsPerSwitch int `yaml:"packets_per_switch,omitempty" schema:"min=1,max=10000"`
	// Concurrency is the number of flows that are traced at the same time.
	Concurrency int `yaml:"concurrency,omitempty" schema:"min=1,max=1024"`
}

// DefaultFile returns a file with the values that hold where a file has none.
func DefaultFile() File {
	c := defaultConfig()
	yes := true
	return File{Cadence: c.Cadence, ReplyTimeout: c.ReplyTimeout, Stamp: &FileStamp{Port: c.Stamp.Port, SourcePort: c.Stamp.SourcePort},
		NICs: []FileNIC{{Timestamps: "auto", RDMA: &FileRDMA{Port: 1, PKey: rdma.DefaultPKey}}}, Peers: []FilePeer{{Flows: 1, Probe: &yes}},
		Trace: &FileTrace{PacketsPerSecond: c.Trace.PacketsPerSecond, PacketsPerSwitch: c.Trace.PacketsPerSwitch, Concurrency: c.Trace.Concurrency}}
}
