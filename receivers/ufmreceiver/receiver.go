package ufmreceiver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/ufm"
	"github.com/graylink/graylink/receivers/internal/runloop"
)

// ufmReceiver reads one UFM, with a goroutine for its REST interface and one for each telemetry service. It is
// the receiver of both signals: the first Start starts it, the first Shutdown ends it.
type ufmReceiver struct {
	config   *Config
	settings receiver.Settings
	metrics  consumer.Metrics // nil if it is in no pipeline of metrics
	logs     consumer.Logs    // nil if it is in no pipeline of logs
	ended    func()

	mu      sync.Mutex // guards the following fields
	started bool
	failed  error // the error of Start
	loops   runloop.Loops

	log     *slog.Logger
	names   ufm.Directory
	began   time.Time
	closers []func()
}

// Start starts reading. It does not wait for UFM.
func (r *ufmReceiver) Start(context.Context, component.Host) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return r.failed
	}
	r.started = true
	r.log = runloop.NewLog(r.settings)
	r.began = time.Now()
	r.failed = r.startReaders()
	return r.failed
}

func (r *ufmReceiver) startReaders() error {
	var loops []func(context.Context)
	add := func(every time.Duration, t *target, read func(context.Context) error) {
		if len(loops) == 0 {
			t.certificates = pki.NewWatch(r.config.certificates()...)
		}
		loops = append(loops, func(ctx context.Context) { r.readLoop(ctx, every, t, read) })
	}
	if r.config.Endpoint != "" {
		p, err := r.newRESTReader()
		if err != nil {
			return err
		}
		add(r.config.Interval, p.target, p.readDue)
	}
	for i := range r.config.Telemetry {
		if r.metrics == nil {
			break
		}
		t := &r.config.Telemetry[i]
		p, err := r.newTelemetryReader(t)
		if err != nil {
			return fmt.Errorf("telemetry[%d]: %w", i, err)
		}
		add(t.Interval, p.target, p.readDocument)
	}
	r.loops.Start(loops...)
	return nil
}

// Shutdown stops the receiver. It may be called without Start, and more than once.
func (r *ufmReceiver) Shutdown(context.Context) error {
	r.ended()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loops.Stop()
	for _, c := range r.closers {
		c()
	}
	r.closers = nil
	return nil
}

// target holds the state of the series about a target.
type target struct {
	name    string
	errors  map[ufm.Kind]uint64
	samples uint64
	age     *time.Duration
	unknown *int
	unnamed *int
	shared  *int
	records *uint64 // log records passed on; nil if there are none
	// certificates are those of the receiver, which only its first target reports; nil for others.
	certificates pki.Source
}

func newTarget(name string) *target { return &target{name: name, errors: map[ufm.Kind]uint64{}} }

// failure counts the errors of one reading, except the first, which readOnce counts and logs.
type failure struct {
	target *target
	first  error
}

func (f *failure) addError(err error) {
	switch {
	case err == nil:
	case f.first == nil:
		f.first = err
	default:
		f.target.errors[ufm.KindOf(err)]++
	}
}

// readLoop reads at once, and then at every interval.
func (r *ufmReceiver) readLoop(ctx context.Context, every time.Duration, t *target, read func(context.Context) error) {
	runloop.EveryTick(ctx, every, true, func(time.Time) { r.readOnce(ctx, t, read) })
}

// readOnce reads a target, and passes on the series about that.
func (r *ufmReceiver) readOnce(ctx context.Context, t *target, read func(context.Context) error) {
	began := time.Now()
	err := read(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		t.errors[ufm.KindOf(err)]++
		r.log.Warn("cannot read target", "target", t.name, "kind", string(ufm.KindOf(err)), "err", err)
	}
	now := time.Now()
	if err := r.publishBatch(ctx, r.healthBatch(t, err == nil, now, now.Sub(began))); err != nil {
		t.errors[ufm.KindConsumer]++
		r.log.Warn("cannot pass on metrics", "target", t.name, "err", err)
	}
}

// healthBatch returns the series about the readings of a target.
func (r *ufmReceiver) healthBatch(t *target, ok bool, now time.Time, d time.Duration) *batch {
	b := newBatch()
	one := 0.0
	if ok {
		one = 1
	}
	b.addPoint(up, one, now, r.began, t.name)
	b.addPoint(readSeconds, d.Seconds(), now, r.began, t.name)
	for _, k := range ufm.Kinds {
		b.addPoint(failures, float64(t.errors[k]), now, r.began, t.name, string(k))
	}
	b.addPoint(samples, float64(t.samples), now, r.began, t.name)
	if t.records != nil {
		b.addPoint(records, float64(*t.records), now, r.began, t.name)
	}
	if t.age != nil {
		b.addPoint(sampleAge, t.age.Seconds(), now, r.began, t.name)
	}
	for f, n := range map[*family]*int{unknown: t.unknown, unnamed: t.unnamed, shared: t.shared} {
		if n != nil {
			b.addPoint(f, float64(*n), now, r.began, t.name)
		}
	}
	b.n += b.AddExpiries(pki.Expiries(t.certificates), now)
	return b
}

// publishBatch passes a batch on, unless there is no pipeline of metrics.
func (r *ufmReceiver) publishBatch(ctx context.Context, b *batch) error {
	if b.n == 0 || r.metrics == nil {
		return nil
	}
	if err := r.metrics.ConsumeMetrics(ctx, b.Metrics); err != nil {
		return &ufm.Error{Kind: ufm.KindConsumer, Err: err}
	}
	return nil
}

// maxBatch bounds the number of points that are passed on at once, and so their memory.
const maxBatch = 20_000

// outlet collects the points of one reading and passes them on, maxBatch at a time.
type outlet struct {
	*batch
	r      *ufmReceiver
	target *target
}

func (r *ufmReceiver) newOutlet(t *target) *outlet { return &outlet{newBatch(), r, t} }

// flushIfFull passes on the collected points if there are enough.
func (o *outlet) flushIfFull(ctx context.Context) error {
	if o.n < maxBatch {
		return nil
	}
	return o.flushBatch(ctx)
}

// flushBatch passes on the collected points. Points that are refused are lost.
func (o *outlet) flushBatch(ctx context.Context) error {
	b := o.batch
	o.batch = newBatch()
	if err := o.r.publishBatch(ctx, b); err != nil {
		return err
	}
	if o.r.metrics != nil {
		o.target.samples += uint64(b.n)
	}
	return nil
}
