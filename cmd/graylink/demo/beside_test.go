//go:build beside

package demo

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/webaccess"
)

// beside holds a simulated fabric, a Prometheus server that scrapes it, and daemons that query the server. Server and
// daemons reach the agents through a proxy.
type beside struct {
	t       *testing.T
	d       *Demo
	dir     string
	server  *server
	daemons map[string]*daemon.Daemon
}

// newBeside starts a daemon for each of some names, whose backends and servers they are.
func newBeside(t *testing.T, name string, daemons func(address string) map[string]daemon.Prometheus) *beside {
	t.Helper()
	topo, found := fabric.LoadTopology("../../../deploy/lab/demo.yaml")
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	d, err := Start(t.Context(), Options{Name: name, Topology: topo, Fabric: Simulated, Listen: "127.0.0.1:0", Progress: &said, Log: silent})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	b := &beside{t: t, d: d, dir: t.TempDir(), daemons: map[string]*daemon.Daemon{}}
	proxy := forward(t, d)
	b.server = newServer(t, b.dir, b.write("prometheus.yml", scrapes(d.Graph().Topo, proxy)))
	b.server.start()
	y, err := yaml.Marshal(d.Graph().Topo)
	if err != nil {
		t.Fatal(err)
	}
	b.write("topology.yaml", string(y))
	for name, p := range daemons(b.server.address) {
		a, err := daemon.New(b.write(name+".yaml", fmt.Sprintf(`topology_file: topology.yaml
prometheus: {url: %q, backend: %s}
agents: {url: "http://{node}:%s", proxy_url: %q}
switches: {url: "http://{switch}:%s", proxy_url: %q, stamp_port: %d, stamp_source_port: %d}
evidence: {parallel: 1}
`, p.URL, p.Backend, agentPort, proxy, switchPort, proxy, StampPort, SourcePort)), &webaccess.Policy{}, slog.New(slog.NewTextHandler(&logged{t: t, who: name}, &slog.HandlerOptions{Level: slog.LevelWarn})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
		b.daemons[name] = a
	}
	return b
}

func (b *beside) write(name, text string) string {
	b.t.Helper()
	file := filepath.Join(b.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return file
}

// wait waits until the state of every daemon meets a condition.
func (b *beside) wait(limit time.Duration, what string, ok func(snapshot.Snapshot) bool) {
	b.t.Helper()
	end := time.Now().Add(limit)
	for name, a := range b.daemons {
		for !ok(a.CurrentLoop().Snapshot()) {
			if time.Sleep(50 * time.Millisecond); time.Now().After(end) {
				s := a.CurrentLoop().Snapshot()
				b.t.Fatalf("%s, not within %s: %s; %q, %+v", name, limit, what, s.CycleError, s.Report)
			}
		}
	}
}

func innocent(s snapshot.Snapshot) bool { return s.Report.State == fabric.Innocent }

// direct returns the configuration of daemons of both backends that query the server itself.
func direct(address string) map[string]daemon.Prometheus {
	out := map[string]daemon.Prometheus{}
	for _, backend := range []string{"http", "remote_read"} {
		out[backend] = daemon.Prometheus{Endpoint: daemon.Endpoint{URL: "http://" + address}, Backend: backend}
	}
	return out
}

// TestDaemonBesideARealPrometheus: of one fault, the analyzer beside a Prometheus
// server and the demo's own give the same verdict; one that is healed while the server stands
// still is held until it is seen to be healed.
func TestDaemonBesideARealPrometheus(t *testing.T) {
	b := newBeside(t, "beside", direct)
	d, daemons, wait := b.d, b.daemons, b.wait
	began := time.Now()
	wait(60*time.Second, "innocence", innocent)
	t.Logf("innocent after %.1f s", time.Since(began).Seconds())
	p, err := PlanFault(d.Graph(), "delay", 1, Params{Delay: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.RunFault(t.Context(), p, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	wait(30*time.Second, "the all-clear", func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 0 })
	own := d.Loop().Snapshot().Incidents
	for backend, a := range daemons {
		s := a.CurrentLoop().Snapshot()
		if s.Expected != d.mesh.DirectedFlows() {
			t.Errorf("%s: %d flows are expected by the series, want %d", backend, s.Expected, d.mesh.DirectedFlows())
		}
		if len(s.Incidents) != 1 || len(own) != 1 || out.Verdict == nil {
			t.Fatalf("%s: %d incidents, the demo had %d, want one each; the demo's verdict %+v", backend, len(s.Incidents), len(own), out.Verdict)
		}
		got, want := s.Incidents[0].Verdict, *out.Verdict
		if got.Element != want.Element || got.Direction != want.Direction || got.Scenario != want.Scenario || !p.NamedBy(&got) {
			t.Errorf("%s: %s %s %s, want %s %s %s", backend, got.Element, got.Direction, got.Scenario, want.Element, want.Direction, want.Scenario)
		}
		t.Logf("%s: the verdict came %.1f s after the demo's; %+v", backend, s.Incidents[0].OpenedAt.Sub(own[0].OpenedAt).Seconds(), a.CurrentLoop().CycleCounts())
	}

	// The same fault once more, and the server stops in the middle of it.
	if _, err := d.site.AddFault(t.Context(), p.Fault); err != nil {
		t.Fatal(err)
	}
	open := func(s snapshot.Snapshot) bool { return len(s.Report.Verdicts) == 1 && p.NamedBy(&s.Report.Verdicts[0]) }
	wait(30*time.Second, "the verdict", open)
	b.server.signal(syscall.SIGSTOP)
	wait(30*time.Second, "blindness", func(s snapshot.Snapshot) bool { return s.CycleError != "" })
	if err := d.site.ClearFault(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Second) // the fault is healed meanwhile, which no daemon sees
	for backend, a := range daemons {
		if s := a.CurrentLoop().Snapshot(); s.Report.State != fabric.Suspect || !open(s) || s.Report.Coverage.Edges != 0 || s.Incidents[0].Held == "" {
			t.Errorf("%s, blind: %s, %+v", backend, s.Report.State, s.Incidents)
		}
	}
	b.server.signal(syscall.SIGCONT)
	wait(60*time.Second, "innocence", innocent)
	for backend, a := range daemons {
		if n := len(a.CurrentLoop().Snapshot().Incidents); n != 2 {
			t.Errorf("%s: %d incidents, want two", backend, n)
		}
		t.Logf("%s: %+v", backend, a.CurrentLoop().CycleCounts())
	}
}

// forward starts an HTTP proxy to the agents of a fabric and returns its URL.
func forward(t *testing.T, d *Demo) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: d.dialContext}
	s := &http.Server{Handler: &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: transport, ErrorLog: slog.NewLogLogger(silent.Handler(), slog.LevelError)}}
	go s.Serve(ln)
	t.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	return "http://" + ln.Addr().String()
}

// scrapes returns a server's configuration for the agents of a topology.
func scrapes(topo *fabric.Topology, proxy string) string {
	var targets []string
	for i := range topo.Nodes {
		targets = append(targets, fmt.Sprintf("%q", topo.Nodes[i].Name+":"+agentPort))
	}
	job := "- {job_name: %s, metrics_path: %s, proxy_url: %q, static_configs: [{targets: [" + strings.Join(targets, ", ") + "]}]}\n"
	return "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n" +
		fmt.Sprintf(job, "graylink-node-edges", "/metrics/edges", proxy) + fmt.Sprintf(job, "graylink-node-nics", "/metrics/nics", proxy) + fmt.Sprintf(job, "graylink-node", "/metrics", proxy)
}

// server is a Prometheus server that may die and come back.
type server struct {
	t                            *testing.T
	binary, dir, config, address string
	cmd                          *exec.Cmd
	log                          bytes.Buffer
}

func newServer(t *testing.T, dir, config string) *server {
	t.Helper()
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("needs prometheus (Debian package prometheus)")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s := &server{t: t, binary: binary, dir: dir, config: config, address: ln.Addr().String()}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.cmd.Process.Signal(syscall.SIGCONT)
			s.cmd.Process.Signal(syscall.SIGTERM)
			s.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("prometheus: %s", s.log.String())
		}
	})
	return s
}

// start starts it, with what it stored before, and waits until it answers.
func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.binary, "--config.file="+s.config, "--storage.tsdb.path="+filepath.Join(s.dir, "tsdb"), "--web.listen-address="+s.address,
		"--enable-feature=native-histograms", "--log.level=warn")
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get("http://" + s.address + "/-/ready")
		if err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(end) {
			s.t.Fatalf("prometheus is not ready: %v\n%s", err, s.log.String())
		}
	}
}

func (s *server) signal(what syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(what); err != nil {
		s.t.Fatal(err)
	}
}

// kill ends it without warning.
func (s *server) kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	s.cmd.Wait()
	s.cmd = nil
}

// logged writes to a test's log.
type logged struct {
	t   *testing.T
	who string
}

func (l *logged) Write(b []byte) (int, error) {
	l.t.Logf("%s: %s", l.who, bytes.TrimSpace(b))
	return len(b), nil
}
