package ibtest

import (
	"strings"
	"testing"
)

func TestFabric(t *testing.T) {
	f := Start(t, FatTree(4, 2, 2), Options{Engine: "ftree", LMC: 1})
	found, err := f.Run("h3", "ibnetdiscover")
	if err != nil {
		t.Fatal(err)
	}
	for what, n := range map[string]int{"Switch\t": 6, "Ca\t": 8} {
		if got := strings.Count(found, "\n"+what); got != n {
			t.Errorf("%d records begin with %q, not %d: %s", got, what, n, found)
		}
	}
	if got := f.RunConsole(`PerformanceSet "leaf0"[3] PortCounters.SymbolErrorCounter=123`); strings.Contains(got, "#") {
		t.Error(got)
	}
	route := func() string {
		got, err := f.Run("h0", "ibtracert", "-G", "0x100001", "0x10000f")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	before := route()
	spine, uplink := "spine0", `"leaf0"[3]`
	if strings.Contains(before, "spine1") {
		spine, uplink = "spine1", `"leaf0"[4]`
	}
	f.ChangeAndWait("Unlink " + uplink)
	if got := route(); strings.Contains(got, spine) {
		t.Errorf("the route still crosses %s: %s", spine, got)
	}
	f.ChangeAndWait("ReLink " + uplink)
	f.StopSM()
	f.StartSM()
}
