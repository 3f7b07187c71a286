// Package ncclreceiver is the Collector's receiver of what the collective libraries of a node's jobs write. It reads as the
// agent does (internal/ccl/follow), and passes the same series on to the Collector once an interval.
package ncclreceiver

import (
	"context"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/graylink/graylink/internal/ccl/follow"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/points"
	"github.com/graylink/graylink/receivers/internal/runloop"
)

// Type is the receiver's name in a configuration.
var Type = component.MustNewType("nccl")

// NewFactory returns a factory of receivers.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(Type, func() component.Config { return &Config{Interval: 10 * time.Second} },
		receiver.WithMetrics(createMetrics, component.StabilityLevelAlpha))
}

// ncclReceiver runs a Follower and passes its points on.
type ncclReceiver = runloop.AgentReceiver[points.Point]

func createMetrics(_ context.Context, s receiver.Settings, c component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	return newReceiver(s, c.(*Config), next), nil
}

// newReceiver returns a receiver that has not been started.
func newReceiver(s receiver.Settings, c *Config, next consumer.Metrics) *ncclReceiver {
	return &ncclReceiver{Settings: s, Next: next, Build: buildMetrics, Interval: c.Interval,
		Open: func(log *slog.Logger) (runloop.Agent[points.Point], error) { return startAgent(c.Config, log) }}
}

// agent runs a Follower until it is closed.
type agent struct {
	*follow.Follower
	loops runloop.Loops
}

// startAgent starts a Follower. The default of the node's name is that of the host.
func startAgent(c follow.Config, log *slog.Logger) (runloop.Agent[points.Point], error) {
	if c.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, err
		}
		c.Node = host
	}
	f, err := follow.New(c, time.Now(), log)
	if err != nil {
		return nil, err
	}
	a := &agent{Follower: f}
	a.loops.Start(f.Run)
	return a, nil
}

// Expiries implements runloop.Agent. No certificates are in use.
func (*agent) Expiries() []pki.Expiry { return nil }

// Close ends the Follower and waits for it.
func (a *agent) Close() error {
	a.loops.Stop()
	return nil
}
