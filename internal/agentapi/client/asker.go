package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/pki"
)

// caller sends single requests to the coordinator that leads.
type caller struct {
	certificates *pki.Keeper
	mu           sync.Mutex // held during a request
	coordinators coordinators
}

// newCaller returns a caller for coordinators at host:port or unix:PATH, which are tried in turn. An empty serverName means
// the host of the address, or "coordinator" for a Unix socket.
func newCaller(addresses []string, serverName string, certificates *pki.Keeper) (*caller, error) {
	at, err := newCoordinators(addresses, serverName)
	if err != nil {
		return nil, err
	}
	return &caller{certificates: certificates, coordinators: at}, nil
}

// call sends a request over a connection of its own, since requests are rare and certificates change. The error is a gRPC
// status.
func (c *caller) call(do func(*grpc.ClientConn) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.coordinators.try(func(at coordinatorAt) error {
		conn, err := dialCoordinator(at, c.certificates)
		if err != nil {
			return err
		}
		defer conn.Close()
		return do(conn)
	})
}

// Asker asks the coordinator that leads for temporary flows.
type Asker struct{ *caller }

// NewAsker returns an Asker for coordinators at host:port or unix:PATH, which are tried in turn. An empty serverName means
// the host of the address, or "coordinator" for a Unix socket.
func NewAsker(addresses []string, serverName string, certificates *pki.Keeper) (*Asker, error) {
	c, err := newCaller(addresses, serverName, certificates)
	if err != nil {
		return nil, err
	}
	return &Asker{c}, nil
}

// Ask sends a question. The error is a gRPC status.
func (a *Asker) Ask(ctx context.Context, q *agentapi.Question) (answer *agentapi.Answer, err error) {
	err = a.call(func(conn *grpc.ClientConn) error {
		answer, err = agentapi.NewAgentsClient(conn).Ask(ctx, q)
		return err
	})
	return answer, err
}

// Times within which a coordinator has to answer before the other one is tried. A leader waits for its standby before it
// confirms a window.
const (
	listWithin   = 3 * time.Second
	changeWithin = 8 * time.Second
)

// Windows makes, ends and lists maintenance windows at the coordinator that leads.
type Windows struct{ *caller }

// NewWindows returns a Windows for coordinators, as NewAsker does for questions.
func NewWindows(addresses []string, serverName string, certificates *pki.Keeper) (*Windows, error) {
	c, err := newCaller(addresses, serverName, certificates)
	if err != nil {
		return nil, err
	}
	return &Windows{c}, nil
}

// do sends a request about windows to one coordinator after the other, each of which may take so long.
func (w *Windows) do(ctx context.Context, within time.Duration, send func(context.Context, agentapi.MaintenanceClient) error) error {
	return w.call(func(conn *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		return send(ctx, agentapi.NewMaintenanceClient(conn))
	})
}

// List returns the windows, unless the tag is theirs. The error is a gRPC status.
func (w *Windows) List(ctx context.Context, tag []byte) (answer *agentapi.WindowsAnswer, err error) {
	err = w.do(ctx, listWithin, func(ctx context.Context, c agentapi.MaintenanceClient) error {
		answer, err = c.ListWindows(ctx, &agentapi.WindowsRequest{Tag: tag})
		return err
	})
	return answer, err
}

// Open makes a window. The error is a gRPC status.
func (w *Windows) Open(ctx context.Context, m *agentapi.MaintenanceWindow) (answer *agentapi.MaintenanceWindow, err error) {
	err = w.do(ctx, changeWithin, func(ctx context.Context, c agentapi.MaintenanceClient) error {
		answer, err = c.OpenWindow(ctx, m)
		return err
	})
	return answer, err
}

// End ends a window now. The error is a gRPC status.
func (w *Windows) End(ctx context.Context, id, by string) error {
	return w.do(ctx, changeWithin, func(ctx context.Context, c agentapi.MaintenanceClient) error {
		_, err := c.EndWindow(ctx, &agentapi.EndWindowRequest{Id: id, By: by})
		return err
	})
}
