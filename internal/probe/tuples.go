package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/roce"
	"github.com/graylink/graylink/internal/unix"
)

// The path of a RoCE v2 flow depends on its UDP source port. To find the paths that a choice of ports would give, a node
// traces tuples, which are the header fields that switches hash, without a flow that has them. The rules are:
//
//  1. A tuple goes from a NIC of the node to a NIC of a registered peer. Its destination is UDP port 4791 or the port of
//     the reflectors, and its source port is firstTuplePort or above.
//  2. A tuple to port 4791 is traced by copies of RoCE v2 packets (see copies.go). One to the port of the reflectors is
//     the tuple of a flow, and that flow is traced.
//  3. The copies have the destination queue pair 0, which no host has. The variants of a tuple have other fields that are
//     not part of the tuple, among them the queue pair: half of them have that of multicast, which no packet to one host may
//     have. Half of those by IPv6 have a flow label. They are sent only if the length of the path is known, and end at a switch.
//  4. Once the length of a path is known, no copy arrives at the destination.
//  5. The budgets and the pace of traces hold for tuples as well, and tuples use half of the slots at most.
const (
	firstTuplePort  = 49152
	maxTuplePackets = 8
	maxVariant      = 255
	// multicastQPN is the destination queue pair of multicast: IBTA 9.6.1.
	multicastQPN = 1<<24 - 1
	tuplePayload = 64 // octets
	tupleTries   = 3  // traces of a tuple whose switches have no budget left
)

// Tuple represents the header fields that switches choose paths by.
type Tuple = fabric.Tuple

// TuplePath is the path of a tuple's packets. The edge of its Path has the source port as the number of the flow.
type TuplePath struct {
	Tuple Tuple
	Path  TracedPath
	// Marking states whether the NIC marks packets for adaptive routing.
	Marking fabric.Marking
}

// TupleError is the error for a tuple that this node does not trace.
type TupleError struct {
	Tuple         Tuple
	Field, Reason string
}

func (e *TupleError) Error() string {
	return fmt.Sprintf("tuple %s>%s %d: field %q: %s", e.Tuple.Src, e.Tuple.Dst, e.Tuple.SPort, e.Field, e.Reason)
}

// tupleTurns returns the number of tuples that may be traced at the same time.
func tupleTurns(cfg TraceConfig) int { return max(1, cfg.Concurrency/2) }

// checkTuple returns a TupleError that names the first field that is not valid, or nil. The port is that of the reflectors.
func checkTuple(t Tuple, port uint16) error {
	bad := func(field, format string, args ...any) error {
		return &TupleError{Tuple: t, Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case t.Proto != "udp":
		return bad("proto", "%q, want udp", t.Proto)
	case t.DPort != roce.Port && (t.DPort != int(port) || port == 0):
		return bad("dport", "%d, want %d (RoCE v2) or %d, the port of the reflectors", t.DPort, roce.Port, port)
	case t.SPort < firstTuplePort || t.SPort > math.MaxUint16:
		return bad("sport", "%d, want %d to %d", t.SPort, firstTuplePort, math.MaxUint16)
	case t.DSCP < 0 || t.DSCP > 63:
		return bad("dscp", "%d, want 0 to 63", t.DSCP)
	case t.Variant < 0 || t.Variant > maxVariant:
		return bad("variant", "%d, want 0 to %d", t.Variant, maxVariant)
	case t.Variant > 0 && t.DPort != roce.Port:
		return bad("variant", "%d, want 0 for another port than %d", t.Variant, roce.Port)
	case t.Packets < 0 || t.Packets > maxTuplePackets:
		return bad("packets", "%d, want 0 to %d", t.Packets, maxTuplePackets)
	}
	return nil
}

// tupleEnds are what copies of tuples between two NICs need.
type tupleEnds struct {
	copier   *copier
	src, dst netip.Addr
	netdev   string // network interface that sends the copies
	marking  fabric.Marking
}

// planTuple opens the sockets of copies and returns the flow that is traced in place of a tuple.
func (t *tracer) planTuple(tuple Tuple, ends tupleEnds) (traceFlow, error) {
	if err := ends.copier.openSockets(ends.netdev, ends.src); err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("CAP_NET_RAW: missing, want it for paths of tuples: %w", err)
		}
		return traceFlow{}, err
	}
	t.mu.Lock()
	at := nicDestination{tuple.Src, ends.dst}
	known := t.lengths[at] > 1 || t.tupleLengths[at] > 1
	t.mu.Unlock()
	if tuple.Variant > 0 && !known {
		return traceFlow{}, &TupleError{tuple, "variant", fmt.Sprintf("%d: the length of the path is not known yet, want variant 0 first", tuple.Variant)}
	}
	payload := make([]byte, tuplePayload)
	for i := range payload {
		payload[i] = byte(tuple.Variant * (i + 1))
	}
	p := roce.Packet{Src: ends.src, Dst: ends.dst, TOS: uint8(tuple.DSCP)<<2 | ect0, DontFragment: true, SrcPort: uint16(tuple.SPort), Opcode: roce.OpSendImmediate,
		PKey: rdma.DefaultPKey, DestQPN: deadQPN, SrcQPN: uint32(tuple.Variant) * 0x10405, Payload: payload}
	if tuple.Variant&1 == 1 {
		p.DestQPN = multicastQPN
	}
	if tuple.Variant&2 != 0 && ends.src.Is6() {
		// Queue pairs have label 0 unless their library sets one, of which the port is made then.
		p.FlowLabel = rdma.FlowLabel(uint16(tuple.SPort), roce.Port)
	}
	edge := fabric.Flow{Src: tuple.Src, Dst: tuple.Dst, Number: tuple.SPort}
	return traceFlow{edge: edge, dst: netip.AddrPortFrom(ends.dst, uint16(tuple.DPort)), dscp: uint8(tuple.DSCP), rdma: true, copies: &copyPlan{ends.copier, p}, tuple: &tuple}, nil
}

// traceTuple traces a tuple by copies.
func (t *tracer) traceTuple(ctx context.Context, tuple Tuple, ends tupleEnds) (TuplePath, error) {
	f, err := t.planTuple(tuple, ends)
	if err != nil {
		return TuplePath{}, err
	}
	t.mu.Lock()
	turns := t.tupleTurns
	t.mu.Unlock()
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-ctx.Done():
		return TuplePath{}, ctx.Err()
	}
	p, err := t.withSlot(ctx, f)
	for try := 1; err == nil && p.limited && try < tupleTries; try++ {
		p, err = t.withSlot(ctx, f)
	}
	if err != nil {
		return TuplePath{}, fmt.Errorf("trace tuple %s>%s %d: %w", tuple.Src, tuple.Dst, tuple.SPort, err)
	}
	if n := len(p.Hops); p.State == fabric.PathValid && n > 0 && !p.limited {
		t.mu.Lock()
		t.tupleLengths[nicDestination{tuple.Src, ends.dst}] = n + 1
		t.mu.Unlock()
	}
	return TuplePath{tuple, p, ends.marking}, nil
}

// traceAll calls trace for the numbers 0 to n-1 at the same time, and returns the paths in this order.
func traceAll(n int, trace func(i int) (TuplePath, error)) ([]TuplePath, error) {
	paths, errs := make([]TuplePath, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { paths[i], errs[i] = trace(i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return paths, nil
}

// TraceTuples finds the paths of tuples now, in the same order. The error is a TupleError if one of them is not the node's
// to trace, and nothing is sent then. errors.Is holds for ErrClosed.
func (e *Engine) TraceTuples(ctx context.Context, tuples []Tuple) ([]TuplePath, error) {
	ctx, leave, err := e.holdOpen(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	cfg, nics := e.Config(), e.allNICs()
	ends, flows := make([]tupleEnds, len(tuples)), make([]traceFlow, len(tuples))
	for i, tuple := range tuples {
		if err := checkTuple(tuple, cfg.Stamp.Port); err != nil {
			return nil, err
		}
		n, peer, err := registeredEnds(cfg, nics, tuple)
		if err == nil && tuple.DPort == int(cfg.Stamp.Port) {
			flows[i], err = n.flowOf(tuple)
		} else if err == nil {
			ends[i], err = n.tupleEnds(tuple, peer)
		}
		if err != nil {
			return nil, err
		}
	}
	return traceAll(len(tuples), func(i int) (TuplePath, error) {
		if flows[i].nic == nil {
			return e.tracer.traceTuple(ctx, tuples[i], ends[i])
		}
		p, err := e.tracer.traceAndKeep(ctx, flows[i])
		return TuplePath{tuples[i], p, fabric.MarkingNone}, err
	})
}

// registeredEnds returns the NIC that a tuple comes from and the peer that it goes to, or a TupleError.
func registeredEnds(cfg *Config, nics []*nic, t Tuple) (*nic, *PeerConfig, error) {
	i := slices.IndexFunc(nics, func(n *nic) bool { return n.nicName() == t.Src })
	if i < 0 {
		return nil, nil, &TupleError{t, "src", fmt.Sprintf("%q, want a NIC of this node", t.Src)}
	}
	k := slices.IndexFunc(cfg.Peers, func(p PeerConfig) bool { return p.NIC == t.Dst })
	if k < 0 {
		return nil, nil, &TupleError{t, "dst", fmt.Sprintf("%q, want a NIC of a registered peer", t.Dst)}
	}
	return nics[i], &cfg.Peers[k], nil
}

// flowOf returns the flow that has a tuple, or a TupleError if there is none.
func (n *nic) flowOf(t Tuple) (traceFlow, error) {
	for _, f := range n.traceableFlows() {
		if f.edge.Dst == t.Dst && f.edge.Src == t.Src && !f.edge.Reply && !f.rdma && f.sock != nil && int(f.sock.port) == t.SPort && int(f.dscp) == t.DSCP {
			return f, nil
		}
	}
	return traceFlow{}, &TupleError{t, "sport", fmt.Sprintf("%d, want the source port of a flow with DSCP %d that this node sends to port %d by UDP", t.SPort, t.DSCP, t.DPort)}
}

// tupleEnds returns what copies of a tuple from the NIC to a peer need. If both have RDMA, the addresses are those of their
// GIDs.
func (n *nic) tupleEnds(t Tuple, peer *PeerConfig) (tupleEnds, error) {
	n.mu.Lock()
	cfg, pair, byRDMA, byUDP := n.cfg, n.ports.rdma.pair, n.ports.rdma.copies, n.ports.udp.copies
	n.mu.Unlock()
	refuse := func(field, format string, args ...any) (tupleEnds, error) {
		return tupleEnds{}, &TupleError{t, field, fmt.Sprintf(format, args...)}
	}
	e := tupleEnds{copier: byUDP, src: cfg.Address, dst: peer.Address, netdev: cfg.Device}
	var err error
	switch {
	case pair != nil && byRDMA != nil && peer.RDMA != nil:
		s := pair.Status()
		if s.InfiniBand || !s.GID.IsValid() || s.GIDType != rdma.GIDRoCEv2 {
			return refuse("src", "RDMA device %s port %d: want one with a GID of RoCE v2", s.Device, s.Port)
		}
		e.copier, e.src, e.dst = byRDMA, s.GID.Unmap(), peer.RDMA.GID.Unmap()
		e.netdev, err = byRDMA.host.NetdevName(s.Device, s.Port, s.GIDIndex)
	case byUDP == nil:
		return refuse("src", "%s has no UDP, or its fabric is simulated", t.Src)
	case e.netdev == "":
		e.netdev, err = n.wire.deps.Device.InterfaceName(cfg.Address)
	}
	switch {
	case err != nil:
		return refuse("src", "network interface: %v", err)
	case !e.src.IsValid() || !e.dst.IsValid() || e.src.Is4() != e.dst.Is4():
		return refuse("dst", "%v, want an address of the family of %v", e.dst, e.src)
	}
	e.marking = e.copier.markingOf(e.netdev)
	return e, nil
}

// markingOf returns whether the NIC of an interface marks packets for adaptive routing. ConnectX does, by a setting of its
// firmware that neither sysfs nor ethtool shows. Of other NICs that are not virtual it is not known either.
func (c *copier) markingOf(netdev string) fabric.Marking {
	switch driver, err := c.host.NetdevDriver(netdev); {
	case err != nil:
		return fabric.MarkingUnknown
	case driver == "" || driver == "virtio_net":
		return fabric.MarkingNone
	}
	return fabric.MarkingUnknown
}

// TupleTracer traces tuples without an engine. Its end of every pair is a virtual NIC.
type TupleTracer struct {
	tracer *tracer
	nics   []TupleNIC
	peers  []TupleNIC
	copier map[string]*copier // by NIC
}

// TupleNIC is an end of tuples.
type TupleNIC struct {
	NIC     string
	Netdev  string // network interface; not needed of a peer
	Address netip.Addr
}

// NewTupleTracer returns a tracer of tuples from some NICs to some peers. Sockets are opened within enter. Close ends it.
func NewTupleTracer(nics, peers []TupleNIC, enter func(func() error) error, log *slog.Logger) *TupleTracer {
	t := &TupleTracer{tracer: newTracer(defaultConfig().Trace, func() []*nic { return nil }, log), nics: nics, peers: peers, copier: map[string]*copier{}}
	for _, n := range nics {
		t.copier[n.NIC] = newCopier(enteredHost{sysHost{"/sys"}, enter})
	}
	return t
}

// enteredHost is a host whose sockets are opened within a function.
type enteredHost struct {
	sysHost
	enter func(func() error) error
}

// OpenRaw opens raw sockets for an address of an interface. It implements roceHost.
func (h enteredHost) OpenRaw(netdev string, src netip.Addr) (raw rawIP, err error) {
	err = h.enter(func() (err error) {
		raw, err = h.sysHost.OpenRaw(netdev, src)
		return err
	})
	return raw, err
}

// TraceTuples does the same as that of the Engine. All tuples go to port 4791.
func (t *TupleTracer) TraceTuples(ctx context.Context, tuples []Tuple) ([]TuplePath, error) {
	ends := make([]tupleEnds, len(tuples))
	for i, tuple := range tuples {
		if err := checkTuple(tuple, 0); err != nil {
			return nil, err
		}
		from := slices.IndexFunc(t.nics, func(n TupleNIC) bool { return n.NIC == tuple.Src })
		to := slices.IndexFunc(t.peers, func(n TupleNIC) bool { return n.NIC == tuple.Dst })
		if from < 0 || to < 0 {
			return nil, &TupleError{tuple, "src", fmt.Sprintf("%s>%s, want a pair of the tracer's NICs", tuple.Src, tuple.Dst)}
		}
		ends[i] = tupleEnds{t.copier[tuple.Src], t.nics[from].Address, t.peers[to].Address, t.nics[from].Netdev, fabric.MarkingNone}
	}
	return traceAll(len(tuples), func(i int) (TuplePath, error) { return t.tracer.traceTuple(ctx, tuples[i], ends[i]) })
}

// Close closes the sockets.
func (t *TupleTracer) Close() error {
	var errs []error
	for _, c := range t.copier {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
