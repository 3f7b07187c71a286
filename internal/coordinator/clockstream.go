package coordinator

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
)

// clockStream relates the clocks of a node whose agent has no session with this coordinator.
type clockStream struct {
	wake  chan struct{}
	ended chan error // buffers one error
}

func newClockStream() *clockStream {
	return &clockStream{wake: make(chan struct{}, 1), ended: make(chan error, 1)}
}

func (s *clockStream) wakeSender() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// endWith makes the stream's handler return err. Only the first call has an effect.
func (s *clockStream) endWith(err error) {
	select {
	case s.ended <- err:
	default:
	}
}

// addStream makes a stream that of a node. An earlier one ends.
func (w *clockService) addStream(node string, s *clockStream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.streams[node]; old != nil {
		old.endWith(status.Errorf(codes.Aborted, "another agent of node %q has taken over", node))
	}
	w.streams[node] = s
}

func (w *clockService) removeStream(node string, s *clockStream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams[node] == s {
		delete(w.streams, node)
	}
}

// nodeOf returns the node of a stream's first message, or a gRPC status unless the certificate is for it.
func (s *Server) nodeOf(m *agentapi.ClocksMessage, id identity) (string, error) {
	node := m.GetNode()
	switch {
	case !slices.Contains(id.names, node):
		return "", status.Errorf(codes.PermissionDenied, "the certificate is for %q, not for this node", id.names)
	case !s.c.HasNode(node):
		return "", status.Errorf(codes.NotFound, "node %q is not in the topology", node)
	}
	return node, nil
}

// receiveClocks takes the reports of a stream until it ends, and returns the error of that. begun gets the node.
func (s *Server) receiveClocks(stream agentapi.Agents_ClocksServer, id identity, begun chan<- string) error {
	node := ""
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch r := m.GetReport(); {
		case node == "":
			if node, err = s.nodeOf(m, id); err != nil {
				return err
			}
			begun <- node
		case len(r.GetSamples()) > agentapi.MaxClockReport:
			return status.Errorf(codes.InvalidArgument, "report.samples: %d octets, want at most %d", len(r.GetSamples()), agentapi.MaxClockReport)
		case r != nil:
			s.c.clocks.handleReport(node, r, s.c.opts.Clock.MonoTime())
		}
	}
}

// Clocks implements agentapi.AgentsServer. The handler sends. A second goroutine receives, and ends with the stream.
func (s *Server) Clocks(stream agentapi.Agents_ClocksServer) error {
	id, err := s.clientIdentity(stream.Context())
	if err != nil {
		return err
	}
	own, begun := newClockStream(), make(chan string, 1)
	s.wg.Go(func() { own.endWith(s.receiveClocks(stream, id, begun)) })
	timer := time.NewTimer(helloWithin)
	defer timer.Stop()
	select {
	case <-timer.C:
		return status.Errorf(codes.DeadlineExceeded, "no node within %v", helloWithin)
	case err := <-own.ended:
		return err
	case node := <-begun:
		s.c.clocks.addStream(node, own)
		defer s.c.clocks.removeStream(node, own)
		own.wakeSender()
		return s.sendClocks(stream, own, node, id)
	}
}

// sendClocks sends updates until the stream ends, or its certificate is not accepted any more.
func (s *Server) sendClocks(stream agentapi.Agents_ClocksServer, own *clockStream, node string, id identity) error {
	version := s.certificates.Version()
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case err := <-own.ended:
			return err
		case <-own.wake:
		}
		if now := s.certificates.Version(); now != version {
			if _, err := s.clientIdentity(stream.Context()); err != nil {
				return err
			}
			version = now
		}
		if s.c.opts.Clock.WallTime().After(id.expires) {
			return errExpired
		}
		if err := stream.Send(&agentapi.ClockUpdate{Format: agentapi.ClockFormat, Update: s.c.clocks.encodedUpdate(node)}); err != nil {
			return err
		}
		s.c.counters.add(func(n *counts) { n.clockUpdates++ })
	}
}
