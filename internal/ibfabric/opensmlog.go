package ibfabric

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
)

// OpenSMLog finds changes in the log of OpenSM, on the machine that it runs on: traps that it received, sweeps,
// tables that it computed. OpenSM delays lines unless its option force_log_flush is TRUE; then a line is
// written before the tables that it announces.
type OpenSMLog struct {
	path        string
	file        *os.File
	partialLine []byte // of an incomplete line
	settled     bool   // the last line with a change reports the end of one

	// KeepTraps makes PollChange keep the traps that it reads, for TakeTraps.
	KeepTraps bool
	traps     []Trap
}

// Trap represents a generic notice that OpenSM received from a port of the fabric (IBA volume 1, 14.2.5.1).
type Trap struct {
	// Number is the number of the trap: 128, that a link of the switch changed its state; 129 to 131, that local link
	// integrity errors or buffer overruns reached their threshold or no flow control update came in time; 144, that
	// capabilities changed.
	Number uint16
	// LID is the LID that the trap came from.
	LID LID
	// Port is the number of the port that the trap is about, or 0 if it names none.
	Port uint8
}

// changeTexts are texts of lines that report a change.
var changeTexts = [][]byte{
	[]byte("Received Generic Notice"), // a trap: a link, a port, a capability
	[]byte("tables configured on all switches"),
	[]byte("heavy sweep"),
	[]byte("HEAVY SWEEP"),
	[]byte("REROUTE"),
	[]byte("SUBNET UP"),
	[]byte("Entering MASTER state"),
	[]byte("Discovered new port"),
	[]byte("Removed port"),
}

// subnetUp is the text of the line that ends a change: OpenSM writes it when all tables are configured and all links are up.
var subnetUp = []byte("SUBNET UP")

// OpenLog opens a log, to read it from its present end.
func OpenLog(path string) (*OpenSMLog, error) {
	l := &OpenSMLog{path: path}
	if err := l.openFile(io.SeekEnd); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *OpenSMLog) openFile(whence int) error {
	f, err := os.Open(l.path)
	if err != nil {
		return fmt.Errorf("OpenSM's log: %w", err)
	}
	if _, err := f.Seek(0, whence); err != nil {
		f.Close()
		return fmt.Errorf("OpenSM's log: %w", err)
	}
	l.file, l.partialLine = f, nil
	return nil
}

// Close closes the log.
func (l *OpenSMLog) Close() error { return l.file.Close() }

// maxPartialLine bounds what is kept of a line; the relevant text is in its first part.
const maxPartialLine = 4 << 10 // octets

// PollChange reports whether the log has a change since the last call. A log that was truncated or replaced may
// have had one.
func (l *OpenSMLog) PollChange() (bool, error) {
	changed, err := l.readLines()
	if err != nil {
		return false, err
	}
	at, err := l.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return false, fmt.Errorf("OpenSM's log: %w", err)
	}
	mine, err := l.file.Stat()
	if err != nil {
		return false, fmt.Errorf("OpenSM's log: %w", err)
	}
	there, err := os.Stat(l.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return changed, nil // it is being replaced: the open file may still grow
	case err != nil:
		return false, fmt.Errorf("OpenSM's log: %w", err)
	case os.SameFile(mine, there) && mine.Size() >= at:
		return changed, nil
	}
	l.file.Close()
	if err := l.openFile(io.SeekStart); err != nil {
		return false, err
	}
	_, err = l.readLines()
	l.settled = false
	return true, err
}

// Settled reports whether the last change that the log has is over. It returns false if the log does not say so, as after a sweep
// that found all as it was.
func (l *OpenSMLog) Settled() bool { return l.settled }

// noteLine reports whether a line has a change, and notes whether it ends one and which trap it is about.
func (l *OpenSMLog) noteLine(line []byte) bool {
	if !indicatesChange(line) {
		return false
	}
	l.settled = bytes.Contains(line, subnetUp)
	l.keepTrap(line)
	return true
}

// TakeTraps returns the traps that were read since the last call.
func (l *OpenSMLog) TakeTraps() []Trap {
	taken := l.traps
	l.traps = nil
	return taken
}

// maxTraps bounds the traps that are kept until they are taken. OpenSM itself ignores ports that send many.
const maxTraps = 1 << 16

// keepTrap keeps the trap that a line is about, if it is about one.
func (l *OpenSMLog) keepTrap(line []byte) {
	if !l.KeepTraps || len(l.traps) == maxTraps {
		return
	}
	if t, ok := parseTrap(line); ok {
		l.traps = append(l.traps, t)
	}
}

// trapLine matches the line by which OpenSM 3.3.23 reports a received trap, in log_trap_info of osm_trap_rcv.c. Traps 129
// to 131 have a port. A line of log_notice, about a trap that OpenSM reports to others, begins with "Reporting".
var trapLine = regexp.MustCompile(`Received Generic Notice type:\d+ num:(\d+) .*from LID:(\d+)(?: Port (\d+))? TID:`)

// parseTrap reads the trap from a line of the log. It returns false if the line is about something else, or if its
// numbers are none.
func parseTrap(line []byte) (Trap, bool) {
	m := trapLine.FindSubmatch(line)
	if m == nil {
		return Trap{}, false
	}
	number, err := strconv.ParseUint(string(m[1]), 10, 16)
	lid, err2 := strconv.ParseUint(string(m[2]), 10, 16)
	port, err3 := uint64(0), error(nil)
	if len(m[3]) > 0 {
		port, err3 = strconv.ParseUint(string(m[3]), 10, 8)
	}
	if errors.Join(err, err2, err3) != nil {
		return Trap{}, false
	}
	return Trap{Number: uint16(number), LID: LID(lid), Port: uint8(port)}, true
}

func (l *OpenSMLog) readLines() (changed bool, err error) {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.file.Read(buf)
		l.partialLine = append(l.partialLine, buf[:n]...)
		for {
			line, after, whole := bytes.Cut(l.partialLine, []byte{'\n'})
			if !whole {
				break
			}
			changed = l.noteLine(line) || changed
			l.partialLine = after
		}
		if len(l.partialLine) > maxPartialLine {
			changed = l.noteLine(l.partialLine) || changed
			l.partialLine = l.partialLine[len(l.partialLine)-maxPartialLine/2:]
		}
		l.partialLine = bytes.Clone(l.partialLine)
		if err == io.EOF {
			return changed, nil
		}
		if err != nil {
			return changed, fmt.Errorf("OpenSM's log: %w", err)
		}
	}
}

func indicatesChange(line []byte) bool {
	for _, text := range changeTexts {
		if bytes.Contains(line, text) {
			return true
		}
	}
	return false
}
