package ccl_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
	"github.com/graylink/graylink/internal/fabric"
)

// flight returns a dump with an operation of each kind.
func flight() ccltest.Flight {
	at := func(i int64) int64 { return base + i*100_000_000 }
	f := ccltest.Flight{Version: "2.10", Groups: []ccltest.FlightGroup{{Name: "0", Desc: "default_pg", Ranks: []int{0, 1, 2, 3}}, {Name: "7", Desc: "DP", Ranks: []int{1, 3}}}}
	all := func(name string, seq int64, state string, started, completed int64) ccltest.FlightEntry {
		return ccltest.FlightEntry{Group: "0", Desc: "default_pg", Name: name, Seq: seq, Sizes: [][]int64{{1024, 1024}}, Types: []string{"BFloat16"}, Created: at(seq), Started: started, Completed: completed, State: state, Retired: completed > 0}
	}
	timed := all("nccl:all_reduce", 1, "completed", at(1)+5, at(1)+9)
	timed.DurationMS = 1.25
	dp := all("nccl:_all_gather_base", 1, "completed", 0, at(2))
	dp.Group, dp.Desc = "7", "DP"
	member := all("nccl:send 3->1", 3, "scheduled", 0, 0)
	member.P2P = true
	launch := all("nccl:coalesced", 3, "completed", 0, at(4))
	launch.P2P, launch.Sizes, launch.Types = true, nil, nil
	recv := all("nccl:recv 3<-1", 4, "started", at(5), 0)
	recv.P2P = true
	gloo := all("gloo:barrier", 5, "scheduled", 0, 0)
	gloo.Retired = true
	f.Entries = []ccltest.FlightEntry{timed, dp, all("nccl:_reduce_scatter_base", 2, "completed", at(2), at(3)), member, dp, launch, recv, gloo, all("nccl:all_reduce", 6, "scheduled", 0, 0)}
	f.Entries[4].Seq = 2
	return f
}

// readFlight returns the records of a dump of rank 3.
func readFlight(t *testing.T, text []byte) (recs []ccl.Record, bad []string, counts ccl.Counts, err error) {
	t.Helper()
	counts, err = ccl.ReadFlightRecorder(bytes.NewReader(text), source, 3, func(r ccl.Record) error {
		recs = append(recs, r)
		return nil
	}, func(e fabric.LineError) { bad = append(bad, e.Err.Error()) })
	return recs, bad, counts, err
}

// written returns records as lines.
func written(t *testing.T, recs []ccl.Record) string {
	t.Helper()
	var out []byte
	for _, r := range recs {
		var err error
		if out, err = ccl.AppendRecord(out, r); err != nil {
			t.Fatal(err)
		}
	}
	return string(out)
}

// TestFlightRecorder checks the records of a dump, and that both formats give the same.
func TestFlightRecorder(t *testing.T) {
	f := flight()
	recs, bad, counts, err := readFlight(t, f.Pickle())
	if err != nil || len(bad) > 0 || counts.Lines != 9 || !reflect.DeepEqual(counts.Dropped, map[ccl.Reason]uint64{ccl.DroppedGroup: 1, ccl.DroppedTimes: 1}) {
		t.Errorf("%v %v %+v", err, bad, counts)
	}
	want := strings.ReplaceAll(`{"kind":"comm","job":"t7","comm":"ALL","comm_name":"default_pg","n_ranks":4,"ranks":[{"rank":3,"host":"h3"}]}
{"kind":"comm","job":"t7","comm":"DP","comm_name":"DP","n_ranks":2,"ranks":[{"rank":1,"host":"h3"}]}
{"kind":"op","job":"t7","comm":"ALL","rank":3,"n_ranks":4,"host":"h3","seq":1,"op":"AllReduce","bytes":2097152,"start_ns":1752867229335181005,"end_ns":1752867229335181009,"exec_ns":1250000,"timing":"device_event","state":"completed"}
{"kind":"op","job":"t7","comm":"DP","rank":1,"n_ranks":2,"host":"h3","seq":1,"op":"AllGather","bytes":2097152,"start_ns":1752867229335181000,"end_ns":1752867229435181000,"timing":"enqueue_watchdog","state":"completed"}
{"kind":"op","job":"t7","comm":"ALL","rank":3,"n_ranks":4,"host":"h3","seq":2,"op":"ReduceScatter","bytes":2097152,"start_ns":1752867229435181000,"end_ns":1752867229535181000,"timing":"watchdog","state":"completed"}
{"kind":"op","job":"t7","comm":"DP","rank":1,"n_ranks":2,"host":"h3","seq":2,"op":"AllGather","bytes":2097152,"start_ns":1752867229335181000,"end_ns":1752867229435181000,"timing":"enqueue_watchdog","state":"completed"}
{"kind":"op","job":"t7","comm":"ALL","rank":3,"n_ranks":4,"host":"h3","seq":3,"op":"Coalesced","start_ns":1752867229535181000,"end_ns":1752867229635181000,"timing":"enqueue_watchdog","state":"completed"}
{"kind":"op","job":"t7","comm":"ALL","rank":3,"n_ranks":4,"host":"h3","seq":4,"op":"Recv","bytes":2097152,"peer":1,"start_ns":1752867229735181000,"state":"started"}
{"kind":"op","job":"t7","comm":"ALL","rank":3,"n_ranks":4,"host":"h3","seq":6,"op":"AllReduce","bytes":2097152,"start_ns":1752867229835181000,"state":"scheduled"}
{"kind":"beat","job":"t7","comm":"ALL","rank":3,"n_ranks":4,"host":"h3","at_ns":1752867229835181000,"alive":true,"launched":{"AllReduce":7,"Barrier":6,"Coalesced":4,"Recv":5,"ReduceScatter":3},"completed":{"AllReduce":2,"Barrier":6,"Coalesced":4,"ReduceScatter":3}}
{"kind":"beat","job":"t7","comm":"DP","rank":1,"n_ranks":2,"host":"h3","at_ns":1752867229835181000,"alive":true,"launched":{"AllGather":3},"completed":{"AllGather":3}}
`, `"ALL"`, `"`+recs[0].(*ccl.Comm).Comm+`"`)
	if dp := recs[1].(*ccl.Comm).Comm; !strings.HasPrefix(dp, "fr:7:") {
		t.Errorf("communicator %s", dp)
	} else {
		want = strings.ReplaceAll(want, `"comm":"DP"`, `"comm":"`+dp+`"`)
	}
	if got := written(t, recs); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	other, bad, _, err := readFlight(t, f.JSON())
	if err != nil || len(bad) > 0 || written(t, other) != written(t, recs) {
		t.Errorf("JSON: %v %v\n%s", err, bad, written(t, other))
	}
}

// TestGroupsOfOneName checks that two groups of one name with other members are two communicators, as those of
// torch.distributed.split_group are.
func TestGroupsOfOneName(t *testing.T) {
	names := map[string]bool{}
	for _, ranks := range [][]int{{0, 3}, {1, 3}} {
		f := flight()
		f.Groups[0].Ranks = ranks
		recs, _, _, err := readFlight(t, f.Pickle())
		if err != nil {
			t.Fatal(err)
		}
		names[recs[0].(*ccl.Comm).Comm] = true
	}
	if len(names) != 2 {
		t.Errorf("%v", names)
	}
}

// TestBrokenDumps checks what is made of dumps that are not whole.
func TestBrokenDumps(t *testing.T) {
	with := func(change func(*ccltest.Flight)) []byte {
		f := flight()
		f.Entries = f.Entries[:1]
		change(&f)
		return f.Pickle()
	}
	whole := flight().Pickle()
	for _, c := range []struct {
		name      string
		text      []byte
		err, bad  string
		wantedOps int
	}{
		{name: "old version", text: with(func(f *ccltest.Flight) { f.Version = "2.3" }), err: `field "version": a version from 2.4 on is expected, and not "2.3"`},
		{name: "other version", text: with(func(f *ccltest.Flight) { f.Version = "3.0" }), err: `a version from 2.4 on is expected, and not "3.0"`},
		{name: "empty", err: "byte 0 of the pickle: the pickle ends early"},
		{name: "half", text: whole[:len(whole)/2], err: "the pickle ends early"},
		{name: "half of JSON", text: flight().JSON()[:100], err: "not a JSON object"},
		{name: "other JSON", text: []byte(`{"a":1}`), err: `field "version"`},
		{name: "nested", text: []byte("\x80\x02" + strings.Repeat("]", 40) + strings.Repeat("a", 39) + "."), err: "more than 32 values are nested"},
		{name: "nested tuples", text: []byte("\x80\x02N" + strings.Repeat("\x85", 40) + "."), err: "more than 32 values are nested"},
		{name: "marks", text: []byte("\x80\x02" + strings.Repeat("(", 40)), err: "more than 32 values are nested"},
		{name: "a list within itself", text: []byte("\x80\x02]q\x00h\x00a."), err: `field "version"`},
		{name: "many values", text: append([]byte("\x80\x02("), bytes.Repeat([]byte("N"), 3<<19+1)...), err: "more than 1572864 values"},
		{name: "much text", text: append([]byte("\x80\x02(X\x00\x00\x00\x03"), make([]byte, 3<<24)...), err: "more than 33554432 bytes of text"},
		{name: "much text in JSON", text: append([]byte(`{"a":"`), append(bytes.Repeat([]byte("a"), 3<<24), `"}`...)...), err: "more than 33554432 bytes of text"},
		{name: "too long", text: bytes.Repeat([]byte("("), ccl.MaxDump+1), err: "longer than 64 MiB"},
		{name: "foreign group", text: with(func(f *ccltest.Flight) { f.Entries[0].Group = "9" }), bad: `entry 1: field "process_group": pg_config has no group "9"`},
		{name: "no member", text: with(func(f *ccltest.Flight) { f.Groups[0].Ranks = []int{0, 1} }), bad: `entry 1: field "pg_config": rank 3, by the name of the file, is no member of the group`},
		{name: "other state", text: with(func(f *ccltest.Flight) { f.Entries[0].State = "lost" }), bad: `entry 1: field "state": scheduled, started or completed is expected, and not "lost"`},
		{name: "no backend", text: with(func(f *ccltest.Flight) { f.Entries[0].Name = "all_reduce" }), bad: `entry 1: field "profiling_name": backend:operation is expected, and not "all_reduce"`},
		{name: "bad peer", text: with(func(f *ccltest.Flight) { f.Entries[0].Name = "nccl:send 3->9" }), bad: `entry 1: field "peer": a rank from 0 to 3 is expected, and not 9`},
		{name: "negative number", text: with(func(f *ccltest.Flight) { f.Entries[0].Seq = -1 }), bad: `entry 1: field "collective_seq_id": a whole number of at least 0 is expected`},
		{name: "unknown type", text: with(func(f *ccltest.Flight) { f.Entries[0].Types = []string{"Float3"} }), wantedOps: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			recs, bad, counts, err := readFlight(t, c.text)
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || len(recs) > 0) || c.err == "" && err != nil {
				t.Errorf("error %v, and not %s; %d records", err, c.err, len(recs))
			}
			if !strings.Contains(strings.Join(bad, "\n"), c.bad) || counts.Unreadable != uint64(len(bad)) || (c.bad == "") != (len(bad) == 0) {
				t.Errorf("bad %q, and not %q", bad, c.bad)
			}
			if n := len(only[*ccl.Op](recs)); n != c.wantedOps {
				t.Errorf("%d operations", n)
			}
		})
	}
}

// TestRankOfFile checks how the rank is taken from a name.
func TestRankOfFile(t *testing.T) {
	for name, want := range map[string]int{"/tmp/nccl_trace_rank_3": 3, "nccl_trace_rank_12.json": 12, "rank0.pickle": 0, "trace": -1, "rank_99999999999": -1, "rank_70000": -1} {
		if got, ok := ccl.RankOfFile(name); ok != (want >= 0) || ok && got != want {
			t.Errorf("%s: %d %t, and not %d", name, got, ok, want)
		}
	}
}

func FuzzFlightRecorder(f *testing.F) {
	f.Add(flight().Pickle())
	f.Add(flight().JSON())
	f.Add([]byte("\x80\x02}q\x00(X\x07\x00\x00\x00versionX\x03\x00\x00\x002.4u."))
	f.Fuzz(func(t *testing.T, text []byte) {
		ccl.ReadFlightRecorder(bytes.NewReader(text), source, 3, canBeRead(t), func(fabric.LineError) {})
	})
}
