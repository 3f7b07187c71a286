package nichw

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Sort is why a file told nothing.
type Sort string

// Sorts of errors.
const (
	Unreadable Sort = "unreadable" // the kernel refused, or failed
	Malformed  Sort = "malformed"  // it holds something else than it should
	Hanging    Sort = "hanging"    // the read did not return, now or earlier
	Skipped    Sort = "skipped"    // not tried: too much of its device hangs
)

// FileError is a file that should have told something.
type FileError struct {
	// Device is the RDMA device or interface it belongs to, "" for a list of them.
	Device string
	Path   string
	Sort   Sort
	Err    error
}

func (e *FileError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Path, e.Sort, e.Err) }
func (e *FileError) Unwrap() error { return e.Err }

var (
	errHangs   = errors.New("an earlier read has not returned")
	errStalled = errors.New("the read did not return in time")
	errSkipped = errors.New("other files of the device hang")
)

// maxText is more than any attribute holds: a page of sysfs.
const maxText = 4096

// kind is what a file holds.
type kind uint8

const (
	text   kind = iota
	number      // one decimal number
	names       // a directory's entries
	target      // the last element of a link's target
	asked       // what a function answers (Asker)
)

// file is one of those that a poll reads. The value of the poll before stays in it, so that
// what did not change costs no memory.
type file struct {
	path string
	kind kind
	// lax: the kernel says EINVAL or EOPNOTSUPP where there is nothing to tell, as for the
	// speed of a link that is down.
	lax bool
	ask func() (any, error) // of the kind asked

	ok     bool // the fields below hold
	text   string
	value  uint64
	names  []string
	answer any
	gone   bool // it is not there
	err    *FileError
}

// shelf are the files of one device.
type shelf struct {
	device string
	files  []*file
	hung   int // of this poll
}

func (s *shelf) add(path string, k kind) *file {
	f := &file{path: path, kind: k}
	s.files = append(s.files, f)
	return f
}

// result is what one read gave.
type result struct {
	value  uint64
	text   []byte
	names  []string
	answer any
	err    error
}

// librarian reads shelves, and gives up what hangs (rule 3).
type librarian struct {
	patience time.Duration
	now      func() time.Time
	fetch    func(path string, k kind, buf []byte) result

	mu   sync.Mutex
	hung map[string]map[string]bool // by device: paths whose read has not returned
}

// maxHanging is how many reads of one device may be waited for without end.
const maxHanging = 4

// hanging is how many reads have not returned.
func (l *librarian) hanging() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.hung {
		n += len(h)
	}
	return n
}

// errand is a walk along shelves by one goroutine. The librarian takes the rest away from
// one that stands still.
type errand struct {
	mu        sync.Mutex
	shelf, at int       // the file that is being read
	since     time.Time // since when
	abandoned bool
	ended     chan struct{}
}

// read fills in the files of the shelves.
func (l *librarian) read(shelves []*shelf) {
	for _, s := range shelves {
		s.hung = 0
	}
	e := &errand{since: l.now(), ended: make(chan struct{})}
	go l.walk(e, shelves)
	tick := time.NewTicker(max(l.patience/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-e.ended:
			return
		case <-tick.C:
		}
		if next := l.supersede(e, shelves); next != nil {
			e = next
			go l.walk(e, shelves)
		}
	}
}

// supersede gives up the file that an errand has been reading for too long, and returns one
// that goes on behind it, or nil if it is not late.
func (l *librarian) supersede(e *errand, shelves []*shelf) *errand {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shelf == len(shelves) || l.now().Sub(e.since) < l.patience {
		return nil
	}
	e.abandoned = true
	s := shelves[e.shelf]
	f := s.files[e.at]
	f.fail(s, Hanging, errStalled)
	s.hung++
	l.mark(s.device, f.path)
	next := &errand{shelf: e.shelf, at: e.at, since: l.now(), ended: make(chan struct{})}
	next.step(shelves)
	return next
}

func (l *librarian) mark(device, path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hung == nil {
		l.hung = map[string]map[string]bool{}
	}
	if l.hung[device] == nil {
		l.hung[device] = map[string]bool{}
	}
	l.hung[device][path] = true
}

func (l *librarian) unmark(device, path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hung[device], path)
	if len(l.hung[device]) == 0 {
		delete(l.hung, device)
	}
}

// leave says why a file is not to be read, if it is not.
func (l *librarian) leave(s *shelf, path string) (Sort, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch h := l.hung[s.device]; {
	case h[path]:
		return Hanging, errHangs
	case len(h) >= maxHanging || s.hung >= 2:
		return Skipped, errSkipped
	}
	return "", nil
}

// step goes to the next file; e.mu is held, or nobody else knows e.
func (e *errand) step(shelves []*shelf) {
	e.at++
	for e.shelf < len(shelves) && e.at >= len(shelves[e.shelf].files) {
		e.shelf, e.at = e.shelf+1, 0
	}
}

func (l *librarian) walk(e *errand, shelves []*shelf) {
	defer close(e.ended)
	e.mu.Lock()
	if e.shelf < len(shelves) && e.at >= len(shelves[e.shelf].files) {
		e.at--
		e.step(shelves)
	}
	buf := make([]byte, maxText)
	for e.shelf < len(shelves) {
		s := shelves[e.shelf]
		f := s.files[e.at]
		if sort, err := l.leave(s, f.path); err != nil {
			f.fail(s, sort, err)
			e.step(shelves)
			continue
		}
		e.since = l.now()
		// Nothing of the shelf is touched while the read may be given up.
		k, path, device, ask := f.kind, f.path, s.device, f.ask
		e.mu.Unlock()
		var r result
		if k == asked {
			r.answer, r.err = ask()
		} else {
			r = l.fetch(path, k, buf)
		}
		e.mu.Lock()
		if e.abandoned {
			// Another errand has gone on; the file is somebody else's now.
			e.mu.Unlock()
			l.unmark(device, path)
			return
		}
		f.take(s, r)
		e.step(shelves)
	}
	e.mu.Unlock()
}

// fetch reads one file. It touches nothing but buf.
func fetch(path string, k kind, buf []byte) (r result) {
	switch k {
	case names:
		entries, err := os.ReadDir(path)
		for _, e := range entries {
			r.names = append(r.names, e.Name())
		}
		r.err = err
		return r
	case target:
		t, err := os.Readlink(path)
		if err == nil {
			r.text = []byte(filepath.Base(t))
		}
		r.err = err
		return r
	}
	n, err := slurp(path, buf)
	if err != nil {
		r.err = err
		return r
	}
	b := bytes.TrimSpace(buf[:n])
	if k == number {
		r.value, r.err = parseNumber(b)
	} else {
		r.text = b
	}
	return r
}

// slurp reads a file's first page by plain system calls: the runtime's poller is no use for
// files of sysfs, and costs as much as reading them.
func slurp(path string, buf []byte) (int, error) {
	for {
		fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		n, err := 0, error(nil)
		for {
			n, err = syscall.Read(fd, buf)
			if !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		_ = syscall.Close(fd) // it was only read
		if err != nil {
			return 0, err
		}
		return n, nil
	}
}

var errNumber = errors.New("a decimal number of 64 bits was expected")

// parseNumber reads a decimal number without copying it.
func parseNumber(b []byte) (v uint64, err error) {
	if len(b) == 0 {
		return 0, errNumber
	}
	for _, c := range b {
		d := uint64(c - '0')
		if c < '0' || c > '9' || v > (1<<64-1-d)/10 {
			return 0, fmt.Errorf("%w, not %s", errNumber, quote(b))
		}
		v = 10*v + d
	}
	return v, nil
}

// quote shows what a file holds, in a bounded length.
func quote(b []byte) string { return strconv.Quote(string(b[:min(len(b), 40)])) }

func (f *file) fail(s *shelf, sort Sort, err error) {
	f.ok, f.gone = false, false
	f.err = &FileError{Device: s.device, Path: f.path, Sort: sort, Err: err}
}

// take keeps a result.
func (f *file) take(s *shelf, r result) {
	f.ok, f.gone, f.err = r.err == nil, false, nil
	switch {
	case r.err == nil:
		f.value, f.names, f.answer = r.value, r.names, r.answer
		if string(r.text) != f.text {
			f.text = string(r.text)
		}
	case errors.Is(r.err, syscall.ENOENT) || errors.Is(r.err, syscall.ENODEV) || errors.Is(r.err, syscall.ENOTDIR):
		f.gone = true
	case errors.Is(r.err, syscall.EOPNOTSUPP) || f.lax && errors.Is(r.err, syscall.EINVAL):
		// The kernel says that there is nothing to tell.
	case errors.Is(r.err, errNumber) || errors.Is(r.err, ErrMalformed):
		f.fail(s, Malformed, r.err)
	default:
		f.fail(s, Unreadable, r.err)
	}
}
