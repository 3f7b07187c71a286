package source

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/unix"
	"github.com/graylink/graylink/internal/unix/vethtest"
)

// frame returns an Ethernet frame with UDP from src to dst, with IPv4 options if given.
func frame(src, dst netip.AddrPort, proto byte, options int, vlans ...uint16) []byte {
	b := make([]byte, 12)
	for _, v := range vlans {
		b = binary.BigEndian.AppendUint16(b, typeVLAN)
		b = binary.BigEndian.AppendUint16(b, v)
	}
	udp := binary.BigEndian.AppendUint16(nil, src.Port())
	udp = binary.BigEndian.AppendUint16(udp, dst.Port())
	udp = append(udp, 0, 52, 0, 0)
	udp = append(udp, make([]byte, 44)...)
	if src.Addr().Is4() {
		b = binary.BigEndian.AppendUint16(b, typeIPv4)
		h := make([]byte, 20+options)
		h[0], h[8], h[9] = 0x40|byte((20+options)/4), 64, proto
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(udp)))
		copy(h[12:], src.Addr().AsSlice())
		copy(h[16:], dst.Addr().AsSlice())
		b = append(b, h...)
	} else {
		b = binary.BigEndian.AppendUint16(b, typeIPv6)
		h := make([]byte, 40)
		h[0], h[6], h[7] = 0x60, proto, 64
		binary.BigEndian.PutUint16(h[4:], uint16(len(udp)))
		copy(h[8:], src.Addr().AsSlice())
		copy(h[24:], dst.Addr().AsSlice())
		b = append(b, h...)
	}
	return append(b, udp...)
}

var (
	a4 = netip.MustParseAddrPort("10.0.1.2:49152")
	b4 = netip.MustParseAddrPort("10.0.2.2:862")
	a6 = netip.MustParseAddrPort("[2001:db8:1::2]:49153")
	b6 = netip.MustParseAddrPort("[2001:db8:2::2]:862")
)

// frames are frames that may cross a port, with their flows if they are probes.
var frames = []struct {
	name  string
	frame []byte
	flow  sighting.Flow // zero: none
	tc    bool          // as tc sees it, without tags
}{
	{"probe", frame(a4, b4, 17, 0), sighting.Flow{Src: a4, Dst: b4}, true},
	{"reply", frame(b4, a4, 17, 0), sighting.Flow{Src: b4, Dst: a4}, true},
	{"probe with options", frame(a4, b4, 17, 40), sighting.Flow{Src: a4, Dst: b4}, true},
	{"IPv6 probe", frame(a6, b6, 17, 0), sighting.Flow{Src: a6, Dst: b6}, true},
	{"IPv6 reply", frame(b6, a6, 17, 0), sighting.Flow{Src: b6, Dst: a6}, true},
	{"tagged probe", frame(a4, b4, 17, 0, 7), sighting.Flow{Src: a4, Dst: b4}, false},
	{"doubly tagged probe", frame(a4, b4, 17, 0, 7, 8), sighting.Flow{Src: a4, Dst: b4}, false},
	{"thrice tagged", frame(a4, b4, 17, 0, 7, 8, 9), sighting.Flow{}, false},
	{"TCP", frame(a4, b4, 6, 0), sighting.Flow{}, true},
	{"IPv6 TCP", frame(a6, b6, 6, 0), sighting.Flow{}, true},
	{"other port", frame(a4, netip.MustParseAddrPort("10.0.2.2:53"), 17, 0), sighting.Flow{}, true},
	{"later fragment", func() []byte { f := frame(a4, b4, 17, 0); f[ethernet+7] = 9; return f }(), sighting.Flow{}, true},
	{"ARP", append(make([]byte, 12), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1), sighting.Flow{}, true},
}

func TestProbeOfAFrame(t *testing.T) {
	for _, f := range frames {
		var key sighting.Key
		ok := parseProbe(f.frame, []uint16{862}, &key)
		if want := f.flow.Src.IsValid(); ok != want || ok && key.Flow() != f.flow {
			t.Errorf("%s: %v %v, want %v", f.name, ok, key.Flow(), f.flow)
		}
		for n := range f.frame {
			parseProbe(f.frame[:n], []uint16{862}, &key)
		}
	}
}

// RoCE's port is one more port: its packets are seen with their flows, beside those of probes.
func TestRoCEIsAnotherPort(t *testing.T) {
	roce := netip.AddrPortFrom(b4.Addr(), 4791)
	for _, x := range []struct {
		ports []uint16
		dst   netip.AddrPort
		want  bool
	}{{[]uint16{862, 4791}, roce, true}, {[]uint16{862, 4791}, b4, true}, {[]uint16{862}, roce, false}} {
		var key sighting.Key
		ok := parseProbe(frame(a4, x.dst, 17, 0), x.ports, &key)
		if ok != x.want || ok && key.Flow() != (sighting.Flow{Src: a4, Dst: x.dst}) {
			t.Errorf("%v to %v: %v %v, want %v", x.ports, x.dst, ok, key.Flow(), x.want)
		}
	}
}

func FuzzProbe(f *testing.F) {
	for _, x := range frames {
		f.Add(x.frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var key sighting.Key
		if parseProbe(b, []uint16{862}, &key) {
			if fl := key.Flow(); fl.Src.Port() != 862 && fl.Dst.Port() != 862 || sighting.KeyOf(fl) != key {
				t.Fatalf("%v is no probe", fl)
			}
		}
	})
}

// sources returns the sources that see what Linux forwards.
var sources = []struct {
	name string
	open func() (Source, error)
}{
	{"ebpf", func() (Source, error) { return NewEBPF([]uint16{862, 8862}, 100) }},
	{"ebpf-clsact", func() (Source, error) {
		e, err := NewEBPF([]uint16{862, 8862}, 100)
		if e != nil {
			e.classic = true
		}
		return e, err
	}},
	{"packet", func() (Source, error) { return NewPacket([]uint16{862, 8862}, 100, 1000) }},
}

// watched makes two interfaces joined by a cable, and has a source watch the second one. out sends by the first.
func watched(t *testing.T, open func() (Source, error), fn func(s Source, out *unix.Packet, send, receive int)) {
	t.Helper()
	vethtest.Run(t, func(send, receive int) {
		s, err := open()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.SetPorts([]uint32{uint32(receive)}); err != nil {
			t.Fatal(err)
		}
		out, err := unix.OpenPacket(0xffff, send, 64)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		fn(s, out, send, receive)
	})
}

// TestSources checks that every source sees every probe at the port that it arrived by, and nothing else.
func TestSources(t *testing.T) {
	for _, src := range sources {
		t.Run(src.name, func(t *testing.T) {
			watched(t, src.open, func(s Source, out *unix.Packet, send, receive int) {
				want := map[sighting.Flow]uint64{}
				began := time.Now()
				for range 3 {
					for _, f := range frames {
						if err := out.Send(send, f.frame); err != nil {
							t.Fatal(err)
						}
						// The tag is removed before tc, but no source sees the frame, because no device has the tag.
						if f.tc && f.flow.Src.IsValid() {
							want[f.flow]++
						}
					}
				}
				got := map[sighting.Flow]uint64{}
				var sample sighting.Sample
				for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
					clear(got)
					if err := s.SweepFlows(t.Context(), func(k *sighting.Key, x sighting.Sample) {
						got[k.Flow()] = x.Count
						sample = x
						if x.Port != uint32(receive) {
							t.Errorf("port %d, want %d", x.Port, receive)
						}
					}); err != nil {
						t.Fatal(err)
					}
					if got[sighting.Flow{Src: b6, Dst: a6}] == 3 {
						break
					}
				}
				for f, n := range want {
					// Tagged copies count as well if the source sees them without their tag.
					if got[f] < n {
						t.Errorf("%v seen %d times, want %d", f, got[f], n)
					}
					delete(got, f)
				}
				if len(got) > 0 {
					t.Errorf("also seen: %v", got)
				}
				if at := time.Unix(0, sample.Last); at.Before(began.Add(-20*time.Millisecond)) || at.After(time.Now()) {
					t.Errorf("last seen %v, sent after %v", at, began)
				}
				key := sighting.KeyOf(sighting.Flow{Src: a4, Dst: b4})
				s.ForgetFlow(&key, uint32(receive))
				for range 2 { // forgotten flows may remain until the sweep after this
					clear(got)
					if err := s.SweepFlows(t.Context(), func(k *sighting.Key, x sighting.Sample) { got[k.Flow()] = x.Count }); err != nil {
						t.Fatal(err)
					}
				}
				if got[key.Flow()] != 0 {
					t.Error("forgotten, yet there")
				}
				if err := s.SetPorts(nil); err != nil {
					t.Fatal(err)
				}
				if err := out.Send(send, frame(a4, b4, 17, 0)); err != nil {
					t.Fatal(err)
				}
				if err := out.Send(send, frame(a4, b4, 17, 0)); err != nil {
					t.Fatal(err)
				}
				clear(got)
				if err := s.SweepFlows(t.Context(), func(k *sighting.Key, x sighting.Sample) { got[k.Flow()] = x.Count }); err != nil {
					t.Fatal(err)
				}
				if got[key.Flow()] != 0 {
					t.Error("seen at a port that is not looked at")
				}
			})
		})
	}
}

// TestFullTable checks that flows beyond the table are counted, and that those within it continue.
func TestFullTable(t *testing.T) {
	for _, src := range sources {
		t.Run(src.name, func(t *testing.T) {
			watched(t, src.open, func(s Source, out *unix.Packet, send, receive int) {
				for i := range 120 {
					if err := out.Send(send, frame(netip.AddrPortFrom(a4.Addr(), uint16(50000+i)), b4, 17, 0)); err != nil {
						t.Fatal(err)
					}
				}
				n := 0
				for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline) && n+int(s.Dropped()) < 120; time.Sleep(10 * time.Millisecond) {
					n = 0
					if err := s.SweepFlows(t.Context(), func(*sighting.Key, sighting.Sample) { n++ }); err != nil {
						t.Fatal(err)
					}
				}
				if n != 100 || s.Dropped() != 20 {
					t.Errorf("%d flows and %d lost, want 100 and 20", n, s.Dropped())
				}
			})
		})
	}
}
