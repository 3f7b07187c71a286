package coordinator

import (
	"container/list"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// Limits of connections whose handshake has not finished.
const (
	clientPatience  = 5 * time.Second  // time that a client may take for all its messages of a handshake
	connectWithin   = 60 * time.Second // from the connection to the first message of HTTP/2, including the wait in line
	unfinishedFloor = 8192             // minimum number of connections that may be in a handshake at once; larger fleets have more
	typeHandshake   = 22               // content type of a TLS record (RFC 8446, section 5.1)
	maxRecord       = 1 << 14          // octets of a TLS record (RFC 8446, section 5.1)
)

// Reasons why connections end before their handshake has finished, as they are counted.
const (
	dropSilent  = "silent"  // no ClientHello came in time
	dropCrowded = "crowded" // there were too many connections, and it was the oldest without a ClientHello
	dropLine    = "line"    // too many handshakes of its address were under way for too long
	dropFailed  = "failed"  // the client was too slow, had no accepted certificate, or did not speak TLS 1.3
)

var dropReasons = []string{dropSilent, dropCrowded, dropLine, dropFailed}

var (
	errNoHello   = errors.New("not a TLS handshake")
	errCrowded   = errors.New("too many connections have not finished their handshake")
	errLine      = errors.New("too many handshakes of this address are in progress")
	errNoServing = errors.New("the server is stopping")
)

// admission bounds what clients cost before they have proved their identity. A connection counts as a
// handshake only when its ClientHello has arrived. Connections that have sent nothing wait outside, and
// only the oldest of them are closed when there are too many. Of the handshakes of one address a
// limited number runs at once, and the others wait in line. A turn is held while the server computes,
// never while it waits for a client.
type admission struct {
	perAddress int
	most       func() int
	turns      chan struct{}

	mu      sync.Mutex
	stopped bool
	all     map[*handshake]struct{}
	silent  *list.List // elements are *handshake, the oldest first
	lines   map[netip.Prefix]*addressLine
	dropped map[string]uint64 // number by reason
}

// addressLine holds the handshakes of one address that have sent a ClientHello.
type addressLine struct {
	running int
	waiting []chan struct{} // in order; a channel is closed when its turn comes
}

func newAdmission(perAddress int, most func() int) *admission {
	return &admission{perAddress: perAddress, most: most, turns: make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
		all: map[*handshake]struct{}{}, silent: list.New(), lines: map[netip.Prefix]*addressLine{}, dropped: map[string]uint64{}}
}

// addConnection registers a connection. When there are too many, it closes the oldest that has sent
// nothing. It returns an error when no place is free, or when the server is stopping.
func (a *admission) addConnection(h *handshake) error {
	most := a.most()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return errNoServing
	}
	if len(a.all) >= most {
		oldest := a.silent.Front()
		if oldest == nil {
			a.dropped[dropCrowded]++
			return errCrowded
		}
		o := a.silent.Remove(oldest).(*handshake)
		o.silentElement, o.reason = nil, dropCrowded
		delete(a.all, o)
		o.Close()
	}
	a.all[h] = struct{}{}
	h.silentElement = a.silent.PushBack(h)
	return nil
}

// markHelloReceived records that the ClientHello of a connection has arrived.
func (a *admission) markHelloReceived(h *handshake) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.silentElement != nil {
		a.silent.Remove(h.silentElement)
		h.silentElement = nil
	}
}

// removeConnection removes a connection, and counts the reason if its handshake has not finished.
func (a *admission) removeConnection(h *handshake, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.silentElement != nil {
		a.silent.Remove(h.silentElement)
		h.silentElement = nil
	}
	delete(a.all, h)
	if h.reason != "" {
		reason = h.reason
	}
	if reason != "" {
		a.dropped[reason]++
	}
}

// waitInLine waits until a handshake of that address may begin. The returned function must be called
// when the handshake has ended. waitInLine returns an error when the wait exceeds patience, or when the
// server is stopping.
func (a *admission) waitInLine(address netip.Prefix, patience time.Duration) (done func(), err error) {
	a.mu.Lock()
	l := a.lines[address]
	if l == nil {
		l = &addressLine{}
		a.lines[address] = l
	}
	done = func() { a.startNextWaiting(address, l) }
	if a.stopped {
		a.mu.Unlock()
		return nil, errNoServing
	}
	if l.running < a.perAddress {
		l.running++
		a.mu.Unlock()
		return done, nil
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	a.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-turn:
		return done, nil
	case <-timer.C:
	}
	a.mu.Lock()
	for i, w := range l.waiting {
		if w == turn {
			l.waiting = append(l.waiting[:i:i], l.waiting[i+1:]...)
			a.mu.Unlock()
			return nil, errLine
		}
	}
	a.mu.Unlock()
	return done, nil // the turn came at the last moment
}

// startNextWaiting ends a handshake of an address and begins the one that has waited longest.
func (a *admission) startNextWaiting(address netip.Prefix, l *addressLine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(l.waiting) > 0 {
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
		return
	}
	if l.running--; l.running == 0 {
		delete(a.lines, address)
	}
}

// stop ends all handshakes and refuses new ones.
func (a *admission) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	for h := range a.all {
		h.Close()
	}
	for _, l := range a.lines {
		for _, w := range l.waiting {
			close(w) // the handshake fails at once, since the connection is closed
			l.running++
		}
		l.waiting = nil
	}
}

// Handshakes holds the numbers of connections that have not finished their handshake, and of those that
// ended before.
type Handshakes struct {
	Silent, Running, Waiting int
	Dropped                  map[string]uint64 // number by reason
}

func (a *admission) handshakeStats() Handshakes {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Handshakes{Silent: a.silent.Len(), Dropped: map[string]uint64{}}
	for _, l := range a.lines {
		s.Running += l.running
		s.Waiting += len(l.waiting)
	}
	for _, r := range dropReasons {
		s.Dropped[r] = a.dropped[r]
	}
	return s
}

// addressOf returns the prefix that counts as one address: for IPv6 the /64, which one host may use
// completely. All connections over a Unix socket count as one address.
func addressOf(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// boundedCreds are transport credentials whose handshakes are bounded by an admission.
type boundedCreds struct {
	credentials.TransportCredentials
	admission *admission
	anonymous *anonymousClients
}

func (b *boundedCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	began, a := time.Now(), b.admission
	h := &handshake{Conn: conn, turns: a.turns, patience: clientPatience}
	if err := a.addConnection(h); err != nil {
		conn.Close()
		return nil, nil, err
	}
	if err := h.readHello(); err != nil {
		a.removeConnection(h, dropSilent)
		conn.Close()
		return nil, nil, err
	}
	a.markHelloReceived(h)
	done, err := a.waitInLine(addressOf(conn.RemoteAddr()), connectWithin-time.Since(began))
	if err != nil {
		a.removeConnection(h, dropLine)
		conn.Close()
		return nil, nil, err
	}
	defer done()
	out, info, err := b.runHandshake(h)
	if err != nil {
		a.removeConnection(h, dropFailed)
		conn.Close()
		return nil, nil, err
	}
	if !hasCertificate(info) && b.anonymous != nil {
		if out, err = b.anonymous.bound(out); err != nil {
			a.removeConnection(h, dropCrowded)
			conn.Close()
			return nil, nil, err
		}
	}
	a.removeConnection(h, "")
	return out, info, conn.SetDeadline(time.Now().Add(connectWithin))
}

func (b *boundedCreds) runHandshake(h *handshake) (net.Conn, credentials.AuthInfo, error) {
	if err := h.SetWriteDeadline(time.Now().Add(connectWithin)); err != nil {
		return nil, nil, err
	}
	h.turns <- struct{}{}
	defer func() { <-h.turns }()
	defer func() { h.finished = true }()
	return b.TransportCredentials.ServerHandshake(h)
}

func (b *boundedCreds) Clone() credentials.TransportCredentials {
	return &boundedCreds{b.TransportCredentials.Clone(), b.admission, b.anonymous}
}

// handshake is a connection whose handshake is in progress, and the same connection afterwards.
type handshake struct {
	net.Conn
	turns    chan struct{}
	patience time.Duration // rest of the time that the client may take
	hello    []byte        // part of the ClientHello that was read and not yet passed on
	finished bool

	// The fields below need the admission's mu.
	silentElement *list.Element // its place in the list of silent connections; nil if it is not in it
	reason        string        // why another goroutine closed it
}

// readHello reads the first record. It returns an error unless the record is of a handshake.
func (h *handshake) readHello() error {
	began := time.Now()
	if err := h.SetReadDeadline(began.Add(h.patience)); err != nil {
		return err
	}
	head := make([]byte, 5)
	if _, err := io.ReadFull(h.Conn, head); err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint16(head[3:]))
	if head[0] != typeHandshake || size == 0 || size > maxRecord {
		return errNoHello
	}
	h.hello = append(make([]byte, 0, 5+size), head...)[:5+size]
	if _, err := io.ReadFull(h.Conn, h.hello[5:]); err != nil {
		return err
	}
	h.patience -= time.Since(began)
	return nil
}

// Read implements net.Conn. During the handshake it gives the turn back while it waits for the client,
// and fails when the client has taken too long in total.
func (h *handshake) Read(b []byte) (int, error) {
	if len(h.hello) > 0 {
		n := copy(b, h.hello)
		if h.hello = h.hello[n:]; len(h.hello) == 0 {
			h.hello = nil
		}
		return n, nil
	}
	if h.finished {
		return h.Conn.Read(b)
	}
	<-h.turns
	defer func() { h.turns <- struct{}{} }()
	began := time.Now()
	if err := h.SetReadDeadline(began.Add(h.patience)); err != nil {
		return 0, err
	}
	n, err := h.Conn.Read(b)
	h.patience -= time.Since(began)
	return n, err
}
