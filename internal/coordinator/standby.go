package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/graylink/graylink/internal/agentapi"
)

// Times of the calls to the other coordinator.
const (
	meetEvery  = time.Second
	meetWithin = 3 * time.Second
)

// runPeer calls the other coordinator once a second, and follows it while it leads, until ctx ends.
func (c *Coordinator) runPeer(ctx context.Context) {
	failing := false
	tick := time.NewTicker(meetEvery)
	defer tick.Stop()
	for {
		err := c.callPeer(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			c.log.Warn("no connection with the other coordinator", "address", c.opts.HA.PeerAddress, "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// callPeer connects to the other coordinator and calls it until a call fails or the certificates have changed. A standby
// follows it meanwhile if it leads.
func (c *Coordinator) callPeer(ctx context.Context) error {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leadership.peer.tried = true
	}()
	config, version := c.server.clientConfig(c.opts.HA.PeerServerName)
	if config == nil {
		return errors.New("there is no server whose certificate could be shown")
	}
	conn, err := dialPeer(c.opts.HA.PeerAddress, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	peer := agentapi.NewReplicationClient(conn)
	tick := time.NewTicker(meetEvery)
	defer tick.Stop()
	for {
		call, cancel := context.WithTimeout(ctx, meetWithin)
		answer, err := peer.Meet(call, c.peerState())
		cancel()
		if err != nil {
			return err
		}
		c.meetPeer(answer)
		if c.mayFollow() {
			if err := c.follow(ctx, peer); err != nil {
				return err
			}
		}
		if _, now := c.server.clientConfig(c.opts.HA.PeerServerName); now != version {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// dialPeer prepares a connection.
func dialPeer(address string, config *tls.Config) (*grpc.ClientConn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	return grpc.NewClient("passthrough:///coordinator",
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			d := net.Dialer{Timeout: meetWithin}
			return d.DialContext(ctx, network, address)
		}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(2*agentapi.MaxCoordinatorMessage)))
}

// mayFollow reports whether this coordinator is a standby of the other one.
func (c *Coordinator) mayFollow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.leadership
	return !l.leads && l.peer.leads && l.peer.epoch >= l.epoch
}

// follow takes the state of the leader, and every change, until the stream ends, this coordinator leads, or the leader is
// silent.
func (c *Coordinator) follow(ctx context.Context, peer agentapi.ReplicationClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := peer.Replicate(ctx)
	if err != nil {
		return err
	}
	silent := time.AfterFunc(replicaSilentFor, cancel)
	defer silent.Stop()
	if err := c.sendUsedTokens(stream); err != nil {
		return err
	}
	var b stateBuilder
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		silent.Reset(replicaSilentFor)
		if err := c.addUsedTokens(m.GetUsedTokens()); err != nil {
			return fmt.Errorf("cannot record the join tokens that the leader knows as used: %w", err)
		}
		s, err := b.take(m)
		switch {
		case err != nil:
			return fmt.Errorf("cannot use the state of the leader: %w", err)
		case s != nil:
			if err := c.takeReplica(s); err != nil {
				return err
			}
		case !m.GetComplete():
			continue
		default:
			c.confirmReplica()
		}
		if err := stream.Send(&agentapi.Replicated{Sequence: m.GetSequence()}); err != nil {
			return err
		}
	}
}

// tokensAtOnce is the maximum number of used join tokens in one message of a standby.
const tokensAtOnce = 500

// sendUsedTokens sends the join tokens whose use this standby knows, from a time when it led.
func (c *Coordinator) sendUsedTokens(stream agentapi.Replication_ReplicateClient) error {
	if c.opts.UsedTokens == nil {
		return nil
	}
	for lines := range slices.Chunk(c.opts.UsedTokens.Since(0), tokensAtOnce) {
		if err := stream.Send(&agentapi.Replicated{UsedTokens: lines}); err != nil {
			return err
		}
	}
	return nil
}

// confirmReplica records that the standby has the whole state of the leader.
func (c *Coordinator) confirmReplica() {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.leadership
	mono := c.opts.Clock.MonoTime()
	l.syncedAt, l.peer.heardAt = mono, mono
}

// takeReplica writes the state of the leader, and serves its agents as targets. It returns an error if the state cannot be
// written, or if this coordinator follows that leader no more.
func (c *Coordinator) takeReplica(s *state) error {
	c.changeMu.Lock()
	defer c.changeMu.Unlock()
	wall, mono := c.opts.Clock.WallTime(), c.opts.Clock.MonoTime()
	c.mu.Lock()
	l := &c.leadership
	if l.leads || s.Epoch < l.epoch {
		defer c.mu.Unlock()
		return fmt.Errorf("epoch %d of the other coordinator is not followed: this one has %d", s.Epoch, l.epoch)
	}
	s.Written = wall
	if !l.followed {
		c.log.Info("this standby has the state of the leader", "epoch", s.Epoch, "agents", len(s.Agents))
	}
	l.epoch, l.fenceKey, l.replica, l.followed, l.resumes = s.Epoch, s.FenceKey, s, true, false
	l.syncedAt, l.peer.heardAt = mono, mono
	c.loadAgents(s, wall, mono)
	c.mu.Unlock()
	return c.saveState()
}
