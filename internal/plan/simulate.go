package plan

import (
	"fmt"
	"math"
	"slices"
)

// Policy is how queue pairs get their ports.
type Policy string

// Policies of the simulation.
const (
	ECMP    Policy = "ecmp"      // any port; the fabric chooses the path and the side that receives
	OnSide  Policy = "same-side" // any port whose packets stay on their side
	Planned Policy = "planned"
)

// Simulation is a run of jobs by iterations on a fabric that hashes.
type Simulation struct {
	Network    *Network
	Jobs       []Job
	Policy     Policy
	Seed       uint64
	Ports      int // of each pair that the catalogue has
	QPs        int // of a connection whose job gives none; 0 chooses it, with the policy planned
	Steps      int
	Fail       string // element that is lost, or ""
	FailAt     int    // iteration before which it is
	Iterations int
	// Rebalance moves queue pairs by the rules of the planner after the loss.
	Rebalance bool
}

// Outcome is the result of a simulation, at its last iteration.
type Outcome struct {
	Policy         Policy    `json:"policy"`
	Seed           uint64    `json:"seed"`
	Jobs           []JobRate `json:"jobs"`
	Mean           float64   `json:"mean_gbps"`
	Min            float64   `json:"min_gbps"`
	Max            float64   `json:"max_gbps"`
	Ideal          *float64  `json:"ideal_gbps,omitempty"`
	Ratio          *float64  `json:"ratio,omitempty"`
	ConvergedAfter *int      `json:"converged_after"`
	Moves          int       `json:"moves"`
	OffSide        float64   `json:"off_side_ratio"` // share of the queue pairs whose packets change sides
	plan           *Plan     // of the policy planned
}

// maxSimulated bounds the iterations of a simulation.
const maxSimulated = 100_000

// Run returns the outcome.
func (s *Simulation) Run() (*Outcome, error) {
	if s.Iterations < 1 || s.Iterations > maxSimulated {
		return nil, fmt.Errorf("iterations: %d: a whole number from 1 to %d is expected", s.Iterations, maxSimulated)
	}
	conns, err := s.Network.connections(s.Jobs)
	if err != nil {
		return nil, err
	}
	catalogue, err := s.catalogue()
	if err != nil {
		return nil, err
	}
	out := &Outcome{Policy: s.Policy, Seed: s.Seed}
	lost := s.Fail != "" && s.FailAt < s.Iterations
	if s.Policy == Planned {
		return out, s.runPlanned(out, catalogue, lost)
	}
	if lost {
		if err := s.Network.Exclude(s.Fail, "lost"); err != nil {
			return nil, err
		}
		if catalogue, err = s.catalogue(); err != nil { // the fabric hashes over what is left
			return nil, err
		}
	}
	for i := range conns {
		if conns[i].qps == 0 {
			if conns[i].qps = s.QPs; s.QPs == 0 {
				conns[i].qps = 8
			}
		}
	}
	demand := demands(s.Jobs)
	ideal, exact := s.Network.idealRates(conns, demand)
	load := make([][]jobLoad, len(s.Network.links))
	total, off := 0, 0
	for i := range conns {
		c := &conns[i]
		options, why := catalogue.options(c, s.Policy == ECMP)
		if len(options) == 0 {
			return nil, fmt.Errorf("seed %d: from %s to %s: %s", s.Seed, c.src.id, c.dst.id, why)
		}
		total += c.qps
		c.draw(options, c.qps, s.Seed, i, func(o *option) {
			if !s.Network.sameSide(c.src.members[o.member], o.dst) {
				off++
			}
			for _, l := range o.links {
				load[l] = addLoad(load[l], c.job, c.share/float64(c.qps))
			}
		})
	}
	rates := maxMin(s.Network.capacities(), load, demand)
	for j := range s.Jobs {
		out.Jobs = append(out.Jobs, jobRate(&s.Jobs[j], true, rates[j], ideal[j], exact))
	}
	out.OffSide = float64(off) / float64(total)
	out.summarize()
	return out, nil
}

// draw calls each with the path of each of a number of queue pairs of the connection, by ports at random. The members of a bond send in turn.
// number is that of the connection, so that each one has ports of its own.
func (c *connection) draw(options []option, qps int, seed uint64, number int, each func(*option)) {
	for q := range qps {
		each(drawOption(options, q%len(c.src.members), mix(seed^mix(uint64(number)<<16|uint64(q)))))
	}
}

// drawOption returns the path of a port at random, of those that leave by a member if there are some.
func drawOption(options []option, member int, random uint64) *option {
	count := 0
	for i := range options {
		if options[i].member == member {
			count += len(options[i].sports)
		}
	}
	any := count == 0
	if any {
		for i := range options {
			count += len(options[i].sports)
		}
	}
	at := int(random % uint64(count))
	for i := range options {
		if any || options[i].member == member {
			if at -= len(options[i].sports); at < 0 {
				return &options[i]
			}
		}
	}
	return nil
}

// catalogue returns the catalogue of the fabric as it is.
func (s *Simulation) catalogue() (*Catalogue, error) {
	c := NewCatalogue(s.Network)
	hash := NewHash(s.Network, s.Seed)
	err := s.Network.Pairs(s.Jobs, func(src string, dst []string) error {
		for i := range s.Ports {
			if e, ok := hash.Entry(src, dst, uint16(FirstRoCEPort+i)); ok {
				c.Add(&e)
			}
		}
		return nil
	})
	return c, err
}

// summarize fills in what follows from the rates of the jobs.
func (o *Outcome) summarize() {
	o.Min = math.Inf(1)
	ideal, known := math.Inf(1), true
	for _, j := range o.Jobs {
		r := 0.0
		if j.BusbwGbps != nil {
			r = *j.BusbwGbps
		}
		o.Mean += r / float64(len(o.Jobs))
		o.Min, o.Max = min(o.Min, r), max(o.Max, r)
		if j.IdealGbps == nil {
			known = false
			continue
		}
		ideal = min(ideal, *j.IdealGbps)
	}
	o.Mean = rounded(o.Mean)
	if known && len(o.Jobs) > 0 {
		ratio := rounded(o.Min / ideal)
		o.Ideal, o.Ratio = &ideal, &ratio
	}
}

// runPlanned fills in the outcome of planned queue pairs. After a loss, those on the lost links go on by the first paths that are left, and
// with Rebalance the rules of rebalancing move them.
func (s *Simulation) runPlanned(out *Outcome, c *Catalogue, lost bool) error {
	req := &Request{Network: s.Network, Catalogue: c, Jobs: s.Jobs, QPs: s.QPs, Steps: s.Steps}
	p, err := Make(req)
	if err != nil {
		return err
	}
	if lost {
		if err := s.Network.Exclude(s.Fail, "lost"); err != nil {
			return err
		}
		if p, err = s.afterLoss(out, p, c); err != nil {
			return err
		}
	}
	if len(p.Unplaced) > 0 {
		u := p.Unplaced[0]
		return fmt.Errorf("seed %d: from %s to %s: %s", s.Seed, u.Src, u.Dst, u.Reason)
	}
	out.Jobs, out.plan = p.Jobs, p
	out.summarize()
	return nil
}

// afterLoss returns the plan at the end of the iterations after a loss.
func (s *Simulation) afterLoss(out *Outcome, p *Plan, c *Catalogue) (*Plan, error) {
	conns, err := s.Network.connections(s.Jobs)
	if err != nil {
		return nil, err
	}
	demand := demands(s.Jobs)
	ideal, exact := s.Network.idealRates(conns, demand)
	a, err := s.rehash(p, c, conns, ideal)
	if err != nil {
		return nil, err
	}
	if s.Rebalance {
		b := newBalancer(a, demand)
		settled := 0
		for i := s.FailAt; i < s.Iterations; i++ {
			if moved := b.round(i); moved > 0 {
				out.Moves += moved
				settled = i + 1 - s.FailAt
			}
		}
		out.ConvergedAfter = &settled
	}
	r := &Request{Network: s.Network, Catalogue: c, Jobs: s.Jobs, Previous: p}
	return r.write(a, demand, ideal, exact), nil
}

// rehash returns the allocation of a plan of which the fabric hashes anew what was on links that are lost, over what is left.
func (s *Simulation) rehash(p *Plan, c *Catalogue, conns []connection, ideal []float64) (*allocation, error) {
	for i := range conns {
		if conns[i].qps == 0 {
			conns[i].qps = p.qpsOf(s.Jobs[conns[i].job].Name(), conns[i].share)
		}
	}
	a := newAllocation(s.Network, c, conns, ideal, DefaultSteps)
	if err := a.keep(p, s.Jobs); err != nil {
		return nil, err
	}
	for q, o := range a.choice {
		if options := a.options[a.connOf[q]]; o < 0 && len(options) > 0 {
			a.place(int32(q), int32(mix(s.Seed^uint64(q))%uint64(len(options))))
		}
	}
	a.before = slices.Clone(a.choice)
	return a, nil
}

// qpsOf returns the number of queue pairs that the connections of a job have in a plan.
func (p *Plan) qpsOf(job string, share float64) int {
	for i := range p.Assignments {
		if p.Assignments[i].Job == job {
			return int(math.Round(share / p.Assignments[i].Weight))
		}
	}
	return 1
}
