package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// BandwidthRun is one test of bandwidth that the site ran, as its output says.
type BandwidthRun struct {
	// File is where the output was read from.
	File string
	// Test is what was run with all that makes runs alike: program, operation, type, ranks.
	Test string
	// Hosts are those of the ranks, or the NICs that took part, sorted. They may have names that the topology does not have.
	Hosts  []string
	Points []BandwidthPoint
}

// BandwidthPoint is the outcome of a test for one size of messages.
type BandwidthPoint struct {
	SizeBytes      uint64
	BytesPerSecond float64
	// Wrong is the number of wrong values that the test found.
	Wrong uint64
}

// hostNames returns the hosts of a run as one name.
func (r *BandwidthRun) hostNames() string { return strings.Join(r.Hosts, ",") }

// bandwidthResult is one point of a run beside those of runs that are like it.
type bandwidthResult struct {
	run    int
	size   uint64
	value  float64
	middle float64
	of     int
	slow   bool
}

// checkBandwidth makes check A14: whether tests of bandwidth that the site ran are as fast as those that are like them: the same test,
// number of ranks and size.
func checkBandwidth(st *study) Check {
	c := Check{ID: "A14", Title: "Bandwidth among like runs", Status: Pass, Unit: "share below the median",
		Bound: &st.c.Bandwidth.MaxBelow, Of: "runs of nccl-tests or perftest"}
	var runs []int
	for i := range st.e.Runs {
		if slices.ContainsFunc(st.e.Runs[i].Hosts, st.hasHost) || st.scope.isWhole() {
			runs = append(runs, i)
		}
	}
	if c.Population = len(runs); c.Population == 0 {
		return c
	}
	results, few := st.compareRuns()
	slow := map[int]*bandwidthResult{}
	compared := map[int]bool{}
	worst := 0.0
	for i := range results {
		r := &results[i]
		compared[r.run] = true
		below := 1 - r.value/r.middle
		if slices.Contains(runs, r.run) {
			worst = max(worst, below)
		}
		if r.slow && (slow[r.run] == nil || below > 1-slow[r.run].value/slow[r.run].middle) {
			slow[r.run] = r
		}
	}
	c.noteValue(worst)
	named := st.nameSlowHosts(&c, slow, compared)
	for _, i := range runs {
		st.addRun(&c, &st.e.Runs[i], slow[i], compared[i], few[i], named[i])
	}
	c.Text = fmt.Sprintf("%d of %d runs were compared with at least %d like them; %d are slow.", len(compared), len(st.e.Runs),
		st.c.Bandwidth.MinRuns, len(slow))
	return c
}

// addRun adds what was found about a run. A run that a slow host explains has no item of its own.
func (st *study) addRun(c *Check, run *BandwidthRun, slow *bandwidthResult, compared bool, few int, named bool) {
	item := Item{Element: run.hostNames(), Kind: run.Test, Population: few}
	var wrong uint64
	for _, p := range run.Points {
		wrong += p.Wrong
	}
	switch {
	case wrong > 0:
		item.Status, item.Text = Fail, fmt.Sprintf("%d values were wrong (%s).", wrong, run.File)
	case slow != nil && !named:
		below := 1 - slow.value/slow.middle
		item.Status, item.Value, item.Bound, item.Population = Fail, &below, &st.c.Bandwidth.MaxBelow, slow.of
		item.Text = fmt.Sprintf("%s for messages of %d octets; the median of %d runs is %s (%s).", formatBandwidth(slow.value), slow.size,
			slow.of, formatBandwidth(slow.middle), run.File)
	case slow == nil && !compared:
		item.Status = Unknown
		item.Text = fmt.Sprintf("%d runs are like it in test, ranks and size; %d are needed, of at least %.0f octets (%s).", few,
			st.c.Bandwidth.MinRuns, st.c.Bandwidth.MinSizeBytes, run.File)
	default:
		return
	}
	c.addItem(item)
}

// hasHost reports whether a host of a run is a node in the scope, or a NIC in it. The name of a node may have a domain.
func (st *study) hasHost(host string) bool {
	name := st.nameHost(host)
	if fabric.IsNIC(name) {
		return st.scope.hasNIC(name)
	}
	return st.e.Graph.Node(name) != nil && st.scope.hasNode(name)
}

// nameHost returns the name of a host or NIC in the topology, or as it is if that does not have it.
func (st *study) nameHost(host string) string {
	short, _, _ := strings.Cut(host, ".")
	if nic := st.e.Graph.NIC(host); nic != nil {
		return nic.ID()
	}
	if st.e.Graph.Node(host) == nil && st.e.Graph.Node(short) != nil {
		return short
	}
	return host
}

// compareRuns compares the points of all runs with those that are like them. few is the largest number of like runs of each run that
// was compared with none.
func (st *study) compareRuns() (results []bandwidthResult, few map[int]int) {
	type kind struct {
		test string
		size uint64
	}
	kinds := map[kind][]bandwidthResult{}
	for i := range st.e.Runs {
		for _, p := range st.e.Runs[i].Points {
			if float64(p.SizeBytes) >= st.c.Bandwidth.MinSizeBytes && p.BytesPerSecond > 0 {
				k := kind{st.e.Runs[i].Test, p.SizeBytes}
				kinds[k] = append(kinds[k], bandwidthResult{run: i, size: p.SizeBytes, value: p.BytesPerSecond})
			}
		}
	}
	few = map[int]int{}
	for _, k := range slices.SortedFunc(maps.Keys(kinds), func(a, b kind) int {
		return cmp.Or(strings.Compare(a.test, b.test),
			cmp.Compare(a.size, b.size))
	}) {
		members := kinds[k]
		values := make([]float64, len(members))
		for j, m := range members {
			few[m.run] = max(few[m.run], len(members))
			values[j] = m.value
		}
		if len(members) < st.c.Bandwidth.MinRuns {
			continue
		}
		middle, spread := medianAndMAD(values)
		for _, m := range members {
			m.middle, m.of = middle, len(members)
			m.slow = m.value < middle*(1-st.c.Bandwidth.MaxBelow) && middle-m.value > st.c.Bandwidth.OutlierMADs*spread
			results = append(results, m)
		}
	}
	return results, few
}

// nameSlowHosts adds the hosts that explain several slow runs, and returns which runs they explain.
func (st *study) nameSlowHosts(c *Check, slow map[int]*bandwidthResult, compared map[int]bool) (named map[int]bool) {
	numbers := map[string]int32{}
	var hosts []string
	var subjects []subject
	var order []int
	for i := range st.e.Runs {
		if !compared[i] {
			continue
		}
		x := subject{bad: slow[i] != nil}
		for _, h := range st.e.Runs[i].Hosts {
			n, known := numbers[h]
			if !known {
				n = int32(len(hosts))
				numbers[h], hosts = n, append(hosts, h)
			}
			x.crosses = append(x.crosses, n)
		}
		subjects, order = append(subjects, x), append(order, i)
	}
	culprits, explained := explain(subjects, len(hosts))
	named = map[int]bool{}
	for j, i := range order {
		named[i] = explained[j] && subjects[j].bad
	}
	for _, k := range culprits {
		host := hosts[k.direction]
		if !st.scope.isWhole() && !st.hasHost(host) {
			continue
		}
		var below []float64
		for j, i := range order {
			if slow[i] != nil && slices.Contains(subjects[j].crosses, k.direction) {
				below = append(below, 1-slow[i].value/slow[i].middle)
			}
		}
		worst := slices.Max(below)
		item := Item{Element: st.nameHost(host), Kind: "host", Status: Fail, Value: &worst, Bound: &st.c.Bandwidth.MaxBelow, Population: k.all,
			Text: fmt.Sprintf("%d of its %d runs are slow, by %.0f %% at the most.", k.bad, k.all, 100*worst)}
		for _, d := range k.equivalent {
			item.Text += fmt.Sprintf(" All of them had %s as well.", hosts[d])
		}
		c.addItem(item)
	}
	return named
}

// formatBandwidth writes a bandwidth.
func formatBandwidth(bytesPerSecond float64) string {
	return fmt.Sprintf("%.1f Gbit/s", bytesPerSecond*8/1e9)
}
