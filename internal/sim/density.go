package sim

import (
	"math"
	"math/bits"
	"math/cmplx"
)

// density represents the density of the noise of one direction's samples: of two stamps and of the waiting between
// them.
type density struct {
	low  float64 // ns, of the first cell
	step float64 // ns, of all cells
	mass []float64
	log  []float64 // of mass, continued along straight lines where rounding has taken over
	info float64   // Fisher's information of one sample on where the noise is, 1/ns^2
}

const (
	// tail is how far queues may spread the noise, ns: five of them exceed it
	// once in 1e13 probes.
	tail = 230_000
	// leastMass is the mass of a cell below which rounding takes over.
	leastMass = 1e-13
)

func newDensity(kind Noise, load float64, hops int) *density {
	stamp, step := stampMass(kind)
	low := 1 - len(stamp)
	d := &density{low: float64(low) * step, step: step, mass: make([]float64, 2*len(stamp)+int(tail/step))}
	copy(d.mass, differenceMass(stamp))
	// A hop adds nothing with 1-load, else an exponential: a recursion on cells.
	// The mean of two neighbours puts the middle of every cell where it belongs.
	decay := math.Exp(-step / waiting)
	for range hops {
		smooth := 0.0
		for i, m := range d.mass {
			before := smooth
			smooth = decay*smooth + (1-decay)*m
			d.mass[i] = (1-load)*m + load*(smooth+before)/2
		}
	}
	d.log = logMasses(d.mass)
	for i := 1; i < len(d.mass)-1; i++ {
		score := (d.log[i-1] - d.log[i+1]) / (2 * step)
		d.info += score * score * d.mass[i]
	}
	return d
}

// logMasses of masses. Cells with next to no mass go on as steeply as the last
// ones that have some: a search that strays there is led back.
func logMasses(mass []float64) []float64 {
	const over = 16 // cells that give the slope
	log := make([]float64, len(mass))
	first, last := len(mass), 0
	for i, m := range mass {
		if m > leastMass {
			first, last = min(first, i), i
		}
		log[i] = math.Log(max(m, leastMass))
	}
	// Two cells at either end are straight in any case: at reads on from there.
	first, last = max(first, 2), min(last, len(mass)-3)
	for i := first - 1; i >= 0; i-- {
		log[i] = log[i+1] - (log[first+over]-log[first])/over
	}
	for i := last + 1; i < len(log); i++ {
		log[i] = log[i-1] - (log[last-over]-log[last])/over
	}
	return log
}

// evaluateAt returns the logarithm of the density of a noise, its score and the information. The score is the growth
// of the logarithm as the noise increases, 1/ns. The information is the decrease of the score, 1/ns^2. Between cells
// the logarithm is a quadratic spline, so that the score has no jumps.
func (d *density) evaluateAt(noise float64) (log, score, info float64) {
	x := (noise - d.low) / d.step
	i := min(max(int(x+0.5), 1), len(d.log)-2)
	x -= float64(i)
	before, here, after := d.log[i-1], d.log[i], d.log[i+1]
	slope, bend := (after-before)/2, after-2*here+before
	return here + slope*x + bend/2*(x*x+0.25), -(slope + bend*x) / d.step, -bend / (d.step * d.step)
}

// stampMass returns the probability that the error of a stamp lies in each of many cells.
func stampMass(kind Noise) (mass []float64, step float64) {
	if kind == Hardware {
		// Cells of 1 ns from -88 ns on, up to 40 times the mean of the blunt ones.
		const first, cells = -88, 88 + 40*bluntMean
		plain := cellsOf(first, 1, cells, func(x float64) float64 {
			return sharpShare*normalCDF(x/sharpSigma) + (1-sharpShare)*-math.Expm1(-max(x, 0)/bluntMean)
		})
		// A reading may lie anywhere between two steps: rounding is uniform.
		mass = make([]float64, cells)
		for i := range mass {
			for j := -hardwareStep / 2; j <= hardwareStep/2; j++ {
				share := 1.0 / hardwareStep
				if j == -hardwareStep/2 || j == hardwareStep/2 {
					share /= 2
				}
				if i+j >= 0 && i+j < cells {
					mass[i] += share * plain[i+j]
				}
			}
		}
		return mass, 1
	}
	const cell = 10
	const cells = (lateLeast + lateRange + 100_000) / cell
	prompt := cellsOf(0, cell, cells, func(x float64) float64 {
		if x <= 0 {
			return 0
		}
		return normalCDF(math.Log(x/kernelMedian) / kernelSpread)
	})
	sum := make([]float64, cells+1)
	for i, m := range prompt {
		sum[i+1] = sum[i] + m
	}
	mass = make([]float64, cells)
	for i := range mass {
		late := sum[max(i-lateLeast/cell, 0)] - sum[max(i-(lateLeast+lateRange)/cell, 0)]
		mass[i] = (1-lateShare)*prompt[i] + lateShare*late*cell/lateRange
	}
	return mass, cell
}

// cellsOf turns a distribution function into the masses of cells around first,
// first+step and so on.
func cellsOf(first, step float64, n int, below func(float64) float64) []float64 {
	mass := make([]float64, n)
	for i := range mass {
		x := first + step*float64(i)
		mass[i] = below(x+step/2) - below(x-step/2)
	}
	return mass
}

func normalCDF(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

// differenceMass returns the mass of the difference of two independent errors, from 1-len(mass) cells on.
func differenceMass(mass []float64) []float64 {
	n := 1 << bits.Len(uint(2*len(mass)))
	x := make([]complex128, n)
	for i, m := range mass {
		x[i] = complex(m, 0)
	}
	fourierTransform(x)
	for i := range x {
		a := cmplx.Abs(x[i])
		x[i] = complex(a*a, 0)
	}
	fourierTransform(x) // the spectrum is even: forth is back, but for the factor
	out := make([]float64, 2*len(mass)-1)
	for i := range out {
		out[i] = max(real(x[(i+1-len(mass)+n)%n])/float64(n), 0)
	}
	return out
}

// fourierTransform transforms in place; len(x) is a power of two.
func fourierTransform(x []complex128) {
	n := len(x)
	shift := 64 - bits.Len(uint(n-1))
	for i := range x {
		if j := int(bits.Reverse64(uint64(i)) >> shift); j > i {
			x[i], x[j] = x[j], x[i]
		}
	}
	for size := 2; size <= n; size *= 2 {
		turns := make([]complex128, size/2)
		for k := range turns {
			turns[k] = cmplx.Rect(1, -2*math.Pi*float64(k)/float64(size))
		}
		for from := 0; from < n; from += size {
			for k, w := range turns {
				a, b := x[from+k], w*x[from+k+size/2]
				x[from+k], x[from+k+size/2] = a+b, a-b
			}
		}
	}
}
