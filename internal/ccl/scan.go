package ccl

import (
	"math"

	"github.com/graylink/graylink/internal/jsonscan"
)

// maxDepth is the greatest depth of nested values that the pickle reader goes into.
const maxDepth = jsonscan.MaxDepth

// scanner reads the values of records.
type scanner struct{ jsonscan.Scanner }

// rank reads a whole number that may be a rank. A number below zero is -1, which is none.
func (s *scanner) rank() int {
	if s.Err() == nil && s.Peek() == '-' {
		s.Skip()
		return absentRank
	}
	n := s.Uint()
	if n > math.MaxInt32 {
		s.Wrong("a rank")
		return absentRank
	}
	return int(n)
}

// time reads microseconds since 1970. 0 stands for a time that is unknown.
func (s *scanner) time() Nanos {
	ns := s.Micros()
	return Nanos{NS: ns, Known: ns != 0 && s.Err() == nil}
}

// duration reads a number of microseconds.
func (s *scanner) duration() Nanos {
	ns := s.Micros()
	return Nanos{NS: ns, Known: s.Err() == nil}
}
