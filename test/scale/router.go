package scale

import "github.com/graylink/graylink/internal/fabric"

// router finds shortest paths as switches with ECMP do.
type router struct {
	g         *fabric.Graph
	cables    map[string][]cable
	distances map[string]map[string]int // of switches, by leaf
}

// cable is a link of a switch to another one.
type cable struct{ port, far, farPort string }

func newRouter(g *fabric.Graph) *router {
	r := &router{g: g, cables: map[string][]cable{}, distances: map[string]map[string]int{}}
	for i := range g.Topo.Links {
		l := &g.Topo.Links[i]
		if fabric.IsNIC(l.A) || fabric.IsNIC(l.B) {
			continue
		}
		a, b := fabric.OwnerOf(l.A), fabric.OwnerOf(l.B)
		portA, portB := l.A[len(a)+1:], l.B[len(b)+1:]
		r.cables[a] = append(r.cables[a], cable{portA, b, portB})
		r.cables[b] = append(r.cables[b], cable{portB, a, portA})
	}
	return r
}

// distancesTo returns how many links each switch is away from one.
func (r *router) distancesTo(sw string) map[string]int {
	if d := r.distances[sw]; d != nil {
		return d
	}
	d := map[string]int{sw: 0}
	for queue := []string{sw}; len(queue) > 0; queue = queue[1:] {
		for _, c := range r.cables[queue[0]] {
			if _, seen := d[c.far]; !seen {
				d[c.far] = d[queue[0]] + 1
				queue = append(queue, c.far)
			}
		}
	}
	r.distances[sw] = d
	return d
}

// path returns the path from one NIC to another that a hash chooses, or nil if there is none.
func (r *router) path(src, dst string, random uint64) fabric.Path {
	at, in := r.g.LeafOf(src)
	last, out := r.g.LeafOf(dst)
	left := r.distancesTo(last)
	if _, known := left[at]; !known {
		return nil
	}
	var p fabric.Path
	for at != last {
		var nearer []cable
		for _, c := range r.cables[at] {
			if left[c.far] == left[at]-1 {
				nearer = append(nearer, c)
			}
		}
		c := nearer[random%uint64(len(nearer))]
		random = hash(at, random)
		p = append(p, fabric.Hop{Switch: at, In: in, Out: c.port})
		at, in = c.far, c.farPort
	}
	return append(p, fabric.Hop{Switch: at, In: in, Out: out})
}
