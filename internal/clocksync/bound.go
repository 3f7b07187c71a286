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
	// temperature is by how much a rate may change at once.
	temperature = 1e-6
	// Fresh is for how long after its moment an estimate is not yet predicted:
	// what a step of temperature does by then, the next window corrects.
	Fresh = 3 * time.Second
)

// Grown is the standard deviation, ns, of an offset that was known to sigma and
// whose rate was known to rateSigma, age later (or earlier).
func Grown(sigma, rateSigma float64, age time.Duration) float64 {
	t := math.Abs(age.Seconds())
	drift := rateSigma * t * 1e9
	wander := wanderRoot * t * math.Sqrt(t/3) * 1e9
	return math.Sqrt(sigma*sigma + drift*drift + wander*wander)
}

// StatisticalBound is the bound, ns, of the same offset: BoundSigmas of what it
// has grown to and, once it is no longer Fresh, what a temperature step may have
// done since.
func StatisticalBound(sigma, rateSigma float64, age time.Duration) float64 {
	b := BoundSigmas * Grown(sigma, rateSigma, age)
	if over := max(age, -age) - Fresh; over > 0 {
		b += temperature * float64(over)
	}
	return b
}

// Relation is how a far clock stands against a local one, as far as an edge's
// samples need it.
type Relation struct {
	Ref    int64   // by the local clock
	Offset int64   // of the far clock against the local one at Ref
	Rate   float64 // what the far clock gains on the local one
	Bound  int64   // statistical part and allowance, ns, near Ref
}

// At is the offset of the far clock at a time of the local one.
func (r *Relation) At(local int64) int64 {
	return r.Offset + int64(math.Round(r.Rate*float64(local-r.Ref)))
}
