package ibmad

import "time"

// Transport carries datagrams between one port of a fabric and the rest of it.
// Send and Receive may be called at the same time; Send by one goroutine at a
// time, and Receive too.
type Transport interface {
	// Send hands over one request, and never waits: what cannot be taken now is
	// dropped, as the fabric would drop it, and Send returns ErrDropped. wait is
	// how long the sender will wait for the answer.
	Send(m *MAD, to Address, wait time.Duration) error
	// Receive waits for the next datagram. lost tells that it is a request coming
	// back without an answer; then only its transaction id holds.
	Receive(m *MAD) (lost bool, err error)
	// MaxInFlight is the number of requests on their way that the transport stands.
	MaxInFlight() int
	// Close ends a Receive that waits.
	Close() error
}
