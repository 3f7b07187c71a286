package analyzer

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
)

// minOwnWindows is the number of other windows of a flow that a baseline of its own needs.
const minOwnWindows = 3

// minComparable is the number of comparable flows that a baseline for a flow without one needs.
const minComparable = 4

// maxWindows bounds the windows of one file, since each one takes time.
const maxWindows = 100_000

// Localizer finds the faults in the observations of a file. It evaluates window by window, and returns one verdict
// per fault with the earliest window as its start.
type Localizer struct {
	Graph *fabric.Graph
	// Window is the length of the windows whose observations are judged together.
	Window time.Duration
	// Progress is called with the number of finished windows and of all windows. It may be nil.
	Progress func(done, of int)
}

// BadPath represents an observation whose path crosses a link that the topology does not have, and that no
// swapped cables explain.
type BadPath struct {
	Observation int // index of the observation
	Err         error
}

// LocalizeFaults runs a Localizer without progress reports, and returns its report.
func LocalizeFaults(g *fabric.Graph, obs []*fabric.Observation, window time.Duration) (fabric.Report, error) {
	rep, _, err := Localizer{Graph: g, Window: window}.Run(obs)
	return rep, err
}

// Run returns the report on observations, and the observations with a bad path, which are excluded. It completes
// the observations with baselines and canonical names. It fails with an error that names the NIC or switch if
// the topology does not have one.
func (l Localizer) Run(obs []*fabric.Observation) (fabric.Report, []BadPath, error) {
	if l.Window <= 0 {
		return fabric.Report{}, nil, fmt.Errorf("window %s: want a positive duration", l.Window)
	}
	expected := map[string]bool{}
	for _, o := range obs {
		if err := CheckObservation(l.Graph, o); err != nil {
			return fabric.Report{}, nil, err
		}
		canonicalizeNames(l.Graph, o)
		expected[o.Edge] = true
	}
	if len(obs) == 0 {
		return InferReport(triangulate.NewEngine(l.Graph), &classify.Scene{Graph: l.Graph}, nil, 0), nil, nil
	}
	cabling := classify.CompareCabling(l.Graph, obs)
	obs, bad := separateBadPaths(obs, cabling.OddPaths)
	if len(obs) == 0 {
		return InferReport(triangulate.NewEngine(l.Graph), &classify.Scene{Graph: l.Graph}, nil, 0), bad, nil
	}
	fillBaselines(obs)
	windows := splitWindows(obs, l.Window)
	if len(windows) > maxWindows {
		return fabric.Report{}, nil, fmt.Errorf("the observations span %d windows of %s, want at most %d: use a longer window", len(windows), l.Window, maxWindows)
	}
	step := mostCommonWindow(obs)
	var history *classify.History
	if len(windows) > 1 || len(splitWindows(obs, step)) > 1 {
		history = classify.NewHistory(step)
	}
	out, engine := newMerger(), triangulate.NewEngine(cabling.Graph)
	for i, w := range windows {
		if history != nil {
			addToHistory(history, w, step)
		}
		scene := &classify.Scene{Graph: cabling.Graph, Findings: judge.FindingsOf(combineWindows(w), judge.DefaultParameters()), History: history, First: earliestStart(w)}
		moved := clocks.FindSuspects(scene.Findings)
		distrustDelays(scene.Findings, moved)
		rep := InferReport(engine, scene, moved, len(expected))
		rep.Verdicts = append(rep.Verdicts, scene.StarvedHostVerdicts(rep.Verdicts)...)
		out.addWindow(rep)
		if l.Progress != nil {
			l.Progress(i+1, len(windows))
		}
	}
	rep := out.mergedReport()
	for _, s := range cabling.Swaps {
		rep.Verdicts = append(rep.Verdicts, classify.SwapVerdict(l.Graph, s))
		rep.State = fabric.Suspect
	}
	rep.Edges.Duplicates = countDuplicates(obs)
	sort.SliceStable(rep.Verdicts, func(i, j int) bool { return rep.Verdicts[i].Confidence > rep.Verdicts[j].Confidence })
	return rep, bad, nil
}

// separateBadPaths separates the observations with a bad path from the others.
func separateBadPaths(obs []*fabric.Observation, odd []int) (good []*fabric.Observation, bad []BadPath) {
	if len(odd) == 0 {
		return obs, nil
	}
	wrong := map[int]bool{}
	for _, i := range odd {
		wrong[i] = true
		bad = append(bad, BadPath{i, fmt.Errorf("edge %q: its path %s crosses a link that the topology does not have, and no swapped cables explain it", obs[i].Edge, obs[i].Path.CanonicalKey())})
	}
	for i, o := range obs {
		if !wrong[i] {
			good = append(good, o)
		}
	}
	return good, bad
}

// splitWindows sorts observations into windows by their starts. The first window begins at the earliest start.
func splitWindows(obs []*fabric.Observation, window time.Duration) [][]*fabric.Observation {
	first := earliestStart(obs)
	groups := map[int64][]*fabric.Observation{}
	for _, o := range obs {
		k := int64(o.Start.Sub(first) / window)
		groups[k] = append(groups[k], o)
	}
	out := make([][]*fabric.Observation, 0, len(groups))
	for _, k := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, groups[k])
	}
	return out
}

func earliestStart(obs []*fabric.Observation) time.Time {
	first := obs[0].Start
	for _, o := range obs {
		if o.Start.Before(first) {
			first = o.Start
		}
	}
	return first
}

// mostCommonWindow returns the window length that most observations have.
func mostCommonWindow(obs []*fabric.Observation) time.Duration {
	count := map[int64]int{}
	var most int64
	for _, o := range obs {
		count[o.WindowNS]++
		if n := count[o.WindowNS]; n > count[most] || n == count[most] && o.WindowNS < most {
			most = o.WindowNS
		}
	}
	return time.Duration(most)
}

// addToHistory adds the moments of a window to the history.
func addToHistory(h *classify.History, window []*fabric.Observation, step time.Duration) {
	for _, moment := range splitWindows(window, step) {
		findings := judge.FindingsOf(moment, judge.DefaultParameters())
		distrustDelays(findings, clocks.FindSuspects(findings))
		h.AddMoment(findings)
	}
}

// countDuplicates returns the number of observations beyond the first of a flow and start.
func countDuplicates(obs []*fabric.Observation) int {
	type key struct {
		edge  string
		start int64
	}
	seen := make(map[key]bool, len(obs))
	n := 0
	for _, o := range obs {
		k := key{o.Edge, o.Start.UnixNano()}
		if seen[k] {
			n++
		}
		seen[k] = true
	}
	return n
}

// distrustDelays discards the delays that were measured with a clock that moved.
func distrustDelays(findings []judge.Finding, moved []clocks.Suspect) {
	if len(moved) == 0 {
		return
	}
	by := map[string]bool{}
	for _, s := range moved {
		by[s.NIC] = true
		for _, nic := range s.Others {
			by[nic] = true
		}
	}
	for i := range findings {
		if f := &findings[i]; by[f.Flow.Src] || by[f.Flow.Dst] {
			f.DistrustDelay()
		}
	}
}

// CheckObservation returns an error that names the first element of an observation that the topology lacks, or nil.
func CheckObservation(g *fabric.Graph, o *fabric.Observation) error {
	for _, nic := range []string{o.Src, o.Dst} {
		if g.NIC(nic) == nil {
			return fmt.Errorf("edge %q: the topology has no NIC %q", o.Edge, nic)
		}
	}
	for _, p := range append([]fabric.Path{o.Path}, o.Paths...) {
		for _, h := range p {
			if g.Switch(h.Switch) == nil {
				return fmt.Errorf("edge %q: its path crosses switch %q, which the topology does not have", o.Edge, h.Switch)
			}
		}
	}
	return nil
}

// canonicalizeNames replaces aliases of NICs by their names.
func canonicalizeNames(g *fabric.Graph, o *fabric.Observation) {
	src, dst := g.NIC(o.Src), g.NIC(o.Dst)
	if src.Node+"/"+src.Device == o.Src && dst.Node+"/"+dst.Device == o.Dst {
		return
	}
	e, err := o.ParseFlow()
	if err != nil {
		return // it has no ends, then
	}
	o.Src, o.Dst = src.ID(), dst.ID()
	e.Src, e.Dst = g.NIC(e.Src).ID(), g.NIC(e.Dst).ID()
	o.Edge = e.String()
}

// combineWindows joins consecutive windows of one flow. Windows with the same start are duplicates, and stay
// separate.
func combineWindows(in []*fabric.Observation) []*fabric.Observation {
	var out []*fabric.Observation
	at := map[string]*fabric.Observation{}
	starts := map[string]map[time.Time]bool{}
	for _, o := range in {
		k := o.Edge + "\x00" + o.Timestamp + "\x00" + o.Class + "\x00" + o.Path.CanonicalKey()
		have, ok := at[k]
		if !ok || starts[k][o.Start] {
			c := *o
			if !ok {
				at[k] = &c
				starts[k] = map[time.Time]bool{o.Start: true}
			}
			out = append(out, &c)
			continue
		}
		starts[k][o.Start] = true
		have.WindowNS += o.WindowNS
		have.OWD = blendQuantiles(have.OWD, have.Sent-have.Lost, o.OWD, o.Sent-o.Lost)
		have.Sent += o.Sent
		have.Lost += o.Lost
		have.HostSuspect, have.Unread = have.HostSuspect || o.HostSuspect, have.Unread || o.Unread
		if have.Baseline == nil {
			have.Baseline, have.BaselineMADNS = o.Baseline, o.BaselineMADNS
		}
		if o.ECN != nil {
			n := *o.ECN
			if have.ECN != nil {
				n += *have.ECN
			}
			have.ECN = &n
		}
	}
	return out
}

// blendQuantiles returns the mean of two windows' quantiles, weighted by their probes, and the larger of their extremes.
func blendQuantiles(a *fabric.Quantiles, na uint64, b *fabric.Quantiles, nb uint64) *fabric.Quantiles {
	if a == nil {
		return b
	}
	if b == nil || na+nb == 0 {
		return a
	}
	mix := func(x, y *int64) *int64 {
		if x == nil || y == nil {
			return nil
		}
		v := int64((float64(*x)*float64(na) + float64(*y)*float64(nb)) / float64(na+nb))
		return &v
	}
	pick := func(x, y *int64, less bool) *int64 {
		if x == nil || y == nil {
			return nil
		}
		if (*x < *y) == less {
			return x
		}
		return y
	}
	return &fabric.Quantiles{Min: pick(a.Min, b.Min, true), Mean: mix(a.Mean, b.Mean), P50: mix(a.P50, b.P50),
		P90: mix(a.P90, b.P90), P99: pick(a.P99, b.P99, false), Max: pick(a.Max, b.Max, false)}
}

// fillBaselines sets the baseline of observations that have none. It takes the other windows of the flow, if they
// agree with comparable flows, otherwise comparable flows (same tier, hop count, plane, class and timestamp
// kind).
func fillBaselines(obs []*fabric.Observation) {
	if !slices.ContainsFunc(obs, func(o *fabric.Observation) bool { return o.Baseline == nil && o.OWD != nil }) {
		return
	}
	type alike struct {
		tier, hops              int
		plane, class, timestamp string
	}
	own := map[string][]*fabric.Observation{}
	groups := map[alike][]*fabric.Observation{}
	group := func(o *fabric.Observation) alike {
		return alike{o.Tier, hopCount(o), o.Plane, o.Class, o.Timestamp}
	}
	for _, o := range obs {
		if o.OWD == nil || o.OWD.P50 == nil || o.HostSuspect {
			continue
		}
		own[o.Edge] = append(own[o.Edge], o)
		groups[group(o)] = append(groups[group(o)], o)
	}
	groupBase := map[alike]baselineStats{}
	for k, l := range groups {
		groupBase[k] = baselineOf(l, nil)
	}
	for _, o := range obs {
		if o.Baseline != nil {
			continue
		}
		peers, havePeers := groupBase[group(o)]
		havePeers = havePeers && peers.n >= minComparable
		mine := baselineOf(own[o.Edge], o)
		use := peers
		switch {
		case mine.n >= minOwnWindows && havePeers && mine.p50 <= peers.p50+peers.shiftLimit():
			use = mine
		case mine.n >= minOwnWindows && !havePeers:
			use = mine
		case !havePeers:
			continue
		}
		o.Baseline = &fabric.Quantiles{P50: &use.p50}
		if use.hasP99 {
			o.Baseline.P99 = &use.p99
		}
		o.BaselineMADNS = &use.mad
	}
}

func hopCount(o *fabric.Observation) int {
	if len(o.Path) > 0 {
		return len(o.Path)
	}
	if len(o.Paths) > 0 {
		return len(o.Paths[0])
	}
	return 0
}

type baselineStats struct {
	n             int
	p50, p99, mad int64
	hasP99        bool
}

func (b baselineStats) shiftLimit() int64 {
	s := max(int64(judge.DefaultParameters().FloorKernel), int64(judge.DefaultParameters().ShiftMADs*float64(b.mad)))
	return s
}

// baselineOf returns the median and MAD of the medians of windows, except that of skip.
func baselineOf(obs []*fabric.Observation, skip *fabric.Observation) baselineStats {
	var p50, p99 []int64
	for _, o := range obs {
		if o == skip {
			continue
		}
		p50 = append(p50, *o.OWD.P50)
		if o.OWD.P99 != nil {
			p99 = append(p99, *o.OWD.P99)
		}
	}
	b := baselineStats{n: len(p50)}
	if b.n == 0 {
		return b
	}
	b.p50, b.mad = medianMAD(p50)
	if len(p99) > 0 {
		b.p99, _ = medianMAD(p99)
		b.hasP99 = true
	}
	return b
}

// medianMAD returns the median and the median absolute deviation. It reorders v.
func medianMAD(v []int64) (median, mad int64) {
	if len(v) == 0 {
		return 0, 0
	}
	sort.Slice(v, func(i, j int) bool { return v[i] < v[j] })
	median = v[len(v)/2]
	dev := make([]int64, len(v))
	for i, x := range v {
		dev[i] = max(x-median, median-x)
	}
	sort.Slice(dev, func(i, j int) bool { return dev[i] < dev[j] })
	return median, dev[len(dev)/2]
}
