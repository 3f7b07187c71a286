package gnmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	tpb "github.com/openconfig/grpctunnel/proto/tunnel"
	"google.golang.org/grpc/codes"
)

// tunnelType is the type of a target for gNMI (tunnel.proto, TargetType).
const tunnelType = "GNMI_GNOI"

// maxChunk is the largest payload of a message of a tunnel in bytes: a record of TLS.
const maxChunk = 16 << 10

// maxOps bounds the number of messages that wait to be sent to a caller that registers.
const maxOps = 16

// registration represents a caller that registers targets, as long as it is connected.
type registration struct {
	d    *dialOut
	conn uint64
	ops  chan *tpb.RegisterOp
	gone context.Context
}

// offer represents a target of a registration, until it is withdrawn or replaced.
type offer struct {
	registration *registration
	target       string
	withdrawn    chan struct{}
}

// offerSlot holds a target's latest offer.
type offerSlot struct {
	mu      sync.Mutex
	offer   *offer
	offered chan struct{} // closed when an offer arrives
}

func newOfferSlot() *offerSlot { return &offerSlot{offered: make(chan struct{})} }

// replaceOffer replaces the current offer.
func (p *offerSlot) replaceOffer(o *offer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.offer != nil {
		close(p.offer.withdrawn)
	}
	p.offer = o
	close(p.offered)
	p.offered = make(chan struct{})
}

// withdrawOffer removes an offer, if it is still the latest.
func (p *offerSlot) withdrawOffer(o *offer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.offer == o {
		close(o.withdrawn)
		p.offer = nil
	}
}

// waitOffer waits for the latest offer and returns it.
func (p *offerSlot) waitOffer(ctx context.Context) (*offer, error) {
	for {
		p.mu.Lock()
		o, came := p.offer, p.offered
		p.mu.Unlock()
		if o != nil {
			return o, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-came:
		}
	}
}

// Register implements the tunnel's server: targets are registered and withdrawn.
func (d *dialOut) Register(stream tpb.Tunnel_RegisterServer) error {
	c, err := d.identifyCaller(stream.Context())
	if err != nil {
		return err
	}
	gone, leave := context.WithCancel(stream.Context())
	r := &registration{d: d, conn: c.conn, ops: make(chan *tpb.RegisterOp, maxOps), gone: gone}
	offers := map[*session]*offer{}
	var wg sync.WaitGroup
	defer func() {
		leave()
		for s, o := range offers {
			s.offerSlot.withdrawOffer(o)
		}
		wg.Wait()
	}()
	wg.Go(func() {
		for {
			select {
			case <-gone.Done():
				return
			case op := <-r.ops:
				if stream.Send(op) != nil {
					return // Recv returns the reason
				}
			}
		}
	})
	for {
		op, err := stream.Recv()
		if err != nil {
			return err
		}
		answer, err := d.handleRegistration(c, r, offers, op)
		if err != nil {
			return err
		}
		if answer == nil {
			continue
		}
		select {
		case r.ops <- answer:
		case <-gone.Done():
			return gone.Err()
		}
	}
}

// handleRegistration handles one message of a caller. An error ends the stream.
func (d *dialOut) handleRegistration(c caller, r *registration, offers map[*session]*offer, op *tpb.RegisterOp) (answer *tpb.RegisterOp, err error) {
	switch x := op.GetRegistration().(type) {
	case *tpb.RegisterOp_Target:
		t := x.Target
		reply := &tpb.Target{Target: t.GetTarget(), TargetType: t.GetTargetType()}
		answer = &tpb.RegisterOp{Registration: &tpb.RegisterOp_Target{Target: reply}}
		s, err := d.sessionForTarget(c, t)
		if err != nil {
			reply.Error = err.Error()
			return answer, nil
		}
		reply.Accept = true
		if o := offers[s]; o != nil {
			s.offerSlot.withdrawOffer(o)
			delete(offers, s)
		}
		if t.GetOp() == tpb.Target_ADD {
			offers[s] = &offer{registration: r, target: t.GetTarget(), withdrawn: make(chan struct{})}
			s.offerSlot.replaceOffer(offers[s])
		}
		return answer, nil
	case *tpb.RegisterOp_Session:
		if x.Session.GetError() != "" {
			d.deliverStream(tunnelKey{c.conn, x.Session.GetTag()}, openResult{err: fmt.Errorf("the switch refused the session: %.200q", x.Session.GetError())})
			return nil, nil
		}
		err := d.recordRefusal(refusedRequest, codes.PermissionDenied, "%v: asks for a session to %.100q", c, x.Session.GetTarget())
		return &tpb.RegisterOp{Registration: &tpb.RegisterOp_Session{Session: &tpb.Session{Tag: x.Session.GetTag(), Error: err.Error()}}}, nil
	case *tpb.RegisterOp_Subscription:
		err := d.recordRefusal(refusedRequest, codes.PermissionDenied, "%v: asks for others' targets", c)
		return &tpb.RegisterOp{Registration: &tpb.RegisterOp_Subscription{Subscription: &tpb.Subscription{
			Op: x.Subscription.GetOp(), TargetType: x.Subscription.GetTargetType(), Error: err.Error()}}}, nil
	}
	return nil, d.recordRefusal(refusedRequest, codes.InvalidArgument, "%v: registers nothing", c)
}

// sessionForTarget returns the session of the target that a caller adds or removes.
func (d *dialOut) sessionForTarget(c caller, t *tpb.Target) (*session, error) {
	if t.GetOp() != tpb.Target_ADD && t.GetOp() != tpb.Target_REMOVE {
		return nil, d.recordRefusal(refusedRequest, codes.InvalidArgument, "%v: operation %v of a target", c, t.GetOp())
	}
	if t.GetTargetType() != tunnelType {
		return nil, d.recordRefusal(refusedRequest, codes.InvalidArgument, "%v: target %.100q of type %.100q; %s is expected", c, t.GetTarget(), t.GetTargetType(), tunnelType)
	}
	if t.GetTarget() == "" {
		return nil, d.recordRefusal(refusedStranger, codes.InvalidArgument, "%v: a target without name", c)
	}
	return d.sessionByID(c, t.GetTarget())
}

// openSession requests a session from the caller that offers a target, and returns its connection.
func (o *offer) openSession(ctx context.Context) (net.Conn, error) {
	d := o.registration.d
	result := make(chan openResult, 1)
	d.mu.Lock()
	d.tag++
	at := tunnelKey{o.registration.conn, d.tag}
	d.pendingTunnels[at] = result
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.pendingTunnels, at)
		d.mu.Unlock()
		select {
		case r := <-result: // too late
			if r.conn != nil {
				_ = r.conn.Close()
			}
		default:
		}
	}()
	ask := &tpb.RegisterOp{Registration: &tpb.RegisterOp_Session{Session: &tpb.Session{Tag: at.tag, Accept: true, Target: o.target, TargetType: tunnelType}}}
	select {
	case o.registration.ops <- ask:
	case <-o.withdrawn:
		return nil, errWithdrawn
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case r := <-result:
		return r.conn, r.err
	case <-o.withdrawn:
		return nil, errWithdrawn
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var errWithdrawn = errors.New("the switch withdrew its target, or registered it again")

// deliverStream passes the stream of a session to the call that waits for it. It returns false if there is
// none.
func (d *dialOut) deliverStream(at tunnelKey, what openResult) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	result, ok := d.pendingTunnels[at]
	if ok {
		delete(d.pendingTunnels, at)
		result <- what // the channel has room for one, and is found once
	}
	return ok
}

// Tunnel implements the tunnel's server: a stream carries the bytes of one session.
func (d *dialOut) Tunnel(stream tpb.Tunnel_TunnelServer) error {
	c, err := d.identifyCaller(stream.Context())
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	near, far := net.Pipe()
	defer near.Close()
	if first.GetTag() == 0 || len(first.GetData()) > 0 || !d.deliverStream(tunnelKey{c.conn, first.GetTag()}, openResult{conn: far}) {
		return d.recordRefusal(refusedRequest, codes.FailedPrecondition, "%v: a stream of session %d, which was not requested", c, first.GetTag())
	}
	// This goroutine copies from the switch. It ends with the stream, which ends when this function returns.
	d.wg.Go(func() {
		defer near.Close()
		for {
			m, err := stream.Recv()
			if err != nil || m.GetClose() {
				return
			}
			if _, err := near.Write(m.GetData()); err != nil {
				return
			}
		}
	})
	b := make([]byte, maxChunk)
	for {
		n, err := near.Read(b)
		if err != nil {
			return stream.Send(&tpb.Data{Close: true})
		}
		if err := stream.Send(&tpb.Data{Data: b[:n]}); err != nil {
			return err
		}
	}
}
