package ccl

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

// listening is a listener that runs until the test ends, and what came of it.
type listening struct {
	*Listener
	path string
	mu   sync.Mutex
	recs []Record
	uids map[uint32]bool
}

func listen(t *testing.T, c ListenerConfig) *listening {
	t.Helper()
	x := &listening{path: filepath.Join(t.TempDir(), "nccl.sock"), uids: map[uint32]bool{}}
	c.Path = x.path
	c.Sink = func(uid uint32, rec Record) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.recs, x.uids[uid] = append(x.recs, rec), true
	}
	var err error
	if x.Listener, err = Listen(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(x.path); !os.IsNotExist(err) {
			t.Errorf("the socket is left: %v", err)
		}
	})
	return x
}

// send sends text on a connection of its own, and closes it.
func (x *listening) send(t *testing.T, text string) {
	t.Helper()
	conn, err := net.Dial("unix", x.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// wait waits until the counts are as they should be.
func (x *listening) wait(t *testing.T, ok func(ListenerStats) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(x.Stats()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the counts stay at %+v", x.Stats())
		}
	}
}

func TestListenerReplacesWhatLinesSay(t *testing.T) {
	x := listen(t, ListenerConfig{Source: func(p unix.Peer) Source {
		if p.UID != uint32(os.Getuid()) || p.PID != os.Getpid() {
			t.Errorf("the peer is %+v, and not this process", p)
		}
		return Source{Job: "t7", Host: "h3"}
	}})
	x.send(t, `{"kind":"comm","job":"forged","comm":"0x1","account":"ann","n_ranks":4,"ranks":[{"rank":2,"host":"forged","nic":"forged/eth0"}]}
{"kind":"op","job":"forged","comm":"0x1","host":"forged","rank":2,"n_ranks":4,"account":"ann","seq":7,"op":"AllReduce","exec_ns":5,"clock_error_ns":1}
{"kind":"edge","job":"forged","comm":"0x1","rank":2,"n_ranks":4,"account":"ann","seq":7,"peer":3,"direction":"send","wire_ns":3,"clock_error_ns":1}
{"kind":"beat","comm":"0x1","rank":2,"n_ranks":4,"account":"ann","at_ns":9,"alive":true}
`)
	x.wait(t, func(s ListenerStats) bool { return s.Records == 4 && s.Connections == 0 })
	from := From{Job: "t7", Comm: "0x1", Rank: 2, NRanks: 4, Host: "h3"}
	alive := true
	want := []Record{
		&Comm{Job: "t7", Comm: "0x1", NRanks: 4, Ranks: []Member{{Rank: 2, Host: "h3"}}},
		&Op{From: from, Seq: 7, Op: "AllReduce", ExecNS: KnownNanos(5), State: Completed},
		&Edge{From: from, Seq: 7, Peer: 3, Direction: Send, Wire: KnownNanos(3), State: string(Completed)},
		&Beat{From: from, AtNS: KnownNanos(9), Alive: &alive},
	}
	if o := x.recs[1].(*Op); o.Process == 0 {
		t.Error("the operation is of no process")
	} else {
		o.Process = 0
	}
	if !reflect.DeepEqual(x.recs, want) {
		t.Errorf("records are\n%s, and should be\n%s", recordText(t, x.recs), recordText(t, want))
	}
	if !x.uids[uint32(os.Getuid())] || len(x.uids) != 1 {
		t.Errorf("users are %v", x.uids)
	}
}

// recordText returns records as lines.
func recordText(t *testing.T, recs []Record) string {
	t.Helper()
	var text []byte
	for _, r := range recs {
		var err error
		if text, err = AppendRecord(text, r); err != nil {
			t.Fatal(err)
		}
	}
	return string(text)
}

func TestListenerCountsWhatIsMissing(t *testing.T) {
	x := listen(t, ListenerConfig{})
	x.send(t, `{"kind":"dropped","reason":"ring","count":5}
{"kind":"dropped","reason":"socket","count":2}
{"kind":"dropped","reason":"copy_engine","count":3}
{"kind":"dropped","reason":"parent","count":18446744073709551615}
{"kind":"dropped","count":-1}
{"kind":"op"
`+strings.Repeat("x", MaxSocketLine+1)+`
{"kind":"beat","comm":"0x1","rank":2,"n_ranks":4,"at_ns":9}
{"kind":"beat","comm":"0x1","rank":2,"n_`)
	x.wait(t, func(s ListenerStats) bool { return s.Lines == 9 && s.Connections == 0 })
	s := x.Stats()
	want := map[Reason]uint64{DroppedByWriter: 7, DroppedCopyEngine: 3, DroppedParent: maxDropCount}
	if s.Records != 1 || s.Unreadable != 4 || !reflect.DeepEqual(s.Dropped, want) {
		t.Errorf("counts are %+v, and the drops should be %v", s, want)
	}
}

func TestListenerBoundsConnections(t *testing.T) {
	x := listen(t, ListenerConfig{})
	var open []net.Conn
	for range MaxUserConnections {
		conn, err := net.Dial("unix", x.path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		open = append(open, conn)
	}
	x.wait(t, func(s ListenerStats) bool { return s.Connections == MaxUserConnections })
	conn, err := net.Dial("unix", x.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a connection beyond the limit is served")
	}
	open[0].Close()
	x.wait(t, func(s ListenerStats) bool { return s.Connections == MaxUserConnections-1 && s.Refused == 1 })
	x.send(t, `{"kind":"beat","comm":"0x1","rank":2,"n_ranks":4,"at_ns":9}`+"\n")
	x.wait(t, func(s ListenerStats) bool { return s.Records == 1 })
}

func TestListenerReadsAFastUserSlowly(t *testing.T) {
	x := listen(t, ListenerConfig{LineRate: 100})
	began := time.Now()
	x.send(t, strings.Repeat(`{"kind":"beat","comm":"0x1","rank":2,"n_ranks":4,"at_ns":9}`+"\n", 130))
	x.wait(t, func(s ListenerStats) bool { return s.Records == 130 })
	if took := time.Since(began); took < 250*time.Millisecond {
		t.Errorf("130 lines at 100 a second, after 100 at once, took %v", took)
	}
}

func TestListenSocket(t *testing.T) {
	x := listen(t, ListenerConfig{Group: fmt.Sprint(os.Getgid())})
	info, err := os.Stat(x.path)
	if err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("the socket has mode %v: %v", info.Mode(), err)
	}
	dir := t.TempDir()
	file, stale := filepath.Join(dir, "file"), filepath.Join(dir, "stale")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	old.Close()
	l, err := Listen(ListenerConfig{Path: stale})
	if err != nil {
		t.Fatalf("the socket of an agent that has ended is in the way: %v", err)
	}
	l.listener.Close()
	for _, c := range []struct {
		config ListenerConfig
		want   string
	}{
		{ListenerConfig{Path: x.path}, "another process listens at " + x.path},
		{ListenerConfig{Path: file}, file + " exists and is no socket"},
		{ListenerConfig{Path: filepath.Join(dir, "none", "sock")}, "no such file or directory"},
		{ListenerConfig{Path: filepath.Join(dir, "sock"), Group: "no such group"}, `the name or number of a group is expected, and not "no such group"`},
	} {
		if _, err := Listen(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("the error of %+v is %v, and should have %q", c.config, err, c.want)
		}
	}
}
