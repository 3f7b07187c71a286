// Package ufmreceiver is the Collector's receiver of NVIDIA UFM: the telemetry of its
// ports, its events, alarms and unhealthy ports (internal/ufm).
package ufmreceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
)

// Type is the receiver's name in a configuration.
var Type = component.MustNewType("ufm")

// NewFactory makes receivers.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(Type, func() component.Config { return defaults() },
		receiver.WithMetrics(create, component.StabilityLevelDevelopment))
}

func create(_ context.Context, s receiver.Settings, c component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	return &ufmReceiver{config: c.(*Config), settings: s, next: next}, nil
}
