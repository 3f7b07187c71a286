package demo

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/lab"
)

// newTestSubnet runs a subnet for the length of a test.
func newTestSubnet(t *testing.T, o Options) *subnet {
	t.Helper()
	ibtest.RequireTools(t)
	o.Fabric, o.Progress, o.Log = InfiniBand, io.Discard, silent
	s, err := newSubnet(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// awaitInstalled waits until what is installed in the subnet satisfies a condition.
func awaitInstalled(t *testing.T, s *subnet, what string, ok func(*ibfabric.Fabric) bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		f, err := s.readInstalled(t.Context())
		if err == nil && ok(f) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within two minutes (%v)", what, err)
		}
	}
}

// TestSubnetFaults checks that each fault that a seed chooses is made in ibsim, that OpenSM routes around a link that is down,
// and that everything is as before when faults are cleared.
func TestSubnetFaults(t *testing.T) {
	s := newTestSubnet(t, Options{})
	s.stop() // this test reads by itself
	s.follow.Wait()
	g := fabric.NewGraph(s.Topology())
	if len(g.Topo.Switches) != 6 || len(g.Topo.Nodes) != 16 || len(g.Topo.Links) != 24 {
		t.Fatalf("%d switches, %d nodes, %d links", len(g.Topo.Switches), len(g.Topo.Nodes), len(g.Topo.Links))
	}
	whole, err := s.readInstalled(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cables := installedSubnet(whole).Far
	for _, kind := range subnetFaultKinds() {
		for seed := range uint64(2) {
			p, err := PlanFault(g, kind, seed, Params{Delay: 2 * time.Millisecond, Loss: 0.1})
			if err != nil {
				t.Fatal(err)
			}
			id, err := s.AddFault(t.Context(), p.Fault)
			if err != nil {
				t.Fatalf("%s, seed %d: %v", kind, seed, err)
			}
			a, b, _ := fabric.SplitLink(p.Element)
			switch kind {
			case lab.KindLinkDown:
				awaitInstalled(t, s, "routes around "+p.Element, func(f *ibfabric.Fabric) bool {
					in := installedSubnet(f)
					for _, next := range in.Next[fabric.OwnerOf(a)] {
						if next[0] == a {
							return false
						}
					}
					return in.Far[a] == "" && in.Far[b] == "" && len(in.Far) == len(cables)-2
				})
			case lab.KindMiscable:
				awaitInstalled(t, s, "cables of "+p.Fault.At, func(f *ibfabric.Fabric) bool {
					far := installedSubnet(f).Far
					return far[a] != "" && far[a] != b && len(far) == len(cables)
				})
			case KindSymbolErrors:
				d, _ := fabric.ParseDirection(p.Direction)
				if n := s.counters[consoleEnd(d.To)+" "+symbolErrors]; n == 0 {
					t.Errorf("seed %d: %s has counted no symbol errors", seed, d.To)
				}
			}
			if err := s.ClearFault(t.Context(), id); err != nil {
				t.Fatalf("%s, seed %d: %v", kind, seed, err)
			}
			awaitInstalled(t, s, kind+" is healed", func(f *ibfabric.Fabric) bool {
				far := installedSubnet(f).Far
				for end, peer := range cables {
					if far[end] != peer {
						return false
					}
				}
				return len(far) == len(cables)
			})
		}
	}
	if _, err := s.AddFault(t.Context(), lab.Fault{Kind: lab.KindMute, At: "leaf0"}); err == nil {
		t.Error("a switch of InfiniBand is mute to traces")
	}
	if err := s.ClearFault(t.Context(), "s99"); err == nil {
		t.Error("a fault that is none was cleared")
	}
}

// TestAdaptiveSubnet checks that with adaptive routing, switches have all shortest ways to each NIC, and the file has their groups.
func TestAdaptiveSubnet(t *testing.T) {
	s := newTestSubnet(t, Options{Adaptive: true})
	f, err := s.readInstalled(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.groups)
	if err != nil {
		t.Fatal(err)
	}
	with, found, err := f.ReadAdaptive(s.groups, strings.NewReader(string(text)))
	if err != nil || len(found) > 0 {
		t.Fatal(err, found)
	}
	in := installedSubnet(with)
	if up, down, here := in.Next["leaf0"]["h15/hca"], in.Next["spine1"]["h15/hca"], in.Next["leaf3"]["h15/hca"]; len(up) != 2 || len(down) != 1 || len(here) != 1 {
		t.Errorf("to h15: leaf0 by %v, spine1 by %v, leaf3 by %v", up, down, here)
	}
}
