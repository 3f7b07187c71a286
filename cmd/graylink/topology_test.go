package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// answering is an agent that answers on one path.
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
		{Port: "dn1", Up: true, SpeedGbps: 400, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.1/24")}, Beyond: []fabric.Beyond{{Address: netip.MustParseAddr("10.0.1.2")}}},
		{Port: "dn2", Up: true, System: "h2", SystemPort: "eth1"},
		{Port: "up1", Up: true, System: "spine1", SystemPort: "dn1"}}})
	spine := answering(t, "/api/v1/ports", fabric.SwitchView{Switch: "spine1", Ports: []fabric.PortView{{Port: "dn1", Up: true, System: "leaf1", SystemPort: "up1"}}})
	node := answering(t, "/api/v1/nics", fabric.NodeView{Node: "h1", NICs: []fabric.NICView{{NIC: "h1/eth1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.2")}}}})
	second := answering(t, "/api/v1/nics", fabric.NodeView{Node: "h2", NICs: []fabric.NICView{{NIC: "h2/eth1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.2")}}}})
	file := filepath.Join(t.TempDir(), "t.yaml")
	_, stderr, code := program(t, "", "topology", "discover", "--switch", leaf, "--switch", spine+"/", "--node", node, "--node", second, "--output", file)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	topo, found := fabric.Load(file)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	g := fabric.NewGraph(topo)
	if g.Peer("h1/eth1") != "leaf1:dn1" || g.Peer("leaf1:up1") != "spine1:dn1" || g.SwitchTier("spine1") != 2 {
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
		{nil, 1, "--switch or --lab"},
		{[]string{"--lab", "nosuchlab"}, 1, "nosuchlab"},
	} {
		_, stderr, code := program(t, "", append([]string{"topology", "discover"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: exit code %d, want %d with %q: %s", c.args, code, c.code, c.says, stderr)
		}
	}
}
