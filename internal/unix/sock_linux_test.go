package unix

import (
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

func listen(t *testing.T, o UDPOptions) *UDP {
	t.Helper()
	return listenAt(t, "127.0.0.1:0", o)
}

func listenAt(t *testing.T, at string, o UDPOptions) *UDP {
	t.Helper()
	s, err := ListenUDP(netip.MustParseAddrPort(at), o)
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, s)
	return s
}

func closeAfter(t *testing.T, c io.Closer) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// until polls f every millisecond for five seconds at most.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("%s: not within 5 s", what)
}

func TestStampsCarryTheirIDs(t *testing.T) {
	for _, tc := range []struct {
		name    string
		at      string
		counted bool
	}{
		{"by control message", "127.0.0.1:0", false}, {"by the kernel's counter", "127.0.0.1:0", true},
		{"IPv6 by control message", "[::1]:0", false}, {"IPv6 by the kernel's counter", "[::1]:0", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := listenAt(t, tc.at, UDPOptions{CountedIDs: tc.counted}), listenAt(t, tc.at, UDPOptions{})
			batch := NewBatch(BatchSize)
			want := map[uint32]bool{}
			for range 10 {
				n := copy(batch.OutBuffer(), "hello")
				want[batch.Commit(a, n, b.LocalAddr(), 0x02, 7)] = true
			}
			if err := batch.Send(a, func(i int, err syscall.Errno) { t.Errorf("datagram %d: %v", i, err) }); err != nil {
				t.Fatal(err)
			}
			stamped := 0
			until(t, "ten transmit stamps", func() bool {
				n, err := batch.RecvErrors(a)
				if err != nil {
					t.Fatal(err)
				}
				for i := range n {
					r := batch.ReportAt(i)
					if r.Kind != ReportTxStamp || !want[r.ID] || r.Stamp == 0 {
						t.Fatalf("report %+v, want a stamp of %v", r, want)
					}
					delete(want, r.ID)
					stamped++
				}
				return stamped == 10
			})
			got := 0
			until(t, "ten datagrams", func() bool {
				n, err := batch.Recv(b)
				if err != nil {
					t.Fatal(err)
				}
				for i := range n {
					g := batch.DatagramAt(i)
					if string(g.Data) != "hello" || g.From != a.LocalAddr() || g.TOS != 0x02 || g.TTL != 7 {
						t.Fatalf("datagram %+v", g)
					}
				}
				got += n
				return got == 10
			})
		})
	}
}

// A port without a socket answers with ICMP, which makes the next send fail once without sending. Everything must still
// be sent, and in counted mode the numbers must still match.
func TestPoisonedSocketStillSends(t *testing.T) {
	for _, counted := range []bool{false, true} {
		a, b := listen(t, UDPOptions{CountedIDs: counted}), listen(t, UDPOptions{})
		batch := NewBatch(4)
		fail := func(i int, err syscall.Errno) { t.Errorf("counted=%v: datagram %d: %v", counted, i, err) }
		send := func(dst netip.AddrPort) uint32 {
			id := batch.Commit(a, copy(batch.OutBuffer(), "x"), dst, 0, 0)
			if err := batch.Send(a, fail); err != nil {
				t.Fatal(err)
			}
			return id
		}
		dead := netip.AddrPortFrom(b.LocalAddr().Addr(), 1)
		for range 20 {
			send(dead)
			id := send(b.LocalAddr())
			icmp, stamp := false, false
			until(t, "the stamp and the ICMP error", func() bool {
				n, err := batch.RecvErrors(a)
				if err != nil {
					t.Fatal(err)
				}
				for i := range n {
					switch r := batch.ReportAt(i); r.Kind {
					case ReportICMP:
						icmp = true
						if r.Offender != a.LocalAddr().Addr() || r.Dst != dead {
							t.Fatalf("counted=%v: ICMP report %+v", counted, r)
						}
					case ReportTxStamp:
						stamp = stamp || r.ID == id
					}
				}
				return icmp && stamp
			})
		}
		got := 0
		until(t, "20 datagrams", func() bool {
			n, err := batch.Recv(b)
			if err != nil {
				t.Fatal(err)
			}
			got += n
			return got == 20
		})
	}
}

func TestBatchAllocatesNothing(t *testing.T) {
	a, b := listen(t, UDPOptions{}), listen(t, UDPOptions{})
	batch := NewBatch(BatchSize)
	fail := func(i int, err syscall.Errno) { t.Errorf("datagram %d: %v", i, err) }
	dst := b.LocalAddr()
	n := testing.AllocsPerRun(200, func() {
		batch.OutBuffer()[0] = 1
		batch.Commit(a, 44, dst, 2, 0)
		_ = batch.Send(a, fail)
		_, _ = batch.Recv(b)
		_, _ = batch.RecvErrors(a)
	})
	if n != 0 {
		t.Errorf("%v allocations per datagram, want 0", n)
	}
}

func TestPollerWakesAndTimesOut(t *testing.T) {
	for _, coarse := range []bool{false, true} {
		t.Run(fmt.Sprintf("coarse=%v", coarse), func(t *testing.T) { testPoller(t, coarse) })
	}
}

func testPoller(t *testing.T, coarse bool) {
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, p)
	p.coarse = coarse
	a, b := listen(t, UDPOptions{}), listen(t, UDPOptions{})
	if err := p.Add(b.FD(), 3); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Wait(time.Millisecond); n != 0 || err != nil {
		t.Fatalf("idle Wait = %d, %v", n, err)
	}
	if err := p.Wake(); err != nil {
		t.Fatal(err)
	}
	if n, _ := p.Wait(5 * time.Second); n != 1 {
		t.Fatalf("Wait after Wake = %d", n)
	}
	if token, _, _ := p.EventAt(0); token >= 0 {
		t.Fatalf("token %d, want negative", token)
	}
	batch := NewBatch(1)
	batch.Commit(a, 1, b.LocalAddr(), 0, 0)
	if err := batch.Send(a, func(_ int, err syscall.Errno) { t.Error(err) }); err != nil {
		t.Fatal(err)
	}
	if n, _ := p.Wait(5 * time.Second); n != 1 {
		t.Fatalf("Wait after a datagram = %d", n)
	}
	if token, readable, _ := p.EventAt(0); token != 3 || !readable {
		t.Fatalf("event %d readable=%v", token, readable)
	}
}
