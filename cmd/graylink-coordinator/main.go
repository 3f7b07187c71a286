// Command graylink-coordinator tells the agents of a fleet whom to probe, and
// Prometheus where the agents are.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"

	exporter "github.com/graylink/graylink/exporters/coordinator"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/unix"
	"github.com/graylink/graylink/internal/webserver"
)

const help = `Schedules the probes of a fleet, hands assignments and keys to its agents over gRPC with mutual TLS, and serves them to Prometheus as targets.

Exit codes: 0 stopped by a signal; 1 bad arguments, topology, state or certificates, or a listener could not be had; 2 a listener failed while running, or the state could not be written at the end.`

// Exit codes, as in the help text.
const (
	exitSetup  = 1
	exitFailed = 2
)

// openFilesWanted are wanted for one session per agent of the largest fleet.
const openFilesWanted = 1 << 17

func main() { os.Exit(run()) }

type settings struct {
	options          coordinator.Options
	listenAddresses  []string
	certificateFiles pki.Files

	prefixes, webPrefixes, webPorts []string
	classes                         []string
	noKeys                          bool
}

func defineFlags(app *kingpin.Application) *settings {
	s := &settings{options: coordinator.DefaultOptions()}
	o, d := &s.options, schedule.DefaultOptions()
	app.Flag("topology.file", "Topology of the fabric (YAML).").Required().StringVar(&o.TopologyFile)
	app.Flag("state.file", "What survives a restart: agents, keys, moved source ports. It is made when missing, and holds secrets.").Required().StringVar(&o.StateFile)
	app.Flag("agents.listen-address", "Where agents come: host:port, or unix:PATH. May be given several times.").Default(":9870").StringsVar(&s.listenAddresses)
	app.Flag("agents.ca", "File of the authorities that agents' certificates must come from (PEM).").Required().StringVar(&s.certificateFiles.CA)
	app.Flag("agents.cert", "File of the coordinator's certificate (PEM).").Required().StringVar(&s.certificateFiles.Cert)
	app.Flag("agents.key", "File of its key (PEM).").Required().StringVar(&s.certificateFiles.Key)
	app.Flag("agents.revoked", "File of serial numbers of agents' certificates that are not accepted, one a line, as openssl x509 -serial prints them. Empty: none.").StringVar(&s.certificateFiles.Revoked)
	app.Flag("agents.prefixes", "Prefix of the addresses that NICs without one in the topology may have from their agents. May be given several times.").Default(coordinator.DefaultAddressPrefixes...).StringsVar(&s.prefixes)
	app.Flag("agents.web-prefixes", "Prefix of addresses that agents may be scraped at, besides the one that they come from and their node's address in the topology. May be given several times.").StringsVar(&s.webPrefixes)
	app.Flag("agents.web-ports", "Port, or range of ports, that agents may be scraped at. May be given several times; the first one stands for others.").Default("9868").StringsVar(&s.webPorts)
	app.Flag("agents.web-scheme", "How agents are scraped: http or https.").Default(o.WebScheme).EnumVar(&o.WebScheme, "http", "https")
	app.Flag("agents.handshakes-per-address", "TLS handshakes of one address that may be under way at once; more wait in line.").Default(strconv.Itoa(o.HandshakesPerAddress)).IntVar(&o.HandshakesPerAddress)
	duration := func(name, text string, v *time.Duration) {
		app.Flag(name, text).Default(v.String()).DurationVar(v)
	}
	duration("agent.heartbeat", "Time between the heartbeats of an agent.", &o.Heartbeat)
	duration("agent.absent-after", "Silence after which a node leaves the schedule. Until then it is probed: that it does not answer is evidence.", &o.AbsentAfter)
	duration("registry.settle", "After a start without state: time until the registry is taken for whole, and targets are served.", &o.RegistrySettle)
	duration("schedule.settle", "Time without a change before the schedule is made anew.", &o.Settle)
	duration("schedule.settle-most", "The same, when changes do not end.", &o.SettleMost)
	duration("schedule.changeover", "Time between an agent's new assignment and its first probe on a new edge, so that the far node has heard of it.", &o.Changeover)
	app.Flag("schedule.cadence", "Time between the probes of an edge of a near tier.").Default(d.Cadence.String()).DurationVar(&o.Schedule.Cadence)
	app.Flag("schedule.budget", "Probes per second that a node sends at most.").Default(fmt.Sprint(d.Budget)).Float64Var(&o.Schedule.Budget)
	app.Flag("schedule.min-peers", "Distinct peers that every NIC is probed from and probes at least.").Default(fmt.Sprint(d.MinPeers)).IntVar(&o.Schedule.MinPeers)
	app.Flag("schedule.min-flows", "Flows expected over every direction of a fabric link at least.").Default(fmt.Sprint(d.MinFlows)).Float64Var(&o.Schedule.MinFlows)
	app.Flag("schedule.class", `Class of probes as NAME=DSCP, or NAME=DSCP/SL with the service level of probes by RDMA; "=0" is the one without a name. May be given several times.`).Default("=0").StringsVar(&s.classes)
	app.Flag("schedule.link-edges", "Edges that are to be traced over every direction of a link; source ports are moved until they are. 0: never moved.").Default(strconv.Itoa(o.LinkEdges)).IntVar(&o.LinkEdges)
	duration("schedule.rebalance-every", "Time between rounds of moved source ports, at least.", &o.RebalanceEvery)
	app.Flag("stamp.port", "UDP port of the reflectors.").Default(strconv.Itoa(int(o.Stamp.Port))).Uint16Var(&o.Stamp.Port)
	app.Flag("stamp.source-port", "UDP source port of flow 0.").Default(strconv.Itoa(int(o.Stamp.SourcePort))).Uint16Var(&o.Stamp.SourcePort)
	app.Flag("stamp.padding", "Octets of padding in every probe.").Default("0").IntVar(&o.Stamp.Padding)
	app.Flag("keys.none", "Probes are not authenticated.").BoolVar(&s.noKeys)
	duration("keys.rotate-every", "Age at which the key that sends is replaced. 0: only when asked.", &o.RotateEvery)
	duration("keys.grace", "Time that silent agents have to come back for a new key, and that an old one is accepted.", &o.KeysGrace)
	duration("clock.asymmetry-allowance", "By how much an asymmetry of the paths between two clocks may move their offset: half of what the two directions differ by. 0: 25 ns under a leaf and 100 ns more for every tier above, and 500 ns more for kernel stamps.", &o.ClockAllowance)
	app.Flag("clock.reference", "Node whose system clock all clocks are related to. Empty: to each other only.").StringVar(&o.ClockReference)
	return s
}

// resolveOptions turns the flags' texts into options.
func (s *settings) resolveOptions() error {
	s.options.Stamp.Classes = nil
	for _, c := range s.classes {
		name, value, ok := strings.Cut(c, "=")
		value, level, leveled := strings.Cut(value, "/")
		dscp, err := strconv.ParseUint(value, 10, 6)
		sl := uint64(0)
		if err == nil && leveled {
			sl, err = strconv.ParseUint(level, 10, 4)
		}
		if !ok || err != nil {
			return fmt.Errorf("--schedule.class %q: want NAME=DSCP or NAME=DSCP/SL with a DSCP from 0 to 63 and a service level from 0 to 15", c)
		}
		s.options.Stamp.Classes = append(s.options.Stamp.Classes, coordinator.Class{Name: name, DSCP: uint8(dscp), SL: uint8(sl)})
	}
	var err error
	if s.options.AddressPrefixes, err = coordinator.ParsePrefixes(s.prefixes); err != nil {
		return fmt.Errorf("--agents.prefixes %w", err)
	}
	if s.options.WebPrefixes, err = coordinator.ParsePrefixes(s.webPrefixes); err != nil {
		return fmt.Errorf("--agents.web-prefixes %w", err)
	}
	if s.options.WebPorts, err = coordinator.ParsePortRanges(s.webPorts); err != nil {
		return fmt.Errorf("--agents.web-ports %w", err)
	}
	s.options.Keys = !s.noKeys
	s.options.Version = buildversion.Version()
	s.options.Planner = coordinator.Planner{Make: schedule.Make, Rebalance: schedule.Rebalance}
	if err := s.options.Validate(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	return nil
}

func run() int {
	app := kingpin.New("graylink-coordinator", help)
	app.HelpFlag.Short('h')
	app.UsageWriter(os.Stdout).Version(buildversion.Print("graylink-coordinator"))
	level := app.Flag("log.level", "Only messages of this level and above.").Default("info").Enum("debug", "info", "warn", "error")
	s := defineFlags(app)
	webFlags := webserver.AddFlags(app, "127.0.0.1:9869")
	webFlags.AddLifecycle(app)
	webFlags.AddAdminAPI(app, "POST /api/v1/keys/rotate")
	if _, err := app.Parse(os.Args[1:]); err != nil {
		app.Errorf("%s, try --help", err)
		return exitSetup
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(*level)); err != nil {
		app.Errorf("%s", err)
		return exitSetup
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
	if err := s.resolveOptions(); err != nil {
		app.Errorf("%s", err)
		return exitSetup
	}
	if err := webFlags.Validate(); err != nil {
		log.Error("web listener", "err", err)
		return exitSetup
	}
	n, err := unix.RaiseOpenFiles(openFilesWanted)
	if err != nil {
		log.Warn("the number of agents is limited by open files", "limit", n, "err", err)
	}
	s.options.OpenFiles = n
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return runCoordinator(ctx, s, webFlags, log)
}

func runCoordinator(ctx context.Context, s *settings, webFlags *webserver.Flags, log *slog.Logger) int {
	certificates, err := pki.Open(s.certificateFiles, func(err error) { log.Error("certificates", "err", err) })
	if err != nil {
		log.Error("certificates", "err", err)
		return exitSetup
	}
	c, err := coordinator.New(s.options, log)
	if err != nil {
		log.Error("start", "err", err)
		return exitSetup
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, len(s.listenAddresses)+2)
	var wg sync.WaitGroup
	agents := coordinator.NewServer(c, certificates)
	for _, address := range s.listenAddresses {
		listener, err := coordinator.Listen(ctx, address)
		if err != nil {
			log.Error("listen for agents", "err", err)
			agents.Stop()
			wg.Wait()
			return exitSetup
		}
		log.Info("agents may come", "address", address)
		wg.Go(func() {
			if err := agents.Serve(listener); err != nil {
				failed <- fmt.Errorf("agents at %s: %w", address, err)
			}
		})
	}
	policy := webFlags.NewPolicy(log)
	httpServer := webFlags.NewServer(exporter.Handler(c, policy, log, certificates, webFlags.Certificates()), policy, log)
	wg.Go(func() {
		if err := httpServer.ListenAndServe(webFlags.Toolkit, log); err != nil && !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("web listener: %w", err)
		}
	})
	saved := make(chan error, 1)
	wg.Go(func() { saved <- c.Run(ctx) })
	log.Info("coordinating", "version", buildversion.Info())

	code := 0
	for running := true; running; {
		select {
		case <-ctx.Done():
			running = false
		case <-hangup:
			if err := c.Reload(); err != nil {
				log.Error("reload", "err", err)
			} else {
				log.Info("reloaded")
			}
		case err := <-failed:
			log.Error("stopped", "err", err)
			code, running = exitFailed, false
		}
	}
	agents.Stop()
	shutdown, done := context.WithTimeout(context.Background(), 5*time.Second)
	defer done()
	if err := httpServer.Shutdown(shutdown); err != nil {
		log.Warn("stop the web server", "err", err)
	}
	cancel()
	if err := <-saved; err != nil {
		log.Error("the state was not written", "err", err)
		code = exitFailed
	}
	wg.Wait()
	return code
}
