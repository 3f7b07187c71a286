package csig

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
)

const payload = "4500 0014 0000 0000 4011 0000 7f000001 7f000001"

// headers are link headers with none, one and two VLAN tags.
var headers = map[string]string{
	"no VLAN tag": addresses, "one VLAN tag": addresses + "8100 2064", "one service VLAN tag": addresses + "88a8 0001",
	"two VLAN tags": addresses + "88a8 0064 8100 0065", "two customer VLAN tags": addresses + "8100 0064 8100 0065",
}

// Rule 1: a tag is found, taken off and put in behind any of the headers.
func TestRule1TagsBehindVLANTags(t *testing.T) {
	for name, header := range headers {
		for _, f := range Formats {
			tag := Tag{Format: f, Signal: Delay, Code: 17, Locator: 66, Reserved: 1}
			plain := unhex(t, header+"0800"+payload)
			tagged, err := lab.Insert(nil, plain, tag)
			if err != nil {
				t.Fatal(err)
			}
			want := Found{tag, len(unhex(t, header)), 0x0800}
			if got, s := lab.Parse(tagged); s != Tagged || got != want {
				t.Errorf("%s, %v: %+v, %v; want %+v", name, f, got, s, want)
			}
			if len(tagged) != len(plain)+int(f) || binary.BigEndian.Uint16(tagged[want.Offset:]) != lab.Of(f) {
				t.Errorf("%s, %v: %x", name, f, tagged)
			}
			rest, got, s := lab.Strip(tagged)
			if s != Tagged || got != want || !bytes.Equal(rest, plain) {
				t.Errorf("%s, %v: without the tag %x, want %x", name, f, rest, plain)
			}
			if _, err := lab.Insert(nil, rest, Tag{}); err != ErrFormat {
				t.Errorf("%s: a tag without format: %v", name, err)
			}
			if _, err := (EtherTypes{Compact: 0x88b5}).Insert(nil, rest, NewTag(Wide, Delay)); err != ErrFormat {
				t.Errorf("%s: a format without EtherType: %v", name, err)
			}
		}
	}
}

// malformed returns frames that no tag is read from.
func malformed(t testing.TB) map[string][]byte {
	out := map[string][]byte{
		"tag before a VLAN tag":         unhex(t, addresses+"88b5 2b85 8100 0064 0800"+payload),
		"tag before a service VLAN tag": unhex(t, addresses+"88b6 0042 0fffff00 88a8 0064 0800"+payload),
		"tag between two VLAN tags":     unhex(t, addresses+"88a8 0064 88b5 2b85 8100 0065 0800"+payload),
		"two compact tags":              unhex(t, addresses+"88b5 2b85 88b5 2b85 0800"+payload),
		"two wide tags":                 unhex(t, addresses+"88b6 0042 0fffff00 88b6 0042 0fffff00 0800"+payload),
		"compact and wide":              unhex(t, addresses+"88b5 2b85 88b6 0042 0fffff00 0800"+payload),
		"nothing":                       {},
	}
	for name, header := range headers {
		for _, tag := range []string{"88b5 2b85 0800", "88b6 0042 0fffff00 0800"} {
			whole := unhex(t, header+tag)
			for n := 1; n < len(whole); n++ {
				out[name+" "+tag+" cut to "+string(rune('0'+n/10))+string(rune('0'+n%10))] = whole[:n]
			}
		}
	}
	return out
}

// foreign returns frames without a tag.
func foreign(t testing.TB) map[string][]byte {
	return map[string][]byte{
		"IPv4":                     unhex(t, addresses+"0800"+payload),
		"IPv4 behind VLAN tags":    unhex(t, addresses+"88a8 0064 8100 0065 0800"+payload),
		"an unassigned EtherType":  unhex(t, addresses+"9900 2b85 0800"+payload),
		"another one behind VLAN":  unhex(t, addresses+"8100 0064 ccdd 2b85 0800"+payload),
		"MACsec":                   unhex(t, addresses+"88e5 2c00 00000001 8100 0064 88b5 2b85 0800"+payload),
		"VLAN tag before MACsec":   unhex(t, addresses+"8100 0064 88e5 2c00 00000001 88b5 2b85 0800"+payload),
		"a length":                 unhex(t, addresses+"0026 424203 88b5 2b85"),
		"three VLAN tags":          unhex(t, addresses+"88a8 0064 8100 0065 8100 0066 88b5 2b85 0800"+payload),
		"the shortest that can be": unhex(t, addresses+"0800"),
	}
}

// Rules 2 and 3: such frames are neither read nor changed, and no tag is put into malformed ones.
func TestRules2And3OtherFramesStayAsTheyAre(t *testing.T) {
	for name, frame := range malformed(t) {
		if f, s := lab.Parse(frame); s != Malformed || f != (Found{}) {
			t.Errorf("%s: %+v, status %v, want malformed", name, f, s)
		}
		if _, err := lab.Insert(nil, frame, NewTag(Compact, Delay)); err != ErrMalformed {
			t.Errorf("%s: a tag is put into it: %v", name, err)
		}
	}
	for name, frame := range foreign(t) {
		if f, s := lab.Parse(frame); s != Foreign || f != (Found{}) {
			t.Errorf("%s: %+v, status %v, want foreign", name, f, s)
		}
		before := bytes.Clone(frame)
		if rest, _, s := lab.Strip(frame); s != Foreign || !bytes.Equal(rest, before) {
			t.Errorf("%s: %x after a tag should be taken off", name, rest)
		}
		_, err := lab.Insert(nil, frame, NewTag(Compact, Delay))
		if want := map[bool]error{true: ErrTooManyVLANs}[name == "three VLAN tags"]; err != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if _, err := lab.Insert(nil, unhex(t, addresses+"88b5 2b85 0800"), NewTag(Wide, Delay)); err != ErrTagged {
		t.Errorf("a second tag: %v", err)
	}
}

// Who ends MACsec sees the tag behind SecTAG and VLAN tag.
func TestMACsecIsTakenOffFirst(t *testing.T) {
	sec := unhex(t, addresses+"88e5 2c00 00000001 8100 0064 88b5 2b85 0800"+payload)
	open := append(bytes.Clone(sec[:12]), sec[20:]...)
	if f, s := lab.Parse(open); s != Tagged || f.Offset != 16 || f.Code != 23 {
		t.Errorf("%+v, status %v", f, s)
	}
}

func TestEtherTypesAreChecked(t *testing.T) {
	for _, c := range []struct {
		e    EtherTypes
		want string
	}{
		{EtherTypes{}, "there is no default"}, {EtherTypes{Compact: 0x0800}, "IPv4"}, {EtherTypes{Wide: 0x8100}, "wide: 0x8100 is the EtherType of 802.1Q"},
		{EtherTypes{0x88b5, 0x88b5}, "is that of compact tags as well"}, {EtherTypes{Compact: 0x05ff}, "from 0x0600"},
		{EtherTypes{Compact: 0x0600}, ""}, {lab, ""}, {EtherTypes{Wide: 0x88b5}, ""},
	} {
		err := c.e.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.e, err, c.want)
		}
	}
	// A length is never the EtherType of a tag, also where a format has none.
	if _, s := (EtherTypes{Wide: 0x88b6}).Parse(unhex(t, addresses+"0000 2b85 0800")); s != Foreign {
		t.Errorf("length 0: status %v", s)
	}
}

// Random frames with tags come back octet for octet, in any number of VLAN tags.
func TestRandomFrames(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var list [][]byte
	for _, h := range headers {
		list = append(list, unhex(t, h))
	}
	for range 100_000 {
		plain := append(bytes.Clone(list[rng.IntN(len(list))]), 0x08, 0x00)
		for range rng.IntN(40) {
			plain = append(plain, byte(rng.Uint32()))
		}
		f := Formats[rng.IntN(2)]
		var value [8]byte
		binary.BigEndian.PutUint64(value[:], rng.Uint64())
		tag := referenceTag(f, value[:6])
		tagged, err := lab.Insert(make([]byte, 0, 100), plain, tag)
		if err != nil {
			t.Fatal(err)
		}
		if at := len(tagged) - len(plain); at != int(f) {
			t.Fatalf("%d octets more, want %d", at, f)
		}
		if rest, got, s := lab.Strip(tagged); s != Tagged || got.Tag != tag || !bytes.Equal(rest, plain) {
			t.Fatalf("%+v comes back as %+v, %x as %x", tag, got, plain, rest)
		}
	}
}
