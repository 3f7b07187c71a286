// Package ccltest writes what collective libraries write, for tests of its readers.
package ccltest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/graylink/graylink/internal/ccl"
)

// Inspector writes files of NCCL's Inspector in a format from v4.0 to v4.4.
type Inspector struct {
	Version string
	// Verbose adds the times of operations.
	Verbose bool
	// Flat writes the steps of transfers as lines of their own, as v4.3 does.
	Flat bool
	// Steps is how many steps a transfer has.
	Steps int
}

// object keeps the order of its keys.
type object []any

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := 0; i < len(o); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		value, err := json.Marshal(o[i+1])
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", o[i], value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// isMarked reports whether only the dump_stats line has the header.
func (w *Inspector) isMarked() bool { return w.Version >= "v4.3" }

func (w *Inspector) header(f *ccl.From, name string) object {
	h := object{"id", f.Comm}
	if w.Version >= "v4.1" {
		h = append(h, "comm_name", name)
	}
	return append(h, "rank", f.Rank, "n_ranks", f.NRanks, "nnodes", 1)
}

func (w *Inspector) metadata(atUS int64) object {
	return object{"inspector_output_format_version", w.Version, "git_rev", "", "rec_mechanism", "nccl_profiler_interface", "dump_timestamp_us", atUS, "hostname", "pod-name", "pid", 1639453}
}

// Dump returns what one rank writes of its operations and transfers, all of one communicator.
func (w *Inspector) Dump(name string, ops []*ccl.Op, edges []*ccl.Edge, dropped uint64) []byte {
	var lines bytes.Buffer
	line := func(o object) {
		text, err := json.Marshal(o)
		if err != nil {
			panic(err)
		}
		lines.Write(append(text, '\n'))
	}
	from := ops[0].From
	context := object{"header", w.header(&from, name), "metadata", w.metadata(ops[len(ops)-1].EndNS.NS / 1000)}
	colls, p2ps := 0, 0
	for _, o := range ops {
		if o.Peer != nil {
			p2ps++
		} else {
			colls++
		}
	}
	proxy := 0
	if w.isMarked() {
		proxy = len(edges)
		if w.Flat {
			proxy *= w.Steps + 1
		}
	}
	if w.Version >= "v4.2" {
		line(append(slices.Clone(context), "dump_stats", object{"coll_records", colls, "coll_dropped_total", dropped, "coll_dropped_since_last_dump", dropped, "p2p_records", p2ps, "p2p_dropped_total", 0, "p2p_dropped_since_last_dump", 0, "proxy_records", proxy}))
	}
	if w.isMarked() {
		context = nil
	}
	for _, o := range ops {
		if o.Peer == nil {
			line(append(slices.Clone(context), "coll_perf", w.operation("coll", o)))
		}
	}
	for _, o := range ops {
		if o.Peer != nil {
			line(append(slices.Clone(context), "p2p_perf", w.operation("p2p", o)))
		}
	}
	if w.isMarked() {
		for i, e := range edges {
			w.transfer(e, i, func(x object) { line(object{"proxy_trace", x}) })
		}
	}
	return lines.Bytes()
}

// operation returns the object of an operation, whose longest channel is the second.
func (w *Inspector) operation(kind string, o *ccl.Op) object {
	us := func(ns int64) int64 { return ns / 1000 }
	x := object{kind, o.Op}
	if kind == "coll" {
		x = append(x, "coll_algo", orUnknown(o.Algo), "coll_proto", orUnknown(o.Proto))
	}
	x = append(x, kind+"_sn", o.Seq)
	if o.Peer != nil {
		x = append(x, "p2p_peer", *o.Peer)
	}
	x = append(x, kind+"_msg_size_bytes", *o.Bytes, kind+"_exec_time_us", us(o.ExecNS.NS), kind+"_timing_source", o.Timing, kind+"_algobw_gbs", 1.5, kind+"_busbw_gbs", 2.625)
	if w.Verbose {
		start, end := us(o.StartNS.NS), us(o.EndNS.NS)
		x = append(x, "event_trace_sn", object{kind + "_start_sn", 1, kind + "_stop_sn", 2, "kernel_events", []object{}},
			"event_trace_ts", object{kind + "_start_ts", start - 5, kind + "_stop_ts", start - 1, "kernel_events", []object{
				{"channel_id", 0, "kernel_start_ts", start, "kernel_stop_ts", end - 7, "kernel_record_ts", end - 7},
				{"channel_id", 1, "kernel_start_ts", start + 2, "kernel_stop_ts", end, "kernel_record_ts", end}}})
	}
	return x
}

func orUnknown(name string) string {
	if name == "" {
		return "unknown"
	}
	return name
}

// transfer writes the lines of a transfer. Its waits are spread over its steps.
func (w *Inspector) transfer(e *ccl.Edge, sn int, line func(object)) {
	of := object{"parent_type", "coll", "parent_sn", e.Seq, "proxy_op_sn", sn, "channel_id", *e.Channel, "peer", e.Peer, "direction", string(e.Direction)}
	part := func(n ccl.Nanos, i int) int64 {
		all := n.NS / 1000
		share := all / int64(w.Steps)
		if i == 0 {
			share += all % int64(w.Steps)
		}
		return share
	}
	var steps []object
	for i := range w.Steps {
		s := object{"proxy_step_sn", i + 1, "step", i, "trans_size_bytes", *e.Bytes / uint64(w.Steps), "total_us", 1}
		if e.Direction == ccl.Send {
			s = append(s, "gpu_produce_us", part(e.GPUWait, i), "peer_credit_us", part(e.PeerWait, i), "wire_us", part(e.Wire, i))
		} else {
			s = append(s, "wire_us", part(e.Wire, i), "flush_us", part(e.Flush, i), "gpu_consume_us", part(e.GPUWait, i))
		}
		steps = append(steps, s)
	}
	end := object{"record_type", "proxy_op", "record_sn", 1}
	end = append(append(end, of...), "rank", e.Rank, "n_steps", w.Steps, "n_steps_started", w.Steps, "n_steps_completed", w.Steps, "n_steps_dropped", 0, "trans_size_bytes", *e.Bytes, "timing_source", "proxy_cpu",
		"event_trace_ts", object{"proxy_op_start_ts", e.StartNS.NS / 1000, "proxy_op_stop_ts", e.EndNS.NS / 1000})
	if w.Flat {
		for _, s := range steps {
			line(append(append(object{"record_type", "proxy_step", "record_sn", 1}, of...), s...))
		}
		line(end)
		return
	}
	line(append(end, "is_final", true, "steps", steps))
}
