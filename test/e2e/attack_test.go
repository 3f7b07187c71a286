package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// arena is two namespaces joined by a cable: in one the peer h1 and an attacker
// who can write any source address, in the other h2, which is attacked.
type arena struct {
	t      *testing.T
	dir    string
	near   string
	far    string
	client *http.Client
	// victimSSID is the SSID of h2's probes; 0: one chosen at random.
	victimSSID int
}

const (
	peerAddr     = "10.77.0.1"
	strangerAddr = "10.77.0.99"
	victimAddr   = "10.77.0.2"
	peerSSID     = 77
)

func newArena(t *testing.T) *arena {
	t.Helper()
	need(t)
	for _, tool := range []string{"tcpdump"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
				t.Fatalf("needs %s", tool)
			}
			t.Skipf("needs %s", tool)
		}
	}
	a := &arena{t: t, dir: t.TempDir(), near: fmt.Sprintf("gl-attack-%d-near", os.Getpid()), far: fmt.Sprintf("gl-attack-%d-far", os.Getpid())}
	for _, ns := range []string{a.near, a.far} {
		if err := unix.CreateNetns(ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.RemoveNetns(ns); err != nil {
				t.Errorf("remove namespace: %v", err)
			}
		})
		a.ip("-n", ns, "link", "set", "lo", "up")
	}
	a.ip("link", "add", "eth1", "netns", a.near, "type", "veth", "peer", "name", "eth1", "netns", a.far)
	for ns, addrs := range map[string][]string{a.near: {peerAddr, strangerAddr}, a.far: {victimAddr}} {
		for _, addr := range addrs {
			a.ip("-n", ns, "addr", "add", addr+"/24", "dev", "eth1")
		}
		a.ip("-n", ns, "link", "set", "eth1", "up")
	}
	a.client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			err = unix.InNetns(a.far, func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
			return c, err
		}}}
	return a
}

func (a *arena) ip(args ...string) {
	a.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		a.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (a *arena) file(name, content string) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// run starts a program in a namespace; it is stopped at the end of the test.
func (a *arena) run(ns string, stderr io.Writer, argv ...string) *exec.Cmd {
	a.t.Helper()
	cmd := exec.Command("ip", append([]string{"netns", "exec", ns}, argv...)...)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { stop(a.t, cmd) })
	return cmd
}

// stop ends a program that may have been stopped before.
func stop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if cmd.ProcessState != nil {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
}

// nodes starts h1 and h2; auth is the line of the configuration that
// authenticates them.
func (a *arena) nodes(auth string) (victim *exec.Cmd) {
	a.t.Helper()
	conf := func(self, addr, ssid, peer, peerAddr, peerSSID string) string {
		return fmt.Sprintf("node: %s\n%snics: [{nic: %s/eth1, address: %s, leaf: leaf1%s}]\npeers: [{nic: %s/eth1, address: %s, leaf: leaf1, tier: 1%s}]\n",
			self, auth, self, addr, ssid, peer, peerAddr, peerSSID)
	}
	own := ""
	if a.victimSSID != 0 {
		own = fmt.Sprintf(", ssid: %d", a.victimSSID)
	}
	h1 := a.file("h1.yaml", conf("h1", peerAddr, fmt.Sprintf(", ssid: %d", peerSSID), "h2", victimAddr, own))
	h2 := a.file("h2.yaml", conf("h2", victimAddr, own, "h1", peerAddr, fmt.Sprintf(", ssid: %d", peerSSID)))
	node := filepath.Join(bin, "graylink-node")
	a.run(a.near, os.Stderr, node, "--config.file="+h1, "--web.listen-address=127.0.0.1:9868", "--log.level=warn")
	victim = a.run(a.far, os.Stderr, node, "--config.file="+h2, "--web.listen-address=127.0.0.1:9868", "--log.level=warn")
	a.wait("h1's probes answered", func() bool { return a.metric("/metrics/edges", `fabric_probe_received_total{`) > 20 })
	return victim
}

func (a *arena) wait(what string, f func() bool) {
	a.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if f() {
			return
		}
	}
	a.t.Fatalf("%s: not within 20 s", what)
}

// metric sums h2's series whose lines begin with prefix; -1: there is none.
func (a *arena) metric(path, prefix string) float64 {
	a.t.Helper()
	resp, err := a.client.Get("http://127.0.0.1:9868" + path)
	if err != nil {
		return -1 // not up yet
	}
	defer resp.Body.Close()
	sum, seen := 0.0, false
	for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
		if line := sc.Text(); strings.HasPrefix(line, prefix) {
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				a.t.Fatalf("line %q: %v", line, err)
			}
			sum, seen = sum+v, true
		}
	}
	if !seen {
		return -1
	}
	return sum
}

func (a *arena) dropped(reason string) float64 {
	a.t.Helper()
	return a.metric("/metrics", fmt.Sprintf(`graylink_node_dropped_packets_total{nic="h2/eth1",reason=%q}`, reason))
}

// socket returns one of the attacker's sockets.
func (a *arena) socket(addr string) *net.UDPConn { return a.socketAt(addr, 0) }

func (a *arena) socketAt(addr string, port int) *net.UDPConn {
	a.t.Helper()
	var c *net.UDPConn
	if err := unix.InNetns(a.near, func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(addr), Port: port})
		return err
	}); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { c.Close() })
	return c
}

var victim = netip.AddrPortFrom(netip.MustParseAddr(victimAddr), 862)

// send sends n copies of what packet makes, slowly enough for h2 to read them.
func (a *arena) send(c *net.UDPConn, n int, packet func(i int) []byte) {
	a.t.Helper()
	for i := range n {
		if _, err := c.WriteToUDPAddrPort(packet(i), victim); err != nil {
			a.t.Fatal(err)
		}
		if i%50 == 49 {
			time.Sleep(2 * time.Millisecond)
		}
	}
}

func plainProbe(seq, ssid, pad int) []byte {
	b := make([]byte, stamp.BaseLen, 2000)
	p := stamp.SenderPacket{Seq: uint32(seq), Timestamp: stamp.TimestampPTP(time.Now().UnixNano()), ErrorEstimate: stamp.NewErrorEstimate(1000, false, true), SSID: uint16(ssid)}
	p.Put(b)
	b = stamp.AppendClassOfService(b, 0)
	b = stamp.AppendFollowUp(b)
	return stamp.AppendExtraPadding(b, pad)
}

func authenticProbe(seq, ssid int, a *stamp.Authenticator) []byte {
	b := make([]byte, stamp.AuthBaseLen, 2000)
	p := stamp.SenderPacket{Seq: uint32(seq), Timestamp: stamp.TimestampPTP(time.Now().UnixNano()), ErrorEstimate: stamp.NewErrorEstimate(1000, false, true), SSID: uint16(ssid)}
	p.PutAuth(b, a)
	b = stamp.AppendFollowUp(b)
	return stamp.AppendHMAC(b, stamp.AuthBaseLen, a)
}

// capture records UDP at h2's NIC until end is called, which returns what came
// and what left by the other end's address and port: numbers and lengths.
func (a *arena) capture(name, filter string) (end func() (in, out map[string][]int)) {
	a.t.Helper()
	pcap := filepath.Join(a.dir, name+".pcap")
	var said strings.Builder
	r, w := io.Pipe()
	lines := bufio.NewScanner(r)
	cmd := a.run(a.far, w, "tcpdump", "-i", "eth1", "-n", "-U", "--immediate-mode", "-Z", "root", "-B", "65536", "-s", "128", "-w", pcap, filter)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "listening on") {
			break
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines.Scan() {
			said.WriteString(lines.Text() + "\n")
		}
	}()
	return func() (in, out map[string][]int) {
		a.t.Helper()
		time.Sleep(200 * time.Millisecond) // what has come is read at once
		stop(a.t, cmd)
		w.Close()
		<-done
		if !strings.Contains(said.String(), "\n0 packets dropped by kernel") {
			a.t.Errorf("tcpdump missed packets: %s", said.String())
		}
		text, err := exec.Command("tcpdump", "-n", "-q", "-tt", "-r", pcap).Output()
		if err != nil {
			a.t.Fatal(err)
		}
		in, out = map[string][]int{}, map[string][]int{}
		for _, m := range packetLine.FindAllStringSubmatch(string(text), -1) {
			length, err := strconv.Atoi(m[3])
			if err != nil {
				a.t.Fatal(err)
			}
			if strings.HasPrefix(m[1], victimAddr+".") {
				out[m[2]] = append(out[m[2]], length)
			} else {
				in[m[1]] = append(in[m[1]], length)
			}
		}
		return in, out
	}
}

var packetLine = regexp.MustCompile(`(?m)IP (\S+) > (\S+): UDP, length (\d+)`)

// TestAttacks sends h2 everything that it must not answer, and what it may but
// only so much of; a capture at its NIC shows what it did.
func TestAttacks(t *testing.T) {
	const secret = "00112233445566778899aabbccddeeff"
	t.Run("plain", func(t *testing.T) {
		a := newArena(t)
		a.nodes("")
		end := a.capture("plain", "udp port 862")
		stranger, spoofed, flood := a.socket(strangerAddr), a.socket(peerAddr), a.socket(peerAddr)
		a.send(stranger, 500, func(i int) []byte { return plainProbe(i, peerSSID, i%100) })
		a.send(spoofed, 500, func(i int) []byte { return plainProbe(i, 78+i, 0) })
		a.send(spoofed, stamp.BaseLen, func(i int) []byte { return plainProbe(i, peerSSID, 0)[:i] })
		a.send(spoofed, 100, func(i int) []byte { return plainProbe(i, peerSSID, 1300) })
		a.send(spoofed, 50, func(i int) []byte { return plainProbe(i, peerSSID, 4000) }) // in fragments
		// Registered address and SSID: answered, each by no more than it is long,
		// and no more than four times the mesh's rate.
		a.send(flood, 20_000, func(i int) []byte { return plainProbe(i, peerSSID, i%200) })
		for range 300 {
			a.send(a.socket(peerAddr), 1, func(i int) []byte { return plainProbe(i, peerSSID, 0) })
		}
		for reason, want := range map[string]float64{"unregistered": 500, "foreign_ssid": 500, "malformed": stamp.BaseLen, "oversized": 150} {
			a.wait(fmt.Sprintf("%v packets dropped: %s", want, reason), func() bool { return a.dropped(reason) >= want })
			if got := a.dropped(reason); got != want {
				t.Errorf("%v packets dropped as %s, want %v", got, reason, want)
			}
		}
		a.wait("the limits of rate and of sessions", func() bool { return a.dropped("rate_limited") > 15_000 && a.dropped("session_limit") > 250 })
		in, out := end()
		a.judge(in, out)
		for from, what := range map[*net.UDPConn]string{stranger: "a stranger", spoofed: "spoofed SSIDs, cut and too long packets"} {
			if n := len(out[dotted(from)]); n != 0 {
				t.Errorf("%d replies to %s, want none", n, what)
			}
			if n := len(in[dotted(from)]); n < 500 {
				t.Errorf("the capture has %d packets of %s, want 500 at least", n, what)
			}
		}
		answered := len(out[dotted(flood)])
		t.Logf("20,000 valid packets of one session at once: %d answered; dropped: %v rate, %v sessions", answered, a.dropped("rate_limited"), a.dropped("session_limit"))
		if answered == 0 || answered > 4000 {
			t.Errorf("%d replies to a flood of a registered session", answered)
		}
	})
	t.Run("authenticated", func(t *testing.T) {
		a := newArena(t)
		keys := a.file("keys", "1 "+secret+"\n")
		a.nodes("authentication: {key_file: " + keys + "}\n")
		right := stamp.NewAuthenticator([]byte{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff})
		wrong := stamp.NewAuthenticator([]byte("an attacker's guess"))
		end := a.capture("authenticated", "udp port 862")
		// The ports are of flows of the mesh: packets from others are not verified.
		forged, replayed, cut := a.socketAt(peerAddr, 49153), a.socketAt(peerAddr, 49154), a.socketAt(peerAddr, 49155)
		elsewhere := a.socket(peerAddr)
		a.send(elsewhere, 100, func(i int) []byte { return authenticProbe(i, peerSSID, right) })
		a.send(forged, 500, func(i int) []byte { return authenticProbe(i, peerSSID, wrong) })
		var captured [][]byte
		a.send(replayed, 100, func(i int) []byte {
			captured = append(captured, authenticProbe(i, peerSSID, right))
			return captured[i]
		})
		for range 5 {
			a.send(replayed, 100, func(i int) []byte { return captured[i] })
		}
		a.send(cut, stamp.AuthBaseLen, func(i int) []byte { return authenticProbe(i, peerSSID, right)[:i] })
		a.send(cut, 50, func(i int) []byte { return plainProbe(i, peerSSID, 0) })
		for reason, want := range map[string]float64{"foreign_port": 100, "bad_hmac": 500, "replay": 500, "malformed": stamp.AuthBaseLen + 50} {
			a.wait(fmt.Sprintf("%v packets dropped: %s", want, reason), func() bool { return a.dropped(reason) >= want })
			if got := a.dropped(reason); got != want {
				t.Errorf("%v packets dropped as %s, want %v", got, reason, want)
			}
		}
		in, out := end()
		a.judge(in, out)
		for from, want := range map[*net.UDPConn]int{forged: 0, replayed: 100, cut: 0, elsewhere: 0} {
			if n := len(out[dotted(from)]); n != want {
				t.Errorf("%d replies to %s, want %d", n, dotted(from), want)
			}
		}
		if n := len(in[dotted(replayed)]); n != 600 {
			t.Errorf("the capture has %d of 600 replayed packets", n)
		}
	})
	t.Run("forged", func(t *testing.T) { forgedFloods(t, secret) })
	t.Run("flood", func(t *testing.T) {
		a := newArena(t)
		victim := a.nodes("")
		pid := victim.Process.Pid // ip netns exec becomes the program
		end := a.capture("flood", "udp and src host "+victimAddr+" and dst host "+strangerAddr)
		before, start := cpuOf(t, pid), time.Now()
		sent := a.flood(5 * time.Second)
		took := time.Since(start)
		share := (cpuOf(t, pid) - before).Seconds() / took.Seconds()
		a.wait("the flood counted", func() bool {
			return a.dropped("unregistered")+a.metric("/metrics", `graylink_node_socket_drops_total{nic="h2/eth1",socket="reflector"}`) >= float64(sent)*0.99
		})
		if _, out := end(); len(out) != 0 {
			t.Errorf("h2 answered a stranger: %v", out)
		}
		t.Logf("%.0f packets a second from a stranger: %.0f %% of a core; %v dropped unanswered by h2, %v by the kernel before it",
			float64(sent)/took.Seconds(), 100*share, a.dropped("unregistered"), a.metric("/metrics", `graylink_node_socket_drops_total{nic="h2/eth1",socket="reflector"}`))
		if share > 0.75 {
			t.Errorf("a flood takes %.0f %% of a core, want 75 at most", 100*share)
		}
		was := a.metric("/metrics/edges", "fabric_probe_received_total{")
		a.wait("h1's probes still answered", func() bool { return a.metric("/metrics/edges", "fabric_probe_received_total{") > was+50 })
	})
}

// judge compares every reply with the packets that could have caused it. h2 also sends its probes to h1's own ports,
// and the copies of replies that trace their path.
func (a *arena) judge(in, out map[string][]int) {
	a.t.Helper()
	for to, lengths := range out {
		if to == peerAddr+".862" || to == peerAddr+".49152" {
			continue
		}
		asked := in[to]
		if len(lengths) > len(asked) {
			a.t.Errorf("%d replies to %s, which sent %d packets", len(lengths), to, len(asked))
		}
		// A reply answers one request and is as long: the multiset is contained.
		left := map[int]int{}
		for _, n := range asked {
			left[n]++
		}
		for _, n := range lengths {
			if left[n]--; left[n] < 0 {
				a.t.Errorf("a reply of %d octets to %s, which sent none as long", n, to)
				break
			}
		}
		if !strings.HasPrefix(to, peerAddr+".") {
			a.t.Errorf("%d replies to %s, which is no peer", len(lengths), to)
		}
	}
}

func dotted(c *net.UDPConn) string {
	return strings.Replace(c.LocalAddr().String(), ":", ".", 1)
}

// flood sends valid probes from a stranger as fast as one thread can.
func (a *arena) flood(d time.Duration) (sent int) {
	a.t.Helper()
	var u *unix.UDP
	if err := unix.InNetns(a.near, func() (err error) {
		u, err = unix.ListenUDP(netip.MustParseAddrPort(strangerAddr+":0"), unix.UDPOptions{})
		return err
	}); err != nil {
		a.t.Fatal(err)
	}
	defer u.Close()
	batch, errs := unix.NewBatch(unix.BatchSize), unix.NewBatch(unix.BatchSize)
	for end := time.Now().Add(d); time.Now().Before(end); {
		for batch.PendingCount() < unix.BatchSize {
			sent++
			batch.Commit(u, copy(batch.OutBuffer(), plainProbe(sent, peerSSID, 0)), victim, 0, 0)
		}
		if err := batch.Send(u, func(int, syscall.Errno) { sent-- }); err != nil {
			a.t.Fatal(err)
		}
		for {
			if k, err := errs.RecvErrors(u); err != nil || k < unix.BatchSize {
				break
			}
		}
	}
	return sent
}

// cpuOf returns the processor time that a process has used.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The fields behind the name, which ends with the last bracket: proc(5).
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks int
	for _, s := range f[11:13] {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
