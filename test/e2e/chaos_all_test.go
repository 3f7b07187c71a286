//go:build all

package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/test/chaos"
)

var (
	chaosSeeds  = flag.String("chaos.seeds", "1", "seeds of TestChaos, A..B")
	chaosSpan   = flag.Duration("chaos.span", 2*time.Minute, "how long a seed of TestChaos lasts")
	chaosReplay = flag.String("chaos.replay", "", "file of a schedule that TestChaos printed, which it plays instead of those of seeds")
)

// turmoil is a chain to which events happen. It has two coordinators and two Prometheus, with an analyzer each, behind
// relays that stand for the network between them.
type turmoil struct {
	*chain
	o           *observer
	witness     *witness
	prometheus2 string
	relays      []*relay // to the coordinators
	webs        []string // of the coordinators
	disk        *disk
	refuse      atomic.Bool // remote write
	refused     atomic.Int64
	previous    string // directory of the programs of the last release
	second      *exec.Cmd
}

// newTurmoil starts one.
func newTurmoil(t *testing.T) *turmoil {
	t.Helper()
	prometheus := program(t, "prometheus")
	_, previous := lastRelease(t)
	c := prepareChain(t, "e2ech", "../../deploy/lab/demo.yaml", 2, []string{"--schedule.cadence=20ms"})
	m := &turmoil{chain: c, prometheus2: freeAddress(t), disk: smallDisk(t), previous: previous}
	c.analyzers[1].prometheus = m.prometheus2
	c.states, c.socket = m.disk.dir, "a.real.sock"
	m.webs = []string{c.web, freeAddress(t)}
	pair := func(self, other string) []string {
		return []string{"--ha.peers=coordinator", "--ha.identity=" + self, "--ha.initial-leader=a", "--ha.peer-address=unix:" + c.file(other)}
	}
	c.args = append(c.args, pair("a", "b.sock")...)
	c.agentArgs = []string{"--coordinator.address=unix:" + c.file("b.sock")}
	m.relays = []*relay{startRelay(t, c.file("agents.sock"), c.file("a.real.sock")), startRelay(t, c.file("b.sock"), c.file("b.real.sock"))}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m.refuse.Load() {
			m.refused.Add(1)
			http.Error(w, "too many samples", http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(receiver.Close)
	m.startStandby()
	c.begin(func(c *chain, addresses []string) {
		c.startPrometheus(prometheus, addresses)
		c.runPrometheus(prometheus, "prometheus2", m.prometheus2)
	}, "alerting:\n", "remote_write:\n  - url: "+receiver.URL+"\n\nalerting:\n")
	t.Cleanup(func() { stop(t, m.second) })
	c.wait(3*time.Minute, "the network is innocent", c.innocent)
	c.wait(time.Minute, "every probe is traced", c.everyPathTraced)
	m.o, m.witness = c.observe(), c.watch()
	return m
}

// startStandby starts the second coordinator, b.
func (m *turmoil) startStandby() {
	args := []string{"--topology.file=" + m.topo, "--state.file=" + filepath.Join(m.states, "b.json"), "--agents.listen-address=unix:" + m.file("b.real.sock"),
		"--agents.ca=" + m.file("ca.crt"), "--agents.cert=" + m.file("coordinator.crt"), "--agents.key=" + m.file("coordinator.key"), "--web.enable-admin-api",
		"--web.listen-address=" + m.webs[1], "--ha.identity=b", "--ha.peer-address=unix:" + m.file("agents.sock")}
	for _, a := range m.args { // those of the first one, but for what distinguishes the two
		if !strings.HasPrefix(a, "--ha.identity=") && !strings.HasPrefix(a, "--ha.peer-address=") {
			args = append(args, a)
		}
	}
	m.second = m.start(exec.Command(filepath.Join(m.bin, "graylink-coordinator"), args...), "coordinator2")
}

// leader returns the index of the coordinator that leads, or 0 if neither says so.
func (m *turmoil) leader() int {
	if m.leadership(m.webs[1]).Leads {
		return 1
	}
	return 0
}

func (m *turmoil) coordinatorOf(i int) *exec.Cmd { return []*exec.Cmd{m.coordinator, m.second}[i] }

func (m *turmoil) startCoordinatorOf(i int) {
	if i == 0 {
		m.startCoordinator()
		return
	}
	m.startStandby()
}

// end ends a program by a signal, and waits until it is gone.
func end(cmd *exec.Cmd, how syscall.Signal) {
	_ = cmd.Process.Signal(how)
	_ = cmd.Wait()
}

// starve has the kernel end a program for want of memory, as it does in a container: its control group has less than what
// it uses. Whatever it allocates next is too much.
func (m *turmoil) starve(cmd *exec.Cmd) {
	m.t.Helper()
	dir := filepath.Join("/sys/fs/cgroup/memory", "graylink-chaos-"+strconv.Itoa(cmd.Process.Pid))
	must := func(err error) {
		m.t.Helper()
		if err != nil {
			m.t.Fatalf("a control group with too little memory: %v", err)
		}
	}
	must(os.Mkdir(dir, 0o755))
	must(os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644))
	must(os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte("4096"), 0o644))
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		m.t.Errorf("%s runs on without memory", filepath.Base(cmd.Path))
		_ = cmd.Process.Kill()
		<-ended
	}
	text, err := os.ReadFile(filepath.Join(dir, "memory.oom_control"))
	must(err)
	if !strings.Contains(string(text), "oom_kill 1") {
		m.t.Errorf("the kernel says that it did not end %s: %s", filepath.Base(cmd.Path), text)
	}
	must(os.Remove(dir))
}

// limitFiles sets the limit of open files of a program, and returns how it is undone.
func (m *turmoil) limitFiles(cmd *exec.Cmd) (undo func()) {
	m.t.Helper()
	set := func(limit string) {
		m.t.Helper()
		if out, err := exec.Command("prlimit", "--pid", strconv.Itoa(cmd.Process.Pid), "--nofile="+limit).CombinedOutput(); err != nil {
			m.t.Errorf("prlimit: %v: %s", err, out)
		}
	}
	set(strconv.Itoa(noFiles) + ":")
	return func() { set("1000:") }
}

// replicaOf returns the analyzer of a name.
func (m *turmoil) replicaOf(name string) *replica {
	return m.analyzers[slices.IndexFunc(m.analyzers, func(r *replica) bool { return r.name == name })]
}

func (m *turmoil) prometheusOf(name string) string {
	if name == "prometheus" {
		return m.prometheus
	}
	return m.prometheus2
}

// startSwitch starts a switch's agent.
func (m *turmoil) startSwitch(name string) {
	m.run(name, m.switchCommand(name))
}

// programOf returns the program that an event is about, if it is about one, and how it is started again.
func (m *turmoil) programOf(e chaos.Event) (cmd *exec.Cmd, restart func()) {
	switch k, _ := chaos.FindKind(e.Kind); k.Target {
	case chaos.OnNode:
		return m.agents[e.Target], func() { m.agentOf(e.Target) }
	case chaos.OnSwitch:
		return m.running[e.Target], func() { m.startSwitch(e.Target) }
	case chaos.OnAnalyzer:
		r := m.replicaOf(e.Target)
		return r.cmd, func() { m.analyze(r) }
	case chaos.OnPrometheus:
		return m.running[e.Target], func() { m.runPrometheus(program(m.t, "prometheus"), e.Target, m.prometheusOf(e.Target)) }
	default:
		i := m.leader()
		return m.coordinatorOf(i), func() { m.startCoordinatorOf(i) }
	}
}

// strike makes an event happen, and returns how it is undone.
func (m *turmoil) strike(e chaos.Event) (undo func()) {
	m.t.Helper()
	cmd, restart := m.programOf(e)
	switch e.Kind {
	case "kill_agent", "kill_switch_agent", "kill_analyzer", "kill_coordinator", "prometheus_lost":
		end(cmd, syscall.SIGKILL)
		return restart
	case "oom_agent", "oom_switch_agent", "oom_analyzer", "oom_coordinator":
		m.starve(cmd)
		return restart
	case "stop_agent", "stop_switch_agent", "stop_analyzer", "stop_coordinator", "ruler_late":
		return pause(cmd)
	case "no_files_agent", "no_files_analyzer", "no_files_coordinator":
		return m.limitFiles(cmd)
	case "disk_full":
		m.disk.fill()
		return m.disk.free
	case "remote_write_429":
		m.refuse.Store(true)
		return func() { m.refuse.Store(false) }
	case "dns_gone":
		m.nameless.Store(true)
		return func() { m.nameless.Store(false) }
	case "coordinator_one_way":
		return m.setRelays(relayOneWay)
	case "coordinator_slow":
		return m.setRelays(relaySlow)
	case "two_leaders":
		restore := m.setRelays(relayCut)
		m.promote(1 - m.leader())
		return restore
	case "certificate_expired":
		return m.expire(e.Target)
	case "ca_rolled":
		return m.rollAuthority()
	case "bad_reload_coordinator":
		return m.badTopology()
	case "bad_reload_analyzer":
		return m.badSettings(m.replicaOf(e.Target))
	case "half_upgraded":
		return m.otherRelease()
	case "duplicate_name":
		return m.duplicate(e.Target)
	case "node_drained":
		return m.drain(e.Target)
	case "interface_flap":
		m.setLink(e.Target, "down")
		time.Sleep(200 * time.Millisecond)
		m.setLink(e.Target, "up")
		time.Sleep(200 * time.Millisecond)
		m.setLink(e.Target, "down")
		return func() { m.setLink(e.Target, "up") }
	case "nic_unplugged":
		m.setLink(e.Target, "down")
		return func() { m.setLink(e.Target, "up") }
	case "address_change":
		return m.takeAddress(e.Target)
	}
	m.t.Fatalf("event %q is not known", e.Kind)
	return nil
}

// setRelays sets the mode of both relays, and returns how it is undone.
func (m *turmoil) setRelays(mode relayMode) (undo func()) {
	set := func(mode relayMode) {
		for _, r := range m.relays {
			r.set(mode)
		}
	}
	set(mode)
	return func() { set(relayPasses) }
}

// dropAgents ends all connections of the coordinators.
func (m *turmoil) dropAgents() {
	for _, r := range m.relays {
		r.drop()
	}
}

// postTo sends a request without a body, and returns the status.
func (m *turmoil) postTo(url string) int {
	m.t.Helper()
	resp, err := (&http.Client{Timeout: 5 * time.Second}).Post(url, "", nil)
	if err != nil {
		m.t.Errorf("POST %s: %v", url, err)
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func (m *turmoil) promote(i int) {
	m.t.Helper()
	if code := m.postTo("http://" + m.webs[i] + "/-/promote"); code != http.StatusOK {
		m.t.Errorf("promotion of coordinator %d: status %d", i+1, code)
	}
}

// expire gives a node a certificate that has expired, and ends its connection.
func (m *turmoil) expire(node string) (undo func()) {
	m.t.Helper()
	var authority pki.Pair
	var err error
	for file, text := range map[string]*[]byte{"ca.crt": &authority.Cert, "ca.key": &authority.Key} {
		if *text, err = os.ReadFile(m.file(file)); err != nil {
			m.t.Fatal(err)
		}
	}
	p, err := pki.Issue(authority, []string{node}, time.Hour, time.Now().Add(-2*time.Hour))
	if err != nil {
		m.t.Fatal(err)
	}
	m.write(node+".key", string(p.Key))
	m.write(node+".crt", string(p.Cert))
	m.dropAgents()
	return func() { m.issue(node) }
}

// rollAuthority makes a new authority that all programs trust besides the old one, has it sign all certificates, and takes the
// old one away.
func (m *turmoil) rollAuthority() (undo func()) {
	m.t.Helper()
	fresh := m.t.TempDir()
	m.cert("--dir", fresh, "ca")
	read := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			m.t.Fatal(err)
		}
		return string(b)
	}
	authority := read(filepath.Join(fresh, "ca.crt"))
	m.write("ca.crt", authority+read(m.file("ca.crt")))
	names := append([]string{"coordinator", "analyzer"}, m.nodes()...)
	m.cert(append([]string{"--dir", fresh, "issue"}, names...)...)
	for _, name := range names {
		for _, ext := range []string{".key", ".crt"} {
			m.write(name+ext, read(filepath.Join(fresh, name+ext)))
		}
	}
	m.dropAgents()
	return func() {
		m.write("ca.key", read(filepath.Join(fresh, "ca.key")))
		m.write("ca.crt", authority)
		m.dropAgents()
	}
}

// reload has a program read its configuration again, and checks whether it accepts it, by what it publishes.
func (m *turmoil) reload(who string, cmd *exec.Cmd, web string, accepted bool) {
	m.t.Helper()
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		m.t.Errorf("SIGHUP for %s: %v", who, err)
	}
	want := map[bool]float64{true: 1}[accepted]
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		body, _ := m.get("http://"+web+"/metrics", nil)
		if v, ok := readSeries(bytes.NewReader(body))["graylink_config_last_reload_successful"]; ok && v == want {
			return
		}
	}
	m.t.Errorf("%s: after a reload graylink_config_last_reload_successful is not %v", who, want)
}

// badTopology reloads the coordinators with a topology that is none, and returns how it is undone.
func (m *turmoil) badTopology() (undo func()) {
	m.t.Helper()
	good, err := os.ReadFile(m.topo)
	if err != nil {
		m.t.Fatal(err)
	}
	use := func(text []byte, accepted bool) {
		if err := os.WriteFile(m.topo, text, 0o644); err != nil {
			m.t.Fatal(err)
		}
		for i, web := range m.webs {
			m.reload(fmt.Sprintf("coordinator %d", i+1), m.coordinatorOf(i), web, accepted)
		}
	}
	use([]byte("version: 1\nswitches: [{name: leaf1, role: roof}]\n"), false)
	return func() { use(good, true) }
}

// badSettings reloads an analyzer with a configuration that is none, and returns how it is undone.
func (m *turmoil) badSettings(r *replica) (undo func()) {
	m.t.Helper()
	good, err := os.ReadFile(m.file(r.config()))
	if err != nil {
		m.t.Fatal(err)
	}
	use := func(text string, accepted bool) {
		m.write(r.config(), text)
		m.reload(r.name, r.cmd, r.address, accepted)
	}
	use("prometheus: nothing\n", false)
	return func() { use(string(good), true) }
}

// otherRelease replaces half of the agents by those of the last release, and returns how it is undone.
func (m *turmoil) otherRelease() (undo func()) {
	half := m.half()
	change := func(programs string) {
		m.bin = programs
		for _, n := range half {
			end(m.agents[n], syscall.SIGTERM)
			m.agentOf(n)
		}
		m.bin = bin
	}
	change(m.previous)
	return func() { change(bin) }
}

// half returns every other node.
func (m *turmoil) half() (nodes []string) {
	for i, n := range m.nodes() {
		if i%2 == 1 {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// duplicate runs a second agent of a name on another machine, and returns how it ends.
func (m *turmoil) duplicate(node string) (undo func()) {
	m.t.Helper()
	all := m.nodes()
	other := all[(slices.Index(all, node)+1)%len(all)]
	args := []string{filepath.Join(m.bin, "graylink-node"), "--coordinator.address=unix:" + m.file("agents.sock"), "--coordinator.address=unix:" + m.file("b.sock"), "--coordinator.ca=" + m.file("ca.crt"),
		"--coordinator.cert=" + m.file(node+".crt"), "--coordinator.key=" + m.file(node+".key"), "--web.listen-address=127.0.0.1:9968", "--no-nic.health"}
	cmd := m.start(m.l.Command(m.t.Context(), other, args...), "second "+node)
	return func() { end(cmd, syscall.SIGTERM) }
}

// drain announces maintenance of a node at all analyzers and ends its agent, and returns how it is undone.
func (m *turmoil) drain(node string) (undo func()) {
	m.t.Helper()
	windows := map[*replica]string{}
	for _, r := range m.analyzers {
		var w struct{ ID string }
		b := m.send(http.MethodPost, r, "/api/v1/maintenance", fmt.Sprintf(`{"element":%q,"by":"test","duration":"5m","reason":"drained"}`, node), http.StatusCreated)
		if err := json.Unmarshal(b, &w); err != nil || w.ID == "" {
			m.t.Errorf("maintenance of %s: %v: %s", node, err, b)
		}
		windows[r] = w.ID
	}
	end(m.agents[node], syscall.SIGTERM)
	return func() {
		m.agentOf(node)
		for r, id := range windows {
			m.send(http.MethodDelete, r, "/api/v1/maintenance/"+id, "", http.StatusNoContent)
		}
	}
}

// setLink sets the port of a switch that a node's first NIC is at up or down.
func (m *turmoil) setLink(node, is string) {
	m.t.Helper()
	port := m.portOf(node)
	name, err := m.interfaceOf(port)
	if err != nil {
		m.t.Fatal(err)
	}
	m.ip(fabric.OwnerOf(port), "link", "set", name, is)
}

// portOf returns the port of a switch that a node's first NIC is at.
func (m *turmoil) portOf(node string) string {
	for _, l := range m.l.Topology().Links {
		switch {
		case strings.HasPrefix(l.A, node+"/"):
			return l.B
		case strings.HasPrefix(l.B, node+"/"):
			return l.A
		}
	}
	m.t.Fatalf("%s has no link", node)
	return ""
}

// interfaceOf returns the kernel's interface of a switch's port.
func (m *turmoil) interfaceOf(port string) (string, error) {
	ports, err := m.l.PortInterfaces(fabric.OwnerOf(port))
	if err != nil {
		return "", err
	}
	for _, p := range ports {
		if p.End == port {
			return p.Name, nil
		}
	}
	return "", fmt.Errorf("%s is no port of the lab", port)
}

// ip runs ip in the namespace of a node or switch, and returns what it prints.
func (m *turmoil) ip(element string, args ...string) []byte {
	m.t.Helper()
	out, err := m.l.Command(m.t.Context(), element, append([]string{"ip"}, args...)...).Output()
	if err != nil {
		m.t.Fatalf("ip %s at %s: %v", strings.Join(args, " "), element, err)
	}
	return out
}

// takeAddress takes the address of a node's first NIC away, and returns how it is undone.
func (m *turmoil) takeAddress(node string) (undo func()) {
	m.t.Helper()
	device := ""
	for _, n := range m.l.Topology().Nodes {
		if n.Name == node {
			device = n.NICs[0].Device
		}
	}
	addresses, routes := m.ip(node, "-4", "address", "save", "dev", device), m.ip(node, "-4", "route", "save")
	m.ip(node, "-4", "address", "flush", "dev", device)
	return func() {
		m.restore(node, "address", addresses)
		m.restore(node, "route", routes)
	}
}

// restore restores saved addresses or routes. Those that exist are left as they are.
func (m *turmoil) restore(node, what string, saved []byte) {
	m.t.Helper()
	// ip seeks in its input, which therefore is a file.
	m.write("saved", string(saved))
	file, err := os.Open(m.file("saved"))
	if err != nil {
		m.t.Fatal(err)
	}
	defer file.Close()
	cmd := m.l.Command(m.t.Context(), node, "ip", "-4", what, "restore")
	cmd.Stdin = file
	if out, err := cmd.CombinedOutput(); err != nil && !strings.Contains(string(out), "File exists") {
		m.t.Errorf("ip %s restore at %s: %v: %s", what, node, err, out)
	}
}

// struck is a fault of a schedule and what was found of it.
type struck struct {
	chaos.Fault
	plan   demo.PlannedFault
	id     string // while it lasts
	began  time.Time
	healed time.Time
	named  time.Duration // zero: not yet
	paged  time.Duration
	// open is set if the page about an earlier fault of the element was open when it began. There is no second one.
	open bool
}

// about reports whether a verdict is about the fault.
func (s *struck) about(v *fabric.Verdict) bool { return s.plan.NamedBy(v) || s.plan.ListedBy(v) }

// Times after which a verdict is opened of what is over. A window is 2 s, and two of them are needed at least.
const (
	lateNaming = 5 * time.Second  // that counts as naming the fault
	aftermath  = 15 * time.Second // that is right, since what it says was so
	// clockAftermath is that of a clock which steps back when it is healed.
	clockAftermath = 45 * time.Second
)

// during reports whether a verdict that was opened at a moment can be about the fault, and whether it names it in time.
func (s *struck) during(opened time.Time) (right, named bool) {
	after := aftermath
	if s.plan.Kind == fabric.KindClock {
		after = clockAftermath
	}
	began := !s.began.IsZero() && opened.After(s.began)
	over := func(after time.Duration) bool { return !s.healed.IsZero() && opened.After(s.healed.Add(after)) }
	return began && !over(after), began && !over(lateNaming)
}

// happened is an event of a schedule, and when it was.
type happened struct {
	chaos.Event
	kind     chaos.Kind
	began    time.Time
	finished time.Time
	undo     func()
}

// lastsAt reports whether the event, or what it leaves behind for a moment, was there at a time.
func (h *happened) lastsAt(at time.Time) bool {
	return !h.began.IsZero() && !at.Before(h.began) && (h.finished.IsZero() || !at.After(h.finished.Add(aftermath)))
}

// explains reports whether the event made what a verdict says true: a node that is cut off the fabric, or does not run.
func (h *happened) explains(v *fabric.Verdict, at time.Time) bool {
	if !h.lastsAt(at) {
		return false
	}
	of := v.Element.ID == h.Target || strings.Contains(v.Element.ID, h.Target+"/")
	return of && (h.kind.Cut || h.kind.Probes && v.Kind == fabric.KindHost)
}

// played is how a schedule went.
type played struct {
	events   []*happened
	faults   []*struck
	wrong    []string
	unfitted []unfitted
	ledger   ledger
	// elements are those that incidents named first, by analyzer and identifier, and renamed says since when they name another one.
	elements map[string]string
	renamed  map[string]time.Time
}

// named returns when an incident of an analyzer began to name its element: when it was opened, or when it was widened to that.
func (p *played) named(r *replica, in *incident.Incident) time.Time {
	id := r.name + " " + in.ID
	if first, seen := p.elements[id]; !seen {
		p.elements[id] = in.Element.ID
	} else if first != in.Element.ID {
		at := id + " " + in.Element.ID
		if p.renamed[at].IsZero() {
			p.renamed[at] = time.Now()
		}
		return p.renamed[at]
	}
	return in.OpenedAt
}

// unfitted is a verdict of an analyzer that nothing gives a reason for.
type unfitted struct {
	by *replica
	id string
}

// play plays a schedule, and observes.
func (m *turmoil) play(s chaos.Schedule) *played {
	t := m.t
	t.Helper()
	p := &played{elements: map[string]string{}, renamed: map[string]time.Time{}}
	for _, e := range s.Events {
		k, _ := chaos.FindKind(e.Kind)
		p.events = append(p.events, &happened{Event: e, kind: k})
	}
	for _, f := range s.Faults {
		p.faults = append(p.faults, &struck{Fault: f, plan: m.planned(f.Kind, f.Seed)})
	}
	before := m.o.account()
	began := time.Now()
	known := map[string]bool{}
	looked := time.Time{}
	for time.Since(began) < s.Span {
		m.advance(p, began)
		if time.Since(looked) >= 500*time.Millisecond {
			looked = time.Now()
			m.look(p, began, known)
		}
		time.Sleep(20 * time.Millisecond)
	}
	m.recover(known, func() { m.look(p, began, known) })
	left := map[string]bool{}
	for _, h := range p.events {
		switch {
		case h.Kind == "half_upgraded":
			for _, n := range m.half() {
				left[n] = true
			}
		case h.kind.Probes:
			left[h.Target] = true
		}
	}
	p.ledger = settle(before, m.o.account(), left)
	p.wrong = append(p.wrong, p.ledger.wrong...)
	for _, f := range p.faults {
		if f.named == 0 && f.plan.Kind == fabric.KindClock && p.withoutClocks(f.began) {
			m.t.Logf("%s at %s was not named: nothing related the clocks then", f.Kind, f.plan.Element)
		} else if f.named == 0 {
			p.wrong = append(p.wrong, fmt.Sprintf("%s at %s was not named", f.Kind, f.plan.Element))
		}
		// The verdict about a clock is for information.
		if f.paged == 0 && !f.open && f.plan.Kind != fabric.KindClock {
			p.wrong = append(p.wrong, fmt.Sprintf("no page about %s at %s", f.Kind, f.plan.Element))
		}
	}
	return p
}

// withoutClocks reports whether an event kept the clocks of the nodes from being related at a moment.
func (p *played) withoutClocks(at time.Time) bool {
	return slices.ContainsFunc(p.events, func(h *happened) bool { return h.kind.Clocks && h.lastsAt(at) })
}

// recovery is the time in which everything is as before when nothing happens any more. Baselines are learnt again in two minutes.
const recovery = 3 * time.Minute

// recover waits until all agents are connected, and all analyzers find the network innocent. known has what events explain.
func (m *turmoil) recover(known map[string]bool, look func()) {
	m.t.Helper()
	began := time.Now()
	for time.Since(began) < recovery {
		if look(); m.settled(known) && m.allConnected() {
			m.t.Logf("all is as before %.1f s after the end", time.Since(began).Seconds())
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	for _, r := range m.analyzers {
		body, _ := m.get("http://"+r.address+"/api/v1/verdicts", nil)
		flows, _ := m.get("http://"+r.address+"/api/v1/observations", nil)
		m.t.Logf("%s: %s\n  %s", r.name, body[:min(len(body), 1000)], strings.Join(moved(flows), "\n  "))
	}
	m.t.Errorf("%s after the end the network is not innocent, or agents are not connected (%v)", recovery, m.allConnected())
}

// settled reports whether all analyzers find the network innocent, or remember no more than that something flapped which did. A flap
// is remembered for minutes.
func (m *turmoil) settled(known map[string]bool) bool {
	for _, r := range m.analyzers {
		state, incidents := m.verdicts(r)
		explained := func(in incident.Incident) bool { return in.Scenario == fabric.Flap && known["element "+in.Element.ID] }
		open := slices.DeleteFunc(incidents, func(in incident.Incident) bool { return !in.Open })
		if state != fabric.Innocent && (len(open) == 0 || slices.ContainsFunc(open, func(in incident.Incident) bool { return !explained(in) })) {
			return false
		}
	}
	return true
}

// allConnected reports whether the leader has all agents.
func (m *turmoil) allConnected() bool {
	body, _ := m.get("http://"+m.webs[m.leader()]+"/metrics", nil)
	return readSeries(bytes.NewReader(body))[`graylink_coordinator_agents{state="connected"}`] == float64(len(m.nodes()))
}

// advance lets begin and end what is due.
func (m *turmoil) advance(p *played, began time.Time) {
	m.t.Helper()
	since := time.Since(began)
	for _, h := range p.events {
		switch {
		case h.began.IsZero() && since >= h.At:
			h.began = time.Now()
			m.t.Logf("%6.1f s  %s %s: %s", since.Seconds(), h.Kind, h.Target, h.kind.About)
			h.undo = m.strike(h.Event)
		case h.undo != nil && since >= h.Until:
			h.undo()
			h.undo, h.finished = nil, time.Now()
		}
	}
	for _, f := range p.faults {
		switch {
		case f.began.IsZero() && since >= f.At:
			f.began, f.open = time.Now(), m.isPaged(f.plan.Element, began)
			f.id = m.fault(f.plan.Fault)
			m.t.Logf("%6.1f s  fault %s at %s", since.Seconds(), f.Kind, f.plan.Element)
		case f.id != "" && since >= f.Until:
			m.heal(f.id)
			f.id, f.healed = "", time.Now()
		}
	}
}

// isPaged reports whether the last message about an element is that something is wrong with it.
func (m *turmoil) isPaged(element string, since time.Time) (open bool) {
	for _, x := range m.messages(since) {
		if x.element == element && x.ofFabric() {
			open = x.status == "firing"
		}
	}
	return open
}

// look judges the verdicts and the messages that are new.
func (m *turmoil) look(p *played, began time.Time, known map[string]bool) {
	m.t.Helper()
	elements := map[string]*struck{}
	for _, r := range m.analyzers {
		_, incidents := m.verdicts(r)
		for i := range incidents {
			if incidents[i].OpenedAt.After(began) {
				m.judgeVerdict(p, r, &incidents[i], began, known, elements)
			}
		}
	}
	for _, x := range m.messages(began) {
		f := elements[x.element]
		switch key := "message " + x.name + x.element + x.status; {
		case x.status != "firing" || !x.ofFabric():
		case f != nil:
			if f.paged == 0 && x.at.After(f.began) {
				f.paged = x.at.Sub(f.began)
			}
		case !known[key] && !known["element "+x.element]:
			known[key] = true
			p.wrong = append(p.wrong, fmt.Sprintf("at %.1f s a page without a reason: %s", x.at.Sub(began).Seconds(), x))
		}
	}
}

// judgeVerdict judges one verdict: it names a fault, or what an event did, or it is wrong. elements gets what is named.
func (m *turmoil) judgeVerdict(p *played, r *replica, in *incident.Incident, began time.Time, known map[string]bool, elements map[string]*struck) {
	m.t.Helper()
	opened := p.named(r, in)
	for _, f := range p.faults {
		if right, named := f.during(opened); right && f.about(&in.Verdict) {
			elements[in.Element.ID] = f
			known["element "+in.Element.ID] = true
			if f.named == 0 && named {
				f.named = opened.Sub(f.began)
				m.t.Logf("%6.1f s  %s names %s after %.1f s", time.Since(began).Seconds(), r.name, in.Element.ID, f.named.Seconds())
			}
			return
		}
	}
	for _, h := range p.events {
		if h.explains(&in.Verdict, opened) {
			known["element "+in.Element.ID] = true
			return
		}
	}
	if key := r.name + in.ID; !known[key] {
		known[key] = true
		p.unfitted = append(p.unfitted, unfitted{r, in.ID})
		p.wrong = append(p.wrong, fmt.Sprintf("at %.1f s %s says without a reason: %s %s: %s", opened.Sub(began).Seconds(), r.name, in.Kind, in.Element.ID, in.Summary))
	}
}

// schedules returns the schedules that are to be played.
func (m *turmoil) schedules() (out []chaos.Schedule) {
	t := m.t
	t.Helper()
	if *chaosReplay != "" {
		f, err := os.Open(*chaosReplay)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s, err := chaos.ReadSchedule(f)
		if err != nil {
			t.Fatalf("-chaos.replay %s: %v", *chaosReplay, err)
		}
		return []chaos.Schedule{s}
	}
	from, to, err := demo.ParseSeeds(*chaosSeeds)
	if err != nil {
		t.Fatal(err)
	}
	site := chaos.Site{Nodes: m.nodes(), Analyzers: []string{"analyzer1", "analyzer2"}, Prometheus: []string{"prometheus", "prometheus2"}}
	for _, sw := range m.l.Topology().Switches {
		site.Switches = append(site.Switches, sw.Name)
	}
	for seed := from; seed <= to; seed++ {
		s, err := chaos.NewSchedule(seed, *chaosSpan, site)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

// TestChaos lets much happen to Graylink while the fabric has faults: programs are killed, stopped and out of memory, disks
// are full, certificates expire, coordinators are cut off. Every fault has to be named, nothing else may be, and no probe may
// be lost that the kernel delivered. make chaos has seeds and spans, and plays a printed schedule again.
func TestChaos(t *testing.T) {
	m := newTurmoil(t)
	counts := map[string]int{}
	for _, s := range m.schedules() {
		var b bytes.Buffer
		if err := s.WriteJSON(&b); err != nil {
			t.Fatal(err)
		}
		t.Logf("schedule of seed %d:\n%s", s.Seed, b.String())
		p := m.play(s) // what starts meanwhile runs until the whole test ends
		t.Run(fmt.Sprintf("seed %d", s.Seed), func(t *testing.T) {
			for _, h := range p.events {
				counts[h.Kind]++
			}
			for _, f := range p.faults {
				counts[f.Kind]++
				t.Logf("fault %s at %s: named after %.1f s, paged after %.1f s", f.Kind, f.plan.Element, f.named.Seconds(), f.paged.Seconds())
			}
			t.Logf("%d events, %d faults; %s; remote write was refused %d times so far", len(p.events), len(p.faults), p.ledger, m.refused.Load())
			for _, w := range p.wrong {
				t.Error(w)
			}
		})
		for _, u := range p.unfitted {
			m.explainOne(m.witness, u.by, u.id)
		}
	}
	t.Logf("struck: %v", counts)
}
