package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/promserver"
	"github.com/graylink/graylink/analyzer/tracing"
	exporter "github.com/graylink/graylink/exporters/ibfabric"
	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/iblab"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibsubnet"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/sim/packets"
)

// The demo's subnet: four leaves, two spines, and four HCAs on each leaf. OpenSM runs beside the last HCA.
const (
	subnetLeaves, subnetSpines, subnetPerLeaf = 4, 2, 4

	// subnetSpeed is a line of the net file: all links have the speed of HDR, the fastest that ibsim has.
	subnetSpeed = "extspeed=4\n"

	subnetName = "ib0"
	// subnetAddress is where the agent that reads the subnet publishes its series.
	subnetAddress = subnetName + ":9873"
	// installedInterval is how often the simulated fabric takes what OpenSM has installed.
	installedInterval = 50 * time.Millisecond
)

// subnet is a site on InfiniBand. OpenSM routes a subnet that ibsim has in the place of hardware, and an agent reads its
// tables and counters. The packets of probes are simulated along the tables that OpenSM has installed.
type subnet struct {
	*simulated
	dir    string
	lab    *iblab.Subnet
	client *ibmad.Client
	agent  *ibagent.Agent
	groups string // file with the groups of adaptive routing; empty without
	stop   context.CancelFunc
	follow sync.WaitGroup

	mu       sync.Mutex // the console, and what follows
	faults   map[string]*subnetFault
	counters map[string]uint64 // what ibsim's counters were set to
	last     int
}

// newSubnet runs OpenSM on ibsim, and simulates the fabric that it finds.
func newSubnet(ctx context.Context, o Options) (_ *subnet, err error) {
	if missing := iblab.MissingPrograms(iblab.Programs...); len(missing) > 0 {
		return nil, fmt.Errorf("the demo's subnet needs %s: apt-get install opensm ibsim-utils", strings.Join(missing, ", "))
	}
	s := &subnet{faults: map[string]*subnetFault{}, counters: map[string]uint64{}, stop: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "graylink-subnet-"); err != nil {
		return nil, err
	}
	hosts := subnetLeaves * subnetPerLeaf
	if s.lab, err = iblab.Start(ctx, s.dir, subnetSpeed+iblab.FatTree(subnetLeaves, subnetSpines, subnetPerLeaf), iblab.Options{SMHost: host(hosts - 1), Config: o.OpenSMConfig}); err != nil {
		return nil, err
	}
	transport, err := ibmad.Open(s.device(host(0)))
	if err != nil {
		return nil, err
	}
	s.client = ibmad.NewClient(transport, ibmad.Config{})
	f, err := s.readInstalled(ctx)
	if err != nil {
		return nil, err
	}
	topo, found := f.BuildTopology()
	if len(found) > 0 {
		return nil, fmt.Errorf("the subnet is not whole: %s", strings.Join(found, "; "))
	}
	o.Topology = topo
	if s.simulated, err = newSimulated(o); err != nil {
		return nil, err
	}
	if o.Adaptive {
		s.groups = filepath.Join(s.dir, "ibdiagnet2.far")
	}
	if err := s.install(f); err != nil {
		return nil, err
	}
	return s, s.startAgents(o)
}

// install takes what OpenSM has installed into the simulated fabric. With adaptive routing, switches choose for each packet
// between all shortest ways, and a file has their groups: neither OpenSM nor ibsim have any.
func (s *subnet) install(f *ibfabric.Fabric) error {
	installed := installedSubnet(f)
	if s.groups != "" {
		text := f.AppendShortestGroups(nil)
		with, _, err := f.ReadAdaptive(s.groups, bytes.NewReader(text))
		if err != nil {
			return err
		}
		installed = installedSubnet(with)
		if err := durable.WriteFile(s.groups, text); err != nil {
			return err
		}
	}
	s.SetSubnet(installed)
	return nil
}

// host returns the name of an HCA of the demo's subnet.
func host(i int) string { return fmt.Sprintf("h%d", i) }

// device returns the name by which package ibmad opens an HCA.
func (s *subnet) device(host string) string { return "ibsim:" + s.lab.SocketName() + "/" + host }

// startAgents starts the agent that reads the subnet, and the simulated fabric's following of OpenSM.
func (s *subnet) startAgents(o Options) (err error) {
	c := ibagent.DefaultConfig()
	c.Name, c.Device, c.Discovery = subnetName, s.device(host(1)), time.Second
	c.Tables, c.Listen, c.OpenSMLog = true, "127.0.0.1:0", s.lab.LogPath()
	// OpenSM would end at queries that ibsim does not know.
	c.Metrics = []string{"PortCounters", "PortCountersExtended"}
	if s.agent, err = ibagent.Start(c, ibmad.Open, logOf(o, subnetName)); err != nil {
		return err
	}
	policy := s.agentPolicy(subnetName)
	s.serveAgent(subnetAddress, &simAgent{agent: agentOf{s.agent}}, policy, exporter.NewHandler(s.agent))
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.follow.Go(func() { s.followInstalled(ctx, logOf(o, "ibsim")) })
	return nil
}

// agentError implements site.
func (s *subnet) agentError() error {
	if err := s.lab.CheckRunning(); err != nil {
		return err
	}
	return s.simulated.agentError()
}

// agentOf is the agent of a subnet as a site's agents are: it is closed with the subnet, before ibsim is.
type agentOf struct{ *ibagent.Agent }

// Ready returns nil: an agent that cannot read keeps trying, and the analyzer shows it.
func (agentOf) Ready() error { return nil }

// readInstalled reads cables, states of ports and tables.
func (s *subnet) readInstalled(ctx context.Context) (*ibfabric.Fabric, error) {
	f, _, err := ibfabric.Discover(ctx, s.client)
	if err != nil {
		return nil, err
	}
	t, err := ibfabric.ReadTables(ctx, s.client, f)
	if err != nil {
		return nil, err
	}
	return f.WithTables(t.LFTs), nil
}

// followInstalled takes what OpenSM has installed into the simulated fabric until ctx ends.
func (s *subnet) followInstalled(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(installedInterval)
	defer tick.Stop()
	var last *ibfabric.Fabric
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f, err := s.readInstalled(ctx)
		switch {
		case err != nil:
			log.Warn("cannot read what OpenSM has installed", "err", err)
		case last == nil || !f.Equal(last):
			if err := s.install(f); err != nil {
				log.Error("cannot install", "err", err)
				return
			}
			last = f
		}
	}
}

// installedSubnet returns cables between active ports, and the tables' entries for HCAs.
func installedSubnet(f *ibfabric.Fabric) packets.Subnet {
	out := packets.Subnet{Far: map[string]string{}, Next: map[string]map[string][]string{}}
	type destination struct {
		nic string
		lid ibfabric.LID
	}
	var all []destination
	for i := range f.Nodes {
		for p := range f.Nodes[i].Ports {
			e := ibfabric.End{Node: int32(i), Port: uint8(p)}
			port := f.PortAt(e)
			if i >= f.Switches && port.LID != 0 {
				all = append(all, destination{f.EndName(e), port.LID})
			}
			if p > 0 && port.Linked && port.State == ibmad.PortActive && f.PortAt(port.Far).State == ibmad.PortActive {
				out.Far[f.EndName(e)] = f.EndName(port.Far)
			}
		}
	}
	for i := range f.Switches {
		next := map[string][]string{}
		for _, d := range all {
			if table := f.LFTs[i]; int(d.lid) < len(table) && table[d.lid] != ibmad.NoRoute {
				ports := []uint8{table[d.lid]}
				if len(f.Adaptive) > i && f.Adaptive[i] != nil && len(f.Adaptive[i].PortsTo(d.lid)) > 0 {
					ports = f.Adaptive[i].PortsTo(d.lid)
				}
				for _, p := range ports {
					next[d.nic] = append(next[d.nic], f.EndName(ibfabric.End{Node: int32(i), Port: p}))
				}
			}
		}
		out.Next[f.NodeName(int32(i))] = next
	}
	return out
}

// telemetry implements site.
func (s *subnet) telemetry() ([]tracing.Subnet, []promserver.Target) {
	var source ibsubnet.Source = &ibsubnet.Agents{Client: httpClient(nil), URLs: []string{"http://" + s.agent.ListenAddress()}}
	if s.groups != "" {
		source = &ibsubnet.Adaptive{Source: source, File: s.groups}
	}
	return []tracing.Subnet{{Source: source, State: &ibsubnet.State{Subnet: subnetName}}}, []promserver.Target{{Job: "graylink-ib", Address: subnetAddress, Path: "/metrics"}}
}

func (s *subnet) describeMeasurement() string {
	return "OpenSM routes the subnet, on ibsim; packets are simulated along the tables that it installs; all that comes after them is real"
}

// Close ends the agents, OpenSM and ibsim.
func (s *subnet) Close() error {
	s.stop()
	s.follow.Wait()
	errs := []error{s.ClearFault(context.Background(), "")}
	if s.simulated != nil {
		errs = append(errs, s.simulated.Close())
	}
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}
	if s.lab != nil {
		errs = append(errs, s.lab.Close())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// KindSymbolErrors is a cable that damages what it carries one way: packets are lost, and the receiving port counts them.
const KindSymbolErrors = "symbol-errors"

// subnetFaultKinds returns the kinds of faults of a subnet.
func subnetFaultKinds() []string {
	return []string{lab.KindBlackhole, lab.KindDelay, lab.KindFlap, lab.KindLinkDown, lab.KindLoss, lab.KindMiscable, lab.KindNICSlow, lab.KindSwitchSlow, KindSymbolErrors}
}

// subnetCauses has the causes of faults that show in a subnet's counters or states of ports, each of which is right. A link that
// flaps may be down when its ports are read.
var subnetCauses = map[string][]string{lab.KindFlap: {fabric.CauseFlap, fabric.CauseDown}, lab.KindLinkDown: {fabric.CauseDown}, lab.KindLoss: {fabric.CauseDrops}, KindSymbolErrors: {fabric.CausePhysical}}

// How ibsim's counters grow while a fault lasts.
const (
	countInterval    = 200 * time.Millisecond
	countPerInterval = 10
)

// Counters of a port, as ibsim's console names them.
const (
	symbolErrors  = "PortCounters.SymbolErrorCounter"
	receiveErrors = "PortCounters.PortRcvErrors"
	discards      = "PortCounters.PortXmitDiscards"
	linkDowned    = "PortCounters.LinkDownedCounter"
)

// subnetFault is a fault that is in force.
type subnetFault struct {
	simulated string // identifier of the simulated part; empty if there is none
	stop      context.CancelFunc
	running   sync.WaitGroup
	undo      func() error
}

// AddFault makes a fault in the simulated fabric and in ibsim.
func (s *subnet) AddFault(ctx context.Context, f lab.Fault) (string, error) {
	run, stop := context.WithCancel(context.Background())
	a := &subnetFault{stop: stop, undo: func() error { return nil }}
	if err := s.beginFault(ctx, run, a, f); err != nil {
		stop()
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	id := fmt.Sprintf("s%d", s.last)
	s.faults[id] = a
	return id, nil
}

func (s *subnet) beginFault(ctx, run context.Context, a *subnetFault, f lab.Fault) (err error) {
	simulate := f
	switch f.Kind {
	case lab.KindLinkDown, lab.KindFlap:
		return s.takeDown(run, a, f)
	case lab.KindMiscable:
		return s.swapCables(a, f.At)
	case KindSymbolErrors:
		simulate.Kind = lab.KindLoss
	case lab.KindMute:
		return errors.New("mute: switches of InfiniBand answer no traces")
	}
	if a.simulated, err = s.simulated.AddFault(ctx, simulate); err != nil {
		return err
	}
	d, err := fabric.ParseDirection(f.Direction)
	if err != nil {
		return nil // the fault has no direction of a link
	}
	end, counters := d.From, []string{discards}
	switch f.Kind {
	case lab.KindLoss:
	case KindSymbolErrors:
		end, counters = d.To, []string{symbolErrors, receiveErrors}
	default:
		return nil
	}
	a.running.Go(func() { s.growCounters(run, end, counters) })
	return s.countEvents(end, countPerInterval, counters...)
}

// ClearFault undoes one fault, or all when id is empty.
func (s *subnet) ClearFault(ctx context.Context, id string) error {
	s.mu.Lock()
	var gone []*subnetFault
	for k, a := range s.faults {
		if id == "" || id == k {
			gone = append(gone, a)
			delete(s.faults, k)
		}
	}
	s.mu.Unlock()
	if id != "" && len(gone) == 0 {
		return fmt.Errorf("there is no fault %q", id)
	}
	var errs []error
	for _, a := range gone {
		a.stop()
		a.running.Wait()
		errs = append(errs, a.undo())
		if a.simulated != "" {
			errs = append(errs, s.simulated.ClearFault(ctx, a.simulated))
		}
	}
	return errors.Join(errs...)
}

// consoleEnd returns an end as ibsim's console has it.
func consoleEnd(end string) string {
	if sw, port, ok := fabric.SplitPort(end); ok {
		return fmt.Sprintf("%q[%s]", sw, port)
	}
	return fmt.Sprintf("%q[1]", fabric.OwnerOf(end))
}

// runConsole runs commands in ibsim's console.
func (s *subnet) runConsole(commands ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range commands {
		out, err := s.lab.RunConsole(c)
		if err != nil {
			return err
		}
		if i := strings.Index(out, "#"); i >= 0 {
			return fmt.Errorf("ibsim: %s: %s", c, strings.TrimSpace(out[i:]))
		}
	}
	return nil
}

// countEvents adds to counters of an end.
func (s *subnet) countEvents(end string, n uint64, counters ...string) error {
	var commands []string
	s.mu.Lock()
	for _, c := range counters {
		key := consoleEnd(end) + " " + c
		s.counters[key] += n
		commands = append(commands, fmt.Sprintf("PerformanceSet %s=%d", key, s.counters[key]))
	}
	s.mu.Unlock()
	return s.runConsole(commands...)
}

// growCounters lets counters of an end grow until ctx ends.
func (s *subnet) growCounters(ctx context.Context, end string, counters []string) {
	for sleepContext(ctx, countInterval) == nil {
		if err := s.countEvents(end, countPerInterval, counters...); err != nil {
			s.o.Log.Error("cannot set counters of ibsim", "end", end, "err", err)
		}
	}
}

// Times of a link that flaps.
const (
	flapDown = 400 * time.Millisecond
	flapUp   = 1600 * time.Millisecond
)

// takeDown takes a link down, for good or again and again. Both ends count that it went.
func (s *subnet) takeDown(run context.Context, a *subnetFault, f lab.Fault) error {
	one, two, ok := fabric.SplitLink(f.At)
	if !ok {
		return fmt.Errorf("%s at %s: a link is expected", f.Kind, f.At)
	}
	down := func() error {
		return errors.Join(s.runConsole("Unlink "+consoleEnd(one)), s.countEvents(one, 1, linkDowned), s.countEvents(two, 1, linkDowned))
	}
	up := func() error { return s.runConsole(fmt.Sprintf("Link %s %s", consoleEnd(one), consoleEnd(two))) }
	if err := down(); err != nil {
		return err
	}
	linked := false
	a.undo = func() error {
		if linked {
			return nil
		}
		return up()
	}
	if f.Kind == lab.KindLinkDown {
		return nil
	}
	a.running.Go(func() {
		for pause := flapDown; sleepContext(run, pause) == nil; {
			next, err := down, error(nil)
			pause = flapDown
			if !linked {
				next, pause = up, flapUp
			}
			if err = next(); err != nil {
				s.o.Log.Error("cannot flap a link of ibsim", "link", f.At, "err", err)
				return
			}
			linked = !linked
		}
	})
	return nil
}

// swapCables exchanges the upper ends of two cables.
func (s *subnet) swapCables(a *subnetFault, at string) error {
	first, second, _ := strings.Cut(at, ",")
	a1, b1, ok1 := fabric.SplitLink(first)
	a2, b2, ok2 := fabric.SplitLink(second)
	if !ok1 || !ok2 {
		return fmt.Errorf("miscable at %s: LINK,LINK is expected", at)
	}
	g := fabric.NewGraph(s.Topology())
	if g.SwitchTier(fabric.OwnerOf(a1)) > g.SwitchTier(fabric.OwnerOf(b1)) {
		a1, b1 = b1, a1
	}
	if g.SwitchTier(fabric.OwnerOf(a2)) > g.SwitchTier(fabric.OwnerOf(b2)) {
		a2, b2 = b2, a2
	}
	plug := func(x1, y1, x2, y2 string) error {
		return s.runConsole("Unlink "+consoleEnd(a1), "Unlink "+consoleEnd(a2),
			fmt.Sprintf("Link %s %s", consoleEnd(x1), consoleEnd(y1)), fmt.Sprintf("Link %s %s", consoleEnd(x2), consoleEnd(y2)))
	}
	a.undo = func() error { return plug(a1, b1, a2, b2) }
	return plug(a1, b2, a2, b1)
}
