package bpf

import (
	"bytes"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/csig"
)

// Rule 5: a port whose speed is not known passes tags, of all signals.
func TestRule5UnknownSpeedPasses(t *testing.T) {
	p := parseProfile(t, "interval: 1ms\n")
	config, err := configOf(p, &SwitchPort{Name: "sw:1"})
	if err != nil {
		t.Fatal(err)
	}
	x := newTransit(t, p, &config, 0)
	var want Counts
	for _, f := range csig.Formats {
		for s := range csig.Delay + 1 {
			frame, err := etherTypes.Insert(nil, udpFrame(a4, b4, probe(1, 44, 0)), csig.NewTag(f, s))
			if err != nil {
				t.Fatal(err)
			}
			if got, routed, err := x.cross(frame, 1<<30); err != nil || !routed || !bytes.Equal(got, frame) {
				t.Errorf("%v %v: %x became %x, %t, %v", f, s, frame, got, routed, err)
			}
			want.Outcomes[csig.Passed]++
		}
	}
	if got, err := readCounts(x.e.counts); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// Rule 4: packets for which the queue has no room do not count, and do not make those after them wait longer.
func TestRule4FullQueueDoesNotCount(t *testing.T) {
	p := parseProfile(t, "interval: 100ms\n")
	config, err := configOf(p, &SwitchPort{Name: "sw:1", Speed: 8_000_000}) // an octet takes a microsecond
	if err != nil {
		t.Fatal(err)
	}
	config.Limit = 5_000_000 // 5,000 octets
	x := newTransit(t, p, &config, 0)
	frame, err := etherTypes.Insert(nil, udpFrame(a4, b4, probe(1, 950, 0)), csig.NewTag(csig.Wide, csig.Delay)) // 1,000 octets
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		got, _, err := x.cross(bytes.Clone(frame), 1000)
		if err != nil {
			t.Fatal(err)
		}
		want := min(uint64(i+1), 6) * 1_000_000 // the seventh one is like the sixth: both find no room
		found, _ := etherTypes.Parse(got)
		if r, ok := p.Decode(&found.Tag); !ok || !r.Contains(want) {
			t.Errorf("packet %d: delay %+v ns, want %d", i, r, want)
		}
	}
	var state portState
	if err := x.e.state.Lookup(uint32(0), &state); err != nil || state.Current != 5000 || state.Free != 1000+5_000_000 {
		t.Errorf("%+v, %v: 5,000 octets within 5 ms are expected", state, err)
	}
}

func TestConfigOfPort(t *testing.T) {
	p := parseProfile(t, "interval: 1ms\n")
	if _, err := configOf(p, &SwitchPort{Name: "sw:1", Speed: maxSpeed + 1}); err == nil || !strings.Contains(err.Error(), "port sw:1: speed of") {
		t.Errorf("%v", err)
	}
	c, err := configOf(p, &SwitchPort{Name: "sw:1", Speed: 1e9, Overhead: csig.FrameOverhead})
	if err != nil {
		t.Fatal(err)
	}
	for want, tbf := range map[string]*netlink.Tbf{
		"TBF: a rate is expected": {},
		"octets/s: at most":       {Rate: maxSpeed/8 + 1},
	} {
		if err := c.shape(tbf); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// 10 ms of rate saved up, 20 ms of queue.
	if err := c.shape(&netlink.Tbf{Rate: 1_000_000, Limit: 20_000, Buffer: uint32(10_000 * netlink.TickInUsec())}); err != nil {
		t.Fatal(err)
	}
	if c.Speed != 8_000_000 || c.Burst/1000 != 10_000 || c.Limit != 20_000_000 || c.Overhead != 0 {
		t.Errorf("speed %d, burst %d, limit %d, overhead %d", c.Speed, c.Burst, c.Limit, c.Overhead)
	}
}

// TestSpeedFollowsBucket checks that a port has the speed of its token bucket while it has one.
func TestSpeedFollowsBucket(t *testing.T) {
	n := buildNetwork(t, chain, parseProfile(t, "interval: 1ms\n"), nil)
	s := n.switches["sw"]
	check := func(want uint64) {
		t.Helper()
		if err := s.RefreshSpeeds(); err != nil {
			t.Fatal(err)
		}
		if got, other := s.SpeedOf("sw:1"), s.SpeedOf("sw:2"); got != want || other != 1e9 {
			t.Errorf("speeds %d and %d, want %d and that of the link", got, other, want)
		}
	}
	check(1e9)
	n.bucket("sw:1", 16_000_000, 3200, 10_000)
	check(16_000_000)
	n.bucket("sw:1", 8_000_000, 3200, 10_000)
	check(8_000_000)
	n.clearBucket("sw:1")
	check(1e9)
	if got := s.SpeedOf("sw:9"); got != 0 {
		t.Errorf("a port that is not there has speed %d", got)
	}
}
