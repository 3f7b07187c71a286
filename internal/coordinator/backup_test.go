package coordinator

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/durable"
)

// inState returns the content of the state file as JSON.
func (f *fixture) inState() (out map[string]any) {
	f.t.Helper()
	b, err := os.ReadFile(f.opts.StateFile)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// A site goes to this version and back. The version before ignores the keys that it does not know, and writes the state
// without them. The schedule and the keys stay the same.
func TestRule5UpgradeAndTheWayBack(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	f.agents(4)
	f.run(3 * time.Second)
	before, _, _ := f.ScheduleOf("")
	keys := f.keys.epochIDs()
	new := f.inState()
	if new["version"] != 3. || new["min_reader"] != 1. {
		t.Fatalf("version %v, min_reader %v, want 3 for readers from 1 on", new["version"], new["min_reader"])
	}
	// All that version 1 writes, from its source at the release 0.1.0.
	known := []string{"version", "agents", "moves", "claims", "keys", "keys_rotated_at", "lives_reserved", "written"}
	old := map[string]any{}
	for _, k := range known {
		if v, ok := new[k]; ok {
			old[k] = v
		}
	}
	old["version"] = 1
	b, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.opts.StateFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f.restart()
	after, _, ok := f.ScheduleOf("")
	if !ok || after.Hash != before.Hash || !slices.Equal(f.keys.epochIDs(), keys) {
		t.Errorf("schedule %s and keys %v, want %s and %v", after.Hash, f.keys.epochIDs(), before.Hash, keys)
	}
}

func TestBackupAndRestore(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	f.agents(4)
	f.run(3 * time.Second)
	before, _, _ := f.ScheduleOf("")
	keys := f.keys.epochIDs()
	copied := filepath.Join(t.TempDir(), "backup")
	s, err := Backup(f.opts.StateFile, copied)
	if err != nil || s.Agents != 4 || s.Keys != 1 || s.Written.IsZero() {
		t.Fatalf("%+v, %v", s, err)
	}
	if info, err := os.Stat(copied); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v), want 0600", info.Mode(), err)
	}
	if err := os.Remove(f.opts.StateFile); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(f.opts.StateFile, copied); err != nil {
		t.Fatal(err)
	}
	f.restart()
	if after, _, ok := f.ScheduleOf(""); !ok || after.Hash != before.Hash || !slices.Equal(f.keys.epochIDs(), keys) {
		t.Errorf("schedule %s and keys %v, want %s and %v", after.Hash, f.keys.epochIDs(), before.Hash, keys)
	}
}

// What the replaced state has reached is not given a second time.
func TestRestoreGoesBackNeitherInEpochsNorInLives(t *testing.T) {
	dir := t.TempDir()
	now, old := filepath.Join(dir, "state"), filepath.Join(dir, "old")
	for file, s := range map[string]*state{now: {Epoch: 9, Lives: 5000}, old: {Epoch: 3, Lives: 9000}} {
		if err := writeState(file, s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Restore(now, old); err != nil {
		t.Fatal(err)
	}
	if s, err := readState(now); err != nil || s.Epoch != 9 || s.Lives != 9000 {
		t.Errorf("%+v (%v), want epoch 9 and lives 9000", s, err)
	}
}

func TestWhatCannotBeRestoredChangesNothing(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"state": `{"version":1,"agents":[]}`, "good": `{"version":1,"agents":[]}`, "broken": `{"version":1,`, "later": `{"version":9,"min_reader":9,"agents":[]}`} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"broken": "broken", "later": "version 9", "none": "there is no state file"} {
		if _, err := Restore(at("state"), at(name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if _, err := Backup(at(name), at("out")); err == nil {
			t.Errorf("%s: a backup was written", name)
		}
	}
	if _, err := Backup(at("state"), at("state")); err == nil {
		t.Error("the state file was its own backup")
	}
	unlock, err := LockState(at("state"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(at("state"), at("good")); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("%v, want that a running coordinator prevents it", err)
	}
	if b, err := os.ReadFile(at("state")); err != nil || string(b) != `{"version":1,"agents":[]}` {
		t.Errorf("the state is %s (%v)", b, err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(at("state"), at("good")); err != nil {
		t.Error(err)
	}
}
