package client

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
)

// Pauses of clock links after a failure.
const (
	linkPauseMost   = 5 * time.Second
	linkUnsupported = time.Minute // after the answer of a version without clock links
)

// noSession stands for the coordinator of an agent without a session.
const noSession = -1

// errOwnSession ends a clock link to the coordinator that the agent has a session with: the clocks are part of it.
var errOwnSession = errors.New("the agent has a session with this coordinator")

// clockLinks relate the clocks by the coordinators that the agent has no session with, so that the frame of one of them is
// there when another one dies. With one coordinator there are none.
type clockLinks struct {
	list []*clockLink
}

// clockLink is the link to one coordinator.
type clockLink struct {
	at    coordinatorAt
	index int // in the list of coordinators
	queue clockQueue

	mu      sync.Mutex
	session bool          // the agent has a session with this coordinator
	changed chan struct{} // is closed when session changes
}

func newClockLinks(all []coordinatorAt) (links clockLinks) {
	if len(all) < 2 {
		return links
	}
	for i, at := range all {
		links.list = append(links.list, &clockLink{at: at, index: i, queue: clockQueue{reports: make(chan *agentapi.ClockReport, 1)}, changed: make(chan struct{})})
	}
	return links
}

// setSession says which coordinator the agent has a session with.
func (links *clockLinks) setSession(index int) {
	for _, l := range links.list {
		l.setSession(l.index == index)
	}
}

func (l *clockLink) setSession(session bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != session {
		l.session = session
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// state reports whether the agent has a session with the coordinator, and returns a channel that is closed when that changes.
func (l *clockLink) state() (session bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session, l.changed
}

// runClockLink keeps a link while the agent has no session with its coordinator, until ctx ends.
func (c *Client) runClockLink(ctx context.Context, l *clockLink) {
	pause := c.cfg.BackoffLow
	for ctx.Err() == nil {
		session, changed := l.state()
		wait := time.Duration(0)
		if !session {
			began := time.Now()
			err := c.serveClockLink(ctx, l, changed)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, errOwnSession), errors.Is(err, errRenew):
				pause = c.cfg.BackoffLow
				continue
			case time.Since(began) >= settledAfter:
				pause = c.cfg.BackoffLow
			}
			wait = pause/2 + time.Duration(mathrand.Int64N(int64(pause)))
			pause = min(pause*8/5, linkPauseMost)
			if status.Code(err) == codes.Unimplemented {
				wait = linkUnsupported
			}
			c.cfg.Log.Debug("no clock link to this coordinator", "address", l.at.address, "err", status.Convert(err).Message(), "again_in", wait)
		}
		if !l.wait(ctx, changed, wait) {
			return
		}
	}
}

// wait waits until the session changes, or for some time if that is not 0. It reports false when ctx has ended.
func (l *clockLink) wait(ctx context.Context, changed <-chan struct{}, most time.Duration) bool {
	var over <-chan time.Time
	if most > 0 {
		t := time.NewTimer(most)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-over:
	}
	return true
}

// serveClockLink connects once and serves the link until it ends. It always returns an error with the reason.
func (c *Client) serveClockLink(ctx context.Context, l *clockLink, changed <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	certificate := c.cfg.Certificates.Version()
	conn, err := dialCoordinator(l.at, c.cfg.Certificates)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := agentapi.NewAgentsClient(conn).Clocks(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&agentapi.ClocksMessage{Node: c.cfg.Node}); err != nil {
		_, err = stream.Recv() // the error states the reason
		return err
	}
	ended := make(chan error, 1)
	var receiver sync.WaitGroup
	defer func() { cancel(); receiver.Wait(); l.queue.endSession() }()
	receiver.Go(func() { ended <- c.receiveClocks(stream, l) })
	for {
		select {
		case err := <-ended:
			return err
		case <-changed:
			return errOwnSession
		case r := <-l.queue.reports:
			if c.cfg.Certificates.Version() != certificate {
				return errRenew
			}
			if err := stream.Send(&agentapi.ClocksMessage{Report: r}); err != nil {
				return <-ended // the error states the reason
			}
			l.queue.sent.Add(1)
		}
	}
}

// receiveClocks passes the updates of a link on until its stream ends, and returns the error of that.
func (c *Client) receiveClocks(stream agentapi.Agents_ClocksClient, l *clockLink) error {
	for {
		u, err := stream.Recv()
		if err != nil {
			return err
		}
		l.queue.connected.Store(true)
		if u.GetFormat() == agentapi.ClockFormat && len(u.GetUpdate()) <= agentapi.MaxClockUpdate {
			c.agent.Clock(u, false)
		}
	}
}
