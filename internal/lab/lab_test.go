package lab

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

// ownerArg makes the test binary an owner of a lab, to be killed.
const ownerArg = "own-a-lab"

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	switch args := os.Args[1:]; {
	case len(args) == 5 && slices.Equal(args[:3], HelperArgs("", "")[:3]):
		if err := RunHelper(ctx, args[3], args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case len(args) == 4 && args[0] == ownerArg:
		if err := ownLab(ctx, args[1], args[2], args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	stop()
	dir, err := os.MkdirTemp("", "graylink-labs")
	if err != nil {
		panic(err)
	}
	// The user of FRR's daemons has to be able to enter it.
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	os.Setenv(StateDirEnv, dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// needs skips a test on a machine that cannot have a lab, and says why.
func needs(t *testing.T, tools ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a fabric: left out by -short")
	}
	testneeds.Root(t, "it makes network namespaces")
	for _, tool := range append(tools, "ip") {
		if _, err := exec.LookPath(tool); err != nil {
			testneeds.Missing(t, "the program "+tool)
		}
	}
}

const (
	demoFile  = "../../deploy/lab/demo.yaml"
	clos3File = "testdata/clos3.yaml"
	oddFile   = "testdata/odd.yaml"

	demoFileV6 = "../../deploy/lab/demo-ipv6.yaml"
	oddFileV6  = "testdata/odd-ipv6.yaml"
)

// fabricCase is a topology and the family of the addresses that it lacks.
type fabricCase struct{ name, file, family string }

// fabricCases returns topologies of both families.
func fabricCases() []fabricCase {
	return []fabricCase{{"demo", demoFile, ""}, {"clos3", clos3File, ""}, {"odd", oddFile, ""},
		{"demo-ipv6", demoFileV6, ""}, {"clos3-ipv6", clos3File, FamilyIPv6}, {"odd-ipv6", oddFileV6, ""}}
}

// build returns the lab of a case.
func (c fabricCase) build(t *testing.T, suffix string) *Lab {
	t.Helper()
	needs(t)
	return upWith(t, load(t, c.file), Options{Name: testName(suffix), Family: c.family})
}

func load(t *testing.T, path string) *fabric.Topology {
	t.Helper()
	topo, findings := fabric.LoadTopology(path)
	if err := findings.Err(); err != nil {
		t.Fatal(err)
	}
	return topo
}

// testName returns a name for a lab that no other run of the tests uses.
func testName(suffix string) string { return fmt.Sprintf("test%d-%s", os.Getpid(), suffix) }

func up(t *testing.T, file, suffix string) *Lab {
	t.Helper()
	needs(t)
	return upWith(t, load(t, file), Options{Name: testName(suffix)})
}

func upWith(t *testing.T, topo *fabric.Topology, o Options) *Lab {
	t.Helper()
	l, err := Up(t.Context(), topo, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if left := leftovers(l.name); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return l
}

// leftovers lists what there still is of a lab.
func leftovers(name string) []string {
	left, _ := filepath.Glob(filepath.Join(unix.NetnsDir, "gl-"+name+"-*"))
	state, _ := filepath.Glob(filepath.Join(stateDir(), "*"+name+"*"))
	return append(left, state...)
}

func (l *Lab) addr(nic string) netip.Addr { return l.x.graph.ProbeAddress(nic) }

// socket returns an unconnected UDP socket at a NIC's address.
func socket(t *testing.T, l *Lab, nic string, port int) *net.UDPConn {
	t.Helper()
	node, _, _ := fabric.SplitNIC(nic)
	pc, err := l.ListenPacket(t.Context(), node, "udp", netip.AddrPortFrom(l.addr(nic), uint16(port)).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	return pc.(*net.UDPConn)
}

func deadline(t *testing.T, c net.PacketConn, d time.Duration) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
}

func TestEveryPairInEveryTopology(t *testing.T) {
	for _, c := range fabricCases() {
		t.Run(c.name, func(t *testing.T) {
			l := c.build(t, "pairs")
			nics := l.x.graph.NICIDs()
			socks := map[string]*net.UDPConn{}
			for _, nic := range nics {
				socks[nic] = socket(t, l, nic, 862)
			}
			buf := make([]byte, 64)
			for _, src := range nics {
				for _, dst := range nics {
					if src == dst {
						continue
					}
					msg := src + " " + dst
					to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.addr(dst), 862))
					if _, err := socks[src].WriteTo([]byte(msg), to); err != nil {
						t.Fatal(err)
					}
					deadline(t, socks[dst], 10*time.Second)
					n, from, err := socks[dst].ReadFromUDPAddrPort(buf)
					if err != nil {
						t.Fatalf("the very first packet %s to %s: %v", src, dst, err)
					}
					if string(buf[:n]) != msg[:n] || from.Addr().Unmap() != l.addr(src) {
						t.Errorf("%s to %s: got %q from %s", src, dst, buf[:n], from)
					}
				}
			}
		})
	}
}

// tracer sends hop-limited packets of a flow and reads who answers.
type tracer struct {
	udp  *net.UDPConn
	icmp net.PacketConn
}

func newTracer(t *testing.T, l *Lab, nic string, sport int) *tracer {
	t.Helper()
	node, _, _ := fabric.SplitNIC(nic)
	network := "ip4:icmp"
	if l.x.family() == ipv6Family {
		network = "ip6:ipv6-icmp"
	}
	icmp, err := l.ListenPacket(t.Context(), node, network, l.addr(nic).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { icmp.Close() })
	return &tracer{socket(t, l, nic, sport), icmp}
}

// hop returns the address that answers time-exceeded for a packet with the
// given TTL.
func (tr *tracer) hop(t *testing.T, dst netip.AddrPort, ttl int) netip.Addr {
	t.Helper()
	rc, err := tr.udp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	level, option, expired := syscall.IPPROTO_IP, syscall.IP_TTL, byte(11) // ICMP time exceeded, RFC 792
	if dst.Addr().Is6() {
		level, option, expired = syscall.IPPROTO_IPV6, syscall.IPV6_UNICAST_HOPS, 3 // RFC 4443 section 3.3
	}
	if cerr := rc.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), level, option, ttl) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	if _, err := tr.udp.WriteToUDPAddrPort([]byte("hop"), dst); err != nil {
		t.Fatal(err)
	}
	deadline(t, tr.icmp, 10*time.Second)
	buf := make([]byte, 256)
	n, from, err := tr.icmp.ReadFrom(buf)
	for err == nil && n > 0 && dst.Addr().Is6() && buf[0] >= 128 { // neighbour discovery: RFC 4443 section 2.1
		n, from, err = tr.icmp.ReadFrom(buf)
	}
	if err != nil {
		t.Fatalf("ttl %d to %s: %v", ttl, dst, err)
	}
	if n < 1 || buf[0] != expired {
		t.Fatalf("ttl %d to %s: ICMP type %d from %s, want %d", ttl, dst, buf[0], from, expired)
	}
	return netip.MustParseAddr(from.String())
}

func TestTraceTakesTheKernelsPathAndNamesIngressPorts(t *testing.T) {
	for _, c := range fabricCases() {
		t.Run(c.name, func(t *testing.T) {
			l := c.build(t, "trace")
			g := fabric.NewGraph(l.Topology())
			nics := g.NICIDs()
			for n, src := range nics {
				dst := nics[(n+len(nics)/2)%len(nics)]
				if fabric.OwnerOf(src) == fabric.OwnerOf(dst) {
					dst = nics[(n+len(nics)/2+1)%len(nics)]
				}
				for sport := 20000; sport < 20004; sport++ {
					want, err := l.KernelPath(t.Context(), l.addr(src), l.addr(dst), syscall.IPPROTO_UDP, uint16(sport), 862)
					if err != nil {
						t.Fatal(err)
					}
					if len(g.ShortestPaths(src, dst, 1)[0]) != len(want) {
						t.Errorf("%s to %s: %s is not a shortest path", src, dst, want.CanonicalKey())
					}
					tr := newTracer(t, l, src, sport)
					for i, h := range want {
						got := g.EndOf(tr.hop(t, netip.AddrPortFrom(l.addr(dst), 862), i+1))
						if got != h.Switch+":"+h.In {
							t.Errorf("%s to %s from port %d, hop %d: %s answers, the kernel's path is %s", src, dst, sport, i+1, got, want.CanonicalKey())
						}
					}
					tr.udp.Close()
					tr.icmp.Close()
				}
			}
		})
	}
}

func TestUplinksShareFlows(t *testing.T) {
	for _, family := range Families() {
		t.Run(family, func(t *testing.T) {
			sharesFlows(t, fabricCase{"clos3", clos3File, family}.build(t, "share"))
		})
	}
}

func sharesFlows(t *testing.T, l *Lab) {
	used := map[string]int{}
	for sport := uint16(20000); sport < 20128; sport++ {
		p, err := l.KernelPath(t.Context(), l.addr("h1/eth1"), l.addr("h8/eth1"), syscall.IPPROTO_UDP, sport, 862)
		if err != nil {
			t.Fatal(err)
		}
		used[p.CanonicalKey()]++
	}
	// With seeds of their own the switches choose independently: 128 flows
	// leave one of 8 paths unused once in 3 million names. With one seed for
	// all, every tier would choose the same index and 6 paths stay unused.
	want := l.x.graph.ShortestPaths("h1/eth1", "h8/eth1", 64)
	if len(used) != len(want) {
		t.Errorf("128 flows use %d of %d paths: %v", len(used), len(want), used)
	}
}

// A trace of many flows at once must not run into an ICMP rate limit: the
// kernel's own is 1000 a second with bursts of 50.
func TestTimeExceededIsNotRateLimited(t *testing.T) {
	for _, family := range Families() {
		t.Run(family, func(t *testing.T) {
			floodsTraces(t, fabricCase{"clos3", clos3File, family}.build(t, "icmp"))
		})
	}
}

func floodsTraces(t *testing.T, l *Lab) {
	tr := newTracer(t, l, "h1/eth1", 20000)
	tr.hop(t, netip.AddrPortFrom(l.addr("h8/eth1"), 862), 1) // the socket keeps this hop limit
	const n = 5000
	heard := make(chan int)
	go func() {
		got, buf := 0, make([]byte, 256)
		for got < n {
			if _, _, err := tr.icmp.ReadFrom(buf); err != nil {
				break
			}
			got++
		}
		heard <- got
	}()
	for i := range n {
		if _, err := tr.udp.WriteToUDPAddrPort([]byte("hop"), netip.AddrPortFrom(l.addr("h8/eth1"), 862)); err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			time.Sleep(time.Millisecond) // the reader's buffer, not the switch's patience
		}
	}
	deadline(t, tr.icmp, 2*time.Second)
	if got := <-heard; got < n*95/100 {
		t.Errorf("%d of %d answered", got, n)
	}
}

func TestTrafficLeavesByTheNICOfItsAddress(t *testing.T) {
	for _, file := range []string{oddFile, oddFileV6} {
		t.Run(filepath.Base(file), func(t *testing.T) { leavesByItsNIC(t, up(t, file, "policy")) })
	}
}

func leavesByItsNIC(t *testing.T, l *Lab) {
	const node = "gpu-node-with-a-long-name-01"
	for nic, leaf := range map[string]string{node + "/mlx5_0": "leaf-1", node + "/mlx5_0.2": "leaf-2"} {
		for _, dst := range []string{"n2/eth1", "n3/eth1", "n4/rdma/port1"} {
			tr := newTracer(t, l, nic, 20000)
			first := l.x.graph.EndOf(tr.hop(t, netip.AddrPortFrom(l.addr(dst), 862), 1))
			if fabric.OwnerOf(first) != leaf {
				t.Errorf("%s to %s: the first switch is that of %s, want %s", nic, dst, first, leaf)
			}
			tr.udp.Close()
			tr.icmp.Close()
		}
	}
}

func TestTwoLabsAtOnce(t *testing.T) {
	a, b := up(t, demoFile, "a"), up(t, demoFile, "b")
	for _, l := range []*Lab{a, b} {
		rx, tx := socket(t, l, "h8/eth1", 862), socket(t, l, "h1/eth1", 20000)
		if _, err := tx.WriteToUDPAddrPort([]byte(l.name), netip.AddrPortFrom(l.addr("h8/eth1"), 862)); err != nil {
			t.Fatal(err)
		}
		deadline(t, rx, 10*time.Second)
		buf := make([]byte, 64)
		n, _, err := rx.ReadFromUDPAddrPort(buf)
		if err != nil || string(buf[:n]) != l.name {
			t.Errorf("lab %s: got %q, %v", l.name, buf[:n], err)
		}
	}
	names, err := List()
	if err != nil || !slices.Contains(names, a.name) || !slices.Contains(names, b.name) {
		t.Errorf("List() = %v, %v; want both labs", names, err)
	}
	if err := Down(t.Context(), a.name); err != nil {
		t.Fatal(err)
	}
	if s, err := b.Status(t.Context()); err != nil || slices.ContainsFunc(s.Namespaces, func(n NamespaceStatus) bool { return !n.Exists }) {
		t.Errorf("taking one lab down hurt the other: %+v, %v", s, err)
	}
	if err := Down(t.Context(), a.name); err != nil {
		t.Errorf("taking it down again: %v", err)
	}
}

func TestExistingLabIsRefused(t *testing.T) {
	l := up(t, demoFile, "twice")
	_, err := Up(t.Context(), l.Topology(), Options{Name: l.name})
	if want := "graylink lab down --name " + l.name; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("second Up: %v, want an error with %q", err, want)
	}
	if s, err := l.Status(t.Context()); err != nil || !s.Namespaces[0].Exists {
		t.Errorf("the refused Up hurt the lab: %v", err)
	}
}

func TestForeignNamespaceIsLeftAlone(t *testing.T) {
	needs(t)
	name := testName("foreign")
	foreign := "gl-" + name + "-h5"
	if err := unix.CreateNetns(foreign); err != nil {
		t.Fatal(err)
	}
	defer unix.RemoveNetns(foreign)
	if _, err := Up(t.Context(), load(t, demoFile), Options{Name: name}); err == nil || !strings.Contains(err.Error(), foreign) {
		t.Errorf("Up over a foreign namespace: %v, want an error that names %s", err, foreign)
	}
	if got := leftovers(name); !slices.Equal(got, []string{unix.NetnsPath(foreign)}) {
		t.Errorf("afterwards there are %v, want the foreign namespace alone", got)
	}
}

// countdown is a context that is cancelled when it has been checked n times.
type countdown struct {
	context.Context
	n *int
}

func (c countdown) Err() error {
	if *c.n--; *c.n < 0 {
		return context.Canceled
	}
	return nil
}

func TestCancelledUpLeavesNothing(t *testing.T) {
	needs(t)
	for _, n := range []int{1, 5, 13, 14, 20, 30, 45, 60} {
		name := testName("cancel")
		_, err := Up(countdown{context.Background(), &n}, load(t, demoFile), Options{Name: name})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Up with a cancelled context: %v", err)
		}
		if left := leftovers(name); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestHalfBuiltLabIsRemoved(t *testing.T) {
	l := up(t, demoFile, "half")
	st, err := loadState(l.root, l.name)
	if err != nil {
		t.Fatal(err)
	}
	// As if the builder had been killed after the fourth namespace, before it
	// recorded it.
	st.Phase, st.Builder = phaseBuilding, Process{PID: os.Getpid(), Start: 1}
	for i, ns := range st.Layout.Namespaces {
		if i >= 3 {
			delete(st.NetnsIDs, ns.Element)
		}
		if i >= 4 {
			if err := unix.RemoveNetns(ns.Netns); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := st.saveState(l.root); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(l.name); err == nil || !strings.Contains(err.Error(), "lab down") {
		t.Errorf("Open of a half-built lab: %v", err)
	}
	l2, err := Up(t.Context(), l.Topology(), Options{Name: l.name})
	if err != nil {
		t.Fatalf("Up over a dead builder's lab: %v", err)
	}
	if err := l2.Close(); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(l.name); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// ownLab runs a process that owns a lab and is going to be killed.
func ownLab(ctx context.Context, name, file, routing string) error {
	topo, findings := fabric.LoadTopology(file)
	if err := findings.Err(); err != nil {
		return err
	}
	l, err := Up(ctx, topo, Options{Name: name, Owner: true, Routing: routing})
	if err != nil {
		return err
	}
	cmd := l.Command(ctx, "h1", "sleep", "1000")
	if err := cmd.Start(); err != nil {
		return err
	}
	// Threads that visited namespaces end, or not: the child must outlive that.
	for range 200 {
		c, err := l.DialContext(ctx, "h1", "udp4", "127.0.0.1:9")
		if err != nil {
			return err
		}
		c.Close()
	}
	if _, err := l.AddFault(ctx, Fault{Kind: KindDelay, At: "leaf1:up1--spine1:dn1"}); err != nil {
		return err
	}
	fmt.Println("ready", cmd.Process.Pid)
	return cmd.Wait()
}

// startOwner starts a process that builds a lab and owns it, and returns the process of a program in the lab. It is killed when the
// test ends.
func startOwner(t *testing.T, name, routing string) (owner *exec.Cmd, pid int) {
	t.Helper()
	owner = exec.Command(os.Args[0], ownerArg, name, demoFile, routing)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	owner.Stderr = os.Stderr
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = owner.Process.Kill()
		_ = owner.Wait()
	})
	if _, err := fmt.Fscanf(out, "ready %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	return owner, pid
}

func TestKilledOwnerIsCleanedUp(t *testing.T) {
	needs(t, "iptables")
	for _, how := range []string{"down", "up"} {
		t.Run(how, func(t *testing.T) {
			name := testName("owner-" + how)
			defer Down(context.Background(), name)
			owner, pid := startOwner(t, name, RoutingStatic)
			child, err := processOf(pid)
			if err != nil {
				t.Fatalf("the owner's command died before its owner: %v", err)
			}
			if _, err := Up(t.Context(), load(t, demoFile), Options{Name: name}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(owner.Process.Pid)) {
				t.Errorf("Up over a living owner: %v, want an error that names process %d", err, owner.Process.Pid)
			}
			st, err := loadState(stateDir(), name)
			if err != nil {
				t.Fatal(err)
			}
			if err := owner.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			owner.Wait()
			if !waitGone(child, 10*time.Second) {
				t.Error("the command outlives its owner")
			}
			if !waitGone(st.Faults[0].Helper, 10*time.Second) {
				t.Error("the relay outlives the lab's owner")
			}
			if how == "up" {
				l, err := Up(t.Context(), load(t, demoFile), Options{Name: name})
				if err != nil {
					t.Fatal(err)
				}
				if f, err := l.ActiveFaults(); err != nil || len(f) != 0 {
					t.Errorf("the new lab has faults %v, %v", f, err)
				}
			}
			if err := Down(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			if left := leftovers(name); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestDownEndsProcesses: processes of a lab end with it, and directories elsewhere that it owns are removed.
func TestDownEndsProcesses(t *testing.T) {
	l := up(t, demoFile, "procs")
	// A process of its own session, as a daemon would be.
	cmd := l.Command(t.Context(), "spine2", "sh", "-c", "trap '' TERM HUP INT; echo on; setsid sleep 1000 & wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "owned")
	if err := os.MkdirAll(filepath.Join(dir, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.OwnDirectory(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := l.OwnDirectory(t.Context(), "here"); err == nil || !strings.Contains(err.Error(), "absolute path") {
		t.Errorf("a relative path: %v, want an error", err)
	}
	if err := Down(t.Context(), l.name); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended by itself, want it killed")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the lab's directory elsewhere: %v, want that it is gone", err)
	}
}

func TestDialAndListenInside(t *testing.T) {
	l := up(t, demoFile, "dial")
	ln, err := l.Listen(t.Context(), "h3", "tcp4", "127.0.0.1:9100")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err == nil {
			c.Write([]byte("h3"))
			c.Close()
		}
	}()
	if c, err := net.DialTimeout("tcp4", "127.0.0.1:9100", time.Second); err == nil {
		c.Close()
		t.Error("a listener inside the lab is reachable from outside")
	}
	if c, err := l.DialContext(t.Context(), "h4", "tcp4", "127.0.0.1:9100"); err == nil {
		c.Close()
		t.Error("a listener of h3's loopback is reachable from h4")
	}
	c, err := l.DialContext(t.Context(), "h3", "tcp4", "127.0.0.1:9100")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 2)
	if _, err := c.Read(buf); err != nil || string(buf) != "h3" {
		t.Errorf("read %q, %v", buf, err)
	}
	if _, err := l.DialContext(t.Context(), "absent", "tcp4", "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), `"absent"`) {
		t.Errorf("dial from a node that is not there: %v", err)
	}
	if err := l.Command(t.Context(), "absent", "true").Run(); err == nil || !strings.Contains(err.Error(), `"absent"`) {
		t.Errorf("command on a node that is not there: %v", err)
	}
}

func TestStatusIsJSONAndCountsWhatIsThere(t *testing.T) {
	l := up(t, oddFile, "status")
	sock := l.Command(t.Context(), "n2", "sleep", "1000")
	if err := sock.Start(); err != nil {
		t.Fatal(err)
	}
	defer sock.Wait()
	defer sock.Process.Kill()
	// "ip netns exec" is inside a moment after it has started.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if pids, err := l.x.processesOf("n2"); err != nil || len(pids) > 0 || time.Now().After(end) {
			break
		}
	}
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Name, Phase string
		Namespaces  []struct {
			Element    string
			Exists     bool
			LinksUp    int `json:"links_up"`
			LinksDown  int `json:"links_down"`
			Routes     int
			RoutesWant int `json:"routes_want"`
			Processes  []int
			Interfaces []struct {
				End, Interface, Address, Peer string
				Up                            bool
			}
		}
		Faults []any
	}
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if back.Name != l.name || back.Phase != "up" || len(back.Namespaces) != 9 || back.Faults == nil {
		t.Errorf("status: %s", data)
	}
	links := 0
	for _, n := range back.Namespaces {
		links += n.LinksUp
		if !n.Exists || n.LinksDown != 0 || n.Routes != n.RoutesWant || n.Routes == 0 || n.Processes == nil {
			t.Errorf("%s: %+v", n.Element, n)
		}
		if n.Element == "n2" && !slices.Equal(n.Processes, []int{sock.Process.Pid}) {
			t.Errorf("n2 has processes %v, want %d", n.Processes, sock.Process.Pid)
		}
		for _, i := range n.Interfaces {
			if i.End == "leaf-3:lo" && i.Interface != "plo" || !i.Up {
				t.Errorf("interface %+v", i)
			}
		}
	}
	if links != 2*len(l.Topology().Links) {
		t.Errorf("%d link ends up, want %d", links, 2*len(l.Topology().Links))
	}
}

func TestNothingInTheRootNamespace(t *testing.T) {
	before, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	up(t, demoFile, "root")
	after, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != len(after) {
		t.Errorf("interfaces before %v, after %v", before, after)
	}
}

// stamp and readStamp carry a number and a time in a test packet.
func stamp(buf []byte, seq uint32) []byte {
	binary.BigEndian.PutUint32(buf, seq)
	binary.BigEndian.PutUint64(buf[4:], uint64(time.Since(testEpoch)))
	return buf[:12]
}

func readStamp(buf []byte) (seq uint32, sent time.Duration) {
	return binary.BigEndian.Uint32(buf), time.Duration(binary.BigEndian.Uint64(buf[4:]))
}

var testEpoch = time.Now()
