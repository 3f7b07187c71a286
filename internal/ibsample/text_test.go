package ibsample

import (
	"encoding/json"
	"strings"
	"testing"
)

// counterID returns the number of a counter.
func counterID(t *testing.T, name string) ID {
	t.Helper()
	for i := range Counters {
		if Counters[i].String() == name {
			return ID(i)
		}
	}
	t.Fatalf("no counter %s", name)
	return 0
}

func TestTexts(t *testing.T) {
	data, symbols := counterID(t, "PortCountersExtended.PortRcvData"), counterID(t, "PortCounters.SymbolErrorCounter")
	p := PortState{Target: Target{Key: Key{Port: 2}, Element: "leaf0:2", LID: 4}, At: 1_700_000_000_000_000_000, Suspect: true, Errors: map[string]uint64{"timeout": 3}}
	p.Counts = append(p.Counts, Count{Raw: 5_000_000_000, Rate: 2.5e6, Rated: true}, Count{Raw: 65535})
	p.Counts[0].ID, p.Counts[1].ID = data, symbols
	b, err := json.Marshal(NewPortSample(&p))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"port":"leaf0:2","lid":4,"number":2,"at":"2023-11-14T22:13:20Z","suspect":true,"counters":{"PortCounters.SymbolErrorCounter":{"raw":65535,"saturated":true},` +
		`"PortCountersExtended.PortRcvData":{"raw":5000000000,"rate":2500000}},"errors":{"timeout":3}}`
	if string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	var text strings.Builder
	if err := WriteTable(&text, []PortState{p}); err != nil {
		t.Fatal(err)
	}
	row := strings.Join(strings.Fields(strings.Split(text.String(), "\n")[1]), " ")
	if want := "leaf0:2 - - 2.500 - >=65535 - - - timeout 3 suspect: management packets were dropped"; row != want {
		t.Errorf("%q, want %q", row, want)
	}
}
