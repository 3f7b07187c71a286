// Package ibfabricreceiver is the Collector's receiver of the counters of an InfiniBand fabric. It is
// delegator, sampler or both (internal/ibagent), and passes a delegator's series to the Collector once an
// interval.
package ibfabricreceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/ibmad"
)

// Type is the receiver's name in a configuration.
var Type = component.MustNewType("ibfabric")

// NewFactory returns a factory of receivers.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(Type, func() component.Config { return &Config{ibagent.DefaultConfig()} },
		receiver.WithMetrics(createMetrics, component.StabilityLevelAlpha))
}

func createMetrics(_ context.Context, s receiver.Settings, c component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	config := c.(*Config)
	return &ibReceiver{config: config.Config, settings: s, next: next, open: ibmad.Open}, nil
}
