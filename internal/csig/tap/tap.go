// Package tap reads the tagged frames that arrive at interfaces, by AF_PACKET, for internal/csig/capture. It needs CAP_NET_RAW.
package tap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/csig/capture"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/unix"
)

// What a ring is made of.
const (
	snapOctets   = 160     // more than the headers up to the UDP ports: 22 octets of Ethernet, 8 of the tag, 60 of IPv4 and 4
	blockOctets  = 1 << 17 // some 500 frames
	retireBlock  = 20 * time.Millisecond
	waitForFrame = 250 * time.Millisecond // at most, so that the end of the receiver does not take longer
	checkEvery   = time.Second
)

// Clock gives the times of frames on an axis that does not go back when the clock of the host is set.
type Clock struct{ start time.Time }

// NewClock returns a clock whose axis agrees with the host's clock at a time of this process.
func NewClock(now time.Time) Clock { return Clock{now} }

// At returns a time of this process on the axis, in nanoseconds since 1970.
func (c Clock) At(now time.Time) int64 { return c.start.UnixNano() + int64(now.Sub(c.start)) }

// maxAge is the greatest age of a frame that is believed.
const maxAge = int64(5 * time.Second)

// frameTime returns the time of a frame by the clock of the host on the axis. A clock that was set since counts for nothing.
func (c Clock) frameTime(at int64, now time.Time) int64 {
	age := now.UnixNano() - at
	if age < 0 || age > maxAge {
		age = 0
	}
	return c.At(now) - age
}

// Options describe a Tap.
type Options struct {
	Interface string // its name
	NIC       string // by whose name frames are counted
	EtherType uint16 // of the frames that are read
	Buffer    int    // octets of the kernel's buffer
	Place     *capture.Place
	Clock     Clock
	Log       *slog.Logger
}

// Tap reads the frames with one EtherType of an interface. Where the interface is taken away and made again, it is opened again.
type Tap struct {
	Options

	checked time.Time // when the interface was last looked at
	failed  bool      // the last attempt to open it failed, and was logged

	mu             sync.Mutex
	ring           *unix.PacketRing // nil while the interface is not there
	packets, drops uint64           // of the rings before
}

// New returns a tap whose interface is not open yet.
func New(o Options) *Tap { return &Tap{Options: o} }

// Open opens the interface.
func (t *Tap) Open() error {
	i, err := net.InterfaceByName(t.Interface)
	if err != nil {
		return fmt.Errorf("%s: %w", t.Interface, err)
	}
	o := unix.RingOptions{Snap: snapOctets, BlockOctets: blockOctets, Blocks: max(2, t.Buffer/blockOctets), Retire: retireBlock}
	ring, err := unix.OpenPacketRing(t.EtherType, i.Index, o)
	if err != nil {
		return fmt.Errorf("%s: %w (CAP_NET_RAW is needed)", t.Interface, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ring = ring
	return nil
}

// Close closes the interface, and keeps its counts.
func (t *Tap) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ring == nil {
		return nil
	}
	if packets, drops, err := t.ring.Totals(); err == nil {
		t.packets += packets
		t.drops += drops
	}
	ring := t.ring
	t.ring = nil
	return ring.Close()
}

// Totals returns the frames that the kernel had for the tap, and how many of them did not fit.
func (t *Tap) Totals() (packets, drops uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ring == nil {
		return t.packets, t.drops, nil
	}
	packets, drops, err = t.ring.Totals()
	return t.packets + packets, t.drops + drops, err
}

// Run reads frames until ctx ends.
func (t *Tap) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if !t.readOnce() {
			select { // the interface is not there
			case <-ctx.Done():
			case <-time.After(checkEvery):
			}
		}
	}
}

// readOnce reads what has arrived, or waits for it. Once a second, it looks whether the interface is still there. It is false while it is
// not.
func (t *Tap) readOnce() bool {
	t.mu.Lock()
	ring := t.ring
	t.mu.Unlock()
	now := time.Now()
	if ring != nil && now.Sub(t.checked) >= checkEvery {
		if t.checked = now; !ring.IsBound() {
			t.reopen(errors.New("the interface is gone"))
			return true
		}
	}
	if ring == nil {
		return t.TryOpen()
	}
	err := ring.Recv(now.Add(waitForFrame), t.take)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.reopen(err)
	}
	return true
}

// take reads a frame.
func (t *Tap) take(frame []byte, at int64) { t.Place.Take(frame, t.Clock.frameTime(at, time.Now())) }

// reopen closes the interface, which the next call of readOnce opens again.
func (t *Tap) reopen(why error) {
	t.Log.Warn("an interface is opened again", "interface", t.Interface, "err", why)
	if err := t.Close(); err != nil {
		t.Log.Warn("cannot close a capture", "interface", t.Interface, "err", err)
	}
}

// TryOpen opens the interface, and logs the first of several failures. It reports whether the interface is open.
func (t *Tap) TryOpen() bool {
	err := t.Open()
	if err != nil && !t.failed {
		t.Log.Warn("cannot open an interface; it is tried once a second", "interface", t.Interface, "err", err)
	}
	t.failed = err != nil
	return err == nil
}

// AddTotals adds what taps counted to the statistics of their NICs. It returns the errors of those whose counts cannot be read.
func AddTotals(s *observe.Stats, taps []*Tap) error {
	var all []error
	for _, t := range taps {
		packets, drops, err := t.Totals()
		if err != nil {
			all = append(all, fmt.Errorf("counts of the capture of %s: %w", t.Interface, err))
		}
		for i := range s.NICs {
			n := &s.NICs[i]
			if n.NIC != t.NIC {
				continue
			}
			if n.Capture == nil {
				n.Capture = &observe.CaptureCounts{}
			}
			n.Capture.Packets += packets
			n.Capture.Drops += drops
			break
		}
	}
	return errors.Join(all...)
}
