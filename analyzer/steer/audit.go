package steer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/graylink/graylink/internal/durable"
)

// Kinds of entries of the audit log.
const (
	kindDecision = "decision"
	kindResult   = "result" // of an action
	kindTorn     = "torn"   // the line before was not written whole
)

// Outcomes of an action.
const (
	OutcomeDone      = "done"
	OutcomeLeftAlone = "left_alone" // the node was already out of use, or somebody had given a reason
	OutcomeFailed    = "failed"
	OutcomeVoid      = "void" // it was not begun, since this analyzer no longer leads
)

// entry is a line of the audit log.
type entry struct {
	Kind     string            `json:"kind"`
	At       time.Time         `json:"at"`
	Mode     Mode              `json:"mode,omitempty"`
	ID       string            `json:"id,omitempty"`
	Job      string            `json:"job,omitempty"`
	Node     string            `json:"node,omitempty"`
	Target   string            `json:"target,omitempty"` // the node's name at the scheduler
	Decision Result            `json:"decision,omitempty"`
	Reason   Reason            `json:"reason,omitempty"`
	Witness  WitnessKind       `json:"witness,omitempty"`
	Links    []string          `json:"links,omitempty"`
	Resumed  bool              `json:"resumed,omitempty"`
	Summary  string            `json:"summary,omitempty"` // of the diagnosis
	Outcome  string            `json:"outcome,omitempty"`
	Outcomes map[string]string `json:"outcomes,omitempty"` // by actuator, with what failed
}

// Bounds of the audit log.
const (
	maxAudit     = 256 << 20 // octets; beyond, nothing is done until somebody moves the file away
	maxAuditLine = 1 << 20
	maxSummary   = 1 << 10
	maxLinks     = 20 // of a decision
)

// audit appends to a file of JSON lines, and waits until they are on the disk.
type audit struct{ path string }

// read returns the actions in the log for a mode. A line that is not whole at the end is ignored: what it would have said was
// not done. The error names the line of anything else that cannot be read.
func (a *audit) read(mode Mode) ([]Action, error) {
	f, err := os.Open(a.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: a regular file is expected", a.path)
	case info.Size() > maxAudit:
		return nil, fmt.Errorf("%s: %d octets, at most %d are read; move the file away", a.path, info.Size(), maxAudit)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxAudit))
	if err != nil {
		return nil, err
	}
	return parseAudit(a.path, b, mode)
}

// parseAudit returns the actions in the content of an audit log for a mode.
func parseAudit(file string, b []byte, mode Mode) ([]Action, error) {
	var out []Action
	var torn error // of the line before
	for n := 1; len(b) > 0; n++ {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		b = rest
		if !whole {
			break
		}
		var e entry
		err := errors.New("longer than 1 MiB")
		if len(line) <= maxAuditLine {
			err = json.Unmarshal(line, &e)
		}
		switch {
		case err != nil && torn != nil, err == nil && torn != nil && e.Kind != kindTorn:
			return nil, torn
		case err != nil:
			torn = fmt.Errorf("%s:%d: a decision or a result is expected: %w", file, n, err)
			continue
		}
		torn = nil
		switch e.Kind {
		case kindDecision:
			out = e.apply(out, mode)
		case kindResult:
			out = e.end(out)
		case kindTorn:
		default:
			return nil, fmt.Errorf("%s:%d: kind %q: %s, %s or %s is expected", file, n, e.Kind, kindDecision, kindResult, kindTorn)
		}
	}
	return out, torn
}

// apply returns the actions after a decision.
func (e *entry) apply(out []Action, mode Mode) []Action {
	if e.Mode != mode || e.Decision != Act && e.Decision != DryRun {
		return out
	}
	return begin(out, Action{At: e.At, ID: e.ID, Job: e.Job, Node: e.Node, Done: e.Decision == DryRun})
}

// begin returns the actions after one is begun, or begun again: its time is then that of the latter, since the limits are about
// what is done in a span of time.
func begin(all []Action, a Action) []Action {
	for i := range all {
		if all[i].ID == a.ID && all[i].Node == a.Node {
			all[i].At = a.At
			return all
		}
	}
	return append(all, a)
}

// end returns the actions after the result of one.
func (e *entry) end(out []Action) []Action {
	for i := len(out) - 1; i >= 0; i-- {
		if a := &out[i]; a.ID == e.ID && a.Node == e.Node && !a.Done {
			if e.Outcome == OutcomeVoid {
				return append(out[:i], out[i+1:]...)
			}
			a.Done = true
			return out
		}
	}
	return out
}

// write appends entries and waits until they are on the disk. If it fails, a part of them may be in the file.
func (a *audit) write(entries []entry) error {
	if len(entries) == 0 {
		return nil
	}
	var b bytes.Buffer
	size, torn, err := a.inspect()
	if err != nil {
		return err
	}
	if torn {
		b.WriteByte('\n')
		entries = append([]entry{{Kind: kindTorn, At: entries[0].At}}, entries...)
	}
	for i := range entries {
		line, err := json.Marshal(&entries[i])
		if err != nil {
			return err
		}
		if len(line) > maxAuditLine {
			return fmt.Errorf("%s: a decision has %d octets, at most %d are written", a.path, len(line), maxAuditLine)
		}
		b.Write(append(line, '\n'))
	}
	if size+int64(b.Len()) > maxAudit {
		return fmt.Errorf("%s: %d octets, at most %d are written; move the file away", a.path, size, maxAudit)
	}
	return durable.AppendFile(a.path, b.Bytes())
}

// inspect returns the size of the file, and whether its last line is not whole.
func (a *audit) inspect() (size int64, torn bool, err error) {
	f, err := os.Open(a.path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return 0, false, err
	case !info.Mode().IsRegular():
		return 0, false, fmt.Errorf("%s: a regular file is expected", a.path)
	case info.Size() == 0:
		return 0, false, nil
	}
	last := make([]byte, 1)
	if _, err = f.ReadAt(last, info.Size()-1); err != nil {
		return 0, false, err
	}
	return info.Size(), last[0] != '\n', nil
}
