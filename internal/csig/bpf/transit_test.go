package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/testneeds"
)

// needRoot skips a test that loads programs into the kernel if that is not possible.
func needRoot(t testing.TB) {
	t.Helper()
	testneeds.Root(t, "eBPF programs")
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
}

// parseProfile returns a profile of 100 Gbit/s with both formats and ports sw:1 and sw:2.
func parseProfile(t testing.TB, more string) *csig.Profile {
	t.Helper()
	p, err := csig.ParseProfile("csig.yml", []byte(`
ethertypes: {compact: 0x88b5, wide: 0x88b6}
fastest_gbps: 100
locators:
  compact: {"sw:1": 5, "sw:2": 6}
  wide: {"sw:1": 500, "sw:2": 600}
`+more))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// testBefore sets the fields that the ingress sets, and that a test cannot, from the control buffer of the packet.
func testBefore() (p asm.Instructions) {
	for i, field := range []int16{skbMark, skbTCIndex, skbQueueMapping} {
		p = append(p, asm.LoadMem(asm.R2, asm.R6, skbCB+4*int16(i), asm.Word), asm.StoreMem(asm.R6, field, asm.R2, asm.Word))
	}
	return p
}

// testClock reads the time from the control buffer.
func testClock() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R0, asm.R6, skbCB+12, asm.Word),
		asm.LoadMem(asm.R1, asm.R6, skbCB+16, asm.Word),
		asm.LSh.Imm(asm.R1, 32),
		asm.Or.Reg(asm.R0, asm.R1),
	}
}

// transit is a port of a switch without a network: its programs run by BPF_PROG_TEST_RUN, and the test does what the kernel
// and the program between them do.
type transit struct {
	s *Switch
	e *egress
}

func newTransit(t testing.TB, p *csig.Profile, c *portConfig, now int64) *transit {
	t.Helper()
	needRoot(t)
	s, err := NewSwitch(p)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	e, err := newEgress(p.EtherTypes, c, uint64(now), testBefore(), testClock())
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &transit{s, e}
}

// context returns a struct __sk_buff with the tag that the ingress wrote before a packet, and a time.
func context(meta []byte, now int64) (c [192]byte) {
	put := binary.NativeEndian.PutUint32
	if len(meta) > 0 {
		put(c[skbCB:], binary.NativeEndian.Uint32(meta[8:]))
		put(c[skbCB+4:], binary.NativeEndian.Uint32(meta[4:]))
		put(c[skbCB+8:], queueMark|binary.NativeEndian.Uint32(meta)&0xf)
	}
	put(c[skbCB+12:], uint32(now))
	put(c[skbCB+16:], uint32(now>>32))
	return c
}

// cross sends a frame through the ingress and the egress. routed is false if the frame keeps its tag at the ingress, so that a
// router drops it.
func (x *transit) cross(frame []byte, now int64) (out []byte, routed bool, err error) {
	result, received, err := x.s.ingress.Test(frame)
	if err != nil || result != xdpPass {
		return nil, false, fmt.Errorf("ingress: result %d, %w", result, err)
	}
	var meta []byte
	if len(received) > metaLen && binary.NativeEndian.Uint32(received)&^0xf == metaMark {
		meta, received = received[:metaLen], received[metaLen:]
	} else if !bytes.Equal(received, frame) {
		return nil, false, fmt.Errorf("ingress: %x became %x", frame, received)
	} else if f, s := etherTypes.Parse(frame); s != csig.Foreign {
		return received, false, nil
	} else if f.Format != csig.None {
		return nil, false, fmt.Errorf("foreign frame %x has a tag", frame)
	}
	c := context(meta, now)
	out = make([]byte, len(frame)+16)
	run := runOptions(received, out, &c)
	if _, err := x.e.program.Run(run); err != nil {
		return nil, false, err
	}
	return run.DataOut, true, nil
}

var etherTypes = csig.EtherTypes{Compact: 0x88b5, Wide: 0x88b6}

// randomFrame returns a frame with a tag of either format, or with none, with errors in some.
func randomFrame(r *rand.Rand) []byte {
	b := make([]byte, 80+r.IntN(1380))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	b = append(b[:12], 0x08, 0x00, 0x45)[:len(b)]
	ip := func(b []byte) []byte { return append(b, 0x08, 0x00, 0x45, 0) }
	head := bytes.Clone(b[:12])
	tag := func() []byte {
		f := csig.Formats[r.IntN(2)]
		v := make([]byte, 8)
		binary.BigEndian.PutUint16(v, etherTypes.Of(f))
		binary.BigEndian.PutUint16(v[2:], uint16(r.Uint32()))
		binary.BigEndian.PutUint32(v[4:], r.Uint32())
		if f == csig.Compact {
			v[2] &= byte(0x3f + r.IntN(2)*0xc0) // signals with a scale half of the time
		} else {
			v[4] &= byte(0x3f + r.IntN(2)*0xc0)
		}
		return v[:f]
	}
	switch r.IntN(12) {
	case 0: // none
		return b
	case 1: // two
		head = ip(append(append(head, tag()...), tag()...))
	case 2: // before a VLAN tag
		head = ip(append(append(head, tag()...), 0x81, 0, 0, 7))
	case 3: // behind one or two VLAN tags
		head = append(head, 0x81, 0, 0, 7)
		if r.IntN(2) == 0 {
			head = append(head, 0x88, 0xa8, 0, 9)
		}
		head = ip(append(head, tag()...))
	case 4: // cut
		head = append(head, tag()...)
		return append(head, 8)[:14+r.IntN(len(head)-13)]
	case 5: // before another protocol
		head = append(append(head, tag()...), 0x08, 0x06)
	case 6: // another EtherType
		head = append(head, 0x88, 0xb7)
	default:
		head = ip(append(head, tag()...))
		if r.IntN(4) == 0 {
			head = append(head[:len(head)-4], 0x86, 0xdd, 0x60, 0)
		}
	}
	return append(head, b[len(head):]...)
}

// bucket is the bucket of a port as its program computes it: floating-point free, in Go.
type bucket struct{ free, burst, speed int64 }

func (b *bucket) wait(octets, now int64) csig.Waiting {
	b.free = max(b.free, now-b.burst)
	queue := max(0, b.free-now)
	b.free += octets * octetNanos / b.speed
	return csig.Waiting{Delay: csig.Nanos{NS: uint64(max(0, b.free-now)), Known: true}, Queue: csig.Nanos{NS: uint64(queue), Known: true}}
}

// transitCases are ports with their profiles.
var transitCases = []struct {
	name    string
	profile string
	port    SwitchPort
	burst   int64
}{
	{"update", "interval: 1ms\ncompact: {3: {edges: [0, 1us, 1ms]}}", SwitchPort{Name: "sw:1", Speed: 20_000_000}, 1_280_000},
	{"fast", "interval: 128ns\nwide: {3: {step: 1us}, 2: {base: 1us, step: 7ns}}", SwitchPort{Name: "sw:2", Speed: 400_000_000_000, Overhead: csig.FrameOverhead}, 0},
	{"codes", "interval: 896us\ncompact: {2: {codes: [{code: 3, min: 0, max: 1ms}, {code: 9, min: 1ms}]}}", SwitchPort{Name: "sw:1", Speed: 1_000_000_000}, 0},
	{"r", "interval: 1ms\ndnu: r", SwitchPort{Name: "sw:1", Speed: 50_000_000}, 0},
	{"res3", "interval: 1ms\ndnu: res3", SwitchPort{Name: "sw:1", Speed: 50_000_000}, 0},
	{"pass", "interval: 1ms", SwitchPort{Name: "sw:1", Speed: 50_000_000, Action: csig.PassTags}, 0},
	{"strip", "interval: 1ms", SwitchPort{Name: "sw:1", Speed: 50_000_000, Action: csig.StripTags}, 0},
	{"no locator", "interval: 1ms", SwitchPort{Name: "sw:3", Speed: 50_000_000}, 0},
	{"wan", "interval: {dc: 1ms, wan: 100ms}", SwitchPort{Name: "sw:1", Speed: 50_000_000, WAN: true}, 0},
}

// TestTransitAsPort checks that the programs treat every frame as csig.Port does, but for those that a router cannot route
// (rule 3): these pass the ingress bit for bit.
func TestTransitAsPort(t *testing.T) {
	for _, c := range transitCases {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			p := parseProfile(t, c.profile)
			config, err := configOf(p, &c.port)
			if err != nil {
				t.Fatal(err)
			}
			config.Burst = uint64(c.burst)
			now := int64(1 << 40)
			x := newTransit(t, p, &config, now)
			port := p.NewPort(csig.PortOptions{Name: c.port.Name, Speed: c.port.Speed, Overhead: c.port.Overhead, WAN: c.port.WAN, Action: c.port.Action}, now)
			b := bucket{burst: c.burst, speed: int64(c.port.Speed)}
			var want, ingress Counts
			for range 4000 {
				frame := randomFrame(r)
				got, routed, err := x.cross(bytes.Clone(frame), now)
				if err != nil {
					t.Fatal(err)
				}
				if !routed {
					o := csig.BadTag
					if _, s := etherTypes.Parse(frame); s == csig.Tagged {
						o = csig.Passed
					}
					ingress.Outcomes[o]++
					continue
				}
				found, _ := etherTypes.Parse(frame)
				octets := len(frame) + c.port.Overhead
				if c.port.Action == csig.StripTags {
					octets -= int(found.Format)
				}
				sent, o := port.Transmit(bytes.Clone(frame), now, b.wait(int64(octets), now))
				want.Outcomes[o]++
				if !bytes.Equal(got, sent) {
					t.Fatalf("at %d, %x became\n%x, want\n%x, %v", now, frame, got, sent, o)
				}
				now += r.Int64N(int64(octets) * octetNanos / int64(c.port.Speed) * 2)
			}
			if got, err := readCounts(x.e.counts); err != nil || got != want {
				t.Errorf("egress: %+v, %v, want %+v", got, err, want)
			}
			if got, err := x.s.IngressCounts(); err != nil || got != ingress {
				t.Errorf("ingress: %+v, %v, want %+v", got, err, ingress)
			}
			t.Logf("egress %v, ingress %v", want.Outcomes, ingress.Outcomes)
		})
	}
}
