package audit

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// newLargeEvidence returns the evidence of a fabric of many NICs, each of which probes some others.
func newLargeEvidence(b testing.TB, leaves, spines, nics, peers int) (*site, *Evidence) {
	s := newSite(1, leaves, spines, nics)
	up, _ := s.fabricLink(7)
	s.added[up] = 50 * time.Microsecond
	r := NewRecorder(s.g, start)
	all := s.g.NICIDs()
	for range 2 {
		x := &Window{Hosts: map[string]string{}, Clocks: map[string]ClockState{}}
		for i, src := range all {
			bound, steps := int64(900), 0.0
			x.Clocks[src] = ClockState{State: lockedState, BoundNS: &bound, Steps: &steps}
			for k := range peers {
				dst := all[(i+1+k*(len(all)-1)/peers)%len(all)]
				if fabric.OwnerOf(src) == fabric.OwnerOf(dst) {
					continue
				}
				f := fabric.Flow{Src: src, Dst: dst}
				for range 2 {
					from, to := f.Endpoints()
					paths := s.g.ShortestPaths(from, to, spines)
					x.Observations = append(x.Observations, s.observeFlow(f, paths[(i+k)%len(paths)], x))
					f.Reply = true
				}
			}
		}
		r.AddWindow(x)
	}
	return s, r.Evidence(start.Add(time.Minute), nil, nil)
}

// BenchmarkRun measures the judging of the evidence of 2,048 NICs with a slow link.
func BenchmarkRun(b *testing.B) {
	s, e := newLargeEvidence(b, 64, 32, 32, 12)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		Run(e, DefaultCriteria(), whole(s.g))
	}
}
