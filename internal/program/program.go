// Package program has what all daemons share: the flags of the log and of the web listener, the version, signals, and
// the loop that serves until something ends it. A daemon's own main has the rest.
package program

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/webserver"
)

const (
	checkEvery   = time.Second     // time between two checks while serving
	stopPatience = 5 * time.Second // time that requests have to end
)

// Program is a daemon's command line.
type Program struct {
	App *kingpin.Application
	Web *webserver.Flags
	// CheckOnly is set by --check: the program calls Check and exits.
	CheckOnly bool
	level     *string
}

// New returns a program with the flags --help, --version and --help-man.
func New(name, help string) *Program { return &Program{App: NewApplication(name, help)} }

// AddFlags adds the flags of the log, --check, and those of a web listener with a default address, which can be reloaded.
// If admin is not empty, it names the requests that the flag of the admin API allows.
func (p *Program) AddFlags(address, admin string) {
	p.level = p.App.Flag("log.level", "Lowest level of messages that are logged.").Default("info").Enum("debug", "info", "warn", "error")
	p.App.Flag("check", "Check the flags, the files that they name, and the listen addresses; print every error, and exit.").BoolVar(&p.CheckOnly)
	p.Web = webserver.AddFlags(p.App, address)
	p.Web.AddLifecycle(p.App)
	if admin != "" {
		p.Web.AddAdminAPI(p.App, admin)
	}
}

// Parse parses the arguments and returns the log. If they are invalid, it prints the error and returns false.
func (p *Program) Parse(args []string) (log *slog.Logger, ok bool) {
	if _, err := p.App.Parse(JoinDash(args)); err != nil {
		p.App.Errorf("%s, try --help", err)
		return nil, false
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(*p.level)); err != nil {
		p.App.Errorf("%s", err)
		return nil, false
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), true
}

// JoinDash returns the arguments with "--flag -" as "--flag=-". A lone dash is standard input, but kingpin takes it for a
// short flag without a name.
func JoinDash(args []string) []string {
	out := make([]string, 0, len(args))
	for _, a := range args {
		if n := len(out); a == "-" && n > 0 && strings.HasPrefix(out[n-1], "--") && len(out[n-1]) > 2 {
			out[n-1] += "=-"
			continue
		}
		out = append(out, a)
	}
	return out
}

// StopSignals returns a context that ends with the signals that end a daemon. stop must be called in the end.
func StopSignals() (ctx context.Context, stop context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

// ReloadSignals returns a channel that gets SIGHUP, which no longer ends the program. stop must be called in the end.
func ReloadSignals() (hangup <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c) }
}

// Service is a web listener that is being served.
type Service struct {
	server *webserver.Server
	served chan error
	ended  bool // served has given its error
	log    *slog.Logger
}

// StartService begins to serve a handler at the web listener of the flags.
func (p *Program) StartService(server *webserver.Server, log *slog.Logger) *Service {
	s := &Service{server: server, served: make(chan error, 1), log: log}
	go func() { s.served <- server.ListenAndServe(p.Web.Toolkit, log) }()
	return s
}

// Events are what a daemon does and watches while it serves.
type Events struct {
	Hangup <-chan os.Signal
	Reload func()       // is called at a signal from Hangup
	Check  func() error // is called once a second, if it is not nil; an error ends the daemon
	Failed <-chan error // an error from it ends the daemon
}

// LogReload returns a function that reloads, and logs the result with the text of a failure.
func LogReload(log *slog.Logger, failure string, reload func() error) func() {
	return func() {
		if err := reload(); err != nil {
			log.Error(failure, "err", err)
			return
		}
		log.Info("reloaded")
	}
}

// Wait serves until ctx ends or something fails. It returns the error of the web listener, or that of the daemon's own
// events. Where systemd started the daemon, it gets to know when it is ready, reloads and ends.
func (s *Service) Wait(ctx context.Context, e Events) (web, failed error) {
	checks := time.NewTicker(checkEvery)
	defer checks.Stop()
	systemd := supervisor{log: s.log}
	defer systemd.reportEnd()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-e.Hangup:
			systemd.aroundReload(e.Reload)
		case <-checks.C:
			if e.Check != nil {
				if err := e.Check(); err != nil {
					return nil, err
				}
			}
			systemd.reportHealthy()
		case err := <-e.Failed:
			return nil, err
		case err := <-s.served:
			s.ended = true
			return err, nil
		}
	}
}

// Stop ends the listener after the present requests, or after some seconds. It returns an error if the listener failed
// after Wait.
func (s *Service) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		s.log.Warn("cannot stop the web server", "err", err)
	}
	if s.ended {
		return nil
	}
	if err := <-s.served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
