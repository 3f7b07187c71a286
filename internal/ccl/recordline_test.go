package ccl

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRecordsInFiles: a line that is a record already is taken, and its job and host are those of the source.
func TestRecordsInFiles(t *testing.T) {
	var got []Record
	in := NewInspector(Source{Job: "t7", Host: "h3"}, func(r Record) error { got = append(got, r); return nil })
	line, err := AppendRecord(nil, &Op{From: From{Job: "forged", Comm: "c", Rank: 2, NRanks: 8, Host: "h9"}, Seq: 8, Op: "AllReduce", ExecNS: KnownNanos(41), State: Completed, ClockError: KnownNanos(1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.ReadLine(line); err != nil {
		t.Fatal(err)
	}
	want := []Record{&Op{From: From{Job: "t7", Comm: "c", Rank: 2, NRanks: 8, Host: "h3"}, Seq: 8, Op: "AllReduce", ExecNS: KnownNanos(41), State: Completed}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := in.ReadLine([]byte(`{"kind":"op","comm":"c"}`)); err == nil {
		t.Error("a record without its fields is taken")
	}
}
