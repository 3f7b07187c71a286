package coordinator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/durable"
)

// StateSummary describes a state without its secrets.
type StateSummary struct {
	Agents  int       // nodes that it knows
	Keys    int       // epochs of keys
	Epoch   uint64    // of the leader that wrote it, or that its standby followed; 0 if there was none
	Written time.Time // zero if it is not known
}

func (s *state) summary() StateSummary {
	return StateSummary{Agents: len(s.Agents), Keys: len(s.Keys), Epoch: s.Epoch, Written: s.Written}
}

// LockState locks a state file for the process. The error wraps durable.ErrLocked if another process uses the file.
func LockState(stateFile string) (unlock func() error, err error) {
	l, err := durable.Lock(stateFile + ".lock")
	if err != nil {
		return nil, err
	}
	return l.Close, nil
}

// Backup copies a state file, whose coordinator may run, to a file with mode 0600. It writes nothing unless the state can
// be used.
func Backup(stateFile, output string) (StateSummary, error) {
	s, err := readExisting(stateFile)
	if err != nil {
		return StateSummary{}, err
	}
	if isSameFile(stateFile, output) {
		return StateSummary{}, fmt.Errorf("%s is the state file itself, want another name", output)
	}
	if err := writeState(output, s); err != nil {
		return StateSummary{}, fmt.Errorf("backup %s: %w", output, err)
	}
	return s.summary(), nil
}

// Restore replaces a state file, whose coordinator must not run, by a backup. It changes nothing unless the backup can be
// used. The epoch and the life numbers that the replaced state has reached stay reached. The file belongs to the owner of
// its directory if the process may set that.
func Restore(stateFile, input string) (summary StateSummary, err error) {
	unlock, err := LockState(stateFile)
	if errors.Is(err, durable.ErrLocked) {
		return StateSummary{}, fmt.Errorf("a coordinator runs with the state file %s: stop it first: %w", stateFile, err)
	}
	if err != nil {
		return StateSummary{}, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	s, err := readExisting(input)
	if err != nil {
		return StateSummary{}, err
	}
	if old, err := readState(stateFile); err == nil && old != nil { // one that cannot be read has nothing to keep
		s.Epoch, s.Lives = max(s.Epoch, old.Epoch), max(s.Lives, old.Lives)
	}
	if err := writeState(stateFile, s); err != nil {
		return StateSummary{}, err
	}
	return s.summary(), giveToOwner(stateFile)
}

// giveToOwner gives a file and its lock to the owner of their directory, if the process is root.
func giveToOwner(file string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(filepath.Dir(file))
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return errors.Join(os.Chown(file, int(owner.Uid), int(owner.Gid)), os.Chown(file+".lock", int(owner.Uid), int(owner.Gid)))
}

// readExisting reads a state from a file that must exist.
func readExisting(file string) (*state, error) {
	s, err := readState(file)
	if err == nil && s == nil {
		err = fmt.Errorf("there is no state file %s", file)
	}
	return s, err
}

// isSameFile reports whether two names are of one file that exists.
func isSameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
