package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

// writeScope puts a configuration with a scope beside a topology.
func writeScope(t *testing.T, topo *fabric.Topology, scope string) (file string) {
	t.Helper()
	text, err := yaml.Marshal(topo)
	if err != nil {
		t.Fatal(err)
	}
	file = write(t, minimal+"scope: "+scope+"\nevidence: {profile: fleet}\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "topology.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestScopesOfPods checks the names of parts, what they own, and which are refused with what message.
func TestScopesOfPods(t *testing.T) {
	pods := worldtest.NewPods(t, 3, 1).Topo
	groups := dragonfly.NewTopology(dragonfly.Options{Groups: 3, LeavesPerGroup: 2, SpinesPerGroup: 2, NICsPerLeaf: 1, GlobalPerPair: 2})
	first := groups.Switches[0].Group
	core, link := fabric.Element{Kind: fabric.KindSwitch, ID: "c11"}, fabric.Element{Kind: fabric.KindLink, ID: "c11:dn2--p2s1:up1"}
	for _, c := range []struct {
		topo           *fabric.Topology
		scope          string
		name           string
		hasCore, hasP2 bool
		err            string
	}{
		{topo: pods, scope: "{pods: [p2, p1]}", name: "p1+p2", hasP2: true},
		{topo: pods, scope: "{planes: [a], pods: [p1], core: true}", name: "a/p1/core", hasCore: true},
		{topo: pods, scope: "{planes: [a]}", name: "a", hasCore: true, hasP2: true},
		{topo: pods, scope: "{pods: [p1, p4]}", err: `scope.pods: no switch has the pod or group "p4": one of "p1", "p2", "p3" is expected`},
		{topo: pods, scope: "{planes: [b], pods: [p1]}", err: `scope.planes: plane "b" has no NIC`},
		{topo: groups, scope: "{pods: [" + first + "]}", name: first},
		{topo: groups, scope: "{pods: [" + first + "], core: true}", err: "scope.core: every switch has a pod or a group"},
	} {
		config, err := LoadConfig(writeScope(t, c.topo, c.scope))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), "analyzer.yaml:4: "+c.err) {
				t.Errorf("%s: %v, want %s", c.scope, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.scope, err)
			continue
		}
		if got := config.Scope.name(); got != c.name {
			t.Errorf("%s: the name %q, want %q", c.scope, got, c.name)
		}
		if c.topo == pods && (config.owns(core) != c.hasCore || config.owns(link) != c.hasP2) {
			t.Errorf("%s: owns the core: %t, a link of p2: %t", c.scope, config.owns(core), config.owns(link))
		}
	}
}
