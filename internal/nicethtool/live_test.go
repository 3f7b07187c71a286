package nicethtool

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// need skips a test for want of a declared feature, and fails where all have to be there.
func need(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
		t.Fatal("needs " + what)
	}
	t.Skip("needs " + what)
}

// TestLoopback: this kernel's answers about an interface that has next to nothing.
func TestLoopback(t *testing.T) {
	m := &Machine{}
	defer m.Close()
	r := reader(m)
	for range 2 {
		p := r.Poll(at, []string{"lo", "graylink-none"}, everything)
		if len(p.Errors) != 0 || p.Interfaces[0].Module != nil || p.Interfaces[0].FEC != nil {
			t.Errorf("%+v, %v", p.Interfaces[0], failures(p))
		}
		l := p.Interfaces[0].LinkState
		if l == nil {
			need(t, "ethtool over netlink (CONFIG_ETHTOOL_NETLINK)")
		}
		if l.Up == nil || !*l.Up {
			t.Errorf("the loopback is down: %s", show(l))
		}
		if got := partsOf(&p.Interfaces[1]); got != "" {
			t.Errorf("a missing interface gave %q", got)
		}
	}
}

// TestVeth: statistics of a pair in a network of its own.
func TestVeth(t *testing.T) {
	if os.Geteuid() != 0 {
		need(t, "root, to make a network namespace")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		need(t, "ip (Debian package iproute2)")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine, and its network with it.
		runtime.LockOSThread()
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		if out, err := exec.Command("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb").CombinedOutput(); err != nil {
			t.Errorf("ip: %v: %s", err, out)
			return
		}
		m := &Machine{}
		defer m.Close()
		s, err := readStatistics(m, "va", nil)
		if err != nil {
			t.Error(err)
			return
		}
		var names []string
		for i, n := range s.names.all {
			names = append(names, n)
			if n == "peer_ifindex" {
				peer, err := net.InterfaceByName("vb")
				if err != nil || s.values[i] != uint64(peer.Index) {
					t.Errorf("peer_ifindex %d, want that of %+v, %v", s.values[i], peer, err)
				}
			}
		}
		if s.names.driver.name != "veth" || !slices.Contains(names, "peer_ifindex") || !strings.Contains(fmt.Sprint(names), "xdp") {
			t.Errorf("driver %+v, names %v", s.names.driver, names)
		}
		b, err := requestReply(m, "va", getLinkModes, flagCompactBitsets, nil)
		if err != nil {
			t.Error(err)
			return
		}
		l, err := parseLinkModes(b)
		if err != nil || l.Speed == nil || *l.Speed != 10e9/8 || l.Duplex != "full" {
			t.Errorf("%s, %v", show(l), err)
		}
	}()
	<-done
}
