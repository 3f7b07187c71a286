package unix

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// TightTimers sets the timer slack of the calling thread to 1 ns, in place of the kernel's default of 50 us (prctl(2)
// PR_SET_TIMERSLACK). The goroutine should be locked to the thread.
func TightTimers() error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting the thread's timer slack to 1 ns: %w", err)
	}
	return nil
}

// Nanosleep blocks the calling thread for d. It uses the kernel's high-resolution timer, because the Go runtime's may
// be late by a millisecond.
func Nanosleep(d time.Duration) {
	if d <= 0 {
		return
	}
	left := unix.NsecToTimespec(d.Nanoseconds())
	for {
		var rest unix.Timespec
		err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &left, &rest)
		if !errors.Is(err, unix.EINTR) {
			return
		}
		left = rest
	}
}

// Constants of rtnetlink(7) that package syscall does not have.
const (
	RTA_IP_PROTO = unix.RTA_IP_PROTO
	RTA_SPORT    = unix.RTA_SPORT
	RTA_DPORT    = unix.RTA_DPORT
)
