// Package demo joins a fabric and the analyzer: a real fabric of namespaces on this
// machine or a simulated one, agents in it, a coordinator for their clocks, an
// embedded Prometheus, the analyzer and its page; then it breaks something and
// waits for the verdict. What comes after the agents does not know which fabric
// it is (site.go).
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/attribute"
	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/evidence/promserver"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/cmd/graylink/labsignals"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/webaccess"
	"github.com/graylink/graylink/internal/webserver"
)

// agentPort is where agents listen inside their own namespaces.
const agentPort = "9868"

// Patience of the demo with its own parts.
const (
	agentsTimeout    = 30 * time.Second
	clockLockTimeout = 60 * time.Second
	baselinesTimeout = 90 * time.Second
	verdictTimeout   = 45 * time.Second
	clearTimeout     = 90 * time.Second
	// dwell keeps a fault after its verdict, so that a later, wrong verdict shows.
	dwell = 3 * time.Second
)

// Kinds of fabrics, as --fabric has them.
const (
	// Namespaces is a real fabric of network namespaces.
	Namespaces = "netns"
	// Simulated is a fabric in this process.
	Simulated = "sim"
	// InfiniBand is a subnet that OpenSM routes on ibsim, with simulated packets.
	InfiniBand = "ib"
)

// Options configure a demo.
type Options struct {
	Name     string
	Topology *fabric.Topology
	// Fabric is the kind of the fabric: Namespaces, Simulated or InfiniBand. The topology of InfiniBand is read from the
	// subnet.
	Fabric string
	// Routing is one of lab.RoutingKinds, and says who routes between switches of namespaces. Empty means lab.RoutingStatic.
	Routing string
	// Adaptive makes switches choose for each packet between all shortest ways, on InfiniBand.
	Adaptive bool
	// OpenSMConfig are lines of OpenSM's configuration file, on InfiniBand.
	OpenSMConfig string
	Listen       string
	Flows        int
	// Cadence is the time between two probes of a pair of NICs; 0: 10 ms.
	Cadence time.Duration
	NodeBin string
	// TraceOnly: paths come from traces alone. Else every switch but those of
	// Agentless has an agent, SwitchBin of a real fabric.
	TraceOnly bool
	SwitchBin string
	Agentless []string
	// Executable is the graylink that faults' helpers are started from; the running
	// program when empty.
	Executable string
	// NoTraces: paths come from what the switches see alone.
	NoTraces bool
	// AllowedHosts are further names by which browsers may reach the page.
	AllowedHosts []string
	// BendClocks makes every agent's clock wrong, by seconds and by millionths;
	// Seed chooses how.
	BendClocks bool
	Seed       uint64
	// Job runs a job on the fabric, which the analyzer follows. It needs namespaces.
	Job bool
	// Signals adds flows whose probes carry in-band signals (CSIG), which every port updates.
	Signals bool
	// SignalsOf say what switches of a lab do with them, besides the profile: for tests.
	SignalsOf labsignals.Options
	Progress  io.Writer // what is being done
	Log       *slog.Logger
	AgentLogs io.Writer
}

// Demo is a running fabric with agents and an analyzer.
type Demo struct {
	o    Options
	site site
	g    *fabric.Graph
	mesh Mesh
	dir  string
	db   *promserver.Server
	loop *analyzer.Loop
	// coordinator relates the agents' clocks.
	coordinator  *embeddedCoordinator
	job          *runningJob    // nil without a job
	switchAgents []string       // switches that run graylink-switch
	background   sync.WaitGroup // the loop, the page
	stop         context.CancelFunc
	start        time.Time
	url          string
	pageAddress  string // address of the page
	// coverage is that of the whole fabric, measured when nothing was broken.
	coverage float64
}

// Outcome is one fault's result, as the contract prints it.
type Outcome struct {
	Fabric           string          `json:"fabric"` // as --fabric
	Fault            FaultJSON       `json:"fault"`
	Seed             uint64          `json:"seed"`
	Verdict          *fabric.Verdict `json:"verdict"`
	SecondsToVerdict *float64        `json:"seconds_to_verdict"`
	SecondsToClear   *float64        `json:"seconds_to_clear"`
	ElementMatch     bool            `json:"element_match"`
	// EquivalentMatch reports whether the fault's element is the named one or listed as one that the evidence cannot
	// distinguish from it.
	EquivalentMatch bool `json:"equivalent_match"`
	DirectionMatch  bool `json:"direction_match"`
	ScenarioMatch   bool `json:"scenario_match"`
	// CauseMatch reports whether the verdict has the fault's cause. It is nil for a fault without one.
	CauseMatch    *bool            `json:"cause_match,omitempty"`
	FalseVerdicts []fabric.Verdict `json:"false_verdicts"`
	Job           *JobOutcome      `json:"job,omitempty"` // nil without a job
}

// FaultJSON is the fault as it was injected.
type FaultJSON struct {
	Kind      string         `json:"kind"`
	Element   string         `json:"element,omitempty"`
	Direction string         `json:"direction,omitempty"`
	Params    map[string]any `json:"params"`
}

// IsCorrect reports whether the outcome is what it should be: the right element is named, or rightly none, and nothing
// besides.
func (o Outcome) IsCorrect() bool {
	return o.ElementMatch && len(o.FalseVerdicts) == 0 && o.Job.IsCorrect()
}

func (d *Demo) printProgress(format string, args ...any) {
	fmt.Fprintf(d.o.Progress, "[%5.1fs] %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

// Start builds the fabric, starts agents and analyzer and waits until the
// baselines are learnt. Close must be called also when it fails.
func Start(ctx context.Context, o Options) (*Demo, error) {
	d := &Demo{o: o, start: time.Now()}
	if d.o.Log == nil {
		d.o.Log = slog.New(slog.DiscardHandler)
	}
	// The page's port is taken first: finding it in use costs nothing yet.
	ln, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return d, fmt.Errorf("the page cannot listen on %s: %w; choose another with --web.listen-address", o.Listen, err)
	}
	d.url = "http://" + ln.Addr().String() + "/"
	run, stop := context.WithCancel(context.Background())
	d.stop = stop
	err = d.startComponents(ctx, run, ln)
	if d.loop == nil { // nothing serves on it yet
		ln.Close()
	}
	return d, err
}

func (d *Demo) startComponents(ctx, run context.Context, ln net.Listener) error {
	if err := d.buildFabric(ctx); err != nil {
		return err
	}
	d.g = fabric.NewGraph(d.site.Topology())
	d.mesh = PlanMesh(d.g, d.o.Flows)
	if d.o.Signals {
		d.mesh.Signals, d.mesh.PairCadence = true, 2*pairCadence // as many packets as without them
	}
	if d.o.Cadence > 0 {
		d.mesh.PairCadence = d.o.Cadence
	}
	if d.mesh.DirectedFlows() == 0 {
		return errors.New("the topology has no edge to probe: no two NICs of different nodes in one plane are connected")
	}
	err := d.mesh.chooseWays(d.g)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if d.dir, err = os.MkdirTemp("", "graylink-demo-"); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if l := d.Lab(); l != nil {
		if err := l.OwnDirectory(ctx, d.dir); err != nil {
			return err
		}
	}
	if d.coordinator, err = startCoordinator(ctx, d.site.Topology(), d.o, d.dir); err != nil {
		return err
	}
	d.site.setCoordinator(d.coordinator)
	if err := d.startSignals(); err != nil {
		return err
	}
	if err := d.startAgents(ctx); err != nil {
		return err
	}
	if err := d.startJob(run); err != nil {
		return err
	}
	turns := ""
	if d.mesh.Flows > 1 {
		turns = fmt.Sprintf(", by %d flows in turn", d.mesh.Flows)
	}
	if n := len(d.switchAgents); n > 0 {
		d.printProgress("%d of %d switches report which probes cross them by which ports", n, len(d.site.Topology().Switches))
	}
	d.printProgress("%d agents probe %d directed flows: every pair of NICs every %s%s; %s",
		len(d.site.Topology().Nodes), d.mesh.DirectedFlows(), d.mesh.PairCadence, turns, d.site.describeMeasurement())
	if err := d.awaitLockedClocks(ctx); err != nil {
		return err
	}
	if err := d.startAnalyzer(run, ln); err != nil {
		return err
	}
	d.printProgress("the page is at %s", d.url)
	return d.awaitBaselines(ctx)
}

// buildFabric makes the fabric.
func (d *Demo) buildFabric(ctx context.Context) (err error) {
	size := func(t *fabric.Topology) string {
		return fmt.Sprintf("%d switches, %d nodes, %d links", len(t.Switches), len(t.Nodes), len(t.Links))
	}
	var s site
	switch d.o.Fabric {
	case Simulated:
		d.printProgress("the fabric is SIMULATED: %s in this process, none of it on a wire", size(d.o.Topology))
		s, err = newSimulated(d.o)
	case InfiniBand:
		d.printProgress("starting OpenSM on ibsim, which is in the place of the hardware of a subnet")
		d.o.NoTraces, d.o.TraceOnly, d.o.Flows = true, true, 1
		s, err = newSubnet(ctx, d.o)
		if err == nil {
			d.printProgress("the subnet is up: %s", size(s.Topology()))
		}
	default:
		routed := ""
		if d.o.Routing == lab.RoutingFRR {
			routed = ", routed by FRR on every switch"
		}
		d.printProgress("building the fabric: %s as network namespaces%s", size(d.o.Topology), routed)
		s, err = newNamespaces(ctx, d.o)
	}
	if err == nil {
		d.site = s
	}
	return err
}

// startSignals makes all ports of the fabric update in-band signals, by a profile of its own.
func (d *Demo) startSignals() error {
	if !d.o.Signals {
		return nil
	}
	file, s, err := writeProfile(d.dir, d.g)
	if err != nil {
		return err
	}
	if err := d.site.useSignals(file, s); err != nil {
		return err
	}
	d.printProgress("every egress port updates in-band signals, by the profile with hash %s; as many flows more carry them", s.Profile.Hash())
	return nil
}

// startAgents starts every node's agent and waits until each answers.
func (d *Demo) startAgents(ctx context.Context) error {
	nodes := d.site.Topology().Nodes
	var bends map[string]bend
	if d.o.BendClocks {
		bends = bendClocks(nodes, d.o.Name, d.o.Seed)
		d.printProgress("every host's clock is wrong on purpose: %s", describeBends(nodes, bends))
	}
	for i := range nodes {
		n := &nodes[i]
		cfg, err := NodeConfig(d.g, d.mesh, n)
		if err != nil {
			return err
		}
		file := filepath.Join(d.dir, nodeFile(n.Name)+".yaml")
		if err := os.WriteFile(file, cfg, 0o600); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		if err := d.site.startNode(n.Name, file, bends[n.Name], d.collectivesDir(n.Name)); err != nil {
			return err
		}
	}
	if err := d.startSwitchAgents(); err != nil {
		return err
	}
	urls := make([]string, len(nodes))
	for i := range nodes {
		urls[i] = AgentURL(nodes[i].Name)
	}
	for _, sw := range d.switchAgents {
		urls = append(urls, SwitchURL(sw))
	}
	client := httpClient(d.site.dialAgent)
	deadline := time.Now().Add(agentsTimeout)
	for _, url := range urls {
		for {
			if err := d.site.agentError(); err != nil {
				return err
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/-/ready", nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					break
				}
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("the agent at %s is not ready after %s", url, agentsTimeout)
			}
			if err := sleepContext(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// startSwitchAgents starts the switches' agents, where there are any.
func (d *Demo) startSwitchAgents() error {
	if d.o.TraceOnly {
		return nil
	}
	for i := range d.site.Topology().Switches {
		sw := d.site.Topology().Switches[i].Name
		if slices.Contains(d.o.Agentless, sw) {
			continue
		}
		d.switchAgents = append(d.switchAgents, sw)
		if err := d.site.startSwitch(sw); err != nil {
			return err
		}
	}
	return nil
}

// newSightings returns the client for the sightings of switches, and nil if no switch has an agent.
func (d *Demo) newSightings() *tracing.SwitchAgents {
	if len(d.switchAgents) == 0 {
		return nil
	}
	return &tracing.SwitchAgents{Client: httpClient(d.site.dialAgent), URL: SwitchURL, Switches: d.switchAgents,
		Mapper: paths.Mapper{SourcePort: SourcePort, StampPort: StampPort}}
}

// switchPort is where graylink-switch listens inside its own namespace.
const switchPort = "9871"

// SwitchURL returns the base URL of a switch's agent. AgentURL returns that of a node's.
func SwitchURL(sw string) string { return "http://" + sw + ":" + switchPort }

func AgentURL(node string) string { return "http://" + node + ":" + agentPort }

// dialContext reaches the agents, and the demo's own page, which is no node's.
func (d *Demo) dialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if addr == d.pageAddress {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	return d.site.dialAgent(ctx, network, addr)
}

func httpClient(dial func(context.Context, string, string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 2, ResponseHeaderTimeout: 30 * time.Second}}
}

// LabAgents reaches the agents that run in a lab, at the loopback of their namespaces.
func LabAgents(l *lab.Lab) tracing.HTTPAgents {
	c := httpClient(l.DialLoopback)
	c.Transport = loopbackHost{c.Transport}
	return tracing.HTTPAgents{Client: c, URL: AgentURL}
}

// loopbackHost sends requests with the Host of a loopback address: agents answer to that
// whatever names they were given.
type loopbackHost struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t loopbackHost) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = net.JoinHostPort("127.0.0.1", r.URL.Port())
	return t.RoundTripper.RoundTrip(r)
}

func (d *Demo) startAnalyzer(run context.Context, ln net.Listener) error {
	d.pageAddress = ln.Addr().String()
	targets := []promserver.Target{{Job: "graylink-analyzer", Address: d.pageAddress, Path: "/metrics"}}
	for _, n := range d.site.Topology().Nodes {
		targets = append(targets, promserver.Target{Job: "graylink-node-edges", Address: n.Name + ":" + agentPort, Path: "/metrics/edges"},
			promserver.Target{Job: "graylink-node-nics", Address: n.Name + ":" + agentPort, Path: "/metrics/nics"},
			promserver.Target{Job: "graylink-node", Address: n.Name + ":" + agentPort, Path: "/metrics"})
	}
	subnets, more := d.site.telemetry()
	targets = append(targets, more...)
	if d.Lab() != nil { // a simulated switch has no telemetry
		for _, sw := range d.switchAgents {
			targets = append(targets, promserver.Target{Job: "graylink-switch", Address: sw + ":" + switchPort, Path: "/metrics"})
		}
	}
	var err error
	if d.db, err = promserver.New(promserver.Options{Config: promserver.StaticConfig(time.Second, targets), TemporaryIn: d.dir, Dial: d.dialContext, Log: d.o.Log}); err != nil {
		return err
	}
	var agents tracing.Agents
	if !d.o.NoTraces {
		agents = tracing.HTTPAgents{Client: httpClient(d.site.dialAgent), URL: AgentURL}
	}
	var placements *jobs.Register
	if d.job != nil {
		placements = d.job.placements
	}
	d.loop = analyzer.NewLoop(analyzer.LoopOptions{Jobs: placements, Graph: d.g, DB: d.db, Settings: evidence.DefaultSettings(), Expected: d.mesh.DirectedFlows(), Agents: agents, SwitchAgents: d.newSightings(), Subnets: subnets,
		Causes: &attribute.Attributor{DB: d.db, Scrape: time.Second}, Signals: true, Maintenance: maintenance.NewRegister(d.g), Log: d.o.Log})

	policy := &webaccess.Policy{AdminAPI: true, Lifecycle: true, AllowedHosts: d.o.AllowedHosts, Log: d.o.Log}
	pages := daemon.PageOptions{Title: d.pageTitle(), Policy: policy}
	series := publish.NewCollectives(time.Now)
	if d.job != nil {
		d.followJob(run, series)
		pages.Follower = d.job.follower
	}
	mux := daemon.NewMux(d.loop, pages, publish.CollectivesCollector{Series: series, Follower: pages.Follower})
	srv := webserver.New(mux, policy, webserver.DefaultLimits(), d.o.Log)
	d.background.Add(3)
	go func() {
		defer d.background.Done()
		if err := srv.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			d.o.Log.Error("cannot serve the page", "err", err)
		}
	}()
	go func() {
		defer d.background.Done()
		<-run.Done()
		if err := srv.Close(); err != nil {
			d.o.Log.Error("cannot close the page", "err", err)
		}
	}()
	go func() {
		defer d.background.Done()
		d.loop.Run(run, time.Second)
	}()
	return nil
}

// pageTitle returns the title of the page.
func (d *Demo) pageTitle() string {
	if d.o.Fabric == Simulated {
		return "Graylink: " + d.o.Name + " (a simulated fabric)"
	}
	return "Graylink: " + d.o.Name
}

// awaitBaselines waits until every flow has a baseline and a path and nothing is suspect.
func (d *Demo) awaitBaselines(ctx context.Context) error {
	d.printProgress("learning baselines while the whole mesh probes, and tracing every flow's path")
	deadline := time.Now().Add(baselinesTimeout)
	said := time.Now()
	for {
		s := d.loop.Snapshot()
		bound := s.Paths[fabric.PathValid]
		if d.spreadsPackets() {
			bound += s.Paths[fabric.PathUnknown] // those have candidates
		}
		if s.Baselines >= s.Expected && bound >= s.Expected && s.Expected > 0 && s.Report.State == fabric.Innocent && s.Report.Coverage.Links >= d.coverage {
			d.coverage = s.Report.Coverage.Links
			d.printProgress("%d baselines learnt, %d paths bound: %.0f %% of all link directions are covered; the network is innocent", s.Baselines, bound, s.Report.Coverage.Links*100)
			return nil
		}
		if err := d.site.agentError(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			if s.Baselines == 0 || bound == 0 {
				return fmt.Errorf("after %s there are %d of %d baselines and %d paths (%s)", baselinesTimeout, s.Baselines, s.Expected, bound, s.CycleError)
			}
			d.printProgress("continuing with %d of %d baselines and %d paths: state %s, coverage %.0f %%", s.Baselines, s.Expected, bound, s.Report.State, s.Report.Coverage.Links*100)
			return nil
		}
		if time.Since(said) >= 5*time.Second {
			said = time.Now()
			d.printProgress("  %d of %d baselines, %d paths", s.Baselines, s.Expected, bound)
		}
		if err := sleepContext(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// Graph returns the fabric as the lab completed it.
func (d *Demo) Graph() *fabric.Graph { return d.g }

// Lab returns the lab that holds the fabric, and nil if the fabric is simulated.
func (d *Demo) Lab() *lab.Lab {
	if s, ok := d.site.(*namespaces); ok {
		return s.Lab
	}
	return nil
}

// Loop returns the analyzer.
func (d *Demo) Loop() *analyzer.Loop { return d.loop }

// Query evaluates a PromQL expression now and returns its only value.
func (d *Demo) Query(ctx context.Context, query string) (float64, error) {
	v, err := d.db.QueryInstant(ctx, query, time.Now())
	if err != nil {
		return 0, err
	}
	if len(v) != 1 {
		return 0, fmt.Errorf("query %q: %d series where one is expected", query, len(v))
	}
	return v[0].Value, nil
}

// URL returns the address of the page.
func (d *Demo) URL() string { return d.url }

// RunFault injects a planned fault, waits for the verdict, heals the fault and
// waits for the all-clear.
func (d *Demo) RunFault(ctx context.Context, p PlannedFault, seed uint64, duration time.Duration) (Outcome, error) {
	out := Outcome{Fabric: d.o.Fabric, Fault: FaultJSON{Kind: p.Fault.Kind, Element: p.Element, Direction: p.Direction, Params: p.Params}, Seed: seed, FalseVerdicts: []fabric.Verdict{}}
	before := time.Now()
	if p.Fault.Kind == KindNone {
		d.printProgress("no fault is injected; for %s any verdict would be wrong", duration)
		if err := d.waitWhileAlive(ctx, duration); err != nil {
			return out, err
		}
		d.checkNoVerdict(&out, before)
		return out, nil
	}
	d.printProgress("injecting a fault: %s", describeFault(p))
	for _, f := range []lab.Fault{p.Fault, p.Then} {
		if f.Kind == "" {
			continue
		}
		if _, err := d.site.AddFault(ctx, f); err != nil {
			return out, err
		}
	}
	if p.Kind == "" {
		err := d.waitWhileAlive(ctx, duration)
		if cerr := d.site.ClearFault(context.WithoutCancel(ctx), ""); err == nil {
			err = cerr
		}
		if err == nil {
			err = d.waitWhileAlive(ctx, 10*time.Second)
		}
		d.checkNoVerdict(&out, before)
		return out, err
	}
	err := d.awaitVerdict(ctx, p, before, &out)
	if err == nil && d.job != nil {
		out.Job = &JobOutcome{Name: jobName}
		out.Job.Link, out.Job.SecondsToLink, err = d.awaitDiagnosis(ctx, before, func(x *workload.Diagnosis) bool { return blames(x, p.Element) })
	}
	if cerr := d.site.ClearFault(context.WithoutCancel(ctx), ""); err == nil {
		err = cerr
	}
	if err != nil {
		return out, err
	}
	healed := time.Now()
	d.printProgress("fault cleared; waiting for the all-clear")
	if err := d.awaitClear(ctx, healed, &out); err != nil {
		return out, err
	}
	if d.job != nil {
		if err := d.showLateRank(ctx, out.Job); err != nil {
			return out, err
		}
	}
	out.EquivalentMatch = p.ListedBy(out.Verdict)
	if right := subnetCauses[p.Fault.Kind]; len(right) > 0 && d.o.Fabric == InfiniBand {
		found := out.Verdict != nil && slices.ContainsFunc(out.Verdict.Causes, func(c string) bool { return slices.Contains(right, c) })
		out.CauseMatch = &found
	}
	for _, in := range d.incidentsSince(before) {
		if !d.isNamed(p, &in.Verdict) {
			out.FalseVerdicts = append(out.FalseVerdicts, in.Verdict)
		}
	}
	return out, nil
}

func describeFault(p PlannedFault) string {
	s := p.Fault.Kind + " at " + p.Element
	if p.Then.Kind != "" {
		s = fmt.Sprintf("%s at %s, then %s at %s with all sessions over it", p.Fault.Kind, p.Fault.At, p.Then.Kind, p.Then.Direction)
	} else if leaf := p.Params["leaf"]; leaf != nil {
		s += fmt.Sprintf(" for the prefixes of %s", leaf)
	} else if next := p.Params["neighbour"]; next != nil {
		s += fmt.Sprintf(" for the identifiers of %s", next)
	}
	if p.Direction != "" {
		s += ", " + p.Direction
	}
	if p.Fault.Delay > 0 {
		s += fmt.Sprintf(", %s", p.Fault.Delay)
	}
	if p.Fault.Loss > 0 {
		s += fmt.Sprintf(", %g %%", p.Fault.Loss*100)
	}
	if p.Fault.Step != 0 {
		s += fmt.Sprintf(", %s", p.Fault.Step)
	}
	if p.Fault.DriftPPM != 0 {
		s += fmt.Sprintf(", %g ppm", p.Fault.DriftPPM)
	}
	return s
}

// incidentsSince lists the incidents opened after a moment, oldest first.
func (d *Demo) incidentsSince(t time.Time) []incident.Incident {
	var out []incident.Incident
	for _, in := range d.loop.Snapshot().Incidents {
		if in.OpenedAt.After(t) {
			out = append(out, in)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].OpenedAt.Before(out[j].OpenedAt) })
	return out
}

func (d *Demo) checkNoVerdict(out *Outcome, before time.Time) {
	out.ElementMatch, out.EquivalentMatch, out.DirectionMatch, out.ScenarioMatch = true, true, true, true
	for _, in := range d.incidentsSince(before) {
		if in.Kind == fabric.KindHost && in.Element.ID == out.Fault.Element {
			v := in.Verdict
			out.Verdict = &v
			continue
		}
		out.ElementMatch = false
		out.FalseVerdicts = append(out.FalseVerdicts, in.Verdict)
	}
}

// isNamed reports whether a verdict names the planned element. Where the packets of a flow take all ways, no probe can
// distinguish parallel links: the element may be listed then.
func (d *Demo) isNamed(p PlannedFault, v *fabric.Verdict) bool {
	return p.NamedBy(v) || d.spreadsPackets() && p.ListedBy(v)
}

// spreadsPackets reports whether the packets of a flow take several paths.
func (d *Demo) spreadsPackets() bool {
	return d.o.Adaptive || d.o.Topology != nil && d.o.Topology.Sprays()
}

// namedAmong returns the first of some incidents that names the planned element, or nil. One of the planned scenario comes before
// others. What is for information only, such as the failover that a fault caused, is no answer to another fault.
func (d *Demo) namedAmong(p PlannedFault, opened []incident.Incident) (named *incident.Incident) {
	for i := range opened {
		v := &opened[i].Verdict
		if !d.isNamed(p, v) || opened[i].IsInformation() && !p.ScenarioRight(v) {
			continue
		}
		if named == nil || p.ScenarioRight(v) && !p.ScenarioRight(&named.Verdict) {
			named = &opened[i]
		}
	}
	return named
}

func (d *Demo) awaitVerdict(ctx context.Context, p PlannedFault, before time.Time, out *Outcome) error {
	deadline := before.Add(verdictTimeout)
	for {
		opened := d.incidentsSince(before)
		if named := d.namedAmong(p, opened); named != nil {
			d.printProgress("verdict after %.1f s: %s", named.OpenedAt.Sub(before).Seconds(), named.Element.ID)
			if err := d.waitWhileAlive(ctx, dwell); err != nil {
				return err
			}
			// The evidence has had time to settle: the verdict as it stands is the one that is shown.
			if settled := d.namedAmong(p, d.incidentsSince(before)); settled != nil {
				named = settled
			}
			v, took := named.Verdict, named.OpenedAt.Sub(before).Seconds()
			out.Verdict, out.SecondsToVerdict = &v, &took
			out.ElementMatch, out.DirectionMatch, out.ScenarioMatch = true, p.DirectionRight(&v), p.ScenarioRight(&v)
			return nil
		}
		if time.Now().After(deadline) {
			if len(opened) > 0 {
				v := opened[0].Verdict
				took := opened[0].OpenedAt.Sub(before).Seconds()
				out.Verdict, out.SecondsToVerdict = &v, &took
				out.DirectionMatch, out.ScenarioMatch = p.DirectionRight(&v), p.ScenarioRight(&v)
			}
			d.printProgress("no correct verdict within %s", verdictTimeout)
			return nil
		}
		if err := d.site.agentError(); err != nil {
			return err
		}
		if err := sleepContext(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func (d *Demo) awaitClear(ctx context.Context, healed time.Time, out *Outcome) error {
	deadline := healed.Add(clearTimeout)
	for {
		s := d.loop.Snapshot()
		// A cycle judges a window that ended a little before it; one that began
		// after the healing is needed.
		if s.At.After(healed.Add(4*time.Second)) && len(s.Report.Verdicts) == 0 && s.Report.Edges.Degraded == 0 && s.Pending == 0 {
			took := healed.Sub(healed).Seconds()
			for _, in := range s.Incidents {
				if in.Cleared != nil && in.Cleared.After(healed) {
					took = max(took, in.Cleared.Sub(healed).Seconds())
				}
			}
			out.SecondsToClear = &took
			d.printProgress("all clear after %.1f s", took)
			return nil
		}
		if time.Now().After(deadline) {
			d.printProgress("no all-clear within %s", clearTimeout)
			return nil
		}
		if err := sleepContext(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// AwaitSteadyState waits until the clocks are locked and the paths are those of the whole
// fabric again.
func (d *Demo) AwaitSteadyState(ctx context.Context) error {
	if err := d.awaitLockedClocks(ctx); err != nil {
		return err
	}
	return d.awaitBaselines(ctx)
}

// waitWhileAlive waits and reports an agent that dies meanwhile.
func (d *Demo) waitWhileAlive(ctx context.Context, t time.Duration) error {
	end := time.Now().Add(t)
	said := time.Now()
	for time.Now().Before(end) {
		if err := d.site.agentError(); err != nil {
			return err
		}
		if time.Since(said) >= 30*time.Second {
			said = time.Now()
			d.printProgress("  %s to go; state %s", time.Until(end).Round(time.Second), d.loop.Snapshot().Report.State)
		}
		if err := sleepContext(ctx, min(100*time.Millisecond, max(time.Until(end), time.Millisecond))); err != nil {
			return err
		}
	}
	return nil
}

// Close ends everything the demo started. It is safe after a failed Start.
func (d *Demo) Close() error {
	var errs []error
	if d.stop != nil {
		d.stop()
	}
	d.background.Wait()
	if d.job != nil {
		errs = append(errs, d.job.Wait())
	}
	if d.db != nil {
		errs = append(errs, d.db.Close())
	}
	if d.coordinator != nil { // before the lab, which has its directory
		errs = append(errs, d.coordinator.close())
	}
	if d.site != nil {
		errs = append(errs, d.site.Close())
	}
	if d.dir != "" {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}

func sleepContext(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// WriteJSON prints an outcome on one line.
func (o Outcome) WriteJSON(w io.Writer) error { return plainjson.NewEncoder(w).Encode(o) }
