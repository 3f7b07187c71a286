package probe

import (
	"math/bits"
	"time"

	"github.com/graylink/graylink/internal/stamp"
)

// seqNewer reports whether sequence number a comes after b, modulo 2^32.
func seqNewer(a, b uint32) bool { return int32(a-b) > 0 }

// slotState is the fate of one probe.
type slotState uint8

const (
	slotEmpty    slotState = iota
	slotWaiting            // sent
	slotAnswered           // a reply arrived
)

// sentSlot represents one probe until its place in the ring is needed again.
type sentSlot struct {
	seq      uint32
	state    slotState
	measured bool      // its forward delay is in a histogram
	t2Kind   stampKind // kind of the stamp t2
	mono     int64     // time at which it was sent, monotonic nanoseconds
	t1       [stampKinds]int64
	t2       int64
}

// replySlot represents one reply until its transmit stamp arrives.
type replySlot struct {
	seq      uint32
	used     bool
	measured bool  // its reverse delay is in a histogram
	t3       int64 // user-space transmit time, from the reply itself
	t4       stampedTime
}

const (
	forward = iota
	reverse
	directions
)

// FlowCounters holds the sender's counts of one edge. Lost, ECN and Unplaced are by direction, forward first.
type FlowCounters struct {
	Sent        uint64 // probes handed to the kernel
	Acked       uint64 // answered within the reply timeout
	Late        uint64 // answered after the reply timeout
	Duplicate   uint64 // replies to probes that were already answered, and copies of replies
	Reordered   uint64 // replies that arrived after a reply to a later probe
	Lost        [2]uint64
	ECN         [2]uint64 // marked CE
	RepliesSent uint64    // as the reflector reports
	Restarts    uint64    // restarts of the reflector
	Missing     [4]uint64 // samples without the kernel's T1, T2, T3, T4
	Refused     uint64    // sent while a switch refused the carrier that lists their path
	Unplaced    [2]uint64 // samples whose clocks were not related, under clock sync
}

// flow is the sender's account of one edge. The tests are named after these rules:
//
//  1. A reply within the timeout counts as acked, and one after it as late. Neither is lost.
//  2. The direction of a loss comes from Direct Measurement. Between two replies, probes that were sent and not
//     received are lost forward, and replies that the reflector sent and that did not arrive are lost in reverse. A gap
//     that closes within settleEvery is reordering, not loss.
//  3. Probes that no later reply gives information about stay unresolved.
//  4. A second reply to a probe, or a copy of a reply, counts as a duplicate and as nothing else.
//  5. A reflector that restarts begins a new account. Its restart causes no loss. Neither does a new LID of either end
//     on InfiniBand, which the other one learns later.
//  6. Sequence numbers and counters wrap.
//  7. A delay is measured between stamps of one kind, or under the label of user space if one of them is missing, but
//     never between two different better kinds. If there are no better stamps, T1 and T3 are the times at which a
//     packet was handed over, not those at which it was written.
type flow struct {
	FlowCounters
	owd            [directions][stampKinds]Histogram
	clocks         *clocks // nil means the far stamps are used as they are
	userStampsOnly bool    // there are only the program's own stamps

	timeout int64 // nanoseconds
	sent    []sentSlot
	replies []replySlot

	seq    uint32 // of the next probe
	issued uint64 // sequence numbers used
	tx     uint32 // S_TxC: probes sent, modulo 2^32

	hasAnswer       bool   // reports whether highestAnswered and lastAcked are valid
	highestAnswered uint32 // highest sequence number that was answered
	lastAcked       int64  // time of the last answer within the timeout, monotonic nanoseconds

	losses lossAccount
}

// settleEvery is the time that a gap must last to count as loss. Packets of one flow overtake each other on a fabric
// within less than that.
const settleEvery = 100 * time.Millisecond

func newFlow(cadence, timeout time.Duration) flow {
	n := ringSize(2 * int(timeout/cadence))
	return flow{timeout: int64(timeout), sent: make([]sentSlot, n), replies: make([]replySlot, n)}
}

// setPace changes the cadence and the timeout. Packets in flight stay known as far as the new rings reach.
func (f *flow) setPace(cadence, timeout time.Duration) {
	f.timeout = int64(timeout)
	n := ringSize(2 * int(timeout/cadence))
	if n == len(f.sent) {
		return
	}
	sent, replies := f.sent, f.replies
	f.sent, f.replies = make([]sentSlot, n), make([]replySlot, n)
	for i := range sent {
		old := &sent[i]
		switch to := &f.sent[int(old.seq)&(n-1)]; {
		case old.state == slotEmpty:
		case to.state == slotEmpty:
			*to = *old
		case seqNewer(old.seq, to.seq):
			f.closeSent(to)
			*to = *old
		default:
			f.closeSent(old)
		}
	}
	for i := range replies {
		old := &replies[i]
		switch to := &f.replies[int(old.seq)&(n-1)]; {
		case !old.used:
		case !to.used:
			*to = *old
		case seqNewer(old.seq, to.seq):
			f.closeReply(to)
			*to = *old
		default:
			f.closeReply(old)
		}
	}
}

// ringSize returns the smallest power of two that holds n, within bounds.
func ringSize(n int) int {
	n = max(16, min(n, 1<<16))
	return 1 << bits.Len(uint(n-1))
}

// nextProbe returns the next sequence number and S_TxC for a probe that is sent now.
func (f *flow) nextProbe(mono, user int64) (seq, senderTx uint32) {
	seq = f.seq
	f.seq++
	f.issued++
	f.tx++
	f.Sent++
	s := &f.sent[int(seq)&(len(f.sent)-1)]
	f.closeSent(s)
	*s = sentSlot{seq: seq, state: slotWaiting, mono: mono}
	s.t1[userStamps] = user
	return seq, f.tx
}

// sendFailed takes back a probe that was never sent.
func (f *flow) sendFailed(seq uint32) {
	f.tx--
	f.Sent--
	if s := f.slotOf(seq); s != nil {
		*s = sentSlot{}
	}
}

func (f *flow) slotOf(seq uint32) *sentSlot {
	s := &f.sent[int(seq)&(len(f.sent)-1)]
	if s.state == slotEmpty || s.seq != seq {
		return nil
	}
	return s
}

// txStamp records the transmit stamp of a probe.
func (f *flow) txStamp(seq uint32, kind stampKind, at int64) {
	s := f.slotOf(seq)
	if s == nil || s.t1[kind] != 0 {
		return
	}
	s.t1[kind] = at
	f.measureForward(s)
}

// setSendTime records when a probe left the program, if that is known better than the time at which it was written.
func (f *flow) setSendTime(seq uint32, at int64) {
	if s := f.slotOf(seq); s != nil && s.state == slotWaiting {
		s.t1[userStamps] = at
	}
}

// measureForward records T2-T1 once both are stamps of one kind.
func (f *flow) measureForward(s *sentSlot) {
	if f.userStampsOnly && s.state == slotAnswered && !s.measured {
		s.measured = true
		f.recordExchange(forward, userStamps, s.t1[userStamps], s.t2)
		f.measureDelay(forward, userStamps, s.t1[userStamps], s.t2)
		return
	}
	if t1 := s.t1[s.t2Kind]; s.state == slotAnswered && !s.measured && s.t2Kind != userStamps && t1 != 0 {
		s.measured = true
		f.recordExchange(forward, s.t2Kind, t1, s.t2)
		f.measureDelay(forward, s.t2Kind, t1, s.t2)
	}
}

// closeSent records the user-space sample of an answered probe whose stamps stayed incomplete, before its slot is used
// again.
func (f *flow) closeSent(s *sentSlot) {
	if s.state != slotAnswered || s.measured {
		return
	}
	if s.t2Kind == userStamps {
		f.Missing[1]++
	}
	if s.t1[max(s.t2Kind, kernelStamps)] == 0 {
		f.Missing[0]++
	}
	f.measureDelay(forward, userStamps, s.t1[userStamps], s.t2)
}

func (f *flow) closeReply(r *replySlot) {
	if !r.used || r.measured {
		return
	}
	if f.userStampsOnly {
		// The reply itself states when it was written.
	} else if r.t4[kernelStamps] != 0 {
		f.Missing[2]++
	} else {
		f.Missing[3]++
	}
	f.measureDelay(reverse, userStamps, r.t4.bestSoftware(), r.t3)
}

// reply represents a received reply.
type reply struct {
	seq       uint32 // the reflector's
	senderSeq uint32
	t2, t3    int64
	t4        stampedTime
	ecn       uint8
	answers   stamp.Answers
}

// outcome is the class of a reply.
type outcome uint8

const (
	outcomeAcked outcome = iota
	outcomeLate
	outcomeDuplicate
	outcomeUnsolicited // answers no probe of this flow
)

const ceMark = 3 // RFC 3168 section 5: congestion experienced

// acceptReply accounts for a reply that was received at the monotonic time mono, and returns its class.
func (f *flow) acceptReply(mono int64, r *reply) outcome {
	if age := f.seq - r.senderSeq; age == 0 || uint64(age) > f.issued {
		return outcomeUnsolicited
	}
	if !f.countReply(r) {
		f.Duplicate++
		return outcomeDuplicate
	}
	f.followUp(&r.answers)
	s := f.slotOf(r.senderSeq)
	if s != nil && s.state == slotAnswered {
		f.Duplicate++
		return outcomeDuplicate
	}
	if r.answers.Has.Has(stamp.TypeClassOfService) && r.answers.ClassOfService.ECN == ceMark {
		f.ECN[forward]++
	}
	if r.ecn == ceMark {
		f.ECN[reverse]++
	}
	if f.hasAnswer && !seqNewer(r.senderSeq, f.highestAnswered) {
		f.Reordered++
	} else {
		f.highestAnswered, f.hasAnswer = r.senderSeq, true
	}
	if s == nil {
		// Its slot is in use again, which takes longer than the timeout.
		f.Late++
		return outcomeLate
	}
	s.state = slotAnswered
	s.t2 = r.t2
	s.t2Kind = userStamps
	if r.answers.Has.Has(stamp.TypeTimestampInfo) {
		s.t2Kind = kindOf(r.answers.TimestampInfo.MethodIn)
	}
	f.measureForward(s)
	if mono-s.mono > f.timeout {
		f.Late++
		return outcomeLate
	}
	f.Acked++
	f.lastAcked = mono
	return outcomeAcked
}

// countReply does the accounting by the reflector's sequence number and counters. It returns false for a copy of a
// reply.
func (f *flow) countReply(r *reply) bool {
	direct := r.answers.Has.Has(stamp.TypeDirectMeasurement)
	if direct && f.losses.reflectorRestarted(r, f.highestAnswered) {
		f.Restarts++
		f.losses.hasBase = false
		for i := range f.replies {
			f.closeReply(&f.replies[i])
			f.replies[i] = replySlot{}
		}
	}
	slot := &f.replies[int(r.seq)&(len(f.replies)-1)]
	if slot.used && !seqNewer(r.seq, slot.seq) {
		if slot.seq == r.seq {
			return false
		}
		// The reply is older than the ring is long, so it is too late to be measured.
	} else {
		f.closeReply(slot)
		*slot = replySlot{seq: r.seq, used: true, t3: r.t3, t4: r.t4}
	}
	if direct {
		f.RepliesSent += f.losses.countReply(r)
	}
	return true
}

// settleLoss counts gaps that lasted since the last call as loss. It must be called every settleEvery.
func (f *flow) settleLoss() {
	gap := f.losses.settleGaps()
	for d := range directions {
		if gap[d] > int64(f.Lost[d]) {
			f.Lost[d] = uint64(gap[d])
		}
	}
}

// followUp sets the transmit stamp of an earlier reply.
func (f *flow) followUp(a *stamp.Answers) {
	if !a.Has.Has(stamp.TypeFollowUp) || a.FollowUp.Timestamp == 0 {
		return
	}
	kind := kindOf(a.FollowUp.Method)
	if f.userStampsOnly {
		kind = userStamps // the far end may have better ones, but this one has none
	}
	r := &f.replies[int(a.FollowUp.Seq)&(len(f.replies)-1)]
	if kind == userStamps && !f.userStampsOnly || !r.used || r.measured || r.seq != a.FollowUp.Seq || r.t4[kind] == 0 {
		return
	}
	t3 := a.FollowUp.Timestamp.NanosPTP()
	if d := t3 - r.t3; d < -maxStampDistance || d > maxStampDistance {
		// A session that started anew uses the number again. The stamp is not that of this reply.
		return
	}
	r.measured = true
	f.recordExchange(reverse, kind, t3, r.t4[kind])
	f.measureDelay(reverse, kind, r.t4[kind], t3)
}

// maxStampDistance is longer than any kernel takes from user space to its transmit stamp, and shorter than the time
// until a sequence number is used again.
const maxStampDistance = int64(10 * time.Second)

// unresolvedProbes returns the number of probes that nothing is known about.
func (f *flow) unresolvedProbes() uint64 {
	known := f.Acked + f.Late + f.Lost[forward] + f.Lost[reverse]
	if known > f.Sent {
		return 0
	}
	return f.Sent - known
}
