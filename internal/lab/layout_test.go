package lab

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

func TestIfName(t *testing.T) {
	for _, c := range []struct{ port, want string }{
		{"up1", "up1"},
		{"mlx5_0.2", "mlx5_0.2"},
		{"Ethernet1/12", "Ethernet1-12"},
		{"swp1s0", "swp1s0"},
		{"lo", "plo"},
		{"all", "pall"},
		{"default", "pdefault"},
		{"-x", "p-x"},
		{".", "p."},
		{"..", "p.."},
		{"eth+", "eth-"},
		{"eth%d", "eth-d"},
		{"pörtchen", "p-rtchen"},
	} {
		if got := ifName(c.port, map[string]bool{}); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.port, got, c.want)
		}
	}
	taken := map[string]bool{}
	a, b, c := ifName("Ethernet1/1", taken), ifName("Ethernet1-1", taken), ifName("Ethernet1:1", taken)
	if a == b || b == c || a == c {
		t.Errorf("three ports share names: %q %q %q", a, b, c)
	}
}

// validIfName is dev_valid_name of the kernel, and what iptables and sysctl need beyond.
var validIfName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,14}$`)

func FuzzIfName(f *testing.F) {
	for _, s := range []string{"up1", "Ethernet1/12", "FourHundredGigabitEthernet1/0/2", "", "..", "\x00", "ü"} {
		f.Add(s, s+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		taken := map[string]bool{}
		x, y := ifName(a, taken), ifName(b, taken)
		for _, n := range []string{x, y} {
			if !validIfName.MatchString(n) || n == "lo" || n == "all" || n == "default" {
				t.Errorf("%q, %q become %q, %q: not names of interfaces", a, b, x, y)
			}
		}
		if x == y {
			t.Errorf("%q and %q share the name %q", a, b, x)
		}
		if again := ifName(a, map[string]bool{}); again != x {
			t.Errorf("%q becomes %q and then %q", a, x, again)
		}
	})
}

func FuzzParseProcStat(f *testing.F) {
	f.Add("1 (a) b) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 3 0 42 1 1")
	f.Add("")
	f.Add("1 (x)")
	f.Fuzz(func(t *testing.T, s string) {
		st, err := parseProcStat(s)
		if err == nil && (st.state == "" || !strings.Contains(s, fmt.Sprint(st.start))) {
			t.Errorf("%q gives %+v", s, st)
		}
	})
}

func TestParseProcStat(t *testing.T) {
	got, err := parseProcStat("1 (a) b) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 3 0 42 1 1")
	if want := (stat{"S", 3, 42}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"x","layout":{"topology":{}}}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		st, err := parseState("state.json", data)
		if err == nil && (st.Layout == nil || st.Layout.Topology == nil) {
			t.Errorf("%q is accepted without a layout", data)
		}
	})
}

func TestCompletedTopologyPassesTheCheckAndIsStable(t *testing.T) {
	for _, file := range []string{demoFile, clos3File, oddFile} {
		topo := load(t, file)
		before := fmt.Sprintf("%+v", *topo)
		x, err := planLayout("x", topo)
		if err != nil {
			t.Fatal(err)
		}
		again, err := planLayout("x", load(t, file))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(x.Layout, again.Layout) {
			t.Errorf("%s: the same file is laid out in two ways", file)
		}
		if after := fmt.Sprintf("%+v", *topo); after != before {
			t.Errorf("%s: plan changed its argument", file)
		}
		seen := map[netip.Addr]string{}
		for _, l := range x.Topology.Links {
			for end, p := range map[string]netip.Prefix{l.A: l.AAddress, l.B: l.BAddress} {
				if !p.IsValid() || seen[p.Addr()] != "" {
					t.Errorf("%s: %s has address %s, as has %q", file, end, p, seen[p.Addr()])
				}
				seen[p.Addr()] = end
			}
			if l.AAddress.Masked() != l.BAddress.Masked() {
				t.Errorf("%s: %s joins %s and %s", file, l.ID(), l.AAddress, l.BAddress)
			}
		}
		g := fabric.NewGraph(x.Topology)
		for _, nic := range g.NICIDs() {
			if a := g.ProbeAddress(nic); !a.IsValid() || g.EndOf(a) != nic {
				t.Errorf("%s: NIC %s has address %s, which is that of %q", file, nic, a, g.EndOf(a))
			}
		}
		// What a lab remembers is what it was.
		data, err := json.Marshal(x.Layout)
		if err != nil {
			t.Fatal(err)
		}
		var back Layout
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		if len(back.Topology.Links) != len(x.Topology.Links) || back.Topology.Links[0].AAddress != x.Topology.Links[0].AAddress {
			t.Errorf("%s: the layout does not survive its file", file)
		}
	}
}

func TestAddressesOfTheFileAreKept(t *testing.T) {
	x, err := planLayout("x", load(t, oddFile))
	if err != nil {
		t.Fatal(err)
	}
	for end, want := range map[string]string{
		"n2/eth1":             "10.9.0.5/24",
		"n3/eth1":             "10.9.0.6/24",
		"n4/rdma/port1":       "10.8.0.1/30",
		"leaf-3:all":          "10.8.0.2/30",
		"leaf-1:Ethernet1/12": "192.168.7.1/30",
	} {
		if got := x.byEnd[end].Address.String(); got != want {
			t.Errorf("%s has %s, want %s", end, got, want)
		}
	}
}

func parse(t *testing.T, text string) *fabric.Topology {
	t.Helper()
	topo, findings := fabric.ParseTopology("test", []byte(text))
	if err := findings.Err(); err != nil {
		t.Fatal(err)
	}
	return topo
}

const small = `
version: 1
switches: [{name: s, role: leaf}]
nodes:
  - {name: a, nics: [{device: e%s}]}
  - {name: b, nics: [{device: e}]}
links:
  - {a: "a/e", b: "s:1"%s}
  - {a: "b/e", b: "s:2"}
`

func TestPlanErrors(t *testing.T) {
	for _, c := range []struct{ name, nic, link, lab, want string }{
		{"lab name", "", "", "a/b", `lab name "a/b"`},
		{"two families", ", addresses: [10.1.2.3]", ", b_address: 'fd00::1/64'", "x",
			`line 8: link "a/e--s:1" has address fd00::1: all addresses of a lab are of one family, and this one's is IPv4 (line 5 has 10.1.2.3)`},
		{"two families, IPv6 first", ", addresses: ['fd00::1']", ", b_address: 10.1.2.3/24", "x", "this one's is IPv6 (line 5 has fd00::1)"},
		{"a link-local address", ", addresses: ['fe80::1']", "", "x", `line 5: NIC "a/e" has address fe80::1: want one that packets are forwarded to`},
		{"IPv4 in IPv6", "", ", a_address: '::ffff:10.1.2.3/128'", "x", "::ffff:10.1.2.3"},
		{"no room for the peer's IPv6", "", ", a_address: 'fd00::1/128'", "x", "no free address is left in fd00::1/128"},
		{"no room for the peer", "", ", a_address: 10.0.0.1/32", "x", "no free address is left in 10.0.0.1/32"},
	} {
		_, err := planLayout(c.lab, parse(t, fmt.Sprintf(small, c.nic, c.link)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestRoutesFollowShortestPathsOnly(t *testing.T) {
	x, err := planLayout("x", load(t, clos3File))
	if err != nil {
		t.Fatal(err)
	}
	hops := func(down, withdrawn linkSet, sw, nic string) []string {
		dst := x.byEnd[nic].Address.Masked()
		ends := []string{}
		for _, r := range x.computeRoutes(down, withdrawn)[sw] {
			if r.dst == dst {
				for _, h := range r.hops {
					ends = append(ends, h.end)
				}
			}
		}
		return ends
	}
	cut := linkSet{"p1l1:up1--p1s1:dn1": true}
	both := linkSet{"p1l1:up1--p1s1:dn1": true, "p1l1:up2--p1s2:dn1": true}
	for _, c := range []struct {
		name            string
		down, withdrawn linkSet
		sw              string
		want            []string
	}{
		{"all up", nil, nil, "p2l1", []string{"p2l1:up1", "p2l1:up2"}},
		{"all up, core", nil, nil, "core1", []string{"core1:p1s1", "core1:p1s2"}},
		{"down, unnoticed elsewhere", cut, nil, "core1", []string{"core1:p1s1", "core1:p1s2"}},
		{"down, gone at its end", cut, nil, "p1s1", []string{}},
		{"withdrawn, neighbour in the pod", cut, cut, "p1l2", []string{"p1l2:up2"}},
		{"withdrawn, core", cut, cut, "core1", []string{"core1:p1s2"}},
		{"withdrawn, far leaf keeps both", cut, cut, "p2l1", []string{"p2l1:up1", "p2l1:up2"}},
		{"cut off, no switch offers it", both, both, "p2l1", []string{}},
		{"cut off, core", both, both, "core2", []string{}},
	} {
		if got := hops(c.down, c.withdrawn, c.sw, "h1/eth1"); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %s reaches h1 by %v, want %v", c.name, c.sw, got, c.want)
		}
	}
}

func TestResolveFaults(t *testing.T) {
	x, err := planLayout("x", load(t, demoFile))
	if err != nil {
		t.Fatal(err)
	}
	const ms = time.Millisecond
	no, yes := func() bool { return false }, func() bool { return true }
	for _, c := range []struct {
		fault     Fault
		netem     func() bool
		direction string
		mechanism string
		where     string // the rules: element, chain and interface
		bad       string
	}{
		{fault: Fault{Kind: "delay", At: spineLink}, netem: no, direction: "leaf1:up1->spine1:dn1", mechanism: "relay", where: "leaf1 POSTROUTING -o up1"},
		{fault: Fault{Kind: "delay", At: "spine1:dn1--leaf1:up1"}, netem: no, direction: "spine1:dn1->leaf1:up1", mechanism: "relay", where: "spine1 POSTROUTING -o dn1"},
		{fault: Fault{Kind: "delay", At: spineLink, Direction: "spine1:dn1->leaf1:up1"}, netem: no, direction: "spine1:dn1->leaf1:up1", mechanism: "relay", where: "spine1 POSTROUTING -o dn1"},
		{fault: Fault{Kind: "delay", At: spineLink}, netem: yes, direction: "leaf1:up1->spine1:dn1", mechanism: "netem"},
		{fault: Fault{Kind: "delay", At: "h1/eth1->leaf1:dn1"}, netem: yes, direction: "h1/eth1->leaf1:dn1", mechanism: "relay", where: "leaf1 PREROUTING -i dn1"},
		{fault: Fault{Kind: "blackhole", At: spineLink}, netem: yes, direction: "leaf1:up1->spine1:dn1", mechanism: "iptables", where: "leaf1 POSTROUTING -o up1 -j DROP"},
		{fault: Fault{Kind: "loss", At: spineLink, Loss: 1}, netem: no, direction: "leaf1:up1->spine1:dn1", mechanism: "iptables", where: "leaf1 POSTROUTING -o up1 -j DROP"},
		{fault: Fault{Kind: "loss", At: spineLink, Loss: 0.25}, netem: no, direction: "leaf1:up1->spine1:dn1", mechanism: "iptables",
			where: "leaf1 POSTROUTING -o up1 -m statistic --mode random --probability 0.25 -j DROP"},
		{fault: Fault{Kind: "nic-slow", At: "h1/eth1", Direction: "in"}, netem: no, direction: "in", mechanism: "relay", where: "leaf1 POSTROUTING -o dn1"},
		{fault: Fault{Kind: "nic-slow", At: "h1/eth1", Direction: "out"}, netem: yes, direction: "out", mechanism: "relay", where: "leaf1 PREROUTING -i dn1"},
		{fault: Fault{Kind: "nic-slow", At: "h1/eth1"}, netem: yes, direction: "both", mechanism: "relay", where: "leaf1 POSTROUTING -o dn1; leaf1 PREROUTING -i dn1"},
		{fault: Fault{Kind: "switch-slow", At: "spine2"}, netem: yes, mechanism: "relay", where: "spine2 FORWARD"},
		{fault: Fault{Kind: "link-down", At: "spine1:dn1--leaf1:up1"}, netem: no, mechanism: "routes"},
		{fault: Fault{Kind: "host-stall", At: "h3"}, netem: no, mechanism: "signals"},
		{fault: Fault{Kind: "clock-step", At: "h3/eth1", Step: -ms}, netem: no, mechanism: "bend"},
		{fault: Fault{Kind: "clock-drift", At: "h3/eth1", DriftPPM: -3}, netem: no, mechanism: "bend"},

		{fault: Fault{Kind: "clock-step", At: "h3"}, netem: no, bad: "is not a NIC"},
		{fault: Fault{Kind: "clock-step", At: "h3/eth1", Step: 2 * time.Hour}, netem: no, bad: "step 2h0m0s"},
		{fault: Fault{Kind: "clock-drift", At: "h3/eth1", DriftPPM: -1e6}, netem: no, bad: "drift -1e+06 ppm"},
		{fault: Fault{Kind: "clock-drift", At: "h3/eth1", DriftPPM: math.NaN()}, netem: no, bad: "drift NaN ppm"},
		{fault: Fault{Kind: "clock-step", At: "h3/eth1", Direction: "in"}, netem: no, bad: "has none"},
		{fault: Fault{Kind: "melt", At: "h3"}, netem: no, bad: `fault kind "melt"`},
		{fault: Fault{Kind: "delay", At: "leaf1"}, netem: no, bad: "is not a link"},
		{fault: Fault{Kind: "delay", At: "leaf1:up1--spine2:dn1"}, netem: no, bad: "no link between"},
		{fault: Fault{Kind: "delay", At: spineLink, Direction: "leaf2:up1->spine1:dn2"}, netem: no, bad: "is not a direction of"},
		{fault: Fault{Kind: "delay", At: spineLink, Direction: "in"}, netem: no, bad: "want FROM->TO"},
		{fault: Fault{Kind: "delay", At: spineLink, Delay: -1}, netem: no, bad: "delay -1ns"},
		{fault: Fault{Kind: "delay", At: spineLink, Delay: time.Hour}, netem: no, bad: "at most 10s"},
		{fault: Fault{Kind: "loss", At: spineLink, Loss: 1.5}, netem: no, bad: "loss 1.5"},
		{fault: Fault{Kind: "link-down", At: "h1/eth1--leaf1:dn1"}, netem: no, bad: "access link"},
		{fault: Fault{Kind: "link-down", At: "leaf1:up1->spine1:dn1"}, netem: no, bad: "one direction"},
		{fault: Fault{Kind: "link-down", At: spineLink, Direction: "leaf1:up1->spine1:dn1"}, netem: no, bad: "has none"},
		{fault: Fault{Kind: "nic-slow", At: "h1"}, netem: no, bad: "is not a NIC"},
		{fault: Fault{Kind: "nic-slow", At: "h1/eth1", Direction: "up"}, netem: no, bad: "want in, out or both"},
		{fault: Fault{Kind: "switch-slow", At: "h1"}, netem: no, bad: "is not a switch"},
		{fault: Fault{Kind: "host-stall", At: "leaf1"}, netem: no, bad: "is not a node"},
	} {
		got, err := x.resolveFault(c.fault, c.netem)
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%+v: %v, want an error with %q", c.fault, err, c.bad)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c.fault, err)
			continue
		}
		var where []string
		for _, r := range got.Rules {
			where = append(where, strings.TrimSpace(r.Element+" "+r.Chain+" "+strings.Join(r.Args, " ")))
		}
		if got.Direction != c.direction || got.Mechanism != c.mechanism || strings.Join(where, "; ") != c.where {
			t.Errorf("%+v: direction %q by %s at %q; want %q by %s at %q", c.fault, got.Direction, got.Mechanism, where, c.direction, c.mechanism, c.where)
		}
		if got.Mechanism == "relay" && got.Delay != 2*ms {
			t.Errorf("%+v: delay %s, want the default", c.fault, got.Delay)
		}
	}
}
