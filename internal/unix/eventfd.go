package unix

import (
	"errors"
	"fmt"

	sys "golang.org/x/sys/unix"
)

// EventFD is a descriptor that is readable between Signal and Clear.
type EventFD struct {
	fd  int
	buf [8]byte // of Clear, so that it allocates nothing
}

// NewEventFD makes one that is not readable.
func NewEventFD() (*EventFD, error) {
	fd, err := sys.Eventfd(0, sys.EFD_CLOEXEC|sys.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &EventFD{fd: fd}, nil
}

// FD is the descriptor.
func (e *EventFD) FD() int { return e.fd }

// Signal makes it readable.
func (e *EventFD) Signal() error { return SignalEventFD(e.fd) }

// one is what is written: it stays as it is.
var one = [8]byte{1}

// SignalEventFD makes the eventfd that a descriptor is of readable.
func SignalEventFD(fd int) error {
	if _, err := sys.Write(fd, one[:]); err != nil && !errors.Is(err, EAGAIN) {
		return fmt.Errorf("signal an eventfd: %w", err)
	}
	return nil
}

// Clear makes it unreadable. One goroutine at a time calls it.
func (e *EventFD) Clear() {
	_, _ = sys.Read(e.fd, e.buf[:]) // EAGAIN: it was not readable
}

// Close closes it.
func (e *EventFD) Close() error { return sys.Close(e.fd) }
