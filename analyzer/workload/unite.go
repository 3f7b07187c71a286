package workload

import (
	"slices"
	"time"
)

// uniteGuilty makes one diagnosis of those for which the same element of the fabric is guilty at the same time: data of several
// connections cross one link, and acknowledgements of others. The first one that the element is guilty of stays, with the ranks and
// nodes of all. The diagnoses are sorted by their beginning.
func uniteGuilty(all []Diagnosis) []Diagnosis {
	out := make([]Diagnosis, 0, len(all))
	for _, direct := range []bool{true, false} {
		for i := range all {
			d := &all[i]
			if (d.Network.State == Guilty) != direct {
				continue
			}
			if i := slices.IndexFunc(out, func(first Diagnosis) bool { return first.explains(d) }); i >= 0 {
				out[i].unite(d)
			} else {
				out = append(out, *d)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Diagnosis) int { return a.BeganAt.Compare(b.BeganAt) })
	return out
}

// explains says whether the guilty element of a diagnosis is at fault for another one of the job as well, which began while the first
// was open, or within seconds of it.
func (d *Diagnosis) explains(o *Diagnosis) bool {
	if d.Network.State != Guilty || d.Job != o.Job || d.Syndrome != o.Syndrome {
		return false
	}
	apart := o.BeganAt.Sub(d.BeganAt)
	switch o.Network.State {
	case Guilty:
		return d.Network.Element == o.Network.Element && (d.Open || apart <= fabricWithin)
	case Insufficient:
		return max(apart, -apart) <= fabricWithin && slices.ContainsFunc(o.ReturnVerdicts, func(id string) bool { return slices.Contains(d.Network.Verdicts, id) })
	}
	return false
}

// unite adds what another diagnosis of the same fault knows.
func (d *Diagnosis) unite(o *Diagnosis) {
	if d.Comm == o.Comm {
		d.Ranks = slices.Compact(slices.Sorted(slices.Values(slices.Concat(d.Ranks, o.Ranks))))
	} else {
		d.Consequences = append(slices.Clone(d.Consequences), Consequence{o.Comm, o.CommName, o.Syndrome})
	}
	for _, c := range o.Consequences {
		if c.Comm != d.Comm && !slices.ContainsFunc(d.Consequences, func(have Consequence) bool { return have.Comm == c.Comm }) {
			d.Consequences = append(slices.Clone(d.Consequences), c)
		}
	}
	d.Nodes, d.Isolate.Links = union(d.Nodes, o.Nodes), union(d.Isolate.Links, o.Isolate.Links)
	d.Network.Verdicts = union(d.Network.Verdicts, o.Network.Verdicts)
	d.Open, d.Confidence = d.Open || o.Open, max(d.Confidence, o.Confidence)
	d.DetectedAt = earlier(d.DetectedAt, o.DetectedAt)
	if o.Effect != nil && (d.Effect == nil || o.Effect.AddedNS > d.Effect.AddedNS) {
		d.Effect = o.Effect
	}
}

// union returns the texts of both lists, each once.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// earlier returns the earlier one of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
