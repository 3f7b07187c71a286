package nodeagent

import (
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"math"
	"net"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
)

// steering sends chronyd samples of the system clock's offset from the frame. Only chronyd decides whether and how the
// clock is set. The tests are named after these rules:
//
//  1. At the end of each window in which the system clock is locked, there is a sample. A clock that is only predicted
//     gives none.
//  2. A frame without a leading reference is not UTC, and gives no samples: hosts that all follow their common mean
//     would drift together.
//  3. The reference itself gets no samples, because they would only confirm its own clock.
//  4. After a start, and after the clock was set, there are no samples for a while. What is known then is from before,
//     and chronyd would set the clock twice.
//  5. A socket that does not exist, or is full, costs one sample and delays nothing. The next sample goes to the socket
//     that exists then.
type steering struct {
	socket       string
	log          *slog.Logger
	writeTimeout time.Duration // limit for a write to a socket that is full

	mu     sync.Mutex
	counts map[string]uint64 // windows with a locked clock, by result

	lastResult string        // result of the last window with a locked clock
	epoch      int64         // wall time at mono 0, in ns; 0 if it is not known
	quietUntil time.Duration // value of mono until which there are no samples
}

// Results of a window with a locked clock.
const (
	sampleSent      = "sent"
	sampleFailed    = "failed"
	sampleRelative  = "relative"
	sampleReference = "reference"
	sampleSettling  = "settling"
)

const (
	// settleTime covers the window in which a clock is set, the next window, which shows it, the coordinator's cycle
	// and both ways to the coordinator, with reserve for a busy host.
	settleTime = 10 * clocksync.Window
	// minClockStep is the smallest move of the wall clock against the monotonic clock, in ns, that counts as a setting
	// of the clock and not as the time between reading both. Slews do not appear here, because the kernel slews both
	// clocks.
	minClockStep = 100e3
	// sampleWait is short compared with a window, and longer than a busy host takes to write to a socket that has room.
	sampleWait = 50 * time.Millisecond
)

func newSteering(socket string, log *slog.Logger) *steering {
	s := &steering{socket: socket, log: log, writeTimeout: sampleWait, quietUntil: settleTime, counts: map[string]uint64{}}
	for _, r := range []string{sampleSent, sampleFailed, sampleRelative, sampleReference, sampleSettling} {
		s.counts[r] = 0
	}
	return s
}

// copyCounts returns the number of windows with a locked clock, by result.
func (s *steering) copyCounts() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

// processWindow sends a sample, if the rules allow it, for what is known of the system clock at the end of a window.
// The end is at wall by the system clock, and at mono by a clock that cannot be set.
func (s *steering) processWindow(ctx context.Context, k clocksync.Status, wall int64, mono time.Duration) {
	epoch := wall - int64(mono)
	if moved := epoch - s.epoch; s.epoch != 0 && (moved > minClockStep || moved < -minClockStep) {
		s.quietUntil = mono + settleTime
	}
	s.epoch = epoch
	if k.State != clocksync.Locked {
		return
	}
	result, level, why := sampleSent, slog.LevelInfo, "samples are being sent to chronyd"
	switch {
	case k.Relative:
		result, level, why = sampleRelative, slog.LevelWarn, "the frame has no leading reference, so the clock is not steered"
	case k.Offset == 0 && k.Drift == 0: // exact at all times, which is so only for the reference
		result, level, why = sampleReference, slog.LevelWarn, "this node's clock is the reference, so it is not steered"
	case mono < s.quietUntil:
		result, why = sampleSettling, "the clock was set or the node started recently"
	default:
		if err := s.sendSample(appendSample(nil, wall, -k.Offset)); err != nil {
			result, level, why = sampleFailed, slog.LevelWarn, err.Error()
		}
	}
	s.mu.Lock()
	s.counts[result]++
	s.mu.Unlock()
	if result != s.lastResult {
		s.lastResult = result
		s.log.Log(ctx, level, "chronyd steering changed", "samples", result, "why", why)
	}
}

// sendSample sends a sample to the socket. It opens the socket for every sample, because chronyd makes a new socket
// when it starts.
func (s *steering) sendSample(sample []byte) error {
	c, err := net.Dial("unixgram", s.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(s.writeTimeout)); err != nil {
		return err
	}
	_, err = c.Write(sample)
	return err
}

// sampleMagic is SOCK_MAGIC of chrony's refclock_sock.c: "SOCK".
const sampleMagic = 0x534f434b

// appendSample appends the sample that chronyd's SOCK driver reads (struct sock_sample of chrony's refclock_sock.c, 40
// octets if time_t has 64 bits). It states that at wall, in ns of the system clock, the true time is ahead of that
// clock by so many ns.
func appendSample(b []byte, wall, ahead int64) []byte {
	e := binary.NativeEndian
	b = e.AppendUint64(b, uint64(wall/1e9))                                 // tv.tv_sec
	b = e.AppendUint64(b, uint64(wall%1e9/1e3))                             // tv.tv_usec
	b = e.AppendUint64(b, math.Float64bits(time.Duration(ahead).Seconds())) // offset
	b = e.AppendUint32(b, 0)                                                // pulse: 0, because the full time is known
	b = e.AppendUint32(b, 0)                                                // leap: 0, because none is announced
	b = e.AppendUint32(b, 0)                                                // padding
	return e.AppendUint32(b, sampleMagic)
}
