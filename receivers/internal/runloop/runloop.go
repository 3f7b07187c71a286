// Package runloop runs what receivers do between Start and Shutdown.
package runloop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap/exp/zapslog"

	"github.com/graylink/graylink/internal/pki"
)

// NewLog returns the log of a receiver.
func NewLog(s receiver.Settings) *slog.Logger { return slog.New(zapslog.NewHandler(s.Logger.Core())) }

// Loops are the goroutines of a receiver. They end with Stop.
type Loops struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Start starts the goroutines.
func (l *Loops) Start(loops ...func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	for _, loop := range loops {
		l.wg.Go(func() { loop(ctx) })
	}
}

// Stop ends the goroutines and waits for them. It may be called without Start, and more than once.
func (l *Loops) Stop() {
	if l.stop != nil {
		l.stop()
	}
	l.wg.Wait()
}

// EveryTick calls a function after every interval until ctx ends, and with atOnce at the start as well.
func EveryTick(ctx context.Context, interval time.Duration, atOnce bool, do func(now time.Time)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	if atOnce {
		do(time.Now())
	}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			do(now)
		}
	}
}

// everyInterval calls a function once in every interval of the wall clock until ctx ends, when a percentage of the
// interval has passed.
func everyInterval(ctx context.Context, interval time.Duration, percent int, do func(now time.Time)) {
	for {
		now := time.Now()
		next := now.Truncate(interval).Add(interval * time.Duration(percent) / 100)
		if !next.After(now) {
			next = next.Add(interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next.Sub(now)):
			do(time.Now())
		}
	}
}

// Agent reads points, and uses certificates.
type Agent[P any] interface {
	CollectPoints(now time.Time) []P
	Expiries() []pki.Expiry
	Close() error
}

// AgentReceiver runs an agent and passes on its points.
type AgentReceiver[P any] struct {
	Settings receiver.Settings
	Next     consumer.Metrics
	Open     func(*slog.Logger) (Agent[P], error)
	Build    func(points []P, expiries []pki.Expiry, began, now time.Time) pmetric.Metrics
	Interval time.Duration // between the times when points are passed on
	PassAt   int           // percentage of an interval of the wall clock; 0 means that intervals begin with Start

	Agent   Agent[P] // nil before Start
	Began   time.Time
	running bool
	loops   Loops
}

// Start starts the agent. It does not wait for what the agent reads.
func (r *AgentReceiver[P]) Start(context.Context, component.Host) error {
	log := NewLog(r.Settings)
	a, err := r.Open(log)
	if err != nil {
		return err
	}
	r.Agent, r.Began, r.running = a, time.Now(), true
	r.loops.Start(func(ctx context.Context) {
		pass := func(now time.Time) {
			if err := r.Next.ConsumeMetrics(ctx, r.Build(a.CollectPoints(now), a.Expiries(), r.Began, now)); err != nil && ctx.Err() == nil {
				log.Warn("cannot pass on metrics", "err", err)
			}
		}
		if r.PassAt > 0 {
			everyInterval(ctx, r.Interval, r.PassAt, pass)
			return
		}
		EveryTick(ctx, r.Interval, false, pass)
	})
	return nil
}

// Shutdown stops the receiver. It may be called without Start, and more than once.
func (r *AgentReceiver[P]) Shutdown(context.Context) error {
	if !r.running {
		return nil
	}
	r.running = false
	r.loops.Stop()
	return r.Agent.Close()
}
