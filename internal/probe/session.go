package probe

import "time"

// session is the reflector's side of one sender's session, which is stateful (RFC 8762 section 4.3). It is identified
// by source address, port and SSID.
type session struct {
	key       sessionKey
	peer      *peer
	rx, tx    uint32 // R_RxC, R_TxC
	seq       uint32 // of the next reply
	started   bool
	life      uint64 // of the sender; 0: not known
	firstLife uint64 // the sender's first life in which this session continues
	arrivals  seqWindow
	follows   followUps

	cadence  time.Duration // cadence that the bucket is made for
	bucket   bucket
	lastSeen int64 // monotonic nanoseconds
	restarts uint64
	tagged   uint16 // requests with an in-band signal, modulo 2^16
}

// nextReply counts a reply, and returns its sequence number.
func (s *session) nextReply() (seq uint32) {
	seq = s.seq
	s.seq++
	s.tx++
	return seq
}

// arrival is the class of a probe within its session.
type arrival uint8

const (
	arrivalNew  arrival = iota
	arrivalCopy         // a copy of a probe that was received before
	arrivalOld          // too far behind for the session to know
)

// expectsSeq reports whether a probe with this sequence number is one of the next, or one of the last that have not
// arrived yet.
func (s *session) expectsSeq(seq uint32) bool {
	return s.started && s.arrivals.expectsSeq(seq)
}

// continuesLife reports whether a life is one that the session knows of the process that sends to it now.
func (s *session) continuesLife(life uint64) bool {
	return s != nil && s.started && life != 0 && life >= s.firstLife && life <= s.life
}

// acceptInLife accounts for an authentic probe with a life number that was admitted.
func (s *session) acceptInLife(life uint64, seq uint32, ts int64) arrival {
	switch ahead := s.arrivals.aheadOf(seq); {
	case !s.started || life > s.life && (ahead <= 0 || ahead > sessionAhead):
		s.beginSession(seq, ts)
		s.firstLife, s.life = life, life
	case life < s.firstLife:
		return arrivalOld // the session has a later life
	default:
		if s.life = max(s.life, life); s.firstLife == 0 {
			s.firstLife = life // the sessions before it had none
		}
		if came := s.arrivals.acceptSeq(seq, ts, true); came != arrivalNew {
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
	ahead := s.arrivals.aheadOf(seq)
	if !s.started || ahead <= 0 && ts > s.arrivals.highestTS && !s.arrivals.beforeStep(seq, ts) {
		s.beginSession(seq, ts)
		s.firstLife, s.life = 0, 0
	} else if came := s.arrivals.acceptSeq(seq, ts, strict); came != arrivalNew {
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
		s.follows, s.tagged = followUps{}, 0
	}
	s.started = true
	s.arrivals = seqWindow{highestSeq: seq, highestTS: ts, receivedBits: 1}
}
