package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/sighting/lldp"
)

// FleetOptions holds the options of a node that takes its work from a coordinator.
type FleetOptions struct {
	Coordinator CoordinatorOptions
	Clock       ClockOptions
	File        string // configuration file; if there is one, the coordinator is used for clocks only
	Node        string // name of the node; empty: the name in the certificate, or the configuration's
	StateFile   string // empty: after a restart the node needs the coordinator
	Version     string
	Web         string // host:port at which the node is scraped
	WebScheme   string
	Timestamps  string         // kind of time stamps, as in the configuration file
	RDMA        bool           // probe by RDMA if both ends have it
	Signals     *probe.Signals // how in-band signals are handled; nil means there are none
	PKeyIndex   *int           // index of the partition key of InfiniBand ports without an IPoIB interface; nil: that of the default partition
	// Engine makes the probe engine of a configuration. If it is nil, the engine has sockets.
	Engine func(*probe.Config, *slog.Logger) (*probe.Engine, error)
}

// CoordinatorOptions holds the options of the connection to the coordinators, of which one leads.
type CoordinatorOptions struct {
	Addresses  []string // host:port, or unix:PATH; they are tried in turn
	ServerName string   // name in their certificates; empty: the host of the address, or "coordinator" for a unix socket
	Files      pki.Files
	// Renew keeps the files up to date until the context ends. It is nil if the operator does.
	Renew func(context.Context, *pki.Keeper)
}

// ClockOptions holds the options of a node's clocks.
type ClockOptions struct {
	Sync       bool           // relate the clocks, and measure delays by the result
	ErrorBound *time.Duration // error bound of the node's clock; nil means not known
	ChronySock string         // socket of a SOCK reference clock of chronyd, through which chronyd can steer the system clock by the frame; empty: none
	Node       probe.Clock    // clock of the node; nil means the kernel's
}

// fleet represents the node toward its coordinator. Its methods are called by the client's only goroutine.
type fleet struct {
	node       *Node
	options    FleetOptions
	sys        string                      // root of sysfs
	lastCounts map[fabric.Flow]probeCounts // counts at the last heartbeat
	applyError string                      // error from the parts of the assignment that could not be applied
	lldpError  string                      // last error of the listener for neighbours
}

type probeCounts struct{ sent, acked uint64 }

// StartFleet starts a node that works for a coordinator. If there is no configuration file, the assignment in the state
// file is at work when it returns, and newer assignments come from the coordinator.
func StartFleet(o FleetOptions, log *slog.Logger) (*Node, error) {
	keeper, err := pki.Open(o.Coordinator.Files, func(err error) { log.Error("cannot reload the certificates", "err", err) })
	if err != nil {
		return nil, err
	}
	own, err := o.setNode(keeper)
	if err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot identifier of this host: %w", err)
	}
	n, err := o.newEngineNode(own, log)
	if err != nil {
		return nil, err
	}
	n.certificates = []pki.Source{keeper}
	if o.Engine == nil {
		if n.neighbours, err = lldp.Listen(); err != nil {
			log.Warn("cannot listen for the switches that NICs are plugged into, which needs CAP_NET_RAW", "err", err)
		}
	}
	f := &fleet{node: n, options: o, sys: "/sys", lastCounts: map[fabric.Flow]probeCounts{}}
	c, err := client.New(client.Config{Addresses: o.Coordinator.Addresses, ServerName: o.Coordinator.ServerName, Certificates: keeper, Node: o.Node, Version: o.Version, OwnConfiguration: own != nil,
		BootID: strings.TrimSpace(string(boot)), Web: &agentapi.WebEndpoint{Address: o.Web, Scheme: o.WebScheme}, StateFile: o.StateFile, Log: log}, f)
	if err != nil {
		n.cancel = func() {}
		return nil, errors.Join(err, n.Close())
	}
	if o.StateFile != "" {
		n.writes = c.StateWrites
	}
	if o.Clock.Sync {
		n.clocks = newClocks(o.Node, n.engine, c.ReportClock, log)
		if o.Clock.ChronySock != "" {
			n.clocks.steer = newSteering(o.Clock.ChronySock, log)
		}
	}
	n.windows = newWindows(n, o.StateFile, log)
	ctx := n.startRefreshing()
	n.wg.Go(func() { c.Run(ctx) })
	if renew := o.Coordinator.Renew; renew != nil {
		n.wg.Go(func() { renew(ctx, keeper) })
	}
	if n.clocks != nil {
		n.wg.Go(func() { n.clocks.run(ctx) })
	}
	return n, nil
}

// setNode fills in the name of the node, and checks what the coordinator is given. It returns the configuration of the
// file, or nil if there is no file.
func (o *FleetOptions) setNode(keeper *pki.Keeper) (own *probe.Config, err error) {
	if o.File != "" {
		if own, err = loadConfig(o.File, o.Clock.Sync); err != nil {
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
	return own, nil
}

// newEngineNode returns a node whose engine runs the file's configuration, or none if there is no file.
func (o *FleetOptions) newEngineNode(own *probe.Config, log *slog.Logger) (*Node, error) {
	now := time.Now()
	wanted := own
	if own == nil {
		wanted = fleetConfig(&agentapi.Assignment{Node: o.Node, Stamp: &agentapi.Stamp{Port: 862, SourcePort: 49152}}, nil, o)
	}
	n := newNode(wanted, now, o.Clock.Node, log)
	n.config.file, n.config.clockSync = o.File, o.Clock.Sync
	n.handleSignals(o.Signals)
	if o.RDMA {
		if err := rdma.CheckLibrary(); errors.Is(err, rdma.ErrNotBuilt) {
			return nil, err
		} else if err != nil {
			log.Error("cannot probe by RDMA; NICs are probed by UDP until the library is installed", "err", err)
		}
		n.addresses.rdmaOf = withLibrary(rdma.CheckLibrary, rdmaPorts("/sys", o.rdmaKeys()))
	}
	resolved, err := n.addresses.resolveAddresses(wanted, nil)
	if err != nil {
		return nil, err
	}
	start := n.startEngine
	if o.Engine != nil {
		start = o.Engine
	}
	if resolved.Life, err = nextLife(lifeFile(o.StateFile), now); err != nil {
		log.Error("cannot take a life number from the state file; the coordinator has to assign one", "err", err)
	}
	n.engine, err = start(resolved, log)
	return n, err
}

// rdmaKeys returns the keys of the queue pairs of a fleet's node, with a random Q_Key.
func (o *FleetOptions) rdmaKeys() probe.RDMAConfig {
	keys := probe.RDMAConfig{PKey: rdma.DefaultPKey, QKey: rdma.RandomQKey()}
	if o.PKeyIndex != nil {
		keys.PKey, keys.PKeyIndex = 0, o.PKeyIndex
	}
	return keys
}

// Apply implements client.Agent. A NIC that cannot be opened does not stop the rest: it is tried again every second,
// and heartbeats report it.
func (f *fleet) Apply(a *agentapi.Assignment, keys *agentapi.Keys) error {
	cfg := fleetConfig(a, keys, &f.options)
	if err := cfg.Validate(); err != nil {
		return err
	}
	n := f.node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses.assigned = make(map[string]netip.Addr, len(cfg.NICs))
	for i := range cfg.NICs {
		// The engine follows the address of a device, and moves before the coordinator has heard of the change.
		if c := &cfg.NICs[i]; c.Device != "" {
			n.addresses.assigned[c.NIC], c.Address = c.Address, netip.Addr{}
		}
	}
	resolved, err := n.addresses.resolveAddresses(cfg, n.engine.Config())
	if err != nil {
		return err
	}
	err = n.engine.Apply(resolved)
	if errors.Is(err, probe.ErrClosed) {
		return err
	}
	f.applyError = ""
	if n.config.retry = err != nil; n.config.retry {
		f.applyError = err.Error()
		n.log.Error("cannot apply a part of the assignment; trying again every second", "err", err)
	}
	n.config.wanted, n.config.loaded = cfg, time.Now()
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

// Heartbeat fills in the node's part of a heartbeat. It implements client.Agent.
func (f *fleet) Heartbeat(h *agentapi.Heartbeat) {
	if h.ApplyError == "" {
		f.node.mu.RLock()
		if f.node.config.retry {
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

// Clock applies a clock update of a coordinator. It implements client.Agent.
func (f *fleet) Clock(u *agentapi.ClockUpdate, leads bool) {
	if c := f.node.clocks; c != nil {
		c.applyUpdate(u.GetUpdate(), leads)
	}
}

// Traces returns the traced paths and their version. It implements client.Agent.
func (f *fleet) Traces() (version uint64, traces []fabric.Trace) {
	version, paths := f.node.engine.TracedPaths()
	traces = make([]fabric.Trace, len(paths))
	for i, p := range paths {
		t := fabric.Trace{Edge: p.Edge.String(), State: p.State, TracedAt: p.TracedAt, Reached: p.Reached, Balanced: p.Balanced, Carrier: p.Carrier, Hops: make([]fabric.RawHop, len(p.Hops))}
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
