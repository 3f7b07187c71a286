package routetable

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 29, 7, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }

func prefix(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
}

// routes parses "1=up1,up2 2=": prefixes by number with their ports.
func routes(text string) Routes {
	out := Routes{}
	for f := range strings.FieldsSeq(text) {
		var i int
		number, ports, _ := strings.Cut(f, "=")
		if _, err := fmt.Sscan(number, &i); err != nil {
			panic(err)
		}
		out[prefix(i)] = strings.FieldsFunc(ports, func(r rune) bool { return r == ',' })
	}
	return out
}

// answer returns a report as it arrives at a reader.
func answer(t testing.TB, table *Table, instance string, since uint64, now time.Time) *Report {
	t.Helper()
	r := table.ReportSince(since)
	r.Switch, r.Instance, r.At = "leaf1", instance, now
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	out, err := ParseReport(body)
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return out
}

func TestTableRule1ChangesOfARoundAreOneVersion(t *testing.T) {
	x := NewTable(10)
	x.SetFIB(routes("1=up1,up2 2=up1"), at(0), at(0))
	x.EndRound(at(0))
	v := x.Version()
	x.SetFIB(routes("1=up2,up1,up1 2=up1"), at(1), at(1))
	x.EndRound(at(1))
	if x.Version() != v {
		t.Errorf("the same ports in another order are a change: version %d, was %d", x.Version(), v)
	}
	x.SetFIB(routes("1=up2 2=up1 3=up1"), at(2), at(2))
	x.SetSessions([]Session{{Port: "up1", Protocol: BGP, Up: true}})
	x.EndRound(at(2))
	if x.Version() != v+1 {
		t.Errorf("version %d, want %d", x.Version(), v+1)
	}
	if n, ok := x.FIBChanges(); n != 2 || !ok {
		t.Errorf("%d changes, %v, want 2", n, ok)
	}
}

func TestTableRule2DeltasHaveWhatChanged(t *testing.T) {
	x := NewTable(10)
	x.SetFIB(routes("1=up1,up2 2=up1 3="), at(0), at(0))
	x.SetRIB(routes("1=up1 2=up1"), at(0))
	x.EndRound(at(0))
	v := x.Version()
	if r := answer(t, x, "i", v, at(0)); r.Since != v || r.FIB != nil || r.Sessions != nil || r.Groups != nil {
		t.Errorf("nothing changed: %+v", r)
	}
	x.SetFIB(routes("1=up1,up2 2=up2"), at(1), at(1))
	x.EndRound(at(1))
	r := answer(t, x, "i", v, at(1))
	// Prefix 3 has left FIB. It is reported by the time of that, until the time is forgotten.
	if r.Since != v || len(r.FIB) != 1 || len(r.RIB) != 1 || !slices.Equal(r.Groups[r.FIB[prefix(2)]], []string{"up2"}) || !slices.Equal(r.Gone, []netip.Prefix{prefix(3)}) || len(r.Changed) != 2 {
		t.Errorf("delta: %+v", r)
	}
	if r.Paths != nil || r.RIB == nil {
		t.Errorf("paths are not known: %+v", r)
	}
	if x.CoversVersion(0) || x.CoversVersion(x.Version()+1) {
		t.Error("versions 0 and later than the last are covered")
	}
	for i := range 3000 {
		x.SetFIB(routes(fmt.Sprintf("1=up%d", i%2)), at(2), at(2))
		x.EndRound(at(2))
	}
	if x.CoversVersion(v) || !x.CoversVersion(x.Version()-100) {
		t.Errorf("an old version is covered, or a new one is not")
	}
}

func TestTableRule3UnknownIsNoChange(t *testing.T) {
	x := NewTable(10)
	x.EndRound(at(0))
	if r := answer(t, x, "i", 0, at(0)); r.FIB != nil || r.RIB != nil || r.Sessions != nil {
		t.Errorf("nothing is known: %+v", r)
	}
	x.SetFIB(routes("1=up1"), at(0), at(0))
	x.SetRIB(routes(""), at(0))
	x.SetSessions([]Session{})
	x.EndRound(at(0))
	v := x.Version()
	if r := answer(t, x, "i", 0, at(0)); len(r.FIB) != 1 || r.RIB == nil || r.Sessions == nil || len(r.Changed) != 0 {
		t.Errorf("an empty table is known: %+v", r)
	}
	x.SetFIB(nil, at(1), at(1))
	x.SetRIB(nil, at(1))
	x.SetSessions(nil)
	x.EndRound(at(1))
	if r := answer(t, x, "i", v, at(1)); r.Since != 0 || r.FIB != nil || r.RIB != nil || r.Sessions != nil || len(r.Changed) != 0 || !r.FIBAt.IsZero() {
		t.Errorf("nothing is known any more: %+v", r)
	}
	if _, ok := x.FIBChanges(); ok {
		t.Error("changes of an unknown table are known")
	}
	x.SetFIB(routes("1=up2"), at(2), at(2))
	x.EndRound(at(2))
	if n, ok := x.FIBChanges(); n != 0 || !ok {
		t.Errorf("%d changes while the table was unknown", n)
	}
}

func TestTableRule4TimesOfChanges(t *testing.T) {
	x := NewTable(10)
	x.SetFIB(routes("1=up1 2=up1"), at(0), at(0))
	x.EndRound(at(0))
	x.SetFIB(routes("2=up1"), at(5), at(5.1))
	x.EndRound(at(5.1))
	r := answer(t, x, "i", 0, at(5.2))
	if !r.Changed[prefix(1)].Equal(at(5)) || len(r.Changed) != 1 || !r.FIBAt.Equal(at(5.1)) {
		t.Errorf("changed: %+v", r)
	}
	v := x.Version()
	x.EndRound(at(5).Add(ChangeKept + time.Second))
	if r := answer(t, x, "i", v, at(700)); len(r.Changed) != 0 || !slices.Equal(r.Gone, []netip.Prefix{prefix(1)}) || x.Len() != 1 {
		t.Errorf("forgotten: %+v", r)
	}
}

func TestTableRule5MismatchesSettle(t *testing.T) {
	x := NewTable(10)
	if _, ok := x.Mismatches(); ok {
		t.Error("mismatches of unknown tables are known")
	}
	x.SetFIB(routes("1=up1,up2 2=up1 3=up1"), at(0), at(0))
	x.SetRIB(routes("1=up1,up2 2=up1"), at(0))
	for _, step := range []struct {
		at       float64
		fib, rib string
		want     int
	}{
		{1, "1=up1 2=up1 3=up1", "", 0},
		{1.5, "", "1=up1,up2 2=up1", 0},
		{1.9, "1=up1 2=up1 3=up1", "", 0},
		{2.1, "", "1=up1,up2 2=up1", 1}, // a reading of RIB that began a second after still differs
		{2.2, "1= 2=", "", 1},           // prefix 2 differs since now
		{3.3, "", "1=up1,up2 2=up1", 2},
		{3.4, "", "1= 2=up1", 1},
		{4, "1= 2=up1", "", 0},
	} {
		if step.fib != "" {
			x.SetFIB(routes(step.fib), at(step.at), at(step.at))
		} else {
			x.SetRIB(routes(step.rib), at(step.at))
		}
		if n, ok := x.Mismatches(); n != step.want || !ok {
			t.Errorf("at %v s: %d mismatches, want %d", step.at, n, step.want)
		}
	}
	if x.Differs() {
		t.Error("tables that agree differ")
	}
}

func TestTableRule6LimitsAreCounted(t *testing.T) {
	x := NewTable(2)
	x.SetFIB(routes("1=up1 2=up1 3=up1 4=up1"), at(0), at(0))
	x.EndRound(at(0))
	if r := answer(t, x, "i", 0, at(0)); r.Omitted != 2 || len(r.FIB) != 2 || x.Len() != 2 {
		t.Errorf("%+v", r)
	}
	for i := range 5000 { // groups do not pile up
		x.SetFIB(routes(fmt.Sprintf("1=up%d", i)), at(1), at(1))
		x.EndRound(at(1))
	}
	if len(x.groups) > 1100 {
		t.Errorf("%d groups of %d prefixes", len(x.groups), x.Len())
	}
}

// TestReadersHaveTheTable checks that a reader that applies any sequence of answers has the writer's table.
func TestReadersHaveTheTable(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		w := &writer{Table: NewTable(30), rnd: rnd}
		var views [3]View
		instance := "a"
		for step := range 300 {
			now := at(float64(step) * 20)
			if rnd.IntN(100) == 0 {
				instance, w.Table = fmt.Sprint(step), NewTable(30)
			}
			w.change(now)
			w.EndRound(now)
			for i := range views {
				v := &views[i]
				if rnd.IntN(3*i+1) > 0 {
					continue // this one is late
				}
				since := v.Version
				if v.Instance != instance {
					since = 0
				}
				before := *v
				kept := maps.Clone(before.FIB)
				if err := v.Apply(answer(t, w.Table, instance, since, now)); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(kept, before.FIB) {
					t.Fatalf("seed %d, step %d: a copy of the view was changed", seed, step)
				}
				var whole View
				if err := whole.Apply(answer(t, w.Table, instance, 0, now)); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(*v, whole) {
					t.Fatalf("seed %d, step %d, reader %d since %d: it has\n%+v\nand the table is\n%+v", seed, step, i, since, *v, whole)
				}
				w.compare(t, v)
			}
		}
	}
}

// writer changes a table by chance, and remembers what it set.
type writer struct {
	*Table
	rnd             *rand.Rand
	fib, rib, paths Routes
	sessions        []Session
}

func (w *writer) some() Routes {
	if w.rnd.IntN(10) == 0 {
		return nil
	}
	out := Routes{}
	for i := range 20 {
		if w.rnd.IntN(3) > 0 {
			ports := []string{}
			for p := range 3 {
				if w.rnd.IntN(2) == 0 {
					ports = append(ports, fmt.Sprintf("up%d", p))
				}
			}
			out[prefix(i)] = ports
		}
	}
	return out
}

func (w *writer) change(now time.Time) {
	switch w.rnd.IntN(6) {
	case 0, 1:
		w.fib = w.some()
		if w.fib != nil && w.rnd.IntN(3) > 0 { // most changes are of one prefix
			w.fib = maps.Clone(w.fib)
			delete(w.fib, prefix(w.rnd.IntN(20)))
		}
	case 2:
		w.rib = w.some()
	case 3:
		w.paths = w.some()
	case 4:
		w.sessions = nil
		if w.rnd.IntN(4) > 0 {
			n := uint64(w.rnd.IntN(3))
			w.sessions = []Session{{Port: "up1", Protocol: BFD, Downs: &n, Changed: now}, {Port: "up1", Protocol: BGP, Up: n > 0, Established: &n}}
		}
	}
	w.SetFIB(w.fib, now, now)
	w.SetRIB(w.rib, now)
	w.SetPaths(w.paths, now)
	w.SetSessions(w.sessions)
}

// compare checks a view that is up to date.
func (w *writer) compare(t *testing.T, v *View) {
	t.Helper()
	for name, tables := range map[string][2]Routes{"fib": {v.FIB, w.fib}, "rib": {v.RIB, w.rib}, "paths": {v.Paths, w.paths}} {
		if got, want := tables[0], tables[1]; (got == nil) != (want == nil) || !maps.EqualFunc(got, want, slices.Equal) {
			t.Fatalf("%s: %v, want %v", name, got, want)
		}
	}
	if (v.Sessions == nil) != (w.sessions == nil) || !slices.EqualFunc(v.Sessions, w.sessions, sameSession) {
		t.Fatalf("sessions: %+v, want %+v", v.Sessions, w.sessions)
	}
}

func TestViewRefusesGaps(t *testing.T) {
	v := View{}
	if err := v.Apply(&Report{Switch: "leaf1", Instance: "a", Version: 3}); err != nil {
		t.Fatal(err)
	}
	for want, r := range map[string]*Report{
		`instance "b"`:   {Switch: "leaf1", Instance: "b", Since: 3, Version: 4},
		"since version":  {Switch: "leaf1", Instance: "a", Since: 2, Version: 4},
		`switch "leaf2"`: {Switch: "leaf2", Instance: "a", Version: 4},
	} {
		if err := v.Apply(r); err == nil || !strings.Contains(err.Error(), want) || v.Version != 3 {
			t.Errorf("%+v: %v, want an error with %s", r, err, want)
		}
	}
}

func TestBadReports(t *testing.T) {
	for body, want := range map[string]string{
		`{]`:             "report:",
		`{}`:             `"switch"`,
		`{"switch":"s"}`: `"instance"`,
		`{"switch":"s","instance":"i","since":4}`:                                   `"since" 4`,
		`{"switch":"s","instance":"i","fib":{"10.0.0.0/24":0}}`:                     `"fib": group 0`,
		`{"switch":"s","instance":"i","groups":[["a"]],"rib":{"10.0.0.0/24":-1}}`:   `"rib": group -1`,
		`{"switch":"s","instance":"i","groups":[["a"]],"paths":{"":0}}`:             `"paths": a prefix`,
		`{"switch":"s","instance":"i","groups":[["a"]],"paths":{"10.0.0.0":0}}`:     `10.0.0.0`,
		`{"switch":"s","instance":"i","groups":[["b","a"]]}`:                        "alphabetical",
		`{"switch":"s","instance":"i","sessions":[{"port":"a","protocol":"ospf"}]}`: `protocol "ospf"`,
		`{"switch":"s","instance":"i","sessions":[{"protocol":"bgp"}]}`:             `port ""`,
	} {
		if _, err := ParseReport([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want an error with %s", body, err, want)
		}
	}
}

// FuzzReport checks that whatever a switch answers is refused or applied, and that a copy has only ports of the report.
func FuzzReport(f *testing.F) {
	x := NewTable(10)
	x.SetFIB(routes("1=up1,up2 2=up1 3="), at(0), at(0))
	x.SetRIB(routes("1=up1 2=up1"), at(0))
	n := uint64(2)
	x.SetSessions([]Session{{Port: "up1", Protocol: BGP, Up: true, Established: &n, Changed: at(0), Detection: 9 * time.Second}})
	x.EndRound(at(0))
	x.SetFIB(routes("1=up1,up2 2=up2"), at(1), at(1))
	x.EndRound(at(1))
	for since := range x.Version() + 1 {
		r := x.ReportSince(since)
		r.Switch, r.Instance = "leaf1", "i"
		body, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := ParseReport(body)
		if err != nil {
			return
		}
		v := View{Switch: "leaf1", Instance: "i", Version: 1, FIB: routes("1=up1 9=up3")}
		if err := v.Apply(r); err != nil {
			return
		}
		if v.Version != r.Version || r.Since == 0 && len(v.FIB) != len(r.FIB) {
			t.Fatalf("%+v of %+v", v, r)
		}
	})
}
