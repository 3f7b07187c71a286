package routing

import (
	"cmp"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Watcher follows flows, links and the reports of switches over cycles. Its memory follows the number of flows.
type Watcher struct {
	usage      *usage
	distances  distances
	reviews    map[string]*leafReview // by leaf
	few        []Finding              // of too few next hops, as they were found last
	losing     map[*record]bool       // probe flows that lost something lately
	links      map[string]*linkState
	sessions   map[string]*sessionCounts // by port
	mismatches map[mismatch]time.Time
	compared   map[string]comparedTables // by switch
	failed     map[string]failover
	seen       map[findingKey]*held
	flapping   []string // ports of links that seem to flap
	recent     map[findingKey]held
	leftPorts  []string         // ports of links that no flow is known to use any more
	lossy      map[string]blame // links at fault by other verdicts
	lossSpans  []LossSpan
	// unknownSince is since when switches refuse identifiers.
	unknownSince map[findingKey]time.Time
	// strayedSince is since when switches forward packets of chosen paths elsewhere.
	strayedSince map[findingKey]time.Time
	cycles       int
}

// FlappingPorts returns the ports of the links that seem to flap, for which Moment.CarrierChanges and Moment.SessionHistory decide.
func (w *Watcher) FlappingPorts() []string { return w.flapping }

// LeftPorts returns the ports of the links that no flow is known to use any more, for which Moment.PortUp and Moment.SessionHistory
// say why.
func (w *Watcher) LeftPorts() []string { return w.leftPorts }

// LossSpans returns the times within which flows of failovers lost probes, for which Moment.LossCounts has how many.
func (w *Watcher) LossSpans() []LossSpan { return w.lossSpans }

// findingKey says which findings of two cycles are the same.
type findingKey struct {
	fabric.Element
	kind   Kind
	prefix string
}

// NewWatcher returns a Watcher that knows nothing yet.
func NewWatcher() *Watcher {
	return &Watcher{usage: newUsage(), reviews: map[string]*leafReview{}, losing: map[*record]bool{}, links: map[string]*linkState{}, sessions: map[string]*sessionCounts{}, mismatches: map[mismatch]time.Time{}, compared: map[string]comparedTables{},
		failed: map[string]failover{}, lossy: map[string]blame{}, seen: map[findingKey]*held{}, recent: map[findingKey]held{}}
}

// Review takes what a cycle knows, and returns the faults of routing that hold, may hold, or held a moment ago.
func (w *Watcher) Review(m *Moment) []Finding {
	lossy := w.followFlows(m)
	if w.cycles++; w.cycles%64 == 0 {
		w.usage.forgetUnseen(m.Now)
	}
	w.forgetLosses(m.Now)
	w.followLossyLinks(m)
	w.followSessions(m)
	w.followLinks(m)
	polarized, crowded := w.polarization(m)
	byPaths := append(polarized, w.nextHops(m, crowded)...)
	if lossy {
		byPaths = append(byPaths, w.lostPrefixes(m)...)
	}
	out := w.settle(m.Now, byPaths)
	out = append(out, w.linkFindings(m, crowded)...)
	out = append(out, w.failovers(m)...)
	out = append(out, w.unknownIdentifiers(m)...)
	out = append(out, modeFindings(m)...)
	out = append(out, w.misforwarding(m)...)
	return w.withEnded(w.withoutCovered(append(out, w.fibMismatches(m, lossy)...)), m.Now)
}

// withEnded adds the findings that held a moment ago. Those on links and on modes are not among them: they explain nothing by then, or
// say themselves when they are over.
func (w *Watcher) withEnded(all []Finding, now time.Time) []Finding {
	for i := range all {
		if f := &all[i]; f.Phase == Holds && f.Element.Kind != fabric.KindLink && f.Kind != Sprays && f.Kind != HashesFlows {
			w.recent[findingKey{f.Element, f.Kind, f.Prefix}] = held{Finding: *f, last: now}
		}
	}
	var ended []Finding
	for k, h := range w.recent {
		switch {
		case now.Sub(h.last) > explainFor:
			delete(w.recent, k)
		case h.last.Before(now):
			h.Phase = Ended
			ended = append(ended, h.Finding)
		}
	}
	slices.SortFunc(ended, compareFindings)
	return append(all, ended...)
}

// followFlows takes what a cycle knows of flows, and reports whether packets of one are lost.
func (w *Watcher) followFlows(m *Moment) (lossy bool) {
	for i := range m.Flows {
		f := &m.Flows[i]
		if f.IsTemporary() {
			continue // rule 11
		}
		r := w.usage.follow(f, m.Now)
		r.followLosses(f, m)
		if len(r.losses) > 0 {
			w.losing[r] = true
		}
		lossy = lossy || f.Lossy
	}
	return lossy
}

// ReviewOnce returns the faults of routing that the paths of a single moment show: next hops that are not used, polarization, and lost
// prefixes. What needs history is not among them: sessions that flap, links that flows left, failovers, and tables that differ for a while.
func ReviewOnce(m *Moment) []Finding {
	w := NewWatcher()
	lossy := w.followFlows(m)
	polarized, crowded := w.polarization(m)
	cycles := 1
	if len(w.usage.leaves) > leastLeaves {
		cycles = 2 * reviewCycles // the questions about all leaves are known when they are reviewed again
	}
	var found []Finding
	for w.cycles = 1; w.cycles <= cycles; w.cycles++ {
		found = w.nextHops(m, crowded)
	}
	found = append(polarized, found...)
	if lossy {
		found = append(found, w.lostPrefixes(m)...)
	}
	for i := range found {
		found[i].Since = m.Now
	}
	slices.SortFunc(found, compareFindings)
	return found
}

func compareFindings(a, b Finding) int {
	return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Prefix, b.Prefix))
}

// held is a finding by paths, from when it was found first to when it was last.
type held struct {
	Finding
	first, last time.Time
}

// settle returns the findings that have held for settleTime. Those that hold no more are returned for as long, since paths of some flows
// are unknown now and then.
func (w *Watcher) settle(now time.Time, found []Finding) (out []Finding) {
	for _, f := range found {
		k := findingKey{f.Element, f.Kind, f.Prefix}
		h := w.seen[k]
		if h == nil {
			h = &held{first: now}
			w.seen[k] = h
		}
		f.Since = h.first
		h.Finding, h.last = f, now
	}
	for k, h := range w.seen {
		settled := h.last.Sub(h.first) >= settleTime
		switch {
		case h.last.Before(now) && (!settled || now.Sub(h.last) >= settleTime):
			delete(w.seen, k)
		case settled:
			out = append(out, h.Finding)
		}
	}
	slices.SortFunc(out, compareFindings)
	return out
}

// withoutCovered drops what is known more exactly by a FIB that differs from the RIB at the same switch.
func (w *Watcher) withoutCovered(all []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(all), func(f Finding) bool {
		if f.Kind == FIBMismatch || f.Kind == Converged || f.Kind == Sprays || f.Kind == HashesFlows {
			return false
		}
		return slices.ContainsFunc(all, func(x Finding) bool {
			return x.Kind == FIBMismatch && x.Phase == Holds && x.Element == f.Element && (f.Prefix == "" || x.Prefix == f.Prefix)
		})
	})
}

// lossyAmong returns those of some flows that lose most of their packets.
func (w *Watcher) lossyAmong(flows []fabric.Flow) (out []fabric.Flow) {
	for _, f := range flows {
		if r := w.usage.records[f]; r != nil && r.lossy {
			out = append(out, f)
		}
	}
	return out
}

// lostPrefixes finds switches at which the packets to one leaf are lost, while others by the same links are not.
func (w *Watcher) lostPrefixes(m *Moment) (out []Finding) {
	lossy := map[string][]*record{} // by leaf
	for _, r := range w.usage.records {
		if r.lossy && len(r.path) > 1 {
			lossy[r.leaf] = append(lossy[r.leaf], r)
		}
	}
	for _, leaf := range sortedKeys(lossy) {
		if len(lossy[leaf]) < fewFlows {
			continue
		}
		if f, ok := w.lostPrefix(leaf, lossy[leaf]); ok {
			out = append(out, f)
		}
	}
	return out
}

// lostPrefix returns the switch at which packets to a leaf are lost, if there is one.
func (w *Watcher) lostPrefix(leaf string, lost []*record) (f Finding, ok bool) {
	bad, good, byOthers := map[string]int{}, map[string]int{}, map[portID]int{}
	healthy := 0
	for _, r := range lost {
		for _, h := range r.path[:len(r.path)-1] {
			bad[h.Switch]++
		}
	}
	for _, r := range w.usage.records {
		if !r.healthy || !r.valid || len(r.path) < 2 {
			continue
		}
		if r.leaf != leaf {
			for _, n := range r.ports {
				byOthers[n]++
			}
			continue
		}
		healthy++
		for _, h := range r.path[:len(r.path)-1] {
			good[h.Switch]++
		}
	}
	if healthy < fewFlows {
		return f, false
	}
	var names []string
	for _, sw := range sortedKeys(bad) {
		if good[sw] > 0 || bad[sw] != len(lost) || w.linkMayLose(sw, leaf, lost, byOthers) {
			continue
		}
		names = append(names, sw)
	}
	if len(names) == 0 {
		return f, false
	}
	f = Finding{Element: fabric.Element{ID: names[0], Kind: fabric.KindSwitch}, Kind: PrefixLost, Prefix: leaf, Flows: len(lost), Confidence: 0.9}
	for _, sw := range names[1:] {
		f.Others = append(f.Others, fabric.Element{ID: sw, Kind: fabric.KindSwitch})
	}
	for _, r := range lost {
		f.Lost = append(f.Lost, r.flow)
	}
	slices.SortFunc(f.Lost, compareFlows)
	f.Explained = f.Lost
	return f, true
}

// linkMayLose reports whether a link by which lost flows enter or leave a switch carries no healthy flows to other leaves, so that the link
// may be at fault as well.
func (w *Watcher) linkMayLose(sw, leaf string, lost []*record, byOthers map[portID]int) bool {
	return slices.ContainsFunc(lost, func(r *record) bool {
		return slices.ContainsFunc(r.ports, func(n portID) bool {
			p := &w.usage.ports[n]
			if byOthers[n] > 0 {
				return false
			}
			// What enters the leaf carries nothing else: flows from other switches show that it works.
			return fabric.OwnerOf(p.To) == sw || fabric.OwnerOf(p.From) == sw && (fabric.OwnerOf(p.To) != leaf || w.entersHealthy(n) == 0)
		})
	})
}

// entersHealthy returns the number of healthy flows that cross a port.
func (w *Watcher) entersHealthy(n portID) (flows int) {
	for _, r := range w.usage.records {
		if r.healthy && r.valid && slices.Contains(r.ports, n) {
			flows++
		}
	}
	return flows
}
