// Package gather collects the evidence of an audit: windows of all flows from Prometheus, with the paths that agents trace.
package gather

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/paths"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// Options configure the collection of evidence.
type Options struct {
	Graph *fabric.Graph
	DB    evidence.Querier
	// Scrape is the scrape interval of the series of flows.
	Scrape time.Duration
	// Duration is how long evidence is collected, after the paths are known.
	Duration time.Duration
	// Settle bounds the time until the paths of the flows are known.
	Settle time.Duration
	// Scope is the part whose paths are tested by long packets.
	Scope audit.Scope
	// RoCEMTU is the planned active MTU of RoCE in octets, or 0.
	RoCEMTU int
	// MTUAgents test the MTUs of paths. It may be nil.
	MTUAgents MTUAgents
	// Agents trace flows. SwitchAgents report sightings, and may be nil.
	Agents       tracing.Agents
	SwitchAgents *tracing.SwitchAgents
	// Progress is called with a line about what is done.
	Progress func(format string, args ...any)
	Log      *slog.Logger
}

// Lengths of windows. A window has at least two scrapes, and there are windowsWanted of them if the time allows.
const (
	maxWindow     = 10 * time.Second
	windowsWanted = 6
)

// windowLength returns the length of windows, which is a multiple of the scrape interval.
func (o *Options) windowLength() time.Duration {
	w := max(2*o.Scrape, min(maxWindow, o.Duration/windowsWanted), o.Duration/audit.MaxWindows)
	return (w + o.Scrape - 1) / o.Scrape * o.Scrape
}

// ErrNoFlows means that Prometheus has no series of any flow.
var ErrNoFlows = errors.New("there is no series of any flow: are the agents scraped, and does the topology have their nodes?")

// collector collects evidence.
type collector struct {
	o       Options
	store   *paths.Store
	sources *tracing.Sources
	cycle   int
	// began is when the audit began. A path that was confirmed before is not known to be that of the fabric as it is.
	began time.Time
	// refusals are those of the agents' so far.
	refusals *refusals
}

// Collect collects evidence until the duration has passed. It fails if ctx ends before, or if there are no flows.
func Collect(ctx context.Context, o Options) (*audit.Evidence, error) {
	store := paths.NewStore(o.Graph)
	refusals := &refusals{nodes: map[string]string{}}
	if o.Agents != nil {
		o.Agents = watchedAgents{o.Agents, refusals}
	}
	c := &collector{o: o, store: store, began: time.Now(), refusals: refusals, sources: tracing.NewSources(tracing.Options{Store: store, DB: o.DB, Settings: evidence.SettingsFor(o.Scrape), Agents: o.Agents, SwitchAgents: o.SwitchAgents, Log: o.Log})}
	run, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.sources.Run(run) })
	defer func() {
		stop()
		wg.Wait()
	}()
	if err := c.awaitPaths(ctx); err != nil {
		return nil, err
	}
	return c.collectWindows(ctx)
}

// awaitPaths waits until the paths of all flows are known, or no more become known, or the time for it has passed.
func (c *collector) awaitPaths(ctx context.Context) error {
	s := evidence.SettingsFor(c.o.Scrape)
	deadline := time.Now().Add(c.o.Settle)
	most, calm := 0, 0
	var failed error
	for {
		w, err := c.readWindow(ctx, s, time.Now())
		c.checkCables(time.Now())
		known := 0
		for _, o := range w.Observations {
			if o.PathState == fabric.PathValid {
				known++
			}
		}
		all := len(w.Observations)
		if calm++; known > most {
			most, calm = known, 0
		}
		failed = err
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case all > 0 && known == all && calm >= stillAfter, all > 0 && most > 0 && calm >= givenUpAfter, all > 0 && time.Now().After(deadline):
			c.o.Progress("the paths of %d of %d flows are known; the agents send %.0f probes a second, to which the audit adds traces only", known, all, w.Sent)
			return nil
		case time.Now().After(deadline):
			return errors.Join(ErrNoFlows, failed)
		}
		if err := sleep(ctx, settleStep(c.o.Scrape)); err != nil {
			return err
		}
	}
}

// Numbers of readings in a row that have no further path.
const (
	stillAfter   = 2  // if all are known
	givenUpAfter = 10 // else
)

// settleStep returns the time between two readings while paths become known.
func settleStep(scrape time.Duration) time.Duration { return max(scrape, 200*time.Millisecond) }

// collectWindows collects the windows of the audit, which follow each other without a gap.
func (c *collector) collectWindows(ctx context.Context) (*audit.Evidence, error) {
	s, length := evidence.SettingsFor(c.o.Scrape), c.o.windowLength()
	s.Delay, s.Patience = length, max(s.Patience, length)
	start := time.Now()
	r := audit.NewRecorder(c.o.Graph, start)
	count := max(1, int(c.o.Duration/length))
	c.o.Progress("collecting %d windows of %s", count, length)
	var swaps []audit.Swap
	reported := start
	for i := range count {
		end := start.Add(time.Duration(i+1) * length)
		if err := sleep(ctx, time.Until(end)); err != nil {
			return nil, err
		}
		w, err := c.readWindow(ctx, s, end)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			c.o.Progress("window %d of %d could not be read: %v", i+1, count, err)
			r.AddMissed()
		default:
			r.AddWindow(newWindow(&w))
		}
		swaps = c.checkCables(end)
		if time.Since(reported) >= progressEvery && i+1 < count {
			reported = time.Now()
			c.o.Progress("%d of %d windows", i+1, count)
		}
	}
	neighbours, err := c.readNeighbours(ctx)
	if err != nil {
		c.o.Progress("LLDP is left out: %v", err)
	}
	read := c.readPorts(ctx, max(time.Since(start), 4*c.o.Scrape).Round(time.Millisecond))
	e := r.Evidence(time.Now(), swaps, neighbours)
	e.Ports, e.NICs, e.Modules, e.Configured = read.ports, read.nics, read.modules, read.configured
	if err := c.testPaths(ctx, e); err != nil {
		return nil, err
	}
	e.Refused = c.refusals.list()
	return e, nil
}

// progressEvery is the time between two lines about the progress.
const progressEvery = 30 * time.Second

// readWindow reads the window that ends shortly before a moment, with its paths, and requests traces of flows without one. A path that
// was confirmed before the audit began is stale, since traffic can have moved from a link that went down.
func (c *collector) readWindow(ctx context.Context, s evidence.Settings, now time.Time) (evidence.Window, error) {
	w, err := evidence.ReadWindow(ctx, c.o.DB, s, now)
	if err != nil {
		return w, err
	}
	c.cycle++
	for _, o := range w.Observations {
		c.sources.BindPath(o)
		if o.PathState == fabric.PathValid && o.PathSince.Before(c.began) {
			o.PathState = fabric.PathStale
		}
	}
	none := func(func(fabric.Flow) bool) {}
	c.sources.Tracer().RequestTraces(&tracing.Demand{Now: now, Cycle: c.cycle, Interval: s.Delay, Findings: judge.FindingsOf(w.Observations, judge.DefaultParameters()), Pending: none, Watched: none})
	return w, nil
}

// newWindow returns what an audit uses of a window.
func newWindow(w *evidence.Window) *audit.Window {
	out := &audit.Window{Observations: w.Observations, Hosts: w.Hosts, Clocks: make(map[string]audit.ClockState, len(w.Clocks))}
	for nic, k := range w.Clocks {
		out.Clocks[nic] = audit.ClockState{State: k.State, BoundNS: k.Bound, Steps: k.Steps}
	}
	return out
}

// checkCables returns the swapped cables that are known so far. Paths follow the fabric as it is from then on.
func (c *collector) checkCables(now time.Time) (out []audit.Swap) {
	for _, m := range c.sources.CheckCables(now) {
		out = append(out, audit.Swap{Planned: m.Topology, Found: m.Fabric, Flows: m.Flows, LLDP: m.LLDP})
	}
	return out
}

// readNeighbours returns the far ends of cables by the series of LLDP neighbours.
func (c *collector) readNeighbours(ctx context.Context) (out []audit.Neighbour, err error) {
	all, err := evidence.NeighboursAt(ctx, evidence.NewLocalQuerier(c.o.DB), time.Now(), nil)
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		far := fmt.Sprintf("%s:%s", n.System, n.SystemPort)
		if nic := n.System + "/" + n.SystemPort; c.o.Graph.NIC(nic) != nil {
			far = nic
		}
		out = append(out, audit.Neighbour{Port: n.Switch + ":" + n.Port, Far: far})
	}
	return out, nil
}

// sleep waits, or fails when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
