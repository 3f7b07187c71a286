// Package ccltest writes what collective libraries write: files of the Inspector in each version, dumps of Flight Recorder
// as pickles and as JSON, and the answers of a RAS service, whole or broken. Tests and simulations use it in place of
// libraries that need GPUs.
package ccltest

import (
	"fmt"
	"strconv"

	"github.com/graylink/graylink/internal/ccl"
)

// Dump is what the Inspector writes of one rank of a communicator at once.
type Dump struct {
	AtNS    int64 // time of the dump, in nanoseconds
	Comm    ccl.Comm
	Rank    int
	Ops     []*ccl.Op   // completed ones
	Edges   []*ccl.Edge // completed ones; only versions from 4.3 on have them
	Dropped uint64      // operations that were lost since the last dump
	Verbose bool        // with the times of operations
}

// Versions are those of the Inspector's format that AppendDump writes.
var Versions = []string{"v4.0", "v4.1", "v4.2", "v4.3", "v4.4"}

// AppendDump appends the lines of a dump in a version. Times are written in whole microseconds.
func AppendDump(to []byte, version string, d Dump) []byte {
	context := func(named bool) string {
		name := ""
		if named {
			name = fmt.Sprintf(`"comm_name":%s,`, text(d.Comm.Name))
		}
		return fmt.Sprintf(`"header":{"id":%s,%s"rank":%d,"n_ranks":%d,"nnodes":2},"metadata":{"inspector_output_format_version":%q,"git_rev":"","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":%d,"hostname":"pod-%d","pid":%d}`,
			text(d.Comm.Comm), name, d.Rank, d.Comm.NRanks, version, d.AtNS/1000, d.Rank, 1000+d.Rank)
	}
	perLine := context(version >= "v4.2") + ","
	colls := 0
	for _, o := range d.Ops {
		if o.Peer == nil {
			colls++
		}
	}
	var transfers []byte
	lines := 0
	if version >= "v4.3" {
		perLine = ""
		for i, e := range d.Edges {
			var n int
			transfers, n = appendTransfer(transfers, e, i, version >= "v4.4")
			lines += n
		}
	}
	if version >= "v4.2" {
		proxies := ""
		if version >= "v4.3" && len(d.Edges) > 0 {
			proxies = fmt.Sprintf(`,"proxy_records":%d,"proxy_dropped_total":0,"proxy_dropped_since_last_dump":0`, lines)
		}
		to = fmt.Appendf(to, `{%s,"dump_stats":{"coll_records":%d,"coll_dropped_total":%d,"coll_dropped_since_last_dump":%d,"p2p_records":%d,"p2p_dropped_total":0,"p2p_dropped_since_last_dump":0%s}}`+"\n",
			context(true), colls, d.Dropped, d.Dropped, len(d.Ops)-colls, proxies)
	}
	for _, p2p := range []bool{false, true} {
		for _, o := range d.Ops {
			if (o.Peer != nil) == p2p {
				to = appendOp(append(append(to, '{'), perLine...), version, d.Verbose, o)
			}
		}
	}
	return append(to, transfers...)
}

// text returns a JSON string, "unknown" if it is empty, as the Inspector writes it.
func text(s string) string {
	if s == "" {
		s = "unknown"
	}
	return strconv.Quote(s)
}

// appendOp appends the rest of an operation's line.
func appendOp(to []byte, version string, verbose bool, o *ccl.Op) []byte {
	p := "coll"
	if o.Peer != nil {
		p = "p2p"
	}
	to = fmt.Appendf(to, `"%s_perf":{"%s":%q,`, p, p, o.Op)
	if o.Peer != nil {
		to = fmt.Appendf(to, `"p2p_sn":%d,"p2p_peer":%d,`, o.Seq, *o.Peer)
	} else {
		if version >= "v4.2" {
			to = fmt.Appendf(to, `"coll_algo":%s,"coll_proto":%s,`, text(o.Algo), text(o.Proto))
		}
		to = fmt.Appendf(to, `"coll_sn":%d,`, o.Seq)
	}
	bytes := uint64(0)
	if o.Bytes != nil {
		bytes = *o.Bytes
	}
	to = fmt.Appendf(to, `"%s_msg_size_bytes":%d,"%s_exec_time_us":%d,"%s_timing_source":%s,"%s_algobw_gbs":277.210914,"%s_busbw_gbs":485.119099`, p, bytes, p, o.ExecNS.NS/1000, p, text(o.Timing), p, p)
	if verbose {
		start, stop := o.StartNS.NS/1000, o.EndNS.NS/1000
		to = fmt.Appendf(to, `,"event_trace_sn":{"%s_start_sn":1,"%s_stop_sn":2,"kernel_events":[{"channel_id":0,"kernel_start_sn":3,"kernel_stop_sn":48,"kernel_record_sn":47},{"channel_id":1,"kernel_start_sn":4,"kernel_stop_sn":49,"kernel_record_sn":46}]}`, p, p)
		to = fmt.Appendf(to, `,"event_trace_ts":{"%s_start_ts":%d,"%s_stop_ts":%d,"kernel_events":[{"channel_id":0,"kernel_start_ts":%d,"kernel_stop_ts":%d,"kernel_record_ts":%d},{"channel_id":1,"kernel_start_ts":%d,"kernel_stop_ts":%d,"kernel_record_ts":%d}]}`,
			p, start-9, p, start-4, start, stop-1, stop, start+1, stop, stop)
	}
	return append(to, "}}\n"...)
}

// appendTransfer appends the lines of a transfer, in two steps, and returns how many lines they are.
func appendTransfer(to []byte, e *ccl.Edge, sn int, nested bool) ([]byte, int) {
	parent := "coll"
	if e.Op == "Send" || e.Op == "Recv" {
		parent = "p2p"
	}
	channel, bytes := 0, uint64(0)
	if e.Channel != nil {
		channel = *e.Channel
	}
	if e.Bytes != nil {
		bytes = *e.Bytes
	}
	head := func(record string, line int) string {
		return fmt.Sprintf(`{"proxy_trace":{"record_type":%q,"record_sn":%d,"parent_type":%q,"parent_sn":%d,"proxy_op_sn":%d,"channel_id":%d,"peer":%d,"direction":%q,"timing_source":"proxy_cpu"`,
			record, 10*sn+line, parent, e.Seq, sn, channel, e.Peer, e.Direction)
	}
	// Half of each wait is in each of two steps.
	step := func(i int) string {
		s := fmt.Sprintf(`"proxy_step_sn":%d,"step":%d,"trans_size_bytes":%d,"total_us":40`, i+1, i, bytes/2)
		for _, w := range []struct {
			name string
			wait ccl.Nanos
		}{{waitName(e.Direction), e.GPUWait}, {"peer_credit_us", e.PeerWait}, {"wire_us", e.Wire}, {"flush_us", e.Flush}} {
			if us := w.wait.NS / 1000; w.wait.Known {
				s += fmt.Sprintf(`,%q:%d`, w.name, us/2+int64(i)*(us%2))
			}
		}
		return s
	}
	final := fmt.Sprintf(`,"rank":%d,"n_steps":2,"chunk_size_bytes":1048576,"n_steps_started":2,"n_steps_completed":2,"n_steps_dropped":0,"trans_size_bytes":%d,"total_us":70,"event_trace_ts":{"proxy_op_start_ts":%d,"proxy_op_stop_ts":%d}`,
		e.Rank, bytes, e.StartNS.NS/1000, e.EndNS.NS/1000)
	if !nested {
		for i := range 2 {
			to = fmt.Appendf(to, "%s,%s}}\n", head("proxy_step", i), step(i))
		}
		return fmt.Appendf(to, "%s%s}}\n", head("proxy_op", 2), final), 3
	}
	to = fmt.Appendf(to, "%s,\"is_final\":false,\"n_steps\":2,\"event_trace_ts\":{\"proxy_op_start_ts\":%d}}}\n", head("proxy_op_start", 0), e.StartNS.NS/1000)
	to = fmt.Appendf(to, "%s,\"is_final\":false,\"steps\":[{%s}]}}\n", head("proxy_op_segment", 1), step(0))
	return fmt.Appendf(to, "%s,\"is_final\":true%s,\"steps\":[{%s}]}}\n", head("proxy_op", 2), final, step(1)), 3
}

func waitName(d ccl.Direction) string {
	if d == ccl.Send {
		return "gpu_produce_us"
	}
	return "gpu_consume_us"
}
