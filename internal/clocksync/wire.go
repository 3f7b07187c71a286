package clocksync

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Limits of input from other hosts.
const (
	MaxReportPairs = 1 << 14
	MaxReportJoins = 1 << 10
	MaxUpdateMaps  = 1 << 16
	maxName        = 255
	maxClock       = 2*maxName + 1 // node/device
	maxDeviation   = 1 << 60       // ns: 36 years, more than the error of any clock
	maxRate        = 1             // a clock that stands still loses this much
)

// wireReader reads numbers and names until the first error. After it, all reads return zero values.
type wireReader struct {
	b   []byte
	err error
}

func (r *wireReader) setError(field, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...))
	}
}

// readUint reads a number up to a maximum.
func (r *wireReader) readUint(field string, most uint64) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.setError(field, "cut short")
		return 0
	}
	if v > most {
		r.setError(field, "%d is more than %d", v, most)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *wireReader) readInt(field string) int64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.setError(field, "cut short")
		return 0
	}
	r.b = r.b[n:]
	return v
}

// readCount reads the number of items that follow, each of which has at least so many octets. This
// bounds the allocation for them by the size of the input.
func (r *wireReader) readCount(field string, most uint64, octets int) int {
	n := r.readUint(field, most)
	if r.err == nil && n > uint64(len(r.b)/octets) {
		r.setError(field, "%d do not fit into %d octets", n, len(r.b))
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

func (r *wireReader) readBytes(field string, n int) []byte {
	if r.err != nil {
		return nil
	}
	if n > len(r.b) {
		r.setError(field, "cut short")
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

// readIndex reads an index into a list of n.
func (r *wireReader) readIndex(field string, n int) uint64 {
	i := r.readUint(field, math.MaxUint64)
	if r.err == nil && i >= uint64(n) {
		r.setError(field, "%d of %d", i, n)
	}
	return i
}

func (r *wireReader) readName(field string, most uint64) string {
	s := string(r.readBytes(field, int(r.readUint(field, most))))
	if r.err == nil && s == "" {
		r.setError(field, "empty")
	}
	return s
}

// readNode reads a name that is valid for a node.
func (r *wireReader) readNode(field string) string {
	s := r.readName(field, maxName)
	if strings.ContainsRune(s, '/') {
		r.setError(field, "%q has a slash", s)
	}
	return s
}

func (r *wireReader) readRate(field string) float64 {
	b := r.readBytes(field, 4)
	if b == nil {
		return 0
	}
	v := float64(math.Float32frombits(binary.BigEndian.Uint32(b)))
	if !rateOK(v) {
		r.setError(field, "%v is not within +-%v", v, maxRate)
	}
	return v
}

func (r *wireReader) readDeviation(field string) float64 {
	b := r.readBytes(field, 2)
	if b == nil {
		return 0
	}
	v := float64(math.Float32frombits(uint32(binary.BigEndian.Uint16(b)) << 16))
	if !deviationOK(v) || math.Signbit(v) {
		r.setError(field, "%v is not within 0..%v", v, maxDeviation)
	}
	return v
}

// checkEnd returns the first error. Octets that are left over are an error.
func (r *wireReader) checkEnd() error {
	if r.err == nil && len(r.b) > 0 {
		return errors.New("unexpected data after the end")
	}
	return r.err
}

func rateOK(v float64) bool      { return math.Abs(v) <= maxRate }
func deviationOK(v float64) bool { return v >= 0 && v <= maxDeviation }

func appendName(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendRate appends 24 bits of a rate: for 30 ppm the error is 2e-12.
func appendRate(b []byte, v float64) []byte {
	return binary.BigEndian.AppendUint32(b, math.Float32bits(float32(v)))
}

// appendDeviation appends 8 bits of a standard deviation, rounded up: it may be too large by a
// hundredth, and is never too small.
func appendDeviation(b []byte, v float64) []byte {
	f := float32(v)
	bits := math.Float32bits(f)
	if float64(f) < v || bits&0xffff != 0 {
		bits += 1 << 16
	}
	return binary.BigEndian.AppendUint16(b, uint16(bits>>16))
}
