package source

import (
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"

	"github.com/graylink/graylink/internal/sighting"
)

// message returns the message that the kernel sends for a sample.
func message(ingress uint16, group, sequence uint32, frame []byte) []byte {
	ae := netlink.NewAttributeEncoder()
	ae.Uint16(psampleIngress, ingress)
	ae.Uint32(2, uint32(len(frame)))
	ae.Uint32(psampleGroupID, group)
	ae.Uint32(psampleSequence, sequence)
	ae.Uint32(5, 100)
	ae.Bytes(psampleData, frame)
	b, err := ae.Encode()
	if err != nil {
		panic(err)
	}
	return b
}

func TestPsample(t *testing.T) {
	p := &Psample{sightTable: sightTable{limit: 10, flows: map[flowAtPort]*sight{}}, group: 7, stampPorts: []uint16{862}}
	if err := p.SetPorts([]uint32{3, 4}); err != nil {
		t.Fatal(err)
	}
	probe := frame(a4, b4, 17, 0)
	p.countMessage(message(3, 7, 5, probe), 100)
	p.countMessage(message(3, 8, 90, probe), 150) // another group
	p.countMessage(message(3, 7, 6, probe), 200)
	p.countMessage(message(4, 7, 9, frame(a6, b6, 17, 0, 12)), 300) // two were lost
	p.countMessage(message(9, 7, 10, probe), 400)                   // no port
	p.countMessage(message(3, 7, 11, frame(a4, b4, 6, 0)), 500)     // no probe
	p.countMessage([]byte{9, 0, 1, 0, 1}, 600)                      // no message
	want := map[sighting.Key]sighting.Sample{
		sighting.KeyOf(sighting.Flow{Src: a4, Dst: b4}): {Port: 3, First: 100, Last: 200, Count: 2},
		sighting.KeyOf(sighting.Flow{Src: a6, Dst: b6}): {Port: 4, First: 300, Last: 300, Count: 1},
	}
	n := 0
	if err := p.SweepFlows(t.Context(), func(k *sighting.Key, s sighting.Sample) {
		n++
		if want[*k] != s {
			t.Errorf("%v: %+v, want %+v", k.Flow(), s, want[*k])
		}
	}); err != nil {
		t.Fatal(err)
	}
	if n != len(want) || p.Dropped() != 3 {
		t.Errorf("%d flows, %d lost, want %d and 3", n, p.Dropped(), len(want))
	}
}

// TestWideIngress checks messages of kernels that number interfaces with four octets.
func TestWideIngress(t *testing.T) {
	b := binary.NativeEndian.AppendUint16(nil, 8)
	b = binary.NativeEndian.AppendUint16(b, psampleIngress)
	b = binary.NativeEndian.AppendUint32(b, 70000)
	if s, err := parseSampled(b); err != nil || s.ingress != 70000 {
		t.Fatalf("%+v, %v", s, err)
	}
}

func FuzzSampled(f *testing.F) {
	f.Add(message(3, 7, 5, frame(a4, b4, 17, 0)))
	f.Add([]byte{9, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSampled(b)
		if err == nil && len(s.frame) > len(b) {
			t.Fatal("more than was there")
		}
	})
}
