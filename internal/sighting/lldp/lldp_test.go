package lldp

import (
	"encoding/hex"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// heard holds frames of other implementations, written by hand from IEEE 802.1AB.
var heard = []struct {
	name  string
	frame []byte
	want  Announcement
	bad   string
}{
	{"lldpd: MAC chassis, interface name, system name", unhex("0180c200000e 020000000001 88cc 0207 04 020000000001 0407 05 657468312f31 0602 0078 0a05 6c65616631 0000"),
		Announcement{System: "leaf1", Port: "eth1/1", Chassis: "02:00:00:00:00:01", TTL: 2 * time.Minute}, ""},
	{"NIC firmware: MAC port, described", unhex("0180c200000e 020000000001 88cc 0207 04 020000000001 0407 03 020000000002 0602 0078 0804 65746831 0a02 6831 0000"),
		Announcement{System: "h1", Port: "eth1", Chassis: "02:00:00:00:00:01", TTL: 2 * time.Minute}, ""},
	{"NIC firmware: nothing but MACs", unhex("0180c200000e 020000000001 88cc 0207 04 020000000001 0407 03 020000000002 0602 0078 0000"),
		Announcement{System: "02:00:00:00:00:01", Port: "02:00:00:00:00:02", Chassis: "02:00:00:00:00:01", TTL: 2 * time.Minute}, ""},
	{"addresses as identifiers", unhex("0180c200000e 020000000001 88cc 0206 05 010a000001 0406 04 010a000002 0602 0078 0a02 7331 0000"),
		Announcement{System: "s1", Port: "010a000002", Chassis: "010a000001", TTL: 2 * time.Minute}, ""},
	{"goes away", unhex("0180c200000e 020000000001 88cc 0207 04 020000000001 0405 05 65746831 0602 0000 0a02 6831 0000"), Announcement{System: "h1", Port: "eth1", Chassis: "02:00:00:00:00:01"}, ""},
	{"cut short", unhex("0180c200000e 020000000001 88cc 0207 04 0200"), Announcement{}, "LLDP frame"},
	{"no header", []byte{1}, Announcement{}, "header"},
	{"capabilities of one octet", unhex("0180c200000e 020000000001 88cc 0207 04 020000000001 0405 05 65746831 0602 0078 0a02 6831 0e01 04 0000"), Announcement{}, "type 7 and 1 octets"},
	{"control characters", unhex("0180c200000e 020000000001 88cc 0207 04 020000000001 0405 05 65740a31 0602 0078 0a02 6831 0000"), Announcement{}, "text"},
}

func TestParse(t *testing.T) {
	for _, h := range heard {
		got, err := Parse(h.frame)
		if h.bad != "" {
			if err == nil || !strings.Contains(err.Error(), h.bad) {
				t.Errorf("%s: %+v, %v, want an error about %s", h.name, got, err, h.bad)
			}
			continue
		}
		got.id = ""
		if err != nil || got != h.want {
			t.Errorf("%s: %+v, %v, want %+v", h.name, got, err, h.want)
		}
	}
}

// captured returns the frames of another implementation by name.
func captured(tb testing.TB) map[string][]byte {
	tb.Helper()
	text, err := os.ReadFile("testdata/lldpd.txt")
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if name, frame, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			out[name] = unhex(frame)
		}
	}
	return out
}

// The truth is what lldpcli and tcpdump print of the same frames.
func TestFramesOfLLDPD(t *testing.T) {
	frames := captured(t)
	const chassis, minutes = "02:00:00:00:0a:01", 2 * time.Minute
	want := map[string]Announcement{
		"host":     {System: "h1", Port: "eth0", Chassis: "02:00:00:00:0b:01", TTL: minutes, Capabilities: 1 << 7},
		"bridge":   {System: "leaf1", Port: "swp1", Chassis: chassis, TTL: minutes, Capabilities: Bridge},
		"router":   {System: "router1", Port: "swp1", Chassis: chassis, TTL: minutes, Capabilities: Router},
		"shutdown": {System: chassis, Port: "swp1", Chassis: chassis},
	}
	if len(frames) != len(want) {
		t.Errorf("%d frames, want %d", len(frames), len(want))
	}
	for name, w := range want {
		got, err := Parse(frames[name])
		id := got.id
		got.id = ""
		if err != nil || got != w || got.Capabilities.Forwards() != (name == "bridge" || name == "router") {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, w)
		}
		if again, err := Parse(frames["router"]); err != nil || (again.id == id) != (name == "router" || name == "shutdown") {
			t.Errorf("%s: the port %q, that of the router %q: %v", name, id, again.id, err)
		}
	}
}

// A port has the neighbours whose time has not passed, the last MaxNeighbours of them, until they withdraw.
func TestNeighboursOfAPort(t *testing.T) {
	frames, now := captured(t), time.Now()
	l := &Listener{joined: map[int]bool{3: true}, announcements: map[int][]heardNeighbour{}}
	systems := func(at time.Time) (out string) {
		for _, n := range l.NeighboursAt(at, 3) {
			out += n.System + " "
		}
		return out
	}
	for _, step := range []struct {
		frame string
		after time.Duration
		want  string
	}{
		{"router", 0, "router1 "}, {"router", time.Second, "router1 "}, {"host", 2 * time.Second, "router1 h1 "}, {"shutdown", 3 * time.Second, "h1 "},
		{"bridge", 4 * time.Second, "leaf1 h1 "}, {"router", 5 * time.Second, "leaf1 router1 "}, {"host", 130 * time.Second, "h1 "},
	} {
		l.take(3, frames[step.frame], now.Add(step.after))
		if got := systems(now.Add(step.after)); got != step.want {
			t.Errorf("after %v: %q, want %q", step.after, got, step.want)
		}
	}
	if got := systems(now.Add(251 * time.Second)); got != "" {
		t.Errorf("%q after its time", got)
	}
	l.take(4, frames["router"], now)
	if len(l.announcements[4]) > 0 {
		t.Error("a frame is kept of an interface that does not listen")
	}
	if err := l.SetPorts(nil); err != nil || systems(now.Add(131*time.Second)) != "" {
		t.Errorf("%v, or an interface that listens no more has neighbours", err)
	}
}

func TestFrameIsParsed(t *testing.T) {
	f, err := BuildFrame(net.HardwareAddr{2, 0, 0, 0, 0, 1}, "spine1", "Ethernet1/12", 12*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Parse(f); err != nil || got.System != "spine1" || got.Port != "Ethernet1/12" || got.Chassis != "spine1" || got.TTL != 12*time.Second || !got.Capabilities.Forwards() {
		t.Fatalf("%+v, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, h := range heard {
		f.Add(h.frame)
	}
	for _, frame := range captured(f) {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := Parse(b); err == nil && (h.System == "" || h.Port == "" || h.Chassis == "" || len(h.Chassis) > maxName || len(h.System) > maxName || len(h.Port) > maxName) {
			t.Fatalf("%+v", h)
		}
	})
}

// TestListener receives announcements over a cable, until their time is over or the far end withdraws them.
func TestListener(t *testing.T) {
	testneeds.Root(t, "network namespaces")
	err := unix.InNewNetns(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
			return err
		}
		var index [2]int
		for i, name := range []string{"a", "b"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
			index[i] = l.Attrs().Index
		}
		l, err := Listen()
		if err != nil {
			return err
		}
		defer l.Close()
		if err := l.SetPorts([]uint32{uint32(index[1])}); err != nil {
			return err
		}
		name := func(n uint32) string {
			if n == uint32(index[1]) {
				return "b"
			}
			return ""
		}
		say := func(ttl time.Duration, want int) {
			t.Helper()
			f, err := BuildFrame(net.HardwareAddr{2, 0, 0, 0, 0, 1}, "far", "up1", ttl)
			if err != nil {
				t.Fatal(err)
			}
			var got int
			for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				if err := l.SendFrame(index[0], f); err != nil {
					t.Fatal(err)
				}
				n := l.CurrentNeighbours(time.Now(), name)
				if got = len(n); got == want {
					if got == 1 && (n[0].Port != "b" || n[0].System != "far" || n[0].SystemPort != "up1") {
						t.Errorf("%+v", n[0])
					}
					return
				}
			}
			t.Errorf("%d neighbours, want %d", got, want)
		}
		say(4*time.Second, 1)
		if n := l.CurrentNeighbours(time.Now().Add(5*time.Second), name); len(n) != 0 {
			t.Errorf("%d neighbours after their time", len(n))
		}
		say(4*time.Second, 1)
		say(0, 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
