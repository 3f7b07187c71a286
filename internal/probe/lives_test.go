package probe

import (
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// meeting is a reflector that only the test drives, and the packets that a peer sends to it.
type meeting struct {
	t    *testing.T
	a, b idle
	wall time.Time
}

func newMeeting(t *testing.T) *meeting {
	ca, cb := loopConfig("h1", 1, 2, "h2/eth1", 1), loopConfig("h2", 2, 1, "h1/eth1", 1)
	authenticate(ca, key(1))
	authenticate(cb, key(1))
	return &meeting{t: t, a: newIdle(t, ca, HostDeps()), b: newIdle(t, cb, HostDeps()), wall: time.Now()}
}

// probe returns a probe that h1 sends in a life, at a time of its clock. A life of 0 stands for an older version of the
// program.
func (e *meeting) probe(life uint64, seq uint32, at time.Time) []byte {
	e.t.Helper()
	pr := e.a.peers[loopback(2)]
	buf := make([]byte, unix.MaxDatagram)
	if life != 0 {
		e.a.wire.lives.own.now.Store(life)
		return buf[:e.a.putRequest(buf, seq, at.UnixNano(), e.a.ssid, seq+1, 0, false, pr.keys.sendKey())]
	}
	p := stamp.SenderPacket{Seq: seq, Timestamp: stamp.TimestampPTP(at.UnixNano()), ErrorEstimate: e.a.estimate, SSID: e.a.ssid}
	p.PutAuth(buf, pr.keys.sendKey())
	b := stamp.AppendDirectMeasurement(buf[:stamp.AuthBaseLen], seq+1)
	return stamp.AppendHMAC(b, stamp.AuthBaseLen, pr.keys.sendKey())
}

// arrive lets h2 receive a packet of h1, 10 ms after the last one.
func (e *meeting) arrive(packet []byte) {
	e.t.Helper()
	e.wall = e.wall.Add(10 * time.Millisecond)
	g := &unix.Datagram{Data: packet, From: netip.AddrPortFrom(loopback(1), e.a.node.Stamp.SourcePort), Stamp: e.wall.UnixNano()}
	if err := e.b.takeProbe(g, e.wall); err != nil {
		e.t.Fatal(err)
	}
	if err := e.b.out.flushBatch(); err != nil {
		e.t.Fatal(err)
	}
}

func (e *meeting) received() uint64 { return e.b.peers[loopback(1)].answers[0].received }

// TestReplayOverARestart sends one packet of an earlier life a hundred times between the probes of the present life. It
// resets nothing and is never answered.
func TestReplayOverARestart(t *testing.T) {
	e := newMeeting(t)
	var old []byte
	for seq := range uint32(20) {
		old = e.probe(5, seq, e.wall)
		e.arrive(old)
	}
	for seq := range uint32(100) {
		e.arrive(e.probe(6, seq, e.wall))
		e.arrive(old)
	}
	if e.b.reflector.restarts != 1 {
		t.Errorf("%d restarts are noticed, want the true one", e.b.reflector.restarts)
	}
	if got := e.b.filter.dropped[dropReplay]; got != 100 {
		t.Errorf("%d replayed packets are dropped, want 100", got)
	}
	if got := e.received(); got != 120 {
		t.Errorf("%d probes received, want 120", got)
	}
}

// TestLivesRule1AndEviction checks that an earlier life is refused also if its session is forgotten, and by a reflector
// that restarted and has lives from the coordinator.
func TestLivesRule1AndEviction(t *testing.T) {
	var old []byte
	t.Run("forgotten", func(t *testing.T) {
		e := newMeeting(t)
		old = e.probe(5, 3, e.wall)
		e.arrive(e.probe(6, 0, e.wall))
		clear(e.b.reflector.sessions)
		e.arrive(old)
		if e.received() != 1 || len(e.b.reflector.sessions) != 0 {
			t.Errorf("%d probes received and %d sessions, want the first and none", e.received(), len(e.b.reflector.sessions))
		}
	})
	t.Run("started anew", func(t *testing.T) {
		e := newMeeting(t)
		e.b.e.KnowLives(map[string]uint64{"h1": 6})
		e.arrive(old)
		if e.received() != 0 || len(e.b.reflector.sessions) != 0 {
			t.Errorf("%d probes received and %d sessions, want none", e.received(), len(e.b.reflector.sessions))
		}
		e.b.e.KnowLives(map[string]uint64{"h1": 4})
		e.arrive(e.probe(5, 4, e.wall))
		if e.received() != 0 {
			t.Error("a lower life than is known was taken over")
		}
	})
}

// TestLivesRule2And3 checks that a clock that is set back over a restart loses no probe. Overtaken packets of a life in
// which the clock is set ahead do not count as a restart, and neither does a life that changes while the process runs.
func TestLivesRule2And3(t *testing.T) {
	e := newMeeting(t)
	for seq := range uint32(200) {
		e.arrive(e.probe(5, seq, e.wall))
	}
	back := -24 * time.Hour
	for seq := range uint32(10) {
		e.arrive(e.probe(6, seq, e.wall.Add(back)))
	}
	if e.b.reflector.restarts != 1 || e.received() != 210 || e.b.filter.dropped[dropReplay] != 0 {
		t.Errorf("clock set back over a restart: %d restarts, %d of 210 probes, %d replayed", e.b.reflector.restarts, e.received(), e.b.filter.dropped[dropReplay])
	}
	late := e.probe(6, 10, e.wall.Add(24*time.Hour))
	e.arrive(e.probe(6, 11, e.wall))
	e.arrive(late)
	e.arrive(late)
	if e.b.reflector.restarts != 1 || e.received() != 212 || e.b.filter.dropped[dropReplay] != 1 {
		t.Errorf("overtaken by a clock set back: %d restarts, %d of 212 probes, %d replayed", e.b.reflector.restarts, e.received(), e.b.filter.dropped[dropReplay])
	}
	before := e.probe(6, 12, e.wall)
	e.arrive(e.probe(900, 13, e.wall)) // the coordinator gave it a number
	e.arrive(before)
	e.arrive(e.probe(900, 14, e.wall))
	if e.b.reflector.restarts != 1 || e.received() != 215 {
		t.Errorf("a new number in one process: %d restarts, %d of 215 probes", e.b.reflector.restarts, e.received())
	}
}

// TestLivesAreOfOnePacketAndOneNIC checks that lives from another packet of the same pair of nodes, which has the same
// key, are ignored. The life of the other end is the higher one here: if it counted as h1's, it would shut h1 out.
func TestLivesAreOfOnePacketAndOneNIC(t *testing.T) {
	e := newMeeting(t)
	e.arrive(e.probe(5, 0, e.wall))
	k := e.b.peers[loopback(1)].keys.sendKey()
	// This is a probe of h2 with the number that h1's next one has, and h1's base packet.
	own := make([]byte, unix.MaxDatagram)
	e.b.wire.lives.own.now.Store(900)
	own = own[:e.b.putRequest(own, 1, e.wall.UnixNano(), e.b.ssid, 1, 0, false, k)]
	joined := append(append([]byte{}, e.probe(5, 1, e.wall)[:stamp.AuthBaseLen]...), own[stamp.AuthBaseLen:]...)
	e.arrive(joined)
	e.arrive(own) // sent back to where it came from
	if life := e.b.peers[loopback(1)].life.known.Load(); life != 5 {
		t.Errorf("h1's life is %d, want 5", life)
	}
	e.arrive(e.probe(5, 1, e.wall))
	if e.received() != 2 || e.b.filter.dropped[dropReplay] != 2 {
		t.Errorf("%d of 2 probes received, %d replayed, want 2", e.received(), e.b.filter.dropped[dropReplay])
	}
}

// TestLivesRule4And5 checks that an older version is answered and counted. A node that had a life must continue to have
// one for a while, and what is refused is not loss.
func TestLivesRule4And5(t *testing.T) {
	e := newMeeting(t)
	unbound := func() int { return e.b.copyStats(e.b.monoTime()).Unbound }
	e.arrive(e.probe(0, 0, e.wall))
	if e.received() != 1 || unbound() != 1 {
		t.Errorf("an older version: %d probes received, %d unbound peers, want 1 and 1", e.received(), unbound())
	}
	e.arrive(e.probe(5, 1, e.wall))
	if e.received() != 2 || unbound() != 0 {
		t.Errorf("after an upgrade: %d probes received, %d unbound peers, want 2 and 0", e.received(), unbound())
	}
	e.arrive(e.probe(0, 2, e.wall))
	if e.received() != 2 || e.b.filter.dropped[dropReplay] != 1 || e.b.filter.unproven != 0 {
		t.Errorf("without a life: %d probes received, %d replayed, %d unproven", e.received(), e.b.filter.dropped[dropReplay], e.b.filter.unproven)
	}
	e.wall = e.wall.Add(2 * silentAfter)
	e.arrive(e.probe(0, 3, e.wall))
	if e.received() != 2 || e.b.filter.unproven != 1 {
		t.Errorf("without a life, after a silence: %d probes received, %d unproven", e.received(), e.b.filter.unproven)
	}
	if got := e.b.copyStats(e.b.monoTime()).Unread["no_life"]; got != 1 {
		t.Errorf("%d packets are unread, want the one that may have been the peer's own", got)
	}
	e.wall = e.wall.Add(unboundAfter)
	e.arrive(e.probe(0, 4, e.wall))
	if e.received() != 3 || unbound() != 1 {
		t.Errorf("after a downgrade: %d probes received, %d unbound peers, want 3 and 1", e.received(), unbound())
	}
}

// reply returns h2's reply, in a life, to a probe of h1.
func (e *meeting) reply(life uint64, probe []byte, seq uint32) []byte {
	e.t.Helper()
	k := e.b.peers[loopback(1)].keys.sendKey()
	var p stamp.SenderPacket
	if err := p.ParseAuth(probe, k); err != nil {
		e.t.Fatal(err)
	}
	r := stamp.ReflectorPacket{Seq: seq, Timestamp: p.Timestamp, Receive: p.Timestamp, ErrorEstimate: p.ErrorEstimate}
	r.EchoProbe(&p)
	out := make([]byte, len(probe))
	r.PutAuth(out, k)
	v := stamp.ReflectorValues{RxCount: seq + 1, TxCount: seq + 1, Life: life, Who: nameHash("h2/eth1")}
	v.Reflect(out, probe, stamp.AuthBaseLen, k)
	return out
}

// TestLivesRule6 checks that replies of an earlier life, of either end, do not count as answers and do not change the
// account.
func TestLivesRule6(t *testing.T) {
	e := newMeeting(t)
	ed := e.a.sender.edges[0]
	take := func(reply []byte) {
		e.a.takeReply(ed.sock, &unix.Datagram{Data: reply, From: ed.target}, time.Now())
	}
	own := &e.a.wire.lives.own
	probe := func(life uint64) []byte {
		seq, _ := ed.nextProbe(e.a.monoTime(), e.wall.UnixNano())
		return e.probe(life, seq, e.wall)
	}
	const sender, reflector = 9, 20
	old := make([][]byte, 10)
	for i := range old {
		old[i] = e.probe(sender-1, uint32(i), e.wall)
	}
	*own = ownLife{}
	own.raiseTo(sender)
	take(e.reply(reflector, probe(sender), 0))
	if ed.Acked != 1 {
		t.Fatalf("%d answers, want 1", ed.Acked)
	}
	for i := uint32(1); i < 5; i++ {
		p := probe(sender)
		take(e.reply(reflector, old[i], i)) // to the sender's life before
		take(e.reply(reflector-1, p, 0))    // of the reflector's life before
		take(e.reply(reflector, p, i))      // the true one
	}
	if ed.Acked != 5 || ed.Restarts != 0 || ed.Duplicate != 0 || e.a.filter.dropped[dropReplay] != 8 {
		t.Errorf("%d answers, %d restarts, %d duplicates, %d replayed; want 5, 0, 0, 8", ed.Acked, ed.Restarts, ed.Duplicate, e.a.filter.dropped[dropReplay])
	}
	// This is a probe that left before the coordinator gave this process another number.
	p := probe(sender)
	own.raiseTo(sender + 1)
	take(e.reply(reflector, p, 5))
	if ed.Acked != 6 {
		t.Error("a reply to a probe of this process was not taken")
	}
}
