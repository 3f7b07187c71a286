// Package ibfabricreceiver is the Collector's receiver of the counters of an InfiniBand fabric. It is
// delegator, sampler or both (internal/ibagent), and passes a delegator's series to the Collector once an
// interval.
package ibfabricreceiver

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/receivers/internal/runloop"
)

// Type is the receiver's name in a configuration.
var Type = component.MustNewType("ibfabric")

// NewFactory returns a factory of receivers.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(Type, func() component.Config { return &Config{ibagent.DefaultConfig()} },
		receiver.WithMetrics(createMetrics, component.StabilityLevelAlpha))
}

// passAt is the point in an interval, in percent of it, at which metrics are passed on: after the sweep, which
// ends at 90, and its report.
const passAt = 97

// ibReceiver runs an agent and passes on, just before each tick, what was read since the last.
type ibReceiver = runloop.AgentReceiver[ibagent.Point]

func createMetrics(_ context.Context, s receiver.Settings, c component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	return newReceiver(s, c.(*Config), next, ibmad.Open), nil
}

// newReceiver returns a receiver whose agent opens devices with a function.
func newReceiver(s receiver.Settings, c *Config, next consumer.Metrics, open func(device string) (ibmad.Transport, error)) *ibReceiver {
	return &ibReceiver{Settings: s, Next: next, Build: buildMetrics, Interval: c.Interval, PassAt: passAt,
		Open: func(log *slog.Logger) (runloop.Agent[ibagent.Point], error) {
			return ibagent.Start(c.Config, open, log)
		}}
}
