package collectives

import (
	"fmt"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// candidateWays bounds the paths between two NICs that are looked at.
const candidateWays = 256

// Ways is what probes say of the ways between two ranks. It implements workload.Fabric.
type Ways struct {
	Graph    *fabric.Graph
	Verdicts []TimedVerdict
	// Clean returns which directed links some healthy probes crossed in a span of time.
	Clean func(since, until time.Time) func(fabric.Direction) bool
	// HasNormalPeer reports whether another communicator sends from one place to another as it usually does. Nil means that this
	// is unknown.
	HasNormalPeer func(from, to workload.Place, since time.Time) bool
}

// TimedVerdict is a verdict and the time at which its symptom was seen last. It is zero if only the beginning is known.
type TimedVerdict struct {
	fabric.Verdict
	LastSeen time.Time
}

// lossThatLasts is the share of lost packets from which on a verdict explains operations that become slow long after it began.
const lossThatLasts = 0.01

// counts reports whether a verdict says something of a span of time. A verdict has to begin in it. Two kinds count while they
// last: a hard failure, since what is normal for a job was not learned across one, and a loss whose direction is known, since it
// slows transfers at random, some of them long after it began.
func (v *TimedVerdict) counts(since, until time.Time) bool {
	if v.FirstSeen.After(until) {
		return false
	}
	lasts := v.Scenario == fabric.HardFailure || v.Symptom.LossRatio >= lossThatLasts && v.Direction != ""
	return !v.FirstSeen.Before(since) || lasts && !v.LastSeen.Before(since)
}

// WaysOfFindings returns what a file of observations says, by their findings and the verdicts that follow from them.
func WaysOfFindings(g *fabric.Graph, verdicts []fabric.Verdict, findings []judge.Finding) *Ways {
	w := &Ways{Graph: g}
	for i := range verdicts {
		w.Verdicts = append(w.Verdicts, TimedVerdict{Verdict: verdicts[i]})
	}
	w.Clean = func(since, until time.Time) func(fabric.Direction) bool {
		clean := map[fabric.Direction]bool{}
		for i := range findings {
			x := &findings[i]
			o := x.Obs
			if x.Condition == judge.Healthy && len(o.Path) > 0 && !o.Start.After(until) && !o.Start.Add(time.Duration(o.WindowNS)).Before(since) {
				for _, d := range o.Path.LinkDirections(o.Src, o.Dst) {
					clean[d] = true
				}
			}
		}
		return func(d fabric.Direction) bool { return clean[d] }
	}
	return w
}

// nics returns the NICs that a rank may use: its own, that of the rail of its GPU, or all of its node.
func (w *Ways) nics(p workload.Place) (out []string) {
	if p.NIC != "" && w.Graph.NIC(p.NIC) != nil {
		return []string{p.NIC}
	}
	n := w.Graph.Node(p.Host)
	if n == nil {
		return nil
	}
	for i := range n.NICs {
		id := p.Host + "/" + n.NICs[i].Device
		if r := n.NICs[i].Rail; p.GPU != nil && r != nil && *r == *p.GPU {
			return []string{id}
		}
		out = append(out, id)
	}
	return out
}

// Connection implements workload.Fabric: it returns the verdicts on the candidate ways from one rank to another in their
// direction, and the share of the ways that clean probes cover.
func (w *Ways) Connection(from, to workload.Place, since, until time.Time) workload.Evidence {
	e := workload.Evidence{}
	clean := w.Clean(since, until)
	ways, covered := 0, 0
	for _, src := range w.nics(from) {
		for _, dst := range w.nics(to) {
			for _, p := range w.Graph.ShortestPaths(src, dst, candidateWays) {
				ways++
				dirs := p.LinkDirections(src, dst)
				if !slices.ContainsFunc(dirs, func(d fabric.Direction) bool { return !clean(d) }) {
					covered++
				}
				w.addVerdicts(&e, src, dst, p, dirs, since, until)
			}
		}
	}
	if ways == 0 {
		e.Reason = fmt.Sprintf("the topology has no way from %s to %s", nameOf(from), nameOf(to))
		return e
	}
	e.CoverageKnown, e.Coverage = true, float64(covered)/float64(ways)
	e.PeerNormal = w.HasNormalPeer != nil && w.HasNormalPeer(from, to, since)
	return e
}

func nameOf(p workload.Place) string {
	if p.Host == "" {
		return "an unknown node"
	}
	return p.Host
}

// addVerdicts adds the verdicts of the time on a way, in its direction.
func (w *Ways) addVerdicts(e *workload.Evidence, src, dst string, p fabric.Path, dirs []fabric.Direction, since, until time.Time) {
	for i := range w.Verdicts {
		v := &w.Verdicts[i]
		if !v.counts(since, until) || !v.CrossedBy(p, src, dst) || v.Direction != "" && !slices.ContainsFunc(dirs, func(d fabric.Direction) bool { return d.String() == v.Direction }) {
			continue
		}
		if !slices.ContainsFunc(e.Verdicts, func(x workload.Verdict) bool { return x.ID == v.ID }) {
			link := v.Kind == fabric.KindLink || v.Kind == fabric.KindAccessLink
			e.Verdicts = append(e.Verdicts, workload.Verdict{ID: v.ID, Element: v.Element.ID, Link: link, HardFailure: v.Scenario == fabric.HardFailure})
		}
	}
}

// cleanFor is how long is remembered which links clean probes crossed. No operation hangs for longer before it is diagnosed.
const cleanFor = 15 * time.Minute

// cleanLog remembers in which seconds clean probes crossed a directed link, as a bit for each.
type cleanLog struct {
	graph   *fabric.Graph
	index   map[fabric.Direction]int
	seconds map[int64][]uint64
}

func newCleanLog(g *fabric.Graph) *cleanLog {
	l := &cleanLog{graph: g, index: map[fabric.Direction]int{}, seconds: map[int64][]uint64{}}
	for i, d := range g.LinkDirections() {
		l.index[d] = i
	}
	return l
}

// add notes that clean probes crossed links at a time, and forgets what is too old.
func (l *cleanLog) add(at time.Time, clean []fabric.Direction) {
	s := at.Unix()
	bits := l.seconds[s]
	if bits == nil {
		bits = make([]uint64, (len(l.index)+63)/64)
		l.seconds[s] = bits
	}
	for _, d := range clean {
		if i, ok := l.index[d]; ok {
			bits[i/64] |= 1 << (i % 64)
		}
	}
	for old := range l.seconds {
		if s-old > int64(cleanFor/time.Second) {
			delete(l.seconds, old)
		}
	}
}

// between returns which links were crossed in a span.
func (l *cleanLog) between(since, until time.Time) func(fabric.Direction) bool {
	sum := make([]uint64, (len(l.index)+63)/64)
	for s, bits := range l.seconds {
		if s >= since.Unix() && s <= until.Unix() {
			for i, b := range bits {
				sum[i] |= b
			}
		}
	}
	return func(d fabric.Direction) bool {
		i, ok := l.index[d]
		return ok && sum[i/64]&(1<<(i%64)) != 0
	}
}
