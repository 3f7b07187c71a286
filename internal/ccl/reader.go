package ccl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// Source is where a file of records comes from. It is known by who reads the file: no line of the file can change it.
type Source struct {
	Job  string // of the scheduler; empty: unknown
	Host string // node whose clock the times of the file are of; empty: unknown
}

// Reason says why operations or transfers are missing from the records.
type Reason string

// The reasons for which records are missing.
const (
	DroppedByWriter Reason = "writer"    // the library overwrote them before they were written (dump_stats of the Inspector)
	DroppedDump     Reason = "dump"      // the dump that has them ends early
	DroppedHeader   Reason = "header"    // no line says which communicator they are of
	DroppedComm     Reason = "comms"     // more communicators than MaxComms
	DroppedParent   Reason = "parent"    // the operation of a transfer is unknown
	DroppedTransfer Reason = "transfers" // more transfers under way than can be held
	DroppedGroup    Reason = "group"     // part of a coalesced launch, whose state only the launch has
	DroppedTimes    Reason = "times"     // completed, and the source does not say when or how fast
	DroppedRank     Reason = "rank"      // the reader does not know the rank of the process in the group
	DroppedCut      Reason = "cut"       // the end of the line was never written
	DroppedOwner    Reason = "owner"     // the communicator is that of another user
	DroppedHeld     Reason = "held"      // a node cannot hold as many
	DroppedLate     Reason = "late"      // parts of transfers that came after the transfer was handed out

	DroppedCopyEngine Reason = "copy_engine" // copy engines ran them, of which only the enqueueing is seen
)

// reasons describe what is missing.
var reasons = map[Reason]string{
	DroppedByWriter: "the library overwrote them before it wrote them",
	DroppedDump:     "the dump that has them ends early",
	DroppedHeader:   "no line says which communicator they are of",
	DroppedComm:     "there are too many communicators",
	DroppedParent:   "the operation of a transfer is unknown",
	DroppedTransfer: "too many transfers are under way",
	DroppedGroup:    "they are parts of a coalesced launch, which has one record",
	DroppedTimes:    "they are completed, and the file does not say when",
	DroppedRank:     "the process is no member of their group",
	DroppedCut:      "the end of their line was never written",
	DroppedOwner:    "their communicator is that of another user",
	DroppedHeld:     "a node cannot hold as many",
	DroppedLate:     "they are parts of transfers that were handed out before",

	DroppedCopyEngine: "copy engines ran them, of which only the enqueueing is seen",
}

// Describe returns the reason as a sentence about records.
func (r Reason) Describe() string { return reasons[r] }

// Reasons returns all reasons, in order.
func Reasons() []Reason { return slices.Sorted(maps.Keys(reasons)) }

// MaxComms is the number of communicators that a reader can hold.
const MaxComms = 4096

// Counts says what a reader read, and what it could not.
type Counts struct {
	Lines      uint64            // lines, or entries of a dump
	Records    uint64            // records that were handed on
	Unreadable uint64            // lines or entries that no record could be made of
	Dropped    map[Reason]uint64 // operations and transfers that are missing
}

func (c *Counts) drop(why Reason, n uint64) {
	if n == 0 {
		return
	}
	if c.Dropped == nil {
		c.Dropped = map[Reason]uint64{}
	}
	c.Dropped[why] += n
}

// Add adds what another reader counted.
func (c *Counts) Add(o Counts) {
	c.Lines, c.Records, c.Unreadable = c.Lines+o.Lines, c.Records+o.Records, c.Unreadable+o.Unreadable
	for why, n := range o.Dropped {
		c.drop(why, n)
	}
}

// emitter checks records and hands them on.
type emitter struct {
	Counts
	process uint64 // that writes what is read; 0: unknown
	out     func(Record) error
	err     error // of out; the first one ends the reader
}

// emit checks a record and hands it on. Its error is that of the check.
func (e *emitter) emit(rec Record) error {
	if e.err != nil {
		return e.err
	}
	if err := rec.check(); err != nil {
		return err
	}
	if o, ok := rec.(*Op); ok {
		o.Process = e.process
	}
	if e.err = e.out(rec); e.err == nil {
		e.Records++
	}
	return e.err
}

// ReadInspector reads a file of NCCL's or RCCL's Inspector (JSON lines of the versions 4.0 to 4.4) and hands each record
// to fn. A line that no record can be made of is reported to bad with its number, and skipped. The error is that of
// reading r, or fn's.
func ReadInspector(r io.Reader, src Source, fn func(Record) error, bad func(fabric.LineError)) (Counts, error) {
	in := NewInspector(src, fn)
	report := func(e fabric.LineError) {
		in.Unreadable++
		bad(e)
	}
	err := fabric.ReadLines(r, MaxLine, func(n int, line []byte) error {
		if err := in.ReadLine(line); err != nil {
			if in.err != nil {
				return in.err
			}
			report(fabric.LineError{Line: n, Err: err})
		}
		return nil
	}, report)
	in.Finish()
	return in.Counts, err
}

// MaxDump is the greatest number of bytes of a dump that is read as a whole.
const MaxDump = 64 << 20

// errTooLong is the error of a dump of more than MaxDump bytes.
var errTooLong = errors.New("longer than 64 MiB")

// readDump reads a dump as a whole, in a piece of memory of its size if r is a file.
func readDump(r io.Reader) ([]byte, error) {
	var text bytes.Buffer
	if f, ok := r.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			text.Grow(int(min(info.Size(), MaxDump)) + 2*bytes.MinRead)
		}
	}
	if _, err := text.ReadFrom(io.LimitReader(r, MaxDump+1)); err != nil {
		return nil, fmt.Errorf("cannot read: %w", err)
	}
	if text.Len() > MaxDump {
		return nil, errTooLong
	}
	return text.Bytes(), nil
}
