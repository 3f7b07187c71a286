package plan

import (
	"fmt"
	"math"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// checkTolerance is how far rates may be from those that are computed again.
const checkTolerance = 0.001

// Check computes the rates of a plan again, by its assignments alone, and returns what does not fit, one text each. c may be nil; with a catalogue, each port
// must still have its path there.
func Check(n *Network, c *Catalogue, p *Plan) (wrong []string) {
	number := map[string]int{}
	var demand []float64
	for _, j := range p.Jobs {
		number[j.Job] = len(demand)
		d := math.Inf(1)
		if j.DemandGbps != nil {
			d = *j.DemandGbps
		}
		demand = append(demand, d)
	}
	load := make([][]jobLoad, len(n.links))
	for i := range p.Assignments {
		a := &p.Assignments[i]
		links, problem := n.checkAssignment(c, a)
		job, known := number[a.Job]
		if !known {
			problem = "jobs has no such job"
		}
		if problem != "" {
			wrong = append(wrong, fmt.Sprintf("assignments[%d]: %s from %s, queue pair %d: %s", i, a.Job, a.Src, a.QP, problem))
			continue
		}
		for _, l := range links {
			load[l] = addLoad(load[l], job, a.Weight)
		}
	}
	rates := maxMin(n.capacities(), load, demand)
	for i, j := range p.Jobs {
		if j.BusbwGbps != nil && math.Abs(*j.BusbwGbps-rates[i]) > checkTolerance*rates[i] {
			wrong = append(wrong, fmt.Sprintf("jobs[%d].busbw_gbps: %s has %.3f by the model, and not %.3f", i, j.Job, rates[i], *j.BusbwGbps))
		}
	}
	for i, l := range p.Links {
		at, ok := n.byEnd[l.From]
		if !ok || n.links[at].to != l.To {
			wrong = append(wrong, fmt.Sprintf("links[%d]: the topology has no %s->%s", i, l.From, l.To))
			continue
		}
		if l.PlannedGbps > n.links[at].capacity*(1+checkTolerance) {
			wrong = append(wrong, fmt.Sprintf("links[%d]: %s->%s carries %.3f Gb/s of %.3f", i, l.From, l.To, l.PlannedGbps, n.links[at].capacity))
		}
	}
	return wrong
}

// checkAssignment returns the links of an assignment, or what is wrong with it.
func (n *Network) checkAssignment(c *Catalogue, a *Assignment) (links []int32, problem string) {
	for i, name := range a.Links {
		from, to, _ := strings.Cut(name, "->")
		at, ok := n.byEnd[from]
		switch {
		case !ok || n.links[at].to != to:
			return nil, "the topology has no " + name
		case n.excluded[at]:
			return nil, name + " is excluded"
		case i > 0 && fabric.OwnerOf(n.links[links[i-1]].to) != fabric.OwnerOf(from):
			return nil, "the links are not a path at " + name
		}
		links = append(links, at)
	}
	if n.links[links[0]].from != a.Src || n.links[links[len(links)-1]].to != a.Dst {
		return nil, "the links do not lead from src to dst"
	}
	if !n.sameSide(a.Src, a.Dst) {
		return nil, "the path changes sides"
	}
	if FlowLabel(a.SPort) != a.FlowLabel {
		return nil, fmt.Sprintf("flow label %d does not give port %d", a.FlowLabel, a.SPort)
	}
	if c == nil {
		return links, ""
	}
	ports, _ := c.of(a.Src, n.unitOf[a.Dst])
	for i := range ports {
		if ports[i].sport == a.SPort && ports[i].length > 0 {
			if got := n.linkNames(c.links(&ports[i])); strings.Join(got, " ") != strings.Join(a.Links, " ") {
				return nil, "the port takes another path now"
			}
			return links, ""
		}
	}
	return nil, "the catalogue has no valid entry of the port"
}
