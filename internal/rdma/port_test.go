package rdma_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/rdma/rdmatest"
	"github.com/graylink/graylink/internal/rdmadev"
	"github.com/graylink/graylink/internal/unix"
)

func options(device string) rdma.Options {
	return rdma.Options{Device: device, Port: 1, PKey: rdma.DefaultPKey, QKey: 77}
}

// ends represents two ports that know each other.
type ends struct {
	f    *rdmatest.Fabric
	a, b *rdma.Idle
	da   *rdmatest.Device
	db   *rdmatest.Device
}

func closeAfter(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func gid(s string) netip.Addr { return rdma.CanonicalGID(netip.MustParseAddr(s)) }

func newEnds(t *testing.T) *ends {
	t.Helper()
	e := &ends{f: rdmatest.New(func() int64 { return 1e18 })}
	e.da, e.db = e.f.AddDevice("h1", "rdma0", "10.0.0.1"), e.f.AddDevice("h2", "rdma0", "10.0.0.2")
	for host, p := range map[string]**rdma.Idle{"h1": &e.a, "h2": &e.b} {
		i, err := rdma.NewIdle(options("rdma0"), e.f.HostVerbs(host))
		if err != nil {
			t.Fatal(err)
		}
		closeAfter(t, i)
		*p = i
	}
	e.learn()
	return e
}

// learn sets each end's queue pair as the peer of the other.
func (e *ends) learn() {
	sa, sb := e.a.Status(), e.b.Status()
	e.a.SetPeers([]rdma.Peer{{GID: gid("10.0.0.2"), QPN: sb.QPN, QKey: 77}})
	e.b.SetPeers([]rdma.Peer{{GID: gid("10.0.0.1"), QPN: sa.QPN, QKey: 77}})
}

// send sends a datagram from a to b. It returns 0 if the datagram was posted.
func (e *ends) send() (errno syscall.Errno) {
	buf := e.a.OutBuffer()
	e.a.Commit(copy(buf, "probe"), gid("10.0.0.2"), 49153, 862, 0x6a, 1)
	if _, err := e.a.Send(func(_ int, x syscall.Errno) { errno = x }); err != nil {
		panic(err)
	}
	return errno
}

// works sends until something arrives. A handle may have to be made first.
func (e *ends) works(t *testing.T) {
	t.Helper()
	var last syscall.Errno
	for range 3 {
		if last = e.send(); last == 0 && e.b.Recv() == 1 {
			return
		}
		e.a.Step()
	}
	t.Fatalf("nothing arrives: %v; %+v", last, e.a.Status())
}

func TestDatagramArrives(t *testing.T) {
	e := newEnds(t)
	if errno := e.send(); errno != syscall.EHOSTUNREACH {
		t.Errorf("%v; without an address handle a packet is not sent (rule 6)", errno)
	}
	e.a.Step()
	if errno := e.send(); errno != 0 || e.b.Recv() != 1 {
		t.Fatalf("nothing arrived: %v", errno)
	}
	x := e.b.ArrivalAt(0)
	if string(x.Data) != "probe" || x.From != gid("10.0.0.1") || x.SrcPort != 49153 || x.DstPort != 862 || x.TClass != 0x6a || x.Hops != 64 || x.Stamp != 1e18 {
		t.Errorf("%+v", x)
	}
	if e.b.Recv() != 0 {
		t.Error("it arrived twice")
	}
}

// Rule 1: missing parts are reported in the status, and are tried again.
func TestMissingIsLookedForAgain(t *testing.T) {
	f := rdmatest.New(func() int64 { return 1 })
	d := f.AddDevice("h1", "rdma0")
	d.SetPresent(false)
	p, err := rdma.NewIdle(options("rdma0"), f.HostVerbs("h1"))
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, p)
	says := func(text string, queue bool, state string) {
		t.Helper()
		if s := p.Status(); !strings.Contains(s.Why, text) || s.Why == "" != (text == "") || s.Queue != queue || s.State != state {
			t.Errorf("%+v; want %q, queue pair %v, state %s", s, text, queue, state)
		}
	}
	says("RDMA device rdma0 port 1: ibv_open_device: no such device", false, "absent")
	d.SetPresent(true)
	p.Step()
	says("no such device", false, "absent") // not before checkEvery has passed
	p.Time += rdma.CheckEvery
	p.Step()
	says("GID table: the table is empty", true, "rts")
	d.SetGIDs(rdma.GID{Index: 2, Type: rdma.GIDRoCEv2, Addr: gid("fe80::1")})
	p.Step() // an event causes a new check
	says("only link-local", true, "rts")
	d.SetGIDs(rdma.GID{Index: 3, Type: rdma.GIDRoCEv2, Addr: gid("10.0.0.1")})
	p.Step()
	says("", true, "rts")
	if s := p.Status(); s.GID != gid("10.0.0.1") || s.GIDIndex != 3 {
		t.Errorf("%+v", s)
	}
}

// Rule 2: a queue pair in error is reset and keeps its number, or is made again.
func TestQueueInErrorRecovers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		deaf  bool
		fail  bool
		count string
	}{{"seen by an event", false, false, rdma.CountQueueReset}, {"seen by its completions", true, false, rdma.CountQueueReset}, {"reset fails", false, true, rdma.CountQueueOpened}} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEnds(t)
			e.works(t)
			before := e.a.Status()
			e.da.FailQueues(tc.deaf)
			if tc.fail {
				e.da.FailOpen(syscall.EIO)
			}
			if tc.deaf {
				e.send()
				e.a.DrainSent(func(uint32, int64) { t.Error("a packet that failed has a stamp") })
			}
			e.a.Step()
			if tc.fail {
				if s := e.a.Status(); s.Queue || s.State != "absent" || !strings.Contains(s.Why, "reset the queue pair") {
					t.Errorf("%+v", s)
				}
				e.da.FailOpen(0)
				e.a.Time += rdma.CheckEvery
				e.a.Step()
				e.learn()
			}
			s := e.a.Status()
			if (s.QPN == before.QPN) == tc.fail || s.State != "rts" || s.Counts[tc.count] != before.Counts[tc.count]+1 {
				t.Errorf("before %+v, now %+v", before, s)
			}
			if tc.deaf && s.SendErrors["flushed"] == 0 {
				t.Errorf("completion errors %v", s.SendErrors)
			}
			e.works(t)
		})
	}
}

// Rule 3: a device that is removed is closed, although no event announces it.
func TestDeviceGoesAndComesBack(t *testing.T) {
	e := newEnds(t)
	e.works(t)
	before := e.a.Status()
	e.da.SetPresent(false)
	e.a.Time += rdma.CheckEvery
	e.a.Step()
	if s := e.a.Status(); s.Queue || s.Counts[rdma.CountDeviceGone] != 1 || !strings.Contains(s.Why, "the device is gone") || e.da.QueueCount() != 0 || e.da.HandleCount() != 0 {
		t.Errorf("%+v, %d queue pairs and %d handles are held", s, e.da.QueueCount(), e.da.HandleCount())
	}
	if errno := e.send(); errno != syscall.ENETDOWN {
		t.Errorf("%v, want ENETDOWN", errno)
	}
	e.da.SetPresent(true)
	e.a.Time += rdma.CheckEvery
	e.a.Step()
	if s := e.a.Status(); s.Why != "" || s.QPN == before.QPN {
		t.Errorf("%+v", s)
	}
	// Rule 5: the far end does not accept it as its former peer.
	for range 2 {
		e.send()
		e.a.Step()
	}
	if n := e.b.Recv(); n != 0 || e.b.Status().WrongQPN == 0 {
		t.Errorf("%d datagrams from another queue pair were taken; %+v", n, e.b.Status())
	}
	e.learn()
	e.works(t)
}

// Rule 4: another index, and a port that was down, require new handles.
func TestGIDMovesAndPortComesBack(t *testing.T) {
	e := newEnds(t)
	e.works(t)
	qpn := e.a.Status().QPN
	e.da.SetGIDs(rdma.GID{Index: 0, Type: rdma.GIDRoCEv2, Addr: gid("10.9.9.9")}, rdma.GID{Index: 1, Type: rdma.GIDRoCEv2, Addr: gid("10.0.0.1")})
	e.a.Step()
	if s := e.a.Status(); s.GID != gid("10.0.0.1") || s.GIDIndex != 1 || s.Counts[rdma.CountGIDChanged] != 1 || s.Handles != 0 {
		t.Errorf("%+v", s)
	}
	e.works(t)
	e.da.SetActive(false)
	e.a.Step()
	if s := e.a.Status(); s.PortState != "down" || s.Counts[rdma.CountPortDown] != 1 || !strings.Contains(s.Why, "the port is down, want active") {
		t.Errorf("%+v", s)
	}
	e.da.SetActive(true)
	e.a.Step()
	e.works(t)
	if s := e.a.Status(); s.QPN != qpn || s.Counts[rdma.CountPortUp] != 1 || s.Counts[rdma.CountQueueOpened] != 1 || s.Why != "" {
		t.Errorf("%+v", s)
	}
	e.a.Time += time.Minute
	e.a.Step()
	if n := e.da.HandleCount(); n != 1 {
		t.Errorf("%d address handles are kept, want 1", n)
	}
}

// Rule 5: strangers are dropped and counted. A datagram with a wrong Q_Key is dropped by the device.
func TestStrangersAreDropped(t *testing.T) {
	e := newEnds(t)
	e.works(t)
	e.b.SetPeers(nil)
	e.send()
	if n, s := e.b.Recv(), e.b.Status(); n != 0 || s.Strangers != 1 {
		t.Errorf("%d taken, %+v", n, s)
	}
	e.learn()
	e.a.SetPeers([]rdma.Peer{{GID: gid("10.0.0.2"), QPN: e.b.Status().QPN, QKey: 78}})
	e.send()
	e.b.Time += rdma.CheckEvery
	e.b.Step()
	if n, s := e.b.Recv(), e.b.Status(); n != 0 || s.Strangers != 1 || s.WrongQPN != 0 || *s.QKeyViolations != 1 {
		t.Errorf("%d taken, %+v", n, s)
	}
}

// Rule 6: handles that cannot be made do not block others, and are tried again.
func TestHandleErrors(t *testing.T) {
	e := newEnds(t)
	e.da.FailAH(syscall.ETIMEDOUT)
	e.send()
	e.a.Step()
	if errno := e.send(); errno != syscall.EHOSTUNREACH || e.a.Status().HandleErrors != 1 {
		t.Errorf("%v, %+v", errno, e.a.Status())
	}
	e.da.FailAH(0)
	e.a.Time += 2 * rdma.CheckEvery
	e.works(t)
}

func TestHardwareTimes(t *testing.T) {
	e := newEnds(t)
	e.da.SetPresent(false)
	e.a.Time += rdma.CheckEvery
	e.a.Step()
	e.da.SetClockRate(156250) // kHz: the fake clock counts whole milliseconds
	e.da.SetPresent(true)
	e.a.Time += rdma.CheckEvery
	e.a.Step()
	e.learn()
	e.works(t)
	if !e.a.HasHardwareStamps() {
		t.Fatal("no hardware time stamps")
	}
	var at int64
	if n := e.a.DrainSent(func(_ uint32, hw int64) { at = hw }); n == 0 || at != 1e18 {
		t.Errorf("%d completions, at %d; want 1e18 ns", n, at)
	}
	if device, system, _, err := e.a.CrossTimestamp(); err != nil || device != 1e18 || system != 1e18 {
		t.Errorf("%d %d %v", device, system, err)
	}
	if _, _, _, err := e.b.CrossTimestamp(); !errors.Is(err, rdma.ErrNoClock) {
		t.Errorf("%v, want ErrNoClock", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for field, change := range map[string]func(*rdma.Options){
		"device: ":       func(o *rdma.Options) { o.Device = "" },
		"port: 0":        func(o *rdma.Options) { o.Port = 0 },
		"qkey: 0x800":    func(o *rdma.Options) { o.QKey = 1 << 31 },
		"qkey: 0x0":      func(o *rdma.Options) { o.QKey = 0 },
		"pkey: ":         func(o *rdma.Options) { o.PKey = 0x8000 },
		"pkey_index: -1": func(o *rdma.Options) { o.PKeyIndex = new(int); *o.PKeyIndex = -1 },
		"busy_poll: ":    func(o *rdma.Options) { o.Busy = -1 },
	} {
		o := options("rdma0")
		change(&o)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%v; want one that begins with %q", err, field)
		}
	}
	if _, err := rdma.Open(options("rdma0"), nil, slog.New(slog.DiscardHandler)); !errors.Is(err, rdma.ErrNotBuilt) {
		t.Errorf("%v, want ErrNotBuilt", err)
	}
}

// nodes maps every device to one interface and one node.
type nodes struct {
	rdmadev.Mapper
	uverbs string
	err    error // of the node
}

func (n nodes) DeviceInterfaces(string) ([]string, error) { return []string{"eth0"}, nil }
func (n nodes) UverbsNode(string) (string, error)         { return n.uverbs, n.err }
func (n nodes) UmadNode(_ string, port int) (string, error) {
	return fmt.Sprintf("/dev/infiniband/umad%d", port), nil
}

func TestSelfTest(t *testing.T) {
	node := filepath.Join(t.TempDir(), "uverbs0")
	if err := os.WriteFile(node, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(v rdma.Verbs, n nodes) (rdma.SelfTestResult, string) {
		var b strings.Builder
		return rdma.SelfTest(t.Context(), v, n, &b), b.String()
	}
	usable := nodes{uverbs: node}
	if r, text := run(nil, usable); r != rdma.SelfTestNotBuilt || !strings.Contains(text, "-tags rdma") {
		t.Errorf("%v %q", r, text)
	}
	f := rdmatest.New(func() int64 { return 1 })
	if r, text := run(f.HostVerbs("h1"), usable); r != rdma.SelfTestNoDevices || !strings.Contains(text, "devices: none") {
		t.Errorf("%v %q", r, text)
	}
	f.AddDevice("h1", "rdma0", "10.0.0.1")
	r, text := run(f.HostVerbs("h1"), usable)
	for _, want := range []string{"rdma0: interfaces [eth0], verbs by " + node, "rdma0 port 1: management datagrams by /dev/infiniband/umad1", "rdma0 port 1: ok, 10 datagrams"} {
		if r != rdma.SelfTestOK || !strings.Contains(text, want) {
			t.Errorf("%v %q, want %q", r, text, want)
		}
	}
	for _, tt := range []struct {
		nodes nodes
		want  string
	}{
		{nodes{uverbs: node + "1"}, "rdma0: FAILED: want access for reading and writing: open " + node + "1: no such file"},
		{nodes{err: fs.ErrNotExist}, "rdma0: FAILED: is ib_uverbs loaded? file does not exist"},
		{nodes{err: syscall.EIO}, "rdma0: FAILED: verbs node: input/output error"},
	} {
		// The port is tried all the same.
		if r, text := run(f.HostVerbs("h1"), tt.nodes); r != rdma.SelfTestFailed || !strings.Contains(text, tt.want) || !strings.Contains(text, "rdma0 port 1: ok") {
			t.Errorf("%v %q, want %q", r, text, tt.want)
		}
	}
	f.AddDevice("h1", "rdma1")
	if r, text := run(f.HostVerbs("h1"), usable); r != rdma.SelfTestFailed || !strings.Contains(text, "rdma1 port 1: FAILED: RDMA device rdma1 port 1: GID table: the table is empty") {
		t.Errorf("%v %q", r, text)
	}
}

// A receiver that waits is woken once for new packets, and again while some are left.
func TestReadableWhileSomethingIsLeft(t *testing.T) {
	e := newEnds(t)
	e.works(t)
	poll, err := unix.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, poll)
	if err := poll.Add(e.b.FD(), 1); err != nil {
		t.Fatal(err)
	}
	readable := func(want bool) {
		t.Helper()
		if n, err := poll.Wait(0); err != nil || n == 1 != want {
			t.Errorf("readable: %v, %v; want %v", n == 1, err, want)
		}
	}
	e.b.Recv()
	readable(false)
	for range rdma.BatchSize + 8 {
		e.send()
	}
	readable(true)
	if n := e.b.Recv(); n != rdma.BatchSize {
		t.Errorf("%d packets in a batch, want %d", n, rdma.BatchSize)
	}
	readable(true)
	if n := e.b.Recv(); n != 8 {
		t.Errorf("%d packets are left, want 8", n)
	}
	readable(false)
}

// One queue pair serves hundreds of peers, each by its own address handle.
func TestHundredsOfPeers(t *testing.T) {
	const peers = 300
	f := rdmatest.New(func() int64 { return 1 })
	d := f.AddDevice("h0", "rdma0", "10.1.0.0")
	a, err := rdma.NewIdle(options("rdma0"), f.HostVerbs("h0"))
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, a)
	me := a.Status()
	var far []*rdma.Idle
	var known []rdma.Peer
	for i := range peers {
		host, addr := fmt.Sprintf("h%d", i+1), netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		f.AddDevice(host, "rdma0", addr.String())
		p, err := rdma.NewIdle(options("rdma0"), f.HostVerbs(host))
		if err != nil {
			t.Fatal(err)
		}
		closeAfter(t, p)
		p.SetPeers([]rdma.Peer{{GID: me.GID, QPN: me.QPN, QKey: 77}})
		known = append(known, rdma.Peer{GID: addr, QPN: p.Status().QPN, QKey: 77})
		far = append(far, p)
	}
	a.SetPeers(known)
	missed := 0
	all := func() {
		for i := range known {
			if a.OutBuffer() == nil {
				if _, err := a.Send(func(int, syscall.Errno) { missed++ }); err != nil {
					t.Fatal(err)
				}
			}
			a.Commit(copy(a.OutBuffer(), "probe"), rdma.CanonicalGID(known[i].GID), 49152, 862, 0, uint32(i))
		}
		if _, err := a.Send(func(int, syscall.Errno) { missed++ }); err != nil {
			t.Fatal(err)
		}
	}
	all()
	a.Step()
	if missed != peers || d.HandleCount() != peers {
		t.Fatalf("%d packets without an address handle, %d handles; want %d of both", missed, d.HandleCount(), peers)
	}
	all()
	for i, p := range far {
		if n := p.Recv(); n != 1 {
			t.Errorf("%d packets came to peer %d", n, i)
		}
	}
	if missed != peers {
		t.Errorf("%d packets were not sent", missed-peers)
	}
}

// FuzzArrival parses what a device may report of a datagram.
func FuzzArrival(f *testing.F) {
	f.Add([]byte{20: 0x45, 28: 64, 35: 1, 39: 2}, uint32(3), uint32(49152<<16|862), uint32(17), uint32(84))
	f.Fuzz(func(t *testing.T, grh []byte, flags, imm, qpn, length uint32) {
		a, ok := rdma.Arrived(grh, flags, imm, qpn, length)
		if ok && (len(a.Data) > rdma.MaxDatagram || uint32(len(a.Data)) > length || a.Truncated != (length > rdma.MaxDatagram) || flags&3 != 3) {
			t.Fatalf("%+v of %d octets, flags %d", a, length, flags)
		}
	})
}

// A packet allocates no memory, when it is sent and when it is received.
func TestPacketsAllocateNothing(t *testing.T) {
	e := newEnds(t)
	e.works(t)
	failed := func(int, syscall.Errno) {}
	dst := gid("10.0.0.2")
	stamp := func(uint32, int64) {}
	before := testing.AllocsPerRun(10, func() {})
	if n := testing.AllocsPerRun(100, func() {
		buf := e.a.OutBuffer()
		e.a.Commit(copy(buf, "probe"), dst, 49153, 862, 0x6a, 1)
		if _, err := e.a.Send(failed); err != nil {
			t.Fatal(err)
		}
		e.a.DrainSent(stamp)
		if e.b.Recv() != 1 {
			t.Fatal("nothing came")
		}
	}); n > before {
		t.Errorf("%v allocations per packet", n)
	}
}
