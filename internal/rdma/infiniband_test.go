package rdma_test

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/rdma/rdmatest"
)

const (
	gidA = "fe80::2:c903:0:a1"
	gidB = "fe80::2:c903:0:b1"
)

// ibEnds represents two ports of one InfiniBand subnet.
type ibEnds struct {
	f      *rdmatest.Fabric
	a, b   *rdma.Idle
	da, db *rdmatest.Device
}

func openIdle(t *testing.T, o rdma.Options, v rdma.Verbs) *rdma.Idle {
	t.Helper()
	p, err := rdma.NewIdle(o, v)
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, p)
	return p
}

func newIBEnds(t *testing.T, a, b rdma.Options) *ibEnds {
	t.Helper()
	e := &ibEnds{f: rdmatest.New(func() int64 { return 1e18 })}
	e.da, e.db = e.f.AddInfiniBandDevice("h1", "mlx5_0", 11, gidA), e.f.AddInfiniBandDevice("h2", "mlx5_0", 12, gidB)
	e.a, e.b = openIdle(t, a, e.f.HostVerbs("h1")), openIdle(t, b, e.f.HostVerbs("h2"))
	e.learn()
	return e
}

// learn sets the queue pair of each end as the peer of the other, with the LID that the port has now.
func (e *ibEnds) learn() {
	sa, sb := e.a.Status(), e.b.Status()
	e.a.SetPeers([]rdma.Peer{{GID: sb.GID, QPN: sb.QPN, QKey: 77, LID: sb.LID}})
	e.b.SetPeers([]rdma.Peer{{GID: sa.GID, QPN: sa.QPN, QKey: 77, LID: sa.LID}})
}

// send sends a datagram from a to b after its address handle was made. It returns how many arrived, and the reason if
// the datagram was not posted.
func (e *ibEnds) send() (arrived int, errno syscall.Errno) {
	for range 2 {
		errno = 0
		e.a.Commit(copy(e.a.OutBuffer(), "probe"), netip.MustParseAddr(gidB), 49153, 862, 0x6a, 1)
		if _, err := e.a.Send(func(_ int, x syscall.Errno) { errno = x }); err != nil {
			panic(err)
		}
		e.a.Step()
	}
	return e.b.Recv(), errno
}

// Rule 7: an address handle has the peer's LID, the class's service level and a global header, by which the receiver
// knows the sender.
func TestInfiniBandAddressHandle(t *testing.T) {
	e := newIBEnds(t, options("mlx5_0"), options("mlx5_0"))
	var sl [64]uint8
	sl[0x6a>>2] = 5
	e.a.SetClasses(sl)
	if n, errno := e.send(); n == 0 || errno != 0 {
		t.Fatalf("%d arrived, %v; %+v", n, errno, e.a.Status())
	}
	want := rdma.Target{GID: netip.MustParseAddr(gidB), LID: 12, FlowLabel: rdma.FlowLabel(49153, 862), SL: 5, TClass: 0x6a, HopLimit: 64}
	if got := e.da.Targets(); len(got) != 1 || got[0] != want {
		t.Errorf("address handles %+v, want %+v", got, want)
	}
	if x := e.b.ArrivalAt(0); x.From != netip.MustParseAddr(gidA) || x.TClass != 0x6a || x.Hops != 64 || string(x.Data) != "probe" {
		t.Errorf("%+v", x)
	}
	if s := e.a.Status(); !s.InfiniBand || s.LID != 11 || s.GIDType != rdma.GIDInfiniBand || s.Why != "" {
		t.Errorf("%+v", s)
	}
}

// Rule 7: where a packet would not reach the peer, it is not sent, and where it would reach another port, that drops it.
func TestInfiniBandDestinations(t *testing.T) {
	for _, tt := range []struct {
		name  string
		peer  rdma.Peer // QPN and Q_Key are those of the peer
		errno syscall.Errno
		text  string
	}{
		{"no LID", rdma.Peer{GID: netip.MustParseAddr(gidB)}, syscall.EHOSTUNREACH, ""},
		{"multicast LID", rdma.Peer{GID: netip.MustParseAddr(gidB), LID: 0xc001}, syscall.EHOSTUNREACH, ""},
		{"another LID", rdma.Peer{GID: netip.MustParseAddr(gidB), LID: 13}, 0, ""},
		{"the LID of another port", rdma.Peer{GID: netip.MustParseAddr(gidB), LID: 11}, 0, ""},
		{"the LID of the port", rdma.Peer{GID: netip.MustParseAddr(gidB), LID: 12}, 0, "probe"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newIBEnds(t, options("mlx5_0"), options("mlx5_0"))
			tt.peer.QPN, tt.peer.QKey = e.b.Status().QPN, 77
			e.a.SetPeers([]rdma.Peer{tt.peer})
			n, errno := e.send()
			if errno != tt.errno || n > 0 != (tt.text != "") {
				t.Errorf("%d arrived, %v; want %v and %q", n, errno, tt.errno, tt.text)
			}
			if failed := e.a.Status().HandleErrors > 0; failed != (tt.errno != 0) {
				t.Errorf("address handle failed: %v", failed)
			}
		})
	}
	// The LID of a port in another subnet belongs to another port in this one.
	e := newIBEnds(t, options("mlx5_0"), options("mlx5_0"))
	far := netip.MustParseAddr("fec0::2:c903:0:b1")
	e.a.SetPeers([]rdma.Peer{{GID: far, QPN: 17, QKey: 77, LID: 12}})
	var errno syscall.Errno
	for range 2 {
		e.a.Commit(copy(e.a.OutBuffer(), "probe"), far, 49153, 862, 0, 1)
		if _, err := e.a.Send(func(_ int, x syscall.Errno) { errno = x }); err != nil {
			t.Fatal(err)
		}
		e.a.Step()
	}
	if errno != syscall.EHOSTUNREACH || len(e.da.Targets()) != 0 {
		t.Errorf("%v, %+v; want no packet to another subnet", errno, e.da.Targets())
	}
}

// Rule 7: a new LID is noticed with and without an event, and needs new address handles at the peer only. A port that
// has none for a while has not changed it.
func TestInfiniBandLIDChanges(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		e := newIBEnds(t, options("mlx5_0"), options("mlx5_0"))
		if n, errno := e.send(); n == 0 {
			t.Fatal(errno)
		}
		before := e.b.Status()
		e.db.SetLID(40, deaf)
		if deaf {
			e.b.Time += rdma.CheckEvery
		}
		e.b.Step()
		if s := e.b.Status(); s.LID != 40 || s.QPN != before.QPN || s.Counts[rdma.CountLIDChanged] != 1 || e.b.LIDChanges() != 1 || s.Why != "" {
			t.Errorf("deaf %v: %+v", deaf, s)
		}
		if n, errno := e.send(); n != 0 || errno != 0 {
			t.Errorf("%d arrived by the old LID, %v", n, errno)
		}
		e.learn()
		if n, errno := e.send(); n == 0 || errno != 0 {
			t.Errorf("%d arrived by the new LID, %v; %+v", n, errno, e.da.Targets())
		}
		// The port goes down, has no LID until it is active, and keeps the one that it had.
		e.db.SetActive(false)
		e.db.SetLID(0, false)
		e.b.Step()
		if s := e.b.Status(); s.LID != 0 || !strings.Contains(s.Why, "port 1: the port is down, want active") {
			t.Errorf("%+v", s)
		}
		e.db.SetActive(true)
		e.b.Step()
		if s := e.b.Status(); s.LID != 0 || !strings.Contains(s.Why, "the port has no LID, want one from a subnet manager") {
			t.Errorf("%+v", s)
		}
		e.db.SetLID(40, false)
		e.b.Step()
		if s := e.b.Status(); s.LID != 40 || s.Counts[rdma.CountLIDChanged] != 1 || s.Why != "" {
			t.Errorf("%+v", s)
		}
		e.db.SetLID(41, false)
		e.db.SetPresent(false) // the LID changes while there is no queue pair
		e.b.Time += rdma.CheckEvery
		e.b.Step()
		e.db.SetPresent(true)
		e.b.Time += rdma.CheckEvery
		e.b.Step()
		if s := e.b.Status(); s.LID != 41 || s.Counts[rdma.CountLIDChanged] != 2 {
			t.Errorf("%+v", s)
		}
	}
}

// Without a global header, the octets before the payload are not valid, whatever is in them.
func TestInfiniBandWithoutHeaders(t *testing.T) {
	e := newIBEnds(t, options("mlx5_0"), options("mlx5_0"))
	e.db.SetHeadless(true)
	if n, errno := e.send(); n != 0 || errno != 0 || e.b.Status().Headless == 0 {
		t.Errorf("%d taken, %v; %+v", n, errno, e.b.Status())
	}
}

// A P_Key is looked up in the port's table, or is that of an entry, which has to have one.
func TestInfiniBandPartitions(t *testing.T) {
	f := rdmatest.New(func() int64 { return 1 })
	index := func(i int) *int { return &i }
	f.AddInfiniBandDevice("h1", "mlx5_0", 11, gidA).SetPKeys(0x7fff, 0x8003, 0)
	for _, tt := range []struct {
		pkey  uint16
		index *int
		ok    bool
	}{{0xffff, nil, true}, {0x8003, nil, true}, {0x0003, nil, true}, {0x8004, nil, false}, {0, index(0), true}, {0, index(1), true}, {0, index(2), false}, {0, index(3), false}} {
		o := options("mlx5_0")
		o.PKey, o.PKeyIndex = tt.pkey, tt.index
		s := openIdle(t, o, f.HostVerbs("h1")).Status()
		if s.Queue != tt.ok || strings.Contains(s.Why, "find the P_Key in the port's table: no such file") == tt.ok {
			t.Errorf("P_Key %#x, index %v: %+v", tt.pkey, tt.index, s)
		}
	}
	// Limited members of a partition reach full members only.
	for _, tt := range []struct {
		a, b uint16
		want bool
	}{{0xffff, 0x7fff, true}, {0x7fff, 0x7fff, false}, {0x8003, 0x8003, true}, {0x8003, 0xffff, false}} {
		a, b := options("mlx5_0"), options("mlx5_0")
		a.PKey, b.PKey = tt.a, tt.b
		f := rdmatest.New(func() int64 { return 1 })
		e := &ibEnds{f: f, da: f.AddInfiniBandDevice("h1", "mlx5_0", 11, gidA), db: f.AddInfiniBandDevice("h2", "mlx5_0", 12, gidB)}
		e.da.SetPKeys(tt.a)
		e.db.SetPKeys(tt.b)
		e.a, e.b = openIdle(t, a, f.HostVerbs("h1")), openIdle(t, b, f.HostVerbs("h2"))
		e.learn()
		if n, errno := e.send(); n > 0 != tt.want {
			t.Errorf("from %#x to %#x: %d arrived, %v", tt.a, tt.b, n, errno)
		}
	}
}

// On RoCE nothing has a LID, whatever a peer is said to have.
func TestRoCEHasNoLIDs(t *testing.T) {
	e := newEnds(t)
	e.a.SetPeers([]rdma.Peer{{GID: gid("10.0.0.2"), QPN: e.b.Status().QPN, QKey: 77, LID: 9}})
	e.works(t)
	if got := e.da.Targets(); len(got) != 1 || got[0].LID != 0 || got[0].GID != gid("10.0.0.2") {
		t.Errorf("address handles %+v", got)
	}
	if s := e.a.Status(); s.InfiniBand || s.LID != 0 || s.Counts[rdma.CountLIDChanged] != 0 {
		t.Errorf("%+v", s)
	}
}
