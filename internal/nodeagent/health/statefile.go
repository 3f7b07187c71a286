package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/nichealth"
)

// Intervals of the writes of the state file.
const (
	saveEvery = time.Minute     // greatest age of the counters in the file
	saveAgain = 5 * time.Second // delay after a write that failed
)

// stateFile keeps the memory of the rules in a file.
type stateFile struct {
	path string
	log  *slog.Logger

	// Only the goroutine that saves uses these.
	saved   string // content of the file, without counters
	savedAt time.Time
	failing bool // the last write failed

	mu           sync.Mutex
	done, failed uint64 // writes
}

// countWrites returns how many writes of the file succeeded and how many failed.
func (f *stateFile) countWrites() (done, failed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done, f.failed
}

// saveMemory writes the file if findings changed since the last write, or if that write is saveEvery ago, or if this is
// the last call. A write that failed is tried again after saveAgain. It does nothing without a memory.
func (f *stateFile) saveMemory(m *nichealth.Memory, last bool) {
	if m == nil {
		return
	}
	brief := *m
	brief.Counters = nil
	text, err := json.Marshal(brief)
	if err != nil {
		return
	}
	age := time.Since(f.savedAt)
	changed := string(text) != f.saved
	if due := last || age >= saveEvery || changed && (!f.failing || age >= saveAgain); !due {
		return
	}
	whole, err := json.Marshal(m)
	if err == nil {
		err = durable.WriteFile(f.path, whole)
	}
	f.savedAt = time.Now()
	f.countWrite(err)
	switch {
	case err != nil:
		if !f.failing {
			f.log.Warn("cannot write the state file of NIC health; a restart would report findings again", "file", f.path, "err", err)
		}
		f.saved, f.failing = "", true
	default:
		if f.failing {
			f.log.Info("writing the state file of NIC health succeeds again", "file", f.path)
		}
		f.saved, f.failing = string(text), false
	}
}

func (f *stateFile) countWrite(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.failed++
	} else {
		f.done++
	}
}

func loadMemory(path string) (*nichealth.Memory, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m nichealth.Memory
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &m, nil
}
