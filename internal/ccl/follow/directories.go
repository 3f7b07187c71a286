package follow

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// directory is a directory that is followed: files of the Inspector, and dumps of Flight Recorder, of its owner.
type directory struct {
	owner  uint32
	now    time.Time // of the poll
	tail   *ccl.Tail
	dumps  *dumps
	grown  uint64    // number of the tail's poll that found growth last
	active time.Time // when a file grew last
	listed bool      // it exists in this poll
}

// newDirectory returns a directory of a user whose records go to the follower.
func (f *Follower) newDirectory(now time.Time, owner uint32) *directory {
	d := &directory{owner: owner}
	src := ccl.Source{Job: f.config.Job, Host: f.config.Node}
	out := func(rec ccl.Record) error {
		f.Add(d.now, &d.owner, rec)
		return nil
	}
	d.tail = ccl.NewTail(ccl.TailConfig{Owner: owner, Source: src, Out: out, MaxFiles: filesPerDir, PerPoll: bytesPerPoll, Recent: recentBytes, Since: now.Add(-recentFiles)})
	d.dumps = newDumps(owner, src, out)
	return d
}

// isDump reports whether a file is a dump of Flight Recorder by its name, which ends in the rank. Files of the Inspector end
// in .log, and rotated ones in .log.1.
func isDump(name string) bool {
	_, ok := ccl.RankOfFile(name)
	return ok && !strings.Contains(name, ".log")
}

// poll reads what is new in the directory. opened is nil if it is gone.
func (d *directory) poll(now time.Time, opened *ccl.Directory, entries []fs.DirEntry) error {
	d.now = now
	var logs, dumps []fs.DirEntry
	for _, e := range entries {
		if isDump(e.Name()) {
			dumps = append(dumps, e)
		} else {
			logs = append(logs, e)
		}
	}
	_, err := d.tail.PollFiles(opened, logs)
	d.dumps.poll(now, opened, dumps)
	if at := d.tail.Stats().GrownAt; at != d.grown || d.active.IsZero() {
		d.grown, d.active = at, now
	}
	return err
}

// counts returns what was read so far.
func (d *directory) counts() fileCounts {
	s := d.tail.Stats()
	c := fileCounts{Counts: s.Counts, files: s.Files + d.dumps.read, cut: s.Cut, truncated: s.Truncated}
	c.Add(d.dumps.Counts)
	c.addRefused(s.Refused.Total)
	c.addRefused(d.dumps.refused.Total)
	return c
}

// errDirectories is the error of a directory beyond those that are followed.
var errDirectories = fmt.Errorf("more than %d directories", maxDirectories)

// Poll reads what the files have grown by since the last poll, and forgets what is no longer held.
func (f *Follower) Poll(now time.Time) {
	f.mu.Lock()
	f.clock.note(now)
	f.mu.Unlock()
	for _, d := range f.dirs {
		d.listed = false
	}
	f.refused.BeginLook()
	failed := uint64(0)
	if f.config.Dir != "" && f.pollRoot(now) != nil {
		failed++
	}
	for name, d := range f.dirs {
		if d.listed {
			continue
		}
		// Files that were removed are read to their ends.
		if err := f.fault(name, d.poll(now, nil, nil)); err != nil {
			failed++
		}
		if d.tail.Stats().Files == 0 {
			f.closeDirectory(name)
		}
	}
	sum := f.sum()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files, f.failed = sum, f.failed+failed
	f.sampler.Advance(now)
	f.ledger.expire(now)
}

// pollRoot polls the directory and its subdirectories. The error is one of them that could not be polled.
func (f *Follower) pollRoot(now time.Time) error {
	root, err := ccl.OpenDirectory(f.config.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return f.fault("", nil)
	}
	if err != nil {
		return f.fault("", err)
	}
	defer root.Close()
	subs, files := splitEntries(root.Entries)
	first := f.pollDirectory(now, "", root, files)
	for _, e := range f.chooseDirectories(subs) {
		sub, err := root.Sub(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			f.refused.Refuse(e.Name(), err)
			continue
		}
		first = cmp.Or(first, f.pollDirectory(now, e.Name(), sub, sub.Entries))
		sub.Close()
	}
	return first
}

// splitEntries divides names into directories and others.
func splitEntries(entries []fs.DirEntry) (subs, files []fs.DirEntry) {
	for _, e := range entries {
		if e.IsDir() {
			subs = append(subs, e)
		} else {
			files = append(files, e)
		}
	}
	return subs, files
}

// chooseDirectories returns the subdirectories that are followed. If there are too many, these are the ones in which
// something was written last, and the others are refused.
func (f *Follower) chooseDirectories(subs []fs.DirEntry) []fs.DirEntry {
	if len(subs) < maxDirectories { // the directory itself is one, too
		return subs
	}
	type candidate struct {
		fs.DirEntry
		active time.Time
	}
	var all []candidate
	for _, e := range subs {
		c := candidate{DirEntry: e}
		if d := f.dirs[e.Name()]; d != nil {
			c.active = d.active
		}
		if info, err := e.Info(); err == nil && info.ModTime().After(c.active) {
			c.active = info.ModTime()
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return b.active.Compare(a.active) })
	out := make([]fs.DirEntry, 0, maxDirectories)
	for i, c := range all {
		if i < maxDirectories-1 {
			out = append(out, c.DirEntry)
			continue
		}
		f.refused.RefuseFor(c.Name(), ccl.RefusedTooMany, errDirectories)
		f.closeDirectory(c.Name())
	}
	return out
}

// pollDirectory polls an open directory, which is followed from now on.
func (f *Follower) pollDirectory(now time.Time, name string, opened *ccl.Directory, entries []fs.DirEntry) error {
	d := f.dirs[name]
	if d != nil && d.owner != opened.Owner {
		f.closeDirectory(name)
		d = nil
	}
	if d == nil {
		d = f.newDirectory(now, opened.Owner)
		f.dirs[name] = d
	}
	d.listed = true
	before := d.counts().refused
	err := d.poll(now, opened, entries)
	f.logRefusals(name, before, d)
	return f.fault(name, err)
}

// logRefusals logs the first file of a directory that is refused for a reason.
func (f *Follower) logRefusals(name string, before map[ccl.RefusalReason]uint64, d *directory) {
	for _, list := range [][]ccl.Refusal{d.tail.Stats().Refused.First, d.dumps.refused.First} {
		for _, r := range list {
			if before[r.Reason] == 0 {
				before[r.Reason]++
				f.log.Warn("not reading a file of collective libraries; others that are refused for this reason are only counted", "directory", name, "file", r.Name, "reason", string(r.Reason), "err", r.Why)
			}
		}
	}
}

// fault logs when a directory cannot be polled for another reason than before, and when it can be polled again. It returns
// the error.
func (f *Follower) fault(name string, err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == f.faults[name]:
	case err == nil:
		delete(f.faults, name)
		f.log.Info("files of collective libraries can be read again", "directory", name)
	default:
		f.faults[name] = text
		f.log.Warn("cannot read files of collective libraries", "directory", name, "err", err)
	}
	return err
}

// closeDirectory ends a directory and keeps its counts.
func (f *Follower) closeDirectory(name string) {
	d := f.dirs[name]
	if d == nil {
		return
	}
	d.tail.Close()
	d.dumps.read = 0
	c := d.counts()
	f.ended.add(&c)
	delete(f.dirs, name)
	delete(f.faults, name)
}

// closeFiles ends all directories.
func (f *Follower) closeFiles() {
	for name := range f.dirs {
		f.closeDirectory(name)
	}
}

// sum returns what was read of all files so far.
func (f *Follower) sum() fileCounts {
	var out fileCounts
	out.add(&f.ended)
	out.addRefused(f.refused.Total)
	for _, d := range f.dirs {
		c := d.counts()
		out.add(&c)
	}
	return out
}
