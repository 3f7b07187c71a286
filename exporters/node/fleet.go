package node

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
)

// FleetOptions holds the options of a node that takes its work from a coordinator.
type FleetOptions struct {
	Address    string // address of the coordinator: host:port, or unix:PATH
	ServerName string // name in its certificate; empty: the host of the address, or "coordinator" for a unix socket
	Files      pki.Files
	File       string // configuration file; if there is one, the coordinator is used for clocks only
	Node       string // name of the node; empty: the name in the certificate, or the configuration's
	StateFile  string // empty: after a restart the node needs the coordinator
	Version    string
	Web        string // host:port at which the node is scraped
	WebScheme  string
	ErrorBound *time.Duration // error bound of the node's clock; nil: not known
	Timestamps string         // kind of time stamps, as in the configuration file
	ClockSync  bool           // relate the clocks, and measure delays by the result
	RDMA       bool           // probe by RDMA if both ends have it
	ChronySock string         // socket of a SOCK reference clock of chronyd, through which chronyd can steer the system clock by the frame; empty: none
	Clock      probe.Clock    // of the node; nil: the kernel's
	// Engine makes the probe engine of a configuration. If it is nil, the engine has sockets.
	Engine func(*probe.Config, *slog.Logger) (*probe.Engine, error)
}

// Defaults of a node without a configuration file.
const (
	fleetReplyTimeout   = time.Second
	fleetTracePackets   = 1000 // per second
	fleetTracePerSwitch = 50
	fleetTracesAtOnce   = 32
)

// kindHardware is the kind of a NIC's own stamps.
const kindHardware = "hardware"

// maxInterfaces limits the interfaces that are reported. The first ones with addresses are.
const maxInterfaces = agentapi.MaxInterfaces

// fleet represents the node toward its coordinator. Its methods are called by the client's only goroutine.
type fleet struct {
	node       *Node
	options    FleetOptions
	lastCounts map[fabric.Flow]probeCounts // counts at the last heartbeat
	applyError string                      // error from the parts of the assignment that could not be applied
}

type probeCounts struct{ sent, acked uint64 }

// StartFleet starts a node that works for a coordinator. If there is no configuration file, the assignment in the state
// file is at work when it returns, and newer assignments come from the coordinator.
func StartFleet(o FleetOptions, log *slog.Logger) (*Node, error) {
	keeper, err := pki.Open(o.Files, func(err error) { log.Error("cannot reload the certificates", "err", err) })
	if err != nil {
		return nil, err
	}
	var own *probe.Config
	if o.File != "" {
		if own, err = loadConfig(o.File, o.ClockSync); err != nil {
			return nil, err
		}
		o.Node = own.Node
	}
	if o.Node == "" {
		o.Node = keeper.CertificateName()
	}
	if err := fabric.CheckName(o.Node); err != nil {
		return nil, fmt.Errorf("node name: %w", err)
	}
	if _, port, err := net.SplitHostPort(o.Web); err != nil || port == "" {
		return nil, fmt.Errorf("advertised web address %q: want host:port", o.Web)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot identifier of this host: %w", err)
	}
	now := time.Now()
	wanted := own
	if own == nil {
		wanted = fleetConfig(&agentapi.Assignment{Node: o.Node, Stamp: &agentapi.Stamp{Port: 862, SourcePort: 49152}}, nil, o)
	}
	n := &Node{file: o.File, clockSync: o.ClockSync, log: log, lookup: deviceAddresses, clock: o.Clock, registry: processRegistry(), certs: certificates.NewCollector(keeper), wanted: wanted, started: now, loaded: now, reloadOK: true}
	n.registry.MustRegister(&n.writes, n.certs)
	if o.RDMA {
		if rdma.Library() == nil {
			return nil, rdma.ErrNotBuilt
		}
		n.rdmaOf = rdmaPorts("/sys", rdma.RandomQKey())
	}
	resolved, err := n.resolveAddresses(wanted, nil)
	if err != nil {
		return nil, err
	}
	start := n.startEngine
	if o.Engine != nil {
		start = o.Engine
	}
	life, err := nextLife(lifeFile(o.StateFile), now)
	if err != nil {
		log.Error("cannot take a life number from the state file; the coordinator has to assign one", "err", err)
	}
	resolved.Life = life
	if n.engine, err = start(resolved, log); err != nil {
		return nil, err
	}
	f := &fleet{node: n, options: o, lastCounts: map[fabric.Flow]probeCounts{}}
	c, err := client.New(client.Config{Address: o.Address, ServerName: o.ServerName, Certificates: keeper, Node: o.Node, Version: o.Version, OwnConfiguration: own != nil,
		BootID: strings.TrimSpace(string(boot)), Web: &agentapi.WebEndpoint{Address: o.Web, Scheme: o.WebScheme}, StateFile: o.StateFile, Log: log}, f)
	if err != nil {
		return nil, errors.Join(err, n.engine.Close())
	}
	if o.StateFile != "" {
		n.writes.addFile(fileAssignment, c.StateWrites)
	}
	if o.ClockSync {
		n.clocks = newClocks(o.Node, n.engine, c.ReportClock, log)
		if o.ChronySock != "" {
			n.clocks.steer = newSteering(o.ChronySock, log)
			n.registry.MustRegister(n.clocks.steer.samples)
		}
	}
	ctx := n.startRefreshing()
	n.wg.Go(func() { c.Run(ctx) })
	if n.clocks != nil {
		n.wg.Go(func() { n.clocks.run(ctx) })
	}
	return n, nil
}

// fleetConfig returns the engine's configuration for an assignment of the coordinator. If the mesh is authenticated, a
// peer without keys is left out, and so are its edges.
func fleetConfig(a *agentapi.Assignment, keys *agentapi.Keys, o FleetOptions) *probe.Config {
	c := &probe.Config{Node: a.GetNode(), Cadence: time.Duration(a.GetCadenceNs()), ReplyTimeout: fleetReplyTimeout, ErrorBound: o.ErrorBound, ClockSync: o.ClockSync,
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
	for _, e := range a.GetEdges() {
		if usable[e.GetPeer()] {
			c.Edges = append(c.Edges, probe.EdgeConfig{Src: a.Nics[e.GetNic()].GetNic(), Dst: a.Peers[e.GetPeer()].GetNic(),
				Flow: int(e.GetFlow()), Tier: int(e.GetTier()), Cadence: time.Duration(e.GetCadenceNs())})
		}
	}
	for _, e := range a.GetAnswers() {
		if usable[e.GetPeer()] {
			c.Answers = append(c.Answers, probe.EdgeConfig{Src: a.Peers[e.GetPeer()].GetNic(), Dst: a.Nics[e.GetNic()].GetNic(),
				Flow: int(e.GetFlow()), Tier: int(e.GetTier()), Cadence: time.Duration(e.GetCadenceNs())})
		}
	}
	return c
}

// Apply implements client.Agent. A NIC that cannot be opened does not stop the rest: it is tried again every second,
// and heartbeats report it.
func (f *fleet) Apply(a *agentapi.Assignment, keys *agentapi.Keys) error {
	cfg := fleetConfig(a, keys, f.options)
	if err := cfg.Validate(); err != nil {
		return err
	}
	n := f.node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.assigned = make(map[string]netip.Addr, len(cfg.NICs))
	for i := range cfg.NICs {
		// The engine follows the address of a device, and moves before the coordinator has heard of the change.
		if c := &cfg.NICs[i]; c.Device != "" {
			n.assigned[c.NIC], c.Address = c.Address, netip.Addr{}
		}
	}
	resolved, err := n.resolveAddresses(cfg, n.engine.Config())
	if err != nil {
		return err
	}
	err = n.engine.Apply(resolved)
	if errors.Is(err, probe.ErrClosed) {
		return err
	}
	f.applyError = ""
	if n.retryApply = err != nil; n.retryApply {
		f.applyError = err.Error()
		n.log.Error("cannot apply a part of the assignment; trying again every second", "err", err)
	}
	n.wanted, n.loaded = cfg, time.Now()
	return nil
}

// Life returns the engine's life number. It implements client.Agent.
func (f *fleet) Life() uint64 { return f.node.engine.Life() }

// TakeLives sets the life numbers of this node and its peers. It implements client.Agent. A number that cannot be
// written to the file is used all the same, because the coordinator never assigns it again.
func (f *fleet) TakeLives(own uint64, peers map[string]uint64) {
	e := f.node.engine
	if own > e.Life() {
		e.SetLife(own)
		if err := keepLife(lifeFile(f.options.StateFile), own); err != nil {
			f.node.log.Error("cannot write the life number; after a restart this node needs another one from the coordinator", "err", err)
		}
	}
	e.KnowLives(peers)
}

// Interfaces returns the interfaces of this host with their addresses. It implements client.Agent.
func (f *fleet) Interfaces() ([]*agentapi.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	hardware, pairs := map[string]*bool{}, map[string]*agentapi.RDMA{}
	for _, s := range f.node.engine.Snapshot().NICs {
		if s.Device != "" && s.Port != nil {
			pairs[s.Device] = advertisedQueuePair(&s)
		}
		if s.Device != "" && s.TxKind != "" && s.RxKind != "" {
			hardware[s.Device] = proto.Bool(s.TxKind == kindHardware && s.RxKind == kindHardware)
		}
	}
	var out []*agentapi.Interface
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 || len(out) == maxInterfaces {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it vanished in the meantime
		}
		v := &agentapi.Interface{Name: i.Name, Mtu: uint32(i.MTU), Up: i.Flags&net.FlagUp != 0, SpeedBps: linkSpeed(i.Name), HardwareStamps: hardware[i.Name], Rdma: pairs[i.Name]}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && probe.CheckAddress(p.Addr()) == nil && len(v.Addresses) < agentapi.MaxInterfaceAddresses {
				v.Addresses = append(v.Addresses, p.Addr().AsSlice())
			}
		}
		if len(v.Addresses) > 0 {
			out = append(out, v)
		}
	}
	return out, nil
}

// advertisedQueuePair returns the queue pair of a NIC as peers see it. Without a queue pair, or without a GID, it
// returns an RDMA that states only that there will be one.
func advertisedQueuePair(s *probe.NICStats) *agentapi.RDMA {
	p := s.Port
	if !p.Queue || !p.GID.IsValid() {
		return &agentapi.RDMA{Device: p.Device, Port: uint32(p.Port)}
	}
	gid := p.GID.As16()
	return &agentapi.RDMA{Device: p.Device, Port: uint32(p.Port), Gid: gid[:], Qpn: p.QPN, QKey: s.RDMA.QKey, Lid: uint32(p.LID), Hardware: p.Hardware}
}

// rdmaPorts returns a function that finds the RDMA port of an interface, for queue pairs with one Q_Key.
func rdmaPorts(sys string, qkey uint32) func(netdev string) *probe.RDMAConfig {
	return func(netdev string) *probe.RDMAConfig {
		// Documentation/ABI/stable/sysfs-class-infiniband: the interface of each GID.
		files, err := filepath.Glob(filepath.Join(sys, "class/infiniband/*/ports/*/gid_attrs/ndevs/[0-7]"))
		if err != nil {
			return nil
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil || strings.TrimSpace(string(b)) != netdev {
				continue
			}
			port := filepath.Dir(filepath.Dir(filepath.Dir(f)))
			number, err := strconv.Atoi(filepath.Base(port))
			if err != nil {
				continue
			}
			return &probe.RDMAConfig{Device: filepath.Base(filepath.Dir(filepath.Dir(port))), Port: number, PKey: rdma.DefaultPKey, QKey: qkey}
		}
		return nil
	}
}

// linkSpeed returns a link's speed (Documentation/ABI/testing/sysfs-class-net, /sys/class/net/<iface>/speed, in Mbit/s,
// negative when not known). It returns 0 if the speed is not known.
func linkSpeed(name string) uint64 {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", name, "speed"))
	if err != nil {
		return 0
	}
	v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 32)
	if err != nil || v <= 0 {
		return 0
	}
	return uint64(v) * 1e6
}

// Heartbeat fills in the node's part of a heartbeat. It implements client.Agent.
func (f *fleet) Heartbeat(h *agentapi.Heartbeat) {
	if h.ApplyError == "" {
		f.node.mu.RLock()
		if f.node.retryApply {
			h.ApplyError = f.applyError
		}
		f.node.mu.RUnlock()
	}
	now := map[fabric.Flow]probeCounts{}
	for _, n := range f.node.engine.Snapshot().NICs {
		h.StalledNs = max(h.StalledNs, uint64(n.Stalled))
		for i := range n.Edges {
			e := &n.Edges[i]
			now[e.Edge] = probeCounts{e.Sent, e.Acked}
			was, known := f.lastCounts[e.Edge]
			if known && e.Sent > was.sent && e.Acked == was.acked {
				h.SilentEdgesTotal++
				if len(h.SilentEdges) < agentapi.MaxSilentEdges {
					h.SilentEdges = append(h.SilentEdges, e.Edge.String())
				}
			}
		}
	}
	f.lastCounts = now
}

// Clock applies a clock update of the coordinator. It implements client.Agent.
func (f *fleet) Clock(u *agentapi.ClockUpdate) {
	if c := f.node.clocks; c != nil {
		c.applyUpdate(u.GetUpdate())
	}
}

// Traces returns the traced paths and their version. It implements client.Agent.
func (f *fleet) Traces() (version uint64, traces []fabric.Trace) {
	version, paths := f.node.engine.TracedPaths()
	traces = make([]fabric.Trace, len(paths))
	for i, p := range paths {
		t := fabric.Trace{Edge: p.Edge.String(), State: p.State, TracedAt: p.TracedAt, Reached: p.Reached, Balanced: p.Balanced, Hops: make([]fabric.RawHop, len(p.Hops))}
		for k, h := range p.Hops {
			t.Hops[k] = fabric.RawHop{TTL: h.TTL, Address: h.Address, Interface: h.Incoming, MPLS: h.Labels}
			if h.Address.IsValid() {
				rtt := int64(h.RTT)
				t.Hops[k].RTTNS = &rtt
			}
		}
		traces[i] = t
	}
	return version, traces
}
