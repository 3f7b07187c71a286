package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// answering starts an agent that answers on one path, and returns its URL.
func answering(t *testing.T, path string, v any) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestDiscoverCommand(t *testing.T) {
	leaf := answering(t, "/api/v1/ports", fabric.SwitchView{Switch: "leaf1", Ports: []fabric.PortView{
		{Port: "dn1", Up: true, SpeedGbps: 400, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.1/24")}, LearnedAddresses: []fabric.LearnedAddress{{Address: netip.MustParseAddr("10.0.1.2")}}},
		{Port: "dn2", Up: true, System: "h2", SystemPort: "eth1"},
		{Port: "up1", Up: true, System: "spine1", SystemPort: "dn1"}}})
	spine := answering(t, "/api/v1/ports", fabric.SwitchView{Switch: "spine1", Ports: []fabric.PortView{{Port: "dn1", Up: true, System: "leaf1", SystemPort: "up1"}}})
	node := answering(t, "/api/v1/nics", fabric.NodeView{Node: "h1", NICs: []fabric.NICView{{NIC: "h1/eth1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.2")}}}})
	second := answering(t, "/api/v1/nics", fabric.NodeView{Node: "h2", NICs: []fabric.NICView{{NIC: "h2/eth1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.2")}}}})
	file := filepath.Join(t.TempDir(), "t.yaml")
	_, stderr, code := runGraylink(t, "", "topology", "discover", "--switch", leaf, "--switch", spine+"/", "--node", node, "--node", second, "--output", file)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	topo, found := fabric.LoadTopology(file)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	g := fabric.NewGraph(topo)
	if g.PeerOf("h1/eth1") != "leaf1:dn1" || g.PeerOf("leaf1:up1") != "spine1:dn1" || g.SwitchTier("spine1") != 2 {
		text, _ := os.ReadFile(file)
		t.Errorf("discovered:\n%s", text)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--switch", leaf, "--switch", "http://127.0.0.1:1", "--node", node}, 3, "127.0.0.1:1"},
		{[]string{"--switch", node}, 1, "no switch answers"},
		{nil, 1, "--switch, --prometheus, --coordinator or --lab"},
		{[]string{"--lab", "nosuchlab"}, 1, "nosuchlab"},
	} {
		_, stderr, code := runGraylink(t, "", append([]string{"topology", "discover"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: exit code %d, want %d with %q: %s", c.args, code, c.code, c.says, stderr)
		}
	}
}

// TestDiscoverBySeries checks that switches whose neighbours are in a Prometheus are used beside those that are
// queried themselves, and that uncertain cables are findings.
func TestDiscoverBySeries(t *testing.T) {
	row := func(sw, port, remote, remotePort string) map[string]any {
		return map[string]any{"metric": map[string]string{"switch": sw, "port": port, "remote": remote, "remote_port": remotePort}, "value": []any{1700000000, "1700000000"}}
	}
	server := func(rows ...map[string]any) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := r.ParseForm(); err != nil || r.URL.Path != "/api/v1/query" {
				http.NotFound(w, r)
				return
			}
			answer := map[string]any{"resultType": "vector", "result": rows}
			if !strings.Contains(r.Form.Get("query"), "fabric_switch_port_neighbor_info") {
				now := float64(time.Now().UnixMilli()) / 1e3 // the time at the server
				answer = map[string]any{"resultType": "vector", "result": []any{map[string]any{"metric": map[string]string{}, "value": []any{now, fmt.Sprint(now)}}}}
			}
			if err := json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": answer}); err != nil {
				t.Error(err)
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	node := answering(t, "/api/v1/nics", fabric.NodeView{Node: "h1", NICs: []fabric.NICView{{NIC: "h1/eth1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.2")}},
		{NIC: "h1/eth2", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.3")}}}})
	agent := answering(t, "/api/v1/ports", fabric.SwitchView{Switch: "spine1", Ports: []fabric.PortView{{Port: "dn1", Up: true, System: "leaf1", SystemPort: "up1"}}})
	file := filepath.Join(t.TempDir(), "t.yaml")
	_, stderr, code := runGraylink(t, "", "topology", "discover", "--prometheus", server(row("leaf1", "dn1", "h1", "eth1"), row("leaf1", "dn2", "h1", "eth2"), row("leaf1", "up1", "spine1", "dn1"), row("spine1", "dn1", "elsewhere", "x")),
		"--switch", agent, "--node", node, "--output", file)
	topo, found := fabric.LoadTopology(file)
	if err := found.Err(); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	if g := fabric.NewGraph(topo); g.PeerOf("h1/eth1") != "leaf1:dn1" || g.PeerOf("leaf1:up1") != "spine1:dn1" {
		text, _ := os.ReadFile(file)
		t.Errorf("discovered:\n%s", text)
	}
	for what, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"away":        {[]string{"--prometheus", "http://127.0.0.1:1", "--switch", agent}, 3, "127.0.0.1:1"},
		"no series":   {[]string{"--prometheus", server()}, 1, "no switch answers"},
		"no URL":      {[]string{"--prometheus", "nowhere"}, 1, "nowhere"},
		"config gone": {[]string{"--prometheus", server(), "--prometheus.http-config", file + ".gone"}, 1, ".gone"},
	} {
		if _, stderr, code := runGraylink(t, "", append([]string{"topology", "discover"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit code %d, want %d with %q: %s", what, code, c.code, c.says, stderr)
		}
	}
}

// TestImportCableList makes a file from a list of cables, with a row that cannot be used.
func TestImportCableList(t *testing.T) {
	list := "Device A,Termination A,Device B,Termination B\nh1,eth1,leaf1,Ethernet1\nh2,eth1,leaf1,Ethernet2\nh3,eth1,leaf1,Ethernet2\n"
	stdout, stderr, code := runGraylink(t, list, "topology", "import", "--from", "csv", "--switches", "leaf*", "-")
	if code != 3 || !strings.Contains(stderr, "csv:4: error: leaf1:Ethernet2 has a cable in line 3 already") || !strings.Contains(stderr, "1 rows cannot be used") {
		t.Errorf("code %d, %s", code, stderr)
	}
	file := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(file, []byte(stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := runGraylink(t, "", "topology", "check", file); code != 0 || !strings.Contains(stdout, "usable: 1 switches, 2 nodes, 2 NICs, 2 links") {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	if _, stderr, code := runGraylink(t, list, "topology", "import", "--from", "csv"); code != 1 || !strings.Contains(stderr, "what is a switch is not known") {
		t.Errorf("code %d, %s", code, stderr)
	}
}

// TestImportDragonfly makes files of lists of cables of a Dragonfly+: groups are those of the list, or are found.
func TestImportDragonfly(t *testing.T) {
	const cables = `a_device,a_port,b_device,b_port,a_role,b_role,a_group,b_group
h1,eth1,leaf1,1,host,leaf,A,A
h2,eth1,leaf2,1,host,leaf,B,B
leaf1,2,spine1,1,leaf,spine,A,A
leaf2,2,spine2,1,leaf,spine,B,B
spine1,2,spine2,2,spine,spine,A,B
`
	for name, c := range map[string]struct{ list, found, group1, group2 string }{
		"groups of the list": {cables, "", "A", "B"},
		"groups are found":   {strings.NewReplacer(",a_group,b_group", "", ",A,A", "", ",B,B", "", ",A,B", "").Replace(cables), "links between spines join 2 parts: it is taken for a Dragonfly+ of 2 groups", "g1", "g2"},
	} {
		file := filepath.Join(t.TempDir(), "topology.yaml")
		_, stderr, code := runGraylink(t, c.list, "topology", "import", "--from", "csv", "--output", file, "-")
		if code != 0 || !strings.Contains(stderr, c.found) || strings.Contains(stderr, "Dragonfly+") != (c.found != "") {
			t.Errorf("%s: code %d, %s", name, code, stderr)
		}
		topo, problems := fabric.LoadTopology(file)
		if len(problems) > 0 {
			t.Fatalf("%s: %v", name, problems)
		}
		g := fabric.NewGraph(topo)
		if g.Switch("leaf1").Group != c.group1 || g.Switch("spine1").Group != c.group1 || g.Switch("spine2").Group != c.group2 || g.PathTier("h1/eth1", "h2/eth1") != 3 {
			t.Errorf("%s: %+v", name, topo.Switches)
		}
	}
}

func TestTopologyImportLLDP(t *testing.T) {
	out := filepath.Join(t.TempDir(), "topology.yaml")
	files := []string{"../../internal/fabric/testdata/lldp/h1.json", "../../internal/fabric/testdata/lldp/leaf1.json"}
	if err := importLLDP(files, []string{"leaf*"}, out); err != nil {
		t.Fatal(err)
	}
	topology, found := fabric.LoadTopology(out)
	if err := found.Err(); err != nil || len(topology.Links) != 2 || len(topology.Nodes) != 1 || len(topology.Switches) != 1 {
		t.Errorf("%+v, %v: want two cables between h1 and leaf1", topology, err)
	}
	for _, c := range []struct{ files, patterns []string }{{nil, []string{"*"}}, {files, nil}, {[]string{"/nowhere/h1.json"}, []string{"*"}}, {files, []string{"["}}} {
		if err := importLLDP(c.files, c.patterns, out); err == nil {
			t.Errorf("%v with the patterns %v is accepted", c.files, c.patterns)
		}
	}
	err := importLLDP(append(files, "../../internal/fabric/testdata/lldp/one.json"), []string{"leaf*"}, out)
	if exit := (exitError{}); !errors.As(err, &exit) || exit.code != 3 {
		t.Errorf("%v: want exit code 3 for a contradiction", err)
	}
}

// With a coordinator and no switch, networks stand for switches.
func TestDiscoverByCoordinator(t *testing.T) {
	network := netip.MustParsePrefix("10.0.0.0/24")
	view := func(node, address string) fabric.NodeView {
		return fabric.NodeView{Node: node, NICs: []fabric.NICView{{NIC: node + "/eth1", Addresses: []netip.Addr{netip.MustParseAddr(address)}, Networks: []netip.Prefix{network}}}}
	}
	for n, views := range map[int][]fabric.NodeView{2: {view("h1", "10.0.0.1"), view("h2", "10.0.0.2")}, 0: {view("h1", "10.0.0.1")}} {
		d := discovery{coordinator: answering(t, "/api/v1/interfaces", views), output: filepath.Join(t.TempDir(), "out.yaml"), timeout: 5 * time.Second}
		err := d.runDiscover(t.Context())
		if n == 0 {
			if err == nil || !strings.Contains(err.Error(), "nothing to write") {
				t.Errorf("one node: %v, want that there is nothing to write", err)
			}
			continue
		}
		topology, found := fabric.LoadTopology(d.output)
		if err != nil || found.Err() != nil || len(topology.Links) != n {
			t.Errorf("%v, %v: %+v, want %d cables", err, found, topology, n)
		}
	}
}
