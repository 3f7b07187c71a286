package probe

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// A test of a path's MTU sends packets of a trace that are as long as those of RoCE, with the flow's addresses, ports and DSCP. They
// are padded by Extra Padding (RFC 8972 4.1), and may not be fragmented. The rules are:
//
//  1. A flow is tested on request only, and its path is traced before. Only flows that the node probes can be tested.
//  2. One long packet goes to the far end, which answers with one of the same length. An answer shows that the path there and that
//     of the reply pass the length.
//  3. If there is none, mtuTries long and as many short packets follow. If the far end answers at least half of the short ones and no
//     long one, the path drops long ones. With fewer answers to short ones, the state is unknown.
//  4. Then long and short packets go to each switch on the path, by turns. A switch answers that they expired, by a short packet, so
//     that only the path up to the switch counts. A switch that reports the MTU of its next link ends the test.
//  5. A flow whose path is chosen is tested on that path, with the outer header before the length: packets are 40 octets longer on the
//     way, as those of applications are there. What a switch reports as its MTU holds for the whole packet.
//  6. The budgets and the pace of traces hold. A test sends at most 1 + 2*mtuTries + 2*mtuTries*maxHops packets, and a reflector
//     answers those of traces alone if they are longer than maxProbe, within a limit for each peer.
const (
	mtuTries     = 4
	minMTUOctets = 296
	// MaxMTUOctets is the longest packet of a test. It has the payload that the transport can take, without UDP and IPv4 headers.
	MaxMTUOctets = unix.MaxDatagram + udpHeader + ipv4Header

	udpHeader  = 8
	ipv4Header = 20
	ipv6Header = 40
)

// PathMTULengthError is the error for a length that is not tested.
type PathMTULengthError struct{ Octets int }

func (e PathMTULengthError) Error() string {
	return fmt.Sprintf("a packet of %d octets, want %d to %d", e.Octets, minMTUOctets, MaxMTUOctets)
}

// ProbePathMTU tests the paths of flows with packets of a length, and returns what it found in the same order. The length counts from the IP
// header on. A flow that the node does not have is unknown. The error is an UnknownEdgeError if it has none of them, and a
// PathMTULengthError for a length that cannot be tested. errors.Is holds for ErrClosed.
func (e *Engine) ProbePathMTU(ctx context.Context, edges []fabric.Flow, octets int) ([]fabric.PathMTU, error) {
	ctx, leave, err := e.holdOpen(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if octets < minMTUOctets || octets > MaxMTUOctets {
		return nil, PathMTULengthError{octets}
	}
	flows, err := e.namedFlows(edges)
	if err != nil {
		return nil, err
	}
	found := make([]fabric.PathMTU, len(flows))
	errs := make([]error, len(flows))
	var wg sync.WaitGroup
	for i, f := range flows {
		if f.nic == nil {
			found[i] = fabric.PathMTU{Edge: edges[i].String(), Octets: octets, State: fabric.PathMTUUnknown, Hops: []netip.Addr{}, Reason: "the node does not have this flow any more"}
			continue
		}
		wg.Go(func() { found[i], errs[i] = e.tracer.probePathMTU(ctx, f, octets) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// mtuTest is the test of one flow.
type mtuTest struct {
	*tracer
	long, short traceFlow
	path        TracedPath
	out         fabric.PathMTU
}

// probePathMTU tests the path of a flow.
func (t *tracer) probePathMTU(ctx context.Context, f traceFlow, octets int) (fabric.PathMTU, error) {
	m := &mtuTest{tracer: t, long: f, short: f, out: fabric.PathMTU{Edge: f.edge.String(), Octets: octets, State: fabric.PathMTUUnknown, Hops: []netip.Addr{}}}
	header := ipv4Header
	if f.dst.Addr().Is6() && !f.dst.Addr().Is4In6() {
		header = ipv6Header
	}
	m.long.payload = octets - header - udpHeader
	switch {
	case t.simulated:
		m.out.Reason = "the fabric is simulated"
		return m.out, nil
	case f.edge.Reply:
		m.out.Reason = "the far end of a reply does not answer; test the flow"
		return m.out, nil
	case f.rdma:
		m.out.Reason = "the flow is probed by RDMA, whose packets have a length of their own"
		return m.out, nil
	case f.carrier.IsValid() && m.long.payload > maxCarried:
		m.out.Reason = fmt.Sprintf("a chosen path is tested with up to %d octets", maxCarried+header+udpHeader)
		return m.out, nil
	}
	var err error
	if m.path, err = t.traceAndKeep(ctx, f); err != nil {
		return m.out, err
	}
	for _, h := range m.path.Hops {
		m.out.Hops = append(m.out.Hops, h.Address)
	}
	if err := t.inSlot(ctx, f.edge, func() error { return m.run(ctx) }); err != nil {
		return m.out, fmt.Errorf("path MTU of %s: %w", f.edge, err)
	}
	return m.out, nil
}

// run sends the packets and draws the conclusion.
func (m *mtuTest) run(ctx context.Context) error {
	far := len(m.path.Hops) + 1
	first, err := m.tryLimits(ctx, far, 0, 1, 0)
	if err != nil || m.concludeEnd(first, far) {
		return err
	}
	again, err := m.tryLimits(ctx, far, 0, mtuTries, mtuTries)
	if err != nil || m.concludeEnd(again, far) {
		return err
	}
	if 2*again.short < mtuTries {
		m.out.Reason = fmt.Sprintf("the far end answered %d of %d short packets", again.short, mtuTries)
		return nil
	}
	m.out.State, m.out.Dropped = fabric.PathMTUDrops, far
	if m.path.State != fabric.PathValid {
		m.out.Reason = "the path of the flow is not known"
		return nil
	}
	for ttl := 1; ttl < far; ttl++ {
		if !m.path.Hops[ttl-1].Address.IsValid() {
			continue
		}
		at, err := m.tryLimits(ctx, ttl, uint8(ttl), mtuTries, mtuTries)
		switch {
		case err != nil:
			return err
		case at.tooBig.IsValid():
			m.concludeReport(at)
			return nil
		case at.long > 0:
			m.out.Passed, m.out.Dropped = ttl, far
		case 2*at.short >= mtuTries && m.out.Dropped == far:
			m.out.Dropped = ttl
		}
	}
	return nil
}

// concludeEnd concludes from the answers of the far end whether the path passes long packets, or where a report says that it does
// not. It reports whether the test is over.
func (m *mtuTest) concludeEnd(a mtuAnswers, far int) bool {
	switch {
	case a.long > 0:
		m.out.State = fabric.PathMTUPasses
	case a.unsent:
		m.out.State, m.out.Dropped, m.out.Reason = fabric.PathMTUDrops, 1, "the packets are too big for the interface of the node"
	case a.tooBig.IsValid():
		m.out.State, m.out.Dropped = fabric.PathMTUDrops, far
		m.concludeReport(a)
	default:
		return false
	}
	return true
}

// concludeReport takes the place from a switch that reported the MTU of its next link.
func (m *mtuTest) concludeReport(a mtuAnswers) {
	m.out.NextMTU = a.nextMTU
	m.out.Reason = fmt.Sprintf("%v reports that its next link takes %d octets", a.tooBig, a.nextMTU)
	for i, h := range m.path.Hops {
		if h.Address == a.tooBig {
			m.out.Passed, m.out.Dropped = i+1, i+2
		}
	}
}

// mtuAnswers are the numbers of long and short packets that were answered, and what was reported of the long ones.
type mtuAnswers struct {
	long, short int
	unsent      bool
	tooBig      netip.Addr // the switch that reported it
	nextMTU     int
}

// tryLimits sends numbers of long and short packets by turns to the place of a hop limit, and counts the answers. For the far end, ttl is 0, and the
// packets have the hop limit of the system. It stops at the first long packet that is answered.
func (m *mtuTest) tryLimits(ctx context.Context, place int, ttl uint8, long, short int) (out mtuAnswers, err error) {
	for long > 0 || short > 0 {
		if short > 0 {
			short--
			a, ok, err := m.exchange(ctx, &m.short, place, ttl)
			if err != nil {
				return out, err
			}
			if ok && m.isFrom(a, ttl, place) {
				out.short++
			}
		}
		if long > 0 {
			long--
			a, ok, err := m.exchange(ctx, &m.long, place, ttl)
			switch {
			case err != nil:
				return out, err
			case ok && a.tooBig:
				out.tooBig, out.nextMTU = a.from, a.mtu
			case ok && a.unsent:
				out.unsent = true
				return out, nil
			case ok && m.isFrom(a, ttl, place):
				out.long++
				return out, nil
			}
		}
	}
	return out, nil
}

// isFrom reports whether an answer is that of the far end, or of the switch that the path has at a place.
func (m *mtuTest) isFrom(a traceAnswer, ttl uint8, place int) bool {
	if ttl == 0 {
		return a.reached
	}
	return !a.reached && !a.closed && !a.tooBig && a.from == m.path.Hops[place-1].Address
}

// exchange sends one packet within the budget of the switch that has to answer, and waits for the answer. ok is false if there is
// none. The budget of a switch that leaves a packet of the test unanswered gets it back, since silence is what the test looks for.
func (m *mtuTest) exchange(ctx context.Context, f *traceFlow, place int, ttl uint8) (a traceAnswer, ok bool, err error) {
	at, _ := f.edge.Endpoints()
	position := hopPosition{at, place}
	var paid charge
	if ttl > 0 {
		for {
			var wait time.Duration
			if paid, wait = m.budgets.chargePacket(position, m.path.Hops[place-1].Address, time.Now().UnixNano()); wait == 0 {
				break
			}
			if err := sleepContext(ctx, wait); err != nil {
				return a, false, err
			}
		}
	}
	if err := m.waitForPace(ctx); err != nil {
		m.budgets.refundCharge(paid)
		return a, false, err
	}
	answer := make(chan traceAnswer, 1)
	key, err := f.sendCopy(ttl, answer)
	if err != nil {
		m.budgets.refundCharge(paid)
		return a, false, err
	}
	defer f.forgetKeys([]uint32{key})
	m.out.Sent++
	timeout := time.NewTimer(traceTimeout)
	defer timeout.Stop()
	select {
	case a = <-answer:
		m.countPackets(1, 1)
		if ttl > 0 && !a.reached && !a.closed && !a.unsent {
			m.budgets.settleAnswered(paid, a.from, time.Now().UnixNano())
		} else {
			m.budgets.refundCharge(paid)
		}
		return a, true, nil
	case <-timeout.C:
		m.countPackets(1, 0)
		m.budgets.refundCharge(paid)
		return a, false, nil
	case <-ctx.Done():
		m.budgets.refundCharge(paid)
		return a, false, ctx.Err()
	}
}
