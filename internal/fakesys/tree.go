package fakesys

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Directories of private: what a script took away, under its path with ! for /, and files that are
// being written.
const (
	removedDir = "taken"
	stagingDir = "staging"
)

// Files that steps know by themselves.
const (
	kmsgFile = "dev/kmsg"
	bootFile = "proc/sys/kernel/random/boot_id"
)

// Tree is a tree that Build made. Its methods may be called concurrently; a tree has one Tree at a
// time that changes it.
type Tree struct {
	root string

	mu          sync.Mutex
	stagedCount int
	// The kernel log: what the next record has as its number, and the time of the script's start.
	seq   int
	start int64 // µs
	now   time.Duration
}

// Open opens an existing tree. It returns ErrNotOurs if the directory is not one.
func Open(root string) (*Tree, error) {
	if info, err := os.Lstat(filepath.Join(root, privateDir, removedDir)); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s %w: graylink fakesys build makes one", root, ErrNotOurs)
	}
	t := &Tree{root: root}
	log, err := os.ReadFile(t.diskPath(kmsgFile))
	if err != nil {
		return nil, err
	}
	t.seq, t.start = lastRecord(log)
	return t, nil
}

// Root returns the directory of the tree. A reader uses its sys, proc and dev in place of /sys, /proc and /dev.
func (t *Tree) Root() string { return t.root }

// Path returns the path of a file of the tree, such as sys/class/net/eth0/operstate.
func (t *Tree) Path(name string) string { return t.diskPath(strings.TrimPrefix(name, "/")) }

// RunStep takes one step of the script language, one that is no matter of time.
func (t *Tree) RunStep(step string) error {
	op, err := parseOp(step)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.applyOp(op)
}

func (t *Tree) diskPath(name string) string { return filepath.Join(t.root, filepath.FromSlash(name)) }

// hiddenPath returns where a file or directory is while something replaces it or it is removed.
func hiddenPath(name string) string {
	return path.Join(privateDir, removedDir, strings.ReplaceAll(name, "/", "!"))
}

func (t *Tree) fileExists(name string) bool {
	_, err := os.Lstat(t.diskPath(name))
	return err == nil
}

// currentPath returns the present place of a file whose directories may have been removed.
func (t *Tree) currentPath(name string) string {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if h := hiddenPath(dir); t.fileExists(h) {
			return h + strings.TrimPrefix(name, dir)
		}
	}
	return name
}

// originalPath returns the present place of the content that a file has when nothing hides it.
func (t *Tree) originalPath(name string) string {
	if h := hiddenPath(name); t.fileExists(h) {
		return h
	}
	return t.currentPath(name)
}

// applyOp takes a step; t.mu is held.
func (t *Tree) applyOp(o op) error {
	switch o.verb {
	case "set", "add":
		dir, err := t.dirOf(o.target)
		if err != nil {
			return err
		}
		return t.changeValue(path.Join(dir, o.file), o)
	case "net":
		dir, err := t.followLink("sys/class/net/"+o.target, "interface "+o.target)
		if err != nil {
			return err
		}
		return t.changeValue(path.Join(dir, o.file), o)
	case "aer":
		return t.addAERErrors(o)
	case "remove", "restore":
		name, err := t.resolveTarget(o.target)
		if err != nil {
			return err
		}
		if o.verb == "remove" {
			return t.removePath(name)
		}
		return t.restorePath(name)
	case "hang", "unhang", "garble", "fail", "chmod":
		name, err := t.resolvePath(o.target)
		if err != nil {
			return err
		}
		return t.hideFile(name, o)
	case "kmsg":
		return t.appendKernelLog(int(o.n), o.value)
	case "boot":
		return t.simulateReboot()
	}
	return fmt.Errorf("%s: no such step", o.verb)
}

// dirOf returns the directory of the target of set and add: DEV/PORT, a PCI address, DEV or an interface.
func (t *Tree) dirOf(target string) (string, error) {
	if dev, port, ok := strings.Cut(target, "/"); ok {
		dir, err := t.followLink("sys/class/infiniband/"+dev, "RDMA device "+dev)
		return path.Join(dir, "ports", port), err
	}
	name, err := t.resolveTarget(target)
	if err != nil {
		return "", err
	}
	return name, nil
}

// resolveTarget returns the path of a device, an interface, a function, or of the file that a path names.
func (t *Tree) resolveTarget(target string) (string, error) {
	switch {
	case strings.Contains(target, "/"):
		return t.resolvePath(target)
	case pciPattern.MatchString(target):
		return t.followLink("sys/bus/pci/devices/"+target, "PCI function "+target)
	}
	if dir, err := t.followLink("sys/class/infiniband/"+target, ""); err == nil {
		return dir, nil
	}
	return t.followLink("sys/class/net/"+target, "RDMA device, interface or PCI function "+target)
}

// followLink follows a symbolic link, taken away or not.
func (t *Tree) followLink(name, what string) (string, error) {
	to, err := os.Readlink(t.diskPath(t.originalPath(name)))
	if err != nil {
		return "", fmt.Errorf("the tree has no %s", what)
	}
	return path.Join(path.Dir(name), to), nil
}

// resolvePath returns the path of a file without symbolic links in its directories, which may have been removed.
func (t *Tree) resolvePath(name string) (string, error) {
	out := ""
	parts := strings.Split(name, "/")
	for i := 0; i < len(parts); i++ {
		next := path.Join(out, parts[i])
		if i == len(parts)-1 {
			out = next
			break
		}
		if to, err := os.Readlink(t.diskPath(t.originalPath(next))); err == nil && to != parts[i] {
			next = path.Join(path.Dir(next), to)
			if strings.HasPrefix(next, "..") || strings.HasPrefix(next, "/") {
				return "", fmt.Errorf("%s leaves the tree", name)
			}
		}
		out = next
	}
	if !t.fileExists(t.originalPath(out)) {
		return "", fmt.Errorf("the tree has no %s", name)
	}
	return out, nil
}

// changeValue writes a new value where nothing that hides the file is touched.
func (t *Tree) changeValue(name string, o op) error {
	name, err := t.resolvePath(name)
	if err != nil {
		return fmt.Errorf("%s has no %s", o.target, o.file)
	}
	file := t.originalPath(name)
	info, err := os.Lstat(t.diskPath(file))
	if err != nil {
		return err
	}
	value := o.value
	switch to, _ := os.Readlink(t.diskPath(file)); {
	case to == path.Base(name) && o.verb != "add":
		// An attribute that could not be read becomes one that can.
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s of %s is no file with a value", o.file, o.target)
	case o.verb == "add":
		b, err := os.ReadFile(t.diskPath(file))
		if err != nil {
			return err
		}
		was, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			return fmt.Errorf("%s of %s holds %q, to which nothing can be added", o.file, o.target, strings.TrimSpace(string(b)))
		}
		value = strconv.FormatUint(was+uint64(o.n), 10)
	}
	return t.replaceContent(file, []byte(value+"\n"))
}

// replaceContent replaces a file in one step; a link that stood for an unreadable file too.
func (t *Tree) replaceContent(name string, text []byte) error {
	mode := fs.FileMode(0o644)
	if info, err := os.Lstat(t.diskPath(name)); err == nil && info.Mode().IsRegular() {
		mode = info.Mode().Perm()
	}
	tmp := t.stagingPath()
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return err
	}
	return os.Rename(tmp, t.diskPath(name))
}

// stagingPath returns a path for something that is then renamed to its place.
func (t *Tree) stagingPath() string {
	t.stagedCount++
	name := t.diskPath(path.Join(privateDir, stagingDir, strconv.Itoa(t.stagedCount)))
	_ = os.Remove(name) // of a process that was killed
	return name
}

// hideFile puts something in the place of a file, and keeps the file.
func (t *Tree) hideFile(name string, o op) error {
	place := t.currentPath(name)
	info, err := os.Lstat(t.diskPath(place))
	if err != nil {
		return fmt.Errorf("%s was removed", o.target)
	}
	switch o.verb {
	case "chmod":
		if info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a symbolic link, which has no mode", o.target)
		}
		return os.Chmod(t.diskPath(place), fs.FileMode(o.n))
	case "unhang":
		if info.Mode()&fs.ModeNamedPipe == 0 {
			return fmt.Errorf("%s does not hang", o.target)
		}
		return t.revealFile(name)
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory: %s takes a file", o.target, o.verb)
	}
	if o.verb == "hang" && info.Mode()&fs.ModeNamedPipe != 0 {
		return fmt.Errorf("%s hangs already", o.target)
	}
	tmp := t.stagingPath()
	switch o.verb {
	case "hang":
		err = syscall.Mkfifo(tmp, 0o644)
	case "fail":
		err = os.Symlink(path.Base(place), tmp)
	case "garble":
		err = os.WriteFile(tmp, []byte(o.value), 0o644)
	}
	if err != nil {
		return err
	}
	if !t.fileExists(hiddenPath(name)) {
		if err := os.Link(t.diskPath(place), t.diskPath(hiddenPath(name))); err != nil {
			return err
		}
	}
	return t.renameOver(tmp, place)
}

// renameOver renames tmp to a place. A reader that waits for a FIFO there gets the content of tmp.
func (t *Tree) renameOver(tmp, place string) error {
	var waiting *os.File
	if info, err := os.Lstat(t.diskPath(place)); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		// Reading and writing, so that it does not wait for a reader itself (fifo(7)).
		if waiting, err = os.OpenFile(t.diskPath(place), os.O_RDWR|syscall.O_NONBLOCK, 0); err != nil {
			return err
		}
		defer waiting.Close()
	}
	var text []byte
	if waiting != nil {
		if info, err := os.Lstat(tmp); err == nil && info.Mode().IsRegular() {
			if text, err = os.ReadFile(tmp); err != nil {
				return err
			}
		}
	}
	if err := os.Rename(tmp, t.diskPath(place)); err != nil {
		return err
	}
	if len(text) > 0 {
		if _, err := waiting.Write(text[:min(len(text), 4096)]); err != nil { // what a pipe takes at once
			return err
		}
	}
	return nil
}

// revealFile puts a hidden file back in its place.
func (t *Tree) revealFile(name string) error {
	if err := t.renameOver(t.diskPath(hiddenPath(name)), t.currentPath(name)); err != nil {
		return err
	}
	_ = os.Remove(t.diskPath(hiddenPath(name))) // where both were the same file, renaming leaves both
	return nil
}

// removePath takes a file or a directory away, with what points there; with a physical function its
// virtual ones.
func (t *Tree) removePath(name string) error {
	place := t.currentPath(name)
	if place != name || !t.fileExists(place) {
		return fmt.Errorf("%s was removed already", name)
	}
	if t.fileExists(hiddenPath(name)) {
		return fmt.Errorf("%s is hidden by hang, garble or fail: restore it first", name)
	}
	for _, vf := range t.virtualFunctions(name) {
		if t.fileExists(t.currentPath(vf)) {
			if err := t.removePath(vf); err != nil {
				return err
			}
		}
	}
	for _, l := range t.linksTo(name) {
		if err := os.Rename(t.diskPath(l), t.diskPath(hiddenPath(l))); err != nil {
			return err
		}
	}
	return os.Rename(t.diskPath(place), t.diskPath(hiddenPath(name)))
}

// restorePath undoes remove, hang, garble and fail.
func (t *Tree) restorePath(name string) error {
	h := hiddenPath(name)
	if !t.fileExists(h) {
		return fmt.Errorf("%s is as it was built: nothing is to be restored", name)
	}
	place := t.currentPath(name)
	if t.fileExists(place) {
		return t.revealFile(name)
	}
	if place != name {
		return fmt.Errorf("%s: what it was in was removed too", name)
	}
	if err := os.Rename(t.diskPath(h), t.diskPath(place)); err != nil {
		return err
	}
	entries, err := os.ReadDir(t.diskPath(path.Join(privateDir, removedDir)))
	if err != nil {
		return err
	}
	for _, e := range entries { // links first taken that point to what is there again
		l := strings.ReplaceAll(e.Name(), "!", "/")
		to, err := os.Readlink(t.diskPath(hiddenPath(l)))
		if err != nil {
			continue
		}
		target := path.Join(path.Dir(l), to)
		if (target == name || strings.HasPrefix(target, name+"/")) && target != l && t.fileExists(target) && !t.fileExists(t.currentPath(l)) {
			if err := os.Rename(t.diskPath(hiddenPath(l)), t.diskPath(t.currentPath(l))); err != nil {
				return err
			}
		}
	}
	for _, vf := range t.virtualFunctions(name) {
		if t.fileExists(hiddenPath(vf)) {
			if err := t.restorePath(vf); err != nil {
				return err
			}
		}
	}
	return nil
}

// globRoot finds paths relative to the root; the patterns are good.
func (t *Tree) globRoot(pattern string) []string {
	found, _ := fs.Glob(os.DirFS(t.root), pattern)
	return found
}

// virtualFunctions returns the virtual functions of a physical one that exists.
func (t *Tree) virtualFunctions(name string) []string {
	var out []string
	for _, l := range t.globRoot(path.Join(t.currentPath(name), "virtfn*")) {
		if to, err := t.followLink(path.Join(name, path.Base(l)), ""); err == nil {
			out = append(out, to)
		}
	}
	return out
}

// linksTo returns the links from elsewhere to a directory or its content: those that the kernel removes with a
// device.
func (t *Tree) linksTo(name string) []string {
	var out []string
	for _, pattern := range []string{
		"sys/class/infiniband/*", "sys/class/net/*", "sys/bus/pci/devices/*", "sys/bus/pci/drivers/*/*", "sys/devices/virtual/net/*/lower_*",
	} {
		for _, l := range t.globRoot(pattern) {
			to, err := os.Readlink(t.diskPath(l))
			if err != nil || strings.HasPrefix(l, name+"/") { // what is in it goes with it
				continue
			}
			if target := path.Join(path.Dir(l), to); target == name || strings.HasPrefix(target, name+"/") {
				out = append(out, l)
			}
		}
	}
	return out
}

// addAERErrors counts errors of a kind, in its line and in the total.
func (t *Tree) addAERErrors(o op) error {
	dir, err := t.dirOf(o.target)
	if err != nil {
		return err
	}
	name, err := t.resolvePath(path.Join(dir, "aer_dev_"+o.file))
	if err != nil { // of an RDMA device or an interface
		name, err = t.resolvePath(path.Join(dir, "device", "aer_dev_"+o.file))
	}
	if err != nil {
		return fmt.Errorf("%s has no aer_dev_%s", o.target, o.file)
	}
	name = t.originalPath(name)
	b, err := os.ReadFile(t.diskPath(name))
	if err != nil {
		return fmt.Errorf("%s has no aer_dev_%s", o.target, o.file)
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	found := 0
	for i, line := range lines {
		key, v, _ := strings.Cut(line, " ")
		n, err := strconv.ParseUint(v, 10, 64)
		if (key == o.value || key == aerFiles[o.file].total) && err == nil {
			lines[i] = key + " " + strconv.FormatUint(n+uint64(o.n), 10)
			found++
		}
	}
	if found != 2 {
		return fmt.Errorf("aer_dev_%s of %s has no %s", o.file, o.target, o.value)
	}
	return t.replaceContent(name, []byte(strings.Join(lines, "\n")+"\n"))
}

// simulateReboot makes the changes that a reader sees after a reboot: another boot id, and a kernel log that starts
// again. Counters stay: whether they do on a real node depends on the NIC.
func (t *Tree) simulateReboot() error {
	file := t.originalPath(bootFile)
	b, err := os.ReadFile(t.diskPath(file))
	if err != nil {
		return err
	}
	if err := t.replaceContent(file, []byte(uuidFrom(string(b))+"\n")); err != nil {
		return err
	}
	t.seq, t.start = 1, -t.now.Microseconds()
	return t.replaceContent(t.originalPath(kmsgFile), []byte(kmsgRecord(6, 0, 0, "", "Linux version 6.8.0-fakesys")))
}

// appendKernelLog appends a record to the kernel log, in one write.
func (t *Tree) appendKernelLog(level int, text string) error {
	device := ""
	if words := strings.SplitN(text, " ", 3); len(words) == 3 && pciPattern.MatchString(strings.TrimSuffix(words[1], ":")) {
		device = strings.TrimSuffix(words[1], ":") // as dev_err and its like log
	}
	f, err := os.OpenFile(t.diskPath(t.originalPath(kmsgFile)), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(kmsgRecord(level, t.seq, t.start+t.now.Microseconds(), device, text))
	t.seq++
	return errors.Join(err, f.Close())
}

// kmsgRecord returns a record of /dev/kmsg: Documentation/ABI/testing/dev-kmsg. A record about a PCI function has
// that in lines of its own. The facility is the kernel's.
func kmsgRecord(level, seq int, us int64, device, text string) string {
	out := fmt.Sprintf("%d,%d,%d,-;%s\n", level, seq, us, text)
	if device != "" {
		out += " SUBSYSTEM=pci\n DEVICE=+pci:" + device + "\n"
	}
	return out
}

// lastRecord returns the number after the last record's, and the time of the last one.
func lastRecord(log []byte) (next int, us int64) {
	for line := range bytes.Lines(log) {
		parts := strings.SplitN(string(line), ",", 4)
		if len(parts) < 4 || line[0] == ' ' {
			continue
		}
		n, err1 := strconv.Atoi(parts[1])
		u, err2 := strconv.ParseInt(parts[2], 10, 64)
		if err1 == nil && err2 == nil {
			next, us = n+1, u
		}
	}
	return next, us
}
