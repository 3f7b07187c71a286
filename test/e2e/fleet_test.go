package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// fleet is a lab whose agents know nothing but their coordinator's address and
// their own certificates.
type fleet struct {
	t           *testing.T
	l           *lab.Lab
	g           *fabric.Graph
	dir, topo   string
	bin         string   // directory of the coordinator's and the agents' programs
	args        []string // of the coordinator
	agentArgs   []string // of every agent
	socket      string   // where the coordinator accepts agents, in dir
	states      string   // directory of the state files
	web         string   // its address
	coordinator *exec.Cmd
	agents      map[string]*exec.Cmd
	logs        map[string]*bytes.Buffer
	running     map[string]*exec.Cmd // the last one that was started, by what it is

	usualSkipped float64 // median of the agents' shares of probes skipped while nothing happened
}

const agentWeb = "127.0.0.1:9868"

func newFleet(t *testing.T, name, file string, args ...string) *fleet {
	t.Helper()
	l := fabricOf(t, name, file)
	f := &fleet{t: t, l: l, g: fabric.NewGraph(l.Topology()), dir: t.TempDir(), socket: "agents.sock", bin: bin, args: args, agents: map[string]*exec.Cmd{}, logs: map[string]*bytes.Buffer{}}
	t.Cleanup(func() {
		for _, cmd := range f.agents {
			stop(t, cmd)
		}
		if f.coordinator != nil {
			stop(t, f.coordinator)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		clean(t, name)
		if t.Failed() {
			for who, b := range f.logs {
				t.Logf("%s said:\n%s", who, tail(b.String(), 3000))
			}
		}
	})
	f.states = f.dir
	b, err := yaml.Marshal(l.Topology())
	if err != nil {
		t.Fatal(err)
	}
	f.topo = filepath.Join(f.dir, "topology.yaml")
	if err := os.WriteFile(f.topo, b, 0o644); err != nil {
		t.Fatal(err)
	}
	f.cert("--dir", f.dir, "ca")
	f.issue("coordinator")
	for _, n := range f.nodes() {
		f.issue(n)
	}
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.web = probe.Addr().String()
	probe.Close()
	return f
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func (f *fleet) nodes() (names []string) {
	for _, n := range f.l.Topology().Nodes {
		names = append(names, n.Name)
	}
	return names
}

func (f *fleet) cert(args ...string) {
	f.t.Helper()
	if _, stderr, code := graylink(f.t, append([]string{"cert"}, args...)...); code != 0 {
		f.t.Fatalf("graylink cert %v: exit code %d: %s", args, code, stderr)
	}
}

// issue makes a certificate, or a new one in the place of the old.
func (f *fleet) issue(name string) {
	f.t.Helper()
	f.cert("--dir", f.dir, "issue", "--replace", name)
}

func (f *fleet) start(cmd *exec.Cmd, who string) *exec.Cmd {
	f.t.Helper()
	if f.logs[who] == nil {
		f.logs[who] = &bytes.Buffer{}
	}
	cmd.Stderr = f.logs[who]
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	if f.running == nil {
		f.running = map[string]*exec.Cmd{}
	}
	f.running[who] = cmd
	return cmd
}

func (f *fleet) startCoordinator() {
	f.t.Helper()
	args := append([]string{"--topology.file=" + f.topo, "--state.file=" + filepath.Join(f.states, "state.json"),
		"--agents.listen-address=unix:" + filepath.Join(f.dir, f.socket), "--agents.ca=" + filepath.Join(f.dir, "ca.crt"),
		"--agents.cert=" + filepath.Join(f.dir, "coordinator.crt"), "--agents.key=" + filepath.Join(f.dir, "coordinator.key"),
		"--web.enable-admin-api", "--web.listen-address=" + f.web}, f.args...)
	f.coordinator = f.start(exec.Command(filepath.Join(f.bin, "graylink-coordinator"), args...), "coordinator")
}

func (f *fleet) startAgent(node string, more ...string) {
	f.t.Helper()
	args := []string{
		"--coordinator.address=unix:" + filepath.Join(f.dir, "agents.sock"), "--coordinator.ca=" + filepath.Join(f.dir, "ca.crt"),
		"--coordinator.cert=" + filepath.Join(f.dir, node+".crt"), "--coordinator.key=" + filepath.Join(f.dir, node+".key"),
		"--state.file=" + filepath.Join(f.states, node+".state"), "--web.enable-admin-api", "--web.listen-address=" + agentWeb}
	f.agents[node] = f.start(f.l.Command(context.Background(), node, slices.Concat([]string{filepath.Join(f.bin, "graylink-node")}, args, f.agentArgs, more)...), node)
}

func (f *fleet) wait(limit time.Duration, what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if ok() {
			return
		}
	}
	f.t.Fatalf("%s: not within %v", what, limit)
}

// series are the values of a daemon's series by their whole names.
type series map[string]float64

// sum adds up the series whose names match.
func (s series) sum(pattern string) (v float64) {
	re := regexp.MustCompile("^" + pattern)
	for name, x := range s {
		if re.MatchString(name) {
			v += x
		}
	}
	return v
}

func readSeries(r io.Reader) series {
	out := series{}
	for sc := bufio.NewScanner(r); sc.Scan(); {
		line := sc.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			out[line[:i]] = v
		}
	}
	return out
}

func (f *fleet) get(url string, dial func(context.Context, string, string) (net.Conn, error)) (body []byte, code int) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Get(url)
	if err != nil {
		return nil, 0 // not up
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		return nil, 0
	}
	return body, resp.StatusCode
}

// agent reads one agent's series, out of band.
func (f *fleet) agent(node, path string) series {
	body, _ := f.get("http://"+agentWeb+path, func(ctx context.Context, network, addr string) (net.Conn, error) {
		return f.l.DialContext(ctx, node, network, addr)
	})
	return readSeries(bytes.NewReader(body))
}

func (f *fleet) coordinates() series {
	body, _ := f.get("http://"+f.web+"/metrics", nil)
	return readSeries(bytes.NewReader(body))
}

// probing waits until n nodes have edges.
func (f *fleet) probing(n int) {
	f.t.Helper()
	f.wait(30*time.Second, "edges at every node", func() bool {
		nodes := map[string]bool{}
		for id := range f.edges() {
			nodes[strings.SplitN(id, "/", 2)[0]] = true
		}
		return len(nodes) == n
	})
}

func (f *fleet) connected(n int) {
	f.t.Helper()
	f.wait(60*time.Second, fmt.Sprintf("%d agents connected", n), func() bool {
		return f.coordinates().sum(`graylink_coordinator_agents\{state="connected"`) == float64(n)
	})
}

// scheduled returns every node's part of the schedule.
func (f *fleet) scheduled() map[string][]string {
	f.t.Helper()
	out := map[string][]string{}
	for _, n := range f.nodes() {
		body, code := f.get("http://"+f.web+"/api/v1/schedule?node="+n, nil)
		if code != http.StatusOK {
			continue
		}
		var v struct {
			Edges []map[string]any `json:"node_edges"`
		}
		if err := json.Unmarshal(body, &v); err != nil {
			f.t.Fatalf("%v in %s", err, body)
		}
		for _, e := range v.Edges {
			delete(e, "state")
			out[n] = append(out[n], fmt.Sprint(e))
		}
		slices.Sort(out[n])
	}
	return out
}

// edges are the counts of every edge of the fleet.
type edgeCounts struct{ sent, acked, lost float64 }

var edgeName = regexp.MustCompile(`dst="([^"]*)".*flow="([^"]*)".*src="([^"]*)"`)

func (f *fleet) edges() map[string]edgeCounts {
	out := map[string]edgeCounts{}
	for _, n := range slices.Sorted(maps.Keys(f.agents)) {
		for name, v := range f.agent(n, "/metrics/edges") {
			m := edgeName.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			id := m[3] + ">" + m[1] + "#" + m[2]
			c := out[id]
			switch {
			case strings.HasPrefix(name, "fabric_probe_sent_total") && strings.Contains(name, `direction="forward"`):
				c.sent = v
			case strings.HasPrefix(name, "fabric_probe_acked_total"):
				c.acked = v
			case strings.HasPrefix(name, "fabric_probe_lost_total"):
				c.lost += v
			default:
				continue
			}
			out[id] = c
		}
	}
	return out
}

// answering waits until every edge there is was answered n more times.
func (f *fleet) answering(n float64) map[string]edgeCounts {
	f.t.Helper()
	before := f.edges()
	var now map[string]edgeCounts
	f.wait(60*time.Second, fmt.Sprintf("%v more answers on each of %d edges", n, len(before)), func() bool {
		now = f.edges()
		for id, b := range before {
			e, is := now[id]
			if !is { // an agent had not applied the schedule yet
				before = now
				return false
			}
			if e.acked < b.acked+n {
				return false
			}
		}
		return len(before) > 0
	})
	return now
}

// nothingLost asserts that no agent lost or refused a probe since base.
func (f *fleet) nothingLost(what string, base map[string]series, before map[string]edgeCounts) {
	f.t.Helper()
	now := f.edges()
	for id, b := range before {
		n, still := now[id]
		if !still || n.sent < b.sent || n.acked < b.acked {
			f.t.Errorf("%s: edge %s went from %+v to %+v", what, id, b, n)
		}
		if n.lost != b.lost {
			f.t.Errorf("%s: edge %s lost %v probes", what, id, n.lost-b.lost)
		}
	}
	for node, was := range base {
		is := f.agent(node, "/metrics")
		for _, name := range []string{`graylink_node_dropped_packets_total.*reason="bad_hmac"`, `graylink_node_dropped_packets_total.*reason="replay"`,
			`graylink_node_dropped_packets_total.*reason="malformed"`, `graylink_node_restarts_total`, `graylink_node_send_errors_total`} {
			if d := is.sum(name) - was.sum(name); d != 0 {
				f.t.Errorf("%s: node %s: %s grew by %v", what, node, name, d)
			}
		}
	}
}

// undisturbed asserts that no agent missed, lost or refused a probe since base.
func (f *fleet) undisturbed(what string, base map[string]series, before map[string]edgeCounts) {
	f.t.Helper()
	f.nothingLost(what, base, before)
	// On two cores loops are kept waiting for more than a cadence, by whatever else runs: that
	// much is the machine's, all agents' alike, and as much before. An agent that began anew shows in the
	// counts above; one that stopped for a second misses a tenth of its probes or more.
	shares := f.skippedShares(base)
	const (
		moreThanOthers = 0.05
		moreThanBefore = 0.08
	)
	usual := percentile(shares, 0.5)
	f.t.Logf("%s: shares of probes skipped %.3f, in the median %.3f before", what, shares, f.usualSkipped)
	if usual > f.usualSkipped+moreThanBefore || slices.Max(shares) > usual+moreThanOthers {
		f.t.Errorf("%s: the agents skipped shares of %.3f of their probes; the median was %.3f before", what, shares, f.usualSkipped)
	}
}

// skippedShares returns the shares of their probes that agents skipped since base.
func (f *fleet) skippedShares(base map[string]series) (shares []float64) {
	f.t.Helper()
	for node, was := range base {
		is := f.agent(node, "/metrics")
		missed := is.sum("graylink_node_probes_skipped_total") - was.sum("graylink_node_probes_skipped_total")
		out := is.sum(`fabric_(leaf_pair|nic)_probe_sent_total.*side="source"`) - was.sum(`fabric_(leaf_pair|nic)_probe_sent_total.*side="source"`)
		if out < 125 { // 1,000 of eight agents
			f.t.Errorf("node %s sent only %v probes", node, out)
		}
		shares = append(shares, missed/max(1, missed+out))
	}
	return shares
}

func (f *fleet) base() map[string]series {
	out := map[string]series{}
	for n := range f.agents {
		out[n] = f.agent(n, "/metrics")
	}
	return out
}

func (f *fleet) post(path string) {
	f.t.Helper()
	resp, err := http.Post("http://"+f.web+path, "", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		f.t.Fatalf("%s: %s: %s", path, resp.Status, body)
	}
}

// TestFleet takes a mesh of eight nodes through what happens to a fleet: the
// coordinator dies and comes back, certificates and keys roll, agents restart
// without it, a node goes and comes.
func TestFleet(t *testing.T) {
	f := newFleet(t, "e2ef", "../../deploy/lab/demo.yaml", "--agent.heartbeat=1s", "--agent.absent-after=6s", "--keys.grace=6s", "--registry.settle=20s")
	f.startCoordinator()
	f.wait(10*time.Second, "targets refused before the registry is whole", func() bool {
		_, code := f.get("http://"+f.web+"/api/v1/targets", nil)
		return code == http.StatusServiceUnavailable
	})
	for _, n := range f.nodes() {
		f.startAgent(n)
	}
	f.connected(8)
	f.wait(30*time.Second, "eight targets", func() bool {
		body, code := f.get("http://"+f.web+"/api/v1/targets", nil)
		var groups []struct{ Targets []string }
		return code == http.StatusOK && json.Unmarshal(body, &groups) == nil && len(groups) == 8
	})
	f.probing(8)
	f.answering(50)
	schedule := f.scheduled()
	if len(schedule) != 8 {
		t.Fatalf("%d nodes in the schedule, want 8", len(schedule))
	}
	same := func(what string) {
		t.Helper()
		if now := f.scheduled(); !maps.EqualFunc(schedule, now, slices.Equal) {
			t.Errorf("%s: the schedule changed:\n%v\n%v", what, schedule, now)
		}
	}

	quiet := f.base()
	f.answering(100)
	f.usualSkipped = percentile(f.skippedShares(quiet), 0.5)

	t.Run("the coordinator is killed under load", func(t *testing.T) {
		f.t = t
		base, before := f.base(), f.answering(1)
		if err := f.coordinator.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = f.coordinator.Wait()
		f.answering(100)
		f.startCoordinator()
		f.connected(8)
		f.answering(100)
		f.undisturbed("kill", base, before)
		same("kill")
		if n := f.coordinates().sum("graylink_coordinator_assignments_sent_total"); n != 0 {
			t.Errorf("%v assignments sent after the restart, want none: nothing changed", n)
		}
	})
	t.Run("certificates roll", func(t *testing.T) {
		f.t = t
		base, before := f.base(), f.answering(1)
		f.issue("coordinator")
		for _, n := range f.nodes() {
			f.issue(n)
		}
		if err := f.coordinator.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = f.coordinator.Wait()
		f.startCoordinator()
		f.connected(8)
		f.answering(50)
		f.undisturbed("certificates", base, before)
		same("certificates")
	})
	t.Run("keys roll", func(t *testing.T) {
		f.t = t
		base, before := f.base(), f.answering(1)
		epoch := f.coordinates().sum("graylink_coordinator_keys_epoch")
		f.post("/api/v1/keys/rotate")
		f.wait(60*time.Second, "the new key sends, the old one is dropped", func() bool {
			c := f.coordinates()
			return c.sum("graylink_coordinator_keys_epoch") > epoch && c.sum("graylink_coordinator_keys_held") == 1
		})
		f.answering(50)
		f.undisturbed("keys", base, before)
		same("keys")
	})
	t.Run("an agent restarts without the coordinator", func(t *testing.T) {
		f.t = t
		if err := f.coordinator.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = f.coordinator.Wait()
		stop(t, f.agents["h3"])
		f.startAgent("h3")
		f.wait(30*time.Second, "h3 probes and answers again", func() bool {
			n := 0
			for id, c := range f.edges() {
				if strings.HasPrefix(id, "h3/") && c.acked > 20 {
					n++
				}
			}
			return n == len(schedule["h3"])
		})
		f.startCoordinator()
		f.connected(8)
		same("restart")
	})
	t.Run("a node goes and comes back", func(t *testing.T) {
		f.t = t
		cmd := f.agents["h8"]
		delete(f.agents, "h8")
		stop(t, cmd)
		f.wait(60*time.Second, "the schedule without h8", func() bool { return len(f.scheduled()) == 7 })
		f.wait(30*time.Second, "no edge with h8", func() bool {
			for id := range f.edges() {
				if strings.Contains(id, "h8/") {
					return false
				}
			}
			return true
		})
		before := f.answering(20)
		kept := 0
		for n, edges := range f.scheduled() {
			for _, e := range edges {
				if slices.Contains(schedule[n], e) {
					kept++
				}
			}
		}
		t.Logf("without h8: %d of %d edges as before", kept, len(before))
		f.startAgent("h8")
		f.connected(8)
		f.wait(60*time.Second, "the old schedule", func() bool { return maps.EqualFunc(schedule, f.scheduled(), slices.Equal) })
		f.answering(20)
		now := f.edges()
		for id, b := range before {
			if n, ok := now[id]; ok && n.sent < b.sent {
				t.Errorf("edge %s began anew", id)
			}
		}
	})
	f.t = t
}

// TestCoverageIsMeasuredAndMoved counts, in a fabric of three tiers, the edges
// that were traced to cross every directed link, before and after source ports
// were moved.
func TestCoverageIsMeasuredAndMoved(t *testing.T) {
	coverage := func(f *fleet, k float64) (fewest, below float64, links int) {
		fewest = -1
		for name, v := range f.coordinates() {
			if strings.HasPrefix(name, "fabric_link_probe_edges{") {
				links++
				if fewest < 0 || v < fewest {
					fewest = v
				}
				if v < k {
					below++
				}
			}
		}
		return fewest, below, links
	}
	f := newFleet(t, "e2ec", "../../internal/lab/testdata/clos3.yaml", "--agent.heartbeat=1s", "--schedule.min-flows=6", "--schedule.link-edges=6", "--schedule.rebalance-every=3s", "--schedule.settle=1s", "--schedule.changeover=1s")
	f.startCoordinator()
	for _, n := range f.nodes() {
		f.startAgent(n)
	}
	f.connected(len(f.nodes()))
	traced := func() bool {
		c := f.coordinates()
		return c.sum(`graylink_coordinator_edges\{state="all"`) > 0 && c.sum(`graylink_coordinator_edges\{state="path_unknown"`) == 0
	}
	f.wait(90*time.Second, "every edge traced", traced)
	fewest, below, links := coverage(f, 6)
	edges := f.coordinates().sum(`graylink_coordinator_edges\{state="all"`)
	t.Logf("before: %v edges; of %d directed links %v have fewer than 6, the poorest %v", edges, links, below, fewest)
	f.wait(4*time.Minute, "six edges on every directed link", func() bool {
		fewest, below, links = coverage(f, 6)
		return links > 0 && below == 0
	})
	moved := f.coordinates().sum("graylink_coordinator_source_ports_moved_total")
	t.Logf("after %v moved source ports: of %d directed links %v have fewer than 6, the poorest %v", moved, links, below, fewest)
}
