// Package catalogue finds and keeps the paths that RoCE v2 flows between two NICs would take, by their UDP source ports.
// The planner chooses from them. The rules are:
//
//  1. A path is known by the trace of its own tuple. The paths of probes have another destination port, and switches hash
//     both.
//  2. The ports of a pair of NICs are traced in batches of batchPorts until every live uplink of the source's leaf has enough
//     of them, or until maxPorts were traced. An uplink is live if no open verdict, maintenance window or exclusion of
//     the request has it, and if packets take it.
//  3. Each leaf is checked for what it hashes. If packets of one tuple have several paths, there is nothing to choose, and no
//     path of the leaf is valid. That is also so if the NIC may mark packets for adaptive routing, because marked packets
//     are sprayed and copies are not marked; and while the leaf is known to spray, by the topology file or by what its flows
//     show. Nothing is traced then.
//  4. A path is stale after freshFor. If one path of a pair has changed, all paths from and to its leaves are stale.
//  5. Memory is bounded by maxEntries. Beyond it, the pairs that were built longest ago are forgotten.
package catalogue

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plan"
)

const (
	firstPort  = plan.FirstRoCEPort
	batchPorts = 16
	maxPorts   = 256 // of a pair
	freshFor   = 10 * time.Minute
	maxEntries = 1 << 17
	// spareEntries is how many more ports an uplink has than an even split of the queue pairs needs.
	spareEntries = 2
)

// Exclusion is an element that no path of the catalogue has.
type Exclusion struct {
	plan.Exclusion
	touches func(fabric.Direction) bool
}

// Pair is a pair of NICs.
type Pair struct {
	Src string `json:"src"`
	Dst string `json:"dst"`
}

type pairKey struct {
	Pair
	dscp int
}

// pairEntries are the entries of a pair by source port.
type pairEntries struct {
	entries []plan.Entry
	builtAt time.Time
}

// leafCheck is the result of the check of a leaf. An empty reason means that it hashes the tuple only.
type leafCheck struct {
	reason plan.Reason
	at     time.Time
}

// store keeps the entries.
type store struct {
	mu    sync.Mutex
	pairs map[pairKey]*pairEntries
	count int
	leafs map[string]leafCheck
}

func newStore() *store {
	return &store{pairs: map[pairKey]*pairEntries{}, leafs: map[string]leafCheck{}}
}

// entriesOf returns a copy of the entries of a pair.
func (s *store) entriesOf(key pairKey) []plan.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pairs[key]; p != nil {
		return slices.Clone(p.entries)
	}
	return nil
}

// put replaces the entries of a pair by rule 5.
func (s *store) put(key pairKey, entries []plan.Entry, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
	s.pairs[key] = &pairEntries{slices.Clone(entries), now}
	s.count += len(entries)
	for s.count > maxEntries && len(s.pairs) > 1 {
		var oldest pairKey
		var at time.Time
		for k, p := range s.pairs {
			if k != key && (at.IsZero() || p.builtAt.Before(at)) {
				oldest, at = k, p.builtAt
			}
		}
		s.remove(oldest)
	}
}

// remove forgets a pair. The caller holds mu.
func (s *store) remove(key pairKey) {
	if p := s.pairs[key]; p != nil {
		s.count -= len(p.entries)
		delete(s.pairs, key)
	}
}

// expireLeaves marks the paths from and to leaves as stale, except those of a pair, and forgets what the leaves hash.
func (s *store) expireLeaves(g *fabric.Graph, leaves []string, except pairKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range leaves {
		delete(s.leafs, l)
	}
	for key, p := range s.pairs {
		from, _ := g.LeafOf(key.Src)
		to, _ := g.LeafOf(key.Dst)
		if key == except || !slices.Contains(leaves, from) && !slices.Contains(leaves, to) {
			continue
		}
		for i := range p.entries {
			if p.entries[i].State == plan.Valid {
				p.entries[i].State = plan.Stale
			}
		}
	}
}

// checkOf returns the result of a leaf's check, if it is fresh.
func (s *store) checkOf(leaf string, now time.Time) (leafCheck, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.leafs[leaf]
	return c, ok && now.Sub(c.at) < freshFor
}

func (s *store) setCheck(leaf string, c leafCheck) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leafs[leaf] = c
}

// list returns the entries of the pairs that match, in the order of source, destination, DSCP and port. An empty name
// matches all.
func (s *store) list(src, dst string, now time.Time) []plan.Entry {
	s.mu.Lock()
	out := []plan.Entry{}
	for key, p := range s.pairs {
		if (src == "" || key.Src == src) && (dst == "" || key.Dst == dst) {
			out = append(out, p.entries...)
		}
	}
	s.mu.Unlock()
	for i := range out {
		expire(&out[i], now)
	}
	slices.SortFunc(out, compareEntries)
	return out
}

func compareEntries(a, b plan.Entry) int {
	if c := strings.Compare(a.Src, b.Src); c != 0 {
		return c
	}
	if c := strings.Compare(a.Dst, b.Dst); c != 0 {
		return c
	}
	if a.DSCP != b.DSCP {
		return int(a.DSCP) - int(b.DSCP)
	}
	return int(a.SPort) - int(b.SPort)
}

// expire marks an entry that has not been confirmed for long as stale.
func expire(e *plan.Entry, now time.Time) {
	if e.State == plan.Valid && now.Sub(e.Confirmed) >= freshFor {
		e.State = plan.Stale
	}
}

// tupleOf returns the tuple of an entry.
func tupleOf(e *plan.Entry) fabric.Tuple {
	return fabric.Tuple{Src: e.Src, Dst: e.Dst, Proto: e.Proto, DPort: int(e.DPort), SPort: int(e.SPort), DSCP: int(e.DSCP)}
}

// newEntry returns the entry of a trace.
func newEntry(g *fabric.Graph, t *fabric.TupleTrace) plan.Entry {
	e := plan.Entry{Src: t.Tuple.Src, Dst: t.Tuple.Dst, SrcAddr: g.ProbeAddress(t.Tuple.Src), DstAddr: g.ProbeAddress(t.Tuple.Dst), Proto: "udp",
		DPort: plan.RoCEPort, DSCP: uint8(t.Tuple.DSCP), SPort: uint16(t.Tuple.SPort), Source: plan.Traced, Confirmed: t.Trace.TracedAt.UTC(), State: plan.Unknown}
	for _, dst := range sidesOf(g, t.Tuple.Dst) {
		if r := fabric.ResolveTrace(g, e.Src, dst, t.Trace); r.State == fabric.PathValid {
			e.State, e.Path, e.Dst = plan.Valid, r.Path, dst
			break
		}
	}
	return e
}

// sidesOf returns a NIC and the other members of its bond, to which packets for the bond's address may be forwarded.
func sidesOf(g *fabric.Graph, nic string) []string {
	out := []string{nic}
	owner, device, _ := fabric.SplitNIC(nic)
	if node := g.Node(owner); node != nil {
		for _, b := range node.Bonds {
			if slices.Contains(b.Members, device) {
				for _, m := range b.Members {
					if m != device {
						out = append(out, owner+"/"+m)
					}
				}
			}
		}
	}
	return out
}

// isOut reports whether a path takes a direction that is excluded.
func isOut(e *plan.Entry, excluded []Exclusion) bool {
	for _, d := range e.Path.LinkDirections(e.Src, e.Dst) {
		for _, x := range excluded {
			if x.touches(d) {
				return true
			}
		}
	}
	return false
}

// dropExcluded returns the entries without those of paths that are excluded.
func dropExcluded(entries []plan.Entry, excluded []Exclusion) []plan.Entry {
	return slices.DeleteFunc(entries, func(e plan.Entry) bool { return isOut(&e, excluded) })
}
