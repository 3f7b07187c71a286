package signals

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/unix"
	"github.com/graylink/graylink/internal/unix/vethtest"
)

const text = `ethertypes: {compact: 0x88b5, wide: 0x88b6}
interval: 1ms
fastest_gbps: 100
locators:
  compact: {"leaf1:up1": 1}
  wide: {"leaf1:up1": 1}
`

// newCaptures returns captures that observe so many flows, and their log.
func newCaptures(t *testing.T, flows int) (*Captures, *syncedText) {
	t.Helper()
	p, err := csig.ParseProfile("csig.yml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	log := &syncedText{}
	return New(p, flows, slog.New(slog.NewTextHandler(log, nil))), log
}

// syncedText is a text that several goroutines may write.
type syncedText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *syncedText) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// count returns the lines that contain a text.
func (s *syncedText) count(part string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range strings.Lines(s.text.String()) {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

// config returns a configuration of own NICs with h1/eth1 (10.0.0.1) as peer.
func config(nics ...probe.NICConfig) *probe.Config {
	return &probe.Config{Node: "h2", Stamp: probe.StampConfig{Port: 862, SourcePort: 49152}, NICs: nics,
		Peers: []probe.PeerConfig{{NIC: "h1/eth1", Address: netip.MustParseAddr("10.0.0.1")}, {NIC: "h1/ib0"}}}
}

// eth1 is the NIC that is the far interface.
var eth1 = probe.NICConfig{NIC: "h2/eth1", Device: vethtest.Far, Address: netip.MustParseAddr("10.0.0.2")}

// frame returns a frame from an address to 10.0.0.2 with a tag (share): a probe of flow 3 with a compact one, or data with a wide one.
func frame(t *testing.T, from string, data bool) []byte {
	t.Helper()
	tag, udp := "88b52b81", "c003035e00080000"
	if data {
		tag, udp = "88b6000110000a00", "c00312b700080000"
	}
	f, err := hex.DecodeString("020000000002020000000001" + tag + "0800" + "4500001c0000000040110000")
	if err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddr(from).As4()
	f = append(append(f, a[:]...), 10, 0, 0, 2)
	end, err := hex.DecodeString(udp)
	if err != nil {
		t.Fatal(err)
	}
	return append(f, end...)
}

// describe returns what is observed, as "flow: packets" and "NIC reason: tags".
func describe(s *observe.Stats) (out []string) {
	for _, f := range s.Flows {
		name := fmt.Sprintf("%s>%s#%d", f.Src, f.Dst, f.Number)
		if f.Data {
			name = fmt.Sprintf("%s>%s data", f.Src, f.Dst)
		}
		n := uint64(0)
		for _, p := range f.Directions[0].Packets {
			n += p.Packets
		}
		out = append(out, fmt.Sprintf("%s: %d", name, n))
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

// send sends frames from the near interface, and waits until the captures count so many and have read them.
func send(t *testing.T, c *Captures, near int, counted uint64, frames ...[]byte) {
	t.Helper()
	from, err := unix.OpenPacket(0, 0, 64)
	if err != nil {
		t.Error(err)
		return
	}
	defer from.Close()
	for _, f := range frames {
		if err := from.Send(near, f); err != nil {
			t.Error(err)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s, read, captured := c.Stats(), uint64(0), uint64(0)
		for _, f := range s.Flows {
			for _, p := range f.Directions[0].Packets {
				read += p.Packets
			}
		}
		for _, n := range s.NICs {
			for _, d := range n.Dropped {
				read += d
			}
			captured += n.Capture.Packets
		}
		if captured >= counted && read >= counted {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%d frames were captured and %d read within a minute: want %d", captured, read, counted)
			return
		}
	}
}

// end ends captures.
func end(t *testing.T, c *Captures) {
	t.Helper()
	if c.captureDevices(nil); len(c.nics) != 0 || len(c.Stats().NICs) != 0 {
		t.Errorf("%d NICs are captured, and %+v is published", len(c.nics), c.Stats().NICs)
	}
}

// TestRule2SendersAreThoseOfTheConfiguration sends tagged frames to a NIC, before and after a change of the configuration.
func TestRule2SendersAreThoseOfTheConfiguration(t *testing.T) {
	c, _ := newCaptures(t, 4)
	vethtest.Run(t, func(near, _ int) {
		defer end(t, c)
		c.update(config(eth1))
		own, data, other := frame(t, "10.0.0.1", false), frame(t, "10.0.0.1", true), frame(t, "10.0.0.9", true)
		send(t, c, near, 5, own, own, own, data, other)
		want := []string{"h1/eth1>h2/eth1 data: 1", "h1/eth1>h2/eth1#3: 3", "h2/eth1 stranger: 1"}
		if got := describe(c.Stats()); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		changed := config(eth1)
		changed.Peers = append(changed.Peers, probe.PeerConfig{NIC: "h9/eth1", Address: netip.MustParseAddr("10.0.0.9")})
		c.update(changed)
		send(t, c, near, 7, own, other)
		want = []string{"h1/eth1>h2/eth1 data: 1", "h1/eth1>h2/eth1#3: 4", "h9/eth1>h2/eth1 data: 1", "h2/eth1 stranger: 1"}
		if got := describe(c.Stats()); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// TestFlowsAreBounded checks that not more flows are observed than wanted.
func TestFlowsAreBounded(t *testing.T) {
	c, _ := newCaptures(t, 1)
	vethtest.Run(t, func(near, _ int) {
		defer end(t, c)
		c.update(config(eth1))
		send(t, c, near, 2, frame(t, "10.0.0.1", false), frame(t, "10.0.0.1", false))
		send(t, c, near, 3, frame(t, "10.0.0.1", true))
		if got, want := describe(c.Stats()), []string{"h1/eth1>h2/eth1#3: 2", "h2/eth1 limit: 1"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// setAddress gives the far interface an address.
func setAddress(t *testing.T, address string) {
	t.Helper()
	l, err := netlink.LinkByName(vethtest.Far)
	if err == nil {
		var a *netlink.Addr
		if a, err = netlink.ParseAddr(address); err == nil {
			err = netlink.AddrAdd(l, a)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// packetSockets returns how many packet sockets the kernel has for tags at an interface (net/packet/af_packet.c, packet_seq_show).
func packetSockets(t *testing.T, ifindex int) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/packet")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 4 && (f[3] == "88b5" || f[3] == "88b6") && f[4] == strconv.Itoa(ifindex) {
			n++
		}
	}
	return n
}

// TestRules1And3 checks which NICs are captured, of which some are no interfaces, and that each failure is logged once.
func TestRules1And3(t *testing.T) {
	c, log := newCaptures(t, 4)
	byAddress := probe.NICConfig{NIC: "h2/eth2", Address: netip.MustParseAddr("10.0.0.2")}
	nowhere := probe.NICConfig{NIC: "h2/eth3", Device: "nosuch0", Address: netip.MustParseAddr("10.0.0.3")}
	both := probe.NICConfig{NIC: "h2/eth4", Device: vethtest.Far, Address: netip.MustParseAddr("10.0.0.4")}
	infiniBand := probe.NICConfig{NIC: "h2/ib0", Device: "mlx5_0/1"}
	vethtest.Run(t, func(_, far int) {
		check := func(cfg *probe.Config, sockets int, want ...string) {
			t.Helper()
			for range 3 {
				c.update(cfg)
			}
			var got []string
			for nic, n := range c.nics {
				got = append(got, nic+" at "+n.device)
			}
			if slices.Sort(got); !slices.Equal(got, want) || packetSockets(t, far) != sockets {
				t.Errorf("%q with %d sockets at the interface, want %q with %d", got, packetSockets(t, far), want, sockets)
			}
		}
		defer end(t, c)
		cfg := config(byAddress, nowhere, infiniBand)
		check(cfg, 0, "h2/eth3 at nosuch0")
		setAddress(t, "10.0.0.2/24")
		check(cfg, 2, "h2/eth2 at far", "h2/eth3 at nosuch0")
		check(config(byAddress, both), 2, "h2/eth2 at far")
		check(config(both), 2, "h2/eth4 at far")
		check(config(), 0)
	})
	if a, b := log.count("no interface has the address"), log.count("nosuch0"); a != 1 || b != 2 {
		t.Errorf("%d lines of a NIC without an interface, want 1; %d of an interface that is not there, want one for each format", a, b)
	}
}

// TestRunFollowsTheConfiguration checks that Run captures what the configuration has at each moment, and ends all with its context.
func TestRunFollowsTheConfiguration(t *testing.T) {
	loopback, err := net.InterfaceByIndex(1)
	if err != nil {
		t.Fatal(err) // every namespace has it
	}
	c, _ := newCaptures(t, 4)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	cfg := config()
	running := func() *probe.Config {
		mu.Lock()
		defer mu.Unlock()
		return cfg
	}
	var ended sync.WaitGroup
	ended.Go(func() { c.Run(ctx, running) })
	wait := func(n int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); len(c.Stats().NICs) != n; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v within a minute, want %d NICs", c.Stats().NICs, n)
			}
		}
	}
	wait(0)
	mu.Lock()
	cfg = config(probe.NICConfig{NIC: "h2/lo", Device: loopback.Name, Address: netip.MustParseAddr("127.0.0.1")})
	mu.Unlock()
	wait(1)
	cancel()
	ended.Wait()
	wait(0)
}
