package clocksync

import (
	"math"
	"time"
)

// Terms of a bound. The wander is that of an oscillator in a machine room: a random walk of its rate by
// 0.1 ppm in a minute, and occasionally a change of temperature worth 1 ppm.
const (
	// BoundSigmas is the number of standard deviations in the statistical part of a bound. A normal
	// error exceeds it once in 1.7 million windows. The margin allows for errors that are not quite
	// normal.
	BoundSigmas = 5
	// wanderRoot is the wander of a rate, per square root of a second.
	wanderRoot = 1.291e-8 // 0.1e-6 / sqrt(60)
	// temperatureStep is the change of a rate when the temperature changes, temperatureStepEvery is the
	// time between such changes, and crystalInertia is the time constant of a crystal that warms.
	temperatureStep      = 1e-6
	temperatureStepEvery = 10 * time.Minute
	crystalInertia       = 30 * time.Second
	// FreshFor is the time for which an estimate does not count as predicted: the next window corrects
	// a step that is faster than crystals are.
	FreshFor = 3 * time.Second
)

// GrownSigma returns the standard deviation, ns, of an offset at a distance of age in time, if its
// standard deviation was sigma and that of its rate was rateSigma. The age may be negative.
func GrownSigma(sigma, rateSigma float64, age time.Duration) float64 {
	t := math.Abs(age.Seconds())
	drift := rateSigma * t * 1e9
	wander := wanderRoot * t * math.Sqrt(t/3) * 1e9
	return math.Sqrt(sigma*sigma + drift*drift + wander*wander)
}

// thermalOffset returns how far, ns, temperature may have moved an offset that was measured age ago.
// While the estimate is fresh, the inertia of a crystal limits it. Later it is the effect of steps: one
// from the beginning on, and more by temperatureStepEvery.
func thermalOffset(age time.Duration) float64 {
	t := math.Abs(float64(age))
	if t <= float64(FreshFor) {
		return temperatureStep * t * t / (2 * float64(crystalInertia))
	}
	return temperatureStep * t * (1 + t/float64(temperatureStepEvery))
}

// StatisticalBound returns the statistical bound, ns, of the same offset: BoundSigmas times the grown
// sigma, plus the possible effect of temperature.
func StatisticalBound(sigma, rateSigma float64, age time.Duration) float64 {
	return BoundSigmas*GrownSigma(sigma, rateSigma, age) + thermalOffset(age)
}

// Relation is the offset and rate of a far clock against a local one, as far as an edge's samples need
// them.
type Relation struct {
	Ref    int64   // time of the local clock
	Offset int64   // far clock minus local clock at Ref
	Rate   float64 // gain of the far clock on the local one
	Bound  int64   // statistical part plus allowance, ns, near Ref
}

// OffsetAt returns the offset of the far clock at a time of the local one.
func (r *Relation) OffsetAt(local int64) int64 {
	return r.Offset + int64(math.Round(r.Rate*float64(local-r.Ref)))
}
