package triangulate

import (
	"math/rand/v2"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// prepared returns a search with its candidates, as Engine.Run makes it.
func prepared(g *fabric.Graph, findings []judge.Finding, p Parameters) *search {
	e := NewEngine(g)
	s := newSearch(e, e.bindFindings(findings, takeSeveralWays(findings)), p)
	s.addCandidates()
	return s
}

// enter names candidates and lets each settle beside the others; false: one does not pay.
func (s *search) enter(cs ...*candidate) bool {
	for _, c := range cs {
		s.refitCandidate(c)
		if !s.isWorthNaming(c) {
			s.leave()
			return false
		}
		s.applyCandidate(c, false)
		s.named = append(s.named, c)
	}
	for range 3 {
		for _, c := range cs {
			s.applyCandidate(c, true)
			s.refitCandidate(c)
			pays := s.isWorthNaming(c)
			if !pays {
				c.fit = fit{}
			}
			s.applyCandidate(c, false)
			if !pays {
				s.leave()
				return false
			}
		}
	}
	return true
}

func (s *search) leave() {
	for _, c := range s.named {
		s.applyCandidate(c, true)
	}
	s.named = nil
}

// TestGreedyAgainstBruteForce: on a small fabric with up to two faults no single
// element and no two of them explain the evidence better than what the search names.
func TestGreedyAgainstBruteForce(t *testing.T) {
	g := graph(t)
	var dirs []fabric.Direction
	for _, l := range g.Topo.Links {
		d := fabric.Direction{From: l.A, To: l.B}
		dirs = append(dirs, d, d.Reverse())
	}
	named := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		delay, loss := map[fabric.Direction]int64{}, map[fabric.Direction]float64{}
		for range rng.IntN(3) {
			d := dirs[rng.IntN(len(dirs))]
			if rng.IntN(2) == 0 {
				delay[d] = 50 + rng.Int64N(2000)
			} else {
				loss[d] = 0.01 + 0.2*rng.Float64()
			}
		}
		var fs []judge.Finding
		for flow := range 2 {
			for _, src := range g.NICIDs() {
				for _, dst := range g.NICIDs() {
					if src == dst {
						continue
					}
					ways := g.ShortestPaths(src, dst, 4)
					via := rng.IntN(len(ways))
					shift, through := rng.Int64N(8), 1.0
					for _, d := range ways[via].LinkDirections(src, dst) {
						shift += delay[d]
						through *= 1 - loss[d]
					}
					lost := uint64(0)
					for range 200 {
						if rng.Float64() >= through {
							lost++
						}
					}
					fs = append(fs, finding(g, src, dst, flow, via, shift, lost))
				}
			}
		}
		s := prepared(g, fs, DefaultParameters())
		s.nameGreedily()
		s.reviseNamed()
		greedy := s.worth
		named += len(s.named)
		s.leave()
		for i, a := range s.cands {
			if s.enter(a) {
				if w := s.worth; w > greedy+0.5 {
					t.Errorf("seed %d: %s %s is worth %.1f, what is named %.1f", seed, a.Kind, a.Name, w, greedy)
				}
				s.leave()
			}
			for _, b := range s.cands[i+1:] {
				if s.enter(a, b) {
					if w := s.worth; w > greedy+0.5 {
						t.Errorf("seed %d: %s %s with %s %s is worth %.1f, what is named %.1f", seed, a.Kind, a.Name, b.Kind, b.Name, w, greedy)
					}
					s.leave()
				}
			}
		}
	}
	if named < 40 {
		t.Errorf("only %d elements were named in all", named)
	}
}
