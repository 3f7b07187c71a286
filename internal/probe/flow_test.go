package probe

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/stamp"
)

const ms = int64(time.Millisecond)

// wire is a sender's flow and a reflector's session with a scripted network between them. The test decides the fate of
// each packet.
type wire struct {
	t    *testing.T
	now  int64 // of everybody: monotonic and wall clock are the same
	off  int64 // of the reflector's clock
	flow flow
	sess session
}

type sentProbe struct {
	seq, tx uint32
	ts      int64
}

func newWire(t *testing.T) *wire {
	return &wire{t: t, now: 1e15, flow: newFlow(10*time.Millisecond, time.Second)}
}

// send sends a probe every 10 ms; the kernel stamps it 1 us after user space.
func (w *wire) send() sentProbe {
	w.now += 10 * ms
	p := sentProbe{ts: w.now}
	p.seq, p.tx = w.flow.nextProbe(w.now, w.now)
	w.flow.txStamp(p.seq, kernelStamps, w.now+1000)
	return p
}

// reflect lets a probe arrive 5 us after its transmit stamp; the reply leaves
// 20 us later.
func (w *wire) reflect(p sentProbe) *reply {
	w.sess.acceptProbe(p.seq, p.ts, false)
	seq := w.sess.seq
	w.sess.seq++
	w.sess.tx++
	t2 := w.now + w.off + 6000
	r := &reply{seq: seq, senderSeq: p.seq, t2: t2, t3: t2 + 20_000, t4: stampedTime{userStamps: t2 + 30_000, kernelStamps: t2 + 29_000}}
	r.answers.Has = stamp.NewTypeSet(stamp.TypeTimestampInfo, stamp.TypeClassOfService, stamp.TypeDirectMeasurement, stamp.TypeFollowUp)
	r.answers.TimestampInfo.MethodIn = stamp.MethodSoftware
	r.answers.DirectMeasurement = stamp.DirectMeasurement{SenderTx: p.tx, ReflectorRx: w.sess.rx, ReflectorTx: w.sess.tx}
	r.answers.FollowUp = w.sess.follows.nextFollowUp()
	w.sess.follows.addFollowUp(stamp.FollowUp{Seq: seq, Timestamp: stamp.TimestampPTP(t2 + 21_000), Method: stamp.MethodSoftware})
	return r
}

func (w *wire) take(r *reply) outcome { return w.flow.acceptReply(w.now, r) }

// exchange sends n probes that are all answered.
func (w *wire) exchange(n int) {
	w.t.Helper()
	for range n {
		if got := w.take(w.reflect(w.send())); got != outcomeAcked {
			w.t.Fatalf("outcome %v, want acked", got)
		}
	}
}

func (w *wire) settle() { w.flow.settleLoss(); w.flow.settleLoss() }

type counts struct {
	sent, acked, late, duplicate, reordered, lostForward, lostReverse, unresolved uint64
}

func (w *wire) want(want counts) {
	w.t.Helper()
	w.settle()
	f := &w.flow
	got := counts{f.Sent, f.Acked, f.Late, f.Duplicate, f.Reordered, f.Lost[forward], f.Lost[reverse], f.unresolvedProbes()}
	if got != want {
		w.t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestRule1LateIsNotLost(t *testing.T) {
	w := newWire(t)
	w.exchange(5)
	var waiting []*reply
	for range 10 {
		waiting = append(waiting, w.reflect(w.send()))
	}
	w.now += 1100 * ms
	for _, r := range waiting {
		if got := w.take(r); got != outcomeLate {
			t.Fatalf("outcome %v, want late", got)
		}
	}
	w.exchange(5)
	w.want(counts{sent: 20, acked: 10, late: 10})
	if n := w.flow.owd[forward][kernelStamps].Count; n != 20 {
		t.Errorf("%d forward delays, want 20: a late one is a delay too", n)
	}
}

func TestRule1LateBeyondTheRing(t *testing.T) {
	w := newWire(t)
	w.exchange(5)
	old := w.reflect(w.send())
	for range len(w.flow.sent) + 10 {
		w.send()
	}
	if got := w.take(old); got != outcomeLate {
		t.Errorf("outcome %v, want late", got)
	}
	w.want(counts{sent: uint64(16 + len(w.flow.sent)), acked: 5, late: 1, unresolved: uint64(len(w.flow.sent) + 10)})
}

func TestRule2LossHasItsDirection(t *testing.T) {
	for _, tc := range []struct {
		name             string
		forward, reverse bool
		want             counts
	}{
		{"forward", true, false, counts{sent: 30, acked: 20, lostForward: 10}},
		{"reverse", false, true, counts{sent: 30, acked: 20, lostReverse: 10}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWire(t)
			for i := range 30 {
				p := w.send()
				drop := i%3 == 1
				if drop && tc.forward {
					continue
				}
				r := w.reflect(p)
				if drop && tc.reverse {
					continue
				}
				w.take(r)
			}
			w.want(tc.want)
		})
	}
}

func TestRule2BothWaysAndABlackhole(t *testing.T) {
	w := newWire(t)
	w.exchange(10)
	for range 100 {
		w.send() // lost forward
	}
	for range 50 {
		w.reflect(w.send()) // lost in reverse
	}
	w.want(counts{sent: 160, acked: 10, unresolved: 150})
	w.exchange(1)
	w.want(counts{sent: 161, acked: 11, lostForward: 100, lostReverse: 50})
}

func TestRule2ReorderingIsNotLoss(t *testing.T) {
	w := newWire(t)
	w.exchange(5)
	a, b := w.send(), w.send()
	rb := w.reflect(b) // overtakes a on its way out
	w.take(rb)
	w.flow.settleLoss() // in between: a gap of one, but not for long
	w.take(w.reflect(a))
	c, d := w.send(), w.send()
	rc, rd := w.reflect(c), w.reflect(d)
	w.take(rd) // overtakes c on its way back
	w.take(rc)
	w.exchange(5)
	w.want(counts{sent: 14, acked: 14, reordered: 2})
}

func TestRule3SilenceStaysUnresolved(t *testing.T) {
	w := newWire(t)
	for range 50 {
		w.send()
	}
	w.want(counts{sent: 50, unresolved: 50})
	w.exchange(10)
	w.want(counts{sent: 60, acked: 10, unresolved: 50})
}

func TestRule4Duplicates(t *testing.T) {
	w := newWire(t)
	w.exchange(3)
	p := w.send()
	r := w.reflect(p)
	w.take(r)
	again := *r
	if got := w.take(&again); got != outcomeDuplicate {
		t.Errorf("a copy of a reply: outcome %v, want duplicate", got)
	}
	if got := w.take(w.reflect(p)); got != outcomeDuplicate {
		t.Errorf("the reply to a copy of a probe: outcome %v, want duplicate", got)
	}
	w.exchange(3)
	w.want(counts{sent: 7, acked: 7, duplicate: 2})
	if w.sess.rx != 7 {
		t.Errorf("R_RxC %d, want 7: a copy is no second probe", w.sess.rx)
	}
	if n := w.flow.owd[forward][kernelStamps].Count; n != 7 {
		t.Errorf("%d forward delays, want 7", n)
	}
}

// A copy must not count in place of a reply that was lost.
func TestRule4ACopyHidesNoLoss(t *testing.T) {
	w := newWire(t)
	w.exchange(3)
	r := w.reflect(w.send())
	w.take(r)
	again := *r
	w.take(&again)
	w.reflect(w.send()) // lost in reverse
	w.exchange(3)
	w.want(counts{sent: 8, acked: 7, duplicate: 1, lostReverse: 1})
}

// The account begins with the first reply that arrives. A reply that it overtook is not counted.
func TestRule2TheFirstRepliesReordered(t *testing.T) {
	w := newWire(t)
	a := w.reflect(w.send())
	b := w.reflect(w.send())
	w.take(b)
	w.take(a)
	w.reflect(w.send()) // lost in reverse
	w.exchange(3)
	w.want(counts{sent: 6, acked: 5, reordered: 1, lostReverse: 1})
}

// A follow-up for the number of a reply from before the reflector's restart is not the stamp of the reply that has the
// number now.
func TestRule7AnOldFollowUpIsNotUsed(t *testing.T) {
	w := newWire(t)
	r := w.reflect(w.send())
	w.take(r)
	next := w.reflect(w.send())
	next.answers.FollowUp = stamp.FollowUp{Seq: r.seq, Timestamp: stamp.TimestampPTP(r.t3 - int64(time.Minute)), Method: stamp.MethodSoftware}
	w.take(next)
	if n := w.flow.owd[reverse][kernelStamps].Count; n != 0 {
		t.Errorf("%d reverse delays from a stamp of a minute ago", n)
	}
}

func TestRule4UnsolicitedReplies(t *testing.T) {
	w := newWire(t)
	w.exchange(3)
	r := w.reflect(sentProbe{seq: w.flow.seq + 5, tx: 9, ts: w.now})
	if got := w.take(r); got != outcomeUnsolicited {
		t.Errorf("outcome %v, want unsolicited", got)
	}
}

func TestRule5ReflectorRestart(t *testing.T) {
	w := newWire(t)
	w.exchange(100)
	for range 20 {
		w.send() // no reflector yet
	}
	w.sess = session{}
	w.exchange(30)
	w.want(counts{sent: 150, acked: 130, unresolved: 20})
	if w.flow.Restarts != 1 {
		t.Errorf("%d restarts noticed, want 1", w.flow.Restarts)
	}
	w.send()
	w.exchange(1)
	w.want(counts{sent: 152, acked: 131, lostForward: 1, unresolved: 20})
}

// What was lost while one end did not know the other's LID is unknown. Losses before and after count, and an overtaken
// reply from before changes nothing.
func TestRule5NewLIDIsNoLoss(t *testing.T) {
	w := newWire(t)
	w.exchange(5)
	for range 3 { // real losses, which the next reply shows
		w.send()
	}
	w.reflect(w.send())
	overtaken := w.reflect(w.send())
	w.exchange(1)
	for range 4 {
		w.send() // probes to the former LID
	}
	for range 2 {
		w.reflect(w.send()) // replies to the former LID
	}
	w.flow.losses.interrupt(w.flow.seq)
	w.take(overtaken) // it was read after the change was noticed
	for range 3 {
		w.send()
	}
	w.reflect(w.send())
	w.exchange(5)
	before := counts{sent: 5 + 3 + 2 + 1 + 6 + 4 + 5, acked: 12, reordered: 1, lostForward: 3, lostReverse: 1, unresolved: 6 + 4}
	w.want(before)
	w.send()
	w.reflect(w.send())
	w.exchange(2)
	before.sent, before.acked, before.lostForward, before.lostReverse = before.sent+4, before.acked+2, 4, 2
	w.want(before)
	// A reflector that restarts meanwhile is recognised.
	w.flow.losses.interrupt(w.flow.seq)
	w.sess = session{}
	w.exchange(3)
	if w.flow.Restarts != 1 {
		t.Errorf("%d restarts, want 1", w.flow.Restarts)
	}
	before.sent, before.acked = before.sent+3, before.acked+3
	w.want(before)
}

func TestRule5SenderRestart(t *testing.T) {
	w := newWire(t)
	w.exchange(100)
	w.flow = newFlow(10*time.Millisecond, time.Second)
	w.exchange(50)
	w.send()
	w.exchange(1)
	w.want(counts{sent: 52, acked: 51, lostForward: 1})
	if w.sess.restarts != 1 || w.sess.rx != 51 || w.sess.tx != 51 {
		t.Errorf("session: %d restarts, R_RxC %d, R_TxC %d; want 1, 51, 51", w.sess.restarts, w.sess.rx, w.sess.tx)
	}
}

func TestRule5AReflectorsClockThatStepsBackHidesNoRestartAndMakesNone(t *testing.T) {
	w := newWire(t)
	w.exchange(100)
	overtaken := w.reflect(w.send())
	w.off = -500 * ms
	w.exchange(1)
	if w.take(overtaken) != outcomeAcked || w.flow.Restarts != 0 {
		t.Errorf("a reply from before the step: %d restarts noticed, want 0", w.flow.Restarts)
	}
	w.send() // lost
	w.exchange(1)
	w.want(counts{sent: 104, acked: 103, lostForward: 1, reordered: 1})
	w.off, w.sess = -3600_000*ms, session{}
	w.exchange(30)
	w.want(counts{sent: 134, acked: 133, lostForward: 1, reordered: 1})
	if w.flow.Restarts != 1 {
		t.Errorf("%d restarts noticed, want 1", w.flow.Restarts)
	}
}

// The order of two packets changes in both directions, so that the reply to the later probe, which was received first,
// arrives last.
func TestRule5ReorderingBothWaysIsNoRestart(t *testing.T) {
	w := newWire(t)
	w.exchange(100)
	early, late := w.send(), w.send()
	first := w.reflect(late)
	w.now += 1000
	second := w.reflect(early)
	w.take(second)
	w.take(first)
	w.want(counts{sent: 102, acked: 102})
	if w.flow.Restarts != 0 {
		t.Errorf("%d restarts noticed, want 0", w.flow.Restarts)
	}
}

func TestRule6WrapAround(t *testing.T) {
	w := newWire(t)
	ring := uint32(len(w.flow.replies))
	start := -ring - 20
	w.flow.seq, w.flow.tx = start, start
	w.sess.seq, w.sess.rx, w.sess.tx = start, start, start
	w.exchange(int(ring)) // every slot holds a number from before the wrap
	for i := range 60 {
		p := w.send()
		switch i % 10 {
		case 3: // lost forward
		case 7:
			w.reflect(p) // lost in reverse
		default:
			w.take(w.reflect(p))
		}
	}
	w.exchange(int(ring))
	n := uint64(ring)
	w.want(counts{sent: 2*n + 60, acked: 2*n + 48, lostForward: 6, lostReverse: 6})
	// The reply before a lost one has no follow-up, nor has the last.
	if got, want := w.flow.owd[reverse][kernelStamps].Count, 2*n+48-6-1; got != want {
		t.Errorf("%d reverse delays, want %d", got, want)
	}
}

func TestRule7KernelAndUserStampsAreNotMixed(t *testing.T) {
	w := newWire(t)
	w.exchange(10)
	// T1 comes after the reply.
	w.now += 10 * ms
	seq, tx := w.flow.nextProbe(w.now, w.now)
	w.take(w.reflect(sentProbe{seq, tx, w.now}))
	before := w.flow.owd[forward][kernelStamps].Count
	w.flow.txStamp(seq, kernelStamps, w.now+1000)
	if w.flow.owd[forward][kernelStamps].Count != before+1 {
		t.Error("a late transmit stamp did not complete its sample")
	}
	// T1 never comes; T2 and T4 are missing at other packets.
	w.now += 10 * ms
	seq, tx = w.flow.nextProbe(w.now, w.now)
	w.take(w.reflect(sentProbe{seq, tx, w.now}))
	r := w.reflect(w.send())
	r.answers.TimestampInfo.MethodIn = stamp.MethodControl
	w.take(r)
	r = w.reflect(w.send())
	r.t4[kernelStamps] = 0
	w.take(r)
	w.exchange(len(w.flow.sent)) // until every slot has been used again
	for d, want := range [2]uint64{2, 1} {
		if got := w.flow.owd[d][userStamps].Count; got != want {
			t.Errorf("direction %d: %d user-space samples, want %d", d, got, want)
		}
	}
	if want := [4]uint64{1, 1, 0, 1}; w.flow.Missing != want {
		t.Errorf("missing %v, want %v", w.flow.Missing, want)
	}
	for d, want := range [2]float64{5000, 8000} {
		for _, q := range []float64{0.01, 1} {
			if got, ok := w.flow.owd[d][kernelStamps].Quantile(q); !ok || got < want*0.95 || got > want*1.05 {
				t.Errorf("direction %d: q%v %v ns, want %v", d, q, got, want)
			}
		}
	}
}

// Both NICs stamp in hardware. A sample is of the kind that both ends have, and a packet that lacks one NIC's stamp
// falls back completely.
func TestRule7HardwareStamps(t *testing.T) {
	w := newWire(t)
	probe := func(t1, t2, t4, t3 stampKind) {
		w.now += 10 * ms
		seq, tx := w.flow.nextProbe(w.now, w.now)
		w.flow.txStamp(seq, kernelStamps, w.now+1000)
		if t1 == hardwareStamps {
			w.flow.txStamp(seq, hardwareStamps, w.now+1500)
		}
		r := w.reflect(sentProbe{seq, tx, w.now})
		r.answers.TimestampInfo.MethodIn = t2.stampMethod()
		r.t2 = w.now + 6000
		if t4 == hardwareStamps {
			r.t4[hardwareStamps] = r.t3 + 8000
		}
		w.take(r)
		// The next reply has the stamp of this one.
		w.sess.follows.kept[(w.sess.follows.first+w.sess.follows.pending-1)%followsKept] = stamp.FollowUp{Seq: r.seq, Timestamp: stamp.TimestampPTP(r.t3 + 1000), Method: t3.stampMethod()}
	}
	for range 5 {
		probe(hardwareStamps, hardwareStamps, hardwareStamps, hardwareStamps)
	}
	probe(hardwareStamps, kernelStamps, hardwareStamps, kernelStamps) // the far end missed two
	probe(kernelStamps, hardwareStamps, kernelStamps, hardwareStamps) // we did
	for range len(w.flow.sent) {
		probe(hardwareStamps, hardwareStamps, hardwareStamps, hardwareStamps)
	}
	all := uint64(len(w.flow.sent) + 7)
	for d, want := range [directions][stampKinds]uint64{{1, 1, all - 2}, {1, 1, all - 3}} {
		for k, n := range want {
			if got := w.flow.owd[d][k].Count; got != n {
				t.Errorf("direction %d: %d samples by %s stamps, want %d", d, got, kindNames[k], n)
			}
		}
	}
	if got, _ := w.flow.owd[forward][hardwareStamps].Quantile(0.5); got < 4300 || got > 4700 {
		t.Errorf("forward %v ns between the NICs' stamps, want 4500", got)
	}
	if got, _ := w.flow.owd[forward][kernelStamps].Quantile(0.5); got < 4800 || got > 5200 {
		t.Errorf("forward %v ns between the kernels' stamps, want 5000", got)
	}
}

// Packets in flight when the cadence changes are neither lost nor counted twice.
func TestPaceKeepsWhatIsOnItsWay(t *testing.T) {
	for _, to := range []time.Duration{time.Millisecond, 100 * time.Millisecond} {
		w := newWire(t)
		w.exchange(20)
		var waiting []*reply
		for range 5 {
			waiting = append(waiting, w.reflect(w.send()))
		}
		w.flow.setPace(to, time.Second)
		if n := ringSize(2 * int(time.Second/to)); len(w.flow.sent) != n || len(w.flow.replies) != n {
			t.Errorf("to %v: rings of %d and %d, want %d", to, len(w.flow.sent), len(w.flow.replies), n)
		}
		for _, r := range waiting {
			if got := w.take(r); got != outcomeAcked {
				t.Errorf("to %v: outcome %v, want acked", to, got)
			}
		}
		if got := w.take(waiting[0]); got != outcomeDuplicate {
			t.Errorf("to %v: outcome %v of a copy, want duplicate", to, got)
		}
		w.exchange(10)
		w.want(counts{sent: 35, acked: 35, duplicate: 1})
	}
}

func TestECNByDirection(t *testing.T) {
	w := newWire(t)
	w.exchange(1)
	r := w.reflect(w.send())
	r.answers.ClassOfService.ECN = ceMark
	w.take(r)
	for range 2 {
		r = w.reflect(w.send())
		r.ecn = ceMark
		w.take(r)
	}
	if want := [2]uint64{1, 2}; w.flow.ECN != want {
		t.Errorf("CE marks %v, want %v", w.flow.ECN, want)
	}
}

func TestFailedSendIsNotSent(t *testing.T) {
	w := newWire(t)
	w.exchange(5)
	for range 3 {
		p := w.send()
		w.flow.sendFailed(p.seq)
	}
	w.exchange(5)
	w.want(counts{sent: 10, acked: 10})
}

// TestMissingStampsAreCounted: an answered probe without a whole pair of stamps counts by the stamp that is missing.
func TestMissingStampsAreCounted(t *testing.T) {
	for _, tt := range []struct {
		what string
		slot sentSlot
		want [4]uint64
	}{
		{"T1 by the kernel, T2 by the program", sentSlot{state: slotAnswered, t1: stampedTime{userStamps: 1, kernelStamps: 1}, t2Kind: userStamps}, [4]uint64{0, 1}},
		{"T2 by the kernel alone", sentSlot{state: slotAnswered, t1: stampedTime{userStamps: 1}, t2Kind: kernelStamps}, [4]uint64{1, 0}},
		{"neither", sentSlot{state: slotAnswered, t1: stampedTime{userStamps: 1}, t2Kind: userStamps}, [4]uint64{1, 1}},
		{"T2 by the NIC, T1 by the kernel", sentSlot{state: slotAnswered, t1: stampedTime{userStamps: 1, kernelStamps: 1}, t2Kind: hardwareStamps}, [4]uint64{1, 0}},
		{"measured already", sentSlot{state: slotAnswered, measured: true}, [4]uint64{}},
		{"not answered", sentSlot{t1: stampedTime{userStamps: 1}}, [4]uint64{}},
	} {
		f := newFlow(10*time.Millisecond, time.Second)
		f.closeSent(&tt.slot)
		if f.Missing != tt.want {
			t.Errorf("%s: missing %v, want %v", tt.what, f.Missing, tt.want)
		}
	}
}
