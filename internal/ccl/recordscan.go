package ccl

import (
	"math"

	"github.com/graylink/graylink/internal/jsonscan"
)

// recordScanner reads lines of records several times faster than a reader of any JSON. It gives up on what AppendRecord does not
// write: a kind that is not the first member, other numbers than whole ones, members that it does not know or has read before. Such lines
// are for parseAnyRecord, so that both together read what parseAnyRecord reads. Names that lines have in common are shared between their
// records.
type recordScanner struct {
	jsonscan.Scanner
	bad   bool   // the line is not as expected
	seen  uint32 // members of the object that were read, by number
	names map[string]string
}

// Bounds of the names that a recordScanner shares: that many, and so long.
const (
	maxSharedNames = 1 << 16
	maxSharedName  = MaxString
)

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
	s.Reset(line)
	s.bad, s.seen = false, 0
	s.Enter('{')
	if !s.Key() || string(s.Name) != "kind" {
		return nil
	}
	kind := s.Text()
	from := From{Rank: absentRank}
	switch string(kind) {
	case "op":
		o := &Op{From: from, Seq: absentSeq}
		for s.Key() {
			s.opMember(o, s.Name)
		}
		rec = o
	case "edge":
		e := &Edge{From: from, Seq: absentSeq, Peer: absentRank}
		for s.Key() {
			s.edgeMember(e, s.Name)
		}
		rec = e
	case "beat":
		b := &Beat{From: from}
		for s.Key() {
			s.beatMember(b, s.Name)
		}
		rec = b
	default:
		return nil
	}
	if s.bad || s.End() != nil {
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

// once notes that the member with a number is read.
func (s *recordScanner) once(member int) {
	s.bad = s.bad || s.seen&(1<<member) != 0
	s.seen |= 1 << member
}

// text reads the string of a member.
func (s *recordScanner) text(member int) string {
	s.once(member)
	return s.share(s.Text())
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

// number reads the whole number of a member.
func (s *recordScanner) number(member int) int64 {
	s.once(member)
	return int64(s.UintTo(math.MaxInt64))
}

func (s *recordScanner) int(member int) int { return int(s.number(member)) }

func (s *recordScanner) nanos(member int) Nanos { return KnownNanos(s.number(member)) }

// bool reads the truth value of a member.
func (s *recordScanner) bool(member int) bool {
	s.once(member)
	return s.Bool()
}

// counts reads the numbers of a member by their names.
func (s *recordScanner) counts(member int) map[string]uint64 {
	s.once(member)
	out := map[string]uint64{}
	for s.Enter('{'); s.Key(); {
		name := s.share(s.Name)
		_, twice := out[name]
		s.bad = s.bad || twice
		out[name] = s.UintTo(math.MaxInt64)
	}
	return out
}
