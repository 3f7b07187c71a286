package chaos

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
)

var testSite = Site{Nodes: []string{"h1", "h2", "h3", "h4"}, Switches: []string{"leaf1", "spine1"}, Analyzers: []string{"analyzer1", "analyzer2"}, Prometheus: []string{"prometheus", "prometheus2"}}

// TestSchedules checks the properties of the schedules of many seeds, and that a schedule survives its file.
func TestSchedules(t *testing.T) {
	for seed := range uint64(300) {
		for _, span := range []time.Duration{MinSpan, 2 * time.Minute, 10 * time.Minute} {
			s, err := NewSchedule(seed, span, testSite)
			if err != nil {
				t.Fatal(err)
			}
			again, _ := NewSchedule(seed, span, testSite)
			if !reflect.DeepEqual(s, again) {
				t.Fatalf("seed %d has two schedules", seed)
			}
			var b bytes.Buffer
			if err := s.WriteJSON(&b); err != nil {
				t.Fatal(err)
			}
			read, err := ReadSchedule(&b)
			if err != nil || !reflect.DeepEqual(s, read) {
				t.Fatalf("seed %d, %s: what was read is not what was written: %v", seed, span, err)
			}
			if len(s.Faults) == 0 || s.Faults[len(s.Faults)-1].Until > span-quietEnd+4*time.Second {
				t.Errorf("seed %d, %s: faults %+v", seed, span, s.Faults)
			}
			for _, e := range s.Events {
				k, _ := FindKind(e.Kind)
				if (e.Target == "") != (k.Target == OnFleet) || e.Until-e.At < k.Lasts || e.Until > span-eventsEnd+eventEvery {
					t.Errorf("seed %d, %s: %+v of %+v", seed, span, e, k)
				}
			}
		}
	}
}

// TestEveryKindIsStruck checks that 20 seeds in a row of two minutes strike everything at least twice.
func TestEveryKindIsStruck(t *testing.T) {
	for _, first := range []uint64{1, 7, 32, 100} {
		struck := map[string]int{}
		for seed := first; seed < first+20; seed++ {
			s, err := NewSchedule(seed, 2*time.Minute, testSite)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range s.Events {
				struck[e.Kind]++
			}
			for _, f := range s.Faults {
				struck[f.Kind]++
			}
		}
		for _, name := range append(kindNames(), FaultKinds...) {
			if struck[name] < 2 {
				t.Errorf("seeds from %d: %s is struck %d times, want 2 at least", first, name, struck[name])
			}
		}
	}
}

func TestWrongSchedules(t *testing.T) {
	if _, err := NewSchedule(1, MinSpan-1, testSite); err == nil || !strings.Contains(err.Error(), "at least") {
		t.Errorf("a short span: %v", err)
	}
	if _, err := NewSchedule(1, MinSpan, Site{Nodes: []string{"h1"}}); err == nil {
		t.Error("a site without switches has a schedule, want an error")
	}
	for text, want := range map[string]string{
		`{`:           "schedule",
		`{"speed":1}`: "speed",
		`{"span_ns":9,"events":[{"kind":"flood"}]}`:                                                                          "events[0].kind",
		`{"span_ns":9,"events":[{"kind":"kill_agent","at_ns":1,"until_ns":10}]}`:                                             "events[0]: from",
		`{"span_ns":9,"events":[{"kind":"kill_agent","at_ns":1,"until_ns":5},{"kind":"kill_agent","at_ns":4,"until_ns":6}]}`: "events[1]: from",
		`{"span_ns":9,"faults":[{"kind":"flood"}]}`:                                                                          "faults[0].kind",
		`{"span_ns":9,"faults":[{"kind":"loss","at_ns":5,"until_ns":4}]}`:                                                    "faults[0]: from",
	} {
		if _, err := ReadSchedule(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
}
