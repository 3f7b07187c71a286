// Package daemon runs the analyzer as a process beside a Prometheus server: its
// configuration, its HTTP handlers, and the reload of its configuration.
//
// Rules:
//
//  1. A configuration is loaded whole or not at all. If it is refused, the earlier one stays
//     in use, and graylink_config_hash_info identifies it.
//  2. A new configuration keeps the baselines, and the open incidents on elements that its
//     topology has.
//  3. The process starts and continues while Prometheus, the agents or the coordinator do not
//     respond.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/attribute"
	"github.com/graylink/graylink/analyzer/audit/latest"
	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/steer"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/webaccess"
)

// targetsEvery is the interval at which the addresses of the agents are read from the coordinator.
const targetsEvery = 30 * time.Second

// agentTimeout bounds a request to an agent, whose traces may take so long.
const agentTimeout = 30 * time.Second

// Host is a program that runs an analyzer beside the servers that the analyzer queries.
type Host struct {
	// Defaults changes the defaults of the configuration, which then needs no file.
	Defaults func(c *Config)
	// Dial reaches servers. Nil means the network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// NoPrometheusPages means that the Prometheus has no pages for browsers, so that the analyzer's page has no links to it.
	NoPrometheusPages bool
	// URL is the address of the analyzer's page for browsers. Nil means that of the policy.
	URL *url.URL
}

// clientOptions returns the options of HTTP clients.
func (h Host) clientOptions() []config_util.HTTPClientOption {
	if h.Dial == nil {
		return nil
	}
	return []config_util.HTTPClientOption{config_util.WithDialContextFunc(h.Dial)}
}

// Daemon represents an analyzer that runs by a configuration file.
type Daemon struct {
	file   string
	host   Host
	policy *webaccess.Policy
	log    *slog.Logger
	health *health
	more   []prometheus.Collector // of /metrics
	// collectives are the series about the operations of jobs, which survive a reload.
	collectives *publish.Collectives

	reloads sync.Mutex // one at a time
	current *instance
	ended   bool
	handler atomic.Pointer[http.ServeMux]
	files   atomic.Pointer[pki.Watch]
}

// instance represents everything that runs by one configuration.
type instance struct {
	config *Config
	db     backend
	loop   *analyzer.Loop
	// followers reread files and servers.
	followers []func(ctx context.Context)
	targets   *tracing.Targets         // nil if no coordinator is configured
	windows   *maintenance.Coordinator // keeps the windows of the API; nil if the register does
	steerer   *steer.Steerer           // nil if steering is off
	follower  *collectives.Follower    // nil if collectives are not followed
	steering  *steering                // nil if steering is off
	records   *tracing.HTTPAgents      // the agents whose records are followed; nil if none are
	catalogue *catalogue.Builder       // nil if no agents are configured
	observer  *catalogue.Observer      // nil if no agents are configured
	stop      context.CancelFunc
	runs      sync.WaitGroup
}

// backend is a source of evidence.
type backend interface {
	evidence.Querier
	Bytes() uint64
	Close() error
}

// openBackend returns the backend, and the HTTP API of its server, which has the history.
func (p *Prometheus) openBackend(host Host, log *slog.Logger) (db backend, api *evidence.HTTP, err error) {
	o := evidence.HTTPOptions{URL: p.URL, Client: p.Client, ClientOptions: host.clientOptions(), Timeout: p.Timeout, MaxBytes: p.MaxAnswer, Log: log}
	if p.Backend == backendRead {
		r, err := evidence.NewRemoteRead(o)
		if err != nil {
			return nil, nil, err
		}
		return r, r.HTTP, nil
	}
	api, err = evidence.NewHTTP(o)
	return api, api, err
}

// New reads the configuration and starts an analyzer with it. The policy decides which clients may reload it and
// create maintenance windows. The collectors of more are added to /metrics. Close stops it. New fails if the
// configuration is invalid.
func New(file string, policy *webaccess.Policy, log *slog.Logger, more ...prometheus.Collector) (*Daemon, error) {
	return Host{}.New(file, policy, log, more...)
}

// New starts an analyzer as the function New does, in a host.
func (h Host) New(file string, policy *webaccess.Policy, log *slog.Logger, more ...prometheus.Collector) (*Daemon, error) {
	c, err := h.LoadConfig(file)
	if err != nil {
		return nil, err
	}
	d := &Daemon{file: file, host: h, policy: policy, log: log, health: &health{queries: map[string]*queryCounts{}}, collectives: publish.NewCollectives(time.Now), more: append(more, version.NewCollector("graylink_analyzer"))}
	w, err := d.newInstance(c)
	if err != nil {
		return nil, err
	}
	d.startInstance(w)
	return d, nil
}

// newClient returns the HTTP client of an endpoint.
func (h Host) newClient(e *Endpoint) (*http.Client, error) {
	c, err := config_util.NewClientFromConfig(e.Client, "graylink_analyzer", append(h.clientOptions(), config_util.WithUserAgent("graylink-analyzer"))...)
	if err == nil {
		c.Timeout = agentTimeout
	}
	return c, err
}

// urlTemplate returns a function that fills a name into an endpoint's URL.
func (e *Endpoint) urlTemplate(place string) func(string) string {
	return func(name string) string { return strings.ReplaceAll(e.URL, place, name) }
}

// windowTimeout bounds the time in which an agent answers with the windows of its flows, so that those that do not are no
// reason for a late cycle.
const windowTimeout = 700 * time.Millisecond

// newInstance builds an instance from a configuration, and does not start it.
func (d *Daemon) newInstance(c *Config) (*instance, error) {
	w := &instance{config: c}
	db, api, err := c.Prometheus.openBackend(d.host, d.log)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	w.db = db
	o := analyzer.LoopOptions{Graph: fabric.NewGraph(c.topology), Part: c.settings.Scope.Part, DB: w.db, Settings: c.settings, Signals: true, Log: d.log}
	o.Settings.Observe = d.health.observeQuery
	if c.Evidence.Lag == 0 {
		o.Settings.Arrival = evidence.NewLagMeter(&o.Settings, c.Evidence.maxLag())
	}
	o.TwoSteps = selection.Options{MinFlows: c.Evidence.DetailBelow, MaxFlows: c.Evidence.MostEdges, Round: c.Evidence.Round}
	o.Recall = func(ctx context.Context) (evidence.History, error) {
		return evidence.RecallHistory(ctx, api, o.Settings, time.Now())
	}
	o.RecallHour = func(ctx context.Context, start time.Time, before time.Duration) (evidence.PastHour, error) {
		return evidence.RecallHour(ctx, api, o.Settings, start, before)
	}
	o.RecallVerdicts = func(ctx context.Context) ([]evidence.PastVerdict, error) {
		all, err := evidence.RecallVerdicts(ctx, api, o.Settings, time.Now())
		return slices.DeleteFunc(all, func(v evidence.PastVerdict) bool { return !c.owns(v.Element) }), err
	}
	if name := c.Scope.name(); name != "" {
		o.Shards = &analyzer.Shards{Own: name, Read: func(ctx context.Context) ([]evidence.Shard, error) {
			return evidence.ReadShards(ctx, w.db, o.Settings, name, time.Now())
		}}
	}
	var tuples *tracing.HTTPAgents
	if a := c.Agents; a != nil {
		agents := tracing.HTTPAgents{URL: a.urlTemplate(urlPlaceholders["agents"])}
		if agents.Client, err = d.host.newClient(&a.Endpoint); err != nil {
			return nil, fmt.Errorf("agents: %w", err)
		}
		if a.Coordinator != nil {
			w.targets = &tracing.Targets{Coordinator: a.Coordinator.URL, Log: d.log}
			if w.targets.Client, err = d.host.newClient(&a.Coordinator.Endpoint); err != nil {
				return nil, fmt.Errorf("agents.coordinator: %w", err)
			}
			agents.URL = w.targets.URLOf
		}
		o.Agents, tuples = agents, &agents
		if c.Collectives.Follow {
			w.records = &agents
		}
		if c.settings.Scope.Has != nil {
			o.Agents = tracing.ScopedAgents{Agents: agents, Has: c.settings.Scope.Has}
		}
		if c.Evidence.Profile == profileFleet {
			// The server has no windows of flows of the past, either. The agents have baselines.
			o.Settings.Windows = &evidence.AgentWindows{Client: agents.Client, URL: agents.URL, Timeout: windowTimeout}
			o.Recall, o.RecallHour = nil, nil
			o.TwoSteps.OwnRounds = o.Part != nil
		}
	}
	if s := c.Switches; s != nil {
		client, err := d.host.newClient(&s.Endpoint)
		if err != nil {
			return nil, fmt.Errorf("switches: %w", err)
		}
		o.SwitchAgents = &tracing.SwitchAgents{Client: client, URL: s.urlTemplate(urlPlaceholders["switches"]), Switches: s.Names,
			Mapper: paths.Mapper{SourcePort: s.SourcePort, StampPort: s.StampPort}}
	}
	if o.Subnets, err = c.newSubnets(d.host); err != nil {
		return nil, err
	}
	if a := c.Asking; a != nil {
		if o.Asker, err = a.NewAsker(d.log); err != nil {
			return nil, fmt.Errorf("asking: %w", err)
		}
	}
	o.Causes = &attribute.Attributor{DB: evidence.NewLocalQuerier(w.db), Scrape: cmp.Or(c.Evidence.Ports, c.Evidence.Scrape)}
	if err := d.addSources(w, &o); err != nil {
		return nil, err
	}
	if err := d.addSteerer(w); err != nil {
		return nil, err
	}
	w.loop = analyzer.NewLoop(o)
	if tuples != nil {
		w.catalogue = catalogue.NewBuilder(w.loop.PathStore().Graph, *tuples, time.Now)
		w.catalogue.Sprays = w.loop.PathStore().IsSpraying
		w.observer = catalogue.NewObserver(w.catalogue, *tuples, w.loop.Snapshot)
		w.followers = append(w.followers, w.observer.Run)
	}
	if w.records != nil {
		w.follower = collectives.New(collectives.Options{Graph: o.Graph, Client: w.records.Client, URL: w.records.URL, Snapshot: w.loop.Snapshot, Jobs: o.Jobs, Judged: d.collectives.Observe, Log: d.log})
		w.steering = d.newSteering(w, &o)
	}
	return w, nil
}

// followEvery is the interval at which files and silences are reread.
const followEvery = 2 * time.Second

// addSources adds the sources of maintenance windows and placements. It fails if a file is invalid at the start. A
// file that becomes invalid later changes nothing.
func (d *Daemon) addSources(w *instance, o *analyzer.LoopOptions) error {
	c := w.config
	o.PageNICs = c.PageNICs
	whole := o.Graph // windows of other parts are no error
	if c.elements != nil {
		whole = fabric.NewGraph(c.whole)
	}
	o.Maintenance = maintenance.NewRegister(whole)
	var sources []maintenance.Source
	if c.Maintenance.File != "" {
		f := &maintenance.File{Path: c.Maintenance.File}
		if err := maintenance.UpdateSource(context.Background(), o.Maintenance, f, time.Now()); err != nil {
			return err
		}
		sources = append(sources, f)
	}
	if a := c.Maintenance.Alertmanager; a != nil {
		client, err := d.host.newClient(&a.Endpoint)
		if err != nil {
			return fmt.Errorf("maintenance.alertmanager: %w", err)
		}
		sources = append(sources, &maintenance.Alertmanager{Client: client, URL: a.URL, Elements: whole.ElementIDs()})
	}
	if k := c.Maintenance.Kubernetes; k != nil {
		client, err := d.host.newClient(&k.Endpoint)
		if err != nil {
			return fmt.Errorf("maintenance.kubernetes: %w", err)
		}
		sources = append(sources, &maintenance.Kubernetes{Client: client, URL: k.URL})
	}
	if p := c.Maintenance.Coordinator; p != nil {
		keeper, err := p.newWindowKeeper(d.log)
		if err != nil {
			return fmt.Errorf("maintenance.coordinator: %w", err)
		}
		w.windows = &maintenance.Coordinator{Keeper: keeper}
		o.Maintenance.ReplaceSource(w.windows.Name(), nil, time.Now())
		sources = append(sources, w.windows)
	}
	for _, s := range sources {
		w.followers = append(w.followers, func(ctx context.Context) { maintenance.FollowSource(ctx, o.Maintenance, s, followEvery, d.log) })
	}
	if len(c.Jobs) == 0 {
		return nil
	}
	running := jobs.NewRegister(o.Graph)
	o.Jobs = running
	for i := range c.Jobs {
		if err := d.addPlacements(w, &c.Jobs[i], running); err != nil {
			return err
		}
	}
	return nil
}

// addPlacements adds one source of placements.
func (d *Daemon) addPlacements(w *instance, p *Placements, running *jobs.Register) error {
	var follow func(ctx context.Context)
	switch {
	case p.Slurm != nil:
		s := &jobs.Slurm{Command: p.Slurm.Command, Every: p.Slurm.Every, Zone: time.Local}
		follow = func(ctx context.Context) { s.Follow(ctx, running, d.log) }
	case p.Kubernetes != nil:
		client, err := d.host.newClient(&p.Kubernetes.Endpoint)
		if err != nil {
			return fmt.Errorf("jobs: kubernetes: %w", err)
		}
		k := &jobs.Kubernetes{Client: client, URL: p.Kubernetes.URL}
		follow = func(ctx context.Context) { k.Follow(ctx, running, d.log) }
	default:
		f := &jobs.File{Path: p.File, Format: p.Format, Zone: time.Local}
		if err := f.ReloadIfChanged(running); err != nil {
			return err
		}
		follow = func(ctx context.Context) { f.FollowFile(ctx, running, followEvery, d.log) }
	}
	w.followers = append(w.followers, follow)
	return nil
}

// firstWindowsWithin bounds the time for which the first cycle waits for the windows of a coordinator.
const firstWindowsWithin = 2 * time.Second

// startInstance starts an instance.
func (d *Daemon) startInstance(w *instance) {
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	if w.targets != nil {
		w.runs.Go(func() { w.targets.Run(ctx, targetsEvery) })
	}
	for _, f := range w.followers {
		w.runs.Go(func() { f(ctx) })
	}
	w.runs.Go(func() {
		w.readWindows(ctx)
		w.loop.Run(ctx, w.config.Evidence.Scrape)
	})
	if w.follower != nil {
		after := func(collectives.State) {}
		if w.steering != nil {
			after = w.steering.offer
			w.runs.Go(func() { w.steering.run(ctx) })
		}
		w.runs.Go(func() { w.follower.Run(ctx, after) })
	}
	d.health.recordReload(w.config, w.db.Bytes, time.Now())
	d.files.Store(pki.NewWatch(w.config.certificates(d.file)...))
	pages := cmp.Or(w.config.Prometheus.ExternalURL, w.config.Prometheus.URL)
	if d.host.NoPrometheusPages {
		pages = ""
	}
	var audit *latest.File
	if w.config.AuditReport != "" {
		audit = latest.Open(w.config.AuditReport)
	}
	mux := NewMux(w.loop, PageOptions{Audit: audit, ConfigHash: w.config.hash, Title: "Graylink", URL: d.host.URL, Prometheus: pages, Shard: w.config.Scope.name(), Policy: d.policy, Windows: w.windows, Follower: w.follower, Catalogue: w.catalogue, Observer: w.observer},
		append([]prometheus.Collector{d.health, steeringHealth{w.steerer}, publish.CollectivesCollector{Series: d.collectives, Follower: w.follower}}, d.more...)...)
	mux.HandleFunc("POST /-/reload", d.policy.ReloadHandler(d.handleReload))
	d.handler.Store(mux)
	d.current = w
}

// readWindows reads the windows that a coordinator keeps, so that the first cycle has them. It waits some seconds at most.
func (w *instance) readWindows(ctx context.Context) {
	if w.windows == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, firstWindowsWithin)
	defer cancel()
	_ = maintenance.UpdateSource(ctx, w.loop.MaintenanceRegister(), w.windows, time.Now()) // the source's follower reports it
}

// shutDown stops an instance.
func (w *instance) shutDown() error {
	w.stop()
	w.runs.Wait()
	return errors.Join(w.steerer.Close(), w.db.Close())
}

// Expiries implements pki.Source: it lists the certificates of the connections to the servers of the configuration.
func (d *Daemon) Expiries() []pki.Expiry { return d.files.Load().Expiries() }

// CurrentLoop returns the loop of the current configuration.
func (d *Daemon) CurrentLoop() *analyzer.Loop {
	d.reloads.Lock()
	defer d.reloads.Unlock()
	return d.current.loop
}

// ServeHTTP implements http.Handler.
func (d *Daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.Load().ServeHTTP(w, r) }

// handleReload answers POST /-/reload.
func (d *Daemon) handleReload(w http.ResponseWriter, _ *http.Request) {
	if err := d.ReloadConfig(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, "reloaded")
}

// ReloadConfig loads the configuration file again. If that fails, it returns the error, and the earlier
// configuration stays in use.
func (d *Daemon) ReloadConfig() error {
	d.reloads.Lock()
	defer d.reloads.Unlock()
	if d.ended {
		return errors.New("the analyzer is shutting down")
	}
	c, err := d.host.LoadConfig(d.file)
	var next *instance
	if err == nil {
		next, err = d.newInstance(c)
	}
	if err != nil {
		d.health.recordRefusal()
		d.log.Error("cannot reload the configuration, the earlier one stays in use", "err", err)
		return err
	}
	old := d.current
	if err := old.shutDown(); err != nil {
		d.log.Warn("cannot close the backend of the earlier configuration", "err", err)
	}
	next.loop.InheritFrom(old.loop)
	next.follower.InheritFrom(old.follower)
	d.startInstance(next)
	d.log.Info("reloaded the configuration", "hash", c.hash)
	return nil
}

// Close stops the analyzer. The handler continues to serve its last state.
func (d *Daemon) Close() error {
	d.reloads.Lock()
	defer d.reloads.Unlock()
	d.ended = true
	return d.current.shutDown()
}

// AllQueries returns the queries to Prometheus, by name.
func (c *Config) AllQueries() map[string]string {
	q := c.settings.OverviewQueries()
	maps.Copy(q, c.settings.WindowQueries())
	maps.Copy(q, c.settings.HistoryQueries())
	maps.Copy(q, c.settings.VerdictQueries())
	if c.Scope.name() != "" {
		maps.Copy(q, c.settings.ShardQueries())
	}
	return q
}
