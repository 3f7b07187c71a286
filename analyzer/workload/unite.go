package workload

import (
	"slices"
	"time"
)

// uniteGuilty makes one diagnosis of those for which the same element of the fabric is guilty at the same time: data and
// acknowledgements of several connections cross one link. The one that began first stays, with the ranks and nodes of all. The
// diagnoses are sorted by their beginning.
func uniteGuilty(all []Diagnosis) []Diagnosis {
	out := all[:0:0]
	for _, d := range all {
		i := slices.IndexFunc(out, func(first Diagnosis) bool { return first.sameElement(&d) })
		if i < 0 {
			out = append(out, d)
			continue
		}
		out[i].unite(&d)
	}
	return out
}

// sameElement says whether two diagnoses of a job have the same guilty element, and one began while the other was open or soon
// after it.
func (d *Diagnosis) sameElement(o *Diagnosis) bool {
	return d.Network.State == Guilty && o.Network.State == Guilty && d.Network.Element == o.Network.Element && d.Job == o.Job && d.Syndrome == o.Syndrome &&
		(d.Open || o.BeganAt.Sub(d.BeganAt) <= fabricWithin)
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
