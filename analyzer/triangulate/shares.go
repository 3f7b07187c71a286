package triangulate

import (
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// Share is what decided flows send across a directed link, where the packets of some flows take several paths in turn.
type Share struct {
	// Sprayed is the number of flows whose packets take several paths, some of which cross the link, and Packets is the sum of the shares
	// of their packets that do.
	Sprayed int
	Packets float64
	// Rate is the number of packets a second of all flows that are expected to cross it.
	Rate float64
}

// linkShares returns the shares of the directed links that flows cross. Flows that take one of several paths, of which none is known, are
// left out. The work follows the number of sets of paths, and not flows times paths.
func (e *Engine) linkShares(flows []flow) map[fabric.Direction]Share {
	shares := make([]Share, e.componentCount())
	sets := map[*paths]Share{} // how many flows have a set of paths, and what they send
	for i := range flows {
		fl := &flows[i]
		if fl.paths != nil && !fl.mixed() {
			continue
		}
		rate := 0.0
		if window := time.Duration(fl.finding.Obs.WindowNS); window > 0 {
			rate = float64(fl.finding.Obs.Sent) / window.Seconds()
		}
		sprayed := fl.finding.Obs.Sprayed
		for _, p := range fl.crossed {
			s := &shares[p]
			if s.Rate += rate; sprayed {
				s.Sprayed, s.Packets = s.Sprayed+1, s.Packets+1
			}
		}
		if fl.paths != nil {
			s := sets[fl.paths]
			s.Sprayed, s.Rate = s.Sprayed+1, s.Rate+rate
			sets[fl.paths] = s
		}
	}
	for ps, sent := range sets {
		for i, p := range ps.all {
			s, share := &shares[p], ps.allShare[i]
			s.Sprayed, s.Packets, s.Rate = s.Sprayed+sent.Sprayed, s.Packets+share*float64(sent.Sprayed), s.Rate+share*sent.Rate
		}
	}
	out := map[fabric.Direction]Share{}
	for at := range shares {
		if p := component(at); shares[at] != (Share{}) && !e.isSwitch(p) {
			out[e.directionOf(p)] = shares[at]
		}
	}
	return out
}
