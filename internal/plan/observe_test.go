package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/queuepair"
	"github.com/graylink/graylink/internal/roce"
)

// running opens the queue pairs of jobs as their libraries would, with numbers drawn by number, and returns the lists of all nodes. On
// the calibration c4, queue pairs of a bond's members have the members' devices.
func running(t *testing.T, n *Network, jobs []Job, qps int, number func(node string) uint32) []queuepair.Node {
	t.Helper()
	conns, err := n.connections(jobs)
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string]*queuepair.Node{}
	add := func(nic string, local, remote uint32) {
		x := n.Graph.NIC(nic)
		l := lists[x.Node]
		if l == nil {
			l = &queuepair.Node{Node: x.Node, HostNamespace: true}
			lists[x.Node] = l
		}
		l.QueuePairs = append(l.QueuePairs, queuepair.QueuePair{Device: x.Device, Port: 1, Driver: "mlx5_core", Local: local, Remote: remote, Type: "rc", State: "rts", PID: 7, Process: "python"})
	}
	for i := range conns {
		for q := range qps {
			src, dst := conns[i].src.members, conns[i].dst.members
			a, b := src[q%len(src)], dst[q%len(dst)]
			l, r := number(n.Graph.NIC(a).Node), number(n.Graph.NIC(b).Node)
			add(a, l, r)
			add(b, r, l)
		}
	}
	var out []queuepair.Node
	for _, l := range lists {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b queuepair.Node) int {
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
	return out
}

// plainNetwork returns a leaf-spine fabric without bonds: two leaves with half of the hosts each, and two spines.
func plainNetwork(t *testing.T, hosts int) *Network {
	t.Helper()
	text := "version: 1\nswitches:\n"
	links := ""
	for s := 1; s <= 2; s++ {
		text += fmt.Sprintf("  - {name: spine%d, role: spine, tier: 2}\n  - {name: leaf%d, role: leaf, tier: 1}\n", s, s)
		for l := 1; l <= 2; l++ {
			links += fmt.Sprintf("  - {a: \"leaf%d:up%d\", b: \"spine%d:dn%d\", speed_gbps: 400}\n", l, s, s, l)
		}
	}
	text += "nodes:\n"
	for h := 1; h <= hosts; h++ {
		text += fmt.Sprintf("  - {name: h%d, nics: [{device: eth1, aliases: [mlx5_0], addresses: [10.0.%d.2]}]}\n", h, h)
		links += fmt.Sprintf("  - {a: h%d/eth1, b: \"leaf%d:dn%d\", speed_gbps: 200}\n", h, (h-1)/(hosts/2)+1, (h-1)%(hosts/2)+1)
	}
	topo, found := fabric.ParseTopology("plain.yaml", []byte(text+"links:\n"+links))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	n, err := NewNetwork(fabric.NewGraph(topo), DefaultGoodput)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// allPorts returns the catalogue with every source port of the pairs of jobs.
func allPorts(t *testing.T, n *Network, jobs []Job, seed uint64) (*Catalogue, *Hash) {
	t.Helper()
	c, h := NewCatalogue(n), NewHash(n, seed)
	err := n.Pairs(jobs, func(src string, dst []string) error {
		for port := FirstRoCEPort; port < 1<<16; port++ {
			if e, ok := h.Entry(src, dst, uint16(port)); ok {
				c.Add(&e)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, h
}

// TestObserveFindsPaths has queue pairs of two jobs with random numbers. Their paths have to be those of the fabric's hash, and the
// rates those of the links that they fill.
func TestObserveFindsPaths(t *testing.T) {
	n := plainNetwork(t, 8)
	jobs := []Job{{Job: "a", Nodes: []string{"h1", "h5"}}, {Job: "b", Nodes: []string{"h2", "h6"}}}
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c, hash := allPorts(t, n, jobs, seed)
		lists := running(t, n, jobs, 4, func(string) uint32 { return uint32(rng.IntN(maxTestNumber)) + 1 })
		o, err := Observe(n, c, jobs, lists, 0)
		if err != nil {
			t.Fatal(err)
		}
		crossing := map[string]map[string]float64{} // queue pairs by direction and job
		for i := range o.QueuePairs {
			q := &o.QueuePairs[i]
			want, _ := hash.Entry(q.Src, []string{q.Dst}, roce.ConnectedPort(0, q.LQPN, q.RQPN))
			path, _ := n.follow(nil, want.Src, want.Dst, want.Path)
			if q.Unseen != "" || !slices.Equal(q.Links, n.linkNames(path)) {
				t.Fatalf("seed %d: %+v, want the path %v", seed, q, n.linkNames(path))
			}
			for _, l := range q.Links {
				if crossing[l] == nil {
					crossing[l] = map[string]float64{}
				}
				crossing[l][q.Job] += 1.0 / 8 // of both connections of the job: 4 queue pairs each, seen from both ends
			}
		}
		// By hand: all rates rise until a link is full. With two jobs, the first full link has the one or both.
		level, hurt := 1e9, ""
		for l, by := range crossing {
			capacity := 400 * DefaultGoodput
			if strings.Contains(l, "/") { // of a host
				capacity = 200 * DefaultGoodput
			}
			if x := capacity / (by["a"] + by["b"]); x < level {
				level, hurt = x, l
			}
		}
		slowest := min(*o.Jobs[0].BusbwGbps, *o.Jobs[1].BusbwGbps)
		if diff := slowest - level; diff > 1e-6 || diff < -1e-6 {
			t.Errorf("seed %d: the slowest job has %v, by hand %v (%s)", seed, slowest, level, hurt)
		}
		for _, j := range o.Jobs {
			if *j.BusbwGbps > *j.PlannedGbps+1e-6 || *j.PlannedGbps > *j.IdealGbps+1e-6 {
				t.Errorf("seed %d: %v by hash, %v by plan, %v ideal", seed, *j.BusbwGbps, *j.PlannedGbps, *j.IdealGbps)
			}
			if len(j.ByQPs) != 6 || j.ByQPs[0].Median > j.ByQPs[5].Median {
				t.Errorf("seed %d: %+v: more queue pairs are expected to spread better", seed, j.ByQPs)
			}
		}
	}
}

const maxTestNumber = 1 << 24

// TestObserveNeverGuesses has lists in which numbers come twice or are not complete.
func TestObserveNeverGuesses(t *testing.T) {
	n := plainNetwork(t, 16)
	all := []Job{{Job: "a"}}
	for h := 1; h <= 16; h++ {
		all[0].Nodes = append(all[0].Nodes, fmt.Sprintf("h%d", h))
	}
	c, _ := allPorts(t, n, all, 1)
	next := map[string]uint32{}
	same := func(node string) uint32 { next[node]++; return 100 + next[node] } // as hosts that started alike
	lists := running(t, n, all, 2, same)
	unique := 0
	o, err := Observe(n, c, all, lists, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range o.QueuePairs {
		switch q := &o.QueuePairs[i]; {
		case q.Unseen == Ambiguous:
		case q.Unseen == "" || q.Unseen == NoEntry && q.Dst != "": // the catalogue has the way round the ring only
			unique++
			if !adjacent(t, q.Src, q.Dst) {
				t.Errorf("%s is matched with %s, to which it has no connection", q.Src, q.Dst)
			}
		default:
			t.Errorf("%+v: ambiguous is expected", q)
		}
	}
	if unique == len(o.QueuePairs) {
		t.Error("no number came twice: the test tests nothing")
	}
	if o.Jobs[0].BusbwGbps != nil {
		t.Error("a rate, though paths are not known")
	}
	pair := []Job{{Job: "a", Nodes: []string{"h1", "h5"}}}
	number := uint32(0)
	apart := func(string) uint32 { number += 17; return number }
	whole := running(t, n, pair, 1, apart)
	for _, x := range []struct {
		name   string
		change func([]queuepair.Node) []queuepair.Node
		want   Unseen
	}{
		{"a list of one PID namespace", func(l []queuepair.Node) []queuepair.Node { l[1].HostNamespace = false; return l }, NotRead},
		{"a node that was not read", func(l []queuepair.Node) []queuepair.Node { return l[:1] }, NoPeer},
		{"a driver without a rule", func(l []queuepair.Node) []queuepair.Node { l[0].QueuePairs[0].Driver = "bnxt_re"; return l }, NoRule},
		{"the kernel's own", func(l []queuepair.Node) []queuepair.Node { l[0].QueuePairs[0].PID = 0; return l }, OfKernel},
		{"not connected yet", func(l []queuepair.Node) []queuepair.Node { l[0].QueuePairs[0].State = "init"; return l }, NotConnected},
		{"an unknown device", func(l []queuepair.Node) []queuepair.Node { l[0].QueuePairs[0].Device = "eth9"; return l }, NoNIC},
		{"a node without a job", func(l []queuepair.Node) []queuepair.Node { l[0].Node = "h3"; return l }, NoJob},
	} {
		lists := []queuepair.Node{}
		for _, l := range whole {
			l.QueuePairs = slices.Clone(l.QueuePairs)
			lists = append(lists, l)
		}
		o, err := Observe(n, c, pair, x.change(lists), 0)
		if err != nil {
			t.Fatal(err)
		}
		if q := o.QueuePairs[0]; q.Unseen != x.want || q.SPort != 0 && x.want != NoEntry || o.Jobs[0].BusbwGbps != nil {
			t.Errorf("%s: %+v and rate %v, want %s and none", x.name, q, o.Jobs[0].BusbwGbps, x.want)
		}
	}
	empty := NewCatalogue(n)
	if o, err := Observe(n, empty, pair, whole, 0); err != nil || o.QueuePairs[0].Unseen != NoEntry || o.QueuePairs[0].SPort == 0 {
		t.Errorf("without a catalogue: %+v, %v; want the port and no path", o.QueuePairs[0], err)
	}
}

// adjacent says whether two of the sixteen hosts are neighbours in the ring of the test.
func adjacent(t *testing.T, a, b string) bool {
	t.Helper()
	var i, j int
	if _, err := fmt.Sscanf(a+" "+b, "h%d/eth1 h%d/eth1", &i, &j); err != nil {
		t.Fatal(err)
	}
	d := (i - j + 16) % 16
	return d == 1 || d == 15
}
