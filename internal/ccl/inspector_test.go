package ccl_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
)

// published has the examples of the Inspector's README (NVIDIA/nccl, read on 2026-11-27), a line each, with what the rules of
// its formats need around them.
const published = `{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"inspector_output_format_version":"v4.4","git_rev":"","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1748030377748202,"hostname":"example-hostname","pid":1639453},"dump_stats":{"coll_records":2,"coll_dropped_total":4096,"coll_dropped_since_last_dump":512,"p2p_records":0,"p2p_dropped_total":0,"p2p_dropped_since_last_dump":0,"proxy_records":2,"proxy_dropped_total":0,"proxy_dropped_since_last_dump":0,"proxy_ops_dropped_total":3,"proxy_ops_dropped_since_last_dump":1,"proxy_steps_enabled":1}}
{"coll_perf":{"coll":"AllReduce","coll_algo":"RING","coll_proto":"LL","coll_sn":1407,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,"coll_algobw_gbs":277.210914,"coll_busbw_gbs":485.119099}}
{"coll_perf":{"coll":"ReduceScatter","coll_algo":"RING","coll_proto":"SIMPLE","coll_sn":1231,"coll_msg_size_bytes":2147483648,"coll_exec_time_us":41057,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":418.439467,"coll_busbw_gbs":366.134533,"event_trace_sn":{"coll_start_sn":1,"coll_stop_sn":2,"kernel_events":[{"channel_id":0,"kernel_start_sn":3,"kernel_stop_sn":48,"kernel_record_sn":47}]},"event_trace_ts":{"coll_start_ts":1752867229235059,"coll_stop_ts":1752867229235064,"kernel_events":[{"channel_id":0,"kernel_start_ts":1752867229235181,"kernel_stop_ts":1752867229275811,"kernel_record_ts":1752867229275811}]}}}
{"proxy_trace":{"record_type":"proxy_step","record_sn":41,"parent_type":"coll","parent_sn":1407,"proxy_op_sn":12,"channel_id":0,"peer":3,"direction":"send","proxy_step_sn":1,"step":0,"trans_size_bytes":1048576,"timing_source":"proxy_cpu","total_us":40,"gpu_produce_us":10,"peer_credit_us":10,"wire_us":10}}
{"proxy_trace":{"record_type":"proxy_op","record_sn":42,"parent_type":"coll","parent_sn":1407,"proxy_op_sn":12,"rank":2,"channel_id":0,"peer":3,"direction":"send","n_steps":1,"chunk_size_bytes":1048576,"n_steps_started":1,"n_steps_completed":1,"n_steps_dropped":0,"trans_size_bytes":1048576,"timing_source":"proxy_cpu","total_us":70,"op_bw_gbs":14.979657,"event_trace_ts":{"proxy_op_start_ts":1752867229235080,"proxy_op_in_progress_ts":1752867229235090,"proxy_op_stop_ts":1752867229235150}}}
`

var source = ccl.Source{Job: "t7", Host: "h3"}

// readInspector returns the records of a file as lines, what was lost, and the errors of its lines.
func readInspector(t testing.TB, file []byte) (records []string, loss ccl.Loss, errs []string) {
	t.Helper()
	r := ccl.NewInspectorReader(source, func(rec ccl.Record) {
		line, err := ccl.AppendRecord(nil, rec)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, strings.TrimSpace(string(line)))
	})
	for i, line := range bytes.Split(bytes.TrimSpace(file), []byte("\n")) {
		if err := r.ReadLine(line); err != nil {
			errs = append(errs, fmt.Sprintf("line %d: %v", i+1, err))
		}
	}
	return records, r.Finish(), errs
}

func TestPublishedInspectorLines(t *testing.T) {
	records, loss, errs := readInspector(t, []byte(published))
	want := []string{
		`{"kind":"comm","job":"t7","comm":"0x7f8c496ae9f661","n_ranks":8,"ranks":[{"rank":2,"host":"h3"}]}`,
		`{"kind":"op","job":"t7","comm":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"host":"h3","seq":1407,"op":"AllReduce","algo":"RING","proto":"LL","bytes":17179869184,"exec_ns":61974000,"state":"completed"}`,
		`{"kind":"op","job":"t7","comm":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"host":"h3","seq":1231,"op":"ReduceScatter","algo":"RING","proto":"SIMPLE","bytes":2147483648,"start_ns":1752867229235181000,"end_ns":1752867229275811000,"exec_ns":41057000,"timing":"kernel_gpu","state":"completed"}`,
		`{"kind":"edge","job":"t7","comm":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"host":"h3","seq":1407,"peer":3,"direction":"send","channel":0,"bytes":1048576,"start_ns":1752867229235080000,"end_ns":1752867229235150000,"gpu_wait_ns":10000,"peer_wait_ns":10000,"wire_ns":10000,"state":"completed"}`,
	}
	if got := strings.Join(records, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if loss != (ccl.Loss{Dropped: 513}) || len(errs) > 0 {
		t.Errorf("%+v, %q", loss, errs)
	}
}

// someOperations returns operations and transfers of a rank, of whole microseconds.
func someOperations() (ops []*ccl.Op, edges []*ccl.Edge) {
	from := ccl.From{Job: source.Job, Comm: "0xabc", Rank: 1, NRanks: 4, Host: source.Host}
	const us = 1000
	for i := range int64(5) {
		start, bytes, peer, channel := int64(1752867229235181000)+i*50000*us, uint64(1<<20), int(2+i%2), 0
		o := &ccl.Op{From: from, Seq: uint64(i), Op: "AllReduce", Algo: "RING", Proto: "SIMPLE", Bytes: &bytes, StartNS: ccl.KnownNanos(start), EndNS: ccl.KnownNanos(start + 900*us), ExecNS: ccl.KnownNanos((850 + i) * us), Timing: "kernel_gpu", State: ccl.Completed}
		if i == 4 {
			o.Op, o.Algo, o.Proto, o.Peer = "Send", "", "", &peer
		}
		ops = append(ops, o)
		e := &ccl.Edge{From: from, Seq: uint64(i), Peer: peer, Direction: ccl.Send, Channel: &channel, Bytes: &bytes, StartNS: ccl.KnownNanos(start), EndNS: ccl.KnownNanos(start + 800*us),
			GPUWait: ccl.KnownNanos(100 * us), PeerWait: ccl.KnownNanos((200 + i) * us), Wire: ccl.KnownNanos(300 * us), State: "completed"}
		if i%2 == 1 {
			e.Direction, e.PeerWait, e.Flush = ccl.Recv, ccl.Nanos{}, ccl.KnownNanos((20+i)*us)
		}
		edges = append(edges, e)
	}
	return ops, edges
}

// linesOf returns records as lines.
func linesOf[R ccl.Record](t testing.TB, records []R) (out []string) {
	for _, r := range records {
		line, err := ccl.AppendRecord(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, strings.TrimSpace(string(line)))
	}
	return out
}

// TestInspectorFormatsAreEqual: equal operations give equal records in all formats.
func TestInspectorFormatsAreEqual(t *testing.T) {
	ops, edges := someOperations()
	wantOps, wantEdges := linesOf(t, ops), linesOf(t, edges)
	for _, w := range []ccltest.Inspector{{Version: "v4.0"}, {Version: "v4.1"}, {Version: "v4.2"}, {Version: "v4.3", Flat: true}, {Version: "v4.4"}} {
		w.Verbose, w.Steps = true, 3
		t.Run(w.Version, func(t *testing.T) {
			records, loss, errs := readInspector(t, w.Dump("DP 0", ops, edges, 0))
			if loss != (ccl.Loss{}) || len(errs) > 0 {
				t.Errorf("%+v, %q", loss, errs)
			}
			want := wantOps
			if w.Version >= "v4.3" {
				want = append(want[:len(want):len(want)], wantEdges...)
			}
			if got := records[1:]; strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if named := strings.Contains(records[0], `"comm_name":"DP 0"`); named != (w.Version > "v4.0") {
				t.Error(records[0])
			}
		})
	}
}

// TestInspectorLosses: what is missing is counted, and makes no record.
func TestInspectorLosses(t *testing.T) {
	ops, edges := someOperations()
	w := ccltest.Inspector{Version: "v4.3", Flat: true, Steps: 3}
	lines := bytes.SplitAfter(w.Dump("", ops, edges[:2], 7), []byte("\n"))
	without := func(drop ...int) []byte {
		var out []byte
		for i, line := range lines {
			keep := true
			for _, d := range drop {
				keep = keep && i != d
			}
			if keep {
				out = append(out, line...)
			}
		}
		return out
	}
	const firstStep = 6 // after the dump_stats line and five operations
	if records, loss, errs := readInspector(t, without(firstStep)); loss != (ccl.Loss{Dropped: 7, Missing: 1}) || len(errs) > 0 || strings.Contains(records[6], "wire_ns") {
		t.Errorf("without a step: %+v, %q, %s", loss, errs, records[6])
	}
	if records, loss, errs := readInspector(t, without(0)); len(records) > 0 || loss.Unreadable != uint64(len(lines)-2) || !strings.Contains(errs[0], "no dump_stats line is before this one") {
		t.Errorf("without the dump_stats line: %q, %+v, %q", records, loss, errs)
	}
	if _, loss, errs := readInspector(t, append(without(), lines[1]...)); loss.Unreadable != 1 || !strings.Contains(errs[0], "announced fewer lines") {
		t.Errorf("with a line too many: %+v, %q", loss, errs)
	}
	if _, loss, _ := readInspector(t, append(without(2), lines[0]...)); loss.Missing != 1+5+8 || loss.Dropped != 14 {
		t.Errorf("with two dumps: %+v", loss)
	}
}

func TestBadInspectorLines(t *testing.T) {
	const context = `"header":{"id":"0x1","rank":0,"n_ranks":2},"metadata":{"inspector_output_format_version":"v4.0"}`
	for line, want := range map[string]string{
		`{"header":`:        "not a JSON object",
		`{` + context + `}`: `fields "coll_perf", "p2p_perf", "proxy_trace" and "dump_stats": one is required`,
		`{"header":{"id":"0x1","n_ranks":2},"coll_perf":{}}`:                                              `field "header.rank": a rank is required`,
		`{"header":{"id":"0x1","rank":2,"n_ranks":2},"coll_perf":{}}`:                                     `field "rank": a rank from 0 to 1 is expected, and not 2`,
		`{` + context + `,"coll_perf":{"coll":"AllReduce","coll_exec_time_us":1}}`:                        `field "seq"`,
		`{` + context + `,"coll_perf":{"coll":"AllReduce","coll_sn":1}}`:                                  `a number of microseconds is required`,
		`{` + context + `,"coll_perf":{"coll":"AllReduce","coll_sn":1,"coll_exec_time_us":-1}}`:           `a number of microseconds is required`,
		`{` + context + `,"coll_perf":{"coll_sn":1,"coll_exec_time_us":1}}`:                               `field "op"`,
		`{` + context + `,"p2p_perf":{"p2p":"Send","p2p_sn":1,"p2p_exec_time_us":1,"p2p_peer":7}}`:        `field "peer"`,
		`{` + context + `,"proxy_trace":{"record_type":"proxy_op"}}`:                                      `field "proxy_op_sn"`,
		`{` + context + `,"proxy_trace":{"record_type":"other","proxy_op_sn":1}}`:                         `field "record_type"`,
		`{` + context + `,"proxy_trace":{"record_type":"proxy_op","proxy_op_sn":1,"parent_sn":1}}`:        `field "parent_sn and peer"`,
		`{"metadata":{"inspector_output_format_version":"v4.3"},"dump_stats":{"coll_records":1}}`:         `field "header": dump_stats needs it`,
		`{` + strings.Replace(context, "v4.0", "v4.3", 1) + `,"dump_stats":{"coll_records":99999999999}}`: `field "dump_stats"`,
	} {
		records, loss, errs := readInspector(t, []byte(line))
		if len(errs) != 1 || !strings.Contains(errs[0], want) || loss.Unreadable != 1 {
			t.Errorf("%s:\n got %q, %+v\nwant %s", line, errs, loss, want)
		}
		for _, r := range records {
			if !strings.Contains(r, `"kind":"comm"`) {
				t.Errorf("%s: %s", line, r)
			}
		}
	}
}

func FuzzInspectorReader(f *testing.F) {
	ops, edges := someOperations()
	f.Add([]byte(published))
	for _, w := range []ccltest.Inspector{{Version: "v4.0"}, {Version: "v4.2", Verbose: true}, {Version: "v4.3", Flat: true, Steps: 2}, {Version: "v4.4", Steps: 2}} {
		w.Steps = max(w.Steps, 1)
		f.Add(w.Dump("a", ops, edges, 1))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		r := ccl.NewInspectorReader(source, func(rec ccl.Record) {
			line, err := ccl.AppendRecord(nil, rec)
			if err != nil {
				return // text that is no UTF-8 cannot be read either
			}
			if _, err := ccl.ParseRecord(line); err != nil {
				t.Errorf("%v: %s", err, line)
			}
		})
		for line := range bytes.SplitSeq(file, []byte("\n")) {
			_ = r.ReadLine(line) // counted
		}
		r.Finish()
	})
}

// BenchmarkInspectorReader measures verbose lines of v4.2, of which a core has to read 300,000 a second.
func BenchmarkInspectorReader(b *testing.B) {
	ops, _ := someOperations()
	w := ccltest.Inspector{Version: "v4.2", Verbose: true, Steps: 1}
	lines := bytes.Split(bytes.TrimSpace(w.Dump("DP 0", ops[:4], nil, 0)), []byte("\n"))
	r := ccl.NewInspectorReader(source, func(ccl.Record) {})
	b.ReportAllocs()
	b.SetBytes(int64(len(lines[1]) + 1))
	for i := 0; b.Loop(); i++ {
		if err := r.ReadLine(lines[1+i%4]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
