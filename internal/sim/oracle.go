package sim

import "math"

const (
	// A window of the oracle, in bins whose samples count as taken in the middle.
	oracleBin  = int64(100_000_000) // ns
	oracleBins = 20
	bends      = int(int64(oracleBins)*oracleBin/tick) - 1 // ticks inside
	// unknowns of a clock: the offset and the rate at the end of the window, and
	// by how much the rate wandered at each bend.
	unknowns = 2 + bends
	// ridge keeps the unknowns that no sample determines from being singular, 1/ns^2: a clock without samples, and
	// the time that all clocks share.
	ridge = 1e-13
	// The climb ends when the next step promises less likelihood than summit, of
	// all clocks together: the place is the maximum's to a thousandth of what the
	// samples leave open. Steps and the delays within are found more closely.
	summit    = 1e-6
	closeness = 1e-3
	settled   = 1e-10
	// negligibleStep is a step, of a delay in ns or as a share of all unknowns', that is
	// not worth trying.
	negligibleStep = 1e-9
	// A climb takes three steps where packets are clean, and some 15 where hardly
	// any is.
	maxClimb  = 100
	maxSettle = 50
)

type (
	vector = [unknowns]float64
	matrix = [unknowns]vector
)

// bin holds the score and the information of the samples of one edge in a bin, by direction, at a place.
type bin struct{ score, info [2]float64 }

// oracle is the yardstick of the package comment. A place is a value of every
// unknown; the truth is where all offsets, rates and delays are zero, as noise
// is all that samples show of themselves there.
type oracle struct {
	s       *run
	density [][2]*density              // of an edge's ways
	noise   [][oracleBins][2][]float64 // of an edge's samples, by bin and way, ns

	end       int64              // of the window that is being solved
	form      [oracleBins]vector // how the unknowns of a clock move its offset in a bin
	priorInfo vector             // what is known of the unknowns beforehand, as information
	walked    []vector           // how the clocks wandered: what is known is about these
	bins      [][oracleBins]bin  // of the edges, at the last place looked at
	delays    []float64          // of the edges there, ns
	system    *system
}

func newOracle(s *run) *oracle {
	o := &oracle{s: s, density: make([][2]*density, len(s.paths)), noise: make([][oracleBins][2][]float64, len(s.paths)), walked: make([]vector, s.o.Clocks),
		bins: make([][oracleBins]bin, len(s.paths)), delays: make([]float64, len(s.paths)), system: newSystem(s.o.Clocks, s.paths)}
	type key struct {
		load float64
		hops int
	}
	// Samples of a bin at most: its probes, their twins, and one of the bin before.
	probes := int((oracleBin + int64(s.o.Cadence) - 1) / int64(s.o.Cadence))
	most := probes + (probes+s.o.PairEvery-1)/s.o.PairEvery + 1
	known := map[key]*density{}
	for e := range s.paths {
		for way, load := range s.load {
			k := key{load, s.paths[e].Hops}
			if known[k] == nil {
				known[k] = newDensity(s.o.Noise, load, k.hops)
			}
			o.density[e][way] = known[k]
			for b := range oracleBins {
				o.noise[e][b][way] = make([]float64, 0, most)
			}
		}
	}
	for k := range o.form {
		back := float64(int64(oracleBins-k)*oracleBin-oracleBin/2+s.stampDelay()) / 1e9 // seconds before the end
		o.form[k][0], o.form[k][1] = 1, -back
		for b := range bends {
			// Before bend b, counted back from the end, the rate was another.
			o.form[k][2+b] = max(back-float64(int64(b+1)*tick)/1e9, 0)
		}
	}
	for i := range o.priorInfo {
		o.priorInfo[i] = ridge
		if i >= 2 {
			o.priorInfo[i] += 1 / (wander * wander * float64(tick) / 1e9 * 1e18) // in ns per second
		}
	}
	return o
}

// openWindow empties the bins of the window that ends at end for its samples.
func (o *oracle) openWindow(end int64) {
	for k := (end - window) / oracleBin; k < end/oracleBin; k++ {
		for e := range o.noise {
			for way := range 2 {
				of := &o.noise[e][k%oracleBins][way]
				*of = (*of)[:0]
			}
		}
	}
}

// addSample takes the noise of one sample, ns, that was sent at true time t.
func (o *oracle) addSample(e, way int, t int64, noise float64) {
	of := &o.noise[e][(t+o.s.stampDelay())/oracleBin%oracleBins][way]
	*of = append(*of, noise)
}

// samplesIn of an edge in a bin of the window.
func (o *oracle) samplesIn(e, k int) *[2][]float64 {
	return &o.noise[e][(o.end/oracleBin+int64(k))%oracleBins]
}

// solveWindow returns the error of every clock's offset at the end of the last two seconds, ns, less the mean of the
// clocks that samples join, for the likeliest place and for one step of scoring. It is NaN without samples.
func (o *oracle) solveWindow(end int64) (likeliest, scoring []float64) {
	o.end = end
	joined := newDisjointSets(o.s.o.Clocks)
	for e, p := range o.s.paths {
		for k := range oracleBins {
			if of := o.samplesIn(e, k); len(of[0])+len(of[1]) > 0 {
				joined.joinClocks(p.A, p.B)
				break
			}
		}
	}
	for c := range o.walked {
		for b := range bends {
			o.walked[c][2+b] = o.s.clocks.segmentAt(c, end-int64(b+1)*tick).rateWalk * 1e9
		}
	}
	offsets := func(place []vector) []float64 {
		return joined.centredValues(func(c int) float64 { return place[c][0] })
	}
	scoring = offsets(o.scoringStep())
	place, _, _ := o.climbToPeak()
	return offsets(place), scoring
}

// scoringStep returns the step from the truth that its score and the expected information give.
func (o *oracle) scoringStep() []vector {
	truth := make([]vector, len(o.walked))
	for e := range o.bins {
		o.scoreEdgeAt(e, 0, &[oracleBins]float64{})
		o.expectInformation(e)
	}
	o.assembleSystem(truth)
	o.system.computePreconditioner()
	return o.system.solveStep(solveCloseness)
}

// climbToPeak finds the likeliest place uphill from the truth, by Newton's method with the information that the
// samples themselves have. It also returns by how much likelier that is than the truth, and how much the next step
// would add.
func (o *oracle) climbToPeak() (place []vector, gained, left float64) {
	place, try := make([]vector, len(o.walked)), make([]vector, len(o.walked))
	from := make([]float64, len(o.delays))
	start := o.logLikelihood(place, from)
	here := start
	for range maxClimb {
		o.assembleSystem(place)
		step := o.system.solveStep(closeness)
		if left = dotProduct(o.system.pull, step); left < summit {
			break
		}
		copy(from, o.delays)
		by := 1.0
		for ; by > negligibleStep; by /= 2 {
			for c := range try {
				for i := range unknowns {
					try[c][i] = place[c][i] + by*step[c][i]
				}
			}
			if there := o.logLikelihood(try, from); there > here+1e-4*by*left {
				here = there
				break
			}
		}
		if by <= negligibleStep {
			break
		}
		place, try = try, place
	}
	return place, here - start, left
}

// logLikelihood returns the log-likelihood of the samples at a place with the delays that fit it best, uphill from
// those given.
func (o *oracle) logLikelihood(place []vector, from []float64) float64 {
	sum := 0.0
	for c := range place {
		for i, x := range place[c] {
			x += o.walked[c][i]
			sum -= o.priorInfo[i] * x * x / 2
		}
	}
	for e := range o.bins {
		p := &o.s.paths[e]
		var apart [oracleBins]float64
		for k := range apart {
			for i, x := range o.form[k] {
				apart[k] += x * (place[p.B][i] - place[p.A][i])
			}
		}
		sum += o.settleDelay(e, from[e], &apart)
	}
	return sum
}

// settleDelay finds the likeliest delay of an edge uphill from one, when its clocks
// are so far apart, ns.
func (o *oracle) settleDelay(e int, delay float64, apart *[oracleBins]float64) float64 {
	here, score, info := o.scoreEdgeAt(e, delay, apart)
	for range maxSettle {
		// Newton's step, uphill also where it is not concave, and none that promises
		// more than a unit: samples do not see further than that.
		step := score / max(math.Abs(info), score*score)
		if !(score*step > settled) {
			break
		}
		there := 0.0
		for ; step*step > negligibleStep*negligibleStep; step /= 2 {
			if there, score, info = o.scoreEdgeAt(e, delay+step, apart); there >= here {
				break
			}
		}
		if step*step <= negligibleStep*negligibleStep {
			o.scoreEdgeAt(e, delay, apart)
			break
		}
		here = there
		delay += step
	}
	o.delays[e] = delay
	return here
}

// scoreEdgeAt sums an edge's samples up at a place: the logarithm of how likely they
// are, and score and information of the delay.
func (o *oracle) scoreEdgeAt(e int, delay float64, apart *[oracleBins]float64) (likelihood, score, info float64) {
	for k := range oracleBins {
		b := &o.bins[e][k]
		*b = bin{}
		for way, of := range o.samplesIn(e, k) {
			d, shift := o.density[e][way], delay+apart[k]
			if way == 1 {
				shift = delay - apart[k]
			}
			for _, noise := range of {
				l, s, i := d.evaluateAt(noise - shift)
				likelihood += l
				b.score[way] += s
				b.info[way] += i
			}
			score += b.score[way]
			info += b.info[way]
		}
	}
	return likelihood, score, info
}

// expectInformation replaces the information that an edge's samples have by what as many
// have on average.
func (o *oracle) expectInformation(e int) {
	for k := range oracleBins {
		for way, of := range o.samplesIn(e, k) {
			o.bins[e][k].info[way] = float64(len(of)) * o.density[e][way].info
		}
	}
}

// assembleSystem makes the system for a step from a place that was looked at.
func (o *oracle) assembleSystem(place []vector) {
	o.system.resetTo(&o.priorInfo)
	for c := range place {
		for i, x := range place[c] {
			o.system.pull[c][i] = -o.priorInfo[i] * (x + o.walked[c][i])
		}
	}
	for e := range o.bins {
		o.bondEdge(e)
	}
}

// bondEdge hands the samples of an edge to the system and eliminates its delay.
func (o *oracle) bondEdge(e int) {
	var b bond
	var cross, pull vector // information of the unknowns with the delay; their score
	var info, score float64
	for k := range o.form {
		in := &o.bins[e][k]
		f, r := in.info[0], in.info[1]
		info += f + r
		score += in.score[0] + in.score[1]
		x := &o.form[k]
		for i := range unknowns {
			cross[i] += (f - r) * x[i]
			pull[i] += (in.score[0] - in.score[1]) * x[i]
			for j := range i + 1 {
				b.info[i][j] += (f + r) * x[i] * x[j]
			}
		}
	}
	if info <= 0 {
		return
	}
	for i := range unknowns {
		for j := range i + 1 {
			b.info[i][j] -= cross[i] * cross[j] / info
			b.info[j][i] = b.info[i][j]
		}
		pull[i] -= cross[i] * score / info
	}
	o.system.addEdge(e, &b.info, &pull)
}
