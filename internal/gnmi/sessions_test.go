package gnmi

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"

	"github.com/graylink/graylink/internal/gnmi/gnmitest"
	"github.com/graylink/graylink/internal/gnmi/preset"
)

func sessionsStore(t testing.TB, name string, max int) *store {
	t.Helper()
	tree, err := preset.CompileRules(slices.Concat(preset.ByName(name).Rules, preset.SessionRules(name)))
	if err != nil {
		t.Fatal(err)
	}
	return newStore(tree, true, max)
}

// neighbor returns the updates of a session of BGP. An empty value is not sent.
func neighbor(t testing.TB, vrf, address, state, transitions, local string) (out []*gpb.Update) {
	n := fmt.Sprintf("/network-instances/network-instance[name=%s]/protocols/protocol[identifier=BGP][name=BGP]/bgp/neighbors/neighbor[neighbor-address=%s]/", vrf, address)
	for leaf, v := range map[string]string{"state/session-state": state, "state/established-transitions": transitions, "transport/state/local-address": local} {
		if v != "" {
			out = append(out, val(t, n+leaf, v))
		}
	}
	return out
}

// bfdPeer returns the updates of a session of BFD.
func bfdPeer(t testing.TB, id, port, discriminator, state, downs, remote string) (out []*gpb.Update) {
	i := fmt.Sprintf("/bfd/interfaces/interface[id=%s]/", id)
	p := i + fmt.Sprintf("peers/peer[local-discriminator=%s]/state/", discriminator)
	for path, v := range map[string]string{i + "interface-ref/state/interface": port, p + "session-state": state, p + "failure-transitions": downs, p + "remote-address": remote} {
		if v != "" {
			out = append(out, val(t, path, v))
		}
	}
	return out
}

// address returns the update of an address of a port.
func address(t testing.TB, port, ip string, bits int) *gpb.Update {
	family := "ipv4"
	if strings.Contains(ip, ":") {
		family = "ipv6"
	}
	return val(t, fmt.Sprintf("/interfaces/interface[name=%s]/subinterfaces/subinterface[index=0]/%s/addresses/address[ip=%s]/state/prefix-length", port, family, ip), bits)
}

// isUp returns the update by which the switch has an interface.
func isUp(t testing.TB, port string) *gpb.Update {
	return val(t, "/interfaces/interface[name="+port+"]/state/oper-status", "UP")
}

// saySessions returns the series of sessions of a store.
func saySessions(s *store, now time.Time) []string {
	all, _ := say(s, now)
	var out []string
	for _, x := range all {
		if strings.Contains(x, "_session") {
			x = strings.NewReplacer("fabric_switch_", "", "_session_up", " up ", "_sessions_established_total", " count ", "_session_downs_total", " count ").Replace(x)
			out = append(out, x)
		}
	}
	slices.Sort(out)
	return out
}

// TestSessionPorts relates sessions to ports by what their switch says of both.
func TestSessionPorts(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for what, c := range map[string]struct {
		updates  [][]*gpb.Update
		want     []string
		unplaced int
	}{
		"/31 of one port": {
			updates: [][]*gpb.Update{{address(t, "e1", "10.0.0.0", 31), address(t, "e2", "10.0.0.2", 31)}, neighbor(t, "default", "10.0.0.3", "ESTABLISHED", "4", "")},
			want:    []string{"bgp count {e2} 4", "bgp up {e2} 1"},
		},
		"/127 of one port, down, and never counted": {
			updates: [][]*gpb.Update{{address(t, "e1", "2001:db8::", 127), address(t, "e2", "2001:db8::2", 127)}, neighbor(t, "default", "2001:db8::1", "ACTIVE", "", "")},
			want:    []string{"bgp up {e1} 0"},
		},
		"a subnet at two ports, by the local address": {
			updates: [][]*gpb.Update{{address(t, "e1", "10.0.0.1", 24), address(t, "e2", "10.0.0.2", 24)}, neighbor(t, "red", "10.0.0.9", "ESTABLISHED", "1", "10.0.0.2")},
			want:    []string{"bgp count {e2} 1", "bgp up {e2} 1"},
		},
		"a subnet at two ports": {
			updates:  [][]*gpb.Update{{address(t, "e1", "10.0.0.1", 24), address(t, "e2", "10.0.0.2", 24)}, neighbor(t, "red", "10.0.0.9", "ESTABLISHED", "1", "")},
			unplaced: 1,
		},
		"from a loopback": {
			updates:  [][]*gpb.Update{{address(t, "e1", "10.0.0.0", 31), address(t, "Loopback0", "10.9.0.1", 32)}, neighbor(t, "default", "10.9.0.2", "ESTABLISHED", "1", "10.9.0.1")},
			unplaced: 1,
		},
		"several hops from a port": {
			updates:  [][]*gpb.Update{{address(t, "e1", "10.0.0.0", 31)}, neighbor(t, "default", "10.9.0.2", "ESTABLISHED", "1", "10.0.0.0")},
			unplaced: 1,
		},
		"an own address": {
			updates:  [][]*gpb.Update{{address(t, "e1", "10.0.0.0", 31)}, neighbor(t, "default", "10.0.0.0", "IDLE", "0", "")},
			unplaced: 1,
		},
		"no address of ports": {updates: [][]*gpb.Update{neighbor(t, "default", "10.0.0.1", "ESTABLISHED", "1", "")}, unplaced: 1},
		"zone": {
			updates: [][]*gpb.Update{{isUp(t, "Ethernet1/1"), isUp(t, "Ethernet2/1")}, neighbor(t, "default", "fe80::1%Et2/1", "ESTABLISHED", "2", "")},
			want:    []string{"bgp count {Ethernet2/1} 2", "bgp up {Ethernet2/1} 1"},
		},
		"zone of a subinterface": {
			updates: [][]*gpb.Update{{isUp(t, "ethernet-1/1")}, neighbor(t, "default", "fe80::1%ethernet-1/1.0", "ESTABLISHED", "2", "")},
			want:    []string{"bgp count {ethernet-1/1} 2", "bgp up {ethernet-1/1} 1"},
		},
		"a neighbor that is an interface": {
			updates: [][]*gpb.Update{{isUp(t, "e1")}, neighbor(t, "default", "e1", "ESTABLISHED", "2", "")},
			want:    []string{"bgp count {e1} 2", "bgp up {e1} 1"},
		},
		"a neighbor that is no interface": {updates: [][]*gpb.Update{{isUp(t, "e1")}, neighbor(t, "default", "spine1", "ESTABLISHED", "2", "")}, unplaced: 1},
		"link-local by the local address": {
			updates: [][]*gpb.Update{{address(t, "e1", "fe80::a", 64), address(t, "e2", "fe80::b", 64)}, neighbor(t, "default", "fe80::1", "ESTABLISHED", "2", "fe80::b")},
			want:    []string{"bgp count {e2} 2", "bgp up {e2} 1"},
		},
		"link-local at two ports": {
			updates:  [][]*gpb.Update{{address(t, "e1", "fe80::a", 64), address(t, "e2", "fe80::a", 64)}, neighbor(t, "default", "fe80::1", "ESTABLISHED", "2", "fe80::a")},
			unplaced: 1,
		},
		"link-local alone": {updates: [][]*gpb.Update{{address(t, "e1", "fe80::a", 64)}, neighbor(t, "default", "fe80::1", "ESTABLISHED", "2", "")}, unplaced: 1},
		"two sessions at a port": {
			updates: [][]*gpb.Update{{address(t, "e1", "10.0.0.0", 31), address(t, "e1", "2001:db8::", 127)}, neighbor(t, "default", "10.0.0.1", "ESTABLISHED", "3", ""),
				neighbor(t, "default", "2001:db8::1", "CONNECT", "4", "")},
			want: []string{"bgp count {e1} 7", "bgp up {e1} 0"},
		},
		"one of two is not counted": {
			updates: [][]*gpb.Update{{address(t, "e1", "10.0.0.0", 31), address(t, "e1", "2001:db8::", 127)}, neighbor(t, "default", "10.0.0.1", "ESTABLISHED", "3", ""),
				neighbor(t, "default", "2001:db8::1", "ESTABLISHED", "", "")},
			want: []string{"bgp up {e1} 1"},
		},
		"a count without a state": {updates: [][]*gpb.Update{{address(t, "e1", "10.0.0.0", 31)}, neighbor(t, "default", "10.0.0.1", "", "3", "")}},
		"BFD by its interface": {
			updates: [][]*gpb.Update{{isUp(t, "e1")}, bfdPeer(t, "link-1", "e1", "77", "UP", "5", "fe80::1")},
			want:    []string{"bfd count {e1} 5", "bfd up {e1} 1"},
		},
		"BFD by the identifier of its interface": {
			updates: [][]*gpb.Update{{isUp(t, "e1")}, bfdPeer(t, "e1.0", "", "77", "INIT", "5", "fe80::1")},
			want:    []string{"bfd count {e1} 5", "bfd up {e1} 0"},
		},
		"BFD by its address": {
			updates: [][]*gpb.Update{{address(t, "e1", "10.0.0.0", 31)}, bfdPeer(t, "link-1", "", "77", "UP", "5", "10.0.0.1")},
			want:    []string{"bfd count {e1} 5", "bfd up {e1} 1"},
		},
		"BFD at an unknown interface": {updates: [][]*gpb.Update{{isUp(t, "e1")}, bfdPeer(t, "link-1", "e9", "77", "UP", "5", "")}, unplaced: 1},
	} {
		s := sessionsStore(t, "openconfig", 100)
		for _, u := range c.updates {
			s.applyNotification(message{body: &gpb.Notification{Timestamp: now.UnixNano(), Update: u}}, now)
		}
		if got := saySessions(s, now); !slices.Equal(got, c.want) || s.unplacedSessions != c.unplaced || s.decoder.Counts.Unknown+s.decoder.Counts.BadValues > 0 {
			t.Errorf("%s: %q, %d unplaced, want %q, %d; %+v", what, got, s.unplacedSessions, c.want, c.unplaced, s.decoder.Counts)
		}
	}
}

// TestSessionsLeave checks that sessions that are deleted, that a session with the switch ends, or that are sent no more, are absent.
func TestSessionsLeave(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	s := sessionsStore(t, "arista", 100)
	apply := func(n *gpb.Notification) {
		n.Timestamp = now.UnixNano()
		s.applyNotification(message{body: n}, now)
	}
	all := func() {
		apply(&gpb.Notification{Update: slices.Concat([]*gpb.Update{address(t, "e1", "10.0.0.0", 31)}, neighbor(t, "default", "10.0.0.1", "ESTABLISHED", "3", ""))})
	}
	want := func(what string, series ...string) {
		t.Helper()
		if got := saySessions(s, now); !slices.Equal(got, series) {
			t.Errorf("%s: %q, want %q", what, got, series)
		}
	}
	all()
	want("begin", "bgp count {e1} 3", "bgp up {e1} 1")
	now = now.Add(5 * time.Second)
	want("counts are sent no more", "bgp up {e1} 1")
	apply(&gpb.Notification{Delete: []*gpb.Path{path1(t, "/network-instances/network-instance[name=default]/protocols/protocol[identifier=BGP][name=BGP]/bgp/neighbors/neighbor[neighbor-address=10.0.0.1]")}})
	want("neighbor deleted")
	all()
	want("again", "bgp count {e1} 3", "bgp up {e1} 1")
	apply(&gpb.Notification{Delete: []*gpb.Path{path1(t, "/interfaces/interface[name=e1]/subinterfaces")}})
	want("address deleted")
	if s.unplacedSessions != 1 {
		t.Errorf("%d unplaced", s.unplacedSessions)
	}
	all()
	s.applyNotification(message{}, now)
	want("session ended")
	if s.unplacedSessions != 0 {
		t.Errorf("%d unplaced", s.unplacedSessions)
	}
}

// TestSessionsBound checks that sessions share the bound of series.
func TestSessionsBound(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	s := sessionsStore(t, "openconfig", 10)
	for i := range 100 {
		s.applyNotification(message{body: &gpb.Notification{Timestamp: now.UnixNano(), Update: neighbor(t, "default", fmt.Sprintf("10.0.0.%d", i), "IDLE", "1", "")}}, now)
	}
	if len(s.all) != 10 || s.rejected != 190 {
		t.Errorf("%d series, %d rejected", len(s.all), s.rejected)
	}
}

// TestSessionsOfManyPorts relates as many sessions as a switch may have, and checks that the time does not grow with their square.
func TestSessionsOfManyPorts(t *testing.T) {
	table := newSessionTable()
	const ports = 10_000
	for i := range ports {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)})
		table.addAddress(portAddress{fmt.Sprint("e", i), netip.PrefixFrom(a, 31)})
		table.sessions[fmt.Sprint(i)] = &sessionState{families: &bgpFamilies, remote: a.Next(), up: &series{value: 1}}
	}
	for i := range 2 * mostAlike {
		table.addAddress(portAddress{"many", netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 0, byte(i + 1)}), 24)})
	}
	table.sessions["many"] = &sessionState{families: &bgpFamilies, remote: netip.MustParseAddr("192.168.0.200"), up: &series{value: 1}}
	compared := 0
	for _, s := range table.sessions {
		for bits, used := range table.lengths {
			if p, err := s.remote.Prefix(bits); used && err == nil {
				compared += len(table.subnets[p])
			}
		}
	}
	points, unplaced := table.appendPoints(nil, "sw")
	if len(points) != ports || unplaced != 1 || compared > ports+mostAlike+1 {
		t.Errorf("%d points, %d sessions without a port, %d comparisons", len(points), unplaced, compared)
	}
}

// TestSessionsOfSONiC reads tables as sonic-gnmi sends them: one JSON object for a table.
func TestSessionsOfSONiC(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	s := sessionsStore(t, "sonic", 100)
	for table, json := range map[string]string{
		"NEIGH_STATE_TABLE": `{"10.0.0.1":{"peerType":"e-BGP","state":"Established"},"fc00::2":{"state":"Active"},"Ethernet8":{"state":"Established"},"10.9.9.9":{"state":"Idle"}}`,
		"BFD_SESSION_TABLE": `{"default|Ethernet8|192.0.2.1":{"state":"Up","local_addr":"192.0.2.2"},"default|default|fc00::2":{"state":"Down","local_addr":"fc00::1","multihop":"false"},"default|default|10.9.9.9":{"state":"Up","local_addr":"10.9.9.8"}}`,
		"INTF_TABLE":        `{"Ethernet0":{"NULL":"NULL"},"Ethernet0:10.0.0.0/31":{"family":"IPv4","scope":"global"},"Ethernet4:fc00::1/126":{"family":"IPv6","scope":"global"},"lo:10.9.9.8/32":{"family":"IPv4"}}`,
		"PORT_TABLE":        `{"Ethernet8":{"oper_status":"up"}}`,
	} {
		u := &gpb.Update{Path: path1(t, table), Val: &gpb.TypedValue{Value: &gpb.TypedValue_JsonIetfVal{JsonIetfVal: []byte(json)}}}
		s.applyNotification(message{body: &gpb.Notification{Timestamp: now.UnixNano(), Update: []*gpb.Update{u}}}, now)
	}
	want := []string{"bfd up {Ethernet4} 0", "bfd up {Ethernet8} 1", "bgp up {Ethernet0} 1", "bgp up {Ethernet4} 0", "bgp up {Ethernet8} 1"}
	if got := saySessions(s, now); !slices.Equal(got, want) || s.unplacedSessions != 2 {
		t.Errorf("%q, %d unplaced, want %q, 2", got, s.unplacedSessions, want)
	}
}

// TestSessionsAsked checks that a server is asked for sessions only if that is configured, and what becomes of its answer.
func TestSessionsAsked(t *testing.T) {
	for _, vendor := range preset.WithSessions {
		for _, sessions := range []bool{false, true} {
			sw, a, log := started(t, vendor, gnmitest.ExampleState(time.Now()), gnmitest.Faults{}, nil, func(c *Config) { c.Sessions = sessions })
			until(t, a, log, "series", synced)
			until(t, a, log, "every subscription", func(map[string]float64) bool {
				return len(sw.ReceivedSubscriptions()) == map[bool]int{true: 4, false: 1}[vendor == "sonic"]
			})
			asked := fmt.Sprint(sw.ReceivedSubscriptions())
			for _, part := range map[string][]string{"sonic": {"NEIGH_STATE_TABLE", "BFD_SESSION_TABLE", "INTF_TABLE"}}[vendor] {
				if strings.Contains(asked, part) != sessions {
					t.Errorf("%s, sessions %v: %s", vendor, sessions, asked)
				}
			}
			if vendor == "sonic" {
				continue
			}
			if strings.Contains(asked, "established-transitions") != sessions || strings.Contains(asked, "failure-transitions") != sessions || strings.Contains(asked, "prefix-length") != sessions {
				t.Errorf("%s, sessions %v: %s", vendor, sessions, asked)
			}
			if !sessions {
				continue
			}
			sw.SendNotifications(&gpb.Notification{Timestamp: time.Now().UnixNano(), Update: slices.Concat([]*gpb.Update{address(t, "Ethernet8", "10.0.0.0", 31)},
				neighbor(t, "default", "10.0.0.1", "ESTABLISHED", "3", "10.0.0.0"), bfdPeer(t, "Ethernet8", "Ethernet8", "1", "DOWN", "2", "10.0.0.1"),
				neighbor(t, "default", "10.7.0.1", "ESTABLISHED", "3", "10.7.0.0"))})
			until(t, a, log, "sessions", func(got map[string]float64) bool {
				of := `{switch="leaf1",port="Ethernet8"}`
				down, known := got["fabric_switch_bfd_session_up"+of]
				return got["fabric_switch_bgp_session_up"+of] == 1 && got["fabric_switch_bgp_sessions_established_total"+of] == 3 && known && down == 0 &&
					got["fabric_switch_bfd_session_downs_total"+of] == 2 && got["graylink_gnmi_unplaced_sessions"+leaf1+"}"] == 1
			})
		}
	}
}

// FuzzSessions checks that whatever a switch states of its sessions and addresses, a session is at a port of the switch, or at none.
func FuzzSessions(f *testing.F) {
	f.Add("e1", "10.0.0.0", 31, "10.0.0.1", "10.0.0.0", "e1", "10.0.0.1")
	f.Add("Ethernet1", "fe80::1", 64, "fe80::2%Et1", "fe80::1", "Ethernet1.0", "fe80::2")
	f.Add("e1", "::ffff:10.0.0.0", 127, "::ffff:10.0.0.1", "::ffff:10.0.0.0", "link-1", "%")
	f.Add("", "10.0.0.0/31", -1, "..", "", "..", ".")
	f.Fuzz(func(t *testing.T, port, own string, bits int, peer, local, id, remote string) {
		now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
		s := sessionsStore(t, "openconfig", 100)
		text := func(v string) *gpb.TypedValue { return &gpb.TypedValue{Value: &gpb.TypedValue_StringVal{StringVal: v}} }
		keyed := func(path string, keys ...string) *gpb.Path {
			p := path1(t, path)
			for _, e := range p.Elem {
				for k := range e.Key {
					if e.Key[k] == "?" {
						e.Key[k], keys = keys[0], keys[1:]
					}
				}
			}
			return p
		}
		const bgp = "/network-instances/network-instance[name=default]/protocols/protocol[identifier=BGP][name=BGP]/bgp/neighbors/neighbor[neighbor-address=?]/"
		const bfd = "/bfd/interfaces/interface[id=?]/peers/peer[local-discriminator=1]/state/"
		n := &gpb.Notification{Timestamp: now.UnixNano(), Update: []*gpb.Update{
			{Path: keyed("/interfaces/interface[name=?]/subinterfaces/subinterface[index=0]/ipv4/addresses/address[ip=?]/state/prefix-length", port, own), Val: text(fmt.Sprint(bits))},
			{Path: keyed(bgp+"state/session-state", peer), Val: text("ESTABLISHED")},
			{Path: keyed(bgp+"transport/state/local-address", peer), Val: text(local)},
			{Path: keyed(bfd+"session-state", id), Val: text("UP")},
			{Path: keyed(bfd+"remote-address", id), Val: text(remote)},
		}}
		s.applyNotification(message{body: n}, now)
		points, _ := s.appendPoints(nil, "sw", now, 3*time.Second)
		for _, p := range points {
			if p.Values[0] != strings.ToValidUTF8(port, "\ufffd") {
				t.Errorf("%s at port %q, the switch has %q", p.Family.Name, p.Values[0], port)
			}
		}
		if len(points)+s.unplacedSessions > 2 {
			t.Errorf("%d points and %d sessions without a port, of two sessions", len(points), s.unplacedSessions)
		}
	})
}
