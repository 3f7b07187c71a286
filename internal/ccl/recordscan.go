package ccl

import (
	"bytes"
	"math"
)

// recordScanner reads lines of records as AppendRecord writes them, several times faster than a reader of any JSON. It gives up
// on everything else: white space in the record, escapes, other numbers than those of up to 19 digits, members that it does not know or has
// read before. Such lines are for parseAnyRecord, so that both together read what parseAnyRecord reads. Names that lines have in
// common are shared between their records.
type recordScanner struct {
	line  []byte
	i     int
	bad   bool   // the line is not as expected
	seen  uint32 // members of the object that were read, by number
	names map[string]string
}

// Bounds of the names that a recordScanner shares: that many, and so long.
const (
	maxSharedNames = 1 << 16
	maxSharedName  = MaxString
)

// maxScanDigits is the number of digits that times since 1970 have, in nanoseconds. So many fit into 64 bits without a sign.
const maxScanDigits = 19

func newRecordScanner() *recordScanner { return &recordScanner{names: map[string]string{}} }

// parse reads a line and checks the record.
func (s *recordScanner) parse(line []byte) (Record, error) {
	if rec := s.scan(line); rec != nil {
		return rec, rec.check()
	}
	return parseAnyRecord(line)
}

// scan returns the record of a line, or nil if the line is not as AppendRecord writes it.
func (s *recordScanner) scan(line []byte) (rec Record) {
	s.line, s.i, s.bad, s.seen = line, 0, false, 0
	s.expect(`{"kind":"`)
	kind := s.until('"')
	if s.bad {
		return nil
	}
	from := From{Rank: absentRank}
	switch string(kind) {
	case "op":
		o := &Op{From: from, Seq: absentSeq}
		for s.more() {
			s.opMember(o, s.key())
		}
		rec = o
	case "edge":
		e := &Edge{From: from, Seq: absentSeq, Peer: absentRank}
		for s.more() {
			s.edgeMember(e, s.key())
		}
		rec = e
	case "beat":
		b := &Beat{From: from}
		for s.more() {
			s.beatMember(b, s.key())
		}
		rec = b
	default:
		return nil
	}
	if s.bad || len(bytes.TrimSpace(s.line[s.i:])) > 0 {
		return nil
	}
	return rec
}

// fromMember reads a member that operations, transfers and beats have in common. It is false if the key is none of those.
func (s *recordScanner) fromMember(f *From, key []byte) bool {
	switch string(key) {
	case "job":
		f.Job = s.text(0)
	case "comm":
		f.Comm = s.text(1)
	case "rank":
		f.Rank = s.int(2)
	case "n_ranks":
		f.NRanks = s.int(3)
	case "host":
		f.Host = s.text(4)
	case "account":
		f.Account = s.text(5)
	default:
		return false
	}
	return true
}

// opMember reads a member of an operation.
func (s *recordScanner) opMember(o *Op, key []byte) {
	if s.fromMember(&o.From, key) {
		return
	}
	switch string(key) {
	case "seq":
		o.Seq = uint64(s.number(8))
	case "op":
		o.Op = s.text(9)
	case "algo":
		o.Algo = s.text(10)
	case "proto":
		o.Proto = s.text(11)
	case "bytes":
		o.Bytes = new(uint64(s.number(12)))
	case "peer":
		o.Peer = new(s.int(13))
	case "root":
		o.Root = new(s.int(14))
	case "start_ns":
		o.StartNS = s.nanos(15)
	case "end_ns":
		o.EndNS = s.nanos(16)
	case "exec_ns":
		o.ExecNS = s.nanos(17)
	case "timing":
		o.Timing = s.text(18)
	case "state":
		o.State = OpState(s.text(19))
	case "clock_error_ns":
		o.ClockError = s.nanos(20)
	case "gap_ns":
		o.GapNS = s.nanos(21)
	default:
		s.bad = true
	}
}

// edgeMember reads a member of a transfer.
func (s *recordScanner) edgeMember(e *Edge, key []byte) {
	if s.fromMember(&e.From, key) {
		return
	}
	switch string(key) {
	case "seq":
		e.Seq = uint64(s.number(8))
	case "op":
		e.Op = s.text(9)
	case "peer":
		e.Peer = s.int(10)
	case "direction":
		e.Direction = Direction(s.text(11))
	case "channel":
		e.Channel = new(s.int(12))
	case "bytes":
		e.Bytes = new(uint64(s.number(13)))
	case "start_ns":
		e.StartNS = s.nanos(14)
	case "end_ns":
		e.EndNS = s.nanos(15)
	case "gpu_wait_ns":
		e.GPUWait = s.nanos(16)
	case "peer_wait_ns":
		e.PeerWait = s.nanos(17)
	case "wire_ns":
		e.Wire = s.nanos(18)
	case "flush_ns":
		e.Flush = s.nanos(19)
	case "state":
		e.State = s.text(20)
	case "held":
		e.Held = Hold(s.text(21))
	case "since_ns":
		e.Since = s.nanos(22)
	case "clock_error_ns":
		e.ClockError = s.nanos(23)
	default:
		s.bad = true
	}
}

// beatMember reads a member of a beat.
func (s *recordScanner) beatMember(b *Beat, key []byte) {
	if s.fromMember(&b.From, key) {
		return
	}
	switch string(key) {
	case "at_ns":
		b.AtNS = s.nanos(8)
	case "alive":
		b.Alive = new(s.bool(9))
	case "launched":
		b.Launched = s.counts(10)
	case "completed":
		b.Completed = s.counts(11)
	default:
		s.bad = true
	}
}

// expect reads a text.
func (s *recordScanner) expect(text string) {
	if s.bad = s.bad || len(s.line)-s.i < len(text) || string(s.line[s.i:s.i+len(text)]) != text; !s.bad {
		s.i += len(text)
	}
}

// at reports whether a byte follows.
func (s *recordScanner) at(c byte) bool { return !s.bad && s.i < len(s.line) && s.line[s.i] == c }

// more moves to the next member of the record, and returns false behind the last one.
func (s *recordScanner) more() bool {
	if s.at('}') {
		s.i++
		return false
	}
	s.expect(",")
	return !s.bad
}

// key reads the key of a member.
func (s *recordScanner) key() []byte {
	s.expect(`"`)
	key := s.until('"')
	s.expect(":")
	return key
}

// until reads plain text of ASCII up to a byte, and that byte.
func (s *recordScanner) until(end byte) []byte {
	for j := s.i; !s.bad && j < len(s.line); j++ {
		switch c := s.line[j]; {
		case c == end:
			text := s.line[s.i:j]
			s.i = j + 1
			return text
		case c < ' ' || c > '~' || c == '\\':
			s.bad = true
		}
	}
	s.bad = true
	return nil
}

// once notes that the member with a number is read.
func (s *recordScanner) once(member int) {
	s.bad = s.bad || s.seen&(1<<member) != 0
	s.seen |= 1 << member
}

// text reads the string of a member.
func (s *recordScanner) text(member int) string {
	s.once(member)
	s.expect(`"`)
	return s.share(s.until('"'))
}

// share returns a text, of which it keeps one copy.
func (s *recordScanner) share(text []byte) string {
	name, known := s.names[string(text)]
	if !known {
		name = string(text)
		if s.names != nil && len(name) <= maxSharedName {
			if len(s.names) >= maxSharedNames {
				clear(s.names)
			}
			s.names[name] = name
		}
	}
	return name
}

// digits reads a whole number of at least 0.
func (s *recordScanner) digits() int64 {
	n, j := uint64(0), s.i
	for ; !s.bad && j < len(s.line) && s.line[j]-'0' <= 9; j++ {
		n = n*10 + uint64(s.line[j]-'0')
	}
	if long := j - s.i; s.bad || long == 0 || long > maxScanDigits || n > math.MaxInt64 || long > 1 && s.line[s.i] == '0' || j == len(s.line) || s.line[j] != ',' && s.line[j] != '}' {
		s.bad = true
		return 0
	}
	s.i = j
	return int64(n)
}

// number reads the whole number of a member.
func (s *recordScanner) number(member int) int64 {
	s.once(member)
	return s.digits()
}

func (s *recordScanner) int(member int) int { return int(s.number(member)) }

func (s *recordScanner) nanos(member int) Nanos { return KnownNanos(s.number(member)) }

// bool reads the truth value of a member.
func (s *recordScanner) bool(member int) bool {
	s.once(member)
	if s.at('t') {
		s.expect("true")
		return true
	}
	s.expect("false")
	return false
}

// counts reads the numbers of a member by their names.
func (s *recordScanner) counts(member int) map[string]uint64 {
	s.once(member)
	s.expect("{")
	out := map[string]uint64{}
	for first := true; !s.bad; first = false {
		if s.at('}') {
			s.i++
			break
		}
		if !first {
			s.expect(",")
		}
		name := s.share(s.key())
		_, twice := out[name]
		out[name] = uint64(s.digits())
		s.bad = s.bad || twice
	}
	return out
}
