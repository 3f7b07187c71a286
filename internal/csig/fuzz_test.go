package csig

import (
	"bytes"
	"testing"
)

// FuzzFrame checks that a frame of any octets is parsed alike before and after its tag is written back, taken off and put in
// again; that a port changes nothing but code and locator of a tag with a rule; that no frame grows by more than a tag; and
// that ports and tunnels take any frame.
func FuzzFrame(f *testing.F) {
	for _, frame := range malformed(f) {
		f.Add(frame, uint8(14))
	}
	for _, frame := range foreign(f) {
		f.Add(frame, uint8(50))
	}
	for _, h := range headers {
		f.Add(unhex(f, h+"88b5 2b85 0800"+payload), uint8(0))
		f.Add(unhex(f, h+"88b6 beef 21234500 0800"+payload), uint8(14))
	}
	f.Add(append(vxlanHeaders(f, "", 1, 34), unhex(f, addresses+"88b5 5b85 0800"+payload)...), uint8(50))
	p := testProfile(f, "dnu: r\n")
	f.Fuzz(func(t *testing.T, frame []byte, headersLen uint8) {
		before := bytes.Clone(frame)
		found, s := lab.Parse(frame)
		if s == Tagged {
			found.Put(frame)
		}
		if !bytes.Equal(frame, before) {
			t.Fatalf("%x was written back as %x", before, frame)
		}
		if rest, again, status := lab.Strip(bytes.Clone(frame)); status != s || again != found {
			t.Fatalf("%+v, %v taken off, %+v, %v read", again, status, found, s)
		} else if s == Tagged {
			// Behind the tag, a third VLAN tag cannot be, so that the rest has at most two of them.
			back, err := lab.Insert(nil, rest, found.Tag)
			if err != nil || !bytes.Equal(back, before) {
				t.Fatalf("%x came back as %x, %v", before, back, err)
			}
		} else if !bytes.Equal(rest, before) {
			t.Fatalf("%x has no tag, and became %x", before, rest)
		}

		port := p.NewPort(PortOptions{Name: "sw:1", Speed: gigabit}, 0)
		out, o := port.Transmit(frame, 0, Waiting{Delay: Nanos{1 << 40, true}})
		switch {
		case (o == Updated) == bytes.Equal(out, before), (s == Foreign) != (o == NoTag), (s == Malformed) != (o == BadTag):
			t.Fatalf("%x, status %v, became %x, %v", before, s, out, o)
		case o == Updated:
			after, _ := lab.Parse(out)
			want := found
			want.Code, want.Locator = after.Code, port.locators[found.Format.index()]
			want.Put(before)
			if after != want || !bytes.Equal(out, before) {
				t.Fatalf("%+v became %+v", found, after)
			}
		}

		tunnel := &Tunnel{EtherTypes: lab}
		headers := vxlanHeaders(t, "", 1, len(out))
		outer, _, err := tunnel.Encap(nil, headers, bytes.Clone(out))
		if err != nil || len(outer) != len(headers)+len(out) {
			t.Fatalf("encap: %d octets of %d, %v", len(outer), len(out), err)
		}
		inner, moved, err := tunnel.Decap(nil, outer, len(headers))
		if err == nil && !bytes.Equal(inner, out) && moved != BadTag {
			t.Fatalf("%x came out of a tunnel as %x, %v", out, inner, moved)
		}
		if inside, _, err := tunnel.Decap(nil, out, int(headersLen)); err == nil && len(inside) > len(out)+int(Wide) {
			t.Fatalf("decap: %d octets of %d", len(inside), len(out))
		}
		_, _, _ = tunnel.TurnAround(nil, out, int(headersLen), headers)
	})
}

// FuzzProfile checks that any text is either refused with a field error or a profile whose scales are valid and whose hash
// does not change.
func FuzzProfile(f *testing.F) {
	f.Add(fbossProfile)
	for _, c := range badProfiles {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseProfile("csig.yml", []byte(text))
		if err != nil {
			if _, ok := err.(*FieldError); !ok { //nolint:errorlint // it is not wrapped
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		for s := range Signal(Signals) {
			if table := p.Tables[s]; table != nil && table.Validate() != nil {
				t.Fatalf("%v: %v", s, table.Validate())
			}
			if steps := p.Steps[s]; steps != nil && steps.Validate() != nil {
				t.Fatalf("%v: %v", s, steps.Validate())
			}
		}
		if again, err := ParseProfile("again.yml", []byte(text)); err != nil || again.Hash() != p.Hash() || p.EtherTypes.Validate() != nil {
			t.Fatalf("%v, hashes %s and %s", err, p.Hash(), again.Hash())
		}
	})
}
