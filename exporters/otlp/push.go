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

// pusher keeps items in order and sends them by rules 1 to 4.
type pusher[T any] struct {
	signal  signal
	limit   int           // limit on the items in the queue
	timeout time.Duration // limit on one attempt
	linger  time.Duration // time for which the first item waits for others to join its request
	// batch makes one request of the oldest items, of which there is at least one. It returns the number of items in the
	// request, and the number of parts that the receiver will count in it.
	batch func(oldest []T) (request proto.Message, items, parts int)
	send  sender
	log   *slog.Logger

	series pusherSeries

	mu         sync.Mutex
	queue      []T
	first      uint64        // number of the oldest item, counted from the first item ever
	queueGrown chan struct{} // has an element if the queue may have grown
}

// pusherSeries holds a pusher's own series.
type pusherSeries struct {
	pushes            *prometheus.CounterVec
	dropped, rejected prometheus.Counter
	lastSuccess       prometheus.Gauge
}

// Results of one attempt to push, as values of the label result.
const (
	resultOK      = "success"
	resultPartial = "partial"
	resultRetry   = "retry"
	resultFailed  = "failed"
)

// seriesNames holds the names of a pusher's series and of what it counts.
type seriesNames struct {
	prefix                    string // "graylink_otlp_"
	items, parts              string // "pushes" wait and are dropped, "points" are rejected
	droppedHelp, rejectedHelp string // help texts
}

// setUpSeries fills in the fields that all pushers have in common, and registers the series.
func (p *pusher[T]) setUpSeries(r prometheus.Registerer, n seriesNames) error {
	p.queueGrown = make(chan struct{}, 1)
	s := &p.series
	s.pushes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: n.prefix + "pushes_total", Help: "Attempts to push, by result."}, []string{"result"})
	for _, result := range []string{resultOK, resultPartial, resultRetry, resultFailed} {
		s.pushes.WithLabelValues(result)
	}
	s.dropped = prometheus.NewCounter(prometheus.CounterOpts{Name: n.prefix + "dropped_" + n.items + "_total", Help: n.droppedHelp})
	s.rejected = prometheus.NewCounter(prometheus.CounterOpts{Name: n.prefix + "rejected_" + n.parts + "_total", Help: n.rejectedHelp})
	s.lastSuccess = prometheus.NewGauge(prometheus.GaugeOpts{Name: n.prefix + "last_success_timestamp_seconds", Help: "Time when the receiver last accepted a push, in Unix seconds; 0 means never."})
	queued := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: n.prefix + "queued_" + n.items, Help: n.waitingHelp()}, func() float64 { return float64(p.queueLength()) })
	return registerAll(r, s.pushes, s.dropped, s.rejected, s.lastSuccess, queued)
}

// waitingHelp returns the help text of the gauge of the items in the queue.
func (n seriesNames) waitingHelp() string {
	first := []rune(n.items)
	first[0] -= 'a' - 'A'
	return string(first) + " in the queue."
}

func registerAll(r prometheus.Registerer, cs ...prometheus.Collector) error {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("OTLP series: %w", err)
		}
	}
	return nil
}

// enqueue appends an item to the queue, and drops the oldest item if the queue is full. It never blocks.
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

// nextRequest returns the request to send now, with the number of its first item and how many items and parts it has. The
// request is nil if the queue is empty.
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

// removeSettled removes the items of a request from the queue, except those that were dropped in the meantime.
func (p *pusher[T]) removeSettled(first uint64, items int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := items - int(min(p.first-first, uint64(items)))
	p.queue = append(p.queue[:0:0], p.queue[left:]...)
	p.first += uint64(left)
}

// discardQueue drops all items in the queue, and returns how many there were.
func (p *pusher[T]) discardQueue() (items int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	items = len(p.queue)
	p.series.dropped.Add(float64(items))
	p.first += uint64(items)
	p.queue = nil
	return items
}

// sendLoop sends requests until ctx ends.
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
			// The wait is shortened by up to a half, so that the nodes of a fleet do not retry at the same moment.
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

// attemptSend sends a request once. It reports whether the request is to be sent again. If the receiver asked for a delay,
// wait is that delay.
func (p *pusher[T]) attemptSend(ctx context.Context, request proto.Message, parts int) (wait time.Duration, retry bool) {
	attempt, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	taken, err := p.send.export(attempt, request)
	var again retryable
	switch {
	case err == nil && taken != partialSuccess{}:
		p.series.rejected.Add(float64(max(0, taken.rejected)))
		p.log.Warn("OTLP receiver rejected a part of a push", "signal", p.signal.name, "rejected_"+p.signal.parts, taken.rejected, "message", taken.message)
		if taken.rejected > 0 {
			p.series.pushes.WithLabelValues(resultPartial).Inc()
			return 0, false
		}
		fallthrough // a message without rejections is a warning only
	case err == nil:
		p.series.pushes.WithLabelValues(resultOK).Inc()
		p.series.lastSuccess.SetToCurrentTime()
		return 0, false
	case ctx.Err() != nil:
		return 0, true
	case errors.As(err, &again):
		p.series.pushes.WithLabelValues(resultRetry).Inc()
		p.log.Warn("cannot push by OTLP, will retry", "signal", p.signal.name, "err", err)
		return again.after, true
	default:
		p.series.pushes.WithLabelValues(resultFailed).Inc()
		p.series.rejected.Add(float64(parts))
		p.log.Error("cannot push by OTLP, dropping the push", "signal", p.signal.name, "err", err)
		return 0, false
	}
}
