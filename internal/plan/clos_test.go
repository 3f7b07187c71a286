package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

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

// catalogueOf returns a catalogue with a port for each shortest path that keep selects, also of those that change sides.
func catalogueOf(t testing.TB, n *Network, jobs []Job, keep func() bool) *Catalogue {
	t.Helper()
	c, _ := catalogueAndText(t, n, jobs, keep)
	return c
}

// catalogueAndText returns what catalogueOf returns, and its lines.
func catalogueAndText(t testing.TB, n *Network, jobs []Job, keep func() bool) (c *Catalogue, text []byte) {
	t.Helper()
	c = NewCatalogue(n)
	err := n.Pairs(jobs, func(src string, dst []string) error {
		sport := uint16(FirstRoCEPort)
		for _, to := range dst {
			for _, p := range n.Graph.ShortestPaths(src, to, maxPaths) {
				if sport++; !keep() {
					continue
				}
				e := Entry{Src: src, Dst: to, Proto: "udp", DPort: RoCEPort, SPort: sport, Path: p, State: Valid, Source: Synthetic}
				c.Add(&e)
				var err error
				if text, err = AppendEntry(text, &e); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil || c.Unusable > 0 {
		t.Fatal(err, c.Unusable)
	}
	return c, text
}

func newRandomFabric(seed int, tiny bool) *randomFabric {
	return &randomFabric{rand: rand.New(rand.NewPCG(uint64(seed), 27)), topo: fabric.Topology{Version: 1}, tiny: tiny}
}

// closSeeds returns the seeds of the random fabrics: 1 to closFabrics, and two of the others at which a search has stopped too early or was long.
func closSeeds() (out []int) {
	for seed := 1; seed <= closFabrics; seed++ {
		out = append(out, seed)
	}
	for _, seed := range []int{137, 177} {
		if seed > closFabrics {
			out = append(out, seed)
		}
	}
	return out
}

const closQPs = 32

// TestRandomClos compares plans of random fabrics with the fractional optimum.
func TestRandomClos(t *testing.T) {
	v := newVerifier(t)
	mean, lowest, seeds, longest := 0.0, 1.0, closSeeds(), time.Duration(0)
	for _, seed := range seeds {
		n, jobs := newRandomFabric(seed, false).build(t)
		c := catalogueOf(t, n, jobs, func() bool { return true })
		before := processorTime(t)
		p, err := Make(&Request{Network: n, Catalogue: c, Jobs: jobs, QPs: closQPs})
		longest = max(longest, processorTime(t)-before)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range p.Jobs {
			if j.Ratio == nil || len(p.Unplaced) > 0 {
				t.Fatalf("fabric %d: job %s has no ratio, or queue pairs have no port: %v", seed, j.Job, p.Unplaced)
			}
		}
		v.check(t, fmt.Sprint("fabric ", seed), n, p, true)
		ratio := p.worstRatio()
		mean += ratio / float64(len(seeds))
		lowest = min(lowest, ratio)
		if ratio < 0.95 {
			t.Errorf("fabric %d: %.4f of the fractional optimum, want 0.95", seed, ratio)
		}
	}
	t.Logf("%d fabrics: worst ratio %.4f, mean %.4f; the longest plan took %s of processors; %s", len(seeds), lowest, mean, longest, v)
	if 10*v.ideals < 9*len(seeds) {
		t.Errorf("the optimum of %d of %d fabrics was computed again, want 90 %%", v.ideals, len(seeds))
	}
	if mean < 0.98 {
		t.Errorf("the mean is %.4f of the fractional optimum, want 0.98", mean)
	}
}

// TestRandomClosOfHalfACatalogue leaves half of the entries out, whichever these are, so that some pairs have no path. The plan is never below the
// best of 100 random draws, by the lowest rate, then the second lowest, and so on. It is also near the optimum over the entries that are left.
func TestRandomClosOfHalfACatalogue(t *testing.T) {
	v := newVerifier(t)
	mean, lowest, compared, seeds, longest := 0.0, 1.0, 0, closSeeds(), time.Duration(0)
	for _, seed := range seeds {
		f := newRandomFabric(seed, false)
		n, jobs := f.build(t)
		c, text := catalogueAndText(t, n, jobs, func() bool { return f.rand.IntN(2) == 0 })
		before := processorTime(t)
		p, err := Make(&Request{Network: n, Catalogue: c, Jobs: jobs, QPs: closQPs})
		longest = max(longest, processorTime(t)-before)
		if err != nil {
			t.Fatal(err)
		}
		v.check(t, fmt.Sprintf("half of fabric %d", seed), n, p, false)
		random, most, byJob := newDraws(t, n, c, jobs)
		got := placedRates(p)
		if len(got) != len(most) {
			t.Fatalf("fabric %d: the plan has %d jobs with paths, want %d", seed, len(got), len(most))
		}
		if len(got) == 0 {
			continue
		}
		v.checkAttainable(t, fmt.Sprintf("half of fabric %d", seed), n, text, p, byJob)
		if best := random.best(f.rand, 100); compareRates(got, best) < 0 {
			t.Errorf("fabric %d: half of the entries: the rates are %.3f Gb/s, and a random draw has %.3f", seed, got, best)
		}
		ratio := got[0] / most[0]
		compared, mean, lowest = compared+1, mean+ratio, min(lowest, ratio)
		if ratio < 0.95 {
			t.Errorf("fabric %d: the lowest rate is %.4f of the optimum over the entries that are left, want 0.95", seed, ratio)
		}
	}
	t.Logf("%d fabrics: worst ratio %.4f, mean %.4f; the longest plan took %s of processors; %s", compared, lowest, mean/float64(compared), longest, v)
	if 10*compared < 9*len(seeds) || v.ideals != compared {
		t.Errorf("%d of %d fabrics have paths, and the optimum of %d was computed again", compared, len(seeds), v.ideals)
	}
}

// placedRates returns the rates of the jobs of which queue pairs are placed, in ascending order.
func placedRates(p *Plan) (out []float64) {
	for _, j := range p.Jobs {
		if j.BusbwGbps != nil {
			out = append(out, *j.BusbwGbps)
		}
	}
	slices.Sort(out)
	return out
}

// randomDraws are allocations at random.
type randomDraws struct {
	a      *allocation
	demand []float64
	placed []bool // by job
}

// newDraws returns draws of jobs, and the optimum over the paths of the catalogue, in ascending order and by the jobs that have paths.
func newDraws(t *testing.T, n *Network, c *Catalogue, jobs []Job) (d *randomDraws, most []float64, byJob map[string]float64) {
	t.Helper()
	conns, err := n.connections(jobs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range conns {
		conns[i].qps = closQPs
	}
	d = &randomDraws{a: newAllocation(n, c, conns, make([]float64, len(jobs)), 0), demand: demands(jobs), placed: make([]bool, len(jobs))}
	some := false
	for i, o := range d.a.options {
		d.placed[conns[i].job] = d.placed[conns[i].job] || len(o) > 0
		some = some || len(o) > 0
	}
	if !some {
		return d, nil, nil
	}
	rates, ok := d.a.attainable(d.demand)
	if !ok {
		t.Fatal("the optimum over the paths of the catalogue is not known")
	}
	byJob = map[string]float64{}
	for j := range jobs {
		if d.placed[j] {
			byJob[jobs[j].Job] = rates[j]
		}
	}
	return d, d.ofPlaced(rates), byJob
}

// ofPlaced returns the rates of the jobs that have paths, in ascending order.
func (d *randomDraws) ofPlaced(rates []float64) (out []float64) {
	for j, rate := range rates {
		if d.placed[j] {
			out = append(out, rate)
		}
	}
	slices.Sort(out)
	return out
}

// best returns the best rates of a number of draws.
func (d *randomDraws) best(r *rand.Rand, count int) (best []float64) {
	for range count {
		for q := range d.a.choice {
			if o := d.a.options[d.a.connOf[q]]; len(o) > 0 {
				d.a.choice[q] = int32(r.IntN(len(o)))
			}
		}
		rates, _, _ := d.a.ratesNow(d.demand)
		if got := d.ofPlaced(rates); best == nil || compareRates(got, best) > 0 {
			best = got
		}
	}
	return best
}

// TestSearchIsBounded counts the steps of a search that reaches no aim. What is asked for last may take a few more.
func TestSearchIsBounded(t *testing.T) {
	const steps, more = 200_000, 20_000
	n, jobs := newRandomFabric(177, false).build(t)
	conns, err := n.connections(jobs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range conns {
		conns[i].qps = closQPs
	}
	for _, limit := range []int{steps, 2 * steps} {
		a := newAllocation(n, catalogueOf(t, n, jobs, func() bool { return true }), conns, slices.Repeat([]float64{1e6}, len(jobs)), limit)
		a.fill()
		a.improve()
		used := limit - a.steps
		a.refine(demands(jobs))
		t.Logf("of %d steps: %d before refine, %d left", limit, used, a.steps)
		if used > limit+more || a.steps < -more {
			t.Errorf("limit %d: %d steps before refine, %d left behind it", limit, used, a.steps)
		}
	}
}

// TestTinyClos compares plans of tiny fabrics with the best of all allocations.
func TestTinyClos(t *testing.T) {
	tried, v := 0, newVerifier(t)
	for seed := 1; tried < tinyFabrics; seed++ {
		f := newRandomFabric(seed, true)
		n, jobs := f.build(t)
		c := catalogueOf(t, n, jobs, func() bool { return true })
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
		if got := placedRates(p); compareRates(got, best) != 0 {
			t.Errorf("fabric %d: the plan has %v Gb/s, and the best of %d allocations %v", seed, got, size, best)
		}
		v.check(t, fmt.Sprint("tiny fabric ", seed), n, p, true)
	}
	if t.Logf("%d tiny fabrics: %s", tried, v); v.ideals != tried {
		t.Errorf("the optimum of %d of %d fabrics was computed again", v.ideals, tried)
	}
}
