package probe

import (
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// TestHopProbesAreCountedAsLongAsTheyAreConfigured: on loopback the far end answers itself.
func TestHopProbesAreCountedAsLongAsTheyAreConfigured(t *testing.T) {
	a, b := loopConfig("h1", 1, 2, "h2/eth1", 1), loopConfig("h2", 2, 1, "h1/eth1", 1)
	far := b.NICs[0].Address
	start(t, b)
	e := start(t, a)
	flow := a.Edges[0].ID()
	counted := func() []fabric.HopCount {
		_, paths := e.TracedPaths()
		for _, p := range paths {
			if p.Edge == flow {
				return p.HopProbes
			}
		}
		return nil
	}
	until(t, 5*time.Second, "the flow is traced", func() bool { _, paths := e.TracedPaths(); return len(paths) > 0 })
	if c := counted(); c != nil {
		t.Errorf("%+v before any is configured", c)
	}
	with := loopConfig("h1", 1, 2, "h2/eth1", 1)
	with.Edges[0].Hops = []int{1, 3}
	if err := e.Apply(with); err != nil {
		t.Fatal(err)
	}
	until(t, 10*time.Second, "both hop limits are counted twice", func() bool {
		c := counted()
		return len(c) == 2 && c[0].TTL == 1 && c[1].TTL == 3 && c[0].Sent >= 2 && c[1].Sent >= 2
	})
	for _, c := range counted() {
		if c.Sent > 4 || c.Answered[far] != c.Sent || len(c.Answered) != 1 {
			t.Errorf("%+v, want at most one a second, all answered by %v", c, far)
		}
	}
	without := loopConfig("h1", 1, 2, "h2/eth1", 1)
	if err := e.Apply(without); err != nil {
		t.Fatal(err)
	}
	if c := counted(); c != nil {
		t.Errorf("%+v after the last was configured", c)
	}
}

// TestHopProbesAreChargedToTheSwitch: they are sent in any case, and traces wait for the tokens that they took.
func TestHopProbesAreChargedToTheSwitch(t *testing.T) {
	b := newBudgets(50)
	now := start0
	c, _ := b.chargePacket(at(2), noAddress, now)
	b.settleAnswered(c, spine1, now)
	now += 10 * second
	for range 30 {
		b.settleAnswered(b.chargeAlways(at(2), spine1, now), spine1, now)
	}
	if _, wait := b.chargePacket(at(2), spine1, now); wait < 400*time.Millisecond || wait > 450*time.Millisecond {
		t.Errorf("a trace waits %v for a switch that had 30 packets of 50 a second, want 21/50 s", wait)
	}
	if c := b.chargeAlways(at(3), netip.Addr{}, now); len(c.from) != 0 {
		t.Error("a packet for no known switch is charged to one")
	}
}

// TestBudgetRule6ALimitedSwitchIsReserved: nothing else is sent to it for two seconds after each probe.
func TestBudgetRule6ALimitedSwitchIsReserved(t *testing.T) {
	b := newBudgets(50)
	now := start0
	c, _ := b.chargePacket(at(2), noAddress, now)
	b.settleAnswered(c, spine1, now)
	b.recordSilence(spine1, now)
	waits := func(after time.Duration) time.Duration {
		_, wait := b.chargePacket(at(2), spine1, now+int64(after))
		return wait
	}
	now += 30 * second
	b.chargeAlways(at(2), spine1, now)
	if w := waits(time.Second); w != time.Second {
		t.Errorf("a trace waits %v a second after a probe, want another second", w)
	}
	if w := waits(2*time.Second + 1); w != 0 {
		t.Errorf("a trace waits %v after two seconds", w)
	}
	if _, wait := b.chargePacket(at(2), noAddress, now+1); wait < time.Second {
		t.Error("a packet that may end at the switch does not wait")
	}
	now += 30 * second
	b.chargeAlways(at(2), spine1, now)
	if w := waits(time.Second); w != 0 {
		t.Errorf("a trace waits %v for a switch that has not limited its answers for a minute", w)
	}
}
