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
	// sl is the service level of probes: adaptive routing may spare it.
	sl uint8

	mu    sync.Mutex
	seed  maphash.Seed
	last  ibfabric.Reading
	since time.Time // when the last of the readings that agree and are not broken began to
	lids  []ibfabric.LID
	flows map[key]*followed
	loose map[key]*followed // those that are not bound
	swept time.Time         // when flows were last forgotten
}

// followed is a flow whose path the tables tell.
type followed struct {
	walk  uint64 // what it was last bound to; 0: nothing
	asked int64  // when it was last asked for
}

// NewTables returns tables that have not been read and bind paths in store.
func NewTables(store *Store, sl uint8) *Tables {
	return &Tables{store: store, sl: sl, seed: maphash.MakeSeed(), flows: map[key]*followed{}, loose: map[key]*followed{}}
}

// Follow takes care that a flow is bound from now on, if both its NICs are in the
// fabric. One that is not asked for during keepFlows is forgotten.
func (t *Tables) Follow(e fabric.Edge, now time.Time) {
	k, ok := t.store.key(e)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.flows[k]; f != nil {
		f.asked = now.UnixNano()
		return
	}
	if t.last.Fabric == nil || t.lids[k.src] == 0 || t.lids[k.dst] == 0 {
		return
	}
	f := &followed{asked: now.UnixNano()}
	t.flows[k], t.loose[k] = f, f
	t.bind(k, f)
}

// Take takes a reading.
func (t *Tables) Take(r ibfabric.Reading) {
	t.mu.Lock()
	defer t.mu.Unlock()
	other := t.last.Fabric != r.Fabric
	if r.Broken {
		for k, f := range t.flows {
			if f.walk != 0 {
				t.end(k, f, r.Begun, "the forwarding tables may have changed")
			}
		}
	}
	t.last = r
	if other {
		t.places(r.Fabric)
	}
	if other || r.Broken {
		t.since = r.Ended
	}
	again := t.loose
	switch {
	case r.Broken: // the next reading that is not will confirm this one
		again = nil
	case other:
		again = t.flows
	}
	for k, f := range again {
		t.bind(k, f)
	}
	// What is still bound as before has been confirmed; what is new is, from now on.
	for i := range r.Fabric.Switches {
		t.store.vouchFor(r.Fabric.Name(int32(i)), r.Begun, r.Ended)
	}
	if r.Ended.Sub(t.swept) < sweepEvery {
		return
	}
	t.swept = r.Ended
	old := r.Ended.Add(-keepFlows).UnixNano()
	for k, f := range t.flows {
		if f.asked < old {
			t.end(k, f, r.Ended, "nobody asks for it")
			delete(t.flows, k)
			delete(t.loose, k)
		}
	}
}

// sweepEvery is how often flows are looked through for those that nobody asks for.
const sweepEvery = time.Minute

// places finds the topology's NICs in a fabric, and tells the store of its cables.
func (t *Tables) places(f *ibfabric.Fabric) {
	t.lids = make([]ibfabric.LID, len(t.store.nicIDs))
	g := t.store.Graph()
	for i, id := range t.store.nicIDs {
		if e, ok := port(g, f, id); ok {
			t.lids[i] = f.LIDOf(e)
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
		t.store.neighbours(f.Name(int32(i)), all)
	}
}

// port is the fabric's port of a NIC.
func port(g *fabric.Graph, f *ibfabric.Fabric, id string) (ibfabric.End, bool) {
	for _, a := range g.NIC(id).Aliases {
		text, ok := strings.CutPrefix(a, "guid:")
		if !ok {
			continue
		}
		if guid, err := ibfabric.ParseGUID(text); err == nil {
			e, ok := f.ByGUID(guid)
			return e, ok && int(e.Node) >= f.Switches
		}
	}
	e, ok := f.ByName(id)
	return e, ok && int(e.Node) >= f.Switches
}

// end takes what is known of a flow's path as over.
func (t *Tables) end(k key, f *followed, at time.Time, why string) {
	t.loosen(k, f)
	t.store.tell(k, word{source: ByTables, at: at, over: true, Resolved: fabric.Resolved{State: fabric.PathUnknown, Notes: []string{why}}})
}

// bind takes a flow's path by the last reading into the store, if it is another.
func (t *Tables) bind(k key, f *followed) {
	src, dst := t.lids[k.src], t.lids[k.dst]
	if k.flow&replyBit != 0 {
		src, dst = dst, src
	}
	fab := t.last.Fabric
	hops, err := fab.Walk(src, dst)
	if err == nil && len(fab.Adaptive) > 0 {
		if all, whole, failed := fab.Candidates(src, dst, t.sl, maxCandidates); failed != nil || len(all) != 1 || !whole {
			t.choose(k, f, all)
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
	if err == nil && walk == f.walk {
		return
	}
	var p fabric.Path
	if err == nil {
		p, err = t.path(hops)
	}
	if err != nil {
		t.end(k, f, t.last.Ended, err.Error())
		return
	}
	if t.store.tell(k, word{source: ByTables, at: t.last.Ended, since: t.since, Resolved: fabric.Resolved{Path: p, State: fabric.PathValid}, seen: 1<<len(p) - 1}) {
		f.walk = walk
		delete(t.loose, k)
	}
}

// loosen takes a flow as bound to nothing: each reading is asked for its path.
func (t *Tables) loosen(k key, f *followed) {
	f.walk = 0
	t.loose[k] = f
}

// choose takes a flow whose packets switches may send several ways.
func (t *Tables) choose(k key, f *followed, all [][]ibfabric.Hop) {
	var ways []fabric.Path
	for _, hops := range all {
		if p, err := t.path(hops); err == nil {
			ways = append(ways, p)
		}
	}
	t.loosen(k, f)
	t.store.tell(k, word{source: ByTables, at: t.last.Ended, split: true, Resolved: fabric.Resolved{State: fabric.PathUnknown, Candidates: ways, Notes: []string{"adaptive routing: switches may choose between ports"}}})
}

// path names the hops of a walk as the topology does.
func (t *Tables) path(hops []ibfabric.Hop) (fabric.Path, error) {
	if len(hops) > maxHops {
		return nil, fmt.Errorf("a walk of %d switches, more than %d", len(hops), maxHops)
	}
	if len(hops) == 0 {
		return nil, fmt.Errorf("no switch is between the two NICs")
	}
	f, g := t.last.Fabric, t.store.Graph()
	p := make(fabric.Path, len(hops))
	for i, h := range hops {
		p[i] = fabric.Hop{Switch: f.Name(h.Switch), In: strconv.Itoa(int(h.In)), Out: strconv.Itoa(int(h.Out))}
		if g.Switch(p[i].Switch) == nil {
			return nil, fmt.Errorf("hop %d is %s, which the topology does not know", i+1, p[i].Switch)
		}
	}
	return p, nil
}

// tell takes what the forwarding tables say of a flow, unless something later is
// known of it.
func (s *Store) tell(k key, w word) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.say(k, w)
	return s.recs.at(s.flows[k]).checked == w.at.UnixNano()
}
