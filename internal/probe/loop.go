package probe

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

const (
	longestWait = 50 * time.Millisecond // of the loop if nothing is due
	stallAfter  = 20 * time.Millisecond // a turn that is later than this shows a stall of the host
	// Between two turns, while packets arrive, there are turnMin to turnMax. The interval is longer if there are fewer
	// packets, so that a turn has turnPackets to process. Probes that become due between two turns leave together, and
	// so do replies. The times that matter are the kernel's or the NIC's, so waiting for the turn costs no accuracy and
	// saves most of the system calls and wake-ups.
	turnMin, turnMax = 2 * time.Millisecond, 5 * time.Millisecond
	turnPackets      = 16
	// quietAfter is the time after the last packet from which on the loop waits for the next packet rather than for its
	// turn.
	quietAfter = 100 * time.Millisecond
)

// turnTimes holds the times of the loop's turns, which scrapes read as well.
type turnTimes struct {
	planned atomic.Int64 // time of the next turn, monotonic nanoseconds
	every   atomic.Int64 // interval between turns, nanoseconds
}

// run runs the engine's loop until ctx ends.
func (e *Engine) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		if err := e.wire.poll.Wake(); err != nil {
			e.log.Error("cannot wake the probe loop", "err", err)
		}
	})
	defer stop()
	last, heard := e.wire.monoTime(), int64(-1)<<32
	due := last
	for ctx.Err() == nil {
		now := e.wire.monoTime()
		planned := min(now+int64(longestWait), due)
		busy := now-heard < int64(quietAfter)
		if every := e.turns.every.Load(); busy || planned < last+every {
			planned = last + every
		}
		planned = max(planned, now)
		e.turns.planned.Store(planned)
		// A goroutine that runs for 10 ms by the scheduler's account loses its processor at its next system call, and
		// the runtime's monitor then wakes up every 20 us for a while. Waiting here counts as running, and without the
		// yield the monitor costs as much as the probes do. What else runs meanwhile is part of the wait. (With a thread
		// of its own the loop would hand its processor over at every yield, which takes long on a busy machine.)
		runtime.Gosched()
		wait := time.Duration(max(0, planned-e.wire.monoTime()))
		if busy {
			unix.Nanosleep(wait)
			wait = 0
		}
		events, err := e.wire.poll.Wait(wait)
		if err != nil {
			return err
		}
		last = e.wire.monoTime()
		var got bool
		if due, got, err = e.runTurn(last, planned, events); err != nil {
			return err
		}
		if got {
			heard = last
		}
	}
	return nil
}

// runTurn runs one turn of the loop, which was planned for planned. It returns the time of the next probe, and whether
// packets arrived.
func (e *Engine) runTurn(now, planned int64, events int) (due int64, got bool, err error) {
	e.turns.planned.Store(now) // the time up to here is accounted for
	stalled := stallTime(now, planned)
	sockets := *e.wire.poll.sockets.Load()
	// Under a flood half of the time is left for sending, and for other processes.
	half := e.turns.every.Load() / 2
	until := now + half
	for i := range events {
		token, readable, queued := e.wire.poll.EventAt(i)
		if token < 0 || int(token) >= len(sockets) || sockets[token].socket == nil {
			continue
		}
		n := sockets[token].nic
		n.mu.Lock()
		err = n.readSocket(sockets[token].socket, queued, until)
		n.mu.Unlock()
		got = got || readable
		if err != nil {
			return 0, got, fmt.Errorf("NIC %s: %w", n.nicName(), err)
		}
	}
	due = math.MaxInt64
	for _, n := range e.allNICs() {
		n.mu.Lock()
		n.stalled += stalled
		if !n.closed {
			if err = n.runTurn(now, now+half); err == nil {
				due = min(due, n.sender.nextDue())
			}
		}
		n.mu.Unlock()
		if err != nil {
			return 0, got, fmt.Errorf("NIC %s: %w", n.nicName(), err)
		}
	}
	return due, got, nil
}

// stallTime returns the time by which now is later than planned, beyond stallAfter.
func stallTime(now, planned int64) int64 { return max(0, now-planned-int64(stallAfter)) }
