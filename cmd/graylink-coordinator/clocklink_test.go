package main

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/coordinator"
)

// lockedIn returns the frame of the coordinator that leads, or of another one, if all clocks are locked in it, else 0.
func (a *agent) lockedIn(leads bool, clocks int) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if frame := a.frames[leads]; a.locked[frame] == clocks {
		return frame
	}
	return 0
}

// Both coordinators relate the clocks. When the leader is gone, the frame of the standby goes on, and is that of the new leader.
func TestRule15TheStandbyRelatesClocks(t *testing.T) {
	a, b, _ := newRigPair(t, nil)
	a.start()
	defer func() { a.stop() }()
	b.start()
	defer func() { b.stop() }()
	until(t, "one leads, the other follows", func() bool { return a.c.Leads() && following(b)() })
	const n = 4
	agents, clients := make([]*agent, n), make([]*client.Client, n)
	for i := range agents {
		agents[i], clients[i] = a.clientOn(fmt.Sprintf("h%d", i), a, b)
	}
	defer startReports(clients)()
	frame := uint64(0)
	for i, x := range agents {
		until(t, "the clocks are locked at both", func() bool { return x.lockedIn(true, n) != 0 && x.lockedIn(false, n) != 0 })
		if i == 0 {
			frame = x.lockedIn(false, n)
		}
		if leader, standby := x.lockedIn(true, n), x.lockedIn(false, n); standby != frame || leader == frame {
			t.Errorf("h%d has the frames %d and %d, want that of the leader, and %d of the standby", i, leader, standby, frame)
		}
	}
	a.stop()
	if err := b.c.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the agents are connected to the new leader", func() bool { return b.c.Stats().Agents[coordinator.StateConnected] == n })
	for i, x := range agents {
		until(t, "updates come from the leader", func() bool { return x.lockedIn(true, n) == frame })
		if got := b.c.Clocks().Frame; got != frame {
			t.Errorf("h%d: the new leader began the frame %d, want that it goes on with %d", i, got, frame)
		}
	}
	// The former leader is the standby, and relates the clocks in another frame.
	a.start()
	until(t, "the former leader follows", following(a))
	for _, x := range agents {
		until(t, "the clocks are locked at both again", func() bool {
			f := x.lockedIn(false, n)
			return x.lockedIn(true, n) == frame && f != 0 && f != frame
		})
	}
}

// The clocks of a node are those of its certificate.
func TestRule14ClocksOfAnotherNode(t *testing.T) {
	r := newRig(t, topology(2, 2), nil)
	for _, c := range []struct {
		certificate, node string
		want              codes.Code
	}{{"h0", "h0", codes.OK}, {"h0", "h1", codes.PermissionDenied}, {"h9", "h9", codes.NotFound}, {"h0", "", codes.PermissionDenied}} {
		r.issue(c.certificate)
		stream, err := agentapi.NewAgentsClient((leaderCheck{r}).conn(t, c.certificate)).Clocks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&agentapi.ClocksMessage{Node: c.node}); err != nil {
			t.Fatal(err)
		}
		if _, err = stream.Recv(); status.Code(err) != c.want {
			t.Errorf("%s as %q: %v, want %v", c.certificate, c.node, err, c.want)
		}
		if c.want != codes.OK {
			continue
		}
		if err := stream.Send(&agentapi.ClocksMessage{Report: &agentapi.ClockReport{Samples: make([]byte, agentapi.MaxClockReport+1)}}); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("a long report: %v", err)
		}
	}
}
