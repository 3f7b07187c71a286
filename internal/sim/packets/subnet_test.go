package packets

import (
	"testing"
	"time"
)

// TestPacketsFollowInstalledTables checks that packets cross the ends that the tables have, arrive nowhere else than at
// their NIC, and are lost in a circle, at a dead end and at an end that is not active.
func TestPacketsFollowInstalledTables(t *testing.T) {
	topo := demo(t)
	n := New(topo, 0, 1)
	src, dst := "h1/eth1", "h3/eth1"
	if _, ok := n.NICNumber(src); !ok {
		t.Fatal("the demo's topology has no " + src)
	}
	far := map[string]string{}
	for i := range topo.Links {
		far[topo.Links[i].A], far[topo.Links[i].B] = topo.Links[i].B, topo.Links[i].A
	}
	from, _ := n.g.LeafOf(src)
	to, _ := n.g.LeafOf(dst)
	last := n.g.PeerOf(dst)
	up := n.g.PeerOf("spine2:dn1")
	down := n.g.PeerOf(to + ":up2")
	if from != "leaf1" || to != "leaf2" || up != "leaf1:up2" || down != "spine2:dn2" {
		t.Fatal(from, to, up, down)
	}
	tables := func(leaf1, spine2 string) map[string]map[string][]string {
		return map[string]map[string][]string{"leaf1": {dst: {leaf1}}, "spine2": {dst: {spine2}}, "leaf2": {dst: {last}}}
	}
	run := func(s Subnet) *probe {
		n.SetSubnet(s)
		p := send(t, n, time.Duration(n.Now())+time.Millisecond, src, dst, 7)
		p.Trail = &Trail{}
		n.Run(n.Now() + int64(time.Second))
		return p
	}
	if p := run(Subnet{Far: far, Next: tables(up, down)}); p.came != 1 || len(*p.Trail) != 3 || n.switches[(*p.Trail)[1].Switch].name != "spine2" {
		t.Errorf("%+v", p)
	}
	for name, next := range map[string]map[string]map[string][]string{
		"a circle":    {"leaf1": {dst: {up}}, "spine2": {dst: {"spine2:dn1"}}},
		"another NIC": tables(n.g.PeerOf("h2/eth1"), down),
		"a dead end":  {"leaf1": {dst: {up}}},
	} {
		if p := run(Subnet{Far: far, Next: next}); p.came != 0 || p.lost != 1 || p.why != NoRoute {
			t.Errorf("%s: %+v", name, p)
		}
	}
	delete(far, up)
	if p := run(Subnet{Far: far, Next: tables(up, down)}); p.came != 0 || p.lost != 1 || p.why != Down {
		t.Errorf("an end that is not active: %+v", p)
	}
	far[up] = "spine1:dn1" // the cable leads elsewhere, from where there is another way
	both := tables(up, down)
	both["spine1"] = map[string][]string{dst: {"spine1:dn2"}}
	if p := run(Subnet{Far: far, Next: both}); p.came != 1 || n.switches[(*p.Trail)[1].Switch].name != "spine1" {
		t.Errorf("a cable that was moved: %+v", p)
	}
	far[up] = "spine2:dn1"
	both["leaf1"] = map[string][]string{dst: {"leaf1:up1", up}}
	met := map[int32]int{}
	for range 64 {
		if p := run(Subnet{Far: far, Next: both}); p.came == 1 {
			met[(*p.Trail)[1].Switch]++
		}
	}
	if len(met) != 2 {
		t.Errorf("of 64 packets of a flow with two ways, the spines were crossed %v times", met)
	}
}
