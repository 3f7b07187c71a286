package serve

import (
	"context"
	"errors"
	"net"
	"sync"
)

// network connects the parts of this process by host, and the rest of the world as always.
type network struct{ listeners map[string]*listener } // by host

// newNetwork returns a network with these hosts. Connections to a host wait until it accepts them.
func newNetwork(hosts ...string) *network {
	n := &network{listeners: map[string]*listener{}}
	for _, h := range hosts {
		n.listeners[h] = &listener{host: h, dialed: make(chan net.Conn), closed: make(chan struct{})}
	}
	return n
}

// listener accepts connections from this process. It implements net.Listener.
type listener struct {
	host    string
	dialed  chan net.Conn
	closed  chan struct{}
	closing sync.Once
}

// dial connects to a host inside the process, at any port, or by the network.
func (n *network) dial(ctx context.Context, kind, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	l := n.listeners[host]
	if l == nil {
		var d net.Dialer
		return d.DialContext(ctx, kind, addr)
	}
	near, far := net.Pipe()
	select {
	case l.dialed <- far:
		return near, nil
	case <-l.closed:
		err = net.ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, near.Close(), far.Close())
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.dialed:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return insideAddress(l.host) }

// insideAddress is the address of a host inside the process.
type insideAddress string

// Network implements net.Addr.
func (insideAddress) Network() string { return "inside" }

// String implements net.Addr.
func (a insideAddress) String() string { return string(a) }
