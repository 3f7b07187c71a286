package bentclock

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const bendStart = int64(1.7e18)

func newClock(t *testing.T, offset time.Duration, ppm float64, file string) *Clock {
	t.Helper()
	b, err := New(time.Unix(0, bendStart), offset, ppm, file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// near allows for rates that are rounded in between.
func near(got, want int64) bool { return got-want <= 5 && want-got <= 5 }

func TestRule1OffsetAndDrift(t *testing.T) {
	b := newClock(t, -3*time.Millisecond, 50, "")
	for _, tc := range []struct{ after, want int64 }{
		{0, -3e6}, {1e9, -3e6 + 50e3}, {100e9, -3e6 + 5e6}, {-1e9, -3e6 - 50e3},
	} {
		if got := b.NodeTime(bendStart+tc.after) - bendStart - tc.after; !near(got, tc.want) {
			t.Errorf("%d ns after the start: off by %d ns, want %d", tc.after, got, tc.want)
		}
	}
	if b.NodeTime(0) != 0 {
		t.Error("no time became one")
	}
	if n := testing.AllocsPerRun(100, func() { b.NodeTime(bendStart) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// write replaces a file with another one, so that the change is visible whatever the resolution of the file system's
// clock is.
func write(t *testing.T, file, text string, age int) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1e9+int64(age), 0)
	if err := os.Chtimes(file, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestRules2And3StepsAndDriftsComeAndGo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h1.json")
	b := newClock(t, time.Millisecond, 10, file)
	off := func(at int64) int64 { return b.NodeTime(at) - at }
	now := bendStart
	look := func(after int64, want bool) {
		t.Helper()
		now = bendStart + after
		if changed, err := b.checkFile(func() int64 { return now }); err != nil || changed != want {
			t.Fatalf("changed %v, %v; want %v", changed, err, want)
		}
	}
	look(1e9, false)
	write(t, file, `{"step_ns":5000000}`, 1)
	look(10e9, true)
	if got := off(now - 1e6); !near(got, 1e6+100e3-10) {
		t.Errorf("stamped before the step: off by %d", got)
	}
	if got := off(now); !near(got, 6e6+100e3) {
		t.Errorf("at the step: off by %d, want 6100000", got)
	}
	look(11e9, false)
	write(t, file, `{"step_ns":5000000,"drift_ppm":40}`, 2)
	look(20e9, true)
	if got := off(now); !near(got, 6e6+200e3) {
		t.Errorf("a drift that begins: off by %d, want 6200000", got)
	}
	if got := off(now + 1e9); !near(got, 6e6+200e3+50e3) {
		t.Errorf("a second later: off by %d, want 6250000", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	look(30e9, true)
	if got := off(now); !near(got, 1e6+200e3+500e3) {
		t.Errorf("the file is gone: off by %d, want 1700000", got)
	}
	if got := off(now + 1e9); !near(got, 1e6+700e3+10e3) {
		t.Errorf("a second later: off by %d, want 1710000", got)
	}
	look(31e9, false)
	if s := b.CurrentSegment(); s.Ref != bendStart+30e9 || !near(s.Offset, 1.7e6) || !near(int64(s.Rate*1e9), 10e3) {
		t.Errorf("segment %+v", s)
	}
}

func TestRule4AFileThatCannotBeUsedChangesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h1.json")
	b := newClock(t, 0, 0, file)
	for i, tc := range []struct{ text, want string }{
		{``, "step_ns"}, {`{"step":1}`, `"step"`}, {`{"step_ns":"x"}`, "step_ns"}, {`{} {}`, "nothing after"},
		{`{"step_ns":3600000000001}`, "offset of the clock"}, {`{"drift_ppm":1e300}`, "drift of the clock"},
		{`{"drift_ppm":1e400}`, "drift_ppm"}, {strings.Repeat(" ", maxBendFile+1), "longer"},
	} {
		write(t, file, tc.text, i)
		changed, err := b.checkFile(func() int64 { return bendStart })
		if changed || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.40q: changed %v, error %v, want %q", tc.text, changed, err, tc.want)
		}
		if _, err := b.checkFile(func() int64 { return bendStart }); err != nil {
			t.Errorf("%.40q: reported twice: %v", tc.text, err)
		}
	}
	if b.NodeTime(bendStart) != bendStart {
		t.Error("the clock was bent")
	}
	for _, bad := range []struct {
		offset time.Duration
		ppm    float64
	}{{2 * time.Hour, 0}, {-2 * time.Hour, 0}, {0, 1e6}, {0, -1e6}} {
		if _, err := New(time.Unix(0, bendStart), bad.offset, bad.ppm, ""); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

func TestClockFollowsItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h1.json")
	b, err := New(time.Now(), 0, 0, file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.FollowFile(ctx, slog.New(slog.DiscardHandler)) }()
	write(t, file, `{"step_ns":-7}`, 1)
	for end := time.Now().Add(10 * time.Second); b.CurrentSegment().Offset != -7; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the step of the file was not taken over in ten seconds")
		}
	}
	cancel()
	<-done
}

func FuzzParseBend(f *testing.F) {
	for _, s := range []string{`{"step_ns":1,"drift_ppm":-2.5}`, `{}`, `{"step_ns":1e3}`, `null`, `[]`, `{"drift_ppm":NaN}`, "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseBend(strings.NewReader(string(b)))
		if err == nil && checkBend(got.StepNS, got.DriftPPM) != nil {
			t.Errorf("%q gave %+v", b, got)
		}
	})
}
