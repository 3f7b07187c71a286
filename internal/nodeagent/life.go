package nodeagent

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

// lifeSuffix is appended to the name of the state file to form the name of the file with the life number.
const lifeSuffix = ".life"

// lifeFile returns the file with this node's life number, or "" if there is no state file.
func lifeFile(state string) string {
	if state == "" {
		return ""
	}
	return state + lifeSuffix
}

// nextLife takes and returns the number of a new life. It is higher than the one in the file, and at least the current
// time in milliseconds, so that a node whose file is lost does not begin again from 1. The number is on disk before
// nextLife returns. If that fails, nextLife returns 0, which is no life: a number that is used twice would make the
// second life a replay of the first.
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

// keepLife writes a life number that a coordinator assigned.
func keepLife(file string, life uint64) error {
	if file == "" {
		return nil
	}
	return writeLife(file, life)
}

// readLife reads the number in a file. It returns 0 if there is no file.
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
		return 0, fmt.Errorf("life number %s: a whole number is expected; remove the file to begin with the current time", file)
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
