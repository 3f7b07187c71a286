package ccl

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Rules of dumps of PyTorch's Flight Recorder (pytorch/pytorch, torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, read on
// 2026-11-27; versions 2.4 to 2.10 of the format):
//
//  1. A dump is one process's. It does not say of which rank: the caller knows it from the file's name.
//  2. Operations count per process group and over all kinds of collectives, other than NCCL counts. So communicators have
//     names of their own, which no other reader uses.
//  3. The times of an operation's start and end are those at which the watchdog looked, and only its creation is exact. A
//     duration is known where the process measured it (TORCH_NCCL_ENABLE_TIMING).
//  4. A value that is absent is null in a pickle and 0 in JSON: a time of 0 is unknown.
//  5. An operation that is retired is over, even where its state says otherwise, as with gloo.

// flightRecorderPrefix begins the names of communicators.
const flightRecorderPrefix = "fr/"

// watchdogTiming is the Timing of operations whose times are those of the watchdog.
const watchdogTiming = "watchdog"

// operationNames are NCCL's names of what PyTorch calls otherwise.
var operationNames = map[string]string{
	"all_reduce": "AllReduce", "allreduce_coalesced": "AllReduce", "all_gather": "AllGather", "_all_gather_base": "AllGather", "all_gather_into_tensor_coalesced": "AllGather",
	"reduce_scatter": "ReduceScatter", "_reduce_scatter_base": "ReduceScatter", "reduce_scatter_tensor_coalesced": "ReduceScatter", "all_to_all": "AllToAll", "alltoall": "AllToAll",
	"broadcast": "Broadcast", "reduce": "Reduce", "gather": "Gather", "scatter": "Scatter", "barrier": "Barrier", "send": "Send", "recv": "Recv",
}

// flightGroup is a process group of a dump.
type flightGroup struct {
	comm  *Comm
	ranks []int // of the job, by rank in the group
	beat  *Beat // nil if this process is no member
}

// ReadFlightRecorder reads a dump of the process of a rank of the job, as pickle or JSON, and hands its records to emit. The
// error is that of a dump that cannot be read at all. What cannot be used of it is counted.
func ReadFlightRecorder(dump []byte, rank int, from Source, emit func(Record)) (Loss, error) {
	var loss Loss
	if len(dump) > MaxDump {
		return loss, fmt.Errorf("a dump of %d bytes, and at most %d are read", len(dump), MaxDump)
	}
	parse := parsePickle
	if text := strings.TrimLeft(string(dump[:min(len(dump), 64)]), " \t\r\n"); strings.HasPrefix(text, "{") {
		parse = parseJSONTree
	}
	tree, err := parse(dump)
	if err != nil {
		return loss, err
	}
	top, ok := tree.(*dict)
	if !ok {
		return loss, errors.New("a dictionary is expected at the top")
	}
	groups, err := flightGroups(top, rank, from)
	if err != nil {
		return loss, err
	}
	for _, g := range groups {
		emit(g.comm)
	}
	entries, _ := field[*list](top, "entries")
	if entries == nil {
		entries = &list{}
	}
	sizes := maxValues // dimensions that are looked at in the whole dump
	for _, v := range entries.values {
		entry, _ := v.(*dict)
		rec, at, err := flightOperation(entry, groups, &sizes)
		if err != nil {
			loss.Unreadable++
			continue
		}
		g := groups[groupName(entry)]
		g.count(rec, at)
		if rec.State != Completed || rec.ExecNS.Known || rec.StartNS.Known && rec.EndNS.Known {
			emit(rec)
		}
	}
	for _, g := range groups {
		if g.beat != nil && g.beat.AtNS.Known {
			emit(g.beat)
		}
	}
	return loss, nil
}

// flightGroups returns the process groups of a dump, by name. Groups of which this process is no member are left out.
func flightGroups(top *dict, rank int, from Source) (map[string]*flightGroup, error) {
	config, ok := field[*dict](top, "pg_config")
	if !ok {
		return nil, fieldError("pg_config", "the process groups are required")
	}
	out := map[string]*flightGroup{}
	for name, v := range config.values {
		group, _ := v.(*dict)
		text, ok := field[string](group, "ranks")
		if !ok {
			return nil, fieldError("pg_config", "group %q has no ranks", name)
		}
		ranks, err := parseRanks(text)
		if err != nil {
			return nil, fieldError("pg_config", "group %q: %w", name, err)
		}
		desc, _ := field[string](group, "desc")
		g := &flightGroup{ranks: ranks, comm: &Comm{Job: from.Job, Comm: flightRecorderPrefix + name, Name: desc, NRanks: len(ranks)}}
		for i, r := range ranks {
			if r == rank {
				g.comm.Ranks = []Member{{Rank: i, Host: from.Host}}
				g.beat = &Beat{From: From{Job: from.Job, Comm: g.comm.Comm, Rank: i, NRanks: len(ranks), Host: from.Host}, Launched: map[string]uint64{}, Completed: map[string]uint64{}}
			}
		}
		if g.beat == nil {
			continue
		}
		if err := g.comm.check(); err != nil {
			return nil, fieldError("pg_config", "group %q: %w", name, err)
		}
		out[name] = g
	}
	return out, nil
}

// parseRanks parses "[0, 1, 2]".
func parseRanks(text string) (ranks []int, err error) {
	inner, ok := strings.CutPrefix(strings.TrimSpace(text), "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !ok || !closed {
		return nil, fmt.Errorf("a list of ranks is expected, and not %.40q", text)
	}
	for part := range strings.SplitSeq(inner, ",") {
		r, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || r < 0 {
			return nil, fmt.Errorf("a rank is expected, and not %.40q", part)
		}
		if ranks = append(ranks, r); len(ranks) > MaxRanks {
			return nil, fmt.Errorf("more than %d ranks", MaxRanks)
		}
	}
	return ranks, nil
}

// groupName returns the name of an entry's process group, which is the first of a pair.
func groupName(entry *dict) string {
	if entry == nil {
		return ""
	}
	if pair := valuesOf(entry.values["process_group"]); len(pair) > 0 {
		name, _ := pair[0].(string)
		return name
	}
	return ""
}

// timeField returns a time. Zero is unknown.
func timeField(entry *dict, key string) Nanos {
	if ns, ok := field[int64](entry, key); ok && ns > 0 {
		return KnownNanos(ns)
	}
	return Nanos{}
}

// flightOperation returns the operation of an entry, and the latest of its times. An operation that is over without times or a
// duration has neither, and only counts.
func flightOperation(entry *dict, groups map[string]*flightGroup, sizes *int) (*Op, int64, error) {
	g := groups[groupName(entry)]
	if g == nil {
		return nil, 0, fieldError("process_group", "a group of this process is required")
	}
	profiling, _ := field[string](entry, "profiling_name")
	name, peer := operationName(profiling)
	if name == "" {
		return nil, 0, fieldError("profiling_name", "the name of the operation is required")
	}
	seqKey := "collective_seq_id"
	if p2p, _ := field[bool](entry, "is_p2p"); p2p {
		seqKey = "p2p_seq_id"
	}
	seq, ok := field[int64](entry, seqKey)
	if !ok || seq < 0 {
		return nil, 0, fieldError(seqKey, "the number of the operation is required")
	}
	o := &Op{From: g.beat.From, Seq: uint64(seq), Op: name, Bytes: bytesOf(entry, sizes), Timing: watchdogTiming, StartNS: timeField(entry, "time_created_ns")}
	for i, r := range g.ranks {
		if name == "Send" || name == "Recv" {
			if r == peer {
				o.Peer = &i
			}
		}
	}
	started, ended := timeField(entry, "time_discovered_started_ns"), timeField(entry, "time_discovered_completed_ns")
	state, _ := field[string](entry, "state")
	retired, _ := field[bool](entry, "retired")
	switch {
	case state == string(Completed) || retired:
		o.State, o.EndNS = Completed, ended
	case state == string(Started):
		o.State = Started
	case state == string(Scheduled):
		o.State = Scheduled
	default:
		return nil, 0, fieldError("state", "%s, %s or %s is expected, and not %.40q", Scheduled, Started, Completed, state)
	}
	if ms, ok := field[float64](entry, "duration_ms"); ok && ms >= 0 && ms < 1e12 {
		o.ExecNS, o.Timing = KnownNanos(int64(ms*1e6)), "kernel_gpu"
	}
	if o.StartNS.Known && o.EndNS.Known && o.EndNS.NS < o.StartNS.NS {
		return nil, 0, fieldError("time_discovered_completed_ns", "it is before time_created_ns")
	}
	return o, max(o.StartNS.NS, started.NS, ended.NS), checkNames("profiling_name", name)
}

// operationName returns NCCL's name of an operation, and the rank of the job that it sends to or receives from.
func operationName(profiling string) (name string, peer int) {
	_, text, ok := strings.Cut(profiling, ":")
	if !ok {
		text = profiling
	}
	name, ends, _ := strings.Cut(text, " ")
	peer = -1
	if i := strings.LastIndexAny(ends, ">-"); i >= 0 { // "0->1" of a sender, "0<-1" of a receiver
		if n, err := strconv.Atoi(ends[i+1:]); err == nil {
			peer = n
		}
	}
	if known := operationNames[name]; known != "" {
		name = known
	}
	return name, peer
}

// typeBytes are the sizes of PyTorch's types.
var typeBytes = map[string]int64{"Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
	"Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8}

// bytesOf returns the size of the inputs of an operation, or nil if it is not known.
func bytesOf(entry *dict, left *int) *uint64 {
	const most = 1 << 62
	tensors, types := valuesOf(entry.values["input_sizes"]), valuesOf(entry.values["input_dtypes"])
	if len(tensors) == 0 || len(tensors) != len(types) {
		return nil
	}
	all := int64(0)
	for i, tensor := range tensors {
		kind, _ := types[i].(string)
		n, ok := typeBytes[kind], typeBytes[kind] > 0
		for _, v := range valuesOf(tensor) {
			dim, is := v.(int64)
			if *left--; *left < 0 || !is || dim < 0 || n > 0 && dim > most/n {
				ok = false
				break
			}
			n *= dim
		}
		if !ok || all > most-n {
			return nil
		}
		all += n
	}
	size := uint64(all)
	return &size
}

// count notes that an operation was launched, and whether it is over.
func (g *flightGroup) count(o *Op, at int64) {
	b := g.beat
	b.Launched[o.Op] = max(b.Launched[o.Op], o.Seq+1)
	if o.State == Completed {
		b.Completed[o.Op] = max(b.Completed[o.Op], o.Seq+1)
	}
	if at > 0 && (!b.AtNS.Known || at > b.AtNS.NS) {
		b.AtNS = KnownNanos(at)
	}
}
