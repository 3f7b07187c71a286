package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// The models' parameters; times in ns.
const (
	// Hardware-like stamps.
	hardwareStep = 8
	sharpShare   = 0.9
	sharpSigma   = 10
	bluntMean    = 100
	// Kernel-like stamps: log-normal, with median and 99th percentile as given.
	kernelMedian         = 1500
	kernelP99            = 10_000
	lateShare            = 0.001
	lateLeast, lateRange = 50_000, 450_000
	// A queue's bursts, and what a probe waits for in one.
	burst   = 200_000
	waiting = 5000
	maxHops = 5
	// A reflector answers in turns, so that a reply waits for up to one.
	turn = 5_000_000
	// What a switch takes, and up to how much a cable does (40 m).
	switching = 600
	cabling   = 200
)

// kernelSpread is the standard deviation of a log-normal stamp's logarithm;
// 2.3263 is the 99th percentile of the normal distribution.
var kernelSpread = math.Log(float64(kernelP99)/kernelMedian) / 2.326348

// Noise is a kind of stamps.
type Noise string

// The kinds of stamps.
const (
	Hardware Noise = "hardware"
	Kernel   Noise = "kernel"
)

// ParseNoise reads a kind's name.
func ParseNoise(s string) (Noise, error) {
	switch n := Noise(s); n {
	case Hardware, Kernel:
		return n, nil
	}
	return "", fmt.Errorf("noise %q: %s or %s is expected", s, Hardware, Kernel)
}

// stampFunc returns a function that takes a stamp of a clock with a given reading in ns.
func (n Noise) stampFunc() func(float64, *rand.Rand) int64 {
	if n == Hardware {
		return hardwareStamp
	}
	return kernelStamp
}

func hardwareStamp(reading float64, r *rand.Rand) int64 {
	if r.Float64() < sharpShare {
		reading += sharpSigma * r.NormFloat64()
	} else {
		reading += bluntMean * r.ExpFloat64()
	}
	return hardwareStep * int64(math.Round(reading/hardwareStep))
}

func kernelStamp(reading float64, r *rand.Rand) int64 {
	reading += kernelMedian * math.Exp(kernelSpread*r.NormFloat64())
	if r.Float64() < lateShare {
		reading += lateLeast + lateRange*r.Float64()
	}
	return int64(math.Round(reading))
}

// queues holds the known states of the hops of one direction, and their times.
type queues struct {
	at   int64
	busy uint8 // a bit for every hop
}

// waitTime returns how long a probe that comes at a true time waits in all hops. Bursts and pauses are exponential,
// so that a hop is a Markov chain of two states: it forgets its state with the sum of both rates, and the state at
// any later moment can be drawn without the bursts between.
func (q *queues) waitTime(t int64, hops int, load float64, r *rand.Rand) int64 {
	if load == 0 {
		return 0
	}
	const forgotten = 20 // so many time constants later only the load counts
	keep := 0.0
	// A burst ends at 1/burst; for its share to be load a pause ends at load/(1-load) of that.
	if x := float64(t-q.at) / (burst * (1 - load)); x < forgotten {
		keep = math.Exp(-x)
	}
	waited := 0.0
	for h := range hops {
		odds := load * (1 - keep)
		if q.busy>>h&1 == 1 {
			odds += keep
		}
		if r.Float64() < odds {
			q.busy |= 1 << h
			waited += waiting * r.ExpFloat64()
		} else {
			q.busy &^= 1 << h
		}
	}
	q.at = t
	return int64(waited)
}
