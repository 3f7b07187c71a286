// Package healthtest runs a health.Watcher on a tree of files, in a time of its own.
package healthtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fakesys"
	"github.com/graylink/graylink/internal/nichw"
	"github.com/graylink/graylink/internal/nodeagent/health"
)

// Start is the time at which a patient begins.
var Start = time.Unix(1_800_000_000, 0).UTC()

// Patient runs a Watcher of the node h1 on a tree of files, in a time of its own.
type Patient struct {
	*health.Watcher
	Tree *fakesys.Tree
	Now  time.Time
	// NICs has the names of the probed NICs by interface.
	NICs map[string]string

	t    testing.TB
	log  safeBuffer
	read int // position in the log
	edit func(*health.Options)
	// current reports whether everything was read since the last change.
	current bool
}

// safeBuffer is safe for concurrent use, because the follower of the kernel's log writes to it, too.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// NewPatient returns a Patient on a tree of a profile of fakesys. The function edit changes the options of the Watcher;
// it may be nil.
func NewPatient(t testing.TB, profile string, edit func(*health.Options)) *Patient {
	t.Helper()
	node, err := fakesys.FindProfile(profile)
	if err != nil {
		t.Fatal(err)
	}
	root := MemoryDir(t)
	if err := fakesys.BuildTree(root, node); err != nil {
		t.Fatal(err)
	}
	tree, err := fakesys.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	p := &Patient{t: t, Tree: tree, Now: Start, edit: edit}
	p.Restart()
	return p
}

// MemoryDir returns a directory in memory for thousands of small files, which are slow on disks.
func MemoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "graylink-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Restart begins anew, as a restarted agent would.
func (p *Patient) Restart() {
	p.t.Helper()
	p.current = false
	o := health.DefaultOptions()
	o.Sys, o.Proc, o.Kmsg = p.Tree.Path("sys"), p.Tree.Path("proc"), p.Tree.Path("dev/kmsg")
	// No file of a test is slow by itself, whatever the machine does.
	o.Patience, o.Log = time.Minute, health.LogOff
	if p.edit != nil {
		p.edit(&o)
	}
	var err error
	p.Watcher, err = health.New(func() (string, map[string]string) { return "h1", p.NICs }, o, slog.New(slog.NewJSONHandler(&p.log, nil)))
	if err != nil {
		p.t.Fatal(err)
	}
}

// RunSteps changes the tree.
func (p *Patient) RunSteps(steps ...string) {
	p.t.Helper()
	p.current = false
	for _, s := range steps {
		if err := p.Tree.RunStep(s); err != nil {
			p.t.Fatal(err)
		}
	}
}

// SetNICs changes the names of the probed NICs. The next poll reads everything.
func (p *Patient) SetNICs(nics map[string]string) { p.NICs, p.current = nics, false }

// PollFor polls for a time, at the interval that the rules ask for, and returns the events.
func (p *Patient) PollFor(d time.Duration) []string {
	p.t.Helper()
	for end := p.Now.Add(d); p.Now.Before(end); {
		parts := nichw.ReadStates
		if !p.current {
			parts, p.current = nichw.ReadAll, true
		}
		p.PollOnce(p.Now, parts)
		p.Now = p.Now.Add(p.NextPoll())
	}
	return p.NewEvents()
}

// Log returns what the Watcher has logged.
func (p *Patient) Log() string { return p.log.String() }

// NewEvents returns the events logged since the last call, such as "fatal state_down NICPort:mlx5_0_port1 REPLACE_VM".
func (p *Patient) NewEvents() (out []string) {
	p.t.Helper()
	all := p.log.String()
	text := []byte(all[p.read:])
	p.read = len(all)
	for line := range bytes.Lines(text) {
		var e struct {
			Level, Event, ErrorCode, EntitiesImpacted, RecommendedAction, NodeName, Agent, ComponentClass string
			IsFatal, IsHealthy                                                                            bool
		}
		if err := json.Unmarshal(line, &e); err != nil {
			p.t.Fatalf("%v in %s", err, line)
		}
		if e.Event != "nic_health" {
			continue
		}
		if e.NodeName != "h1" || e.Agent != "graylink-node" || e.ComponentClass != "NIC" || e.IsFatal != (e.Level == "ERROR") || e.IsHealthy != (e.Level == "INFO") {
			p.t.Errorf("an event with wrong fields: %s", line)
		}
		out = append(out, fmt.Sprintf("%s %s %s %s", map[string]string{"ERROR": "fatal", "WARN": "warning", "INFO": "healthy"}[e.Level], e.ErrorCode, e.EntitiesImpacted, e.RecommendedAction))
	}
	return out
}
