package daemon

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/graylink/graylink/analyzer"
	"github.com/graylink/graylink/analyzer/audit/latest"
	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/analyzer/web"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/webaccess"
)

// PageOptions configures the pages. Prometheus is the base URL of the Prometheus server for browsers, or "". Policy
// decides which clients may change the state. Windows keeps the maintenance windows of the API, unless it is nil. All series
// have Shard as a label, unless it is "".
type PageOptions struct {
	Title, Prometheus string
	// URL is the address of the page for browsers, to which alerts lead. Nil means that of the policy, which may be unknown.
	URL     *url.URL
	Shard   string
	Policy  *webaccess.Policy
	Windows *maintenance.Coordinator
	// Follower follows the collectives of jobs. Nil means that they are not followed.
	Follower *collectives.Follower
	// Catalogue builds catalogues of paths. Nil means that there are no agents that trace them.
	Catalogue *catalogue.Builder
	// Observer observes the queue pairs of running jobs. Nil means that there are no agents that list them.
	Observer *catalogue.Observer
	// ConfigHash identifies the configuration, or is "".
	ConfigHash string
	// Audit has the report of the latest audit. Nil means that there is none.
	Audit *latest.File
}

// browserURL returns the address of the page for browsers, or "" if it is not known.
func (s *PageOptions) browserURL() string {
	u := s.URL
	if u == nil {
		u = s.Policy.ExternalURL
	}
	if u == nil {
		return ""
	}
	// A password would be in every alert.
	plain := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return plain.String()
}

// NewMux returns the HTTP handlers of a loop: its series and those of more, the API, the page, and the health
// checks.
func NewMux(l *analyzer.Loop, s PageOptions, more ...prometheus.Collector) *http.ServeMux {
	reg := prometheus.NewRegistry()
	to := prometheus.Registerer(reg)
	if s.Shard != "" {
		to = prometheus.WrapRegistererWith(prometheus.Labels{"shard": s.Shard}, reg)
	}
	to.MustRegister(&publish.Collector{Snapshot: l.Snapshot, Store: l.PathStore(), Switches: l.Sources().SwitchStates, URL: s.browserURL()},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), loopHealth{l})
	to.MustRegister(more...)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if l.Snapshot().At.IsZero() {
			http.Error(w, "no cycle yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	comparer, reports := l.NewComparer(), l.Reports()
	reports.Version, reports.ConfigHash, reports.Shard = buildversion.Version(), s.ConfigHash, s.Shard
	matrices := matrix.Source{Store: l.Matrix(), Past: l.PastMatrix()}
	api := &publish.API{Snapshot: l.Snapshot, Store: l.PathStore(), Matrix: matrices, Compare: comparer.Compare, Reports: reports, ReportStyle: web.Style()}
	if s.Follower != nil {
		api.Collectives = func(job string) (workload.Report, bool) {
			state := s.Follower.State()
			return state.JobReport(job)
		}
	}
	if s.Audit != nil {
		api.Audit = s.Audit.Read
	}
	api.RegisterHandlers(mux)
	publish.CollectivesAPI{Follower: s.Follower}.RegisterHandlers(mux)
	if m := l.MaintenanceRegister(); m != nil {
		(&maintenance.API{Register: m, Coordinator: s.Windows, Policy: s.Policy, Now: time.Now}).RegisterHandlers(mux)
	}
	if s.Catalogue != nil {
		(&catalogue.API{Builder: s.Catalogue, Graph: l.PathStore().Graph, Snapshot: l.Snapshot, Policy: s.Policy, Now: time.Now, Observer: s.Observer}).RegisterHandlers(mux)
	}
	page := &web.Handler{Snapshot: l.Snapshot, Store: l.PathStore(), Matrix: matrices.Store, Past: matrices.Past, Compare: comparer.Compare, Title: s.Title, Prometheus: s.Prometheus, Subnets: l.Sources().SubnetViews, Reports: reports, Now: time.Now, Changes: l.Changes()}
	if r := l.SignalReader(); r != nil {
		page.Bottlenecks = r.ReadBottlenecks
	}
	page.Audit = api.Audit
	if s.Follower != nil {
		page.Collectives = s.Follower.State
	}
	if s.Observer != nil {
		page.Observer = s.Observer
		page.MayObserve = s.Policy.CheckAdmin
	}
	mux.Handle("GET /", page)
	mux.Handle("GET /matrix", page)
	mux.Handle("GET /matrix/tile", page)
	mux.Handle("GET /events", page)
	mux.Handle("GET /compare", page)
	mux.Handle("GET /verdicts", page)
	mux.Handle("GET /verdicts/{id}", page)
	return mux
}
