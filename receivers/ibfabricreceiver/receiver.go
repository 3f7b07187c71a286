package ibfabricreceiver

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap/exp/zapslog"

	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
)

// ibReceiver runs an agent and passes on its samples.
type ibReceiver struct {
	config   ibagent.Config
	settings receiver.Settings
	next     consumer.Metrics
	open     func(device string) (ibmad.Transport, error)

	agent *ibagent.Agent
	began time.Time
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

// Start starts the sampling. It does not wait for the fabric.
func (r *ibReceiver) Start(context.Context, component.Host) error {
	log := slog.New(zapslog.NewHandler(r.settings.Logger.Core()))
	a, err := ibagent.Start(r.config, r.open, log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	r.agent, r.began, r.stop = a, time.Now(), stop
	r.wg.Go(func() { r.publishLoop(ctx, log) })
	return nil
}

// Shutdown stops the receiver. It may be called without Start.
func (r *ibReceiver) Shutdown(context.Context) error {
	if r.agent == nil {
		return nil
	}
	r.stop()
	r.wg.Wait()
	return r.agent.Close()
}

// publishLoop passes on, just before each tick, what was read since the last.
func (r *ibReceiver) publishLoop(ctx context.Context, log *slog.Logger) {
	for {
		now := time.Now()
		next := now.Truncate(r.config.Interval).Add(r.config.Interval * passAt / 100)
		if !next.After(now) {
			next = next.Add(r.config.Interval)
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		now = time.Now()
		if err := r.next.ConsumeMetrics(ctx, buildMetrics(r.agent.CollectPoints(now), r.agent.Expiries(), r.began, now)); err != nil && ctx.Err() == nil {
			log.Warn("cannot pass on metrics", "err", err)
		}
	}
}

// passAt is the point in an interval, in percent of it, at which metrics are passed on: after the sweep, which
// ends at 90, and its report.
const passAt = 97

// buildMetrics returns the points under OpenTelemetry's names (exporters/otlp's rules), and the certificates in
// use.
func buildMetrics(points []ibagent.Point, expiries []pki.Expiry, began, now time.Time) pmetric.Metrics {
	out := pmetric.NewMetrics()
	scope := out.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	scope.Scope().SetName("github.com/graylink/graylink/receivers/ibfabricreceiver")
	slices := map[*ibagent.Family]pmetric.NumberDataPointSlice{}
	for _, p := range points {
		list, there := slices[p.Family]
		if !there {
			f := p.Family
			list = metricfamily.InitMetric(scope.Metrics().AppendEmpty(), f.Name, f.Help, f.Counter)
			slices[p.Family] = list
		}
		d := list.AppendEmpty()
		d.SetDoubleValue(p.Value)
		d.SetTimestamp(timestampOr(p.At, now))
		if p.Counter {
			d.SetStartTimestamp(timestampOr(p.Since, began))
		}
		for i, l := range p.Labels {
			d.Attributes().PutStr(l, p.Values[i])
		}
	}
	metricfamily.AddExpiries(scope.Metrics(), expiries, now)
	return out
}

func timestampOr(t, otherwise time.Time) pcommon.Timestamp {
	if t.IsZero() {
		t = otherwise
	}
	return pcommon.NewTimestampFromTime(t)
}
