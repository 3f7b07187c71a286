package klog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// From is where to begin when there is no position.
type From int

// FromBeginning is right where failures before the first start matter, FromNow where only new ones do (rule 3).
const (
	FromBeginning From = iota
	FromNow
)

// Defaults of a Config and a JournalConfig.
const (
	DefaultPath      = "/dev/kmsg"
	DefaultPoll      = 250 * time.Millisecond
	DefaultSaveEvery = time.Second
)

const (
	// The kernel formats a record into 8 KiB at most (CONSOLE_EXT_LOG_MAX, PRINTK_MESSAGE_MAX in kernel/printk/internal.h).
	readSize    = 16 << 10
	maxReadSize = 1 << 20
	// Each EINVAL skips a record, so that many in a row are no log.
	maxInvalid = 64
	// What a record in a file or a FIFO may have at most.
	maxLine = 1 << 20
)

// Config configures what a Reader reads. Only BootID has no default.
type Config struct {
	// Path is the device, or a file or a FIFO with the device's format.
	Path string
	// BootID is this boot's, of BootID.
	BootID string
	// Position is where the last run stopped, nil if there was none.
	Position *Position
	From     From
	// Save is called with the position when it has changed, at most once in SaveEvery and at the end of Run. Its
	// errors are counted, and it is tried again. It must not call methods of the Reader. Nil means that the position
	// is not saved.
	Save      func(Position) error
	SaveEvery time.Duration
	// Poll is how often the end of a plain file is looked at. A device and a FIFO wake the reader.
	Poll time.Duration
	// Now is the clock of SaveEvery.
	Now func() time.Time
}

// device has the methods of an os.File that a Reader needs.
type device interface {
	io.ReadSeekCloser
	SetReadDeadline(time.Time) error
}

// Reader follows the kernel's log. Use NewReader.
type Reader struct {
	followState
	cfg  Config
	open func() (device, kind, error)
	// nextSeq is one more than the highest number that was read since opening.
	nextSeq uint64
}

// kind is how records are to be read.
type kind int

const (
	records kind = iota // one read, one record
	stream              // octets, and waiting for them works
	file                // octets, up to an end that has to be polled
)

// NewReader makes a reader. It opens nothing before Run.
func NewReader(cfg Config) (*Reader, error) {
	if cfg.BootID == "" {
		return nil, errors.New("kernel log: boot id: must be given")
	}
	if cfg.Path == "" {
		cfg.Path = DefaultPath
	}
	if cfg.Poll <= 0 {
		cfg.Poll = DefaultPoll
	}
	r := &Reader{cfg: cfg, followState: followState{store: cfg.Save, every: cfg.SaveEvery, now: cfg.Now}}
	r.initState(cfg.BootID, cfg.Position)
	r.open = func() (device, kind, error) { return openLog(cfg.Path) }
	return r, nil
}

// Follower is a Reader or a Journal.
type Follower interface {
	Run(ctx context.Context, deliver func(Record) error) error
	Position() Position
	Stats() Stats
}

// Run delivers records until the context ends, deliver fails, or the log cannot be read; the error says which
// (errors.Is holds for the context's error, fs.ErrPermission, fs.ErrNotExist and deliver's error). A record whose
// delivery fails is not done with: it comes again with the next Run, which continues where this one stopped. Without
// CAP_SYSLOG, and with kernel.dmesg_restrict, opening fails. One Run at a time.
func (r *Reader) Run(ctx context.Context, deliver func(Record) error) error {
	dev, kind, err := r.open()
	if err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	defer dev.Close()
	var offset int64
	if !r.posKnown && r.cfg.From == FromNow {
		// A FIFO has no end to seek, and nothing that is older than the reader.
		if offset, err = dev.Seek(0, io.SeekEnd); err != nil && !errors.Is(err, syscall.ESPIPE) {
			return fmt.Errorf("kernel log: %w", err)
		}
	}
	r.nextSeq = 0

	stop := context.AfterFunc(ctx, func() { _ = dev.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	defer r.saveIfDue(true)
	if err := r.followLog(ctx, dev, kind, offset, deliver); err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	return nil
}

func (r *Reader) followLog(ctx context.Context, dev device, kind kind, offset int64, deliver func(Record) error) error {
	buf := make([]byte, readSize)
	var part []byte // of a stream: what is no whole record yet
	invalid := 0
	for {
		wait := r.waitDeadline(kind)
		if kind != file {
			// A deadline is set only if something is to be done at it, so that a quiet log costs nothing. Run's own
			// deadline may be overwritten here, so the context is checked afterwards.
			if err := dev.SetReadDeadline(wait); err != nil && !errors.Is(err, os.ErrNoDeadline) {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := dev.Read(buf)
		if err == nil || n > 0 {
			invalid = 0
		}
		switch {
		case n > 0 && kind == records:
			err = r.deliverRecord(buf[:n], deliver)
		case n > 0:
			offset += int64(n)
			part, err = r.deliverAll(append(part, buf[:n]...), deliver)
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.atEnd(kind)
			err = nil
		case errors.Is(err, syscall.EAGAIN):
			// The runtime waits for what can be waited for; this device cannot.
			r.atEnd(kind)
			err = sleepContext(ctx, r.cfg.Poll)
		case errors.Is(err, syscall.EPIPE):
			// The kernel has moved on to the oldest record it has; the gap is counted when that is read.
			r.updateStats(func(s *Stats) { s.Overruns++ })
			err = nil
		case errors.Is(err, syscall.EINVAL):
			// The record did not fit and is skipped (devkmsg_read in kernel/printk/printk.c); its number will be missing.
			if invalid++; invalid > maxInvalid {
				return err
			}
			if len(buf) < maxReadSize {
				buf = make([]byte, 2*len(buf))
			}
			err = nil
		case errors.Is(err, syscall.EINTR):
			err = nil
		case (errors.Is(err, io.EOF) || err == nil) && kind == file:
			r.atEnd(kind)
			if offset, part, err = rewindIfTruncated(dev, offset, part); err == nil {
				err = sleepContext(ctx, r.cfg.Poll)
			}
		case errors.Is(err, io.EOF) || err == nil:
			// A device's log has no end. Some containers have /dev/null in this place.
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		r.saveIfDue(false)
	}
}

// rewindIfTruncated starts from the beginning if the file is shorter than what was read of it.
func rewindIfTruncated(dev device, offset int64, part []byte) (int64, []byte, error) {
	end, err := dev.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, nil, err
	}
	if end < offset {
		offset, part = 0, nil
	}
	_, err = dev.Seek(offset, io.SeekStart)
	return offset, part, err
}

func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// deliverRecord delivers one record, if it is new.
func (r *Reader) deliverRecord(b []byte, deliver func(Record) error) error {
	rec, err := ParseKmsg(b)
	if err != nil {
		r.updateStats(func(s *Stats) { s.Malformed++ })
		return nil
	}
	r.mu.Lock()
	r.nextSeq = max(r.nextSeq, rec.Seq+1)
	old := r.posKnown && rec.Seq < r.pos.Next
	r.mu.Unlock()
	if old {
		return nil
	}
	if err := deliver(rec); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// A ring that has lost its beginning before the first start has lost nothing of ours; after that, and in a boot
	// of which we had nothing yet, it has.
	if r.posKnown {
		r.stats.Lost += rec.Seq - r.pos.Next
	}
	r.stats.Records++
	r.pos.Next, r.posKnown, r.dirty = rec.Seq+1, true, true
	return nil
}

// deliverAll delivers the records of a stream's octets and returns what is left. A record is a line and the lines after
// it that begin with a space; that its last one has come is taken from the next record, or from the octets' end, as
// who writes records writes them whole.
func (r *Reader) deliverAll(b []byte, deliver func(Record) error) ([]byte, error) {
	for {
		end := 0
		for {
			i := bytes.IndexByte(b[end:], '\n')
			if i < 0 {
				if len(b) > maxLine {
					r.updateStats(func(s *Stats) { s.Malformed++ })
					return nil, nil
				}
				return b, nil
			}
			end += i + 1
			if end == len(b) || b[end] != ' ' {
				break
			}
		}
		if err := r.deliverRecord(b[:end], deliver); err != nil {
			return nil, err
		}
		if b = b[end:]; len(b) == 0 {
			return nil, nil
		}
	}
}

// waitDeadline returns until when to wait for a record: until the position is to be saved, or until it is clear that
// the position is not at the log's end. Zero means without limit.
func (r *Reader) waitDeadline(kind kind) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.dirty && r.store != nil:
		return time.Now().Add(max(r.every-r.now().Sub(r.lastSaved), time.Millisecond))
	case kind != stream && r.posKnown && r.nextSeq < r.pos.Next:
		return time.Now().Add(r.every)
	}
	return time.Time{}
}

// atEnd handles the end of what can be read (rule 6). A FIFO does not repeat what was read before a restart, so its
// end does not show whether the position is right.
func (r *Reader) atEnd(kind kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kind != stream && r.posKnown && r.nextSeq < r.pos.Next {
		r.pos.Next, r.dirty = r.nextSeq, true
	}
}

// openLog opens so that waiting for records can be ended.
func openLog(path string) (device, kind, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	flags, kind := os.O_RDONLY, file
	switch mode := info.Mode(); {
	case mode&fs.ModeNamedPipe != 0:
		// A FIFO that is open for writing, too, does not end when the last writer closes it.
		flags, kind = os.O_RDWR, stream
	case mode&fs.ModeCharDevice != 0:
		kind = records
	case mode.IsDir():
		return nil, 0, &fs.PathError{Op: "open", Path: path, Err: syscall.EISDIR}
	}
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	return f, kind, nil
}
