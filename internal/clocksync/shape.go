package clocksync

import (
	"math"
	"sync"
)

// shape is the usual distribution of the delays of one path: a histogram for each direction over the
// distance from the path's own delay. Its bins are as wide as the resolution of stamps near zero and
// grow with the distance, so that 89 of them cover nanoseconds and milliseconds.
//
// The score follows from a histogram. It is the derivative of the log density: the information of a
// sample at some distance about the place of zero. An estimate by scores is as good as one that knows
// the density (Bickel, On Adaptive Estimation, 1982), independent of the stamps and queues that made
// it. A sample without information, a queued one among clean ones, has no weight.
//
// Each direction is compared by the scores of the other one. A wrong offset moves the two apart, so
// that the comparison always leads back. A direction that is compared with its own past would follow
// itself. The comparison also shows the quality of the scores: an apparent slope of few samples does
// not occur in the other direction.
type shape struct {
	scale   float64 // ns: the bins' width near zero is a quarter of it
	counts  [2][bins]float64
	total   [2]float64
	windows float64 // number of windows that it learnt from

	score    [2][bins]float64 // from a direction's own counts
	slope    [2]float64       // slope of a direction's mean score, by the other's scores, against a shift, per sample
	variance [2]float64       // variance of that score
	logs     [2][bins]float64 // log density of a direction's own counts
	usual    [2]float64       // mean log density of a direction's samples, by the other's counts
	spread   [2]float64       // variance of that, of one sample
	quantile [2][len(levels)]float64
}

const (
	bins      = 89
	binStep   = 0.25
	middleBin = bins / 2
	// shapeMemory is the number of windows over which old counts fade to a third.
	shapeMemory = 120
	// shapeSamples is the number of samples of each direction before a shape is used.
	shapeSamples = 400
)

// levels are the quantiles by which a whole window is compared.
var levels = [...]float64{0.03, 0.1, 0.25, 0.5}

// bandwidths, in bins, that are tried. The one with most information is used.
var bandwidths = [...]float64{1.2, 2, 3.2}

// blur distributes the count of one bin over the density at every bin's centre: a Gaussian as wide as
// some bins, combined with the uncertainty of zero.
type blur [bins][bins]float64

type blurKey struct {
	kind      Kind
	bandwidth int
	step      int // uncertainty of zero, in quarters of octaves
}

// blurs caches the blurs, which are made at first use and are always the same.
var blurs struct {
	sync.Mutex
	made map[blurKey]*blur
}

// blurFor returns the blur for a zero with standard deviation sigma, in quarters of octaves.
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

// binOf returns the index of a distance among the bins, as a fraction.
func (s *shape) binOf(ns float64) float64 {
	return min(max(math.Asinh(ns/s.scale)/binStep+middleBin, 0), bins-1)
}

// binCentre returns the distance of a bin's centre, ns.
func binCentre(scale float64, bin int) float64 { return scale * unitCentres[bin] }

// unitCentres are the centres of the bins for scale 1.
var unitCentres = func() (c [bins]float64) {
	for i := range c {
		c[i] = math.Sinh(float64(i-middleBin) * binStep)
	}
	return c
}()

// addDistance counts the distance of a sample, ns.
func (s *shape) addDistance(dir int, ns float64) { s.counts[dir][int(s.binOf(ns)+0.5)]++ }

// shiftZero moves zero by some ns. The counts keep their place in time. The counts of bins that are
// wider than their new bins are distributed over these.
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

// sharpestDistance returns the distance, ns, around which samples have most information on the place of
// zero. Information that the scores of both directions do not share is chance.
func (s *shape) sharpestDistance() float64 {
	var information [bins]float64
	all := 0.0
	for i := range information {
		information[i] = max(0, s.score[forward][i]*s.score[reverse][i]) * (s.counts[forward][i] + s.counts[reverse][i])
		all += information[i]
	}
	seen := 0.0
	for i, t := range information {
		if seen += t; seen >= all/2 && t > 0 {
			return s.scale * math.Sinh((float64(i)+0.5-(seen-all/2)/t-middleBin)*binStep)
		}
	}
	return 0
}

// binLowerEnd returns the lower end of a bin, ns.
func binLowerEnd(scale float64, bin int) float64 {
	return scale * math.Sinh((float64(bin-middleBin)-0.5)*binStep)
}

// endWindow ends a window: old counts fade, and faster in a young shape, whose first windows were
// placed imprecisely.
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

// learnScores computes scores from the counts, for a zero with standard deviation sigma. It reports
// whether they are of use.
func (s *shape) learnScores(k Kind, sigma float64) bool {
	if min(s.total[forward], s.total[reverse]) < shapeSamples {
		return false
	}
	best, looked := 0.0, 0
	// A wider blur gives steadier scores. It is tried as long as it does not cost much information.
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
			// The information of both directions together is the inverse of their summed variances.
			if information := 1 / (variance[0]/(slope[0]*slope[0]) + variance[1]/(slope[1]*slope[1])); information > best {
				best, s.score, s.slope, s.variance, s.logs = information, score, slope, variance, logs
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

// widthsTried is the number of widths that are tried.
const widthsTried = 2

// nearbyFactor is the distance, in units of the uncertainty, of a zero that counts as elsewhere.
const nearbyFactor = 16

// slopeSigmas is the number of its standard deviations that a slope must be above zero.
const slopeSigmas = 3

// binWidth returns the width of a bin, ns.
func binWidth(scale float64, bin int) float64 {
	return scale * binStep * math.Cosh(float64(bin-middleBin)*binStep)
}

// scoresOf smooths counts and computes the derivative of their log density.
func (s *shape) scoresOf(score, log, counts *[bins]float64, b *blur) {
	first, end := 0, bins // range of bins with counts
	for first < end && counts[first] == 0 {
		first++
	}
	for first < end && counts[end-1] == 0 {
		end--
	}
	for i := range log {
		// A distance without counts is rare, not impossible.
		log[i] = math.Log(1e-3/s.scale/float64(bins) + dot(counts[first:end], b[i][first:end]))
	}
	for i := range score {
		lo, hi := max(i-1, 0), min(i+1, bins-1)
		score[i] = (log[lo] - log[hi]) / (binCentre(s.scale, hi) - binCentre(s.scale, lo))
	}
}

// meanSlope weighs scores with counts. It returns the mean slope, the mean square, and the standard
// deviation of the slope.
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
			within := (seen - levels[k]*s.total[dir]) / c // distance from the bin's upper end
			s.quantile[dir][k] = s.scale * math.Sinh((float64(i)+0.5-within-middleBin)*binStep)
			k++
		}
	}
}

// scoreAt returns the score and the slope at a sample of one direction, by linear interpolation between
// bins.
func (s *shape) scoreAt(dir int, ns float64) (score, slope float64) {
	at := s.binOf(ns)
	i := min(int(at), bins-2)
	f := at - float64(i)
	t := &s.score[1-dir]
	return t[i]*(1-f) + t[i+1]*f, (t[i+1] - t[i]) / (binCentre(s.scale, i+1) - binCentre(s.scale, i))
}

// scoreSum is the information of some samples about the place of zero, near the place that is tried:
// the sum of their scores and the slope of that sum.
type scoreSum struct{ n, score, slope, square float64 }

func (t *scoreSum) addScore(score, slope float64) {
	t.n++
	t.score += score
	t.slope += slope
	t.square += score * score
}

// zeroShift returns the distance of zero, and the variance of that. Samples count by their own
// information, which varies widely where clean ones are rare. A slope below half of the scatter of the
// scores is chance.
func (s *shape) zeroShift(dir int, t *scoreSum, least float64) (off, variance float64) {
	slope := max(t.slope, t.square/2, least*t.n*s.slope[dir])
	return t.score / slope, s.variance[dir] / s.slope[dir] / slope
}

// searchPlace returns the likeliest place of samples of a direction, which is zero with standard
// deviation sigma. It uses Fisher's scoring, with one step where one is enough.
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

// leastInformation is the least information of a window, as a part of what windows usually have.
const leastInformation = 0.05

const searchSteps = 6

// logLikelihood returns the log likelihood, in nats, of samples of a direction with zero at the tried
// place.
func (s *shape) logLikelihood(dir int, samples []float64) (sum float64) {
	for _, u := range samples {
		sum += s.logs[1-dir][int(s.binOf(u)+0.5)]
	}
	return sum
}

// fitSigmas returns by how many standard deviations samples of a direction with place zero are likelier
// than those that made the shape.
func (s *shape) fitSigmas(dir int, samples []float64) float64 {
	n := float64(len(samples))
	return (s.logLikelihood(dir, samples)/n - s.usual[dir]) / math.Sqrt(s.spread[dir]/n+1e-9)
}

// queueAsymmetry returns the possible difference, ns, of the places of two directions that unequal
// queues cause: a part of the difference of their waits, at most the width of the part of the shape
// that shows the place. Equal queues look unequal by a tenth.
func (s *shape) queueAsymmetry() float64 {
	var width [2]float64
	for d := range width {
		width[d] = s.quantile[d][len(levels)-1] - s.quantile[d][0]
	}
	more := math.Abs(width[0]-width[1]) - max(width[0], width[1])/10
	reach := 1 / math.Sqrt(min(s.slope[0], s.slope[1]))
	return max(0, min(more/4, 2*reach))
}
