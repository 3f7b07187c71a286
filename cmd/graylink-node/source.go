package main

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/exporter-toolkit/web"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/exporters/node"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/probe"
)

// addSourceFlags adds the flags that say where the configuration comes from: a
// file or a coordinator. The function starts the node they describe, and returns the
// address by which the node makes itself known.
func addSourceFlags(app *kingpin.Application) (start func(listener *web.FlagConfig, log *slog.Logger) (n *node.Node, advertised string, err error)) {
	o := node.FleetOptions{Version: buildversion.Version()}
	app.Flag("config.file", "Configuration file (YAML). Without it a coordinator says what to probe; beside one, it is asked about clocks only.").StringVar(&o.File)
	app.Flag("coordinator.address", "The coordinator: host:port, or unix:PATH.").StringVar(&o.Address)
	app.Flag("coordinator.ca", "File of the authorities that its certificate must come from (PEM).").StringVar(&o.Files.CA)
	app.Flag("coordinator.cert", "File of this node's certificate (PEM).").StringVar(&o.Files.Cert)
	app.Flag("coordinator.key", "File of its key (PEM).").StringVar(&o.Files.Key)
	app.Flag("coordinator.server-name", `Name of the coordinator's certificate. Default: the host of its address, "coordinator" at a unix socket.`).StringVar(&o.ServerName)
	app.Flag("node.name", "Name of this node in the topology. Default: that of its certificate.").StringVar(&o.Node)
	app.Flag("state.file", "What the coordinator said last, so that a restart does not need it; FILE.life has the number of the agent's life, which makes packets from before a restart known as replays. Holds secrets.").StringVar(&o.StateFile)
	app.Flag("web.advertise-address", "Where Prometheus finds this node, host:port. Default: the first listen address; without a host, the coordinator takes the one this node comes from.").StringVar(&o.Web)
	app.Flag("timestamps", `Time stamps, where a coordinator is asked: "" for the NICs' where they have them, or kernel.`).EnumVar(&o.Timestamps, "", "kernel")
	app.Flag("rdma", "Probe by RDMA datagrams where both ends have a queue pair, where a coordinator is asked. Needs a build with the tag rdma.").BoolVar(&o.RDMA)
	bound := app.Flag("clock.error-bound", "Error bound of this node's clock, where a coordinator is asked. Negative: not stated.").Default("-1s").Duration()
	app.Flag("clock.sync", "Relate this node's clocks to its peers', and measure one-way delays by that, where a coordinator is asked.").Default("true").BoolVar(&o.ClockSync)
	app.Flag("clock.chrony-sock", "Socket of a reference clock of chronyd (refclock SOCK) that is told once a second how the system clock stands against the coordinator's --clock.reference. Empty: none.").StringVar(&o.ChronySock)
	bend := addBendFlags(app)
	return func(listener *web.FlagConfig, log *slog.Logger) (*node.Node, string, error) {
		advertised := o.Web
		switch {
		case o.File == "" && o.Address == "":
			return nil, "", errors.New("--config.file or --coordinator.address: want one of them, or both")
		case o.Address != "" && (o.Files.CA == "" || o.Files.Cert == "" || o.Files.Key == ""):
			return nil, "", errors.New("--coordinator.address needs --coordinator.ca, --coordinator.cert and --coordinator.key")
		case o.ChronySock != "" && (o.Address == "" || !o.ClockSync):
			return nil, "", errors.New("--clock.chrony-sock needs --coordinator.address and --clock.sync")
		}
		bent, err := bend(log)
		if err != nil {
			return nil, "", err
		}
		if bent != nil && o.ChronySock != "" {
			return nil, "", errors.New("--clock.chrony-sock: a clock that is bent for a test steers nothing")
		}
		if o.Address == "" {
			n, err := node.Start(o.File, o.StateFile, bent, log)
			return n, advertised, err
		}
		o.Bend = bent
		if listen := *listener.WebListenAddresses; o.Web == "" && len(listen) > 0 {
			o.Web = listen[0]
		}
		o.WebScheme = listenerScheme(*listener.WebConfigFile)
		if *bound >= 0 {
			o.ErrorBound = new(time.Duration)
			*o.ErrorBound = *bound
		}
		n, err := node.StartFleet(o, log)
		return n, advertised, err
	}
}

// addBendFlags adds the flags that make the clock wrong. The function gives what
// they ask for; nil: nothing.
func addBendFlags(app *kingpin.Application) func(*slog.Logger) (*probe.Bend, error) {
	offset := app.Flag("clock-offset", "For tests: by how much the clock is wrong from the start.").Duration()
	drift := app.Flag("clock-drift-ppm", "For tests: by how much it gains, in millionths.").Float64()
	file := app.Flag("clock-bend-file", `For tests: file {"step_ns":N,"drift_ppm":F} of what is added while it is there.`).String()
	return func(log *slog.Logger) (*probe.Bend, error) {
		if *offset == 0 && *drift == 0 && *file == "" {
			return nil, nil
		}
		log.Warn("the clock is bent, for a test: what this node says of time is wrong", "offset", *offset, "drift_ppm", *drift, "file", *file)
		return probe.NewBend(time.Now(), *offset, *drift, *file)
	}
}

// listenerScheme is what a web configuration of the exporter toolkit makes the
// listener speak.
func listenerScheme(webConfig string) string {
	var c struct {
		TLS map[string]any `yaml:"tls_server_config"`
	}
	if b, err := os.ReadFile(webConfig); err == nil && yaml.Unmarshal(b, &c) == nil && len(c.TLS) > 0 {
		return "https"
	}
	return "http"
}
