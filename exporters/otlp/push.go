package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
)

// pusher keeps items in order, and sends them by rules 1 to 4.
type pusher[T any] struct {
	signal  signal
	limit   int           // items that wait at most
	timeout time.Duration // of one attempt
	linger  time.Duration // how long the first item waits for others to go with it
	// batch makes one request of the oldest items, of which there is one at
	// least: of how many, and how many parts the receiver will count in it.
	batch func(oldest []T) (request proto.Message, items, parts int)
	send  sender
	log   *slog.Logger

	series pusherSeries

	mu         sync.Mutex
	queue      []T
	first      uint64        // number of the oldest item, counted from the first ever
	queueGrown chan struct{} // has an element when the queue may have grown
}

// pusherSeries are a pusher's own.
type pusherSeries struct {
	pushes            *prometheus.CounterVec
	dropped, rejected prometheus.Counter
	lastSuccess       prometheus.Gauge
}

// Results of one attempt to push, by the label result.
const (
	resultOK      = "success"
	resultPartial = "partial"
	resultRetry   = "retry"
	resultFailed  = "failed"
)

// seriesNames are what a pusher's series are called, and what it counts.
type seriesNames struct {
	prefix                    string // "graylink_otlp_"
	items, parts              string // "pushes" wait and are dropped, "points" are rejected
	droppedHelp, rejectedHelp string // helps
}

// setUpSeries fills in what all pushers have in common, and registers the series.
func (p *pusher[T]) setUpSeries(r prometheus.Registerer, n seriesNames) error {
	p.queueGrown = make(chan struct{}, 1)
	s := &p.series
	s.pushes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: n.prefix + "pushes_total", Help: "Attempts to push, by result."}, []string{"result"})
	for _, result := range []string{resultOK, resultPartial, resultRetry, resultFailed} {
		s.pushes.WithLabelValues(result)
	}
	s.dropped = prometheus.NewCounter(prometheus.CounterOpts{Name: n.prefix + "dropped_" + n.items + "_total", Help: n.droppedHelp})
	s.rejected = prometheus.NewCounter(prometheus.CounterOpts{Name: n.prefix + "rejected_" + n.parts + "_total", Help: n.rejectedHelp})
	s.lastSuccess = prometheus.NewGauge(prometheus.GaugeOpts{Name: n.prefix + "last_success_timestamp_seconds", Help: "When the receiver last took a push; 0: never yet."})
	queued := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: n.prefix + "queued_" + n.items, Help: n.waitingHelp()}, func() float64 { return float64(p.queueLength()) })
	return registerAll(r, s.pushes, s.dropped, s.rejected, s.lastSuccess, queued)
}

// waitingHelp is the help of the gauge of what waits.
func (n seriesNames) waitingHelp() string {
	first := []rune(n.items)
	first[0] -= 'a' - 'A'
	return string(first) + " that wait."
}

func registerAll(r prometheus.Registerer, cs ...prometheus.Collector) error {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("OTLP series: %w", err)
		}
	}
	return nil
}

// enqueue never waits.
func (p *pusher[T]) enqueue(item T) {
	p.mu.Lock()
	p.queue = append(p.queue, item)
	if len(p.queue) > p.limit {
		p.queue = append(p.queue[:0:0], p.queue[1:]...)
		p.first++
		p.series.dropped.Inc()
	}
	p.mu.Unlock()
	select {
	case p.queueGrown <- struct{}{}:
	default:
	}
}

func (p *pusher[T]) queueLength() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue)
}

// nextRequest is the request to send now, of the items from number first on; nil when
// nothing waits.
func (p *pusher[T]) nextRequest() (request proto.Message, first uint64, items, parts int) {
	p.mu.Lock()
	waiting, first := slices.Clone(p.queue), p.first
	p.mu.Unlock()
	if len(waiting) == 0 {
		return nil, first, 0, 0
	}
	request, items, parts = p.batch(waiting)
	return request, first, items, parts
}

// removeSettled takes items out of the queue, but for those dropped meanwhile.
func (p *pusher[T]) removeSettled(first uint64, items int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := items - int(min(p.first-first, uint64(items)))
	p.queue = append(p.queue[:0:0], p.queue[left:]...)
	p.first += uint64(left)
}

// discardQueue drops all that waits.
func (p *pusher[T]) discardQueue() (items int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	items = len(p.queue)
	p.series.dropped.Add(float64(items))
	p.first += uint64(items)
	p.queue = nil
	return items
}

// sendLoop sends until ctx ends.
func (p *pusher[T]) sendLoop(ctx context.Context) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		if p.queueLength() == 0 {
			select {
			case <-ctx.Done():
			case <-p.queueGrown:
				sleepContext(ctx, p.linger)
			}
			continue
		}
		request, first, items, parts := p.nextRequest()
		wait, retry := p.attemptSend(ctx, request, parts)
		if !retry {
			p.removeSettled(first, items)
			backoff = firstBackoff
			continue
		}
		if wait == 0 {
			// Up to a half less, so that a fleet does not come back at once.
			wait = backoff - rand.N(backoff/2)
			backoff = min(2*backoff, maxBackoff)
		}
		sleepContext(ctx, min(wait, maxThrottle))
	}
}

// sleepContext waits for d, or until ctx ends.
func sleepContext(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// attemptSend sends a request once. retry says whether it is to be sent again, not
// before wait has passed if the receiver asked for that.
func (p *pusher[T]) attemptSend(ctx context.Context, request proto.Message, parts int) (wait time.Duration, retry bool) {
	attempt, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	taken, err := p.send.export(attempt, request)
	var again retryable
	switch {
	case err == nil && taken != partialSuccess{}:
		p.series.rejected.Add(float64(max(0, taken.rejected)))
		p.log.Warn("the OTLP receiver took a push in part", "signal", p.signal.name, "rejected_"+p.signal.parts, taken.rejected, "message", taken.message)
		if taken.rejected > 0 {
			p.series.pushes.WithLabelValues(resultPartial).Inc()
			return 0, false
		}
		fallthrough // a message without rejections is advice
	case err == nil:
		p.series.pushes.WithLabelValues(resultOK).Inc()
		p.series.lastSuccess.SetToCurrentTime()
		return 0, false
	case ctx.Err() != nil:
		return 0, true
	case errors.As(err, &again):
		p.series.pushes.WithLabelValues(resultRetry).Inc()
		p.log.Warn("OTLP push; it will be tried again", "signal", p.signal.name, "err", err)
		return again.after, true
	default:
		p.series.pushes.WithLabelValues(resultFailed).Inc()
		p.series.rejected.Add(float64(parts))
		p.log.Error("OTLP push", "signal", p.signal.name, "err", err)
		return 0, false
	}
}
