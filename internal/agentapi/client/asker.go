package client

import (
	"context"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/pki"
)

// Asker asks a coordinator for temporary flows.
type Asker struct {
	address, serverName string
	certificates        *pki.Keeper
}

// NewAsker returns an Asker for a coordinator at host:port or unix:PATH. An empty serverName means the host of the
// address, or "coordinator" for a Unix socket.
func NewAsker(address, serverName string, certificates *pki.Keeper) (*Asker, error) {
	name, err := ServerNameFor(address, serverName)
	if err != nil {
		return nil, err
	}
	return &Asker{address, name, certificates}, nil
}

// Ask sends a question over a connection of its own, since questions are rare and certificates change. The error is a
// gRPC status.
func (a *Asker) Ask(ctx context.Context, q *agentapi.Question) (*agentapi.Answer, error) {
	conn, err := dialCoordinator(a.address, a.serverName, a.certificates)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return agentapi.NewAgentsClient(conn).Ask(ctx, q)
}
