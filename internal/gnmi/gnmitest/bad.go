package gnmitest

import (
	"fmt"
	"net"
	"sync"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"google.golang.org/protobuf/proto"
)

// badListener returns connections with the switch's faults.
type badListener struct {
	net.Listener
	s *Switch
}

// Accept implements net.Listener.
func (l *badListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if f := l.s.faults; f.CutAfter > 0 || f.Trickle > 0 {
		return &badConn{Conn: conn, left: f.CutAfter, trickle: f.Trickle}, nil
	}
	return conn, nil
}

type badConn struct {
	net.Conn
	mu      sync.Mutex
	left    int // bytes until it breaks; 0 means never
	trickle int
}

// Write implements net.Conn.
func (c *badConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cut := c.left > 0 && c.left <= len(b)
	if cut {
		b = b[:c.left]
	}
	done := 0
	for done < len(b) {
		n := len(b) - done
		if c.trickle > 0 {
			n = min(n, c.trickle)
			time.Sleep(time.Millisecond)
		}
		n, err := c.Conn.Write(b[done : done+n])
		if done += n; err != nil {
			return done, err
		}
	}
	if c.left > 0 {
		c.left -= done
	}
	if cut {
		_ = c.Close()
		return done, net.ErrClosed
	}
	return done, nil
}

// halvingCodec is the codec of a switch that may send halves of messages.
type halvingCodec struct{ s *Switch }

// Name implements encoding.Codec.
func (halvingCodec) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (h halvingCodec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", v)
	}
	b, err := proto.Marshal(m)
	if _, isResponse := v.(*gpb.SubscribeResponse); isResponse {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		if h.s.faults.Half {
			b = b[:len(b)/2]
		}
	}
	return b, err
}

// Unmarshal implements encoding.Codec.
func (halvingCodec) Unmarshal(b []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a message", v)
	}
	return proto.Unmarshal(b, m)
}
