package capture

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
)

const text = `ethertypes: {compact: 0x88b5, wide: 0x88b6}
interval: 1ms
fastest_gbps: 100
locators:
  compact: {"leaf1:up1": 1, "leaf1:up2": 2, "spine1:dn1": 3}
  wide: {"leaf1:up1": 1, "leaf1:up2": 2, "spine1:dn1": 3}
`

func profile(t testing.TB) *csig.Profile {
	t.Helper()
	p, err := csig.ParseProfile("csig.yml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// nics are the registered NICs by address. h2/eth1 has two.
var nics = map[string]string{"10.0.0.1": "h1/eth1", "10.0.0.2": "h2/eth1", "fd00::2": "h2/eth1"}

func newReader(t testing.TB, o observe.Options) *Reader {
	nicOf := func(a netip.Addr) string { return nics[a.String()] }
	return NewReader(profile(t), Options{Observe: o, NICOf: nicOf, StampPort: 862, SourcePort: 49152})
}

// seconds returns a time of the tests.
func seconds(s float64) int64 { return int64(1e12 + s*1e9) }

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Parts of frames.
const (
	macs    = "020000000002 020000000001 "
	compact = "88b5 2b81 "          // share, code 23, locator 1: 56 to 60 %
	wide    = "88b6 0003 00000500 " // bandwidth, code 5, locator 3
	ip4     = "0800 4500001c 0000 0000 4011 0000 0a000001 0a000002 "
	back4   = "0800 4500001c 0000 0000 4011 0000 0a000002 0a000001 "
	from9   = "0800 4500001c 0000 0000 4011 0000 0a000009 0a000002 "
	to9     = "0800 4500001c 0000 0000 4011 0000 0a000001 0a000009 "
	options = "0800 4600001c 0000 0000 4011 0000 0a000001 0a000002 01010101 "
	second  = "0800 4500001c 0000 0001 4011 0000 0a000001 0a000002 "
	tcp     = "0800 4500001c 0000 0000 4006 0000 0a000001 0a000002 "
	ip6     = "86dd 60000000 0008 1140 00000000000000000000ffff0a000001 fd000000000000000000000000000002 "
	from6   = "86dd 60000000 0008 1140 fd000000000000000000000000000002 fd000000000000000000000000000002 "
	probe3  = "c003 035e 0008 0000" // from flow 3 to the reflector
	reply3  = "035e c003 0008 0000"
	last    = "c0ff 035e 0008 0000" // flow 255
	beyond  = "c100 035e 0008 0000"
	before  = "bfff 035e 0008 0000"
	roce    = "c003 12b7 0008 0000"
)

// describe returns what the tags said, as "flow direction signal format locator".
func describe(s *observe.Stats) (out []string) {
	for _, f := range s.Flows {
		name := fmt.Sprintf("%s>%s#%d", f.Src, f.Dst, f.Number)
		if f.Data {
			name = fmt.Sprintf("%s>%s", f.Src, f.Dst)
		}
		for i, d := range f.Directions {
			for _, c := range d.Packets {
				out = append(out, fmt.Sprintf("%s %s %v %v %d: %d", name, [2]string{"forward", "reverse"}[i], c.Signal, c.Format, c.Locator, c.Packets))
			}
		}
	}
	for _, n := range s.NICs {
		for _, why := range observe.Reasons() {
			if n.Dropped[why] > 0 {
				out = append(out, fmt.Sprintf("%s %v: %d", n.NIC, why, n.Dropped[why]))
			}
		}
	}
	return out
}

func TestFrames(t *testing.T) {
	for _, tt := range []struct{ name, frame, want string }{
		{"a probe", macs + compact + ip4 + probe3, "h1/eth1>h2/eth1#3 forward share compact 1: 1"},
		{"a reply", macs + compact + back4 + reply3, "h1/eth1>h2/eth1#3 reverse share compact 1: 1"},
		{"a reply of the other side's flow", macs + compact + ip4 + reply3, "h2/eth1>h1/eth1#3 reverse share compact 1: 1"},
		{"the last number", macs + compact + ip4 + last, "h1/eth1>h2/eth1#255 forward share compact 1: 1"},
		{"a port beyond the last", macs + compact + ip4 + beyond, "h1/eth1>h2/eth1 forward share compact 1: 1"},
		{"a port before the first", macs + compact + ip4 + before, "h1/eth1>h2/eth1 forward share compact 1: 1"},
		{"data", macs + wide + ip4 + roce, "h1/eth1>h2/eth1 forward bandwidth wide 3: 1"},
		{"TCP with a probe's ports", macs + wide + tcp + probe3, "h1/eth1>h2/eth1 forward bandwidth wide 3: 1"},
		{"a fragment that is not the first", macs + wide + second + probe3, "h1/eth1>h2/eth1 forward bandwidth wide 3: 1"},
		{"IP options", macs + wide + options + probe3, "h1/eth1>h2/eth1#3 forward bandwidth wide 3: 1"},
		{"no ports", macs + wide + ip4 + "c0", "h1/eth1>h2/eth1 forward bandwidth wide 3: 1"},
		{"VLAN", macs + "8100 0007 " + compact + ip4 + probe3, "h1/eth1>h2/eth1#3 forward share compact 1: 1"},
		{"two VLANs", macs + "88a8 0007 8100 0008 " + compact + ip4 + probe3, "h1/eth1>h2/eth1#3 forward share compact 1: 1"},
		{"IPv6", macs + compact + from6 + probe3, "h2/eth1>h2/eth1#3 forward share compact 1: 1"},
		{"an address of IPv4 in IPv6", macs + compact + ip6 + probe3, "eth0 stranger: 1"},
		{"an unregistered sender", macs + compact + from9 + probe3, "eth0 stranger: 1"},
		{"an unregistered receiver", macs + compact + to9 + probe3, "h1/eth1>10.0.0.9#3 forward share compact 1: 1"},
		{"no IP", macs + compact + "0806 0001", "eth0 stranger: 1"},
		{"IPv4 by name only", macs + compact + "0800 60000000 0000 0000 0000 0000 00000000 00000000", "eth0 stranger: 1"},
		{"a header of 16 octets", macs + compact + "0800 4400001c 0000 0000 4011 0000 0a000001 0a000002", "eth0 stranger: 1"},
		{"a cut header", macs + compact + "0800 4500001c 0000 0000 4011", "eth0 stranger: 1"},
		{"no tag", macs + ip4 + probe3, ""},
		{"a cut tag", macs + "88b6 0003", "eth0 malformed: 1"},
		{"two tags", macs + compact + compact + ip4 + probe3, "eth0 malformed: 1"},
		{"a tag before a VLAN tag", macs + compact + "8100 0007 " + ip4 + probe3, "eth0 malformed: 1"},
		{"an unknown signal", macs + "88b5 eb81 " + ip4 + probe3, "eth0 unknown_signal: 1"},
		{"an unknown locator", macs + "88b5 2bff " + ip4 + probe3, "eth0 unknown_locator: 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newReader(t, observe.Options{})
			r.AddPlace("eth0").Take(unhex(t, tt.frame), seconds(0))
			if got := strings.Join(describe(r.Stats(seconds(0.1))), "\n"); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestWindows checks that windows follow the times of frames, also where these go back.
func TestWindows(t *testing.T) {
	r := newReader(t, observe.Options{})
	p := r.AddPlace("eth0")
	frame := unhex(t, macs+compact+ip4+probe3)
	value := func(now float64) (lower uint64) {
		v := r.Stats(seconds(now)).Flows[0].Directions[0].Last[csig.Share]
		if v.Known {
			return v.Lower
		}
		return 0
	}
	p.Take(frame, seconds(0.5))
	if v := value(0.6); v != 0 {
		t.Errorf("%d before the first window ends", v)
	}
	p.Take(frame, seconds(1.5))
	p.Take(frame, seconds(0.2))
	if v := value(1.6); v != 560_000 {
		t.Errorf("%d in the second window", v)
	}
	if v := value(0); v != 560_000 {
		t.Errorf("%d by a clock that went back", v)
	}
	if v := value(2.1); v != 560_000 {
		t.Errorf("%d in the third window", v)
	}
	if v := value(3.1); v != 0 {
		t.Errorf("%d after a window without a tag", v)
	}
}

// TestBounds checks that there are no more flows than allowed, that those without a tag are forgotten and make room, and that few addresses
// are remembered.
func TestBounds(t *testing.T) {
	r := newReader(t, observe.Options{Flows: 2})
	p := r.AddPlace("eth0")
	take := func(frame string, at float64) { p.Take(unhex(t, macs+compact+frame), seconds(at)) }
	for range 3 {
		take(ip4+probe3, 0)
		take(ip4+last, 0)
		take(ip4+roce, 0)
		take(back4+reply3, 0)
	}
	want := []string{"h1/eth1>h2/eth1#3 forward share compact 1: 3", "h1/eth1>h2/eth1#255 forward share compact 1: 3", "eth0 limit: 6"}
	if got := describe(r.Stats(seconds(1))); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	take(ip4+last, 300)
	r.Stats(seconds(601))
	take(ip4+roce, 601)
	want = []string{"h1/eth1>h2/eth1 forward share compact 1: 1", "h1/eth1>h2/eth1#255 forward share compact 1: 4", "eth0 limit: 6"}
	if got := describe(r.Stats(seconds(602))); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	frame := unhex(t, macs+compact+ip4+probe3)
	for i := range 3 * maxAddresses {
		frame[12+4+2+12+1], frame[12+4+2+12+2], frame[12+4+2+12+3] = byte(i>>16), byte(i>>8), byte(i)
		p.Take(frame, seconds(602))
		if len(r.owners) > maxAddresses+1 {
			t.Fatalf("%d addresses are remembered", len(r.owners))
		}
	}
}

// TestPlaces checks that tags that are not used are counted by the place of their capture, and that a name is one place.
func TestPlaces(t *testing.T) {
	r := newReader(t, observe.Options{})
	for _, nic := range []string{"h1/eth1", "h1/eth2", "h1/eth1"} {
		r.AddPlace(nic).Take(unhex(t, macs+compact+from9+probe3), seconds(0))
	}
	if got := describe(r.Stats(seconds(1))); !slices.Equal(got, []string{"h1/eth1 stranger: 2", "h1/eth2 stranger: 1"}) {
		t.Errorf("%q", got)
	}
}

// TestNewLocatorsOfAMinute checks that a time that goes back does not begin another minute, in which there may be new locators.
func TestNewLocatorsOfAMinute(t *testing.T) {
	r := newReader(t, observe.Options{NewLocators: 1})
	p := r.AddPlace("eth0")
	for i, minute := range []float64{2, 1, 2, 3} {
		tag := fmt.Sprintf("88b5 2b8%d ", i)
		p.Take(unhex(t, macs+tag+ip4+probe3), seconds(60*minute))
	}
	want := []string{"h1/eth1>h2/eth1#3 forward share compact 0: 1", "h1/eth1>h2/eth1#3 forward share compact 3: 1", "eth0 limit: 2"}
	if got := describe(r.Stats(seconds(180))); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestNothingAllocates checks that frames of known flows, and those that are not used, cost no memory.
func TestNothingAllocates(t *testing.T) {
	r := newReader(t, observe.Options{})
	p := r.AddPlace("eth0")
	at := seconds(0)
	for _, f := range []string{
		compact + ip4 + probe3, wide + back4 + reply3, compact + to9 + roce, compact + from9 + roce, compact + from6 + probe3, ip4, compact,
	} {
		frame := unhex(t, macs+f)
		p.Take(frame, at)
		if n := testing.AllocsPerRun(1000, func() { at += int64(10 * time.Millisecond); p.Take(frame, at) }); n != 0 {
			t.Errorf("%s: %v allocations for each frame", f, n)
		}
	}
}

// FuzzTake checks that every frame counts once or not at all, by what the codec says of it.
func FuzzTake(f *testing.F) {
	for _, s := range []string{
		compact + ip4 + probe3, wide + back4 + reply3, "8100 0007" + compact + from6 + probe3, compact + compact + ip4, options,
	} {
		f.Add(unhex(f, macs+s))
	}
	r := newReader(f, observe.Options{Flows: 8})
	p := r.AddPlace("eth0")
	at, types := seconds(0), profile(f).EtherTypes
	f.Fuzz(func(t *testing.T, frame []byte) {
		count := func() (used, dropped uint64) {
			s := r.Stats(at)
			for i := range s.Flows {
				for _, d := range s.Flows[i].Directions {
					for _, c := range d.Packets {
						used += c.Packets
					}
				}
			}
			for _, why := range observe.Reasons() {
				dropped += s.NICs[0].Dropped[why]
			}
			return used, dropped
		}
		used, dropped := count()
		p.Take(frame, at)
		usedAfter, droppedAfter := count()
		_, status := types.Parse(frame)
		want := uint64(1)
		if status == csig.Foreign {
			want = 0
		}
		if got := usedAfter + droppedAfter - used - dropped; got != want || status == csig.Malformed && usedAfter != used {
			t.Fatalf("% x, which is %v, counts %d times", frame, status, got)
		}
	})
}

// BenchmarkTake measures what a frame of one of 200 flows costs.
func BenchmarkTake(b *testing.B) {
	r := newReader(b, observe.Options{NewLocators: 1 << 20})
	p := r.AddPlace("eth0")
	frames := make([][]byte, 200)
	for i := range frames {
		frames[i] = unhex(b, macs+compact+ip4+probe3)
		frames[i][12+4+2+20+1] = byte(i)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	at := seconds(0)
	b.ReportAllocs()
	for b.Loop() {
		at += 1000
		p.Take(frames[rng.IntN(len(frames))], at)
	}
}

// TestConfigure checks that a fabric that changes changes which addresses are NICs and which packets are probes, and that a place that is
// closed is no longer counted.
func TestConfigure(t *testing.T) {
	r := newReader(t, observe.Options{})
	p := r.AddPlace("eth1")
	other := r.AddPlace("eth2")
	p.Take(unhex(t, macs+compact+from9+probe3), seconds(0.5))
	p.Take(unhex(t, macs+compact+ip4+probe3), seconds(0.5))
	r.Configure(func(a netip.Addr) string {
		return map[string]string{"10.0.0.9": "h9/eth1", "10.0.0.2": "h2/eth1"}[a.String()]
	}, 862, 49152-64)
	p.Take(unhex(t, macs+compact+from9+probe3), seconds(0.5))
	p.Take(unhex(t, macs+compact+ip4+probe3), seconds(0.5))
	want := []string{"h1/eth1>h2/eth1#3 forward share compact 1: 1", "h9/eth1>h2/eth1#67 forward share compact 1: 1", "eth1 stranger: 2"}
	if got := describe(r.Stats(0)); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	p.Close()
	if s := r.Stats(0); len(s.NICs) != 1 || s.NICs[0].NIC != "eth2" || len(s.Flows) != 2 {
		t.Errorf("%+v", s)
	}
	other.Close()
}
