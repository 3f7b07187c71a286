// Package ibagent is one process's part in the sampling of an InfiniBand fabric: delegator, sampler or both,
// and a delegator's series. It combines ibfabric, which finds the ports, and ibsample, which reads them.
package ibagent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibsample"
	"github.com/graylink/graylink/internal/ibsubnet"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/webaccess"
	"github.com/graylink/graylink/internal/webserver"
)

// Agent is a running delegator, sampler, or both.
type Agent struct {
	config    Config
	log       *slog.Logger
	client    *ibmad.Client
	delegator *ibsample.Delegator // nil if it is in another process
	listener  net.Listener        // nil without samplers in other processes
	keeper    *pki.Keeper         // nil without certificates
	tables    *ibsubnet.Server    // nil if this process does not read forwarding tables
	changes   portChanges         // of the delegator's ports
	load      ibsubnet.Load       // what this process sends
	stop      context.CancelFunc
	wg        sync.WaitGroup

	mu        sync.Mutex
	discovery Discovery
	ports     map[ibsample.Key]foundPort
	traps     map[trapKey]uint64 // that OpenSM logged
}

// Discovery holds the results of the discoveries.
type Discovery struct {
	Last   time.Time // of the last success
	Took   time.Duration
	Done   uint64
	Failed uint64
	Err    error // of the last, nil if it succeeded
	Nodes  int
	Silent int
}

// foundPort represents a port, with the time at which it was last found.
type foundPort struct {
	ibsample.Target
	at    time.Time
	state ibmad.PortState
	rate  float64 // octets per second; 0 means unknown
	// description is the node's description, and remoteDescription that of the node at the other end of the cable.
	description, remoteDescription string
	tick                           float64 // seconds of a tick of waiting; 0 means unknown
}

// Start starts an agent. open is ibmad.Open, or its replacement in tests.
func Start(c Config, open func(device string) (ibmad.Transport, error), log *slog.Logger) (*Agent, error) {
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, err
		}
		c.Name = host
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a := &Agent{config: c, log: log}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	if err := a.startRoles(ctx, open); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Agent) startRoles(ctx context.Context, open func(device string) (ibmad.Transport, error)) error {
	key, err := ibmad.ReadMKey(a.config.MKeyFile)
	if err != nil {
		return err
	}
	transport, err := open(a.config.Device)
	if err != nil {
		return err
	}
	retries := a.config.Retries
	if retries == 0 {
		retries = -1 // ibmad's value for none
	}
	a.client = ibmad.NewClient(transport, ibmad.Config{MaxInFlight: a.config.Window, PerDestination: a.config.PerNode, Timeout: a.config.Timeout, Retries: retries, MKey: key})
	if a.config.Tables {
		a.startTables(ctx)
	}
	keys, err := a.openKeeper()
	if err != nil {
		return err
	}
	a.keeper = keys
	var authority ibsample.Authority
	if a.config.Delegator == "" {
		if err := a.startDelegator(ctx, keys); err != nil {
			return err
		}
		authority = ibsample.Local{Delegator: a.delegator, Now: time.Now}
	} else if authority, err = a.remoteAuthority(keys); err != nil {
		return err
	}
	if !a.config.Sample {
		return nil
	}
	s, err := ibsample.NewSampler(a.config.Name, authority, a.client, a.log)
	if err != nil {
		return err
	}
	a.wg.Go(func() { s.Run(ctx) })
	return nil
}

// startTables starts reading the forwarding tables.
func (a *Agent) startTables(ctx context.Context) {
	server := ibsubnet.NewServer()
	a.tables = server
	source := &ibsubnet.Device{Name: a.config.Device, Client: a.client, Log: a.config.OpenSMLog, Changes: []ibfabric.ChangeSource{&a.changes}, Budget: a.config.SwitchBudget, Load: &a.load}
	if a.config.SwitchBudget == 0 {
		source.Budget = math.MaxInt32 // no limit
	}
	state := &ibsubnet.State{Subnet: a.config.Device}
	a.wg.Go(func() {
		ibsubnet.Follow(ctx, source, state, a.log, func(r ibfabric.Reading, err error) {
			if err != nil {
				server.Fail(err)
				return
			}
			a.load.SetFabric(r.Fabric)
			server.Apply(r, source.Origin())
		})
	})
}

func (a *Agent) openKeeper() (*pki.Keeper, error) {
	if a.config.TLS.CA == "" {
		return nil, nil
	}
	return pki.Open(pki.Files{CA: a.config.TLS.CA, Cert: a.config.TLS.Cert, Key: a.config.TLS.Key}, func(err error) { a.log.Warn("certificates", "err", err) })
}

// samplerLimits are the limits of the listener for samplers. Each sampler waits for work on a connection of its
// own, and a report of 100,000 ports takes a while.
var samplerLimits = webserver.Limits{Connections: 4096, ConnectionsPerAddress: 256, Scrapes: 1, Body: 2 * time.Minute}

// startDelegator starts the delegator.
func (a *Agent) startDelegator(ctx context.Context, keys *pki.Keeper) error {
	c := &a.config
	a.delegator = ibsample.NewDelegator(ibsample.Options{Interval: c.Interval, Redundancy: c.Redundancy, Metrics: c.Metrics, Pins: c.assignmentPins()})
	a.changes.setStore(a.delegator.Store)
	a.wg.Go(func() { a.delegator.WatchSamplers(ctx) })
	a.wg.Go(func() { a.discoverLoop(ctx) })
	if c.OpenSMLog != "" {
		a.wg.Go(func() { a.followTraps(ctx) })
	}
	a.wg.Go(func() { a.countLoop(ctx) })
	if c.Listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	a.listener = l
	// With mutual TLS, the certificates authenticate both sides under any host name.
	policy := &webaccess.Policy{AnyHost: keys != nil, Log: a.log}
	server := webserver.New(a.handler(), policy, samplerLimits, a.log)
	a.wg.Go(func() {
		<-ctx.Done()
		_ = server.Close() // samplers' waiting requests do not end by themselves
	})
	a.wg.Go(func() {
		serve := server.Serve
		if keys != nil {
			serve = func(l net.Listener) error { return server.ServeTLS(l, keys.ServerConfig()) }
		}
		if err := serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("cannot serve samplers", "err", err)
		}
	})
	return nil
}

// handler returns the handler of the requests of samplers, and of analyzers if this process reads forwarding tables.
func (a *Agent) handler() http.Handler {
	mux := a.delegator.Handler(time.Now)
	if a.tables != nil {
		mux.Handle("GET /api/v1/subnet", a.tables)
	}
	return mux
}

func (a *Agent) remoteAuthority(keys *pki.Keeper) (ibsample.Authority, error) {
	u, err := url.Parse(a.config.Delegator)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// The connection is direct, and ignores proxies from the environment.
	transport.Proxy = nil
	if keys != nil {
		name := a.config.TLS.Server
		if name == "" {
			name = u.Hostname()
		}
		// Replaced certificates are used from the next connection on.
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			d := tls.Dialer{Config: keys.ClientConfig(name)}
			return d.DialContext(ctx, network, address)
		}
	}
	return &ibsample.Remote{Base: u, Client: &http.Client{Transport: transport}}, nil
}

// Expiries implements pki.Source: it lists the certificates between delegator and samplers.
func (a *Agent) Expiries() []pki.Expiry {
	if a.keeper == nil {
		return nil
	}
	return a.keeper.Expiries()
}

// Close stops the agent.
func (a *Agent) Close() error {
	a.stop()
	a.wg.Wait()
	if a.client == nil {
		return nil
	}
	return a.client.Close()
}

// ListenAddress returns the address on which the delegator listens, or "" if it does not.
func (a *Agent) ListenAddress() string {
	if a.listener == nil {
		return ""
	}
	return a.listener.Addr().String()
}

// CheckReady returns an error if the delegator has no ports to read yet, with the reason. It returns nil for a
// process that is only a sampler.
func (a *Agent) CheckReady() error {
	if a.delegator == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.discovery.Err != nil:
		return a.discovery.Err
	case a.discovery.Done == 0:
		return errors.New("the fabric is not discovered yet")
	}
	return nil
}

// discoverLoop keeps the delegator's ports equal to those of the fabric.
func (a *Agent) discoverLoop(ctx context.Context) {
	ticker := time.NewTicker(a.config.Discovery)
	defer ticker.Stop()
	for {
		began := time.Now()
		f, odd, err := ibfabric.Discover(ctx, a.client)
		if ctx.Err() != nil {
			return
		}
		for _, text := range odd {
			a.log.Warn("discovery", "found", text)
		}
		a.applyDiscovery(f, err, began, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (a *Agent) applyDiscovery(f *ibfabric.Fabric, err error, began, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := &a.discovery
	d.Err, d.Took = err, now.Sub(began)
	if err != nil {
		d.Failed++
		a.log.Error("cannot discover the fabric", "err", err)
		return
	}
	d.Done++
	a.load.SetFabric(f)
	d.Last, d.Nodes, d.Silent = now, len(f.Nodes), len(f.Unanswered)
	ports := fabricTargets(f, now)
	if a.ports != nil {
		a.changes.compare(a.ports, ports)
	}
	// A port that no longer answers is still read for a while, so that its silence shows in its errors and not
	// only in its absence.
	for k, p := range a.ports {
		if _, there := ports[k]; !there && now.Sub(p.at) < a.config.Forget {
			p.state = 0
			ports[k] = p
		}
	}
	a.ports = ports
	list := make([]ibsample.Target, 0, len(ports))
	for _, p := range ports {
		list = append(list, p.Target)
	}
	a.delegator.SetTargets(list)
}

// fabricTargets returns the ports of a fabric: all of switches but their own port 0, and those of HCAs that
// have a LID.
func fabricTargets(f *ibfabric.Fabric, now time.Time) map[ibsample.Key]foundPort {
	out := map[ibsample.Key]foundPort{}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		for number := 1; number < len(n.Ports); number++ {
			e := ibfabric.End{Node: int32(i), Port: uint8(number)}
			port := &n.Ports[number]
			lid := f.FirstLID(e)
			if lid == 0 {
				continue // it cannot be queried: performance management needs a LID
			}
			t := ibsample.Target{Key: ibsample.Key{Node: uint64(n.GUID), Port: e.Port}, LID: uint16(lid), Element: f.EndName(e), Switch: n.Type == ibmad.NodeSwitch,
				Vendor: n.Vendor, Device: n.Device}
			found := foundPort{at: now, state: port.State, rate: port.RateGbps() * 1e9 / 8, description: descriptionText(n), tick: waitTick(n, port)}
			if port.Linked {
				found.remoteDescription = descriptionText(&f.Nodes[port.Far.Node])
				t.Remote, t.RemoteLID, t.RemotePort = f.EndName(port.Far), uint16(f.FirstLID(port.Far)), port.Far.Port
			}
			found.Target = t
			out[t.Key] = found
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// WaitTwoReadings waits until the present ports have been read twice, or failed to be, and returns the
// readings.
func (a *Agent) WaitTwoReadings(ctx context.Context) ([]ibsample.PortState, error) {
	poll := time.NewTicker(a.config.Interval / 20)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-poll.C:
		}
		a.mu.Lock()
		d := a.discovery
		a.mu.Unlock()
		if d.Done == 0 && d.Err != nil {
			return nil, d.Err
		}
		s := a.delegator.Store.Snapshot(time.Now())
		if d.Done > 0 && s.Accepted >= 2*uint64(len(s.Ports)) {
			return s.Ports, nil
		}
	}
}
