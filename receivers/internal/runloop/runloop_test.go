package runloop

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/graylink/graylink/internal/pki"
)

// timesOf returns when a function was called during five seconds that begin 0.3 s after a full second.
func timesOf(t *testing.T, pace func(context.Context, func(time.Time))) (times []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		time.Sleep(300 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		pace(ctx, func(now time.Time) { times = append(times, now.Sub(began)) })
	})
	return times
}

func TestPaces(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		pace func(context.Context, func(time.Time))
		want []time.Duration
	}{
		"every tick":         {func(ctx context.Context, do func(time.Time)) { EveryTick(ctx, 2*time.Second, false, do) }, []time.Duration{2300 * ms, 4300 * ms}},
		"now and every tick": {func(ctx context.Context, do func(time.Time)) { EveryTick(ctx, 2*time.Second, true, do) }, []time.Duration{300 * ms, 2300 * ms, 4300 * ms}},
		"late in every interval": {func(ctx context.Context, do func(time.Time)) { everyInterval(ctx, 2*time.Second, 90, do) },
			[]time.Duration{1800 * ms, 3800 * ms}},
		"early in every interval": {func(ctx context.Context, do func(time.Time)) { everyInterval(ctx, 2*time.Second, 10, do) },
			[]time.Duration{2200 * ms, 4200 * ms}},
	} {
		if got := timesOf(t, c.pace); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

type fakeAgent struct{ closed int }

func (*fakeAgent) CollectPoints(time.Time) []int { return []int{1} }
func (*fakeAgent) Expiries() []pki.Expiry        { return nil }
func (a *fakeAgent) Close() error                { a.closed++; return nil }

func TestAgentReceiver(t *testing.T) {
	a, sink := &fakeAgent{}, &consumertest.MetricsSink{}
	failed := errors.New("no such file")
	r := &AgentReceiver[int]{Settings: receivertest.NewNopSettings(component.MustNewType("test")), Next: sink,
		Open:     func(*slog.Logger) (Agent[int], error) { return nil, failed },
		Interval: time.Millisecond,
		Build: func(points []int, _ []pki.Expiry, _, _ time.Time) pmetric.Metrics {
			if len(points) != 1 {
				t.Errorf("points %v", points)
			}
			return pmetric.NewMetrics()
		}}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Errorf("shutdown without a start: %v", err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); !errors.Is(err, failed) {
		t.Errorf("start: %v, want %v", err, failed)
	}
	r.Open = func(*slog.Logger) (Agent[int], error) { return a, nil }
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	for len(sink.AllMetrics()) == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 2 {
		if err := r.Shutdown(t.Context()); err != nil || a.closed != 1 {
			t.Errorf("shutdown: %v, closed %d times", err, a.closed)
		}
	}
}
