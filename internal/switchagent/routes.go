package switchagent

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/routetable"
	"github.com/graylink/graylink/internal/routetable/frr"
	"github.com/graylink/graylink/internal/routetable/kernel"
)

const (
	// daemonPeriod is the time between two readings of the routing daemon.
	daemonPeriod = time.Second
	// rereadPeriod is the longest time between two readings of the kernel's table.
	rereadPeriod = 30 * time.Second
	// routeRest is the ratio of the time that the reader of the kernel's table rests to the time that it reads.
	routeRest = 20
)

// routeWatcher keeps the table of routes and sessions of the switch.
type routeWatcher struct {
	log    *slog.Logger
	kernel *kernel.Reader
	frr    *frr.Reader // nil if no daemon is read
	reread chan struct{}

	mu      sync.RWMutex
	table   *routetable.Table
	names   map[uint32]string // of the ports, by interface number
	devices map[string]string // names of the ports, by the kernel's name
	state   RouteStatus
	failing map[string]bool // whether the last reading of a source failed
}

// Sources of routes.
const (
	sourceKernel = "routes"
	sourceFRR    = "frr"
)

// RouteStatus represents what is known of the routes of the switch at one moment.
type RouteStatus struct {
	Prefixes   int
	FIBChanges *uint64              // nil if the kernel's table is not known
	Mismatches *int                 // nil if the kernel's or the daemon's table is not known
	Sessions   []routetable.Session // nil if they are not known
	Errors     map[string]uint64    // failed readings, by source
	Failing    map[string]bool      // whether the last reading failed, by source
}

// openRoutes opens the readers of routes in the network namespace of the calling thread.
func openRoutes(o *Options, log *slog.Logger) (*routeWatcher, error) {
	k, err := kernel.Open()
	if err != nil {
		return nil, err
	}
	w := &routeWatcher{log: log, kernel: k, reread: make(chan struct{}, 1), table: routetable.NewTable(routetable.MaxPrefixes),
		state: RouteStatus{Errors: map[string]uint64{sourceKernel: 0}}, failing: map[string]bool{sourceKernel: false}}
	if o.FRR != "" {
		w.frr = frr.Open(o.FRR)
		w.state.Errors[sourceFRR], w.failing[sourceFRR] = 0, false
	}
	return w, nil
}

// run follows the routes until ctx ends.
func (w *routeWatcher) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		<-ctx.Done()
		w.kernel.Close()
	})
	noticed := make(chan time.Time, 1)
	wg.Go(func() { w.awaitChanges(ctx, noticed) })
	if w.frr != nil {
		wg.Go(func() { w.followDaemon(ctx) })
	}
	w.followKernel(ctx, noticed)
}

// awaitChanges sends the time of the first change that is not read yet, until the reader is closed.
func (w *routeWatcher) awaitChanges(ctx context.Context, noticed chan<- time.Time) {
	for {
		if err := w.kernel.AwaitChange(); err != nil {
			if ctx.Err() == nil {
				w.log.Error("cannot follow changes of routes; they are read periodically", "err", err)
			}
			return
		}
		select {
		case noticed <- time.Now():
		default:
		}
	}
}

// followKernel reads the kernel's table after changes, and every rereadPeriod.
func (w *routeWatcher) followKernel(ctx context.Context, noticed <-chan time.Time) {
	periodic := time.NewTicker(rereadPeriod)
	defer periodic.Stop()
	at := time.Now()
	for {
		if !sleep(ctx, routeRest*w.readKernel(at)) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case at = <-periodic.C:
		case <-w.reread:
			at = time.Now()
		case at = <-noticed:
			if !sleep(ctx, kernel.Settle) {
				return
			}
		}
	}
}

// sleep waits, and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// readKernel reads the kernel's table because of a change that was noticed at a time. It returns how long that took.
func (w *routeWatcher) readKernel(noticed time.Time) time.Duration {
	began := time.Now()
	table, err := w.kernel.Read()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.countError(sourceKernel, err)
	var routes routetable.Routes
	if err == nil {
		routes = table.Routes(func(n uint32) string { return w.names[n] })
	}
	w.table.SetFIB(routes, noticed.UTC(), began.UTC())
	w.table.EndRound(began)
	return time.Since(began)
}

// followDaemon reads the routing daemon every daemonPeriod.
func (w *routeWatcher) followDaemon(ctx context.Context) {
	tick := time.NewTicker(daemonPeriod)
	defer tick.Stop()
	var changes uint64
	for {
		w.mu.RLock()
		n, _ := w.table.FIBChanges()
		changed := n != changes || w.table.Differs()
		devices := w.devices
		w.mu.RUnlock()
		changes = n
		now := time.Now()
		s := w.frr.Read(ctx, now, func(device string) string { return devices[device] }, changed)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.countError(sourceFRR, s.Err)
		w.table.SetRIB(s.RIB, s.RoutesAt.UTC())
		w.table.SetPaths(s.Paths, s.RoutesAt.UTC())
		w.table.SetSessions(s.Sessions)
		w.table.EndRound(now)
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// countError counts an error of a source, and logs the first of several in a row.
func (w *routeWatcher) countError(source string, err error) {
	if err != nil {
		w.state.Errors[source]++
		if !w.failing[source] {
			w.log.Error("cannot read routes", "source", source, "err", err)
		}
	}
	w.failing[source] = err != nil
}

// setPorts sets the ports of the switch. If they changed, the kernel's table is read again.
func (w *routeWatcher) setPorts(links []Link) {
	names, devices := make(map[uint32]string, len(links)), make(map[string]string, len(links))
	for _, l := range links {
		names[l.Number], devices[l.device] = l.Name, l.Name
	}
	w.mu.Lock()
	same := maps.Equal(names, w.names) && maps.Equal(devices, w.devices)
	w.names, w.devices = names, devices
	w.mu.Unlock()
	if !same {
		select {
		case w.reread <- struct{}{}:
		default:
		}
	}
}

// status returns what is known of the routes.
func (w *routeWatcher) status() *RouteStatus {
	w.mu.RLock()
	defer w.mu.RUnlock()
	s := RouteStatus{Prefixes: w.table.Len(), Sessions: w.table.Sessions(), Errors: maps.Clone(w.state.Errors), Failing: maps.Clone(w.failing)}
	if n, ok := w.table.FIBChanges(); ok {
		s.FIBChanges = &n
	}
	if n, ok := w.table.Mismatches(); ok {
		s.Mismatches = &n
	}
	return &s
}

// RoutesSince returns a report of the routes and sessions since a version of an instance, or of all if the table cannot
// compare with it. ok is false if the agent does not read routes.
func (a *Agent) RoutesSince(instance string, since uint64) (r routetable.Report, ok bool) {
	if a.routes == nil {
		return r, false
	}
	if instance != a.instance {
		since = 0
	}
	a.routes.mu.RLock()
	defer a.routes.mu.RUnlock()
	r = a.routes.table.ReportSince(since)
	r.Switch, r.Instance, r.At = a.o.Switch, a.instance, time.Now().UTC()
	return r, true
}
