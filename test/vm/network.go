package vm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// maxFrame is the longest frame that a port takes, bytes: an MTU of 65535 and its headers.
const maxFrame = 65535 + 64

// Network is a switch in this process, to which machines are connected by QEMU's stream
// network (a frame after its length in four bytes, most significant first) over a unix
// socket. No frame leaves this machine. Its methods may be called by several goroutines.
type Network struct {
	dir      string
	listener net.Listener
	running  sync.WaitGroup

	mu        sync.Mutex
	ports     map[*port]bool
	portByMAC map[[6]byte]*port // where an address was seen last
	frames    uint64
	tap       func(frame []byte)
	delayed   map[[6]byte]time.Duration // by source
	held      chan heldFrame            // nil until something is delayed
}

// heldFrame is a frame that is sent later.
type heldFrame struct {
	due   time.Time
	frame []byte
	to    []*port
}

// maxHeld is the number of frames that are held. Further ones are lost, as in a switch.
const maxHeld = 10_000

// Delay delays what interface i of a machine sends by d, as a slow switch would: after the machine's own stamps. 0 ends it.
func (n *Network) Delay(machine string, i int, d time.Duration) error {
	hardware, err := net.ParseMAC(macAddress(machine, i))
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delayed[[6]byte(hardware)] = d
	if n.held == nil {
		held := make(chan heldFrame, maxHeld)
		n.held = held
		n.running.Go(func() {
			for h := range held {
				time.Sleep(time.Until(h.due))
				sendFrame(h.frame, h.to)
			}
		})
	}
	return nil
}

// hold holds a frame if its source is delayed, and reports whether it does.
func (n *Network) hold(frame []byte, to []*port) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.delayed[[6]byte(frame[4+6:4+12])]
	if d == 0 || n.held == nil {
		return false
	}
	select {
	case n.held <- heldFrame{time.Now().Add(d), slices.Clone(frame), to}:
	default:
	}
	return true
}

// sendFrame sends a frame to ports.
func sendFrame(frame []byte, to []*port) {
	for _, q := range to {
		q.mu.Lock()
		// Who does not take it is gone, and its own reader ends it.
		_, _ = q.conn.Write(frame)
		q.mu.Unlock()
	}
}

// port is a machine's.
type port struct {
	conn net.Conn
	mu   sync.Mutex // of writing
}

// NewNetwork makes a network that has no machine yet.
func NewNetwork() (*Network, error) {
	dir, err := os.MkdirTemp("", "graylink-vm-net")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", filepath.Join(dir, "net"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	n := &Network{dir: dir, listener: l, ports: map[*port]bool{}, portByMAC: map[[6]byte]*port{}, delayed: map[[6]byte]time.Duration{}}
	n.running.Go(n.acceptMachines)
	return n, nil
}

func (n *Network) socketPath() string { return n.listener.Addr().String() }

// FrameCount returns how many frames came from machines.
func (n *Network) FrameCount() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frames
}

// SetTap has f see each frame that comes from a machine, from the destination's address on, before it
// goes on. f does not keep it; several goroutines may call it.
func (n *Network) SetTap(f func(frame []byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tap = f
}

// Close disconnects the machines.
func (n *Network) Close() error {
	err := n.listener.Close()
	n.mu.Lock()
	for p := range n.ports {
		p.conn.Close()
	}
	if n.held != nil {
		close(n.held)
		n.held = nil
	}
	n.mu.Unlock()
	n.running.Wait()
	return errors.Join(err, os.RemoveAll(n.dir))
}

func (n *Network) acceptMachines() {
	for {
		c, err := n.listener.Accept()
		if err != nil {
			return // closed
		}
		p := &port{conn: c}
		n.mu.Lock()
		n.ports[p] = true
		n.mu.Unlock()
		n.running.Go(func() {
			n.forwardFrames(p)
			c.Close()
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.ports, p)
			for a, q := range n.portByMAC {
				if q == p {
					delete(n.portByMAC, a)
				}
			}
		})
	}
}

// forwardFrames takes a port's frames until it hangs up.
func (n *Network) forwardFrames(p *port) {
	buf := make([]byte, 4+maxFrame)
	for {
		frame, err := readFrame(p.conn, buf)
		if err != nil {
			return
		}
		n.mu.Lock()
		tap := n.tap
		n.mu.Unlock()
		if tap != nil {
			tap(frame[4:])
		}
		if to := n.routeFrame(p, frame[4:]); !n.hold(frame, to) {
			sendFrame(frame, to)
		}
	}
}

// readFrame reads a frame and its length into buf.
func readFrame(r io.Reader, buf []byte) ([]byte, error) {
	if _, err := io.ReadFull(r, buf[:4]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(buf)
	if size < 14 || size > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes: 14 to %d are expected", size, maxFrame)
	}
	if _, err := io.ReadFull(r, buf[4:4+size]); err != nil {
		return nil, err
	}
	return buf[:4+size], nil
}

// routeFrame returns to which ports a frame goes, and learns where its sender is.
func (n *Network) routeFrame(from *port, frame []byte) (to []*port) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frames++
	destination, source := [6]byte(frame[:6]), [6]byte(frame[6:12])
	if source[0]&1 == 0 {
		n.portByMAC[source] = from
	}
	if p := n.portByMAC[destination]; p != nil {
		if p == from {
			return nil
		}
		return []*port{p}
	}
	for p := range n.ports {
		if p != from {
			to = append(to, p)
		}
	}
	return to
}
