package gnmitest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/grpctunnel/bidi"
	tpb "github.com/openconfig/grpctunnel/proto/tunnel"
	"github.com/openconfig/grpctunnel/tunnel"
	"google.golang.org/grpc"
)

// ServeTunnel registers the switch under some names at a tunnel's server, with the library's client, and serves
// sessions until ctx or the connection ends.
func (s *Switch) ServeTunnel(ctx context.Context, conn grpc.ClientConnInterface, ids ...string) error {
	targets := map[tunnel.Target]struct{}{}
	for _, id := range ids {
		targets[tunnel.Target{ID: id, Type: "GNMI_GNOI"}] = struct{}{}
	}
	c, err := tunnel.NewClient(tpb.NewTunnelClient(conn), tunnel.ClientConfig{
		RegisterHandler: func(t tunnel.Target) error {
			if _, ok := targets[t]; !ok {
				return errors.New("no such target")
			}
			return nil
		},
		Handler: func(_ tunnel.Target, stream io.ReadWriteCloser) error {
			served, err := net.Dial("tcp", s.Address)
			if err != nil {
				return err
			}
			_ = bidi.Copy(served, stream) // the end of a session is not an error of the tunnel
			return nil
		},
	}, targets)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// PublishDatabase sends everything of one database (the prefix' target) to a collector of SONiC's gNMIDialOut,
// and then what UpdateState and SendNotifications send, until ctx or the stream ends.
func (s *Switch) PublishDatabase(ctx context.Context, conn grpc.ClientConnInterface, database string) error {
	list := &gpb.SubscriptionList{Prefix: &gpb.Path{Target: database}, Subscription: []*gpb.Subscription{{Path: &gpb.Path{}}}}
	// SendNotifications reaches the stream as soon as the collector sees it, so it is known before it is opened.
	c := make(chan []*gpb.Notification, 64)
	s.mu.Lock()
	s.streams[c] = subscription{list}
	trySend(c, s.notificationsFor(list))
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, c)
		s.mu.Unlock()
	}()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Publish", ClientStreams: true, ServerStreams: true}, "/gnmi.sonic.gNMIDialOut/Publish")
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- stream.RecvMsg(&gpb.SubscribeResponse{}) }() // it ends with the stream
	for {
		select {
		case <-ctx.Done():
			return cmp.Or(ctx.Err(), <-ended)
		case err := <-ended:
			return err
		case all := <-c:
			for _, n := range all {
				if err := stream.SendMsg(&gpb.SubscribeResponse{Response: &gpb.SubscribeResponse_Update{Update: n}}); err != nil {
					return <-ended // the reason
				}
			}
		}
	}
}
