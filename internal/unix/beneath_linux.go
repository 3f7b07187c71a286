package unix

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	sys "golang.org/x/sys/unix"
)

// OpenBeneath opens a file of a directory for reading, as openat2(2) does with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and
// RESOLVE_NO_MAGICLINKS: no link leads elsewhere, and a FIFO does not block. The caller checks what kind of file it is. The
// error is that of openat2, as an *os.PathError: ELOOP for a symbolic link, EXDEV for a path that leaves the directory.
func OpenBeneath(dir *os.File, name string) (*os.File, error) {
	how := sys.OpenHow{
		Flags:   sys.O_RDONLY | sys.O_CLOEXEC | sys.O_NONBLOCK | sys.O_NOCTTY | sys.O_NOFOLLOW,
		Resolve: sys.RESOLVE_BENEATH | sys.RESOLVE_NO_SYMLINKS | sys.RESOLVE_NO_MAGICLINKS,
	}
	path := filepath.Join(dir.Name(), name)
	for {
		fd, err := sys.Openat2(int(dir.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case err != sys.EINTR && err != sys.EAGAIN:
			return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
		}
	}
}

// FileID names a file in the system, whatever its path is.
type FileID struct{ Device, Inode uint64 }

// Identify returns the user that owns a file, and its number.
func Identify(info os.FileInfo) (uid uint32, id FileID, err error) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, FileID{}, fmt.Errorf("%s: the owner is unknown", info.Name())
	}
	return stat.Uid, FileID{stat.Dev, stat.Ino}, nil
}
