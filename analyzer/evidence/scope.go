package evidence

import (
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// Scope is the part of a fabric that an analyzer is responsible for.
type Scope struct {
	// Planes are the names of its planes. Empty means all of the fabric.
	Planes []string
	// Has reports whether a NIC belongs to it. Nil means that all do. Answers about other NICs are dropped.
	Has func(nic string) bool
	// Part is the part of these planes whose flows the analyzer is responsible for. Nil means all of them. Flows of others are
	// read where they are evidence about it.
	Part *fabric.Part
}

// planeMatcher returns a matcher of series with the label plane, or "" if all of them are within the scope.
func (s *Scope) planeMatcher() string {
	if len(s.Planes) == 0 {
		return ""
	}
	return "plane=~" + AnyOf(s.Planes)
}

// samplesWithin returns the samples that are not about a NIC outside of the scope.
func (s *Scope) samplesWithin(all []Sample) []Sample {
	if s.Has == nil {
		return all
	}
	return slices.DeleteFunc(all, func(v Sample) bool {
		for _, label := range []string{"nic", "clock", "src", "dst"} {
			if nic := v.Labels[label]; fabric.IsNIC(nic) && !s.Has(nic) {
				return true
			}
		}
		return false
	})
}

// flowsWithin removes the flows that are not between NICs of the scope.
func flowsWithin[V any](s *Scope, flows map[flowKey]V) {
	if s.Has == nil {
		return
	}
	for k := range flows {
		if !s.Has(k.edge.Src) || !s.Has(k.edge.Dst) {
			delete(flows, k)
		}
	}
}
