package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/cmd/graylink/serve"
	"github.com/graylink/graylink/internal/program"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/webserver"
)

// serveFlags are the flags of graylink serve.
type serveFlags struct {
	o     serve.Options
	web   *webserver.Flags
	level string
}

// addServe adds the command serve, which runs a small site in one process.
func addServe(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("serve", "Run all of a small site in one process: the coordinator, a Prometheus with the rules, the analyzer and its page, for up to 64 nodes. Without --topology.file the fabric is discovered from what the agents report. SIGHUP reads the topology and the configuration again. Exit code 0: stopped by a signal, 1: it could not start, 2: a part failed.")
	f := &serveFlags{}
	o := &f.o
	cmd.Flag("state.directory", "Directory of everything that has to survive a restart: certificates, join tokens, the coordinator's state, a discovered topology, and the database. It holds secrets.").Default("/var/lib/graylink/serve").StringVar(&o.Directory)
	cmd.Flag("topology.file", "Topology of the fabric (YAML). If empty, the fabric is discovered: networks of NICs, without switches and cables.").StringVar(&o.TopologyFile)
	cmd.Flag("config.file", "Configuration of the analyzer (YAML), such as jobs and maintenance windows, in which nothing is required: docs/analyzer.md.").StringVar(&o.ConfigFile)
	cmd.Flag("agents.listen-address", "Address to accept agents on: host:port.").Default(":9870").StringVar(&o.AgentsAddress)
	cmd.Flag("agents.address", "Name or address of this host that agents connect to, for the certificate of the site; may be repeated. Default: the host's name and all its addresses.").StringsVar(&o.Names)
	cmd.Flag("agents.web-prefixes", "Prefix of addresses that agents may be scraped at, besides the address that they connect from; may be repeated.").StringsVar(&o.WebPrefixes)
	cmd.Flag("schedule.cadence", "Time between two probes of an edge of a near tier.").Default(schedule.DefaultOptions().Cadence.String()).DurationVar(&o.Cadence)
	cmd.Flag("storage.retention", "Time that samples are kept.").Default("360h").DurationVar(&o.Retention)
	cmd.Flag("alertmanager.url", "URL of an Alertmanager that gets the alerts; may be repeated. If empty, alerts are in the API and go to the webhook only.").StringsVar(&o.Alertmanagers)
	cmd.Flag("webhook.url-file", "File of the URL of a webhook that gets the alerts, in the format of Alertmanager's webhooks.").StringVar(&o.WebhookFile)
	cmd.Flag("log.level", "Lowest level of messages that are logged.").Default("info").EnumVar(&f.level, "debug", "info", "warn", "error")
	f.web = webserver.AddFlags(cmd, "127.0.0.1:9872")
	f.web.AddLifecycle(cmd)
	f.web.AddAdminAPI(cmd, "POST and DELETE of /api/v1/maintenance, POST /api/v1/catalogue and /api/v1/plan, GET /api/v1/observe, POST /coordinator/api/v1/keys/rotate")
	commands[cmd.FullCommand()] = f.runServe
}

// complete checks the flags, and fills in what follows from the host.
func (f *serveFlags) complete() error {
	o := &f.o
	if err := f.web.Validate(); err != nil {
		return err
	}
	if o.Retention < time.Hour {
		return fmt.Errorf("--storage.retention %v: at least 1h0m0s is expected", o.Retention)
	}
	if _, _, err := net.SplitHostPort(o.AgentsAddress); err != nil {
		return fmt.Errorf("--agents.listen-address: %w", err)
	}
	for _, file := range []*string{&o.Directory, &o.TopologyFile, &o.ConfigFile} {
		if *file == "" {
			continue
		}
		absolute, err := filepath.Abs(*file)
		if err != nil {
			return err
		}
		*file = absolute
	}
	if len(o.Names) == 0 {
		var err error
		if o.Names, err = namesOfHost(); err != nil {
			return fmt.Errorf("the host's name and addresses, which --agents.address replaces: %w", err)
		}
	}
	return nil
}

// externalURL returns the address of the page for browsers: that of the flag, or that of the listener.
func (f *serveFlags) externalURL() *url.URL {
	if u := f.o.Policy.ExternalURL; u != nil {
		return u
	}
	u := &url.URL{Scheme: "http", Host: (*f.web.Toolkit.WebListenAddresses)[0]}
	if *f.web.Toolkit.WebConfigFile != "" {
		u.Scheme = "https"
	}
	return u
}

// namesOfHost returns the name and the addresses of this host.
func namesOfHost() ([]string, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	names := []string{name}
	addresses, err := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, is := a.(*net.IPNet); is && n.IP.IsGlobalUnicast() {
			names = append(names, n.IP.String())
		}
	}
	slices.Sort(names[1:])
	return slices.Compact(names), err
}

func (f *serveFlags) runServe(ctx context.Context) error {
	if err := f.complete(); err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	hangup, stopHangup := program.ReloadSignals()
	defer stopHangup()
	f.o.Log, f.o.Policy, f.o.Listener = log, f.web.NewPolicy(log), f.web.Certificates()
	f.o.Policy.QueryPaths = serve.PrometheusPath + "/api/v1/"
	f.o.ExternalURL = f.externalURL()
	site, err := serve.Start(f.o)
	if err != nil {
		return errors.Join(err, site.Close())
	}
	log.Info("nodes can enroll", "tokens", fmt.Sprintf("graylink join-token NODE... --file %s --ca %s", f.o.JoinTokenFile(), f.o.AuthorityFile()))
	p := &program.Program{Web: f.web}
	service := p.StartService(f.web.NewServer(site.Handler(), f.o.Policy, log), log)
	log.Info("the page is served", "url", f.o.ExternalURL.String())
	web, failed := service.Wait(ctx, program.Events{Hangup: hangup, Failed: site.Failed(), Reload: program.LogReload(log, "cannot reload", site.Reload)})
	err = errors.Join(web, failed, service.Stop(), site.Close())
	if err != nil {
		return exitError{code: 2, err: err}
	}
	return nil
}
