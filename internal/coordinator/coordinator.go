package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
)

// stepEvery is the time between two steps of Run.
const stepEvery = 200 * time.Millisecond

// Coordinator holds the state behind the sessions of agents. Its methods may be called from any
// goroutine.
//
// The locks, in the order in which they are taken: windowsMu, changeMu, mu, and then one of those that paths,
// clocks, counters, replication and server have for themselves. None of the latter is held while another lock of
// the package is taken.
type Coordinator struct {
	opts     Options
	log      *slog.Logger
	paths    *pathStore
	clocks   *clockService
	counters *counters
	server   serverState

	replication replication

	windowsMu sync.Mutex // held while a maintenance window is made or ended

	changeMu sync.Mutex // held while the schedule, the keys, the topology or the leader are changed
	moves    portMoves  // needs changeMu
	asked    askedFlows // needs changeMu

	mu       sync.Mutex // held briefly; never while planning, writing or sending
	topology *topology  // is replaced with changeMu and mu
	registry registry
	planning planState
	keys     *keyring // nil if probes are not authenticated; is replaced with changeMu and mu
	file     stateFile

	maintenance  maintenanceBook
	leadership   leadership
	leaseFailing bool // the last request for the lease failed
}

// New reads the topology and the state, and returns a coordinator. If there is a state, the schedule is
// ready when New returns, unless there is another coordinator: then Run decides which one leads.
func New(opts Options, log *slog.Logger) (*Coordinator, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	t, old, err := readFiles(opts, log)
	if err != nil {
		return nil, err
	}
	wall, mono := opts.Clock.WallTime(), opts.Clock.MonoTime()
	for _, k := range opts.Stamp.Classes {
		opts.Schedule.Classes = append(opts.Schedule.Classes, k.Name)
	}
	c := &Coordinator{opts: opts, log: log, paths: newPathStore(), clocks: newClockService(opts, t.graph, wall), counters: newCounters(wall),
		topology: t, file: stateFile{path: opts.StateFile, savedAt: mono}, leadership: newLeadership(old, &opts.HA, wall, mono)}
	if c.leadership.paired {
		c.loadAgents(old, wall, mono)
		return c, nil
	}
	if err := c.lead(old, c.leadership.epoch); err != nil {
		return nil, err
	}
	return c, nil
}

// readFiles reads the topology and the state, which is nil if there is none.
func readFiles(opts Options, log *slog.Logger) (t *topology, old *state, err error) {
	if t, err = loadTopology(opts, log); err != nil {
		return nil, nil, err
	}
	if old, err = readState(opts.StateFile); err != nil {
		return nil, nil, err
	}
	if r := opts.ClockReference; r != "" && !t.nodes[r] {
		return nil, nil, fmt.Errorf("clock.reference: node %q is not in the topology", r)
	}
	return t, old, nil
}

// CheckFiles returns an error if a coordinator could not start by its topology and state.
func CheckFiles(opts Options, log *slog.Logger) error {
	_, _, err := readFiles(opts, log)
	return err
}

// HasNode reports whether the agent of a node may connect. A name that may replicate, or make maintenance windows, is no
// node's: no certificate for it comes from enrollment.
func (c *Coordinator) HasNode(node string) bool {
	if slices.Contains(c.opts.HA.Peers, node) || slices.Contains(c.opts.MaintenanceClients, node) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.topology.nodes[node] || c.opts.AnyNode
}

// probeSettings returns the settings of probes that all nodes have in common.
func (o *Options) probeSettings() probeSettings {
	stamp := &agentapi.Stamp{Port: uint32(o.Stamp.Port), SourcePort: uint32(o.Stamp.SourcePort), Padding: uint32(o.Stamp.Padding)}
	for _, k := range o.Stamp.Classes {
		stamp.Classes = append(stamp.Classes, &agentapi.Class{Name: k.Name, Dscp: uint32(k.DSCP), Sl: uint32(k.SL)})
	}
	return probeSettings{stamp: stamp, authenticated: o.Keys, changeover: uint64(o.Changeover)}
}

// Run does the due work until ctx ends. Then it writes the state and returns the error of that write.
func (c *Coordinator) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.runClocks(ctx) })
	if c.leadership.paired {
		wg.Go(func() { c.runPeer(ctx) })
	}
	if c.opts.HA.Lease != nil {
		wg.Go(func() { c.runLease(ctx) })
	}
	t := time.NewTicker(stepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			c.changeMu.Lock()
			defer c.changeMu.Unlock()
			return c.saveState()
		case <-t.C:
			c.Step()
		}
	}
}

// Step does the due work once.
func (c *Coordinator) Step() {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	if c.followLeadership() {
		c.stepLeader()
	}
	mono := c.opts.Clock.MonoTime()
	c.mu.Lock()
	due := c.file.due(mono)
	c.mu.Unlock()
	c.counters.add(func(n *counts) { n.stepAt = c.opts.Clock.WallTime() })
	if due {
		_ = c.saveState() // saveState logs and counts a failure, and is tried again
	}
}

// stepLeader does the due work of a leader. It needs changeMu.
func (c *Coordinator) stepLeader() {
	c.checkLiveness()
	c.checkCertificates()
	c.advanceKeys()
	if c.planDue() {
		if err := c.rebuildPlan(); err != nil {
			c.log.Error("cannot compute the schedule; the old one stays in use", "err", err)
		}
	}
	c.rebalancePorts()
	c.endAskedFlows()
}

// unfinishedMost returns how many connections may be in a handshake at once: more than the fleet has
// agents, and no more than half of the files that the process may open, so that accepted agents and the
// state keep their share.
func (c *Coordinator) unfinishedMost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := max(unfinishedFloor, 2*len(c.topology.nodes))
	if half := int(min(c.opts.OpenFiles, 1<<30) / 2); half > 0 {
		most = min(most, half)
	}
	return most
}
