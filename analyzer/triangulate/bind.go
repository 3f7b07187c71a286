package triangulate

import (
	"runtime"
	"slices"
	"sync"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// maxCandidatePaths bounds the candidate paths of one flow, so that a hostile or huge
// set costs no more than a large one.
const maxCandidatePaths = 256

// maxStructural is the number of shortest paths up to which a flow without path or
// candidates is taken to go by one of them. With more it speaks for its ends alone.
const maxStructural = 64

// component is the number of a directed link or of a switch in an Engine.
type component = int32

// Phase is a part of the work of a run.
type Phase string

// Phases of a run, in their order.
const (
	Binding   Phase = "binding"   // flows to the places on their paths
	Inference Phase = "inference" // the search for elements
)

// Engine is one fabric with its places numbered. It may be kept as long as the graph
// is; one Run at a time. It remembers the paths of the run before by the slices that
// hold them: these are not to be changed, as no path is.
type Engine struct {
	// EnterPhase is called at the beginning of each phase of a run. It may be nil.
	EnterPhase func(Phase)

	g        *fabric.Graph
	switches map[string]*swIndex
	nics     map[string]component // the direction that leaves the NIC
	names    []string             // of switches, by place - len(directions of the topology)
	ndirs    int

	dirs     []fabric.Direction // of the topology: in pairs, a direction and its reverse
	isAccess []bool             // of the directions of the topology

	mu        sync.Mutex
	unknown   []fabric.Direction // that the topology lacks
	unknownAt map[fabric.Direction]component
	pairs     map[[2]string]boundPaths // structural candidates by the leaves at both ends
	mixtures  map[uint64]boundPaths    // sets of paths that sprayed packets take, of this run
	sprayed   map[[2]string]boundPaths // the same of all shortest paths, by the leaves at both ends

	previousWalks, spareWalks []walk // in the run before, and of the one before that
	flows                     []flow // of the run before: memory for the next
}

// walk is the path that a flow took, by where its hops are kept, and what it crosses.
type walk struct {
	edge       fabric.Flow
	hops       *fabric.Hop
	n          int
	ways       *fabric.Path // the first of several, if its packets take all of them
	weights    *float64     // of these, unless all are equal
	components []component
	linkCount  int32 // directed links
	set        *paths
	key        uint64 // of the set
}

type swIndex struct {
	at    component
	ports map[string]component // the direction that leaves the port
}

// NewEngine numbers the places of a fabric.
func NewEngine(g *fabric.Graph) *Engine {
	links := g.Topo.Links
	e := &Engine{g: g, switches: make(map[string]*swIndex, len(g.Topo.Switches)), nics: map[string]component{},
		ndirs: 2 * len(links), unknownAt: map[fabric.Direction]component{}, pairs: map[[2]string]boundPaths{},
		sprayed: map[[2]string]boundPaths{}}
	for i := range g.Topo.Switches {
		name := g.Topo.Switches[i].Name
		e.switches[name] = &swIndex{at: component(e.ndirs + i), ports: map[string]component{}}
		e.names = append(e.names, name)
	}
	e.dirs = make([]fabric.Direction, 0, 2*len(links))
	for i := range links {
		for _, d := range []fabric.Direction{{From: links[i].A, To: links[i].B}, {From: links[i].B, To: links[i].A}} {
			at := component(len(e.dirs))
			e.dirs = append(e.dirs, d)
			e.isAccess = append(e.isAccess, links[i].IsAccess())
			if sw, port, ok := fabric.SplitPort(d.From); ok && e.switches[sw] != nil {
				e.switches[sw].ports[port] = at
			} else {
				e.nics[d.From] = at
			}
		}
	}
	return e
}

// Graph returns the fabric whose components are numbered.
func (e *Engine) Graph() *fabric.Graph { return e.g }

func (e *Engine) enterPhase(p Phase) {
	if e.EnterPhase != nil {
		e.EnterPhase(p)
	}
}

// componentCount returns the number of components. More may be added while findings are bound.
func (e *Engine) componentCount() int { return e.ndirs + len(e.names) + len(e.unknown) }

// isSwitch reports whether a place is a switch.
func (e *Engine) isSwitch(p component) bool {
	return int(p) >= e.ndirs && int(p) < e.ndirs+len(e.names)
}

func (e *Engine) directionOf(p component) fabric.Direction {
	if int(p) < e.ndirs {
		return e.dirs[p]
	}
	return e.unknown[int(p)-e.ndirs-len(e.names)]
}

// reverseOf returns the other direction of a link, or -1 if no flow crosses it.
func (e *Engine) reverseOf(p component) component {
	if int(p) < e.ndirs {
		return p ^ 1
	}
	if r, ok := e.unknownAt[e.directionOf(p).Reverse()]; ok {
		return r
	}
	return -1
}

// unknownDirection returns the number of a directed link that a path crosses, but that the topology does not
// have.
func (e *Engine) unknownDirection(d fabric.Direction) component {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, ok := e.unknownAt[d]
	if !ok {
		p = component(e.componentCount())
		e.unknownAt[d] = p
		e.unknown = append(e.unknown, d)
	}
	return p
}

// appendComponents appends the places that a packet from src to dst crosses on p: as
// fabric.Path.Directions has them, and the switches.
func (e *Engine) appendComponents(out []component, p fabric.Path, src, dst string) []component {
	last := component(-1) // the direction that left the hop before
	known := src != ""    // where the packet comes from: src, or a port of the hop before
	from := func(i int) string {
		if i == 0 {
			return src
		}
		return p[i-1].Switch + ":" + p[i-1].Out
	}
	if d, ok := e.nics[src]; ok {
		last = d
	}
	for i := range p {
		h := &p[i]
		sw := e.switches[h.Switch]
		if known && h.In != "" {
			in := component(-1)
			if sw != nil {
				if at, ok := sw.ports[h.In]; ok {
					in = at ^ 1
				}
			}
			if in < 0 || in != last {
				in = e.unknownDirection(fabric.Direction{From: from(i), To: h.Switch + ":" + h.In})
			}
			out = append(out, in)
		}
		known, last = false, -1
		if sw == nil {
			continue
		}
		out = append(out, sw.at)
		if h.Out != "" {
			if at, ok := sw.ports[h.Out]; ok {
				last = at
			}
			known = true
		}
	}
	if known {
		if last >= 0 && e.dirs[last].To == dst {
			return append(out, last)
		}
		out = append(out, e.unknownDirection(fabric.Direction{From: from(len(p)), To: dst}))
	}
	return out
}

// paths are the candidate paths of flows, each equally likely, or those that the packets of flows take in turn.
type paths struct {
	each [][]component
	// weight has the share of the packets on each path. It is nil if all packets of a flow took one.
	weight []float64
	// all are the places that some but not all packets of a mixture cross, with their shares.
	all      []component
	allShare []float64
	// shares of the places that some but not all of them cross; what all cross is in
	// the flow's own places. Of places of a mixture that no flow distinguishes one is here.
	at    []component
	share []float64
}

// newPaths separates what all paths have in common from what they differ in.
func (b *binder) newPaths(each [][]component) (common []component, ps *paths) {
	var order []component
	for _, p := range each {
		for _, c := range p {
			for int(c) >= len(b.count) {
				b.count = append(b.count, make([]int32, b.ndirs+len(b.names)+64)...)
			}
			if b.count[c] == 0 {
				order = append(order, c)
			}
			b.count[c]++
		}
	}
	ps = &paths{}
	for _, c := range order {
		if int(b.count[c]) >= len(each) {
			common = append(common, c)
			continue
		}
		ps.at = append(ps.at, c)
		ps.share = append(ps.share, float64(b.count[c])/float64(len(each)))
	}
	for _, p := range each {
		var own []component
		for _, c := range p {
			if int(b.count[c]) < len(each) {
				own = append(own, c)
			}
		}
		ps.each = append(ps.each, own)
	}
	for _, c := range order {
		b.count[c] = 0
	}
	if len(ps.at) == 0 {
		return common, nil
	}
	return common, ps
}

// flow is a finding that takes part, with what is named of the places it crosses.
type flow struct {
	finding *judge.Finding
	// sent and lost are the finding's; lost at most what was sent.
	sent, lost uint64
	decided    bool
	crossed    []component   // crossed for certain
	paths      *paths        // nil means that there are no more
	roundTrip  *roundTrip    // nil unless the finding is of both directions together, and their paths are known
	load       load          // on every path
	partial    []partialLoad // the load on only some of its candidate paths; may be nil
	base       float64       // logarithm of the share of packets that healthy links let through
	best       float64       // log-likelihood of its losses under their own ratio
	survive    float64       // of a mixture: logarithm of the share that what is named lets through
	cost       float64       // under its present loads
	index      int32
	profile    int32 // of what is plainly healthy; -1: looked at alone
	hops       int32 // directed links
	stamp      int32 // scratch of who visits flows
	// medianMoved is set if more than the slowest packets are late.
	medianMoved bool
}

// roundTrip is what a probe crosses, and what its reply does.
type roundTrip struct{ there, back []component }

// crossesBothWays reports whether probe and reply both cross a candidate.
func (r *roundTrip) crossesBothWays(c *candidate) bool {
	return r != nil && c.crossedBy(r.there) && c.crossedBy(r.back)
}

// partialLoad is a load of those candidate paths that are listed, by index.
type partialLoad struct {
	candidate *candidate
	load      load
	paths     []int32
}

// bindFindings numbers what the findings cross. Findings that are undecided take no part, but
// for what was lost where only a clock is in doubt. spread states that packets of some flows take several ways.
func (e *Engine) bindFindings(findings []judge.Finding, spread bool) []flow {
	// The memory of the runs before serves again: fresh pages would cost more than what
	// is written into them.
	flows := reuseSlice(e.flows, len(findings))
	walked := reuseSlice(e.spareWalks, len(findings))
	workers := runtime.GOMAXPROCS(0)
	if len(findings) < 4096 {
		workers = 1
	}
	replies := pathsOfReplies(findings)
	e.mixtures = map[uint64]boundPaths{}
	splitWork(len(findings), workers, func(_, lo, hi int) {
		b := binder{Engine: e, next: min(lo, len(e.previousWalks)), replies: replies, spread: spread}
		for i := lo; i < hi; i++ {
			flows[i], walked[i] = flow{}, walk{}
			b.bindFlow(&flows[i], &findings[i], i, &walked[i])
		}
	})
	e.flows, e.previousWalks, e.spareWalks = flows, walked, e.previousWalks
	kept := flows[:0]
	for i := range flows {
		if flows[i].finding != nil {
			kept = append(kept, flows[i])
		}
	}
	return kept
}

// pathsOfReplies returns the known paths of the other direction of findings that are of both directions together.
func pathsOfReplies(findings []judge.Finding) map[fabric.Flow]fabric.Path {
	other := func(e fabric.Flow) fabric.Flow {
		e.Reply = !e.Reply
		return e
	}
	var out map[fabric.Flow]fabric.Path
	for i := range findings {
		if f := &findings[i]; f.RoundTrip {
			if out == nil {
				out = map[fabric.Flow]fabric.Path{}
			}
			out[f.Flow] = nil
		}
	}
	if out == nil {
		return nil
	}
	for i := range findings {
		f := &findings[i]
		if _, wanted := out[other(f.Flow)]; wanted {
			out[other(f.Flow)] = f.Obs.Path
		}
	}
	return out
}

// reuseSlice returns a slice of n items in the memory of another if that is large enough, and
// not much too large. What the items are is not said.
func reuseSlice[T any](s []T, n int) []T {
	if cap(s) < n || cap(s) > 4*n+1024 {
		return make([]T, n)
	}
	return s[:n]
}

// takesPart reports whether a finding says anything, and whether that is of loss only.
func takesPart(f *judge.Finding) (yes, lossOnly bool) {
	lossOnly = f.ClockSuspect && !f.HostSuspect && f.Obs.Sent > 0
	return f.Condition != judge.Undecided || lossOnly, lossOnly
}

type binder struct {
	*Engine
	spread bool // the packets of some flows take several ways in turn
	arena  []component
	count  []int32 // scratch of newPaths, by place
	// one, inner, each and weight are scratch of bindMixture: places of a path, of all of them, where each begins and ends, and weights.
	one, inner []component
	each       [][2]int
	weight     []float64
	sets       map[uint64]boundPaths
	next       int // of the walks of the run before
	// replies are the paths of the other direction of round trips, where they are known.
	replies map[fabric.Flow]fabric.Path
}

type boundPaths struct {
	common []component
	paths  *paths
}

func (b *binder) bindFlow(fl *flow, f *judge.Finding, index int, w *walk) {
	if yes, _ := takesPart(f); !yes {
		return
	}
	fl.medianMoved = f.Delayed
	src, dst := f.Flow.Endpoints()
	const chunk = 1 << 14
	if cap(b.arena)-len(b.arena) < 256 {
		b.arena = make([]component, 0, chunk)
	}
	start := len(b.arena)
	switch o := f.Obs; {
	case len(o.Path) > 0:
		*w = walk{edge: f.Flow, hops: &o.Path[0], n: len(o.Path)}
		if b.reuseWalk(w); w.components != nil && !f.RoundTrip {
			fl.crossed, fl.hops = w.components, w.linkCount
			fl.setFinding(b.ofSlowestWay(f), index)
			return
		}
		w.components = nil
		b.arena = b.appendComponents(b.arena, o.Path, src, dst)
		if f.RoundTrip {
			// The trouble may be on the way back. Where its path is not known, it is at best the reverse.
			reply := b.replies[f.Flow]
			if len(reply) == 0 {
				reply = reversePath(o.Path)
			}
			there := slices.Clone(b.arena[start:])
			back := b.appendComponents(nil, reply, dst, src)
			fl.roundTrip = &roundTrip{there, back}
			for _, p := range back {
				if !slices.Contains(there, p) {
					b.arena = append(b.arena, p)
				}
			}
		}
		fl.crossed = b.arena[start:len(b.arena):len(b.arena)]
	case o.Sprayed && len(o.Paths) > 0:
		fl.crossed, fl.paths = b.reuseMixture(w, f)
	case len(o.Paths) > 0:
		fl.crossed, fl.paths = b.bindCandidates(o.Paths, src, dst, f.RoundTrip)
	default:
		fl.crossed, fl.paths = b.bindStructural(src, dst, f.RoundTrip, o.Sprayed)
	}
	if len(fl.crossed) == 0 && fl.paths == nil {
		return
	}
	for _, p := range fl.crossed {
		if !b.isSwitch(p) {
			fl.hops++
		}
	}
	if w.hops != nil && !f.RoundTrip {
		w.components, w.linkCount = fl.crossed, fl.hops
	}
	if fl.paths != nil {
		at, share := fl.paths.at, fl.paths.share
		if fl.mixed() {
			at, share = fl.paths.all, fl.paths.allShare
		}
		hops := 0.0
		for i, p := range at {
			if !b.isSwitch(p) {
				hops += share[i]
			}
		}
		fl.hops += int32(hops + 0.5)
	}
	fl.setFinding(b.ofSlowestWay(f), index)
}

// ofSlowestWay returns what a finding says of the slowest of several ways that packets take in turn. An element on some of them moves the
// tail, and the median as well if it happens to be on more than half of a window's: how far both moved is what the element adds. Where
// packets of some flows take several ways, those of the others are read alike: their tails and medians do not end at the same time.
func (b *binder) ofSlowestWay(f *judge.Finding) *judge.Finding {
	if !b.spread || !f.HasShift || !f.HasTail || !f.Delayed && !f.Jittery {
		return f
	}
	x := *f
	if x.Shift = max(f.Shift, 0); f.Jittery {
		x.Shift += f.TailShift
	}
	x.Scale = max(f.Scale, f.TailScale)
	x.Delayed, x.Jittery, x.HasTail = true, false, false
	return &x
}

// setFinding copies the frequently used values of a finding.
func (fl *flow) setFinding(f *judge.Finding, index int) {
	fl.finding, fl.index, fl.decided = f, int32(index), f.Condition != judge.Undecided
	fl.sent, fl.lost = f.Obs.Sent, min(f.Obs.Lost, f.Obs.Sent)
}

// reuseWalk finds what a walk crossed in the run before. Findings come in much the same
// order from run to run.
func (b *binder) reuseWalk(w *walk) {
	const near = 16
	for i := b.next; i < min(b.next+near, len(b.previousWalks)); i++ {
		was := &b.previousWalks[i]
		if was.hops == w.hops && was.ways == w.ways && was.n == w.n && was.weights == w.weights && was.edge == w.edge {
			b.next = i + 1
			w.components, w.linkCount, w.set, w.key = was.components, was.linkCount, was.set, was.key
			return
		}
	}
}

// bindCandidates binds a flow that went by one of several paths. Flows whose candidates
// differ in their access links alone share them.
func (b *binder) bindCandidates(all []fabric.Path, src, dst string, roundTrip bool) ([]component, *paths) {
	if len(all) > maxCandidatePaths {
		all = all[:maxCandidatePaths]
	}
	var at []component
	each := make([][]component, 0, len(all))
	sum := uint64(len(all))
	var arena []component
	for i, p := range all {
		start := len(arena)
		arena = b.appendComponents(arena, p, src, dst)
		if roundTrip {
			arena = b.appendComponents(arena, reversePath(p), dst, src)
		}
		inner := arena[start:start]
		for _, c := range arena[start:] {
			switch {
			case b.onAccessLink(c) && i == 0:
				at = append(at, c)
			case !b.onAccessLink(c) && !slices.Contains(inner, c):
				inner = append(inner, c)
				sum = mixBits(sum*31 + uint64(c) + 1)
			}
		}
		sum = mixBits(sum + 1)
		arena = arena[:start+len(inner)]
		each = append(each, inner[:len(inner):len(inner)])
	}
	known, ok := b.sets[sum]
	if !ok {
		for i := range each {
			each[i] = slices.Clone(each[i])
		}
		known.common, known.paths = b.newPaths(each)
		if b.sets == nil {
			b.sets = map[uint64]boundPaths{}
		}
		b.sets[sum] = known
	}
	return append(at, known.common...), known.paths
}

// onAccessLink reports whether a place is a direction of a NIC's link.
func (e *Engine) onAccessLink(p component) bool { return int(p) < len(e.isAccess) && e.isAccess[p] }

// bindStructural binds a flow of which nothing is known: it leaves and enters by its access
// links, and took one of the shortest paths, or all in turn if it is sprayed, if they are few.
func (b *binder) bindStructural(src, dst string, roundTrip, sprayed bool) (at []component, ps *paths) {
	for i, nic := range []string{src, dst} {
		d, ok := b.nics[nic]
		if !ok {
			continue
		}
		if i == 1 {
			d ^= 1
		}
		at = append(at, d)
		if roundTrip {
			at = append(at, d^1)
		}
	}
	leafA, _ := b.g.LeafOf(src)
	leafB, _ := b.g.LeafOf(dst)
	for _, leaf := range []string{leafA, leafB} {
		if sw := b.switches[leaf]; sw != nil && (leaf == leafA || leafA != leafB) {
			at = append(at, sw.at)
		}
	}
	if leafA == "" || leafB == "" || leafA == leafB || roundTrip {
		return at, nil
	}
	if sprayed && !b.g.MayDetour(leafA, leafB) {
		inner := b.sprayedBetween(src, dst, [2]string{leafA, leafB})
		return append(at, inner.common...), inner.paths
	}
	inner := b.betweenLeaves(src, dst, [2]string{leafA, leafB})
	return append(at, inner.common...), inner.paths
}

// betweenLeaves returns the components that flows between two leaves have in common, and those in which they may
// differ, without the access links and the leaves.
func (b *binder) betweenLeaves(src, dst string, leaves [2]string) boundPaths {
	b.mu.Lock()
	defer b.mu.Unlock()
	if known, ok := b.pairs[leaves]; ok {
		return known
	}
	var out boundPaths
	if shortest := b.g.ShortestPaths(src, dst, maxStructural+1); len(shortest) <= maxStructural {
		var each [][]component
		for _, p := range shortest {
			each = append(each, b.appendInner(nil, p))
		}
		if b.g.MayDetour(leaves[0], leaves[1]) {
			// As likely, it went by some third group, and crossed nothing that this flow can be evidence about.
			each = append(each, make([][]component, len(each))...)
		}
		if len(each) > 0 {
			out.common, out.paths = b.newPaths(each)
		}
	}
	b.pairs[leaves] = out
	return out
}

// appendInner appends the links between switches on a shortest path, and the switches that are not at its ends.
func (e *Engine) appendInner(out []component, p fabric.Path) []component {
	for i, h := range p {
		if sw := e.switches[h.Switch]; sw != nil && i > 0 && i < len(p)-1 {
			out = append(out, sw.at)
		}
		if i > 0 {
			out = append(out, e.switches[h.Switch].ports[h.In]^1)
		}
	}
	return out
}

func reversePath(p fabric.Path) fabric.Path {
	out := make(fabric.Path, len(p))
	for i, h := range p {
		out[len(p)-1-i] = fabric.Hop{Switch: h.Switch, In: h.Out, Out: h.In}
	}
	return out
}
