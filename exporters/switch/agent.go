// Package fabricswitch is graylink-switch: it keeps the table of probes that cross
// the switch it runs on, serves it, and publishes the state of the ports.
//
//  1. At least once a Period it looks which interfaces are ports, has the source look
//     at them, and takes what the source saw into the table; more often where that
//     costs less than a hundredth of a processor.
//  2. An interface that is renamed, goes or comes is a port less or more from the
//     next Period on; what was seen by its number is not told under another name.
//  3. A source that fails makes the agent not ready; what it told stays, and its age
//     shows: tables are made Through the last Period that went well.
package fabricswitch

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

// Period is how often the table is made at least, quickest how often at most.
const (
	Period   = time.Second
	quickest = 250 * time.Millisecond
	// share is how many times longer it rests than it works.
	share = 100
)

// Options say what the agent does.
type Options struct {
	Switch     string   // its name in the topology
	Ports      []string // shell patterns of interfaces that are ports
	Aliases    bool     // the topology's names of ports are the interfaces' aliases
	StampPorts []uint16 // of probes
	Source     string   // SourceAuto or a kind of sighting
	Group      uint32   // psample's sample group
	Rate       int      // packets a second of a packet socket
	Fresh      time.Duration
	Flows      int           // that the table holds
	LLDP       time.Duration // how often neighbours are told who this is; 0: they are not
}

// SourceAuto sees by an eBPF program, and where there can be none by a packet socket.
const SourceAuto = "auto"

// Validate names the option that is wrong.
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
	o        Options
	log      *slog.Logger
	instance string
	source   source.Source
	lldp     hearing
	links    func(aliases bool) ([]Link, error)
	stop     context.CancelFunc
	wg       sync.WaitGroup
	told     time.Time       // neighbours, last
	again    chan chan error // rounds that Reload asks for

	mu     sync.RWMutex
	table  *sighting.Table
	names  map[uint32]string
	ports  []Link
	at     time.Time
	took   time.Duration
	rounds uint64
	err    error
}

// hearing is lldp.Listener, but where the switch is simulated.
type hearing interface {
	Ports(numbers []uint32) error
	Neighbours(now time.Time, name func(uint32) string) []sighting.Neighbour
	Broken() uint64
	Send(ifindex int, frame []byte) error
	Close() error
}

// Start begins to watch in the network namespace of the calling thread.
func Start(o Options, log *slog.Logger) (*Agent, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	src, err := open(&o, log)
	if err != nil {
		return nil, err
	}
	l, err := lldp.Listen()
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return startOn(o, src, l, Links, log)
}

// startOn begins to watch by what sees probes, hears neighbours and lists links.
func startOn(o Options, src source.Source, l hearing, links func(bool) ([]Link, error), log *slog.Logger) (*Agent, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, errors.Join(err, l.Close(), src.Close())
	}
	a := &Agent{o: o, again: make(chan chan error), log: log, instance: hex.EncodeToString(id[:]), source: src, lldp: l, links: links,
		table: sighting.NewTable(o.Flows, o.Fresh), names: map[uint32]string{}}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	if err := a.round(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	a.wg.Go(func() { a.run(ctx) })
	return a, nil
}

// open makes the source that was asked for.
func open(o *Options, log *slog.Logger) (source.Source, error) {
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
		log.Warn("no eBPF program: probes are seen through a packet socket", "err", err)
		return source.NewPacket(o.StampPorts, o.Flows, o.Rate)
	}
	return nil, fmt.Errorf("source %q: %s, %s, %s or %s is expected", o.Source, SourceAuto, sighting.KindEBPF, sighting.KindPacket, sighting.KindPsample)
}

func (a *Agent) run(ctx context.Context) {
	next := time.NewTimer(quickest)
	defer next.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case reply := <-a.again:
			reply <- a.round(ctx)
			continue
		}
		began := time.Now()
		err := a.round(ctx)
		next.Reset(min(max(share*time.Since(began), quickest), Period))
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			a.log.Error("probes are not seen", "err", err)
		}
		failing = err != nil
	}
}

// Reload looks at the interfaces at once. All configuration is in flags: nothing else can
// have changed. It returns the error of that look, or ctx's.
func (a *Agent) Reload(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case a.again <- reply:
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

// round is one Period: rules 1 to 3.
func (a *Agent) round(ctx context.Context) error {
	began := time.Now()
	links, err := a.links(a.o.Aliases)
	if err == nil {
		links = slices.DeleteFunc(links, func(l Link) bool { return !a.o.IsPort(l.Name) })
		numbers := make([]uint32, len(links))
		names := make(map[uint32]string, len(links))
		for i, l := range links {
			numbers[i], names[l.Number] = l.Number, l.Name
		}
		// An interface may go between the list and its use: the others count.
		if perr := errors.Join(a.source.Ports(numbers), a.lldp.Ports(numbers)); perr != nil {
			a.log.Warn("ports", "err", perr)
		}
		a.tell(links, began)
		a.mu.Lock()
		a.ports, a.names = links, names
		err = a.source.Sweep(ctx, func(key *sighting.Key, s sighting.Sample) {
			if names[s.Port] != "" {
				a.table.Apply(key, s)
			}
		})
		if err == nil {
			a.at = time.Now()
			a.table.Turn(a.at.UnixNano(), a.source.Forget)
			a.rounds++
		}
		a.mu.Unlock()
	}
	a.mu.Lock()
	a.err, a.took = err, time.Since(began)
	a.mu.Unlock()
	return err
}

// IsPort reports whether an interface is a port.
func (o *Options) IsPort(name string) bool {
	return slices.ContainsFunc(o.Ports, func(p string) bool { ok, _ := path.Match(p, name); return ok })
}

// Kind is how probes are seen.
func (a *Agent) Kind() sighting.Kind { return a.source.Kind() }

// tell says to the neighbours whose ports these are.
func (a *Agent) tell(links []Link, now time.Time) {
	if a.o.LLDP == 0 || now.Sub(a.told) < a.o.LLDP {
		return
	}
	a.told = now
	for _, l := range links {
		if !l.Up {
			continue
		}
		frame, err := lldp.Frame(l.MAC, a.o.Switch, l.Name, max(4*a.o.LLDP, 4*time.Second))
		if err == nil {
			err = a.lldp.Send(int(l.Number), frame)
		}
		if err != nil {
			a.log.Debug("LLDP", "port", l.Name, "err", err)
		}
	}
}

// report is all of a report but the flows, of which it tells what changed since a
// version of an instance, if that can be told; whole is true if it cannot.
func (a *Agent) report(instance string, since uint64) (r sighting.Report, whole bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	r = sighting.Report{Switch: a.o.Switch, Kind: a.source.Kind(), Instance: a.instance, Version: a.table.Version(), At: time.Now().UTC(), Through: a.at.UTC(), Fresh: a.o.Fresh,
		Dropped: a.source.Dropped() + a.table.Dropped, Neighbours: a.lldp.Neighbours(time.Now(), a.name)}
	if instance != a.instance || !a.table.Knows(since) {
		return r, true
	}
	r.Since = since
	r.Seen, r.Gone = a.table.Since(since, a.name)
	return r, false
}

// name is a port's, of the last Period; "" when it is none.
func (a *Agent) name(number uint32) string { return a.names[number] }

// whole tells some flows of the table: Table.Whole.
func (a *Agent) whole(from, n int) ([]sighting.Seen, int) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.table.Whole(from, n, a.name)
}

// Ready reports why probes are not seen, if they are not.
func (a *Agent) Ready() error {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.err
}

// Close ends it.
func (a *Agent) Close() error {
	a.stop()
	a.wg.Wait()
	return errors.Join(a.source.Close(), a.lldp.Close())
}
