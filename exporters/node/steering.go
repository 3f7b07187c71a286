package node

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/graylink/graylink/internal/clocksync"
)

// steering tells chronyd how the system clock stands against the frame. Whether
// and how the clock is set is chronyd's business alone. Its rules, which the
// tests are named after:
//
//  1. There is a sample at the end of each window at which the system clock is
//     locked. What only predicts steers nothing.
//  2. A frame that no reference leads is no UTC: hosts that all follow their
//     common mean would drift together.
//  3. The reference itself gets no samples: its own clock would be told that it
//     is right.
//  4. After the clock was set, and after a start, there are none for a while:
//     what is known of it is from before, and chronyd would set it twice.
//  5. A socket that is not there, or full, costs a sample and holds up nothing.
//     The next one goes to whatever is there then.
type steering struct {
	socket       string
	samples      *prometheus.CounterVec
	log          *slog.Logger
	writeTimeout time.Duration // for a socket that is full

	lastResult string        // of the last window with a locked clock
	epoch      int64         // wall time at mono 0, ns; 0: not known
	quietUntil time.Duration // until when, mono, there are no samples
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
	// settleTime covers the window that a clock is set in, the next one, that shows
	// it, the coordinator's cycle and the way to and fro, with room for a busy host.
	settleTime = 10 * clocksync.Window
	// minClockStep is a move of the wall clock against the monotonic one, ns, that is
	// a setting and not the time between reading both. Slews move neither: the
	// kernel does them to both clocks.
	minClockStep = 100e3
	// sampleWait is short beside a window, and longer than a busy host takes to
	// write to a socket that has room.
	sampleWait = 50 * time.Millisecond
)

func newSteering(socket string, log *slog.Logger) *steering {
	s := &steering{socket: socket, log: log, writeTimeout: sampleWait, quietUntil: settleTime, samples: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "graylink_node_chrony_samples_total",
		Help: "Windows with a locked system clock, by what became of the sample for chronyd."}, []string{"result"})}
	for _, r := range []string{sampleSent, sampleFailed, sampleRelative, sampleReference, sampleSettling} {
		s.samples.WithLabelValues(r)
	}
	return s
}

// processWindow takes what is known of the system clock at the end of a window: at wall,
// its own time, and mono, that of a clock that nobody sets.
func (s *steering) processWindow(ctx context.Context, k clocksync.Status, wall int64, mono time.Duration) {
	epoch := wall - int64(mono)
	if moved := epoch - s.epoch; s.epoch != 0 && (moved > minClockStep || moved < -minClockStep) {
		s.quietUntil = mono + settleTime
	}
	s.epoch = epoch
	if k.State != clocksync.Locked {
		return
	}
	result, level, why := sampleSent, slog.LevelInfo, "chronyd takes the samples"
	switch {
	case k.Relative:
		result, level, why = sampleRelative, slog.LevelWarn, "the frame has no reference that leads it: the clock is not steered"
	case k.Offset == 0 && k.Drift == 0: // exactly so at all times: by the reference's map only
		result, level, why = sampleReference, slog.LevelWarn, "this node's clock is the reference: it is not steered by itself"
	case mono < s.quietUntil:
		result, why = sampleSettling, "the clock was set, or the node started, just now"
	default:
		if err := s.sendSample(appendSample(nil, wall, -k.Offset)); err != nil {
			result, level, why = sampleFailed, slog.LevelWarn, err.Error()
		}
	}
	s.samples.WithLabelValues(result).Inc()
	if result != s.lastResult {
		s.lastResult = result
		s.log.Log(ctx, level, "steering by chronyd", "samples", result, "why", why)
	}
}

// sendSample opens the socket for every sample: chronyd makes it anew when it starts.
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

// appendSample appends what chronyd's SOCK driver reads (struct sock_sample of
// chrony's refclock_sock.c, 40 octets where time_t has 64 bits): at wall, ns of
// the system clock, the true time is ahead of that clock by so many ns.
func appendSample(b []byte, wall, ahead int64) []byte {
	e := binary.NativeEndian
	b = e.AppendUint64(b, uint64(wall/1e9))                                 // tv.tv_sec
	b = e.AppendUint64(b, uint64(wall%1e9/1e3))                             // tv.tv_usec
	b = e.AppendUint64(b, math.Float64bits(time.Duration(ahead).Seconds())) // offset
	b = e.AppendUint32(b, 0)                                                // pulse: the second is known, too
	b = e.AppendUint32(b, 0)                                                // leap: none is announced
	b = e.AppendUint32(b, 0)                                                // padding
	return e.AppendUint32(b, sampleMagic)
}
