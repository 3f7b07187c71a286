// Command graylink-node probes other NICs of the fabric from this host's NICs,
// reflects their probes and publishes what it measures.
package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/graylink/graylink/exporters/node"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/program"
	"github.com/graylink/graylink/internal/queuepair/nldev"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/rdmadev"
)

const help = `Probes other NICs of the fabric, reflects their probes and serves the measurements.

Exit codes: 0 stopped by a signal, or --check found nothing wrong; 1 bad arguments or configuration, or a socket, a NIC's address or the web listener was not available; 2 a probe loop failed while running. With --selftest: 0 everything can be used; 3 the program was built without the feature; 4 there is no device; 5 something cannot be used. With --preflight: 0 nothing is missing; 5 the agent would not start.`

// Exit codes, as listed in the help text.
const (
	exitSetup  = 1
	exitFailed = 2
)

// selfTestCodes maps the result of a self-test to the exit code.
var selfTestCodes = map[rdma.SelfTestResult]int{rdma.SelfTestOK: 0, rdma.SelfTestNotBuilt: 3, rdma.SelfTestNoDevices: 4, rdma.SelfTestFailed: 5}

func main() { os.Exit(run()) }

func run() int {
	p := program.New("graylink-node", help)
	source := addSourceFlags(p.App)
	p.AddFlags("127.0.0.1:9868", "POST /api/v1/trace, /api/v1/trace-tuples and /api/v1/nic-health/reset")
	p.Web.AddAskClients(p.App)
	push := addPushFlags(p.App)
	selfTest := p.App.Flag("selftest", "Check that the host has what this feature needs, print the result and exit. The only feature is rdma.").Default("").Enum("", "rdma")
	health := addHealthFlags(p.App)
	collectives := addCollectiveFlags(p.App)
	signals := addCSIGFlags(p.App)
	queuePairs := p.App.Flag("rdma.queue-pairs", "List the RDMA queue pairs of all processes of this node at GET /api/v1/queue-pairs, for graylink plan observe: their numbers, devices and processes.").Bool()
	check := addPreflightFlags(p.App)
	log, ok := p.Parse(os.Args[1:])
	if !ok {
		return exitSetup
	}
	ctx, stop := program.StopSignals()
	defer stop()
	if *selfTest != "" {
		return selfTestCodes[rdma.SelfTest(ctx, rdma.Library(), rdmadev.Open(health.options.Sys), os.Stdout)]
	}
	if check.wanted {
		return check.print(ctx, source, health, signals, log)
	}
	if p.CheckOnly {
		return p.Check(ctx, os.Stdout, source.validate, func() error { return checkHost(ctx, source, health, signals) }, health.validate, collectives.validate, signals.validate)
	}
	if err := p.Web.Validate(); err != nil {
		log.Error("cannot open the web listener", "err", err)
		return exitSetup
	}
	hangup, stopHangup := program.ReloadSignals()
	defer stopHangup()
	started := time.Now()
	var err error
	if source.options.Signals, err = signals.load(); err != nil {
		log.Error("cannot use in-band signals", "err", err)
		return exitSetup
	}
	n, advertised, err := source.start(ctx, p.Web.Toolkit, log)
	if err != nil {
		log.Error("cannot start the node", "err", err)
		return exitSetup
	}
	series := node.New(n, log)
	if *queuePairs {
		series.AddQueuePairs(&nldev.Machine{Sys: cmp.Or(health.options.Sys, "/sys"), Proc: "/proc"})
	}
	watchersEnded, err := startWatchers(ctx, n, series, health, collectives, push, log)
	defer watchersEnded()
	defer stop() // it runs before watchersEnded, so that every return ends them
	var stopPush func() error
	if err == nil {
		if stopPush, err = push.startPush(ctx, series, n.Name(), started, log); err != nil {
			log.Error("cannot start the OTLP push", "err", err)
		}
	}
	if err != nil {
		if err := n.Close(); err != nil {
			log.Error("cannot stop probing", "err", err)
		}
		return exitSetup
	}
	series.AddCertificates(p.Web.Certificates(), push.certificates())
	policy := p.Web.NewPolicy(log, advertised)
	service := p.StartService(p.Web.NewServer(series.Handler(policy), policy, log), log)
	log.Info("probing started", "version", buildversion.Info())
	code := serve(ctx, n, service, hangup, log)
	if err := stopPush(); err != nil {
		log.Warn("cannot stop the OTLP push", "err", err)
	}
	if err := n.Close(); err != nil {
		log.Error("cannot stop probing", "err", err)
		return exitFailed
	}
	return code
}

// startWatchers starts what watches the NICs and what follows collective libraries, and logs an error of either. ended
// waits until they have ended, which happens after ctx is done; it is never nil.
func startWatchers(ctx context.Context, n *nodeagent.Node, series *node.Exporter, health *healthFlags, collectives *collectiveFlags, push *pushFlags, log *slog.Logger) (ended func(), err error) {
	healthEnded, err := health.startMonitor(ctx, n, series, push, log)
	if err != nil {
		log.Error("cannot start the NIC health monitor", "err", err)
		return func() {}, err
	}
	collectivesEnded, err := collectives.start(ctx, n, series, log)
	if err != nil {
		log.Error("cannot follow the files of collective libraries", "err", err)
		return healthEnded, err
	}
	return func() {
		collectivesEnded()
		healthEnded()
	}, nil
}

// serve serves until ctx ends, probing fails or the web listener fails. It returns the exit code.
func serve(ctx context.Context, n *nodeagent.Node, service *program.Service, hangup <-chan os.Signal, log *slog.Logger) (code int) {
	web, failed := service.Wait(ctx, program.Events{Hangup: hangup, Check: n.Ready, Reload: program.LogReload(log, "cannot reload the configuration", n.Reload)})
	switch {
	case web != nil:
		log.Error("web server failed", "err", web)
		code = exitSetup
	case failed != nil:
		code = exitFailed
	}
	if err := service.Stop(); err != nil {
		log.Warn("web server failed", "err", err)
	}
	return code
}
