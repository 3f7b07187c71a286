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

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// site is a fabric and the agents on it, out of namespaces or simulated.
type site interface {
	// Topology is the fabric's, with all addresses.
	Topology() *fabric.Topology
	AddFault(context.Context, lab.Fault) (id string, err error)
	ClearFault(ctx context.Context, id string) error
	// node starts a node's agent of a configuration file, with a clock that is
	// wrong by b from its start.
	node(name, file string, b bend) error
	// watch starts the agent of a switch.
	watch(sw string) error
	// dial reaches an agent, past the fabric.
	dial(ctx context.Context, network, addr string) (net.Conn, error)
	// dead is why an agent ended; nil: all run.
	dead() error
	// conductedBy says who relates the agents' clocks, before the first agent starts.
	conductedBy(*conductor)
	// note is what else is to be said of the measuring, in words.
	note() string
	Close() error
}

// namespaces is a site of network namespaces, with a process for every agent.
type namespaces struct {
	*lab.Lab
	o         Options
	conductor *conductor
	runs      sync.WaitGroup // the agents

	mu    sync.Mutex
	died  error
	procs []*exec.Cmd
}

func newNamespaces(ctx context.Context, o Options) (*namespaces, error) {
	l, err := lab.Up(ctx, o.Topology, lab.Options{Name: o.Name, Owner: true, Log: o.Log, Executable: o.Executable})
	if err != nil {
		return nil, err
	}
	return &namespaces{Lab: l, o: o}, nil
}

func (s *namespaces) conductedBy(c *conductor) { s.conductor = c }

func (s *namespaces) node(name, file string, b bend) error {
	args := []string{s.o.NodeBin, "--config.file", file, "--clock-bend-file", s.BendFile(name),
		"--web.listen-address", "127.0.0.1:" + agentPort, "--web.allowed-hosts", name, "--web.enable-admin-api", "--web.enable-lifecycle", "--log.level", "warn"}
	args = append(args, s.conductor.flags(name)...)
	if b != (bend{}) {
		args = append(args, fmt.Sprintf("--clock-offset=%s", b.offset), fmt.Sprintf("--clock-drift-ppm=%g", b.ppm))
	}
	return s.spawn(name, args)
}

func (s *namespaces) watch(sw string) error {
	return s.spawn(sw, []string{s.o.SwitchBin, "--switch", sw, "--ports.alias", "--lldp.send", "1s", "--stamp-port", fmt.Sprint(StampPort),
		"--web.listen-address", "127.0.0.1:" + switchPort, "--web.allowed-hosts", sw, "--web.enable-lifecycle", "--log.level", "warn"})
}

// spawn starts an agent in the namespace of a node or switch; that it ends is fatal
// to the demo.
func (s *namespaces) spawn(element string, argv []string) error {
	cmd := s.Command(context.Background(), element, argv...)
	out := &tail{w: s.o.AgentLogs, prefix: element}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the agent of %s: %w", element, err)
	}
	s.procs = append(s.procs, cmd)
	s.runs.Add(1)
	go func() {
		defer s.runs.Done()
		err := cmd.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.died == nil {
			s.died = fmt.Errorf("the agent of %s ended (%s): %s", element, exitText(err), out.last())
		}
	}()
	return nil
}

func exitText(err error) string {
	if err == nil {
		return "exit code 0"
	}
	return err.Error()
}

func (s *namespaces) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return s.Reach(ctx, network, addr)
}

func (s *namespaces) dead() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.died
}

func (s *namespaces) note() string { return "kernel timestamps on every packet" }

// Close ends the agents and takes the lab down.
func (s *namespaces) Close() error {
	var errs []error
	for _, cmd := range s.procs {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, s.Lab.Close())
	s.runs.Wait()
	return errors.Join(errs...)
}

// tail passes a program's output on and keeps its last lines for the error message.
type tail struct {
	w      io.Writer
	prefix string
	mu     sync.Mutex
	keep   []string
	part   bytes.Buffer
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.part.Write(b)
	for {
		line, err := t.part.ReadString('\n')
		if err != nil {
			t.part.WriteString(line)
			return len(b), nil
		}
		line = strings.TrimRight(line, "\n")
		if t.keep = append(t.keep, line); len(t.keep) > 5 {
			t.keep = t.keep[1:]
		}
		if t.w != nil {
			fmt.Fprintf(t.w, "%s: %s\n", t.prefix, line)
		}
	}
}

func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.keep, "; ")
}

// logOf is where an agent within this process logs.
func logOf(o Options, element string) *slog.Logger {
	if o.AgentLogs == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(o.AgentLogs, &slog.HandlerOptions{Level: slog.LevelWarn})).With("agent", element)
}
