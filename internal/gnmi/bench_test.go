package gnmi

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/gnmic/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/gnmi/gnmitest"
	"github.com/graylink/graylink/internal/gnmi/preset"
)

// generator is a switch that sends the same messages again and again, as fast as they are read.
type generator struct {
	gpb.UnimplementedGNMIServer
	messages []*gpb.SubscribeResponse
	start    chan int // the number of messages to send
}

func (g *generator) Capabilities(_ context.Context, _ *gpb.CapabilityRequest) (*gpb.CapabilityResponse, error) {
	return &gpb.CapabilityResponse{SupportedEncodings: []gpb.Encoding{gpb.Encoding_PROTO, gpb.Encoding_JSON_IETF}}, nil
}

func (g *generator) Subscribe(stream gpb.GNMI_SubscribeServer) error {
	if err := stream.Send(&gpb.SubscribeResponse{Response: &gpb.SubscribeResponse_SyncResponse{SyncResponse: true}}); err != nil {
		return err
	}
	// Messages are encoded once, so that the receiver and the transport are measured.
	ready := make([]*grpc.PreparedMsg, len(g.messages))
	for i, m := range g.messages {
		ready[i] = &grpc.PreparedMsg{}
		if err := ready[i].Encode(stream, m); err != nil {
			return err
		}
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case n := <-g.start:
			for i := range n {
				if err := stream.SendMsg(ready[i%len(ready)]); err != nil {
					return err
				}
			}
		}
	}
}

// perMessage is the number of updates in a notification of the benchmark.
const perMessage = 100

// notifications returns the notifications of 200 ports with 100 leaves each: 20,000 series.
func notifications() []*gpb.Notification {
	var out []*gpb.Notification
	for port := range 200 {
		n := &gpb.Notification{Timestamp: time.Now().UnixNano()}
		for i := range perMessage {
			key := map[string]string{"interface-id": fmt.Sprintf("swp%d", port)}
			p := &gpb.Path{Elem: []*gpb.PathElem{{Name: "qos"}, {Name: "interfaces"}, {Name: "interface", Key: key}}}
			add := func(e ...*gpb.PathElem) { p.Elem = append(p.Elem, e...) }
			if i < 40 {
				leaf := []string{"in-pause-pkts", "out-pause-pkts", "in-pause-duration", "out-pause-duration"}[i%4]
				add(&gpb.PathElem{Name: "switch-priority", Key: map[string]string{"priority": fmt.Sprint(i / 4)}}, &gpb.PathElem{Name: "state"})
				if i%4 < 2 {
					add(&gpb.PathElem{Name: "counters"})
				}
				add(&gpb.PathElem{Name: leaf})
			} else {
				leaf := []string{"ecn-marked-pkts", "instant-queue-len", "max-queue-len", "transmit-pkts", "transmit-octets"}[i%5]
				add(&gpb.PathElem{Name: "output"}, &gpb.PathElem{Name: "queues"}, &gpb.PathElem{Name: "queue", Key: map[string]string{"name": fmt.Sprint((i - 40) / 5)}},
					&gpb.PathElem{Name: "state"}, &gpb.PathElem{Name: leaf})
			}
			n.Update = append(n.Update, &gpb.Update{Path: p, Val: &gpb.TypedValue{Value: &gpb.TypedValue_UintVal{UintVal: uint64(port*1000 + i)}}})
		}
		out = append(out, n)
	}
	return out
}

// BenchmarkEndToEnd measures updates from a generator in the same process through gRPC over the loopback into
// the series of four switches.
func BenchmarkEndToEnd(b *testing.B) {
	const targets = 4
	c := DefaultConfig()
	c.Preset, c.TLS.Insecure, c.QueueWait = "cumulus", true, time.Minute
	var gens []*generator
	for i := range targets {
		g, address := serving(b)
		gens = append(gens, g)
		c.Targets = append(c.Targets, Target{Address: address, Name: fmt.Sprint("leaf", i)})
	}
	a, err := Start(c, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = a.Close() })
	updates := func() (n uint64) {
		for _, s := range a.sessions {
			s.store.mu.Lock()
			n += s.store.decoder.Counts.Samples
			s.store.mu.Unlock()
		}
		return n
	}
	for _, s := range a.sessions {
		for !s.subscribed.Load() {
			time.Sleep(time.Millisecond)
		}
	}
	messages := b.N/(targets*perMessage) + 1
	b.ReportAllocs()
	b.ResetTimer()
	for _, g := range gens {
		g.start <- messages
	}
	for want := uint64(messages * perMessage * targets); updates() < want; {
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64(messages*perMessage*targets)/b.Elapsed().Seconds(), "updates/s")
}

// BenchmarkDecode measures the part from bytes to series.
func BenchmarkDecode(b *testing.B) {
	tree, err := preset.CompileRules(preset.ByName("cumulus").Rules)
	if err != nil {
		b.Fatal(err)
	}
	s := newStore(tree, true, 1<<20)
	var all [][]byte
	for _, n := range notifications() {
		x, err := proto.Marshal(n)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, x)
	}
	now := time.Now()
	b.Run("bytes", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N; i += perMessage {
			var n gpb.Notification
			if err := proto.Unmarshal(all[i/perMessage%len(all)], &n); err != nil {
				b.Fatal(err)
			}
			s.applyNotification(message{body: &n}, now)
		}
	})
	b.Run("message", func(b *testing.B) {
		list := notifications()
		b.ReportAllocs()
		for i := 0; i < b.N; i += perMessage {
			s.applyNotification(message{body: list[i/perMessage%len(list)]}, now)
		}
	})
	b.Run("points", func(b *testing.B) {
		b.ReportAllocs()
		var out []Point
		for i := 0; i < b.N; i += len(out) {
			if out, _ = s.appendPoints(out[:0], "leaf1", now, time.Hour); len(out) == 0 {
				b.Fatal("no points")
			}
		}
	})
}

// BenchmarkSONiC measures a JSON object of 64 ports with 100 counters as texts.
func BenchmarkSONiC(b *testing.B) {
	tree, err := preset.CompileRules(preset.ByName("sonic").Rules)
	if err != nil {
		b.Fatal(err)
	}
	s := newStore(tree, true, 1<<20)
	text := []byte("{")
	for p := range 64 {
		text = fmt.Appendf(text, `"Ethernet%d":{`, p*8)
		for q := range 8 {
			text = fmt.Appendf(text, `"SAI_PORT_STAT_PFC_%d_RX_PKTS":"%d","SAI_PORT_STAT_PFC_%d_TX_PKTS":"%d",`, q, p*1000+q, q, p)
		}
		for q := range 84 {
			text = fmt.Appendf(text, `"SAI_PORT_STAT_OTHER_%d":"%d",`, q, q)
		}
		text = append(text[:len(text)-1], "},"...)
	}
	text = append(text[:len(text)-1], '}')
	n := &gpb.Notification{Timestamp: time.Now().UnixNano(), Update: []*gpb.Update{{Path: &gpb.Path{Elem: []*gpb.PathElem{{Name: "COUNTERS"}, {Name: "Ethernet*"}}},
		Val: &gpb.TypedValue{Value: &gpb.TypedValue_JsonIetfVal{JsonIetfVal: text}}}}}
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.applyNotification(message{body: n}, time.Now())
	}
	if c := s.decoder.Counts; c.Samples != c.Unknown*16/84 || c.BadJSON > 0 {
		b.Fatalf("%+v", c)
	}
	b.ReportMetric(6400*float64(b.N)/b.Elapsed().Seconds(), "counters/s")
}

// serving returns a generator that is served on the loopback.
func serving(b *testing.B) (g *generator, address string) {
	b.Helper()
	g = &generator{start: make(chan int)}
	for _, n := range notifications() {
		g.messages = append(g.messages, &gpb.SubscribeResponse{Response: &gpb.SubscribeResponse_Update{Update: n}})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := grpc.NewServer()
	gpb.RegisterGNMIServer(s, g)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	b.Cleanup(func() { s.Stop(); <-served })
	return g, l.Addr().String()
}

// BenchmarkDialOut measures updates of one switch that connects by itself, by a tunnel of the library's client
// and by Publish. The switch, and the tunnel's client, are in the same process.
func BenchmarkDialOut(b *testing.B) {
	for _, by := range []string{"tunnel", "publish"} {
		b.Run(by, func(b *testing.B) {
			c := DefaultConfig()
			c.Preset, c.TLS.Insecure, c.QueueWait = "cumulus", true, time.Minute
			c.DialOut.Listen, c.DialOut.Targets = "127.0.0.1:0", []Caller{{ID: "leaf1"}}
			a, err := Start(c, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = a.Close() })
			conn, err := grpc.NewClient(a.DialOutAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = conn.Close() })
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan struct{})
			b.Cleanup(func() { stop(); <-done })
			g, address := serving(b)
			start := g.start
			if by == "tunnel" {
				sw := &gnmitest.Switch{Address: address}
				go func() { defer close(done); _ = sw.ServeTunnel(ctx, conn, "leaf1") }()
			} else {
				start = make(chan int)
				go func() {
					defer close(done)
					stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/gnmi.sonic.gNMIDialOut/Publish")
					if err != nil {
						return
					}
					for n := 1; ; {
						for i := range n {
							if stream.SendMsg(g.messages[i%len(g.messages)]) != nil {
								return
							}
						}
						select {
						case n = <-start:
						case <-ctx.Done():
							return
						}
					}
				}()
			}
			s := a.snapshotSessions()[0]
			samples := func() uint64 {
				s.store.mu.Lock()
				defer s.store.mu.Unlock()
				return s.store.decoder.Counts.Samples
			}
			for !s.subscribed.Load() && s.publishing.Load() == 0 || by == "publish" && samples() < perMessage {
				time.Sleep(time.Millisecond)
			}
			messages := b.N/perMessage + 1
			from := samples()
			b.ReportAllocs()
			b.ResetTimer()
			start <- messages
			for samples()-from < uint64(messages*perMessage) {
				time.Sleep(time.Millisecond)
			}
			b.ReportMetric(float64(messages*perMessage)/b.Elapsed().Seconds(), "updates/s")
		})
	}
}

// BenchmarkReceive measures messages from a generator in the same process, without decoding them: by a stream of the
// target's client, as sessions read it, and by the target's own subscription, which passes each message through a
// channel.
func BenchmarkReceive(b *testing.B) {
	for _, size := range []int{1, perMessage} {
		for _, by := range []string{"stream", "channel"} {
			b.Run(fmt.Sprintf("%s of %d", by, size), func(b *testing.B) {
				g, address := serving(b)
				for _, m := range g.messages {
					m.GetUpdate().Update = m.GetUpdate().Update[:size]
				}
				ctx, stop := context.WithCancel(context.Background())
				receive := receiver(ctx, b, by, address)
				b.Cleanup(func() {
					stop()
					for receive() == nil {
					}
				})
				if err := receive(); err != nil {
					b.Fatal(err)
				}
				messages := b.N/size + 1
				b.ReportAllocs()
				b.ResetTimer()
				g.start <- messages
				for range messages {
					if err := receive(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(messages*size)/b.Elapsed().Seconds(), "updates/s")
			})
		}
	}
}

// receiver subscribes to a switch, and returns what receives its next message.
func receiver(ctx context.Context, b *testing.B, by, address string) func() error {
	b.Helper()
	t, err := api.NewTarget(api.Address(address), api.Insecure(true))
	if err != nil {
		b.Fatal(err)
	}
	if err := t.CreateGNMIClient(ctx, grpc.WithNoProxy(), grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<20)); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = t.Close() })
	request, err := api.NewSubscribeRequest(api.EncodingPROTO(), api.SubscriptionListModeSTREAM(), api.Subscription(api.Path("/qos")))
	if err != nil {
		b.Fatal(err)
	}
	if by == "channel" {
		messages, errs := t.SubscribeChan(ctx, request, by)
		return func() error {
			select {
			case m := <-messages:
				if m == nil {
					return io.EOF
				}
				return nil
			case e := <-errs:
				if e == nil {
					return io.EOF
				}
				return e.Err
			}
		}
	}
	stream, err := t.Client.Subscribe(ctx)
	if err != nil {
		b.Fatal(err)
	}
	if err := stream.Send(request); err != nil {
		b.Fatal(err)
	}
	return func() error {
		_, err := stream.Recv()
		return err
	}
}
