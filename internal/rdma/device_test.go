//go:build rdma && rdmafault && linux && cgo

package rdma

import (
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"
)

// These tests run on the device that GRAYLINK_RDMA_DEVICE names, with an address on its interface. test/vm runs them on
// soft-RoCE.

func onDevice(t testing.TB) (a, b *Port) {
	t.Helper()
	name := os.Getenv("GRAYLINK_RDMA_DEVICE")
	if name == "" {
		t.Fatal("GRAYLINK_RDMA_DEVICE: the name of an RDMA device is expected")
	}
	o := Options{Device: name, Port: 1, PKey: DefaultPKey, QKey: 77}
	var ports [2]*Port
	for i := range ports {
		p, err := Open(o, Library(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		if s := p.Status(); s.Why != "" {
			t.Fatal(s.Why)
		}
		ports[i] = p
	}
	s := [2]Status{ports[0].Status(), ports[1].Status()}
	for i, p := range ports {
		o := s[1-i]
		p.SetPeers([]Peer{{GID: o.GID, QPN: o.QPN, QKey: 77, LID: o.LID}})
	}
	return ports[0], ports[1]
}

// pass sends one datagram, and waits until it has arrived.
func pass(t testing.TB, a, b *Port, payload []byte) {
	t.Helper()
	to := b.Status().GID
	deadline := time.Now().Add(10 * time.Second)
	sent := false
	for !sent || b.Recv() == 0 {
		a.DrainSent(func(uint32, int64) {})
		if !sent {
			sent = true
			a.Commit(copy(a.OutBuffer(), payload), to, 49152, 862, 0x68, 1)
			if _, err := a.Send(func(_ int, e syscall.Errno) { sent = false }); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not come: %+v, %+v", a.Status(), b.Status())
		}
	}
	if x := b.ArrivalAt(0); string(x.Data) != string(payload) || x.SrcPort != 49152 || x.DstPort != 862 || x.TClass != 0x68 {
		t.Fatalf("%+v", x)
	}
}

func TestDeviceSendsInlineAndNot(t *testing.T) {
	a, b := onDevice(t)
	for _, n := range []int{1, 84, 255, 256, 257, 900, MaxDatagram} {
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(i * 7)
		}
		pass(t, a, b, payload)
	}
	for range 3 * depth { // goes round the queues several times
		pass(t, a, b, []byte("again"))
	}
	if s := a.Status(); len(s.SendErrors) != 0 || len(b.Status().RecvErrors) != 0 {
		t.Errorf("%+v %+v", s, b.Status())
	}
}

func TestDevicePacketsAllocateNothing(t *testing.T) {
	a, b := onDevice(t)
	pass(t, a, b, []byte("first"))
	to := b.Status().GID
	failed := func(_ int, e syscall.Errno) { t.Errorf("not sent: %v", e) }
	stamp := func(uint32, int64) {}
	if n := testing.AllocsPerRun(200, func() {
		a.Commit(copy(a.OutBuffer(), "probe"), to, 49152, 862, 0x68, 1)
		if _, err := a.Send(failed); err != nil {
			t.Fatal(err)
		}
		a.DrainSent(stamp)
		for b.Recv() == 0 {
		}
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

// BenchmarkDevicePacket sends a packet of a probe's length from one queue pair to another, and receives it.
func BenchmarkDevicePacket(b *testing.B) {
	from, to := onDevice(b)
	pass(b, from, to, []byte("first"))
	gid, payload := to.Status().GID, make([]byte, 100)
	failed := func(_ int, e syscall.Errno) { b.Errorf("not sent: %v", e) }
	stamp := func(uint32, int64) {}
	b.ReportAllocs()
	for b.Loop() {
		from.Commit(copy(from.OutBuffer(), payload), gid, 49152, 862, 0x68, 1)
		if _, err := from.Send(failed); err != nil {
			b.Fatal(err)
		}
		from.DrainSent(stamp)
		for to.Recv() == 0 {
		}
	}
}

// A queue pair in error is reset and keeps its number, and so does one whose far end was in error.
func TestDeviceQueueInErrorIsReset(t *testing.T) {
	a, b := onDevice(t)
	for _, p := range []*Port{a, b} {
		pass(t, a, b, []byte("before"))
		qpn := p.Status().QPN
		q, put := p.acquireQueue()
		err := q.(*cQueue).Fault()
		put()
		if err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(10 * time.Second)
		for p.Status().Counts[CountQueueReset] == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("it is not reset: %+v", p.Status())
			}
			time.Sleep(time.Millisecond) // asked again
		}
		pass(t, a, b, []byte("after"))
		if s := p.Status(); s.QPN != qpn || s.State != "rts" || s.Why != "" {
			t.Errorf("queue pair %d is now %+v", qpn, s)
		}
		t.Logf("receive completions %v, send completions %v", p.Status().RecvErrors, p.Status().SendErrors)
	}
}
