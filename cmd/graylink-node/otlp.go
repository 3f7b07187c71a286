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

// pushFlags holds the --otlp flags.
type pushFlags struct {
	options otlp.Options
	edges   bool
	logs    bool
}

func addPushFlags(app *kingpin.Application) *pushFlags {
	f := &pushFlags{}
	o := &f.options
	app.Flag("otlp.endpoint", "OTLP receiver that the series are pushed to: host:port, or a URL. If it is empty, no series are pushed.").StringVar(&o.Endpoint)
	app.Flag("otlp.logs", "Push health events of NICs as log records as well, if there is an endpoint.").Default("true").BoolVar(&f.logs)
	app.Flag("otlp.logs-endpoint", "OTLP receiver of the log records. If it is empty, the host of --otlp.endpoint receives them. With HTTP, a path that ends in /v1/metrics then ends in /v1/logs, and any other path is replaced by /v1/logs.").StringVar(&o.LogsEndpoint)
	app.Flag("otlp.protocol", "OTLP over gRPC, or over HTTP with protobuf.").Default(otlp.GRPC).EnumVar(&o.Protocol, otlp.GRPC, otlp.HTTP)
	app.Flag("otlp.interval", "Time between pushes.").Default(otlp.DefaultInterval.String()).DurationVar(&o.Interval)
	app.Flag("otlp.edges", "Push the series of every edge as well.").BoolVar(&f.edges)
	app.Flag("otlp.ca", "PEM file of the authorities that sign the receiver's certificate. If it is empty, the system's authorities apply.").StringVar(&o.TLS.CA)
	app.Flag("otlp.cert", "PEM file of the client's certificate.").StringVar(&o.TLS.Cert)
	app.Flag("otlp.key", "PEM file of the client's key.").StringVar(&o.TLS.Key)
	app.Flag("otlp.insecure", "Push in plain text.").BoolVar(&o.Insecure)
	app.Flag("otlp.headers-file", `File of "name: value" lines that are sent as headers with every push.`).StringVar(&o.HeadersFile)
	return f
}

// startPush pushes the node's series until stop is called. If the flags name no endpoint, it pushes nothing, and stop
// returns nil at once.
func (f *pushFlags) startPush(ctx context.Context, series *node.Exporter, instance string, started time.Time, log *slog.Logger) (stop func() error, err error) {
	if f.options.Endpoint == "" {
		return func() error { return nil }, nil
	}
	o := f.options
	o.Gather = []prometheus.Gatherer{series.PushGatherer(f.edges)}
	if err := setIdentity(&o, instance); err != nil {
		return nil, err
	}
	o.Start, o.Log = started, log
	e, err := otlp.New(o, series.Registry())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	return func() error { cancel(); return <-done }, nil
}

// certificates returns the certificates of the connections that pushes use, or nil if pushes use none.
func (f *pushFlags) certificates() pki.Source {
	o := &f.options
	if o.Insecure || o.Endpoint == "" && (!f.logs || o.LogsEndpoint == "") {
		return nil
	}
	return pki.NewWatch(pki.FilesOf(o.TLS.CA, o.TLS.Cert)...)
}

// setIdentity sets the version, the host and the instance that pushes carry.
func setIdentity(o *otlp.Options, instance string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	o.Identity = otlp.Identity{Service: "graylink-node", Version: buildversion.Version(), Host: host, Instance: instance}
	return nil
}

// newLogPusher returns the pusher of health events. It returns nil if the flags disable log records or name no
// endpoint.
func (f *pushFlags) newLogPusher(r prometheus.Registerer, instance string, log *slog.Logger) (*otlp.Logs, error) {
	if !f.logs || f.options.Endpoint == "" && f.options.LogsEndpoint == "" {
		return nil, nil
	}
	o := f.options
	o.Log = log
	if err := setIdentity(&o, instance); err != nil {
		return nil, err
	}
	return otlp.NewLogs(o, r)
}
