package lab

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

var update = flag.Bool("update", false, "rewrite the expected output")

// planesText is two planes that are not joined, each with a leaf and a spine.
const planesText = `version: 1
switches:
  - {name: a-spine, role: spine, plane: a, addresses: [172.31.1.1]}
  - {name: a-leaf, role: leaf, plane: a}
  - {name: b-spine, role: spine, plane: b}
  - {name: b-leaf, role: leaf, plane: b}
nodes:
  - name: h1
    nics: [{device: eth1, plane: a}, {device: eth2, plane: b}]
links:
  - {a: "h1/eth1", b: "a-leaf:dn1"}
  - {a: "h1/eth2", b: "b-leaf:dn1"}
  - {a: "a-leaf:up1", b: "a-spine:dn1"}
  - {a: "b-leaf:up1", b: "b-spine:dn1"}
`

func TestConfigurationsOfFRR(t *testing.T) {
	for name, topo := range map[string]*fabric.Topology{"demo": load(t, demoFile), "clos3": load(t, clos3File), "odd": load(t, oddFile), "planes": parse(t, planesText), "demo-ipv6": load(t, demoFileV6)} {
		t.Run(name, func(t *testing.T) {
			x, err := planLayout("frr", topo)
			if err != nil {
				t.Fatal(err)
			}
			x.setRouting(RoutingFRR)
			var got strings.Builder
			for i := range x.Namespaces {
				if ns := &x.Namespaces[i]; ns.Switch {
					got.WriteString(zebraConfig(ns) + bfddConfig(ns) + x.bgpdConfig(ns))
				}
			}
			file := filepath.Join("testdata", "frr", name+".conf")
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("configurations differ from %s: see with go test ./internal/lab -run ConfigurationsOfFRR -update && git diff", file)
			}
		})
	}
}

func TestLinkLocalAddresses(t *testing.T) {
	// The example of RFC 4291 appendix A, with the universal bit of a locally administered address.
	for mac, want := range map[string]string{"34:56:78:9a:bc:de": "fe80::3656:78ff:fe9a:bcde", "02:38:1c:36:fa:48": "fe80::38:1cff:fe36:fa48"} {
		hw, err := net.ParseMAC(mac)
		if err != nil {
			t.Fatal(err)
		}
		if got := linkLocalOf(hw).String(); got != want {
			t.Errorf("MAC %s: %s, want %s", mac, got, want)
		}
	}
}

func TestDaemonDirectories(t *testing.T) {
	x, err := planLayout("frr", load(t, demoFile))
	if err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for root, want := range map[string]string{
		closed:                      "cannot enter " + closed,
		strings.Repeat("/long", 20): "at most 107",
		"/var/tmp/labs":             "outside /var/tmp",
		"/run":                      "",
	} {
		err := x.checkDaemonDirs(root, "frr")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want an error with %q", root, err, want)
		}
	}
	if err := CheckRouting("ospf"); err == nil || !strings.Contains(err.Error(), "static, frr") {
		t.Errorf("CheckRouting: %v, want an error that lists the kinds", err)
	}
}

// needsFRR skips a test on a machine without the package frr, of which vtysh is a part.
func needsFRR(t *testing.T) {
	t.Helper()
	needs(t, "vtysh")
	if _, err := findDaemons(); err != nil {
		t.Fatal(err)
	}
}

// frrName returns a name for a lab with FRR that no other run of the tests uses.
func frrName(suffix string) string { return fmt.Sprintf("frr%d-%s", os.Getpid(), suffix) }

// daemonsOf lists the processes that were started for a lab's directory, and what they left in directories of FRR.
func daemonsOf(name string) []string {
	var out []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), labDir(stateDir(), name)+"/frr/") {
			out = append(out, f)
		}
	}
	left, _ := filepath.Glob("/var/tmp/frr/*")
	return append(out, left...)
}

func upFRR(t *testing.T, file, suffix string) *Lab {
	t.Helper()
	needsFRR(t)
	before := daemonsOf(frrName(suffix))
	l, err := Up(t.Context(), load(t, file), Options{Name: frrName(suffix), Routing: RoutingFRR})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if left := append(leftovers(l.name), daemonsOf(l.name)...); !slices.Equal(left, before) {
			t.Errorf("left behind: %v, and before the lab there was %v", left, before)
		}
	})
	return l
}

// patience bounds the wait for FRR. It is for a lab that never gets there; a machine that does nothing else takes seconds.
const patience = time.Minute

// awaitTrue waits until check returns "", and fails with what it returned last.
func awaitTrue(t *testing.T, what string, check func() string) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		said := check()
		if said == "" {
			return time.Since(start)
		}
		if time.Since(start) > patience {
			t.Fatalf("%s: after %s: %s", what, patience, said)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// shortestPaths checks that the kernels' paths between all pairs of NICs are shortest paths of the topology, and that each
// shortest path between the first and the last NIC is used.
func shortestPaths(t *testing.T, l *Lab) {
	t.Helper()
	nics := l.x.graph.NICIDs()
	w, err := l.NewWalk()
	if err != nil {
		t.Fatal(err)
	}
	for _, src := range nics {
		for _, dst := range nics {
			if fabric.OwnerOf(src) == fabric.OwnerOf(dst) {
				continue
			}
			want, used, ports := map[string]bool{}, map[string]bool{}, uint16(20002)
			for _, p := range l.x.graph.ShortestPaths(src, dst, 64) {
				want[p.CanonicalKey()] = true
			}
			if src == nics[0] && dst == nics[len(nics)-1] {
				ports = 20256
			}
			for sport := uint16(20000); sport < ports; sport++ {
				p, err := w.KernelPath(t.Context(), l.addr(src), l.addr(dst), syscall.IPPROTO_UDP, sport, 862)
				if err != nil {
					t.Fatal(err)
				}
				if used[p.CanonicalKey()] = true; !want[p.CanonicalKey()] {
					t.Errorf("%s to %s: %s is no shortest path", src, dst, p.CanonicalKey())
				}
			}
			if ports == 20256 && len(used) != len(want) {
				t.Errorf("%s to %s: 256 flows use %d of %d paths", src, dst, len(used), len(want))
			}
		}
	}
}

func TestFabricRoutesItself(t *testing.T) {
	for family, file := range map[string]string{FamilyIPv4: demoFile, FamilyIPv6: demoFileV6} {
		t.Run(family, func(t *testing.T) { routesItself(t, upFRR(t, file, "two")) })
	}
}

func routesItself(t *testing.T, l *Lab) {
	shortestPaths(t, l)
	leaf2 := l.x.byElement["leaf2"]
	all := l.x.computeRoutes(nil, nil)
	whole := all["leaf2"]
	without := l.x.computeRoutes(linkSet{"leaf1:up1--spine1:dn1": true}, linkSet{"leaf1:up1--spine1:dn1": true})["leaf2"]
	routesAre := func(want []route) func() string {
		return func() string {
			differs, err := l.x.compareRoutes(leaf2, want)
			if err != nil {
				t.Fatal(err)
			}
			return differs
		}
	}
	t.Run("sessions survive a blackhole", func(t *testing.T) {
		awaitTrue(t, "BFD", func() string { return bfdOf(t, l, "leaf1") })
		f := pickFlow(t, l, "h1/eth1", "h7/eth1", oneWay(upward))
		af := addFault(t, l, Fault{Kind: KindBlackhole, At: spineLink, Direction: upward.String()})
		// Packets go for longer than BFD waits.
		if r := measure(t, l, f, 200, 5*time.Millisecond, 100*time.Millisecond); r.gotThere > 0 {
			t.Errorf("%d of %d packets came through a blackhole", r.gotThere, r.sent)
		}
		if said := bfdOf(t, l, "leaf1"); said != "" {
			t.Errorf("a blackhole of what is forwarded ends sessions: %s", said)
		}
		if err := l.ClearFault(t.Context(), af.ID); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("link down", func(t *testing.T) {
		f := addFault(t, l, Fault{Kind: KindLinkDown, At: "leaf1:up1--spine1:dn1"})
		if f.Helper.PID != 0 || f.Withdrawn {
			t.Errorf("the lab withdraws routes itself: %+v", f)
		}
		t.Logf("withdrawn at leaf2 after %s", awaitTrue(t, "withdrawal", routesAre(without)))
		if err := l.ClearFault(t.Context(), f.ID); err != nil {
			t.Fatal(err)
		}
		t.Logf("back at leaf2 after %s", awaitTrue(t, "return", routesAre(whole)))
		for _, end := range []string{"leaf1", "spine1"} {
			awaitTrue(t, "return at "+end, func() string {
				differs, err := l.x.compareRoutes(l.x.byElement[end], all[end])
				if err != nil {
					t.Fatal(err)
				}
				return differs
			})
		}
	})
	t.Run("BFD", func(t *testing.T) {
		awaitTrue(t, "BFD", func() string { return bfdOf(t, l, "leaf2") })
		// The link keeps its carrier: only BFD notices before BGP's hold time of 9 s that spine1 is silent.
		pid := daemonPID(t, l, "spine1", "bfdd")
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		toH1 := route{dst: l.x.byEnd["h1/eth1"].Address.Masked(), hops: []hop{{end: "leaf2:up2", gateway: l.x.byEnd["leaf2:up2"].PeerAdr}}}
		t.Logf("withdrawn at leaf2 after %s", awaitTrue(t, "end of the sessions", routesAre([]route{toH1})))
		if why := vtysh(t, l, "leaf2", "show bgp neighbors up1 json"); !strings.Contains(why, "BFD") {
			t.Errorf("the session ended for another reason than BFD: %s", why)
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		awaitTrue(t, "return", routesAre(whole))
	})
	t.Run("another process takes it down", func(t *testing.T) {
		if s, err := l.Status(t.Context()); err != nil || s.Routing != RoutingFRR || s.Namespaces[0].Routes != s.Namespaces[0].RoutesWant || len(s.Namespaces[0].Processes) != len(frrDaemons) {
			t.Errorf("status: %+v, %v", s, err)
		}
		if err := Down(t.Context(), l.name); err != nil {
			t.Fatal(err)
		}
	})
}

// bfdOf returns "" if all sessions of BFD of a switch are up, or else their states.
func bfdOf(t *testing.T, l *Lab, element string) string {
	t.Helper()
	var peers []struct{ Status string }
	said := vtysh(t, l, element, "show bfd peers json")
	if err := json.Unmarshal([]byte(said), &peers); err != nil {
		t.Fatalf("sessions of BFD: %v: %s", err, said)
	}
	links := 0
	for _, i := range l.x.byElement[element].Interfaces {
		if i.Unnumbered {
			links++
		}
	}
	for _, p := range peers {
		if p.Status == "up" {
			links--
		}
	}
	if links == 0 {
		return ""
	}
	return said
}

func vtysh(t *testing.T, l *Lab, element, command string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "vtysh", "--vty_socket", daemonDir(l.root, l.name, element), "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

func daemonPID(t *testing.T, l *Lab, element, daemon string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(daemonDir(l.root, l.name, element), daemon+".pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestKilledOwnerOfDaemons(t *testing.T) {
	needsFRR(t)
	name := frrName("owner")
	before := daemonsOf(name)
	defer Down(context.Background(), name)
	owner, _ := startOwner(t, name, RoutingFRR)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	owner.Wait()
	if err := Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if left := append(leftovers(name), daemonsOf(name)...); !slices.Equal(left, before) {
		t.Errorf("left behind: %v, and before the lab there was %v", left, before)
	}
}
