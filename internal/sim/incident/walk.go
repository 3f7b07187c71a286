package incident

import (
	"fmt"
	"math/rand/v2"

	"github.com/graylink/graylink/internal/fabric"
)

// Fabric is a topology indexed for sending packets through it. It is not for concurrent use: distances are computed
// when needed.
type Fabric struct {
	Graph *fabric.Graph

	nics     []nic
	switches []sw
	dirs     []dir
	dirOf    map[fabric.Direction]int32
	switchOf map[string]int32
	leaves   []int32 // switches with NICs
	byLeaf   map[int32][]int32
	healthy  *routes // for how far things are when all is up
}

const unreached = 255

// nic is a NIC that has a cable.
type nic struct {
	id, node, plane string
	leaf            int32 // switch
	up, down        int32 // dirs: to the leaf, from it
}

type sw struct {
	name  string
	plane string
	tier  int
	out   []int32 // dirs to other switches
}

// dir is one way through a cable.
type dir struct {
	fabric.Direction
	from, to         int32  // switches; -1 where the end is a NIC
	fromPort, toPort string // "" where the end is a NIC
	tier             int
	back             int32 // the other way
}

func (d *dir) isAccess() bool { return d.from < 0 || d.to < 0 }

// NewFabric indexes a topology that has passed its check.
func NewFabric(t *fabric.Topology) *Fabric {
	f := &Fabric{Graph: fabric.NewGraph(t), dirOf: map[fabric.Direction]int32{}, switchOf: map[string]int32{}, byLeaf: map[int32][]int32{}}
	for i := range t.Switches {
		s := &t.Switches[i]
		f.switchOf[s.Name] = int32(i)
		f.switches = append(f.switches, sw{name: s.Name, plane: s.Plane, tier: f.Graph.SwitchTier(s.Name)})
	}
	for i := range t.Links {
		l := &t.Links[i]
		a, b := f.addDirection(l.A, l.B), f.addDirection(l.B, l.A)
		f.dirs[a].tier = f.Graph.LinkTier(l)
		f.dirs[b].tier = f.dirs[a].tier
		f.dirs[a].back, f.dirs[b].back = b, a
	}
	for _, id := range f.Graph.NICIDs() {
		peer := f.Graph.PeerOf(id)
		if peer == "" {
			continue
		}
		up := f.dirOf[fabric.Direction{From: id, To: peer}]
		n := nic{id: id, node: fabric.OwnerOf(id), plane: f.Graph.NIC(id).Plane, leaf: f.dirs[up].to, up: up, down: f.dirs[up].back}
		if f.byLeaf[n.leaf] == nil {
			f.leaves = append(f.leaves, n.leaf)
		}
		f.byLeaf[n.leaf] = append(f.byLeaf[n.leaf], int32(len(f.nics)))
		f.nics = append(f.nics, n)
	}
	f.healthy = f.newRoutes(0, nil)
	return f
}

func (f *Fabric) addDirection(from, to string) int32 {
	d := dir{Direction: fabric.Direction{From: from, To: to}, from: -1, to: -1}
	if name, port, ok := fabric.SplitPort(from); ok {
		d.from, d.fromPort = f.switchOf[name], port
	}
	if name, port, ok := fabric.SplitPort(to); ok {
		d.to, d.toPort = f.switchOf[name], port
	}
	i := int32(len(f.dirs))
	f.dirs = append(f.dirs, d)
	f.dirOf[d.Direction] = i
	if d.from >= 0 && d.to >= 0 {
		f.switches[d.from].out = append(f.switches[d.from].out, i)
	}
	return i
}

// routes holds the paths that packets take: by a hash in every switch over the next
// hops of equal cost, of those that lead on by what is up.
type routes struct {
	f    *Fabric
	salt uint64
	down func(d int32) bool // nil means that all are up
	dist [][]uint8          // by goal, by switch: links to that goal; unreached where there is no way
}

func (f *Fabric) newRoutes(salt uint64, down func(d int32) bool) *routes {
	return &routes{f: f, salt: salt, down: down, dist: make([][]uint8, len(f.switches))}
}

// distancesTo returns how many links every switch is away from a switch.
func (r *routes) distancesTo(leaf int32) []uint8 {
	if r.dist[leaf] != nil {
		return r.dist[leaf]
	}
	d := make([]uint8, len(r.f.switches))
	for i := range d {
		d[i] = unreached
	}
	d[leaf] = 0
	queue := []int32{leaf}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		for _, out := range r.f.switches[s].out {
			if r.down != nil && r.down(r.f.dirs[out].back) {
				continue
			}
			if next := r.f.dirs[out].to; d[next] == unreached {
				d[next] = d[s] + 1
				queue = append(queue, next)
			}
		}
	}
	r.dist[leaf] = d
	return d
}

// appendPath appends the directed links that a flow crosses from one NIC to another;
// false where there is no way. key stands for the header that switches hash.
func (r *routes) appendPath(buf []int32, src, dst *nic, key uint64) ([]int32, bool) {
	buf, ok := r.appendLinks(append(buf, src.up), src.leaf, dst.leaf, key)
	if !ok {
		return buf, false
	}
	return append(buf, dst.down), true
}

// appendDetour lists the same for a flow that goes by a switch.
func (r *routes) appendDetour(buf []int32, src, dst *nic, key uint64, by int32) ([]int32, bool) {
	buf, ok := r.appendLinks(append(buf, src.up), src.leaf, by, key)
	if !ok {
		return buf, false
	}
	if buf, ok = r.appendLinks(buf, by, dst.leaf, key); !ok {
		return buf, false
	}
	return append(buf, dst.down), true
}

// appendLinks appends the directed links from one switch to another.
func (r *routes) appendLinks(buf []int32, from, goal int32, key uint64) ([]int32, bool) {
	dist := r.distancesTo(goal)
	for at := from; at != goal; {
		next, n := int32(-1), uint64(0)
		// The choice is made by rendezvous: a link that goes down moves only its own flows.
		for _, out := range r.f.switches[at].out {
			d := &r.f.dirs[out]
			if dist[at] == unreached || dist[d.to]+1 != dist[at] || r.down != nil && r.down(out) {
				continue
			}
			if w := mixBits(key ^ mixBits(r.salt^uint64(at)<<32^uint64(out))); next < 0 || w > n {
				next, n = out, w
			}
		}
		if next < 0 {
			return buf, false
		}
		buf = append(buf, next)
		at = r.f.dirs[next].to
	}
	return buf, true
}

// drawDetour draws a spine of a third group that has global links to the groups of both NICs. It returns -1 if they are in
// one group, or no such spine was drawn.
func (f *Fabric) drawDetour(rng *rand.Rand, src, dst *nic) int32 {
	group := func(sw int32) string { return f.Graph.Switch(f.switches[sw].name).Group }
	if group(src.leaf) == group(dst.leaf) {
		return -1
	}
	for range 1000 {
		by := int32(rng.IntN(len(f.switches)))
		if g := group(by); f.switches[by].tier == 2 && g != group(src.leaf) && g != group(dst.leaf) && f.healthy.distancesTo(by)[src.leaf] == 2 && f.healthy.distancesTo(by)[dst.leaf] == 2 {
			return by
		}
	}
	return -1
}

// candidatePaths lists every way of equal cost, as hops.
func (r *routes) candidatePaths(src, dst *nic) []fabric.Path {
	dist := r.distancesTo(dst.leaf)
	length := int(dist[src.leaf])
	if length == unreached {
		return nil
	}
	var ways [][]int32
	way := make([]int32, 0, length+2)
	var visit func(at int32)
	visit = func(at int32) {
		if at == dst.leaf {
			ways = append(ways, append(append([]int32(nil), way...), dst.down))
			return
		}
		for _, out := range r.f.switches[at].out {
			if to := r.f.dirs[out].to; dist[to]+1 == dist[at] {
				way = append(way, out)
				visit(to)
				way = way[:len(way)-1]
			}
		}
	}
	way = append(way, src.up)
	visit(src.leaf)
	slab := make([]fabric.Hop, 0, len(ways)*(length+1))
	out := make([]fabric.Path, len(ways))
	for i, w := range ways {
		slab, out[i] = r.f.appendHops(slab, w)
	}
	return out
}

// appendHops writes a way as the switches it crosses, into a slab that has room.
func (f *Fabric) appendHops(slab []fabric.Hop, way []int32) ([]fabric.Hop, fabric.Path) {
	n := len(slab)
	for i := 0; i+1 < len(way); i++ {
		in, out := &f.dirs[way[i]], &f.dirs[way[i+1]]
		slab = append(slab, fabric.Hop{Switch: f.switches[in.to].name, In: in.toPort, Out: out.fromPort})
	}
	return slab, fabric.Path(slab[n:len(slab):len(slab)])
}

// drawRemoteNIC draws a NIC of the same plane under another leaf.
func (f *Fabric) drawRemoteNIC(rng *rand.Rand, n *nic) *nic {
	for range 1000 {
		o := &f.nics[rng.IntN(len(f.nics))]
		if o.leaf != n.leaf && o.plane == n.plane && f.healthy.distancesTo(o.leaf)[n.leaf] != unreached {
			return o
		}
	}
	return nil
}

// drawCable draws a cable between switches, or one of a NIC, in a direction.
func (f *Fabric) drawCable(rng *rand.Rand, access bool) int32 {
	for {
		if d := int32(rng.IntN(len(f.dirs))); f.dirs[d].isAccess() == access {
			return d
		}
	}
}

func edgeName(src, dst string, n int) string { return fmt.Sprintf("%s>%s#%d", src, dst, n) }

// mixBits applies the finaliser of SplitMix64.
func mixBits(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
