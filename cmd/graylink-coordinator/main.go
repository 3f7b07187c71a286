// Command graylink-coordinator schedules the probes of a fleet, hands assignments and keys to its
// agents, and serves the agents to Prometheus as scrape targets.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kingpin/v2"

	exporter "github.com/graylink/graylink/exporters/coordinator"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/program"
	"github.com/graylink/graylink/internal/schedule"
	"github.com/graylink/graylink/internal/unix"
)

const help = `Schedules the probes of a fleet, hands assignments and keys to its agents over gRPC with mutual TLS, and serves them to Prometheus as targets. "graylink-coordinator backup" and "graylink-coordinator restore" copy its state file and put it back.

Exit codes: 0 stopped by a signal, or --check found nothing wrong; 1 invalid arguments, topology, state or certificates, or a listener could not be opened; 2 a listener failed while running, or the state could not be written at the end.`

// Exit codes, which the help text lists.
const (
	exitSetup  = 1
	exitFailed = 2
)

// openFilesWanted is enough for one session per agent of the largest fleet.
const openFilesWanted = 1 << 17

func main() { os.Exit(run()) }

type settings struct {
	options          coordinator.Options
	listenAddresses  []string
	certificateFiles pki.Files

	prefixes, webPrefixes, webPorts []string
	classes                         []string
	noKeys                          bool
	targetFile                      string
	enroll                          *enrollFlags
	ha                              *haFlags
}

func defineFlags(app *kingpin.Application) *settings {
	s := &settings{options: coordinator.DefaultOptions()}
	o, d := &s.options, schedule.DefaultOptions()
	app.Flag("topology.file", "Topology of the fabric (YAML).").Required().StringVar(&o.TopologyFile)
	app.Flag("state.file", "File of the state that survives a restart: agents, keys, moved source ports. It is created when it is missing, and holds secrets.").Required().StringVar(&o.StateFile)
	app.Flag("agents.listen-address", "Address to accept agents on: host:port, or unix:PATH. May be given several times.").Default(":9870").StringsVar(&s.listenAddresses)
	app.Flag("agents.ca", "File of the authorities that must have signed the certificates of agents (PEM).").Required().StringVar(&s.certificateFiles.CA)
	app.Flag("agents.cert", "File of the coordinator's certificate (PEM).").Required().StringVar(&s.certificateFiles.Cert)
	app.Flag("agents.key", "File of the key of the coordinator's certificate (PEM).").Required().StringVar(&s.certificateFiles.Key)
	app.Flag("agents.revoked", "File of the serial numbers of revoked certificates of agents, one a line, as openssl x509 -serial prints them. If empty, no certificate is revoked.").StringVar(&s.certificateFiles.Revoked)
	app.Flag("agents.any-node", "Let the agents of nodes connect that are not in the topology, whose file may be missing. They are not scheduled; graylink topology discover --coordinator makes a topology of their interfaces.").BoolVar(&o.AnyNode)
	app.Flag("agents.prefixes", "Prefix of the addresses that agents may report for NICs without an address in the topology. May be given several times.").Default(coordinator.DefaultAddressPrefixes...).StringsVar(&s.prefixes)
	app.Flag("agents.web-prefixes", "Prefix of addresses that agents may be scraped at, besides the address that they connect from and their node's address in the topology. May be given several times.").StringsVar(&s.webPrefixes)
	app.Flag("agents.web-ports", "Port, or range of ports, that agents may be scraped at. May be given several times. The first one replaces a port outside the ranges.").Default("9868").StringsVar(&s.webPorts)
	app.Flag("agents.web-scheme", "Scheme that agents are scraped with: http or https.").Default(o.WebScheme).EnumVar(&o.WebScheme, "http", "https")
	app.Flag("agents.handshakes-per-address", "Maximum number of concurrent TLS handshakes of one address. Further ones wait in line.").Default(strconv.Itoa(o.HandshakesPerAddress)).IntVar(&o.HandshakesPerAddress)
	app.Flag("sd.file", "File for file_sd_configs of Prometheus, a name that ends in .json. It is replaced in one step when the targets of /api/v1/targets have changed. If empty, none is written.").StringVar(&s.targetFile)
	duration := func(name, text string, v *time.Duration) {
		app.Flag(name, text).Default(v.String()).DurationVar(v)
	}
	duration("agent.heartbeat", "Time between the heartbeats of an agent.", &o.Heartbeat)
	duration("agent.absent-after", "Silence after which a node leaves the schedule. Until then it is probed, since missing answers are evidence.", &o.AbsentAfter)
	duration("registry.settle", "Time after a start without state until the registry counts as whole, so that targets are served.", &o.RegistrySettle)
	duration("schedule.settle", "Time without a change before the schedule is computed again.", &o.Settle)
	duration("schedule.settle-most", "Maximum time before the schedule is computed again while changes continue.", &o.SettleMost)
	duration("schedule.changeover", "Time between an agent's new assignment and its first probe on a new edge, so that the far node has its assignment by then.", &o.Changeover)
	app.Flag("schedule.cadence", "Time between two probes of an edge of a near tier.").Default(d.Cadence.String()).DurationVar(&o.Schedule.Cadence)
	app.Flag("schedule.budget", "Maximum number of probes per second that a node sends.").Default(fmt.Sprint(d.Budget)).Float64Var(&o.Schedule.Budget)
	app.Flag("schedule.min-peers", "Minimum number of distinct peers that every NIC probes and is probed by.").Default(fmt.Sprint(d.MinPeers)).IntVar(&o.Schedule.MinPeers)
	app.Flag("schedule.min-flows", "Minimum number of flows expected over every direction of a fabric link.").Default(fmt.Sprint(d.MinFlows)).Float64Var(&o.Schedule.MinFlows)
	app.Flag("schedule.class", `Class of probes as NAME=DSCP, or NAME=DSCP/SL with the service level of probes by RDMA; "=0" is the class without a name. May be given several times.`).Default("=0").StringsVar(&s.classes)
	app.Flag("schedule.link-edges", "Number of edges whose traced path crosses every direction of a link; source ports are moved until it is reached. 0 disables moving source ports.").Default(strconv.Itoa(o.LinkEdges)).IntVar(&o.LinkEdges)
	duration("schedule.rebalance-every", "Minimum time between rounds of moving source ports.", &o.RebalanceEvery)
	app.Flag("stamp.port", "UDP port of the reflectors.").Default(strconv.Itoa(int(o.Stamp.Port))).Uint16Var(&o.Stamp.Port)
	app.Flag("stamp.source-port", "UDP source port of flow 0.").Default(strconv.Itoa(int(o.Stamp.SourcePort))).Uint16Var(&o.Stamp.SourcePort)
	app.Flag("stamp.padding", "Octets of padding in every probe.").Default("0").IntVar(&o.Stamp.Padding)
	app.Flag("keys.none", "Send probes without authentication.").BoolVar(&s.noKeys)
	duration("keys.rotate-every", "Age at which the key that agents send with is replaced. 0 disables rotation except by request.", &o.RotateEvery)
	duration("keys.grace", "Time that silent agents have to connect and fetch a new key, and time for which an old key is accepted.", &o.KeysGrace)
	s.enroll = addEnrollFlags(app)
	s.ha = addHAFlags(app, &o.HA)
	app.Flag("ask.clients", "Name in the certificate of an analyzer that may ask for temporary flows, which distinguish the suspects of an incident. May be given several times. If empty, none may.").StringsVar(&o.AskClients)
	app.Flag("maintenance.clients", "Name in the certificate of an analyzer that may make and end maintenance windows, which the coordinator keeps for all analyzers. May be given several times. If empty, none may.").StringsVar(&o.MaintenanceClients)
	duration("clock.asymmetry-allowance", "Allowance for the asymmetry of the paths between two clocks: half of the difference of the two directions. 0 means 25 ns under a leaf, 100 ns more for every tier above, and 500 ns more for kernel stamps.", &o.ClockAllowance)
	app.Flag("clock.reference", "Node whose system clock all clocks are related to. If empty, clocks are related to each other only.").StringVar(&o.ClockReference)
	return s
}

// resolveOptions parses the texts of the flags into options and validates them. It returns an error
// that names the flag.
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
	if err := s.enroll.validate(); err != nil {
		return err
	}
	if err := s.ha.resolve(); err != nil {
		return err
	}
	if s.targetFile != "" {
		if err := exporter.CheckTargetFile(s.targetFile); err != nil {
			return err
		}
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
	if len(os.Args) > 1 {
		if command := stateCommands[os.Args[1]]; command != nil {
			return command(os.Args[2:])
		}
	}
	p := program.New("graylink-coordinator", help)
	s := defineFlags(p.App)
	p.AddFlags("127.0.0.1:9869", "POST /api/v1/keys/rotate and /-/promote")
	log, ok := p.Parse(os.Args[1:])
	if !ok {
		return exitSetup
	}
	if err := s.resolveOptions(); err != nil {
		p.App.Errorf("%s", err)
		return exitSetup
	}
	if p.CheckOnly {
		return s.check(p, log)
	}
	if err := p.Web.Validate(); err != nil {
		log.Error("invalid flags of the web listener", "err", err)
		return exitSetup
	}
	n, err := unix.RaiseOpenFiles(openFilesWanted)
	if err != nil {
		log.Warn("the limit of open files limits the number of agents", "limit", n, "err", err)
	}
	s.options.OpenFiles = n
	ctx, stop := program.StopSignals()
	defer stop()
	return runCoordinator(ctx, s, p, log)
}

// check checks what a start needs, for --check. It returns the exit code.
func (s *settings) check(p *program.Program, log *slog.Logger) int {
	checks := []func() error{
		func() error { return coordinator.CheckFiles(s.options, log) },
		func() error {
			_, err := pki.Open(s.certificateFiles, func(error) {})
			return err
		},
	}
	for _, address := range s.listenAddresses {
		checks = append(checks, func() error { return program.CheckListener(context.Background(), "--agents.listen-address", address) })
	}
	return p.Check(context.Background(), os.Stdout, checks...)
}

func runCoordinator(ctx context.Context, s *settings, p *program.Program, log *slog.Logger) (code int) {
	certificates, err := pki.Open(s.certificateFiles, func(err error) { log.Error("cannot use the changed certificate files", "err", err) })
	if err != nil {
		log.Error("cannot read the certificate files", "err", err)
		return exitSetup
	}
	leaseSources, err := s.ha.open()
	if err != nil {
		log.Error("cannot use the lease", "err", err)
		return exitSetup
	}
	unlock, err := coordinator.LockState(s.options.StateFile)
	switch {
	case errors.Is(err, durable.ErrLocked):
		log.Error("another coordinator runs with this state file", "err", err)
		return exitSetup
	case err != nil: // a disk may be full, or a file system without locks
		log.Warn("cannot lock the state file: do not start another coordinator with it", "err", err)
	default:
		defer func() { _ = unlock() }() // the lock ends with the process in any case
	}
	used, err := s.enroll.openUsedTokens(&s.options)
	if err != nil {
		log.Error("cannot let nodes enroll", "err", err)
		return exitSetup
	}
	c, err := coordinator.New(s.options, log)
	if err != nil {
		log.Error("cannot start the coordinator", "err", err)
		return exitSetup
	}
	enrollment, err := s.enroll.open(c, certificates, used, log)
	if err != nil {
		log.Error("cannot let nodes enroll", "err", err)
		return exitSetup
	}
	defer func() {
		if err := enrollment.close(); err != nil {
			log.Warn("cannot close the record of join tokens", "err", err)
		}
	}()
	hangup, stopHangup := program.ReloadSignals()
	defer stopHangup()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	agents := coordinator.NewServer(c, certificates, enrollment.server())
	failed := make(chan error, len(s.listenAddresses))
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, address := range s.listenAddresses {
		listener, err := coordinator.Listen(ctx, address)
		if err != nil {
			log.Error("cannot listen for agents", "err", err)
			agents.Stop()
			return exitSetup
		}
		log.Info("listening for agents", "address", address)
		wg.Go(func() {
			if err := agents.Serve(listener); err != nil {
				failed <- fmt.Errorf("serve agents at %s: %w", address, err)
			}
		})
	}
	policy := p.Web.NewPolicy(log)
	service := p.StartService(p.Web.NewServer(exporter.Handler(c, policy, log, enrollment.service, append(append(enrollment.sources, leaseSources...), certificates, p.Web.Certificates())...), policy, log), log)
	saved := make(chan error, 1)
	wg.Go(func() { saved <- c.Run(ctx) })
	if s.targetFile != "" {
		wg.Go(func() { exporter.NewTargetFile(s.targetFile, c, log).Run(ctx) })
	}
	log.Info("coordinator started", "version", buildversion.Info())

	web, err := service.Wait(ctx, program.Events{Hangup: hangup, Failed: failed, Reload: program.LogReload(log, "cannot reload the topology", c.Reload)})
	if web != nil {
		err = fmt.Errorf("serve the web listener: %w", web)
	}
	if err != nil {
		log.Error("a listener failed", "err", err)
		code = exitFailed
	}
	agents.Stop()
	if err := service.Stop(); err != nil {
		log.Warn("web server failed", "err", err)
	}
	cancel()
	if err := <-saved; err != nil {
		log.Error("cannot write the state at the end", "err", err)
		code = exitFailed
	}
	return code
}
