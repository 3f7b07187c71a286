package csig

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/graylink/graylink/test/scapy"
)

// scapyRecords are tags and frames that scapy reads and builds.
type scapyRecords struct {
	in     bytes.Buffer
	tags   []Tag
	octets [][]byte
}

// addRecord adds the octets of a kind with the tag that we read in them.
func (r *scapyRecords) addRecord(kind byte, octets []byte, tag Tag) {
	r.in.WriteByte(kind)
	r.in.Write(binary.BigEndian.AppendUint16(nil, uint16(len(octets))))
	r.in.Write(octets)
	r.tags, r.octets = append(r.tags, tag), append(r.octets, octets)
}

// addValue adds what stands behind the EtherType of a tag, and the next EtherType.
func (r *scapyRecords) addValue(f Format, value []byte) {
	var tag Tag
	tag.ParseValue(f, value)
	r.addRecord(map[Format]byte{Compact: 'c', Wide: 'w'}[f], append(bytes.Clone(value), 0x08, 0x00), tag)
}

// addFrame adds a frame that we build with a tag.
func (r *scapyRecords) addFrame(t *testing.T, header string, tag Tag) {
	t.Helper()
	frame, err := lab.Insert(nil, unhex(t, header+"9999 010203"), tag)
	if err != nil {
		t.Fatal(err)
	}
	r.addRecord('f', frame, tag)
}

// compare checks that scapy reads the same tags, and builds the same octets of them.
func (r *scapyRecords) compare(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), scapy.Python, "../../test/csig/scapy_csig.py")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = &r.in, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("scapy_csig.py: %v\n%s", err, &stderr)
	}
	for i, want := range r.tags {
		if len(out) < 18 {
			t.Fatalf("scapy answered %d of %d records", i, len(r.tags))
		}
		number := func(n int) uint32 { return binary.BigEndian.Uint32(out[4*n:]) }
		got := Tag{want.Format, Signal(number(0)), number(2), uint16(number(3)), uint8(number(1))}
		size := int(binary.BigEndian.Uint16(out[16:]))
		built := out[18 : 18+size]
		out = out[18+size:]
		if got != want || !bytes.Equal(built, r.octets[i]) {
			t.Fatalf("scapy reads %x as %+v and builds %x, we read %+v", r.octets[i], got, built, want)
		}
	}
	if len(out) > 0 {
		t.Errorf("%d octets more than records", len(out))
	}
}

// TestScapy compares tags by themselves and in frames with any VLAN tags with an independent implementation. The test with the
// tag all compares every compact tag and a million wide ones.
func TestScapy(t *testing.T) {
	scapy.Require(t)
	rng := rand.New(rand.NewPCG(9, 9))
	var r scapyRecords
	for _, f := range Formats {
		for range 500 {
			var value [8]byte
			binary.BigEndian.PutUint64(value[:], rng.Uint64())
			r.addValue(f, value[:f-typeLen])
		}
		for _, header := range headers {
			for range 40 {
				var value [8]byte
				binary.BigEndian.PutUint64(value[:], rng.Uint64())
				r.addFrame(t, header, referenceTag(f, value[:6]))
			}
		}
	}
	r.compare(t)
}
