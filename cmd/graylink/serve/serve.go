// Package serve runs everything that a small site needs in one process: the coordinator, a Prometheus with the rules, the
// analyzer and its page. The parts are those of the other programs, and talk to each other as those do, over connections
// that do not leave the process.
//
// Rules:
//
//  1. Everything that has to survive a restart is in one directory: certificates, join tokens, the coordinator's state,
//     the topology if it is discovered, and the database, which a Prometheus server can take over as it is.
//  2. Without a topology file the topology follows what the agents report. A node stays in it when its agent is silent,
//     since silence is evidence.
//  3. The analyzer starts when there is a topology. Until then the page says what is missing.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/analyzer/evidence/promserver"
	"github.com/graylink/graylink/deploy"
	"github.com/graylink/graylink/exporters/certificates"
	exporter "github.com/graylink/graylink/exporters/coordinator"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/enroll"
	"github.com/graylink/graylink/internal/jointoken"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/webaccess"
	"github.com/graylink/graylink/rules"
)

// Options configure a site.
type Options struct {
	// Directory keeps everything that has to survive a restart.
	Directory string
	// TopologyFile describes the fabric. If it is empty, the fabric is discovered.
	TopologyFile string
	// ConfigFile is a configuration of the analyzer, in which nothing is required. It may be empty.
	ConfigFile string
	// AgentsAddress is where agents connect.
	AgentsAddress string
	// Names are the names and addresses of this host by which agents connect.
	Names []string
	// WebPrefixes are prefixes of addresses that agents may be scraped at, besides those that they connect from.
	WebPrefixes []string
	// Cadence is the time between two probes of an edge of a near tier.
	Cadence time.Duration
	// Retention is the time that samples are kept.
	Retention time.Duration
	// Alertmanagers are the URLs of Alertmanagers that get the alerts.
	Alertmanagers []string
	// WebhookFile has the URL of a webhook that gets the alerts. It may be empty.
	WebhookFile string
	// ExternalURL is the address of the page for readers of alerts.
	ExternalURL *url.URL
	// Listener lists the certificates of the web listener.
	Listener pki.Source
	Policy   *webaccess.Policy
	Log      *slog.Logger

	renewEvery time.Duration // time between two looks at the site's own certificates; 0: an hour
}

// Site is a running site.
type Site struct {
	o           Options
	authority   *authority
	coordinator *coordinator.Coordinator
	// coordinatorWeb is the coordinator's HTTP API.
	coordinatorWeb http.Handler
	agents         *coordinator.Server
	tokens         *jointoken.Book
	discovery      *discovery // nil if there is a topology file
	inside         *network
	prometheus     *promserver.Server
	servers        []*http.Server

	analyzer atomic.Pointer[daemon.Daemon] // nil until there is a topology
	failed   chan error
	stop     context.CancelFunc
	runs     sync.WaitGroup
}

// Hosts inside the process.
const (
	coordinatorHost = "coordinator.graylink.internal"
	prometheusHost  = "prometheus.graylink.internal"
	analyzerHost    = "analyzer.graylink.internal"
)

// PrometheusPath is the path of Prometheus' HTTP API at the site's web listener.
const PrometheusPath = "/prometheus"

// file returns the name of a file of the site.
func (o *Options) file(name ...string) string {
	return filepath.Join(append([]string{o.Directory}, name...)...)
}

// JoinTokenFile returns the file of the hashes of join tokens, which graylink join-token writes.
func (o *Options) JoinTokenFile() string { return o.file("join-tokens") }

// AuthorityFile returns the file of the certificate of the site's authority.
func (o *Options) AuthorityFile() string { return o.file("pki", "ca.crt") }

// Start starts a site. Close must be called in the end, also if Start fails.
func Start(o Options) (s *Site, err error) {
	s = &Site{o: o, inside: newNetwork(coordinatorHost, prometheusHost, analyzerHost), failed: make(chan error, 4)}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	if err := os.MkdirAll(o.Directory, 0o700); err != nil {
		return s, err
	}
	if s.authority, err = openAuthority(&o, time.Now()); err != nil {
		return s, fmt.Errorf("certificates: %w", err)
	}
	if err := s.startCoordinator(ctx); err != nil {
		return s, err
	}
	if err := s.startPrometheus(ctx); err != nil {
		return s, err
	}
	s.coordinatorWeb = exporter.Handler(s.coordinator, o.Policy, o.Log, s.authority.service, s.authority)
	s.serveInside(coordinatorHost, s.coordinatorWeb)
	s.serveInside(prometheusHost, s.prometheus)
	s.serveInside(analyzerHost, http.HandlerFunc(s.serveAnalyzer))
	s.runs.Go(func() { s.authority.renew(ctx) })
	if s.discovery == nil {
		return s, s.startAnalyzer(o.TopologyFile)
	}
	if s.discovery.hasTopology() {
		err = s.startAnalyzer(s.discovery.topologyFile)
	}
	s.runs.Go(func() { s.discovery.follow(ctx, s.coordinator.Interfaces, s.useTopology) })
	return s, err
}

// startCoordinator starts the coordinator, with which nodes enroll by join tokens.
func (s *Site) startCoordinator(ctx context.Context) (err error) {
	o := coordinator.DefaultOptions()
	o.TopologyFile, o.StateFile = s.o.TopologyFile, s.o.file("coordinator.json")
	if s.o.TopologyFile == "" {
		if s.discovery, err = openDiscovery(s.o.Directory, s.o.Log); err != nil {
			return err
		}
		o.TopologyFile, o.AnyNode = s.discovery.topologyFile, true
	}
	if o.WebPrefixes, err = coordinator.ParsePrefixes(s.o.WebPrefixes); err != nil {
		return err
	}
	o.Schedule.Cadence = s.o.Cadence
	o.Version, o.AskClients, o.MaintenanceClients = buildversion.Version(), []string{analyzerName}, []string{analyzerName}
	o.Planner = coordinator.Planner{Make: schedule.Make, Rebalance: schedule.Rebalance}
	if s.coordinator, err = coordinator.New(o, s.o.Log); err != nil {
		return err
	}
	if s.tokens, err = openTokens(s.o.JoinTokenFile(), s.o.file("join-tokens.used")); err != nil {
		return fmt.Errorf("join tokens: %w", err)
	}
	if err := s.authority.offer(enroll.Options{Tokens: s.tokens, Known: s.coordinator.HasNode, Log: s.o.Log}); err != nil {
		return err
	}
	listener, err := coordinator.Listen(ctx, s.o.AgentsAddress)
	if err != nil {
		return fmt.Errorf("listen for agents at %s: %w", s.o.AgentsAddress, err)
	}
	s.agents = coordinator.NewServer(s.coordinator, s.authority.own, s.authority.service)
	s.runs.Go(func() {
		if err := s.agents.Serve(listener); err != nil {
			s.failed <- fmt.Errorf("serve agents at %s: %w", s.o.AgentsAddress, err)
		}
	})
	s.runs.Go(func() {
		if err := s.coordinator.Run(ctx); err != nil {
			s.failed <- fmt.Errorf("write the coordinator's state: %w", err)
		}
	})
	return nil
}

// openTokens opens the record of join tokens. The file of those that were issued is created when it is missing.
func openTokens(issued, used string) (*jointoken.Book, error) {
	f, err := os.OpenFile(issued, os.O_CREATE|os.O_WRONLY, 0o644)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return jointoken.OpenBook(issued, used, time.Now())
}

// startPrometheus starts the Prometheus.
func (s *Site) startPrometheus(ctx context.Context) (err error) {
	var c *daemon.Config
	if s.discovery == nil {
		c, err = s.daemonHost(s.o.TopologyFile).LoadConfig(s.o.ConfigFile)
	} else { // it may have no topology yet, and has no switches
		c, _, err = s.daemonHost(s.discovery.topologyFile).ReadConfig(s.o.ConfigFile)
	}
	if err != nil {
		return err
	}
	config, err := prometheusConfig(deploy.PrometheusConfig, &s.o, c.Switches)
	if err != nil {
		return err
	}
	var notify func([]promserver.Alert)
	if s.o.WebhookFile != "" {
		w, err := newWebhook(s.o.WebhookFile, s.o.ExternalURL.String(), s.o.Log)
		if err != nil {
			return fmt.Errorf("webhook: %w", err)
		}
		notify = w.notify
		s.runs.Go(func() { w.run(ctx) })
	}
	external := *s.o.ExternalURL
	external.Path = strings.TrimSuffix(external.Path, "/") + PrometheusPath
	s.prometheus, err = promserver.New(promserver.Options{Config: config, Directory: s.o.file("prometheus"), Retention: s.o.Retention, Rules: rules.Files, Notify: notify,
		Dial: s.inside.dial, ExternalURL: &external, Log: s.o.Log.With("component", "prometheus")})
	return err
}

// daemonHost returns what the analyzer gets from this process.
func (s *Site) daemonHost(topologyFile string) daemon.Host {
	return daemon.Host{Dial: s.inside.dial, NoPrometheusPages: true, URL: s.o.ExternalURL, Defaults: func(c *daemon.Config) {
		c.TopologyFile = topologyFile
		c.Prometheus.URL = "http://" + prometheusHost
		c.Agents = &daemon.Agents{Coordinator: &daemon.Coordinator{Endpoint: daemon.Endpoint{URL: "http://" + coordinatorHost}}}
		c.Asking = s.authority.agentPort(s.o.AgentsAddress)
		c.Maintenance.Coordinator = c.Asking
	}}
}

// startAnalyzer starts the analyzer by a topology.
func (s *Site) startAnalyzer(topologyFile string) error {
	d, err := s.daemonHost(topologyFile).New(s.o.ConfigFile, s.o.Policy, s.o.Log, certificates.NewCollector(s.o.Listener))
	if err == nil {
		s.analyzer.Store(d)
	}
	return err
}

// useTopology puts a discovered topology to use.
func (s *Site) useTopology(file string) error {
	if err := s.coordinator.Reload(); err != nil {
		return err
	}
	if d := s.analyzer.Load(); d != nil {
		return d.ReloadConfig()
	}
	return s.startAnalyzer(file)
}

// Reload reads the topology file and the configuration of the analyzer again.
func (s *Site) Reload() error {
	err := s.coordinator.Reload()
	if d := s.analyzer.Load(); d != nil {
		err = errors.Join(err, d.ReloadConfig())
	}
	return err
}

// Failed gets an error when a part fails that the others need.
func (s *Site) Failed() <-chan error { return s.failed }

// serveInside serves a handler at a host inside the process.
func (s *Site) serveInside(host string, h http.Handler) {
	server := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelWarn), ReadHeaderTimeout: time.Minute}
	s.servers = append(s.servers, server)
	s.runs.Go(func() {
		if err := server.Serve(s.inside.listeners[host]); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serve %s: %w", host, err)
		}
	})
}

// serveAnalyzer serves the analyzer, or says why there is none yet.
func (s *Site) serveAnalyzer(w http.ResponseWriter, r *http.Request) {
	if d := s.analyzer.Load(); d != nil {
		d.ServeHTTP(w, r)
		return
	}
	switch r.URL.Path {
	case "/-/healthy":
		fmt.Fprintln(w, "healthy")
	case "/metrics":
		// Nothing is known yet, and nothing is not 0.
	default:
		http.Error(w, s.discovery.describe(), http.StatusServiceUnavailable)
	}
}

// Handler returns the handler of the site's web listener: the analyzer's page and API, Prometheus' HTTP API below
// PrometheusPath, and the coordinator's below /coordinator.
func (s *Site) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.serveAnalyzer)
	mux.Handle(PrometheusPath+"/", http.StripPrefix(PrometheusPath, s.prometheus))
	mux.Handle("/coordinator/", http.StripPrefix("/coordinator", s.coordinatorWeb))
	mux.HandleFunc("POST /-/reload", s.o.Policy.ReloadHandler(func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Reload(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "reloaded")
	}))
	return mux
}

// Close stops everything and writes what has to survive.
func (s *Site) Close() error {
	var errs []error
	s.stop()
	if s.agents != nil {
		s.agents.Stop()
	}
	if d := s.analyzer.Load(); d != nil {
		errs = append(errs, d.Close())
	}
	if s.prometheus != nil {
		errs = append(errs, s.prometheus.Close())
	}
	for _, server := range s.servers {
		errs = append(errs, server.Close())
	}
	s.runs.Wait()
	if s.tokens != nil {
		errs = append(errs, s.tokens.Close())
	}
	for {
		select {
		case err := <-s.failed:
			errs = append(errs, err)
		default:
			return errors.Join(errs...)
		}
	}
}

// loopbackOf returns the address by which this process reaches its own listener.
func loopbackOf(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}
