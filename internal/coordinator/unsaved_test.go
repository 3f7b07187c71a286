package coordinator

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
)

// blockWrites makes every write of the state fail until unblock is called.
func (f *fixture) blockWrites() (unblock func()) {
	f.t.Helper()
	file := f.file.path
	f.file.path = filepath.Join(file, "full")
	return func() { f.file.path = file }
}

func TestRule5AStateThatCanOnlyBeReadIsEnoughToStart(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	_, boxes := f.agents(4)
	f.run(3 * time.Second)
	before, _, _ := f.ScheduleOf("")
	keys := f.keys.epochIDs()
	// The name leaves no room for the name of a temporary file beside it: the file can be read, and not
	// be replaced.
	long := filepath.Join(filepath.Dir(f.opts.StateFile), strings.Repeat("s", 250))
	if err := os.Rename(f.opts.StateFile, long); err != nil {
		t.Fatal(err)
	}
	f.opts.StateFile = long
	f.restart()
	after, _, ok := f.ScheduleOf("")
	if !ok || before.Hash != after.Hash || !slices.Equal(f.keys.epochIDs(), keys) {
		t.Errorf("schedule %s, then %s; keys %v, then %v", before.Hash, after.Hash, keys, f.keys.epochIDs())
	}
	h := hello("h1", 0)
	h.Applied = applied(boxes[0])
	f.mustConnect(h)
	f.run(10 * time.Second)
	if s := f.Stats(); s.Saves["failed"] < 2 || s.Saves["done"] != 0 {
		t.Errorf("writes %v, want that they fail and are tried again", s.Saves)
	}
	if n := strings.Count(f.logs.String(), "cannot write the state"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
	f.file.path = filepath.Join(filepath.Dir(long), "state.json")
	f.run(3 * time.Second)
	if s := f.Stats(); s.Saves["done"] == 0 || !strings.Contains(f.logs.String(), "the state is written again") {
		t.Errorf("writes %v after there is room", s.Saves)
	}
	if s, err := readState(f.file.path); err != nil || len(s.Agents) != 4 || len(s.Keys) != 1 {
		t.Errorf("%v, %+v", err, s)
	}
}

// Without a state, or without a key in it, no key may be sent that a restart would forget.
func TestRule5AFirstStateMustBeWritten(t *testing.T) {
	o, _, _ := options(t, clos(2, 2))
	f := &fixture{t: t, opts: o}
	long := filepath.Join(filepath.Dir(o.StateFile), strings.Repeat("s", 250))
	if err := os.WriteFile(long, []byte(`{"version":1,"agents":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"no state": long + "/state.json", "no key": long} {
		f.opts.StateFile = file
		if _, err := New(f.opts, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: it started", name)
		}
	}
	f.opts.StateFile, f.opts.Keys = long, false
	if _, err := New(f.opts, slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("without keys: %v", err)
	}
}

// While the state cannot be written no rotation begins or continues, since a restart would forget the
// keys.
func TestRule7NoKeyRotatesWhileTheStateCannotBeWritten(t *testing.T) {
	f := start(t, clos(2, 2), nil)
	sessions, _ := f.agents(4)
	if f.opts.RotateEvery != 24*time.Hour {
		t.Fatalf("keys rotate every %v by default, want a day", f.opts.RotateEvery)
	}
	day := func(d time.Duration) {
		t.Helper()
		for ; d > 0; d -= time.Minute {
			f.clock.pass(time.Minute)
			for _, s := range sessions {
				f.receive(s)
				f.beat(s, applied(inbox{keys: &agentapi.Keys{Ids: f.keys.epochIDs()}}))
			}
			f.Step()
		}
	}
	first := f.keys.epochIDs()
	unblock := f.blockWrites()
	day(30 * time.Hour)
	if !slices.Equal(f.keys.epochIDs(), first) || f.Stats().Saves["failed"] == 0 {
		t.Fatalf("keys %v, want %v while nothing is written; writes %v", f.keys.epochIDs(), first, f.Stats().Saves)
	}
	if n := strings.Count(f.logs.String(), "cannot rotate the keys"); n > 1 {
		t.Errorf("a rotation was tried %d times", n)
	}
	unblock()
	f.clock.pass(time.Minute)
	f.Step()
	f.Step()
	if len(f.keys.epochs) != 2 {
		t.Fatalf("keys %v: no rotation began after a write succeeded", f.keys.epochIDs())
	}
	unblock = f.blockWrites()
	f.mu.Lock()
	f.file.unsaved = true
	f.mu.Unlock()
	held := f.keys.epochIDs()
	day(30 * time.Hour)
	if !slices.Equal(f.keys.epochIDs(), held) {
		t.Errorf("keys %v, want %v while nothing is written", f.keys.epochIDs(), held)
	}
	unblock()
	day(time.Hour)
	if len(f.keys.epochs) != 1 || f.keys.epochIDs()[0] != held[1] {
		t.Errorf("keys %v, want the rotation from %v done", f.keys.epochIDs(), held)
	}
}
