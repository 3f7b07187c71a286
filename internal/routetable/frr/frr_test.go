package frr

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/routetable"
)

var start = time.Date(2026, 11, 29, 7, 0, 0, 0, time.UTC)

// files maps commands to the files with their answers.
var files = map[string]string{"show ip route json": "routes", "show ipv6 route json": "routes6", "show bgp summary json": "summary", "show bgp neighbors json": "neighbors",
	"show bgp ipv4 unicast json detail": "paths", "show bfd peers json": "bfd", "show bfd peers counters json": "counters"}

// daemons answer as FRR does, from files, until the test ends.
type daemons struct {
	t   *testing.T
	dir string

	mu      sync.Mutex
	answers map[string]string // by command
	asked   map[string]int
	wg      sync.WaitGroup
}

func startDaemons(t *testing.T, from string, names ...string) *daemons {
	t.Helper()
	d := &daemons{t: t, dir: t.TempDir(), answers: map[string]string{"enable": ""}, asked: map[string]int{}}
	for command, file := range files {
		b, err := os.ReadFile(filepath.Join("testdata", from, file+".json"))
		if err != nil {
			t.Fatal(err)
		}
		d.answers[command] = string(b)
	}
	t.Cleanup(d.wg.Wait) // after the listeners are closed
	for _, name := range names {
		l, err := net.Listen("unix", filepath.Join(d.dir, name+".vty"))
		if err != nil {
			t.Fatal(err)
		}
		d.wg.Go(func() { d.accept(l) })
		t.Cleanup(func() { l.Close() })
	}
	return d
}

func (d *daemons) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		d.wg.Go(func() { d.serve(conn) })
	}
}

// serve answers commands. An answer of "silent" is none, and a command without answer is unknown.
func (d *daemons) serve(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 1024)
	enabled := false
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		command := strings.TrimSuffix(string(buf[:n]), "\x00")
		d.mu.Lock()
		d.asked[command]++
		answer, known := d.answers[command]
		d.mu.Unlock()
		enabled = enabled || command == "enable"
		switch {
		case answer == "silent":
			continue
		case !known || strings.HasPrefix(command, "show bfd") && !enabled:
			answer = "% Unknown command\n\x00\x00\x00\x02"
		case !strings.Contains(answer, "\x00"):
			answer += "\x00\x00\x00\x00"
		}
		if _, err := conn.Write([]byte(answer)); err != nil {
			return
		}
	}
}

func (d *daemons) set(command, answer string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[command] = answer
}

func (d *daemons) replace(command, old, new string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !strings.Contains(d.answers[command], old) {
		d.t.Errorf("the answer to %s does not have %q", command, old)
	}
	d.answers[command] = strings.ReplaceAll(d.answers[command], old, new)
}

func (d *daemons) times(command string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[command]
}

// port names the interfaces of the lab's switches except for the loopback.
func port(device string) string {
	if device == "lo" {
		return ""
	}
	return device
}

// text formats routes, with the ports in order.
func text(r routetable.Routes) string {
	var out []string
	for p, ports := range r {
		slices.Sort(ports)
		out = append(out, p.String()+"="+strings.Join(ports, ","))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func sessionsText(list []routetable.Session) string {
	var out []string
	for _, s := range list {
		count := s.Established
		if s.Protocol == routetable.BFD {
			count = s.Downs
		}
		n := "?"
		if count != nil {
			n = fmt.Sprint(*count)
		}
		out = append(out, fmt.Sprintf("%s:%s:%v:%s:%v", s.Port, s.Protocol, s.Up, n, s.Detection))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestRead checks what is made of the answers of FRR.
func TestRead(t *testing.T) {
	for from, want := range map[string]struct{ rib, paths, sessions string }{
		"leaf2": {
			"10.0.1.0/24=up1 10.0.2.0/24=up1 10.0.5.0/24=up1,up2 10.0.6.0/24=up1,up2 10.0.7.0/24=up1,up2 10.0.8.0/24=up1,up2 172.16.0.1/32=up1 172.16.0.11/32=up1 172.16.0.13/32=up1,up2 172.16.0.14/32=up1,up2 172.16.0.2/32=up2",
			"10.0.1.0/24=up1 10.0.2.0/24=up1 10.0.5.0/24=up1,up2 10.0.6.0/24=up1,up2 10.0.7.0/24=up1,up2 10.0.8.0/24=up1,up2 172.16.0.1/32=up1 172.16.0.11/32=up1 172.16.0.13/32=up1,up2 172.16.0.14/32=up1,up2 172.16.0.2/32=up2",
			"up1:bfd:true:0:300ms up1:bgp:true:1:9s up2:bfd:true:0:300ms up2:bgp:true:1:9s",
		},
		// The route of the kernel to 10.0.5.0/24 is not what the daemon selected.
		"faults": {
			"10.0.3.0/24=up1 10.0.4.0/24=up1 10.0.5.0/24=up1 10.0.6.0/24=up1 10.0.7.0/24=up1 10.0.8.0/24=up1 172.16.0.1/32=up1 172.16.0.12/32=up1 172.16.0.13/32=up1 172.16.0.14/32=up1",
			"10.0.3.0/24=up1 10.0.4.0/24=up1 10.0.5.0/24=up1 10.0.6.0/24=up1 10.0.7.0/24=up1 10.0.8.0/24=up1 172.16.0.1/32=up1 172.16.0.12/32=up1 172.16.0.13/32=up1 172.16.0.14/32=up1",
			"up1:bfd:true:0:300ms up1:bgp:true:1:9s up2:bfd:false:1:300ms up2:bgp:false:1:9s",
		},
	} {
		d := startDaemons(t, from, "zebra", "bgpd", "bfdd")
		s := Open(d.dir).Read(t.Context(), start, port, false)
		if s.Err != nil || text(s.RIB) != want.rib || text(s.Paths) != want.paths || sessionsText(s.Sessions) != want.sessions || s.RoutesAt != start {
			t.Errorf("%s: %v\nroutes\n%s, want\n%s\npaths\n%s, want\n%s\nsessions\n%s, want\n%s", from, s.Err, text(s.RIB), want.rib, text(s.Paths), want.paths, sessionsText(s.Sessions), want.sessions)
		}
		for _, x := range s.Sessions {
			if x.Changed.IsZero() || x.Changed.After(start) || !strings.HasPrefix(x.Peer, "fe80::") {
				t.Errorf("%s: session %+v", from, x)
			}
		}
	}
}

// TestRule1QuestionsFollowSigns checks which questions are asked as time passes.
func TestRule1QuestionsFollowSigns(t *testing.T) {
	d := startDaemons(t, "leaf2", "zebra", "bgpd", "bfdd")
	r := Open(d.dir)
	now := start
	read := func(changed bool) State {
		now = now.Add(5 * time.Second)
		r.restUntil = time.Time{} // rule 2 has its own test
		s := r.Read(t.Context(), now, port, changed)
		if s.Err != nil {
			t.Fatal(s.Err)
		}
		return s
	}
	read(false)
	for range 3 {
		read(false)
	}
	if n, m := d.times("show ip route json"), d.times("show bgp summary json"); n != 1 || m != 4 {
		t.Errorf("routes were read %d times, and sessions %d times", n, m)
	}
	read(true)
	d.replace("show bgp summary json", `"pfxRcd":10`, `"pfxRcd":9`)
	read(false)
	d.replace("show bgp summary json", `"connectionsEstablished":1`, `"connectionsEstablished":2`)
	s := read(false)
	if n := d.times("show ip route json"); n != 4 {
		t.Errorf("routes were read %d times, want 4", n)
	}
	for _, x := range s.Sessions {
		if x.Protocol == routetable.BGP && *x.Established != 2 {
			t.Errorf("%+v", x)
		}
	}
	for range 6 {
		read(false)
	}
	if n := d.times("show ip route json"); n != 5 {
		t.Errorf("routes were read %d times, want 5 after %v", n, Refresh)
	}
}

func TestRule2RestAfterRoutes(t *testing.T) {
	d := startDaemons(t, "leaf2", "zebra", "bgpd", "bfdd")
	r := Open(d.dir)
	r.Read(t.Context(), start, port, true)
	if !r.restUntil.After(start) {
		t.Fatalf("no rest after %v", start)
	}
	s := r.Read(t.Context(), r.restUntil.Add(-1), port, true)
	if d.times("show ip route json") != 1 || s.RoutesAt != start || len(s.RIB) == 0 {
		t.Errorf("asked %d times, routes of %v", d.times("show ip route json"), s.RoutesAt)
	}
	r.Read(t.Context(), r.restUntil, port, true)
	if d.times("show ip route json") != 2 {
		t.Error("routes are not read again")
	}
}

func TestRule3WhatIsNotAnsweredIsUnknown(t *testing.T) {
	for name, tc := range map[string]struct {
		run                  []string // daemons
		command, answer      string
		rib, paths, sessions bool
		says                 string
	}{
		"all":         {[]string{"zebra", "bgpd", "bfdd"}, "enable", "", true, true, true, ""},
		"no bfdd":     {[]string{"zebra", "bgpd"}, "enable", "", true, true, true, ""},
		"no bgpd":     {[]string{"zebra", "bfdd"}, "enable", "", true, false, true, ""},
		"only zebra":  {[]string{"zebra"}, "enable", "", true, false, false, ""},
		"no zebra":    {[]string{"bgpd", "bfdd"}, "enable", "", false, false, true, "zebra: the daemon does not run"},
		"nothing":     {nil, "enable", "", false, false, false, "zebra: the daemon does not run"},
		"silent bfdd": {[]string{"zebra", "bgpd", "bfdd"}, "show bfd peers json", "silent", true, true, false, "bfdd: show bfd peers json"},
		"silent bgpd": {[]string{"zebra", "bgpd", "bfdd"}, "show bgp summary json", "silent", true, false, false, "bgpd: show bgp summary json"},
		"bad routes":  {[]string{"zebra", "bgpd", "bfdd"}, "show ip route json", `{"10.0.0.0":[]}`, false, false, true, "routes:"},
		"bad paths":   {[]string{"zebra", "bgpd", "bfdd"}, "show bgp ipv4 unicast json detail", `{"routes":{"10.0.0.0/8":7}}`, true, false, true, "paths to 10.0.0.0/8"},
		"cut off":     {[]string{"zebra", "bgpd", "bfdd"}, "show bgp neighbors json", `{"up1":`, true, false, true, "neighbors of BGP"},
		"an error":    {[]string{"zebra", "bgpd", "bfdd"}, "show bfd peers counters json", "% no\x00\x00\x00\x01", true, true, false, "result 1: % no"},
	} {
		d := startDaemons(t, "leaf2", tc.run...)
		d.set(tc.command, tc.answer)
		r := Open(d.dir)
		if tc.answer == "silent" {
			r.client.timeout = 100 * time.Millisecond
		} else {
			r.client.timeout = time.Minute
		}
		s := r.Read(t.Context(), start, port, false)
		if (s.RIB != nil) != tc.rib || (s.Paths != nil) != tc.paths || (s.Sessions != nil) != tc.sessions || (s.Err == nil) != (tc.says == "") || s.Err != nil && !strings.Contains(s.Err.Error(), tc.says) {
			t.Errorf("%s: routes %v, paths %v, sessions %v, error %v", name, s.RIB != nil, s.Paths != nil, s.Sessions != nil, s.Err)
		}
	}
}

// TestFailedRoutesAreReadAgain checks that an error does not wait for a sign.
func TestFailedRoutesAreReadAgain(t *testing.T) {
	d := startDaemons(t, "leaf2", "zebra", "bgpd", "bfdd")
	good := d.answers["show ip route json"]
	d.set("show ip route json", "{")
	r := Open(d.dir)
	if s := r.Read(t.Context(), start, port, false); s.Err == nil || s.RIB != nil {
		t.Fatalf("%+v", s)
	}
	d.set("show ip route json", good)
	if s := r.Read(t.Context(), r.restUntil, port, false); s.Err != nil || len(s.RIB) == 0 {
		t.Errorf("%+v", s)
	}
}

func TestQueryIsCancelled(t *testing.T) {
	d := startDaemons(t, "leaf2", "zebra")
	d.set("show ip route json", "silent")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := client{d.dir, time.Minute}
	if _, err := c.query(ctx, "zebra", "show ip route json"); err == nil {
		t.Error("a cancelled query succeeds")
	}
}

// TestNumberedPeers checks neighbours with addresses of subnets, which the answers do not place at an interface.
func TestNumberedPeers(t *testing.T) {
	selected, connected, paths := devices{}, devices{}, devices{}
	if err := parseRoutes([]byte(`{"172.16.17.0/31":[{"protocol":"connected","nexthops":[{"interfaceName":"up1","active":true}]}],
		"172.16.0.0/16":[{"protocol":"connected","nexthops":[{"interfaceName":"eth0","active":true}]}],
		"10.0.9.0/24":[{"protocol":"static","selected":true,"nexthops":[{"recursive":true,"active":true},{"interfaceName":"up1","active":true,"resolver":true},{"interfaceName":"up3","active":false}]}],
		"10.0.8.0/24":[{"protocol":"static","selected":true,"nexthops":[{"unreachable":true,"blackhole":true,"active":true}]}],
		"10.0.7.0/24":[{"protocol":"bgp","nexthops":[{"interfaceName":"up1","active":true}]}],
		"10.0.6.0/24":[{"protocol":"bgp","selected":true,"table":100,"nexthops":[{"interfaceName":"up1","active":true}]}],
		"fe80::/64":[{"protocol":"connected","selected":true,"nexthops":[{"interfaceName":"up1","active":true}]}]}`), selected, connected); err != nil {
		t.Fatal(err)
	}
	want := devices{netip.MustParsePrefix("10.0.9.0/24"): {"up1"}, netip.MustParsePrefix("10.0.8.0/24"): {}}
	if !maps.EqualFunc(selected, want, slices.Equal) || len(connected) != 2 {
		t.Errorf("selected %v, want %v; connected %v", selected, want, connected)
	}
	if err := parsePaths([]byte(`{"routes":{"10.0.9.0/24":[{"valid":true,"peer":{"peerId":"172.16.17.1"}},{"peer":{"peerId":"172.16.17.1"}},{"valid":true,"peer":{"peerId":"9.9.9.9"}}]}}`), connected, paths); err != nil {
		t.Fatal(err)
	}
	if got := paths[netip.MustParsePrefix("10.0.9.0/24")]; !slices.Equal(got, []string{"up1"}) {
		t.Errorf("paths by %v", got)
	}
	r := Reader{connected: connected}
	list := r.listSessions(start, map[string]bgpSummary{"ipv4Unicast": {Peers: map[string]bgpSession{"172.16.17.1": {State: "Active", IDType: "ipv4"}, "9.9.9.9": {State: "Active", IDType: "ipv4"}}}},
		[]bfdPeer{{Peer: "172.16.17.1", Status: "down"}}, port)
	if got := sessionsText(list); got != "up1:bfd:false:?:0s up1:bgp:false:?:0s" || !list[0].Changed.IsZero() {
		t.Errorf("sessions %s", got)
	}
}

// FuzzAnswers checks that whatever a daemon answers is refused or used.
func FuzzAnswers(f *testing.F) {
	all, err := filepath.Glob("testdata/*/*.json")
	if err != nil || len(all) == 0 {
		f.Fatal("no answers in testdata")
	}
	for _, file := range all {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var small bytes.Buffer // fewer octets make more executions
		if err := json.Compact(&small, b); err != nil {
			f.Fatal(err)
		}
		f.Add(small.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		selected, connected, paths := devices{}, devices{}, devices{}
		_ = parseRoutes(b, selected, connected)
		_ = parsePaths(b, connected, paths)
		summary, _ := parseSummary(b)
		neighbors, _ := parseNeighbors(b)
		peers, _ := parseBFD(b, b)
		r := Reader{connected: connected, neighbors: neighbors}
		for range 2 {
			for _, s := range r.listSessions(start, summary, peers, port) {
				if s.Detection < 0 || s.Changed.After(start) {
					t.Fatalf("session %+v", s)
				}
			}
		}
		for p, ports := range named(selected, port) {
			if !p.IsValid() || slices.Contains(ports, "") {
				t.Fatalf("%v: %q", p, ports)
			}
		}
	})
}
