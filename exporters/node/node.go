// Package node publishes the state of internal/probe as Prometheus series and
// serves the node's HTTP API.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"

	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/probe"
)

// Node runs the probe engine of a configuration and changes it while it runs.
type Node struct {
	file      string // configuration file; empty if a coordinator assigns the configuration
	clockSync bool   // the file's choice whether delays are measured with related clocks
	log       *slog.Logger
	lookup    func(device string) ([]netip.Addr, error)
	rdmaOf    func(device string) *probe.RDMAConfig // returns the RDMA port of an interface; nil: NICs of an assignment are probed by UDP
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	clocks *clocks // nil if they are not related

	clock    probe.Clock // nil: the kernel's
	registry *prometheus.Registry
	writes   stateWrites
	certs    *certificates.Collector
	joined   []prometheus.Gatherer // gatherers that are added to /metrics
	health   *Health               // nil if the NICs are not watched
	started  time.Time             // start of the engine, from which its counts begin

	mu         sync.RWMutex // held for writing while the configuration changes
	engine     *probe.Engine
	wanted     *probe.Config         // as read, with addresses of devices unset
	assigned   map[string]netip.Addr // address from the coordinator, by NIC
	retryApply bool                  // a part of the configuration could not be applied
	loaded     time.Time             // time at which the running configuration was loaded
	reloadOK   bool
}

// addressEvery is the interval at which the addresses of devices are looked up, and at which NICs that could not be
// opened are tried again.
const addressEvery = time.Second

// Start loads the configuration file and starts probing. clock is the node's; nil means the kernel's. The number of the node's life is kept in a file beside the state file. If state is empty, the node has no such
// number.
func Start(file, state string, clock probe.Clock, log *slog.Logger) (*Node, error) {
	cfg, err := probe.LoadConfig(file)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	n := &Node{file: file, log: log, lookup: deviceAddresses, clock: clock, registry: processRegistry(), certs: certificates.NewCollector(), wanted: cfg, started: now, loaded: now, reloadOK: true}
	n.registry.MustRegister(&n.writes, n.certs)
	resolved, err := n.resolveAddresses(cfg, nil)
	if err != nil {
		return nil, err
	}
	if cfg.Life, err = nextLife(lifeFile(state), now); err != nil {
		log.Error("cannot take a life number; peers cannot recognise this node's packets from before a restart as replays", "err", err)
	}
	resolved.Life = cfg.Life
	if n.engine, err = n.startEngine(resolved, log); err != nil {
		return nil, err
	}
	n.startRefreshing()
	return n, nil
}

// startEngine starts an engine on this host, by the node's clock.
func (n *Node) startEngine(cfg *probe.Config, log *slog.Logger) (*probe.Engine, error) {
	deps := probe.HostDeps()
	if n.clock != nil {
		deps.Clock = n.clock
	}
	e, err := probe.New(cfg, deps, log)
	if err != nil {
		return nil, err
	}
	e.Start()
	return e, nil
}

// loadConfig reads a configuration file, with clock sync if sync is true.
func loadConfig(file string, sync bool) (*probe.Config, error) {
	cfg, err := probe.LoadConfig(file)
	if err == nil {
		cfg.ClockSync = sync
	}
	return cfg, err
}

// startRefreshing starts to keep the configuration up to date with addresses that come and go. The returned context
// ends with Close.
func (n *Node) startRefreshing() (ctx context.Context) {
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	if bent, ok := n.clock.(*bentclock.Clock); ok {
		n.wg.Go(func() { bent.FollowFile(ctx, n.log) })
	}
	n.wg.Go(func() {
		tick := time.NewTicker(addressEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				n.refreshAddresses()
			}
		}
	})
	return ctx
}

// refreshAddresses applies the wanted configuration again if an address changed, or if a part of the configuration
// could not be applied before.
func (n *Node) refreshAddresses() {
	n.mu.Lock()
	defer n.mu.Unlock()
	running := n.engine.Config()
	cfg, err := n.resolveAddresses(n.wanted, running)
	if err != nil {
		n.log.Warn("cannot read the addresses of this node", "err", err)
		return
	}
	same := slices.EqualFunc(cfg.NICs, running.NICs, func(a, b probe.NICConfig) bool {
		return a.NIC == b.NIC && a.Address == b.Address && a.RDMA.Equal(b.RDMA)
	})
	if same && !n.retryApply {
		return
	}
	err = n.engine.Apply(cfg)
	switch {
	case err != nil && !n.retryApply:
		n.log.Error("cannot apply a part of the configuration; trying again every second", "err", err)
	case err == nil:
		n.log.Info("applied the configuration again after a change of addresses or devices")
	}
	n.retryApply = err != nil
}

// resolveAddresses returns the configuration with an address for every NIC that names a device: the assigned address if
// the device has it, else the one that it has in running. A device without an address keeps the one that it had, or
// else gets the assigned one.
func (n *Node) resolveAddresses(cfg, running *probe.Config) (*probe.Config, error) {
	if !slices.ContainsFunc(cfg.NICs, func(c probe.NICConfig) bool { return !c.Address.IsValid() && c.Device != "" }) {
		return cfg, nil
	}
	out := *cfg
	out.NICs = slices.Clone(cfg.NICs)
	for i := range out.NICs {
		c := &out.NICs[i]
		if c.Address.IsValid() || c.Device == "" {
			continue // it may be probed by RDMA only
		}
		var had netip.Addr
		if running != nil {
			if j := slices.IndexFunc(running.NICs, func(r probe.NICConfig) bool { return r.NIC == c.NIC }); j >= 0 {
				had = running.NICs[j].Address
				if n.rdmaOf != nil {
					c.RDMA = running.NICs[j].RDMA // a device that is temporarily absent does not make the NIC fall back to UDP
				}
			}
		}
		if n.rdmaOf != nil {
			if port := n.rdmaOf(c.Device); port != nil {
				c.RDMA = port
			}
		}
		addrs, err := n.lookup(c.Device)
		switch {
		case err == nil && slices.Contains(addrs, n.assigned[c.NIC]):
			c.Address = n.assigned[c.NIC]
		case err == nil && slices.Contains(addrs, had):
			c.Address = had
		case err == nil && len(addrs) > 0:
			c.Address = addrs[0]
		case had.IsValid():
			c.Address = had
		case n.assigned[c.NIC].IsValid():
			c.Address = n.assigned[c.NIC]
		case err != nil:
			return nil, fmt.Errorf("NIC %s: %w", c.NIC, err)
		default:
			return nil, fmt.Errorf("NIC %s: device %s has no address, want an IPv4 or IPv6 unicast address", c.NIC, c.Device)
		}
	}
	return &out, nil
}

// deviceAddresses lists the addresses of an interface at which a NIC can be probed, IPv4 first.
func deviceAddresses(device string) ([]netip.Addr, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", device, err)
	}
	all, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of device %q: %w", device, err)
	}
	var out []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && probe.CheckAddress(p.Addr()) == nil {
			out = append(out, p.Addr())
		}
	}
	slices.SortStableFunc(out, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return out, nil
}

// Reload reads the configuration file again. If the file cannot be used, the old configuration stays at work and Reload
// returns an error. Edges that are in both configurations continue without interruption.
func (n *Node) Reload() error {
	if n.file == "" {
		return nil // the assignment of a coordinator is always the newest
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reloadOK = false
	cfg, err := loadConfig(n.file, n.clockSync)
	if err != nil {
		return fmt.Errorf("the old configuration stays: %w", err)
	}
	if cfg.Hash == n.wanted.Hash && n.engine.Err() == nil && !n.retryApply {
		n.reloadOK = true
		return nil
	}
	resolved, err := n.resolveAddresses(cfg, n.engine.Config())
	if err != nil {
		return fmt.Errorf("the old configuration stays: %w", err)
	}
	old := n.engine.Config()
	if err := n.engine.Apply(resolved); err != nil {
		if errors.Is(err, probe.ErrClosed) {
			return err
		}
		if back := n.engine.Apply(old); back != nil {
			n.retryApply = true
			return errors.Join(fmt.Errorf("apply the new configuration: %w", err), fmt.Errorf("restore the old one: %w", back))
		}
		return fmt.Errorf("the old configuration stays: %w", err)
	}
	n.wanted, n.loaded, n.reloadOK, n.retryApply = cfg, time.Now(), true, false
	return nil
}

// readState calls f with the current state. It is the reading side of a gatherer.
func (n *Node) readState(f func(state)) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	f(state{Source: n.engine, clocks: n.clocks, started: n.started, loaded: n.loaded, reloadOK: n.reloadOK})
}

// Gatherers returns the gatherers of /metrics and of /metrics/edges.
func (n *Node) Gatherers() (metrics, edges prometheus.Gatherer) {
	return append(disjoint{gatherer{n.readState, nicSeries}, n.registry}, n.joined...), gatherer{n.readState, edgeSeries}
}

// Name returns the node's name in the fabric.
func (n *Node) Name() string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.engine.Config().Node
}

// Registry returns the registry for collectors of other parts of the process. They are added to /metrics.
func (n *Node) Registry() *prometheus.Registry { return n.registry }

// AddCertificates adds the certificates of other parts of the process to /metrics.
func (n *Node) AddCertificates(sources ...pki.Source) { n.certs.Add(sources...) }

// AddGatherer adds families to /metrics. It must be called before Gatherers and Handler.
func (n *Node) AddGatherer(g prometheus.Gatherer) { n.joined = append(n.joined, g) }

// AttachHealth adds the series and the API of the health of the node's NICs. It must be called before Gatherers and
// Handler.
func (n *Node) AttachHealth(h *Health) {
	n.AddGatherer(h)
	n.health = h
}

// processRegistry returns a registry with the client library's series about the process.
func processRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(version.NewCollector("graylink_node"), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Close stops probing.
func (n *Node) Close() error {
	n.cancel()
	n.wg.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.engine.Close()
}

// Ready returns nil if the probe loop runs, and otherwise the reason why not.
func (n *Node) Ready() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.engine.Err()
}
