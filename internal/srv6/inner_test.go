package srv6

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// The truth is gopacket's own serialization, which computes the checksum.
func TestInnerPacketsAreThoseOfOthers(t *testing.T) {
	src, dst := netip.MustParseAddrPort("[fd00:1::1]:49153"), netip.MustParseAddrPort("[fd00:2::9]:862")
	for n := range 67 {
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(0xff - 3*i*n)
		}
		packet := append(make([]byte, InnerHeaders), payload...)
		PutInner(packet, src, dst, 0xba)
		ip := &layers.IPv6{Version: 6, TrafficClass: 0xba, NextHeader: layers.IPProtocolUDP, HopLimit: 64,
			SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		udp := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		want := gopacket.NewSerializeBuffer()
		options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(want, options, ip, udp, gopacket.Payload(payload)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(packet, want.Bytes()) {
			t.Fatalf("%d octets: got\n%x, want\n%x", n, packet, want.Bytes())
		}
		ip.HopLimit = 1
		if err := gopacket.SerializeLayers(want, options, ip, udp, gopacket.Payload(payload)); err != nil {
			t.Fatal(err)
		}
		if LimitInner(packet, 1); !bytes.Equal(packet, want.Bytes()) {
			t.Fatalf("%d octets, limited: got\n%x, want\n%x", n, packet, want.Bytes())
		}
		if a, b, ok := QuotedInner(packet[:44]); !ok || a != src || b != dst {
			t.Fatalf("quoted: %v %v %v", a, b, ok)
		}
	}
}

// A sum of zero is sent as ffff, because zero means that there is no checksum.
func TestChecksumIsNeverZero(t *testing.T) {
	src, dst := netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2")
	packet := make([]byte, InnerHeaders+2)
	PutInner(packet, src, dst, 0)
	copy(packet[InnerHeaders:], packet[46:48]) // the word by which the sum of all becomes ffff
	PutInner(packet, src, dst, 0)
	if packet[46] != 0xff || packet[47] != 0xff {
		t.Errorf("the checksum is %x", packet[46:48])
	}
}

func FuzzQuotedInner(f *testing.F) {
	packet := make([]byte, InnerHeaders)
	PutInner(packet, netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2"), 0)
	f.Add(packet)
	f.Add(packet[:44])
	f.Fuzz(func(t *testing.T, b []byte) {
		src, dst, ok := QuotedInner(b)
		if !ok {
			return
		}
		again := make([]byte, InnerHeaders)
		PutInner(again, src, dst, 0)
		if a, z, ok := QuotedInner(again); !ok || a != src || z != dst {
			t.Fatalf("%v %v became %v %v", src, dst, a, z)
		}
	})
}

func BenchmarkPutInner(b *testing.B) {
	src, dst := netip.MustParseAddrPort("[fd00:1::1]:49153"), netip.MustParseAddrPort("[fd00:2::9]:862")
	packet := make([]byte, InnerHeaders+200)
	b.ReportAllocs()
	for b.Loop() {
		PutInner(packet, src, dst, 2)
	}
}
