package unix

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"
)

// datagram returns a UDP packet to a port without a socket, with its IP header.
func datagram(src netip.Addr, id uint16) []byte {
	udp := []byte{0xc1, 0x23, 0, 1, 0, 12, 0, 0, 1, 2, 3, 4} // from 0xc123 to 1
	if src.Is4() {
		b := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 9, 17, 0, 0}
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(udp)))
		binary.BigEndian.PutUint16(b[4:], id)
		b = append(append(b, src.AsSlice()...), src.AsSlice()...)
		return append(b, udp...) // the kernel fills in the header's checksum: raw(7)
	}
	b := []byte{0x60, 0, 0, 0, 0, byte(len(udp)), 17, 9}
	b = append(append(b, src.AsSlice()...), src.AsSlice()...)
	binary.BigEndian.PutUint16(udp[6:], udp6Sum(src, udp))
	return append(b, udp...)
}

// udp6Sum returns the checksum of RFC 8200 section 8.1.
func udp6Sum(a netip.Addr, udp []byte) uint16 {
	pseudo := append(append(append([]byte{}, a.AsSlice()...), a.AsSlice()...), 0, 0, 0, byte(len(udp)), 0, 0, 0, 17)
	var s uint32
	for _, b := range [][]byte{pseudo, udp} {
		for i := 0; i < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

func TestRawIP(t *testing.T) {
	for _, a := range []string{"127.0.0.1", "::1"} {
		src := netip.MustParseAddr(a)
		r, err := OpenRawIP("lo", src)
		if (errors.Is(err, EPERM) || errors.Is(err, EADDRNOTAVAIL)) && os.Getenv("GRAYLINK_REQUIRE_ALL") != "1" {
			t.Skipf("%s: %v: needs CAP_NET_RAW, and the address on lo", a, err)
		}
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		got := make(chan []byte)
		go func() {
			buf := make([]byte, 2048)
			for {
				b, from, err := r.Recv(buf)
				if err != nil {
					ended <- err
					return
				}
				if from == src {
					got <- append([]byte{}, b...)
				}
			}
		}()
		packet := datagram(src, 4711)
		if err := r.Send(packet, src); err != nil {
			t.Fatal(err)
		}
		limit := time.After(20 * time.Second)
		for done := false; !done; {
			select {
			case b := <-got: // errors for other programs arrive on the loopback as well
				ip := 20
				if src.Is6() {
					ip = 40
				}
				if len(b) < 8+len(packet) || string(b[8+ip:8+len(packet)]) != string(packet[ip:]) {
					continue
				}
				if typ := b[0]; src.Is4() && typ != 3 || src.Is6() && typ != 1 {
					t.Errorf("%s: an error of type %d, want port unreachable", a, typ)
				}
				if src.Is4() && binary.BigEndian.Uint16(b[8+4:]) != 4711 {
					t.Errorf("%s: the header was sent as % x, want identification 4711", a, b[8:28])
				}
				done = true
			case <-limit:
				t.Fatalf("%s: no ICMP error came", a)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: Recv ended with %v, want os.ErrClosed", a, err)
		}
	}
	if _, err := OpenRawIP("no-such-if", netip.MustParseAddr("127.0.0.1")); err == nil || errors.Is(err, EPERM) {
		t.Errorf("an interface that is not there: %v", err)
	}
}
