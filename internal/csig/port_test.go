package csig

import (
	"bytes"
	"math"
	"testing"
	"time"
)

// testProfile returns a profile of 100 Gbit/s with both formats, windows of a millisecond, and ports sw:1 and sw:2.
func testProfile(t testing.TB, more string) *Profile {
	t.Helper()
	p, err := ParseProfile("csig.yml", []byte(`
ethertypes: {compact: 0x88b5, wide: 0x88b6}
interval: 1ms
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

const gigabit = 1_000_000_000

// Rule 8: the rate is that of the last whole window.
func TestRule8RateWindow(t *testing.T) {
	w := NewRateWindow(time.Millisecond, 1000)
	check := func(now int64, octets, want uint64) {
		t.Helper()
		w.Advance(now)
		if got := w.Rate(); got != want {
			t.Errorf("at %d: %d bit/s, want %d", now, got, want)
		}
		w.Add(octets)
	}
	check(1000, 125, 0)
	check(1_000_999, 125, 0)      // the first window has not ended
	check(1_001_000, 1, 2e6)      // 250 octets in a millisecond
	check(2_000_999, 1, 2e6)      // the second one has not ended
	check(2_001_000, 0, 16_000)   // 2 octets
	check(2_000_000, 10, 16_000)  // a time before the window belongs to it
	check(3_001_000, 125, 80_000) // 10 octets
	check(5_001_000, 7, 0)        // a whole window was empty
	check(6_001_000, 0, 56_000)   // 7 octets
	check(1<<62, 0, 0)
	short := NewRateWindow(100*time.Nanosecond, 0)
	short.Add(math.MaxUint64)
	if short.Advance(100); short.Rate() != math.MaxUint64 {
		t.Errorf("a rate that does not fit is %d", short.Rate())
	}
}

func TestAvailable(t *testing.T) {
	for _, c := range []struct{ speed, rate, bandwidth, share uint64 }{
		{100, 0, 100, Million}, {100, 100, 0, 0}, {100, 101, 0, 0}, {3, 2, 1, 333_333}, {0, 0, 0, 0}, {maxRate, 1, maxRate - 1, Million - 1}, {math.MaxUint64, 0, math.MaxUint64, Million},
	} {
		if b, s := available(c.speed, c.rate); b != c.bandwidth || s != c.share {
			t.Errorf("%d of %d: %d and %d, want %d and %d", c.rate, c.speed, b, s, c.bandwidth, c.share)
		}
	}
}

// A port writes what its last window left of its speed, and its delay and queue where they are known.
func TestPortUpdates(t *testing.T) {
	p := testProfile(t, "compact: {3: {edges: [0, 1us, 10us]}}\nwide: {3: {step: 64ns}}\n")
	for _, f := range Formats {
		port := p.NewPort(PortOptions{Name: "sw:1", Speed: 100 * gigabit, Overhead: FrameOverhead}, 0)
		locator := map[Format]uint16{Compact: 5, Wide: 500}[f]
		send := func(s Signal, now int64, w Waiting) (Tag, Outcome) {
			t.Helper()
			frame, err := lab.Insert(nil, unhex(t, addresses+"0800"+payload), NewTag(f, s))
			if err != nil {
				t.Fatal(err)
			}
			out, o := port.Transmit(frame, now, w)
			got, _ := lab.Parse(out)
			return got.Tag, o
		}
		if tag, o := send(Share, 0, Waiting{}); f == Compact && (o != Kept || tag != NewTag(f, Share)) || f == Wide && (o != Updated || tag.Code != Million) {
			t.Errorf("%v: %+v, %v before the first window has ended", f, tag, o)
		}
		port.window.Add(6_250_000) // 50 Gbit/s for a millisecond, and the tagged frame
		for s, want := range map[Signal]uint64{Bandwidth: 50 * gigabit, Share: Million / 2} {
			tag, o := send(s, 1_000_000, Waiting{})
			if used := uint64(34+int(f)+FrameOverhead) * 8000; s == Bandwidth {
				want -= used
			} else {
				want = (50*gigabit - used) * Million / (100 * gigabit)
			}
			if r, ok := p.Decode(&tag); !ok || o != Updated || tag.Locator != locator || !r.Contains(want) {
				t.Errorf("%v %v: %+v, %v, %+v", f, s, tag, o, r)
			}
		}
		for _, s := range []Signal{Delay, Queue} {
			if tag, o := send(s, 1_000_001, Waiting{}); o != Passed || tag != NewTag(f, s) {
				t.Errorf("%v %v: %+v, %v with an unknown wait", f, s, tag, o)
			}
			w := Waiting{Delay: Nanos{5000, true}, Queue: Nanos{5000, true}}
			if tag, o := send(s, 1_000_001, w); o != Updated || tag.Locator != locator {
				t.Errorf("%v %v: %+v, %v", f, s, tag, o)
			} else if r, ok := p.Decode(&tag); !ok || !r.Contains(5000) {
				t.Errorf("%v %v: %+v stands for %+v", f, s, tag, r)
			}
		}
	}
}

// Rules 2, 3 and 6 at a port: such frames leave as they came, and are counted.
func TestPortPassesFramesOn(t *testing.T) {
	p := testProfile(t, "dnu: r\n")
	port := p.NewPort(PortOptions{Name: "sw:1", Speed: gigabit}, 0)
	other := p.NewPort(PortOptions{Name: "sw:3", Speed: gigabit}, 0)
	passing := p.NewPort(PortOptions{Name: "sw:1", Speed: gigabit, Action: PassTags}, 0)
	for _, port := range []*Port{port, other, passing} {
		port.window.Add(1 << 40)
		port.Transmit(unhex(t, addresses+"0800"), 1_000_000, Waiting{}) // nothing is left of the speed now
		port.Counts = [Outcomes]uint64{}
	}
	check := func(port *Port, frame []byte, want Outcome) {
		t.Helper()
		before, counts := bytes.Clone(frame), port.Counts
		counts[want]++
		out, o := port.Transmit(frame, 1_000_001, Waiting{Delay: Nanos{1000, true}, Queue: Nanos{1000, true}})
		if o != want || port.Counts != counts || (o != Updated) != bytes.Equal(out, before) {
			t.Errorf("%x: %v, %x; want %v", before, o, out, want)
		}
	}
	for _, frame := range malformed(t) {
		check(port, frame, BadTag)
	}
	for _, frame := range foreign(t) {
		check(port, frame, NoTag)
	}
	for _, f := range Formats {
		for s := range Signal(16) {
			for _, reserved := range []uint8{0, 1, 0x80} {
				tag := Tag{Format: f, Signal: s, Code: 9, Locator: 99, Reserved: reserved}
				if f == Compact && (s > 7 || reserved > 1) {
					continue
				}
				frame := func() []byte {
					b, err := lab.Insert(nil, unhex(t, addresses+"8100 0064 0800"+payload), tag)
					if err != nil {
						t.Fatal(err)
					}
					return b
				}
				want := Updated
				switch {
				case s > Delay: // the profile has no scale for queues
					want = UnknownSignal
				case f == Compact && reserved == 1: // dnu
					want = Passed
				case s == Delay && f == Compact:
					want = Kept // 1 us has code 5
				case s == Delay && f == Wide:
					want = Kept // 1 us has code 7
				}
				check(port, frame(), want)
				after := frame()
				port.Transmit(after, 1_000_001, Waiting{})
				if got, _ := lab.Parse(after); got.Reserved != reserved || got.Signal != s {
					t.Errorf("%+v became %+v", tag, got)
				}
				if want != UnknownSignal {
					want = Passed
				}
				check(other, frame(), want)
				check(passing, frame(), want)
			}
		}
	}
}

// A port towards a neighbour that drops tagged frames takes every well-formed tag off.
func TestPortStrips(t *testing.T) {
	p := testProfile(t, "")
	port := p.NewPort(PortOptions{Name: "sw:1", Speed: gigabit, Action: StripTags}, 0)
	plain := unhex(t, addresses+"8100 0064 0800"+payload)
	for _, s := range []Signal{Delay, 7} {
		frame, err := lab.Insert(nil, plain, NewTag(Compact, s))
		if err != nil {
			t.Fatal(err)
		}
		if out, o := port.Transmit(frame, 0, Waiting{}); o != Stripped || !bytes.Equal(out, plain) {
			t.Errorf("%v: %v, %x", s, o, out)
		}
	}
	for _, frame := range malformed(t) {
		before := bytes.Clone(frame)
		if out, o := port.Transmit(frame, 0, Waiting{}); o != BadTag || !bytes.Equal(out, before) {
			t.Errorf("%x: %v, %x", before, o, out)
		}
	}
}

func TestDoNotUpdateBitOfWideTags(t *testing.T) {
	p := testProfile(t, "dnu: res7\n")
	port := p.NewPort(PortOptions{Name: "sw:1", Speed: gigabit}, 0)
	for reserved, want := range map[uint8]Outcome{0: Updated, 0x7f: Updated, 0x80: Passed, 0xff: Passed} {
		tag := Tag{Format: Wide, Signal: Share, Code: Wide.MaxCode(), Reserved: reserved}
		frame, err := lab.Insert(nil, unhex(t, addresses+"0800"), tag)
		if err != nil {
			t.Fatal(err)
		}
		if _, o := port.Transmit(frame, 0, Waiting{}); o != want {
			t.Errorf("reserved %#x: %v, want %v", reserved, o, want)
		}
	}
}

// A source takes turns between its signals.
func TestSourceTakesTurns(t *testing.T) {
	s := NewSource(Wide, Share, Delay)
	for i, want := range []Signal{Share, Delay, Share, Delay} {
		if got := s.NextTag(); got != NewTag(Wide, want) {
			t.Errorf("packet %d: %+v, want %v", i, got, want)
		}
	}
}
