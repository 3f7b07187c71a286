package catalogue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
)

// Tracer traces tuples at the nodes that send them. tracing.HTTPAgents implements it.
type Tracer interface {
	TraceTuples(ctx context.Context, node string, tuples []fabric.Tuple) ([]fabric.TupleTrace, error)
}

// Builder builds catalogues.
type Builder struct {
	graph  func() *fabric.Graph
	tracer Tracer
	now    func() time.Time
	store  *store
	turn   chan struct{} // holds an element while a catalogue is built
	// Sprays reports whether flows that leave a leaf are known to be sprayed now. It may be nil.
	Sprays func(leaf string) bool
}

// NewBuilder returns a builder of catalogues of a fabric.
func NewBuilder(graph func() *fabric.Graph, tracer Tracer, now func() time.Time) *Builder {
	return &Builder{graph: graph, tracer: tracer, now: now, store: newStore(), turn: make(chan struct{}, 1)}
}

// Request is a request for a catalogue.
type Request struct {
	Pairs []Pair `json:"pairs"`
	DSCP  int    `json:"dscp"`
	QPs   int    `json:"qps"` // queue pairs of a pair of NICs
	// AdaptiveRouting "off" is the operator's statement that the NICs do not mark packets for adaptive routing.
	AdaptiveRouting string   `json:"adaptive_routing,omitempty"`
	Exclude         []string `json:"exclude,omitempty"`
	// Ports are source ports to trace besides, such as those of queue pairs that run. Their entries are not kept.
	Ports []PairPorts `json:"ports,omitempty"`
}

// PairPorts are source ports of a pair of NICs.
type PairPorts struct {
	Pair
	SPorts []uint16 `json:"sports"`
}

const (
	maxPairs = 512 // of a request
	maxQPs   = 128 // of a pair of NICs
	// nodesAtOnce is the number of nodes that trace at the same time.
	nodesAtOnce = 64
	checkTuples = 4
)

// validate returns an error that names the first field that is not valid.
func (r *Request) validate(g *fabric.Graph) error {
	switch {
	case len(r.Pairs)+len(r.Ports) == 0 || len(r.Pairs) > maxPairs:
		return fmt.Errorf("field \"pairs\": %d, want 1 to %d", len(r.Pairs), maxPairs)
	case len(r.Ports) > maxPairs:
		return fmt.Errorf("field \"ports\": %d, want %d at most", len(r.Ports), maxPairs)
	case r.DSCP < 0 || r.DSCP > 63:
		return fmt.Errorf("field \"dscp\": %d, want 0 to 63", r.DSCP)
	case r.QPs < 1 || r.QPs > maxQPs:
		return fmt.Errorf("field \"qps\": %d, want 1 to %d", r.QPs, maxQPs)
	case r.AdaptiveRouting != "" && r.AdaptiveRouting != "off":
		return fmt.Errorf("field \"adaptive_routing\": %q, want off or nothing", r.AdaptiveRouting)
	}
	for i, p := range r.Pairs {
		if err := p.validate(g); err != nil {
			return fmt.Errorf("field \"pairs[%d]\": %w", i, err)
		}
	}
	for i, p := range r.Ports {
		if err := p.validate(g); err != nil {
			return fmt.Errorf("field \"ports[%d]\": %w", i, err)
		}
		if len(p.SPorts) == 0 || len(p.SPorts) > maxPorts || slices.Min(p.SPorts) < firstPort {
			return fmt.Errorf("field \"ports[%d].sports\": want 1 to %d ports from %d on", i, maxPorts, firstPort)
		}
	}
	return nil
}

// validate returns an error if the pair is not one of NICs of two nodes.
func (p Pair) validate(g *fabric.Graph) error {
	for _, nic := range []string{p.Src, p.Dst} {
		if n := g.NIC(nic); n == nil || n.ID() != nic {
			return fmt.Errorf("%q, want a NIC of the topology", nic)
		}
	}
	if fabric.OwnerOf(p.Src) == fabric.OwnerOf(p.Dst) {
		return fmt.Errorf("%s and %s are of one node, want two", p.Src, p.Dst)
	}
	return nil
}

// ErrBusy is the error of a build while another one runs.
var ErrBusy = errors.New("another catalogue is being built")

// InvalidError is the error of a request that is not valid.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }

// Build traces what the catalogue of the pairs lacks, and returns it without excluded paths. If some pairs could not be
// traced, it returns the others and an error. The error is ErrBusy while another catalogue is built, and an InvalidError if
// the request is not valid.
func (b *Builder) Build(ctx context.Context, r Request, excluded []Exclusion) ([]plan.Entry, error) {
	g := b.graph()
	if err := r.validate(g); err != nil {
		return nil, &InvalidError{err}
	}
	named, err := ExcludeElements(g, r.Exclude)
	if err != nil {
		return nil, &InvalidError{err}
	}
	excluded = append(slices.Clone(excluded), named...)
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	default:
		return nil, ErrBusy
	}
	byNode := map[string][]PairPorts{} // without ports: those that suffice
	for _, p := range r.Pairs {
		node := fabric.OwnerOf(p.Src)
		if !slices.ContainsFunc(byNode[node], func(known PairPorts) bool { return known.Pair == p }) {
			byNode[node] = append(byNode[node], PairPorts{Pair: p})
		}
	}
	for _, p := range r.Ports {
		byNode[fabric.OwnerOf(p.Src)] = append(byNode[fabric.OwnerOf(p.Src)], p)
	}
	slots := make(chan struct{}, nodesAtOnce)
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	out := []plan.Entry{}
	for _, pairs := range byNode {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			for _, p := range pairs {
				build := pairBuild{Builder: b, g: g, key: pairKey{p.Pair, r.DSCP}, request: &r, excluded: excluded}
				err := build.run(ctx, p.SPorts)
				mu.Lock()
				if err != nil {
					errs = append(errs, fmt.Errorf("%s>%s: %w", p.Src, p.Dst, err))
				}
				out = append(out, build.entries...)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(out, compareEntries)
	return dropExcluded(out, excluded), errors.Join(errs...)
}

// List returns the entries of a pair that are known, without those of excluded paths. An empty name matches all NICs.
func (b *Builder) List(src, dst string, excluded []Exclusion) []plan.Entry {
	return dropExcluded(b.store.list(src, dst, b.now()), excluded)
}

// pairBuild is the build of one pair's entries.
type pairBuild struct {
	*Builder
	g        *fabric.Graph
	key      pairKey
	request  *Request
	excluded []Exclusion
	entries  []plan.Entry // by port
	ports    int          // that were traced
	marking  fabric.Marking
	balanced bool // packets of a tuple had several paths
}

// run builds the entries of the pair and stores them, or traces the given ports only.
func (p *pairBuild) run(ctx context.Context, sports []uint16) error {
	if p.isSprayed() {
		p.addSprayed(sports)
		return nil
	}
	if len(sports) > 0 {
		return p.tracePorts(ctx, sports)
	}
	p.entries = p.store.entriesOf(p.key)
	p.ports = len(p.entries)
	err := p.confirm(ctx)
	for err == nil && p.ports < maxPorts {
		if p.ports > 0 {
			reason, e := p.checkLeaf(ctx)
			if err = e; err != nil || reason != "" {
				p.setReason(reason)
				break
			}
			if p.isEnough() {
				break
			}
		}
		err = p.traceNext(ctx)
	}
	if len(p.entries) > 0 {
		p.store.put(p.key, p.entries, p.now())
	}
	return err
}

// isSprayed reports whether the packets of the pair are known to be sprayed over several paths.
func (p *pairBuild) isSprayed() bool {
	leaf, _ := p.g.LeafOf(p.key.Src)
	if !p.g.Topo.Sprays() && (p.Sprays == nil || !p.Sprays(leaf)) {
		return false
	}
	paths, all := p.g.CandidatePaths(p.key.Src, p.key.Dst, 1)
	return !all || len(paths) > 1
}

// addSprayed adds entries of ports whose packets are sprayed, or one of the first port if none is given. What is known of the leaf is of
// before, and stale.
func (p *pairBuild) addSprayed(sports []uint16) {
	leaf, _ := p.g.LeafOf(p.key.Src)
	p.store.expireLeaves(p.g, []string{leaf}, pairKey{})
	if len(sports) == 0 {
		sports = []uint16{firstPort}
	}
	for _, sport := range sports {
		p.entries = append(p.entries, plan.Entry{Src: p.key.Src, Dst: p.key.Dst, SrcAddr: p.g.ProbeAddress(p.key.Src),
			DstAddr: p.g.ProbeAddress(p.key.Dst), Proto: "udp", DPort: plan.RoCEPort, DSCP: uint8(p.key.dscp), SPort: sport,
			State: plan.Unknown, Source: plan.Synthetic, Reason: plan.Sprayed})
	}
}

// setReason makes all paths unknown for a reason, unless it is empty.
func (p *pairBuild) setReason(reason plan.Reason) {
	for i := range p.entries {
		if reason != "" {
			p.entries[i].State, p.entries[i].Reason, p.entries[i].Path = plan.Unknown, reason, nil
		}
	}
}

// trace traces tuples and returns their entries.
func (p *pairBuild) trace(ctx context.Context, tuples []fabric.Tuple) ([]plan.Entry, error) {
	traces, err := p.tracer.TraceTuples(ctx, fabric.OwnerOf(p.key.Src), tuples)
	if err != nil {
		return nil, err
	}
	out := make([]plan.Entry, len(traces))
	for i := range traces {
		out[i] = newEntry(p.g, &traces[i])
		p.marking, p.balanced = traces[i].Marking, p.balanced || traces[i].Trace.Balanced
	}
	return out, nil
}

// tupleOf returns the tuple of an entry, whose destination is that of the pair also if a bond's other side receives it.
func (p *pairBuild) tupleOf(e *plan.Entry) fabric.Tuple {
	t := tupleOf(e)
	t.Dst = p.key.Dst
	return t
}

// tracePorts traces ports that are given.
func (p *pairBuild) tracePorts(ctx context.Context, sports []uint16) error {
	for batch := range slices.Chunk(sports, batchPorts) {
		if err := p.traceBatch(ctx, batch); err != nil {
			return err
		}
	}
	reason, err := p.checkLeaf(ctx)
	p.setReason(reason)
	return err
}

// traceNext traces the next batch of ports.
func (p *pairBuild) traceNext(ctx context.Context) error {
	sports := make([]uint16, batchPorts)
	for i := range sports {
		sports[i] = uint16(firstPort + p.ports + i)
	}
	return p.traceBatch(ctx, sports)
}

// traceBatch traces ports and adds their entries.
func (p *pairBuild) traceBatch(ctx context.Context, sports []uint16) error {
	tuples := make([]fabric.Tuple, len(sports))
	for i, sport := range sports {
		tuples[i] = fabric.Tuple{Src: p.key.Src, Dst: p.key.Dst, Proto: "udp", DPort: plan.RoCEPort, SPort: int(sport), DSCP: p.key.dscp}
	}
	fresh, err := p.trace(ctx, tuples)
	if err != nil {
		return err
	}
	first := len(p.entries)
	p.entries = append(p.entries, fresh...)
	p.ports += len(fresh)
	// Answers may be lost, and the budgets of switches may be used up. A path that was not found at once is traced again.
	for range traceAgain {
		var missing []int
		for i := first; i < len(p.entries); i++ {
			if p.entries[i].State != plan.Valid {
				missing = append(missing, i)
			}
		}
		if len(missing) == 0 || len(missing) == len(fresh) {
			break
		}
		if _, err := p.retrace(ctx, missing); err != nil {
			return err
		}
	}
	return nil
}

// traceAgain is how often the ports of a batch without a path are traced again, if others of the batch have one.
const traceAgain = 3

// confirm traces known entries again: those that are not valid or not fresh, and one of each path. If one of these has
// changed, it traces all of them, and marks what else is known of the leaves as stale.
func (p *pairBuild) confirm(ctx context.Context) error {
	now := p.now()
	again, seen := []int{}, map[string]bool{}
	for i := range p.entries {
		e := &p.entries[i]
		expire(e, now)
		if name := fmt.Sprint(e.Path); e.State != plan.Valid || !seen[name] {
			again = append(again, i)
			seen[name] = seen[name] || e.State == plan.Valid
		}
	}
	changed, err := p.retrace(ctx, again)
	if err != nil || !changed {
		return err
	}
	from, _ := p.g.LeafOf(p.key.Src)
	to, _ := p.g.LeafOf(p.key.Dst)
	p.store.expireLeaves(p.g, []string{from, to}, p.key)
	again = again[:0]
	for i := range p.entries {
		if p.entries[i].Confirmed.Before(now) {
			again = append(again, i)
		}
	}
	_, err = p.retrace(ctx, again)
	return err
}

// retrace traces entries again in batches, and reports whether a path that was valid has changed.
func (p *pairBuild) retrace(ctx context.Context, indexes []int) (changed bool, err error) {
	for batch := range slices.Chunk(indexes, batchPorts) {
		tuples := make([]fabric.Tuple, len(batch))
		for i, at := range batch {
			tuples[i] = p.tupleOf(&p.entries[at])
		}
		fresh, err := p.trace(ctx, tuples)
		if err != nil {
			return changed, err
		}
		for i, at := range batch {
			old := &p.entries[at]
			changed = changed || old.State == plan.Valid && fresh[i].State == plan.Valid && !slices.Equal(old.Path, fresh[i].Path)
			changed = changed || old.State == plan.Valid && fresh[i].State != plan.Valid
			p.entries[at] = fresh[i]
		}
	}
	return changed, nil
}

// hopelessPorts is the number of ports without any valid path after which no more are traced.
const hopelessPorts = 4 * batchPorts

// candidateLimit is the number of paths that are listed to find the uplinks of a pair.
const candidateLimit = 4096

// uplinks returns the ports by which packets of the pair may leave the source's leaf, without those that are excluded.
func (p *pairBuild) uplinks() []string {
	all, _ := p.g.CandidatePaths(p.key.Src, p.key.Dst, candidateLimit)
	var out []string
	for _, path := range all {
		e := plan.Entry{Src: p.key.Src, Dst: p.key.Dst, Path: path}
		if up := path[0].Out; !slices.Contains(out, up) && !isOut(&e, p.excluded) {
			out = append(out, up)
		}
	}
	return out
}

// isEnough reports whether each live uplink has enough ports.
func (p *pairBuild) isEnough() bool {
	count := map[string]int{}
	for i := range p.entries {
		if e := &p.entries[i]; e.State == plan.Valid && len(e.Path) > 0 && !isOut(e, p.excluded) {
			count[e.Path[0].Out]++
		}
	}
	ups := p.uplinks()
	if len(ups) == 0 || len(count) == 0 && p.ports >= hopelessPorts {
		return true // every path is excluded, or no trace finds one
	}
	// An uplink that so many ports do not take has no route: each port takes it with the same probability.
	surely := batchPorts * (len(ups) + 1)
	live := slices.DeleteFunc(ups, func(up string) bool { return count[up] == 0 && p.ports >= surely })
	if len(live) == 0 {
		return true
	}
	want := (p.request.QPs+len(live)-1)/len(live) + spareEntries
	return !slices.ContainsFunc(live, func(up string) bool { return count[up] < want })
}

// checkLeaf checks the leaf of the source by rule 3, unless that was done lately. It returns the reason for which there is
// nothing to choose, or "".
func (p *pairBuild) checkLeaf(ctx context.Context) (reason plan.Reason, err error) {
	if p.marking == fabric.MarkingUnknown && p.request.AdaptiveRouting != "off" {
		return plan.Sprayed, nil
	}
	leaf, _ := p.g.LeafOf(p.key.Src)
	if paths, all := p.g.CandidatePaths(p.key.Src, p.key.Dst, 1); all && len(paths) == 1 {
		return "", nil // there is one path
	}
	if c, ok := p.store.checkOf(leaf, p.now()); ok {
		return c.reason, nil
	}
	checked := 0
	for i := range p.entries {
		if p.entries[i].State != plan.Valid {
			continue
		}
		if reason, err = p.checkEntry(ctx, &p.entries[i]); err != nil || reason != "" {
			break
		}
		if checked++; checked == checkTuples {
			break
		}
	}
	if err == nil && checked == 0 && p.balanced {
		reason = plan.Sprayed // no path was found at all, since packets took several
	}
	if err == nil && (checked == checkTuples || reason != "") {
		p.store.setCheck(leaf, leafCheck{reason, p.now()})
	}
	return reason, err
}

// Variants of a tuple that are compared, and packets of each at a hop limit.
const (
	checkVariants = 4
	checkPackets  = 4
)

// checkEntry traces variants of the tuple of an entry. Packets of one variant with several paths mean that the switches
// balance by packet. Variants with different paths mean that they hash more than the tuple.
func (p *pairBuild) checkEntry(ctx context.Context, e *plan.Entry) (reason plan.Reason, err error) {
	tuples := make([]fabric.Tuple, checkVariants)
	for i := range tuples {
		tuples[i] = p.tupleOf(e)
		tuples[i].Variant, tuples[i].Packets = i, checkPackets
	}
	traces, err := p.tracer.TraceTuples(ctx, fabric.OwnerOf(p.key.Src), tuples)
	if err != nil {
		return "", err
	}
	other := false
	for i := range traces {
		if traces[i].Trace.Balanced {
			return plan.Sprayed, nil
		}
		got := newEntry(p.g, &traces[i])
		other = other || got.State == plan.Valid && !slices.Equal(got.Path, e.Path)
	}
	if other {
		return plan.HashBeyondTuple, nil
	}
	return "", nil
}
