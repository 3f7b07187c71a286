package nodeagent

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestLifeOnlyGrows checks that the number grows from one start to the next, also when the clock was set back, and when
// a coordinator assigned a higher number. Without the file it is not below the time.
func TestLifeOnlyGrows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.life")
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	last := uint64(0)
	for i, at := range []time.Time{now, now, now.Add(-24 * time.Hour), now.Add(time.Second), time.Unix(0, 0)} {
		life, err := nextLife(file, at)
		if err != nil || life <= last || life < uint64(at.UnixMilli()) {
			t.Errorf("start %d: life %d after %d: %v", i, life, last, err)
		}
		last = life
	}
	if err := keepLife(file, last+1000); err != nil {
		t.Fatal(err)
	}
	if life, err := nextLife(file, now); err != nil || life != last+1001 {
		t.Errorf("after a coordinator's number %d: %d, %v", last+1000, life, err)
	}
}

// TestNoLifeIsUsedTwice checks that a number that cannot be kept is not used, and neither is one that would follow a
// number that cannot be read.
func TestNoLifeIsUsedTwice(t *testing.T) {
	dir := t.TempDir()
	if life, err := nextLife(filepath.Join(dir, "nowhere", "state.life"), time.Now()); err == nil || life != 0 {
		t.Errorf("life %d without a directory to keep it in, error %v", life, err)
	}
	file := filepath.Join(dir, "state.life")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if life, err := nextLife(file, time.Now()); err == nil || life != 0 {
		t.Errorf("life %d from a file that cannot be read, error %v", life, err)
	}
	if life, err := nextLife(lifeFile(""), time.Now()); err != nil || life != 0 {
		t.Errorf("life %d without a state file, error %v", life, err)
	}
}
