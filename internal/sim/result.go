package sim

import (
	"math"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
)

// Quantiles of absolute values, ns.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Spread is Quantiles without the maximum.
type Spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Figures are the errors of some claims, and how many of them held.
type Figures struct {
	Error    Quantiles `json:"error_ns"`
	Bound    Spread    `json:"bound_ns"` // statistical part
	Coverage float64   `json:"coverage"` // share of claims with the error within the bound and the allowance
	Claims   int       `json:"claims"`   // one for every clock and window
}

// Result holds the figures of a run. The first ones are of clocks that were measured in the window, at its end.
type Result struct {
	Error         Quantiles `json:"error_ns"`
	Oracle        Spread    `json:"oracle_ns"`     // of the likeliest place in the window
	CramerRao     Spread    `json:"cramer_rao_ns"` // of one step of scoring from the truth
	Bound         Spread    `json:"bound_ns"`
	Coverage      float64   `json:"coverage"` // of all claims, the warm-up's too
	Windows       int       `json:"windows"`  // after the warm-up
	SecondsToLock *float64  `json:"seconds_to_lock"`
	// SecondsToRelock is how long after the scenario's event some clock was not
	// locked for the last time; absent while one is.
	SecondsToRelock *float64       `json:"seconds_to_relock,omitempty"`
	InUse           Figures        `json:"in_use"`         // one window later, with the same maps
	Held            *Figures       `json:"held,omitempty"` // of predictions: nothing was measured in the window
	States          map[string]int `json:"states"`         // clocks and windows after the warm-up
	FinalStates     map[string]int `json:"final_states"`
	Steps           uint32         `json:"steps"` // that were counted, of all clocks
	Drifts          uint32         `json:"drifts"`
	ProbesPerSecond float64        `json:"probes_per_second"` // answered, of the fleet, twins too
	PairsPerSecond  float64        `json:"pairs_per_second"`  // coded pairs sent
}

// claims gathers errors and bounds.
type claims struct {
	errors, bounds []float64 // after the warm-up
	all, held      int
}

func (c *claims) addClaim(err, bound float64, allowance int64, late bool) {
	c.all++
	if math.Abs(err) <= bound+float64(allowance) {
		c.held++
	}
	if late {
		c.errors = append(c.errors, math.Abs(err))
		c.bounds = append(c.bounds, bound)
	}
}

func (c *claims) toFigures() Figures {
	return Figures{Error: quantilesOf(c.errors), Bound: spreadOf(c.bounds), Coverage: shareOf(c.held, c.all), Claims: c.all}
}

func shareOf(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// tally judges maps by the truth.
type tally struct {
	s                     *run
	measured, held, inUse claims
	oracle, cramerRao     []float64
	windows               int
	states                [4]int
	lockedAt, unlockedAt  int64 // first end of a window with all clocks locked, last one without
	last                  int64
	maps                  []clocksync.Map
	known                 []bool
}

func newTally(s *run) *tally {
	return &tally{s: s, maps: make([]clocksync.Map, s.o.Clocks), known: make([]bool, s.o.Clocks)}
}

// judgeUsed judges the maps of the window before.
func (t *tally) judgeUsed(w *Window) {
	for c, err := range t.mapDeviations(w) {
		if m := &t.maps[c]; claimsBound(m) && !math.IsNaN(err) {
			t.inUse.addClaim(err, statisticalBound(m, w.Now[c]), m.Allowance, w.At > t.s.o.WarmUp)
		}
	}
}

// judgeSolved takes the maps of a window that has just ended, and judges them.
func (t *tally) judgeSolved(w *Window) {
	late := w.At > t.s.o.WarmUp
	if late {
		t.windows++
	}
	locked := 0
	for c := range t.maps {
		t.maps[c], t.known[c] = t.s.est.MapOf(c)
		if t.maps[c].State == clocksync.Locked && t.known[c] {
			locked++
		}
	}
	t.last = int64(w.At)
	if locked < len(t.maps) {
		t.unlockedAt = t.last
	} else if t.lockedAt == 0 {
		t.lockedAt = t.last
	}
	for c, err := range t.mapDeviations(w) {
		m := &t.maps[c]
		if late {
			t.states[m.State]++
		}
		if !claimsBound(m) || math.IsNaN(err) {
			continue
		}
		to := &t.held
		if m.State == clocksync.Locked && w.Now[c]-m.Ref < window*3/2 {
			to = &t.measured
		}
		to.addClaim(err, statisticalBound(m, w.Now[c]), m.Allowance, late)
	}
}

func claimsBound(m *clocksync.Map) bool {
	return m.State == clocksync.Locked || m.State == clocksync.Holdover
}

func statisticalBound(m *clocksync.Map, now int64) float64 {
	return clocksync.StatisticalBound(m.Sigma, m.RateSigma, time.Duration(now-m.Ref))
}

// mapDeviations returns the errors of all maps in ns, against the locked clocks of the component or, if there are
// none, against all. An unknown error is NaN.
func (t *tally) mapDeviations(w *Window) []float64 {
	out := make([]float64, len(t.maps))
	locked, all := map[uint32][]float64{}, map[uint32][]float64{}
	for c := range t.maps {
		m := &t.maps[c]
		out[c] = math.NaN()
		if !t.known[c] || m.State == clocksync.Converging {
			continue
		}
		out[c] = float64(m.FrameTime(w.Now[c]) - (epoch + int64(w.At)))
		all[m.Component] = append(all[m.Component], out[c])
		if m.State == clocksync.Locked {
			locked[m.Component] = append(locked[m.Component], out[c])
		}
	}
	centre := map[uint32]float64{}
	for component, xs := range all {
		if l := locked[component]; len(l) > 0 {
			xs = l
		}
		centre[component] = robustMean(xs)
	}
	for c := range out {
		out[c] -= centre[t.maps[c].Component]
	}
	return out
}

// robustMean returns the mean without outliers: one clock that is off by a second is no error of all others. It sorts
// xs.
func robustMean(xs []float64) float64 {
	slices.Sort(xs)
	median := xs[len(xs)/2]
	away := make([]float64, len(xs))
	for i, x := range xs {
		away[i] = math.Abs(x - median)
	}
	slices.Sort(away)
	// 1.4826 median deviations are a standard deviation.
	far := max(8*1.4826*away[len(away)/2], 1)
	sum, n := 0.0, 0.0
	for _, x := range xs {
		if math.Abs(x-median) <= far {
			sum += x - median
			n++
		}
	}
	return median + sum/n
}

// addOracle takes the oracle's errors of a window after the warm-up.
func (t *tally) addOracle(likeliest, scoring []float64) {
	for c, err := range likeliest {
		if !math.IsNaN(err) {
			t.oracle = append(t.oracle, math.Abs(err))
			t.cramerRao = append(t.cramerRao, math.Abs(scoring[c]))
		}
	}
}

func (t *tally) toResult() *Result {
	f := t.measured.toFigures()
	seconds := float64(t.last) / 1e9
	r := &Result{Error: f.Error, Bound: f.Bound, Oracle: spreadOf(t.oracle), CramerRao: spreadOf(t.cramerRao), Windows: t.windows, InUse: t.inUse.toFigures(),
		Coverage: shareOf(t.measured.held+t.held.held, t.measured.all+t.held.all),
		States:   map[string]int{}, FinalStates: map[string]int{}, ProbesPerSecond: math.Round(float64(t.s.probed) / seconds)}
	if t.held.all > 0 {
		f := t.held.toFigures()
		r.Held = &f
	}
	if t.lockedAt > 0 {
		s := float64(t.lockedAt) / 1e9
		r.SecondsToLock = &s
	}
	if t.s.o.Scenario != "none" && t.unlockedAt < t.last {
		s := max(float64(t.unlockedAt-t.s.event)/1e9, 0)
		r.SecondsToRelock = &s
	}
	for state, name := range clocksync.StateNames() {
		r.States[name] = t.states[state]
		r.FinalStates[name] = 0
	}
	for c := range t.maps {
		r.FinalStates[t.maps[c].State.String()]++
		r.Steps += t.maps[c].Steps
		r.Drifts += t.maps[c].Drifts
	}
	r.PairsPerSecond = math.Round(float64(len(t.s.paths)) / t.s.o.Cadence.Seconds() / float64(t.s.o.PairEvery))
	return r
}

func quantilesOf(xs []float64) Quantiles {
	s := spreadOf(xs)
	if len(xs) == 0 {
		return Quantiles{}
	}
	return Quantiles{s.P50, s.P99, roundToTenth(slices.Max(xs))}
}

// spreadOf sorts xs.
func spreadOf(xs []float64) Spread {
	if len(xs) == 0 {
		return Spread{}
	}
	slices.Sort(xs)
	at := func(q float64) float64 { return roundToTenth(xs[int(math.Ceil(q*float64(len(xs))))-1]) }
	return Spread{at(0.5), at(0.99)}
}

// roundToTenth rounds to tenths of a nanosecond: that is what figures are read to.
func roundToTenth(x float64) float64 { return math.Round(x*10) / 10 }
