package audit

import (
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// configureEverything gives all NICs, ports and switches the same settings, by role.
func configureEverything(g *fabric.Graph, e *Evidence) {
	e.Configured = map[string]Configured{}
	for _, nic := range g.NICIDs() {
		e.Configured[nic] = Configured{Model: "MT4129 MT_0000000838", Settings: map[string]string{"firmware": "28.39.1002", "driver": "mlx5_core", "PCIe width": "x16", "PCIe speed": "32 GT/s"}}
	}
	for i := range g.Topo.Switches {
		sw := g.Topo.Switches[i].Name
		e.Configured[sw] = Configured{Settings: map[string]string{"ECN profile LOSSLESS": "ecn ecn_all, min_threshold 1048576, max_threshold 2097152, probability 5"}}
		for _, end := range g.EndsOf(sw) {
			settings := map[string]string{"PFC priorities": "3", "DSCP map": "ROCE", "ECN profile of queue 3": "LOSSLESS"}
			if !fabric.IsNIC(g.PeerOf(end)) { // another map towards switches is no drift
				settings["DSCP map"] = "CORE"
			}
			e.Configured[end] = Configured{Settings: settings}
		}
	}
}

// set changes a setting of an element.
func set(e *Evidence, element, setting, value string) {
	e.Configured[element].Settings[setting] = value
}

func TestDriftOfConfiguration(t *testing.T) {
	s := newSite(1, 4, 4, 8)
	up, _ := s.fabricLink(3)
	leaf := fabric.OwnerOf(up.From)
	nics := s.g.NICIDs()
	seen := s.observe()
	for name, x := range map[string]struct {
		change func(*Evidence)
		status Status
		at     []string
		text   string
	}{
		"like its role": {func(*Evidence) {}, Pass, nil, ""},
		"no series":     {func(e *Evidence) { e.Configured = nil }, Unknown, nil, ""},
		"firmware": {func(e *Evidence) { set(e, nics[3], "firmware", "28.38.900") }, Fail, []string{nics[3]},
			"Its firmware is 28.38.900; 31 of 32 have 28.39.1002 (NIC of plane a, MT4129 MT_0000000838)."},
		"PCIe":            {func(e *Evidence) { set(e, nics[3], "PCIe width", "x8") }, Fail, []string{nics[3]}, "Its PCIe width is x8; 31 of 32 have x16"},
		"PFC of a port":   {func(e *Evidence) { set(e, up.From, "PFC priorities", "") }, Fail, []string{up.From}, "Its PFC priorities is empty; 15 of 16 have 3 (leaf uplink)."},
		"the ECN profile": {func(e *Evidence) { set(e, leaf, "ECN profile LOSSLESS", "ecn ecn_none") }, Fail, []string{leaf}, "is ecn ecn_none; 3 of 4 have"},
		"ECN of a whole switch": {func(e *Evidence) {
			for _, end := range s.g.EndsOf(leaf) {
				set(e, end, "ECN profile of queue 3", "LOSSY")
			}
		}, Fail, []string{leaf}, "The ECN profile of queue 3 of its 8 ports is LOSSY; 24 of 32 have LOSSLESS (leaf port to a NIC)."},
		"another model": {func(e *Evidence) {
			for _, nic := range nics[:6] {
				c := e.Configured[nic]
				c.Model, c.Settings = "MT4131 X", map[string]string{"firmware": "40.1"}
				e.Configured[nic] = c
			}
		}, Pass, nil, ""},
		"no majority": {func(e *Evidence) {
			for _, nic := range nics[:16] {
				set(e, nic, "firmware", "28.38.900")
			}
		}, Unknown, []string{"NIC of plane a, MT4129 MT_0000000838"}, "firmware: no value has a clear majority"},
		"a model of one": {func(e *Evidence) {
			c := e.Configured[nics[0]]
			c.Model = "other"
			e.Configured[nics[0]] = c
		}, Unknown, slices.Repeat([]string{"NIC of plane a, other"}, 4), "1 elements have it; at least 4 are needed"},
		"a NIC without series": {func(e *Evidence) { delete(e.Configured, nics[0]) }, Unknown, []string{"NICs without a configuration"}, "1 NICs"},
		"an unplanned switch": {func(e *Evidence) {
			e.Configured["nowhere:1"] = Configured{Settings: map[string]string{"PFC priorities": "1"}}
		}, Pass, nil, ""},
	} {
		copied := *seen
		e := &copied
		configureEverything(s.g, e)
		x.change(e)
		r := Run(e, DefaultCriteria(), whole(s.g))
		c := checkOf(t, &r, "A10")
		var at []string
		for _, i := range c.Items {
			at = append(at, i.Element)
		}
		if c.Status != x.status || !slices.Equal(at, x.at) || len(x.at) > 0 && !strings.Contains(c.Items[0].Text, x.text) {
			t.Errorf("%s: A10 is %s at %v, want %s at %v\n%s", name, c.Status, at, x.status, x.at, describe(&r))
		}
	}
	// What differs outside the scope is not judged, and the others are its majority.
	scope, err := ParseScope(s.g, "node:"+fabric.OwnerOf(nics[3]))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]Status{3: Fail, 9: Pass} {
		copied := *seen
		e := &copied
		configureEverything(s.g, e)
		set(e, nics[i], "firmware", "28.38.900")
		r := Run(e, DefaultCriteria(), scope)
		if c := checkOf(t, &r, "A10"); c.Status != want || c.Population == 0 {
			t.Errorf("NIC %d: %s\n%s", i, c.Status, describe(&r))
		}
	}
}

func TestModesOfFECInSeveralVocabularies(t *testing.T) {
	for _, x := range []struct {
		a, b string
		same bool
	}{
		{"rs", "RS", true}, {"rs", "baser", false}, {"rs", "off", false}, {"none", "off", true}, {"fc", "baser", true},
		{"rs", "Standard RS-FEC - (544,514)", true}, {"FEC_RS544", "rs", true}, {"FEC_DISABLED", "rs", false}, {"No FEC", "off", true},
		{"Standard RS-FEC - (544,514)", "Standard RS-FEC - (528,514)", false}, {"Standard LL RS-FEC - (272,257)", "Standard RS-FEC - (544,514)", false},
		{"a mode of a vendor", "rs", true}, {"a mode of a vendor", "another mode", false},
	} {
		if sameFEC(x.a, x.b) != x.same || sameFEC(x.b, x.a) != x.same {
			t.Errorf("%q and %q: %v", x.a, x.b, !x.same)
		}
	}
}
