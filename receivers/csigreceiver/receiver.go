package csigreceiver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/capture"
	"github.com/graylink/graylink/internal/csig/tap"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/points"
	"github.com/graylink/graylink/receivers/internal/metricfamily"
	"github.com/graylink/graylink/receivers/internal/runloop"
)

// agent reads the tagged frames of interfaces until it is closed.
type agent struct {
	reader  *capture.Reader
	profile *csig.Profile
	clock   tap.Clock
	taps    []*tap.Tap
	loops   runloop.Loops
	log     *slog.Logger
}

// startAgent opens the interfaces and starts reading them.
func startAgent(c *Config, log *slog.Logger) (*agent, error) {
	reader, registry, profile, err := newReader(c)
	if err != nil {
		return nil, err
	}
	a := &agent{reader: reader, profile: profile, clock: tap.NewClock(time.Now()), log: log}
	for i, name := range c.Interfaces {
		found, err := net.InterfaceByName(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("interfaces[%d]: %s: %w", i, name, err), a.Close())
		}
		place := reader.AddPlace(registry.interfaceNIC(found))
		for _, f := range csig.Formats {
			etherType := profile.EtherTypes.Of(f)
			if etherType == 0 {
				continue
			}
			t := tap.New(tap.Options{Interface: name, NIC: registry.interfaceNIC(found), EtherType: etherType, Buffer: c.BufferBytes,
				Place: place, Clock: a.clock, Log: log})
			a.taps = append(a.taps, t)
			if err := t.Open(); err != nil {
				return nil, errors.Join(fmt.Errorf("interfaces[%d]: %w", i, err), a.Close())
			}
		}
	}
	loops := make([]func(context.Context), 0, len(a.taps))
	for _, t := range a.taps {
		loops = append(loops, t.Run)
	}
	a.loops.Start(loops...)
	return a, nil
}

// CollectPoints implements runloop.Agent.
func (a *agent) CollectPoints(now time.Time) []points.Point {
	s := a.reader.Stats(a.clock.At(now))
	if err := tap.AddTotals(s, a.taps); err != nil {
		a.log.Warn("cannot read all counts", "err", err)
	}
	return s.AppendPoints(nil, a.profile)
}

// Expiries implements runloop.Agent. No certificates are in use.
func (*agent) Expiries() []pki.Expiry { return nil }

// Close ends the reading and waits for it.
func (a *agent) Close() error {
	a.loops.Stop()
	var all []error
	for _, t := range a.taps {
		all = append(all, t.Close())
	}
	return errors.Join(all...)
}

// buildMetrics returns the points under OpenTelemetry's names (exporters/otlp's rules).
func buildMetrics(all []points.Point, _ []pki.Expiry, began, now time.Time) pmetric.Metrics {
	return metricfamily.BuildPoints("github.com/graylink/graylink/receivers/csigreceiver", all, began, now)
}

// fileReceiver reads a file once.
type fileReceiver struct {
	settings receiver.Settings
	config   *Config
	next     consumer.Metrics
	loops    runloop.Loops
}

// Start opens the file and starts reading it.
func (r *fileReceiver) Start(context.Context, component.Host) error {
	log := runloop.NewLog(r.settings)
	reader, _, profile, err := newReader(r.config)
	if err != nil {
		return err
	}
	in, err := os.Open(r.config.File)
	if err != nil {
		return fmt.Errorf("file: %w", err)
	}
	r.loops.Start(func(ctx context.Context) {
		defer in.Close()
		var began time.Time
		pass := func(at time.Time) {
			if began.IsZero() {
				began = at.Add(-r.config.Interval)
			}
			points := reader.Stats(at.UnixNano()).AppendPoints(nil, profile)
			if err := r.next.ConsumeMetrics(ctx, buildMetrics(points, nil, began, at)); err != nil && ctx.Err() == nil {
				log.Warn("cannot pass on metrics", "err", err)
			}
		}
		place := reader.AddPlace(filepath.Base(r.config.File))
		n, err := capture.ReadFile(ctx, in, place, r.config.Interval, pass)
		if err != nil {
			log.Error("cannot read the whole file of a capture", "file", r.config.File, "frames", n, "err", err)
			return
		}
		log.Info("a file of a capture was read", "file", r.config.File, "frames", n)
	})
	return nil
}

// Shutdown ends the reading. It may be called without Start, and more than once.
func (r *fileReceiver) Shutdown(context.Context) error {
	r.loops.Stop()
	return nil
}
