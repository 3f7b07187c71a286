package fabric

import (
	"os"
	"strings"
	"testing"
)

// The files were printed by lldpcli 1.0.16 of Debian 12 in two namespaces with two cables.
func TestReadLLDPNeighbours(t *testing.T) {
	read := func(name string) []byte {
		b, err := os.ReadFile("testdata/lldp/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	h1, leaf1, one := read("h1.json"), read("leaf1.json"), read("one.json")
	for name, c := range map[string]struct {
		files map[string][]byte
		links string
		found string
	}{
		"both ends":          {map[string][]byte{"h1.json": h1, "leaf1.json": leaf1}, "h1/eth1--leaf1:swp1 h1/eth2--leaf1:swp2", ""},
		"the host alone":     {map[string][]byte{"dir/h1.json": h1}, "h1/eth1--leaf1:swp1 h1/eth2--leaf1:swp2", ""},
		"the switch alone":   {map[string][]byte{"leaf1.json": leaf1}, "h1/eth1--leaf1:swp1 h1/eth2--leaf1:swp2", ""},
		"one neighbour":      {map[string][]byte{"h1.json": one}, "h1/eth1--leaf1:swp1", ""},
		"no neighbour":       {map[string][]byte{"h1.json": []byte(`{"lldp": {}}`)}, "", ""},
		"a contradiction":    {map[string][]byte{"h1.json": h1, "h2.json": h1}, "h1/eth1--leaf1:swp1 h1/eth2--leaf1:swp2", "h2.json eth1 h2.json eth2"},
		"a nameless system":  {map[string][]byte{"h1.json": []byte(strings.Replace(string(one), `"leaf1": {`, `"id": {`, 1))}, "", "h1.json eth1"},
		"a port by its MAC":  {map[string][]byte{"h1.json": []byte(strings.Replace(string(one), `"type": "ifname"`, `"type": "mac"`, 1))}, "h1/eth1--leaf1:swp1", ""},
		"a port without one": {map[string][]byte{"h1.json": []byte(strings.NewReplacer(`"type": "ifname"`, `"type": "mac"`, `"descr": "swp1"`, `"x": ""`).Replace(string(one)))}, "", "h1.json eth1"},
	} {
		topology, problems, err := ReadLLDPNeighbours(c.files, []string{"leaf*"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var links, found []string
		for _, l := range topology.Links {
			links = append(links, l.ID())
		}
		for _, p := range problems {
			found = append(found, p.File+" "+p.Field)
		}
		if got := strings.Join(links, " "); got != c.links || strings.Join(found, " ") != c.found {
			t.Errorf("%s: links %q, findings %q; want %q and %q", name, got, found, c.links, c.found)
		}
	}
	for _, bad := range []string{"", "[]", `{"ldp": {}}`, `{"lldp": {"interface": 3}}`} {
		if _, _, err := ReadLLDPNeighbours(map[string][]byte{"h1.json": []byte(bad)}, []string{"leaf*"}); err == nil || !strings.Contains(err.Error(), "h1.json") {
			t.Errorf("%q: %v, want an error with the file", bad, err)
		}
	}
}

func FuzzReadLLDPNeighbours(f *testing.F) {
	for _, name := range []string{"h1.json", "one.json"} {
		b, err := os.ReadFile("testdata/lldp/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"lldp":{"interface":{"":{"chassis":{"a":null},"port":{"id":{"type":"ifname","value":"x"}}}}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		topology, _, err := ReadLLDPNeighbours(map[string][]byte{"h1.json": text}, []string{"leaf*"})
		if err != nil {
			return
		}
		for _, l := range topology.Links {
			if CheckDevice(l.A[strings.IndexByte(l.A, '/')+1:]) != nil || IsNIC(l.B) {
				t.Errorf("%+v is no cable", l)
			}
		}
	})
}
