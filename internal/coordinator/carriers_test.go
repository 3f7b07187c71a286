package coordinator

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sourceroute"
)

// sourceRouted returns the text of a topology by IPv6 whose hosts choose the paths.
func sourceRouted(leaves, hosts int) string {
	text := regexp.MustCompile(`addresses: \[10\.(\d+)\.(\d+)\.(\d+)\]`).ReplaceAllString(clos(leaves, hosts), "addresses: [\"fd00:$1:$2::$3\"]")
	text = regexp.MustCompile(`(\w)_address: 172\.(\d+)\.(\d+)\.(\d+)/31`).ReplaceAllString(text, "${1}_address: \"fd01:$2:$3::$4/127\"")
	n := 0
	text = regexp.MustCompile(`role: (leaf|spine),`).ReplaceAllStringFunc(text, func(s string) string {
		n++
		return fmt.Sprintf("%s locator: \"fcbb:bb00:%x::/48\",", s, n)
	})
	return strings.Replace(text, "version: 1\n", "version: 1\nforwarding: srv6\n", 1)
}

func TestAssignmentsHaveChosenPaths(t *testing.T) {
	f := start(t, sourceRouted(2, 2), nil)
	sessions, boxes := f.agents(4)
	topo, problems := fabric.ParseTopology("test", []byte(sourceRouted(2, 2)))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	table, err := sourceroute.NewTable(fabric.NewGraph(topo))
	if err != nil {
		t.Fatal(err)
	}
	// What the prober sends by and what the responder sends by are one path, there and back.
	there, back := map[string]fabric.Path{}, map[string]fabric.Path{}
	read := func(src, dst string, carrier []byte) fabric.Path {
		t.Helper()
		a, _ := netip.AddrFromSlice(carrier)
		p, err := table.Path(src, dst, a)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	var edges []*agentapi.Edge
	for _, in := range boxes {
		a := in.assignment
		for _, e := range a.Edges {
			src, dst := a.Nics[e.Nic].Nic, a.Peers[e.Peer].Nic
			there[fmt.Sprintf("%s>%s#%d", src, dst, e.Flow)] = read(src, dst, e.Carrier)
			edges = append(edges, e)
		}
		for _, e := range a.Answers {
			src, dst := a.Peers[e.Peer].Nic, a.Nics[e.Nic].Nic
			back[fmt.Sprintf("%s>%s#%d", src, dst, e.Flow)] = read(dst, src, e.Carrier)
		}
	}
	if len(there) != 12 || len(back) != len(there) {
		t.Fatalf("%d edges and %d answers, want 12", len(there), len(back))
	}
	for flow, p := range there {
		if back[flow].Reverse().CanonicalKey() != p.CanonicalKey() {
			t.Errorf("%s goes by %s, and its replies by %s", flow, p.CanonicalKey(), back[flow].CanonicalKey())
		}
	}
	// Only what an agent says that it sends by a carrier is bound so.
	report := func(traces ...*agentapi.Trace) error {
		return f.handleMessage(sessions[0], &agentapi.AgentMessage{Body: &agentapi.AgentMessage_Paths{Paths: &agentapi.PathReport{Traces: traces}}})
	}
	chosen := &agentapi.Trace{Edge: "h1/mlx5_0>h2/mlx5_0#0", State: agentapi.PathState_PATH_STATE_VALID, Reached: true, Carrier: edges[0].Carrier}
	if err := report(chosen, &agentapi.Trace{Edge: "h1/mlx5_0>h3/mlx5_0#0", State: agentapi.PathState_PATH_STATE_UNKNOWN}); err != nil {
		t.Fatal(err)
	}
	if s := f.Stats(); s.Edges["path_known"] != 1 {
		t.Errorf("edges %v, want one with a known path", s.Edges)
	}
	chosen.Carrier = chosen.Carrier[:15]
	if err := report(chosen); err == nil {
		t.Error("a carrier of 15 octets was accepted")
	}
}

func TestAssignmentsHaveNoPathsWithoutLocators(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	_, boxes := f.agents(4)
	for _, in := range boxes {
		for _, e := range append(in.assignment.Edges, in.assignment.Answers...) {
			if len(e.Carrier) > 0 {
				t.Fatalf("a fabric without locators has carrier %x", e.Carrier)
			}
		}
	}
}

// TestTemporaryFlowsHaveChosenPaths: the temporary flows of two NICs take their shortest paths in turn, there and back.
func TestTemporaryFlowsHaveChosenPaths(t *testing.T) {
	f := start(t, sourceRouted(8, 4), nil)
	sessions, _ := f.agents(32)
	topo, problems := fabric.ParseTopology("test", []byte(sourceRouted(8, 4)))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	g := fabric.NewGraph(topo)
	table, err := sourceroute.NewTable(g)
	if err != nil {
		t.Fatal(err)
	}
	if a := f.ask("analyzer", wantFlows("i1", between(1, 20, 3))); len(a.Flows) != 3 {
		t.Fatalf("answer %v", a)
	}
	there, back := map[uint32]string{}, map[uint32]string{}
	for _, s := range sessions {
		a := f.receive(s).assignment
		if a == nil {
			continue
		}
		for i, list := range [][]*agentapi.Edge{a.Edges, a.Answers} {
			for _, e := range list {
				if !fabric.IsTemporaryFlow(int(e.Flow)) {
					continue
				}
				carrier, _ := netip.AddrFromSlice(e.Carrier)
				p, err := table.Path(a.Nics[e.Nic].Nic, a.Peers[e.Peer].Nic, carrier)
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					there[e.Flow] = p.CanonicalKey()
				} else {
					back[e.Flow] = p.Reverse().CanonicalKey()
				}
			}
		}
	}
	if len(there) != 3 || !maps.Equal(there, back) {
		t.Fatalf("probes %v, replies %v", there, back)
	}
	// Of two spines, each has its turn.
	first := uint32(fabric.ScheduledFlows)
	if there[first] == there[first+1] || there[first] != there[first+2] {
		t.Errorf("paths %v, want two in turn", there)
	}
}
