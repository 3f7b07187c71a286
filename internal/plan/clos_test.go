package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// randomFabric builds random Clos fabrics.
type randomFabric struct {
	rand *rand.Rand
	topo fabric.Topology
	// tiny limits the fabric to what all allocations can be tried of.
	tiny bool
}

func (f *randomFabric) between(low, high int) int { return low + f.rand.IntN(high-low+1) }

// connect adds a link between switches, unless it is cut.
func (f *randomFabric) connect(lower, upper string, mayBeCut bool) {
	if mayBeCut && f.rand.IntN(8) == 0 {
		return
	}
	speeds := []float64{200, 400, 400, 800}
	f.topo.Links = append(f.topo.Links, fabric.Link{A: lower + ":to-" + upper, B: upper + ":to-" + lower, SpeedGbps: speeds[f.rand.IntN(len(speeds))]})
}

// plane adds the switches of a plane and returns its leaves. The first spine of a pod and the first core are connected to all, so that
// a path is left wherever links are cut.
func (f *randomFabric) plane(plane, pods, perPod, spines, cores int) (leaves []string) {
	add := func(role fabric.Role, kind string, i int) string {
		name := fmt.Sprint("p", plane, kind, i)
		f.topo.Switches = append(f.topo.Switches, fabric.Switch{Name: name, Role: role})
		return name
	}
	var all []string
	for c := range cores {
		all = append(all, add(fabric.Core, "core", c))
	}
	for pod := range pods {
		var up []string
		for s := range spines {
			spine := add(fabric.Spine, "spine", pod*spines+s)
			up = append(up, spine)
			for c, core := range all {
				f.connect(spine, core, c > 0)
			}
		}
		for l := range perPod {
			leaf := add(fabric.Leaf, "leaf", pod*perPod+l)
			leaves = append(leaves, leaf)
			for s, spine := range up {
				f.connect(leaf, spine, s > 0)
			}
		}
	}
	return leaves
}

// build returns a fabric with jobs on it.
func (f *randomFabric) build(t testing.TB) (*Network, []Job) {
	t.Helper()
	pods, cores, planes, perPod, spines, hosts := 1, 0, f.between(1, 2), f.between(2, 4), f.between(2, 4), f.between(2, 3)
	if f.rand.IntN(2) == 0 {
		pods, perPod, cores, spines = 2, 2, f.between(2, 3), 2
	}
	if f.tiny {
		pods, cores, planes, perPod, spines, hosts = 1, 0, 1, 2, f.between(2, 3), f.between(1, 2)
	}
	bonded := planes == 2 && f.rand.IntN(2) == 0
	var names []string
	for h := range pods * perPod * hosts {
		names = append(names, fmt.Sprint("h", h))
		f.topo.Nodes = append(f.topo.Nodes, fabric.Node{Name: names[h]})
	}
	for plane := range planes {
		leaves := f.plane(plane, pods, perPod, spines, cores)
		for h, name := range names {
			nic := fabric.NIC{Node: name, Device: fmt.Sprint("eth", plane), Side: fmt.Sprint("side", plane)}
			f.topo.Nodes[h].NICs = append(f.topo.Nodes[h].NICs, nic)
			f.topo.Links = append(f.topo.Links, fabric.Link{A: nic.ID(), B: fmt.Sprintf("%s:to-%s", leaves[h/hosts], name), SpeedGbps: 400})
		}
	}
	for h := range f.topo.Nodes {
		if bonded {
			f.topo.Nodes[h].Bonds = []fabric.Bond{{Name: "bond0", Members: []string{"eth0", "eth1"}}}
		}
	}
	n, err := NewNetwork(fabric.NewGraph(&f.topo), DefaultGoodput)
	if err != nil {
		t.Fatal(err)
	}
	return n, f.jobs(names)
}

// jobs places jobs of two to five nodes each.
func (f *randomFabric) jobs(names []string) (out []Job) {
	f.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for len(names) >= 2 {
		size := min(len(names), f.between(2, 5))
		j := Job{Job: fmt.Sprint("j", len(out)), Order: slices.Clone(names[:size])}
		if f.rand.IntN(4) == 0 {
			j.Collective = AllToAll
		}
		if f.tiny {
			j.QPs = f.between(1, 2)
		}
		if f.rand.IntN(6) == 0 {
			demand := float64(f.between(50, 300))
			j.DemandGbps = &demand
		}
		out, names = append(out, j), names[size:]
	}
	return out
}

// wholeCatalogue returns a catalogue with a port for each shortest path, also of those that change sides; keep selects entries beside the first one.
func wholeCatalogue(t testing.TB, n *Network, jobs []Job, keep func() bool) *Catalogue {
	t.Helper()
	c := NewCatalogue(n)
	err := n.Pairs(jobs, func(src string, dst []string) error {
		sport := uint16(FirstRoCEPort)
		for _, to := range dst {
			for i, p := range n.Graph.ShortestPaths(src, to, maxPaths) {
				if sport++; keep() || i == 0 {
					c.Add(&Entry{Src: src, Dst: to, Proto: "udp", DPort: RoCEPort, SPort: sport, Path: p, State: Valid, Source: Synthetic})
				}
			}
		}
		return nil
	})
	if err != nil || c.Unusable > 0 {
		t.Fatal(err, c.Unusable)
	}
	return c
}

func newRandomFabric(seed int, tiny bool) *randomFabric {
	return &randomFabric{rand: rand.New(rand.NewPCG(uint64(seed), 27)), topo: fabric.Topology{Version: 1}, tiny: tiny}
}

// TestRandomClos compares plans of random fabrics with the fractional optimum and, where half of the entries are gone, with the best of 100
// random draws.
func TestRandomClos(t *testing.T) {
	const qps = 32
	mean, lowest := 0.0, 1.0
	for seed := 1; seed <= closFabrics; seed++ {
		f := newRandomFabric(seed, false)
		n, jobs := f.build(t)
		p, err := Make(&Request{Network: n, Catalogue: wholeCatalogue(t, n, jobs, func() bool { return true }), Jobs: jobs, QPs: qps})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range p.Jobs {
			if j.Ratio == nil || len(p.Unplaced) > 0 {
				t.Fatalf("fabric %d: job %s has no ratio, or queue pairs have no port: %v", seed, j.Job, p.Unplaced)
			}
		}
		ratio := p.worstRatio()
		mean += ratio / closFabrics
		lowest = min(lowest, ratio)
		if ratio < 0.95 {
			t.Errorf("fabric %d: %.4f of the fractional optimum, want 0.95", seed, ratio)
		}
		half := wholeCatalogue(t, n, jobs, func() bool { return f.rand.IntN(2) == 0 })
		if p, err = Make(&Request{Network: n, Catalogue: half, Jobs: jobs, QPs: qps}); err != nil {
			t.Fatal(err)
		}
		if best := bestDraw(t, f.rand, n, half, jobs, qps); lowestRate(p) < best*(1-1e-6) {
			t.Errorf("fabric %d: half of the entries: the lowest rate is %.3f Gb/s, and a random draw has %.3f", seed, lowestRate(p), best)
		}
	}
	t.Logf("%d fabrics: worst ratio %.4f, mean %.4f", closFabrics, lowest, mean)
	if mean < 0.98 {
		t.Errorf("the mean is %.4f of the fractional optimum, want 0.98", mean)
	}
}

// lowestRate returns the lowest rate of the jobs of which queue pairs are placed.
func lowestRate(p *Plan) float64 {
	least := -1.0
	for _, j := range p.Jobs {
		if j.BusbwGbps != nil && (least < 0 || *j.BusbwGbps < least) {
			least = *j.BusbwGbps
		}
	}
	return least
}

// bestDraw returns the highest of the lowest rates of 100 random draws.
func bestDraw(t *testing.T, r *rand.Rand, n *Network, c *Catalogue, jobs []Job, qps int) (best float64) {
	t.Helper()
	conns, err := n.connections(jobs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range conns {
		conns[i].qps = qps
	}
	a := newAllocation(n, c, conns, make([]float64, len(jobs)), 0)
	placed := make([]bool, len(jobs))
	for i, o := range a.options {
		placed[conns[i].job] = placed[conns[i].job] || len(o) > 0
	}
	for range 100 {
		for q := range a.choice {
			if o := a.options[a.connOf[q]]; len(o) > 0 {
				a.choice[q] = int32(r.IntN(len(o)))
			}
		}
		rates, _, _ := a.ratesNow(demands(jobs))
		least := -1.0
		for j, rate := range rates {
			if placed[j] && (least < 0 || rate < least) {
				least = rate
			}
		}
		best = max(best, least)
	}
	return best
}

// TestTinyClos compares plans of tiny fabrics with the best of all allocations.
func TestTinyClos(t *testing.T) {
	tried := 0
	for seed := 1; tried < tinyFabrics; seed++ {
		f := newRandomFabric(seed, true)
		n, jobs := f.build(t)
		c := wholeCatalogue(t, n, jobs, func() bool { return true })
		conns, err := n.connections(jobs)
		if err != nil {
			t.Fatal(err)
		}
		a := newAllocation(n, c, conns, make([]float64, len(jobs)), 0)
		size := 1
		for _, c := range a.connOf {
			size = min(size*len(a.options[c]), 1<<20)
		}
		if size < 2 || size > 1<<13 {
			continue
		}
		tried++
		var best []float64
		for number := range size {
			for q := range a.choice {
				k := len(a.options[a.connOf[q]])
				a.choice[q] = int32(number % k)
				number /= k
			}
			rates, _, _ := a.ratesNow(demands(jobs))
			if slices.Sort(rates); best == nil || compareRates(rates, best) > 0 {
				best = rates
			}
		}
		p, err := Make(&Request{Network: n, Catalogue: c, Jobs: jobs})
		if err != nil {
			t.Fatal(err)
		}
		var got []float64
		for _, j := range p.Jobs {
			got = append(got, *j.BusbwGbps)
		}
		if slices.Sort(got); compareRates(got, best) != 0 {
			t.Errorf("fabric %d: the plan has %v Gb/s, and the best of %d allocations %v", seed, got, size, best)
		}
	}
}
