package ccl_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
)

// published has the examples of the Inspector's README (NVIDIA/nccl, read on 2026-11-27), a line each, with what the rules of
// its formats need around them.
const published = `{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"inspector_output_format_version":"v4.4","git_rev":"","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1748030377748202,"hostname":"example-hostname","pid":1639453},"dump_stats":{"coll_records":2,"coll_dropped_total":4096,"coll_dropped_since_last_dump":512,"p2p_records":0,"p2p_dropped_total":0,"p2p_dropped_since_last_dump":0,"proxy_records":2,"proxy_dropped_total":0,"proxy_dropped_since_last_dump":0,"proxy_ops_dropped_total":3,"proxy_ops_dropped_since_last_dump":1,"proxy_steps_enabled":1}}
{"coll_perf":{"coll":"AllReduce","coll_algo":"RING","coll_proto":"LL","coll_sn":1407,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,"coll_algobw_gbs":277.210914,"coll_busbw_gbs":485.119099}}
{"coll_perf":{"coll":"ReduceScatter","coll_algo":"RING","coll_proto":"SIMPLE","coll_sn":1231,"coll_msg_size_bytes":2147483648,"coll_exec_time_us":41057,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":418.439467,"coll_busbw_gbs":366.134533,"event_trace_sn":{"coll_start_sn":1,"coll_stop_sn":2,"kernel_events":[{"channel_id":0,"kernel_start_sn":3,"kernel_stop_sn":48,"kernel_record_sn":47}]},"event_trace_ts":{"coll_start_ts":1752867229235059,"coll_stop_ts":1752867229235064,"kernel_events":[{"channel_id":0,"kernel_start_ts":1752867229235181,"kernel_stop_ts":1752867229275811,"kernel_record_ts":1752867229275811}]}}}
{"proxy_trace":{"record_type":"proxy_step","record_sn":41,"parent_type":"coll","parent_sn":1407,"proxy_op_sn":12,"channel_id":0,"peer":3,"direction":"send","proxy_step_sn":1,"step":0,"trans_size_bytes":1048576,"timing_source":"proxy_cpu","total_us":40,"gpu_produce_us":10,"peer_credit_us":10,"wire_us":10}}
{"proxy_trace":{"record_type":"proxy_op","record_sn":42,"parent_type":"coll","parent_sn":1407,"proxy_op_sn":12,"rank":2,"channel_id":0,"peer":3,"direction":"send","n_steps":1,"chunk_size_bytes":1048576,"n_steps_started":1,"n_steps_completed":1,"n_steps_dropped":0,"trans_size_bytes":1048576,"timing_source":"proxy_cpu","total_us":70,"op_bw_gbs":14.979657,"event_trace_ts":{"proxy_op_start_ts":1752867229235080,"proxy_op_in_progress_ts":1752867229235090,"proxy_op_stop_ts":1752867229235150}}}
`

var publishedSource = ccl.Source{Job: "t7", Host: "h3"}

// sortedRecords collects records as lines.
type sortedRecords struct {
	t     *testing.T
	lines []string
	bad   []string
}

func (s *sortedRecords) add(r ccl.Record) error {
	line, err := ccl.AppendRecord(nil, r)
	if err != nil {
		s.t.Error(err)
	}
	s.lines = append(s.lines, strings.TrimSpace(string(line)))
	return nil
}

func (s *sortedRecords) addBad(e fabric.LineError) { s.bad = append(s.bad, e.Error()) }

// compare compares what was collected, in any order.
func (s *sortedRecords) compare(what string, want []string) {
	s.t.Helper()
	slices.Sort(s.lines)
	slices.Sort(want)
	if got, want := strings.Join(s.lines, "\n"), strings.Join(want, "\n"); got != want {
		s.t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
	}
}

// TestPublishedInspectorLines reads the examples of the Inspector's README.
func TestPublishedInspectorLines(t *testing.T) {
	got := sortedRecords{t: t}
	counts, err := ccl.ReadInspector(strings.NewReader(published), publishedSource, got.add, got.addBad)
	got.compare("README", []string{
		`{"kind":"beat","job":"t7","comm":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"host":"h3","at_ns":1748030377748202000,"alive":true}`,
		`{"kind":"comm","job":"t7","comm":"0x7f8c496ae9f661","n_ranks":8,"ranks":[{"rank":2,"host":"h3"}]}`,
		`{"kind":"op","job":"t7","comm":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"host":"h3","seq":1407,"op":"AllReduce","algo":"RING","proto":"LL","bytes":17179869184,"exec_ns":61974000,"state":"completed"}`,
		`{"kind":"op","job":"t7","comm":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"host":"h3","seq":1231,"op":"ReduceScatter","algo":"RING","proto":"SIMPLE","bytes":2147483648,"start_ns":1752867229235181000,"end_ns":1752867229275811000,"exec_ns":41057000,"timing":"kernel_gpu","state":"completed"}`,
		`{"kind":"edge","job":"t7","comm":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"host":"h3","seq":1407,"peer":3,"direction":"send","channel":0,"bytes":1048576,"start_ns":1752867229235080000,"end_ns":1752867229235150000,"gpu_wait_ns":10000,"peer_wait_ns":10000,"wire_ns":10000,"state":"completed"}`,
	})
	if err != nil || len(got.bad) > 0 || counts.Dropped[ccl.DroppedByWriter] != 513 || len(counts.Dropped) != 1 {
		t.Errorf("%v, %q, %+v", err, got.bad, counts)
	}
}

// TestLostStepsHaveNoSums: the waits of a transfer are unknown, and not too small, if a step of it is missing.
func TestLostStepsHaveNoSums(t *testing.T) {
	lines := strings.SplitAfter(published, "\n")
	for what, text := range map[string]string{
		"a step was overwritten": strings.Join(slices.Delete(slices.Clone(lines), 3, 4), ""),
		"a step was dropped":     strings.Replace(published, `"n_steps_dropped":0`, `"n_steps_dropped":1`, 1),
		"a step lacks a time":    strings.Replace(published, `"wire_us":10`, `"other_us":10`, 1),
	} {
		got := sortedRecords{t: t}
		if _, err := ccl.ReadInspector(strings.NewReader(text), publishedSource, got.add, got.addBad); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(got.lines, func(line string) bool { return strings.Contains(line, `"kind":"edge"`) })
		if i < 0 || strings.Contains(got.lines[i], "wire_ns") {
			t.Errorf("%s: %q", what, got.lines)
		}
	}
}

// TestDumpsOfPython reads the dump that Python's modules pickle and json wrote: both give the same records.
func TestDumpsOfPython(t *testing.T) {
	want := []string{
		`{"kind":"beat","job":"t7","comm":"fr:0:0fe76e79","rank":2,"n_ranks":4,"host":"h3","at_ns":1724779239990000000,"alive":true,"launched":{"AllGather":3,"AllReduce":7},"completed":{"AllGather":3,"AllReduce":5}}`,
		`{"kind":"beat","job":"t7","comm":"fr:1:70727b4c","rank":1,"n_ranks":2,"host":"h3","at_ns":1724779239990000000,"alive":true,"launched":{"Send":8},"completed":{"Send":8}}`,
		`{"kind":"comm","job":"t7","comm":"fr:0:0fe76e79","comm_name":"default_pg","n_ranks":4,"ranks":[{"rank":2,"host":"h3"}]}`,
		`{"kind":"comm","job":"t7","comm":"fr:1:70727b4c","comm_name":"pipeline","n_ranks":2,"ranks":[{"rank":1,"host":"h3"}]}`,
		`{"kind":"op","job":"t7","comm":"fr:0:0fe76e79","rank":2,"n_ranks":4,"host":"h3","seq":1,"op":"AllReduce","bytes":52,"start_ns":1724779239936775119,"end_ns":1724779239975811724,"timing":"enqueue_watchdog","state":"completed"}`,
		`{"kind":"op","job":"t7","comm":"fr:0:0fe76e79","rank":2,"n_ranks":4,"host":"h3","seq":2,"op":"AllGather","bytes":52,"start_ns":1724779239940000000,"end_ns":1724779239975811725,"exec_ns":12500000,"timing":"device_event","state":"completed"}`,
		`{"kind":"op","job":"t7","comm":"fr:0:0fe76e79","rank":2,"n_ranks":4,"host":"h3","seq":5,"op":"AllReduce","bytes":52,"start_ns":1724779239990000000,"state":"started"}`,
		`{"kind":"op","job":"t7","comm":"fr:0:0fe76e79","rank":2,"n_ranks":4,"host":"h3","seq":6,"op":"AllReduce","bytes":52,"start_ns":1724779239941775119,"state":"scheduled"}`,
		`{"kind":"op","job":"t7","comm":"fr:1:70727b4c","rank":1,"n_ranks":2,"host":"h3","seq":7,"op":"Send","bytes":52,"peer":0,"start_ns":1724779239938775119,"end_ns":1724779239975811726,"timing":"enqueue_watchdog","state":"completed"}`,
	}
	for _, file := range []string{"flightrecorder.pickle", "flightrecorder.json"} {
		dump, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		got := sortedRecords{t: t}
		counts, err := ccl.ReadFlightRecorder(bytes.NewReader(dump), publishedSource, 2, got.add, got.addBad)
		got.compare(file, slices.Clone(want))
		if err != nil || counts.Unreadable != 2 {
			t.Errorf("%s: %v, %+v, %q", file, err, counts, got.bad)
		}
	}
}

// TestKilledWriter: a writer that dies in a line and starts again swallows the dump_stats line after it. The operations behind
// it are given to no communicator.
func TestKilledWriter(t *testing.T) {
	lines := strings.SplitAfter(published, "\n")
	other := strings.Replace(lines[0], "0x7f8c496ae9f661", "0x1", 1)
	text := lines[0] + lines[1] + lines[2][:40] + other + lines[1] + lines[2]
	got := sortedRecords{t: t}
	counts, err := ccl.ReadInspector(strings.NewReader(text), publishedSource, got.add, got.addBad)
	if err != nil {
		t.Fatal(err)
	}
	ops := 0
	for _, line := range got.lines {
		if strings.Contains(line, `"kind":"op"`) {
			ops++
		}
	}
	if ops != 1 || len(got.bad) != 3 || counts.Dropped[ccl.DroppedHeader] != 2 {
		t.Errorf("%d operations, %q, %+v", ops, got.bad, counts)
	}
}
