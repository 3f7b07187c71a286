package probe

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/stamp"
)

// forge makes packets with the right SSID, a sequence number in the window, and a wrong key.
type forge struct {
	a    *stamp.Authenticator
	ssid uint16
}

// probe returns a forged probe, which is stored in b.
func (f forge) probe(b []byte, seq uint32) []byte {
	p := stamp.SenderPacket{Seq: seq, Timestamp: stamp.TimestampPTP(time.Now().UnixNano()), ErrorEstimate: stamp.NewErrorEstimate(1000, false, true), SSID: f.ssid}
	p.PutAuth(b[:stamp.AuthBaseLen], f.a)
	return b[:stamp.AuthBaseLen]
}

// TestForgedPacketsCostNoProbe sends many more forged packets from a peer's address than the peer's own allowance
// permits. The peer's probes are answered all the same, as the counts of its engine show.
func TestForgedPacketsCostNoProbe(t *testing.T) {
	ca, cb := loopConfig("h1", 1, 2, "h2/eth1", 1), loopConfig("h2", 2, 1, "h1/eth1", 1)
	authenticate(ca, key(1), key(2))
	authenticate(cb, key(1), key(2))
	ca.NICs[0].SSID, cb.Peers[0].SSID = 77, 77
	a, b := start(t, ca), start(t, cb)
	edge := func() EdgeStats { return a.Snapshot().NICs[0].Edges[0] }
	until(t, 20*time.Second, "answers", func() bool { return edge().Acked >= 20 })
	// The next port also belongs to the mesh, so that only the HMAC is wrong.
	conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: loopback(1).AsSlice(), Port: int(ca.Stamp.SourcePort) + 1}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback(2), cb.Stamp.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f := forge{stamp.NewAuthenticator([]byte("an attacker's guess")), 77}
	buf := make([]byte, stamp.AuthBaseLen)
	before, began, total := edge(), time.Now(), 0
	for ; total < 10*peerForgeries; time.Sleep(time.Millisecond) {
		for range 10 {
			if _, err := conn.Write(f.probe(buf, uint32(total))); err != nil {
				t.Fatal(err)
			}
			total++
		}
	}
	after := edge()
	sent, acked := after.Sent-before.Sent, after.Acked-before.Acked
	s := b.Snapshot().NICs[0]
	t.Logf("%d forged packets in %v; %d probes, %d answered; dropped %v", total, time.Since(began), sent, acked, s.Dropped)
	if acked+2 < sent*99/100 {
		t.Errorf("%d of %d probes answered during the flood", acked, sent)
	}
	if s.Dropped["rate_limited"] != 0 || s.Unread["unverified"] != 0 {
		t.Errorf("dropped %v, unread %v, want every packet verified", s.Dropped, s.Unread)
	}
	if len(s.Forgers) != 2 || s.Forgers[1].From != loopback(1).String() || s.Forgers[0].Packets+s.Forgers[1].Packets < uint64(total)*99/100 {
		t.Errorf("%d forged packets are counted as %v", total, s.Forgers)
	}
}

// TestBudgetIsForExpectedPackets checks that if the budget is short, packets that a session expects are verified and
// others are not. If there is no budget left, none is verified, and each is counted as unread.
func TestBudgetIsForExpectedPackets(t *testing.T) {
	c := loopConfig("h2", 2, 1, "h1/eth1", 1)
	authenticate(c, key(1))
	n := newIdle(t, c, HostDeps()).nic
	pr := n.peers[loopback(1)]
	fail := func(*stamp.Authenticator) error { return stamp.ErrHMAC }
	pass := func(*stamp.Authenticator) error { return nil }
	mono := n.wire.monoTime()
	for _, step := range []struct {
		what           string
		own, budget    float64
		expected, want bool
	}{
		{"the peer's own allowance is enough", peerForgeries, 0, false, true},
		{"half of the budget is left for what is not expected", 0, forgedBurst, false, true},
		{"less than half of it is not", 0, forgedBurst/2 - 10, false, false},
		{"less than half of it is left for what is expected", 0, forgedBurst/2 - 10, true, true},
		{"nothing is left", 0, 0, true, false},
	} {
		pr.forged.tokens, pr.forged.refilledAt = step.own, mono
		n.filter.budget.tokens, n.filter.budget.refilledAt = step.budget, mono
		unverified := n.filter.dropped[dropUnverified]
		got := n.filter.verifyPacket(pr, step.expected, mono, pass) != nil
		if got != step.want || (n.filter.dropped[dropUnverified] == unverified) != step.want {
			t.Errorf("%s: verified %v, want %v; counted as unverified: %d", step.what, got, step.want, n.filter.dropped[dropUnverified]-unverified)
		}
	}
	pr.forged.tokens, n.filter.budget.tokens = 1, 5
	for range 3 {
		n.filter.verifyPacket(pr, true, mono, fail)
	}
	if pr.forged.tokens != 0 || n.filter.budget.tokens != 3 {
		t.Errorf("three forged packets leave %v of the peer's allowance and %v of the budget, want 0 and 3", pr.forged.tokens, n.filter.budget.tokens)
	}
}

// TestForgersAreBounded checks that the number of series is limited, however many peers' addresses are forged, and that
// every packet is in one of them.
func TestForgersAreBounded(t *testing.T) {
	n := newPacketFilter(0)
	for i := range 3 * maxForgers {
		pr := &peer{cfg: PeerConfig{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}}
		for range 2 * forgerFrom {
			n.countForged(pr)
		}
	}
	sum := uint64(0)
	for _, f := range n.forgers {
		sum += f.Packets
	}
	if len(n.forgers) != 1+maxForgers || sum != 3*maxForgers*2*forgerFrom {
		t.Errorf("%d series with %d packets, want %d with %d", len(n.forgers), sum, 1+maxForgers, 3*maxForgers*2*forgerFrom)
	}
	if f := n.forgers[1]; f.From != "10.0.0.0" || f.Packets != forgerFrom+1 {
		t.Errorf("the first forger is %+v", f)
	}
}
