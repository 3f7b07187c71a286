package probe

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/stamp"
)

// signalProfile returns a profile with two ports.
func signalProfile(t *testing.T) *csig.Profile {
	t.Helper()
	p, err := csig.ParseProfile("csig.yml", []byte(`
ethertypes: {compact: 0x88b5, wide: 0x88b6}
interval: 1ms
fastest_gbps: 100
locators: {compact: {"leaf1:up1": 1, "leaf1:up2": 2}, wide: {"leaf1:up1": 1, "leaf1:up2": 2}}
`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// signalConfig returns a configuration with one flow of class csig.
func signalConfig(node string, self, peer int, peerNIC string) *Config {
	c := loopConfig(node, self, peer, peerNIC, 1)
	c.Stamp.Classes = []ClassConfig{{Name: fabric.ClassCSIG}}
	return c
}

// simulateSignals returns an engine that the test drives, with signals.
func simulateSignals(t *testing.T, c *Config, s *Signals) (*Simulated, *setClock) {
	t.Helper()
	return simulateWith(t, c, func(d *Deps) { d.Signals = s })
}

// carriedTag is a tag as it was where it arrived.
type carriedTag struct {
	direction int
	tag       csig.Tag
}

// TestReflectedSignals sends 10,000 probes without sockets, of which 1 % are lost in each direction. What the sender counts of each direction
// is what arrived at its end, packet for packet.
func TestReflectedSignals(t *testing.T) {
	for _, format := range csig.Formats {
		t.Run(format.String(), func(t *testing.T) {
			s := &Signals{Profile: signalProfile(t), Format: format, Kinds: []csig.Signal{csig.Share, csig.Delay, csig.Bandwidth}, Flows: 10}
			a, clock := simulateSignals(t, signalConfig("h1", 1, 2, "h2/eth1"), s)
			b, _ := simulateSignals(t, signalConfig("h2", 2, 1, "h1/eth1"), s)
			flows, err := a.ListFlows()
			if err != nil || !flows[0].SetReflector(b) {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(6, uint64(format)))
			meet := func(tag *csig.Tag) { // two ports
				for locator := range uint16(2) {
					tag.Update(rng.Uint32N(format.MaxCode()+1), locator+1)
				}
			}
			want := map[carriedTag]uint64{}
			base, f := clock.now, flows[0]
			const probes = 10_000
			tagged := 0
			for i := range probes {
				now := int64(f.Phase) + int64(i)*int64(f.Cadence)
				clock.set(base.Add(time.Duration(now)))
				var p SimPacket
				tag := f.SendProbe(&p, now, now)
				if (tag.Format != csig.None) != (p.seq&1 == 1) || tag != (csig.Tag{}) && tag != csig.NewTag(format, s.Kinds[int(p.seq>>1)%3]) {
					t.Fatalf("probe %d has the tag %+v", p.seq, tag)
				}
				if rng.IntN(100) == 0 {
					continue
				}
				meet(&tag)
				sent := tag
				if !b.ReflectProbe(&p, now+1000, now+2000, now+3000, false, &tag) {
					t.Fatalf("probe %d is not answered", i)
				}
				if tag.Format != sent.Format || tag.Signal != sent.Signal || tag.Locator != 0 {
					t.Fatalf("the reply to a probe with %+v has %+v", sent, tag)
				}
				if rng.IntN(100) == 0 {
					continue
				}
				meet(&tag)
				if tag.Format != csig.None {
					tagged++
					want[carriedTag{forward, csig.Tag{Format: format, Signal: sent.Signal, Locator: sent.Locator}}]++
					want[carriedTag{reverse, csig.Tag{Format: format, Signal: tag.Signal, Locator: tag.Locator}}]++
				}
				a.AcceptReply(&p, now+4000, now+5000, false, tag)
				if got, _ := requestTag(&p.reply); got.Tag != sent {
					t.Fatalf("reflected %+v, arrived %+v", got.Tag, sent)
				}
			}
			stats := a.SignalStats()
			if stats == nil || len(stats.Flows) != 1 || stats.Flows[0].Supported != observe.Supported || stats.NICs[0].Dropped != (observe.DropCounts{}) {
				t.Fatalf("%+v", stats)
			}
			got := map[carriedTag]uint64{}
			for d := range directions {
				for _, c := range stats.Flows[0].Directions[d].Packets {
					got[carriedTag{d, csig.Tag{Format: c.Format, Signal: c.Signal, Locator: c.Locator}}] = c.Packets
				}
			}
			for k, n := range want {
				if got[k] != n {
					t.Errorf("%+v: %d packets, want %d", k, got[k], n)
				}
			}
			if len(got) != len(want) || tagged < 4700 {
				t.Errorf("%d kinds of packets, want %d; %d tagged", len(got), len(want), tagged)
			}
		})
	}
}

// TestReflectorWithoutSignals probes a reflector that reads no tags: there is no value, and probes go on.
func TestReflectorWithoutSignals(t *testing.T) {
	s := &Signals{Profile: signalProfile(t), Format: csig.Compact, Kinds: []csig.Signal{csig.Share}, Flows: 10}
	a, clock := simulateSignals(t, signalConfig("h1", 1, 2, "h2/eth1"), s)
	b, _ := simulateSignals(t, signalConfig("h2", 2, 1, "h1/eth1"), nil)
	flows, err := a.ListFlows()
	if err != nil || !flows[0].SetReflector(b) {
		t.Fatal(err)
	}
	base := clock.now
	for i := range 200 {
		now := int64(i) * int64(flows[0].Cadence)
		clock.set(base.Add(time.Duration(now)))
		var p SimPacket
		tag := flows[0].SendProbe(&p, now, now)
		if !b.ReflectProbe(&p, now+1000, now+2000, now+3000, false, &tag) || tag != (csig.Tag{}) {
			t.Fatal("no reply, or one with a tag")
		}
		a.AcceptReply(&p, now+4000, now+5000, false, tag)
	}
	if e := a.Snapshot().NICs[0].Edges[0]; e.Acked != 200 {
		t.Errorf("%d probes are answered", e.Acked)
	}
	stats := a.SignalStats()
	if f := stats.Flows[0]; len(f.Directions[0].Packets)+len(f.Directions[1].Packets) != 0 || f.Directions[0].Last[csig.Share].Known {
		t.Errorf("%+v", f)
	}
	if b.SignalStats() != nil {
		t.Error("an engine without signals has statistics of them")
	}
}

// TestPathsWithoutSupport sends probes over a path that drops those with a tag: after 20 replies to the others the path is known not to
// carry tags, nothing is tagged for five minutes, and then it is tried again.
func TestPathsWithoutSupport(t *testing.T) {
	s := &Signals{Profile: signalProfile(t), Format: csig.Compact, Kinds: []csig.Signal{csig.Share}, Flows: 10}
	a, clock := simulateSignals(t, signalConfig("h1", 1, 2, "h2/eth1"), s)
	b, _ := simulateSignals(t, signalConfig("h2", 2, 1, "h1/eth1"), s)
	flows, err := a.ListFlows()
	if err != nil || !flows[0].SetReflector(b) {
		t.Fatal(err)
	}
	base, now := clock.now, int64(0)
	drops := true
	exchange := func(probes int) (tagged int) {
		for range probes {
			now += int64(flows[0].Cadence)
			clock.set(base.Add(time.Duration(now)))
			var p SimPacket
			tag := flows[0].SendProbe(&p, now, now)
			if tag.Format != csig.None {
				if tagged++; drops {
					continue
				}
			}
			if !b.ReflectProbe(&p, now+1000, now+2000, now+3000, false, &tag) {
				t.Fatal("no reply")
			}
			a.AcceptReply(&p, now+4000, now+5000, false, tag)
			a.AdvanceTo(now)
		}
		return tagged
	}
	support := func() observe.Support {
		stats := a.SignalStats()
		return stats.Flows[0].Supported
	}
	if exchange(38); support() != observe.SupportUnknown {
		t.Errorf("%v after 19 replies", support())
	}
	exchange(2)
	if got := support(); got != observe.Unsupported {
		t.Errorf("%v after 20 replies to plain probes", got)
	}
	until(t, 20*time.Second, "the switch that drops tagged packets is found", func() bool {
		exchange(1) // the path is traced while there are answers
		return a.SignalStats().Flows[0].DroppedAt == loopback(3)
	})
	if n := exchange(1000); n != 0 {
		t.Errorf("%d probes are tagged in the pause", n)
	}
	drops = false
	now += int64(5 * time.Minute)
	if exchange(100); support() != observe.Supported || a.SignalStats().Flows[0].DroppedAt.IsValid() {
		t.Errorf("%v after the path carries tags again", support())
	}
	if n := exchange(100); n != 50 {
		t.Errorf("%d of 100 probes are tagged", n)
	}
	// What arrives with a tag in one direction only is not supported either, since the reply is lost.
	drops = true
	if exchange(80); support() != observe.Unsupported {
		t.Errorf("%v after the path drops tags again", support())
	}
}

// fakeSignals is a port of a NIC whose packets arrive with the tags that a function makes.
type fakeSignals struct {
	tagOf  func(from, to netip.AddrPort, seq uint32) (csig.ArrivedSignal, bool)
	flows  []csig.TaggedFlow
	reads  int
	closed bool
}

func (f *fakeSignals) TagFlows(flows []csig.TaggedFlow) error { f.flows = flows; return nil }
func (f *fakeSignals) ReadTags() error                        { f.reads++; return nil }
func (f *fakeSignals) Close() error                           { f.closed = true; return nil }
func (f *fakeSignals) ArrivedTag(from, to netip.AddrPort, seq uint32) (csig.ArrivedSignal, bool) {
	return f.tagOf(from, to, seq)
}

// TestSignalsOfSockets has two engines with sockets, whose packets arrive with tags that follow from ends and number. The engine that
// reads one direction says which locators the packets of the other had, plain and authenticated.
func TestSignalsOfSockets(t *testing.T) {
	for _, key := range []string{"", "0123456789abcdef"} {
		name := "plain"
		if key != "" {
			name = "authenticated"
		}
		t.Run(name, func(t *testing.T) {
			profile := signalProfile(t)
			configs := []*Config{signalConfig("h1", 1, 2, "h2/eth1"), signalConfig("h2", 2, 1, "h1/eth1")}
			ports := map[netip.Addr]*fakeSignals{}
			s := &Signals{Profile: profile, Format: csig.Wide, Kinds: []csig.Signal{csig.Share}, Flows: 10,
				OpenPort: func(at netip.Addr, o SignalPortOptions) (SignalPort, error) {
					if o.StampPort != 8862 || o.Authenticated != (key != "") {
						t.Errorf("options %+v", o)
					}
					f := &fakeSignals{tagOf: func(from, to netip.AddrPort, seq uint32) (csig.ArrivedSignal, bool) {
						// Requests say 1 and every tenth 2, replies always 2. A reply has its own number.
						locator := uint16(2)
						if from.Port() != 8862 && seq%10 != 9 {
							locator = 1
						}
						return csig.ArrivedSignal{Tag: csig.Tag{Format: csig.Wide, Signal: csig.Share, Code: 5, Locator: locator}, EtherType: 0x88b6}, from.Port() == 8862 || seq&1 == 1
					}}
					ports[at] = f
					return f, nil
				}}
			var engines []*Engine
			for _, c := range configs {
				for i := range c.Peers {
					if key != "" {
						c.Peers[i].Keys = []Key{{ID: 1, Secret: []byte(key)}}
					}
				}
				d := HostDeps()
				d.Signals = s
				engines = append(engines, startWith(t, c, d))
			}
			until(t, 20*time.Second, "100 tagged packets in each direction", func() bool {
				stats := engines[0].SignalStats()
				return taggedPackets(stats.Flows[0].Directions[forward]) >= 100 && taggedPackets(stats.Flows[0].Directions[reverse]) >= 100
			})
			stats := engines[0].SignalStats()
			d := stats.Flows[0].Directions
			if f := d[forward].Packets; len(f) != 2 || f[0].Locator != 1 || f[1].Locator != 2 || f[0].Packets < 3*f[1].Packets || f[0].Packets > 6*f[1].Packets {
				t.Errorf("forward: %+v", f)
			}
			if r := d[reverse].Packets; len(r) != 1 || r[0].Locator != 2 {
				t.Errorf("reverse: %+v", r)
			}
			want := csig.TaggedFlow{From: netip.AddrPortFrom(loopback(1), 49152), To: netip.AddrPortFrom(loopback(2), 8862)}
			engines[0].nics[0].mu.Lock()
			defer engines[0].nics[0].mu.Unlock()
			if p := ports[loopback(1)]; len(p.flows) != 1 || p.flows[0] != want || p.reads == 0 {
				t.Errorf("%+v after %d reads, want %v", p.flows, p.reads, want)
			}
		})
	}
}

// TestSignalsAfterKeysCome gives peers keys while the engine runs: the NIC's port is opened again for authenticated packets, and has the
// same flows.
func TestSignalsAfterKeysCome(t *testing.T) {
	var opened []*fakeSignals
	var options []SignalPortOptions
	d := HostDeps()
	d.Signals = &Signals{Profile: signalProfile(t), Format: csig.Wide, Kinds: []csig.Signal{csig.Share}, Flows: 10,
		OpenPort: func(_ netip.Addr, o SignalPortOptions) (SignalPort, error) {
			f := &fakeSignals{tagOf: func(netip.AddrPort, netip.AddrPort, uint32) (csig.ArrivedSignal, bool) {
				return csig.ArrivedSignal{}, false
			}}
			opened, options = append(opened, f), append(options, o)
			return f, nil
		}}
	e := startWith(t, signalConfig("h1", 1, 2, "h2/eth1"), d)
	for range 2 { // the second time changes nothing
		c := signalConfig("h1", 1, 2, "h2/eth1")
		c.Peers[0].Keys = []Key{{ID: 1, Secret: []byte("0123456789abcdef")}}
		if err := e.Apply(c); err != nil {
			t.Fatal(err)
		}
	}
	if len(opened) != 2 || options[0].Authenticated || !options[1].Authenticated || !opened[0].closed || opened[1].closed {
		t.Fatalf("%d ports are opened, by %+v", len(opened), options)
	}
	if before, now := opened[0].flows, opened[1].flows; len(now) != 1 || len(before) != 1 || now[0] != before[0] {
		t.Errorf("flows %v, before %v", now, before)
	}
}

func taggedPackets(d observe.DirectionStats) (n uint64) {
	for _, c := range d.Packets {
		n += c.Packets
	}
	return n
}

// TestRequestTags has what a reply may bring back.
func TestRequestTags(t *testing.T) {
	for _, tc := range []struct {
		name    string
		answers stamp.Answers
		want    csig.ArrivedSignal
		ok      bool
	}{
		{"no TLV", stamp.Answers{}, csig.ArrivedSignal{}, false},
		{"no tag", stamp.Answers{HasSignal: true, Signal: stamp.Signal{Seen: 3}}, csig.ArrivedSignal{}, false},
		{"malformed", stamp.Answers{HasSignal: true, Signal: stamp.Signal{Malformed: true, EtherType: 0x88b5}}, csig.ArrivedSignal{EtherType: 0x88b5, Malformed: true}, true},
		{"compact", stamp.Answers{HasSignal: true, Signal: stamp.Signal{Format: 4, EtherType: 0x9900, Value: [6]byte{0x2b, 0x85}}},
			csig.ArrivedSignal{Tag: csig.Tag{Format: csig.Compact, Signal: 1, Code: 23, Locator: 5}, EtherType: 0x9900}, true},
	} {
		r := reply{answers: tc.answers}
		if got, ok := requestTag(&r); got != tc.want || ok != tc.ok {
			t.Errorf("%s: %+v, %v", tc.name, got, ok)
		}
	}
}

// TestFirstUnanswered has which hops of a path answered plain packets and tagged ones.
func TestFirstUnanswered(t *testing.T) {
	for _, tc := range []struct{ plain, tagged, want string }{
		{"123", "yyy", ""},
		{"123", "yyn", "3"},
		{"123", "nnn", "1"},
		{"123", "ynn", "2"},
		{"123", "yny", ""}, // it answers seldom, and drops nothing
		{"1-3", "ynn", ""}, // the second one is silent for all packets
		{"-23", "nyn", "3"},
		{"", "", ""},
	} {
		var hops []Hop
		var answered []bool
		for i, c := range tc.plain {
			h := Hop{TTL: i + 1}
			if c != '-' {
				h.Address = loopback(int(c - '0'))
			}
			hops, answered = append(hops, h), append(answered, tc.tagged[i] == 'y')
		}
		want := netip.Addr{}
		if tc.want != "" {
			want = loopback(int(tc.want[0] - '0'))
		}
		if got := firstUnanswered(hops, answered); got != want {
			t.Errorf("%s, of which %s answer tagged packets: %v, want %v", tc.plain, tc.tagged, got, want)
		}
	}
}
