package probe

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

var (
	spine1, spine2 = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2")
	up1, up2       = netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.2.0.2")
	farNIC         = netip.MustParseAddr("10.3.0.1")
	noAddress      = netip.Addr{}
	second         = int64(time.Second)
	start0         = 1000 * second
)

func at(ttl int) hopPosition { return hopPosition{"h1/eth1", ttl} }

// ends sends packets to a place until the budgets refuse, and returns how many were sent.
func ends(b *budgets, ttl int, from, expected netip.Addr, now int64) (n int) {
	for {
		c, wait := b.chargePacket(at(ttl), expected, now)
		if wait > 0 || n > 1000 {
			return n
		}
		if from.IsValid() {
			b.settleAnswered(c, from, now)
		}
		n++
	}
}

func TestBudgetRule1TheLastBeforeADestinationIsOneSwitch(t *testing.T) {
	b := newBudgets(50)
	ends(b, 3, up1, noAddress, start0)
	if n := ends(b, 3, up2, up2, start0+second); n != 10 {
		t.Errorf("%d packets for the other address, want a burst of its own: they are not known to belong to one switch", n)
	}
	b.learnPath("h1/eth1", []Hop{{TTL: 3, Address: up1}}, farNIC, start0)
	b.learnPath("h1/eth1", []Hop{{TTL: 3, Address: up2}}, farNIC, start0)
	one, other := ends(b, 3, up1, up1, start0+2*second), ends(b, 3, up2, up2, start0+2*second)
	if one != 10 || other != 0 {
		t.Errorf("%d and %d packets in one burst, want 10 and none", one, other)
	}
}

func TestBudgetRules2And3PacketsAreChargedToWhoMayAnswer(t *testing.T) {
	b := newBudgets(50)
	now := start0
	if n := ends(b, 2, noAddress, noAddress, now); n != 10 {
		t.Errorf("%d packets to a place where no switch answered, want a burst of 10", n)
	}
	now += second
	c, _ := b.chargePacket(at(2), noAddress, now)
	b.settleAnswered(c, spine1, now)
	c, _ = b.chargePacket(at(2), noAddress, now)
	b.settleAnswered(c, spine2, now)
	// There are 9 tokens each. What spine1 answers leaves spine2 its own, and vice versa, and a packet that either may
	// have to answer needs both.
	if n := ends(b, 2, spine1, noAddress, now); n != 9 {
		t.Errorf("%d packets, want the 9 that spine1 had left", n)
	}
	if n := ends(b, 2, spine2, spine2, now); n != 9 {
		t.Errorf("%d packets that spine2 was expected to answer, want its 9", n)
	}
	now += second
	if c, wait := b.chargePacket(at(2), spine1, now); wait == 0 {
		b.settleAnswered(c, spine2, now)
	}
	if one, two := ends(b, 2, spine1, spine1, now), ends(b, 2, spine2, spine2, now); one != 10 || two != 9 {
		t.Errorf("%d and %d packets after spine2 answered in spine1's stead, want 10 and 9", one, two)
	}
	now += second
	for range 100 {
		c, wait := b.chargePacket(at(2), noAddress, now)
		if wait > 0 {
			t.Fatal("a packet that reached the destination cost a token")
		}
		b.refundCharge(c)
	}
	// Over a long time a switch gets its rate.
	sent := 0
	for i := range int64(1000) {
		sent += ends(b, 2, spine1, noAddress, now+i*second/100)
	}
	if sent < 500 || sent > 510 {
		t.Errorf("%d packets in 10 s, want 50 a second", sent)
	}
}

func TestBudgetRule4SilenceHalvesAndAnswersBringBack(t *testing.T) {
	b := newBudgets(48)
	now := start0
	ends(b, 2, spine1, noAddress, now)
	rate := func() float64 { return b.known[spine1].rate }
	if b.isLimited(at(2), now) {
		t.Error("limited although nothing was held back")
	}
	for range 5 {
		b.recordSilence(spine1, now)
	}
	if rate() != 24 || !b.isLimited(at(2), now) {
		t.Errorf("rate %v after silence of several packets at once, want 24", rate())
	}
	for range 20 {
		now += int64(traceTimeout)
		b.recordSilence(spine1, now)
	}
	if rate() != minPerSwitch {
		t.Errorf("rate %v after a long silence, want %v", rate(), minPerSwitch)
	}
	for i := range int64(10_000) {
		ends(b, 2, spine1, spine1, now+i*second/1000)
	}
	if r := rate(); r < 9 || r > 13 {
		t.Errorf("rate %v ten seconds later, want one packet a second more each second", r)
	}
	if b.isLimited(at(2), now+int64(limitedFor)+1) {
		t.Error("limited for ever")
	}
	for i := range int64(100_000) {
		ends(b, 2, spine1, spine1, now+10*second+i*second/1000)
	}
	if rate() != 48 {
		t.Errorf("rate %v at last, want the full 48", rate())
	}
}

func TestBudgetRule5WhoNeverAnswersAgainIsForgotten(t *testing.T) {
	b := newBudgets(50)
	ends(b, 2, spine1, noAddress, start0)
	b.learnPath("h1/eth1", []Hop{{TTL: 2, Address: spine1}, {TTL: 3, Address: up1}}, noAddress, start0)
	if got := b.switchBefore(at(2), up1); got != spine1 {
		t.Fatalf("%v is before %v, want %v", got, up1, spine1)
	}
	for i := range int64(forgetAsks * 2) {
		if !b.recordSilence(spine1, start0+i) {
			t.Fatal("forgotten at once")
		}
	}
	if b.recordSilence(spine1, start0+int64(forgetAfter)) || b.switchBefore(at(2), up1).IsValid() || len(b.known) != 0 {
		t.Error("still waited for after it was silent for long")
	}
	if b.recordSilence(spine2, start0) {
		t.Error("a switch that never answered is limited")
	}
}

func TestTwoSwitchesBeforeOneAddressAreNoneForSure(t *testing.T) {
	b := newBudgets(50)
	ends(b, 2, spine1, noAddress, start0)
	ends(b, 2, spine2, spine2, start0)
	c, _ := b.chargePacket(at(2), noAddress, start0+second)
	b.settleAnswered(c, spine2, start0+second)
	for _, s := range []netip.Addr{spine1, spine2, spine1} {
		b.learnPath("h1/eth1", []Hop{{TTL: 2, Address: s}, {TTL: 3, Address: up1}}, noAddress, start0)
	}
	if got := b.switchBefore(at(2), up1); got.IsValid() {
		t.Errorf("%v is before %v, want that no address is", got, up1)
	}
}

func TestAddressesAreBounded(t *testing.T) {
	b := newBudgets(50)
	for i := range maxKnown + 100 {
		b.settleAnswered(charge{position: at(2)}, netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), start0)
	}
	if len(b.known) != maxKnown || len(b.positions[at(2)].known) > maxKnown {
		t.Errorf("%d addresses remembered, want %d at most", len(b.known), maxKnown)
	}
}

func TestRule8TheFirstSwitchIsSharedWhileFlowsAgree(t *testing.T) {
	tr := newTracer(TraceConfig{PacketsPerSecond: 1, PacketsPerSwitch: 1, Concurrency: 1}, nil, nil)
	now := time.Unix(1000, 0)
	hop := Hop{TTL: 1, Address: spine1}
	flow := traced
	for i := range shareFlows {
		if tr.sharedFirstHop(traced.Src, now) != nil {
			t.Fatalf("shared after %d flows", i)
		}
		flow.Number = i
		tr.recordFirstHop(traced.Src, flow, hop, now)
		tr.recordFirstHop(traced.Src, flow, hop, now)
	}
	h := tr.sharedFirstHop(traced.Src, now.Add(shareFor-1))
	if h == nil || h.Address != spine1 || tr.sharedFirstHop(traced.Src, now.Add(shareFor)) != nil {
		t.Fatalf("shared %v, want for %v", h, shareFor)
	}
	later := now.Add(shareFor)
	if !tr.searchesFirstHop(traced.Src, later) || tr.searchesFirstHop(traced.Src, later.Add(shareFor-1)) || !tr.searchesFirstHop(traced.Src, later.Add(shareFor)) {
		t.Error("want one flow in a second to look for the first switch again, and the others to wait")
	}
	p := path("valid", spine1.String())
	p.TracedAt, p.Hops[0] = now, *h
	tr.storePath(p)
	own := path("valid", spine1.String())
	own.Edge.Number, own.TracedAt = 1, now
	tr.storePath(own)
	tr.recordFirstHop(traced.Src, flow, Hop{TTL: 1, Address: spine2}, now)
	states := fmt.Sprintf("%s %s", tr.paths[traced].State, tr.paths[own.Edge].State)
	if tr.sharedFirstHop(traced.Src, now) != nil || states != "stale valid" {
		t.Errorf("after another switch answered: shared %v, states %s", tr.sharedFirstHop(traced.Src, now), states)
	}
}
