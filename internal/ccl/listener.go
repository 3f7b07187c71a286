package ccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"golang.org/x/time/rate"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// Limits of a listener.
const (
	MaxConnections     = 256      // at a time
	MaxUserConnections = 128      // of them, of one user
	MaxSocketLine      = 64 << 10 // bytes of a line; those of the plugin have at most 8 KiB
	MaxUserLines       = 50000    // lines a second that are read from one user
	maxDropCount       = 1 << 32  // that one line may say
)

// ListenerConfig says where a listener listens, and what it makes of the lines.
type ListenerConfig struct {
	Path  string // of the socket; its directory exists
	Group string // name or number of the group that may connect, besides the owner; empty: the group of the process
	// Source returns whose records a process sends. It is called once for each connection.
	Source func(unix.Peer) Source
	// Sink takes the records. One goroutine calls it at a time.
	Sink func(uid uint32, rec Record)
	// LineRate overrides MaxUserLines in tests; 0: MaxUserLines.
	LineRate rate.Limit
}

// ListenerStats says what a listener has read and what it refused.
type ListenerStats struct {
	Counts
	Connections int    // that are open
	Refused     uint64 // connections beyond the limits, or of which the kernel does not say whose they are
}

// Listener takes records from the profiler plugin (deploy/nccl) over a Unix socket: a JSON line each, as a file of records
// has them. Its rules:
//
//  1. Who sends is what the kernel says of the connection. Job, host, account, NIC and clock error of a line are replaced.
//  2. A user who sends more than MaxUserLines a second is read more slowly. The plugin counts what it cannot send, and says
//     so in lines of the kind dropped.
//  3. A line that cannot be read is counted and skipped, and the connection goes on.
type Listener struct {
	config   ListenerConfig
	listener *net.UnixListener

	mu    sync.Mutex // of what follows
	stats ListenerStats
	users map[uint32]*listenerUser
	sink  sync.Mutex // held while Sink runs
}

// listenerUser is a user with open connections.
type listenerUser struct {
	connections int
	limit       *rate.Limiter
}

// Listen begins to listen. A socket that was left by an agent that has ended is replaced. The socket has mode 0660.
func Listen(c ListenerConfig) (*Listener, error) {
	if c.LineRate == 0 {
		c.LineRate = MaxUserLines
	}
	gid, err := groupNumber(c.Group)
	if err != nil {
		return nil, err
	}
	if err := removeStaleSocket(c.Path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen for profiler plugins: %w", err)
	}
	if err := os.Chmod(c.Path, 0o660); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("cannot set the mode of the socket for profiler plugins: %w", err)
	}
	if gid >= 0 {
		if err := os.Chown(c.Path, -1, gid); err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("cannot give the socket for profiler plugins to group %q: %w", c.Group, err)
		}
	}
	return &Listener{config: c, listener: l, users: map[uint32]*listenerUser{}}, nil
}

// groupNumber returns the number of a group, or -1 for the empty name.
func groupNumber(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("group of the socket for profiler plugins: the name or number of a group is expected, and not %q", name)
	}
	return strconv.Atoi(g.Gid)
}

// removeStaleSocket removes the socket of an agent that has ended. The error says what is in the way otherwise.
func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot look at the socket for profiler plugins: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("socket for profiler plugins: %s exists and is no socket", path)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return fmt.Errorf("socket for profiler plugins: another process listens at %s", path)
	}
	return os.Remove(path)
}

// Stats returns the counts so far.
func (l *Listener) Stats() ListenerStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Dropped = nil
	s.Add(Counts{Dropped: l.stats.Dropped})
	return s
}

// Serve takes connections until ctx is done, and returns when all of them are closed and the socket is removed. The error
// is that of accepting.
func (l *Listener) Serve(ctx context.Context) error {
	var connections sync.WaitGroup
	defer connections.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.listener.Close() })
	defer stop()
	for {
		conn, err := l.listener.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			_ = l.listener.Close()
			return fmt.Errorf("cannot accept a profiler plugin: %w", err)
		}
		peer, err := unix.PeerOf(conn)
		var u *listenerUser
		if err == nil {
			u = l.admit(peer.UID)
		}
		if u == nil {
			_ = conn.Close()
			l.update(func(s *ListenerStats) { s.Refused++ })
			continue
		}
		connections.Go(func() {
			closing := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer closing()
			defer l.dismiss(peer.UID)
			defer conn.Close()
			l.read(ctx, conn, peer, u)
		})
	}
}

// admit returns the user of a new connection, or nil if there are too many.
func (l *Listener) admit(uid uint32) *listenerUser {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.users[uid]
	if l.stats.Connections == MaxConnections || u != nil && u.connections == MaxUserConnections {
		return nil
	}
	if u == nil {
		u = &listenerUser{limit: rate.NewLimiter(l.config.LineRate, max(1, int(l.config.LineRate)))}
		l.users[uid] = u
	}
	u.connections++
	l.stats.Connections++
	return u
}

// dismiss forgets a connection, and its user with the last one.
func (l *Listener) dismiss(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Connections--
	if u := l.users[uid]; u.connections > 1 {
		u.connections--
	} else {
		delete(l.users, uid)
	}
}

func (l *Listener) update(fn func(*ListenerStats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn(&l.stats)
}

// read reads the lines of a connection to its end.
func (l *Listener) read(ctx context.Context, conn *net.UnixConn, peer unix.Peer, u *listenerUser) {
	var src Source
	if l.config.Source != nil {
		src = l.config.Source(peer)
	}
	process := newProcess()
	// An error is that of a connection that ended amid a line, or of ctx.
	_ = fabric.ReadLines(conn, MaxSocketLine, func(_ int, line []byte) error {
		if err := u.limit.Wait(ctx); err != nil {
			return err
		}
		l.takeLine(peer.UID, src, process, line)
		return nil
	}, func(fabric.LineError) {
		l.update(func(s *ListenerStats) { s.Lines++; s.Unreadable++ })
	})
}

// takeLine makes a record of a line and hands it on.
func (l *Listener) takeLine(uid uint32, src Source, process uint64, line []byte) {
	if bytes.HasPrefix(line, []byte(`{"kind":"dropped"`)) {
		why, n, err := parseDrop(line)
		l.update(func(s *ListenerStats) {
			s.Lines++
			if err != nil {
				s.Unreadable++
				return
			}
			s.drop(why, n)
		})
		return
	}
	rec, err := ParseRecord(line)
	if err != nil {
		l.update(func(s *ListenerStats) { s.Lines++; s.Unreadable++ })
		return
	}
	own(rec, src)
	if o, ok := rec.(*Op); ok {
		o.Process = process
	}
	l.sink.Lock()
	l.config.Sink(uid, rec)
	l.sink.Unlock()
	l.update(func(s *ListenerStats) { s.Lines++; s.Records++ })
}

// parseDrop reads what the plugin counts instead of sending.
func parseDrop(line []byte) (Reason, uint64, error) {
	var d struct {
		Reason string `json:"reason"`
		Count  uint64 `json:"count"`
	}
	if err := json.Unmarshal(line, &d); err != nil {
		return "", 0, fabric.DescribeJSONError(err)
	}
	why := DroppedByWriter
	switch d.Reason {
	case "copy_engine":
		why = DroppedCopyEngine
	case "untimed":
		why = DroppedTimes
	case "parent":
		why = DroppedParent
	case "comms":
		why = DroppedComm
	}
	return why, min(d.Count, maxDropCount), nil
}

// own replaces what a line cannot know: whose the record is, where it was made, and how well the host's clock is known.
func own(rec Record, src Source) {
	SetAccount(rec, "")
	set := func(f *From) { f.Job, f.Host = src.Job, src.Host }
	switch r := rec.(type) {
	case *Comm:
		r.Job = src.Job
		for i := range r.Ranks {
			r.Ranks[i].Host, r.Ranks[i].NIC = src.Host, ""
		}
		if src.Host == "" {
			r.Ranks = nil
		}
	case *Op:
		set(&r.From)
		r.ClockError, r.GapNS = Nanos{}, Nanos{}
	case *Edge:
		set(&r.From)
		r.ClockError = Nanos{}
	case *Beat:
		set(&r.From)
	}
}
