package incident

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// slots are the steps of a window in which queues change.
const slots = 100

// What a healthy fabric is like, in nanoseconds.
const (
	cableDelay  = 300   // propagation and serialisation, per cable
	switchDelay = 500   // per switch
	meanService = 120   // of a queue's packets
	burstLeast  = 2e3   // the least height of a burst's queue, Pareto from there
	burstMost   = 200e3 // a shared buffer's worth
	markFrom    = 40e3  // queue from which ECN marks begin
	markAll     = 120e3 // and from which all are marked
)

// element represents a place where a packet may be held up, marked or lost: a queue, or something that only certain
// flows meet.
type element struct {
	queue      [slots]float32 // ns
	held       []float32      // ns, without a queue that marks; nil if none
	lose, mark float64
}

// host is a node in one window.
type host struct {
	stall       [slots]float32 // ns, on every packet sent or received
	stampFactor float32        // by how much its stamps are later than a quiet host's
	offset      [slots]float32 // ns, of its clock
}

// stamps is how late time stamps are taken: of a packet sent, of one received.
type stamps struct {
	name    string
	tx, rx  float32 // ns, medians
	outlier float32 // ns, mean of a rare one
	bound   float64 // ns, the greatest error that a clock claims
}

var kernelStamps = stamps{"kernel", 2500, 4000, 150e3, 2000}

// quietStamps are those of a kernel whose host has little else to do.
var quietStamps = stamps{"kernel", 1500, 2500, 30e3, 2000}
var hardwareStamps = stamps{"hardware", 15, 15, 0, 200}

// outlierShare of the probes, of 65,536, meet an interrupt that comes late.
const outlierShare = 65

// flow is one direction of a probe's flow.
type flow struct {
	src, dst   *nic
	name       string
	class      int
	key        uint64
	traced     bool
	staleKey   uint64 // key of a way that it was traced on long ago; 0: none
	back       *flow  // its replies
	p50s, p99s []int64
	base       *fabric.Quantiles
	candidates []fabric.Path
	by         int32 // spine of a third group that it goes by; -1: none
}

// appendWay lists the directed links that a flow crosses by routes.
func (fl *flow) appendWay(r *routes, buf []int32, key uint64) ([]int32, bool) {
	if fl.by >= 0 {
		return r.appendDetour(buf, fl.src, fl.dst, key, fl.by)
	}
	return r.appendPath(buf, fl.src, fl.dst, key)
}

// extra is an element that only certain flows cross.
type extra struct {
	id    int32
	match func(src, dst *nic, way []int32) bool
}

// shape is how a fault's delay goes by the slots of a window.
type shape int

const (
	steady   shape = iota // always the same
	queued                // a standing queue that wanders
	spiky                 // a few slots, far up
	sawtooth              // fills and drains, as synchronised senders do
)

// effect represents the effect of a fault on elements, in some windows.
type effect struct {
	at         []int32
	activeIn   func(window int) bool
	shape      shape
	delay      float64 // ns
	lose, mark float64
	together   bool // the elements spike in the same slots
	unqueued   bool // what holds packets up is no queue that could mark them; steady never is
	fault      int  // line of the truth
	added      float64
	slots      int // over which it added that, ns
}

// model is a fabric in motion.
type model struct {
	f           *Fabric
	rng         *rand.Rand
	stamps      stamps
	classes     []string
	load        []float64 // by queue
	cross       []bool    // by queue: bulk traffic comes and goes
	elems       []element // queues by class and direction, then extras
	extras      []extra
	effects     []effect
	hosts       map[string]*host
	bound       map[string]float64 // ns, that a node's clock claims
	bursts      bool
	detours     float64 // share of flows
	starved     func(node string, window int) float64
	clock       func(node string, window, slot int) float64 // ns beyond the bound
	lateSamples [4096]float32                               // a sample of how late stamps are, of median 1
	flows       []*flow
	crossed     []int32
	sample      []int64
}

func newModel(f *Fabric, rng *rand.Rand, s stamps, classes []string, cross bool) *model {
	m := &model{f: f, rng: rng, stamps: s, classes: classes, hosts: map[string]*host{}, bound: map[string]float64{}}
	m.elems = make([]element, len(f.dirs)*len(classes))
	for range m.elems {
		m.load = append(m.load, 0.05+0.45*rng.Float64())
		m.cross = append(m.cross, cross && rng.Float64() < 0.1)
	}
	for i := range m.lateSamples {
		m.lateSamples[i] = float32(math.Exp(0.5 * rng.NormFloat64()))
	}
	for i := range f.nics {
		if n := f.nics[i].node; m.hosts[n] == nil {
			m.hosts[n] = &host{}
			m.bound[n] = s.bound * (0.25 + 0.75*rng.Float64())
		}
	}
	return m
}

// queueID returns the element of one direction and class.
func (m *model) queueID(d int32, class int) int32 { return int32(class*len(m.f.dirs)) + d }

// queuesOf returns the queues of a direction, for all classes.
func (m *model) queuesOf(d int32) []int32 {
	var out []int32
	for c := range m.classes {
		out = append(out, m.queueID(d, c))
	}
	return out
}

// addExtra adds an element that the flows meet that match.
func (m *model) addExtra(match func(src, dst *nic, way []int32) bool) int32 {
	id := int32(len(m.elems))
	m.elems = append(m.elems, element{})
	m.extras = append(m.extras, extra{id, match})
	return id
}

// layOutMesh lays out the probes: every NIC probes some neighbours under its leaf and some NICs elsewhere, with a
// flow for each class.
func (m *model) layOutMesh(local, remote int, know Knowledge) {
	f := m.f
	for i := range f.nics {
		src := &f.nics[i]
		var peers []*nic
		pick := func(o *nic) {
			if o != nil && o != src && !slices.Contains(peers, o) {
				peers = append(peers, o)
			}
		}
		near := f.byLeaf[src.leaf]
		for k := range min(local, len(near)-1) {
			pick(&f.nics[near[(slices.Index(near, int32(i))+1+k*max(1, len(near)/(local+1)))%len(near)]])
		}
		for range remote {
			pick(f.drawRemoteNIC(m.rng, src))
		}
		for _, dst := range peers {
			for c := range m.classes {
				fw := m.newFlow(src, dst, edgeName(src.id, dst.id, c*fabric.FlowsPerClass), c, know)
				fw.back = m.newFlow(dst, src, fw.name+"/r", c, know)
				m.flows = append(m.flows, fw)
			}
		}
	}
}

// layOutFlows lays out the probes of given flows, with one for each class.
func (m *model) layOutFlows(flows []fabric.Flow, know Knowledge) {
	at := map[string]*nic{}
	for i := range m.f.nics {
		at[m.f.nics[i].id] = &m.f.nics[i]
	}
	for _, f := range flows {
		src, dst := at[f.Src], at[f.Dst]
		for c := range m.classes {
			fw := m.newFlow(src, dst, edgeName(f.Src, f.Dst, c*fabric.FlowsPerClass+f.Number), c, know)
			fw.back = m.newFlow(dst, src, fw.name+"/r", c, know)
			m.flows = append(m.flows, fw)
		}
	}
}

func (m *model) newFlow(src, dst *nic, name string, class int, know Knowledge) *flow {
	fl := &flow{src: src, dst: dst, name: name, class: class, key: m.rng.Uint64(), by: -1}
	if m.detours > 0 && m.rng.Float64() < m.detours {
		fl.by = m.f.drawDetour(m.rng, src, dst)
	}
	switch know {
	case Known, LossyTraced, "":
		fl.traced = true
	case Stale:
		fl.traced = true
		if m.rng.Float64() < staleShare {
			fl.staleKey = m.rng.Uint64() | 1
		}
	case Half:
		fl.traced = m.rng.IntN(2) == 0
	}
	return fl
}

// beginWindow draws what a window is like, faults in it included; window < 0 is one
// before there was a fault.
func (m *model) beginWindow(window int) {
	rng := m.rng
	for i := range m.elems {
		e := &m.elems[i]
		e.held, e.lose, e.mark = nil, 0, 0
		if i >= len(m.load) {
			e.queue = [slots]float32{}
			continue
		}
		load := m.load[i] * (0.8 + 0.4*rng.Float64())
		wait := meanService * load / (1 - load)
		for s := range e.queue {
			e.queue[s] = float32(wait * rng.ExpFloat64())
		}
		for at := rng.ExpFloat64() / (4 * load); at < 1; at += rng.ExpFloat64() / (4 * load) {
			e.addBurst(int(at*slots), 1+int(rng.ExpFloat64()), burstLeast*math.Pow(1-rng.Float64(), -1/1.6))
		}
		if m.cross[i] && rng.IntN(3) == 0 {
			e.addBurst(rng.IntN(slots), 3+rng.IntN(8), 40e3+80e3*rng.Float64())
		}
	}
	for i := range m.effects {
		if x := &m.effects[i]; window >= 0 && x.activeIn(window) {
			m.applyEffect(x)
		}
	}
	for _, node := range m.nodeNames() {
		m.drawHost(node, window)
	}
}

func (e *element) addBurst(at, length int, height float64) {
	for s := at; s < min(slots, at+length); s++ {
		e.queue[s] += float32(min(height, burstMost))
	}
}

// nodeNames in a fixed order, for the same seed to make the same case.
func (m *model) nodeNames() []string {
	var out []string
	for i := range m.f.Graph.Topo.Nodes {
		if n := m.f.Graph.Topo.Nodes[i].Name; m.hosts[n] != nil {
			out = append(out, n)
		}
	}
	return out
}

func (m *model) drawHost(node string, window int) {
	h, rng := m.hosts[node], m.rng
	h.stall = [slots]float32{}
	h.stampFactor = float32(0.9 + 0.2*rng.Float64())
	wander := 0.8 * m.bound[node] * (2*rng.Float64() - 1)
	for s := range h.offset {
		h.offset[s] = float32(wander)
		if m.clock != nil && window >= 0 {
			h.offset[s] += float32(m.clock(node, window, s))
		}
	}
	if m.bursts && window >= 0 && rng.IntN(5) == 0 {
		by := 8e3 * rng.Float64()
		for s := range h.stall {
			h.stall[s] = float32(by * (0.8 + 0.4*rng.Float64()))
			if rng.IntN(20) == 0 {
				h.stall[s] += float32(40e3 * rng.ExpFloat64())
			}
		}
	}
	if m.starved == nil || window < 0 {
		return
	}
	if by := m.starved(node, window); by > 0 {
		h.stampFactor *= 4
		for s := range h.stall {
			if rng.Float64() < 0.7 {
				h.stall[s] = float32(by * rng.ExpFloat64())
			}
		}
	}
}

func (m *model) applyEffect(x *effect) {
	rng := m.rng
	var spikes [slots]bool
	draw := func() {
		share := 0.12
		if x.together {
			share = 0.7 // enough to move the median of a window
		}
		for s := range spikes {
			spikes[s] = rng.Float64() < share
		}
	}
	draw()
	for _, id := range x.at {
		e := &m.elems[id]
		e.lose = 1 - (1-e.lose)*(1-x.lose)
		e.mark = 1 - (1-e.mark)*(1-x.mark)
		if x.delay == 0 {
			continue
		}
		if x.shape == spiky && !x.together {
			draw()
		}
		level, period, height := 1.0, 0, 0.0
		x.slots += slots
		for s := range slots {
			by := 0.0
			switch x.shape {
			case steady:
				by = x.delay * (0.97 + 0.06*rng.Float64())
			case queued:
				level = min(1.6, max(0.5, level+0.2*rng.NormFloat64()))
				by = x.delay * level
			case spiky:
				if spikes[s] {
					by = x.delay * (0.5 + rng.ExpFloat64())
				}
			case sawtooth:
				if period == 0 {
					period, height, level = 4+rng.IntN(10), 0.6+1.4*rng.Float64(), 0.2
				}
				period--
				level += 0.2
				by = x.delay * height * min(level, 1.2)
			}
			x.added += by
			if x.shape != steady && !x.unqueued {
				e.queue[s] += float32(by)
				continue
			}
			if e.held == nil {
				e.held = make([]float32, slots)
			}
			e.held[s] += float32(by)
		}
	}
}

// sendProbes sends n probes of a flow along a way and writes what came of them.
func (m *model) sendProbes(o *fabric.Observation, fl *flow, way []int32, n int) {
	base := float32(cableDelay*len(way) + switchDelay*(len(way)-1))
	ids := m.crossed[:0]
	survive, mark := 1.0, 0.0
	take := func(id int32) {
		ids = append(ids, id)
		survive *= 1 - m.elems[id].lose
		mark = 1 - (1-mark)*(1-m.elems[id].mark)
	}
	for _, d := range way {
		take(m.queueID(d, fl.class))
	}
	for _, x := range m.extras {
		if x.match(fl.src, fl.dst, way) {
			take(x.id)
		}
	}
	m.crossed = ids
	from, to := m.hosts[fl.src.node], m.hosts[fl.dst.node]
	m.sample = m.sample[:0]
	var marked uint64
	phase := m.rng.IntN(slots)
	for i := range n {
		r := m.rng.Uint64()
		if survive < 1 && float64(r>>40)/(1<<24) >= survive {
			continue
		}
		s := (i*slots/n + phase) % slots
		d := base
		p := mark
		for _, id := range ids {
			e := &m.elems[id]
			d += e.queue[s]
			if q := float64(e.queue[s]); q > markFrom {
				p = 1 - (1-p)*(1-min(1, (q-markFrom)/(markAll-markFrom)))
			}
			if e.held != nil {
				d += e.held[s]
			}
		}
		if p > 0 && float64(mixBits(r)>>11)/(1<<53) < p {
			marked++
		}
		d += m.stamps.tx*from.stampFactor*m.lateSamples[r&4095] + m.stamps.rx*to.stampFactor*m.lateSamples[r>>12&4095]
		if r>>24&0xffff < outlierShare {
			d += m.stamps.outlier * m.lateSamples[r>>12&4095]
		}
		d += from.stall[s] + to.stall[s] + to.offset[s] - from.offset[s]
		m.sample = append(m.sample, int64(d))
	}
	o.Sent, o.Lost, o.ECN = uint64(n), uint64(n-len(m.sample)), &marked
	o.OWD = quantilesOf(m.sample)
}

// quantilesOf returns the quantiles of the values that arrived, and nil if none did. v is reordered.
func quantilesOf(v []int64) *fabric.Quantiles {
	if len(v) == 0 {
		return nil
	}
	slices.Sort(v)
	sum := int64(0)
	for _, x := range v {
		sum += x
	}
	q := make([]int64, 6)
	q[0], q[1], q[5] = v[0], sum/int64(len(v)), v[len(v)-1]
	for i, p := range []int{50, 90, 99} {
		q[2+i] = v[(len(v)-1)*p/100]
	}
	return &fabric.Quantiles{Min: &q[0], Mean: &q[1], P50: &q[2], P90: &q[3], P99: &q[4], Max: &q[5]}
}
