package client

import (
	"context"
	"sync"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/pki"
)

// Asker asks the coordinator that leads for temporary flows.
type Asker struct {
	certificates *pki.Keeper
	mu           sync.Mutex // held during a question
	coordinators coordinators
}

// NewAsker returns an Asker for coordinators at host:port or unix:PATH, which are tried in turn. An empty serverName means
// the host of the address, or "coordinator" for a Unix socket.
func NewAsker(addresses []string, serverName string, certificates *pki.Keeper) (*Asker, error) {
	at, err := newCoordinators(addresses, serverName)
	if err != nil {
		return nil, err
	}
	return &Asker{certificates: certificates, coordinators: at}, nil
}

// Ask sends a question over a connection of its own, since questions are rare and certificates change. The error is a
// gRPC status.
func (a *Asker) Ask(ctx context.Context, q *agentapi.Question) (answer *agentapi.Answer, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.coordinators.try(func(at coordinatorAt) error {
		conn, err := dialCoordinator(at, a.certificates)
		if err != nil {
			return err
		}
		defer conn.Close()
		answer, err = agentapi.NewAgentsClient(conn).Ask(ctx, q)
		return err
	})
	return answer, err
}
