package durable

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestTheFileIsReplacedWithModeAndNothingIsLeftBehind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	for _, text := range []string{"first", "second, and longer", ""} {
		if err := WriteFile(file, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != text {
			t.Errorf("%q (%v), want %q", b, err, text)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v), want 0600", info.Mode(), err)
	}
	if err := WritePublicFile(file, []byte("for all")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v (%v), want 0644", info.Mode(), err)
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d entries in the directory (%v), want the file alone", len(entries), err)
	}
}

// On a full file system the old content stays, and the temporary file does not use up the remaining
// space.
func TestAFullDiskLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal(err)
		}
		t.Skipf("a file system of its own cannot be mounted (needs CAP_SYS_ADMIN): %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	file := filepath.Join(dir, "state")
	if err := WriteFile(file, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(file, make([]byte, 128<<10)); err == nil {
		t.Fatal("128 KiB fit on a file system of 64 KiB")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "old" {
		t.Errorf("%q (%v), want the old content", b, err)
	}
	if err := WriteFile(file, []byte("new")); err != nil {
		t.Errorf("nothing fits after the failure: %v", err)
	}
}

func TestAppendedContentFollowsWhatIsThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	for _, text := range []string{"one\n", "two\n"} {
		if err := AppendFile(file, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "one\ntwo\n" {
		t.Errorf("%q (%v), want both lines", b, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v), want 0600", info.Mode(), err)
	}
}
