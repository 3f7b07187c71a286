package coordinator

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"

	"github.com/graylink/graylink/internal/fabric"
)

// topology is the fabric that the coordinator serves. It is replaced, never changed.
type topology struct {
	graph  *fabric.Graph
	nodes  map[string]bool       // its nodes
	owners map[netip.Addr]string // owners of addresses, from topologyOwners
	sum    string                // hash of the file
}

// loadTopology reads the topology from its file. It logs the problems that do not prevent its use. Where any node may
// connect, a missing file is an empty topology.
func loadTopology(o Options, log *slog.Logger) (*topology, error) {
	b, err := os.ReadFile(o.TopologyFile)
	if o.AnyNode && errors.Is(err, fs.ErrNotExist) {
		return &topology{graph: fabric.NewGraph(&fabric.Topology{Version: 1}), nodes: map[string]bool{}, owners: map[netip.Addr]string{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the topology: %w", err)
	}
	t, found := fabric.ParseTopology(o.TopologyFile, b)
	if err := found.Err(); err != nil {
		return nil, err
	}
	for _, f := range found {
		log.Warn("the topology has a problem", "finding", f.String())
	}
	sum, g := sha256.Sum256(b), fabric.NewGraph(t)
	return &topology{graph: g, nodes: nodesOf(g), owners: topologyOwners(g), sum: hex.EncodeToString(sum[:8])}, nil
}

func nodesOf(g *fabric.Graph) map[string]bool {
	out := make(map[string]bool, len(g.Topo.Nodes))
	for i := range g.Topo.Nodes {
		out[g.Topo.Nodes[i].Name] = true
	}
	return out
}

// Reload reads the topology file again. If the file cannot be used or scheduled, Reload returns an
// error and the old topology stays in use.
func (c *Coordinator) Reload() error {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	next, err := loadTopology(c.opts, c.log)
	if err == nil && next.sum != c.topology.sum {
		err = c.replaceTopology(next)
	}
	c.counters.add(func(n *counts) {
		if n.reloadOK = err == nil; n.reloadOK {
			n.reloadedAt = c.opts.Clock.WallTime()
		}
	})
	if err != nil {
		return fmt.Errorf("the old topology stays in use: %w", err)
	}
	return nil
}

// replaceTopology puts another topology to use. It needs changeMu.
func (c *Coordinator) replaceTopology(next *topology) error {
	c.mu.Lock()
	old := c.topology
	c.topology = next
	gone := map[string]*agent{}
	for n, a := range c.registry.agents {
		if !next.nodes[n] && !c.opts.AnyNode {
			gone[n] = a
			delete(c.registry.agents, n)
		} else if a.session != nil {
			a.session.pathsRequested = false
		}
	}
	c.markDirty(true, c.opts.Clock.MonoTime())
	leads := c.leadership.leads
	c.mu.Unlock()

	var err error
	if leads { // a standby plans when it leads
		err = c.rebuildPlan()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.topology = old
		maps.Copy(c.registry.agents, gone)
		return err
	}
	for _, a := range gone {
		if a.session != nil {
			a.session.endWith(errNotInTopology)
		}
	}
	for _, a := range c.registry.agents {
		c.checkTarget(a)
	}
	c.clocks.replaceTopology(next.graph)
	c.moves.replaceTopology(next.graph)
	return nil
}
