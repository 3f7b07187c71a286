package ufm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func id(n int) Event { return Event{ID: fmt.Sprint(n), Code: "329"} }

// TestEventLogRules has a case for each rule of EventLog.
func TestEventLogRules(t *testing.T) {
	written := func(e Event, at string) Event {
		e.Written = at
		return e
	}
	first := written(id(1), "2024-05-28 08:03:05")
	for name, x := range map[string]struct {
		lists [][]Event
		want  []int // numbers of the new events, by list
	}{
		"1 the first list is not new":          {[][]Event{{id(1), id(2)}, {id(1), id(2)}}, []int{0, 0}},
		"1 an empty first list":                {[][]Event{{}, {id(1)}}, []int{0, 1}},
		"2 the number again at another time":   {[][]Event{{first}, {written(id(1), "2024-05-28 08:03:06")}}, []int{0, 1}},
		"2 the number again of another object": {[][]Event{{first}, {{ID: "1", Code: "329", Object: "x", Written: first.Written}}}, []int{0, 1}},
		"2 the form of 6.12 and of 6.24":       {[][]Event{{first}, {written(id(1), "2024-05-28 08:03:05.018")}}, []int{0, 0}},
		"3 an empty list between":              {[][]Event{{id(1)}, {}, {}, {id(1), id(2)}}, []int{0, 0, 0, 1}},
		"an event twice in a list":             {[][]Event{{}, {id(1), id(1)}}, []int{0, 1}},
		"texts do not run into each other":     {[][]Event{{{ID: "1", Code: "12"}}, {{ID: "11", Code: "2"}}}, []int{0, 1}},
	} {
		l := EventLog{}
		for i, list := range x.lists {
			if got := l.ConsumeNew(list); len(got) != x.want[i] {
				t.Errorf("%s: list %d: %v are new, want %d", name, i, got, x.want[i])
			}
		}
	}
	l := EventLog{}
	l.ConsumeNew(nil)
	for range 2 {
		if got := l.NewEvents([]Event{id(1)}); len(got) != 1 {
			t.Errorf("before Mark: %v", got)
		}
	}
	l.RememberEvents([]Event{id(1)})
	if got := l.NewEvents([]Event{id(1)}); len(got) != 0 {
		t.Errorf("after Mark: %v", got)
	}
}

// TestEventLogIsBounded checks rule 4: the log is bounded by its limit and the last list, and keeps what was
// listed last.
func TestEventLogIsBounded(t *testing.T) {
	l := EventLog{Limit: 100}
	for i := range 1000 {
		l.ConsumeNew([]Event{id(i), id(i + 1)})
		if len(l.lastListed) > 100+25+2 {
			t.Fatalf("%d are remembered after list %d", len(l.lastListed), i)
		}
	}
	var last []Event
	for i := 950; i <= 1000; i++ {
		last = append(last, id(i))
	}
	if got := l.ConsumeNew(last); len(got) != 0 {
		t.Errorf("forgotten: %v", got)
	}
	if got := l.ConsumeNew([]Event{id(3)}); len(got) != 1 {
		t.Error("the oldest is not forgotten")
	}
	many := make([]Event, 1000)
	for i := range many {
		many[i] = id(5000 + i)
	}
	l.ConsumeNew(many)
	if got := l.ConsumeNew(many); len(got) != 0 {
		t.Errorf("%d of a list beyond the limit are new again", len(got))
	}
}

func TestAlarmLog(t *testing.T) {
	a := func(code, object, number string) Alarm { return Alarm{ID: number, Code: code, Object: object} }
	var l AlarmLog
	for i, x := range []struct {
		list         []Alarm
		raised, over string
	}{
		{[]Alarm{a("1", "x", "7"), a("1", "y", "8")}, "1x 1y", ""},
		{[]Alarm{a("1", "x", "1"), a("1", "x", "2"), a("1", "y", "9")}, "", ""}, // other numbers
		{[]Alarm{a("1", "y", "9"), a("2", "y", "9")}, "2y", "1x"},
		{nil, "", "1y 2y"},
		{[]Alarm{a("1", "x", "1")}, "1x", ""},
	} {
		raised, over := l.RaisedAndCleared(x.list)
		text := func(list []Alarm) string {
			var out []string
			for _, a := range list {
				out = append(out, a.Code+a.Object)
			}
			return strings.Join(out, " ")
		}
		if text(raised) != x.raised || text(over) != x.over {
			t.Errorf("list %d: raised %s, over %s", i, text(raised), text(over))
		}
		l.UpdateOpen(raised, over)
	}
	many := make([]Alarm, maxAlarms+5)
	for i := range many {
		many[i] = a("9", fmt.Sprint(i), "")
	}
	raised, _ := l.RaisedAndCleared(many)
	l.UpdateOpen(raised, nil)
	if len(l.open) > maxAlarms {
		t.Errorf("%d alarms are remembered", len(l.open))
	}
}

func memory(t testing.TB) *Memory {
	t.Helper()
	m := &Memory{}
	m.Events.RememberEvents([]Event{id(1), id(2)})
	m.Events.RememberEvents([]Event{id(3)})
	m.Alarms.UpdateOpen([]Alarm{{ID: "1", Code: "394", Name: "Module status FAULT", Severity: "Critical", Object: "e41d2d0300167ee0", Path: "p", Reason: "r", At: time.UnixMilli(1709652347161).UTC()}, {Code: "1"}}, nil)
	return m
}

// TestStateFile checks that a saved state is read again, and that only a changed one is written.
func TestStateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	f, m, err := OpenState(path, "ufm", 0)
	if err != nil || m.Events.ConsumeNew([]Event{id(1)}) != nil {
		t.Fatalf("%v", err)
	}
	m = memory(t)
	if err := f.Save(m); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, got, err := OpenState(path, "ufm", 0)
	if err != nil || !got.sameEntries(m) {
		t.Fatalf("%+v, %v", got, err)
	}
	if fresh := got.Events.ConsumeNew([]Event{id(1), id(2), id(3), id(4)}); len(fresh) != 1 || fresh[0].ID != "4" {
		t.Errorf("%v", fresh)
	}
	if again, err := memory(t).EncodeState("ufm"); err != nil || !bytes.Equal(again, written) {
		t.Errorf("%s\n%s, %v", again, written, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.Save(m); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the same is written again")
	}
	m.Alarms.UpdateOpen([]Alarm{{Code: "2"}}, nil)
	if err := f.Save(m); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if _, _, err := OpenState(path, "other", 0); !errors.Is(err, ErrOtherUFM) || !strings.Contains(err.Error(), path) {
		t.Errorf("another's: %v", err)
	}
	if _, _, err := OpenState(filepath.Dir(path), "ufm", 0); err == nil {
		t.Error("a folder is taken")
	}
	if _, _, err := OpenState(filepath.Join(path, "x"), "ufm", 0); err == nil {
		t.Error("a path through a file is taken")
	}
}

func TestBadStates(t *testing.T) {
	for text, want := range map[string]string{
		``:                        "JSON is expected",
		`{"version":1,"ufm":"u"`:  "JSON is expected",
		`{"version":2,"ufm":"u"}`: "version: 2: 1 is expected",
		`{"version":1,"ufm":"v"}`: `ufm: "v": "u" is expected`,
		`{"version":1,"x":1}`:     "unknown field",
		`{"version":1,"ufm":"u","events":["00"]}`: "events: element 1",
		`{"version":1,"ufm":"u","events":["00112233445566778899aabbccddeeff","` + strings.Repeat("z", 32) + `"]}`: "events: element 2",
	} {
		if _, err := ParseState([]byte(text), "u", 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "state.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, m, err := OpenState(path, "u", 0)
	if !errors.Is(err, ErrBadState) || f == nil || m == nil {
		t.Fatalf("%v %v %v", f, m, err)
	}
	m.Events.RememberEvents(nil)
	if err := f.Save(m); err != nil {
		t.Fatal(err)
	}
	if _, _, err := OpenState(path, "u", 0); err != nil {
		t.Errorf("it is not replaced: %v", err)
	}
}

// FuzzState checks that a state that can be read is encoded in the same way.
func FuzzState(f *testing.F) {
	b, err := memory(f).EncodeState("u")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseState(b, "u", 0)
		if err != nil {
			return
		}
		written, err := m.EncodeState("u")
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseState(written, "u", 0)
		if err != nil || !again.sameEntries(m) {
			t.Errorf("%s: %v", written, err)
		}
	})
}

// FuzzLists reads events and alarms from any bytes.
func FuzzLists(f *testing.F) {
	f.Add([]byte(`[{"id":227,"name":"Network Added","type":"352","severity":"Info","timestamp":"2017-09-19 10:49:03.018","counter":null,"object_name":"Grid"}]`))
	f.Add([]byte(`[{"id":2,"type":"Switch","name":"n","event_type":394,"object_name":"0c42a1030079a66c_1","timestamp":"2024-05-28 08:23:10","description":"SUBNET UP"}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var events EventLog
		events.RememberEvents(nil)
		var all []Event
		err := decodeList(bytes.NewReader(b), func(j eventJSON) {
			if e, err := j.toEvent(time.UTC); err == nil {
				all = append(all, e)
			}
		})
		var own *Error
		if err != nil && (!errors.As(err, &own) || len(all) > 0) {
			t.Errorf("%d events and %v", len(all), err)
		}
		fresh := events.NewEvents(all)
		events.RememberEvents(all)
		if len(fresh) > len(all) || len(events.NewEvents(all)) > 0 {
			t.Errorf("%d fresh of %d", len(fresh), len(all))
		}
		for _, e := range all {
			ObjectIdentity(e.Object)
			if why, is := e.ChangeReason(); is && !slices.Contains(Reasons, why) {
				t.Errorf("%q is no reason", why)
			}
			if k := EventKind(e.Code); k == "" {
				t.Errorf("%q has no kind", e.Code)
			}
		}
		var alarms AlarmLog
		var open []Alarm
		_ = decodeList(bytes.NewReader(b), func(j alarmJSON) {
			if a, err := j.toAlarm(time.UTC); err == nil {
				open = append(open, a)
			}
		})
		raised, _ := alarms.RaisedAndCleared(open)
		alarms.UpdateOpen(raised, nil)
		if more, over := alarms.RaisedAndCleared(open); len(more)+len(over) > 0 {
			t.Errorf("%v, %v", more, over)
		}
	})
}

func TestAbout(t *testing.T) {
	for object, want := range map[string]string{
		"0002c90300f172a0_2": "0x0002c90300f172a0 2", "0x0002c90300f172a0": "0x0002c90300f172a0 0", "E41D2D0300167EE0": "0xe41d2d0300167ee0 0",
		"Grid": "", "default": "", "deadbeef": "", "0002c90300f172a0_": "", "0002c90300f172a0_x": "", "0002c90300f172a0_70000": "", "0000000000000000": "", "": "", "zz02c90300f172a0": "",
	} {
		got := ""
		if id, is := ObjectIdentity(object); is {
			got = fmt.Sprintf("%v %d", id.Port, id.Number)
		}
		if got != want {
			t.Errorf("%q is %q, want %q", object, got, want)
		}
	}
}

// TestEventTypes checks that the table is complete, and that it has the types that change paths.
func TestEventTypes(t *testing.T) {
	if n := strings.Count(strings.TrimSpace(eventTypes), "\n") + 1; n != len(eventNames) {
		t.Errorf("%d lines, %d types", n, len(eventNames))
	}
	for code, why := range reasonByCode {
		if EventKind(code) == Other || !slices.Contains(Reasons, why) {
			t.Errorf("%s: %s, %s", code, EventKind(code), why)
		}
	}
	for code, want := range map[string]string{"329": "Link is Down", "130": "Non-optimal link width", "0329": Other, "": Other, "Site": Other} {
		if got := EventKind(code); got != want {
			t.Errorf("%q is %q", code, got)
		}
	}
	for s, want := range map[string]string{"Critical": "Critical", "warning": "Warning", "": Other, "Odd": Other} {
		if got := SeverityKind(s); got != want {
			t.Errorf("%q is %q", s, got)
		}
	}
}

// TestChanges checks which events report a change, and for how long.
func TestChanges(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	c := &Changes{Now: func() time.Time { return now }, StaleAfter: time.Minute}
	unrest := func(want bool, what string) {
		t.Helper()
		if got, err := c.PollChange(); err != nil || got != want {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	unrest(true, "nothing was heard yet")
	c.RecordEvents(nil)
	unrest(false, "nothing changed")
	c.RecordEvents([]Event{{Code: "352"}, {Code: "915"}, {Code: smLog, Description: "SM: Errors on subnet"}})
	unrest(false, "other events")
	for code, want := range map[string]Reason{"328": LinkUp, "329": LinkDown, "510": SMFailover, "602": UFMFailover, "907": SwitchDown, "702": Unhealthy} {
		e := Event{Code: code}
		if why, is := e.ChangeReason(); !is || why != want {
			t.Errorf("%s: %s, %v", code, why, is)
		}
		c.RecordEvents([]Event{e})
		c.RecordEvents(nil) // a later reading does not withdraw it
		unrest(true, code)
		unrest(false, code+", reported once")
	}
	for _, line := range []string{"SM: SUBNET UP", "SM: osm_ucast_mgr: minhop tables configured on all switches", "SM: HEAVY SWEEP"} {
		c.RecordEvents([]Event{{Code: smLog, Description: line}})
		unrest(true, line)
	}
	now = now.Add(time.Minute)
	unrest(false, "the last reading is one minute old")
	now = now.Add(time.Second)
	unrest(true, "no events for too long")
	unrest(true, "and still none")
	c.RecordEvents(nil)
	unrest(false, "they are read again")
	c.StaleAfter = 0
	now = now.Add(time.Hour)
	unrest(false, "no limit")
}

// TestNeighbors checks both ends of a cable, and the names of NICs by node and device.
func TestNeighbors(t *testing.T) {
	v := saved(t)
	if err := v.FinishSaved(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range v.SwitchNeighbors() {
		got = append(got, fmt.Sprintf("%s %s %s %v", n.Port.ID(), n.Remote, n.RemotePort, n.GUID))
	}
	if want := []string{"leaf1:1 r-ufm59 mlx5_0 0xec0d9a0300d42e54", "leaf1:2 spine1 1 0x0002c90300aa0000", "spine1:1 leaf1 2 0x0002c90300f172a0", "spine1:2 leaf2 9 0x0002c90300bb0000",
		"leaf2:9 spine1 2 0x0002c90300aa0000", "leaf2:1 h2 mlx5_0 0xec0d9a0300cc0000"}; !slices.Equal(got, want) {
		t.Errorf("%s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// A port with two cables has the first.
	v.Links = append(v.Links, LinkInfo{SourceGUID: "2c90300f172a0", SourcePort: "3", DestinationGUID: "2c90300aa0000", DestinationPort: "1"})
	if err := v.indexPorts(); err != nil {
		t.Fatal(err)
	}
	if n := len(v.SwitchNeighbors()); n != len(got) {
		t.Errorf("%d neighbours, want %d", n, len(got))
	}
}

// TestExpected checks that the expected rate is the highest that both ends are enabled for, and absent where
// one end does not list any.
func TestExpected(t *testing.T) {
	port := func(speed, width string) PortInfo {
		return PortInfo{EnabledSpeed: jsonText(speed), EnabledWidth: jsonText(width), State: "Active", Speed: "HDR", Width: "2x"}
	}
	for _, x := range []struct {
		a, b  PortInfo
		gbps  float64
		lanes int
	}{
		{port("SDR,HDR,NDR", "1x,2x,4x"), port("SDR,HDR", "IB_1x,IB_4x"), 200, 4},
		{port("NDR", "4x"), port("HDR", "4x"), 0, 4},
		{port("NDR", "4x"), port("", ""), 0, 0},
		{port("", ""), port("", ""), 0, 0},
		{port("Quantum", "many"), port("Quantum", "many"), 0, 0},
	} {
		a, b := x.a, x.b
		a.GUID, a.Number, a.SystemID, a.System = "1", "1", "1", "s1"
		b.GUID, b.Number, b.SystemID, b.System = "2", "1", "2", "s2"
		v := &Inventory{Systems: []System{{GUID: "1", Type: "switch"}, {GUID: "2", Type: "switch"}}, Ports: []PortInfo{a, b},
			Links: []LinkInfo{{SourceGUID: "1", SourcePort: "1", DestinationGUID: "2", DestinationPort: "1"}}}
		if err := v.FinishSaved(); err != nil {
			t.Fatal(err)
		}
		for _, s := range v.PortStates() {
			if s.ExpectedGbps != x.gbps || s.ExpectedLanes != x.lanes || s.Lanes != 2 || s.Gbps != 100 {
				t.Errorf("%+v", s)
			}
		}
	}
}

// TestSharedNames covers the planes of a cage, which share one name and cannot be distinguished.
func TestSharedNames(t *testing.T) {
	s := NewSource(newTable(t, nil), &Directory{})
	row := func(guid, number string) string { return "leaf1,switch," + guid + "," + number + ",1\n" }
	const head = "node_description,node_type,port_guid,port_num,PortXmitDataExtended\n"
	for i, x := range []struct {
		rows    string
		samples string
		shared  int
		each    int
	}{
		{row("1", "1") + row("2", "1") + row("3", "2"), "1/1 3/2", 1, 2}, // the first document
		{row("1", "1") + row("2", "1") + row("3", "2"), "3/2", 2, 1},
		{row("2", "1") + row("1", "1") + row("3", "2"), "3/2", 2, 1}, // in another order
		{row("1", "1") + row("3", "2"), "3/2", 1, 1},                 // one of them left
		{row("1", "1") + row("3", "2"), "1/1 3/2", 0, 2},
		{row("9", "1") + row("3", "2"), "9/1 3/2", 0, 2}, // another GUID, as after a NIC was replaced
	} {
		var got []string
		report, err := s.Read(CSV, strings.NewReader(head+x.rows), func(s Sample) error {
			got = append(got, fmt.Sprintf("%d/%d", uint64(s.Port.Identity.Port), s.Port.Number))
			return nil
		})
		each := 0
		s.EachPort(func(*Port) { each++ })
		if err != nil || strings.Join(got, " ") != x.samples || report.Shared != x.shared || each != x.each {
			t.Errorf("document %d: %v, %d shared, %d each, %v; want %+v", i+1, got, report.Shared, each, err, x)
		}
	}
}

func TestAlarmShapes(t *testing.T) {
	for body, want := range map[string]Alarm{
		`{"event_type": 394, "event_count": 31, "timestamp": "2017-05-08 11:48:09.351", "related_object_path": "default / Switch: s", "counter": null, "related_object_name": "e41d2d0300167ee0",
		 "name": "Module status FAULT", "reason": "fatal", "duration": 420, "summary": "Module status FAULT", "type": 55, "id": 1, "severity": "Critical"}`: {"1", "394", "Module status FAULT", "Critical", "e41d2d0300167ee0",
			"default / Switch: s", "fatal", time.Date(2017, 5, 8, 11, 48, 9, 351e6, time.UTC)},
		`{"id":3, "type":"IBPort", "name":"Link HW Error", "description":"Link Downed", "event_type":112, "duration":"0 s", "severity":"Warning", "timestamp":"2024-05-27 08:18:51", "counter":"x", "event_count":1,
		 "object_name":"b8599f03000a7768_1", "object_path":"Computer: r / mlx5_0"}`: {"3", "112", "Link HW Error", "Warning", "b8599f03000a7768_1", "Computer: r / mlx5_0", "Link Downed", time.Date(2024, 5, 27, 8, 18, 51, 0, time.UTC)},
	} {
		var j alarmJSON
		if err := json.Unmarshal([]byte(body), &j); err != nil {
			t.Fatal(err)
		}
		if got, err := j.toAlarm(time.UTC); err != nil || got != want {
			t.Errorf("%+v, %v\nwant %+v", got, err, want)
		}
	}
	if _, err := (&alarmJSON{ID: "1"}).toAlarm(time.UTC); err == nil {
		t.Error("an alarm of nothing is taken")
	}
}

func TestRetryAfter(t *testing.T) {
	const now, later = "Tue, 15 Nov 1994 08:12:31 GMT", "Tue, 15 Nov 1994 08:12:51 GMT"
	for _, x := range []struct {
		after, date string
		want        time.Duration
	}{{"7", "", 7 * time.Second}, {later, now, 20 * time.Second}, {now, later, 0}, {later, "", 0}, {"-1", now, 0}, {"soon", now, 0}, {"", now, 0}} {
		h := http.Header{"Retry-After": {x.after}, "Date": {x.date}}
		if got := retryAfter(h); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
}

// TestOptics checks that columns whose unit no document gives are left out until the configuration sets it.
func TestOptics(t *testing.T) {
	const row = "node_description,node_type,port_guid,port_num,rx_power_lane_0,tx_bias_lane_1\nleaf1,switch,1,1,%s,8\n"
	for _, x := range []struct {
		optics  OpticsUnits
		power   string
		want    string
		unknown int
	}{
		{OpticsUnits{}, "0.5", "", 2},
		{OpticsUnits{Power: "mW"}, "0.5", "0.0005", 1},
		{OpticsUnits{Power: "dBm"}, "-30", "1e-06", 1},
		{OpticsUnits{Power: "mW"}, "-30", "", 1}, // milliwatts cannot be negative
		{OpticsUnits{Bias: "mA"}, "0.5", "0.008", 1},
		{OpticsUnits{Bias: "uA", Power: "mW"}, "1", "0.001 8e-06", 0},
	} {
		table, err := NewTable(nil, x.optics)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		if _, err := NewSource(table, &Directory{}).Read(CSV, strings.NewReader(fmt.Sprintf(row, x.power)), func(s Sample) error {
			got = append(got, fmt.Sprintf("%.5g", s.Value))
			return nil
		}); err != nil || strings.Join(got, " ") != x.want || len(table.UnknownColumns()) != x.unknown {
			t.Errorf("%+v: %v, unknown %v, %v", x.optics, got, table.UnknownColumns(), err)
		}
	}
}
