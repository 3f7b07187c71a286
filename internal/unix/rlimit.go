package unix

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// RaiseOpenFiles raises the limit of open files (getrlimit(2), RLIMIT_NOFILE) to want, as far as the process may. It
// returns the new limit, and an error if that is below want.
func RaiseOpenFiles(want uint64) (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if l.Cur >= want {
		return l.Cur, nil
	}
	raised := unix.Rlimit{Cur: want, Max: max(l.Max, want)} // a value beyond Max needs privileges
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
		return want, nil
	}
	raised = unix.Rlimit{Cur: min(want, l.Max), Max: l.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
		return l.Cur, fmt.Errorf("raise the limit of open files from %d to %d: %w", l.Cur, raised.Cur, err)
	}
	if raised.Cur < want {
		return raised.Cur, fmt.Errorf("at most %d files may be open, %d were wanted", raised.Cur, want)
	}
	return raised.Cur, nil
}
