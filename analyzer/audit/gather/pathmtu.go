package gather

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/internal/fabric"
)

// MTUAgents are agents that test the MTUs of paths. tracing.HTTPAgents implements it.
type MTUAgents interface {
	// NICs returns a node's NICs with the MTUs of their interfaces.
	NICs(ctx context.Context, node string) (fabric.NodeView, error)
	// ProbePathMTU tests the paths of a node's flows, and returns the results in the same order.
	ProbePathMTU(ctx context.Context, node string, edges []string, octets int) ([]fabric.PathMTU, error)
}

// Limits of requests to agents.
const (
	concurrentNodes = 32
	maxEdges        = 32 // of one request: an agent tests as many at a time, and answers in time if all of them drop packets
)

// testPaths tests the MTUs of paths, and adds what it finds to the evidence. The paths of agents that do not answer are unknown.
func (c *collector) testPaths(ctx context.Context, e *audit.Evidence) error {
	if c.o.MTUAgents == nil {
		return nil
	}
	e.PathMTU = &audit.PathMTUEvidence{Interfaces: map[string]int{}}
	var mu sync.Mutex
	var failed error
	forEachNode(slices.Sorted(maps.Keys(e.Hosts)), func(node string) {
		view, err := c.o.MTUAgents.NICs(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		failed = cmp.Or(failed, err)
		for _, n := range view.NICs {
			if fabric.OwnerOf(n.NIC) == node && n.MTU > 0 && n.GUID == "" { // one with a GUID has InfiniBand
				e.PathMTU.Interfaces[n.NIC] = n.MTU
			}
		}
	})
	active := audit.CommonMTU(c.o.RoCEMTU, e.PathMTU.Interfaces)
	if active == 0 {
		c.o.Progress("the MTUs of paths are not tested: neither --criteria nor an agent has the MTU of RoCE")
		return ctx.Err()
	}
	e.PathMTU.Active, e.PathMTU.Octets = active, audit.PacketLength(active)
	flows, switches := audit.PlanPathTests(e, c.o.Scope)
	byNode := map[string][]string{}
	for _, f := range flows {
		node := fabric.OwnerOf(f.Src)
		byNode[node] = append(byNode[node], f.String())
	}
	c.o.Progress("testing the MTU of %d paths by packets of %d octets: if all pass, one of them for each path and an answer of that length, %.2g MB in all; at most %d packets a path, within the agents' budgets of traces",
		len(flows), e.PathMTU.Octets, 2e-6*float64(len(flows)*e.PathMTU.Octets), audit.MaxTestPackets(switches))
	forEachNode(slices.Sorted(maps.Keys(byNode)), func(node string) {
		for edges := range slices.Chunk(byNode[node], maxEdges) {
			found, err := c.o.MTUAgents.ProbePathMTU(ctx, node, edges, e.PathMTU.Octets)
			c.refusals.note(node, err)
			if err != nil {
				found = nil
				for _, edge := range edges {
					found = append(found, fabric.PathMTU{Edge: edge, Octets: e.PathMTU.Octets, State: fabric.PathMTUUnknown, Reason: "the agent did not test them"})
				}
			}
			mu.Lock()
			failed = cmp.Or(failed, err)
			e.PathMTU.Tests = append(e.PathMTU.Tests, found...)
			mu.Unlock()
		}
	})
	slices.SortFunc(e.PathMTU.Tests, func(a, b fabric.PathMTU) int { return cmp.Compare(a.Edge, b.Edge) })
	if failed != nil {
		c.o.Progress("the MTUs of some paths could not be tested: %v", failed)
	}
	return ctx.Err()
}

// forEachNode calls do for every node, for some of them at the same time, and waits.
func forEachNode(nodes []string, do func(node string)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, concurrentNodes)
	for _, node := range nodes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(node)
		})
	}
}
