package gnmi

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"

	"github.com/graylink/graylink/internal/gnmi/gnmitest"
	"github.com/graylink/graylink/internal/gnmi/preset"
)

const tables = "/network-instances/network-instance[name=default]/afts/"

func member(t testing.TB, group, hop int) *gpb.Update {
	return val(t, fmt.Sprintf(tables+"next-hop-groups/next-hop-group[id=%d]/next-hops/next-hop[index=%d]/state/index", group, hop), hop)
}

func leadsTo(t testing.TB, hop int, port string) *gpb.Update {
	return val(t, fmt.Sprintf(tables+"next-hops/next-hop[index=%d]/interface-ref/state/interface", hop), port)
}

func routesStore(t testing.TB) *store {
	t.Helper()
	tree, err := preset.CompileRules(append(slices.Clone(preset.ByName("openconfig").Rules), preset.RouteRules()...))
	if err != nil {
		t.Fatal(err)
	}
	return newStore(tree, true, 8)
}

// TestRoutes checks that members of groups are counted by port in any order of arrival, that members that leave
// are not counted, that a port without members left has 0, and that there is no series for a group.
func TestRoutes(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	s := routesStore(t)
	notify := func(atomic string, deletes []string, updates ...*gpb.Update) {
		n := &gpb.Notification{Timestamp: now.UnixNano(), Update: updates}
		if atomic != "" {
			n.Atomic, n.Prefix = true, path1(t, atomic)
		}
		for _, d := range deletes {
			n.Delete = append(n.Delete, path1(t, d))
		}
		s.applyNotification(message{body: n}, now)
	}
	want := func(what string, unplaced int, series ...string) {
		t.Helper()
		got, u := say(s, now)
		if !slices.Equal(got, series) || u != unplaced {
			t.Errorf("%s: %q, %d unplaced; want %q, %d", what, got, u, series, unplaced)
		}
	}
	notify("", nil, val(t, tables+"aft-summaries/ipv4-unicast/protocols/protocol[origin-protocol=BGP]/state/counters/aft-entries", 5000))
	want("routes", 0, "fabric_switch_routes{default,ipv4,BGP} 5000")
	notify("", []string{tables + "aft-summaries"}, member(t, 1, 11), member(t, 1, 12), member(t, 2, 12), member(t, 2, 13))
	want("members first", 4)
	notify("", nil, leadsTo(t, 11, "up1"), leadsTo(t, 12, "up2"))
	want("two ports", 1, "next_hop_group_members{up1} 1", "next_hop_group_members{up2} 2")
	notify("", nil, leadsTo(t, 13, "up3"), member(t, 1, 12))
	want("sent twice", 0, "next_hop_group_members{up1} 1", "next_hop_group_members{up2} 2", "next_hop_group_members{up3} 1")
	notify("", []string{tables + "next-hop-groups/next-hop-group[id=1]/next-hops/next-hop[index=12]"})
	want("one left", 0, "next_hop_group_members{up1} 1", "next_hop_group_members{up2} 1", "next_hop_group_members{up3} 1")
	notify("", []string{tables + "next-hop-groups/next-hop-group[id=2]"})
	want("a group left", 0, "next_hop_group_members{up1} 1", "next_hop_group_members{up2} 0", "next_hop_group_members{up3} 0")
	notify("", []string{tables + "next-hops/next-hop[index=11]"})
	want("a next hop without port", 1, "next_hop_group_members{up1} 0", "next_hop_group_members{up2} 0", "next_hop_group_members{up3} 0")
	notify(tables+"next-hop-groups/next-hop-group[id=1]", nil, val(t, "next-hops/next-hop[index=12]/state/index", 12))
	want("a group anew", 0, "next_hop_group_members{up1} 0", "next_hop_group_members{up2} 1", "next_hop_group_members{up3} 0")
	s.applyNotification(message{}, now)
	want("the session's end", 0)
	if n := s.hopTable.memberCount + len(s.hopTable.groups) + len(s.hopTable.members) + len(s.hopTable.ports); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// TestRoutesSampled checks that where members are sampled, one that is not sent for three intervals has left.
func TestRoutesSampled(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	s := routesStore(t)
	s.onChange = false
	s.applyNotification(message{body: &gpb.Notification{Timestamp: now.UnixNano(), Update: []*gpb.Update{member(t, 1, 11), member(t, 1, 12), leadsTo(t, 11, "up1"), leadsTo(t, 12, "up2")}}}, now)
	now = now.Add(2 * time.Second)
	s.applyNotification(message{body: &gpb.Notification{Timestamp: now.UnixNano(), Update: []*gpb.Update{member(t, 1, 12)}}}, now)
	if got, _ := say(s, now.Add(2*time.Second)); !slices.Equal(got, []string{"next_hop_group_members{up1} 0", "next_hop_group_members{up2} 1"}) {
		t.Errorf("%q", got)
	}
}

// TestHopsAgainstSets compares with plain sets, at random.
func TestHopsAgainstSets(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	h := newNextHopTable()
	sets := map[[2]string]bool{}
	ports := map[string]string{}
	for range 20_000 {
		group, hop := fmt.Sprint(rng.IntN(6)), fmt.Sprint(rng.IntN(8))
		switch rng.IntN(6) {
		case 0, 1:
			h.recordLeaf(preset.Member, []string{"v", group, hop}, "", time.Time{})
			sets[[2]string{group, hop}] = true
		case 2:
			h.removeMatching(preset.Member, []string{"v", group, hop})
			delete(sets, [2]string{group, hop})
		case 3:
			h.removeMatching(preset.Member, []string{"v", "", hop})
			for k := range sets {
				if k[1] == hop {
					delete(sets, k)
				}
			}
		case 4:
			h.recordLeaf(preset.HopPort, []string{"v", hop}, "p"+group, time.Time{})
			ports[hop] = "p" + group
		case 5:
			h.removeMatching(preset.HopPort, []string{"v", hop})
			delete(ports, hop)
		}
		want, unplaced := map[string]int{}, 0
		for k := range sets {
			if p := ports[k[1]]; p != "" {
				want[p]++
			} else {
				unplaced++
			}
		}
		got, u := h.byPort()
		for p := range h.knownPorts {
			if got[p] != want[p] {
				t.Fatalf("%s: %d, want %d", p, got[p], want[p])
			}
		}
		if u != unplaced || h.memberCount != len(sets) {
			t.Fatalf("%d unplaced, %d members; want %d, %d", u, h.memberCount, unplaced, len(sets))
		}
	}
}

// TestRoutesBound checks that members beyond the bound are counted, and not kept.
func TestRoutesBound(t *testing.T) {
	before := heap()
	h := newNextHopTable()
	for i := range maxMembers {
		if !h.recordLeaf(preset.Member, []string{"v", fmt.Sprint(i % 4096), fmt.Sprint(i / 4096)}, "", time.Time{}) {
			t.Fatalf("no place for %d", i)
		}
	}
	t.Logf("%d members take %.0f MB", h.memberCount, (heap()-before)/1e6)
	if h.recordLeaf(preset.Member, []string{"v", "x", "y"}, "", time.Time{}) || len(h.members) != maxMembers/4096 || !h.recordLeaf(preset.Member, []string{"v", "1", "1"}, "", time.Time{}) {
		t.Error("the bound does not hold, or keeps out what is known")
	}
}

// TestRoutesAsked checks that forwarding tables are requested only if that is configured, and without prefixes.
func TestRoutesAsked(t *testing.T) {
	for _, routes := range []bool{false, true} {
		sw, a, log := started(t, "openconfig", gnmitest.ExampleState(time.Now()), gnmitest.Faults{}, nil, func(c *Config) { c.Routes = routes })
		until(t, a, log, "series", synced)
		asked := fmt.Sprint(sw.ReceivedSubscriptions()[0])
		if strings.Contains(asked, "next-hop-groups") != routes || strings.Contains(asked, "aft-summaries") != routes || strings.Contains(asked, "ipv4-entry") {
			t.Errorf("routes %v: %s", routes, asked)
		}
		if routes {
			sw.SendNotifications(&gpb.Notification{Timestamp: time.Now().UnixNano(), Update: []*gpb.Update{member(t, 1, 11), leadsTo(t, 11, "Ethernet8")}})
			until(t, a, log, "members", func(got map[string]float64) bool {
				return got[`fabric_switch_port_next_hop_group_members{switch="leaf1",port="Ethernet8"}`] == 1
			})
		}
	}
}

// A next hop whose port changes again and again does not need ever more memory.
func TestHopsPortsAreBounded(t *testing.T) {
	h := newNextHopTable()
	h.recordLeaf(preset.Member, []string{"default", "1", "2"}, "", time.Unix(1, 0))
	for i := range maxKnownPorts + 10 {
		h.recordLeaf(preset.HopPort, []string{"default", "2"}, strconv.Itoa(i), time.Unix(1, 0))
	}
	if len(h.knownPorts) != maxKnownPorts {
		t.Errorf("%d ports are kept, want %d", len(h.knownPorts), maxKnownPorts)
	}
}
