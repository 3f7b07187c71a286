package coordinator

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// Nodes connect before there is a topology, get no assignment, and are scheduled when a topology names them.
func TestAnyNode(t *testing.T) {
	f := start(t, "", func(o *Options) {
		o.AnyNode = true
		if err := os.Remove(o.TopologyFile); err != nil {
			t.Fatal(err)
		}
		o.Planner.Make = schedule.Make
	})
	var sessions []*session
	for _, node := range []string{"h1", "h2", "stranger"} {
		h := hello(node, 0)
		h.Interfaces = []*agentapi.Interface{iface("eth1", map[string]string{"h1": "10.0.0.1", "h2": "10.0.0.2", "stranger": "10.9.0.1"}[node])}
		h.Interfaces[0].PrefixLengths = []uint32{24}
		sessions = append(sessions, f.mustConnect(h))
	}
	f.run(5 * time.Second)
	for _, s := range sessions {
		if in := f.receive(s); in.assignment != nil {
			t.Errorf("%s has an assignment without a topology", s.agent.node)
		}
	}
	views := f.Interfaces()
	if len(views) != 3 || views[0].Node != "h1" || views[0].NICs[0].NIC != "h1/eth1" || views[0].NICs[0].Networks[0].String() != "10.0.0.0/24" {
		t.Fatalf("%+v: want the interfaces of three nodes", views)
	}
	if targets, whole := f.Targets(); !whole || len(targets) != 3 {
		t.Errorf("targets %v, %v: agents are scraped whatever the topology is", targets, whole)
	}

	text := `version: 1
switches: [{name: s, role: leaf}]
nodes: [{name: h1, nics: [{device: eth1}]}, {name: h2, nics: [{device: eth1}]}]
links: [{a: h1/eth1, b: "s:1"}, {a: h2/eth1, b: "s:2"}]
`
	if err := os.WriteFile(f.opts.TopologyFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	f.run(5 * time.Second)
	for i, want := range []bool{true, true, false} {
		if in := f.receive(sessions[i]); (in.assignment != nil) != want {
			t.Errorf("%s: assignment %v, want one: %v", sessions[i].agent.node, in.assignment, want)
		}
	}
	if views = f.Interfaces(); len(views) != 3 {
		t.Errorf("%d nodes are connected after the reload, want 3", len(views))
	}
	// A restart keeps all of them.
	if err := f.saveState(); err != nil {
		t.Fatal(err)
	}
	f.restart()
	if strings.Contains(f.logs.String(), "not in the topology") {
		t.Errorf("%s: a node was forgotten", f.logs)
	}
}

func TestPrefixLengthsAreChecked(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	for _, c := range []struct {
		lengths []uint32
		want    string
	}{
		{[]uint32{24, 24}, "hello.interfaces[0].prefix_lengths: 2, want one for each of 1 addresses"},
		{[]uint32{33}, "hello.interfaces[0].prefix_lengths[0]: 33, want at most 32"},
	} {
		h := hello("h1", 0)
		h.Interfaces = []*agentapi.Interface{iface("eth1", "10.0.0.2")}
		h.Interfaces[0].PrefixLengths = c.lengths
		_, err := f.connect(h)
		wantCode(t, err, codes.InvalidArgument, c.want)
	}
}

// Neighbours are served as the agent reports them last. They are bounded, and are of no consequence for addresses.
func TestNeighbours(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	withNeighbours := func(n ...*agentapi.LLDPNeighbour) *agentapi.Interface {
		i := iface("eth1", "10.0.0.2")
		i.Lldp = n
		return i
	}
	leaf := &agentapi.LLDPNeighbour{System: "leaf1", Port: "swp1", Chassis: "02:00:00:00:0a:01", Forwards: true}
	h := hello("h1", 0)
	h.Interfaces = []*agentapi.Interface{withNeighbours(leaf)}
	s := f.mustConnect(h)
	order := s.agent.interfaces.order
	if got, want := f.Interfaces()[0].NICs[0].Neighbours, []fabric.Neighbour{{System: "leaf1", Port: "swp1", Chassis: "02:00:00:00:0a:01", Forwards: true}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	report := func(n ...*agentapi.LLDPNeighbour) error {
		return f.handleMessage(s, &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Addresses{Addresses: &agentapi.Addresses{Interfaces: []*agentapi.Interface{withNeighbours(n...)}}}})
	}
	if err := report(); err != nil || f.Interfaces()[0].NICs[0].Neighbours != nil {
		t.Errorf("%v, %+v: want none", err, f.Interfaces()[0].NICs[0].Neighbours)
	}
	if s.agent.interfaces.order != order {
		t.Error("a neighbour made the report of the addresses a later one")
	}
	for want, n := range map[string][]*agentapi.LLDPNeighbour{
		"addresses.interfaces[0].lldp: 3, want at most 2":              {leaf, leaf, leaf},
		"addresses.interfaces[0].lldp[1].system: empty":                {leaf, {Port: "p", Chassis: "c"}},
		"addresses.interfaces[0].lldp[0].port: holds a control":        {{System: "s", Port: "p\n", Chassis: "c"}},
		"addresses.interfaces[0].lldp[0].chassis: 256 octets, want at": {{System: "s", Port: "p", Chassis: strings.Repeat("c", 256)}},
	} {
		wantCode(t, report(n...), codes.InvalidArgument, want)
	}
}
