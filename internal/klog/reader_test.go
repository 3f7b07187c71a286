package klog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	thisBoot = "5e0cd0a4-1f43-4b3e-8f0c-1d1b2a7c9e10"
	lastBoot = "00000000-1f43-4b3e-8f0c-1d1b2a7c9e10"
)

func line(seq uint64) string {
	return string(kmsg(Record{Seq: seq, Boot: time.Duration(seq) * time.Second, Level: 4, Text: fmt.Sprintf("line %d", seq),
		Tags: map[string]string{"SUBSYSTEM": "pci"}}))
}

func lines(from, to uint64) (s string) {
	for seq := from; seq <= to; seq++ {
		s += line(seq)
	}
	return s
}

func seqs(from, to uint64) (out []uint64) {
	for seq := from; seq <= to; seq++ {
		out = append(out, seq)
	}
	return out
}

// running is a Run in the background, which a test ends and waits for.
type running struct {
	t      *testing.T
	got    chan Record
	cancel context.CancelFunc
	done   chan error
}

func run(t *testing.T, r *Reader) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &running{t: t, got: make(chan Record, 1000), cancel: cancel, done: make(chan error, 1)}
	go func() { w.done <- r.Run(ctx, func(rec Record) error { w.got <- rec; return nil }) }()
	t.Cleanup(cancel)
	return w
}

// want waits for records of these numbers, and no others before them.
func (w *running) want(want []uint64) {
	w.t.Helper()
	for _, seq := range want {
		select {
		case rec := <-w.got:
			if rec.Seq != seq {
				w.t.Fatalf("got record %d, want %d", rec.Seq, seq)
			}
			if want := fmt.Sprintf("line %d", seq); rec.Text != want || rec.Tags["SUBSYSTEM"] != "pci" {
				w.t.Fatalf("got %+v", rec)
			}
		case err := <-w.done:
			w.t.Fatalf("ended with %v before record %d", err, seq)
		case <-time.After(20 * time.Second):
			w.t.Fatalf("record %d did not come", seq)
		}
	}
}

// stop ends the run, and reports records that the test did not expect.
func (w *running) stop() {
	w.t.Helper()
	w.cancel()
	select {
	case err := <-w.done:
		if !errors.Is(err, context.Canceled) {
			w.t.Fatalf("ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		w.t.Fatal("does not end")
	}
	close(w.got)
	for rec := range w.got {
		w.t.Errorf("record %d came too", rec.Seq)
	}
}

func newReader(t *testing.T, cfg Config) *Reader {
	t.Helper()
	if cfg.BootID == "" {
		cfg.BootID = thisBoot
	}
	cfg.Poll = 2 * time.Millisecond
	r, err := NewReader(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func appendTo(t *testing.T, path, s string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

func TestGrowingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	appendTo(t, path, lines(5, 7))
	r := newReader(t, Config{Path: path})
	w := run(t, r)
	w.want(seqs(5, 7))
	// A record that comes in parts is none before its last newline.
	l := line(8)
	appendTo(t, path, l[:9])
	appendTo(t, path, l[9:len(l)-3])
	appendTo(t, path, l[len(l)-3:]+lines(9, 30))
	w.want(seqs(8, 30))
	w.stop()
	if s := r.Stats(); s.Records != 26 || s.Lost != 0 || s.Malformed != 0 {
		t.Errorf("%+v", s)
	}
	if p := r.Position(); p != (Position{BootID: thisBoot, Next: 31}) {
		t.Errorf("position is %+v", p)
	}
}

func TestFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newReader(t, Config{Path: path})
	w := run(t, r)
	appendTo(t, path, lines(0, 2))
	w.want(seqs(0, 2))
	// The first writer has gone; that is no end.
	appendTo(t, path, line(3))
	appendTo(t, path, line(4))
	w.want(seqs(3, 4))
	w.stop()

	// A FIFO does not repeat what was read, and what comes next is not lost.
	pos := r.Position()
	r = newReader(t, Config{Path: path, Position: &pos, SaveEvery: time.Millisecond, Save: func(Position) error { return nil }})
	w = run(t, r)
	appendTo(t, path, line(5))
	w.want(seqs(5, 5))
	w.stop()
	if s := r.Stats(); s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

func TestFIFOIsQuietAfterRestart(t *testing.T) {
	// Nothing was seen before its first end, which says nothing of the position.
	d := newFakeDevice(syscall.EAGAIN, line(5))
	r := newReader(t, Config{Position: &Position{BootID: thisBoot, Next: 5}})
	r.open = func() (device, kind, error) { return d, stream, nil }
	w := run(t, r)
	w.want(seqs(5, 5))
	w.stop()
	if s := r.Stats(); s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRule1Restart(t *testing.T) {
	dir := t.TempDir()
	path, saved := filepath.Join(dir, "kmsg"), filepath.Join(dir, "position.json")
	start := func() (*Reader, *running) {
		pos, err := LoadPosition(saved)
		if err != nil {
			t.Fatal(err)
		}
		r := newReader(t, Config{Path: path, Position: pos, Save: func(p Position) error { return SavePosition(saved, p) }})
		return r, run(t, r)
	}
	appendTo(t, path, lines(0, 9))
	_, w := start()
	w.want(seqs(0, 9))
	w.stop()

	_, w = start()
	appendTo(t, path, line(10))
	w.want(seqs(10, 10))
	w.stop()

	// While the agent is down.
	appendTo(t, path, lines(11, 20))
	r, w := start()
	w.want(seqs(11, 20))
	w.stop()
	if s := r.Stats(); s.Lost != 0 || s.Records != 10 {
		t.Errorf("%+v", s)
	}

	// While the agent is down, the ring overwrites up to 29.
	if err := os.WriteFile(path, []byte(lines(30, 31)), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w = start()
	w.want(seqs(30, 31))
	w.stop()
	if s := r.Stats(); s.Lost != 9 {
		t.Errorf("lost %d, want 9 (21 to 29)", s.Lost)
	}
}

func TestRule1FailedDeliveryComesAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	appendTo(t, path, lines(0, 5))
	r := newReader(t, Config{Path: path})
	full := errors.New("full")
	err := r.Run(context.Background(), func(rec Record) error {
		if rec.Seq == 3 {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) {
		t.Fatalf("ended with %v", err)
	}
	w := run(t, r)
	w.want(seqs(3, 5))
	w.stop()
}

func TestRule2Reboot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	appendTo(t, path, lines(0, 9))
	// From now on, but there was a boot before this one: what this one has logged is new.
	r := newReader(t, Config{Path: path, From: FromNow, Position: &Position{BootID: lastBoot, Next: 5000}})
	w := run(t, r)
	w.want(seqs(0, 9))
	w.stop()
	if p := r.Position(); p != (Position{BootID: thisBoot, Next: 10}) {
		t.Errorf("position is %+v", p)
	}
}

func TestRule3FromNow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	appendTo(t, path, lines(0, 9))
	r := newReader(t, Config{Path: path, From: FromNow})
	dev := make(chan struct{})
	open := r.open
	r.open = func() (device, kind, error) {
		d, k, err := open()
		return &hooked{d, dev}, k, err
	}
	w := run(t, r)
	<-dev // has sought the end
	appendTo(t, path, lines(10, 11))
	w.want(seqs(10, 11))
	w.stop()
	if s := r.Stats(); s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

// hooked closes a channel at the first read.
type hooked struct {
	device
	reads chan struct{}
}

func (h *hooked) Read(b []byte) (int, error) {
	if h.reads != nil {
		close(h.reads)
		h.reads = nil
	}
	return h.device.Read(b)
}

// fakeDevice plays /dev/kmsg: each step is a record or an error; at the end it waits, as the kernel does.
type fakeDevice struct {
	mu       sync.Mutex
	wake     *sync.Cond
	steps    []any
	deadline time.Time
}

func newFakeDevice(steps ...any) *fakeDevice {
	d := &fakeDevice{steps: steps}
	d.wake = sync.NewCond(&d.mu)
	return d
}

func (d *fakeDevice) Read(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if len(d.steps) > 0 {
			step := d.steps[0]
			d.steps = d.steps[1:]
			if err, ok := step.(error); ok {
				return 0, &fs.PathError{Op: "read", Path: "/dev/kmsg", Err: err}
			}
			rec := step.(string)
			if len(rec) > len(b) {
				return 0, &fs.PathError{Op: "read", Path: "/dev/kmsg", Err: syscall.EINVAL}
			}
			return copy(b, rec), nil
		}
		if !d.deadline.IsZero() {
			if wait := time.Until(d.deadline); wait <= 0 {
				return 0, os.ErrDeadlineExceeded
			} else {
				time.AfterFunc(wait, d.wake.Broadcast)
			}
		}
		d.wake.Wait()
	}
}

func (d *fakeDevice) SetReadDeadline(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deadline = t
	d.wake.Broadcast()
	return nil
}

func (d *fakeDevice) Seek(int64, int) (int64, error) { return 0, nil }
func (d *fakeDevice) Close() error                   { return nil }

func (d *fakeDevice) add(steps ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps = append(d.steps, steps...)
	d.wake.Broadcast()
}

func overDevice(t *testing.T, d *fakeDevice, cfg Config) *Reader {
	r := newReader(t, cfg)
	r.open = func() (device, kind, error) { return d, records, nil }
	return r
}

func TestRule4Overwritten(t *testing.T) {
	d := newFakeDevice(line(0), line(1), syscall.EPIPE, line(40), syscall.EINTR, syscall.EAGAIN, line(41), syscall.EPIPE, syscall.EPIPE, line(50))
	r := overDevice(t, d, Config{})
	w := run(t, r)
	w.want([]uint64{0, 1, 40, 41, 50})
	w.stop()
	if s := r.Stats(); s.Lost != 38+8 || s.Overruns != 3 || s.Records != 5 {
		t.Errorf("%+v, want 46 lost, 3 overruns, 5 records", s)
	}
}

func TestRule4FirstStartHasLostNothing(t *testing.T) {
	// The ring's beginning is gone before there was an agent.
	r := overDevice(t, newFakeDevice(line(700), line(701)), Config{})
	w := run(t, r)
	w.want(seqs(700, 701))
	w.stop()
	if s := r.Stats(); s.Lost != 0 {
		t.Errorf("%+v", s)
	}
	// But what a new boot lost before its agent came, an agent that knows the last boot should have had.
	r = overDevice(t, newFakeDevice(line(700), line(701)), Config{Position: &Position{BootID: lastBoot, Next: 3}})
	w = run(t, r)
	w.want(seqs(700, 701))
	w.stop()
	if s := r.Stats(); s.Lost != 700 {
		t.Errorf("lost %d, want 700", s.Lost)
	}
}

func TestBufferTooSmall(t *testing.T) {
	long := string(kmsg(Record{Seq: 1, Text: string(make([]byte, readSize))}))
	longer := string(kmsg(Record{Seq: 2, Text: string(make([]byte, readSize/4+100))}))
	d := newFakeDevice(line(0), long, longer, line(3))
	r := overDevice(t, d, Config{})
	var got []uint64
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := r.Run(ctx, func(rec Record) error {
		if got = append(got, rec.Seq); rec.Seq == 3 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || !slices.Equal(got, []uint64{0, 2, 3}) || r.Stats().Lost != 1 {
		t.Errorf("got %v, %v, lost %d; want 0, 2 and 3, and one lost", got, err, r.Stats().Lost)
	}
}

func TestInvalidForEver(t *testing.T) {
	d := newFakeDevice()
	for range 2 * maxInvalid {
		d.add(syscall.EINVAL)
	}
	err := overDevice(t, d, Config{}).Run(context.Background(), func(Record) error { return nil })
	if !errors.Is(err, syscall.EINVAL) {
		t.Errorf("ended with %v", err)
	}
}

func TestRule5Malformed(t *testing.T) {
	r := overDevice(t, newFakeDevice(line(0), "garbage\n", "6,x,1,-;no number\n", line(1)), Config{})
	w := run(t, r)
	w.want(seqs(0, 1))
	w.stop()
	if s := r.Stats(); s.Malformed != 2 || s.Records != 2 {
		t.Errorf("%+v", s)
	}
}

func TestRule6PositionAhead(t *testing.T) {
	d := newFakeDevice(line(0), line(1), line(2))
	saved := make(chan Position, 100)
	r := overDevice(t, d, Config{Position: &Position{BootID: thisBoot, Next: 1_000_000}, SaveEvery: time.Millisecond,
		Save: func(p Position) error { saved <- p; return nil }})
	w := run(t, r)
	for p := range saved {
		if p.Next == 3 {
			break
		}
	}
	d.add(line(3))
	w.want(seqs(3, 3))
	w.stop()
}

func TestSavedWhileQuiet(t *testing.T) {
	saved := make(chan Position, 100)
	r := overDevice(t, newFakeDevice(line(0), line(1)), Config{SaveEvery: time.Millisecond, Save: func(p Position) error { saved <- p; return nil }})
	w := run(t, r)
	w.want(seqs(0, 1))
	for p := range saved {
		if p.Next == 2 {
			break
		}
	}
	w.stop()
}

func TestSaveEvery(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var saved []uint64
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d := newFakeDevice()
	for seq := range uint64(100) {
		d.add(line(seq))
	}
	r := overDevice(t, d, Config{SaveEvery: 10 * time.Second, Now: func() time.Time { return now },
		Save: func(p Position) error {
			saved = append(saved, p.Next)
			if len(saved) == 2 {
				return errors.New("disk full")
			}
			return nil
		}})
	r.Run(ctx, func(rec Record) error {
		now = now.Add(time.Second)
		if rec.Seq == 29 {
			cancel()
		}
		return nil
	})
	// The first at once, then after ten seconds, tried again at the next occasion; and at the end.
	if want := []uint64{1, 11, 21, 30}; !slices.Equal(saved, want) {
		t.Errorf("saved at %v, want %v", saved, want)
	}
	if s := r.Stats(); s.SaveErrors != 1 {
		t.Errorf("%+v", s)
	}
}

func TestCannotOpen(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]error{
		filepath.Join(dir, "none"): fs.ErrNotExist,
		dir:                        syscall.EISDIR,
		// What some containers have in this place.
		"/dev/null": io.ErrUnexpectedEOF,
	} {
		if err := newReader(t, Config{Path: path}).Run(context.Background(), nil); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if _, err := NewReader(Config{}); err == nil {
		t.Error("no boot id: no error")
	}
}

func TestTruncatedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	appendTo(t, path, lines(0, 9))
	w := run(t, newReader(t, Config{Path: path}))
	w.want(seqs(0, 9))
	if err := os.WriteFile(path, []byte(lines(9, 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.want(seqs(10, 10))
	w.stop()
}

func TestPositionFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "position.json")
	if p, err := LoadPosition(path); p != nil || err != nil {
		t.Errorf("without a file: %v, %v", p, err)
	}
	want := Position{BootID: thisBoot, Next: 7, Cursor: "s=1;i=2"}
	for range 2 {
		if err := SavePosition(path, want); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := LoadPosition(path); err != nil || *p != want {
		t.Errorf("got %+v, %v", p, err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("%d files are left", len(entries))
	}
	// A broken file is no first start: FromNow would miss what the agent was down for.
	os.WriteFile(path, []byte("{"), 0o600)
	if p, err := LoadPosition(path); err == nil || p == nil || *p != (Position{}) {
		t.Errorf("broken: %v, %v", p, err)
	}
	if err := SavePosition(filepath.Join(path, "x"), want); err == nil {
		t.Error("saved under a file")
	}
}

// withoutKernelLog skips a test for want of a declared feature: /dev/kmsg, readable (CAP_SYSLOG). CI has it.
func withoutKernelLog(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
		t.Fatalf("a readable /dev/kmsg (CAP_SYSLOG) is missing: %v", err)
	}
	t.Skipf("a readable /dev/kmsg (CAP_SYSLOG) is missing: %v", err)
}

// The kernel of this machine: its records parse, its numbers rise, and waiting for the next one ends with the context.
func TestRealDevice(t *testing.T) {
	f, err := os.Open(DefaultPath)
	if err != nil {
		withoutKernelLog(t, err)
	}
	f.Close()
	r := newReader(t, Config{})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	next := uint64(0)
	err = r.Run(ctx, func(rec Record) error {
		if rec.Seq < next {
			t.Errorf("record %d after %d", rec.Seq, next-1)
		}
		next = rec.Seq + 1
		return nil
	})
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, fs.ErrPermission) {
		withoutKernelLog(t, err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ended with %v", err)
	}
	if s := r.Stats(); s.Malformed != 0 {
		t.Errorf("%+v", s)
	}
	t.Logf("%+v", r.Stats())
}
