package coordinator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/agentapi"
)

// reportInterfaces handles a report of an agent and waits for the plan that follows it.
func (f *fixture) reportInterfaces(s *session, in ...*agentapi.Interface) {
	f.t.Helper()
	if err := f.handleMessage(s, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Addresses{Addresses: &agentapi.Addresses{Interfaces: in}}}); err != nil {
		f.t.Fatal(err)
	}
	f.run(f.opts.Settle + 2*stepEvery)
}

func (f *fixture) wantConflict(reason, text string) {
	f.t.Helper()
	if !slices.ContainsFunc(f.planning.plan.conflicts, func(c conflict) bool { return c.reason == reason && strings.Contains(c.text, text) }) {
		f.t.Errorf("conflicts %v, want one of %q with %q", f.planning.plan.conflicts, reason, text)
	}
	if f.Stats().Conflicts[reason] == 0 {
		f.t.Errorf("no conflict of %q is counted", reason)
	}
}

func (f *fixture) wantAddress(host int, want string) {
	f.t.Helper()
	got := f.planning.plan.nicAddress(fmt.Sprintf("h%d/mlx5_0", host))
	if want == "" && !got.IsValid() {
		return
	}
	if got.String() != want {
		f.t.Errorf("h%d has %v, want %q", host, got, want)
	}
}

// unnumbered returns the text of clos without addresses of the hosts' NICs.
func unnumbered(leaves, hosts int) string {
	text := clos(leaves, hosts)
	for h := 1; h <= leaves*hosts; h++ {
		text = strings.Replace(text, fmt.Sprintf("addresses: [%s], ", addr(h)), "", 1)
	}
	return text
}

// An agent that reports another node's address, or one outside of the fabric, changes neither
// where its NIC is probed nor where the other is.
func TestRule2TheTopologysAddressWins(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, boxes := f.agents(4)
	runs := f.ring.count()
	for _, lie := range []string{addr(4), "203.0.113.9", "10.77.0.7", "172.16.0.2"} {
		f.reportInterfaces(sessions[0], iface("eth1", lie))
		for h := 1; h <= 4; h++ {
			f.wantAddress(h, addr(h))
		}
		if f.planning.plan.unaddressed != 0 {
			t.Errorf("%s: %d edges lost an address", lie, f.planning.plan.unaddressed)
		}
		f.wantConflict(conflictTopology, "the topology gives "+addr(1)+" to h1/mlx5_0, and its agent reports "+lie)
		for i, s := range sessions[1:] {
			if in := f.receive(s); in.assignment != nil {
				t.Errorf("%s: h%d got another assignment: %v", lie, i+2, in.assignment.Peers)
			}
		}
	}
	// A NIC that has the topology's address among others is no conflict.
	f.reportInterfaces(sessions[0], iface("eth0", "10.99.0.1"), iface("eth1", "fe80::1", "2001:db8::7", "10.77.0.8", addr(1)))
	if len(f.planning.plan.conflicts) != 0 {
		t.Errorf("conflicts %v, want none", f.planning.plan.conflicts)
	}
	if f.ring.count() != runs {
		t.Error("a change of addresses ran the schedule")
	}
	if len(boxes[1].assignment.Edges) == 0 {
		t.Fatal("h2 has no edges at all")
	}
}

// Of several addresses in the topology the one that the agent reports is probed.
func TestRule2OneOfTheTopologysAddressesIsProbed(t *testing.T) {
	text := strings.Replace(clos(2, 2), "addresses: ["+addr(1)+"]", "addresses: ["+addr(1)+", 10.50.0.1]", 1)
	f := start(t, text, nil)
	sessions, _ := f.agents(4)
	f.wantAddress(1, addr(1))
	f.reportInterfaces(sessions[0], iface("mlx5_0", "10.50.0.1"))
	f.wantAddress(1, "10.50.0.1")
	f.reportInterfaces(sessions[0], iface("mlx5_0", "10.50.0.1", addr(1)))
	f.wantAddress(1, addr(1))
}

func TestRule2ReportedAddressesLieInThePrefixes(t *testing.T) {
	f := start(t, unnumbered(2, 2), nil)
	sessions, _ := f.agents(4)
	f.wantAddress(1, "")
	for _, c := range []struct {
		in   []*agentapi.Interface
		want string
	}{
		{[]*agentapi.Interface{iface("eth1", "203.0.113.9")}, ""},
		{[]*agentapi.Interface{iface("eth1", "2001:db8::7", "203.0.113.9")}, ""},
		{[]*agentapi.Interface{iface("eth1", "127.0.0.1", "fe80::1", "169.254.169.254")}, ""},
		{[]*agentapi.Interface{iface("eth0", "10.77.0.7")}, ""},
		{[]*agentapi.Interface{iface("eth1", "203.0.113.9", "10.77.0.7", "10.77.0.8")}, "10.77.0.7"},
		{[]*agentapi.Interface{iface("eth1", "10.77.0.8", "10.77.0.7")}, "10.77.0.7"}, // it keeps the one that it has
		{[]*agentapi.Interface{iface("eth1", "100.64.0.9")}, "100.64.0.9"},
		{[]*agentapi.Interface{iface("mlx5_0", "fd00::9")}, "fd00::9"},
	} {
		f.reportInterfaces(sessions[0], c.in...)
		f.wantAddress(1, c.want)
	}
	f.reportInterfaces(sessions[0], iface("eth1", "203.0.113.9"))
	f.wantConflict(conflictPrefix, "203.0.113.9 of h1/mlx5_0 lies outside the prefixes")
	f.reportInterfaces(sessions[0], iface("eth1", "172.16.0.2"))
	f.wantAddress(1, "")
	f.wantConflict(conflictForeign, "the topology gives 172.16.0.2 to ")

	wide := start(t, unnumbered(2, 2), func(o *Options) { o.AddressPrefixes = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} })
	sessions, _ = wide.agents(4)
	wide.reportInterfaces(sessions[0], iface("eth1", "10.77.0.7", "203.0.113.9"))
	wide.wantAddress(1, "203.0.113.9")
}

// Of two NICs that report an address the first to report it gets it, independent of their names, for as
// long as it reports it, also after a restart of the coordinator.
func TestRule2TheOlderClaimStays(t *testing.T) {
	f := start(t, unnumbered(2, 2), nil)
	sessions, _ := f.agents(4)
	for h := 2; h <= 4; h++ {
		f.reportInterfaces(sessions[h-1], iface("eth1", addr(h)))
	}
	edges := len(f.planning.plan.sched.Edges)
	f.reportInterfaces(sessions[0], iface("eth1", addr(4), addr(1)))
	f.wantAddress(4, addr(4))
	f.wantAddress(1, addr(1))
	f.wantConflict(conflictClaimed, addr(4)+" of h4/mlx5_0 is also claimed by h1/mlx5_0")
	f.reportInterfaces(sessions[0], iface("eth1", addr(4)))
	f.wantAddress(4, addr(4))
	f.wantAddress(1, "")
	f.wantConflict(conflictClaimed, addr(4)+" of h4/mlx5_0 is also claimed by h1/mlx5_0")
	if f.planning.plan.unaddressed == 0 || f.planning.plan.unaddressed == edges {
		t.Errorf("%d of %d edges cannot be probed, want those of h1", f.planning.plan.unaddressed, edges)
	}
	// h4 is gone, and the coordinator restarts: neither gives h4's address to h1.
	f.endSession(sessions[3])
	f.run(saveEvery + stepEvery)
	f.restart()
	f.wantAddress(4, addr(4))
	f.wantAddress(1, "")
	// h4 comes back with another address: the claim has ended.
	h := hello("h4", 0)
	h.Interfaces = []*agentapi.Interface{iface("eth1", "10.88.0.4")}
	f.mustConnect(h)
	f.run(f.opts.SettleMost + stepEvery)
	f.wantAddress(4, "10.88.0.4")
	f.wantAddress(1, addr(4))
}

// An address that is reported beside the one in use is not reserved: the NIC that has it cannot lose it
// later.
func TestRule2UnusedAddressesAreNotReserved(t *testing.T) {
	f := start(t, unnumbered(2, 2), nil)
	sessions, _ := f.agents(4)
	f.reportInterfaces(sessions[0], iface("eth1", addr(1), addr(2)))
	f.reportInterfaces(sessions[1], iface("eth1", addr(2)))
	f.wantAddress(2, addr(2))
	f.reportInterfaces(sessions[0], iface("eth1", addr(2)))
	f.wantAddress(2, addr(2))
	f.wantAddress(1, "")
}

func TestParsePrefixes(t *testing.T) {
	for _, text := range []string{"10.0.0.0", "10.0.0.1/8", "10.0.0.0/33", "x", ""} {
		if _, err := ParsePrefixes([]string{text}); err == nil || !strings.Contains(err.Error(), "want a prefix such as 10.0.0.0/8") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got, err := ParsePrefixes(DefaultAddressPrefixes); err != nil || len(got) != len(DefaultAddressPrefixes) {
		t.Errorf("%v, %v", got, err)
	}
}
