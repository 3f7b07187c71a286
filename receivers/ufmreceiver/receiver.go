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
	"go.uber.org/zap/exp/zapslog"

	"github.com/graylink/graylink/internal/ufm"
)

// ufmReceiver reads one UFM: a goroutine for its REST interface and one for each
// telemetry service. It is the receiver of both signals: the first Start starts it, the
// first Shutdown ends it.
type ufmReceiver struct {
	config   *Config
	settings receiver.Settings
	metrics  consumer.Metrics // nil: it is in no pipeline of metrics
	logs     consumer.Logs    // nil: it is in no pipeline of logs
	ended    func()

	mu      sync.Mutex // of what follows
	started bool
	failed  error // of Start
	stop    context.CancelFunc

	log   *slog.Logger
	names ufm.Directory
	began time.Time
	wg    sync.WaitGroup
	close []func()
}

// Start begins to read. It does not wait for UFM.
func (r *ufmReceiver) Start(context.Context, component.Host) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return r.failed
	}
	r.started = true
	r.log = slog.New(zapslog.NewHandler(r.settings.Logger.Core()))
	r.began = time.Now()
	r.failed = r.start()
	return r.failed
}

func (r *ufmReceiver) start() error {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	var loops []func()
	if r.config.Endpoint != "" {
		p, err := r.rest()
		if err != nil {
			return err
		}
		loops = append(loops, func() { r.run(ctx, r.config.Interval, p.target, p.read) })
	}
	for i := range r.config.Telemetry {
		if r.metrics == nil {
			break
		}
		t := &r.config.Telemetry[i]
		p, err := r.telemetry(t)
		if err != nil {
			return fmt.Errorf("telemetry[%d]: %w", i, err)
		}
		loops = append(loops, func() { r.run(ctx, t.Interval, p.target, p.read) })
	}
	for _, loop := range loops {
		r.wg.Go(loop)
	}
	return nil
}

// Shutdown ends it. It may be called without Start, and more than once.
func (r *ufmReceiver) Shutdown(context.Context) error {
	r.ended()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		r.stop()
	}
	r.wg.Wait()
	for _, c := range r.close {
		c()
	}
	r.close = nil
	return nil
}

// target is what is told of every target.
type target struct {
	name    string
	errors  map[ufm.Kind]uint64
	samples uint64
	age     *time.Duration
	unknown *int
	unnamed *int
	shared  *int
	records *uint64 // of logs, that were passed on; nil: it has none
}

func newTarget(name string) *target { return &target{name: name, errors: map[ufm.Kind]uint64{}} }

// failure counts the errors of one reading: run counts and tells the first, the others
// are counted here.
type failure struct {
	target *target
	first  error
}

func (f *failure) add(err error) {
	switch {
	case err == nil:
	case f.first == nil:
		f.first = err
	default:
		f.target.errors[ufm.KindOf(err)]++
	}
}

// run reads now, and at every interval.
func (r *ufmReceiver) run(ctx context.Context, every time.Duration, t *target, read func(context.Context) error) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		began := time.Now()
		err := read(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.errors[ufm.KindOf(err)]++
			r.log.Warn("reading failed", "target", t.name, "kind", string(ufm.KindOf(err)), "err", err)
		}
		now := time.Now()
		if err := r.pass(ctx, r.health(t, err == nil, now, now.Sub(began))); err != nil {
			t.errors[ufm.KindConsumer]++
			r.log.Warn("metrics are not taken", "target", t.name, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// health is how the reading of a target goes.
func (r *ufmReceiver) health(t *target, ok bool, now time.Time, d time.Duration) *batch {
	b := newBatch()
	one := 0.0
	if ok {
		one = 1
	}
	b.add(up, one, now, r.began, t.name)
	b.add(took, d.Seconds(), now, r.began, t.name)
	for _, k := range ufm.Kinds {
		b.add(failures, float64(t.errors[k]), now, r.began, t.name, string(k))
	}
	b.add(samples, float64(t.samples), now, r.began, t.name)
	if t.records != nil {
		b.add(records, float64(*t.records), now, r.began, t.name)
	}
	if t.age != nil {
		b.add(sampleAge, t.age.Seconds(), now, r.began, t.name)
	}
	for f, n := range map[*family]*int{unknown: t.unknown, unnamed: t.unnamed, shared: t.shared} {
		if n != nil {
			b.add(f, float64(*n), now, r.began, t.name)
		}
	}
	return b
}

// pass passes a batch on. Without a pipeline of metrics nobody wants it.
func (r *ufmReceiver) pass(ctx context.Context, b *batch) error {
	if b.n == 0 || r.metrics == nil {
		return nil
	}
	if err := r.metrics.ConsumeMetrics(ctx, b.metrics); err != nil {
		return &ufm.Error{Kind: ufm.KindConsumer, Err: err}
	}
	return nil
}

// maxBatch bounds how many points are passed on at once, and so the memory it takes.
const maxBatch = 20_000

// outlet gathers the points of one reading and passes them on, maxBatch at a time.
type outlet struct {
	*batch
	r      *ufmReceiver
	target *target
}

func (r *ufmReceiver) outlet(t *target) *outlet { return &outlet{newBatch(), r, t} }

// full passes on what there is, when that is enough.
func (o *outlet) full(ctx context.Context) error {
	if o.n < maxBatch {
		return nil
	}
	return o.flush(ctx)
}

// flush passes on what there is. What is not taken is gone.
func (o *outlet) flush(ctx context.Context) error {
	b := o.batch
	o.batch = newBatch()
	if err := o.r.pass(ctx, b); err != nil {
		return err
	}
	if o.r.metrics != nil {
		o.target.samples += uint64(b.n)
	}
	return nil
}
