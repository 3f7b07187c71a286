package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/unix"
)

func TestResolveRoutingFaults(t *testing.T) {
	layouts := map[string]*index{}
	for name, file := range map[string]string{"demo": demoFile, "clos3": clos3File, "static": demoFile} {
		x, err := planLayout("x", load(t, file))
		if err != nil {
			t.Fatal(err)
		}
		if name != "static" {
			x.setRouting(RoutingFRR)
		}
		layouts[name] = x
	}
	for _, c := range []struct {
		layout    string // demo where empty
		fault     Fault
		mechanism string
		what      string // what it is about: prefixes, switches, the port, the rules
		bad       string
	}{
		{fault: Fault{Kind: "bgp-flap", At: "spine1:dn1--leaf1:up1"}, mechanism: "frr", what: "spine1:dn1 10s"},
		{fault: Fault{Kind: "bfd-false", At: "spine1:dn1->leaf1:up1", Period: 3 * time.Second}, mechanism: "iptables", what: "spine1 ipv6 POSTROUTING -o dn1 -p udp --dport 3784 -j DROP 3s"},
		{fault: Fault{Kind: "withdrawn", At: "spine1->leaf3"}, mechanism: "frr", what: "10.0.5.0/24 10.0.6.0/24 172.16.0.13/32"},
		{fault: Fault{Kind: "wrong-as-path", At: "spine1->10.0.6.0/24"}, mechanism: "frr", what: "10.0.6.0/24"},
		{fault: Fault{Kind: "blackhole-fib", At: "leaf1->leaf3", Paths: 1}, mechanism: "routes", what: "10.0.5.0/24 10.0.6.0/24 172.16.0.13/32 1 paths"},
		{fault: Fault{Kind: "blackhole-fib", At: "spine1->leaf3"}, mechanism: "routes", what: "10.0.5.0/24 10.0.6.0/24 172.16.0.13/32"},
		{fault: Fault{Kind: "ecmp-shrunk", At: "leaf1"}, mechanism: "frr", what: "1 paths"},
		{fault: Fault{Kind: "slow-convergence", At: "leaf1"}, mechanism: "frr", what: "hold 9s"},
		{fault: Fault{Kind: "blackhole", At: spineLink, Sessions: true}, mechanism: "iptables", what: "leaf1 POSTROUTING -o up1 -j DROP leaf1 ipv6 POSTROUTING -o up1 -j DROP"},
		{layout: "clos3", fault: Fault{Kind: "polarized", At: "p1s1"}, mechanism: "hash", what: "p1s1 p1l1 p1l2"},
		{layout: "clos3", fault: Fault{Kind: "polarized", At: "tier1,tier2"}, mechanism: "hash", what: "p1s1 p1s2 p1l1 p1l2 p2s1 p2s2 p2l1 p2l2"},

		{layout: "static", fault: Fault{Kind: "withdrawn", At: "spine1->leaf3"}, bad: "withdrawn needs switches that run FRR"},
		{layout: "static", fault: Fault{Kind: "blackhole", At: spineLink, Sessions: true}, bad: "needs switches that run FRR"},
		{fault: Fault{Kind: "bgp-flap", At: "h1/eth1--leaf1:dn1"}, bad: "between switches"},
		{fault: Fault{Kind: "bgp-flap", At: "leaf1:up1->spine1:dn1"}, bad: "between switches"},
		{fault: Fault{Kind: "bgp-flap", At: spineLink, Period: time.Second}, bad: "period 1s"},
		{fault: Fault{Kind: "bgp-flap", At: spineLink, Direction: "leaf1:up1->spine1:dn1"}, bad: "has none"},
		{fault: Fault{Kind: "bfd-false", At: "h1/eth1--leaf1:dn1"}, bad: "access link"},
		{fault: Fault{Kind: "withdrawn", At: "spine1"}, bad: "SWITCH->LEAF"},
		{fault: Fault{Kind: "withdrawn", At: "h1->leaf1"}, bad: "SWITCH->LEAF"},
		{fault: Fault{Kind: "withdrawn", At: "spine1->h1"}, bad: `"h1" is neither a switch of the lab nor a prefix`},
		{fault: Fault{Kind: "withdrawn", At: "spine1->10.9.0.0/24"}, bad: "no switch announces the prefix 10.9.0.0/24"},
		{fault: Fault{Kind: "withdrawn", At: "leaf1->leaf1"}, bad: "at another switch"},
		{fault: Fault{Kind: "blackhole-fib", At: "spine1->leaf3", Paths: 1}, bad: "have 1 next hops, want more than 1"},
		{fault: Fault{Kind: "blackhole-fib", At: "leaf1->leaf3", Paths: -1}, bad: "paths -1"},
		{fault: Fault{Kind: "ecmp-shrunk", At: "spine1"}, bad: "no route of spine1 to a node has more than 1 next hops"},
		{fault: Fault{Kind: "ecmp-shrunk", At: "h1"}, bad: "is not a switch"},
		{fault: Fault{Kind: "slow-convergence", At: "leaf1", Hold: time.Second}, bad: "hold time 1s"},
		{fault: Fault{Kind: "slow-convergence", At: "leaf1", Hold: 3500 * time.Millisecond}, bad: "whole seconds"},
		{fault: Fault{Kind: "polarized", At: "spine1"}, bad: "three tiers, or parallel links"},
		{layout: "clos3", fault: Fault{Kind: "polarized", At: "tier2,tier2"}, bad: "two tiers such as tier1,tier2"},
		{layout: "clos3", fault: Fault{Kind: "polarized", At: "tier1,tier3"}, bad: "both choose among equal paths"},
		{layout: "clos3", fault: Fault{Kind: "polarized", At: "tier1"}, bad: "two tiers such as tier1,tier2"},
	} {
		if c.layout == "" {
			c.layout = "demo"
		}
		got, err := layouts[c.layout].resolveFault(c.fault, func() bool { return false })
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
		if what := describeRouting(got); got.Mechanism != c.mechanism || what != c.what {
			t.Errorf("%+v: by %s, about %q; want by %s, about %q", c.fault, got.Mechanism, what, c.mechanism, c.what)
		}
	}
}

// describeRouting returns what a fault is about, as the table of TestResolveRoutingFaults has it.
func describeRouting(f ActiveFault) string {
	what := slices.Clone(f.Alike)
	for _, p := range f.Prefixes {
		what = append(what, p.String())
	}
	if f.ResetAt != "" {
		what = append(what, f.ResetAt)
	}
	for _, r := range f.Rules {
		what = append(what, r.Element)
		if r.IPv6 {
			what = append(what, "ipv6")
		}
		what = append(what, r.Chain)
		what = append(what, r.Args...)
	}
	if f.Paths > 0 {
		what = append(what, fmt.Sprint(f.Paths, " paths"))
	}
	if f.Period > 0 {
		what = append(what, f.Period.String())
	}
	if f.Hold > 0 {
		what = append(what, "hold "+f.Hold.String())
	}
	return strings.Join(what, " ")
}

func TestRoutingPlaces(t *testing.T) {
	for _, c := range []struct {
		file, kind string
		n          int
		one, not   string
	}{
		{demoFile, KindBGPFlap, 8, spineLink, "h1/eth1--leaf1:dn1"},
		{demoFile, KindBFDFalse, 8, spineLink, "h1/eth1--leaf1:dn1"},
		{demoFile, KindWithdrawn, 8, "spine1->leaf3", "leaf1->leaf3"},
		{demoFile, KindWrongASPath, 8, "spine2->leaf1", "leaf1->leaf3"},
		{demoFile, KindBlackholeFIB, 20, "leaf1->leaf3", "leaf1->leaf1"},
		{demoFile, KindECMPShrunk, 4, "leaf1", "spine1"},
		{demoFile, KindSlowConvergence, 6, "spine1", "h1"},
		{demoFile, KindPolarized, 0, "", "spine1"},
		// Both spines of a leaf's own pod and of the other, and both cores.
		{clos3File, KindWithdrawn, 24, "p1s1->p2l1", "p1l1->p2l1"},
		{clos3File, KindBlackholeFIB, 36, "core1->p2l1", "p1l1->p1l1"},
		{clos3File, KindPolarized, 6, "core1", "p1l1"},
	} {
		got, err := RoutingPlaces(load(t, c.file), c.kind)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != c.n || c.one != "" && !slices.Contains(got, c.one) || slices.Contains(got, c.not) {
			t.Errorf("%s in %s: %d places %q, want %d, with %q and without %q", c.kind, c.file, len(got), got, c.n, c.one, c.not)
		}
	}
}

func TestParseRIB(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "frr", "route.json"))
	if err != nil {
		t.Fatal(err)
	}
	rib, err := parseRIB(data)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"10.0.3.0/24": "[up1 up2]", "10.0.5.0/24": "[up2]"}
	if len(rib) != len(want) {
		t.Errorf("%v, want %v", rib, want)
	}
	for p, ports := range want {
		if got := fmt.Sprint(rib[netip.MustParsePrefix(p)]); got != ports {
			t.Errorf("%s by %s, want %s", p, got, ports)
		}
	}
	for _, bad := range []string{"", "[]", `{"10.0.3.0":[]}`, "% Unknown command"} {
		if _, err := parseRIB([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzParseRIB(f *testing.F) {
	data, err := os.ReadFile(filepath.Join("testdata", "frr", "route.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"10.0.3.0/24":[{"protocol":"bgp","selected":true,"nexthops":[{"interfaceName":"up1","active":true},null]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rib, err := parseRIB(data)
		if err != nil {
			return
		}
		for p, ports := range rib {
			if !p.IsValid() || len(ports) > len(data) || !slices.IsSorted(ports) {
				t.Errorf("%v by %v", p, ports)
			}
		}
	})
}

// routedFabric is a fabric of three tiers that routes itself, with what it was before the first fault.
type routedFabric struct {
	*Lab
	configs map[string]string // running configurations
}

func upRouted(t *testing.T) *routedFabric {
	l := upFRR(t, clos3File, "faults")
	r := &routedFabric{l, map[string]string{}}
	for _, ns := range l.x.Namespaces {
		if ns.Switch {
			r.configs[ns.Element] = vtysh(t, l, ns.Element, "show running-config")
		}
	}
	return r
}

// checkWhole fails unless the fabric is as it was built: configurations, routes of all kernels, sessions of BFD, hash seeds.
func (r *routedFabric) checkWhole(t *testing.T) {
	t.Helper()
	want := r.x.computeRoutes(nil, nil)
	for sw, config := range r.configs {
		ns := r.x.byElement[sw]
		if got := vtysh(t, r.Lab, sw, "show running-config"); got != config {
			t.Errorf("%s: the running configuration has changed: %s", sw, diff(config, got))
		}
		awaitTrue(t, "routes of "+sw, func() string {
			differs, err := r.x.compareRoutes(ns, want[sw])
			if err != nil {
				t.Fatal(err)
			}
			return differs
		})
		awaitTrue(t, "BFD of "+sw, func() string { return bfdOf(t, r.Lab, sw) })
		var seed []byte
		err := unix.InNetns(ns.Netns, func() (err error) {
			seed, err = os.ReadFile(filepath.Join("/proc/sys/net", hashSeedSetting(ns).path))
			return err
		})
		if got := strings.TrimSpace(string(seed)); err != nil || got != fmt.Sprint(ns.HashSeed) {
			t.Errorf("%s: hash seed %s, %v, want %d", sw, got, err, ns.HashSeed)
		}
	}
}

// prefixOfNIC returns the prefix that a NIC's leaf announces for it.
func (r *routedFabric) prefixOfNIC(nic string) netip.Prefix { return r.x.byEnd[nic].Address.Masked() }

// kernelPorts returns the ports by which the kernel of a switch sends to a NIC: [] for a blackhole, or "no route".
func (r *routedFabric) kernelPorts(t *testing.T, sw, nic string) string {
	t.Helper()
	var have map[netip.Prefix][]string
	err := unix.InNetns(r.x.byElement[sw].Netns, func() error {
		return withHandle(func(h *netlink.Handle) (err error) {
			have, err = learnedRoutes(h, ipv4Family)
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	ports, ok := have[r.prefixOfNIC(nic)]
	if !ok {
		return "no route"
	}
	return fmt.Sprint(ports)
}

// ribPorts returns the ports that FRR of a switch has selected for a NIC.
func (r *routedFabric) ribPorts(t *testing.T, sw, nic string) string {
	t.Helper()
	rib, err := selectedRoutes(t.Context(), r.root, r.name, sw)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(rib[r.prefixOfNIC(nic)])
}

// pathsUsed returns the switches on the kernels' paths of 256 flows, each path as its switches.
func (r *routedFabric) pathsUsed(t *testing.T, src, dst string) []string {
	t.Helper()
	w, err := r.NewWalk()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for sport := uint16(20000); sport < 20256; sport++ {
		p, err := w.KernelPath(t.Context(), r.addr(src), r.addr(dst), syscall.IPPROTO_UDP, sport, echoPort)
		if err != nil {
			return []string{err.Error()}
		}
		var switches []string
		for _, h := range p {
			switches = append(switches, h.Switch)
		}
		if s := strings.Join(switches, " "); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return out
}

// session returns what FRR of a switch says of its session of BGP at a port.
func (r *routedFabric) session(t *testing.T, sw, port string) (s struct {
	BgpState           string
	ConnectionsDropped int
}) {
	t.Helper()
	var all map[string]json.RawMessage
	said := vtysh(t, r.Lab, sw, "show bgp neighbors "+port+" json")
	if err := json.Unmarshal([]byte(said), &all); err != nil {
		t.Fatalf("session of %s: %v: %s", port, err, said)
	}
	if err := json.Unmarshal(all[port], &s); err != nil {
		t.Fatalf("session of %s: %v: %s", port, err, said)
	}
	return s
}

// downsOfBFD returns how often the session of BFD at a port of a switch went down.
func (r *routedFabric) downsOfBFD(t *testing.T, sw, port string) int {
	t.Helper()
	var peers []struct {
		Interface string
		Downs     int `json:"session-down"`
	}
	said := vtysh(t, r.Lab, sw, "show bfd peers counters json")
	if err := json.Unmarshal([]byte(said), &peers); err != nil {
		t.Fatalf("sessions of BFD: %v: %s", err, said)
	}
	for _, p := range peers {
		if p.Interface == port {
			return p.Downs
		}
	}
	t.Fatalf("%s has no session of BFD at %s: %s", sw, port, said)
	return 0
}

// isTrue returns a check for awaitTrue.
func isTrue(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

func TestRoutingFaults(t *testing.T) {
	needs(t, "iptables")
	r := upRouted(t)
	awaitTrue(t, "BFD", func() string { return bfdOf(t, r.Lab, "p1l1") })
	// h1 and h2 are at p1l1, h3 and h4 at p1l2, h5 and h6 at p2l1.
	for _, c := range []struct {
		fault Fault
		shows func(*testing.T, *routedFabric)
		long  bool // only with the tag all
	}{
		{Fault{Kind: KindWithdrawn, At: "p1s1->p1l2"}, showsWithdrawn, false},
		{Fault{Kind: KindWrongASPath, At: "p1s1->p1l2"}, showsWrongASPath, false},
		{Fault{Kind: KindECMPShrunk, At: "p1l1"}, showsShrunk, false},
		{Fault{Kind: KindBlackholeFIB, At: "p1l1->p1l2"}, showsBlackhole, false},
		{Fault{Kind: KindBlackholeFIB, At: "p1l1->p1l2", Paths: 1}, showsFewerHops, true},
		{Fault{Kind: KindPolarized, At: "tier1,tier2"}, showsPolarized, false},
		{Fault{Kind: KindPolarized, At: "p1s1"}, showsPolarizedSwitch, true},
		{Fault{Kind: KindSlowConvergence, At: "p1s1", Hold: 3 * time.Second}, showsSlowConvergence, true},
		{Fault{Kind: KindBGPFlap, At: "p1l1:up1--p1s1:dn1", Period: 2 * time.Second}, showsFlaps, false},
		{Fault{Kind: KindBFDFalse, At: "p1s1:dn1->p1l1:up1", Period: 3 * time.Second}, showsFalseBFD, false},
	} {
		if c.long && !withLongFaults {
			continue
		}
		t.Run(c.fault.Kind, func(t *testing.T) {
			f := addFault(t, r.Lab, c.fault)
			c.shows(t, r)
			clearFaults(t, r.Lab)
			r.checkWhole(t)
			if f.Helper.PID != 0 && f.Helper.isAlive() {
				t.Errorf("the helper of the cleared fault runs: process %d", f.Helper.PID)
			}
		})
	}
	shortestPaths(t, r.Lab)
	if !withLongFaults {
		return
	}
	t.Run("two at one switch", func(t *testing.T) {
		addFault(t, r.Lab, Fault{Kind: KindWithdrawn, At: "p1s1->p1l2"})
		if _, err := r.AddFault(t.Context(), Fault{Kind: KindWithdrawn, At: "p1s1->p1l1"}); err == nil || !strings.Contains(err.Error(), "already exists") {
			t.Errorf("a second withdrawn at one switch: %v", err)
		}
		addFault(t, r.Lab, Fault{Kind: KindWrongASPath, At: "p1s1->p1l1"})
		awaitTrue(t, "both", func() string {
			one, two := r.kernelPorts(t, "p1l1", "h3/eth1"), r.kernelPorts(t, "p1l2", "h1/eth1")
			return isTrue(one == "[up2]" && two == "[up2]", "p1l1 by %s, p1l2 by %s", one, two)
		})
		clearFaults(t, r.Lab)
		r.checkWhole(t)
	})
}

// avoidsSpine waits until flows from p1l1 to p1l2 go by p1s2 only.
func avoidsSpine(t *testing.T, r *routedFabric) {
	t.Helper()
	awaitTrue(t, "flows by p1s2", func() string {
		got := r.pathsUsed(t, "h1/eth1", "h3/eth1")
		return isTrue(slices.Equal(got, []string{"p1l1 p1s2 p1l2"}), "the paths are %q", got)
	})
	if kernel, rib := r.kernelPorts(t, "p1l1", "h3/eth1"), r.ribPorts(t, "p1l1", "h3/eth1"); kernel != "[up2]" || rib != "[up2]" {
		t.Errorf("p1l1 sends to h3 by %s, selected are %s, want [up2] both", kernel, rib)
	}
}

func showsWithdrawn(t *testing.T, r *routedFabric) {
	avoidsSpine(t, r)
	if kernel, rib := r.kernelPorts(t, "p1s1", "h3/eth1"), r.ribPorts(t, "p1s1", "h3/eth1"); kernel != "no route" || rib != "[]" {
		t.Errorf("p1s1 sends to h3 by %s, selected are %s, want no route", kernel, rib)
	}
	if s := r.session(t, "p1l1", "up1"); s.BgpState != "Established" {
		t.Errorf("the session with p1s1: %+v", s)
	}
}

func showsWrongASPath(t *testing.T, r *routedFabric) {
	avoidsSpine(t, r)
	if kernel := r.kernelPorts(t, "p1s1", "h3/eth1"); kernel != "[dn2]" {
		t.Errorf("p1s1 sends to h3 by %s, want [dn2]", kernel)
	}
	var bgp struct {
		Paths []struct {
			Valid  bool
			ASPath struct{ Length int }
			Peer   struct{ Interface string }
		}
	}
	said := vtysh(t, r.Lab, "p1l1", "show bgp ipv4 unicast "+r.prefixOfNIC("h3/eth1").String()+" json")
	if err := json.Unmarshal([]byte(said), &bgp); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	length := map[string]int{}
	for _, p := range bgp.Paths {
		if p.Valid {
			length[p.Peer.Interface] = p.ASPath.Length
		}
	}
	if length["up1"] != 4 || length["up2"] != 2 {
		t.Errorf("lengths of the valid paths at p1l1: %v, want 4 by up1 and 2 by up2", length)
	}
}

func showsShrunk(t *testing.T, r *routedFabric) {
	for _, nic := range []string{"h3/eth1", "h5/eth1"} {
		awaitTrue(t, "one next hop", func() string {
			kernel, rib := r.kernelPorts(t, "p1l1", nic), r.ribPorts(t, "p1l1", nic)
			return isTrue(kernel == rib && (kernel == "[up1]" || kernel == "[up2]"), "to %s by %s, selected are %s", nic, kernel, rib)
		})
	}
	if got := r.kernelPorts(t, "p1l2", "h1/eth1"); got != "[up1 up2]" {
		t.Errorf("p1l2 sends to h1 by %s, want both uplinks", got)
	}
}

func showsBlackhole(t *testing.T, r *routedFabric) {
	check := func() string {
		kernel, rib := r.kernelPorts(t, "p1l1", "h3/eth1"), r.ribPorts(t, "p1l1", "h3/eth1")
		return isTrue(kernel == "[]" && rib == "[up1 up2]", "p1l1 sends to h3 by %s, selected are %s", kernel, rib)
	}
	if said := check(); said != "" {
		t.Error(said)
	}
	if got := measure(t, r.Lab, flow{src: "h1/eth1", dst: "h3/eth1", sport: 20000}, 20, time.Millisecond, 100*time.Millisecond); got.gotThere != 0 {
		t.Errorf("%d of %d packets arrive", got.gotThere, got.sent)
	}
	if got := measure(t, r.Lab, flow{src: "h1/eth1", dst: "h5/eth1", sport: 20000}, 20, time.Millisecond, patience); got.gotBack != got.sent {
		t.Errorf("to another leaf, %d of %d packets come back", got.gotBack, got.sent)
	}
	// FRR writes the entry again when a next hop goes and comes back.
	vtysh(t, r.Lab, "p1l1", "clear bgp up1")
	awaitTrue(t, "the session's end", func() string {
		s := r.ribPorts(t, "p1l1", "h3/eth1")
		return isTrue(s == "[up2]", "selected are %s", s)
	})
	awaitTrue(t, "the blackhole after FRR wrote the entry again", check)
}

func showsFewerHops(t *testing.T, r *routedFabric) {
	kernel, rib := r.kernelPorts(t, "p1l1", "h3/eth1"), r.ribPorts(t, "p1l1", "h3/eth1")
	if kernel != "[up1]" && kernel != "[up2]" || rib != "[up1 up2]" {
		t.Errorf("p1l1 sends to h3 by %s, selected are %s", kernel, rib)
	}
	if got := r.pathsUsed(t, "h1/eth1", "h3/eth1"); len(got) != 1 {
		t.Errorf("the paths are %q", got)
	}
	if got := measure(t, r.Lab, flow{src: "h1/eth1", dst: "h3/eth1", sport: 20000}, 20, time.Millisecond, patience); got.gotBack != got.sent {
		t.Errorf("%d of %d packets come back", got.gotBack, got.sent)
	}
}

// upperPaths returns the pairs of spine and core that flows from h1 to h5 take.
func upperPaths(t *testing.T, r *routedFabric) []string {
	t.Helper()
	var out []string
	for _, p := range r.pathsUsed(t, "h1/eth1", "h5/eth1") {
		switches := strings.Fields(p)
		if pair := strings.Join(switches[1:min(3, len(switches))], " "); !slices.Contains(out, pair) {
			out = append(out, pair)
		}
	}
	return out
}

func showsPolarized(t *testing.T, r *routedFabric) {
	if got := upperPaths(t, r); len(got) != 2 {
		t.Errorf("flows take %q, want one core behind each of the two spines", got)
	}
}

func showsPolarizedSwitch(t *testing.T, r *routedFabric) {
	cores := map[string]int{}
	for _, pair := range upperPaths(t, r) {
		cores[strings.Fields(pair)[0]]++
	}
	if cores["p1s1"] != 1 || cores["p1s2"] != 2 {
		t.Errorf("cores behind the spines: %v, want 1 behind p1s1 and 2 behind p1s2", cores)
	}
}

func showsSlowConvergence(t *testing.T, r *routedFabric) {
	awaitTrue(t, "sessions", func() string {
		s := r.session(t, "p1l1", "up1")
		return isTrue(s.BgpState == "Established", "%+v", s)
	})
	awaitTrue(t, "timers of BFD", func() string {
		said := vtysh(t, r.Lab, "p1l1", "show bfd peers json")
		return isTrue(strings.Contains(said, `"remote-detect-multiplier":255`), "%s", said)
	})
	awaitTrue(t, "whole", func() string {
		ports := r.kernelPorts(t, "p1l1", "h3/eth1")
		return isTrue(ports == "[up1 up2]", "p1l1 sends to h3 by %s", ports)
	})
	start, downs := time.Now(), r.downsOfBFD(t, "p1l1", "up1")
	addFault(t, r.Lab, Fault{Kind: KindBlackhole, At: "p1s1:dn1->p1l1:up1", Sessions: true})
	awaitTrue(t, "convergence", func() string {
		ports := r.kernelPorts(t, "p1l1", "h3/eth1")
		return isTrue(ports == "[up2]", "p1l1 sends to h3 by %s", ports)
	})
	// The last keepalive came up to a second before.
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("routes left the link after %s, before the hold time of 3 s", took)
	} else {
		t.Logf("routes left the silent link after %s", took)
	}
	if got := r.downsOfBFD(t, "p1l1", "up1"); got != downs {
		t.Errorf("BFD ended the session: %d times down, and %d before", got, downs)
	}
}

func showsFlaps(t *testing.T, r *routedFabric) {
	// Both ends keep their carrier, and packets pass meanwhile.
	first := r.session(t, "p1s1", "dn1").ConnectionsDropped
	awaitTrue(t, "resets", func() string {
		s := r.session(t, "p1s1", "dn1")
		return isTrue(s.ConnectionsDropped >= first+1, "%+v", s)
	})
	for _, end := range []string{"p1l1:up1", "p1s1:dn1"} {
		s, err := r.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range s.Namespaces {
			for _, i := range ns.Interfaces {
				if i.End == end && !i.Up {
					t.Errorf("the port %s is down", end)
				}
			}
		}
	}
}

func showsFalseBFD(t *testing.T, r *routedFabric) {
	from, to := r.x.byEnd["p1l1:up1"], r.x.byEnd["p1s1:dn1"]
	sink, err := r.ListenPacket(t.Context(), "p1s1", "udp4", netip.AddrPortFrom(to.Address.Addr(), echoPort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	out, err := r.DialContext(t.Context(), "p1l1", "udp4", netip.AddrPortFrom(from.PeerAdr, echoPort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	sent, dropped, downs := 0, r.session(t, "p1l1", "up1").ConnectionsDropped, r.downsOfBFD(t, "p1l1", "up1")
	// The first may be before the first packet of data.
	awaitTrue(t, "false downs", func() string {
		if _, err := out.Write([]byte("data")); err != nil {
			t.Fatal(err)
		}
		sent++
		s := r.session(t, "p1l1", "up1")
		return isTrue(s.ConnectionsDropped > dropped && r.downsOfBFD(t, "p1l1", "up1") > downs+1, "%+v", s)
	})
	buf := make([]byte, 16)
	deadline(t, sink, patience)
	for n := range sent {
		if _, _, err := sink.ReadFrom(buf); err != nil {
			t.Fatalf("%d of %d packets of data crossed the link: %v", n, sent, err)
		}
	}
	t.Logf("%d packets of data crossed the link meanwhile", sent)
}

func TestKilledOwnerOfRoutingFaults(t *testing.T) {
	needsFRR(t)
	needs(t, "iptables")
	name := frrName("broken")
	before := daemonsOf(name)
	defer Down(context.Background(), name)
	owner, _ := startOwner(t, name, RoutingFRR)
	l, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	var helpers []Process
	for _, f := range []Fault{{Kind: KindBGPFlap, At: spineLink}, {Kind: KindBFDFalse, At: "leaf1:up2--spine2:dn1"}, {Kind: KindBlackholeFIB, At: "leaf1->leaf3"},
		{Kind: KindWithdrawn, At: "spine1->leaf4"}} {
		if f := addFault(t, l, f); f.Home != "" {
			helpers = append(helpers, f.Helper)
		}
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	owner.Wait()
	for _, h := range helpers {
		if !waitGone(h, 10*time.Second) {
			t.Errorf("the helper %d outlives the lab's owner", h.PID)
		}
	}
	if err := Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	l.helpers.Wait()
	if left := append(leftovers(name), daemonsOf(name)...); !slices.Equal(left, before) {
		t.Errorf("left behind: %v, and before the lab there was %v", left, before)
	}
}

func TestFaultKindsOfRouting(t *testing.T) {
	for _, k := range RoutingFaultKinds() {
		if !slices.Contains(AllFaultKinds(), k) || slices.Contains(FaultKinds(), k) {
			t.Errorf("%s: want it in AllFaultKinds, and not in FaultKinds, which any lab can have", k)
		}
	}
	if !slices.IsSorted(RoutingFaultKinds()) {
		t.Errorf("%v: want them sorted", RoutingFaultKinds())
	}
}
