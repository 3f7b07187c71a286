package ccl

import (
	"bytes"
	"cmp"
	"errors"
	"hash/maphash"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

// Limits of a tail.
const (
	maxTailFiles = 1024      // that are followed at a time
	maxTailEnded = 1 << 14   // files that ended and are remembered
	maxFirstLine = 16 << 10  // bytes of the first line that name a file
	tailChunk    = 256 << 10 // bytes that are read at once
	tailPerPoll  = 64 << 20  // bytes of all files in a poll
	idlePolls    = 30        // polls without growth after which a file that has left the directory has ended
	maxRefusals  = 20        // that are named
)

// TailConfig says what a tail follows.
type TailConfig struct {
	Dir    string // of one job; Poll needs it
	Owner  uint32 // user whose files are read; all others are refused
	Source Source
	Out    func(Record) error // takes the records; its error ends the poll
	// MaxFiles is the number of files that are followed at a time, and PerPoll the number of bytes that a poll reads of
	// all of them; 0 stands for 1,024 and 64 MiB.
	MaxFiles, PerPoll int
	// Recent is the number of bytes that are read of a file that the first poll finds; 0: all. What a longer file has before
	// is skipped and not counted. Of a file that was written before Since for the last time, nothing is read but what is
	// appended.
	Recent int64
	Since  time.Time
}

// Tail follows the Inspector's files of a directory, which grow, are rotated and truncated, and belong to a user who is not
// trusted. Its rules:
//
//  1. Only complete lines are read. The rest of a file stays until its line is complete.
//  2. A file is what its first line says, which has the time, the process and the communicator. So a file that was renamed
//     or copied is the same file, and is read on where the tail was; one that was truncated and written anew is another.
//     A first line that is the rest of another one says nothing: such a file is known by its inode.
//  3. A file that is renamed to elsewhere or removed is read to its end, which it has after idlePolls without growth.
//  4. Only regular files of the owner are read, opened beneath the directory without following links.
//
// A tail is not for concurrent use.
type Tail struct {
	config  TailConfig
	seed    maphash.Seed
	streams map[uint64]*stream // by the first line
	ended   map[uint64]int64   // offsets of files that have ended, by the first line
	stats   TailStats
	refused Refusals
	room    *inspectorRoom
	poll    uint64
	buf     []byte
}

// TailStats says what a tail has read and what it could not.
type TailStats struct {
	Counts
	Files     int      // that are followed
	Cut       uint64   // lines whose end was never written
	Truncated uint64   // files that were truncated; lines that were written since the poll before are lost
	Refused   Refusals // files that are not read
	GrownAt   uint64   // number of the last poll that found more in a file
}

// stream is a file that is followed.
type stream struct {
	first    uint64 // hash of the first line
	file     *os.File
	offset   int64 // of the first line that was not read
	size     int64 // when it was looked at last
	tooLong  bool  // the rest of the line at offset is skipped
	grown    uint64
	listed   bool // the directory had it in this poll
	reader   *Inspector
	reported Counts // of the reader, that are in the stats
}

// NewTail returns a tail of a directory, which need not exist yet.
func NewTail(c TailConfig) *Tail {
	c.MaxFiles, c.PerPoll = cmp.Or(c.MaxFiles, maxTailFiles), cmp.Or(c.PerPoll, tailPerPoll)
	return &Tail{config: c, room: newInspectorRoom(), seed: maphash.MakeSeed(), streams: map[uint64]*stream{}, ended: map[uint64]int64{}}
}

// Stats returns what the tail has read so far.
func (t *Tail) Stats() TailStats {
	s := t.stats
	s.Files, s.Dropped, s.Refused = len(t.streams), maps.Clone(s.Dropped), t.refused.clone()
	return s
}

// Poll opens the directory, and reads what its files have grown by since the last poll. It is true if there is more than a
// poll reads. The error is that of the directory, of reading a file, or of the function that takes the records; what was
// not read is read by the next poll.
func (t *Tail) Poll() (more bool, err error) {
	dir, err := OpenDirectory(t.config.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return t.PollFiles(nil, nil)
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	return t.PollFiles(dir, dir.Entries)
}

// PollFiles does as Poll with files of an open directory. dir is nil if there is no directory any more.
func (t *Tail) PollFiles(dir *Directory, files []fs.DirEntry) (more bool, err error) {
	t.poll++
	if err := t.look(dir, files); err != nil {
		return false, err
	}
	budget := int64(t.config.PerPoll)
	streams := slices.SortedFunc(maps.Values(t.streams), func(a, b *stream) int {
		return cmp.Or(cmp.Compare(a.file.Name(), b.file.Name()), cmp.Compare(a.first, b.first))
	})
	for i, s := range streams {
		n, left, err := t.read(s, max(budget/int64(len(streams)-i), tailChunk))
		budget, more = budget-n, more || left
		if err != nil {
			return false, err
		}
		if !s.listed && !left && t.poll-s.grown >= idlePolls {
			t.end(s)
		}
	}
	return more, nil
}

// Close ends all files.
func (t *Tail) Close() {
	for _, s := range t.streams {
		t.end(s)
	}
}

// look takes the files of the directory, and follows those that are new.
func (t *Tail) look(dir *Directory, files []fs.DirEntry) error {
	for _, s := range t.streams {
		s.listed = false
	}
	t.refused.BeginLook()
	for _, e := range files {
		f, err := dir.OpenFile(e, t.config.Owner)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = t.follow(f)
		}
		if err != nil {
			t.refused.Refuse(e.Name(), err)
		}
	}
	return t.lookAtVanished()
}

// errManyFiles is the error of a file beyond those that are followed.
var errManyFiles = errors.New("more files than are followed")

// firstLine returns the hash of a file's first line, its size, and false if the line is not complete.
func (t *Tail) firstLine(f *os.File) (hash uint64, size int64, ok bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, false, err
	}
	var head [maxFirstLine]byte
	n, err := f.ReadAt(head[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, false, err
	}
	line, _, complete := bytes.Cut(head[:n], []byte("\n"))
	hash = maphash.Bytes(t.seed, line)
	if !bytes.HasPrefix(line, []byte(`{"header"`)) {
		_, id, err := unix.Identify(info)
		if err != nil {
			return 0, 0, false, err
		}
		hash ^= maphash.Comparable(t.seed, id)
	}
	return hash, info.Size(), complete || n == len(head), nil
}

// follow takes a file of the directory, which it closes if another one with the same lines has more of them.
func (t *Tail) follow(f *os.File) error {
	first, size, ok, err := t.firstLine(f)
	if err != nil || !ok {
		f.Close()
		return err
	}
	s := t.streams[first]
	switch {
	case s == nil && len(t.streams) >= t.config.MaxFiles:
		f.Close()
		return errManyFiles
	case s == nil && t.ended[first] >= size:
		f.Close() // a file that has ended, under another name
		return nil
	case s == nil:
		s = &stream{first: first, file: f, offset: t.ended[first], size: size, grown: t.poll, reader: newInspector(t.config.Source, t.room, t.config.Out)}
		s.reader.process = newProcess()
		if t.poll == 1 {
			if err := t.skipOld(s); err != nil {
				f.Close()
				return err
			}
		}
		t.streams[first] = s
		t.stats.GrownAt = t.poll
	case s.listed && s.size >= size:
		f.Close()
		return nil
	default:
		s.file.Close()
		s.file = f
	}
	s.listed = true
	t.setSize(s, size)
	return nil
}

// skipOld sets where the reading of a file that the first poll found begins.
func (t *Tail) skipOld(s *stream) error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	old := int64(0)
	if t.config.Recent > 0 {
		old = s.size - t.config.Recent
	}
	if info.ModTime().Before(t.config.Since) {
		old = s.size
	}
	if old > 0 {
		s.offset, s.tooLong = old-1, true // up to the end of the line there
	}
	return nil
}

// setSize notes how long a file is.
func (t *Tail) setSize(s *stream, size int64) {
	if size > s.size {
		s.grown, t.stats.GrownAt = t.poll, t.poll
	}
	s.size = size
}

// lookAtVanished looks at files that the directory no longer has. One that was truncated has ended.
func (t *Tail) lookAtVanished() error {
	for _, s := range t.streams {
		if s.listed {
			continue
		}
		first, size, ok, err := t.firstLine(s.file)
		if err != nil {
			return err
		}
		if !ok || first != s.first || size < s.offset {
			t.end(s)
			continue
		}
		t.setSize(s, size)
	}
	return nil
}

// read reads complete lines of a file, about limit bytes at most. It returns how many bytes, and whether there are more.
func (t *Tail) read(s *stream, limit int64) (n int64, more bool, err error) {
	defer func() { t.account(s) }()
	if t.buf == nil {
		t.buf = make([]byte, tailChunk)
	}
	for n < limit {
		got, err := s.file.ReadAt(t.buf, s.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return n, false, err
		}
		used, lerr := t.readLines(s, t.buf[:got])
		s.offset, n = s.offset+int64(used), n+int64(used)
		if lerr != nil {
			return n, false, lerr
		}
		switch {
		case got < len(t.buf):
			return n, false, nil
		case used > 0:
		case len(t.buf) > MaxLine:
			// The line goes on beyond what one may have.
			if !s.tooLong {
				s.tooLong = true
				t.stats.Unreadable++
			}
			s.offset, n = s.offset+int64(got), n+int64(got)
		default:
			t.buf = make([]byte, MaxLine+1)
		}
	}
	return n, true, nil
}

// readLines reads the complete lines of a text, and returns how many bytes they have.
func (t *Tail) readLines(s *stream, text []byte) (used int, err error) {
	for {
		end := bytes.IndexByte(text[used:], '\n')
		if end < 0 {
			return used, nil
		}
		line := text[used : used+end]
		used += end + 1
		if s.tooLong {
			s.tooLong = false
			continue
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := s.reader.ReadLine(line); err != nil {
			if s.reader.err != nil {
				err, s.reader.err = s.reader.err, nil
				return used, err
			}
			s.reader.Unreadable++
		}
	}
}

// account adds what the reader of a file has counted since.
func (t *Tail) account(s *stream) {
	now, was := s.reader.Counts, s.reported
	delta := Counts{Lines: now.Lines - was.Lines, Records: now.Records - was.Records, Unreadable: now.Unreadable - was.Unreadable}
	for why, n := range now.Dropped {
		delta.drop(why, n-was.Dropped[why])
	}
	t.stats.Add(delta)
	s.reported = now
	s.reported.Dropped = maps.Clone(now.Dropped)
}

// end ends a file, and counts what of it was never read.
func (t *Tail) end(s *stream) {
	// What follows the last complete line is the beginning of another one.
	if s.size > s.offset && !s.tooLong {
		t.stats.Cut++
	}
	first, size, ok, err := t.firstLine(s.file)
	if err != nil || !ok || first != s.first || size < s.offset {
		t.stats.Truncated++
	}
	s.reader.close()
	t.account(s)
	s.file.Close()
	delete(t.streams, s.first)
	if len(t.ended) == maxTailEnded {
		clear(t.ended)
	}
	t.ended[s.first] = s.offset
}
