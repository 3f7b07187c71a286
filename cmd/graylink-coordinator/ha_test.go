package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"

	exporter "github.com/graylink/graylink/exporters/coordinator"
	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/coordinator"
	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/lease"
	"github.com/graylink/graylink/internal/lease/leasetest"
	"github.com/graylink/graylink/internal/webaccess"
)

// mortalLease is the lease of a process that can be killed: then it says nothing any more.
type mortalLease struct {
	coordinator.Lease
	dead atomic.Bool
}

func (l *mortalLease) Hold(ctx context.Context, q coordinator.LeaseRequest) (coordinator.LeaseState, error) {
	if l.dead.Load() {
		return coordinator.LeaseState{}, errors.New("dead")
	}
	return l.Lease.Hold(ctx, q)
}

func (l *mortalLease) Release(ctx context.Context) error {
	if l.dead.Load() {
		return errors.New("dead")
	}
	return l.Lease.Release(ctx)
}

// newRigPair returns two coordinators of one fleet that have not been started. The first is the initial leader. With an API
// server, a lease decides.
func newRigPair(t *testing.T, api *leasetest.Server) (a, b *rig, leases map[*rig]*mortalLease) {
	t.Helper()
	a = newFiles(t, topology(3, 2), nil)
	second := *a
	b, leases = &second, map[*rig]*mortalLease{}
	b.unix, b.options.StateFile = filepath.Join(b.dir, "b.sock"), filepath.Join(b.dir, "b.json")
	for r, other := range map[*rig]*rig{a: b, b: a} {
		h := &r.options.HA
		h.Mode, h.Peers, h.PeerAddress, h.PeerServerName = coordinator.ModeManual, []string{"coordinator"}, "unix:"+other.unix, "coordinator"
		h.Identity, h.InitialLeader = filepath.Base(r.unix), filepath.Base(a.unix)
		if api == nil {
			continue
		}
		k, err := kubeapi.New(&rest.Config{Host: api.URL}, "test")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		leases[r] = &mortalLease{Lease: kubernetesLease{lease.New(k, "graylink", "coordinator", h.Identity, func() time.Duration { return time.Since(began) })}}
		h.Mode, h.Lease = coordinator.ModeLease, leases[r]
	}
	return a, b, leases
}

// runOn starts an agent of a node with the addresses of both coordinators.
func (r *rig) runOn(node string, rigs ...*rig) *agent {
	r.t.Helper()
	a, _ := r.clientOn(node, rigs...)
	return a
}

// clientOn does what runOn does, and returns the client as well.
func (r *rig) clientOn(node string, rigs ...*rig) (*agent, *client.Client) {
	r.t.Helper()
	r.issue(node)
	var addresses []string
	for _, o := range rigs {
		addresses = append(addresses, "unix:"+o.unix)
	}
	a := &agent{}
	c, err := client.New(client.Config{Addresses: addresses, ServerName: "coordinator", Certificates: r.keeper(node), Node: node, Version: "test", BootID: "boot",
		Web: &agentapi.WebEndpoint{Address: node + ":9868"}, StateFile: filepath.Join(r.t.TempDir(), "state"), Log: slog.New(slog.NewTextHandler(a, nil)),
		BackoffLow: 50 * time.Millisecond, BackoffHigh: 200 * time.Millisecond}, a)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	return a, c
}

func following(r *rig) func() bool {
	return func() bool {
		l := r.c.Leadership()
		return !l.Leads && l.Leader != "" && l.LagSeconds != nil && *l.LagSeconds < 2 && r.c.Ready() == nil
	}
}

// The leader is killed. The standby takes the lease and leads. The agents go there, and get neither another assignment nor
// other keys. internal/lease shows in virtual time that this takes less than ten seconds.
func TestTheStandbyOfADeadLeaderLeads(t *testing.T) {
	a, b, leases := newRigPair(t, leasetest.NewServer(t))
	a.start()
	until(t, "the initial leader leads", func() bool { return a.c.Leads() })
	b.start()
	defer func() { b.stop() }()
	var agents []*agent
	for i := range 6 {
		order := []*rig{a, b}
		if i%2 == 1 {
			slices.Reverse(order) // the standby sends it to the leader
		}
		agents = append(agents, a.runOn(fmt.Sprintf("h%d", i), order...))
	}
	a.settled(agents)
	until(t, "the standby has what the leader has written last", func() bool {
		assigned := func(r *rig) (out []string) {
			for _, a := range r.c.Agents() {
				out = append(out, fmt.Sprint(a.Node, a.Assigned, a.State == coordinator.StateAbsent || a.State == coordinator.StateNever))
			}
			return out
		}
		return following(b)() && slices.Equal(assigned(a), assigned(b))
	})
	before, _, _ := a.c.ScheduleOf("")
	keys, epoch := a.c.Stats().KeysEpoch, a.c.Leadership().Epoch
	applied := make([]int, len(agents))
	for i := range agents {
		applied[i], _, _ = agents[i].last()
	}
	targets, whole := b.c.Targets()
	if !whole || len(targets) != len(agents) {
		t.Errorf("the standby has %d targets (whole: %t), want %d", len(targets), whole, len(agents))
	}

	leases[a].dead.Store(true)
	died := time.Now()
	a.stop()
	until(t, "the standby leads", func() bool { return b.c.Leads() })
	t.Logf("the standby led after %v", time.Since(died))
	until(t, "all agents are connected to it", func() bool { return b.c.Stats().Agents[coordinator.StateConnected] == len(agents) })
	b.settled(agents)
	if after, _, _ := b.c.ScheduleOf(""); after.Hash != before.Hash || b.c.Stats().KeysEpoch != keys || b.c.Leadership().Epoch <= epoch {
		t.Errorf("schedule %s, key %d, epoch %d; before %s, %d, %d", after.Hash, b.c.Stats().KeysEpoch, b.c.Leadership().Epoch, before.Hash, keys, epoch)
	}
	for i, a := range agents {
		if n, _, _ := a.last(); n != applied[i] {
			t.Errorf("h%d applied %d assignments more", i, n-applied[i])
		}
	}

	// The former leader comes back as the standby.
	leases[a].dead.Store(false)
	a.start()
	defer func() { a.stop() }()
	until(t, "the former leader follows", following(a))
	if a.c.Leadership().Epoch != b.c.Leadership().Epoch {
		t.Errorf("epochs %d and %d", a.c.Leadership().Epoch, b.c.Leadership().Epoch)
	}
}

// By request the standby leads, and the leader becomes its standby. Only an administrator may do that.
func TestPromotion(t *testing.T) {
	a, b, _ := newRigPair(t, nil)
	a.start()
	defer func() { a.stop() }()
	b.start()
	defer func() { b.stop() }()
	until(t, "one leads, the other follows", func() bool { return a.c.Leads() && following(b)() })
	agents := []*agent{}
	for i := range 6 {
		agents = append(agents, a.runOn(fmt.Sprintf("h%d", i), a, b))
	}
	a.settled(agents)
	post := func(p *webaccess.Policy) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/-/promote", nil)
		r.RemoteAddr = "127.0.0.1:1"
		exporter.Handler(b.c, p, slog.New(slog.DiscardHandler), nil, b.certificates).ServeHTTP(w, r)
		return w.Code
	}
	if code := post(&webaccess.Policy{Lifecycle: true, Log: slog.New(slog.DiscardHandler)}); code != http.StatusForbidden || b.c.Leads() {
		t.Fatalf("without rights: %d", code)
	}
	if code := post(&webaccess.Policy{AdminAPI: true, Log: slog.New(slog.DiscardHandler)}); code != http.StatusOK || !b.c.Leads() {
		t.Fatalf("with rights: %d", code)
	}
	until(t, "the former leader follows", following(a))
	until(t, "all agents are connected to the new one", func() bool { return b.c.Stats().Agents[coordinator.StateConnected] == len(agents) })
	if code, text := a.get("/api/v1/leader"); code != http.StatusOK || !strings.Contains(text, `"leads":false`) || !strings.Contains(text, b.unix) {
		t.Errorf("%d %s", code, text)
	}
	if _, text := a.get("/metrics"); strings.Contains(text, "graylink_coordinator_agents{") || !strings.Contains(text, "graylink_coordinator_leader 0") {
		t.Error("a standby publishes the fleet of the leader, or not that it is a standby")
	}
	if _, err := (leaderCheck{a}).ask(t, "h0"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("Ask without rights: %v", err)
	}
}

// leaderCheck calls a coordinator with the certificate of a node.
type leaderCheck struct{ *rig }

func (l leaderCheck) conn(t *testing.T, name string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(credentials.NewTLS(l.keeper(name).ClientConfig("coordinator"))),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", l.unix)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (l leaderCheck) ask(t *testing.T, name string) (*agentapi.Answer, error) {
	t.Helper()
	return agentapi.NewAgentsClient(l.conn(t, name)).Ask(t.Context(), &agentapi.Question{Incident: "i"})
}

// The state has the secrets of the fleet. Only the certificates of --ha.peers get it, and nothing of what others send counts.
func TestAStrangerGetsNoReplication(t *testing.T) {
	a, b, _ := newRigPair(t, nil)
	a.start()
	defer func() { a.stop() }()
	until(t, "it leads", func() bool { return a.c.Leads() })
	a.issue("h1")
	a.issue("graylink", "coordinator.example")
	for _, name := range []string{"h1", "graylink"} {
		peer := agentapi.NewReplicationClient(leaderCheck{a}.conn(t, name))
		if _, err := peer.Meet(t.Context(), &agentapi.PeerState{Leads: true, Epoch: 1 << 61}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: Meet: %v", name, err)
		}
		stream, err := peer.Replicate(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: Replicate: %v", name, err)
		}
	}
	if !a.c.Leads() {
		t.Error("a stranger ended its leadership")
	}
	// The right one gets it, and no coordinator that is alone gives it to anybody.
	stream, err := agentapi.NewReplicationClient(leaderCheck{a}.conn(t, "coordinator")).Replicate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || !m.GetWhole() || !strings.Contains(string(m.GetHead()), "fence_key") {
		t.Errorf("the other coordinator got %v, %v", m, err)
	}
	b.options.HA = coordinator.HAOptions{}
	b.start()
	defer func() { b.stop() }()
	if _, err := agentapi.NewReplicationClient(leaderCheck{b}.conn(t, "coordinator")).Meet(t.Context(), &agentapi.PeerState{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a coordinator that is alone: %v", err)
	}
}

// Both coordinators may have the same flags.
func TestTheOwnAddressIsNotThatOfThePeer(t *testing.T) {
	for name, tc := range map[string]struct {
		addresses []string
		identity  string
		want      string // empty: refused
	}{
		"none":           {nil, "a", ""},
		"the other one":  {[]string{"b:1"}, "a", "b:1"},
		"both":           {[]string{"a-0.ns.svc:1", "a-1.ns.svc:1"}, "a-1", "a-0.ns.svc:1"},
		"a longer name":  {[]string{"a-0:1", "a-01:1"}, "a-0", "a-01:1"},
		"three":          {[]string{"a:1", "b:1", "c:1"}, "a", ""},
		"only its own":   {[]string{"a:1"}, "a", ""},
		"a unix socket":  {[]string{"unix:/run/b"}, "a", "unix:/run/b"},
		"without a port": {[]string{"b"}, "a", ""},
	} {
		o := coordinator.HAOptions{Identity: tc.identity}
		f := haFlags{options: &o, addresses: tc.addresses}
		if err := f.resolve(); (err == nil) != (tc.want != "" || tc.addresses == nil) || err == nil && o.PeerAddress != tc.want {
			t.Errorf("%s: %q, %v; want %q", name, o.PeerAddress, err, tc.want)
		}
	}
}
