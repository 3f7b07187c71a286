package probe

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
)

// setClock is a clock that the test sets.
type setClock struct {
	mu  sync.Mutex // the tracer reads the time as well
	now time.Time  // changed by set alone
}

func (c *setClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *setClock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

func (*setClock) NodeTime(t int64) int64 { return t }

// simulate returns an engine that the test drives, with its clock.
func simulate(t *testing.T, c *Config) (*Simulated, *setClock) {
	t.Helper()
	return simulateWith(t, c, func(*Deps) {})
}

// simulateWith returns the same, with dependencies that a function changes.
func simulateWith(t *testing.T, c *Config, change func(*Deps)) (*Simulated, *setClock) {
	t.Helper()
	clock := &setClock{now: time.Unix(1_700_000_000, 0)}
	path := func(_ fabric.Flow, tagged bool) ([]Hop, bool) {
		if tagged {
			return nil, false // the first switch drops it
		}
		return []Hop{{TTL: 1, Address: loopback(3)}}, true
	}
	deps := SimulatedDeps(clock, path)
	change(&deps)
	e, err := New(c, deps, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return DriveSimulated(e), clock
}

// TestSimulatedEnginesMeasureEachOther checks that packets without sockets have the accounts of those with them: delays
// by the kernel's stamps, loss by direction, marks, probes that were skipped, and a path.
func TestSimulatedEnginesMeasureEachOther(t *testing.T) {
	a, clock := simulate(t, loopConfig("h1", 1, 2, "h2/eth1", 1))
	b, _ := simulate(t, loopConfig("h2", 2, 1, "h1/eth1", 1))
	flows, err := a.ListFlows()
	if err != nil || len(flows) != 1 {
		t.Fatalf("%d flows, %v; want one", len(flows), err)
	}
	f := flows[0]
	if f.Phase < 0 || f.Phase >= f.Cadence || f.SrcPort != 49152 || f.DstPort != 8862 || !f.SetReflector(b) {
		t.Fatalf("flow %+v", f)
	}
	base, now := clock.now, int64(0)
	const probes, lost, delay = 200, 10, int64(50_000)
	for i := range probes {
		now = int64(f.Phase) + int64(i)*int64(f.Cadence)
		clock.set(base.Add(time.Duration(now)))
		if f.DuePackets() != 1 {
			t.Fatal("a probe has a twin without clock sync")
		}
		var p SimPacket
		f.SendProbe(&p, now, now+1000)
		if i%(probes/lost) == 1 {
			continue
		}
		if !b.ReflectProbe(&p, now+1000+delay, now+2*delay, now+2*delay+1000, i == 2, &csig.Tag{}) {
			t.Fatalf("probe %d is not answered", i)
		}
		a.AcceptReply(&p, now+4*delay, now+5*delay, false, csig.Tag{})
		a.AdvanceTo(now)
	}
	a.AdvanceTo(now + int64(settleEvery)) // a gap that lasts is loss
	f.SkipProbes(3)
	s := a.Snapshot().NICs[0]
	e := s.Edges[0]
	if e.Sent != probes || e.Acked != probes-lost || e.Lost != [2]uint64{lost} || e.ECN != [2]uint64{1} || s.Skipped != 3 {
		t.Errorf("%+v, %d skipped", e.FlowCounters, s.Skipped)
	}
	if p50, ok := e.OWD[0].Kernel.Quantile(0.5); !ok || p50 < float64(delay)*0.9 || p50 > float64(delay)*1.1 {
		t.Errorf("median %v ns, want %d", p50, delay)
	}
	if s.TxKind != "kernel" || s.KindWhy != "the NIC is simulated" || len(s.Sockets) != 0 {
		t.Errorf("stamped by %q because %q, sockets %v", s.TxKind, s.KindWhy, s.Sockets)
	}
	if age := time.Since(s.LastTurn); age < 0 || age > time.Minute {
		t.Errorf("the last turn was %v ago, want that it is on time by the host's clock", age)
	}
	paths, err := a.TraceFlows(t.Context(), []fabric.Flow{f.Edge})
	if err != nil || hops(paths[0]) != loopback(3).String() || paths[0].State != fabric.PathValid {
		t.Errorf("paths %+v, %v", paths, err)
	}
	if got := b.Snapshot().NICs[0].Received[0].Received; got != probes-lost {
		t.Errorf("%d probes received, want %d", got, probes-lost)
	}
}

// TestSimulatedEngineIsSuspended checks that a program without a processor is a stall, and that the configuration of a
// simulated engine cannot change.
func TestSimulatedEngineIsSuspended(t *testing.T) {
	a, clock := simulate(t, loopConfig("h1", 1, 2, "h2/eth1", 1))
	const second = int64(time.Second)
	a.ResumeAt(second)
	a.SuspendAt(2 * second)
	clock.set(clock.now.Add(3 * time.Second))
	s := a.Snapshot().NICs[0]
	if want := time.Second - stallAfter; s.Stalled != want {
		t.Errorf("%v stalled during the suspension, want %v", s.Stalled, want)
	}
	if age := time.Since(s.LastTurn); age < time.Second || age > time.Minute {
		t.Errorf("the last turn was %v ago, want the second of the suspension", age)
	}
	a.ResumeAt(4 * second)
	if got, want := a.Snapshot().NICs[0].Stalled, 2*time.Second-stallAfter; got != want {
		t.Errorf("%v stalled after the suspension, want %v", got, want)
	}
	if err := a.Apply(loopConfig("h1", 1, 2, "h2/eth1", 1)); err == nil || !strings.Contains(err.Error(), "simulated engine") {
		t.Errorf("a new configuration: %v", err)
	}
}
