package incident

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Scenario describes a mesh of probes over several windows, and a fault.
type Scenario struct {
	// ID is the scenario. "" means no fault but those that Several adds.
	ID fabric.Scenario
	// Variant is one of Variants(ID). "" means that it is drawn.
	Variant string
	// Several directed links and NICs with a delay or loss each, at once.
	Several int
	// Mixed faults of different kinds at once, on different switches and nodes; at most MaxMixed.
	Mixed int
	Know  Knowledge
	// Windows in all, of Probes per flow each; 0: 8 and 250.
	Windows, Probes int
	// Delay and Loss bound what the fault does, drawn on a logarithmic scale;
	// zero: 100 us to 2 ms, and 2 to 20 %.
	Delay [2]time.Duration
	Loss  [2]float64
	// Hardware time stamps instead of the kernel's.
	Hardware bool
	// Quiet hosts and queues: time stamps of the kernel with a median of 4 us, and idle queues.
	Quiet bool
	// Bursts of other work keep one host in five busy in a window: by up to 8 us all the time, and by some 40 us in one
	// twentieth of it.
	Bursts bool
	// CrossTraffic of bulk transfers comes and goes on one queue in ten.
	CrossTraffic bool
	// Classes is set if every scenario has flows of two classes. Otherwise only those of head-of-line
	// blocking do.
	Classes bool
	// Tier of the link between switches that is at fault. 0 means any.
	Tier int
	// Flows are what is probed. Nil means that each NIC probes two neighbours under its leaf and eight NICs elsewhere.
	Flows []fabric.Flow
	// Detours is the share of flows between groups of a Dragonfly+ that go by a spine of a third group, where one is
	// linked to both.
	Detours float64
	// Marked is how many nodes without a fault report in most windows that they are starved.
	Marked int
}

// variants of the scenarios that have several faces.
var variants = map[fabric.Scenario][]string{
	fabric.Corridor:     {"link-delay", "link-loss", "link-ecn", "path-delay", "path-loss"},
	fabric.BadNIC:       {"in-delay", "out-delay", "both-delay", "in-loss", "out-loss", "both-loss", "in-jitter", "out-jitter"},
	fabric.PairOnly:     {"delay", "loss"},
	fabric.HotSpine:     {"delay", "loss"},
	fabric.SlowLeaf:     {"delay", "loss"},
	fabric.HardFailure:  {"link", "one-way", "nic", "leaf", "spine"},
	fabric.ClockTrouble: {"step", "drift"},
}

// mixable are the faults that Mixed draws from: those that leave the routes alone.
var mixable = []Scenario{{ID: fabric.HotSpine}, {ID: fabric.Corridor, Variant: "link-delay"}, {ID: fabric.Corridor, Variant: "link-loss"}, {ID: fabric.BadNIC, Variant: "out-delay"},
	{ID: fabric.BadNIC, Variant: "in-loss"}, {ID: fabric.Incast}, {ID: fabric.HardFailure, Variant: "nic"}, {ID: fabric.HardFailure, Variant: "one-way"},
	{ID: fabric.SlowLeaf}, {ID: fabric.PairOnly, Variant: "delay"}, {ID: fabric.Host}, {ID: fabric.ClockTrouble, Variant: "step"}}

// MaxMixed is the largest number of mixed faults.
const MaxMixed = 5

// VariantsOf lists the variants of a scenario. Nil means that it has one.
func VariantsOf(s fabric.Scenario) []string { return variants[s] }

// AllScenarios lists every scenario that can be made.
func AllScenarios() []fabric.Scenario {
	return []fabric.Scenario{fabric.HotSpine, fabric.SlowLeaf, fabric.Corridor, fabric.LeafUplinks, fabric.BadNIC, fabric.PairOnly, fabric.Flap,
		fabric.HardFailure, fabric.Host, fabric.HOLSame, fabric.HOLCross, fabric.Incast, fabric.Miscabled, fabric.ClockTrouble}
}

// baselineWindows are measured before the first window that is observed.
const baselineWindows = 5

// incident is a case in the making.
type incident struct {
	o     Scenario
	f     *Fabric
	m     *model
	rng   *rand.Rand
	truth *Truth
	first int // window of the fault
	// routes in each window; reported as traced in the same window.
	routes  []*routes
	flagged []map[string]bool // nodes that report that they are starved, by window
	// taken are the switches and nodes that a mixed fault has, and that no other may have.
	taken map[string]bool
}

// MakeCase draws a case; f is left as it is. It panics on a scenario that is none and
// where the fabric has no place for the fault.
func (o Scenario) MakeCase(f *Fabric, seed uint64) *Case {
	rng := rand.New(rand.NewPCG(seed, 0x7363_656e))
	if o.Windows == 0 {
		o.Windows = 8
	}
	if o.Probes == 0 {
		o.Probes = 250
	}
	if o.Delay[1] == 0 {
		o.Delay = [2]time.Duration{100 * time.Microsecond, 2 * time.Millisecond}
	}
	if o.Loss[1] == 0 {
		o.Loss = [2]float64{0.02, 0.2}
	}
	if v := variants[o.ID]; o.Variant == "" && len(v) > 0 {
		o.Variant = v[rng.IntN(len(v))]
	}
	c := &Case{Topology: f.Graph.Topo, Truth: Truth{Seed: seed, Windows: o.Windows, Faults: []Fault{}}}
	in := &incident{o: o, rng: rng, taken: map[string]bool{}, truth: &c.Truth, first: min(1+rng.IntN(2), o.Windows-1)}
	if o.ID == fabric.Miscabled {
		f = in.swapCables(f)
	}
	st := kernelStamps
	if o.Hardware {
		st = hardwareStamps
	}
	if o.Quiet {
		st = quietStamps
	}
	classes := []string{""}
	if o.Classes || o.ID == fabric.HOLSame || o.ID == fabric.HOLCross {
		classes = []string{"tc0", "tc3"}
	}
	in.f, in.m = f, newModel(f, rng, st, classes, o.CrossTraffic)
	in.m.detours = o.Detours
	if in.m.bursts = o.Bursts; o.Quiet {
		for i := range in.m.load {
			in.m.load[i] /= 20
		}
	}
	up := f.newRoutes(rng.Uint64(), nil)
	in.routes = slices.Repeat([]*routes{up}, o.Windows)
	in.flagged = make([]map[string]bool, o.Windows)
	if o.Flows != nil {
		in.m.layOutFlows(o.Flows, o.Know)
	} else {
		in.m.layOutMesh(2, 8, o.Know)
	}
	in.causeFault()
	for range o.Several {
		in.causeAnother()
	}
	in.causeMixed()
	in.markInnocent(seed)
	for w := -baselineWindows; w < 0; w++ {
		in.m.beginWindow(w)
		in.observeWindow(w, up)
	}
	for _, fl := range in.m.flows {
		fl.learnBaseline()
		fl.back.learnBaseline()
	}
	for w := range o.Windows {
		in.m.beginWindow(w)
		c.Observations = append(c.Observations, in.observeWindow(w, in.routes[w])...)
	}
	for _, x := range in.m.effects {
		if x.shape != steady && x.slots > 0 {
			c.Truth.Faults[x.fault].DelayNS = int64(x.added / float64(x.slots))
		}
	}
	return c
}

// markInnocent marks nodes as starved that are not, each in three windows of four. The draws are its own, so that the
// marks change nothing else of a case.
func (in *incident) markInnocent(seed uint64) {
	if in.o.Marked == 0 {
		return
	}
	rng := rand.New(rand.NewPCG(seed, 0x6d61_726b))
	guilty := map[string]bool{}
	for _, f := range in.truth.Faults {
		guilty[f.ID] = true
	}
	var nodes []string
	for _, n := range in.f.Graph.Topo.Nodes {
		if !guilty[n.Name] {
			nodes = append(nodes, n.Name)
		}
	}
	rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for _, node := range nodes[:min(in.o.Marked, len(nodes))] {
		for w := range in.flagged {
			if rng.Float64() >= 0.75 {
				continue
			}
			if in.flagged[w] == nil {
				in.flagged[w] = map[string]bool{}
			}
			in.flagged[w][node] = true
		}
	}
}

// learnBaseline takes the medians of the windows before the fault as the baseline.
func (fl *flow) learnBaseline() {
	if len(fl.p50s) == 0 {
		return
	}
	slices.Sort(fl.p50s)
	slices.Sort(fl.p99s)
	fl.base = &fabric.Quantiles{P50: &fl.p50s[len(fl.p50s)/2], P99: &fl.p99s[len(fl.p99s)/2]}
}

// observeWindow sends the probes of every flow, and the replies of those that arrived.
func (in *incident) observeWindow(w int, r *routes) []*fabric.Observation {
	var out []*fabric.Observation
	var buf, old []int32
	for _, fl := range in.m.flows {
		n := in.o.Probes
		for _, fl := range []*flow{fl, fl.back} {
			way, ok := fl.appendWay(r, buf[:0], fl.key)
			buf = way
			if !ok || n == 0 {
				break
			}
			bound := int64(in.m.bound[fl.src.node] + in.m.bound[fl.dst.node])
			o := &fabric.Observation{Edge: fl.name, Src: fl.src.id, Dst: fl.dst.id, Tier: in.f.highestTier(way), Plane: fl.src.plane, Class: in.m.classes[fl.class],
				Start: Epoch.Add(time.Duration(w) * Window), WindowNS: int64(Window), Baseline: fl.base, ClockErrorNS: &bound, Timestamp: in.m.stamps.name,
				PathState: fabric.PathUnknown}
			in.m.sendProbes(o, fl, way, n)
			n = int(o.Sent - o.Lost)
			if w < 0 {
				if o.OWD != nil {
					fl.p50s, fl.p99s = append(fl.p50s, *o.OWD.P50), append(fl.p99s, *o.OWD.P99)
				}
				continue
			}
			o.HostSuspect = in.flagged[w][fl.src.node] || in.flagged[w][fl.dst.node]
			switch {
			case fl.traced && (in.o.Know != LossyTraced || o.Lost > 0):
				reported := way
				if fl.staleKey != 0 {
					old, _ = fl.appendWay(r, old[:0], fl.staleKey)
					reported = old
				}
				_, o.Path = in.f.appendHops(make([]fabric.Hop, 0, len(reported)), reported)
				o.PathState = fabric.PathValid
			case in.o.Know != Unknown:
				if fl.candidates == nil {
					fl.candidates = r.candidatePaths(fl.src, fl.dst)
				}
				o.Paths = fl.candidates
			}
			out = append(out, o)
		}
	}
	return out
}

// drawSize draws an effect on a logarithmic scale.
func (in *incident) drawSize(least, most float64) float64 {
	return least * math.Pow(most/least, in.rng.Float64())
}

func (in *incident) drawDelay() float64 {
	return in.drawSize(float64(in.o.Delay[0]), float64(in.o.Delay[1]))
}
func (in *incident) drawLoss() float64 { return in.drawSize(in.o.Loss[0], in.o.Loss[1]) }

// faultActive reports whether a window is the first bad one or a later one.
func (in *incident) faultActive(w int) bool { return w >= in.first }

func (in *incident) addEffect(x effect) {
	if x.activeIn == nil {
		x.activeIn = in.faultActive
	}
	x.fault = len(in.truth.Faults)
	in.m.effects = append(in.m.effects, x)
}

func (in *incident) recordFault(x Fault) {
	x.First, x.Last = in.first, in.o.Windows-1
	in.truth.Faults = append(in.truth.Faults, x)
}

// queuesOf of directions, whatever the class.
func (in *incident) queuesOf(dirs ...int32) []int32 {
	var out []int32
	for _, d := range dirs {
		out = append(out, in.m.queuesOf(d)...)
	}
	return out
}

// drawFree draws until what it drew is at switches and nodes that no other fault has.
func drawFree[T any](in *incident, draw func() T, places func(T) []string) T {
	for range 10_000 {
		v := draw()
		if !slices.ContainsFunc(places(v), func(p string) bool { return in.taken[p] }) {
			return v
		}
	}
	panic("incident: the fabric is too small for so many faults")
}

// drawTrunk draws a cable between switches in a direction, of the tier that the scenario has.
func (in *incident) drawTrunk() int32 {
	return drawFree(in, func() int32 {
		for {
			if d := in.f.drawCable(in.rng, false); in.o.Tier == 0 || in.f.dirs[d].tier == in.o.Tier {
				return d
			}
		}
	}, func(d int32) []string {
		return []string{fabric.OwnerOf(in.f.dirs[d].From), fabric.OwnerOf(in.f.dirs[d].To)}
	})
}

func (in *incident) someNIC() *nic {
	return drawFree(in, func() *nic { return &in.f.nics[in.rng.IntN(len(in.f.nics))] }, func(n *nic) []string {
		return []string{n.node, in.f.switches[n.leaf].name}
	})
}

func (in *incident) nameOf(sw int32) []string { return []string{in.f.switches[sw].name} }

func (in *incident) someLeaf() int32 {
	return drawFree(in, func() int32 { return in.f.leaves[in.rng.IntN(len(in.f.leaves))] }, in.nameOf)
}

func (in *incident) someSpine() int32 {
	return drawFree(in, func() int32 {
		for {
			if i := in.rng.IntN(len(in.f.switches)); in.f.switches[i].tier == 2 {
				return int32(i)
			}
		}
	}, in.nameOf)
}

// linksAt returns the directed links out of a switch, or into it as well.
func (in *incident) linksAt(sw int32, both bool) []int32 {
	var out []int32
	for i := range in.f.dirs {
		if d := &in.f.dirs[i]; d.from == sw || both && d.to == sw {
			out = append(out, int32(i))
		}
	}
	return out
}

func (in *incident) faultAt(kind fabric.Kind, name string, s fabric.Scenario) Fault {
	return Fault{Element: fabric.Element{ID: name, Kind: kind}, Scenario: s}
}

// routesWithout returns the routes once a directed link and its other direction are withdrawn.
func (in *incident) routesWithout(down ...int32) *routes {
	off := map[int32]bool{}
	for _, d := range down {
		off[d], off[in.f.dirs[d].back] = true, true
	}
	return in.f.newRoutes(in.routes[0].salt, func(d int32) bool { return off[d] })
}

func (in *incident) causeFault() {
	switch in.o.ID {
	case "":
	case fabric.HotSpine:
		in.wholeSwitch(in.someSpine())
	case fabric.SlowLeaf:
		in.wholeSwitch(in.someLeaf())
	case fabric.Corridor:
		in.causeCorridor()
	case fabric.LeafUplinks:
		in.leafUplinks()
	case fabric.BadNIC:
		in.badNIC()
	case fabric.PairOnly:
		in.causePair()
	case fabric.Flap:
		in.causeFlap()
	case fabric.HardFailure:
		in.hardFailure()
	case fabric.Host:
		in.starveNode()
	case fabric.HOLSame:
		d := in.drawTrunk()
		class := in.rng.IntN(len(in.m.classes))
		x := effect{at: []int32{in.m.queueID(d, class)}, shape: queued, delay: in.drawDelay()}
		in.addEffect(x)
		port := in.f.dirs[d].From
		fault := in.faultAt(fabric.KindQueue, port+"@"+in.m.classes[class], fabric.HOLSame)
		fault.Direction, fault.Class, fault.DelayNS = in.f.dirs[d].String(), in.m.classes[class], int64(x.delay)
		fault.Equivalent = []fabric.Element{{ID: port, Kind: fabric.KindPort}}
		in.recordFault(fault)
	case fabric.HOLCross:
		in.crossPort()
	case fabric.Incast:
		n := in.someNIC()
		x := effect{at: in.queuesOf(n.down), shape: sawtooth, delay: max(in.drawDelay(), 3*markFrom)}
		if in.rng.IntN(2) == 0 {
			x.lose = 0.02 * in.rng.Float64()
		}
		in.addEffect(x)
		fault := in.f.onDirection(n.down, Fault{DelayNS: int64(x.delay), Loss: x.lose})
		fault.Scenario = fabric.Incast
		in.recordFault(fault)
	case fabric.Miscabled: // the cables were swapped before anything was measured
	case fabric.ClockTrouble:
		in.causeClock()
	default:
		panic(fmt.Sprintf("incident: no scenario %q", in.o.ID))
	}
}

// drawEffect draws delay or loss, as the variant requires.
func (in *incident) drawEffect(at []int32, variant string) effect {
	x := effect{at: at}
	switch variant {
	case "loss":
		x.lose = in.drawLoss()
	case "jitter":
		x.shape, x.delay = spiky, 4*in.drawDelay()
	case "ecn":
		x.mark = 0.3 + 0.6*in.rng.Float64()
	default:
		x.delay = in.drawDelay()
		if in.rng.IntN(2) == 0 {
			x.shape = queued
		}
	}
	return x
}

func (x *effect) fillFault(f Fault) Fault {
	f.DelayNS, f.Loss, f.ECN = int64(x.delay), x.lose, x.mark
	return f
}

func (in *incident) wholeSwitch(sw int32) {
	x := in.drawEffect(in.queuesOf(in.linksAt(sw, false)...), in.o.Variant)
	in.addEffect(x)
	s := fabric.HotSpine
	if in.f.switches[sw].tier == 1 {
		s = fabric.SlowLeaf
	}
	in.recordFault(x.fillFault(in.faultAt(fabric.KindSwitch, in.f.switches[sw].name, s)))
}

func (in *incident) causeCorridor() {
	where, what := in.o.Variant[:4], in.o.Variant[5:]
	if where == "link" {
		d := in.drawTrunk()
		x := in.drawEffect(in.queuesOf(d), what)
		in.addEffect(x)
		in.recordFault(x.fillFault(in.f.onDirection(d, Fault{})))
		return
	}
	up := in.upFromLeaf()
	down := up
	for down == up || in.f.dirs[down].from != in.f.dirs[up].to || !slices.Contains(in.f.leaves, in.f.dirs[down].to) || in.f.dirs[down].to == in.f.dirs[up].from {
		down = in.drawTrunk()
	}
	x := in.drawEffect([]int32{in.m.addExtra(func(_, _ *nic, way []int32) bool {
		i := slices.Index(way, up)
		return i >= 0 && way[i+1] == down
	})}, what)
	in.addEffect(x)
	name := fmt.Sprintf("%s->%s->%s", in.f.switches[in.f.dirs[up].from].name, in.f.switches[in.f.dirs[up].to].name, in.f.switches[in.f.dirs[down].to].name)
	in.recordFault(x.fillFault(in.faultAt(fabric.KindCorridor, name, fabric.Corridor)))
}

// upFromLeaf draws a directed link from a leaf with NICs to a spine.
func (in *incident) upFromLeaf() int32 {
	out := in.f.switches[in.someLeaf()].out
	return out[in.rng.IntN(len(out))]
}

func (in *incident) leafUplinks() {
	leaf := in.someLeaf()
	up := slices.Clone(in.f.switches[leaf].out)
	in.rng.Shuffle(len(up), func(i, j int) { up[i], up[j] = up[j], up[i] })
	keep := 1
	if len(up) > 2 { // with one left, that cable would be as good a name
		keep = 2 + in.rng.IntN(len(up)-2)
	}
	after := in.routesWithout(up[keep:]...)
	for w := in.first; w < in.o.Windows; w++ {
		in.routes[w] = after
	}
	var left []int32
	for _, d := range up[:keep] {
		left = append(left, d, in.f.dirs[d].back)
	}
	x := effect{at: in.queuesOf(left...), shape: queued, delay: in.drawDelay()}
	if in.rng.IntN(2) == 0 {
		x.lose = 0.02 * in.rng.Float64()
	}
	in.addEffect(x)
	in.recordFault(x.fillFault(in.faultAt(fabric.KindLeafUplinks, in.f.switches[leaf].name, fabric.LeafUplinks)))
}

func (in *incident) badNIC() {
	n := in.someNIC()
	at := map[byte][]int32{'i': {n.down}, 'o': {n.up}, 'b': {n.down, n.up}}[in.o.Variant[0]]
	what := in.o.Variant[slices.Index([]byte(in.o.Variant), '-')+1:]
	x := in.drawEffect(in.queuesOf(at...), what)
	x.unqueued = true // a queue in front of a NIC belongs to an incast or another fault
	in.addEffect(x)
	fault := in.f.onDirection(at[0], Fault{})
	if len(at) > 1 {
		fault.Direction = ""
	}
	in.recordFault(x.fillFault(fault))
}

func (in *incident) causePair() {
	var src, dst *nic
	for dst == nil {
		src = in.someNIC()
		dst = in.f.drawRemoteNIC(in.rng, src)
	}
	x := in.drawEffect([]int32{in.m.addExtra(func(s, d *nic, _ []int32) bool { return s.leaf == src.leaf && d.leaf == dst.leaf })}, in.o.Variant)
	in.addEffect(x)
	in.recordFault(x.fillFault(in.faultAt(fabric.KindPair, in.f.switches[src.leaf].name+"->"+in.f.switches[dst.leaf].name, fabric.PairOnly)))
}

// causeFlap takes a link down and up again. Until it is noticed what hashes onto it is
// lost; then traffic goes elsewhere until the link is back.
func (in *incident) causeFlap() {
	d := in.drawTrunk()
	around := in.routesWithout(d)
	lossy := map[int]float64{}
	for w := in.first; w < in.o.Windows; {
		lossy[w] = 0.2 + 0.6*in.rng.Float64()
		w++
		for range in.rng.IntN(2) { // still down
			if w < in.o.Windows {
				in.routes[w] = around
				w++
			}
		}
		w += 1 + in.rng.IntN(2) // up
	}
	for w, share := range lossy {
		in.m.effects = append(in.m.effects, effect{at: in.queuesOf(d, in.f.dirs[d].back), activeIn: func(at int) bool { return at == w }, lose: share})
	}
	in.recordFault(in.faultAt(fabric.KindLink, in.f.dirs[d].LinkID(), fabric.Flap))
}

// withdrawn is after how long routes avoid what is dead.
const withdrawn = 3 * time.Second

func (in *incident) hardFailure() {
	fault := Fault{Scenario: fabric.HardFailure, Loss: 1}
	var dead []int32
	avoided := false
	switch in.o.Variant {
	case "link":
		d := in.drawTrunk()
		dead, avoided = []int32{d, in.f.dirs[d].back}, true
		fault.Element = fabric.Element{ID: in.f.dirs[d].LinkID(), Kind: fabric.KindLink}
	case "one-way":
		d := in.drawTrunk()
		dead = []int32{d}
		fault = in.f.onDirection(d, fault)
	case "nic":
		n := in.someNIC()
		dead = []int32{n.up, n.down}
		fault.Element = fabric.Element{ID: n.id, Kind: fabric.KindNIC}
	case "leaf":
		leaf := in.someLeaf()
		dead = in.linksAt(leaf, true)
		fault.Element = fabric.Element{ID: in.f.switches[leaf].name, Kind: fabric.KindSwitch}
	case "spine":
		spine := in.someSpine()
		dead, avoided = in.linksAt(spine, true), true
		fault.Element = fabric.Element{ID: in.f.switches[spine].name, Kind: fabric.KindSwitch}
	default:
		panic(fmt.Sprintf("incident: hard_failure has no variant %q", in.o.Variant))
	}
	fault.Scenario = fabric.HardFailure
	into := time.Duration(in.rng.Float64() * float64(Window) / 2) // when in the first window
	end := time.Duration(in.o.Windows) * Window
	if avoided {
		end = time.Duration(in.first)*Window + into + withdrawn
		after := in.routesWithout(dead...)
		for w := in.first; w < in.o.Windows; w++ {
			if time.Duration(w)*Window >= end {
				in.routes[w] = after
			}
		}
	}
	for w := in.first; w < in.o.Windows; w++ {
		begin := max(time.Duration(w)*Window, time.Duration(in.first)*Window+into)
		share := float64(min(time.Duration(w+1)*Window, end)-begin) / float64(Window)
		if share > 0 {
			in.m.effects = append(in.m.effects, effect{at: in.queuesOf(dead...), activeIn: func(at int) bool { return at == w }, lose: share})
		}
	}
	in.recordFault(fault)
}

func (in *incident) starveNode() {
	node := in.someNIC().node
	by := in.drawDelay()
	in.m.starved = func(n string, w int) float64 {
		if n == node && in.faultActive(w) {
			return by
		}
		return 0
	}
	for w := in.first; w < in.o.Windows; w++ {
		if in.rng.Float64() < 0.8 {
			in.flagged[w] = map[string]bool{node: true}
		}
	}
	fault := in.faultAt(fabric.KindHost, node, fabric.Host)
	fault.DelayNS = int64(by)
	in.recordFault(fault)
}

// crossPort makes one class of a switch spike at all its egresses in the same
// slots, in some windows.
func (in *incident) crossPort() {
	sw := in.someSpine()
	if in.rng.IntN(2) == 0 {
		sw = in.someLeaf()
	}
	class := in.rng.IntN(len(in.m.classes))
	var at []int32
	for _, d := range in.linksAt(sw, false) {
		at = append(at, in.m.queueID(d, class))
	}
	on := map[int]bool{in.first: true, in.first + 2: true}
	for w := in.first + 3; w < in.o.Windows; w++ {
		on[w] = in.rng.IntN(2) == 0
	}
	x := effect{at: at, activeIn: func(w int) bool { return on[w] }, shape: spiky, together: true, delay: in.drawDelay()}
	in.addEffect(x)
	fault := in.faultAt(fabric.KindSwitch, in.f.switches[sw].name, fabric.HOLCross)
	fault.Class = in.m.classes[class]
	in.recordFault(x.fillFault(fault))
}

func (in *incident) causeClock() {
	n := in.someNIC()
	fault := in.faultAt(fabric.KindClock, n.id, fabric.ClockTrouble)
	for i := range in.f.nics {
		if o := &in.f.nics[i]; o.node == n.node && o != n {
			fault.Equivalent = append(fault.Equivalent, fabric.Element{ID: o.id, Kind: fabric.KindClock})
		}
	}
	sign := float64(1 - 2*in.rng.IntN(2))
	by := sign * in.drawDelay()
	rate := sign * in.drawSize(20e-6, 200e-6) // seconds per second
	in.m.clock = func(node string, w, slot int) float64 {
		switch {
		case node != n.node || !in.faultActive(w):
			return 0
		case in.o.Variant == "step":
			return by
		}
		return rate * (float64(w-in.first) + float64(slot)/slots) * float64(Window)
	}
	if in.o.Variant == "step" {
		fault.DelayNS = int64(by)
	}
	in.recordFault(fault)
}

// causeAnother adds a delay or loss at a directed link or NIC, apart from all others: two
// faults of one switch or node could be one.
func (in *incident) causeAnother() {
	var d int32
	for tries, taken := 0, true; taken; tries++ {
		if tries == 10_000 {
			panic("incident: the fabric is too small for so many faults")
		}
		d = in.f.drawCable(in.rng, in.rng.IntN(2) == 0)
		at := &in.f.dirs[d]
		taken = slices.ContainsFunc(in.truth.Faults, func(x Fault) bool {
			return strings.Contains(x.Direction, fabric.OwnerOf(at.From)) || strings.Contains(x.Direction, fabric.OwnerOf(at.To))
		})
	}
	x := in.drawEffect(in.queuesOf(d), []string{"delay", "loss"}[in.rng.IntN(2)])
	if in.f.dirs[d].isAccess() {
		x.shape = steady
	}
	in.addEffect(x)
	in.recordFault(x.fillFault(in.f.onDirection(d, Fault{})))
}

// causeMixed causes faults of different kinds, and takes the switches and nodes of each.
func (in *incident) causeMixed() {
	if in.o.Mixed == 0 {
		return
	}
	if in.o.Mixed > MaxMixed {
		panic(fmt.Sprintf("incident: %d mixed faults, at most %d are possible", in.o.Mixed, MaxMixed))
	}
	kinds := slices.Clone(mixable)
	in.rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	for _, k := range kinds[:in.o.Mixed] {
		if in.o.ID, in.o.Variant = k.ID, k.Variant; in.o.Variant == "" && len(variants[k.ID]) > 0 {
			in.o.Variant = variants[k.ID][in.rng.IntN(len(variants[k.ID]))]
		}
		in.causeFault()
		for _, p := range in.placesOf(&in.truth.Faults[len(in.truth.Faults)-1]) {
			in.taken[p] = true
		}
	}
	in.o.ID, in.o.Variant = "", ""
}

// placesOf returns the switches and nodes that a fault has: of a NIC its leaf as well.
func (in *incident) placesOf(f *Fault) []string {
	out := append([]string{f.ID}, f.Waypoints()...)
	for _, end := range f.Ends() {
		out = append(out, fabric.OwnerOf(end), fabric.OwnerOf(in.f.Graph.PeerOf(end)))
	}
	return out
}

// swapCables swaps two cables between the same tiers and returns the fabric as it
// then is; the case's topology stays what is written down.
func (in *incident) swapCables(f *Fabric) *Fabric {
	links := slices.Clone(f.Graph.Topo.Links)
	for {
		a, b := f.drawCable(in.rng, false), f.drawCable(in.rng, false)
		da, db := &f.dirs[a], &f.dirs[b]
		sa, sb := &f.switches[da.from], &f.switches[db.from]
		up := f.switches[da.to].tier > sa.tier && f.switches[db.to].tier > sb.tier
		// The two have one end's switch in common, or neither; not both, which would
		// change nothing.
		if !up || sa.tier != sb.tier || sa.plane != sb.plane || da.to == db.to && da.from == db.from {
			continue
		}
		for i := range links {
			switch links[i].ID() {
			case da.LinkID():
				links[i] = fabric.Link{A: da.From, B: db.To}
			case db.LinkID():
				links[i] = fabric.Link{A: db.From, B: da.To}
			}
		}
		fault := in.faultAt(fabric.KindLink, da.LinkID(), fabric.Miscabled)
		fault.Equivalent = []fabric.Element{{ID: db.LinkID(), Kind: fabric.KindLink}}
		in.first = 0
		in.recordFault(fault)
		t := *f.Graph.Topo
		t.Links = links
		return NewFabric(&t)
	}
}
