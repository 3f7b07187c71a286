package unix_test

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/unix"
	"github.com/graylink/graylink/internal/unix/vethtest"
)

// frameOf returns a frame with Ethernet types behind the addresses, and a payload with a number.
func frameOf(types string, number byte) []byte {
	f := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}, types...)
	return append(f, bytes.Repeat([]byte{number}, 100)...)
}

const tagType = 0x88b5

func openRing(t *testing.T, ifindex int, o unix.RingOptions) *unix.PacketRing {
	t.Helper()
	r, err := unix.OpenPacketRing(tagType, ifindex, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return r
}

// receive returns n frames of a ring, and fails after a minute.
func receive(t *testing.T, r *unix.PacketRing, n int) (frames [][]byte, times []int64) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for len(frames) < n {
		if err := r.Recv(end, func(frame []byte, at int64) {
			frames, times = append(frames, bytes.Clone(frame)), append(times, at)
		}); err != nil {
			packets, drops, _ := r.Totals()
			t.Fatalf("%v after %d of %d frames; %d packets, %d drops", err, len(frames), n, packets, drops)
		}
	}
	return frames, times
}

// TestPacketRing checks that a ring has the frames of its Ethernet type that an interface receives, also behind a VLAN tag, and no others.
func TestPacketRing(t *testing.T) {
	vethtest.Run(t, func(near, far int) {
		const round = 50 // frames that the ring has room for, even if each of them gets a block of its own
		r := openRing(t, far, unix.RingOptions{Snap: 64, BlockOctets: 4096, Blocks: round + 14, Retire: time.Millisecond})
		from, to := openSender(t), openSender(t)
		before := time.Now().UnixNano()
		for i, f := range [][]byte{frameOf("\x88\xb5", 1), frameOf("\x08\x00", 2), frameOf("\x81\x00\x00\x07\x88\xb5", 3), frameOf("\x88\xb6", 4)} {
			if err := from.Send(near, f); err != nil {
				t.Fatalf("frame %d: %v", i, err)
			}
		}
		if err := to.Send(far, frameOf("\x88\xb5", 5)); err != nil { // sent by the ring's interface
			t.Fatal(err)
		}
		got, times := receive(t, r, 2)
		after := time.Now().UnixNano()
		for i, want := range [][]byte{frameOf("\x88\xb5", 1)[:64], frameOf("\x88\xb5", 3)[:64]} {
			if !bytes.Equal(got[i], want) || times[i] < before || times[i] > after {
				t.Errorf("frame %d: % x at %d, want % x from %d to %d", i, got[i], times[i], want, before, after)
			}
		}
		const more = 5000 // so that the ring is used from its beginning several times
		for range more / round {
			for range round {
				if err := from.Send(near, frameOf("\x88\xb5", 6)); err != nil {
					t.Fatal(err)
				}
			}
			if got, _ := receive(t, r, round); len(got) != round {
				t.Fatalf("%d frames of %d", len(got), round)
			}
		}
		if packets, drops, err := r.Totals(); err != nil || packets != more+2 || drops != 0 {
			t.Errorf("%d packets, %d drops, %v", packets, drops, err)
		}
	})
}

func openSender(t testing.TB) *unix.Packet {
	t.Helper()
	p, err := unix.OpenPacket(0, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestPacketRingDrops checks that what does not fit is counted, and that the rest can be read.
func TestPacketRingDrops(t *testing.T) {
	vethtest.Run(t, func(near, far int) {
		r := openRing(t, far, unix.RingOptions{Snap: 128, BlockOctets: 4096, Blocks: 2, Retire: time.Millisecond})
		from := openSender(t)
		const sent = 500
		for range sent {
			if err := from.Send(near, frameOf("\x88\xb5", 1)); err != nil {
				t.Fatal(err)
			}
		}
		packets, drops, err := r.Totals()
		if err != nil || packets != sent || drops == 0 || drops >= sent {
			t.Fatalf("%d packets, %d drops, %v", packets, drops, err)
		}
		receive(t, r, int(packets-drops))
		if _, again, err := r.Totals(); err != nil || again != drops {
			t.Errorf("%d drops after %d, %v", again, drops, err)
		}
	})
}

// TestPacketRingCloses checks that Close ends a Recv that waits, and that a deadline does.
func TestPacketRingCloses(t *testing.T) {
	vethtest.Run(t, func(near, far int) {
		r := openRing(t, far, unix.RingOptions{Snap: 64, BlockOctets: 4096, Blocks: 2, Retire: time.Millisecond})
		if err := r.Recv(time.Now().Add(-time.Second), func([]byte, int64) {}); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a deadline that has passed: %v", err)
		}
		ended := make(chan error, 1)
		go func() {
			for {
				if err := r.Recv(time.Time{}, func([]byte, int64) {}); err != nil {
					ended <- err
					return
				}
			}
		}()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Errorf("Recv ends with %v", err)
		}
	})
	if _, err := unix.OpenPacketRing(tagType, 1, unix.RingOptions{Snap: 64, BlockOctets: 100, Blocks: 2}); err == nil && os.Getuid() == 0 {
		t.Error("a ring with blocks of 100 octets")
	}
}
