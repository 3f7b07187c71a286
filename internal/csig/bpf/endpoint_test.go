package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"github.com/graylink/graylink/internal/csig"
)

// udpFrame returns a frame of a STAMP packet.
func udpFrame(from, to netip.AddrPort, payload []byte) []byte {
	b := make([]byte, 12)
	for i := range b {
		b[i] = byte(i + 1)
	}
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	if from.Addr().Is4() {
		h := make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, protocolUDP
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(udp)))
		copy(h[12:], from.Addr().AsSlice())
		copy(h[16:], to.Addr().AsSlice())
		return append(append(append(b, 8, 0), h...), udp...)
	}
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, protocolUDP, 64
	binary.BigEndian.PutUint16(h[4:], uint16(len(udp)))
	copy(h[8:], from.Addr().AsSlice())
	copy(h[24:], to.Addr().AsSlice())
	return append(append(append(b, 0x86, 0xdd), h...), udp...)
}

var (
	a4    = netip.MustParseAddrPort("10.0.1.2:50000")
	b4    = netip.MustParseAddrPort("10.0.2.2:862")
	a6    = netip.MustParseAddrPort("[2001:db8:1::2]:50001")
	b6    = netip.MustParseAddrPort("[2001:db8:2::2]:862")
	plain = netip.MustParseAddrPort("10.0.2.2:9")
)

// openTest loads an endpoint without attaching it.
func openTest(t testing.TB, o EndpointOptions) *Endpoint {
	t.Helper()
	needRoot(t)
	o.Interface, o.EtherTypes, o.StampPorts = 1, etherTypes, []uint16{861, stampPort}
	if o.Flows == 0 {
		o.Flows = 8
	}
	if o.Arrived == 0 {
		o.Arrived = 64
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	e, err := loadEndpoint(&o)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// send runs the source with a frame, and returns the frame as it is sent.
func (e *Endpoint) send(t testing.TB, frame []byte) []byte {
	t.Helper()
	run := runOptions(frame, make([]byte, len(frame)+16), &[192]byte{})
	if _, err := e.source.Run(run); err != nil {
		t.Fatal(err)
	}
	return run.DataOut
}

// receive runs the sink with a frame, and returns the frame as the kernel takes it.
func (e *Endpoint) receive(t testing.TB, frame []byte) []byte {
	t.Helper()
	result, out, err := e.sink.Test(frame)
	if err != nil || result != xdpPass {
		t.Fatal(result, err)
	}
	return out
}

// Rule 6: probes with an odd sequence number of the given flows, and no others, are tagged, with the signals in turns.
func TestRule6SourceTagsOddProbes(t *testing.T) {
	for _, f := range csig.Formats {
		signals := []csig.Signal{csig.Share, csig.Delay, csig.Bandwidth}
		e := openTest(t, EndpointOptions{Format: f, Signals: signals})
		for round, flows := range [][]csig.TaggedFlow{{{From: a4, To: b4}, {From: a6, To: b6}}, {{From: a6, To: b6}}, nil, {{From: a4, To: b4}}} {
			if err := e.TagFlows(flows); err != nil {
				t.Fatal(err)
			}
			tagged := map[csig.TaggedFlow]bool{}
			for _, flow := range flows {
				tagged[flow] = true
			}
			for _, flow := range []csig.TaggedFlow{{From: a4, To: b4}, {From: a6, To: b6}, {From: b4, To: a4}, {From: a4, To: plain}, {From: a4, To: a4}} {
				for _, seq := range []uint32{0, 1, 2, 3, 4, 5, 7, 0xffffffff, 0x10000, 0x1000001} {
					frame := udpFrame(flow.From, flow.To, probe(seq, 44, 0))
					want := frame
					if tagged[flow] && seq&1 == 1 {
						var err error
						if want, err = etherTypes.Insert(nil, frame, csig.NewTag(f, signals[seq>>1%3])); err != nil {
							t.Fatal(err)
						}
					}
					if got := e.send(t, frame); !bytes.Equal(got, want) {
						t.Errorf("%v, round %d, %v, probe %d: sent %x, want %x", f, round, flow, seq, got, want)
					}
				}
			}
		}
		tcp := udpFrame(a4, b4, probe(1, 44, 0))
		tcp[14+9] = 6
		fragment := udpFrame(a4, b4, probe(1, 44, 0))
		fragment[14+7] = 9
		for _, frame := range [][]byte{tcp, fragment, udpFrame(a4, b4, nil), udpFrame(a4, b4, []byte{0, 0, 1})} {
			if got := e.send(t, frame); !bytes.Equal(got, frame) {
				t.Errorf("%x was sent as %x", frame, got)
			}
		}
	}
}

// Rule 7: a reply is tagged if and only if its request arrived with a tag, once.
func TestRule7RepliesFollowRequests(t *testing.T) {
	for _, authenticated := range []bool{false, true} {
		e := openTest(t, EndpointOptions{Format: csig.Wide, Signals: []csig.Signal{csig.Share, csig.Delay}, Authenticated: authenticated})
		reply := func(to, from netip.AddrPort, sender uint32) []byte {
			b := make([]byte, 112)
			at := senderNumberAt
			if authenticated {
				at = senderNumberAtAuthenticated
			}
			binary.BigEndian.PutUint32(b, 77)
			binary.BigEndian.PutUint32(b[at:], sender)
			return udpFrame(to, from, b)
		}
		for _, flow := range []csig.TaggedFlow{{From: a4, To: b4}, {From: a6, To: b6}} {
			request, err := etherTypes.Insert(nil, udpFrame(flow.From, flow.To, probe(5, 112, 0)), csig.NewTag(csig.Compact, csig.Share))
			if err != nil {
				t.Fatal(err)
			}
			e.receive(t, request)
			e.receive(t, udpFrame(flow.From, flow.To, probe(7, 112, 0)))
			for _, c := range []struct {
				sender uint32
				tagged bool
			}{{7, false}, {4, false}, {5, true}, {5, false}} {
				frame := reply(flow.To, flow.From, c.sender)
				want := frame
				if c.tagged {
					want, _ = etherTypes.Insert(nil, frame, csig.NewTag(csig.Wide, csig.Share))
				}
				if got := e.send(t, frame); !bytes.Equal(got, want) {
					t.Errorf("%v, reply to %d, authenticated %t: sent %x, want %x", flow, c.sender, authenticated, got, want)
				}
			}
		}
	}
}

// Rule 8: the sink takes off every tag, reports those of probes and replies once, and leaves other frames as they are.
func TestRule8SinkTakesTagsOff(t *testing.T) {
	e := openTest(t, EndpointOptions{Format: csig.Compact, Signals: []csig.Signal{csig.Delay}})
	var stripped, malformed uint64
	for _, flow := range []csig.TaggedFlow{{From: a4, To: b4}, {From: b4, To: a4}, {From: a6, To: b6}, {From: b6, To: a6}, {From: a4, To: plain}} {
		frame := udpFrame(flow.From, flow.To, probe(0x01020304, 44, 0))
		isProbe := flow.From.Port() == stampPort || flow.To.Port() == stampPort
		for _, first := range csig.Formats {
			tag := csig.Tag{Format: first, Signal: csig.Delay, Code: 9, Locator: 100, Reserved: 1}
			one, err := etherTypes.Insert(nil, frame, tag)
			if err != nil {
				t.Fatal(err)
			}
			for _, second := range []csig.Format{csig.None, csig.Compact, csig.Wide} {
				arrived := one
				if second != csig.None {
					inner, _ := etherTypes.Insert(nil, frame, csig.Tag{Format: second, Code: 3})
					arrived = append(bytes.Clone(one[:12+first]), inner[12:]...)
					malformed++
				}
				stripped++
				if got := e.receive(t, arrived); !bytes.Equal(got, frame) {
					t.Errorf("%v %v: %x became %x, want %x", first, second, arrived, got, frame)
				}
				if err := e.ReadTags(); err != nil {
					t.Fatal(err)
				}
				want := csig.ArrivedSignal{Tag: tag, EtherType: etherTypes.Of(first), Malformed: second != csig.None}
				if _, ok := e.ArrivedTag(flow.From, flow.To, 0x01020303); ok {
					t.Error("another packet has a tag")
				}
				if got, ok := e.ArrivedTag(flow.From, flow.To, 0x01020304); ok != isProbe || ok && got != want {
					t.Errorf("%v: %+v, %t, want %+v, %t", flow, got, ok, want, isProbe)
				}
				if _, ok := e.ArrivedTag(flow.From, flow.To, 0x01020304); ok {
					t.Error("the tag is there twice")
				}
			}
		}
		for name, foreign := range map[string][]byte{
			"plain":             frame,
			"another EtherType": append(append(bytes.Clone(frame[:12]), 0x88, 0xb7, 1, 2), frame[12:]...),
			"behind a VLAN tag": append(append(bytes.Clone(frame[:12]), 0x81, 0, 0, 7, 0x88, 0xb5, 1, 2), frame[12:]...),
			"before a VLAN tag": append(append(bytes.Clone(frame[:12]), 0x88, 0xb5, 1, 2, 0x81, 0, 0, 7), frame[12:]...),
			"cut":               append(bytes.Clone(frame[:12]), 0x88, 0xb6, 1, 2, 3, 4, 5, 6, 8),
		} {
			if got := e.receive(t, foreign); !bytes.Equal(got, foreign) {
				t.Errorf("%s: %x became %x", name, foreign, got)
			}
		}
	}
	c, err := e.Counts()
	if want := (EndpointCounts{Stripped: stripped, Malformed: malformed}); err != nil || c != want {
		t.Errorf("%+v, %v, want %+v", c, err, want)
	}
}

// TestArrivalsAreBounded checks that old tags give way to new ones, that no more are kept than there is room for, and that
// nothing is allocated per tag.
func TestArrivalsAreBounded(t *testing.T) {
	e := openTest(t, EndpointOptions{Format: csig.Wide, Signals: []csig.Signal{csig.Share}, Arrived: 256})
	frame, err := etherTypes.Insert(nil, udpFrame(a4, b4, probe(0, 44, 0)), csig.NewTag(csig.Wide, csig.Share))
	if err != nil {
		t.Fatal(err)
	}
	at := 12 + int(csig.Wide) + 2 + 20 + 8
	const packets = 2000
	for seq := range uint32(packets) {
		binary.BigEndian.PutUint32(frame[at:], seq)
		e.receive(t, frame)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := e.ReadTags(); err != nil {
		t.Fatal(err)
	}
	if runtime.ReadMemStats(&after); after.Mallocs-before.Mallocs > packets/20 {
		t.Errorf("%d allocations for %d tags", after.Mallocs-before.Mallocs, packets)
	}
	kept, recent := 0, 0
	for seq := range uint32(packets) {
		if _, ok := e.ArrivedTag(a4, b4, seq); ok {
			kept++
			if seq >= packets-64 {
				recent++
			}
		}
	}
	if kept != 256 || recent < 60 {
		t.Errorf("%d tags kept, %d of the last 64; want 256, and nearly all of the last", kept, recent)
	}
	var event [eventLen]byte
	if n := testing.AllocsPerRun(200, func() { e.arrived.add(&event); _ = e.ReadTags() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(200, func() { e.ArrivedTag(a4, b4, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestEndpointOptions(t *testing.T) {
	good := EndpointOptions{Interface: 1, EtherTypes: csig.EtherTypes{Wide: 0x88b6}, Format: csig.Wide, Signals: []csig.Signal{csig.Share}, StampPorts: []uint16{862}, Flows: 1, Arrived: 1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*EndpointOptions){
		"an EtherType is expected for compact tags, wide tags or both: there is no default": func(o *EndpointOptions) { o.EtherTypes = csig.EtherTypes{} },
		"interface 0: the number of an interface is expected":                               func(o *EndpointOptions) { o.Interface = 0 },
		"format compact: the profile has no EtherType for it":                               func(o *EndpointOptions) { o.Format = csig.Compact },
		"0 signals: 1 to 4 are expected":                                                    func(o *EndpointOptions) { o.Signals = nil },
		"signal 4: a signal with a rule is expected":                                        func(o *EndpointOptions) { o.Signals = []csig.Signal{4} },
		"0 STAMP ports: 1 to 16 are expected":                                               func(o *EndpointOptions) { o.StampPorts = nil },
		"0 flows: 1 to 1048576 are expected":                                                func(o *EndpointOptions) { o.Flows = 0 },
		"0 tags that have arrived: 1 to 1048576 are expected":                               func(o *EndpointOptions) { o.Arrived = 0 },
	} {
		o := good
		change(&o)
		if err := o.Validate(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
