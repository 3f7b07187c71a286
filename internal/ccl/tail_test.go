package ccl_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/ccl/ccltest"
)

// tailed follows a directory and keeps the numbers of operations in the order in which they were read.
type tailed struct {
	*ccl.Tail
	read map[uint64]int
}

func follow(t *testing.T, dir string) *tailed {
	out := &tailed{read: map[uint64]int{}}
	out.Tail = ccl.NewTail(ccl.TailConfig{Dir: dir, Owner: uint32(os.Getuid()), Source: source, Out: func(r ccl.Record) error {
		if o, ok := r.(*ccl.Op); ok {
			out.read[o.Seq]++
		}
		return nil
	}})
	t.Cleanup(out.Close)
	return out
}

func (f *tailed) poll(t *testing.T) {
	t.Helper()
	for more := true; more; {
		var err error
		if more, err = f.Poll(); err != nil {
			t.Fatal(err)
		}
	}
}

// writer is a process that writes a file as the Inspector does: whole dumps of one operation, and parts of them on request.
type writer struct {
	t       *testing.T
	dir     string
	version string
	pid     int
	file    *os.File
	seq     *uint64
	pending []byte   // the rest of a dump that was begun
	lines   []uint64 // numbers of complete operations in the file that no poll has seen
}

func (w *writer) name() string { return filepath.Join(w.dir, fmt.Sprintf("h3-pid%d.log", w.pid)) }

// start begins a file as another process.
func (w *writer) start() {
	w.pid++
	w.pending, w.lines = nil, nil
	var err error
	if w.file, err = os.OpenFile(w.name(), os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// write writes n bytes of dumps.
func (w *writer) write(n int) {
	for n > 0 {
		if len(w.pending) == 0 {
			*w.seq++
			op := &ccl.Op{Seq: *w.seq, Op: "AllReduce", ExecNS: ccl.KnownNanos(5000)}
			w.pending = ccltest.AppendDump(nil, w.version, ccltest.Dump{AtNS: int64(*w.seq)*1_000_000 + int64(w.pid), Comm: ccl.Comm{Comm: fmt.Sprintf("0x%x", w.pid), NRanks: 2}, Ops: []*ccl.Op{op}})
		}
		part := w.pending[:min(n, len(w.pending))]
		if _, err := w.file.Write(part); err != nil {
			w.t.Fatal(err)
		}
		n -= len(part)
		if w.pending = w.pending[len(part):]; len(w.pending) == 0 {
			w.lines = append(w.lines, *w.seq)
		}
	}
}

// finishLine writes the rest of a dump.
func (w *writer) finishLine() { w.write(len(w.pending)) }

// TestTailAgainstTruth writes, rotates, copies, truncates, removes and kills at random, and compares with what was written:
// each operation is read once, unless it was destroyed before any poll could see it.
func TestTailAgainstTruth(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		dir := t.TempDir()
		seq := uint64(0)
		f := follow(t, dir)
		w := &writer{t: t, dir: dir, version: ccltest.Versions[rng.IntN(len(ccltest.Versions))], seq: &seq}
		w.start()
		destroyed := map[uint64]bool{}
		var history []string
		act := func(name string, do func()) {
			history = append(history, name)
			do()
		}
		for range 60 {
			switch k := rng.IntN(20); {
			case k < 8:
				act("write", func() { w.write(rng.IntN(2000)) })
			case k < 14:
				act("poll", func() {
					f.poll(t)
					w.lines = nil
				})
			case k == 14:
				act("rename", func() {
					if err := os.Rename(w.name(), fmt.Sprintf("%s.%d", w.name(), rng.IntN(1000))); err != nil {
						t.Fatal(err)
					}
					w.finishLine()
					w.start()
				})
			case k == 15:
				act("copy and truncate", func() {
					w.finishLine()
					text, err := os.ReadFile(w.name())
					if err == nil {
						err = os.WriteFile(fmt.Sprintf("%s.copy%d", w.name(), rng.IntN(1000)), text, 0o600)
					}
					if err == nil && rng.IntN(2) == 0 {
						f.poll(t)
					}
					if err == nil {
						err = w.file.Truncate(0)
					}
					if err != nil {
						t.Fatal(err)
					}
					w.lines = nil
				})
			case k == 16:
				act("truncate", func() {
					if len(w.pending) > 0 {
						destroyed[seq] = true
						w.pending = nil
					}
					for _, n := range w.lines {
						destroyed[n] = true
					}
					w.lines = nil
					if err := w.file.Truncate(0); err != nil {
						t.Fatal(err)
					}
				})
			case k == 17:
				act("kill", func() {
					if len(w.pending) > 0 {
						destroyed[seq] = true
					}
					w.file.Close()
					w.start()
				})
			case k == 18:
				act("remove", func() {
					if text, err := os.ReadFile(w.name()); err != nil {
						t.Fatal(err)
					} else if !bytes.Contains(text, []byte("\n")) {
						w.finishLine() // a file without a line is none yet
					}
					f.poll(t)
					w.finishLine() // after the poll: the tail still has the file
					if err := os.Remove(w.name()); err != nil {
						t.Fatal(err)
					}
					f.poll(t)
					w.start()
				})
			default:
				act("link", func() { os.Symlink("/etc/passwd", filepath.Join(dir, fmt.Sprint("link", rng.IntN(100)))) })
			}
		}
		w.finishLine()
		f.poll(t)
		f.poll(t)
		for n := uint64(1); n <= seq; n++ {
			want := 1
			if destroyed[n] {
				want = 0
			}
			if f.read[n] != want {
				t.Fatalf("seed %d: operation %d was read %d times, and not %d: %v", seed, n, f.read[n], want, history)
			}
		}
	}
}

// TestTailCountsLosses checks what is counted when lines are lost.
func TestTailCountsLosses(t *testing.T) {
	dir := t.TempDir()
	f := follow(t, dir)
	d := dump()
	text := ccltest.AppendDump(nil, "v4.2", d)
	path := filepath.Join(dir, "h3-pid1.log")
	lines := bytes.SplitAfter(text, []byte("\n"))
	write := func(parts ...[]byte) {
		t.Helper()
		if err := os.WriteFile(path, bytes.Join(parts, nil), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, want ccl.TailStats) {
		t.Helper()
		f.poll(t)
		if got := f.Stats(); got.Cut != want.Cut || got.Truncated != want.Truncated || got.Unreadable != want.Unreadable || !maps.Equal(got.Dropped, want.Dropped) || len(f.read) != int(want.Records) {
			t.Errorf("%s: %d operations, %+v, and not %+v", what, len(f.read), got, want)
		}
	}
	half := lines[3][:20]
	write(lines[0], lines[1], lines[2], half)
	check("half a line", ccl.TailStats{Counts: ccl.Counts{Records: 2}})
	write(lines[0], lines[1], lines[2], lines[3])
	check("the other half", ccl.TailStats{Counts: ccl.Counts{Records: 3}})
	write(lines[0], lines[1], lines[2], lines[3], []byte("{]\n"), half)
	check("no JSON", ccl.TailStats{Counts: ccl.Counts{Records: 3, Unreadable: 1}})
	write([]byte("{"))
	lost := map[ccl.Reason]uint64{ccl.DroppedDump: 17}
	check("truncated", ccl.TailStats{Counts: ccl.Counts{Records: 3, Unreadable: 1, Dropped: lost}, Cut: 1, Truncated: 1})
	write(bytes.Repeat([]byte("x"), 3*ccl.MaxLine), []byte("\n"), lines[4])
	check("a long line", ccl.TailStats{Counts: ccl.Counts{Records: 4, Unreadable: 2, Dropped: lost}, Cut: 1, Truncated: 1})
}

// TestTailEnds checks that a file that has left the directory is given up, and read on when it comes back.
func TestTailEnds(t *testing.T) {
	dir := t.TempDir()
	f := follow(t, dir)
	path := filepath.Join(dir, "h3-pid1.log")
	text := ccltest.AppendDump(nil, "v4.2", dump())
	early := bytes.LastIndexByte(text[:len(text)-1], '\n') + 1
	if err := os.WriteFile(path, text[:early], 0o600); err != nil {
		t.Fatal(err)
	}
	f.poll(t)
	if err := os.Rename(path, filepath.Join(t.TempDir(), "away")); err != nil {
		t.Fatal(err)
	}
	polls := 0
	for ; f.Stats().Files > 0 && polls < 100; polls++ {
		f.poll(t)
	}
	before := len(f.read)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f.poll(t)
	if polls < 20 || polls > 40 || len(f.read) != before+1 || slices.Max(slices.Collect(maps.Values(f.read))) != 1 {
		t.Errorf("given up after %d polls; read %v", polls, f.read)
	}
}

// TestTailTakesTheLongestCopy checks that of two files with the same first line the longer one is read, and that files
// whose first line is the rest of another one are not taken for copies.
func TestTailTakesTheLongestCopy(t *testing.T) {
	text := ccltest.AppendDump(nil, "v4.2", dump())
	half := bytes.IndexByte(text[len(text)/2:], '\n') + len(text)/2 + 1
	for name, files := range map[string][2][]byte{"copy": {text[:half], text}, "copy last": {text, text[:half]}, "rest": {append([]byte("1}}\n"), text[:half]...), append([]byte("1}}\n"), text[half:]...)}} {
		dir := t.TempDir()
		for i, text := range files {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := follow(t, dir)
		f.poll(t)
		f.poll(t)
		if len(f.read) != len(dump().Ops) || slices.Max(slices.Collect(maps.Values(f.read))) != 1 {
			t.Errorf("%s: read %v", name, f.read)
		}
	}
}

// TestTailRefuses checks that links, FIFOs, directories and files of others change nothing and are counted.
func TestTailRefuses(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	text := ccltest.AppendDump(nil, "v4.2", dump())
	if err := os.WriteFile(filepath.Join(outside, "log"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "log"), filepath.Join(dir, "link.log")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.log"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub.log"), 0o700); err != nil {
		t.Fatal(err)
	}
	f := follow(t, dir)
	for range 2 {
		f.poll(t)
		s := f.Stats()
		if len(f.read) > 0 || s.Refused.Now != 3 || len(s.Refused.First) != 3 || s.Files != 0 || s.Refused.First[0].Name != "fifo.log" || !strings.Contains(s.Refused.First[0].Why.Error(), "no regular file") ||
			!maps.Equal(s.Refused.Total, map[ccl.RefusalReason]uint64{ccl.RefusedKind: 2, ccl.RefusedLink: 1}) {
			t.Errorf("%+v", s)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "mine.log"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	other := ccl.NewTail(ccl.TailConfig{Dir: dir, Owner: uint32(os.Getuid()) + 1, Source: source, Out: func(ccl.Record) error { t.Error("a record"); return nil }})
	defer other.Close()
	if _, err := other.Poll(); err != nil || other.Stats().Refused.Now != 4 {
		t.Errorf("%v %+v", err, other.Stats())
	}
	missing := follow(t, filepath.Join(dir, "none"))
	missing.poll(t)
	if err := os.RemoveAll(filepath.Join(dir, "sub.log")); err != nil {
		t.Fatal(err)
	}
	f.poll(t)
	if s := f.Stats(); s.Refused.Now != 2 || s.Files != 1 || len(f.read) == 0 {
		t.Errorf("%+v", s)
	}
}

// TestTailBeginsWithWhatIsRecent checks that of a long file which the first poll finds only the last part is read, from the
// beginning of a line, and that files which appear later are read as a whole.
func TestTailBeginsWithWhatIsRecent(t *testing.T) {
	dir := t.TempDir()
	text := ccltest.AppendDump(nil, "v4.2", dump())
	lines := bytes.SplitAfter(text, []byte("\n"))
	last := len(lines) - 2 // the text ends in a line end
	if err := os.WriteFile(filepath.Join(dir, "h3-pid1.log"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	f := &tailed{read: map[uint64]int{}}
	f.Tail = ccl.NewTail(ccl.TailConfig{Dir: dir, Owner: uint32(os.Getuid()), Source: source, Recent: int64(len(lines[last])) + 5, Out: func(r ccl.Record) error {
		if o, ok := r.(*ccl.Op); ok {
			f.read[o.Seq]++
		}
		return nil
	}})
	defer f.Close()
	f.poll(t)
	if s := f.Stats(); len(f.read) != 1 || s.Lines != 1 || s.Unreadable != 0 {
		t.Errorf("read %v: %+v", f.read, s)
	}
	later := bytes.ReplaceAll(text, []byte(`"pid":`), []byte(`"pid":9`))
	if err := os.WriteFile(filepath.Join(dir, "h3-pid2.log"), later, 0o600); err != nil {
		t.Fatal(err)
	}
	f.poll(t)
	if s := f.Stats(); s.Lines != uint64(1+last+1) {
		t.Errorf("%d lines of a file that appeared later, and not %d", s.Lines-1, last+1)
	}
}
