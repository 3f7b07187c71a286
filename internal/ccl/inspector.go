package ccl

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/graylink/graylink/internal/fabric"
)

// Rules of files of NCCL's Inspector (NVIDIA/nccl, plugins/profiler/inspector, README.md and inspector_json.cc, read on
// 2026-11-27; formats v4.0 to v4.4):
//
//  1. Every line is a JSON object. To v4.2 an operation carries its header (communicator, rank) and metadata. From v4.3 on
//     only the dump_stats line before it does, which says how many lines follow. A line without either is refused.
//  2. Times are whole microseconds of the host. Without NCCL_INSPECTOR_DUMP_VERBOSE an operation has a duration and no times.
//     An operation lasts as long as its longest channel; it starts with its first one.
//  3. Only completed operations are written, and what a full ring overwrote is counted in dump_stats alone.
//  4. A transfer is summed up over its steps, which come before its end or within it. Where a step was lost the sums are
//     unknown, and not too small. A transfer that begins and does not end says nothing: records are lost as well.
//  5. "unknown" is what the Inspector writes for a name that it lacks.

// Source says where a file comes from: what the scheduler and the file's owner say, and never the file itself.
type Source struct {
	Job  string
	Host string
}

// Loss counts what was not read, by reason.
type Loss struct {
	Unreadable uint64 // lines or entries that are no record
	Dropped    uint64 // records that the library overwrote before they were written
	Missing    uint64 // lines that a dump_stats line announced and that are not there
	Truncated  uint64 // transfers that began and were forgotten, since there were too many
}

// Add adds what was not read of another file.
func (l *Loss) Add(other Loss) {
	l.Unreadable += other.Unreadable
	l.Dropped += other.Dropped
	l.Missing += other.Missing
	l.Truncated += other.Truncated
}

// maxOpenTransfers bounds the transfers of a file that have begun and not ended.
const maxOpenTransfers = 1 << 16

type inspectorHeader struct {
	ID       string `json:"id"`
	CommName string `json:"comm_name"`
	Rank     *int   `json:"rank"`
	NRanks   int    `json:"n_ranks"`
}

type inspectorOp struct {
	Coll         string  `json:"coll"`
	CollAlgo     string  `json:"coll_algo"`
	CollProto    string  `json:"coll_proto"`
	CollSN       *uint64 `json:"coll_sn"`
	CollBytes    *uint64 `json:"coll_msg_size_bytes"`
	CollExecUS   *int64  `json:"coll_exec_time_us"`
	CollTiming   string  `json:"coll_timing_source"`
	P2P          string  `json:"p2p"`
	P2PSN        *uint64 `json:"p2p_sn"`
	P2PPeer      *int    `json:"p2p_peer"`
	P2PBytes     *uint64 `json:"p2p_msg_size_bytes"`
	P2PExecUS    *int64  `json:"p2p_exec_time_us"`
	P2PTiming    string  `json:"p2p_timing_source"`
	EventTraceTS *struct {
		CollStart    int64 `json:"coll_start_ts"`
		P2PStart     int64 `json:"p2p_start_ts"`
		KernelEvents []struct {
			Start int64 `json:"kernel_start_ts"`
			Stop  int64 `json:"kernel_stop_ts"`
		} `json:"kernel_events"`
	} `json:"event_trace_ts"`
}

type inspectorStep struct {
	Bytes       *uint64 `json:"trans_size_bytes"`
	GPUProduce  *int64  `json:"gpu_produce_us"`
	PeerCredit  *int64  `json:"peer_credit_us"`
	Wire        *int64  `json:"wire_us"`
	Flush       *int64  `json:"flush_us"`
	GPUConsume  *int64  `json:"gpu_consume_us"`
	ProxyOpSN   *uint64 `json:"proxy_op_sn"`
	ProxyStepSN *uint64 `json:"proxy_step_sn"`
}

type inspectorProxy struct {
	inspectorStep
	RecordType string          `json:"record_type"`
	ParentType string          `json:"parent_type"`
	ParentSN   *uint64         `json:"parent_sn"`
	Channel    *int            `json:"channel_id"`
	Peer       *int            `json:"peer"`
	Direction  Direction       `json:"direction"`
	Completed  *uint64         `json:"n_steps_completed"`
	Dropped    uint64          `json:"n_steps_dropped"`
	Steps      []inspectorStep `json:"steps"`
	Times      struct {
		Start int64 `json:"proxy_op_start_ts"`
		Stop  int64 `json:"proxy_op_stop_ts"`
	} `json:"event_trace_ts"`
}

type inspectorStats struct {
	Coll         uint64 `json:"coll_records"`
	P2P          uint64 `json:"p2p_records"`
	Proxy        uint64 `json:"proxy_records"`
	CollDropped  uint64 `json:"coll_dropped_since_last_dump"`
	P2PDropped   uint64 `json:"p2p_dropped_since_last_dump"`
	ProxyDropped uint64 `json:"proxy_dropped_since_last_dump"`
	OpsDropped   uint64 `json:"proxy_ops_dropped_since_last_dump"`
}

// inspectorLine is a line of a file.
type inspectorLine struct {
	Header   *inspectorHeader `json:"header"`
	Metadata struct {
		Version string `json:"inspector_output_format_version"`
	} `json:"metadata"`
	Coll  *inspectorOp    `json:"coll_perf"`
	P2P   *inspectorOp    `json:"p2p_perf"`
	Proxy *inspectorProxy `json:"proxy_trace"`
	Stats *inspectorStats `json:"dump_stats"`
}

// marker is what a dump_stats line says of the lines after it.
type marker struct {
	header *inspectorHeader
	left   inspectorStats // the lines that are still to come, by kind
}

// transferKey names a transfer within a file.
type transferKey struct {
	comm string
	rank int
	sn   uint64
}

// sums are the waits of the steps of a transfer, in microseconds.
type sums struct {
	steps                  uint64
	gpu, peer, wire, flush int64
	partial                bool // a step lacks a time
}

// add adds a step.
func (s *sums) add(x *inspectorStep, direction Direction) {
	s.steps++
	parts := []*int64{x.GPUProduce, x.PeerCredit, x.Wire}
	into := []*int64{&s.gpu, &s.peer, &s.wire}
	if direction == Recv {
		parts, into = []*int64{x.Wire, x.Flush, x.GPUConsume}, []*int64{&s.wire, &s.flush, &s.gpu}
	}
	for i, us := range parts {
		if us == nil || *us < 0 {
			s.partial = true
			continue
		}
		*into[i] += *us
	}
}

// InspectorReader turns the lines of one file of NCCL's Inspector into records.
type InspectorReader struct {
	from   Source
	emit   func(Record)
	marker marker
	comms  map[string]bool // whose record was emitted
	open   map[transferKey]*sums
	loss   Loss
}

// NewInspectorReader returns a reader for a file, which hands records to emit.
func NewInspectorReader(from Source, emit func(Record)) *InspectorReader {
	return &InspectorReader{from: from, emit: emit, comms: map[string]bool{}, open: map[transferKey]*sums{}}
}

// Loss returns what was not read so far.
func (r *InspectorReader) Loss() Loss { return r.loss }

// Finish counts the lines that were announced and did not come. The file has ended.
func (r *InspectorReader) Finish() Loss {
	r.endMarker()
	return r.loss
}

// endMarker counts what the lines after a dump_stats line lack.
func (r *InspectorReader) endMarker() {
	r.loss.Missing += r.marker.left.Coll + r.marker.left.P2P + r.marker.left.Proxy
	r.marker = marker{}
}

// ReadLine reads a line. An error says what of it cannot be used: it is counted, and the line is skipped.
func (r *InspectorReader) ReadLine(text []byte) error {
	err := r.readLine(text)
	if err != nil {
		r.loss.Unreadable++
	}
	return err
}

func (r *InspectorReader) readLine(text []byte) error {
	var line inspectorLine
	if err := json.Unmarshal(text, &line); err != nil {
		return fabric.DescribeJSONError(err)
	}
	if line.Stats != nil {
		return r.readStats(&line)
	}
	h, err := r.headerOf(&line)
	if err != nil {
		return err
	}
	switch {
	case line.Coll != nil:
		return r.readOp(h, line.Coll, false)
	case line.P2P != nil:
		return r.readOp(h, line.P2P, true)
	case line.Proxy != nil:
		return r.readProxy(h, line.Proxy)
	}
	return fmt.Errorf("fields %q, %q, %q and %q: one is required", "coll_perf", "p2p_perf", "proxy_trace", "dump_stats")
}

// readStats reads the line before the lines of a communicator.
func (r *InspectorReader) readStats(line *inspectorLine) error {
	r.endMarker()
	if line.Header == nil {
		return fieldError("header", "dump_stats needs it")
	}
	s := *line.Stats
	r.loss.Dropped += s.CollDropped + s.P2PDropped + s.ProxyDropped + s.OpsDropped
	switch line.Metadata.Version {
	case "v4.0", "v4.1", "v4.2":
		return nil // the lines after it carry what they need
	}
	const most = 1 << 32 // lines of a dump, far above any ring
	if s.Coll > most || s.P2P > most || s.Proxy > most {
		return fieldError("dump_stats", "no dump has more than %d lines of a kind", uint64(most))
	}
	r.marker = marker{header: line.Header, left: s}
	return nil
}

// headerOf returns the header of a line, or that of the dump_stats line before it.
func (r *InspectorReader) headerOf(line *inspectorLine) (*inspectorHeader, error) {
	if line.Header != nil {
		return line.Header, nil
	}
	if r.marker.header == nil {
		return nil, fieldError("header", "it is required, since no dump_stats line is before this one")
	}
	left := &r.marker.left.Coll
	switch {
	case line.P2P != nil:
		left = &r.marker.left.P2P
	case line.Proxy != nil:
		left = &r.marker.left.Proxy
	}
	if *left == 0 {
		return nil, fmt.Errorf("the dump_stats line announced fewer lines of this kind")
	}
	*left--
	return r.marker.header, nil
}

// fromHeader returns who reports, and emits the communicator once.
func (r *InspectorReader) fromHeader(h *inspectorHeader) (From, error) {
	if h.Rank == nil {
		return From{}, fieldError("header.rank", "a rank is required")
	}
	f := From{Job: r.from.Job, Comm: h.ID, Rank: *h.Rank, NRanks: h.NRanks, Host: r.from.Host}
	if err := f.check(); err != nil {
		return f, err
	}
	if !r.comms[h.ID] {
		c := &Comm{Job: f.Job, Comm: h.ID, Name: known(h.CommName), NRanks: h.NRanks, Ranks: []Member{{Rank: f.Rank, Host: f.Host}}}
		if err := c.check(); err != nil {
			return f, err
		}
		r.comms[h.ID] = true
		r.emit(c)
	}
	return f, nil
}

// known returns a name, or nothing for one that the Inspector lacks.
func known(name string) string {
	if name == "unknown" {
		return ""
	}
	return name
}

const nsPerUS = 1000

// maxMicroseconds bounds a number of microseconds, so that it is one of nanoseconds as well: until the year 2262.
const maxMicroseconds = 1<<63/nsPerUS - 1

// fromMicroseconds returns a time or a duration. Zero and below is unknown, as the Inspector has it for times.
func fromMicroseconds(us int64) Nanos {
	if us <= 0 || us > maxMicroseconds {
		return Nanos{}
	}
	return KnownNanos(us * nsPerUS)
}

// readOp reads a completed operation.
func (r *InspectorReader) readOp(h *inspectorHeader, x *inspectorOp, p2p bool) error {
	from, err := r.fromHeader(h)
	if err != nil {
		return err
	}
	o := &Op{From: from, Seq: absentSeq, Op: x.Coll, Algo: known(x.CollAlgo), Proto: known(x.CollProto), Bytes: x.CollBytes, Timing: known(x.CollTiming), State: Completed}
	sn, exec := x.CollSN, x.CollExecUS
	if p2p {
		o.Op, o.Algo, o.Proto, o.Bytes, o.Timing, o.Peer = x.P2P, "", "", x.P2PBytes, known(x.P2PTiming), x.P2PPeer
		sn, exec = x.P2PSN, x.P2PExecUS
	}
	if sn != nil {
		o.Seq = *sn
	}
	if exec == nil || *exec < 0 || *exec > maxMicroseconds {
		return fieldError("coll_exec_time_us or p2p_exec_time_us", "a number of microseconds is required")
	}
	o.ExecNS = KnownNanos(*exec * nsPerUS)
	if t := x.EventTraceTS; t != nil {
		start, end := max(t.CollStart, t.P2PStart), int64(0)
		for i, k := range t.KernelEvents {
			if k.Start > 0 && (i == 0 || k.Start < start) {
				start = k.Start
			}
			end = max(end, k.Stop)
		}
		o.StartNS = fromMicroseconds(start)
		if end >= start {
			o.EndNS = fromMicroseconds(end)
		}
	}
	if err := o.check(); err != nil {
		return err
	}
	r.emit(o)
	return nil
}

// readProxy reads a part of a transfer, or its end.
func (r *InspectorReader) readProxy(h *inspectorHeader, x *inspectorProxy) error {
	from, err := r.fromHeader(h)
	if err != nil {
		return err
	}
	if x.ProxyOpSN == nil {
		return fieldError("proxy_op_sn", "the number of the transfer is required")
	}
	key := transferKey{from.Comm, from.Rank, *x.ProxyOpSN}
	s := r.open[key]
	if s == nil {
		s = &sums{}
	}
	switch x.RecordType {
	case "proxy_op_start":
	case "proxy_step":
		s.add(&x.inspectorStep, x.Direction)
	case "proxy_op_segment", "proxy_op":
		for i := range x.Steps {
			s.add(&x.Steps[i], x.Direction)
		}
	default:
		return fieldError("record_type", "proxy_op_start, proxy_op_segment, proxy_step or proxy_op is expected, and not %q", x.RecordType)
	}
	if x.RecordType != "proxy_op" {
		if r.open[key] == nil && len(r.open) >= maxOpenTransfers {
			r.loss.Truncated++
			return nil
		}
		r.open[key] = s
		return nil
	}
	delete(r.open, key)
	return r.emitTransfer(from, x, s)
}

// emitTransfer emits a transfer that has ended.
func (r *InspectorReader) emitTransfer(from From, x *inspectorProxy, s *sums) error {
	if x.ParentSN == nil || x.Peer == nil {
		return fieldError("parent_sn and peer", "both are required")
	}
	e := &Edge{From: from, Seq: *x.ParentSN, Peer: *x.Peer, Direction: x.Direction, Channel: x.Channel, Bytes: x.Bytes, State: string(Completed),
		StartNS: fromMicroseconds(x.Times.Start), EndNS: fromMicroseconds(x.Times.Stop)}
	if complete := !s.partial && s.steps > 0 && x.Dropped == 0 && x.Completed != nil && *x.Completed == s.steps; complete {
		wait := func(us int64) Nanos { return KnownNanos(min(us, maxMicroseconds) * nsPerUS) }
		e.GPUWait, e.Wire = wait(s.gpu), wait(s.wire)
		if x.Direction == Send {
			e.PeerWait = wait(s.peer)
		} else {
			e.Flush = wait(s.flush)
		}
	}
	if err := e.check(); err != nil {
		return err
	}
	if !slices.Contains([]string{"coll", "p2p"}, x.ParentType) {
		return fieldError("parent_type", "coll or p2p is expected, and not %q", x.ParentType)
	}
	r.emit(e)
	return nil
}
