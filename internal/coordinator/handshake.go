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
	clientPatience  = 5 * time.Second  // that a client may take for all its messages of a handshake
	connectWithin   = 60 * time.Second // from the connection to the first message of HTTP/2, the wait in line included
	unfinishedFloor = 8192             // connections at least that may be in a handshake at once; more for larger fleets
	typeHandshake   = 22               // of a TLS record (RFC 8446, section 5.1)
	maxRecord       = 1 << 14          // octets of one (RFC 8446, section 5.1)
)

// Why connections end before their handshake has finished, as counted.
const (
	dropSilent  = "silent"  // no ClientHello came in time
	dropCrowded = "crowded" // there were too many connections, and it was the oldest without a ClientHello
	dropLine    = "line"    // too many handshakes of its address were under way for too long
	dropFailed  = "failed"  // the client was too slow, showed no certificate that is accepted, or spoke no TLS 1.3
)

var dropReasons = []string{dropSilent, dropCrowded, dropLine, dropFailed}

var (
	errNoHello   = errors.New("not a TLS handshake")
	errCrowded   = errors.New("too many connections have not finished their handshake")
	errLine      = errors.New("too many handshakes of this address are in progress")
	errNoServing = errors.New("the server is stopping")
)

// admission bounds what clients cost before they have proved who they are. A connection counts as a
// handshake only when its ClientHello is there: those that say nothing wait outside, and only the oldest
// of them are closed when there are too many. Of the handshakes of one address a limited number is under way
// at once, the others wait in line. A turn is held while the server computes, never while it waits for a client.
type admission struct {
	perAddress int
	most       func() int
	turns      chan struct{}

	mu      sync.Mutex
	stopped bool
	all     map[*handshake]struct{}
	silent  *list.List // of *handshake, the oldest first
	lines   map[netip.Prefix]*addressLine
	dropped map[string]uint64 // by reason
}

// addressLine is the handshakes of one address that have a ClientHello.
type addressLine struct {
	running int
	waiting []chan struct{} // in order; closed when it is their turn
}

func newAdmission(perAddress int, most func() int) *admission {
	return &admission{perAddress: perAddress, most: most, turns: make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
		all: map[*handshake]struct{}{}, silent: list.New(), lines: map[netip.Prefix]*addressLine{}, dropped: map[string]uint64{}}
}

// addConnection takes a connection in. When there are too many, it closes the oldest that has said nothing.
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

// markHelloReceived says that the ClientHello of a connection is there.
func (a *admission) markHelloReceived(h *handshake) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.silentElement != nil {
		a.silent.Remove(h.silentElement)
		h.silentElement = nil
	}
}

// removeConnection forgets a connection, and counts why it ended when its handshake has not finished.
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

// waitInLine waits until a handshake of that address may begin. The function it returns must be called when
// the handshake has ended.
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
	return done, nil // it came at the last moment
}

// startNextWaiting ends a handshake of an address and begins the one that waits longest.
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
			close(w) // its handshake fails at once, since the connection is closed
			l.running++
		}
		l.waiting = nil
	}
}

// Handshakes is how many connections have not proved who they are, and how many ended without.
type Handshakes struct {
	Silent, Running, Waiting int
	Dropped                  map[string]uint64 // by reason
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

// addressOf returns what counts as one address: of IPv6 the /64, which one host may use as a whole. All connections that come
// by a socket of this host count as one.
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

// boundedCreds are credentials whose handshakes an admission bounds.
type boundedCreds struct {
	credentials.TransportCredentials
	admission *admission
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
	return &boundedCreds{b.TransportCredentials.Clone(), b.admission}
}

// handshake is a connection whose handshake is under way, and the same connection afterwards.
type handshake struct {
	net.Conn
	turns    chan struct{}
	patience time.Duration // left of what the client may take
	hello    []byte        // what was read of the ClientHello and not yet passed on
	finished bool

	// With the admission's mu:
	silentElement *list.Element // among the silent; nil: not one of them
	reason        string        // why it was closed by another
}

// readHello reads the first record, which must be of a handshake.
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

// Read implements net.Conn. While the handshake is under way it gives the turn back for as long as the client
// takes, and fails when the client has taken too long in all.
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
