package coordinator

import (
	"fmt"
	"maps"
	"testing"
)

func TestAgentsAreCountedByVersion(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	for node, version := range map[string]string{"h1": "0.1.0", "h2": "0.2.0", "h3": "0.2.0", "h4": ""} {
		h := hello(node, 0)
		h.Version = version
		f.mustConnect(h)
	}
	if got, want := f.Stats().AgentVersions, map[string]int{"0.1.0": 1, "0.2.0": 2, "unknown": 1}; !maps.Equal(got, want) {
		t.Errorf("versions %v, want %v", got, want)
	}
}

func TestBoundVersions(t *testing.T) {
	agents, want := map[string]int{}, map[string]int{}
	for i := range mostVersions {
		agents[fmt.Sprintf("0.1.%02d", i)] = 2
	}
	if got := boundVersions(agents); len(got) != mostVersions || got["other"] != 0 {
		t.Errorf("%d versions: %v", mostVersions, got)
	}
	agents["0.0.1"], agents["0.2.0"] = 1, 9
	for v, n := range map[string]int{"0.2.0": 9, "other": 1 + 2*2} {
		want[v] = n
	}
	for i := range mostVersions - 2 {
		want[fmt.Sprintf("0.1.%02d", i)] = 2
	}
	if got := boundVersions(agents); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
