package main

import (
	"math"
	"slices"
	"strings"

	"github.com/graylink/graylink/analyzer/triangulate"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// methods name the directed links that they hold to be at fault.
var methods = []contestant{
	{name: "graylink", run: runGraylink},
	{name: "007", run: sevenVotes},
	{name: "netbouncer", run: netBouncer},
	{name: "set-cover", run: setCover},
	{name: "likelihood", run: plainLikelihood},
}

// runGraylink runs the shipped method: judge, then triangulate, with their own parameters.
func runGraylink(g *fabric.Graph, obs []*fabric.Observation) answer {
	res := triangulate.Run(g, judge.FindingsOf(obs, judge.DefaultParameters()), triangulate.DefaultParameters())
	var out blames
	for _, s := range res.Suspects {
		out = append(out, blame{dirs: accusedLinks(g, s.Kind, s.Name, s.Direction), confidence: s.Confidence})
	}
	return out
}

// claimUnnamed claims what the shipped method lists as possible, with the probabilities. It is no method to find faults:
// what counts is how well the probabilities hold.
func claimUnnamed(g *fabric.Graph, obs []*fabric.Observation) answer {
	res := triangulate.Run(g, judge.FindingsOf(obs, judge.DefaultParameters()), triangulate.DefaultParameters())
	var out blames
	for _, u := range res.Unnamed {
		out = append(out, blame{dirs: accusedLinks(g, u.Kind, u.Name, u.Direction), confidence: u.Probability})
	}
	return out
}

// accusedLinks returns every directed link that an answer accuses: for a link without direction both of its own, for
// a switch all that it has, for a corridor those that lead along it, for a pair those out of the first leaf and into
// the second that lead to other switches.
func accusedLinks(g *fabric.Graph, kind fabric.Kind, name string, d fabric.Direction) []fabric.Direction {
	if d.From != "" {
		return []fabric.Direction{d}
	}
	var out []fabric.Direction
	// between adds the cables from one switch or node to another, or to any switch if to is "".
	between := func(from, to string, back bool) {
		for _, end := range g.EndsOf(from) {
			peer := g.PeerOf(end)
			if to == "" && g.Switch(fabric.OwnerOf(peer)) == nil || to != "" && fabric.OwnerOf(peer) != to {
				continue
			}
			if back {
				end, peer = peer, end
			}
			out = append(out, fabric.Direction{From: end, To: peer})
		}
	}
	switch kind {
	case fabric.KindNIC, fabric.KindLink, fabric.KindAccessLink:
		end, _, _ := fabric.SplitLink(name)
		d := fabric.Direction{From: end, To: g.PeerOf(end)}
		return []fabric.Direction{d, d.Reverse()}
	case fabric.KindCorridor:
		sw := strings.Split(name, "->")
		for i := range sw[1:] {
			between(sw[i], sw[i+1], false)
		}
	case fabric.KindPair:
		from, to, _ := strings.Cut(name, "->")
		between(from, "", false)
		between(to, "", true)
	case fabric.KindLeafUplinks:
		between(name, "", false)
		between(name, "", true)
	default: // a switch, a port or queue without direction, a host
		for _, end := range g.EndsOf(fabric.OwnerOf(name)) {
			d := fabric.Direction{From: end, To: g.PeerOf(end)}
			out = append(out, d, d.Reverse())
		}
	}
	return out
}

// incidence is the flows by the directed links that they may have crossed, for
// the methods of the papers. A flow with several candidate paths crosses a link
// with the share of them that does.
type incidence struct {
	dirs  []fabric.Direction
	flows []crossing
}

type crossing struct {
	sent, lost float64
	links      []int32
	share      []float64 // of the candidate paths; 1 for a traced flow
}

func incidenceOf(obs []*fabric.Observation) *incidence {
	in := &incidence{flows: make([]crossing, 0, len(obs))}
	at := map[fabric.Direction]int32{}
	id := func(d fabric.Direction) int32 {
		i, ok := at[d]
		if !ok {
			i = int32(len(in.dirs))
			at[d] = i
			in.dirs = append(in.dirs, d)
		}
		return i
	}
	for _, o := range obs {
		paths := o.Paths
		if len(o.Path) > 0 {
			paths = []fabric.Path{o.Path}
		}
		c := crossing{sent: float64(o.Sent), lost: float64(o.Lost)}
		for _, p := range paths {
			from := o.Src
			for _, h := range p {
				c.addLink(id(fabric.Direction{From: from, To: h.Switch + ":" + h.In}), 1/float64(len(paths)))
				from = h.Switch + ":" + h.Out
			}
			c.addLink(id(fabric.Direction{From: from, To: o.Dst}), 1/float64(len(paths)))
		}
		in.flows = append(in.flows, c)
	}
	return in
}

func (c *crossing) addLink(link int32, share float64) {
	if i := slices.Index(c.links, link); i >= 0 {
		c.share[i] += share
		return
	}
	c.links, c.share = append(c.links, link), append(c.share, share)
}

func (in *incidence) blameLinks(links []int32) blames {
	var out blames
	for _, l := range links {
		out = append(out, blame{dirs: []fabric.Direction{in.dirs[l]}})
	}
	return out
}

// The papers' methods have thresholds that their authors set for each fabric. Here
// each has one set, the one that is best on thin-k10-known.

// sevenShare is the share of all votes below which 007 names no further link
// (Arzani et al., NSDI 2018, algorithm 1, has 1 %).
const sevenShare = 0.005

// sevenVotes implements 007: a flow that lost packets gives each link of its path a vote of one over the path's
// length. The link with the most votes is named, and the flows that cross it take their votes back, until what is
// left is too little.
func sevenVotes(_ *fabric.Graph, obs []*fabric.Observation) answer {
	in := incidenceOf(obs)
	votes := make([]float64, len(in.dirs))
	total := 0.0
	by := make([][]int32, len(in.dirs))
	voted := make([]float64, len(in.flows))
	for i := range in.flows {
		f := &in.flows[i]
		if f.lost == 0 || len(f.links) == 0 {
			continue
		}
		length := 0.0
		for _, s := range f.share {
			length += s
		}
		voted[i] = 1 / length
		for j, l := range f.links {
			votes[l] += f.share[j] / length
			total += f.share[j] / length
			by[l] = append(by[l], int32(i))
		}
	}
	var named []int32
	for {
		top := indexOfMax(votes)
		if top < 0 || votes[top] < sevenShare*total {
			return in.blameLinks(named)
		}
		named = append(named, top)
		for _, i := range by[top] {
			f := &in.flows[i]
			for j, l := range f.links {
				votes[l] -= f.share[j] * voted[i]
			}
			voted[i] = 0
		}
		votes[top] = 0
	}
}

// indexOfMax returns the index of the greatest value above the rounding of sums, and -1 if there is none.
func indexOfMax(v []float64) int32 {
	top := int32(-1)
	for i, x := range v {
		if x > 1e-9 && (top < 0 || x > v[top]) {
			top = int32(i)
		}
	}
	return top
}

// NetBouncer's parameters: the weight of the regulariser against squared errors
// that count once per packet, the drop ratio from which a link is named, and when
// the descent has arrived.
const (
	bouncerLambda = 10.0
	bouncerBad    = 3e-3
	bouncerRounds = 50
	bouncerStill  = 1e-6
)

// netBouncer implements the latent-factor model of NetBouncer (Tan et al., NSDI 2019): success ratios x of links
// minimise sum n (y - prod x)^2 + lambda sum x (1 - x) over the paths' success ratios y, by coordinate descent. The
// product over candidate paths takes each link to the power of its share.
func netBouncer(_ *fabric.Graph, obs []*fabric.Observation) answer {
	in := incidenceOf(obs)
	var named []int32
	for l, x := range in.successRatios() {
		if 1-x > bouncerBad {
			named = append(named, int32(l))
		}
	}
	return in.blameLinks(named)
}

// successRatios returns NetBouncer's success ratios, by link.
func (in *incidence) successRatios() []float64 {
	x := make([]float64, len(in.dirs))
	by := make([][]int32, len(in.dirs))
	share := make([][]float64, len(in.dirs))
	for i := range x {
		x[i] = 1
	}
	product := make([]float64, len(in.flows))
	for i := range in.flows {
		product[i] = 1
		for j, l := range in.flows[i].links {
			by[l] = append(by[l], int32(i))
			share[l] = append(share[l], in.flows[i].share[j])
		}
	}
	// A start at each link's own success ratio, as the paper's.
	for l := range x {
		var sent, lost float64
		for k, i := range by[l] {
			sent += in.flows[i].sent * share[l][k]
			lost += in.flows[i].lost * share[l][k]
		}
		x[l] = 1 - lost/math.Max(sent, 1)
	}
	for i := range in.flows {
		for j, l := range in.flows[i].links {
			product[i] *= math.Pow(x[l], in.flows[i].share[j])
		}
	}
	for range bouncerRounds {
		moved := 0.0
		for l := range x {
			var s1, s2 float64
			for k, i := range by[l] {
				f := &in.flows[i]
				if f.sent == 0 {
					continue
				}
				// What the flow's other links leave, and this one's part that is not the
				// candidate's, of a link that may have been crossed.
				rest := product[i] / math.Pow(math.Max(x[l], 1e-9), share[l][k])
				w := f.sent * share[l][k]
				s1 += w * rest * (1 - f.lost/f.sent)
				s2 += w * rest * rest
			}
			if s2 <= bouncerLambda {
				continue
			}
			was := x[l]
			x[l] = min(1, max(1e-9, (2*s1-bouncerLambda)/(2*(s2-bouncerLambda))))
			if x[l] == was {
				continue
			}
			moved = math.Max(moved, math.Abs(x[l]-was))
			for k, i := range by[l] {
				product[i] *= math.Pow(x[l]/math.Max(was, 1e-9), share[l][k])
			}
		}
		if moved < bouncerStill {
			break
		}
	}
	return x
}

// The limits of set cover for a link: the share of its flows that lost packets (the hit ratio of SCORE, Kompella et
// al., NSDI 2005), and how many of them.
const (
	coverRatio = 0.1
	coverFlows = 3
)

// setCover names greedily the link that covers most of the flows that lost
// packets and are not covered yet, among those of whose flows enough did.
func setCover(_ *fabric.Graph, obs []*fabric.Observation) answer {
	in := incidenceOf(obs)
	open := make([]float64, len(in.dirs)) // lossy flows not covered
	lossy := make([]float64, len(in.dirs))
	all := make([]float64, len(in.dirs))
	by := make([][]int32, len(in.dirs))
	for i := range in.flows {
		f := &in.flows[i]
		for j, l := range f.links {
			all[l] += f.share[j]
			if f.lost > 0 {
				lossy[l] += f.share[j]
				by[l] = append(by[l], int32(i))
			}
		}
	}
	for l := range open {
		if lossy[l] >= coverRatio*all[l] {
			open[l] = lossy[l]
		}
	}
	covered := make([]bool, len(in.flows))
	var named []int32
	for {
		top := indexOfMax(open)
		if top < 0 || open[top] < coverFlows {
			return in.blameLinks(named)
		}
		named = append(named, top)
		for _, i := range by[top] {
			if covered[i] {
				continue
			}
			covered[i] = true
			for j, l := range in.flows[i].links {
				open[l] -= in.flows[i].share[j]
			}
		}
		open[top] = 0
	}
}

// The plain likelihood's parameters: the drop ratio of a healthy path, what a name
// costs in nats (about the logarithm of the number of directed links), and the drop
// ratios that are tried, which grow by half.
const (
	plainBase  = 3e-4
	plainPrice = 8.0
	plainLeast = 5e-4
	plainMost  = 0.5
)

// plainLikelihood implements the plain reference: counts are binomial, a flow's drop ratio is the sum of those of its
// links, and the link that gains most with its best drop ratio is named until none gains its price. It uses drops
// only.
func plainLikelihood(_ *fabric.Graph, obs []*fabric.Observation) answer {
	in := incidenceOf(obs)
	ratio := make([]float64, len(in.flows))
	type part struct {
		flow  int32
		share float64
	}
	by := make([][]part, len(in.dirs))
	lossy := make([]bool, len(in.dirs))
	for i := range in.flows {
		ratio[i] = plainBase
		for j, l := range in.flows[i].links {
			by[l] = append(by[l], part{int32(i), in.flows[i].share[j]})
			lossy[l] = lossy[l] || in.flows[i].lost > 0
		}
	}
	gain := func(l int32, q float64) float64 {
		sum := 0.0
		for _, p := range by[l] {
			f := &in.flows[p.flow]
			was, is := ratio[p.flow], min(0.999, ratio[p.flow]+p.share*q)
			sum += (f.sent - f.lost) * math.Log((1-is)/(1-was))
			if f.lost > 0 {
				sum += f.lost * math.Log(is/was)
			}
		}
		return sum
	}
	var named []int32
	for {
		top, most, at := int32(-1), plainPrice, 0.0
		for l := range by {
			if !lossy[l] {
				continue
			}
			for q := plainLeast; q < plainMost; q *= 1.5 {
				if g := gain(int32(l), q); g > most {
					top, most, at = int32(l), g, q
				}
			}
		}
		if top < 0 {
			return in.blameLinks(named)
		}
		named = append(named, top)
		for _, p := range by[top] {
			ratio[p.flow] = min(0.999, ratio[p.flow]+p.share*at)
		}
		lossy[top] = false
	}
}
