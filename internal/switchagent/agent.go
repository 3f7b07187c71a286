// Package switchagent keeps the table of probes that cross the switch that graylink-switch runs on, and reads the state of
// the switch's ports. exporters/switch serves the table and publishes the state.
//
//  1. At least once a Period the agent lists the interfaces that are ports, hands them to the source, and adds what the
//     source saw to the table. It does so more often if a round costs less than a hundredth of a processor.
//  2. An interface that is renamed, removed or added changes the set of ports from the next Period on. Flows that were
//     seen by its number are not reported under another name.
//  3. If the source fails, the agent is not ready. Its table stays, and the age of the table is visible, because tables
//     are made Through the last Period that succeeded.
package switchagent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/sighting/lldp"
	"github.com/graylink/graylink/internal/sighting/source"
)

// Period is the longest time between two tables, and quickest is the shortest.
const (
	Period    = time.Second
	minPeriod = 250 * time.Millisecond
	// restFactor is the ratio of the time that the agent rests to the time that it works.
	restFactor = 100
)

// Options holds the configuration of the agent.
type Options struct {
	Switch     string   // name in the topology
	Ports      []string // shell patterns of interfaces that are ports
	Aliases    bool     // ports are named by the aliases of their interfaces
	StampPorts []uint16 // UDP ports of the reflectors of probes
	Source     string   // SourceAuto or a kind of sighting
	Group      uint32   // psample's sample group
	Rate       int      // limit on packets per second of a packet socket
	Fresh      time.Duration
	Flows      int           // capacity of the table
	LLDP       time.Duration // interval between LLDP frames to the neighbours; 0 sends none
	Routes     bool          // routes are read from the kernel
	FRR        string        // directory of the sockets of FRR's daemons; empty reads no daemon
}

// SourceAuto selects an eBPF program, and a packet socket if the program cannot be loaded.
const SourceAuto = "auto"

// Validate returns an error that names the first option that is not valid.
func (o *Options) Validate() error {
	switch {
	case o.Switch == "":
		return errors.New("switch: a name is expected")
	case len(o.Ports) == 0:
		return errors.New("ports: a pattern of interface names is expected")
	case len(o.StampPorts) == 0 || len(o.StampPorts) > maxStampPorts || slices.Contains(o.StampPorts, 0):
		return fmt.Errorf("STAMP ports: 1 to %d port numbers are expected", maxStampPorts)
	case o.Fresh < 2*Period || o.Fresh > time.Minute:
		return fmt.Errorf("fresh %v: %v to 1m are expected", o.Fresh, 2*Period)
	case o.Flows < 1 || o.Flows > maxFlows:
		return fmt.Errorf("flows %d: 1 to %d are expected", o.Flows, maxFlows)
	case o.Rate < 1:
		return fmt.Errorf("rate %d: a positive number of packets a second is expected", o.Rate)
	case o.LLDP != 0 && o.LLDP < time.Second:
		return fmt.Errorf("LLDP interval %v: 1s or more, or 0, are expected", o.LLDP)
	case o.FRR != "" && !o.Routes:
		return fmt.Errorf("directory of FRR %s: it is used only if routes are read", o.FRR)
	}
	for _, p := range o.Ports {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("ports: pattern %q: %w", p, err)
		}
	}
	return nil
}

const (
	maxStampPorts = 8
	maxFlows      = 1 << 20
)

// Agent watches one switch.
type Agent struct {
	o           Options
	log         *slog.Logger
	instance    string
	source      source.Source
	lldp        neighbourListener
	links       func(aliases bool) ([]Link, error)
	stop        context.CancelFunc
	wg          sync.WaitGroup
	announcedAt time.Time       // time of the last LLDP frames
	reloads     chan chan error // requests of Reload for a round, each with the channel for its result
	routes      *routeWatcher   // nil if routes are not read

	mu    sync.RWMutex
	table *sighting.Table
	last  round
}

// round represents what is known from the rounds until now.
type round struct {
	names map[uint32]string // of the ports, by interface number
	ports []Link
	end   time.Time // end of the last round that succeeded
	took  time.Duration
	done  uint64 // rounds that succeeded
	err   error  // of the last round
}

// neighbourListener is the part of lldp.Listener that the agent uses. Simulated switches have another implementation.
type neighbourListener interface {
	SetPorts(numbers []uint32) error
	CurrentNeighbours(now time.Time, name func(uint32) string) []sighting.Neighbour
	MalformedFrames() uint64
	SendFrame(ifindex int, frame []byte) error
	Close() error
}

// Start starts to watch the switch in the network namespace of the calling thread.
func Start(o Options, log *slog.Logger) (*Agent, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	src, err := openSource(&o, log)
	if err != nil {
		return nil, err
	}
	l, err := lldp.Listen()
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	if !o.Routes {
		return startOn(o, src, l, ListLinks, nil, log)
	}
	w, err := openRoutes(&o, log)
	if err != nil {
		return nil, errors.Join(err, l.Close(), src.Close())
	}
	return startOn(o, src, l, ListLinks, w, log)
}

// startOn starts the agent on a source of sightings, a listener for neighbours, a function that lists the links, and a
// watcher of routes, which may be nil.
func startOn(o Options, src source.Source, l neighbourListener, links func(bool) ([]Link, error), w *routeWatcher, log *slog.Logger) (*Agent, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, errors.Join(err, l.Close(), src.Close())
	}
	a := &Agent{o: o, reloads: make(chan chan error), log: log, instance: hex.EncodeToString(id[:]), source: src, lldp: l, links: links, routes: w,
		table: sighting.NewTable(o.Flows, o.Fresh), last: round{names: map[uint32]string{}}}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	if err := a.runRound(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	a.wg.Go(func() { a.run(ctx) })
	if w != nil {
		a.wg.Go(func() { w.run(ctx) })
	}
	return a, nil
}

// openSource opens the source that the options name.
func openSource(o *Options, log *slog.Logger) (source.Source, error) {
	switch o.Source {
	case string(sighting.KindPsample):
		return source.NewPsample(o.StampPorts, o.Flows, o.Group)
	case string(sighting.KindPacket):
		return source.NewPacket(o.StampPorts, o.Flows, o.Rate)
	case string(sighting.KindEBPF), SourceAuto:
		e, err := source.NewEBPF(o.StampPorts, o.Flows)
		if err == nil {
			return e, nil
		}
		if o.Source != SourceAuto {
			return nil, err
		}
		log.Warn("cannot load the eBPF program; falling back to a packet socket", "err", err)
		return source.NewPacket(o.StampPorts, o.Flows, o.Rate)
	}
	return nil, fmt.Errorf("source %q: %s, %s, %s or %s is expected", o.Source, SourceAuto, sighting.KindEBPF, sighting.KindPacket, sighting.KindPsample)
}

func (a *Agent) run(ctx context.Context) {
	next := time.NewTimer(minPeriod)
	defer next.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case reply := <-a.reloads:
			reply <- a.runRound(ctx)
			continue
		}
		began := time.Now()
		err := a.runRound(ctx)
		next.Reset(min(max(restFactor*time.Since(began), minPeriod), Period))
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			a.log.Error("cannot read sightings of probes", "err", err)
		}
		failing = err != nil
	}
}

// Reload runs a round at once, which lists the interfaces again. All configuration is in flags, so nothing else can
// have changed. It returns the error of that round, or the error of ctx.
func (a *Agent) Reload(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case a.reloads <- reply:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runRound runs one Period by rules 1 to 3. It returns the error of the source or of the list of interfaces.
func (a *Agent) runRound(ctx context.Context) error {
	began := time.Now()
	links, err := a.links(a.o.Aliases)
	if err == nil {
		links = slices.DeleteFunc(links, func(l Link) bool { return !a.o.IsPort(l.Name) })
		numbers := make([]uint32, len(links))
		names := make(map[uint32]string, len(links))
		for i, l := range links {
			numbers[i], names[l.Number] = l.Number, l.Name
		}
		// An interface may vanish between the list and its use. The others are set all the same.
		if perr := errors.Join(a.source.SetPorts(numbers), a.lldp.SetPorts(numbers)); perr != nil {
			a.log.Warn("cannot watch some ports", "err", perr)
		}
		a.announcePorts(links, began)
		if a.routes != nil {
			a.routes.setPorts(links)
		}
		a.mu.Lock()
		a.last.ports, a.last.names = links, names
		err = a.source.SweepFlows(ctx, func(key *sighting.Key, s sighting.Sample) {
			if names[s.Port] != "" {
				a.table.AddSample(key, s)
			}
		})
		if err == nil {
			a.last.end = time.Now()
			a.table.EndRound(a.last.end.UnixNano(), a.source.ForgetFlow)
			a.last.done++
		}
		a.mu.Unlock()
	}
	a.mu.Lock()
	a.last.err, a.last.took = err, time.Since(began)
	a.mu.Unlock()
	return err
}

// IsPort reports whether an interface of that name is a port.
func (o *Options) IsPort(name string) bool {
	return slices.ContainsFunc(o.Ports, func(p string) bool { ok, _ := path.Match(p, name); return ok })
}

// Kind returns the kind of source that probes are seen by.
func (a *Agent) Kind() sighting.Kind { return a.source.Kind() }

// announcePorts sends LLDP frames to the neighbours if the interval has passed, and logs failures at debug level.
func (a *Agent) announcePorts(links []Link, now time.Time) {
	if a.o.LLDP == 0 || now.Sub(a.announcedAt) < a.o.LLDP {
		return
	}
	a.announcedAt = now
	for _, l := range links {
		if !l.Up {
			continue
		}
		frame, err := lldp.BuildFrame(l.MAC, a.o.Switch, l.Name, max(4*a.o.LLDP, 4*time.Second))
		if err == nil {
			err = a.lldp.SendFrame(int(l.Number), frame)
		}
		if err != nil {
			a.log.Debug("cannot send an LLDP frame", "port", l.Name, "err", err)
		}
	}
}

// ReportSince returns a report without flows whose other fields are complete. For an instance and a version of it that
// the table can compare with, the report also has the flows that changed since then. Otherwise whole is true, and the
// caller has to add the whole table.
func (a *Agent) ReportSince(instance string, since uint64) (r sighting.Report, whole bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	r = sighting.Report{Switch: a.o.Switch, Kind: a.source.Kind(), Instance: a.instance, Version: a.table.Version(), At: time.Now().UTC(), Through: a.last.end.UTC(), Fresh: a.o.Fresh,
		Dropped: a.source.Dropped() + a.table.Dropped, Neighbours: a.lldp.CurrentNeighbours(time.Now(), a.portName)}
	if instance != a.instance || !a.table.CoversVersion(since) {
		return r, true
	}
	r.Since = since
	r.Flows, r.Gone = a.table.ChangesSince(since, a.portName)
	return r, false
}

// portName returns the name of a port in the last Period, or "" if the number is not a port.
func (a *Agent) portName(number uint32) string { return a.last.names[number] }

// TablePart returns at most n flows of the table from a place on, and the place to continue at (see sighting.Table.TablePart).
func (a *Agent) TablePart(from, n int) ([]sighting.FlowPorts, int) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.table.TablePart(from, n, a.portName)
}

// Ready returns nil if probes are seen, and otherwise the reason why not.
func (a *Agent) Ready() error {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.last.err
}

// Close stops the agent and closes its source.
func (a *Agent) Close() error {
	a.stop()
	a.wg.Wait()
	return errors.Join(a.source.Close(), a.lldp.Close())
}
