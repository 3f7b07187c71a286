package klog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

var _, _ Follower = (*Reader)(nil), (*Journal)(nil)

// Entry is one entry of the journal that came from the kernel's log.
type Entry struct {
	Record
	Cursor string
	BootID string
}

// ErrNotKernel is ParseJournal's error for an entry that did not come from the kernel's log.
var ErrNotKernel = errors.New("not of the kernel's log")

// ParseJournal parses one line of `journalctl --output=json`: systemd.journal-fields(7), and JOURNAL_EXPORT_FORMATS for
// what a field may be: a string, an array of octets where it is not UTF-8, an array of such values where it came more
// than once, null where it was too long (not with --all). Errors are ErrMalformed or ErrNotKernel.
func ParseJournal(line []byte) (Entry, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return Entry{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	get := func(name string) string {
		s, _ := journalField(fields[name], 1)
		return s
	}
	if get("_TRANSPORT") != "kernel" {
		return Entry{}, ErrNotKernel
	}
	text, ok := journalField(fields["MESSAGE"], 1)
	if !ok {
		return Entry{}, fmt.Errorf("%w: no MESSAGE", ErrMalformed)
	}
	e := Entry{Cursor: get("__CURSOR"), BootID: get("_BOOT_ID")}
	e.Text = text
	if e.Cursor == "" {
		return Entry{}, fmt.Errorf("%w: no __CURSOR", ErrMalformed)
	}
	priority, err := strconv.ParseUint(get("PRIORITY"), 10, 3)
	if err != nil {
		return Entry{}, fmt.Errorf("%w: PRIORITY %.40q", ErrMalformed, get("PRIORITY"))
	}
	e.Level = Level(priority)
	// journald also passes on what programs wrote to /dev/kmsg as _TRANSPORT=kernel. The facility distinguishes them,
	// and that of the kernel is 0, so it must be there.
	facility, err := strconv.ParseUint(get("SYSLOG_FACILITY"), 10, 8)
	if err != nil {
		return Entry{}, fmt.Errorf("%w: SYSLOG_FACILITY %.40q", ErrMalformed, get("SYSLOG_FACILITY"))
	}
	e.Facility = Facility(facility)
	// The kernel's own time, or else the one when journald got it.
	at := get("_SOURCE_MONOTONIC_TIMESTAMP")
	if at == "" {
		at = get("__MONOTONIC_TIMESTAMP")
	}
	usec, err := strconv.ParseUint(at, 10, 64)
	if err != nil || usec > math.MaxInt64/uint64(time.Microsecond) {
		return Entry{}, fmt.Errorf("%w: time %.40q", ErrMalformed, at)
	}
	e.Boot = time.Duration(usec) * time.Microsecond
	for field, tag := range map[string]string{"_KERNEL_SUBSYSTEM": "SUBSYSTEM", "_KERNEL_DEVICE": "DEVICE"} {
		if v := get(field); v != "" {
			if e.Tags == nil {
				e.Tags = make(map[string]string)
			}
			e.Tags[tag] = v
		}
	}
	return e, nil
}

// journalField returns a field's value, the first one if there are several (depth levels of them), as valid UTF-8.
func journalField(raw json.RawMessage, depth int) (string, bool) {
	if len(raw) == 0 {
		return "", false
	}
	switch raw[0] {
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return strings.ToValidUTF8(s, "\uFFFD"), err == nil
	case '[':
		var parts []json.RawMessage
		if json.Unmarshal(raw, &parts) != nil || len(parts) == 0 {
			return "", false
		}
		if depth > 0 && (parts[0][0] == '"' || parts[0][0] == '[') {
			return journalField(parts[0], depth-1)
		}
		octets := make([]byte, len(parts))
		for i, p := range parts {
			v, err := strconv.ParseUint(string(p), 10, 8)
			if err != nil {
				return "", false
			}
			octets[i] = byte(v)
		}
		return strings.ToValidUTF8(string(octets), "\uFFFD"), true
	}
	return "", false
}

// JournalConfig configures what a Journal reads. Only BootID has no default.
type JournalConfig struct {
	// BootID is this boot's, of BootID. Entries of others are skipped.
	BootID string
	// Position is where the last run stopped, nil if there was none.
	Position  *Position
	From      From
	Save      func(Position) error
	SaveEvery time.Duration
	Now       func() time.Time
	// Directory is where the journal's files are, as a container sees them. Empty: journalctl's own choice.
	Directory string
	// Start runs journalctl and returns its output. Close ends it and returns its error output. Nil means the program
	// of that name in the path.
	Start func(ctx context.Context, args []string) (io.ReadCloser, error)
}

// Journal follows the kernel's log as journald keeps it: for agents that may read the journal, but not /dev/kmsg. Use
// NewJournal.
type Journal struct {
	followState
	cfg JournalConfig
}

// NewJournal makes a journal's reader. It starts nothing before Run.
func NewJournal(cfg JournalConfig) (*Journal, error) {
	if cfg.BootID == "" {
		return nil, errors.New("journal: boot id: must be given")
	}
	if cfg.Start == nil {
		cfg.Start = startJournalctl
	}
	j := &Journal{cfg: cfg, followState: followState{store: cfg.Save, every: cfg.SaveEvery, now: cfg.Now}}
	j.initState(cfg.BootID, cfg.Position)
	return j, nil
}

// commandArgs returns the arguments of journalctl. --follow alone would begin with the last ten lines, hence
// --no-tail. --dmesg selects the present boot.
func (j *Journal) commandArgs() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	args := []string{"--dmesg", "--output=json", "--all", "--follow", "--no-pager", "--quiet"}
	if j.cfg.Directory != "" {
		args = append(args, "--directory="+j.cfg.Directory)
	}
	switch {
	case j.pos.Cursor != "":
		args = append(args, "--no-tail", "--after-cursor="+j.pos.Cursor)
	case !j.posKnown && j.cfg.From == FromNow:
		args = append(args, "--lines=0")
	default:
		args = append(args, "--no-tail")
	}
	return args
}

// Run delivers the records of entries until the context ends, deliver fails, or journalctl ends. A journal does not
// report lost records. errors.Is holds for the context's error and for deliver's. io.ErrUnexpectedEOF means that
// journalctl ended. The next Run continues where this one stopped. Only one Run may run at a time.
func (j *Journal) Run(ctx context.Context, deliver func(Record) error) error {
	out, err := j.cfg.Start(ctx, j.commandArgs())
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	var once sync.Once
	var closed error
	end := func() { once.Do(func() { closed = out.Close() }) }
	stop := context.AfterFunc(ctx, end)
	defer stop()

	// Saving has a clock of its own, as reading waits for the next entry for as long as it takes.
	done := make(chan struct{})
	var saver sync.WaitGroup
	saver.Go(func() {
		ticker := time.NewTicker(j.every)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				j.saveIfDue(true)
			}
		}
	})
	defer func() {
		close(done)
		saver.Wait()
		j.saveIfDue(true)
	}()

	err = j.followOutput(ctx, out, deliver)
	end()
	if ctx.Err() != nil {
		return fmt.Errorf("journal: %w", ctx.Err())
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
		if closed != nil {
			err = fmt.Errorf("%w: %w", err, closed)
			// A cursor that journalctl does not take would end each Run: better all of this boot again than deaf.
			if strings.Contains(strings.ToLower(closed.Error()), "cursor") {
				j.mu.Lock()
				j.pos.Cursor, j.posKnown, j.dirty = "", true, true
				j.mu.Unlock()
			}
		}
	}
	return fmt.Errorf("journal: %w", err)
}

// followOutput returns nil at the output's end.
func (j *Journal) followOutput(ctx context.Context, out io.Reader, deliver func(Record) error) error {
	lines := bufio.NewReaderSize(out, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			// Too long for a line of any kernel; what is left of it is skipped.
			j.updateStats(func(s *Stats) { s.Malformed++ })
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			line = nil
		}
		if err != nil {
			// A line without its end is not one yet: it comes again with the next Run.
			if err == io.EOF || ctx.Err() != nil {
				return nil
			}
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := j.deliverLine(line, deliver); err != nil {
			return err
		}
	}
}

func (j *Journal) deliverLine(line []byte, deliver func(Record) error) error {
	e, err := ParseJournal(line)
	switch {
	case errors.Is(err, ErrNotKernel):
		return nil
	case err != nil:
		j.updateStats(func(s *Stats) { s.Malformed++ })
		return nil
	case !sameBoot(e.BootID, j.cfg.BootID):
		return nil
	}
	if err := deliver(e.Record); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stats.Records++
	j.pos.Cursor, j.posKnown, j.dirty = e.Cursor, true, true
	return nil
}

// sameBoot: journald writes the id without the hyphens that the kernel writes.
func sameBoot(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, "-", ""), strings.ReplaceAll(b, "-", ""))
}

// startJournalctl runs journalctl and returns its output. It is the default of JournalConfig.Start.
func startJournalctl(ctx context.Context, args []string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	p := &commandOutput{cmd: cmd, cancel: cancel}
	cmd.Stderr = &p.stderr
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	p.Reader = out
	return p, nil
}

// commandOutput is a command that runs, as its output.
type commandOutput struct {
	io.Reader
	cmd    *exec.Cmd
	cancel context.CancelFunc
	stderr headBuffer
}

// Close ends the command and waits for it.
func (p *commandOutput) Close() error {
	p.cancel()
	err := p.cmd.Wait()
	if s := strings.TrimSpace(string(p.stderr.b)); s != "" {
		return errors.New(s)
	}
	return err
}

// headBuffer keeps the first KiB that is written to it.
type headBuffer struct{ b []byte }

func (t *headBuffer) Write(b []byte) (int, error) {
	t.b = append(t.b, b[:min(len(b), 1024-len(t.b))]...)
	return len(b), nil
}
