package ccl_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
	"github.com/graylink/graylink/internal/fabric"
)

// base is the time of the records of these tests.
const base = int64(1_752_867_229_235_181_000)

// from is rank 2 of a communicator.
var from = ccl.From{Job: "t7", Comm: "0x7f8c", Rank: 2, NRanks: 8, Host: "h3"}

var source = ccl.Source{Job: "t7", Host: "h3"}

// ops returns operations with the times of a verbose file.
func ops(n int) []*ccl.Op {
	var out []*ccl.Op
	for i := range n {
		start := base + int64(i)*50_000_000
		o := &ccl.Op{From: from, Seq: uint64(i), Op: "AllReduce", Algo: "RING", Proto: "SIMPLE", Bytes: new(uint64(1 << 26)), StartNS: ccl.KnownNanos(start),
			EndNS: ccl.KnownNanos(start + 40_630_000), ExecNS: ccl.KnownNanos(41_057_000), Timing: "kernel_gpu", State: ccl.Completed}
		if i%5 == 4 {
			o.Op, o.Algo, o.Proto, o.Peer = "Send", "", "", new(i%8)
		}
		out = append(out, o)
	}
	return out
}

// edges returns transfers of the ring of ops.
func edges(n int) []*ccl.Edge {
	var out []*ccl.Edge
	for i := range n {
		e := &ccl.Edge{From: from, Seq: uint64(i / 2), Peer: 3, Direction: ccl.Send, Channel: new(i % 4), Bytes: new(uint64(1 << 20)), StartNS: ccl.KnownNanos(base + int64(i)*1000),
			EndNS: ccl.KnownNanos(base + int64(i)*1000 + 70_000), GPUWait: ccl.KnownNanos(11_000), PeerWait: ccl.KnownNanos(20_000), Wire: ccl.KnownNanos(int64(i) * 1000), State: "completed"}
		if i%2 == 1 {
			e.Peer, e.Direction, e.PeerWait, e.Flush = 1, ccl.Recv, ccl.Nanos{}, ccl.KnownNanos(3000)
		}
		out = append(out, e)
	}
	return out
}

// dump returns a dump of operations and transfers.
func dump() ccltest.Dump {
	return ccltest.Dump{AtNS: base + 10_000_000_000, Comm: ccl.Comm{Comm: from.Comm, Name: "DP 0", NRanks: from.NRanks}, Rank: from.Rank, Ops: ops(20), Edges: edges(12), Verbose: true}
}

// read returns the records of a file, its bad lines and what was counted.
func read(t *testing.T, text []byte) (recs []ccl.Record, bad []string, counts ccl.Counts) {
	t.Helper()
	counts, err := ccl.ReadInspector(bytes.NewReader(text), source, func(r ccl.Record) error {
		recs = append(recs, r)
		return nil
	}, func(e fabric.LineError) { bad = append(bad, e.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	return recs, bad, counts
}

// only returns the records of a kind.
func only[T ccl.Record](recs []ccl.Record) (out []T) {
	for _, r := range recs {
		if x, ok := r.(T); ok {
			out = append(out, x)
		}
	}
	return out
}

// sameRecords fails if two lists of records are not equal, field by field.
func sameRecords[T ccl.Record](t *testing.T, what string, got, want []T) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d records, and not %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			a, _ := ccl.AppendRecord(nil, got[i])
			b, _ := ccl.AppendRecord(nil, want[i])
			t.Errorf("%s: record %d\n got %s\nwant %s", what, i, a, b)
			return
		}
	}
}

// TestVersionsGiveEqualRecords checks that all versions of the format give the operations that were written. Versions
// before 4.2 have no algorithm and protocol.
func TestVersionsGiveEqualRecords(t *testing.T) {
	for _, version := range ccltest.Versions {
		d := dump()
		recs, bad, counts := read(t, ccltest.AppendDump(nil, version, d))
		if len(bad) > 0 || counts.Unreadable > 0 || len(counts.Dropped) > 0 {
			t.Errorf("%s: %v %+v", version, bad, counts)
		}
		var want []*ccl.Op
		for _, p2p := range []bool{false, true} {
			for _, o := range d.Ops {
				if version < "v4.2" {
					o.Algo, o.Proto = "", ""
				}
				if (o.Peer != nil) == p2p {
					want = append(want, o)
				}
			}
		}
		sameRecords(t, version, only[*ccl.Op](recs), want)
		comm := &ccl.Comm{Job: "t7", Comm: from.Comm, NRanks: 8, Ranks: []ccl.Member{{Rank: 2, Host: "h3"}}}
		if version >= "v4.2" {
			comm.Name = "DP 0"
		}
		sameRecords(t, version, only[*ccl.Comm](recs), []*ccl.Comm{comm})
		beats := only[*ccl.Beat](recs)
		if len(beats) != 1 || beats[0].AtNS.NS != d.AtNS || !*beats[0].Alive {
			t.Errorf("%s: beats %+v", version, beats)
		}
		wantEdges := d.Edges
		if version < "v4.3" {
			wantEdges = nil
		}
		sameRecords(t, version, only[*ccl.Edge](recs), wantEdges)
	}
}

// TestBriefFile checks files without the times of operations, in which nothing says when an operation ran.
func TestBriefFile(t *testing.T) {
	d := dump()
	d.Verbose, d.Ops = false, d.Ops[:1]
	recs, _, _ := read(t, ccltest.AppendDump(nil, "v4.2", d))
	o := only[*ccl.Op](recs)[0]
	if o.StartNS.Known || o.EndNS.Known || o.ExecNS != ccl.KnownNanos(41_057_000) {
		t.Errorf("%+v", o)
	}
}

// TestBeats checks that a rank has a beat for each dump that is a second behind the last one, with what it had completed.
func TestBeats(t *testing.T) {
	var text []byte
	for i := range 5 {
		d := dump()
		d.AtNS += int64(i) * 600_000_000
		d.Ops, d.Edges = d.Ops[i:i+1], nil
		text = ccltest.AppendDump(text, "v4.3", d)
	}
	recs, _, _ := read(t, text)
	beats := only[*ccl.Beat](recs)
	if len(beats) != 3 || beats[1].Completed["AllReduce"] != 2 || beats[2].Completed["AllReduce"] != 4 {
		t.Errorf("%+v", beats)
	}
}

// TestBrokenInspectorFiles checks what is made of files that are not whole.
func TestBrokenInspectorFiles(t *testing.T) {
	lines := func(version string) []string {
		d := dump()
		d.Ops, d.Edges, d.Dropped = d.Ops[:3], d.Edges[:1], 7
		return strings.SplitAfter(string(ccltest.AppendDump(nil, version, d)), "\n")
	}
	v42, v43, other := lines("v4.2"), lines("v4.3"), strings.ReplaceAll(lines("v4.2")[1], `"0x7f8c"`, `"0x9999"`)
	cut := func(s string) string { return s[:len(s)/2] + "\n" }
	header := v42[1][:strings.Index(v42[1], `"coll_perf"`)]
	for _, c := range []struct {
		name, text      string
		ops, edges      int
		bad             string
		unreadable      uint64
		dropped         map[ccl.Reason]uint64
		wantCommsAtMost int
	}{
		{name: "whole", text: strings.Join(v43, ""), ops: 3, edges: 1, dropped: map[ccl.Reason]uint64{ccl.DroppedByWriter: 7}},
		{name: "without its marker", text: strings.Join(v43[1:], ""), bad: "line 1: the line has no header, and no dump_stats of version 4.3 before it", unreadable: 6, dropped: map[ccl.Reason]uint64{ccl.DroppedHeader: 6}},
		{name: "ends early", text: strings.Join(v43[:2], ""), ops: 1, dropped: map[ccl.Reason]uint64{ccl.DroppedByWriter: 7, ccl.DroppedDump: 5}},
		{name: "ends in the middle of a line", text: strings.Join(v43[:3], "") + cut(v43[3]), ops: 2, bad: "line 4: not a JSON object", unreadable: 1, dropped: map[ccl.Reason]uint64{ccl.DroppedByWriter: 7, ccl.DroppedDump: 4}},
		{name: "next dump before the end", text: strings.Join(v43[:2], "") + strings.Join(v43, ""), ops: 4, edges: 1, dropped: map[ccl.Reason]uint64{ccl.DroppedByWriter: 14, ccl.DroppedDump: 5}},
		{name: "more lines than counted", text: strings.Join(v43, "") + v43[1], ops: 3, edges: 1, bad: "line 8: more lines than dump_stats counts", unreadable: 1, dropped: map[ccl.Reason]uint64{ccl.DroppedByWriter: 7}},
		{name: "a header within a dump", text: v43[0] + v42[1], bad: `line 2: field "coll_perf": no other member is expected in a line of this version`, unreadable: 1, dropped: map[ccl.Reason]uint64{ccl.DroppedByWriter: 7, ccl.DroppedDump: 6}},
		{name: "another communicator", text: v42[1] + other, ops: 2},
		{name: "4.2 after 4.3", text: strings.Join(v43, "") + strings.Join(v42, ""), ops: 6, edges: 1, dropped: map[ccl.Reason]uint64{ccl.DroppedByWriter: 14}},
		{name: "half a line", text: v42[1] + cut(v42[2]) + v42[3], ops: 2, bad: "line 2: not a JSON object: at byte", unreadable: 1},
		{name: "no number", text: strings.Replace(v42[1], `"coll_sn":0,`, "", 1), bad: `line 1: field "seq": the number of the operation in its communicator is required`, unreadable: 1},
		{name: "no time", text: strings.Replace(v42[1], `"coll_exec_time_us":41057,`, "", 1), bad: `line 1: field "coll_perf": its execution time is expected`, unreadable: 1},
		{name: "text for a number", text: strings.Replace(v42[1], `"coll_sn":0,`, `"coll_sn":"0",`, 1), bad: `line 1: field "coll_sn": a whole number of at least 0 is expected, and not "0"`, unreadable: 1},
		{name: "time below zero", text: strings.Replace(v42[1], `:41057,`, `:-5,`, 1), bad: `line 1: field "coll_exec_time_us": a number of microseconds of at least 0 is expected, and not -5`, unreadable: 1},
		{name: "time beyond 64 bits", text: strings.Replace(v42[1], `:41057,`, `:9223372036854775807,`, 1), bad: `field "coll_exec_time_us"`, unreadable: 1},
		{name: "long name", text: strings.Replace(v42[1], `"AllReduce"`, `"`+strings.Repeat("a", 129)+`"`, 1), bad: `line 1: field "op": at most 128 bytes are allowed, and it has 129`, unreadable: 1},
		{name: "rank beyond the communicator", text: strings.Replace(v42[1], `"rank":2`, `"rank":8`, 1), bad: `line 1: field "rank": a rank from 0 to 7 is expected, and not 8`, unreadable: 1},
		{name: "negative rank", text: strings.Replace(v42[1], `"rank":2`, `"rank":-1`, 1), bad: `line 1: field "rank": a rank from 0 to 7 is required`, unreadable: 1},
		{name: "too many ranks", text: strings.Replace(v42[1], `"n_ranks":8`, `"n_ranks":65537`, 1), bad: `line 1: field "n_ranks": a number from 1 to 65536 is required, and not 65537`, unreadable: 1},
		{name: "no payload", text: header + `"x":1}`, bad: "line 1: one of coll_perf, p2p_perf, proxy_trace and dump_stats is expected", unreadable: 1},
		{name: "no object", text: "[]\n", bad: "line 1: not a JSON object: at byte 0: a JSON object is expected", unreadable: 1},
		{name: "too deep", text: header + `"x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}", bad: "more than 32 values are nested", unreadable: 1},
		{name: "too long", text: strings.Repeat("a", ccl.MaxLine+2) + "\n" + v42[1], ops: 1, bad: "line 1: longer than 1048576 bytes", unreadable: 1},
		{name: "unknown parent", text: strings.Replace(strings.Join(v43, ""), `"parent_type":"coll"`, `"parent_type":"unknown"`, 3), ops: 3, dropped: map[ccl.Reason]uint64{ccl.DroppedByWriter: 7, ccl.DroppedParent: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			recs, bad, counts := read(t, []byte(c.text))
			if got := len(only[*ccl.Op](recs)); got != c.ops {
				t.Errorf("%d operations, and not %d", got, c.ops)
			}
			if got := len(only[*ccl.Edge](recs)); got != c.edges {
				t.Errorf("%d transfers, and not %d", got, c.edges)
			}
			if counts.Unreadable != c.unreadable || uint64(len(bad)) != c.unreadable || !strings.Contains(strings.Join(bad, "\n"), c.bad) {
				t.Errorf("%d unreadable: %q, want %q", counts.Unreadable, bad, c.bad)
			}
			if len(counts.Dropped)+len(c.dropped) > 0 && !reflect.DeepEqual(counts.Dropped, c.dropped) {
				t.Errorf("dropped %v, and not %v", counts.Dropped, c.dropped)
			}
		})
	}
}

// TestForgedNames checks that no line decides whose its records are.
func TestForgedNames(t *testing.T) {
	text := strings.ReplaceAll(string(ccltest.AppendDump(nil, "v4.2", dump())), `"hostname":"pod-2"`, `"hostname":"h1","job":"other","host":"h1"`)
	recs, bad, _ := read(t, []byte(strings.ReplaceAll(text, `"nnodes":2`, `"nnodes":2,"job":"other"`)))
	if len(bad) > 0 {
		t.Error(bad)
	}
	for _, r := range recs {
		line, err := ccl.AppendRecord(nil, r)
		if err != nil || bytes.Contains(line, []byte(`"h1"`)) || !bytes.Contains(line, []byte(`"job":"t7"`)) {
			t.Errorf("%s %v", line, err)
		}
	}
}

// TestManyCommunicators checks that communicators beyond the limit are counted.
func TestManyCommunicators(t *testing.T) {
	var text []byte
	for i := range ccl.MaxComms + 10 {
		d := dump()
		d.Comm.Comm, d.Ops, d.Verbose = fmt.Sprintf("0x%x", i), d.Ops[:2], false
		text = ccltest.AppendDump(text, "v4.0", d)
	}
	recs, bad, counts := read(t, text)
	if n := len(only[*ccl.Comm](recs)); n != ccl.MaxComms || counts.Dropped[ccl.DroppedComm] != 20 || len(bad) != 20 {
		t.Errorf("%d communicators, %d bad lines, %+v", n, len(bad), counts)
	}
}

// TestRealLines reads lines as they were published, as another program wrote them: by a worker on GKE (Inspector 4.0, with
// a fraction of microseconds), and the README of NCCL 2.31.
func TestRealLines(t *testing.T) {
	for _, c := range []struct {
		line string
		exec int64
	}{
		{`{"header":{"id":"0xad56c683b0c4ef","rank":1,"n_ranks":3,"nnodes":3},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"standalone-build","hostname":"nanogpt-nccl-test-worker-0","pid":48,"dump_timestamp_us":1772585717263338},"coll_perf":{"coll":"AllReduce","coll_sn":8995,"coll_msg_size_bytes":2360832,"coll_exec_time_us":5663.0,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":0.416887,"coll_busbw_gbs":0.555850}}`, 5_663_000},
		{`{"header":{"id":"0x7f8c496ae9f661","comm_name":"DP Group 0","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"inspector_output_format_version":"v4.2","dump_timestamp_us":1748030377748202,"hostname":"example-hostname","pid":1639453},"coll_perf":{"coll":"ReduceScatter","coll_algo":"RING","coll_proto":"SIMPLE","coll_sn":1231,"coll_msg_size_bytes":2147483648,"coll_exec_time_us":41057,"coll_timing_source":"kernel_gpu","event_trace_ts":{"coll_start_ts":1752867229235059,"coll_stop_ts":1752867229235064,"kernel_events":[{"channel_id":0,"kernel_start_ts":1752867229235181,"kernel_stop_ts":1752867229275811,"kernel_record_ts":1752867229275811}]}}}`, 41_057_000},
	} {
		recs, bad, _ := read(t, []byte(c.line))
		if o := only[*ccl.Op](recs); len(bad) > 0 || len(o) != 1 || o[0].ExecNS.NS != c.exec {
			t.Errorf("%v %+v", bad, recs)
		}
	}
}

// canBeRead returns a function that checks that a record is one that ParseRecord reads.
func canBeRead(t *testing.T) func(ccl.Record) error {
	return func(r ccl.Record) error {
		line, err := ccl.AppendRecord(nil, r)
		if err != nil {
			t.Error(err)
		}
		if _, err := ccl.ParseRecord(line); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		return nil
	}
}

// FuzzInspector checks that no file breaks the reader, that what it reads is JSON, and that its records are valid ones.
func FuzzInspector(f *testing.F) {
	for _, version := range ccltest.Versions {
		d := dump()
		d.Ops, d.Edges = d.Ops[3:5], d.Edges[:2]
		f.Add(ccltest.AppendDump(nil, version, d))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		in := ccl.NewInspector(source, canBeRead(t))
		for line := range bytes.SplitSeq(text, []byte("\n")) {
			if err := in.ReadLine(line); err == nil && !json.Valid(line) {
				t.Errorf("%q is no JSON", line)
			}
		}
		in.Finish()
	})
}

// BenchmarkInspector reads lines of version 4.2 as fast as it can.
func BenchmarkInspector(b *testing.B) {
	for _, verbose := range []bool{false, true} {
		d := dump()
		d.Ops, d.Edges, d.Verbose = ops(1000), nil, verbose
		text := ccltest.AppendDump(nil, "v4.2", d)
		lines := bytes.Count(text, []byte("\n"))
		b.Run(fmt.Sprintf("verbose=%t", verbose), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			began := cpuTime(b)
			for b.Loop() {
				if _, err := ccl.ReadInspector(bytes.NewReader(text), source, func(ccl.Record) error { return nil }, func(e fabric.LineError) { b.Fatal(e) }); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(lines)*float64(b.N)/(cpuTime(b)-began).Seconds(), "lines/s-of-a-core")
		})
	}
}
