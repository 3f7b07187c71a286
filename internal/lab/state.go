package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

// StateDirEnv overrides DefaultStateDir, for tests and for machines without /run.
const StateDirEnv = "GRAYLINK_LAB_DIR"

// DefaultStateDir is where labs are remembered.
const DefaultStateDir = "/run/graylink/labs"

func stateDir() string {
	if d := os.Getenv(StateDirEnv); d != "" {
		return d
	}
	return DefaultStateDir
}

// Process identifies a process beyond the reuse of its number.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot, field 22 of proc_pid_stat(5)
}

// currentProcess identifies the calling process.
func currentProcess() (Process, error) { return processOf(os.Getpid()) }

func processOf(pid int) (Process, error) {
	st, err := procStat(pid)
	return Process{PID: pid, Start: st.start}, err
}

// isAlive reports whether the process still runs. A zombie does not, once its
// last thread has ended: until then it holds its files and sockets.
func (p Process) isAlive() bool {
	if p.PID <= 0 {
		return false
	}
	st, err := procStat(p.PID)
	return err == nil && st.start == p.Start && (st.state != "Z" && st.state != "X" || st.threads > 1)
}

// sendSignal sends sig unless the process has ended.
func (p Process) sendSignal(sig syscall.Signal) error {
	if !p.isAlive() {
		return nil
	}
	if err := syscall.Kill(p.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signalling process %d: %w", p.PID, err)
	}
	return nil
}

// stat holds what the lab reads of proc_pid_stat(5).
type stat struct {
	state   string // field 3
	threads int    // field 20
	start   uint64 // field 22, clock ticks after boot
}

func procStat(pid int) (stat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseProcStat(string(data))
}

// parseProcStat finds the fields behind the second, which is the command's
// name in parentheses and may itself hold any of the separators.
func parseProcStat(s string) (stat, error) {
	i := strings.LastIndexByte(s, ')')
	f := strings.Fields(s[i+1:])
	if i < 0 || len(f) < 20 {
		return stat{}, fmt.Errorf("process status %q: want at least 22 fields", s)
	}
	st := stat{state: f[0]}
	var err error
	if st.threads, err = strconv.Atoi(f[17]); err != nil {
		return stat{}, fmt.Errorf("process status %q: field 20: %w", s, err)
	}
	if st.start, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return stat{}, fmt.Errorf("process status %q: field 22: %w", s, err)
	}
	return st, nil
}

// Phases of a lab.
const (
	phaseBuilding = "building"
	phaseUp       = "up"
	phaseDown     = "going down"
)

const stateVersion = 1

// state represents the files in a lab's directory.
type state struct {
	Version    int                     `json:"version"`
	Name       string                  `json:"name"`
	Phase      string                  `json:"phase"`
	Builder    Process                 `json:"builder"`
	Owner      *Process                `json:"owner,omitempty"`
	Created    time.Time               `json:"created"`
	Executable string                  `json:"executable"`
	NetnsIDs   map[string]unix.NetnsID `json:"netns_ids"` // by element; absent until made
	Layout     *Layout                 `json:"layout"`
	Faults     []ActiveFault           `json:"faults"`
	LastFault  int                     `json:"last_fault"`
	// Directories are elsewhere, and are removed with the lab.
	Directories []string `json:"directories,omitempty"`
}

func labDir(root, name string) string { return filepath.Join(root, name) }

func loadState(root, name string) (*state, error) {
	if err := checkLabName(name); err != nil {
		return nil, err
	}
	path := filepath.Join(labDir(root, name), "state.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseState(path, data)
}

func parseState(path string, data []byte) (*state, error) {
	st := &state{}
	if err := json.Unmarshal(data, st); err != nil {
		return nil, fmt.Errorf("%s: a lab's state is expected: %w", path, err)
	}
	if st.Version != stateVersion {
		return nil, fmt.Errorf("%s: state version %d, want %d; take the lab down with the graylink that made it", path, st.Version, stateVersion)
	}
	if st.Layout == nil || st.Layout.Topology == nil {
		return nil, fmt.Errorf("%s: a lab's layout is expected", path)
	}
	return st, nil
}

func (st *state) saveState(root string) error {
	data, err := json.MarshalIndent(st, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the state of lab %q: %w", st.Name, err)
	}
	dir := labDir(root, st.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("saving the state of lab %q: %w", st.Name, err)
	}
	tmp := filepath.Join(dir, "state.json.new")
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return fmt.Errorf("saving the state of lab %q: %w", st.Name, err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, "state.json")); err != nil {
		return fmt.Errorf("saving the state of lab %q: %w", st.Name, err)
	}
	return nil
}

// lockPoll is how often a taken lock is tried again.
const lockPoll = 10 * time.Millisecond

// lockLab keeps other processes, and other goroutines of this one, from changing
// the lab until unlock is called.
func lockLab(ctx context.Context, root, name string) (unlock func(), err error) {
	if err := checkLabName(name); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("making the labs' directory: %w", err)
	}
	path := filepath.Join(root, "."+name+".lock")
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("locking lab %q: %w", name, err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		// Down removes the file while it holds the lock: a lock on a removed file excludes no other process.
		if err == nil && sameFile(f, path) {
			return func() { f.Close() }, nil
		}
		f.Close()
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, fmt.Errorf("locking lab %q: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another process to finish with lab %q: %w", name, ctx.Err())
		case <-tick.C:
		}
	}
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// forgetLab removes everything that is remembered of a lab; the caller holds its lock.
func forgetLab(root, name string) error {
	if err := os.RemoveAll(labDir(root, name)); err != nil {
		return fmt.Errorf("forgetting lab %q: %w", name, err)
	}
	if err := os.Remove(filepath.Join(root, "."+name+".lock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forgetting lab %q: %w", name, err)
	}
	return nil
}

// List names the labs of this machine, also half-built ones, sorted.
func List() ([]string, error) {
	entries, err := os.ReadDir(stateDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && labName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}
