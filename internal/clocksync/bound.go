package clocksync

import (
	"math"
	"time"
)

// What a bound is made of. The wander is that of an oscillator in a machine
// room: a random walk of its rate by 0.1 ppm in a minute, and now and then a
// change of temperature worth 1 ppm.
const (
	// BoundSigmas is how many standard deviations the statistical part of a
	// bound is wide. A normal error leaves it once in 1.7 million windows; what
	// is spared pays for errors that are not quite normal.
	BoundSigmas = 5
	// wanderRoot is the wander of a rate, per square root of a second.
	wanderRoot = 1.291e-8 // 0.1e-6 / sqrt(60)
	// temperatureStep is by how much a rate changes when the temperature does, weather
	// how often that is, and inertia the time constant of a crystal that warms.
	temperatureStep      = 1e-6
	temperatureStepEvery = 10 * time.Minute
	crystalInertia       = 30 * time.Second
	// FreshFor is for how long after its moment an estimate is not yet predicted: a
	// step that is faster than crystals are the next window corrects.
	FreshFor = 3 * time.Second
)

// GrownSigma is the standard deviation, ns, of an offset that was known to sigma and
// whose rate was known to rateSigma, age later (or earlier).
func GrownSigma(sigma, rateSigma float64, age time.Duration) float64 {
	t := math.Abs(age.Seconds())
	drift := rateSigma * t * 1e9
	wander := wanderRoot * t * math.Sqrt(t/3) * 1e9
	return math.Sqrt(sigma*sigma + drift*drift + wander*wander)
}

// thermalOffset is by how much, ns, temperature may have moved an offset that was
// measured age ago. While it is Fresh that is what a crystal's inertia permits;
// later it is what steps do, of which there is one from the beginning on, and
// more as the weather has it.
func thermalOffset(age time.Duration) float64 {
	t := math.Abs(float64(age))
	if t <= float64(FreshFor) {
		return temperatureStep * t * t / (2 * float64(crystalInertia))
	}
	return temperatureStep * t * (1 + t/float64(temperatureStepEvery))
}

// StatisticalBound is the bound, ns, of the same offset: BoundSigmas of what it
// has grown to, and what temperature may have done since.
func StatisticalBound(sigma, rateSigma float64, age time.Duration) float64 {
	return BoundSigmas*GrownSigma(sigma, rateSigma, age) + thermalOffset(age)
}

// Relation is how a far clock stands against a local one, as far as an edge's
// samples need it.
type Relation struct {
	Ref    int64   // by the local clock
	Offset int64   // of the far clock against the local one at Ref
	Rate   float64 // what the far clock gains on the local one
	Bound  int64   // statistical part and allowance, ns, near Ref
}

// OffsetAt is the offset of the far clock at a time of the local one.
func (r *Relation) OffsetAt(local int64) int64 {
	return r.Offset + int64(math.Round(r.Rate*float64(local-r.Ref)))
}
