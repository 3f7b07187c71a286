package ccl_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
)

// readFlight returns the records of a dump of rank 2 as sorted lines.
func readFlight(t testing.TB, dump []byte) (records []string, loss ccl.Loss, err error) {
	t.Helper()
	loss, err = ccl.ReadFlightRecorder(dump, 2, source, func(r ccl.Record) {
		if err := ccl.Check(r); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
		records = append(records, linesOf(t, []ccl.Record{r})...)
	})
	slices.Sort(records)
	return records, loss, err
}

// TestFlightRecorder reads the dump that Python's modules pickle and json wrote: both give the same records.
func TestFlightRecorder(t *testing.T) {
	want := []string{
		`{"kind":"beat","job":"t7","comm":"fr/0","rank":2,"n_ranks":4,"host":"h3","at_ns":1724779239990000000,"launched":{"AllGather":3,"AllReduce":7},"completed":{"AllGather":3,"AllReduce":5}}`,
		`{"kind":"beat","job":"t7","comm":"fr/1","rank":1,"n_ranks":2,"host":"h3","at_ns":1724779239975811726,"launched":{"Send":8},"completed":{"Send":8}}`,
		`{"kind":"comm","job":"t7","comm":"fr/0","comm_name":"default_pg","n_ranks":4,"ranks":[{"rank":2,"host":"h3"}]}`,
		`{"kind":"comm","job":"t7","comm":"fr/1","comm_name":"pipeline","n_ranks":2,"ranks":[{"rank":1,"host":"h3"}]}`,
		`{"kind":"op","job":"t7","comm":"fr/0","rank":2,"n_ranks":4,"host":"h3","seq":1,"op":"AllReduce","bytes":52,"start_ns":1724779239936775119,"end_ns":1724779239975811724,"timing":"watchdog","state":"completed"}`,
		`{"kind":"op","job":"t7","comm":"fr/0","rank":2,"n_ranks":4,"host":"h3","seq":2,"op":"AllGather","bytes":52,"start_ns":1724779239937775119,"end_ns":1724779239975811725,"exec_ns":12500000,"timing":"kernel_gpu","state":"completed"}`,
		`{"kind":"op","job":"t7","comm":"fr/0","rank":2,"n_ranks":4,"host":"h3","seq":5,"op":"AllReduce","bytes":52,"start_ns":1724779239940775119,"timing":"watchdog","state":"started"}`,
		`{"kind":"op","job":"t7","comm":"fr/0","rank":2,"n_ranks":4,"host":"h3","seq":6,"op":"AllReduce","bytes":52,"start_ns":1724779239941775119,"timing":"watchdog","state":"scheduled"}`,
		`{"kind":"op","job":"t7","comm":"fr/1","rank":1,"n_ranks":2,"host":"h3","seq":7,"op":"Send","bytes":52,"peer":0,"start_ns":1724779239938775119,"end_ns":1724779239975811726,"timing":"watchdog","state":"completed"}`,
	}
	for _, file := range []string{"flightrecorder.pickle", "flightrecorder.json"} {
		dump, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		records, loss, err := readFlight(t, dump)
		if err != nil || loss != (ccl.Loss{Unreadable: 2}) {
			t.Errorf("%s: %v, %+v", file, err, loss)
		}
		if got := strings.Join(records, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", file, got, strings.Join(want, "\n"))
		}
	}
}

// TestBadDumps: a dump that is none is refused as a whole, with where and why. One that calls code is none.
func TestBadDumps(t *testing.T) {
	for dump, want := range map[string]string{
		"":                                  "byte 0 of the pickle: the file ends within a value",
		"\x80\x04.":                         "byte 2 of the pickle: protocol 2 is expected, and not 4",
		"\x80\x02cos\nsystem\nX":            "operation 0x63 is none of plain values",
		"\x80\x02X\x02\x00\x00\x00idR.":     "operation 0x52 is none of plain values",
		"\x80\x02X\xff\xff\xff\xffid":       "the file ends within a value",
		"\x80\x02K\x01.":                    "a dictionary is expected at the top",
		"\x80\x02}.":                        `field "pg_config": the process groups are required`,
		"\x80\x02}K\x01K\x02s.":             "a key that is no text",
		"\x80\x02e":                         "a mark is expected on the stack",
		"\x80\x02h\x05":                     "value 5 is not known",
		"\x80\x02\x8a\x09123456789":         "a number of 9 bytes",
		"{":                                 "after 1 bytes",
		strings.Repeat(`{"a":`, 40):         "more than 32 levels",
		`{"pg_config":{"0":{}}}`:            `group "0" has no ranks`,
		`{"pg_config":{"0":{"ranks":"0"}}}`: `a list of ranks is expected, and not "0"`,
	} {
		records, _, err := readFlight(t, []byte(dump))
		if err == nil || !strings.Contains(err.Error(), want) || len(records) > 0 {
			t.Errorf("%.40q: %v, want %s", dump, err, want)
		}
	}
	if _, err := ccl.ReadFlightRecorder(make([]byte, ccl.MaxDump+1), 0, source, nil); err == nil {
		t.Error("a dump that is too large is read")
	}
}

// TestRepeatedParts: a pickle of some hundred bytes that repeats parts of itself makes no work beyond the limits.
func TestRepeatedParts(t *testing.T) {
	var b strings.Builder
	text := func(s string) { fmt.Fprintf(&b, "X%c\x00\x00\x00%s", len(s), s) }
	b.WriteString("\x80\x02}")
	text("pg_config")
	b.WriteString("}")
	text("0")
	b.WriteString("}")
	text("ranks")
	text("[2]")
	b.WriteString("sssq\x00")
	text("entries")
	b.WriteString("]q\x01(") // an entry whose sizes are a list that is repeated
	b.WriteString("}")
	text("process_group")
	b.WriteString("]")
	text("0")
	b.WriteString("as")
	text("input_sizes")
	b.WriteString("]q\x02(")
	for range 200 {
		b.WriteString("h\x02")
	}
	b.WriteString("es")
	b.WriteString("q\x03")
	for range 200 {
		b.WriteString("h\x03")
	}
	b.WriteString("es.")
	if _, loss, err := readFlight(t, []byte(b.String())); err != nil || loss.Unreadable != 201 {
		t.Errorf("%v, %+v", err, loss)
	}
}

func FuzzFlightRecorder(f *testing.F) {
	for _, file := range []string{"flightrecorder.pickle", "flightrecorder.json"} {
		dump, err := os.ReadFile("testdata/" + file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(dump)
	}
	f.Fuzz(func(t *testing.T, dump []byte) {
		_, _ = ccl.ReadFlightRecorder(dump, 2, source, func(r ccl.Record) {
			if err := ccl.Check(r); err != nil {
				t.Errorf("%+v: %v", r, err)
			}
		})
	})
}
