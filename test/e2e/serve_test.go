package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// smallSite is five hosts with two NICs each, in two networks of which nothing is known. There are more hosts than a NIC
// has peers.
type smallSite struct {
	t      *testing.T
	dir    string
	prefix string // of namespaces
	client *http.Client
	logs   map[string]*bytes.Buffer
}

var siteHosts = []string{"h1", "h2", "h3", "h4", "h5"}

// newSmallSite makes the hosts of the site and the network.
func newSmallSite(t *testing.T) *smallSite {
	t.Helper()
	s := newSite(t, append([]string{"net"}, siteHosts...)...)
	for n := range 2 {
		s.addBridge("net", fmt.Sprintf("br%d", n))
		for i, name := range siteHosts {
			s.plugIn(name, fmt.Sprintf("eth%d", n), fmt.Sprintf("10.%d.0.%d/24", n+1, i+1), "net", fmt.Sprintf("p%d", 2*i+n), fmt.Sprintf("br%d", n))
		}
	}
	return s
}

// newSite makes the namespaces of a site.
func newSite(t *testing.T, namespaces ...string) *smallSite {
	t.Helper()
	need(t)
	s := &smallSite{t: t, dir: t.TempDir(), prefix: fmt.Sprintf("gl-site-%d-", os.Getpid()), logs: map[string]*bytes.Buffer{}}
	t.Cleanup(func() {
		for who, b := range s.logs {
			if t.Failed() {
				t.Logf("%s said:\n%s", who, tail(b.String(), 4000))
			}
		}
	})
	for _, ns := range namespaces {
		if err := unix.CreateNetns(s.prefix + ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.RemoveNetns(s.prefix + ns); err != nil {
				t.Errorf("remove namespace: %v", err)
			}
		})
		s.ip("-n", s.prefix+ns, "link", "set", "lo", "up")
	}
	s.client, _ = clientIn(s.prefix + "h1")
	return s
}

// addBridge adds a bridge to a namespace.
func (s *smallSite) addBridge(ns, bridge string) {
	s.t.Helper()
	s.ip("-n", s.prefix+ns, "link", "add", bridge, "type", "bridge")
	s.ip("-n", s.prefix+ns, "link", "set", bridge, "up")
}

// plugIn plugs a new interface of a host into a new port of a bridge.
func (s *smallSite) plugIn(host, device, address, ns, port, bridge string) {
	s.t.Helper()
	s.ip("link", "add", device, "netns", s.prefix+host, "type", "veth", "peer", "name", port, "netns", s.prefix+ns)
	s.ip("-n", s.prefix+ns, "link", "set", port, "master", bridge, "up")
	s.ip("-n", s.prefix+host, "addr", "add", address, "dev", device)
	s.ip("-n", s.prefix+host, "link", "set", device, "up")
}

func (s *smallSite) ip(args ...string) {
	s.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		s.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// start starts a program on a host. It is stopped at the end of the test.
func (s *smallSite) start(host, stdin string, argv ...string) *exec.Cmd {
	s.t.Helper()
	cmd := exec.Command("ip", append([]string{"netns", "exec", s.prefix + host, filepath.Join(bin, argv[0])}, argv[1:]...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	who := host + " " + argv[0]
	if s.logs[who] == nil {
		s.logs[who] = &bytes.Buffer{}
	}
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), s.logs[who]
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { stop(s.t, cmd) })
	return cmd
}

func (s *smallSite) startServe() *exec.Cmd {
	return s.start("h1", "", "graylink", "serve", "--state.directory", filepath.Join(s.dir, "serve"), "--agents.address", "10.1.0.1")
}

// get returns the answer of the site's web listener, or "" if there is none.
func (s *smallSite) get(path string) string {
	resp, err := s.client.Get("http://127.0.0.1:9872" + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		return ""
	}
	return b.String()
}

// verdicts returns the state of the network and the open verdicts.
func (s *smallSite) verdicts() (state fabric.State, open []incident.Incident) {
	var v struct {
		State    fabric.State
		Verdicts []incident.Incident
	}
	if json.Unmarshal([]byte(s.get("/api/v1/verdicts")), &v) != nil {
		return "", nil
	}
	return v.State, v.Verdicts
}

func (s *smallSite) wait(limit time.Duration, what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%s: not within %v; %s", what, limit, s.get("/api/v1/verdicts"))
		}
	}
}

// startAgents enrolls an agent on each of the hosts, each by a token of its own.
func (s *smallSite) startAgents(hosts []string) {
	s.t.Helper()
	directory := filepath.Join(s.dir, "serve")
	tokens, stderr, code := graylink(s.t, append([]string{"join-token", "--file", filepath.Join(directory, "join-tokens"), "--ca", filepath.Join(directory, "pki", "ca.crt")}, hosts...)...)
	if code != 0 {
		s.t.Fatalf("join-token: %s", stderr)
	}
	for i, token := range strings.Fields(tokens) {
		host := hosts[i]
		s.start(host, token, "graylink-node", "--enroll", "--enroll.join-token-file=-", "--enroll.directory", filepath.Join(s.dir, host), "--coordinator.address", "10.1.0.1:9870", "--web.listen-address", ":9868")
	}
}

// TestServe: graylink serve and five agents, without a topology, a Prometheus or a file that somebody wrote. The site
// discovers the networks, calls them innocent, names the NIC whose packets are lost, and has the alert by the rules. The
// verdict has the same identifier when the site is started again, and Prometheus' API has its history.
func TestServe(t *testing.T) {
	s := newSmallSite(t)
	began := time.Now()
	serve := s.startServe()
	s.wait(30*time.Second, "the page says what is missing", func() bool { return strings.Contains(s.get("/"), "waits for agents") })
	s.startAgents(siteHosts)
	s.wait(2*time.Minute, "the network is innocent", func() bool {
		state, _ := s.verdicts()
		return state == fabric.Innocent
	})
	t.Logf("innocent after %.1f s", time.Since(began).Seconds())
	if page := s.get("/"); !strings.Contains(page, `data-discovered="true"`) {
		t.Error("the page does not say that the fabric was discovered")
	}

	// What eth1 of h3 sends is lost in the network.
	for _, h := range siteHosts {
		s.ip("netns", "exec", s.prefix+h, "iptables", "-t", "raw", "-A", "PREROUTING", "-i", "eth1", "-s", "10.2.0.3", "-p", "udp", "-m", "statistic", "--mode", "random", "--probability", "0.3", "-j", "DROP")
	}
	broken := time.Now()
	var found incident.Incident
	named := func() bool {
		_, open := s.verdicts()
		i := slices.IndexFunc(open, func(v incident.Incident) bool { return v.Element.ID == "h3/eth1" })
		if i >= 0 {
			found = open[i]
		}
		return i >= 0
	}
	s.wait(time.Minute, "a verdict names eth1 of h3", named)
	t.Logf("%.1f s after the fault: %s", time.Since(broken).Seconds(), found.Summary)
	s.wait(time.Minute, "an alert names eth1 of h3", func() bool {
		alerts := s.get("/prometheus/api/v1/alerts")
		return strings.Contains(alerts, `"alertname":"FabricNICFault"`) && strings.Contains(alerts, `"element":"h3/eth1"`)
	})

	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Fatalf("graylink serve: %v", err)
	}
	before := found.ID
	s.startServe()
	found = incident.Incident{}
	s.wait(2*time.Minute, "the verdict of before the restart is open", named)
	if found.ID != before {
		t.Errorf("the verdict is %s after the restart, and was %s before", found.ID, before)
	}
	var history struct{ Data struct{ Result []any } }
	query := "/prometheus/api/v1/query?query=" + `count_over_time(fabric_suspect_score%7Belement%3D%22h3%2Feth1%22%7D%5B10m%5D)`
	if err := json.Unmarshal([]byte(s.get(query)), &history); err != nil || len(history.Data.Result) == 0 {
		t.Errorf("Prometheus' API has no history of the verdict: %v %s", err, s.get(query))
	}
}

// startLLDPD starts Debian's lldpd on a switch, with the switch's name as host name.
func (s *smallSite) startLLDPD(name string) {
	s.t.Helper()
	if _, err := exec.LookPath("lldpd"); err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			s.t.Fatal("needs lldpd (Debian package lldpd)")
		}
		s.t.Skip("needs lldpd (Debian package lldpd)")
	}
	directory, err := os.MkdirTemp("", "graylink-lldpd-") // for its own user, who cannot read the test's directory
	if err == nil {
		err = os.Chmod(directory, 0o755)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", s.prefix+name, "unshare", "--uts", "sh", "-c", `hostname "$0" && exec lldpd -d -O /dev/null -u "$1"`, name, filepath.Join(directory, "socket"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	s.logs[name+" lldpd"] = &bytes.Buffer{}
	cmd.Stderr = s.logs[name+" lldpd"]
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			s.t.Errorf("stop lldpd: %v", err)
		}
		_ = cmd.Wait() // it ends by the signal
		if err := os.RemoveAll(directory); err != nil {
			s.t.Errorf("remove the directory of lldpd: %v", err)
		}
	})
}

// TestServeLeaves: two switches that run Debian's lldpd, a cable between them, and agents on three hosts at each. The
// site discovers the switches by their names and ports, and names the switch that loses packets.
func TestServeLeaves(t *testing.T) {
	hosts := []string{"h1", "h2", "h3", "h4", "h5", "h6"}
	s := newSite(t, append([]string{"leaf1", "leaf2"}, hosts...)...)
	for _, leaf := range []string{"leaf1", "leaf2"} {
		s.addBridge(leaf, "br0")
	}
	for i, host := range hosts {
		leaf, port := fmt.Sprintf("leaf%d", i/3+1), fmt.Sprintf("swp%d", i%3+1)
		s.plugIn(host, "eth0", fmt.Sprintf("10.1.0.%d/24", i+1), leaf, port, "br0")
	}
	s.ip("link", "add", "swp9", "netns", s.prefix+"leaf1", "type", "veth", "peer", "name", "swp9", "netns", s.prefix+"leaf2")
	for _, leaf := range []string{"leaf1", "leaf2"} {
		s.ip("-n", s.prefix+leaf, "link", "set", "swp9", "master", "br0", "up")
	}
	began := time.Now()
	s.startServe()
	s.wait(30*time.Second, "the page says what is missing", func() bool { return strings.Contains(s.get("/"), "waits for agents") })
	s.startAgents(hosts)
	file := filepath.Join(s.dir, "serve", "topology.yaml")
	s.wait(30*time.Second, "the topology has all hosts", func() bool {
		topology, problems := fabric.LoadTopology(file)
		return len(problems.OnlyErrors()) == 0 && len(topology.Nodes) == len(hosts)
	})
	for _, leaf := range []string{"leaf1", "leaf2"} {
		s.startLLDPD(leaf)
	}
	var links []string
	s.wait(30*time.Second, "the topology has the switches", func() bool {
		topology, problems := fabric.LoadTopology(file)
		if len(problems.OnlyErrors()) > 0 {
			return false
		}
		links = nil
		for _, l := range topology.Links {
			links = append(links, l.ID())
		}
		slices.Sort(links)
		return len(topology.Switches) == 3 && len(links) == len(hosts)+2 && !slices.ContainsFunc(links, func(id string) bool { return strings.HasPrefix(id, "h") && !strings.Contains(id, "leaf") })
	})
	t.Logf("discovered after %.1f s", time.Since(began).Seconds())
	const net = "net-10.1.0.0_24"
	want := []string{"h1/eth0--leaf1:swp1", "h2/eth0--leaf1:swp2", "h3/eth0--leaf1:swp3", "h4/eth0--leaf2:swp1", "h5/eth0--leaf2:swp2", "h6/eth0--leaf2:swp3",
		"leaf1:" + net + "--" + net + ":leaf1", "leaf2:" + net + "--" + net + ":leaf2"}
	if !slices.Equal(links, want) {
		t.Errorf("links %q, want %q", links, want)
	}
	s.wait(2*time.Minute, "the network is innocent", func() bool {
		state, _ := s.verdicts()
		return state == fabric.Innocent
	})
	t.Logf("innocent after %.1f s", time.Since(began).Seconds())

	// A part of what crosses leaf2 is lost there: of what its hosts receive, and of what the others receive of them.
	for i, h := range hosts {
		source := "0.0.0.0/0"
		if i < 3 {
			source = "10.1.0.4,10.1.0.5,10.1.0.6"
		}
		s.ip("netns", "exec", s.prefix+h, "iptables", "-t", "raw", "-A", "PREROUTING", "-i", "eth0", "-s", source, "-p", "udp", "-m", "statistic", "--mode", "random", "--probability", "0.3", "-j", "DROP")
	}
	broken := time.Now()
	var summary string
	s.wait(time.Minute, "a verdict names leaf2", func() bool {
		_, open := s.verdicts()
		for _, v := range open {
			if v.Element.ID == "leaf2" {
				summary = v.Summary
			}
		}
		return summary != ""
	})
	t.Logf("%.1f s after the fault: %s", time.Since(broken).Seconds(), summary)
}
