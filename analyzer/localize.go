package analyzer

import (
	"fmt"
	"sort"
	"time"

	"github.com/graylink/graylink/analyzer/clocks"
	"github.com/graylink/graylink/analyzer/judge"
	"github.com/graylink/graylink/internal/fabric"
)

// minOwnWindows is how many other windows of a flow make a baseline of its own.
const minOwnWindows = 3

// minComparable is how many comparable flows make a baseline for one that has none.
const minComparable = 4

// Localize explains a file's observations: window by window, then one verdict
// per element, with the earliest window as its start. Flows named in the
// topology's terms only; an unknown NIC or switch is an error naming it.
func Localize(g *fabric.Graph, obs []*fabric.Observation, window time.Duration) (fabric.Report, error) {
	if window <= 0 {
		return fabric.Report{}, fmt.Errorf("window %s: a positive duration is expected", window)
	}
	expected := map[string]bool{}
	groups := map[int64][]*fabric.Observation{}
	for _, o := range obs {
		if err := CheckObservation(g, o); err != nil {
			return fabric.Report{}, err
		}
		expected[o.Edge] = true
		k := o.Start.UnixNano() / int64(window)
		groups[k] = append(groups[k], o)
	}
	fillBaselines(obs)
	var keys []int64
	for k := range groups {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i] < keys[j] })
	if len(keys) == 0 {
		return Infer(g, nil, nil, 0, time.Time{}), nil
	}
	var out fabric.Report
	best := map[fabric.Element]int{}
	for i, k := range keys {
		findings := judge.All(combine(groups[k]), judge.Defaults())
		first := groups[k][0].Start
		for _, o := range groups[k] {
			if o.Start.Before(first) {
				first = o.Start
			}
		}
		moved := clocks.Find(findings)
		distrust(findings, moved)
		rep := Infer(g, findings, moved, len(expected), first)
		if i == 0 {
			out = rep
			for j, v := range rep.Verdicts {
				best[v.Element] = j
			}
			continue
		}
		out = merge(out, rep, best)
	}
	sort.SliceStable(out.Verdicts, func(i, j int) bool { return out.Verdicts[i].Confidence > out.Verdicts[j].Confidence })
	return out, nil
}

// distrust takes the delays back that were measured by a clock that moved.
func distrust(findings []judge.Finding, moved []clocks.Suspect) {
	by := map[string]bool{}
	for _, s := range moved {
		by[s.NIC] = true
		for _, nic := range s.Others {
			by[nic] = true
		}
	}
	for i := range findings {
		if f := &findings[i]; by[f.Edge.Src] || by[f.Edge.Dst] {
			f.Distrust()
		}
	}
}

// merge adds a later window's report: verdicts on an element already named
// keep their start and take the stronger evidence.
func merge(out, rep fabric.Report, best map[fabric.Element]int) fabric.Report {
	for _, v := range rep.Verdicts {
		i, seen := best[v.Element]
		if !seen {
			best[v.Element] = len(out.Verdicts)
			out.Verdicts = append(out.Verdicts, v)
			continue
		}
		if o := out.Verdicts[i]; v.Evidence.ExplainedEdges > o.Evidence.ExplainedEdges {
			v.ID, v.FirstSeen = o.ID, o.FirstSeen
			out.Verdicts[i] = v
		}
	}
	byDir := map[string]bool{}
	for _, d := range out.LinkDelays {
		byDir[d.Direction] = true
	}
	for _, d := range rep.LinkDelays {
		if !byDir[d.Direction] {
			out.LinkDelays = append(out.LinkDelays, d)
		}
	}
	switch {
	case len(out.Verdicts) > 0:
		out.State = fabric.Suspect
	case rep.State == fabric.InsufficientEvidence:
		out.State = rep.State
	}
	out.Coverage.Links = min(out.Coverage.Links, rep.Coverage.Links)
	out.Coverage.Edges = min(out.Coverage.Edges, rep.Coverage.Edges)
	out.Edges.Degraded = max(out.Edges.Degraded, rep.Edges.Degraded)
	out.Edges.UnknownPath = max(out.Edges.UnknownPath, rep.Edges.UnknownPath)
	out.Edges.ClockSuspect = max(out.Edges.ClockSuspect, rep.Edges.ClockSuspect)
	out.Edges.HostSuspect = max(out.Edges.HostSuspect, rep.Edges.HostSuspect)
	out.Edges.Duplicates += rep.Edges.Duplicates
	return out
}

// CheckObservation says which element of an observation the topology lacks.
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

// combine joins the windows of one flow that lie in one group, when they
// follow each other; windows with the same start are duplicates and stay apart.
func combine(in []*fabric.Observation) []*fabric.Observation {
	var out []*fabric.Observation
	at := map[string]*fabric.Observation{}
	starts := map[string]map[time.Time]bool{}
	for _, o := range in {
		k := o.Edge + "\x00" + o.Timestamp + "\x00" + o.Class + "\x00" + o.Path.Key()
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
		have.OWD = blend(have.OWD, have.Sent-have.Lost, o.OWD, o.Sent-o.Lost)
		have.Sent += o.Sent
		have.Lost += o.Lost
		have.HostSuspect = have.HostSuspect || o.HostSuspect
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

// blend weighs two windows' quantiles by their probes; the extremes stay extremes.
func blend(a *fabric.Quantiles, na uint64, b *fabric.Quantiles, nb uint64) *fabric.Quantiles {
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

// fillBaselines gives a baseline to observations that have none: the flow's
// own other windows when they agree with comparable flows, else comparable
// flows (same tier, hop count, plane, class and timestamp kind).
func fillBaselines(obs []*fabric.Observation) {
	own := map[string][]*fabric.Observation{}
	groups := map[string][]*fabric.Observation{}
	group := func(o *fabric.Observation) string {
		return fmt.Sprintf("%d %d %s %s %s", o.Tier, hops(o), o.Plane, o.Class, o.Timestamp)
	}
	for _, o := range obs {
		if o.OWD == nil || o.OWD.P50 == nil || o.HostSuspect {
			continue
		}
		own[o.Edge] = append(own[o.Edge], o)
		groups[group(o)] = append(groups[group(o)], o)
	}
	groupBase := map[string]baseline{}
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
		case mine.n >= minOwnWindows && havePeers && mine.p50 <= peers.p50+peers.spread():
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

func hops(o *fabric.Observation) int {
	if len(o.Path) > 0 {
		return len(o.Path)
	}
	if len(o.Paths) > 0 {
		return len(o.Paths[0])
	}
	return 0
}

type baseline struct {
	n             int
	p50, p99, mad int64
	hasP99        bool
}

func (b baseline) spread() int64 {
	s := max(int64(judge.Defaults().FloorKernel), int64(judge.Defaults().ShiftMADs*float64(b.mad)))
	return s
}

// baselineOf is the median and MAD of windows' medians, except skip's.
func baselineOf(obs []*fabric.Observation, skip *fabric.Observation) baseline {
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
	b := baseline{n: len(p50)}
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

// medianMAD returns the median and the median absolute deviation; v is reordered.
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
