package ccl

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/fabric"
)

// What measured the duration of an operation of Flight Recorder. Its stamps are those of a watchdog, which looks at the
// operations from time to time: they are bounds, and no measurement to compare two ranks by.
const (
	TimingEvent    = "device_event"     // events of the GPU around the operation (TORCH_NCCL_ENABLE_TIMING=1)
	TimingWatchdog = "watchdog"         // from the watchdog's seeing the start to its seeing the end
	TimingEnqueued = "enqueue_watchdog" // from the host's call to the watchdog's seeing the end
)

// FlightPrefix begins the names of communicators that Flight Recorder has. Two jobs may have the same ones.
const FlightPrefix = "fr:"

// RankOfFile returns the rank that the name of a dump ends in: PyTorch names the dump of rank N by
// TORCH_NCCL_DEBUG_INFO_TEMP_FILE and N (nccl_trace_rank_3). A suffix such as .json is left away.
func RankOfFile(path string) (rank int, ok bool) {
	name := filepath.Base(path)
	for _, suffix := range []string{".json", ".pickle", ".pkl"} {
		name = strings.TrimSuffix(name, suffix)
	}
	digits := name[len(strings.TrimRight(name, "0123456789")):]
	rank, err := strconv.Atoi(digits)
	return rank, err == nil && rank < MaxRanks
}

// flightGroup is a process group that the process belongs to.
type flightGroup struct {
	From
	err       error // why no record of it can be made
	launched  map[string]uint64
	completed map[string]uint64
}

// flightReader turns a dump into records.
type flightReader struct {
	emitter
	src    Source
	rank   int // of the process in the job
	bad    func(fabric.LineError)
	groups map[string]*flightGroup
	latest int64 // latest time of the dump
	sizes  int   // numbers that may still be read from sizes of tensors
}

// ReadFlightRecorder reads one dump of PyTorch's Flight Recorder (versions 2.4 to 2.10, pickle or JSON) of the process
// that has a rank of the whole job, which the dump itself does not say. Each record is handed to fn. An entry that no
// record can be made of is reported to bad and skipped. The error is that of reading r, of the dump as a whole, or fn's.
//
// The facts are those of pytorch/pytorch, torch/csrc/distributed/c10d/FlightRecorderDetail.hpp and
// torch/distributed/flight_recorder, read on 2026-11-27. Operations count per process group and over all kinds, and not as
// NCCL counts: a communicator is named by the group, its ranks and the prefix "fr:", so that it is never that of the
// Inspector.
func ReadFlightRecorder(r io.Reader, src Source, rank int, fn func(Record) error, bad func(fabric.LineError)) (Counts, error) {
	f := &flightReader{emitter: emitter{out: fn}, src: src, rank: rank, bad: bad, groups: map[string]*flightGroup{}, sizes: 1 << 22}
	text, err := readDump(r)
	if err != nil {
		return f.Counts, err
	}
	var dump any
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		dump, err = readFlightJSON(trimmed)
	} else {
		dump, err = readPickle(text)
	}
	if err != nil {
		return f.Counts, err
	}
	if err := f.read(dump); err != nil {
		return f.Counts, err
	}
	return f.Counts, f.err
}

// get returns a member of a dictionary, and nil if there is none.
func get(v any, key string) any {
	d, ok := v.(*pickleDict)
	if !ok || len(d.items) > 256 {
		return nil
	}
	for i := len(d.items) - 1; i >= 0; i-- {
		if d.items[i].key == key {
			return d.items[i].value
		}
	}
	return nil
}

// whole returns a whole number, and false for what is none.
func whole(v any) (int64, bool) {
	n, ok := v.(int64)
	return n, ok
}

// stamp returns a time. None, and 0 in JSON, stand for a time that is unknown.
func stamp(v any) Nanos {
	n, ok := whole(v)
	return Nanos{NS: n, Known: ok && n > 0}
}

// items returns the items of a list or tuple.
func items(v any) []any {
	if l, ok := v.(*pickleList); ok {
		return l.items
	}
	return nil
}

// errFlightVersion is the error of a dump that is none, or of another version.
var errFlightVersion = errors.New(`field "version": a version from 2.4 on is expected`)

// read emits the records of a dump: the groups, the operations, and what the process was seen to do at last.
func (f *flightReader) read(dump any) error {
	version, _ := get(dump, "version").(string)
	minor, err := strconv.Atoi(strings.TrimPrefix(version, "2."))
	if err != nil || !strings.HasPrefix(version, "2.") || minor < 4 {
		return fmt.Errorf("%w, and not %q", errFlightVersion, version)
	}
	f.readGroups(get(dump, "pg_config"))
	entries := items(get(dump, "entries"))
	launches := coalescedLaunches(entries)
	for i := 0; i < len(entries) && f.err == nil; i++ {
		f.Lines++
		e, err := entry(entries[i])
		if launched, ok := launches[e.launch]; err == nil && ok && launched > i {
			f.drop(DroppedGroup, 1)
			continue
		}
		if err == nil {
			err = f.readEntry(entries[i], e)
		}
		if err != nil {
			f.report(fmt.Sprintf("entry %d", i+1), err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.groups)) {
		if g := f.groups[name]; g.err == nil && f.latest > 0 && len(g.launched) > 0 {
			alive := true
			if err := f.emit(&Beat{From: g.From, AtNS: KnownNanos(f.latest), Alive: &alive, Launched: g.launched, Completed: g.completed}); err != nil {
				return err
			}
		}
	}
	return nil
}

// readGroups emits the process groups that the process belongs to.
func (f *flightReader) readGroups(config any) {
	d, ok := config.(*pickleDict)
	if !ok {
		return
	}
	for i, item := range d.items {
		if i == MaxComms {
			f.drop(DroppedComm, uint64(len(d.items)-i))
			return
		}
		desc, _ := get(item.value, "desc").(string)
		ranks, err := groupRanks(get(item.value, "ranks"))
		g := &flightGroup{launched: map[string]uint64{}, completed: map[string]uint64{}, err: err}
		f.groups[item.key] = g
		if err != nil {
			f.report(fmt.Sprintf("pg_config %.80q", item.key), err)
			continue
		}
		sum := fnv.New32a()
		fmt.Fprint(sum, ranks)
		g.From = From{Job: f.src.Job, Comm: fmt.Sprintf(FlightPrefix+"%s:%08x", item.key, sum.Sum32()), Rank: slices.Index(ranks, f.rank), NRanks: len(ranks), Host: f.src.Host}
		if g.Rank < 0 {
			g.err = fieldError("pg_config", "rank %d, by the name of the file, is no member of the group", f.rank)
			continue
		}
		rec := &Comm{Job: g.Job, Comm: g.Comm, Name: desc, NRanks: g.NRanks}
		if g.Host != "" {
			rec.Ranks = []Member{{Rank: g.Rank, Host: g.Host}}
		}
		if g.err = f.emit(rec); g.err != nil {
			f.report(fmt.Sprintf("pg_config %.80q", item.key), g.err)
		}
	}
}

// groupRanks reads the members of a group, "[0, 1]" or a list, which are ranks of the job.
func groupRanks(v any) ([]int, error) {
	var ranks []int
	switch v := v.(type) {
	case *pickleList:
		for _, item := range v.items {
			n, ok := whole(item)
			if !ok || n < 0 || n >= MaxRanks || len(ranks) == MaxRanks {
				return nil, fieldError("ranks", "a list of ranks is expected")
			}
			ranks = append(ranks, int(n))
		}
	case string:
		inner, begins := strings.CutPrefix(v, "[")
		inner, ends := strings.CutSuffix(inner, "]")
		if !begins || !ends {
			return nil, fieldError("ranks", "a list of ranks is expected, and not %.80q", v)
		}
		for text := range strings.SplitSeq(inner, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil || n < 0 || n >= MaxRanks || len(ranks) == MaxRanks {
				return nil, fieldError("ranks", "a rank is expected, and not %.20q", text)
			}
			ranks = append(ranks, n)
		}
	}
	if len(ranks) == 0 {
		return nil, fieldError("ranks", "a list of ranks is expected")
	}
	return ranks, nil
}

// report counts and reports what no record could be made of.
func (f *flightReader) report(where string, err error) {
	if f.err == nil {
		f.Unreadable++
		f.bad(fabric.LineError{Err: fmt.Errorf("%s: %w", where, err)})
	}
}

// flightEntry is what names an entry of a dump.
type flightEntry struct {
	launch
	backend, name string // nccl, all_reduce
}

// entry reads what names an entry.
func entry(v any) (e flightEntry, err error) {
	if pg := items(get(v, "process_group")); len(pg) > 0 {
		e.group, _ = pg[0].(string)
	}
	name, _ := get(v, "profiling_name").(string)
	var ok bool
	if e.backend, e.name, ok = strings.Cut(name, ":"); !ok || e.name == "" {
		return e, fieldError("profiling_name", "backend:operation is expected, and not %.80q", name)
	}
	e.p2p, _ = get(v, "is_p2p").(bool)
	field := "collective_seq_id"
	if e.p2p {
		field = "p2p_seq_id"
	}
	if e.seq, ok = whole(get(v, field)); !ok || e.seq < 0 {
		return e, fieldError(field, "a whole number of at least 0 is expected")
	}
	return e, nil
}

// launch names what was launched at once: one operation, or a coalesced group of them, which have one number.
type launch struct {
	group string
	seq   int64
	p2p   bool
}

// coalescedLaunches returns the launches of coalesced groups, with the index of the entry that is the launch. It is the last
// one of the group, and the only one whose state is kept up to date.
func coalescedLaunches(entries []any) map[launch]int {
	at := map[launch]int{}
	for i, v := range entries {
		if e, err := entry(v); err == nil && strings.HasSuffix(e.name, "coalesced") {
			at[e.launch] = i
		}
	}
	return at
}

// readEntry emits the operation of an entry.
func (f *flightReader) readEntry(v any, e flightEntry) (err error) {
	g := f.groups[e.group]
	if names := items(get(v, "process_group")); g == nil && len(names) == 2 && names[1] == "default_pg" {
		g = f.groups[""] // pg_config of PyTorch 2.14.1 with gloo has the default group without a name
	}
	if g == nil {
		return fieldError("process_group", "pg_config has no group %.80q", e.group)
	}
	if g.err != nil {
		f.drop(DroppedRank, 1)
		return g.err
	}
	op := &Op{From: g.From, Seq: uint64(e.seq), Bytes: f.bytes(v)}
	op.Op, op.Peer = operationName(e.name)
	if op.State, err = entryState(v, e.backend); err != nil {
		return err
	}
	timed := entryTimes(v, op)
	for _, t := range []Nanos{op.StartNS, op.EndNS} {
		if t.Known {
			f.latest = max(f.latest, t.NS)
		}
	}
	if timed {
		if err := f.emit(op); err != nil {
			return err
		}
	} else {
		f.drop(DroppedTimes, 1)
	}
	raise(g.launched, op.Op, op.Seq)
	if op.State == Completed {
		raise(g.completed, op.Op, op.Seq)
	}
	return nil
}

// raise sets a counter to one more than a number, if it is below. Kinds of operations are few.
func raise(counts map[string]uint64, op string, seq uint64) {
	if _, known := counts[op]; known || len(counts) < 64 {
		counts[op] = max(counts[op], seq+1)
	}
}

// entryState returns how far an operation is. Gloo says only that it is done with an operation.
func entryState(v any, backend string) (OpState, error) {
	state, _ := get(v, "state").(string)
	if retired, _ := get(v, "retired").(bool); retired && backend == "gloo" {
		return Completed, nil
	}
	switch s := OpState(state); s {
	case Scheduled, Started, Completed:
		return s, nil
	}
	return "", fieldError("state", "%s, %s or %s is expected, and not %.20q", Scheduled, Started, Completed, state)
}

// entryTimes sets the times of an operation. It is false if the operation is completed and nothing says for how long it ran.
func entryTimes(v any, op *Op) bool {
	created, started, completed := stamp(get(v, "time_created_ns")), stamp(get(v, "time_discovered_started_ns")), stamp(get(v, "time_discovered_completed_ns"))
	op.StartNS = started
	if op.State != Completed {
		if !started.Known {
			op.StartNS = created
		}
		return true
	}
	op.EndNS, op.Timing = completed, TimingWatchdog
	if !started.Known {
		op.StartNS, op.Timing = created, TimingEnqueued
	}
	if checkSpan(op.StartNS, op.EndNS) != nil {
		op.StartNS = Nanos{}
	}
	if ms, ok := milliseconds(get(v, "duration_ms")); ok {
		op.ExecNS, op.Timing = KnownNanos(ms), TimingEvent
	}
	_, ok := op.Duration()
	return ok
}

// milliseconds returns nanoseconds.
func milliseconds(v any) (ns int64, ok bool) {
	ms, ok := v.(float64)
	if n, isWhole := whole(v); isWhole {
		ms, ok = float64(n), true
	}
	if !ok || !(ms >= 0) || ms > math.MaxInt64/2e6 {
		return 0, false
	}
	return int64(math.Round(ms * 1e6)), true
}

// dtypeBytes are the sizes of the types of elements, as c10::toString names them.
var dtypeBytes = map[string]uint64{"Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "ComplexHalf": 4, "Long": 8,
	"Double": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e5m2": 1, "Float8_e4m3fn": 1, "Float8_e5m2fnuz": 1, "Float8_e4m3fnuz": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8}

// bytes returns the bytes of an entry's input tensors, and nil if that is unknown.
func (f *flightReader) bytes(v any) *uint64 {
	sizes, types := items(get(v, "input_sizes")), items(get(v, "input_dtypes"))
	if len(sizes) == 0 || len(sizes) != len(types) {
		return nil
	}
	sum := uint64(0)
	for i, dims := range sizes {
		if f.sizes -= 1 + len(items(dims)); f.sizes < 0 {
			return nil
		}
		name, _ := types[i].(string)
		n := float64(dtypeBytes[name])
		for _, dim := range items(dims) {
			d, ok := whole(dim)
			if !ok || d < 0 {
				return nil
			}
			n *= float64(d)
		}
		if n >= 1<<52 || dtypeBytes[name] == 0 {
			return nil
		}
		sum += uint64(n)
	}
	return &sum
}

// operationNames are NCCL's names for those of PyTorch.
var operationNames = map[string]string{
	"all_reduce": "AllReduce", "allreduce_coalesced": "AllReduce", "all_reduce_coalesced": "AllReduce",
	"all_gather": "AllGather", "_all_gather_base": "AllGather", "all_gather_single": "AllGather", "all_gather_v": "AllGather", "all_gather_into_tensor_coalesced": "AllGather", "ALLGATHER_coalesced": "AllGather",
	"reduce_scatter": "ReduceScatter", "_reduce_scatter_base": "ReduceScatter", "reduce_scatter_single": "ReduceScatter", "reduce_scatter_v": "ReduceScatter", "reduce_scatter_tensor_coalesced": "ReduceScatter", "REDUCE_SCATTER_coalesced": "ReduceScatter",
	"all_to_all": "AllToAll", "all_to_all_single": "AllToAll", "all_to_all_v_single": "AllToAll",
	"broadcast": "Broadcast", "_broadcast_oop": "Broadcast", "reduce": "Reduce", "_reduce_oop": "Reduce",
	"gather": "Gather", "scatter": "Scatter", "barrier": "Barrier", "all_reduce_barrier": "Barrier", "coalesced": "Coalesced",
}

// operationName returns NCCL's name of an operation, and the peer of "send 0->1" and "recv 1<-0".
func operationName(name string) (op string, peer *int) {
	kind, of, _ := strings.Cut(name, " ")
	for _, p2p := range []struct{ name, arrow, op string }{{"send", "->", "Send"}, {"recv", "<-", "Recv"}} {
		if kind == p2p.name {
			_, rank, _ := strings.Cut(of, p2p.arrow)
			if n, err := strconv.Atoi(rank); err == nil {
				peer = &n
			}
			return p2p.op, peer
		}
	}
	if op, ok := operationNames[kind]; ok {
		return op, nil
	}
	return kind, nil
}

// readFlightJSON reads a dump in JSON into the values of a pickle. Stacks are skipped.
func readFlightJSON(text []byte) (any, error) {
	j := flightJSON{names: map[string]string{}}
	j.Reset(text)
	v := j.value()
	if err := j.End(); err != nil {
		return nil, err
	}
	return v, nil
}

// flightJSON is a scanner that makes values.
type flightJSON struct {
	scanner
	values, length int
	names          map[string]string // texts that are kept once
}

// string returns a text.
func (j *flightJSON) string(b []byte) string {
	if s, known := j.names[string(b)]; known {
		return s
	}
	if j.length += len(b); j.length > maxPickleText {
		j.Failf("more than %d bytes of text", maxPickleText)
		return ""
	}
	s := string(b)
	if len(j.names) < maxNames && len(s) <= MaxString {
		j.names[s] = s
	}
	return s
}

// value reads one value.
func (j *flightJSON) value() any {
	if j.values++; j.values > maxPickleValues {
		j.Failf("more than %d values", maxPickleValues)
		return nil
	}
	switch c := j.Peek(); {
	case j.Err() != nil:
	case c == '"':
		return j.string(j.Quoted())
	case c == '{':
		d := &pickleDict{}
		for j.Enter('{'); j.Key(); {
			if string(j.Name) == "frames" {
				j.Skip()
				continue
			}
			d.items = append(d.items, pickleItem{key: j.string(j.Name)})
			d.items[len(d.items)-1].value = j.value()
		}
		return d
	case c == '[':
		l := &pickleList{}
		for j.Enter('['); j.Element(); {
			l.items = append(l.items, j.value())
		}
		return l
	default:
		start := j.Offset()
		j.Skip()
		if j.Err() == nil {
			return literal(string(j.Since(start)))
		}
	}
	return nil
}

// literal returns the value of a number, or of true, false and null.
func literal(text string) any {
	switch text {
	case "true", "false":
		return text == "true"
	case "null":
		return nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	f, _ := strconv.ParseFloat(text, 64)
	return f
}
