// Package bentclock has a clock that is wrong on purpose, for tests that need to know the truth. Every wall time of the
// node whose clock it is passes through NodeTime before anything else uses it. Monotonic times do not change, and
// neither does the host's clock. The tests are named after these rules:
//
//  1. A bent clock shows t + offset + rate x (t - ref) at the true time t.
//  2. A new drift continues from the present offset. A new step moves the clock at once, from the moment at which it is
//     set. Earlier stamps keep their time.
//  3. If the file is removed, its step and its drift are taken back by rule 2. The offset that the drift caused stays.
//  4. A file that cannot be used changes nothing, and is logged once.
package bentclock

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

// Clock is the clock of a node, bent by the rules of this package. It implements probe.Clock.
type Clock struct {
	rate     float64 // rate without the file
	file     string  // empty: there is none
	segments atomic.Pointer[bent]

	inForce  bendFile    // content of the file that is in force
	lastInfo os.FileInfo // the file when it was last read; nil means it did not exist
}

// Segment represents a stretch of a bent clock. Times are nanoseconds of the true clock.
type Segment struct {
	Ref    int64
	Offset int64   // offset of the bent clock from the true one at Ref, nanoseconds
	Rate   float64 // rate by which it gains on the true clock from then on
}

func (s *Segment) bentTime(t int64) int64 { return t + s.Offset + int64(s.Rate*float64(t-s.Ref)) }

// bent holds the segment in force and the one before it, which is nil if there was none.
type bent struct {
	Segment
	before *Segment
}

// Limits of the error. Tests do not need a clock that is off by more than maxStampDistance at once, or by a tenth of its
// rate.
const (
	maxBendPPM  = 100_000
	maxBendStep = int64(time.Hour)
	maxBendFile = 4096 // octets
)

// New bends a clock that is right at start, by offset at once and by driftPPM parts per million from then on. The file,
// which FollowFile reads, adds to both. An empty name means that there is no file.
func New(start time.Time, offset time.Duration, driftPPM float64, file string) (*Clock, error) {
	if err := checkBend(int64(offset), driftPPM); err != nil {
		return nil, err
	}
	c := &Clock{rate: driftPPM * 1e-6, file: file}
	c.segments.Store(&bent{Segment: Segment{Ref: start.UnixNano(), Offset: int64(offset), Rate: driftPPM * 1e-6}})
	return c, nil
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

// Now returns the true time, which is the host's.
func (c *Clock) Now() time.Time { return time.Now() }

// NodeTime returns the time that the clock shows at the true time t, in Unix nanoseconds. A t of 0 means that there is
// no time, and stays 0.
func (c *Clock) NodeTime(t int64) int64 {
	if t == 0 {
		return 0
	}
	s := c.segments.Load()
	if t < s.Ref && s.before != nil {
		return s.before.bentTime(t)
	}
	return s.bentTime(t)
}

// CurrentSegment returns the segment that is in force.
func (c *Clock) CurrentSegment() Segment { return c.segments.Load().Segment }

// SetError changes the clock's error at a time of the true clock, in Unix nanoseconds. The new step and driftPPM add to
// those that the clock was made with, and replace those of the last call. The clock must not have a file.
func (c *Clock) SetError(step time.Duration, driftPPM float64, at int64) {
	c.beginSegment(bendFile{StepNS: int64(step), DriftPPM: driftPPM}, func() int64 { return at })
}

// bendFile represents the content of the file.
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

// bendEvery is the interval at which the file is checked.
const bendEvery = 50 * time.Millisecond

// FollowFile applies the file's content whenever it changes, until ctx ends.
func (c *Clock) FollowFile(ctx context.Context, log *slog.Logger) {
	if c.file == "" {
		return
	}
	tick := time.NewTicker(bendEvery)
	defer tick.Stop()
	for {
		changed, err := c.checkFile(func() int64 { return time.Now().UnixNano() })
		if err != nil {
			log.Error("cannot read the bend file; the clock stays as it is", "file", c.file, "err", err)
		}
		if changed {
			s := c.CurrentSegment()
			log.Warn("the clock was changed on purpose for a test", "offset", time.Duration(s.Offset), "rate", s.Rate)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkFile reads the file if it changed since the last time, and reports whether the clock changed. now returns the
// true time.
func (c *Clock) checkFile(now func() int64) (changed bool, err error) {
	info, err := os.Stat(c.file)
	if errors.Is(err, fs.ErrNotExist) {
		c.lastInfo = nil
		return c.beginSegment(bendFile{}, now), nil
	}
	if err != nil {
		return false, err
	}
	if c.lastInfo != nil && info.ModTime().Equal(c.lastInfo.ModTime()) && info.Size() == c.lastInfo.Size() {
		return false, nil
	}
	c.lastInfo = info
	f, err := os.Open(c.file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	want, err := parseBend(f)
	if err != nil {
		return false, err
	}
	return c.beginSegment(want, now), nil
}

// beginSegment begins a new segment, unless want is in force already, and reports whether it did.
func (c *Clock) beginSegment(want bendFile, now func() int64) (changed bool) {
	if want == c.inForce {
		return false
	}
	old, at := c.CurrentSegment(), now()
	c.segments.Store(&bent{before: &old, Segment: Segment{Ref: at, Offset: old.bentTime(at) - at + want.StepNS - c.inForce.StepNS,
		Rate: c.rate + want.DriftPPM*1e-6}})
	c.inForce = want
	return true
}
