//go:build collector

package main

import (
	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusexporter"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"

	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/receivers/csigreceiver"
	"github.com/graylink/graylink/receivers/gnmireceiver"
	"github.com/graylink/graylink/receivers/ibfabricreceiver"
	"github.com/graylink/graylink/receivers/ncclreceiver"
	"github.com/graylink/graylink/receivers/ufmreceiver"
)

// components returns the distribution's components: those of deploy/otelcol/manifest.yaml.
func components() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](csigreceiver.NewFactory(), gnmireceiver.NewFactory(), ibfabricreceiver.NewFactory(),
		ncclreceiver.NewFactory(), otlpreceiver.NewFactory(), ufmreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	processors, err := otelcol.MakeFactoryMap[processor.Factory](batchprocessor.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](otlpexporter.NewFactory(), prometheusexporter.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	return otelcol.Factories{Receivers: receivers, Processors: processors, Exporters: exporters, Telemetry: otelconftelemetry.NewFactory()}, nil
}

// info describes the distribution.
var info = component.BuildInfo{Command: "otelcol-graylink", Description: "OpenTelemetry Collector with Graylink's receivers", Version: buildversion.Version()}
