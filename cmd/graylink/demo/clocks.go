package demo

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/schedule"
)

// How wrong clocks are made: further apart than any delay, and as far off their
// rate as the oscillators of servers are.
const (
	bendMost    = 5 * time.Second
	bendMostPPM = 30
)

// bend is how an agent's clock is wrong from its start.
type bend struct {
	offset time.Duration
	ppm    float64
}

func (b bend) String() string { return fmt.Sprintf("%+.3f s and %+.1f ppm", b.offset.Seconds(), b.ppm) }

// bendClocks lets a lab's name and a seed choose how every node's clock is wrong.
func bendClocks(nodes []fabric.Node, name string, seed uint64) map[string]bend {
	h := fnv.New64a()
	h.Write([]byte(name))
	rng := rand.New(rand.NewPCG(seed, h.Sum64()))
	out := make(map[string]bend, len(nodes))
	for i := range nodes {
		out[nodes[i].Name] = bend{offset: time.Duration((2*rng.Float64() - 1) * float64(bendMost)), ppm: (2*rng.Float64() - 1) * bendMostPPM}
	}
	return out
}

// maxDescribedBends is how many bends are described one by one.
const maxDescribedBends = 8

func describeBends(nodes []fabric.Node, bends map[string]bend) string {
	var said []string
	for i := range nodes[:min(len(nodes), maxDescribedBends)] {
		said = append(said, nodes[i].Name+" "+bends[nodes[i].Name].String())
	}
	if n := len(nodes) - maxDescribedBends; n > 0 {
		said = append(said, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(said, ", ")
}

// certificateLife is longer than any demo runs.
const certificateLife = 365 * 24 * time.Hour

// embeddedCoordinator is a coordinator in the demo's own process. The agents have their
// configurations in files: it relates their clocks and nothing else.
type embeddedCoordinator struct {
	*coordinator.Coordinator
	dir    string
	server *coordinator.Server
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu  sync.Mutex
	err error
}

func (c *embeddedCoordinator) filePath(name string) string { return filepath.Join(c.dir, name) }

func (c *embeddedCoordinator) listenAddress() string { return "unix:" + c.filePath("agents.sock") }

// startCoordinator starts a coordinator for a fabric. Its files, and those that the
// agents need to come to it, are made in dir.
func startCoordinator(ctx context.Context, t *fabric.Topology, o Options, dir string) (*embeddedCoordinator, error) {
	c := &embeddedCoordinator{dir: dir}
	if err := c.writeFiles(t); err != nil {
		return nil, err
	}
	certificates, err := pki.Open(c.certificateFiles("coordinator"), func(err error) { o.Log.Error("cannot load certificates", "err", err) })
	if err != nil {
		return nil, err
	}
	co := coordinator.DefaultOptions()
	co.TopologyFile, co.StateFile = c.filePath("topology.yaml"), c.filePath("state.json")
	co.Planner = coordinator.Planner{Make: schedule.Make, Rebalance: schedule.Rebalance}
	if c.Coordinator, err = coordinator.New(co, o.Log); err != nil {
		return nil, err
	}
	listener, err := coordinator.Listen(ctx, c.listenAddress())
	if err != nil {
		return nil, err
	}
	c.server = coordinator.NewServer(c.Coordinator, certificates, nil)
	run, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.wg.Go(func() { c.addError(c.server.Serve(listener)) })
	c.wg.Go(func() { c.addError(c.Run(run)) })
	return c, nil
}

// writeFiles writes the topology and all certificates.
func (c *embeddedCoordinator) writeFiles(t *fabric.Topology) error {
	b, err := yaml.Marshal(t)
	if err != nil {
		return fmt.Errorf("cannot encode the topology for the coordinator: %w", err)
	}
	now := time.Now()
	ca, err := pki.NewAuthority("graylink demo", certificateLife, now)
	if err != nil {
		return err
	}
	files := map[string][]byte{"topology.yaml": b, "ca.crt": ca.Cert}
	issue := func(name, certificate string) error {
		p, err := pki.Issue(ca, []string{name}, certificateLife, now)
		files[certificate+".crt"], files[certificate+".key"] = p.Cert, p.Key
		return err
	}
	err = issue("coordinator", "coordinator")
	for i := range t.Nodes {
		err = errors.Join(err, issue(t.Nodes[i].Name, nodeFile(t.Nodes[i].Name)))
	}
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(c.filePath(name), content, 0o600); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	return nil
}

// nodeFile keeps a node's files apart from the others, whatever its name is.
func nodeFile(node string) string { return "node-" + node }

func (c *embeddedCoordinator) certificateFiles(certificate string) pki.Files {
	return pki.Files{CA: c.filePath("ca.crt"), Cert: c.filePath(certificate + ".crt"), Key: c.filePath(certificate + ".key")}
}

// agentFlags returns the flags by which a node's agent finds the coordinator.
func (c *embeddedCoordinator) agentFlags(node string) []string {
	f := c.certificateFiles(nodeFile(node))
	return []string{"--coordinator.address", c.listenAddress(), "--coordinator.ca", f.CA, "--coordinator.cert", f.Cert, "--coordinator.key", f.Key}
}

func (c *embeddedCoordinator) addError(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(c.err, err)
}

// close ends the coordinator and returns its errors.
func (c *embeddedCoordinator) close() error {
	c.server.Stop()
	c.cancel()
	c.wg.Wait()
	return c.err
}

// unlockedClocks lists those of the nodes whose clocks are not locked; worst is the
// largest bound of the others, with what their paths may differ by.
func (c *embeddedCoordinator) unlockedClocks(nodes []string) (names []string, worst time.Duration) {
	bounds := map[string]time.Duration{}
	for _, k := range c.Clocks().Clocks {
		if k.State == clocksync.Locked.String() && k.BoundNS != nil {
			bounds[k.Clock] = time.Duration(*k.BoundNS) + time.Duration(k.AllowanceNS)
		}
	}
	for _, n := range nodes {
		bound, locked := bounds[n]
		if !locked {
			names = append(names, n)
		}
		worst = max(worst, bound)
	}
	return names, worst
}

// awaitLockedClocks waits until the clocks of all nodes that probe are locked: what is
// learnt before is no baseline.
func (d *Demo) awaitLockedClocks(ctx context.Context) error {
	began := time.Now()
	nodes := d.mesh.nodeNames()
	for {
		unlocked, worst := d.coordinator.unlockedClocks(nodes)
		if len(unlocked) == 0 {
			d.printProgress("all %d clocks are locked, each known to %s or better", len(nodes), worst.Round(10*time.Nanosecond))
			return nil
		}
		if err := d.site.agentError(); err != nil {
			return err
		}
		if time.Since(began) > clockLockTimeout {
			return fmt.Errorf("after %s the clocks of these nodes are not locked: %s", clockLockTimeout, strings.Join(unlocked, ", "))
		}
		if err := sleepContext(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
