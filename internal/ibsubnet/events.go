package ibsubnet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ufm"
)

// UFMEvents reads UFM's events in the background, and reports those that may change paths. It is a source of changes where the log
// of the subnet manager cannot be read, as it is inside UFM. Its methods are safe for concurrent use, except Open and Close.
//
// UFM's events come late: by its own delay, and by the time between two readings. What they say of the present is therefore said
// of a time before it, which HeldUntil returns.
type UFMEvents struct {
	// Client reads UFM's REST interface. Close closes it.
	Client *ufm.Client
	// Interval is the time between two readings.
	Interval time.Duration
	// Delay is the longest time from a change to its event.
	Delay time.Duration
	// Settle is how long tables may still change after the event of a change was read.
	Settle time.Duration

	stop    context.CancelFunc
	wg      sync.WaitGroup
	changes ufm.Changes

	mu        sync.Mutex
	err       error         // of the last reading
	readAt    time.Time     // when the last reading that succeeded was begun
	changedAt time.Time     // when the last reading with a change ended, or the first one
	attempted chan struct{} // closed after the first reading, whether it succeeded or not
}

// Open starts the readings, unless they run, and waits for the first one or the end of ctx.
func (e *UFMEvents) Open(ctx context.Context) {
	if e.stop == nil {
		e.start()
	}
	select {
	case <-e.attempted:
	case <-ctx.Done():
	}
}

func (e *UFMEvents) start() {
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.mu.Lock()
	e.err, e.readAt, e.changedAt = errNotReadYet, time.Time{}, time.Time{}
	e.attempted = make(chan struct{})
	e.mu.Unlock()
	e.changes.Now = time.Now
	e.wg.Go(func() { e.readLoop(ctx) })
}

// errNotReadYet is the error before the first reading.
var errNotReadYet = errors.New("UFM's events have not been read yet")

// Close stops the readings. Open may start them again.
func (e *UFMEvents) Close() {
	if e.stop == nil {
		return
	}
	e.stop()
	e.wg.Wait()
	e.stop = nil
	e.Client.Close()
}

// readLoop reads events until ctx ends.
func (e *UFMEvents) readLoop(ctx context.Context) {
	ticker := time.NewTicker(e.Interval)
	defer ticker.Stop()
	var known ufm.EventLog
	first := true
	var once sync.Once
	for {
		began := time.Now()
		all, err := e.Client.FetchEvents(ctx, time.UTC) // the events' own times are not used
		if ctx.Err() != nil {
			return
		}
		var fresh []ufm.Event
		if err == nil {
			fresh = known.ConsumeNew(all)
		}
		e.record(fresh, err, first, began, time.Now())
		first = first && err != nil
		once.Do(func() { close(e.attempted) })
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// record takes a reading of events.
func (e *UFMEvents) record(fresh []ufm.Event, err error, first bool, began, ended time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.err = fmt.Errorf("UFM's events: %w", err)
		return
	}
	e.err, e.readAt = nil, began
	if first {
		e.changedAt = ended // what was before is not known
	}
	e.changes.RecordEvents(fresh)
	for i := range fresh {
		if _, is := fresh[i].ChangeReason(); is {
			e.changedAt = ended
			return
		}
	}
}

// PollChange implements ibfabric.ChangeSource. It fails while events cannot be read.
func (e *UFMEvents) PollChange() (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return true, e.err
	}
	return e.changes.PollChange()
}

// HeldUntil returns the time until which no change is unreported, and the time from which on tables are those after the last
// change that is known.
func (e *UFMEvents) HeldUntil() (until, settled time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.readAt.Add(-e.Delay), e.changedAt.Add(e.Settle)
}

// Guarded is a source whose readings UFM's events end: what it read before an event, and until the tables have settled, confirms
// nothing.
type Guarded struct {
	Source
	Events *UFMEvents

	last ibfabric.Reading
}

// Read implements Source.
func (g *Guarded) Read(ctx context.Context) (ibfabric.Reading, error) {
	g.Events.Open(ctx)
	r, err := g.Source.Read(ctx)
	if err != nil {
		g.last = ibfabric.Reading{}
		return ibfabric.Reading{}, err
	}
	changed, err := g.Events.PollChange()
	if err != nil {
		g.last = ibfabric.Reading{}
		return ibfabric.Reading{}, err
	}
	_, settled := g.Events.HeldUntil()
	if changed || g.last.Fabric == nil || g.last.Begun.Before(settled) {
		r.Broken = true
	}
	g.last = r
	return r, nil
}

// PollChange implements changeWatcher. Events that cannot be read are an error of the next reading.
func (g *Guarded) PollChange() bool {
	if g.last.Fabric == nil {
		return false
	}
	changed, err := g.Events.PollChange()
	if w, ok := g.Source.(changeWatcher); ok && w.PollChange() {
		changed = true
	}
	return changed && err == nil
}

// Due implements changeWatcher.
func (g *Guarded) Due(began time.Time) time.Time {
	if w, ok := g.Source.(changeWatcher); ok {
		return w.Due(began)
	}
	return began.Add(g.Pause())
}

// Origin implements Source.
func (g *Guarded) Origin() string {
	return g.Source.Origin() + ", changes by " + g.Events.String()
}

// String returns the text that names the events.
func (e *UFMEvents) String() string { return "the events of " + e.Client.Endpoint() }

// Close implements Source.
func (g *Guarded) Close() error {
	g.Events.Close()
	g.last = ibfabric.Reading{}
	return g.Source.Close()
}
