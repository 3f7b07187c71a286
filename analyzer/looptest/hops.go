package looptest

import (
	"net/netip"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/questions"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// hopGrant is a hop-limited probe that was granted.
type hopGrant struct {
	questions.HopID
	incident string
	at       time.Time
	count    fabric.HopCount
}

// Hops returns how many hop-limited probes there are now.
func (m *Mesh) Hops() int { return len(m.hops) }

// grantHops grants the probes of a question, and returns all that its incident has.
func (m *Mesh) grantHops(q questions.Question) (ids []questions.HopID) {
	for _, p := range q.Hops {
		id := questions.HopID{Flow: p.Flow, Hop: p.Hop}
		if !slices.ContainsFunc(m.hops, func(g hopGrant) bool { return g.HopID == id }) {
			m.hops = append(m.hops, hopGrant{HopID: id, incident: q.Incident, at: m.now, count: fabric.HopCount{TTL: p.Hop, Answered: map[netip.Addr]uint64{}}})
		}
		ids = append(ids, id)
	}
	return ids
}

func (m *Mesh) endHops(incident string) {
	m.hops = slices.DeleteFunc(m.hops, func(g hopGrant) bool { return g.incident == incident })
}

// probeHops sends each probe once in the world of a rig, unless it was granted a moment ago.
func (m *Mesh) probeHops(r *Rig) {
	m.hops = slices.DeleteFunc(m.hops, func(g hopGrant) bool { return r.Now.Sub(g.at) >= grantedFor })
	for i := range m.hops {
		g := &m.hops[i]
		path := r.World.Paths[g.Flow]
		if r.Now.Sub(g.at) < changeover || len(path) < g.Hop {
			continue
		}
		g.count.Sent++
		there := path.LinkDirections(g.Flow.Src, g.Flow.Dst)[:g.Hop]
		if arrives(r.World, there) && arrives(r.World, wayBack(r, path, g)) && r.World.Random.Float64() >= m.Policed {
			g.count.Answered[r.World.TraceOf(g.Flow, r.Now).Hops[g.Hop-1].Address]++
		}
	}
}

// arrives draws whether a packet arrives that takes some links.
func arrives(w *worldtest.World, way []fabric.Direction) bool {
	for _, d := range way {
		if w.Random.Float64() < w.Loss[d] {
			return false
		}
	}
	return true
}

// wayBack returns the links by which the answer of a switch returns. A switch hashes it as it likes, the same one always.
func wayBack(r *Rig, path fabric.Path, g *hopGrant) (way []fabric.Direction) {
	graph := r.World.Graph
	leaf, _ := graph.LeafOf(g.Flow.Src)
	dist := graph.SwitchDistances(leaf)
	for at := path[g.Hop-1].Switch; at != leaf; {
		var next []fabric.Direction
		for _, end := range graph.EndsOf(at) {
			peer := graph.PeerOf(end)
			if d, ok := dist[fabric.OwnerOf(peer)]; ok && d == dist[at]-1 {
				next = append(next, fabric.Direction{From: end, To: peer})
			}
		}
		d := next[len(g.Flow.String())%len(next)]
		way = append(way, d)
		at = fabric.OwnerOf(d.To)
	}
	return append(way, fabric.Direction{From: graph.PeerOf(g.Flow.Src), To: g.Flow.Src})
}

// tracesOf returns the traces of a node's flows that have hop-limited probes, with their counts.
func (m *Mesh) tracesOf(r *Rig, node string) (out []fabric.Trace) {
	for i := range m.hops {
		g := &m.hops[i]
		if fabric.OwnerOf(g.Flow.Src) != node || g.count.Sent == 0 {
			continue
		}
		t := r.World.TraceOf(g.Flow, r.Now)
		t.HopProbes = []fabric.HopCount{g.count}
		out = append(out, t)
	}
	return out
}
