package plan

import (
	"math"
	"slices"
)

// full is the share of a capacity from which on a link counts as full. Rates are sums of many rounded numbers.
const full = 1 - 1e-12

// jobLoad is what a job puts on a link per unit of its rate.
type jobLoad struct {
	job    int
	weight float64
}

// addLoad adds to the load of a link. Loads are added in the order of the jobs.
func addLoad(load []jobLoad, job int, weight float64) []jobLoad {
	if n := len(load); n > 0 && load[n-1].job == job {
		load[n-1].weight += weight
		return load
	}
	return append(load, jobLoad{job, weight})
}

// maxMin returns the rates of jobs: all are raised together until a link is full or a rate is its demand, and the jobs that
// this concerns are frozen. load has, for each link, what each job puts on it per unit of its rate. The rate of a job that
// is on no link and has no demand is infinite.
func maxMin(capacity []float64, load [][]jobLoad, demand []float64) []float64 {
	const none = 1e-12
	rates := make([]float64, len(demand))
	frozen := make([]bool, len(demand))
	stop := make([]bool, len(demand))
	sum := make([]float64, len(capacity)) // of the jobs that are not frozen
	used := make([]float64, len(capacity))
	linksOf := make([][]jobLoad, len(demand)) // of each job: a link in the field job
	var open []int                            // links that jobs which are not frozen use
	count, total := make([]int, len(demand)), 0
	for _, jobs := range load {
		for _, j := range jobs {
			count[j.job]++
		}
		total += len(jobs)
	}
	room := make([]jobLoad, total)
	for j, n := range count {
		linksOf[j], room = room[:0:n], room[n:]
	}
	for l, jobs := range load {
		for _, j := range jobs {
			sum[l] += j.weight
			linksOf[j.job] = append(linksOf[j.job], jobLoad{l, j.weight})
		}
		if sum[l] > none {
			open = append(open, l)
		}
	}
	for left := len(demand); left > 0; {
		level := math.Inf(1)
		for _, l := range open {
			level = min(level, (capacity[l]-used[l])/sum[l])
		}
		for j, d := range demand {
			if !frozen[j] {
				level = min(level, d)
			}
		}
		for j, d := range demand {
			stop[j] = !frozen[j] && (d <= level || math.IsInf(level, 1))
		}
		for _, l := range open {
			if used[l]+sum[l]*level >= capacity[l]*full {
				for _, j := range load[l] {
					stop[j.job] = stop[j.job] || !frozen[j.job]
				}
			}
		}
		for j := range stop {
			if !stop[j] {
				continue
			}
			rates[j], frozen[j] = level, true
			left--
			for _, x := range linksOf[j] {
				sum[x.job] -= x.weight
				used[x.job] += x.weight * level
			}
		}
		open = slices.DeleteFunc(open, func(l int) bool { return sum[l] <= none })
	}
	return rates
}
