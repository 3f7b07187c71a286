package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/graylink/graylink/internal/fakesys"
	"github.com/graylink/graylink/internal/pki"
)

// patience bounds what a test waits for, so that it fails and does not hang. Tests wait for events, and only a hang
// takes that long: machines that get a tenth of a processor do not.
const patience = 5 * time.Minute

// findParts asks apt once for all tests.
var findParts = sync.OnceValues(func() (*Parts, error) { return FindParts(context.Background(), "") })

// require has the parts, or skips the test where they are not to be had.
func require(t testing.TB) *Parts {
	t.Helper()
	if testing.Short() {
		t.Skip("starts virtual machines: left out by -short")
	}
	p, err := findParts()
	switch {
	case errors.Is(err, ErrMissing) && os.Getenv("GRAYLINK_REQUIRE_ALL") != "1":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return p
}

// together starts machines at one time, and returns them by name. Their consoles are printed when the test fails.
func together(t testing.TB, options ...Options) map[string]*Machine {
	t.Helper()
	machines := map[string]*Machine{}
	var mu sync.Mutex
	var booting sync.WaitGroup
	for _, o := range options {
		booting.Go(func() {
			m, err := Start(context.Background(), o) // which Close ends, after the console is read
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			machines[o.Name] = m
			t.Logf("machine %s, Linux %s, answered after %.1f s", m.Name, m.Kernel, m.Booted.Seconds())
		})
	}
	booting.Wait()
	t.Cleanup(func() {
		for _, m := range machines {
			if t.Failed() {
				t.Log(m.ConsoleOutput())
			}
			if err := m.Close(); err != nil {
				t.Errorf("close %s: %v", m.Name, err)
			}
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return machines
}

// withRDMA builds programs that have RDMA, or skips the test where that cannot be.
func withRDMA(t testing.TB, packages ...string) []string {
	t.Helper()
	built, err := BuildRDMA(t.Context(), t.TempDir(), packages...)
	if errors.Is(err, ErrMissing) && os.Getenv("GRAYLINK_REQUIRE_ALL") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return built
}

// coordinate starts a coordinator in a machine, at an address of it, that listens when this returns. It and the
// nodes, by name, have their certificates.
func coordinate(ctx context.Context, t *testing.T, on *Machine, address, topology string, nodes map[string]*Machine, flags ...string) *Process {
	t.Helper()
	earlier := time.Now().Add(-time.Hour) // whatever the clocks of the machines show
	ca, err := pki.NewAuthority("test", 24*time.Hour, earlier)
	if err != nil {
		t.Fatal(err)
	}
	put := func(m *Machine, names ...string) {
		t.Helper()
		pair, err := pki.Issue(ca, names, 24*time.Hour, earlier)
		if err != nil {
			t.Fatal(err)
		}
		for file, data := range map[string][]byte{"ca.crt": ca.Cert, names[0] + ".crt": pair.Cert, names[0] + ".key": pair.Key, "topology.yaml": []byte(topology)} {
			if err := m.WriteFile(ctx, "/etc/fleet/"+file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(on, "coordinator", address)
	for name, m := range nodes {
		put(m, name)
	}
	c, err := on.Start(ctx, append([]string{"graylink-coordinator", "--topology.file=/etc/fleet/topology.yaml", "--state.file=/run/coordinator", "--agents.listen-address=" + address + ":9870",
		"--agents.ca=/etc/fleet/ca.crt", "--agents.cert=/etc/fleet/coordinator.crt", "--agents.key=/etc/fleet/coordinator.key", "--agent.heartbeat=500ms",
		"--schedule.settle=200ms", "--schedule.changeover=200ms", "--stamp.port=8862"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitForLine(ctx, 0, func(l string) bool { return strings.Contains(l, "Listening on") }); err != nil {
		t.Fatal(err)
	}
	return c
}

// follow starts the agent of a node, which gets its work from the coordinator at an address.
func follow(ctx context.Context, t *testing.T, m *Machine, name, address string, flags ...string) *Process {
	t.Helper()
	key := "/etc/fleet/" + name
	p, err := m.Start(ctx, append([]string{"graylink-node", "--coordinator.address=" + address + ":9870", "--coordinator.ca=/etc/fleet/ca.crt", "--coordinator.cert=" + key + ".crt", "--coordinator.key=" + key + ".key",
		"--state.file=/run/node", "--rdma"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func network(t testing.TB) *Network {
	t.Helper()
	n, err := NewNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// shell runs lines, each of which has to succeed.
func shell(t testing.TB, m *Machine, lines ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out := ""
	for _, l := range lines {
		r, err := m.MustRun(ctx, "sh", "-c", l)
		if err != nil {
			t.Fatal(err)
		}
		out += r.Stdout
	}
	return out
}

// until asks again, until what it hears is as wanted.
func until(t testing.TB, what string, ok func() (string, bool)) {
	t.Helper()
	within(t, patience, what, ok)
}

// within does what until does with another patience. It leaves the machines at least as much time as its questions take.
func within(t testing.TB, patience time.Duration, what string, ok func() (string, bool)) {
	t.Helper()
	last := ""
	for end := time.Now().Add(patience); time.Now().Before(end); {
		asked, good := time.Now(), false
		if last, good = ok(); good {
			return
		}
		time.Sleep(max(100*time.Millisecond, time.Since(asked)))
	}
	t.Fatalf("%s: not after %s; last it was\n%s", what, patience, last)
}

// agent is a graylink-node that runs in a machine.
type agent struct {
	t testing.TB
	m *Machine
	p *Process
	// read is the line after the last that was waited for.
	read int
}

const agentConfig = `node: h1
stamp: {port: 8862, class: roce}
clock: {error_bound: 1ms}
nics: [{nic: h1/eth0, device: eth0, address: 10.0.0.1, leaf: leaf1, leaf_port: dn1, plane: a, rail: 0, pod: p1, side: left}]
`

// startAgent starts the agent, built without RDMA, as it runs on a host.
func startAgent(t testing.TB, m *Machine) *agent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := m.WriteFile(ctx, "/etc/graylink/node.yaml", []byte(agentConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := m.Start(ctx, "graylink-node-plain", "--config.file=/etc/graylink/node.yaml", "--nic.health", "--nic.state-file=/run/nics", "--nic.log-position-file=/run/nic-log")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, m: m, p: p}
	a.line(func(l string) bool { return strings.Contains(l, "Listening on") })
	return a
}

// line waits for a line of the log.
func (a *agent) line(wanted func(string) bool) string {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	at, err := a.p.WaitForLine(ctx, a.read, wanted)
	if err != nil {
		a.t.Fatal(err)
	}
	a.read = at + 1
	return a.p.Lines[at]
}

// event waits for one of NIC health, and returns when it was by the machine's clock.
func (a *agent) event(code, entity string, healthy bool) time.Time {
	a.t.Helper()
	l := a.line(func(l string) bool {
		return field(l, "event") == "nic_health" && field(l, "errorCode") == code && field(l, "entitiesImpacted") == entity && field(l, "isHealthy") == strconv.FormatBool(healthy)
	})
	at, err := time.Parse(time.RFC3339Nano, field(l, "generatedTimestamp"))
	if err != nil {
		a.t.Fatalf("%s: generatedTimestamp: %v", l, err)
	}
	return at
}

var fields = regexp.MustCompile(`([A-Za-z_]+)=("(?:[^"\\]|\\.)*"|\S*)`)

// field returns one of a line in slog's text.
func field(line, name string) string {
	for _, m := range fields.FindAllStringSubmatch(line, -1) {
		if m[1] == name {
			if s, err := strconv.Unquote(m[2]); err == nil {
				return s
			}
			return m[2]
		}
	}
	return ""
}

// scrape returns what the agent publishes.
func (a *agent) scrape() map[string]*dto.MetricFamily {
	a.t.Helper()
	return a.families("/metrics")
}

// families returns those of one of its pages.
func (a *agent) families(page string) map[string]*dto.MetricFamily {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	b, err := a.m.HTTPGet(ctx, "http://127.0.0.1:9868"+page)
	if err != nil {
		a.t.Fatal(err)
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	out, err := p.TextToMetricFamilies(strings.NewReader(string(b)))
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

// series returns those of a family that have the labels, with their values. text is for messages.
func series(families map[string]*dto.MetricFamily, family string, labels ...string) (values []float64, found []*dto.Metric, text string) {
	for _, m := range families[family].GetMetric() {
		text += m.String() + "\n"
		has := map[string]string{}
		for _, l := range m.GetLabel() {
			has[l.GetName()] = l.GetValue()
		}
		all := true
		for i := 0; i < len(labels); i += 2 {
			all = all && has[labels[i]] == labels[i+1]
		}
		if all {
			found = append(found, m)
			values = append(values, m.GetGauge().GetValue()+m.GetCounter().GetValue()+m.GetUntyped().GetValue())
		}
	}
	return values, found, text
}

// is waits until a series is published with a value.
func (a *agent) is(value float64, family string, labels ...string) {
	a.t.Helper()
	until(a.t, fmt.Sprintf("%s%v %g", family, labels, value), func() (string, bool) {
		v, _, text := series(a.scrape(), family, labels...)
		return text, len(v) == 1 && v[0] == value
	})
}

// rxeCounters are those that rdma_rxe has (drivers/infiniband/sw/rxe/rxe_hw_counters.c).
var rxeCounters = []string{
	"ack_deferred", "completer_retry_err", "duplicate_request", "link_downed", "out_of_seq_request", "rcvd_pkts", "rcvd_rnr_err", "rcvd_seq_err", "rdma_recvs",
	"rdma_sends", "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err", "send_rnr_err", "sent_pkts",
}

// detection is how soon the agent has to report a port that is down, by the clock of the
// machine: the next poll, 1 s, and the confirmation of 500 ms, which the rules of nichealth
// have, and what a poll takes. The time that this host kept the machine waiting is added.
const detection = 2 * time.Second

// stalled returns how long this host has kept the machine waiting for a processor, since it was started: the time that
// QEMU's threads could run and did not (proc(5), /proc/pid/schedstat), and the time that another host took from all
// processors of this one (steal in /proc/stat).
func (m *Machine) stalled(t *testing.T) (d time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", m.pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("machine %s: no schedstat of its threads, %v", m.Name, err)
	}
	number := func(file string, at int) time.Duration {
		b, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			return 0 // a thread that has ended
		}
		f := strings.Fields(string(b))
		if err != nil || len(f) <= at {
			t.Fatalf("%s: %q, %v; more than %d fields are expected", file, b, err, at)
		}
		v, err := strconv.ParseInt(f[at], 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		return time.Duration(v)
	}
	for _, f := range files {
		d += number(f, 1) // nanoseconds
	}
	return d + number("/proc/stat", 8)*10*time.Millisecond // in ticks of 100 Hz
}

// nicHealth checks what the agent reports of a real RDMA device: states, rate, counters, GIDs and the kernel's log; a port
// that goes down and comes back; a device that goes and comes back.
func nicHealth(t *testing.T, b *bed) {
	m := b.h1
	shell(t, m, "ip link set lo up", "ip addr add 10.0.0.1/24 dev eth0", "ip link set eth0 up", "rdma link add rxe0 type rxe netdev eth0")
	like(t, m)
	began := m.stalled(t)
	a := startAgent(t, m)

	const nic = "h1/eth0" // as it is probed
	a.is(1, "fabric_nic_port_state", "nic", nic, "state", "ACTIVE")
	a.is(1, "fabric_nic_port_phys_state", "nic", nic, "state", "LinkUp")
	a.is(10e9/8, "fabric_nic_port_rate_bytes_per_second", "nic", nic)
	a.is(1, "fabric_nic_port_info", "nic", nic, "kind", "rxe", "device", "rxe0", "interface", "eth0")
	a.is(1, "fabric_nic_port_gid_entries", "nic", nic, "type", "RoCE v2", "family", "ipv4")
	for _, c := range rxeCounters {
		a.is(0, "fabric_nic_port_hardware_total", "nic", nic, "counter", c)
	}
	_, hardware, text := series(a.scrape(), "fabric_nic_port_hardware_total", "nic", nic)
	if len(hardware) != len(rxeCounters) {
		t.Errorf("%d counters of hw_counters/ are expected, these are published:\n%s", len(rxeCounters), text)
	}

	before := m.stalled(t)
	down, err := m.MustRun(t.Context(), "ip", "link", "set", "eth0", "down")
	if err != nil {
		t.Fatal(err)
	}
	took := a.event("state_down", "NICPort:rxe0_port1", false).Sub(down.Began)
	stalled := m.stalled(t) - before
	t.Logf("state_down came %s after the command began, by the clock of the machine; it waited %s for a processor", took.Round(time.Millisecond), stalled.Round(time.Millisecond))
	if took > detection+stalled || took < 0 {
		t.Errorf("state_down came after %s, at most %s and the %s that the machine waited are expected", took, detection, stalled)
	}
	a.is(1, "fabric_nic_port_state", "nic", nic, "state", "DOWN")
	a.is(1, "fabric_nic_port_phys_state", "nic", nic, "state", "Disabled")
	shell(t, m, "ip link set eth0 up")
	a.event("state_down", "NICPort:rxe0_port1", true)
	a.is(1, "fabric_nic_port_state", "nic", nic, "state", "ACTIVE")
	a.is(1, "fabric_nic_port_hardware_total", "nic", nic, "counter", "link_downed")

	before = m.stalled(t)
	gone, err := m.MustRun(t.Context(), "rdma", "link", "delete", "rxe0")
	if err != nil {
		t.Fatal(err)
	}
	took = a.event("device_disappeared", "NIC:rxe0", false).Sub(gone.Began)
	stalled = m.stalled(t) - before
	t.Logf("device_disappeared came %s after the command began; the machine waited %s", took.Round(time.Millisecond), stalled.Round(time.Millisecond))
	// An event has the time at which its poll began: the poll that first misses the device may have begun before it went.
	if took < 2*time.Second-100*time.Millisecond-stalled {
		t.Errorf("device_disappeared came after %s: three polls a second apart have to miss it", took)
	}
	shell(t, m, "rdma link add rxe0 type rxe netdev eth0")
	a.event("device_disappeared", "NIC:rxe0", true)
	a.is(1, "fabric_nic_port_state", "nic", nic, "state", "ACTIVE")

	// The kernel's own log is read from its oldest record, and what a program writes there is no driver's.
	shell(t, m, `echo "<3>mlx5_core 0000:18:00.0: NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out" > /dev/kmsg`)
	records, err := strconv.ParseFloat(strings.TrimSpace(shell(t, m, "dmesg | wc -l")), 64)
	if err != nil || records < 50 {
		t.Fatalf("%g lines of dmesg, %v", records, err)
	}
	until(t, "the whole log is read", func() (string, bool) {
		v, _, text := series(a.scrape(), "graylink_node_nic_log_records_total")
		return text, len(v) == 1 && v[0] >= records
	})
	a.is(0, "graylink_node_nic_log_malformed_total")
	a.is(0, "graylink_node_nic_log_lost_total")
	families := a.scrape()
	if v, _, text := series(families, "graylink_node_nic_events_total", "code", "netdev_watchdog"); len(v) > 0 {
		t.Errorf("a program's line made an event: %s", text)
	}
	// A machine that waits for a processor takes long to read a file, too: no read may go on for ever.
	never := []string{"unreadable", "malformed"}
	if m.stalled(t)-began < 500*time.Millisecond { // the agent's patience with a file
		never = append(never, "hanging", "skipped")
	}
	for _, why := range never {
		if v, _, text := series(families, "graylink_node_nic_read_errors_total", "why", why); len(v) != 1 || v[0] != 0 {
			t.Errorf("no file is expected to be %s:\n%s", why, text)
		}
	}
	a.is(0, "graylink_node_nic_hanging_reads")
	if err := a.p.SendSignal(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if code, err := a.p.WaitForExit(ctx); err != nil || code != 0 {
		t.Errorf("the agent ended with %d, %v", code, err)
	}
	for _, l := range a.p.Lines {
		if strings.Contains(l, "level=ERROR") && field(l, "event") != "nic_health" {
			t.Errorf("the agent logged %s", l)
		}
	}
	if t.Failed() || testing.Verbose() {
		t.Log(strings.Join(a.p.Lines, "\n"))
	}
}

// twoMachines checks that two machines on a network reach each other by IP and by unreliable datagrams.
func twoMachines(t *testing.T, b *bed) {
	h1, h2 := b.h1, b.h2
	for i, m := range []*Machine{h1, h2} {
		shell(t, m, fmt.Sprintf("ip addr add 10.0.0.%d/24 dev eth0", i+1), "ip link set eth0 up", "rdma link add rxe0 type rxe netdev eth0")
	}
	for _, m := range []*Machine{h1, h2} {
		until(t, "the device of "+m.Name, func() (string, bool) {
			out := shell(t, m, "rdma link show")
			return out, strings.Contains(out, "link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0")
		})
	}
	before := b.middle.FrameCount()
	shell(t, h1, "ping -c 3 -i 0.2 -w 30 10.0.0.2")
	shell(t, h2, "ping -c 3 -i 0.2 -w 30 10.0.0.1")
	if b.middle.FrameCount() == before {
		t.Error("no frame went through the network")
	}

	// Messages of unreliable datagrams, which probes are to be, from one to the other.
	gid := func(m *Machine) (index string) {
		until(t, "a GID of IPv4 of "+m.Name, func() (string, bool) {
			index = strings.TrimSpace(shell(t, m, `cd /sys/class/infiniband/rxe0/ports/1/gids; for i in 0 1 2 3; do case $(cat $i) in *:ffff:0a00:*) echo $i; break;; esac; done`))
			return "", index != ""
		})
		return index
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, err := h1.Start(ctx, "ibv_ud_pingpong", "-d", "rxe0", "-g", gid(h1), "-n", "100", "-s", "512")
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the server listens", func() (string, bool) {
		out := shell(t, h1, "cat /proc/net/tcp /proc/net/tcp6")
		return out, strings.Contains(out, fmt.Sprintf(":%04X ", 18515)) // the program's default port
	})
	shell(t, h2, "ibv_ud_pingpong -d rxe0 -g "+gid(h2)+" -n 100 -s 512 10.0.0.1")
	if code, err := server.WaitForExit(ctx); err != nil || code != 0 {
		t.Errorf("the server of ibv_ud_pingpong ended with %d, %v:\n%s", code, err, strings.Join(server.Lines, "\n"))
	}
	for _, m := range []*Machine{h1, h2} {
		for _, c := range []string{"sent_pkts", "rcvd_pkts"} {
			out := strings.TrimSpace(shell(t, m, "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/"+c))
			if v, err := strconv.Atoi(out); err != nil || v < 100 {
				t.Errorf("%s of %s is %s, %v: 100 messages went each way", c, m.Name, out, err)
			}
		}
	}
}

// modulesLoad checks that modules are loaded with their parameters, and work.
func modulesLoad(t *testing.T, b *bed) {
	m := b.routers
	shell(t, m, "ip link add d0 type dummy", "ip link set d0 up", "ip link add v0 type veth peer name v1", "tc qdisc add dev v0 root netem delay 10ms")
	if out := shell(t, m, "tc qdisc show dev v0"); !strings.Contains(out, "netem") || !strings.Contains(out, "delay 10ms") {
		t.Errorf("tc says %q", out)
	}
	if out := shell(t, m, "ip -o link show type dummy"); strings.Count(out, "\n") != 1 {
		t.Errorf("one dummy is expected, the parameter says so: %q", out)
	}
	shell(t, m, "ip link del d0", "ip link del v0")
}

// A machine with a module that does not exist is not started.
func TestMachineWithAModuleThatIsNotThere(t *testing.T) {
	_, err := Start(t.Context(), Options{Name: "h1", Parts: require(t), Modules: []string{"nosuch"}})
	if !errors.Is(err, ErrNoModule) {
		t.Errorf("%v: ErrNoModule is expected", err)
	}
}

// A machine that does not come up is reported with what it wrote, and leaves nothing.
func TestMachineThatDoesNotStart(t *testing.T) {
	parts := require(t)
	broken := *parts
	broken.kernel = &kernel{release: parts.kernel.release, image: filepath.Join(t.TempDir(), "vmlinuz"), modules: parts.kernel.modules, builtin: parts.kernel.builtin}
	if err := os.WriteFile(broken.kernel.image, []byte("no kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	_, err := Start(t.Context(), Options{Name: "h1", Parts: &broken})
	if err == nil || !strings.Contains(err.Error(), "machine h1: ") || !strings.Contains(err.Error(), "qemu of h1:\nqemu: ") {
		t.Errorf("%v: what QEMU wrote is expected", err)
	}
	left, err := filepath.Glob(filepath.Join(temp, "graylink-vm*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// like compares the real device with the one that internal/fakesys makes, which other tests
// run on: which attributes there are, and what those that do not depend on the machine say.
func like(t *testing.T, m *Machine) {
	t.Helper()
	var profile *fakesys.Profile
	for _, p := range fakesys.Profiles() {
		if p.Name == "rxe" {
			profile = &p
		}
	}
	if profile == nil {
		t.Fatal("fakesys has no profile rxe")
	}
	root := t.TempDir()
	if err := fakesys.BuildTree(root, profile.Node()); err != nil {
		t.Fatal(err)
	}
	const device = "/sys/class/infiniband/rxe0"
	list := `find . -type f | grep -v -e '^./power/' -e '^./ports/1/cm_' -e '^./ports/1/gid' | sort`
	real := shell(t, m, "cd "+device+"/ && "+list)
	cmd := exec.Command("sh", "-c", list)
	cmd.Dir = filepath.Join(root, device)
	if dir, err := filepath.EvalSymlinks(cmd.Dir); err == nil {
		cmd.Dir = dir
	}
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	fake, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if string(fake) != real {
		t.Errorf("the attributes of a real device:\n%s\nand of the fake:\n%s", real, fake)
	}
	for _, name := range []string{"fw_ver", "node_type", "node_desc", "parent", "ports/1/state", "ports/1/phys_state", "ports/1/rate", "ports/1/link_layer", "ports/1/lid", "ports/1/sm_lid", "ports/1/lid_mask_count",
		"ports/1/sm_sl", "ports/1/cap_mask", "ports/1/pkeys/0", "ports/1/gids/1023", "ports/1/gid_attrs/types/0", "ports/1/gid_attrs/types/1"} {
		is, err := m.ReadFile(t.Context(), device+"/"+name)
		if err != nil {
			t.Error(err)
			continue
		}
		if b, err := os.ReadFile(filepath.Join(root, device, name)); err != nil || !bytes.Equal(b, is) {
			t.Errorf("%s: a real device says %q, the fake %q, %v", name, is, b, err)
		}
	}
}
