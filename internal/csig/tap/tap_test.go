package tap

import (
	"encoding/hex"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/capture"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/unix"
	"github.com/graylink/graylink/internal/unix/vethtest"
)

// newReader returns a reader that knows the NICs of two addresses.
func newReader(t testing.TB) *capture.Reader {
	t.Helper()
	const text = "ethertypes: {compact: 0x88b5}\ninterval: 1ms\nfastest_gbps: 100\nlocators:\n  compact: {\"leaf1:up1\": 1}\n"
	p, err := csig.ParseProfile("csig.yml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	nics := map[string]string{"10.0.0.1": "h1/eth1", "10.0.0.2": "h2/eth1"}
	nicOf := func(a netip.Addr) string { return nics[a.String()] }
	return capture.NewReader(p, capture.Options{NICOf: nicOf, StampPort: 862, SourcePort: 49152})
}

// newTap returns a tap of the far interface.
func newTap(r *capture.Reader, buffer int) *Tap {
	return New(Options{Interface: vethtest.Far, NIC: "h2/eth1", EtherType: 0x88b5, Buffer: buffer, Place: r.AddPlace("h2/eth1"),
		Clock: NewClock(time.Now()), Log: slog.New(slog.DiscardHandler)})
}

// frame returns a frame of a probe of flow 3 with a compact tag (share, code 23, locator 1) from 10.0.0.1 to 10.0.0.2.
func frame(t testing.TB) []byte {
	t.Helper()
	const macs, tag, ip, udp = "020000000002020000000001", "88b52b810800", "4500001c0000000040110000" + "0a0000010a000002", "c003035e00080000"
	b, err := hex.DecodeString(macs + tag + ip + udp)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestInterfaceThatComesBack checks that a tap whose interface is made again reads the new one, and keeps its counts.
func TestInterfaceThatComesBack(t *testing.T) {
	reader := newReader(t)
	tp := newTap(reader, 1<<20)
	read := func(near int, want uint64) {
		from, err := unix.OpenPacket(0, 0, 64)
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		sent := false
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			if tp.readOnce() && tp.ring != nil && tp.ring.IsBound() && !sent {
				sent = true
				if err := from.Send(near, frame(t)); err != nil {
					t.Error(err)
				}
			}
			if flows := reader.Stats(0).Flows; len(flows) == 1 && flows[0].Directions[0].Packets[0].Packets == want {
				if packets, drops, err := tp.Totals(); packets != want || drops != 0 || err != nil {
					t.Errorf("%d packets, %d drops, %v", packets, drops, err)
				}
				return
			}
		}
		t.Errorf("%d frames were not read within a minute", want)
	}
	vethtest.Run(t, func(near, _ int) {
		read(near, 1)
		near, _ = vethtest.Replace(t)
		read(near, 2)
	})
	if err := tp.Close(); err != nil {
		t.Error(err)
	}
}

// TestClock checks that times of frames lie on an axis that the host's clock does not move.
func TestClock(t *testing.T) {
	c := NewClock(time.Now())
	now := c.start.Add(10 * time.Second)
	for age, want := range map[time.Duration]time.Duration{0: 0, time.Second: time.Second, -time.Hour: 0, time.Hour: 0} {
		if got := c.frameTime(now.Add(-age).UnixNano(), now); got != c.start.UnixNano()+int64(10*time.Second-want) {
			t.Errorf("a frame that is %v old: %v", age, time.Duration(got-c.start.UnixNano()))
		}
	}
}

// TestAddTotals checks that the taps of a NIC are summed up, and that a NIC without one has no counts.
func TestAddTotals(t *testing.T) {
	s := &observe.Stats{NICs: []observe.NICStats{{NIC: "h2/eth1"}, {NIC: "h2/eth2"}}}
	taps := []*Tap{{Options: Options{NIC: "h2/eth1"}, packets: 5, drops: 1}, {Options: Options{NIC: "h2/eth1"}, packets: 7, drops: 2},
		{Options: Options{NIC: "h2/eth3"}, packets: 9}}
	if err := AddTotals(s, taps); err != nil {
		t.Fatal(err)
	}
	if c := s.NICs[0].Capture; c == nil || *c != (observe.CaptureCounts{Packets: 12, Drops: 3}) || s.NICs[1].Capture != nil {
		t.Errorf("%+v, %+v", c, s.NICs[1].Capture)
	}
}
