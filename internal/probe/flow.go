package probe

import (
	"math"
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

// stampKind is the kind of a time: taken by the program, by the kernel or by the NIC, whose clock is translated to the
// system's (hwstamp.go). A higher kind is better.
type stampKind uint8

const (
	userStamps stampKind = iota
	kernelStamps
	hardwareStamps
	stampKinds
)

var kindNames = [stampKinds]string{"user", "kernel", "hardware"}

// stampedTime represents one moment by each kind of stamp; 0 means that the kind is not known.
type stampedTime [stampKinds]int64

func (t *stampedTime) bestSoftware() int64 {
	if t[kernelStamps] != 0 {
		return t[kernelStamps]
	}
	return t[userStamps]
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
//  5. A reflector that restarts begins a new account. Its restart causes no loss.
//  6. Sequence numbers and counters wrap.
//  7. A delay is measured between stamps of one kind, or under the label of user space if one of them is missing, but
//     never between two different better kinds. If there are no better stamps, T1 and T3 are the times at which a
//     packet was handed over, not those at which it was written.
type flow struct {
	FlowCounters
	owd            [directions][stampKinds]Histogram
	clocks         *clocks // nil: the far stamps are used as they are
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

	hasBase          bool // reports whether the fields below are valid
	baseSeq          uint32
	lastS, lastR     uint32 // S_TxC, R_RxC, R_TxC of the newest replies
	lastX            uint32
	lastT2           int64 // T2 of the reply that lastR came with
	cumS, cumR, cumX int64
	received         int64 // replies since baseSeq, without copies
	lowestGap        [2]int64
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

// kindOf translates a method of RFC 8972 section 5.5. Reflectors of this project write HW Assist for the NIC's stamps,
// SW Local for the kernel's and Control Plane for user space.
func kindOf(m stamp.Method) stampKind {
	switch m {
	case stamp.MethodHardware:
		return hardwareStamps
	case stamp.MethodSoftware:
		return kernelStamps
	}
	return userStamps
}

func (k stampKind) stampMethod() stamp.Method {
	return [stampKinds]stamp.Method{stamp.MethodControl, stamp.MethodSoftware, stamp.MethodHardware}[k]
}

// countReply does the accounting by the reflector's sequence number and counters. It returns false for a copy of a
// reply.
func (f *flow) countReply(r *reply) bool {
	direct := r.answers.Has.Has(stamp.TypeDirectMeasurement)
	dm := r.answers.DirectMeasurement
	if direct && f.hasBase && f.reflectorRestarted(r) {
		f.Restarts++
		f.hasBase = false
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
	if !direct {
		return true
	}
	if !f.hasBase {
		f.hasBase = true
		f.baseSeq = r.seq
		f.lastS, f.lastR, f.lastX, f.lastT2 = dm.SenderTx, dm.ReflectorRx, dm.ReflectorTx, r.t2
		f.cumS++
		f.cumR++
		f.cumX++
		f.received++
		f.RepliesSent++
		return true
	}
	if seqNewer(dm.SenderTx, f.lastS) {
		f.cumS += int64(dm.SenderTx - f.lastS)
		f.lastS = dm.SenderTx
	}
	if seqNewer(dm.ReflectorRx, f.lastR) {
		f.cumR += int64(dm.ReflectorRx - f.lastR)
		f.lastR, f.lastT2 = dm.ReflectorRx, r.t2
	}
	if seqNewer(dm.ReflectorTx, f.lastX) {
		f.cumX += int64(dm.ReflectorTx - f.lastX)
		f.RepliesSent += uint64(dm.ReflectorTx - f.lastX)
		f.lastX = dm.ReflectorTx
	}
	if !seqNewer(f.baseSeq, r.seq) {
		f.received++
	}
	gap := f.missingPackets()
	f.lowestGap[forward] = min(f.lowestGap[forward], gap[forward])
	f.lowestGap[reverse] = min(f.lowestGap[reverse], gap[reverse])
	return true
}

// reflectorRestarted reports whether a reply comes from a reflector that has lost the earlier ones. Such a reflector
// answers a later probe and yet has received fewer. A reply that was overtaken answers an earlier probe. If the order
// changed in both directions, its T2 is the earlier one and its count is close. T2 alone is not sufficient, because the
// reflector's clock may have been set back.
func (f *flow) reflectorRestarted(r *reply) bool {
	rx := r.answers.DirectMeasurement.ReflectorRx
	return seqNewer(f.lastR, rx) && seqNewer(r.senderSeq, f.highestAnswered) && (r.t2 > f.lastT2 || f.lastR-rx > sessionWindow)
}

// missingPackets returns the numbers of packets that are missing now, by direction.
func (f *flow) missingPackets() [2]int64 { return [2]int64{f.cumS - f.cumR, f.cumX - f.received} }

// settleLoss counts gaps that lasted since the last call as loss. It must be called every settleEvery.
func (f *flow) settleLoss() {
	gap := f.missingPackets()
	for d := range directions {
		if lost := min(f.lowestGap[d], gap[d]); lost > int64(f.Lost[d]) {
			f.Lost[d] = uint64(lost)
		}
		f.lowestGap[d] = gap[d]
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

// session is the reflector's side of one sender's session, which is stateful (RFC 8762 section 4.3). It is identified
// by source address, port and SSID.
type session struct {
	key          sessionKey
	peer         *peer
	rx, tx       uint32 // R_RxC, R_TxC
	seq          uint32 // of the next reply
	highestSeq   uint32 // sequence number of the sender
	highestTS    int64  // the sender's time in that packet
	receivedBits uint64 // bit i: highest-i was received
	stepSeq      uint32 // the highest one before the sender's clock was set back
	stepTS       int64  // the sender's time in that packet; 0: never
	started      bool
	life         uint64 // of the sender; 0: not known
	firstLife    uint64 // the sender's first life in which this session continues

	follows        [followsKept]stamp.FollowUp // transmit stamps that are not yet reported, oldest first
	firstFollow    int
	pendingFollows int
	cadence        time.Duration // cadence that the bucket is made for
	bucket         bucket
	lastSeen       int64 // monotonic nanoseconds
	restarts       uint64
}

// nextReply counts a reply, and returns its sequence number.
func (s *session) nextReply() (seq uint32) {
	seq = s.seq
	s.seq++
	s.tx++
	return seq
}

// followsKept limits the transmit stamps that wait to be reported. Replies to probes that were read together leave
// before the first one's stamp is available. Each later reply carries one stamp, the oldest, so that none is skipped.
const followsKept = 16

// addFollowUp records the transmit stamp of a reply. If too many wait, the oldest is discarded.
func (s *session) addFollowUp(f stamp.FollowUp) {
	if s.pendingFollows == followsKept {
		s.firstFollow = (s.firstFollow + 1) % followsKept
		s.pendingFollows--
	}
	s.follows[(s.firstFollow+s.pendingFollows)%followsKept] = f
	s.pendingFollows++
}

// nextFollowUp returns the oldest stamp that is not yet reported. If there is none, it returns the one reported last,
// or zero.
func (s *session) nextFollowUp() stamp.FollowUp {
	if s.pendingFollows == 0 {
		return s.follows[(s.firstFollow+followsKept-1)%followsKept]
	}
	f := s.follows[s.firstFollow]
	s.firstFollow = (s.firstFollow + 1) % followsKept
	s.pendingFollows--
	return f
}

// arrival is the class of a probe within its session.
type arrival uint8

const (
	arrivalNew  arrival = iota
	arrivalCopy         // a copy of a probe that was received before
	arrivalOld          // too far behind for the session to know
)

// sessionWindow is the number of past sequence numbers that a session knows.
const sessionWindow = 64

// sessionAhead is the number of sequence numbers by which an expected probe may be ahead of the last one. A fast flow
// sends that many during an outage of seconds.
const sessionAhead = 1024

// expectsSeq reports whether a probe with this sequence number is one of the next, or one of the last that have not
// arrived yet.
func (s *session) expectsSeq(seq uint32) bool {
	ahead := int32(seq - s.highestSeq)
	return s.started && ahead > -sessionWindow && ahead <= sessionAhead && (ahead > 0 || s.receivedBits&(1<<-ahead) == 0)
}

// continuesLife reports whether a life is one that the session knows of the process that sends to it now.
func (s *session) continuesLife(life uint64) bool {
	return s != nil && s.started && life != 0 && life >= s.firstLife && life <= s.life
}

// acceptInLife accounts for an authentic probe with a life number that was admitted.
func (s *session) acceptInLife(life uint64, seq uint32, ts int64) arrival {
	switch ahead := int32(seq - s.highestSeq); {
	case !s.started || life > s.life && (ahead <= 0 || ahead > sessionAhead):
		s.beginSession(seq, ts)
		s.firstLife, s.life = life, life
	case life < s.firstLife:
		return arrivalOld // the session has a later life
	default:
		if s.life = max(s.life, life); s.firstLife == 0 {
			s.firstLife = life // the sessions before it had none
		}
		if came := s.acceptSeq(ahead, seq, ts, true); came != arrivalNew {
			return came
		}
	}
	s.rx++
	return arrivalNew
}

// acceptProbe accounts for a probe of the session that carries no life number. A lower sequence number with a later
// time shows that the sender restarted. One with an earlier time was overtaken, and so was one of a sender that set its
// clock back in the meantime. Unless strict is true, a probe that is too old to be known counts as new. Only authentic
// packets allow a late probe to be distinguished from a replayed one.
func (s *session) acceptProbe(seq uint32, ts int64, strict bool) arrival {
	ahead := int32(seq - s.highestSeq)
	if !s.started || ahead <= 0 && ts > s.highestTS && !s.beforeStep(ahead, ts) {
		s.beginSession(seq, ts)
		s.firstLife, s.life = 0, 0
	} else if came := s.acceptSeq(ahead, seq, ts, strict); came != arrivalNew {
		return came
	}
	s.rx++
	return arrivalNew
}

// beginSession starts the session, or starts it anew, with a probe.
func (s *session) beginSession(seq uint32, ts int64) {
	if s.started {
		s.restarts++
		s.rx, s.tx, s.seq = 0, 0, 0
		s.pendingFollows = 0
		s.follows = [followsKept]stamp.FollowUp{}
	}
	s.started = true
	s.highestSeq, s.highestTS, s.receivedBits = seq, ts, 1
	s.stepTS = 0
}

// acceptSeq accounts for the sequence number of a probe of a session that continues.
func (s *session) acceptSeq(ahead int32, seq uint32, ts int64, strict bool) arrival {
	switch {
	case ahead > 0:
		if ts < s.highestTS {
			s.stepSeq, s.stepTS = s.highestSeq, s.highestTS
		}
		s.highestSeq, s.highestTS = seq, ts
		s.receivedBits = s.receivedBits<<min(ahead, sessionWindow) | 1
	case ahead > -sessionWindow:
		bit := uint64(1) << -ahead
		if s.receivedBits&bit != 0 {
			return arrivalCopy
		}
		s.receivedBits |= bit
	case strict:
		return arrivalOld
	}
	return arrivalNew
}

// beforeStep reports whether a probe with a later time than that of the newest one left before the sender set its clock
// back.
func (s *session) beforeStep(ahead int32, ts int64) bool {
	return s.stepTS != 0 && ts <= s.stepTS && ahead > -sessionWindow && int32(uint32(ahead)+s.highestSeq-s.stepSeq) <= 0
}

// bucket is a token bucket with rate tokens per second and at most burst of them.
type bucket struct {
	rate, burst float64
	tokens      float64
	refilledAt  int64 // monotonic nanoseconds
}

func newBucket(rate, burst float64, mono int64) bucket {
	return bucket{rate: rate, burst: burst, tokens: burst, refilledAt: mono}
}

// hasToken reports whether there is a token.
func (b *bucket) hasToken(mono int64) bool {
	b.tokens = math.Min(b.burst, b.tokens+float64(mono-b.refilledAt)*b.rate/1e9)
	b.refilledAt = mono
	return b.tokens >= 1
}

// maySpend reports whether a packet may be verified. An expected packet may be as long as there is a token, and any
// other packet only as long as the bucket is half full.
func (b *bucket) maySpend(mono int64, expected bool) bool {
	return b.hasToken(mono) && (expected || b.tokens >= b.burst/2)
}

// spendTokens takes tokens even if there are not enough, so that the balance may become negative.
func (b *bucket) spendTokens(mono int64, tokens float64) {
	b.hasToken(mono)
	b.tokens = max(0, b.tokens-tokens)
}

// takeToken takes one token if there is one, and reports whether it did.
func (b *bucket) takeToken(mono int64) bool {
	if !b.hasToken(mono) {
		return false
	}
	b.tokens--
	return true
}
