package ibsample

import (
	"cmp"
	"maps"
	"slices"
)

// Key identifies a port independently of its LID.
type Key struct {
	Node uint64 `json:"node"` // GUID
	Port uint8  `json:"port"`
}

func (k Key) compareKey(o Key) int {
	return cmp.Or(cmp.Compare(k.Node, o.Node), cmp.Compare(k.Port, o.Port))
}

// Plan lists the samplers of each port.
type Plan map[Key][]string

// AssignPorts divides the ports among the samplers. A pinned port goes to its sampler, if that is present, and
// to as many others as make redundancy samplers in all; every other port goes to redundancy samplers. Ports
// that are not pinned are divided within one port of even, and as much of the plan before is kept as that
// allows. If there are fewer samplers than redundancy, each reads everything.
func AssignPorts(ports []Key, samplers []string, pins map[Key]string, redundancy int, before Plan) Plan {
	if len(samplers) == 0 {
		return Plan{}
	}
	ports, samplers = slices.Clone(ports), slices.Clone(samplers)
	slices.SortFunc(ports, Key.compareKey)
	slices.Sort(samplers)
	redundancy = min(max(redundancy, 1), len(samplers))

	plan := make(Plan, len(ports))
	load := make(map[string]int, len(samplers)) // shares that are not pinned
	for _, s := range samplers {
		load[s] = 0
	}
	for _, p := range ports {
		var holders []string
		pin, pinned := pins[p]
		if _, here := load[pin]; pinned && here {
			holders = append(holders, pin)
		}
		for _, s := range before[p] {
			if _, here := load[s]; here && len(holders) < redundancy && !slices.Contains(holders, s) {
				holders = append(holders, s)
				load[s]++
			}
		}
		plan[p] = holders
	}
	shares := 0
	for _, p := range ports {
		shares += redundancy
		if pin, ok := pins[p]; ok && slices.Contains(samplers, pin) {
			shares--
		}
	}
	// A run of ports, which belong to one switch, goes to one sampler until that has its share, so that few
	// samplers query the same switch.
	quota := (shares + len(samplers) - 1) / len(samplers)
	last := ""
	for _, p := range ports {
		for len(plan[p]) < redundancy {
			if last == "" || load[last] >= quota || slices.Contains(plan[p], last) {
				last = leastLoaded(samplers, load, plan[p])
			}
			plan[p] = append(plan[p], last)
			load[last]++
		}
	}
	levelLoad(plan, ports, samplers, pins, load)
	for _, p := range ports {
		slices.Sort(plan[p])
	}
	return plan
}

// leastLoaded returns the sampler with the fewest shares that does not hold the port yet.
func leastLoaded(samplers []string, load map[string]int, holders []string) string {
	best := ""
	for _, s := range samplers {
		if !slices.Contains(holders, s) && (best == "" || load[s] < load[best]) {
			best = s
		}
	}
	return best
}

// levelLoad moves shares from the sampler with the most to the one with the fewest until they differ by at most
// one. By counting, the one with more always holds a port that the other does not; a port that is pinned to the
// other does not count as a share of it, hence the limit.
func levelLoad(plan Plan, ports []Key, samplers []string, pins map[Key]string, load map[string]int) {
	byLoad := func(a, b string) int { return cmp.Or(cmp.Compare(load[a], load[b]), cmp.Compare(a, b)) }
	next := map[[2]string]int{} // where the search for a port to move continues
	for {
		order := slices.SortedFunc(maps.Keys(load), byLoad)
		moved := false
	pair:
		for _, to := range order {
			for _, from := range slices.Backward(order) {
				if load[from]-load[to] < 2 {
					break
				}
				pair := [2]string{from, to}
				for i := next[pair]; i < len(ports); i++ {
					holders := plan[ports[i]]
					at := slices.Index(holders, from)
					if at < 0 || pins[ports[i]] == from || slices.Contains(holders, to) {
						continue
					}
					holders[at] = to
					load[from]--
					load[to]++
					next[pair] = i + 1
					moved = true
					break pair
				}
			}
		}
		if !moved {
			return
		}
	}
}
