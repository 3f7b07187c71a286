package fabric

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const goodLine = `{"edge":"h1/eth1>h4/eth1#0","src":"h1/eth1","dst":"h4/eth1","tier":2,"plane":"a","class":"","start":"2026-11-20T10:00:00Z","window_ns":10000000000,` +
	`"sent":1000,"lost":0,"ecn":0,"owd_ns":{"min":4100,"mean":5200,"p50":5000,"p90":6100,"p99":9000,"max":14000},"baseline_ns":{"p50":4900,"p99":8800},"clock_error_ns":200,` +
	`"timestamp":"kernel","host_suspect":false,"path":[{"switch":"leaf1","in":"dn1","out":"up1"},{"switch":"spine1","in":"dn1","out":"dn2"},{"switch":"leaf2","in":"up1","out":"dn1"}],"path_state":"valid"}`

// sprayedLine returns a line whose packets take two paths, with weights.
func sprayedLine(weights string) string {
	return `{"edge":"h1/eth1>h4/eth1#0","start":"2026-11-20T10:00:00Z","window_ns":1,"sent":9,"lost":1,"sprayed":true,"paths":[[{"switch":"leaf1"}],[{"switch":"leaf2"}]],"weights":` + weights + `}`
}

func TestParseWeights(t *testing.T) {
	for _, tt := range []struct {
		line string
		want []float64
	}{{sprayedLine("[3,1]"), []float64{3, 1}}, {sprayedLine("[0,0.25]"), []float64{0, 0.25}}, {sprayedLine("null"), nil}} {
		if o, err := ParseObservation([]byte(tt.line)); err != nil || !slices.Equal(o.Weights, tt.want) || !o.Sprayed || len(o.Paths) != 2 {
			t.Errorf("%s: read as %+v, %v", tt.line, o, err)
		}
	}
}

func TestParseObservation(t *testing.T) {
	o, err := ParseObservation([]byte(goodLine))
	if err != nil {
		t.Fatal(err)
	}
	if *o.OWD.P50 != 5000 || *o.Baseline.P99 != 8800 || *o.ClockErrorNS != 200 || len(o.Path) != 3 || o.PathState != PathValid || o.Sent != 1000 {
		t.Errorf("read as %+v", o)
	}
	if o.Baseline.Mean != nil {
		t.Error("a value that is absent was read as one")
	}
	minimal := `{"edge":"h1/eth1>h4/eth1/","start":"2026-11-20T10:00:00Z","window_ns":1,"sent":1,"lost":0}`
	if _, err := ParseObservation([]byte(strings.Replace(minimal, "eth1/\"", "eth1\"", 1))); err != nil {
		t.Errorf("the least line there is: %v", err)
	}
}

func TestParseObservationRefuses(t *testing.T) {
	edit := func(old, new string) string { return strings.Replace(goodLine, old, new, 1) }
	tests := map[string]struct{ line, want string }{
		"not JSON":            {"hello", "not a JSON object"},
		"array":               {"[1]", "expected"},
		"wrong type":          {edit(`"sent":1000`, `"sent":"many"`), `field "sent"`},
		"negative count":      {edit(`"sent":1000`, `"sent":-1`), `field "sent"`},
		"no edge":             {edit(`"edge":"h1/eth1>h4/eth1#0"`, `"edge":""`), `field "edge"`},
		"ends differ":         {edit(`"src":"h1/eth1"`, `"src":"h2/eth1"`), `field "src"`},
		"reply not exchanged": {edit(`h4/eth1#0"`, `h4/eth1#0/r"`), `field "src"`},
		"no start":            {edit(`"start":"2026-11-20T10:00:00Z",`, ``), `field "start"`},
		"no window":           {edit(`"window_ns":10000000000,`, ``), `field "window_ns"`},
		"zero window":         {edit(`"window_ns":10000000000`, `"window_ns":0`), `field "window_ns"`},
		"no counts":           {edit(`"lost":0,`, ``), `"lost"`},
		"lost beyond sent":    {edit(`"lost":0`, `"lost":1001`), `field "lost"`},
		"marked beyond sent":  {edit(`"ecn":0`, `"ecn":1001`), `field "ecn"`},
		"loss scope":          {edit(`"ecn":0`, `"loss_scope":"both"`), `field "loss_scope"`},
		"path state":          {edit(`"path_state":"valid"`, `"path_state":"good"`), `field "path_state"`},
		"not a number":        {edit(`"p50":5000`, `"p50":NaN`), "not a JSON object"},
		"beyond all numbers":  {edit(`"p50":5000`, `"p50":1e300`), `field "owd_ns.p50"`},
		"a delay of an age":   {edit(`"p50":5000`, `"p50":9223372036854775807`), `field "owd_ns"`},
		"a baseline likewise": {edit(`"p99":8800`, `"p99":-9223372036854775808`), `field "baseline_ns"`},
		"a window of an age":  {edit(`"window_ns":10000000000`, `"window_ns":9223372036854775807`), `field "window_ns"`},
		"negative window":     {edit(`"window_ns":10000000000`, `"window_ns":-1`), `field "window_ns"`},
		"too many sent":       {edit(`"sent":1000`, `"sent":18446744073709551615`), `field "sent"`},
		"before the epoch":    {edit(`2026-11-20T10`, `0002-11-20T10`), `field "start"`},
		"after all clocks":    {edit(`2026-11-20T10`, `9999-11-20T10`), `field "start"`},
		"no time":             {edit(`2026-11-20T10:00:00Z`, `yesterday`), `field "start"`},
		"negative bound":      {edit(`"clock_error_ns":200`, `"clock_error_ns":-1`), `field "clock_error_ns"`},
		"a tier of its own":   {edit(`"tier":2`, `"tier":-3`), `field "tier"`},
		"an endless path":     {edit(`"path":[`, `"path":[`+strings.Repeat(`{"switch":"s"},`, 64)), `field "path"`},
		"a path of nothing":   {edit(`{"switch":"spine1"`, `{"switch":""`), `field "path"`},
		"too many candidates": {edit(`"path_state":"valid"`, `"paths":[`+strings.Repeat(`[],`, 1024)+`[]],"path_state":"valid"`), `field "paths"`},
		"weights of one path": {edit(`"path":[`, `"sprayed":true,"weights":[1],"path":[`), `field "weights": 1 weights for 0 paths`},
		"a weight too few":    {sprayedLine("[1]"), `field "weights": 1 weights for 2 paths`},
		"a weight too many":   {sprayedLine("[1,1,1]"), `field "weights": 3 weights for 2 paths`},
		"no weight at all":    {sprayedLine("[]"), `field "weights": 0 weights for 2 paths`},
		"a negative weight":   {sprayedLine("[2,-1]"), `field "weights.1": -1, 0 to 1e+12 is expected`},
		"an endless weight":   {sprayedLine("[1e300,1]"), `field "weights.0": 1e+300`},
		"weights of nothing":  {sprayedLine("[0,0]"), `field "weights": all weights are 0`},
		"no number as weight": {sprayedLine("[NaN,1]"), "not a JSON object"},
		"a word as weight":    {sprayedLine(`["all",1]`), `field "weights.0": a string where a number is expected`},
		"one number":          {sprayedLine("0.5"), `field "weights"`},
		"weights of a choice": {strings.Replace(sprayedLine("[1,2]"), `"sprayed":true`, `"sprayed":false`, 1), `field "weights": weights are expected only where "sprayed" is true`},
		"unknown with a path": {edit(`"path_state":"valid"`, `"path_state":"unknown"`), `field "path_state"`},
	}
	for name, tt := range tests {
		if _, err := ParseObservation([]byte(tt.line)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tt.want)
		}
	}
}

func TestReadObservationsSkipsAndCounts(t *testing.T) {
	long := strings.Repeat("x", MaxObservationLine+10)
	in := goodLine + "\n\nnope\n" + long + "\n" + goodLine
	var good, bad []int
	err := ReadObservations(strings.NewReader(in), func(line int, _ *Observation) error { good = append(good, line); return nil },
		func(e LineError) { bad = append(bad, e.Line) })
	if err != nil {
		t.Fatal(err)
	}
	if len(good) != 2 || good[0] != 1 || good[1] != 5 {
		t.Errorf("read lines %v, want 1 and 5", good)
	}
	if len(bad) != 2 || bad[0] != 3 || bad[1] != 4 {
		t.Errorf("bad lines %v, want 3 and 4", bad)
	}
}

func FuzzParseObservation(f *testing.F) {
	f.Add([]byte(goodLine))
	f.Add([]byte(sprayedLine("[3,1]")))
	f.Add([]byte(sprayedLine("[0,1e-300]")))
	f.Add([]byte(sprayedLine("[-1,NaN]")))
	f.Add([]byte(`{"edge":"a/b>c/d#0/r","start":"2026-11-20T10:00:00Z","window_ns":1,"sent":1,"lost":1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		o, err := ParseObservation(line)
		if err != nil {
			return
		}
		out, err := json.Marshal(o)
		if err != nil {
			t.Fatalf("%q cannot be written: %v", line, err)
		}
		if _, err := ParseObservation(out); err != nil {
			t.Errorf("%q reads, is written as %q, and then: %v", line, out, err)
		}
	})
}

// TestPathsAreShared: equal paths are one, however their text is written, and others are not.
func TestPathsAreShared(t *testing.T) {
	lines := []string{goodLine, goodLine, strings.ReplaceAll(goodLine, `{"switch":"spine1",`, `{ "switch" : "spine\u0031", "tier": 2, `), strings.ReplaceAll(goodLine, "spine1", "spine2")}
	lines = append(lines, strings.Replace(goodLine, `"path":[{`, `"paths":[[],null,[{"switch":"leaf1","in":"dn1","out":"up1"}]],"path":[{`, 1))
	var all []*Observation
	err := ReadObservations(strings.NewReader(strings.Join(lines, "\n")), func(_ int, o *Observation) error { all = append(all, o); return nil },
		func(e LineError) { t.Error(e) })
	if err != nil || len(all) != len(lines) {
		t.Fatalf("%d observations, %v", len(all), err)
	}
	for i, want := range []string{0: "spine1", 1: "spine1", 2: "spine1", 3: "spine2", 4: "spine1"} {
		if got := all[i].Path.CanonicalKey(); got != "leaf1[dn1>up1] "+want+"[dn1>dn2] leaf2[up1>dn1]" {
			t.Errorf("line %d: %s", i+1, got)
		}
		if same := &all[i].Path[0] == &all[0].Path[0]; same != (want == "spine1") {
			t.Errorf("line %d shares the path of line 1: %v", i+1, same)
		}
	}
	if p := all[4].Paths; len(p) != 3 || len(p[0]) != 0 || len(p[1]) != 0 || p[2].CanonicalKey() != "leaf1[dn1>up1]" {
		t.Errorf("candidates %v", p)
	}
}

// TestObservationErrorsNameTheField checks the whole text: where, what is there, and what is expected.
func TestObservationErrorsNameTheField(t *testing.T) {
	for _, tt := range []struct{ old, new, want string }{
		{`"sent":1000`, `"sent":"many"`, `field "sent": a string where a whole number of at least 0 is expected`},
		{`"sent":1000`, `"sent":1.5`, `field "sent": 1.5 where a whole number of at least 0 is expected`},
		{`"p50":5000`, `"p50":[]`, `field "owd_ns.p50": an array where a whole number is expected`},
		{`2026-11-20T10:00:00Z`, `yesterday`, `field "start": a string where an RFC 3339 time is expected`},
		{`{"switch":"spine1"`, `{"switch":7`, `field "path.1.switch": a number where a string is expected`},
		{`"path":[`, `"path":[7,`, `field "path.0": a number where an object is expected`},
		{`"path":[`, `"path":{},"paths":[`, `field "path": an object where an array is expected`},
		{`"host_suspect":false`, `"host_suspect":0`, `field "host_suspect": a number where true or false is expected`},
		{goodLine, `[1]`, `an array where a JSON object is expected`},
		{`"lost":0`, `"lost":0,"lost":1`, `not a JSON object: jsontext: duplicate object member name "lost"`},
	} {
		if _, err := ParseObservation([]byte(strings.Replace(goodLine, tt.old, tt.new, 1))); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v\nwant %s", tt.new, err, tt.want)
		}
	}
}

// TestKnownHopsChangeNothing decodes lines with candidate paths by a decoder that knows their hops, and by one that knows
// nothing: values and errors are the same.
func TestKnownHopsChangeNothing(t *testing.T) {
	const hop1, hop2 = `{"switch":"leaf1","in":"dn1","out":"up1"}`, `{"switch":"odd}\"]","in":"a","out":"b"}`
	head := goodLine[:strings.Index(goodLine, `"path"`)]
	var lines []string
	for _, paths := range []string{
		`[[` + hop1 + `]]`, `[[` + hop1 + `,` + hop1 + `],[` + hop1 + `]]`, `[]`, `[[]]`, `[[` + hop2 + `],[` + hop1 + `]]`, ` [ [ ` + hop1 + " ,\t" + hop1 + ` ] , [` + hop1 + `] ] `, `null`,
		`[[` + hop1 + ` ` + hop1 + `]]`, `[[` + hop1 + `,]]`, `[,[` + hop1 + `]]`, `[[` + hop1 + `],]`, `[[` + hop1 + `] [` + hop1 + `]]`, `[[` + hop1, `[[` + hop1 + `]`, `[` + hop1 + `]`, `[[[` + hop1 + `]]]`,
		`[[` + hop1 + `],7]`, `[[` + hop1 + `,7]]`, `[["x"]]`, `[[{"switch":7}]]`, `[[` + hop1 + `],null]`, `[[` + hop1 + `]],"paths":[[` + hop1 + `]]`,
	} {
		lines = append(lines, head+`"path_state":"unknown","paths":`+paths+`}`)
	}
	inText := strings.Replace(head, `"class":""`, `"class":"\"paths\":["`, 1)
	lines = append(lines, inText+`"paths":[[`+hop1+`]]}`, head+`"other":{"paths":[[`+hop1+`]]}}`, head+`"other":{"paths":[[`+hop1+`]]},"paths":[[`+hop1+`]]}`,
		strings.Replace(head+`"paths":[[`+hop1+`]]}`, `"lost":0`, `"lost":"x"`, 1))
	knowing := newObservationDecoder()
	for range 2 {
		for _, line := range lines {
			want, wantErr := newObservationDecoder().decodeLine([]byte(line))
			got, err := knowing.decodeLine([]byte(line))
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || err == nil && !reflect.DeepEqual(got, want) {
				t.Errorf("%s\n%+v, %v\nwant %+v, %v", line, got, err, want, wantErr)
			}
		}
	}
	if inText == head {
		t.Fatal("the line has no class")
	}
	// A file in which every path is its own is not kept twice.
	d := newObservationDecoder()
	for n := range 30_000 {
		line := head + fmt.Sprintf(`"paths":[[{"switch":"s%d","in":"a","out":"b"},{"switch":"s%d","in":"a","out":"b"}]]}`, n%300, n/300)
		o, err := d.decodeLine([]byte(line))
		if err != nil || len(o.Paths) != 1 || o.Paths[0][0].Switch != fmt.Sprintf("s%d", n%300) || o.Paths[0][1].Switch != fmt.Sprintf("s%d", n/300) {
			t.Fatalf("%s: %+v, %v", line, o, err)
		}
	}
	if len(d.paths) > 11_000 {
		t.Errorf("%d paths are kept", len(d.paths))
	}
}

func BenchmarkReadObservations(b *testing.B) {
	var file strings.Builder
	var candidates []string
	for i := range 25 {
		candidates = append(candidates, fmt.Sprintf(`[{"switch":"leaf1","in":"dn1","out":"up%d"},{"switch":"spine%d","in":"dn1","out":"dn2"},{"switch":"leaf2","in":"up%d","out":"dn1"}]`, i, i, i))
	}
	for n := range 1000 {
		line := strings.Replace(goodLine, "#0", fmt.Sprintf("#%d", n), 1)
		if n%2 == 0 {
			line = line[:strings.Index(line, `"path"`)] + `"paths":[` + strings.Join(candidates, ",") + "]}"
		}
		file.WriteString(line + "\n")
	}
	b.SetBytes(int64(file.Len()))
	for b.Loop() {
		if err := ReadObservations(strings.NewReader(file.String()), func(int, *Observation) error { return nil }, func(e LineError) { b.Fatal(e) }); err != nil {
			b.Fatal(err)
		}
	}
}
