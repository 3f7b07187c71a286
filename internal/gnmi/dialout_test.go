package gnmi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	tpb "github.com/openconfig/grpctunnel/proto/tunnel"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/gnmi/gnmitest"
	"github.com/graylink/graylink/internal/pki"
)

// listening returns an agent to which switches connect.
func listening(t *testing.T, vendor string, change func(*Config)) (*Agent, *logged) {
	t.Helper()
	c := DefaultConfig()
	c.Preset, c.TLS.Insecure = vendor, true
	c.Interval, c.BackoffMin, c.BackoffMax, c.Timeout = time.Second, 10*time.Millisecond, 50*time.Millisecond, 5*time.Second
	c.DialOut.Listen, c.DialOut.Targets = "127.0.0.1:0", []Caller{{ID: "leaf1"}}
	if change != nil {
		change(&c)
	}
	log := &logged{}
	a, err := Start(c, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a, log
}

// switchOf returns a switch that is not dialled.
func switchOf(t *testing.T, vendor string) *gnmitest.Switch {
	t.Helper()
	sw, err := gnmitest.Start(vendor, gnmitest.ExampleState(time.Now()), gnmitest.Faults{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sw.Stop)
	return sw
}

// connected returns a connection of a switch to the agent. A nil config means without TLS.
func connected(t *testing.T, a *Agent, config *tls.Config) *grpc.ClientConn {
	t.Helper()
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient(a.DialOutAddress(), grpc.WithTransportCredentials(creds), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// running runs a function until it is stopped, and holds its result.
type running struct {
	stop context.CancelFunc
	done chan struct{}
	err  error
}

func run(t *testing.T, what func(context.Context) error) *running {
	ctx, stop := context.WithCancel(context.Background())
	r := &running{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = what(ctx)
	}()
	t.Cleanup(r.end)
	return r
}

func (r *running) end() {
	r.stop()
	<-r.done
}

// wait waits until the function returns by itself, and returns its error.
func (r *running) wait(t *testing.T, what string) error {
	t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(hangLimit):
		t.Fatalf("%s does not end", what)
		return nil
	}
}

func refusedBy(kind string) string {
	return fmt.Sprintf(`graylink_gnmi_dial_out_refused_total{switch="",kind=%q}`, kind)
}

const (
	upOfLeaf1     = "graylink_gnmi_target_up" + leaf1 + "}"
	octetsOfLeaf1 = `fabric_switch_port_receive_bytes_total{switch="leaf1",port="Ethernet8"}`
	stateOfLeaf1  = `fabric_switch_port_oper_up{switch="leaf1",port="Ethernet8"}`
)

// TestTunnel checks that a switch that registers through the library's client is subscribed to like one that is
// dialled, that what it sent on change is absent when it leaves, and that it can return.
func TestTunnel(t *testing.T) {
	for _, mode := range []string{"stream", "once", "poll"} {
		a, log := listening(t, "openconfig", func(c *Config) { c.Mode = mode })
		if got := seriesOf(a); got[upOfLeaf1] != 0 || got["graylink_gnmi_connects_total"+leaf1+"}"] != 0 || got[errorsOf("connect")] != 0 {
			t.Errorf("%s: before it came: %v", mode, got)
		}
		sw := switchOf(t, "openconfig")
		for range 3 {
			conn := connected(t, a, nil)
			r := run(t, func(ctx context.Context) error { return sw.ServeTunnel(ctx, conn, "leaf1") })
			until(t, a, log, mode+": series", func(got map[string]float64) bool {
				return got[upOfLeaf1] == 1 && got[octetsOfLeaf1] > 0 && got[stateOfLeaf1] == 1
			})
			if n := seriesOf(a)["graylink_gnmi_dial_out_connections{switch=\"\"}"]; n < 1 {
				t.Errorf("%s: %v connections", mode, n)
			}
			r.end()
			_ = conn.Close()
			until(t, a, log, mode+": down", func(got map[string]float64) bool {
				_, state := got[stateOfLeaf1]
				return got[upOfLeaf1] == 0 && (!state || mode != "stream") && got[`graylink_gnmi_dial_out_connections{switch=""}`] == 0
			})
		}
		a.dialOut.mu.Lock()
		if n := len(a.dialOut.pendingTunnels); n > 0 {
			t.Errorf("%s: %d sessions are waited for still", mode, n)
		}
		a.dialOut.mu.Unlock()
	}
}

// TestTunnelAnew checks that a target that is registered again replaces the earlier registration at once,
// whatever the state of the earlier tunnel.
func TestTunnelAnew(t *testing.T) {
	a, log := listening(t, "openconfig", func(c *Config) { c.Timeout = time.Minute }) // the earlier one is not closed for its silence
	old, young := switchOf(t, "openconfig"), switchOf(t, "openconfig")
	state := gnmitest.ExampleState(time.Now())
	state.Octets = 42
	young.UpdateState(state)
	first := connected(t, a, nil)
	run(t, func(ctx context.Context) error { return old.ServeTunnel(ctx, first, "leaf1") })
	until(t, a, log, "the first", func(got map[string]float64) bool { return got[octetsOfLeaf1] > 42 })
	second := connected(t, a, nil)
	run(t, func(ctx context.Context) error { return young.ServeTunnel(ctx, second, "leaf1") })
	until(t, a, log, "the second", func(got map[string]float64) bool { return got[octetsOfLeaf1] == 42 && got[upOfLeaf1] == 1 })
}

// TestPublish checks that what SONiC publishes has the same series as what it sends to a subscription, and that
// the end of a stream removes only what it sent on change.
func TestPublish(t *testing.T) {
	a, log := listening(t, "sonic", nil)
	sw := switchOf(t, "sonic")
	conn := connected(t, a, nil)
	counters := run(t, func(ctx context.Context) error { return sw.PublishDatabase(ctx, conn, "COUNTERS_DB") })
	states := run(t, func(ctx context.Context) error { return sw.PublishDatabase(ctx, conn, "APPL_DB") })
	got := until(t, a, log, "series", func(got map[string]float64) bool {
		return got[octetsOfLeaf1] > 0 && got[stateOfLeaf1] == 1 && got[upOfLeaf1] == 1 && got[`graylink_gnmi_dial_out_streams{switch=""}`] == 2
	})
	if got["graylink_gnmi_connects_total"+leaf1+"}"] != 2 || got["graylink_gnmi_sample_age_seconds"+leaf1+"}"] > 60 {
		t.Errorf("%v", got)
	}
	states.end()
	got = until(t, a, log, "the end of states", func(got map[string]float64) bool {
		_, there := got[stateOfLeaf1]
		return !there && got[`graylink_gnmi_dial_out_streams{switch=""}`] == 1
	})
	if got[octetsOfLeaf1] == 0 || got[upOfLeaf1] != 1 {
		t.Errorf("counters went with the states: %v", got)
	}
	// Samples stop arriving: the stream is open, and the switch is not up.
	later := a.CollectPoints(time.Now().Add(time.Minute))
	for _, p := range later {
		if p.Family == familyUp && p.Value != 0 || strings.HasPrefix(p.Family.Name, "fabric_switch_port_receive_bytes") {
			t.Errorf("a minute after the last sample: %s is %v", p.Family.Name, p.Value)
		}
	}
	run(t, func(ctx context.Context) error { return sw.PublishDatabase(ctx, conn, "APPL_DB") })
	until(t, a, log, "states again", func(got map[string]float64) bool { return got[stateOfLeaf1] == 1 })
	// The end of the other stream removes no state.
	counters.end()
	got = until(t, a, log, "the end of counters", func(got map[string]float64) bool { return got[`graylink_gnmi_dial_out_streams{switch=""}`] == 1 })
	if got[stateOfLeaf1] != 1 {
		t.Error("states went with the counters")
	}
}

// TestPublishBounds checks that a message that is too large ends its stream, as does a loss of changes, and
// that the number of streams is bounded.
func TestPublishBounds(t *testing.T) {
	a, log := listening(t, "sonic", func(c *Config) {
		c.DialOut.MaxMessage, c.DialOut.MaxStreams, c.Queue, c.QueueWait = 1<<10, 2, 1, time.Millisecond
	})
	sw := switchOf(t, "sonic")
	conn := connected(t, a, nil)
	r := run(t, func(ctx context.Context) error { return sw.PublishDatabase(ctx, conn, "") })
	until(t, a, log, "a stream", func(got map[string]float64) bool { return got[`graylink_gnmi_dial_out_streams{switch=""}`] == 1 })
	sw.SendNotifications(&gpb.Notification{Update: []*gpb.Update{{Path: &gpb.Path{Elem: []*gpb.PathElem{{Name: strings.Repeat("x", 2<<10)}}}}}})
	if err := r.wait(t, "the stream with a large message"); status.Code(err) != codes.ResourceExhausted && status.Code(err) != codes.Unavailable {
		t.Errorf("a large message: %v", err)
	}
	until(t, a, log, "no stream", func(got map[string]float64) bool {
		return got[`graylink_gnmi_dial_out_streams{switch=""}`] == 0 && got[errorsOf("stream")] == 1
	})
	for range 2 {
		run(t, func(ctx context.Context) error { return sw.PublishDatabase(ctx, conn, "") })
	}
	until(t, a, log, "two streams", func(got map[string]float64) bool { return got[`graylink_gnmi_dial_out_streams{switch=""}`] == 2 })
	// The third waits in the client, because the server announced its limit.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := sw.PublishDatabase(ctx, conn, ""); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a third stream: %v", err)
	}
	s := a.snapshotSessions()[0]
	s.store.mu.Lock()
	for end := time.Now().Add(hangLimit); s.drops.Load() == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		sw.SendNotifications(&gpb.Notification{Timestamp: 1, Update: []*gpb.Update{{}}})
	}
	s.store.mu.Unlock()
	until(t, a, log, "the loss", func(got map[string]float64) bool { return got[errorsOf("dropped")] > 0 })
}

// access describes how a caller connects.
type access struct {
	change  func(*Config)
	cert    string // of the caller; empty means none
	token   string
	plain   bool   // the caller does not use TLS
	id      string // the id that it registers; empty means leaf1
	refused string // the expected kind of refusal; empty means that it is accepted
}

// TestDialOutAccess checks that permitted callers are accepted, by a tunnel and by Publish, and that others are
// refused and counted by the kind of refusal.
func TestDialOutAccess(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		f := filepath.Join(dir, name)
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	authority := func(name string) pki.Pair {
		ca, err := pki.NewAuthority(name, time.Hour, now)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	issue := func(ca pki.Pair, names ...string) pki.Pair {
		p, err := pki.Issue(ca, names, time.Hour, now)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	ca, other := authority("fabric"), authority("other")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	server := issue(ca, "localhost", "127.0.0.1")
	certs := map[string]pki.Pair{"leaf1": issue(ca, "leaf1"), "leaf2": issue(ca, "leaf2", "leaf2.example"), "bad": issue(ca, "a/b"), "stranger": issue(other, "leaf1"),
		"dialled": issue(ca, "spine1")}
	const secret = "t0ken-that-is-not-logged"
	token := write("token", []byte(secret+"\n"))
	withTLS := ServerTLS{Cert: write("cert", server.Cert), Key: write("key", server.Key)}
	mutual := withTLS
	mutual.ClientCA = write("ca", ca.Cert)
	byCertificate := func(c *Config) { c.DialOut.TLS, c.DialOut.Targets = mutual, nil }
	for name, c := range map[string]access{
		"certificate":             {change: byCertificate, cert: "leaf1"},
		"second name":             {change: byCertificate, cert: "leaf2", id: "leaf2.example"},
		"another's name":          {change: byCertificate, cert: "leaf2", id: "leaf1", refused: "stranger"},
		"no name of a switch":     {change: byCertificate, cert: "bad", id: "a/b", refused: "stranger"},
		"name that is dialled":    {change: func(c *Config) { byCertificate(c); c.Targets = []Target{{"127.0.0.1:1", "spine1"}} }, cert: "dialled", id: "spine1", refused: "stranger"},
		"no certificate":          {change: byCertificate, refused: "tls"},
		"another authority":       {change: byCertificate, cert: "stranger", refused: "tls"},
		"no TLS":                  {change: byCertificate, plain: true, refused: "tls"},
		"full":                    {change: func(c *Config) { byCertificate(c); c.DialOut.MaxTargets = 1 }, cert: "leaf1", refused: "limit"},
		"listed":                  {change: func(c *Config) { c.DialOut.TLS = mutual }, cert: "leaf1"},
		"not listed":              {change: func(c *Config) { c.DialOut.TLS = mutual }, cert: "leaf2", id: "leaf2", refused: "stranger"},
		"listed, another's":       {change: func(c *Config) { c.DialOut.TLS = mutual }, cert: "leaf2", refused: "stranger"},
		"listed by certificate":   {change: func(c *Config) { c.DialOut.TLS, c.DialOut.Targets[0].Certificate = mutual, "leaf2" }, cert: "leaf2"},
		"listed, from elsewhere":  {change: func(c *Config) { c.DialOut.TLS, c.DialOut.Targets[0].Address = mutual, "10.0.0.0/8" }, cert: "leaf1", refused: "stranger"},
		"token":                   {change: func(c *Config) { c.DialOut.TLS, c.DialOut.TokenFile = withTLS, token }, token: secret},
		"wrong token":             {change: func(c *Config) { c.DialOut.TLS, c.DialOut.TokenFile = withTLS, token }, token: "x", refused: "auth"},
		"no token":                {change: func(c *Config) { c.DialOut.TLS, c.DialOut.TokenFile = withTLS, token }, refused: "auth"},
		"token, not listed":       {change: func(c *Config) { c.DialOut.TLS, c.DialOut.TokenFile = withTLS, token }, token: secret, id: "leaf2", refused: "stranger"},
		"certificate for a token": {change: func(c *Config) { c.DialOut.TLS, c.DialOut.TokenFile = mutual, token }, cert: "leaf1"},
		"address": {change: func(c *Config) {
			c.DialOut.TLS, c.DialOut.ByAddress, c.DialOut.Targets[0].Address = withTLS, true, "127.0.0.1"
		}},
		"another's address": {change: func(c *Config) {
			c.DialOut.TLS, c.DialOut.ByAddress, c.DialOut.Targets[0].Address = withTLS, true, "10.0.0.1"
		}, refused: "stranger"},
		"loopback":                 {plain: true},
		"loopback, but not listed": {plain: true, id: "leaf2", refused: "stranger"},
	} {
		for _, by := range []string{"tunnel", "publish"} {
			id := c.id
			if id == "" {
				id = "leaf1"
			}
			if by == "publish" && (name == "second name" || name == "another's name" || name == "loopback, but not listed" || name == "token, not listed") {
				continue // Publish names no target
			}
			t.Run(name+"/"+by, func(t *testing.T) {
				vendor := map[string]string{"tunnel": "openconfig", "publish": "sonic"}[by]
				a, log := listening(t, vendor, c.change)
				if c.refused == "limit" {
					a.dialOut.mu.Lock()
					a.dialOut.callers["other"] = a.addTarget("other", "other", newOfferSlot(), slog.New(slog.DiscardHandler))
					a.dialOut.mu.Unlock()
				}
				config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: "localhost"}
				if p, ok := certs[c.cert]; ok {
					pair, err := tls.X509KeyPair(p.Cert, p.Key)
					if err != nil {
						t.Fatal(err)
					}
					config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
				}
				if c.plain {
					config = nil
				}
				sw, conn := switchOf(t, vendor), connected(t, a, config)
				r := run(t, func(ctx context.Context) error {
					if c.token != "" {
						ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
					}
					if by == "publish" {
						return sw.PublishDatabase(ctx, conn, "COUNTERS_DB")
					}
					return sw.ServeTunnel(ctx, conn, id)
				})
				got := until(t, a, log, "the outcome", func(got map[string]float64) bool {
					if c.refused != "" {
						return got[refusedBy(c.refused)] > 0
					}
					return got[fmt.Sprintf(`fabric_switch_port_receive_bytes_total{switch=%q,port="Ethernet8"}`, id)] > 0
				})
				for _, kind := range refusals {
					if kind != c.refused && got[refusedBy(kind)] > 0 {
						t.Errorf("%s is counted", kind)
					}
				}
				if c.refused != "" {
					_ = r.wait(t, "what was refused")
					for s, v := range seriesOf(a) {
						if strings.HasPrefix(s, "fabric_") || strings.HasPrefix(s, "graylink_gnmi_target_up") && v != 0 {
							t.Errorf("came in: %s", s)
						}
					}
				}
				if strings.Contains(log.String(), secret) {
					t.Error("the log contains the token")
				}
			})
		}
	}
}

// TestTunnelRequests checks that other requests of the protocol are refused, one message at a time, and that
// the tunnel remains.
func TestTunnelRequests(t *testing.T) {
	a, log := listening(t, "openconfig", func(c *Config) { c.DialOut.Targets = append(c.DialOut.Targets, Caller{ID: "leaf2"}) })
	victim := switchOf(t, "openconfig")
	vconn := connected(t, a, nil)
	run(t, func(ctx context.Context) error { return victim.ServeTunnel(ctx, vconn, "leaf2") })
	until(t, a, log, "leaf2", func(got map[string]float64) bool { return got[`graylink_gnmi_target_up{switch="leaf2"}`] == 1 })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := tpb.NewTunnelClient(connected(t, a, nil))
	stream, err := client.Register(ctx)
	if err != nil {
		t.Fatal(err)
	}
	target := func(op tpb.Target_TargetOp, id, kind string) *tpb.RegisterOp {
		return &tpb.RegisterOp{Registration: &tpb.RegisterOp_Target{Target: &tpb.Target{Op: op, Target: id, TargetType: kind}}}
	}
	for i, c := range []struct {
		op *tpb.RegisterOp
		ok bool
	}{
		{target(tpb.Target_ADD, "leaf1", "SSH"), false},
		{target(tpb.Target_ADD, "", tunnelType), false},
		{target(tpb.Target_UNKNOWN, "leaf1", tunnelType), false},
		{target(tpb.Target_ADD, "leaf3", tunnelType), false},
		{&tpb.RegisterOp{Registration: &tpb.RegisterOp_Session{Session: &tpb.Session{Tag: -1, Target: "leaf2", TargetType: tunnelType}}}, false},
		{&tpb.RegisterOp{Registration: &tpb.RegisterOp_Subscription{Subscription: &tpb.Subscription{Op: tpb.Subscription_SUBCRIBE}}}, false},
		{target(tpb.Target_REMOVE, "leaf1", tunnelType), true},
	} {
		if err := stream.Send(c.op); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		ok := answer.GetTarget().GetAccept() || answer.GetSession().GetAccept() || answer.GetSubscription().GetAccept()
		why := answer.GetTarget().GetError() + answer.GetSession().GetError() + answer.GetSubscription().GetError()
		if ok != c.ok || (why == "") != c.ok {
			t.Errorf("%d: %v", i, answer)
		}
	}
	// A switch that refuses the session, and one whose stream was not requested.
	if err := stream.Send(target(tpb.Target_ADD, "leaf1", tunnelType)); err != nil {
		t.Fatal(err)
	}
	var asked int32
	for range 2 {
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if s := answer.GetSession(); s != nil {
			asked = s.GetTag()
		}
	}
	if err := stream.Send(&tpb.RegisterOp{Registration: &tpb.RegisterOp_Session{Session: &tpb.Session{Tag: asked, Error: "busy"}}}); err != nil {
		t.Fatal(err)
	}
	until(t, a, log, "an error of leaf1", func(got map[string]float64) bool { return got[errorsOf("connect")] > 0 })
	for _, tag := range []int32{0, asked, 1 << 30} {
		data, err := client.Tunnel(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := data.Send(&tpb.Data{Tag: tag}); err != nil {
			t.Fatal(err)
		}
		if _, err := data.Recv(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a stream of session %d: %v", tag, err)
		}
	}
	// A message without content ends the registration.
	if err := stream.Send(&tpb.RegisterOp{}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("an empty message: %v", err)
	}
	if got := seriesOf(a); got[refusedBy("request")] != 8 || got[refusedBy("stranger")] != 2 || got[`graylink_gnmi_target_up{switch="leaf2"}`] != 1 {
		t.Errorf("%v", got)
	}
}

// TestTunnelSilent checks that a switch that registers and never opens the session is given up and tried again,
// and that nothing of it remains when it leaves.
func TestTunnelSilent(t *testing.T) {
	a, log := listening(t, "openconfig", func(c *Config) { c.Timeout = 100 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := tpb.NewTunnelClient(connected(t, a, nil)).Register(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&tpb.RegisterOp{Registration: &tpb.RegisterOp_Target{Target: &tpb.Target{Op: tpb.Target_ADD, Target: "leaf1", TargetType: tunnelType}}}); err != nil {
		t.Fatal(err)
	}
	until(t, a, log, "two errors", func(got map[string]float64) bool { return got[errorsOf("connect")] >= 2 })
	cancel()
	until(t, a, log, "the end", func(map[string]float64) bool {
		s := a.snapshotSessions()[0]
		s.offerSlot.mu.Lock()
		gone := s.offerSlot.offer == nil
		s.offerSlot.mu.Unlock()
		a.dialOut.mu.Lock()
		defer a.dialOut.mu.Unlock()
		return gone && len(a.dialOut.pendingTunnels) == 0
	})
}

// TestTunnelStorm lets fifty switches connect, leave and return at once, and expects the series of all of them
// in the end.
func TestTunnelStorm(t *testing.T) {
	a, log := listening(t, "openconfig", func(c *Config) {
		c.DialOut.Targets = nil
		for i := range 50 {
			c.DialOut.Targets = append(c.DialOut.Targets, Caller{ID: fmt.Sprint("leaf", i+1)})
		}
	})
	sw := switchOf(t, "openconfig")
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for range 3 {
				conn := connected(t, a, nil)
				r := run(t, func(ctx context.Context) error { return sw.ServeTunnel(ctx, conn, fmt.Sprint("leaf", i+1)) })
				up := fmt.Sprintf(`graylink_gnmi_target_up{switch="leaf%d"}`, i+1)
				for end := time.Now().Add(30 * time.Second); seriesOf(a)[up] != 1 && time.Now().Before(end); {
					time.Sleep(10 * time.Millisecond)
				}
				r.end()
				_ = conn.Close()
			}
			conn := connected(t, a, nil)
			run(t, func(ctx context.Context) error { return sw.ServeTunnel(ctx, conn, fmt.Sprint("leaf", i+1)) })
		})
	}
	wg.Wait()
	until(t, a, log, "all", func(got map[string]float64) bool {
		up := 0
		for s, v := range got {
			if strings.HasPrefix(s, "graylink_gnmi_target_up{") && v == 1 {
				up++
			}
		}
		return up == 50
	})
}

// FuzzRegister checks that whatever a caller sends to register, every message has one answer at most, and only
// listed targets are accepted.
func FuzzRegister(f *testing.F) {
	for _, op := range []*tpb.RegisterOp{
		{}, {Registration: &tpb.RegisterOp_Target{Target: &tpb.Target{Op: tpb.Target_ADD, Target: "leaf1", TargetType: tunnelType}}},
		{Registration: &tpb.RegisterOp_Target{Target: &tpb.Target{Op: tpb.Target_REMOVE, Target: "leaf1", TargetType: tunnelType}}},
		{Registration: &tpb.RegisterOp_Target{Target: &tpb.Target{Op: tpb.Target_ADD, Target: "leaf2", TargetType: tunnelType}}},
		{Registration: &tpb.RegisterOp_Session{Session: &tpb.Session{Tag: 1, Error: "no"}}}, {Registration: &tpb.RegisterOp_Subscription{}},
	} {
		b, err := proto.Marshal(op)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	leaf1 := &session{offerSlot: newOfferSlot()}
	d := &dialOut{config: &DialOut{Targets: []Caller{{ID: "leaf1"}}}, log: slog.New(slog.DiscardHandler), warnings: rate.NewLimiter(0, 0),
		callers: map[string]*session{"leaf1": leaf1}, pendingTunnels: map[tunnelKey]chan<- openResult{}}
	f.Fuzz(func(t *testing.T, b []byte) {
		var op tpb.RegisterOp
		if proto.Unmarshal(b, &op) != nil {
			return
		}
		result := make(chan openResult, 1)
		d.pendingTunnels[tunnelKey{7, 1}] = result
		offers := map[*session]*offer{}
		answer, err := d.handleRegistration(caller{conn: 7}, &registration{}, offers, &op)
		if answer != nil && err != nil {
			t.Error("an answer and an error")
		}
		if t1 := answer.GetTarget(); t1.GetAccept() && (t1.GetTarget() != "leaf1" || t1.GetTargetType() != tunnelType) {
			t.Errorf("%v is taken", t1)
		}
		if answer.GetSession().GetAccept() || answer.GetSubscription().GetAccept() {
			t.Errorf("%v is taken", answer)
		}
		for s, o := range offers {
			if s != leaf1 {
				t.Error("a stranger's offer")
			}
			s.offerSlot.withdrawOffer(o)
		}
	})
}
