package probe

import (
	"log/slog"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

// idle is an engine with one NIC that only the test drives.
type idle struct {
	*nic
	e *Engine
}

// sockets returns the transport by UDP.
func (i idle) sockets() *sockets { return i.ports.udp.link.(*sockets) }

// takeProbe lets the reflector by UDP take a packet.
func (i idle) takeProbe(g *unix.Datagram, wall time.Time) error {
	return i.dispatchPacket(i.ports.udp.reflector, g, wall)
}

// takeReply lets an edge's socket take a packet.
func (i idle) takeReply(s *socket, g *unix.Datagram, wall time.Time) error {
	return i.dispatchPacket(s, g, wall)
}

// step runs one turn.
func (i idle) step(t testing.TB) {
	t.Helper()
	k, err := i.e.wire.poll.Wait(0)
	if err == nil {
		now := i.monoTime()
		_, _, err = i.e.runTurn(now, now, k)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// monoTime returns the engine's time.
func (i idle) monoTime() int64 { return i.e.wire.monoTime() }

// dueNow makes every edge due.
func (i idle) dueNow() {
	for _, e := range i.sender.edges {
		e.next = i.monoTime()
	}
}

func newIdle(t testing.TB, c *Config, deps Deps) idle {
	t.Helper()
	e, err := New(c, deps, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return idle{e.nics[0], e}
}
