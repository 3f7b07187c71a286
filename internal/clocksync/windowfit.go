package clocksync

import (
	"cmp"
	"math"
	"slices"
)

// exchange is a probe with a reply near it, relative to a relation: at is ns after its Ref, sum is the
// delay of both ways, and offset is half of their difference.
type exchange struct {
	at, sum, offset float64
	clean           bool
}

// Shares of a window's exchanges that are fitted. If one direction has longer queues, they do not move
// the least delayed exchanges.
const (
	quarter = 4
	twelfth = 12
)

// windowFit is the result of the fit of one window, relative to a relation.
type windowFit struct {
	at               int64 // by the local clock: the time at which offset and rate are least dependent
	offset           int64 // offset of the far clock
	rate             float64
	sigma, rateSigma float64 // ns; ns per ns
	delay            float64 // ns
	excess           float64 // ns: further wait of the samples behind the delay
	spread           float64 // ns: spread of their offsets, as of a normal distribution
	apart            bool    // too few samples are near the least delayed one
}

// fitWindow fits a straight line to the least delayed exchanges of a window: those whose packets kept
// their coded gap, or one in share of all.
func (p *Pair) fitWindow(from Relation, share int) windowFit {
	x := p.buffers.exchanges[:0]
	r, i := p.samples.now[reverse].samples, 0
	for _, f := range p.samples.now[forward].samples {
		// A reply belongs to the probe directly before it. For the sum of both ways any near reply will
		// do.
		for i+1 < len(r) && r[i].at < f.at {
			i++
		}
		there := float64(f.delay - from.OffsetAt(f.at))
		back := float64(r[i].delay + from.OffsetAt(r[i].at))
		x = append(x, exchange{at: float64(f.at-from.Ref)/2 + float64(r[i].at-from.Ref)/2, sum: there + back, offset: (there - back) / 2,
			clean: f.clean && r[i].clean})
	}
	p.buffers.exchanges = x
	slices.SortFunc(x, func(a, b exchange) int {
		if a.clean != b.clean {
			if a.clean {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.sum, b.sum)
	})
	clean := 0
	for clean < len(x) && x[clean].clean {
		clean++
	}
	if clean < 2*fewestSamples {
		slices.SortFunc(x, func(a, b exchange) int { return cmp.Compare(a.sum, b.sum) })
		clean = len(x)
	}
	x = x[:min(clean, max(fewestSamples, len(x)/share))]
	var f windowFit
	if p.began {
		// If the path changes within the window, the exchanges are on different paths.
		alike := len(x)
		for most := x[len(x)/10].sum + 2*(longWait+twoPaths*p.path.excess); x[alike-1].sum > most; {
			alike--
		}
		if f.apart = alike < fewestSamples/2; !f.apart {
			x = x[:alike]
		}
	}
	level, rate, spread := theilSenLine(x, &p.buffers.slopes)
	f.spread = spread
	if p.began && p.kind == Kernel && len(x) < 2*fewestSamples {
		spread = max(spread, p.path.spread) // of a few coarse stamps it is small by chance
	}
	at := 0.0
	for _, e := range x {
		at += e.at
	}
	at /= float64(len(x))
	var lever float64
	for _, e := range x {
		lever += (e.at - at) * (e.at - at)
	}
	f.at = from.Ref + int64(at)
	f.offset = from.OffsetAt(f.at) + int64(math.Round(level+rate*at-p.path.asym))
	f.rate = from.Rate + rate
	// The factor 1.5 allows for the choice of the least delayed, which is not random.
	f.sigma = max(spread/math.Sqrt(float64(len(x))), p.kind.stampScale()/8) * 1.5
	if lever > 0 {
		f.rateSigma = max(spread, p.kind.stampScale()/4) / math.Sqrt(lever) * 1.5
	} else {
		f.rateSigma = 1e-3
	}
	// A stamp that came late makes a sum too small. There are few of them.
	f.delay, f.excess = x[len(x)/10].sum/2, (x[len(x)/2].sum-x[len(x)/10].sum)/2
	return f
}

// theilSenLine fits offset = level + rate x at so that outliers do not count (Theil and Sen: the median
// of slopes), and returns the spread around the line, as of a normal distribution.
func theilSenLine(x []exchange, scratch *[]float64) (level, rate, spread float64) {
	s := (*scratch)[:0]
	step := max(1, len(x)/40)
	for i := 0; i < len(x); i += step {
		for j := i + step; j < len(x); j += step {
			if d := x[j].at - x[i].at; math.Abs(d) > 1e8 {
				s = append(s, (x[j].offset-x[i].offset)/d)
			}
		}
	}
	if len(s) > 0 {
		rate = medianInPlace(s)
	}
	s = s[:0]
	for _, e := range x {
		s = append(s, e.offset-rate*e.at)
	}
	level = medianInPlace(s)
	for i := range s {
		s[i] = math.Abs(s[i] - level)
	}
	spread = 1.4826 * medianInPlace(s)
	*scratch = s
	return level, rate, spread
}

// medianInPlace sorts its argument and returns the median.
func medianInPlace(s []float64) float64 {
	slices.Sort(s)
	return s[len(s)/2]
}
