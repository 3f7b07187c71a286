//go:build scale

package scale

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	_ "net/http/pprof"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/clos"
	"github.com/graylink/graylink/internal/sizing"
)

var (
	pods    = flag.Int("scale.pods", 4, "pods in each of four planes; a pod has 4,096 NICs in all planes")
	profile = flag.String("scale.pprof", "", "address at which the analyzer's process can be profiled")
	second  = flag.Duration("scale.second", 5*time.Second, "how long a second of the fleet takes")
	newer   = flag.String("scale.prometheus", "", "a Prometheus program of version 3.9 or later, in place of version 2 of the path")
)

// TestMain runs the simulated fleet as a process of its own, if it is the child that newSite starts.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv("GRAYLINK_SCALE_FLEET") == "" {
		if *profile != "" {
			go http.ListenAndServe(*profile, nil)
		}
		os.Exit(m.Run())
	}
	f, err := newFleet()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	agents := f.Handler(ln.Addr().String())
	fmt.Println(ln.Addr())
	http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/faults":
			var faults []Fault
			if err := json.NewDecoder(r.Body).Decode(&faults); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			f.SetFaults(faults...)
		case "/served":
			fmt.Fprint(w, f)
		default:
			agents.ServeHTTP(w, r)
		}
	}))
}

func newFleet() (*Fleet, error) {
	return NewFleet(Options{Second: *second, Topology: clos.NewTopology(clos.Options{Tiers: 3, Planes: 4, Pods: *pods, LeavesPerPod: 32, SpinesPerPod: 32, CoresPerRow: 8, NICsPerLeaf: 32, NICsPerNode: 8, RailOptimised: true})})
}

// site is a Prometheus server and an analyzer's loop beside a simulated fleet. The loop is that of graylink-analyzer, which
// refuses seconds of another length.
type site struct {
	t                 *testing.T
	dir, agents, base string
	truth             *Fleet // of the same faults as the process that answers
	pids              map[string]int
	loop              *analyzer.Loop
	stop              func()
	cycles            []float64 // durations in seconds since they were last taken
	waited            map[string]time.Duration
	mu                sync.Mutex // guards waited
}

func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func (s *site) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// ofOtherMachines returns the command of a program that has processors of its own at a site. Here it gets what the analyzer
// leaves of two.
func ofOtherMachines(program string, args ...string) *exec.Cmd {
	return exec.Command("nice", append([]string{"-n", "10", program}, args...)...)
}

// start starts a process that ends with the test.
func (s *site) start(name string, cmd *exec.Cmd) {
	s.t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.pids[name] = cmd.Process.Pid
	s.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text := log.String(); s.t.Failed() {
			s.t.Logf("%s said:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
}

func newSite(t *testing.T) *site {
	s := &site{t: t, dir: t.TempDir(), pids: map[string]int{"analyzer": os.Getpid()}, waited: map[string]time.Duration{}}
	fleet := ofOtherMachines(os.Args[0], os.Args[1:]...)
	fleet.Env = append(os.Environ(), "GRAYLINK_SCALE_FLEET=1")
	out, err := fleet.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.start("fleet", fleet)
	if s.agents, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	s.agents = strings.TrimSpace(s.agents)
	began := time.Now()
	if s.truth, err = newFleet(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes, %d NICs, %d directed flows after %.1f s; a second takes %v", len(s.truth.nodes), len(s.truth.graph.NICIDs()), s.truth.DirectedFlows(), time.Since(began).Seconds(), *second)
	text, err := os.ReadFile("../../deploy/prometheus/aggregates-fleet.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := s.file("aggregates.rules.yaml", stretched(string(text)))
	job := func(name, path string, every time.Duration) string {
		return fmt.Sprintf(`  - job_name: %s
    scrape_interval: %v
    scrape_timeout: %v
    http_sd_configs: [{url: "http://%s/targets"}]
    relabel_configs:
      - {source_labels: [node], target_label: instance}
      - {source_labels: [node], target_label: __metrics_path__, replacement: "/$1%s"}
      - {regex: node, action: labeldrop}
`, name, every, every, s.agents, path)
	}
	program, histograms, feature := "prometheus", "", "--enable-feature=native-histograms"
	if *newer != "" {
		program, histograms, feature = *newer, ", scrape_native_histograms: true", "--enable-feature="
	}
	config := s.file("prometheus.yml", fmt.Sprintf("global: {evaluation_interval: %v%s}\nrule_files: [%s]\nscrape_configs:\n", 30**second, histograms, rules)+job("graylink-node-nics", "/metrics/nics", *second)+job("graylink-node-sums", "/metrics/sums", 30**second)+job("graylink-node", "/metrics", 15**second))
	address := freeAddress(t)
	s.base = "http://" + address
	s.start("prometheus", ofOtherMachines(program, "--config.file", config, "--storage.tsdb.path", filepath.Join(s.dir, "tsdb"), "--web.listen-address", address, feature, "--log.level=warn"))
	for began := time.Now(); ; time.Sleep(time.Second) { // until it has scraped all of them
		served := s.served()
		var scrapes int
		if _, err := fmt.Sscan(served, &scrapes); err == nil && scrapes >= 3*len(s.truth.nodes) {
			break
		}
		if time.Since(began) > 5*time.Minute {
			t.Fatal(served)
		}
	}
	s.startLoop()
	t.Cleanup(func() { s.stop() })
	return s
}

var ruleTimes = regexp.MustCompile(`(interval: |\[)(\d+[smh])`)

// stretched returns rules whose intervals and ranges are of the fleet's time.
func stretched(rules string) string {
	return ruleTimes.ReplaceAllStringFunc(rules, func(found string) string {
		m := ruleTimes.FindStringSubmatch(found)
		d, err := time.ParseDuration(m[2])
		if err != nil {
			return found
		}
		return fmt.Sprintf("%s%ds", m[1], int((d * (*second / time.Millisecond) / 1000).Seconds()))
	})
}

// startLoop starts an analyzer's loop that knows nothing.
func (s *site) startLoop() {
	s.t.Helper()
	db, err := evidence.NewHTTP(evidence.HTTPOptions{URL: s.base, Client: config_util.DefaultHTTPClientConfig, Timeout: 5 * *second, MaxBytes: 256 << 20})
	if err != nil {
		s.t.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	client := &http.Client{Transport: transport}
	url := func(node string) string { return "http://" + s.agents + "/" + node }
	o := analyzer.LoopOptions{Graph: s.truth.graph, DB: db, Settings: evidence.SettingsFor(*second), Agents: tracing.HTTPAgents{Client: client, URL: url}, TwoSteps: selection.DefaultOptions(),
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	o.Settings.Parallel = 4
	o.TwoSteps.Round = time.Duration(s.truth.DirectedFlows()) * *second / 1000 // as by default, of its seconds
	o.Settings.Windows = &evidence.AgentWindows{Client: client, URL: url, Timeout: *second}
	o.Settings.Observe = func(query string, took time.Duration, _ error) {
		s.mu.Lock()
		s.waited[query] += took
		s.mu.Unlock()
	}
	s.loop = analyzer.NewLoop(o)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.loop.Run(ctx, *second) })
	s.stop = func() { cancel(); wg.Wait(); db.Close() }
}

// setFaults replaces the faults, and returns the moment.
func (s *site) setFaults(faults ...Fault) time.Time {
	s.t.Helper()
	text, err := json.Marshal(faults)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.Post("http://"+s.agents+"/faults", "application/json", bytes.NewReader(text))
	if err != nil {
		s.t.Fatal(err)
	}
	resp.Body.Close()
	return time.Now()
}

// served says how much the fleet answered.
func (s *site) served() string {
	resp, err := http.Get("http://" + s.agents + "/served")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// open returns the elements of the open verdicts.
func open(s snapshot.Snapshot) (out []string) {
	for i := range s.Incidents {
		if s.Incidents[i].Open {
			out = append(out, s.Incidents[i].Element.ID)
		}
	}
	slices.Sort(out)
	return out
}

// until polls until a condition holds, and returns how long that took.
func (s *site) until(limit time.Duration, what string, ok func(snapshot.Snapshot) bool) time.Duration {
	s.t.Helper()
	began, cycle := time.Now(), s.loop.CycleCounts().Cycles
	waitedFrom := cycle
	for shown := began; ; time.Sleep(20 * time.Millisecond) {
		last, counts := s.loop.Snapshot(), s.loop.CycleCounts()
		if counts.Cycles != cycle {
			cycle = counts.Cycles
			s.cycles = append(s.cycles, counts.Last.Seconds())
			if ok(last) {
				return time.Since(began)
			}
		}
		describe := func() string {
			return fmt.Sprintf("%.0f s: %s, coverage %+v, %+v, paths %v, %+v, open %q, warnings %q, %+v", time.Since(began).Seconds(), last.Report.State, last.Report.Coverage, last.Report.Edges, last.Paths, last.Queries, open(last), last.Warnings, counts)
		}
		if time.Since(shown) > 20*time.Second {
			shown = time.Now()
			s.t.Logf("%s: %s; %s", what, describe(), s.waits(cycle-waitedFrom))
			waitedFrom = cycle
		}
		if time.Since(began) > limit {
			s.t.Fatalf("%s: not within %v: %s", what, limit, describe())
		}
	}
}

// processor returns the CPU seconds of a process, from /proc/PID/stat (proc(5): fields 14 and 15, in hundredths).
func (s *site) processor(name string) float64 {
	out, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pids[name]))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(out), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return float64(user+system) / 100
}

// waits says how long the analyzer waited for each query in so many cycles, and forgets it.
func (s *site) waits(cycles uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var waited []string
	for _, q := range slices.SortedFunc(maps.Keys(s.waited), func(a, b string) int { return cmp.Compare(s.waited[b], s.waited[a]) }) {
		waited = append(waited, fmt.Sprintf("%s %.0f", q, s.waited[q].Seconds()*1e3/float64(max(1, cycles))))
	}
	clear(s.waited)
	return "milliseconds a cycle by query: " + strings.Join(waited, ", ")
}

// measure runs for so many cycles, and logs how long they took.
func (s *site) measure(what string, cycles int) {
	s.t.Helper()
	s.cycles = nil
	before := map[string]float64{}
	for name := range s.pids {
		before[name] = s.processor(name)
	}
	s.mu.Lock()
	clear(s.waited)
	s.mu.Unlock()
	began := time.Now()
	s.until(time.Duration(10*cycles)**second, what, func(snapshot.Snapshot) bool { return len(s.cycles) > cycles })
	all := slices.Sorted(slices.Values(s.cycles[1:]))
	used := map[string]string{}
	for name := range s.pids {
		used[name] = fmt.Sprintf("%.2f", (s.processor(name)-before[name])/float64(cycles))
	}
	s.t.Logf("%s: %s", what, s.waits(uint64(cycles)))
	a := s.loop.Snapshot()
	s.t.Logf("%s: %d cycles of %.2f s at the median, at most %.2f s; processor seconds a cycle %v (in %.1f s a cycle); %+v; open %q; warnings %q", what, cycles, all[len(all)/2], all[len(all)-1], used, time.Since(began).Seconds()/float64(cycles), a.Queries, open(a), a.Warnings)
}

// fetch reads a JSON answer of Prometheus.
func (s *site) fetch(path string, into any) {
	s.t.Helper()
	resp, err := http.Get(s.base + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		s.t.Fatalf("%s: %v", path, err)
	}
}

// compareSizes compares the series that Prometheus has of two jobs with what graylink size predicts. 2 % are allowed.
func (s *site) compareSizes() {
	s.t.Helper()
	sh := s.truth.shape
	sums, _ := sizing.SeriesOfSums(sh.NICSums + sh.LeafPairs)
	for job, want := range map[string]float64{sizing.JobNICs: sizing.SeriesOfNICs(sh.Nodes, sh.NICs), sizing.JobSums: sums} {
		var answer struct {
			Data struct{ Result []struct{ Value [2]any } }
		}
		s.fetch("/api/v1/query?query="+url.QueryEscape(`sum(scrape_samples_post_metric_relabeling{job="`+job+`"})`), &answer)
		if len(answer.Data.Result) != 1 {
			s.t.Errorf("%s: no samples", job)
			continue
		}
		got, _ := strconv.ParseFloat(answer.Data.Result[0].Value[1].(string), 64)
		s.t.Logf("%s: %.0f series, %.0f are predicted", job, got, want)
		if math.Abs(got/want-1) > 0.02 {
			s.t.Errorf("%s: %.0f series, and %.0f are predicted", job, got, want)
		}
	}
}

// logRules logs how long the groups of rules took the last time, in seconds per second of the fleet.
func (s *site) logRules() {
	s.t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Name           string
				Interval       float64 // seconds
				EvaluationTime float64
			}
		}
	}
	s.fetch("/api/v1/rules", &answer)
	all := 0.0
	for _, g := range answer.Data.Groups {
		per := g.EvaluationTime / (g.Interval / second.Seconds())
		all += per
		s.t.Logf("rules of %s: %.2f s every %.0f s of the fleet", g.Name, g.EvaluationTime, g.Interval/second.Seconds())
	}
	s.t.Logf("rules: %.3f s in a second of the fleet", all)
}

// faultCase is a fault, and the element that explains it. Without one, a degraded flow is enough.
type faultCase struct {
	name, want string
	fault      Fault
}

// isNamed reports whether there is a verdict on the element.
func (c *faultCase) isNamed(a snapshot.Snapshot) bool {
	if c.want == "" {
		return a.Report.Edges.Degraded > 0
	}
	return slices.Contains(open(a), c.want)
}

// allClear reports whether no verdict is open and no flow is degraded.
func allClear(a snapshot.Snapshot) bool { return len(open(a)) == 0 && a.Report.Edges.Degraded == 0 }

func faultCases(f *Fleet) []faultCase {
	link := fabric.Direction{From: "a-p1-leaf3:up2", To: ""}
	link.To = f.graph.PeerOf(link.From)
	one := f.flows[12345].id
	spine := "b-p2-spine5"
	nic := f.graph.NICIDs()[777]
	return []faultCase{
		{"delay of a link", link.LinkID(), Fault{Links: []fabric.Direction{link}, DelayNS: 50e3}},
		{"loss of a link", link.LinkID(), Fault{Links: []fabric.Direction{link}, Loss: 0.05}},
		{"a dead link", link.LinkID(), Fault{Links: []fabric.Direction{link, link.Reverse()}, Loss: 1}},
		{"a slow spine", spine, Fault{Switches: []string{spine}, DelayNS: 50e3}},
		{"a NIC that loses", nic, Fault{Links: []fabric.Direction{{From: nic, To: f.graph.PeerOf(nic)}}, Loss: 0.1}},
		{"one bad flow", "", Fault{Flows: []fabric.Flow{one}, DelayNS: 2e6}},
	}
}

// twentyFaults returns delays of twenty links, and the links.
func twentyFaults(f *Fleet) (faults []Fault, links []string) {
	for i := range 20 {
		d := fabric.Direction{From: fmt.Sprintf("%c-p%d-leaf%d:up%d", "abcd"[i%4], 1+i%*pods, 1+i, 1+i)}
		d.To = f.graph.PeerOf(d.From)
		faults = append(faults, Fault{Links: []fabric.Direction{d}, DelayNS: 50e3})
		links = append(links, d.LinkID())
	}
	slices.Sort(links)
	return faults, links
}

// TestFleet runs an analyzer of profile fleet and a real Prometheus beside 2,048 simulated nodes.
func TestFleet(t *testing.T) {
	s := newSite(t)
	began := time.Now()
	s.until(30*time.Minute, "the network is innocent", func(a snapshot.Snapshot) bool { return a.Report.State == fabric.Innocent })
	t.Logf("innocent after %.0f s; %v", time.Since(began).Seconds(), s.served())
	s.measure("calm", 20)
	s.compareSizes()
	s.logRules()
	for _, c := range faultCases(s.truth) {
		at := s.setFaults(c.fault)
		s.until(60**second, c.name, c.isNamed)
		took := time.Since(at)
		t.Logf("%s over %d flows: %.1f s after it, %.1f of its seconds", c.name, s.truth.FlowsOver(c.fault), took.Seconds(), took.Seconds()/second.Seconds())
		s.measure(c.name, 5)
		if got := open(s.loop.Snapshot()); c.want != "" && !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: open %q, want %q", c.name, got, c.want)
		}
		s.setFaults()
		s.until(100**second, "all clear after "+c.name, allClear)
	}
	twenty, want := twentyFaults(s.truth)
	at := s.setFaults(twenty...)
	s.until(100**second, "twenty faults", func(a snapshot.Snapshot) bool {
		return slices.Equal(open(a), want)
	})
	t.Logf("twenty faults: %.1f s, %.1f of its seconds", time.Since(at).Seconds(), time.Since(at).Seconds()/second.Seconds())
	s.measure("twenty faults", 10)

	// The analyzer is started again while they last.
	s.stop()
	again := time.Now()
	s.startLoop()
	s.until(200**second, "twenty faults after a restart", func(a snapshot.Snapshot) bool {
		return slices.Equal(open(a), want)
	})
	t.Logf("after a restart: %.1f s, %.1f of its seconds", time.Since(again).Seconds(), time.Since(again).Seconds()/second.Seconds())
	t.Log(s.served())
}
