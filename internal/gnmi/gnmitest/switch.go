// Package gnmitest provides switches for tests that use gNMI as their vendors' do, or with faults.
package gnmitest

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Faults are the faults of a switch.
type Faults struct {
	Encodings []gpb.Encoding // what Capabilities offers; nil means all three
	NoModels  bool           // Capabilities is not implemented
	Silent    bool           // subscriptions are accepted, and nothing is sent
	Login     []string       // metadata that calls must have, key and value in turn
	// EndAfter ends a subscription with End after that many messages; 0 means never.
	EndAfter int
	End      error
	// Mutate is applied to every notification before it is sent.
	Mutate func(*gpb.Notification)
	// Refuse refuses every subscription.
	Refuse error
	// CutAfter breaks a connection after the switch has sent so many bytes, at any place in a frame; 0 means
	// never.
	CutAfter int
	// Trickle is the number of bytes that are sent at once, with pauses of one millisecond; 0 means all of
	// them.
	Trickle int
	// Half sends only the first half of every message of a subscription.
	Half bool
}

// Switch is a gNMI server for tests.
type Switch struct {
	gpb.UnimplementedGNMIServer
	Address string

	vendor string
	server *grpc.Server

	mu            sync.Mutex
	state         State
	faults        Faults
	subscriptions []*gpb.SubscriptionList // as requested
	streams       map[chan []*gpb.Notification]subscription
	served        sync.WaitGroup
}

type subscription struct {
	list *gpb.SubscriptionList
}

// Start serves a switch of a vendor on the loopback. A nil config means without TLS.
func Start(vendor string, state State, faults Faults, config *tls.Config) (*Switch, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return ServeListener(l, vendor, state, faults, config), nil
}

// ServeListener serves a switch of a vendor on a listener. A nil config means without TLS.
func ServeListener(l net.Listener, vendor string, state State, faults Faults, config *tls.Config) *Switch {
	var opts []grpc.ServerOption
	if config != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(config)))
	}
	s := &Switch{Address: l.Addr().String(), vendor: vendor, state: state, faults: faults, streams: map[chan []*gpb.Notification]subscription{}}
	s.server = grpc.NewServer(append(opts, grpc.ForceServerCodec(halvingCodec{s}))...)
	gpb.RegisterGNMIServer(s.server, s)
	s.served.Go(func() { _ = s.server.Serve(&badListener{l, s}) })
	return s
}

// Stop breaks all connections.
func (s *Switch) Stop() {
	s.server.Stop()
	s.served.Wait()
}

// SetFaults sets the faults from now on.
func (s *Switch) SetFaults(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// ReceivedSubscriptions returns the subscriptions in the order in which they were requested.
func (s *Switch) ReceivedSubscriptions() []*gpb.SubscriptionList {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.subscriptions)
}

// UpdateState sends a new state to every subscribed stream.
func (s *Switch) UpdateState(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
	for c, sub := range s.streams {
		trySend(c, s.notificationsFor(sub.list))
	}
}

// SendNotifications sends notifications to every stream.
func (s *Switch) SendNotifications(n ...*gpb.Notification) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.streams {
		trySend(c, n)
	}
}

// trySend drops notifications for which a stream that is not read has no room.
func trySend(c chan []*gpb.Notification, n []*gpb.Notification) {
	select {
	case c <- n:
	default:
	}
}

func (s *Switch) checkLogin(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	md, _ := metadata.FromIncomingContext(ctx)
	for i := 0; i+1 < len(s.faults.Login); i += 2 {
		if !slices.Equal(md.Get(s.faults.Login[i]), s.faults.Login[i+1:i+2]) {
			return status.Error(codes.Unauthenticated, "unknown credentials")
		}
	}
	return nil
}

// Capabilities implements the server.
func (s *Switch) Capabilities(ctx context.Context, _ *gpb.CapabilityRequest) (*gpb.CapabilityResponse, error) {
	if err := s.checkLogin(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.NoModels {
		return nil, status.Error(codes.Unimplemented, "no Capabilities")
	}
	e := s.faults.Encodings
	if e == nil {
		if e = []gpb.Encoding{gpb.Encoding_JSON, gpb.Encoding_JSON_IETF, gpb.Encoding_PROTO}; s.vendor == "sonic" {
			e = e[:2]
		}
	}
	return &gpb.CapabilityResponse{GNMIVersion: "0.10.0", SupportedEncodings: e}, nil
}

// Subscribe implements the server.
func (s *Switch) Subscribe(stream gpb.GNMI_SubscribeServer) error {
	if err := s.checkLogin(stream.Context()); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	list := first.GetSubscribe()
	if list == nil {
		return status.Error(codes.InvalidArgument, "a subscription is expected")
	}
	c := make(chan []*gpb.Notification, 64)
	s.mu.Lock()
	s.subscriptions = append(s.subscriptions, list)
	faults := s.faults
	s.streams[c] = subscription{list}
	content := s.notificationsFor(list)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, c)
		s.mu.Unlock()
	}()
	if faults.Refuse != nil {
		return faults.Refuse
	}
	if s.vendor == "sonic" && list.GetPrefix().GetTarget() == "" {
		return status.Error(codes.Unimplemented, "Empty target data not supported")
	}
	for _, x := range list.Subscription {
		for _, e := range x.GetPath().GetElem() {
			for _, v := range e.Key {
				if s.vendor == "cumulus" && len(v) > 1 && v[len(v)-1] == '*' {
					return status.Error(codes.InvalidArgument, "patterns in keys are not supported")
				}
			}
		}
	}
	if faults.Silent {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	sent := 0
	send := func(list []*gpb.Notification) error {
		for _, n := range list {
			if faults.Mutate != nil {
				faults.Mutate(n)
			}
			if err := stream.Send(&gpb.SubscribeResponse{Response: &gpb.SubscribeResponse_Update{Update: n}}); err != nil {
				return err
			}
			if sent++; sent == faults.EndAfter {
				return faults.End
			}
		}
		return nil
	}
	sync := func() error {
		return stream.Send(&gpb.SubscribeResponse{Response: &gpb.SubscribeResponse_SyncResponse{SyncResponse: true}})
	}
	if list.Mode == gpb.SubscriptionList_POLL {
		for {
			r, err := stream.Recv()
			if err != nil {
				return err
			}
			if r.GetPoll() == nil {
				return status.Error(codes.InvalidArgument, "a poll is expected")
			}
			s.mu.Lock()
			content := s.notificationsFor(list)
			s.mu.Unlock()
			if err := send(content); err != nil {
				return err
			}
			if err := sync(); err != nil {
				return err
			}
		}
	}
	if err := send(content); err != nil {
		return err
	}
	if err := sync(); err != nil || list.Mode == gpb.SubscriptionList_ONCE {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case n := <-c:
			if err := send(n); err != nil {
				return err
			}
		}
	}
}

// notificationsFor returns the notifications for a subscription; the switch must be locked.
func (s *Switch) notificationsFor(list *gpb.SubscriptionList) []*gpb.Notification {
	n := &gpb.Notification{Timestamp: s.state.At.UnixNano(), Prefix: list.GetPrefix()}
	for _, u := range s.state.vendorUpdates(s.vendor, list.GetPrefix().GetTarget()) {
		if slices.ContainsFunc(list.Subscription, func(x *gpb.Subscription) bool { return pathCovers(x.Path, u.Path) }) {
			n.Update = append(n.Update, u)
		}
	}
	if s.vendor == "sonic" {
		var out []*gpb.Notification // one value each
		for _, u := range n.Update {
			out = append(out, &gpb.Notification{Timestamp: n.Timestamp, Prefix: n.Prefix, Update: []*gpb.Update{u}})
		}
		return out
	}
	return []*gpb.Notification{n}
}

// pathCovers reports whether a requested path contains another.
func pathCovers(asked, p *gpb.Path) bool {
	if len(asked.GetElem()) > len(p.GetElem()) {
		return false
	}
	for i, a := range asked.GetElem() {
		e := p.Elem[i]
		if a.Name != e.Name && a.Name != "*" {
			return false
		}
		for k, v := range a.Key {
			if v != "*" && v != e.Key[k] {
				return false
			}
		}
	}
	return true
}
