package health

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/nichealth"
)

// ErrNoFindings means that an entity has no open findings.
var ErrNoFindings = errors.New("no findings")

// EventKey represents a kind of events.
type EventKey struct{ Code, Severity string }

// reporter logs events, counts them, and passes them to the sinks.
type reporter struct {
	log   *slog.Logger
	sinks []func(nichealth.Event)

	mu     sync.Mutex
	counts map[EventKey]uint64
}

func newReporter(sinks []func(nichealth.Event), log *slog.Logger) *reporter {
	return &reporter{log: log, sinks: sinks, counts: map[EventKey]uint64{}}
}

// copyCounts returns the number of events until now, by kind.
func (r *reporter) copyCounts() map[EventKey]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

// reportAll counts all events, and then logs and passes on each of them.
func (r *reporter) reportAll(events []nichealth.Event) {
	r.mu.Lock()
	for i := range events {
		r.counts[EventKey{events[i].ErrorCode[0], severityOf(&events[i])}]++
	}
	r.mu.Unlock()
	for i := range events {
		r.emitEvent(&events[i])
	}
}

// emitEvent logs an event, with its fields under the names that NVSentinel has for them, and passes it to the sinks.
func (r *reporter) emitEvent(e *nichealth.Event) {
	for _, sink := range r.sinks {
		sink(*e)
	}
	level := slog.LevelWarn
	switch {
	case e.IsHealthy:
		level = slog.LevelInfo
	case e.IsFatal:
		level = slog.LevelError
	}
	entities := make([]string, 0, len(e.EntitiesImpacted))
	for _, x := range e.EntitiesImpacted {
		entities = append(entities, string(x.Type)+":"+x.Value)
	}
	r.log.Log(context.Background(), level, e.Message, "event", "nic_health", "agent", e.Agent, "componentClass", e.ComponentClass, "checkName", e.CheckName, "isFatal", e.IsFatal, "isHealthy", e.IsHealthy,
		"recommendedAction", string(e.RecommendedAction), "entitiesImpacted", strings.Join(entities, ","), "errorCode", strings.Join(e.ErrorCode, ","), "nodeName", e.NodeName,
		"generatedTimestamp", e.GeneratedTimestamp.UTC().Format(time.RFC3339Nano))
}

func severityOf(e *nichealth.Event) string {
	switch {
	case e.IsHealthy:
		return "healthy"
	case e.IsFatal:
		return "fatal"
	}
	return "warning"
}
