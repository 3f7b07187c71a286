package ccl

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/graylink/graylink/internal/fabric"
)

// lines are records as other programs write them.
var lines = []string{
	`{"kind":"comm","job":"t7","comm":"0x7f8c","comm_name":"DP 0","n_ranks":8,"ranks":[{"rank":0,"host":"h1","nic":"h1/eth1","gpu":0}]}`,
	`{"kind":"op","job":"t7","comm":"0x7f8c","rank":2,"n_ranks":8,"host":"h3","seq":1407,"op":"AllReduce","algo":"RING","proto":"SIMPLE","bytes":67108864,"start_ns":0,"end_ns":0,"exec_ns":41057000,"timing":"kernel_gpu","state":"completed","clock_error_ns":200}`,
	`{"kind":"edge","job":"t7","comm":"0x7f8c","rank":2,"n_ranks":8,"host":"h3","seq":1407,"peer":3,"direction":"send","channel":0,"bytes":8388608,"start_ns":0,"end_ns":0,"gpu_wait_ns":0,"peer_wait_ns":0,"wire_ns":0,"flush_ns":0,"state":"completed"}`,
	`{"kind":"edge","job":"t7","comm":"0x7f8c","rank":2,"n_ranks":8,"host":"h3","seq":1407,"peer":3,"direction":"recv","state":"open","held":"wire","since_ns":5}`,
	`{"kind":"beat","job":"t7","comm":"0x7f8c","rank":2,"n_ranks":8,"host":"h3","at_ns":0,"alive":true,"launched":{"AllReduce":1408},"completed":{"AllReduce":1407}}`,
}

// TestRecordsAreWrittenAsTheyWereRead checks that no field of a record is lost.
func TestRecordsAreWrittenAsTheyWereRead(t *testing.T) {
	n := 0
	err := ReadRecords(strings.NewReader(strings.Join(lines, "\n")), func(line int, rec Record) error {
		out, err := AppendRecord(nil, rec)
		if got := strings.TrimSpace(string(out)); err != nil || got != lines[line-1] {
			t.Errorf("line %d: %v\n got %s\nwant %s", line, err, got, lines[line-1])
		}
		n++
		return nil
	}, func(e fabric.LineError) { t.Error(e) })
	if err != nil || n != len(lines) {
		t.Errorf("%d records, %v", n, err)
	}
}

// TestBadRecords checks that errors name the field, and what was expected.
func TestBadRecords(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{`{"kind":"ops"}`, `field "kind": comm, op, edge or beat is expected, and not "ops"`},
		{`[]`, `an array where a JSON object is expected`},
		{`{"kind":"op","n_ranks":8,"rank":1,"seq":1,"op":"AllReduce","exec_ns":1}`, `field "comm": the identifier of a communicator is required`},
		{`{"kind":"op","comm":"a","rank":1,"seq":1,"op":"AllReduce","exec_ns":1}`, `field "n_ranks": a number from 1 to 65536 is required, and not 0`},
		{`{"kind":"op","comm":"a","n_ranks":8,"seq":1,"op":"AllReduce","exec_ns":1}`, `field "rank": a rank from 0 to 7 is required`},
		{`{"kind":"op","comm":"a","n_ranks":8,"rank":8,"seq":1,"op":"AllReduce","exec_ns":1}`, `field "rank": a rank from 0 to 7 is expected, and not 8`},
		{`{"kind":"op","comm":"a","n_ranks":8,"rank":1,"op":"AllReduce","exec_ns":1}`, `field "seq": the number of the operation in its communicator is required`},
		{`{"kind":"op","comm":"a","n_ranks":8,"rank":1,"seq":1,"op":"AllReduce","start_ns":1}`, `field "exec_ns": a completed operation needs it, or both start_ns and end_ns`},
		{`{"kind":"op","comm":"a","n_ranks":8,"rank":1,"seq":1,"op":"AllReduce","start_ns":2,"end_ns":1}`, `field "end_ns": it is 1 ns before start_ns`},
		{`{"kind":"op","comm":"a","n_ranks":8,"rank":1,"seq":1,"op":"AllReduce","exec_ns":-1}`, `field "exec_ns": -1 ns is below zero`},
		{`{"kind":"op","comm":"a","n_ranks":8,"rank":1,"seq":1,"op":"AllReduce","exec_ns":1.5}`, `field "exec_ns": a whole number of nanoseconds is expected`},
		{`{"kind":"op","comm":"a","n_ranks":8,"rank":1,"seq":1,"op":"AllReduce","exec_ns":"1"}`, `field "exec_ns": a whole number of nanoseconds is expected`},
		{`{"kind":"op","comm":"a","n_ranks":8,"rank":1,"seq":1,"op":"Send","exec_ns":1,"peer":9}`, `field "peer": a rank from 0 to 7 is expected, and not 9`},
		{`{"kind":"op","comm":"a","n_ranks":8,"rank":1,"seq":1,"op":"AllReduce","state":"done"}`, `field "state": scheduled, started or completed is expected, and not "done"`},
		{`{"kind":"op","comm":"` + strings.Repeat("a", 129) + `","n_ranks":8,"rank":1,"seq":1,"op":"AllReduce","exec_ns":1}`, `field "comm": at most 128 bytes are allowed, and it has 129`},
		{"{\"kind\":\"op\",\"comm\":\"a\",\"n_ranks\":8,\"rank\":1,\"seq\":1,\"op\":\"\xff\",\"exec_ns\":1}", `not a JSON object`},
		{`{"kind":"edge","comm":"a","n_ranks":8,"rank":1,"seq":1,"direction":"send"}`, `field "peer": a rank from 0 to 7 is required`},
		{`{"kind":"edge","comm":"a","n_ranks":8,"rank":1,"seq":1,"peer":2,"direction":"both"}`, `field "direction": send or recv is expected, and not "both"`},
		{`{"kind":"edge","comm":"a","n_ranks":8,"rank":1,"seq":1,"peer":2,"direction":"send","state":"open"}`, `field "held": an open transfer is held by gpu, peer, wire or flush, and not by ""`},
		{`{"kind":"edge","comm":"a","n_ranks":8,"rank":1,"seq":1,"peer":2,"direction":"send","state":"open","held":"gpu"}`, `field "since_ns": an open transfer needs the time since which it is held`},
		{`{"kind":"beat","comm":"a","n_ranks":8,"rank":1}`, `field "at_ns": the time of the beat is required`},
	} {
		_, err := ParseRecord([]byte(c.line))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", c.line, err, c.want)
		}
	}
}

// TestAbsentIsNotZero checks that a duration that is absent stays unknown.
func TestAbsentIsNotZero(t *testing.T) {
	rec, err := ParseRecord([]byte(`{"comm":"a","n_ranks":1,"rank":0,"seq":0,"op":"AllReduce","state":"started","end_ns":null,"kind":"op"}`))
	if err != nil {
		t.Fatal(err)
	}
	o := rec.(*Op)
	if _, ok := o.Duration(); ok || o.StartNS.Known || o.EndNS.Known || o.ClockError.Known {
		t.Errorf("%+v", o)
	}
}

// scanned compares the record that the fast reader has of a line with that of the reader of any JSON. It is false if the fast one
// gives up.
func scanned(t *testing.T, s *recordScanner, line []byte) bool {
	t.Helper()
	fast := s.scan(line)
	if fast == nil {
		return false
	}
	checked := fast.check()
	slow, err := parseAnyRecord(line)
	if (checked == nil) != (err == nil) || err != nil && checked.Error() != err.Error() {
		t.Errorf("%s: %v, and any JSON: %v", line, checked, err)
	} else if d := cmp.Diff(slow, fast); err == nil && d != "" {
		t.Errorf("%s: %s", line, d)
	}
	return true
}

// TestFastReader: lines as they are written take the fast way, with the same result, and other JSON does not.
func TestFastReader(t *testing.T) {
	s := newRecordScanner()
	for _, line := range lines[1:] {
		if !scanned(t, s, []byte(line)) || !scanned(t, s, []byte(line+"\n")) {
			t.Errorf("the slow way for %s", line)
		}
	}
	op := func(members string) string {
		return `{"kind":"op","comm":"a","n_ranks":8,"rank":1,"seq":1,"op":"AllReduce"` + members
	}
	for _, members := range []string{`,"algo":"TREE","bytes":1,"peer":2,"root":3,"end_ns":9223372036854775807,"exec_ns":1,"gap_ns":2,"account":"u"}`, `,"exec_ns": 1}`, `,"algo":"\u0041","exec_ns":1}`, `,"algo":"é","exec_ns":1}`} {
		if !scanned(t, s, []byte(op(members))) {
			t.Errorf("the slow way for %s", op(members))
		}
	}
	for _, members := range []string{"", "}}", `,"exec_ns":1}x`, `,"exec_ns":1,}`, `,"exec_ns":-1}`, `,"exec_ns":01}`, `,"exec_ns":1.0}`, `,"exec_ns":1e3}`, `,"exec_ns":null}`, `,"exec_ns":}`, `,"exec_ns":1`,
		`,"exec_ns":9223372036854775808}`, `,"exec_ns":10000000000000000001}`, `,"exec_ns":18446744073709551616}`, `,"exec_ns":1,"exec_ns":1}`, `,"exec_ns":1,"new":1}`, `,"algo":"a`, `,"algo":1}`, `,"alive":true}`} {
		if scanned(t, s, []byte(op(members))) {
			t.Errorf("the fast way for %s", op(members))
		}
	}
	for counts, fast := range map[string]bool{`{}`: true, `{"a":1,"b":2}`: true, `{"a":1,"a":2}`: false, `{"a":1,}`: false, `{,}`: false, `{"a":1`: false, `null`: false} {
		if line := `{"kind":"beat","comm":"a","n_ranks":8,"rank":1,"at_ns":0,"alive":false,"launched":` + counts + `}`; scanned(t, s, []byte(line)) != fast {
			t.Errorf("the fast way is %t for %s", !fast, line)
		}
	}
}

// BenchmarkParseRecord reads the lines of a page.
func BenchmarkParseRecord(b *testing.B) {
	s := newRecordScanner()
	b.ReportAllocs()
	for b.Loop() {
		for _, line := range lines[1:] {
			if _, err := s.parse([]byte(line)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, line := range lines {
		f.Add([]byte(line))
	}
	s := newRecordScanner()
	f.Fuzz(func(t *testing.T, line []byte) {
		scanned(t, s, line)
		rec, err := ParseRecord(line)
		if err != nil {
			return
		}
		out, err := AppendRecord(nil, rec)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseRecord(out)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if second, _ := AppendRecord(nil, again); string(second) != string(out) {
			t.Errorf("%s is not %s", second, out)
		}
	})
}
