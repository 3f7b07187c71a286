// Package ibsubnet reads an InfiniBand subnet again and again, from where a site has it: a device of this host, files, or
// an agent on a host with a device.
//
// Rules:
//
//  1. Whatever the source, a reading means what ibfabric.Reading says: what it and the one before agree on held from the
//     end of the earlier to the beginning of the later.
//  2. All times are of this host's clock. Those of an agent are moved so that nothing is confirmed for longer than the
//     agent confirmed it.
//  3. What cannot be read gives an error and no reading. The source is opened again at the next attempt.
//  4. A switch is sent at most Budget datagrams a second for its tables, in the long run.
//  5. Files say what was, and not what is: they hold until now only if the subnet manager's log has reported no change
//     since they were written.
package ibsubnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
)

const (
	// Interval is the time between two readings, if the budget of the switches allows it.
	Interval = 500 * time.Millisecond
	// Budget is the number of datagrams a second that a switch is sent for its tables.
	Budget = 50
	// settleTime is how long tables may still change after a change was reported.
	settleTime = 500 * time.Millisecond
	// longestUnrest is how long tables are not read while changes are reported one after the other.
	longestUnrest = 10 * time.Second
	// pollInterval is the time between two looks for reports of changes.
	pollInterval = 50 * time.Millisecond
	// cableInterval is the time between two discoveries of the cables when nothing has changed.
	cableInterval = 10 * time.Second
)

// Source reads a subnet. It is not safe for concurrent use.
type Source interface {
	// Read reads the subnet once.
	Read(ctx context.Context) (ibfabric.Reading, error)
	// Pause returns the least time between the beginnings of two readings.
	Pause() time.Duration
	// Origin says where the last reading is from, for persons.
	Origin() string
	// Close releases what the source has open.
	Close() error
}

// changeWatcher is a Source that notices changes between its readings.
type changeWatcher interface {
	// PollChange reports whether a change has been reported that ends what the last reading confirms.
	PollChange() bool
	// Due returns when the next reading is due. began is the beginning of the last one.
	Due(began time.Time) time.Time
}

// Device reads a subnet from a device of this host.
type Device struct {
	// Name is the device, as ibmad.Open takes it.
	Name string
	// MKeyFile is a file with the management key of the subnet. Empty means none.
	MKeyFile string
	// Timeout bounds the time of one attempt of a query.
	Timeout time.Duration
	// Log is the log of OpenSM, if the subnet manager runs on this host. Empty means none.
	Log string
	// Changes report changes beside the log. It may be empty.
	Changes []ibfabric.ChangeSource
	// Budget is the number of datagrams a second that a switch may be sent for its tables and for what Load counts. 0 means Budget.
	Budget int
	// Load counts what the client sends for other purposes as well. Nil means that there are none.
	Load *Load
	// Client is used instead of the device's own, if it is set. It is not closed.
	Client *ibmad.Client

	client *ibmad.Client
	log    *ibfabric.OpenSMLog
	watch  *ibfabric.Watch
	pause  time.Duration
	last   ibfabric.Reading
	repeat bool      // two readings that agree are wanted
	spent  time.Time // when the budget of the switches is used up to, by what they have been sent
}

// Read implements Source.
func (d *Device) Read(ctx context.Context) (ibfabric.Reading, error) {
	if err := d.open(); err != nil {
		return ibfabric.Reading{}, errors.Join(err, d.Close())
	}
	d.watch.MaxGap = 10 * d.Pause()
	began := time.Now()
	r, err := d.watch.Read(ctx)
	if err != nil {
		return ibfabric.Reading{}, errors.Join(err, d.Close())
	}
	d.setPause(r.Fabric)
	d.spend(r, began)
	d.repeat = r.Broken || r.Fabric != d.last.Fabric
	d.last = r
	return r, nil
}

// PollChange implements changeWatcher. What reports changes and fails is an error of the next reading.
func (d *Device) PollChange() bool {
	if d.watch == nil {
		return false
	}
	changed, err := d.watch.Poll()
	return changed && err == nil
}

// burst is the time for which the budget of a switch may be used in advance.
const burst = 10 * time.Second

// spend takes what a reading that began then has cost the switches off their budget.
func (d *Device) spend(r ibfabric.Reading, began time.Time) {
	cost := mostDatagrams(r.Fabric)
	if !d.watch.DiscoveredAt().Before(began) {
		ports := 0
		for i := range r.Fabric.Switches {
			ports = max(ports, len(r.Fabric.Nodes[i].Ports))
		}
		cost = 2*cost + 2*ports // each port's state, the far end of each link, and the tables again
	}
	if idle := began.Add(-burst); d.spent.Before(idle) {
		d.spent = idle
	}
	d.spent = d.spent.Add(time.Duration(float64(cost) * float64(time.Second) / float64(cmp.Or(d.Budget, Budget))))
}

// Due implements changeWatcher: while tables change they are not read, and then twice at once, since two readings have to agree.
func (d *Device) Due(began time.Time) time.Time {
	due := began.Add(d.Pause())
	if d.watch == nil {
		return due
	}
	switch settled := d.watch.SettledAt(); {
	case settled.After(began):
		due = settled
		if latest := began.Add(longestUnrest); settled.After(latest) {
			due = latest
		}
	case d.repeat && d.pause <= Interval:
		due = began
	}
	if d.spent.After(due) {
		return d.spent
	}
	return due
}

// open opens what is not open yet.
func (d *Device) open() error {
	if d.watch != nil {
		return nil
	}
	client, err := d.Client, error(nil)
	if client == nil {
		if client, err = OpenClient(d.Name, d.MKeyFile, d.Timeout); err != nil {
			return err
		}
		d.client = client
	}
	watch := &ibfabric.Watch{Client: client, Now: time.Now, SettleTime: settleTime, CableInterval: cableInterval}
	changes := d.Changes
	if d.Log != "" {
		if d.log, err = ibfabric.OpenLog(d.Log); err != nil {
			return err
		}
		changes = append(slices.Clip(changes), d.log)
	}
	if len(changes) > 0 {
		watch.PollChange = ibfabric.PollAny(changes...)
	}
	if d.log != nil {
		watch.Settled = d.log.Settled
	}
	d.watch = watch
	return nil
}

// OpenClient attaches to a device, as ibmad.Open takes it. The file has the management key of the subnet; an empty name means none.
// The timeout bounds one attempt of a query.
func OpenClient(device, mkeyFile string, timeout time.Duration) (*ibmad.Client, error) {
	key, err := ibmad.ReadMKey(mkeyFile)
	if err != nil {
		return nil, err
	}
	transport, err := ibmad.Open(device)
	if err != nil {
		return nil, err
	}
	return ibmad.NewClient(transport, ibmad.Config{Timeout: timeout, MKey: key}), nil
}

// setPause sets the time between two readings by the cost of one, and by what others leave of the budget.
func (d *Device) setPause(f *ibfabric.Fabric) {
	budget, others := float64(cmp.Or(d.Budget, Budget)), 0.0
	if d.Load != nil {
		own := 0.0
		if d.pause > 0 {
			own = float64(mostDatagrams(f)) / d.pause.Seconds()
		}
		others = d.Load.View(time.Now()).SwitchPerSecond - own
	}
	d.pause = pauseFor(f, budget, others)
}

// pauseFor returns the time between two readings in which no switch is sent more datagrams than its budget allows, if it is sent
// others for other purposes. Tables have half of the budget at least.
func pauseFor(f *ibfabric.Fabric, budget, others float64) time.Duration {
	share := min(max(budget-others, budget/2), budget)
	return max(Interval, time.Duration(float64(mostDatagrams(f))*float64(time.Second)/share))
}

// mostDatagrams returns the number of datagrams that reading its table takes of the switch with the largest one.
func mostDatagrams(f *ibfabric.Fabric) (most int) {
	for _, table := range f.LFTs {
		most = max(most, 1+(len(table)+int(ibfabric.BlockLen)-1)/int(ibfabric.BlockLen))
	}
	return most
}

// Pause implements Source.
func (d *Device) Pause() time.Duration { return max(Interval, d.pause) }

// Origin implements Source.
func (d *Device) Origin() string {
	if d.Log == "" {
		return "device " + d.Name
	}
	return fmt.Sprintf("device %s, changes by %s", d.Name, d.Log)
}

// Close implements Source.
func (d *Device) Close() error {
	var errs []error
	if d.client != nil {
		errs = append(errs, d.client.Close())
	}
	if d.log != nil {
		errs = append(errs, d.log.Close())
	}
	d.client, d.log, d.watch, d.last = nil, nil, nil, ibfabric.Reading{}
	return errors.Join(errs...)
}

// Follow reads a source until ctx ends, and hands each attempt to apply. When a change is reported between two readings, it hands
// over the last one again, as broken. It closes the source.
func Follow(ctx context.Context, s Source, state *State, log *slog.Logger, apply func(ibfabric.Reading, error)) {
	defer func() {
		if err := s.Close(); err != nil {
			log.Warn("cannot close the source of an InfiniBand subnet", "subnet", state.Subnet, "err", err)
		}
	}()
	for {
		began := time.Now()
		r, err := s.Read(ctx)
		if ctx.Err() != nil {
			return
		}
		if first := state.record(r, err, s.Origin()); first && err != nil {
			log.Error("cannot read an InfiniBand subnet", "subnet", state.Subnet, "source", s.Origin(), "err", err)
		} else if first {
			log.Info("reads an InfiniBand subnet", "subnet", state.Subnet, "source", s.Origin(), "switches", r.Fabric.Switches)
		}
		apply(r, err)
		if !awaitDue(ctx, s, began, func() {
			if err != nil {
				return
			}
			r.Broken, r.Since = true, time.Time{}
			state.endConfirmation()
			apply(r, nil)
		}) {
			return
		}
	}
}

// awaitDue waits until the next reading of a source is due, and calls end when a change is reported before. It returns false when
// ctx ends.
func awaitDue(ctx context.Context, s Source, began time.Time, end func()) bool {
	w, watches := s.(changeWatcher)
	for {
		due := began.Add(s.Pause())
		if watches {
			if w.PollChange() {
				end()
			}
			due = w.Due(began)
		}
		left := time.Until(due)
		if watches {
			left = min(left, pollInterval)
		}
		if left <= 0 {
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(left):
		}
	}
}
