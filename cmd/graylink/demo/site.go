package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/graylink/graylink/analyzer/evidence/promserver"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/probe"
)

// site is a fabric and the agents on it, out of namespaces or simulated.
type site interface {
	// Topology is the fabric's, with all addresses.
	Topology() *fabric.Topology
	AddFault(context.Context, lab.Fault) (id string, err error)
	ClearFault(ctx context.Context, id string) error
	// startNode starts a node's agent of a configuration file, with a clock that is
	// wrong by b from its start. It follows the records in the directory collectives, unless that is empty.
	startNode(name, file string, b bend, collectives string) error
	// startSwitch starts the agent of a switch.
	startSwitch(sw string) error
	// dialAgent reaches an agent, past the fabric.
	dialAgent(ctx context.Context, network, addr string) (net.Conn, error)
	// agentError returns the error that ended an agent, and nil while all run.
	agentError() error
	// setCoordinator sets the coordinator that relates the agents' clocks, before the first agent starts.
	setCoordinator(*embeddedCoordinator)
	// useSignals makes ports update in-band signals by a profile, which is in a file as well, and the agents that are started after
	// this send and observe them.
	useSignals(profile string, s *probe.Signals) error
	// telemetry returns the InfiniBand subnets whose tables are read, and what Prometheus scrapes besides the agents of
	// nodes and switches.
	telemetry() ([]tracing.Subnet, []promserver.Target)
	// describeMeasurement returns further remarks about the measurement.
	describeMeasurement() string
	Close() error
}

// namespaces is a site of network namespaces, with a process for every agent.
type namespaces struct {
	*lab.Lab
	o           Options
	coordinator *embeddedCoordinator
	background  sync.WaitGroup // the agents
	profile     string         // file of the profile of in-band signals; empty without them
	signals     *labSignals

	mu        sync.Mutex
	firstExit error
	procs     []*exec.Cmd
}

func newNamespaces(ctx context.Context, o Options) (*namespaces, error) {
	l, err := lab.Up(ctx, o.Topology, lab.Options{Name: o.Name, Owner: true, Log: o.Log, Executable: o.Executable, Routing: o.Routing})
	if err != nil {
		return nil, err
	}
	return &namespaces{Lab: l, o: o}, nil
}

func (s *namespaces) setCoordinator(c *embeddedCoordinator) { s.coordinator = c }

func (s *namespaces) startNode(name, file string, b bend, collectives string) error {
	args := []string{s.o.NodeBin, "--config.file", file, "--clock-bend-file", s.BendFile(name),
		"--web.listen-address", "127.0.0.1:" + agentPort, "--web.allowed-hosts", name, "--web.enable-admin-api", "--web.enable-lifecycle", "--log.level", "warn"}
	args = append(args, s.coordinator.agentFlags(name)...)
	if b != (bend{}) {
		args = append(args, fmt.Sprintf("--clock-offset=%s", b.offset), fmt.Sprintf("--clock-drift-ppm=%g", b.ppm))
	}
	if s.profile != "" {
		args = append(args, "--csig.profile", s.profile, "--csig.source", csig.Compact.String())
	}
	if collectives != "" {
		if err := os.MkdirAll(collectives, 0o755); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		args = append(args, "--collectives.dir", collectives)
	}
	return s.startAgent(name, args)
}

// useSignals implements site.
func (s *namespaces) useSignals(profile string, signals *probe.Signals) (err error) {
	s.profile = profile
	s.signals, err = attachSignals(s.Lab, s.o.SignalsOf, signals.Profile, s.setExit)
	return err
}

func (s *namespaces) startSwitch(sw string) error {
	argv := []string{s.o.SwitchBin, "--switch", sw, "--ports.alias", "--lldp.send", "1s", "--stamp-port", fmt.Sprint(StampPort),
		"--web.listen-address", "127.0.0.1:" + switchPort, "--web.allowed-hosts", sw, "--web.enable-lifecycle", "--log.level", "warn"}
	if sockets := s.VTYSockets(sw); sockets != "" {
		argv = append(argv, "--routes", "--routes.frr", sockets)
	}
	return s.startAgent(sw, argv)
}

// startAgent starts an agent in the namespace of a node or switch; that it ends is fatal
// to the demo.
func (s *namespaces) startAgent(element string, argv []string) error {
	cmd := s.Command(context.Background(), element, argv...)
	out := &tail{w: s.o.AgentLogs, prefix: element}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start the agent of %s: %w", element, err)
	}
	s.procs = append(s.procs, cmd)
	s.background.Add(1)
	go func() {
		defer s.background.Done()
		err := cmd.Wait()
		s.setExit(fmt.Errorf("the agent of %s ended (%s): %s", element, exitText(err), out.lastLines()))
	}()
	return nil
}

// setExit records the first error that ended a part of the site.
func (s *namespaces) setExit(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.firstExit == nil {
		s.firstExit = err
	}
}

func exitText(err error) string {
	if err == nil {
		return "exit code 0"
	}
	return err.Error()
}

func (s *namespaces) dialAgent(ctx context.Context, network, addr string) (net.Conn, error) {
	return s.DialLoopback(ctx, network, addr)
}

func (s *namespaces) agentError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.firstExit
}

func (s *namespaces) telemetry() ([]tracing.Subnet, []promserver.Target) { return nil, nil }

func (s *namespaces) describeMeasurement() string { return "kernel timestamps on every packet" }

// Close ends the agents and takes the lab down.
func (s *namespaces) Close() error {
	var errs []error
	for _, cmd := range s.procs {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
	}
	if s.signals != nil {
		errs = append(errs, s.signals.Close())
	}
	errs = append(errs, s.Lab.Close())
	s.background.Wait()
	return errors.Join(errs...)
}

// tail passes a program's output on and keeps its last lines for the error message.
type tail struct {
	w           io.Writer
	prefix      string
	mu          sync.Mutex
	lines       []string
	partialLine bytes.Buffer
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.partialLine.Write(b)
	for {
		line, err := t.partialLine.ReadString('\n')
		if err != nil {
			t.partialLine.WriteString(line)
			return len(b), nil
		}
		line = strings.TrimRight(line, "\n")
		if t.lines = append(t.lines, line); len(t.lines) > 5 {
			t.lines = t.lines[1:]
		}
		if t.w != nil {
			fmt.Fprintf(t.w, "%s: %s\n", t.prefix, line)
		}
	}
}

func (t *tail) lastLines() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "; ")
}

// logOf returns the destination of the log of an agent within this process.
func logOf(o Options, element string) *slog.Logger {
	if o.AgentLogs == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(o.AgentLogs, &slog.HandlerOptions{Level: slog.LevelWarn})).With("agent", element)
}
