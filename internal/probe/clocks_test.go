package probe

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/clocksync"
	"github.com/graylink/graylink/internal/stamp"
)

// syncedPair returns two NICs that probe each other, a under clock sync. The far clock is bent.
func syncedPair(t testing.TB, offset time.Duration) (a, b idle) {
	t.Helper()
	ca := loopConfig("h1", 1, 2, "h2/eth1", 1)
	ca.ClockSync = true
	a, b = newIdle(t, ca, HostDeps()), newIdle(t, loopConfig("h2", 2, 1, "h1/eth1", 1), bentDeps(t, offset))
	return a, b
}

// rounds lets n probes of a be answered.
func rounds(t testing.TB, a, b idle, n uint64) {
	t.Helper()
	for end := a.sender.edges[0].Acked + n; a.sender.edges[0].Acked < end; {
		a.dueNow()
		for _, s := range b.reflector.sessions {
			s.bucket.tokens = s.bucket.burst // at any rate
		}
		for _, i := range []idle{a, b, a, b} {
			i.step(t)
		}
	}
}

func TestClocksRule1EveryStampedPacketIsAnExchange(t *testing.T) {
	const offset = int64(time.Second)
	a, b := syncedPair(t, time.Duration(offset))
	rounds(t, a, b, 60)
	var got [2]int
	last := [2]int64{}
	a.e.DrainExchanges(func(id clocksync.PairID, dir int, sent, received int64) {
		if want := (clocksync.PairID{Src: "h1/eth1", Dst: "h2/eth1", Kind: clocksync.Kernel}); id != want {
			t.Fatalf("pair %+v, want %+v", id, want)
		}
		got[dir]++
		delay := received - sent
		if want := [2]int64{offset, -offset}[dir]; delay < want || delay > want+int64(900*time.Millisecond) {
			t.Errorf("direction %d: %d ns, want a little more than %d", dir, delay, want)
		}
		if sent <= last[dir] {
			t.Errorf("direction %d: not in the order of sending", dir)
		}
		last[dir] = sent
	})
	if got[forward] < 58 || got[reverse] < 50 {
		t.Errorf("%d forward and %d reverse exchanges of 60 probes", got[forward], got[reverse])
	}
	a.e.DrainExchanges(func(clocksync.PairID, int, int64, int64) { t.Fatal("an exchange was handed out twice") })
	for range 2 {
		rounds(t, a, b, 400)
		a.e.DrainExchanges(func(clocksync.PairID, int, int64, int64) {})
	}
	if over := a.e.Snapshot().NICs[0].Overrun; over == 0 {
		t.Error("no exchange gave way")
	}
	round := func() {
		rounds(t, a, b, 6)
		a.e.DrainExchanges(func(clocksync.PairID, int, int64, int64) {})
	}
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
}

func TestClocksRule1TheOldestGivesWay(t *testing.T) {
	r := exchangeRing{slots: make([]exchange, 4)}
	for i := range int64(7) {
		r.push(exchange{sent: i})
	}
	got := r.drainTo(nil)
	if len(got) != 4 || got[0].sent != 3 || got[3].sent != 6 || r.overrun != 3 {
		t.Errorf("%+v, %d gave way; want 3 to 6, and 3", got, r.overrun)
	}
	r.push(exchange{sent: 9})
	if got = r.drainTo(got[:0]); len(got) != 1 || got[0].sent != 9 {
		t.Errorf("%+v, want the one pushed since", got)
	}
}

func TestClocksRule1HardwareExchangesAreTheNICsClock(t *testing.T) {
	f := newFlow(10*time.Millisecond, time.Second)
	f.setClockSync(true, 10*time.Millisecond)
	f.recordExchange(forward, hardwareStamps, 1, 2)
	f.recordExchange(forward, kernelStamps, 3, 4)
	got := f.clocks.rings[forward].drainTo(nil)
	if len(got) != 2 || got[0].kind != clocksync.Hardware || got[1].kind != clocksync.Kernel {
		t.Errorf("%+v", got)
	}
}

func TestClocksRules2And3DelaysNeedARelation(t *testing.T) {
	const offset = int64(5 * time.Second)
	a, b := syncedPair(t, time.Duration(offset))
	f := &a.sender.edges[0].flow
	rounds(t, a, b, 300)
	if f.owd[forward][kernelStamps].Count+f.owd[reverse][kernelStamps].Count+f.owd[forward][userStamps].Count+f.owd[reverse][userStamps].Count != 0 {
		t.Error("a delay was measured without a relation")
	}
	if s := a.e.Snapshot().NICs[0].Edges[0]; s.Unplaced[forward] < 290 || s.Unplaced[reverse] < 240 {
		t.Errorf("%d unplaced of 300", s.Unplaced)
	}
	id := clocksync.PairID{Src: "h1/eth1", Dst: "h2/eth1", Kind: clocksync.Kernel}
	hw := id
	hw.Kind = clocksync.Hardware
	now := time.Now().UnixNano()
	a.e.SetRelations(map[clocksync.PairID]clocksync.Relation{id: {Ref: now, Offset: offset}, hw: {Ref: now, Offset: 1}})
	before := f.Unplaced
	rounds(t, a, b, 300)
	if f.Unplaced != before {
		t.Errorf("%d unplaced with a relation", f.Unplaced)
	}
	for d := range directions {
		h := &f.owd[d][kernelStamps]
		if got, _ := h.Quantile(0.5); h.Count < 240 || got < 0 || got > 900e6 {
			t.Errorf("direction %d: %d delays, median %v ns", d, h.Count, got)
		}
	}
	if f.Sent-f.Acked > 2 || f.Lost != [2]uint64{} || f.Restarts != 0 {
		t.Errorf("accounts %+v", f.FlowCounters)
	}
	a.e.SetRelations(nil)
	rounds(t, a, b, 10)
	if f.Unplaced == before {
		t.Error("measured by a relation that was taken away")
	}
}

// The far clock gains 1e-4. Each direction evaluates the relation at the local stamp.
func TestClocksRule2ARelationIsEvaluatedAtTheLocalStamp(t *testing.T) {
	f := newFlow(10*time.Millisecond, time.Second)
	f.setClockSync(true, 10*time.Millisecond)
	const ref, local = int64(1e18), int64(1e18 + 2e9)
	for k := range f.clocks.relations {
		f.clocks.relations[k] = relation{Relation: clocksync.Relation{Ref: ref, Offset: int64(k+1) * 10e9, Rate: 1e-4}, known: true}
	}
	for kind, offset := range map[stampKind]int64{userStamps: 10e9, kernelStamps: 10e9, hardwareStamps: 20e9} {
		far := local + offset + 200_000 // by the far clock at the local time
		f.measureDelay(forward, kind, local, far+5000)
		f.measureDelay(reverse, kind, local, far-7000)
		for d, want := range [2]float64{5000, 7000} {
			if got, _ := f.owd[d][kind].Quantile(0.5); got < want*0.95 || got > want*1.05 {
				t.Errorf("%s, direction %d: %v ns, want %v", kindNames[kind], d, got, want)
			}
		}
	}
}

// A clock that moves is seen within some exchanges. Only its own edge's relation is dropped, and the next relation
// places the edge again.
func TestClocksRule4AClockThatMovesIsPlacedNoMore(t *testing.T) {
	f := newFlow(10*time.Millisecond, time.Second)
	f.setClockSync(true, 10*time.Millisecond)
	r := clocksync.Relation{Ref: 1e18, Offset: 5e9, Bound: 500}
	f.clocks.relations[clocksync.Kernel].updateTo(clocksync.Kernel, r, true)
	local, far := int64(1e18), int64(5e9)
	round := func(n int) {
		for range n {
			local += 10e6
			f.measureDelay(forward, kernelStamps, local, local+far+20_000)
			f.measureDelay(reverse, kernelStamps, local+1e6, local+1e6+far-20_000)
		}
	}
	round(300)
	if f.Unplaced != [2]uint64{} {
		t.Fatalf("%d unplaced by a good relation", f.Unplaced)
	}
	far += 200_000
	round(100)
	if got := f.Unplaced[forward]; got < 85 || got > 95 {
		t.Errorf("%d of 100 unplaced after the far clock stepped", got)
	}
	if by, moved, ok := f.clocks.relations[clocksync.Kernel].watch.MovedBy(); !ok || !moved || by != 200_000 {
		t.Errorf("seen: %v %v %v", by, moved, ok)
	}
	before := f.Unplaced
	r.Offset = far
	f.clocks.relations[clocksync.Kernel].updateTo(clocksync.Kernel, r, true)
	round(100)
	if f.Unplaced != before {
		t.Errorf("%d unplaced by a new relation", f.Unplaced[forward]-before[forward])
	}
	// The delay in one direction is that of the path, and so are times of the program's own.
	for range 100 {
		local += 10e6
		f.measureDelay(forward, kernelStamps, local, local+far+2_000_000)
		f.measureDelay(reverse, kernelStamps, local+1e6, local+1e6+far-20_000)
		f.measureDelay(forward, userStamps, local, local+far+200_000)
		f.measureDelay(reverse, userStamps, local+1e6, local+1e6+far+200_000)
	}
	if f.Unplaced != before {
		t.Error("a delay was taken for a clock that moved")
	}
	if n := testing.AllocsPerRun(100, func() { round(1) }); n != 0 {
		t.Errorf("%v allocations per exchange", n)
	}
}

func TestClocksRule5EveryFifthProbeHasATwin(t *testing.T) {
	a, b := syncedPair(t, 0)
	e := a.sender.edges[0]
	e.next = a.monoTime() + int64(time.Hour) // never in turn
	for i := range 20 {
		before, batches := e.Sent, a.sockets().out.PendingCount()
		if err := a.sender.queueProbes(e); err != nil {
			t.Fatal(err)
		}
		want := uint64(1)
		if i%pairEvery == pairEvery-1 {
			want = 2
		}
		if got := e.Sent - before; got != want || a.sockets().out.PendingCount() != batches+int(want) {
			t.Errorf("probe %d: %d packets, %d in the batch", i, got, a.sockets().out.PendingCount()-batches)
		}
		if err := a.out.flushBatch(); err != nil {
			t.Fatal(err)
		}
		for _, n := range []idle{b, a} {
			n.step(t)
		}
	}
	// A twin never begins a batch.
	for range pairEvery - 1 {
		if err := a.sender.queueProbes(e); err != nil {
			t.Fatal(err)
		}
	}
	for a.sockets().out.PendingCount() < 31 {
		if err := a.sender.queueProbe(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.sender.queueProbes(e); err != nil || a.sockets().out.PendingCount() != 2 {
		t.Errorf("%d packets in the twins' batch, %v; want 2", a.sockets().out.PendingCount(), err)
	}
	if err := a.out.flushBatch(); err != nil {
		t.Fatal(err)
	}
	// Without clock sync there are none.
	c := loopConfig("h1", 1, 2, "h2/eth1", 1)
	if err := a.e.Apply(c); err != nil {
		t.Fatal(err)
	}
	before := a.sender.edges[0].Sent
	for range 10 {
		if err := a.sender.queueProbes(a.sender.edges[0]); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.sender.edges[0].Sent - before; got != 10 || a.sender.edges[0].clocks != nil {
		t.Errorf("%d packets in 10 turns without clock sync", got)
	}
}

func TestClockBoundsAreReported(t *testing.T) {
	a, b := syncedPair(t, 0)
	peerBound := func() *time.Duration { return b.e.Snapshot().NICs[0].Edges[0].PeerBound }
	ask := func() {
		for before := b.sender.edges[0].Acked; b.sender.edges[0].Acked < before+2; {
			b.dueNow()
			for _, n := range []idle{b, a, b} {
				n.step(t)
			}
		}
	}
	ask()
	if peerBound() != nil {
		t.Errorf("bound %v before any is known", *peerBound())
	}
	a.e.SetClockBound("h1/eth1", 700*time.Nanosecond, true)
	ask()
	if got := peerBound(); got == nil || *got < 700 || *got > 710 || a.estimate.IsSynced() {
		t.Errorf("bound %v, want 700 ns; synced %v", got, a.estimate.IsSynced())
	}
	c := *a.e.Config()
	if err := a.e.Apply(&c); err != nil {
		t.Fatal(err)
	}
	if a.estimate.BoundNS() == stamp.UnknownBound {
		t.Error("a new configuration forgets the bound")
	}
	a.e.SetClockBound("h1/eth2", time.Hour, true) // not there
	a.e.SetClockBound("h1/eth1", 0, false)
	ask()
	if peerBound() != nil {
		t.Errorf("bound %v after it was taken back", *peerBound())
	}
}
