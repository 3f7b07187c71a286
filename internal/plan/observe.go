package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

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
	// Assumed is Ring where the job's file does not say what the job sends.
	Assumed string `json:"assumed,omitempty"`
	// Without lists the connections, as src->dst, of which no path of a queue pair is known. Elsewhere counts the queue pairs between NICs
	// that the job has no connection between. With any, what the job sends is not what is assumed or declared, and it has no rate.
	Without   []string `json:"without,omitempty"`
	Elsewhere int      `json:"elsewhere,omitempty"`
	// BusbwGbps is the rate that the paths allow. It is absent unless all paths of all connections are known.
	BusbwGbps *float64 `json:"busbw_gbps,omitempty"`
	// AtMostGbps bounds the rate where some paths are known.
	AtMostGbps  *float64    `json:"at_most_gbps,omitempty"`
	PlannedGbps *float64    `json:"planned_gbps,omitempty"` // with the ports of a plan, and as many queue pairs
	IdealGbps   *float64    `json:"ideal_gbps,omitempty"`
	HurtBy      []Collision `json:"hurt_by"`
	ByQPs       []Draw      `json:"by_qps"`
}

// unseenTexts say why the path of a queue pair is not known, in the order in which they are written.
var unseenTexts = []struct {
	reason Unseen
	text   string
}{
	{NoNIC, "are on a device that the topology does not have"},
	{NoPeer, "have no far one in a list: it may be made past the kernel (DEVX), or its node was not read"},
	{Ambiguous, "have numbers that come twice in the job"},
	{NotRead, "are of a job of which not all processes of all nodes were read"},
	{NoRule, "are of a driver whose source ports are not known"},
	{OfBond, "are on bonds, whose members are chosen by the driver"},
	{NoEntry, "have source ports of which no path is known"},
}

// agree returns a text about so many things, which begins with are, have or belong, for one of them if it is one.
func agree(n int, text string) string {
	if n == 1 {
		for _, verb := range [][2]string{{"are ", "is "}, {"have ", "has "}, {"belong ", "belongs "}} {
			if rest, ok := strings.CutPrefix(text, verb[0]); ok {
				return verb[1] + rest
			}
		}
	}
	return text
}

// plural returns a number of things in words.
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Obstacles returns sentences that say why the rate of the job is not known. It returns none where nothing of the job itself is missing.
func (j *ObservedJob) Obstacles() (out []string) {
	if j.QPs == 0 {
		out = append(out, fmt.Sprintf("%s has no connected queue pair in the lists.", j.Job))
	}
	for _, x := range unseenTexts {
		if n := j.Unseen[x.reason]; n > 0 {
			out = append(out, fmt.Sprintf("%s: %s %s.", j.Job, plural(n, "queue pair"), agree(n, x.text)))
		}
	}
	if n := len(j.Without); n > 0 && j.QPs > 0 {
		out = append(out, fmt.Sprintf("%s: no path of a queue pair is known for %s of its %s, such as %s.", j.Job, plural(n, "connection"), j.sends(), j.Without[0]))
	}
	if j.Elsewhere > 0 {
		out = append(out, fmt.Sprintf("%s: %s %s of its %s.", j.Job, plural(j.Elsewhere, "queue pair"), agree(j.Elsewhere, "belong to no connection"), j.sends()))
	}
	return out
}

// sends names what the job is held to send.
func (j *ObservedJob) sends() string {
	if j.Assumed != "" {
		return "ring in the order of its nodes, which is assumed since no placement file has what it sends"
	}
	return "placement file"
}

// RateText returns the rate that the paths allow, in words.
func (j *ObservedJob) RateText() string {
	switch {
	case j.BusbwGbps != nil:
		return fmt.Sprintf("%.1f Gb/s", *j.BusbwGbps)
	case j.AtMostGbps != nil:
		return fmt.Sprintf("at most %.1f Gb/s", *j.AtMostGbps)
	}
	return "unknown"
}

// HurtTexts returns sentences that say which full links hold the job back, and whose queue pairs are on them.
func (j *ObservedJob) HurtTexts() (out []string) {
	for _, x := range j.HurtBy {
		var by []string
		for job, n := range x.QPs {
			by = append(by, fmt.Sprintf("%d of %s", n, job))
		}
		slices.Sort(by)
		out = append(out, fmt.Sprintf("%s is held back by %s (%.0f Gb/s), which is full with queue pairs: %s.", j.Job, x.Link, x.CapacityGbps, strings.Join(by, ", ")))
	}
	return out
}

// DrawTexts returns sentences about other numbers of queue pairs.
func (j *ObservedJob) DrawTexts() (out []string) {
	for _, d := range j.ByQPs {
		out = append(out, fmt.Sprintf("%s with %s a connection and ports by chance: %.1f Gb/s at the median, %.1f to %.1f in 80 of 100.", j.Job, plural(d.QPs, "queue pair"), d.Median, d.P10, d.P90))
	}
	return out
}

// Observation is what the queue pairs of jobs that run do on the fabric.
type Observation struct {
	Version    int           `json:"version"`
	Nodes      int           `json:"nodes"` // that were read
	Jobs       []ObservedJob `json:"jobs"`
	QueuePairs []Observed    `json:"queue_pairs"`
	// Links are the loads of the links between switches. It is absent unless all rates are known.
	Links []LinkShare `json:"links,omitempty"`

	steps int
}

// LinkShare is what a direction of a link has to carry for the jobs to have the rates of a plan, as shares of its capacity: with the
// paths of the queue pairs that run, and with those of the plan.
type LinkShare struct {
	Link string  `json:"link"`
	Now  float64 `json:"now"`
	Plan float64 `json:"plan"`
}

// Observe finds the paths of queue pairs that run. The far one of a queue pair with the numbers (l, r) is the one of the same job with
// (r, l). It has to be the only one, and all nodes of the job have to be read: a number may come twice, and then nothing is said.
// Ports follow from the kernel's rule without a flow label, which is what NCCL sets. The plan that the queue pairs are compared with has so many
// steps; 0 stands for DefaultSteps.
func Observe(n *Network, c *Catalogue, jobs []Job, nodes []queuepair.Node, steps int) (*Observation, error) {
	conns, err := n.connections(jobs)
	if err != nil {
		return nil, err
	}
	o := &Observation{Version: Version, Nodes: len(nodes), Jobs: []ObservedJob{}, QueuePairs: collect(nodes), steps: steps}
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
		for _, node := range NodesOf(&jobs[j]) {
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

// NodesOf returns the names of the nodes of a job.
func NodesOf(j *Job) []string {
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

// traffic is what the queue pairs of jobs put on links.
type traffic struct {
	load [][]jobLoad      // by link
	qps  []map[string]int // queue pairs by link and job
	// whole states for each job whether all its connections have queue pairs, and the paths of all of them are known.
	whole []bool
}

// spread puts the queue pairs on the links that they cross, for the connections that have some. It sets qps of connections without a number.
func (o *Observation) spread(n *Network, jobs []Job, conns []connection) *traffic {
	t := &traffic{load: make([][]jobLoad, len(n.links)), qps: make([]map[string]int, len(n.links)), whole: make([]bool, len(jobs))}
	byPair := map[[3]string][]*Observed{}
	for i := range o.QueuePairs {
		if q := &o.QueuePairs[i]; q.links != nil {
			k := [3]string{q.Job, q.Src, q.Dst}
			byPair[k] = append(byPair[k], q)
		}
	}
	for j := range jobs {
		t.whole[j] = true
	}
	for i := range conns {
		x := &conns[i]
		on := byPair[[3]string{jobs[x.job].Name(), x.src.id, x.dst.id}]
		if len(on) == 0 {
			t.whole[x.job] = false
			o.Jobs[x.job].Without = append(o.Jobs[x.job].Without, x.src.id+"->"+x.dst.id)
		}
		x.qps = cmp.Or(x.qps, len(on))
		for _, q := range on {
			for _, l := range q.links {
				t.load[l] = addLoad(t.load[l], x.job, x.share/float64(len(on)))
				if t.qps[l] == nil {
					t.qps[l] = map[string]int{}
				}
				t.qps[l][q.Job]++
			}
		}
	}
	return t
}

// count counts the queue pairs of each job, and those between NICs that it has no connection between.
func (o *Observation) count(jobs []Job, conns []connection) {
	at := map[string]int{}
	for j := range jobs {
		at[jobs[j].Name()] = j
		x := ObservedJob{Job: jobs[j].Name(), HurtBy: []Collision{}, ByQPs: []Draw{}}
		if !jobs[j].Sends() {
			x.Assumed = Ring
		}
		o.Jobs = append(o.Jobs, x)
	}
	connected := map[[3]string]bool{}
	for i := range conns {
		x := &conns[i]
		// A queue pair is in the lists of both ends.
		connected[[3]string{jobs[x.job].Name(), x.src.id, x.dst.id}] = true
		connected[[3]string{jobs[x.job].Name(), x.dst.id, x.src.id}] = true
	}
	for i := range o.QueuePairs {
		q := &o.QueuePairs[i]
		j, ok := at[q.Job]
		if !ok || q.Unseen == NotConnected || q.Unseen == OfKernel {
			continue
		}
		x := &o.Jobs[j]
		x.QPs++
		if q.Dst != "" && !connected[[3]string{q.Job, q.Src, q.Dst}] {
			x.Elsewhere++
		}
		if q.Unseen == "" {
			x.Known++
			continue
		}
		if x.Unseen == nil {
			x.Unseen = map[Unseen]int{}
		}
		x.Unseen[q.Unseen]++
	}
}

// judge computes what the jobs reach.
func (o *Observation) judge(n *Network, c *Catalogue, jobs []Job, conns []connection) error {
	demand := demands(jobs)
	ideal, exact := n.idealRates(conns, demand)
	o.count(jobs, conns)
	t := o.spread(n, jobs, conns)
	rates := maxMin(n.capacities(), t.load, demand)
	allWhole := true
	for j := range o.Jobs {
		x := &o.Jobs[j]
		t.whole[j] = t.whole[j] && x.Known == x.QPs && x.Elsewhere == 0
		allWhole = allWhole && t.whole[j]
		if exact && !math.IsInf(ideal[j], 1) {
			v := rounded(ideal[j])
			x.IdealGbps = &v
		}
	}
	for j := range o.Jobs {
		x := &o.Jobs[j]
		if math.IsInf(rates[j], 1) || x.Known == 0 || x.Elsewhere > 0 {
			continue
		}
		v := rounded(rates[j])
		if allWhole { // a queue pair that is not seen may be on any link
			x.BusbwGbps = &v
		} else {
			x.AtMostGbps = &v
		}
		x.HurtBy = n.collisions(t.load, t.qps, rates, demand, j)
	}
	if !allWhole {
		return nil
	}
	return o.compare(n, c, jobs, conns, t, demand)
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
func (o *Observation) compare(n *Network, c *Catalogue, jobs []Job, conns []connection, t *traffic, demand []float64) error {
	same := make([]Job, len(jobs))
	for j := range jobs {
		same[j] = jobs[j]
		if same[j].QPs == 0 && len(same[j].Flows) == 0 {
			at := slices.IndexFunc(conns, func(x connection) bool { return x.job == j })
			same[j].QPs = conns[at].qps
		}
	}
	p, err := Make(&Request{Network: n, Catalogue: c, Jobs: same, Steps: o.steps})
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
	o.Links = o.shares(n, p, t)
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

// shares returns the loads of links between switches at the rates of a plan, or nil if the plan has not all rates.
func (o *Observation) shares(n *Network, p *Plan, t *traffic) (out []LinkShare) {
	planned := map[string]float64{}
	for i := range p.Links {
		planned[p.Links[i].From] = p.Links[i].PlannedGbps
	}
	for l := range n.links {
		if n.to[l] < 0 || n.switchOf(n.links[l].from) < 0 {
			continue
		}
		x := LinkShare{Link: n.links[l].name, Plan: rounded(planned[n.links[l].from] / n.links[l].capacity)}
		for _, load := range t.load[l] {
			rate := o.Jobs[load.job].PlannedGbps
			if rate == nil {
				return nil
			}
			x.Now += load.weight * *rate / n.links[l].capacity
		}
		x.Now = rounded(x.Now)
		out = append(out, x)
	}
	return out
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
