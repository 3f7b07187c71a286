package probe

// lossAccount compares the counters in the replies of one flow (RFC 8972, Direct Measurement) with what was sent and
// received since the first reply of the present reflector. Counts continue when the reflector restarts.
type lossAccount struct {
	hasBase          bool // reports whether the fields up to lastT2 are valid
	baseSeq          uint32
	lastS, lastR     uint32 // S_TxC, R_RxC, R_TxC of the newest replies
	lastX            uint32
	lastT2           int64 // T2 of the reply that lastR came with
	cumS, cumR, cumX int64
	received         int64 // replies since baseSeq, without copies
	lowestGap        [directions]int64
	interrupted      bool   // the reply to the probe resumesAt or a later one is not compared with those before it
	resumesAt        uint32 // sequence number of a probe
}

// interrupt makes the account continue with the first reply to a probe that is sent from now on, of which next is the
// first. What is lost until then is unknown, because probes or replies went to an address that had ended.
func (l *lossAccount) interrupt(next uint32) { l.interrupted, l.resumesAt = true, next }

// reflectorRestarted reports whether a reply comes from a reflector that has lost the earlier ones. Such a reflector
// answers a later probe than highestAnswered and yet has received fewer. A reply that was overtaken answers an earlier
// probe. If the order changed in both directions, its T2 is the earlier one and its count is close. T2 alone is not
// sufficient, because the reflector's clock may have been set back.
func (l *lossAccount) reflectorRestarted(r *reply, highestAnswered uint32) bool {
	rx := r.answers.DirectMeasurement.ReflectorRx
	return l.hasBase && seqNewer(l.lastR, rx) && seqNewer(r.senderSeq, highestAnswered) && (r.t2 > l.lastT2 || l.lastR-rx > sessionWindow)
}

// countReply adds up the counters of a reply, and returns the number of replies that were sent since the last one.
func (l *lossAccount) countReply(r *reply) (sent uint64) {
	dm := r.answers.DirectMeasurement
	if l.interrupted && !seqNewer(l.resumesAt, r.senderSeq) {
		l.interrupted, l.hasBase = false, false
	}
	if !l.hasBase {
		l.hasBase = true
		l.baseSeq = r.seq
		l.lastS, l.lastR, l.lastX, l.lastT2 = dm.SenderTx, dm.ReflectorRx, dm.ReflectorTx, r.t2
		l.cumS++
		l.cumR++
		l.cumX++
		l.received++
		return 1
	}
	if seqNewer(dm.SenderTx, l.lastS) {
		l.cumS += int64(dm.SenderTx - l.lastS)
		l.lastS = dm.SenderTx
	}
	if seqNewer(dm.ReflectorRx, l.lastR) {
		l.cumR += int64(dm.ReflectorRx - l.lastR)
		l.lastR, l.lastT2 = dm.ReflectorRx, r.t2
	}
	if seqNewer(dm.ReflectorTx, l.lastX) {
		sent = uint64(dm.ReflectorTx - l.lastX)
		l.cumX += int64(sent)
		l.lastX = dm.ReflectorTx
	}
	if !seqNewer(l.baseSeq, r.seq) {
		l.received++
	}
	for d, gap := range l.missingPackets() {
		l.lowestGap[d] = min(l.lowestGap[d], gap)
	}
	return sent
}

// missingPackets returns the numbers of packets that are missing now, by direction.
func (l *lossAccount) missingPackets() [directions]int64 {
	return [directions]int64{l.cumS - l.cumR, l.cumX - l.received}
}

// settleGaps returns the smallest numbers of packets that were missing since the last call, by direction.
func (l *lossAccount) settleGaps() [directions]int64 {
	now := l.missingPackets()
	lowest := now
	for d := range lowest {
		lowest[d] = min(lowest[d], l.lowestGap[d])
	}
	l.lowestGap = now
	return lowest
}
