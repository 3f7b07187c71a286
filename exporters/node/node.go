// Package node publishes the state of internal/probe as Prometheus series and
// serves the node's HTTP API.
package node

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/probe"
)

// Node runs the probe engine of a configuration file and changes it on reload.
type Node struct {
	file string
	log  *slog.Logger

	mu       sync.RWMutex // held for writing while engines are exchanged
	engine   *probe.Engine
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
	return &Node{file: file, log: log, engine: e, loaded: time.Now(), reloadOK: true}, nil
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
		n.engine = back
		return fmt.Errorf("the old configuration stays: %w", err)
	}
	n.engine, n.loaded, n.reloadOK = e, time.Now(), true
	return nil
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
