package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/roce"
	"github.com/graylink/graylink/test/vm/guest"
)

// routers makes a machine between two networks four routers: one beside each network, and
// two side by side between them, over which packets are spread by addresses and ports.
//
//	h1 10.0.1.2 - 10.0.1.1 ra 172.16.1.1 - 172.16.1.2 r1 172.16.3.2 - 172.16.3.1 rb 10.0.2.1 - 10.0.2.2 h2
//	                          172.16.2.1 - 172.16.2.2 r2 172.16.4.2 - 172.16.4.1
func routers(t *testing.T, m *Machine) {
	t.Helper()
	var batch [4]string // of ip, by place
	places := [4]string{"", "r1", "r2", "rb"}
	in := func(place int, format string, args ...any) { batch[place] += fmt.Sprintf(format, args...) + "\n" }
	const ra, rb = 0, 3
	lines := []string{"mkdir -p /run/netns", "ip netns add r1", "ip netns add r2", "ip netns add rb", "ip link set eth1 netns rb"}
	in(ra, "addr add 10.0.1.1/24 dev eth0")
	in(ra, "link set eth0 up")
	in(rb, "addr add 10.0.2.1/24 dev eth1")
	in(rb, "link set eth1 up")
	for r := 1; r <= 2; r++ {
		lines = append(lines, fmt.Sprintf("ip link add a%d type veth peer name left netns r%d", r, r), fmt.Sprintf("ip -n rb link add b%d type veth peer name right netns r%d", r, r))
		in(ra, "addr add 172.16.%d.1/24 dev a%d", r, r)
		in(ra, "link set a%d up", r)
		in(r, "addr add 172.16.%d.2/24 dev left", r)
		in(r, "addr add 172.16.%d.2/24 dev right", r+2)
		in(r, "link set left up")
		in(r, "link set right up")
		in(r, "route add 10.0.1.0/24 via 172.16.%d.1", r)
		in(r, "route add 10.0.2.0/24 via 172.16.%d.1", r+2)
		in(rb, "addr add 172.16.%d.1/24 dev b%d", r+2, r)
		in(rb, "link set b%d up", r)
	}
	in(ra, "route add 10.0.2.0/24 nexthop via 172.16.1.2 nexthop via 172.16.2.2")
	in(rb, "route add 10.0.1.0/24 nexthop via 172.16.3.2 nexthop via 172.16.4.2")
	const settings = "cd /proc/sys/net/ipv4; echo 1 > ip_forward; echo 0 > icmp_ratelimit; echo 1 > fib_multipath_hash_policy"
	for i, place := range places {
		enter, of := "", ""
		if place != "" {
			enter, of = "ip netns exec "+place+" ", "-n "+place
		}
		lines = append(lines, fmt.Sprintf("printf '%s' | ip %s -batch -", batch[i], of), fmt.Sprintf("%ssh -c '%s'", enter, settings))
	}
	lines = append(lines, "echo 100000 > /proc/sys/net/ipv4/icmp_msgs_per_sec") // of the whole host
	shell(t, m, "set -e; "+strings.Join(lines, "; "))
}

// paths returns those that an agent knows, by edge: addresses of the hops, for those that are valid and of which every hop
// answered. Others are traced again: an answer of a slow machine may come too late for a trace.
func (p *prober) paths(hops int) (found map[string][]string, text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	b, err := p.m.HTTPGet(ctx, "http://127.0.0.1:9868/api/v1/paths")
	if err != nil {
		p.t.Fatal(err)
	}
	var out struct {
		Paths []struct {
			Edge, State string
			Hops        []struct{ Address string }
		}
	}
	if err := json.Unmarshal(b, &out); err != nil {
		p.t.Fatal(err)
	}
	found = map[string][]string{}
	var again []string
	for _, v := range out.Paths {
		var path []string
		for _, h := range v.Hops {
			if h.Address != "" {
				path = append(path, h.Address)
			}
		}
		if v.State != "valid" || len(path) < hops {
			again = append(again, v.Edge)
			continue
		}
		found[v.Edge] = path
	}
	if len(again) > 0 {
		body, err := json.Marshal(map[string][]string{"edges": again})
		if err != nil {
			p.t.Fatal(err)
		}
		answer, err := p.m.DoRequest(ctx, guest.Request{URL: "http://127.0.0.1:9868/api/v1/trace", Method: http.MethodPost, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Limit: patience})
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Logf("%s traced %v again: %d %s", p.m.Name, again, answer.Status, answer.Body)
	}
	return found, string(b)
}

// captured are the RoCE v2 packets that a network saw from h1: those of its queue pair, and
// the copies that its tracer sent.
type captured struct {
	mu           sync.Mutex
	real, copies []byte // the first of each
	dead, alive  map[uint16]int
	faults       []string
}

// see checks a frame: read and written again, a packet is the same, octet for octet.
func (c *captured) see(frame []byte) {
	if len(frame) < 14+28 || frame[12] != 8 || frame[13] != 0 || frame[14+9] != 17 || frame[14+22] != roce.Port>>8 || frame[14+23] != roce.Port&0xff {
		return
	}
	b := frame[14:]
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := roce.Parse(b)
	if err != nil {
		if frame[14+20+8] == 0x64 || frame[14+20+8] == 0x65 {
			c.faults = append(c.faults, fmt.Sprintf("%v: %x", err, b))
		}
		return
	}
	again, err := p.Append(nil)
	if err != nil || !bytes.Equal(again, b) {
		c.faults = append(c.faults, fmt.Sprintf("%v: %x was written as %x", err, b, again))
	}
	if p.Src != netip.MustParseAddr("10.0.1.2") {
		return
	}
	if p.DestQPN == 0 {
		c.dead[p.SrcPort]++
		if c.copies == nil {
			c.copies = bytes.Clone(b)
		}
		return
	}
	c.alive[p.SrcPort]++
	if c.real == nil {
		c.real = bytes.Clone(b)
	}
}

// pathsOfRDMA checks that paths of edges by RDMA are those that their own packets take, whatever the same probes would
// take by UDP.
func pathsOfRDMA(t *testing.T, machines *bed) {
	seen := &captured{dead: map[uint16]int{}, alive: map[uint16]int{}}
	machines.left.SetTap(seen.see)
	began := time.Now()
	routers(t, machines.routers)
	t.Logf("the routers are there after %.1f s", time.Since(began).Seconds())
	const udpFlows = 16
	udp := false // probes by UDP as well
	var ends [2]*prober
	for i, m := range []*Machine{machines.h1, machines.h2} {
		n, other := i+1, 2-i
		p := &prober{agent: &agent{t: t, m: m}, n: n, other: other, qkey: qkey, peerQKey: qkey, busy: "0s"}
		p.own = func() string {
			out := fmt.Sprintf(`node: h%[1]d
cadence: 20ms
reply_timeout: 30s
stamp: {port: 8862, class: roce, dscp: 26}
clock: {error_bound: 1ms}
nics:
  - {nic: h%[1]d/rxe0, rdma: {device: rxe0, port: 1, qkey: %#[2]x, busy_poll: %[3]s}}
`, n, qkey, p.busy)
			if udp {
				out += fmt.Sprintf("  - {nic: h%[1]d/eth1, device: eth1, address: 10.0.%[1]d.2}\n", n)
			}
			if p.peerQPN != "" {
				out += fmt.Sprintf("peers:\n  - {nic: h%d/rxe0, gid: \"::ffff:10.0.%d.2\", qpn: %s, qkey: %#x, tier: 1, flows: 2}\n", other, other, p.peerQPN, qkey)
			}
			if udp {
				out += fmt.Sprintf("  - {nic: h%[1]d/eth1, address: 10.0.%[1]d.2, tier: 1, flows: %[2]d}\n", other, udpFlows)
			}
			return out
		}
		ends[i] = p
		shell(t, p.m, fmt.Sprintf("ip link set lo up && ip addr add 10.0.%d.2/24 dev eth1 && ip link set eth1 up && ip route add default via 10.0.%d.1 && rdma link add rxe0 type rxe netdev eth1", n, n))
		p.begin("--web.enable-admin-api")
	}
	a, b := ends[0], ends[1]
	t.Logf("the agents run after %.1f s", time.Since(began).Seconds())

	// packets came into the routers side by side: of h1 by the left, of h2 by the right.
	packets := func() (n [2][2]int) {
		out := strings.Fields(shell(t, machines.routers, "for r in r1 r2; do for i in left right; do ip netns exec $r cat /sys/class/net/$i/statistics/rx_packets; done; done"))
		for i := range 4 {
			v, err := strconv.Atoi(out[i])
			if err != nil {
				t.Fatal(err)
			}
			n[i/2][i%2] = v
		}
		return n
	}
	// port is that of packets of h1's queue pair, and router the next one of those side by side that they are sent to.
	port := func() uint16 {
		qpn, err := strconv.ParseUint(a.qpn(), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return roce.ByQueuePair.SourcePort(1, uint32(qpn))
	}
	router := func() string {
		out := shell(t, machines.routers, fmt.Sprintf("ip route get 10.0.2.2 from 10.0.1.2 iif eth0 ipproto 17 sport %d dport %d", port(), roce.Port))
		_, after, _ := strings.Cut(out, " via ")
		via, _, ok := strings.Cut(after, " ")
		if !ok {
			t.Fatalf("ip route get: %q", out)
		}
		return via
	}
	ways := map[string]int{}
	for range 2 {
		// Another queue pair has another port. The routers say which way it has, so that only one that goes another way is
		// looked at: one in two does.
		for try := 0; ways[router()] > 0; try++ {
			if try == 40 {
				t.Fatal("40 queue pairs have one way; by chance one time in 2^40")
			}
			a.busy = fmt.Sprintf("%dus", try+1) // the port is opened anew when its options change
			a.peerQPN = ""                      // paths of edges that are gone are forgotten
			a.reload()
		}
		a.peerQPN, b.peerQPN = b.qpn(), a.qpn()
		b.reload()
		a.reload()
		a.answered("rxe0", 10)
		var found, back map[string][]string
		var text string
		for _, p := range ends {
			until(t, "paths of all edges of "+p.m.Name, func() (string, bool) {
				all, said := p.paths(3)
				if p == b {
					back = all
				} else {
					found, text = all, said
				}
				return said, len(all) == 4
			})
		}
		before := packets() // now nothing is traced
		a.answered("rxe0", 50)
		after := packets()
		var most [2]int // the router that more packets of a direction came to, and how many did
		for d := range 2 {
			one, two := after[0][d]-before[0][d], after[1][d]-before[1][d]
			if two > one {
				most[d] = 1
			}
			if few, many := min(one, two), max(one, two); many < 40 || few > many/4 {
				t.Errorf("direction %d: %d and %d packets: nearly all of one queue pair's are expected to go one way", d, one, two)
			}
		}
		forward := []string{"10.0.1.1", fmt.Sprintf("172.16.%d.2", most[0]+1), fmt.Sprintf("172.16.%d.1", most[0]+3)}
		for edge, hops := range found {
			if !slices.Equal(hops, forward) {
				t.Errorf("%s: %v, want %v, which its packets take: %s", edge, hops, forward, text)
			}
		}
		reverse := []string{"10.0.2.1", fmt.Sprintf("172.16.%d.2", most[1]+3), fmt.Sprintf("172.16.%d.1", most[1]+1)}
		for edge, hops := range back {
			if !slices.Equal(hops, reverse) {
				t.Errorf("%s: %v, want %v, which its packets take", edge, hops, reverse)
			}
		}
		ways[forward[1]]++
		t.Logf("queue pair %s of h1: forward %v, reverse %v, after %.1f s", b.peerQPN, forward, reverse, time.Since(began).Seconds())
		of := port()
		seen.mu.Lock()
		if seen.alive[of] == 0 || seen.dead[of] == 0 {
			t.Errorf("%d packets and %d copies from port %d of queue pair %s, want some of both; ports seen: %v, %v", seen.alive[of], seen.dead[of], of, b.peerQPN, seen.alive, seen.dead)
		}
		seen.mu.Unlock()
	}
	if len(ways) != 2 {
		t.Errorf("ways %v: both are expected, each by a queue pair", ways)
	}

	// The same NICs by UDP: flows have other ports, and some of them the other way.
	udp = true
	b.reload()
	a.reload()
	var found map[string][]string
	until(t, "paths of edges by UDP", func() (string, bool) {
		all, text := a.paths(3)
		found = all
		n := 0
		for edge := range all {
			if strings.HasPrefix(edge, "h1/eth1>") {
				n++
			}
		}
		return text, n == udpFlows
	})
	byUDP := map[string]int{}
	var byRDMA []string
	for edge, hops := range found {
		switch {
		case strings.HasPrefix(edge, "h1/eth1>"):
			byUDP[hops[1]]++
		case strings.HasPrefix(edge, "h1/rxe0>"):
			byRDMA = hops
		}
	}
	t.Logf("by UDP %d flows, by way %v; by RDMA %v", udpFlows, byUDP, byRDMA)
	if len(byRDMA) != 3 || byUDP[byRDMA[1]] == udpFlows { // by chance in one of 65,536 runs
		t.Errorf("all flows by UDP have the way of those by RDMA: %v, %v", byUDP, byRDMA)
	}

	// What copies do at the peer: nothing.
	for _, p := range ends {
		if v := p.value("fabric_nic_rdma_port_qkey_violations"); v != 0 {
			t.Errorf("%s: %g Q_Key violations", p.m.Name, v)
		}
		t.Logf("%s: log of the kernel: %q", p.m.Name, shell(t, p.m, "dmesg | grep -i -e rxe -e 'QP 0' -e qp || true"))
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, f := range seen.faults {
		t.Error(f)
	}
	t.Logf("packets by port %v, copies %v; %.1f s in all", seen.alive, seen.dead, time.Since(began).Seconds())
	if dir := os.Getenv("GRAYLINK_CAPTURE"); dir != "" {
		for name, b := range map[string][]byte{"rxe_send.bin": seen.real, "copy.bin": seen.copies} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
				t.Error(err)
			}
		}
	}
}
