package demo

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// Params are a fault's numbers.
type Params struct {
	Delay    time.Duration
	Loss     float64
	Step     time.Duration
	DriftPPM float64
}

// PlannedFault is a fault that a seed chose, with what the right verdict is.
type PlannedFault struct {
	Fault lab.Fault
	// Then is a fault that is injected besides, without which the first would not show. Its Kind is empty if there is none.
	Then lab.Fault
	// Element, Kind and Scenarios are the right answer; empty Kind: no verdict
	// against the fabric is right.
	Element   string
	OtherLink string // the other link, where cables are swapped
	Kind      fabric.Kind
	Direction string
	Scenarios []fabric.Scenario
	Params    map[string]any
}

// KindNone is the fault that is none.
const KindNone = "none"

// FaultKinds returns the kinds of faults that the demo can inject in a kind of fabric, whose switches have one of lab.RoutingKinds,
// and whose paths are chosen by a kind of forwarding.
func FaultKinds(fabricKind, routing string, forwarding fabric.Forwarding) []string {
	if fabricKind == InfiniBand {
		return append(subnetFaultKinds(), KindNone)
	}
	kinds := lab.FaultKinds()
	if fabricKind == Namespaces && routing == lab.RoutingFRR {
		kinds = append(kinds, lab.RoutingFaultKinds()...)
	}
	if fabricKind == Namespaces && forwarding == fabric.SRv6 {
		kinds = append(kinds, lab.KindSIDUnknown)
	}
	return append(kinds, KindNone)
}

// ParseKinds reads kinds of faults, separated by commas. It refuses those that FaultKinds does not have.
func ParseKinds(fabricKind, routing string, forwarding fabric.Forwarding, s string) ([]string, error) {
	known := FaultKinds(fabricKind, routing, forwarding)
	var out []string
	for _, k := range strings.Split(s, ",") {
		k = strings.TrimSpace(k)
		switch {
		case slices.Contains(known, k):
			out = append(out, k)
		case slices.Contains(lab.RoutingFaultKinds(), k):
			return nil, fmt.Errorf("fault %q is one of routing: network namespaces with --routing frr are expected", k)
		case k == lab.KindSIDUnknown:
			return nil, fmt.Errorf("fault %q is one of chosen paths: network namespaces with forwarding srv6 are expected", k)
		default:
			return nil, fmt.Errorf("fault %q: one of %s is expected", k, strings.Join(known, ", "))
		}
	}
	return out, nil
}

// ParseSeeds reads "A..B" or a single number.
func ParseSeeds(s string) (from, to uint64, err error) {
	a, b, isRange := strings.Cut(s, "..")
	if !isRange {
		b = a
	}
	from, err1 := strconv.ParseUint(a, 10, 64)
	to, err2 := strconv.ParseUint(b, 10, 64)
	if err1 != nil || err2 != nil || to < from || to-from >= 100000 {
		return 0, 0, fmt.Errorf("seeds %q: A..B is expected, two whole numbers, A not above B", s)
	}
	return from, to, nil
}

// PlanFault lets a seed choose where a fault of a kind strikes.
func PlanFault(g *fabric.Graph, kind string, seed uint64, p Params) (PlannedFault, error) {
	h := fnv.New64a()
	h.Write([]byte(kind))
	rng := rand.New(rand.NewPCG(seed, h.Sum64()))
	out := PlannedFault{Fault: lab.Fault{Kind: kind}, Params: map[string]any{}}
	out.setStrength(p)
	var err error
	switch kind {
	case KindNone:
		return out, nil
	case lab.KindDelay, lab.KindLoss, lab.KindBlackhole, lab.KindECN, lab.KindLinkDown, lab.KindFlap, KindSymbolErrors:
		err = out.strikeLink(g, rng)
	case lab.KindMiscable:
		err = out.swapCables(g, rng)
	case lab.KindMute:
		out.Element = g.Topo.Switches[rng.IntN(len(g.Topo.Switches))].Name
	case lab.KindCongest:
		err = out.congestPort(g, rng)
	case lab.KindIncast, lab.KindNICSlow:
		out.strikeNIC(g, rng)
	case lab.KindSwitchSlow:
		sw := g.Topo.Switches[rng.IntN(len(g.Topo.Switches))]
		out.Element, out.Kind, out.Scenarios = sw.Name, fabric.KindSwitch, []fabric.Scenario{fabric.HotSpine}
		if g.SwitchTier(sw.Name) == 1 {
			out.Scenarios = []fabric.Scenario{fabric.SlowLeaf}
		}
	case lab.KindClockStep, lab.KindClockDrift:
		nics := g.NICIDs()
		out.Element, out.Kind, out.Scenarios = nics[rng.IntN(len(nics))], fabric.KindClock, []fabric.Scenario{fabric.ClockTrouble}
	case lab.KindHostStall:
		node := g.Topo.Nodes[rng.IntN(len(g.Topo.Nodes))]
		out.Element, out.Scenarios = node.Name, []fabric.Scenario{fabric.Host}
	case lab.KindBFDFalse, lab.KindBGPFlap, lab.KindBlackholeFIB, lab.KindECMPShrunk, lab.KindPolarized, lab.KindSlowConvergence, lab.KindWithdrawn, lab.KindWrongASPath:
		err = out.misroute(g, rng)
	case lab.KindSIDUnknown:
		err = out.forgetNeighbour(g, rng)
	default:
		err = fmt.Errorf("fault %q: the demo has no such fault", kind)
	}
	if err == nil && out.Fault.At == "" {
		out.Fault.At = out.Element
	}
	return out, err
}

// setStrength sets how strong the fault is.
func (f *PlannedFault) setStrength(p Params) {
	switch f.Fault.Kind {
	case lab.KindDelay, lab.KindNICSlow, lab.KindSwitchSlow, lab.KindCongest, lab.KindIncast:
		f.Fault.Delay = p.Delay
		f.Params["delay_ns"] = int64(p.Delay)
	case lab.KindLoss, KindSymbolErrors:
		f.Fault.Loss = p.Loss
		f.Params["loss"] = p.Loss
	case lab.KindClockStep:
		f.Fault.Step = p.Step
		f.Params["step_ns"] = int64(p.Step)
	case lab.KindClockDrift:
		f.Fault.DriftPPM = p.DriftPPM
		f.Params["drift_ppm"] = p.DriftPPM
	}
}

// pickDirection returns one of the directions of a link.
func pickDirection(rng *rand.Rand, l fabric.Link) fabric.Direction {
	d := fabric.Direction{From: l.A, To: l.B}
	if rng.IntN(2) == 1 {
		d = d.Reverse()
	}
	return d
}

// strikeLink chooses a link between switches, and a direction if the fault has one.
func (f *PlannedFault) strikeLink(g *fabric.Graph, rng *rand.Rand) error {
	kind, links := f.Fault.Kind, fabricLinks(g)
	whole := kind == lab.KindLinkDown || kind == lab.KindFlap
	if whole {
		links = linksLosingPackets(g, links)
	}
	if len(links) == 0 {
		return fmt.Errorf("fault %s: the topology has no link between switches", kind)
	}
	l := links[rng.IntN(len(links))]
	f.Element, f.Kind, f.Scenarios = l.ID(), fabric.KindLink, []fabric.Scenario{fabric.Corridor}
	switch kind {
	case lab.KindBlackhole, lab.KindLinkDown:
		f.Scenarios = []fabric.Scenario{fabric.HardFailure}
	case lab.KindFlap:
		f.Scenarios = []fabric.Scenario{fabric.Flap}
	}
	if !whole {
		f.Direction = pickDirection(rng, l).String()
		f.Fault.Direction = f.Direction
	}
	return nil
}

// misroute chooses the place of a fault of routing.
func (f *PlannedFault) misroute(g *fabric.Graph, rng *rand.Rand) error {
	places, err := lab.RoutingPlaces(g.Topo, f.Fault.Kind)
	if err != nil {
		return err
	}
	if len(places) == 0 {
		return fmt.Errorf("fault %s: the topology has no place where it shows", f.Fault.Kind)
	}
	f.Fault.At = places[rng.IntN(len(places))]
	f.Element, f.Kind, f.Scenarios = f.Fault.At, fabric.KindSwitch, []fabric.Scenario{fabric.RoutingFault}
	switch f.Fault.Kind {
	case lab.KindBGPFlap, lab.KindBFDFalse:
		f.Kind = fabric.KindLink
	case lab.KindPolarized:
		f.Scenarios = []fabric.Scenario{fabric.Polarization}
	case lab.KindSlowConvergence:
		f.loseLink(g, rng)
	case lab.KindBlackholeFIB, lab.KindWithdrawn, lab.KindWrongASPath:
		sw, leaf, _ := strings.Cut(f.Fault.At, "->")
		f.Element = sw
		f.Params["leaf"] = leaf
		if f.Fault.Kind == lab.KindBlackholeFIB {
			f.Scenarios = []fabric.Scenario{fabric.FIBMismatch}
		}
	}
	return nil
}

// forgetNeighbour chooses a switch, and the neighbour whose identifiers it does not know.
func (f *PlannedFault) forgetNeighbour(g *fabric.Graph, rng *rand.Rand) error {
	if !g.Topo.IsSourceRouted() {
		return fmt.Errorf("fault %s: the topology does not have forwarding: %s", f.Fault.Kind, fabric.SRv6)
	}
	var places [][2]string
	for _, l := range fabricLinks(g) {
		a, b := fabric.OwnerOf(l.A), fabric.OwnerOf(l.B)
		if !slices.Contains(places, [2]string{a, b}) {
			places = append(places, [2]string{a, b}, [2]string{b, a})
		}
	}
	if len(places) == 0 {
		return fmt.Errorf("fault %s: the topology has no link between switches", f.Fault.Kind)
	}
	place := places[rng.IntN(len(places))]
	f.Fault.At = place[0] + "->" + place[1]
	f.Element, f.Kind, f.Scenarios = place[0], fabric.KindSwitch, []fabric.Scenario{fabric.RoutingFault}
	f.Params["neighbour"] = place[1]
	return nil
}

// loseLink adds a link of the switch that loses everything in silence: only then does it show how long routing takes.
func (f *PlannedFault) loseLink(g *fabric.Graph, rng *rand.Rand) {
	var ports []string
	for _, end := range g.EndsOf(f.Fault.At) {
		if !fabric.IsNIC(g.PeerOf(end)) {
			ports = append(ports, end)
		}
	}
	port := ports[rng.IntN(len(ports))]
	d := fabric.Direction{From: port, To: g.PeerOf(port)}
	f.Then = lab.Fault{Kind: lab.KindBlackhole, At: d.LinkID(), Direction: d.String(), Sessions: true}
	f.Element, f.Kind, f.Scenarios = d.LinkID(), fabric.KindLink, []fabric.Scenario{fabric.Convergence, fabric.HardFailure}
}

// swapCables chooses two cables between switches.
func (f *PlannedFault) swapCables(g *fabric.Graph, rng *rand.Rand) error {
	pairs := swappableCables(g)
	if len(pairs) == 0 {
		return fmt.Errorf("fault %s: the topology has no two cables between switches to swap", f.Fault.Kind)
	}
	pair := pairs[rng.IntN(len(pairs))]
	f.Element, f.Kind, f.Scenarios = pair[0], fabric.KindLink, []fabric.Scenario{fabric.Miscabled}
	f.OtherLink = pair[1]
	f.Params["swapped_with"] = pair[1]
	f.Fault.At = pair[0] + "," + pair[1]
	return nil
}

// congestPort chooses a port of a switch that leads to another switch.
func (f *PlannedFault) congestPort(g *fabric.Graph, rng *rand.Rand) error {
	links := fabricLinks(g)
	if len(links) == 0 {
		return fmt.Errorf("fault %s: the topology has no link between switches", f.Fault.Kind)
	}
	l := links[rng.IntN(len(links))]
	d := pickDirection(rng, l)
	f.Element, f.Kind, f.Direction = l.ID(), fabric.KindLink, d.String()
	f.Scenarios = []fabric.Scenario{fabric.Corridor, fabric.HOLSame}
	f.Fault.At = d.From
	return nil
}

// strikeNIC chooses a NIC, and which way it is slow.
func (f *PlannedFault) strikeNIC(g *fabric.Graph, rng *rand.Rand) {
	nics := g.NICIDs()
	nic := nics[rng.IntN(len(nics))]
	in := fabric.Direction{From: g.PeerOf(nic), To: nic}
	f.Element, f.Kind = nic, fabric.KindNIC
	if f.Fault.Kind == lab.KindIncast {
		f.Scenarios = []fabric.Scenario{fabric.Incast, fabric.BadNIC}
		f.Direction = in.String()
		return
	}
	f.Scenarios = []fabric.Scenario{fabric.BadNIC}
	f.Fault.Direction = []string{lab.DirectionIn, lab.DirectionOut, lab.DirectionBoth}[rng.IntN(3)]
	f.Params["way"] = f.Fault.Direction
	switch f.Fault.Direction {
	case lab.DirectionIn:
		f.Direction = in.String()
		f.Scenarios = append(f.Scenarios, fabric.Incast)
	case lab.DirectionOut:
		f.Direction = in.Reverse().String()
	}
}

// swappableCables returns the pairs of cables between switches of the same two tiers that can be swapped without
// making a NIC unreachable: every switch keeps its number of uplinks.
func swappableCables(g *fabric.Graph) [][2]string {
	links := fabricLinks(g)
	tiers := func(l fabric.Link) [2]int {
		a, b := g.SwitchTier(fabric.OwnerOf(l.A)), g.SwitchTier(fabric.OwnerOf(l.B))
		return [2]int{min(a, b), max(a, b)}
	}
	var out [][2]string
	for i, a := range links {
		for _, b := range links[i+1:] {
			owners := map[string]bool{}
			for _, end := range []string{a.A, a.B, b.A, b.B} {
				owners[fabric.OwnerOf(end)] = true
			}
			// Two cables of one lower or upper switch are swapped where that
			// changes who is plugged into which port; four switches always.
			if tiers(a) == tiers(b) && len(owners) >= 3 {
				out = append(out, [2]string{a.ID(), b.ID()})
			}
		}
	}
	return out
}

func fabricLinks(g *fabric.Graph) []fabric.Link {
	var out []fabric.Link
	for _, l := range g.Topo.Links {
		if !l.IsAccess() {
			out = append(out, l)
		}
	}
	return out
}

// linksLosingPackets keeps the links whose end loses packets when they go down: where both
// switches have another equal way to everything, they use it at once, no probe
// is lost and there is no symptom to explain. What hosts send over a link by choice goes no other way.
func linksLosingPackets(g *fabric.Graph, links []fabric.Link) []fabric.Link {
	if g.Topo.IsSourceRouted() {
		return links
	}
	leaves := map[string]bool{}
	for _, nic := range g.NICIDs() {
		if leaf, _ := g.LeafOf(nic); leaf != "" {
			leaves[leaf] = true
		}
	}
	only := map[fabric.Direction]bool{}
	for leaf := range leaves {
		dist := g.SwitchDistances(leaf)
		for i := range g.Topo.Switches {
			sw := g.Topo.Switches[i].Name
			var next []fabric.Direction
			for _, end := range g.EndsOf(sw) {
				peer := g.PeerOf(end)
				if d, ok := dist[fabric.OwnerOf(peer)]; ok && !fabric.IsNIC(peer) && d == dist[sw]-1 {
					next = append(next, fabric.Direction{From: end, To: peer})
				}
			}
			if len(next) == 1 {
				only[next[0]] = true
			}
		}
	}
	var out []fabric.Link
	for _, l := range links {
		d := fabric.Direction{From: l.A, To: l.B}
		if only[d] || only[d.Reverse()] {
			out = append(out, l)
		}
	}
	return out
}

// NamedBy reports whether a verdict names the planned element, or its listed
// equivalent of the NIC and access link, or port and link, sort, or another NIC
// with the same clock.
func (p PlannedFault) NamedBy(v *fabric.Verdict) bool {
	if p.Kind == "" || v == nil {
		return false
	}
	if v.Kind == p.Kind && (v.Element.ID == p.Element || p.OtherLink != "" && v.Element.ID == p.OtherLink) {
		return true
	}
	listed := false
	for _, e := range v.Equivalent {
		listed = listed || e.ID == p.Element && e.Kind == p.Kind
	}
	pair := func(a, b fabric.Kind) bool { return v.Kind == a && p.Kind == b || v.Kind == b && p.Kind == a }
	return listed && (pair(fabric.KindNIC, fabric.KindAccessLink) || pair(fabric.KindPort, fabric.KindLink) || pair(fabric.KindClock, fabric.KindClock))
}

// ListedBy reports whether a verdict names the planned element or lists it as
// equivalent, of whatever sort.
func (p PlannedFault) ListedBy(v *fabric.Verdict) bool {
	if v == nil || p.Kind == "" {
		return false
	}
	want := fabric.Element{ID: p.Element, Kind: p.Kind}
	return v.Element == want || slices.Contains(v.Equivalent, want)
}

// DirectionRight reports whether the verdict's direction is the fault's.
func (p PlannedFault) DirectionRight(v *fabric.Verdict) bool {
	return v != nil && (p.Direction == "" || v.Direction == p.Direction)
}

// ScenarioRight reports whether the verdict's scenario is one that fits.
func (p PlannedFault) ScenarioRight(v *fabric.Verdict) bool {
	if v == nil {
		return p.Kind == ""
	}
	for _, s := range p.Scenarios {
		if v.Scenario == s {
			return true
		}
	}
	return false
}
