// Package ccl holds records of what collective communication libraries (NCCL, RCCL, the process groups of PyTorch) did:
// communicators, operations, transfers between two ranks, and signs of life. Readers make the same records of every
// source, so that a diagnosis does not depend on where they come from.
//
// All times are of the clock of the record's host, in nanoseconds since 1970. Times of two hosts may only be compared
// where both records have an error bound of that clock.
package ccl

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits of one record.
const (
	MaxLine   = 1 << 20 // bytes of a line
	MaxString = 128     // bytes of a name
	MaxRanks  = 1 << 16 // ranks of a communicator
)

// Nanos is a time or a duration in nanoseconds that may be unknown. The zero value is unknown.
type Nanos struct {
	NS    int64
	Known bool
}

// KnownNanos returns a known number of nanoseconds.
func KnownNanos(ns int64) Nanos { return Nanos{NS: ns, Known: true} }

// MarshalJSONTo writes the number, or null.
func (n Nanos) MarshalJSONTo(e *jsontext.Encoder) error {
	if !n.Known {
		return e.WriteToken(jsontext.Null)
	}
	return e.WriteToken(jsontext.Int(n.NS))
}

// errNanos is the error of a value that is no duration.
var errNanos = errors.New("a whole number of nanoseconds is expected")

// UnmarshalJSONFrom reads a whole number, or null.
func (n *Nanos) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	t, err := d.ReadToken()
	if err != nil {
		return err
	}
	*n = Nanos{}
	if t.Kind() == 'n' {
		return nil
	}
	if t.Kind() != '0' {
		return errNanos
	}
	ns, err := t.Int()
	if err != nil {
		return errNanos
	}
	*n = KnownNanos(ns)
	return nil
}

// Member is a rank of a communicator and where it runs.
type Member struct {
	Rank int    `json:"rank"`
	Host string `json:"host"`
	NIC  string `json:"nic,omitempty"` // identifier of internal/fabric; empty: unknown
	GPU  *int   `json:"gpu,omitempty"` // number within the host
}

// From is what operations, transfers and beats have in common: the rank that reports them.
type From struct {
	Job    string `json:"job"`
	Comm   string `json:"comm"`
	Rank   int    `json:"rank"`
	NRanks int    `json:"n_ranks"`
	Host   string `json:"host,omitempty"` // node of the agent that read the record; empty: unknown
	// Account is the user who wrote the record, as the kernel of the node says. Only agents set it; empty: unknown.
	Account string `json:"account,omitempty"`
}

// Comm describes a communicator.
type Comm struct {
	Job    string   `json:"job"`
	Comm   string   `json:"comm"`
	Name   string   `json:"comm_name,omitempty"`
	NRanks int      `json:"n_ranks"`
	Ranks  []Member `json:"ranks,omitempty"` // those that are known
	// Account is as in From.
	Account string `json:"account,omitempty"`
}

// OpState says how far an operation is.
type OpState string

// The states of an operation.
const (
	Scheduled OpState = "scheduled" // the host enqueued it, and no kernel of it has started
	Started   OpState = "started"
	Completed OpState = "completed"
)

// TimingKernelGPU is the Timing of durations that the GPU measured for the kernel of an operation.
const TimingKernelGPU = "kernel_gpu"

// Op is one collective or point-to-point operation as one rank saw it. Seq counts per communicator and kind of operation,
// as coll_sn of NCCL does, so communicator, kind and Seq are the operation's name in all ranks.
type Op struct {
	From
	Seq        uint64  `json:"seq"`
	Op         string  `json:"op"` // as NCCL names it: AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Send, ...
	Algo       string  `json:"algo,omitempty"`
	Proto      string  `json:"proto,omitempty"`
	Bytes      *uint64 `json:"bytes,omitempty"`
	Peer       *int    `json:"peer,omitempty"` // of Send and Recv
	Root       *int    `json:"root,omitempty"` // of Broadcast, Reduce, Gather and Scatter
	StartNS    Nanos   `json:"start_ns,omitzero"`
	EndNS      Nanos   `json:"end_ns,omitzero"`
	ExecNS     Nanos   `json:"exec_ns,omitzero"`
	Timing     string  `json:"timing,omitempty"` // what measured the duration: kernel_gpu, kernel_cpu, collective_cpu, or as of Flight Recorder
	State      OpState `json:"state"`
	ClockError Nanos   `json:"clock_error_ns,omitzero"`
	// GapNS is the time from the end of the process's last operation, in any communicator, to the start. The agent measures it,
	// since it sees all operations and hands out a part of them.
	GapNS Nanos `json:"gap_ns,omitzero"`
	// Process is a number for the file or connection that an agent has the record from, which is that of one process. 0: unknown.
	Process uint64 `json:"-"`
}

// Duration returns how long the operation took in its rank, in nanoseconds. It is false if that is unknown or not over.
func (o *Op) Duration() (int64, bool) {
	if o.State != Completed {
		return 0, false
	}
	if o.ExecNS.Known {
		return o.ExecNS.NS, true
	}
	return o.EndNS.NS - o.StartNS.NS, o.StartNS.Known && o.EndNS.Known
}

// Span returns when the operation began and ended by the clock of its host. Both are unknown where one is, or it is not over.
func (o *Op) Span() (begun, ended Nanos) {
	exec, over := o.Duration()
	switch {
	case over && o.StartNS.Known:
		return o.StartNS, KnownNanos(o.StartNS.NS + exec)
	case over && o.EndNS.Known:
		return KnownNanos(o.EndNS.NS - exec), o.EndNS
	}
	return Nanos{}, Nanos{}
}

// Direction says whether the rank of a transfer sends or receives.
type Direction string

// The directions of a transfer.
const (
	Send Direction = "send"
	Recv Direction = "recv"
)

// Hold is what a transfer waits for.
type Hold string

// What a transfer can wait for.
const (
	HeldByGPU   Hold = "gpu"   // the rank's own GPU, which has not produced or not consumed the data
	HeldByPeer  Hold = "peer"  // credits of the peer
	HeldByWire  Hold = "wire"  // data or acknowledgements on the network
	HeldByFlush Hold = "flush" // data on its way through PCIe into the GPU
)

// Edge is the transfer between a rank and a peer within an operation: its waits, summed up over the transfer's steps.
type Edge struct {
	From
	Seq        uint64    `json:"seq"`
	Op         string    `json:"op,omitempty"` // kind of the operation; empty: unknown
	Peer       int       `json:"peer"`
	Direction  Direction `json:"direction"`
	Channel    *int      `json:"channel,omitempty"`
	Bytes      *uint64   `json:"bytes,omitempty"`
	StartNS    Nanos     `json:"start_ns,omitzero"`
	EndNS      Nanos     `json:"end_ns,omitzero"`
	GPUWait    Nanos     `json:"gpu_wait_ns,omitzero"`
	PeerWait   Nanos     `json:"peer_wait_ns,omitzero"`
	Wire       Nanos     `json:"wire_ns,omitzero"`
	Flush      Nanos     `json:"flush_ns,omitzero"`
	State      string    `json:"state"` // completed or open
	Held       Hold      `json:"held,omitempty"`
	Since      Nanos     `json:"since_ns,omitzero"`
	ClockError Nanos     `json:"clock_error_ns,omitzero"`
}

// Open is the state of a transfer that is not over.
const Open = "open"

// Beat says that a rank was seen at a moment, and how many operations of each kind it has launched and completed.
type Beat struct {
	From
	AtNS      Nanos             `json:"at_ns"`
	Alive     *bool             `json:"alive,omitempty"` // nil: unknown
	Launched  map[string]uint64 `json:"launched,omitempty"`
	Completed map[string]uint64 `json:"completed,omitempty"`
	// Via is the node whose agent answered with the beat, where that is of a whole job and has no host. The analyzer sets it.
	Via string `json:"-"`
}

// Record is a *Comm, *Op, *Edge or *Beat.
type Record interface {
	kind() string
	check() error
}

func (*Comm) kind() string { return "comm" }
func (*Op) kind() string   { return "op" }
func (*Edge) kind() string { return "edge" }
func (*Beat) kind() string { return "beat" }

// AccountOf returns the account that wrote a record; empty: unknown.
func AccountOf(rec Record) string {
	switch r := rec.(type) {
	case *Comm:
		return r.Account
	case *Op:
		return r.Account
	case *Edge:
		return r.Account
	case *Beat:
		return r.Account
	}
	return ""
}

// SetAccount sets the account that wrote a record.
func SetAccount(rec Record, account string) {
	switch r := rec.(type) {
	case *Comm:
		r.Account = account
	case *Op:
		r.Account = account
	case *Edge:
		r.Account = account
	case *Beat:
		r.Account = account
	}
}

// fieldError names a field, and what was expected of it.
func fieldError(field, format string, args ...any) error {
	return fmt.Errorf("field %q: %w", field, fmt.Errorf(format, args...))
}

// checkNames returns an error for the first name that is too long, or that no record can hold.
func checkNames(names ...string) error {
	for i := 0; i < len(names); i += 2 {
		if len(names[i+1]) > MaxString {
			return fieldError(names[i], "at most %d bytes are allowed, and it has %d", MaxString, len(names[i+1]))
		}
		if !utf8.ValidString(names[i+1]) {
			return fieldError(names[i], "UTF-8 is expected")
		}
	}
	return nil
}

// checkComm checks what names a communicator and its size.
func checkComm(job, comm string, ranks int) error {
	if comm == "" {
		return fieldError("comm", "the identifier of a communicator is required")
	}
	if ranks < 1 || ranks > MaxRanks {
		return fieldError("n_ranks", "a number from 1 to %d is required, and not %d", MaxRanks, ranks)
	}
	return checkNames("job", job, "comm", comm)
}

// checkRank checks a rank of a communicator.
func checkRank(field string, rank, ranks int) error {
	if rank == absentRank {
		return fieldError(field, "a rank from 0 to %d is required", ranks-1)
	}
	if rank < 0 || rank >= ranks {
		return fieldError(field, "a rank from 0 to %d is expected, and not %d", ranks-1, rank)
	}
	return nil
}

func (f *From) check() error {
	if err := checkComm(f.Job, f.Comm, f.NRanks); err != nil {
		return err
	}
	if err := checkRank("rank", f.Rank, f.NRanks); err != nil {
		return err
	}
	return checkNames("host", f.Host, "account", f.Account)
}

// checkSpan checks that a span does not end before it begins.
func checkSpan(start, end Nanos) error {
	if start.Known && end.Known && end.NS < start.NS {
		return fieldError("end_ns", "it is %d ns before start_ns", start.NS-end.NS)
	}
	return nil
}

// checkPositive returns an error for the first duration below zero.
func checkPositive(names []string, values ...Nanos) error {
	for i, v := range values {
		if v.Known && v.NS < 0 {
			return fieldError(names[i], "%d ns is below zero", v.NS)
		}
	}
	return nil
}

func (c *Comm) check() error {
	if err := checkComm(c.Job, c.Comm, c.NRanks); err != nil {
		return err
	}
	for _, m := range c.Ranks {
		if err := checkRank("ranks", m.Rank, c.NRanks); err != nil {
			return err
		}
		if err := checkNames("host", m.Host, "nic", m.NIC); err != nil {
			return err
		}
	}
	return checkNames("comm_name", c.Name, "account", c.Account)
}

func (o *Op) check() error {
	if err := o.From.check(); err != nil {
		return err
	}
	if err := checkSeq(o.Seq); err != nil {
		return err
	}
	if o.Op == "" {
		return fieldError("op", "the kind of the operation is required")
	}
	if o.State == "" {
		o.State = Completed
	}
	switch o.State {
	case Completed:
		if _, ok := o.Duration(); !ok {
			return fieldError("exec_ns", "a completed operation needs it, or both start_ns and end_ns")
		}
	case Scheduled, Started:
	default:
		return fieldError("state", "%s, %s or %s is expected, and not %q", Scheduled, Started, Completed, o.State)
	}
	if o.Peer != nil {
		if err := checkRank("peer", *o.Peer, o.NRanks); err != nil {
			return err
		}
	}
	if o.Root != nil {
		if err := checkRank("root", *o.Root, o.NRanks); err != nil {
			return err
		}
	}
	if err := checkPositive([]string{"exec_ns", "clock_error_ns", "gap_ns"}, o.ExecNS, o.ClockError, o.GapNS); err != nil {
		return err
	}
	if err := checkSpan(o.StartNS, o.EndNS); err != nil {
		return err
	}
	return checkNames("op", o.Op, "algo", o.Algo, "proto", o.Proto, "timing", o.Timing)
}

// checkSeq checks that an operation has a number.
func checkSeq(seq uint64) error {
	if seq == absentSeq {
		return fieldError("seq", "the number of the operation in its communicator is required")
	}
	return nil
}

func (e *Edge) check() error {
	if err := e.From.check(); err != nil {
		return err
	}
	if err := checkSeq(e.Seq); err != nil {
		return err
	}
	if err := checkRank("peer", e.Peer, e.NRanks); err != nil {
		return err
	}
	if e.Direction != Send && e.Direction != Recv {
		return fieldError("direction", "%s or %s is expected, and not %q", Send, Recv, e.Direction)
	}
	if e.State == "" {
		e.State = string(Completed)
	}
	switch e.State {
	case string(Completed):
	case Open:
		if !slices.Contains([]Hold{HeldByGPU, HeldByPeer, HeldByWire, HeldByFlush}, e.Held) {
			return fieldError("held", "an open transfer is held by gpu, peer, wire or flush, and not by %q", e.Held)
		}
		if !e.Since.Known {
			return fieldError("since_ns", "an open transfer needs the time since which it is held")
		}
	default:
		return fieldError("state", "%s or %s is expected, and not %q", Completed, Open, e.State)
	}
	if err := checkPositive([]string{"gpu_wait_ns", "peer_wait_ns", "wire_ns", "flush_ns", "clock_error_ns"}, e.GPUWait, e.PeerWait, e.Wire, e.Flush, e.ClockError); err != nil {
		return err
	}
	if err := checkSpan(e.StartNS, e.EndNS); err != nil {
		return err
	}
	return checkNames("op", e.Op)
}

func (b *Beat) check() error {
	if err := b.From.check(); err != nil {
		return err
	}
	if !b.AtNS.Known {
		return fieldError("at_ns", "the time of the beat is required")
	}
	for _, counts := range []map[string]uint64{b.Launched, b.Completed} {
		for op := range counts {
			if err := checkNames("launched or completed", op); err != nil {
				return err
			}
		}
	}
	return nil
}
