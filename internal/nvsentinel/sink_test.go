package nvsentinel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nvsentinel/datamodels"
)

// connector plays NVSentinel's.
type connector struct {
	datamodels.UnimplementedPlatformConnectorServer
	mu     sync.Mutex
	answer func(*datamodels.HealthEvents) error
	got    []string
	batch  []int
	taken  chan int
	server *grpc.Server
}

func (c *connector) HealthEventOccurredV1(_ context.Context, in *datamodels.HealthEvents) (*emptypb.Empty, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answer != nil {
		if err := c.answer(in); err != nil {
			return nil, err
		}
	}
	c.batch = append(c.batch, len(in.GetEvents()))
	for _, e := range in.GetEvents() {
		c.got = append(c.got, e.GetMessage())
	}
	c.taken <- len(in.GetEvents())
	return &emptypb.Empty{}, nil
}

func serve(t *testing.T, socket string, answer func(*datamodels.HealthEvents) error) *connector {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	c := &connector{answer: answer, taken: make(chan int, 1000), server: grpc.NewServer()}
	datamodels.RegisterPlatformConnectorServer(c.server, c)
	done := make(chan struct{})
	go func() { defer close(done); c.server.Serve(l) }()
	t.Cleanup(func() { c.server.Stop(); <-done })
	return c
}

// wait waits until n events were taken, and says which all were.
func (c *connector) wait(t *testing.T, n int) []string {
	t.Helper()
	for n > 0 {
		select {
		case taken := <-c.taken:
			n -= taken
		case <-time.After(20 * time.Second):
			t.Fatalf("%d events did not come", n)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

func newSink(t *testing.T, cfg Config) *Sink {
	t.Helper()
	cfg.BackoffMin, cfg.BackoffMax = time.Millisecond, 4*time.Millisecond
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// start runs a sink, and returns what ends it.
func start(t *testing.T, s *Sink) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(cancel)
	return func() {
		t.Helper()
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("does not end")
		}
	}
}

func message(i int) string { return fmt.Sprintf("event %d", i) }

func messages(from, to int) (out []string) {
	for i := from; i <= to; i++ {
		out = append(out, message(i))
	}
	return out
}

func offer(s *Sink, from, to int) {
	for i := from; i <= to; i++ {
		s.Offer(nichealth.Event{Message: message(i)})
	}
}

func TestRule2InOrder(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "pc.sock")
	c := serve(t, socket, nil)
	s := newSink(t, Config{Socket: socket})
	offer(s, 1, 250)
	stop := start(t, s)
	c.wait(t, 250)
	offer(s, 251, 252)
	if got := c.wait(t, 2); !slices.Equal(got, messages(1, 252)) {
		t.Errorf("got %q", got)
	}
	stop()
	if c.batch[0] != 100 || c.batch[1] != 100 || c.batch[2] != 50 {
		t.Errorf("requests of %v events, want at most 100", c.batch)
	}
	if st := s.Stats(); st != (Stats{Sent: 252}) {
		t.Errorf("%+v", st)
	}
}

func TestRule1OldestIsDropped(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "pc.sock")
	c := serve(t, socket, nil)
	s := newSink(t, Config{Socket: socket, Queue: 3})
	for i := 1; i <= 5; i++ {
		if fits := s.Offer(nichealth.Event{Message: message(i)}); fits != (i <= 3) {
			t.Errorf("event %d fits: %v", i, fits)
		}
	}
	if st := s.Stats(); st.Dropped != 2 || st.Queued != 3 {
		t.Errorf("%+v", st)
	}
	stop := start(t, s)
	if got := c.wait(t, 3); !slices.Equal(got, messages(3, 5)) {
		t.Errorf("got %q", got)
	}
	stop()
}

func TestRule1DroppedWhileSending(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "pc.sock")
	var s *Sink
	once := false
	c := serve(t, socket, func(*datamodels.HealthEvents) error {
		if !once {
			once = true
			offer(s, 4, 5) // 1 and 2 are on the way, and are dropped from the queue for these
		}
		return nil
	})
	s = newSink(t, Config{Socket: socket, Queue: 3})
	offer(s, 1, 3)
	stop := start(t, s)
	if got := c.wait(t, 5); !slices.Equal(got, messages(1, 5)) {
		t.Errorf("got %q", got)
	}
	stop()
	if st := s.Stats(); st.Sent+st.Dropped != 5 || st.Queued != 0 {
		t.Errorf("%+v, want 5 in all", st)
	}
}

func TestRule3TriedAgain(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "pc.sock")
	s := newSink(t, Config{Socket: socket})
	failed := make(chan time.Duration, 1000)
	s.sleep = func(ctx context.Context, d time.Duration) error {
		failed <- d
		return sleepContext(ctx, d)
	}
	offer(s, 1, 3)
	stop := start(t, s)
	var longest time.Duration
	for range 5 {
		longest = max(longest, <-failed)
	}
	if longest > 4*time.Millisecond {
		t.Errorf("waited for %v, more than backoff_max", longest)
	}
	// The connector comes up late, is busy, and then answers.
	busy := 3
	c := serve(t, socket, func(*datamodels.HealthEvents) error {
		if busy > 0 {
			busy--
			return status.Error(codes.ResourceExhausted, "busy")
		}
		return nil
	})
	if got := c.wait(t, 3); !slices.Equal(got, messages(1, 3)) {
		t.Errorf("got %q", got)
	}
	stop()
	if st := s.Stats(); st.Sent != 3 || st.Dropped != 0 || st.Failures < 8 {
		t.Errorf("%+v", st)
	}
}

func TestRule3EverMoreSlowly(t *testing.T) {
	s, err := New(Config{Socket: filepath.Join(t.TempDir(), "none.sock"), BackoffMin: time.Second, BackoffMax: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var waits []time.Duration
	ended := errors.New("ended")
	s.sleep = func(_ context.Context, d time.Duration) error {
		if waits = append(waits, d); len(waits) == 5 {
			return ended
		}
		return nil
	}
	offer(s, 1, 1)
	if err := s.Run(context.Background()); !errors.Is(err, ended) {
		t.Errorf("ended with %v", err)
	}
	for i, most := range []time.Duration{1, 2, 4, 4, 4} {
		if most *= time.Second; waits[i] < most/2 || waits[i] > most {
			t.Errorf("wait %d is %v, want %v to %v", i, waits[i], most/2, most)
		}
	}
}

func TestRule4Invalid(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "pc.sock")
	c := serve(t, socket, func(in *datamodels.HealthEvents) error {
		for _, e := range in.GetEvents() {
			if e.GetMessage() == message(3) || e.GetMessage() == message(5) {
				return status.Error(codes.InvalidArgument, e.GetMessage())
			}
		}
		return nil
	})
	s := newSink(t, Config{Socket: socket})
	offer(s, 1, 8)
	stop := start(t, s)
	if got := c.wait(t, 6); !slices.Equal(got, []string{message(1), message(2), message(4), message(6), message(7), message(8)}) {
		t.Errorf("got %q", got)
	}
	stop()
	if st := s.Stats(); st != (Stats{Sent: 6, Rejected: 2}) {
		t.Errorf("%+v", st)
	}
}

func TestRule5LastAttempt(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "pc.sock")
	c := serve(t, socket, nil)
	s := newSink(t, Config{Socket: socket})
	offer(s, 1, 150)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if got := c.wait(t, 150); !slices.Equal(got, messages(1, 150)) {
		t.Errorf("got %d events", len(got))
	}
	s = newSink(t, Config{Socket: socket + ".none"})
	offer(s, 1, 150)
	s.Run(ctx)
	if st := s.Stats(); st.Dropped != 150 || st.Queued != 0 {
		t.Errorf("%+v", st)
	}
}

func TestConvert(t *testing.T) {
	at := time.Date(2026, 11, 22, 14, 0, 0, 5, time.UTC)
	got := ConvertEvent(nichealth.Event{
		Agent: nichealth.Agent, ComponentClass: nichealth.ComponentNIC, CheckName: "KernelLogCheck", IsFatal: true, IsHealthy: true,
		Message: "bad \xff octet", RecommendedAction: nichealth.ActionReplaceVM, ErrorCode: []string{"pcie_fatal"}, NodeName: "node-1",
		EntitiesImpacted:   []nichealth.Entity{nichealth.NICEntity("mlx5_0"), nichealth.PortEntity("mlx5_0", 1)},
		GeneratedTimestamp: at,
	}, true)
	b, err := proto.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	// The numbers on the wire, which both sides have to agree on; written by hand from NVSentinel's definition.
	str := func(b []byte, n protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
	}
	num := func(b []byte, n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
	}
	want := num(nil, 1, 1)
	want = str(want, 2, "graylink-node")
	want = str(want, 3, "NIC")
	want = str(want, 4, "KernelLogCheck")
	want = num(want, 5, 1)
	want = num(want, 6, 1)
	want = str(want, 7, "bad \uFFFD octet")
	want = num(want, 8, 25)
	want = str(want, 9, "pcie_fatal")
	want = str(want, 10, string(str(str(nil, 1, "NIC"), 2, "mlx5_0")))
	want = str(want, 10, string(str(str(nil, 1, "NICPort"), 2, "mlx5_0_port1")))
	want = str(want, 12, string(num(num(nil, 1, uint64(at.Unix())), 2, 5)))
	want = str(want, 13, "node-1")
	want = num(want, 16, 2)
	if !bytes.Equal(b, want) {
		t.Errorf("got  %x\nwant %x", b, want)
	}
	b, _ = proto.Marshal(&datamodels.HealthEvents{Version: 1, Events: []*datamodels.HealthEvent{{NodeName: "n"}}})
	if want := str(num(nil, 1, 1), 2, string(str(nil, 13, "n"))); !bytes.Equal(b, want) {
		t.Errorf("got  %x\nwant %x", b, want)
	}
	if name := datamodels.PlatformConnector_HealthEventOccurredV1_FullMethodName; name != "/datamodels.PlatformConnector/HealthEventOccurredV1" {
		t.Errorf("method is %s", name)
	}
	for a, want := range map[nichealth.Action]int32{nichealth.ActionNone: 0, nichealth.ActionContactSupport: 5, nichealth.ActionRestartVM: 15, nichealth.ActionReplaceVM: 25, "X": 99} {
		if got := ConvertEvent(nichealth.Event{RecommendedAction: a}, false); int32(got.RecommendedAction) != want || got.ProcessingStrategy != 0 {
			t.Errorf("%s is %v", a, got)
		}
	}
}

func TestConfigBad(t *testing.T) {
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "socket: must be given"},
		{Config{Socket: "run/x.sock"}, `socket: "run/x.sock": must be an absolute path`},
		{Config{Socket: "/x", Queue: -1}, "queue: -1: must not be negative"},
		{Config{Socket: "/x", Timeout: -1}, "timeout: -1ns: must not be negative"},
		{Config{Socket: "/x", BackoffMin: -1}, "backoff_min: -1ns: must not be negative"},
		{Config{Socket: "/x", BackoffMin: 2, BackoffMax: 1}, "backoff_max: 1ns: must not be less than backoff_min, 2ns"},
	} {
		if err := tc.cfg.Validate(); err == nil || err.Error() != tc.want {
			t.Errorf("got %v, want %s", err, tc.want)
		}
		if _, err := New(tc.cfg); err == nil {
			t.Errorf("New takes %+v", tc.cfg)
		}
	}
}
