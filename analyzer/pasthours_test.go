package analyzer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/analyzer/baseline"
	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// emptyServer answers that there is nothing.
type emptyServer struct{}

// QueryInstant implements evidence.Querier.
func (emptyServer) QueryInstant(context.Context, string, time.Time) ([]evidence.Sample, error) {
	return nil, nil
}

// TestEveryHourIsRecalledOnce: the present hour at the start, and each other one before it begins. A day that cannot be
// read is left out, and one loop goes on where the one before was stopped.
func TestEveryHourIsRecalledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 10 * time.Second
		start := time.Now().UTC() // at midnight
		asked, seldom := map[time.Time]time.Time{}, time.Time{}
		o := LoopOptions{Graph: fabric.NewGraph(&fabric.Topology{}), DB: emptyServer{}, Settings: evidence.SettingsFor(time.Minute)}
		o.RecallHour = func(_ context.Context, hour time.Time, before time.Duration) (evidence.PastHour, error) {
			if _, ok := asked[hour]; ok || before != baseline.MaxSlowHours*time.Hour {
				t.Errorf("hour %v, %v before it, is read again", hour, before)
			}
			if now := time.Now(); now.Sub(seldom) < took {
				t.Errorf("no rest before hour %v", hour)
			}
			time.Sleep(took)
			asked[hour], seldom = time.Now(), time.Now()
			if len(asked)%5 == 0 {
				return evidence.PastHour{}, errors.New("away")
			}
			return evidence.PastHour{Start: hour, Flows: map[fabric.Flow]evidence.Delays{{Src: "a", Dst: "b"}: {}}}, nil
		}
		l := NewLoop(o)
		for _, d := range []time.Duration{10 * time.Hour, 30 * time.Hour} {
			ctx, stop := context.WithTimeout(t.Context(), d)
			l.Run(ctx, time.Minute)
			stop()
			next := NewLoop(o)
			next.InheritFrom(l)
			l = next
		}
		if len(asked) != 24*baseline.RecallDays {
			t.Errorf("%d hours of past days were read", len(asked))
		}
		for hour, at := range asked {
			comes := hour
			for comes.Before(start) {
				comes = comes.AddDate(0, 0, 1)
			}
			days := int(comes.Sub(hour) / (24 * time.Hour))
			if early := comes.Sub(at); days < 1 || days > baseline.RecallDays || early > recallAhead || early < 10*time.Minute && hour.Hour() != 0 {
				t.Errorf("hour %v was read %v before it", hour, early)
			}
		}
	})
}
