package unix

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// TightTimers takes the kernel's timer slack (50 us unless told otherwise,
// prctl(2) PR_SET_TIMERSLACK) from the calling thread, which should be locked.
func TightTimers() error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting the thread's timer slack to 1 ns: %w", err)
	}
	return nil
}

// Nanosleep blocks the calling thread for d, by the kernel's high-resolution
// timer rather than by the Go runtime's, which may be late by a millisecond.
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

// Constants of rtnetlink(7) that package syscall lacks.
const (
	RTA_IP_PROTO = unix.RTA_IP_PROTO
	RTA_SPORT    = unix.RTA_SPORT
	RTA_DPORT    = unix.RTA_DPORT
)
