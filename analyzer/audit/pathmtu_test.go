package audit

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// testPaths returns what tests of paths find where some directions drop long packets. Reporting switches name the MTU of the next link.
func testPaths(e *Evidence, s Scope, drops map[fabric.Direction]bool, reports bool) (out []fabric.PathMTU) {
	flows, _ := PlanPathTests(e, s)
	paths := map[fabric.Flow]*FlowRecord{}
	for i := range e.Flows {
		paths[e.Flows[i].Flow] = &e.Flows[i]
	}
	first := func(f *FlowRecord) int {
		return slices.IndexFunc(f.Path.LinkDirections(f.Src, f.Dst), func(d fabric.Direction) bool { return drops[d] })
	}
	for _, f := range flows {
		r := paths[f]
		t := fabric.PathMTU{Edge: f.String(), Octets: e.PathMTU.Octets, State: fabric.PathMTUPasses, Hops: make([]netip.Addr, len(r.Path)), Sent: 1}
		back := f
		back.Reply = true
		switch at := first(r); {
		case at >= 0:
			t.State, t.Passed, t.Dropped = fabric.PathMTUDrops, at, at+1
			if reports && at > 0 {
				t.NextMTU = 1500
			}
		case paths[back] != nil && first(paths[back]) >= 0:
			t.State, t.Passed, t.Dropped = fabric.PathMTUDrops, len(r.Path), len(r.Path)+1
		}
		out = append(out, t)
	}
	return out
}

// longPackets returns evidence of a fabric in which all interfaces take RoCE's 4,096 octets.
func longPackets(s *site) *Evidence {
	e := s.observe()
	e.PathMTU = &PathMTUEvidence{Active: 4096, Octets: PacketLength(4096), Interfaces: map[string]int{}}
	for _, nic := range s.g.NICIDs() {
		e.PathMTU.Interfaces[nic] = 9000
	}
	return e
}

// TestPathMTUNamesTheDirection breaks one or two directions, at any place of the fabric, and wants just these named.
func TestPathMTUNamesTheDirection(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for seed := range uint64(40) {
		s := newSite(seed, 4, 4, 4)
		e := longPackets(s)
		all := s.g.LinkDirections()
		drops := map[fabric.Direction]bool{}
		for range seed % 3 {
			drops[all[rng.IntN(len(all))]] = true
		}
		e.PathMTU.Tests = testPaths(e, Scope{}, drops, seed%2 == 0)
		r := Run(e, DefaultCriteria(), Scope{})
		c := r.Checks[slices.IndexFunc(r.Checks, func(c Check) bool { return c.ID == "A9-mtu" })]
		named := 0
		for _, i := range c.Items {
			if i.Status != Fail {
				continue
			}
			named++
			d, err := fabric.ParseDirection(i.Direction)
			if err != nil || !drops[d] && !slices.ContainsFunc(i.Equivalent, func(id string) bool {
				for x := range drops {
					if x.LinkID() == id {
						return true
					}
				}
				return false
			}) {
				t.Errorf("seed %d: %s is named, want %v: %s", seed, i.Direction, drops, i.FullText())
			}
		}
		if named != len(drops) || (c.Status == Fail) != (len(drops) > 0) || len(drops) == 0 && c.Status != Pass {
			t.Errorf("seed %d: %d of %d directions named, %s: %s", seed, named, len(drops), c.Status, c.Text)
		}
	}
}

// TestPathMTUWithoutEvidence checks what is unknown, and the interfaces of NICs.
func TestPathMTUWithoutEvidence(t *testing.T) {
	s := newSite(1, 4, 4, 4)
	check := func(e *Evidence) Check {
		t.Helper()
		r := Run(e, DefaultCriteria(), Scope{})
		return r.Checks[slices.IndexFunc(r.Checks, func(c Check) bool { return c.ID == "A9-mtu" })]
	}
	if c := check(s.observe()); c.Status != Unknown || c.Population != 0 {
		t.Errorf("nothing was sent: %s, %s", c.Status, c.Text)
	}
	e := longPackets(s)
	e.PathMTU.Tests = testPaths(e, Scope{}, nil, false)
	for i := range e.PathMTU.Tests {
		e.PathMTU.Tests[i].State, e.PathMTU.Tests[i].Reason = fabric.PathMTUUnknown, "the agent did not test them"
	}
	if c := check(e); c.Status != Unknown || c.Population != 0 || len(c.Items) != 1 || !strings.Contains(c.Items[0].Text, "the agent did not test them") {
		t.Errorf("no agent tests: %+v", c)
	}
	e = longPackets(s)
	nic := s.g.NICIDs()[3]
	e.PathMTU.Interfaces[nic] = 1500
	flows, switches := PlanPathTests(e, Scope{})
	if slices.ContainsFunc(flows, func(f fabric.Flow) bool { return f.Src == nic || f.Dst == nic }) || switches != 3 || len(flows) == 0 {
		t.Errorf("the paths of %s are tested, or none with %d switches", nic, switches)
	}
	e.PathMTU.Tests = testPaths(e, Scope{}, nil, false)
	c := check(e)
	if want := fabric.LinkID(nic, s.g.PeerOf(nic)); c.Status != Fail || c.Items[0].Element != want || !strings.Contains(c.Items[0].Text, "1024") {
		t.Errorf("an interface of 1,500 octets: %+v", c.Items)
	}
}

// TestActiveMTUIsThatOfLinux compares with the values that Linux's iboe_get_mtu has.
func TestActiveMTUIsThatOfLinux(t *testing.T) {
	for mtu, want := range map[int]int{0: 0, 351: 0, 352: 256, 1119: 512, 1120: 1024, 1500: 1024, 2144: 2048, 4191: 2048, 4192: 4096, 9000: 4096} {
		if got := ActiveMTU(mtu); got != want {
			t.Errorf("an interface of %d octets: %d, want %d", mtu, got, want)
		}
	}
	for _, tc := range []struct {
		planned    int
		interfaces map[string]int
		want       int
	}{{0, nil, 0}, {2048, nil, 2048}, {0, map[string]int{"a": 1500, "b": 9000, "c": 9000}, 4096}, {0, map[string]int{"a": 1500, "b": 1400, "c": 9000}, 1024}, {0, map[string]int{"a": 68}, 0}} {
		if got := CommonMTU(tc.planned, tc.interfaces); got != tc.want {
			t.Errorf("%d planned, %v: %d, want %d", tc.planned, tc.interfaces, got, tc.want)
		}
	}
	if PacketLength(4096) != 4160 {
		t.Errorf("%d octets", PacketLength(4096))
	}
	for _, bad := range []int{-1, 100, 1500, 8192} {
		c := DefaultCriteria()
		if c.Ports.RoCEMTU = bad; c.Validate() == nil {
			t.Errorf("%d octets are taken for an active MTU", bad)
		}
	}
}

// TestPathMTUOfAnotherPath: a test whose switches are not those of the flow's path names no link of that path.
func TestPathMTUOfAnotherPath(t *testing.T) {
	s := newSite(5, 4, 4, 4)
	e := longPackets(s)
	e.PathMTU.Tests = testPaths(e, Scope{}, map[fabric.Direction]bool{s.g.LinkDirections()[0]: true}, true)
	other := netip.MustParseAddr("192.0.2.9")
	topo := *s.g.Topo
	topo.Links = slices.Clone(topo.Links)
	up, _ := s.fabricLink(0)
	l := &topo.Links[slices.IndexFunc(topo.Links, func(l fabric.Link) bool { return l.ID() == up.LinkID() })]
	if l.A == up.To {
		l.AAddress = netip.PrefixFrom(other, 31)
	} else {
		l.BAddress = netip.PrefixFrom(other, 31)
	}
	e.Graph = fabric.NewGraph(&topo)
	if e.Graph.EndOf(other) == "" {
		t.Fatal("the address belongs to no port")
	}
	m := newMTUStudy(newStudy(e, DefaultCriteria(), Scope{}))
	if len(m.failed) == 0 {
		t.Fatal("no test failed")
	}
	for i := range e.PathMTU.Tests {
		if h := e.PathMTU.Tests[i].Hops; len(h) > 0 {
			h[0] = other // no path begins at a spine
		}
	}
	if m = newMTUStudy(newStudy(e, DefaultCriteria(), Scope{})); len(m.failed) != 0 || m.unknown["the flow had another path than before"] == 0 {
		t.Errorf("%d tests failed, %v have no result", len(m.failed), m.unknown)
	}
}

// TestPathMTUOfUncertainPaths: where the path of a flow or of its answers is not known for sure, a test names no link.
func TestPathMTUOfUncertainPaths(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(e *Evidence) // of the flow and the answers of the tests that failed
		reason string
	}{
		"answers unknown": {func(e *Evidence) {
			for i := range e.Flows {
				if e.Flows[i].Flow.Reply {
					e.Flows[i].Path = nil
				}
			}
		}, "the answer may have been dropped, and its path is not known"},
		"nothing confirms the paths": {func(e *Evidence) {
			for i := range e.Flows {
				e.Flows[i].Confirmed = 0
			}
		}, "its path is not known"},
		"by a cable that is elsewhere": {func(e *Evidence) {
			for i := range e.Graph.Topo.Links {
				e.Swaps = append(e.Swaps, Swap{Planned: [2]string{e.Graph.Topo.Links[i].ID(), e.Graph.Topo.Links[0].ID()}})
			}
		}, "its path is not known"},
		"paths changed": {func(e *Evidence) {
			for i := range len(e.Flows) {
				f := e.Flows[i]
				f.Windows, f.Path = 1, slices.Clone(f.Path)
				f.Path[0].Out = "other"
				e.Flows = append(e.Flows, f)
			}
		}, "the path of the flow changed during the audit"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(5, 4, 4, 4)
			e := longPackets(s)
			// A NIC does not get long packets, neither those of tests nor answers.
			nic := s.g.NICIDs()[2]
			e.PathMTU.Tests = testPaths(e, Scope{}, map[fabric.Direction]bool{{From: s.g.PeerOf(nic), To: nic}: true}, false)
			if m := newMTUStudy(newStudy(e, DefaultCriteria(), Scope{})); len(m.failed) == 0 {
				t.Fatal("no test failed")
			}
			tc.change(e)
			st := newStudy(e, DefaultCriteria(), Scope{})
			checkWiring(st)
			if m := newMTUStudy(st); len(m.failed) != 0 || m.unknown[tc.reason] == 0 {
				t.Errorf("%d tests failed, %v have no result", len(m.failed), m.unknown)
			}
		})
	}
}
