package ufm

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/durable"
)

// Memory holds what is known of the events and alarms of a UFM; it can be kept over restarts.
type Memory struct {
	Events EventLog
	Alarms AlarmLog
}

// stateVersion is the version of the file's format.
const stateVersion = 1

// maxStateFile bounds the size of the state file in octets.
const maxStateFile = 64 << 20

type stateJSON struct {
	Version int    `json:"version"`
	UFM     string `json:"ufm"`
	// Events are hexadecimal keys in the order in which they were last listed, oldest first.
	Events []string     `json:"events"`
	Alarms []savedAlarm `json:"alarms"`
}

type savedAlarm struct {
	ID       string    `json:"id,omitempty"`
	Code     string    `json:"event_type,omitempty"`
	Name     string    `json:"name,omitempty"`
	Severity string    `json:"severity,omitempty"`
	Object   string    `json:"object,omitempty"`
	Path     string    `json:"path,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	At       time.Time `json:"at,omitzero"`
}

// ErrOtherUFM means that a state file belongs to another UFM.
var ErrOtherUFM = errors.New("the state is of another UFM")

// ErrBadState means that a file holds no state.
var ErrBadState = errors.New("not a state file")

// ParseState parses a state file's text. ufm is the UFM that it must belong to, limit that of EventLog.
// errors.Is finds ErrOtherUFM.
func ParseState(b []byte, ufm string, limit int) (*Memory, error) {
	var j stateJSON
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	switch err := d.Decode(&j); {
	case err != nil:
		return nil, fmt.Errorf("a state in JSON is expected: %w", err)
	case j.Version != stateVersion:
		return nil, fmt.Errorf("version: %d: %d is expected", j.Version, stateVersion)
	case j.UFM != ufm:
		return nil, fmt.Errorf("ufm: %q: %q is expected: %w", j.UFM, ufm, ErrOtherUFM)
	case len(j.Alarms) > maxAlarms:
		return nil, fmt.Errorf("alarms: %d: %d at most are expected", len(j.Alarms), maxAlarms)
	}
	s := &Memory{Events: EventLog{Limit: limit, lastListed: map[eventKey]uint64{}}}
	for i, text := range j.Events {
		k, err := hex.DecodeString(text)
		if err != nil || len(k) != len(eventKey{}) {
			return nil, fmt.Errorf("events: element %d: %q: 32 hexadecimal digits are expected", i+1, text)
		}
		s.Events.listCount++
		s.Events.lastListed[eventKey(k)] = s.Events.listCount
	}
	for _, a := range j.Alarms {
		s.Alarms.UpdateOpen([]Alarm{{a.ID, a.Code, a.Name, a.Severity, a.Object, a.Path, a.Reason, a.At}}, nil)
	}
	return s, nil
}

// EncodeState returns the text of a state file.
func (s *Memory) EncodeState(ufm string) ([]byte, error) {
	j := stateJSON{Version: stateVersion, UFM: ufm, Events: []string{}, Alarms: []savedAlarm{}}
	for _, k := range s.Events.keysByAge() {
		j.Events = append(j.Events, hex.EncodeToString(k[:]))
	}
	for _, a := range s.Alarms.open {
		j.Alarms = append(j.Alarms, savedAlarm(a))
	}
	slices.SortFunc(j.Alarms, func(a, b savedAlarm) int {
		return strings.Compare(a.Code+a.Name+a.Object, b.Code+b.Name+b.Object)
	})
	b, err := json.MarshalIndent(j, "", " ")
	return append(b, '\n'), err
}

// Clone returns an independent copy.
func (s *Memory) Clone() *Memory {
	out := &Memory{Events: s.Events.clone()}
	for _, a := range s.Alarms.open {
		out.Alarms.UpdateOpen([]Alarm{a}, nil)
	}
	return out
}

// sameEntries reports whether two states have the same events and alarms.
func (s *Memory) sameEntries(o *Memory) bool {
	if len(s.Events.lastListed) != len(o.Events.lastListed) || len(s.Alarms.open) != len(o.Alarms.open) {
		return false
	}
	for k := range s.Events.lastListed {
		if _, there := o.Events.lastListed[k]; !there {
			return false
		}
	}
	for k := range s.Alarms.open {
		if _, there := o.Alarms.open[k]; !there {
			return false
		}
	}
	return true
}

// StateFile keeps a state in a file.
type StateFile struct {
	path, ufm string
	saved     *Memory
}

// OpenState reads a state file. If it does not exist, the returned memory is empty. A file that cannot be read
// or belongs to another UFM is an error, and so is a directory in which no file can be written, because events
// that are not saved would be reported again. With the error ErrBadState an empty memory is returned as well,
// and the next Save replaces the file.
func OpenState(path, ufm string, limit int) (*StateFile, *Memory, error) {
	f := &StateFile{path: path, ufm: ufm}
	s := &Memory{Events: EventLog{Limit: limit}}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, nil, fmt.Errorf("state file: %w", err)
	case !info.Mode().IsRegular():
		return nil, nil, fmt.Errorf("state file: %s: a file is expected", path)
	case info.Size() > maxStateFile:
		return nil, nil, fmt.Errorf("state file: %s: %d octets at most are expected", path, int64(maxStateFile))
	default:
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, fmt.Errorf("state file: %w", err)
		}
		m, err := ParseState(b, ufm, limit)
		switch {
		case errors.Is(err, ErrOtherUFM):
			return nil, nil, fmt.Errorf("state file: %s: %w", path, err)
		case err != nil:
			return f, s, fmt.Errorf("state file: %s: %w: %w", path, ErrBadState, err)
		}
		f.saved = m.Clone()
		return f, m, nil
	}
	probe, err := os.CreateTemp(filepath.Dir(path), ".ufm-state-*")
	if err != nil {
		return nil, nil, fmt.Errorf("state file: %w", err)
	}
	err = errors.Join(probe.Close(), os.Remove(probe.Name()))
	return f, s, err
}

// Save writes the state if it differs from the last one saved. The file is replaced atomically: after a crash
// it is the old one or the new one.
func (f *StateFile) Save(s *Memory) error {
	if s.Events.lastListed == nil || f.saved != nil && f.saved.sameEntries(s) {
		return nil
	}
	b, err := s.EncodeState(f.ufm)
	if err != nil {
		return fmt.Errorf("state file: %s: %w", f.path, err)
	}
	if err := durable.WriteFile(f.path, b); err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	f.saved = s.Clone()
	return nil
}
