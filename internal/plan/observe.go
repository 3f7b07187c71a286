package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/queuepair"
	"github.com/graylink/graylink/internal/roce"
)

// Unseen states why the path of a queue pair that runs is not known.
type Unseen string

// Reasons, in the order in which they are looked for.
const (
	NotConnected Unseen = "not_connected" // it has no far one, or cannot send
	OfKernel     Unseen = "kernel"        // no process made it
	NoJob        Unseen = "no_job"        // no job is placed on its node
	NoNIC        Unseen = "no_nic"        // the topology has no NIC of its device's name
	NoPeer       Unseen = "no_peer"       // no node of its job has a queue pair with its numbers the other way round
	Ambiguous    Unseen = "ambiguous"     // several have
	NotRead      Unseen = "not_read"      // the lists of the job's nodes are not complete, so that the only match may be a wrong one
	NoRule       Unseen = "no_rule"       // how its driver chooses the source port is not known
	OfBond       Unseen = "bond"          // which member of a bond sends is not known
	NoEntry      Unseen = "no_entry"      // the catalogue has no valid path of its port
)

// Observed is a queue pair of a job that runs, in the direction in which its node sends.
type Observed struct {
	Job    string `json:"job,omitempty"`
	Node   string `json:"node"`
	Device string `json:"device"`
	LQPN   uint32 `json:"lqpn"`
	RQPN   uint32 `json:"rqpn,omitempty"`
	// Src and Dst are the NICs at both ends, or the bonds of such NICs. They are empty where they are not known.
	Src string `json:"src,omitempty"`
	Dst string `json:"dst,omitempty"`
	// SPort is the UDP source port by the kernel's rule, for a queue pair without a flow label. 0: not known.
	SPort  uint16   `json:"sport,omitempty"`
	Links  []string `json:"links,omitempty"`
	Unseen Unseen   `json:"unseen,omitempty"`

	links  []int32
	driver string
}

// Collision is a full link that holds a job back, and the queue pairs of each job on it.
type Collision struct {
	Link         string         `json:"link"`
	CapacityGbps float64        `json:"capacity_gbps"`
	QPs          map[string]int `json:"qps"`
}

// Draw is what a job reaches with a number of queue pairs per connection whose ports are drawn at random, as those of an
// unmodified library are.
type Draw struct {
	QPs    int     `json:"qps"`
	P10    float64 `json:"p10_gbps"`
	Median float64 `json:"median_gbps"`
	P90    float64 `json:"p90_gbps"`
}

// ObservedJob is what the queue pairs of a job that runs can reach.
type ObservedJob struct {
	Job string `json:"job"`
	// QPs counts the connected queue pairs of the job's processes, Known those of them whose path is known, and Unseen the others by
	// the reason.
	QPs    int            `json:"qps"`
	Known  int            `json:"known"`
	Unseen map[Unseen]int `json:"unseen,omitempty"`
	// BusbwGbps is the rate that the paths allow. It is absent unless all paths of all connections are known.
	BusbwGbps *float64 `json:"busbw_gbps,omitempty"`
	// AtMostGbps bounds the rate where some paths are known.
	AtMostGbps  *float64    `json:"at_most_gbps,omitempty"`
	PlannedGbps *float64    `json:"planned_gbps,omitempty"` // with the ports of a plan, and as many queue pairs
	IdealGbps   *float64    `json:"ideal_gbps,omitempty"`
	HurtBy      []Collision `json:"hurt_by"`
	ByQPs       []Draw      `json:"by_qps"`
}

// Observation is what the queue pairs of jobs that run do on the fabric.
type Observation struct {
	Version    int           `json:"version"`
	Nodes      int           `json:"nodes"` // that were read
	Jobs       []ObservedJob `json:"jobs"`
	QueuePairs []Observed    `json:"queue_pairs"`
}

// Observe finds the paths of queue pairs that run. The far one of a queue pair with the numbers (l, r) is the one of the same job with
// (r, l). It has to be the only one, and all nodes of the job have to be read: a number may come twice, and then nothing is said.
// Ports follow from the kernel's rule without a flow label, which is what NCCL sets.
func Observe(n *Network, c *Catalogue, jobs []Job, nodes []queuepair.Node) (*Observation, error) {
	conns, err := n.connections(jobs)
	if err != nil {
		return nil, err
	}
	o := &Observation{Version: Version, Nodes: len(nodes), Jobs: []ObservedJob{}, QueuePairs: collect(nodes)}
	o.match(n, jobs, nodes)
	for i := range o.QueuePairs {
		o.QueuePairs[i].follow(n, c)
	}
	return o, o.judge(n, c, jobs, conns)
}

// collect returns the queue pairs of all nodes.
func collect(nodes []queuepair.Node) []Observed {
	out := []Observed{}
	for i := range nodes {
		for _, q := range nodes[i].QueuePairs {
			x := Observed{Node: nodes[i].Node, Device: q.Device, LQPN: q.Local, RQPN: q.Remote, driver: q.Driver}
			switch {
			case !q.Connected():
				x.Unseen = NotConnected
			case q.PID == 0:
				x.Unseen = OfKernel
			}
			out = append(out, x)
		}
	}
	return out
}

// numbers are those of a queue pair within one job.
type numbers struct {
	job           int
	local, remote uint32
}

// match finds the jobs and the ends of the queue pairs.
func (o *Observation) match(n *Network, jobs []Job, nodes []queuepair.Node) {
	read := map[string]bool{} // whether the list of a node is complete
	for i := range nodes {
		read[nodes[i].Node] = nodes[i].HostNamespace
	}
	of := map[string][]int{} // jobs by node
	complete := make([]bool, len(jobs))
	for j := range jobs {
		complete[j] = true
		for _, node := range nodesOf(&jobs[j]) {
			of[node] = append(of[node], j)
			complete[j] = complete[j] && read[node]
		}
	}
	places := map[numbers][]int{}
	for i := range o.QueuePairs {
		q := &o.QueuePairs[i]
		if q.Unseen != "" {
			continue
		}
		if len(of[q.Node]) == 0 {
			q.Unseen = NoJob
			continue
		}
		if nic := n.Graph.NIC(q.Node + "/" + q.Device); nic == nil {
			q.Unseen = NoNIC
		} else {
			q.Src = n.unitOf[nic.ID()].id
		}
		for _, j := range of[q.Node] {
			k := numbers{j, q.LQPN, q.RQPN}
			places[k] = append(places[k], i)
		}
	}
	for i := range o.QueuePairs {
		q := &o.QueuePairs[i]
		if q.Unseen != "" {
			continue
		}
		far, job, found, all := 0, 0, 0, true
		for _, j := range of[q.Node] {
			all = all && complete[j]
			same, others := places[numbers{j, q.LQPN, q.RQPN}], places[numbers{j, q.RQPN, q.LQPN}]
			if len(others) == 0 || len(others) == 1 && others[0] == i {
				continue
			}
			for _, at := range others {
				if at != i {
					far, job, found = at, j, found+1
				}
			}
			if q.LQPN != q.RQPN {
				found += len(same) - 1
			}
		}
		switch {
		case len(of[q.Node]) == 1:
			q.Job = jobs[of[q.Node][0]].Name()
		case found == 1:
			q.Job = jobs[job].Name()
		}
		switch {
		case found == 0:
			q.Unseen = NoPeer
		case found > 1:
			q.Unseen = Ambiguous
		case !all:
			q.Unseen = NotRead
		case o.QueuePairs[far].Src == "":
			q.Unseen = NoNIC
		default:
			q.Dst = o.QueuePairs[far].Src
		}
	}
}

// nodesOf returns the names of the nodes of a job.
func nodesOf(j *Job) []string {
	out := slices.Clone(j.Nodes)
	add := func(name string) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, nic := range j.NICs {
		add(fabric.OwnerOf(nic))
	}
	for _, f := range j.Flows {
		add(fabric.OwnerOf(f.Src))
		add(fabric.OwnerOf(f.Dst))
	}
	return out
}

// follow finds the path of a queue pair.
func (q *Observed) follow(n *Network, c *Catalogue) {
	if q.Unseen != "" {
		return
	}
	src, dst := n.units[q.Src], n.units[q.Dst]
	switch {
	case !connectedRule[q.driver]:
		q.Unseen = NoRule
		return
	case len(src.members) > 1:
		q.Unseen = OfBond
		return
	}
	q.SPort = roce.ConnectedPort(0, q.LQPN, q.RQPN)
	ports, _ := c.of(src.members[0], dst)
	at, ok := slices.BinarySearchFunc(ports, q.SPort, func(p portPath, want uint16) int { return cmp.Compare(p.sport, want) })
	if !ok || ports[at].length == 0 {
		q.Unseen = NoEntry
		return
	}
	q.links = c.links(&ports[at])
	q.Links = n.linkNames(q.links)
}

// connectedRule lists the drivers that give connected queue pairs ports by the kernel's common rule.
var connectedRule = map[string]bool{"mlx5_core": true, "hns3": true, "rdma_rxe": true}

// judge computes what the jobs reach.
func (o *Observation) judge(n *Network, c *Catalogue, jobs []Job, conns []connection) error {
	demand := demands(jobs)
	ideal, exact := n.idealRates(conns, demand)
	byPair := map[[3]string][]*Observed{}
	for i := range o.QueuePairs {
		if q := &o.QueuePairs[i]; q.links != nil {
			k := [3]string{q.Job, q.Src, q.Dst}
			byPair[k] = append(byPair[k], q)
		}
	}
	load := make([][]jobLoad, len(n.links))
	qps := make([]map[string]int, len(n.links))
	whole := make([]bool, len(jobs))
	for j := range whole {
		whole[j] = true
	}
	for i := range conns {
		x := &conns[i]
		on := byPair[[3]string{jobs[x.job].Name(), x.src.id, x.dst.id}]
		whole[x.job] = whole[x.job] && len(on) > 0
		x.qps = cmp.Or(x.qps, len(on))
		for _, q := range on {
			for _, l := range q.links {
				load[l] = addLoad(load[l], x.job, x.share/float64(len(on)))
				if qps[l] == nil {
					qps[l] = map[string]int{}
				}
				qps[l][q.Job]++
			}
		}
	}
	rates := maxMin(n.capacities(), load, demand)
	allWhole := true
	for j := range jobs {
		x := ObservedJob{Job: jobs[j].Name(), HurtBy: []Collision{}, ByQPs: []Draw{}}
		for i := range o.QueuePairs {
			q := &o.QueuePairs[i]
			if q.Job != x.Job || q.Unseen == NotConnected || q.Unseen == OfKernel {
				continue
			}
			x.QPs++
			if q.Unseen == "" {
				x.Known++
				continue
			}
			if x.Unseen == nil {
				x.Unseen = map[Unseen]int{}
			}
			x.Unseen[q.Unseen]++
		}
		whole[j] = whole[j] && x.Known == x.QPs
		allWhole = allWhole && whole[j]
		if exact && !math.IsInf(ideal[j], 1) {
			v := rounded(ideal[j])
			x.IdealGbps = &v
		}
		o.Jobs = append(o.Jobs, x)
	}
	for j := range o.Jobs {
		x := &o.Jobs[j]
		if math.IsInf(rates[j], 1) || x.Known == 0 {
			continue
		}
		v := rounded(rates[j])
		if allWhole { // a queue pair that is not seen may be on any link
			x.BusbwGbps = &v
		} else {
			x.AtMostGbps = &v
		}
		x.HurtBy = n.collisions(load, qps, rates, demand, j)
	}
	if !allWhole {
		return nil
	}
	return o.compare(n, c, jobs, conns, demand)
}

// collisions returns the full links of a job, if these hold it back.
func (n *Network) collisions(load [][]jobLoad, qps []map[string]int, rates, demand []float64, job int) []Collision {
	out := []Collision{}
	if rates[job] >= demand[job]*full {
		return out
	}
	for l, on := range load {
		sum := 0.0
		for _, x := range on {
			sum += x.weight * rates[x.job]
		}
		if sum >= n.links[l].capacity*full && slices.ContainsFunc(on, func(x jobLoad) bool { return x.job == job }) {
			out = append(out, Collision{Link: n.links[l].from + "->" + n.links[l].to, CapacityGbps: rounded(n.links[l].capacity), QPs: qps[l]})
		}
	}
	return out
}

// draws is the number of random draws of which a distribution is made.
const draws = 100

// compare adds what a plan gives with as many queue pairs, and what other numbers of queue pairs with ports at random give.
func (o *Observation) compare(n *Network, c *Catalogue, jobs []Job, conns []connection, demand []float64) error {
	same := make([]Job, len(jobs))
	for j := range jobs {
		same[j] = jobs[j]
		if same[j].QPs == 0 && len(same[j].Flows) == 0 {
			at := slices.IndexFunc(conns, func(x connection) bool { return x.job == j })
			same[j].QPs = conns[at].qps
		}
	}
	p, err := Make(&Request{Network: n, Catalogue: c, Jobs: same})
	if err != nil {
		return fmt.Errorf("a plan for the same jobs: %w", err)
	}
	for j := range o.Jobs {
		for i := range p.Jobs {
			if p.Jobs[i].Job == o.Jobs[j].Job {
				o.Jobs[j].PlannedGbps = p.Jobs[i].BusbwGbps
			}
		}
	}
	paths := make([][]option, len(conns))
	for i := range conns {
		if paths[i], _ = c.options(&conns[i], true); len(paths[i]) == 0 {
			return nil
		}
	}
	for _, q := range []int{1, 2, 4, 8, 16, 32} {
		values := make([][]float64, len(jobs))
		for seed := range uint64(draws) {
			for j, r := range n.drawRates(paths, conns, demand, q, seed) {
				values[j] = append(values[j], r)
			}
		}
		for j := range o.Jobs {
			v := values[j]
			slices.Sort(v)
			if math.IsInf(v[len(v)-1], 1) {
				continue
			}
			o.Jobs[j].ByQPs = append(o.Jobs[j].ByQPs, Draw{q, rounded(v[draws/10]), rounded(v[draws/2]), rounded(v[draws-1-draws/10])})
		}
	}
	return nil
}

// drawRates returns the rates of jobs whose queue pairs have ports at random, of the paths of each connection.
func (n *Network) drawRates(paths [][]option, conns []connection, demand []float64, qps int, seed uint64) []float64 {
	load := make([][]jobLoad, len(n.links))
	for i := range conns {
		x := &conns[i]
		x.draw(paths[i], qps, seed, i, func(o *option) {
			for _, l := range o.links {
				load[l] = addLoad(load[l], x.job, x.share/float64(qps))
			}
		})
	}
	return maxMin(n.capacities(), load, demand)
}
