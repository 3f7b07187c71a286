package probe

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// A trace sends hop-limited copies of a flow's own packets from the flow's own socket. They have the same addresses,
// ports, DSCP and length, so every switch hashes them like the flow's packets. The rules are:
//
//  1. The packets carry session identifiers of their own and never enter the accounts of loss and delay.
//  2. All hop limits up to the known length of the path are probed at once. A hop limit gets traceAttempts packets, or
//     a single one if an earlier trace of the flow had an answer. It gets as many more if all were silent, or if the
//     answer differs from the earlier one.
//  3. A probe's path ends where the reflector answers. The end of a reply's path, or of a path by RDMA (see copies.go),
//     cannot be observed: the search ends maxSilent hop limits after the last switch that answered. For a probe it is
//     maxSilentProbe.
//  4. A silent hop before the last one that answered stays in the path, without address.
//  5. Two addresses at one hop limit within one trace are per-packet balancing, and the path is unknown. Silence does
//     not count as a second address.
//  6. A trace that fails leaves the last good path in place, and the path is stale then. Per-packet balancing is no failure: the
//     last good path is not the path any more.
//  7. Packets are sent within the budgets of the switches that may have to answer them (see budgets). A hop that was
//     not probed for lack of budget, or whose switch is rate limited, does not count as silent. A path that was known
//     and that matches the answers stays as it was, and any other path is unknown. A note states this, and the flow is
//     traced again.
//  8. The first switch is probed once in shareFor for all flows of a NIC, as soon as shareFlows flows found the same
//     one. Flows that are traced in the meantime wait for that answer. If a flow finds another switch, sharing ends,
//     and paths that used the shared one since it was last confirmed are stale.
const (
	traceAttempts = 2
	traceTimeout  = 300 * time.Millisecond // after the last packet of a round
	maxHops       = 16
	hopsAtOnce    = 4 // hop limits that are probed at once while the length is not known
	maxSilent     = 2

	maxSilentProbe = 4

	shareFor   = time.Second
	shareFlows = 8
)

// ICMP types: RFC 792, and RFC 4443 for IPv6.
const (
	icmpUnreachable   = 3
	icmpTimeExceeded  = 11
	icmpTooBigCode    = 4 // of icmpUnreachable
	icmp6Unreachable  = 1
	icmp6TooBig       = 2
	icmp6TimeExceeded = 3
)

func isTimeExceeded(r *unix.Report) bool {
	return r.Kind == unix.ReportICMP && r.Type == icmpTimeExceeded || r.Kind == unix.ReportICMP6 && r.Type == icmp6TimeExceeded
}

func isUnreachable(r *unix.Report) bool {
	return r.Kind == unix.ReportICMP && r.Type == icmpUnreachable || r.Kind == unix.ReportICMP6 && r.Type == icmp6Unreachable
}

func isTooBig(r *unix.Report) bool {
	return r.Kind == unix.ReportICMP && r.Type == icmpUnreachable && r.Code == icmpTooBigCode || r.Kind == unix.ReportICMP6 && r.Type == icmp6TooBig
}

// Hop represents a switch of a traced path.
type Hop struct {
	TTL     int        // hop limit that it answered to
	Address netip.Addr // invalid: silent
	RTT     time.Duration
	// Incoming is the interface by which the packet arrived, and Labels are its MPLS labels, if the switch reports them
	// (RFC 5837, RFC 4950).
	Incoming *fabric.Interface
	Labels   []fabric.Label

	shared bool // another flow's packet found it
}

// TracedPath represents what is known of the path of one edge.
type TracedPath struct {
	Edge     fabric.Flow
	State    fabric.PathState
	TracedAt time.Time
	Reached  bool  // the far end answered; never set for the path of a reply, or for one by RDMA
	Balanced bool  // several switches answered at one hop limit, so the flow has more than one path
	Hops     []Hop // switches only; the far end is one hop limit further
	Notes    []string
	Carrier  netip.Addr // lists the path, which was chosen; invalid: the path was traced. Hops are those of its last trace
	Refused  *fabric.Refusal
	// HopProbes counts the hop-limited probes of the flow.
	HopProbes []fabric.HopCount

	limited bool      // a hop is missing because of a limit
	mute    bool      // the far end does not answer packets of the trace
	hopsAt  time.Time // time of the last trace of a chosen path
}

// UnknownEdgeError is the error for a flow that this node cannot trace.
type UnknownEdgeError struct{ Edge string }

func (e UnknownEdgeError) Error() string {
	return fmt.Sprintf("edge %q does not belong to this node: want a flow that it probes, or one that it answers with /r", e.Edge)
}

// tracer traces the node's flows.
type tracer struct {
	nics func() []*nic
	log  *slog.Logger
	seek func(context.Context, traceFlow) (TracedPath, error) // finds the path of one flow
	// seekTagged returns which hops of a flow's path answer tagged packets.
	seekTagged func(ctx context.Context, f traceFlow, plain *TracedPath) ([]bool, error)
	// simulated is set if paths are known without packets.
	simulated bool

	mu           sync.Mutex
	pace         bucket
	budgets      *budgets
	first        map[string]*firstHop          // by NIC
	lengths      map[nicDestination]int        // hop limit of a destination's answer
	tupleLengths map[nicDestination]int        // the same of valid paths of tuples, whose end cannot be observed
	tupleTurns   chan struct{}                 // has an element for each tuple that may be traced at the same time
	slots        chan struct{}                 // has an element for each flow that may be traced at the same time
	running      map[fabric.Flow]chan struct{} // of flows that are being traced; closed at the end
	version      uint64
	paths        map[fabric.Flow]*TracedPath
	sharedTraces map[tuple]*sharedTrace // of flows by RDMA
	moved        map[fabric.Flow]bool   // flows whose paths may have changed
	sent         uint64
	answers      uint64
}

func newTracer(cfg TraceConfig, nics func() []*nic, log *slog.Logger) *tracer {
	t := &tracer{nics: nics, log: log, pace: newPaceBucket(cfg), budgets: newBudgets(cfg.PacketsPerSwitch), first: map[string]*firstHop{},
		lengths: map[nicDestination]int{}, tupleLengths: map[nicDestination]int{}, tupleTurns: make(chan struct{}, tupleTurns(cfg)), slots: make(chan struct{}, cfg.Concurrency), paths: map[fabric.Flow]*TracedPath{}, sharedTraces: map[tuple]*sharedTrace{}, running: map[fabric.Flow]chan struct{}{}}
	t.seek, t.seekTagged = t.findPath, t.probeTagged
	return t
}

func newPaceBucket(cfg TraceConfig) bucket {
	return newBucket(float64(cfg.PacketsPerSecond), max(1, float64(cfg.PacketsPerSecond)/100), time.Now().UnixNano())
}

// nicDestination identifies a destination as seen from a NIC.
type nicDestination struct {
	nic string
	dst netip.Addr
}

// firstHop represents what the flows of a NIC found at hop limit 1.
type firstHop struct {
	hop        Hop
	at         time.Time
	flows      map[fabric.Flow]bool // that found it, up to shareFlows
	searchedAt time.Time            // time at which a flow was last sent to find it again
}

// applyConfig changes the pace, and forgets the paths of edges that no longer exist.
func (t *tracer) applyConfig(cfg TraceConfig, node *Config) {
	known := make(map[fabric.Flow]bool, len(node.Edges)+len(node.Answers))
	for i := range node.Edges {
		known[node.Edges[i].ID()] = true
	}
	for i := range node.Answers {
		id := node.Answers[i].ID()
		id.Reply = true
		known[id] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pace = newPaceBucket(cfg)
	t.budgets.setFullRate(cfg.PacketsPerSwitch)
	if cap(t.slots) != cfg.Concurrency {
		t.slots = make(chan struct{}, cfg.Concurrency)
		t.tupleTurns = make(chan struct{}, tupleTurns(cfg))
	}
	for e := range t.paths {
		if !known[e] {
			delete(t.paths, e)
			t.version++
		}
	}
}

// Intervals of the search for flows to trace. A flow whose trace failed is tried again after retraceMin, and then after
// twice the time at each further failure. A valid path is traced again when it is between three quarters and all of
// retraceEvery old, so that the flows of a node do not come together, or retraceMoved if the flow moved.
const (
	traceCheckEvery = 200 * time.Millisecond
	retraceMin      = 10 * time.Second
	retraceMax      = 5 * time.Minute
	retraceEvery    = 80 * time.Second
	retraceMoved    = 3 * time.Second
)

// attempt represents the automatic tracing of one flow.
type attempt struct {
	next  time.Time
	delay time.Duration
}

// setMoved sets the flows whose paths may have changed, since what they show has.
func (t *tracer) setMoved(flows []fabric.Flow) {
	moved := make(map[fabric.Flow]bool, len(flows))
	for _, e := range flows {
		moved[e] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moved = moved
}

// isOld reports whether the valid path of a flow is to be traced again at an age.
func isOld(e fabric.Flow, age time.Duration, moved bool) bool {
	switch {
	case moved:
		return age >= retraceMoved
	case age < retraceEvery*3/4:
		return false
	}
	h := fnv.New32a()
	h.Write([]byte(e.String()))
	const parts = 1000
	return age >= retraceEvery*3/4+time.Duration(h.Sum32()%parts)*(retraceEvery/4)/parts
}

// run traces every flow as soon as it has answers, again as long as its path is not valid, and from time to time after that.
func (t *tracer) run(ctx context.Context) {
	look := time.NewTicker(traceCheckEvery)
	defer look.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	attempts := map[fabric.Flow]*attempt{}
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return
		case now = <-look.C:
		}
		for _, n := range t.nics() {
			for _, f := range n.traceableFlows() {
				if chosen := t.keepsChosen(f, now); !f.answered || !t.wantsTrace(attempts, f.edge, now) || chosen && f.refused != nil {
					continue
				}
				wg.Go(func() {
					if _, err := t.traceAndKeep(ctx, f); err != nil && ctx.Err() == nil && !errors.Is(err, errGone) {
						t.log.Warn("cannot trace a flow", "edge", f.edge.String(), "err", err)
					}
				})
			}
		}
	}
}

// wantsTrace reports whether an edge is to be traced now.
func (t *tracer) wantsTrace(attempts map[fabric.Flow]*attempt, e fabric.Flow, now time.Time) bool {
	t.mu.Lock()
	p, moved := t.paths[e], t.moved[e]
	if p != nil && p.Carrier.IsValid() {
		p = p.asTraced()
	}
	t.mu.Unlock()
	a := attempts[e]
	switch {
	case p != nil && p.State == fabric.PathValid && now.Sub(p.TracedAt) < retraceMoved:
		delete(attempts, e)
		return false
	case p != nil && p.State == fabric.PathValid:
		if a != nil && now.Before(a.next) || !isOld(e, now.Sub(p.TracedAt), moved) {
			return false
		}
		attempts[e] = &attempt{now.Add(retraceMin), retraceMin}
		return true
	case a == nil:
		attempts[e] = &attempt{now.Add(retraceMin), retraceMin}
		// A path that became stale was traced a moment ago.
		return p == nil
	case now.Before(a.next):
		return false
	}
	a.delay = min(2*a.delay, retraceMax)
	a.next = now.Add(a.delay)
	return true
}

// traceFlow represents a flow that can be traced, and the destination of its packets.
type traceFlow struct {
	nic      *nic
	edge     fabric.Flow
	sock     *socket
	dst      netip.AddrPort
	dscp     uint8
	peer     *peer
	hops     []int      // hop limits of its hop-limited probes
	answered bool       // packets of it were answered recently
	rdma     bool       // traced by copies
	copies   *copyPlan  // parameters of the copies; nil while they are not known
	tuple    *Tuple     // its copies are not those of a flow; nil otherwise
	signals  bool       // its replies bring in-band signals back
	tagged   bool       // packets of the trace carry an in-band signal
	carrier  netip.Addr // by which the flow's packets are sent; invalid: switches choose
	refused  *fabric.Refusal
	payload  int // UDP payload of padded packets, octets; 0: that of the flow's own packets
}

// isMute reports whether the far end does not answer packets of a trace.
func (f *traceFlow) isMute() bool { return f.edge.Reply || f.rdma }

// sendCopy sends one hop-limited copy of the flow's packet, and returns its key.
func (f *traceFlow) sendCopy(ttl uint8, answer chan traceAnswer) (key uint32, err error) {
	if f.rdma {
		return f.copies.sendCopy(ttl, answer)
	}
	return f.nic.sendTrace(*f, ttl, answer)
}

// forgetKeys stops waiting for the answers with these keys.
func (f *traceFlow) forgetKeys(keys []uint32) {
	if f.rdma {
		f.copies.copier.forgetCopies(keys)
		return
	}
	f.nic.forgetTraces(keys)
}

// traceableFlows lists the NIC's flows: its probes, and the replies that it sends.
func (n *nic) traceableFlows() []traceFlow {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]traceFlow, 0, len(n.sender.edges)+len(n.peers))
	now := n.wire.monoTime()
	// The last answer of a slow edge may be as old as its cadence.
	lately := func(at int64, cadence time.Duration) bool {
		return at > 0 && now-at < int64(n.node.ReplyTimeout+cadence)
	}
	for _, e := range n.sender.edges {
		out = append(out, traceFlow{nic: n, edge: e.id, sock: e.sock, dst: e.target, dscp: e.dscp, peer: e.peer, hops: e.cfg.Hops,
			answered: lately(e.lastAcked, e.cfg.Cadence), rdma: e.peer.rdma, signals: e.signals != nil,
			carrier: n.ports.choosesPath(e.cfg.Carrier), refused: n.refusalOf(e.cfg.Carrier, now)})
	}
	for _, p := range n.peers {
		for f, a := range p.answers {
			id := a.cfg.ID()
			id.Reply = true
			signals := n.node.Stamp.ClassOf(f).Name == fabric.ClassCSIG
			out = append(out, traceFlow{nic: n, edge: id, signals: signals, sock: n.ports.reflectorFor(p), dst: netip.AddrPortFrom(p.remoteAddr(), n.node.Stamp.SourcePort+uint16(f)),
				dscp: n.node.Stamp.ClassOf(f).DSCP, peer: p, answered: lately(a.arrived, a.cfg.Cadence), rdma: p.rdma,
				carrier: n.ports.choosesPath(a.cfg.Carrier), refused: n.refusalOf(a.cfg.Carrier, now)})
		}
	}
	return out
}

// RetraceMoved sets the flows whose paths may have changed. They are traced every few seconds, as far as the limits of
// traces allow, until the next call leaves them out.
func (e *Engine) RetraceMoved(flows []fabric.Flow) { e.tracer.setMoved(flows) }

// namedFlows returns the flows of edges in the same order. An edge that the node does not have, as after a change of the schedule, has
// a flow without a NIC. The error is an UnknownEdgeError if the node has none of them.
func (e *Engine) namedFlows(edges []fabric.Flow) ([]traceFlow, error) {
	known := map[fabric.Flow]traceFlow{}
	for _, n := range e.allNICs() {
		for _, f := range n.traceableFlows() {
			known[f.edge] = f
		}
	}
	flows := make([]traceFlow, len(edges))
	found := false
	for i, id := range edges {
		if f, ok := known[id]; ok {
			flows[i], found = f, true
		}
	}
	if !found && len(edges) > 0 {
		return nil, UnknownEdgeError{edges[0].String()}
	}
	return flows, nil
}

// TraceFlows traces the named edges now and returns their paths in the same order, without those of edges that the node does not
// have. The error is an UnknownEdgeError if it has none of them. errors.Is holds for ErrClosed.
func (e *Engine) TraceFlows(ctx context.Context, edges []fabric.Flow) ([]TracedPath, error) {
	ctx, leave, err := e.holdOpen(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	flows, err := e.namedFlows(edges)
	if err != nil {
		return nil, err
	}
	flows = slices.DeleteFunc(flows, func(f traceFlow) bool { return f.nic == nil })
	paths := make([]TracedPath, len(flows))
	errs := make([]error, len(flows))
	var wg sync.WaitGroup
	for i, f := range flows {
		wg.Go(func() { paths[i], errs[i] = e.tracer.traceAndKeep(ctx, f) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// TracedPaths returns what is known of all paths, and its version, which grows with every change.
func (e *Engine) TracedPaths() (version uint64, paths []TracedPath) {
	version, paths = e.tracer.knownPaths()
	if counts := e.hops.countsByFlow(); counts != nil {
		for i := range paths {
			paths[i].HopProbes = counts[paths[i].Edge]
		}
	}
	return version, paths
}

// TraceStats returns the numbers of trace packets that were sent and answered.
func (e *Engine) TraceStats() (sent, answered uint64) {
	e.tracer.mu.Lock()
	defer e.tracer.mu.Unlock()
	return e.tracer.sent, e.tracer.answers
}

func (t *tracer) knownPaths() (uint64, []TracedPath) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]TracedPath, 0, len(t.paths))
	for _, p := range t.paths {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b TracedPath) int {
		if c := compareStrings(a.Edge.Src, b.Edge.Src); c != 0 {
			return c
		}
		return compareStrings(a.Edge.String(), b.Edge.String())
	})
	return t.version, out
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// traceAndKeep traces one flow and stores the path that it finds.
func (t *tracer) traceAndKeep(ctx context.Context, f traceFlow) (TracedPath, error) {
	if f.carrier.IsValid() {
		return t.traceChosen(ctx, f)
	}
	seek := t.withSlot
	if f.rdma {
		seek = t.traceCopies
	}
	p, err := seek(ctx, f)
	if err != nil {
		return TracedPath{}, fmt.Errorf("trace %s: %w", f.edge, err)
	}
	return t.storePath(p), nil
}

// keepsChosen stores the path of a flow if it was chosen, and forgets the chosen path of one whose path is not any more. It
// reports whether it was chosen.
func (t *tracer) keepsChosen(f traceFlow, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.paths[f.edge]
	if !f.carrier.IsValid() {
		if old != nil && old.Carrier.IsValid() {
			delete(t.paths, f.edge)
			t.version++
		}
		return false
	}
	changed := old == nil || old.Carrier != f.carrier || (old.Refused == nil) != (f.refused == nil) ||
		f.refused != nil && (old.Refused.From != f.refused.From || old.Refused.SID != f.refused.SID)
	if changed {
		t.version++
	}
	if changed || f.refused != nil || now.Sub(old.TracedAt) >= traceCheckEvery {
		p := &TracedPath{Edge: f.edge, State: fabric.PathValid, TracedAt: now, Reached: true, Carrier: f.carrier, Refused: f.refused}
		if old != nil && old.Carrier == f.carrier {
			p.Hops, p.Notes, p.Balanced, p.hopsAt = old.Hops, old.Notes, old.Balanced, old.hopsAt
		}
		t.paths[f.edge] = p
	}
	return true
}

// beginTrace waits until no other trace of the flow runs, and returns the function that ends this one. Two at the same
// time would take each other's answers where switches quote too little of a packet to identify it.
func (t *tracer) beginTrace(ctx context.Context, flow fabric.Flow) (end func(), err error) {
	for {
		t.mu.Lock()
		other := t.running[flow]
		if other == nil {
			done := make(chan struct{})
			t.running[flow] = done
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.running, flow)
				t.mu.Unlock()
				close(done)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// withSlot traces one flow when a slot is free.
func (t *tracer) withSlot(ctx context.Context, f traceFlow) (p TracedPath, err error) {
	err = t.inSlot(ctx, f.edge, func() (err error) {
		p, err = t.seek(ctx, f)
		return err
	})
	return p, err
}

// inSlot calls send, which sends packets of the traces of a flow, when a slot is free. The slots limit the flows that are traced at
// the same time.
func (t *tracer) inSlot(ctx context.Context, flow fabric.Flow, send func() error) error {
	end, err := t.beginTrace(ctx, flow)
	if err != nil {
		return err
	}
	defer end()
	t.mu.Lock()
	slots := t.slots
	t.mu.Unlock()
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return send()
}

// storePath stores a traced path. If the path could not be found, the last good one stays in place as stale.
func (t *tracer) storePath(p TracedPath) TracedPath {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.paths[p.Edge]
	switch {
	case old != nil && p.limited && confirmsPath(p, old):
		kept := *old
		kept.Notes = p.Notes
		p = kept
	case p.Balanced, p.limited && (p.Reached || p.mute && (old == nil || len(p.Hops) >= len(old.Hops))):
		// The answers are new information, although some are missing, or of several ways.
	case old != nil:
		shorter := p.mute && !p.Reached && len(p.Hops) < len(old.Hops) && slices.EqualFunc(p.Hops, old.Hops[:len(p.Hops)], sameHop)
		if old.State != fabric.PathUnknown && (p.State == fabric.PathUnknown || shorter) {
			note := fmt.Sprintf("traced in vain at %s: %d hops answered", p.TracedAt.UTC().Format(time.RFC3339), answeringHops(p.Hops))
			kept := *old
			kept.State = fabric.PathStale
			kept.Notes = append([]string{note}, p.Notes...)
			p = kept
		}
	}
	if old == nil || old.State != p.State || !slices.EqualFunc(old.Hops, p.Hops, sameHop) {
		t.version++
	}
	t.paths[p.Edge] = &p
	return p
}

// confirmsPath reports whether the answers match the old path.
func confirmsPath(p TracedPath, old *TracedPath) bool {
	return old.State != fabric.PathUnknown && !p.Balanced && p.Reached == old.Reached && len(p.Hops) == len(old.Hops) &&
		slices.EqualFunc(p.Hops, old.Hops, func(a, b Hop) bool { return !a.Address.IsValid() || sameHop(a, b) })
}

func sameHop(a, b Hop) bool { return a.TTL == b.TTL && a.Address == b.Address }

func answeringHops(hops []Hop) (n int) {
	for _, h := range hops {
		if h.Address.IsValid() {
			n++
		}
	}
	return n
}

// errGone ends the trace of a flow that the configuration no longer has.
var errGone = errors.New("the flow is gone")

// sendTrace sends one hop-limited copy of a flow's packet.
func (n *nic) sendTrace(f traceFlow, ttl uint8, answer chan traceAnswer) (key uint32, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f.sock == nil || f.sock.closed {
		return 0, errGone
	}
	g, err := n.out.beginPacket(f.sock, f.carrier)
	if err != nil {
		return 0, err
	}
	key = n.traces.nextKey(f.tagged)
	user := n.wire.nodeNow()
	ssid := n.ssid | traceSSID
	if f.edge.Reply {
		ssid |= traceReplySSID
	}
	// A reply's copy has the layout of a probe up to the SSID, and the length of a reply.
	size := n.putRequest(g.payload, key, user, ssid, 0, f.dscp, f.signals, f.peer.keys.sendKey())
	if f.payload > 0 {
		size = padRequest(g.payload, size, f.payload)
	}
	id := g.commitLimited(size, f.dst, f.dscp<<2|ect0, ttl)
	n.out.registerSent(sentRef{id: id, wants: n.ports.txStampKinds(f.sock), seq: key, user: user})
	n.traces.awaitAnswer(&traceProbe{key: key, sock: f.sock, dst: f.dst, carried: g.via != f.sock, authentic: f.peer.keys.sendKey() != nil, long: f.payload > 0, sent: user, answer: answer})
	if err := n.out.flushBatch(); err != nil {
		return 0, err
	}
	return key, nil
}

// forgetTraces stops waiting for trace packets.
func (n *nic) forgetTraces(keys []uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range keys {
		delete(n.traces.awaited, k)
	}
}
