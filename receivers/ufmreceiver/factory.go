// Package ufmreceiver is the Collector's receiver of NVIDIA UFM (internal/ufm): the
// telemetry of its ports, its topology, jobs and unhealthy ports as metrics; its events
// and alarms as metrics and as log records.
package ufmreceiver

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
)

// Type is the receiver's name in a configuration.
var Type = component.MustNewType("ufm")

// stability is the stability of both signals.
const stability = component.StabilityLevelAlpha

// NewFactory returns a factory of receivers. One configuration has one receiver in all its pipelines: UFM is
// read once for metrics and logs.
func NewFactory() receiver.Factory {
	s := &sharing{receivers: map[*Config]*ufmReceiver{}}
	return receiver.NewFactory(Type, func() component.Config { return defaultConfig() },
		receiver.WithMetrics(s.createMetrics, stability), receiver.WithLogs(s.createLogs, stability))
}

// sharing holds the receivers that have not ended, by their configurations: the Collector passes the same one
// for each signal.
type sharing struct {
	mu        sync.Mutex
	receivers map[*Config]*ufmReceiver
}

func (s *sharing) receiverFor(settings receiver.Settings, c *Config) *ufmReceiver {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.receivers[c]
	if r == nil {
		r = &ufmReceiver{config: c, settings: settings}
		r.ended = func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.receivers, c)
		}
		s.receivers[c] = r
	}
	return r
}

func (s *sharing) createMetrics(_ context.Context, settings receiver.Settings, c component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	r := s.receiverFor(settings, c.(*Config))
	r.metrics = next
	return r, nil
}

func (s *sharing) createLogs(_ context.Context, settings receiver.Settings, c component.Config, next consumer.Logs) (receiver.Logs, error) {
	config := c.(*Config)
	switch {
	case config.Endpoint == "":
		return nil, errors.New("endpoint: it is expected in a pipeline of logs: events and alarms are read from UFM's REST interface")
	case config.Shard != 0:
		return nil, errors.New("shard: 0 is expected in a pipeline of logs: only that receiver passes on events and alarms")
	}
	r := s.receiverFor(settings, config)
	r.logs = next
	return r, nil
}
