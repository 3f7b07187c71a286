package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/rdma/rdmatest"
	"github.com/graylink/graylink/internal/roce"
)

// fakeHost is a host with one path of switches before every destination.
type fakeHost struct {
	driver    string
	err       error // of opening
	sendErr   error
	switches  []netip.Addr
	choose    func(p roce.Packet) netip.Addr // the switch at hop limit 2, instead of that of switches; nil: that
	closed    bool                           // the destination's kernel reports a closed port
	quoted    int                            // octets of a quote; 0: all
	extension []byte

	mu     sync.Mutex
	sent   []roce.Packet
	opened []string
	open   int
}

func (h *fakeHost) DriverName(string) (string, error) {
	if h.driver == "" {
		return "", fs.ErrNotExist
	}
	return h.driver, nil
}

func (h *fakeHost) NetdevName(string, int, int) (string, error) { return "eth7", nil }

func (h *fakeHost) NetdevDriver(string) (string, error) { return h.driver, nil }

func (h *fakeHost) OpenRaw(netdev string, src netip.Addr) (rawIP, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	h.opened = append(h.opened, fmt.Sprintf("%s %v", netdev, src))
	h.open++
	return &fakeRaw{h: h, in: make(chan icmpMessage, 64), done: make(chan struct{})}, nil
}

type icmpMessage struct {
	b    []byte
	from netip.Addr
}

type fakeRaw struct {
	h    *fakeHost
	in   chan icmpMessage
	done chan struct{}
}

func (r *fakeRaw) Send(b []byte, dst netip.Addr) error {
	h := r.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sendErr != nil {
		return h.sendErr
	}
	p, err := roce.Parse(b)
	if err != nil {
		return err
	}
	p.Payload = slices.Clone(p.Payload)
	h.sent = append(h.sent, p)
	quote := slices.Clone(b)
	if h.quoted > 0 && h.quoted < len(b) {
		quote = quote[:h.quoted]
	}
	switch hop := int(p.HopLimit); {
	case hop <= len(h.switches):
		a := h.switches[hop-1]
		if hop == 2 && h.choose != nil {
			a = h.choose(p)
		}
		if a.IsValid() {
			r.in <- icmpMessage{exceeded(quote, h.extension), a}
		}
	case h.closed:
		r.in <- icmpMessage{icmpError(3, 3, quote, nil), dst}
	}
	return nil
}

func (r *fakeRaw) Recv([]byte) ([]byte, netip.Addr, error) {
	select {
	case m := <-r.in:
		return m.b, m.from, nil
	case <-r.done:
		return nil, netip.Addr{}, os.ErrClosed
	}
}

func (r *fakeRaw) Close() error {
	// It is called under the copier's lock, and by Send's caller with h.mu free.
	close(r.done)
	r.h.open--
	return nil
}

// exceeded returns the error of a switch that a packet ended at.
func exceeded(quote, extension []byte) []byte {
	if quote[0]>>4 == 6 {
		return append([]byte{3, 0, 0, 0, 0, 0, 0, 0}, quote...)
	}
	return icmpError(11, 0, quote, extension)
}

// icmpError returns an ICMP error of IPv4. An extension follows after 128 octets.
func icmpError(typ, code byte, quote, extension []byte) []byte {
	words := byte(0)
	if extension != nil {
		quote = append(quote, make([]byte, 128)...)[:128]
		words = 32
	}
	b := append(append([]byte{typ, code, 0, 0, 0, words, 0, 0}, quote...), extension...)
	if len(b)&1 == 1 {
		b = append(b, 0)
	}
	binary.BigEndian.PutUint16(b[2:], ^onesSum(b))
	return b
}

// copying returns a NIC with RDMA whose copies go to a fake host.
func copying(t *testing.T, h *fakeHost) (n idle, traceFlows []traceFlow) {
	t.Helper()
	a, _, _ := rdmaPair(t)
	a.ports.rdma.copies.host = h
	flows := a.traceableFlows()
	slices.SortFunc(flows, func(x, y traceFlow) int { return strings.Compare(x.edge.String(), y.edge.String()) })
	return a, flows
}

// copyingV6 does the same with GIDs that are IPv6 addresses.
func copyingV6(t *testing.T, h *fakeHost) (n idle, flows []traceFlow) {
	t.Helper()
	f := rdmatest.New(func() int64 { return time.Now().UnixNano() })
	f.AddDevice("h1", "rdma0", "2001:db8::1")
	n = newIdleRDMA(t, rdmaConfig(1, 2, 0), f.HostVerbs("h1"))
	c := rdmaConfig(1, 2, 0)
	c.reconnect(filePeer{PeerConfig: PeerConfig{NIC: "h2/rdma0", RDMA: &RDMAPeer{GID: netip.MustParseAddr("2001:db8::2"), QPN: 20, QKey: 77}}, flows: 2, probe: true})
	if err := n.e.Apply(c); err != nil {
		t.Fatal(err)
	}
	n.ports.rdma.copies.host = h
	return n, n.traceableFlows()
}

// IPv6's flow label is in the hash of many switches. Devices send the flow label of the address handle, and soft-RoCE
// sends 0 (rxe_net.c, prepare_ipv6_hdr).
func TestCopyRule1IPv6(t *testing.T) {
	for _, driver := range []string{"mlx5_core", "rdma_rxe"} {
		synctest.Test(t, func(t *testing.T) {
			h := &fakeHost{driver: driver, switches: []netip.Addr{netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:2::1")}}
			n, flows := copyingV6(t, h)
			for _, f := range flows {
				h.sent = nil
				p := traceOne(t, n, f)
				if p.State != fabric.PathValid || hops(p) != "2001:db8:1::1 2001:db8:2::1" {
					t.Errorf("%s %v: %+v", driver, f.edge, p)
				}
				want := uint32(0)
				if driver == "mlx5_core" {
					want = rdma.FlowLabel(f.sock.port, f.dst.Port())
				}
				for _, c := range h.sent {
					if c.FlowLabel != want || c.Src.String() != "2001:db8::1" || c.Dst.String() != "2001:db8::2" || c.TOS != 26<<2|ect0 {
						t.Errorf("%s %v: %+v, want flow label %#x", driver, f.edge, c, want)
					}
				}
			}
		})
	}
}

func traceOne(t *testing.T, n idle, f traceFlow) TracedPath {
	t.Helper()
	p, err := n.e.tracer.traceAndKeep(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCopyRule1CopiesAreThePacketsOfTheFlow(t *testing.T) {
	for _, x := range []struct {
		driver string
		ports  int // of four flows
	}{{"mlx5_core", 2}, {"rdma_rxe", 1}} {
		synctest.Test(t, func(t *testing.T) {
			h := &fakeHost{driver: x.driver, switches: []netip.Addr{up1, spine1, up2}}
			n, flows := copying(t, h)
			if len(flows) != 4 {
				t.Fatalf("%d flows, want two to the peer and two from it", len(flows))
			}
			s := n.ports.rdma.pair.Status()
			ports := map[uint16]bool{}
			for _, f := range flows {
				h.sent = nil
				p := traceOne(t, n, f)
				if p.State != fabric.PathValid || p.Reached || hops(p) != "10.2.0.1 10.1.0.1 10.2.0.2" {
					t.Errorf("%s %v: %+v", x.driver, f.edge, p)
				}
				label := rdma.FlowLabel(f.sock.port, f.dst.Port())
				rule, err := roce.RuleOf(x.driver)
				if err != nil {
					t.Fatal(err)
				}
				ids := map[uint16]bool{}
				for _, c := range h.sent {
					ports[c.SrcPort] = true
					if c.Src.String() != "10.0.0.1" || c.Dst.String() != "10.0.0.2" || c.TOS != 26<<2|ect0 || c.SrcPort != rule.SourcePort(label, s.QPN) || !c.DontFragment ||
						c.DestQPN != deadQPN || c.SrcQPN != s.QPN || c.PKey != rdma.DefaultPKey || len(c.Payload) == 0 || c.ID == 0 || ids[c.ID] {
						t.Errorf("%s %v: %+v", x.driver, f.edge, c)
					}
					ids[c.ID] = true
				}
			}
			if len(ports) != x.ports {
				t.Errorf("%s: ports %v, want %d", x.driver, ports, x.ports)
			}
			if !slices.Equal(h.opened, []string{"eth7 10.0.0.1"}) {
				t.Errorf("opened %q, want once, on the interface of the GID", h.opened)
			}
		})
	}
}

// If it is not known how copies are sent, the path is unknown, and a note states what is missing.
func TestCopyRule1WhatIsNotKnownIsNotGuessed(t *testing.T) {
	for _, x := range []struct {
		h    *fakeHost
		note string
	}{
		{&fakeHost{}, "RDMA device rdma0: driver: file does not exist"},
		{&fakeHost{driver: "bnxt_re"}, `RDMA device rdma0: driver "bnxt_re": how it chooses the UDP source port is not known`},
		{&fakeHost{driver: "mlx5_core", err: fmt.Errorf("raw socket: %w", syscall.EPERM)}, "CAP_NET_RAW: missing"},
		{&fakeHost{driver: "mlx5_core"}, "nothing answered beyond hop limit 0"},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, flows := copying(t, x.h)
			p := traceOne(t, n, flows[0])
			if p.State != fabric.PathUnknown || len(p.Hops) != 0 || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], x.note) {
				t.Errorf("%+v, want an unknown path and the note %q", p, x.note)
			}
		})
	}
}

func TestCopyRule2ThePathEndsAfterTheLastAnswer(t *testing.T) {
	for _, x := range []struct {
		name    string
		h       *fakeHost
		hops    string
		reached bool
	}{
		{"nothing answers", &fakeHost{switches: []netip.Addr{up1, spine1}}, "10.2.0.1 10.1.0.1", false},
		{"a silent switch", &fakeHost{switches: []netip.Addr{up1, noAddress, up2}}, "10.2.0.1 - 10.2.0.2", false},
		{"the kernel has no socket at the port", &fakeHost{switches: []netip.Addr{up1, spine1}, closed: true}, "10.2.0.1 10.1.0.1", true},
		{"quotes of 28 octets", &fakeHost{switches: []netip.Addr{up1, spine1}, quoted: 28}, "10.2.0.1 10.1.0.1", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := x.h
			h.driver = "mlx5_core"
			n, flows := copying(t, h)
			p := traceOne(t, n, flows[0])
			got := []string{}
			for _, v := range p.Hops {
				a := "-"
				if v.Address.IsValid() {
					a = v.Address.String()
				}
				got = append(got, a)
			}
			if p.State != fabric.PathValid || p.Reached != x.reached || strings.Join(got, " ") != x.hops {
				t.Errorf("%s: %v %+v", x.name, got, p)
			}
		})
	}
}

func TestCopyRule3OnlyItsOwnQuotesAreAnswers(t *testing.T) {
	c := newCopier(&fakeHost{driver: "mlx5_core"})
	if err := c.openSockets("eth7", netip.MustParseAddr("10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	p := roce.Packet{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 0xc001, Opcode: roce.OpSendImmediate, Payload: make([]byte, 40)}
	answer := make(chan traceAnswer, 16)
	var quote []byte
	send := func() uint32 {
		t.Helper()
		key, err := c.sendCopy(p, 1, 0, answer)
		if err != nil {
			t.Fatal(err)
		}
		quote = slices.Clone(c.buf)
		return key
	}
	key := send()
	for _, x := range []struct {
		name string
		do   func(b []byte)
	}{
		{"another source", func(b []byte) { b[15]++ }}, {"another destination", func(b []byte) { b[19]++ }}, {"another identification", func(b []byte) { b[5]++ }},
		{"another source port", func(b []byte) { b[21]++ }}, {"another destination port", func(b []byte) { b[23]++ }}, {"another length", func(b []byte) { b[25]++ }},
		{"another sequence number", func(b []byte) { b[39]++ }}, {"another queue pair", func(b []byte) { b[35]++ }}, {"another opcode", func(b []byte) { b[28]-- }},
	} {
		b := slices.Clone(quote)
		x.do(b)
		c.handleError(icmpError(11, 0, b, nil), spine1, false, 1)
		if len(answer) != 0 {
			t.Errorf("%s: it was taken for an answer: %+v", x.name, <-answer)
			key = send()
		}
	}
	c.handleError(icmpError(3, 1, quote, nil), spine1, false, 1) // no route: as good as silent
	if len(answer) != 0 {
		t.Errorf("no route was taken for an answer")
	}
	labels := []byte{0x20, 0, 0, 0, 0, 8, classMPLS, typeLabelStack, 0, 1, 1, 64}
	c.handleError(icmpError(11, 0, quote, labels), spine1, false, 5)
	c.handleError(icmpError(11, 0, quote, labels), spine1, false, 5) // a second one has no receiver
	if len(answer) != 1 {
		t.Fatalf("%d answers, want one", len(answer))
	}
	if a := <-answer; a.key != key || a.from != spine1 || a.rtt != 5 || a.reached || a.extErr != nil || len(a.ext.labels) != 1 {
		t.Errorf("%+v", a)
	}
	c.forgetCopies([]uint32{send()})
	c.handleError(icmpError(11, 0, quote, nil), spine1, false, 1)
	if len(answer) != 0 || len(c.awaited) != 0 {
		t.Errorf("a copy that was forgotten had an answer")
	}
}

func TestCopyRule4FlowsOfOneTupleAreTracedOnce(t *testing.T) {
	for _, x := range []struct {
		driver string
		traces int
	}{{"mlx5_core", 2}, {"rdma_rxe", 1}} {
		synctest.Test(t, func(t *testing.T) {
			h := &fakeHost{driver: x.driver, switches: []netip.Addr{up1}}
			n, flows := copying(t, h)
			traceOne(t, n, flows[0])
			once := len(h.sent)
			h.sent = nil
			n.e.tracer.mu.Lock()
			clear(n.e.tracer.paths)
			n.e.tracer.mu.Unlock()
			var wg sync.WaitGroup
			for _, f := range flows {
				wg.Go(func() {
					if p, err := n.e.tracer.traceAndKeep(t.Context(), f); err != nil || p.Edge != f.edge || p.State != fabric.PathValid || hops(p) != "10.2.0.1" {
						t.Errorf("%v: %+v, %v", f.edge, p, err)
					}
				})
			}
			wg.Wait()
			if len(h.sent) != x.traces*once {
				t.Errorf("%s: %d copies for four flows, %d for one; want %d times as many", x.driver, len(h.sent), once, x.traces)
			}
			if len(n.e.tracer.sharedTraces) != 0 {
				t.Errorf("%d tuples are kept that no flow is traced by", len(n.e.tracer.sharedTraces))
			}
			_, paths := n.e.TracedPaths()
			if len(paths) != 4 {
				t.Errorf("%d paths, want 4", len(paths))
			}
		})
	}
}

// Copies use the same budgets of switches as packets by UDP.
func TestCopiesKeepTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{driver: "mlx5_core", switches: []netip.Addr{up1, spine1, up2}}
		n, flows := copying(t, h)
		n.e.tracer.budgets = newBudgets(1) // a packet a second
		began := time.Now()
		traceOne(t, n, flows[0])
		most := 1 + int(time.Since(began)/time.Second)
		perHop := map[uint8]int{}
		for _, c := range h.sent {
			perHop[c.HopLimit]++
		}
		for hop, k := range perHop {
			if k > most {
				t.Errorf("%d copies for hop limit %d, want %d at most by a budget of one a second", k, hop, most)
			}
		}
	})
}

// The next trace opens a failed socket again, and all are closed with the NIC.
func TestCopierOpensAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{driver: "mlx5_core", switches: []netip.Addr{up1}}
		n, flows := copying(t, h)
		h.sendErr = syscall.ENXIO
		if _, err := n.e.tracer.traceAndKeep(t.Context(), flows[0]); !errors.Is(err, syscall.ENXIO) {
			t.Errorf("%v, want ENXIO", err)
		}
		if h.open != 0 {
			t.Errorf("%d sockets are open after a fault", h.open)
		}
		h.sendErr = nil
		traceOne(t, n, flows[0])
		if h.open != 1 || len(h.opened) != 2 {
			t.Errorf("%d open of %v", h.open, h.opened)
		}
		c := n.ports.rdma.copies
		if err := c.Close(); err != nil || h.open != 0 {
			t.Errorf("close: %v, %d open", err, h.open)
		}
		if _, err := n.e.tracer.traceAndKeep(context.Background(), flows[0]); !errors.Is(err, errGone) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestSysHost(t *testing.T) {
	sys := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		f := filepath.Join(sys, "class/infiniband", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	put("rxe0/parent", "eth0\n")
	put("rxe0/ports/1/gid_attrs/ndevs/1", "eth0\n")
	put("rxe0/ports/1/gid_attrs/ndevs/2", "\n")
	put("siw0/node_desc", "siw0\n")
	put("mlx5_0/device/numa_node", "0\n")
	if err := os.Symlink("../../../../bus/pci/drivers/mlx5_core", filepath.Join(sys, "class/infiniband/mlx5_0/device/driver")); err != nil {
		t.Fatal(err)
	}
	h := sysHost{sys}
	for device, want := range map[string]string{"rxe0": "rdma_rxe", "mlx5_0": "mlx5_core", "siw0": "", "none": ""} {
		if got, err := h.DriverName(device); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", device, got, err, want)
		}
	}
	for index, want := range []string{"", "eth0", ""} {
		if got, err := h.NetdevName("rxe0", 1, index); got != want || (err == nil) != (want != "") {
			t.Errorf("index %d: %q, %v; want %q", index, got, err, want)
		}
	}
}
