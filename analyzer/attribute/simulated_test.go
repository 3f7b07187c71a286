package attribute_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/attribute"
	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/locator"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sim/packets"
)

// Times of a simulation. Incidents begin at faultAt, and their causes are asked for at askedAt. The series are scraped every second.
const (
	faultAt = 24 * time.Second
	askedAt = 34 * time.Second
)

// simulation is a simulated fabric with cross traffic, in which every NIC sends tagged packets to every other one.
type simulation struct {
	t       *testing.T
	graph   *fabric.Graph
	net     *packets.Network
	profile *csig.Profile
	format  csig.Format
	rng     *rand.Rand
	flows   []*simulatedFlow
}

// simulatedFlow sends a tagged packet every 50 ms, and observes the tags of those that arrive.
type simulatedFlow struct {
	fabric.Flow
	sim      *simulation
	from, to int32
	path     fabric.Path
	sent     int
	observed *observe.Flow
	values   map[string][]string // by series, of each second
}

// ActAt implements packets.Actor.
func (f *simulatedFlow) ActAt(now int64) {
	signal := []csig.Signal{csig.Share, csig.Delay}[f.sent%2]
	f.sent++
	tag := csig.NewTag(f.sim.format, signal)
	f.sim.net.Send(&packets.Packet{From: f.from, To: f.to, Flow: packets.HashText(f.String()), Octets: 150 + int32(f.sim.format), Receiver: f, Tag: tag})
	f.sim.net.ScheduleAt(now+int64(50*time.Millisecond), f)
}

// PacketArrived implements packets.Receiver.
func (f *simulatedFlow) PacketArrived(p *packets.Packet) { f.observed.Add(&p.Tag, f.sim.net.Now()) }

// PacketLost implements packets.Receiver.
func (f *simulatedFlow) PacketLost(*packets.Packet, packets.Loss) {}

// crossFlow is traffic without tags from the beginning of the fault.
type crossFlow struct {
	sim      *simulation
	from, to int32
	hash     uint64
	every    time.Duration
}

func (c *crossFlow) ActAt(now int64) {
	c.sim.net.Send(&packets.Packet{From: c.from, To: c.to, Flow: c.hash, Octets: 1442, Receiver: c})
	c.sim.net.ScheduleAt(now+int64(c.every), c)
}

func (c *crossFlow) PacketArrived(*packets.Packet)            {}
func (c *crossFlow) PacketLost(*packets.Packet, packets.Loss) {}

// simulate returns a fabric that has not run yet.
func simulate(t *testing.T, seed uint64) *simulation {
	t.Helper()
	topo, found := fabric.ParseTopology("demo.yaml", deploy.DemoTopology)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	p, err := csig.ParseProfile("csig.yml", []byte("ethertypes: {compact: 0x88b5, wide: 0x88b6}\ninterval: 1ms\nfastest_gbps: 100\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := &simulation{t: t, graph: fabric.NewGraph(topo), net: packets.New(topo, packets.DefaultLoad, seed), profile: p, format: csig.Formats[seed%2], rng: rand.New(rand.NewPCG(seed, 8))}
	all := locator.AssignLocators(s.graph)
	p.CompactLocators, p.WideLocators = all.LocatorsOf(csig.Compact), all.LocatorsOf(csig.Wide)
	s.net.UseSignals(p)
	observer := observe.New(p, observe.Options{})
	for _, src := range s.graph.NICIDs() {
		for _, dst := range s.graph.NICIDs() {
			if src == dst {
				continue
			}
			f := &simulatedFlow{Flow: fabric.Flow{Src: src, Dst: dst, Number: fabric.FlowsPerClass}, sim: s, observed: observer.NewFlow(), values: map[string][]string{}}
			f.from, _ = s.net.NICNumber(src)
			f.to, _ = s.net.NICNumber(dst)
			f.path = s.pathOf(f)
			s.flows = append(s.flows, f)
			s.net.ScheduleAt(int64(time.Duration(len(s.flows))*time.Millisecond), f)
		}
	}
	return s
}

// pathOf returns the true path of a flow.
func (s *simulation) pathOf(f *simulatedFlow) (out fabric.Path) {
	hops, reached := s.net.TraceFlow(f.from, f.to, packets.HashText(f.String()))
	if !reached {
		s.t.Fatalf("%s does not arrive", f)
	}
	for i := range hops {
		far := f.Dst
		if i+1 < len(hops) {
			far = hops[i+1].In
		}
		end, _ := s.net.FarEnd(far)
		_, in, _ := fabric.SplitPort(hops[i].In)
		_, port, _ := fabric.SplitPort(end)
		out = append(out, fabric.Hop{Switch: hops[i].Switch, In: in, Out: port})
	}
	return out
}

// congestPort shapes a port from the beginning of the fault on, and sends more across it than it lets pass, but not across another one. A
// packet waits at most so long.
func (s *simulation) congestPort(port string, load float64, depth time.Duration, other string) {
	const rate = 20e6 / 8
	s.atFault(func() error { return s.net.ShapePort(port, rate, int64(depth)) })
	nics := s.graph.NICIDs()
	for range 4000 {
		from, to, hash := int32(s.rng.IntN(len(nics))), int32(s.rng.IntN(len(nics))), s.rng.Uint64()
		if from != to && s.net.FlowCrosses(from, to, hash, port) && (other == "" || !s.net.FlowCrosses(from, to, hash, other)) {
			s.net.ScheduleAt(int64(faultAt), &crossFlow{s, from, to, hash, time.Duration(1442 / (rate * load) * 1e9)})
			return
		}
	}
	s.t.Fatalf("no flow crosses %s and avoids %q", port, other)
}

// later is something that happens when the fault begins.
type later func() error

func (l later) ActAt(int64) {
	if err := l(); err != nil {
		panic(err) // the test names an end that does not exist
	}
}

func (s *simulation) atFault(do func() error) { s.net.ScheduleAt(int64(faultAt), later(do)) }

// scrape adds what the flows' series are at a second.
func (s *simulation) scrape(second int) {
	now := int64(second) * 1e9
	for _, f := range s.flows {
		put := func(name, labels, value string) {
			e := fmt.Sprintf(`%s{src=%q,dst=%q,flow="%d",direction="forward",%s}`, name, f.Src, f.Dst, f.Number, labels)
			for len(f.values[e]) < second {
				f.values[e] = append(f.values[e], "_")
			}
			f.values[e] = append(f.values[e], value)
		}
		for signal, name := range map[csig.Signal]string{csig.Share: "fabric_csig_available_ratio", csig.Delay: "fabric_csig_hop_delay_seconds"} {
			for _, c := range f.observed.Counts(signal) {
				put("fabric_csig_packets_total", fmt.Sprintf("signal=%q,format=%q,locator=\"%d\"", signal, c.Format, c.Locator), fmt.Sprint(c.Packets))
			}
			unit := map[csig.Signal]float64{csig.Share: csig.Million, csig.Delay: 1e9}[signal]
			if v, ok := f.observed.LastValue(signal, now); ok {
				put(name, `bound="lower"`, fmt.Sprint(float64(v.Lower)/unit))
				if v.HasUpper {
					put(name, `bound="upper"`, fmt.Sprint(float64(v.Upper)/unit))
				}
			}
		}
	}
}

// run runs the simulation, and returns its series.
func (s *simulation) run() string {
	var b strings.Builder
	seconds := int(askedAt / time.Second)
	for second := 1; second <= seconds; second++ {
		s.net.Run(int64(second) * 1e9)
		s.scrape(second)
	}
	fmt.Fprintf(&b, "load 1s\n  graylink_csig_profile_info{hash=%q} 1x%d\n", s.profile.Hash(), seconds)
	for f, locators := range map[csig.Format]map[string]uint16{csig.Compact: s.profile.CompactLocators, csig.Wide: s.profile.WideLocators} {
		for port, l := range locators {
			sw, name, _ := fabric.SplitPort(port)
			fmt.Fprintf(&b, "  fabric_csig_locator_info{format=%q,locator=\"%d\",switch=%q,port=%q} 1x%d\n", f, l, sw, name, seconds)
		}
	}
	for _, f := range s.flows {
		for _, name := range slices.Sorted(maps.Keys(f.values)) {
			fmt.Fprintf(&b, "  %s %s\n", name, strings.Join(f.values[name], " "))
		}
	}
	return b.String()
}

// opinionAt returns what signals say about a verdict on what a port sends.
func (s *simulation) opinionAt(series, port string) fabric.Attribution {
	s.t.Helper()
	d := fabric.Direction{From: port, To: s.graph.PeerOf(port)}
	v := fabric.Verdict{Element: fabric.Element{ID: d.LinkID(), Kind: fabric.KindLink}, Direction: d.String(), Scenario: fabric.Corridor}
	if fabric.IsNIC(d.To) {
		v.Element, v.Scenario = fabric.Element{ID: d.To, Kind: fabric.KindNIC}, fabric.BadNIC
	}
	a := attribute.Attributor{DB: evidencetest.NewQuerier(s.t, series), Scrape: time.Second, Before: 20 * time.Second}
	crossing := func(e fabric.Element) (out []attribute.CrossingFlow) {
		for _, f := range s.flows {
			if src, dst := f.Endpoints(); e.CrossedBy(f.path, src, dst) {
				out = append(out, attribute.CrossingFlow{f.Flow, f.path})
			}
		}
		return out
	}
	onset := time.Unix(0, int64(faultAt))
	got, err := a.Attribute(s.t.Context(), s.graph, attribute.Request{Verdict: v, Since: onset.Add(-2 * time.Second), SureSince: onset.Add(2 * time.Second), Now: time.Unix(0, int64(askedAt)), Crossing: crossing})
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

// usedPorts returns the ports that some flows cross, sorted.
func (s *simulation) usedPorts() []string {
	flows := map[string]int{}
	for _, f := range s.flows {
		for _, h := range f.path {
			flows[h.Switch+":"+h.Out]++
		}
	}
	maps.DeleteFunc(flows, func(_ string, n int) bool { return n < 2 })
	return slices.Sorted(maps.Keys(flows))
}

// TestSimulatedCongestions has congestions of random ports, in compact and in wide tags. The signals agree with at least 95 % of the verdicts
// on them.
func TestSimulatedCongestions(t *testing.T) {
	agreed := 0
	for seed := range uint64(simulatedCases) {
		s := simulate(t, seed)
		ports := s.usedPorts()
		port := ports[s.rng.IntN(len(ports))]
		s.congestPort(port, 1.01+0.3*s.rng.Float64(), time.Duration(300+s.rng.IntN(4000))*time.Microsecond, "")
		a := s.opinionAt(s.run(), port)
		if a.Signals.Says == fabric.SignalsAgree && a.Signals.Port == port && len(a.Causes) == 1 && a.Causes[0].Weight >= 0.4 {
			agreed++
		} else {
			t.Logf("seed %d, %s: %+v; %s", seed, port, a.Signals, a.Summary)
		}
		if a.Signals.Says == fabric.SignalsDisagree {
			t.Errorf("seed %d, %s: %s", seed, port, a.Summary)
		}
	}
	t.Logf("%d of %d agree", agreed, simulatedCases)
	if agreed*100 < 95*simulatedCases {
		t.Errorf("%d of %d agree", agreed, simulatedCases)
	}
}

// TestSimulatedFaultsWithoutQueue has delays and losses of random ports without a queue. The signals contradict none of the verdicts, and
// say of none that it is congestion.
func TestSimulatedFaultsWithoutQueue(t *testing.T) {
	for seed := range uint64(simulatedCases) {
		s := simulate(t, 100+seed)
		ports := s.usedPorts()
		port := ports[s.rng.IntN(len(ports))]
		s.atFault(func() error {
			if seed%4 < 2 {
				return s.net.AddDelay(port, int64(time.Duration(20+s.rng.IntN(2000))*time.Microsecond))
			}
			return s.net.SetLoss(port, 0.01+0.5*s.rng.Float64())
		})
		if a := s.opinionAt(s.run(), port); a.Signals.Says != fabric.SignalsSilent || a.Signals.Packets == 0 {
			t.Errorf("seed %d, %s: %+v", seed, port, a.Signals)
		}
	}
}

// TestSimulatedTwoCongestions has two congestions of different size on one path. The signals never agree with the verdict on the lesser one.
func TestSimulatedTwoCongestions(t *testing.T) {
	said := map[fabric.SignalOpinion]int{}
	for seed := range uint64(simulatedCases) {
		s := simulate(t, 200+seed)
		f := s.flows[s.rng.IntN(len(s.flows))]
		for len(f.path) < 2 {
			f = s.flows[s.rng.IntN(len(s.flows))]
		}
		order := s.rng.Perm(len(f.path))
		port := func(i int) string { h := f.path[order[i]]; return h.Switch + ":" + h.Out }
		s.congestPort(port(0), 1.1, 300*time.Microsecond+time.Duration(s.rng.IntN(700))*time.Microsecond, port(1))
		s.congestPort(port(1), 1.1, 4*time.Millisecond, port(0))
		series := s.run()
		if a := s.opinionAt(series, port(0)); a.Signals.Says == fabric.SignalsAgree {
			t.Errorf("seed %d: %s is the lesser of it and %s: %+v", seed, port(0), port(1), a.Signals)
		}
		said[s.opinionAt(series, port(1)).Signals.Says]++
	}
	t.Logf("on the greater ones: %v", said)
}
