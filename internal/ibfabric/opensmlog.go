package ibfabric

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// OpenSMLog finds changes in the log of OpenSM, on the machine that it runs on: traps that it received, sweeps,
// tables that it computed. OpenSM delays lines unless its option force_log_flush is TRUE; then a line is
// written before the tables that it announces.
type OpenSMLog struct {
	path        string
	file        *os.File
	partialLine []byte // of an incomplete line
	settled     bool   // the last line with a change reports the end of one
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

// noteLine reports whether a line has a change, and notes whether it ends one.
func (l *OpenSMLog) noteLine(line []byte) bool {
	if !indicatesChange(line) {
		return false
	}
	l.settled = bytes.Contains(line, subnetUp)
	return true
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
