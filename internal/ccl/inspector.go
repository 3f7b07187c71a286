package ccl

import (
	"bytes"
	"errors"
	"maps"
	"strconv"
	"time"
)

// Inspector reads what the Inspector, a profiler plugin of NCCL and RCCL, writes: a JSON object on each line, times in
// microseconds. Everything here is as in NVIDIA/nccl, plugins/profiler/inspector/inspector_json.cc, read on 2026-11-27:
//
//   - Version 4.0 (NCCL 2.28, and ROCm/rccl in ext-profiler/inspector): each line has header, metadata and coll_perf, or
//     p2p_perf since 4.1. Version 4.2 adds comm_name, coll_algo and coll_proto, and a line with dump_stats before each dump.
//   - Version 4.3 (pull request #2359, not merged): only the line with dump_stats has header and metadata, which the lines
//     behind it inherit, as many as dump_stats counts. proxy_trace has the transfers between two ranks. 4.4 is the head of
//     the same request: steps are in an array within the transfer, and a long transfer has several lines.
//
// An Inspector is of one file. inspector_json_reader.py of NVIDIA is the reference for what belongs to which dump.
type Inspector struct {
	emitter
	src    Source
	scan   scanner
	line   inspectorLine
	names  map[string]string
	comms  map[inspectorRank]*inspectorComm
	room   *inspectorRoom
	beyond inspectorComm // stands for all communicators for which there is no room

	head     []byte         // text of the header that was read last
	headComm *inspectorComm // of head

	dump      *inspectorComm // communicator of the dump that was begun
	inherits  bool           // lines of the dump have no header
	remaining [3]uint64      // lines that the dump still has, by kind
	transfers map[transferKey]*transfer
}

// inspectorRank is a rank of a communicator.
type inspectorRank struct {
	comm string
	rank int
}

// inspectorRoom is how much more the readers of some files may hold. Users write the files, so all of it is bounded.
type inspectorRoom struct{ comms, names, transfers int }

func newInspectorRoom() *inspectorRoom { return &inspectorRoom{MaxComms, maxNames, maxTransfers} }

// inspectorComm is what is known of a rank of a communicator.
type inspectorComm struct {
	From
	beatAt    int64             // time of the last beat, in nanoseconds
	completed map[string]uint64 // operations by kind: one more than the highest number
	err       error             // why no record of it can be made
}

// transferKey names a transfer whose end was not read yet.
type transferKey struct {
	comm *inspectorComm
	sn   uint64
}

const (
	maxTransfers = 1 << 16         // under way, in the files that share their room
	maxNames     = 1 << 12         // texts that are kept once, likewise
	beatEvery    = time.Second     // shortest time between two beats of a rank
	absentCount  = absentSeq       // a counter that a line does not have
	unknownText  = "unknown"       // what the Inspector writes for an absent text
	never        = -int64(1) << 62 // time of the last beat when there was none
)

// Kinds of lines that dump_stats counts.
const (
	collLine = iota
	p2pLine
	proxyLine
	statsLine
	noLine
)

// lineNames are the members that make a line of a kind.
var lineNames = [...]string{"coll_perf", "p2p_perf", "proxy_trace", "dump_stats"}

// inspectorLine is what one line says.
type inspectorLine struct {
	kind            int
	hasHeader, hasM bool
	inherits        bool // the version is one whose lines behind dump_stats have no header
	dumpedAt        Nanos
	others          int // members that are no header, metadata or payload
	op              Op
	bytes           uint64
	hasBytes        bool
	peer            int
	hasExec         bool
	coll            span // of the host's call
	kernel          span // of the kernels of all channels
	proxy           proxyTrace
	records         [3]uint64 // lines that follow, by kind
	dropped         uint64
}

// span is from the earliest start to the latest stop.
type span struct{ start, stop Nanos }

func (s *span) begin(t Nanos) {
	if t.Known && (!s.start.Known || t.NS < s.start.NS) {
		s.start = t
	}
}

func (s *span) end(t Nanos) {
	if t.Known && (!s.stop.Known || t.NS > s.stop.NS) {
		s.stop = t
	}
}

// proxyTrace is one line of a transfer.
type proxyTrace struct {
	record, parent string
	parentSN, sn   uint64
	channel, peer  int
	direction      Direction
	bytes          uint64
	hasBytes       bool
	span           span
	completed      uint64 // steps of the whole transfer
	lost           uint64 // steps of the whole transfer that no line has
	waits          waits
}

// waits are the sums of the times of some steps.
type waits struct {
	steps                  uint64
	gpu, peer, wire, flush waitSum
}

// waitSum is the sum of a time over the steps that have it.
type waitSum struct {
	ns    int64
	steps uint64
}

func (s *waitSum) add(n Nanos) {
	if n.Known {
		s.ns, s.steps = s.ns+n.NS, s.steps+1
	}
}

// add adds the steps of another line.
func (w *waits) add(o *waits) {
	w.steps += o.steps
	for _, x := range []struct{ to, from *waitSum }{{&w.gpu, &o.gpu}, {&w.peer, &o.peer}, {&w.wire, &o.wire}, {&w.flush, &o.flush}} {
		x.to.ns, x.to.steps = x.to.ns+x.from.ns, x.to.steps+x.from.steps
	}
}

// of returns a sum, which is unknown if a step lacks the time: it would be too small.
func (w *waits) of(s *waitSum) Nanos {
	if s.steps == 0 || s.steps != w.steps {
		return Nanos{}
	}
	return KnownNanos(s.ns)
}

// transfer is a transfer whose end was not read yet.
type transfer struct {
	edge  *Edge
	waits waits
}

// NewInspector returns a reader of one file whose records are handed to out.
func NewInspector(src Source, out func(Record) error) *Inspector {
	return newInspector(src, newInspectorRoom(), out)
}

// newInspector returns a reader that shares its room with others.
func newInspector(src Source, room *inspectorRoom, out func(Record) error) *Inspector {
	return &Inspector{emitter: emitter{out: out}, src: src, room: room, names: map[string]string{}, comms: map[inspectorRank]*inspectorComm{}, transfers: map[transferKey]*transfer{}, beyond: inspectorComm{err: errTooManyComms}}
}

// name returns a text that is kept once.
func (in *Inspector) name(text []byte) string {
	if s, ok := in.names[string(text)]; ok {
		return s
	}
	s := string(text)
	if in.room.names > 0 && len(s) <= MaxString {
		in.room.names--
		in.names[s] = s
	}
	return s
}

// known returns a text as name does, and an empty one for what the Inspector does not know.
func (in *Inspector) known(text []byte) string {
	if s := in.name(text); s != unknownText {
		return s
	}
	return ""
}

// Errors of lines that cannot belong to a dump.
var (
	errNoPayload = errors.New("one of coll_perf, p2p_perf, proxy_trace and dump_stats is expected")
	errNoContext = errors.New("the line has no header, and no dump_stats of version 4.3 before it")
	errBeyond    = errors.New("more lines than dump_stats counts")
)

// ReadLine reads one line. An error says what is wrong with the line, which is then skipped; that of the function that
// takes the records is the exception, and ends the reading.
func (in *Inspector) ReadLine(line []byte) error {
	in.Lines++
	if bytes.HasPrefix(line, []byte(`{"kind":"`)) {
		return in.readRecord(line)
	}
	comm, err := in.parse(line)
	l := &in.line
	if err != nil {
		if in.inherits {
			in.Finish() // the line may have been the dump_stats of another communicator
		}
		return err
	}
	if l.kind == noLine {
		return errNoPayload
	}
	if l.kind == statsLine {
		return in.beginDump(comm)
	}
	if in.inherits {
		if l.hasHeader || l.hasM || l.others > 0 {
			return fieldError(lineNames[l.kind], "no other member is expected in a line of this version")
		}
		if in.remaining[l.kind] == 0 {
			return errBeyond
		}
		in.remaining[l.kind]--
		comm = in.dump
	} else if comm != nil && comm == in.dump && in.remaining[l.kind] > 0 {
		in.remaining[l.kind]--
	}
	if comm == nil {
		in.drop(DroppedHeader, 1)
		return errNoContext
	}
	if comm.err != nil {
		if comm == &in.beyond {
			in.drop(DroppedComm, 1)
		}
		return comm.err
	}
	if !in.inherits {
		if err := in.beat(comm); err != nil {
			return err
		}
	}
	if l.kind == proxyLine {
		return in.addTransfer(comm)
	}
	return in.emitOp(comm)
}

// readRecord reads a line that is a record already, as graylink lab job writes. Whose it is, is said by the source.
func (in *Inspector) readRecord(line []byte) error {
	rec, err := ParseRecord(line)
	if err != nil {
		return err
	}
	own(rec, in.src)
	return in.emit(rec)
}

// beginDump takes the counts of a line with dump_stats.
func (in *Inspector) beginDump(comm *inspectorComm) error {
	in.Finish()
	in.drop(DroppedByWriter, in.line.dropped)
	if comm == nil {
		return errNoContext
	}
	in.dump, in.inherits, in.remaining = comm, in.line.inherits, in.line.records
	if comm.err != nil {
		return comm.err
	}
	return in.beat(comm)
}

// Finish counts what the last dump of the file should have had besides. More lines may follow, if the file grows.
func (in *Inspector) Finish() {
	for _, n := range in.remaining {
		in.drop(DroppedDump, n)
	}
	in.dump, in.inherits, in.remaining = nil, false, [3]uint64{}
}

// Restart forgets what earlier lines said of later ones. A file that was truncated or replaced begins anew.
func (in *Inspector) Restart() {
	in.Finish()
	in.drop(DroppedDump, uint64(len(in.transfers)))
	in.room.transfers += len(in.transfers)
	clear(in.transfers)
}

// close ends the file, and leaves its room to others.
func (in *Inspector) close() {
	in.Restart()
	in.room.comms, in.room.names = in.room.comms+len(in.comms), in.room.names+len(in.names)
}

// beat emits that the rank was alive when it wrote, at most once in beatEvery.
func (in *Inspector) beat(c *inspectorComm) error {
	at := in.line.dumpedAt
	if !at.Known || at.NS-c.beatAt < int64(beatEvery) {
		return nil
	}
	c.beatAt = at.NS
	alive := true
	return in.emit(&Beat{From: c.From, AtNS: at, Alive: &alive, Completed: maps.Clone(c.completed)})
}

// emitOp emits the operation of the line.
func (in *Inspector) emitOp(c *inspectorComm) error {
	l := &in.line
	op := l.op
	op.From, op.State = c.From, Completed
	if !l.hasExec {
		return fieldError(lineNames[l.kind], "its execution time is expected")
	}
	if l.hasBytes {
		op.Bytes = new(l.bytes)
	}
	if l.kind == p2pLine {
		op.Peer = new(l.peer)
	}
	at := l.kernel
	if !at.start.Known {
		at.start = l.coll.start
		if op.Timing == "collective_cpu" {
			at.stop = l.coll.stop
		}
	}
	if checkSpan(at.start, at.stop) == nil {
		op.StartNS, op.EndNS = at.start, at.stop
	}
	if err := in.emit(&op); err != nil {
		return err
	}
	if n := op.Seq + 1; n > c.completed[op.Op] && (len(c.completed) < 64 || c.completed[op.Op] > 0) {
		c.completed[op.Op] = n
	}
	return nil
}

// addTransfer adds a line of a transfer to what is known of it, and emits the transfer with its last line.
func (in *Inspector) addTransfer(c *inspectorComm) error {
	p := &in.line.proxy
	key := transferKey{c, p.sn}
	x, begun := in.transfers[key]
	if !begun {
		if p.parent != "coll" && p.parent != "p2p" {
			in.drop(DroppedParent, 1)
			return nil
		}
		x = &transfer{edge: &Edge{From: c.From, Seq: p.parentSN, Peer: p.peer, Direction: p.direction, Channel: new(p.channel), State: string(Completed)}}
		// Numbers of collectives count by kind, and a transfer does not say the kind.
		if p.parent == "p2p" {
			x.edge.Op = map[Direction]string{Send: "Send", Recv: "Recv"}[p.direction]
		}
		if err := x.edge.check(); err != nil {
			return err
		}
	}
	x.waits.add(&p.waits)
	if p.record != "proxy_op" {
		if begun {
			return nil
		}
		if in.room.transfers == 0 {
			in.drop(DroppedTransfer, 1)
			return nil
		}
		in.room.transfers--
		in.transfers[key] = x
		return nil
	}
	if begun {
		in.room.transfers++
		delete(in.transfers, key)
	}
	e := x.edge
	if w := &x.waits; w.steps == p.completed && p.lost == 0 {
		e.GPUWait, e.PeerWait, e.Wire, e.Flush = w.of(&w.gpu), w.of(&w.peer), w.of(&w.wire), w.of(&w.flush)
	}
	if p.hasBytes {
		e.Bytes = new(p.bytes)
	}
	if checkSpan(p.span.start, p.span.stop) == nil {
		e.StartNS, e.EndNS = p.span.start, p.span.stop
	}
	return in.emit(e)
}

// comm returns the communicator of a header, and emits it when it is new.
func (in *Inspector) comm(id, name []byte, rank, ranks int) *inspectorComm {
	key := inspectorRank{in.name(id), rank}
	c := in.comms[key]
	if c != nil && c.NRanks == ranks {
		return c
	}
	if c == nil && in.room.comms == 0 {
		return &in.beyond
	}
	if c == nil {
		in.room.comms--
	}
	c = &inspectorComm{From: From{Job: in.src.Job, Comm: key.comm, Rank: rank, NRanks: ranks, Host: in.src.Host}, beatAt: never, completed: map[string]uint64{}}
	if c.err = c.check(); c.err == nil {
		rec := &Comm{Job: c.Job, Comm: c.Comm, Name: in.known(name), NRanks: ranks}
		if c.Host != "" {
			rec.Ranks = []Member{{Rank: rank, Host: c.Host}}
		}
		c.err = in.emit(rec)
	}
	in.comms[key] = c
	return c
}

// errTooManyComms is the error of a communicator beyond MaxComms.
var errTooManyComms = fieldError("header", "at most %d communicators can be read from the files of a directory", MaxComms)

// parse reads a line into in.line, and returns the communicator of its header.
func (in *Inspector) parse(line []byte) (comm *inspectorComm, err error) {
	l, s := &in.line, &in.scan
	*l = inspectorLine{kind: noLine, op: Op{Seq: absentSeq}, proxy: proxyTrace{parentSN: absentSeq, sn: absentCount}}
	s.Reset(line)
	for s.Enter('{'); s.Key(); {
		switch string(s.Name) {
		case "header":
			l.hasHeader = true
			comm = in.parseHeader()
		case "metadata":
			l.hasM = true
			in.parseMetadata()
		case "coll_perf":
			in.parseOp(collLine)
		case "p2p_perf":
			in.parseOp(p2pLine)
		case "proxy_trace":
			l.kind = proxyLine
			in.parseTransfer()
		case "dump_stats":
			l.kind = statsLine
			in.parseStats()
		default:
			l.others++
			s.Skip()
		}
	}
	return comm, s.End()
}

// parseHeader reads the header. Consecutive lines mostly have the same one.
func (in *Inspector) parseHeader() *inspectorComm {
	s := &in.scan
	if s.Err() != nil {
		return nil
	}
	s.Peek()
	if in.headComm != nil && s.PassPrefix(in.head) {
		return in.headComm
	}
	start := s.Offset()
	var id, name []byte
	rank, ranks := absentRank, 0
	for s.Enter('{'); s.Key(); {
		switch string(s.Name) {
		case "id":
			id = append(id, s.Text()...)
		case "comm_name":
			name = append(name, s.Text()...)
		case "rank":
			rank = s.rank()
		case "n_ranks":
			ranks = s.rank()
		default:
			s.Skip()
		}
	}
	if s.Err() != nil {
		return nil
	}
	in.head, in.headComm = append(in.head[:0], s.Since(start)...), in.comm(id, name, rank, ranks)
	return in.headComm
}

// parseMetadata reads when a line was written and in which version. The other members are texts of the writer, which
// decide nothing.
func (in *Inspector) parseMetadata() {
	s := &in.scan
	for s.Enter('{'); s.Key(); {
		switch string(s.Name) {
		case "dump_timestamp_us":
			in.line.dumpedAt = s.time()
		case "inspector_output_format_version":
			in.line.inherits = inherits(s.Text())
		default:
			s.Skip()
		}
	}
}

// inherits says whether lines of a version inherit the header of the dump_stats before them: 4.3 and later.
func inherits(version []byte) bool {
	minor, ok := bytes.CutPrefix(version, []byte("v4."))
	if !ok {
		return false
	}
	n, err := strconv.ParseUint(string(minor), 10, 8)
	return err == nil && n >= 3
}

// parseOp reads an operation.
func (in *Inspector) parseOp(kind int) {
	l, s := &in.line, &in.scan
	l.kind = kind
	for s.Enter('{'); s.Key(); {
		switch string(s.Name) {
		case "coll", "p2p":
			l.op.Op = in.name(s.Text())
		case "coll_algo":
			l.op.Algo = in.known(s.Text())
		case "coll_proto":
			l.op.Proto = in.known(s.Text())
		case "coll_sn", "p2p_sn":
			l.op.Seq = s.Uint()
		case "coll_msg_size_bytes", "p2p_msg_size_bytes":
			l.bytes, l.hasBytes = s.Uint(), true
		case "coll_exec_time_us", "p2p_exec_time_us":
			l.op.ExecNS, l.hasExec = s.duration(), true
		case "coll_timing_source", "p2p_timing_source":
			l.op.Timing = in.known(s.Text())
		case "p2p_peer":
			l.peer = s.rank()
		case "event_trace_ts":
			in.parseEvents()
		default:
			s.Skip()
		}
	}
}

// parseEvents reads the times of a verbose line: the call on the host, and the kernels of all channels.
func (in *Inspector) parseEvents() {
	l, s := &in.line, &in.scan
	for s.Enter('{'); s.Key(); {
		switch string(s.Name) {
		case "coll_start_ts", "p2p_start_ts":
			l.coll.begin(s.time())
		case "coll_stop_ts", "p2p_stop_ts":
			l.coll.end(s.time())
		case "kernel_events":
			for s.Enter('['); s.Element(); {
				for s.Enter('{'); s.Key(); {
					switch string(s.Name) {
					case "kernel_start_ts":
						l.kernel.begin(s.time())
					case "kernel_stop_ts":
						l.kernel.end(s.time())
					default:
						s.Skip()
					}
				}
			}
		default:
			s.Skip()
		}
	}
}

// parseStats reads how many lines a dump has, and how many operations the writer lost since the last one.
func (in *Inspector) parseStats() {
	l, s := &in.line, &in.scan
	for s.Enter('{'); s.Key(); {
		switch string(s.Name) {
		case "coll_records":
			l.records[collLine] = s.Uint()
		case "p2p_records":
			l.records[p2pLine] = s.Uint()
		case "proxy_records":
			l.records[proxyLine] = s.Uint()
		case "coll_dropped_since_last_dump", "p2p_dropped_since_last_dump", "proxy_dropped_since_last_dump", "proxy_ops_dropped_since_last_dump":
			l.dropped += s.Uint()
		default:
			s.Skip()
		}
	}
}

// parseTransfer reads a line of a transfer, with the steps that it may have.
func (in *Inspector) parseTransfer() {
	p, s := &in.line.proxy, &in.scan
	for s.Enter('{'); s.Key(); {
		switch string(s.Name) {
		case "record_type":
			p.record = in.name(s.Text())
			if p.record == "proxy_step" {
				p.waits.steps++
			}
		case "parent_type":
			p.parent = in.name(s.Text())
		case "parent_sn":
			p.parentSN = s.Uint()
		case "proxy_op_sn":
			p.sn = s.Uint()
		case "channel_id":
			p.channel = s.rank()
		case "peer":
			p.peer = s.rank()
		case "direction":
			p.direction = Direction(in.name(s.Text()))
		case "trans_size_bytes":
			p.bytes, p.hasBytes = s.Uint(), true
		case "event_trace_ts":
			for s.Enter('{'); s.Key(); {
				switch string(s.Name) {
				case "proxy_op_start_ts":
					p.span.begin(s.time())
				case "proxy_op_stop_ts":
					p.span.end(s.time())
				default:
					s.Skip()
				}
			}
		case "n_steps_completed":
			p.completed = s.Uint()
		case "n_steps_dropped":
			p.lost = s.Uint()
		case "steps":
			for s.Enter('['); s.Element(); {
				p.waits.steps++
				for s.Enter('{'); s.Key(); {
					in.parseWait()
				}
			}
		default:
			in.parseWait()
		}
	}
}

// parseWait reads a member of a step, and adds it up if it is a time that the step waited.
func (in *Inspector) parseWait() {
	w, s := &in.line.proxy.waits, &in.scan
	switch string(s.Name) {
	case "gpu_produce_us", "gpu_consume_us":
		w.gpu.add(s.duration())
	case "peer_credit_us":
		w.peer.add(s.duration())
	case "wire_us":
		w.wire.add(s.duration())
	case "flush_us":
		w.flush.add(s.duration())
	default:
		s.Skip()
	}
}
