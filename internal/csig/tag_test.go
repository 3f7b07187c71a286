package csig

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"
)

// lab has the EtherTypes of the lab: IEEE local experimental ones.
var lab = EtherTypes{Compact: 0x88b5, Wide: 0x88b6}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// bitsAt returns n bits of b from bit at on, most significant first: a slow reader that shares nothing with the codec.
func bitsAt(b []byte, at, n int) (v uint32) {
	for i := at; i < at+n; i++ {
		v = v<<1 | uint32(b[i/8]>>(7-i%8)&1)
	}
	return v
}

// referenceTag reads the fields of a tag by their positions in the draft's drawing. b begins behind the EtherType.
func referenceTag(f Format, b []byte) Tag {
	if f == Compact {
		return Tag{Compact, Signal(bitsAt(b, 0, 3)), bitsAt(b, 4, 5), uint16(bitsAt(b, 9, 7)), uint8(bitsAt(b, 3, 1))}
	}
	return Tag{Wide, Signal(bitsAt(b, 16, 4)), bitsAt(b, 20, 20), uint16(bitsAt(b, 0, 16)), uint8(bitsAt(b, 40, 8))}
}

func checkWord(t *testing.T, f Format, b []byte) {
	t.Helper()
	var tag Tag
	tag.ParseValue(f, b)
	if want := referenceTag(f, b); tag != want {
		t.Fatalf("%x is read as %+v, want %+v", b, tag, want)
	}
	var out [6]byte
	tag.PutValue(out[:])
	if got := out[:len(b)]; !bytes.Equal(got, b) {
		t.Fatalf("%x comes back as %x", b, got)
	}
}

func TestEveryCompactWord(t *testing.T) {
	var b [2]byte
	for w := range 1 << 16 {
		binary.BigEndian.PutUint16(b[:], uint16(w))
		checkWord(t, Compact, b[:])
	}
}

func TestRandomWideWords(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var b [8]byte
	for range 1_000_000 {
		binary.BigEndian.PutUint64(b[:], rng.Uint64())
		checkWord(t, Wide, b[:6])
	}
}

// Fields that are larger than their bits do not reach into others.
func TestLargeFieldsStayInTheirBits(t *testing.T) {
	for _, f := range Formats {
		for i, tag := range []Tag{{Format: f, Signal: 255}, {Format: f, Code: 1<<32 - 1}, {Format: f, Locator: 1<<16 - 1}, {Format: f, Reserved: 255}} {
			var b [6]byte
			tag.PutValue(b[:])
			got := referenceTag(f, b[:])
			set := [...]bool{got.Signal != 0, got.Code != 0, got.Locator != 0, got.Reserved != 0}
			for j, on := range set {
				if on != (i == j) {
					t.Errorf("%v: %+v is written as %+v", f, tag, got)
				}
			}
		}
	}
}

const addresses = "020000000001 020000000002"

// Vectors of FBOSS (AgentCsigTest) and of Google's packetlib, and those of the specification for wide tags.
func TestPublishedVectors(t *testing.T) {
	google := EtherTypes{Compact: 0x9900, Wide: 0x9901}
	for _, v := range []struct {
		name, behind string // behind the addresses
		want         Tag
		offset       int
		inner        uint16
	}{
		{"FBOSS 2b85", "9900 2b85 0800", Tag{Compact, Share, 23, 5, 0}, 12, 0x0800},
		{"FBOSS 2842", "9900 2842 86dd", Tag{Compact, Share, 16, 66, 0}, 12, 0x86dd},
		{"packetlib behind a VLAN tag", "8100 0000 9900 2880 0800", Tag{Compact, Share, 17, 0, 0}, 16, 0x0800},
		{"wide", "9901 beef 21234500 0800", Tag{Wide, Delay, 0x12345, 0xbeef, 0}, 12, 0x0800},
		{"wide, all ones", "9901 0042 0fffff00 0800", Tag{Wide, Bandwidth, 1<<20 - 1, 0x42, 0}, 12, 0x0800},
		{"wide behind two VLAN tags", "88a8 0064 8100 2001 9901 0042 0fffff00 0800", Tag{Wide, Bandwidth, 1<<20 - 1, 0x42, 0}, 20, 0x0800},
	} {
		frame := unhex(t, addresses+v.behind)
		f, s := google.Parse(frame)
		if want := (Found{v.want, v.offset, v.inner}); s != Tagged || f != want {
			t.Errorf("%s: %+v, status %v, want %+v", v.name, f, s, want)
		}
		plain, _, _ := google.Strip(bytes.Clone(frame))
		again, err := google.Insert(nil, plain, v.want)
		if err != nil || !bytes.Equal(again, frame) {
			t.Errorf("%s: built as %x (%v), want %x", v.name, again, err, frame)
		}
	}
}

// Rule 5: what a source writes is replaced by every value that is not the last one, and locator 0 says that none was.
func TestRule5SourcesWriteWhatIsReplaced(t *testing.T) {
	for _, f := range Formats {
		for s := range Signal(Signals) {
			tag := NewTag(f, s)
			want := map[bool]uint32{true: f.MaxCode(), false: 0}[s == Bandwidth || s == Share]
			if tag.Code != want || tag.Locator != 0 || tag.Reserved != 0 || tag.Signal != s {
				t.Errorf("%v %v: %+v", f, s, tag)
			}
			if tag.Update(want, 7) || tag.Locator != 0 {
				t.Errorf("%v %v: an equal code replaces that of the source", f, s)
			}
			if tag.Update(5, 0) {
				t.Errorf("%v %v: locator 0 replaces a value", f, s)
			}
			if !tag.Update(5, 7) || tag.Code != 5 || tag.Locator != 7 {
				t.Errorf("%v %v: %+v after a worse code", f, s, tag)
			}
		}
		unknown := Tag{Format: f, Signal: 5, Code: 9, Locator: 3}
		if before := unknown; unknown.Update(1, 2) || unknown.Update(20, 2) || unknown != before {
			t.Errorf("%v: an unknown signal is updated: %+v", f, unknown)
		}
	}
}

// Rule 4: over random paths of 1 to 7 hops, the code at the end is the smallest or largest one of the hops and the source,
// and the locator is that of the first hop that has it.
func TestRule4FirstWorstHop(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 300_000 {
		f, s := Formats[rng.IntN(2)], Signal(rng.IntN(Signals))
		most := f.MaxCode() + 1
		if rng.IntN(2) == 0 {
			most = 4 // so that codes repeat
		}
		tag := NewTag(f, s)
		want := tag
		codes := make([]uint32, 1+rng.IntN(7))
		for i := range codes {
			codes[i] = rng.Uint32N(most)
			if s.takesSmallest() && codes[i] < want.Code || !s.takesSmallest() && codes[i] > want.Code {
				want.Code = codes[i]
			}
			tag.Update(codes[i], uint16(i+1))
		}
		if want.Code != NewTag(f, s).Code {
			for i, c := range codes {
				if c == want.Code {
					want.Locator = uint16(i + 1)
					break
				}
			}
		}
		if tag != want {
			t.Fatalf("%v %v: %+v after %v, want %+v", f, s, tag, codes, want)
		}
	}
}
