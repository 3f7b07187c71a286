package unix

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestOpenBeneath checks that nothing outside the directory can be opened, and that a FIFO does not block.
func TestOpenBeneath(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": secret, "dirlink": outside, "within": "file", "magic": "/proc/self/fd/0"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for name, want := range map[string]error{"file": nil, "fifo": nil, "link": syscall.ELOOP, "dirlink/secret": syscall.ELOOP, "within": syscall.ELOOP, "magic": syscall.ELOOP, "../x": syscall.EXDEV, secret: syscall.EXDEV, "none": syscall.ENOENT} {
		f, err := OpenBeneath(d, name)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, and not %v", name, err, want)
		}
		if err == nil {
			if info, err := f.Stat(); err != nil {
				t.Error(err)
			} else if uid, id, err := Identify(info); err != nil || int(uid) != os.Getuid() || id.Inode == 0 {
				t.Errorf("%s: owner %d, %v", name, uid, err)
			}
			f.Close()
		}
	}
}
