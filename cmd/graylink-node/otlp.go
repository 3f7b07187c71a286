package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/exporters/node"
	"github.com/graylink/graylink/exporters/otlp"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/pki"
)

// pushFlags are the --otlp flags.
type pushFlags struct {
	options otlp.Options
	edges   bool
	logs    bool
}

func addPushFlags(app *kingpin.Application) *pushFlags {
	f := &pushFlags{}
	o := &f.options
	app.Flag("otlp.endpoint", "OTLP receiver that the series are pushed to, host:port, or a URL. Empty: nothing is pushed.").StringVar(&o.Endpoint)
	app.Flag("otlp.logs", "Push health events of NICs as log records, too, when there is an endpoint.").Default("true").BoolVar(&f.logs)
	app.Flag("otlp.logs-endpoint", "OTLP receiver of the log records. Empty: that of --otlp.endpoint; with HTTP /v1/logs there, also where --otlp.endpoint has another path (one that ends in /v1/metrics gets /v1/logs in its place).").StringVar(&o.LogsEndpoint)
	app.Flag("otlp.protocol", "OTLP over gRPC, or over HTTP with protobuf.").Default(otlp.GRPC).EnumVar(&o.Protocol, otlp.GRPC, otlp.HTTP)
	app.Flag("otlp.interval", "Time between pushes.").Default(otlp.DefaultInterval.String()).DurationVar(&o.Interval)
	app.Flag("otlp.edges", "Push the series of every edge, too.").BoolVar(&f.edges)
	app.Flag("otlp.ca", "File of the authorities that vouch for the receiver (PEM). Empty: the system's.").StringVar(&o.TLS.CA)
	app.Flag("otlp.cert", "File of the client's certificate (PEM).").StringVar(&o.TLS.Cert)
	app.Flag("otlp.key", "File of the client's key (PEM).").StringVar(&o.TLS.Key)
	app.Flag("otlp.insecure", "Push in plain text.").BoolVar(&o.Insecure)
	app.Flag("otlp.headers-file", `File of "name: value" lines to send with every push.`).StringVar(&o.HeadersFile)
	return f
}

// startPush pushes a node's series until stop is called; where nothing is to be
// pushed it does nothing.
func (f *pushFlags) startPush(ctx context.Context, n *node.Node, started time.Time, log *slog.Logger) (stop func() error, err error) {
	if f.options.Endpoint == "" {
		return func() error { return nil }, nil
	}
	o := f.options
	metrics, edges := n.Gatherers()
	o.Gather = []prometheus.Gatherer{metrics}
	if f.edges {
		o.Gather = append(o.Gather, edges)
	}
	if err := setIdentity(&o, n); err != nil {
		return nil, err
	}
	o.Start, o.Log = started, log
	e, err := otlp.New(o, n.Registry())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	return func() error { cancel(); return <-done }, nil
}

// certificates returns those of the connections that pushes use.
func (f *pushFlags) certificates() pki.Source {
	o := &f.options
	if o.Insecure || o.Endpoint == "" && (!f.logs || o.LogsEndpoint == "") {
		return nil
	}
	return pki.NewWatch(pki.FilesOf(o.TLS.CA, o.TLS.Cert)...)
}

// setIdentity says who pushes.
func setIdentity(o *otlp.Options, n *node.Node) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	o.Service, o.Version, o.Host, o.Instance = "graylink-node", buildversion.Version(), host, n.Name()
	return nil
}

// newLogPusher returns what pushes health events; nil where nothing is to be pushed.
func (f *pushFlags) newLogPusher(n *node.Node, log *slog.Logger) (*otlp.Logs, error) {
	if !f.logs || f.options.Endpoint == "" && f.options.LogsEndpoint == "" {
		return nil, nil
	}
	o := f.options
	o.Log = log
	if err := setIdentity(&o, n); err != nil {
		return nil, err
	}
	return otlp.NewLogs(o, n.Registry())
}
