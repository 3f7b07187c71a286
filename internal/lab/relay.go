package lab

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	nfqueue "github.com/florianl/go-nfqueue/v2"
	mdnetlink "github.com/mdlayher/netlink"

	"github.com/graylink/graylink/internal/unix"
)

// Sizes of the relay's queue: the kernel's in packets, and the socket's
// receive buffer in bytes (about 300 of them per packet without its payload).
const (
	relayQueueLen = 1 << 16
	relayBuffer   = 8 << 20
)

// relaySpin is how long before a packet's time the relay stops sleeping and
// watches the clock: about what the kernel needs to wake a thread.
const relaySpin = 20 * time.Microsecond

// heldPacket is a packet that waits in the kernel for its time.
type heldPacket struct {
	id  uint32
	due time.Time
}

// relayPackets holds every packet of a queue of the process's namespace for delay, which may change,
// and lets it go, in order. Only headers of the queue's messages cross into
// user space. When the relay cannot keep up, or dies, packets pass undelayed.
// After ctx ends it lets go what it still holds.
func relayPackets(ctx context.Context, queue uint16, delay *atomic.Int64, started func() error) error {
	nf, err := nfqueue.Open(&nfqueue.Config{
		NfQueue: queue, AfFamily: syscall.AF_INET, Copymode: nfqueue.NfQnlCopyMeta, MaxQueueLen: relayQueueLen,
		Flags: nfqueue.NfQaCfgFlagFailOpen | nfqueue.NfQaCfgFlagGSO,
	})
	if err != nil {
		return fmt.Errorf("opening netfilter queue %d: %w", queue, err)
	}
	defer nf.Close()
	if err := nf.Con.SetReadBuffer(relayBuffer); err != nil {
		return fmt.Errorf("giving netfilter queue %d a buffer of %d bytes: %w", queue, relayBuffer, err)
	}
	if err := nf.SetOption(mdnetlink.NoENOBUFS, true); err != nil {
		return fmt.Errorf("making netfilter queue %d bear overruns: %w", queue, err)
	}
	packets := make(chan heldPacket, relayQueueLen)
	var holding atomic.Int64
	released := make(chan struct{})
	go func() {
		defer close(released)
		releasePackets(packets, &holding, func(id uint32) {
			if err := nf.SetVerdictBatch(id, nfqueue.NfAccept); err != nil {
				fmt.Fprintf(os.Stderr, "releasing packet %d of queue %d: %v\n", id, queue, err)
			}
		})
	}()
	listen, stop := context.WithCancel(context.Background())
	defer func() { stop(); nf.Close(); close(packets); <-released }()
	err = nf.RegisterWithErrorFunc(listen, func(a nfqueue.Attribute) int {
		if a.PacketID != nil {
			holding.Add(1)
			packets <- heldPacket{*a.PacketID, time.Now().Add(time.Duration(delay.Load()))}
		}
		return 0
	}, func(err error) int {
		if listen.Err() != nil {
			return 1
		}
		fmt.Fprintf(os.Stderr, "reading netfilter queue %d: %v\n", queue, err)
		return 0
	})
	if err != nil {
		return fmt.Errorf("listening on netfilter queue %d: %w", queue, err)
	}
	if err := started(); err != nil {
		return err
	}
	<-ctx.Done()
	// The rules are gone; what they queued before comes within the delay.
	for wait := time.Duration(delay.Load()); wait > 0 || holding.Load() > 0; wait = 0 {
		time.Sleep(max(wait, time.Millisecond))
	}
	return nil
}

// releasePackets calls accept with the last of the packets that are due, whenever one is.
func releasePackets(packets <-chan heldPacket, holding *atomic.Int64, accept func(id uint32)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.TightTimers(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	next, ok := <-packets
	for ok {
		unix.Nanosleep(time.Until(next.due) - relaySpin)
		now := time.Now()
		for now.Before(next.due) {
			now = time.Now()
		}
		last, n, fetched := next, int64(1), false
	drain:
		for !fetched {
			select {
			case next, ok = <-packets:
				if fetched = !ok || next.due.After(now); !fetched {
					last, n = next, n+1
				}
			default:
				break drain
			}
		}
		accept(last.id)
		holding.Add(-n)
		if !fetched {
			next, ok = <-packets
		}
	}
}
