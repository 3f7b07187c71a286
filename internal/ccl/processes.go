package ccl

import (
	"maps"
	"sync/atomic"
)

// Limits of processes.
const (
	maxProcesses = 256
	maxSpans     = 1 << 12 // operations of a process that are known
)

// lastProcess is the number of the process that was seen last.
var lastProcess atomic.Uint64

// newProcess returns the number of a process: what one file or connection is from.
func newProcess() uint64 { return lastProcess.Add(1) }

// processes knows when processes were in an operation. The zero value knows nothing.
type processes map[uint64]*processSpans

// processSpans is when a process was in an operation, in nanoseconds.
type processSpans struct {
	spans [][2]int64
	next  int // of the oldest, when there are maxSpans
}

// add notes an operation.
func (p *processes) add(process uint64, begun, ended int64) {
	s := (*p)[process]
	if s == nil {
		if *p == nil {
			*p = processes{}
		}
		if len(*p) >= maxProcesses {
			p.dropOldest()
		}
		s = &processSpans{}
		(*p)[process] = s
	}
	if len(s.spans) < maxSpans {
		s.spans = append(s.spans, [2]int64{begun, ended})
		return
	}
	s.spans[s.next] = [2]int64{begun, ended}
	s.next = (s.next + 1) % maxSpans
}

// dropOldest forgets the process that was seen first. Numbers grow.
func (p *processes) dropOldest() {
	oldest := ^uint64(0)
	for n := range maps.Keys(*p) {
		oldest = min(oldest, n)
	}
	delete(*p, oldest)
}

// gap returns how long a process had been in no operation at a time. It is 0 within an operation, and unknown if none before it
// is known.
func (p *processes) gap(process uint64, at int64) Nanos {
	s := (*p)[process]
	if s == nil {
		return Nanos{}
	}
	last, known := int64(0), false
	for _, x := range s.spans {
		if x[0] < at && (!known || x[1] > last) {
			last, known = x[1], true
		}
	}
	if !known {
		return Nanos{}
	}
	return KnownNanos(max(0, at-last))
}

// awaitingOp is an operation that is handed out later, and when it was read.
type awaitingOp struct {
	op *Op
	at int64
}
