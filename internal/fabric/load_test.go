package fabric

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

var update = flag.Bool("update", false, "rewrite the expected findings")

// TestBadTopologies reads every testdata/*.bad.yaml; the findings expected stand
// in the file of the same name with .txt, one a line.
func TestBadTopologies(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, found := ParseTopology(filepath.Base(file), data)
			var got strings.Builder
			for _, f := range found {
				got.WriteString(f.String() + "\n")
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("findings:\n%s\nwant:\n%s", got.String(), want)
			}
			if len(found) == 0 {
				t.Error("a bad file without a finding")
			}
		})
	}
}

const small = `version: 1
switches:
  - {name: leaf1, role: leaf, plane: a}
  - {name: leaf2, role: leaf, plane: a}
  - {name: spine1, role: spine, plane: a}
  - {name: spine2, role: spine, plane: a}
nodes:
  - name: h1
    nics: [{device: eth1, plane: a, rail: 0, addresses: [10.0.1.2], aliases: [mlx5_0]}]
  - name: h2
    nics: [{device: eth1, plane: a, rail: 0}]
links:
  - {a: "h1/eth1", b: "leaf1:dn1", a_address: 10.0.1.2/24, b_address: 10.0.1.1/24}
  - {a: "leaf2:dn1", b: "h2/eth1"}
  - {a: "leaf1:up1", b: "spine1:dn1"}
  - {a: "leaf1:up2", b: "spine2:dn1"}
  - {a: "leaf2:up1", b: "spine1:dn2"}
  - {a: "leaf2:up2", b: "spine2:dn2"}
`

func parse(t *testing.T, text string) *Graph {
	t.Helper()
	topo, found := ParseTopology("t.yaml", []byte(text))
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return NewGraph(topo)
}

func TestGraph(t *testing.T) {
	g := parse(t, small)
	if leaf, port := g.LeafOf("h2/eth1"); leaf != "leaf2" || port != "dn1" {
		t.Errorf("h2/eth1 is on %s:%s", leaf, port)
	}
	if n := g.NIC("h1/mlx5_0"); n == nil || n.ID() != "h1/eth1" {
		t.Errorf("alias resolves to %v", n)
	}
	if got := g.PathTier("h1/eth1", "h2/eth1"); got != 2 {
		t.Errorf("tier %d, want 2", got)
	}
	paths := g.ShortestPaths("h1/eth1", "h2/eth1", 10)
	want := []string{"leaf1[dn1>up1] spine1[dn1>dn2] leaf2[up1>dn1]", "leaf1[dn1>up2] spine2[dn1>dn2] leaf2[up2>dn1]"}
	if len(paths) != len(want) {
		t.Fatalf("%d paths, want %d", len(paths), len(want))
	}
	for i := range want {
		if got := paths[i].CanonicalKey(); got != want[i] {
			t.Errorf("path %d is %s, want %s", i, got, want[i])
		}
	}
	dirs := paths[0].LinkDirections("h1/eth1", "h2/eth1")
	var names []string
	for _, d := range dirs {
		names = append(names, d.String())
	}
	if got := strings.Join(names, " "); got != "h1/eth1->leaf1:dn1 leaf1:up1->spine1:dn1 spine1:dn2->leaf2:up1 leaf2:dn1->h2/eth1" {
		t.Errorf("directions %s", got)
	}
}

func TestDirectionsOfAPathWithHoles(t *testing.T) {
	p := Path{{Switch: "leaf1", In: "dn1", Out: "up1"}, {Switch: "spine1", Out: "dn2"}, {Switch: "leaf2", In: "up1", Out: "dn1"}}
	var names []string
	for _, d := range p.LinkDirections("h1/eth1", "h2/eth1") {
		names = append(names, d.String())
	}
	if got := strings.Join(names, " "); got != "h1/eth1->leaf1:dn1 spine1:dn2->leaf2:up1 leaf2:dn1->h2/eth1" {
		t.Errorf("directions %s", got)
	}
}

func FuzzParseTopology(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(sourceRouted))
	files, _ := filepath.Glob("testdata/*.bad.yaml")
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		topo, found := ParseTopology("f.yaml", data)
		if found.Err() != nil || topo == nil {
			return
		}
		locators := map[Locator]bool{}
		for _, s := range topo.Switches {
			if l := s.Locator; !l.IsZero() && (locators[l] || !topo.IsSourceRouted()) || l.IsZero() && topo.IsSourceRouted() && !s.Discovered {
				t.Errorf("switch %q has locator %q with forwarding %q", s.Name, l, topo.Forwarding)
			}
			locators[s.Locator] = true
		}
		g := NewGraph(topo)
		nics := g.NICIDs()
		for i := range min(len(nics), 4) {
			for j := range min(len(nics), 4) {
				for _, p := range g.ShortestPaths(nics[i], nics[j], 4) {
					if len(p.LinkDirections(nics[i], nics[j])) != len(p)+1 {
						t.Errorf("path %s from %s to %s has holes", p.CanonicalKey(), nics[i], nics[j])
					}
				}
				if paths, all := g.CandidatePaths(nics[i], nics[j], 64); len(paths) > 64 || !all && paths != nil {
					t.Errorf("%d candidates from %s to %s, all: %v", len(paths), nics[i], nics[j], all)
				}
			}
		}
	})
}

// What is written is what was read.
func TestTopologyIsWrittenWhole(t *testing.T) {
	rail := 3
	want := &Topology{Version: 1, Forwarding: SRv6, Switches: []Switch{{Name: "leaf1", Role: Leaf, Pod: "p1", Plane: "a", Addresses: []netip.Addr{netip.MustParseAddr("172.16.0.1")},
		Locator: Locator{netip.MustParsePrefix("fcbb:bb00:1::/48")}}},
		Nodes: []Node{{Name: "h1", NICs: []NIC{{Node: "h1", Device: "eth1", Plane: "a", Rail: &rail, Side: "left", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.2")}, Aliases: []string{"mlx5_0"}}},
			Bonds: []Bond{{Name: "bond0", Members: []string{"eth1"}}}},
			{Name: "h2", NICs: []NIC{{Node: "h2", Device: "eth1", Plane: "a"}}}},
		Links: []Link{{A: "h2/eth1", B: "leaf1:dn2"}, {A: "h1/eth1", B: "leaf1:dn1", SpeedGbps: 400, AAddress: netip.MustParsePrefix("10.0.1.2/24"), BAddress: netip.MustParsePrefix("10.0.1.1/24")}}}
	b, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, found := ParseTopology("t.yaml", b)
	if err := found.Err(); err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	again, err := yaml.Marshal(got)
	if err != nil || string(again) != string(b) {
		t.Errorf("%v\n%s\nbecame\n%s", err, b, again)
	}
	l := got.Links[1]
	l.Line = 0
	if got.Forwarding != want.Forwarding || got.Switches[0].Locator != want.Switches[0].Locator {
		t.Errorf("read back: forwarding %q, locator %s", got.Forwarding, got.Switches[0].Locator)
	}
	if l != want.Links[1] || *got.Nodes[0].NICs[0].Rail != rail || got.Nodes[0].NICs[0].Addresses[0] != want.Nodes[0].NICs[0].Addresses[0] {
		t.Errorf("read back: %+v", got)
	}
}
