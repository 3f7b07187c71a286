package plancheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize/convex/lp"
	"gopkg.in/yaml.v3"
)

// hosts is the part of a topology that says which NICs form bonds, and on which sides they are.
type hosts struct {
	Nodes []struct {
		Name string `yaml:"name"`
		NICs []struct {
			Device string `yaml:"device"`
			Side   string `yaml:"side"`
		} `yaml:"nics"`
		Bonds []struct {
			Name    string   `yaml:"name"`
			Members []string `yaml:"members"`
		} `yaml:"bonds"`
	} `yaml:"nodes"`
}

// graph is a topology as it is needed for the fractional optimum.
type graph struct {
	capacity map[string]float64  // of directions, from->to
	out      map[string][]string // directions out of each owner of ports
	side     map[string]string
	members  map[string][]string
	unit     map[string]string // of a NIC: its bond or itself
}

func ownerOf(end string) string { return end[:strings.IndexAny(end, "/:")] }

// newGraph returns the graph of a topology without some directions.
func newGraph(file []byte, goodput float64, excluded func(direction string) bool) (*graph, error) {
	var t topology
	var h hosts
	if err := errors.Join(yaml.Unmarshal(file, &t), yaml.Unmarshal(file, &h)); err != nil {
		return nil, err
	}
	g := &graph{capacity: map[string]float64{}, out: map[string][]string{}, side: map[string]string{}, members: map[string][]string{}, unit: map[string]string{}}
	for _, l := range t.Links {
		for _, d := range [][2]string{{l.A, l.B}, {l.B, l.A}} {
			if name := d[0] + "->" + d[1]; !excluded(name) {
				g.capacity[name] = l.Speed * goodput
				g.out[ownerOf(d[0])] = append(g.out[ownerOf(d[0])], name)
			}
		}
	}
	for _, n := range h.Nodes {
		for _, nic := range n.NICs {
			id := n.Name + "/" + nic.Device
			g.side[id], g.unit[id], g.members[id] = nic.Side, id, []string{id}
		}
		for _, b := range n.Bonds {
			for _, m := range b.Members {
				g.unit[n.Name+"/"+m] = n.Name + "/" + b.Name
				g.members[n.Name+"/"+b.Name] = append(g.members[n.Name+"/"+b.Name], n.Name+"/"+m)
			}
		}
	}
	return g, nil
}

// paths returns the shortest paths between two NICs. It searches all walks by their lengths, breadth first.
func (g *graph) paths(src, dst string) (out [][]string) {
	var walks [][]string
	for _, d := range g.out[ownerOf(src)] {
		if strings.HasPrefix(d, src+"->") {
			walks = append(walks, []string{d})
		}
	}
	for len(walks) > 0 && len(out) == 0 && len(walks[0]) < 8 {
		var longer [][]string
		for _, w := range walks {
			_, end, _ := strings.Cut(w[len(w)-1], "->")
			if end == dst {
				out = append(out, w)
				continue
			}
			if strings.Contains(end, "/") {
				continue
			}
			for _, d := range g.out[ownerOf(end)] {
				from, to, _ := strings.Cut(d, "->")
				if from != end && (to == dst || !strings.Contains(to, "/")) {
					longer = append(longer, append(slices.Clone(w), d))
				}
			}
		}
		walks = longer
	}
	return out
}

// demandOf is what a job sends from one NIC or bond to another, per unit of its rate.
type demandOf struct {
	job   int
	share float64
	paths [][]string
}

// optimum is the fractional optimum as linear programs. Variables are the flows on paths, and one rate of the jobs that are raised.
type optimum struct {
	g       *graph
	demands []demandOf
	limits  []float64 // of the rates of the jobs
	cells   int       // of the largest program
}

// ErrTooLarge is the error of a program that has more cells than the caller allows.
var ErrTooLarge = errors.New("the linear program is too large")

// held is what a unit of a rate that is held counts in the objective, beside 1 of the common rate: much more than it can be exchanged for.
const held = 1000

// maximize returns the highest common rate of some jobs while each of the others has a rate of its own, which it can have. Variables are the common rate,
// the rates of the jobs, and the flows on paths. Since all may be 0, no bound is below 0 and the solver has a basis to begin with.
func (o *optimum) maximize(raised []bool, least []float64) (float64, error) {
	row := map[string]int{}
	bounds := make([]float64, len(o.demands))
	vars := 1 + len(raised)
	for _, d := range o.demands {
		vars += len(d.paths)
		for _, p := range d.paths {
			for _, l := range p {
				if _, known := row[l]; !known {
					row[l] = len(bounds)
					bounds = append(bounds, o.g.capacity[l])
				}
			}
		}
	}
	first := len(bounds) // row of the first job
	limit := 1e7
	for j := range raised {
		if raised[j] {
			limit = min(limit, o.limits[j])
		}
		bounds = append(bounds, least[j])
	}
	bounds = append(bounds, limit)
	if len(bounds)*(vars+len(bounds)) > o.cells {
		return 0, ErrTooLarge
	}
	a := mat.NewDense(len(bounds), vars+len(bounds), nil)
	var basis []int
	for r := range bounds {
		bounds[r] += 1e-5 * (1 + math.Mod(float64(r)*0.618034, 1)) // simplex walks in circles where many bounds are equal
		a.Set(r, vars+r, 1)
		basis = append(basis, vars+r)
	}
	cost := make([]float64, vars+len(bounds))
	cost[0] = -1
	a.Set(len(bounds)-1, 0, 1)
	for j := range raised {
		a.Set(first+j, 1+j, 1)
		if !raised[j] {
			cost[1+j] = -held
		}
	}
	v := 1 + len(raised)
	for k, d := range o.demands {
		rate := 0
		if !raised[d.job] {
			rate = 1 + d.job
		}
		a.Set(k, rate, d.share)
		for _, p := range d.paths {
			a.Set(k, v, -1)
			for _, l := range p {
				a.Set(row[l], v, 1)
			}
			v++
		}
	}
	_, x, err := lp.Simplex(cost, a, bounds, 1e-9, basis)
	if err != nil {
		return 0, err
	}
	for j := range raised {
		if !raised[j] && x[1+j] < least[j]*(1-1e-9)-1e-9 {
			return 0, fmt.Errorf("job %d has %.6f Gb/s of %.6f", j, x[1+j], least[j])
		}
	}
	return x[0], nil
}

// rates returns the lexicographic max-min rates. The common rate of the jobs that are still raised is found first; then those are fixed which
// cannot have more while the others have it.
func (o *optimum) rates() ([]float64, error) {
	out := make([]float64, len(o.limits))
	raised := make([]bool, len(out))
	for j := range raised {
		raised[j] = true
	}
	for slices.Contains(raised, true) {
		level, err := o.maximize(raised, out)
		if err != nil {
			return nil, err
		}
		least := slices.Clone(out)
		for j := range least {
			if raised[j] {
				least[j] = level * (1 - 1e-6)
			}
		}
		fixed := 0
		var stop []int
		for j := range raised {
			if !raised[j] {
				continue
			}
			alone := make([]bool, len(out))
			alone[j] = true
			more, err := o.maximize(alone, least)
			if err != nil {
				return nil, err
			}
			if more <= level*(1+1e-4) {
				stop = append(stop, j)
				fixed++
			}
		}
		if fixed == 0 {
			return nil, fmt.Errorf("no job is at its limit at %.3f Gb/s", level)
		}
		for _, j := range stop {
			out[j], raised[j] = level*(1-1e-6), false
		}
	}
	return out, nil
}

// IdealRates returns the fractional optimum of the jobs of a plan, of which all queue pairs are placed. The solver works on a dense matrix and takes the
// cube of its size: with more than so many cells, the error is ErrTooLarge.
func IdealRates(topologyFile, plan []byte, excluded func(direction string) bool, cells int) (map[string]float64, error) {
	var p struct {
		planFile
		Assignments []struct {
			Job    string  `json:"job"`
			Src    string  `json:"src"`
			Dst    string  `json:"dst"`
			Weight float64 `json:"weight"`
		} `json:"assignments"`
	}
	if err := json.Unmarshal(plan, &p); err != nil {
		return nil, err
	}
	g, err := newGraph(topologyFile, p.Model.Goodput, excluded)
	if err != nil {
		return nil, err
	}
	o := &optimum{g: g, cells: cells}
	number := map[string]int{}
	for _, j := range p.Jobs {
		number[j.Job] = len(o.limits)
		limit := math.Inf(1)
		if j.Demand != nil {
			limit = *j.Demand
		}
		o.limits = append(o.limits, limit)
	}
	type ends struct{ job, src, dst string }
	at := map[ends]int{}
	for _, a := range p.Assignments {
		key := ends{a.Job, g.unit[a.Src], g.unit[a.Dst]}
		k, known := at[key]
		if !known {
			k = len(o.demands)
			at[key] = k
			d := demandOf{job: number[a.Job]}
			for _, src := range g.members[key.src] {
				for _, dst := range g.members[key.dst] {
					if g.side[src] == g.side[dst] {
						d.paths = append(d.paths, g.paths(src, dst)...)
					}
				}
			}
			o.demands = append(o.demands, d)
		}
		o.demands[k].share += a.Weight
	}
	rates, err := o.rates()
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for name, j := range number {
		out[name] = rates[j]
	}
	return out, nil
}
