package unix

import (
	"errors"
	"fmt"

	sys "golang.org/x/sys/unix"
)

// EventFD is a descriptor that is readable between Signal and Clear.
type EventFD struct {
	fd  int
	buf [8]byte // of Clear, which therefore allocates nothing
}

// NewEventFD makes an EventFD that is not readable.
func NewEventFD() (*EventFD, error) {
	fd, err := sys.Eventfd(0, sys.EFD_CLOEXEC|sys.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &EventFD{fd: fd}, nil
}

// FD returns the descriptor.
func (e *EventFD) FD() int { return e.fd }

// Signal makes the descriptor readable.
func (e *EventFD) Signal() error { return SignalEventFD(e.fd) }

// one is the value that is written. It never changes.
var one = [8]byte{1}

// SignalEventFD makes the eventfd of a descriptor readable.
func SignalEventFD(fd int) error {
	if _, err := sys.Write(fd, one[:]); err != nil && !errors.Is(err, EAGAIN) {
		return fmt.Errorf("signal an eventfd: %w", err)
	}
	return nil
}

// Clear makes the descriptor unreadable. Only one goroutine at a time may call it.
func (e *EventFD) Clear() {
	_, _ = sys.Read(e.fd, e.buf[:]) // EAGAIN means that it was not readable
}

// Close closes the descriptor.
func (e *EventFD) Close() error { return sys.Close(e.fd) }
