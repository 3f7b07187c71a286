// Package unix holds the system calls that the standard library lacks, such as socket time stamps, network namespaces
// and a precise sleep. It is the only package that imports golang.org/x/sys/unix.
package unix

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// NetnsDir is the directory of iproute2's named network namespaces (ip-netns(8)).
const NetnsDir = "/run/netns"

// NetnsPath returns the file that a named network namespace is mounted on.
func NetnsPath(name string) string { return filepath.Join(NetnsDir, name) }

// NetnsID is the identity of a network namespace: the device and inode of its nsfs file. Two files with the same
// identity stand for the same namespace.
type NetnsID struct{ Dev, Ino uint64 }

// NetnsIDOf returns the identity of the namespace behind path. errors.Is holds for os.ErrNotExist if path does not
// exist.
func NetnsIDOf(path string) (NetnsID, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return NetnsID{}, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return NetnsID{}, fmt.Errorf("%s: a file of the kernel's nsfs is expected", path)
	}
	return NetnsID{Dev: st.Dev, Ino: st.Ino}, nil
}

// shareNetnsDir serialises the one-time preparation of NetnsDir.
var shareNetnsDir sync.Mutex

// prepareNetnsDir makes NetnsDir a shared mount, as ip-netns(8) does: an
// unmount in one mount namespace then releases the namespace in all of them,
// also in those of processes started with "ip netns exec".
func prepareNetnsDir() error {
	shareNetnsDir.Lock()
	defer shareNetnsDir.Unlock()
	if err := os.MkdirAll(NetnsDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", NetnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// EINVAL: not a mount point yet.
	if err := unix.Mount(NetnsDir, NetnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", NetnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
}

// CreateNetns makes a named network namespace that "ip netns" knows as well. errors.Is holds for os.ErrExist if the
// name is taken.
func CreateNetns(name string) error {
	if err := prepareNetnsDir(); err != nil {
		return fmt.Errorf("preparing %s for namespaces: %w", NetnsDir, err)
	}
	path := NetnsPath(name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("creating namespace %q: %w", name, err)
	}
	f.Close()
	err = InNewNetns(func() error {
		return unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, "")
	})
	if err != nil {
		os.Remove(path)
		return fmt.Errorf("creating namespace %q: %w", name, err)
	}
	return nil
}

// RemoveNetns removes the name of a namespace. The kernel ends the namespace with its last process and socket. A name
// that does not exist is not an error.
func RemoveNetns(name string) error {
	path := NetnsPath(name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmounting namespace %q: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing namespace %q: %w", name, err)
	}
	return nil
}

// InNetns runs fn in the named namespace. What fn opens or starts on its own goroutine belongs there, and can be used
// from outside afterwards.
func InNetns(name string, fn func() error) error {
	target, err := os.Open(NetnsPath(name))
	if err != nil {
		return fmt.Errorf("opening namespace %q: %w", name, err)
	}
	defer target.Close()
	return onThread(func() error {
		if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering namespace %q: %w", name, err)
		}
		return fn()
	})
}

// InNewNetns runs fn in a new namespace without a name. The namespace ends with fn, unless fn mounts it or leaves a
// socket or process in it.
func InNewNetns(fn func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace: %w", err)
		}
		return fn()
	})
}

// onThread runs fn on a locked thread, and returns the thread to the namespace that it came from. The thread is given
// up only if that fails. A process started with Pdeathsig is signalled when the *thread* that started it ends, so
// discarding threads would kill children that an earlier user of the thread started.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("the goroutine in the network namespace ended before its function returned") // as by testing.T.FailNow
		defer func() { done <- err }()
		runtime.LockOSThread()
		home, openErr := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if openErr != nil {
			runtime.UnlockOSThread()
			err = fmt.Errorf("opening the thread's own namespace: %w", openErr)
			return
		}
		defer unix.Close(home)
		result := fn()
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		err = result
	}()
	return <-done
}

// NetnsProcesses lists the processes in each of the given namespaces. It leaves out the calling process, whose threads
// enter namespaces only temporarily.
func NetnsProcesses(ids map[NetnsID]bool) (map[NetnsID][]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	found := map[NetnsID][]int{}
	self := os.Getpid()
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		// A process may end between the listing and this check, which is not an error.
		if id, err := NetnsIDOf("/proc/" + name + "/ns/net"); err == nil && ids[id] {
			found[id] = append(found[id], pid)
		}
	}
	return found, nil
}
