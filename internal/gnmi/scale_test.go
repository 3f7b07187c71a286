package gnmi

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/gnmi/gnmitest"
)

var (
	scaleTargets = flag.Int("gnmi.targets", 1000, "how many switches TestThousandTargets has")
	scaleRounds  = flag.Int("gnmi.rounds", 2, "how often half of them go away and come back")
)

// resident returns the memory of this process in bytes.
func resident(t *testing.T) float64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages float64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * float64(os.Getpagesize())
}

// heap returns the memory in use after a collection, in bytes.
func heap() float64 {
	runtime.GC()
	runtime.GC() // memory held by pools is released by the second collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// field is a set of switches in memory, some of which are away.
type field struct {
	mu        sync.Mutex
	listeners map[string]*pipes
	switches  map[string]*gnmitest.Switch
}

func (f *field) dial(ctx context.Context, address string) (net.Conn, error) {
	f.mu.Lock()
	l := f.listeners[address]
	f.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("%s is away", address)
	}
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func (f *field) come(address string, state gnmitest.State) {
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	sw := gnmitest.ServeListener(l, "openconfig", state, gnmitest.Faults{}, nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners[address], f.switches[address] = l, sw
}

func (f *field) leave(address string) {
	f.mu.Lock()
	sw := f.switches[address]
	delete(f.listeners, address)
	delete(f.switches, address)
	f.mu.Unlock()
	if sw != nil {
		sw.Stop()
	}
}

// targetStatus is what the agent reports of one target.
type targetStatus struct {
	up, age, octets, state float64
	aged, sampled, stated  bool
}

func statuses(a *Agent, now time.Time) map[string]*targetStatus {
	out := map[string]*targetStatus{}
	for _, p := range a.CollectPoints(now) {
		s := out[p.Switch]
		if s == nil {
			s = &targetStatus{}
			out[p.Switch] = s
		}
		switch p.Family.Name {
		case "graylink_gnmi_target_up":
			s.up = p.Value
		case "graylink_gnmi_sample_age_seconds":
			s.age, s.aged = p.Value, true
		case "fabric_switch_port_receive_bytes_total":
			s.octets, s.sampled = p.Value, true
		case "fabric_switch_port_oper_up":
			s.state, s.stated = p.Value, true
		}
	}
	return out
}

// TestThousandTargets lets half of the switches leave and return, again and again. The state and age of every
// one of them must be right all the time, and neither memory nor goroutines may grow. With -gnmi.rounds it runs
// longer.
func TestThousandTargets(t *testing.T) {
	n := *scaleTargets
	if raceDetector {
		n = min(n, 100) // the race detector supports 8,128 goroutines, and each target has 13
	}
	f := &field{listeners: map[string]*pipes{}, switches: map[string]*gnmitest.Switch{}}
	c := DefaultConfig()
	c.Interval, c.BackoffMin, c.BackoffMax, c.TLS.Insecure = time.Hour, 20*time.Millisecond, 200*time.Millisecond, true
	state := gnmitest.ExampleState(time.Now())
	address := func(i int) string { return fmt.Sprintf("sw%d:1", i) }
	name := func(i int) string { return strings.TrimSuffix(address(i), ":1") }
	for i := range n {
		c.Targets = append(c.Targets, Target{Address: address(i)})
		f.come(address(i), state)
	}
	defer func() {
		for i := range n {
			f.leave(address(i))
		}
	}()
	before := heap()
	began := time.Now()
	a, err := startWithDialer(c, slog.New(slog.DiscardHandler), f.dial)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	// wait returns when all targets are in the expected state. It looks again after as long as a look takes, so that
	// it leaves the machine to the targets. Its bound is for hangs.
	wait := func(what string, ok func(i int, s *targetStatus, now time.Time) bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Minute); ; {
			now := time.Now()
			all, wrong := statuses(a, now), 0
			first := ""
			for i := range n {
				if s := all[name(i)]; s == nil || !ok(i, s, now) {
					wrong++
					if first == "" {
						first = fmt.Sprintf("%s: %+v", name(i), s)
					}
				}
			}
			if wrong == 0 {
				return
			}
			if now.After(end) {
				t.Fatalf("%s: %d targets are not as they should be; %s", what, wrong, first)
			}
			time.Sleep(max(10*time.Millisecond, time.Since(now)))
		}
	}
	steady := func(s *targetStatus) bool {
		return s.up == 1 && s.sampled && s.octets == float64(state.Octets) && s.state == 1
	}
	wait("the start", func(_ int, s *targetStatus, _ time.Time) bool { return steady(s) })
	t.Logf("%d targets are up after %v; heap of client and servers %.1f MB", n, time.Since(began).Round(time.Millisecond), (heap()-before)/1e6)
	var heaps, goroutines []float64
	for round := range *scaleRounds {
		away := time.Now()
		var wg sync.WaitGroup
		for i := 0; i < n; i += 2 {
			wg.Go(func() { f.leave(address(i)) })
		}
		wg.Wait()
		gone := time.Now()
		state.Octets++
		updated := time.Now()
		for i := 1; i < n; i += 2 {
			f.switches[address(i)].UpdateState(state)
		}
		wait(fmt.Sprintf("round %d, away", round), func(i int, s *targetStatus, now time.Time) bool {
			if i%2 == 1 {
				return steady(s) && s.age <= now.Sub(updated).Seconds()
			}
			// Its last samples are kept for three intervals; its state is unknown.
			return s.up == 0 && !s.stated && s.aged && s.age >= now.Sub(gone).Seconds() && s.sampled
		})
		down := time.Since(away)
		back := time.Now()
		for i := 0; i < n; i += 2 {
			f.come(address(i), state)
		}
		wait(fmt.Sprintf("round %d, back", round), func(i int, s *targetStatus, now time.Time) bool {
			return steady(s) && (i%2 == 1 || s.age <= now.Sub(back).Seconds())
		})
		heaps, goroutines = append(heaps, heap()), append(goroutines, float64(runtime.NumGoroutine()))
		t.Logf("round %d: away after %v, back after %v; heap %.1f MB, RSS %.1f MB, %d goroutines", round, down.Round(time.Millisecond),
			time.Since(back).Round(time.Millisecond), heaps[round]/1e6, resident(t)/1e6, runtime.NumGoroutine())
	}
	if last := len(heaps) - 1; heaps[last] > 1.1*heaps[0] || goroutines[last] > 1.05*goroutines[0] {
		t.Errorf("it grows: heap %v, goroutines %v", heaps, goroutines)
	}
	for p, s := range statuses(a, time.Now().Add(4*c.Interval)) {
		if s.sampled || !s.stated {
			t.Errorf("%s: four intervals later: %+v", p, s)
		}
	}
}
