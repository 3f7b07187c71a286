package probe

// sessionWindow is the number of past sequence numbers that a session knows.
const sessionWindow = 64

// sessionAhead is the number of sequence numbers by which an expected probe may be ahead of the last one. A fast flow
// sends that many during an outage of seconds.
const sessionAhead = 1024

// seqWindow holds which of a sender's sequence numbers have arrived.
type seqWindow struct {
	highestSeq   uint32
	highestTS    int64  // the sender's time in that packet
	receivedBits uint64 // bit i: highest-i was received
	stepSeq      uint32 // the highest one before the sender's clock was set back
	stepTS       int64  // the sender's time in that packet; 0: never
}

// aheadOf returns by how much a sequence number is ahead of the highest one.
func (w *seqWindow) aheadOf(seq uint32) int32 { return int32(seq - w.highestSeq) }

// expectsSeq reports whether a sequence number is one of the next, or one of the last that have not arrived yet.
func (w *seqWindow) expectsSeq(seq uint32) bool {
	ahead := w.aheadOf(seq)
	return ahead > -sessionWindow && ahead <= sessionAhead && (ahead > 0 || w.receivedBits&(1<<-ahead) == 0)
}

// acceptSeq accounts for the sequence number of a packet that left at ts by the sender's clock. If strict is true, a
// number before the window does not count as new.
func (w *seqWindow) acceptSeq(seq uint32, ts int64, strict bool) arrival {
	ahead := w.aheadOf(seq)
	switch {
	case ahead > 0:
		if ts < w.highestTS {
			w.stepSeq, w.stepTS = w.highestSeq, w.highestTS
		}
		w.highestSeq, w.highestTS = seq, ts
		w.receivedBits = w.receivedBits<<min(ahead, sessionWindow) | 1
	case ahead > -sessionWindow:
		bit := uint64(1) << -ahead
		if w.receivedBits&bit != 0 {
			return arrivalCopy
		}
		w.receivedBits |= bit
	case strict:
		return arrivalOld
	}
	return arrivalNew
}

// beforeStep reports whether a packet with a later time than that of the newest one left before the sender set its clock
// back.
func (w *seqWindow) beforeStep(seq uint32, ts int64) bool {
	return w.stepTS != 0 && ts <= w.stepTS && w.aheadOf(seq) > -sessionWindow && int32(seq-w.stepSeq) <= 0
}
