package webserver

import (
	"container/list"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// replaceGrace is how long a connection may wait before another one can take its place: time for
// a request that is on its way. It also bounds the work that reconnecting clients cause.
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
	// waiting are the connections without a request that is being computed, the longest
	// waiting first. sending are those whose client has not read a scrape yet.
	waiting, sending list.List
	unread           int // octets of those scrapes

	replaced, refused int // since the last line of the log
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
	from   netip.Prefix // invalid: the listener has no IP addresses
	client *client
	busy   int       // requests that are being computed
	unread int       // octets of scrapes that are being sent
	since  time.Time // of the wait
	closed bool
	// The places of the connection in the lists, or nil.
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

// admitConn takes a new connection. It returns nil if every other connection is at work or new, and
// the connection that has to be closed in its place, if there is one.
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

// addConn takes a connection into the lists. t.mu is held.
func (t *tracker) addConn(c net.Conn, from netip.Prefix, cl *client) *conn {
	out := &conn{Conn: c, t: t, from: from, client: cl}
	t.clients[from] = cl
	t.open++
	cl.open++
	out.markWaiting()
	return out
}

// removeConn takes a connection out of the lists. t.mu is held.
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

// logLimits writes a line about connections beyond the limits, at most one a minute. t.mu is held.
func (t *tracker) logLimits() {
	if now := time.Now(); now.Sub(t.loggedAt) >= logEvery {
		t.log.Warn("web connections reached a limit", "open", t.open, "closed_waiting", t.replaced, "refused", t.refused,
			"max", t.limits.Connections, "max_per_address", t.limits.ConnectionsPerAddress)
		t.loggedAt, t.replaced, t.refused = now, 0, 0
	}
}

// markWaiting puts the connection at the end of those that may be replaced. t.mu is held.
func (c *conn) markWaiting() {
	if !c.closed && c.inAll == nil {
		c.since = time.Now()
		c.inAll, c.inClient = c.t.waiting.PushBack(c), c.client.waiting.PushBack(c)
	}
}

// markBusy takes the connection out of those that may be replaced. t.mu is held.
func (c *conn) markBusy() {
	if c.inAll != nil {
		c.t.waiting.Remove(c.inAll)
		c.client.waiting.Remove(c.inClient)
		c.inAll, c.inClient = nil, nil
	}
}

// unlistSending takes the connection out of those whose client reads a scrape. t.mu is held.
func (c *conn) unlistSending() {
	if c.inSending != nil {
		c.t.sending.Remove(c.inSending)
		c.inSending = nil
	}
	c.t.unread -= c.unread
	c.unread = 0
}

// beginRequest notes that a request of the connection is being computed. A nil connection, which
// no listener of this package has accepted, is not counted.
func (c *conn) beginRequest() {
	if c == nil {
		return
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.busy++
	c.markBusy()
}

// endRequest notes that it is not computed any more.
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

// beginSend notes that a scrape of n octets is being sent. Those whose clients have been
// reading for the longest time are closed if too much is unread.
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

// endSend notes that a scrape of n octets was sent, or could not be.
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

// CloseWrite lets the server end an answer before it closes the connection.
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
