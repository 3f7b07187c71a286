package csigreceiver

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

// clock gives the times of frames on an axis that does not go back when the clock of the host is set.
type clock struct{ start time.Time }

// at returns a time of this process on the axis, in nanoseconds since 1970.
func (c clock) at(now time.Time) int64 { return c.start.UnixNano() + int64(now.Sub(c.start)) }

// maxAge is the greatest age of a frame that is believed.
const maxAge = int64(5 * time.Second)

// frameTime returns the time of a frame by the clock of the host on the axis. A clock that was set since counts for nothing.
func (c clock) frameTime(at int64, now time.Time) int64 {
	age := now.UnixNano() - at
	if age < 0 || age > maxAge {
		age = 0
	}
	return c.at(now) - age
}

// tap reads the frames with one EtherType of an interface. Where the interface is taken away and made again, it is opened again.
type tap struct {
	name, nic string
	etherType uint16
	buffer    int // octets
	place     *capture.Place
	clock     clock
	log       *slog.Logger

	checked time.Time // when the interface was last looked at
	failed  bool      // the last attempt to open it failed, and was logged

	mu             sync.Mutex
	ring           *unix.PacketRing // nil while the interface is not there
	packets, drops uint64           // of the rings before
}

// open opens the interface.
func (t *tap) open() error {
	i, err := net.InterfaceByName(t.name)
	if err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	o := unix.RingOptions{Snap: snapOctets, BlockOctets: blockOctets, Blocks: max(2, t.buffer/blockOctets), Retire: retireBlock}
	ring, err := unix.OpenPacketRing(t.etherType, i.Index, o)
	if err != nil {
		return fmt.Errorf("%s: %w (CAP_NET_RAW is needed)", t.name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ring = ring
	return nil
}

// close closes the interface, and keeps its counts.
func (t *tap) close() error {
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

// totals returns the frames that the kernel had for the tap, and how many of them did not fit.
func (t *tap) totals() (packets, drops uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ring == nil {
		return t.packets, t.drops, nil
	}
	packets, drops, err = t.ring.Totals()
	return t.packets + packets, t.drops + drops, err
}

// run reads frames until ctx ends.
func (t *tap) run(ctx context.Context) {
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
func (t *tap) readOnce() bool {
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
		return t.tryOpen()
	}
	err := ring.Recv(now.Add(waitForFrame), t.take)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.reopen(err)
	}
	return true
}

// take reads a frame.
func (t *tap) take(frame []byte, at int64) { t.place.Take(frame, t.clock.frameTime(at, time.Now())) }

// reopen closes the interface, which the next call of readOnce opens again.
func (t *tap) reopen(why error) {
	t.log.Warn("an interface is opened again", "interface", t.name, "err", why)
	if err := t.close(); err != nil {
		t.log.Warn("cannot close a capture", "interface", t.name, "err", err)
	}
}

// tryOpen opens the interface, and logs the first of several failures.
func (t *tap) tryOpen() bool {
	err := t.open()
	if err != nil && !t.failed {
		t.log.Warn("cannot open an interface; it is tried once a second", "interface", t.name, "err", err)
	}
	t.failed = err != nil
	return err == nil
}
