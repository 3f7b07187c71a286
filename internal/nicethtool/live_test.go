package nicethtool

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/safchain/ethtool"

	"github.com/graylink/graylink/internal/nichw"
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

// callAtDepth calls f with more or less of the stack in use.
//
//go:noinline
func callAtDepth(n int, f func()) uint64 {
	frame := [2]uint64{uint64(n)}
	if n == 0 {
		f()
	} else {
		frame[1] = callAtDepth(n-1, f)
	}
	return frame[0] + frame[1]
}

// TestLargeStack reads the link state of the loopback with any use of the stack: the library alone gives an empty answer
// where its stack grows in the call.
func TestLargeStack(t *testing.T) {
	empty := func(call func(*ethtool.Ethtool, func(*ethtool.Ethtool) error) error) (n int) {
		e, err := ethtool.NewEthtool()
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for depth := range 500 {
			up, done := uint32(0), make(chan error)
			go func() { // with a stack of its own
				var err error
				callAtDepth(depth, func() {
					err = call(e, func(e *ethtool.Ethtool) (err error) {
						up, err = e.LinkState("lo")
						return err
					})
				})
				done <- err
			}()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if up == 0 {
				n++
			}
		}
		return n
	}
	if n := empty(callOnLargeStack); n > 0 {
		t.Errorf("%d empty answers on a large stack", n)
	}
	t.Logf("%d empty answers without it", empty(func(e *ethtool.Ethtool, call func(*ethtool.Ethtool) error) error { return call(e) }))
	if _, err := (&Machine{}).DriverInfo("an-interface-with-a-long-name"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("%v, want %v", err, syscall.ENODEV)
	}
	if _, err := (&Machine{}).ModuleEEPROM("lo"); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("%v, want %v", err, syscall.EOPNOTSUPP)
	}
}

func TestLibraryError(t *testing.T) {
	if err := libraryError(nil); err != nil {
		t.Error(err)
	}
	if err := libraryError(syscall.EPERM); !errors.Is(err, os.ErrPermission) || errors.Is(err, nichw.ErrMalformed) {
		t.Error(err)
	}
	if err := libraryError(errors.New("eeprom size: 1024 is larger than buffer size: 640")); !errors.Is(err, nichw.ErrMalformed) {
		t.Error(err)
	}
}

// BenchmarkStatistics compares reading the statistics of a driver with the library doing so, on the interface of this
// machine that has the most.
func BenchmarkStatistics(b *testing.B) {
	m := &Machine{}
	interfaces, err := net.Interfaces()
	if err != nil {
		b.Fatal(err)
	}
	name, most := "", 0
	for _, i := range interfaces {
		if d, err := readDriver(m, i.Name); err == nil && d.number > most {
			name, most = i.Name, d.number
		}
	}
	if most == 0 {
		b.Skip("needs an interface whose driver has statistics")
	}
	b.Run(fmt.Sprintf("own/%d", most), func(b *testing.B) {
		var have *statisticNames
		b.ReportAllocs()
		for b.Loop() {
			s, err := readStatistics(m, name, have)
			if err != nil {
				b.Fatal(err)
			}
			have = s.names
		}
	})
	b.Run(fmt.Sprintf("library/%d", most), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := callLibrary(name, func(e *ethtool.Ethtool) error { _, err := e.Stats(name); return err }); err != nil {
				b.Fatal(err)
			}
		}
	})
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
