package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// Request is what a plan is made of.
type Request struct {
	Network   *Network
	Catalogue *Catalogue
	Jobs      []Job
	// QPs is the number of queue pairs of connections whose job gives none; 0 chooses it.
	QPs int
	// Steps bounds the search for a better plan: the number of paths that are tried. 0 stands for DefaultSteps.
	Steps int
	// Previous is a plan of which as many queue pairs as possible are kept, or nil.
	Previous *Plan
}

// DefaultSteps is what some two seconds suffice for.
const DefaultSteps = 10_000_000

// choices are the numbers of queue pairs of a connection that are tried where none is given.
var choices = []int{4, 8, 16, 32}

// goodEnough is the share of the ideal from which on a number of queue pairs suffices.
const goodEnough = 0.98

// maxQueuePairs bounds the queue pairs of all jobs together.
const maxQueuePairs = 4_000_000

// Make returns a plan. An error is one of the request; a queue pair that has no port is part of the plan.
func Make(r *Request) (*Plan, error) {
	conns, err := r.Network.connections(r.Jobs)
	if err != nil {
		return nil, err
	}
	demand := demands(r.Jobs)
	ideal, exact := r.Network.idealRates(conns, demand)
	tried := choices
	if r.QPs > 0 || !slices.ContainsFunc(conns, func(c connection) bool { return c.qps == 0 }) {
		tried = []int{r.QPs}
	}
	var best *Plan
	for _, qps := range tried {
		p, err := r.withQPs(slices.Clone(conns), qps, demand, ideal, exact)
		if err != nil {
			return nil, err
		}
		if best == nil || p.worstRatio() > best.worstRatio()+slack {
			best = p
		}
		if best.worstRatio() >= goodEnough {
			break
		}
	}
	return best, nil
}

// worstRatio returns the least ratio of a rate to its ideal, or 0 if there is none.
func (p *Plan) worstRatio() float64 {
	least := math.Inf(1)
	for _, j := range p.Jobs {
		if j.Ratio != nil {
			least = min(least, *j.Ratio)
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

func demands(jobs []Job) []float64 {
	out := make([]float64, len(jobs))
	for i, j := range jobs {
		if out[i] = math.Inf(1); j.DemandGbps != nil {
			out[i] = *j.DemandGbps
		}
	}
	return out
}

// withQPs returns the plan in which connections without a number of queue pairs have qps.
func (r *Request) withQPs(conns []connection, qps int, demand, ideal []float64, exact bool) (*Plan, error) {
	total := 0
	for i := range conns {
		if conns[i].qps == 0 {
			conns[i].qps = qps
		}
		total += conns[i].qps
	}
	if total > maxQueuePairs {
		return nil, fmt.Errorf("jobs: %d queue pairs: at most %d are expected", total, maxQueuePairs)
	}
	steps := r.Steps
	if steps == 0 {
		steps = DefaultSteps
	}
	a := newAllocation(r.Network, r.Catalogue, conns, nil, steps)
	a.rates = a.targets(ideal, demand)
	if r.Previous != nil {
		if err := a.keep(r.Previous, r.Jobs); err != nil {
			return nil, err
		}
		a.fill()
		a.improve()
	} else if !a.exact(demand) {
		a.fill()
		a.improve()
		a.refine(demand)
	}
	return r.write(a, demand, ideal, exact), nil
}

// targets returns the rates that the jobs aim at: the ideal ones or, where connections have no path, those that would be ideal without these.
func (a *allocation) targets(ideal, demand []float64) []float64 {
	var placed []connection
	for i := range a.conns {
		if len(a.options[i]) > 0 {
			placed = append(placed, a.conns[i])
		}
	}
	out := slices.Clone(ideal)
	if len(placed) < len(a.conns) {
		out, _ = a.net.idealRates(placed, demand)
	}
	for j, rate := range out {
		if rate <= 0 || math.IsInf(rate, 1) {
			out[j] = 1
		}
	}
	return out
}

// keep puts the queue pairs where a previous plan had them, as far as the paths are still there. Of the others, few may be moved.
func (a *allocation) keep(p *Plan, jobs []Job) error {
	if p.Model.GoodputRatio != a.net.Goodput {
		return errors.New("the previous plan has another goodput_ratio")
	}
	a.previous = a.previously(p, jobs)
	for q, x := range a.previous {
		if x == nil {
			continue
		}
		c := a.connOf[q]
		conn := &a.conns[c]
		for o, opt := range a.options[c] {
			if conn.src.members[opt.member] == x.Src && slices.Contains(opt.sports, x.SPort) {
				a.before[q] = int32(o)
				break
			}
		}
	}
	a.reserve(a.before)
	for q, o := range a.before {
		if o >= 0 {
			a.place(int32(q), o)
		}
	}
	a.mayMove = max(1, len(a.choice)/50)
	return nil
}

// write returns the plan of an allocation.
func (r *Request) write(a *allocation, demand, ideal []float64, exact bool) *Plan {
	n := r.Network
	p := &Plan{Version: Version, Model: Model{n.Goodput}, Excluded: append([]Exclusion{}, n.reasons...), Assignments: []Assignment{}, Links: []LinkLoad{}, Jobs: []JobRate{}, Unplaced: []Unplaced{}, Spare: Spare{Nodes: []string{}}}
	used := map[string]bool{}
	ports := a.ports()
	names := make([][]string, 0, 64) // of the links of a connection's paths
	placed := make([]bool, len(r.Jobs))
	jobs := make([]string, len(r.Jobs))
	for i := range r.Jobs {
		jobs[i] = r.Jobs[i].Name()
	}
	p.Assignments = slices.Grow(p.Assignments, len(a.connOf))
	for q, c := range a.connOf {
		conn := &a.conns[c]
		job, qp := jobs[conn.job], q-a.first[c]
		if qp == 0 {
			names = slices.Grow(names[:0], len(a.options[c]))[:len(a.options[c])]
			clear(names)
			used[fabric.OwnerOf(conn.src.id)], used[fabric.OwnerOf(conn.dst.id)] = true, true
		}
		if a.choice[q] < 0 {
			p.Unplaced = append(p.Unplaced, Unplaced{Job: job, Src: conn.src.id, Dst: conn.dst.id, QP: qp, Reason: a.reasons[c]})
			continue
		}
		placed[conn.job] = true
		o := &a.options[c][a.choice[q]]
		links := names[a.choice[q]]
		if links == nil {
			links = n.linkNames(o.links)
			names[a.choice[q]] = links
		}
		x := Assignment{Job: job, Src: conn.src.members[o.member], Dst: o.dst, QP: qp, SPort: ports[q], FlowLabel: FlowLabel(ports[q]), Weight: conn.share / float64(conn.qps), Links: links}
		if conn.src.bond {
			x.LagPort = o.member + 1
		}
		p.Assignments = append(p.Assignments, x)
	}
	rates, carried, qps := a.ratesNow(demand)
	for l, count := range qps {
		if count > 0 {
			d := &n.links[l]
			p.Links = append(p.Links, LinkLoad{From: d.from, To: d.to, CapacityGbps: rounded(d.capacity), PlannedGbps: rounded(carried[l]), QPs: count})
		}
	}
	for j := range r.Jobs {
		p.Jobs = append(p.Jobs, jobRate(&r.Jobs[j], placed[j], rates[j], ideal[j], exact))
	}
	for i := range n.Graph.Topo.Nodes {
		if node := &n.Graph.Topo.Nodes[i]; !used[node.Name] {
			p.Spare.Nodes = append(p.Spare.Nodes, node.Name)
		}
	}
	return p
}

// rounded returns a number of Gb/s to a precision of 1 b/s, so that sums in another order look alike.
func rounded(x float64) float64 { return math.Round(x*1e9) / 1e9 }

// jobRate returns the rates of a job, without those that are not known.
func jobRate(j *Job, placed bool, rate, ideal float64, exact bool) JobRate {
	out := JobRate{Job: j.Name(), DemandGbps: j.DemandGbps}
	if placed && !math.IsInf(rate, 1) {
		r := rounded(rate)
		out.BusbwGbps = &r
	}
	if exact && ideal > 0 && !math.IsInf(ideal, 1) {
		i := rounded(ideal)
		out.IdealGbps = &i
		if out.BusbwGbps != nil {
			ratio := rounded(rate / ideal)
			out.Ratio = &ratio
		}
	}
	return out
}

// ports returns the source port of each queue pair: of the ports that take its path, the one that the connection uses the least, and
// the port that it had before, if it has the path of then.
func (a *allocation) ports() []uint16 {
	out := make([]uint16, len(a.choice))
	for c := range a.conns {
		count := map[[2]int32]int{}
		for q := a.first[c]; q < a.first[c+1]; q++ {
			if o := a.choice[q]; o >= 0 && o == a.before[q] && a.previous != nil && a.previous[q] != nil && slices.Contains(a.options[c][o].sports, a.previous[q].SPort) {
				out[q] = a.previous[q].SPort
				count[[2]int32{o, int32(out[q])}]++
			}
		}
		for q := a.first[c]; q < a.first[c+1]; q++ {
			o := a.choice[q]
			if o < 0 || out[q] != 0 {
				continue
			}
			best := a.options[c][o].sports[0]
			for _, s := range a.options[c][o].sports[1:] {
				if count[[2]int32{o, int32(s)}] < count[[2]int32{o, int32(best)}] {
					best = s
				}
			}
			out[q] = best
			count[[2]int32{o, int32(best)}]++
		}
	}
	return out
}

// previously returns the assignment that each queue pair has in a plan, or nil.
func (a *allocation) previously(p *Plan, jobs []Job) []*Assignment {
	out := make([]*Assignment, len(a.connOf))
	names := make([]string, len(jobs))
	for i := range jobs {
		names[i] = jobs[i].Name()
	}
	is := func(q int, x *Assignment) bool {
		c := a.connOf[q]
		conn := &a.conns[c]
		return x.QP == q-a.first[c] && x.Job == names[conn.job] && a.net.unitOf[x.Src] == conn.src && a.net.unitOf[x.Dst] == conn.dst
	}
	missing, at := 0, 0
	for q := range out { // most plans are of the same jobs
		if at < len(p.Assignments) && is(q, &p.Assignments[at]) {
			out[q] = &p.Assignments[at]
			at++
		} else {
			missing++
		}
	}
	if missing == 0 {
		return out
	}
	type key struct {
		job      string
		src, dst *unit
		qp       int
	}
	found := map[key]*Assignment{}
	for i := range p.Assignments {
		x := &p.Assignments[i]
		found[key{x.Job, a.net.unitOf[x.Src], a.net.unitOf[x.Dst], x.QP}] = x
	}
	for q, c := range a.connOf {
		conn := &a.conns[c]
		out[q] = found[key{names[conn.job], conn.src, conn.dst, q - a.first[c]}]
	}
	return out
}
