package follow

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// dumps reads the dumps of Flight Recorder in a directory. A dump is read once, when its size has stood still, unless it
// is old; one that was written anew is read again, but not before a minute has passed, since the largest ones take seconds.
type dumps struct {
	ccl.Counts
	owner   uint32
	src     ccl.Source
	out     func(ccl.Record) error
	known   map[string]*dump
	refused ccl.Refusals
	read    int // dumps of the directory that were read
}

// dump is a file that was seen.
type dump struct {
	state  dumpState
	still  int       // polls in which the state was the same
	done   bool      // it was read in this state
	readAt time.Time // when it was read last
	err    error     // why it could not be read
}

// dumpState distinguishes two versions of a file.
type dumpState struct {
	id       unix.FileID
	size     int64
	modified time.Time
}

func newDumps(owner uint32, src ccl.Source, out func(ccl.Record) error) *dumps {
	return &dumps{owner: owner, src: src, out: out, known: map[string]*dump{}}
}

// errLargeDump is the error of a dump that is not read, since reading it would take too much of the agent's memory.
var errLargeDump = fmt.Errorf("more than %d MiB", maxDump>>20)

// errManyDumps is the error of a dump beyond those that are looked at.
var errManyDumps = fmt.Errorf("more than %d dumps", dumpsPerDir)

// poll looks at the files, and reads at most one dump that is new.
func (d *dumps) poll(now time.Time, dir *ccl.Directory, files []fs.DirEntry) {
	d.refused.BeginLook()
	listed := make(map[string]*dump, len(files))
	mayRead := true
	for _, e := range files {
		if len(listed) == dumpsPerDir {
			d.refused.RefuseFor(e.Name(), ccl.RefusedTooMany, errManyDumps)
			continue
		}
		f, err := dir.OpenFile(e, d.owner)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			d.refused.Refuse(e.Name(), err)
			continue
		}
		x := d.known[e.Name()]
		if x == nil {
			x = &dump{}
		}
		listed[e.Name()] = x
		if d.look(now, f, x) && mayRead {
			mayRead = false
			x.done, x.readAt = true, now
			x.err = d.readDump(f, e.Name())
		}
		f.Close()
		if x.err != nil {
			d.refused.RefuseFor(e.Name(), ccl.RefusedContent, x.err)
		}
	}
	d.known, d.read = listed, 0
	for _, x := range listed {
		if x.done && x.err == nil {
			d.read++
		}
	}
}

// look notes the state of a dump, and reports whether it is to be read.
func (d *dumps) look(now time.Time, f *os.File, x *dump) bool {
	info, err := f.Stat()
	if err != nil {
		x.err = err
		return false
	}
	state := dumpState{size: info.Size(), modified: info.ModTime()}
	if _, state.id, err = unix.Identify(info); err != nil {
		x.err = err
		return false
	}
	if state != x.state {
		*x = dump{state: state, readAt: x.readAt}
		return false
	}
	if x.still++; now.Sub(state.modified) > recentDumps && x.readAt.IsZero() {
		return false // what it has is over
	}
	return !x.done && x.still >= dumpStill && (x.readAt.IsZero() || now.Sub(x.readAt) >= dumpAgain)
}

// readDump reads a dump. Entries that cannot be read are counted.
func (d *dumps) readDump(f *os.File, name string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() > maxDump {
		return errLargeDump
	}
	rank, _ := ccl.RankOfFile(name)
	counts, err := ccl.ReadFlightRecorder(f, d.src, rank, d.out, func(fabric.LineError) {})
	d.Add(counts)
	return err
}
