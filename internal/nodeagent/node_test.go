package nodeagent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/probe"
)

// loopback returns a loopback address of this process's own, so that tests of several packages can run at the same
// time.
func loopback(i int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 192+pid>>14&31, pid>>6&255, (pid<<2|i)&255)
}

// startNode starts the node h1 by a file, with h2 as its peer, which does not exist.
func startNode(t *testing.T) (n *Node, file string) {
	t.Helper()
	return startWithSignals(t, nil)
}

// startWithSignals starts the node of startNode with in-band signals.
func startWithSignals(t *testing.T, s *probe.Signals) (n *Node, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "h1.yaml")
	text := fmt.Sprintf(`node: h1
stamp: {port: 8862, class: roce}
nics: [{nic: h1/eth1, address: %s, leaf: leaf1, leaf_port: dn1, plane: a, side: left}]
peers: [{nic: h2/eth1, address: %s, leaf: leaf2, tier: 2, plane: a}]
`, loopback(1), loopback(2))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := Start(file, filepath.Join(t.TempDir(), "state"), nil, s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n, file
}

// TestStateOfANode checks what a node offers to exporters/node.
func TestStateOfANode(t *testing.T) {
	n, _ := startNode(t)
	n.ReadState(func(s State) {
		if s.Clocks != nil || !s.ReloadOK || s.Started.IsZero() || s.Loaded != s.Started || len(s.Snapshot().NICs) != 1 || s.Config().Node != "h1" {
			t.Errorf("state %+v", s)
		}
	})
	if node, nics := n.NICNames(); node != "h1" || len(nics) != 0 || n.Name() != "h1" {
		t.Errorf("%q with the devices %v", node, nics)
	}
	if n.ChronySamples() != nil || n.AssignmentWrites() != nil || n.Certificates() != nil {
		t.Error("a node without a coordinator has parts of a fleet's")
	}
	own := netip.MustParseAddr(loopback(1))
	if v := n.DescribeNICs(); v.Node != "h1" || len(v.NICs) != 1 || v.NICs[0].NIC != "h1/eth1" || v.NICs[0].Side != "left" || !slices.Equal(v.NICs[0].Addresses, []netip.Addr{own}) {
		t.Errorf("NICs %+v", v)
	}
	if node, _, _ := n.TracedPaths(); node != "h1" {
		t.Errorf("paths of %q", node)
	}
	if _, _, _, err := n.TraceFlows(t.Context(), []fabric.Flow{{Src: "h1/eth1", Dst: "h9/eth1"}}); err == nil {
		t.Error("a flow that does not exist is traced")
	}
}

// TestReloadKeepsTheOldConfiguration checks that a file that cannot be used changes nothing but the success of the
// reload.
func TestReloadKeepsTheOldConfiguration(t *testing.T) {
	n, file := startNode(t)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{"cadence: never\n": false, strings.ReplaceAll(string(good), loopback(1), "192.0.2.1"): false, string(good): true} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := n.Reload(); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
		n.ReadState(func(s State) {
			if s.ReloadOK != want || s.Config().NICs[0].Address.String() != loopback(1) {
				t.Errorf("%s: success %v at %v", text, s.ReloadOK, s.Config().NICs[0].Address)
			}
		})
	}
}

// TestFleetAppliesAssignments checks the node's side of the protocol: an assignment, lives, and what a heartbeat and a
// registration report.
func TestFleetAppliesAssignments(t *testing.T) {
	n, _ := startNode(t)
	f := &fleet{node: n, lastCounts: map[fabric.Flow]probeCounts{}, options: FleetOptions{StateFile: filepath.Join(t.TempDir(), "state")}}
	a := exampleAssignment()
	a.Authenticated, a.Stamp.Port = false, 8862
	a.Nics[0].Address, a.Nics[0].Device = octets(loopback(1)), "lo"
	a.Peers[0].Address = octets(loopback(2))
	a.Nics, a.Edges, a.Answers = a.Nics[:1], []*agentapi.Edge{{Nic: 0, Peer: 0, Flow: 64, Tier: 2, CadenceNs: 1e7}}, nil
	if err := f.Apply(a, nil); err != nil {
		t.Fatal(err)
	}
	if node, nics := n.NICNames(); node != "h1" || nics["lo"] != "h1/eth1" || n.Config().Hash != "abababababababab" {
		t.Errorf("%s %v runs %s", node, nics, n.Config().Hash)
	}
	bad := proto.CloneOf(a)
	bad.Node = ""
	if err := f.Apply(bad, nil); err == nil || n.Config().Hash != "abababababababab" {
		t.Errorf("an assignment that is not valid: %v", err)
	}

	// The address of the NIC is not there by now, and the heartbeat reports that until it is.
	gone := proto.CloneOf(a)
	gone.Nics[0].Device, gone.Nics[0].Address, gone.Nics[0].Nic, gone.Hash = "", octets("192.0.2.1"), "h1/eth2", bytes.Repeat([]byte{0xcd}, 16)
	if err := f.Apply(gone, nil); err != nil {
		t.Fatal(err)
	}
	var h agentapi.Heartbeat
	if f.Heartbeat(&h); h.ApplyError == "" {
		t.Error("a NIC that cannot be opened is not reported")
	}
	if err := f.Apply(a, nil); err != nil {
		t.Fatal(err)
	}
	h = agentapi.Heartbeat{}
	if f.Heartbeat(&h); h.ApplyError != "" {
		t.Errorf("reported after it was corrected: %s", h.ApplyError)
	}
	until(t, "probes that stay without a reply", func() bool { h = agentapi.Heartbeat{}; f.Heartbeat(&h); return h.SilentEdgesTotal == 1 })
	if want := []string{"h1/eth1>h2/eth1#64"}; !slices.Equal(h.SilentEdges, want) {
		t.Errorf("silent edges %q, want %q", h.SilentEdges, want)
	}

	before := f.Life()
	f.TakeLives(before+7, map[string]uint64{"h2": 3})
	if kept, err := readLife(lifeFile(f.options.StateFile)); f.Life() != before+7 || kept != before+7 || err != nil {
		t.Errorf("life %d, in the file %d, %v; want %d", f.Life(), kept, err, before+7)
	}
	if _, err := f.Interfaces(); err != nil {
		t.Error(err)
	}
	if _, traces := f.Traces(); len(traces) > 1 {
		t.Errorf("%d traces of one flow", len(traces))
	}
	f.Clock(&agentapi.ClockUpdate{}, true) // clocks are not related, so it changes nothing
}

// TestStartFleetChecksOptions checks the errors before anything is started.
func TestStartFleetChecksOptions(t *testing.T) {
	if _, err := StartFleet(FleetOptions{}, slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no certificates: %v", err)
	}
}
