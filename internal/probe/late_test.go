package probe

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// lateReports is a NIC whose transmit stamps arrive up to half a second late, in any order, and some never.
type lateReports struct {
	real    *unix.Batch
	rng     *rand.Rand
	dropped map[*unix.UDP]*atomic.Int64 // nil means not counted
	drop    *atomic.Bool
	held    map[*unix.UDP][]heldReport
	out     []unix.Report
	base    time.Time
}

type heldReport struct {
	due time.Duration
	unix.Report
}

const stampDelay = 500 * time.Millisecond

func (l *lateReports) RecvErrors(s *unix.UDP) (int, error) {
	now := time.Since(l.base)
	for {
		k, err := l.real.RecvErrors(s)
		if err != nil {
			return 0, err
		}
		for i := range k {
			r := *l.real.ReportAt(i)
			r.Data = nil
			if l.drop.Load() && l.rng.IntN(100) == 0 {
				if c := l.dropped[s]; c != nil {
					c.Add(1)
				}
				continue
			}
			l.held[s] = append(l.held[s], heldReport{now + time.Duration(l.rng.Int64N(int64(stampDelay))), r})
		}
		if k < unix.BatchSize {
			break
		}
	}
	// The held stamps are in the order of sending, and are released in another order.
	l.out = l.out[:0]
	held := l.held[s]
	for i := 0; i < len(held) && len(l.out) < unix.BatchSize; {
		if held[i].due > now {
			i++
			continue
		}
		l.out = append(l.out, held[i].Report)
		held[i] = held[len(held)-1]
		held = held[:len(held)-1]
	}
	l.held[s] = held
	return len(l.out), nil
}

func (l *lateReports) ReportAt(i int) *unix.Report { return &l.out[i] }

// TestLateStampsFindTheirPackets sends 10,000 probes per second over one socket. Their stamps are up to 500 ms late and
// out of order, and one in a hundred is missing. A stamp that is assigned to another packet would show as a negative
// delay about every second time, because packets are 100 us apart and more and delays are never negative.
func TestLateStampsFindTheirPackets(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds; the full run has it")
	}
	const far = 10
	addresses := []string{"10.9.0.1/32"}
	for i := range far {
		addresses = append(addresses, fmt.Sprintf("10.9.0.%d/32", i+2))
	}
	ns := inNetns(t, addresses...)
	ca, cb := defaultConfig(), defaultConfig()
	ca.Node, cb.Node = "h1", "h2"
	ca.Cadence, cb.Cadence = time.Millisecond, time.Millisecond
	ca.NICs = []NICConfig{{NIC: "h1/eth1", Address: netip.MustParseAddr("10.9.0.1")}}
	var peers []filePeer
	for i := range far {
		n := NICConfig{NIC: fmt.Sprintf("h2/eth%d", i+1), Address: netip.MustParseAddr(fmt.Sprintf("10.9.0.%d", i+2))}
		cb.NICs = append(cb.NICs, n)
		peers = append(peers, filePeer{PeerConfig: PeerConfig{NIC: n.NIC, Address: n.Address}, flows: 1, probe: true})
	}
	ca.connectPeers(peers)
	cb.connectPeers([]filePeer{{PeerConfig: PeerConfig{NIC: "h1/eth1", Address: ca.NICs[0].Address}, flows: 1}})
	b := startIn(t, ns, &cb)
	a := startIn(t, ns, &ca)
	var drop atomic.Bool
	var lostT1 atomic.Int64
	for seed, e := range []*Engine{a, b} {
		for i, n := range e.allNICs() {
			n.mu.Lock()
			l := &lateReports{real: unix.NewBatch(unix.BatchSize), rng: rand.New(rand.NewPCG(uint64(seed), uint64(i))), drop: &drop,
				held: map[*unix.UDP][]heldReport{}, dropped: map[*unix.UDP]*atomic.Int64{}, base: time.Now()}
			for _, s := range n.sender.sockets {
				l.dropped[s.Endpoint.(*unix.UDP)] = &lostT1
			}
			n.ports.udp.link.(*sockets).errs = l
			n.mu.Unlock()
		}
	}
	acked := func() (n uint64) {
		for _, e := range a.Snapshot().NICs[0].Edges {
			n += e.Acked
		}
		return n
	}
	// The stamps of trace packets belong to no sample. None of them may be among the withheld.
	until(t, 30*time.Second, "every path traced", func() bool {
		_, paths := a.TracedPaths()
		valid := 0
		for _, p := range paths {
			if p.State == fabric.PathValid {
				valid++
			}
		}
		return valid == far
	})
	drop.Store(true)
	until(t, 60*time.Second, "50,000 answers", func() bool { return acked() >= 50_000 })
	drop.Store(false)
	// A missing stamp is known to be missing once the packet's place is needed again.
	until(t, 30*time.Second, "every missing transmit stamp counted", func() bool {
		return a.Snapshot().NICs[0].Missing["t1"] >= uint64(lostT1.Load())
	})
	s := a.Snapshot().NICs[0]
	if lostT1.Load() < 100 || s.Missing["t1"] != uint64(lostT1.Load()) {
		t.Errorf("%d transmit stamps missing, %d were withheld", s.Missing["t1"], lostT1.Load())
	}
	if s.Unmatched != 0 {
		t.Errorf("%d stamps found no packet", s.Unmatched)
	}
	var delays [2]Histogram
	for _, e := range s.Edges {
		for d := range delays {
			delays[d].Add(&e.OWD[d].Kernel)
		}
	}
	for name, h := range map[string]*Histogram{"kernel delay": &s.KernelDelay, "forward delay": &delays[0], "reverse delay": &delays[1]} {
		low, ok := h.Quantile(0)
		if !ok || low < 0 || h.Count < 40_000 {
			t.Errorf("%s: %d samples, the lowest %v ns: a stamp went to another packet", name, h.Count, low)
		}
	}
	t.Logf("%d probes answered, %d stamps withheld and counted; forward %d, reverse %d samples by kernel stamps, none negative", acked(), lostT1.Load(), delays[0].Count, delays[1].Count)
}
