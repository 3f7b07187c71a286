// Command graylink-node probes other NICs of the fabric from this host's NICs,
// reflects their probes and publishes what it measures.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/exporters/node"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/webserver"
)

const help = `Probes other NICs of the fabric, reflects their probes and serves the measurements.

Exit codes: 0 stopped by a signal; 1 bad arguments or configuration, or a socket, a NIC's address or the web listener was not available; 2 a probe loop failed while running. With --selftest: 0 everything can be used; 3 the program was built without the feature; 4 there is no device; 5 something cannot be used.`

// Exit codes, as listed in the help text.
const (
	exitSetup  = 1
	exitFailed = 2
)

// selfTestCodes maps the result of a self-test to the exit code.
var selfTestCodes = map[rdma.SelfTestResult]int{rdma.SelfTestOK: 0, rdma.SelfTestNotBuilt: 3, rdma.SelfTestNoDevices: 4, rdma.SelfTestFailed: 5}

func main() { os.Exit(run()) }

func run() int {
	app := kingpin.New("graylink-node", help)
	app.HelpFlag.Short('h')
	app.UsageWriter(os.Stdout).Version(buildversion.Print("graylink-node"))
	start := addSourceFlags(app)
	level := app.Flag("log.level", "Lowest level of messages that are logged.").Default("info").Enum("debug", "info", "warn", "error")
	flags := webserver.AddFlags(app, "127.0.0.1:9868")
	flags.AddLifecycle(app)
	flags.AddAdminAPI(app, "POST /api/v1/trace and /api/v1/nic-health/reset")
	push := addPushFlags(app)
	selfTest := app.Flag("selftest", "Check that the host has what this feature needs, print the result and exit. The only feature is rdma.").Default("").Enum("", "rdma")
	health := addHealthFlags(app)
	if _, err := app.Parse(os.Args[1:]); err != nil {
		app.Errorf("%s, try --help", err)
		return exitSetup
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(*level)); err != nil {
		app.Errorf("%s", err)
		return exitSetup
	}
	if *selfTest != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return selfTestCodes[rdma.SelfTest(ctx, rdma.Library(), os.Stdout)]
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
	if err := flags.Validate(); err != nil {
		log.Error("cannot open the web listener", "err", err)
		return exitSetup
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)

	started := time.Now()
	n, advertised, err := start(flags.Toolkit, log)
	if err != nil {
		log.Error("cannot start the node", "err", err)
		return exitSetup
	}
	series := node.New(n, log)
	healthEnded, err := health.startMonitor(ctx, n, series, push, log)
	if err != nil {
		log.Error("cannot start the NIC health monitor", "err", err)
		if err := n.Close(); err != nil {
			log.Error("cannot stop probing", "err", err)
		}
		return exitSetup
	}
	defer healthEnded()
	defer stop() // it runs before healthEnded, so that every return ends the monitor
	stopPush, err := push.startPush(ctx, series, n.Name(), started, log)
	if err != nil {
		log.Error("cannot start the OTLP push", "err", err)
		if err := n.Close(); err != nil {
			log.Error("cannot stop probing", "err", err)
		}
		return exitSetup
	}
	series.AddCertificates(flags.Certificates(), push.certificates())
	policy := flags.NewPolicy(log, advertised)
	server := flags.NewServer(series.Handler(policy), policy, log)
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe(flags.Toolkit, log) }()
	log.Info("probing started", "version", buildversion.Info())

	code := 0
	watch := time.NewTicker(time.Second)
	defer watch.Stop()
	for running := true; running; {
		select {
		case <-ctx.Done():
			running = false
		case <-hangup:
			if err := n.Reload(); err != nil {
				log.Error("cannot reload the configuration", "err", err)
			} else {
				log.Info("reloaded")
			}
		case <-watch.C:
			if err := n.Ready(); err != nil {
				code, running = exitFailed, false
			}
		case err := <-served:
			log.Error("web server failed", "err", err)
			served <- nil
			code, running = exitSetup, false
		}
	}
	shutdown, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(shutdown); err != nil {
		log.Warn("cannot stop the web server", "err", err)
	}
	if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
		log.Warn("web server failed", "err", err)
	}
	if err := stopPush(); err != nil {
		log.Warn("cannot stop the OTLP push", "err", err)
	}
	if err := n.Close(); err != nil {
		log.Error("cannot stop probing", "err", err)
		return exitFailed
	}
	return code
}
