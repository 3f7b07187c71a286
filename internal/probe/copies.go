package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/roce"
	"github.com/graylink/graylink/internal/unix"
)

// A queue pair sends with one hop limit, and does not learn of the hop that dropped a packet. Flows by RDMA are
// therefore traced by copies of their RoCE v2 packets, sent and received by raw sockets:
//
//  1. A copy has the addresses, DSCP, UDP ports and length of the flow's packets. If the driver's choice of the source
//     port is not known, the path is not known either.
//  2. The destination is queue pair 0, which no RoCE port has. No host answers a copy, so the end of its path is found
//     in the same way as that of a reply.
//  3. An answer is matched by the addresses, ports and length that it quotes, and by the identification of IPv4 and the
//     sequence number of the BTH if they are part of the quote.
//  4. Flows of one 5-tuple and DSCP have one path. Those that are to be traced at the same time are traced once.
const deadQPN = 0

// rawIP is the interface of raw sockets, which unix.RawIP implements. Recv is called by one goroutine, and ends with
// Close.
type rawIP interface {
	Send(packet []byte, dst netip.Addr) error
	Recv(buf []byte) (message []byte, from netip.Addr, err error)
	Close() error
}

// roceHost is the interface to what a host knows of its RDMA devices besides libibverbs, and to its raw sockets.
// sysHost implements it.
type roceHost interface {
	// DriverName returns the name of a device's kernel module.
	DriverName(device string) (string, error)
	// NetdevName returns the network interface of an entry of a GID table.
	NetdevName(device string, port, gidIndex int) (string, error)
	// NetdevDriver returns the name of a network interface's kernel module, or "" if it is virtual.
	NetdevDriver(netdev string) (string, error)
	OpenRaw(netdev string, src netip.Addr) (rawIP, error)
}

// sysHost reads a tree as /sys (Documentation/ABI/stable/sysfs-class-infiniband).
type sysHost struct{ sys string }

// DriverName returns the name of a device's kernel module. It implements roceHost.
func (h sysHost) DriverName(device string) (string, error) {
	dir := filepath.Join(h.sys, "class/infiniband", device)
	target, err := os.Readlink(filepath.Join(dir, "device/driver"))
	if err == nil {
		return filepath.Base(target), nil
	}
	// Soft-RoCE has no parent device, and is the only driver with this attribute
	// (drivers/infiniband/sw/rxe/rxe_verbs.c).
	if _, e := os.Stat(filepath.Join(dir, "parent")); e == nil && errors.Is(err, fs.ErrNotExist) {
		return "rdma_rxe", nil
	}
	return "", err
}

// NetdevName returns the network interface of an entry of a GID table. It implements roceHost.
func (h sysHost) NetdevName(device string, port, gidIndex int) (string, error) {
	file := filepath.Join(h.sys, "class/infiniband", device, "ports", strconv.Itoa(port), "gid_attrs/ndevs", strconv.Itoa(gidIndex))
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(b))
	if name == "" || strings.ContainsAny(name, "/ \n") {
		return "", fmt.Errorf("%s: %q, want the name of a network interface", file, name)
	}
	return name, nil
}

// NetdevDriver returns the name of a network interface's kernel module, or "" if it is virtual (a bond's or a veth's
// driver has no device). It implements roceHost.
func (h sysHost) NetdevDriver(netdev string) (string, error) {
	target, err := os.Readlink(filepath.Join(h.sys, "class/net", netdev, "device/driver"))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(filepath.Join(h.sys, "class/net", netdev))
		return "", err
	}
	return filepath.Base(target), err
}

// OpenRaw opens raw sockets for an address of an interface. It implements roceHost.
func (sysHost) OpenRaw(netdev string, src netip.Addr) (rawIP, error) {
	return unix.OpenRawIP(netdev, src)
}

// copyProbe represents a copy whose answer is awaited.
type copyProbe struct {
	packet roce.Packet // without payload
	udpLen uint16
	sent   int64 // Unix nanoseconds
	answer chan traceAnswer
}

// copier sends a NIC's copies and receives the answers. The first trace opens its sockets. They are opened again if the
// interface or the address changed, or if sending failed.
type copier struct {
	host roceHost
	wg   sync.WaitGroup

	mu      sync.Mutex
	raw     rawIP // nil if the sockets are not open
	netdev  string
	src     netip.Addr
	key     uint32
	awaited map[uint32]*copyProbe
	closed  bool
	buf     []byte
}

func newCopier(h roceHost) *copier {
	return &copier{host: h, awaited: map[uint32]*copyProbe{}}
}

// openSockets opens the sockets for an address of an interface, unless they are open already.
func (c *copier) openSockets(netdev string, src netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return errGone
	case c.raw != nil && c.netdev == netdev && c.src == src:
		return nil
	}
	if err := c.closeSockets(); err != nil {
		return err
	}
	raw, err := c.host.OpenRaw(netdev, src)
	if err != nil {
		return err
	}
	c.raw, c.netdev, c.src = raw, netdev, src
	c.wg.Go(func() { c.receiveErrors(raw, src.Is6()) })
	return nil
}

// closeSockets closes the sockets. The caller holds mu.
func (c *copier) closeSockets() error {
	if c.raw == nil {
		return nil
	}
	raw := c.raw
	c.raw = nil
	return raw.Close()
}

// Close closes the copier, and waits for its receiving goroutine.
func (c *copier) Close() error {
	c.mu.Lock()
	c.closed = true
	err := c.closeSockets()
	c.mu.Unlock()
	c.wg.Wait()
	return err
}

// sendCopy sends one copy and returns its key. No other copy of the last 16 million has the same key.
func (c *copier) sendCopy(p roce.Packet, hopLimit uint8, at int64, answer chan traceAnswer) (key uint32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.raw == nil {
		return 0, errGone
	}
	for {
		c.key = (c.key + 1) & (1<<24 - 1)
		if uint16(c.key) != 0 { // for identification 0 the kernel chooses another one: raw(7)
			break
		}
	}
	p.HopLimit, p.PSN, p.ID = hopLimit, c.key, uint16(c.key)
	if c.buf, err = p.Append(c.buf[:0]); err != nil {
		return 0, err
	}
	ip := 20
	if p.Src.Is6() {
		ip = 40
	}
	w := &copyProbe{packet: p, udpLen: uint16(len(c.buf) - ip), sent: at, answer: answer}
	w.packet.Payload = nil
	c.awaited[c.key] = w
	if err := c.raw.Send(c.buf, p.Dst); err != nil {
		delete(c.awaited, c.key)
		return 0, errors.Join(err, c.closeSockets())
	}
	return c.key, nil
}

func (c *copier) forgetCopies(keys []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		delete(c.awaited, k)
	}
}

// receiveErrors receives ICMP errors until the sockets are closed.
func (c *copier) receiveErrors(raw rawIP, v6 bool) {
	buf := make([]byte, 2048) // errors have at most 576 octets, for IPv6 1280: RFC 1812 4.3.2.3, RFC 4443 2.4
	for {
		b, from, err := raw.Recv(buf)
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.raw == raw { // the sockets failed; the next trace opens new ones
				c.raw = nil
				_ = raw.Close() // the sockets failed already
			}
			return
		}
		c.handleError(b, from, v6, time.Now().UnixNano())
	}
}

// handleError processes one ICMP error. Errors about packets other than copies are frequent and expected.
func (c *copier) handleError(b []byte, from netip.Addr, v6 bool, at int64) {
	quote, err := roce.ParseQuote(b, v6)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key, w := c.matchQuote(&quote)
	if w == nil {
		return
	}
	r := unix.Report{Kind: unix.ReportICMP, Type: quote.Type, Code: quote.Code, Extension: quote.Extension}
	if v6 {
		r.Kind = unix.ReportICMP6
	}
	a := traceAnswer{key: key, from: from, rtt: time.Duration(at - w.sent)}
	switch {
	case isTimeExceeded(&r):
		a.ext, a.extErr = extensionOf(&r)
	case isUnreachable(&r) && from == w.packet.Dst:
		a.reached = true // the kernel has no socket at the port, but the packet reached the device
	default:
		return // a switch without a route counts as silent
	}
	delete(c.awaited, key)
	w.answer <- a
}

// matchQuote finds the copy that an ICMP error quotes, by rule 3. If IPv6 is quoted without the BTH, it is the only
// copy of its flow that is in flight, or else no copy matches.
func (c *copier) matchQuote(q *roce.Quote) (key uint32, w *copyProbe) {
	for k, v := range c.awaited {
		p := &v.packet
		switch {
		case q.Src != p.Src || q.Dst != p.Dst || q.SrcPort != p.SrcPort || q.UDPLen != v.udpLen:
		case p.Src.Is4() && q.ID != p.ID:
		case q.BTH && (q.PSN != p.PSN || q.Opcode != p.Opcode || q.DestQPN != p.DestQPN):
		case w != nil:
			return 0, nil
		default:
			key, w = k, v
		}
	}
	return key, w
}

// copyPlan holds the parameters by which a flow's copies are sent.
type copyPlan struct {
	copier *copier
	packet roce.Packet
}

// tuple holds the header fields by which switches distinguish flows.
type tuple struct {
	nic      string
	src, dst netip.Addr
	port     uint16
	dscp     uint8
}

// planCopies returns the parameters by which a flow's copies are sent. The error states what is missing.
func (n *nic) planCopies(f traceFlow) (*copyPlan, error) {
	n.mu.Lock()
	pair, copies := n.ports.rdma.pair, n.ports.rdma.copies
	var size int
	var pkey uint16
	if !n.closed && n.cfg.RDMA != nil {
		pkey = n.cfg.RDMA.PKey
		var scratch [unix.MaxDatagram]byte
		size = n.putRequest(scratch[:], 0, 0, n.ssid|traceSSID, 0, f.dscp, false, f.peer.keys.sendKey())
	}
	n.mu.Unlock()
	if pair == nil || copies == nil || size == 0 {
		return nil, errGone
	}
	s := pair.Status()
	switch {
	case s.InfiniBand:
		return nil, fmt.Errorf("RDMA device %s port %d: it is InfiniBand, want RoCE v2", s.Device, s.Port)
	case !s.Queue || !s.GID.IsValid():
		return nil, fmt.Errorf("RDMA device %s port %d: no queue pair or GID, want both", s.Device, s.Port)
	case s.GIDType != rdma.GIDRoCEv2:
		return nil, fmt.Errorf("RDMA device %s port %d: GID type %v, want RoCE v2", s.Device, s.Port, s.GIDType)
	}
	driver, err := copies.host.DriverName(s.Device)
	if err != nil {
		return nil, fmt.Errorf("RDMA device %s: driver: %w", s.Device, err)
	}
	rule, err := roce.RuleOf(driver)
	if err != nil {
		return nil, fmt.Errorf("RDMA device %s: %w", s.Device, err)
	}
	netdev, err := copies.host.NetdevName(s.Device, s.Port, s.GIDIndex)
	if err != nil {
		return nil, fmt.Errorf("RDMA device %s port %d: network interface: %w", s.Device, s.Port, err)
	}
	src, dst := s.GID.Unmap(), f.dst.Addr().Unmap()
	if err := copies.openSockets(netdev, src); err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("CAP_NET_RAW: missing, want it for paths of edges by RDMA: %w", err)
		}
		return nil, err
	}
	label := rdma.FlowLabel(f.sock.port, f.dst.Port())
	p := roce.Packet{Src: src, Dst: dst, TOS: f.dscp<<2 | ect0, DontFragment: true, SrcPort: rule.SourcePort(label, s.QPN), Opcode: roce.OpSendImmediate,
		PKey: pkey, DestQPN: deadQPN, SrcQPN: s.QPN, Imm: uint32(f.sock.port)<<16 | uint32(f.dst.Port()), Payload: make([]byte, size)}
	if rule == roce.ByLabel {
		p.FlowLabel = label
	}
	return &copyPlan{copies, p}, nil
}

func (c *copyPlan) tupleOf(nic string) tuple {
	return tuple{nic, c.packet.Src, c.packet.Dst, c.packet.SrcPort, c.packet.TOS >> 2}
}

func (c *copyPlan) sendCopy(ttl uint8, answer chan traceAnswer) (uint32, error) {
	return c.copier.sendCopy(c.packet, ttl, time.Now().UnixNano(), answer)
}

// sharedTrace represents the trace of one tuple, for all flows that have it.
type sharedTrace struct {
	turn  chan struct{} // holds an element while a flow is being traced
	flows int           // flows that trace it or wait; guarded by the tracer's mu

	path    TracedPath // guarded by turn
	foundAt time.Time  // time at which it was found
}

// traceCopies traces a flow by RDMA, or returns the path that another flow of its tuple found in the meantime.
func (t *tracer) traceCopies(ctx context.Context, f traceFlow) (TracedPath, error) {
	began := time.Now()
	plan, err := f.nic.planCopies(f)
	switch {
	case errors.Is(err, errGone):
		return TracedPath{}, err
	case err != nil:
		p := TracedPath{Edge: f.edge, TracedAt: began, State: fabric.PathUnknown}
		p.addNote("not traced: %v", err)
		return p, nil
	}
	f.copies = plan
	nic, _ := f.edge.Endpoints()
	key := plan.tupleOf(nic)
	t.mu.Lock()
	c := t.sharedTraces[key]
	if c == nil {
		c = &sharedTrace{turn: make(chan struct{}, 1)}
		t.sharedTraces[key] = c
	}
	c.flows++
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if c.flows--; c.flows == 0 {
			delete(t.sharedTraces, key)
		}
	}()
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return TracedPath{}, ctx.Err()
	}
	if c.foundAt.After(began) {
		p := c.path
		p.Edge = f.edge
		return p, nil
	}
	p, err := t.withSlot(ctx, f)
	if err == nil {
		c.path, c.foundAt = p, time.Now()
	}
	return p, err
}
