package unix

import sys "golang.org/x/sys/unix"

// MonotonicNanos returns the time of CLOCK_MONOTONIC in nanoseconds. That is the clock of the kernel's own times
// (bpf_ktime_get_ns).
func MonotonicNanos() int64 {
	var t sys.Timespec
	if err := sys.ClockGettime(sys.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return t.Nano()
}
