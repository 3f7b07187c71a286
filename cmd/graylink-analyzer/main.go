// Command graylink-analyzer queries Prometheus for the observations of the probes and names the element of the fabric
// that is at fault.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/program"
)

const help = `Reads the fabric's probes from a Prometheus, names the element that is at fault, and serves the verdicts as series, by an API and as a page.

SIGHUP and POST /-/reload read the configuration again; one that is wrong is refused, and the one before goes on.

Exit codes: 0 stopped by a signal, or --check, --check-config or --print-queries did what was asked; 1 bad arguments or configuration; 2 the web listener failed.`

// Exit codes, as in the help text.
const (
	exitSetup  = 1
	exitFailed = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout)) }

func run(args []string, stdout io.Writer) int {
	p := program.New("graylink-analyzer", help)
	file := p.App.Flag("config.file", "Configuration (YAML): docs/analyzer.md.").Required().String()
	check := p.App.Flag("check-config", "Check the configuration and the topology, print their errors, and exit.").Bool()
	show := p.App.Flag("print-queries", "Print the queries to Prometheus by name, and exit.").Bool()
	p.AddFlags("127.0.0.1:9872", "POST and DELETE of /api/v1/maintenance, POST /api/v1/catalogue and /api/v1/plan, GET /api/v1/observe")
	log, ok := p.Parse(args)
	if !ok {
		return exitSetup
	}
	if p.CheckOnly {
		return p.Check(context.Background(), stdout, func() error {
			_, err := daemon.LoadConfig(*file)
			return err
		})
	}
	if *check || *show {
		c, err := daemon.LoadConfig(*file)
		if err != nil {
			p.App.Errorf("%s", err)
			return exitSetup
		}
		if *show {
			queries := c.AllQueries()
			for _, name := range slices.Sorted(maps.Keys(queries)) {
				fmt.Fprintf(stdout, "%s: %s\n", name, queries[name])
			}
			return 0
		}
		subnets, err := c.DescribeSubnets()
		if err != nil {
			p.App.Errorf("%s", err)
			return exitSetup
		}
		for _, line := range subnets {
			fmt.Fprintln(stdout, line)
		}
		return 0
	}
	if err := p.Web.Validate(); err != nil {
		log.Error("cannot listen", "err", err)
		return exitSetup
	}
	ctx, stop := program.StopSignals()
	defer stop()
	return serveDaemon(ctx, *file, p, log)
}

func serveDaemon(ctx context.Context, file string, p *program.Program, log *slog.Logger) (code int) {
	hangup, stopHangup := program.ReloadSignals()
	defer stopHangup()
	policy := p.Web.NewPolicy(log)
	used := certificates.NewCollector(p.Web.Certificates())
	d, err := daemon.New(file, policy, log, used)
	if err != nil {
		log.Error("cannot start", "err", err)
		return exitSetup
	}
	used.Add(d)
	service := p.StartService(p.Web.NewServer(d, policy, log), log)
	log.Info("analyzing", "version", buildversion.Info())
	web, _ := service.Wait(ctx, program.Events{Hangup: hangup, Reload: func() { _ = d.ReloadConfig() }}) // it logs the error
	if err := cmp.Or(web, service.Stop()); err != nil {
		log.Error("web server failed", "err", err)
		code = exitFailed
	}
	if err := d.Close(); err != nil {
		log.Warn("cannot stop", "err", err)
	}
	return code
}
