package klog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Position is where a log is to be read on. It belongs to one boot.
type Position struct {
	BootID string `json:"boot_id"`
	// Next is the sequence number of the first record that was not delivered yet. A Journal does not use it.
	Next uint64 `json:"next,omitempty"`
	// Cursor is journald's name of the last entry that was delivered. A Reader does not use it.
	Cursor string `json:"cursor,omitempty"`
}

// LoadPosition reads a position from a file. It returns nil and no error if the file does not exist. With an error it
// returns the position of no boot: a caller that continues with it gets all records of the present boot, and misses
// nothing.
func LoadPosition(path string) (*Position, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return &Position{}, fmt.Errorf("position in the kernel log: %w", err)
	}
	var p Position
	if err := json.Unmarshal(b, &p); err != nil {
		return &Position{}, fmt.Errorf("position in the kernel log: %s: %w", path, err)
	}
	return &p, nil
}

// SavePosition writes a position to a file, which has the old content or the new one at any time. It does not wait
// for the disk: what a crash of the machine takes belongs to a boot that is over.
func SavePosition(path string, p Position) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("position in the kernel log: %w", err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("position in the kernel log: %w", err)
	}
	_, err = temp.Write(b)
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		os.Remove(temp.Name())
		return fmt.Errorf("position in the kernel log: %w", err)
	}
	return nil
}
