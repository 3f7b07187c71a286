package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/dashboards"
	"github.com/graylink/graylink/internal/fabric"
)

// chain is a fleet with what an operator has beside it: Prometheus, Alertmanager and
// analyzers, configured by the files of deploy/ and rules/, and a webhook at the end.
type chain struct {
	*fleet
	prometheus, alertmanager string // addresses; the first is what the analyzers query
	analyzers                []*replica
	settings                 string // more lines of the analyzers' configuration
	server                   string // more lines below the key prometheus of that
	// header is of every query at the server, and nil where it needs none.
	header http.Header
	// gap: agents and switches refuse to be scraped. nameless: their names cannot be resolved.
	gap, nameless atomic.Bool
	// tamper changes the answers of one node. Nil means none.
	tamper atomic.Pointer[liar]

	mu   sync.Mutex
	sent []message
}

// replica is one of several analyzers that query the same Prometheus.
type replica struct {
	name, address string
	bin           string // directory of its program
	cmd           *exec.Cmd
	prometheus    string // its address; that of the chain if it is empty
}

// message is an alert as it came to the webhook. sort is its label graylink.
type message struct {
	at                                             time.Time
	receiver, status, name, element, sort, summary string
}

// ofFabric reports whether it is about the fabric, and not about Graylink itself.
func (m message) ofFabric() bool { return m.sort != "health" }

func (m message) String() string {
	return fmt.Sprintf("%s %s: %s %s: %s", m.receiver, m.status, m.name, m.element, m.summary)
}

// givenAddresses are those that freeAddress has returned, some of which nothing listens on yet.
var givenAddresses sync.Map

// freeAddress returns an address that nothing listens on. Its port is below those that the kernel gives to connections, since
// another program's connection may take one of those before it is listened on.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		if ln, err := net.Listen("tcp", address); err == nil {
			if err := ln.Close(); err != nil {
				t.Fatal(err)
			}
			if _, given := givenAddresses.LoadOrStore(address, true); !given {
				return address
			}
		}
	}
	t.Fatal("no port is free")
	return ""
}

// program finds a tool of a Debian package, which CI must have.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv("GRAYLINK_REQUIRE_ALL") == "1":
		t.Fatalf("needs %s (Debian package of that name)", name)
	default:
		t.Skipf("needs %s (Debian package of that name)", name)
	}
	return path
}

// newChain starts one. replace are pairs of what else is other in the files than operators have it.
func newChain(t *testing.T, name string, analyzers int, replace ...string) *chain {
	t.Helper()
	// Probes at half their usual rate leave two cores time for a server, two analyzers and all
	// else that an operator has on machines of their own.
	return newChainOn(t, name, "../../deploy/lab/demo.yaml", analyzers, []string{"--schedule.cadence=20ms"}, replace...)
}

// newChainOn starts one on a topology, whose coordinator has more flags.
func newChainOn(t *testing.T, name, file string, analyzers int, flags []string, replace ...string) *chain {
	t.Helper()
	prometheus := program(t, "prometheus")
	return newChainWith(t, name, file, analyzers, flags, func(c *chain, addresses []string) { c.startPrometheus(prometheus, addresses) }, replace...)
}

// startPrometheus starts one Prometheus, by the files that belong to the profile of the test.
func (c *chain) startPrometheus(program string, addresses []string) {
	c.t.Helper()
	file, replacer := "prometheus.yml", strings.NewReplacer(addresses...)
	if *alertProfile == "fleet" {
		file = "prometheus-fleet.yml"
		c.install("../../deploy/prometheus/aggregates-fleet.rules.yaml", "graylink/aggregates.rules.yaml", replacer)
		c.settings = "evidence: {profile: fleet, ports_scrape_interval: 15s}\n"
	}
	c.install("../../deploy/prometheus/"+file, "prometheus.yml", replacer)
	c.runPrometheus(program, "prometheus", c.prometheus)
}

// runPrometheus starts a Prometheus of a name at an address, and waits until it is ready.
func (c *chain) runPrometheus(program, name, address string) {
	c.t.Helper()
	c.run(name, exec.Command(program, "--config.file", c.file("prometheus.yml"), "--storage.tsdb.path", c.file("tsdb-"+name),
		"--web.listen-address", address, "--enable-feature=native-histograms"))
	c.wait(time.Minute, name+" is ready", func() bool {
		_, code := c.get("http://"+address+"/-/ready", nil)
		return code == http.StatusOK
	})
}

// newChainWith starts one whose series are kept by what store starts, at c.prometheus. The store gets pairs of what is
// other in the files than operators have it.
func newChainWith(t *testing.T, name, file string, analyzers int, flags []string, store func(c *chain, addresses []string), replace ...string) *chain {
	t.Helper()
	c := prepareChain(t, name, file, analyzers, flags)
	c.begin(store, replace...)
	return c
}

// prepareChain makes the fabric of a chain, and certificates. Nothing runs yet.
func prepareChain(t *testing.T, name, file string, analyzers int, flags []string) *chain {
	t.Helper()
	need(t)
	c := &chain{fleet: newFleet(t, name, file, append([]string{"--agent.heartbeat=1s", "--ask.clients=analyzer"}, flags...)...), prometheus: freeAddress(t), alertmanager: freeAddress(t)}
	for i := range analyzers {
		c.analyzers = append(c.analyzers, &replica{name: fmt.Sprintf("analyzer%d", i+1), address: freeAddress(t), bin: bin})
	}
	return c
}

// begin starts everything, and returns when all agents are connected. The series are kept by what store starts.
func (c *chain) begin(store func(c *chain, addresses []string), replace ...string) {
	t := c.t
	t.Helper()
	alertmanager := program(t, "prometheus-alertmanager")
	var quoted []string
	for _, r := range c.analyzers {
		quoted = append(quoted, strconv.Quote(r.address))
	}
	forward := c.l.HTTPProxy()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.nameless.Load() {
			http.Error(w, r.URL.Hostname()+": no such host", http.StatusBadGateway)
			return
		}
		if c.gap.Load() && strings.HasPrefix(r.URL.Path, "/metrics") {
			http.Error(w, "no scrapes at the moment", http.StatusServiceUnavailable)
			return
		}
		if l := c.tamper.Load(); l != nil && strings.HasPrefix(r.URL.Host, l.node+":") {
			l.ServeHTTP(w, r, forward)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	hook := httptest.NewServer(http.HandlerFunc(c.receive))
	t.Cleanup(hook.Close)

	c.startCoordinator()
	for _, n := range c.nodes() {
		c.agentOf(n)
	}
	var switches strings.Builder
	for _, sw := range c.l.Topology().Switches {
		c.run(sw.Name, c.switchCommand(sw.Name))
		fmt.Fprintf(&switches, "- {targets: [\"%s:9871\"], labels: {instance: %s}}\n", sw.Name, sw.Name)
	}
	c.connected(8)
	c.wait(30*time.Second, "the registry is whole", func() bool {
		_, code := c.get("http://"+c.web+"/api/v1/targets", nil)
		return code == http.StatusOK
	})

	addresses := append(replace, "127.0.0.1:9869", c.web, "127.0.0.1:9090", c.prometheus, "127.0.0.1:9093", c.alertmanager,
		`"127.0.0.1:9872"`, strings.Join(quoted, ", "), "http://127.0.0.1:9099", hook.URL)
	for _, job := range []string{"graylink-node-edges", "graylink-node-nics", "graylink-node-sums", "graylink-node", "graylink-switch"} {
		// Agents listen inside namespaces: that is the lab's, and not the operator's.
		addresses = append(addresses, "job_name: "+job+"\n", "job_name: "+job+"\n    proxy_url: "+proxy.URL+"\n")
	}
	replacer := strings.NewReplacer(addresses...)
	c.install("../../deploy/alertmanager/alertmanager.yml", "alertmanager.yml", replacer)
	rules, err := filepath.Glob("../../rules/*.rules.yaml")
	if err != nil || len(rules) == 0 {
		t.Fatal(rules, err)
	}
	for _, r := range rules {
		c.install(r, "graylink/"+filepath.Base(r), replacer)
	}
	c.write("graylink/switches.yml", switches.String())
	c.run("alertmanager", exec.Command(alertmanager, "--config.file", c.file("alertmanager.yml"), "--storage.path", c.file("alertmanager"),
		"--web.listen-address", c.alertmanager, "--cluster.listen-address="))
	store(c, addresses)

	c.issue("analyzer")
	for _, r := range c.analyzers {
		server := c.prometheus + c.server
		if r.prometheus != "" {
			server = r.prometheus
		}
		c.install("../../deploy/analyzer/analyzer.yml", r.config(), strings.NewReplacer("http://127.0.0.1:9090", "http://"+server, "127.0.0.1:9869", c.web,
			"agents:\n", "agents:\n  proxy_url: "+proxy.URL+"\n", "switches:\n", "switches:\n  proxy_url: "+proxy.URL+"\n"))
		b, err := os.ReadFile(c.file(r.config()))
		if err != nil {
			t.Fatal(err)
		}
		c.write(r.config(), string(b)+"\n"+c.settings+"jobs:\n  - {file: jobs.yaml}\nasking: {address: \"unix:"+c.file("agents.sock")+"\", ca_file: ca.crt, cert_file: analyzer.crt, key_file: analyzer.key}\n")
	}
	c.write("jobs.yaml", "jobs:\n  - {job: train1, nodes: [h3, h4, h7, h8]}\n")
	for _, r := range c.analyzers {
		c.analyze(r)
	}
	t.Cleanup(func() {
		for _, r := range c.analyzers {
			stop(t, r.cmd)
		}
	})
}

// config returns the name of its configuration file.
func (r *replica) config() string { return r.name + ".yml" }

// switchCommand returns the command of a switch's agent.
func (c *chain) switchCommand(name string) *exec.Cmd {
	return c.l.Command(c.t.Context(), name, filepath.Join(bin, "graylink-switch"), "--switch", name, "--ports.alias", "--lldp.send", "1s", "--web.listen-address", "127.0.0.1:9871")
}

// agentOf starts a node's agent, which faults of clocks reach, and which reads the records of jobs in a directory of its own.
func (c *chain) agentOf(node string) {
	c.t.Helper()
	dir := c.file(filepath.Join("collectives", node))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.t.Fatal(err)
	}
	c.startAgent(node, "--web.advertise-address="+node+":9868", "--clock-bend-file="+c.l.BendFile(node), "--collectives.dir="+dir)
}

// analyze starts an analyzer.
func (c *chain) analyze(r *replica) {
	c.t.Helper()
	r.cmd = c.start(exec.Command(filepath.Join(r.bin, "graylink-analyzer"), "--config.file", c.file(r.config()), "--web.enable-admin-api", "--web.listen-address", r.address), r.name)
}

func (c *chain) file(name string) string { return filepath.Join(c.dir, name) }

func (c *chain) write(name, text string) {
	c.t.Helper()
	if err := os.MkdirAll(filepath.Dir(c.file(name)), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(c.file(name), []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

func (c *chain) install(from, to string, addresses *strings.Replacer) {
	c.t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(to, addresses.Replace(string(b)))
}

// run starts a program that is stopped when the test ends.
func (c *chain) run(who string, cmd *exec.Cmd) {
	c.t.Helper()
	c.start(cmd, who)
	c.t.Cleanup(func() { stop(c.t, cmd) })
}

func (c *chain) receive(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Alerts []struct {
			Status              string
			Labels, Annotations map[string]string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range body.Alerts {
		c.sent = append(c.sent, message{time.Now(), strings.TrimPrefix(r.URL.Path, "/"), a.Status, a.Labels["alertname"], a.Labels["element"], a.Labels["graylink"], a.Annotations["summary"]})
	}
}

// messages returns the messages since a moment.
func (c *chain) messages(since time.Time) []message {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.sent, func(m message) bool { return m.at.After(since) })
	if i < 0 {
		return nil
	}
	return slices.Clone(c.sent[i:])
}

// ask queries an analyzer's API. It reports whether the analyzer answered.
func (c *chain) ask(r *replica, path string, answer any) bool {
	c.t.Helper()
	body, code := c.get("http://"+r.address+path, nil)
	if code != http.StatusOK {
		return false
	}
	if err := json.Unmarshal(body, answer); err != nil {
		c.t.Fatalf("%s of %s: %v in %s", path, r.name, err, body)
	}
	return true
}

// verdicts returns an analyzer's state and the incidents that it knows, newest first.
func (c *chain) verdicts(r *replica) (state fabric.State, incidents []incident.Incident) {
	c.t.Helper()
	var v struct {
		State    fabric.State
		Verdicts []incident.Incident
	}
	c.ask(r, "/api/v1/verdicts", &v)
	return v.State, v.Verdicts
}

// innocent reports whether all analyzers say so.
func (c *chain) innocent() bool {
	for _, r := range c.analyzers {
		if state, _ := c.verdicts(r); state != fabric.Innocent {
			return false
		}
	}
	return true
}

// everyPathTraced reports whether the agents have traced all probes of the schedule, by what the coordinator knows. The
// switches have an eBPF program at every port, which must not cost an answer.
func (c *chain) everyPathTraced() bool {
	s := c.coordinates()
	return s[`graylink_coordinator_edges{state="path_known"}`] == s[`graylink_coordinator_edges{state="all"}`]
}

// observations returns the last window of every flow.
func (c *chain) observations(r *replica) map[string]fabric.Observation {
	c.t.Helper()
	body, _ := c.get("http://"+r.address+"/api/v1/observations", nil)
	out := map[string]fabric.Observation{}
	for d := json.NewDecoder(bytes.NewReader(body)); d.More(); {
		var o fabric.Observation
		if err := d.Decode(&o); err != nil {
			c.t.Fatalf("observations: %v", err)
		}
		out[o.Edge] = o
	}
	return out
}

// cycles returns how many cycles of an analyzer had evidence, and how many had none or were missed.
func (c *chain) cycles(r *replica) (answered, missed float64) {
	body, _ := c.get("http://"+r.address+"/metrics", nil)
	s := readSeries(bytes.NewReader(body))
	return s[`graylink_analyzer_cycles_total{result="answered"}`], s[`graylink_analyzer_cycles_total{result="failed"}`] + s[`graylink_analyzer_cycles_total{result="skipped"}`]
}

// pass waits until every analyzer has had n more cycles with evidence, and calls each about
// twice a second.
func (c *chain) pass(n float64, each func()) {
	c.t.Helper()
	from := map[*replica]float64{}
	for _, r := range c.analyzers {
		from[r], _ = c.cycles(r)
	}
	c.wait(2*time.Minute, fmt.Sprintf("%v cycles of every analyzer", n), func() bool {
		if each != nil {
			each()
		}
		for _, r := range c.analyzers {
			if now, _ := c.cycles(r); now < from[r]+n {
				return false
			}
		}
		return true
	})
}

// send sends a request to an analyzer, and returns the answer.
func (c *chain) send(method string, r *replica, path, body string, want int) []byte {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+r.address+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		c.t.Fatalf("%s %s of %s: %s, %v: %s", method, path, r.name, resp.Status, err, b)
	}
	return b
}

// alerting returns the alerts about the fabric that Alertmanager holds, including inhibited ones.
func (c *chain) alerting() (out []string) {
	c.t.Helper()
	body, code := c.get("http://"+c.alertmanager+"/api/v2/alerts", nil)
	if code != http.StatusOK {
		c.t.Fatalf("Alertmanager's alerts: %d: %s", code, body)
	}
	var alerts []struct{ Labels map[string]string }
	if err := json.Unmarshal(body, &alerts); err != nil {
		c.t.Fatal(err)
	}
	for _, a := range alerts {
		if a.Labels["graylink"] != "health" {
			out = append(out, fmt.Sprint(a.Labels))
		}
	}
	return out
}

// api queries Prometheus.
func (c *chain) api(path string, answer any) {
	c.t.Helper()
	c.getJSON("http://"+c.prometheus+path, answer)
}

// getJSON reads an answer in JSON.
func (c *chain) getJSON(url string, answer any) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header = c.header.Clone()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		c.t.Fatalf("%s: %v", url, err)
	}
}

// instant queries Prometheus, and returns the values of the series of an expression.
func (c *chain) instant(expr string) (values []float64, err error) {
	var v struct {
		Error string
		Data  struct{ Result []struct{ Value [2]any } }
	}
	c.api("/api/v1/query?query="+url.QueryEscape(expr), &v)
	if v.Error != "" {
		return nil, errors.New(v.Error)
	}
	for _, r := range v.Data.Result {
		text, _ := r.Value[1].(string)
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			x = math.NaN() // a histogram
		}
		values = append(values, x)
	}
	return values, nil
}

// query returns the number of series of an expression in Prometheus.
func (c *chain) query(expr string) (series int, err error) {
	v, err := c.instant(expr)
	return len(v), err
}

// value returns the value of an expression of one series in Prometheus.
func (c *chain) value(expr string) (float64, error) {
	v, err := c.instant(expr)
	if err == nil && len(v) != 1 {
		err = fmt.Errorf("%d series", len(v))
	}
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

// sound asserts that Prometheus reaches every target and evaluates every rule.
func (c *chain) sound() {
	c.t.Helper()
	var targets struct {
		Data struct {
			ActiveTargets []struct {
				ScrapePool, ScrapeURL, Health, LastError string
			}
		}
	}
	c.api("/api/v1/targets?state=active", &targets)
	jobs := map[string]int{}
	for _, x := range targets.Data.ActiveTargets {
		jobs[x.ScrapePool]++
		if x.Health != "up" {
			c.t.Errorf("target %s of job %s: %s %s", x.ScrapeURL, x.ScrapePool, x.Health, x.LastError)
		}
	}
	for job, want := range map[string]int{"graylink-node": 8, "graylink-node-edges": 8, "graylink-node-nics": 8, "graylink-switch": 6, "graylink-analyzer": len(c.analyzers), "graylink-coordinator": 1, "prometheus": 1} {
		if jobs[job] != want {
			c.t.Errorf("job %s has %d targets, want %d", job, jobs[job], want)
		}
	}
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	c.api("/api/v1/rules", &rules)
	n := 0
	for _, g := range rules.Data.Groups {
		for _, r := range g.Rules {
			if n++; r.Health == "err" || r.LastError != "" {
				c.t.Errorf("rule %s: %s", r.Name, r.LastError)
			}
		}
	}
	if n < 40 {
		c.t.Errorf("%d rules are evaluated", n)
	}
}

// mayBeEmpty are panels that show what not every fault brings about.
var mayBeEmpty = map[string]string{
	"Cause":               "not every fault has a cause that ports show",
	"Ports that are down": "a link that is slow or drops everything is up",
	// TestPanelsOfHardware has these.
	"Findings":                                       "NICs of the lab are well",
	"Rate relative to the expected rate":             "veth has no expected rate",
	"Links that went down":                           "veth is no RDMA device",
	"Damaged on the link":                            "veth is no RDMA device",
	"Resent or given up":                             "veth is no RDMA device",
	"Congestion as the NIC sees it":                  "veth is no RDMA device",
	"Waiting to send":                                "veth is no RDMA device",
	"Discarded before sending":                       "veth is no RDMA device",
	"Pause frames":                                   "veth has no pause frames",
	"Blocks that FEC corrected or could not correct": "veth has no FEC",
	"Light received":                                 "veth has no module",
	"Temperature of modules":                         "veth has no module",
	"Alarms and warnings of modules":                 "veth has no module",
	"PCI errors":                                     "veth is no PCI function",
	"PCI link relative to its maximum":               "veth is no PCI function",
	"Events in the kernel log":                       "the kernel logs nothing about veth",
	// TestPanelsOfCollectives has these.
	"Nodes with records":              "the chain's analyzers follow no collectives",
	"Nodes that do not answer":        "the chain's analyzers follow no collectives",
	"What jobs wait for":              "the chain's analyzers follow no collectives",
	"Ranks that came late most often": "the chain's analyzers follow no collectives",
	"Transfer: mean":                  "the chain's analyzers follow no collectives",
	"Waiting: mean":                   "the chain's analyzers follow no collectives",
	"Records read":                    "the chain's analyzers follow no collectives",
	"Records missing or changed":      "the chain's analyzers follow no collectives",
	// TestPanelsOfSignals has these.
	"Profiles in use":                       "nothing in the chain has in-band signals",
	"Tags that are not used":                "nothing in the chain has in-band signals",
	"Available share of the bottleneck":     "nothing in the chain has in-band signals",
	"Available bandwidth of the bottleneck": "nothing in the chain has in-band signals",
	"Largest delay of a hop":                "nothing in the chain has in-band signals",
	"Bottleneck ports":                      "nothing in the chain has in-band signals",
	"Paths that lose tagged packets":        "nothing in the chain has in-band signals",
	"Profiles":                              "nothing in the chain has in-band signals",
	"Tags that are not used, by reason":     "nothing in the chain has in-band signals",
	// TestPanelsOfSwitches has these.
	"Paused by the far end":              "switches of the lab are Linux",
	"Time paused":                        "switches of the lab are Linux",
	"Waiting for credits":                "switches of the lab are Linux",
	"Marked with congestion":             "switches of the lab are Linux",
	"Largest queue depth":                "switches of the lab are Linux",
	"Bit error rate":                     "switches of the lab are Linux",
	"Blocks that could not be corrected": "switches of the lab are Linux",
}

// dashboards queries Prometheus for the panels of all dashboards.
func (c *chain) dashboards() {
	c.t.Helper()
	waiting := map[string]string{} // expressions by panel
	n := 0
	for name, d := range dashboards.All() {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				// Series per flow of once a minute are for spans of hours.
				seldom := *alertProfile == "fleet" && strings.Contains(target.Expr, "fabric_probe_")
				if mayBeEmpty[p.Title] == "" && !seldom {
					waiting[fmt.Sprintf("%s: %s (%s)", name, p.Title, target.RefID)] = dashboards.FillVariables(target.Expr)
				}
				n++
			}
		}
		for _, v := range d.Templating.List {
			if v.Type == "query" {
				waiting[name+": variable "+v.Name] = dashboards.FillVariables(dashboards.SeriesExpr(v))
			}
		}
	}
	// Rules of a minute's interval have had their first turn after that.
	for end := time.Now().Add(75 * time.Second); len(waiting) > 0 && time.Now().Before(end); time.Sleep(time.Second) {
		for where, expr := range waiting {
			series, err := c.query(expr)
			if err != nil {
				c.t.Fatalf("%s: %s: %v", where, expr, err)
			}
			if series > 0 {
				delete(waiting, where)
			}
		}
	}
	for where, expr := range waiting {
		c.t.Errorf("dashboard %s shows nothing: %s", where, expr)
	}
	c.t.Logf("%d queries of dashboards asked, %d without an answer", n, len(waiting))
	c.sound()
}
