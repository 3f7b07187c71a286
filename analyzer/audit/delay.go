package audit

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

const second = float64(time.Second)

// delayed is a flow record with its delay beyond that of its kind.
type delayed struct {
	record   int
	residual float64 // nanoseconds
	spread   float64 // of its kind
}

// pathKind returns by what paths are compared: class, kind of timestamps, and the kinds of the links in their order.
func (st *study) pathKind(i int) string {
	f := &st.e.Flows[i]
	var b strings.Builder
	b.WriteString(f.Class + "|" + f.Timestamp)
	for _, d := range st.crosses[i] {
		b.WriteString("|" + st.kindOf(d))
	}
	return b.String()
}

// compareDelays returns the flow records whose delays can be compared with those of their kind.
func (st *study) compareDelays(delays func(*FlowRecord) []int64) (out []delayed) {
	kinds := map[string][]delayed{}
	for i := range st.e.Flows {
		v := delays(&st.e.Flows[i])
		if len(v) == 0 || st.crosses[i] == nil {
			continue
		}
		k := st.pathKind(i)
		kinds[k] = append(kinds[k], delayed{record: i, residual: median(append([]int64(nil), v...))})
	}
	for _, members := range kinds {
		flows := map[fabric.Flow]bool{}
		values := make([]float64, len(members))
		for j, m := range members {
			values[j] = m.residual
			flows[st.e.Flows[m.record].Flow] = true
		}
		if len(flows) < st.c.Delay.MinMembers {
			continue
		}
		middle, spread := medianAndMAD(values)
		for _, m := range members {
			m.residual, m.spread = m.residual-middle, spread
			out = append(out, m)
		}
	}
	return out
}

// checkDelay makes check A4: whether the delay across a link direction is that of its kind, in the median and in the tail.
func checkDelay(st *study) Check {
	limit := st.c.Delay.MaxAdded.Seconds()
	c := Check{ID: "A4", Title: "Delay among links of one kind", Status: Pass, Unit: "seconds", Bound: &limit, Of: "link directions"}
	medians := st.compareDelays(func(f *FlowRecord) []int64 { return f.Medians })
	tails := st.compareDelays(func(f *FlowRecord) []int64 { return f.Tails })
	named := map[int32]bool{}
	explained := st.addDelays(&c, medians, st.c.Delay.MaxAdded, "median", named)
	st.addDelays(&c, tails, st.c.Delay.MaxAddedTail, "99th percentile", named)
	st.judgeDelays(&c, medians, explained, named)
	if c.Population > 0 {
		c.Text = fmt.Sprintf("%d flows on paths of %d kinds were compared with the median of their kind.", len(medians), st.countKinds(medians))
	}
	return c
}

func (st *study) countKinds(in []delayed) int {
	kinds := map[string]bool{}
	for _, m := range in {
		kinds[st.pathKind(m.record)] = true
	}
	return len(kinds)
}

// isDelayed reports whether the delay of a flow is above that of its kind by more than a limit and what its clocks explain.
func (st *study) isDelayed(m delayed, limit time.Duration) bool {
	bound := st.e.Flows[m.record].ClockErrorNS
	return bound != nil && m.residual-float64(*bound) > float64(limit) && m.residual > st.c.Delay.OutlierMADs*m.spread
}

// addDelays adds the directions that add delay to their flows, and returns which flows they explain. Directions in named are
// added before.
func (st *study) addDelays(c *Check, members []delayed, limit time.Duration, what string, named map[int32]bool) (explained []bool) {
	subjects := make([]subject, len(members))
	for j, m := range members {
		subjects[j] = subject{crosses: st.crosses[m.record], bad: st.isDelayed(m, limit)}
	}
	culprits, explained := explain(subjects, len(st.directions))
	for _, k := range culprits {
		if named[k.direction] {
			continue
		}
		named[k.direction] = true
		if !st.inScope(k.direction) {
			continue
		}
		i := st.newItem(k.direction, Fail)
		added, bound := st.addedBy(members, k.direction)/second, limit.Seconds()
		c.noteValue(added)
		i.Value, i.Bound, i.Population, i.Equivalent = &added, &bound, k.all, st.linkIDs(k.equivalent)
		i.Text = fmt.Sprintf("The %s of %d of %d flows is above that of their kind, by %s in the median of them.", what, k.bad, k.all, formatNS(added*second))
		c.addItem(i)
	}
	left := 0
	for j := range subjects {
		if subjects[j].bad && !explained[j] {
			left++
		}
	}
	if left > 0 {
		c.addItem(Item{Element: "flows that no link explains", Kind: "flows", Status: Warn, Population: left, Text: fmt.Sprintf("The %s of %d flows is above that of their kind, and no link direction is common to them.", what, left)})
	}
	return explained
}

// addedBy returns the median delay beyond that of their kinds of the flows that cross a direction.
func (st *study) addedBy(members []delayed, direction int32) float64 {
	var v []float64
	for _, m := range members {
		for _, d := range st.crosses[m.record] {
			if d == direction {
				v = append(v, m.residual)
			}
		}
	}
	return median(v)
}

// judgeDelays counts the directions that are as they should be, and adds those of which nothing is known.
func (st *study) judgeDelays(c *Check, members []delayed, explained []bool, named map[int32]bool) {
	residuals := make([][]float64, len(st.directions))
	for j, m := range members {
		if explained[j] || st.e.Flows[m.record].ClockErrorNS == nil {
			continue
		}
		for _, d := range st.crosses[m.record] {
			residuals[d] = append(residuals[d], m.residual)
		}
	}
	for d := range int32(len(st.directions)) {
		if !st.inScope(d) || st.choices.used[d] == 0 {
			continue
		}
		c.Population++
		switch {
		case named[d]:
		case len(residuals[d]) == 0:
			i := st.newItem(d, Unknown)
			i.Population = st.choices.used[d]
			i.Text = "No flow across it has delays with a bound of their error, enough paths of its kind to compare with, and no other link at fault."
			c.addItem(i)
		default:
			c.noteValue(max(0, median(residuals[d])) / second)
		}
	}
}

// checkAsymmetry makes check A5: whether both directions of a link add as much to the delays of their flows, beyond what the bounds of the
// clocks and their allowance explain.
func checkAsymmetry(st *study) Check {
	limit := st.c.Asymmetry.MaxDifference.Seconds()
	c := Check{ID: "A5", Title: "Symmetry of directions", Status: Pass, Unit: "seconds", Bound: &limit, Of: "links that flows cross in both directions"}
	added := st.addedByDirection()
	worstClock := 0.0
	for d := range int32(len(st.directions)) {
		x := st.directions[d]
		back, known := st.numbers[x.Reverse()]
		if !known || d > back || !st.inScope(d) || len(added[d].residuals) == 0 || len(added[back].residuals) == 0 {
			continue
		}
		c.Population++
		difference, clock := added[d].middle()-added[back].middle(), added[d].clock+added[back].clock
		worstClock = max(worstClock, clock)
		beyond := max(0, math.Abs(difference)-clock)
		c.noteValue(beyond / second)
		if beyond <= float64(st.c.Asymmetry.MaxDifference) {
			continue
		}
		slow := d
		if difference < 0 {
			slow = back
		}
		i := st.newItem(slow, Fail)
		value := math.Abs(difference) / second
		i.Value, i.Bound, i.Population, i.Equivalent = &value, &limit, len(added[d].residuals)+len(added[back].residuals), added[slow].equivalent
		i.Text = fmt.Sprintf("It adds %s more this way than back; the clocks explain up to %s.", formatNS(math.Abs(difference)), formatNS(clock))
		c.addItem(i)
	}
	if c.Population > 0 {
		c.Text = fmt.Sprintf("Clocks explain differences of up to %s.", formatNS(worstClock))
	}
	return c
}

// addition is what a direction adds to the delays of the flows that cross it.
type addition struct {
	residuals  []float64
	clock      float64 // largest bound of their error
	equivalent []string
}

func (a *addition) middle() float64 { return median(a.residuals) }

// addedByDirection returns what each direction adds to its flows beyond others of their kind. Flows that cross a direction with
// much added delay are left out of the other directions, so that they show no asymmetry there.
func (st *study) addedByDirection() []addition {
	members := st.compareDelays(func(f *FlowRecord) []int64 { return f.Medians })
	subjects := make([]subject, len(members))
	for j, m := range members {
		subjects[j] = subject{crosses: st.crosses[m.record], bad: st.isDelayed(m, st.c.Asymmetry.MaxDifference)}
	}
	culprits, explained := explain(subjects, len(st.directions))
	out := make([]addition, len(st.directions))
	slow := map[int32]bool{}
	for _, k := range culprits {
		slow[k.direction] = true
		out[k.direction].equivalent = st.linkIDs(k.equivalent)
	}
	for j, m := range members {
		f := &st.e.Flows[m.record]
		if f.ClockErrorNS == nil {
			continue
		}
		for _, d := range st.crosses[m.record] {
			if explained[j] && !slow[d] {
				continue
			}
			out[d].residuals = append(out[d].residuals, m.residual)
			out[d].clock = max(out[d].clock, float64(*f.ClockErrorNS))
		}
	}
	return out
}
