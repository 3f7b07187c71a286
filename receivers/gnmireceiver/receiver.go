package gnmireceiver

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

	"github.com/graylink/graylink/internal/gnmi"
	"github.com/graylink/graylink/internal/gnmi/preset"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
)

// gnmiReceiver runs an agent and passes on its points.
type gnmiReceiver struct {
	config   gnmi.Config
	settings receiver.Settings
	next     consumer.Metrics

	agent *gnmi.Agent
	began time.Time
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

// Start starts the subscriptions. It does not wait for the switches.
func (r *gnmiReceiver) Start(context.Context, component.Host) error {
	log := slog.New(zapslog.NewHandler(r.settings.Logger.Core()))
	a, err := gnmi.Start(r.config, log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	r.agent, r.began, r.stop = a, time.Now(), stop
	r.wg.Go(func() { r.publishLoop(ctx, log) })
	return nil
}

// Shutdown stops the receiver. It may be called without Start, and more than once.
func (r *gnmiReceiver) Shutdown(context.Context) error {
	if r.agent == nil {
		return nil
	}
	r.stop()
	r.wg.Wait()
	a := r.agent
	r.agent = nil
	return a.Close()
}

// publishLoop passes on the current points once an interval.
func (r *gnmiReceiver) publishLoop(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(r.config.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if err := r.next.ConsumeMetrics(ctx, buildMetrics(r.agent.CollectPoints(now), r.agent.Expiries(), r.began, now)); err != nil && ctx.Err() == nil {
				log.Warn("cannot pass on metrics", "err", err)
			}
		}
	}
}

// buildMetrics returns the points under OpenTelemetry's names (exporters/otlp's rules), each with its switch's
// time, and the certificates in use.
func buildMetrics(points []gnmi.Point, expiries []pki.Expiry, began, now time.Time) pmetric.Metrics {
	out := pmetric.NewMetrics()
	scope := out.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	scope.Scope().SetName("github.com/graylink/graylink/receivers/gnmireceiver")
	lists := map[*preset.Family]pmetric.NumberDataPointSlice{}
	for _, p := range points {
		list, there := lists[p.Family]
		if !there {
			f := p.Family
			list = metricfamily.InitMetric(scope.Metrics().AppendEmpty(), f.Name, f.Help, f.Kind == preset.Counter)
			lists[p.Family] = list
		}
		d := list.AppendEmpty()
		d.SetDoubleValue(p.Value)
		d.SetTimestamp(pcommon.NewTimestampFromTime(p.At))
		if p.Family.Kind == preset.Counter {
			since := p.Since
			if since.IsZero() {
				since = began
			}
			d.SetStartTimestamp(pcommon.NewTimestampFromTime(since))
		}
		labels := d.Attributes()
		labels.EnsureCapacity(1 + len(p.Values))
		if p.Switch != "" {
			labels.PutStr("switch", p.Switch)
		}
		for i, l := range p.Family.Labels {
			labels.PutStr(l, p.Values[i])
		}
	}
	metricfamily.AddExpiries(scope.Metrics(), expiries, now)
	return out
}
