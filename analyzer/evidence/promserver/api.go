package promserver

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/grafana/regexp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/route"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/util/notifications"
	api "github.com/prometheus/prometheus/web/api/v1"

	"github.com/graylink/graylink/internal/buildversion"
)

// Limits of remote reads, which are the defaults of Prometheus' flags.
const (
	remoteReadSamples    = 50_000_000
	remoteReadConcurrent = 10
	remoteReadFrame      = 1 << 20
)

// newAPI returns Prometheus' HTTP API. Nothing can be written, changed or deleted by it.
func (s *Server) newAPI() http.Handler {
	started := time.Now()
	external := api.GlobalURLOptions{ListenAddress: s.o.ExternalURL.Host, Host: s.o.ExternalURL.Host, Scheme: s.o.ExternalURL.Scheme}
	host, _ := os.Hostname() // an empty one is as good
	runtimeInfo := func() (api.RuntimeInfo, error) {
		return api.RuntimeInfo{StartTime: started, CWD: s.directory, Hostname: host, ServerTime: time.Now(), ReloadConfigSuccess: true, LastConfigTime: started,
			GoroutineCount: runtime.NumGoroutine(), GOMAXPROCS: runtime.GOMAXPROCS(0), GOMEMLIMIT: math.MaxInt64, StorageRetention: s.o.Retention.String()}, nil
	}
	v1 := api.NewAPI(s.engine, s.db, nil, nil, s.db,
		func(context.Context) api.ScrapePoolsRetriever { return s.scrapes },
		func(context.Context) api.TargetRetriever { return s.scrapes },
		func(context.Context) api.AlertmanagerRetriever { return s.notifier },
		func() config.Config { return *s.config }, nil, external,
		func(f http.HandlerFunc) http.HandlerFunc { return f },
		database{s.db}, s.directory, false, false, 0, s.o.Log,
		func(context.Context) api.RulesRetriever { return ruleLists{s.rules} },
		remoteReadSamples, remoteReadConcurrent, remoteReadFrame, false, regexp.MustCompile("^$"), runtimeInfo,
		&api.PrometheusVersion{Version: buildversion.Version(), GoVersion: runtime.Version()},
		func() []notifications.Notification { return nil },
		func() (<-chan notifications.Notification, func(), bool) { return nil, nil, false },
		s.registry, s.registry, nil, false, nil, false, false, false, false, lookbackDelta, false, false, nil, nil,
		api.OpenAPIOptions{ExternalURL: s.o.ExternalURL.String()}, s.parser)
	router := route.New()
	v1.Register(router)
	return router
}

// database adds to a database what Prometheus' API wants of one.
type database struct{ *tsdb.DB }

// Stats implements api.TSDBAdminStats.
func (d database) Stats(label string, limit int) (*tsdb.Stats, error) {
	return d.Head().Stats(label, limit), nil
}

// WALReplayStatus implements api.TSDBAdminStats.
func (d database) WALReplayStatus() (tsdb.WALReplayStatus, error) { return tsdb.WALReplayStatus{}, nil }

// BlockMetas implements api.TSDBAdminStats.
func (d database) BlockMetas() ([]tsdb.BlockMeta, error) { return d.DB.BlockMetas(), nil }

// ruleLists lists the rules of a manager, which may be missing.
type ruleLists struct{ manager *rules.Manager }

// RuleGroups implements api.RulesRetriever.
func (r ruleLists) RuleGroups() []*rules.Group {
	if r.manager == nil {
		return nil
	}
	return r.manager.RuleGroups()
}

// AlertingRules implements api.RulesRetriever.
func (r ruleLists) AlertingRules() []*rules.AlertingRule {
	if r.manager == nil {
		return nil
	}
	return r.manager.AlertingRules()
}

// Load implements rules.GroupLoader.
func (r ruleFiles) Load(file string, ignoreUnknown bool, names model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	text, err := fs.ReadFile(r.files, file)
	if err != nil {
		return nil, []error{err}
	}
	groups, errs := rulefmt.Parse(text, ignoreUnknown, names, r.parser, nil)
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s: %w", file, err)
	}
	return groups, errs
}

// Parse implements rules.GroupLoader.
func (r ruleFiles) Parse(query string) (parser.Expr, error) { return r.parser.ParseExpr(query) }

// Target is something to scrape.
type Target struct {
	Job     string
	Address string // host:port, given to Dial as it is
	Path    string
}

// StaticConfig returns the configuration of a server that scrapes targets at an interval, and does nothing else. All
// targets of a job have the same path.
func StaticConfig(interval time.Duration, targets []Target) string {
	var y strings.Builder
	fmt.Fprintf(&y, "global: {scrape_interval: %s, scrape_timeout: %s, scrape_native_histograms: true}\nscrape_configs:\n", model.Duration(interval), model.Duration(interval))
	var jobs []string
	addresses, paths := map[string][]string{}, map[string]string{}
	for _, t := range targets {
		if addresses[t.Job] == nil {
			jobs = append(jobs, t.Job)
		}
		addresses[t.Job], paths[t.Job] = append(addresses[t.Job], fmt.Sprintf("%q", t.Address)), t.Path
	}
	for _, job := range jobs {
		fmt.Fprintf(&y, "- {job_name: %q, metrics_path: %q, scrape_protocols: [PrometheusProto, OpenMetricsText1.0.0, PrometheusText1.0.0], static_configs: [{targets: [%s]}]}\n",
			job, paths[job], strings.Join(addresses[job], ", "))
	}
	return y.String()
}
