package evidence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	config_util "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// Target is something the embedded Prometheus scrapes.
type Target struct {
	Job     string
	Address string // host:port, given to Dial as it is
	Path    string
}

// EmbeddedOptions configure the embedded Prometheus.
type EmbeddedOptions struct {
	// Dial reaches the targets.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Interval between scrapes; 0 means one second.
	Interval time.Duration
	Targets  []Target
	Log      *slog.Logger
}

// Embedded is a Prometheus in this process: the TSDB, scrape loop and PromQL
// engine of the Prometheus project, for one machine, the demo and tests. It
// keeps its data in a temporary directory that Close removes.
type Embedded struct {
	db      *tsdb.DB
	engine  *promql.Engine
	manager *scrape.Manager
	dir     string
	wg      sync.WaitGroup
}

// NewEmbedded opens the TSDB and starts scraping.
func NewEmbedded(o EmbeddedOptions) (e *Embedded, err error) {
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("embedded Prometheus: %w", err)
		}
	}()
	dir, err := os.MkdirTemp("", "graylink-tsdb-")
	if err != nil {
		return nil, err
	}
	e = &Embedded{dir: dir}
	opts := tsdb.DefaultOptions()
	opts.RetentionDuration = (2 * time.Hour).Milliseconds()
	opts.WALSegmentSize = -1 // nothing here has to survive a restart
	opts.NoLockfile = true
	e.db, err = tsdb.Open(dir, o.Log, nil, opts, nil)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	e.engine = promql.NewEngine(promql.EngineOpts{Logger: o.Log, MaxSamples: 50_000_000, Timeout: 10 * time.Second,
		LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true})
	if err := e.startScraping(o); err != nil {
		return nil, errors.Join(err, e.db.Close(), os.RemoveAll(dir))
	}
	return e, nil
}

func (e *Embedded) startScraping(o EmbeddedOptions) error {
	groups := map[string][]*targetgroup.Group{}
	paths := map[string]string{}
	for _, t := range o.Targets {
		if p, ok := paths[t.Job]; ok && p != t.Path {
			return fmt.Errorf("job %q has two paths, %q and %q", t.Job, p, t.Path)
		}
		paths[t.Job] = t.Path
		groups[t.Job] = append(groups[t.Job], &targetgroup.Group{Source: t.Address,
			Targets: []model.LabelSet{{model.AddressLabel: model.LabelValue(t.Address)}}})
	}
	var y strings.Builder
	fmt.Fprintf(&y, "global: {scrape_interval: %s, scrape_timeout: %s, scrape_native_histograms: true}\nscrape_configs:\n",
		model.Duration(o.Interval), model.Duration(o.Interval))
	for job, path := range paths {
		fmt.Fprintf(&y, "- {job_name: %q, metrics_path: %q, scrape_protocols: [PrometheusProto, OpenMetricsText1.0.0, PrometheusText1.0.0]}\n", job, path)
	}
	cfg, err := config.Load(y.String(), o.Log)
	if err != nil {
		return err
	}
	so := &scrape.Options{DiscoveryReloadInterval: model.Duration(100 * time.Millisecond), DiscoveryReloadOnStartup: true}
	if o.Dial != nil {
		so.HTTPClientOptions = []config_util.HTTPClientOption{config_util.WithDialContextFunc(o.Dial)}
	}
	e.manager, err = scrape.NewManager(so, o.Log, nil, nil, e.db, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	if err := e.manager.ApplyConfig(cfg); err != nil {
		return err
	}
	sets := make(chan map[string][]*targetgroup.Group, 1)
	sets <- groups
	e.wg.Add(1)
	go func() {
		defer e.wg.Done()
		if err := e.manager.Run(sets); err != nil {
			o.Log.Error("scraping ended", "err", err)
		}
	}()
	return nil
}

// QueryInstant evaluates a PromQL expression at one moment.
func (e *Embedded) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	return EvaluateAt(ctx, e.engine, e.db, query, at)
}

// EvaluateAt evaluates a PromQL expression at one moment, on any store.
func EvaluateAt(ctx context.Context, engine *promql.Engine, db storage.Queryable, query string, at time.Time) ([]Sample, error) {
	q, err := engine.NewInstantQuery(ctx, db, nil, query, at)
	if err != nil {
		return nil, fmt.Errorf("query %q: %w", query, err)
	}
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		return nil, fmt.Errorf("query %q: %w", query, res.Err)
	}
	vec, err := res.Vector()
	if err != nil {
		return nil, fmt.Errorf("query %q: %w", query, err)
	}
	out := make([]Sample, len(vec))
	for i, s := range vec {
		out[i].Value = s.F
		out[i].Labels = make(map[string]string, s.Metric.Len())
		s.Metric.Range(func(l labels.Label) { out[i].Labels[l.Name] = l.Value })
	}
	return out, nil
}

// Close stops scraping and removes the data.
func (e *Embedded) Close() error {
	e.manager.Stop()
	e.wg.Wait()
	return errors.Join(e.engine.Close(), e.db.Close(), os.RemoveAll(e.dir))
}
