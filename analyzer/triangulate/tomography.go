package triangulate

import (
	"math"
	"slices"
	"sort"

	"github.com/graylink/graylink/internal/fabric"
)

// What the tomography takes for granted.
const (
	// linkSigmas is how many standard errors a link's flows must be late by, on average,
	// before it is said to add anything; late is the same for one flow.
	linkSigmas, flowSigmas = 4, 3
	// sweeps bounds the descent; it ends when no delay changes by settled, ns.
	sweeps, settled = 60, 20
	// leastNoise is that of a flow's median where all flows agree, ns.
	leastNoise = 50
	// mostUnknowns bounds the systems that are solved to find identifiable delays.
	mostUnknowns = 400
)

// tomography estimates what every crossed direction adds: non-negative, and as few of
// them as the flows' shifts ask for. What wider elements than links and NICs are said
// to add is taken off first; what is named of links is where the descent begins.
//
// A delay is identifiable if a flow that is not late crosses the link, which then adds
// nothing, or if the late flows that cross it and others like it determine it.
type tomography struct {
	e           *Engine
	flows       []*flow
	unexplained []float64 // ns of each flow that nothing explains yet
	noise       float64
	flowsOn     [][]int32 // flows by place
	delays      map[component]float64
}

func (e *Engine) linkDelays(flows []flow, named []*candidate) []LinkDelay {
	t := &tomography{e: e, delays: map[component]float64{}, flowsOn: make([][]int32, e.componentCount()), flows: make([]*flow, 0, len(flows)), unexplained: make([]float64, 0, len(flows))}
	crossed := make([]bool, e.componentCount())
	wide := map[int32]float64{}
	for _, c := range named {
		if c.Kind == fabric.KindLink || c.Kind == fabric.KindNIC {
			for _, p := range c.anyOf {
				t.delays[p] += c.fit.delay
			}
			continue
		}
		// A corridor or a pair is what single links do not explain; they may all the same.
		for _, m := range c.members {
			if m.share >= 1 && c.allOf == nil {
				wide[m.flow] += c.fit.delay
			}
		}
	}
	for i := range flows {
		fl := &flows[i]
		f := fl.finding
		if !f.HasShift || f.RoundTrip || f.ClockSuspect || fl.paths != nil || len(f.Obs.Path) == 0 {
			continue
		}
		t.flows = append(t.flows, fl)
		t.unexplained = append(t.unexplained, float64(f.Shift)-wide[int32(i)])
		for _, p := range fl.crossed {
			crossed[p] = crossed[p] || !e.isSwitch(p)
		}
	}
	t.noise = t.shiftSpread()
	t.listSuspicious()
	t.descendDelays()
	identifiable := t.identifiableDelays()
	var out []LinkDelay
	for p := range crossed {
		if crossed[p] {
			yes, asked := identifiable[component(p)]
			out = append(out, LinkDelay{Direction: e.directionOf(component(p)), AddedDelayNS: int64(math.Round(t.delays[component(p)])), Identifiable: yes || !asked})
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].AddedDelayNS > out[j].AddedDelayNS })
	return out
}

// shiftSpread returns the standard deviation of the shifts of flows that are not late.
func (t *tomography) shiftSpread() float64 {
	dev := make([]float64, 0, len(t.flows))
	for i, fl := range t.flows {
		if f := fl.finding; !f.Delayed {
			dev = append(dev, math.Abs(t.unexplained[i]))
		}
	}
	if len(dev) == 0 {
		return leastNoise
	}
	slices.Sort(dev)
	return max(leastNoise, madToSigma*dev[len(dev)/2])
}

// clipShift bounds what one flow says beyond what is late.
func (t *tomography) clipShift(r float64) float64 { return max(r, -flowSigmas*t.noise) }

// listSuspicious lists the flows of the places that may add something, and takes off what is
// known of them already.
func (t *tomography) listSuspicious() {
	sum, n := make([]float64, len(t.flowsOn)), make([]float64, len(t.flowsOn))
	for i, fl := range t.flows {
		r := t.clipShift(min(t.unexplained[i], 1e3*t.noise))
		for _, p := range fl.crossed {
			sum[p] += r
			n[p]++
		}
	}
	suspicious := make([]bool, len(t.flowsOn))
	for p := range sum {
		if n[p] > 0 && !t.e.isSwitch(component(p)) {
			_, known := t.delays[component(p)]
			suspicious[p] = known || sum[p]/n[p] > linkSigmas*t.noise/math.Sqrt(n[p])
		}
	}
	for i, fl := range t.flows {
		for _, p := range fl.crossed {
			if suspicious[p] {
				t.flowsOn[p] = append(t.flowsOn[p], int32(i))
				t.unexplained[i] -= t.delays[p]
			}
		}
	}
}

// descendDelays moves one delay at a time to where its flows' median is explained, if that is
// more than their noise.
func (t *tomography) descendDelays() {
	var places []component
	for p := range t.flowsOn {
		if len(t.flowsOn[p]) > 0 {
			places = append(places, component(p))
		}
	}
	var left []float64
	for range sweeps {
		moved := 0.0
		// The most delayed first: what it explains others need not.
		slices.SortStableFunc(places, func(a, b component) int {
			switch {
			case t.delays[a] > t.delays[b]:
				return -1
			case t.delays[a] < t.delays[b]:
				return 1
			}
			return int(a - b)
		})
		for _, p := range places {
			left = left[:0]
			for _, i := range t.flowsOn[p] {
				left = append(left, t.unexplained[i]+t.delays[p])
			}
			slices.Sort(left)
			// Other links on the path of a flow can only add delay, so the lower half decides.
			by := left[(len(left)-1)/2]
			if low := left[(len(left)-1)/4]; low < linkSigmas*t.noise/math.Sqrt(float64(len(left))) {
				by = 0
			}
			by = max(by, 0)
			if change := by - t.delays[p]; change != 0 {
				moved = max(moved, math.Abs(change))
				for _, i := range t.flowsOn[p] {
					t.unexplained[i] -= change
				}
				t.delays[p] = by
			}
		}
		if moved < settled {
			return
		}
	}
}

// identifiableDelays reports, for the components that only late flows cross, whether these flows determine what each
// one adds. The rows of the system are the late flows, and its unknowns are these components.
func (t *tomography) identifiableDelays() map[component]bool {
	clear := map[component]bool{}
	var unknowns []component
	for p := range t.flowsOn {
		if len(t.flowsOn[p]) == 0 {
			continue
		}
		free := true
		for _, i := range t.flowsOn[p] {
			free = free && t.linkShift(i) > flowSigmas*t.noise
		}
		if free {
			unknowns = append(unknowns, component(p))
		} else {
			clear[component(p)] = true
		}
	}
	if len(unknowns) == 0 {
		return clear
	}
	if len(unknowns) > mostUnknowns {
		for _, p := range unknowns {
			clear[p] = false // too many to ask: none is called known
		}
		return clear
	}
	column := map[component]int{}
	for i, p := range unknowns {
		column[p] = i
	}
	rows := map[string][]float64{}
	for _, p := range unknowns {
		for _, i := range t.flowsOn[p] {
			row := make([]float64, len(unknowns))
			key := make([]byte, len(unknowns))
			for _, q := range t.flows[i].crossed {
				if c, ok := column[q]; ok {
					row[c], key[c] = 1, 1
				}
			}
			rows[string(key)] = row
		}
	}
	var m [][]float64
	for _, k := range sortedKeys(rows) {
		m = append(m, rows[k])
	}
	pivots := reduceRows(m, len(unknowns))
	for i, p := range unknowns {
		clear[p] = false
		if r := pivots[i]; r >= 0 {
			alone := true
			for c, v := range m[r] {
				alone = alone && (c == i || math.Abs(v) < 1e-9)
			}
			clear[p] = alone
		}
	}
	return clear
}

// linkShift returns a flow's whole shift that links explain.
func (t *tomography) linkShift(i int32) float64 {
	sum := t.unexplained[i]
	for _, p := range t.flows[i].crossed {
		sum += t.delays[p]
	}
	return sum
}

func sortedKeys(m map[string][]float64) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// reduceRows brings a matrix into reduced row echelon form and returns the row of each
// column's pivot, -1 where it has none.
func reduceRows(m [][]float64, columns int) []int {
	pivots := make([]int, columns)
	row := 0
	for c := range columns {
		pivots[c] = -1
		best := row
		for r := row; r < len(m); r++ {
			if math.Abs(m[r][c]) > math.Abs(m[best][c]) {
				best = r
			}
		}
		if row >= len(m) || math.Abs(m[best][c]) < 1e-9 {
			continue
		}
		m[row], m[best] = m[best], m[row]
		scale := m[row][c]
		for k := range m[row] {
			m[row][k] /= scale
		}
		for r := range m {
			if f := m[r][c]; r != row && f != 0 {
				for k := range m[r] {
					m[r][k] -= f * m[row][k]
				}
			}
		}
		pivots[c] = row
		row++
	}
	return pivots
}
