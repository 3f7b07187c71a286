package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// Bend makes a node's clock wrong on purpose, for tests that need to know the
// truth: every wall time passes through At before anything else sees it.
// Monotonic times are left alone, and so is the host's clock. It keeps these
// rules, which the tests are named after:
//
//  1. A bent clock shows t + offset + rate x (t - ref) at the true time t.
//  2. A new drift goes on from where the clock is; a new step moves it at once,
//     from the moment it is asked for. What was stamped before keeps its time.
//  3. A file that goes takes its step and its drift back by rule 2; what was
//     gained by drifting stays.
//  4. A file that cannot be used changes nothing, and is told about once.
type Bend struct {
	rate     float64 // without the file
	file     string  // "": none
	segments atomic.Pointer[bent]

	inForce  bendFile    // what of the file is in force
	lastInfo os.FileInfo // the file when it was read last; nil: it was not there
}

// Segment is a stretch of a bent clock. Times are nanoseconds of the true clock.
type Segment struct {
	Ref    int64
	Offset int64   // what the bent clock shows beyond the true one at Ref, nanoseconds
	Rate   float64 // what it gains on it from then on
}

func (s *Segment) bentTime(t int64) int64 { return t + s.Offset + int64(s.Rate*float64(t-s.Ref)) }

// bent is the segment in force and the one before it; nil: there was none.
type bent struct {
	Segment
	before *Segment
}

// Limits of a bend. A clock that is off by more than maxStampDistance at once
// or by a tenth of its rate is not what tests ask about.
const (
	maxBendPPM  = 100_000
	maxBendStep = int64(time.Hour)
	maxBendFile = 4096 // octets
)

// NewBend bends a clock that is right at start: by offset at once and by
// driftPPM millionths from then on. file, which Follow reads, adds to both; ""
// is none.
func NewBend(start time.Time, offset time.Duration, driftPPM float64, file string) (*Bend, error) {
	if err := checkBend(int64(offset), driftPPM); err != nil {
		return nil, err
	}
	b := &Bend{rate: driftPPM * 1e-6, file: file}
	b.segments.Store(&bent{Segment: Segment{Ref: start.UnixNano(), Offset: int64(offset), Rate: driftPPM * 1e-6}})
	return b, nil
}

func checkBend(step int64, ppm float64) error {
	switch {
	case step < -maxBendStep || step > maxBendStep:
		return fmt.Errorf("offset of the clock %v: want at most %v", time.Duration(step), time.Duration(maxBendStep))
	case !(ppm >= -maxBendPPM && ppm <= maxBendPPM):
		return fmt.Errorf("drift of the clock %v ppm: want at most %d", ppm, maxBendPPM)
	}
	return nil
}

// BentTime is what the bent clock shows at t, Unix nanoseconds; 0 is no time and stays
// so. A nil Bend is a clock that is right.
func (b *Bend) BentTime(t int64) int64 {
	if b == nil || t == 0 {
		return t
	}
	s := b.segments.Load()
	if t < s.Ref && s.before != nil {
		return s.before.bentTime(t)
	}
	return s.bentTime(t)
}

// CurrentSegment is the one in force.
func (b *Bend) CurrentSegment() Segment { return b.segments.Load().Segment }

// SetBend bends the clock anew at a time of the true clock, Unix nanoseconds: by step
// and driftPPM beyond what it was made with, in place of what was asked before. It
// is for a Bend without a file.
func (b *Bend) SetBend(step time.Duration, driftPPM float64, at int64) {
	b.beginSegment(bendFile{StepNS: int64(step), DriftPPM: driftPPM}, func() int64 { return at })
}

// bendFile is what the file asks for.
type bendFile struct {
	StepNS   int64   `json:"step_ns"`
	DriftPPM float64 `json:"drift_ppm"`
}

func parseBend(r io.Reader) (f bendFile, err error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxBendFile+1))
	if err != nil {
		return f, err
	}
	if len(raw) > maxBendFile {
		return f, fmt.Errorf("longer than %d octets", maxBendFile)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return bendFile{}, fmt.Errorf(`want {"step_ns":N,"drift_ppm":F}: %w`, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return bendFile{}, errors.New("want one object and nothing after it")
	}
	if err := checkBend(f.StepNS, f.DriftPPM); err != nil {
		return bendFile{}, err
	}
	return f, nil
}

// bendEvery is how often the file is looked at.
const bendEvery = 50 * time.Millisecond

// FollowFile does what the file says until ctx ends.
func (b *Bend) FollowFile(ctx context.Context, log *slog.Logger) {
	if b.file == "" {
		return
	}
	tick := time.NewTicker(bendEvery)
	defer tick.Stop()
	for {
		changed, err := b.checkFile(func() int64 { return time.Now().UnixNano() })
		if err != nil {
			log.Error("the clock's bend stays as it is", "file", b.file, "err", err)
		}
		if changed {
			s := b.CurrentSegment()
			log.Warn("the clock is bent anew, for a test", "offset", time.Duration(s.Offset), "rate", s.Rate)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkFile reads the file if it is another one than the last time; now tells the
// true time.
func (b *Bend) checkFile(now func() int64) (changed bool, err error) {
	info, err := os.Stat(b.file)
	if errors.Is(err, fs.ErrNotExist) {
		b.lastInfo = nil
		return b.beginSegment(bendFile{}, now), nil
	}
	if err != nil {
		return false, err
	}
	if b.lastInfo != nil && info.ModTime().Equal(b.lastInfo.ModTime()) && info.Size() == b.lastInfo.Size() {
		return false, nil
	}
	b.lastInfo = info
	f, err := os.Open(b.file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	want, err := parseBend(f)
	if err != nil {
		return false, err
	}
	return b.beginSegment(want, now), nil
}

// beginSegment begins a new segment unless want is in force already.
func (b *Bend) beginSegment(want bendFile, now func() int64) (changed bool) {
	if want == b.inForce {
		return false
	}
	old, at := b.CurrentSegment(), now()
	b.segments.Store(&bent{before: &old, Segment: Segment{Ref: at, Offset: old.bentTime(at) - at + want.StepNS - b.inForce.StepNS,
		Rate: b.rate + want.DriftPPM*1e-6}})
	b.inForce = want
	return true
}
