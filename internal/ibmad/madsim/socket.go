package madsim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
)

// The server side of ibsim's protocol; ibmad.DialIbsim is the client side.
const (
	controlSize = 80
	controlData = 16
	dataSize    = 288

	magic     = 0xdeadbeef
	refused   = 0
	connect   = 1
	leave     = 2
	getVendor = 4
	getNode   = 7
	getPort   = 8
	setIsSM   = 9
	getPKeys  = 10
)

// Server serves a Fabric at ibsim's socket.
type Server struct {
	fabric  *Fabric
	name    string
	control *net.UnixConn
	workers sync.WaitGroup

	mu      sync.Mutex
	clients []*client // by number; nil after a client left
}

type client struct {
	node *node
	data *net.UnixConn
	peer *net.UnixAddr
}

// ServeIbsim lets other processes attach: clients of package ibmad with the device ibsim:NAME/NODE, and
// programs for real devices through umad2sim, with IBSIM_SOCKNAME and SIM_HOST. Their number is not limited.
// Clients cannot change anything in the fabric.
func (f *Fabric) ServeIbsim(name string) (*Server, error) {
	s := &Server{fabric: f, name: name}
	var err error
	if s.control, err = net.ListenUnixgram("unixgram", s.socketAddress("ctl")); err != nil {
		return nil, err
	}
	s.workers.Go(s.serveControl)
	return s, nil
}

// socketAddress returns the address of an abstract socket. The NUL at its end belongs to it, but the net
// package does not return it.
func (s *Server) socketAddress(socket string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixgram", Name: "@" + s.name + ":" + socket + "\x00"}
}

// Close stops the server with all its clients.
func (s *Server) Close() error {
	err := s.control.Close()
	s.mu.Lock()
	for _, c := range s.clients {
		if c != nil {
			err = errors.Join(err, c.data.Close())
		}
	}
	s.clients = nil
	s.mu.Unlock()
	s.workers.Wait()
	return err
}

// serveControl answers control messages.
func (s *Server) serveControl() {
	for {
		var m [controlSize]byte
		n, from, err := s.control.ReadFromUnix(m[:])
		if err != nil {
			return
		}
		if n != controlSize || binary.NativeEndian.Uint32(m[0:]) != magic {
			continue
		}
		number := binary.NativeEndian.Uint32(m[4:])
		if err := s.handleControl(binary.NativeEndian.Uint32(m[8:]), number, m[controlData:]); err != nil {
			binary.NativeEndian.PutUint32(m[8:], refused)
		}
		from.Name += "\x00"
		// A client that does not wait for the answer does not get it.
		_, _ = s.control.WriteToUnix(m[:], from)
	}
}

func (s *Server) handleControl(kind, number uint32, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind == connect {
		return s.connectClient(data)
	}
	if number >= uint32(len(s.clients)) || s.clients[number] == nil {
		return fmt.Errorf("no client %d", number)
	}
	c := s.clients[number]
	switch kind {
	case leave:
		s.clients[number] = nil
		return c.data.Close()
	case getVendor:
		clear(data)
		binary.NativeEndian.PutUint32(data[0:], c.node.vendor.ID)
		binary.NativeEndian.PutUint32(data[4:], uint32(c.node.vendor.DeviceID))
	case getNode:
		return s.readAttribute(c, ibmad.GetNodeInfo(ibmad.Address{}), data)
	case getPort:
		return s.readAttribute(c, ibmad.GetPortInfo(ibmad.Address{}, data[0]), data)
	case getPKeys:
		clear(data)
		data[0], data[1] = 0xff, 0xff // full member of the default partition
	case setIsSM:
	default:
		return fmt.Errorf("no order %d", kind)
	}
	return nil
}

// readAttribute reads an attribute of the client's own node.
func (s *Server) readAttribute(c *client, r ibmad.Request, into []byte) error {
	var m ibmad.MAD
	if err := r.Encode(&m, 0, 0); err != nil {
		return err
	}
	if _, ok := s.fabric.answerRequest(c.node, &m, 0); !ok {
		return errors.New("the node is silent")
	}
	copy(into, m.Data()[:64])
	return nil
}

// connectClient adds a client. Its number is returned in place of its identity.
func (s *Server) connectClient(data []byte) error {
	identity := binary.NativeEndian.Uint32(data)
	name, _, _ := strings.Cut(string(data[12:44]), "\x00")
	s.fabric.mu.Lock()
	at := s.fabric.byName[name]
	s.fabric.mu.Unlock()
	if at == nil {
		return fmt.Errorf("no node %q", name)
	}
	conn, err := net.ListenUnixgram("unixgram", s.socketAddress(fmt.Sprint("out", len(s.clients))))
	if err != nil {
		return err
	}
	c := &client{node: at, data: conn, peer: s.socketAddress(fmt.Sprint("in", identity))}
	binary.NativeEndian.PutUint32(data, uint32(len(s.clients)))
	s.clients = append(s.clients, c)
	s.workers.Go(func() { c.serveDatagrams(s.fabric) })
	return nil
}

// serveDatagrams answers a client's requests until it leaves.
func (c *client) serveDatagrams(f *Fabric) {
	for {
		var b [dataSize]byte
		n, err := c.data.Read(b[:])
		if err != nil {
			return
		}
		if n != dataSize {
			continue
		}
		m := (*ibmad.MAD)(b[dataSize-ibmad.Size:])
		delay, ok := f.answerRequest(c.node, m, ibmad.LID(binary.BigEndian.Uint16(b[0:])))
		if !ok {
			continue
		}
		// A client that left loses the answer; one that does not read delays no other client.
		time.AfterFunc(delay, func() { _, _ = c.data.WriteToUnix(b[:], c.peer) })
	}
}
