package analyzer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/analyzer/signals"
	"github.com/graylink/graylink/internal/fabric"
)

// signalsEvery is the interval at which in-band signals are checked.
const signalsEvery = 10 * time.Second

// signalChecks holds what is wrong with the in-band signals of the domain, as it was found last.
type signalChecks struct {
	checker signals.Checker
	found   atomic.Pointer[[]signals.Finding]
}

// newSignalReader returns what reads the in-band signals of the loop's fabric.
func (l *Loop) newSignalReader() signals.Reader {
	s := &l.opts.Settings
	return signals.Reader{DB: l.opts.DB, Scrape: s.CycleInterval(), Lag: s.Lag, Patience: s.Patience, PathOf: func(f fabric.Flow) signals.PathBinding {
		b, ok := l.store.CurrentBinding(f)
		return signals.PathBinding{Path: b.Path, Since: b.Since, Confirmed: b.Confirmed, Valid: ok && b.State == fabric.PathValid}
	}}
}

// SignalReader returns what reads the in-band signals of the loop's fabric, or nil if the options do not have them read.
func (l *Loop) SignalReader() *signals.Reader {
	if !l.opts.Signals {
		return nil
	}
	r := l.newSignalReader()
	return &r
}

// followSignals checks in-band signals until ctx ends. While that fails, what is wrong with them is unknown.
func (l *Loop) followSignals(ctx context.Context) {
	failing := false
	for {
		err := l.CheckSignals(ctx, time.Now())
		if err != nil && ctx.Err() == nil && !failing {
			l.opts.Log.Warn("cannot check in-band signals", "err", err)
		}
		failing = err != nil
		if !sleepFor(ctx, signalsEvery) {
			return
		}
	}
}

// CheckSignals checks in-band signals once, for callers that do not use Run. It fails if they cannot be read.
func (l *Loop) CheckSignals(ctx context.Context, now time.Time) error {
	found, err := l.signals.checker.Check(ctx, now)
	if err != nil {
		l.signals.found.Store(nil)
		return err
	}
	before := l.signals.found.Swap(&found)
	for _, f := range found {
		if before == nil || !hasFinding(*before, f) {
			l.opts.Log.Warn("in-band signals do not work everywhere", "kind", f.Kind, "element", f.Element, "finding", f.Text)
		}
	}
	return nil
}

// hasFinding reports whether findings have one of the same kind and element.
func hasFinding(all []signals.Finding, f signals.Finding) bool {
	for _, o := range all {
		if o.Kind == f.Kind && o.Element == f.Element {
			return true
		}
	}
	return false
}

// currentFindings returns what is wrong with in-band signals, as it was found last.
func (s *signalChecks) currentFindings() []signals.Finding {
	if found := s.found.Load(); found != nil {
		return *found
	}
	return nil
}
