package csig

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
)

// vxlanHeaders returns the headers of a VXLAN tunnel (RFC 7348) for a frame of a length, behind VLAN tags.
func vxlanHeaders(t testing.TB, vlans string, vni byte, inner int) []byte {
	t.Helper()
	h := unhex(t, "0200000000a1 0200000000a2"+vlans+"0800")
	ip := unhex(t, "45000000 00004000 4011 0000 0a000001 0a000002")
	binary.BigEndian.PutUint16(ip[2:], uint16(20+8+8+inner))
	udp := unhex(t, "c000 12b5 0000 0000")
	binary.BigEndian.PutUint16(udp[4:], uint16(8+8+inner))
	return append(append(append(h, ip...), udp...), 8, 0, 0, 0, 0, 0, vni, 0)
}

// checkVXLAN checks the lengths of a tunnel's frame, whose tag was taken off.
func checkVXLAN(t *testing.T, what string, frame []byte, l2 int) {
	t.Helper()
	if got, want := int(binary.BigEndian.Uint16(frame[l2+2:])), len(frame)-l2; got != want {
		t.Errorf("%s: the length in the IP header is %d, want %d", what, got, want)
	}
}

// hop lets a frame leave by an egress port that has a delay.
type hop struct {
	port  *Port
	delay uint64
}

func (h hop) send(t *testing.T, frame []byte) []byte {
	t.Helper()
	out, o := h.port.Transmit(frame, 0, Waiting{Delay: Nanos{h.delay, true}})
	if o != Updated && o != Kept {
		t.Fatalf("a hop of %d ns: %v", h.delay, o)
	}
	return out
}

// Rule 9: over a tunnel and a tunnel in it, the tag at the end equals that over the same hops without tunnels, and nothing
// inside a tunnel is tagged, whatever hop is the worst.
func TestRule9TunnelInTunnel(t *testing.T) {
	p := testProfile(t, "")
	for _, f := range Formats {
		for worst := range 6 {
			hops := make([]hop, 6)
			for i := range hops {
				port := p.NewPort(PortOptions{Speed: gigabit}, 0)
				port.locators = [2]uint16{uint16(10 + i), uint16(1000 + i)}
				hops[i] = hop{port, 1000 + uint64(i)}
			}
			hops[worst].delay = 5_000_000
			name := fmt.Sprintf("%v, worst hop %d", f, worst)
			plain := unhex(t, addresses+"8100 0064 0800"+payload)
			start, err := lab.Insert(nil, plain, NewTag(f, Delay))
			if err != nil {
				t.Fatal(err)
			}
			direct := bytes.Clone(start)
			for _, h := range hops {
				direct = h.send(t, direct)
			}
			wantTag, _ := lab.Parse(direct)
			if wantTag.Locator != hops[worst].port.locators[f.index()] {
				t.Fatalf("%s: without tunnels %+v", name, wantTag)
			}

			tunnel := &Tunnel{EtherTypes: lab}
			frame := hops[0].send(t, bytes.Clone(start))
			first := vxlanHeaders(t, "", 1, len(plain))
			frame = encap(t, tunnel, first, frame)
			frame = hops[1].send(t, frame)
			second := vxlanHeaders(t, "8100 0007", 2, len(first)+len(plain))
			frame = encap(t, tunnel, second, frame)
			frame = hops[2].send(t, frame)
			frame = hops[3].send(t, frame)

			stripped, _, s := lab.Strip(bytes.Clone(frame))
			if s != Tagged || bytes.Contains(stripped, unhex(t, "88b5")) || bytes.Contains(stripped, unhex(t, "88b6")) {
				t.Fatalf("%s: inside the tunnels something is tagged: %x", name, stripped)
			}
			checkVXLAN(t, name, stripped, 18)
			if inner := stripped[len(second):]; !bytes.Equal(inner[len(first):], plain) {
				t.Fatalf("%s: inside is %x, want %x", name, inner, plain)
			} else {
				checkVXLAN(t, name, inner, 14)
			}
			frame = decap(t, tunnel, frame, len(second))
			frame = hops[4].send(t, frame)
			frame = decap(t, tunnel, frame, len(first))
			frame = hops[5].send(t, frame)
			if !bytes.Equal(frame, direct) {
				t.Errorf("%s: behind the tunnels\n%x, want\n%x", name, frame, direct)
			}
		}
	}
}

func encap(t *testing.T, tunnel *Tunnel, headers, frame []byte) []byte {
	t.Helper()
	out, o, err := tunnel.Encap(nil, headers, bytes.Clone(frame))
	if err != nil || o != Moved {
		t.Fatalf("encap: %v, %v", o, err)
	}
	return out
}

func decap(t *testing.T, tunnel *Tunnel, frame []byte, headersLen int) []byte {
	t.Helper()
	out, o, err := tunnel.Decap(nil, frame, headersLen)
	if err != nil || o != Moved {
		t.Fatalf("decap: %v, %v", o, err)
	}
	return out
}

// Where one tunnel ends and another begins, the tag stays, is updated once, and is not stripped.
func TestRule9TurnAround(t *testing.T) {
	p := testProfile(t, "")
	port := p.NewPort(PortOptions{Name: "sw:1", Speed: gigabit}, 0)
	plain := unhex(t, addresses+"0800"+payload)
	tag := Tag{Format: Compact, Signal: Delay, Code: 3, Locator: 99, Reserved: 1}
	tagged, err := lab.Insert(nil, plain, tag)
	if err != nil {
		t.Fatal(err)
	}
	one, two := vxlanHeaders(t, "", 1, len(plain)), vxlanHeaders(t, "88a8 0001 8100 0002", 2, len(plain))
	for _, tunnel := range []*Tunnel{{EtherTypes: lab}, {EtherTypes: lab, StripAtEncap: true, StripAtDecap: true}} {
		outer := encap(t, &Tunnel{EtherTypes: lab}, one, tagged)
		out, o, err := tunnel.TurnAround(nil, outer, len(one), two)
		if err != nil || o != Moved {
			t.Fatalf("%v, %v", o, err)
		}
		out = hop{port, 8_192_000}.send(t, out)
		want := tag
		want.Code, want.Locator = 31, 5
		rest, got, _ := lab.Strip(out)
		if got.Tag != want || !bytes.Equal(rest, append(bytes.Clone(two), plain...)) {
			t.Errorf("%+v, %x", got, rest)
		}
	}
	out, o, err := (&Tunnel{EtherTypes: lab}).TurnAround(nil, append(bytes.Clone(one), plain...), len(one), two)
	if err != nil || o != NoTag || !bytes.Equal(out, append(bytes.Clone(two), plain...)) {
		t.Errorf("without a tag: %v, %v, %x", o, err, out)
	}
}

// Tunnels whose ends do not move tags take them off.
func TestTunnelsThatStrip(t *testing.T) {
	plain := unhex(t, addresses+"0800"+payload)
	headers := vxlanHeaders(t, "", 1, len(plain))
	outer := append(bytes.Clone(headers), plain...)
	tagged, err := lab.Insert(nil, plain, NewTag(Wide, Share))
	if err != nil {
		t.Fatal(err)
	}
	tunnel := &Tunnel{EtherTypes: lab, StripAtEncap: true, StripAtDecap: true}
	if out, o, err := tunnel.Encap(nil, headers, bytes.Clone(tagged)); err != nil || o != Stripped || !bytes.Equal(out, outer) {
		t.Errorf("encap: %v, %v, %x", o, err, out)
	}
	taggedOuter, err := lab.Insert(nil, outer, NewTag(Wide, Share))
	if err != nil {
		t.Fatal(err)
	}
	if out, o, err := tunnel.Decap(nil, taggedOuter, len(headers)); err != nil || o != Stripped || !bytes.Equal(out, plain) {
		t.Errorf("decap: %v, %v, %x", o, err, out)
	}
}

// Frames without a tag, malformed ones, and tags on both sides of a tunnel.
func TestTunnelsOfOtherFrames(t *testing.T) {
	tunnel := &Tunnel{EtherTypes: lab}
	plain := unhex(t, addresses+"0800"+payload)
	headers := vxlanHeaders(t, "", 1, len(plain))
	outer := append(bytes.Clone(headers), plain...)
	if out, o, err := tunnel.Encap(nil, headers, plain); err != nil || o != NoTag || !bytes.Equal(out, outer) {
		t.Errorf("encap without a tag: %v, %v", o, err)
	}
	if out, o, err := tunnel.Decap(nil, outer, len(headers)); err != nil || o != NoTag || !bytes.Equal(out, plain) {
		t.Errorf("decap without a tag: %v, %v", o, err)
	}
	bad := unhex(t, addresses+"88b5 2b85 8100 0064 0800"+payload)
	badOuter := append(bytes.Clone(headers), bad...)
	if out, o, err := tunnel.Encap(nil, headers, bad); err != nil || o != BadTag || !bytes.Equal(out, badOuter) {
		t.Errorf("encap of a malformed frame: %v, %v", o, err)
	}
	if out, o, err := tunnel.Decap(nil, badOuter, len(headers)); err != nil || o != NoTag || !bytes.Equal(out, bad) {
		t.Errorf("decap of a malformed frame: %v, %v", o, err)
	}
	taggedOuter, err := lab.Insert(nil, badOuter, NewTag(Compact, Delay))
	if err != nil {
		t.Fatal(err)
	}
	if out, o, err := tunnel.Decap(nil, taggedOuter, len(headers)); err != nil || o != BadTag || !bytes.Equal(out, bad) {
		t.Errorf("decap of a malformed frame with a tag outside: %v, %v", o, err)
	}
	for _, frame := range [][]byte{bad, taggedOuter[:20], {}} {
		if _, o, err := tunnel.Decap(nil, frame, len(headers)); err != ErrMalformed || o != BadTag {
			t.Errorf("decap of %x: %v, %v", frame, o, err)
		}
		if _, o, err := tunnel.TurnAround(nil, frame, len(headers), headers); err != ErrMalformed || o != BadTag {
			t.Errorf("turning %x around: %v, %v", frame, o, err)
		}
	}
	for _, c := range []struct{ inside, outside, want Tag }{
		{Tag{Compact, Delay, 3, 7, 1}, Tag{Compact, Delay, 9, 8, 0}, Tag{Compact, Delay, 9, 8, 1}},
		{Tag{Compact, Delay, 9, 7, 1}, Tag{Compact, Delay, 3, 8, 0}, Tag{Compact, Delay, 9, 7, 1}},
		{Tag{Compact, Delay, 3, 7, 1}, Tag{Compact, Share, 9, 8, 0}, Tag{Compact, Delay, 3, 7, 1}},
		{Tag{Wide, Delay, 3, 7, 1}, Tag{Compact, Delay, 9, 8, 0}, Tag{Wide, Delay, 3, 7, 1}},
	} {
		inside, err := lab.Insert(nil, plain, c.inside)
		if err != nil {
			t.Fatal(err)
		}
		both, err := lab.Insert(nil, append(bytes.Clone(headers), inside...), c.outside)
		if err != nil {
			t.Fatal(err)
		}
		out := decap(t, tunnel, both, len(headers))
		if rest, got, s := lab.Strip(out); s != Tagged || got.Tag != c.want || !bytes.Equal(rest, plain) {
			t.Errorf("%+v with %+v outside became %+v", c.inside, c.outside, got)
		}
	}
}
