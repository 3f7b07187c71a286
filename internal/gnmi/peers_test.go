package gnmi

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	fake "github.com/openconfig/gnmi/testing/fake/gnmi"
	fpb "github.com/openconfig/gnmi/testing/fake/proto"
	"github.com/openconfig/gnmic/pkg/api/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/gnmi/gnmitest"
)

// Servers of others are processes of their own (this test binary again), because they cannot be stopped, or
// leave goroutines, and here they can be killed.
const peerVariable = "GRAYLINK_GNMI_TEST_PEER"

// peerProcess runs the server of such a process.
func peerProcess(what string) error {
	if err := flag.CommandLine.Parse([]string{"-logtostderr", "-stderrthreshold=FATAL"}); err != nil {
		return err
	}
	kind, arg, _ := strings.Cut(what, " ")
	if kind == "gnmic" {
		return gnmicServer(arg)
	}
	return fakeServer(kind, arg)
}

// content returns what the servers send: a message of the switch of ExampleState, and a sync.
func content() []*gpb.SubscribeResponse {
	counters := "/interfaces/interface[name=Ethernet8]/state/"
	n := &gpb.Notification{Timestamp: time.Now().UnixNano()}
	for p, v := range map[string]*gpb.TypedValue{
		counters + "counters/in-octets": {Value: &gpb.TypedValue_UintVal{UintVal: 123456789}},
		counters + "oper-status":        {Value: &gpb.TypedValue_StringVal{StringVal: "UP"}},
	} {
		n.Update = append(n.Update, &gpb.Update{Path: mustPath(p), Val: v})
	}
	return []*gpb.SubscribeResponse{{Response: &gpb.SubscribeResponse_Update{Update: n}}}
}

// gnmicServer serves gnmic's own server on a UNIX socket.
func gnmicServer(socket string) error {
	sync := &gpb.SubscribeResponse{Response: &gpb.SubscribeResponse_SyncResponse{SyncResponse: true}}
	all := func(stream gpb.GNMI_SubscribeServer) error {
		for _, m := range append(content(), sync) {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		return nil
	}
	s, err := server.New(server.Config{Address: "unix://" + socket}, server.WithLogger(log.New(io.Discard, "", 0)),
		server.WithCapabilitiesHandler(func(context.Context, *gpb.CapabilityRequest) (*gpb.CapabilityResponse, error) {
			return &gpb.CapabilityResponse{SupportedEncodings: []gpb.Encoding{gpb.Encoding_PROTO}}, nil
		}),
		server.WithSubscribeHandler(func(r *gpb.SubscribeRequest, stream gpb.GNMI_SubscribeServer) error {
			switch r.GetSubscribe().GetMode() {
			case gpb.SubscriptionList_ONCE:
				return all(stream)
			case gpb.SubscriptionList_POLL:
				for {
					if r, err := stream.Recv(); err != nil || r.GetPoll() == nil {
						return err
					}
					if err := all(stream); err != nil {
						return err
					}
				}
			}
			for {
				if err := all(stream); err != nil {
					return err
				}
				select {
				case <-stream.Context().Done():
					return nil
				case <-time.After(time.Second):
				}
			}
		}))
	if err != nil {
		return err
	}
	fmt.Println(socket)
	return s.Start(context.Background())
}

// fakeServer serves OpenConfig's fake, which holds the stream open, ends it, sends no sync, or floods; or it
// connects through a tunnel.
func fakeServer(kind, arg string) error {
	c := &fpb.Config{Target: "leaf1", ClientType: fpb.Config_GRPC_GNMI, DisableEof: true,
		Generator: &fpb.Config_Fixed{Fixed: &fpb.FixedGenerator{Responses: content()}}}
	switch kind {
	case "ends":
		c.DisableEof = false
	case "nosync":
		c.DisableSync = true
	case "tunnel":
		c.TunnelAddr = arg
	case "types":
		// Texts in the place of counters, flags in the place of states, and time that goes back.
		c.Generator, c.Values = nil, []*fpb.Value{ //nolint:staticcheck // the newer form of it is not read
			{Path: []string{"interfaces", "interface[name=Ethernet8]", "state", "counters", "in-octets"}, Repeat: 100,
				Timestamp: &fpb.Timestamp{Timestamp: time.Now().UnixNano(), DeltaMin: -1e9, DeltaMax: -1e9}, Value: &fpb.Value_StringValue{StringValue: &fpb.StringValue{Value: "many"}}},
			{Path: []string{"interfaces", "interface[name=Ethernet8]", "state", "oper-status"}, Repeat: 100,
				Value: &fpb.Value_BoolValue{BoolValue: &fpb.BoolValue{Value: true}}},
			{Path: []string{"interfaces", "interface[name=Ethernet8]", "state", "counters", "in-errors"}, Repeat: 100,
				Value: &fpb.Value_StringListValue{StringListValue: &fpb.StringListValue{Value: []string{"1", "2"}}}},
		}
	case "flood":
		c.Generator, c.Values = nil, []*fpb.Value{ //nolint:staticcheck // as above
			{Path: []string{"interfaces", "interface[name=Ethernet8]", "state", "counters", "in-octets"},
				Value: &fpb.Value_UintValue{UintValue: &fpb.UintValue{Value: 1, Distribution: &fpb.UintValue_Range{Range: &fpb.UintRange{Maximum: 1 << 60, DeltaMin: 1, DeltaMax: 9}}}}},
		}
	}
	a, err := fake.New(c, nil)
	if err != nil {
		return err
	}
	fmt.Println(a.Address())
	select {}
}

// startPeer starts a server's process, and returns its address.
func startPeer(t *testing.T, what string) (address string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerVariable+"="+what)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("peer %q: %v", what, err)
	}
	return strings.TrimSpace(line), kill
}

// subscribed returns an agent with one target, which dial connects to.
func subscribed(t *testing.T, mode string, dial dialer, change func(*Config)) (*Agent, *logged) {
	t.Helper()
	c := DefaultConfig()
	c.Preset, c.Mode, c.TLS.Insecure, c.Targets = "openconfig", mode, true, []Target{{Address: "leaf1:1", Name: "leaf1"}}
	c.Interval, c.BackoffMin, c.BackoffMax, c.Timeout = time.Second, 10*time.Millisecond, 50*time.Millisecond, 5*time.Second
	if change != nil {
		change(&c)
	}
	log := &logged{}
	a, err := startWithDialer(c, slog.New(slog.NewTextHandler(log, nil)), dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a, log
}

func dialOf(network, address string) dialer {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

// isThere reports whether the series have what the servers send.
func isThere(got map[string]float64) bool {
	return got[octetsOfLeaf1] == 123456789 && got[stateOfLeaf1] == 1 && got[upOfLeaf1] == 1
}

// TestGnmicServer subscribes to gnmic's server in each mode, and again after it was killed.
func TestGnmicServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	address, kill := startPeer(t, "gnmic "+socket)
	for _, mode := range []string{"stream", "once", "poll"} {
		a, log := subscribed(t, mode, dialOf("unix", address), nil)
		until(t, a, log, mode, isThere)
		if mode != "poll" {
			continue
		}
		kill()
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		until(t, a, log, "its end", func(got map[string]float64) bool { return got[upOfLeaf1] == 0 && got[errorsOf("connect")] > 0 })
		startPeer(t, "gnmic "+socket)
		until(t, a, log, "it again", isThere)
	}
}

// TestFakeServer subscribes to OpenConfig's fake in each mode, and to all its faults.
func TestFakeServer(t *testing.T) {
	address, _ := startPeer(t, "holds")
	for _, mode := range []string{"stream", "poll"} {
		a, log := subscribed(t, mode, dialOf("tcp", address), nil)
		until(t, a, log, mode, isThere)
	}
	for what, c := range map[string]struct {
		mode string
		ok   func(map[string]float64) bool
	}{
		"ends": {"once", isThere},
		"nosync": {"stream", func(got map[string]float64) bool {
			return isThere(got) && got["graylink_gnmi_sync_seconds"+leaf1+"}"] == 0
		}},
		"types": {"stream", func(got map[string]float64) bool {
			_, octets := got[octetsOfLeaf1]
			return got[errorsOf("value")] >= 2 && !octets
		}},
		"flood": {"stream", func(got map[string]float64) bool {
			return got["graylink_gnmi_updates_total"+leaf1+"}"] > 20_000 && got[octetsOfLeaf1] > 0
		}},
	} {
		address, _ := startPeer(t, what)
		a, log := subscribed(t, c.mode, dialOf("tcp", address), func(c *Config) { c.Queue = 8 })
		until(t, a, log, what, c.ok)
	}
	// A stream that ends is restarted.
	address, _ = startPeer(t, "ends")
	a, log := subscribed(t, "stream", dialOf("tcp", address), nil)
	until(t, a, log, "five ends", func(got map[string]float64) bool { return got[errorsOf("stream")] >= 5 && got[octetsOfLeaf1] > 0 })
	// It registers itself at a tunnel.
	a, log = listening(t, "openconfig", nil)
	_, kill := startPeer(t, "tunnel "+a.DialOutAddress())
	until(t, a, log, "the tunnel", isThere)
	kill()
	until(t, a, log, "the tunnel's end", func(got map[string]float64) bool { _, there := got[stateOfLeaf1]; return !there && got[upOfLeaf1] == 0 })
}

// TestCuts breaks connections after any number of bytes, in the middle of a frame or of a message. The session
// restarts, and what arrived before is intact.
func TestCuts(t *testing.T) {
	sw, a, log := started(t, "openconfig", gnmitest.ExampleState(time.Now()), gnmitest.Faults{CutAfter: 1}, nil, func(c *Config) {
		c.BackoffMax = c.BackoffMin
	})
	for cut := 1; ; cut += 37 {
		sw.SetFaults(gnmitest.Faults{CutAfter: cut})
		ended := func(got map[string]float64) float64 {
			return got[errorsOf("stream")] + got[errorsOf("connect")] + got[errorsOf("stalled")]
		}
		before := ended(seriesOf(a))
		whole := false
		until(t, a, log, fmt.Sprintf("a session after %d bytes", cut), func(got map[string]float64) bool {
			v, there := got[octetsOfLeaf1]
			if there && v != 123456789 {
				t.Errorf("%d bytes: %v octets", cut, v)
			}
			whole = synced(got)
			return whole || ended(got) > before+1
		})
		if whole {
			if cut < 300 {
				t.Errorf("everything was sent in %d bytes", cut)
			}
			break
		}
		if cut > 1<<16 {
			t.Fatal("the connection is never long enough")
		}
	}
}

// TestBadMessages sends halves of messages, and a few bytes at a time.
func TestBadMessages(t *testing.T) {
	sw, a, log := started(t, "openconfig", gnmitest.ExampleState(time.Now()), gnmitest.Faults{Half: true}, nil, nil)
	got := until(t, a, log, "errors", func(got map[string]float64) bool { return got[errorsOf("stream")] >= 3 })
	for s := range got {
		if strings.HasPrefix(s, "fabric_") {
			t.Errorf("%s is there", s)
		}
	}
	sw.SetFaults(gnmitest.Faults{})
	until(t, a, log, "whole messages", synced)

	_, a, log = started(t, "openconfig", gnmitest.ExampleState(time.Now()), gnmitest.Faults{Trickle: 16}, nil, nil)
	got = until(t, a, log, "a trickle", synced)
	if got[errorsOf("stream")] != 0 || got[errorsOf("stalled")] != 0 {
		t.Errorf("a slow switch is given up: %s", log)
	}
}

// TestRefusals checks that after a refusal with each code in turn, the session is tried again, and each refusal
// is counted once.
func TestRefusals(t *testing.T) {
	sw, a, log := started(t, "openconfig", gnmitest.ExampleState(time.Now()), gnmitest.Faults{EndAfter: 1, End: status.Error(codes.Aborted, "no")}, nil, nil)
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		kind := kindOf(status.Error(c, ""))
		if !slices.Contains(kinds, kind) {
			t.Fatalf("%v is of kind %q", c, kind)
		}
		before := seriesOf(a)[errorsOf(kind)]
		sw.SetFaults(gnmitest.Faults{EndAfter: 1, End: status.Error(c, "no")})
		until(t, a, log, c.String(), func(got map[string]float64) bool { return got[errorsOf(kind)] > before })
	}
	sw.SetFaults(gnmitest.Faults{})
	until(t, a, log, "series again", func(got map[string]float64) bool { return synced(got) && got[upOfLeaf1] == 1 })
}
