package ibsubnet

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
)

// watchedSource is read once an hour, and reports changes when it is asked to.
type watchedSource struct {
	f       *ibfabric.Fabric
	changed atomic.Bool
	closed  bool
}

func (s *watchedSource) Read(context.Context) (ibfabric.Reading, error) {
	now := time.Now()
	return ibfabric.Reading{Fabric: s.f, Begun: now, Ended: now}, nil
}
func (s *watchedSource) Pause() time.Duration          { return time.Hour }
func (s *watchedSource) PollChange() bool              { return s.changed.Swap(false) }
func (s *watchedSource) Due(began time.Time) time.Time { return began.Add(time.Hour) }
func (s *watchedSource) Origin() string                { return "a test" }
func (s *watchedSource) Close() error                  { s.closed = true; return nil }

// TestFollowEndsWhatAChangeEnds reports a change between two readings: the last one is handed over again, as broken, long before
// the next is due.
func TestFollowEndsWhatAChangeEnds(t *testing.T) {
	s := &watchedSource{f: tree(t, 1)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	got, done := make(chan ibfabric.Reading), make(chan struct{})
	state := &State{Subnet: "ib0"}
	go func() {
		defer close(done)
		Follow(ctx, s, state, slog.New(slog.DiscardHandler), func(r ibfabric.Reading, err error) {
			if err != nil {
				t.Error(err)
			}
			got <- r
		})
	}()
	first := <-got
	if first.Broken {
		t.Error("the reading is broken")
	}
	s.changed.Store(true)
	second := <-got
	if !second.Broken || second.Fabric != first.Fabric || !second.Begun.Equal(first.Begun) || state.View().Confirmed {
		t.Errorf("after a change: broken %v, begun %v later, confirmed %v", second.Broken, second.Begun.Sub(first.Begun), state.View().Confirmed)
	}
	stop()
	<-done
	if !s.closed {
		t.Error("the source is not closed")
	}
}
