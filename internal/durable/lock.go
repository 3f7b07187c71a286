package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// ErrLocked is the error of a lock that another process holds.
var ErrLocked = errors.New("another process holds the lock")

// Lock locks a file, which it creates with mode 0600 if it is missing, until the lock is closed or the process ends. The
// error wraps ErrLocked if another process holds the lock.
func Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("%s: %w", path, ErrLocked)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
