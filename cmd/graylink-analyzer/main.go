// Command graylink-analyzer queries Prometheus for the observations of the probes and names the element of the fabric
// that is at fault.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/daemon"
	"github.com/graylink/graylink/exporters/certificates"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/webserver"
)

const help = `Reads the fabric's probes from a Prometheus, names the element that is at fault, and serves the verdicts as series, by an API and as a page.

SIGHUP and POST /-/reload read the configuration again; one that is wrong is refused, and the one before goes on.

Exit codes: 0 stopped by a signal, or --check-config or --print-queries did what was asked; 1 bad arguments or configuration; 2 the web listener failed.`

// Exit codes, as in the help text.
const (
	exitSetup  = 1
	exitFailed = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout)) }

func run(args []string, stdout io.Writer) int {
	app := kingpin.New("graylink-analyzer", help)
	app.HelpFlag.Short('h')
	app.UsageWriter(os.Stdout).Version(buildversion.Print("graylink-analyzer"))
	file := app.Flag("config.file", "Configuration (YAML): docs/analyzer.md.").Required().String()
	check := app.Flag("check-config", "Check the configuration and the topology, print their errors, and exit.").Bool()
	show := app.Flag("print-queries", "Print the queries to Prometheus by name, and exit.").Bool()
	level := app.Flag("log.level", "Only messages of this level and above.").Default("info").Enum("debug", "info", "warn", "error")
	webFlags := webserver.AddFlags(app, "127.0.0.1:9872")
	webFlags.AddLifecycle(app)
	webFlags.AddAdminAPI(app, "POST and DELETE of /api/v1/maintenance")
	if _, err := app.Parse(args); err != nil {
		app.Errorf("%s, try --help", err)
		return exitSetup
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(*level)); err != nil {
		app.Errorf("%s", err)
		return exitSetup
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
	if *check || *show {
		c, err := daemon.LoadConfig(*file)
		if err != nil {
			app.Errorf("%s", err)
			return exitSetup
		}
		if *show {
			queries := c.AllQueries()
			for _, name := range slices.Sorted(maps.Keys(queries)) {
				fmt.Fprintf(stdout, "%s: %s\n", name, queries[name])
			}
		}
		return 0
	}
	if err := webFlags.Validate(); err != nil {
		log.Error("cannot listen", "err", err)
		return exitSetup
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return serveDaemon(ctx, *file, webFlags, log)
}

func serveDaemon(ctx context.Context, file string, webFlags *webserver.Flags, log *slog.Logger) int {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	policy := webFlags.NewPolicy(log)
	used := certificates.NewCollector(webFlags.Certificates())
	d, err := daemon.New(file, policy, log, used)
	if err != nil {
		log.Error("cannot start", "err", err)
		return exitSetup
	}
	used.Add(d)
	server := webFlags.NewServer(d, policy, log)
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe(webFlags.Toolkit, log) }()
	log.Info("analyzing", "version", buildversion.Info())

	code := 0
	for running := true; running; {
		select {
		case <-ctx.Done():
			running = false
		case <-hangup:
			_ = d.ReloadConfig() // it logs the error
		case err := <-served:
			log.Error("web server failed", "err", err)
			code, running = exitFailed, false
			served <- http.ErrServerClosed
		}
	}
	shutdown, done := context.WithTimeout(context.Background(), 5*time.Second)
	defer done()
	if err := server.Shutdown(shutdown); err != nil {
		log.Warn("cannot stop the web server", "err", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		log.Error("web server failed", "err", err)
		code = exitFailed
	}
	if err := d.Close(); err != nil {
		log.Warn("cannot stop", "err", err)
	}
	return code
}
