package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// lifeSuffix makes the name of the file with the life number from that of the
// state file.
const lifeSuffix = ".life"

// lifeFile is the file with this node's life number; "" where there is no state
// file.
func lifeFile(state string) string {
	if state == "" {
		return ""
	}
	return state + lifeSuffix
}

// nextLife takes the number of a new life: higher than the one in the file, and
// not lower than now in milliseconds, so that a node whose file is lost does not
// begin again from 1. The number is on disk before it is returned. Where that
// fails there is no life, 0: a number that is used twice would make the second
// life a replay of the first.
func nextLife(file string, now time.Time) (uint64, error) {
	if file == "" {
		return 0, nil
	}
	last, err := readLife(file)
	if err != nil {
		return 0, err
	}
	life := max(last+1, uint64(max(now.UnixMilli(), 1)))
	if err := writeLife(file, life); err != nil {
		return 0, err
	}
	return life, nil
}

// keepLife writes a life number that a coordinator gave.
func keepLife(file string, life uint64) error {
	if file == "" {
		return nil
	}
	return writeLife(file, life)
}

// readLife reads the number in a file; 0 where there is no file.
func readLife(file string) (uint64, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the life number: %w", err)
	}
	life, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("life number %s: a whole number is expected: remove the file to begin with the time", file)
	}
	return life, nil
}

// writeLife replaces the file in one step, and returns when it is on disk.
func writeLife(file string, life uint64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write the life number: %w", err)
		}
	}()
	dir := filepath.Dir(file)
	f, err := os.CreateTemp(dir, filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatUint(life, 10) + "\n")
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
