package ccl_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
)

var epoch = time.Unix(1_752_867_229, 0)

// fetch returns all records behind a cursor.
func fetch(s *ccl.Sampler, cursor uint64) (recs []ccl.Record, next uint64) {
	for {
		part, n, _ := s.After(cursor, 100)
		if len(part) == 0 {
			return recs, cursor
		}
		recs, cursor = append(recs, part...), n
	}
}

// opOf returns a completed operation of a rank.
func opOf(rank int, seq uint64) *ccl.Op {
	f := from
	f.Rank = rank
	return &ccl.Op{From: f, Seq: seq, Op: "AllReduce", ExecNS: ccl.KnownNanos(5000), State: ccl.Completed}
}

// TestRanksPublishTheSameOperations runs ranks in samplers of their own, which read once a second, each at another time, at
// rates that change. It checks that all ranks hand out at least two operations in three seconds in common, and each at most
// four a second.
func TestRanksPublishTheSameOperations(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 2))
		const ranks = 4
		var samplers [ranks]*ccl.Sampler
		var cursors [ranks]uint64
		var pending [ranks][]*ccl.Op
		published := map[uint64]map[int]bool{}
		perRank, phase := [ranks]int{}, [ranks]int{}
		for i := range samplers {
			samplers[i], phase[i] = ccl.NewSampler(ccl.SamplerConfig{}, epoch), rng.IntN(10)
		}
		seq, rate := uint64(rng.IntN(1000)), 1000
		var steady uint64       // first number of the last 15 s, behind two windows of one rate
		for step := range 600 { // of 0.1 s
			now := epoch.Add(time.Duration(step) * 100 * time.Millisecond)
			if step == 200 {
				rate = 10 + rng.IntN(5000)
			}
			if step == 450 {
				steady = seq
			}
			for range rate / 10 {
				for r := range ranks {
					pending[r] = append(pending[r], opOf(r, seq))
				}
				seq++
			}
			for r := range ranks {
				if step%10 == phase[r] || step == 599 {
					for _, o := range pending[r] {
						samplers[r].Add(now, o)
					}
					pending[r] = nil
					var recs []ccl.Record
					recs, cursors[r] = fetch(samplers[r], cursors[r])
					for _, rec := range recs {
						o := rec.(*ccl.Op)
						if published[o.Seq] == nil {
							published[o.Seq] = map[int]bool{}
						}
						published[o.Seq][r] = true
						perRank[r]++
					}
				}
			}
		}
		all := 0
		for n, by := range published {
			if n >= steady && len(by) == ranks {
				all++
			}
		}
		if all < 10 {
			t.Errorf("seed %d, %d a second: only %d operations in 15 s are handed out by all ranks", seed, rate, all)
		}
		// Seven windows of 40, and one number for each power of two until the rate is known.
		for r, n := range perRank {
			if n > 7*40+2*13 {
				t.Errorf("seed %d: rank %d handed out %d operations in 60 s", seed, r, n)
			}
		}
	}
}

// TestSamplerHolds checks that all of an operation can be found for 60 s, as it was read.
func TestSamplerHolds(t *testing.T) {
	s := ccl.NewSampler(ccl.SamplerConfig{}, epoch)
	want := map[uint64]*ccl.Op{}
	for i := range uint64(100_000) {
		o := opOf(2, i)
		o.Bytes, o.StartNS, o.Algo = new(i), ccl.KnownNanos(int64(i)), fmt.Sprint("A", i%7)
		switch i % 3 {
		case 1:
			o.EndNS, o.ExecNS, o.Peer, o.ClockError = ccl.KnownNanos(int64(i)+5), ccl.Nanos{}, new(3), ccl.KnownNanos(7)
		case 2:
			o.Root = new(4)
		}
		want[i] = o
		s.Add(epoch.Add(time.Duration(i)*time.Millisecond), o)
	}
	for _, n := range []uint64{99_999, 60_001, 40_000} {
		recs := s.Find(from.Comm, "AllReduce", n)
		if len(recs) != 1 || !reflect.DeepEqual(recs[0], ccl.Record(want[n])) {
			t.Errorf("operation %d: %+v", n, recs)
		}
	}
	if recs := s.Find(from.Comm, "AllReduce", 39_998); len(recs) != 0 || s.Stats().Ops != 60_001 {
		t.Errorf("%d records of an operation of more than 60 s ago; %+v", len(recs), s.Stats())
	}
	if recs := slices.Concat(s.Find("0x9", "AllReduce", 99_999), s.Find(from.Comm, "AllGather", 99_999)); len(recs) != 0 {
		t.Errorf("%+v", recs)
	}
}

// TestSamplerAlwaysPublishes checks that open operations, open transfers and beats are handed out whatever the rate is, and that
// communicators are handed out with all ranks of the node, and again while they are in use.
func TestSamplerAlwaysPublishes(t *testing.T) {
	s := ccl.NewSampler(ccl.SamplerConfig{}, epoch)
	add := func(second int, rec ccl.Record) { s.Add(epoch.Add(time.Duration(second)*time.Second), rec) }
	for rank := range 2 {
		add(0, &ccl.Comm{Job: "t7", Comm: from.Comm, NRanks: 8, Ranks: []ccl.Member{{Rank: rank, Host: "h3"}}})
	}
	for i := range uint64(1000) {
		add(1, opOf(2, i))
	}
	open := opOf(2, 1001)
	open.State = ccl.Started
	edge := edges(1)[0]
	edge.State, edge.Held, edge.Since = ccl.Open, ccl.HeldByWire, ccl.KnownNanos(5)
	beat := &ccl.Beat{From: from, AtNS: ccl.KnownNanos(9)}
	for _, rec := range []ccl.Record{open, edge, beat} {
		add(2, rec)
	}
	recs, cursor := fetch(s, 0)
	if n := len(recs); !reflect.DeepEqual(recs[n-3:], []ccl.Record{open, edge, beat}) {
		t.Errorf("%+v", recs[n-3:])
	}
	if c := only[*ccl.Comm](recs); len(c) != 2 || len(c[1].Ranks) != 2 {
		t.Errorf("%+v", c)
	}
	add(90, opOf(2, 5000))
	recs, next := fetch(s, cursor)
	if c := only[*ccl.Comm](recs); len(c) != 1 || len(c[0].Ranks) != 2 {
		t.Errorf("after 90 s: %+v", recs)
	}
	// A cursor of before is behind what is held; one of another sampler, which began earlier, as well.
	if _, _, missed := s.After(cursor-5, 10); !missed {
		t.Error("records that are gone are not missed")
	}
	if _, _, missed := s.After(next, 10); missed {
		t.Error("nothing is missed behind the last record")
	}
	if _, _, missed := ccl.NewSampler(ccl.SamplerConfig{}, epoch.Add(time.Hour)).After(next, 10); !missed {
		t.Error("records of before a restart are not missed")
	}
}

// TestSamplerSumsTransfers checks that transfers are added up over channels and handed out with their operation.
func TestSamplerSumsTransfers(t *testing.T) {
	s := ccl.NewSampler(ccl.SamplerConfig{}, epoch)
	for channel := range 4 {
		e := edges(1)[0]
		e.Seq, e.Channel, e.Wire, e.Flush = 8, new(channel), ccl.KnownNanos(int64(channel)), ccl.Nanos{}
		e.StartNS, e.EndNS = ccl.KnownNanos(base-int64(channel)), ccl.KnownNanos(base+int64(channel))
		s.Add(epoch, e)
	}
	s.Add(epoch.Add(time.Second), opOf(2, 8))
	if recs, _ := fetch(s, 0); len(recs) != 1 {
		t.Errorf("a transfer that has not settled is handed out: %+v", recs)
	}
	s.Advance(epoch.Add(3 * time.Second))
	recs, _ := fetch(s, 0)
	sums := only[*ccl.Edge](recs)
	if len(sums) != 1 {
		t.Fatalf("%+v", recs)
	}
	e := sums[0]
	if *e.Bytes != 4<<20 || e.Wire != ccl.KnownNanos(6) || e.GPUWait != ccl.KnownNanos(44_000) || e.Flush.Known || e.Channel != nil || e.StartNS.NS != base-3 || e.EndNS.NS != base+3 {
		t.Errorf("%+v", e)
	}
	if err := ccl.Check(e); err != nil {
		t.Error(err)
	}
	if found := s.Find(from.Comm, "AllReduce", 8); len(found) != 2 {
		t.Errorf("%+v", found)
	}
	s.Add(epoch.Add(4*time.Second), edges(1)[0])
	late := edges(1)[0]
	late.Seq = 8
	s.Add(epoch.Add(4*time.Second), late)
	if s.Stats().Late != 1 {
		t.Errorf("%+v", s.Stats())
	}
}

// TestSamplerTakesAnOperationOnce checks that the first of two operations of one name stands.
func TestSamplerTakesAnOperationOnce(t *testing.T) {
	s := ccl.NewSampler(ccl.SamplerConfig{}, epoch)
	rng := rand.New(rand.NewPCG(1, 1))
	truth := map[uint64]bool{}
	duplicates := uint64(0)
	for i := range uint64(20_000) {
		seq := i + rng.Uint64N(100)
		if truth[seq] {
			duplicates++
		}
		truth[seq] = true
		o := opOf(2, seq)
		o.ExecNS.NS = int64(i)
		s.Add(epoch, o)
	}
	s.Add(epoch, opOf(3, 5))
	if st := s.Stats(); st.Duplicates != duplicates || st.Ops != len(truth)+1 {
		t.Errorf("%+v, and not %d duplicates of %d", st, duplicates, len(truth))
	}
}

// TestSamplerIsBounded checks that no stream of records makes a sampler grow beyond its bounds, and that what is held is
// still right.
func TestSamplerIsBounded(t *testing.T) {
	s := ccl.NewSampler(ccl.SamplerConfig{MaxOps: 1000, MaxEdges: 100}, epoch)
	const all = 195_000 // 392 more than the contexts that were numbered when they were forgotten the second time
	for i := range all {
		f := from
		f.Comm = fmt.Sprint(i % 70_000)
		o := opOf(0, uint64(i))
		o.From = f
		s.Add(epoch.Add(time.Duration(i)*time.Microsecond), o)
		if i%10 == 0 {
			s.Add(epoch.Add(time.Duration(i)*time.Microsecond), &ccl.Comm{Comm: f.Comm, NRanks: 8})
			e := edges(1)[0]
			e.From, e.Seq = f, uint64(i)
			s.Add(epoch.Add(time.Duration(i)*time.Microsecond), e)
		}
	}
	st := s.Stats()
	if st.Ops != 1000 || st.Edges != 100 || st.Evicted == 0 {
		t.Errorf("%+v", st)
	}
	for _, i := range []int{all - 1, all - 500, all - 999} {
		if recs := only[*ccl.Op](s.Find(fmt.Sprint(i%70_000), "AllReduce", uint64(i))); len(recs) != 1 || recs[0].Comm != fmt.Sprint(i%70_000) {
			t.Errorf("operation %d: %+v", i, recs)
		}
	}
	if recs, _ := fetch(s, 0); len(recs) > 1<<16 {
		t.Errorf("%d records wait", len(recs))
	}
}

// cpuTime returns the processor time that the process has used, which other load on the machine does not change much.
func cpuTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkNode reads what eight ranks write in a minute, 1,000 verbose lines a second each, through a tail and a sampler. It
// reports the share of a core and the memory that are held.
func BenchmarkNode(b *testing.B) {
	dir := b.TempDir()
	const ranks, perSecond, seconds = 8, 1000, 60
	var cpu time.Duration
	var heap uint64
	for b.Loop() {
		var files [ranks]*os.File
		for r := range files {
			f, err := os.Create(filepath.Join(dir, fmt.Sprintf("h3-pid%d.log", r)))
			if err != nil {
				b.Fatal(err)
			}
			files[r] = f
		}
		now := epoch
		s := ccl.NewSampler(ccl.SamplerConfig{}, now)
		tail := ccl.NewTail(ccl.TailConfig{Dir: dir, Owner: uint32(os.Getuid()), Source: source, Out: func(r ccl.Record) error {
			s.Add(now, r)
			return nil
		}})
		cursor := uint64(0)
		for second := range seconds {
			now = now.Add(time.Second)
			for r, f := range files {
				d := dump()
				d.Rank, d.Ops, d.Edges, d.AtNS = r, ops(perSecond), nil, now.UnixNano()
				for i, o := range d.Ops {
					o.Seq, o.Op, o.Peer = uint64(second*perSecond+i), "AllReduce", nil
				}
				if err := f.Truncate(0); err != nil {
					b.Fatal(err)
				}
				if _, err := f.WriteAt(ccltest.AppendDump(nil, "v4.2", d), 0); err != nil {
					b.Fatal(err)
				}
			}
			began := cpuTime(b)
			if _, err := tail.Poll(); err != nil {
				b.Fatal(err)
			}
			_, cursor = fetch(s, cursor)
			cpu += cpuTime(b) - began
		}
		if got := s.Stats().Ops; got != ranks*perSecond*seconds {
			b.Fatalf("%d operations are held", got)
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heap = max(heap, m.HeapAlloc)
		runtime.KeepAlive(s)
		tail.Close()
	}
	b.ReportMetric(100*cpu.Seconds()/float64(seconds*b.N), "%core")
	b.ReportMetric(float64(heap)/1e6, "MB")
}
