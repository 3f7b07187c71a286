package coordinator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// Intervals that are not configurable.
const (
	stepEvery         = 200 * time.Millisecond
	saveEvery         = 2 * time.Second // minimum time between writes of changes
	saveLastSeenEvery = time.Minute     // minimum time between writes of last-seen times alone

	checkCertificatesEvery = time.Second

	traceWithin = 2 * time.Minute // time after which a moved edge without a trace is no longer waited for

	movesPerEdge = 8 // source ports tried for an edge, on average, before moving ends
	movesFloor   = 10_000
	slowestRound = 7 // doublings of the time between rounds that bring nothing
)

// Coordinator holds the state behind the sessions of agents. Its methods may be called from any
// goroutine.
type Coordinator struct {
	opts   Options
	log    *slog.Logger
	paths  *pathStore
	clocks *clockService
	stamp  *agentapi.Stamp

	changeMu sync.Mutex // held while the schedule, the keys or the topology are changed

	mu      sync.Mutex // held briefly; never while planning, writing or sending
	graph   *fabric.Graph
	nodes   map[string]bool       // nodes of the topology
	owners  map[netip.Addr]string // owners of addresses, from topologyOwners
	topoSum string
	agents  map[string]*agent
	plan    *plan
	keys    *keyring // nil if probes are not authenticated
	moves   []schedule.Move
	claims  map[string]claim // by NIC; the map is replaced, never changed
	reports uint64           // number of reports of interfaces so far
	lives   lifeNumbers

	started         time.Duration
	restored        bool // a state file was read at the start
	registryWhole   bool
	dirty           bool // the plan is older than the state of the agents
	dirtySchedule   bool // more than addresses changed
	dirtyFirst      time.Duration
	dirtyLast       time.Duration
	unsaved         bool
	saveFailing     bool // the last write of the state failed
	savedAt         time.Duration
	lastSeenSavedAt time.Duration
	rebalancedAt    time.Duration
	rebalancedFor   uint64        // version of the paths at the last round
	awaited         []fabric.Flow // edges that were moved and are not yet traced
	awaitedSince    time.Duration
	missing         int // edges that links lacked before the last round
	fruitless       int // consecutive rounds that did not lower missing
	reloadOK        bool
	reloadedAt      time.Time

	certificates   Certificates // nil if there is no server
	admission      *admission   // nil if there is no server
	checkedAt      time.Duration
	checkedVersion uint64 // version of the certificates that was checked last

	count counts
}

// counts holds counters, and the values of the last run.
type counts struct {
	sessions     map[string]uint64 // number by result
	runs         map[string]uint64 // number by result
	runSeconds   float64           // duration of the last run
	runAt        time.Time         // wall time of the last successful run
	assignments  uint64
	keysSent     uint64
	traces       map[string]uint64 // number by result: taken, ignored
	clockUpdates uint64
	moves        uint64
	saves        map[string]uint64 // number by result
	stepAt       time.Time
}

// agent is the state of the agent of one node.
type agent struct {
	node             string
	ownConfiguration bool // the agent probes by its own configuration and is never part of the schedule
	present          bool // the node is part of the schedule
	lastSeen         time.Time
	lastMessageAt    time.Duration
	webAddress       string // host:port that the agent advertises; if empty, the agent is not scraped
	webScheme        string // scheme that the agent advertises
	sessionFrom      string // host of its last session, or sourceSocket; empty if it is not known
	webRefused       string // why webAddress is not served as it is; empty if it is
	software         string
	interfaces       []interfaceState // the slice is replaced, never changed
	reported         uint64           // number of the report of the interfaces; 0 means that they are from the state
	version          uint64           // version of its assignment
	life             uint64           // number of its process's life; 0 means that it has none
	hash             [hashSize]byte

	session      *session
	sessionSince time.Duration // start of the session
	takeovers    []time.Duration
	applied      *agentapi.Applied
	silentEdges  int
	silentNames  []string
	stalled      time.Duration
	clockOffset  time.Duration // its wall clock minus the coordinator's, when the heartbeat came in
	applyError   string
}

// New reads the topology and the state, and returns a coordinator. If there is a state, the schedule is
// ready when New returns.
func New(opts Options, log *slog.Logger) (*Coordinator, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	g, sum, err := loadTopology(opts.TopologyFile, log)
	if err != nil {
		return nil, err
	}
	old, err := readState(opts.StateFile)
	if err != nil {
		return nil, err
	}
	wall, mono := opts.Clock.WallTime(), opts.Clock.MonoTime()
	c := &Coordinator{opts: opts, log: log, paths: newPathStore(), clocks: newClockService(opts, g, wall), graph: g, topoSum: sum, nodes: nodesOf(g), owners: topologyOwners(g), agents: map[string]*agent{},
		stamp:   &agentapi.Stamp{Port: uint32(opts.Stamp.Port), SourcePort: uint32(opts.Stamp.SourcePort), Padding: uint32(opts.Stamp.Padding)},
		started: mono, savedAt: mono, lastSeenSavedAt: mono, rebalancedAt: mono, reloadOK: true, reloadedAt: wall, restored: old != nil,
		count: counts{sessions: map[string]uint64{}, runs: map[string]uint64{}, traces: map[string]uint64{}, saves: map[string]uint64{}}}
	for _, k := range opts.Stamp.Classes {
		c.stamp.Classes = append(c.stamp.Classes, &agentapi.Class{Name: k.Name, Dscp: uint32(k.DSCP), Sl: uint32(k.SL)})
		c.opts.Schedule.Classes = append(c.opts.Schedule.Classes, k.Name)
	}
	if r := opts.ClockReference; r != "" && !c.nodes[r] {
		return nil, fmt.Errorf("clock.reference: node %q is not in the topology", r)
	}
	if old != nil {
		c.restoreState(old, wall, mono)
	}
	c.lives = newLifeNumbers(old, wall)
	if opts.Keys {
		c.keys = newKeyring(old, opts.RotateEvery, wall, mono)
	}
	// A state that was read is enough to run on: agents continue with keys that are in the file.
	// Without a state, or with a new key, the first write has to succeed, since no agent may hold a key
	// that a restart would forget.
	if err := c.saveState(); err != nil && (old == nil || opts.Keys && len(old.Keys) == 0) {
		return nil, err
	}
	if c.dirty {
		if err := c.rebuildPlan(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func loadTopology(file string, log *slog.Logger) (*fabric.Graph, string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, "", fmt.Errorf("read the topology: %w", err)
	}
	t, found := fabric.ParseTopology(file, b)
	if err := found.Err(); err != nil {
		return nil, "", err
	}
	for _, f := range found {
		log.Warn("the topology has a problem", "finding", f.String())
	}
	sum := sha256.Sum256(b)
	return fabric.NewGraph(t), hex.EncodeToString(sum[:8]), nil
}

func nodesOf(g *fabric.Graph) map[string]bool {
	out := make(map[string]bool, len(g.Topo.Nodes))
	for i := range g.Topo.Nodes {
		out[g.Topo.Nodes[i].Name] = true
	}
	return out
}

// restoreState restores the agents of a state. Silence counts from now, since no agent could be heard
// while the coordinator did not run.
func (c *Coordinator) restoreState(s *state, wall time.Time, mono time.Duration) {
	for _, a := range s.Agents {
		if !c.nodes[a.Node] {
			c.log.Warn("dropping a node of the state that is not in the topology", "node", a.Node)
			continue
		}
		seen := a.LastSeen
		if seen.After(wall) {
			seen = wall
		}
		n := &agent{node: a.Node, present: a.Present, lastSeen: seen, lastMessageAt: mono, webAddress: a.Web, webScheme: a.Scheme, sessionFrom: a.From, software: a.Software,
			interfaces: a.Interfaces, version: a.Assigned, life: a.Life}
		copy(n.hash[:], a.Hash)
		c.agents[a.Node] = n
		c.checkTarget(n)
		if a.Web != "" && a.From == "" {
			c.restored = false // a state from before targets were checked: targets are served after the agents have connected
		}
		if a.Present {
			c.markDirty(true, mono)
		}
	}
	c.moves, c.claims = s.scheduleMoves(), s.claimsByNIC()
}

// markDirty records that the plan must follow a change. It needs mu, or exclusive access.
func (c *Coordinator) markDirty(schedule bool, mono time.Duration) {
	if !c.dirty {
		c.dirtyFirst = mono
	}
	c.dirty, c.dirtyLast, c.unsaved = true, mono, true
	c.dirtySchedule = c.dirtySchedule || schedule
}

// Run does the due work until ctx ends. Then it writes the state and returns the error of that write.
func (c *Coordinator) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.runClocks(ctx) })
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
	c.checkLiveness()
	c.checkCertificates()
	c.advanceKeys()
	if c.planDue() {
		if err := c.rebuildPlan(); err != nil {
			c.log.Error("cannot compute the schedule; the old one stays in use", "err", err)
		}
	}
	c.rebalancePorts()
	mono := c.opts.Clock.MonoTime()
	c.mu.Lock()
	due := c.unsaved && mono-c.savedAt >= saveEvery || mono-c.lastSeenSavedAt >= saveLastSeenEvery
	c.count.stepAt = c.opts.Clock.WallTime()
	c.mu.Unlock()
	if due {
		_ = c.saveState() // saveState logs and counts a failure, and is tried again
	}
}

// checkLiveness removes nodes that were silent for too long from the schedule, and ends sessions whose
// certificate has expired.
func (c *Coordinator) checkLiveness() {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, mono := c.opts.Clock.WallTime(), c.opts.Clock.MonoTime()
	for _, a := range c.agents {
		if a.present && mono-a.lastMessageAt >= c.opts.AbsentAfter {
			c.log.Info("node is absent and leaves the schedule", "node", a.node, "last_seen", a.lastSeen)
			a.present = false
			c.markDirty(true, mono)
		}
		if s := a.session; s != nil && !s.expires.IsZero() && wall.After(s.expires) {
			s.endWith(errExpired)
		}
	}
	if !c.registryWhole && (c.restored || len(c.agents) == len(c.nodes) || mono-c.started >= c.opts.RegistrySettle) {
		c.registryWhole = true
	}
}

// watchCertificates makes the coordinator end sessions whose certificates are no longer accepted.
func (c *Coordinator) watchCertificates(certificates Certificates, a *admission) {
	version := certificates.Version()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.certificates, c.admission, c.checkedVersion = certificates, a, version
}

// unfinishedMost returns how many connections may be in a handshake at once: more than the fleet has
// agents, and no more than half of the files that the process may open, so that accepted agents and the
// state keep their share.
func (c *Coordinator) unfinishedMost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := max(unfinishedFloor, 2*len(c.nodes))
	if half := int(min(c.opts.OpenFiles, 1<<30) / 2); half > 0 {
		most = min(most, half)
	}
	return most
}

// checkCertificates ends the sessions of clients that would no longer be accepted: their authority was
// removed from its file, or their certificate was revoked.
func (c *Coordinator) checkCertificates() {
	c.mu.Lock()
	certificates, mono := c.certificates, c.opts.Clock.MonoTime()
	due := certificates != nil && mono-c.checkedAt >= checkCertificatesEvery
	c.mu.Unlock()
	if !due {
		return
	}
	version := certificates.Version()
	c.mu.Lock()
	changed := version != c.checkedVersion
	c.checkedAt, c.checkedVersion = mono, version
	var open []*session
	if changed {
		for _, a := range c.agents {
			if a.session != nil && len(a.session.chain) > 0 {
				open = append(open, a.session)
			}
		}
	}
	c.mu.Unlock()
	for _, s := range open {
		if err := certificates.Verify(s.chain); err != nil {
			c.log.Warn("session ended: the certificate is no longer accepted", "node", s.agent.node, "err", err)
			s.endWith(status.Errorf(codes.Unauthenticated, "the certificate of this session is no longer accepted: %v", err))
			c.endSession(s) // further messages of the session are ignored
			c.mu.Lock()
			c.count.sessions[resultRevoked]++
			c.mu.Unlock()
		}
	}
}

// planDue reports whether a new plan is due. Without a state the first plan waits until the fleet has
// gathered.
func (c *Coordinator) planDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dirty {
		return false
	}
	mono, most := c.opts.Clock.MonoTime(), c.opts.SettleMost
	if c.plan == nil {
		joined := 0
		for _, a := range c.agents {
			if a.present || a.ownConfiguration {
				joined++
			}
		}
		if joined == len(c.nodes) {
			return true
		}
		most = max(most, c.opts.RegistrySettle)
	}
	return mono-c.dirtyLast >= c.opts.Settle || mono-c.dirtyFirst >= most
}

// rebuildPlan computes a plan from the current state and hands it out. It needs changeMu.
func (c *Coordinator) rebuildPlan() error {
	c.mu.Lock()
	in := planInput{graph: c.graph, options: c.opts.Schedule, present: map[string]bool{}, reported: make(map[string]interfaceReport, len(c.agents)),
		claims: c.claims, prefixes: c.opts.AddressPrefixes}
	in.options.Absent = map[string]bool{}
	in.options.Moves = slices.Clone(c.moves)
	for n := range c.nodes {
		a := c.agents[n]
		if a != nil && a.present {
			in.present[n] = true
		} else {
			in.options.Absent[n] = true
		}
		if a != nil {
			in.reported[n] = interfaceReport{a.interfaces, a.reported}
		}
	}
	old, anew := c.plan, c.dirtySchedule
	c.dirty, c.dirtySchedule = false, false
	c.mu.Unlock()

	began := c.opts.Clock.MonoTime()
	var p *plan
	var err error
	s := (*schedule.Schedule)(nil)
	if old != nil && !anew {
		s = old.sched
	} else if s, err = c.opts.Planner.Make(in.graph, in.options); err != nil {
		err = fmt.Errorf("compute the schedule: %w", err)
	}
	if err == nil {
		p, err = newPlan(in, s, c.stamp, c.opts.Keys, uint64(c.opts.Changeover))
	}
	took := c.opts.Clock.MonoTime() - began
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.count.runs["failed"]++
		c.markDirty(anew, began+c.opts.SettleMost-c.opts.Settle) // tries again, after a delay
		return err
	}
	for _, f := range p.conflicts {
		if old == nil || !slices.Contains(old.conflicts, f) {
			c.log.Warn("a reported address is not used", "reason", f.reason, "conflict", f.text)
		}
	}
	if anew || old == nil {
		for _, f := range s.Findings {
			c.log.Warn("the schedule has a shortfall", "finding", f)
		}
	}
	c.paths.setPlan(p)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.plan = p
	c.unsaved = c.unsaved || !maps.Equal(c.claims, p.claims)
	c.claims = p.claims
	c.count.runs["done"]++
	c.count.runSeconds, c.count.runAt = took.Seconds(), c.opts.Clock.WallTime()
	changed := 0
	for node, h := range p.hash {
		a := c.agents[node]
		if a == nil {
			continue
		}
		if a.hash != h || a.version == 0 {
			a.version++
			a.hash = h
			c.unsaved = true
			changed++
		}
		a.queueUpdates(c)
	}
	c.log.Info("schedule computed", "edges", len(s.Edges), "nodes", len(p.hash), "changed", changed, "hash", fmt.Sprintf("%016x", scheduleHash(s)), "seconds", took.Seconds())
	return nil
}

// queueUpdates marks what the agent's session has to send. It needs mu.
func (a *agent) queueUpdates(c *Coordinator) {
	s := a.session
	if s == nil || c.plan == nil || a.ownConfiguration {
		return
	}
	if _, planned := c.plan.hash[a.node]; !planned {
		return
	}
	if s.sent != a.hash {
		s.wantAssignment, s.wantKeys, s.wantLives = true, c.keys != nil, true
	}
	if !s.pathsRequested && !c.paths.hasTraces(a.node) {
		s.wantPaths = true
	}
	s.pathsRequested = true
	s.wakeSender()
}

// advanceKeys continues a rotation, or begins one that is due. While the state cannot be written it
// does neither, and waits until a regular write succeeds.
func (c *Coordinator) advanceKeys() {
	c.mu.Lock()
	if c.keys == nil || c.saveFailing {
		c.mu.Unlock()
		return
	}
	wall, mono := c.opts.Clock.WallTime(), c.opts.Clock.MonoTime()
	var holders []keyHolder
	for _, a := range c.agents {
		if a.ownConfiguration {
			continue
		}
		planned := false // peers may still send to this node
		if c.plan != nil {
			_, planned = c.plan.hash[a.node]
		}
		if a.session != nil || a.present || planned {
			holders = append(holders, keyHolder{a.session != nil, a.applied.GetKeyIds()})
		}
	}
	next := c.keys.advanceRotation(holders, c.opts.Heartbeat, c.opts.KeysGrace, c.opts.RotateEvery, wall, mono)
	if next == nil && c.keys.rotationDue != 0 && mono >= c.keys.rotationDue && len(c.keys.epochs) < maxEpochs {
		next, _ = c.keys.withNew(wall, mono)
	}
	c.mu.Unlock()
	if next == nil {
		return
	}
	if err := c.setKeys(next); err != nil {
		c.log.Error("cannot rotate the keys; the old ones stay in use", "err", err)
	}
}

// RotateKeys begins a rotation. It returns an error if there are no keys, or if a rotation is in
// progress.
func (c *Coordinator) RotateKeys() error {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	c.mu.Lock()
	k := c.keys
	c.mu.Unlock()
	if k == nil {
		return errors.New("probes are not authenticated: there are no keys to rotate")
	}
	next, err := k.withNew(c.opts.Clock.WallTime(), c.opts.Clock.MonoTime())
	if err != nil {
		return err
	}
	return c.setKeys(next)
}

// setKeys writes the keys to the state before any agent gets them, so that no agent holds a key that a
// crash could make the coordinator forget. It needs changeMu.
func (c *Coordinator) setKeys(next *keyring) error {
	if err := c.saveWith(next); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = next
	c.log.Info("keys changed", "sending", next.epochs[0].ID, "held", len(next.epochs))
	for _, a := range c.agents {
		if a.session != nil && !a.ownConfiguration {
			a.session.wantKeys = true
			a.session.wakeSender()
		}
	}
	return nil
}

// rebalancePorts moves source ports once all edges that were moved before are traced.
func (c *Coordinator) rebalancePorts() {
	mono := c.opts.Clock.MonoTime()
	c.mu.Lock()
	p, moves, awaited := c.plan, slices.Clone(c.moves), c.awaited
	ready := c.opts.LinkEdges > 0 && c.opts.Planner.Rebalance != nil && p != nil && !c.dirty &&
		mono-c.rebalancedAt >= c.opts.RebalanceEvery<<min(c.fruitless, slowestRound)
	late := mono-c.awaitedSince >= traceWithin
	before := c.rebalancedFor
	c.mu.Unlock()
	if !ready {
		return
	}
	if !late {
		for _, e := range awaited {
			if !c.paths.hasBothTraces(e) {
				return
			}
		}
	}
	version, bound := c.paths.tracedPaths()
	if version == before || len(bound) == 0 {
		return
	}
	// The share of edges without a path limits how reliable the counts are.
	if len(bound)*10 < len(p.sched.Edges)*2*9 {
		return
	}
	limit := min(max(20, len(p.sched.Edges)/100), max(movesFloor, movesPerEdge*len(p.sched.Edges))-len(moves))
	if limit <= 0 {
		return
	}
	missing := 0
	links, _, _ := c.paths.linkCounts()
	for _, l := range links {
		missing += max(0, c.opts.LinkEdges-l.Edges)
	}
	next := c.opts.Planner.Rebalance(p.graph, p.sched, bound, moves, c.opts.LinkEdges, limit)
	if len(next) > limit {
		next = next[:limit]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rebalancedAt, c.rebalancedFor = mono, version
	if c.missing > 0 && missing >= c.missing {
		c.fruitless++
	} else {
		c.fruitless = 0
	}
	c.missing = missing
	if len(next) == 0 {
		return
	}
	c.log.Info("source ports moved", "edges", len(next))
	c.moves = append(moves, next...)
	c.count.moves += uint64(len(next))
	c.awaited, c.awaitedSince = nil, mono
	for _, m := range next {
		c.awaited = append(c.awaited, fabric.Flow{Src: m.Src, Dst: m.Dst, Number: m.To})
	}
	c.markDirty(true, mono-c.opts.Settle) // several moves count as one change that has already settled
}

// Reload reads the topology file again. If the file cannot be used or scheduled, Reload returns an
// error and the old topology stays in use.
func (c *Coordinator) Reload() error {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	g, sum, err := loadTopology(c.opts.TopologyFile, c.log)
	if err == nil && sum != c.topoSum {
		err = c.replaceTopology(g, sum)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reloadOK = err == nil
	if err != nil {
		return fmt.Errorf("the old topology stays in use: %w", err)
	}
	c.reloadedAt = c.opts.Clock.WallTime()
	return nil
}

// replaceTopology puts another topology to use. It needs changeMu.
func (c *Coordinator) replaceTopology(g *fabric.Graph, sum string) error {
	c.mu.Lock()
	graph, nodes, owners, old := c.graph, c.nodes, c.owners, c.topoSum
	c.graph, c.nodes, c.owners, c.topoSum = g, nodesOf(g), topologyOwners(g), sum
	gone := map[string]*agent{}
	for n, a := range c.agents {
		if !c.nodes[n] {
			gone[n] = a
			delete(c.agents, n)
		} else if a.session != nil {
			a.session.pathsRequested = false
		}
	}
	c.markDirty(true, c.opts.Clock.MonoTime())
	c.mu.Unlock()

	err := c.rebuildPlan()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.graph, c.nodes, c.owners, c.topoSum = graph, nodes, owners, old
		maps.Copy(c.agents, gone)
		return err
	}
	for _, a := range gone {
		if a.session != nil {
			a.session.endWith(errNotInTopology)
		}
	}
	for _, a := range c.agents {
		c.checkTarget(a)
	}
	c.clocks.replaceTopology(g)
	c.moves = slices.DeleteFunc(c.moves, func(m schedule.Move) bool { return g.NIC(m.Src) == nil || g.NIC(m.Dst) == nil })
	c.missing, c.fruitless = 0, 0
	return nil
}

// saveState writes the state. It needs changeMu, or exclusive access.
func (c *Coordinator) saveState() error { return c.saveWith(c.keys) }

func (c *Coordinator) saveWith(keys *keyring) error {
	c.mu.Lock()
	mono := c.opts.Clock.MonoTime()
	s := &state{Version: stateVersion, Written: c.opts.Clock.WallTime(), Lives: c.lives.reserved}
	if keys != nil {
		s.Keys, s.KeysAt = keys.epochs, keys.rotated
	}
	for _, m := range c.moves {
		s.Moves = append(s.Moves, moveState(m))
	}
	for _, n := range slices.Sorted(maps.Keys(c.claims)) {
		k := c.claims[n]
		s.Claims = append(s.Claims, claimState{NIC: n, Address: k.address, AddressOrder: k.addressOrder, GID: k.gid, GIDOrder: k.gidOrder})
	}
	for _, n := range slices.Sorted(maps.Keys(c.agents)) {
		a := c.agents[n]
		as := agentState{Node: n, Present: a.present, LastSeen: a.lastSeen, Web: a.webAddress, Scheme: a.webScheme, From: a.sessionFrom, Software: a.software, Interfaces: a.interfaces, Assigned: a.version, Life: a.life}
		if a.version != 0 {
			as.Hash = slices.Clone(a.hash[:])
		}
		s.Agents = append(s.Agents, as)
	}
	c.unsaved, c.savedAt, c.lastSeenSavedAt = false, mono, mono
	c.mu.Unlock()
	err := writeState(c.opts.StateFile, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if !c.saveFailing {
			c.log.Error("cannot write the state: until a later write succeeds, a restart forgets what changes, and no key rotates", "file", c.opts.StateFile, "err", err)
		}
		c.unsaved, c.saveFailing = true, true
		c.count.saves["failed"]++
		return err
	}
	if c.saveFailing {
		c.log.Info("the state is written again", "file", c.opts.StateFile)
	}
	c.saveFailing = false
	c.count.saves["done"]++
	return nil
}
