package triangulate

import (
	"cmp"
	"math"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// What the search for small shifts takes for granted.
const (
	// shiftErrors is how many of its standard errors a small shift must exceed to be named.
	shiftErrors = 6
	// mostShifts bounds how many are named, and shiftTries how many places are looked at closely for each.
	mostShifts, shiftTries = 8, 12
	// leastShiftFlows is the least number of flows that show a shift, and leastOthers the least number of flows beside
	// the place that each of their NICs must have.
	leastShiftFlows, leastOthers = 4, 2
	// mostCrossed is the divisor of the share of flows that must avoid a place.
	mostCrossed = 4
	// fasterShare is the divisor of the share of a delay by which the NICs of its flows may seem to be faster.
	fasterShare = 4
	// polishRounds is the number of sweeps in which the effects of NICs are estimated.
	polishRounds = 4
	// bucketWidth is the width of a bucket of the histograms, as a share of the delay.
	bucketWidth = 0.045
	// madToSigma turns a median absolute deviation into a standard deviation, and medianError is the variance of a
	// median against that of a mean, both of a normal distribution.
	madToSigma, medianError = 1.4826, math.Pi / 2
)

// leastShift returns the smallest shift that is named, in nanoseconds: an eighth of the floor for single flows. Less differs
// between paths for reasons that concern nothing.
func leastShift(stamps string) float64 {
	switch stamps {
	case "hardware":
		return 125
	case "user":
		return 25_000
	}
	return 1250
}

// hostNoise returns what a busy host and the error of its clock add to all flows of a NIC at most, by the time stamps, in
// nanoseconds: two and a half times the floor for single flows, a little more than that for a program's own stamps.
func hostNoise(stamps string) float64 {
	switch stamps {
	case "hardware":
		return 2500
	case "user":
		return 250_000
	}
	return 25_000
}

// shifts searches links and switches that add a delay too small to be seen on a single flow. A flow's shift is what its
// sender adds, what its receiver adds, and what the places on its path add. Noise of a host, and an error of its clock,
// are on all flows of a NIC in one direction, so that flows of the same NICs that go elsewhere take them off; a place
// that all flows of its NICs cross cannot be distinguished from the NICs, and is never named. The errors come from how much
// the flows of this window differ.
//
// Where packets take several paths in turn, a place moves the mean by its share of what it adds, and the median hardly. The means of
// all flows are compared then.
type shifts struct {
	e      *Engine
	rows   []shiftRow
	nics   int
	places []component // those that enough flows cross
	rowsOn map[component][]int32
	means  bool // shifts are those of means
	// shares are sums of the shares of packets by place, where these are less than all.
	shares map[component]float64
	// between is the number of rows between leaves.
	between int
}

// shiftRow is a flow with a known path that crosses nothing named.
type shiftRow struct {
	flow     int32
	src, dst int32
	shift    float64 // ns, without what was found
	owd      float64 // ns
	least    float64 // ns, that is named
	crossed  []component
}

// placeShift is what a place adds by the flows that cross it.
type placeShift struct {
	at       component
	by, err  float64 // ns
	left     map[int32]float64
	sameRows uint64
	byNICs   float64 // ns: what is left for NICs to explain beside it
}

func (p *placeShift) errors() float64 { return math.Abs(p.by) / p.err }

// smallShifts names places that add a small delay, where nothing else is named.
func (s *search) smallShifts() []Suspect {
	t := s.shiftRows()
	var out []Suspect
	for range mostShifts {
		best, rivals := t.findShift()
		if best == nil {
			break
		}
		for i := range best.left {
			t.rows[i].shift -= best.by
		}
		if best.by > 0 { // a place that became faster only takes its share off
			out = append(out, t.suspectOf(s, best, rivals))
		}
	}
	return out
}

// shiftRows lists the flows that can show a small shift, and the places that they cross.
func (s *search) shiftRows() *shifts {
	t := &shifts{e: s.e, rowsOn: map[component][]int32{}, shares: map[component]float64{}}
	t.means = slices.ContainsFunc(s.flows, func(fl flow) bool { return fl.mixed() && hasMeans(fl.finding.Obs) })
	nics := map[string]int32{}
	number := func(nic string) int32 {
		n, ok := nics[nic]
		if !ok {
			n = int32(len(nics))
			nics[nic] = n
		}
		return n
	}
	for i := range s.flows {
		fl := &s.flows[i]
		f := fl.finding
		shift, ok := t.shiftOf(fl)
		if !ok || !f.HasShift || f.RoundTrip || f.ClockSuspect || f.HostSuspect || f.Lossy || fl.load != (load{}) || fl.partial != nil {
			continue
		}
		src, dst := f.Flow.Endpoints()
		row := shiftRow{flow: int32(i), src: number(src), dst: number(dst), shift: shift, least: leastShift(f.Obs.Timestamp), crossed: fl.crossed}
		if b := f.Obs.Baseline; b != nil && b.P50 != nil && !t.means { // the mean is that of packets and not of buckets
			row.owd = math.Abs(float64(*b.P50))
		}
		if fl.mixed() {
			row.crossed = slices.Concat(fl.crossed, fl.paths.at)
			for i, p := range fl.paths.at {
				t.shares[p] += fl.paths.share[i] - 1
			}
		}
		for _, p := range row.crossed {
			if !s.e.onAccessLink(p) {
				t.rowsOn[p] = append(t.rowsOn[p], int32(len(t.rows)))
			}
		}
		t.rows = append(t.rows, row)
	}
	t.nics = len(nics)
	for i := range t.rows {
		if len(t.rows[i].crossed) > 3 { // two access links and a leaf
			t.between++
		}
	}
	for p, rows := range t.rowsOn {
		if len(rows) >= leastShiftFlows {
			t.places = append(t.places, p)
		}
	}
	slices.Sort(t.places)
	return t
}

// shiftOf returns by how much a flow's delay moved. It reports false if the flow has no known path, and none that its packets share.
func (t *shifts) shiftOf(fl *flow) (shift float64, ok bool) {
	o := fl.finding.Obs
	known := fl.paths == nil && len(o.Path) > 0
	if !t.means {
		return float64(fl.finding.Shift), known
	}
	if oneWay := fl.paths == nil && o.Sprayed; !known && !oneWay && !fl.mixed() || !hasMeans(o) {
		return 0, false
	}
	return float64(*o.OWD.Mean - *o.Baseline.Mean), true
}

// hasMeans reports whether the mean delay of a window and that of its baseline are known.
func hasMeans(o *fabric.Observation) bool {
	return o.OWD != nil && o.Baseline != nil && o.OWD.Mean != nil && o.Baseline.Mean != nil
}

// packetShare returns the share of the packets of flows through a place that cross it.
func (t *shifts) packetShare(p component) float64 {
	return 1 + t.shares[p]/float64(max(1, len(t.rowsOn[p])))
}

// nicEffects are what senders and receivers add, and how many flows say so.
type nicEffects struct{ sent, received []nicEffect }

type nicEffect struct {
	by float64
	of int
}

// estimateNICs estimates what NICs add by the median polish of Tukey, Exploratory Data Analysis, 1977, without the
// rows that without reports.
func (t *shifts) estimateNICs(without []bool) nicEffects {
	x := nicEffects{make([]nicEffect, t.nics), make([]nicEffect, t.nics)}
	bySrc, byDst := make([][]int32, t.nics), make([][]int32, t.nics)
	for i := range t.rows {
		if without == nil || !without[i] {
			bySrc[t.rows[i].src] = append(bySrc[t.rows[i].src], int32(i))
			byDst[t.rows[i].dst] = append(byDst[t.rows[i].dst], int32(i))
		}
	}
	var left []float64
	for range polishRounds {
		for n, rows := range bySrc {
			left = left[:0]
			for _, i := range rows {
				left = append(left, t.rows[i].shift-x.received[t.rows[i].dst].by)
			}
			x.sent[n] = nicEffect{medianFloat(left), len(rows)}
		}
		for n, rows := range byDst {
			left = left[:0]
			for _, i := range rows {
				left = append(left, t.rows[i].shift-x.sent[t.rows[i].src].by)
			}
			x.received[n] = nicEffect{medianFloat(left), len(rows)}
		}
	}
	return x
}

// fasterThan reports whether most of some senders, or of some receivers, add less than a negative value. Hosts add noise and
// take none away, so it is what their flows cross elsewhere that became faster, and not a place that they have in common
// that became slower. Noise of all receivers may have been counted as that of senders: a quarter of the receivers adds nothing.
func (x *nicEffects) fasterThan(by float64, from, to map[int32]bool) bool {
	var sent, received, all []float64
	for n, r := range x.received {
		if r.of > 0 {
			all = append(all, r.by)
		}
		if to[int32(n)] {
			received = append(received, r.by)
		}
		if from[int32(n)] {
			sent = append(sent, x.sent[n].by)
		}
	}
	slices.Sort(all)
	least := all[len(all)/4]
	return medianFloat(sent)+least < by || medianFloat(received)-least < by
}

func (x *nicEffects) leftOf(r *shiftRow) float64 {
	return r.shift - x.sent[r.src].by - x.received[r.dst].by
}

// noiseOf returns the standard deviation of single flows beside the effects of their NICs. It reports false if the NICs
// have too few flows.
func (t *shifts) noiseOf(x *nicEffects, without []bool) (sigma float64, ok bool) {
	var dev []float64
	for i := range t.rows {
		r := &t.rows[i]
		if without != nil && without[i] || x.sent[r.src].of < leastOthers || x.received[r.dst].of < leastOthers {
			continue
		}
		// Each of the two effects was fitted to the flow as well.
		free := (1 - 1/float64(x.sent[r.src].of)) * (1 - 1/float64(x.received[r.dst].of))
		dev = append(dev, math.Abs(x.leftOf(r))/math.Sqrt(free))
	}
	if len(dev) < leastShiftFlows {
		return 0, false
	}
	// The medians make some residuals 0; those say nothing of the noise.
	dev = slices.DeleteFunc(dev, func(d float64) bool { return d == 0 })
	return max(leastNoise, madToSigma*medianFloat(dev)), true
}

// findShift returns the place whose shift exceeds its error the most, of those that exceed it enough, and the others
// that were looked at.
func (t *shifts) findShift() (best *placeShift, looked []*placeShift) {
	if len(t.places) == 0 {
		return nil, nil
	}
	x := t.estimateNICs(nil)
	sigma, ok := t.noiseOf(&x, nil)
	if !ok {
		return nil, nil
	}
	scores := t.scorePlaces(&x, sigma)
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	const unlikely = 2.5
	for _, i := range order[:min(len(order), shiftTries)] {
		if scores[i] < unlikely {
			break
		}
		if c := t.measurePlace(t.places[i]); c != nil {
			var common float64
			common, c.byNICs = t.withoutPlace(c)
			c.err *= common
			looked = append(looked, c)
		}
	}
	better := func(c *placeShift) bool {
		return best == nil || c.errors() > best.errors() || c.sameRows == best.sameRows && t.e.isSwitch(best.at) && !t.e.isSwitch(c.at)
	}
	for _, c := range looked {
		if c.errors() >= shiftErrors && better(c) {
			best = c
		}
	}
	// Where the flows of some NICs have two ways, one that became slower looks like one that became faster with these NICs
	// slower. The explanation that leaves less to NICs is the right one. One that leaves less than half to them needs no more
	// than half of the evidence, because one of the two has moved for certain.
	if first := best; first != nil {
		enough := func(c *placeShift) bool {
			return c.errors() >= shiftErrors && c.byNICs < first.byNICs || c.errors() >= shiftErrors/2 && 2*c.byNICs < first.byNICs
		}
		for _, c := range looked {
			if c.by*first.by < 0 && enough(c) && (best == first || better(c)) {
				best = c
			}
		}
	}
	// What nearly all flows between leaves cross cannot be distinguished from what they have in common. Where it would leave
	// less to NICs than the place that was found, that one is not named either.
	for _, c := range looked {
		if best != nil && c.byNICs <= best.byNICs && c.errors() >= shiftErrors/2 && len(t.rowsOn[c.at])*mostCrossed > t.between*(mostCrossed-1) {
			return nil, nil
		}
	}
	return best, looked
}

// scorePlaces returns how unlikely the shifts of the flows through each place are, by the noise of single flows.
func (t *shifts) scorePlaces(x *nicEffects, sigma float64) []float64 {
	scores := make([]float64, len(t.places))
	for i, p := range t.places {
		sum := 0.0
		for _, r := range t.rowsOn[p] {
			sum += max(-4*sigma, min(x.leftOf(&t.rows[r]), 4*sigma))
		}
		scores[i] = math.Abs(sum) / (sigma * math.Sqrt(float64(len(t.rowsOn[p]))))
	}
	return scores
}

// withoutPlace takes off what one place adds. It returns by how much more places then differ than the noise of single flows
// explains, which is noise that flows have in common beyond that of their NICs, and what is left for the NICs, in
// nanoseconds. In a small fabric most places share flows with the one at fault, and would seem to be noisy with it.
func (t *shifts) withoutPlace(c *placeShift) (common, byNICs float64) {
	through := t.rowsOn[c.at]
	for _, i := range through {
		t.rows[i].shift -= c.by
	}
	defer func() {
		for _, i := range through {
			t.rows[i].shift += c.by
		}
	}()
	x := t.estimateNICs(nil)
	for n := range x.sent {
		byNICs += math.Abs(x.sent[n].by) + math.Abs(x.received[n].by)
	}
	sigma, ok := t.noiseOf(&x, nil)
	if !ok {
		return 1, byNICs
	}
	// The median of the absolute value of a standard normal variable is 1/madToSigma.
	return max(1, madToSigma*medianFloat(t.scorePlaces(&x, sigma))), byNICs
}

// measurePlace estimates what a place adds. The effects of NICs come from flows that do not cross it.
func (t *shifts) measurePlace(p component) *placeShift {
	through := make([]bool, len(t.rows))
	for _, i := range t.rowsOn[p] {
		through[i] = true
	}
	x := t.estimateNICs(through)
	sigma, ok := t.noiseOf(&x, through)
	if !ok {
		return nil
	}
	c := &placeShift{at: p, left: map[int32]float64{}}
	var left []float64
	var owd []float64
	least := 0.0
	from, to := map[int32]bool{}, map[int32]bool{}
	for _, i := range t.rowsOn[p] {
		r := &t.rows[i]
		if x.sent[r.src].of < leastOthers || x.received[r.dst].of < leastOthers {
			continue
		}
		d := x.leftOf(r)
		c.left[i] = d
		c.sameRows += mixBits(uint64(i) + 1)
		left, owd = append(left, d), append(owd, r.owd)
		least = max(least, r.least)
		from[r.src], to[r.dst] = true, true
	}
	if len(left) < leastShiftFlows || len(from) < 2 || len(to) < 2 {
		return nil
	}
	c.by = medianFloat(left)
	dev := make([]float64, len(left))
	agree := 0
	for i, d := range left {
		dev[i] = math.Abs(d - c.by)
		if d*c.by > 0 && math.Abs(d) > math.Abs(c.by)/4 {
			agree++
		}
	}
	own := max(sigma, madToSigma*medianFloat(dev))
	// The errors of the NICs' effects are common to the flows of a NIC.
	byNICs := 0.0
	for n := range from {
		byNICs += 1 / float64(x.sent[n].of) / float64(len(from)*len(from))
	}
	for n := range to {
		byNICs += 1 / float64(x.received[n].of) / float64(len(to)*len(to))
	}
	c.err = math.Sqrt(medianError * (own*own/float64(len(left)) + sigma*sigma*byNICs))
	if c.by > 0 && x.fasterThan(-c.by/fasterShare, from, to) {
		return nil
	}
	if agree*4 < len(left)*3 || math.Abs(c.by) < max(least, bucketWidth*medianFloat(owd)) {
		return nil
	}
	return c
}

// suspectOf describes a shift that is named.
func (t *shifts) suspectOf(s *search, c *placeShift, looked []*placeShift) Suspect {
	out := Suspect{Element: t.e.elementAt(c.at), Small: true, Gain: c.errors() * c.errors() / 2}
	out.AddedDelayNS = int64(math.Round(c.by / t.packetShare(c.at)))
	out.Equivalent = s.bundled(&candidate{Element: out.Element, anyOf: []component{c.at}})
	rest := float64(len(t.places)) * math.Exp(-out.Gain)
	for _, r := range looked {
		switch {
		case r == c:
		case r.sameRows == c.sameRows:
			out.Equivalent = append(out.Equivalent, t.e.elementAt(r.at))
			out.Equivalent = append(out.Equivalent, s.bundled(&candidate{Element: t.e.elementAt(r.at), anyOf: []component{r.at}})...)
		case overlaps(r, c):
			rest += math.Exp(min(0, r.errors()*r.errors()/2-out.Gain))
		}
	}
	out.Confidence = 1 / (1 + rest)
	for i, d := range c.left {
		at := int(s.flows[t.rows[i].flow].index)
		if d > c.by/2 {
			out.Explained = append(out.Explained, at)
		} else {
			out.Contrary = append(out.Contrary, at)
		}
	}
	slices.Sort(out.Explained)
	slices.Sort(out.Contrary)
	return out
}

func overlaps(a, b *placeShift) bool {
	for i := range a.left {
		if _, yes := b.left[i]; yes {
			return true
		}
	}
	return false
}

// medianFloat returns the median of values, which it reorders, and 0 if there are none.
func medianFloat(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
