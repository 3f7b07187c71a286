package clocksync

import (
	"math"
	"sync"
)

// shape is what the delays of one path look like when nothing unusual happens: a
// histogram for each direction over the distance from the path's own delay. Its
// bins are as wide as the stamps are fine near zero and grow with the distance, so
// that 89 of them serve nanoseconds and milliseconds.
//
// From a histogram comes the score, the derivative of the log density: how much a
// sample at some distance says about where the zero is. An estimate by scores is
// as good as one that knows the density (Bickel, On Adaptive Estimation, 1982),
// whatever stamps and queues made it; a sample that tells nothing, a queued one
// among clean ones, weighs nothing.
//
// Each direction is looked at with the scores of the other one. An offset that is
// wrong moves the two apart, so that the comparison always leads back; a direction
// compared with its own past would follow itself. It also tells how good the
// scores are: what few samples seem to say about a slope is not borne out by the
// other direction's.
type shape struct {
	scale  float64 // ns: the bins' width near zero is a quarter of it
	counts [2][bins]float64
	total  [2]float64

	score    [2][bins]float64 // made of a direction's own counts
	slope    [2]float64       // of a direction's mean score, by the other's scores, against a shift, per sample
	variance [2]float64       // of that score
	logs     [2][bins]float64 // log density of a direction's own counts
	usual    [2]float64       // mean of a direction's samples' log density, by the other's counts
	spread   [2]float64       // variance of that, of one sample
	quantile [2][len(levels)]float64
}

const (
	bins      = 89
	binStep   = 0.25
	middleBin = bins / 2
	// shapeMemory is over how many windows what is known fades to a third.
	shapeMemory = 120
	// shapeSamples must be seen of each direction before a shape is used.
	shapeSamples = 400
)

// levels are the quantiles by which a window is compared as a whole.
var levels = [...]float64{0.03, 0.1, 0.25, 0.5}

// bandwidths, in bins, are tried; the one that tells most is used.
var bandwidths = [...]float64{1.2, 2, 3.2}

// blur spreads what one bin counts over the density at every bin's centre: a
// Gaussian as wide as some bins, and as what is not known about the zero.
type blur [bins][bins]float64

type blurKey struct {
	kind      Kind
	bandwidth int
	step      int // of the zero's uncertainty, a quarter of an octave each
}

// blurs are made when first asked for, and always the same.
var blurs struct {
	sync.Mutex
	made map[blurKey]*blur
}

// blurFor is the spread for a zero that is known to sigma, in quarters of octaves.
func blurFor(k Kind, bandwidth int, sigma float64) *blur {
	key := blurKey{k, bandwidth, max(0, min(int(math.Round(4*math.Log2(max(sigma, 1)))), 160))}
	blurs.Lock()
	defer blurs.Unlock()
	if b := blurs.made[key]; b != nil {
		return b
	}
	b := &blur{}
	scale := k.stampScale()
	for j := range bins {
		s := math.Hypot(bandwidths[bandwidth]*binWidth(scale, j), math.Exp2(float64(key.step)/4))
		for i := range bins {
			d := (binCentre(scale, i) - binCentre(scale, j)) / s
			b[i][j] = math.Exp(-d*d/2) / s
		}
	}
	if blurs.made == nil {
		blurs.made = map[blurKey]*blur{}
	}
	blurs.made[key] = b
	return b
}

// binOf is the place of a distance among the bins, as a fraction.
func (s *shape) binOf(ns float64) float64 {
	return min(max(math.Asinh(ns/s.scale)/binStep+middleBin, 0), bins-1)
}

// binCentre is the distance that a bin stands for, in ns.
func binCentre(scale float64, bin int) float64 { return scale * unitCentres[bin] }

// unitCentres are the bins' where the scale is one.
var unitCentres = func() (c [bins]float64) {
	for i := range c {
		c[i] = math.Sinh(float64(i-middleBin) * binStep)
	}
	return c
}()

// addDistance counts a sample's distance.
func (s *shape) addDistance(dir int, ns float64) { s.counts[dir][int(s.binOf(ns)+0.5)]++ }

// shiftZero moves the zero by some ns: what was counted keeps its place in time. Bins
// that are wider than those they come to lie in are spread over them.
func (s *shape) shiftZero(by float64) {
	for d := range s.counts {
		var moved [bins]float64
		for i, c := range s.counts[d] {
			lo, hi := s.binOf(binLowerEnd(s.scale, i)-by)+0.5, s.binOf(binLowerEnd(s.scale, i+1)-by)+0.5
			for j := int(lo); j <= int(hi); j++ {
				if part := min(hi, float64(j+1)) - max(lo, float64(j)); part > 0 {
					moved[j] += c * part / (hi - lo)
				} else if hi == lo {
					moved[j] += c
				}
			}
		}
		s.counts[d] = moved
	}
}

// sharpestDistance is the distance, ns, about which samples tell most of where zero is.
// What the scores of both directions do not agree upon is chance.
func (s *shape) sharpestDistance() float64 {
	var tells [bins]float64
	all := 0.0
	for i := range tells {
		tells[i] = max(0, s.score[forward][i]*s.score[reverse][i]) * (s.counts[forward][i] + s.counts[reverse][i])
		all += tells[i]
	}
	seen := 0.0
	for i, t := range tells {
		if seen += t; seen >= all/2 && t > 0 {
			return s.scale * math.Sinh((float64(i)+0.5-(seen-all/2)/t-middleBin)*binStep)
		}
	}
	return 0
}

// binLowerEnd is the lower end of a bin, in ns.
func binLowerEnd(scale float64, bin int) float64 {
	return scale * math.Sinh((float64(bin-middleBin)-0.5)*binStep)
}

// endWindow ends a window: what is old fades, the faster the younger the shape is; its
// first windows were placed badly.
func (s *shape) endWindow(windows float64) {
	keep := 1 - 1/min(shapeMemory, 8+windows)
	for d := range s.counts {
		s.total[d] = 0
		for i := range s.counts[d] {
			s.counts[d][i] *= keep
			s.total[d] += s.counts[d][i]
		}
	}
}

// learnScores makes scores of counts, for a zero that is known to sigma. It reports
// whether they are of use.
func (s *shape) learnScores(k Kind, sigma float64) bool {
	if min(s.total[forward], s.total[reverse]) < shapeSamples {
		return false
	}
	best, looked := 0.0, 0
	// A wider look is steadier; it is tried as long as it does not cost much.
	for wide := max(sigma, s.scale/8); wide < 64*max(sigma, s.scale) && (best == 0 || looked < widthsTried); wide *= 2 {
		looked++
		for bandwidth := range bandwidths {
			b := blurFor(k, bandwidth, wide)
			var score, logs [2][bins]float64
			for d := range score {
				s.scoresOf(&score[d], &logs[d], &s.counts[d], b)
			}
			var slope, variance [2]float64
			sure := true
			for d := range score {
				var sd float64
				slope[d], variance[d], sd = s.meanSlope(&score[1-d], &s.counts[d])
				sure = sure && slope[d] > slopeSigmas*sd
			}
			if !sure {
				continue
			}
			// What both directions together tell: the inverse of their summed variances.
			if tells := 1 / (variance[0]/(slope[0]*slope[0]) + variance[1]/(slope[1]*slope[1])); tells > best {
				best, s.score, s.slope, s.variance, s.logs = tells, score, slope, variance, logs
			}
		}
	}
	if best == 0 {
		return false
	}
	wide := blurFor(k, 0, nearbyFactor*max(sigma, s.scale))
	for d := range s.counts {
		var score, logs [bins]float64
		s.scoresOf(&score, &logs, &s.counts[d], wide)
		for i := range logs {
			s.logs[d][i] -= logs[i]
		}
	}
	for d := range s.counts {
		s.quantilesOf(d)
		s.usual[d], s.spread[d] = 0, 0
		for i, c := range s.counts[d] {
			l := s.logs[1-d][i]
			s.usual[d] += c / s.total[d] * l
			s.spread[d] += c / s.total[d] * l * l
		}
		s.spread[d] -= s.usual[d] * s.usual[d]
	}
	return true
}

// widthsTried is how many widths are tried.
const widthsTried = 2

// nearbyFactor is how far away, in units of what is not known, a zero is that is elsewhere.
const nearbyFactor = 16

// slopeSigmas is how many of its standard deviations a slope must be above zero.
const slopeSigmas = 3

// binWidth is that of a bin, in ns.
func binWidth(scale float64, bin int) float64 {
	return scale * binStep * math.Cosh(float64(bin-middleBin)*binStep)
}

// scoresOf smooths counts and takes the derivative of their log density.
func (s *shape) scoresOf(score, log, counts *[bins]float64, b *blur) {
	first, end := 0, bins // of what was counted
	for first < end && counts[first] == 0 {
		first++
	}
	for first < end && counts[end-1] == 0 {
		end--
	}
	for i := range log {
		// What was never seen is rare, not impossible.
		log[i] = math.Log(1e-3/s.scale/float64(bins) + dot(counts[first:end], b[i][first:end]))
	}
	for i := range score {
		lo, hi := max(i-1, 0), min(i+1, bins-1)
		score[i] = (log[lo] - log[hi]) / (binCentre(s.scale, hi) - binCentre(s.scale, lo))
	}
}

// meanSlope weighs scores with counts: the mean slope, the mean square, and the
// standard deviation of the slope.
func (s *shape) meanSlope(score, counts *[bins]float64) (slope, variance, sd float64) {
	n := 0.0
	for i, c := range counts {
		lo, hi := max(i-1, 0), min(i+1, bins-1)
		rise := (score[hi] - score[lo]) / (binCentre(s.scale, hi) - binCentre(s.scale, lo))
		n += c
		slope += c * rise
		sd += c * rise * rise
		variance += c * score[i] * score[i]
	}
	return slope / n, variance / n, math.Sqrt(sd) / n
}

func (s *shape) quantilesOf(dir int) {
	seen, k := 0.0, 0
	for i, c := range s.counts[dir] {
		seen += c
		for k < len(levels) && seen >= levels[k]*s.total[dir] && c > 0 {
			within := (seen - levels[k]*s.total[dir]) / c // from the bin's upper end
			s.quantile[dir][k] = s.scale * math.Sinh((float64(i)+0.5-within-middleBin)*binStep)
			k++
		}
	}
}

// scoreAt is the score of a sample of one direction, between bins by a straight
// line, and the slope there.
func (s *shape) scoreAt(dir int, ns float64) (score, slope float64) {
	at := s.binOf(ns)
	i := min(int(at), bins-2)
	f := at - float64(i)
	t := &s.score[1-dir]
	return t[i]*(1-f) + t[i+1]*f, (t[i+1] - t[i]) / (binCentre(s.scale, i+1) - binCentre(s.scale, i))
}

// scoreSum is what some samples say of where zero is, about where it is looked for: the
// sum of their scores and what they tell, as the slope of that sum.
type scoreSum struct{ n, score, slope, square float64 }

func (t *scoreSum) addScore(score, slope float64) {
	t.n++
	t.score += score
	t.slope += slope
	t.square += score * score
}

// zeroShift is by how much zero is elsewhere, and the variance of that. Samples count
// for what they tell themselves, which where clean ones are rare is now nothing
// and now much. A slope that is not even half of what scores scatter is chance.
func (s *shape) zeroShift(dir int, t *scoreSum, least float64) (off, variance float64) {
	slope := max(t.slope, t.square/2, least*t.n*s.slope[dir])
	return t.score / slope, s.variance[dir] / s.slope[dir] / slope
}

// searchPlace finds the place of samples of a direction, which is known to sigma to be
// zero: the likeliest, by Fisher's scoring, one step where one is enough.
func (s *shape) searchPlace(dir int, samples []float64, sigma float64) (place float64) {
	prior := 1 / (sigma * sigma)
	usual := float64(len(samples)) * s.slope[dir]
	reach := 1 / math.Sqrt(s.slope[dir]) // within it the score is nearly straight
	for range searchSteps {
		var t scoreSum
		for _, u := range samples {
			t.addScore(s.scoreAt(dir, u-place))
		}
		step := max(-2*reach, min(2*reach, (t.score-place*prior)/(max(t.slope, usual*0.3)+prior)))
		place += step
		if math.Abs(step) < reach/4 {
			break
		}
	}
	return place
}

// leastInformation is what a window tells at least, as a part of what windows usually do.
const leastInformation = 0.05

const searchSteps = 6

// logLikelihood is how much likelier samples of a direction are with their zero here than
// near here, in nats.
func (s *shape) logLikelihood(dir int, samples []float64) (sum float64) {
	for _, u := range samples {
		sum += s.logs[1-dir][int(s.binOf(u)+0.5)]
	}
	return sum
}

// fitSigmas tells by how many standard deviations samples of a direction, its place
// being zero, are likelier than those that made the shape.
func (s *shape) fitSigmas(dir int, samples []float64) float64 {
	n := float64(len(samples))
	return (s.logLikelihood(dir, samples)/n - s.usual[dir]) / math.Sqrt(s.spread[dir]/n+1e-9)
}

// queueAsymmetry is what, ns, the places of two directions may differ by because their
// queues do: a part of by how much more one of them waits, but no more than the
// width of what tells the place. Unequal by a tenth is what equal queues look like.
func (s *shape) queueAsymmetry() float64 {
	var width [2]float64
	for d := range width {
		width[d] = s.quantile[d][len(levels)-1] - s.quantile[d][0]
	}
	more := math.Abs(width[0]-width[1]) - max(width[0], width[1])/10
	reach := 1 / math.Sqrt(min(s.slope[0], s.slope[1]))
	return max(0, min(more/4, 2*reach))
}
