package webserver

import (
	"container/list"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// replaceGrace is the time for which a connection may wait before another one can replace it, which
// allows for a request that is on its way. It also limits the work that reconnecting clients cause.
const replaceGrace = 100 * time.Millisecond

// logEvery is the time between two lines of the log about connections beyond the limits.
const logEvery = time.Minute

// tracker holds the open connections of a server.
type tracker struct {
	limits Limits
	log    *slog.Logger

	mu      sync.Mutex
	open    int
	clients map[netip.Prefix]*client
	// waiting has the connections without a request that is being computed, the longest waiting first.
	// sending has those whose client has not read a scrape yet.
	waiting, sending list.List
	unread           int // octets of those scrapes

	replaced, refused int // numbers since the last line of the log
	loggedAt          time.Time
}

// client is an address with open connections.
type client struct {
	open    int
	waiting list.List
}

// conn is an open connection.
type conn struct {
	net.Conn
	t      *tracker
	from   netip.Prefix // invalid if the listener has no IP addresses
	client *client
	busy   int       // number of requests that are being computed
	unread int       // octets of scrapes that are being sent
	since  time.Time // start of the wait
	closed bool
	// The places of the connection in the lists, or nil if it is not in them.
	inAll, inClient, inSending *list.Element
}

func newTracker(l Limits, log *slog.Logger) *tracker {
	return &tracker{limits: l, log: log, clients: map[netip.Prefix]*client{}}
}

func (t *tracker) wrapListener(l net.Listener) net.Listener { return &listener{l, t} }

// listener accepts connections within the limits of a tracker.
type listener struct {
	net.Listener
	t *tracker
}

// Accept implements net.Listener. Connections beyond the limits are closed.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		admitted, replaced := l.t.admitConn(c)
		if replaced != nil {
			_ = replaced.Close()
		}
		if admitted != nil {
			return admitted, nil
		}
		c.Close()
	}
}

// clientOf returns what counts as one client: an IPv4 address, or a /64 of IPv6.
func clientOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	ip = ip.Unmap()
	bits := ip.BitLen()
	if ip.Is6() && !ip.IsLoopback() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // invalid for an invalid address
	return p
}

// admitConn admits a new connection. admitted is nil if every other connection is at work or new.
// replaced is the connection that has to be closed in its place, if there is one.
func (t *tracker) admitConn(c net.Conn) (admitted, replaced *conn) {
	from := clientOf(c.RemoteAddr())
	t.mu.Lock()
	defer t.mu.Unlock()
	cl := t.clients[from]
	if cl == nil {
		cl = &client{}
	}
	switch {
	case from.IsValid() && cl.open >= t.limits.ConnectionsPerAddress:
		replaced = firstConn(&cl.waiting)
	case t.open >= t.limits.Connections:
		replaced = firstConn(&t.waiting)
	default:
		return t.addConn(c, from, cl), nil
	}
	if replaced == nil || time.Since(replaced.since) < replaceGrace {
		t.refused++
		t.logLimits()
		return nil, nil
	}
	t.replaced++
	t.logLimits()
	t.removeConn(replaced)
	return t.addConn(c, from, cl), replaced
}

func firstConn(l *list.List) *conn {
	if e := l.Front(); e != nil {
		return e.Value.(*conn)
	}
	return nil
}

// addConn adds a connection to the lists. t.mu is held.
func (t *tracker) addConn(c net.Conn, from netip.Prefix, cl *client) *conn {
	out := &conn{Conn: c, t: t, from: from, client: cl}
	t.clients[from] = cl
	t.open++
	cl.open++
	out.markWaiting()
	return out
}

// removeConn removes a connection from the lists. t.mu is held.
func (t *tracker) removeConn(c *conn) {
	if c.closed {
		return
	}
	c.closed = true
	t.open--
	if c.client.open--; c.client.open == 0 && t.clients[c.from] == c.client {
		delete(t.clients, c.from)
	}
	c.markBusy()
	c.unlistSending()
}

// logLimits logs connections beyond the limits, at most one line a minute. t.mu is held.
func (t *tracker) logLimits() {
	if now := time.Now(); now.Sub(t.loggedAt) >= logEvery {
		t.log.Warn("the limit of web connections was reached", "open", t.open, "closed_waiting", t.replaced, "refused", t.refused,
			"max", t.limits.Connections, "max_per_address", t.limits.ConnectionsPerAddress)
		t.loggedAt, t.replaced, t.refused = now, 0, 0
	}
}

// markWaiting appends the connection to those that may be replaced. t.mu is held.
func (c *conn) markWaiting() {
	if !c.closed && c.inAll == nil {
		c.since = time.Now()
		c.inAll, c.inClient = c.t.waiting.PushBack(c), c.client.waiting.PushBack(c)
	}
}

// markBusy removes the connection from those that may be replaced. t.mu is held.
func (c *conn) markBusy() {
	if c.inAll != nil {
		c.t.waiting.Remove(c.inAll)
		c.client.waiting.Remove(c.inClient)
		c.inAll, c.inClient = nil, nil
	}
}

// unlistSending removes the connection from those whose client reads a scrape. t.mu is held.
func (c *conn) unlistSending() {
	if c.inSending != nil {
		c.t.sending.Remove(c.inSending)
		c.inSending = nil
	}
	c.t.unread -= c.unread
	c.unread = 0
}

// beginRequest records that a request of the connection is being computed. It ignores a nil connection,
// which no listener of this package has accepted.
func (c *conn) beginRequest() {
	if c == nil {
		return
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.busy++
	c.markBusy()
}

// endRequest records that a request of the connection is no longer being computed.
func (c *conn) endRequest() {
	if c == nil {
		return
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.busy--; c.busy == 0 {
		c.markWaiting()
	}
}

// beginSend records that a scrape of n octets is being sent. If too much is unread, it closes the
// connections whose clients have been reading for the longest time.
func (c *conn) beginSend(n int) {
	if c == nil {
		return
	}
	c.endRequest()
	c.t.mu.Lock()
	var slow []*conn
	if !c.closed {
		if c.inSending == nil {
			c.inSending = c.t.sending.PushBack(c)
		}
		c.unread += n
		c.t.unread += n
		for c.t.unread > maxUnread && c.t.sending.Front().Value != c {
			oldest := c.t.sending.Front().Value.(*conn)
			c.t.removeConn(oldest)
			slow = append(slow, oldest)
		}
	}
	c.t.mu.Unlock()
	for _, s := range slow {
		_ = s.Close()
	}
}

// endSend records that sending a scrape of n octets has ended, successfully or not.
func (c *conn) endSend(n int) {
	if c == nil {
		return
	}
	c.t.mu.Lock()
	if !c.closed {
		if c.unread == n {
			c.unlistSending()
		} else { // other requests of the same connection
			c.unread -= n
			c.t.unread -= n
		}
	}
	c.t.mu.Unlock()
	c.beginRequest()
}

// CloseWrite allows the server to end an answer before it closes the connection.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.t.mu.Lock()
	c.t.removeConn(c)
	c.t.mu.Unlock()
	return c.Conn.Close()
}
