package vm

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// archive writes a cpio archive of the kind that the kernel unpacks as its initramfs: "newc",
// Documentation/driver-api/early-userspace/buffer-format.rst. Directories are made as they
// are needed.
type archive struct {
	w     io.Writer
	inode uint32
	made  []string
	names map[string]bool
}

func newArchive(w io.Writer) *archive { return &archive{w: w, names: map[string]bool{}} }

// File types of c_mode, stat(2).
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
	modeChar = 0o020000
)

// writeEntry writes a header, the name and the data, each padded to four bytes.
func (a *archive) writeEntry(name string, mode, major, minor uint32, data []byte) error {
	if int64(len(data)) > 1<<32-1 {
		return fmt.Errorf("%s: %d bytes; at most 4 GiB less one fit into an archive of this kind", name, len(data))
	}
	a.inode++
	links := 1
	if mode&modeDir == modeDir {
		links = 2
	}
	// magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.inode, mode, 0, 0, links, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
	head += name + "\x00"
	if _, err := io.WriteString(a.w, head+padding(len(head))); err != nil {
		return err
	}
	if _, err := a.w.Write(data); err != nil {
		return err
	}
	_, err := io.WriteString(a.w, padding(len(data)))
	return err
}

func padding(n int) string { return "\x00\x00\x00"[:-n&3] }

// cleanName returns a name as it is in the archive: without the slash of the root.
func cleanName(name string) (string, error) {
	c := strings.TrimPrefix(path.Clean("/"+name), "/")
	if c == "" || strings.ContainsRune(c, 0) {
		return "", fmt.Errorf("%q: the name of a file below the root is expected", name)
	}
	return c, nil
}

// makeDirs makes what is above a name.
func (a *archive) makeDirs(name string) error {
	dir := path.Dir(name)
	if dir == "." || slices.Contains(a.made, dir) {
		return nil
	}
	if err := a.makeDirs(dir); err != nil {
		return err
	}
	a.made = append(a.made, dir)
	return a.writeEntry(dir, modeDir|0o755, 0, 0, nil)
}

func (a *archive) addEntry(name string, mode, major, minor uint32, data []byte) error {
	name, err := cleanName(name)
	if err != nil {
		return err
	}
	if a.names[name] {
		return nil // what was put first stays
	}
	a.names[name] = true
	if err := a.makeDirs(name); err != nil {
		return err
	}
	return a.writeEntry(name, mode, major, minor, data)
}

// addFile adds a file. One that is there already stays as it is.
func (a *archive) addFile(name string, perm fs.FileMode, data []byte) error {
	return a.addEntry(name, modeFile|uint32(perm.Perm()), 0, 0, data)
}

// addLink adds a symbolic link.
func (a *archive) addLink(name, target string) error {
	return a.addEntry(name, modeLink|0o777, 0, 0, []byte(target))
}

// addCharDevice adds a character device.
func (a *archive) addCharDevice(name string, perm fs.FileMode, major, minor uint32) error {
	return a.addEntry(name, modeChar|uint32(perm.Perm()), major, minor, nil)
}

// close ends the archive.
func (a *archive) close() error {
	a.inode = ^uint32(0) // the trailer's is 0
	return a.writeEntry("TRAILER!!!", 0, 0, 0, nil)
}
