package triangulate

import (
	"math"
	"slices"
	"sort"

	"github.com/graylink/graylink/internal/fabric"
)

// What the tomography takes for granted.
const (
	// surely is how many standard errors a link's flows must be late by, on average,
	// before it is said to add anything; late is the same for one flow.
	surely, late = 4, 3
	// sweeps bounds the descent; it ends when no delay changes by settled, ns.
	sweeps, settled = 60, 20
	// leastNoise is that of a flow's median where all flows agree, ns.
	leastNoise = 50
	// mostUnknowns bounds the systems that are solved for who can be told apart.
	mostUnknowns = 400
)

// tomography estimates what every crossed direction adds: non-negative, and as few of
// them as the flows' shifts ask for. What wider elements than links and NICs are said
// to add is taken off first; what is named of links is where the descent begins.
//
// A delay is identifiable if a flow that is not late crosses the link, which then adds
// nothing, or if the late flows that cross it and others like it determine it.
type tomography struct {
	e     *Engine
	flows []*flow
	rest  []float64 // ns of each flow that nothing explains yet
	noise float64
	on    [][]int32 // flows by place
	x     map[place]float64
}

func (e *Engine) linkDelays(flows []flow, named []*candidate) []LinkDelay {
	t := &tomography{e: e, x: map[place]float64{}, on: make([][]int32, e.places()), flows: make([]*flow, 0, len(flows)), rest: make([]float64, 0, len(flows))}
	crossed := make([]bool, e.places())
	wide := map[int32]float64{}
	for _, c := range named {
		if c.Kind == fabric.KindLink || c.Kind == fabric.KindNIC {
			for _, p := range c.any {
				t.x[p] += c.fit.delay
			}
			continue
		}
		// A corridor or a pair is what single links do not explain; they may all the same.
		for _, m := range c.members {
			if m.share >= 1 && c.all == nil {
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
		t.rest = append(t.rest, float64(f.Shift)-wide[int32(i)])
		for _, p := range fl.at {
			crossed[p] = crossed[p] || !e.isSwitch(p)
		}
	}
	t.noise = t.spread()
	t.gather()
	t.descend()
	told := t.identifiable()
	var out []LinkDelay
	for p := range crossed {
		if crossed[p] {
			yes, asked := told[place(p)]
			out = append(out, LinkDelay{Direction: e.direction(place(p)), AddedDelayNS: int64(math.Round(t.x[place(p)])), Identifiable: yes || !asked})
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].AddedDelayNS > out[j].AddedDelayNS })
	return out
}

// spread is the standard deviation of the shifts of flows that are not late.
func (t *tomography) spread() float64 {
	dev := make([]float64, 0, len(t.flows))
	for i, fl := range t.flows {
		if f := fl.finding; !f.Delayed {
			dev = append(dev, math.Abs(t.rest[i]))
		}
	}
	if len(dev) == 0 {
		return leastNoise
	}
	slices.Sort(dev)
	const madToSigma = 1.4826
	return max(leastNoise, madToSigma*dev[len(dev)/2])
}

// clipped bounds what one flow says beyond what is late.
func (t *tomography) clipped(r float64) float64 { return max(r, -late*t.noise) }

// gather lists the flows of the places that may add something, and takes off what is
// known of them already.
func (t *tomography) gather() {
	sum, n := make([]float64, len(t.on)), make([]float64, len(t.on))
	for i, fl := range t.flows {
		r := t.clipped(min(t.rest[i], 1e3*t.noise))
		for _, p := range fl.at {
			sum[p] += r
			n[p]++
		}
	}
	suspicious := make([]bool, len(t.on))
	for p := range sum {
		if n[p] > 0 && !t.e.isSwitch(place(p)) {
			_, known := t.x[place(p)]
			suspicious[p] = known || sum[p]/n[p] > surely*t.noise/math.Sqrt(n[p])
		}
	}
	for i, fl := range t.flows {
		for _, p := range fl.at {
			if suspicious[p] {
				t.on[p] = append(t.on[p], int32(i))
				t.rest[i] -= t.x[p]
			}
		}
	}
}

// descend moves one delay at a time to where its flows' median is explained, if that is
// more than their noise.
func (t *tomography) descend() {
	var places []place
	for p := range t.on {
		if len(t.on[p]) > 0 {
			places = append(places, place(p))
		}
	}
	var left []float64
	for range sweeps {
		moved := 0.0
		// The most delayed first: what it explains others need not.
		slices.SortStableFunc(places, func(a, b place) int {
			switch {
			case t.x[a] > t.x[b]:
				return -1
			case t.x[a] < t.x[b]:
				return 1
			}
			return int(a - b)
		})
		for _, p := range places {
			left = left[:0]
			for _, i := range t.on[p] {
				left = append(left, t.rest[i]+t.x[p])
			}
			slices.Sort(left)
			// Others on the way of a flow may only add: the lower half tells.
			by := left[(len(left)-1)/2]
			if low := left[(len(left)-1)/4]; low < surely*t.noise/math.Sqrt(float64(len(left))) {
				by = 0
			}
			by = max(by, 0)
			if change := by - t.x[p]; change != 0 {
				moved = max(moved, math.Abs(change))
				for _, i := range t.on[p] {
					t.rest[i] -= change
				}
				t.x[p] = by
			}
		}
		if moved < settled {
			return
		}
	}
}

// identifiable tells of the places that only late flows cross whether these determine
// what each adds. The rows of the system are the late flows, its unknowns those places.
func (t *tomography) identifiable() map[place]bool {
	clear := map[place]bool{}
	var unknowns []place
	for p := range t.on {
		if len(t.on[p]) == 0 {
			continue
		}
		free := true
		for _, i := range t.on[p] {
			free = free && t.total(i) > late*t.noise
		}
		if free {
			unknowns = append(unknowns, place(p))
		} else {
			clear[place(p)] = true
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
	column := map[place]int{}
	for i, p := range unknowns {
		column[p] = i
	}
	rows := map[string][]float64{}
	for _, p := range unknowns {
		for _, i := range t.on[p] {
			row := make([]float64, len(unknowns))
			key := make([]byte, len(unknowns))
			for _, q := range t.flows[i].at {
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

// total is a flow's whole shift that links explain.
func (t *tomography) total(i int32) float64 {
	sum := t.rest[i]
	for _, p := range t.flows[i].at {
		sum += t.x[p]
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
