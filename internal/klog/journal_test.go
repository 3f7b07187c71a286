package klog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func journalLine(i int, more string) string {
	return fmt.Sprintf(`{"__CURSOR":"s=a;i=%d","_BOOT_ID":"%s","_TRANSPORT":"kernel","SYSLOG_FACILITY":"0","SYSLOG_IDENTIFIER":"kernel","PRIORITY":"3",`+
		`"__MONOTONIC_TIMESTAMP":"99000000","_SOURCE_MONOTONIC_TIMESTAMP":"%d","MESSAGE":"line %d"%s}`+"\n",
		i, strings.ReplaceAll(thisBoot, "-", ""), i*1_000_000, i, more)
}

func TestParseJournal(t *testing.T) {
	e, err := ParseJournal([]byte(journalLine(7, `,"_KERNEL_DEVICE":"+pci:0000:17:00.0","_KERNEL_SUBSYSTEM":"pci","_UDEV_SYSNAME":"0000:17:00.0"`)))
	want := Record{Boot: 7 * time.Second, Level: 3, Text: "line 7", Tags: map[string]string{"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:17:00.0"}}
	if err != nil || !equal(e.Record, want) || e.Cursor != "s=a;i=7" || !sameBoot(e.BootID, thisBoot) {
		t.Errorf("got %+v, %v", e, err)
	}
	base := journalLine(7, "")
	for message, want := range map[string]string{
		`"caf\u00e9"`:            "café",
		`[109,108,120,53,255,9]`: "mlx5\uFFFD\t",
		`["first","second"]`:     "first",
		`[[111,107],[110,111]]`:  "ok",
		`""`:                     "",
	} {
		e, err := ParseJournal([]byte(strings.Replace(base, `"line 7"`, message, 1)))
		if err != nil || e.Text != want {
			t.Errorf("%s is %q, %v, want %q", message, e.Text, err, want)
		}
	}
	for what, in := range map[string]string{
		"not JSON":         base[:50],
		"no object":        `["x"]`,
		"null":             `null`,
		"too long a text":  strings.Replace(base, `"line 7"`, `null`, 1),
		"octet over 255":   strings.Replace(base, `"line 7"`, `[256]`, 1),
		"octet negative":   strings.Replace(base, `"line 7"`, `[-1]`, 1),
		"empty array":      strings.Replace(base, `"line 7"`, `[]`, 1),
		"too deep":         strings.Replace(base, `"line 7"`, `[[[1]]]`, 1),
		"a number":         strings.Replace(base, `"line 7"`, `7`, 1),
		"no cursor":        strings.Replace(base, "__CURSOR", "CURSOR", 1),
		"priority 8":       strings.Replace(base, `"PRIORITY":"3"`, `"PRIORITY":"8"`, 1),
		"no facility":      strings.Replace(base, "SYSLOG_FACILITY", "X", 1),
		"no time":          strings.ReplaceAll(base, "_MONOTONIC_", "_"),
		"too large a time": strings.Replace(base, `"7000000"`, `"9223372036854776"`, 1),
	} {
		if e, err := ParseJournal([]byte(in)); err == nil || !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrNotKernel) {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
	}
	if _, err := ParseJournal([]byte(strings.Replace(base, `"kernel"`, `"syslog"`, 1))); !errors.Is(err, ErrNotKernel) {
		t.Errorf("an entry of syslog: %v", err)
	}
	e, err = ParseJournal([]byte(strings.Replace(base, "_SOURCE_MONOTONIC_TIMESTAMP", "X", 1)))
	if err != nil || e.Boot != 99*time.Second {
		t.Errorf("without the kernel's time: %v, %v", e.Boot, err)
	}
}

// fakeJournal plays journalctl: what it was called with, and its output.
type fakeJournal struct {
	args []string
	out  io.Reader
	err  error
	end  func()
}

func (f *fakeJournal) start(_ context.Context, args []string) (io.ReadCloser, error) {
	f.args = args
	return f, nil
}
func (f *fakeJournal) Read(b []byte) (int, error) { return f.out.Read(b) }
func (f *fakeJournal) Close() error {
	if f.end != nil {
		f.end()
	}
	return f.err
}

func collect(j *Journal) (got []string, err error) {
	err = j.Run(context.Background(), func(e Record) error { got = append(got, e.Text); return nil })
	return got, err
}

func TestJournalFollows(t *testing.T) {
	out := journalLine(1, "") + "\n" + "garbage\n" +
		strings.Replace(journalLine(2, ""), `"kernel","SYSLOG_FAC`, `"syslog","SYSLOG_FAC`, 1) +
		strings.Replace(journalLine(3, ""), strings.ReplaceAll(thisBoot, "-", ""), strings.ReplaceAll(lastBoot, "-", ""), 1) +
		strings.Repeat("x", 3*maxLine) + "\n" + journalLine(4, "") + journalLine(5, "")[:40]
	f := &fakeJournal{out: strings.NewReader(out)}
	var saved []Position
	j, err := NewJournal(JournalConfig{BootID: thisBoot, Start: f.start, Directory: "/host/journal", Save: func(p Position) error { saved = append(saved, p); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	got, err := collect(j)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !slices.Equal(got, []string{"line 1", "line 4"}) {
		t.Errorf("got %q, %v", got, err)
	}
	if s := j.Stats(); s.Records != 2 || s.Malformed != 2 {
		t.Errorf("%+v, want 2 records, 2 malformed", s)
	}
	if !slices.Contains(f.args, "--no-tail") || !slices.Contains(f.args, "--directory=/host/journal") || slices.ContainsFunc(f.args, func(a string) bool { return strings.Contains(a, "cursor") }) {
		t.Errorf("called with %q", f.args)
	}
	last := saved[len(saved)-1]
	if last != (Position{BootID: thisBoot, Cursor: "s=a;i=4"}) {
		t.Errorf("saved %+v", last)
	}

	// The next start goes on after it; a new boot does not.
	f = &fakeJournal{out: strings.NewReader(journalLine(5, ""))}
	j, _ = NewJournal(JournalConfig{BootID: thisBoot, Start: f.start, Position: &last})
	if got, _ := collect(j); !slices.Equal(got, []string{"line 5"}) || !slices.Contains(f.args, "--after-cursor=s=a;i=4") || !slices.Contains(f.args, "--no-tail") {
		t.Errorf("got %q with %q", got, f.args)
	}
	last.BootID = lastBoot
	j, _ = NewJournal(JournalConfig{BootID: thisBoot, Start: f.start, Position: &last, From: FromNow})
	collect(j)
	if want := []string{"--dmesg", "--output=json", "--all", "--follow", "--no-pager", "--quiet", "--no-tail"}; !slices.Equal(f.args, want) {
		t.Errorf("after a reboot called with %q", f.args)
	}
	j, _ = NewJournal(JournalConfig{BootID: thisBoot, Start: f.start, From: FromNow})
	collect(j)
	if !slices.Contains(f.args, "--lines=0") || slices.Contains(f.args, "--no-tail") {
		t.Errorf("from now called with %q", f.args)
	}
}

func TestJournalBadCursor(t *testing.T) {
	f := &fakeJournal{out: strings.NewReader(""), err: errors.New("Failed to seek to cursor: Invalid argument")}
	j, _ := NewJournal(JournalConfig{BootID: thisBoot, From: FromNow, Start: f.start, Position: &Position{BootID: thisBoot, Cursor: "bad"}})
	if _, err := collect(j); err == nil || !strings.Contains(err.Error(), "seek to cursor") {
		t.Errorf("ended with %v", err)
	}
	f.out = strings.NewReader(journalLine(1, ""))
	got, _ := collect(j)
	if !slices.Equal(got, []string{"line 1"}) || !slices.Contains(f.args, "--no-tail") || strings.Contains(strings.Join(f.args, " "), "bad") {
		t.Errorf("got %q with %q", got, f.args)
	}
}

func TestJournalEndsWithContextAndSavesWhileQuiet(t *testing.T) {
	r, w := io.Pipe()
	f := &fakeJournal{out: r, end: func() { r.Close() }}
	saved := make(chan Position, 100)
	j, _ := NewJournal(JournalConfig{BootID: thisBoot, Start: f.start, SaveEvery: time.Millisecond, Save: func(p Position) error { saved <- p; return nil }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- j.Run(ctx, func(Record) error { return nil }) }()
	io.WriteString(w, journalLine(1, ""))
	if p := <-saved; p.Cursor != "s=a;i=1" {
		t.Errorf("saved %+v", p)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestJournalFailedDelivery(t *testing.T) {
	f := &fakeJournal{out: strings.NewReader(journalLine(1, "") + journalLine(2, ""))}
	j, _ := NewJournal(JournalConfig{BootID: thisBoot, Start: f.start})
	full := errors.New("full")
	err := j.Run(context.Background(), func(e Record) error {
		if e.Text == "line 2" {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) || j.Position().Cursor != "s=a;i=1" {
		t.Errorf("ended with %v at %+v", err, j.Position())
	}
	if _, err := NewJournal(JournalConfig{}); err == nil {
		t.Error("no boot id: no error")
	}
}

// A program of the name that takes the options and writes an entry, as journalctl does.
func TestStartJournalctl(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\ncase \"$*\" in *--after-cursor=bad*) echo 'Failed to seek to cursor: Invalid argument' >&2; exit 1;; esac\n" +
		"cat <<'EOF'\n" + journalLine(1, "") + "EOF\nexec sleep 1000\n"
	if err := os.WriteFile(filepath.Join(dir, "journalctl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	j, _ := NewJournal(JournalConfig{BootID: thisBoot, Position: &Position{BootID: thisBoot, Cursor: "bad"}})
	if _, err := collect(j); err == nil || !strings.Contains(err.Error(), "seek to cursor") {
		t.Errorf("ended with %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var got []string
	err := j.Run(ctx, func(e Record) error {
		got = append(got, e.Text)
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || !slices.Equal(got, []string{"line 1"}) {
		t.Errorf("got %q, %v", got, err)
	}
	t.Setenv("PATH", dir+"/none")
	if _, err := collect(j); err == nil {
		t.Error("without the program: no error")
	}
}

func FuzzParseJournal(f *testing.F) {
	f.Add([]byte(journalLine(1, `,"_KERNEL_DEVICE":"+pci:0000:17:00.0"`)))
	f.Add([]byte(strings.Replace(journalLine(1, ""), `"line 1"`, `[109,255]`, 1)))
	f.Add([]byte(strings.Replace(journalLine(1, ""), `"line 1"`, `[["a"],null]`, 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ParseJournal(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrNotKernel) {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		if e.Cursor == "" || e.Level > 7 || e.Boot < 0 {
			t.Fatalf("%q is %+v", b, e)
		}
	})
}
