package paths

import (
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/sighting"
)

// Tables binds flows between InfiniBand NICs to the ways that the forwarding tables
// give their packets. It is safe for concurrent use.
//
// Rules:
//
//  1. A flow's path is the walk from its NIC's first LID to the other's. Readings of
//     the fabric that agree on the walk confirm it between them, and nothing else
//     does: a window that begins before the earlier has ended, or ends after the later
//     has begun, is not bound to it.
//  2. A walk that does not arrive, or that switches may choose on, is no path. What
//     was known until then ends with it, though the next walk is as the last one was.
//  3. The same holds for all flows when the fabric may have changed unseen between two
//     readings (ibfabric.Reading.Broken); they are bound again by two between which
//     it may not.
//  4. A NIC of the topology is the fabric's port of its GUID (an alias guid:0x...),
//     else that of its name. A walk over a switch that the topology has not is no path.
type Tables struct {
	store *Store
	// StaleAfter is the age of the last confirmation from which paths are stale, and windows have none. 0 means that windows
	// keep the last path, and that it is stale after ten seconds. It is set before the first reading.
	StaleAfter time.Duration
	// sl is the service level of probes: adaptive routing may spare it.
	sl uint8

	mu        sync.Mutex
	seed      maphash.Seed
	last      ibfabric.Reading
	since     time.Time // when the last of the readings that agree and are not broken began to
	lids      []ibfabric.LID
	flows     map[flowKey]*trackedFlow
	unbound   map[flowKey]*trackedFlow // those that are not bound
	lastSweep time.Time                // when flows were last forgotten
	down      map[fabric.Element]*downtime
}

// trackedFlow represents a flow whose path comes from the tables.
type trackedFlow struct {
	boundWalk   uint64 // what it was last bound to; 0: nothing
	lastRequest int64  // when it was last asked for
	sprayed     bool   // switches choose for each of its packets between the known ways
}

// NewTables returns tables that have not been read and bind paths in store. It is called before the store is used.
func NewTables(store *Store, sl uint8) *Tables {
	t := &Tables{store: store, sl: sl, seed: maphash.MakeSeed(), flows: map[flowKey]*trackedFlow{}, unbound: map[flowKey]*trackedFlow{}, down: map[fabric.Element]*downtime{}}
	store.spraying.tables = append(store.spraying.tables, t)
	return t
}

// FollowFlow binds a flow from now on, if both its NICs are in the fabric. A flow that is not queried
// for keepFlows is forgotten.
func (t *Tables) FollowFlow(e fabric.Flow, now time.Time) {
	k, ok := t.store.keyOf(e)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.flows[k]; f != nil {
		f.lastRequest = now.UnixNano()
		return
	}
	if t.last.Fabric == nil || t.lids[k.src] == 0 || t.lids[k.dst] == 0 {
		return
	}
	f := &trackedFlow{lastRequest: now.UnixNano()}
	t.flows[k], t.unbound[k] = f, f
	t.bindFlow(k, f)
}

// isSprayed reports whether the packets of a flow have taken all ways that its binding lists since a time.
func (t *Tables) isSprayed(e fabric.Flow, since time.Time) bool {
	k, ok := t.store.keyOf(e)
	if !ok {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.flows[k]
	return f != nil && f.sprayed && !t.last.Broken && !t.since.After(since)
}

// ApplyReading applies a reading of the forwarding tables.
func (t *Tables) ApplyReading(r ibfabric.Reading) {
	t.mu.Lock()
	defer t.mu.Unlock()
	other := t.last.Fabric != r.Fabric
	if r.Broken {
		at := r.Begun
		if !at.After(t.last.Ended) {
			at = t.last.Ended.Add(1) // it is the last reading, after which a change was reported
		}
		for k, f := range t.flows {
			if f.boundWalk != 0 {
				t.endPath(k, f, at, "the forwarding tables may have changed")
			}
		}
	}
	t.last = r
	if other {
		t.locateNICs(r.Fabric)
		t.findDown(r)
		for i := range r.Fabric.Switches {
			t.store.setTablesHold(r.Fabric.NodeName(int32(i)), t.StaleAfter)
		}
	}
	confirmed := !r.Broken
	switch {
	case r.Broken && !r.Since.IsZero():
		t.since, confirmed = r.Since, true
	case other || r.Broken:
		t.since = r.Ended
	}
	again := t.unbound
	switch {
	case !confirmed: // the next reading that is not will confirm this one
		again = nil
	case other || r.Broken:
		again = t.flows
	}
	for k, f := range again {
		t.bindFlow(k, f)
	}
	// What is still bound as before has been confirmed; what is new is, from now on.
	for i := range r.Fabric.Switches {
		t.store.recordSwitchAnswer(r.Fabric.NodeName(int32(i)), r.Begun, r.Ended)
	}
	if r.Ended.Sub(t.lastSweep) < sweepEvery {
		return
	}
	t.lastSweep = r.Ended
	old := r.Ended.Add(-keepFlows).UnixNano()
	for k, f := range t.flows {
		if f.lastRequest < old {
			t.endPath(k, f, r.Ended, "it is no longer queried")
			delete(t.flows, k)
			delete(t.unbound, k)
		}
	}
}

// sweepEvery is the interval at which flows that are no longer queried are dropped.
const sweepEvery = time.Minute

// locateNICs finds the topology's NICs in a fabric, and passes its cables to the store.
func (t *Tables) locateNICs(f *ibfabric.Fabric) {
	t.lids = make([]ibfabric.LID, len(t.store.nicIDs))
	g := t.store.Graph()
	for i, id := range t.store.nicIDs {
		if e, ok := nicPort(g, f, id); ok {
			t.lids[i] = f.FirstLID(e)
		}
	}
	for i := range f.Switches {
		var all []sighting.Neighbour
		for p, port := range f.Nodes[i].Ports {
			if !port.Linked {
				continue
			}
			far := f.EndName(port.Far)
			system, name, _ := fabric.SplitPort(far)
			if node, device, nic := fabric.SplitNIC(far); nic {
				system, name = node, device
			}
			all = append(all, sighting.Neighbour{Port: strconv.Itoa(p), System: system, SystemPort: name})
		}
		t.store.setAgentNeighbours(f.NodeName(int32(i)), all)
	}
}

// nicPort returns the fabric's port of a NIC.
func nicPort(g *fabric.Graph, f *ibfabric.Fabric, id string) (ibfabric.End, bool) {
	for _, a := range g.NIC(id).Aliases {
		text, ok := strings.CutPrefix(a, "guid:")
		if !ok {
			continue
		}
		if guid, err := ibfabric.ParseGUID(text); err == nil {
			e, ok := f.ByGUID(guid)
			if e.Port == 0 {
				e.Port = 1 // the GUID of the node
			}
			return e, ok && int(e.Node) >= f.Switches
		}
	}
	e, ok := f.ByName(id)
	return e, ok && int(e.Node) >= f.Switches
}

// endPath ends the known path of a flow.
func (t *Tables) endPath(k flowKey, f *trackedFlow, at time.Time, why string) {
	t.unbindFlow(k, f)
	t.store.applyTables(k, pathReport{source: ByTables, at: at, ended: true, Resolved: fabric.Resolved{State: fabric.PathUnknown, Notes: []string{why}}})
}

// bindFlow takes a flow's path by the last reading into the store, if it is another.
func (t *Tables) bindFlow(k flowKey, f *trackedFlow) {
	src, dst := t.lids[k.src], t.lids[k.dst]
	if k.flow&replyBit != 0 {
		src, dst = dst, src
	}
	fab := t.last.Fabric
	hops, err := fab.Walk(src, dst)
	if err == nil && len(fab.Adaptive) > 0 {
		if all, whole, failed := fab.CandidateWalks(src, dst, t.sl, maxCandidates); failed != nil || len(all) != 1 || !whole {
			t.markBalanced(k, f, all)
			return
		}
	}
	var h maphash.Hash
	h.SetSeed(t.seed)
	for _, hop := range hops {
		maphash.WriteComparable(&h, struct {
			g       ibfabric.GUID
			in, out uint8
		}{fab.Nodes[hop.Switch].GUID, hop.In, hop.Out})
	}
	walk := max(h.Sum64(), 1)
	if err == nil && walk == f.boundWalk {
		return
	}
	var p fabric.Path
	if err == nil {
		p, err = t.translateHops(hops)
	}
	if err != nil {
		t.endPath(k, f, t.last.Ended, err.Error())
		return
	}
	if t.store.applyTables(k, pathReport{source: ByTables, at: t.last.Ended, since: t.since, Resolved: fabric.Resolved{Path: p, State: fabric.PathValid}, sightedHops: 1<<len(p) - 1}) {
		f.boundWalk, f.sprayed = walk, false
		delete(t.unbound, k)
	}
}

// unbindFlow marks a flow as unbound, so that each reading is searched for its path.
func (t *Tables) unbindFlow(k flowKey, f *trackedFlow) {
	f.boundWalk, f.sprayed = 0, false
	t.unbound[k] = f
}

// markBalanced takes a flow whose packets switches may send several ways.
func (t *Tables) markBalanced(k flowKey, f *trackedFlow, all [][]ibfabric.Hop) {
	var ways []fabric.Path
	for _, hops := range all {
		if p, err := t.translateHops(hops); err == nil {
			ways = append(ways, p)
		}
	}
	t.unbindFlow(k, f)
	f.sprayed = len(ways) == len(all) && len(ways) > 0
	t.store.applyTables(k, pathReport{source: ByTables, at: t.last.Ended, split: true, Resolved: fabric.Resolved{State: fabric.PathUnknown, Candidates: ways, Notes: []string{"adaptive routing: switches may choose between ports"}}})
}

// translateHops names the hops of a walk as the topology does.
func (t *Tables) translateHops(hops []ibfabric.Hop) (fabric.Path, error) {
	if len(hops) > maxHops {
		return nil, fmt.Errorf("a walk of %d switches, more than %d", len(hops), maxHops)
	}
	if len(hops) == 0 {
		return nil, fmt.Errorf("no switch is between the two NICs")
	}
	f, g := t.last.Fabric, t.store.Graph()
	p := make(fabric.Path, len(hops))
	for i, h := range hops {
		p[i] = fabric.Hop{Switch: f.NodeName(h.Switch), In: strconv.Itoa(int(h.In)), Out: strconv.Itoa(int(h.Out))}
		if g.Switch(p[i].Switch) == nil {
			return nil, fmt.Errorf("hop %d is %s, which the topology does not know", i+1, p[i].Switch)
		}
	}
	return p, nil
}

// applyTables takes what the forwarding tables say of a flow, unless something later is
// known of it.
func (s *Store) applyTables(k flowKey, w pathReport) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyReport(k, w)
	return s.records.entryAt(s.flows[k]).checked == w.at.UnixNano()
}
