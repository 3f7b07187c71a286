package ibsubnet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
)

// LongestWriting bounds how long before its last change a file of ibdiagnet was begun.
const LongestWriting = longestWriting

// Adaptive adds to the readings of a source where switches choose between ports, from the file ibdiagnet2.far of ibdiagnet.
// It is read again when it was written anew. Without a file that can be read there is no reading: the tables alone would give
// one path where packets take several.
type Adaptive struct {
	Source
	// File is the output file.
	File string
	// Writing is how long before its last change the file may have been begun. If it is set, a change of tables or cables makes the
	// file stale: no path across a switch that chooses is known until the file has been begun after the last reading without the
	// change. Otherwise only those switches are stale whose ports in the file are not those of their tables.
	Writing time.Duration

	stamp    fileStamp
	from     *ibfabric.Fabric
	with     *ibfabric.Fabric
	found    []string
	begun    time.Time // of the last reading
	heldFrom time.Time // of the last reading before the last change; zero if there was no change
	stale    bool
}

// Read implements Source.
func (a *Adaptive) Read(ctx context.Context) (ibfabric.Reading, error) {
	r, err := a.Source.Read(ctx)
	if err != nil {
		return r, err
	}
	info, err := os.Stat(a.File)
	if err != nil {
		return ibfabric.Reading{}, err
	}
	if a.from != nil && r.Fabric != a.from && !r.Fabric.Equal(a.from) {
		a.heldFrom = a.begun
	}
	stamp := fileStamp{info.ModTime(), info.Size()}
	stale := a.Writing > 0 && !a.heldFrom.IsZero() && !stamp.written.Add(-a.Writing).After(a.heldFrom)
	if r.Fabric != a.from || stamp != a.stamp || stale != a.stale {
		if err := a.readFile(r.Fabric, stale); err != nil {
			return ibfabric.Reading{}, err
		}
		// The groups may be those of before or after a change of the tables.
		r.Broken = r.Broken || stamp != a.stamp
		a.from, a.stamp, a.stale = r.Fabric, stamp, stale
	}
	a.begun = r.Begun
	r.Fabric, r.Found = a.with, slices.Concat(r.Found, a.found)
	return r, nil
}

// readFile reads the groups of a fabric's switches.
func (a *Adaptive) readFile(f *ibfabric.Fabric, stale bool) error {
	text, err := os.ReadFile(a.File)
	if err != nil {
		return err
	}
	with, found, err := f.ReadAdaptive(a.File, bytes.NewReader(text))
	if err != nil {
		return err
	}
	if stale {
		with = with.WithStaleChoices()
		found = append(found, fmt.Sprintf("%s may be of before a change behind %s: no path across its switches is known", a.File, a.heldFrom.Format(time.RFC3339)))
	}
	if a.with == nil || !with.Equal(a.with) {
		a.with = with
	}
	a.found = found
	return nil
}

// PollChange implements changeWatcher.
func (a *Adaptive) PollChange() bool {
	w, ok := a.Source.(changeWatcher)
	return ok && w.PollChange()
}

// Due implements changeWatcher.
func (a *Adaptive) Due(began time.Time) time.Time {
	if w, ok := a.Source.(changeWatcher); ok {
		return w.Due(began)
	}
	return began.Add(a.Pause())
}

// Origin implements Source.
func (a *Adaptive) Origin() string {
	return fmt.Sprintf("%s, with the groups of adaptive routing of %s", a.Source.Origin(), a.File)
}
