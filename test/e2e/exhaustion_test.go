package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fakesys"
)

const pairTopology = `version: 1
switches: [{name: leaf1, role: leaf}]
nodes:
  - {name: h1, nics: [{device: eth1, addresses: [10.0.0.1]}]}
  - {name: h2, nics: [{device: eth1, addresses: [10.0.0.2]}]}
  - {name: h3, nics: [{device: eth1, addresses: [10.0.0.3]}]}
links:
  - {a: "h1/eth1", b: "leaf1:dn1"}
  - {a: "h2/eth1", b: "leaf1:dn2"}
  - {a: "h3/eth1", b: "leaf1:dn3"}
`

// daemon is a running program, with a connection for its series that was open before it had no files left.
type daemon struct {
	t      *testing.T
	cmd    *exec.Cmd
	web    string
	client *http.Client
	mu     sync.Mutex
	log    bytes.Buffer
}

func (p *daemon) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *daemon) said(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(p.log.String(), text)
}

func begin(t *testing.T, name string, args ...string) *daemon {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &daemon{t: t, web: "http://" + l.Addr().String(), client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}, Timeout: 10 * time.Second}}
	l.Close()
	p.cmd = exec.Command(filepath.Join(bin, name), append(args, "--web.listen-address="+l.Addr().String())...)
	p.cmd.Stderr = p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop(t, p.cmd)
		if t.Failed() {
			t.Logf("%s said:\n%s", name, tail(p.log.String(), 4000))
		}
	})
	p.wait(name+" answers", func() bool {
		resp, err := p.client.Get(p.web + "/-/healthy")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return p
}

func (p *daemon) wait(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
		if p.cmd.Process.Signal(syscall.Signal(0)) != nil {
			break
		}
	}
	p.t.Fatalf("not within a minute: %s", what)
}

// value adds up the series whose names match.
func (p *daemon) value(pattern string) float64 {
	resp, err := p.client.Get(p.web + "/metrics")
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	return readSeries(resp.Body).sum(pattern)
}

// growing notes what series are. The function waits until each is greater.
func (p *daemon) growing(patterns ...string) (wait func()) {
	before := map[string]float64{}
	for _, s := range patterns {
		before[s] = max(p.value(s), 0)
	}
	return func() {
		p.t.Helper()
		for s, v := range before {
			p.wait(s+" grows", func() bool { return p.value(s) > v })
		}
	}
}

// limitFiles sets the number that a program's next open file must be below: files that are open stay so.
func (p *daemon) limitFiles(most int) {
	p.t.Helper()
	if out, err := exec.Command("prlimit", "--pid", strconv.Itoa(p.cmd.Process.Pid), fmt.Sprintf("--nofile=%d:", most)).CombinedOutput(); err != nil {
		p.t.Fatalf("prlimit: %v: %s", err, out)
	}
}

// noFiles is a limit below the number of any file that is not open yet: 0 to 2 are the standard ones.
const noFiles = 3

// disk is a small file system of its own.
type disk struct {
	t   *testing.T
	dir string
}

func smallDisk(t *testing.T) *disk {
	t.Helper()
	missing := ""
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		missing = "a file system of its own cannot be mounted: " + err.Error()
	} else {
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := exec.LookPath("prlimit"); err != nil {
		missing = "needs prlimit (Debian package util-linux)"
	}
	switch {
	case missing == "":
	case os.Getenv("GRAYLINK_REQUIRE_ALL") == "1":
		t.Fatal(missing)
	default:
		t.Skip(missing)
	}
	return &disk{t, dir}
}

func (d *disk) at(name string) string { return filepath.Join(d.dir, name) }

func (d *disk) fill() {
	d.t.Helper()
	f, err := os.Create(d.at("filler"))
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for _, block := range [][]byte{make([]byte, 4096), make([]byte, 1)} {
		for err == nil {
			_, err = f.Write(block)
		}
		err = nil
	}
}

func (d *disk) free() {
	d.t.Helper()
	if err := os.Remove(d.at("filler")); err != nil {
		d.t.Fatal(err)
	}
}

// TestFullDiskAndNoFilesLeft takes a coordinator and an agent through a disk that is full and a limit of open
// files that is used up: both go on, count their failed writes, and write again by themselves.
func TestFullDiskAndNoFilesLeft(t *testing.T) {
	programs(t)
	d := smallDisk(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, args := range [][]string{{"ca"}, {"issue", "coordinator", "h1", "h2", "h3"}} {
		if _, stderr, code := graylink(t, append([]string{"cert", "--dir", dir}, args...)...); code != 0 {
			t.Fatal(stderr)
		}
	}
	if err := os.WriteFile(at("topology.yaml"), []byte(pairTopology), 0o600); err != nil {
		t.Fatal(err)
	}
	coordinator := func() *daemon {
		return begin(t, "graylink-coordinator", "--topology.file="+at("topology.yaml"), "--state.file="+d.at("coordinator.json"), "--agents.listen-address=unix:"+at("agents.sock"),
			"--agents.ca="+at("ca.crt"), "--agents.cert="+at("coordinator.crt"), "--agents.key="+at("coordinator.key"), "--agent.heartbeat=500ms", "--agent.absent-after=2s", "--keys.grace=5s", "--schedule.settle=100ms", "--schedule.changeover=100ms",
			"--registry.settle=1s", "--schedule.rebalance-every=1h")
	}
	node, err := fakesys.FindProfile("h100")
	if err != nil {
		t.Fatal(err)
	}
	if err := fakesys.BuildTree(at("host"), node); err != nil {
		t.Fatal(err)
	}
	tree, err := fakesys.Open(at("host"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(steps ...string) {
		t.Helper()
		for _, s := range steps {
			if err := tree.RunStep(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	agent := func(name string, more ...string) *daemon {
		return begin(t, "graylink-node", append([]string{"--coordinator.address=unix:" + at("agents.sock"), "--coordinator.ca=" + at("ca.crt"), "--coordinator.cert=" + at(name+".crt"),
			"--coordinator.key=" + at(name+".key")}, more...)...)
	}
	c := coordinator()
	a := agent("h1", "--state.file="+d.at("h1.json"), "--nic.state-file="+d.at("nics.json"), "--nic.log-position-file="+d.at("position.json"),
		"--path.sysfs="+tree.Path("sys"), "--path.procfs="+tree.Path("proc"), "--path.kmsg="+tree.Path("dev/kmsg"))
	b := agent("h2", "--no-nic.health")
	const coordinatorFailed, coordinatorDone = `graylink_coordinator_state_writes_total\{result="failed"\}`, `graylink_coordinator_state_writes_total\{result="done"\}`
	const line = "kmsg 3 mlx5_core 0000:18:00.0: assert_var[0] 0x00000000"
	series := func(file, result string) string {
		return fmt.Sprintf(`graylink_node_state_writes_total\{file="%s",result="%s"\}`, file, result)
	}
	a.wait("the agent has written its assignment and its NICs", func() bool {
		return a.value(series("assignment", "done")) > 0 && a.value(series("nics", "done")) > 0
	})
	c.wait("both agents are in the state", func() bool {
		text, err := os.ReadFile(d.at("coordinator.json"))
		return err == nil && bytes.Contains(text, []byte(`"h2"`)) && bytes.Contains(text, []byte(`"keys"`))
	})

	// A node that goes changes the coordinator's state and the other's assignment.
	written := func(result string) []string {
		return []string{series("assignment", result), series("nics", result), series("log_position", result)}
	}
	failing, failingToo := a.growing(written("failed")...), c.growing(coordinatorFailed)
	d.fill()
	change("set mlx5_0/1 state 1: DOWN", line)
	stop(t, b.cmd)
	failing()
	failingToo()
	// The coordinator starts with a full disk, too.
	stop(t, c.cmd)
	c = coordinator()
	c.wait("the agent is connected to the new coordinator", func() bool { return c.value(`graylink_coordinator_agents\{state="connected"\}`) == 1 })
	if n := c.value(coordinatorFailed); n < 1 || !c.said("cannot write the state") {
		t.Errorf("%v failed writes after a start with a full disk", n)
	}
	writing, writingToo := a.growing(written("done")...), c.growing(coordinatorDone)
	d.free()
	change(line)
	writing()
	writingToo()
	if !c.said("the state is written again") || !a.said("the state file is written again") {
		t.Error("the logs do not say that writing goes on")
	}

	// No files can be opened: what is open stays open, and writes fail as on a full disk.
	b = agent("h2", "--no-nic.health")
	c.wait("both agents are connected", func() bool { return c.value(`graylink_coordinator_agents\{state="connected"\}`) == 2 })
	failing, failingToo = a.growing(series("assignment", "failed"), series("log_position", "failed")), c.growing(coordinatorFailed)
	c.limitFiles(noFiles)
	a.limitFiles(noFiles)
	change(line)
	stop(t, b.cmd)
	failing()
	failingToo()
	writing, writingToo = a.growing(written("done")...), c.growing(coordinatorDone)
	c.limitFiles(1000)
	a.limitFiles(1000)
	change("set mlx5_0/1 state 4: ACTIVE", line)
	writing()
	writingToo()
	agent("h3", "--no-nic.health")
	c.wait("a new agent is taken", func() bool { return c.value(`graylink_coordinator_agents\{state="connected"\}`) == 2 })
}

// TestAnalyzerOutlivesAFileLimit checks that an analyzer, which writes no files, still serves its open connections
// without files to open, and queries Prometheus again when it can.
func TestAnalyzerOutlivesAFileLimit(t *testing.T) {
	programs(t)
	smallDisk(t)
	dir := t.TempDir()
	asked := make(chan struct{}, 1)
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		w.Header().Set("Connection", "close") // every question needs a file
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer prometheus.Close()
	for name, text := range map[string]string{"topology.yaml": pairTopology, "analyzer.yml": "topology_file: topology.yaml\nprometheus:\n  url: " + prometheus.URL + "\nagents:\n  url: \"http://{node}:9868\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := begin(t, "graylink-analyzer", "--config.file="+filepath.Join(dir, "analyzer.yml"))
	<-asked
	const cycles = "graylink_analyzer_cycles_total.*"
	more := a.growing(cycles)
	a.limitFiles(noFiles)
	more()
	a.growing(cycles)()
	a.limitFiles(1000)
	for len(asked) > 0 {
		<-asked
	}
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Error("Prometheus is not asked any more")
	}
	other := &http.Client{Timeout: 30 * time.Second}
	resp, err := other.Get(a.web + "/-/healthy")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}
