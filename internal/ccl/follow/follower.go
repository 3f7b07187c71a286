package follow

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/unix"
)

// Follower owns the readers of a node and holds what they read. Its rules:
//
//  1. Each directory is read with the rights of its owner: files of other users in it are refused.
//  2. A communicator belongs to the user whose files have it first. Records of it from another user are dropped until the
//     first one has written none for 10 minutes. Communicators of Flight Recorder are not unique, and belong to none.
//  3. The job and the host of a record are those of the configuration, whatever a file says.
//  4. The account of a record is the owner of the file, or the user of the connection, by the kernel. That of a record of the RAS
//     service is unknown, since any process can answer there.
//  5. The clock error of a record is what the node knows of its own clock since the record's beginning, whatever a line says.
//
// Poll is not for concurrent use with itself; all other methods may be called at any time.
type Follower struct {
	config Config
	log    *slog.Logger
	plugin *ccl.Listener // nil without a socket

	// These belong to Poll.
	dirs    map[string]*directory // by name, "" is the directory itself
	refused ccl.Refusals          // subdirectories that are not read
	ended   fileCounts            // of directories that are no longer followed
	faults  map[string]string     // logged errors of directories, by name

	mu      sync.Mutex
	sampler *ccl.Sampler
	ledger  ledger
	files   fileCounts // as of the last poll
	failed  uint64     // polls of a directory
	clock   clockBounds
	account accounts
	ras     rasCounts
}

// fileCounts says what was read of files.
type fileCounts struct {
	ccl.Counts
	files          int // that are followed, and dumps
	cut, truncated uint64
	refused        map[ccl.RefusalReason]uint64
}

// add adds what was counted elsewhere.
func (c *fileCounts) add(o *fileCounts) {
	c.Add(o.Counts)
	c.files, c.cut, c.truncated = c.files+o.files, c.cut+o.cut, c.truncated+o.truncated
	c.addRefused(o.refused)
}

// addRefused adds files that were refused.
func (c *fileCounts) addRefused(total map[ccl.RefusalReason]uint64) {
	if c.refused == nil {
		c.refused = map[ccl.RefusalReason]uint64{}
	}
	for why, n := range total {
		c.refused[why] += n
	}
}

// New returns a Follower that has read nothing yet. now is the beginning of its cursors. It listens at the socket already;
// Run closes it.
func New(c Config, now time.Time, log *slog.Logger) (*Follower, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	f := &Follower{config: c, log: log, dirs: map[string]*directory{}, faults: map[string]string{},
		sampler: ccl.NewSampler(ccl.SamplerConfig{}, now), ledger: newLedger(), ras: newRASCounts()}
	if c.Socket == "" {
		return f, nil
	}
	var err error
	f.plugin, err = ccl.Listen(ccl.ListenerConfig{Path: c.Socket, Group: c.SocketGroup,
		Source: func(unix.Peer) ccl.Source { return ccl.Source{Job: c.Job, Host: c.Node} },
		Sink:   func(uid uint32, rec ccl.Record) { f.Add(time.Now(), &uid, rec) }})
	return f, err
}

// Run reads until ctx ends. A poll of the files is followed by a pause of at least its own time, so that files that grow
// very fast take no more than half a core.
func (f *Follower) Run(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	if f.config.RAS != "" {
		loops.Go(func() {
			every(ctx, rasEvery, func(now time.Time) { f.PollRAS(ctx, now) })
		})
	}
	if f.plugin != nil {
		loops.Go(func() {
			if err := f.plugin.Serve(ctx); err != nil {
				f.log.Error("cannot take records of profiler plugins any more", "socket", f.config.Socket, "err", err)
			}
		})
	}
	defer f.closeFiles()
	every(ctx, pollEvery, f.Poll)
}

// every calls a function at once and then at an interval until ctx ends. Calls that take longer than half the interval are
// followed by a pause of their own time.
func every(ctx context.Context, interval time.Duration, do func(now time.Time)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		do(began)
		took := time.Since(began)
		timer.Reset(max(interval-took, took))
	}
}

// Add takes a record that was read at a moment from files of a user; owner is nil if no user is known.
func (f *Follower) Add(now time.Time, owner *uint32, rec ccl.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.ledger.claim(now, owner, rec)
	if c == nil {
		return
	}
	f.clock.stamp(now, rec)
	ccl.SetAccount(rec, f.account.name(owner))
	if f.sampler.Add(now, rec) {
		f.ledger.count(now, c, rec)
	}
}

// Page returns the records that were handed out after a cursor, at most limit of them. 0 begins with the oldest.
func (f *Follower) Page(after uint64, limit int) ccl.Page {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := ccl.Page{Node: f.config.Node, Dropped: f.dropped()}
	p.Records, p.Cursor, p.Missed = f.sampler.After(after, limit)
	if len(p.Records) == limit {
		next, _, _ := f.sampler.After(p.Cursor, 1)
		p.More = len(next) > 0
	}
	return p
}

// Find returns all that is held of a completed operation, at most ccl.MaxPage records.
func (f *Follower) Find(comm, op string, seq uint64) []ccl.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	recs := f.sampler.Find(comm, op, seq)
	return recs[:min(len(recs), ccl.MaxPage)]
}

// Operation returns a page, without a cursor, of what Find returns.
func (f *Follower) Operation(comm, op string, seq uint64) ccl.Page {
	recs := f.Find(comm, op, seq)
	f.mu.Lock()
	defer f.mu.Unlock()
	return ccl.Page{Node: f.config.Node, Dropped: f.dropped(), Records: recs}
}

// pluginStats returns what was taken from profiler plugins.
func (f *Follower) pluginStats() (s ccl.ListenerStats) {
	if f.plugin != nil {
		s = f.plugin.Stats()
	}
	return s
}

// dropped returns how many operations and transfers are missing, by reason. The caller holds the mutex.
func (f *Follower) dropped() map[ccl.Reason]uint64 {
	out := maps.Clone(f.files.Dropped)
	if out == nil {
		out = map[ccl.Reason]uint64{}
	}
	for _, more := range []map[ccl.Reason]uint64{f.ras.Dropped, f.pluginStats().Dropped} {
		for why, n := range more {
			out[why] += n
		}
	}
	held := f.sampler.Stats()
	for why, n := range map[ccl.Reason]uint64{ccl.DroppedCut: f.files.cut, ccl.DroppedOwner: f.ledger.foreign, ccl.DroppedHeld: held.Evicted, ccl.DroppedLate: held.Late} {
		if n > 0 {
			out[why] += n
		}
	}
	return out
}
