// Package gnmireceiver is the Collector's receiver of switches that use gNMI. It keeps them subscribed
// (internal/gnmi), and passes their series to the Collector once an interval, in the common vocabulary of
// fabric_switch_port_*.
package gnmireceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/graylink/graylink/internal/gnmi"
)

// Type is the receiver's name in a configuration.
var Type = component.MustNewType("gnmi")

// NewFactory returns a factory of receivers.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(Type, func() component.Config { return &Config{gnmi.DefaultConfig()} },
		receiver.WithMetrics(createMetrics, component.StabilityLevelDevelopment))
}

func createMetrics(_ context.Context, s receiver.Settings, c component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	return &gnmiReceiver{config: c.(*Config).Config, settings: s, next: next}, nil
}
