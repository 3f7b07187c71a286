// Package nodeagent is the work of graylink-node: it runs the probe engine of a configuration, which a file or a
// coordinator gives, relates the node's clocks, and follows the addresses of its devices. exporters/node publishes its
// state and serves its API.
package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/nodeagent/signals"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/sighting/lldp"
)

// Node runs the probe engine of a configuration and changes it while it runs.
type Node struct {
	log          *slog.Logger
	clock        probe.Clock                  // nil means the kernel's
	signals      *probe.Signals               // how the engine handles in-band signals; nil means that it has none
	captures     *signals.Captures            // of in-band signals beside the engine; nil means there are none
	clocks       *clocks                      // nil if they are not related
	windows      *windows                     // nil before the node is started
	neighbours   *lldp.Listener               // nil if the node does not listen for neighbours
	certificates []pki.Source                 // in use toward the coordinator
	writes       func() (done, failed uint64) // counts of the writes of the assignment; nil if it is not kept
	started      time.Time                    // start of the engine, from which its counts begin
	cancel       context.CancelFunc
	wg           sync.WaitGroup

	mu        sync.RWMutex // held for writing while the configuration changes
	engine    *probe.Engine
	addresses resolver
	config    configuration
}

// configuration represents the configuration that is to be at work, and whether it is.
type configuration struct {
	file      string        // file that has it; empty if a coordinator assigns it
	clockSync bool          // the file's choice whether delays are measured with related clocks
	wanted    *probe.Config // as read, with addresses of devices unset
	retry     bool          // a part could not be applied
	loaded    time.Time     // time at which the running configuration was loaded
	reloadOK  bool
}

// addressEvery is the interval at which the addresses of devices are looked up, and at which NICs that could not be
// opened are tried again.
const addressEvery = time.Second

// Start loads the configuration file and starts probing. clock is the node's; nil means the kernel's. inBand says how in-band
// signals are handled; nil means there are none. The number of the node's life is kept in a file beside the state file. If state is empty, the node has no such number.
func Start(file, state string, clock probe.Clock, inBand *probe.Signals, log *slog.Logger) (*Node, error) {
	cfg, err := probe.LoadConfig(file)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	n := newNode(cfg, now, clock, log)
	n.config.file = file
	n.handleSignals(inBand)
	resolved, err := n.addresses.resolveAddresses(cfg, nil)
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
	n.windows = newWindows(n, state, log)
	n.startRefreshing()
	return n, nil
}

// newNode returns a node without an engine.
func newNode(wanted *probe.Config, now time.Time, clock probe.Clock, log *slog.Logger) *Node {
	return &Node{log: log, clock: clock, started: now, addresses: resolver{lookup: deviceAddresses}, config: configuration{wanted: wanted, loaded: now, reloadOK: true}}
}

// handleSignals sets how in-band signals are handled; nil means that there are none. The engine tags probes and reads tags, or, if nothing
// is tagged, captures read them.
func (n *Node) handleSignals(s *probe.Signals) {
	if s != nil && s.Format == csig.None {
		n.captures = signals.New(s.Profile, s.Flows, n.log)
		return
	}
	n.signals = s
}

// startEngine starts an engine on this host, by the node's clock.
func (n *Node) startEngine(cfg *probe.Config, log *slog.Logger) (*probe.Engine, error) {
	deps := probe.HostDeps()
	deps.Signals = n.signals
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
	n.wg.Go(func() { n.windows.run(ctx) })
	if n.captures != nil {
		n.wg.Go(func() { n.captures.Run(ctx, n.Config) })
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
	cfg, err := n.addresses.resolveAddresses(n.config.wanted, running)
	if err != nil {
		n.log.Warn("cannot read the addresses of this node", "err", err)
		return
	}
	same := slices.EqualFunc(cfg.NICs, running.NICs, func(a, b probe.NICConfig) bool {
		return a.NIC == b.NIC && a.Address == b.Address && a.RDMA.Equal(b.RDMA)
	})
	if same && !n.config.retry {
		return
	}
	err = n.engine.Apply(cfg)
	switch {
	case err != nil && !n.config.retry:
		n.log.Error("cannot apply a part of the configuration; trying again every second", "err", err)
	case err == nil:
		n.log.Info("applied the configuration again after a change of addresses or devices")
	}
	n.config.retry = err != nil
}

// Reload reads the configuration file again. If the file cannot be used, the old configuration stays at work and Reload
// returns an error. Edges that are in both configurations continue without interruption.
func (n *Node) Reload() error {
	if n.config.file == "" {
		return nil // the assignment of a coordinator is always the newest
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.config.reloadOK = false
	cfg, err := loadConfig(n.config.file, n.config.clockSync)
	if err != nil {
		return fmt.Errorf("the old configuration stays: %w", err)
	}
	if cfg.Hash == n.config.wanted.Hash && n.engine.Err() == nil && !n.config.retry {
		n.config.reloadOK = true
		return nil
	}
	resolved, err := n.addresses.resolveAddresses(cfg, n.engine.Config())
	if err != nil {
		return fmt.Errorf("the old configuration stays: %w", err)
	}
	old := n.engine.Config()
	if err := n.engine.Apply(resolved); err != nil {
		if errors.Is(err, probe.ErrClosed) {
			return err
		}
		if back := n.engine.Apply(old); back != nil {
			n.config.retry = true
			return errors.Join(fmt.Errorf("apply the new configuration: %w", err), fmt.Errorf("restore the old one: %w", back))
		}
		return fmt.Errorf("the old configuration stays: %w", err)
	}
	n.config.wanted, n.config.loaded, n.config.reloadOK, n.config.retry = cfg, time.Now(), true, false
	return nil
}

// Name returns the node's name in the fabric.
func (n *Node) Name() string { return n.Config().Node }

// Config returns the running configuration.
func (n *Node) Config() *probe.Config {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.engine.Config()
}

// NICNames returns the node's name in the fabric, and the names of its NICs by interface.
func (n *Node) NICNames() (node string, nics map[string]string) {
	cfg := n.Config()
	nics = map[string]string{}
	for i := range cfg.NICs {
		if c := &cfg.NICs[i]; c.Device != "" {
			nics[c.Device] = c.NIC
		}
	}
	return cfg.Node, nics
}

// Certificates returns the certificates in use toward the coordinator.
func (n *Node) Certificates() []pki.Source { return n.certificates }

// AssignmentWrites returns the counts of the writes of the file that keeps the assignment. It returns nil if none is
// kept.
func (n *Node) AssignmentWrites() func() (done, failed uint64) { return n.writes }

// Close stops probing.
func (n *Node) Close() error {
	n.cancel()
	n.wg.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.engine.Close()
	if n.neighbours != nil {
		err = errors.Join(err, n.neighbours.Close())
	}
	return err
}

// Ready returns nil if the probe loop runs, and otherwise the reason why not.
func (n *Node) Ready() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.engine.Err()
}
