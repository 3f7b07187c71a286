package lldp

import (
	"encoding/hex"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

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
		Announcement{"leaf1", "eth1/1", 2 * time.Minute}, ""},
	{"NIC firmware: MAC port, described", unhex("0180c200000e 020000000001 88cc 0207 04 020000000001 0407 03 020000000002 0602 0078 0804 65746831 0a02 6831 0000"),
		Announcement{"h1", "eth1", 2 * time.Minute}, ""},
	{"NIC firmware: nothing but MACs", unhex("0180c200000e 020000000001 88cc 0207 04 020000000001 0407 03 020000000002 0602 0078 0000"),
		Announcement{"02:00:00:00:00:01", "02:00:00:00:00:02", 2 * time.Minute}, ""},
	{"goes away", unhex("0180c200000e 020000000001 88cc 0207 04 020000000001 0405 05 65746831 0602 0000 0a02 6831 0000"), Announcement{"h1", "eth1", 0}, ""},
	{"cut short", unhex("0180c200000e 020000000001 88cc 0207 04 0200"), Announcement{}, "LLDP frame"},
	{"no header", []byte{1}, Announcement{}, "header"},
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
		if err != nil || got != h.want {
			t.Errorf("%s: %+v, %v, want %+v", h.name, got, err, h.want)
		}
	}
}

func TestFrameIsParsed(t *testing.T) {
	f, err := BuildFrame(net.HardwareAddr{2, 0, 0, 0, 0, 1}, "spine1", "Ethernet1/12", 12*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Parse(f); err != nil || got != (Announcement{"spine1", "Ethernet1/12", 12 * time.Second}) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, h := range heard {
		f.Add(h.frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := Parse(b); err == nil && (h.System == "" || h.Port == "" || len(h.System) > maxName || len(h.Port) > maxName) {
			t.Fatalf("%+v", h)
		}
	})
}

// TestListener receives announcements over a cable, until their time is over or the far end withdraws them.
func TestListener(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal("not root: namespaces cannot be made")
		}
		t.Skip("needs root: network namespaces")
	}
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
