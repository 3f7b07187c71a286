package ibsubnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
)

const (
	// longestWriting bounds how long before its last change a file was begun.
	longestWriting = time.Minute
	// filesGap is the longest time between two pairs of files that confirm each other.
	filesGap = 15 * time.Minute
)

// Files reads the output files of ibnetdiscover and dump_lfts, again when both have been written anew.
type Files struct {
	NetDiscover, LFTs string
	// Log is the log of OpenSM, which has to report no change if the files are to hold until now. Empty means that they hold
	// for the time between two pairs of files that agree.
	Log string
	// Events are UFM's, which do the same as the log where that cannot be read. Nil means none.
	Events *UFMEvents

	log       *ibfabric.OpenSMLog
	stamps    [2]fileStamp
	last      ibfabric.Reading
	changedAt time.Time // when the tables had settled after the last change that was reported
	now       func() time.Time
}

// fileStamp identifies the content of a file.
type fileStamp struct {
	written time.Time
	size    int64
}

// Read implements Source.
func (f *Files) Read(ctx context.Context) (ibfabric.Reading, error) {
	if f.now == nil {
		f.now = time.Now
	}
	now := f.now()
	held, err := f.pollChanges(ctx, now)
	if err != nil {
		f.last = ibfabric.Reading{}
		return ibfabric.Reading{}, err
	}
	watched := f.Log != "" || f.Events != nil
	var stamps [2]fileStamp
	for i, name := range []string{f.NetDiscover, f.LFTs} {
		info, err := os.Stat(name)
		if err != nil {
			return ibfabric.Reading{}, err
		}
		stamps[i] = fileStamp{info.ModTime(), info.Size()}
	}
	begun, ended := stamps[0].written.Add(-longestWriting), stamps[0].written
	if w := stamps[1].written; w.After(ended) {
		ended = w
	} else {
		begun = w.Add(-longestWriting)
	}
	if watched && (!begun.After(f.changedAt) || !held.After(f.changedAt)) {
		f.last = ibfabric.Reading{}
		return ibfabric.Reading{}, fmt.Errorf("%s and %s may be of before a change at %s, by %s", f.NetDiscover, f.LFTs, f.changedAt.Format(time.RFC3339), f.watchers())
	}
	if f.last.Fabric != nil && stamps == f.stamps {
		if watched {
			f.last.Begun, f.last.Ended, f.last.Broken = held, held, false
		}
		return f.last, nil
	}
	fabric, found, err := ReadFiles(f.NetDiscover, f.LFTs)
	if err != nil {
		return ibfabric.Reading{}, err
	}
	r := ibfabric.Reading{Fabric: fabric, Begun: begun, Ended: ended, Found: found, Broken: f.last.Fabric == nil || begun.Sub(f.last.Ended) > filesGap}
	if watched {
		r.Begun, r.Ended = held, held
	}
	if f.last.Fabric != nil && fabric.Equal(f.last.Fabric) {
		r.Fabric = f.last.Fabric
	}
	f.stamps, f.last = stamps, r
	return r, nil
}

// pollChanges notes when the log or UFM reports a change, and returns the time until which they report all. What was before they
// were opened is not known, so that the files have to be newer than that.
func (f *Files) pollChanges(ctx context.Context, now time.Time) (held time.Time, err error) {
	held = now
	if f.Log != "" {
		if err := f.pollLog(now); err != nil {
			return time.Time{}, err
		}
	}
	if f.Events == nil {
		return held, nil
	}
	f.Events.Open(ctx)
	if _, err := f.Events.PollChange(); err != nil {
		return time.Time{}, err
	}
	until, settled := f.Events.HeldUntil()
	if settled.After(f.changedAt) {
		f.changedAt = settled
	}
	if until.Before(held) {
		held = until
	}
	return held, nil
}

// pollLog notes when the log reports a change.
func (f *Files) pollLog(now time.Time) error {
	if f.log == nil {
		log, err := ibfabric.OpenLog(f.Log)
		if err != nil {
			return err
		}
		f.log, f.changedAt = log, now
	}
	changed, err := f.log.PollChange()
	if err != nil {
		return errors.Join(err, f.closeLog())
	}
	if changed {
		f.changedAt = now
	}
	return nil
}

// watchers names what reports changes.
func (f *Files) watchers() string {
	switch {
	case f.Events == nil:
		return f.Log
	case f.Log == "":
		return f.Events.String()
	}
	return f.Log + " or " + f.Events.String()
}

// ReadFiles reads the output files of ibnetdiscover and dump_lfts. Without the name of the second one, the fabric has no tables.
func ReadFiles(netDiscover, lfts string) (f *ibfabric.Fabric, found []string, err error) {
	text, err := os.ReadFile(netDiscover)
	if err != nil {
		return nil, nil, err
	}
	f, found, err = ibfabric.ReadNetDiscover(netDiscover, bytes.NewReader(text))
	if err != nil || lfts == "" {
		return f, found, err
	}
	if text, err = os.ReadFile(lfts); err != nil {
		return nil, nil, err
	}
	f, more, err := f.ReadLFTs(lfts, bytes.NewReader(text))
	return f, slices.Concat(found, more), err
}

// Pause implements Source.
func (f *Files) Pause() time.Duration { return Interval }

// Origin implements Source.
func (f *Files) Origin() string {
	text := fmt.Sprintf("files %s and %s", f.NetDiscover, f.LFTs)
	if f.Log != "" || f.Events != nil {
		text += ", changes by " + f.watchers()
	}
	return text
}

// Close implements Source.
func (f *Files) Close() error {
	if f.Events != nil {
		f.Events.Close()
	}
	return f.closeLog()
}

// closeLog closes the log, and forgets what was read.
func (f *Files) closeLog() error {
	log := f.log
	f.log, f.last = nil, ibfabric.Reading{}
	if log == nil {
		return nil
	}
	return log.Close()
}
