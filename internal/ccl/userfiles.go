package ccl

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/graylink/graylink/internal/unix"
)

// maxEntries is the number of names of a directory that are looked at.
const maxEntries = 1 << 14

// Directory is an open directory whose files belong to users who are not trusted, and the names that it had when it was
// opened.
type Directory struct {
	Owner   uint32        // user that owns the directory
	Entries []fs.DirEntry // by name; at most 16,384
	file    *os.File
}

// OpenDirectory opens a directory by its path. The error wraps fs.ErrNotExist if there is none.
func OpenDirectory(path string) (*Directory, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return readDirectory(f)
}

// Sub opens a directory of the directory, without following links.
func (d *Directory) Sub(name string) (*Directory, error) {
	f, err := unix.OpenBeneath(d.file, name)
	if err != nil {
		return nil, err
	}
	return readDirectory(f)
}

// readDirectory returns an open file as a directory. It closes the file if it fails.
func readDirectory(f *os.File) (*Directory, error) {
	d := &Directory{file: f}
	info, err := f.Stat()
	if err == nil {
		d.Owner, _, err = unix.Identify(info)
	}
	if err == nil {
		d.Entries, err = f.ReadDir(maxEntries)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	slices.SortFunc(d.Entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return d, nil
}

// Close closes the directory.
func (d *Directory) Close() { d.file.Close() }

// Why files are refused.
var (
	errNoRegular = errors.New("no regular file")
	errLink      = errors.New("no regular file: a symbolic link")
	errOwner     = errors.New("a file of another user")
)

// OpenFile opens a regular file of a user for reading, without following links. The file may be gone: the error then
// wraps fs.ErrNotExist.
func (d *Directory) OpenFile(e fs.DirEntry, owner uint32) (*os.File, error) {
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		return nil, errLink
	case !e.Type().IsRegular():
		return nil, errNoRegular
	}
	f, err := unix.OpenBeneath(d.file, e.Name())
	if errors.Is(err, syscall.ELOOP) {
		err = errLink
	}
	if err != nil {
		return nil, err
	}
	if err := checkFile(f, owner); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkFile returns an error unless an open file is a regular one of a user.
func checkFile(f *os.File, owner uint32) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errNoRegular
	}
	if uid, _, err := unix.Identify(info); err != nil || uid != owner {
		return cmp.Or(err, errOwner)
	}
	return nil
}

// RefusalReason says why a file is not read.
type RefusalReason string

// The reasons for which files are refused.
const (
	RefusedLink       RefusalReason = "link"        // a symbolic link
	RefusedKind       RefusalReason = "not_regular" // a FIFO, a socket, a device or a directory
	RefusedOwner      RefusalReason = "owner"       // a file of another user
	RefusedTooMany    RefusalReason = "too_many"    // more files or directories than are followed
	RefusedContent    RefusalReason = "content"     // a dump that cannot be read, or has what no dump has
	RefusedUnreadable RefusalReason = "unreadable"  // opening or reading failed
)

// RefusalReasons returns all reasons.
func RefusalReasons() []RefusalReason {
	return []RefusalReason{RefusedLink, RefusedKind, RefusedOwner, RefusedTooMany, RefusedContent, RefusedUnreadable}
}

// refusalReasonOf returns the reason that an error of OpenFile or of following a file stands for.
func refusalReasonOf(err error) RefusalReason {
	switch {
	case errors.Is(err, errLink):
		return RefusedLink
	case errors.Is(err, errNoRegular):
		return RefusedKind
	case errors.Is(err, errOwner):
		return RefusedOwner
	case errors.Is(err, errManyFiles):
		return RefusedTooMany
	}
	return RefusedUnreadable
}

// Refusal is a file that is not read.
type Refusal struct {
	Name   string
	Reason RefusalReason
	Why    error
}

// Refusals counts files that are not read. A file counts once for as long as every look finds it and refuses it.
type Refusals struct {
	Total map[RefusalReason]uint64 // since the beginning
	Now   int                      // in the look that was begun last
	First []Refusal                // the first of these
	names map[string]bool          // of files that this look refused
	last  map[string]bool          // of files that the look before refused
}

// BeginLook begins another look at all files.
func (r *Refusals) BeginLook() {
	r.last, r.names = r.names, make(map[string]bool, len(r.names))
	r.Now, r.First = 0, nil
}

// Refuse counts a file that is not read, for the reason that an error of OpenFile stands for. It is true if the look before
// did not refuse the file.
func (r *Refusals) Refuse(name string, why error) bool {
	return r.RefuseFor(name, refusalReasonOf(why), why)
}

// RefuseFor counts a file that is not read for a reason. It is true if the look before did not refuse the file.
func (r *Refusals) RefuseFor(name string, reason RefusalReason, why error) bool {
	if r.Now++; len(r.First) < maxRefusals {
		r.First = append(r.First, Refusal{name, reason, why})
	}
	if r.names == nil {
		r.names = map[string]bool{}
	}
	r.names[name] = true
	if r.last[name] {
		return false
	}
	if r.Total == nil {
		r.Total = map[RefusalReason]uint64{}
	}
	r.Total[reason]++
	return true
}

// clone returns the counts without what is needed to go on counting.
func (r *Refusals) clone() Refusals {
	return Refusals{Total: maps.Clone(r.Total), Now: r.Now, First: slices.Clone(r.First)}
}
