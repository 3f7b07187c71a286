package localize

import (
	"maps"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

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

// combineWindows joins consecutive windows of one flow. Windows with the same start are duplicates, and stay
// separate. So do those whose packets take other paths, or other shares of them, than those of the window before.
func combineWindows(in []*fabric.Observation) []*fabric.Observation {
	var out []*fabric.Observation
	at := map[string]*fabric.Observation{}
	starts := map[string]map[time.Time]bool{}
	for _, o := range in {
		k := o.Edge + "\x00" + o.Timestamp + "\x00" + o.Class + "\x00" + o.Path.CanonicalKey()
		have, ok := at[k]
		moved := ok && !takeSameWays(have, o)
		if !ok || moved || starts[k][o.Start] {
			c := *o
			if !ok || moved {
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

// takeSameWays reports whether the packets of two windows take the same paths in turn, with the same shares.
func takeSameWays(a, b *fabric.Observation) bool {
	if a.Sprayed != b.Sprayed {
		return false
	}
	return !a.Sprayed || slices.Equal(a.Weights, b.Weights) && slices.EqualFunc(a.Paths, b.Paths, func(p, q fabric.Path) bool {
		return len(p) == len(q) && (len(p) == 0 || &p[0] == &q[0] || slices.Equal(p, q))
	})
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
