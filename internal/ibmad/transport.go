package ibmad

import "time"

// Transport carries datagrams between one port of a fabric and the rest of it.
// Send and Receive may be called at the same time; Send by one goroutine at a
// time, and Receive too.
type Transport interface {
	// Send hands over one request, and never waits: a datagram that cannot be taken now is dropped, as the
	// fabric would drop it, and Send returns ErrDropped. wait is how long the sender will wait for the answer.
	Send(m *MAD, to Address, wait time.Duration) error
	// Receive waits for the next datagram. lost reports that it is a request that comes back without an answer;
	// then only its transaction id is valid.
	Receive(m *MAD) (lost bool, err error)
	// MaxInFlight returns the number of requests on their way that the transport supports.
	MaxInFlight() int
	// Close ends a waiting Receive.
	Close() error
}
