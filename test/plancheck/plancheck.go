// Package plancheck computes the rates of a plan again. It shares no code with internal/plan: it has structs of its own for
// the plan and the topology, and finds rates by bisection instead of by filling links one after the other.
package plancheck

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"gopkg.in/yaml.v3"
)

// Tolerance is how far a rate of a plan may be from the one that is computed here.
const Tolerance = 0.001

type topology struct {
	Links []struct {
		A     string  `yaml:"a"`
		B     string  `yaml:"b"`
		Speed float64 `yaml:"speed_gbps"`
	} `yaml:"links"`
}

type planFile struct {
	Model struct {
		Goodput float64 `json:"goodput_ratio"`
	} `json:"model"`
	Assignments []struct {
		Job    string   `json:"job"`
		SPort  int      `json:"sport"`
		Label  int      `json:"flow_label"`
		Weight float64  `json:"weight"`
		Links  []string `json:"links"`
	} `json:"assignments"`
	Jobs []struct {
		Job    string   `json:"job"`
		Busbw  *float64 `json:"busbw_gbps"`
		Ideal  *float64 `json:"ideal_gbps"`
		Demand *float64 `json:"demand_gbps"`
	} `json:"jobs"`
}

// Check returns an error if a plan does not fit a topology: a link that is not there, a port that the flow label does not give, a rate
// that the model does not give, or one above the ideal.
func Check(topologyFile, plan []byte) error {
	var t topology
	if err := yaml.Unmarshal(topologyFile, &t); err != nil {
		return err
	}
	var p planFile
	if err := json.Unmarshal(plan, &p); err != nil {
		return err
	}
	capacity := map[string]float64{}
	for _, l := range t.Links {
		capacity[l.A+"->"+l.B] = l.Speed * p.Model.Goodput
		capacity[l.B+"->"+l.A] = l.Speed * p.Model.Goodput
	}
	load := map[string]map[string]float64{}
	for _, a := range p.Assignments {
		if port := 0xC000 | (a.Label&0x3fff ^ a.Label>>14); port != a.SPort {
			return fmt.Errorf("%s: label %d gives port %d, and not %d", a.Job, a.Label, port, a.SPort)
		}
		for i, l := range a.Links {
			if capacity[l] == 0 {
				return fmt.Errorf("%s: no link %s", a.Job, l)
			}
			if i > 0 {
				_, to, _ := strings.Cut(a.Links[i-1], "->")
				if sw, _, _ := strings.Cut(to, ":"); !strings.HasPrefix(l, sw+":") {
					return fmt.Errorf("%s: %s does not follow %s", a.Job, l, a.Links[i-1])
				}
			}
			if load[l] == nil {
				load[l] = map[string]float64{}
			}
			load[l][a.Job] += a.Weight
		}
	}
	demand := map[string]float64{}
	for _, j := range p.Jobs {
		if demand[j.Job] = math.Inf(1); j.Demand != nil {
			demand[j.Job] = *j.Demand
		}
	}
	rates := fairRates(capacity, load, demand)
	for _, j := range p.Jobs {
		if j.Busbw == nil {
			continue
		}
		if want := rates[j.Job]; math.Abs(*j.Busbw-want) > Tolerance*want {
			return fmt.Errorf("%s: %.4f Gb/s, the model gives %.4f", j.Job, *j.Busbw, want)
		}
	}
	return nil
}

// fairRates returns the max-min rates of jobs. The common rate of the jobs that are still raised is found by bisection; then those are
// fixed that are on a full link.
func fairRates(capacity map[string]float64, load map[string]map[string]float64, demand map[string]float64) map[string]float64 {
	fixed := map[string]float64{}
	// sum returns what a link carries, or 0 if all jobs on it are fixed: it has room for them, but for rounding.
	sum := func(l string, level float64) (sum float64) {
		open := false
		for j, w := range load[l] {
			r, done := fixed[j]
			if !done {
				r, open = min(level, demand[j]), true
			}
			sum += w * r
		}
		if !open {
			return 0
		}
		return sum
	}
	fits := func(level float64) bool {
		for l := range load {
			if sum(l, level) > capacity[l]*(1+1e-9) {
				return false
			}
		}
		return true
	}
	for len(fixed) < len(demand) {
		low, high := 0.0, 1e7
		for range 80 {
			if middle := (low + high) / 2; fits(middle) {
				low = middle
			} else {
				high = middle
			}
		}
		stop := map[string]bool{}
		for l, jobs := range load {
			if sum(l, low) >= capacity[l]*(1-1e-7) {
				for j := range jobs {
					stop[j] = true
				}
			}
		}
		before := len(fixed)
		for j, d := range demand {
			if _, done := fixed[j]; !done && (stop[j] || low >= d) {
				fixed[j] = min(low, d)
			}
		}
		if len(fixed) == before {
			break
		}
	}
	return fixed
}
