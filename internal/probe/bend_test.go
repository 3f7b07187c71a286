package probe

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

const bendStart = int64(1.7e18)

func newBend(t *testing.T, offset time.Duration, ppm float64, file string) *Bend {
	t.Helper()
	b, err := NewBend(time.Unix(0, bendStart), offset, ppm, file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// near allows for rates that are rounded in between.
func near(got, want int64) bool { return got-want <= 5 && want-got <= 5 }

func TestBendRule1OffsetAndDrift(t *testing.T) {
	b := newBend(t, -3*time.Millisecond, 50, "")
	for _, tc := range []struct{ after, want int64 }{
		{0, -3e6}, {1e9, -3e6 + 50e3}, {100e9, -3e6 + 5e6}, {-1e9, -3e6 - 50e3},
	} {
		if got := b.BentTime(bendStart+tc.after) - bendStart - tc.after; !near(got, tc.want) {
			t.Errorf("%d ns after the start: off by %d ns, want %d", tc.after, got, tc.want)
		}
	}
	if b.BentTime(0) != 0 {
		t.Error("no time became one")
	}
	if (*Bend)(nil).BentTime(bendStart) != bendStart {
		t.Error("a clock that is right was bent")
	}
	if n := testing.AllocsPerRun(100, func() { b.BentTime(bendStart) }); n != 0 {
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

func TestBendRules2And3StepsAndDriftsComeAndGo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h1.json")
	b := newBend(t, time.Millisecond, 10, file)
	off := func(at int64) int64 { return b.BentTime(at) - at }
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

func TestBendRule4AFileThatCannotBeUsedChangesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h1.json")
	b := newBend(t, 0, 0, file)
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
	if b.BentTime(bendStart) != bendStart {
		t.Error("the clock was bent")
	}
	for _, bad := range []struct {
		offset time.Duration
		ppm    float64
	}{{2 * time.Hour, 0}, {-2 * time.Hour, 0}, {0, 1e6}, {0, -1e6}} {
		if _, err := NewBend(time.Unix(0, bendStart), bad.offset, bad.ppm, ""); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

func TestBendFollowsItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h1.json")
	b, err := NewBend(time.Now(), 0, 0, file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.FollowFile(ctx, slog.New(slog.DiscardHandler)) }()
	write(t, file, `{"step_ns":-7}`, 1)
	until(t, 10*time.Second, "the step", func() bool { return b.CurrentSegment().Offset == -7 })
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

// stampless removes the kernel's stamps, so that the program's own are used.
type stampless struct{ *unix.Batch }

func (s stampless) Recv(u *unix.UDP) (int, error) {
	k, err := s.Batch.Recv(u)
	for i := range k {
		s.DatagramAt(i).Stamp = 0
	}
	return k, err
}

func (s stampless) RecvErrors(u *unix.UDP) (int, error) {
	for {
		if k, err := s.Batch.RecvErrors(u); k == 0 || err != nil {
			return 0, err
		}
	}
}

// TestBentClocksShowInEveryStamp bends the clock of the far end. The delay to it then appears longer by the offset, and
// the delay back shorter, by every kind of stamps.
func TestBentClocksShowInEveryStamp(t *testing.T) {
	const offset, slack = 2 * time.Second, 0.9e9
	for kind, open := range map[stampKind]func(*testing.T, *Config) idle{
		userStamps: func(t *testing.T, c *Config) idle {
			n := newIdle(t, c, kernelDevice{})
			n.in, n.errs = stampless{unix.NewBatch(unix.BatchSize)}, stampless{unix.NewBatch(unix.BatchSize)}
			return n
		},
		kernelStamps: func(t *testing.T, c *Config) idle { return newIdle(t, c, kernelDevice{}) },
		hardwareStamps: func(t *testing.T, c *Config) idle {
			c.Peers[0].Hardware = true
			n := hardwareIdle(t, c, 5e17, 0, true)
			n.crossed(t)
			return n
		},
	} {
		t.Run(kindNames[kind], func(t *testing.T) {
			a, b := open(t, loopConfig("h1", 1, 2, "h2/eth1", 1)), open(t, loopConfig("h2", 2, 1, "h1/eth1", 1))
			var err error
			if b.wire.bend, err = NewBend(time.Now(), offset, 0, ""); err != nil {
				t.Fatal(err)
			}
			f := &a.edges[0].flow
			until(t, 20*time.Second, "20 delays each way", func() bool {
				a.dueNow()
				for _, n := range []idle{a, b, a, b} {
					n.step(t)
				}
				return f.owd[forward][kind].Count >= 20 && f.owd[reverse][kind].Count >= 20
			})
			for d, want := range [2]float64{float64(offset), -float64(offset)} {
				if got, _ := f.owd[d][kind].Quantile(0.5); got < want-slack || got > want+slack {
					t.Errorf("direction %d: median %v ns, want about %v", d, got, want)
				}
			}
			if late := f.Late + f.Lost[forward] + f.Lost[reverse] + f.Duplicate; late != 0 || f.Restarts+b.restarts != 0 {
				t.Errorf("the accounts depend on the clock: %+v, %d restarts of the sender", f.FlowCounters, b.restarts)
			}
		})
	}
}
