// Package gnmireceiver is the Collector's receiver of switches that use gNMI. It keeps them subscribed
// (internal/gnmi), and passes their series to the Collector once an interval, in the common vocabulary of
// fabric_switch_port_*.
package gnmireceiver

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/graylink/graylink/internal/gnmi"
	"github.com/graylink/graylink/receivers/internal/runloop"
)

// Type is the receiver's name in a configuration.
var Type = component.MustNewType("gnmi")

// NewFactory returns a factory of receivers.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(Type, func() component.Config { return &Config{gnmi.DefaultConfig()} },
		receiver.WithMetrics(createMetrics, component.StabilityLevelDevelopment))
}

// gnmiReceiver runs an agent and passes on its points once an interval.
type gnmiReceiver = runloop.AgentReceiver[gnmi.Point]

func createMetrics(_ context.Context, s receiver.Settings, c component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	config := c.(*Config).Config
	return &gnmiReceiver{Settings: s, Next: next, Build: buildMetrics, Interval: config.Interval,
		Open: func(log *slog.Logger) (runloop.Agent[gnmi.Point], error) { return gnmi.Start(config, log) }}, nil
}
