package fabric

import (
	"encoding/json"
	"strings"
	"testing"
)

const goodLine = `{"edge":"h1/eth1>h4/eth1#0","src":"h1/eth1","dst":"h4/eth1","tier":2,"plane":"a","class":"","start":"2026-11-20T10:00:00Z","window_ns":10000000000,` +
	`"sent":1000,"lost":0,"ecn":0,"owd_ns":{"min":4100,"mean":5200,"p50":5000,"p90":6100,"p99":9000,"max":14000},"baseline_ns":{"p50":4900,"p99":8800},"clock_error_ns":200,` +
	`"timestamp":"kernel","host_suspect":false,"path":[{"switch":"leaf1","in":"dn1","out":"up1"},{"switch":"spine1","in":"dn1","out":"dn2"},{"switch":"leaf2","in":"up1","out":"dn1"}],"path_state":"valid"}`

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

func TestInternerSharesWhatIsEqual(t *testing.T) {
	in := NewInterner()
	read := func() *Observation {
		o, err := ParseObservation([]byte(goodLine))
		if err != nil {
			t.Fatal(err)
		}
		in.InternObservation(o)
		return o
	}
	a, b := read(), read()
	if &a.Path[0] != &b.Path[0] || a.Path.CanonicalKey() != "leaf1[dn1>up1] spine1[dn1>dn2] leaf2[up1>dn1]" {
		t.Errorf("two copies of %s", b.Path.CanonicalKey())
	}
	b.Path = Path{{"leaf1", "dn1", "up1"}}
	if in.InternObservation(b); b.Path.CanonicalKey() != "leaf1[dn1>up1]" {
		t.Errorf("another path became %s", b.Path.CanonicalKey())
	}
}
