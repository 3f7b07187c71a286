package klog

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Record is one record of the kernel's log.
type Record struct {
	// Seq is the kernel's number of the record in this boot. The journal does not keep it: 0 there.
	Seq uint64
	// Boot is the kernel's time of the record, since boot, without the time that the machine was suspended.
	Boot     time.Duration
	Level    Level
	Facility Facility
	// Text is valid UTF-8, and may have newlines.
	Text string
	// Tags hold what the kernel's device model adds to the record: SUBSYSTEM=pci, DEVICE=+pci:0000:17:00.0. Nil means
	// that there are none.
	Tags map[string]string
}

// Level is syslog's severity, 0 (emerg) to 7 (debug).
type Level uint8

var levels = [...]string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"}

func (l Level) String() string {
	if int(l) < len(levels) {
		return levels[l]
	}
	return strconv.Itoa(int(l))
}

// Facility is syslog's facility. Only the kernel's own records have FacilityKernel.
type Facility uint8

// FacilityKernel is LOG_KERN.
const FacilityKernel Facility = 0

// ErrMalformed marks the errors of the parsers: errors.Is holds for it.
var ErrMalformed = errors.New("malformed record")

// ParseKmsg parses one record as read(2) of /dev/kmsg returns it; the last newline may be missing.
// Documentation/ABI/testing/dev-kmsg of the kernel: "priority,sequence,microseconds,flags;text", then lines that start
// with a space, of the form KEY=value. More fields may come before the semicolon. Errors are ErrMalformed.
func ParseKmsg(b []byte) (Record, error) {
	head, rest, ok := bytes.Cut(b, []byte(";"))
	if !ok {
		return Record{}, fmt.Errorf("%w: no semicolon", ErrMalformed)
	}
	fields := strings.Split(string(head), ",")
	if len(fields) < 4 {
		return Record{}, fmt.Errorf("%w: %d fields before the text, want at least 4", ErrMalformed, len(fields))
	}
	// Three bits of level, eight of facility.
	prio, err := strconv.ParseUint(fields[0], 10, 11)
	if err != nil {
		return Record{}, fmt.Errorf("%w: priority %.40q", ErrMalformed, fields[0])
	}
	seq, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return Record{}, fmt.Errorf("%w: sequence number %.40q", ErrMalformed, fields[1])
	}
	usec, err := strconv.ParseUint(fields[2], 10, 64)
	if err != nil || usec > math.MaxInt64/uint64(time.Microsecond) {
		return Record{}, fmt.Errorf("%w: time %.40q", ErrMalformed, fields[2])
	}
	text, tags, _ := bytes.Cut(bytes.TrimSuffix(rest, []byte("\n")), []byte("\n"))
	r := Record{
		Seq:      seq,
		Boot:     time.Duration(usec) * time.Microsecond,
		Level:    Level(prio & 7),
		Facility: Facility(prio >> 3),
		Text:     unescapeText(text),
	}
	for line := range bytes.SplitSeq(tags, []byte("\n")) {
		if len(line) == 0 || line[0] != ' ' {
			continue
		}
		key, value, ok := bytes.Cut(line[1:], []byte("="))
		if !ok || len(key) == 0 {
			continue
		}
		if r.Tags == nil {
			r.Tags = make(map[string]string)
		}
		r.Tags[unescapeText(key)] = unescapeText(value)
	}
	return r, nil
}

// unescapeText undoes the \xNN that the kernel writes for octets that are not printable ASCII, and for the backslash.
// Anything else after a backslash stays as it is: kernels before 3.6 did not escape.
func unescapeText(b []byte) string {
	if bytes.IndexByte(b, '\\') >= 0 {
		out := make([]byte, 0, len(b))
		for i := 0; i < len(b); i++ {
			if b[i] == '\\' && i+3 < len(b) && b[i+1] == 'x' {
				if v, err := strconv.ParseUint(string(b[i+2:i+4]), 16, 8); err == nil {
					out = append(out, byte(v))
					i += 3
					continue
				}
			}
			out = append(out, b[i])
		}
		b = out
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
