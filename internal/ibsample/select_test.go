package ibsample

import (
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ibmad"
)

func TestEveryCounterHasASeries(t *testing.T) {
	seen := map[string]bool{}
	for i := range Counters {
		c := &Counters[i]
		if c.Name == "" {
			t.Errorf("%v has no series", c.String())
		}
		if (c.Label == "") != (c.Value == "") {
			t.Errorf("%v: label %q with value %q", c.String(), c.Label, c.Value)
		}
		if id := c.Name + c.Label + c.Value + c.Attribute.String(); seen[id] && !c.ReedSolomon {
			t.Errorf("%v: another counter of the query is the same series", c.String())
		} else {
			seen[id] = true
		}
	}
	for name := range seriesNames {
		if !slices.ContainsFunc(Counters, func(c Counter) bool { return c.Field == name }) {
			t.Errorf("no query has a field %s", name)
		}
	}
}

func fields(asks []Query) map[ibmad.Attribute][]string {
	out := map[ibmad.Attribute][]string{}
	for _, a := range asks {
		for _, id := range a.IDs {
			out[a.Attribute] = append(out[a.Attribute], Counters[id].Field)
		}
	}
	return out
}

func TestRule3WiderCountersTakeThePlace(t *testing.T) {
	s := Selection{"PortXmitData", "SymbolErrorCounter", "PortXmitWait"}
	for _, tc := range []struct {
		name   string
		traits Traits
		want   map[ibmad.Attribute][]string
	}{
		{"nothing known", Traits{}, map[ibmad.Attribute][]string{}},
		{"32 bits", Traits{Known: true}, map[ibmad.Attribute][]string{ibmad.AttrPortCounters: {"SymbolErrorCounter", "PortXmitData"}}},
		{"32 bits with waits", Traits{Known: true, Capabilities: ibmad.PMPortCountersXmitWait}, map[ibmad.Attribute][]string{ibmad.AttrPortCounters: {"SymbolErrorCounter", "PortXmitData", "PortXmitWait"}}},
		{"64 bits", Traits{Known: true, Capabilities: ibmad.PMExtendedWidth}, map[ibmad.Attribute][]string{
			ibmad.AttrPortCounters: {"SymbolErrorCounter"}, ibmad.AttrPortCountersExtended: {"PortXmitData"}}},
		{"64 bits, errors too", Traits{Known: true, Capabilities: ibmad.PMExtendedWidth, Capabilities2: ibmad.PM2AdditionalExtendedEr}, map[ibmad.Attribute][]string{
			ibmad.AttrPortCountersExtended: {"PortXmitData", "SymbolErrorCounter", "PortXmitWait"}}},
		{"64 bits, announced but absent", Traits{Known: true, Capabilities: ibmad.PMExtendedWidth, Absent: attributeBit(ibmad.AttrPortCountersExtended)}, map[ibmad.Attribute][]string{
			ibmad.AttrPortCounters: {"SymbolErrorCounter", "PortXmitData"}}},
	} {
		got := fields(s.QueriesFor(tc.traits))
		if len(got) != len(tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		for a, want := range tc.want {
			if !slices.Equal(got[a], want) {
				t.Errorf("%s: %v: %v, want %v", tc.name, a, got[a], want)
			}
		}
	}
}

func TestCountersOfPartsThatAPortLacksAreNotRead(t *testing.T) {
	count := func(name string, tr Traits) (n int) {
		for _, a := range (Selection{name}).QueriesFor(tr) {
			n += len(a.IDs)
		}
		return n
	}
	if got := count("PortVLXmitWaitCounters", Traits{Known: true, VLs: 4}); got != 4 {
		t.Errorf("%d VLs of 4", got)
	}
	if got := count("ErrorDetectionCounter", Traits{Known: true, Lanes: 4, FEC: FECPerLane}); got != 4 {
		t.Errorf("%d lanes of 4", got)
	}
	for fec, want := range map[FEC][2]int{FECUnknown: {0, 0}, FECPerLane: {1, 0}, FECReedSolomon: {0, 1}} {
		got := [2]int{count("FECCorrectableBlockCtr", Traits{Known: true, Lanes: 1, FEC: fec}), count("PortFECCorrectableBlockCtr", Traits{Known: true, Lanes: 1, FEC: fec})}
		if got != want {
			t.Errorf("error correction %d: %v counters per lane and per port, want %v", fec, got, want)
		}
	}
}

func TestSelectionNamesWhatIsUnknown(t *testing.T) {
	if err := (Selection{"PortCounters", "PortXmitWait"}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (Selection{"PortXmitWiat"}).Validate(); err == nil || !strings.Contains(err.Error(), "PortXmitWiat") {
		t.Errorf("error %v", err)
	}
}

func TestPins(t *testing.T) {
	targets := []Target{
		{Key: Key{1, 6}, LID: 22, Element: "leaf1:6", Switch: true}, {Key: Key{1, 7}, LID: 22, Element: "leaf1:7", Switch: true},
		{Key: Key{2, 6}, LID: 23, Element: "leaf11:6", Switch: true}, {Key: Key{3, 1}, LID: 24, Element: "h1/mlx5_0"},
	}
	for pin, want := range map[string][]int{"22": {0, 1}, "0x16": {0, 1}, "22#6": {0}, "22#1-6": {0}, "22#6-9": {0, 1}, "leaf1": {0, 1}, "leaf1:7": {1}, "h1": {3}, "h1/mlx5_0": {3}, "leaf9": nil} {
		p := Pin{Sampler: "a", Ports: pin}
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", pin, err)
			continue
		}
		got := resolvePins([]Pin{p}, targets)
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", pin, got, want)
		}
		for _, i := range want {
			if got[targets[i].Key] != "a" {
				t.Errorf("%s does not mean %s", pin, targets[i].Element)
			}
		}
	}
	for _, bad := range []string{"", "0", "65535", "22#", "22#9-6", "22#300", "leaf1#6"} {
		if err := (Pin{Sampler: "a", Ports: bad}).Validate(); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if (Pin{Ports: "22"}).Validate() == nil {
		t.Error("a pin without a sampler is taken")
	}
}
