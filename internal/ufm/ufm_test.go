package ufm

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ufm/ufmtest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || got != string(want) {
		t.Errorf("%s differs (%v):\n%s", file, err, got)
	}
}

func TestGUIDs(t *testing.T) {
	for _, x := range []string{"2c90300f172a0", "0x2c90300f172a0", "0x0002c90300f172a0", "0002C90300F172A0", "0002:c903:00f1:72a0", " 0002c90300f172a0 ", "0X2c90300f172a0"} {
		if g, err := ParseGUID(x); err != nil || g.String() != "0x0002c90300f172a0" {
			t.Errorf("%q is %v, %v", x, g, err)
		}
	}
	for _, x := range []string{"", "0x", "N/A", "g", "0x00000002c90300f172a0", "-1", "0x0x1", "1_0"} {
		if g, err := ParseGUID(x); err == nil {
			t.Errorf("%q is %v", x, g)
		}
	}
}

func newTable(t testing.TB, declared map[string]DeclaredColumn) *Table {
	t.Helper()
	table, err := NewTable(declared, OpticsUnits{Power: "mW", Bias: "mA"})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// saved returns the inventory of testdata.
func saved(t testing.TB) *Inventory {
	t.Helper()
	v := &Inventory{}
	for _, f := range []string{"systems.json", "links.json", "ports_rest.json"} {
		b, err := os.ReadFile("testdata/" + f)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.ReadSaved(bytes.NewReader(b)); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	if err := v.FinishSaved(); err != nil {
		t.Fatal(err)
	}
	return v
}

func directory(v *Inventory) *Directory {
	d := &Directory{}
	d.SetInventory(v)
	return d
}

// line returns a sample as text, for comparisons. Times are cut to milliseconds, the precision of Prometheus
// text.
func line(x Sample) string {
	name := x.Column.Metric.Switch
	if x.Port.NIC != "" {
		name = x.Column.Metric.NIC
	}
	label := x.Column.Value
	if x.Column.Type == State {
		label = x.State
	}
	return fmt.Sprintf("%s{%s,%s=%q} %v %d", name, x.Port.ID(), x.Column.Metric.Label, label, x.Value, x.At.UnixMilli())
}

func read(t testing.TB, s *Source, f Format, r io.Reader) ([]string, Report, error) {
	t.Helper()
	var out []string
	report, err := s.Read(f, r, func(x Sample) error {
		out = append(out, line(x))
		return nil
	})
	slices.Sort(out)
	return out, report, err
}

var files = map[Format]string{CSV: "testdata/ports.csv", JSON: "testdata/ports.json", Prometheus: "testdata/ports.prom"}

// TestThreeFormsAgree checks rule 1, and compares the samples with the golden file. Prometheus text has no
// states, so no error correction.
func TestThreeFormsAgree(t *testing.T) {
	for f, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for name, r := range map[string]io.Reader{"at once": bytes.NewReader(b), "by octets": iotest.OneByteReader(bytes.NewReader(b))} {
			s := NewSource(newTable(t, nil), directory(saved(t)))
			got, report, err := read(t, s, f, r)
			if err != nil || len(report.Errors) > 0 || report.Unnamed > 0 {
				t.Errorf("%s %s: %v, %+v", f, name, err, report)
			}
			if unknown := s.Table.UnknownColumns(); !slices.Equal(unknown, []string{"Vendor_Special"}) {
				t.Errorf("%s: unknown are %v", f, unknown)
			}
			if f == Prometheus {
				got = append(got, `fabric_switch_port_fec_mode{leaf1:1,mode="Standard RS-FEC - (544,514)"} 1 1709652347161`)
				slices.Sort(got)
			}
			golden(t, "testdata/ports.golden", strings.Join(got, "\n")+"\n")
		}
	}
}

// TestGeneratedFormsAgree checks the same for many ports, value for value.
func TestGeneratedFormsAgree(t *testing.T) {
	f := ufmtest.Fabric{Switches: 7, Ports: 40, Counters: ufmtest.CounterNames(50), At: 1709652347161000}
	var all [3][]string
	for i, w := range []struct {
		f     Format
		write func(io.Writer)
	}{{CSV, f.WriteCSV}, {JSON, f.WriteJSON}, {Prometheus, f.WritePrometheus}} {
		var b bytes.Buffer
		w.write(&b)
		got, report, err := read(t, NewSource(newTable(t, nil), generated(f)), w.f, &b)
		if err != nil || len(report.Errors) > 0 || len(got) != 7*40*50 {
			t.Fatalf("%s: %d samples, %+v, %v", w.f, len(got), report, err)
		}
		all[i] = got
	}
	if !slices.Equal(all[0], all[1]) || !slices.Equal(all[0], all[2]) {
		t.Error("the forms do not agree")
	}
}

// generatedNames names the ports of a generated fabric.
type generatedNames struct{}

func generated(ufmtest.Fabric) PortNamer { return generatedNames{} }

func (generatedNames) Version() uint64 { return 1 }
func (generatedNames) NameOf(id Identity) (Name, bool) {
	return Name{Switch: id.Node.String(), Port: fmt.Sprint(id.Number)}, true
}

func TestValues(t *testing.T) {
	number, signed := &Column{Scale: 1}, &Column{Type: Signed, Scale: 1}
	celsius, dbm, state, milli := &Column{Type: Temperature, Scale: 1}, &Column{Type: DBm, Scale: 1}, &Column{Type: State}, &Column{Scale: 1e-3}
	none, bad := math.NaN(), math.Inf(1)
	for _, x := range []struct {
		column *Column
		text   string
		want   float64
	}{
		{number, "0", 0}, {number, "12", 12}, {number, " 12 ", 12}, {number, "1e3", 1000}, {number, "9223372036854775808", 1 << 63},
		{number, "4611686018427387905", 4611686018427387905}, {number, "99999999999999999999", 1e20},
		{number, "", none}, {number, "N/A", none}, {number, "n/a", none}, {number, "NA", none}, {number, "NaN", none}, {number, "-nan", bad}, {number, "null", none},
		{number, "-", none}, {number, "-1", none}, {number, "-1.0", none}, {number, "18446744073709551615", none}, {number, "Unknown", none},
		{number, "-2", bad}, {number, "x", bad}, {number, "0x10", bad}, {number, "inf", bad}, {number, "1e999", bad}, {number, "1 2", bad}, {number, "true", bad}, {number, "1_000", bad},
		{signed, "-5", -5}, {signed, "-1", none},
		{celsius, "45", 45}, {celsius, "45C", 45}, {celsius, "45.5C", 45.5}, {celsius, "0", none}, {celsius, "0C", none}, {celsius, "-5", -5}, {celsius, "-1", none}, {celsius, "C", bad},
		{dbm, "0", 1e-3}, {dbm, "-1", math.Pow(10, -0.1) * 1e-3}, {dbm, "-10", 1e-4}, {dbm, "3.0 dBm", math.Pow(10, 0.3) * 1e-3}, {dbm, "N/A", none},
		{milli, "0.5 mW", 0.5e-3}, {milli, "3300", 3.3}, {milli, "0", 0},
		{state, "RS-FEC", 1}, {state, "N/A", none}, {state, "-1", none}, {state, "a\x01", bad}, {state, strings.Repeat("x", 65), bad},
	} {
		v, _, there, err := x.column.parseValue([]byte(x.text))
		switch {
		case math.IsNaN(x.want):
			if there || err != nil {
				t.Errorf("%q, type %d: %v, %v, want none", x.text, x.column.Type, v, err)
			}
		case math.IsInf(x.want, 1):
			if err == nil {
				t.Errorf("%q, type %d: %v, want an error", x.text, x.column.Type, v)
			}
		case err != nil || !there || math.Abs(v-x.want) > 1e-12*math.Abs(x.want):
			t.Errorf("%q, type %d: %v, %v, %v, want %v", x.text, x.column.Type, v, there, err, x.want)
		}
	}
}

func TestTimes(t *testing.T) {
	want := time.UnixMilli(1709652347161)
	for text, unit := range map[string]time.Duration{"1709652347": time.Second, "1709652347161": 1, "1709652347161000": 1, "1709652347161000000": 1} {
		if got := parseUnixTime([]byte(text)); !got.Truncate(unit).Equal(want.Truncate(unit)) {
			t.Errorf("%s is %v", text, got)
		}
	}
	for _, text := range []string{"", "0", "-5", "x", "2024-03-05 16:26:11", "99999999999999999999999"} {
		if got := parseUnixTime([]byte(text)); !got.IsZero() {
			t.Errorf("%q is %v", text, got)
		}
	}
}

const head = "timestamp,node_guid,port_guid,port_num,PortXmitDataExtended,LinkDownedCounterExtended\n"

// TestFaults checks rule 4, and what is counted. A kind of "" means a document without error.
func TestFaults(t *testing.T) {
	row := func(port int, data, down string) string {
		return fmt.Sprintf("1709652347161873,2c90300f172a0,2c90300f172a0,%d,%s,%s\n", port, data, down)
	}
	obj := func(port int, data string) string {
		return fmt.Sprintf(`{"timestamp":1709652347161873,"node_guid":"2c90300f172a0","port_num":%d,"PortXmitDataExtended":%s}`, port, data)
	}
	prom := func(port int, data string) string {
		return fmt.Sprintf("PortXmitDataExtended{node_guid=\"2c90300f172a0\",port_num=\"%d\"} %s 1709652347161\n", port, data)
	}
	for name, x := range map[string]struct {
		format  Format
		text    string
		kind    Kind
		samples int
		counted map[Kind]int
		unnamed int
	}{
		"whole":                   {CSV, head + row(1, "1", "2") + row(2, "3", "4"), "", 4, nil, 0},
		"windows":                 {CSV, strings.ReplaceAll(head+row(1, "1", "2"), "\n", "\r\n"), "", 2, nil, 0},
		"duplicate row":           {CSV, head + row(1, "1", "2") + row(1, "1", "2"), "", 2, map[Kind]int{KindDuplicate: 2}, 0},
		"cut in a number":         {CSV, head + row(1, "1", "2") + "1709652347161873,2c90300f172a0,2c90300f172a0,2,3,4", KindTruncated, 2, nil, 0},
		"cut in a row":            {CSV, head + row(1, "1", "2") + "1709652347161873,2c9", KindTruncated, 2, nil, 0},
		"cut in the header":       {CSV, head[:30], KindMalformed, 0, nil, 0},
		"empty":                   {CSV, "", KindTruncated, 0, nil, 0},
		"no header":               {CSV, row(1, "1", "2"), KindMalformed, 0, nil, 0},
		"an error page":           {CSV, "<html><body>busy</body></html>\n", KindMalformed, 0, nil, 0},
		"short row":               {CSV, head + "1,2\n" + row(2, "1", "2"), "", 2, map[Kind]int{KindMalformed: 1}, 0},
		"wrong type":              {CSV, head + row(1, "many", "2") + row(2, "-7", "2"), "", 2, map[Kind]int{KindValue: 2}, 0},
		"no number":               {CSV, head + "1709652347161873,2c90300f172a0,2c90300f172a0,N/A,3,4\n", "", 0, map[Kind]int{KindIdentity: 1}, 0},
		"bad GUID":                {CSV, head + "1709652347161873,zzz,2c90300f172a0,1,3,4\n", "", 0, map[Kind]int{KindIdentity: 1}, 0},
		"the port is unknown":     {CSV, head + "1709652347161873,1,1,1,3,4\n", "", 0, nil, 1},
		"columns change within":   {CSV, head + row(1, "1", "2") + "timestamp,node_guid,port_num,PortRcvDataExtended\n1709652347161873,2c90300f172a0,2,3\n", "", 3, nil, 0},
		"JSON, two":               {JSON, "[" + obj(1, "1") + "," + obj(2, "2") + "]", "", 2, nil, 0},
		"JSON, within an object":  {JSON, `{"timestamp":"2024-03-05 16:26:11","values":[` + obj(1, "1") + "," + obj(2, "2") + "]}", "", 2, nil, 0},
		"JSON, lines":             {JSON, obj(1, "1") + "\n" + obj(2, "2"), "", 2, nil, 0},
		"JSON, duplicate":         {JSON, "[" + obj(1, "1") + "," + obj(1, "2") + "]", "", 1, map[Kind]int{KindDuplicate: 1}, 0},
		"JSON, cut":               {JSON, "[" + obj(1, "1") + "," + obj(2, "2")[:40], KindTruncated, 1, nil, 0},
		"JSON, cut between":       {JSON, "[" + obj(1, "1") + ",", KindTruncated, 1, nil, 0},
		"JSON, not closed":        {JSON, "[" + obj(1, "1"), KindTruncated, 1, nil, 0},
		"JSON, empty":             {JSON, "", KindTruncated, 0, nil, 0},
		"JSON, garbage":           {JSON, "<html>", KindMalformed, 0, nil, 0},
		"JSON, garbage behind":    {JSON, "[" + obj(1, "1") + "] x", KindMalformed, 1, nil, 0},
		"JSON, wrong types":       {JSON, "[" + obj(1, "true") + "," + obj(2, `{"a":1}`) + "," + obj(3, `[1,2]`) + "," + obj(0, `"x"`) + "]", "", 0, map[Kind]int{KindValue: 4}, 0},
		"JSON, absent":            {JSON, "[" + obj(1, "null") + "," + obj(2, `"N/A"`) + "," + obj(3, `-1`) + "]", "", 0, nil, 0},
		"JSON, deep":              {JSON, strings.Repeat("[", 100), KindMalformed, 0, nil, 0},
		"JSON, no identity":       {JSON, `[{"PortXmitDataExtended":1}]`, "", 0, map[Kind]int{KindIdentity: 1}, 0},
		"JSON, number":            {JSON, "[" + obj(1, "1.2.3") + "]", KindMalformed, 0, nil, 0},
		"JSON, bad escape":        {JSON, `[{"\q":1}]`, KindMalformed, 0, nil, 0},
		"text, two":               {Prometheus, "# HELP x y\n\n" + prom(1, "1") + prom(2, "2"), "", 2, nil, 0},
		"text, duplicate":         {Prometheus, prom(1, "1") + prom(1, "1"), "", 1, map[Kind]int{KindDuplicate: 1}, 0},
		"text, cut":               {Prometheus, prom(1, "1") + prom(2, "2")[:70], KindTruncated, 1, nil, 0},
		"text, without labels":    {Prometheus, "up 1\n" + prom(1, "1"), "", 1, map[Kind]int{KindIdentity: 1}, 0},
		"text, labels cut":        {Prometheus, "PortXmitDataExtended{node_guid=\"2c9} 1\n", "", 0, map[Kind]int{KindMalformed: 1}, 0},
		"text, no value":          {Prometheus, strings.Replace(prom(1, "1"), " 1 1709652347161", "", 1), "", 0, map[Kind]int{KindMalformed: 1}, 0},
		"text, wrong time":        {Prometheus, strings.Replace(prom(1, "1"), "1709652347161", "now", 1), "", 0, map[Kind]int{KindMalformed: 1}, 0},
		"text, of an unknown one": {Prometheus, "PortXmitDataExtended{node_guid=\"1\",port_num=\"1\"} 1\n", "", 0, nil, 1},
		"a line without end":      {CSV, head + strings.Repeat("x", maxLine+1), KindTooLarge, 0, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSource(newTable(t, nil), directory(saved(t)))
			got, report, err := read(t, s, x.format, strings.NewReader(x.text))
			if (err == nil) != (x.kind == "") || err != nil && KindOf(err) != x.kind {
				t.Errorf("error %v, want %q", err, x.kind)
			}
			if len(got) != x.samples || report.Unnamed != x.unnamed || len(report.Errors) != len(x.counted) || x.counted != nil && !maps.Equal(report.Errors, x.counted) {
				t.Errorf("%d samples, %+v, want %d, %v, %d unnamed: %v", len(got), report, x.samples, x.counted, x.unnamed, got)
			}
		})
	}
}

// TestResets checks that a counter that decreases counts as reset after the previous reading, once for all such
// counters of the port.
func TestResets(t *testing.T) {
	s := NewSource(newTable(t, nil), directory(saved(t)))
	var p *Port
	for i, x := range []struct {
		at     int64
		data   string
		resets uint64
		since  int64
	}{{100, "5,5", 0, 0}, {200, "9,5", 0, 0}, {300, "1,1", 1, 200}, {300, "1,1", 1, 200}, {400, "7,7", 1, 200}, {500, "N/A,6", 2, 400}, {600, "3,9", 3, 500}, {700, "4,1", 4, 600}} {
		_, err := s.Read(CSV, strings.NewReader(head+fmt.Sprintf("%d,2c90300f172a0,2c90300f172a0,1,%s\n", x.at, x.data)), func(y Sample) error {
			p = y.Port
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		since := int64(0)
		if !p.Since.IsZero() {
			since = p.Since.Unix()
		}
		if p.Resets != x.resets || since != x.since {
			t.Errorf("reading %d: %d resets, since %d, want %d, %d", i, p.Resets, since, x.resets, x.since)
		}
	}
}

// TestDocumentsTime checks that rows without a time have that of their own document.
func TestDocumentsTime(t *testing.T) {
	row := `{"node_guid":"2c90300f172a0","port_num":%d,"PortXmitDataExtended":1}`
	text := fmt.Sprintf(`{"timestamp":1709652347161873,"values":[`+row+`]}`+row, 1, 2)
	s := NewSource(newTable(t, nil), directory(saved(t)))
	var at []int64
	_, err := s.Read(JSON, strings.NewReader(text), func(x Sample) error {
		if x.At.IsZero() {
			at = append(at, 0)
		} else {
			at = append(at, x.At.UnixMicro())
		}
		return nil
	})
	if err != nil || !slices.Equal(at, []int64{1709652347161873, 0}) {
		t.Errorf("%v, %v", at, err)
	}
}

// TestNewNames checks that ports get their names when the inventory arrives.
func TestNewNames(t *testing.T) {
	d := &Directory{}
	s := NewSource(newTable(t, nil), d)
	text := "PortXmitDataExtended{node_guid=\"2c90300f172a0\",port_num=\"1\"} 1\n"
	for i, want := range []string{"", "", `fabric_switch_port_transmit_bytes_total{leaf1:1,=""} 4 -62135596800000`} {
		if i == 2 {
			d.SetInventory(saved(t))
		}
		got, _, err := read(t, s, Prometheus, strings.NewReader(text))
		if err != nil || strings.Join(got, "") != want {
			t.Errorf("document %d: %v, %v, want %s", i, got, err, want)
		}
	}
}

// TestNamesByTelemetry checks the names without an inventory, from what the row says of its node.
func TestNamesByTelemetry(t *testing.T) {
	for _, x := range []struct{ description, kind, want string }{
		{"SW1", "switch", "SW1:3"}, {"h1 mlx5_0", "host", "h1/mlx5_0.3"}, {"h1 mlx5_0", "", ""}, {"", "switch", ""}, {"h1", "1", "h1/hca.3"}, {"a:b", "2", "a%3Ab:3"},
	} {
		n, ok := (*Inventory)(nil).NameOf(Identity{Node: 5, Number: 3, Description: x.description, Type: x.kind})
		if got := n.ID(); ok != (x.want != "") || ok && got != x.want {
			t.Errorf("%+v is %q, %v", x, got, ok)
		}
	}
}

func TestDeclared(t *testing.T) {
	table := newTable(t, map[string]DeclaredColumn{
		"Vendor_Special": {Metric: "special", Type: "counter", Unit: "By", Scale: 64},
		"My_Power":       {Metric: "my_power", Type: "gauge", Unit: "W", DBm: true},
		"Module_Voltage": {Metric: "supply", Type: "gauge", Unit: "V"},
	})
	for name, want := range map[string]struct {
		family string
		value  float64
	}{"Vendor_Special": {"fabric_switch_port_special_bytes_total", 640}, "My_Power": {"fabric_switch_port_my_power_watts", 0.01}, "Module_Voltage": {"fabric_switch_port_supply_volts", 10}} {
		c := table.columnByName([]byte(name))
		if c == nil {
			t.Fatalf("%s is not known", name)
		}
		if v, _, _, err := c.parseValue([]byte("10")); err != nil || c.Metric.Switch != want.family || math.Abs(v-want.value) > 1e-12 {
			t.Errorf("%s: %s %v, %v", name, c.Metric.Switch, v, err)
		}
	}
	for want, d := range map[string]DeclaredColumn{
		"metric":                     {Metric: "Upper", Type: "gauge"},
		"without _total":             {Metric: "x_total", Type: "counter"},
		"type":                       {Metric: "x"},
		"unit":                       {Metric: "x", Type: "gauge", Unit: "furlong"},
		"scale":                      {Metric: "x", Type: "gauge", Scale: -1},
		"dbm":                        {Metric: "x", Type: "gauge", DBm: true},
		"negative":                   {Metric: "x", Type: "counter", Negative: true},
		"another type or with label": {Metric: "receive_errors", Type: "counter"},
	} {
		if _, err := NewTable(map[string]DeclaredColumn{"C": d}, OpticsUnits{}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "columns: C") {
			t.Errorf("%+v: %v, want %q", d, err, want)
		}
	}
	if _, err := NewTable(map[string]DeclaredColumn{"port_num": {Metric: "x", Type: "gauge"}}, OpticsUnits{}); err == nil {
		t.Error("port_num may be declared")
	}
}

func TestTopology(t *testing.T) {
	topology, found, left := saved(t).BuildTopology()
	if len(found)+len(left) > 0 {
		t.Errorf("%v %v", found, left)
	}
	text, err := yaml.Marshal(topology)
	if err != nil {
		t.Fatal(err)
	}
	if _, f := fabric.ParseTopology("t", text); len(f.OnlyErrors()) > 0 {
		t.Errorf("%v", f)
	}
	golden(t, "testdata/topology.golden", string(text))

	v := saved(t)
	v.Links = append(v.Links, LinkInfo{SourceGUID: "1", SourcePort: "1", DestinationGUID: "2c90300f172a0", DestinationPort: "x"}, v.Links[0])
	v.Ports = append(v.Ports, PortInfo{GUID: "77", Number: "1", SystemID: "77", Name: "lost"}, v.Ports[1])
	if err := v.FinishSaved(); err != nil {
		t.Fatal(err)
	}
	if _, found, _ := v.BuildTopology(); len(found) != 4 {
		t.Errorf("%d contradictions: %v", len(found), found)
	}
}

func TestStatesAndRates(t *testing.T) {
	var got []string
	for _, s := range saved(t).PortStates()[:4] {
		got = append(got, fmt.Sprintf("%s %v %v", s.Name.ID(), s.Up, s.Gbps))
	}
	if want := []string{"leaf1:1 true 200", "leaf1:2 true 400", "leaf1:3 false 0", "r-ufm59/mlx5_0 true 200"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, x := range []struct {
		speed, width string
		want         float64
	}{{"NDR", "4x", 400}, {"IB-HDR", "IB_2x", 100}, {"N/A", "4x", 0}, {"NDR", "NoState", 0}, {"", "", 0}} {
		if got := LinkGbps(x.speed, x.width); got != x.want {
			t.Errorf("%v is %v", x, got)
		}
	}
}

func TestSavedRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "ends in the middle",
		"{}":                                "[ is expected",
		"[]":                                "the list is empty",
		`[{"a":1}]`:                         "element 1: a system",
		`[{"source_guid":{}}]`:              "element 1",
		`[{"guid":"1","number":1},{"gu`:     "element 2: the document ends",
		`[{"guid":"1","number":1} {"a":1`:   "element",
		`[{"system_guid":"1","type":true}]`: "element 1",
	} {
		if err := (&Inventory{}).ReadSaved(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func fuzz(f *testing.F, form Format) {
	b, err := os.ReadFile(files[form])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)/2])
	v := saved(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewSource(newTable(t, nil), directory(v))
		for range 2 {
			n := 0
			report, err := s.Read(form, bytes.NewReader(b), func(x Sample) error {
				n++
				if math.IsNaN(x.Value) || math.IsInf(x.Value, 0) || x.Value < 0 {
					t.Errorf("%s", line(x))
				}
				if x.Port.Name == (Name{}) || x.Column.Metric.Label != "" && x.Column.Value == "" && x.State == "" {
					t.Errorf("%s has no name", line(x))
				}
				return nil
			})
			if n != report.Samples {
				t.Errorf("%d samples, %d reported", n, report.Samples)
			}
			var own *Error
			if err != nil && !errors.As(err, &own) {
				t.Errorf("%v has no kind", err)
			}
			if form == JSON && err == nil && !bytes.Contains(b, []byte("NaN")) {
				d := json.NewDecoder(bytes.NewReader(b))
				for {
					var x any
					if err := d.Decode(&x); err == io.EOF {
						break
					} else if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) && !lenient(b) {
						t.Errorf("encoding/json: %v", err)
						break
					} else if err != nil {
						break
					}
				}
			}
		}
	})
}

// lenient reports whether a text may be a number such as 007 or 1., which is accepted although JSON does not
// have it.
func lenient(b []byte) bool { return bytes.ContainsAny(b, "0.+-eE") }

func FuzzCSV(f *testing.F)        { fuzz(f, CSV) }
func FuzzJSON(f *testing.F)       { fuzz(f, JSON) }
func FuzzPrometheus(f *testing.F) { fuzz(f, Prometheus) }

// FuzzSaved reads documents of the REST interface from any bytes.
func FuzzSaved(f *testing.F) {
	for _, name := range []string{"systems.json", "links.json", "ports_rest.json"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	base := saved(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		v := &Inventory{Systems: slices.Clone(base.Systems), Ports: slices.Clone(base.Ports), Links: slices.Clone(base.Links)}
		if v.ReadSaved(bytes.NewReader(b)) != nil || v.FinishSaved() != nil {
			return
		}
		topology, _, _ := v.BuildTopology()
		if _, err := yaml.Marshal(topology); err != nil {
			t.Error(err)
		}
		for _, s := range v.PortStates() {
			if s.Gbps < 0 || s.ExpectedGbps < 0 || s.Lanes < 0 || s.ExpectedLanes < 0 {
				t.Errorf("%+v", s)
			}
		}
		for _, n := range v.SwitchNeighbors() {
			if n.Port.Switch == "" || n.Remote == "" || n.RemotePort == "" {
				t.Errorf("%+v", n)
			}
		}
	})
}

func TestDecodeListGivesAllOrNothing(t *testing.T) {
	n := 0
	err := decodeList(strings.NewReader(`[{"id":1},{"id":`), func(eventJSON) { n++ })
	if n != 0 || KindOf(err) != KindTruncated {
		t.Errorf("%d, %v", n, err)
	}
}

// BenchmarkRead reads 40,000 ports with 50 counters each. live-MB is the heap that is held afterwards with the
// source's memory, peak-MB the memory that the system provided.
func BenchmarkRead(b *testing.B) {
	f := ufmtest.Fabric{Switches: 625, Ports: 64, Counters: ufmtest.CounterNames(50), At: 1709652347161000}
	for _, form := range []struct {
		f     Format
		write func(io.Writer)
	}{{CSV, f.WriteCSV}, {JSON, f.WriteJSON}, {Prometheus, f.WritePrometheus}} {
		b.Run(string(form.f), func(b *testing.B) {
			var doc bytes.Buffer
			form.write(&doc)
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s := NewSource(newTable(b, nil), generated(f))
			b.SetBytes(int64(doc.Len()))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				report, err := s.Read(form.f, bytes.NewReader(doc.Bytes()), func(Sample) error { n++; return nil })
				if err != nil || report.Samples != 2_000_000 {
					b.Fatalf("%+v, %v", report, err)
				}
			}
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "live-MB")
			b.ReportMetric(float64(after.Sys)/1e6, "peak-MB")
			b.ReportMetric(float64(doc.Len())/1e6, "document-MB")
		})
	}
}

// TestVocabulary checks that InfiniBand's own sampling uses the same names.
func TestVocabulary(t *testing.T) {
	b, err := os.ReadFile("../../receivers/ibfabricreceiver/metadata.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var meta struct {
		Metrics map[string]struct {
			Description string
			Attributes  []string
			Sum         *struct{}
		}
	}
	if err := yaml.Unmarshal(b, &meta); err != nil {
		t.Fatal(err)
	}
	shared := 0
	for _, m := range newTable(t, nil).Metrics() {
		name := "fabric.switch.port." + strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(m.Switch, switchPort), "_total"), "_bytes")
		other, ok := meta.Metrics[name]
		if !ok {
			continue
		}
		shared++
		want := []string{"switch", "port"}
		if m.Label != "" {
			want = append(want, m.Label)
		}
		if other.Description != m.Help || !reflect.DeepEqual(other.Attributes, want) || (other.Sum != nil) != m.Counter {
			t.Errorf("%s is %+v there, %+v here", name, other, m)
		}
	}
	if shared < 25 {
		t.Errorf("%d names are shared", shared)
	}
}
