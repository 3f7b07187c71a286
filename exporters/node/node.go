// Package node publishes the state of internal/probe as Prometheus series and
// serves the node's HTTP API.
package node

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"

	"github.com/graylink/graylink/internal/probe"
)

// Node runs the probe engine of a configuration file and changes it on reload.
type Node struct {
	file     string
	log      *slog.Logger
	registry *prometheus.Registry

	mu       sync.RWMutex // held for writing while engines are exchanged
	engine   *probe.Engine
	started  time.Time // of the engine
	loaded   time.Time // of the configuration that runs
	reloadOK bool
}

// Start loads the configuration file and starts probing.
func Start(file string, log *slog.Logger) (*Node, error) {
	cfg, err := probe.LoadConfig(file)
	if err != nil {
		return nil, err
	}
	e, err := probe.Start(cfg, log)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &Node{file: file, log: log, registry: processRegistry(), engine: e, started: now, loaded: now, reloadOK: true}, nil
}

// Reload reads the configuration file again. A file that cannot be used, or
// whose sockets cannot be opened, leaves the old configuration at work.
func (n *Node) Reload() error {
	cfg, err := probe.LoadConfig(n.file)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reloadOK = false
	if err != nil {
		return fmt.Errorf("the old configuration stays: %w", err)
	}
	if cfg.Hash == n.engine.Config().Hash && n.engine.Err() == nil {
		n.reloadOK = true
		return nil
	}
	old := n.engine.Config()
	if err := n.engine.Close(); err != nil {
		n.log.Warn("close the old engine", "err", err)
	}
	e, err := probe.Start(cfg, n.log)
	if err != nil {
		back, berr := probe.Start(old, n.log)
		if berr != nil {
			return errors.Join(fmt.Errorf("start the new configuration: %w", err), fmt.Errorf("return to the old one: %w", berr))
		}
		n.engine, n.started = back, time.Now()
		return fmt.Errorf("the old configuration stays: %w", err)
	}
	n.engine, n.started, n.reloadOK = e, time.Now(), true
	n.loaded = n.started
	return nil
}

// read implements the reading side of a gatherer.
func (n *Node) read(f func(state)) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	f(state{Source: n.engine, started: n.started, loaded: n.loaded, reloadOK: n.reloadOK})
}

// Series are the families of /metrics and of /metrics/edges.
func (n *Node) Series() (metrics, edges prometheus.Gatherer) {
	return disjoint{gatherer{n.read, nicSeries}, n.registry}, gatherer{n.read, edgeSeries}
}

// Registry takes collectors of what else the process does: they join /metrics.
func (n *Node) Registry() *prometheus.Registry { return n.registry }

// processRegistry holds the client library's series about the process.
func processRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(version.NewCollector("graylink_node"), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Close stops probing.
func (n *Node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.engine.Close()
}

// Ready is nil when every probe loop runs.
func (n *Node) Ready() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.engine.Err()
}
