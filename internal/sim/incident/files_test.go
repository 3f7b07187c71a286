package incident

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

func TestFilesRoundTrip(t *testing.T) {
	for _, o := range []Scenario{{ID: fabric.HardFailure, Windows: 3, Probes: 10, Know: Half}, {ID: fabric.HOLSame, Windows: 2, Probes: 10}, {ID: fabric.Host, Windows: 3, Probes: 10}} {
		c := o.MakeCase(small(), 4)
		dir := filepath.Join(t.TempDir(), "case")
		if err := c.Write(dir); err != nil {
			t.Fatal(err)
		}
		got, err := ReadCase(dir)
		if err != nil {
			t.Fatalf("%s: %v", o.ID, err)
		}
		if text(t, got) != text(t, c) {
			t.Errorf("%s: what was read is not what was written", o.ID)
		}
		if !reflect.DeepEqual(fabric.NewGraph(got.Topology).NICIDs(), fabric.NewGraph(c.Topology).NICIDs()) {
			t.Errorf("%s: another topology", o.ID)
		}
	}
}

func TestReadSaysWhatIsWrong(t *testing.T) {
	c := Scenario{ID: fabric.Incast, Windows: 2, Probes: 5}.MakeCase(small(), 1)
	for _, x := range []struct {
		file, was, is, want string
	}{
		{TruthFile, `"scenario": "incast"`, `"scenario": "earthquake"`, `faults[0].scenario": "earthquake" is no scenario`},
		{TruthFile, `"windows": 2`, `"windows": 0`, `field "windows": 0, at least 1`},
		{TruthFile, `"first_window": 1`, `"first_window": 9`, `windows 9 to 1 of 2`},
		{TruthFile, `"last_window": 1`, `"last_window": 2`, `windows 1 to 2 of 2`},
		{TruthFile, `"seed": 1`, `"seed": -1`, `line 2: a JSON object of a truth file is expected`},
		{TruthFile, `"seed": 1`, `"sead": 1`, `unknown field "sead"`},
		{ObservationsFile, `"lost":0`, `"lost":700`, "line 1: field \"lost\": 700 of 5 sent"},
		{TopologyFile, "version: 1", "version: 7", "version"},
	} {
		dir := t.TempDir()
		if err := c.Write(dir); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, x.file)
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), x.was) {
			t.Fatalf("%s holds no %s", x.file, x.was)
		}
		if err := os.WriteFile(name, []byte(strings.Replace(string(b), x.was, x.is, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadCase(dir); err == nil || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), x.file) {
			t.Errorf("%s with %s: %v, want %q", x.file, x.is, err, x.want)
		}
	}
}

func FuzzParseTruth(f *testing.F) {
	for _, s := range []fabric.Scenario{fabric.Miscabled, fabric.PairOnly, fabric.HOLSame} {
		b, _ := json.Marshal(Scenario{ID: s, Windows: 2, Probes: 1}.MakeCase(small(), 1).Truth)
		f.Add(b)
	}
	f.Add([]byte(`{"seed":1,"windows":1,"faults":[{"element":"a","kind":"b","scenario":"flap","first_window":0,"last_window":0,"loss_ratio":2}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		truth, err := ParseTruth(text)
		if err != nil {
			return
		}
		b, err := json.Marshal(truth)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseTruth(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if b2, _ := json.Marshal(again); string(b2) != string(b) {
			t.Fatalf("%s became %s", b, b2)
		}
	})
}
