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

// Sort classifies why a file could not be read.
type Sort string

// Sorts of errors.
const (
	Unreadable Sort = "unreadable" // the kernel refused, or failed
	Malformed  Sort = "malformed"  // it holds something else than it should
	Hanging    Sort = "hanging"    // the read did not return, now or earlier
	Skipped    Sort = "skipped"    // not tried: too much of its device hangs
)

// FileError represents a file that could not be read or parsed.
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

// kind is the type of a file's content.
type kind uint8

const (
	kindText   kind = iota
	kindNumber      // one decimal number
	kindNames       // a directory's entries
	kindTarget      // the last element of a link's target
	kindAnswer      // what a function answers (Asker)
)

// file is one of those that a poll reads. The value of the poll before stays in it, so that
// what did not change costs no memory.
type file struct {
	path string
	kind kind
	// toleratesInvalid is set if the kernel returns EINVAL or EOPNOTSUPP when there is no value, as for the speed of
	// a link that is down.
	toleratesInvalid bool
	query            func() (any, error) // of the kind query

	ok     bool // the fields below hold
	text   string
	value  uint64
	names  []string
	answer any
	gone   bool // it is not there
	err    *FileError
}

// fileGroup are the files of one device.
type fileGroup struct {
	device string
	files  []*file
	hung   int // of this poll
}

func (s *fileGroup) addFile(path string, k kind) *file {
	f := &file{path: path, kind: k}
	s.files = append(s.files, f)
	return f
}

// result holds the result of one read.
type result struct {
	value  uint64
	text   []byte
	names  []string
	answer any
	err    error
}

// fileReader reads shelves, and gives up what hangs (rule 3).
type fileReader struct {
	patience  time.Duration
	now       func() time.Time
	fetchPath func(path string, k kind, buf []byte) result

	mu   sync.Mutex
	hung map[string]map[string]bool // by device: paths whose read has not returned
}

// maxHanging is how many reads of one device may be waited for without end.
const maxHanging = 4

// hangingCount returns how many reads have not returned.
func (l *fileReader) hangingCount() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.hung {
		n += len(h)
	}
	return n
}

// readPass is a walk along shelves by one goroutine. The librarian takes the rest away from
// one that stands still.
type readPass struct {
	mu        sync.Mutex
	group, at int       // the file that is being read
	since     time.Time // since when
	abandoned bool
	ended     chan struct{}
}

// readAll fills in the files of the shelves.
func (l *fileReader) readAll(shelves []*fileGroup) {
	for _, s := range shelves {
		s.hung = 0
	}
	e := &readPass{since: l.now(), ended: make(chan struct{})}
	go l.runPass(e, shelves)
	tick := time.NewTicker(max(l.patience/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-e.ended:
			return
		case <-tick.C:
		}
		if next := l.replaceStalled(e, shelves); next != nil {
			e = next
			go l.runPass(e, shelves)
		}
	}
}

// replaceStalled gives up the file that an errand has been reading for too long, and returns one
// that goes on behind it, or nil if it is not late.
func (l *fileReader) replaceStalled(e *readPass, shelves []*fileGroup) *readPass {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.group == len(shelves) || l.now().Sub(e.since) < l.patience {
		return nil
	}
	e.abandoned = true
	s := shelves[e.group]
	f := s.files[e.at]
	f.setError(s, Hanging, errStalled)
	s.hung++
	l.markHung(s.device, f.path)
	next := &readPass{group: e.group, at: e.at, since: l.now(), ended: make(chan struct{})}
	next.nextFile(shelves)
	return next
}

func (l *fileReader) markHung(device, path string) {
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

func (l *fileReader) unmarkHung(device, path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hung[device], path)
	if len(l.hung[device]) == 0 {
		delete(l.hung, device)
	}
}

// skipReason returns why a file is not to be read, and nil if it is.
func (l *fileReader) skipReason(s *fileGroup, path string) (Sort, error) {
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

// nextFile goes to the next file. e.mu is held, or no other goroutine knows e.
func (e *readPass) nextFile(shelves []*fileGroup) {
	e.at++
	for e.group < len(shelves) && e.at >= len(shelves[e.group].files) {
		e.group, e.at = e.group+1, 0
	}
}

func (l *fileReader) runPass(e *readPass, shelves []*fileGroup) {
	defer close(e.ended)
	e.mu.Lock()
	if e.group < len(shelves) && e.at >= len(shelves[e.group].files) {
		e.at--
		e.nextFile(shelves)
	}
	buf := make([]byte, maxText)
	for e.group < len(shelves) {
		s := shelves[e.group]
		f := s.files[e.at]
		if sort, err := l.skipReason(s, f.path); err != nil {
			f.setError(s, sort, err)
			e.nextFile(shelves)
			continue
		}
		e.since = l.now()
		// Nothing of the shelf is touched while the read may be given up.
		k, path, device, ask := f.kind, f.path, s.device, f.query
		e.mu.Unlock()
		var r result
		if k == kindAnswer {
			r.answer, r.err = ask()
		} else {
			r = l.fetchPath(path, k, buf)
		}
		e.mu.Lock()
		if e.abandoned {
			// Another goroutine has continued the pass, and the file belongs to it now.
			e.mu.Unlock()
			l.unmarkHung(device, path)
			return
		}
		f.storeResult(s, r)
		e.nextFile(shelves)
	}
	e.mu.Unlock()
}

// fetchPath reads one file. It touches nothing but buf.
func fetchPath(path string, k kind, buf []byte) (r result) {
	switch k {
	case kindNames:
		entries, err := os.ReadDir(path)
		for _, e := range entries {
			r.names = append(r.names, e.Name())
		}
		r.err = err
		return r
	case kindTarget:
		t, err := os.Readlink(path)
		if err == nil {
			r.text = []byte(filepath.Base(t))
		}
		r.err = err
		return r
	}
	n, err := readFirstPage(path, buf)
	if err != nil {
		r.err = err
		return r
	}
	b := bytes.TrimSpace(buf[:n])
	if k == kindNumber {
		r.value, r.err = parseNumber(b)
	} else {
		r.text = b
	}
	return r
}

// readFirstPage reads a file's first page by plain system calls: the runtime's poller is no use for
// files of sysfs, and costs as much as reading them.
func readFirstPage(path string, buf []byte) (int, error) {
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
			return 0, fmt.Errorf("%w, not %s", errNumber, quoteBytes(b))
		}
		v = 10*v + d
	}
	return v, nil
}

// quoteBytes shows what a file holds, in a bounded length.
func quoteBytes(b []byte) string { return strconv.Quote(string(b[:min(len(b), 40)])) }

func (f *file) setError(s *fileGroup, sort Sort, err error) {
	f.ok, f.gone = false, false
	f.err = &FileError{Device: s.device, Path: f.path, Sort: sort, Err: err}
}

// storeResult keeps a result.
func (f *file) storeResult(s *fileGroup, r result) {
	f.ok, f.gone, f.err = r.err == nil, false, nil
	switch {
	case r.err == nil:
		f.value, f.names, f.answer = r.value, r.names, r.answer
		if string(r.text) != f.text {
			f.text = string(r.text)
		}
	case errors.Is(r.err, syscall.ENOENT) || errors.Is(r.err, syscall.ENODEV) || errors.Is(r.err, syscall.ENOTDIR):
		f.gone = true
	case errors.Is(r.err, syscall.EOPNOTSUPP) || f.toleratesInvalid && errors.Is(r.err, syscall.EINVAL):
		// The kernel reports that there is no value.
	case errors.Is(r.err, errNumber) || errors.Is(r.err, ErrMalformed):
		f.setError(s, Malformed, r.err)
	default:
		f.setError(s, Unreadable, r.err)
	}
}
