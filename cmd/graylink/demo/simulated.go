package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/promserver"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/exporters/node"
	fabricswitch "github.com/graylink/graylink/exporters/switch"
	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/sim/agents"
	"github.com/graylink/graylink/internal/sim/packets"
	"github.com/graylink/graylink/internal/switchagent"
	"github.com/graylink/graylink/internal/webaccess"
	"github.com/graylink/graylink/internal/webserver"
)

// simulated is a site within this process: the packets are made up, the agents
// are those of graylink-node from the sample on.
type simulated struct {
	*agents.Fabric
	o           Options
	base        time.Time
	coordinator *embeddedCoordinator
	stop        context.CancelFunc
	background  sync.WaitGroup // time, and the agents' servers

	mu     sync.Mutex
	agents map[string]*simAgent // by the address that is dialled
}

// simAgent is a node's or a switch's agent and its web server, which has no port.
type simAgent struct {
	agent interface {
		Ready() error
		Close() error
	}
	server *webserver.Server
	conns  *listener
}

func newSimulated(o Options) (*simulated, error) {
	t, err := lab.WithAddresses(o.Topology)
	if err != nil {
		return nil, err
	}
	s := &simulated{o: o, base: time.Now(), agents: map[string]*simAgent{}}
	// The message that the machine is too busy is for the operator.
	s.Fabric = agents.New(t, s.base, packets.DefaultLoad, o.Seed, slog.New(slog.NewTextHandler(o.Progress, nil)))
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.background.Go(func() { s.Run(ctx) })
	return s, nil
}

func (s *simulated) setCoordinator(c *embeddedCoordinator) { s.coordinator = c }

func (s *simulated) AddFault(_ context.Context, f lab.Fault) (string, error) {
	return s.Fabric.AddFault(simulatedFault(f))
}

// simulatedFault returns a lab's fault as the simulation has it, where all packets have one length.
func simulatedFault(f lab.Fault) agents.Fault {
	return agents.Fault{Kind: f.Kind, At: f.At, Direction: f.Direction, Delay: f.Delay, Loss: f.Loss, Step: f.Step, DriftPPM: f.DriftPPM}
}

func (s *simulated) ClearFault(_ context.Context, id string) error { return s.Fabric.ClearFault(id) }

func (s *simulated) startNode(name, file string, b bend, _ string) error {
	clock, err := bentclock.New(s.base, b.offset, b.ppm, "")
	if err != nil {
		return err
	}
	start := func(cfg *probe.Config, log *slog.Logger) (*probe.Engine, error) { return s.Start(cfg, clock, log) }
	address := name + ":" + agentPort
	n, err := nodeagent.StartFleet(nodeagent.FleetOptions{Coordinator: nodeagent.CoordinatorOptions{Addresses: []string{s.coordinator.listenAddress()}, Files: s.coordinator.certificateFiles(nodeFile(name))}, File: file,
		Version: buildversion.Version(), Web: address, WebScheme: "http", Clock: nodeagent.ClockOptions{Sync: true, Node: clock}, Engine: start}, logOf(s.o, name))
	if err != nil {
		return fmt.Errorf("cannot start the agent of %s: %w", name, err)
	}
	policy := s.agentPolicy(name)
	h := node.New(n, logOf(s.o, name)).Handler(policy)
	s.serveAgent(address, &simAgent{agent: n}, policy, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Counters of two nodes are compared by the times they were read at.
		s.CatchUp()
		h.ServeHTTP(w, r)
	}))
	return nil
}

// useSignals implements site.
func (s *simulated) useSignals(_ string, signals *probe.Signals) error {
	s.UseSignals(signals)
	return nil
}

// switchFlows bounds a simulated switch's table, fresh is for how long it takes a
// flow to go on crossing a port: graylink-switch's defaults.
const (
	switchFlows   = 1 << 16
	flowFreshness = 3 * time.Second
)

func (s *simulated) startSwitch(sw string) error {
	eyes, err := s.SightingSource(sw)
	if err != nil {
		return err
	}
	a, err := switchagent.StartSimulated(switchagent.Simulated{Switch: sw, Ports: eyes.PortNames(), Source: eyes, Neighbours: eyes.Neighbours, Fresh: flowFreshness, Flows: switchFlows}, logOf(s.o, sw))
	if err != nil {
		return fmt.Errorf("cannot start the agent of %s: %w", sw, err)
	}
	s.serveAgent(sw+":"+switchPort, &simAgent{agent: a}, s.agentPolicy(sw), fabricswitch.New(a, logOf(s.o, sw)).SightingsHandler())
	return nil
}

// agentPolicy returns what the analyzer may do with an agent.
func (s *simulated) agentPolicy(element string) *webaccess.Policy {
	return &webaccess.Policy{AdminAPI: true, Lifecycle: true, AllowedHosts: []string{element}, Log: logOf(s.o, element)}
}

// serveAgent lets an agent be reached at an address.
func (s *simulated) serveAgent(address string, a *simAgent, p *webaccess.Policy, h http.Handler) {
	a.server, a.conns = webserver.New(h, p, webserver.DefaultLimits(), s.o.Log), newListener()
	s.mu.Lock()
	s.agents[address] = a
	s.mu.Unlock()
	s.background.Go(func() {
		if err := a.server.Serve(a.conns); !errors.Is(err, http.ErrServerClosed) {
			s.o.Log.Error("agent failed", "address", address, "err", err)
		}
	})
}

func (s *simulated) dialAgent(ctx context.Context, _, addr string) (net.Conn, error) {
	s.mu.Lock()
	a := s.agents[addr]
	s.mu.Unlock()
	if a == nil {
		return nil, fmt.Errorf("the simulated fabric has no agent at %s", addr)
	}
	return a.conns.dialPipe(ctx)
}

func (s *simulated) agentError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, a := range s.agents {
		if err := a.agent.Ready(); err != nil {
			return fmt.Errorf("the agent at %s ended: %w", at, err)
		}
	}
	return nil
}

func (s *simulated) telemetry() ([]tracing.Subnet, []promserver.Target) { return nil, nil }

func (s *simulated) describeMeasurement() string {
	return fmt.Sprintf("packets, stamps and clocks are simulated, at a load of %g %%; all that comes after them is real", packets.DefaultLoad*100)
}

// Close ends the agents and time.
func (s *simulated) Close() error {
	var errs []error
	for _, a := range s.agents {
		errs = append(errs, a.server.Close(), a.agent.Close())
	}
	s.stop()
	s.background.Wait()
	return errors.Join(errs...)
}

// listener hands connections from dial to a server in the same process.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newListener() *listener {
	return &listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *listener) dialPipe(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- local{there}:
		return here, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return loopback }

// loopback is where clients of this process are.
var loopback = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}

// local is a connection from this process.
type local struct{ net.Conn }

// RemoteAddr returns the loopback address, since clients within this process are on this machine.
func (local) RemoteAddr() net.Addr { return loopback }
