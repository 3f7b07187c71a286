package tap

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig/capture"
	"github.com/graylink/graylink/internal/unix"
	"github.com/graylink/graylink/internal/unix/vethtest"
)

// BenchmarkInterface has so many frames in a second, which have to be read without a drop. One sender does not reach that everywhere.
const (
	benchRate    = 300_000
	benchSenders = 2
)

// BenchmarkInterface sends tagged frames to an interface at 300,000 a second, if the machine can, and reads them as the receiver does. It
// reports the rate that was reached, the frames that the kernel counts as dropped, and the time of a processor that reading one takes.
func BenchmarkInterface(b *testing.B) {
	reader := newReader(b)
	vethtest.Run(b, func(near, _ int) {
		t := newTap(reader, 8<<20) // as the receiver's
		if err := t.Open(); err != nil {
			b.Error(err)
			return
		}
		var from [benchSenders]*unix.Packet
		for i := range from {
			p, err := unix.OpenPacket(0, 0, 64)
			if err != nil {
				b.Error(err)
				return
			}
			defer p.Close()
			from[i] = p
		}
		read := make(chan float64)
		go func() { read <- readFrames(b, t, reader, uint64(b.N)) }()
		f := frame(b)
		b.ResetTimer()
		start := time.Now()
		var sent atomic.Int64
		var senders sync.WaitGroup
		for _, p := range from {
			senders.Go(func() {
				for n := sent.Add(1); n <= int64(b.N); n = sent.Add(1) {
					for n%64 == 0 && time.Since(start) < time.Duration(n)*time.Second/benchRate {
						runtime.Gosched()
					}
					if err := p.Send(near, f); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		senders.Wait()
		took := time.Since(start)
		nanos := <-read
		b.StopTimer()
		_, drops, err := t.Totals()
		if err != nil {
			b.Error(err)
		}
		if err := t.Close(); err != nil {
			b.Error(err)
		}
		b.ReportMetric(float64(b.N)/took.Seconds(), "frames/s")
		b.ReportMetric(float64(drops), "drops")
		b.ReportMetric(nanos, "cpu-ns/frame")
	})
}

// readFrames reads until the kernel has counted so many frames and none is left. It returns what its thread took for each of them.
func readFrames(b *testing.B, t *Tap, reader *capture.Reader, frames uint64) (nanos float64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime(b)
	for end := time.Now().Add(5 * time.Minute); ; {
		t.readOnce()
		packets, drops, err := t.Totals()
		if err != nil || time.Now().After(end) {
			b.Errorf("%d of %d frames, %v", packets, frames, err)
			return 0
		}
		if packets >= frames && countOf(reader)+drops >= frames {
			return float64(threadTime(b)-before) / float64(frames)
		}
	}
}

// countOf returns the frames that were read.
func countOf(reader *capture.Reader) (n uint64) {
	for _, f := range reader.Stats(0).Flows {
		for _, c := range f.Directions[0].Packets {
			n += c.Packets
		}
	}
	return n
}

// threadTime returns the time of a processor that the thread has taken: RUSAGE_THREAD of getrusage(2).
func threadTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(1, &u); err != nil {
		b.Error(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
