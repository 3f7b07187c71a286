package packets

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
)

func demo(t *testing.T) *fabric.Topology {
	t.Helper()
	topo, found := fabric.ParseTopology("demo.yaml", deploy.DemoTopology)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return topo
}

// probe is a packet that remembers what became of it.
type probe struct {
	Packet
	n       *Network
	sent    int64
	arrived int64 // 0: it did not
	lost    int   // how often
	came    int
	why     Loss
	order   *[]int64
}

func (p *probe) ActAt(now int64) {
	if p.sent == 0 {
		p.sent = now
		p.n.Send(&p.Packet)
	}
}

func (p *probe) PacketArrived(*Packet) {
	p.came++
	p.arrived = p.n.Now()
	if p.order != nil {
		*p.order = append(*p.order, p.sent)
	}
}

func (p *probe) PacketLost(_ *Packet, why Loss) { p.lost++; p.why = why }

// send lets a packet leave at a time.
func send(t *testing.T, n *Network, at time.Duration, from, to string, flow uint64) *probe {
	t.Helper()
	p := &probe{n: n}
	p.Receiver, p.Octets, p.ECNCapable, p.Flow = p, 150, true, flow
	var ok, ok2 bool
	p.From, ok = n.NICNumber(from)
	p.To, ok2 = n.NICNumber(to)
	if !ok || !ok2 {
		t.Fatalf("no NIC %s or %s", from, to)
	}
	n.ScheduleAt(int64(at), p)
	return p
}

// along finds a flow that leaves an end.
func along(t *testing.T, n *Network, from, to, end string) uint64 {
	t.Helper()
	a, _ := n.NICNumber(from)
	b, _ := n.NICNumber(to)
	for flow := range uint64(1000) {
		if n.FlowCrosses(a, b, flow, end) {
			return flow
		}
	}
	t.Fatalf("no flow from %s to %s leaves %s", from, to, end)
	return 0
}

// TestPacketsAreConserved checks rule 1: under faults that come and go, every packet is delivered once or lost once,
// and the counts agree.
func TestPacketsAreConserved(t *testing.T) {
	for seed := range uint64(20) {
		topo := demo(t)
		n := New(topo, 0.3, seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		nics := n.g.NICIDs()
		var all []*probe
		for i := range 4000 {
			from, to := nics[rng.IntN(len(nics))], nics[rng.IntN(len(nics))]
			all = append(all, send(t, n, time.Duration(i)*20*time.Microsecond, from, to, rng.Uint64()))
		}
		for step := range 8 {
			n.Run(int64(time.Duration(step) * 10 * time.Millisecond))
			l := topo.Links[8+rng.IntN(8)]
			switch rng.IntN(5) {
			case 0:
				n.SetLink(l.ID(), true, rng.IntN(2) == 0)
			case 1:
				must(t, n.SetLoss(l.A, rng.Float64()))
			case 2:
				must(t, n.ShapePort(l.B, 1e5, 2e6))
			case 3:
				must(t, n.AddDelay(l.A, int64(rng.IntN(3e6))))
			case 4:
				n.SwapCables(topo.Links[8].ID(), topo.Links[11].ID())
			}
		}
		n.Run(int64(time.Second) * 10)
		var lost, came uint64
		for i, p := range all {
			if p.came+p.lost != 1 {
				t.Fatalf("seed %d, packet %d: delivered %d times, lost %d times", seed, i, p.came, p.lost)
			}
			lost += uint64(p.lost)
			came += uint64(p.came)
		}
		if n.Sent != 4000 || n.Delivered != came || n.TotalLost() != lost {
			t.Errorf("seed %d: counts %+v, but %d delivered and %d lost", seed, n.Counts, came, lost)
		}
		if lost == 0 || came == 0 {
			t.Errorf("seed %d: %d delivered and %d lost are not enough", seed, came, lost)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoPacketOvertakes checks rule 2, also while a delay ends.
func TestNoPacketOvertakes(t *testing.T) {
	n := New(demo(t), DefaultLoad, 1)
	flow := along(t, n, "h1/eth1", "h3/eth1", "leaf1:up1")
	var order []int64
	for i := range 2000 {
		send(t, n, time.Duration(i+1)*7*time.Microsecond, "h1/eth1", "h3/eth1", flow).order = &order
	}
	for _, at := range []time.Duration{2, 4, 6, 8} {
		n.Run(int64(at * time.Millisecond))
		must(t, n.AddDelay("leaf1:up1", int64(time.Millisecond)*map[bool]int64{true: 1, false: -1}[at%4 == 2]))
		must(t, n.SlowSwitch("spine1", int64(time.Millisecond)*map[bool]int64{true: 1, false: -1}[at%4 == 2]))
	}
	n.Run(int64(time.Second))
	if len(order) != 2000 {
		t.Fatalf("%d of 2000 arrived", len(order))
	}
	for i := 1; i < len(order); i++ {
		if order[i] < order[i-1] {
			t.Fatalf("the packet sent at %d arrived after the one sent at %d", order[i], order[i-1])
		}
	}
}

// TestDelayByHand: an empty fabric delays by what its parts take.
func TestDelayByHand(t *testing.T) {
	n := New(demo(t), 0, 1)
	p := send(t, n, time.Microsecond, "h1/eth1", "h2/eth1", 1)
	n.Run(int64(time.Second))
	// 150 octets at 400 Gbit/s twice, two cables, one switch.
	if want := int64(2*3 + 2*accessTime + switchTime); p.arrived-p.sent != want {
		t.Errorf("%d ns, want %d", p.arrived-p.sent, want)
	}
	slow := send(t, n, time.Second+time.Microsecond, "h1/eth1", "h2/eth1", 1)
	must(t, n.AddDelay("leaf1:dn2", 5000))
	must(t, n.SlowSwitch("leaf1", 70000))
	n.Run(int64(2 * time.Second))
	if got, want := slow.arrived-slow.sent, p.arrived-p.sent+75000; got != want {
		t.Errorf("slow: %d ns, want %d", got, want)
	}
}

// TestQueueIsThatOfTheory checks rule 3: the mean wait behind cross traffic is that of an M/D/1 queue,
// load/(2(1-load)) services, which probes see as they come at random (PASTA).
func TestQueueIsThatOfTheory(t *testing.T) {
	for _, load := range []float64{0.1, 0.3, 0.5, 0.7} {
		n := New(demo(t), load, 7)
		d, err := n.portAt("leaf1:up1")
		must(t, err)
		d.depth = math.Inf(1)
		// Gaps of 2 services on the mean, much shorter than forget, and of 100
		// times forget: what is forgotten makes no difference.
		for _, gap := range []float64{2 * d.cross.burst, 100 * d.cross.forget} {
			const samples = 200_000
			sum, at := 0.0, d.cross.next+d.free
			for range samples {
				at += n.rng.ExpFloat64() * gap
				d.admitCrossTraffic(at, n.rng)
				sum += max(0, d.free-at)
			}
			want := load / (2 * (1 - load)) * d.cross.burst
			if got := sum / samples; math.Abs(got-want) > 0.06*want {
				t.Errorf("load %g, a look every %.0f ns: mean wait %.1f ns, want %.1f", load, gap, got, want)
			}
		}
	}
}

// TestFullQueueLosesAndMarks checks rule 3: packets beyond the rate are lost, packets that find a quarter of the
// queue filled are marked, and the wait is that of a full queue.
func TestFullQueueLosesAndMarks(t *testing.T) {
	n := New(demo(t), 0, 1)
	const rate, full = 1e6, 10 * time.Millisecond // 150 octets take 150 us
	must(t, n.ShapePort("leaf1:dn2", rate, int64(full)))
	var all []*probe
	for i := range 20_000 {
		all = append(all, send(t, n, time.Duration(i+1)*120*time.Microsecond, "h1/eth1", "h2/eth1", 1)) // 1.25 of the rate
	}
	n.Run(int64(time.Minute))
	lost, marked := 0, 0
	for _, p := range all[2000:] {
		if p.lost > 0 {
			lost++
			if p.why != Overflow {
				t.Fatalf("lost by %d", p.why)
			}
			continue
		}
		if p.Marked {
			marked++
		}
		if w := time.Duration(p.arrived - p.sent); w < full-300*time.Microsecond || w > full+time.Millisecond {
			t.Fatalf("%s behind a queue of %s", w, full)
		}
	}
	if part := float64(lost) / 18_000; math.Abs(part-0.2) > 0.01 {
		t.Errorf("%.3f lost, want 0.2", part)
	}
	if marked != 18_000-lost {
		t.Errorf("%d of %d marked", marked, 18_000-lost)
	}
	if all[5].Marked {
		t.Error("marked at an empty queue")
	}
	must(t, n.ShapePort("leaf1:dn2", 0, 0))
	late := send(t, n, time.Duration(n.Now())+time.Millisecond, "h1/eth1", "h2/eth1", 1)
	n.Run(n.Now() + int64(time.Second))
	if w := late.arrived - late.sent; w > 2000 || late.Marked {
		t.Errorf("after healing: %d ns, marked %v", w, late.Marked)
	}
}

// TestMarksOnlyWhatIsCapable checks rule 3.
func TestMarksOnlyWhatIsCapable(t *testing.T) {
	n := New(demo(t), 0, 1)
	must(t, n.MarkAll("h1/eth1", true))
	a, b := send(t, n, 1, "h1/eth1", "h2/eth1", 1), send(t, n, 2, "h1/eth1", "h2/eth1", 1)
	b.ECNCapable = false
	n.Run(1e9)
	if !a.Marked || b.Marked {
		t.Errorf("marked: %v, and the one that is not capable %v", a.Marked, b.Marked)
	}
}

// TestFlowsKeepTheirWay checks rule 4: a flow has one path, flows share the paths evenly, and the paths are the
// shortest ones.
func TestFlowsKeepTheirWay(t *testing.T) {
	topo := clos.NewTopology(clos.Options{Tiers: 3, Pods: 3, LeavesPerPod: 3, SpinesPerPod: 2, CoresPerRow: 2, NICsPerLeaf: 2})
	n := New(topo, 0, 1)
	g := fabric.NewGraph(topo)
	nics := g.NICIDs()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		from, to := nics[rng.IntN(len(nics))], nics[rng.IntN(len(nics))]
		if from == to {
			continue
		}
		shortest := map[string]int{}
		for _, p := range g.ShortestPaths(from, to, 64) {
			key := ""
			for _, h := range p {
				key += h.Switch + " "
			}
			shortest[key] = 0
		}
		a, _ := n.NICNumber(from)
		b, _ := n.NICNumber(to)
		const flows = 400
		for flow := range uint64(flows) {
			hops, reached := n.TraceFlow(a, b, flow)
			key := ""
			for _, h := range hops {
				key += h.Switch + " "
			}
			if _, ok := shortest[key]; !ok || !reached {
				t.Fatalf("%s to %s by %q, reached %v: none of %d shortest ways", from, to, key, reached, len(shortest))
			}
			if again, _ := n.TraceFlow(a, b, flow); fmt.Sprint(again) != fmt.Sprint(hops) {
				t.Fatalf("flow %d of %s to %s has two ways", flow, from, to)
			}
			shortest[key]++
		}
		want := float64(flows) / float64(len(shortest))
		for key, got := range shortest {
			if math.Abs(float64(got)-want) > 6*math.Sqrt(want) {
				t.Errorf("%s to %s: %d of %d flows by %q", from, to, got, flows, key)
			}
		}
	}
}

// TestPacketsGoWhereTracesSay checks that a trace shows the path that packets take.
func TestPacketsGoWhereTracesSay(t *testing.T) {
	n := New(demo(t), 0, 1)
	a, _ := n.NICNumber("h1/eth1")
	b, _ := n.NICNumber("h8/eth1")
	for flow := range uint64(50) {
		hops, _ := n.TraceFlow(a, b, flow)
		spine := hops[1].Switch
		must(t, n.SlowSwitch(spine, int64(time.Millisecond)))
		p := send(t, n, time.Duration(n.Now()+1000), "h1/eth1", "h8/eth1", flow)
		n.Run(n.Now() + int64(10*time.Millisecond))
		if d := p.arrived - p.sent; d < int64(time.Millisecond) {
			t.Errorf("flow %d was traced by %s and took %d ns", flow, spine, d)
		}
		must(t, n.SlowSwitch(spine, -int64(time.Millisecond)))
	}
}

// TestDownThenWithdrawn checks rule 5: the link's own ends send around it at once. A far switch still sends to the
// spine that has lost its downlink until the link is withdrawn.
func TestDownThenWithdrawn(t *testing.T) {
	n := New(demo(t), 0, 1)
	const link = "leaf3:up1--spine1:dn3"
	out, in := along(t, n, "h5/eth1", "h1/eth1", "leaf3:up1"), along(t, n, "h1/eth1", "h5/eth1", "leaf1:up1")
	became := func() (from, to *probe) {
		at := time.Duration(n.Now() + 1000)
		from, to = send(t, n, at, "h5/eth1", "h1/eth1", out), send(t, n, at, "h1/eth1", "h5/eth1", in)
		n.Run(n.Now() + int64(time.Millisecond))
		return from, to
	}
	if from, to := became(); from.came != 1 || to.came != 1 {
		t.Fatal("lost while all is well")
	}
	n.SetLink(link, true, false)
	if from, to := became(); from.came != 1 || to.lost != 1 || to.why != NoRoute {
		t.Errorf("down: from its own leaf delivered %d times; towards it lost %d times, by %d", from.came, to.lost, to.why)
	}
	n.SetLink(link, true, true)
	if from, to := became(); from.came != 1 || to.came != 1 {
		t.Errorf("withdrawn: delivered %d and %d times", from.came, to.came)
	}
	a, _ := n.NICNumber("h1/eth1")
	b, _ := n.NICNumber("h5/eth1")
	for flow := range uint64(100) {
		if n.FlowCrosses(a, b, flow, "spine1:dn3") {
			t.Fatal("a flow crosses the link that is down")
		}
	}
	n.SetLink(link, false, false)
	if n.FlowCrosses(a, b, in, "leaf1:up1") != true {
		t.Error("the flow does not come back")
	}
}

// TestPacketsOnALinkThatGoesDown: what was sent before is lost where it meets it.
func TestPacketsOnALinkThatGoesDown(t *testing.T) {
	n := New(demo(t), 0, 1)
	flow := along(t, n, "h1/eth1", "h3/eth1", "spine1:dn2")
	d, err := n.portAt("spine1:dn2")
	must(t, err)
	p := send(t, n, 1, "h1/eth1", "h3/eth1", flow)
	n.Run(10)
	d.down = true // its cable is cut while the switch still has the route
	n.Run(1e9)
	if p.lost != 1 || p.why != Down {
		t.Errorf("lost %d times, by %d", p.lost, p.why)
	}
}

// TestSwappedCables checks rule 6: all packets are still delivered, by the ports into which the cables are plugged
// now. Putting them back restores everything.
func TestSwappedCables(t *testing.T) {
	n := New(demo(t), 0, 1)
	const one, two = "leaf1:up1--spine1:dn1", "leaf3:up1--spine1:dn3"
	a, _ := n.NICNumber("h1/eth1")
	b, _ := n.NICNumber("h5/eth1")
	flow := along(t, n, "h1/eth1", "h5/eth1", "leaf1:up1")
	entered := func() (in string) {
		hops, reached := n.TraceFlow(a, b, flow)
		if !reached || len(hops) != 3 {
			t.Fatalf("reached %v by %+v", reached, hops)
		}
		p := send(t, n, time.Duration(n.Now()+1000), "h1/eth1", "h5/eth1", flow)
		n.Run(n.Now() + int64(time.Millisecond))
		if p.came != 1 {
			t.Fatal("not delivered")
		}
		return hops[1].In
	}
	before := entered()
	n.SwapCables(one, two)
	if in := entered(); in != "spine1:dn3" {
		t.Errorf("swapped: the spine is entered by %s", in)
	}
	n.SwapCables(one, two)
	if in := entered(); in != before || in != "spine1:dn1" {
		t.Errorf("put back: the spine is entered by %s, before by %s", in, before)
	}
}

// TestWhatTracesSee: no switch behind a direction that loses everything, none that
// is mute, none whose answer is lost.
func TestWhatTracesSee(t *testing.T) {
	n := New(demo(t), 0, 1)
	flow := along(t, n, "h1/eth1", "h5/eth1", "leaf1:up1")
	a, _ := n.NICNumber("h1/eth1")
	b, _ := n.NICNumber("h5/eth1")
	see := func() string {
		s := ""
		hops, reached := n.TraceFlow(a, b, flow)
		for _, h := range hops {
			s += fmt.Sprintf("%s=%v ", h.In, h.Answers)
		}
		return s + fmt.Sprint(reached)
	}
	whole := "leaf1:dn1=true spine1:dn1=true leaf3:up1=true true"
	for _, step := range []struct {
		do, undo func() error
		want     string
	}{
		{func() error { return nil }, func() error { return nil }, whole},
		{func() error { return n.MuteSwitch("spine1", true) }, func() error { return n.MuteSwitch("spine1", false) }, "leaf1:dn1=true spine1:dn1=false leaf3:up1=true true"},
		{func() error { return n.SetLoss("spine1:dn3", 1) }, func() error { return n.SetLoss("spine1:dn3", 0) }, "leaf1:dn1=true spine1:dn1=true false"},
		{func() error { return n.SetLoss("leaf1:dn1", 1) }, func() error { return n.SetLoss("leaf1:dn1", 0) }, "leaf1:dn1=false spine1:dn1=false leaf3:up1=false true"},
		{func() error { return n.SetLoss("leaf1:up1", 0.5) }, func() error { return n.SetLoss("leaf1:up1", 0) }, whole},
	} {
		must(t, step.do())
		if got := see(); got != step.want {
			t.Errorf("%s, want %s", got, step.want)
		}
		must(t, step.undo())
	}
}

// TestLossRatios: as many are lost as a fault says, of its direction only.
func TestLossRatios(t *testing.T) {
	for _, part := range []float64{0.01, 0.1, 0.5, 1} {
		n := New(demo(t), 0, 3)
		must(t, n.SetLoss("leaf1:dn2", part))
		lost, back := 0, 0
		const sent = 20_000
		var there, here []*probe
		for i := range sent {
			there = append(there, send(t, n, time.Duration(i+1)*time.Microsecond, "h1/eth1", "h2/eth1", uint64(i)))
			here = append(here, send(t, n, time.Duration(i+1)*time.Microsecond, "h2/eth1", "h1/eth1", uint64(i)))
		}
		n.Run(1e9)
		for i := range there {
			lost += there[i].lost
			back += here[i].lost
		}
		if want := part * sent; math.Abs(float64(lost)-want) > 5*math.Sqrt(want) || back != 0 {
			t.Errorf("loss %g: %d of %d lost, and %d of the other direction", part, lost, sent, back)
		}
	}
}

// TestSameSeedSamePackets checks rule 7.
func TestSameSeedSamePackets(t *testing.T) {
	run := func(seed uint64) (out []int64) {
		n := New(demo(t), 0.4, seed)
		must(t, n.SetLoss("spine1:dn1", 0.1))
		var all []*probe
		for i := range 2000 {
			all = append(all, send(t, n, time.Duration(i+1)*50*time.Microsecond, "h5/eth1", "h1/eth1", uint64(i)))
		}
		n.Run(1e9)
		for _, p := range all {
			out = append(out, p.arrived)
		}
		return out
	}
	a, b, c := run(1), run(1), run(2)
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Error("the same seed gives other packets")
	}
	if fmt.Sprint(a) == fmt.Sprint(c) {
		t.Error("another seed gives the same packets")
	}
}

func TestUnknownElements(t *testing.T) {
	n := New(demo(t), 0, 1)
	for _, err := range []error{n.AddDelay("leaf9:up1", 1), n.SetLoss("x", 1), n.MarkAll("", true), n.ShapePort("leaf1", 1, 1), n.SlowSwitch("h1", 1), n.MuteSwitch("leaf1:up1", true)} {
		if err == nil {
			t.Error("an element that is none is broken")
		}
	}
}

// BenchmarkHop measures the cost of one packet per direction of a link.
func BenchmarkHop(b *testing.B) {
	topo, _ := fabric.ParseTopology("demo.yaml", deploy.DemoTopology)
	n := New(topo, DefaultLoad, 1)
	p := &probe{n: n}
	p.Receiver, p.Octets = p, 150
	p.From, _ = n.NICNumber("h1/eth1")
	p.To, _ = n.NICNumber("h8/eth1")
	for i := range b.N / 4 {
		p.Flow = uint64(i)
		n.Send(&p.Packet)
		n.Run(n.Now() + 200_000)
	}
}
