package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/preflight"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/stamp"
)

// preflightFlags are those of the check of the host before a start.
type preflightFlags struct {
	wanted bool
	format string
}

// exitNotReady is the exit code if something is missing.
const exitNotReady = 5

func addPreflightFlags(app *kingpin.Application) *preflightFlags {
	f := &preflightFlags{}
	app.Flag("preflight", "Check what the agent needs with the other flags as they are, print for each need whether it is ok, degraded or missing and what is lost, and exit.").BoolVar(&f.wanted)
	app.Flag("preflight.format", "Format of the result: text or json.").Default("text").EnumVar(&f.format, "text", "json")
	return f
}

// print checks the host and prints the result. It returns the exit code.
func (f *preflightFlags) print(ctx context.Context, source *sourceFlags, health *healthFlags, signals *csigFlags, log *slog.Logger) int {
	results := preflight.CheckNode(ctx, preflightOf(source, health, signals))
	write := preflight.WriteText
	if f.format == "json" {
		write = preflight.WriteJSON
	}
	if err := write(os.Stdout, results); err != nil {
		log.Error("cannot print the result", "err", err)
		return exitSetup
	}
	if !preflight.Ready(results) {
		return exitNotReady
	}
	return 0
}

// checkHost returns an error for each need without which the agent would not start.
func checkHost(ctx context.Context, source *sourceFlags, health *healthFlags, signals *csigFlags) error {
	var errs []error
	for _, r := range preflight.CheckNode(ctx, preflightOf(source, health, signals)) {
		if r.State == preflight.Missing {
			errs = append(errs, fmt.Errorf("%s: %s", r.Need, r.Found))
		}
	}
	return errors.Join(errs...)
}

// preflightOf returns what is checked for the flags.
func preflightOf(source *sourceFlags, f *healthFlags, signals *csigFlags) preflight.Node {
	o := &source.options
	files := o.Coordinator.Files
	if source.enroll.wanted {
		files = source.enroll.enrollment(o, slog.New(slog.DiscardHandler)).Files()
	}
	return preflight.Node{ConfigFile: o.File, StampPort: stamp.Port, Coordinators: o.Coordinator.Addresses, ServerName: o.Coordinator.ServerName, Certificates: files, Enrolls: source.enroll.wanted,
		StateFile: o.StateFile, Sysfs: f.options.Sys, Kmsg: f.options.Kmsg, KernelLog: f.enabled && f.options.Log == health.LogKmsg, RDMA: o.RDMA, Signals: signals.preflight(), RDMALibrary: rdma.CheckLibrary()}
}
