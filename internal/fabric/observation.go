package fabric

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// PathState says how far the path of an observation can be trusted.
type PathState string

// Path states of the observation file.
const (
	PathValid   PathState = "valid"
	PathStale   PathState = "stale"
	PathUnknown PathState = "unknown"
)

// Quantiles are a window's one-way delays in nanoseconds, signed: a negative
// delay is a clock's doing and is kept.
type Quantiles struct {
	Min  *int64 `json:"min,omitempty"`
	Mean *int64 `json:"mean,omitempty"`
	P50  *int64 `json:"p50,omitempty"`
	P90  *int64 `json:"p90,omitempty"`
	P99  *int64 `json:"p99,omitempty"`
	Max  *int64 `json:"max,omitempty"`
}

// Observation is one window of one directed flow: a line of the observation
// file. A nil pointer is a value that was not measured, never zero.
type Observation struct {
	Edge         string     `json:"edge"`
	Src          string     `json:"src"`
	Dst          string     `json:"dst"`
	Tier         int        `json:"tier,omitempty"`
	Plane        string     `json:"plane,omitempty"`
	Class        string     `json:"class"`
	Start        time.Time  `json:"start"`
	WindowNS     int64      `json:"window_ns"`
	Sent         uint64     `json:"sent"`
	Lost         uint64     `json:"lost"`
	LossScope    string     `json:"loss_scope,omitempty"`
	ECN          *uint64    `json:"ecn,omitempty"`
	OWD          *Quantiles `json:"owd_ns,omitempty"`
	Baseline     *Quantiles `json:"baseline_ns,omitempty"`
	ClockErrorNS *int64     `json:"clock_error_ns,omitempty"`
	Timestamp    string     `json:"timestamp,omitempty"`
	HostSuspect  bool       `json:"host_suspect,omitempty"`
	ClockSuspect bool       `json:"clock_suspect,omitempty"` // a clock it was measured by is not related to the others
	Path         Path       `json:"path,omitempty"`
	Paths        []Path     `json:"paths,omitempty"`
	PathState    PathState  `json:"path_state,omitempty"`

	// BaselineMADNS is the median absolute deviation of the windows behind
	// Baseline's median, where they are known; not part of the file.
	BaselineMADNS *int64 `json:"-"`
	// PathSince is when the path was learnt, where that is known; not part of the file.
	PathSince time.Time `json:"-"`
}

// LossRoundTrip marks a loss count that could not be separated by direction.
const LossRoundTrip = "round_trip"

// Flow parses the observation's edge.
func (o *Observation) Flow() (Edge, error) { return ParseEdge(o.Edge) }

// LossRatio is lost over sent; ok is false when nothing was sent.
func (o *Observation) LossRatio() (r float64, ok bool) {
	if o.Sent == 0 {
		return 0, false
	}
	return float64(min(o.Lost, o.Sent)) / float64(o.Sent), true
}

// LineError is an unreadable line of an observation file.
type LineError struct {
	Line int
	Err  error
}

func (e LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e LineError) Unwrap() error { return e.Err }

// MaxObservationLine bounds one line of an observation file, in bytes.
const MaxObservationLine = 1 << 20

// ReadObservations reads JSON lines from r and hands each to fn. A line that
// cannot be read is reported to bad with its number and skipped. The error is
// that of reading r itself, or fn's.
func ReadObservations(r io.Reader, fn func(line int, o *Observation) error, bad func(LineError)) error {
	br := bufio.NewReaderSize(r, 64<<10)
	for n := 1; ; n++ {
		line, tooLong, err := readLine(br, MaxObservationLine)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if tooLong {
			bad(LineError{n, fmt.Errorf("longer than %d bytes", MaxObservationLine)})
		} else if len(bytes.TrimSpace(line)) > 0 {
			o, perr := ParseObservation(line)
			if perr != nil {
				bad(LineError{n, perr})
			} else if ferr := fn(n, o); ferr != nil {
				return ferr
			}
		}
		if err != nil {
			return nil
		}
	}
}

// readLine reads to the next newline; what is beyond limit is read and dropped.
func readLine(br *bufio.Reader, limit int) (line []byte, tooLong bool, err error) {
	for {
		frag, err := br.ReadSlice('\n')
		if len(line)+len(frag) > limit+1 {
			tooLong = true
			line = line[:0]
		} else if !tooLong {
			line = append(line, frag...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return line, tooLong, err
	}
}

// ParseObservation reads one line and checks the fields nothing can do without.
func ParseObservation(line []byte) (*Observation, error) {
	var raw struct {
		Observation
		WindowNS *int64  `json:"window_ns"`
		Sent     *uint64 `json:"sent"`
		Lost     *uint64 `json:"lost"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		var te *json.UnmarshalTypeError
		if errors.As(err, &te) {
			return nil, fmt.Errorf("field %q: %s where %s is expected", te.Field, te.Value, te.Type)
		}
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	o := raw.Observation
	e, err := ParseEdge(o.Edge)
	if err != nil {
		return nil, fmt.Errorf("field %q: %w", "edge", err)
	}
	from, to := e.Ends()
	if o.Src == "" && o.Dst == "" {
		o.Src, o.Dst = from, to
	}
	if o.Src != from || o.Dst != to {
		return nil, fmt.Errorf("field %q: src %q and dst %q are not the ends of edge %q in the direction it measures", "src", o.Src, o.Dst, o.Edge)
	}
	if o.Start.IsZero() {
		return nil, fmt.Errorf("field %q: an RFC 3339 time is required", "start")
	}
	if raw.WindowNS == nil || *raw.WindowNS <= 0 {
		return nil, fmt.Errorf("field %q: a positive number of nanoseconds is required", "window_ns")
	}
	if raw.Sent == nil || raw.Lost == nil {
		return nil, fmt.Errorf("fields %q and %q: both counts are required", "sent", "lost")
	}
	o.WindowNS, o.Sent, o.Lost = *raw.WindowNS, *raw.Sent, *raw.Lost
	if o.Lost > o.Sent {
		return nil, fmt.Errorf("field %q: %d of %d sent", "lost", o.Lost, o.Sent)
	}
	if o.ECN != nil && *o.ECN > o.Sent {
		return nil, fmt.Errorf("field %q: %d of %d sent", "ecn", *o.ECN, o.Sent)
	}
	if o.LossScope != "" && o.LossScope != LossRoundTrip {
		return nil, fmt.Errorf("field %q: %q, want %q or nothing", "loss_scope", o.LossScope, LossRoundTrip)
	}
	switch o.PathState {
	case PathValid, PathStale:
		if len(o.Path) == 0 {
			return nil, fmt.Errorf("field %q: %q without a path", "path_state", o.PathState)
		}
	case PathUnknown:
		if len(o.Path) > 0 {
			return nil, fmt.Errorf("field %q: unknown, but a path is given", "path_state")
		}
	case "":
		o.PathState = PathUnknown
		if len(o.Path) > 0 {
			o.PathState = PathValid
		}
	default:
		return nil, fmt.Errorf("field %q: %q, want valid, stale or unknown", "path_state", o.PathState)
	}
	return &o, nil
}
