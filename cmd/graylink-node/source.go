package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/exporter-toolkit/web"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/rdma"
)

// sourceFlags state where the configuration comes from, which is a file or a coordinator.
type sourceFlags struct {
	options    nodeagent.FleetOptions
	enroll     enrollFlags
	errorBound time.Duration
	pkeyIndex  int
	readClock  func(*slog.Logger) (probe.Clock, error)
}

func addSourceFlags(app *kingpin.Application) *sourceFlags {
	f := &sourceFlags{options: nodeagent.FleetOptions{Version: buildversion.Version()}}
	o := &f.options
	app.Flag("config.file", "Configuration file (YAML). Without it, a coordinator assigns the edges to probe. With both, the coordinator is used for clocks only.").StringVar(&o.File)
	app.Flag("coordinator.address", "Address of the coordinator: host:port, or unix:PATH. May be given several times, for a coordinator and its standby: they are tried in turn.").StringsVar(&o.Coordinator.Addresses)
	app.Flag("coordinator.ca", "PEM file of the authorities that sign the coordinator's certificate.").StringVar(&o.Coordinator.Files.CA)
	app.Flag("coordinator.cert", "PEM file of this node's certificate.").StringVar(&o.Coordinator.Files.Cert)
	app.Flag("coordinator.key", "PEM file of this node's key.").StringVar(&o.Coordinator.Files.Key)
	app.Flag("coordinator.server-name", `Name in the coordinator's certificate. The default is the host of its address, or "coordinator" for a unix socket.`).StringVar(&o.Coordinator.ServerName)
	f.enroll.add(app)
	app.Flag("node.name", "Name of this node in the topology. The default is the name in its certificate.").StringVar(&o.Node)
	app.Flag("state.file", "File that keeps the last assignment of the coordinator, so that a restart does not need the coordinator. It holds secrets. FILE.life keeps the number of the agent's life, by which peers recognise packets from before a restart as replays.").StringVar(&o.StateFile)
	app.Flag("web.advertise-address", "Address at which Prometheus scrapes this node, host:port. The default is the first listen address. If it has no host, the coordinator uses the address that this node connects from.").StringVar(&o.Web)
	app.Flag("timestamps", `Time stamps to use with a coordinator: "" selects the NICs' own stamps if they have them, and kernel selects the kernel's.`).EnumVar(&o.Timestamps, "", "kernel")
	app.Flag("rdma", "With a coordinator, probe by RDMA datagrams if both ends have a queue pair. It needs a build with the tag rdma.").BoolVar(&o.RDMA)
	app.Flag("rdma.pkey-index", "With --rdma, index of the partition key of InfiniBand ports without an IPoIB interface. A negative value means that of the default partition. IPoIB interfaces have their own.").Default("-1").IntVar(&f.pkeyIndex)
	app.Flag("clock.error-bound", "With a coordinator, error bound of this node's clock. A negative value means that the bound is unknown.").Default("-1s").DurationVar(&f.errorBound)
	app.Flag("clock.sync", "With a coordinator, relate this node's clocks to its peers' clocks, and measure one-way delays by the result.").Default("true").BoolVar(&o.Clock.Sync)
	app.Flag("clock.chrony-sock", "Socket of a reference clock of chronyd (refclock SOCK). Once a second it receives the offset of the system clock from the coordinator's --clock.reference. If it is empty, no samples are sent.").StringVar(&o.Clock.ChronySock)
	f.readClock = addClockFlags(app)
	return f
}

// validate returns an error if flags are missing beside others.
func (f *sourceFlags) validate() error {
	o := &f.options
	switch {
	case o.File == "" && len(o.Coordinator.Addresses) == 0:
		return errors.New("--config.file or --coordinator.address is required; both are allowed")
	case f.enroll.wanted:
		return f.enroll.validate(o)
	case len(o.Coordinator.Addresses) > 0 && (o.Coordinator.Files.CA == "" || o.Coordinator.Files.Cert == "" || o.Coordinator.Files.Key == ""):
		return errors.New("--coordinator.address needs --enroll, or --coordinator.ca, --coordinator.cert and --coordinator.key")
	case f.pkeyIndex >= 0 && !o.RDMA:
		return errors.New("--rdma.pkey-index needs --rdma")
	case f.pkeyIndex > rdma.MaxPKeyIndex:
		return fmt.Errorf("--rdma.pkey-index=%d: want at most %d", f.pkeyIndex, rdma.MaxPKeyIndex)
	case o.Clock.ChronySock != "" && (len(o.Coordinator.Addresses) == 0 || !o.Clock.Sync):
		return errors.New("--clock.chrony-sock needs --coordinator.address and --clock.sync")
	}
	return nil
}

// start starts the node that the flags describe, once it has a certificate if it enrolls, and returns the address that the node advertises.
func (f *sourceFlags) start(ctx context.Context, listener *web.FlagConfig, log *slog.Logger) (n *nodeagent.Node, advertised string, err error) {
	o := f.options
	advertised = o.Web
	if err := f.validate(); err != nil {
		return nil, "", err
	}
	clock, err := f.readClock(log)
	if err != nil {
		return nil, "", err
	}
	if clock != nil && o.Clock.ChronySock != "" {
		return nil, "", errors.New("--clock.chrony-sock cannot be combined with the --clock-* flags for tests, which make the clock wrong")
	}
	if len(o.Coordinator.Addresses) == 0 {
		n, err = nodeagent.Start(o.File, o.StateFile, clock, o.Signals, log)
		return n, advertised, err
	}
	o.Clock.Node = clock
	if listen := *listener.WebListenAddresses; o.Web == "" && len(listen) > 0 {
		o.Web = listen[0]
	}
	o.WebScheme = listenerScheme(*listener.WebConfigFile)
	if f.pkeyIndex >= 0 {
		o.PKeyIndex = &f.pkeyIndex
	}
	if f.errorBound >= 0 {
		o.Clock.ErrorBound = new(time.Duration)
		*o.Clock.ErrorBound = f.errorBound
	}
	if e := f.enroll.enrollment(&o, log); e != nil {
		if err := e.Obtain(ctx); err != nil {
			return nil, "", err
		}
		o.Coordinator.Files, o.Coordinator.Renew = e.Files(), e.Run
	}
	n, err = nodeagent.StartFleet(o, log)
	return n, advertised, err
}

// addClockFlags adds the flags that make the clock wrong for a test. The returned function returns the clock that they
// describe, or nil if none of them is set.
func addClockFlags(app *kingpin.Application) func(*slog.Logger) (probe.Clock, error) {
	offset := app.Flag("clock-offset", "For tests: error of the clock from the start.").Duration()
	drift := app.Flag("clock-drift-ppm", "For tests: rate error of the clock in parts per million.").Float64()
	file := app.Flag("clock-bend-file", `For tests: file {"step_ns":N,"drift_ppm":F} with an error that is added while the file exists.`).String()
	return func(log *slog.Logger) (probe.Clock, error) {
		if *offset == 0 && *drift == 0 && *file == "" {
			return nil, nil
		}
		log.Warn("the clock is wrong on purpose for a test; the times that this node reports are wrong", "offset", *offset, "drift_ppm", *drift, "file", *file)
		return bentclock.New(time.Now(), *offset, *drift, *file)
	}
}

// listenerScheme returns the scheme, http or https, that the listener serves with a web configuration of the exporter
// toolkit.
func listenerScheme(webConfig string) string {
	var c struct {
		TLS map[string]any `yaml:"tls_server_config"`
	}
	if b, err := os.ReadFile(webConfig); err == nil && yaml.Unmarshal(b, &c) == nil && len(c.TLS) > 0 {
		return "https"
	}
	return "http"
}
