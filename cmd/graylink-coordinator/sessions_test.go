package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	exporter "github.com/graylink/graylink/exporters/coordinator"
	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/webaccess"
)

// topology returns the text of a topology with leaves of hosts with one NIC each, and two spines.
func topology(leaves, hosts int) string {
	var b strings.Builder
	b.WriteString("version: 1\nswitches:\n  - {name: spine1, role: spine}\n  - {name: spine2, role: spine}\n")
	for l := range leaves {
		fmt.Fprintf(&b, "  - {name: leaf%d, role: leaf}\n", l)
	}
	b.WriteString("nodes:\n")
	for h := range leaves * hosts {
		fmt.Fprintf(&b, "  - {name: h%d, nics: [{device: eth1, addresses: [10.%d.%d.%d]}]}\n", h, h>>14, h>>7&127, h&127+1)
	}
	b.WriteString("links:\n")
	for h := range leaves * hosts {
		fmt.Fprintf(&b, "  - {a: \"h%d/eth1\", b: \"leaf%d:dn%d\"}\n", h, h/hosts, h%hosts)
	}
	for l := range leaves {
		for s := 1; s <= 2; s++ {
			fmt.Fprintf(&b, "  - {a: \"leaf%d:up%d\", b: \"spine%d:dn%d\"}\n", l, s, s, l)
		}
	}
	return b.String()
}

// rig has a coordinator with real sockets and real certificates.
type rig struct {
	t       *testing.T
	dir     string
	ca      pki.Pair
	options coordinator.Options
	unix    string
	address string

	c            *coordinator.Coordinator
	certificates *pki.Keeper
	agentCA      string // file of the authorities of the agents; if empty, those of the coordinator
	enroll       enrollFlags
	enrollment   *enrollment
	stop         func()
}

func newRig(t *testing.T, topologyText string, change func(*coordinator.Options)) *rig {
	t.Helper()
	r := newFiles(t, topologyText, change)
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// newFiles returns a rig that has not been started.
func newFiles(t *testing.T, topologyText string, change func(*coordinator.Options)) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), options: coordinator.DefaultOptions()}
	var err error
	if r.ca, err = pki.NewAuthority("test", time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	r.write("ca.crt", r.ca.Cert)
	r.write("revoked", nil)
	r.issue("coordinator", "127.0.0.1")
	r.write("topology.yaml", []byte(topologyText))
	o := &r.options
	o.TopologyFile, o.StateFile = filepath.Join(r.dir, "topology.yaml"), filepath.Join(r.dir, "state.json")
	o.Planner = coordinator.Planner{Make: schedule.Make, Rebalance: schedule.Rebalance}
	o.Heartbeat, o.AbsentAfter, o.KeysGrace = 200*time.Millisecond, 30*time.Second, 30*time.Second
	o.Settle, o.Changeover, o.Version = 300*time.Millisecond, 300*time.Millisecond, "test"
	if change != nil {
		change(o)
	}
	r.unix = filepath.Join(r.dir, "agents.sock")
	return r
}

func (r *rig) write(name string, b []byte) {
	r.t.Helper()
	tmp := filepath.Join(r.dir, name+".new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) read(name string) []byte {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *rig) issue(name string, also ...string) {
	r.t.Helper()
	p, err := pki.Issue(r.ca, append([]string{name}, also...), time.Hour, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	r.write(name+".key", p.Key)
	r.write(name+".crt", p.Cert)
}

func (r *rig) keeper(name string) *pki.Keeper {
	r.t.Helper()
	at := func(s string) string { return filepath.Join(r.dir, s) }
	files := pki.Files{CA: at("ca.crt"), Cert: at(name + ".crt"), Key: at(name + ".key")}
	if name == "coordinator" {
		files.Revoked = at("revoked")
	}
	if r.agentCA != "" && name != "coordinator" {
		files.CA = at(r.agentCA)
	}
	k, err := pki.Open(files, func(error) {})
	if err != nil {
		r.t.Fatal(err)
	}
	return k
}

// start starts a coordinator on the same files, which is a new process for the agents.
func (r *rig) start() {
	r.t.Helper()
	used, err := r.enroll.openUsedTokens(&r.options)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.c, err = coordinator.New(r.options, slog.New(slog.DiscardHandler)); err != nil {
		r.t.Fatal(err)
	}
	r.certificates = r.keeper("coordinator")
	if r.enrollment, err = r.enroll.open(r.c, r.certificates, used, slog.New(slog.DiscardHandler)); err != nil {
		r.t.Fatal(err)
	}
	server := coordinator.NewServer(r.c, r.certificates, r.enrollment.server())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if r.address == "" {
		r.address = "127.0.0.1:0"
	}
	for _, a := range []string{r.address, "unix:" + r.unix} {
		l, err := coordinator.Listen(ctx, a)
		if err != nil {
			r.t.Fatal(err)
		}
		if tcp, ok := l.Addr().(*net.TCPAddr); ok {
			r.address = tcp.String()
		}
		wg.Go(func() {
			if err := server.Serve(l); err != nil {
				r.t.Errorf("serve: %v", err)
			}
		})
	}
	wg.Go(func() {
		if err := r.c.Run(ctx); err != nil {
			r.t.Errorf("run: %v", err)
		}
	})
	r.stop = func() {
		server.Stop()
		cancel()
		wg.Wait()
		if err := r.enrollment.close(); err != nil {
			r.t.Error(err)
		}
		r.stop = func() {}
	}
}

// agent is a node whose engine records the assignments that it gets.
type agent struct {
	mu       sync.Mutex
	applied  []*agentapi.Assignment
	keys     *agentapi.Keys
	in       []*agentapi.Interface
	logs     strings.Builder
	traces   []fabric.Trace
	versions uint64
	clocks   []*agentapi.ClockUpdate
	frames   map[bool]uint64 // of the last updates: of the coordinator that leads, and of another one
	locked   map[uint64]int  // clocks in the last update, by frame
}

func (*agent) Life() uint64                        { return 0 }
func (*agent) TakeLives(uint64, map[string]uint64) {}

func (a *agent) Apply(as *agentapi.Assignment, k *agentapi.Keys) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.applied, a.keys = append(a.applied, as), k
	return nil
}

func (a *agent) Interfaces() ([]*agentapi.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.in, nil
}

func (a *agent) Heartbeat(*agentapi.Heartbeat) {}

func (a *agent) Clock(m *agentapi.ClockUpdate, leads bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clocks = append(a.clocks, m)
	u, err := clocksync.ParseUpdate(m.GetUpdate())
	if err != nil {
		return
	}
	if a.frames == nil {
		a.frames, a.locked = map[bool]uint64{}, map[uint64]int{}
	}
	a.frames[leads], a.locked[u.Frame] = u.Frame, 0
	for i := range u.Maps {
		if u.Maps[i].State == clocksync.Locked {
			a.locked[u.Frame]++
		}
	}
}

func (a *agent) Traces() (uint64, []fabric.Trace) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.versions, a.traces
}

func (a *agent) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.logs.Write(b)
}

func (a *agent) log() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.logs.String()
}

func (a *agent) last() (n int, as *agentapi.Assignment, k *agentapi.Keys) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n = len(a.applied); n > 0 {
		as = a.applied[n-1]
	}
	return n, as, a.keys
}

// run starts a client that ends with the test, or when stop is called.
func (r *rig) run(node, address, state string) (a *agent, stop func()) {
	r.t.Helper()
	a, _, stop = r.client(node, address, state, false)
	return a, stop
}

func (r *rig) client(node, address, state string, own bool) (a *agent, c *client.Client, stop func()) {
	r.t.Helper()
	if _, err := os.Stat(filepath.Join(r.dir, node+".crt")); err != nil {
		r.issue(node)
	}
	a = &agent{}
	c, err := client.New(client.Config{Addresses: []string{address}, ServerName: "coordinator", Certificates: r.keeper(node), Node: node, Version: "test",
		BootID: "boot", Web: &agentapi.WebEndpoint{Address: node + ":9868"}, StateFile: state, Log: slog.New(slog.NewTextHandler(a, nil)), OwnConfiguration: own,
		BackoffLow: 50 * time.Millisecond, BackoffHigh: 200 * time.Millisecond}, a)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	r.t.Cleanup(stop)
	return a, c, stop
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *rig) settled(agents []*agent) {
	r.t.Helper()
	until(r.t, "every agent has all its edges", func() bool {
		s := r.c.Stats()
		if s.Agents[coordinator.StateConnected] != len(agents) || s.OutOfDate != 0 {
			return false
		}
		for i, a := range agents {
			_, edges, _ := r.c.ScheduleOf(fmt.Sprintf("h%d", i))
			if _, as, _ := a.last(); as == nil || len(as.GetEdges()) != len(edges) || len(as.GetAnswers()) == 0 {
				return false
			}
		}
		return true
	})
}

func (r *rig) get(path string) (int, string) {
	r.t.Helper()
	w := httptest.NewRecorder()
	exporter.Handler(r.c, &webaccess.Policy{AdminAPI: true, Lifecycle: true}, slog.New(slog.DiscardHandler), nil, r.certificates).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Code, w.Body.String()
}

func TestAgentsOutliveTheCoordinator(t *testing.T) {
	r := newRig(t, topology(4, 2), nil)
	var agents []*agent
	states := make([]string, 8)
	var stops []func()
	for i := range 8 {
		address := r.address
		if i%2 == 1 {
			address = "unix:" + r.unix
		}
		states[i] = filepath.Join(r.dir, fmt.Sprintf("h%d.state", i))
		a, stop := r.run(fmt.Sprintf("h%d", i), address, states[i])
		agents, stops = append(agents, a), append(stops, stop)
	}
	r.settled(agents)
	before, _, _ := r.c.ScheduleOf("")
	counts := make([]int, len(agents))
	for i, a := range agents {
		counts[i], _, _ = a.last()
	}

	r.stop()
	// One agent is restarted while there is no coordinator: it continues to probe.
	stops[3]()
	_, old, oldKeys := agents[3].last()
	agents[3], _ = r.run("h3", "unix:"+r.unix, states[3])
	n, as, keys := agents[3].last()
	if n != 1 || len(as.GetEdges()) != len(old.GetEdges()) || len(keys.GetPeers()) != len(oldKeys.GetPeers()) {
		t.Fatalf("the restarted agent applied %d assignments, %d edges, want its old %d", n, len(as.GetEdges()), len(old.GetEdges()))
	}
	counts[3] = n
	r.start()
	until(t, "all come back", func() bool { return r.c.Stats().Agents[coordinator.StateConnected] == 8 })
	until(t, "a few heartbeats pass", func() bool { return r.c.Agents()[0].ConnectedSeconds != nil && *r.c.Agents()[0].ConnectedSeconds > 1 })
	after, _, _ := r.c.ScheduleOf("")
	if before.Hash != after.Hash {
		t.Errorf("schedule %s, then %s", before.Hash, after.Hash)
	}
	for i, a := range agents {
		if n, _, _ := a.last(); n != counts[i] {
			t.Errorf("h%d got %d assignments after the restart", i, n-counts[i])
		}
	}
	if s := r.c.Stats(); s.Assignments != 0 || s.KeysSent != 0 || s.OutOfDate != 0 {
		t.Errorf("sent %d assignments, %d times keys; %d out of date", s.Assignments, s.KeysSent, s.OutOfDate)
	}
}

// Reports go to the coordinator and maps to the agents, for agents with a configuration of their own as
// well.
// startReports reports windows of clocks h0, h1, ..., each a millisecond ahead of the one before, until the returned function
// is called.
func startReports(clients []*client.Client) (stop func()) {
	ahead := func(i int) int64 { return int64(i) * 1e6 }
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(150 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case now := <-tick.C:
				for i, c := range clients {
					rep := clocksync.Report{Node: fmt.Sprintf("h%d", i), End: now.UnixNano() + ahead(i)}
					for j := range clients {
						if j != i {
							rep.Pairs = append(rep.Pairs, clocksync.PairEstimate{ID: clocksync.PairID{Src: rep.Node + "/eth1", Dst: fmt.Sprintf("h%d/eth1", j)},
								Estimate: clocksync.Estimate{Quality: clocksync.Fine, Ref: rep.End, Offset: ahead(j) - ahead(i), Sigma: 20, RateSigma: 1e-9}})
						}
					}
					c.ReportClock(rep.AppendTo(nil))
				}
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func TestRule15ClocksOverTheWire(t *testing.T) {
	r := newRig(t, topology(2, 2), func(o *coordinator.Options) { o.ClockEvery = 200 * time.Millisecond })
	agents, clients := make([]*agent, 4), make([]*client.Client, 4)
	for i := range agents {
		agents[i], clients[i], _ = r.client(fmt.Sprintf("h%d", i), r.address, "", i == 3)
	}
	ahead := func(i int) int64 { return int64(i) * 1e6 }
	defer startReports(clients)()
	for i, a := range agents {
		until(t, "every agent has locked maps of all clocks", func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			if len(a.clocks) == 0 {
				return false
			}
			u, err := clocksync.ParseUpdate(a.clocks[len(a.clocks)-1].GetUpdate())
			if err != nil {
				t.Fatal(err)
			}
			return len(u.Maps) == 4 && !slices.ContainsFunc(u.Maps, func(m clocksync.ClockMap) bool {
				return m.State != clocksync.Locked || m.Offset-u.Maps[0].Offset != -ahead(int(m.Clock[1]-'0'))
			})
		})
		if sent, _ := clients[i].ClockReports(); sent == 0 {
			t.Errorf("h%d sent nothing", i)
		}
	}
	if n, _, _ := agents[3].last(); n != 0 {
		t.Error("an agent with its own configuration was assigned something")
	}
	until(t, "the others are scheduled", func() bool { sum, _, ok := r.c.ScheduleOf(""); return ok && sum.Edges > 0 })
	if code, body := r.get("/api/v1/clocks"); code != 200 || !strings.Contains(body, `"clock":"h2","state":"locked"`) || !strings.Contains(body, `"dropped":[]`) {
		t.Errorf("%d %s", code, body)
	}
	_, body := r.get("/metrics")
	for _, want := range []string{`graylink_coordinator_clocks{state="locked"} 4`, `graylink_coordinator_clock_edges{state="dropped"} 0`,
		`graylink_coordinator_clock_reports_total{result="malformed"} 0`, "graylink_coordinator_clock_solve_seconds ", "graylink_coordinator_clock_updates_sent_total "} {
		if !strings.Contains(body, want) {
			t.Errorf("%q is missing in the metrics", want)
		}
	}
}

func TestRule8CertificatesRollWithoutAGap(t *testing.T) {
	r := newRig(t, topology(2, 2), nil)
	var agents []*agent
	for i := range 4 {
		a, _ := r.run(fmt.Sprintf("h%d", i), r.address, "")
		agents = append(agents, a)
	}
	r.settled(agents)
	counts := make([]int, len(agents))
	for i, a := range agents {
		counts[i], _, _ = a.last()
	}
	// A second authority is accepted as well. Then all get a certificate of it. Then the first one is
	// no longer accepted.
	accepted := r.c.Stats().Sessions["accepted"]
	renewed := func(what string) {
		t.Helper()
		accepted += uint64(len(agents))
		until(t, "agents come again with "+what, func() bool { return r.c.Stats().Sessions["accepted"] >= accepted })
	}
	first := r.ca
	next, err := pki.NewAuthority("next", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.write("ca.crt", append(append([]byte{}, first.Cert...), next.Cert...))
	// Each agent connects again for each change that it sees: one change at a time, so that the test
	// knows which one it has seen.
	renewed("both authorities")
	r.ca = next
	r.issue("coordinator", "127.0.0.1")
	for i := range agents {
		r.issue(fmt.Sprintf("h%d", i))
	}
	renewed("their new certificates")
	r.write("ca.crt", next.Cert)
	renewed("the new authority alone")
	until(t, "all are connected", func() bool { return r.c.Stats().Agents[coordinator.StateConnected] == 4 })
	s := r.c.Stats()
	for k, v := range s.Sessions {
		if strings.HasPrefix(k, "refused") && v != 0 {
			t.Errorf("%s: %d", k, v)
		}
	}
	for i, a := range agents {
		if n, _, _ := a.last(); n != counts[i] {
			t.Errorf("h%d got an assignment because of the change of authority", i)
		}
		if strings.Contains(a.log(), "no session with the coordinator") {
			t.Errorf("h%d lost the coordinator:\n%s", i, a.log())
		}
	}
	// A certificate of the first authority is no longer accepted.
	r.ca = first
	r.issue("h0")
	stranger, _ := r.run("h0", r.address, "")
	until(t, "the stranger is turned away", func() bool { return strings.Contains(stranger.log(), "no session with the coordinator") })
	if r.c.Stats().Sessions["accepted"] != s.Sessions["accepted"] {
		t.Error("the stranger was let in")
	}
}

// An open session ends when its authority is removed from the file, although neither side opens a
// connection.
func TestRule8SessionsEndWithTheirAuthority(t *testing.T) {
	r := newRig(t, topology(2, 2), nil)
	first := r.ca
	next, err := pki.NewAuthority("next", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	both := append(append([]byte{}, first.Cert...), next.Cert...)
	r.write("ca.crt", both)
	// Agents have a file of their own: they do not connect again because of the coordinator's file.
	r.agentCA = "agents.crt"
	r.write(r.agentCA, both)
	old, _ := r.run("h0", r.address, "")
	r.ca = next
	r.run("h1", r.address, "")
	until(t, "both are connected", func() bool { return r.c.Stats().Agents[coordinator.StateConnected] == 2 })
	r.write("ca.crt", next.Cert)
	until(t, "the session of the old authority has ended", func() bool { return r.c.Stats().Sessions["revoked"] == 1 })
	until(t, "its agent is turned away", func() bool { return strings.Contains(old.log(), "no session with the coordinator") })
	for _, a := range r.c.Agents() {
		if connected := a.State == coordinator.StateConnected; connected != (a.Node == "h1") && (a.Node == "h0" || a.Node == "h1") {
			t.Errorf("%s is %s", a.Node, a.State)
		}
	}
}

func TestRule8SessionsOfRevokedCertificatesEnd(t *testing.T) {
	r := newRig(t, topology(2, 2), nil)
	lost, _ := r.run("h0", r.address, "")
	r.run("h1", r.address, "")
	until(t, "both are connected", func() bool { return r.c.Stats().Agents[coordinator.StateConnected] == 2 })
	block, _ := pem.Decode(r.read("h0.crt"))
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	r.write("revoked", []byte("serial="+c.SerialNumber.Text(16)+" # h0 was stolen\n"))
	until(t, "the session has ended", func() bool { return r.c.Stats().Sessions["revoked"] == 1 })
	until(t, "its agent is turned away", func() bool { return strings.Contains(lost.log(), "no session with the coordinator") })
	if s := r.c.Stats(); s.Agents[coordinator.StateConnected] != 1 || s.Sessions["accepted"] != 2 {
		t.Errorf("%v, %v: want h1 alone to stay, and no other agent to be accepted again", s.Agents, s.Sessions)
	}
	r.issue("h0")
	until(t, "h0 comes with another certificate", func() bool { return r.c.Stats().Agents[coordinator.StateConnected] == 2 })
}

// A certificate whose common name is another node's is not a certificate of that node.
func TestRule1TheCommonNameIsNoIdentity(t *testing.T) {
	r := newRig(t, topology(2, 2), nil)
	block, _ := pem.Decode(r.ca.Cert)
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	keyBlock, _ := pem.Decode(r.ca.Key)
	caKey, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "h1"}, DNSNames: []string{"printer"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	r.write("h1.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	r.write("h1.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	impostor, _ := r.run("h1", r.address, "")
	until(t, "the agent is refused", func() bool {
		return strings.Contains(impostor.log(), `the certificate is for [\"printer\"], not for node \"h1\"`)
	})
	if r.c.Stats().Sessions["accepted"] != 0 {
		t.Error("a common name was believed")
	}
}

func TestExpiryOfCertificatesIsPublished(t *testing.T) {
	r := newRig(t, topology(2, 2), nil)
	block, _ := pem.Decode(r.read("coordinator.crt"))
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	_, body := r.get("/metrics")
	want := fmt.Sprintf("graylink_certificate_expiry_timestamp_seconds{file=%q,serial=%q,use=\"certificate\"} %v", filepath.Join(r.dir, "coordinator.crt"),
		c.SerialNumber.Text(16), float64(c.NotAfter.Unix()))
	if !strings.Contains(body, want) || !strings.Contains(body, `ca.crt",serial="`) || strings.Contains(body, "coordinator.key") {
		t.Errorf("%s is missing, or a key's file is named", want)
	}
}

func TestRule1ARefusalSaysWhy(t *testing.T) {
	r := newRig(t, topology(2, 2), nil)
	r.issue("h1")
	for _, ext := range []string{".crt", ".key"} {
		b, err := os.ReadFile(filepath.Join(r.dir, "h1"+ext))
		if err != nil {
			t.Fatal(err)
		}
		r.write("h2"+ext, b)
	}
	impostor, _ := r.run("h2", r.address, "")
	until(t, "the agent knows why", func() bool { return strings.Contains(impostor.log(), `not for node \"h2\"`) })
	if r.c.Stats().Sessions["refused_identity"] == 0 {
		t.Error("not counted")
	}
}

func TestRule7KeysRollUnderConnectedAgents(t *testing.T) {
	r := newRig(t, topology(2, 2), func(o *coordinator.Options) { o.AbsentAfter, o.KeysGrace = 2*time.Second, 2*time.Second })
	var agents []*agent
	for i := range 4 {
		a, _ := r.run(fmt.Sprintf("h%d", i), r.address, "")
		agents = append(agents, a)
	}
	r.settled(agents)
	old := r.c.Stats().KeysEpoch
	if err := r.c.RotateKeys(); err != nil {
		t.Fatal(err)
	}
	until(t, "the old key is gone", func() bool {
		ids := make([][]uint32, len(agents))
		for i, a := range agents {
			_, _, k := a.last()
			ids[i] = k.GetIds()
		}
		// The keys are read one after another, possibly in two neighbouring states, so that a sender's
		// key must be held by all that are read after it.
		for i := range ids {
			_, _, k := agents[(i+1)%4].last()
			if len(ids[i]) == 0 || !slices.Contains(k.GetIds(), ids[i][0]) && r.c.Stats().KeysHeld > 1 {
				t.Fatalf("h%d sends with %d, h%d accepts %v", i, ids[i], (i+1)%4, k.GetIds())
			}
		}
		s := r.c.Stats()
		return s.KeysHeld == 1 && s.KeysEpoch != old && s.KeysUnconfirmed == 0
	})
}

func TestWhatIsServed(t *testing.T) {
	r := newRig(t, topology(2, 2), func(o *coordinator.Options) { o.RegistrySettle = time.Hour })
	if code, _ := r.get("/api/v1/targets"); code != http.StatusServiceUnavailable {
		t.Errorf("targets before the registry is whole: %d", code)
	}
	if code, _ := r.get("/-/ready"); code != http.StatusServiceUnavailable {
		t.Errorf("ready before there is a schedule: %d", code)
	}
	if code, _ := r.get("/api/v1/schedule"); code != http.StatusServiceUnavailable {
		t.Errorf("schedule before there is one: %d", code)
	}
	var agents []*agent
	for i := range 4 {
		a, _ := r.run(fmt.Sprintf("h%d", i), r.address, "")
		agents = append(agents, a)
	}
	r.settled(agents)
	for path, want := range map[string]string{
		"/-/healthy":               "healthy",
		"/-/ready":                 "ready",
		"/api/v1/targets":          `{"targets":["127.0.0.1:9868"],"labels":{"__meta_graylink_connected":"true","__meta_graylink_node":"h0","__meta_graylink_version":"test","__scheme__":"http"}}`,
		"/api/v1/agents":           `{"node":"h3","state":"connected"`,
		"/api/v1/schedule":         `"components":1`,
		"/api/v1/schedule?node=h1": `"edge":"h1/eth1>`,
		"/metrics":                 `graylink_coordinator_agents{state="connected"} 4`,
	} {
		// An agent whose heartbeats a busy machine delays is silent for a moment.
		until(t, fmt.Sprintf("%s has %s", path, want), func() bool {
			code, body := r.get(path)
			return code == http.StatusOK && strings.Contains(body, want)
		})
	}
	if code, _ := r.get("/api/v1/schedule?node=h9"); code != http.StatusNotFound {
		t.Errorf("a node without edges: %d", code)
	}
	h := exporter.Handler(r.c, &webaccess.Policy{AdminAPI: true, Lifecycle: true}, slog.New(slog.DiscardHandler), nil, r.certificates)
	for _, path := range []string{"/-/reload", "/api/v1/keys/rotate"} {
		for remote, want := range map[string]int{"192.0.2.1:5": http.StatusForbidden, "127.0.0.1:5": http.StatusOK} {
			q := httptest.NewRequest("POST", path, nil)
			q.RemoteAddr = remote
			w := httptest.NewRecorder()
			h.ServeHTTP(w, q)
			if w.Code != want {
				b, _ := io.ReadAll(w.Body)
				t.Errorf("POST %s from %s: %d, want %d: %s", path, remote, w.Code, want, b)
			}
		}
	}
}
