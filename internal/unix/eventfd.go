package unix

import (
	"errors"
	"fmt"

	sys "golang.org/x/sys/unix"
)

// EventFD is a descriptor that is readable between Signal and Clear.
type EventFD struct{ fd int }

// NewEventFD makes one that is not readable.
func NewEventFD() (*EventFD, error) {
	fd, err := sys.Eventfd(0, sys.EFD_CLOEXEC|sys.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &EventFD{fd}, nil
}

// FD is the descriptor.
func (e *EventFD) FD() int { return e.fd }

// Signal makes it readable.
func (e *EventFD) Signal() error { return SignalEventFD(e.fd) }

// SignalEventFD makes the eventfd that a descriptor is of readable.
func SignalEventFD(fd int) error {
	one := [8]byte{1}
	if _, err := sys.Write(fd, one[:]); err != nil && !errors.Is(err, EAGAIN) {
		return fmt.Errorf("signal an eventfd: %w", err)
	}
	return nil
}

// Clear makes it unreadable.
func (e *EventFD) Clear() {
	var b [8]byte
	_, _ = sys.Read(e.fd, b[:]) // EAGAIN: it was not readable
}

// Close closes it.
func (e *EventFD) Close() error { return sys.Close(e.fd) }
