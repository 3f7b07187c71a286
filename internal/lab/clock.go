package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// All namespaces read one kernel clock, so that a node's clock is bent where
// its agent reads it: in a file that graylink-node follows when it is started
// with --clock-bend-file and that file's name.

// BendFile returns the path of the file that bends the clock of a node's agent. The file exists while a fault of the
// clock is active.
func (l *Lab) BendFile(node string) string { return bendFile(l.root, l.name, node) }

func bendFile(root, name, node string) string {
	return filepath.Join(labDir(root, name), "clock", node+".json")
}

// resolveClock resolves faults of the clock by which a NIC is stamped. The kernel has one clock for all NICs of a
// node.
func (x *index) resolveClock(af *ActiveFault) error {
	nic := x.graph.NIC(af.At)
	if nic == nil {
		return fmt.Errorf("%q is not a NIC of the lab: %s wants node/device", af.At, af.Kind)
	}
	af.At = nic.ID()
	af.Mechanism, af.Exclusive = "bend", af.Kind+" "+fabric.OwnerOf(af.At)
	return nil
}

// checkClock fills in how far a clock steps or drifts, within what an agent
// takes.
func (af *ActiveFault) checkClock() error {
	if af.Kind == KindClockStep {
		if af.Step == 0 {
			af.Step = DefaultStep
		}
		if af.Step < -maxStep || af.Step > maxStep {
			return fmt.Errorf("step %s: want at most %s either way", af.Step, maxStep)
		}
		af.DriftPPM = 0
		return nil
	}
	if af.DriftPPM == 0 {
		af.DriftPPM = DefaultDriftPPM
	}
	if !(math.Abs(af.DriftPPM) <= maxDriftPPM) {
		return fmt.Errorf("drift %v ppm: want at most %d either way", af.DriftPPM, maxDriftPPM)
	}
	af.Step = 0
	return nil
}

// bendClock writes the file with the faults of a node's clock.
func (st *state) bendClock(root, node string) error {
	var bend struct {
		Step  time.Duration `json:"step_ns"`
		Drift float64       `json:"drift_ppm"`
	}
	bent := false
	for i := range st.Faults {
		if f := &st.Faults[i]; f.bendsClock() && fabric.OwnerOf(f.At) == node {
			bent = true
			bend.Step += f.Step
			bend.Drift += f.DriftPPM
		}
	}
	path := bendFile(root, st.Name, node)
	if !bent {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("mending the clock of %s: %w", node, err)
		}
		return nil
	}
	data, err := json.Marshal(bend)
	if err != nil {
		return fmt.Errorf("bending the clock of %s: %w", node, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("bending the clock of %s: %w", node, err)
	}
	// An agent never sees half a file.
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return fmt.Errorf("bending the clock of %s: %w", node, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("bending the clock of %s: %w", node, err)
	}
	return nil
}

func (f *Fault) bendsClock() bool { return f.Kind == KindClockStep || f.Kind == KindClockDrift }
