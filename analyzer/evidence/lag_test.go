package evidence

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// newTestMeter returns a meter for scrapes of one second, whose lag is 1.3 s to 10 s.
func newTestMeter() *LagMeter {
	s := DefaultSettings()
	return NewLagMeter(&s, 10*time.Second)
}

// TestLagFollowsSamples checks rules 17 and 18: what the lag is after cycles in which nodes have samples of some ages.
func TestLagFollowsSamples(t *testing.T) {
	const nodes = 20
	// spread returns ages of nodes that are scraped at different times of a second, and arrive so late.
	spread := func(late float64) []float64 {
		ages := make([]float64, nodes)
		for i := range ages {
			ages[i] = late + float64(i)/nodes
		}
		return ages
	}
	for _, tt := range []struct {
		name   string
		cycles int
		ages   func(cycle int) []float64
		want   time.Duration
	}{
		{"samples are there at once", 60, func(int) []float64 { return spread(0.05) }, 1300 * time.Millisecond},
		{"remote write in batches of 300 ms", 60, func(c int) []float64 { return spread(0.1 + 0.3*float64(c%3)) }, 2300 * time.Millisecond},
		{"remote write in batches of 5 s", 60, func(c int) []float64 { return spread(0.1 + float64(c%5)) }, 5300 * time.Millisecond},
		{"later than the bound", 60, func(int) []float64 { return spread(30) }, 9300 * time.Millisecond},
		{"too few cycles to say", lagLongest, func(int) []float64 { return spread(4) }, 1300 * time.Millisecond},
		{"one node of twenty is gone", 60, func(int) []float64 { a := spread(0.05); a[3] = 200; return a }, 1300 * time.Millisecond},
		{"a minute without samples, twice", 200, func(c int) []float64 {
			if c%100 < 60 {
				return spread(0.05 + float64(c%100))
			}
			return spread(0.05)
		}, 1300 * time.Millisecond},
		{"twelve seconds without samples, again and again", 100, func(c int) []float64 { return spread(0.05 + float64(c%15*(1-c%15/12))) }, 1300 * time.Millisecond},
		{"three seconds without samples, once", 60, func(c int) []float64 {
			if c >= 30 && c < 33 {
				return spread(0.05 + float64(c-29))
			}
			return spread(0.05)
		}, 1300 * time.Millisecond},
		{"nothing arrives any more", 60, func(c int) []float64 { return spread(0.05 + float64(c)) }, 1300 * time.Millisecond},
		{"one late cycle of fifteen", 60, func(c int) []float64 {
			if c%15 == 7 {
				return spread(3)
			}
			return spread(0.05)
		}, 1300 * time.Millisecond},
		{"late for a while, and no longer", 100, func(c int) []float64 {
			if c < 40 {
				return spread(3)
			}
			return spread(0.05)
		}, 1300 * time.Millisecond},
		{"samples that are there just in time", 60, func(int) []float64 { return spread(0.4) }, 2300 * time.Millisecond},
		{"in time, and only a little earlier afterwards", 170, func(c int) []float64 {
			if c < 70 {
				return spread(0.4)
			}
			return spread(0.3)
		}, 2300 * time.Millisecond},
		{"no node", 60, func(int) []float64 { return nil }, 1300 * time.Millisecond},
	} {
		m := newTestMeter()
		for c := range tt.cycles {
			m.addAges(time.Unix(int64(1000+c), 0), tt.ages(c))
		}
		if got := m.Lag(); got != tt.want {
			t.Errorf("%s: the lag is %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestNoMomentTwice checks the property of rule 19: whatever arrives when, the ends of the windows that are evaluated become
// later and later, and the lag stays between its bounds, whole scrape intervals above the least one.
func TestNoMomentTwice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		m, last, evaluated := newTestMeter(), time.Time{}, 0
		late := 0.0
		for c := range 200 {
			if rng.IntN(20) == 0 {
				late = 12 * rng.Float64()
			}
			now := time.Unix(int64(1000+c), 0)
			lag := m.Lag()
			end := now.Add(-lag)
			if lag < 1300*time.Millisecond || lag > 10*time.Second || (lag-1300*time.Millisecond)%time.Second != 0 {
				t.Fatalf("the lag is %v", lag)
			}
			if err := m.beginWindow(end); err == nil {
				if !end.After(last) {
					t.Fatalf("the window to %v is evaluated after that to %v", end, last)
				}
				last = end
				evaluated++
			} else if !errors.Is(err, ErrSameWindow) {
				t.Fatal(err)
			}
			m.addAges(now, []float64{late + 0.1, late + 0.9, late + rng.Float64()})
		}
		if evaluated < 100 {
			t.Errorf("%d of 200 cycles had a window", evaluated)
		}
	}
}

// TestLagIsInherited checks that a new configuration goes on with what was measured, within its own bound.
func TestLagIsInherited(t *testing.T) {
	old := newTestMeter()
	for c := range 10 {
		old.addAges(time.Unix(int64(1000+c), 0), []float64{6})
	}
	s := DefaultSettings()
	for bound, want := range map[time.Duration]time.Duration{10 * time.Second: 6300 * time.Millisecond, 4 * time.Second: 3300 * time.Millisecond} {
		m := NewLagMeter(&s, bound)
		m.InheritFrom(old)
		if got := m.Lag(); got != want {
			t.Errorf("with a bound of %v the lag is %v, want %v", bound, got, want)
		}
	}
	var none *LagMeter
	none.InheritFrom(old)
	none.addAges(time.Unix(1000, 0), []float64{1})
	m := newTestMeter()
	m.InheritFrom(nil)
	if _, known := m.SampleAge(); known || m.Lag() != s.Lag {
		t.Errorf("without anything measured the lag is %v, known %v", m.Lag(), known)
	}
}

// lateStore answers as a store to which samples come late does at a moment.
type lateStore struct {
	loaded
	now  *time.Time
	late time.Duration
}

// Querier implements storage.Queryable: it has no samples that have not come yet.
func (l lateStore) Querier(from, to int64) (storage.Querier, error) {
	q, err := l.db.Querier(from, to)
	return lateQuerier{q, l.now.Add(-l.late).UnixMilli()}, err
}

type lateQuerier struct {
	storage.Querier
	until int64
}

// Select implements storage.Querier.
func (l lateQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	h := *hints
	h.End = min(h.End, l.until)
	return l.Querier.Select(ctx, sorted, &h, matchers...)
}

func (l lateStore) QueryInstant(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	return EvaluateAt(ctx, l.engine, l, query, at)
}

// TestWindowsOfALateStore checks that windows of a store to which samples come three seconds late are whole, and that they
// are not without a measured lag.
func TestWindowsOfALateStore(t *testing.T) {
	data := healthy().load(t).(loaded)
	read := func(s Settings) (whole int, last Window) {
		now := time.Unix(8, 0)
		db := lateStore{data, &now, 3 * time.Second}
		for ; now.Unix() < 28; now = now.Add(time.Second) {
			w, err := ReadWindow(t.Context(), db, s, now)
			if errors.Is(err, ErrSameWindow) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if last = w; len(w.Hosts) == 0 && len(w.Observations) == 2 && near(w.Observations[0].Sent, 200) && w.Observations[0].OWD != nil {
				whole++
			}
		}
		return whole, last
	}
	fixed := DefaultSettings()
	if n, _ := read(fixed); n != 0 {
		t.Errorf("%d windows are whole with a lag of %v, though samples come three seconds late", n, fixed.Lag)
	}
	measured := DefaultSettings()
	measured.Arrival = NewLagMeter(&measured, 10*time.Second)
	if n, w := read(measured); n < 10 || w.Lag != 3300*time.Millisecond {
		t.Errorf("%d of 20 windows are whole, and the lag is %v; at least 10 and 3.3s are expected", n, w.Lag)
	}
	if age, known := measured.Arrival.SampleAge(); !known || age != 3*time.Second {
		t.Errorf("the age of samples is %v, known %v; 3s are expected", age, known)
	}
}
