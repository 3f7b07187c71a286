package roce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	h1, h2   = netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.0.2.2")
	h1v6     = netip.MustParseAddr("2001:db8:1::2")
	h2v6     = netip.MustParseAddr("2001:db8:2::2")
	spoken   = Packet{Src: h1, Dst: h2, TOS: 26<<2 | 2, HopLimit: 64, ID: 7, DontFragment: true, SrcPort: 0xc123, Opcode: OpSendImmediate, PKey: 0xffff, DestQPN: 17, PSN: 99, QKey: 0x11223344, SrcQPN: 18, Imm: 0x229e2712, Payload: []byte("a payload of 26 octets, so")}
	spokenV6 = Packet{Src: h1v6, Dst: h2v6, TOS: 26<<2 | 2, HopLimit: 64, FlowLabel: 0x54321, SrcPort: 0xc123, Opcode: OpSend, PKey: 0xffff, DestQPN: 17, PSN: 99, QKey: 0x11223344, SrcQPN: 18, Payload: []byte{}}
)

func packet(t testing.TB, p Packet) []byte {
	t.Helper()
	b, err := p.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// captures returns packets that soft-RoCE of Linux 6.1 sent, and a copy as the tracer sends it (TestSoftRoCE/Paths of
// test/vm with GRAYLINK_CAPTURE).
func captures(t testing.TB) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	files, err := filepath.Glob("testdata/*.bin")
	if err != nil || len(files) < 2 {
		t.Fatalf("testdata: %v, %v, want two packets at least", files, err)
	}
	for _, f := range files {
		if out[f], err = os.ReadFile(f); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestPacketsOfADevice(t *testing.T) {
	for name, b := range captures(t) {
		p, err := Parse(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if again := packet(t, p); !bytes.Equal(again, b) {
			t.Errorf("%s: written as\n%x, it was\n%x", name, again, b)
		}
		if want := ByQueuePair.SourcePort(1, p.SrcQPN); p.SrcPort != want {
			t.Errorf("%s: source port %#x of queue pair %d, want %#x", name, p.SrcPort, p.SrcQPN, want)
		}
	}
}

func TestPacketsAreReadAsWritten(t *testing.T) {
	for n := range 9 {
		for _, p := range []Packet{spoken, spokenV6} {
			p.Payload = bytes.Repeat([]byte{1}, n)
			b := packet(t, p)
			got, err := Parse(b)
			if err != nil {
				t.Fatalf("%d octets: %v", n, err)
			}
			if !bytes.Equal(got.Payload, p.Payload) || got.Imm != p.Imm || got.Src != p.Src || got.FlowLabel != p.FlowLabel {
				t.Errorf("%+v, want %+v", got, p)
			}
			if again := packet(t, got); !bytes.Equal(again, b) {
				t.Errorf("%d octets: written as %x, want %x", n, again, b)
			}
		}
	}
}

// The ICRC does not cover what switches change on the way. It covers everything else.
func TestICRCCoversWhatSwitchesLeave(t *testing.T) {
	for _, x := range []struct {
		p      Packet
		masked map[int]byte // bits by octet
	}{
		{spoken, map[int]byte{1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff, 26: 0xff, 27: 0xff, 32: 0xff}},
		{spokenV6, map[int]byte{0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff, 46: 0xff, 47: 0xff, 52: 0xff}},
	} {
		b := packet(t, x.p)
		body := b[:len(b)-icrcLen]
		want := invariantCRC(body)
		for i := range body {
			for bit := range 8 {
				if i == 0 && bit >= 4 {
					continue // it states which mask applies
				}
				body[i] ^= 1 << bit
				if free := x.masked[i]>>bit&1 == 1; (invariantCRC(body) == want) != free {
					t.Errorf("octet %d, bit %d: covered %v, want %v", i, bit, free, !free)
				}
				body[i] ^= 1 << bit
			}
		}
	}
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	be := binary.BigEndian
	for _, x := range []struct {
		name string
		do   func(b []byte) []byte
		want string
	}{
		{"nothing", func([]byte) []byte { return nil }, "IP header: missing"},
		{"version", func(b []byte) []byte { b[0] = 0x55; return b }, "IP version: 5"},
		{"short header", func(b []byte) []byte { return b[:19] }, "IPv4 header"},
		{"cut", func(b []byte) []byte { return b[:40] }, "IP length"},
		{"fragment", func(b []byte) []byte { b[6] = 0x20; return b }, "fragment"},
		{"TCP", func(b []byte) []byte { b[9] = 6; return b }, "IP protocol: 6"},
		{"port", func(b []byte) []byte { be.PutUint16(b[22:], 53); return b }, "UDP destination port: 53"},
		{"UDP length", func(b []byte) []byte { b[25]++; return b }, "UDP length"},
		{"UDP checksum", func(b []byte) []byte { b[27] = 1; return b }, "UDP checksum"},
		{"opcode", func(b []byte) []byte { b[28] = 4; return b }, "opcode: 0x4"},
		{"transport version", func(b []byte) []byte { b[29] |= 1; return b }, "flags"},
		{"ICRC", func(b []byte) []byte { b[len(b)-1]++; return b }, "ICRC: wrong"},
		{"payload", func(b []byte) []byte { b[60]++; return b }, "ICRC: wrong"},
	} {
		_, err := Parse(x.do(packet(t, spoken)))
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
		}
		if errors.Is(err, ErrICRC) != (x.want == "ICRC: wrong") {
			t.Errorf("%s: ErrICRC is not what it is", x.name)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, x := range []struct {
		do   func(*Packet)
		want string
	}{
		{func(p *Packet) { p.Src = netip.Addr{} }, "source"},
		{func(p *Packet) { p.Dst = netip.MustParseAddr("::ffff:10.0.0.1") }, "destination"},
		{func(p *Packet) { p.Dst = h2v6 }, "destination"},
		{func(p *Packet) { p.Opcode = 0 }, "opcode"},
		{func(p *Packet) { p.Flags = 0x10 }, "flags"},
		{func(p *Packet) { p.DestQPN = 1 << 24 }, "destination queue pair"},
		{func(p *Packet) { p.SrcQPN = 1 << 24 }, "source queue pair"},
		{func(p *Packet) { p.PSN = 1 << 24 }, "packet sequence number"},
		{func(p *Packet) { p.FlowLabel = 1 << 20 }, "flow label"},
		{func(p *Packet) { p.Payload = make([]byte, 4097) }, "payload"},
	} {
		p := spoken
		x.do(&p)
		if b, err := p.Append(nil); err == nil || len(b) != 0 || !strings.HasPrefix(err.Error(), x.want) {
			t.Errorf("%v and %d octets, want an error of %q and none", err, len(b), x.want)
		}
	}
}

// exceeded returns an ICMP error about a packet.
func exceeded(quoted []byte, v6 bool, words uint8, extension []byte) []byte {
	b := []byte{11, 0, 0, 0, 0, words, 0, 0}
	if v6 {
		b = []byte{3, 0, 0, 0, words, 0, 0, 0}
	}
	b = append(append(b, quoted...), extension...)
	if !v6 {
		binary.BigEndian.PutUint16(b[2:], ^onesSum(b))
	}
	return b
}

func TestQuotes(t *testing.T) {
	b, b6 := packet(t, spoken), packet(t, spokenV6)
	padded := append(bytes.Clone(b[:28]), make([]byte, 100)...) // RFC 4884 section 4.5
	ext := []byte{0x20, 0, 0, 0}
	for _, x := range []struct {
		name   string
		quoted []byte
		v6     bool
		words  uint8
		ext    []byte
		bth    bool
	}{
		{"28 octets", b[:28], false, 0, nil, false},
		{"up to the middle of the BTH", b[:36], false, 0, nil, false},
		{"the BTH", b[:40], false, 0, nil, true},
		{"all", b, false, 0, nil, true},
		{"with an extension", append(bytes.Clone(b), make([]byte, 128-len(b))...), false, 32, ext, true},
		{"filled up before an extension", padded, false, 32, ext, false},
		{"IPv6", b6, true, 0, nil, true},
		{"IPv6 with an extension", append(bytes.Clone(b6), make([]byte, 128-len(b6))...), true, 16, ext, true},
	} {
		q, err := ParseQuote(exceeded(x.quoted, x.v6, x.words, x.ext), x.v6)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		p, length := spoken, len(b)-ipv4Len
		if x.v6 {
			p, length = spokenV6, len(b6)-ipv6Len
		}
		if q.Src != p.Src || q.Dst != p.Dst || q.ID != p.ID || q.SrcPort != p.SrcPort || int(q.UDPLen) != length || q.BTH != x.bth || !bytes.Equal(q.Extension, x.ext) {
			t.Errorf("%s: %+v", x.name, q)
		}
		if x.bth && (q.PSN != p.PSN || q.DestQPN != p.DestQPN || q.Opcode != p.Opcode) {
			t.Errorf("%s: %+v, want the BTH of %+v", x.name, q, p)
		}
	}
	bad := exceeded(b, false, 0, nil)
	bad[20]++
	for name, x := range map[string]struct {
		b    []byte
		v6   bool
		want string
	}{
		"short":     {[]byte{11, 0, 0}, false, "ICMP error"},
		"checksum":  {bad, false, "ICMP checksum"},
		"of IPv4":   {exceeded(b, true, 0, nil), true, "address family"},
		"no UDP":    {exceeded(b[:26], false, 0, nil), false, "octets of UDP"},
		"no packet": {exceeded(nil, false, 0, nil), false, "IP header: missing"},
	} {
		if _, err := ParseQuote(x.b, x.v6); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
	other := bytes.Clone(b)
	binary.BigEndian.PutUint16(other[22:], 8862)
	if _, err := ParseQuote(exceeded(other, false, 0, nil), false); err == nil || !strings.Contains(err.Error(), "UDP destination port 8862") {
		t.Errorf("a quote of another port: %v", err)
	}
}

func TestSourcePorts(t *testing.T) {
	for _, x := range []struct {
		driver     string
		label, qpn uint32
		want       uint16
	}{
		{"mlx5_core", 0x00001, 5, 0xc001},
		{"mlx5_core", 0xfffff, 5, 0xffc0},
		{"hns3", 0x07fff, 5, 0xfffe},
		{"rdma_rxe", 0x00001, 0, 0xc000},
		{"rdma_rxe", 0x00001, 17, 57236}, // as soft-RoCE sent
		{"rdma_rxe", 0xfffff, 18, 63494},
		{"rdma_rxe", 0x00001, 0xabcdef, 0xe3ca},
	} {
		r, err := RuleOf(x.driver)
		if err != nil {
			t.Errorf("%s: %v", x.driver, err)
			continue
		}
		if got := r.SourcePort(x.label, x.qpn); got != x.want {
			t.Errorf("%s, label %#x, queue pair %d: %#x, want %#x", x.driver, x.label, x.qpn, got, x.want)
		}
	}
	for _, driver := range []string{"", "bnxt_re", "irdma", "mlx4_core", "rxe0"} {
		if r, err := RuleOf(driver); err == nil || r != 0 {
			t.Errorf("%q: %v, want that it is not known", driver, r)
		}
	}
}

// TestConnectedPorts has the ports that the kernel's function gave for these numbers.
func TestConnectedPorts(t *testing.T) {
	for _, x := range []struct {
		label, local, remote uint32
		want                 uint16
	}{
		{0, 0x1234, 0x5678, 49178},
		{0, 0x5678, 0x1234, 49178},
		{0, 0x123, 0x1234, 61711},
		{1, 0x123, 0x1234, 49153},
		{0xfffff, 0x123, 0x1234, 0xffc0},
		{0, 0, 0x1234, 49152}, // the far number is not known yet
	} {
		if got := ConnectedPort(x.label, x.local, x.remote); got != x.want {
			t.Errorf("label %#x, queue pairs %#x and %#x: %d, want %d", x.label, x.local, x.remote, got, x.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, b := range captures(f) {
		f.Add(b)
	}
	f.Add(packet(f, spokenV6))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		again, err := p.Append(nil)
		if err != nil {
			t.Fatalf("%+v was read and cannot be written: %v", p, err)
		}
		q, err := Parse(again)
		if err != nil {
			t.Fatalf("%x was written and cannot be read: %v", again, err)
		}
		if q.PSN != p.PSN || !bytes.Equal(q.Payload, p.Payload) || q.SrcPort != p.SrcPort {
			t.Fatalf("%+v, want %+v", q, p)
		}
	})
}

func FuzzParseQuote(f *testing.F) {
	b := packet(f, spoken)
	f.Add(exceeded(b, false, 0, nil), false)
	f.Add(exceeded(append(b[:28:28], make([]byte, 100)...), false, 32, []byte{0x20, 0, 0, 0}), false)
	f.Add(exceeded(packet(f, spokenV6), true, 0, nil), true)
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		q, err := ParseQuote(b, v6)
		if err != nil {
			return
		}
		if q.Src.Is6() != v6 || q.Dst.Is6() != v6 || len(q.Extension) > len(b) || q.PSN > maxQPN || q.BTH && q.Opcode == 0 {
			t.Fatalf("%+v", q)
		}
	})
}
