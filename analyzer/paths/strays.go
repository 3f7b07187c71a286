package paths

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// Stray is a flow whose packets take another path than its sender chose, as a trace of it shows.
type Stray struct {
	Flow fabric.Flow
	// Path is the chosen path, and Hop the index of its first switch that a packet did not come to as it should.
	Path fabric.Path
	Hop  int
	// End is the port at which the packet came in instead, or the name of its switch if the port is not known.
	End string
}

// strayOf compares a chosen path with the hops that answered to packets by its carrier. It returns the index of the first hop that is
// another one, and where the packet was. Silent hops and addresses that the topology does not have say nothing, and neither does a port
// unless the switch before it could have sent the packet there.
func strayOf(g *fabric.Graph, p fabric.Path, hops []fabric.RawHop) (hop int, end string, ok bool) {
	for _, h := range hops {
		if !h.Address.IsValid() || h.TTL < 1 {
			continue
		}
		at, _ := fabric.IngressPort(g, h)
		i := h.TTL - 1
		switch {
		case at == "" || fabric.IsNIC(at):
		case i >= len(p):
			return len(p) - 1, at, true
		case fabric.OwnerOf(at) != p[i].Switch:
			return i, at, true
		case i > 0 && at != p[i].Switch+":"+p[i].In && fabric.OwnerOf(g.PeerOf(at)) == p[i-1].Switch:
			return i, at, true
		}
	}
	return 0, "", false
}

// compareTrace records whether a trace of a flow contradicts its chosen path. If it does, the path is unknown. The lock is held.
func (s *Store) compareTrace(k flowKey, e fabric.Flow, hops []fabric.RawHop, r fabric.Resolved) fabric.Resolved {
	if r.State != fabric.PathValid {
		delete(s.strays, k)
		return r
	}
	i, end, ok := strayOf(s.g, r.Path, hops)
	if !ok {
		delete(s.strays, k)
		return r
	}
	s.strays[k] = Stray{Flow: e, Path: r.Path, Hop: i, End: end}
	note := fmt.Sprintf("the packets do not take the chosen path: at hop %d they come to %s, and not to %s:%s", i+1, end, r.Path[i].Switch, r.Path[i].In)
	return fabric.Resolved{State: fabric.PathUnknown, Notes: append(slices.Clone(r.Notes), note)}
}

// Strays returns the flows whose last trace contradicts the path that their sender chose, in order.
func (s *Store) Strays() []Stray {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.strays) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Values(s.strays), func(a, b Stray) int { return cmp.Compare(a.Flow.String(), b.Flow.String()) })
}
