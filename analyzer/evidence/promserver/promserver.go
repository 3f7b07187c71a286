// Package promserver runs a Prometheus in this process: the database, discovery, scraping, rules, notifications and HTTP
// API of the Prometheus project, by a configuration in Prometheus' own format. It is for the demo, for tests, and for
// small sites that have no Prometheus of their own.
package promserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	config_util "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	_ "github.com/prometheus/prometheus/discovery/file" // known to configurations
	_ "github.com/prometheus/prometheus/discovery/http" // known to configurations
	"github.com/prometheus/prometheus/notifier"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/graylink/graylink/analyzer/evidence"
)

// Limits of the queries, as those of a Prometheus server that has no flags.
const (
	maxSamples    = 50_000_000
	queryTimeout  = 2 * time.Minute
	lookbackDelta = 5 * time.Minute
	maxConcurrent = 20
)

// temporaryRetention is the retention of a database in a temporary directory.
const temporaryRetention = 2 * time.Hour

// Options configure a server.
type Options struct {
	// Config is the text of a configuration in Prometheus' format.
	Config string
	// Directory keeps the database, in Prometheus' format. If it is empty, the data are in a temporary directory, which
	// Close removes.
	Directory string
	// TemporaryIn is where the temporary directory is made. If it is empty, it is made in that of the machine.
	TemporaryIn string
	// Retention is the time that samples are kept in Directory.
	Retention time.Duration
	// Rules has the files that rule_files of the configuration name. Nil means that there are no rules.
	Rules fs.FS
	// Dial reaches the targets, and the servers of service discovery. Nil means the network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Notify gets the alerts that fire, once a minute and when they begin, and those that were resolved. It may be nil.
	Notify func(alerts []Alert)
	// ExternalURL is the address of the HTTP API for readers of alerts.
	ExternalURL *url.URL
	Log         *slog.Logger
}

// Server is a Prometheus in this process.
type Server struct {
	o         Options
	registry  *prometheus.Registry // its own series
	directory string
	db        *tsdb.DB
	engine    *promql.Engine
	parser    parser.Parser
	scrapes   *scrape.Manager
	rules     *rules.Manager
	notifier  *notifier.Manager
	handler   http.Handler

	config    *config.Config
	discovers [2]*discovery.Manager // of targets and of Alertmanagers
	stop      context.CancelFunc
	runs      sync.WaitGroup

	// Queries that run. Nothing may be closed under them: the engine writes what it evaluates to a file in memory.
	queries    sync.WaitGroup
	closing    context.Context // ends at Close
	endQueries context.CancelFunc
	mu         sync.Mutex // guards queries.Add against Close
}

// New opens the database, and begins to scrape, to evaluate rules and to send alerts.
func New(o Options) (s *Server, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.ExternalURL == nil {
		o.ExternalURL = &url.URL{}
	}
	s = &Server{o: o, registry: prometheus.NewRegistry(), directory: o.Directory, parser: parser.NewParser(parser.Options{})}
	s.closing, s.endQueries = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = fmt.Errorf("the Prometheus in this process: %w", errors.Join(err, s.Close()))
			s = nil
		}
	}()
	if s.config, err = config.Load(o.Config, o.Log); err != nil {
		return s, err
	}
	if err := s.openDatabase(); err != nil {
		return s, err
	}
	running, err := promql.NewActiveQueryTracker(s.directory, maxConcurrent, o.Log)
	if err != nil {
		return s, err
	}
	s.engine = promql.NewEngine(promql.EngineOpts{Logger: o.Log, Reg: s.registry, ActiveQueryTracker: running, MaxSamples: maxSamples, Timeout: queryTimeout,
		LookbackDelta: lookbackDelta, EnableAtModifier: true, EnableNegativeOffset: true, Parser: s.parser})
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	return s, s.start(ctx)
}

// openDatabase opens the database in its directory, or in a temporary one.
func (s *Server) openDatabase() (err error) {
	opts := tsdb.DefaultOptions()
	opts.RetentionDuration = s.o.Retention.Milliseconds()
	if s.o.Directory == "" {
		if s.directory, err = os.MkdirTemp(s.o.TemporaryIn, "graylink-tsdb-"); err != nil {
			return err
		}
		opts.RetentionDuration = temporaryRetention.Milliseconds()
		opts.WALSegmentSize = -1 // nothing here has to survive a restart
		opts.NoLockfile = true
	} else if err := os.MkdirAll(s.directory, 0o700); err != nil {
		return err
	}
	s.db, err = tsdb.Open(s.directory, s.o.Log, s.registry, opts, nil)
	return err
}

// start starts everything that works by the configuration.
func (s *Server) start(ctx context.Context) (err error) {
	var options []config_util.HTTPClientOption
	if s.o.Dial != nil {
		options = append(options, config_util.WithDialContextFunc(s.o.Dial))
	}
	refresh := discovery.NewRefreshMetrics(s.registry)
	mechanisms, err := discovery.RegisterSDMetrics(s.registry, refresh)
	if err != nil {
		return err
	}
	for i, name := range []string{"scrape", "notify"} {
		s.discovers[i] = discovery.NewManager(ctx, s.o.Log, s.registry, &discovery.SDMetrics{RefreshManager: refresh, MechanismMetrics: mechanisms},
			discovery.Name(name), discovery.HTTPClientOptions(options...), discovery.Updatert(discoveryDelay))
		if s.discovers[i] == nil {
			return fmt.Errorf("the discovery of %s cannot be made", name)
		}
	}
	s.scrapes, err = scrape.NewManager(&scrape.Options{DiscoveryReloadInterval: model.Duration(discoveryDelay), DiscoveryReloadOnStartup: true, HTTPClientOptions: options},
		s.o.Log, nil, nil, s.db, s.registry)
	if err != nil {
		return err
	}
	s.notifier = notifier.NewManager(&notifier.Options{QueueCapacity: 10_000, Registerer: s.registry}, s.config.GlobalConfig.MetricNameValidationScheme, s.o.Log)
	if s.o.Rules != nil {
		s.rules = rules.NewManager(&rules.ManagerOptions{Appendable: s.db, Queryable: s.db, QueryFunc: rules.EngineQueryFunc(s.engine, s.db), NotifyFunc: s.sendAlerts,
			Context: ctx, ExternalURL: s.o.ExternalURL, Registerer: s.registry, Logger: s.o.Log, OutageTolerance: time.Hour, ForGracePeriod: 10 * time.Minute, ResendDelay: time.Minute,
			GroupLoader: ruleFiles{s.o.Rules, s.parser}, Parser: s.parser})
	}
	if err := s.applyConfig(); err != nil {
		return err
	}
	s.handler = s.newHandler()
	s.run(ctx)
	return nil
}

// Alert is the state of an alert.
type Alert struct {
	Fingerprint         string // of the labels
	Labels, Annotations map[string]string
	StartsAt, EndsAt    time.Time // EndsAt is zero while it fires
}

// Firing reports whether the alert fires.
func (a *Alert) Firing() bool { return a.EndsAt.IsZero() }

// sendAlerts sends alerts to the Alertmanagers and to Notify. It implements rules.NotifyFunc.
func (s *Server) sendAlerts(ctx context.Context, query string, alerts ...*rules.Alert) {
	rules.SendAlerts(s.notifier, s.o.ExternalURL.String())(ctx, query, alerts...)
	if s.o.Notify == nil {
		return
	}
	out := make([]Alert, len(alerts))
	for i, a := range alerts {
		out[i] = Alert{Fingerprint: fmt.Sprintf("%016x", a.Labels.Hash()), Labels: a.Labels.Map(), Annotations: a.Annotations.Map(), StartsAt: a.FiredAt, EndsAt: a.ResolvedAt}
	}
	s.o.Notify(out)
}

// discoveryDelay is the time after which found targets are scraped.
const discoveryDelay = 100 * time.Millisecond

// applyConfig gives each part its part of the configuration.
func (s *Server) applyConfig() error {
	targets, alertmanagers := map[string]discovery.Configs{}, map[string]discovery.Configs{}
	jobs, err := s.config.GetScrapeConfigs()
	if err != nil {
		return err
	}
	for _, j := range jobs {
		targets[j.JobName] = j.ServiceDiscoveryConfigs
	}
	for key, a := range s.config.AlertingConfig.AlertmanagerConfigs.ToMap() {
		alertmanagers[key] = a.ServiceDiscoveryConfigs
	}
	err = errors.Join(s.scrapes.ApplyConfig(s.config), s.notifier.ApplyConfig(s.config), s.discovers[0].ApplyConfig(targets), s.discovers[1].ApplyConfig(alertmanagers))
	if err != nil || s.rules == nil {
		return err
	}
	var files []string
	for _, pattern := range s.config.RuleFiles {
		found, err := fs.Glob(s.o.Rules, pattern)
		if err != nil || len(found) == 0 {
			return fmt.Errorf("rule_files: %q names no file: %w", pattern, err)
		}
		files = append(files, found...)
	}
	return s.rules.Update(time.Duration(s.config.GlobalConfig.EvaluationInterval), files, s.config.GlobalConfig.ExternalLabels, s.o.ExternalURL.String(), nil)
}

// run runs all parts until ctx ends.
func (s *Server) run(ctx context.Context) {
	report := func(what string, err error) {
		if err != nil && !errors.Is(err, context.Canceled) {
			s.o.Log.Error("a part of the Prometheus in this process ended", "part", what, "err", err)
		}
	}
	s.runs.Go(func() { report("discovery of targets", s.discovers[0].Run()) })
	s.runs.Go(func() { report("discovery of Alertmanagers", s.discovers[1].Run()) })
	s.runs.Go(func() { report("scraping", s.scrapes.Run(s.discovers[0].SyncCh())) })
	s.runs.Go(func() { s.notifier.Run(s.discovers[1].SyncCh()) })
	if s.rules != nil {
		s.runs.Go(s.rules.Run)
	}
}

// Close ends all parts and the queries that run, and closes the database.
func (s *Server) Close() error {
	s.mu.Lock()
	s.endQueries()
	s.mu.Unlock()
	s.queries.Wait()
	if s.stop != nil {
		s.stop()
	}
	if s.handler != nil { // everything was started
		if s.rules != nil {
			s.rules.Stop()
		}
		s.scrapes.Stop()
		s.notifier.Stop()
		s.runs.Wait()
	}
	var err error
	if s.engine != nil {
		err = s.engine.Close()
	}
	if s.db != nil {
		err = errors.Join(err, s.db.Close())
	}
	if s.o.Directory == "" && s.directory != "" {
		err = errors.Join(err, os.RemoveAll(s.directory))
	}
	return err
}

// errClosed means that a server is closed, or is being closed.
var errClosed = errors.New("the Prometheus in this process is closed")

// beginQuery returns a context that ends at Close, which waits until done is called. It fails after Close.
func (s *Server) beginQuery(ctx context.Context) (_ context.Context, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return nil, nil, errClosed
	}
	s.queries.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	ended := context.AfterFunc(s.closing, cancel)
	return ctx, func() { ended(); cancel(); s.queries.Done() }, nil
}

// QueryInstant evaluates a PromQL expression at one moment.
func (s *Server) QueryInstant(ctx context.Context, query string, at time.Time) ([]evidence.Sample, error) {
	ctx, done, err := s.beginQuery(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return evidence.EvaluateAt(ctx, s.engine, s.db, query, at)
}

// QueryHistograms implements evidence.Distributor.
func (s *Server) QueryHistograms(ctx context.Context, query string, at time.Time) ([]evidence.Histogram, error) {
	ctx, done, err := s.beginQuery(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return evidence.EvaluateHistograms(ctx, s.engine, s.db, query, at)
}

// QueryRange implements evidence.Ranger.
func (s *Server) QueryRange(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]evidence.Series, error) {
	ctx, done, err := s.beginQuery(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return evidence.EvaluateRange(ctx, s.engine, s.db, query, from, to, step)
}

// ServeHTTP serves Prometheus' HTTP API below /api/v1, without what changes or deletes data, and the server's own series
// at /metrics.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, done, err := s.beginQuery(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer done()
	s.handler.ServeHTTP(w, r.WithContext(ctx))
}

func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.Handle("/api/v1/", http.StripPrefix("/api/v1", s.newAPI()))
	return mux
}

// ruleFiles loads rules from a file system.
type ruleFiles struct {
	files  fs.FS
	parser parser.Parser
}

var _ rules.GroupLoader = ruleFiles{}
