// Package csigreceiver is the Collector's receiver of in-band signals. It reads the tagged frames of interfaces, or of a file, and passes
// on the series of internal/csig/observe.
package csigreceiver

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/points"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/receivers/internal/runloop"
)

// Type is the receiver's name in a configuration.
var Type = component.MustNewType("csig")

// defaultSourcePort is the UDP source port of flow 0 unless agents are configured otherwise (internal/probe).
const defaultSourcePort = 49152

// defaultConfig returns the configuration of which only the required keys are missing.
func defaultConfig() *Config {
	return &Config{StampPort: stamp.Port, SourcePort: defaultSourcePort, Flows: observe.DefaultFlows, NewLocators: observe.DefaultNewLocators,
		BufferBytes: 8 << 20, Interval: 10 * time.Second}
}

// NewFactory returns a factory of receivers.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(Type, func() component.Config { return defaultConfig() },
		receiver.WithMetrics(createMetrics, component.StabilityLevelAlpha))
}

func createMetrics(_ context.Context, s receiver.Settings, config component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	c := config.(*Config)
	if c.File != "" {
		return &fileReceiver{settings: s, config: c, next: next}, nil
	}
	return &runloop.AgentReceiver[points.Point]{Settings: s, Next: next, Build: buildMetrics, Interval: c.Interval,
		Open: func(log *slog.Logger) (runloop.Agent[points.Point], error) { return startAgent(c, log) }}, nil
}
