package gnmireceiver

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"google.golang.org/grpc"

	"github.com/graylink/graylink/internal/gnmi"
)

// The load: switches, their ports, leaves of a port.
const (
	loadSwitches = 8
	loadPorts    = 200
	loadLeaves   = 100
)

// loadGenerator is the environment variable that makes this test's program the switches, with so many updates
// per second.
const loadGenerator = "GRAYLINK_TEST_GNMI_RATE"

// loadSwitch sends its ports' updates evenly, a message for each port, at the required rate.
type loadSwitch struct {
	gpb.UnimplementedGNMIServer
	rate float64 // messages per second
	late *atomic.Int64
}

func (s *loadSwitch) Capabilities(context.Context, *gpb.CapabilityRequest) (*gpb.CapabilityResponse, error) {
	return &gpb.CapabilityResponse{SupportedEncodings: []gpb.Encoding{gpb.Encoding_PROTO}}, nil
}

func (s *loadSwitch) Subscribe(stream gpb.GNMI_SubscribeServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	ready := make([]*grpc.PreparedMsg, loadPorts)
	for i := range ready {
		// Messages are encoded once, so that the receiver is measured.
		m := &gpb.SubscribeResponse{Response: &gpb.SubscribeResponse_Update{Update: loadMessage(i)}}
		if ready[i] = new(grpc.PreparedMsg); ready[i].Encode(stream, m) != nil {
			return fmt.Errorf("message %d", i)
		}
	}
	if err := stream.Send(&gpb.SubscribeResponse{Response: &gpb.SubscribeResponse_SyncResponse{SyncResponse: true}}); err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	sent, began := 0, time.Now()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case <-tick.C:
		}
		due := int(time.Since(began).Seconds() * s.rate)
		// A switch that cannot send in time skips samples, as real switches do, and does not send them later.
		if skip := due - sent - int(s.rate/10) - 1; skip > 0 {
			s.late.Add(int64(skip))
			sent += skip
		}
		for ; sent < due; sent++ {
			if err := stream.SendMsg(ready[sent%len(ready)]); err != nil {
				return err
			}
		}
	}
}

// loadMessage returns the message of one port: pauses by priority and queues.
func loadMessage(port int) *gpb.Notification {
	n := &gpb.Notification{Timestamp: time.Now().UnixNano()}
	elem := func(name string, key ...string) *gpb.PathElem {
		e := &gpb.PathElem{Name: name}
		if len(key) > 0 {
			e.Key = map[string]string{key[0]: key[1]}
		}
		return e
	}
	for i := range loadLeaves {
		p := []*gpb.PathElem{elem("qos"), elem("interfaces"), elem("interface", "interface-id", fmt.Sprintf("swp%d", port))}
		if i < 40 {
			p = append(p, elem("switch-priority", "priority", fmt.Sprint(i/4)), elem("state"))
			if i%4 < 2 {
				p = append(p, elem("counters"))
			}
			p = append(p, elem([]string{"in-pause-pkts", "out-pause-pkts", "in-pause-duration", "out-pause-duration"}[i%4]))
		} else {
			p = append(p, elem("output"), elem("queues"), elem("queue", "name", fmt.Sprint((i-40)/5)), elem("state"),
				elem([]string{"ecn-marked-pkts", "instant-queue-len", "max-queue-len", "transmit-pkts", "transmit-octets"}[i%5]))
		}
		n.Update = append(n.Update, &gpb.Update{Path: &gpb.Path{Elem: p}, Val: &gpb.TypedValue{Value: &gpb.TypedValue_UintVal{UintVal: uint64(port*1000 + i)}}})
	}
	return n
}

// TestLoadGenerator runs the switches of BenchmarkLoad, if the environment says so.
func TestLoadGenerator(t *testing.T) {
	rate, err := strconv.ParseFloat(os.Getenv(loadGenerator), 64)
	if err != nil {
		return
	}
	var late atomic.Int64
	var servers []*grpc.Server
	var wg sync.WaitGroup
	for range loadSwitches {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		gpb.RegisterGNMIServer(s, &loadSwitch{rate: rate / loadSwitches / loadLeaves, late: &late})
		servers = append(servers, s)
		wg.Go(func() { _ = s.Serve(l) })
		fmt.Println("listening", l.Addr())
	}
	// The end of the standard input ends the switches.
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	fmt.Println("late", late.Load())
	for _, s := range servers {
		s.Stop()
	}
	wg.Wait()
}

// loadSink counts points.
type loadSink struct {
	points, batches atomic.Int64
}

func (*loadSink) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (s *loadSink) ConsumeMetrics(_ context.Context, m pmetric.Metrics) error {
	s.points.Add(int64(m.DataPointCount()))
	s.batches.Add(1)
	return nil
}

// BenchmarkLoad lets switches in another process send so many updates per second for ten seconds; the receiver
// makes metrics of 160,000 series once an interval. One iteration covers all of it: -benchtime 1x. It reports
// the cores of the receiver and, separately, of the switches.
func BenchmarkLoad(b *testing.B) {
	for _, c := range []struct {
		rate     int
		interval time.Duration
	}{{200_000, 10 * time.Second}, {200_000, time.Second}, {400_000, time.Second}} {
		b.Run(fmt.Sprintf("%d per s, metrics every %v", c.rate, c.interval), func(b *testing.B) {
			for range b.N {
				underLoad(b, c.rate, c.interval)
			}
		})
	}
}

func cpu(b *testing.B, who int) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// resident returns the memory of this process in octets.
func resident(b *testing.B) int {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		b.Fatal(err)
	}
	return pages * os.Getpagesize()
}

func underLoad(b *testing.B, rate int, interval time.Duration) {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestLoadGenerator$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", loadGenerator, rate))
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	config := NewFactory().CreateDefaultConfig().(*Config)
	config.Preset, config.TLS.Insecure, config.Interval = "cumulus", true, interval
	for i := range loadSwitches {
		if !lines.Scan() {
			b.Fatal("the switches do not listen")
		}
		config.Targets = append(config.Targets, gnmi.Target{Address: strings.TrimPrefix(lines.Text(), "listening "), Name: fmt.Sprint("leaf", i)})
	}
	sink := &loadSink{}
	factory := NewFactory()
	r, err := factory.CreateMetrics(b.Context(), receivertest.NewNopSettings(factory.Type()), config, sink)
	if err != nil {
		b.Fatal(err)
	}
	if err := r.Start(b.Context(), componenttest.NewNopHost()); err != nil {
		b.Fatal(err)
	}
	count := func() (updates, dropped float64) {
		for _, p := range r.(*gnmiReceiver).Agent.CollectPoints(time.Now()) {
			switch p.Family.Name {
			case "graylink_gnmi_updates_total":
				updates += p.Value
			case "graylink_gnmi_dropped_updates_total":
				dropped += p.Value
			}
		}
		return updates, dropped
	}
	// Wait until all series exist.
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if n, _ := count(); n > 1.2*loadSwitches*loadPorts*loadLeaves {
			break
		}
	}
	before, droppedBefore := count()
	used, began, points := cpu(b, syscall.RUSAGE_SELF), time.Now(), sink.points.Load()
	most := 0
	for time.Since(began) < 10*time.Second {
		most = max(most, resident(b))
		time.Sleep(50 * time.Millisecond)
	}
	seconds := time.Since(began).Seconds()
	used = cpu(b, syscall.RUSAGE_SELF) - used
	after, droppedAfter := count()
	if err := r.Shutdown(context.Background()); err != nil {
		b.Fatal(err)
	}
	_ = in.Close()
	late := 0.0
	for lines.Scan() {
		if n, ok := strings.CutPrefix(lines.Text(), "late "); ok {
			late, _ = strconv.ParseFloat(n, 64)
		}
	}
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric((after-before)/seconds, "updates/s")
	b.ReportMetric(float64(sink.points.Load()-points)/seconds, "points/s")
	b.ReportMetric(used/seconds, "cores")
	b.ReportMetric((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Seconds()/time.Since(began).Seconds(), "cores-of-switches")
	b.ReportMetric(float64(most)/1e6, "MB")
	b.ReportMetric((droppedAfter-droppedBefore)/seconds, "dropped/s")
	b.ReportMetric(late*loadLeaves/time.Since(began).Seconds(), "held-back/s")
	b.ReportMetric(0, "ns/op")
}
